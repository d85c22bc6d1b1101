"""Two builds side by side: what is said of the other one is a path from where the caller is."""

import sys
from pathlib import Path

import pytest

from distributedlog.bench.builds import whole


def test_the_other_python_is_found_from_any_directory_and_stays_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/performance.md names it as ``../before/.venv/bin/python``; what it runs starts elsewhere."""
    (tmp_path / "here").mkdir()
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path / "here")

    assert whole("../before/python") == str(tmp_path / "before" / "python")
