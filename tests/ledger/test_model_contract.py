"""One contract for the model bookie (`testing/sim/ledger/ledger_model.py`) and the real one: what is found
over the first holds of the second.

Both sides are asked the same drawn things through the same client API and must answer the same. Where the
model is coarser than a bookie, it is written here.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.bookie.format.entry import encode
from distributedlog.bookie.format.entry import records as records_in
from distributedlog.runtime.interfaces.errors import DistributedLogError
from tests.examples import few

from .model_bookie import model_cluster
from .test_real_bookies import real_cluster

KEY = b"0123456789abcdef"
OTHER_KEY = b"fedcba9876543210"
LEDGER = 5
TIMEOUT_S = 5.0


@asynccontextmanager
async def connected(side: str) -> AsyncIterator[Any]:
    """A connection to a bookie of this side."""
    if side == "model":
        async with model_cluster(1) as model:
            yield model["b0"].client
    else:
        async with real_cluster(1) as real:
            client = await real.client()
            yield await client.pool.connected("b0", TIMEOUT_S)


class Asked:
    """What one side was asked, and said: plain values."""

    def __init__(self, bookie: Any) -> None:
        self._bookie = bookie
        self._streams: list[Any] = []
        self.said: list[Any] = []

    async def do(self, what: tuple[Any, ...]) -> None:
        """One thing, and what came of it once all is quiet."""
        kind, *rest = what
        try:
            answer = await getattr(self, f"_{kind}")(*rest)
        except DistributedLogError as error:
            answer = type(error).__name__
        await trio.sleep(1.0)
        told = [(stream["acked"], stream["refused"]) for stream in self._streams]
        self.said.append((what[0], answer, told))

    async def _open(self, recovery: bool) -> None:
        seen: dict[str, Any] = {"acked": 0, "refused": None}

        def on_acked(count: int) -> None:
            seen["acked"] = count

        def on_refused(position: int, error: DistributedLogError) -> None:
            seen["refused"] = (position, type(error).__name__)

        seen["stream"] = self._bookie.open_stream(
            LEDGER,
            KEY,
            recovery=recovery,
            fragment_epoch=0,
            on_acked=on_acked,
            on_refused=on_refused,
        )
        self._streams.append(seen)

    async def _add(self, stream: int, records: list[bytes]) -> None:
        for record in records:
            self._streams[stream % len(self._streams)]["stream"].send(record)

    async def _lac(self, stream: int, lac: int) -> None:
        self._streams[stream % len(self._streams)]["stream"].send_lac(lac)

    async def _fence(self, key: bytes) -> Any:
        answer = await self._bookie.fence(LEDGER, key, TIMEOUT_S)
        return answer.lac, answer.last_entry, answer.proves_absence

    async def _ends(self) -> Any:
        answer = await self._bookie.read_lac(LEDGER, KEY, TIMEOUT_S)
        return answer.lac, answer.last_entry, answer.proves_absence

    async def _list(self) -> Any:
        answer = await self._bookie.list_entries(LEDGER, KEY, TIMEOUT_S)
        return [
            e for first, count in answer.ranges for e in range(first, first + count)
        ], answer.proves_absence

    async def _read(self, first: int, last: int, fence: bool) -> Any:
        answer = await self._bookie.read(
            LEDGER, KEY, first, last, 1 << 20, fence=fence, past_lac=True, timeout_s=TIMEOUT_S
        )
        found = [bytes(record.record) for record in records_in(answer.body)]
        return answer.complete_to, answer.lac, answer.proves_absence, found


def record(entry: int, lac: int, *, other: bool = False) -> bytes:
    body = b"another %d" % entry if other else b"entry %d" % entry
    return bytes(encode(LEDGER, entry, 10 * entry, max(lac, -1), [body], len(body)))


def drawn(chance: random.Random) -> list[tuple[Any, ...]]:
    """What is asked: a writer's stream first, since a bookie knows no ledger that nobody added to."""
    asked: list[tuple[Any, ...]] = [("open", False), ("add", 0, [record(0, -1)])]
    upto = 1
    for _ in range(chance.randrange(5, 25)):
        kind = chance.choice(
            (
                "add",
                "add",
                "add",
                "again",
                "conflict",
                "lac",
                "open",
                "fence",
                "ends",
                "list",
                "read",
            )
        )
        stream = chance.randrange(4)
        if kind == "add":
            upto += chance.choice((0, 0, 1))  # a stripe of another bookie
            count = chance.randrange(1, 4)
            asked.append(("add", stream, [record(e, e - 2) for e in range(upto, upto + count)]))
            upto += count
        elif kind == "again":
            entry = chance.randrange(upto)
            asked.append(("add", stream, [record(entry, entry - 2)]))
        elif kind == "conflict":
            asked.append(("add", stream, [record(chance.randrange(upto), -1, other=True)]))
        elif kind == "lac":
            asked.append(("lac", stream, chance.randrange(-1, upto)))
        elif kind == "open":
            asked.append(("open", chance.random() < 0.5))
        elif kind == "fence":
            asked.append(("fence", KEY if chance.random() < 0.8 else OTHER_KEY))
        elif kind == "read":
            first = chance.randrange(upto + 2)
            asked.append(("read", first, first + chance.randrange(5), chance.random() < 0.2))
        else:
            asked.append((kind,))
    return [*asked, ("ends",), ("list",), ("read", 0, upto + 1, False)]


@pytest.mark.parametrize("seed", few(range(60), 10))
async def test_a_model_bookie_answers_as_a_real_one(seed: int, autojump_clock: MockClock) -> None:
    """Inv. 11 to 13, H1, H9, H24: fences, duplicates, conflicts, poisoned streams, the LAC, reads."""
    asked = drawn(random.Random(seed))
    said: dict[str, list[Any]] = {}
    for side in ("model", "real"):
        async with connected(side) as bookie:
            one = Asked(bookie)
            for what in asked:
                await one.do(what)
            said[side] = one.said

    for place, what in enumerate(asked):
        assert said["model"][place] == said["real"][place], f"{place}: {what[0]}"
