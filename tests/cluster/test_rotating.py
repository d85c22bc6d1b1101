"""What is told of a rotation that is done (`cluster/rotating.py`)."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
import trio

from distributedlog.cluster import rotating
from distributedlog.runtime.errors import QuorumUnreachable


class Metadata:
    """It rotates; then it is gone for a while."""

    listener = ""

    async def rotate_secrets(self, what: str) -> int:
        return 7


async def test_a_quorum_that_goes_away_after_it_makes_no_failure_of_it(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """Who was told that it had failed would do it again, and end what was made before the first."""
    told: list[str] = []
    back_at = 0.0

    async def bookies(metadata: object, listener: str) -> Sequence[dict[str, Any]]:
        if trio.current_time() < back_at:
            raise QuorumUnreachable("nobody leads")
        return []

    monkeypatch.setattr(rotating, "bookies", bookies)
    for away_s, behind in ((3.0, []), (60.0, ["all bookies (nobody leads)"])):
        back_at = trio.current_time() + away_s
        done = await rotating.rotate(
            cast("Any", Metadata()), cast("Any", None), timeout_s=10.0, note=told.extend
        )
        assert done == (7, behind)
    assert set(told) == {"all bookies (nobody leads)"}
