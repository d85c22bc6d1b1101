"""What a bookie closes and merges segments of logs with: clients of all bookies, while it lasts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from ..ledger.client import LedgerClient
from ..ledger.pool import BookiePool
from ..log.abandoned import close_abandoned
from ..log.context import LogContext
from ..log.merge import compact
from ..log.namespace import Namespace
from ..metadata.client import MetadataClient
from ..runtime.host import Host
from ..runtime.rpc import Endpoint
from .merging import Merge
from .retention import Close


@asynccontextmanager
async def open_closing(
    host: Host, endpoint: Endpoint, metadata: MetadataClient, name: str
) -> AsyncIterator[Close]:
    """Gives what closes a segment of a log, of any namespace, until the body ends."""
    async with _open_logs(host, endpoint, metadata, name) as context:
        yield partial(close_abandoned, context)


@asynccontextmanager
async def open_merging(
    host: Host, endpoint: Endpoint, metadata: MetadataClient, name: str
) -> AsyncIterator[Merge]:
    """Gives what merges segments of a log, of any namespace, until the body ends."""
    async with _open_logs(host, endpoint, metadata, name) as context:
        yield partial(compact, context)


@asynccontextmanager
async def _open_logs(
    host: Host, endpoint: Endpoint, metadata: MetadataClient, name: str
) -> AsyncIterator[LogContext]:
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
        yield namespace.context
        nursery.cancel_scope.cancel()
