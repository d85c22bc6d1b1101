"""The next segment: made ready near the end of this one, entered when nothing is in flight (H11, H150)."""

from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.cluster.status.log_overview import describe
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.limits.roll_semaphore import RollPermit, RollSemaphore
from distributedlog.log.log import Log
from distributedlog.log.write.log_writer import LogWriter
from distributedlog.metadata.model.transaction import Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    NotEnoughBookies,
    WriteFailed,
)
from tests.log.conftest import World
from tests.log.records import everything, keeper_of, rec
from tests.metadata.local_metadata import LocalMetadata

SEGMENT_BYTES = 3200
AHEAD_ENTRIES, FULL_ENTRIES = 30, 32
"""Of 100 bytes each: 15/16 and 16/16 of a segment."""
ONE_EACH: dict[str, Any] = {
    "segment_bytes_max": SEGMENT_BYTES,
    "entry_bytes_max": 33,
    "eager_entries": 1000,
}
"""An entry a record."""
PAYLOAD = bytes(20)


async def send(writer: LogWriter, txids: range) -> None:
    """Each as an entry, whether or not it is acknowledged."""
    for txid in txids:
        await writer.submit(rec(txid, PAYLOAD))
        await trio.sleep(0.01)


async def check_log(log: Log, txids: list[int]) -> None:
    """These and no others, in order, with sequence ids from 0; nothing is left in progress."""
    found = await everything(log)
    assert [one.txid for one in found] == txids
    assert [one.sequence_id for one in found] == list(range(len(txids)))
    shown = await log.describe()
    assert all(one.closed for one in shown.segments)
    assert [one.segment for one in shown.segments] == list(range(1, shown.state.last_segment + 1))


async def test_it_is_there_from_15_of_16_on_and_takes_nothing_before_all_is_acknowledged(
    world: World, autojump_clock: MockClock
) -> None:
    """H11: this one is written on up to its size, then nothing is sent until it is drained."""
    async with world.process(**ONE_EACH) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await send(writer, range(AHEAD_ENTRIES - 1))
            assert len(world.ledgers.writers) == 1
            world.ledgers.held = True
            await send(writer, range(AHEAD_ENTRIES - 1, AHEAD_ENTRIES + 1))
            first, second = world.ledgers.writers
            assert (first.added, writer.segment) == (AHEAD_ENTRIES + 1, 1)
            assert list((await log.describe()).state.in_progress) == [1, 2]

            await send(writer, range(AHEAD_ENTRIES + 1, FULL_ENTRIES + 5))

            assert (first.added, second.added, writer.segment) == (FULL_ENTRIES, 0, 1)
            world.ledgers.release()
            await trio.sleep(1)
            assert (first.added, second.added, writer.segment) == (FULL_ENTRIES, 5, 2)
            assert (await log.describe()).state.first_open_segment == 2
        await check_log(log, list(range(FULL_ENTRIES + 5)))


async def test_a_writer_with_nothing_in_flight_goes_over_at_once(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(**ONE_EACH) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await send(writer, range(AHEAD_ENTRIES))
            assert writer.segment == 1
            await writer.write(rec(AHEAD_ENTRIES, PAYLOAD))  # this one's look sees that it is time
            await trio.sleep(0.1)
            assert writer.segment == 2
            assert (await writer.write(rec(AHEAD_ENTRIES + 1, PAYLOAD))) == DLSN(2, 0, 0)
        assert (await log.describe()).segments[0].records == AHEAD_ENTRIES + 1


@pytest.mark.parametrize(
    "error", [NotEnoughBookies("two of three"), InvalidRequest("quorums that cannot be")]
)
async def test_what_keeps_it_from_being_made_stops_no_writes(
    world: World, autojump_clock: MockClock, error: DistributedLogError
) -> None:
    """H150: also what no repetition mends; when it is mended, the log rolls."""
    async with world.process(**ONE_EACH) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            original = world.ledgers.prepare

            async def none(**_: object) -> None:
                await trio.sleep(0.1)
                raise error

            world.ledgers.prepare = none  # type: ignore[method-assign, assignment]
            held = set[bool]()
            for txid in range(100):
                await writer.write(rec(txid, PAYLOAD))
                await trio.sleep(0.5)
                if txid > AHEAD_ENTRIES:
                    held.add(keeper_of(writer)._permit.is_held)
            assert (writer.segment, writer.error) == (1, None)
            assert False in held, "others may roll between two tries"
            world.ledgers.prepare = original  # type: ignore[method-assign]
            await trio.sleep(10)
            assert writer.segment == 2
        await check_log(log, list(range(100)))


async def test_its_ledger_may_fail_while_this_one_is_written(
    world: World, autojump_clock: MockClock
) -> None:
    """H150: its bookies are gone for a minute. This one is written on; then that is closed, and replaced."""
    async with world.process(**ONE_EACH) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await send(writer, range(AHEAD_ENTRIES - 1))
            world.ledgers.held = True
            await send(writer, range(AHEAD_ENTRIES - 1, AHEAD_ENTRIES + 1))
            first, second = world.ledgers.writers
            world.ledgers.away = True
            second.fail(WriteFailed("no bookie of its ensemble is there"))
            world.ledgers.release()
            for txid in range(AHEAD_ENTRIES + 1, AHEAD_ENTRIES + 61):
                assert (await writer.write(rec(txid, PAYLOAD))).segment == 1
                await trio.sleep(1)
            assert first.added == AHEAD_ENTRIES + 61

            world.ledgers.away = False
            await trio.sleep(10)

            assert await writer.write(rec(200, PAYLOAD)) == DLSN(3, 0, 0)
        await check_log(log, [*range(AHEAD_ENTRIES + 61), 200])
        assert [one.records for one in (await log.describe()).segments] == [
            AHEAD_ENTRIES + 61, 0, 1,
        ]  # fmt: skip


async def test_both_ledgers_fail(world: World, autojump_clock: MockClock) -> None:
    """H150: each is recovered, the next one empty; each record is there once."""
    async with world.process(**ONE_EACH) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await send(writer, range(AHEAD_ENTRIES - 1))
            world.ledgers.held = True
            await send(writer, range(AHEAD_ENTRIES - 1, AHEAD_ENTRIES + 3))
            world.ledgers.keep_in_flight = 2
            world.ledgers.held = False
            for one in world.ledgers.writers[::-1]:
                one.fail(WriteFailed("no acks"))
            await writer.write(rec(200, PAYLOAD))
            assert writer.segment == 3
        await check_log(log, [*range(AHEAD_ENTRIES + 3), 200])


async def test_a_writer_that_closes_closes_both(world: World, autojump_clock: MockClock) -> None:
    """H150: also where the next one's ledger has failed."""
    for failing in (False, True):
        async with world.process(**ONE_EACH) as ns:
            log = ns.open_log(f"l{failing}")
            async with log.open_writer() as writer:
                await send(writer, range(AHEAD_ENTRIES - 1))
                world.ledgers.held = True
                await send(writer, range(AHEAD_ENTRIES - 1, AHEAD_ENTRIES + 1))
                assert list((await log.describe()).state.in_progress) == [1, 2]
                if failing:
                    world.ledgers.away = True
                    world.ledgers.writers[-1].fail(WriteFailed("gone"))
                    await trio.sleep(1)
                    world.ledgers.away = False
                world.ledgers.release()
            await check_log(log, list(range(AHEAD_ENTRIES + 1)))


async def test_two_things_that_are_due_at_one_moment_are_both_done(
    world: World, autojump_clock: MockClock
) -> None:
    """The writer goes over, and the next one is full, before its keeper has had a turn: it rolls again."""
    async with world.process(segment_bytes_max=100) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            world.ledgers.held = True
            await send(writer, range(3))
            assert [one.added for one in world.ledgers.writers] == [2, 0]

            world.ledgers.held = False
            world.ledgers.flush()  # it goes over, and what has gathered goes, which fills it
            assert writer.segment == 2
            writer.send_queue.send()  # as of another task that writes
            await trio.sleep(1)

            assert writer.segment == 3
        await check_log(log, list(range(3)))


# --- many logs ------------------------------------------------------------------------------------


def test_permits_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    permits, told = RollSemaphore(1), list[str]()
    a, b, c = (RollPermit(permits, partial(told.append, name)) for name in "abc")

    assert [a.acquire(), b.acquire(), c.acquire(), b.acquire(), a.acquire()] == [
        True,
        False,
        False,
        False,
        True,
    ]
    b.release()  # it waits no more
    b.release()
    assert not b.acquire()
    a.release()
    a.release()
    assert (told, a.is_held, c.is_held, b.is_held) == (["c"], False, True, False)
    assert not a.acquire()
    c.release()
    assert told == ["c", "b"]
    b.release()
    a.release()
    assert c.acquire()


async def test_so_many_logs_roll_at_once_and_the_others_write_on(
    world: World, autojump_clock: MockClock
) -> None:
    """Twenty logs that are full at one moment, and two permits."""
    async with world.process(rolls_at_once=2, **ONE_EACH) as ns:
        logs = [ns.open_log(f"l{n}") for n in range(20)]
        writers = [await log.open_writer() for log in logs]
        rolling: set[int] = set()
        most = 0
        original = world.metadata.transact

        async def transact(transaction: Transaction) -> TransactionReply:
            nonlocal most
            reply = await original(transaction)
            for n, writer in enumerate(writers):
                busy = len(writer._log_lock.writer_state.state.in_progress) > 1
                (rolling.add if busy else rolling.discard)(n)
            most = max(most, len(rolling))
            await trio.sleep(0.2)
            return reply

        world.metadata.transact = transact  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            for writer in writers:
                nursery.start_soon(send, writer, range(FULL_ENTRIES + 20))
        written = [one.added for one in world.ledgers.writers[:20]]
        await trio.sleep(60)
        world.metadata.transact = original  # type: ignore[method-assign]

        assert most == 2
        assert max(written) >= FULL_ENTRIES + 10
        assert {writer.segment for writer in writers} == {2}
        for writer in writers:
            await writer.aclose()
        await check_log(logs[7], list(range(FULL_ENTRIES + 20)))


async def test_logs_on_a_bookie_that_is_to_leave_or_gone_roll_by_turns_and_once(
    world: World, autojump_clock: MockClock
) -> None:
    """H98: twenty at one moment, and two permits; idle and empty ones too, for a drain must end."""
    async with world.process(rolls_at_once=2) as ns:
        logs = [ns.open_log(f"l{n}") for n in range(20)]
        writers = [await log.open_writer() for log in logs]
        await writers[3].write(rec(0))
        rolling: set[int] = set()
        most = 0
        original = world.metadata.transact

        async def transact(transaction: Transaction) -> TransactionReply:
            nonlocal most
            reply = await original(transaction)
            for n, writer in enumerate(writers):
                busy = len(writer._log_lock.writer_state.state.in_progress) > 1
                (rolling.add if busy else rolling.discard)(n)
            most = max(most, len(rolling))
            await trio.sleep(0.2)
            return reply

        world.metadata.transact = transact  # type: ignore[method-assign]
        for one in world.ledgers.writers:
            one.should_close_early = True
        await trio.sleep(60)
        world.metadata.transact = original  # type: ignore[method-assign]

        assert most == 2
        assert {writer.segment for writer in writers} == {2}
        assert {writer._log_lock.writer_state.state.first_open_segment for writer in writers} == {2}
        for writer in writers:
            await writer.aclose()
        await check_log(logs[3], [0])


async def test_an_error_asks_for_no_permit(world: World, autojump_clock: MockClock) -> None:
    async with world.process(rolls_at_once=1, **ONE_EACH) as ns:  # noqa: SIM117
        async with ns.open_log("a").open_writer() as a, ns.open_log("b").open_writer() as b:
            await b.write(rec(0))
            await send(a, range(AHEAD_ENTRIES - 1))
            world.ledgers.held = True
            await send(a, range(AHEAD_ENTRIES - 1, AHEAD_ENTRIES + 1))
            assert keeper_of(a)._permit.is_held
            world.ledgers.writers[1].fail(WriteFailed("a bookie went"))
            await trio.sleep(1)
            assert b.segment == 2
            world.ledgers.release()
            await trio.sleep(1)
            assert not keeper_of(a)._permit.is_held


async def test_a_ledger_that_fails_keeps_no_permit(world: World, autojump_clock: MockClock) -> None:
    """The next segment was ready, and is the one that is written on."""
    async with (
        world.process(rolls_at_once=1, **ONE_EACH) as ns,
        ns.open_log("a").open_writer() as a,
    ):
        await send(a, range(AHEAD_ENTRIES - 1))
        world.ledgers.held = True
        await send(a, range(AHEAD_ENTRIES - 1, AHEAD_ENTRIES + 1))
        assert keeper_of(a)._permit.is_held
        world.ledgers.writers[0].fail(WriteFailed("a bookie went"))
        await trio.sleep(1)
        assert a.segment == 2
        assert not keeper_of(a)._permit.is_held
        world.ledgers.release()


async def test_logs_that_are_opened_together_do_not_roll_together(
    world: World, autojump_clock: MockClock
) -> None:
    """Each segment is given 90 to 100 % of the greatest age, and the next one is there at 15/16 of that."""
    age_s = 1000.0
    async with world.process(segment_age_max_s=age_s) as ns:
        writers = [await ns.open_log(f"l{n}").open_writer() for n in range(20)]
        for writer in writers:
            await writer.write(rec(0))
        began, rolled = trio.current_time(), dict[int, float]()
        while len(rolled) < len(writers):
            await trio.sleep(1)
            for n, writer in enumerate(writers):
                if writer.segment > 1:
                    rolled.setdefault(n, trio.current_time() - began)
        times = sorted(rolled.values())
        assert times[0] >= 0.9 * 15 / 16 * age_s
        assert times[-1] <= 15 / 16 * age_s + 10
        assert times[-1] - times[0] > 40
        assert sum(b - a > 0 for a, b in pairwise(times)) > 5
        for writer in writers:
            await writer.abort()


# --- where a writer is ----------------------------------------------------------------------------


async def test_a_writers_position_is_after_what_is_acknowledged(
    world: World, autojump_clock: MockClock
) -> None:
    """Over rolls, an error, and a writer that has ended: whoever reads on there gets the rest, each once."""
    async with world.process(segment_bytes_max=500) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            begun = writer.position
            assert (begun.dlsn, begun.sequence_id) == (DLSN(1, 0, 0), 0)
            for txid in range(30):
                dlsn = await writer.write(rec(txid, PAYLOAD))
                at = writer.position
                assert (at.dlsn, at.sequence_id) in (
                    (dlsn.next(), txid + 1),
                    (DLSN(dlsn.segment + 1, 0, 0), txid + 1),
                )
                if txid == 17:
                    world.ledgers.writers[-1].fail(WriteFailed("a bookie went"))
            world.ledgers.held = True
            await writer.submit(rec(30))
            await trio.sleep(0.1)
            assert writer.position.sequence_id == 30
            world.ledgers.release()
        assert writer.position.sequence_id == 31
        assert begun < at < writer.position
        async with log.open_reader(position=at, to="end") as reader:
            assert [one.txid async for one in reader] == [30]
        async with log.open_reader(position=begun, to="end") as reader:
            assert [one.txid async for one in reader] == list(range(31))
        async with log.open_writer() as second:
            assert second.position.sequence_id == 31


async def test_what_a_roll_asks_of_the_metadata(world: World, autojump_clock: MockClock) -> None:
    """A ledger registered and its segment read back; the next one's record read, and this one closed. No
    record that is written waits for any of it."""
    calls: dict[str, int] = {"get": 0, "transact": 0}

    def count(name: str) -> None:
        original = getattr(world.metadata, name)

        async def call(*arguments: Any) -> Any:
            calls[name] += 1
            return await original(*arguments)

        setattr(world.metadata, name, call)

    async with world.process(**ONE_EACH) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await send(writer, range(AHEAD_ENTRIES))
            count("get")
            count("transact")
            await send(writer, range(AHEAD_ENTRIES, FULL_ENTRIES))
            await trio.sleep(1)
            assert writer.segment == 2
            assert calls == {"get": 2, "transact": 2}


async def test_what_is_shown_of_a_log_counts_no_record_in_a_segment_made_ready(
    world: World, autojump_clock: MockClock
) -> None:
    """`dlog log show`, from 15/16 of a segment on."""
    async with world.process(**ONE_EACH) as ns, ns.open_log("l").open_writer() as writer:
        await send(writer, range(AHEAD_ENTRIES - 1))
        world.ledgers.held = True
        await send(writer, range(AHEAD_ENTRIES - 1, AHEAD_ENTRIES + 1))

        # The model keeps no records of ledgers as a cluster does.
        there = SimpleNamespace(open_log=ns.open_log, wall_ms=ns.wall_ms, metadata=LocalMetadata())
        shown = await describe(there, "l")

        assert [one["state"] for one in shown["segments"]] == ["in progress"] * 2
        assert [one["records"] for one in shown["segments"]] == [AHEAD_ENTRIES - 1, 0]
        assert shown["segments"][1]["last_dlsn"] is None
        world.ledgers.release()
