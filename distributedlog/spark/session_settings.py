"""The recommended session settings, a session with them, and this package as a zip for its executors."""

import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..runtime.interfaces.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS = ("ledger", "log", "metadata", "bookie", "runtime", "spark")
"""Packages of the zip: the pure Python that source and sink require, without the servers."""


def recommended_conf(*, record_bytes: int = 1024, local: bool = False) -> Mapping[str, str]:
    """For ``SparkSession.builder.config(map=…)``.

    ``record_bytes``: the size of a typical record; the sink is handed batches of some 4 MiB of them.
    ``local``: also what a session on one machine wants (no web interface, loopback); and this interpreter for
    Spark's workers, unless ``PYSPARK_PYTHON`` says another one. Else they take ``python3`` from PATH, which
    does not know this format where a virtual environment was not activated (``DATA_SOURCE_NOT_FOUND``).
    Spark reads that from the environment alone, so it is set there.
    """
    records = min(65_536, max(100, 4 * 1024 * 1024 // max(1, record_bytes)))
    settings = {
        # Two TCP stalls a task less; together with the frozen heap of a worker 31 ms become 4.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(records),
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.streaming.metricsEnabled": "true",
        "spark.task.maxFailures": "4",
    }
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
        }
    return settings


def session(
    master: str = "local[2]", *, record_bytes: int = 1024, conf: Mapping[str, str] | None = None
) -> "SparkSession":
    """A session of a program's own: quiet, with what `recommended_conf` says, and ``conf`` above that.

    Its workers run this interpreter, unless ``PYSPARK_PYTHON`` says another one.
    """
    from pyspark.sql import SparkSession

    from .data_source import DistributedLogSource

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        **recommended_conf(record_bytes=record_bytes, local=master.startswith("local")),
        **(conf or {}),
    }
    spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
    spark.dataSource.register(
        DistributedLogSource
    )  # an editable install hides it from Spark's search
    return spark


def _temporary_directory() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="dlog-spark-"))
    except OSError as error:
        raise InvalidRequest(
            f"the zip of the package needs a temporary directory: {error.strerror}; set TMPDIR to a writable"
            " one, or name a directory"
        ) from None


def package_zip(directory: str | Path | None = None) -> str:
    """Write the zip, into a temporary directory if none is named; its path.

    Executors still need trio, msgpack, xxhash, pyarrow, numpy, for compressed logs lz4 or zstandard, and the
    driver's minor version of Python.
    """
    package = Path(__file__).absolute().parent.parent
    if package.name != "distributedlog":  # loaded through the folder itself, beside its link
        package = package / "distributedlog"
    into = Path(directory) if directory is not None else _temporary_directory()
    target = into / "distributedlog-spark.zip"
    files = [
        *package.glob("*.py"),
        *(file for part in PARTS for file in (package / part).rglob("*.py")),
    ]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(files):
            archive.write(file, f"distributedlog/{file.relative_to(package)}")
        archive.writestr(
            "__init__.py",
            "from distributedlog.spark.data_source import DistributedLogSource as DefaultSource\n",
        )
    return str(target)
