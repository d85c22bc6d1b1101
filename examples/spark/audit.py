"""Audit logs: is everything there, once, in order, and as the metadata says? Exit code 1 where it is not.

    python examples/spark/audit.py --uri URI --logs orders,payments --unique event_id --max-lag 1000000

The metadata is asked first; then the same stretch of each log is read, however much is written meanwhile, and
looked at with SQL:

- sequence ids count all records, so a gap or a repetition shows in them, and the sum is known;
- txids do not go back, within a segment and from one to the next;
- each segment holds the records, txids and bytes that its metadata names;
- a JSON field that should be unique (--unique) is;
- how many records each subscriber has not read yet, and that no truncation took them from it.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distributedlog import DLSN, LogSnapshot, SegmentInfo
from distributedlog.blocking import open_namespace
from distributedlog.spark import plain_errors, session

SEGMENTS = """
SELECT log, segment, count(*) AS records, sum(size) AS payload_bytes,
       min(sequence_id) AS first_id, max(sequence_id) AS last_id,
       min(txid) AS first_txid, max(txid) AS last_txid,
       count_if(sequence_id <> id_before + 1) AS breaks, count_if(txid < txid_before) AS back
FROM (SELECT *, lag(sequence_id) OVER place AS id_before, lag(txid) OVER place AS txid_before
      FROM (SELECT log, segment, entry, slot, sequence_id, txid, length(payload) AS size FROM {records})
      WINDOW place AS (PARTITION BY log, segment ORDER BY entry, slot))
GROUP BY log, segment ORDER BY log, segment
"""
UNIQUE = """
SELECT log, sum(number) - count(*) AS again, min(value) AS example
FROM (SELECT log, get_json_object(cast(payload AS string), {path}) AS value, count(*) AS number
      FROM {records} GROUP BY log, value)
WHERE value IS NOT NULL AND number > 1 GROUP BY log
"""
UNREAD = """
SELECT at.log, at.subscriber, count(r.log) AS unread
FROM {positions} AS at LEFT JOIN {records} AS r
  ON r.log = at.log AND struct(r.segment, r.entry, r.slot) >= struct(at.segment, at.entry, at.slot)
GROUP BY at.log, at.subscriber ORDER BY at.log, at.subscriber
"""
RECORD_COLUMN_BYTES = 12
"""What a record costs in an entry beside its payload."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One question about one log, and the answer."""

    log: str
    question: str
    good: bool
    detail: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.good else 'FAIL'} {self.log}: {self.question}: {self.detail}"


def run(
    spark: Any,
    uri: str,
    logs: Sequence[str],
    *,
    unique: str | None = None,
    max_lag: int | None = None,
) -> list[Finding]:
    """Ask everything of every log."""
    with open_namespace(uri) as namespace:
        known = {name: namespace.open_log(name).snapshot() for name in logs}
        positions = {name: namespace.open_log(name).positions.list() for name in logs}

    def records(columns: str) -> Any:
        """The stretch that the metadata spoke of; only what is asked for is built."""
        reader = spark.read.format("distributedlog").schema(columns).option("logs", ",".join(logs))
        ends = {"startingPosition": "first_dlsn", "endingPosition": "end_dlsn"}
        for option, end in ends.items():
            at = {name: str(getattr(snapshot, end)) for name, snapshot in known.items()}
            reader = reader.option(option, json.dumps(at))
        return reader.load(uri)

    place = "log string, segment bigint, entry bigint, slot int"
    everything = records(f"{place}, sequence_id bigint, txid bigint, payload binary")
    rows = spark.sql(SEGMENTS, records=everything).collect()
    found: list[Finding] = []
    for name, snapshot in known.items():
        held = {row.segment: row for row in rows if row.log == name}
        found += [complete(snapshot, held), ordered(snapshot, held), as_told(snapshot, held)]
    if unique is not None:
        payloads = records("log string, payload binary")
        twice = {
            row.log: row
            for row in spark.sql(UNIQUE, records=payloads, path=f"$.{unique}").collect()
        }
        for name in logs:
            row = twice.get(name)
            said = (
                f"{row.again} records repeat one, such as {row.example!r}" if row else "all differ"
            )
            found.append(Finding(name, f"{unique} is unique", row is None, said))
    return found + lags(spark, records(place), known, positions, max_lag)


def complete(snapshot: LogSnapshot, held: Mapping[int, Any]) -> Finding:
    """Every sequence id from the first to the end, once."""
    expected, wrong = snapshot.first_sequence_id, []
    for number, row in sorted(held.items()):
        if row.first_id != expected or row.breaks or row.last_id - row.first_id + 1 != row.records:
            wrong.append(f"segment {number}: {row.records} records {row.first_id} to {row.last_id}")
        expected = row.last_id + 1
    if expected != snapshot.end_sequence_id:
        wrong.append(f"ends before {expected}, not {snapshot.end_sequence_id}")
    said = "; ".join(wrong) or (
        f"{snapshot.records} records, {snapshot.first_sequence_id} to {snapshot.end_sequence_id - 1}"
    )
    return Finding(snapshot.name, "no record is missing or there twice", not wrong, said)


def ordered(snapshot: LogSnapshot, held: Mapping[int, Any]) -> Finding:
    """No txid goes back."""
    greatest, wrong = -1, []
    for number, row in sorted(held.items()):
        if row.reply:
            wrong.append(f"segment {number}: {row.reply} times")
        if row.first_txid < greatest:
            wrong.append(f"segment {number} begins at {row.first_txid}, behind {greatest}")
        greatest = max(greatest, row.last_txid)
    return Finding(
        snapshot.name, "txids never go back", not wrong, "; ".join(wrong) or f"up to {greatest}"
    )


def as_told(snapshot: LogSnapshot, held: Mapping[int, Any]) -> Finding:
    """Each segment is what its metadata says."""
    told = {one.segment: one for one in snapshot.segments}
    wrong = [f"segment {number} is not in the metadata" for number in sorted(held.keys() - told)]
    for number, one in told.items():
        row = held.get(number)
        # Of the first segment left a truncation may have taken a part; the metadata counts the whole.
        cut = max(0, snapshot.first_sequence_id - one.start_sequence_id)
        records, expected = (row.records if row else 0), max(0, one.records - cut)
        if records != expected:
            wrong.append(f"segment {number} holds {records} records, not {expected}")
        elif row and not cut:
            wrong += in_detail(row, one)
    size = sum(row.payload_bytes for row in held.values())
    said = "; ".join(wrong) or (
        f"{len(told)} segments, {sum(one.size_bytes for one in told.values())} bytes for {size} of payload"
    )
    return Finding(snapshot.name, "segments hold what their metadata says", not wrong, said)


def in_detail(row: Any, one: SegmentInfo) -> list[str]:
    """What is wrong with a whole segment, beside the number of its records."""
    wrong = []
    if not row.reply and (row.first_txid, row.last_txid) != (one.first_txid, one.last_txid):
        wrong.append(
            f"segment {row.segment} has txids {row.first_txid} to {row.last_txid}, "
            f"not {one.first_txid} to {one.last_txid}"
        )
    least = row.payload_bytes + RECORD_COLUMN_BYTES * row.records
    if least > one.size_bytes:
        wrong.append(f"segment {row.segment} has {least} bytes of records in {one.size_bytes}")
    return wrong


def lags(
    spark: Any,
    places: Any,
    known: Mapping[str, LogSnapshot],
    positions: Mapping[str, Mapping[str, DLSN]],
    max_lag: int | None,
) -> list[Finding]:
    """What each subscriber has not read yet."""
    at = [
        (log, subscriber, *dlsn)
        for log, found in positions.items()
        for subscriber, dlsn in found.items()
    ]
    if not at:
        return []
    columns = "log string, subscriber string, segment bigint, entry bigint, slot int"
    rows = spark.sql(UNREAD, positions=spark.createDataFrame(at, columns), records=places).collect()
    found = []
    for row in rows:
        dlsn, first = positions[row.log][row.subscriber], known[row.log].first_dlsn
        lost = dlsn < first and known[row.log].first_sequence_id > 0
        good = not lost and (max_lag is None or row.unread <= max_lag)
        said = f"at {dlsn}, {row.unread} records behind the end"
        said += f"; the log was truncated to {first}, before it had read that far" if lost else ""
        found.append(Finding(row.log, f"subscriber {row.subscriber}", good, said))
    return found


@plain_errors()
def main() -> int:
    """The command line; 0 where all is well, 1 where it is not."""
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--master", default="local[2]")
    ask.add_argument("--uri", default=os.environ.get("DLOG_URI"), help="default: $DLOG_URI")
    ask.add_argument("--logs", default="orders,payments", help="names, separated by commas")
    ask.add_argument("--unique", metavar="FIELD", help="of JSON records, such as event_id")
    ask.add_argument("--max-lag", type=int, help="records that a subscriber may be behind")
    given = ask.parse_args()
    if not given.uri:
        ask.error("--uri, or DLOG_URI, says where the cluster is")
    spark = session(given.master, record_bytes=200)
    found = run(spark, given.uri, given.logs.split(","), unique=given.unique, max_lag=given.max_lag)
    print(*found, sep="\n")
    spark.stop()
    return 0 if all(one.good for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
