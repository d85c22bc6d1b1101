"""One Spark session and one real cluster for the whole run; where Java or Spark is missing, a named skip.

Every Spark test costs a query; the session alone costs ten seconds. So tests share both, and each has logs
of its own.

Tests without Spark check the rules: planning, offsets, limits, filters and packing. Tests and campaigns cite
these scenarios by number:

- S1 same rows as the plain reader; S2 every projection; S3 repeatable ranges; S4 a bookie killed in a read
- S5, S6 a log truncated under a reader, a stream, a checkpoint; S7 new logs; S8 sealed logs; S9 empty logs
- S10 replay after attaching; S11 failing tasks; S12 lost answers, aborts; S13 two drivers, one checkpoint
- S14 live writer and takeover; S15 logs deleted and created again; S16 decreasing txids; S17 speculation
- S18 AvailableNow; S19 limits; S20 restarts and foreign checkpoints; S21 sizes, bytes; S22 small segments
- S23 wrong options; S24 wrong frames; S25 filters; S26 standalone cluster, code by zip, a worker killed
- S27 subscribers, metadata quorum unavailable; S28 applications and versions; S29 found without registration
- S30 memory, threads, sockets; S31 export, truncate, import; S32 snapshot and truncate
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
import trio

from distributedlog import Namespace, open_namespace
from distributedlog.cluster.local.child_processes import environment
from distributedlog.spark.client import spark_client
from distributedlog.spark.session_settings import recommended_conf
from tests.cluster.story import Cluster
from tests.spark.registered_stores import registered

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module", autouse=True)
def _end_clients() -> Iterator[None]:
    """Close the clients that a module leaves open.

    Otherwise their threads try to reach its cluster while later tests run, and a simulation in the same
    process fails because of their real socket calls.
    """
    yield
    for client in spark_client._clients.values():
        client.close()


def why_not() -> str:
    """Why Spark cannot run here; "" where it can."""
    try:
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        return f"{error.name} is not installed: pip install '.[spark]'"
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "there is no Java: install a headless Java 17"
    return ""


def spark_env() -> None:
    """What workers inherit: this Python, this checkout, loopback, and the tests' own object store."""
    stores = registered(Path(tempfile.mkdtemp(prefix="spark-stores-")))
    os.environ.update(
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
        PYTHONPATH=os.pathsep.join([str(ROOT), environment()["PYTHONPATH"], stores]),
    )


@pytest.fixture(autouse=True, scope="session")
def _fast_java_start() -> Iterator[None]:
    """Have every Java start without the optimizing compiler: for tiny queries it costs more than it gains."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session of the whole run."""
    missing = why_not()
    if missing:
        pytest.skip(missing)
    spark_env()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,4]").appName("tests")
    for key, value in recommended_conf(local=True).items():
        builder = builder.config(key, value)
    scratch = tempfile.mkdtemp(prefix="spark-tests-")
    session = (
        builder.config("spark.driver.memory", "1g")
        # The compilation of a query costs more than it gains, too.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.local.dir", scratch)
        .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three bookies and three metadata nodes, each a process."""
    made = Cluster.planned(tmp_path_factory.mktemp("cluster"), bookies=3)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def uri(cluster: Cluster) -> str:
    """A namespace of the test's own."""
    base = cluster.uri.rpartition("/")[0]
    return f"{base}/{uuid4().hex[:12]}"


def on(uri: str, call: Callable[[Namespace], Awaitable[T]]) -> T:
    """Run a call on the namespace, with a client of its own."""

    async def main() -> T:
        async with open_namespace(uri) as namespace:
            return await call(namespace)

    return trio.run(main)


def payload(number: int, size: int = 0) -> bytes:
    """What record ``number`` holds; of varied sizes where none is said."""
    text = b"%d:" % number
    return (text * ((size or 1 + number * 37 % 300) // len(text) + 1))[
        : size or 1 + number * 37 % 300
    ]


def fill(uri: str, name: str, numbers: Sequence[int], *, size: int = 0, entry: int = 1000) -> None:
    """Write records whose txid is their number, in one segment of the log, ``entry`` records an entry."""

    async def write(namespace: Namespace) -> None:
        async with namespace.open_log(name).open_writer() as writer:
            for at in range(0, len(numbers), entry):
                part = list(numbers[at : at + entry])
                await writer.submit_columns(part, [payload(number, size) for number in part])
                await writer.commit()

    on(uri, write)


def plain(uri: str, name: str) -> list[tuple[int, int, int, int, int, bytes]]:
    """(segment, entry, slot, sequence id, txid, payload) of every record, by the plain reader."""

    async def read(namespace: Namespace) -> list[tuple[int, int, int, int, int, bytes]]:
        found = []
        async with namespace.open_log(name).open_reader(to="end") as reader:
            async for one in reader:
                found.append((*one.dlsn, one.sequence_id, one.txid, one.payload))
        return found

    return on(uri, read)
