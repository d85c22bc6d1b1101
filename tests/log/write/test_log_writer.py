"""What a writer accepts, how it batches, and what its errors mean."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import RECORD_BYTES_MAX, LogRecord
from distributedlog.log.write.txid_admission import TxidAdmission
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    InvalidRequest,
    LedgerFenced,
    RecordTooLarge,
    TransactionIdOutOfOrder,
    WriteCancelled,
    WriteFailed,
)
from tests.log.conftest import World
from tests.log.records import everything, rec


async def test_the_largest_record_and_one_byte_more(
    world: World, autojump_clock: MockClock
) -> None:
    """Too long is refused, and the writer is still usable."""
    async with world.process() as ns, ns.open_log("l").open_writer() as writer:
        await writer.write(rec(1, bytes(RECORD_BYTES_MAX)))
        with pytest.raises(RecordTooLarge, match=str(RECORD_BYTES_MAX)):
            await writer.write(rec(2, bytes(RECORD_BYTES_MAX + 1)))
        assert await writer.write(rec(2)) == DLSN(1, 1, 0)


async def test_txids_do_not_decrease(world: World, autojump_clock: MockClock) -> None:
    """In a strict log, on the same writer and after reopening."""
    async with world.process() as ns:
        await ns.create_log("l", txids="strict")
        log = ns.open_log("l")
        for _ in range(2):
            async with log.open_writer() as writer:
                await writer.write(rec(100))
                with pytest.raises(TransactionIdOutOfOrder, match="99 is lower than 100"):
                    await writer.write(rec(99))
                with pytest.raises(TransactionIdOutOfOrder):
                    await (await writer.submit_bulk([rec(101), rec(99)]))
                assert writer.last_txid == 101
                break
        async with log.open_writer() as writer:
            assert writer.last_txid == 101
            with pytest.raises(TransactionIdOutOfOrder):
                await writer.write(rec(100))
            await writer.write(rec(101))
        unchecked = ns.open_log("l", config={"max_txid_check": False})
        async with unchecked.open_writer() as writer:
            await writer.write(rec(99))
            await writer.write_bulk([rec(98), rec(3)])
        assert [r.txid for r in await everything(log)] == [100, 101, 101, 99, 98, 3]


@pytest.mark.parametrize(
    ("txid", "payload"),
    [
        (-1, b""),
        (2**63 - 1, b""),
        (1.0, b""),
        ("1", b""),
        (1, "text"),
        (1, 7),
        (1, None),
    ],
)
async def test_what_is_no_record_is_refused(
    world: World, autojump_clock: MockClock, txid: object, payload: object
) -> None:
    """Nothing was written, and the writer goes on."""
    wrong = LogRecord(txid, payload)  # type: ignore[arg-type]
    async with world.process() as ns, ns.open_log("l").open_writer() as writer:
        with pytest.raises(InvalidRequest):
            await writer.submit(wrong)
        with pytest.raises(InvalidRequest):
            await writer.write_bulk([wrong])
        assert await writer.write(rec(1)) == DLSN(1, 0, 0)


async def test_a_mutable_payload_is_copied_when_it_is_taken(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            payload = bytearray(b"before")
            await writer.submit(LogRecord(1, payload))  # type: ignore[arg-type]
            await writer.submit(LogRecord(1, memoryview(b"view")))  # type: ignore[arg-type]
            payload[:] = b"after!"
        assert [r.payload for r in await everything(log)] == [b"before", b"view"]


async def test_a_bulk_with_one_bad_record(world: World, autojump_clock: MockClock) -> None:
    """0–199 DLSNs ascending, 200 too large, 201 and on cancelled."""
    records = [rec(7) for _ in range(500)]
    records[200] = rec(7, bytes(RECORD_BYTES_MAX + 1))
    async with world.process() as ns, ns.open_log("l").open_writer() as writer:
        bulk = await writer.submit_bulk(records)
        outcomes = await bulk.outcomes()

        assert len(bulk) == len(outcomes) == 500
        assert outcomes[:200] == sorted(outcomes[:200])  # type: ignore[type-var]
        assert all(isinstance(outcome, DLSN) for outcome in outcomes[:200])
        assert isinstance(outcomes[200], RecordTooLarge)
        assert all(isinstance(outcome, WriteCancelled) for outcome in outcomes[201:])
        assert await bulk[199] == outcomes[199]
        with pytest.raises(WriteCancelled):
            await bulk[-1]
        with pytest.raises(RecordTooLarge):
            await writer.write_bulk(records)
        assert len(await writer.write_bulk([rec(8)] * 3)) == 3
        assert await writer.write_bulk([]) == []


async def test_a_burst_is_one_entry_and_a_busy_pipeline_fills_batches(
    world: World, autojump_clock: MockClock
) -> None:
    """Idle is judged at the end of the loop turn; a busy writer fills."""
    async with world.process(entry_bytes_max=1000) as ns, ns.open_log("l").open_writer() as writer:
        burst = [await writer.submit(rec(i)) for i in range(50)]
        dlsns = [await pending for pending in burst]
        assert {dlsn.entry for dlsn in dlsns} == {0}

        world.ledgers.held = True
        for i in range(50, 400):
            await writer.submit(rec(i, bytes(20)))
        sizes = [32 * 31 + 4 + 64]
        world.ledgers.release()
        await writer.commit()
        entries = world.ledgers.stores[1].entries
        assert sum(len(entry) > 900 for entry in entries) >= 10
        assert max(map(len, entries)) <= sizes[0]


async def test_a_write_into_an_idle_pipeline_waits_for_no_turn_and_a_burst_still_gathers(
    world: World, autojump_clock: MockClock
) -> None:
    """A lone write's entry is with the ledger before anybody else has had a turn."""
    async with world.log("l") as log, log.open_writer() as writer:
        await writer.write(rec(7))  # it decides whose the txids are
        with pytest.raises(InvalidRequest):
            await writer.write(rec(-1))  # refused on the short way: the next one is as ever
        world.ledgers.held = True
        places: dict[int, DLSN] = {}

        async def write(number: int) -> None:
            places[number] = await writer.write(rec(7))

        async with trio.open_nursery() as nursery:
            first = writer.write(rec(7))
            with trio.CancelScope() as scope:
                scope.cancel()
                await first  # it runs up to its first wait, and not one turn further
            assert world.ledgers.writers[-1].added == 2
            for number in range(50):
                nursery.start_soon(write, number)
            await trio.testing.wait_all_tasks_blocked()
            assert world.ledgers.writers[-1].added == 3
            world.ledgers.release()
        assert {dlsn.entry for dlsn in places.values()} == {2}
        assert sorted(dlsn.slot for dlsn in places.values()) == list(range(50))


async def test_a_lone_record_goes_at_once_and_becomes_readable(
    world: World, autojump_clock: MockClock
) -> None:
    """By explicit LAC and without a timer."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer, log.open_reader(at="latest") as tail:
            began = trio.current_time()
            dlsn = await writer.write(rec(1))
            record = await tail.read_next(wait_s=1)

            assert record is not None
            assert record.dlsn == dlsn
            assert trio.current_time() - began < 0.1
            assert world.ledgers.writers[0].published == [0]


async def test_commit_means_durable_and_readable(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            assert await writer.commit() is None
            for i in range(10):
                await writer.submit(rec(i))
            last = await writer.commit()
            assert [r.dlsn for r in await everything(log)][-1] == last == DLSN(1, 0, 9)


async def test_the_bound_in_bytes_makes_submit_wait(
    world: World, autojump_clock: MockClock
) -> None:
    """Back-pressure in bytes; a waiter goes on in order when room is there."""
    async with world.process(in_flight_bytes_max=10_000, entry_bytes_max=1000) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            world.ledgers.held = True
            taken = 0
            with trio.move_on_after(1):
                while True:
                    await writer.submit(rec(taken, bytes(88)))
                    taken += 1
            assert 90 <= taken <= 130
            world.ledgers.release()
            await writer.write(rec(taken))
        assert [r.txid for r in await everything(log)] == list(range(taken + 1))


async def test_a_cancelled_wait_withdraws_nothing(world: World, autojump_clock: MockClock) -> None:
    """H31: the record appears at most once, in its place."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            world.ledgers.held = True
            with trio.move_on_after(0.5):
                await writer.write(rec(1, b"cancelled"))
            pending = await writer.submit(rec(2))
            assert not pending.done()
            with pytest.raises(InvalidRequest):
                pending.result()
            world.ledgers.release()
            await pending
            assert pending.done()
            assert pending.result() == DLSN(1, 1, 0)
        assert [r.payload for r in await everything(log)] == [b"cancelled", b"x"]


async def test_a_closed_writer_refuses(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        writer = await ns.open_log("l").open_writer()
        await writer.submit(rec(1))
        await writer.aclose()
        await writer.aclose()
        for call in (
            writer.submit(rec(1)),
            writer.submit_bulk([rec(1)]),
            writer.commit(),
            writer.flush(),
        ):
            with pytest.raises(AlreadyClosed):
                await call


async def test_an_exception_aborts_and_the_next_writer_recovers(
    world: World, autojump_clock: MockClock
) -> None:
    """Left on an exception, nothing more is sent; the segment awaits recovery."""
    async with world.process() as ns:
        log = ns.open_log("l")
        pending = []
        with pytest.raises(ValueError, match="mine"):  # noqa: PT012
            async with log.open_writer() as writer:
                await writer.write(rec(1, b"durable"))
                world.ledgers.held = True
                pending.append(await writer.submit(rec(2, b"lost")))
                raise ValueError("mine")
        assert writer.error is not None
        with pytest.raises(WriteFailed):
            await pending[0]
        assert not pending[0].result.__self__._batch.error.definite  # type: ignore[attr-defined]
        world.ledgers.held = False

        async with log.open_writer(wait_s=0) as second:  # the lock was given back
            assert await second.write(rec(2, b"second")) == DLSN(2, 0, 0)
        async with log.open_reader(to="end") as reader:
            assert [(r.payload, r.sequence_id) async for r in reader] == [
                (b"durable", 0),
                (b"second", 1),
            ]


async def test_many_tasks_write_each_in_its_order(world: World, autojump_clock: MockClock) -> None:
    """G1 for each task; a bulk that is cut by others' txids says so instead of breaking the order."""
    async with world.process(
        max_txid_check=False, entry_bytes_max=500, in_flight_bytes_max=2000
    ) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer, trio.open_nursery() as nursery:

            async def produce(task: int) -> None:
                for i in range(40):
                    if i % 3:
                        await writer.write(rec(task, b"%d" % i))
                    else:
                        await writer.write_bulk([rec(task, b"%d" % i), rec(task, b"%d" % i)])

            for task in range(5):
                nursery.start_soon(produce, task)
        found = await everything(log)
        for task in range(5):
            mine = [int(r.payload) for r in found if r.txid == task]
            assert mine == sorted(mine)
            assert len(mine) == 40 + 14
        assert [r.sequence_id for r in found] == list(range(len(found)))


async def test_what_was_sent_when_a_writer_ends_is_unknown_whatever_ended_it(
    world: World, autojump_clock: MockClock
) -> None:
    """G7: the ledger was fenced, and its recovery, which keeps the entry, was not to be waited for."""
    async with world.process(entry_bytes_max=200, in_flight_bytes_max=10_000) as ns:
        log = ns.open_log("l")
        writer = await log.open_writer()
        world.ledgers.held = True
        world.ledgers.keep_in_flight = 1
        sent = await writer.submit(rec(1))
        await trio.sleep(0.1)

        writer.send_queue.fail(LedgerFenced("ledger 1 was fenced by a recovery"))

        with pytest.raises(WriteFailed, match="may be stored") as told:
            await sent
        assert not told.value.definite
        with pytest.raises(LedgerFenced):  # what comes later is refused for certain
            await writer.write(rec(2))
        world.ledgers.release()
        await writer.abort()
        async with log.open_writer(wait_s=1), log.open_reader(to="end") as reader:
            assert [record.txid for record in await reader.read_bulk(9, wait_s=1)] == [1]


async def test_bulks_and_single_records_share_an_entry(
    world: World, autojump_clock: MockClock
) -> None:
    """Whose lengths are known from their bulk, and whose are counted when it is sent, in any order."""
    bulk, odd = [b"x" * 100] * 20, b"y" * 101
    payloads: list[bytes] = []
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            for step in "bb", "bsb", "sb", "bss", "bsbb", "o", "bo":
                for one in step:
                    first, more = len(payloads), bulk if one == "b" else [odd]
                    payloads += more
                    if one == "b":
                        await writer.submit_columns(list(range(first, len(payloads))), bulk)
                    elif one == "s":
                        await writer.submit(rec(first, odd))
                    else:
                        await writer.submit_columns([first], [odd])
                await writer.commit()
        found = await everything(log)

    assert [(r.txid, bytes(r.payload)) for r in found] == list(enumerate(payloads))
    assert found[-1].dlsn.entry == 6


@pytest.mark.parametrize("config", [{}, {"max_txid_check": False}])
@pytest.mark.parametrize("rule", ["given", "count"])
async def test_a_list_may_be_changed_while_its_records_wait(
    world: World, autojump_clock: MockClock, rule: Any, config: dict[str, Any]
) -> None:
    """What was checked is what is written, also where the call has to wait for room first."""
    async with world.process(in_flight_bytes_max=1000, entry_bytes_max=1000, **config) as ns:
        await ns.create_log("l", txids=rule)
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(rec(0) if rule == "given" else b"x")
            world.ledgers.held = True
            for _ in range(2):
                more = b"m" * 900
                await writer.submit(rec(0, more) if rule == "given" else more)
            txids, payloads = list(range(1, 31)), [b"%02d" % n * 30 for n in range(30)]
            async with trio.open_nursery() as nursery:
                given = txids if rule == "given" else None
                nursery.start_soon(writer.submit_columns, given, payloads)
                await trio.sleep(1)
                txids[:], payloads[:] = [-1] * 30, ["no bytes"] * 30  # type: ignore[list-item]
                world.ledgers.release()
            await writer.commit()
        found = await everything(log)

    assert [bytes(r.payload) for r in found[3:]] == [b"%02d" % n * 30 for n in range(30)]
    assert [r.txid for r in found[3:]] == [n + (1 if rule == "given" else 3) for n in range(30)]


async def test_a_list_may_be_changed_while_the_log_is_told_that_it_goes_back(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first txid that is lower is noted in the log's state before its record is sent."""
    async with world.process(max_txid_check=False) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(rec(9))
            txids, payloads = [5, 3], [b"a", b"bb"]
            note = TxidAdmission.record_unordered

            async def change_and_note(admission: TxidAdmission) -> None:
                txids[:], payloads[:] = [-1, -1], [b"ccc", b""]
                await note(admission)

            monkeypatch.setattr(TxidAdmission, "record_unordered", change_and_note)
            await writer.submit_columns(txids, payloads)
            await writer.commit()
        found = await everything(log)

    assert [(r.txid, bytes(r.payload)) for r in found[1:]] == [(5, b"a"), (3, b"bb")]


async def test_a_record_is_too_large_also_for_the_largest_entries(
    world: World, autojump_clock: MockClock
) -> None:
    """One by one and in bulk, with a txid and without."""
    most, more = bytes(RECORD_BYTES_MAX), bytes(RECORD_BYTES_MAX + 1)
    async with world.process(entry_bytes_max=4 * RECORD_BYTES_MAX) as ns:
        await ns.create_log("l", txids="given")
        await ns.create_log("m", txids="count")
        async with ns.open_log("l").open_writer() as writer:
            for _ in range(2):  # a log that is busy is given room ahead
                await writer.flush()
                await writer.submit(rec(0, most))
            with pytest.raises(RecordTooLarge):
                await writer.submit(rec(1, more))
            with pytest.raises(RecordTooLarge):
                await writer.write_bulk([rec(1, b""), rec(1, more)])
        async with ns.open_log("m").open_writer() as writer:
            for _ in range(2):
                await writer.flush()
                await writer.submit(most)
            with pytest.raises(RecordTooLarge):
                await writer.submit(more)
            with pytest.raises(RecordTooLarge):
                await (await writer.submit_columns(None, [b"", more]))
