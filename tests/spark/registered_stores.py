"""Has fsspec find `write_once.py` in Spark's processes, as it finds the store of an installed package."""

from pathlib import Path

ENTRY_POINT = "[fsspec.specs]\nonce = tests.spark.write_once:WriteOnce\n"


def registered(directory: Path) -> str:
    """A folder for PYTHONPATH."""
    about = directory / "write_once-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: write-once\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINT)
    return str(directory)
