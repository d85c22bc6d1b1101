"""Until a cluster is finalized, programs write only what the older version reads."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from distributedlog import KeyedRecord, LogRecord
from distributedlog.log.log import Log
from distributedlog.log.model.log_state import WITH_UNORDERED, WRITER_FORMAT_PLAIN
from distributedlog.metadata.model.cluster_version import CLUSTER_VERSION_KEY
from distributedlog.metadata.model.transaction import KeyValue
from distributedlog.runtime.declarations.versions import UNREPORTED
from distributedlog.runtime.interfaces.errors import (
    InvalidRequest,
    TransactionIdOutOfOrder,
    UpgradeNotFinalized,
)
from tests.log.conftest import World
from tests.log.records import everything

KEYED = KeyedRecord(5, b"keyed", b"k")


@pytest.fixture
def older(world: World) -> World:
    """A world whose cluster comes from version 0.1."""
    world.metadata.finalize(UNREPORTED)
    return world


async def writer_format(log: Log) -> int:
    """The writer format in the state of the log."""
    return (await log.describe()).state.writer_format


async def test_keys_and_headers_are_refused_and_cannot_be_permitted(
    older: World, autojump_clock: MockClock
) -> None:
    async with older.process() as ns:
        with pytest.raises(UpgradeNotFinalized, match="dlog cluster finalize"):
            await ns.create_log("l", config={"record_headers": True})
        await ns.create_log("l", config={"record_headers": False})
        log = ns.open_log("l")
        for set_option in (ns.set, log.set):
            with pytest.raises(UpgradeNotFinalized):
                await set_option({"record_headers": True})
            await set_option({"record_headers": None})
        async with log.open_writer() as writer:
            await writer.write(LogRecord(1, b"plain"))
            with pytest.raises(UpgradeNotFinalized):
                await writer.write(KEYED)
            async with log.open_segment_writer() as segment:
                with pytest.raises(UpgradeNotFinalized):
                    await segment.write(KEYED)
            assert await writer_format(log) == WRITER_FORMAT_PLAIN

            older.metadata.finalize()  # the same writer, without a restart
            await writer.write(KEYED)
        assert (await everything(log))[1] == KEYED


async def test_decreasing_txid_is_refused_and_older_programs_keep_the_log(
    older: World, autojump_clock: MockClock
) -> None:
    async with older.log("l") as log:
        async with log.open_writer() as writer:
            await writer.write(LogRecord(9, b"a"))
            with pytest.raises(UpgradeNotFinalized, match="for version 0"):
                await writer.write(LogRecord(1, b"lower"))
            with pytest.raises(UpgradeNotFinalized):
                await writer.write_bulk([LogRecord(10, b"b"), LogRecord(2, b"lower")])
            await writer.write(LogRecord(11, b"c"))
            assert await writer_format(log) == WRITER_FORMAT_PLAIN

            older.metadata.finalize()
            await writer.write(LogRecord(1, b"lower"))
            assert await writer_format(log) == WRITER_FORMAT_PLAIN + WITH_UNORDERED
        assert [one.txid for one in await everything(log)] == [9, 11, 1]


async def test_strict_log_refuses_a_decreasing_txid_as_before(
    older: World, autojump_clock: MockClock
) -> None:
    async with older.log("l", txids="strict") as log, log.open_writer() as writer:
        await writer.write(LogRecord(9, b"a"))
        with pytest.raises(TransactionIdOutOfOrder):
            await writer.write(LogRecord(1, b"lower"))


@pytest.mark.parametrize("linked", [False, True])
async def test_decreasing_txids_without_the_check_are_stored_as_version_0_1_stores_them(
    linked: bool, older: World, autojump_clock: MockClock
) -> None:
    """That version continues to write to the log, and its txids cannot be searched any more."""
    async with older.process(max_txid_check=False) as ns:
        await ns.create_log("l")
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(LogRecord(9, b"a"))
            if not linked:
                await writer.write(LogRecord(1, b"lower"))
        if linked:
            async with log.open_segment_writer() as segment:
                await segment.write(LogRecord(1, b"lower"))
            assert segment.token is not None
            await log.link_segments([segment.token])
        state = (await log.describe()).state
        assert (state.writer_format, state.had_unordered_txids) == (WRITER_FORMAT_PLAIN, True)
        assert not state.is_txid_searchable
        assert [one.txid for one in await everything(log)] == [9, 1]


async def test_link_of_lower_txids_is_refused(older: World, autojump_clock: MockClock) -> None:
    async with older.log("l") as log:
        async with log.open_writer() as writer:
            await writer.write(LogRecord(9, b"a"))
        async with log.open_segment_writer() as segment:
            await segment.write(LogRecord(1, b"lower"))
        assert segment.token is not None
        with pytest.raises(UpgradeNotFinalized):
            await log.link_segments([segment.token])
        assert await writer_format(log) == WRITER_FORMAT_PLAIN
        older.metadata.finalize()
        await log.link_segments([segment.token])
        assert await writer_format(log) == WRITER_FORMAT_PLAIN + WITH_UNORDERED


async def test_link_in_order_does_not_read_the_version(
    older: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, keys = older.metadata.get, []

    async def get(key: bytes) -> KeyValue | None:
        keys.append(key)
        return await read(key)

    async with older.log("l") as log:
        async with log.open_segment_writer() as segment:
            await segment.write(LogRecord(1, b"first"))
        assert segment.token is not None
        monkeypatch.setattr(older.metadata, "get", get)
        await log.link_segments([segment.token])
    assert keys
    assert CLUSTER_VERSION_KEY not in keys


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (lambda: ([b"lower"], [1]), UpgradeNotFinalized),
        (lambda: ([b"same"], [9]), None),
    ],
)
async def test_frame_of_a_producer_behind_a_proxy_is_refused(
    frame: Callable[[], tuple[list[bytes], list[int]]],
    error: type[InvalidRequest] | None,
    older: World,
    autojump_clock: MockClock,
) -> None:
    """The owner of the log accepts frames without waiting, and learns the version in between."""
    async with older.log("l") as log, log.open_writer() as writer:
        await writer.write(LogRecord(9, b"a"))
        frames = writer.sequenced_writer
        payloads, txids = frame()
        done = trio.Event()

        async def append() -> None:
            while frames.append_batch(payloads, lambda _: done.set(), txids=txids) is None:
                await frames.wait_capacity(1, len(payloads[0]))

        if error is not None:
            with pytest.raises(error):
                await append()
        else:
            await append()
            await done.wait()
        await writer.write(LogRecord(10, b"b"))
