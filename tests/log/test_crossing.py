"""A reader at the log's end goes over to the next segment by its first entry, before the last one is closed.

What it takes as a segment's end must be its end for everybody, for ever (G1, G5, H11, H173).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.compression import Compression
from distributedlog.log.format.control_record import (
    LastRecord,
    build_control_entry,
    decode_last_record,
)
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.packed_columns import copy_and_check_packed
from distributedlog.log.format.record import (
    LogRecord,
    Origin,
    build_entry,
    decode_columns,
    decode_header,
)
from distributedlog.log.model.segment_record import SegmentBegin, SegmentRecord, segment_begin
from distributedlog.log.read.log_reader import LogReader
from distributedlog.log.read.next_segment import NextSegment
from distributedlog.log.write import open_segment
from distributedlog.log.write.segment_roller import SegmentRoller
from distributedlog.metadata.model.transaction import Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import InternalError, WriteFailed
from distributedlog.runtime.interfaces.host import Buffer
from tests.log.conftest import World
from tests.log.read.test_next_segment import (
    AHEAD_ENTRIES,
    FULL_ENTRIES,
    ONE_EACH,
    PAYLOAD,
    SEGMENT_BYTES,
    send,
)
from tests.log.records import everything, rec

READY = AHEAD_ENTRIES + 1
"""Records, after which the next segment is ready."""
AFTER = 5
"""Records of the next segment."""
ALL = FULL_ENTRIES + AFTER


class Closes:
    """The metadata's transactions, held while it is shut: what is closed then waits."""

    def __init__(self, world: World) -> None:
        self._free = trio.Event()
        self._free.set()
        self._transact = world.metadata.transact
        world.metadata.transact = self.transact  # type: ignore[method-assign]

    async def transact(self, transaction: Transaction) -> TransactionReply:
        await self._free.wait()
        return await self._transact(transaction)

    def shut(self) -> None:
        self._free = trio.Event()

    def open(self) -> None:
        self._free.set()


def told(records: list[LogRecord]) -> list[tuple[object, ...]]:
    """All that a reader is told of them."""
    return [(one.dlsn, one.sequence_id, one.txid, one.time_ms, one.payload) for one in records]


@asynccontextmanager
async def rolled(
    world: World, *, before: int = 0, **reader: Any
) -> AsyncIterator[tuple[Any, Any, LogReader, Closes]]:
    """A log, its writer, a reader, and the closes. The next segment is ready; this one is not yet full."""
    async with world.process(**ONE_EACH) as ns:
        log, closes = ns.open_log("l"), Closes(world)
        async with log.open_writer() as writer:
            await send(writer, range(before))
            async with log.open_reader(**reader) as tail:
                await send(writer, range(before, READY))
                assert len(world.ledgers.writers) == 2
                yield log, writer, tail, closes
            closes.open()


async def test_a_reader_goes_over_before_the_segment_is_closed(
    world: World, autojump_clock: MockClock
) -> None:
    """Nothing that the metadata are asked in a roll is on its way; all is as it is told later."""
    async with rolled(world) as (log, writer, tail, closes):
        closes.shut()
        await send(writer, range(READY, ALL))

        found = await tail.read_bulk(ALL, wait_s=1)

        assert [one.txid for one in found] == list(range(ALL))
        assert [one.sequence_id for one in found] == list(range(ALL))
        assert found[-1].dlsn.segment == 2
        assert list((await log.describe()).state.in_progress) == [1, 2]
        closes.open()
        await trio.sleep(1)
        assert (await log.describe()).state.first_open_segment == 2
        stored = world.ledgers.stores[world.ledgers.writers[1].ledger_id].entries
        said = SegmentBegin(FULL_ENTRIES - 1, FULL_ENTRIES)
        assert [segment_begin(one) for one in stored] == [said] + [None] * (AFTER - 1)
        await send(writer, range(ALL, 3 * FULL_ENTRIES))
        found += await tail.read_bulk(3 * FULL_ENTRIES - ALL, wait_s=1)
        await writer.commit()
        assert found[-1].dlsn.segment == 3
        assert told(found) == told(await everything(log))


async def test_the_next_segment_is_open_before_it_is_written(
    world: World, autojump_clock: MockClock
) -> None:
    opened: list[int] = []
    original = world.ledgers.open

    async def noted(ledger_id: int, *, replica_offset: int = 0) -> Any:
        opened.append(ledger_id)
        return await original(ledger_id, replica_offset=replica_offset)

    world.ledgers.open = noted  # type: ignore[method-assign]
    async with rolled(world) as (_, writer, tail, _):
        second = world.ledgers.writers[1]
        await trio.sleep(0.1)
        assert (second.added, opened.count(second.ledger_id)) == (0, 1)
        await send(writer, range(READY, ALL))
        assert len(await tail.read_bulk(ALL, wait_s=1)) == ALL
        assert opened.count(second.ledger_id) == 1


async def test_readers_have_time_to_open_it_before_it_is_entered(
    world: World, autojump_clock: MockClock
) -> None:
    """Also of a writer with nothing in flight; the metadata take 20 ms a read."""
    opened: list[int] = []
    original, get = world.ledgers.open, world.metadata.get

    async def noted(ledger_id: int, *, replica_offset: int = 0) -> Any:
        found = await original(ledger_id, replica_offset=replica_offset)
        opened.append(world.ledgers.writers[-1].added)
        return found

    async def slow(key: bytes) -> Any:
        await trio.sleep(0.02)
        return await get(key)

    async with world.process(**ONE_EACH | {"segment_bytes_max": 10 * SEGMENT_BYTES}) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer, log.open_reader():
            await send(writer, range(10 * AHEAD_ENTRIES - 5))
            world.ledgers.open = noted  # type: ignore[method-assign]
            world.metadata.get = slow  # type: ignore[method-assign]
            await send(writer, range(10 * AHEAD_ENTRIES - 5, 10 * FULL_ENTRIES))
            assert (writer.segment, opened) == (2, [0])
            world.metadata.get = get  # type: ignore[method-assign]


def hide_lac(world: World) -> None:
    """Bookies tell the reader no more of how far the first segment is confirmed."""

    def learn(lac: int) -> None:
        pass

    store = world.ledgers.stores[world.ledgers.writers[0].ledger_id]
    store.learn_lac = learn  # type: ignore[method-assign]


@pytest.mark.parametrize("at", ["earliest", "latest"])
async def test_what_the_reader_has_not_heard_of_comes_before_the_next_segment(
    world: World, autojump_clock: MockClock, at: Any
) -> None:
    """An entry of the next segment came; of the last entries of this one the reader was told nothing."""
    async with rolled(world, before=AHEAD_ENTRIES - 5, at=at) as (_, writer, tail, closes):
        first = 0 if at == "earliest" else AHEAD_ENTRIES - 5
        closes.shut()
        hide_lac(world)
        await send(writer, range(READY, ALL))
        found = await tail.read_bulk(ALL - first, wait_s=1)
        assert [one.txid for one in found] == list(range(first, ALL))
        assert [one.sequence_id for one in found] == list(range(first, ALL))


async def test_a_reader_that_goes_over_at_the_sight_of_the_next_segment_is_found_out(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: that the next one has an entry is taken for a proof that all of this one was had."""

    def at_sight(self: NextSegment, entry: int, sequence_id: int | None) -> bool:
        return self.previous_end is not None

    monkeypatch.setattr(NextSegment, "proves_read_before", at_sight)
    async with world.process(**ONE_EACH) as ns:
        log, closes = ns.open_log("l"), Closes(world)
        async with log.open_writer() as writer:
            await send(writer, range(AHEAD_ENTRIES - 1))
            world.ledgers.held = True
            await send(writer, range(AHEAD_ENTRIES - 1, AHEAD_ENTRIES + 1))
            async with log.open_reader(dlsn=DLSN(1, AHEAD_ENTRIES - 1, 0)) as tail:
                await trio.sleep(0.1)
                closes.shut()
                hide_lac(world)
                monkeypatch.setattr(
                    "tests.log.model_ledger.ModelReader.record_lac", lambda *_: None
                )
                world.ledgers.release()
                await send(writer, range(AHEAD_ENTRIES + 1, ALL))
                found = await tail.read_bulk(1, wait_s=1)
                assert [one.txid for one in found] != [AHEAD_ENTRIES - 1], "it was not found out"
            closes.open()


async def test_what_proves_that_all_of_a_segment_was_had(world: World) -> None:
    async with world.log("l") as log:
        follower = await log._open_state_watch()
        before = SegmentRecord(1, 7, 1, 0, start_sequence_id=0)
        following = NextSegment(
            before, follower, world.ledgers, wait_s=1.0, on_previous_end_known=lambda _: None
        )
        assert not following.proves_read_before(10**9, None), "nothing is known yet"
        following.previous_end = SegmentBegin(4, 9)
        assert following.proves_read_before(5, 9)
        assert following.proves_read_before(5, None), "it has counted nothing"
        assert not following.proves_read_before(4, None), "entry 4 comes next"
        assert not following.proves_read_before(5, 8)


@pytest.mark.parametrize("kept", [0, 2, 100])
async def test_whoever_takes_over_ends_the_segment_where_readers_took_it_to_end(
    world: World, autojump_clock: MockClock, kept: int
) -> None:
    """The writer dies in the next segment; its close of the one before never came in."""
    closes = Closes(world)
    async with world.process("gamma") as readers:
        await readers.create_log("l")
        async with readers.open_log("l").open_reader() as tail:
            async with world.process("alpha", **ONE_EACH) as a:
                writer = await a.open_log("l").open_writer()
                await send(writer, range(READY))
                closes.shut()
                await send(writer, range(READY, ALL))
                found = await tail.read_bulk(ALL, wait_s=1)
                assert found[-1].dlsn == DLSN(2, AFTER - 1, 0)
                world.ledgers.held = True
                world.ledgers.keep_in_flight = kept
                await send(writer, range(ALL, ALL + 3))
            closes.open()
            world.ledgers.held = False
            async with world.process("beta") as b:
                log = b.open_log("l")
                async with log.open_writer(takeover=True) as second:
                    assert second.segment == 3
                    await second.write(rec(100))
                found += await tail.read_bulk(min(kept, 3) + 1, wait_s=5)
                assert told(found) == told(await everything(log))
                assert (await log.describe()).segments[0].records == FULL_ENTRIES


async def test_a_next_segment_that_stays_empty_proves_nothing(
    world: World, autojump_clock: MockClock
) -> None:
    """H150: its ledger failed, and it is replaced; readers go through the closes."""
    async with rolled(world) as (log, writer, tail, _):
        world.ledgers.writers[1].fail(WriteFailed("no bookie of its ensemble is there"))
        await send(writer, range(READY, ALL))
        found = await tail.read_bulk(ALL, wait_s=5)
        await writer.commit()
        assert {one.dlsn.segment for one in found} == {1, 3}
        assert told(found) == told(await everything(log))


async def test_the_segments_of_an_older_program_are_left_when_they_are_closed(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SegmentBegin, "add_to_entry", lambda _, buffers, length: (buffers, length))
    async with rolled(world) as (_, writer, tail, closes):
        closes.shut()
        await send(writer, range(READY, ALL))
        found = await tail.read_bulk(ALL, wait_s=5)
        assert [one.txid for one in found] == list(range(FULL_ENTRIES))
        closes.open()
        found += await tail.read_bulk(AFTER, wait_s=5)
        assert [one.sequence_id for one in found] == list(range(ALL))


async def test_an_end_that_the_reader_counted_otherwise_is_not_believed(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the writer says less than it wrote. Then only the close counts."""

    def short(last_entry: int, sequence_id: int) -> SegmentBegin:
        return SegmentBegin(last_entry - 1, sequence_id - 1)

    monkeypatch.setattr(open_segment, "SegmentBegin", short)
    async with rolled(world) as (_, writer, tail, closes):
        closes.shut()
        await send(writer, range(READY, ALL))
        assert len(await tail.read_bulk(ALL, wait_s=5)) == FULL_ENTRIES
        closes.open()
        found = await tail.read_bulk(AFTER, wait_s=5)
        assert [one.sequence_id for one in found] == list(range(FULL_ENTRIES, ALL))


async def test_a_writer_that_goes_over_too_early_ends(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: H11 is broken. It must not tell readers where the segment ends, for that is not known."""
    look = SegmentRoller.prepare_send
    monkeypatch.setattr(
        SegmentRoller, "prepare_send", lambda self, *, drained: look(self, drained=True)
    )
    async with world.process(**ONE_EACH) as ns:
        log = ns.open_log("l")
        writer = await log.open_writer()
        await send(writer, range(AHEAD_ENTRIES - 1))
        world.ledgers.held = True
        with pytest.raises(InternalError):
            await send(writer, range(AHEAD_ENTRIES - 1, ALL + 10))
        assert world.ledgers.writers[1].added == 0
        world.ledgers.release()


async def test_an_entry_without_records_says_it_as_well(
    world: World, autojump_clock: MockClock
) -> None:
    """A keep-alive is the first in the next segment; the record after it comes without the close."""
    async with world.process(**ONE_EACH, keep_alive_s=1.0) as ns:
        log, closes = ns.open_log("l"), Closes(world)
        async with log.open_writer() as writer, log.open_reader() as tail:
            await send(writer, range(READY))
            closes.shut()
            await trio.sleep(5)
            assert (writer.segment, world.ledgers.writers[1].added > 0) == (2, True)
            await writer.write(rec(READY, PAYLOAD))
            found = await tail.read_bulk(READY + 1, wait_s=1)
            assert [one.sequence_id for one in found] == list(range(READY + 1))
            assert found[-1].dlsn.entry > 0
            closes.open()


async def test_readers_that_end_between_two_segments_leave_nothing_open(
    world: World, autojump_clock: MockClock
) -> None:
    readers: list[Any] = []
    original = world.ledgers.open

    async def noted(ledger_id: int, *, replica_offset: int = 0) -> Any:
        readers.append(await original(ledger_id, replica_offset=replica_offset))
        return readers[-1]

    world.ledgers.open = noted  # type: ignore[method-assign]
    for ready in (False, True):
        world.ledgers.writers.clear()
        async with world.process(**ONE_EACH) as ns:
            log, closes = ns.open_log(f"l{ready}"), Closes(world)
            async with log.open_writer() as writer:
                async with log.open_reader() as tail:
                    await send(writer, range(READY))
                    closes.shut()
                    if ready:
                        await send(writer, range(READY, ALL))
                        await trio.sleep(0.1)
                    await tail.read_next()
                await trio.sleep(0.1)
                assert readers
                assert all(one.over for one in readers)
                closes.open()


# --- the section ----------------------------------------------------------------------------------


def lone() -> tuple[list[Buffer], int]:
    return build_entry([7], [b"payload"], records_before=0, written_ms=9)


def several() -> tuple[list[Buffer], int]:
    return build_entry(
        [7, 7], [b"a", b"b"], records_before=0, written_ms=9, record_flags=b"\x01\x00"
    )


def packed() -> tuple[list[Buffer], int]:
    txids, offsets = b"".join(n.to_bytes(8, "little") for n in (7, 8)), bytes(8) + b"\x02\0\0\0"
    return copy_and_check_packed(txids, offsets, b"ab").build_entry(records_before=0, written_ms=9)


def control() -> tuple[list[Buffer], int]:
    return build_control_entry(LastRecord(3, 0, 5), 7, records_before=2, written_ms=9)


@pytest.mark.parametrize("build_one", [lone, several, packed, control])
def test_any_first_entry_says_where_the_segment_before_ended(build_one: Any) -> None:
    begin = SegmentBegin(-1, 2**40)
    plain = b"".join(build_one()[0])

    buffers, length = begin.add_to_entry(*build_one())

    entry = b"".join(buffers)
    assert len(entry) == length == len(plain) + 24
    assert (segment_begin(entry), segment_begin(plain)) == (begin, None)
    header = decode_header(entry)
    assert decode_columns(entry, header, Origin(2, 0, 0)).tuples() == (
        decode_columns(plain, decode_header(plain), Origin(2, 0, 0)).tuples()
    )
    if header.is_control:
        assert decode_last_record(4, entry, header) == LastRecord(3, 0, 5)


@pytest.mark.extra
@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_it_can_be_read_of_a_compressed_entry(name: str) -> None:
    begin = SegmentBegin(12, 34)
    buffers, length = begin.add_to_entry(
        *build_entry([7], [bytes(10_000)], records_before=0, written_ms=9)
    )

    smaller, less = Compression("l", name).compress(buffers, length)

    entry = b"".join(smaller)
    assert less == len(entry) < length // 2
    assert segment_begin(entry) == begin
    assert decode_columns(entry, decode_header(entry), Origin(2, 0, 0)).tuples() == [
        (7, bytes(10_000))
    ]
