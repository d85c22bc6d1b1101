"""Add streams as a bookie serves them: acks are counts in sending order (H1)."""

import random
from dataclasses import replace

import trio
import trio.testing

from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    EntryConflict,
    InvalidRequest,
    LedgerFenced,
    ProtocolError,
    WrongLedgerKey,
)

from .kit import OPTIONS, Adder, CutDisk, fence, read_all, record, running

SMALL = replace(
    OPTIONS, journal_file_bytes=128 << 10, gather_bytes=64 << 10, unsynced_bytes_max=16 << 10
)
Clock = trio.testing.MockClock


async def _check_counted_acked_is_here(store: BookieStore, adder: Adder, ids: list[int]) -> None:
    found = await read_all(store, adder.ledger) if adder.acked else {}
    for position in range(adder.acked):
        assert found[ids[position]] == adder.sent[position]


async def test_counted_acked_means_that_the_bookie_has_it(autojump_clock: Clock) -> None:
    """H1: streams that move, come back, re-send, skip ids, conflict and are refused: fuzz."""
    for seed in range(40):
        draw = random.Random(seed)
        disk = CutDisk(sync_s=draw.choice((0.0, 0.001)))
        async with running(disk, SMALL) as store:
            streams: list[tuple[Adder, list[int]]] = []
            fenced = False
            for _ in range(60):
                if not streams or draw.random() < 0.1:
                    streams.append((Adder(store, 7, recovery=draw.random() < 0.3), []))
                adder, ids = draw.choice(streams)
                batch = [draw.randrange(60) for _ in range(draw.randrange(1, 6))]
                made = []
                for n in batch:
                    other = b"other %d" % draw.randrange(3) if draw.random() < 0.02 else b""
                    made.append(record(7, n, other))
                if draw.random() < 0.02:
                    made[-1] = made[-1][:-1] + bytes([made[-1][-1] ^ 1])
                ids += batch
                adder.send(*made)
                if draw.random() < 0.02 and not fenced:
                    await fence(store, 7)
                    fenced = True
                if draw.random() < 0.3:
                    await trio.sleep(draw.random() * 0.003)
                await _check_counted_acked_is_here(store, adder, ids)
            await trio.sleep(1)
            for adder, ids in streams:
                await _check_counted_acked_is_here(store, adder, ids)
                if adder.refused:
                    ((error, position),) = adder.refused
                    assert adder.acked == position, "all before the refused one is acked"
                    assert isinstance(error, (EntryConflict, CorruptData, LedgerFenced))
                else:
                    assert adder.acked == len(adder.sent)


async def test_explicit_ids_out_of_order(autojump_clock: Clock) -> None:
    """0, 2, 3, then 1; acked in sending order."""
    async with running(CutDisk()) as store:
        adder = Adder(store, 7)
        for n in (0, 2, 3, 1):
            adder.send(record(7, n))
        await adder.all_acked()

        assert list(await read_all(store, 7)) == [0, 1, 2, 3]


async def test_what_cannot_be_is_refused_and_ends_the_stream(autojump_clock: Clock) -> None:
    """H24 (a LAC not below its entry), another ledger's record, cut and damaged records."""
    good, later = record(7, 0), record(7, 1)
    other_ledger = record(8, 0)
    damaged = good[:70] + bytes([good[70] ^ 4]) + good[71:]
    for bad, expected in (
        (other_ledger, InvalidRequest),
        (damaged, CorruptData),
        (good[:-8], ProtocolError),
        (good[:20], ProtocolError),
    ):
        async with running(CutDisk()) as store:
            adder = Adder(store, 7)
            adder.send(later, bad)
            adder.send(record(7, 2))
            error, position = await adder.refusal()
            await trio.sleep(1)

            assert (type(error), position, adder.acked) == (expected, 1, 1)
            assert list(await read_all(store, 7)) == [1]


async def test_a_wrong_key_refuses_the_stream_at_once(autojump_clock: Clock) -> None:
    """The key is the ledger's secret; the first one shown counts."""
    async with running(CutDisk()) as store:
        Adder(store, 7).send(record(7, 0))

        wrong = Adder(store, 7, key=b"x" * 16)
        wrong.send(record(7, 1))

        assert isinstance(wrong.refused[0][0], WrongLedgerKey)


async def test_an_add_and_a_fence_in_one_turn_are_ordered(autojump_clock: Clock) -> None:
    """Inv. 11: an add is visible to the fencing read, or refused; nothing between."""
    disk = CutDisk(sync_s=0.01)
    async with running(disk) as store:
        adder = Adder(store, 7)
        adder.send(record(7, 0))
        fenced: list[int] = []
        store.fence(7, adder.key, lambda ledger, error: fenced.append(ledger.last_entry))
        adder.send(record(7, 1))
        await trio.sleep(1)

        assert fenced == [0]
        assert adder.acked == 1
        assert isinstance(adder.refused[0][0], LedgerFenced)


async def test_a_second_fence_waits_for_the_first_ones_sync(autojump_clock: Clock) -> None:
    """Inv. 11: no fence is answered before it is durable, whoever asked first."""
    async with running(CutDisk(sync_s=1.0)) as store:
        adder = Adder(store, 7)
        adder.send(record(7, 0))
        start = trio.current_time()
        at: list[float] = []
        for _ in range(2):
            store.fence(7, adder.key, lambda ledger, error: at.append(trio.current_time() - start))
            await trio.sleep(0.3)
        await trio.sleep(5)

        assert len(at) == 2
        assert min(at) >= 1.0


async def test_a_duplicate_of_what_is_cold_waits_for_the_device(autojump_clock: Clock) -> None:
    """H10, H37: compared with what is stored, read by a worker; the stream's order is kept."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        adder = Adder(store, 7)
        for n in range(60):
            adder.send(record(7, n, bytes([n]) * 5000))
        await adder.all_acked()
    disk.hot = False
    async with running(disk, SMALL) as store:
        again, liar = Adder(store, 7), Adder(store, 7)
        again.send(*(record(7, n, bytes([n]) * 5000) for n in (3, 60, 4)))
        again.send(record(7, 61))
        liar.send(record(7, 5, b"other"), record(7, 70))
        await again.all_acked()
        error, position = await liar.refusal()

        assert (type(error), position) == (EntryConflict, 0)
        assert store.stats.duplicates == 2
        assert len(await read_all(store, 7)) == 62
