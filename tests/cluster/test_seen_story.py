"""On processes: what is wrong is named by `dlog status` and the console, with a reason."""

from pathlib import Path

import pytest

from tests.cluster import seen_story
from tests.runtime.mounts import mounted

pytestmark = pytest.mark.processes


def test_what_is_wrong_is_named_by_status_and_console(tmp_path: Path) -> None:
    """How soon is measured by ``python -m tests.cluster.seen_story``, which fails above three seconds."""
    with mounted(tmp_path / "probe", "tmpfs", "-o", "size=1m"):
        pass  # skipped by name where nothing can be mounted
    took = seen_story.play(tmp_path / "story", say=print)
    assert len(took) == 8
