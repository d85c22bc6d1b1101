"""Provide recommended session settings, a session with them, and this package as a zip for executors."""

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
    """Return settings for ``SparkSession.builder.config(map=…)``.

    Args:
        record_bytes: Size of a typical record. The sink receives batches of about 4 MiB of them.
        local: Also return settings for a session on one machine (no web interface, loopback), and set
            ``PYSPARK_PYTHON`` to this interpreter, unless it is set. Spark reads it from the environment
                only. Otherwise Spark's workers use ``python3`` from PATH, which does not have this format if
                a virtual environment is not activated (``DATA_SOURCE_NOT_FOUND``).
    """
    records = min(65_536, max(100, 4 * 1024 * 1024 // max(1, record_bytes)))
    settings = {
        # Saves two TCP stalls per task. With the frozen heap of a worker, this reduces 31 ms to 4 ms.
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
    """Return a quiet session with the settings of `recommended_conf`, which ``conf`` overrides.

    Its workers run this interpreter, unless ``PYSPARK_PYTHON`` names another one.
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
    )  # Spark's search does not find the source of an editable install
    return spark


def _temporary_directory() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="dlog-spark-"))
    except OSError as error:
        raise InvalidRequest(
            f"the zip of the package needs a temporary directory: {error.strerror}. Set TMPDIR to a writable"
            " directory, or pass a directory"
        ) from None


def package_zip(directory: str | Path | None = None) -> str:
    """Write the zip and return its path. The default directory is a new temporary one.

    Executors also require trio, msgpack, xxhash, pyarrow, numpy, lz4 or zstandard for compressed logs, and
    the driver's minor version of Python.

    Raises:
        InvalidRequest: No temporary directory can be created.
    """
    package = Path(__file__).absolute().parent.parent
    if package.name != "distributedlog":  # loaded through the folder itself, next to its link
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
