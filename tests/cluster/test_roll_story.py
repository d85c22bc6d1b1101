"""Scenario 16, small: rolls under tail readers on processes. Times are `roll_story.py`'s, not judged here."""

from pathlib import Path

import pytest

from tests.cluster import roll_story

pytestmark = pytest.mark.processes


def test_tail_readers_see_each_record_once_over_rolls_on_processes(tmp_path: Path) -> None:
    writer, readers = roll_story.play(
        tmp_path,
        seconds=3,
        rate=500,
        readers=4,
        processes=2,
        segment_bytes=24 * 1024,
        payload_bytes=100,
    )

    assert writer["rolls"] >= 3
    assert len(readers) == 4
    for one in (writer, *readers):
        assert (one["records"], one["rolls"]) == (1500, writer["rolls"])
