"""Process late events by event time: revenue by minute and country, and orders joined with their payments.

    python examples/spark/windows_and_join.py --uri URI --output out --checkpoint out.checkpoint

Two streaming queries process all present records of the logs of `change_feed.py`. The sum of a minute is
written once, when the watermark has passed it, which is when an event ``--patience`` later was read. Events
with a smaller delay always count, independent of the micro-batches. Events with a larger delay may be
dropped.

The join finds the payments within ``--within`` of each order. This limit bounds Spark's state. An order is
kept until the watermark has passed its time plus the limit, and a payment until the watermark has passed its
time. Both logs are deduplicated first, so that a payment that was sent twice counts once.
"""

import argparse
import os
from typing import Any

from pyspark.sql import functions as f

from distributedlog.spark import plain_errors, session

CHANGE = (
    "event_id string, op string, order_id bigint, event_ms bigint, "
    "after struct<country string, status string, amount_cents bigint>"
)
PAYMENT = "event_id string, order_id bigint, event_ms bigint, amount_cents bigint, method string"


def events(spark: Any, uri: str, log: str, schema: str, patience: str, max_records: int) -> Any:
    """Return the distinct events of a log, with their event times and a watermark."""
    return (
        spark.readStream.format("distributedlog")
        .schema("payload binary")
        .option("log", log)
        .option("startingPosition", "earliest")
        .option("maxRecordsPerTrigger", max_records)
        .load(uri)
        .select(f.from_json(f.col("payload").cast("string"), schema).alias("event"))
        .select("event.*", f.timestamp_millis("event.event_ms").alias("event_time"))
        .withWatermark("event_time", patience)
        .dropDuplicatesWithinWatermark(["event_id"])
    )


def revenue(changes: Any) -> Any:
    """Return the paid amounts by minute and country, in cents."""
    return (
        changes.where("op = 'u' and after.status = 'paid'")
        .groupBy(f.window("event_time", "1 minute"), "after.country")
        .agg(f.count("*").alias("orders"), f.sum("after.amount_cents").alias("cents"))
        .select(f.col("window.start").alias("minute"), "country", "orders", "cents")
    )


def paid_orders(changes: Any, payments: Any, within: str) -> Any:
    """Return each order with a payment in time, with both times and the paid amount."""
    created = changes.where("op = 'c'").select(
        f.col("order_id"), f.col("event_time").alias("ordered"), "after.country"
    )
    pays = payments.select(
        f.col("event_id").alias("payment"),
        f.col("order_id").alias("paid_order"),
        f.col("event_time").alias("paid"),
        f.col("amount_cents").alias("paid_cents"),
        "method",
    )
    in_time = f"paid >= ordered AND paid <= ordered + INTERVAL {within}"
    return created.join(pays, f.expr(f"order_id = paid_order AND {in_time}")).drop("paid_order")


def run(
    spark: Any,
    uri: str,
    output: str,
    checkpoint: str,
    *,
    orders_log: str = "orders",
    payments_log: str = "payments",
    patience: str = "10 minutes",
    within: str = "15 minutes",
    max_records: int = 1_000_000,
) -> dict[str, list[Any]]:
    """Run both queries on all present records. Return the progress of their micro-batches, by output."""

    def changes() -> Any:
        return events(spark, uri, orders_log, CHANGE, patience, max_records)

    payments = events(spark, uri, payments_log, PAYMENT, patience, max_records)
    frames = {
        "revenue": revenue(changes()),
        "paid_orders": paid_orders(changes(), payments, within),
    }
    found = {}
    for name, frame in frames.items():
        query = (
            frame.writeStream.format("parquet")
            .option("path", f"{output}/{name}")
            .option("checkpointLocation", f"{checkpoint}/{name}")
            .trigger(availableNow=True)
            .start()
        )
        found[name] = to_its_end(query)
    return found


def to_its_end(query: Any) -> list[Any]:
    """Wait for a query that ends. Return the progress of each micro-batch."""
    batches: dict[int, Any] = {}
    try:
        ended = False
        while not ended:  # Spark keeps the progress of the last hundred batches
            ended = query.awaitTermination(1)
            batches |= {one.batchId: one for one in query.recentProgress}
    finally:
        query.stop()
    return list(batches.values())


@plain_errors()
def main() -> None:
    """Run the command."""
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--master", default="local[2]")
    ask.add_argument("--uri", default=os.environ.get("DLOG_URI"), help="default: $DLOG_URI")
    ask.add_argument("--orders-log", default="orders")
    ask.add_argument("--payments-log", default="payments")
    ask.add_argument("--output", required=True, help="a folder: revenue/ and paid_orders/ in it")
    ask.add_argument("--checkpoint", required=True, help="a folder; keep it as long as the output")
    ask.add_argument("--patience", default="10 minutes", help="maximum delay of an event")
    ask.add_argument("--within", default="15 minutes", help="maximum time from order to payment")
    ask.add_argument(
        "--max-records", type=int, default=1_000_000, help="records per log and micro-batch"
    )
    given = ask.parse_args()
    if not given.uri:
        ask.error("set --uri or DLOG_URI to the URI of the cluster")
    spark = session(given.master, record_bytes=200)
    found = run(
        spark,
        given.uri,
        given.output,
        given.checkpoint,
        orders_log=given.orders_log,
        payments_log=given.payments_log,
        patience=given.patience,
        within=given.within,
        max_records=given.max_records,
    )
    for name, batches in found.items():
        read = sum(one.numInputRows for one in batches)
        late = sum(op.numRowsDroppedByWatermark for one in batches for op in one.stateOperators)
        print(f"{name}: {read} records in {len(batches)} micro-batches, {late} rows were too late")
        frame = spark.read.parquet(f"{given.output}/{name}")
        frame.orderBy(frame.columns[:2]).show(5)
    spark.stop()


if __name__ == "__main__":
    main()
