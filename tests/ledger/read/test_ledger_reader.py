"""The reader against model bookies: replicas, staleness, tailing."""

from copy import deepcopy
from functools import partial
from itertools import combinations_with_replacement
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.ledger.model.ledger_metadata import DeclaredLoss
from distributedlog.ledger.model.ledger_transactions import change_ops
from distributedlog.ledger.read.ledger_reader import LedgerReader
from distributedlog.runtime.interfaces.errors import (
    BookieReadOnly,
    CorruptData,
    EntriesLost,
    InvalidRequest,
    LedgerStateUnknown,
    NoSuchEntry,
    NoSuchLedger,
    RequestTimeout,
)

from ..model_bookie import (
    LATENCY_S,
    confirmed,
    model_cluster,
    put_record,
    record_of,
    written,
)

numbered = partial(written, payload=lambda entry: b"%d" % entry)
"""Entries say their number."""


async def test_reading_without_recovery_fences_nothing(autojump_clock: MockClock) -> None:
    """Sees up to the LAC, and the writer goes on."""
    async with model_cluster(3) as cluster:
        client, writer = await numbered(cluster, 3)
        with await client.open(writer.ledger_id) as reader:
            assert reader.lac == 2
            found = await reader.read(0, 2, bytes_max=1000)
            assert [bytes(one.payload) for one in found] == [b"0", b"1", b"2"]
            with pytest.raises(InvalidRequest):  # inv. 31
                await reader.read(3, 3, bytes_max=1000)
            writer.add([b"3"], 1)
            await confirmed(writer)
            assert await reader.wait(2, wait_s=5.0) == 3
            assert [bytes(one.payload) for one in await reader.read(3, 3, bytes_max=10)] == [b"3"]
        writer.abort()


@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 3, 2), (4, 2, 2)])
@pytest.mark.parametrize("how", ["stop", "damage", "lose", "hang"])
async def test_the_next_replica_answers(
    how: str, quorums: tuple[int, int, int], autojump_clock: MockClock
) -> None:
    """One bad bookie of each write set is not noticed."""
    async with model_cluster(quorums[0]) as cluster:
        client, writer = await numbered(
            cluster,
            23,
            ensemble_size=quorums[0],
            write_quorum=quorums[1],
            ack_quorum=quorums[2],
        )
        bad = cluster["b1"]
        await writer.close()
        reader = await client.open(writer.ledger_id)
        held = bad.model.ledgers[writer.ledger_id]
        if how == "stop":
            bad.stop()
        elif how == "damage":
            held.damaged = set(held.entries)
        elif how == "lose":
            held.entries.clear()
        else:
            bad.hang()
        read: list[bytes] = []
        with trio.fail_after(200):
            while len(read) < 23:
                found = await reader.read(len(read), 22, bytes_max=1000)
                assert [one.entry for one in found] == list(
                    range(len(read), len(read) + len(found))
                )
                read += [bytes(one.payload) for one in found]
        assert read == [b"%d" % n for n in range(23)]


@pytest.mark.parametrize(
    ("quorums", "gone"),
    [((4, 3, 2), 1), ((5, 3, 2), 1), ((4, 2, 2), 1), ((5, 3, 2), 2), ((4, 3, 2), 2)],
)
async def test_a_striped_ledger_is_read_without_waiting_for_who_is_away(
    quorums: tuple[int, int, int], gone: int, autojump_clock: MockClock
) -> None:
    """While the others have all of it: each range waited a second for the connection to a dead bookie."""
    async with model_cluster(quorums[0]) as cluster:
        client, writer = await numbered(
            cluster,
            40,
            ensemble_size=quorums[0],
            write_quorum=quorums[1],
            ack_quorum=quorums[2],
        )
        await writer.close()
        for bookie in ["b1", "b2"][:gone]:
            cluster[bookie].stop()
        reader = await client.open(writer.ledger_id)
        began = trio.current_time()
        for first in range(40):  # from each slot on
            found = await reader.read(first, min(first + 5, 39), bytes_max=1000)
            assert [bytes(one.payload) for one in found[:1]] == [b"%d" % first]
        assert trio.current_time() - began < 40 * 3 * LATENCY_S


async def test_it_stays_with_a_replica_that_answers(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        client, writer = await numbered(cluster, 10)
        await writer.close()
        reader = await client.open(writer.ledger_id)
        for entry in range(10):
            await reader.read(entry, entry, bytes_max=100)
        assert sorted(n.asked.get("read", 0) for n in cluster.pool.nodes.values()) == [0, 0, 10]
        used = max(cluster.pool.nodes.values(), key=lambda n: n.asked.get("read", 0))
        used.stop()
        for entry in range(10):
            await reader.read(entry, entry, bytes_max=100)
        assert sorted(n.asked.get("read", 0) for n in cluster.pool.nodes.values()) == [0, 10, 10]


async def test_each_turn_asks_another_replica_first(autojump_clock: MockClock) -> None:
    """So the parts of one ledger are read from all its bookies at once."""
    async with model_cluster(3) as cluster:
        client, writer = await numbered(cluster, 10)
        await writer.close()
        for turn in range(3):
            with await client.open(writer.ledger_id, replica_offset=turn) as reader:
                await reader.read(0, 0, bytes_max=100)
        assert [n.asked.get("read", 0) for n in cluster.pool.nodes.values()] == [1, 1, 1]


@pytest.mark.parametrize("options", [{}, {"speculative_s": 0.5}])
async def test_a_slow_replica_costs_the_time_until_the_speculative_read(
    options: dict[str, Any], autojump_clock: MockClock
) -> None:
    speculative_s = options.get("speculative_s", 2.0)
    async with model_cluster(3) as cluster:
        client, writer = await numbered(cluster, 5, **options)
        await writer.close()
        for node in cluster.pool.nodes.values():
            reader = await client.open(writer.ledger_id)
            node.read_delay_s = 4.0
            started = trio.current_time()
            await reader.read(0, 4, bytes_max=1000)
            assert trio.current_time() - started < speculative_s + 0.1
            node.read_delay_s = 0.0


async def test_damage_once_is_read_again_at_the_same_bookie(autojump_clock: MockClock) -> None:
    """H16: a digest that does not fit is asked for once more before it counts."""
    async with model_cluster(3) as cluster:
        client, writer = await numbered(cluster, 2)
        await writer.close()
        reader = await client.open(writer.ledger_id)
        await reader.read(0, 1, bytes_max=1000)
        sticky = max(cluster.pool.nodes.values(), key=lambda n: n.asked.get("read", 0))
        held = sticky.model.ledgers[writer.ledger_id]
        held.damaged = {0, 1}

        async def heal() -> None:
            await trio.sleep(0.0015)
            held.damaged = set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(heal)
            assert len(await reader.read(0, 1, bytes_max=1000)) == 2
        assert sticky.asked["read"] == 3


async def test_all_replicas_bad_says_what_each_said(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        client, writer = await numbered(cluster, 2)
        await writer.close()
        reader = await client.open(writer.ledger_id)
        for node in cluster.pool.nodes.values():
            node.model.ledgers[writer.ledger_id].damaged = {1}
        assert len(await reader.read(0, 1, bytes_max=1000)) == 1
        with pytest.raises(CorruptData, match="b2:"):
            await reader.read(1, 1, bytes_max=1000)
        for node in cluster.pool.nodes.values():
            node.model.ledgers[writer.ledger_id].entries.pop(1)
        with pytest.raises(NoSuchEntry):
            await reader.read(1, 1, bytes_max=1000)


async def test_a_deleted_ledger_is_a_definite_error(autojump_clock: MockClock) -> None:
    """H30."""
    async with model_cluster(3) as cluster:
        client, writer = await numbered(cluster, 2)
        await writer.close()
        reader = await client.open(writer.ledger_id)
        await client.delete(writer.ledger_id)
        for node in cluster.pool.nodes.values():
            node.model.ledgers.clear()
        with pytest.raises(NoSuchLedger):
            await reader.read(0, 1, bytes_max=1000)
        with pytest.raises(NoSuchLedger):
            await client.open(writer.ledger_id)


async def _told_soon(reader: LedgerReader, entry: int) -> None:
    started = trio.current_time()
    assert await reader.wait(entry - 1, wait_s=20.0) == entry
    assert trio.current_time() - started < 2.0


async def test_a_tail_reader_follows_ensemble_changes(autojump_clock: MockClock) -> None:
    """H23: bookies leave the ensemble under a tail reader; delivery stays below 2 s."""
    async with model_cluster(6) as cluster:
        client, writer = await numbered(cluster, 1)
        reader = await client.open(writer.ledger_id)
        for turn in range(3):
            bookies = writer._change.metadata.last_fragment.bookies
            leaving = cluster[bookies[turn]]
            leaving.refuse_adds = BookieReadOnly("full")
            leaving.hang()  # says nothing any more, to anybody
            entry = writer.add([b"z"], 1)
            leaving.disconnect()
            await _told_soon(reader, entry)
            await trio.sleep(5)
        writer.abort()


async def test_a_paused_bookie_hides_nothing(autojump_clock: MockClock) -> None:
    """H23: pause each bookie in turn, whoever is polled."""
    async with model_cluster(3) as cluster:
        client, writer = await numbered(cluster, 1)
        reader = await client.open(writer.ledger_id)
        for node in cluster.pool.nodes.values():
            node.hang()
            await trio.sleep(0.3)
            entry = writer.add([b"z"], 1)
            await _told_soon(reader, entry)
            assert (await reader.read(entry, entry, bytes_max=100))[0].entry == entry
            node.hang(False)
            await trio.sleep(0.1)
        writer.abort()


async def test_waiting_ends_with_the_close_and_with_time(autojump_clock: MockClock) -> None:
    """Also when a recovery closes the ledger."""
    async with model_cluster(3) as cluster:
        client, writer = await numbered(cluster, 2)
        reader = await client.open(writer.ledger_id)
        started = trio.current_time()
        assert await reader.wait(1, wait_s=3.0) == 1
        assert 2.9 < trio.current_time() - started < 3.1
        async with trio.open_nursery() as nursery:

            async def recover() -> None:
                await trio.sleep(0.5)
                await client.recover(writer.ledger_id)

            nursery.start_soon(recover)
            started = trio.current_time()
            assert await reader.wait(1, wait_s=60.0) == 1
            assert trio.current_time() - started < 3.0
        assert reader.closed
        assert client._ledger_watch._followers == {}


@pytest.mark.parametrize("bookies", [3, 5], ids=["each has all", "striped"])
@pytest.mark.parametrize("how", ["skips", "turns round", "repeats", "another ledger's"])
async def test_a_reply_out_of_sequence_gives_no_wrong_entry(
    how: str, bookies: int, autojump_clock: MockClock
) -> None:
    """G1: whatever a reply holds, a reader gets entry after entry from the one that it asked for."""

    def garbled(records: list[bytes]) -> list[bytes]:
        return {
            "skips": records[:1] + records[2:],
            "turns round": records[::-1],
            "repeats": [one for record in records for one in (record, record)],
            "another ledger's": [*foreign, *records],
        }[how]

    async with model_cluster(bookies) as cluster:
        client, writer = await numbered(cluster, 8, ensemble_size=bookies)
        await writer.close()
        _, stranger = await numbered(cluster, 8, ensemble_size=bookies)
        held = next(iter(cluster.pool.nodes.values())).model.ledgers[stranger.ledger_id].entries
        foreign = [bytes(record) for record in held.values()][:1]
        for node in cluster.pool.nodes.values():
            node.garbles = garbled
        reader = await client.open(writer.ledger_id)

        try:
            found = await reader.read(0, reader.lac, bytes_max=10_000)
        except (NoSuchEntry, CorruptData):
            return
        assert [one.entry for one in found] == list(range(len(found)))
        assert {one.ledger for one in found} == {writer.ledger_id}


async def test_who_follows_a_ledger_hears_by_waiting_how_far_it_can_be_read(
    autojump_clock: MockClock,
) -> None:
    """Nobody is asked for the LAC, also of a ledger that no bookie has heard of yet; entries come as ever."""
    async with model_cluster(3) as cluster:
        client, writer = await numbered(cluster, 0)
        reader = await client.open_tailing(writer.ledger_id)
        assert (reader.lac, await reader.wait(-1, wait_s=0.5)) == (-1, -1)
        for payload in (b"a", b"b", b"c"):
            writer.add([payload], 1)

        while await reader.wait(reader.lac, wait_s=5.0) < 2:
            pass

        assert (await reader.read(0, 2, bytes_max=100))[0].entry == 0
        reader.close()
        writer.abort()


async def test_a_minority_does_not_say_how_far_a_ledger_is_confirmed(
    autojump_clock: MockClock,
) -> None:
    """Inv. 31: one bookie of three that lags is not the end; who asks is told that it is not known."""
    async with model_cluster(3) as cluster:
        client, writer = await numbered(cluster, 5)
        reader = await client.open(writer.ledger_id)
        nodes = list(cluster.pool.nodes.values())
        nodes[0].model.ledgers[writer.ledger_id].lac = -1
        nodes[1].refuse_reads = nodes[2].refuse_reads = RequestTimeout("silent")

        with pytest.raises(LedgerStateUnknown, match="b1"):
            await reader.refresh_lac()
        reader.close()
        with pytest.raises(LedgerStateUnknown, match="b1"):
            await client.open(writer.ledger_id)
        assert client._ledger_watch._followers == {}, "who was not given it does not follow it"

        nodes[1].refuse_reads = None
        assert await reader.refresh_lac() == 4
        writer.abort()


async def test_how_far_a_ledger_is_confirmed_is_not_what_the_quickest_bookie_says(
    autojump_clock: MockClock,
) -> None:
    """Inv. 31: one that lags and is quick is waited with, until enough have answered to know."""
    async with model_cluster(3) as cluster:
        client, writer = await numbered(cluster, 5)
        reader = await client.open(writer.ledger_id)
        nodes = list(cluster.pool.nodes.values())
        nodes[0].model.ledgers[writer.ledger_id].lac = -1
        nodes[1].read_delay_s = nodes[2].read_delay_s = 0.5

        assert await reader.refresh_lac() == 4

        writer.abort()


DENIES = {
    "rot": "its copy is damaged",
    "rotten limbo": "its copy is damaged",
    "lose": "it has none",
}


@pytest.mark.parametrize("first", [*DENIES, "down", "limbo", "well"])
async def test_only_what_every_replica_denies_is_unreadable(
    first: str, autojump_clock: MockClock
) -> None:
    """H164: all subsets of down, rotten, limbo. Away is not gone."""
    for others in combinations_with_replacement([*DENIES, "down", "limbo", "well"], 2):
        async with model_cluster(3) as cluster:
            client, writer = await numbered(cluster, 3)
            await writer.close()
            reader = await client.open(writer.ledger_id)
            all_three = dict(zip(("b0", "b1", "b2"), (first, *others), strict=True))
            for name, how in all_three.items():
                held = cluster[name].model.ledgers[writer.ledger_id]
                if "rot" in how:
                    held.damaged = {1}
                if how in ("lose", "limbo"):
                    del held.entries[1]
                held.limbo = "limbo" in how
                if how == "down":
                    cluster[name].stop()

            why = await reader.why_unreadable(1)

            assert bool(why) == all(how in DENIES for how in all_three.values())
            for name, how in all_three.items():
                assert not why or f"{name}: {DENIES[how]}" in why
            if "well" in all_three.values():
                assert (await reader.read(1, 1, bytes_max=10))[0].entry == 1


async def test_the_record_as_it_is_now_says_whose_copies_count(autojump_clock: MockClock) -> None:
    """H164: a copy was made elsewhere since the ledger was opened."""
    async with model_cluster(4) as cluster:
        client, writer = await numbered(cluster, 3, ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.close()
        reader = await client.open(writer.ledger_id)
        bookies = reader.metadata.last_fragment.bookies
        (other,) = {"b0", "b1", "b2", "b3"} - set(bookies)
        for name in bookies:
            cluster[name].model.ledgers[writer.ledger_id].damaged = {1}
        assert await reader.why_unreadable(1)
        assert not await reader.why_unreadable(3), "there is no such entry"

        copied = deepcopy(cluster[bookies[0]].model.ledgers[writer.ledger_id])
        copied.damaged = set()
        cluster[other].model.ledgers[writer.ledger_id] = copied
        record, version = await client.metadata(writer.ledger_id)
        moved = record.with_bookie_replaced(0, 0, other)
        await cluster.store.transact(change_ops(record, moved, version))
        assert not await reader.why_unreadable(1)
        copied.damaged = {1}
        assert f"{other}: its copy is damaged" in await reader.why_unreadable(1)


async def test_a_copy_that_is_made_while_the_others_are_asked_counts(
    autojump_clock: MockClock,
) -> None:
    """H164: all denied it, and meanwhile one of them was replaced by a bookie that has it."""
    async with model_cluster(4) as cluster:
        client, writer = await numbered(cluster, 3, ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.close()
        reader = await client.open(writer.ledger_id)
        bookies = reader.metadata.last_fragment.bookies
        (other,) = {"b0", "b1", "b2", "b3"} - set(bookies)
        copied = deepcopy(cluster[bookies[0]].model.ledgers[writer.ledger_id])
        cluster[other].model.ledgers[writer.ledger_id] = copied
        for name in bookies:
            cluster[name].model.ledgers[writer.ledger_id].damaged = {1}
        record, version = await client.metadata(writer.ledger_id)
        moved = record.with_bookie_replaced(0, 0, other)
        said: list[str] = []

        async def ask() -> None:
            said.append(await reader.why_unreadable(1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(1.5 * LATENCY_S)  # the questions are on their way
            await cluster.store.transact(change_ops(record, moved, version))
            assert said == []

        assert said == [""]


async def test_what_was_declared_lost_is_given_to_nobody_also_where_a_copy_is_there(
    autojump_clock: MockClock,
) -> None:
    """H103, G5: who opened it before, who opens it afterwards; what is around it is read as ever."""
    async with model_cluster(3) as cluster:
        client, writer = await numbered(cluster, 10)
        await writer.close()
        before = await client.open(writer.ledger_id)
        held = [node.model.ledgers[writer.ledger_id] for node in cluster.pool.nodes.values()]
        gone = {entry: held[0].entries[entry] for entry in (3, 4, 5)}
        for one in held:
            for entry in gone:
                del one.entries[entry]
        closed = await record_of(cluster, writer.ledger_id)
        await put_record(cluster, closed.with_loss(DeclaredLoss(3, 5, "op", 1, "two disks")))

        with pytest.raises(EntriesLost, match="3 to 5 were declared lost by op: two disks"):
            await before.read(3, 9, bytes_max=1000)
        held[0].entries.update(gone)
        after = await client.open(writer.ledger_id)
        for reader in (before, after):
            for entry in (3, 4, 5):
                with pytest.raises(EntriesLost):
                    await reader.read(entry, 9, bytes_max=1000)
                assert (await reader.why_unreadable(entry)).startswith("declared lost by op")
            found = await reader.read(0, 9, bytes_max=1000)
            assert [one.entry for one in found] == [0, 1, 2]
            found = await reader.read(6, 9, bytes_max=1000)
            assert [one.entry for one in found] == [6, 7, 8, 9]
