"""Keep the latest rows of a log of changes in a table, and truncate the log to the table's position.

    python examples/spark/snapshot_and_truncate.py --uri URI --log orders --table tables/orders

Each run makes the next snapshot from the previous one and the later changes: the highest version of each key.
The last record of a key is not sufficient, because changes may be late and duplicated. For the same reason a
deleted key stays in the files, as a row with op ``d``. Otherwise an older change that arrives later would
restore it. `table()` omits such rows.

    tables/orders/CURRENT           one line of JSON: the present snapshot, and its end position
    tables/orders/snapshot-<id>/    Parquet

The order of the steps matters. Each step can be repeated, and after a kill the next run continues:

1. `finish`     truncate the log to CURRENT's position, which a killed run may not have done, and remove
                snapshots that CURRENT does not name
2. `write`      write the new snapshot to a folder that is not yet referenced
3. `publish`    sync it, then replace CURRENT, so that the new snapshot is valid and on disk
4. `finish`     truncate the log to CURRENT's position

Truncation depends only on CURRENT, so the log always has the changes that no published snapshot has. Only one
run at a time may use a table. A lock rejects a second one.
"""

import argparse
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import functions as f

from distributedlog import DLSN
from distributedlog.blocking import open_namespace
from distributedlog.spark import (
    dlsn_text,
    plain_errors,
    positions,
    session,
)

ROW = "struct<customer_id bigint, country string, status string, amount_cents bigint, items int>"
CHANGE = f"op string, order_id bigint, version int, event_ms bigint, before {ROW}, after {ROW}"
"""The schema of `change_feed.py`."""
COLUMNS = ("order_id", "version", "op", "event_ms", "row")
KEY = "order_id"


def run(spark: Any, uri: str, directory: str, *, log: str = "orders") -> dict[str, Any]:
    """Make the next snapshot and truncate the log to it. Return the content of CURRENT."""
    with locked(Path(directory)) as where:
        before = current(where)
        if before is not None and before["log"] != log:
            raise ValueError(f"{where} is the table of log {before['log']}, not of {log}")
        finish(uri, where, before)
        end = positions(uri, [log])
        if before is not None and json.loads(end)["logs"] == json.loads(before["end"])["logs"]:
            return before  # nothing new
        name = write(spark, uri, log, where, before, end)
        after = {"snapshot": name, "log": log, "end": end}
        publish(where, after)
        finish(uri, where, after)
        return after


def table(spark: Any, directory: str) -> Any:
    """Return the existing rows of the present snapshot."""
    now = current(Path(directory))
    assert now is not None, f"{directory} has no snapshot yet"
    rows = spark.read.parquet(os.path.join(directory, now["snapshot"]))
    return rows.where("op != 'd'").select(KEY, "version", "event_ms", "row.*")


# --- the steps ------------------------------------------------------------------------------------


def write(
    spark: Any, uri: str, log: str, where: Path, before: dict[str, Any] | None, end: str
) -> str:
    """Write the snapshot at position ``end`` to a new folder, and return the folder's name."""
    # Fail for a record that is no change, because the log will soon be truncated.
    wrong = f.raise_error(f.concat(f.lit(f"{log}: no change of an order at "), dlsn_text()))
    changes = (
        spark.read.format("distributedlog")
        .schema("segment bigint, entry bigint, slot int, payload binary")
        .option("log", log)
        .option("startingPosition", "earliest" if before is None else before["end"])
        .option("endingPosition", end)
        .load(uri)
        .withColumn("change", f.from_json(f.col("payload").cast("string"), CHANGE))
        .withColumn(KEY, f.coalesce("change.order_id", wrong))
        .withColumn("row", f.coalesce("change.after", "change.before"))
        .select(KEY, "change.version", "change.op", "change.event_ms", "row")
    )
    if before is not None:
        changes = spark.read.parquet(str(where / before["snapshot"])).unionByName(changes)
    latest = changes.groupBy(KEY).agg(f.max_by(f.struct(*COLUMNS), "version").alias("latest"))
    name = f"snapshot-{uuid4().hex[:12]}"
    latest.select("latest.*").write.parquet(str(where / name))
    return name


def publish(where: Path, now: dict[str, Any]) -> None:
    """Make a snapshot the present one, in one step. It is on disk when this returns."""
    folder = where / now["snapshot"]
    for one in [*folder.iterdir(), folder]:
        sync(one)
    aside = where / "CURRENT.aside"
    aside.write_text(json.dumps(now) + "\n")
    sync(aside)
    sync(where)
    aside.rename(where / "CURRENT")
    sync(where)


def finish(uri: str, where: Path, now: dict[str, Any] | None) -> None:
    """Remove all snapshots except the present one, and truncate the log to its position."""
    for one in where.glob("snapshot-*"):
        if now is None or one.name != now["snapshot"]:
            shutil.rmtree(one)
    if now is not None:
        log, end = now["log"], json.loads(now["end"])
        with open_namespace(uri) as namespace:
            opened = namespace.open_log(log, incarnation=end["ids"][log])
            opened.truncate(DLSN.parse(end["logs"][log]))


# --- files ----------------------------------------------------------------------------------------


def current(where: Path) -> dict[str, Any] | None:
    """Return the content of CURRENT, or None before the first snapshot."""
    try:
        found: dict[str, Any] = json.loads((where / "CURRENT").read_text())
    except FileNotFoundError:
        return None
    return found


@contextmanager
def locked(where: Path) -> Iterator[Path]:
    """Lock the folder for this process. The operating system releases the lock of a killed process."""
    where.mkdir(parents=True, exist_ok=True)
    with open(where / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield where


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@plain_errors()
def main() -> None:
    """Run the command."""
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--master", default="local[2]")
    ask.add_argument("--uri", default=os.environ.get("DLOG_URI"), help="default: $DLOG_URI")
    ask.add_argument("--log", default="orders")
    ask.add_argument("--table", required=True, help="a folder shared by all hosts")
    given = ask.parse_args()
    if not given.uri:
        ask.error("set --uri or DLOG_URI to the URI of the cluster")
    spark = session(given.master, record_bytes=200)
    now = run(spark, given.uri, given.table, log=given.log)
    at = json.loads(now["end"])["logs"][given.log]
    print(f"{table(spark, given.table).count()} rows at {at}; the log begins there")
    spark.stop()


if __name__ == "__main__":
    main()
