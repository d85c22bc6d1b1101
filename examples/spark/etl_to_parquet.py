"""A log of JSON changes into Parquet, by day; each run takes what is new and ends: for cron.

    python examples/spark/etl_to_parquet.py --uri URI --output out/orders --checkpoint out/orders.checkpoint

Each change once, though the log holds some twice: `dropDuplicatesWithinWatermark` remembers event ids for as
long as the watermark says. What comes later than that is dropped, for nobody could say whether it was there:
so the delay is longer than the latest event may be, and it is what the state costs. A record that cannot be
parsed is a row too, with its text in ``raw``.

The files' own log (``_spark_metadata``) and the checkpoint make it exactly once: killed at any point and run
again, no row is missing or there twice. Read the folder with Spark, or read the files that the log names.
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
"""Of `change_feed.py`."""


def parsed(records: Any) -> Any:
    """A row for each record: the change in columns, or the text of what is none."""
    change = f.from_json(f.col("payload").cast("string"), CHANGE)
    whole = f.col("change.event_id").isNotNull() & f.col("change.event_ms").isNotNull()
    row = f.coalesce("change.after", "change.before")  # of a deletion what was deleted
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
        # The day in UTC, whatever the session's time zone.
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
    """One run to the end of what is there now; (micro-batches, records read)."""
    records = (
        spark.readStream.format("distributedlog")
        .schema("sequence_id bigint, txid bigint, payload binary, timestamp timestamp")
        .option("log", log)
        .option("txidUnit", "ms")  # a record's txid is when it was written: the column `timestamp`
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
    """Wait for a query that ends; (micro-batches with records, records read)."""
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
    """The command line."""
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--master", default="local[2]")
    ask.add_argument("--uri", default=os.environ.get("DLOG_URI"), help="default: $DLOG_URI")
    ask.add_argument("--log", default="orders")
    ask.add_argument("--output", required=True, help="a folder of Parquet files")
    ask.add_argument("--checkpoint", required=True, help="a folder; keep it as long as the output")
    ask.add_argument("--watermark", default="2 hours", help="the latest an event may be")
    ask.add_argument("--max-records", type=int, default=1_000_000, help="of a micro-batch")
    given = ask.parse_args()
    if not given.uri:
        ask.error("--uri, or DLOG_URI, says where the cluster is")
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
