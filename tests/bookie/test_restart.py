"""Starts after kills, power cuts and rot: what was acknowledged is there, or nobody says it is not."""

import random

import pytest
import trio
import trio.testing

from distributedlog.bookie.ledgers.ledger_table import LIMBO_ALL, Ledger
from distributedlog.bookie.storage.group_commit import EXPLICIT_LAC_DELAY_S
from distributedlog.bookie.store.startup import open_store
from distributedlog.runtime.disk import checksummed_blocks as blocks
from distributedlog.runtime.interfaces.errors import (
    DiskFailed,
    ForeignData,
    LedgerFenced,
    LedgerStateUnknown,
    NoSuchLedger,
)
from tests.examples import few

from .kit import (
    KEY,
    OPTIONS,
    SMALL,
    Adder,
    CutDisk,
    PowerCut,
    add_acked,
    fence,
    host_of,
    ids,
    journal_names,
    read_all,
    record,
    running,
)

Clock = trio.testing.MockClock


async def test_ack_means_durable(autojump_clock: Clock) -> None:
    """Inv. 24: whatever was acked survives a cut that loses all that was not synced."""
    disk = CutDisk(sync_s=0.001)
    async with running(disk) as store:
        adder = Adder(store, 7)
        for n in range(30):
            adder.send(record(7, n))
            await trio.sleep(0.0003)
        acked = adder.acked
        disk = disk.cut(random.Random(1), survive=0.0)

    async with running(disk) as store:
        found = await read_all(store, 7)
        assert 0 < acked < 30
        assert list(found.values()) == adder.sent[: len(found)]
        assert len(found) >= acked
        assert store.ledgers.limbo_below == 0


@pytest.mark.parametrize("mode_sync_s", [0.0, 0.002])
async def test_at_every_ack_the_bytes_are_on_the_platter(
    autojump_clock: Clock, mode_sync_s: float
) -> None:
    """H10, white box, with syncs that cover only what was written before them: duplicates included."""
    disk = CutDisk(sync_s=mode_sync_s)
    draw = random.Random(3)
    checked = 0

    def platter(adder: Adder, count: int) -> None:
        nonlocal checked
        image = b"".join(
            disk.durable(name, 0, disk._files[name].size) for name in journal_names(disk)
        )
        for sent in adder.sent[checked_of[adder] : count]:
            assert sent in image, "acked, and not on the platter"
            checked += 1
        checked_of[adder] = count

    checked_of: dict[Adder, int] = {}
    async with running(disk, SMALL) as store:
        first, again = Adder(store, 7), Adder(store, 7)
        for adder in (first, again):
            checked_of[adder] = 0
            adder.on_ack = lambda count, adder=adder: platter(adder, count)
        for n in range(60):
            made = record(7, n, draw.randbytes(50))
            first.send(made)
            if draw.random() < 0.5:
                await trio.sleep(draw.random() * 0.003)
            again.send(made)  # the re-send on another connection: here already, synced or not
        await first.all_acked()
        await again.all_acked()

        assert checked == 120
        assert store.stats.duplicates == 60


async def test_kills_around_rolls_lose_nothing_acked(autojump_clock: Clock) -> None:
    """Tiny files, cuts that keep random sectors, again and again (H3, H4: no limbo)."""
    for seed in range(10):
        draw = random.Random(seed)
        disk = CutDisk(sync_s=0.001)
        acked: dict[int, list[bytes]] = {ledger: [] for ledger in (1, 2, 3)}
        for start in range(5):
            async with running(disk, SMALL) as store:
                adders = []
                for ledger, before in acked.items():
                    found = (await read_all(store, ledger)) if before else {}
                    assert list(found.values())[: len(before)] == before, (seed, start)
                    adder = Adder(store, ledger)
                    adders.append((adder, before, list(found.values())))
                for _ in range(draw.randrange(1, 40)):
                    for adder, _, found_records in adders:
                        n = len(adder.sent) + len(found_records)
                        adder.send(record(adder.ledger, n, draw.randbytes(draw.randrange(2000))))
                    await trio.sleep(draw.random() * 0.002)
                assert store.ledgers.limbo_below == 0
                for adder, before, found_records in adders:
                    assert not adder.refused
                    before[:] = found_records + adder.sent[: adder.acked]
                disk = disk.cut(draw, survive=draw.choice((0.0, 0.5, 0.9, 1.0)))


async def test_a_killed_process_and_then_a_power_cut(autojump_clock: Clock) -> None:
    """H4: survivors that were only in the page cache are written again before they are served."""
    for seed in range(10):
        disk = CutDisk(sync_s=0.01)
        async with running(disk, SMALL) as store:
            adder = Adder(store, 7)
            for n in range(5):
                adder.send(record(7, n))
                await trio.sleep(0.004)
        # Only the process died: all that was written is in the page cache.
        async with running(disk, SMALL) as store:
            served = await read_all(store, 7)
            disk = disk.cut(random.Random(seed), survive=0.0)
        async with running(disk, SMALL) as store:
            assert (await read_all(store, 7)) == served
            assert store.ledgers.limbo_below == 0


async def test_a_torn_tail_is_cut_and_junk_after_it_ignored(autojump_clock: Clock) -> None:
    """H3: cut in the header, in the body, with junk after it: all before it is replayed."""
    for damage in ("header", "body", "junk"):
        disk = CutDisk()
        async with running(disk) as store:
            adder = Adder(store, 7)
            for n in range(3):
                adder.send(record(7, n))
                await adder.all_acked()
            name = journal_names(disk)[0]
            end = store._journal.position().offset
        last = end - blocks.ALIGN
        content = disk._files[name]
        if damage == "header":
            content.write(last, [bytes(40)], 40, name)
        elif damage == "body":
            content.write(last + 100, [bytes(40)], 40, name)
        else:
            content.write(end, [random.Random(5).randbytes(10_000)], 10_000, name)

        async with running(disk) as store:
            assert list(await read_all(store, 7)) == ([0, 1, 2] if damage == "junk" else [0, 1])
            assert store.ledgers.limbo_below == 0


@pytest.mark.parametrize("field_", range(6))
async def test_absurd_lengths_do_not_hurt(autojump_clock: Clock, field_: int) -> None:
    """The lengths of a block set to all ones: no crash, no huge allocation."""
    disk = CutDisk()
    async with running(disk) as store:
        await add_acked(store, 7)
        end = store._journal.position().offset
    name = journal_names(disk)[0]
    disk._files[name].write(end - blocks.ALIGN + 8 + 4 * field_, [b"\xff" * 4], 4, name)

    async with running(disk) as store:
        with pytest.raises((NoSuchLedger, LedgerStateUnknown)):
            store.ledgers.get_known(7, KEY)


async def test_rot_in_a_synced_block_is_limbo_and_never_no(autojump_clock: Clock) -> None:
    """H3: one flipped bit in any block that is proven synced; and it stays so."""
    for bit_seed in range(12):
        draw = random.Random(bit_seed)
        disk = CutDisk()
        async with running(disk) as store:
            begin = store._journal.position().offset
            adder = Adder(store, 7)
            for n in range(6):
                adder.send(record(7, n))
                await adder.all_acked()
            await trio.sleep(0.1)  # idle: the last block is proven by a watermark
            end = store._journal.position().offset
            name = journal_names(disk)[0]
        hit = draw.randrange(begin, end - blocks.ALIGN, blocks.ALIGN) + draw.randrange(
            136
        )  # not the padding
        disk.flip(name, hit, draw.randrange(8))
        for _ in range(2):
            async with running(disk) as store:
                assert store.ledgers.limbo_below == LIMBO_ALL
                with pytest.raises(LedgerStateUnknown):
                    store.ledgers.get_known(99, KEY)
                adder = Adder(store, 7)
                adder.send(record(7, 6))
                error, _ = await adder.refusal()
                assert isinstance(error, LedgerStateUnknown)
                assert store.ledgers.get_known(7, KEY).limbo


async def test_rot_in_a_block_of_a_fence_alone_is_limbo(autojump_clock: Clock) -> None:
    """H3: a block that holds nothing but a fence is proven too, or its rot passes for a torn tail."""
    disk = CutDisk()
    async with running(disk) as store:
        offset = store._journal.position().offset
        await fence(store, 7)
        await trio.sleep(0.1)
    disk.flip(journal_names(disk)[0], offset + 70)
    async with running(disk) as store:
        assert store.ledgers.limbo_below == LIMBO_ALL
        with pytest.raises(LedgerStateUnknown):
            store.ledgers.get_known(7, KEY)


async def test_a_ledger_that_only_a_survivor_tells_of_is_in_limbo_too(
    autojump_clock: Clock,
) -> None:
    """Inv. 22: the block that made it known rotted, a later one of it is not known synced, and is kept."""
    disk = CutDisk()
    async with running(disk) as store:
        offset = store._journal.position().offset
        adder = await add_acked(store, 7)
        adder.send(record(7, 1, lac=-1))  # a higher LAC would tell of the ledger as well
        await adder.all_acked()
    disk.flip(journal_names(disk)[0], offset + 70)
    for _ in range(2):
        async with running(disk) as store:
            ledger = store.ledgers.get_known(7, KEY)
            assert ledger.limbo
            assert ledger.fenced


async def test_limbo_is_confined_to_the_ledgers_of_before(autojump_clock: Clock) -> None:
    """H7: what was created after the loss is sound; recovery adds fill what is in limbo."""
    disk = CutDisk()
    async with running(disk) as store:
        offset = store._journal.position().offset
        await add_acked(store, 7)
        await trio.sleep(0.1)
    disk.flip(journal_names(disk)[0], offset + 70)
    async with running(disk) as store:
        await store.limbo.lower_bound(100)
        assert store.ledgers.limbo_below == 100
    async with running(disk) as store:
        new, old = Adder(store, 100), Adder(store, 99)
        new.send(record(100, 0))
        await new.all_acked()
        old.send(record(99, 0))
        error, _ = await old.refusal()
        healing = Adder(store, 7, recovery=True)
        healing.send(record(7, 0))
        await healing.all_acked()

        assert isinstance(error, LedgerStateUnknown)
        assert list(await read_all(store, 7)) == [0]
        assert store.ledgers.get_known(7, KEY).limbo
        assert not store.ledgers.get_known(100, KEY).limbo


@pytest.mark.parametrize("entries_before", [0, 3])
@pytest.mark.parametrize("graceful", [False, True])
async def test_a_fence_survives_the_kill_right_after_its_reply(
    autojump_clock: Clock, entries_before: int, graceful: bool
) -> None:
    """Also for an empty ledger (D17, inv. 11, 12)."""
    disk = CutDisk(sync_s=0.001)
    async with running(disk) as store:
        adder = Adder(store, 7)
        adder.send(*(record(7, n) for n in range(entries_before)))
        if entries_before:
            await adder.all_acked()
        await fence(store, 7)
        if graceful:
            await trio.sleep(10)
        disk = disk.cut(random.Random(1), survive=0.0)

    async with running(disk) as store:
        adder = Adder(store, 7)
        adder.send(record(7, entries_before))
        error, position = await adder.refusal()

        assert (type(error), position) == (LedgerFenced, 0)
        assert store.ledgers.get_known(7, KEY).last_entry == entries_before - 1


@pytest.mark.parametrize("rested_s", [0, 1])
async def test_an_explicit_lac_survives_a_restart(rested_s: float, autojump_clock: Clock) -> None:
    """H24: published at once, durable with the idle block; also where that was written already."""
    disk = CutDisk(sync_s=0.001)
    async with running(disk) as store:
        adder = Adder(store, 7)
        adder.send(record(7, 0), record(7, 1))
        await adder.all_acked()
        await trio.sleep(rested_s)
        assert store.ledgers.get_known(7, KEY).lac == 0
        store.write_lac(adder.stream, 1)
        assert store.ledgers.get_known(7, KEY).lac == 1
        await trio.sleep(0.1)
        disk = disk.cut(random.Random(1), survive=0.0)
    async with running(disk) as store:
        assert store.ledgers.get_known(7, KEY).lac == 1


@pytest.mark.parametrize("frame", [1, 2], ids=["one record", "two records"])
async def test_add_with_an_older_lac_leaves_the_explicit_lac_to_be_journaled(
    frame: int, autojump_clock: Clock
) -> None:
    """Both ways an add is taken: one record of a frame, and several. H24."""
    disk = CutDisk(sync_s=0.001)
    async with running(disk) as store:
        adder = Adder(store, 7)
        adder.send(*(record(7, entry) for entry in range(4)))
        await adder.all_acked()
        store.write_lac(adder.stream, 3)
        adder.send(*(record(7, entry, lac=1) for entry in range(4, 4 + frame)))
        await adder.all_acked()
        await trio.sleep(1)
        disk = disk.cut(random.Random(1), survive=0.0)
    async with running(disk) as store:
        assert store.ledgers.get_known(7, KEY).lac == 3


async def test_an_explicit_lac_is_in_the_next_checkpoint(autojump_clock: Clock) -> None:
    """H24: what is before a checkpoint is not read again at a start."""
    disk, index = CutDisk(sync_s=0.001), CutDisk()
    async with running(disk, SMALL, index) as store:
        adder = Adder(store, 7)
        adder.send(record(7, 0), record(7, 1))
        await adder.all_acked()
        await store.checkpoint()
        store.write_lac(adder.stream, 1)
        await trio.sleep(0.1)
        await store.checkpoint()
    async with running(disk, SMALL, index) as store:
        assert store.ledgers.get_known(7, KEY).lac == 1


async def test_an_explicit_lac_survives_a_restart_of_a_busy_bookie(autojump_clock: Clock) -> None:
    """H24: where others add all the time no block is an idle one."""
    disk = CutDisk(sync_s=0.001)
    async with running(disk) as store:
        adder, busy = Adder(store, 7), Adder(store, 8)
        adder.send(record(7, 0), record(7, 1))
        await adder.all_acked()
        store.write_lac(adder.stream, 1)
        began = trio.current_time()
        while trio.current_time() < began + 2 * EXPLICIT_LAC_DELAY_S + 0.01:
            busy.send(record(8, len(busy.sent)))
            await trio.sleep(0.003)
        disk = disk.cut(random.Random(1), survive=0.0)
    async with running(disk) as store:
        assert store.ledgers.get_known(7, KEY).lac == 1


async def test_an_add_that_says_the_lac_saves_the_record_of_it(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H24: it is in the journal by that, and survives by that."""
    written: list[int] = []
    state_record = Ledger.state_record

    def noted(self: Ledger) -> bytes:
        written.append(self.id)
        return state_record(self)

    disk = CutDisk(sync_s=0.001)
    async with running(disk) as store:
        adder, busy = Adder(store, 7), Adder(store, 8)
        adder.send(record(7, 0))
        busy.send(record(8, 0))
        await adder.all_acked()
        monkeypatch.setattr(Ledger, "state_record", noted)
        for entry in range(1, 30):
            store.write_lac(adder.stream, entry - 1)
            for _ in range(10):
                busy.send(record(8, len(busy.sent)))
                await trio.sleep(0.003)
            adder.send(record(7, entry))
            await adder.all_acked()
        assert written.count(7) == written.count(8)  # at the beginning of a file, as all ledgers
        disk = disk.cut(random.Random(1), survive=0.0)
    monkeypatch.undo()
    async with running(disk) as store:
        assert store.ledgers.get_known(7, KEY).lac == 28


async def test_lacs_that_wait_for_an_add_are_one_a_ledger(autojump_clock: Clock) -> None:
    """Whatever a peer sends, what waits is bounded by what is stored (H24)."""
    async with running(CutDisk(sync_s=0.001)) as store:
        adder = Adder(store, 7)
        adder.send(record(7, 0))
        await adder.all_acked()
        for lac in range(1000):
            store.write_lac(adder.stream, lac)
        commits = store.group_commit
        assert len(commits._recent_lacs) + len(commits._older_lacs) <= 2
        assert store.ledgers.get_known(7, KEY).lac == 999
        await trio.sleep(1)
        assert not commits.has_dirty_lacs


async def test_a_bookie_that_lost_its_journal_gives_no_negative_answers(
    autojump_clock: Clock,
) -> None:
    """Inv. 22: the index alone, or the files alone without one of them."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, SMALL, index) as store:
        await add_acked(store, 7)
        await store.checkpoint()

    async with running(CutDisk(), SMALL, index) as store:
        assert store.ledgers.get_known(7, KEY).limbo
        assert store.ledgers.limbo_below == LIMBO_ALL
        with pytest.raises(LedgerStateUnknown):
            store.ledgers.get_known(8, KEY)


async def test_files_of_another_bookie_are_refused(autojump_clock: Clock) -> None:
    """Inv. 23."""
    disk = CutDisk()
    async with running(disk):
        pass
    with pytest.raises(ForeignData):
        await open_store(host_of(disk), OPTIONS, bookie_id="b2")


async def test_a_stored_copy_of_the_journal_plants_no_blocks(autojump_clock: Clock) -> None:
    """H4: a payload that contains valid blocks of this very bookie."""
    disk = CutDisk()
    async with running(disk) as store:
        adder = await add_acked(store, 7)
        await fence(store, 8)
        name = journal_names(disk)[0]
        copy = disk._files[name].read(0, store._journal.position().offset)
        for shift in (0, 8, 4096 - 56 - 56):
            adder.send(record(7, len(adder.sent), bytes(shift) + copy))
        await adder.all_acked()

    async with running(disk) as store:
        assert list((await read_all(store, 7)).values()) == adder.sent
        assert store.ledgers.limbo_below == 0
        assert await ids(store) == [7, 8]


async def test_a_failed_sync_ends_the_node_without_an_ack(autojump_clock: Clock) -> None:
    """Inv. 24: a failed fsync is fatal."""
    disk = CutDisk()
    acked: list[int] = []
    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012
        async with running(disk) as store:
            disk.fail_syncs = True
            adder = Adder(store, 7)
            adder.on_ack = acked.append
            adder.send(record(7, 0))
            await trio.sleep(10)

    assert caught.group_contains(DiskFailed)
    assert acked == []


@pytest.mark.parametrize(("first", "survive"), few([(1, 0.5), (0, 0.0), (2, 1.0)], 1))
async def test_the_power_goes_off_at_every_step(
    autojump_clock: Clock, first: int, survive: float
) -> None:
    """H4: of the first start, of adds, rolls, checkpoints, deletions, and of later starts.

    Every ninth step here; a step of 1 was run when this was written.
    """
    steps = first - 9
    died = True
    while died:
        steps += 9
        draw = random.Random(steps)
        disk = CutDisk()
        acked: list[bytes] = []
        died = False
        for start in range(3):
            disk.fuse = steps if start != 1 else steps // 3
            try:
                async with running(disk, SMALL) as store:
                    before = await read_all(store, 7) if acked else {}
                    assert list(before.values())[: len(acked)] == acked
                    acked = list(before.values())
                    adder = Adder(store, 7)
                    adder.on_ack = lambda count, adder=adder, old=acked: _count(old, adder, count)
                    if not start:
                        await store.delete_ledger(5)
                    for n in range(12):
                        adder.send(record(7, len(before) + n, draw.randbytes(4000)))
                        await trio.sleep(0.001)
                    await store.checkpoint()
                    await trio.sleep(6)
                    assert store.ledgers.limbo_below == 0
            except* PowerCut:
                died = True
            disk = disk.cut(draw, survive)
        async with running(disk, SMALL) as store:
            found = await read_all(store, 7) if acked else {}
            assert list(found.values())[: len(acked)] == acked
            assert store.ledgers.limbo_below == 0
    assert steps > 50


def _count(acked: list[bytes], adder: Adder, count: int) -> None:
    acked[len(acked) :] = adder.sent[adder.counted : count]
    adder.counted = count


async def test_more_state_than_a_file_holds(autojump_clock: Clock) -> None:
    """H7: every file begins with the state of all ledgers, however many there are."""
    disk = CutDisk()
    async with running(disk, SMALL, CutDisk()) as store:
        for ledger in range(4000):
            store.fence(ledger, KEY, lambda ledger, error: None)
        adder = await add_acked(store, 5000, 60, 5000)
        assert store._journal.counters.rolls > 1
    async with running(disk, SMALL, CutDisk()) as store:
        assert store.ledgers.limbo_below == 0
        assert len(await ids(store)) == 4001
        assert all(store.ledgers.get_known(ledger, KEY).fenced for ledger in range(4000))
        assert list((await read_all(store, 5000)).values()) == adder.sent
