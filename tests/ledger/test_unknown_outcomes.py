"""An outcome that the metadata store leaves unknown is looked up, never assumed (G7)."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from distributedlog.ledger.model.ledger_ids import LedgerIds
from distributedlog.ledger.model.ledger_keys import LEDGER_ID_BLOCK
from distributedlog.ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.interfaces.errors import LedgerFenced, WriteFailed

from .model_bookie import add, confirmed, model_cluster, record_of, written


def once(done: bool, wanted: Callable[[LedgerMetadata], bool]) -> Callable[..., bool | None]:
    """Lose the outcome of the first transaction that puts such a record of a ledger."""
    left = [True]

    def loses(transaction: Transaction) -> bool | None:
        for one in transaction.operations:
            if not (left and isinstance(one, Put) and one.key.startswith(b"ledger/")):
                continue
            if wanted(LedgerMetadata.decode(one.key, one.value)):
                left.clear()
                return done
        return None

    return loses


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
async def test_an_ensemble_change_of_unknown_outcome_is_looked_up(
    done: bool, autojump_clock: MockClock
) -> None:
    """D4: acks count on the new ensemble only once the record holds it."""
    async with model_cluster(4) as cluster:
        client = await cluster.client()
        writer = await client.create(quorums=(3, 3, 3))  # the add needs the new bookie
        writer.add([b"before"], 6)
        await confirmed(writer)
        cluster.store.loses = once(done, lambda record: len(record.ensembles) == 2)
        gone = (await record_of(cluster, writer.ledger_id)).last_fragment.bookies[0]
        lac = writer.lac

        cluster[gone].stop()
        writer.add([b"after"], 5)
        with trio.fail_after(30):
            while writer.lac == lac:  # noqa: ASYNC110 (virtual time)
                await trio.sleep(0.0005)
        held = await record_of(cluster, writer.ledger_id)

        used = [slot.bookie for slot in writer._pending_adds.slots if not slot.detached]
        assert set(used) <= set(held.last_fragment.bookies)
        assert gone not in held.last_fragment.bookies
        assert (await writer.close()).last_entry == 1


async def test_an_ensemble_change_that_was_not_done_meets_a_recovery(
    autojump_clock: MockClock,
) -> None:
    """The request was lost and the ledger is somebody else's meanwhile: nothing is acknowledged."""
    async with model_cluster(4) as cluster:
        _, writer = await written(cluster, 1)
        other = await cluster.client()
        gone = (await record_of(cluster, writer.ledger_id)).last_fragment.bookies[0]
        cluster.store.loses = once(False, lambda record: len(record.ensembles) == 2)
        real_get = cluster.store.get

        async def get(key: bytes) -> object:
            if cluster.store.loses is not None:
                cluster.store.loses = None
                await other.recover(writer.ledger_id)
            return await real_get(key)

        cluster.store.get = get  # type: ignore[method-assign,assignment]
        cluster[gone].stop()
        writer.add([b"after"], 5)
        with trio.fail_after(30):
            while writer.error is None:  # noqa: ASYNC110 (virtual time)
                await trio.sleep(0.01)

        closed = await record_of(cluster, writer.ledger_id)
        assert closed.state is LedgerState.CLOSED
        assert closed.last_entry is not None
        assert closed.last_entry >= writer.lac


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
async def test_a_recoverys_close_of_unknown_outcome_is_looked_up(
    done: bool, autojump_clock: MockClock
) -> None:
    """Whoever is told that the ledger is closed finds it closed (inv. 19)."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 3)
        writer.abort()
        cluster.store.loses = once(done, lambda record: record.state is LedgerState.CLOSED)

        told = await client.recover(writer.ledger_id)

        assert told.state is LedgerState.CLOSED
        assert await record_of(cluster, writer.ledger_id) == told


async def test_a_recoverys_close_that_was_not_done_adopts_the_winner(
    autojump_clock: MockClock,
) -> None:
    """Another recovery closed while this one's answer was lost: both tell the same end."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 3)
        writer.abort()
        other = await cluster.client()
        loses = once(False, lambda record: record.state is LedgerState.CLOSED)
        winner: list[LedgerMetadata] = []
        real = cluster.store.transact

        async def transact(transaction: Transaction) -> object:
            if loses(transaction) is False:
                cluster.store.transact = real  # type: ignore[method-assign]
                winner.append(await other.recover(writer.ledger_id))
                cluster.store.loses = lambda _: False
                try:
                    return await real(transaction)
                finally:
                    cluster.store.loses = None
            return await real(transaction)

        cluster.store.transact = transact  # type: ignore[method-assign,assignment]

        assert await client.recover(writer.ledger_id) == winner[0]


async def test_a_writers_close_of_unknown_outcome_is_told_as_unknown(
    autojump_clock: MockClock,
) -> None:
    """The writer does not say closed where the store has it open."""
    async with model_cluster(3) as cluster:
        _, writer = await written(cluster, 1)
        cluster.store.loses = once(False, lambda record: record.state is LedgerState.CLOSED)

        with pytest.raises(Exception, match="lost"):
            await writer.close()

        assert (await record_of(cluster, writer.ledger_id)).state is LedgerState.OPEN
        assert not isinstance(writer.error, LedgerFenced)


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
async def test_a_block_of_ids_of_unknown_outcome_is_nobodys(
    done: bool, autojump_clock: MockClock
) -> None:
    """H40: who took it for granted would give ids that the next one takes as well."""
    async with model_cluster(3) as cluster:
        first, second = LedgerIds(cluster.store), LedgerIds(cluster.store)
        left = [done]
        cluster.store.loses = lambda transaction: left.pop() if left else None

        taken = {await first.next(), await second.next()}

        assert len(taken) == 2


async def test_after_a_write_that_too_few_took_ids_are_of_a_new_block(
    autojump_clock: MockClock,
) -> None:
    """H7: what lost its disk refuses ledgers of all blocks that were taken before; each was in vain."""
    async with model_cluster(3) as cluster:
        client = await cluster.client()
        writer = await client.create()
        before = writer.ledger_id
        cluster["b0"].stop()
        cluster["b1"].stop()
        add(writer, 1)
        while writer.error is None:  # noqa: ASYNC110 (virtual time)
            await trio.sleep(1.0)
        cluster["b0"].start()
        cluster["b1"].start()
        await trio.sleep(1.0)

        after = (await client.prepare()).ledger_id

        assert isinstance(writer.error, WriteFailed)
        assert after >= before + LEDGER_ID_BLOCK
