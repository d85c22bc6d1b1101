"""How a stream gets on, asked without Spark: real metadata and bookies in this process, in memory.

What Spark does with the answers is in `test_spark_stream.py`; here, the rules themselves.
"""

import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from distributedlog import DLSN, Namespace, local_cluster, open_namespace
from distributedlog.log.interfaces.segment_store import SegmentEntryReader
from distributedlog.log.model.log_keys import state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.read.log_view import LogView
from distributedlog.log.segments import log_deletion as deletion
from distributedlog.log.services.named_positions import Positions
from distributedlog.metadata.model.transaction import Put, Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import (
    LogNotFound,
    LogRecreated,
    LogTruncated,
    QuorumUnreachable,
)
from distributedlog.spark.options.options import SourceOptions
from distributedlog.spark.read import source_logs
from distributedlog.spark.read.offsets import Offset
from distributedlog.spark.read.source_logs import SourceLogs
from distributedlog.spark.read.stream_progress import BatchLimit, StreamProgress
from tests.examples import few

ALL = BatchLimit(None, None)


@pytest.fixture(autouse=True)
def _every_answer_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends are remembered for some milliseconds; here each question looks again."""
    monkeypatch.setattr(source_logs, "REFRESH_S", 0.0)
    monkeypatch.setattr(source_logs, "REFRESH_SHARE", 0.0)


@asynccontextmanager
async def namespace_in_memory() -> AsyncIterator[Namespace]:
    async with (
        local_cluster(memory=True, in_process=True, metadata_nodes=1) as cluster,
        open_namespace(cluster.uri) as namespace,
    ):
        yield namespace


async def fill(namespace: Namespace, log: str, numbers: range, entry: int = 10) -> None:
    """One segment; ``entry`` records an entry."""
    async with namespace.open_log(log).open_writer() as writer:
        for at in range(0, len(numbers), entry):
            part = list(numbers[at : at + entry])
            await writer.submit_columns(part, [b"%d" % number for number in part])
            await writer.commit()


def query(namespace: Namespace, **options: object) -> StreamProgress:
    """A query of these options; another one after a restart."""
    given = {
        "uri": "distributedlog://h:1/n",
        "startingPosition": "earliest",
        "discoveryInterval": "0",
    }
    if {"startingTxid", "startingTimestamp"} & options.keys():
        del given["startingPosition"]
    parsed = SourceOptions.parse({**given, **{k: str(v) for k, v in options.items()}}, "stream")
    return StreamProgress(namespace, parsed)


def again(offset: Offset) -> Offset:
    """As Spark gives it back, from its checkpoint."""
    return Offset.from_json(json.loads(json.dumps(offset.to_json())))


async def drained(
    progress: StreamProgress, start: Offset, limit: BatchLimit
) -> tuple[Offset, list[dict[str, int]]]:
    """Micro-batches until there is nothing new: the last offset, and the records of each by log."""
    batches: list[dict[str, int]] = []
    while True:
        end = await progress.latest(start, limit)
        if end.to_json() == start.to_json():
            return end, batches
        ranges = await progress.ranges(start, end)
        views = progress.views
        found: dict[str, int] = {}
        for one in ranges:
            first, last = (
                DLSN(one.segment, one.first_entry, 0),
                DLSN(one.segment, one.last_entry + 1, 0),
            )
            records, _ = await views[one.log].totals_between(first, last)
            found[one.log] = found.get(one.log, 0) + records
        batches.append(found)
        start = again(end)


async def test_limits_are_kept_and_nobody_starves() -> None:
    """S18, S19: at most the limit and one entry; the small log gets on beside the large one."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "large", range(500))
        await fill(namespace, "small", range(40))
        progress = query(namespace, logs="large,small", maxRecordsPerTrigger=60)

        end, batches = await drained(progress, await progress.initial(), BatchLimit(60, None))

        assert sum(batch.get("large", 0) for batch in batches) == 500
        assert sum(batch.get("small", 0) for batch in batches) == 40
        assert max(sum(batch.values()) for batch in batches) <= 70
        assert sum(1 for batch in batches[:4] if batch.get("small")) >= 1
        assert end.sequence_ids == {"large": 500, "small": 40}


async def test_a_limit_below_an_entry_gets_on_by_entries_and_in_bytes() -> None:
    """S19."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "a", range(50))
        progress = query(namespace, log="a")
        start = await progress.initial()

        assert (await drained(progress, start, BatchLimit(1, None)))[1] == [{"a": 10}] * 5
        assert (await drained(progress, start, BatchLimit(None, 1)))[1] == [{"a": 10}] * 5
        everything = await drained(progress, start, BatchLimit(None, 10_000_000))
        assert everything[1] == [{"a": 50}]


async def test_the_first_answer_stays_while_the_log_grows() -> None:
    """A moving ``latest`` would lose what comes between Spark's two questions."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "a", range(10))
        progress = query(namespace, log="a", startingPosition="latest")
        first = await progress.initial()
        await fill(namespace, "a", range(10, 20))
        await progress.latest(first, ALL)  # which sees the new end

        assert (await progress.initial()).to_json() == first.to_json()
        assert (await drained(progress, first, ALL))[1] == [{"a": 10}]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_start_ahead_of_the_log_gives_no_row_before_it(restarted: bool) -> None:
    """It began at the log's end: rows below ``startingTxid`` that came then were given."""
    async with namespace_in_memory() as namespace:
        given = {"log": "a", "startingTxid": 100}
        await namespace.create_log("a")
        await fill(namespace, "a", range(10))
        stream = query(namespace, **given)
        offset = again(await stream.initial())
        texts = set()
        for numbers in (range(10, 20), range(20, 90)):
            await fill(namespace, "a", numbers)
            if restarted:
                stream = query(namespace, **given)
            end = again(await stream.latest(offset, ALL))
            assert await stream.ranges(offset, end) == []
            texts.add(json.dumps(end.to_json()))
            offset = end
        assert len(texts) == 1, "no micro-batch for what is not wanted"
        snapshot = await namespace.open_log("a").snapshot()
        await namespace.open_log("a").truncate(snapshot.end_dlsn)  # what nobody reads is no loss

        await fill(namespace, "a", range(90, 130), entry=5)
        if restarted:
            stream = query(namespace, **given)
            await stream.set_target()  # AvailableNow
        _, batches = await drained(stream, offset, ALL)
        assert batches == [{}, {"a": 30}], "first to where it begins, then from there"


async def test_a_start_by_time_ahead_of_the_log_waits_for_it() -> None:
    async with namespace_in_memory() as namespace:
        await namespace.create_log("a")
        stream = query(namespace, log="a", startingTimestamp="2999-01-01T00:00:00Z")
        offset = again(await stream.initial())
        await fill(namespace, "a", range(10))

        offset, batches = await drained(stream, offset, ALL)
        assert (batches, offset.searched) == ([], {"a"})

        left_out = query(namespace, log="a")
        offset, batches = await drained(left_out, offset, ALL)
        assert (batches, offset.searched) == ([{}, {"a": 10}], set()), "from where it waited"


async def test_a_restart_goes_on_where_the_checkpoint_says_and_a_roll_is_nothing_new() -> None:
    """S20; a position has one spelling until there is something after it."""
    async with namespace_in_memory() as namespace:
        async with namespace.open_log("a").open_writer() as writer:
            await writer.submit_columns([1, 2], [b"x", b"y"])
            await writer.commit()
            progress = query(namespace, log="a")
            end, batches = await drained(progress, await progress.initial(), ALL)
            assert (end.logs, batches) == ({"a": DLSN(1, 1, 0)}, [{"a": 2}])
        restarted = query(namespace, log="a")  # and the segment is closed: the same place

        assert (await restarted.latest(again(end), ALL)).to_json() == end.to_json()
        await fill(namespace, "a", range(5, 8))
        after, batches = await drained(restarted, again(end), ALL)

        assert batches == [{"a": 3}]
        assert after.sequence_ids == {"a": 5}


async def test_available_now_reads_what_was_there_and_no_new_log() -> None:
    """S18, S7."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "x/1", range(30))
        progress = query(namespace, logPattern="x/*")
        start = await progress.initial()
        await progress.set_target()
        await fill(namespace, "x/1", range(30, 60))
        await fill(namespace, "x/2", range(30))

        end, batches = await drained(progress, start, BatchLimit(20, None))
        assert batches == [{"x/1": 20}, {"x/1": 10}]

        following = query(namespace, logPattern="x/*")
        await following.set_target()
        _, rest = await drained(following, again(end), ALL)
        assert rest == [{"x/1": 30, "x/2": 30}]


@pytest.mark.parametrize(("policy", "read"), [("earliest", 15), ("latest", 5), ("ignore", 0)])
async def test_new_logs_begin_where_the_option_says(policy: str, read: int) -> None:
    """S7, S9: from no log at all."""
    async with namespace_in_memory() as namespace:
        progress = query(namespace, logPattern="x/*", newLogs=policy)
        start = await progress.initial()
        assert (await progress.latest(start, ALL)).to_json() == start.to_json()
        await fill(namespace, "x/1", range(10))
        end, before = await drained(progress, start, ALL)
        await fill(namespace, "x/1", range(10, 15))
        _, after = await drained(progress, end, ALL)

        assert sum(batch.get("x/1", 0) for batch in before + after) == read


async def test_truncation_below_the_position_is_an_error_or_a_warning_with_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S5, S6: what was wanted, what is left, how many records are lost; once."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "a", range(100))
        progress = query(namespace, log="a")
        start = await progress.latest(await progress.initial(), BatchLimit(20, None))
        await namespace.open_log("a").truncate(DLSN(1, 5, 0))

        with pytest.raises(
            LogTruncated, match=r'log "a" .* wanted 1\.2\.0, .* 1\.5\.0, 30 records are lost'
        ):
            await query(namespace, log="a").latest(again(start), ALL)
        loose = query(namespace, log="a", failOnDataLoss="false")
        with caplog.at_level(logging.WARNING, "distributedlog.spark"):
            _, batches = await drained(loose, again(start), ALL)

        assert batches == [{"a": 50}]
        assert [record.message.count("30 records are lost") for record in caplog.records] == [1]


@pytest.mark.parametrize("which", ["log", "logPattern"])
@pytest.mark.parametrize("restarted", few([False, True], 1))
@pytest.mark.parametrize("remade", few([True, False], 1))
async def test_what_was_acknowledged_and_not_read_is_never_passed_over(
    which: str, restarted: bool, remade: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Acknowledged after the last look, deleted before the next one: named or matched, running or restarted,
    made again or not, it is one event with one outcome."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "a", range(100))
        progress = query(namespace, **{which: "a"})
        loose = query(namespace, failOnDataLoss="false", **{which: "a"})
        end, _ = await drained(progress, await progress.initial(), ALL)
        await loose.latest(end, ALL)
        await fill(namespace, "a", range(100, 150))
        await namespace.delete_log("a")
        if remade:
            await fill(namespace, "a", range(7))
        if restarted:
            progress = query(namespace, **{which: "a"})
            loose = query(namespace, failOnDataLoss="false", **{which: "a"})

        with pytest.raises(
            LogNotFound, match=r'log "a" was deleted.*: read up to .*, 50 records are lost; "fail'
        ) as caught:
            await progress.latest(again(end), ALL)
        assert isinstance(caught.value, LogRecreated) == remade
        with caplog.at_level(logging.WARNING, "distributedlog.spark"):
            _, batches = await drained(loose, again(end), ALL)
        assert "50 records are lost" in caplog.text
        assert [batch for batch in batches if batch] == ([{"a": 7}] if remade else [])


@pytest.mark.parametrize("which", ["log", "logPattern"])
@pytest.mark.parametrize("restarted", few([True, False], 1))
@pytest.mark.parametrize("seen_between", few([False, True], 1))
async def test_a_log_made_again_is_read_when_all_of_the_old_one_was(
    which: str, restarted: bool, seen_between: bool
) -> None:
    """S15, for the source; also where the query saw for a while that there was no log of the name."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "a", range(20))
        progress = query(namespace, **{which: "a"})
        end, _ = await drained(progress, await progress.initial(), ALL)
        await namespace.delete_log("a")
        if seen_between:
            end, batches = await drained(progress, end, ALL)
            assert not any(batches)
        if restarted:
            progress = query(namespace, **{which: "a"})
        await fill(namespace, "a", range(7))

        end, batches = await drained(progress, again(end), ALL)
        assert [batch for batch in batches if batch] == [{"a": 7}]
        assert end.sequence_ids == {"a": 7}


async def test_a_named_log_that_came_and_went_unseen_is_lost_aloud() -> None:
    """Deleted, made, filled, deleted, made again between two looks."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "a", range(20))
        progress = query(namespace, log="a")
        end, _ = await drained(progress, await progress.initial(), ALL)
        await namespace.delete_log("a")
        end, _ = await drained(progress, end, ALL)  # which has seen that it is gone
        await fill(namespace, "a", range(30))
        await namespace.delete_log("a")
        await fill(namespace, "a", range(7))

        with pytest.raises(LogRecreated, match="30 records are lost"):
            await progress.latest(again(end), ALL)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_log_that_came_and_went_is_told_of_without_a_third(restarted: bool) -> None:
    """Nothing has the name now. A query that was running took what it had found before for the answer, and a
    restarted one ended: one event, two outcomes."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "a", range(20))
        progress = query(namespace, log="a")
        end, _ = await drained(progress, await progress.initial(), ALL)
        await namespace.delete_log("a")
        end, _ = await drained(progress, end, ALL)  # which has seen that it is gone
        await fill(namespace, "a", range(30))
        await namespace.delete_log("a")
        if restarted:
            progress = query(namespace, log="a")

        with pytest.raises(LogNotFound, match="30 records are lost"):
            await progress.latest(again(end), ALL)


async def claim_for_deletion(namespace: Namespace, log: str) -> LogState:
    """A deletion that has done its first step and no more."""
    key = state_key(await namespace.resolve_name(log))
    found = await namespace.metadata.get(key)
    assert found is not None
    half = LogState.decode(found.value).with_deletion_begun("somebody", "w")
    await namespace.metadata.transact(Transaction((), (Put(key, half.encode()),)))
    return half


async def test_a_named_log_that_is_being_deleted_is_not_an_empty_one() -> None:
    """Its name is still there: a batch read and a new query found nothing in it, without a word."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "a", range(20))
        await claim_for_deletion(namespace, "a")
        given = {"uri": "distributedlog://h:1/n", "log": "a"}

        with pytest.raises(LogNotFound, match='log "a" is being deleted'):
            await SourceLogs(namespace, SourceOptions.parse(given, "batch")).discover()
        with pytest.raises(LogNotFound, match='log "a" is being deleted'):
            await query(namespace, log="a").initial()
        matched = query(namespace, logPattern="*")
        assert (await matched.initial()).logs == {}


class Killed(Exception):
    """Whoever deletes has ended, and does nothing more."""


@pytest.mark.properties
@pytest.mark.parametrize("which", ["log", "logPattern"])
@pytest.mark.parametrize("applied", [False, True])
async def test_a_deletion_cut_short_at_any_step_costs_nothing_in_silence(
    which: str, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deleter killed at each of its changes, before or after it came through: a running and a restarted
    query read on, wait, or end with what is lost; and when it was deleted again, with exactly that."""
    monkeypatch.setattr(deletion, "SEGMENTS_AT_ONCE", 1)
    async with (
        local_cluster(memory=True, in_process=True, metadata_nodes=1) as cluster,
        open_namespace(cluster.uri) as namespace,
    ):
        for step in range(1, 100):
            name = f"a{step}"
            await fill(namespace, name, range(100))
            running = query(namespace, **{which: name})
            end, _ = await drained(running, await running.initial(), ALL)
            await fill(namespace, name, range(100, 150))
            await fill(namespace, name, range(150, 170))

            done = await delete_and_die(cluster.uri, name, step, applied, monkeypatch)
            for progress in (running, query(namespace, **{which: name})):
                told = ""
                try:
                    got, batches = await drained(progress, again(end), ALL)
                except LogNotFound as error:
                    told = str(error)
                waits = not told and got.to_json() == end.to_json()
                read_on = not told and [one for one in batches if one] == [{name: 70}]
                assert waits or read_on or "70 records are lost" in told
            if not done:
                with suppress(LogNotFound):  # its last change was the last of all
                    await namespace.delete_log(name)
            for progress in (running, query(namespace, **{which: name})):
                with pytest.raises(LogNotFound, match="70 records are lost"):
                    await progress.latest(again(end), ALL)
            if done:
                assert step > 5, "there were changes to cut short"
                return
    raise AssertionError("the deletion never came to its end")


async def delete_and_die(
    uri: str, name: str, step: int, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Delete a log up to this change of metadata; True: there were fewer."""
    left = [step]
    async with open_namespace(uri) as deleter:
        transact = deleter.metadata.transact

        async def or_die(transaction: Transaction) -> TransactionReply:
            left[0] -= 1
            if left[0] < 0 or (left[0] == 0 and not applied):
                raise Killed
            reply = await transact(transaction)
            if left[0] == 0:
                raise Killed
            return reply

        monkeypatch.setattr(deleter.metadata, "transact", or_die)
        with suppress(Killed):
            await deleter.delete_log(name)
            return True
        monkeypatch.setattr(deleter.metadata, "transact", transact)
    return False


async def test_a_log_that_is_deleted_under_a_planned_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Between Spark's two questions, and in a replay: what the batch was to read of it is lost, no more."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "a", range(100))
        await fill(namespace, "b", range(10), entry=1)
        progress = query(namespace, logs="a,b")
        start = await progress.initial()
        middle = await progress.latest(start, BatchLimit(55, None))
        await namespace.delete_log("a")

        with pytest.raises(LogNotFound, match=r'"a" was deleted.*, \d+ records are lost'):
            await query(namespace, logs="a,b").ranges(again(start), again(middle))
        loose = query(namespace, logs="a,b", failOnDataLoss="false")
        with caplog.at_level(logging.WARNING, "distributedlog.spark"):
            ranges = await loose.ranges(again(start), again(middle))
        assert {one.log for one in ranges} == {"b"}
        assert f"{middle.sequence_ids['a']} records are lost" in caplog.text
        # And a batch that has nothing of it:
        assert await query(namespace, logs="a,b").ranges(middle, again(middle)) == []


async def test_a_log_that_is_being_deleted_keeps_its_position(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Claimed for it and no further: nothing is known yet, so nothing is decided."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "a", range(20))
        progress = query(namespace, log="a")
        end, _ = await drained(progress, await progress.initial(), ALL)
        await fill(namespace, "a", range(20, 30))
        half = await claim_for_deletion(namespace, "a")

        with caplog.at_level(logging.WARNING, "distributedlog.spark"):
            assert (await progress.latest(end, ALL)).to_json() == end.to_json()
        assert "is being deleted" in caplog.text
        noted, key = half.with_end(exact=True), state_key(half.log_id)
        await namespace.metadata.transact(Transaction((), (Put(key, noted.encode()),)))
        with pytest.raises(LogNotFound, match="10 records are lost"):
            await progress.latest(end, ALL)
        await namespace.delete_log("a")
        with pytest.raises(LogNotFound, match="10 records are lost"):
            await progress.latest(end, ALL)


async def test_available_now_leaves_a_log_that_is_made_again_to_the_next_run() -> None:
    """Its position in the old one is kept; nothing of the new one is measured by the old one's end."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "a", range(20))
        progress = query(namespace, log="a")
        end, _ = await drained(progress, await progress.initial(), ALL)
        progress = query(namespace, log="a")
        await progress.set_target()
        await namespace.delete_log("a")
        await fill(namespace, "a", range(7))

        end, batches = await drained(progress, again(end), ALL)
        assert not any(batches)
        following = query(namespace, log="a")
        await following.set_target()
        assert (await drained(following, again(end), ALL))[1] == [{"a": 7}]


async def test_a_deleted_log_of_a_pattern_is_dropped_when_all_of_it_was_read() -> None:
    """A log that goes while the query runs: read to its end it is no loss, else it is."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "x/1", range(20))
        await fill(namespace, "x/2", range(20))
        progress = query(namespace, logPattern="x/*")
        start = await progress.initial()
        end, _ = await drained(progress, start, ALL)
        await namespace.delete_log("x/1")
        after = await progress.latest(end, ALL)
        assert set(after.logs) == {"x/2"}

        with pytest.raises(LogNotFound, match=r'log "x/1" was deleted: read up to 1\.0\.0, 20 rec'):
            await progress.latest(start, ALL)


async def test_a_minimum_is_waited_for_but_not_under_available_now() -> None:
    async with namespace_in_memory() as namespace:
        await fill(namespace, "a", range(20))
        progress = query(namespace, log="a", minRecordsPerTrigger=30)
        start = await progress.initial()

        assert (await progress.latest(start, ALL)).to_json() == start.to_json()
        await fill(namespace, "a", range(20, 40))
        assert (await drained(progress, start, ALL))[1] == [{"a": 40}]
        hurried = query(namespace, log="a", minRecordsPerTrigger=100)
        await hurried.set_target()
        assert (await drained(hurried, start, ALL))[1] == [{"a": 40}]


async def test_a_position_that_was_given_stays_readable_whatever_the_bookies_remember(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H24: the offset proves that what lies before it is confirmed; bookies forget that in a restart."""
    async with namespace_in_memory() as namespace, namespace.open_log("a").open_writer() as writer:
        await writer.submit_columns([1, 2], [b"x", b"y"])
        await writer.commit()
        progress = query(namespace, log="a")
        start = await progress.initial()
        await writer.submit_columns([3], [b"z"])
        await writer.commit()
        end = Offset({"a": DLSN(1, 2, 0)}, dict(start.ids))

        async def forgotten(reader: SegmentEntryReader) -> int:
            return reader.lac

        monkeypatch.setattr(SegmentEntryReader, "refresh_lac", forgotten)

        ranges: Any = await progress.ranges(start, end)

        assert [(one.first_entry, one.last_entry) for one in ranges] == [(0, 1)]


async def test_a_subscriber_is_advanced_and_a_store_that_is_away_ends_no_query(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S27: monotone; a failure is a warning, for an exception in ``commit`` would end the query."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "a", range(30))
        progress = query(namespace, log="a", subscriber="cold")
        middle = await progress.latest(await progress.initial(), BatchLimit(10, None))
        end, _ = await drained(progress, middle, ALL)
        stored = namespace.open_log("a").positions

        await progress.committed(again(middle))
        assert await stored.get("cold") == DLSN(1, 1, 0)
        await progress.committed(again(end))
        await progress.committed(again(middle))  # a replay goes not back
        assert await stored.get("cold") == DLSN(2, 0, 0)

        async def away(*_: object) -> DLSN:
            raise QuorumUnreachable("nobody is there")

        monkeypatch.setattr(Positions, "advance", away)
        with caplog.at_level(logging.WARNING, "distributedlog.spark"):
            await progress.committed(again(end))
        assert "nobody is there" in caplog.text

        async def silent(*_: object) -> DLSN:
            await trio.sleep_forever()
            raise AssertionError

        monkeypatch.setattr(Positions, "advance", silent)
        progress = query(namespace, log="a", subscriber="cold", requestTimeout="50ms")
        with caplog.at_level(logging.WARNING, "distributedlog.spark"):
            await progress.committed(again(end))  # gives up, says so, and raises nothing
        assert 'positions "cold" were not advanced: no answer within 0.05 s' in caplog.text


async def test_a_store_that_is_away_while_a_batch_is_planned_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S27: seen on Spark, where ``latestOffset`` opened a ledger whose record was not known yet."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "a", range(100))
        progress = query(namespace, log="a")
        start = await progress.initial()
        opened, failures = LogView._open_reader, [3]

        async def away(view: LogView, one: Any) -> SegmentEntryReader:
            if failures[0]:
                failures[0] -= 1
                raise QuorumUnreachable("nobody is there")
            return await opened(view, one)

        monkeypatch.setattr(LogView, "_open_reader", away)
        with caplog.at_level(logging.WARNING, "distributedlog.spark"):
            end = await progress.latest(start, BatchLimit(20, None))
        assert end.sequence_ids == {"a": 20}
        assert "the query is waiting: nobody is there (retrying)" in caplog.text

        failures[0] = 1_000_000
        progress = query(namespace, log="a", readTimeout="200ms")
        with pytest.raises(QuorumUnreachable):
            await progress.latest(end, BatchLimit(20, None))


async def test_an_idle_query_says_the_same_text_again_and_again() -> None:
    """S9: an empty log, one with an empty segment, one without anything: no batch over 20 triggers."""
    async with namespace_in_memory() as namespace:
        await namespace.create_log("x/empty")
        await namespace.create_log("x/opened")
        async with namespace.open_log("x/opened").open_writer():
            pass
        await fill(namespace, "x/full", range(10))
        progress = query(namespace, logPattern="x/*", startingPosition="latest")
        start = await progress.initial()

        for _ in range(20):
            assert json.dumps((await progress.latest(start, ALL)).to_json()) == json.dumps(
                start.to_json()
            )
        assert (await progress.ends()).logs["x/full"] == DLSN(2, 0, 0)


@pytest.mark.parametrize(("log", "option"), [("a,b", "logs"), ("orders/*", "logPattern")])
async def test_a_list_or_a_pattern_as_one_log_says_which_option_takes_it(
    log: str, option: str
) -> None:
    """S23: such names are legal, so only the cluster knows."""
    async with namespace_in_memory() as namespace:
        with pytest.raises(LogNotFound, match=rf'"{re.escape(log)}" .*\(.* option "{option}"\)$'):
            await query(namespace, log=log).initial()
