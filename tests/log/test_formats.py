"""The stored values of a log: their bytes, which formats are read, who may change what (H149)."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import (
    TXIDS_CONSTANT,
    TXIDS_IN_ENTRIES,
    TXIDS_INDEXED,
    LogRecord,
)
from distributedlog.log.log import Log
from distributedlog.log.model.deleted_log import DeletedLog
from distributedlog.log.model.deleted_log import encode_deleted_logs as encode_tombstones
from distributedlog.log.model.lock_record import LockRecord
from distributedlog.log.model.log_keys import segment_key, state_key
from distributedlog.log.model.log_state import (
    AUTO,
    COUNT,
    GIVEN,
    WRITER_FORMAT,
    ClosedSegmentTotals,
    LogEnd,
    LogState,
)
from distributedlog.log.model.segment_record import SegmentEnd, SegmentRecord
from distributedlog.log.namespace import Namespace
from distributedlog.log.segments.app_versions import AppVersion, LinkContent
from distributedlog.log.segments.segment_purge import last_purgeable_segment, purge
from distributedlog.log.segments.staged_ledgers import StagedLedger
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.interfaces.errors import CorruptData, InvalidRequest, UnsupportedFormat
from distributedlog.runtime.protocol.frames import pack, unpack
from tests.log.conftest import World
from tests.log.records import everything, put

STATE = LogState(
    5, "a/log", 17, 5, 3, "me", "w1", 2, 4, 5, 8, 40, DLSN(2, 1, 0), 3, quorums=(3, 3, 2),
    time_ms=1000, bytes_total=900, txid_rule=COUNT, had_unordered_txids=True, producer_snapshot_segment=3,
    last_dlsn=DLSN(3, 7, 1),
)  # fmt: skip
SEGMENT = SegmentRecord(
    3, 8, 4, 9, 40, True, 12, 50, 51, 2, 300, 1, 1, 0, 600, 900, 1000, 50, TXIDS_INDEXED
)
SHARED = replace(SEGMENT, base_entry=7, base_bytes=15)
END = SegmentEnd(1, 300, 2, -1, -1, 1, 0, 1000, True)
GOLDEN: list[tuple[Any, str]] = [
    (STATE, "dc001a0205a5612f6c6f67110503a26d65a2773102040508289302010003c2c293030302c0cd03e8cd0384a5636f"
            "756e74c3020393030701"),
    (
        replace(STATE, txid_policy=COUNT),
        "dc001b0205a5612f6c6f67110503a26d65a2773102040508289302010003c2c293030302c0cd03e8cd0384a5636f"
        "756e74c3020393030701a5636f756e74",
    ),
    (SEGMENT, "dc0015030308040928c30c323302cd012c010100cd0258cd0384cd03e8320200"),
    (SHARED, "dc0016040308040928c30c323302cd012c010100cd0258cd0384cd03e83202070f"),
    (END, "9a0201cd012c02ffff0100cd03e8c3"),
    (replace(END, stores_max_txid=True), "9b0201cd012c02ffff0100cd03e8c3c3"),
    (LockRecord("me", "w1", 9), "9401a26d65a2773109"),
    (StagedLedger("etl", 4, 9), "9401a365746c0409"),
    (AppVersion(4, "q", 9, 1, 2), "960104a171090102"),
    (AppVersion(4, "q", 9, 1, 2, LinkContent(3, 7)), "970204a171090102920307"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "stored"), GOLDEN, ids=lambda one: type(one).__name__)
def test_a_stored_value_keeps_its_bytes(value: Any, stored: str) -> None:
    """H149: other bytes are another format, with another number."""
    assert value.encode().hex() == stored
    assert type(value).decode(bytes.fromhex(stored)) == value


def test_tombstones_keep_their_bytes() -> None:
    one = DeletedLog(5, LogEnd(DLSN(1, 2, 3), 4, True), 0, 9)

    assert encode_tombstones([one]).hex() == "920191980501020304c30009"


def test_what_the_first_formats_said_is_read() -> None:
    """Of a state: nothing is known of times and bytes, and whoever wrote to it gave the txids."""
    value = bytes.fromhex(
        "dc00120105a5612f6c6f67110503a26d65a2773102040508289302010003c2c293030302"
    )
    read = LogState.decode(value)
    assert read == replace(
        STATE,
        time_ms=0,
        bytes_total=-1,
        txid_rule=GIVEN,
        had_unordered_txids=False,
        producer_snapshot_segment=0,
        last_dlsn=None,
    )
    at_rest = replace(read, first_open_segment=read.last_segment + 1)
    assert (
        at_rest.with_linked(ClosedSegmentTotals(1, 100)).bytes_total == -1
    )  # a part of it is no sum
    assert (
        replace(at_rest, had_unordered_txids=True)
        .with_linked(ClosedSegmentTotals(1, 100))
        .had_unordered_txids
    )
    fields = unpack(value, "a state")
    fields[5] = 0  # the epoch: nobody ever wrote
    assert LogState.decode(pack(fields)).txid_rule == AUTO

    plain = SegmentRecord.decode(bytes.fromhex("9f010308040928c30c323202cd012c010100"))
    given = SegmentRecord.decode(bytes.fromhex("dc0010020308040928c30c323202cd012c01010032"))
    assert plain == SegmentRecord(3, 8, 4, 9, 40, True, 12, 50, 50, 2, 300, 1, 1, 0)
    assert plain.txid_rule == TXIDS_IN_ENTRIES
    assert given == replace(plain, txid_base=50, txid_rule=TXIDS_CONSTANT)

    end = SegmentEnd.decode(bytes.fromhex("980101cd012c02ffff0100"))
    assert end == replace(END, last_time_ms=0, is_unordered=False)


@pytest.mark.parametrize(
    ("value", "newest"),
    [(STATE, 2), (SEGMENT, 4), (SHARED, 4), (END, 2)],
    ids=["state", "segment", "shared", "end"],
)
def test_a_newer_format_is_refused_and_a_short_one_is_damaged(value: Any, newest: int) -> None:
    fields = unpack(value.encode(), "a value")

    with pytest.raises(UnsupportedFormat):
        type(value).decode(pack([newest + 1, *fields[1:]]))
    with pytest.raises(CorruptData):
        type(value).decode(pack(fields[:-1]))


def test_a_segment_that_is_not_where_it_was_written_is_refused_by_who_does_not_look_there() -> None:
    """Nor does anybody write such a record: what is encoded is read back first."""
    written: Any = SegmentRecord.encode
    for record, error in (
        (replace(SEGMENT, base_entry=7), UnsupportedFormat),
        (replace(SEGMENT, txid_rule=3), UnsupportedFormat),
        (replace(SEGMENT, txid_base=-1), CorruptData),
    ):
        with pytest.raises(error):
            SegmentRecord.decode(written.__wrapped__(record))
        with pytest.raises(InvalidRequest, match="not stored"):
            record.encode()


@pytest.mark.parametrize("txid", [True, False])
def test_a_stored_flag_is_read_as_a_txid_and_stored_as_one_from_then_on(txid: bool) -> None:
    """Older programs stored ``txid=True`` as it was given: the log must open, and be deleted."""
    segment = replace(
        SEGMENT, first_txid=txid, last_txid=txid, txid_base=-1, txid_rule=TXIDS_IN_ENTRIES
    )
    end, state = replace(END, first_txid=txid, last_txid=txid), replace(STATE, last_txid=txid)
    records: list[Any] = [segment, end, state]
    for record in records:
        found = type(record).decode(type(record).encode.__wrapped__(record))
        assert found == record
        assert type(found.last_txid) is int
        assert type(found).decode(found.encode()) == found
        with pytest.raises(InvalidRequest, match="not stored"):
            record.encode()


async def change(world: World, log_id: int, apply: Callable[[LogState], LogState]) -> None:
    found = await world.metadata.get(state_key(log_id))
    assert found is not None
    state = apply(LogState.decode(found.value))
    value = state.encode() if state.writer_format <= WRITER_FORMAT else _newer(state)
    await world.metadata.transact(Transaction((), (Put(found.key, value),)))


def _newer(state: LogState) -> bytes:
    fields = unpack(replace(state, writer_format=WRITER_FORMAT).encode(), "a state")
    at = fields.index("auto") + 2 if "auto" in fields else fields.index("given") + 2
    assert fields[at] == WRITER_FORMAT
    fields[at] = state.writer_format
    return pack(fields)


async def test_fields_of_a_newer_program_are_kept(world: World, autojump_clock: MockClock) -> None:
    """H149: whatever this program does to the log, what it does not know stays where it was."""
    async with world.process() as ns:
        log = ns.open_log("l")
        places = await put(log, 1, 2)
        log_id = await ns.resolve_name("l")
        await change(
            world, log_id, lambda state: replace(state, unknown_fields=("more", [1, None]))
        )
        found = await world.metadata.get(segment_key(log_id, 1))
        assert found is not None
        record = replace(SegmentRecord.decode(found.value), unknown_fields=({"a": b"1"},))
        await world.metadata.transact(Transaction((), (Put(found.key, record.encode()),)))

        await put(log, 3)
        await log.truncate(places[1])
        async with log.open_segment_writer() as segment:
            await segment.write_columns([4], [b"x"])
        assert segment.token is not None
        await log.link_segments([segment.token])

        described = await log.describe()
        assert described.state.unknown_fields == ("more", [1, None])
        assert described.segments[0].unknown_fields == ({"a": b"1"},)
        assert [record.txid for record in await everything(log)] == [2, 3, 4]


async def test_a_log_that_only_newer_programs_may_change_is_read_and_not_changed(
    world: World, autojump_clock: MockClock
) -> None:
    """H149: claim, link, seal, truncation, purge and deletion look alike."""
    async with world.process() as ns:
        log = ns.open_log("l")
        places = await put(log, 1)
        places += await put(log, 2)
        log_id = await ns.resolve_name("l")
        async with log.open_segment_writer() as segment:
            await segment.write_columns([4], [b"x"])
        assert segment.token is not None
        await change(
            world,
            log_id,
            lambda state: replace(
                state, truncated_to=places[1], truncated_sequence_id=1, writer_format=99
            ),
        )
        before = await world.metadata.get(state_key(log_id))

        async def purged(log: Log, ns: Namespace) -> object:
            state = (await log.describe()).state
            return await purge(
                world.metadata, log_id, await last_purgeable_segment(world.metadata, state), never
            )

        async def never(_: int) -> Transaction:
            return Transaction()

        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: log.open_writer().open(),
            lambda: log.link_segments([segment.token] if segment.token else []),
            lambda: log.seal(),
            lambda: log.truncate(places[1].next()),
            lambda: purged(log, ns),
            lambda: ns.delete_log("l"),
        ]
        for call in calls:
            with pytest.raises(UnsupportedFormat, match="99"):
                await call()

        assert [record.txid for record in await everything(log)] == [2]
        assert await world.metadata.get(state_key(log_id)) == before


async def test_state_and_segments_count_bytes_and_time(
    world: World, autojump_clock: MockClock
) -> None:
    """Sums without a listing: the state's are those of its segments, written, recovered and linked."""
    async with world.process() as dying, world.process() as ns:
        log = ns.open_log("l")
        await put(log, 1, 2)
        writer = await dying.open_log("l").open_writer()
        await writer.write(LogRecord(3, b"left for recovery"))
        await writer.abort()
        async with log.open_segment_writer() as segment:
            await segment.write_columns([4, 5], [b"x", b"yy"])
        assert segment.token is not None
        await log.link_segments([segment.token])
        await put(log, 6)

        described = await log.describe()
        before, time_ms = 0, 0
        for one in described.segments:
            assert one.bytes_before == before
            assert time_ms <= one.time_floor_ms <= one.last_time_ms
            before, time_ms = before + one.size_bytes, one.last_time_ms
        assert (described.state.bytes_total, described.state.time_ms) == (before, time_ms)
        assert described.state.last_dlsn == described.last_dlsn
