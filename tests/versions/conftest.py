"""The older build that this one is tested against: a commit of this checkout in its own environment."""

import os
import subprocess
from pathlib import Path

import pytest

from distributedlog.bench.builds import environment_of

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
    directory = tmp_path_factory.mktemp("older")
    environment_of(OLDER_COMMIT, directory)
    return directory / "source"


@pytest.fixture(scope="session")
def older_python(older_source: Path) -> str:
    """The Python of the environment in which the older build is installed."""
    return str(older_source.parent / "environment" / "bin" / "python")
