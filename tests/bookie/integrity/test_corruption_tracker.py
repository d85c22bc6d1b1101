"""Entries that rot where they lie: found, noted, dropped for good copies, and never denied (H91, H92)."""

import copy
import random
from dataclasses import replace

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.bookie.format.entry import HEADER, HEADER_BYTES, records
from distributedlog.bookie.format.extent_map import ExtentLocation
from distributedlog.bookie.format.index_format import ScrubProgress
from distributedlog.bookie.format.journal_format import file_name
from distributedlog.bookie.format.record_slices import merge_adjacent, valid_parts
from distributedlog.bookie.integrity import scrubber as scrub
from distributedlog.bookie.integrity.corruption_tracker import DEVICE_ERRORS_MAX
from distributedlog.bookie.integrity.scrubber import START_DELAY_S
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.bookie.store.startup import open_store
from distributedlog.runtime.declarations.health_conditions import Code
from distributedlog.runtime.interfaces.errors import CorruptData, NoSuchLedger
from tests.conditions import codes_of
from tests.examples import examples

from ..kit import (
    KEY,
    MANUAL,
    OPTIONS,
    Adder,
    CutDisk,
    CutFile,
    PowerCut,
    add_acked,
    host_of,
    read_all,
    record,
    running,
)

Clock = trio.testing.MockClock
LEDGER = 7


def _run_of(entries: list[bytes], first: int = 0) -> tuple[bytes, ExtentLocation]:
    data = b"".join(entries)
    return data, ExtentLocation(first, len(entries), 3, 4096, len(data))


@settings(max_examples=examples(100), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 7)), max_size=3),
    cut=st.integers(0, 200),
)
def test_sound_parts_hold_what_was_written_and_all_before_the_first_damage(
    sizes: list[int], flips: list[tuple[int, int]], cut: int
) -> None:
    """H90, H91: a part is never a byte of anything else, wherever bits flip and the file ends."""
    written = [record(LEDGER, 5 + n, bytes([n + 1]) * size) for n, size in enumerate(sizes)]
    data, run = _run_of(written, 5)
    rotten = bytearray(data)
    for at, bit in flips:
        rotten[at % len(rotten)] ^= 1 << bit
    view = bytes(rotten[: len(rotten) - cut % len(rotten)])

    parts = merge_adjacent(list(valid_parts(view, LEDGER, run)))

    found: dict[int, bytes] = {}
    for part in parts:
        start = part.offset - run.offset
        for one in records(view[start : start + part.length]):
            found[one.entry] = bytes(one.record)
        assert part.last in found
        assert part.first in found
    assert sum(part.count for part in parts) == len(found)
    assert all(found[entry] == written[entry - 5] for entry in found)
    for number, raw in enumerate(written):  # all before the first damaged byte
        at = len(b"".join(written[:number]))
        if view[at : at + len(raw)] != raw:
            break
        assert 5 + number in found
    if view == data:
        assert parts == [run]


def test_a_record_within_a_payload_takes_nobodys_place() -> None:
    """H91: where a length rotted nothing is searched for; somebody may have stored what would be found."""
    planted = record(LEDGER, 1, b"planted")
    data, run = _run_of([record(LEDGER, 0, planted), record(LEDGER, 1, b"true"), record(LEDGER, 2)])
    rotten = bytearray(data)
    rotten[8] ^= 0x40  # the length of the first

    assert list(valid_parts(bytes(rotten), LEDGER, run)) == []


async def _rotten(disk: CutDisk, store: BookieStore, *entries: int, ledger: int = LEDGER) -> None:
    """A bit in the payload of these entries, which are checkpointed, and not in the ring any more."""
    for entry in entries:
        run = store._index.find(store.ledgers.get_or_make(ledger), entry)
        assert run is not None
        data = bytes(
            disk._files[file_name(run.file_number)].data[run.offset : run.offset + run.length]
        )
        position = 0
        for _ in range(entry - run.first):
            position += HEADER.unpack_from(data, position)[1]
        disk.flip(file_name(run.file_number), run.offset + position + HEADER_BYTES + 3)


async def _served(count: int = 40) -> tuple[CutDisk, CutDisk, list[bytes]]:
    """A ledger over several files, all in the index's map."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, MANUAL, index) as store:
        adder = await add_acked(store, LEDGER, count, 3000, apart_s=0.001)
        await store.checkpoint()
    return journal, index, adder.sent


async def test_what_rotted_is_noted_over_restarts_and_not_denied(autojump_clock: Clock) -> None:
    journal, index, sent = await _served()
    async with running(journal, MANUAL, index) as store:
        await _rotten(journal, store, 3, 11)
        (first, second) = await store.corruption_tracker.find_corrupt(LEDGER, 0, 39)
        assert (first.corrupt_ranges, second.corrupt_ranges) == ([(3, 3)], [(11, 11)])
        store.corruption_tracker.record(LEDGER, 3, 3)
        store.corruption_tracker.record(LEDGER, 11, 11)
        await store.checkpoint()

    async with running(journal, MANUAL, index) as store:
        assert store.corruption_tracker.corrupt_ranges == {LEDGER: (3, 11)}
        assert Code.ENTRIES_CORRUPT in codes_of(store.health_conditions())
        with pytest.raises(CorruptData):
            await read_all(store, LEDGER, 3, 3)
        assert await read_all(store, LEDGER, 4, 4) == {4: sent[4]}


async def test_a_dropped_entry_is_added_again_and_all_is_as_before(autojump_clock: Clock) -> None:
    """Also after a restart; the bytes that are live are counted right."""
    journal, index, sent = await _served()
    async with running(journal, MANUAL, index) as store:
        await _rotten(journal, store, 0, 3, 4, 39)
        live = sum(store._index.live_bytes.values())
        rotten = await store.corruption_tracker.find_corrupt(LEDGER, 0, 39)

        dropped = await store.corruption_tracker.drop_corrupt(LEDGER, KEY, rotten)

        assert dropped == rotten
        ledger = store.ledgers.get_known(LEDGER, KEY)
        assert ledger.limbo
        assert set(await read_all(store, LEDGER, 0, 39)) == set(range(40)) - {0, 3, 4, 39}
        healing = Adder(store, LEDGER, recovery=True)
        for entry in (0, 3, 4, 39):
            healing.send(sent[entry])
        await healing.all_acked()
        assert list((await read_all(store, LEDGER)).values()) == sent
        assert sum(store._index.live_bytes.values()) == live

    async with running(journal, MANUAL, index) as store:
        assert list((await read_all(store, LEDGER)).values()) == sent
        assert await store.corruption_tracker.find_corrupt(LEDGER, 0, 39) == []
        assert sum(store._index.live_bytes.values()) == live


async def test_the_power_goes_off_at_every_step_of_a_healing(autojump_clock: Clock) -> None:
    """Inv. 22: at no moment does a crash make a "no" of what rotted."""
    first_journal, first_index, sent = await _served()
    steps, died = 0, True
    while died:
        died = True
        journal, index = _copies(first_journal, first_index)
        try:
            async with running(journal, MANUAL, index) as store:
                await _rotten(journal, store, 3, 11)
                journal.fuse = index.fuse = steps
                await store.corruption_tracker.drop_corrupt(
                    LEDGER, KEY, await store.corruption_tracker.find_corrupt(LEDGER, 0, 39)
                )
                healing = Adder(store, LEDGER, recovery=True)
                healing.send(sent[3])
                healing.send(sent[11])
                await healing.all_acked()
                await store.limbo.lift_limbo(LEDGER, KEY)
                journal.fuse = index.fuse = -1
                died = False
        except* PowerCut:
            pass
        journal = journal.cut(random.Random(steps), survive=0.0)
        index.off, index.fuse = False, -1

        async with running(journal, MANUAL, index) as store:
            ledger = store.ledgers.get_known(LEDGER, KEY)
            for entry in range(40):
                try:
                    found = await read_all(store, LEDGER, entry, entry)
                except CorruptData:
                    assert entry in (3, 11)
                    continue
                assert found == {entry: sent[entry]} or ledger.limbo, (steps, entry)
        steps += 1
    assert steps > 4


def _copies(journal: CutDisk, index: CutDisk) -> tuple[CutDisk, CutDisk]:
    return copy.deepcopy(journal), copy.deepcopy(index)


async def test_what_reads_otherwise_the_second_time_is_not_dropped(autojump_clock: Clock) -> None:
    """H92: a cable, or memory, that lies now and then rewrites nothing."""
    journal, index, sent = await _served()
    async with running(journal, MANUAL, index) as store:
        await _rotten(journal, store, 3)
        rotten = await store.corruption_tracker.find_corrupt(LEDGER, 0, 39)
        await _rotten(journal, store, 3)  # flipped back

        assert await store.corruption_tracker.drop_corrupt(LEDGER, KEY, rotten) == []

        assert list((await read_all(store, LEDGER)).values()) == sent
        assert len(store.corruption_tracker._device_errors) == 1


async def test_what_was_moved_meanwhile_is_no_error_of_the_device(autojump_clock: Clock) -> None:
    """H92: seventeen runs that compaction moved as they were healed made a sound disk suspect."""
    journal, index, _ = await _served()
    async with running(journal, MANUAL, index) as store:
        await _rotten(journal, store, 3)
        rotten = await store.corruption_tracker.find_corrupt(LEDGER, 0, 39)
        ledger = store.ledgers.get_or_make(LEDGER)
        await store.checkpointer.replace_extents(
            ledger, [(one.location, one.valid_parts) for one in rotten]
        )

        assert await store.corruption_tracker.drop_corrupt(LEDGER, KEY, rotten) == []

        assert not store.corruption_tracker._device_errors


async def test_a_recovery_add_over_a_rotten_record_notes_it(autojump_clock: Clock) -> None:
    """It is refused still: what is stored confirms nothing, and the copy offered is not looked into."""
    journal, index, sent = await _served()
    async with running(journal, MANUAL, index) as store:
        await _rotten(journal, store, 3)
        again = Adder(store, LEDGER, recovery=True)
        again.send(sent[3])

        error, _ = await again.refusal()

        assert isinstance(error, CorruptData)
        low, high = store.corruption_tracker.corrupt_ranges[LEDGER]
        assert low <= 3 <= high


async def test_a_deleted_ledger_has_no_rot(autojump_clock: Clock) -> None:
    journal, index, _ = await _served()
    async with running(journal, MANUAL, index) as store:
        await _rotten(journal, store, 3)
        rotten = await store.corruption_tracker.find_corrupt(LEDGER, 0, 39)
        await store.delete_ledger(LEDGER)

        assert await store.corruption_tracker.find_corrupt(LEDGER, 0, 39) == []
        with pytest.raises(NoSuchLedger):
            await store.corruption_tracker.drop_corrupt(LEDGER, KEY, rotten)
        store.corruption_tracker.record(LEDGER, 3, 3)
        assert store.corruption_tracker.corrupt_ranges == {}


# --- the scrub ------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs_at_once", [64, 1])
async def test_a_pass_finds_each_rotten_entry_by_itself(
    runs_at_once: int, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "EXTENTS_PER_BATCH", runs_at_once)
    journal, index, _ = await _served()
    async with running(journal, MANUAL, index) as store:
        await add_acked(store, 8, 5, 100)
        await store.checkpoint()
        await _rotten(journal, store, 3, 11)
        await _rotten(journal, store, 4, ledger=8)

        await trio.sleep(START_DELAY_S + 60)

        assert store.corruption_tracker.corrupt_ranges == {LEDGER: (3, 11), 8: (4, 4)}
        assert (store.scrubber.progress.passes, store.scrubber.progress.found) == (1, 3)


async def test_a_pass_goes_on_where_a_restart_broke_it_off(autojump_clock: Clock) -> None:
    """Else a bookie that is started each week never reads the rest."""
    journal, index, _ = await _served()
    options = replace(MANUAL, checkpoint_s=1.0)
    async with running(journal, options, index) as store:
        await add_acked(store, 8, 5, 100)
        await add_acked(
            store, 9, 5, 100
        )  # the block of the index's position is looked at by a start
        await store.checkpoint()
        store.scrubber.progress = ScrubProgress(ledger=8, entry=0, under_way=True, rest_s=1000)
        store.scrubber._save_progress()
        await store.checkpoint()
        await _rotten(journal, store, 3)
        await _rotten(journal, store, 4, ledger=8)

    async with running(journal, options, index) as store:
        await trio.sleep(START_DELAY_S + 60)
        assert store.corruption_tracker.corrupt_ranges == {8: (4, 4)}
        assert store.scrubber.progress.passes == 1
        await trio.sleep(1000)
        assert store.corruption_tracker.corrupt_ranges == {8: (4, 4), LEDGER: (3, 3)}
        assert store.scrubber.progress.passes == 2


async def test_who_asks_waits_for_no_rest(autojump_clock: Clock) -> None:
    journal, index, _ = await _served()
    async with running(journal, MANUAL, index) as store:
        await trio.sleep(START_DELAY_S + 60)
        await _rotten(journal, store, 3)

        store.scrubber.request_pass(17)
        await trio.sleep(5)

        assert store.scrubber.completed_number == 17
        assert store.corruption_tracker.corrupt_ranges == {LEDGER: (3, 3)}


async def test_a_device_that_fails_again_and_again_takes_no_new_entries(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H92: bounded, and nothing is healed onto it; what it can still read it serves."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, replace(OPTIONS, checkpoint_s=1e6), index) as store:
        adder = Adder(store, LEDGER)
        adder.send(*(record(LEDGER, n, bytes(3000)) for n in range(40)))
        await adder.all_acked()
        run = store._index.find(store.ledgers.get_or_make(LEDGER), 39)
        assert run is not None
        assert run.count == 40
        bad, place = file_name(run.file_number), run.offset + run.length - 100
        read = type(journal.files[bad]).read_at

        def fails(self: CutFile, offset: int, length: int) -> bytes:
            if self.name == bad and offset <= place < offset + length:
                raise CorruptData(f"{bad}: read error")
            return read(self, offset, length)

        monkeypatch.setattr(type(journal.files[bad]), "read_at", fails)
        for number in range(DEVICE_ERRORS_MAX + 1):
            assert not store.corruption_tracker.has_read_errors
            (found,) = await store.corruption_tracker.find_corrupt(LEDGER, 0, 39)
            assert found.valid_parts, number  # a piece is lost, not the run

        assert store.corruption_tracker.has_read_errors
        assert store.space.read_only
        assert Code.DISK_READ_ERRORS in codes_of(store.health_conditions())
        assert await read_all(store, LEDGER, 0, 0) == {0: adder.sent[0]}


async def test_notes_that_an_index_cannot_read_cost_no_start(autojump_clock: Clock) -> None:
    """What is kept beside runs and states is worth less than they are."""
    journal, index, _ = await _served()
    async with running(journal, MANUAL, index) as store:
        store._index.put_extra(b"x?", b"")
        store._index.put_extra(b"y", b"\xff")
        await store.checkpoint()

    store = await open_store(host_of(journal, index), MANUAL, bookie_id="b1")

    assert store.corruption_tracker.corrupt_ranges == {}
    assert store.scrubber.progress == ScrubProgress(under_way=True, rest_s=int(MANUAL.scrub_s))
    assert not store.limbo.any_limbo
    store.close()
