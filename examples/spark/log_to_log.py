"""From one log into another, exactly once: parse, filter, reshape, write; each run takes what is new.

    python examples/spark/log_to_log.py --uri URI --source orders --target paid --checkpoint paid.checkpoint

Here: of the changes of `change_feed.py` those with which an order is paid, as small records of their own. The
txid stays, the order stays; what is filtered out leaves no gap in the target.

Exactly once: the checkpoint knows which positions of the source make a batch, the sink writes a batch's
segments beside the target and links them in one step that also notes the batch. Killed at any point and run
again with the same checkpoint, no record is missing or there twice. The transformation must be a function of
the record, or a repeated batch is another one; and it must not shuffle, for the order is the log's.
"""

import argparse
import os
from typing import Any

from pyspark.sql import functions as f

from distributedlog.spark import plain_errors, session

CHANGE = (
    "op string, order_id bigint, event_ms bigint, after struct<status string, amount_cents bigint>"
)


def transformed(records: Any) -> Any:
    """Of the changes those that make an order paid; columns txid and payload, as the sink takes them."""
    change = f.from_json(f.col("payload").cast("string"), CHANGE)
    paid = (f.col("change.op") == "u") & (f.col("change.after.status") == "paid")
    shown = f.struct("change.order_id", "change.event_ms", "change.after.amount_cents")
    return (
        records.withColumn("change", change)
        .where(paid)
        .select("txid", f.to_json(shown).alias("payload"))
    )


def run(
    spark: Any,
    uri: str,
    checkpoint: str,
    *,
    source: str = "orders",
    target: str = "paid",
    max_records: int = 1_000_000,
) -> None:
    """Copy what is there now, and end."""
    records = (
        spark.readStream.format("distributedlog")
        .schema("txid bigint, payload binary")
        .option("log", source)
        .option("startingPosition", "earliest")
        .option("maxRecordsPerTrigger", max_records)
        .load(uri)
    )
    query = (
        transformed(records)
        .coalesce(1)  # a segment a batch and not one a task; coalesce keeps the order
        .writeStream.format("distributedlog")
        .option("uri", uri)
        .option("log", target)
        .option("createLogs", "true")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


@plain_errors()
def main() -> None:
    """The command line."""
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--master", default="local[2]")
    ask.add_argument("--uri", default=os.environ.get("DLOG_URI"), help="default: $DLOG_URI")
    ask.add_argument("--source", default="orders")
    ask.add_argument("--target", default="paid")
    ask.add_argument("--checkpoint", required=True, help="a folder; keep it as long as the target")
    ask.add_argument("--max-records", type=int, default=1_000_000, help="of a micro-batch")
    given = ask.parse_args()
    if not given.uri:
        ask.error("--uri, or DLOG_URI, says where the cluster is")
    spark = session(given.master, record_bytes=200)
    run(
        spark,
        given.uri,
        given.checkpoint,
        source=given.source,
        target=given.target,
        max_records=given.max_records,
    )
    written = spark.read.format("distributedlog").schema("txid bigint").option("log", given.target)
    print(f"{given.target} has {written.load(given.uri).count()} records")
    spark.stop()


if __name__ == "__main__":
    main()
