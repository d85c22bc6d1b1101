"""Segments that are written outside the log and linked: once or not at all (H13, H14)."""

import json
import pickle
import random
import struct
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.packed_columns import check_packed
from distributedlog.log.format.record import (
    LogRecord,
    Origin,
    build_entry,
    decode_columns,
    decode_header,
)
from distributedlog.log.log import Log
from distributedlog.log.model.log_keys import app_version_key, staged_ledgers_prefix
from distributedlog.log.model.segment_ranges import SegmentRange, SegmentToken
from distributedlog.log.namespace import Namespace
from distributedlog.log.segments.app_versions import AppVersion, LinkContent
from distributedlog.metadata.model.interface import Scan
from distributedlog.metadata.model.transaction import Delete, Put, Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    EndOfStream,
    InvalidRequest,
    LinkMismatch,
    LinkOutOfOrder,
    LogNotFound,
    LogRecreated,
    NoSuchLedger,
    OutcomeUnknown,
    OwnershipAcquireFailed,
    RecordTooLarge,
    TooBusy,
    TransactionIdOutOfOrder,
    WriterFenced,
)
from distributedlog.runtime.protocol.frames import unpack
from tests.examples import few
from tests.log.conftest import World
from tests.log.records import everything, put


async def segment(log: Log, *txids: int, **named: Any) -> SegmentToken:
    """A segment with one record a txid, in two entries where it has two."""
    async with log.open_segment_writer(**named) as writer:
        for txid in txids:
            await writer.write(LogRecord(txid, b"%d" % txid))
            await writer.flush()
    assert writer.token is not None
    return writer.token


async def payloads(log: Log) -> list[bytes]:
    return [record.payload for record in await everything(log)]


async def keys_below(world: World, prefix: bytes) -> list[bytes]:
    return [item.key async for item in Scan(world.metadata, prefix)]


async def test_linked_segments_are_read_as_if_they_had_been_written_there(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.log("orders") as log:
        await put(log, 1)
        first, second = await segment(log, 5, 6), await segment(log, 6, 7)
        assert await payloads(log) == [b"1"]  # nobody reads what is not linked

        linked = await log.link_segments([first, second], app="etl", version=3)
        assert (linked.already, linked.first_segment, linked.last_segment) == (False, 2, 3)
        await put(log, 8)

        found = await everything(log)
        assert [r.payload for r in found] == [b"1", b"5", b"6", b"6", b"7", b"8"]
        assert [r.sequence_id for r in found] == list(range(6))
        assert found[1].dlsn == DLSN(2, 0, 0)
        unlinked = staged_ledgers_prefix(int(first.incarnation, 16))
        assert await keys_below(world, unlinked) == []


async def test_the_next_link_and_the_next_writer_come_after_what_was_linked(
    world: World, autojump_clock: MockClock
) -> None:
    """In a strict log txids do not go back, whoever brought the greatest."""
    async with world.log("orders", txids="strict") as log:
        await log.link_segments([await segment(log, 10, 12)])

        with pytest.raises(TransactionIdOutOfOrder):
            await log.link_segments([await segment(log, 11)])
        async with log.open_writer() as writer:
            assert writer.last_txid == 12
            with pytest.raises(TransactionIdOutOfOrder):
                await writer.write(LogRecord(11, b"back"))


async def test_a_snapshot_is_read_by_ranges_in_another_process(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process("planner") as ns:
        log = ns.open_log("orders")
        async with log.open_writer() as writer:
            await writer.write_bulk([LogRecord(n, b"%d" % n) for n in range(5)])
        await log.link_segments([await segment(log, 10, 11)])
        async with log.open_writer() as writer:
            await writer.write(LogRecord(12, b"12"))
            snapshot = await log.snapshot()
        assert [(s.segment, s.state, s.records) for s in snapshot.segments] == [
            (1, "closed", 5),
            (2, "closed", 2),
            (3, "open", 1),
        ]
        assert (snapshot.end_dlsn, snapshot.records, snapshot.last_txid) == (DLSN(3, 1, 0), 8, 12)
        ranges = [s.range() for s in snapshot.segments]
        ranges[1] = snapshot.segments[1].range(first_entry=1)
        shipped = pickle.dumps(ranges)
        as_text = json.dumps([r.to_json() for r in ranges])
    async with world.process("task") as ns:
        ranges = pickle.loads(shipped)
        assert ranges == [SegmentRange.from_json(r) for r in json.loads(as_text)]
        async with ns.open_log("orders").open_ranges(ranges) as reader:
            found = [record async for columns in reader for record in columns.records()]
        assert [r.txid for r in found] == [0, 1, 2, 3, 4, 11, 12]
        assert [r.sequence_id for r in found] == [0, 1, 2, 3, 4, 6, 7]


async def test_a_note_that_was_forgotten_and_made_anew_meanwhile_is_not_the_one_that_was_read(
    world: World, autojump_clock: MockClock
) -> None:
    """Its version is the same again. A link of version 8 that slept must not come after version 9 (G8)."""
    async with world.process() as ns:
        await ns.create_log("orders")
        log, key = ns.open_log("orders"), app_version_key(await ns.resolve_name("orders"), "etl")
        await log.link_segments([], app="etl", version=7)
        original, seventh = world.metadata.transact, await world.metadata.get(key)
        assert seventh is not None
        ninth = replace(AppVersion.decode(seventh.value), version=9).encode()

        async def overtaken(transaction: Transaction) -> TransactionReply:
            if any(one.key == key for one in transaction.operations):
                world.metadata.transact = original  # type: ignore[method-assign]
                await original(Transaction((), (Delete(key),)))
                await original(Transaction((), (Put(key, ninth),)))
            return await original(transaction)

        world.metadata.transact = overtaken  # type: ignore[method-assign]
        with pytest.raises(LinkOutOfOrder, match="version 9"):
            await log.link_segments([], app="etl", version=8)


async def test_the_same_version_is_linked_once_with_whatever_ledgers(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.log("orders") as log:
        await put(log, 1)
        first, again = await segment(log, 2, 3), await segment(log, 2, 3)
        result = await log.link_segments([first], app="etl", version=7)
        for tokens in ([first], [again], [first, again], []):
            assert await log.link_segments(tokens, app="etl", version=7) == type(result)(True, 2, 2)
        with pytest.raises(LinkOutOfOrder, match="version 7"):
            await log.link_segments([again], app="etl", version=6)
        await log.link_segments([], app="other", version=1, identity="a")
        with pytest.raises(LinkOutOfOrder, match=r"'a'.*'b'"):
            await log.link_segments([], app="other", version=2, identity="b")
        assert await log.discard_segments([first, again]) == [first]
        assert await payloads(log) == [b"1", b"2", b"3"]
        with pytest.raises(NoSuchLedger):
            await log.link_segments([again], app="etl", version=8)


async def test_without_an_application_the_ledgers_themselves_are_linked_once(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.log("orders") as log:
        tokens = [await segment(log, 1), await segment(log), await segment(log, 2)]
        assert (await log.link_segments(tokens)).last_segment == 2  # the empty one is left out
        assert (await log.link_segments(tokens)).already
        assert await payloads(log) == [b"1", b"2"]
        more = [tokens[0], await segment(log, 3)]
        assert (await log.link_segments(more)).already  # all of a link or none: one of it says so


async def test_a_living_writer_keeps_links_out_or_is_fenced(
    world: World, autojump_clock: MockClock
) -> None:
    """H13: an epoch alone would leave the writer acknowledging below the linked segments."""
    async with world.process("alpha") as ns:
        log = ns.open_log("orders")
        writer = await log.open_writer()
        await writer.write(LogRecord(1, b"1"))
        token = await segment(log, 5)
        began = trio.current_time()
        with pytest.raises(OwnershipAcquireFailed, match="alpha"):
            await log.link_segments([token], wait_s=3)
        assert 3 <= trio.current_time() - began < 4
        await writer.write(LogRecord(2, b"2"))  # undisturbed
        await log.link_segments([token], takeover=True)
        with pytest.raises(WriterFenced):
            await writer.write(LogRecord(6, b"never"))
        await writer.abort()
        assert await payloads(log) == [b"1", b"2", b"5"]


async def test_what_a_dead_writer_left_is_recovered_before_a_link(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process("alpha", lock_lease_s=3.0) as ns:
        writer = await ns.open_log("orders").open_writer()
        await writer.write(LogRecord(1, b"1"))
        world.ledgers.held = True
        await writer.submit(LogRecord(2, b"2"))
        await trio.sleep(0.1)
    world.ledgers.keep_in_flight = 1  # recovery finds it: the linked records come after it
    world.ledgers.held = False
    async with world.process("beta", lock_lease_s=3.0) as ns:
        log = ns.open_log("orders")
        result = await log.link_segments([await segment(log, 5)], wait_s=10)
        assert result.first_dlsn == DLSN(2, 0, 0)
        assert [(r.txid, r.sequence_id) for r in await everything(log)] == [(1, 0), (2, 1), (5, 2)]


async def test_what_must_not_be_linked_is_refused_and_nothing_is_done(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        await ns.create_log("orders", txids="strict")
        log = ns.open_log("orders")
        await put(log, 10)
        good, low, mid = await segment(log, 12, 13), await segment(log, 9), await segment(log, 12)
        for tokens in ([low], [good, mid]):
            with pytest.raises(TransactionIdOutOfOrder):
                await log.link_segments(tokens, app="etl", version=1)
        with pytest.raises(InvalidRequest, match="twice"):
            await log.link_segments([good, good])
        with pytest.raises(InvalidRequest, match="above the limit"):
            await log.link_segments([good] * 801)
        for key in ("log", "app", "version", "end"):
            with pytest.raises(InvalidRequest, match="reserved"):
                await log.open_segment_writer(custom={key: b"mine"})
        unfinished = await log.open_segment_writer()
        forged = SegmentToken(good.incarnation, unfinished.ledger_id, 1, 1, 99, 99, 0, 0)
        with pytest.raises(InvalidRequest, match="not closed by its writer"):
            await log.link_segments([forged])
        other = ns.open_log("other")
        await ns.create_log("other")
        foreign = await segment(other, 99)
        with pytest.raises(LogRecreated):
            await log.link_segments([foreign])
        disguised = SegmentToken(good.incarnation, *foreign_fields(foreign))
        with pytest.raises(InvalidRequest, match="not written for log"):
            await log.link_segments([disguised])
        assert await log.linked_version("etl") is None
        assert await payloads(log) == [b"10"]
        await log.link_segments([good], app="etl", version=1)
        with trio.fail_after(5), pytest.raises(InvalidRequest, match="is segment 2 of log"):
            await log.link_segments([good], app="etl", version=2)

        await log.seal()
        late = await segment(other, 100)
        with pytest.raises(EndOfStream):
            await log.link_segments([mid])
        with pytest.raises(EndOfStream):
            await log.open_segment_writer()
        await ns.delete_log("other")
        with pytest.raises(LogNotFound):
            await other.link_segments([late])
        await ns.create_log("other")
        with pytest.raises(LogRecreated):
            await other.link_segments([late])


def foreign_fields(token: SegmentToken) -> list[int]:
    return list(token.to_json().values())[1:]


class LostAnswers:
    """Transactions take their time, and some are answered with "unknown", done or not."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.chance = chance
        self.rate = 0.3
        self.deleted: set[int] = set()
        """Ledgers that were ever deleted."""
        self._transact = world.metadata.transact
        world.metadata.transact = self  # type: ignore[method-assign]

    async def __call__(self, transaction: Transaction) -> TransactionReply:
        await trio.sleep(self.chance.random() * 0.02)
        lost = self.chance.random() < self.rate
        if lost and self.chance.random() < 0.5:
            raise OutcomeUnknown("it was lost")
        reply = await self._transact(transaction)
        for operation in transaction.operations if reply.succeeded else ():
            if not isinstance(operation, Put) or not operation.key.startswith(b"ledger/"):
                continue
            if unpack(operation.value, "a ledger")[0] == "deleting":
                self.deleted.add(int(operation.key[-16:], 16))
        if lost:
            raise OutcomeUnknown("the answer was lost")
        return reply


@pytest.mark.parametrize("seed", few(range(40), 10))
async def test_drivers_that_lose_answers_and_race_link_each_version_once(
    seed: int, world: World, autojump_clock: MockClock
) -> None:
    """H13, H14: two drivers replay the same versions, each with ledgers of its own, discard what they can,
    and a collector deletes what it thinks is left over. Each version is in once, whole, in order."""
    chance = random.Random(seed)
    versions = 6

    async def driver(ns: Namespace) -> None:
        log = ns.open_log("orders")
        version = 0
        token = None
        while version < versions:
            txid = 10 * version
            try:
                token = await segment(log, txid, txid, app="etl", version=version)
                await trio.sleep(chance.random() / 10)
                await log.link_segments([token], app="etl", version=version, wait_s=1)
                version += 1
            except LinkOutOfOrder:
                version += 1  # the other driver is ahead
            except DistributedLogError:
                await trio.sleep(chance.random() / 10)
                if token is not None and chance.random() < 0.5:
                    try:
                        await log.discard_segments([token])
                    except DistributedLogError:
                        continue

    async def collector(ns: Namespace) -> None:
        while True:
            await trio.sleep(chance.random() / 5)
            try:
                await ns.open_log("orders").collect_unlinked(older_than_s=0.05)
            except DistributedLogError:
                continue

    async with world.process("one", lock_lease_s=1.0) as one, world.process("two") as other:
        await one.create_log("orders")
        lost = LostAnswers(world, chance)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collector, one)
            with trio.fail_after(600):
                async with trio.open_nursery() as drivers:
                    drivers.start_soon(driver, one)
                    drivers.start_soon(driver, other)
            nursery.cancel_scope.cancel()
        lost.rate = 0.0
        log = one.open_log("orders")
        described = await log.describe()
        assert not lost.deleted & {segment.ledger_id for segment in described.segments}
        found = [(r.txid, r.sequence_id) for r in await everything(log)]
        expected = [10 * (n // 2) for n in range(2 * versions)]
        assert found == [(txid, n) for n, txid in enumerate(expected)]
        await log.collect_unlinked(older_than_s=0)
        assert await payloads(log) == [b"%d" % txid for txid in expected]
        unlinked = staged_ledgers_prefix(await one.resolve_name("orders"))
        assert await keys_below(world, unlinked) == []


@pytest.mark.parametrize("apps", few([41, 1001], 1))
async def test_no_application_is_forgotten_before_its_time(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, apps: int
) -> None:
    """H14: many applications, then the first one replays; at the bound a new one is refused."""
    async with world.log("orders") as log:
        for n in range(apps):
            await log.link_segments([], app=f"job {n}", version=1)
        token = await segment(log, 1)
        assert (await log.link_segments([token], app="job 0", version=1)).already
        monkeypatch.setattr("distributedlog.log.segments.segment_link.APPS_MAX", apps)
        with pytest.raises(TooBusy, match=f"{apps} applications"):
            await log.link_segments([token], app="one more", version=1)
        assert not (await log.link_segments([token], app="job 0", version=2)).already
        await trio.sleep(31 * 24 * 3600)
        await log.link_segments([], app="job 5", version=2)
        await log.link_segments([], app="one more", version=1)
        assert await log.linked_version("job 5") is not None
        assert await log.linked_version("job 6") is None


async def test_an_overwrite_truncates_in_the_same_moment(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.log("orders") as log:
        await put(log, 1, 2)
        await log.link_segments([await segment(log, 3, 4)], truncate_before=True)
        snapshot = await log.snapshot()
        assert (snapshot.first_dlsn, snapshot.first_sequence_id) == (DLSN(2, 0, 0), 2)
        assert await payloads(log) == [b"3", b"4"]
        assert len(await keys_below(world, b"purge/")) == 1


async def test_what_is_given_up_is_deleted(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        log = ns.open_log("orders")
        await ns.create_log("orders")
        unlinked = staged_ledgers_prefix(await ns.resolve_name("orders"))
        writer = await log.open_segment_writer()

        async def fail_in_the_middle() -> None:
            async with writer:
                await writer.write(LogRecord(1, b"1"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail_in_the_middle()
        assert await keys_below(world, unlinked) == []
        with pytest.raises(NoSuchLedger):
            await world.ledgers.find(writer.ledger_id)

        left = await segment(log, 1)
        await log.positions.advance("p", DLSN(1, 0, 0))
        await log.link_segments([], app="etl", version=1)
        await ns.delete_log("orders")  # with all that hangs on it
        for prefix in (b"log/", b"loose/", b"purge/"):
            assert await keys_below(world, prefix) == []
        with pytest.raises(NoSuchLedger):
            await world.ledgers.find(left.ledger_id)
        with pytest.raises(LogNotFound):
            await log.open_segment_writer()


async def test_columns_that_cannot_be_read_are_not_written(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.log("orders", txids="strict") as log:
        writer = await log.open_segment_writer()
        ids, data = struct.pack("<2q", 1, 2), b"abc"
        await writer.write_packed(ids, struct.pack("<3i", 0, 1, 3), data)
        for offsets in ((0, 1), (0, 1, 2), (1, 2, 3), (0, 4, 3), (0, 1, 3, 3), (0, -1, 3)):
            with pytest.raises(InvalidRequest):
                await writer.write_packed(ids, struct.pack(f"<{len(offsets)}i", *offsets), data)
        with pytest.raises(InvalidRequest):
            await writer.write_packed(ids[:-1], struct.pack("<3i", 0, 1, 3), data)
        with pytest.raises(InvalidRequest):
            await writer.write_packed(b"", struct.pack("<i", 0), b"")
        big = bytes(1 << 20)
        with pytest.raises(RecordTooLarge):
            await writer.write_packed(ids, struct.pack("<3i", 0, 1, len(big)), big)
        with pytest.raises(TransactionIdOutOfOrder):
            await writer.write_packed(struct.pack("<2q", 0, 5), struct.pack("<3i", 0, 1, 3), data)
        with pytest.raises(TransactionIdOutOfOrder):
            await writer.write(LogRecord(1, b"below"))
        await writer.write(LogRecord(2, b"d"))
        await log.link_segments([await writer.aclose()])
        assert await payloads(log) == [b"a", b"bc", b"d"]


async def without_txids(log: Log, *values: bytes, **named: Any) -> SegmentToken:
    """A segment whose txid is given at the link, a record an entry."""
    async with log.open_segment_writer(**named) as writer:
        for number, value in enumerate(values):
            if number % 2:
                await writer.write_columns(None, [value])
                await writer.flush()
            else:
                ends = struct.pack("<2i", 0, len(value))
                await writer.write_packed(None, ends, value)
    assert writer.token is not None
    return writer.token


async def test_a_txid_that_nobody_asked_for_is_given_at_the_link(
    world: World, autojump_clock: MockClock
) -> None:
    """However much anybody else appended since the segment was begun, it follows; and all readers agree."""
    async with world.log("orders") as log:
        await put(log, 1)
        first = await without_txids(log, b"a", b"b", b"c")
        second = await without_txids(log, b"d")
        high = 1_900_000_000_000
        async with log.open_writer() as writer:
            await writer.write(LogRecord(high, b"2"))  # meanwhile

        linked = await log.link_segments([first, second])
        later = await log.link_segments([await without_txids(log, b"e")])
        async with log.open_writer() as writer:
            await writer.write(LogRecord(high + 6, b"3"))

        found = [(record.txid, record.payload) for record in await everything(log)]
        assert found == [
            (1, b"1"), (high, b"2"), (high + 1, b"a"), (high + 2, b"b"), (high + 3, b"c"), (high + 4, b"d"),
            (high + 5, b"e"), (high + 6, b"3"),
        ]  # fmt: skip
        assert linked.first_dlsn is not None
        snapshot = await log.snapshot()
        ranges = [one.range() for one in snapshot.segments]
        sent = [SegmentRange.from_json(json.loads(json.dumps(one.to_json()))) for one in ranges]
        async with log.open_ranges(sent) as reader:
            read = [pair async for columns in reader for pair in columns.tuples()]
        assert read == found
        assert await log.find(txid=high) == DLSN(2, 0, 0)
        assert await log.find(txid=high + 6) == DLSN(later.last_segment + 1, 0, 0)
        async with log.open_reader(txid=high + 6, to="end") as reader:
            assert [record.payload async for record in reader] == [b"3"]
        shown = {one.segment: (one.first_txid, one.last_txid) for one in snapshot.segments}
        assert shown[linked.first_segment] == (high + 1, high + 3)


async def test_a_clock_says_the_txid_where_the_log_is_behind_it(
    world: World, autojump_clock: MockClock
) -> None:
    """Now in ms, as the process that links has it; and never below segments of the same link."""
    async with world.log("orders") as log:
        alone = await without_txids(log, b"a")
        await log.link_segments([alone])
        txids = [record.txid for record in await everything(log)]
        assert 1_700_000_000_000 <= txids[0] < 1_700_000_100_000
        assert await log.find(txid=txids[0]) == await log.find(txid=1) == DLSN(1, 0, 0)
        assert await log.find(txid=txids[0] + 1) == DLSN(2, 0, 0)
        async with log.open_reader(txid=txids[0], to="end") as reader:
            assert (await reader.read_bulk(1))[0].payload == b"a"
    async with world.log("given") as log:
        after = [await segment(log, 2_000_000_000_000), await without_txids(log, b"b")]
        await log.link_segments(after)
        assert [record.txid for record in await everything(log)] == [
            2_000_000_000_000, 2_000_000_000_001,
        ]  # fmt: skip


async def test_records_of_a_segment_have_txids_or_none_has(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        await ns.create_log("orders")
        async with ns.open_log("orders").open_segment_writer() as writer:
            await writer.write(LogRecord(1, b"x"))
            with pytest.raises(InvalidRequest, match="must have a txid, or none"):
                await writer.write_columns(None, [b"y"])


def test_an_entry_and_its_segment_agree_who_says_the_txids() -> None:
    """Else a program that forgot to ask would show zeros, or another's."""
    packed = check_packed(None, struct.pack("<2i", 0, 1), b"x")
    entry = b"".join(map(bytes, packed.build_entry(records_before=0, written_ms=0)[0]))
    plain = b"".join(build_entry([7], [b"x"], records_before=0, written_ms=0)[0])

    assert decode_columns(entry, decode_header(entry), Origin(1, 0, 0, 42)).txids.tolist() == [42]
    assert decode_columns(plain, decode_header(plain), Origin(1, 0, 0)).txids.tolist() == [7]
    with pytest.raises(CorruptData, match="in neither"):
        decode_columns(entry, decode_header(entry), Origin(1, 0, 0))
    with pytest.raises(CorruptData, match="in both"):
        decode_columns(plain, decode_header(plain), Origin(1, 0, 0, 42))


async def test_a_version_that_was_linked_with_other_records_is_refused(
    world: World, autojump_clock: MockClock
) -> None:
    """Two writes of one batch under one name: the second was skipped in silence."""
    async with world.log("orders") as log:
        first, again, other = [await segment(log, n, app="etl", version=3) for n in (1, 1, 2)]
        here, there = LinkContent(1, 11), LinkContent(1, 22)

        assert not (await log.link_segments([first], app="etl", version=3, content=here)).already
        assert (await log.link_segments([again], app="etl", version=3, content=here)).already
        assert (
            await log.link_segments([again], app="etl", version=3)
        ).already  # not said: believed
        with pytest.raises(
            LinkMismatch, match=r"linked version 3 with 1 records of digest .* application names"
        ):
            await log.link_segments([other], app="etl", version=3, content=there)

        assert await payloads(log) == [b"1"]
        assert await log.discard_segments([other]) == []  # it was not linked
        noted = await log.linked_version("etl")
        assert noted is not None
        assert noted.content == here


async def test_other_records_under_a_version_that_is_in_are_told_by_their_digest(
    world: World, autojump_clock: MockClock
) -> None:
    """H162: a repetition is known whatever its packing and order; another write of that length is not."""
    async with world.log("orders") as log:
        named: dict[str, Any] = {"app": "etl", "version": 3}
        asked: dict[str, Any] = {**named, "digest": True}
        first = [await segment(log, 1, 2, **asked), await segment(log, 3, **asked)]
        assert not (await log.link_segments(first, **named)).already

        async with log.open_segment_writer(**asked) as packed:
            await packed.write_packed(struct.pack("<2q", 1, 2), struct.pack("<3i", 0, 1, 2), b"12")
            await packed.write(LogRecord(3, b"3"))
        empty = await segment(log, **asked)
        assert packed.token is not None
        assert (await log.link_segments([packed.token, empty], **named)).already
        assert (await log.link_segments([first[1], first[0]], **named)).already

        other_payload = [await segment(log, 1, 2, **asked), await outside(log, 3, b"x", **asked)]
        other_txid = [await segment(log, 1, 2, **asked), await outside(log, 4, b"3", **asked)]
        fewer, none = [await segment(log, 1, 2, **asked)], [empty]
        for other in (other_payload, other_txid, fewer, none):
            with pytest.raises(LinkMismatch, match="has linked version 3 with 3 records of digest"):
                await log.link_segments(other, **named)
            assert await log.discard_segments(other) == [], "none of it was linked"
        assert await payloads(log) == [b"1", b"2", b"3"]


async def outside(log: Log, txid: int, payload: bytes, **named: Any) -> SegmentToken:
    async with log.open_segment_writer(**named) as writer:
        await writer.write(LogRecord(txid, payload))
    assert writer.token is not None
    return writer.token


async def test_a_repetition_is_known_after_its_segments_are_gone(
    world: World, autojump_clock: MockClock
) -> None:
    """What is compared travels in the token: the ledgers of a repetition are deleted once it is answered."""
    async with world.log("orders") as log:
        asked: dict[str, Any] = {"app": "etl", "version": 3, "digest": True}
        await log.link_segments([await segment(log, 1, **asked)], app="etl", version=3)
        again = await segment(log, 1, **asked)
        for _ in range(2):
            assert (await log.link_segments([again], app="etl", version=3)).already
            assert await log.discard_segments([again]) == []


async def test_a_segment_that_does_not_say_what_it_holds_is_believed(
    world: World, autojump_clock: MockClock
) -> None:
    """One without a digest among them, or a token of a program of before."""
    async with world.log("orders") as log:
        asked: dict[str, Any] = {"app": "etl", "version": 3, "digest": True}
        await log.link_segments([await segment(log, 1, **asked)], app="etl", version=3)
        before = (await segment(log, 7, **asked)).to_json()
        del before["digest"]

        for other in (await segment(log, 8), SegmentToken.from_json(before)):
            said = await segment(log, 9, **asked)
            assert (await log.link_segments([said, other], app="etl", version=3)).already


async def test_records_whose_txids_the_log_gives_have_one_digest_wherever_they_are_linked(
    world: World, autojump_clock: MockClock
) -> None:
    """Txids that are given at the link count as 0: another link would have given others."""
    async with world.process() as ns:
        await ns.create_log("orders", txids="count")
        log, tokens = ns.open_log("orders"), []
        for _ in range(2):
            async with log.open_segment_writer(app="etl", version=3, digest=True) as writer:
                await writer.write_columns(None, [b"a", b"b"])
                await writer.write_packed(None, struct.pack("<2i", 0, 1), b"c")
            tokens.append(SegmentToken.from_json(json.loads(json.dumps(writer.token.to_json()))))  # type: ignore[union-attr]
        assert (
            tokens[0].digest
            == tokens[1].digest
            == LinkContent.of([0] * 3, [b"a", b"b", b"c"]).digest
        )

        assert not (await log.link_segments(tokens[:1], app="etl", version=3)).already
        assert (await log.link_segments(tokens[1:], app="etl", version=3)).already


async def test_what_is_given_to_a_segment_may_be_changed_while_it_waits(
    world: World, autojump_clock: MockClock
) -> None:
    """What was checked is what is written: lists and buffers alike, which the caller may use again."""
    async with world.log("orders") as log:
        async with log.open_segment_writer() as writer:
            for changed in (False, True):
                txids, given = list(range(30)), [bytes([n]) * 100_000 for n in range(30)]
                ids = bytearray(struct.pack("<2q", 40, 41))
                ends, data = bytearray(struct.pack("<3i", 0, 1, 3)), bytearray(b"abb")
                await writer.flush()
                await trio.sleep(1)
                world.ledgers.held, world.ledgers.window = True, 1
                async with trio.open_nursery() as nursery:
                    if not changed:
                        nursery.start_soon(writer.write_columns, txids, given)
                    else:
                        await writer.write_packed(
                            struct.pack("<q", 40), struct.pack("<2i", 0, 1), b"1"
                        )
                        nursery.start_soon(writer.write_packed, ids, ends, data)
                    await trio.sleep(1)
                    txids[:], given[:] = [-1] * 30, ["no bytes"] * 30  # type: ignore[list-item]
                    for buffer in (ids, ends, data):
                        buffer[:] = b"\xff" * len(buffer)
                    world.ledgers.window = 64
                    world.ledgers.release()
        assert writer.token is not None
        await log.link_segments([writer.token])
        found = await everything(log)

    wanted = [(n, bytes([n]) * 100_000) for n in range(30)]
    wanted += [(40, b"1"), (40, b"a"), (41, b"bb")]
    assert [(r.txid, r.payload) for r in found] == wanted
