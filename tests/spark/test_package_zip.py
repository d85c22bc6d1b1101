"""The zip for executors: source and sink run from it, without the servers."""

import subprocess
import sys
import zipfile
from pathlib import Path

from distributedlog.spark import package_zip

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_zip_is_enough_for_the_parts_that_tasks_run(tmp_path: Path) -> None:
    """S26, its first half: nothing of the package comes from anywhere else."""
    path = package_zip(tmp_path)
    # Without the checkout, and with what is installed: also where the environment lies in the checkout.
    program = (
        f"import sys; sys.path = [{path!r}] + [p for p in sys.path if p not in ('', {str(ROOT)!r})]\n"
        "import distributedlog.spark.client.spark_client, distributedlog.spark.read.task_entries\n"
        "import distributedlog.log.segments.external_segment_writer\n"
        "print(distributedlog.__file__, 'lmdb' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )

    assert done.stdout.split() == [f"{path}/distributedlog/__init__.py", "False"], done.stderr
    names = zipfile.ZipFile(path).namelist()
    assert "__init__.py" in names
    assert not [name for name in names if "/cli/" in name or "/sim/" in name]
