"""The story of space that comes back, small (`space_story.py`)."""

from pathlib import Path

import pytest

from .space_story import tell


@pytest.mark.processes
def test_space_comes_back_and_nothing_live_is_lost_over_kills(tmp_path: Path) -> None:
    """H84–H87 on a real disk; every entry is read and compared."""
    found = tell(tmp_path, 16, 1, rest_s=0.0)

    assert found["kills"] == 2
    assert found["live_mib"] > 2
    fixed_mib = 4 * 1.5  # the current file, one ahead, the reserves
    assert found["files_for_a_live_byte"] * found["live_mib"] < 1.3 * found["live_mib"] + fixed_mib
