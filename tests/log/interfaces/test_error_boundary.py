"""A rule that is broken in one log's task ends that writer or reader, with its error, and no other."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.record import LogRecord
from distributedlog.log.namespace import Namespace
from distributedlog.runtime.interfaces.errors import InternalError, WriteFailed
from tests.log.conftest import World
from tests.log.records import everything, keeper_of
from tests.plant import plant


def rec(txid: int) -> LogRecord:
    return LogRecord(txid, b"x" * 60)


def breaks(*_: object, **__: object) -> Any:
    raise AssertionError("planted")


def fetcher_of(reader: Any) -> Any:
    """What fills its queue."""
    return reader._queue._last_response.__self__


async def breaks_later(*_: object, **__: object) -> Any:
    await trio.lowlevel.checkpoint()
    raise AssertionError("planted")


@asynccontextmanager
async def neighbours(ns: Namespace) -> AsyncIterator[None]:
    """A writer and a tailing reader of another log, and of a third: they go on, before and after."""
    async with (
        ns.open_log("a").open_writer() as first,
        ns.open_log("b").open_writer() as second,
        ns.open_log("a").open_reader() as reader,
    ):
        await first.write(rec(1))
        await second.write(rec(1))
        yield
        await trio.sleep(20)
        await first.write(rec(2))
        await second.write(rec(2))
        assert [r.txid for r in await reader.read_bulk(2, wait_s=5)] == [1, 2]


def logged_once(caplog: pytest.LogCaptureFixture) -> None:
    broken = [one for one in caplog.records if one.exc_info and "planted" in str(one.exc_info[1])]
    assert len(broken) == 1
    assert broken[0].levelno == logging.ERROR


def roll_breaks(writer: Any) -> None:
    plant(keeper_of(writer), "_run_step", breaks_later)
    keeper_of(writer).wake()


def replacing_breaks(writer: Any) -> None:
    plant(keeper_of(writer).current_target, "segment_end", breaks)
    keeper_of(writer).current_target.ledger.fail(WriteFailed("a bookie went"))  # type: ignore[attr-defined]


WRITER_FAULTS: dict[str, Callable[[Any], None]] = {
    "the sending task": lambda writer: setattr(writer.send_queue._scheduled_send, "call", breaks),
    "the rolling task": roll_breaks,
    "an acknowledgement": lambda writer: plant(keeper_of(writer).current_target, "confirm", breaks),
    "the replacing of a segment": replacing_breaks,
}


@pytest.mark.parametrize("where", WRITER_FAULTS)
async def test_a_writer_that_breaks_ends_alone(
    world: World, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """Its open writes are unknown, nothing of it is acknowledged any more, and its log is free."""
    async with world.process() as ns, neighbours(ns):
        log = ns.open_log("broken")
        writer = await log.open_writer()
        acked = [(await writer.write(rec(txid)), txid)[1] for txid in range(3)]
        WRITER_FAULTS[where](writer)
        pending = await writer.submit(rec(3))
        writer.send_queue.wake()

        with pytest.raises(InternalError, match=r'log "broken".*planted') as caught:
            await pending
        assert not caught.value.definite
        for call in (lambda: writer.write(rec(4)), writer.commit, writer.aclose):
            with pytest.raises(InternalError):
                await call()
        logged_once(caplog)
        async with log.open_writer(wait_s=1) as second:
            await second.write(rec(9))
        found = [record.txid for record in await everything(log)]
        assert found in ([*acked, 9], [*acked, 3, 9])


async def test_a_lock_that_breaks_when_it_is_taken_again_ends_its_writer_alone(
    world: World, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease is shared by all logs of the process; what is found wrong with one lock is one log's."""
    async with world.process() as ns, neighbours(ns):
        writer = await ns.open_log("broken").open_writer()
        writer._log_lock.reacquire = breaks_later  # type: ignore[method-assign]
        await world.metadata.revoke_lease(writer._log_lock.lease)
        await trio.sleep(20)

        with pytest.raises(InternalError, match="planted"):
            await writer.write(rec(1))
        logged_once(caplog)


READER_FAULTS: dict[str, Callable[[Any], None]] = {
    "the fetching task": lambda r: setattr(r._queue, "wait_capacity", breaks_later),
    "the watch of the log's state": lambda r: setattr(
        fetcher_of(r)._state_watch, "_update", breaks
    ),
    "entries as they are written": lambda r: setattr(fetcher_of(r), "_deliver", breaks),
}


@pytest.mark.parametrize("where", READER_FAULTS)
async def test_a_reader_that_breaks_ends_alone(
    world: World, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    async with world.process() as ns, neighbours(ns):
        log = ns.open_log("broken", config={"segment_bytes_max": 100})
        async with log.open_writer() as writer:
            await writer.write(rec(1))
            await writer.commit()
            reader = await log.open_reader()
            READER_FAULTS[where](reader)
            if where != "the fetching task":
                await trio.sleep(1)
            for txid in range(2, 6):
                await writer.write(rec(txid))
                await trio.sleep(0.1)
            await trio.sleep(1)
            reader._queue.entries.clear()  # what came before the break is read before it
            with pytest.raises(InternalError, match=r'a reader of log "broken".*planted'):
                await reader.read_next(wait_s=5)
            logged_once(caplog)
            await reader.aclose()
            async with log.open_reader() as second:
                assert len(await second.read_bulk(5, wait_s=5)) == 5


async def test_what_breaks_as_entries_come_in_is_not_raised_into_the_connection(
    world: World, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """They come in a call of the link, which the process's other logs share."""
    async with world.process() as ns:
        log = ns.open_log("broken")
        async with log.open_writer() as writer, log.open_reader() as reader:
            await writer.write(rec(1))
            await writer.commit()
            fetcher = fetcher_of(reader)
            segment = await fetcher._state_watch.segment(1)
            came = await (await world.ledgers.open(segment.ledger_id)).read(0, 0, bytes_max=1)
            fetcher._deliver = breaks

            assert fetcher._deliver_tail(segment, came) == 0

            assert isinstance(fetcher.queue.error, InternalError)
            logged_once(caplog)


async def test_a_watch_and_a_reader_of_ranges_that_break_end_alone(
    world: World, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.process() as ns, neighbours(ns):
        log = ns.open_log("broken")
        async with log.open_writer() as writer:
            await writer.write(rec(1))
        ranges = [one.range() for one in (await log.snapshot()).segments]
        reader = await log.open_ranges(ranges)
        reader._fetch_from = breaks_later  # type: ignore[method-assign]
        with pytest.raises(InternalError, match="planted"):
            await reader.read_columns()
        logged_once(caplog)

        segments = await log.watch_segments()
        segments._state_watch._update = breaks  # type: ignore[method-assign]
        await log.truncate(txid=2)
        with pytest.raises(InternalError, match="planted"):
            await segments.next()

        watch = await ns.watch_logs()
        watch._changes_of = breaks  # type: ignore[method-assign]
        await ns.create_log("new")
        with pytest.raises(InternalError, match="planted"):
            await watch.next()


async def test_an_abort_in_the_turn_in_which_a_recovery_comes_back(
    world: World, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The step that waited goes on before it is cancelled: it sees that the writer has ended."""
    async with world.process() as ns, neighbours(ns):
        log = ns.open_log("l")
        writer = await log.open_writer()
        world.ledgers.held = True
        pending = await writer.submit(rec(1))
        world.ledgers.keep_in_flight = 1
        original = world.ledgers.recover

        async def recover_and_abort(ledger_id: int) -> Any:
            closed = await original(ledger_id)
            writer.send_queue.fail(WriteFailed("aborted in this very turn"))
            return closed

        world.ledgers.recover = recover_and_abort  # type: ignore[method-assign]
        await trio.sleep(0.1)
        keeper_of(writer).current_target.ledger.fail(WriteFailed("a bookie went"))  # type: ignore[attr-defined]
        with pytest.raises(WriteFailed):
            await pending
        await trio.sleep(1)
        world.ledgers.recover = original  # type: ignore[method-assign]
        world.ledgers.release()
        assert not [one for one in caplog.records if one.exc_info]
        await writer.abort()
        async with log.open_writer(wait_s=1) as second:
            await second.write(rec(2))


async def test_work_that_logs_share_is_tried_again(
    world: World, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken rule in the session that renews the lease of all locks of a process: no writer ends by it."""
    async with world.process() as ns, ns.open_log("l").open_writer() as writer:
        session = ns.context.lease_sessions._sessions[0]
        whole, session.replace_lease = session.replace_lease, breaks_later  # type: ignore[method-assign]
        lease = session.lease
        await world.metadata.revoke_lease(lease)
        await trio.sleep(60)
        await writer.write(rec(1))
        logged_once(caplog)
        assert session.lease == lease

        session.replace_lease = whole  # type: ignore[method-assign]
        await trio.sleep(120)
        assert session.lease != lease
        await writer.write(rec(2))
