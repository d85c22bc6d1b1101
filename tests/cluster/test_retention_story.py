"""The story of retention under load, at a size for CI (`retention_story.py`)."""

import pytest

from tests.cluster.retention_story import played


@pytest.mark.properties
def test_nothing_goes_early_and_nothing_stays_under_kills_of_the_janitor() -> None:
    """H18, H152, H153: the clock lags, never leads; readers behind are told once."""
    one = played(logs=2, segments_per_s=1.0, age_s=20.0, minutes=4.0, kills=3, seed=1)

    assert one.gone > 0.7 * one.segments
    assert one.told >= 2
    assert one.read_on >= 2
