"""The story of an owner that is killed and paused, small."""

import pytest

from .owner_kills_story import story


@pytest.mark.processes
async def test_what_an_owner_that_dies_had_acknowledged_is_there() -> None:
    """Scenario 28, H60, H64, H78, H183: its producers go on, and every record is there once."""
    found = await story(producers=5, kills=1, pauses=1, seed=1, proxies=2, once=True)

    assert found["acknowledged"]
