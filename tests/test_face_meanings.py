"""What all three faces mean by the same calls, on a real cluster.

One cluster in a child process, in memory; every scenario is written once and played by each face.
"""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from distributedlog import DLSN, LogRecord, aio, blocking, open_namespace
from distributedlog.cluster.local.child_processes import environment
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    ClaimLost,
    InvalidRequest,
    LogExists,
    LogNotFound,
    OwnershipAcquireFailed,
    PositionConflict,
    ReaderIdle,
    RecordTooLarge,
    RequestTimeout,
    SubscriptionLost,
    TooBusy,
    TransactionIdOutOfOrder,
    WriteCancelled,
    WriterFenced,
)

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent
SCENARIO_S = 60.0
Scenario = Callable[["Face", str], Awaitable[None]]


class Face:
    """One of the three, with its differences in spelling evened out."""

    def __init__(self, name: str, uri: str) -> None:
        self.name = name
        self.uri = uri

    def namespace(self, **config: Any) -> Any:
        """Use it in an ``async with opened(…)``."""
        openers: dict[str, Any] = {
            "trio": open_namespace,
            "blocking": blocking.open_namespace,
            "asyncio": aio.open_namespace,
        }
        return openers[self.name](self.uri, config=config)

    async def submit(self, writer: Any, record: LogRecord) -> Any:
        """The pipelined write: a `PendingWrite`."""
        return await done(writer.submit(record))

    async def result(self, pending: Any) -> DLSN:
        """Wait for a `PendingWrite` as this face does."""
        found: DLSN = pending.result() if self.name == "blocking" else await pending
        return found

    async def write(self, writer: Any, record: LogRecord | bytes | bytearray) -> DLSN:
        """Write one record and wait until it is durable."""
        found: DLSN = await done(writer.write(record))
        return found

    async def close(self, what: Any) -> None:
        """Close a writer or a reader."""
        await done(what.close() if self.name == "blocking" else what.aclose())

    def play(self, scenario: Scenario, log: str) -> None:
        """Run a scenario to its end."""

        async def in_trio() -> None:
            with trio.fail_after(SCENARIO_S):
                await scenario(self, log)

        if self.name == "trio":
            trio.run(in_trio)
        else:
            asyncio.run(asyncio.wait_for(scenario(self, log), SCENARIO_S))


async def done(value: Any) -> Any:
    """What a call gave, awaited where the face says so."""
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def opened(what: Any) -> AsyncIterator[Any]:
    """``async with`` or ``with``."""
    if hasattr(what, "__aenter__"):
        async with what as inner:
            yield inner
    else:
        with what as inner:
            yield inner


async def collect(reader: Any) -> list[Any]:
    """Iterate to the end."""
    if hasattr(reader, "__aiter__"):
        return [record async for record in reader]
    return list(reader)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with blocking.local_cluster(
        memory=True, metadata_nodes=1, write_proxies=1, read_proxies=1
    ) as made:
        yield made


@pytest.fixture(params=["trio", "blocking", "asyncio"])
def face(request: pytest.FixtureRequest, cluster: Any) -> Face:
    return Face(request.param, cluster.uri)


def rec(txid: int, payload: bytes = b"x") -> LogRecord:
    return LogRecord(txid, payload)


def test_naming_a_log_asks_nothing_and_using_a_missing_one_raises(face: Face) -> None:
    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            log = namespace.open_log(name)
            assert not await done(namespace.log_exists(name))
            strict = namespace.open_log(name, config={"create_if_missing": False})
            for use in (
                log.open_reader,
                log.describe,
                log.last_dlsn,
                strict.open_writer,
                lambda: namespace.delete_log(name),
            ):
                with pytest.raises(LogNotFound, match=name):
                    await done(use())
            assert not await done(namespace.log_exists(name))
            async with opened(log.open_writer()) as writer:  # its first writer creates it
                await face.write(writer, rec(1))
            assert await done(namespace.log_exists(name))
            with pytest.raises(LogExists):
                await done(namespace.create_log(name))
            with pytest.raises(InvalidRequest, match="no_such_option"):
                namespace.open_log(name, config={"no_such_option": 1})

    face.play(scenario, f"missing-{face.name}")


def test_a_second_writer_waits_is_refused_or_takes_over(face: Face) -> None:
    """G4; the lock names who holds it."""

    async def scenario(face: Face, name: str) -> None:
        async with (
            opened(face.namespace(owner="alpha")) as one,
            opened(face.namespace(owner="beta")) as other,
        ):
            first = await done(one.open_log(name).open_writer())
            acked = [await face.write(first, rec(n)) for n in range(3)]
            for wait_s in (0, 0.3):
                began = time.monotonic()
                with pytest.raises(OwnershipAcquireFailed, match="alpha") as refused:
                    await done(other.open_log(name).open_writer(wait_s=wait_s))
                assert (refused.value.code, refused.value.owner) == (302, "alpha")
                assert time.monotonic() - began >= wait_s
            acked.append(await face.write(first, rec(3)))  # undisturbed

            second = await done(other.open_log(name).open_writer(takeover=True))
            with pytest.raises(WriterFenced) as fenced:
                await face.write(first, rec(4, b"never"))
            assert fenced.value.fatal_to_writer
            for use in (first.commit, lambda: face.write(first, rec(5, b"never"))):
                with pytest.raises(WriterFenced):  # the first error sticks
                    await done(use())
            await done(first.abort())
            acked.append(await face.write(second, rec(9)))
            await face.close(second)

            third = await done(
                one.open_log(name).open_writer(wait_s=0)
            )  # a close gives the lock back
            acked.append(await face.write(third, rec(10)))
            await face.close(third)
            async with opened(one.open_log(name).open_writer(lock=False)) as writer:
                acked.append(await face.write(writer, rec(11)))
            async with opened(one.open_log(name).open_reader(to="end")) as reader:
                found = await collect(reader)
            assert [record.dlsn for record in found] == acked
            assert [record.txid for record in found] == [0, 1, 2, 3, 9, 10, 11]

    face.play(scenario, f"owned-{face.name}")


def test_flush_sends_and_commit_waits(face: Face) -> None:
    """G2: an outcome is known when the record is durable; `commit` makes it readable too."""

    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            log = namespace.open_log(name)
            async with opened(log.open_writer()) as writer:
                assert await done(writer.commit()) is None
                pending = [await face.submit(writer, rec(n)) for n in range(1000)]
                last = await done(writer.commit())
                assert all(one.done() for one in pending)
                dlsns = [one.result() for one in pending]
                assert dlsns == sorted(set(dlsns))
                assert [await face.result(one) for one in pending[:2]] == dlsns[
                    :2
                ]  # as often as one likes
                assert last == dlsns[-1] == await done(log.last_dlsn())
                async with opened(log.open_reader(to="end")) as reader:
                    assert [record.dlsn for record in await collect(reader)] == dlsns

                async with opened(log.open_reader(at="latest")) as tail:
                    await face.submit(writer, rec(1000, b"flushed"))
                    await done(writer.flush())
                    record = await done(tail.read_next(wait_s=20))
                    assert record.payload == b"flushed"
                    lone = await face.submit(writer, rec(1001, b"lone"))
                    record = await done(tail.read_next(wait_s=20))  # neither flush nor commit
                    assert (record.payload, record.dlsn) == (b"lone", await face.result(lone))
                bulk = await done(writer.write_bulk([rec(1002), rec(1003)]))
                assert await done(writer.commit()) == bulk[-1]
                assert writer.position.sequence_id == 1004
                async with opened(log.open_reader(position=writer.position, to="end")) as tail:
                    assert await collect(tail) == []
                left = await face.submit(writer, rec(1004, b"left to the with block"))
            assert left.done()  # the normal end of the block is a commit
            with pytest.raises(AlreadyClosed):
                await done(face.submit(writer, rec(1005)))
            shown = await done(log.describe())
            assert (shown.records, shown.owner) == (1005, "")
            assert all(segment.closed for segment in shown.segments)

    face.play(scenario, f"commit-{face.name}")


def test_an_exception_in_the_block_aborts(face: Face) -> None:
    """Nothing more is sent; the segment is left for recovery, and what was acknowledged stays (G2)."""

    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            log = namespace.open_log(name)
            with pytest.raises(ValueError, match="mine"):  # noqa: PT012
                async with opened(log.open_writer()) as writer:
                    acked = await face.write(writer, rec(1, b"acked"))
                    raise ValueError("mine")
            with pytest.raises(AlreadyClosed):
                await done(face.submit(writer, rec(2)))
            shown = await done(log.describe())
            assert [segment.closed for segment in shown.segments] == [False]
            async with opened(log.open_writer(wait_s=0)) as writer:  # recovers it
                after = await face.write(writer, rec(2, b"after"))
            async with opened(log.open_reader(to="end")) as reader:
                found = await collect(reader)
            assert [(record.dlsn, record.payload) for record in found] == [
                (acked, b"acked"),
                (after, b"after"),
            ]

    face.play(scenario, f"abort-{face.name}")


def test_where_readers_begin_and_end_and_how_they_wait(face: Face) -> None:
    """G1, G5."""

    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            log = namespace.open_log(name)
            async with opened(log.open_writer()) as writer:
                async with opened(log.open_reader(to="end")) as reader:
                    assert await collect(reader) == []  # an empty log has an end
                dlsns = [await face.write(writer, rec(10 * n, b"%d" % n)) for n in range(10)]
                await done(writer.commit())  # durable is not yet readable (G2)

                async def numbers(**where: Any) -> list[int]:
                    async with opened(log.open_reader(**where)) as reader:
                        return [int(record.payload) for record in await collect(reader)]

                assert await numbers(to="end") == list(range(10))
                assert await numbers(at="earliest", to=dlsns[4]) == [0, 1, 2, 3, 4]
                assert await numbers(dlsn=dlsns[7], to="end") == [7, 8, 9]
                assert await numbers(dlsn=DLSN.INITIAL, to="end") == list(range(10))
                assert await numbers(txid=35, to="end") == [4, 5, 6, 7, 8, 9]
                assert await numbers(txid=40, to=dlsns[5]) == [4, 5]
                assert await numbers(at="latest", to="end") == []
                async with opened(log.open_reader()) as reader:
                    await done(reader.read_bulk(3, wait_s=5))
                    await done(reader.read_next())
                    half_way = reader.position
                assert half_way.sequence_id == 4
                assert reader.position == half_way, "also when it is closed"
                assert await numbers(position=half_way, to="end") == [4, 5, 6, 7, 8, 9]
                starts = {name: half_way}
                several = namespace.open_reader(logs=[name], positions=starts, to="end")
                async with opened(several) as several:
                    items: list[Any] = [*await collect(several)]
                    assert several.positions[name].sequence_id == 10
                joined, *batches, ended = items
                assert (joined.kind, joined.position, ended.kind) == ("joined", half_way, "ended")
                assert sum(batch.columns.count for batch in batches) == 6
                async with opened(log.open_reader(at="latest", idle_error_s=0.05)) as reader:
                    with pytest.raises(ReaderIdle):
                        await done(reader.read_next())
                    assert (await done(reader.idle())).idle_s >= 0.05
                    assert reader.skipped.ranges == 0
                await done(log.positions.advance("a", half_way))
                assert await done(log.positions.proven("a")) == half_way
                assert await done(log.count(half_way.dlsn)) == 6
                assert (await done(log.first_record())).txid == 0
                assert (await done(log.last_record())).dlsn == dlsns[-1]
                for bad in (
                    {"dlsn": dlsns[0], "txid": 1},
                    {"at": "middle"},
                    {"to": "start"},
                    {"dlsn": "1.0.0"},
                    {"txid": "1"},
                ):
                    with pytest.raises(InvalidRequest):
                        log.open_reader(**bad)
                with pytest.raises(InvalidRequest, match="its text"):
                    await done(log.count(to="1.0.0"))
                with pytest.raises(InvalidRequest, match="its text"):
                    await done(log.truncate("1.0.0"))
                with pytest.raises(InvalidRequest, match="an int, not '1'"):
                    await done(log.find(txid="1"))
                with pytest.raises(InvalidRequest, match="list of names"):
                    namespace.open_reader(logs=name)
                with pytest.raises(InvalidRequest, match="stored"):
                    namespace.open_log(name, config={"retention_s": 1.0})

                async with opened(log.open_reader(to=dlsns[2])) as reader:
                    assert [r.txid for r in await done(reader.read_bulk(99, wait_s=5))] == [
                        0,
                        10,
                        20,
                    ]
                    assert await done(reader.read_next()) is None  # the end that `to` set

                async with opened(log.open_reader(at="latest")) as tail:
                    began = time.monotonic()
                    assert await done(tail.read_next(wait_s=0)) is None
                    assert await done(tail.read_next(0.2)) is None
                    assert await done(tail.read_bulk(5, wait_s=0)) == []
                    assert await done(tail.read_columns(wait_s=0)) is None
                    assert time.monotonic() - began >= 0.2
                    await done(writer.write_bulk([rec(100, b"ab"), rec(101, b"cde")]))
                    columns = await done(tail.read_columns())
                    assert (columns.count, list(columns.txids)) == (2, [100, 101])
                    assert bytes(columns.payload) == b"abcde"
                    assert columns.first_sequence_id == 10

    face.play(scenario, f"reading-{face.name}")


def test_txids_do_not_go_down_and_a_refusal_is_of_one_record(face: Face) -> None:
    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            await done(namespace.create_log(name, txids="strict"))
            log = namespace.open_log(name)
            async with opened(log.open_writer()) as writer:
                assert writer.last_txid == -1
                await face.write(writer, rec(0))
                await face.write(writer, rec(7))
                await face.write(writer, rec(7))
                for bad, error in (
                    (rec(6), TransactionIdOutOfOrder),
                    (rec(-1), InvalidRequest),
                    (rec(8, bytes(1 << 20)), RecordTooLarge),
                    (rec(8, "text"), InvalidRequest),  # type: ignore[arg-type]
                ):
                    with pytest.raises(error):
                        await face.write(writer, bad)
                assert writer.last_txid == 7
                await face.write(writer, rec(8))
            async with opened(log.open_writer()) as writer:
                assert writer.last_txid == 8
                with pytest.raises(TransactionIdOutOfOrder):
                    await face.write(writer, rec(7))
            free = namespace.open_log(name, config={"max_txid_check": False})
            async with opened(free.open_writer()) as writer:
                await face.write(writer, rec(3))
            async with opened(log.open_reader(to="end")) as reader:
                assert [record.txid for record in await collect(reader)] == [0, 7, 7, 8, 3]

    face.play(scenario, f"txids-{face.name}")


def test_a_set_is_one_entry_and_is_read_as_one(face: Face) -> None:
    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            await done(namespace.create_log(name, txids="strict"))
            log = namespace.open_log(name)
            async with opened(log.open_writer()) as writer:
                lone = await face.submit(writer, rec(1, b"a"))
                bulk = await done(writer.submit_set([rec(2, b"b"), rec(2, b"c"), rec(2, b"d")]))
                places = await done(writer.write_set([rec(3, b"e"), rec(3, b"f")]))
                assert len(bulk) == 3
                assert await face.result(lone) < await face.result(bulk[0])
                assert [dlsn[:2] for dlsn in places] == [places[0][:2]] * 2
                for bad, error in (
                    ([rec(3), rec(4)], InvalidRequest),
                    ([], InvalidRequest),
                    ([rec(4, bytes(600_000))] * 2, RecordTooLarge),
                    ([rec(2), rec(2)], TransactionIdOutOfOrder),
                ):
                    with pytest.raises(error):
                        await done(writer.write_set(bad))
                await face.write(writer, rec(3, b"g"))
            async with opened(log.open_reader(to="end")) as reader:
                found = []
                while one := await done(reader.read_set(5)):
                    found.append(b"".join(bytes(record.payload) for record in one))
                assert found == [b"a", b"bcd", b"ef", b"g"]
                assert await done(reader.read_set(wait_s=0)) == []

    face.play(scenario, f"sets-{face.name}")


def test_a_producer_goes_on_where_it_was_and_repeats_nothing(face: Face) -> None:
    """G9, and G10."""

    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            await done(namespace.create_log(name, txids="strict"))
            log = namespace.open_log(name)
            async with opened(log.open_writer(producer="p")) as writer:
                assert (writer.producer.next_sequence, writer.producer.has_stored_records) == (
                    0,
                    False,
                )
                await face.submit(writer, rec(1, b"a"))
                places = await done(writer.write_frame(1, [rec(1, b"b"), rec(2, b"c")]))
                assert await done(writer.write_frame(1, [rec(1, b"b"), rec(2, b"c")])) == places
                with pytest.raises(TransactionIdOutOfOrder):
                    await face.write(writer, rec(1))
                await face.write(writer, rec(2, b"d"))
            async with opened(log.open_writer(producer="p")) as writer:
                assert (writer.producer.next_sequence, writer.producer.has_stored_records) == (
                    4,
                    True,
                )
                assert await done(writer.write_frame(1, [rec(1, b"b"), rec(2, b"c")])) == places
                with pytest.raises(InvalidRequest):
                    await done(writer.write_frame(5, [rec(3)]))
                with pytest.raises(PositionConflict) as conflict:
                    await done(writer.write(rec(3), expect=places[1]))
                last = DLSN.parse(conflict.value.last)
                last = await done(writer.write(rec(3, b"e"), expect=last))
                await done(writer.write_frame(5, [rec(3, b"f")], expect=last))
                await face.submit(writer, rec(3, b"g"))
            async with opened(log.open_reader(to="end")) as reader:
                found = b""
                while several := await done(reader.read_bulk(9)):
                    found += b"".join(bytes(one.payload) for one in several)
                assert found == b"abcdefg"

    face.play(scenario, f"producer-{face.name}")


@pytest.mark.parametrize("through", ["metadata nodes", "proxies"])
def test_a_record_is_directly_after_another_or_nowhere(
    face: Face, cluster: Any, through: str
) -> None:
    """G10: the same meanings and errors through proxies, where the writer has a producer."""
    with_producer = {"producer": "expects"} if through == "proxies" else {}

    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            await done(namespace.create_log(name, txids="strict"))
            log = namespace.open_log(name)
            async with opened(log.open_writer(**with_producer)) as writer:
                last = await done(writer.write(rec(1, b"a"), expect=DLSN.NONE))
                with pytest.raises(PositionConflict) as conflict:
                    await done(writer.write(rec(2, b"never"), expect=DLSN.NONE))
                assert conflict.value.last == str(last)
                pending = await face.submit(writer, rec(3, b"b"))
                with pytest.raises(PositionConflict):
                    await done(writer.write(rec(4, b"never"), expect=last))
                last = await face.result(pending)
                last = await done(writer.write(rec(4, b"c"), expect=last))
                with pytest.raises(TransactionIdOutOfOrder):
                    await done(writer.write(rec(1, b"never"), expect=last))
                with pytest.raises(TransactionIdOutOfOrder):
                    await face.submit(writer, rec(3, b"never"))
                with pytest.raises(InvalidRequest, match="DLSN"):
                    await done(writer.write(rec(5), expect="1.0.0"))
                with pytest.raises(RecordTooLarge):
                    await done(writer.write(rec(5, bytes(2_000_000)), expect=last))
                if not with_producer:
                    with pytest.raises(InvalidRequest, match="producer="):
                        await done(writer.write_frame(0, [rec(5)], expect=last))
                assert await done(writer.commit()) == last
                async with opened(log.open_reader(to="end")) as reader:
                    found = [bytes(one.payload) for one in await collect(reader)]
                assert found == [b"a", b"b", b"c"]
                last = await done(writer.write(rec(4, b"d"), expect=last))
            with pytest.raises(AlreadyClosed):
                await done(writer.write(rec(9, b"never"), expect=last))
            assert await done(log.last_dlsn()) == last

    uri = cluster.proxied_uri if through == "proxies" else cluster.uri
    Face(face.name, uri).play(scenario, f"expects-{through[:2]}-{face.name}")


def test_a_log_of_bytes_is_written_read_and_sought_as_a_file(face: Face) -> None:
    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            await done(namespace.create_log(name, txids="bytes"))
            log = namespace.open_log(name)
            data = os.urandom(600_000)
            async with opened(log.open_byte_writer()) as stream:
                assert await done(stream.write(data[:5])) == 5
                assert await done(stream.write(memoryview(data)[5:])) == len(data) - 5
                await done(stream.flush())
                assert await done(stream.tell()) == len(data)
            async with opened(log.open_byte_reader(offset=2)) as stream:
                assert await done(stream.tell()) == 2
                assert await done(stream.read(3)) == data[2:5]
                assert await done(stream.read()) == data[5:]
                assert await done(stream.read(9)) == b""
                assert await done(stream.seek(-4, 2)) == len(data) - 4
                assert await done(stream.read(9)) == data[-4:]
            lost = await opened(log.open_byte_writer()).__aenter__()
            await done(lost.abort())
            async with opened(log.open_byte_reader(follow=True)) as stream:
                assert await done(stream.read(1)) == data[:1]

    face.play(scenario, f"bytes-{face.name}")


def test_what_is_above_a_limit_waits_or_is_refused_or_counted(face: Face) -> None:
    """H168, and the rates of a log."""

    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace(process_bytes_max=4 << 20)) as namespace:
            log = namespace.open_log(name)
            async with opened(log.open_writer()) as writer:
                for at in range(40):
                    await face.submit(writer, rec(at, bytes(500_000)))
                await done(writer.write_bulk([rec(40, bytes(300_000))] * 20))
            refuses = namespace.open_log(
                name, config={"at_limit": "reject", "records_per_s_max": 5}
            )
            async with opened(refuses.open_writer()) as writer:
                for at in range(41, 46):
                    await face.write(writer, rec(at))
                refused = 0
                for _ in range(100):
                    try:
                        await face.submit(writer, rec(46))
                    except TooBusy:
                        refused += 1
                assert refused > 50
                bulk = await done(writer.submit_bulk([rec(46)] * 50))
                assert TooBusy in [type(one) for one in await done(bulk.outcomes())]
            counts = namespace.open_log(name, config={"at_limit": "count", "records_per_s_max": 5})
            async with opened(counts.open_writer()) as writer:
                await done(writer.write_bulk([rec(50)] * 40))
                assert 20 <= writer.over_rate <= 40

    face.play(scenario, f"limits-{face.name}")


def test_a_log_gives_txids_and_is_read_and_cut_by_time(face: Face) -> None:
    """What is omitted is filled in by the policy; a given txid is stored by all of them."""

    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            await done(namespace.create_log(name, txids="count"))
            log = namespace.open_log(name)
            async with opened(log.open_writer()) as writer:
                assert writer.txid_policy == "count"
                assert await face.write(writer, b"0") < await face.write(writer, bytearray(b"1"))
                await done(writer.write_bulk([b"2", LogRecord(payload=b"3")]))
                assert writer.last_txid == 3
            async with opened(log.open_reader(since=0, to="end")) as reader:
                records = await collect(reader)
            assert [(record.txid, record.payload) for record in records] == [
                (n, b"%d" % n) for n in range(4)
            ]
            end = records[-1].time_ms + 1
            assert await done(log.find(since=records[0].time_ms)) == records[0].dlsn
            await done(log.truncate(before=end))
            async with opened(log.open_reader(to="end")) as reader:
                assert await collect(reader) == []
            auto = namespace.open_log(f"{name}-auto")
            async with opened(auto.open_writer()) as writer:
                assert writer.txid_policy == "auto"
                with pytest.raises(InvalidRequest):
                    await face.write(writer, rec(-1))
                await face.write(writer, b"filled in")
                await face.write(writer, rec(1))
                await done(writer.write_bulk([b"a", rec(2), b"b"]))
            async with opened(auto.open_reader(to="end")) as reader:
                txids = [record.txid for record in await collect(reader)]
            assert (txids[1], txids[3]) == (1, 2)
            assert txids[0] < txids[2] < txids[4]
            assert (await done(auto.describe())).txid_policy == "auto"

    face.play(scenario, f"rules-{face.name}")


def test_bulks_are_taken_whole_or_up_to_a_bad_record(face: Face) -> None:
    """What is wrong with a record is its own outcome; those after it are not taken."""

    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            await done(namespace.create_log(name, txids="strict"))
            log = namespace.open_log(name)
            async with opened(log.open_writer()) as writer:
                lone = await done(writer.submit(rec(1)))
                bulk = await done(writer.submit_bulk([rec(2), rec(3), rec(2), rec(4)]))
                columns = await done(writer.submit_columns([5, 6], [b"five", b"six"]))
                outcomes = await done(bulk.outcomes())
                assert [type(one) for one in outcomes] == [
                    DLSN, DLSN, TransactionIdOutOfOrder, WriteCancelled,
                ]  # fmt: skip
                assert (bulk.done(), len(bulk), bulk[1].result()) == (True, 4, outcomes[1])
                with pytest.raises(WriteCancelled):
                    bulk[-1].result()
                with pytest.raises(TransactionIdOutOfOrder):
                    bulk.result()
                await done(columns.wait())
                assert (await face.result(lone)) < outcomes[0] < outcomes[1] < columns.result()[0]
                assert repr(lone) == f"PendingWrite({lone.result()})"
                assert name in repr(writer)
                with pytest.raises(TransactionIdOutOfOrder):
                    await done(writer.write_bulk([rec(1)]))
                assert await done(writer.write_bulk([])) == []
            assert [one.done() for one in (lone, bulk, columns)] == [True] * 3
            async with opened(log.open_reader(to="end")) as reader:
                assert [record.txid for record in await collect(reader)] == [1, 2, 3, 5, 6]

    face.play(scenario, f"bulks-{face.name}")


def test_names_and_what_is_in_a_log_without_reading_it(face: Face) -> None:
    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            for last in "cab":
                await done(namespace.create_log(f"{name}/{last}"))
            assert await collect(namespace.logs(f"{name}/")) == [f"{name}/{one}" for one in "abc"]
            page = await done(namespace.log_page(f"{name}/", limit=2))
            assert (page.names, page.next) == ((f"{name}/a", f"{name}/b"), f"{name}/b")
            await done(namespace.rename_log(f"{name}/c", f"{name}/d"))
            assert not await done(namespace.log_exists(f"{name}/c"))

            log = namespace.open_log(f"{name}/d")
            assert (log.name, repr(log)) == (f"{name}/d", f'Log("{name}/d")')
            async with opened(log.open_writer()) as writer:
                dlsns = await done(writer.write_bulk([rec(n) for n in (1, 2, 3)]))
                await done(writer.commit())
                assert (await done(log.first_record())).txid == 1
                assert (await done(log.last_record())).txid == 3
                assert await done(log.count(dlsns[1])) == 2
            assert [one.records for one in await done(log.segments())] == [3]

            async with opened(log.open_reader()) as reader:
                assert reader.position.dlsn == DLSN.INITIAL
                for _ in range(2):
                    await done(reader.read_next())
                at = reader.position
                assert (at.sequence_id, at.incarnation) == (2, reader.incarnation)
                assert f"{name}/d" in repr(reader)
                assert (await done(reader.idle())).idle_s < SCENARIO_S
                assert reader.skipped.entries == 0
            await done(log.positions.advance("worker", at))
            assert await done(log.positions.proven("worker")) == at
            assert await done(log.positions.holds()) == {}
            await done(log.positions.advance("worker", at, hold=True))
            assert list(await done(log.positions.holds())) == ["worker"]
            async with opened(log.open_reader(position=at, to="end")) as reader:
                assert [record.txid for record in await collect(reader)] == [3]
            async with opened(namespace.open_reader(logs=[f"{name}/d"], to="end")) as several:
                assert f"{name}/d" in {item.log for item in await collect(several)}
                assert await done(several.next(wait_s=0)) is None
                assert several.positions[f"{name}/d"].sequence_id == 3
            await done(namespace.delete_log(f"{name}/d"))

    face.play(scenario, f"names-{face.name}")


WRITE_AND_DIE = """
import asyncio, os, signal, sys, trio
from tests.test_face_meanings import Face, done, opened, rec

async def scenario(face, name):
    async with opened(face.namespace()) as namespace:
        writer = await done(namespace.open_log(name).open_writer())
        print(await done(writer.write(rec(1, b"durable"))), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

Face(sys.argv[1], sys.argv[2]).play(scenario, sys.argv[3])
"""


def test_what_write_returned_survives_a_kill(face: Face) -> None:
    """G2, H146: one name, one promise."""

    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            log = namespace.open_log(name)
            async with opened(log.open_writer(takeover=True)):  # recovers it
                pass
            async with opened(log.open_reader(to="end")) as reader:
                found = [(str(r.dlsn), r.payload) for r in await collect(reader)]
            assert found == [(written, b"durable")]

    name = f"killed-{face.name}"
    child = subprocess.run(
        [sys.executable, "-c", WRITE_AND_DIE, face.name, face.uri, name],
        stdout=subprocess.PIPE,
        timeout=SCENARIO_S,
        env=environment(),
        cwd=ROOT,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    written = child.stdout.decode().strip()
    face.play(scenario, name)


def test_giving_up_a_wait_withdraws_nothing(cluster: Any) -> None:
    """G7, H31: the cluster stands still for a moment; the write is still under way."""
    pid = cluster.nodes[0].pid
    assert pid != os.getpid()
    with blocking.open_namespace(cluster.uri) as namespace:
        log = namespace.open_log("patient")
        with log.open_writer() as writer:
            writer.submit(rec(1)).result()
            os.kill(pid, signal.SIGSTOP)
            try:
                pending = writer.submit(rec(2))
                began = time.monotonic()
                with pytest.raises(RequestTimeout, match="may still"):
                    pending.result(timeout_s=0.3)
                assert time.monotonic() - began >= 0.3
                assert not pending.done()
            finally:
                os.kill(pid, signal.SIGCONT)
            dlsn = pending.result(timeout_s=30)
        with log.open_reader(to="end") as reader:
            assert [record.dlsn for record in reader][1:] == [dlsn]


def test_a_subscriber_commits_what_it_was_given_and_has_one_holder(face: Face) -> None:
    """H155: not what its face has fetched ahead."""

    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            log = namespace.open_log(name)
            async with opened(log.open_writer()) as writer:
                await done(writer.write_bulk([rec(n) for n in range(10)]))
            async with opened(log.subscribe("a")) as subscription:
                await done(subscription.commit())
                for _ in range(3):
                    record = await done(subscription.reader.read_next())
                await done(subscription.commit())
                assert list(await done(log.positions.holders())) == ["a"]
            async with opened(log.subscribe("a", wait_s=0)) as subscription:
                assert subscription.committed == DLSN(1, 0, 3)
                record = await done(subscription.reader.read_next())
                assert record.txid == 3
                await done(subscription.commit(subscription.reader.position, now=True))
                assert await done(log.positions.get("a")) == subscription.committed
                async with opened(log.subscribe("a", takeover=True)) as other:
                    assert (await done(other.reader.read_next())).txid == 4
                    await done(subscription.reader.read_next())
                    with pytest.raises(SubscriptionLost):
                        await done(subscription.commit(now=True))
                await done(subscription.abort())
            with pytest.raises(AlreadyClosed):
                await done(subscription.commit(now=True))
            with pytest.raises((AlreadyClosed, SubscriptionLost)):
                await done(subscription.reader.read_next())

    face.play(scenario, f"subscribed-{face.name}")


def test_workers_share_a_log_by_a_queue(face: Face) -> None:
    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            log = namespace.open_log(name)
            async with opened(log.open_writer()) as writer:
                for n in range(4):
                    await face.write(writer, rec(n))
                await done(writer.mark_end_of_stream())
            async with opened(log.work_queue("q", tries_max=1)) as queue:
                claim = await done(queue.claim(bytes_max=1))
                assert (claim.number, claim.tries, claim.first) == (1, 1, DLSN(1, 0, 0))
                await done(claim.extend())
                async with opened(claim.open_reader()) as reader:
                    (columns,) = await collect(reader)
                assert [record.txid for record in columns.records()] == [0]
                await done(claim.done())
                with pytest.raises(ClaimLost):
                    await done(claim.done())
                for call in (queue.retry, queue.drop):
                    again = await done(queue.claim(bytes_max=1))
                    await done(again.release())
                    (parked,) = (await done(queue.state())).dead_lettered
                    assert parked.number == again.number
                    await done(call(parked.number))
                assert (await done(log.work_queues()))["q"].floor == DLSN(1, 2, 0)
                handled = []
                while (one := await done(queue.claim())) is not None:
                    async with opened(one):
                        handled.append(one.first)
                assert handled == [DLSN(1, 2, 0)]
                assert await collect(queue) == [], "the log is sealed, and all of it was handled"
            assert await done(log.delete_work_queue("q"))
            with pytest.raises(AlreadyClosed):
                await done(queue.claim())

    face.play(scenario, f"worked-{face.name}")


def test_small_segments_are_put_together(face: Face) -> None:
    async def scenario(face: Face, name: str) -> None:
        async with opened(face.namespace()) as namespace:
            log = namespace.open_log(name)
            with pytest.raises(LogNotFound, match=name):
                await done(log.merge_segments())
            for n in range(3):
                async with opened(log.open_writer()) as writer:
                    await face.write(writer, rec(n, b"%d" % n))
            async with opened(log.open_reader(to="end")) as reader:
                before = await collect(reader)
            assert await done(log.merge_segments()) == 3
            assert len({one.ledger_id for one in await done(log.segments())}) == 1
            async with opened(log.open_reader(to="end")) as reader:
                assert await collect(reader) == before
            assert [record.txid for record in before] == [0, 1, 2]
            assert await done(log.merge_segments()) == 0

    face.play(scenario, f"compacted-{face.name}")
