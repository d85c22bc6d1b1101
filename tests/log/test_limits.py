"""What a writer may hold, of its log's bounds and its process', and how much it takes a second (H168)."""

from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.log.declarations.options import LogOptions
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import KeyedRecord, LogRecord, split_columns
from distributedlog.log.limits.memory_budget import FREE_BYTES, STEP_BYTES, MemoryBudget
from distributedlog.log.limits.write_throttle import Rate
from distributedlog.log.write.entry_batch import PendingBulk
from distributedlog.log.write.log_writer import LogWriter
from distributedlog.log.write.send_queue import SendQueue
from distributedlog.runtime.declarations.options import with_overrides
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    InvalidRequest,
    PositionConflict,
    RecordTooLarge,
    TooBusy,
    TransactionIdOutOfOrder,
)
from distributedlog.write_buffer import WriteBuffer, open_buffer
from tests.examples import examples
from tests.log.conftest import World
from tests.log.records import everything, keeper_of, rec

MIB = 1024 * 1024

# --- the counters ---------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["take", "give", "leave"]), st.integers(0, 300)),
    max_size=60,
)


@settings(max_examples=examples(200))
@given(steps)
def test_the_sum_is_kept_and_who_waits_longest_is_first(done: list[tuple[int, str, int]]) -> None:
    """Against a model: what is granted is what logs need above what is free, in steps."""
    process = MemoryBudget(8 * STEP_BYTES)
    told: list[int] = []
    logs = [process.create_share(lambda at=at: told.append(at)) for at in range(5)]  # type: ignore[misc]
    held = [0] * 5
    queue: list[tuple[int, int]] = []
    for at, what, kib in done:
        told.clear()
        waits = at in [one for one, _ in queue]
        if what == "take" and not waits:
            wanted, own = held[at] + kib * 1024, FREE_BYTES + logs[at].granted
            if logs[at].try_reserve(wanted):
                assert wanted <= own or not queue, "nobody overtakes"
                held[at] = wanted
            else:
                assert wanted > FREE_BYTES, "what is a log's own is never refused"
                logs[at].request(wanted)
                queue.append((at, wanted))
        elif what == "give":
            held[at] = max(0, held[at] - kib * 1024)
            logs[at].release_to(held[at])
        elif what == "leave" and waits:
            queue = [(one, wanted) for one, wanted in queue if one != at]
            logs[at].cancel_request()
        for one in told:
            first, wanted = queue.pop(0)
            assert one == first, "nobody overtakes"
            held[one] = wanted
            logs[one].cancel_request()
        assert process.granted_bytes == sum(one.granted for one in logs)
        assert (
            process.granted_bytes <= process.bytes_max or sum(one.granted > 0 for one in logs) == 1
        )
        assert all(h <= FREE_BYTES + one.granted for h, one in zip(held, logs, strict=True))
        if queue:
            first, wanted = queue[0]
            wanted += process.granted_bytes - logs[first].granted - FREE_BYTES
            assert process.granted_bytes, "who is alone waits for nobody"
            assert wanted > process.bytes_max, "who is first waits for room only"
    for each in logs:
        each.close()
    assert process.granted_bytes == 0
    assert not process.waiters


def test_what_is_more_than_there_is_goes_to_the_only_one() -> None:
    """Else it would wait for ever."""
    process = MemoryBudget(MIB)
    one, other = (process.create_share(lambda: None) for _ in range(2))
    assert other.try_reserve(FREE_BYTES + 1)
    assert not one.try_reserve(3 * MIB)
    one.request(3 * MIB)

    other.release_to(FREE_BYTES)

    assert one.granted >= 3 * MIB - FREE_BYTES


def test_what_is_granted_ahead_is_nobodys_loss() -> None:
    """Only while half of all is left and nobody waits; then a log holds what it needs, as ever."""
    process = MemoryBudget(MIB)
    one, other = (process.create_share(lambda: None) for _ in range(2))

    one.prefetch(FREE_BYTES + MIB // 2)
    assert one.granted == MIB // 2
    one.prefetch(FREE_BYTES + MIB // 2 + 1)  # above the half
    assert one.granted == process.granted_bytes == MIB // 2
    assert one.retain(FREE_BYTES + 1, MIB // 4)
    assert one.granted == MIB // 4 + STEP_BYTES
    assert other.try_reserve(FREE_BYTES + MIB // 2)
    assert not one.retain(FREE_BYTES + 1, MIB // 4), "less than half is left"
    one.release_to(FREE_BYTES + 1)
    assert one.granted == STEP_BYTES
    other.request(FREE_BYTES + MIB)
    one.prefetch(FREE_BYTES + MIB // 8)
    assert one.granted == STEP_BYTES, "somebody waits"


async def test_a_busy_log_asks_once_an_entry_and_an_idle_one_holds_nothing(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each 64 KiB were asked for, and each entry looked its log's limits up."""
    async with world.process() as ns, ns.open_log("a").open_writer() as writer:
        asked: list[int] = []
        fit = SendQueue.try_reserve

        def counted(pipeline: SendQueue, records: int, size: int, **more: Any) -> bool:
            asked.append(size)
            return fit(pipeline, records, size, **more)

        monkeypatch.setattr(SendQueue, "try_reserve", counted)
        for _ in range(500):
            await writer.submit(rec(1, bytes(10_000)))
        await writer.commit()
        entries = len(
            world.ledgers.stores[keeper_of(writer).current_target.ledger.ledger_id].entries
        )
        assert 15 <= entries <= 40
        assert len(asked) <= 2 * entries
        assert ns.context.memory_budget.granted_bytes == 0
        await ns.open_log("a").set({"records_per_s_max": 10})
        await trio.sleep(5)
        began = trio.current_time()
        for _ in range(30):
            await writer.submit(rec(1))
        assert trio.current_time() - began >= 1.8, "the writer was told"


def test_a_rate_is_kept_over_any_time_and_is_one_second_deep() -> None:
    rate, now, gone = Rate(), 100.0, []
    for _ in range(300):
        while (wait_s := rate.wait_s(3, 30, now)) > 0:
            now += wait_s
        rate.consume(3, 30)
        gone.append(now)

    assert gone[9] == 100.0, "one second's worth at once"
    assert all(later - first >= 0.999 for first, later in zip(gone, gone[20:], strict=False))
    assert gone[-1] == pytest.approx(100 + 29, abs=0.1)


def test_more_than_a_second_s_worth_goes_when_the_bucket_is_full_and_is_paid_for() -> None:
    rate = Rate()
    assert rate.wait_s(500, 100, 1.0) == 0
    rate.consume(500, 100)
    assert rate.wait_s(1, 100, 1.0) == pytest.approx(4.01)
    assert rate.wait_s(500, 100, 3.0) == pytest.approx(3.0)
    assert rate.wait_s(10**9, 0, 3.0) == 0, "no limit"


# --- the process ----------------------------------------------------------------------------------


async def fill(writer: LogWriter, payload: bytes, how: str = "submit") -> int:
    """Write until it waits; how many records went in."""
    taken = 0
    with trio.move_on_after(1):
        while True:
            txid = writer.last_txid + 1
            if how == "submit":
                await writer.submit(rec(txid, payload))
                taken += 1
            elif how == "bulk":
                await writer.submit_columns([txid] * 100, [payload] * 100)
                taken += 100
            else:
                ends = array("i", range(0, 10 * len(payload) + 1, len(payload)))
                ids = array("q", [txid] * 10)
                await writer.submit_packed(ids.tobytes(), ends.tobytes(), payload * 10)
                taken += 10
    return taken


def held(writers: list[LogWriter]) -> int:
    return sum(one.send_queue.unacked_bytes for one in writers)


@pytest.mark.parametrize("how", ["submit", "bulk", "packed"])
async def test_logs_that_are_written_faster_than_stored_stay_within_one_bound(
    world: World, autojump_clock: MockClock, how: str
) -> None:
    """H168: 200 logs, each of which alone would hold 8 MiB."""
    number, bound = 200, 4 * MIB
    async with world.process(process_bytes_max=bound) as ns:
        writers = [await ns.open_log(f"l{n}").open_writer() for n in range(number)]
        world.ledgers.held = True
        taken: dict[LogWriter, int] = {}

        async def write(writer: LogWriter) -> None:
            taken[writer] = await fill(writer, bytes(10_000), how)

        async with trio.open_nursery() as nursery:
            for writer in writers:
                nursery.start_soon(write, writer)

        least = 0 if how == "packed" else FREE_BYTES - 11_000
        assert bound <= held(writers) + number * 11_000
        assert held(writers) <= bound + number * FREE_BYTES
        assert all(one.send_queue.unacked_bytes >= least for one in writers)
        assert ns.context.memory_budget.granted_bytes <= bound
        world.ledgers.release()
        for writer in writers:
            await writer.commit()
        assert ns.context.memory_budget.granted_bytes == 0
        for writer in writers[:3]:
            await writer.aclose()
            assert len(await everything(ns.open_log(writer._name))) >= taken[writer]


@pytest.mark.parametrize("how", ["write", "bulk"])
async def test_a_log_that_can_be_written_is_written_while_others_are_stuck(
    world: World, autojump_clock: MockClock, how: str
) -> None:
    """H168: a hundred logs on dead bookies hold all that the process may, one writes on."""
    async with world.process(process_bytes_max=4 * MIB) as ns:
        stuck = [await ns.open_log(f"l{n}").open_writer() for n in range(100)]
        world.ledgers.dead = {keeper_of(one).current_target.ledger.ledger_id for one in stuck}
        async with trio.open_nursery() as nursery:
            for writer in stuck:
                nursery.start_soon(fill, writer, bytes(1000))
        assert ns.context.memory_budget.granted_bytes == 4 * MIB
        log = ns.open_log("live")
        async with log.open_writer() as writer:
            with trio.fail_after(60):
                if how == "write":
                    for txid in range(300):
                        await writer.write(rec(txid, bytes(1000)))
                else:
                    await writer.write_bulk([rec(txid, bytes(1000)) for txid in range(300)])
        assert [one.txid for one in await everything(log)] == list(range(300))


async def test_a_large_record_waits_in_order_and_small_ones_do_not(
    world: World, autojump_clock: MockClock
) -> None:
    """What is a log's own lets in what fits it; corrections: 1,000 logs with a record of 1 MiB each."""
    async with world.process(process_bytes_max=4 * MIB) as ns:
        stuck = await ns.open_log("stuck").open_writer()
        world.ledgers.dead = {keeper_of(stuck).current_target.ledger.ledger_id}
        await fill(stuck, bytes(100_000))
        went: list[str] = []

        async def write(name: str, size: int) -> None:
            async with ns.open_log(name).open_writer() as writer:
                await writer.write(rec(1, bytes(size)))
                went.append(name)

        async with trio.open_nursery() as nursery:
            for name in ("large-1", "large-2"):
                nursery.start_soon(write, name, MIB // 2)
                await trio.sleep(0.1)
            nursery.start_soon(write, "small", 60_000)
            await trio.sleep(5)
            assert went == ["small"]
            with trio.move_on_after(
                1
            ) as scope:  # who gives up leaves the queue, and what it was granted
                await write("large-3", MIB // 2)
            assert scope.cancelled_caught
            world.ledgers.dead = set()
            world.ledgers.flush()
        assert (went[0], sorted(went[1:])) == ("small", ["large-1", "large-2"])
        await stuck.aclose()
        assert ns.context.memory_budget.granted_bytes == 0
        assert not ns.context.memory_budget.waiters


@pytest.mark.parametrize("end", ["abort", "aclose", "fail"])
async def test_a_writer_that_ends_gives_back_what_it_held_and_tells_who_waits(
    world: World, autojump_clock: MockClock, end: str
) -> None:
    async with world.process(process_bytes_max=4 * MIB) as ns:
        first = await ns.open_log("first").open_writer()
        second = await ns.open_log("second").open_writer()
        world.ledgers.held = True
        await fill(first, bytes(100_000))
        outcomes: list[object] = []

        async def write() -> None:
            try:
                outcomes.append(await second.submit(rec(1, bytes(MIB // 2))))
            except AlreadyClosed as error:
                outcomes.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.sleep(1)
            assert outcomes == []
            if end == "abort":
                await first.abort()
            elif end == "fail":
                first.send_queue.fail(TooBusy("planted"))
            else:
                await second.aclose()
        assert isinstance(outcomes[0], AlreadyClosed) == (end == "aclose")


async def test_tasks_of_one_log_that_wait_go_on_in_order(
    world: World, autojump_clock: MockClock
) -> None:
    """A large record that waits is not passed for ever by small ones of its own log."""
    async with world.process(process_bytes_max=4 * MIB) as ns:
        stuck = await ns.open_log("stuck").open_writer()
        world.ledgers.dead = {keeper_of(stuck).current_target.ledger.ledger_id}
        await fill(stuck, bytes(100_000))
        log = ns.open_log("l", config={"max_txid_check": False})
        writer = await log.open_writer()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.submit, rec(0, bytes(MIB // 2)))
            await trio.sleep(0.1)
            for number in range(1, 30):
                nursery.start_soon(writer.submit, rec(number, bytes(10_000)))
                await trio.sleep(0.1)
            assert writer.send_queue.unacked_bytes == 0
            world.ledgers.dead = set()
            world.ledgers.flush()
        await writer.aclose()
        found = [one.txid for one in await everything(log)]
        assert (found[0], sorted(found)) == (0, list(range(30)))


# --- refused --------------------------------------------------------------------------------------


async def until_refused(writer: LogWriter, payload: bytes) -> tuple[int, TooBusy]:
    """How many records went in before one did not."""
    taken = 0
    while True:
        try:
            await writer.submit(rec(writer.last_txid + 1, payload))
        except TooBusy as error:
            return taken, error
        taken += 1


async def test_what_is_above_a_bound_is_refused_where_the_log_says_so(
    world: World, autojump_clock: MockClock
) -> None:
    """Definite: nothing was taken, and the writer goes on."""
    async with world.process(in_flight_bytes_max=20_000, entry_bytes_max=5000) as ns:
        log = ns.open_log("l", config={"at_limit": "reject"})
        async with log.open_writer() as writer:
            await writer.write(rec(0))
            world.ledgers.held = True
            taken, error = await until_refused(writer, bytes(1000))
            assert error.definite
            assert "the writer stays open" in str(error)
            assert 15 <= taken <= 30
            bulk = await writer.submit_bulk([rec(taken + 1)] * 3)
            assert [type(one) for one in await bulk.outcomes()] == [TooBusy] * 3
            with pytest.raises(TooBusy):
                await writer.submit_set([rec(taken + 1)] * 2)
            world.ledgers.release()
            await writer.commit()
            await writer.write(rec(taken + 1))
        assert [one.txid for one in await everything(log)] == list(range(taken + 2))


async def test_what_the_process_has_no_room_for_is_refused_where_the_log_says_so(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(process_bytes_max=4 * MIB, at_limit="reject") as ns:
        world.ledgers.held = True
        first, second = [await ns.open_log(name).open_writer() for name in "ab"]
        _, error = await until_refused(first, bytes(50_000))
        assert "not durable yet" in str(error)
        with pytest.raises(TooBusy, match="this process has"):
            await second.submit(rec(1, bytes(100_000)))
        await second.submit(rec(1, bytes(50_000)))
        bulk = await second.submit_bulk([rec(2, bytes(5000))] * 30)
        world.ledgers.release()
        kinds = [type(one) for one in await bulk.outcomes()]
        assert kinds == sorted(kinds, key=lambda kind: kind is TooBusy)
        assert 1 <= kinds.count(TooBusy) < 30


# --- rates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["submit", "bulk", "packed", "given by the log"])
@pytest.mark.parametrize("rate", [{"records_per_s_max": 50}, {"bytes_per_s_max": 5600}])
async def test_a_log_takes_so_much_a_second(
    world: World, autojump_clock: MockClock, how: str, rate: dict[str, Any]
) -> None:
    """One second's worth at once, then by the clock."""
    async with world.process(**rate) as ns:
        rule: Any = "count" if how == "given by the log" else "given"
        await ns.create_log("l", txids=rule)
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            began = trio.current_time()
            if rule == "count":
                for _ in range(200):
                    await writer.submit(bytes(100))
            elif how == "submit":
                for txid in range(200):
                    await writer.submit(rec(txid, bytes(100)))
            elif how == "bulk":
                await writer.submit_columns(list(range(200)), [bytes(100)] * 200)
            else:
                for first in range(0, 200, 10):
                    ids, ends = (
                        array("q", range(first, first + 10)),
                        array("i", range(0, 1001, 100)),
                    )
                    await writer.submit_packed(ids.tobytes(), ends.tobytes(), bytes(1000))
            assert 2.7 <= trio.current_time() - began <= 3.3
            await trio.sleep(5)
            before = trio.current_time()
            for _ in range(40):
                await writer.submit(bytes(100) if rule == "count" else rec(200, bytes(100)))
            assert trio.current_time() - before < 0.1
        assert [one.txid for one in await everything(log)][:200] == list(range(200))


async def test_what_is_above_a_rate_is_refused_or_only_counted(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(records_per_s_max=10) as ns:
        log = ns.open_log("l", config={"at_limit": "reject"})
        async with log.open_writer() as writer:
            for txid in range(10):
                await writer.write(rec(txid))
            with pytest.raises(TooBusy, match="rate"):
                await writer.submit(rec(10))
            assert [
                type(one) for one in await (await writer.submit_bulk([rec(10)])).outcomes()
            ] == [TooBusy]
            await trio.sleep(0.11)
            await writer.write(rec(10))
        counts = ns.open_log("l", config={"at_limit": "count"})
        async with counts.open_writer() as writer:
            await writer.write_bulk([rec(11)] * 10)
            assert writer.over_rate == 0
            await writer.write_bulk([rec(12)] * 25)
            await writer.write(rec(13))
            assert writer.over_rate == 26
        assert len(await everything(log)) == 11 + 10 + 26


async def test_a_rate_that_is_stored_reaches_writers_that_are_open(
    world: World, autojump_clock: MockClock
) -> None:
    """Scenario 27, and garbage is not taken for a limit."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            for option in ({"records_per_s_max": -1}, {"at_limit": "never"}):
                with pytest.raises(InvalidRequest):
                    await log.set(option)
            await writer.write_bulk([rec(0)] * 100)
            await log.set({"records_per_s_max": 20})
            await trio.sleep(10)
            await writer.write(rec(0))  # the entry that finds it
            before = trio.current_time()
            await writer.write_bulk([rec(0)] * 100)
            assert 3.5 <= trio.current_time() - before <= 4.5
            await log.set({"records_per_s_max": None})
            await trio.sleep(10)
            await writer.write(rec(0))
            before = trio.current_time()
            await writer.write_bulk([rec(0)] * 100)
            assert trio.current_time() - before < 0.1


def test_a_limit_says_what_it_takes() -> None:
    with pytest.raises(InvalidRequest, match="`wait`, `reject`, `count`"):
        with_overrides(LogOptions(), {"at_limit": "drop"})


# --- the buffer of the blocking and asyncio faces ---------------------------------------------------


class Here:
    """A background loop that is this one."""

    def post(self, callback: Any) -> None:
        callback()

    def check_running(self) -> None:
        pass

    def watch_writes(self, writes: object) -> None:
        """Nothing ends here."""


async def buffered(ns: Any, name: str, **config: Any) -> WriteBuffer:
    log = ns.open_log(name, config=config)
    background: Any = Here()
    return await open_buffer(background, ns, log, log.open_writer())


async def put(buffer: WriteBuffer, record: LogRecord) -> Any:
    """As the faces' ``submit``."""
    return buffer.append(record) or await buffer.append_when_capacity(record)


async def put_many(buffer: WriteBuffer, txids: Any, payloads: list[Any]) -> PendingBulk:
    """As the faces' ``submit_columns``; waits for the outcomes."""
    bulk, taken = buffer.validate_many(txids, payloads)
    at = 0
    while at < taken.record_count:
        stop = buffer.append_many(bulk, taken, at)
        at = stop if stop > at else await buffer.append_many_when_capacity(bulk, taken, at)
    told = trio.Event()
    bulk.add_done_callback(told.set)
    await told.wait()
    return bulk.writer_bulk()


def in_all(buffer: WriteBuffer) -> int:
    """What one holds: appended, being handed over, and in the writer."""
    return buffer._submitting_bytes + buffer._chunk.bytes + buffer.writer.send_queue.unacked_bytes


@pytest.mark.parametrize("how", ["one", "many"])
async def test_buffers_count_within_the_bound_of_the_process(
    world: World, autojump_clock: MockClock, how: str
) -> None:
    """H168: a face's own buffer holds 4 MiB, of a thousand logs 4 GiB."""
    number, bound = 60, 4 * MIB
    async with world.process(process_bytes_max=bound) as ns:
        buffers = [await buffered(ns, f"l{n}") for n in range(number)]
        world.ledgers.held = True
        taken: dict[WriteBuffer, int] = {}

        async def write(buffer: WriteBuffer) -> None:
            taken[buffer] = 0
            with trio.move_on_after(1):
                while True:
                    txid = taken[buffer]
                    if how == "one":
                        await put(buffer, rec(txid, bytes(5000)))
                        taken[buffer] += 1
                    else:
                        await put_many(buffer, [txid] * 100, [bytes(5000)] * 100)

        async with trio.open_nursery() as nursery:
            for buffer in buffers:
                nursery.start_soon(write, buffer)

        # What is being handed over counts twice, while it is.
        most = max(buffer._submitting_bytes for buffer in buffers)
        assert sum(map(in_all, buffers)) <= bound + number * (2 * FREE_BYTES + most)
        assert all(in_all(buffer) >= FREE_BYTES // 2 for buffer in buffers)
        assert ns.context.memory_budget.granted_bytes <= bound
        world.ledgers.release()
        for buffer in buffers:
            await buffer.commit()
        await trio.sleep(1)
        assert ns.context.memory_budget.granted_bytes == 0
        for buffer in buffers[:3]:
            await buffer.aclose()
            assert len(await everything(ns.open_log(buffer.name))) >= taken[buffer]


async def test_a_buffer_of_stuck_logs_leaves_room_for_one_that_can_be_written(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(process_bytes_max=4 * MIB) as ns:
        stuck = [await buffered(ns, f"l{n}") for n in range(20)]
        world.ledgers.dead = {
            keeper_of(one.writer).current_target.ledger.ledger_id for one in stuck
        }

        async def write(buffer: WriteBuffer) -> None:
            with trio.move_on_after(1):
                while True:
                    await put(buffer, rec(1, bytes(5000)))

        async with trio.open_nursery() as nursery:
            for buffer in stuck:
                nursery.start_soon(write, buffer)
        live = await buffered(ns, "live")
        with trio.fail_after(30):
            await put_many(live, list(range(300)), [bytes(1000)] * 300)
            await live.commit()


async def test_a_record_is_not_taken_before_there_is_room_for_it(
    world: World, autojump_clock: MockClock
) -> None:
    """Of 1 MiB into a small rest."""
    async with world.process(process_bytes_max=4 * MIB) as ns:
        stuck = await buffered(ns, "stuck")
        world.ledgers.dead = {keeper_of(stuck.writer).current_target.ledger.ledger_id}
        with trio.move_on_after(1):
            while True:
                await put(stuck, rec(1, bytes(50_000)))
        other = await buffered(ns, "other", at_limit="reject")
        with pytest.raises(TooBusy):
            await put(other, rec(7, bytes(3 * MIB // 4)))
        chunk, slot = await put(other, LogRecord(payload=b"without"))
        await other.commit()
        assert chunk.result(slot)


async def test_a_rate_holds_in_the_buffer(world: World, autojump_clock: MockClock) -> None:
    async with world.process(records_per_s_max=50) as ns:
        waits, refuses = await buffered(ns, "a"), await buffered(ns, "b", at_limit="reject")
        began = trio.current_time()
        for txid in range(75):
            await put(waits, rec(txid))
        await put_many(waits, list(range(75, 150)), [b""] * 75)
        assert 1.8 <= trio.current_time() - began <= 2.3
        await waits.aclose()
        assert [one.txid for one in await everything(ns.open_log("a"))] == list(range(150))

        for txid in range(50):
            await put(refuses, rec(txid))
        with pytest.raises(TooBusy):
            await put(refuses, rec(90))
        bulk = await put_many(refuses, [90, 91], [b"", b""])
        assert [type(one) for one in bulk.known_outcomes()] == [TooBusy] * 2
        with pytest.raises(TooBusy):
            await refuses.submit_set([rec(90)] * 2)
        await trio.sleep(0.1)
        await put(refuses, rec(60))  # what was refused is not before it
        await refuses.aclose()
        last = [one.txid for one in await everything(ns.open_log("b"))]
        assert last == [*range(50), 60]


Refused = tuple[type[DistributedLogError], Callable[[WriteBuffer], Awaitable[object]]]
_OFFSETS_DECREASE = array("i", [0, 4, 2, *range(5, 12)]).tobytes()
REFUSED: dict[str, Refused] = {
    "set with two transaction IDs": (
        InvalidRequest,
        lambda buffer: buffer.submit_set([rec(50), rec(51)] * 4),
    ),
    "set with a lower transaction ID": (
        TransactionIdOutOfOrder,
        lambda buffer: buffer.submit_set([rec(1)] * 8),
    ),
    "columns": (InvalidRequest, lambda buffer: buffer.submit_packed(None, _OFFSETS_DECREASE, b"")),
    "frame with a gap": (InvalidRequest, lambda buffer: buffer.write_frame(7, [rec(50)] * 8)),
    "conditional frame": (
        PositionConflict,
        lambda buffer: buffer.write_frame(1, [rec(50)] * 8, expect=DLSN(1, 99, 0)),
    ),
    "records of a chunk": (TransactionIdOutOfOrder, lambda buffer: put_refused(buffer)),
}


async def put_refused(buffer: WriteBuffer) -> None:
    """Append records whose transaction IDs only the writer finds too low. The log assigns the one before."""
    found = [await put(buffer, record) for record in (LogRecord(payload=b""), *[rec(50)] * 7)]
    await buffer.flush()
    for chunk, slot in found:
        if chunk.is_done(slot):
            chunk.result(slot)


@pytest.mark.parametrize("how", REFUSED)
async def test_buffer_does_not_charge_refused_records_to_the_rate(
    world: World, autojump_clock: MockClock, how: str
) -> None:
    error, write = REFUSED[how]
    async with world.process(records_per_s_max=10, at_limit="reject") as ns:
        await ns.create_log("l", txids="strict")
        background: Any = Here()
        log = ns.open_log("l")
        buffer = await open_buffer(background, ns, log, log.open_writer(producer="p"))
        await buffer.write_frame(0, [rec(40)])
        await trio.sleep(1)

        with pytest.raises(error):
            await write(buffer)

        for _ in range(9):
            await put(buffer, LogRecord(payload=b""))
        await buffer.aclose()


async def strict_buffer(ns: Any) -> WriteBuffer:
    """A buffer of a strict log whose rate is available in full."""
    await ns.create_log("l", txids="strict")
    buffer = await buffered(ns, "l")
    await put(buffer, rec(30))
    await trio.sleep(1)
    return buffer


async def assert_full_rate(buffer: WriteBuffer) -> None:
    """Check, a second after the last record, that ten records are within the rate, and an eleventh is not."""
    began = trio.current_time()
    for _ in range(10):
        await put(buffer, LogRecord(payload=b""))
    assert (trio.current_time(), buffer.writer.over_rate) == (began, 0)
    await put(buffer, LogRecord(payload=b""))
    assert trio.current_time() >= began + 0.09 or buffer.writer.over_rate == 1
    await buffer.aclose()


async def test_buffer_does_not_charge_a_record_that_another_call_made_too_low(
    world: World, autojump_clock: MockClock
) -> None:
    """Its transaction ID is in order when it begins to wait for the rate."""
    async with world.process(records_per_s_max=10) as ns:
        buffer = await strict_buffer(ns)
        for _ in range(9):
            await put(buffer, rec(30))
        last = await buffer.commit()
        assert last is not None
        world.ledgers.held = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(buffer.write_after, last, rec(50))
            await trio.sleep(0.01)
            nursery.start_soon(refuse_out_of_order, buffer)
            await trio.sleep(0.01)
            world.ledgers.release()

        await trio.sleep(1)
        await assert_full_rate(buffer)


async def refuse_out_of_order(buffer: WriteBuffer) -> None:
    with pytest.raises(TransactionIdOutOfOrder):
        await put(buffer, rec(40, bytes(1000)))


@pytest.mark.parametrize(("policy", "pause_s"), [("wait", 1), ("count", 1), ("count", 0)])
async def test_buffer_does_not_charge_records_of_a_bulk_that_another_call_made_too_low(
    world: World, autojump_clock: MockClock, policy: str, pause_s: int
) -> None:
    """Meanwhile the writer's queue is full. When it accepts a chunk again, unused capacity is freed."""
    limits: dict[str, Any] = {"records_per_s_max": 10, "in_flight_bytes_max": 1}
    async with world.process(**limits, at_limit=policy) as ns:
        buffer = await strict_buffer(ns)
        bulk, validated = buffer.validate_many([None, *[40] * 11], [b""] * 12)
        world.ledgers.held = True
        await buffer.submit_set([rec(50)] * 6)
        await buffer.writer.flush()
        await put(buffer, rec(51))
        await trio.sleep(pause_s)
        assert buffer.append_many(bulk, validated, 0) == 0

        assert await buffer.append_many_when_capacity(bulk, validated, 0) == 12

        outcomes = bulk.writer_bulk().known_outcomes()
        assert type(outcomes[0]) is TransactionIdOutOfOrder
        assert buffer.writer.over_rate == 0
        world.ledgers.release()
        await buffer.commit()
        await trio.sleep(1 - pause_s)
        await assert_full_rate(buffer)


async def test_buffer_charges_only_the_records_before_the_first_key(
    world: World, autojump_clock: MockClock
) -> None:
    """The records from the key on wait for a change of the log's state, and are charged afterwards."""
    async with world.process(records_per_s_max=10) as ns:
        buffer = await strict_buffer(ns)
        records = [*[rec(60)] * 3, *[KeyedRecord(60, b"", b"key")] * 5]
        began = trio.current_time()
        await put_many(buffer, *split_columns(records))
        for _ in range(2):
            await put(buffer, LogRecord(payload=b""))
        assert trio.current_time() - began < 0.1
        await buffer.aclose()


async def test_buffer_does_not_charge_a_cancelled_set(
    world: World, autojump_clock: MockClock
) -> None:
    """The writer's queue is full, so it accepts nothing before the call is cancelled."""
    async with world.process(records_per_s_max=10, in_flight_bytes_max=1) as ns:
        buffer = await strict_buffer(ns)
        world.ledgers.held = True
        await put(buffer, LogRecord(payload=b"first"))
        await buffer.flush()
        await trio.sleep(1)
        with trio.move_on_after(0.01) as scope:
            await buffer.submit_set([rec(50)] * 8)
        assert scope.cancelled_caught
        world.ledgers.release()
        await buffer.commit()

        await assert_full_rate(buffer)


async def test_buffer_does_not_charge_repeated_frames_to_the_rate(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(records_per_s_max=10, at_limit="reject") as ns:
        background: Any = Here()
        log = ns.open_log("l")
        buffer = await open_buffer(background, ns, log, log.open_writer(producer="p"))
        first = await buffer.write_frame(0, [rec(40)] * 8)

        assert [await buffer.write_frame(0, [rec(40)] * 8) for _ in range(3)] == [first] * 3
        await buffer.write_frame(8, [rec(41)] * 2)
        with pytest.raises(TooBusy):
            await buffer.write_frame(10, [rec(41)])
        await buffer.aclose()


async def test_buffer_does_not_count_refused_records_above_the_rate(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(records_per_s_max=2, at_limit="count") as ns:
        buffer = await buffered(ns, "l")
        await buffer.write_after(DLSN.NONE, rec(1))
        for _ in range(3):
            with pytest.raises(PositionConflict):
                await buffer.write_after(DLSN.NONE, rec(1))
        assert buffer.writer.over_rate == 0
        for _ in range(3):
            await put(buffer, rec(1))
        assert buffer.writer.over_rate == 2
        await buffer.aclose()


async def test_what_was_refused_holds_nothing_of_the_process(
    world: World, autojump_clock: MockClock
) -> None:
    """By a rate, by the record itself, or cancelled: however large, and whatever becomes of the writer."""
    async with world.process(process_bytes_max=4 * MIB) as ns:
        granted = ns.context.memory_budget
        limits: dict[str, Any] = {"bytes_per_s_max": 100_000}
        plain = await ns.open_log("p", config={**limits, "at_limit": "reject"}).open_writer()
        buffer = await buffered(ns, "b", **limits, at_limit="reject")
        waits = await ns.open_log("w", config=limits).open_writer()
        waiting = await buffered(ns, "v", **limits)
        for number in range(3):
            await plain.write(rec(number, bytes(99_000)))
            with pytest.raises(TooBusy):
                await plain.submit(rec(number, bytes(900_000)))
            with pytest.raises(TooBusy):
                await plain.submit_set([rec(number, bytes(300_000))] * 2)
            bulk = await plain.submit_bulk([rec(number, bytes(900_000))])
            assert isinstance(bulk.known_outcomes()[0], TooBusy)
            await put(buffer, rec(number, bytes(99_000)))
            await buffer.commit()
            with pytest.raises(TooBusy):
                await put(buffer, rec(number, bytes(900_000)))
            with pytest.raises(TooBusy):
                await buffer.submit_set([rec(number, bytes(300_000))] * 2)
            await waits.write(rec(number, bytes(99_000)))
            await put(waiting, rec(number, bytes(99_000)))
            await waiting.commit()
            with trio.move_on_after(0.1):
                await waits.submit(rec(number, bytes(900_000)))
            with trio.move_on_after(0.1):
                await put(waiting, rec(number, bytes(900_000)))
            assert granted.granted_bytes == 0
            await trio.sleep(10)
        await waiting.abort()
        await buffer.aclose()
        assert granted.granted_bytes == 0


async def test_what_no_writer_takes_waits_for_no_room_in_the_buffer(
    world: World, autojump_clock: MockClock
) -> None:
    """Else columns of more than there is wait until nobody holds anything, and all others after them."""
    async with world.process(process_bytes_max=4 * MIB) as ns:
        stuck, other = await buffered(ns, "stuck"), await buffered(ns, "other")
        world.ledgers.dead = {keeper_of(stuck.writer).current_target.ledger.ledger_id}
        with trio.move_on_after(1):
            while True:
                await put(stuck, rec(1, bytes(50_000)))
        with trio.fail_after(5):
            with pytest.raises(RecordTooLarge):
                await other.submit_packed(
                    array("q", [1]).tobytes(), array("i", [0, 8 * MIB]).tobytes(), bytes(8 * MIB)
                )
            with pytest.raises(RecordTooLarge):
                await other.submit_set([rec(1, bytes(MIB // 2))] * 20)
            with pytest.raises(InvalidRequest):
                await other.submit_set([rec(1, bytes(50_000)), rec(2, bytes(50_000))])
            await put(other, rec(1))
            await other.commit()


async def test_who_waits_for_a_rate_goes_on_when_it_is_lifted(
    world: World, autojump_clock: MockClock
) -> None:
    """At 1,000 bytes a second 100,000 are paid for in 99 s; nobody waits for that once there is no rate."""
    async with world.process() as ns:
        for how in ("writer", "buffer"):
            log = ns.open_log(how)
            buffer = await buffered(ns, how) if how == "buffer" else None
            writer = await log.open_writer() if buffer is None else buffer.writer

            async def one(buffer: Any = buffer, writer: LogWriter = writer) -> None:
                record = rec(1, bytes(100_000))
                await (writer.write(record) if buffer is None else put(buffer, record))

            await one()
            await log.set({"bytes_per_s_max": 1000})
            await trio.sleep(10)
            with trio.move_on_after(3):
                while True:
                    await one()
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one)
                await trio.sleep(5)
                await log.set({"bytes_per_s_max": None})
            assert trio.current_time() - began < 20, how
