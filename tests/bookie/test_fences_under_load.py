"""A fence is answered when it is durable, also when there is no room to write it at once (inv. 11)."""

import random
from collections.abc import Callable
from dataclasses import replace

import trio
import trio.testing

from distributedlog.bookie.ledgers.ledger_table import Ledger
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.runtime.interfaces.errors import DistributedLogError

from .kit import KEY, OPTIONS, Adder, CutDisk, record, running

SMALL = replace(OPTIONS, journal_file_bytes=4 << 20, gather_bytes=64 << 10)
LEDGERS = 8000
"""So many fences at once that the ring of gather buffers is full of them."""


def _ignore(ledger: Ledger, error: DistributedLogError | None) -> None:
    pass


def fill_with_fences(store: BookieStore) -> int:
    """Fence ledgers until the next fence must wait for room; the id of that next one."""
    for ledger in range(100, 100 + LEDGERS):
        if store._buffer.control_block() is None:
            return ledger
        store.fence(ledger, KEY, _ignore)
    raise AssertionError("the ring was never full")


async def survives_a_power_cut_at(
    answered: Callable[[BookieStore, int, Callable[[], None]], None],
) -> tuple[bool, bool]:
    """Cut the power at the moment of an answer; was ledger known, and refuses it, after the restart?"""
    disk = CutDisk(sync_s=0.01)
    left: list[CutDisk] = []
    asked = 0

    def cut() -> None:
        if not left:
            left.append(disk.cut(random.Random(0), survive=0.0))

    async with running(disk, SMALL) as store:
        writer = Adder(store, 1)
        writer.send(record(1, 0))
        await trio.sleep(0.001)  # its sync is under way
        asked = fill_with_fences(store)
        answered(store, asked, cut)
        with trio.move_on_after(30):
            while not left:  # noqa: ASYNC110 (virtual time)
                await trio.sleep(0.001)
    async with running(left[0], SMALL) as store:
        found = store.ledgers.get(asked)
        return found is not None and found.is_known, found is not None and bool(found.flags)


async def test_a_second_fence_does_not_overtake_the_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Inv. 11: the first one waits for room, so a sync that begins now does not cover it."""

    def two_fences(store: BookieStore, ledger: int, cut: Callable[[], None]) -> None:
        store.fence(ledger, KEY, _ignore)
        store.fence(ledger, KEY, lambda *_: cut())

    assert await survives_a_power_cut_at(two_fences) == (True, True)


async def test_a_second_deletion_does_not_overtake_the_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """H21: `delete_ledger` returns when the tombstone is durable, whoever asked before."""

    async with trio.open_nursery() as nursery:

        def two_deletions(store: BookieStore, ledger: int, cut: Callable[[], None]) -> None:
            async def delete() -> None:
                await store.delete_ledger(ledger)
                cut()

            nursery.start_soon(delete)
            nursery.start_soon(delete)

        survived = await survives_a_power_cut_at(two_deletions)
        nursery.cancel_scope.cancel()

    assert survived == (True, True)
