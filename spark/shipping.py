"""This package as a zip that Spark sends to its executors: ``sparkContext.addPyFile(package_zip())``."""

import tempfile
import zipfile
from pathlib import Path

from ..runtime.errors import InvalidRequest

PARTS = ("ledger", "log", "metadata", "bookie", "runtime", "spark")
"""What source and sink need: pure Python, without the servers' disks."""


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
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for file in sorted(files):
            made.write(file, f"distributedlog/{file.relative_to(package)}")
        made.writestr(
            "pyspark_distributedlog.py",
            "from distributedlog.spark.source import DistributedLogSource as DefaultSource\n",
        )
    return str(target)
