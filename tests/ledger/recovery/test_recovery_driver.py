"""Recovery against model bookies."""

from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from distributedlog.ledger.recovery.ledger_recovery import LedgerRecovery
from distributedlog.ledger.write.ledger_writer import LedgerWriter
from distributedlog.metadata.model.transaction import Transaction
from distributedlog.runtime.interfaces.errors import (
    BookieReadOnly,
    DistributedLogError,
    InternalError,
    LedgerFenced,
    NoSuchLedger,
    RecoveryIncomplete,
    TooBusy,
)

from ..model_bookie import (
    ModelCluster,
    Node,
    add,
    confirmed,
    model_cluster,
    put_record,
    record_of,
    written,
)


async def nodes_of(cluster: ModelCluster, writer: LedgerWriter) -> list[Node]:
    record = await record_of(cluster, writer.ledger_id)
    return [cluster[bookie] for bookie in record.last_fragment.bookies]


async def test_recovery_fences_the_writer_and_keeps_all(autojump_clock: MockClock) -> None:
    """Ten entries, a second client recovers, the writer's next add fails as fenced."""
    async with model_cluster(3) as cluster:
        _, writer = await written(cluster, 10)
        other = await cluster.client()
        closed = await other.recover(writer.ledger_id)

        assert (closed.state, closed.last_entry, closed.length) == (LedgerState.CLOSED, 9, 100)
        assert await other.recover(writer.ledger_id) == closed
        writer.add([b"late"], 4)
        await trio.sleep(0.1)
        assert isinstance(writer.error, LedgerFenced)
        with pytest.raises(LedgerFenced):
            await writer.close()


async def test_ten_recoveries_while_the_writer_adds(autojump_clock: MockClock) -> None:
    """All get the same end, at least the writer's last ack."""
    async with model_cluster(4) as cluster:
        _, writer = await written(cluster, 3)
        ends: list[int | None] = []

        async def recover() -> None:
            one = await cluster.client()
            ends.append((await one.recover(writer.ledger_id)).last_entry)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(recover)
            for _ in range(50):
                if writer.error is None:
                    writer.add([b"y"], 1)
                await trio.sleep(0.0005)

        assert len(set(ends)) == 1
        assert ends[0] is not None
        assert ends[0] >= writer.lac


async def test_a_half_written_entry_and_a_late_fence(autojump_clock: MockClock) -> None:
    """D1: the entry reaches one bookie, the fence to another is lost, and the entry is
    delivered there after the close: no ack, or the ledger has it.
    """
    async with model_cluster(3) as cluster:
        _, writer = await written(cluster, 2)
        first, second, third = await nodes_of(cluster, writer)
        first.loses_fences = True
        first.add_delay_s = 3.0  # entry 2 is on its way there for long
        second.swallow = lambda entry: entry == 2
        third.read_delay_s = 2.0  # has it, and answers after the two negatives
        writer.add([b"half"], 4)
        await trio.sleep(0.01)
        other = await cluster.client()
        closed = await other.recover(writer.ledger_id)
        assert closed.last_entry == 1
        first.add_delay_s = 0.0
        await trio.sleep(6)

        assert writer.lac == 1
        assert 2 not in first.model.ledgers[writer.ledger_id].entries
        assert isinstance(writer.error, DistributedLogError)


async def test_an_empty_last_fragment(autojump_clock: MockClock) -> None:
    """D2: the newest bookies answer LAC -1; earlier fragments stay as they are."""
    async with model_cluster(4) as cluster:
        _, writer = await written(cluster, 20)
        writer.abort()
        record = await record_of(cluster, writer.ledger_id)
        spare = next(b for b in cluster.pool.nodes if b not in record.bookies())
        kept = record.last_fragment.bookies
        moved = replace(record, ensembles=(*record.ensembles, Fragment(20, (spare, *kept[:2]), 1)))
        await put_record(cluster, moved)
        for bookie in kept[:2]:
            cluster[bookie].model.ledgers[writer.ledger_id].lac = -1

        closed = await (await cluster.client()).recover(writer.ledger_id)

        assert (closed.last_entry, closed.length) == (19, 200)
        assert closed.ensembles == moved.ensembles


@pytest.mark.parametrize("where", ["on_acked", "on_write_failed"])
async def test_a_rule_that_is_broken_in_a_recovery_ends_that_recovery_alone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It is told; the connections, which others share, go on."""
    async with model_cluster(3) as cluster:
        _, writer = await written(cluster, 2)
        (await nodes_of(cluster, writer))[2].swallow = lambda entry: entry == 2
        writer.add([b"half"], 4)  # to be written back
        await trio.sleep(0.0005)
        other, going_on = await cluster.client(), await cluster.client()
        third = await going_on.create()

        def breaks(*_: object) -> None:
            raise AssertionError("planted")

        model = (await nodes_of(cluster, writer))[0].model
        takes = model.add

        def refuses(*given: Any, recovery: bool) -> None:
            if recovery:
                raise BookieReadOnly("no more copies")
            takes(*given, recovery=recovery)

        with monkeypatch.context() as planted:
            planted.setattr(LedgerRecovery, where, breaks)
            if where == "on_write_failed":
                planted.setattr(model, "add", refuses)
            with pytest.raises(InternalError, match="planted"):
                await other.recover(writer.ledger_id)
        add(third, 3)
        await confirmed(third)
        assert (await other.recover(writer.ledger_id)).state is LedgerState.CLOSED


async def test_unknown_is_not_absent(autojump_clock: MockClock) -> None:
    """One says no, two are silent: the ledger stays; when they are back the entry is kept."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 3, request_timeout_s=1.0)
        nodes = await nodes_of(cluster, writer)
        nodes[0].swallow = lambda entry: entry >= 3
        writer.add([b"last"], 4)
        await confirmed(writer)
        writer.abort()
        for node in nodes[1:]:
            node.hang()

        with pytest.raises(RecoveryIncomplete) as caught:
            await client.recover(writer.ledger_id)
        for node in nodes:
            assert node.id in str(caught.value)
        assert (await record_of(cluster, writer.ledger_id)).state is LedgerState.IN_RECOVERY
        for node in nodes[1:]:
            node.hang(False)
        closed = await client.recover(writer.ledger_id)
        assert (closed.last_entry, closed.length) == (3, 34)


@pytest.mark.parametrize("how", ["hung", "stopped", "limbo"])
async def test_one_bad_bookie_blocks_nothing(how: str, autojump_clock: MockClock) -> None:
    """D8: decided as soon as it can be, whatever the third one does."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 5)
        nodes = await nodes_of(cluster, writer)
        writer.abort()
        if how == "hung":
            nodes[1].hang()
        elif how == "stopped":
            nodes[1].stop()
        else:
            nodes[1].model.ledgers[writer.ledger_id].limbo = True
            nodes[1].model.ledgers[writer.ledger_id].entries.clear()
        with trio.fail_after(4):
            closed = await client.recover(writer.ledger_id)
        assert (closed.last_entry, closed.length) == (4, 50)


async def test_a_bookie_that_loses_data_after_its_fence_proves_no_absence(
    autojump_clock: MockClock,
) -> None:
    """Inv. 22: one never had the entry, one was started anew without it, the third is slow and has it."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 3)
        nodes = await nodes_of(cluster, writer)
        nodes[0].swallow = lambda entry: entry == 3
        writer.add([b"last"], 4)
        await confirmed(writer)
        writer.abort()
        held = [node.model.ledgers[writer.ledger_id] for node in nodes]
        for one in held:
            one.lac = 2  # nobody heard that it is confirmed
        nodes[1].read_delay_s, nodes[2].read_delay_s = 0.1, 0.5

        async def lose() -> None:
            await trio.sleep(0.15)
            assert held[1].fenced
            held[1].entries.clear()
            held[1].limbo = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose)
            closed = await client.recover(writer.ledger_id)

        assert (closed.last_entry, closed.length) == (3, 34)


async def test_a_damaged_replica_is_unknown_and_the_good_one_wins(
    autojump_clock: MockClock,
) -> None:
    """A digest that does not fit neither proves nor disproves."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 2)
        nodes = await nodes_of(cluster, writer)
        nodes[0].swallow = lambda entry: entry >= 2
        for _ in range(3):
            writer.add([b"tail"], 4)
        await confirmed(writer)
        writer.abort()
        nodes[0].swallow = None
        for node in nodes:
            node.model.ledgers[writer.ledger_id].lac = 1
        nodes[1].model.ledgers[writer.ledger_id].damaged = {2, 3, 4}

        closed = await client.recover(writer.ledger_id)
        await trio.sleep(0.1)

        assert (closed.last_entry, closed.length) == (4, 32)
        good = nodes[2].model.ledgers[writer.ledger_id].entries
        assert {e: nodes[0].model.ledgers[writer.ledger_id].entries[e] for e in (2, 3, 4)} == {
            e: good[e] for e in (2, 3, 4)
        }  # written back byte for byte (H2)


async def test_a_bookie_dies_during_write_back(autojump_clock: MockClock) -> None:
    """Replaced locally; the metadata changes in the closing write only (inv. 18)."""
    async with model_cluster(4) as cluster:
        client, writer = await written(cluster, 2)
        nodes = await nodes_of(cluster, writer)
        nodes[0].swallow = nodes[1].swallow = lambda entry: entry >= 2
        writer.add([b"tail"], 4)
        await trio.sleep(0.05)
        writer.abort()
        before = await record_of(cluster, writer.ledger_id)
        nodes[0].swallow = nodes[1].swallow = None
        nodes[0].read_delay_s = nodes[1].read_delay_s = 0.2  # the one that has it answers first
        nodes[0].model.add = refuse_recovery  # type: ignore[method-assign]
        seen: list[tuple[Fragment, ...]] = []
        real = cluster.store.transact

        async def watched(transaction: Transaction) -> object:
            seen.append((await record_of(cluster, writer.ledger_id)).ensembles)
            return await real(transaction)

        cluster.store.transact = watched  # type: ignore[method-assign,assignment]
        closed = await client.recover(writer.ledger_id)

        assert closed.last_entry == 2
        assert all(one == before.ensembles for one in seen)
        assert nodes[0].id not in closed.last_fragment.bookies
        assert closed.last_fragment.first_entry == 2
        held = [
            2 in cluster[b].model.ledgers[writer.ledger_id].entries
            for b in closed.last_fragment.bookies
        ]
        assert sum(held) >= 2
        assert len(seen) == 2  # IN_RECOVERY, and the close


def refuse_recovery(*_: object, **__: object) -> None:
    raise BookieReadOnly("cannot write")


async def test_somebody_else_closes_during_recovery(autojump_clock: MockClock) -> None:
    """The loser adopts what the winner wrote."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 5)
        writer.abort()
        recovering = (await record_of(cluster, writer.ledger_id)).in_recovery()
        await put_record(cluster, recovering)
        winner = recovering.close_by_recovery(4, 50, recovering.ensembles)
        for node in cluster.pool.nodes.values():
            node.read_delay_s = 0.5

        async with trio.open_nursery() as nursery:
            nursery.start_soon(put_record, cluster, winner, 0.2)
            assert await client.recover(writer.ledger_id) == winner


async def test_an_ensemble_added_during_recovery_is_not_overwritten(
    autojump_clock: MockClock,
) -> None:
    async with model_cluster(4) as cluster:
        client, writer = await written(cluster, 5)
        writer.abort()
        record = (await record_of(cluster, writer.ledger_id)).in_recovery()
        await put_record(cluster, record)
        spare = next(b for b in cluster.pool.nodes if b not in record.bookies())
        other = replace(
            record,
            ensembles=(
                *record.ensembles,
                Fragment(5, (spare, *record.last_fragment.bookies[:2]), 1),
            ),
        )
        for node in cluster.pool.nodes.values():
            node.read_delay_s = 0.5

        async with trio.open_nursery() as nursery:
            nursery.start_soon(put_record, cluster, other, 0.2)
            with pytest.raises(RecoveryIncomplete, match="ensembles changed"):
                await client.recover(writer.ledger_id)
        assert await record_of(cluster, writer.ledger_id) == other


async def test_a_gap_ends_the_ledger(autojump_clock: MockClock) -> None:
    """Entries 0..9 and 14 are there: it closes at 9."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 10)
        for node in cluster.pool.nodes.values():
            node.swallow = lambda entry: entry != 14
        for _ in range(5):
            writer.add([b"gap"], 3)
        await trio.sleep(0.1)
        writer.abort()
        assert all(
            14 in n.model.ledgers[writer.ledger_id].entries for n in cluster.pool.nodes.values()
        )

        closed = await client.recover(writer.ledger_id)
        assert (closed.last_entry, closed.length) == (9, 100)


async def test_replies_of_one_entry_each(autojump_clock: MockClock) -> None:
    """H9: what a reply was too short for is not absent."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 40)
        writer.abort()
        for node in cluster.pool.nodes.values():
            node.entries_max = 1
            node.model.ledgers[writer.ledger_id].lac = -1
        closed = await client.recover(writer.ledger_id)
        assert (closed.last_entry, closed.length) == (39, 400)


async def close_later(
    writer: LedgerWriter, delay_s: float, outcome: list[LedgerMetadata | DistributedLogError]
) -> None:
    await trio.sleep(delay_s)
    try:
        outcome.append(await writer.close())
    except DistributedLogError as error:
        outcome.append(error)


async def test_a_writers_close_and_a_recovery_meet(autojump_clock: MockClock) -> None:
    """Exactly one wins, the other adopts or learns that it is fenced."""
    for delay_s in (0.0, 0.001, 0.003, 0.01):
        async with model_cluster(3) as cluster:
            client, writer = await written(cluster, 4)
            outcome: list[LedgerMetadata | DistributedLogError] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(close_later, writer, delay_s, outcome)
                closed = await client.recover(writer.ledger_id)

            assert closed.last_entry == 3
            assert outcome
            assert outcome[0] == closed or isinstance(outcome[0], LedgerFenced)


async def test_what_recovery_writes_back_publishes_no_lac(autojump_clock: MockClock) -> None:
    """D18: no bookie's LAC passes the starting one before the closing write."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 3)
        nodes = await nodes_of(cluster, writer)
        for node in nodes[:2]:
            node.swallow = lambda entry: entry >= 3
        for _ in range(3):
            writer.add([b"tail"], 4)
        await trio.sleep(0.05)
        writer.abort()
        for node in nodes[:2]:
            node.swallow = None
            node.read_delay_s = 0.2  # the one that has them answers first
        real = cluster.store.transact
        lacs: list[int] = []

        async def watched(transaction: Transaction) -> object:
            lacs.append(max(n.model.ledgers[writer.ledger_id].lac for n in nodes))
            return await real(transaction)

        cluster.store.transact = watched  # type: ignore[method-assign,assignment]
        closed = await client.recover(writer.ledger_id)
        assert closed.last_entry == 5
        assert lacs == [2, 2]


async def test_recovery_of_what_is_not_there(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        client = await cluster.client()
        with pytest.raises(NoSuchLedger):
            await client.recover(99)


async def test_an_empty_ledger_is_recovered_as_empty(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 0)
        writer.abort()
        closed = await client.recover(writer.ledger_id)
        assert (closed.last_entry, closed.length) == (-1, 0)
        assert all(n.model.ledgers[writer.ledger_id].fenced for n in cluster.pool.nodes.values())


async def test_a_bookie_that_stays_too_busy_is_given_up(autojump_clock: MockClock) -> None:
    """Every wait has a deadline; refused as too busy is unknown, never absent (inv. 16)."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 3)
        nodes = await nodes_of(cluster, writer)
        writer.abort()
        for node in nodes[1:]:
            node.refuse_reads = TooBusy("not now")
        with trio.fail_after(30), pytest.raises(RecoveryIncomplete, match="TooBusy"):
            await client.recover(writer.ledger_id)
        for node in nodes[1:]:
            node.refuse_reads = None
        assert (await client.recover(writer.ledger_id)).last_entry == 2


async def test_a_damaged_record_in_the_middle_of_a_reply_is_no_absence(
    autojump_clock: MockClock,
) -> None:
    """Inv. 22: what stands after a damaged record in a reply is unknown there, not absent.

    Two bookies hold entry 2, one of them damaged; the third lost it. The end may not be before it.
    """
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 2)
        nodes = await nodes_of(cluster, writer)
        nodes[0].swallow = lambda entry: entry == 2
        writer.add([b"tail"], 4)
        await confirmed(writer)
        writer.abort()
        for node in nodes:
            node.model.ledgers[writer.ledger_id].lac = 1
        nodes[1].model.ledgers[writer.ledger_id].damaged = {2}
        nodes[2].refuse_reads = TooBusy("later")

        with pytest.raises(RecoveryIncomplete):
            await client.recover(writer.ledger_id)
        assert (await record_of(cluster, writer.ledger_id)).last_entry is None

        nodes[2].refuse_reads = None
        assert (await client.recover(writer.ledger_id)).last_entry == 2


async def test_another_ledgers_record_in_a_reply_is_damage(autojump_clock: MockClock) -> None:
    """Whatever a bookie answers, a recovery writes back no other ledger's entry as this one's."""
    async with model_cluster(3) as cluster:
        _, stranger = await written(cluster, 3)
        client, writer = await written(cluster, 2)
        writer.abort()
        nodes = await nodes_of(cluster, writer)
        foreign = bytes(nodes[0].model.ledgers[stranger.ledger_id].entries[2])
        nodes[0].garbles = lambda records: [*records, foreign]
        nodes[1].read_delay_s = nodes[2].read_delay_s = 0.2  # the one that is wrong answers first

        closed = await client.recover(writer.ledger_id)

        assert (closed.last_entry, closed.length) == (1, 20)
        assert all(2 not in node.model.ledgers[writer.ledger_id].entries for node in nodes)
