"""Audit logs: check that all records exist once, in order, and as the metadata states.

    python examples/spark/audit.py --uri URI --logs orders,payments --unique event_id --max-lag 1000000

The program first reads the metadata. Then it reads the same range of each log, independent of later writes,
and
checks it with SQL:

- Sequence IDs count all records, so they show gaps and repetitions, and the total is known.
- Transaction IDs do not decrease, within a segment and across segments.
- Each segment has the records, transaction IDs and bytes that its metadata states.
- A JSON field that should be unique (--unique) is unique.
- The number of unread records per subscriber, and whether a truncation deleted some of them.

The exit code is 1 if a check fails.
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
"""Bytes of a record in an entry in addition to its payload."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one log, and its result."""

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
    """Run all checks on all logs."""
    with open_namespace(uri) as namespace:
        known = {name: namespace.open_log(name).snapshot() for name in logs}
        positions = {name: namespace.open_log(name).positions.list() for name in logs}

    def records(columns: str) -> Any:
        """Return the range of the metadata's snapshot. Only the requested columns are built."""
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
        found += [
            complete(snapshot, held),
            ordered(snapshot, held),
            matches_metadata(snapshot, held),
        ]
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
    """Check that each sequence ID from the first to the end exists once."""
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
    """Check that transaction IDs do not decrease."""
    greatest, wrong = -1, []
    for number, row in sorted(held.items()):
        if row.back:
            wrong.append(f"segment {number}: {row.back} times")
        if row.first_txid < greatest:
            wrong.append(f"segment {number} begins at {row.first_txid}, behind {greatest}")
        greatest = max(greatest, row.last_txid)
    return Finding(
        snapshot.name, "txids never go back", not wrong, "; ".join(wrong) or f"up to {greatest}"
    )


def matches_metadata(snapshot: LogSnapshot, held: Mapping[int, Any]) -> Finding:
    """Check that each segment matches its metadata."""
    told = {one.segment: one for one in snapshot.segments}
    wrong = [f"segment {number} is not in the metadata" for number in sorted(held.keys() - told)]
    for number, one in told.items():
        row = held.get(number)
        # A truncation may have removed a part of the first segment; the metadata counts all of its records.
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
    """Return the errors of a complete segment, except in its number of records."""
    wrong = []
    if not row.back and (row.first_txid, row.last_txid) != (one.first_txid, one.last_txid):
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
    """Return the number of unread records of each subscriber, as findings."""
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
    """Run the command. Return 0 if all checks pass, otherwise 1."""
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--master", default="local[2]")
    ask.add_argument("--uri", default=os.environ.get("DLOG_URI"), help="default: $DLOG_URI")
    ask.add_argument("--logs", default="orders,payments", help="names, comma-separated")
    ask.add_argument("--unique", metavar="FIELD", help="a field of JSON records, such as event_id")
    ask.add_argument("--max-lag", type=int, help="records that a subscriber may be behind")
    given = ask.parse_args()
    if not given.uri:
        ask.error("set --uri or DLOG_URI to the URI of the cluster")
    spark = session(given.master, record_bytes=200)
    found = run(spark, given.uri, given.logs.split(","), unique=given.unique, max_lag=given.max_lag)
    print(*found, sep="\n")
    spark.stop()
    return 0 if all(one.good for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
