"""What pipelines use, the same in all three faces, on a real cluster (docs/guides/)."""

import pickle
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from distributedlog import DLSN, LogRecord, SegmentRange, SegmentToken, blocking
from distributedlog.log.model.stored_settings import STORABLE
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    EndOfStream,
    InvalidRequest,
    LinkOutOfOrder,
    LogRecreated,
    LogTruncated,
    NoSuchLedger,
    OwnershipAcquireFailed,
    TooBusy,
    TransactionIdOutOfOrder,
    UnsupportedFormat,
)
from tests.test_face_meanings import Face, collect, done, opened

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with blocking.local_cluster(memory=True, metadata_nodes=1) as made:
        yield made


@pytest.fixture(params=["trio", "blocking", "asyncio"])
def face(request: pytest.FixtureRequest, cluster: Any) -> Face:
    return Face(request.param, cluster.uri)


async def put(face: Face, log: Any, *txids: int) -> list[DLSN]:
    async with opened(log.open_writer()) as writer:
        return [await face.write(writer, LogRecord(txid, b"%d" % txid)) for txid in txids]


async def rows(reader: Any) -> list[tuple[int, bytes]]:
    if hasattr(reader, "__aiter__"):
        return [row async for columns in reader for row in columns.tuples()]
    return [row for columns in reader for row in columns.tuples()]


def test_columns_are_written_as_an_entry_in_their_turn(face: Face) -> None:
    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as ns:
            await done(ns.create_log(name, txids="strict"))
            log = ns.open_log(name)
            async with opened(log.open_writer()) as writer:
                await face.submit(writer, LogRecord(1, b"1"))
                packed = struct.pack("<2q", 2, 3), struct.pack("<3i", 0, 1, 3), b"233"
                bulk = await done(writer.submit_packed(*packed))
                assert len(bulk) == 2
                after = await face.submit(writer, LogRecord(3, b"after"))
                with pytest.raises(TransactionIdOutOfOrder):
                    await done(writer.submit_packed(*packed))
                with pytest.raises(InvalidRequest):
                    await done(writer.submit_packed(packed[0], packed[0], packed[0]))
                dlsns = await done(bulk.result()) if face.name == "blocking" else await bulk
                assert dlsns == sorted(dlsns)
                assert await face.result(bulk[1]) == dlsns[1]
                assert await face.result(after) > dlsns[1]
            with pytest.raises(AlreadyClosed):
                await done(writer.submit_packed(*packed))
            async with opened(log.open_reader(to="end")) as reader:
                found = await done(reader.read_bulk(10, wait_s=5))
            assert [(r.txid, bytes(r.payload)) for r in found] == [
                (1, b"1"), (2, b"2"), (3, b"33"), (3, b"after"),
            ]  # fmt: skip

    face.play(scenario, f"packed-{face.name}")


def test_segments_are_planned_read_written_and_linked(face: Face) -> None:
    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as ns:
            log = ns.open_log(name)
            await put(face, log, 1, 2)
            custom = {"partition": b"3"}
            async with opened(
                log.open_segment_writer(app="a", version=4, custom=custom)
            ) as segment:
                await done(segment.write_columns([3, 4], [b"three", b"four"]))
                await done(segment.write(LogRecord(5, b"5")))
                packed = struct.pack("<2q", 6, 7), struct.pack("<3i", 0, 1, 3), b"677"
                await done(segment.write_packed(*packed))
                await done(segment.flush())
                await done(segment.write_bulk([LogRecord(8, b"8")]))
                assert (segment.records, segment.size_bytes > 12) == (6, True)
            token = SegmentToken.from_json(pickle.loads(pickle.dumps(segment.token)).to_json())
            assert token.ledger_id == segment.ledger_id
            assert (token.records, token.first_txid, token.last_txid) == (6, 3, 8)

            for already in (False, True):
                result = await done(log.link_segments([token], app="a", version=4, identity="q"))
                assert (result.already, result.first_segment) == (already, 2)
            with pytest.raises(LinkOutOfOrder):
                await done(log.link_segments([], app="a", version=3))
            with pytest.raises(LinkOutOfOrder, match="'q'"):
                await done(log.link_segments([], app="a", version=5, identity="other"))
            last = await done(log.linked_version("a"))
            assert (last.version, last.identity, last.first_segment) == (4, "q", 2)
            assert await done(log.discard_segments([token])) == [token]  # it is linked: it stays

            async with opened(log.open_segment_writer(app="a", version=4)) as late:
                await done(late.write(LogRecord(9, b"never")))
            gone = await done(log.open_segment_writer(app="a", version=9))
            await done(gone.write(LogRecord(9, b"never")))
            await done(gone.abort())
            assert await done(log.collect_unlinked()) == 1
            with pytest.raises(NoSuchLedger):
                await done(log.link_segments([late.token]))

            snapshot = await done(log.snapshot())
            assert [s.records for s in snapshot.segments] == [2, 6]
            plan = [s.range().to_json() for s in snapshot.segments]
        async with opened(face.namespace()) as ns:
            log = ns.open_log(name, incarnation=snapshot.incarnation)
            ranges = [SegmentRange.from_json(one) for one in plan]
            async with opened(log.open_ranges(ranges[:1])) as reader:
                (columns,) = await done(reader.read_columns_many(bytes_max=1))
                assert columns.tuples() == [(1, b"1")]
            async with opened(log.open_ranges(ranges)) as reader:
                assert await rows(reader) == [
                    (1, b"1"), (2, b"2"), (3, b"three"), (4, b"four"), (5, b"5"),
                    (6, b"6"), (7, b"77"), (8, b"8"),
                ]  # fmt: skip

    face.play(scenario, f"planned-{face.name}")


def test_metrics_count_the_records_that_the_program_has_not_received(face: Face) -> None:
    """Entries that wait between the background thread and the program are not received."""

    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as ns:

            def lag() -> float:
                return float(ns.metrics.snapshot()["dlog_client_reader_lag_records"])

            log = ns.open_log(name)
            await put(face, log, *range(10))
            async with opened(log.open_reader()) as reader:
                for left in range(9, -1, -1):
                    await done(reader.read_next())
                    assert lag() == left
            async with opened(ns.open_reader(logs=[name])) as several:
                assert (await done(several.next())).kind == "joined"
                for left in range(9, -1, -1):
                    await done(several.next())
                    assert lag() == left
            assert lag() == 0

    face.play(scenario, f"lag-{face.name}")


def test_truncation_positions_and_the_end(face: Face) -> None:
    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as ns:
            log = ns.open_log(name)
            places = await put(face, log, 10, 20, 20, 30)
            assert await done(log.find(txid=15)) == places[1]
            assert await done(log.find(txid=31)) == DLSN(2, 0, 0)
            assert await done(log.find(wall_ms=0)) == places[0]

            positions = log.positions
            assert await done(positions.get("cold")) is None
            assert await done(positions.advance("cold", places[2])) == places[2]
            assert await done(positions.advance("cold", places[0])) == places[2]
            assert await done(positions.list()) == {"cold": places[2]}
            assert await done(log.truncate(await done(positions.get("cold")))) == places[2]
            with pytest.raises(LogTruncated):
                await open_and_close(face, log.open_reader, dlsn=places[1])
            assert await done(positions.delete("cold"))

            async with opened(log.open_writer()) as writer:
                await face.write(writer, LogRecord(40, b"40"))
                with pytest.raises(OwnershipAcquireFailed):
                    await done(log.link_segments([], app="x", version=1, wait_s=0))
                with pytest.raises(OwnershipAcquireFailed):
                    await done(log.seal(wait_s=0))
                assert await done(writer.truncate(places[3])) == places[3]
                await done(writer.mark_end_of_stream())
            async with opened(log.open_reader()) as reader:
                assert [record.txid for record in await collect(reader)] == [30, 40]
                with pytest.raises(EndOfStream):
                    await done(reader.read_next())
            with pytest.raises(EndOfStream):
                await put(face, log, 50)
            assert await done(log.seal()) is False

    face.play(scenario, f"end-{face.name}")


async def open_and_close(face: Face, call: Any, **given: Any) -> None:
    async with opened(call(**given)):
        pass


def test_what_is_set_of_a_log_and_its_namespace(face: Face) -> None:
    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as ns:
            await done(ns.create_log(name, config={"retention_s": 9.0}, metadata={"team": b"x"}))
            log = ns.open_log(name)
            found = await done(log.settings())
            assert (found.settings, found.metadata) == ({"retention_s": 9.0}, {"team": b"x"})
            found = await done(log.set({"retention_s": None}, metadata={"team": None}))
            assert (found.settings, found.metadata, found.version) == ({}, {}, 2)
            await done(ns.set({"retention_bytes": 1 << 40}))
            assert (await done(ns.settings())).settings == {"retention_bytes": 1 << 40}
            await done(ns.set({"retention_bytes": None}))

    face.play(scenario, f"set-{face.name}")


def test_logs_that_come_and_go_are_told(face: Face) -> None:
    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as ns:
            await done(ns.create_log(f"{name}/a"))
            async with opened(ns.watch_logs(f"{name}/")) as watch:
                logs = await watch.logs() if face.name == "asyncio" else watch.logs
                assert list(logs) == [f"{name}/a"]
                assert await done(watch.next(wait_s=0)) is None
                await done(ns.create_log(f"{name}/b"))
                await done(ns.delete_log(f"{name}/a"))
                await done(ns.create_log(f"{name}/a"))
                await done(ns.rename_log(f"{name}/b", f"{name}/c"))
                told = [await done(watch.next(wait_s=20)) for _ in range(4)]
                assert [(one.kind, one.name[-1]) for one in told] == [
                    ("created", "b"), ("deleted", "a"), ("created", "a"), ("renamed", "c"),
                ]  # fmt: skip
            page = await done(ns.log_page(f"{name}/", limit=1))
            assert (page.names, page.next) == ((f"{name}/a",), f"{name}/a")
            assert (await done(ns.log_page(f"{name}/", page.next))).names == (f"{name}/c",)
            async with opened(ns.watch_logs(keep_names=False)) as watch:
                await done(ns.rename_log(f"{name}/c", f"{name}/b"))
                assert (await done(watch.next(wait_s=20))).old_name == f"{name}/c"
            assert told[1].incarnation == logs[f"{name}/a"] != told[2].incarnation
            old = ns.open_log(f"{name}/a", incarnation=told[1].incarnation)
            for call in (old.snapshot, old.last_dlsn, old.seal, old.positions.list):
                with pytest.raises(LogRecreated):
                    await done(call())

    face.play(scenario, f"watched-{face.name}")


def test_records_with_and_without_txids_are_mixed(cluster: Any) -> None:
    """Also where a packed bulk overtakes the buffer; what goes back is found by its txid."""
    with blocking.open_namespace(cluster.uri) as ns:
        log = ns.open_log("mixed")
        with log.open_writer() as writer:
            assert len(writer.submit_packed(None, struct.pack("<2i", 0, 1), b"a")) == 1
            writer.write(LogRecord(1, b"b"))
            writer.submit(b"c")
            writer.submit_columns([2, None, 3], [b"d", b"e", b"f"])
            with pytest.raises(InvalidRequest, match="whole number"):
                writer.submit(LogRecord(True, b"no"))
            writer.write_bulk([b"g", LogRecord(4, b"h")])
            assert writer.commit() is not None
        with log.open_reader(to="end") as reader:
            found = list(reader)
        assert b"".join(one.payload for one in found) == b"abcdefgh"
        assert log.find(txid=4) == found[0].dlsn
        assert log.find(txid=found[0].txid + 1) == found[2].dlsn


# --- each option that is stored with a log --------------------------------------------------------


async def entries(face: Face, writer: Any, number: int, size: int) -> list[int]:
    """The entry of each of some records that are written in one call."""
    return [one.entry for one in await done(writer.write_bulk([b"x" * size] * number))]


async def segments(face: Face, log: Any, writer: Any, most: int) -> int:
    """How many segments there are when the writer has written, and waited, for some time."""
    async with opened(log.open_reader(at="latest")) as reader:
        for _ in range(60):
            found = (await face.write(writer, b"x" * 1000)).segment
            if found > most:
                return found
            await idle(reader, 0.3)
    return found


async def idle(reader: Any, wait_s: float) -> None:
    """Until nothing was written for some time."""
    while await done(reader.read_next(wait_s=wait_s)) is not None:
        pass


async def _txids_may_go_back(face: Face, log: Any, writer: Any) -> bool:
    await face.write(writer, LogRecord(10, b"x"))
    await face.write(writer, LogRecord(5, b"x"))
    dlsns = await done(writer.write_bulk([LogRecord(4, b"x"), LogRecord(3, b"x")]))
    return len(dlsns) == 2


async def _entries_are_small(face: Face, log: Any, writer: Any) -> bool:
    return len(set(await entries(face, writer, 20, 300))) >= 5


async def _segments_are_small(face: Face, log: Any, writer: Any) -> bool:
    return await segments(face, log, writer, 2) > 2


async def _nothing_rolls(face: Face, log: Any, writer: Any) -> bool:
    return {(await face.write(writer, b"x" * 1000)).segment for _ in range(10)} == {1}


async def _it_is_refused(face: Face, log: Any, writer: Any) -> bool:
    try:
        for _ in range(5):
            await face.write(writer, b"x" * 100)
    except TooBusy:
        return True
    return False


async def _it_is_counted(face: Face, log: Any, writer: Any) -> bool:
    for _ in range(5):
        await face.write(writer, b"x")
    return bool(writer.over_rate > 0)


async def _it_says_that_it_lives(face: Face, log: Any, writer: Any) -> bool:
    first = await face.write(writer, b"x")
    async with opened(log.open_reader(at="latest")) as reader:
        for number in range(1, 60):
            await idle(reader, 0.6)
            if (await face.write(writer, b"x")).entry > first.entry + number:
                return True
    return False


async def _it_is_compressed(face: Face, log: Any, writer: Any) -> bool:
    await face.write(writer, b"x" * 100_000)
    await face.close(writer)
    return bool((await done(log.describe())).size_bytes < 50_000)


HEEDED: dict[str, tuple[dict[str, Any], Any]] = {
    "max_txid_check": ({"max_txid_check": False}, _txids_may_go_back),
    "entry_bytes_max": ({"entry_bytes_max": 1000}, _entries_are_small),
    "segment_bytes_max": ({"segment_bytes_max": 1000}, _segments_are_small),
    "segment_age_max_s": ({"segment_age_max_s": 0.01}, _segments_are_small),
    "codec": ({"codec": "lz4"}, _it_is_compressed),
    "rolling": ({"rolling": False, "segment_bytes_max": 1000}, _nothing_rolls),
    "keep_alive_s": ({"keep_alive_s": 0.02}, _it_says_that_it_lives),
    "bytes_per_s_max": ({"bytes_per_s_max": 50, "at_limit": "reject"}, _it_is_refused),
    "records_per_s_max": ({"records_per_s_max": 1, "at_limit": "reject"}, _it_is_refused),
    "at_limit": ({"records_per_s_max": 1, "at_limit": "count"}, _it_is_counted),
}
"""What is stored, and what shows that the writer goes by it."""


def test_each_option_that_is_stored_has_its_scenario() -> None:
    assert set(HEEDED) == set(STORABLE)


@pytest.mark.parametrize("option", list(HEEDED))
def test_an_option_that_is_stored_is_heeded_in_each_face(face: Face, option: str) -> None:
    config, heeded = HEEDED[option]
    txids = "given" if option == "max_txid_check" else "count"

    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as ns:
            await done(ns.create_log(name, config=config, txids=txids))
            log = ns.open_log(name)
            try:
                writer = await done(log.open_writer())
            except UnsupportedFormat:
                assert option == "codec", "heeded, but its package is missing"
                return
            try:
                assert await heeded(face, log, writer)
            finally:
                await done(writer.abort())

    face.play(scenario, f"stored-{option}-{face.name}")
