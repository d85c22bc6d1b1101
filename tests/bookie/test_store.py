"""What a bookie promises, at its store: adds, fences, reads, LACs, deletion."""

import trio
import trio.testing

from distributedlog.runtime.memory import MemoryDisk

from .kit import Adder, read_all, record, running


async def test_what_was_acked_is_read(autojump_clock: trio.testing.MockClock) -> None:
    """G1: many frames of many ledgers, all come back as they were sent."""
    async with running(MemoryDisk()) as store:
        adders = [Adder(store, ledger) for ledger in range(1, 6)]
        for frame in range(20):
            for adder in adders:
                adder.send(*(record(adder.ledger, frame * 5 + n) for n in range(5)))
        for adder in adders:
            await adder.all_acked()

        for adder in adders:
            assert list((await read_all(store, adder.ledger)).values()) == adder.sent
