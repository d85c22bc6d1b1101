"""Compressed entries: what is written is read, at a bounded price; what lies is refused (H159 to H161)."""

import json
import random
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.log.declarations import compression_codecs as codecs
from distributedlog.log.declarations.compression_codecs import (
    CODEC_NAMES,
    COLUMN_BYTES_MAX,
    LZ4,
    ZSTD,
    load_codec,
)
from distributedlog.log.format.compression import (
    COMPRESS_MIN_BYTES,
    FAILED_TRIES_MAX,
    RETRY_INTERVAL_ENTRIES,
    Compression,
)
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import (
    CODEC_MASK,
    FLAGS_OFFSET,
    HEADER_BYTES,
    LogRecord,
    Origin,
    build_entry,
    decode_columns,
    decode_header,
)
from distributedlog.log.log import Log
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    InvalidRequest,
    UnsupportedFormat,
    WriteFailed,
)
from tests.examples import examples
from tests.log.conftest import World
from tests.log.records import everything, rec
from tests.log.test_submit_packed import columns

PACKED = [LZ4, ZSTD]
MIB = 1024 * 1024


def line(number: int) -> bytes:
    return json.dumps({"id": number, "kind": "order", "items": ["a", "b"] * 8}).encode()


def entry_of(number: int, payloads: list[bytes], **options: Any) -> bytes:
    """As a writer with this codec sends it."""
    made = build_entry(
        range(7, 7 + len(payloads)), payloads, records_before=5, written_ms=9, **options
    )
    buffers, length = Compression("l", CODEC_NAMES[number]).compress(*made) if number else made
    entry = b"".join(buffers)
    assert len(entry) == length
    return entry


def framed(number: int, data: bytes, payload_bytes: int) -> bytes:
    """An entry of one record whose columns are said to be in ``data``."""
    head, _ = build_entry([1], [b""], records_before=0, written_ms=0, flags=number)
    entry = bytearray(bytes(head[0])[:HEADER_BYTES])
    struct.pack_into("<II", entry, 12, payload_bytes, 16 + payload_bytes)
    return bytes(entry) + data


def read(entry: bytes) -> list[tuple[int, bytes]]:
    return decode_columns(entry, decode_header(entry), Origin(1, 0, 0), "l").tuples()


def peak_of(call: Callable[[], object]) -> int:
    """The most that Python had for it at one time, bytes."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


# --- bytes ------------------------------------------------------------------------------------------


@settings(max_examples=examples(50))
@given(
    st.sampled_from(PACKED),
    st.lists(st.binary(max_size=60).map(lambda some: 3 * some), min_size=1, max_size=60),
    st.booleans(),
    st.booleans(),
)
def test_what_is_compressed_is_read(
    number: int, payloads: list[bytes], flagged: bool, section: bool
) -> None:
    """With or without what else an entry may have; headers say the same as of a plain one."""
    options: dict[str, Any] = {
        "record_flags": bytes([1] * (len(payloads) - 1) + [0]) if flagged else None,
        "sections": [(9, 0, b"later")] if section else [],
    }
    plain, made = entry_of(0, payloads, **options), entry_of(number, payloads, **options)

    header, other = decode_header(made), decode_header(plain)
    found = decode_columns(made, header, Origin(3, 4, 100))

    assert found.tuples() == list(zip(range(7, 7 + len(payloads)), payloads, strict=True))
    assert (None if found.flags is None else bytes(found.flags)) == options["record_flags"]
    assert (header.flags & ~CODEC_MASK, header.count, header.records_through) == (
        other.flags, other.count, other.records_through,
    )  # fmt: skip
    assert len(made) <= len(plain)


@pytest.mark.parametrize("number", PACKED)
def test_columns_are_much_smaller_and_pin_no_entry(number: int) -> None:
    payloads = [line(n) for n in range(500)]
    made = bytearray(entry_of(number, payloads))

    found = decode_columns(made, decode_header(made), Origin(1, 0, 0))
    del made[HEADER_BYTES:]  # a view of it would forbid that

    assert [payload for _, payload in found.tuples()] == payloads
    assert len(entry_of(0, payloads)) > 4 * len(entry_of(number, payloads))


EXAMPLE = b"".join([b"a record of the tests "] * 40)


@pytest.mark.parametrize(
    ("number", "columns_hex"),
    [
        (
            LZ4,
            "2601000100ff0b7003000061207265636f7264206f6620746865207465737473201600ffffff45506573747320",
        ),
        (
            ZSTD,
            "28b52ffd6080022d0100e001007003000061207265636f7264206f66207468652074657374732002005ecd59c706da",
        ),
    ],
)
def test_bytes_that_are_on_disks_are_read(number: int, columns_hex: str) -> None:
    """docs/reference/formats.md: what any release of a package made."""
    assert read(framed(number, bytes.fromhex(columns_hex), len(EXAMPLE))) == [(1, EXAMPLE)]


def test_what_does_not_shrink_is_stored_plain_and_soon_not_tried() -> None:
    """A result above 7/8 costs its readers for nothing; after 16 of them only every 64th is tried."""
    compression, tried = Compression("l", "lz4"), 0
    inner = compression._codec
    assert inner is not None

    class Counted:
        def compress(self, data: Any) -> bytes:
            nonlocal tried
            tried += 1
            return inner.compress(data)  # type: ignore[union-attr]

        def decompress(self, data: Any, size: int) -> bytes:
            raise AssertionError

    compression._codec = Counted()
    noise = build_entry([1], [random.Random(1).randbytes(2000)], records_before=0, written_ms=0)
    plain = b"".join(noise[0])

    for _ in range(FAILED_TRIES_MAX + 10 * RETRY_INTERVAL_ENTRIES):
        assert b"".join(compression.compress(*noise)[0]) == plain
    assert tried == FAILED_TRIES_MAX + 10

    small = build_entry([1], [bytes(2000)], records_before=0, written_ms=0)
    while compression.compress(*small)[1] == small[1]:
        pass
    assert compression.compress(*small)[1] < small[1], "it pays again: each is tried"


def test_entries_below_and_above_the_bounds_are_left_as_they_are() -> None:
    compression = Compression("l", "zstd")
    below = build_entry(
        [1], [bytes(COMPRESS_MIN_BYTES - HEADER_BYTES - 16 - 1)], records_before=0, written_ms=0
    )
    above = build_entry([1], [bytes(COLUMN_BYTES_MAX)], records_before=0, written_ms=0)

    for buffers, length in (below, above):
        assert compression.compress(buffers, length) == (buffers, length)


# --- bombs ------------------------------------------------------------------------------------------


def zstd_frame(data: bytes, **options: Any) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    return zstandard.ZstdCompressor(**{"level": 1, **options}).compress(data)  # type: ignore[no-any-return]


def lone(payload: bytes) -> bytes:
    """The columns of one record."""
    return struct.pack("<qii", 1, 0, len(payload)) + payload


BOMB = zstd_frame(lone(bytes(64 * MIB)))
TEN = lone(bytes(10_000))
WRONG = {
    "a zstd frame that is larger than the header says": (ZSTD, BOMB, 10_000),
    "a zstd frame that is a little larger": (ZSTD, zstd_frame(TEN + b"x"), 10_000),
    "a zstd frame that is smaller": (ZSTD, zstd_frame(TEN[:-1]), 10_000),
    "a zstd frame without its size": (ZSTD, zstd_frame(TEN, write_content_size=False), 10_000),
    "two zstd frames": (ZSTD, zstd_frame(TEN) * 2, 10_000),
    "half in each of two zstd frames": (ZSTD, zstd_frame(TEN[:5000]) + zstd_frame(TEN[5000:]), 10_000),
    "bytes behind a zstd frame": (ZSTD, zstd_frame(TEN) + b"x", 10_000),
    "a zstd frame that is cut": (ZSTD, zstd_frame(TEN)[:-1], 10_000),
    "a zstd frame that asks for a window of 128 MiB": (
        ZSTD,
        bytes.fromhex("28b52ffd 80 88") + struct.pack("<I", len(TEN)) + b"\0",
        10_000,
    ),
    "a zstd frame that may be skipped": (
        ZSTD, struct.pack("<II", 0x184D2A50, len(TEN)) + TEN, 10_000,
    ),
    "no zstd frame": (ZSTD, TEN, 10_000),
    "an lz4 block that is larger": (LZ4, load_codec(LZ4, "").compress(lone(bytes(64 * MIB))), 10_000),
    "an lz4 block that is a little larger": (LZ4, load_codec(LZ4, "").compress(TEN + b"x"), 10_000),
    "an lz4 block that is smaller": (LZ4, load_codec(LZ4, "").compress(TEN[:-1]), 10_000),
    "bytes behind an lz4 block": (LZ4, load_codec(LZ4, "").compress(TEN) + b"\0", 10_000),
    "an lz4 block that is cut": (LZ4, load_codec(LZ4, "").compress(TEN)[:-1], 10_000),
    "no lz4 block": (LZ4, b"\xff" * 300, 10_000),
    "zstd said to be lz4": (LZ4, zstd_frame(TEN), 10_000),
    "lz4 said to be zstd": (ZSTD, load_codec(LZ4, "").compress(TEN), 10_000),
    "a header of 64 MiB": (ZSTD, BOMB, 64 * MIB),
    "a header of 64 MiB, lz4": (LZ4, load_codec(LZ4, "").compress(lone(bytes(64 * MIB))), 64 * MIB),
    "a header of the most, lz4": (LZ4, b"\x10a", COLUMN_BYTES_MAX - 16),
    "nothing": (LZ4, b"", 10_000),
}  # fmt: skip


@pytest.mark.parametrize(("number", "data", "payload_bytes"), WRONG.values(), ids=WRONG)
def test_what_lies_about_its_size_is_refused_before_memory_is_made(
    number: int, data: bytes, payload_bytes: int
) -> None:
    """H159: never more than the bound of an entry, whatever a frame says; it is told as damage."""
    entry = framed(number, data, payload_bytes)

    def refused() -> None:
        with pytest.raises(CorruptData):
            read(entry)

    refused()  # so that the package is loaded
    allowed = 2 * min(payload_bytes, COLUMN_BYTES_MAX) + 200_000
    assert peak_of(refused) < allowed


def test_a_frame_that_needs_a_dictionary_is_refused() -> None:
    zstandard = pytest.importorskip("zstandard")
    samples = [line(n) for n in range(2000)]
    made = zstandard.train_dictionary(4096, samples)
    frame = zstandard.ZstdCompressor(level=1, dict_data=made).compress(TEN)

    with pytest.raises(CorruptData, match=r"dictionary [1-9]"):
        read(framed(ZSTD, frame, 10_000))


@pytest.mark.parametrize("number", PACKED)
def test_reading_takes_what_the_columns_take(number: int) -> None:
    """H159: once while it is decompressed by zstd, twice by lz4 whose package copies; no more."""
    entry = entry_of(number, [bytes(1000)] * 4000)
    size = len(entry_of(0, [bytes(1000)] * 4000))
    header = decode_header(entry)

    def call() -> object:
        return decode_columns(entry, header, Origin(1, 0, 0))

    call()
    assert len(entry) < size // 50
    assert peak_of(call) < 2 * size + 500_000


@pytest.mark.parametrize("number", PACKED)
def test_a_flipped_bit_is_refused_or_stays_within_its_bounds(number: int) -> None:
    entry = entry_of(number, [line(n) for n in range(20)])
    size = sum(len(line(n)) for n in range(20))
    chance = random.Random(number)

    for bit in [*range(8 * HEADER_BYTES), *chance.sample(range(512, 8 * len(entry)), 400)]:
        flipped = bytearray(entry)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = decode_columns(bytes(flipped), decode_header(bytes(flipped)), Origin(1, 0, 0))
        except (CorruptData, UnsupportedFormat):
            continue
        assert sum(len(payload) for _, payload in found.tuples()) == size


def test_a_codec_of_later_is_refused_as_later() -> None:
    entry = bytearray(entry_of(LZ4, [line(1)] * 9))
    entry[FLAGS_OFFSET] += 2

    with pytest.raises(UnsupportedFormat, match="codec 3; supported are none, lz4, zstd"):
        decode_header(bytes(entry))


# --- a log ------------------------------------------------------------------------------------------


async def written(log: Log, numbers: range, **options: Any) -> None:
    """Several entries, as they come together."""
    async with log.open_writer() as writer:
        for start in range(numbers.start, numbers.stop, 20):
            stop = min(start + 20, numbers.stop)
            await writer.write_bulk([rec(n, line(n)) for n in range(start, stop)])


@pytest.mark.parametrize("name", ["lz4", "zstd"])
async def test_a_log_that_is_compressed_is_read_in_all_ways(
    world: World, autojump_clock: MockClock, name: str
) -> None:
    """The codec is the log's; who reads does not ask for it."""
    async with world.process() as ns:
        await ns.create_log("l", config={"codec": name})
        log = ns.open_log("l")
        await written(log, range(100))
        await written(log, range(100, 200))
        async with log.open_segment_writer() as outside:
            await outside.write_bulk([rec(n, line(n)) for n in range(200, 250)])
            await outside.write_packed(
                *columns(range(250, 300), [line(n) for n in range(250, 300)])
            )
        assert outside.token is not None
        await log.link_segments([outside.token])
        async with log.open_writer() as writer:
            await writer.submit_packed(
                *columns(range(300, 350), [line(n) for n in range(300, 350)])
            )

        shown = await log.describe()
        found = await everything(log)
        snapshot = await log.snapshot()
        ranges = [segment.range() for segment in snapshot.segments]
        async with log.open_ranges(ranges) as parts:
            ranged = [pair async for entry in parts for pair in entry.tuples()]
        stored = sum(
            len(entry) for store in world.ledgers.stores.values() for entry in store.entries
        )

        assert [(r.txid, r.payload) for r in found] == [(n, line(n)) for n in range(350)]
        assert ranged == [(n, line(n)) for n in range(350)]
        assert await log.find(txid=217) == found[217].dlsn
        assert (await log.first_record(), await log.last_record()) == (found[0], found[-1])
        assert await log.count() == 350
        assert shown.size_bytes == stored, "segments count what is stored"
        assert 2 * stored < sum(map(len, map(line, range(350))))
        for ledger in world.ledgers.stores.values():
            for entry in ledger.entries:
                assert decode_header(entry).flags & CODEC_MASK == CODEC_NAMES.index(name)


async def test_counts_and_searches_decompress_no_more_than_the_entry_they_end_at(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers stay readable: that is what they go by."""
    async with world.process(codec="lz4") as ns:
        log = ns.open_log("l")
        await written(log, range(600))
        calls = 0
        known = load_codec(LZ4, "")
        inner = known.decompress

        def counted(data: Any, size: int) -> bytes:
            nonlocal calls
            calls += 1
            return inner(data, size)

        monkeypatch.setattr(known, "decompress", counted)

        await log.count(DLSN(1, 3, 1), DLSN(1, 20, 0))
        await log.describe()
        await log.snapshot()
        await log.truncate(DLSN(1, 5, 0))
        assert calls == 0
        await log.find(txid=431)
        assert calls == 1


async def test_the_codec_changes_while_the_log_is_open(
    world: World, autojump_clock: MockClock
) -> None:
    """From an entry soon after; what was written stays as it is, and all of it is one log."""
    async with world.process() as ns:
        await ns.create_log("l")
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await trio.sleep(10)
            for number, name in enumerate(("none", "zstd", "lz4", "none")):
                await log.set({"codec": name})
                await trio.sleep(10)
                await writer.write(rec(number, line(number) * 20))

        (store,) = world.ledgers.stores.values()
        assert [decode_header(one).flags & CODEC_MASK for one in store.entries] == [0, 2, 1, 0]
        assert [r.payload for r in await everything(log)] == [line(n) * 20 for n in range(4)]


async def test_a_codec_that_there_is_not_is_refused_by_name(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        with pytest.raises(InvalidRequest, match=r"codec: .gzip. is not `none`, `lz4`, `zstd`"):
            await ns.create_log("l", config={"codec": "gzip"})


@pytest.mark.parametrize("kept", [0, 1, 3])
async def test_compressed_entries_of_a_failed_ledger_are_there_once_and_in_order(
    world: World, autojump_clock: MockClock, kept: int
) -> None:
    """H160, H11: what is sent again to the next segment is compressed there anew, in its order."""
    async with world.process(codec="zstd") as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(rec(0, line(0)))
            world.ledgers.held = True
            world.ledgers.keep_in_flight = kept
            pending = [
                await writer.submit_packed(*columns([i] * 9, [line(i)] * 9)) for i in range(1, 20)
            ]
            await trio.sleep(0.1)
            world.ledgers.held = False
            world.ledgers.writers[0].fail(WriteFailed("entry 3: 1 of 2 acks after 5.0 s"))
            dlsns = [dlsn for each in pending for dlsn in await each]

        found = await everything(log)
        assert [(r.txid, r.payload) for r in found[1:]] == [
            (i, line(i)) for i in range(1, 20) for _ in range(9)
        ]
        assert [r.dlsn for r in found[1:]] == dlsns
        shown = await log.describe()
        assert shown.size_bytes == sum(
            len(one) for store in world.ledgers.stores.values() for one in store.entries
        )


# --- what a reader holds ------------------------------------------------------------------------------


async def small_and_large(log: Log, payload: bytes, entries: int, number: int = 100) -> None:
    async with log.open_writer() as writer:
        for entry in range(entries):
            await writer.submit_packed(*columns([entry] * number, [payload] * number))


@pytest.mark.parametrize(("name", "payload"), [("zstd", bytes(1000)), ("zstd", b""), ("none", b"")])
async def test_what_a_reader_has_ahead_is_bounded_by_what_it_takes_in_memory(
    world: World, autojump_clock: MockClock, name: str, payload: bytes
) -> None:
    """H159: one read of a few KB is megabytes of columns; and records without payload take room as well."""
    ahead, request = 200_000, 50_000
    async with world.process(
        codec=name, read_ahead_bytes=ahead, read_bytes=request, in_flight_bytes_max=1 << 30
    ) as ns:
        log = ns.open_log("l")
        number = 100 if payload else 1000
        await small_and_large(log, payload, 100, number)
        entry_bytes = (len(payload) + 12) * number
        ranges = [segment.range() for segment in (await log.snapshot()).segments]

        async with log.open_reader() as reader, log.open_ranges(ranges) as parts:
            await trio.sleep(5)
            queue, ready = reader._queue.entries, [c for part in parts._parts for c in part.ready]
            for held in (list(queue), ready):
                memory = sum(
                    one.txids.nbytes + one.offsets.nbytes + one.payload.nbytes for one in held
                )
                assert ahead <= memory <= ahead + request + 2 * entry_bytes
            count = sum([len(some) async for some in _bulks(reader, 100 * number)])
            ranged = sum([columns.count async for columns in parts])

        assert count == ranged == 100 * number
        assert parts._buffered_bytes == 0


async def _bulks(reader: Any, records: int) -> Any:
    while records:
        some = await reader.read_bulk(4000)
        records -= len(some)
        yield some


# --- a package that is missing ------------------------------------------------------------------------


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Neither package is there, as on a machine that got this package as a zip."""

    def forget() -> None:
        codecs._lz4.cache_clear()
        codecs._zstd.cache_clear()

    def take_away() -> None:
        forget()
        for name in ("lz4", "lz4.block", "zstandard"):
            monkeypatch.setitem(sys.modules, name, None)

    yield take_away
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize(("name", "package"), [("lz4", "lz4"), ("zstd", "zstandard")])
async def test_a_missing_package_is_named_with_log_and_codec(
    world: World,
    autojump_clock: MockClock,
    without: Callable[[], None],
    name: str,
    package: str,
) -> None:
    """H161: whoever writes is told before he fences anybody, whoever reads at the first such entry."""
    says = (
        rf'log "l".*codec {name} needs the package {package}, which is not installed\. '
        r"Run: pip install 'distributedlog-py\[compression\]'"
    )
    async with world.process() as ns:
        await ns.create_log("l", config={"codec": name})
        log = ns.open_log("l")
        await written(log, range(40))
        ranges = [segment.range() for segment in (await log.snapshot()).segments]
        async with log.open_writer() as living:
            without()
            with pytest.raises(UnsupportedFormat, match=says):
                await log.open_writer(takeover=True)
            await living.write(rec(40, line(40)))
        with pytest.raises(UnsupportedFormat, match=says):
            await log.open_segment_writer()
        with pytest.raises(UnsupportedFormat, match=says):
            await everything(log)
        with pytest.raises(UnsupportedFormat, match=says):
            async with log.open_ranges(ranges) as parts:
                await parts.read_columns()
        with pytest.raises(UnsupportedFormat, match=says):
            await log.first_record()
        assert await log.count() == 41

        await ns.create_log("plain")
        await written(ns.open_log("plain"), range(3))
        assert len(await everything(ns.open_log("plain"))) == 3


async def test_a_writer_that_is_open_goes_on_where_the_new_codec_is_missing(
    world: World, autojump_clock: MockClock, without: Callable[[], None]
) -> None:
    """What is written plain can be read by everybody; the log says so once."""
    async with world.process() as ns:
        await ns.create_log("l")
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await trio.sleep(10)
            without()
            await log.set({"codec": "zstd"})
            await trio.sleep(20)
            await writer.write(LogRecord(1, line(1) * 20))
        assert [r.payload for r in await everything(log)] == [line(1) * 20]
