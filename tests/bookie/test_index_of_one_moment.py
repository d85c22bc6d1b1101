"""Pairs of the index that are sound one by one, and not of one moment: a device has lost a write."""

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from distributedlog.bookie.format import journal_format as jb
from distributedlog.bookie.format.index_format import (
    EXTENT_KEY,
    META_KEY,
    STATE_KEY,
    IndexCheckpoint,
    IndexDamaged,
    verified_value,
    with_digest,
)
from distributedlog.bookie.ledgers.ledger_table import LedgerTable
from distributedlog.bookie.storage import index as bookie_index
from distributedlog.bookie.storage.index import MAP_NAME, Index
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.runtime.disk.directory_disk import DirectoryDisk
from distributedlog.runtime.interfaces.errors import CorruptData, NoSuchLedger
from distributedlog.runtime.interfaces.host import OrderedMap
from distributedlog.runtime.protocol.frames import pack, unpack

from .kit import KEY, MANUAL, CutDisk, add_acked, fence, read_all, running

Clock = trio.testing.MockClock
Change = Callable[[BookieStore], Awaitable[None]]
STATE_OF_7 = STATE_KEY.pack(b"s", 7)


async def _add_and_leave(store: BookieStore, *ledgers: int) -> None:
    for ledger in ledgers:
        adder = await add_acked(store, ledger, 3)
        store.add_handler.close_stream(adder.stream)


# --- starts -----------------------------------------------------------------------------------------


async def _fence(store: BookieStore) -> None:
    await fence(store, 7)


async def _delete(store: BookieStore) -> None:
    await store.delete_ledger(7)


async def _doubt(store: BookieStore) -> None:
    ledger = store.ledgers.get_or_make(7)
    store.ledgers.set_flags(ledger, ledger.flags | jb.LIMBO)
    done = trio.Event()
    store.group_commit.write_state(ledger, done.set)
    await done.wait()


@pytest.mark.parametrize("change", [_fence, _delete, _doubt])
async def test_a_state_from_the_past_is_noticed_at_a_start(
    autojump_clock: Clock, change: Change
) -> None:
    """A fence, a tombstone and limbo are in force after it, as they were."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, MANUAL, index) as store:
        await _add_and_leave(store, 7, 8)
        await store.checkpoint()
        old = index._maps[MAP_NAME].values[STATE_OF_7]
        await change(store)
        await store.checkpoint()
    assert index._maps[MAP_NAME].values[STATE_OF_7] != old
    index._maps[MAP_NAME].values[STATE_OF_7] = old

    async with running(journal, MANUAL, index) as store:
        assert list(await read_all(store, 8)) == [0, 1, 2]
        if change is _delete:
            with pytest.raises(NoSuchLedger, match="was deleted"):
                store.ledgers.get_known(7, KEY)
        else:
            ledger = store.ledgers.get_known(7, KEY)
            assert (ledger.fenced, ledger.limbo) == (change is _fence, change is _doubt)


async def test_runs_that_are_missing_are_noticed_at_a_start(autojump_clock: Clock) -> None:
    """Forty of them, a whole page; the map counts its pairs right."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, MANUAL, index) as store:
        await _add_and_leave(store, *range(100, 200))
        await store.checkpoint()
    keys = [EXTENT_KEY.pack(b"r", ledger, 0) for ledger in range(120, 160)]
    index._maps[MAP_NAME].apply([], keys)

    async with running(journal, MANUAL, index) as store:
        for ledger in range(100, 200):
            assert list(await read_all(store, ledger)) == [0, 1, 2]
        assert store.ledgers.limbo_below == 0


async def test_a_position_from_the_past_among_newer_pairs_is_noticed(autojump_clock: Clock) -> None:
    """Its sum is that of the older pairs."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, MANUAL, index) as store:
        await _add_and_leave(store, 7)
        await store.checkpoint()
        old = index._maps[MAP_NAME].values[META_KEY]
        await fence(store, 7)
        await store.checkpoint()
    index._maps[MAP_NAME].values[META_KEY] = old

    with pytest.raises(IndexDamaged, match="index is inconsistent"):
        await _load(await index.open_map(MAP_NAME))
    async with running(journal, MANUAL, index) as store:
        assert store.ledgers.get_known(7, KEY).fenced


async def test_a_map_that_is_older_as_a_whole_is_accepted(autojump_clock: Clock) -> None:
    """A transaction that a power cut undid: the journal after its position has the rest."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, MANUAL, index) as store:
        await _add_and_leave(store, 7)
        await store.checkpoint()
        old = dict(index._maps[MAP_NAME].values)
        await fence(store, 7)
        await store.checkpoint()
    index._maps[MAP_NAME].values, index._maps[MAP_NAME].keys = old, sorted(old)

    assert await _load(await index.open_map(MAP_NAME)) is not None
    async with running(journal, MANUAL, index) as store:
        assert store.ledgers.get_known(7, KEY).fenced


async def _load(stored: OrderedMap) -> IndexCheckpoint | None:
    try:
        return await Index(stored, LedgerTable(stored, 10)).load()
    finally:
        stored.close()


# --- older programs ---------------------------------------------------------------------------------


async def test_an_index_that_an_older_program_has_written_is_accepted_and_summed(
    autojump_clock: Clock,
) -> None:
    """It leaves the sum out of the totals, and changes pairs."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, MANUAL, index) as store:
        await _add_and_leave(store, 7, 8)
        await fence(store, 8)
        await store.checkpoint()
    pairs = index._maps[MAP_NAME]
    position = unpack(verified_value(META_KEY, pairs.values[META_KEY]), "the position")
    assert position["totals"].pop("digests")
    pairs.apply([(META_KEY, with_digest(META_KEY, pack(position)))], [])

    for _ in range(2):
        async with running(journal, MANUAL, index) as store:
            assert store.ledgers.limbo_below == 0
            assert store.ledgers.get_known(8, KEY).fenced
            assert list(await read_all(store, 7)) == [0, 1, 2]
        position = unpack(verified_value(META_KEY, pairs.values[META_KEY]), "the position")
        assert position["totals"]["digests"]


# --- while it runs ----------------------------------------------------------------------------------


async def test_pairs_are_compared_while_they_change(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and behind the place of the pass, put, replaced and deleted."""
    monkeypatch.setattr(bookie_index, "PAIRS_PER_PAGE", 3)
    draw = random.Random(5)
    async with running(CutDisk(), MANUAL, CutDisk()) as store, trio.open_nursery() as nursery:
        await _add_and_leave(store, *range(100, 130))
        await store.checkpoint()
        deleted = list(range(100, 130))
        draw.shuffle(deleted)

        async def change() -> None:
            for place in range(20):
                await _add_and_leave(store, 4 * place, 200 + place)
                await fence(store, draw.choice((*range(place), *range(300, 330))))
                await store.delete_ledger(deleted[place])
                await store.checkpoint()
                await trio.sleep(0.3)

        nursery.start_soon(change)
        for _ in range(5):
            await store._index.verify(lambda: draw.random() / 10)


async def test_a_scrub_notices_a_state_from_the_past(autojump_clock: Clock) -> None:
    """The page was read from the device again. The next start builds the index again."""
    journal, index = CutDisk(), CutDisk()
    with pytest.RaisesGroup(IndexDamaged, flatten_subgroups=True, allow_unwrapped=True):
        async with running(journal, MANUAL, index) as store:
            await _add_and_leave(store, 7)
            await store.checkpoint()
            old = index._maps[MAP_NAME].values[STATE_OF_7]
            await fence(store, 7)
            await store.checkpoint()
            index._maps[MAP_NAME].values[STATE_OF_7] = old
            store.scrubber.request_pass(1)
            await trio.sleep(10)
    async with running(journal, MANUAL, index) as store:
        assert store.ledgers.get_known(7, KEY).fenced


# --- pages of a file --------------------------------------------------------------------------------

PAGE_BYTES = 4096


@pytest.mark.properties
async def test_each_page_of_the_file_from_the_past_is_noticed_or_harmless(tmp_path: Path) -> None:
    """With real pages of LMDB: the pairs are those of one transaction, or the map is refused."""
    files, moments = await _written(tmp_path / "written")
    refused = 0
    for number, past in enumerate(files[:-1]):
        for at in range(0, len(past), PAGE_BYTES):
            page, now = past[at : at + PAGE_BYTES], files[-1][at : at + PAGE_BYTES]
            if page == now:
                continue
            place = tmp_path / f"{number}-{at}"
            (place / f"{MAP_NAME}.lmdb").mkdir(parents=True)
            mixed = files[-1][:at] + page + files[-1][at + len(page) :]
            (place / f"{MAP_NAME}.lmdb" / "data.mdb").write_bytes(mixed)
            disk = DirectoryDisk(place)
            try:
                stored = await disk.open_map(MAP_NAME)
                pairs = stored.scan(b"\0", b"\xff", 1 << 20)
                await _goes_on(stored)
            except CorruptData:
                refused += 1
            else:
                assert pairs in moments, f"page {at // PAGE_BYTES} of file {number}"
            finally:
                await disk.close()
    assert refused > 3


async def _goes_on(stored: OrderedMap) -> None:
    """A start, and some transactions: none of them uses a page that holds pairs. Raises `CorruptData`."""
    ledgers = LedgerTable(stored, 10)
    index = Index(stored, ledgers)
    try:
        saved = await index.load()
        assert saved is not None
        before = stored.scan(b"r", b"s", 1 << 20)
        for turn in range(6):
            ledger = ledgers.get_or_make(75)
            ledgers.set_state(ledger, 0, 100 + turn, KEY)
            index.mark_state_dirty(ledger)
            await index.checkpoint(saved)
            assert stored.scan(b"r", b"s", 1 << 20) == before
            await index.verify()
    finally:
        stored.close()


async def _written(place: Path) -> tuple[list[bytes], list[list[tuple[bytes, bytes]]]]:
    """The map's file and its pairs after each of some transactions."""
    disk = DirectoryDisk(place)
    stored = await disk.open_map(MAP_NAME)
    ledgers = LedgerTable(stored, 10)
    index = Index(stored, ledgers)
    files, moments = [], []
    for turn in range(12):  # LMDB uses a page again after two transactions, for the same ledgers
        for ledger_id in range(70, 80) if turn else range(150):
            ledger = ledgers.get_or_make(ledger_id)
            ledgers.set_state(ledger, jb.FENCED if turn > 10 else 0, turn, KEY)
            index.mark_state_dirty(ledger)
            index.add(ledger, 10 * turn, 1, 1, 4096 * turn, 100)
        await index.checkpoint(IndexCheckpoint("b1", 1, turn + 1, 1, 4096, 1, 1, 0, 2))
        files.append((place / f"{MAP_NAME}.lmdb" / "data.mdb").read_bytes())
        moments.append(stored.scan(b"\0", b"\xff", 1 << 20))
    stored.close()
    await disk.close()
    return files[-3:], moments
