"""A cold tier: archive a log as Parquet, truncate the log to the rest, and read both as one.

    python examples/spark/cold_tier.py --uri URI --log orders --archive cold --checkpoint cold.checkpoint
    dlog log truncate orders --before-position cold

Each run appends new records to the archive and ends, so it is suitable for cron. The second command truncates
the archived records. Afterwards `read_with_history` returns the same records that the log alone had before.

The program uses `foreachBatch` and not Spark's file sink. That sink is exactly once by its checkpoint and its
list of files, which have no log positions, so they do not show how far the log can be truncated.
`append_history` stores the files and their end position in one manifest, which is replaced in one step. A
batch that is repeated after a kill adds nothing. The next run removes files that no manifest lists.

The position of the subscriber never passes the manifest. Spark reports a batch as done after `append_history`
has returned, when files and manifest are on disk. It reports the last batch of a run only in the next run, so
this program moves the position itself at its end.
"""

import argparse
import os
from typing import Any

from distributedlog import DLSN
from distributedlog.blocking import open_namespace
from distributedlog.spark import (
    append_history,
    history_manifest,
    plain_errors,
    read_with_history,
    session,
)

SUBSCRIBER = "cold"


def run(
    spark: Any,
    uri: str,
    archive: str,
    checkpoint: str,
    *,
    log: str = "orders",
    max_records: int = 1_000_000,
) -> DLSN | None:
    """Append all present records to the archive. Return its end position, or None if it is empty."""
    records = (
        spark.readStream.format("distributedlog")
        .option("log", log)
        .option("startingPosition", "earliest")
        .option("subscriber", SUBSCRIBER)
        .option("maxRecordsPerTrigger", max_records)
        .load(uri)
    )
    query = (
        records.writeStream.foreachBatch(lambda batch, _: put(batch, uri, log, archive))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return advance(uri, log, archive)


def put(batch: Any, uri: str, log: str, archive: str) -> None:
    """Append one micro-batch. A repeated or overlapping batch adds only the missing records."""
    append_history(batch, uri, log, archive)


def advance(uri: str, log: str, archive: str) -> DLSN | None:
    """Move the position of the subscriber to the end of the archive, and return it."""
    manifest = history_manifest(archive)
    if manifest is None:
        return None
    with open_namespace(uri) as namespace:
        positions = namespace.open_log(log, incarnation=manifest.incarnation).positions
        return positions.advance(SUBSCRIBER, manifest.end)


@plain_errors()
def main() -> None:
    """Run the command."""
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--master", default="local[2]")
    ask.add_argument("--uri", default=os.environ.get("DLOG_URI"), help="default: $DLOG_URI")
    ask.add_argument("--log", default="orders")
    ask.add_argument("--archive", required=True, help="a folder shared by all hosts, or a URL")
    ask.add_argument("--checkpoint", required=True, help="a folder; keep it as long as the archive")
    ask.add_argument("--max-records", type=int, default=1_000_000, help="records per micro-batch")
    given = ask.parse_args()
    if not given.uri:
        ask.error("set --uri or DLOG_URI to the URI of the cluster")
    spark = session(given.master)
    end = run(
        spark,
        given.uri,
        given.archive,
        given.checkpoint,
        log=given.log,
        max_records=given.max_records,
    )
    if end is None:
        print(f"{given.log} has no records yet")
    else:
        both = read_with_history(spark, given.uri, given.log, given.archive)
        print(f"{given.archive} ends at {end}; with the log it has {both.count()} records")
        print(f"next: dlog log truncate {given.log} --before-position {SUBSCRIBER}")
    spark.stop()


if __name__ == "__main__":
    main()
