"""What a bookie closes segments with that dead writers left open: clients of all bookies, while it lasts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from ..ledger.client import LedgerClient
from ..ledger.pool import BookiePool
from ..log.abandoned import close_abandoned
from ..log.namespace import Namespace
from ..metadata.client import MetadataClient
from ..runtime.host import Host
from ..runtime.rpc import Endpoint
from .retention import Close


@asynccontextmanager
async def open_closing(
    host: Host, endpoint: Endpoint, metadata: MetadataClient, name: str
) -> AsyncIterator[Close]:
    """Gives what closes a segment of a log, of any namespace, until the body ends."""
    async with trio.open_nursery() as nursery:
        pool = BookiePool(endpoint, metadata, metadata.listener)
        await nursery.start(pool.run)
        ledgers = LedgerClient(host, endpoint, metadata, pool)
        await nursery.start(ledgers.run)
        namespace = Namespace(
            "",
            metadata=metadata,
            ledgers=ledgers,
            nursery=nursery,
            random=host.random,
            wall_ms=host.wall_ms,
            owner=f"bookie {name}",
        )
        yield partial(close_abandoned, namespace.context)
        nursery.cancel_scope.cancel()
