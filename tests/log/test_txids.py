"""Whose txids: one rule a log, in its state, the same for everybody who writes (H147)."""

import contextlib
from array import array
from itertools import accumulate, permutations
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.batch import PendingWrite
from distributedlog.log.handle import Log
from distributedlog.log.ranges import SegmentToken
from distributedlog.log.record import RECORD_BYTES_MAX, TXID_MAX, LogRecord
from distributedlog.log.state import AUTO, BYTES, COUNT, GIVEN, MS
from distributedlog.log.txids import TxidSource
from distributedlog.log.writer import LogWriter
from distributedlog.metadata.transaction import Transaction, TransactionReply
from distributedlog.runtime.errors import (
    InvalidRequest,
    OutcomeUnknown,
    QuorumUnreachable,
    RecordTooLarge,
    TransactionIdOutOfOrder,
    WriteCancelled,
    WriterFenced,
)
from tests.log.conftest import World
from tests.log.records import everything, put

START_MS = 1_700_000_000_000


async def txids(log: Log) -> list[int]:
    return [record.txid for record in await everything(log)]


async def rule(log: Log) -> str:
    return (await log.describe()).state.txid_rule


async def test_a_log_that_counts_goes_on_over_its_writers(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns, world.process() as dying:
        await ns.create_log("l", txids="count")
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(b"a")
            await writer.write_bulk([b"b", LogRecord(payload=b"c")])
            await (await writer.submit_columns(None, [b"d", b"e"]))
            assert (writer.last_txid, writer.txid_rule) == (4, COUNT)
        killed = await dying.open_log("l").open_writer()
        await killed.write(b"f")
        await killed.abort()
        async with log.open_writer() as writer:
            await writer.write(b"g")

        assert await txids(log) == list(range(7))
        assert await log.find(txid=5) == (await everything(log))[5].dlsn


@pytest.mark.parametrize("kind", [COUNT, MS, BYTES])
def test_of_one_record_the_same_is_drawn_as_of_many(kind: str) -> None:
    """Over a clock that goes back, and records without bytes."""
    clock = [5, 7, 6, 6, 9, TXID_MAX + 1]
    sizes = [3, 0, 1, 1000, 0, 7]
    for last in (-1, 0, 6):
        one, many = (TxidSource(kind, last, iter(clock).__next__, "l") for _ in range(2))
        assert [one.draw_one(size) for size in sizes] == [many.draw([s])[0] for s in sizes]
        assert one.last == many.last


@pytest.mark.parametrize("kind", [COUNT, MS, BYTES])
def test_of_packed_records_the_same_is_drawn_as_of_a_list(kind: str) -> None:
    """Over a clock that goes back, and records without bytes."""
    for last in (-1, 0, 6, TXID_MAX - 5):
        for sizes in ([0], [3], [3, 0, 1, 0], [0, 0]):
            packed, listed = (TxidSource(kind, last, lambda: 5, "l") for _ in range(2))
            offsets = memoryview(array("i", accumulate(sizes, initial=0)))
            for _ in range(2 if last < TXID_MAX - 5 else 1):
                assert packed.draw_packed(offsets).tolist() == listed.draw(sizes)
            assert packed.last == listed.last


@pytest.mark.parametrize("kind", [COUNT, MS, BYTES])
async def test_a_payload_alone_goes_the_short_way(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """Where the log gives its txids; with the bounds that all records have."""
    slowly: list[object] = []
    submit_slowly = LogWriter._submit_slowly

    async def noted(self: LogWriter, txid: object, payload: object) -> PendingWrite:
        slowly.append(payload)
        return await submit_slowly(self, txid, payload)

    monkeypatch.setattr(LogWriter, "_submit_slowly", noted)
    async with world.process(entry_bytes_max=2000) as ns:
        await ns.create_log("l", txids=kind)
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            for count in range(9):
                await writer.submit(b"%03d" % count)
            assert slowly == []
            with pytest.raises(RecordTooLarge):
                await writer.submit(bytes(RECORD_BYTES_MAX + 1))
            with pytest.raises(InvalidRequest):
                await writer.submit(LogRecord(txid=7, payload=b"own"))
            await writer.submit(bytes(1900))  # does not fit what is open: an entry of its own
            await writer.submit(b"the last")
        assert len(slowly) == 3
        found = await everything(log)
        assert [bytes(one.payload)[:3] for one in found] == [
            *(b"%03d" % n for n in range(9)), bytes(3), b"the"
        ]  # fmt: skip
        given = [one.txid for one in found]
        assert given == sorted(given)
        if kind == COUNT:
            assert given == list(range(11))


async def test_a_log_of_times_never_goes_back(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        await ns.create_log("l", txids="ms")
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(b"a")
            await trio.sleep(2)
            await writer.write(b"b")
        await trio.sleep(1)
        async with log.open_writer() as writer:
            await writer.write_bulk([b"c", b"d"])

        found = await txids(log)
        assert found == sorted(found)
        assert START_MS <= found[0] <= found[1] - 2000
        assert found[2] == found[3]


async def test_a_log_of_bytes_counts_what_was_written(
    world: World, autojump_clock: MockClock
) -> None:
    """A txid is the offset after its record."""
    async with world.process() as ns:
        await ns.create_log("l", txids="bytes")
        log = ns.open_log("l")
        for _ in range(2):
            async with log.open_writer() as writer:
                await writer.write(b"abc")
                await writer.write_bulk([b"", b"de"])

        assert await txids(log) == [3, 3, 5, 8, 8, 10]


@pytest.mark.parametrize("given", [True, False])
async def test_the_first_record_decides(
    world: World, autojump_clock: MockClock, given: bool
) -> None:
    """And what does not fit is refused in words, with nothing taken; the writer goes on."""
    fits: Any = LogRecord(5, b"a") if given else b"a"
    other: Any = b"b" if given else LogRecord(5, b"b")
    async with world.log("l") as log:
        async with log.open_writer() as writer:
            assert await rule(log) == AUTO
            with pytest.raises(InvalidRequest):
                await writer.submit(LogRecord(-1, b"what is refused decides nothing"))
            assert await rule(log) == AUTO
            await writer.write(fits)
            assert writer.txid_rule == (GIVEN if given else MS)
            assert await rule(log) == (AUTO if given else MS)
            with pytest.raises(InvalidRequest, match="given" if given else "ms"):
                await writer.submit(other)
            bulk = await writer.submit_bulk([fits, other, fits])
            outcomes = await bulk.outcomes()
            assert [type(one).__name__ for one in outcomes] == [
                "DLSN", "InvalidRequest", "WriteCancelled"
            ]  # fmt: skip
            refused = await writer.submit_columns(None if given else [1, 2], [b"x", b"y"])
            assert isinstance((await refused.outcomes())[0], InvalidRequest)
            await writer.write(fits)
        assert await rule(log) == (GIVEN if given else MS)
        assert len(await everything(log)) == 3


async def test_a_bulk_decides_by_its_first_record(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        cases: list[tuple[str, list[Any], str]] = [
            ("a", [LogRecord(1, b"x"), LogRecord(2, b"y")], GIVEN),
            ("b", [b"x", b"y"], MS),
            ("c", [b"x", LogRecord(2, b"y")], MS),
        ]
        for name, bulk, expected in cases:
            log = ns.open_log(name)
            async with log.open_writer() as writer:
                pending = await writer.submit_bulk(bulk)
                await pending.wait()
            assert await rule(log) == expected
            assert len(await everything(log)) == (1 if name == "c" else 2)


async def test_two_writers_decide_one_rule(world: World, autojump_clock: MockClock) -> None:
    """H147: in every order of opening and writing; who lost the log, or comes second, is told."""
    steps = ("open a", "open b", "write a", "write b")
    number = 0
    for order in permutations(steps):
        if order.index("open a") > order.index("write a"):
            continue
        if order.index("open b") > order.index("write b"):
            continue
        number += 1
        async with world.process("A") as one, world.process("B") as two:
            logs = {"a": one.open_log(f"l{number}"), "b": two.open_log(f"l{number}")}
            records: dict[str, Any] = {"a": LogRecord(7, b"a"), "b": b"b"}
            writers: dict[str, Any] = {}
            stored: list[str] = []
            for step in order:
                what, who = step.split()
                if what == "open":
                    writers[who] = await logs[who].open_writer(takeover=True)
                    continue
                try:
                    await writers[who].write(records[who])
                    stored.append(who)
                except (InvalidRequest, WriterFenced):
                    pass
            for writer in writers.values():
                with contextlib.suppress(WriterFenced):
                    await writer.aclose()
            decided = await rule(logs["a"])
            assert decided == {"a": GIVEN, "b": MS}[stored[0]], order
            found = [record.payload.decode() for record in await everything(logs["b"])]
            assert found == stored, order
            assert len(stored) == 1, order


class Away:
    """The metadata store answers nothing that writes, while ``on``."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        transact = world.metadata.transact

        async def call(transaction: Transaction) -> TransactionReply:
            if self.on and transaction.operations:
                raise QuorumUnreachable("away")
            return await transact(transaction)

        monkeypatch.setattr(world.metadata, "transact", call)


async def test_no_record_is_sent_before_its_rule_is_stored(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a reader sees records of a log whose rule another writer may still decide otherwise."""
    away = Away(world, monkeypatch)
    async with world.log("l") as log, trio.open_nursery() as nursery, log.open_writer() as writer:
        away.on = True
        nursery.start_soon(writer.write, b"first")
        await trio.sleep(5)
        assert await everything(log) == []
        assert await rule(log) == AUTO
        away.on = False
        await trio.sleep(1)
        assert (await rule(log), len(await everything(log))) == (MS, 1)


async def test_a_first_record_with_a_txid_asks_the_metadata_nothing(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand new logs each would wait for the quorum, and none be written while that is away."""
    away = Away(world, monkeypatch)
    async with world.log("l") as log:
        writer = await log.open_writer()
        away.on = True
        await writer.write(LogRecord(3, b"first"))
        away.on = False
        await writer.abort()
        async with log.open_writer() as writer:  # who comes next finds the record, and its rule
            assert writer.txid_rule == await rule(log) == GIVEN
            with pytest.raises(InvalidRequest, match="given"):
                await writer.write(b"second")


async def test_a_rule_that_may_be_stored_late_is_not_decided_otherwise(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change to ``ms`` had no outcome, and is done after somebody looked."""
    transact = world.metadata.transact
    late: list[Transaction] = []

    async def call(transaction: Transaction) -> TransactionReply:
        if not late:
            late.append(transaction)
            raise OutcomeUnknown("no answer")
        if len(late) == 1:
            late.append(transaction)
            await transact(late[0])
        return await transact(transaction)

    async with world.log("l") as log, log.open_writer() as writer:
        monkeypatch.setattr(world.metadata, "transact", call)
        with trio.move_on_after(0.01):
            await writer.write(b"first")
        with pytest.raises(InvalidRequest, match="ms"):
            await writer.write(LogRecord(1, b"second"))
        assert await rule(log) == writer.txid_rule == MS


async def test_a_rule_that_cannot_be_stored_takes_no_record(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Away(world, monkeypatch)
    async with world.log("l") as log, log.open_writer() as writer:
        away.on = True
        with pytest.raises(WriteCancelled, match="away"):
            await writer.write(b"first")
        away.on = False
        await writer.write(LogRecord(1, b"second"))
        assert [record.payload for record in await everything(log)] == [b"second"]


async def test_many_first_records_at_once(world: World, autojump_clock: MockClock) -> None:
    """All that fit the rule are in, each with its own number; the others were refused."""
    for txid_rule in ("auto", "count"):
        async with world.process() as ns:
            await ns.create_log(txid_rule, txids=txid_rule)
            log = ns.open_log(txid_rule)
            refused = 0

            async def write(writer: Any, record: Any) -> None:
                nonlocal refused
                try:
                    await writer.write(record)
                except (InvalidRequest, TransactionIdOutOfOrder):
                    refused += 1

            async with log.open_writer() as writer, trio.open_nursery() as nursery:
                for number in range(20):
                    record: Any = b"x" if number % 2 else LogRecord(number, b"y")
                    nursery.start_soon(write, writer, record)
            found = await everything(log)
            assert len(found) + refused == 20
            assert len({record.payload for record in found}) == 1
            if txid_rule == "count":
                assert [record.txid for record in found] == list(range(10))
            assert [record.txid for record in found] == sorted(record.txid for record in found)


async def test_payloads_may_be_any_bytes(world: World, autojump_clock: MockClock) -> None:
    """A bytearray or a memoryview is copied when it is taken."""
    async with world.log("l") as log, log.open_writer() as writer:
        mine = bytearray(b"mine")
        pending = [
            await writer.submit(mine),
            await writer.submit(memoryview(b"view")),
            await writer.submit(LogRecord(payload=mine)),  # type: ignore[arg-type]
        ]
        mine[:] = b"MINE"
        for one in pending:
            await one
        for wrong in ("text", None, 7):
            with pytest.raises(InvalidRequest):
                await writer.submit(wrong)  # type: ignore[arg-type]
        assert [record.payload for record in await everything(log)] == [b"mine", b"view", b"mine"]


async def segment(log: Log, txids: list[int] | None, number: int = 3) -> SegmentToken:
    async with log.open_segment_writer() as writer:
        for at in range(number):
            await writer.write_columns(None if txids is None else [txids[at]], [b"%d" % at])
            await writer.flush()
    assert writer.token is not None
    return writer.token


async def test_what_is_linked_without_txids_gets_them_by_the_rule(
    world: World, autojump_clock: MockClock
) -> None:
    """9.1: counted on, the time, or the last one; found by them like any others."""
    async with world.process() as ns:
        expected: dict[str, list[int]] = {}
        for txid_rule in (GIVEN, COUNT, MS):
            await ns.create_log(txid_rule, txids=txid_rule)  # type: ignore[arg-type]
            log = ns.open_log(txid_rule)
            own = txid_rule == GIVEN
            async with log.open_writer() as writer:
                await writer.write_bulk([LogRecord(7, b"a"), LogRecord(9, b"b")] if own else [b"a"])
            await trio.sleep(3)
            await log.link_segments([await segment(log, None), await segment(log, None)])
            async with log.open_writer() as writer:
                await writer.write(LogRecord(9, b"z") if own else b"z")
            expected[txid_rule] = await txids(log)
            for wanted in sorted(set(expected[txid_rule])):
                first = expected[txid_rule].index(wanted)
                assert await log.find(txid=wanted) == (await everything(log))[first].dlsn

        assert expected[GIVEN] == [7, 9, *[9] * 6, 9]
        assert expected[COUNT] == list(range(8))
        times = expected[MS]
        assert times == sorted(times)
        assert times[1] == times[6] >= START_MS + 3000


async def test_a_link_decides_the_rule_of_an_empty_log(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        for name, own, expected in (("a", [1, 2, 3], GIVEN), ("b", None, MS)):
            await ns.create_log(name)
            log = ns.open_log(name)
            await log.link_segments([await segment(log, own)])
            assert await rule(log) == expected
            assert len(await everything(log)) == 3


@pytest.mark.parametrize(("txid_rule", "own"), [(COUNT, True), (MS, True), (BYTES, False)])
async def test_what_does_not_fit_the_rule_is_not_linked(
    world: World, autojump_clock: MockClock, txid_rule: Any, own: bool
) -> None:
    async with world.process() as ns:
        await ns.create_log("l", txids=txid_rule)
        log = ns.open_log("l")
        token = await segment(log, [1, 2, 3] if own else None)

        with pytest.raises(InvalidRequest, match=txid_rule):
            await log.link_segments([token])

        assert await everything(log) == []


async def test_txids_that_go_back_are_noted_before_they_are_written(
    world: World, autojump_clock: MockClock
) -> None:
    """From then on nothing is found by txid: a search would be wrong and could not know it."""
    async with world.process() as ns:
        for name, unchecked, expected in (("a", [1, 2, 2], False), ("b", [1, 3, 2], True)):
            log = ns.open_log(name, config={"max_txid_check": False})
            async with log.open_writer() as writer:
                for txid in unchecked:
                    await writer.write(LogRecord(txid, b"x"))
            assert (await log.describe()).state.unordered_once == expected
        bulk = ns.open_log("c", config={"max_txid_check": False})
        async with bulk.open_writer() as writer:
            await writer.write_bulk([LogRecord(1, b"x"), LogRecord(5, b"x"), LogRecord(4, b"x")])
        linked = ns.open_log("d", config={"max_txid_check": False})
        await put(linked, 9)
        await linked.link_segments([await segment(linked, [4, 5, 6])])
        await ns.create_log("e")
        inside = ns.open_log("e", config={"max_txid_check": False})
        await inside.link_segments([await segment(inside, [4, 6, 5])])
        for log in (bulk, linked, inside):
            with pytest.raises(InvalidRequest, match="not in order"):
                await log.find(txid=1)
            assert len(await everything(log)) >= 3


async def test_rules_have_names(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        with pytest.raises(InvalidRequest, match="count"):
            await ns.create_log("l", txids="counted")  # type: ignore[arg-type]
        assert not await ns.log_exists("l")
