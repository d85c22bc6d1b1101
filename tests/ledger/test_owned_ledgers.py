"""H13: a ledger that a log refers to is deleted by that log only."""

import pytest
from trio.testing import MockClock

from distributedlog.ledger.model.ledger_keys import ledger_key
from distributedlog.ledger.model.ledger_metadata import LedgerState
from distributedlog.metadata.model.transaction import Put, Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import InvalidRequest

from .model_bookie import model_cluster, record_of


async def test_an_owned_ledger_is_not_deleted(autojump_clock: MockClock) -> None:
    """The segment that refers to it would dangle."""
    async with model_cluster(3) as cluster:
        client = await cluster.client()
        prepared = await client.prepare(owner=(7, 1))
        await cluster.store.transact(prepared.create_ops())

        with pytest.raises(InvalidRequest, match="belongs to log 7, segment 1"):
            await client.delete(prepared.ledger_id)

        assert (await record_of(cluster, prepared.ledger_id)).state is LedgerState.OPEN


async def test_an_owner_that_comes_between_wins(autojump_clock: MockClock) -> None:
    """Link and deletion meet on the ledger's own key: one of them sees the other."""
    async with model_cluster(3) as cluster:
        client = await cluster.client()
        writer = await client.create()
        await writer.close()
        transact = cluster.store.transact

        async def linked_first(transaction: Transaction) -> TransactionReply:
            cluster.store.transact = transact  # type: ignore[method-assign]
            owned = (await record_of(cluster, writer.ledger_id)).owned_by((7, 1))
            put = Put(ledger_key(writer.ledger_id), owned.encode())
            await transact(Transaction((), (put,)))
            return await transact(transaction)

        cluster.store.transact = linked_first  # type: ignore[method-assign]
        with pytest.raises(InvalidRequest):
            await client.delete(writer.ledger_id)

        assert (await record_of(cluster, writer.ledger_id)).owner == (7, 1)


async def test_custom_metadata_is_kept_and_added_to_at_the_end(autojump_clock: MockClock) -> None:
    """Small notes beside a ledger: at creation, and in the transaction that closes it."""
    async with model_cluster(3) as cluster:
        client = await cluster.client()
        writer = await client.create(custom={"app": b"etl", "note": b"\x00\xff"})
        writer.add([b"entry"], 5)
        await writer.wait_settled()
        share = writer.close_ops({"end": b"1", "note": b"new"})
        assert (await cluster.store.transact(share)).succeeded

        found = await client.find(writer.ledger_id)
        assert (found.closed, found.last_entry, found.length) == (True, 0, 5)
        assert found.custom == {"app": b"etl", "note": b"new", "end": b"1"}
        for custom in ({"k": bytes(4096)}, {"k": "text"}, {1: b"x"}):
            with pytest.raises(InvalidRequest, match="custom ledger metadata"):
                await client.create(custom=custom)  # type: ignore[arg-type]


async def test_link_and_deletion_of_what_was_read_meet_on_one_key(
    autojump_clock: MockClock,
) -> None:
    """H13: whichever comes second is refused."""
    async with model_cluster(3) as cluster:
        client = await cluster.client()
        for linked_first in (True, False):
            writer = await client.create()
            await writer.close()
            found = await client.find(writer.ledger_id)
            shares = [found.link_ops((7, 1)), found.delete_ops()]
            first, second = shares if linked_first else reversed(shares)
            assert (await cluster.store.transact(first)).succeeded
            assert not (await cluster.store.transact(second)).succeeded
            state = await record_of(cluster, writer.ledger_id)
            assert (state.owner, state.state) == (
                ((7, 1), LedgerState.CLOSED) if linked_first else (None, LedgerState.DELETING)
            )
            if linked_first:
                with pytest.raises(InvalidRequest, match="is segment 1 of log"):
                    (await client.find(writer.ledger_id)).delete_ops()
