"""The driver that `kill_campaign.py` kills: log to log, with tasks that fail at random.

python -m tests.spark.copy_driver URI CHECKPOINT MAX_RECORDS PARTITIONS FAIL_PER_MILLE
"""

import os
import sys
import time

from distributedlog.spark import session
from tests.spark.conftest import spark_env


def main(uri: str, checkpoint: str, records: int, partitions: int, per_mille: int) -> None:
    """Copy what is there, printing a line a batch; ends with the backlog."""
    spark_env()
    from pyspark.sql.functions import udf

    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    conf = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": java}
    spark = session("local[2,8]", conf=conf)

    def flaky(txid: int) -> int:
        if txid % 1_000 == 0 and int.from_bytes(os.urandom(2)) % 1_000 < per_mille:
            raise RuntimeError("injected")
        return txid

    read = (
        spark.readStream.format("distributedlog")
        .schema("txid bigint, payload binary")
        .option("log", "in")
        .option("startingPosition", "earliest")
        .option("maxRecordsPerTrigger", records)
        .option("minPartitions", partitions)
        .option("requestTimeout", "60s")
        .load(uri)
    )
    query = (
        read.withColumn("txid", udf(flaky, "bigint")("txid"))
        .writeStream.format("distributedlog")
        .option("uri", uri)
        .option("log", "out")
        .option("requestTimeout", "60s")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    print("started", flush=True)
    last = -1
    while not query.awaitTermination(0.1):
        progress = query.lastProgress
        if progress is not None and progress.batchId != last:
            last = progress.batchId
            print(f"batch {last} {progress.numInputRows}", flush=True)
        time.sleep(0.05)
    if query.exception() is not None:
        raise SystemExit(str(query.exception())[:2000])
    print("ended", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
