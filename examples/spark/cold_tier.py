"""A cold tier: a log's past as Parquet, the log truncated to what is not there yet, both read as one.

    python examples/spark/cold_tier.py --uri URI --log orders --archive cold --checkpoint cold.checkpoint
    dlog log truncate orders --up-to-subscriber cold

Each run appends what is new to the archive and ends: for cron. The second command gives up in the log what
the archive holds; from then on `read_with_history` gives what the log alone gave before.

Why `foreachBatch` and not Spark's file sink: that one is exactly once by its checkpoint and its list of
files, which know nothing of positions in the log, so nobody could say what may be truncated. `append_history`
puts files and the position that they go up to into one manifest, which is replaced in one step. A batch that
is repeated after a kill adds nothing; files that no manifest names are removed by the next run.

The subscriber's position never passes the manifest: Spark reports a batch as done when `append_history` has
returned, which is when files and manifest are on disk. It reports the last batch of a run only in the next
one, so this program moves the position itself at its end.
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
    """Append what is there now to the archive; up to where it goes, None for nowhere yet."""
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
    """One micro-batch; asked again with the same or with other records, it adds those that are missing."""
    append_history(batch, uri, log, archive)


def advance(uri: str, log: str, archive: str) -> DLSN | None:
    """Move the subscriber's position to the end of the archive; where it is then."""
    manifest = history_manifest(archive)
    if manifest is None:
        return None
    with open_namespace(uri) as namespace:
        positions = namespace.open_log(log, incarnation=manifest.incarnation).positions
        return positions.advance(SUBSCRIBER, manifest.end)


@plain_errors()
def main() -> None:
    """The command line."""
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--master", default="local[2]")
    ask.add_argument("--uri", default=os.environ.get("DLOG_URI"), help="default: $DLOG_URI")
    ask.add_argument("--log", default="orders")
    ask.add_argument("--archive", required=True, help="a folder that all hosts see, or a URL")
    ask.add_argument("--checkpoint", required=True, help="a folder; keep it as long as the archive")
    ask.add_argument("--max-records", type=int, default=1_000_000, help="of a micro-batch")
    given = ask.parse_args()
    if not given.uri:
        ask.error("--uri, or DLOG_URI, says where the cluster is")
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
        print(f"{given.archive} goes up to {end}; with the log it has {both.count()} records")
        print(f"now: dlog log truncate {given.log} --up-to-subscriber {SUBSCRIBER}")
    spark.stop()


if __name__ == "__main__":
    main()
