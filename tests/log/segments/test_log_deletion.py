"""What a deleted log leaves behind, and what readers are told meanwhile."""

from contextlib import suppress
from dataclasses import replace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord
from distributedlog.log.model.deleted_log import (
    LOGS_PER_NAME,
    NAMES_PER_BUCKET,
    DeletedLog,
    bucket_prefix,
    decode_deleted_logs,
    deleted_logs_key,
    encode_deleted_logs,
)
from distributedlog.log.model.deleted_log_lookup import deleted_log_ops, find_deleted_logs
from distributedlog.log.model.log_keys import segment_key, state_key
from distributedlog.log.model.log_state import LogEnd, LogState
from distributedlog.log.read.log_reader import LogReader
from distributedlog.log.segments import log_deletion as deletion
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.metadata.model.transaction import Delete, Put, Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    LogNotFound,
    RecoveryIncomplete,
    UnsupportedFormat,
)
from distributedlog.runtime.protocol.frames import pack
from tests.log.conftest import World
from tests.log.read.test_log_reader import change_state, fill


async def test_a_deletion_leaves_the_exact_end_behind(
    world: World, autojump_clock: MockClock
) -> None:
    """docs/reference/formats.md; also of what a dead writer had acknowledged in the segment in progress."""
    async with world.process("alpha") as ns:
        await fill(ns.open_log("orders"), [[1, 2, 3], [4, 5]])
        log_id = await ns.resolve_name("orders")
        writer = await ns.open_log("orders").open_writer()
        await writer.write(LogRecord(6, b"acknowledged"))
    await trio.sleep(60)  # the lock of the process that was killed
    async with world.process("beta") as ns:
        await ns.delete_log("orders")

        (found,) = await find_deleted_logs(world.metadata, "ns", "orders")

        assert (found.log_id, found.end) == (log_id, LogEnd(DLSN(4, 0, 0), 6, is_exact=True))


async def test_the_end_is_noted_before_the_first_segment_goes(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log that goes in steps: whoever reads it meanwhile can be told where it ended."""
    monkeypatch.setattr(deletion, "SEGMENTS_AT_ONCE", 2)
    async with world.process() as ns:
        await fill(ns.open_log("orders"), [[n] for n in range(5)])
        log_id = await ns.resolve_name("orders")
        prefix = b"log/"
        revision = (await world.metadata.range(prefix, prefix_end(prefix), limit=1)).revision

        await ns.delete_log("orders")

        async with world.metadata.watch(
            prefix, prefix_end(prefix), after_revision=revision
        ) as watch:
            events = (await watch.next_batch()).events
    ends: list[LogEnd | None] = [None]
    gone = 0
    for event in events:
        if event.item.key == state_key(log_id) and event.kind == "put":
            ends.append(LogState.decode(event.item.value).end)
        if event.item.key.startswith(segment_key(log_id, 1)[:-8]) and event.kind == "delete":
            gone += 1
            assert ends[-1] == LogEnd(DLSN(6, 0, 0), 5, is_exact=True)
    assert gone >= 5


async def test_each_log_of_a_name_has_its_own_end(world: World, autojump_clock: MockClock) -> None:
    """Also one that came and went unseen; of more than some, the last ones are remembered."""
    ids = []
    async with world.process() as ns:
        for records in range(LOGS_PER_NAME + 3):
            await fill(ns.open_log("orders"), [list(range(records))])
            ids.append(await ns.resolve_name("orders"))
            await ns.delete_log("orders")

        found = await find_deleted_logs(world.metadata, "ns", "orders")

        assert [one.log_id for one in found] == ids[-LOGS_PER_NAME:]
        assert [one.end.sequence_id for one in found] == list(range(3, LOGS_PER_NAME + 3))
        assert await find_deleted_logs(world.metadata, "ns", "payments") == []


async def test_two_deletions_of_one_name_at_one_moment_are_both_remembered(
    world: World, autojump_clock: MockClock
) -> None:
    """The one is done between the other's look at its name's tombstones and its transaction."""
    async with world.process() as ns:
        await fill(ns.open_log("orders"), [[1, 2]])
        log_id = await ns.resolve_name("orders")
        key = deleted_logs_key("ns", "orders")
        other = DeletedLog(7, LogEnd(DLSN(3, 0, 0), 9, is_exact=True), 0, 5)
        original = world.metadata.transact

        async def overtaken(transaction: Transaction) -> TransactionReply:
            if any(one.key == key for one in transaction.operations):
                world.metadata.transact = original  # type: ignore[method-assign]
                done = await original(await deleted_log_ops(world.metadata, "ns", "orders", other))
                assert done.succeeded
            return await original(transaction)

        world.metadata.transact = overtaken  # type: ignore[method-assign]
        await ns.delete_log("orders")

        found = await find_deleted_logs(world.metadata, "ns", "orders")
    assert [one.log_id for one in found] == [7, log_id]
    assert found[0] == other


async def test_ends_that_were_given_up_and_left_anew_meanwhile_stay(world: World) -> None:
    """A key that is deleted and made again has the version that was read before."""
    key = deleted_logs_key("ns", "orders")
    first, second, own = (
        DeletedLog(n, LogEnd(DLSN(3, 0, 0), 9, is_exact=True), 0, 5) for n in (5, 6, 7)
    )
    assert (
        await world.metadata.transact(await deleted_log_ops(world.metadata, "ns", "orders", first))
    ).succeeded
    prepared = await deleted_log_ops(world.metadata, "ns", "orders", own)
    await world.metadata.transact(Transaction((), (Delete(key),)))
    assert (
        await world.metadata.transact(await deleted_log_ops(world.metadata, "ns", "orders", second))
    ).succeeded

    assert not (await world.metadata.transact(prepared)).succeeded


async def test_an_end_that_cannot_be_made_certain_is_marked_so(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few bookies answer: the log goes all the same, and nobody is told that all was read."""
    async with world.process("alpha") as ns:
        await fill(ns.open_log("orders"), [[1, 2, 3]])
        writer = await ns.open_log("orders").open_writer()
        await writer.write(LogRecord(6, b"acknowledged"))
    await trio.sleep(60)

    async def silent(*_: object, **__: object) -> None:
        raise RecoveryIncomplete("too few bookies answer")

    monkeypatch.setattr(type(world.ledgers), "recover", silent)
    async with world.process("beta") as ns:
        await ns.delete_log("orders")

        (found,) = await find_deleted_logs(world.metadata, "ns", "orders")

        assert found.end == LogEnd(DLSN(2, 0, 0), 3, is_exact=False)


async def test_a_full_bucket_gives_up_what_was_deleted_first(
    world: World, autojump_clock: MockClock
) -> None:
    """The bound: nobody goes round to clear tombstones away, each deletion makes its own room."""
    prefix = bucket_prefix("ns", "orders")
    old = [
        DeletedLog(9000 + n, LogEnd(DLSN(2, 0, 0), 1, True), 0, deleted_ms=n)
        for n in range(NAMES_PER_BUCKET + 2)
    ]
    puts = [
        Put(prefix + b"ns\x00other-%02d" % n, encode_deleted_logs([one]))
        for n, one in enumerate(old)
    ]
    await world.metadata.transact(
        Transaction((), (*puts, Put(prefix + b"ns\x00torn", b"\x00 not a list")))
    )
    async with world.process() as ns:
        await ns.create_log("orders")
        await ns.delete_log("orders")

    kept = (await world.metadata.range(prefix, prefix + b"\xff")).items
    assert len(kept) == NAMES_PER_BUCKET
    names = [item.key[len(prefix) :].split(b"\x00")[1] for item in kept]
    assert sorted(names) == [b"orders", *(b"other-%02d" % n for n in range(3, 10))]
    assert deleted_logs_key("ns", "orders") in {item.key for item in kept}


async def read_on(reader: LogReader) -> None:
    while True:
        await reader.read_next()


async def test_a_reader_of_a_half_deleted_log_is_told_of_the_deletion(
    world: World, autojump_clock: MockClock
) -> None:
    """Segments go front first: a miss there is no truncation."""
    async with world.process(read_ahead_bytes=1) as ns:
        log = ns.open_log("l")
        await fill(log, [[1, 2, 3], [4, 5, 6], [7, 8, 9]])
        end = LogEnd(DLSN(4, 0, 0), 9, is_exact=True)
        async with log.open_reader() as reader:
            await trio.sleep(1)
            await change_state(
                world, await ns.resolve_name("l"), deleting=True, end=end, first_segment=3
            )

            with trio.fail_after(5), pytest.raises(LogNotFound, match=r"read up to .*lost"):
                await read_on(reader)
        with pytest.raises(LogNotFound, match="being deleted"):
            await log.open_reader()


@given(st.binary(max_size=60))
def test_a_damaged_tombstone_is_corrupt_data_and_nothing_else(value: bytes) -> None:
    with suppress(CorruptData, UnsupportedFormat):
        decode_deleted_logs(value)


def test_the_end_is_noted_once_and_survives_the_encoding() -> None:
    state = LogState(7, "orders", 0, first_open_segment=3, last_segment=2, next_sequence_id=50)
    claimed = state.with_deletion_begun("alpha", "w")

    noted = claimed.with_end(exact=True)

    assert LogState.decode(noted.encode()) == noted
    assert LogState.decode(state.encode()).end is None
    half = replace(noted, first_segment=3, first_open_segment=3)
    assert half.with_end(exact=False).end == LogEnd(DLSN(3, 0, 0), 50, is_exact=True)


async def test_a_damaged_tombstone_is_as_good_as_forgotten(
    world: World, autojump_clock: MockClock
) -> None:
    """Nobody's deletion is kept back by it, and nobody is told that all was read; a newer one stays."""
    key = deleted_logs_key("ns", "orders")
    prefix = bucket_prefix("ns", "orders")
    newer = [Put(prefix + b"ns\x00new-%d" % n, pack([2, []])) for n in range(NAMES_PER_BUCKET)]
    await world.metadata.transact(Transaction((), (Put(key, b"\x00torn"), *newer)))

    assert await find_deleted_logs(world.metadata, "ns", "orders") == []
    async with world.process() as ns:
        await ns.create_log("orders")
        await ns.delete_log("orders")
    assert len(await find_deleted_logs(world.metadata, "ns", "orders")) == 1
