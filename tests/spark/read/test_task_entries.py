"""What a task fetches: everything once and in order, bounded, from a client that outlives tasks and forks."""

import os
import struct
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import trio

from distributedlog import DLSN
from distributedlog.blocking import local_cluster
from distributedlog.bookie.client.bookie_client import BookieClient, ReadResponse
from distributedlog.log.format.record import RECORD_COLUMN_BYTES, Columns
from distributedlog.log.model.segment_ranges import SegmentRange
from distributedlog.log.read import entry_queue, range_reader
from distributedlog.log.read.log_view import view_log
from distributedlog.log.read.range_reader import RangePart, RangeReader
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    LogNotFound,
    LogTruncated,
    RequestTimeout,
)
from distributedlog.spark.client import spark_client as clients
from distributedlog.spark.client.spark_client import SparkClient, client
from distributedlog.spark.options.options import SinkOptions
from distributedlog.spark.read import task_entries
from distributedlog.spark.read.task_entries import TaskEntries
from tests.examples import few

RECORDS = 3_000
URI = "distributedlog://h:1/n"


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with local_cluster(memory=True, metadata_nodes=1) as cluster:
        yield cluster.uri


@pytest.fixture
def held(uri: str) -> SparkClient:
    return client(uri, 30.0)


def ranges(held: SparkClient, name: str) -> list[SegmentRange]:
    """All of a log as it is now."""

    async def look() -> list[SegmentRange]:
        ns = held.namespace
        view = await view_log(ns.metadata, ns.ledgers, name, await ns.resolve_name(name))
        view.close()
        return view.ranges(DLSN.INITIAL, view.end)

    return held.run(look)


def fill(held: SparkClient, name: str, numbers: range, entry: int = 50) -> None:
    async def write() -> None:
        async with held.namespace.open_log(name).open_writer() as writer:
            for at in range(0, len(numbers), entry):
                part = list(numbers[at : at + entry])
                await writer.submit_columns(part, [b"%d" % number * 20 for number in part])
                await writer.commit()

    held.run(write)


def taken(held: SparkClient, plan: list[SegmentRange], **options: Any) -> list[tuple[str, int]]:
    """(log, txid) of everything that a task would get."""
    made = TaskEntries(held, plan, **{"timeout_s": 30.0, "fail_on_data_loss": True, **options})
    try:
        return [
            (name, txid)
            for name, entries in made.by_log()
            for one in entries
            for txid in one.txids.tolist()
        ]
    finally:
        made.close()


@pytest.mark.parametrize(("part", "ahead"), [(1 << 23, 1 << 23), (4_000, 1_000), (1, 1)])
def test_everything_once_and_in_order(
    held: SparkClient, monkeypatch: pytest.MonkeyPatch, part: int, ahead: int
) -> None:
    """Several parts at once, and what is fetched ahead is bounded: order and completeness stay."""
    monkeypatch.setattr(range_reader, "PART_BYTES", part)
    monkeypatch.setattr(task_entries, "READ_AHEAD_BYTES", ahead)
    monkeypatch.setattr(task_entries, "READ_BYTES", 3_000)
    name = f"order-{part}"
    fill(held, f"{name}/a", range(RECORDS))
    fill(held, f"{name}/a", range(RECORDS, RECORDS + 100))
    fill(held, f"{name}/b", range(7))

    found = taken(held, ranges(held, f"{name}/a") + ranges(held, f"{name}/b"))

    assert found == [(f"{name}/a", n) for n in range(RECORDS + 100)] + [
        (f"{name}/b", n) for n in range(7)
    ]


@pytest.mark.parametrize("waits", [True, False])
def test_only_a_task_that_waits_asks_several_bookies(
    held: SparkClient, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """On one machine they are no more hands. Everything comes once, whenever it is cut."""
    monkeypatch.setattr(entry_queue, "STARVATION_WINDOW_S", 0.0)
    monkeypatch.setattr(entry_queue, "STARVED_FRACTION", 0.0 if waits else 1.1)
    monkeypatch.setattr(range_reader, "PART_BYTES", 4_000)
    monkeypatch.setattr(task_entries, "PIECE_BYTES", 1_000)
    monkeypatch.setattr(task_entries, "READ_AHEAD_BYTES", 1_000)
    monkeypatch.setattr(task_entries, "READ_BYTES", 3_000)
    name = f"waits-{waits}"
    fill(held, name, range(RECORDS))
    made = TaskEntries(held, ranges(held, name), timeout_s=30.0, fail_on_data_loss=True)

    found = [txid for _, some in made.by_log() for one in some for txid in one.txids]
    made.close()

    assert found == list(range(RECORDS))
    assert made._reader._parallel == waits


@pytest.mark.parametrize("ahead", few([((4, 2),), ((1, 0),), ((4, 3),)], 1))
def test_what_is_handed_over_and_not_taken_is_bounded(
    held: SparkClient, monkeypatch: pytest.MonkeyPatch, ahead: tuple[int, int]
) -> None:
    """Neither waits for ever for the other, whichever is slower."""
    monkeypatch.setattr(task_entries, "PIECES_AHEAD", ahead[0])
    monkeypatch.setattr(task_entries, "PIECES_TO_WAKE", ahead[1])
    monkeypatch.setattr(task_entries, "PIECE_BYTES", 1_000)
    monkeypatch.setattr(task_entries, "READ_AHEAD_BYTES", 1_000)
    monkeypatch.setattr(task_entries, "READ_BYTES", 3_000)
    name = f"bounded-{ahead[0]}-{ahead[1]}"
    fill(held, name, range(RECORDS), entry=10)
    made = TaskEntries(held, ranges(held, name), timeout_s=30.0, fail_on_data_loss=True)
    chance = Random(5)
    found: list[int] = []
    most = 0

    for _, some in made.by_log():
        for one in some:
            found += one.txids
            if chance.random() < 0.2:
                held.run(trio.sleep, chance.random() * 0.003)
            most = max(most, made._pieces.qsize())
    made.close()

    assert found == list(range(RECORDS))
    assert 0 < most <= ahead[0] + 1, "the end is a piece, too"


def test_the_loop_goes_on_where_the_thread_took_the_rest_just_before_it_stopped(
    held: SparkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread has looked whether to wake it by then."""

    class Racing(TaskEntries):
        @property
        def _is_paused(self) -> bool:
            return self._paused

        @_is_paused.setter
        def _is_paused(self, full: bool) -> None:
            self._paused = full
            if full:
                self._pieces_taken = self._pieces_sent

    made = Racing(held, [], timeout_s=30.0, fail_on_data_loss=True)
    left = iter(range(3 * task_entries.PIECES_AHEAD))

    def take(*, bytes_max: int) -> list[tuple[str, list[Columns]]]:
        return [] if next(left, None) is None else [("a", [])]

    monkeypatch.setattr(made._reader, "read_ready", take)

    made._send_ready_pieces()

    assert made._pieces_sent == 3 * task_entries.PIECES_AHEAD


def test_an_error_comes_after_all_that_was_handed_over(
    held: SparkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is none of ours: a task does not end as if it had everything."""
    fill(held, "broken", range(RECORDS))
    plan = ranges(held, "broken")
    decoded = RangePart.decode_next

    def broken(part: RangePart, entry: int, payload: memoryview) -> Columns | None:
        if entry == 40:
            raise CorruptData("entry 40 is damaged")
        return decoded(part, entry, payload)

    monkeypatch.setattr(RangePart, "decode_next", broken)
    made = TaskEntries(held, plan, timeout_s=30.0, fail_on_data_loss=True)
    found: list[int] = []

    def take_all() -> None:
        for _, some in made.by_log():
            for one in some:
                found.extend(one.txids)

    with pytest.raises(CorruptData, match="entry 40"):
        take_all()
    made.close()

    assert found == list(range(2_000))

    async def fails(_: object) -> None:
        raise RuntimeError("what nobody thought of")

    monkeypatch.setattr(RangeReader, "run", fails)
    with pytest.raises(RuntimeError, match="thought"):
        taken(held, plan)


def test_a_task_of_nothing(held: SparkClient) -> None:
    assert taken(held, []) == []


def test_four_entries_of_the_sink_are_one_reply(
    held: SparkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what a reply costs is the same whatever its size."""
    entry_bytes, entries = SinkOptions.parse({"uri": URI, "log": "full"}, "batch").entry_bytes, 12
    records = entry_bytes // (1000 + RECORD_COLUMN_BYTES)
    rest = entry_bytes - records * (1000 + RECORD_COLUMN_BYTES)
    payloads = b"x" * (1000 * records + rest)
    offsets = struct.pack(f"<{records + 1}i", *range(0, 1000 * records, 1000), len(payloads))

    async def write() -> None:
        log = held.namespace.open_log("full", config={"create_if_missing": True})
        await held.namespace.create_log("full")
        async with await log.open_segment_writer(app="", version=0) as writer:
            for _ in range(entries):
                await writer.write_packed(None, offsets, payloads)
            token = await writer.aclose()
        await log.link_segments([token])

    held.run(write)
    replies: list[int] = []
    finish = BookieClient.finish_read

    async def finish_read(client: BookieClient, *asked: Any) -> ReadResponse:
        answer = await finish(client, *asked)
        replies.append(len(answer.body))
        return answer

    plan = ranges(held, "full")
    monkeypatch.setattr(BookieClient, "finish_read", finish_read)

    assert len(taken(held, plan)) == entries * records
    assert sum(replies) > entries * entry_bytes
    assert len(replies) == entries // 4


def test_leaving_in_the_middle_stops_the_fetching(held: SparkClient) -> None:
    """LIMIT: Spark leaves a generator suspended, or closes it."""
    fill(held, "left", range(RECORDS))
    before = held.users
    made = TaskEntries(held, ranges(held, "left"), timeout_s=30.0, fail_on_data_loss=True)

    _, entries = next(made.by_log())
    next(entries)
    assert held.users == before + 1
    made.close()
    made.close()

    assert held.users == before
    assert taken(held, ranges(held, "left"))[-1] == ("left", RECORDS - 1)  # the client goes on


def test_truncated_since_the_plan(held: SparkClient) -> None:
    """S5, in a task."""
    fill(held, "cut", range(500))
    plan = ranges(held, "cut")

    async def truncate() -> None:
        await held.namespace.open_log("cut").truncate(DLSN(1, 4, 0))

    held.run(truncate)

    with pytest.raises(LogTruncated, match=r'log "cut" was truncated: wanted 1\.0\.0, .* 1\.4\.0'):
        taken(held, plan)
    assert taken(held, plan, fail_on_data_loss=False) == [("cut", n) for n in range(200, 500)]


def test_deleted_since_the_plan(held: SparkClient) -> None:
    """H30: a definite error, not a missing entry."""
    fill(held, "gone", range(10))
    plan = ranges(held, "gone")
    held.run(held.namespace.delete_log, "gone")

    with pytest.raises(LogNotFound, match='log "gone" was deleted'):
        taken(held, plan)
    assert taken(held, plan, fail_on_data_loss=False) == []


def test_no_progress_is_an_error_and_not_a_hang(
    held: SparkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(held, "slow", range(10))
    plan = ranges(held, "slow")

    async def never(*_: object) -> int:
        await trio.sleep_forever()
        return 0

    monkeypatch.setattr(RangeReader, "_resume_entry", never)

    with pytest.raises(
        RequestTimeout, match=r'log "slow": no entries arrived from 1\.0\.0 on for 0\.2 s'
    ):
        taken(held, plan, timeout_s=0.2)


def test_one_client_a_process_and_another_one_when_it_ended(uri: str) -> None:
    first = client(uri, 30.0)
    assert client(uri, 30.0) is first

    first.close()

    assert client(uri, 30.0) is not first


def test_a_forked_child_makes_its_own(uri: str) -> None:
    """H15: Spark forks its workers; a child must neither use nor wait for what was its parent's."""
    ours = client(uri, 30.0)
    pid = os.fork()
    if pid == 0:
        try:
            theirs = clients.client(uri, 30.0)
            ok = theirs is not ours and theirs.run(theirs.namespace.log_exists, "none") is False
            os._exit(0 if ok else 3)
        except BaseException:
            os._exit(4)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ours.run(ours.namespace.log_exists, "none") is False


def test_txids_that_were_given_at_the_link_are_read_and_found(held: SparkClient) -> None:
    """All of them, wherever a task begins; a search by txid meets them as a linear scan does."""
    fill(held, "linked", range(10), entry=5)

    async def link() -> int:
        log = held.namespace.open_log("linked")
        async with log.open_segment_writer() as writer:
            for number in range(3):
                await writer.write_columns(None, [b"%d" % number])
                await writer.flush()
        assert writer.token is not None
        linked = await log.link_segments([writer.token])
        return linked.first_segment

    async def find(txid: int) -> DLSN:
        ns = held.namespace
        view = await view_log(ns.metadata, ns.ledgers, "linked", await ns.resolve_name("linked"))
        view.close()
        return await view.first_with_txid(txid)

    segment = held.run(link)
    txids = [txid for _, txid in taken(held, ranges(held, "linked"))]

    assert txids[:10] == list(range(10))
    linked = txids[10:]
    assert linked == sorted(set(linked)), "the log fills them in, above its last one"
    assert linked[0] > 9
    assert held.run(find, 9) == DLSN(1, 1, 4)
    assert held.run(find, 10) == DLSN(segment, 0, 0)
    assert held.run(find, 7) == DLSN(1, 1, 2)
