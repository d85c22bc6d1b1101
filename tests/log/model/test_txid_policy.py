"""Txid policies: given ones are stored, omitted ones filled in, each search is right (decision 109)."""

import random
from array import array
from dataclasses import replace
from enum import IntEnum
from functools import partialmethod
from itertools import accumulate
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import RECORD_BYTES_MAX, TXID_MAX, LogRecord
from distributedlog.log.log import Log
from distributedlog.log.model.log_keys import segment_key, state_key
from distributedlog.log.model.log_state import (
    AUTO,
    BYTES,
    COUNT,
    GIVEN,
    MS,
    WITH_PRODUCERS,
    WITH_UNORDERED,
    WRITER_FORMAT_PLAIN,
    LogState,
)
from distributedlog.log.model.segment_ranges import SegmentToken
from distributedlog.log.model.segment_record import SegmentEnd
from distributedlog.log.model.txid_policy import TxidAssigner
from distributedlog.log.read.log_view import view_log
from distributedlog.log.write.entry_batch import PendingWrite
from distributedlog.log.write.log_writer import LogWriter
from distributedlog.metadata.model.transaction import Put, Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import (
    InvalidRequest,
    QuorumUnreachable,
    RecordTooLarge,
    TransactionIdOutOfOrder,
    WriteCancelled,
)
from distributedlog.runtime.protocol.frames import pack, unpack
from tests.examples import few
from tests.log.conftest import World
from tests.log.records import everything, put

START_MS = 1_700_000_000_000


async def txids(log: Log) -> list[int]:
    return [record.txid for record in await everything(log)]


def packed(txids: list[int], payloads: list[bytes]) -> tuple[bytes, bytes, bytes]:
    """As `LogWriter.submit_packed` takes them."""
    ends = array("i", accumulate(map(len, payloads), initial=0))
    return array("q", txids).tobytes(), ends.tobytes(), b"".join(payloads)


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
            assert (writer.last_txid, writer.txid_policy) == (4, COUNT)
        killed = await dying.open_log("l").open_writer()
        await killed.write(b"f")
        await killed.abort()
        async with log.open_writer() as writer:
            await writer.write(b"g")

        assert await txids(log) == list(range(7))
        assert await log.find(txid=5) == (await everything(log))[5].dlsn


@pytest.mark.parametrize("kind", [AUTO, GIVEN, COUNT, MS, BYTES])
def test_of_one_record_the_same_is_drawn_as_of_many(kind: str) -> None:
    """Over a clock that goes back, and records without bytes."""
    clock = [5, 7, 6, 6, 9, TXID_MAX + 1]
    sizes = [3, 0, 1, 1000, 0, 7]
    for last in (-1, 0, 6):
        one, many = (TxidAssigner(kind, last, iter(clock).__next__, "l") for _ in range(2))
        assert [one.assign_one(size) for size in sizes] == [many.assign([s])[0] for s in sizes]
        assert one.last == many.last


@pytest.mark.parametrize("kind", [AUTO, GIVEN, COUNT, MS, BYTES])
def test_of_packed_records_the_same_is_drawn_as_of_a_list(kind: str) -> None:
    """Over a clock that goes back, and records without bytes."""
    for last in (-1, 0, 6, TXID_MAX - 5):
        for sizes in ([0], [3], [3, 0, 1, 0], [0, 0]):
            packed, listed = (TxidAssigner(kind, last, lambda: 5, "l") for _ in range(2))
            offsets = memoryview(array("i", accumulate(sizes, initial=0)))
            for _ in range(2 if last < TXID_MAX - 5 else 1):
                assert packed.assign_packed(offsets).tolist() == listed.assign(sizes)
            assert packed.last == listed.last


@pytest.mark.parametrize("kind", [AUTO, GIVEN, COUNT, MS, BYTES])
async def test_a_payload_alone_goes_the_short_way(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """Where the log gives its txids; with the bounds that all records have."""
    slowly: list[object] = []
    submit_slowly = LogWriter._submit_checked

    async def noted(self: LogWriter, txid: object, payload: object) -> PendingWrite:
        slowly.append(payload)
        return await submit_slowly(self, txid, payload)

    monkeypatch.setattr(LogWriter, "_submit_checked", noted)
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
                await writer.submit(LogRecord(txid=-7, payload=b"own"))
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


@pytest.mark.parametrize("policy", ["auto", "strict", "count", "ms"])
async def test_any_client_appends_with_and_without_txids(
    world: World, autojump_clock: MockClock, policy: str
) -> None:
    """One by one, in a mixed bulk, in a frame and in a set; the writer asks the metadata nothing."""
    async with world.log("l", txids=policy) as log:
        async with log.open_writer() as writer:
            await writer.write(b"a")
            own = writer.last_txid
            await writer.write(LogRecord(own + 5, b"b"))
            await writer.write_bulk([b"c", LogRecord(own + 2000, b"d"), b"e", b"f"])
            await (await writer.submit_columns(None, [b"g"]))
            await writer.write_set([b"h", b"i"])
            await writer.write(b"j", expect=await writer.commit())
        async with log.open_writer(producer="p") as writer:
            await writer.write_frame(0, [LogRecord(own + 9000, b"k")])
            await writer.write_frame(1, [b"l", b"m"])
        found = await everything(log)
        assert b"".join(one.payload for one in found) == b"abcdefghijklm"
        given = [one.txid for one in found]
        assert given == sorted(given)
        assert [given[1], given[3], given[10]] == [own + 5, own + 2000, own + 9000]
        if policy == "count":
            assert given[:5] == [0, 5, 6, 2000, 2001]
        elif policy == "ms":
            assert given[1] == given[2]
        else:
            assert [given[2], *given[4:7]] == [own + 6, own + 2001, own + 2002, own + 2003]


async def test_what_is_omitted_is_the_later_of_the_clock_and_the_next_number(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.log("l") as log, log.open_writer() as writer:
        await writer.write_bulk([b"a", b"b", b"c"])
        first = writer.last_txid - 2
        assert first >= START_MS
        await trio.sleep(10)
        await writer.write(b"d")
        assert [one.txid - first for one in await everything(log)][:3] == [0, 1, 2]
        assert 10_000 <= writer.last_txid - first <= 10_100


async def test_at_the_greatest_txid_a_log_goes_on(world: World, autojump_clock: MockClock) -> None:
    """What a client gives ends no log: the greatest is filled in from then on."""
    for policy in ("auto", "strict", "count", "ms"):
        async with world.log(policy, txids=policy) as log:
            async with log.open_writer() as writer:
                await writer.write(LogRecord(TXID_MAX, b"a"))
                await writer.write(b"b")
                await writer.write_bulk([b"c", b"d"])
                await (await writer.submit_packed(None, *packed([], [b"e", b"f"])[1:]))
            await log.link_segments([await segment(log, None)])
            assert await txids(log) == [TXID_MAX] * 9


class Whole(IntEnum):
    """Another whole number."""

    SEVEN = 7


class Indexed:
    """As NumPy's numbers are: no int, and as good as one."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize(
    "wrong", [True, False, 7.0, "7", -1, TXID_MAX + 1, pytest.param(10**5000, id="5001 digits")]
)
async def test_what_is_no_txid_is_refused_by_every_call(
    world: World, autojump_clock: MockClock, wrong: Any
) -> None:
    """True and False are ints to Python, and were stored as what no reader takes for a number."""
    record: Any = LogRecord(wrong, b"x")
    async with world.log("l") as log:
        async with log.open_writer(producer="p") as writer:

            async def check(bulk: list[Any]) -> None:
                for call in (
                    lambda: writer.write(record),
                    lambda: writer.write_bulk(bulk),
                    lambda: writer.write_set([record, record]),
                    lambda: writer.write(record, expect=DLSN.NONE),
                    lambda: writer.write_frame(0, [record]),
                ):
                    with pytest.raises(InvalidRequest, match="whole number"):
                        await call()
                with pytest.raises(InvalidRequest, match="whole number"):
                    writer.sequenced_writer.append_batch([b"x"], lambda _: None, txids=[wrong])

            await check([record])  # the first txid of a log, and those after it
            await writer.write(LogRecord(5, b"before"))
            await check([LogRecord(5, b"y"), record])
        async with log.open_segment_writer() as segments:
            await segments.write(LogRecord(5, b"linked"))
            with pytest.raises(InvalidRequest, match="whole number"):
                await segments.write(record)
        if type(wrong) is not int:
            for call in (log.find, log.truncate):
                with pytest.raises(InvalidRequest):
                    await call(txid=wrong)
        assert [one.payload for one in await everything(log)] == [b"before", b"y"]


async def test_other_whole_numbers_are_stored_as_ints(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.log("l") as log:
        for number in (Whole.SEVEN, Indexed()):
            own: Any = number
            async with log.open_writer() as writer:
                await writer.write(LogRecord(own, b"a"))
                await writer.write_bulk([LogRecord(own, b"b"), LogRecord(own, b"c")])
                assert type(writer.last_txid) is int
        assert {type(txid) for txid in await txids(log)} == {int}
        assert (await log.describe()).state.last_txid == 7


async def test_a_log_that_an_older_program_closed_with_a_flag_opens_and_is_deleted(
    world: World, autojump_clock: MockClock
) -> None:
    """``txid=True`` was acknowledged, and its segment's record could not be read any more."""
    async with world.process() as ns:
        await ns.create_log("l")
        log = ns.open_log("l")
        await put(log, 0, 1)
        log_id = await ns.resolve_name("l")
        for key, at in ((segment_key(log_id, 1), (8, 9)), (state_key(log_id), (11,))):
            found = await world.metadata.get(key)
            assert found is not None
            fields = unpack(found.value, "as it is")
            for place in at:
                assert fields[place] in (0, 1)
                fields[place] = bool(fields[place])
            await world.metadata.transact(Transaction((), (Put(key, pack(fields)),)))

        assert await log.count() == 2
        assert await txids(log) == [0, 1]
        assert await log.find(txid=1) == (await everything(log))[1].dlsn
        async with log.open_writer() as writer:
            await writer.write(LogRecord(2, b"on"))
        await ns.rename_log("l", "m")
        await ns.delete_log("m")
        assert not await ns.log_exists("m")


async def test_a_byte_stream_takes_no_given_txid(world: World, autojump_clock: MockClock) -> None:
    async with world.log("l", txids="bytes") as log, log.open_writer() as writer:
        await writer.write(b"abc")
        columns = packed([3], [b"x"])
        for call in (
            lambda: writer.write(LogRecord(3, b"x")),
            lambda: writer.write_bulk([LogRecord(3, b"x")]),
            lambda: writer.submit_packed(*columns),
        ):
            with pytest.raises(InvalidRequest, match="byte stream"):
                await call()
        await writer.write(b"d")
        assert await txids(log) == [3, 4]


async def test_a_log_of_an_older_program_keeps_its_policy(
    world: World, autojump_clock: MockClock
) -> None:
    """``given`` goes on refusing what goes back; nobody is refused for having, or not having, a txid."""
    for rule, strict in ((GIVEN, True), (MS, False), (COUNT, False), (AUTO, False)):
        async with world.log(rule) as log:
            await older(world, log, txid_rule=rule)
            if rule == GIVEN:
                await put(log, 3)
            async with log.open_writer() as writer:
                await writer.write(b"without")
                back = writer.submit(LogRecord(0, b"back"))
                if strict:
                    with pytest.raises(TransactionIdOutOfOrder, match="strict"):
                        await back
                else:
                    await (await back)
                await writer.write(LogRecord(writer.last_txid, b"with"))
            state = (await log.describe()).state
            assert (state.txid_policy, state.txid_rule) == (rule, rule)


async def test_an_older_programs_empty_log_that_it_then_wrote_is_strict(
    world: World, autojump_clock: MockClock
) -> None:
    """It was ``auto``, and the first record came with a txid: who closed its segment stores ``given``."""
    async with world.log("l") as log:
        await older(world, log, txid_rule=AUTO)
        writer = await log.open_writer()
        await writer.write(LogRecord(3, b"a"))
        await writer.abort()
        await older(world, log, txid_policy="")  # as if that had been an older program
        async with log.open_writer() as writer:
            assert writer.txid_policy == GIVEN
            with pytest.raises(TransactionIdOutOfOrder):
                await writer.write(LogRecord(2, b"b"))


async def test_what_an_older_program_makes_of_the_rule_changes_no_policy(
    world: World, autojump_clock: MockClock
) -> None:
    """A mixed cluster: it opens a log of ``auto``, and decides ``ms`` or ``given`` as it always did."""
    for decided in (MS, GIVEN):
        async with world.log(decided) as log:
            await put(log, 5)
            await older(world, log, keep=True, txid_rule=decided)
            async with log.open_writer() as writer:
                assert writer.txid_policy == AUTO
                await writer.write(b"without")
                await writer.write(LogRecord(2, b"back"))
            assert (await log.describe()).txid_policy == "auto"


async def older(world: World, log: Log, *, keep: bool = False, **fields: Any) -> None:
    """Have the log's state as an older program leaves it; ``keep``: with the policy, which it keeps."""
    found = await world.metadata.get(state_key((await log.describe()).state.log_id))
    assert found is not None
    policy = LogState.decode(found.value).txid_policy if keep else ""
    state = replace(LogState.decode(found.value), **{"txid_policy": policy, **fields})
    await world.metadata.transact(Transaction((), (Put(found.key, state.encode()),)))


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


async def test_no_record_that_goes_back_is_sent_before_the_state_says_so(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an older program might recover its segment, and store its last txid as the greatest."""
    away = Away(world, monkeypatch)
    async with world.log("l") as log, trio.open_nursery() as nursery, log.open_writer() as writer:
        await writer.write(LogRecord(5, b"first"))
        away.on = True
        nursery.start_soon(writer.write, LogRecord(4, b"back"))
        await trio.sleep(5)
        assert len(await everything(log)) == 1
        assert not (await log.describe()).state.had_unordered_txids
        away.on = False
        await trio.sleep(1)
        state = (await log.describe()).state
        assert (state.had_unordered_txids, state.writer_format, state.is_txid_searchable) == (
            True,
            WRITER_FORMAT_PLAIN + WITH_UNORDERED,
            True,
        )
        assert len(await everything(log)) == 2


async def test_where_the_state_cannot_say_so_what_goes_back_is_not_taken(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Away(world, monkeypatch)
    async with world.log("l") as log, log.open_writer() as writer:
        await writer.write(LogRecord(5, b"first"))
        away.on = True
        with pytest.raises(WriteCancelled, match="away"):
            await writer.write(LogRecord(4, b"back"))
        bulk = await writer.submit_bulk([b"in", LogRecord(4, b"back")])
        assert [type(one).__name__ for one in await bulk.outcomes()] == ["DLSN", "WriteCancelled"]
        frame = writer.sequenced_writer.append_batch([b"back"], lambda _: None, txids=[4])
        assert frame is None
        with pytest.raises(WriteCancelled):
            await writer.sequenced_writer.wait_capacity(1, 4)
        away.on = False
        await writer.write(b"second")
        assert [record.payload for record in await everything(log)] == [b"first", b"in", b"second"]


async def test_what_comes_in_order_asks_the_metadata_nothing(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand new logs each would wait for the quorum, and none be written while that is away."""
    away = Away(world, monkeypatch)
    async with world.log("l") as log:
        writer = await log.open_writer()
        away.on = True
        await writer.write(LogRecord(3, b"first"))
        await writer.write(b"second")
        away.on = False
        await writer.abort()
        assert len(await everything(log)) == 2


async def test_many_first_records_at_once(world: World, autojump_clock: MockClock) -> None:
    """With and without txids, by as many tasks: all are in."""
    for policy in ("auto", "count"):
        async with world.log(policy, txids=policy) as log:
            async with log.open_writer() as writer, trio.open_nursery() as nursery:
                for number in range(20):
                    record: Any = b"x" if number % 2 else LogRecord(number, b"y")
                    nursery.start_soon(writer.write, record)
            assert len(await everything(log)) == 20


@pytest.mark.parametrize("seed", few(range(12), 2))
async def test_a_search_equals_a_scan_where_txids_go_back(
    world: World, autojump_clock: MockClock, seed: int
) -> None:
    """Over rolls, recoveries, links, packed entries, control entries and truncations; by every reader."""
    chance = random.Random(seed)
    async with world.process(entry_bytes_max=200, segment_bytes_max=900) as ns:
        await ns.create_log("l", txids=chance.choice(["auto", "count", "ms"]))
        log = ns.open_log("l")

        def some(number: int) -> list[int]:
            return [
                chance.choice([chance.randrange(40), 10**13 + chance.randrange(40)])
                for _ in range(number)
            ]

        for _ in range(chance.randrange(2, 6)):
            if chance.random() < 0.3:
                own = some(3) if chance.random() < 0.7 else None
                await log.link_segments([await segment(log, own)])
                continue
            writer = await log.open_writer()
            for _ in range(chance.randrange(1, 12)):
                what = chance.randrange(5)
                if what == 0:
                    await writer.write(b"without")
                elif what == 1:
                    await writer.write(LogRecord(some(1)[0], b"given"))
                elif what == 2:
                    await writer.write_bulk([LogRecord(txid, b"bulk") for txid in some(5)])
                elif what == 3:
                    columns = packed(some(3), [b"a", b"b", b"c"])
                    await (await writer.submit_packed(*columns))
                else:
                    await trio.sleep(3)
            if chance.random() < 0.5:
                await writer.aclose()
            else:
                await writer.abort()
        for cut in (False, True):
            if cut:
                found = await everything(log)
                await log.truncate(chance.choice(found).dlsn)
            found = await everything(log)
            view = await view_log(world.metadata, world.ledgers, "l", await ns.resolve_name("l"))
            for wanted in {one.txid + more for one in found for more in (0, 1)} | {0}:
                at = next((one.dlsn for one in found if one.txid >= wanted), None)
                position = await log.find(txid=wanted)
                async with log.open_reader(txid=wanted, to="end") as reader:
                    read = [one.dlsn async for one in reader]
                if at is None:
                    assert read == []
                    assert position > found[-1].dlsn
                else:
                    assert position == at
                    assert read == [one.dlsn for one in found if one.dlsn >= at]
                    assert await view.first_with_txid(wanted) == at
            view.close()
            greatest = max(one.txid for one in found)
            assert (await log.snapshot()).last_txid >= greatest
            async with log.open_writer() as writer:
                assert writer.last_txid >= greatest


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
    """As records that are written; found by them like any others."""
    async with world.process() as ns:
        expected: dict[str, list[int]] = {}
        for txid_rule in (AUTO, GIVEN, COUNT, MS):
            await ns.create_log(txid_rule, txids=txid_rule)  # type: ignore[arg-type]
            log = ns.open_log(txid_rule)
            own = txid_rule in (AUTO, GIVEN)
            async with log.open_writer() as writer:
                await writer.write_bulk([LogRecord(7, b"a"), LogRecord(9, b"b")] if own else [b"a"])
            await trio.sleep(3)
            await log.link_segments([await segment(log, None), await segment(log, None)])
            async with log.open_writer() as writer:
                await writer.write(b"z")
            expected[txid_rule] = await txids(log)
            for wanted in sorted(set(expected[txid_rule])):
                first = expected[txid_rule].index(wanted)
                assert await log.find(txid=wanted) == (await everything(log))[first].dlsn

        for policy in (AUTO, GIVEN):
            base = expected[policy][2]
            assert base >= START_MS
            assert expected[policy] == [7, 9, *range(base, base + 7)]
        assert expected[COUNT] == list(range(8))
        times = expected[MS]
        assert times == sorted(times)
        assert times[1] == times[6] >= START_MS + 3000


@pytest.mark.parametrize("own", [[1, 2, 3], None])
async def test_nothing_is_linked_to_a_byte_stream(
    world: World, autojump_clock: MockClock, own: list[int] | None
) -> None:
    async with world.log("l", txids="bytes") as log:
        with pytest.raises(InvalidRequest, match="byte"):
            await log.link_segments([await segment(log, own)])
        assert await everything(log) == []


async def test_only_what_goes_back_is_noted(world: World, autojump_clock: MockClock) -> None:
    """Programs that do not know of greatest txids may change the log as long as that makes no difference."""
    async with world.process() as ns:
        for name, own, expected in (("a", [1, 2, 2], False), ("b", [1, 3, 2], True)):
            for way in ("written", "bulk", "packed", "linked"):
                log = ns.open_log(name + way)
                await ns.create_log(log.name)
                if way == "linked":
                    await log.link_segments([await segment(log, own)])
                async with log.open_writer() as writer:
                    if way == "written":
                        await put_by(writer, own)
                    elif way == "bulk":
                        await writer.write_bulk([LogRecord(txid, b"x") for txid in own])
                    elif way == "packed":
                        columns = packed(own, [b"a", b"b", b"c"])
                        await (await writer.submit_packed(*columns))
                state = (await log.describe()).state
                assert (state.had_unordered_txids, state.writer_format) == (
                    (True, WRITER_FORMAT_PLAIN + WITH_UNORDERED)
                    if expected
                    else (False, WRITER_FORMAT_PLAIN)
                )
                assert (state.is_txid_searchable, state.last_txid) == (True, max(own))


async def put_by(writer: LogWriter, own: list[int]) -> None:
    for txid in own:
        await writer.write(LogRecord(txid, b"x"))


async def test_producers_and_txids_that_go_back_are_noted_apart(
    world: World, autojump_clock: MockClock
) -> None:
    """Whichever comes first: without producers entries say nothing of them."""
    async with world.log("l") as log:
        async with log.open_writer() as writer:
            await put_by(writer, [2, 1])
        state = (await log.describe()).state
        assert (state.has_producers, state.is_txid_searchable, state.writer_format) == (
            False,
            True,
            WRITER_FORMAT_PLAIN + WITH_UNORDERED,
        )
        async with log.open_writer(producer="p") as writer:
            assert writer.send_queue.producers is not None
            await put_by(writer, [1])
        both = (await log.describe()).state
        assert (both.has_producers, both.is_txid_searchable, both.writer_format) == (
            True,
            True,
            WRITER_FORMAT_PLAIN + WITH_PRODUCERS + WITH_UNORDERED,
        )
    plain = replace(both, had_unordered_txids=False, writer_format=WRITER_FORMAT_PLAIN)
    assert (
        plain.with_producers().with_unordered().writer_format
        == WRITER_FORMAT_PLAIN + WITH_PRODUCERS + WITH_UNORDERED
    )


async def test_where_an_older_program_let_txids_go_back_none_is_searched_for(
    world: World, autojump_clock: MockClock
) -> None:
    """Its entries do not say the greatest so far; what is written by this one changes nothing of that."""
    async with world.log("l") as log:
        await put(log, 5)
        await older(world, log, had_unordered_txids=True)
        async with log.open_writer() as writer:
            await put_by(writer, [9, 4])
        with pytest.raises(InvalidRequest, match="decreasing txids"):
            await log.find(txid=1)
        with pytest.raises(InvalidRequest, match="decreasing txids"):
            await log.open_reader(txid=1)
        assert await txids(log) == [5, 9, 4]
        assert (await log.describe()).state.writer_format == WRITER_FORMAT_PLAIN


async def test_a_segment_of_an_older_program_is_linked_where_its_txids_are_in_order(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.log("l") as log:
        monkeypatch.setattr(
            SegmentEnd, "encode", partialmethod(_without_greatest, SegmentEnd.encode)
        )
        sound, back = await segment(log, [1, 2, 3]), await segment(log, [1, 3, 2])
        monkeypatch.undo()
        await log.link_segments([sound])
        with pytest.raises(TransactionIdOutOfOrder, match="older program"):
            await log.link_segments([back])
        assert await txids(log) == [1, 2, 3]


def _without_greatest(end: SegmentEnd, encode: Any) -> bytes:
    found: bytes = encode(replace(end, stores_max_txid=False))
    return found


async def test_a_strict_log_refuses_what_goes_back_and_the_writer_goes_on(
    world: World, autojump_clock: MockClock
) -> None:
    """By each call, with words for whoever reads them; `max_txid_check` off lets it pass."""
    async with world.log("l", txids="strict") as log:
        async with log.open_writer() as writer:
            await writer.write(LogRecord(5, b"a"))
            columns = packed([4], [b"x"])
            for call in (
                lambda: writer.write(LogRecord(4, b"x")),
                lambda: writer.write_bulk([LogRecord(4, b"x")]),
                lambda: writer.write_set([LogRecord(4, b"x")]),
                lambda: writer.submit_packed(*columns),
            ):
                with pytest.raises(
                    TransactionIdOutOfOrder, match='policy "strict": txid 4 is lower than 5'
                ):
                    await call()
            with pytest.raises(TransactionIdOutOfOrder):
                writer.sequenced_writer.append_batch([b"x"], lambda _: None, txids=[4])
            await writer.write(b"without")
            assert writer.last_txid > 5
        with pytest.raises(TransactionIdOutOfOrder, match="strict"):
            await log.link_segments([await segment(log, [4, 5, 6])])
        state = (await log.describe()).state
        assert (state.had_unordered_txids, len(await everything(log))) == (False, 2)
    async with world.process(max_txid_check=False) as ns, ns.open_log("l").open_writer() as writer:
        await writer.write(LogRecord(4, b"x"))


async def test_rules_have_names(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        with pytest.raises(InvalidRequest, match="count"):
            await ns.create_log("l", txids="counted")  # type: ignore[arg-type]
        assert not await ns.log_exists("l")
        for given, shown in (("given", "strict"), ("strict", "strict"), ("auto", "auto")):
            await ns.create_log(given, txids=given)  # type: ignore[arg-type]
            assert (await ns.open_log(given).describe()).txid_policy == shown


async def test_equal_txids_are_in_order(world: World, autojump_clock: MockClock) -> None:
    """A log whose txids decrease is recorded as such, and older programs cannot change it afterwards."""
    async with world.log("l") as log, log.open_writer() as writer:
        await writer.write(LogRecord(5, b"first"))
        await writer.write(LogRecord(5, b"again"))
        await writer.write_set([LogRecord(5, b"set"), LogRecord(5, b"of two")])
        await writer.commit()
        assert not (await log.describe()).state.had_unordered_txids
        await writer.write_set([LogRecord(4, b"lower")])
        await writer.commit()
        assert (await log.describe()).state.had_unordered_txids
