"""A driver with a token in a file, whose query must show it nowhere: batch, stream, and tasks that fail.

python -m tests.spark.credentials_driver URI SCRATCH, with DLOG_CREDENTIALS
"""

import os
import sys
from pathlib import Path

from distributedlog.spark import session
from tests.spark.conftest import spark_env


def main(uri: str, scratch: Path) -> None:
    """Ten records into ``in``, from there into ``out``, both ways; then a query that fails."""
    spark_env()
    from pyspark.sql.functions import udf

    events = scratch / "events"
    events.mkdir()
    spark = session(
        "local[2,2]",
        conf={
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file://{events}",
        },
    )
    made = spark.createDataFrame([(n, b"%d" % n) for n in range(10)], "txid bigint, payload binary")
    write = made.write.format("distributedlog").mode("append").option("uri", uri)
    write.option("log", "in").save()

    read = spark.read.format("distributedlog").option("log", "in").load(uri)
    read.explain(extended=True)
    print("read", sorted(row.txid for row in read.collect()), flush=True)

    stream = spark.readStream.format("distributedlog").schema("txid bigint, payload binary")
    query = (
        stream.option("log", "in")
        .option("startingPosition", "earliest")
        .load(uri)
        .writeStream.format("distributedlog")
        .option("uri", uri)
        .option("log", "out")
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(extended=True)
    copied = spark.read.format("distributedlog").option("log", "out").load(uri)
    print("copied", copied.count(), flush=True)

    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes()
        except OSError:
            continue
        assert b"dlog1_" not in words, "a token is in a process list"

    def broken(txid: int) -> int:
        raise RuntimeError(f"no {txid}")

    try:
        read.withColumn("txid", udf(broken, "bigint")("txid")).collect()
    except Exception as error:
        print("failed", type(error).__name__, str(error), flush=True)
    try:
        spark.read.format("distributedlog").option("log", "other").load(uri).count()
    except Exception as error:
        print("refused", str(error)[:2000], flush=True)
    spark.stop()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
