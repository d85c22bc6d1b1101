"""Long polls at the end of a ledger: few questions, nothing twice, nobody hides the end for long (H23)."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.bookie.format.entry import EntryRecord
from distributedlog.ledger.read.tail_polls import ERROR_PAUSE_S, TailPolls
from distributedlog.ledger.write.ledger_writer import LedgerWriter
from distributedlog.runtime.interfaces.errors import TooBusy

from ..model_bookie import ModelAddStream, ModelCluster, confirmed, model_cluster, written


def asked(cluster: ModelCluster, kind: str) -> int:
    return sum(node.asked.get(kind, 0) for node in cluster.pool.nodes.values())


async def write(writer: LedgerWriter, count: int) -> None:
    for _ in range(count):
        await trio.sleep(0.005)
        writer.add([b"x"], 1)


async def test_a_tail_costs_no_question_an_entry(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 1)
        with await client.open(writer.ledger_id) as reader:
            read: list[bytes] = []
            async with trio.open_nursery() as nursery:

                async def write() -> None:
                    for n in range(1, 101):
                        await trio.sleep(0.01)
                        writer.add([b"%d" % n], len(b"%d" % n))

                nursery.start_soon(write)
                while len(read) < 100:
                    after = len(read)
                    lac = await reader.wait(after, wait_s=5.0)
                    found = await reader.read(after + 1, lac, bytes_max=1000)
                    read += [bytes(one.payload) for one in found]
            assert read == [b"%d" % n for n in range(1, 101)]
        assert asked(cluster, "stand") <= 5
        assert asked(cluster, "wait") <= 8
        # What the second bookie told first was still the first one's to bring.
        assert asked(cluster, "read") <= 2
        writer.abort()


async def test_a_first_bookie_that_falls_silent_is_left(autojump_clock: MockClock) -> None:
    """The second one knows more: the first poll moves there, long before it would be late."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 1)
        with await client.open(writer.ledger_id) as reader:
            for _ in range(3):
                entry = writer.add([b"x"], 1)
                assert await reader.wait(entry - 1, wait_s=5.0) == entry
                await reader.read(entry, entry, bytes_max=100)
            await trio.sleep(0.3)
            first = cluster[reader._tail_polls._preferred_bookie]
            first.hang()
            entry = writer.add([b"y"], 1)
            started = trio.current_time()
            assert await reader.wait(entry - 1, wait_s=5.0) == entry
            assert trio.current_time() - started < 0.5
            found = await reader.read(entry, entry, bytes_max=100)
            assert bytes(found[0].payload) == b"y"
            assert trio.current_time() - started < 0.5
            assert reader._tail_polls._preferred_bookie != first.id
        writer.abort()


async def test_a_broken_connection_is_left_at_once(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 1)
        with await client.open(writer.ledger_id) as reader:
            entry = writer.add([b"x"], 1)
            assert await reader.wait(entry - 1, wait_s=5.0) == entry
            cluster[reader._tail_polls._preferred_bookie].stop()
            entry = writer.add([b"y"], 1)
            started = trio.current_time()
            assert await reader.wait(entry - 1, wait_s=5.0) == entry
            assert trio.current_time() - started < 0.5
        writer.abort()


async def test_an_answer_shows_nothing_beyond_its_lac(autojump_clock: MockClock) -> None:
    """Inv. 31: also when a bookie sends more than it says is confirmed."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 2)
        await writer.close()
        node = cluster["b1"]
        body = b"".join(node.model.ledgers[writer.ledger_id].entries[n] for n in (0, 1))
        polls = TailPolls(
            writer.ledger_id, client.pool, bookie_offset=0, on_response=lambda _: None
        )

        polls._add_pushed_entries(memoryview(body), 0)

        assert [one.entry for one in polls.pushed_entries] == [0]


async def test_entries_after_missing_ones_are_never_taken_for_those(
    autojump_clock: MockClock,
) -> None:
    """A bookie of a striped ledger sends the entries that it has. The others are read from other bookies."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 5)
        await writer.close()
        entries = cluster["b1"].model.ledgers[writer.ledger_id].entries
        polls = TailPolls(
            writer.ledger_id, client.pool, bookie_offset=0, on_response=lambda _: None
        )

        polls._add_pushed_entries(memoryview(b"".join(entries[n] for n in (0, 1, 3, 4))), 4)

        assert polls.take_entries(0, 4) == []
        assert polls.take_entries(2, 4) == []
        assert [one.entry for one in polls.take_entries(3, 4)] == [3, 4]


@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 3, 2)])
async def test_only_where_somebody_waits_a_lac_is_told_at_once(
    quorums: tuple[int, int, int], autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others hear of it with the next add, or a moment later."""
    told: list[tuple[float, str]] = []
    send_lac = ModelAddStream.send_lac

    def note(stream: ModelAddStream, lac: int) -> None:
        told.append((trio.current_time(), stream._node.id))
        send_lac(stream, lac)

    monkeypatch.setattr(ModelAddStream, "send_lac", note)
    async with model_cluster(quorums[0]) as cluster:
        _, writer = await written(
            cluster,
            1,
            ensemble_size=quorums[0],
            write_quorum=quorums[1],
            ack_quorum=quorums[2],
        )
        await confirmed(writer)
        watched = cluster["b2"].client
        assert watched is not None
        watched.streams[0].has_lac_waiters = True
        told.clear()
        writer.add([b"x"], 1)
        await confirmed(writer)
        first_s, first = told[0]
        assert first == "b2"
        later = [(time_s, bookie) for time_s, bookie in told if time_s > first_s]
        assert {bookie for _, bookie in later} == set(cluster.pool.nodes)
        assert later[0][0] - first_s < 0.01
        told.clear()
        for _ in range(5):  # a stream of them: nobody else is told
            writer.add([b"x"], 1)
            await trio.sleep(0.004)
        assert {bookie for _, bookie in told} == {"b2"}
        writer.abort()


async def test_refusing_bookies_are_not_asked_without_end(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 1)
        with await client.open(writer.ledger_id) as reader:
            for node in cluster.pool.nodes.values():
                node.refuse_reads = TooBusy("no")
            assert await reader.wait(5, wait_s=3.0) == 0
        assert asked(cluster, "stand") <= 3 * 3.0 / ERROR_PAUSE_S
        writer.abort()


async def test_entries_are_handed_to_whoever_waits_without_waking_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0
    arm = TailPolls.start_polls

    def count(polls: TailPolls, *more: Any) -> float:
        nonlocal turns
        turns += 1
        return arm(polls, *more)

    monkeypatch.setattr(TailPolls, "start_polls", count)
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 1)
        given: list[int] = []

        def take(entries: Sequence[EntryRecord]) -> int:
            given.extend(one.entry for one in entries)
            return len(entries)

        with await client.open(writer.ledger_id) as reader:
            await reader.wait(-1, wait_s=5.0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, writer, 200)
                while len(given) < 200:
                    await reader.wait(len(given), wait_s=5.0, on_entries=take)
        assert given == list(range(1, 201))
        assert turns < 30
        writer.abort()


async def test_what_was_not_taken_is_read(autojump_clock: MockClock) -> None:
    """A taker that has no room, or cannot use an entry, is called no more, and loses nothing."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 1)
        taken: list[int] = []

        def take(entries: Sequence[EntryRecord]) -> int:
            if len(taken) < 2:
                taken.append(entries[0].entry)
                return 1
            return 0

        with await client.open(writer.ledger_id) as reader:
            await reader.wait(-1, wait_s=5.0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, writer, 6)
                lac = await reader.wait(0, wait_s=5.0, on_entries=take)
                assert taken == [1, 2]
                assert lac >= 3
                rest = list(await reader.read(3, lac, bytes_max=1000))
                while rest[-1].entry < 6:
                    after = rest[-1].entry
                    lac = await reader.wait(after, wait_s=5.0)
                    rest += await reader.read(after + 1, lac, bytes_max=1000)
        assert [*taken, *(one.entry for one in rest)] == [1, 2, 3, 4, 5, 6]
        writer.abort()
