"""Records with keys and headers: written in every way, read as they were, permitted by the log alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from trio.testing import MockClock

from distributedlog import DLSN, KeyedRecord, LogRecord
from distributedlog.log.format.record import RECORD_BYTES_MAX
from distributedlog.log.format.record_headers import (
    HEADERS_MAX,
    KEY_BYTES_MAX,
    KEYED_RECORD_BYTES,
)
from distributedlog.log.log import Log
from distributedlog.log.model.log_state import (
    WITH_PRODUCERS,
    WITH_RECORD_HEADERS,
    WRITER_FORMAT_PLAIN,
)
from distributedlog.runtime.interfaces.errors import (
    InvalidRequest,
    RecordTooLarge,
    UnsupportedFormat,
    WriteCancelled,
)
from tests.log.conftest import World
from tests.log.records import everything

NAMED = ((b"trace", b"\x00\xff"), (b"trace", b""), (b"", b"again"))
KEYED = [
    KeyedRecord(1, b"both", b"key", NAMED),
    KeyedRecord(2, b"key alone", b""),
    KeyedRecord(3, b"headers alone", headers=NAMED[:1]),
    KeyedRecord(4, b"neither"),
    LogRecord(5, b"plain"),
]


@asynccontextmanager
async def permitted(world: World, name: str = "l", **options: Any) -> AsyncIterator[Log]:
    """An open log that permits keys and headers."""
    async with world.process(**options) as ns:
        await ns.create_log(name, config={"record_headers": True})
        yield ns.open_log(name)


def kept(records: list[Any]) -> list[tuple[Any, ...]]:
    """What a reader must see of these records."""
    return [(one.txid, one.payload, one.key, one.headers) for one in records]


async def writer_format(log: Log) -> int:
    """The writer format in the state of the log."""
    return (await log.describe()).state.writer_format


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
async def test_each_way_of_writing_keeps_keys_and_headers(
    world: World, autojump_clock: MockClock, codec: str
) -> None:
    """Single records, bulks, sets, packed columns and frames, alone and between records without them."""
    async with permitted(world, codec=codec) as log:
        written: list[Any] = []
        async with log.open_writer(producer="p") as writer:
            for record in KEYED:
                await writer.write(record)
            written += KEYED
            pending = [await writer.submit(KeyedRecord(n, b"x" * n, b"k")) for n in range(6, 40)]
            for one in pending:
                await one
            written += [KeyedRecord(n, b"x" * n, b"k") for n in range(6, 40)]
            many = [
                KeyedRecord(n, b"y" * 900, b"k%d" % n, [(b"n", b"%d" % n)])
                if n % 3
                else LogRecord(n, b"z")
                for n in range(40, 1500)
            ]
            await writer.write_bulk(many)
            written += many
            record_set = [KeyedRecord(2000, b"s", b"1"), LogRecord(2000, b"t")]
            await writer.write_set(record_set)
            written += record_set
            assert writer.producer is not None
            frame = [KeyedRecord(2001, b"f", None, NAMED), KeyedRecord(2002, b"g", b"k")]
            await writer.write_frame(len(written), frame)
            written += frame
            after = await writer.write(KeyedRecord(2003, b"h", b"k"))
            written.append(KeyedRecord(2003, b"h", b"k"))
            await writer.write(KeyedRecord(2004, b"i", b"k", NAMED), expect=after)
            written.append(KeyedRecord(2004, b"i", b"k", NAMED))

        found = await everything(log)

        assert kept(found) == kept(written)
        assert found == written
        assert (
            await writer_format(log) == WRITER_FORMAT_PLAIN + WITH_RECORD_HEADERS + WITH_PRODUCERS
        )


async def test_columns_have_keys_and_headers_only_if_a_record_of_the_entry_has(
    world: World, autojump_clock: MockClock
) -> None:
    async with permitted(world) as log:
        async with log.open_writer() as writer:
            await writer.write_bulk([KeyedRecord(1, b"a", b"k"), LogRecord(2, b"b")])
            await writer.write_bulk([KeyedRecord(3, b"c", headers=NAMED), LogRecord(4, b"d")])
            await writer.write_bulk([KeyedRecord(5, b"e"), LogRecord(6, b"f")])
            await writer.write(LogRecord(7, b"g"))
        async with log.open_reader(to="end") as reader:
            columns = [await reader.read_columns() for _ in range(4)]

    assert [(one.keys, one.headers) for one in columns if one] == [
        ([b"k", None], None),
        (None, [NAMED, ()]),
        (None, None),
        (None, None),
    ]


async def test_packed_columns_take_keys_and_headers(
    world: World, autojump_clock: MockClock
) -> None:
    txids, offsets, payloads = (
        bytes(16),
        b"".join(n.to_bytes(4, "little") for n in (0, 1, 3)),
        b"abb",
    )
    async with permitted(world) as log:
        async with log.open_writer() as writer:
            await writer.submit_packed(
                txids, offsets, payloads, keys=[None, b"k"], headers=[NAMED, ()]
            )
            await writer.submit_packed(txids, offsets, payloads, keys=[None, None])
            await writer.submit_packed(None, offsets, payloads, headers=[[], [(b"n", b"v")]])
            for wrong in (
                {"keys": [b"k"]},
                {"headers": [NAMED]},
                {"keys": 5},
                {"keys": ["k", None]},
            ):
                with pytest.raises(InvalidRequest):
                    await writer.submit_packed(txids, offsets, payloads, **wrong)
        found = await everything(log)

    assert [(one.payload, one.key, one.headers) for one in found] == [
        (b"a", None, NAMED), (b"bb", b"k", ()),
        (b"a", None, ()), (b"bb", None, ()),
        (b"a", None, ()), (b"bb", None, ((b"n", b"v"),)),
    ]  # fmt: skip


async def test_a_log_accepts_them_only_after_its_option_or_its_namespaces(
    world: World, autojump_clock: MockClock
) -> None:
    """The writer stays usable, in each way of writing, and the log's state as it was."""
    record = KeyedRecord(2, b"x", b"k")
    async with world.process() as ns:
        log = ns.open_log("l")
        await ns.set({"record_headers": False})
        async with log.open_writer(producer="p") as writer:
            await writer.write(LogRecord(1, b"a"))
            for refused in (
                writer.write(record),
                writer.write_set([record, record]),
                writer.write_frame(1, [record]),
                writer.submit_packed(bytes(8), bytes(4) + b"\x01\x00\x00\x00", b"x", keys=[b"k"]),
            ):
                with pytest.raises(InvalidRequest, match="record_headers"):
                    await refused
            bulk = await writer.submit_bulk([LogRecord(1, b"b"), record, LogRecord(3, b"c")])
            outcomes = await bulk.outcomes()
            assert isinstance(outcomes[0], DLSN)
            assert [type(one) for one in outcomes[1:]] == [InvalidRequest, WriteCancelled]
            assert await writer_format(log) == WRITER_FORMAT_PLAIN + WITH_PRODUCERS
            await ns.set({"record_headers": True})
            await writer.write(record)
            await ns.set({"record_headers": False})
            await writer.write(KeyedRecord(3, b"y", b"k"))  # the log has them, so nothing is gained
        assert kept(await everything(log))[2:] == kept([record, KeyedRecord(3, b"y", b"k")])
        with pytest.raises(InvalidRequest, match="stored"):
            ns.open_log("l", config={"record_headers": True})


async def test_an_older_program_does_not_change_the_log_afterwards(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with permitted(world) as log:
        async with log.open_writer() as writer:
            await writer.write(LogRecord(1, b"a"))
            assert await writer_format(log) == WRITER_FORMAT_PLAIN
            await writer.write(KeyedRecord(2, b"b", b"k"))
        monkeypatch.setattr("distributedlog.log.model.log_state.WRITER_FORMAT", 5)
        with pytest.raises(UnsupportedFormat, match="can be changed only"):
            await log.open_writer()


async def test_limits_of_keys_headers_and_records(world: World, autojump_clock: MockClock) -> None:
    greatest_payload = RECORD_BYTES_MAX - KEYED_RECORD_BYTES - KEY_BYTES_MAX
    at_limits = [
        KeyedRecord(1, bytes(greatest_payload), bytes(KEY_BYTES_MAX)),
        KeyedRecord(1, b"", b"", [(b"", b"")] * HEADERS_MAX),
        KeyedRecord(1, b"", None, [(b"n", bytes(RECORD_BYTES_MAX - KEYED_RECORD_BYTES - 9))]),
    ]
    async with permitted(world) as log:
        async with log.open_writer() as writer:
            for record in at_limits:
                await writer.write(record)
            for record, error in (
                (KeyedRecord(1, bytes(greatest_payload + 1), bytes(KEY_BYTES_MAX)), RecordTooLarge),
                (KeyedRecord(1, b"", bytes(KEY_BYTES_MAX + 1)), RecordTooLarge),
                (KeyedRecord(1, b"", None, [(b"", b"")] * (HEADERS_MAX + 1)), InvalidRequest),
                (KeyedRecord(1, b"", "text"), InvalidRequest),  # type: ignore[arg-type]
                (KeyedRecord(1, b"", None, [("n", b"v")]), InvalidRequest),
                (KeyedRecord(1, b"", None, {b"n": b"v"}), InvalidRequest),
                (KeyedRecord(1, b"", None, [(b"n",)]), InvalidRequest),
                (KeyedRecord(1, b"", None, 5), InvalidRequest),
            ):
                with pytest.raises(error):
                    await writer.write(record)
                assert isinstance((await (await writer.submit_bulk([record])).outcomes())[0], error)
            buffers: Any = bytearray(b"p"), bytearray(b"k"), [(memoryview(b"n"), bytearray(b"v"))]
            await writer.write(KeyedRecord(1, *buffers))
        found = await everything(log)

    assert kept(found) == [*kept(at_limits), (1, b"p", b"k", ((b"n", b"v"),))]


async def test_a_record_that_was_read_is_written_with_its_key_and_headers(
    world: World, autojump_clock: MockClock
) -> None:
    async with permitted(world) as log, permitted(world, "copy") as copy:
        async with log.open_writer() as writer:
            await writer.write_bulk(KEYED)
        async with log.open_reader(to="end") as reader, copy.open_writer() as writer:
            for record in await reader.read_bulk(2):
                await writer.submit(record)
            await writer.write_bulk(await reader.read_bulk(9))
        assert await everything(copy) == KEYED
        assert await log.last_record() == KEYED[-1]


async def test_a_byte_stream_accepts_none(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        await ns.create_log("l", txids="bytes", config={"record_headers": True})
        async with ns.open_log("l").open_writer() as writer:
            for record in (
                KeyedRecord(payload=b"x", key=b"k"),
                KeyedRecord(payload=b"x", headers=NAMED),
            ):
                with pytest.raises(InvalidRequest, match="byte stream"):
                    await writer.write(record)


async def test_segments_outside_the_log_have_keys_and_headers(
    world: World, autojump_clock: MockClock
) -> None:
    """The log's state records them before the segment is linked, and a link of other headers differs."""
    offsets = bytes(4) + b"\x01\x00\x00\x00"
    async with permitted(world) as log, world.process() as ns:
        tokens = []
        for headers in (NAMED, NAMED[:1]):
            async with log.open_segment_writer(digest=True) as segment:
                await segment.write_bulk([KeyedRecord(1, b"a", b"k", headers), LogRecord(2, b"b")])
                await segment.write_packed(bytes(8), offsets, b"c", keys=[b"k"], headers=[headers])
            tokens.append(segment.token)
        assert (await writer_format(log)) == WRITER_FORMAT_PLAIN + WITH_RECORD_HEADERS
        assert tokens[0] is not None
        assert tokens[1] is not None
        assert tokens[0].digest != tokens[1].digest
        await log.link_segments([tokens[0]])
        assert [(one.payload, one.key, one.headers) for one in await everything(log)] == [
            (b"a", b"k", NAMED), (b"b", None, ()), (b"c", b"k", NAMED),
        ]  # fmt: skip
        other = ns.open_log("other")
        await ns.create_log("other", config={"record_headers": False})
        async with other.open_segment_writer() as segment:
            with pytest.raises(InvalidRequest, match="record_headers"):
                await segment.write(KeyedRecord(1, b"a", b"k"))
            await segment.write(LogRecord(1, b"a"))
