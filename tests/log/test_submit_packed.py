"""Records that come as the columns of an entry: checked in bulk, sent as they are, all or none."""

from array import array
from collections.abc import Sequence
from ctypes import c_int, c_longlong
from itertools import accumulate
from mmap import mmap
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.packed_columns import (
    PACKED_BYTES_MAX,
    check_packed,
    copy_and_check_packed,
)
from distributedlog.log.format.record import Origin, decode_columns, decode_header
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    InvalidRequest,
    RecordTooLarge,
    TransactionIdOutOfOrder,
    WriteFailed,
)
from tests.examples import examples
from tests.log.conftest import World
from tests.log.records import everything, rec


def columns(txids: Sequence[int], payloads: Sequence[bytes]) -> tuple[bytes, bytes, bytes]:
    """As a caller has them."""
    ends = [0]
    for payload in payloads:
        ends.append(ends[-1] + len(payload))
    return array("q", txids).tobytes(), array("i", ends).tobytes(), b"".join(payloads)


async def test_columns_are_an_entry_between_what_came_before_and_after(
    world: World, autojump_clock: MockClock
) -> None:
    """G1: records keep the order of the calls, however they were handed over."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            before = await writer.submit(rec(1, b"before"))
            packed = await writer.submit_packed(*columns([2, 2, 5], [b"a", b"", b"ccc"]))
            after = await writer.submit_columns([5, 6], [b"d", b"e"])
            assert writer.last_txid == 6
            dlsns = [await before, *(await packed), *(await after)]

        found = await everything(log)

    assert len(packed) == 3
    assert dlsns == [
        DLSN(1, 0, 0),
        *(DLSN(1, 1, slot) for slot in range(3)),
        DLSN(1, 2, 0),
        DLSN(1, 2, 1),
    ]
    assert [(r.txid, bytes(r.payload)) for r in found] == [
        (1, b"before"), (2, b"a"), (2, b""), (5, b"ccc"), (5, b"d"), (6, b"e"),
    ]  # fmt: skip
    assert [r.dlsn for r in found] == dlsns
    assert [r.sequence_id for r in found] == list(range(6))


async def test_buffers_may_be_changed_once_the_call_is_over(
    world: World, autojump_clock: MockClock
) -> None:
    """They may wait for room, or be sent again to another segment: what was checked is what is written."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(rec(0))
            world.ledgers.held = True
            world.ledgers.keep_in_flight = 0
            txids, offsets = array("q", [1, 2]), array("i", [0, 1, 2])
            payloads = bytearray(b"ab")
            pending = await writer.submit_packed(
                memoryview(txids), memoryview(offsets), memoryview(payloads)
            )
            await trio.sleep(0.1)
            txids[:], offsets[:] = array("q", [9, 0]), array("i", [7, 0, 99])
            payloads[:] = b"xx"
            world.ledgers.held = False
            world.ledgers.writers[0].fail(WriteFailed("no acks"))
            assert await pending == [DLSN(2, 0, 0), DLSN(2, 0, 1)]  # it was sent again

        found = await everything(log)

    assert [(r.txid, bytes(r.payload)) for r in found] == [(0, b"x"), (1, b"a"), (2, b"b")]


@pytest.mark.parametrize("kept", [0, 1, 3])
async def test_columns_in_a_failed_ledger_are_there_once(
    world: World, autojump_clock: MockClock, kept: int
) -> None:
    """H11."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(rec(0))
            world.ledgers.held = True
            world.ledgers.keep_in_flight = kept
            pending = [
                await writer.submit_packed(*columns([i, i], [b"%d" % i, bytes(50)]))
                for i in range(1, 20)
            ]
            await trio.sleep(0.1)
            world.ledgers.held = False
            world.ledgers.writers[0].fail(WriteFailed("entry 3: 1 of 2 acks after 5.0 s"))
            dlsns = [dlsn for each in pending for dlsn in await each]

            assert dlsns == sorted(set(dlsns))
            assert writer.segment == 2
        found = await everything(log)
        assert [r.txid for r in found] == [0, *(i for i in range(1, 20) for _ in range(2))]
        assert [r.dlsn for r in found[1:]] == dlsns


async def test_segments_roll_by_size_under_columns_alone(
    world: World, autojump_clock: MockClock
) -> None:
    """No open batch ever asks for it: each call does."""
    async with world.process(segment_bytes_max=2000) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            for i in range(60):
                await writer.submit_packed(*columns([i], [bytes(200)]))
                await trio.sleep(0.1)
            await writer.commit()
            assert writer.segment > 3
        assert [r.txid for r in await everything(log)] == list(range(60))


async def test_what_waits_is_bounded_and_the_caller_waits(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(in_flight_bytes_max=100_000) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(rec(0))
            world.ledgers.held = True
            taken = 0
            with trio.move_on_after(10):
                while True:
                    await writer.submit_packed(*columns([taken], [bytes(10_000)]))
                    taken += 1
            assert 5 < taken < 15
            world.ledgers.release()
            await writer.commit()
        assert len(await everything(log)) == 1 + taken


def raw(
    txids: Sequence[int], offsets: Sequence[int], payloads: bytes
) -> tuple[bytes, bytes, bytes]:
    return array("q", txids).tobytes(), array("i", offsets).tobytes(), payloads


LARGE = bytes(PACKED_BYTES_MAX)
BACK = TransactionIdOutOfOrder
WRONG: list[tuple[tuple[object, object, object], type[DistributedLogError], str]] = [
    (raw([], [0], b""), InvalidRequest, "0 txids"),
    (raw([5], [0], b""), InvalidRequest, "1 txids and 1 offsets"),
    ((bytes(7), array("i", [0, 1]).tobytes(), b"x"), InvalidRequest, "buffers"),
    (raw([5], [0, 2], b"x"), InvalidRequest, "ascend from 0 to its 1"),
    (raw([5], [1, 1], b"x"), InvalidRequest, "the first is 1"),
    (raw([5, 6], [0, 2, 1], b"x"), InvalidRequest, "ascend"),
    (raw([5, 6], [0, -1, 1], b"x"), InvalidRequest, "ascend"),
    (raw([5, -6], [0, 0, 1], b"x"), InvalidRequest, "a txid must"),
    (raw([2**63 - 1], [0, 1], b"x"), InvalidRequest, "a txid must"),
    (raw([7, 6], [0, 0, 1], b"x"), BACK, "6 is lower than 7"),
    (raw([3], [0, 1], b"x"), BACK, "3 is lower than 4"),
    (raw([5], [0, len(LARGE)], LARGE), RecordTooLarge, "1 records"),
    (([5], [0, 1], [b"x"]), InvalidRequest, "buffers"),
    ((5, 5, 5), InvalidRequest, "buffers"),
    ((array("d", [5.0]), array("i", [0, 1]), b"x"), InvalidRequest, "int64 .* format d"),
    (
        (memoryview(bytes(8)).cast("?"), array("i", [0, 1]), b"x"),
        InvalidRequest,
        r"int64 .* format \?",
    ),
    ((array("i", [5, 0]), array("i", [0, 1]), b"x"), InvalidRequest, "int64 .* format i"),
    ((array("q", [5]), array("f", [0, 0]), b"x"), InvalidRequest, "int32 .* format f"),
    ((array("q", [0, 0]), array("q", [0]), b""), InvalidRequest, "int32 .* format q"),
    (((c_longlong.__ctype_be__ * 1)(5), array("i", [0, 1]), b"x"), InvalidRequest, "format >"),
]


def test_columns_may_be_whole_numbers_of_their_size_or_bytes() -> None:
    ids, ends = array("q", [5]), array("i", [0, 1])
    txids: Any
    offsets: Any
    for txids in (
        ids,
        array("Q", [5]),
        ids.tobytes(),
        (c_longlong * 1)(5),
        memoryview(ids).cast("b"),
    ):
        for offsets in (ends, array("I", [0, 1]), ends.tobytes(), (c_int * 2)(0, 1)):
            assert copy_and_check_packed(txids, offsets, b"x").txids.tolist() == [5]


@pytest.mark.parametrize(("given_columns", "error", "says"), WRONG, ids=range(len(WRONG)))
async def test_columns_that_do_not_fit_are_refused_whole(
    world: World,
    autojump_clock: MockClock,
    given_columns: tuple[object, object, object],
    error: type[DistributedLogError],
    says: str,
) -> None:
    """Nothing of them is taken, nothing of what is buffered is lost, and the writer goes on."""
    async with world.process() as ns:
        await ns.create_log("l", txids="strict")
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            pending = await writer.submit(rec(4))
            with pytest.raises(error, match=says):
                await writer.submit_packed(*given_columns)  # type: ignore[arg-type]
            assert writer.last_txid == 4
            await writer.submit_packed(*columns([4], [b"on"]))
            await pending
        assert [r.txid for r in await everything(log)] == [4, 4]


async def test_where_txids_need_no_order_columns_need_none(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(max_txid_check=False) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.submit_packed(*columns([7, 3, 5], [b"a", b"b", b"c"]))
        assert [r.txid for r in await everything(log)] == [7, 3, 5]


async def test_a_closed_writer_takes_no_columns(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        async with ns.open_log("l").open_writer() as writer:
            await writer.write(rec(1))
        with pytest.raises(AlreadyClosed):
            await writer.submit_packed(*columns([2], [b"x"]))


@pytest.mark.properties
@settings(max_examples=examples(300))
@given(
    st.integers(1, 200),
    st.sampled_from(["same", "up", "steps", "down"]),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from("to"), st.integers(0, 200), st.integers(-3, 3)), max_size=2),
    st.integers(-1, 1),
    st.randoms(use_true_random=False),
)
def test_what_is_checked_at_once_is_checked_as_one_by_one(
    number: int,
    order: str,
    even: bool,
    flaws: list[tuple[str, int, int]],
    beyond: int,
    chance: Random,
) -> None:
    """Payloads of one length, one txid for all, neither, and a number that is wrong anywhere."""
    top = 2**63 - 2
    txids = {
        "same": [chance.choice((0, 5, top - 3))] * number,
        "up": list(range(number)),
        "steps": sorted(chance.choice((0, 7, chance.randint(0, top))) for _ in range(number)),
        "down": list(range(number, 0, -1)),
    }[order]
    sizes = [5 if even else chance.choice((0, 1, 9)) for _ in range(number)]
    offsets = list(accumulate(sizes, initial=0))
    data = bytes(max(0, offsets[-1] + beyond * chance.randint(0, 1)))
    for which, at, by in flaws:
        column = txids if which == "t" else offsets
        column[at % len(column)] += by

    found: object
    try:
        packed = check_packed(
            array("q", txids).tobytes(), array("i", offsets).tobytes(), memoryview(data)
        )
        found = packed.txids.tolist(), packed.offsets.tolist(), packed.is_ascending
    except InvalidRequest as error:
        found = str(error)[:7]

    if offsets[0] or offsets != sorted(offsets) or offsets[-1] != len(data):
        assert found == "offsets"
    elif min(txids) < 0 or max(txids) > top:
        assert found == "a txid "
    else:
        assert found == (txids, offsets, txids == sorted(txids))


def test_columns_of_gigabytes_are_too_large_before_anything_is_made_of_them() -> None:
    """Of even offsets that would be another column as long as theirs."""
    size = 2**27
    data = memoryview(mmap(-1, 8 * size))  # zeros that nobody has touched
    with pytest.raises(RecordTooLarge, match="8 records"):
        check_packed(bytes(64), array("i", range(0, 8 * size + 1, size)).tobytes(), data)


@pytest.mark.parametrize("rule", ["count", "ms", "bytes"])
async def test_txids_that_the_log_gives_are_those_of_other_calls(
    world: World, autojump_clock: MockClock, rule: Any
) -> None:
    """One by one, in bulk and packed, in turn."""
    payloads = [b"a", b"", b"ccc"] * 30
    async with world.process() as ns:
        for name in "lm":
            await ns.create_log(name, txids=rule)
        async with ns.open_log("l").open_writer() as writer:
            for _ in range(2):
                await writer.submit_packed(None, *columns([0] * len(payloads), payloads)[1:])
                await writer.submit_columns(None, payloads)
        async with ns.open_log("m").open_writer() as writer:
            for _ in range(4):
                for payload in payloads:
                    await writer.submit(payload)
        packed, single = [
            [(r.txid, bytes(r.payload)) for r in await everything(ns.open_log(name))]
            for name in "lm"
        ]

    assert [payload for _, payload in packed] == payloads * 4
    if rule == "ms":  # they were written at another time
        assert (
            len({txid - other for (txid, _), (other, _) in zip(packed, single, strict=True)}) == 1
        )
    else:
        assert packed == single


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.integers(0, 2**63 - 2), st.binary(max_size=20)), min_size=1, max_size=30)
)
def test_what_the_check_lets_through_a_reader_takes(records: list[tuple[int, bytes]]) -> None:
    """The same columns come back, and who wrote them knows whether they ascend."""
    txids = [txid for txid, _ in records]
    packed = check_packed(*columns(txids, [payload for _, payload in records]))
    entry = b"".join(packed.build_entry(records_before=3, written_ms=1)[0])

    found = decode_columns(entry, decode_header(entry), Origin(1, 0, 3))

    assert found.tuples() == records
    assert packed.txids.tolist() == txids
    assert packed.is_ascending == (txids == sorted(txids))
    assert packed.build_entry(records_before=3, written_ms=1)[1] == len(entry)
