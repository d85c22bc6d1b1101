"""Which certificate has to be shown where a bookie is dialled: the one that its registration names (H227)."""

import trio.testing

from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.model.ledger_keys import bookie_key, cookie_key
from distributedlog.ledger.placement.bookie_pool import BookiePool
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.protocol.handshake import Hello
from tests.metadata.local_metadata import LocalMetadata
from tests.runtime.interfaces.test_principals import of, served


async def test_a_bookies_certificate_does_not_stand_behind_another_ones_id(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It has taken the other one's address, says that one's id, and shows its own certificate."""
    stolen = Hello("", "id2", "bookie", "b1")
    async with served({}, server_is=of("bookie/b1"), server_says=stolen) as there:
        store = LocalMetadata()

        async def register(principal: str) -> None:
            said = BookieRegistration("id2", {"": there.address}, principal=principal)
            puts = (Put(cookie_key("id2"), b""), Put(bookie_key("id2"), said.encode()))
            await store.transact(Transaction((), puts))

        await register("bookie/b2")
        pool = BookiePool(there.client, store)
        await there.nursery.start(pool.run)
        await trio.sleep(10)
        assert pool.get("id2") is None

        await register("bookie/b1")
        assert (await pool.connected("id2", 10)).link.peer.node_id == "id2"
