"""Reads have a budget a turn of the loop: adds and fences are looked at in between (H42b)."""

import pytest
import trio

from distributedlog.bookie.client.bookie_client import EntryList
from distributedlog.bookie.format import journal_format as jb
from distributedlog.bookie.format.extent_map import ExtentLocation
from distributedlog.bookie.ledgers.ledger_table import Ledger
from distributedlog.bookie.session.read_scheduler import READ_BUDGET_BYTES, ReadScheduler
from distributedlog.bookie.storage.entry_reader import EXTENTS_PER_REPLY_MAX
from distributedlog.bookie.storage.index import Index

from .kit import KEY, OPTIONS, Adder, record
from .test_server import served

REPLY_BYTES = 300_000


class _Reader:
    """A connection with so many reads to serve: `ConnectionReads`."""

    def __init__(self, reads: int) -> None:
        self.pending_reads = [None] * reads
        self.is_blocked = False
        self.is_queued = False
        self.outgoing_bytes = 0
        self.served: list[int] = []

    def serve_one(self) -> int:
        self.pending_reads.pop()
        self.served.append(REPLY_BYTES)
        return REPLY_BYTES


async def test_no_turn_of_the_loop_gives_reads_more_than_their_budget() -> None:
    readers = [_Reader(50) for _ in range(4)]
    most = count = 0
    async with trio.open_nursery() as nursery:
        turns = ReadScheduler(OPTIONS, nursery)
        nursery.start_soon(turns.run)
        for reader in readers:
            turns.enqueue(reader)
        served = 0
        while served < 200:  # an add's connection has its turn
            before = served
            await trio.lowlevel.checkpoint()
            served = sum(len(reader.served) for reader in readers)
            most = max(most, served - before)
            count += 1
        nursery.cancel_scope.cancel()

    # Within a turn the order of the tasks is drawn: at most two of theirs lie between two of ours.
    assert most * REPLY_BYTES <= 2 * (READ_BUDGET_BYTES + REPLY_BYTES)
    assert count >= 200 * REPLY_BYTES // READ_BUDGET_BYTES // 2


@pytest.mark.parametrize("first", ["greedy", "modest"])
async def test_the_connections_have_their_turns_one_after_the_other(first: str) -> None:
    """Who asks for a thousand replies delays the others by one, not by a thousand."""
    greedy, modest = _Reader(1000), _Reader(1)
    async with trio.open_nursery() as nursery:
        turns = ReadScheduler(OPTIONS, nursery)
        for reader in (greedy, modest) if first == "greedy" else (modest, greedy):
            turns.enqueue(reader)
        nursery.start_soon(turns.run)
        while not modest.served:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()

    assert len(greedy.served) <= 2 * (READ_BUDGET_BYTES // REPLY_BYTES + 1)


async def test_many_tiny_runs_are_read_and_listed_some_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of runs of one record each: no turn of the loop looks at more than a bound of them.

    What a reply has is complete up to where it says, and a list is whole.
    """
    looked = 0
    find = Index.find

    def counted(self: Index, ledger: Ledger, entry: int) -> ExtentLocation | None:
        nonlocal looked
        looked += 1
        return find(self, ledger, entry)

    async with served() as (bookie, nursery):
        client = await bookie.dial(nursery)
        both = [Adder(bookie.store, 7), Adder(bookie.store, 8)]
        for n in range(0, 6000, 2):  # of the one every second entry, the other lies between
            for adder in both:
                adder.send(record(adder.ledger, n, b"x"))
        for adder in both:
            await adder.all_acked()
        monkeypatch.setattr(Index, "find", counted)
        most = asked = at = 0
        done = trio.Event()

        async def ask() -> None:
            nonlocal asked, at
            while at < 6000:
                found = await client.read(7, KEY, at, 6000, 1 << 20, past_lac=True, timeout_s=5)
                assert found.complete_to >= at
                at = found.complete_to + 1
                asked += 1
            listed = await client.list_entries(7, KEY, timeout_s=5)
            assert listed.proves_absence
            assert listed.ranges == [(n, 1) for n in range(0, 6000, 2)]
            done.set()

        nursery.start_soon(ask)
        while not done.is_set():
            before = looked
            await trio.lowlevel.checkpoint()
            most = max(most, looked - before)

    # Within a turn the order of the tasks is drawn: at most two of theirs lie between two of ours.
    assert most <= 2 * (2 * EXTENTS_PER_REPLY_MAX + 1)
    assert asked > 5


async def test_a_list_that_began_in_limbo_denies_nothing_though_it_ends_out_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Inv. 22: what was healed meanwhile lies behind the place where the list goes on."""
    looked = 0
    find = Index.find

    def counted(self: Index, ledger: Ledger, entry: int) -> ExtentLocation | None:
        nonlocal looked
        looked += 1
        return find(self, ledger, entry)

    async with served() as (bookie, nursery):
        client = await bookie.dial(nursery)
        store = bookie.store
        both = [Adder(store, 7), Adder(store, 8)]
        for n in range(2, 3000, 2):  # entry 0 is lost
            for adder in both:
                adder.send(record(adder.ledger, n, b"x"))
        for adder in both:
            await adder.all_acked()
        ledger = store.ledgers.get_known(7, KEY)
        store.ledgers.set_flags(ledger, ledger.flags | jb.LIMBO | jb.FENCED)
        copied = Adder(store, 7, recovery=True)
        answers: list[EntryList] = []
        done = trio.Event()

        async def ask() -> None:
            answers.append(await client.list_entries(7, KEY, timeout_s=5))
            done.set()

        monkeypatch.setattr(Index, "find", counted)
        nursery.start_soon(ask)
        while not looked:
            await trio.lowlevel.checkpoint()
        copied.send(record(7, 0, b"x"))
        store.ledgers.set_flags(ledger, ledger.flags & ~jb.LIMBO)  # as soon as the copy is here
        assert looked < 1500
        await done.wait()
        await copied.all_acked()

        (listed,) = answers
        assert (0, 1) not in listed.ranges
        assert not listed.proves_absence
        listed = await client.list_entries(7, KEY, timeout_s=5)
        assert listed.proves_absence
        assert (listed.ranges[0], len(listed.ranges)) == ((0, 1), 1500)
