"""The older build that this one is tested against: a commit of this checkout in its own environment."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from distributedlog.testing.bench.compare_builds import export

OLDER_COMMIT = os.environ.get("DLOG_OLDER_COMMIT", "fea56d70")
"""The build before 1.0 whose data directories, messages and clients stay supported."""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def older_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The older build's source tree. Skips without the git history, as in a source distribution."""
    found = subprocess.run(
        ["git", "-C", str(ROOT), "cat-file", "-e", f"{OLDER_COMMIT}^{{commit}}"],
        capture_output=True,
        check=False,
    )
    if found.returncode != 0:
        pytest.skip(f"commit {OLDER_COMMIT} is not in this checkout's history")
    source = tmp_path_factory.mktemp("older") / "source"
    export(OLDER_COMMIT, source)
    return source


@pytest.fixture(scope="session")
def older_python(older_source: Path) -> str:
    """The Python of an environment with the older build and this environment's dependencies.

    An older build on the path of this environment needs no installation, which takes half a minute.
    """
    environment = older_source.parent / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    packages = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    paths = [str(older_source), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    Path(packages, "older.pth").write_text("\n".join(dict.fromkeys(paths)) + "\n", encoding="utf-8")
    return str(python)
