"""Exactly-once producers: the table, its bytes, its writer, and who takes over (G9; H61 to H73)."""

import inspect
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.producer_section import decode_section, encode_section
from distributedlog.log.format.producer_table import (
    FRAMES_KEPT,
    PRODUCERS_MAX,
    FrameSpan,
    Producer,
    ProducerOpening,
    ProducerTable,
    StoredFrame,
)
from distributedlog.log.format.record import decode_header
from distributedlog.log.log import Log
from distributedlog.log.model import log_state as state
from distributedlog.log.model.log_keys import purge_key
from distributedlog.log.segments import segment_purge as purge_module
from distributedlog.log.segments.segment_purge import purge
from distributedlog.log.takeover import producer_recovery as producers_replay
from distributedlog.log.takeover import takeover
from distributedlog.log.takeover.producer_recovery import recover_producers
from distributedlog.log.write import producer_state_manager as producing
from distributedlog.log.write.log_writer import LogWriter
from distributedlog.log.write.send_queue import SendQueue
from distributedlog.log.write.sequenced_batch import SequencedBatch
from distributedlog.metadata.model.transaction import Delete, Transaction
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    EntriesLost,
    InvalidRequest,
    ProducerFenced,
    ProducerForgotten,
    TooBusy,
    UnsupportedFormat,
    WriteFailed,
    WriterFenced,
)
from tests.examples import examples
from tests.log.conftest import World
from tests.log.model_ledger import ModelReader
from tests.log.records import everything, rec


async def table_of(log: Log) -> ProducerTable | None:
    """What the log says of producers, read as a takeover reads it; nobody writes."""
    context = log._context
    return await recover_producers(context.metadata, context.ledgers, (await log.describe()).state)


def send(
    writer: LogWriter, number: int, sequence: int, records: int, done: list[SequencedBatch]
) -> SequencedBatch | None:
    payloads = [b"%d.%d" % (number, sequence + k) for k in range(records)]
    return writer.sequenced_writer.append_batch(
        payloads, done.append, producer=number, sequence=sequence
    )


async def test_who_starts_again_learns_how_far_it_came(
    world: World, autojump_clock: MockClock
) -> None:
    """Killed with records on their way, whatever of them is stored: none is there twice, none is missing."""
    for kept in range(4):
        name = f"l{kept}"
        async with world.process() as ns:
            await ns.create_log(name, txids="count")
            writer = await ns.open_log(name).open_writer(producer="source")
            assert writer.producer is not None
            assert (writer.producer.next_sequence, writer.producer.has_stored_records) == (0, False)
            for n in range(10):
                await writer.write(b"%d" % n)
            world.ledgers.held, world.ledgers.keep_in_flight = True, kept
            for n in range(10, 14):
                await writer.submit(b"%d" % n)
                await trio.sleep(0.01)
        world.ledgers.held = False
        async with world.process() as ns:
            log = ns.open_log(name)
            async with log.open_writer(producer="source", takeover=True) as writer:
                assert writer.producer is not None
                assert writer.producer.has_stored_records
                # What was not sent yet is in the entry after those that were.
                assert 10 <= writer.producer.next_sequence <= 14
                for n in range(writer.producer.next_sequence, 20):
                    await writer.submit(b"%d" % n)
            assert [int(one.payload) for one in await everything(log)] == list(range(20))


async def test_a_repeated_frame_is_told_the_first_position(
    world: World, autojump_clock: MockClock
) -> None:
    """Of this writer, of the one before it, over rolls and takeovers; what was let go is told as stored."""
    async with world.process(segment_bytes_max=1500) as ns:
        await ns.create_log("l", txids="ms")
        log = ns.open_log("l")
        placed: dict[int, DLSN] = {}
        number = FRAMES_KEPT + 6
        async with log.open_writer(producer="p") as writer:
            with pytest.raises(InvalidRequest, match="expected 0"):
                await writer.write_frame(5, [b"x"])
            for n in range(number):
                dlsns = await writer.write_frame(2 * n, [b"%d" % n, b"%d'" % n])
                assert dlsns[1] == dlsns[0].next()
                placed[2 * n] = dlsns[0]
                assert await writer.write_frame(2 * n, [b"%d" % n, b"%d'" % n]) == dlsns
                await trio.sleep(0.2)
            assert writer.segment > 1
        for _ in range(2):
            async with log.open_writer(producer="p") as writer:
                for n in range(number):
                    again = await writer.write_frame(2 * n, [b"%d" % n, b"%d'" % n])
                    if n < number - FRAMES_KEPT:
                        assert again == []
                    else:
                        assert again[0] == placed[2 * n]
                with pytest.raises(InvalidRequest, match="other frames"):
                    await writer.write_frame(2 * number - 1, [b"x"])
                with pytest.raises(InvalidRequest, match="other frames"):
                    await writer.write_frame(2 * number - 1, [b"x", b"y"])
                with pytest.raises(InvalidRequest, match="xpected"):
                    await writer.write_frame(2 * number + 1, [b"x"])
                with pytest.raises(InvalidRequest, match="other frames"):  # its end is nowhere
                    await writer.write_frame(0, [b"x"] * (2 * number + 1))
        assert len(await everything(log)) == 2 * number
        async with log.open_writer() as writer:
            with pytest.raises(InvalidRequest, match="producer="):
                await writer.write_frame(0, [b"x"])


async def test_a_repeated_frame_waits_for_its_first_copy(
    world: World, autojump_clock: MockClock
) -> None:
    """H62: while nothing is durable neither is answered; when the writer dies both are unknown."""
    async with world.process() as ns:
        await ns.create_log("l", txids="ms")
        log = ns.open_log("l")
        writer = await log.open_writer()
        one = await writer.sequenced_writer.open_producer("p")
        world.ledgers.held = True
        done: list[SequencedBatch] = []
        for _ in range(3):
            assert send(writer, one.number, 0, 2, done) is not None
            await trio.sleep(0.1)
        assert done == []
        assert [
            frame.is_duplicate
            for frame in writer.sequenced_writer.batches_from(one.number, 0, done.append)
        ] == [True]
        world.ledgers.release()
        await trio.sleep(0.1)
        assert [frame.is_duplicate for frame in done] == [False, True, True, True]
        assert len({frame.first_dlsn for frame in done}) == 1
        assert writer.sequenced_writer.next_sequence(one.number) == 2
        world.ledgers.held = True
        assert send(writer, one.number, 2, 1, done)
        assert send(writer, one.number, 2, 1, done)
        await writer.abort()
        assert [type(frame.error) for frame in done[4:]] == [WriteFailed, WriteFailed]


async def test_one_name_opened_twice_fences_the_first(
    world: World, autojump_clock: MockClock
) -> None:
    """H68. Its count goes on; what it had on its way is counted before."""
    async with world.process() as ns:
        await ns.create_log("l", txids="ms")
        log = ns.open_log("l")
        done: list[SequencedBatch] = []
        async with log.open_writer() as writer:
            with pytest.raises(ProducerForgotten):
                send(writer, 1, 0, 1, done)
            first = await writer.sequenced_writer.open_producer("p")
            assert (first.number, first.next_sequence, first.has_stored_records) == (1, 0, False)
            assert send(writer, first.number, 0, 3, done)
            second = await writer.sequenced_writer.open_producer("p")
            assert (second.next_sequence, second.has_stored_records) == (3, True)
            with pytest.raises(ProducerFenced):
                send(writer, first.number, 3, 1, done)
            with pytest.raises(ProducerFenced):
                writer.sequenced_writer.resume_producer("p", first.number)
            assert writer.sequenced_writer.resume_producer("p", second.number).next_sequence == 3
            with pytest.raises(ProducerForgotten):
                send(writer, 77, 0, 1, done)
            with pytest.raises(ProducerForgotten, match='producer "p" with the number 77 '):
                writer.sequenced_writer.resume_producer("p", 77)
            with pytest.raises(ProducerForgotten, match='producer "q" with the number 3 '):
                writer.sequenced_writer.resume_producer("q", second.number + 1)
            outcomes: list[object] = []

            async def open_one() -> None:
                try:
                    outcomes.append(await writer.sequenced_writer.open_producer("p"))
                except ProducerFenced as error:
                    outcomes.append(error)

            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(open_one)
            opened = [one for one in outcomes if isinstance(one, producing.OpenedProducer)]
            assert [(one.number, one.next_sequence) for one in opened] == [(7, 3)]
            assert send(writer, 7, 3, 1, done)
        async with log.open_writer() as writer:
            assert writer.sequenced_writer.resume_producer("p", 7).next_sequence == 4
            with pytest.raises(ProducerFenced):  # known by its name
                writer.sequenced_writer.resume_producer("p", second.number)
            assert (await writer.sequenced_writer.open_producer("q")).number == 8, (
                "numbers are never used again"
            )
        assert [frame.error for frame in done] == [None, None]


async def test_too_many_producers_and_who_is_forgotten(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H67: late means refused, never stored twice; also after a takeover. Nobody who is busy is forgotten."""
    monkeypatch.setattr(producing, "PRODUCERS_MAX", 2)
    monkeypatch.setattr(producing, "IDLE_MS", 60_000)
    async with world.process() as ns:
        await ns.create_log("l", txids="ms")
        log = ns.open_log("l")
        done: list[SequencedBatch] = []
        async with log.open_writer() as writer:
            a = await writer.sequenced_writer.open_producer("a")
            b = await writer.sequenced_writer.open_producer("b")
            assert send(writer, a.number, 0, 1, done)
            with pytest.raises(TooBusy):
                await writer.sequenced_writer.open_producer("c")
            await trio.sleep(50)
            await writer.write(b"plain")
        await trio.sleep(200)  # nobody writes: that does not count
        async with log.open_writer() as writer:
            with pytest.raises(TooBusy):
                await writer.sequenced_writer.open_producer("c")
            await trio.sleep(11)
            assert send(writer, a.number, 1, 1, done)
            c = await writer.sequenced_writer.open_producer("c")
            with pytest.raises(ProducerForgotten):
                send(writer, b.number, 0, 1, done)
            again = await writer.sequenced_writer.open_producer("c")
            assert not again.has_stored_records, (
                "the first opening's answer may have been lost: seed 66 of proxies"
            )
            assert send(writer, again.number, 0, 1, done)
            assert (await writer.sequenced_writer.open_producer("c")).has_stored_records
            with pytest.raises(TooBusy):
                await writer.sequenced_writer.open_producer("b")
            assert not c.has_stored_records
        table = await table_of(log)
        assert table is not None
        assert sorted(table.by_name) == ["a", "c"]
        async with log.open_writer() as writer:
            with pytest.raises(ProducerForgotten):
                send(writer, b.number, 0, 1, done)


async def test_who_waits_for_an_answer_and_the_writers_own_are_not_forgotten(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H67: both were idle longest, as far as what is stored goes."""
    monkeypatch.setattr(producing, "PRODUCERS_MAX", 3)
    monkeypatch.setattr(producing, "IDLE_MS", 1000)
    async with world.process() as ns:
        await ns.create_log("l", txids="ms")
        async with ns.open_log("l").open_writer(producer="own") as writer:
            busy = await writer.sequenced_writer.open_producer("busy")
            await trio.sleep(1)
            await writer.sequenced_writer.open_producer("idle")
            await trio.sleep(2)
            world.ledgers.held = True
            done: list[SequencedBatch] = []
            assert send(writer, busy.number, 0, 1, done)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.sequenced_writer.open_producer, "new")
                await trio.sleep(0.1)
                assert writer.sequenced_writer.next_sequence(busy.number) == 1
                world.ledgers.release()
            assert len(await writer.write_frame(0, [b"x"])) == 1
            with pytest.raises(TooBusy):
                await writer.sequenced_writer.open_producer("idle")
        assert [frame.error for frame in done] == [None]
        table = await table_of(ns.open_log("l"))
        assert table is not None
        assert sorted(table.by_name) == ["busy", "new", "own"]


async def test_what_is_no_sequence_is_not_told_as_stored(
    world: World, autojump_clock: MockClock
) -> None:
    """One below 0 ends before the oldest frame that is kept, and would be told as stored long ago."""
    async with world.process() as ns:
        await ns.create_log("l", txids="ms")
        async with ns.open_log("l").open_writer(producer="p") as writer:
            for sequence in (-1, -(2**70), 0.0, "0", None):
                wrong: Any = sequence
                with pytest.raises(InvalidRequest, match="from 0 to"):
                    await writer.write_frame(wrong, [b"x"])
                with pytest.raises(InvalidRequest, match="from 0 to"):
                    await writer.write_frame(wrong, [b"x"], expect=DLSN.NONE)
            assert len(await writer.write_frame(0, [b"x"])) == 1


async def test_a_number_is_its_names_alone(world: World, autojump_clock: MockClock) -> None:
    """H67, H68: whoever says another's number has not got what that one stored."""
    async with world.process() as ns:
        await ns.create_log("l", txids="ms")
        async with ns.open_log("l").open_writer() as writer:
            p = await writer.sequenced_writer.open_producer("p")
            await writer.sequenced_writer.open_producer("q")
            for name in ("q", "nobody"):
                with pytest.raises(ProducerForgotten):
                    writer.sequenced_writer.resume_producer(name, p.number)
            assert writer.sequenced_writer.resume_producer("p", p.number).number == p.number
            assert send(writer, p.number, 0, 1, [])


async def test_who_is_told_may_write_where_a_snapshot_is_due(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called while an entry is confirmed: what that one holds is in the table, and is not taken twice."""
    monkeypatch.setattr("distributedlog.log.write.open_segment.SNAPSHOT_SIZE_FACTOR", 0)
    monkeypatch.setattr("distributedlog.log.write.open_segment.SNAPSHOT_BYTES", 0)
    async with world.process(entry_bytes_max=100) as ns:
        await ns.create_log("l", txids="ms")
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            one = await writer.sequenced_writer.open_producer("p")

            def send_more(_: SequencedBatch) -> None:
                while (at := writer.sequenced_writer.next_sequence(one.number)) < 40:
                    payload = b"%080d" % at
                    if not writer.sequenced_writer.append_batch(
                        [payload], send_more, producer=one.number, sequence=at
                    ):
                        return

            assert writer.sequenced_writer.append_batch(
                [b"%080d" % 0], send_more, producer=one.number
            )
            await trio.sleep(1)
            live = writer.send_queue.producers
        assert [int(record.payload) for record in await everything(log)] == list(range(40))
        table = await table_of(log)
        assert table is not None
        assert live is not None
        assert table.rows == live.table.rows


async def test_many_unanswered_frames_wait(world: World, autojump_clock: MockClock) -> None:
    """As many are kept as may be on their way, so that of each its place is known."""
    async with world.process() as ns:
        await ns.create_log("l", txids="ms")
        log = ns.open_log("l")
        done: list[SequencedBatch] = []
        async with log.open_writer() as writer:
            one = await writer.sequenced_writer.open_producer("p")
            world.ledgers.held = True
            for n in range(FRAMES_KEPT):
                assert send(writer, one.number, n, 1, done)
            assert send(writer, one.number, FRAMES_KEPT, 1, done) is None
            with trio.move_on_after(1):
                await writer.sequenced_writer.wait_capacity(1, 10, one.number)
            assert send(writer, one.number, FRAMES_KEPT, 1, done) is None
            world.ledgers.release()
            await writer.sequenced_writer.wait_capacity(1, 10, one.number)
            assert send(writer, one.number, FRAMES_KEPT, 1, done)
        assert len(done) == FRAMES_KEPT + 1


async def test_who_was_paused_says_no_to_nobody(world: World, autojump_clock: MockClock) -> None:
    """H64: before a refusal that rests on not knowing, the metadata are asked, once for all who wait."""
    async with world.process() as ns:
        await ns.create_log("l", txids="ms")
        log = ns.open_log("l")
        zombie = await log.open_writer(producer="p")
        await zombie.sequenced_writer.check_owner()
        world.ledgers.writers.clear()  # it is paused: no bookie's answer reaches it
        async with log.open_writer(takeover=True, producer="p") as writer:
            await writer.write_frame(0, [b"a"])
            with pytest.raises(WriterFenced):
                await zombie.write_frame(1, [b"b"])
            assert isinstance(zombie.error, WriterFenced)
            reads = 0
            get = world.metadata.get

            async def counted(key: bytes) -> object:
                nonlocal reads
                reads += 1
                return await get(key)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(world.metadata, "get", counted)
                async with trio.open_nursery() as nursery:
                    for _ in range(20):
                        nursery.start_soon(writer.sequenced_writer.check_owner)
            assert 1 <= reads <= 2


def test_the_bytes_of_producers() -> None:
    """docs/reference/formats.md. These bytes are on disks: they never change."""
    table = ProducerTable(
        [Producer(1, "abc", 7, 8, deque([StoredFrame(4, 3, 1, 3, 2)]))], next_number=4, clock_ms=9
    )
    spans = [FrameSpan(1, 5, 0, 2)]

    assert (
        encode_section(-1, 9, 4).hex()
        == "0100000000000000" + "ff" * 8 + "09" + "00" * 7 + "04" + "00" * 7
    )
    assert (
        encode_section(3, 9, 4, spans=spans)[32:].hex()
        == "01" + "00" * 7 + "05" + "00" * 11 + "02000000"
    )
    assert encode_section(3, 9, 4, table=table)[:8].hex() == "0100010000000000"
    assert encode_section(3, 9, 4, table=table)[32:].hex() == (
        "0100000000000000"
        + "01"
        + "00" * 7
        + "07"
        + "00" * 7
        + "08"
        + "00" * 7
        + "0300010000000000"
        "6162630000000000"
        + "04"
        + "00" * 7
        + "01"
        + "00" * 7
        + "03"
        + "00" * 7
        + "0200000003000000"
    )
    assert (
        encode_section(3, 9, 4, openings=[ProducerOpening(3, "abc", 2)])[:8].hex()
        == "0100040000000000"
    )
    assert encode_section(3, 9, 4, openings=[ProducerOpening(3, "abc", 2)])[32:].hex() == (
        "0100000000000000"
        + "03"
        + "00" * 7
        + "02"
        + "00" * 7
        + "0300000000000000"
        + "6162630000000000"
    )
    read = decode_section(encode_section(3, 9, 4, table=table)).table
    assert read is not None
    assert read.rows == table.rows


def test_a_snapshot_of_as_many_as_there_may_be_is_one_entry() -> None:
    """Below 1 MiB, whatever their names; more are refused, and so is whatever does not fit together."""
    table = full_table(PRODUCERS_MAX)
    section = encode_section(7, 9, 100_000, table=table)

    assert len(section) < 900_000
    read = decode_section(section).table
    assert read is not None
    assert read.rows == table.rows
    with pytest.raises(CorruptData, match="maximum is 1000"):
        decode_section(encode_section(7, 9, 100_000, table=full_table(PRODUCERS_MAX + 1)))
    with pytest.raises(CorruptData, match="where the next one is"):
        decode_section(encode_section(7, 9, PRODUCERS_MAX, table=table))
    row = Producer(1, "p", 5, 0, deque([StoredFrame(0, 2, 1, 3, 0), StoredFrame(2, 2, 1, 4, 0)]))
    with pytest.raises(CorruptData, match="do not follow"):
        decode_section(encode_section(7, 9, 2, table=ProducerTable([row], next_number=2)))


def full_table(number: int) -> ProducerTable:
    rows = []
    for n in range(1, number + 1):
        kept = deque(StoredFrame(1000 + k, 1, 9, 100 * k + n, n % 50) for k in range(FRAMES_KEPT))
        rows.append(Producer(n, f"{n}".rjust(255, "x"), 1000 + FRAMES_KEPT, 5, kept))
    return ProducerTable(rows, next_number=100_000, clock_ms=9)


async def test_a_log_without_producers_has_the_bytes_of_before(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is written by programs of before; one with producers is not (H71), though they read it."""
    async with world.process() as ns:
        await ns.create_log("plain", txids="ms")
        await ns.create_log("l", txids="ms")
        async with ns.open_log("plain").open_writer() as writer:
            await writer.write(b"x")
        (entry,) = world.ledgers.stores[1].entries
        assert decode_header(entry).section_bytes == 0
        assert (await ns.open_log("plain").describe()).state.writer_format == 2
        async with ns.open_log("l").open_writer(producer="p") as writer:
            await writer.write(b"x")
        monkeypatch.setattr(state, "WRITER_FORMAT", 2)
        async with ns.open_log("plain").open_writer() as writer:
            await writer.write(b"y")
        assert len(await everything(ns.open_log("l"))) == 1
        with pytest.raises(UnsupportedFormat, match="format 3"):
            await ns.open_log("l").open_writer()
        with pytest.raises(UnsupportedFormat, match="format 3"):
            await ns.open_log("l").truncate(DLSN(1, 9, 0))


async def test_what_says_who_the_producers_are_is_not_purged(
    world: World, autojump_clock: MockClock
) -> None:
    """H70 (KAFKA-7190): truncated and purged whole, taken over, retried; and then the old segment goes."""

    async def no_ledger(_: int) -> Transaction:
        return Transaction()

    async with world.process() as ns:
        await ns.create_log("l", txids="ms")
        log = ns.open_log("l")
        for n in range(3):
            async with log.open_writer(producer="p") as writer:
                await writer.write_frame(n, [b"x"])
        log_id = (await log.describe()).state.log_id
        await log.truncate(DLSN(4, 0, 0))
        assert await purge(world.metadata, log_id, 9, no_ledger) == 2
        async with log.open_writer(producer="p") as writer:
            assert await writer.write_frame(1, [b"x"]) == [DLSN(2, 2, 0)]
            await world.metadata.transact(Transaction((), (Delete(purge_key(log_id)),)))
            assert await writer.write_frame(3, [b"y"])
        assert await world.metadata.get(purge_key(log_id)) is not None, "asked for again"
        assert await purge(world.metadata, log_id, 9, no_ledger) == 1
        async with log.open_writer(producer="p") as writer:
            assert writer.producer is not None
            assert writer.producer.next_sequence == 4


async def test_links_and_other_writers_leave_the_table_alone(
    world: World, autojump_clock: MockClock
) -> None:
    """H71, H73: after a plain writer, a link, a seal; and control entries everywhere count as no records."""
    async with world.process(keep_alive_s=1.0) as ns:
        await ns.create_log("l", txids="given")
        log = ns.open_log("l")
        async with log.open_writer(producer="p") as writer:
            assert await writer.write_frame(0, [rec(1, b"a"), rec(2, b"b")])
            await trio.sleep(5)
            await writer.write_set([rec(3), rec(3)])
            await writer.submit_packed(
                array("q", [4, 5]).tobytes(), array("i", [0, 1, 2]).tobytes(), b"cd"
            )
            await trio.sleep(5)
        async with log.open_segment_writer(app="a", version=1) as segment:
            await segment.write(rec(6))
        assert segment.token is not None
        await log.link_segments([segment.token], app="a", version=1)
        async with log.open_writer() as writer:
            await trio.sleep(5)
            await writer.write(rec(7))
        table = await table_of(log)
        assert table is not None
        assert table.by_name["p"].next_sequence == 6
        found = await everything(log)
        assert [one.txid for one in found] == [1, 2, 3, 3, 4, 5, 6, 7]
        assert [one.sequence_id for one in found] == list(range(8))
        assert await log.last_dlsn() == found[-1].dlsn
        assert await log.count() == 8
        await log.seal()
        assert (await table_of(log)) is not None


async def test_entries_that_were_declared_lost_forget_the_producers(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log can be written, and no number is used again."""
    async with world.process() as ns:
        await ns.create_log("l", txids="ms")
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            old = await writer.sequenced_writer.open_producer("p")
            assert send(writer, old.number, 0, 1, [])
        read = ModelReader.read

        async def lost(self: ModelReader, first: int, last: int, *, bytes_max: int) -> Any:
            found = await read(self, first, last, bytes_max=bytes_max)
            if first == 0:
                raise EntriesLost("an operator's word")
            return found

        with monkeypatch.context() as patch:
            patch.setattr(ModelReader, "read", lost)
            async with log.open_writer() as writer:
                with pytest.raises(ProducerForgotten):
                    send(writer, old.number, 1, 1, [])
                new = await writer.sequenced_writer.open_producer("p")
                assert new.number > old.number + 1000
                assert (new.next_sequence, new.has_stored_records) == (0, False)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 2)),
        st.tuples(st.just("send"), st.integers(0, 2), st.integers(-3, 1), st.integers(1, 3)),
        st.tuples(st.just("plain"), st.integers(1, 3)),
        st.tuples(st.just("rest"), st.sampled_from([0.0005, 0.01, 0.3])),
        st.tuples(st.just("fail"), st.integers(0, 3)),
        st.tuples(st.just("kill"), st.integers(0, 5)),
        st.tuples(st.just("snapshots"), st.sampled_from([0, 300, 32 << 20])),
    ),
    max_size=40,
)


class Told:
    """One producer, as its user knows it."""

    def __init__(self) -> None:
        self.number = 0
        self.frames: list[tuple[int, int]] = []  # sequence, records: in order, without gap
        self.next_sequence = 0


@settings(max_examples=examples(40), deadline=None)
@given(steps)
def test_whatever_fails_each_frame_is_there_once(done_steps: Sequence[tuple[object, ...]]) -> None:
    """G9, judged from the log alone. Three producers send, and send again what may not have arrived, over
    openings, rolls, ledgers that fail, snapshots anywhere, kills; and the table is what the log says."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            world = World(nursery)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("distributedlog.log.write.open_segment.SNAPSHOT_SIZE_FACTOR", 0)
                await play(world, done_steps, patch)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def play(
    world: World, done_steps: Sequence[tuple[object, ...]], patch: pytest.MonkeyPatch
) -> None:
    told = [Told() for _ in range(3)]
    acked: dict[bytes, DLSN] = {}
    outcomes: list[SequencedBatch] = []

    def on_done(frame: SequencedBatch) -> None:
        outcomes.append(frame)
        if frame.error is None and frame.first_dlsn is not None:
            for k in range(frame.records):
                payload = b"%d.%d" % (owners[frame.producer], frame.sequence + k)
                place = frame.first_dlsn._replace(slot=frame.first_dlsn.slot + k)
                assert acked.setdefault(payload, place) == place

    owners: dict[int, int] = {}
    number_of_plain = taken = 0
    left = list(done_steps)
    while True:
        async with world.process(entry_bytes_max=400, segment_bytes_max=1500) as ns:
            log = ns.open_log("l")
            if not await ns.log_exists("l"):
                await ns.create_log("l", txids="count")
            writer = await log.open_writer(takeover=True)
            killed = False
            for who in told:  # after a takeover each goes on from what is stored
                if who.number:
                    who.next_sequence = writer.sequenced_writer.next_sequence(who.number)
                    assert who.next_sequence <= sum(records for _, records in who.frames)
            while left and not killed:
                step = left.pop(0)
                match step:
                    case ("open", int(at)):
                        opened = await writer.sequenced_writer.open_producer(f"p{at}")
                        told[at].number = opened.number
                        owners[opened.number] = at
                    case ("send", int(at), int(back), int(records)):
                        who = told[at]
                        if not who.number:
                            continue
                        now = writer.sequenced_writer.next_sequence(who.number)
                        sent = [one for one in who.frames if one[0] + one[1] <= now]
                        unsent = who.frames[len(sent) :]
                        if back < 0 and len(sent) >= -back:  # again
                            sequence, records = sent[back]
                        elif unsent:  # what did not arrive, with the same borders
                            sequence, records = unsent[0]
                        else:
                            sequence = now
                            who.frames.append((sequence, records))
                        payloads = [b"%d.%d" % (at, sequence + k) for k in range(records)]
                        if (
                            writer.sequenced_writer.append_batch(
                                payloads, on_done, producer=who.number, sequence=sequence
                            )
                            is not None
                        ):
                            taken += 1
                    case ("plain", int(records)):
                        for _ in range(records):
                            await writer.submit(b"plain %d" % number_of_plain)
                            number_of_plain += 1
                    case ("rest", float(seconds)):
                        await trio.sleep(seconds)
                    case ("fail", int(kept)):
                        world.ledgers.keep_in_flight = kept
                        world.ledgers.writers[-1].fail(WriteFailed("no acks"))
                    case ("kill", int(kept)):
                        world.ledgers.keep_in_flight = kept
                        killed = True
                    case ("snapshots", int(size)):
                        patch.setattr("distributedlog.log.write.open_segment.SNAPSHOT_BYTES", size)
            if not killed:
                await writer.commit()
                assert len(outcomes) <= taken
                assert writer.error is None
                live = writer.send_queue.producers
                await writer.aclose()
                break
    async with world.process() as ns:
        log = ns.open_log("l")
        table = await table_of(log)
        found = await everything(log)
        assert (table is None) == (live is None or not owners)
        if table is not None and live is not None:
            assert table.rows == live.table.rows, "a takeover finds what the writer knew"
        ours = [one for one in found if not one.payload.startswith(b"plain")]
        for at in range(3):
            mine = [one for one in ours if one.payload.startswith(b"%d." % at)]
            numbers = [int(one.payload.split(b".")[1]) for one in mine]
            assert numbers == list(range(len(numbers))), "once, in order, without gap"
            if table is not None and f"p{at}" in table.by_name:
                assert table.by_name[f"p{at}"].next_sequence == len(numbers)
        places = {one.payload: one.dlsn for one in ours}
        for payload, place in acked.items():
            assert places[payload] == place


@pytest.mark.parametrize("kept", range(6))
async def test_what_was_cut_off_and_sent_again_is_not_counted_as_stored(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """A ledger fails with frames and snapshots on their way; what is found of it is stored, the rest goes to
    the next one, whose snapshot does not have it; its writer is killed there; each frame is sent again."""
    monkeypatch.setattr("distributedlog.log.write.open_segment.SNAPSHOT_SIZE_FACTOR", 0)
    monkeypatch.setattr("distributedlog.log.write.open_segment.SNAPSHOT_BYTES", 0)
    frames = range(3)
    for survive in range(7):
        name = f"l{survive}"
        async with world.process() as ns:
            await ns.create_log(name, txids="ms")
            writer = await ns.open_log(name).open_writer()
            one = await writer.sequenced_writer.open_producer("p")
            await trio.sleep(0.1)
            world.ledgers.held = True
            done: list[SequencedBatch] = []
            for n in frames:
                assert send(writer, one.number, n, 1, done)
                writer.send_queue.close_batch()  # a snapshot before each
            world.ledgers.keep_in_flight = kept
            world.ledgers.writers[-1].fail(WriteFailed("no acks"))
            await trio.sleep(1)
            assert len(done) == min(3, kept // 2)
            world.ledgers.keep_in_flight = survive
        done = [frame for frame in done if frame.error is None]
        world.ledgers.held = False
        async with world.process() as ns:
            log = ns.open_log(name)
            async with log.open_writer(takeover=True) as writer:
                assert writer.sequenced_writer.resume_producer(
                    "p", one.number
                ).next_sequence >= len(done)
                for n in frames:
                    assert send(writer, one.number, n, 1, done)
                await writer.commit()
                live = writer.send_queue.producers
            places: dict[int, set[DLSN | None]] = {}
            for frame in done:
                places.setdefault(frame.sequence, set()).add(frame.first_dlsn)
            assert [len(found) for found in places.values()] == [1, 1, 1], places
            found = await everything(log)
            assert [{one.dlsn} for one in found] == list(places.values())
            table = await table_of(log)
            assert table is not None
            assert live is not None
            assert table.rows == live.table.rows


async def test_killed_at_each_moment_of_openings_rolls_and_takeovers(
    world: World, autojump_clock: MockClock
) -> None:
    """H61: what is then read of the log is what is in it; who goes on there leaves nothing out, or twice."""
    for moment in range(30):
        name = f"l{moment}"
        sent = 0
        for life in range(3):
            async with world.process(segment_bytes_max=700) as ns:
                if not life:
                    await ns.create_log(name, txids="ms")
                log = ns.open_log(name)
                world.ledgers.keep_in_flight = moment % 4
                with trio.move_on_after(moment * 0.004 + 0.0001 if life < 2 else 60):
                    async with log.open_writer(takeover=True, producer="p") as writer:
                        assert writer.producer is not None
                        assert writer.producer.next_sequence <= sent
                        for n in range(writer.producer.next_sequence, 12):
                            sent = max(sent, n + 1)
                            await writer.submit(b"%d" % n)
                            await trio.sleep(0.008)
        async with world.process() as ns:
            found = await everything(ns.open_log(name))
            assert [int(one.payload) for one in found] == list(range(12)), moment


async def replay_nothing(metadata: Any, ledgers: Any, state: Any) -> ProducerTable | None:
    table = await recover_producers(metadata, ledgers, state)
    return None if table is None else ProducerTable(next_number=table.next_number)


async def replay_without_the_last(reader: Any, record: Any) -> ProducerTable:
    last = record.last_entry
    (found,) = await reader.read(last, last, bytes_max=1)
    at = producers_replay._require_section(record, last, found.payload).snapshot_entry
    return await _replayed(reader, replace(record, last_entry=max(at, last - 1)))


def notes_without_openings(record: Any, entry: int, payload: Any) -> Any:
    return replace(_notes(record, entry, payload), openings=())


def answer_copies_at_once(self: SequencedBatch, first: SequencedBatch) -> None:
    self.finish_stored(DLSN(1, 1, 0))


def take_unknown_as_new(self: Any, number: int) -> Any:
    if number not in self._active and number not in self._fenced:
        self.table.rows[number] = Producer(number, str(number))
        self._active[number] = producing._ActiveProducer(0)
    return _of(self, number)


def take_back_everything(self: SendQueue) -> None:
    while self._in_flight:
        batch = self._in_flight.pop()
        batch.entry = -1
        self._ready.appendleft(batch)


def snapshot_what_was_taken(self: producing.ProducerStateManager, in_flight: Any) -> Any:
    found = _snapshot(self, in_flight)
    assert found.producer_section is not None
    assert found.producer_section.table is not None
    for number, live in self._active.items():
        found.producer_section.table.rows[number].next_sequence = live.next_sequence
        found.producer_section.table.rows[number].stored_frames.clear()
    return found


def fence_nobody(self: Any, number: int) -> None:
    pass


async def purge_up_to_the_point(metadata: Any, state: Any) -> int:
    return await _last_below(metadata, replace(state, producers=0))


_replayed, _notes = producers_replay._replay_segment, producers_replay._require_section
_of, _snapshot = (
    producing.ProducerStateManager._require_active,
    producing.ProducerStateManager.snapshot,
)
_last_below = purge_module.last_purgeable_segment
PLANTED: dict[str, tuple[object, str, object, Any]] = {
    "the table is empty after a takeover": (
        takeover, "recover_producers", replay_nothing, test_who_starts_again_learns_how_far_it_came
    ),
    "a replay ends one entry early": (
        producers_replay, "_replay_segment", replay_without_the_last,
        test_who_starts_again_learns_how_far_it_came,
    ),
    "openings are not replayed": (
        producers_replay, "_require_section", notes_without_openings,
        test_who_starts_again_learns_how_far_it_came,
    ),
    "a copy is answered before anything is durable": (
        SequencedBatch, "share_outcome", answer_copies_at_once, test_a_repeated_frame_waits_for_its_first_copy
    ),
    "an unknown number is taken as new": (
        producing.ProducerStateManager, "_require_active", take_unknown_as_new,
        test_one_name_opened_twice_fences_the_first,
    ),
    "snapshots are sent again": (
        SendQueue, "return_to_queue", take_back_everything,
        test_what_was_cut_off_and_sent_again_is_not_counted_as_stored,
    ),
    "a snapshot has what was taken": (
        producing.ProducerStateManager, "snapshot", snapshot_what_was_taken,
        test_what_was_cut_off_and_sent_again_is_not_counted_as_stored,
    ),
    "nobody is fenced": (
        producing.ProducerStateManager, "_fence", fence_nobody, test_one_name_opened_twice_fences_the_first
    ),
    "purge does not stop": (
        purge_module, "last_purgeable_segment", purge_up_to_the_point,
        test_what_says_who_the_producers_are_is_not_purged,
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", list(PLANTED))
def test_planted_bugs_are_found(bug: str) -> None:
    """Each in the test that is there for it."""
    where, name, plant, test = PLANTED[bug]

    async def main(patch: pytest.MonkeyPatch) -> None:
        async with trio.open_nursery() as nursery:
            more: dict[str, Any] = {}
            if "kept" in inspect.signature(test).parameters:
                more = {"monkeypatch": patch, "kept": 0}
            with trio.fail_after(1000):
                await test(World(nursery), trio.lowlevel.current_clock(), **more)
            nursery.cancel_scope.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, plant)
        with pytest.raises((BaseExceptionGroup, Exception)):
            trio.run(main, patch, clock=MockClock(autojump_threshold=0))
