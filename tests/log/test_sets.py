"""Record sets: all of one call, or none of it, next to each other in one entry."""

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import (
    RECORD_BYTES_MAX,
    RECORD_MORE,
    LogRecord,
    Origin,
    build_entry,
    decode_columns,
    decode_header,
)
from distributedlog.log.log import Log
from distributedlog.log.model.log_state import BYTES, COUNT, GIVEN
from distributedlog.log.write.record_validation import SET_RECORD_BYTES, set_bytes, validate_sets
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    InvalidRequest,
    RecordTooLarge,
    TransactionIdOutOfOrder,
    UnsupportedFormat,
    WriteFailed,
)
from tests.examples import examples
from tests.log.conftest import World
from tests.log.records import everything, rec


async def sets_of(log: Log) -> list[list[bytes]]:
    """The payloads, set by set."""
    found = []
    async with log.open_reader(to="end") as reader:
        while one := await reader.read_set():
            found.append([bytes(record.payload) for record in one])
    return found


def entry_of(flags: bytes) -> bytes:
    number = len(flags)
    buffers, _ = build_entry(
        [7] * number, [b"x"] * number, records_before=0, written_ms=0, record_flags=flags
    )
    return b"".join(buffers)


def test_the_bytes_of_a_set() -> None:
    """docs/reference/formats.md. These bytes are on disks: they never change."""
    entry = entry_of(b"\x01\x01\x00\x00")

    assert RECORD_MORE == 1
    assert entry[6:8] == b"\x40\x00"  # flags of the entry: records have flags
    assert entry[-8:] == b"\x01\x01\x00\x00" + b"xxxx"
    more = [
        one.more for one in decode_columns(entry, decode_header(entry), Origin(1, 0, 0)).records()
    ]
    assert more == [True, True, False, False]


@pytest.mark.parametrize(
    ("flags", "txids", "sets"),
    [
        (b"\0\0\0", None, None),
        (b"\1\1\0", None, [(0, 3)]),
        (b"\0\1\0\0\1\1\0", None, [(1, 2), (4, 3)]),
        (b"\1\0\1\0", [3, 3, 4, 4], [(0, 2), (2, 2)]),
        (b"\1\0\1\0", [3, 4, 4, 4], "the same txid"),
        (b"\0\1", None, "are invalid"),
        (b"\2\0", None, "are invalid"),
        (b"\1\0\0", b"two", "are invalid"),
    ],
)
def test_the_sets_of_a_frame(flags: bytes, txids: list[int] | bytes | None, sets: object) -> None:
    payloads = [b"x"] * (2 if isinstance(txids, bytes) else len(flags))
    own = None if isinstance(txids, bytes) else txids
    rule = COUNT if own is None else GIVEN

    def found() -> object:
        return validate_sets(flags, own, payloads, "l", rule)

    if isinstance(sets, str):
        with pytest.raises(InvalidRequest, match=sets):
            found()
    else:
        assert found() == sets


def test_no_sets_in_a_stream_of_bytes_and_none_too_large() -> None:
    assert validate_sets(b"\0\0", None, [b"x", b"y"], "l", BYTES) is None
    with pytest.raises(InvalidRequest, match="no record sets"):
        validate_sets(b"\1\0", None, [b"x", b"y"], "l", BYTES)
    large = bytes(RECORD_BYTES_MAX - 2 * SET_RECORD_BYTES)
    assert validate_sets(b"\1\0", None, [large, b""], "l", COUNT) == [(0, 2)]
    with pytest.raises(RecordTooLarge):
        validate_sets(b"\1\0", None, [large, b"1"], "l", COUNT)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (b"\x01\x02", UnsupportedFormat),  # reserved for keys and headers
        (b"\x02\x00", UnsupportedFormat),
        (b"\x80", UnsupportedFormat),
        (b"\x00\x01", CorruptData),  # where is the rest?
        (b"\x01", CorruptData),
    ],
)
def test_flags_that_cannot_be_are_refused(flags: bytes, error: type[Exception]) -> None:
    entry = entry_of(flags)

    with pytest.raises(error):
        decode_columns(entry, decode_header(entry), Origin(1, 0, 0))


async def test_a_set_is_consecutive_slots_of_one_entry(
    world: World, autojump_clock: MockClock
) -> None:
    """Between other records, and as large as an entry under load; one alone needs no flag."""
    async with world.process(entry_bytes_max=3000) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            pending = [await writer.submit_bulk([rec(1, b"a"), rec(1, b"b")])]
            pending.append(await writer.submit_set([rec(2, b"c"), rec(2, bytearray(b"d"))]))  # type: ignore[arg-type]
            pending.append(await writer.submit_set([rec(2, b"e"), rec(2, b"f"), rec(2, b"")]))
            pending.append(await writer.submit_bulk([rec(3, b"g")]))
            pending.append(await writer.submit_set([rec(3, b"h")]))
            large = await writer.submit_set([rec(4, bytes([n]) * 100) for n in range(200)])
            await writer.submit(rec(5, b"i"))
            dlsns = [dlsn for one in pending for dlsn in await one]
            assert dlsns == [DLSN(1, 0, slot) for slot in range(9)]
            assert await large == [DLSN(1, 1, slot) for slot in range(200)]
            first, second = await writer.write_set([rec(6, b"j"), rec(6, b"k")])
            assert second == DLSN(first.segment, first.entry, first.slot + 1)

        assert await sets_of(log) == [
            [b"a"], [b"b"], [b"c", b"d"], [b"e", b"f", b""], [b"g"], [b"h"],
            [bytes([n]) * 100 for n in range(200)], [b"i"], [b"j", b"k"],
        ]  # fmt: skip
        found = await everything(log)
        assert [one.sequence_id for one in found] == list(range(len(found)))
        assert [one.more for one in found[:9]] == [
            False,
            False,
            True,
            False,
            True,
            True,
            *[False] * 3,
        ]
        assert not rec(1).more
        assert (await log.describe()).records == len(found)


@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_a_set_is_there_whole_or_not_at_all(
    world: World, autojump_clock: MockClock, kept: int
) -> None:
    """Through a failed ledger, whatever of it is found, each is there once; after an abort all or nothing."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(rec(0, b""))
            world.ledgers.held = True
            world.ledgers.keep_in_flight = kept
            pending = []
            for n in range(1, 9):
                pending.append(await writer.submit_set([rec(n, b"%d" % n)] * n))
                await trio.sleep(0.01)
            world.ledgers.held = False
            world.ledgers.writers[0].fail(WriteFailed("no acks"))
            for n, one in enumerate(pending, 1):
                dlsns = await one
                assert [dlsn.slot - dlsns[0].slot for dlsn in dlsns] == list(range(n))
                assert len({dlsn[:2] for dlsn in dlsns}) == 1
        writer = await log.open_writer()
        world.ledgers.held = True
        last = await writer.submit_set([rec(9, b"9")] * 3)
        await trio.sleep(0.1)
        await writer.abort()
        with pytest.raises(WriteFailed):
            await last
        assert {type(one) for one in await last.outcomes()} == {WriteFailed}
        world.ledgers.held = False
        await (await log.open_writer()).aclose()
        found = await sets_of(log)
        assert found[:9] == [[b""], *([b"%d" % n] * n for n in range(1, 9))]
        assert found[9:] in ([], [[b"9"] * 3])


async def test_what_cannot_be_a_set_is_refused_whole(
    world: World, autojump_clock: MockClock
) -> None:
    """Nothing is taken, and the writer goes on."""
    half = bytes(RECORD_BYTES_MAX // 2)
    least = RECORD_BYTES_MAX - 2 * SET_RECORD_BYTES
    wrong: list[tuple[list[object], type[DistributedLogError], str]] = [
        ([], InvalidRequest, "at least one"),
        ([rec(5), rec(6)], InvalidRequest, "the same txid"),
        ([rec(5), b"without"], InvalidRequest, "the same txid"),
        ([rec(5), rec(5, None)], InvalidRequest, "bytes"),  # type: ignore[arg-type]
        ([rec(3), rec(3)], TransactionIdOutOfOrder, "lower than 4"),
        ([rec(5, half), rec(5, half)], RecordTooLarge, "a set of 2 records"),
        ([rec(5), rec(5, bytes(RECORD_BYTES_MAX + 1))], RecordTooLarge, "a record"),
    ]
    async with world.process() as ns:
        await ns.create_log("l", txids="strict")
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(rec(4))
            for records, error, says in wrong:
                with pytest.raises(error, match=says):
                    await writer.submit_set(records)  # type: ignore[arg-type]
            assert writer.last_txid == 4
            most = [rec(4, bytes(least // 2)), rec(4, bytes(least - least // 2))]
            assert set_bytes([one.payload for one in most]) == RECORD_BYTES_MAX
            assert await writer.write_set(most) == [DLSN(1, 1, 0), DLSN(1, 1, 1)]
        await ns.create_log("bytes", txids="bytes")
        async with ns.open_log("bytes").open_writer() as writer:
            with pytest.raises(InvalidRequest, match="no record sets"):
                await writer.submit_set([b"a", b"b"])


@pytest.mark.parametrize("rule", ["auto", "ms", "count"])
async def test_where_the_log_gives_txids_a_set_has_one(
    world: World, autojump_clock: MockClock, rule: str
) -> None:
    async with world.process() as ns:
        await ns.create_log("l", txids=rule)  # type: ignore[arg-type]
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write_set([b"a", b"b", LogRecord(payload=b"c")])
            await writer.write(b"d")
            await writer.write_set([b"e", b"f"])
        found = await everything(log)
        txids = [one.txid for one in found]
        assert txids[0] == txids[1] == txids[2]
        assert txids[4] == txids[5]
        if rule == "count":
            assert txids == [0, 0, 0, 1, 2, 2]
        assert await sets_of(log) == [[b"a", b"b", b"c"], [b"d"], [b"e", b"f"]]


async def test_readers_may_begin_and_end_within_a_set(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write_set([rec(1, b"%d" % n) for n in range(5)])
            await writer.write_set([rec(2, b"x"), rec(2, b"y")])
        async with log.open_reader(dlsn=DLSN(1, 0, 2), to=DLSN(1, 0, 3)) as reader:
            assert [one.payload for one in await reader.read_set()] == [b"2", b"3"]
            assert await reader.read_set() == []
        async with log.open_reader() as reader:
            assert [one.payload for one in await reader.read_bulk(3)] == [b"0", b"1", b"2"]
            assert [one.payload for one in await reader.read_set()] == [b"3", b"4"]
            columns = await reader.read_columns()
            assert columns is not None
            assert columns.flags is not None
            assert bytes(columns.flags) == b"\x01\x00"
            assert await reader.read_set(wait_s=0) == []


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.lists(st.binary(max_size=60), min_size=1, max_size=9), max_size=12))
def test_sets_are_read_as_they_were_written(sets: list[list[bytes]]) -> None:
    """Whatever their number and sizes, through entries of 300 bytes and segments of 2,000."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            world = World(nursery)
            async with world.process(entry_bytes_max=300, segment_bytes_max=2000) as ns:
                log = ns.open_log("l")
                async with log.open_writer() as writer:
                    for txid, one in enumerate(sets):
                        await writer.submit_set([rec(txid, payload) for payload in one])
                if sets:
                    assert await sets_of(log) == sets
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
