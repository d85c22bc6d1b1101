"""S29: a fresh virtual environment, ``pip install '.[spark]'``, nothing registered: the format is found in
DataFrames, SQL and streams, in a classic session and through Spark Connect.

    python -m tests.spark.fresh_venv --python python3.11 --connect

``--connect`` also installs ``pyspark[connect]`` and starts a Connect server in the same process.
"""

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

import trio

from distributedlog import open_namespace
from tests.cluster.story import Cluster
from tests.spark.conftest import ROOT

PROGRAM = """
import sys
from pyspark.sql import SparkSession
uri, how, place = sys.argv[1:]
builder = SparkSession.builder
builder = builder.remote("local[2]") if how == "connect" else builder.master("local[2]")
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
reader = spark.read.format("distributedlog").option("log", "a")
frame = reader.option("requestTimeout", "60s").load(uri)
row = tuple(frame.selectExpr("count(*)", "sum(txid)").collect()[0])
assert row == (1000, 499500), row
options = f"uri '{uri}', log 'a', requestTimeout '60s'"
spark.sql(f"CREATE TEMPORARY VIEW v USING distributedlog OPTIONS ({options})")
assert spark.sql("SELECT max(sequence_id) FROM v").collect()[0][0] == 999
frame.select("txid", "payload").write.format("distributedlog").mode("append").option(
    "log", f"out-{how}").option("createLogs", "true").option("requestTimeout", "60s").save(uri)
reader = spark.readStream.format("distributedlog").option("log", f"out-{how}")
stream = reader.option("startingPosition", "earliest").option("requestTimeout", "60s").load(uri)
query = stream.writeStream.format("parquet").option("checkpointLocation", f"{place}/checkpoint").trigger(
    availableNow=True).start(f"{place}/out")
assert query.awaitTermination(120)
assert spark.read.parquet(f"{place}/out").count() == 1000
try:
    spark.read.format("distributedlog").option("log", "a").option("lug", "b").load(uri).count()
    raise SystemExit("an unknown option was taken")
except Exception as error:
    assert 'unknown option "lug"' in str(error), error
print(f"{how}: pyspark {spark.version}: right", flush=True)
"""


async def fill(uri: str) -> None:
    """A thousand records."""
    async with (
        open_namespace(uri) as namespace,
        namespace.open_log("a").open_writer() as writer,
    ):
        await writer.submit_columns(list(range(1_000)), [b"x"] * 1_000)


def main(python: str, spark: str, *, connect: bool) -> int:
    """0: found everywhere."""
    failures = 0
    with tempfile.TemporaryDirectory(prefix="fresh-venv-") as directory:
        home = Path(directory) / "venv"
        subprocess.run([python, "-m", "venv", str(home)], check=True)
        wanted = [f"{ROOT}[spark]", *([f"pyspark{spark}"] if spark else [])]
        if connect:
            wanted.append("pyspark[connect]")
        subprocess.run([home / "bin" / "pip", "install", "-q", *wanted], check=True)
        cluster = Cluster.planned(Path(directory) / "cluster", bookies=3)
        cluster.start()
        with cluster:
            trio.run(fill, cluster.uri)
            program = Path(directory) / "program.py"
            program.write_text(PROGRAM)
            env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
            env |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(home / "bin" / "python")}
            for how in ("classic", *(("connect",) if connect else ())):
                place = Path(directory) / how
                place.mkdir()
                done = subprocess.run(
                    [home / "bin" / "python", program, cluster.uri, how, place],
                    cwd=directory,
                    env=env,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                failures += done.returncode != 0
                print(done.stdout, end="", flush=True)
                if done.returncode:
                    print(f"{how}: WRONG\n{done.stderr[-3000:]}", flush=True)
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default="python3")
    parser.add_argument("--spark", default="", help="a version, such as ==4.2.*")
    parser.add_argument("--connect", action="store_true")
    arguments = parser.parse_args()
    raise SystemExit(main(arguments.python, arguments.spark, connect=arguments.connect))
