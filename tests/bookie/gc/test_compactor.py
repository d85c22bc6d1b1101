"""Live records move out of files that are mostly dead; nothing live is lost, whatever happens meanwhile."""

import copy
import random
import struct
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from distributedlog.bookie.format import compacted_format as cb
from distributedlog.bookie.format import entry as entries
from distributedlog.bookie.format.extent_map import ExtentLocation
from distributedlog.bookie.format.footer_ranges import FooterRanges
from distributedlog.bookie.format.index_format import IndexCheckpoint
from distributedlog.bookie.format.journal_format import (
    TRAILER_SPACE,
    Head,
    JournalExtent,
    file_name,
)
from distributedlog.bookie.format.read_sources import LoadedExtent
from distributedlog.bookie.gc import compactor as compaction
from distributedlog.bookie.gc import extent_relocation
from distributedlog.bookie.gc.compacted_file_writer import ExtentMove, _verify
from distributedlog.bookie.gc.compactor import gaps
from distributedlog.bookie.ledgers.ledger_table import LIMBO_ALL
from distributedlog.bookie.replay.compacted_file_scan import read_compacted_footer
from distributedlog.bookie.storage import index
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.runtime.declarations.health_conditions import Code
from distributedlog.runtime.disk import checksummed_blocks as blocks
from distributedlog.runtime.interfaces.errors import CorruptData, LedgerFenced, NoSuchLedger
from tests.conditions import codes_of
from tests.examples import few

from ..kit import (
    KEY,
    MANUAL,
    SMALL,
    Adder,
    CutDisk,
    PowerCut,
    add_acked,
    fence,
    from_device,
    journal_names,
    read_all,
    record,
    running,
)

Clock = trio.testing.MockClock
Stored = dict[int, dict[int, bytes]]
"""Ledger -> entry -> record."""


async def interleaved(
    store: BookieStore, ledgers: Iterable[int], count: int, payload: int = 3000, first: int = 0
) -> Stored:
    """Entries of several ledgers, one after the other, acknowledged."""
    adders = {ledger: Adder(store, ledger) for ledger in ledgers}
    for n in range(first, first + count):
        for ledger, adder in adders.items():
            adder.send(record(ledger, n, bytes([ledger, n % 251]) * (payload // 2)))
        await trio.sleep(0.001)
    for adder in adders.values():
        await adder.all_acked()
    return {ledger: dict(enumerate(adder.sent, first)) for ledger, adder in adders.items()}


async def delete(store: BookieStore, *ledgers: int) -> None:
    for ledger in ledgers:
        await store.delete_ledger(ledger)
    await store.checkpoint()


async def compact(store: BookieStore) -> None:
    """As often as there is something that is worth it; then the dead files go."""
    await store.checkpoint()
    while await store.compactor.compact_once():
        pass
    await trio.sleep(6)


async def lone_commits(
    store: BookieStore, ledgers: Iterable[int], count: int, payload: int = 2800
) -> Stored:
    """An entry a block: by default a fifth of a file and more is headers and padding, of small ones most."""
    adders = {ledger: Adder(store, ledger) for ledger in ledgers}
    for n in range(count):
        for ledger, adder in adders.items():
            adder.send(record(ledger, n, bytes([ledger, n % 251]) * (payload // 2)))
            await adder.all_acked()
    return {ledger: dict(enumerate(adder.sent)) for ledger, adder in adders.items()}


def cold_names(disk: CutDisk) -> list[str]:
    return [name for name in disk.list() if cb.compacted_file_number(name)]


async def test_a_young_file_is_not_rewritten_for_its_padding(autojump_clock: Clock) -> None:
    """Nothing is deleted: who writes lone records now has the CPU, and much of it may be deleted soon."""
    disk = CutDisk()
    async with running(disk, replace(SMALL, journal_file_bytes_min=0)) as store:
        kept = await lone_commits(store, (1, 2), 100)
        assert len(store._journal.sealed_files) > 3
        await compact(store)
        assert store.stats.files_compacted == 0
        await trio.sleep(compaction.YOUNG_FILE_S)
        await compact(store)
        assert store.stats.files_compacted > 0
        assert sum(store._journal.file_bytes.values()) < 900_000
        assert store._journal.sealed_file_info.keys() <= store._journal.sealed_files.keys()
        for ledger, entries_ in kept.items():
            assert await read_all(store, ledger) == entries_


async def test_a_young_file_that_is_mostly_padding_is_left_alone_too(autojump_clock: Clock) -> None:
    """Small lone entries take 4 KiB each, for ten minutes: whoever writes them waits for each commit."""
    disk = CutDisk()
    async with running(disk, replace(SMALL, journal_file_bytes_min=0)) as store:
        kept = await lone_commits(store, (1, 2), 100, payload=100)
        assert len(store._journal.sealed_files) > 3
        await compact(store)
        assert store.stats.files_compacted == 0
        await trio.sleep(compaction.YOUNG_FILE_S)
        await compact(store)
        assert store.stats.files_compacted > 0
        assert sum(store._journal.file_bytes.values()) < 500_000
        for ledger, entries_ in kept.items():
            assert await read_all(store, ledger) == entries_


async def test_padding_of_young_files_takes_a_part_of_what_is_free(autojump_clock: Clock) -> None:
    """Where ten minutes of writing are much the oldest are rewritten, long before the disk is nearly full:
    then there may be no room left for a cold file."""
    disk = CutDisk()
    async with running(disk, replace(SMALL, journal_file_bytes_min=0)) as store:
        kept = await lone_commits(store, (1, 2), 100)
        sealed = sorted(store._journal.sealed_files)
        disk.bytes_max = disk.used_bytes + (2 << 20)
        await compact(store)
        assert store.stats.files_compacted > 0
        assert not store.space.read_only
        left = [number for number in sealed if number in store._journal.sealed_files]
        assert left == sealed[-len(left) :], "the youngest"
        padding = sum(
            store._journal.file_bytes[number] - store._journal.sealed_file_info[number].record_bytes
            for number in left
        )
        assert 0 < padding <= disk.free_bytes() // compaction.YOUNG_FILE_SPACE_DIVISOR
        for ledger, entries_ in kept.items():
            assert await read_all(store, ledger) == entries_


async def test_a_young_file_is_rewritten_for_what_was_deleted_in_it(autojump_clock: Clock) -> None:
    disk = CutDisk()
    async with running(disk, replace(SMALL, journal_file_bytes_min=0)) as store:
        kept = await lone_commits(store, (1, 2, 3), 100)
        await delete(store, 3)
        await compact(store)
        assert store.stats.files_compacted > 0
        for ledger in (1, 2):
            assert await read_all(store, ledger) == kept[ledger]


async def test_a_full_disk_knows_no_young_files(autojump_clock: Clock) -> None:
    """Padding is room as well."""
    disk = CutDisk()
    options = replace(SMALL, journal_file_bytes_min=0, free_bytes_min=2 << 20)
    async with running(disk, options) as store:
        kept = await lone_commits(store, (1, 2), 100)
        disk.bytes_max = disk.used_bytes + (1 << 20)
        store.space.check()
        assert store.space.is_low
        await compact(store)
        assert store.stats.files_compacted > 0
        for ledger, entries_ in kept.items():
            assert await read_all(store, ledger) == entries_


async def test_what_lives_between_deleted_neighbours_moves(autojump_clock: Clock) -> None:
    """Three of four interleaved ledgers are deleted: 4.7 times the live bytes stayed before."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 150)
        before = store.stored_bytes
        await delete(store, 1, 2, 3)
        await compact(store)

        live = sum(map(len, wanted[4].values()))
        ring = 3 * store._journal.file_bytes[store._journal.number]
        assert before > 4 * live
        assert store.stored_bytes < 1.3 * live + ring
        assert store.stored_bytes == sum(
            disk._files[name].allocated_bytes
            for name in disk.list()
            if cb.compacted_file_number(name) or name in journal_names(disk)
        )
        assert store.stats.moved_bytes < 1.1 * live
        assert len(cold_names(disk)) >= 1
        assert await read_all(store, 4) == wanted[4]
        disk.hot = False
        assert await read_all(store, 4) == wanted[4]

    async with running(disk, SMALL) as store:
        assert not store.ledgers.limbo_below
        assert await read_all(store, 4) == wanted[4]
        with pytest.raises(NoSuchLedger):
            store.ledgers.get_known(1, KEY)
        assert store.stored_bytes < 1.3 * live + ring + SMALL.first_file_bytes


async def test_a_moved_ledger_is_one_run_a_thousand_entries(autojump_clock: Clock) -> None:
    """Sorted by ledger: a reader that catches up finds long runs, one after the other."""
    async with running(CutDisk(), SMALL) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 300, 100)
        await delete(store, 1, 2)
        runs_before = store._index.stored_totals.extent_count
        await compact(store)

        assert store._index.stored_totals.extent_count < runs_before / 10
        assert await read_all(store, 3) == wanted[3]
        assert await read_all(store, 4, 17, 200) == {n: wanted[4][n] for n in range(17, 201)}


async def test_an_older_copy_of_the_index_from_before_a_move_is_built_again(
    autojump_clock: Clock,
) -> None:
    """Its places were given up since, and no commit says where the records went: the cold file does."""
    disk, index = CutDisk(), CutDisk()
    async with running(disk, SMALL, index) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 150)
        await store.checkpoint()
        older = copy.deepcopy(index).cut(random.Random(0))
        await delete(store, 1, 2, 3)
        await compact(store)
        assert store.stats.files_removed

    async with running(disk, SMALL, older) as store:
        assert not store.limbo.any_limbo
        assert await read_all(store, 4) == wanted[4]
        with pytest.raises(NoSuchLedger):
            store.ledgers.get_known(1, KEY)


@pytest.mark.parametrize("index_lost", few([False, True], 1))
async def test_the_power_goes_off_at_every_step(autojump_clock: Clock, index_lost: bool) -> None:
    """H84–H86: in two compactions in a row, the second one of cold files too; also without the index."""
    step = 0
    died = True
    while died:
        disk = CutDisk()
        wanted: Stored = {}
        died = False
        try:
            async with running(disk, SMALL) as store:
                wanted = await interleaved(store, (1, 2, 3, 4), 16)
                await fence(store, 4)
                await delete(store, 1)
                disk.fuse = step
                await compact(store)
                await delete(store, 2)
                await compact(store)
                disk.fuse = -1
        except* PowerCut:
            died = True
        draw = random.Random(step)
        disk = disk.cut(draw, draw.choice((0.0, 0.5, 1.0)))
        if index_lost:
            disk._maps = {}

        async with running(disk, SMALL) as store:
            assert not store.ledgers.limbo_below, f"step {step}"
            for ledger in (3, 4):
                assert await read_all(store, ledger) == wanted[ledger], f"step {step}"
            with pytest.raises(NoSuchLedger):
                store.ledgers.get_known(1, KEY)
            late = Adder(store, 4)
            late.send(record(4, 16))
            assert isinstance((await late.refusal())[0], LedgerFenced)
            await compact(store)
            for ledger in (3, 4):
                assert await read_all(store, ledger) == wanted[ledger], f"step {step}"
            assert not [name for name in disk.list() if name.endswith(cb.UNFINISHED_SUFFIX)]
            listed = {cb.compacted_file_name(number) for number in store._journal.compacted_files}
            assert listed == set(cold_names(disk)), f"step {step}"
        step += 3 if index_lost else 1
    assert step > 20


async def test_without_its_index_a_bookie_knows_cold_files_by_its_heads(
    autojump_clock: Clock,
) -> None:
    """H86: the journal file that said it was added is removed long since."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 60)
        await delete(store, 1, 2, 3)
        await compact(store)
        said_in = store._journal.number
        cold = set(cold_names(disk))
        await interleaved(store, (5,), 120)
        await delete(store, 5)
        await compact(store)
        assert file_name(said_in) not in disk.list()
        assert cold & set(cold_names(disk))
    disk._maps = {}

    async with running(disk, SMALL) as store:
        assert not store.ledgers.limbo_below
        assert await read_all(store, 4) == wanted[4]


async def test_a_rotten_record_is_not_copied_and_holds_its_file(autojump_clock: Clock) -> None:
    """H90: under a new footer it would look sound."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 60)
        await delete(store, 1, 2, 3)
        run = store._index.find(store.ledgers.get_or_make(4), 5)
        assert run is not None
        at = run.offset + (5 - run.first) * len(wanted[4][5]) + 100
        disk.flip(file_name(run.file_number), at)
        await compact(store)

        assert file_name(run.file_number) in disk.list()
        here = store._index.find(store.ledgers.get_or_make(4), 5)
        assert here is not None
        assert here.file_number == run.file_number
        held = range(run.first, run.last + 1)
        assert await read_all(store, 4, run.last + 1) == {
            n: raw for n, raw in wanted[4].items() if n > run.last
        }
        assert store.stats.damaged_reads == 1
        assert Code.DAMAGED_READS in codes_of(store.health_conditions())
        for cold in store._journal.compacted_files.values():
            footer = await read_compacted_footer(disk, cold, store._journal.seed)
            assert footer is not None
            assert not [one for one in footer if one.ledger == 4 and one.first_entry in held]
        assert not await store.compactor.compact_once(), "not again and again"


async def change(store: BookieStore, stored: Stored, draw: random.Random) -> None:
    """Ledgers are deleted, and others go on, while records move."""
    for number in range(3):
        await trio.sleep(draw.uniform(0.9, 1.4) if not number else 0.01)
        victim = draw.choice(sorted(stored))
        stored.pop(victim)
        await store.delete_ledger(victim)
        if draw.random() < 0.5:
            await store.checkpoint()
        kept = draw.choice(sorted(stored))
        more = await interleaved(store, (kept,), 5, 1500, len(stored[kept]))
        stored[kept] |= more[kept]


async def test_what_changes_meanwhile_is_not_undone(autojump_clock: Clock) -> None:
    """H84: adds, deletions and checkpoints at every await of the compactor, against a dict."""
    for seed in range(12):
        draw = random.Random(seed)
        disk = CutDisk(sync_s=draw.choice((0.0, 0.002)))
        async with running(disk, SMALL) as store:
            stored = await interleaved(store, range(1, 9), 30, 1500)
            await delete(store, 1, 2)
            del stored[1], stored[2]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(change, store, stored, draw)
                await compact(store)
            await compact(store)
            live = dict.fromkeys(store._index.live_bytes, 0)
            counted = dict(store._index.live_bytes)
            async with store.checkpointer.lock:
                await store.compactor.relocation.recount_live_bytes(live)
            assert counted == store._index.live_bytes, f"seed {seed}"
            for ledger, wanted in stored.items():
                assert await read_all(store, ledger) == wanted, f"seed {seed}"

        async with running(disk, SMALL) as store:
            for ledger, wanted in stored.items():
                assert await read_all(store, ledger) == wanted, f"seed {seed}"


async def test_a_file_that_was_counted_too_low_does_not_go(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H84: what the index says is live in it, not what was counted: here nothing, after the first move."""
    monkeypatch.setattr(compaction, "EXTENTS_MAX", 3)
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 60)
        await delete(store, 1, 2, 3)
        first = store._index.find(store.ledgers.get_or_make(4), 0)
        assert first is not None
        source, rightly = first.file_number, store._index.live_bytes[first.file_number]
        moved, whole = await store.compactor.relocation.extents_in({source}, 3, 1 << 40)
        assert not whole
        store._index.live_bytes[source] = sum(run.length for _, run in moved)

        assert await store.compactor.compact_once()

        left = rightly - sum(run.length for _, run in moved)
        assert store._index.live_bytes[source] == left > 0
        await trio.sleep(6)
        assert file_name(source) in disk.list()
        assert await read_all(store, 4) == wanted[4]


class Scans:
    """How many runs the map was asked for."""

    def __init__(self, store: BookieStore) -> None:
        self.runs = 0
        self._scan = store._index.ordered_map.scan
        store._index.ordered_map.scan = self  # type: ignore[method-assign]

    def __call__(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        pairs = self._scan(start, end, limit)
        self.runs += sum(key[:1] == b"r" for key, _ in pairs)
        return pairs


async def many_runs(store: BookieStore, number: int) -> None:
    """Of ledgers that nothing is done to; in a file that is not there."""
    for ledger in (0, 3_000_000):
        await add_acked(store, ledger)
        for n in range(1, number // 2):
            store._index.add(store.ledgers.get_or_make(ledger), 2 * n, 1, 1 << 30, 4096 * n, 100)
    await store.checkpoint()


async def test_a_move_looks_at_what_its_sources_held_and_at_no_other_run(
    autojump_clock: Clock,
) -> None:
    """With ten million runs each cold file cost seconds of the loop, in which nobody else had a turn."""
    async with running(CutDisk(), MANUAL) as store:
        await many_runs(store, 10_000)
        stored = await interleaved(store, range(1, 21), 12, 3000)
        await delete(store, *range(1, 11))
        scans = Scans(store)
        while await store.compactor.compact_once():
            pass
        files = store.stats.files_compacted
        assert files > 0
        assert scans.runs < 5000
        await delete(store, *range(11, 16))  # pages of cold files
        scans.runs = 0
        assert await store.compactor.compact_once()
        assert store.stats.punched_bytes > 0
        assert scans.runs < 1000
        for ledger in range(16, 21):
            assert await read_all(store, ledger) == stored[ledger]


@pytest.mark.parametrize("cold", [False, True], ids=["journal", "cold"])
@pytest.mark.parametrize("footer", ["rotten", "lacks a ledger", "lacks all"])
async def test_what_a_footer_does_not_lead_to_is_found_all_the_same(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, footer: str, cold: bool
) -> None:
    """Where it is no footer, or less is found by it than was counted."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        stored = await interleaved(store, range(1, 21), 4, 9000)
        gone = {*range(1, 16)} if cold else {*range(1, 15, 2)}
        if cold:
            await delete(store, *range(1, 11))
            await trio.sleep(compaction.YOUNG_FILE_S)
            await compact(store)
        await delete(store, *gone)
        if footer == "rotten":
            for name in disk.list():
                if cb.compacted_file_number(name) or name in journal_names(disk)[:-2]:
                    file = disk._files[name]
                    file.write(file.size - TRAILER_SPACE, [bytes(64)], 64, name)
        else:
            whole = FooterRanges.merged_ranges
            lacking = {"lacks a ledger": 17, "lacks all": -1}[footer]
            monkeypatch.setattr(
                FooterRanges,
                "merged_ranges",
                lambda self: [one for one in whole(self) if one[0] != lacking and lacking > 0],
            )
        before = store.stats.files_compacted, store.stats.punched_bytes

        await compact(store)

        assert (store.stats.files_compacted, store.stats.punched_bytes) > before
        for ledger in stored.keys() - gone:
            assert await read_all(store, ledger) == stored[ledger]
        monkeypatch.undo()


async def test_nobody_waits_for_the_rests_of_a_move(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written while a checkpoint waits stays in memory, and of a large index there are many rests."""
    monkeypatch.setattr(index, "PAIRS_PER_PAGE", 1)
    monkeypatch.setattr(extent_relocation, "PAIRS_PER_PAGE", 1)
    monkeypatch.setattr(compaction, "PAUSE_S", 1.0)
    monkeypatch.setattr(compaction, "PAUSES_S_MAX", 1e6)
    counting = trio.Event()
    count_again = extent_relocation.ExtentRelocation.recount_live_bytes

    async def told(self: extent_relocation.ExtentRelocation, *arguments: Any, **more: Any) -> None:
        counting.set()
        await count_again(self, *arguments, **more)

    monkeypatch.setattr(extent_relocation.ExtentRelocation, "recount_live_bytes", told)
    async with running(CutDisk(), MANUAL) as store:
        await interleaved(store, (1, 2, 3, 4), 60)
        await delete(store, 1, 2, 3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.compactor.compact_once)
            await counting.wait()
            asked_at = trio.current_time()
            await store.checkpoint()
            assert trio.current_time() - asked_at < 2.0, "one rest, which had begun"


async def test_a_move_rests_for_so_long_and_no_longer(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large the index is: else the disk fills while it is gone through."""
    monkeypatch.setattr(index, "PAIRS_PER_PAGE", 1)
    monkeypatch.setattr(extent_relocation, "PAIRS_PER_PAGE", 1)
    monkeypatch.setattr(compaction, "PAUSE_S", 100.0)
    monkeypatch.setattr(compaction, "PAUSES_S_MAX", 300.0)
    async with running(CutDisk(), MANUAL) as store:
        for files in (1, 2):  # the second one rests as well
            ledgers = range(4 * files, 4 * files + 4)
            await interleaved(store, ledgers, 60)
            await delete(store, *ledgers[1:])
            began_at = trio.current_time()
            assert await store.compactor.compact_once()
            assert store.stats.files_compacted == files
            assert 300.0 <= trio.current_time() - began_at < 400.0
        await interleaved(store, (12, 13), 60)
        await delete(store, 13)
        store.space.requested_read_only = True
        store.space.check()
        began_at = trio.current_time()
        assert await store.compactor.compact_once()
        assert trio.current_time() - began_at < 100.0, "nobody writes"


async def test_a_run_that_is_not_as_it_was_is_left_where_it_is(autojump_clock: Clock) -> None:
    """H84: between its copy and the switch somebody else has moved it."""
    async with running(CutDisk(), SMALL) as store:
        await interleaved(store, (7,), 40)
        await store.checkpoint()
        ledger = store.ledgers.get_or_make(7)
        first, second = [
            found for n in (0, 20) if (found := store._index.find(ledger, n)) is not None
        ]
        seen = replace(first, offset=first.offset + 8)  # as it was before
        await store.compactor.relocation.point_to_copies(
            [
                (7, seen, replace(first, file_number=1000, offset=4096)),
                (7, second, replace(second, file_number=1000, offset=8192)),
            ]
        )

        assert store._index.find(ledger, 0) == first
        moved = store._index.find(ledger, second.first)
        assert moved is not None
        assert moved.file_number == 1000
        assert store._index.live_bytes[1000] == second.length


async def test_pages_of_deleted_ledgers_are_given_back_and_no_others(
    autojump_clock: Clock,
) -> None:
    """H87: ledgers of a few pages, and of less than one, lie next to each other in a cold file."""
    disk = CutDisk()
    draw = random.Random(1)
    async with running(disk, SMALL) as store:
        stored: Stored = {}
        for ledger in range(1, 60):
            stored |= await interleaved(
                store, (ledger, 100 + ledger), draw.randint(1, 9), draw.choice((100, 3000, 9000))
            )
        await delete(store, *range(101, 160))
        await compact(store)
        written = store.stats.moved_bytes
        files = set(cold_names(disk))
        for ledger in draw.sample(range(1, 60), 25):
            del stored[ledger]
            await delete(store, ledger)
        for ledger in range(101, 160):
            del stored[ledger]
        before = store.stored_bytes
        await store.checkpoint()
        assert await store.compactor.compact_once()

        assert set(cold_names(disk)) == files, "not by rewriting"
        assert store.stats.moved_bytes == written
        assert store.stats.punched_bytes == before - store.stored_bytes > 100_000
        for ledger, wanted in stored.items():
            assert await read_all(store, ledger) == wanted
    disk._maps = {}

    async with running(disk, SMALL) as store:  # its footer names what is gone, too
        assert not store.ledgers.limbo_below
        for ledger, wanted in stored.items():
            assert await read_all(store, ledger) == wanted


async def test_no_page_is_given_back_before_all_that_is_live_was_seen(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H87: more runs than are looked at in one go."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        stored = await interleaved(store, range(1, 21), 4, 9000)
        await delete(store, *range(1, 11))
        await trio.sleep(compaction.YOUNG_FILE_S)
        await compact(store)
        await delete(store, *range(11, 16))
        monkeypatch.setattr(compaction, "EXTENTS_MAX", 1)

        assert not await store.compactor.compact_once()

        assert store.stats.punched_bytes == 0
        for ledger in range(16, 21):
            assert await read_all(store, ledger) == stored[ledger]
        monkeypatch.undo()
        assert await store.compactor.compact_once()
        assert store.stats.punched_bytes > 100_000


async def test_a_file_stays_while_it_is_made_though_nothing_points_to_it(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead files are removed by another task, at any moment."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 60)
        await delete(store, 1, 2, 3)
        checkpoint = store.checkpointer.try_checkpoint

        async def and_remove() -> bool:
            done = await checkpoint()
            await store.file_removal.remove_dead_files()
            return done

        with monkeypatch.context() as patched:
            patched.setattr(store.checkpointer, "try_checkpoint", and_remove)
            assert await store.compactor.compact_once()

        assert cold_names(disk)
        assert await read_all(store, 4) == wanted[4]


@pytest.mark.parametrize(
    ("ledger", "first", "count"), [(7, 4, 2), (7, 6, 2), (7, 5, 3), (7, 5, 1), (8, 5, 2)]
)
async def test_other_records_than_the_index_says_are_not_moved(
    ledger: int, first: int, count: int
) -> None:
    """H90: each of them is sound."""
    data = record(7, 5) + record(7, 6)
    move = ExtentMove(
        7, ExtentLocation(5, 2, 1, 4096, len(data)), ExtentLocation(5, 2, 9, 4096, len(data))
    )
    await _verify(memoryview(data), move)
    wrong = ExtentMove(ledger, replace(move.source, first=first, count=count), move.target)

    with pytest.raises(CorruptData):
        await _verify(memoryview(data), wrong)


async def test_a_footer_of_another_time_is_no_footer(autojump_clock: Clock) -> None:
    """Its blocks are sound, each for itself: a write that the device forgot leaves such a one."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        await interleaved(store, (1, 2, 3, 4), 60)
        await delete(store, 1, 2, 3)
        await compact(store)
        (cold,) = store._journal.compacted_files.values()
        seed = store._journal.seed
    runs = await read_compacted_footer(disk, cold, seed)
    assert runs
    payload = cb.footer_payload([replace(run, ledger=5) for run in runs])
    block = bytearray(blocks.padded_length(len(payload)))
    block[blocks.HEADER_BYTES : blocks.HEADER_BYTES + len(payload)] = payload
    offset = cold.length - TRAILER_SPACE - len(block)
    blocks.write_header(
        memoryview(block),
        0,
        kind=cb.COMPACTED_FOOTER,
        payload_bytes=len(payload),
        start_count=1,
        sequence=1,
        durable_to=0,
        file_number=cold.number,
        file_offset=offset,
        seed=seed,
    )
    disk._files[cb.compacted_file_name(cold.number)].data[offset : offset + len(block)] = block

    assert await read_compacted_footer(disk, cold, seed) is None


def test_footer_of_version_0_1_has_the_same_extents() -> None:
    """It has a digest in the bytes that are unused now."""
    extent = JournalExtent(7, 0, 2, 4096, 112)
    older = struct.pack("<QQQIIQ", 7, 0, 4096, 112, 2, 5)

    assert list(cb.unpack_extents(memoryview(older), "a footer")) == [extent]
    assert cb.footer_payload([extent]) == older[:-8] + bytes(8)


async def test_where_no_pages_can_be_given_back_files_are_rewritten(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = CutDisk()

    async def refuses(self: object, offset: int, length: int) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    monkeypatch.setattr("tests.bookie.kit.CutFile.punch_hole", refuses)
    async with running(disk, SMALL) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 100)
        await delete(store, 1, 2)
        await compact(store)
        before = store.stored_bytes
        await delete(store, 3)
        await compact(store)
        await compact(store)

        assert store.stored_bytes < before - 250_000
        assert await read_all(store, 4) == wanted[4]


def test_gaps_are_what_lies_between_head_live_records_and_footer() -> None:
    cold = cb.CompactedFile(9, 40960, 20000, 3)
    runs = [ExtentLocation(0, 1, 9, 10000, 2000), ExtentLocation(5, 1, 9, 4096, 904)]

    assert list(gaps(cold, runs)) == [(5000, 10000), (12000, 20000)]
    assert list(gaps(cold, [])) == [(4096, 20000)]
    assert list(gaps(cold, [ExtentLocation(0, 1, 9, 4096, 15904)])) == []


@pytest.mark.parametrize("how", ["deleted", "emptied", "zeroed", "cut", "swapped", "footer"])
@pytest.mark.parametrize("index_lost", [False, True])
async def test_a_cold_file_that_is_not_as_it_was_is_a_loss(
    autojump_clock: Clock, how: str, index_lost: bool
) -> None:
    """Never "no" of what was acknowledged, whatever becomes of a file of the bookie."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 60)
        await delete(store, 1, 2)
        await compact(store)
        await delete(store, 3)
        await compact(store)
        cold = next(iter(store._journal.compacted_files.values()))
    name = cb.compacted_file_name(cold.number)
    content = disk._files[name]
    if how == "deleted":
        await disk.delete(name)
    elif how == "emptied":
        content.resize(0, name)
    elif how == "zeroed":
        content.data[:] = bytes(len(content.data))
    elif how == "cut":
        content.resize(cold.data_end // 2, name)
    elif how == "swapped":
        content.data[:] = disk._files[journal_names(disk)[0]].data[: len(content.data)]
    else:
        content.data[cold.length - 4096 - 100 :] = bytes(4196)
    if index_lost:
        disk._maps = {}

    async with running(disk, SMALL) as store:
        assert store.ledgers.limbo_below == LIMBO_ALL
        ledger = store.ledgers.get_known(4, KEY)
        assert ledger.limbo
        found: dict[int, bytes] = {}
        for n in range(60):
            try:
                found |= await read_all(store, 4, n, n)
            except CorruptData:
                continue
        assert found.items() <= wanted[4].items()
        if how == "footer":
            assert found == wanted[4], "all is there: it is only not proved"


async def test_a_read_that_waits_for_a_removed_file_is_looked_up_again(
    autojump_clock: Clock,
) -> None:
    """H87: it was ordered before its records moved."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 60)
        await delete(store, 1, 2, 3)
        before = store._index.find(store.ledgers.get_or_make(4), 0)
        assert before is not None
        await compact(store)
        assert file_name(before.file_number) not in disk.list()

        extent = await from_device(store, before)

        assert isinstance(extent, LoadedExtent)
        assert not extent.data
        disk.hot = False
        found = store.collect(store.ledgers.get_or_make(4), 0, 0, 1 << 20, extent)
        assert found.device_extent is not None, "asked again, where it lies now"
        assert found.device_extent.file_number in store._journal.compacted_files
        assert await read_all(store, 4) == wanted[4]


async def test_without_room_nothing_moves_and_nothing_is_left(autojump_clock: Clock) -> None:
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 60)
        await delete(store, 1, 2, 3)
        disk.bytes_max = disk.used_bytes + 2 * SMALL.first_file_bytes
        names = disk.list()

        assert not await store.compactor.compact_once()

        assert disk.list() == names
        disk.bytes_max = None
        await compact(store)
        assert cold_names(disk)
        assert await read_all(store, 4) == wanted[4]


async def test_where_room_is_short_it_looks_each_second(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was deleted may have made it worth it, and somebody is refused meanwhile."""
    async with running(CutDisk(), replace(SMALL, compaction_s=1000)) as store:
        await trio.sleep(compaction.FIRST_COMPACTION_S + 1)
        looks: list[float] = []

        async def look() -> bool:
            looks.append(trio.current_time())
            return False

        monkeypatch.setattr(store.compactor, "compact_once", look)
        monkeypatch.setattr(store.space, "check", lambda: None)
        await trio.sleep(20)
        assert looks == []
        store.space.is_low = True
        await trio.sleep(5)
        assert 4 <= len(looks) <= 6


async def test_below_a_floor_of_free_space_removed_files_hurry(autojump_clock: Clock) -> None:
    """Before anybody is refused for room that only waits, or the journal has none for its next file."""
    disk, floors = CutDisk(), list[int]()
    disk.set_min_free_bytes = floors.append  # type: ignore[method-assign, assignment]
    async with running(disk, replace(SMALL, free_bytes_min=2 << 20)):
        assert floors == [(2 << 20) + 2 * SMALL.journal_file_bytes]


async def test_a_file_that_does_not_fit_elsewhere_is_not_begun(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is copied nothing comes back before all of it is: the last room would go for nothing, and the
    whole index would be gone through for it each time."""
    disk = CutDisk()
    async with running(disk, replace(SMALL, free_bytes_min=2 << 20)) as store:
        few = await interleaved(store, (1, 2, 3, 4), 30)
        many = await interleaved(store, (5, 6, 7, 8), 60)
        await delete(store, 1, 2, 5)
        live = store._index.live_bytes
        fits = [n for n in store._journal.sealed_files if live.get(n, 0) < 80_000]
        assert fits
        assert len(fits) < len(store._journal.sealed_files)
        room = max(live[number] for number in fits) * 4 // 3 + 100
        disk.bytes_max = disk.used_bytes + SMALL.first_file_bytes + room
        store.space.check()
        assert store.space.is_low
        moved = 0

        while await store.compactor.compact_once():
            moved += 1
            disk.bytes_max = disk.used_bytes + SMALL.first_file_bytes + room
        assert moved == store.stats.files_compacted > 0
        assert all(live[number] for number in store._journal.sealed_files if number not in fits)
        with monkeypatch.context() as patched:
            patched.setattr(store.compactor, "_move", None)  # called, it raises
            assert not await store.compactor.compact_once()
        disk.bytes_max = None
        await compact(store)
        for ledger in (3, 4):
            assert await read_all(store, ledger) == few[ledger]
        for ledger in (6, 7, 8):
            assert await read_all(store, ledger) == many[ledger]


async def test_where_room_is_short_nothing_rests(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for the room writes nothing meanwhile: no look that comes later, no pace of commits."""
    monkeypatch.setattr(compaction, "BASELINE_S", 1e6)
    disk = CutDisk()
    options = replace(SMALL, compaction_s=1e6, free_bytes_min=2 << 20)
    async with running(disk, options) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 60)
        disk.bytes_max = disk.used_bytes + (1 << 20)
        store.space.check()
        assert store.space.is_low
        for ledger in (1, 2, 3):
            await store.delete_ledger(ledger)
        await trio.sleep(2.5)
        assert store.stats.files_compacted > 0
        assert store.stats.files_removed > 0
        assert await read_all(store, 4) == wanted[4]


async def test_a_bookie_looks_by_itself(autojump_clock: Clock) -> None:
    disk = CutDisk()
    async with running(disk, replace(SMALL, compaction_s=10.0)) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 60)
        for ledger in (1, 2, 3):
            await store.delete_ledger(ledger)
        await trio.sleep(40)

        assert cold_names(disk)
        assert store.info()["cold_files"] == 1
        assert await read_all(store, 4) == wanted[4]


def test_lists_without_cold_files_are_written_as_before() -> None:
    """A program of before reads them; it refuses, with words, those that name cold files."""
    head = Head("b1", 3, 1, 8192, 0, ((1, 1, 5),), 1, 2)
    saved = IndexCheckpoint("b1", 7, 9, 2, 8192, 6, 3, 0, 5, [(1, 1, 5)])
    cold = (4, 16384, 8000, 2)
    for form, with_cold in (
        (head, replace(head, compacted_files=(cold,))),
        (saved, replace(saved, compacted_files=[cold])),
    ):
        assert b"\xa6format\x01" in form.encode()
        assert b"cold" not in form.encode()
        assert b"\xa6format\x03" in with_cold.encode()
    assert Head.decode(
        memoryview(replace(head, compacted_files=(cold,)).encode()), "x"
    ).compacted_files == (cold,)
    assert IndexCheckpoint.decode(
        replace(saved, compacted_files=[cold]).encode()
    ).compacted_files == [cold]


def test_a_cold_file_is_laid_out_sorted_and_joined() -> None:
    runs = [
        (1, ExtentLocation(0, 2, 5, 900_000, 200)),
        (1, ExtentLocation(2, 1, 3, 4096, 100)),  # goes on where the last one ended
        (1, ExtentLocation(9, 1, 3, 5000, 100)),  # after a gap
        (2, ExtentLocation(10, 1, 3, 6000, 100)),  # another ledger
    ]

    layout = cb.CompactedFileLayout(77)
    places = [layout.place(*run) for run in runs]
    cold = layout.file

    assert [place.offset for place in places] == [4096, 4296, 4396, 4496]
    assert {place.file_number for place in places} == {77}
    assert cold == cb.CompactedFile(77, 4096 + 4096 + 4096 + 4096, 4596, 3)
    assert cold.overhead_bytes == cold.length - 500
    assert entries.HEADER_BYTES < 100
