"""A record that is written only directly after another one (G10; H64, H75)."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.log_keys import state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.write.log_writer import LogWriter
from distributedlog.log.write.send_queue import SendQueue
from distributedlog.log.write.sequenced_batch import SequencedBatch
from distributedlog.log.write.sequenced_writer import SequencedWriter
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.interfaces.errors import (
    InvalidRequest,
    PositionConflict,
    ProducerForgotten,
    RecordTooLarge,
    WriteFailed,
    WriterFenced,
)
from tests.log.conftest import World
from tests.log.records import everything, rec


async def test_counters_by_compare_and_append_lose_no_increment(
    world: World, autojump_clock: MockClock
) -> None:
    """H75: twenty tasks, others that write plainly, ledgers that fail: what is won is read, and one more."""
    async with world.process(segment_bytes_max=2000) as ns:
        await ns.create_log("l", txids="ms")
        log = ns.open_log("l")
        won: list[tuple[int, DLSN]] = []

        async def count(writer: LogWriter) -> None:
            last, value = DLSN.NONE, 0
            while len(won) < 60:
                try:
                    last = await writer.write(b"%d" % (value + 1), expect=last)
                    value += 1
                    won.append((value, last))
                    await trio.sleep(0.003)
                except PositionConflict as error:
                    last = DLSN.parse(error.last)
                    value = max(v for v, at in won if at <= last)

        async with log.open_writer() as writer:
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(count, writer)
                for _ in range(3):
                    await trio.sleep(0.02)
                    world.ledgers.writers[-1].fail(WriteFailed("no acks"))
            assert writer.segment > 3
        assert sorted(value for value, _ in won) == list(range(1, len(won) + 1)), "none is lost"
        found = await everything(log)
        assert [int(one.payload) for one in found] == list(range(1, len(won) + 1))
        assert [one.dlsn for one in found] == [at for _, at in sorted(won)]


async def nothing_readable(*_: object) -> None:
    await trio.lowlevel.checkpoint()


async def test_where_the_last_record_is(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over rolls, closes, links, truncations, purges, control entries, and logs of the first format."""
    async with world.process(keep_alive_s=1.0) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            for wrong in (DLSN.INITIAL, DLSN(1, 5, 0)):
                with pytest.raises(PositionConflict) as conflict:
                    await writer.write(rec(1), expect=wrong)
                assert conflict.value.last == "0.0.0"
            last = await writer.write(rec(1), expect=DLSN.NONE)
            with pytest.raises(PositionConflict, match="nothing was written"):
                await writer.write(rec(1), expect=DLSN.NONE)
            await trio.sleep(5)
            (_, last) = await writer.write_set([rec(2), rec(2)])
            last = await writer.write(rec(2), expect=last)
        async with log.open_writer() as writer:
            await trio.sleep(5)
            last = await writer.write(rec(3), expect=last)
        async with log.open_segment_writer(app="a", version=1) as segment:
            await segment.write(rec(4))
        assert segment.token is not None
        await log.link_segments([segment.token], app="a", version=1)
        linked = await log.last_dlsn()
        assert linked > last
        await log.truncate(DLSN(99, 0, 0))
        async with log.open_writer() as writer:
            with pytest.raises(PositionConflict):
                await writer.write(rec(5), expect=last)
            last = await writer.write(rec(5), expect=linked)
        log_id = (await log.describe()).state.log_id
        found = await world.metadata.get(state_key(log_id))
        assert found is not None
        state = LogState.decode(found.value)
        object.__setattr__(state, "last_dlsn", None)  # as a log of the first format has it
        await world.metadata.transact(Transaction((), (Put(found.key, state.encode()),)))
        async with log.open_writer() as writer:
            last = await writer.write(rec(6), expect=last)
        await world.metadata.transact(Transaction((), (Put(found.key, state.encode()),)))
        await log.truncate(DLSN(99, 0, 0))
        async with log.open_writer() as writer:
            with pytest.raises(InvalidRequest, match="is unknown"):
                await writer.write(rec(7), expect=last)
            last = await writer.write(rec(7))
            with monkeypatch.context() as patch:  # no bookie knows yet that it may be read
                patch.setattr(
                    "distributedlog.log.write.sequenced_writer.last_readable", nothing_readable
                )
                await writer.write(rec(8), expect=last)


async def test_what_is_in_front_is_waited_for(world: World, autojump_clock: MockClock) -> None:
    """H75: the last record has no position yet. Neither yes nor no before it has; what is wrong with the
    record itself is said as ever."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            last = await writer.write(rec(1))
            world.ledgers.held = True
            pending = await writer.submit(rec(2))
            outcomes: list[object] = []

            async def write(expect: DLSN) -> None:
                try:
                    outcomes.append(await writer.write(rec(2, b"y"), expect=expect))
                except PositionConflict as error:
                    outcomes.append(error.last)

            async with trio.open_nursery() as nursery:
                for expect in (last, DLSN(1, 1, 0), DLSN(1, 7, 0)):
                    nursery.start_soon(write, expect)
                await trio.sleep(1)
                assert outcomes == []
                world.ledgers.release()
            assert await pending == DLSN(1, 1, 0)
            assert DLSN(1, 2, 0) in outcomes, "a guess that was right"
            assert sorted(one for one in outcomes if isinstance(one, str))[0] == "1.1.0"
            assert len(await everything(log)) == 3
            with pytest.raises(RecordTooLarge):
                await writer.write(rec(2, bytes(2_000_000)), expect=DLSN(1, 2, 0))
            with pytest.raises(InvalidRequest, match="DLSN"):
                await writer.write(rec(2), expect="1.2.0")  # type: ignore[arg-type]


async def test_who_expects_what_is_far_ahead_is_told_while_others_write(
    world: World, autojump_clock: MockClock
) -> None:
    """What was taken before the call is waited for, and no more: those who go on writing never end."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            enough = False

            def write_on(_: SequencedBatch) -> None:
                if not enough:  # there is always one on its way
                    assert writer.sequenced_writer.append_batch([b""], write_on, txids=[1])

            assert writer.sequenced_writer.append_batch([b""], write_on, txids=[1])
            with trio.move_on_after(1) as late, pytest.raises(PositionConflict):
                await writer.write(rec(1), expect=DLSN(9, 0, 0))
            enough = True
            assert not late.cancelled_caught


async def test_who_was_paused_says_no_to_nobody(world: World, autojump_clock: MockClock) -> None:
    """H64: its last record is not the log's; a conflict that it saw would be a definite no."""
    async with world.process() as ns:
        log = ns.open_log("l")
        zombie = await log.open_writer()
        last = await zombie.write(rec(1))
        world.ledgers.writers.clear()  # it is paused: no bookie's answer reaches it
        async with (
            world.process("other") as other,
            other.open_log("l").open_writer(takeover=True) as writer,
        ):
            await writer.write(rec(2), expect=last)
            assert zombie.end_error is None
            with pytest.raises(WriterFenced):
                await zombie.write(rec(3), expect=DLSN(2, 0, 0))
        assert isinstance(zombie.error, WriterFenced)


async def test_a_producers_copy_is_no_conflict(world: World, autojump_clock: MockClock) -> None:
    """The table is asked first: who did not hear the answer sends again, and has won."""
    async with world.process() as ns:
        await ns.create_log("l", txids="count")
        log = ns.open_log("l")
        async with log.open_writer(producer="p") as writer:
            first = await writer.write(b"a", expect=DLSN.NONE)
            second = await writer.write_frame(1, [b"b", b"c"], expect=first)
            await writer.submit(b"d")
            assert await writer.write_frame(1, [b"b", b"c"], expect=first) == second
            with pytest.raises(PositionConflict):
                await writer.write_frame(4, [b"e"], expect=second[1])
            assert writer.producer is not None
            assert writer.sequenced_writer.next_sequence(writer.producer.number) == 4, (
                "what was refused is not counted"
            )
        async with log.open_writer(producer="p") as writer:
            assert await writer.write_frame(1, [b"b", b"c"], expect=first) == second
            with pytest.raises(ProducerForgotten):
                await writer.sequenced_writer.append_if_last(first, [b"x"], producer=99)
        assert [one.payload for one in await everything(log)] == [b"a", b"b", b"c", b"d"]


async def owned_for_certain(self: Any) -> None:
    await trio.lowlevel.checkpoint()


PLANTED: dict[str, tuple[Any, str, object, Any]] = {
    "no look at who owns the log": (
        SequencedWriter, "check_owner", owned_for_certain, test_who_was_paused_says_no_to_nobody
    ),
    "compared with what is acknowledged, while others are taken": (
        SendQueue, "records_left", 0, test_counters_by_compare_and_append_lose_no_increment
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", list(PLANTED))
def test_planted_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, plant, test = PLANTED[bug]
    monkeypatch.setattr(where, name, plant)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with trio.fail_after(1000):
                await test(World(nursery), trio.lowlevel.current_clock())
            nursery.cancel_scope.cancel()

    with pytest.raises((BaseExceptionGroup, Exception)):
        trio.run(main, clock=MockClock(autojump_threshold=0))
