"""A bookie that lost data refuses adds of the ledgers of before: that costs a slot, not the writer."""

import trio
from trio.testing import MockClock

from distributedlog.ledger.model.missing_range import MissingRange
from distributedlog.runtime.interfaces.errors import LedgerStateUnknown

from .model_bookie import holes_of, model_cluster


async def test_a_writer_goes_on_without_a_bookie_in_limbo(autojump_clock: MockClock) -> None:
    """H3, H7, H22: three bookies, one restarts with a hole in its journal and is in limbo.

    It knows of no fence, so it cannot end the writer; it acks nothing, so nothing rests on it.
    """
    async with model_cluster(3) as cluster:
        client = await cluster.client()
        writer = await client.create()
        writer.add([b"x"], 1)
        await trio.sleep(0.1)
        cluster["b1"].disconnect()
        cluster["b1"].refuse_adds = LedgerStateUnknown("limbo")
        cluster["b1"].reconnect()
        for _ in range(10):
            writer.add([b"x"], 1)
            await trio.sleep(0.5)

        assert writer.error is None
        assert writer.lac == 10
        assert await holes_of(cluster, writer.ledger_id) == (MissingRange("b1", 1, None),)
        assert (await writer.close()).last_entry == 10
