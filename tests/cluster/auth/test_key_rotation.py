"""What is told of a rotation that is done (`cluster/auth/key_rotation.py`)."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
import trio

from distributedlog.cluster.auth import key_rotation as rotating
from distributedlog.runtime.interfaces.errors import QuorumUnreachable, RequestTimeout


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
        done = await rotating.rotate_secrets(
            cast("Any", Metadata()), cast("Any", None), timeout_s=10.0, on_waiting=told.extend
        )
        assert done == (7, behind)
    assert set(told) == {"all bookies (nobody leads)"}


async def test_bookies_are_asked_at_once(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """Ten that hang cost as much as one; one that is down is not waited for."""

    async def bookies(metadata: object, listener: str) -> Sequence[dict[str, Any]]:
        rows = [{"id": f"i{n}", "label": f"b{n}", "address": "there"} for n in range(10)]
        return [*rows, {"id": "i10", "label": "b10", "address": None}]

    class Hanging:
        async def info(self, timeout_s: float) -> dict[str, Any]:
            await trio.sleep(timeout_s)
            raise RequestTimeout("silent")

    class Knowing:
        async def info(self, timeout_s: float) -> dict[str, Any]:
            return {"trust_generation": 3}

    pool: dict[str, Any] = {f"i{n}": Hanging() for n in range(7)} | {
        "i8": Knowing(),
        "i9": Knowing(),
    }
    monkeypatch.setattr(rotating, "bookies", bookies)
    began = trio.current_time()
    behind = await rotating.bookies_behind(cast("Any", Metadata()), cast("Any", pool), 3)
    assert trio.current_time() - began == rotating.QUERY_S
    assert behind == [*(f"b{n} (silent)" for n in range(7)), "b7 (no connection)"]
    behind = await rotating.bookies_behind(cast("Any", Metadata()), cast("Any", pool), 4)
    assert behind[-2:] == [f"b{n} (uses generation 3)" for n in (8, 9)]
