"""Copy a log to another one exactly once: parse, filter and reshape. Each run processes new records and ends.

    python examples/spark/log_to_log.py --uri URI --source orders --target paid --checkpoint paid.checkpoint

This example selects the changes of `change_feed.py` by which an order is paid, and writes them as small
records. Transaction IDs and order are kept. Records that are filtered out leave no gap in the target.

The copy is exactly once. The checkpoint has the source positions of each batch. The sink writes the segments
of
a batch outside the log, and links them in one step that also records the batch. If a run is killed and
repeated
with the same checkpoint, no record is missing or duplicated. The transformation must depend only on the
record,
because a repeated batch must be the same. It must not shuffle, because this would change the order.
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
    """Return the changes by which an order is paid, with the columns txid and payload for the sink."""
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
    """Copy all present records, and end."""
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
        .coalesce(1)  # one segment per batch, not per task; coalesce keeps the order
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
    """Run the command."""
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--master", default="local[2]")
    ask.add_argument("--uri", default=os.environ.get("DLOG_URI"), help="default: $DLOG_URI")
    ask.add_argument("--source", default="orders")
    ask.add_argument("--target", default="paid")
    ask.add_argument("--checkpoint", required=True, help="a folder; keep it as long as the target")
    ask.add_argument("--max-records", type=int, default=1_000_000, help="records per micro-batch")
    given = ask.parse_args()
    if not given.uri:
        ask.error("set --uri or DLOG_URI to the URI of the cluster")
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
