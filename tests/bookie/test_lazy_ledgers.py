"""Ledgers that nobody uses are in the index alone: loaded at their next use, and nothing is forgotten."""

import gc
from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any

import pytest
import trio
import trio.testing

from distributedlog.bookie.format import journal_format as jb
from distributedlog.bookie.format.index_format import (
    EXTENT_KEY,
    EXTENT_VALUE,
    META_KEY,
    STATE_KEY,
    IndexDamaged,
    verified_value,
    with_digest,
)
from distributedlog.bookie.ledgers import ledger_table as bookie_ledgers
from distributedlog.bookie.storage.index import MAP_NAME
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.bookie.store.startup import open_store
from distributedlog.runtime.interfaces.errors import LedgerFenced, LedgerStateUnknown, NoSuchLedger
from distributedlog.runtime.protocol.frames import pack, unpack

from .kit import (
    KEY,
    SMALL,
    Adder,
    CutDisk,
    add_acked,
    fence,
    host_of,
    ids,
    read_all,
    record,
    running,
)

Clock = trio.testing.MockClock
FEW = SMALL
"""Of the ledgers that nobody uses it keeps two in memory."""
MANY = range(100, 400)


async def _add_and_leave(store: BookieStore, *ledgers: int) -> None:
    for ledger in ledgers:
        adder = await add_acked(store, ledger, 3)
        store.add_handler.close_stream(adder.stream)


async def _forgotten(store: BookieStore) -> None:
    """What has changed is written, and others were asked for since."""
    await store.checkpoint()
    await _add_and_leave(store, 1, 2, 3)
    await store.checkpoint()
    gc.collect()  # a stream and its owner have each other
    assert store.ledgers.loaded_count <= 2


async def test_what_nobody_uses_is_in_no_memory_and_nothing_of_it_is_forgotten(
    autojump_clock: Clock,
) -> None:
    """A fence, a tombstone, limbo, a LAC, entries; in the process that wrote them, and in the next."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, FEW, index) as store:
        await _add_and_leave(store, 7, 8, 9, 10, *MANY)
        await fence(store, 8)
        await fence(store, 5)  # of which it knows nothing else
        await store.delete_ledger(9)
        doubted = store.ledgers.get_or_make(10)
        store.ledgers.set_flags(doubted, doubted.flags | jb.LIMBO)
        done = trio.Event()
        store.group_commit.write_state(doubted, done.set)
        await done.wait()
        del doubted
        await _forgotten(store)
        await _nothing_is_forgotten(store)
        await store.checkpoint()
    async with running(journal, FEW, index) as store:
        assert store.ledgers.loaded_count <= 2
        await _nothing_is_forgotten(store)
        assert store.info()["ledgers"] == 7 + len(MANY)


async def _nothing_is_forgotten(store: BookieStore) -> None:
    assert (await ids(store))[:7] == [1, 2, 3, 5, 7, 8, 10]
    assert list(await read_all(store, 7)) == [0, 1, 2]
    assert store.ledgers.get_known(7, KEY).lac == 1
    for ledger in (8, 5):
        writer = Adder(store, ledger)
        writer.send(record(ledger, 3))
        assert isinstance((await writer.refusal())[0], LedgerFenced)
    with pytest.raises(NoSuchLedger):
        store.ledgers.get_known(9, KEY)
    late = Adder(store, 9)
    late.send(record(9, 3))
    assert isinstance((await late.refusal())[0], NoSuchLedger)
    assert store.limbo.is_in_limbo(10)
    assert store.ledgers.get_known(10, KEY).limbo
    assert (store.ledgers.limbo_count, store.ledgers.tombstone_count) == (1, 1)


async def test_a_start_reads_each_pair_of_the_index_once_and_loads_no_ledger(
    autojump_clock: Clock,
) -> None:
    """After a clean stop: all pairs are compared with their sum, and nothing else is read."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, FEW, index) as store:
        await _add_and_leave(store, *MANY)
        await store.checkpoint()
    index._maps[MAP_NAME].values = counting = _Counting(index._maps[MAP_NAME].values)

    store = await open_store(host_of(journal, index), FEW, bookie_id="b1")

    assert counting.asked[b"m"]
    assert counting.asked[b"r"] == len(MANY)
    assert (store.ledgers.known_count, store.ledgers.loaded_count) == (len(MANY), 0)
    assert store.info()["runs_in_map"] == len(MANY)
    store.close()


class _Counting(dict[bytes, bytes]):
    """The values of a map: which kinds were asked for."""

    def __init__(self, values: dict[bytes, bytes]) -> None:
        super().__init__(values)
        self.asked: dict[bytes, int] = {}

    def __getitem__(self, key: bytes) -> bytes:
        self.asked[key[:1]] = self.asked.get(key[:1], 0) + 1
        return super().__getitem__(key)

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:  # type: ignore[override]
        self.asked[key[:1]] = self.asked.get(key[:1], 0) + 1
        return super().get(key, default)


async def test_a_ledger_is_one_object_as_long_as_anybody_has_it(autojump_clock: Clock) -> None:
    """Fence and add meet on the same one, whatever else is asked for meanwhile (D10)."""
    async with running(CutDisk(), FEW) as store:
        writer = await add_acked(store, 7, 3)
        await _forgotten_but_used(store)
        assert store.ledgers.get(7) is writer.stream.ledger
        await fence(store, 7)

        writer.send(record(7, 3))

        assert isinstance((await writer.refusal())[0], LedgerFenced)


async def _forgotten_but_used(store: BookieStore) -> None:
    await store.checkpoint()
    await _add_and_leave(store, *MANY)
    await store.checkpoint()
    gc.collect()
    assert store.ledgers.loaded_count <= 3


@pytest.mark.parametrize("anew", [False, True], ids=["in the process", "in the next one"])
async def test_what_a_forgotten_ledger_has_is_not_stored_twice(
    autojump_clock: Clock, anew: bool
) -> None:
    """H8: who sends again what is here, alone or with what comes next, is told of what is stored."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, FEW, index) as store:
        await _add_and_leave(store, 7)
        await _forgotten(store)
        if not anew:
            await _sent_again(store)
    if anew:
        async with running(journal, FEW, index) as store:
            await _sent_again(store)


async def _sent_again(store: BookieStore) -> None:
    before = store.stats.duplicates
    adder = Adder(store, 7)
    adder.send(record(7, 1))
    adder.send(record(7, 0), record(7, 2), record(7, 3))
    await adder.all_acked()

    assert store.stats.duplicates == before + 3
    assert list(await read_all(store, 7)) == [0, 1, 2, 3]
    ledger = store.ledgers.get_known(7, KEY)
    await store.checkpoint()
    runs = [run for of, run in store._index.extents_from(7, 0, 9) if of == 7]
    assert [(run.first, run.last) for run in runs] == [(0, 2), (3, 3)]
    assert ledger.last_entry == 3


async def test_an_add_that_waits_for_its_sync_is_found_by_whoever_asks(
    autojump_clock: Clock,
) -> None:
    """Its stream is closed, nothing is synced: only the ring has the ledger."""
    async with running(CutDisk(sync_s=1.0), FEW) as store:
        writer = Adder(store, 7)
        writer.send(record(7, 0))
        store.add_handler.close_stream(writer.stream)
        for ledger in MANY:
            with pytest.raises(NoSuchLedger):
                store.ledgers.get_known(ledger, KEY)
            store.ledgers.release_if_unused(store.ledgers.get_or_make(ledger))
        again = Adder(store, 7)

        again.send(record(7, 0))
        await again.all_acked()

        assert store.stats.duplicates == 1


async def test_only_an_unknown_ledger_that_nobody_uses_is_forgotten(autojump_clock: Clock) -> None:
    """Streams and polls hold the object. If the ledger had a second one, a fence would not reach them."""
    async with running(CutDisk(), FEW) as store:
        ledgers = store.ledgers
        await add_acked(store, 7)
        ledgers.get_or_make(8).stream_count = 1
        poll: Any = object()
        ledgers.get_or_make(9).long_polls.append(poll)
        held = {ledger: ledgers.get_loaded(ledger) for ledger in (7, 8, 9)}
        ledgers.get_or_make(10)

        for ledger in (7, 8, 9, 10):
            ledgers.release_if_unused(ledgers.get_or_make(ledger))

        assert {ledger: ledgers.get_loaded(ledger) for ledger in (7, 8, 9)} == held
        assert ledgers.get_loaded(10) is None
        ledgers.get_or_make(9).long_polls.clear()


Ask = Callable[[BookieStore], Awaitable[object]]


async def _read(store: BookieStore) -> object:
    return await read_all(store, 7)


async def _fenced(store: BookieStore) -> object:
    return await fence(store, 7)


async def _added(store: BookieStore) -> object:
    return await add_acked(store, 7)


async def _deleted(store: BookieStore) -> None:
    await store.delete_ledger(7)


async def _in_limbo(store: BookieStore) -> object:
    return store.limbo.is_in_limbo(7)


@pytest.mark.properties
@pytest.mark.parametrize(
    ("ask", "damage"),
    [
        *product((_read, _fenced, _added, _deleted, _in_limbo), ("a state", "no state")),
        *product((_read, _fenced, _added, _deleted), ("a run",)),
    ],
)
async def test_what_cannot_be_loaded_is_unknown_and_the_next_start_builds_anew(
    autojump_clock: Clock, ask: Ask, damage: str
) -> None:
    """Damage is no "no": a fence, a tombstone and an entry are as they were after it."""
    journal, index = CutDisk(), CutDisk()
    with pytest.RaisesGroup(IndexDamaged, flatten_subgroups=True, allow_unwrapped=True):
        async with running(journal, FEW, index) as store:
            await _add_and_leave(store, 7)
            await fence(store, 7)
            await _forgotten(store)
            key = EXTENT_KEY.pack(b"r", 7, 0) if damage == "a run" else STATE_KEY.pack(b"s", 7)
            pairs = index._maps[MAP_NAME]
            if damage == "no state":
                pairs.apply([], [key])
            else:
                pairs.values[key] = b"x" + pairs.values[key][1:]

            with pytest.raises(LedgerStateUnknown):
                await ask(store)

            await trio.sleep(1)  # the node ends
            pytest.fail("it serves with a damaged index")
    async with running(journal, FEW, index) as store:
        assert store.ledgers.limbo_below == 0
        assert list(await read_all(store, 7)) == [0, 1, 2]
        assert store.ledgers.get_known(7, KEY).fenced


async def test_an_index_of_an_older_program_is_read_whole_and_counted(
    autojump_clock: Clock,
) -> None:
    """It says of itself how far it reaches, and not what it holds. So does one that was older in between."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, FEW, index) as store:
        await _add_and_leave(store, 7, 8, 9)
        await fence(store, 8)
        await store.delete_ledger(9)
        await store.checkpoint()
    pairs = index._maps[MAP_NAME]
    position = unpack(verified_value(META_KEY, pairs.values[META_KEY]), "the position")
    assert position.pop("totals")["runs"] == 2
    pairs.values[META_KEY] = with_digest(META_KEY, pack(position))

    async with running(journal, FEW, index) as store:  # which compares what is counted with a walk
        assert (store.ledgers.known_count, store.ledgers.tombstone_count) == (2, 1)
        assert store.info()["runs_in_map"] == 2
        assert store.ledgers.get_known(8, KEY).fenced
    position = unpack(verified_value(META_KEY, pairs.values[META_KEY]), "the position")
    assert position["totals"]["known"] == 2


async def test_runs_that_overlap_are_damage_where_all_is_counted(autojump_clock: Clock) -> None:
    """By one entry: the last one of the run before."""
    index = CutDisk()
    async with running(CutDisk(), FEW, index) as store:
        await _add_and_leave(store, 7)
        await store.checkpoint()
        key = EXTENT_KEY.pack(b"r", 7, 2)
        value = EXTENT_VALUE.pack(1, 4096, 100, 1)
        assert (await store._index.recount()).extent_count == 1
        index._maps[MAP_NAME].apply([(key, with_digest(key, value))], [])

        with pytest.raises(IndexDamaged, match="overlap"):
            await store._index.recount()
        index._maps[MAP_NAME].apply([], [key])


@pytest.mark.parametrize("key", [STATE_KEY.pack(b"s", 7), EXTENT_KEY.pack(b"r", 1, 0)])
async def test_a_scrub_meets_what_nobody_asks_for(autojump_clock: Clock, key: bytes) -> None:
    """A state that rotted, of a ledger without an entry, or a run: the next start builds the index anew."""
    journal, index = CutDisk(), CutDisk()
    with pytest.RaisesGroup(IndexDamaged, flatten_subgroups=True, allow_unwrapped=True):
        async with running(journal, FEW, index) as store:
            await fence(store, 7)
            await _forgotten(store)
            pairs = index._maps[MAP_NAME]
            pairs.values[key] = b"x" + pairs.values[key][1:]
            store.scrubber.request_pass(1)
            await trio.sleep(10)
    async with running(journal, FEW, index) as store:
        assert store.ledgers.get_known(7, KEY).fenced
        assert list(await read_all(store, 1)) == [0, 1, 2]


async def test_a_head_has_what_the_map_has_and_what_is_newer_between(
    autojump_clock: Clock,
) -> None:
    """H7: a fence that no checkpoint has taken, of a ledger among those that the map has."""
    async with running(CutDisk(), FEW) as store:
        await _add_and_leave(store, 10, 20)
        await store.checkpoint()
        await fence(store, 15)

        pages = [page async for page in store.ledgers.state_pages()]

        assert [state.ledger_id for page in pages for state in page] == [10, 15, 20]


async def test_what_is_written_and_forgotten_while_all_are_given_is_given(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H7: they were in memory alone when it began; their turn comes when they are in the map alone."""
    monkeypatch.setattr(bookie_ledgers, "STATES_PER_PAGE", 4)
    async with running(CutDisk(), FEW) as store:
        for ledger in range(10, 20):
            await fence(store, ledger)
        given: list[int] = []

        async for page in store.ledgers.state_pages():
            given += [state.ledger_id for state in page]
            if len(given) == 4:
                await _forgotten(store)

        assert [ledger for ledger in given if ledger >= 10] == list(range(10, 20))
