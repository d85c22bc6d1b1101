"""Full disks, on processes (the acceptance's story)."""

from pathlib import Path

import pytest

from tests.cluster import full_disk_story
from tests.runtime.mounts import mounted

pytestmark = pytest.mark.processes


def test_full_bookies_start_serve_and_go_on_when_there_is_room(tmp_path: Path) -> None:
    """H28: killed with -9 on disks without a free byte."""
    with mounted(tmp_path / "probe", "tmpfs", "-o", "size=1m"):
        pass  # skipped by name where nothing can be mounted
    read = full_disk_story.run_full(tmp_path / "story", say=print)
    assert read.count(b"\n") == 10_001
    assert read.endswith(b"one more\n")


def test_logs_in_turn_on_nearly_full_disks_are_whole(tmp_path: Path) -> None:
    """Bookies are read-only again and again, and writers go on when what was deleted is given back."""
    with mounted(tmp_path / "probe", "tmpfs", "-o", "size=1m"):
        pass  # skipped by name where nothing can be mounted
    logs = 8
    read = full_disk_story.run_in_turn(tmp_path / "story", say=print, logs=logs)
    assert read == logs * full_disk_story.LOG_RECORDS


def test_restarts_of_an_almost_empty_bookie_take_hardly_any_room(tmp_path: Path) -> None:
    """Four of them, with the default settings: at most 20 MB in sum."""
    assert full_disk_story.run_restarts(tmp_path, say=print) <= 20_000_000
