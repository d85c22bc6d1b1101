"""Tombstones end; an add to a ledger that is not known here any more waits until the metadata was asked."""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from distributedlog.bookie.format import journal_format as jb
from distributedlog.bookie.format.index_format import IndexCheckpoint
from distributedlog.bookie.ledgers.ledger_existence import (
    LOOKUP_TIMEOUT_S,
    LedgerExistence,
    LedgerStatus,
)
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.runtime.interfaces.errors import (
    DistributedLogError,
    LedgerFenced,
    NoSuchLedger,
    QuorumUnreachable,
    TooBusy,
)
from distributedlog.runtime.interfaces.host import Summary
from distributedlog.runtime.protocol.frames import unpack

from .kit import (
    KEY,
    OPTIONS,
    SMALL,
    Adder,
    CutDisk,
    CutMap,
    add_acked,
    fence,
    flags_by_id,
    journal_names,
    read_all,
    record,
    running,
)

Clock = trio.testing.MockClock
W = 100


class _Metadata:
    """What it answers, and whether it can be reached; how it stands is of the moment it is read."""

    def __init__(self, **standing: LedgerStatus) -> None:
        self.standing = {int(name[1:]): each for name, each in standing.items()}
        self.asked: list[list[int]] = []
        self.reached = trio.Event()
        self.reached.set()
        self.error: DistributedLogError | None = None

    async def standings(self, ledgers: Sequence[int]) -> Mapping[int, LedgerStatus]:
        self.asked.append([*ledgers])
        await self.reached.wait()
        if self.error is not None:
            raise self.error
        return {ledger: self.standing.get(ledger, LedgerStatus.DELETED) for ledger in ledgers}


@asynccontextmanager
async def _asking(store: BookieStore, metadata: _Metadata) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        look_ups = LedgerExistence(metadata.standings, store.failures)
        store.add_handler.set_lookup(look_ups.lookup)
        nursery.start_soon(look_ups.run)
        yield
        nursery.cancel_scope.cancel()


async def _end_tombstones(store: BookieStore, below: int = W) -> None:
    await store.checkpoint()
    await store.drop_tombstones(below)
    await store.checkpoint()


async def _add_and_leave(store: BookieStore, ledger: int) -> None:
    """One entry; nobody has a stream on it any more."""
    adder = await add_acked(store, ledger)
    store.add_handler.close_stream(adder.stream)


async def _refused(
    store: BookieStore, ledger: int, *, recovery: bool = False
) -> DistributedLogError:
    adder = Adder(store, ledger, recovery=recovery)
    adder.send(record(ledger, 0))
    error, position = await adder.refusal()
    store.add_handler.close_stream(adder.stream)
    assert (position, adder.acked) == (0, 0)
    return error


async def test_tombstones_below_the_bound_are_forgotten_and_the_deleted_stays_deleted(
    autojump_clock: Clock,
) -> None:
    """H89: in memory, on the disk, after a power cut, and with the index lost; those above it stay."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, SMALL, index) as store:
        for ledger in (7, W + 7):
            await _add_and_leave(store, ledger)
            await store.delete_ledger(ledger)
        await _end_tombstones(store)

        assert store.info()["tombstones"] == 1
        assert sorted(await flags_by_id(store)) == [W + 7]
        journal = journal.cut(random.Random(0))
    for indexes in (index, CutDisk()):
        async with running(journal, SMALL, indexes) as store, _asking(store, _Metadata()):
            assert store.ledgers.limbo_below == 0
            assert store.ledgers.must_verify_below == W
            for ledger in (7, W + 7):
                for recovery in (False, True):
                    error = await _refused(store, ledger, recovery=recovery)
                    assert isinstance(error, NoSuchLedger)
                with pytest.raises(NoSuchLedger):
                    store.ledgers.get_known(ledger, KEY)
            await store.checkpoint()


async def test_a_rebuild_brings_no_deleted_ledger_back_and_misses_nothing(
    autojump_clock: Clock,
) -> None:
    """H114: runs without a state are dead where their tombstone has ended; the files go on their own."""
    journal = CutDisk()
    async with running(journal, SMALL, CutDisk()) as store:
        kept = Adder(store, W - 1)
        for n in range(200):
            adder = Adder(store, n % 50)
            adder.send(record(n % 50, n, bytes(2000)))
            kept.send(record(W - 1, n, b"x"))  # so that no file is dead
            await adder.all_acked()
            adder.store.add_handler.close_stream(adder.stream)
        await kept.all_acked()
        for ledger in range(50):
            await store.delete_ledger(ledger)
        await _end_tombstones(store)
        assert store._journal.counters.rolls > 3
        last = await add_acked(store, W + 1, 100, 3000, apart_s=0.001)
        await trio.sleep(1)

    async with running(journal, SMALL, CutDisk()) as store:
        assert store.ledgers.limbo_below == 0
        assert sorted(await flags_by_id(store)) == [W - 1, W + 1]
        assert list((await read_all(store, W - 1)).values()) == kept.sent
        assert list((await read_all(store, W + 1)).values()) == last.sent


async def test_nothing_is_acknowledged_while_the_metadata_cannot_be_asked(
    autojump_clock: Clock,
) -> None:
    """H89: a writer that was paused through deletion and bound wakes up while the quorum is away."""
    metadata = _Metadata()
    metadata.error = QuorumUnreachable("nobody answered (test)")
    async with running(CutDisk(), OPTIONS) as store, _asking(store, metadata):
        await store.drop_tombstones(W)
        assert isinstance(await _refused(store, 7), TooBusy)
        assert isinstance(await _refused(store, 7, recovery=True), TooBusy)

        metadata.error, metadata.reached = None, trio.Event()
        before = trio.current_time()
        assert isinstance(await _refused(store, 7), TooBusy)
        assert trio.current_time() - before <= 2 * LOOKUP_TIMEOUT_S
        assert store.info()["deferred_bytes"] == 0
        assert store.ledgers.known_count == 0


async def test_who_nobody_can_ask_for_is_refused(autojump_clock: Clock) -> None:
    async with running(CutDisk(), OPTIONS) as store:
        await store.drop_tombstones(W)

        assert isinstance(await _refused(store, 7), TooBusy)


@pytest.mark.parametrize("recovery", [False, True])
async def test_an_old_ledger_that_is_open_begins_after_one_question(
    autojump_clock: Clock, recovery: bool
) -> None:
    """What was sent meanwhile is taken in order, what comes later without a question; others do not wait."""
    metadata = _Metadata(_7=LedgerStatus.OPEN if not recovery else LedgerStatus.ENDED)
    metadata.reached = trio.Event()
    async with running(CutDisk(), SMALL) as store, _asking(store, metadata):
        await store.drop_tombstones(W)
        adder = Adder(store, 7, recovery=recovery)
        for n in range(5):
            adder.send(record(7, n, bytes(9_000)))
        await add_acked(store, W)  # above the bound: nobody is asked
        assert adder.acked == 0

        metadata.reached.set()
        await adder.all_acked()
        adder.send(record(7, 5))
        await adder.all_acked()

        assert list((await read_all(store, 7)).values()) == adder.sent
        assert metadata.asked == [[7]]
        assert store.info()["deferred_bytes"] == 0
        assert store.ledgers.get_known(7, KEY).fenced == recovery


async def test_what_waits_for_an_answer_is_bounded(autojump_clock: Clock) -> None:
    """Beyond `deferred_bytes_max` the stream is told to come again; what it had sent is dropped with it."""
    metadata = _Metadata(_7=LedgerStatus.OPEN)
    metadata.reached = trio.Event()
    async with running(CutDisk(), OPTIONS) as store, _asking(store, metadata):
        store.add_handler._deferred_bytes_max = 50_000
        await store.drop_tombstones(W)
        adder = Adder(store, 7)
        for n in range(9):
            adder.send(record(7, n, bytes(9_000)))

        error, position = await adder.refusal()

        assert isinstance(error, TooBusy)
        assert position == 0
        metadata.reached.set()
        await trio.sleep(1)
        assert store.info()["deferred_bytes"] == 0
        assert (adder.acked, store.ledgers.known_count) == (0, 0)


async def test_a_writer_of_a_ledger_that_ended_is_told_that_it_was_fenced(
    autojump_clock: Clock,
) -> None:
    """H95: the copies, and the fences with them, went to other bookies."""
    metadata = _Metadata(_7=LedgerStatus.ENDED)
    async with running(CutDisk(), OPTIONS) as store, _asking(store, metadata):
        await store.drop_tombstones(W)

        assert isinstance(await _refused(store, 7), LedgerFenced)


@pytest.mark.parametrize("brought_by", ["fence", "copy"])
async def test_a_fence_that_comes_while_the_metadata_is_asked_counts(
    autojump_clock: Clock, brought_by: str
) -> None:
    """H95: the answer is older than the fence, or than the copy that brought one along."""
    metadata = _Metadata(_7=LedgerStatus.OPEN)
    metadata.reached = trio.Event()
    async with running(CutDisk(), OPTIONS) as store, _asking(store, metadata):
        await store.drop_tombstones(W)
        copy, old = Adder(store, 7, recovery=True), Adder(store, 7)
        if brought_by == "copy":
            Adder(store, 5).send(record(5, 0))  # so that the two wait for one answer
            await trio.sleep(1)
            copy.send(record(7, 0))
        old.send(record(7, 1))
        await trio.sleep(1)
        if brought_by == "fence":
            await fence(store, 7)
        metadata.reached.set()

        error, _ = await old.refusal()

        assert isinstance(error, LedgerFenced)
        assert old.acked == 0


async def test_a_copy_brings_the_fence_along_durably(autojump_clock: Clock) -> None:
    """H95: a ledger that was drained away and moved back refuses the writer that slept through both."""
    journal = CutDisk()
    async with running(journal, OPTIONS) as store:
        copy = Adder(store, 7, recovery=True)
        copy.send(record(7, 0))
        await copy.all_acked()
        assert isinstance(await _refused(store, 7), LedgerFenced)
        assert (await fence(store, 7)).fence_durable
        journal = journal.cut(random.Random(0))

    async with running(journal, OPTIONS) as store:
        assert isinstance(await _refused(store, 7), LedgerFenced)
        assert list(await read_all(store, 7)) == [0]


async def test_a_tombstone_that_is_in_use_stays_until_it_is_not(autojump_clock: Clock) -> None:
    """An open stream holds the object: nothing may become known beside it."""
    async with running(CutDisk(), OPTIONS) as store:
        adder = await add_acked(store, 7)
        await store.delete_ledger(7)
        await store.drop_tombstones(W)
        await store.checkpoint()  # writes it: it does not end with the same checkpoint
        assert store.info()["tombstones"] == 1
        await _end_tombstones(store)
        assert store.info()["tombstones"] == 1

        store.add_handler.close_stream(adder.stream)
        await _end_tombstones(store)

        assert store.info()["tombstones"] == 0
        assert not await flags_by_id(store)


async def test_a_tombstone_that_is_written_again_ends_with_a_later_checkpoint(
    autojump_clock: Clock,
) -> None:
    """Deleted twice, as after a restart that knows of no answer: what the map has is counted."""
    async with running(CutDisk(), OPTIONS) as store:
        await store.delete_ledger(7)
        await store.checkpoint()
        await store.drop_tombstones(W)
        await store.delete_ledger(7)

        await store.checkpoint()

        assert store.info()["tombstones"] == 1
        assert list(await flags_by_id(store)) == [7]
        await _end_tombstones(store)
        assert store.info()["tombstones"] == 0
        assert not await flags_by_id(store)


async def test_a_tombstone_that_is_written_again_while_it_ends_is_there(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint that ends it writes what was so when it began."""
    apply = CutMap.apply

    async def deleted_again(
        self: CutMap,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes] = (),
        summary: Summary | None = None,
    ) -> None:
        await store.delete_ledger(7)
        await apply(self, puts, deletes, summary)

    async with running(CutDisk(), OPTIONS) as store:
        await store.delete_ledger(7)
        await store.checkpoint()
        await store.drop_tombstones(W)
        with monkeypatch.context() as patched:
            patched.setattr(CutMap, "apply", deleted_again)
            await store.checkpoint()

        assert store.info()["tombstones"] == 1
        await store.checkpoint()
        assert store.info()["tombstones"] == 1
        assert list(await flags_by_id(store)) == [7]


async def test_a_checkpoint_that_fails_ends_no_tombstone(autojump_clock: Clock) -> None:
    index = CutDisk()
    async with running(CutDisk(), SMALL, index) as store:
        await store.delete_ledger(7)
        await store.checkpoint()
        await store.drop_tombstones(W)
        index.full_maps = True
        await store.checkpointer.try_checkpoint()
        assert store.info()["tombstones"] == 1

        index.full_maps = False
        await store.checkpoint()

        assert store.info()["tombstones"] == 0
        assert not [key for key in index._maps["bookie"].keys if key.startswith(b"s")]


def test_what_older_programs_cannot_know_they_refuse() -> None:
    """A head and a position without a bound are written as they were; with one they say format 2."""
    head = jb.Head("b1", 1, 0, 0, 0, (), 0)
    saved = IndexCheckpoint("b1", 1, 10, 1, 4096, 1, 1, 0, 2)

    for made, form in ((head, 1), (jb.Head("b1", 1, 0, 0, 0, (), 0, 0, W), 2)):
        found = unpack(made.encode(), "")
        assert isinstance(found, dict)
        assert (found["format"], "gone_below" in found) == (form, form == 2)
        assert jb.Head.decode(memoryview(made.encode()), "") == made
    saved_below = IndexCheckpoint("b1", 1, 10, 1, 4096, 1, 1, 0, 2, must_verify_below=W)
    for each, form in ((saved, 1), (saved_below, 2)):
        found = unpack(each.encode(), "")
        assert isinstance(found, dict)
        assert found["format"] == form
        assert IndexCheckpoint.decode(each.encode()) == each


async def test_the_bound_survives_the_file_that_says_it(autojump_clock: Clock) -> None:
    """Every journal file begins with it."""
    journal = CutDisk()
    async with running(journal, SMALL, CutDisk()) as store:
        await store.drop_tombstones(W)
        await store.drop_tombstones(W - 1)  # it never moves back
        await add_acked(store, W + 1, 100, 3000, apart_s=0.001)
        await store.delete_ledger(W + 1)
        await trio.sleep(12)
        assert journal_names(journal)[0] != "journal-000000000001"

    async with running(journal, SMALL, CutDisk()) as store:
        assert store.ledgers.must_verify_below == W
