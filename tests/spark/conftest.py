"""One Spark session and one real cluster for the whole run; where Java or Spark is missing, a named skip.

Every Spark test costs a query; the session alone costs ten seconds. So tests share both, and each has logs
of its own.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from distributedlog.cluster.processes import environment
from distributedlog.spark.settings import recommended_conf
from tests.cluster.story import Cluster

ROOT = Path(__file__).resolve().parent.parent.parent


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
    """What workers inherit: this Python, this checkout, loopback."""
    os.environ.update(
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
        PYTHONPATH=os.pathsep.join([str(ROOT), environment()["PYTHONPATH"]]),
    )


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
