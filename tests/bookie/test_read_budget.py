"""Reads have a budget a turn of the loop: adds and fences are looked at in between (H42b)."""

from typing import Any

import pytest
import trio

from distributedlog.bookie.server import READ_TURN_BYTES, BookieServer

from .kit import CutDisk, running

REPLY_BYTES = 300_000


class _Reader:
    """A connection with so many reads to serve."""

    def __init__(self, reads: int) -> None:
        self.waiting = [None] * reads
        self.resting = False
        self.queued = False
        self.outgoing_bytes = 0
        self.served: list[int] = []

    def serve_one(self) -> int:
        self.waiting.pop()
        self.served.append(REPLY_BYTES)
        return REPLY_BYTES


async def test_no_turn_of_the_loop_gives_reads_more_than_their_budget() -> None:
    async with running(CutDisk()) as store:
        server = BookieServer(store, None)
        readers: Any = [_Reader(50) for _ in range(4)]
        most = turns = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve_reads)
            for reader in readers:
                server.ready(reader)
            served = 0
            while served < 200:  # an add's connection has its turn
                before = served
                await trio.lowlevel.checkpoint()
                served = sum(len(reader.served) for reader in readers)
                most = max(most, served - before)
                turns += 1
            nursery.cancel_scope.cancel()

    # Within a turn the order of the tasks is drawn: at most two of theirs lie between two of ours.
    assert most * REPLY_BYTES <= 2 * (READ_TURN_BYTES + REPLY_BYTES)
    assert turns >= 200 * REPLY_BYTES // READ_TURN_BYTES // 2


@pytest.mark.parametrize("first", ["greedy", "modest"])
async def test_the_connections_have_their_turns_one_after_the_other(first: str) -> None:
    """Who asks for a thousand replies delays the others by one, not by a thousand."""
    async with running(CutDisk()) as store:
        server = BookieServer(store, None)
        greedy: Any = _Reader(1000)
        modest: Any = _Reader(1)
        async with trio.open_nursery() as nursery:
            for reader in (greedy, modest) if first == "greedy" else (modest, greedy):
                server.ready(reader)
            nursery.start_soon(server.serve_reads)
            while not modest.served:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

        assert len(greedy.served) <= 2 * (READ_TURN_BYTES // REPLY_BYTES + 1)
