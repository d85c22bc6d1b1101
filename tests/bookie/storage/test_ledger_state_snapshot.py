"""Many ledgers' states stand in one file, and journal files name it instead of repeating them."""

import random

import pytest
import trio
import trio.testing

from distributedlog.bookie.format import journal_format as jb
from distributedlog.bookie.format.index_format import STATE_KEY, IndexDamaged
from distributedlog.bookie.ledgers.ledger_table import LIMBO_ALL
from distributedlog.bookie.storage import ledger_state_snapshot as state_base
from distributedlog.bookie.storage.index import MAP_NAME
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.runtime.disk.memory_disk import MemoryFile
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    LedgerFenced,
    LedgerStateUnknown,
    NoSuchLedger,
)
from tests.examples import few

from ..kit import (
    KEY,
    SMALL,
    Adder,
    CutDisk,
    add_acked,
    fence,
    journal_names,
    read_all,
    record,
    running,
    some_files,
)

Clock = trio.testing.MockClock
FENCED = range(100, 130)
DELETED = range(200, 230)


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_base, "STATE_BYTES_MIN", 10 * jb.CONTROL_BYTES)
    monkeypatch.setattr(state_base, "INTERVAL_BYTES_MIN", 200_000)
    monkeypatch.setattr(state_base, "RECORDS_PER_CHUNK", 7)


def _bases(disk: CutDisk) -> list[str]:
    return [name for name in disk.list() if name.startswith(state_base.FILE_PREFIX)]


async def _refusal(store: BookieStore, ledger: int) -> DistributedLogError:
    old = Adder(store, ledger)
    old.send(record(ledger, 0))
    error, _ = await old.refusal()
    return error


async def _with_a_base(store: BookieStore) -> Adder:
    """Fences and tombstones that stand in a base alone: the files that had them are gone."""
    for ledger in FENCED:
        await fence(store, ledger)
    for ledger in DELETED:
        await store.delete_ledger(ledger)
    await store.checkpoint()
    await trio.sleep(6)
    assert store._journal.state_snapshot is not None
    adder = await some_files(store)
    await trio.sleep(12)
    assert store._journal.head_snapshot is not None
    assert store._journal.preallocator.state_bytes == 0
    return adder


async def test_what_stands_in_a_base_alone_is_there_with_and_without_the_index(
    autojump_clock: Clock,
) -> None:
    journal, index = CutDisk(), CutDisk()
    async with running(journal, SMALL, index) as store:
        adder = await _with_a_base(store)
        await fence(store, 500)  # after the base
        assert store.info()["ledgers"] == len(FENCED) + 2

    for indexes in (index, CutDisk(), index):
        async with running(journal, SMALL, indexes) as store:
            assert store.ledgers.limbo_below == 0
            assert store.info()["ledgers"] == len(FENCED) + 2
            for ledger in (*FENCED, 500):
                assert isinstance(await _refusal(store, ledger), LedgerFenced)
            for ledger in DELETED:
                assert isinstance(await _refusal(store, ledger), NoSuchLedger)
            assert list((await read_all(store, 7)).values()) == adder.sent


@pytest.mark.parametrize("how", ["rotten", "cut", "gone", "older"])
async def test_a_base_that_cannot_be_read_claims_no_end(autojump_clock: Clock, how: str) -> None:
    """H88: where the index is lost as well; an older base would have forgotten fences."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, SMALL, index) as store:
        await _with_a_base(store)
        older = bytes(journal._files[_bases(journal)[0]].data)
        await fence(store, 500)
        for _ in range(3):
            await add_acked(store, 8 + _, 60, 3000, apart_s=0.001)
            await trio.sleep(6)
        await trio.sleep(6)
        named = store._journal.head_snapshot
        assert named is not None
        newest = state_base.snapshot_file_name(named.file_number)
        assert bytes(journal._files[newest].data) != older
    if how == "rotten":
        journal.flip(newest, 100)
    elif how == "cut":
        journal._files[newest].resize(96, newest)
    elif how == "gone":
        await journal.delete(newest)
    else:
        data = journal._files[newest].data
        data[:] = older + bytes(len(data) - len(older))

    async with running(journal, SMALL, CutDisk()) as store:
        assert store.ledgers.limbo_below == LIMBO_ALL
        assert "states" in store.limbo.cause
        for ledger in (*FENCED, 500):
            assert isinstance(await _refusal(store, ledger), LedgerStateUnknown | LedgerFenced)
    async with running(journal, SMALL, index) as store:  # the index has the states as well
        assert store.ledgers.known_count


async def test_files_from_the_bases_position_on_stay_until_there_is_a_newer_one(
    autojump_clock: Clock,
) -> None:
    """Their control records are nowhere else; with the next base they go, and so does the older base."""
    journal = CutDisk()
    async with running(journal, SMALL, CutDisk()) as store:
        await _with_a_base(store)
        base = store._journal.head_snapshot
        assert base is not None
        await store.delete_ledger(7)
        await trio.sleep(6)
        kept = [
            n for n, (_, last) in store._journal.sealed_files.items() if last >= base.next_sequence
        ]
        assert kept
        assert all(last >= base.next_sequence for _, last in store._journal.sealed_files.values())

        for ledger in (8, 9, 10):
            await add_acked(store, ledger, 60, 3000, apart_s=0.001)
            await store.delete_ledger(ledger)
            await trio.sleep(6)
        await trio.sleep(6)

        newer = store._journal.head_snapshot
        assert newer is not None
        assert newer.next_sequence > base.next_sequence
        assert not set(kept) & set(store._journal.sealed_files)
        assert state_base.snapshot_file_name(base.file_number) not in _bases(journal)
        assert len(journal_names(journal)) < 12


async def test_where_the_base_is_gone_heads_repeat_all_states(autojump_clock: Clock) -> None:
    """The index has them: nothing is lost, and a new base follows."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, SMALL, index) as store:
        await _with_a_base(store)
        await store.checkpoint()
    for name in _bases(journal):
        await journal.delete(name)

    async with running(journal, SMALL, index) as store:
        assert store._journal.head_snapshot is None
        assert store._journal.preallocator.state_bytes > len(FENCED) * jb.CONTROL_BYTES
        await trio.sleep(6)
        assert _bases(journal)
    async with running(journal, SMALL, CutDisk()) as store:
        assert store.ledgers.limbo_below == 0
        for ledger in FENCED:
            assert isinstance(await _refusal(store, ledger), LedgerFenced)


async def test_what_only_the_index_was_told_is_in_the_journal_before_anybody_relies_on_it(
    autojump_clock: Clock,
) -> None:
    """A checkpoint takes states whose commit the power cut then takes: heads that name a base lack them."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, SMALL, index) as store:
        await _with_a_base(store)
        await add_acked(store, 600)
        await store.checkpoint()
        journal.sync_s = 60.0
        store.fence(600, KEY, lambda ledger, error: None)
        Adder(store, 601).send(record(601, 0))
        Adder(store, 602, recovery=True).send(record(602, 0))
        await store.checkpoint()
        journal = journal.cut(random.Random(0), survive=0)
    journal.sync_s = 0.0
    async with running(journal, SMALL, index) as store:
        assert store._journal.head_snapshot is not None
        await fence(store, 600)
        again = await add_acked(store, 601)
        copy = Adder(store, 602, recovery=True)
        copy.send(record(602, 0))
        await copy.all_acked()

    async with running(journal, SMALL, CutDisk()) as store:
        assert store.ledgers.limbo_below == 0
        assert isinstance(await _refusal(store, 600), LedgerFenced)
        assert list((await read_all(store, 601)).values()) == again.sent
        assert isinstance(await _refusal(store, 602), LedgerFenced)


@pytest.mark.parametrize("seed", few(range(12), 4))
async def test_no_fence_and_no_entry_is_lost_over_power_cuts(
    autojump_clock: Clock, seed: int
) -> None:
    """Fences, adds, deletions at random; the power goes off at any step; now and then the index is lost."""
    draw = random.Random(seed)
    journal, index = CutDisk(sync_s=0.002), CutDisk()
    fenced: set[int] = set()
    deleted: set[int] = set()
    acked: dict[int, list[bytes]] = {}
    following = 1
    for _ in range(8):
        async with running(journal, SMALL, index) as store:
            assert store.ledgers.limbo_below == 0
            for ledger in sorted(fenced):
                assert isinstance(await _refusal(store, ledger), LedgerFenced)
            for ledger in sorted(deleted):
                assert isinstance(await _refusal(store, ledger), NoSuchLedger)
            for ledger, sent in acked.items():
                assert list((await read_all(store, ledger)).values())[: len(sent)] == sent
            for _ in range(draw.randrange(1, 12)):
                what, ledger = draw.randrange(6), following
                following += 1
                if what == 0:
                    await trio.sleep(draw.choice((0.01, 6.0)))
                elif what == 1:
                    await fence(store, ledger)
                    fenced.add(ledger)
                elif what == 2 and acked:
                    await store.delete_ledger(ledger := draw.choice(sorted(acked)))
                    del acked[ledger]
                    deleted.add(ledger)
                elif what == 3:
                    await store.checkpoint()
                else:
                    adder = await add_acked(store, ledger, draw.randrange(1, 30), 3000)
                    acked[ledger] = adder.sent
            store.fence(following, KEY, lambda ledger, error: None)
            adder = Adder(store, following + 1)
            adder.send(record(following + 1, 0))
            following += 2
            await trio.sleep(draw.choice((0, 0.001, 0.003)))
            journal = journal.cut(draw, draw.random())
        if draw.random() < 0.4:
            index = CutDisk()


@pytest.mark.parametrize("how", ["unreadable", "otherwise"])
async def test_a_base_that_does_not_read_back_ends_nobody_and_is_made_again(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """One bad place of the device: heads go on with all states, and nothing names what was written."""
    journal, index = CutDisk(), CutDisk()
    bad = True
    read_cold = MemoryFile.read_in_worker

    async def met(self: MemoryFile, offset: int, length: int) -> bytes:
        data = await read_cold(self, offset, length)
        if not (bad and self.name.startswith(state_base.FILE_PREFIX)):
            return data
        if how == "unreadable":
            raise CorruptData(f"{self.name}: read error")
        return bytes([data[0] ^ 1]) + data[1:]

    monkeypatch.setattr(MemoryFile, "read_in_worker", met)
    async with running(journal, SMALL, index) as store:
        for ledger in FENCED:
            await fence(store, ledger)
        await store.checkpoint()
        await trio.sleep(6)
        assert store._journal.state_snapshot is None
        assert not _bases(journal)
        await some_files(store)
        assert store._journal.preallocator.state_bytes > len(FENCED) * jb.CONTROL_BYTES
    async with running(journal, SMALL, CutDisk()) as store:
        assert store.ledgers.limbo_below == 0
        for ledger in FENCED:
            assert isinstance(await _refusal(store, ledger), LedgerFenced)
        bad = False
        await trio.sleep(12)

        assert store._journal.state_snapshot is not None
        assert _bases(journal)


async def test_a_damaged_index_that_a_base_meets_is_no_bad_base(autojump_clock: Clock) -> None:
    """It is to end the node, as wherever it is met: the next start builds it again."""
    index = CutDisk()
    async with running(CutDisk(), SMALL, index) as store:
        for ledger in FENCED:
            await fence(store, ledger)
        await store.checkpoint()
        values = index._maps[MAP_NAME].values
        key = STATE_KEY.pack(b"s", FENCED[0])
        values[key] = b"x" + values[key][1:]

        with pytest.raises(IndexDamaged):
            await store.checkpointer._state_snapshots.write_next(
                store.checkpointer.first_unindexed_sequence
            )


def test_a_head_that_names_a_base_says_format_4() -> None:
    """An older program would find no states, and no loss."""
    head = jb.Head("b1", 1, 0, 0, 0, (), 0, state_snapshot=jb.StateSnapshotRef(1, 2, 3, 4))

    assert jb.Head.decode(memoryview(head.encode()), "") == head
    assert b"\xa6format\x04" in head.encode()
