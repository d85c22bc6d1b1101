"""Convert a log of JSON changes to Parquet files by day. Each run processes new records and ends.

    python examples/spark/etl_to_parquet.py --uri URI --output out/orders --checkpoint out/orders.checkpoint

Each change is in the output once, even if the log has it twice. `dropDuplicatesWithinWatermark` remembers
event
IDs for the duration of the watermark. Later events are dropped, because they could be duplicates. Therefore
choose a watermark longer than the greatest delay of an event; a longer one requires more state. A record that
cannot be parsed is a row, too, with its text in ``raw``.

The log of the files (``_spark_metadata``) and the checkpoint make the output exactly once. If a run is killed
and repeated, no row is missing or duplicated. Read the folder with Spark, or read the files that the log
lists.
"""

import argparse
import os
from typing import Any

from pyspark.sql import functions as f

from distributedlog.spark import plain_errors, session

ROW = "struct<customer_id bigint, country string, status string, amount_cents bigint, items int>"
CHANGE = (
    "event_id string, op string, order_id bigint, version int, event_ms bigint, "
    f"before {ROW}, after {ROW}"
)
"""The schema of `change_feed.py`."""


def parsed(records: Any) -> Any:
    """Return one row per record: the columns of the change, or the text of a record that is no change."""
    change = f.from_json(f.col("payload").cast("string"), CHANGE)
    whole = f.col("change.event_id").isNotNull() & f.col("change.event_ms").isNotNull()
    row = f.coalesce("change.after", "change.before")  # a deletion has only the row before
    event_ms = f.when(whole, f.col("change.event_ms")).otherwise(f.col("txid"))
    return records.withColumn("change", change).select(
        f.when(whole, f.col("change.event_id"))
        .otherwise(f.concat(f.lit("record "), "sequence_id"))
        .alias("event_id"),
        f.when(whole, f.col("change.op")).alias("op"),
        "change.order_id",
        "change.version",
        f.timestamp_millis(event_ms).alias("event_time"),
        f.col("timestamp").alias("written"),
        *(row[name].alias(name) for name in ROW_FIELDS),
        f.when(~whole, f.col("payload").cast("string")).alias("raw"),
        # The day in UTC, independent of the session's time zone.
        f.date_from_unix_date(f.floor(event_ms / 86_400_000).cast("int")).alias("day"),
    )


ROW_FIELDS = ("customer_id", "country", "status", "amount_cents", "items")


def run(
    spark: Any,
    uri: str,
    output: str,
    checkpoint: str,
    *,
    log: str = "orders",
    watermark: str = "2 hours",
    max_records: int = 1_000_000,
) -> tuple[int, int]:
    """Process all present records. Return the numbers of micro-batches and of records."""
    records = (
        spark.readStream.format("distributedlog")
        .schema("sequence_id bigint, txid bigint, payload binary, timestamp timestamp")
        .option("log", log)
        .option("txidUnit", "ms")  # a txid is the time of the write: the column `timestamp`
        .option("startingPosition", "earliest")
        .option("maxRecordsPerTrigger", max_records)
        .load(uri)
    )
    query = (
        parsed(records)
        .withWatermark("event_time", watermark)
        .dropDuplicatesWithinWatermark(["event_id"])
        .writeStream.format("parquet")
        .partitionBy("day")
        .option("path", output)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    return to_its_end(query)


def to_its_end(query: Any) -> tuple[int, int]:
    """Wait for a query that ends. Return the numbers of micro-batches with records and of records."""
    batches: dict[int, int] = {}
    try:
        ended = False
        while not ended:  # Spark keeps the progress of the last hundred batches
            ended = query.awaitTermination(1)
            for one in query.recentProgress:
                if one.numInputRows:
                    batches[one.batchId] = one.numInputRows
    finally:
        query.stop()
    return len(batches), sum(batches.values())


@plain_errors()
def main() -> None:
    """Run the command."""
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--master", default="local[2]")
    ask.add_argument("--uri", default=os.environ.get("DLOG_URI"), help="default: $DLOG_URI")
    ask.add_argument("--log", default="orders")
    ask.add_argument("--output", required=True, help="a folder of Parquet files")
    ask.add_argument("--checkpoint", required=True, help="a folder; keep it as long as the output")
    ask.add_argument("--watermark", default="2 hours", help="maximum delay of an event")
    ask.add_argument("--max-records", type=int, default=1_000_000, help="records per micro-batch")
    given = ask.parse_args()
    if not given.uri:
        ask.error("set --uri or DLOG_URI to the URI of the cluster")
    spark = session(given.master, record_bytes=200)
    batches, records = run(
        spark,
        given.uri,
        given.output,
        given.checkpoint,
        log=given.log,
        watermark=given.watermark,
        max_records=given.max_records,
    )
    print(f"{records} new records of {given.log} in {batches} micro-batches")
    if os.path.isdir(given.output):
        spark.read.parquet(given.output).groupBy("day").count().orderBy("day").show()
    spark.stop()


if __name__ == "__main__":
    main()
