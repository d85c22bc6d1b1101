"""The story of an owner that is killed and paused, small."""

import pytest

from .owner_kills_story import story


@pytest.mark.processes
async def test_what_an_owner_that_dies_had_acknowledged_is_there() -> None:
    """Scenario 28, H60, H78, H183."""
    found = await story(producers=5, kills=1, pauses=1, seed=1, proxies=2)

    assert found["acknowledged"]
