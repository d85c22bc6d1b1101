"""Open the clients of all bookies with which a bookie closes, repairs and merges segments of logs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from ...ledger.ledger_client import start_client
from ...log.namespace import Namespace
from ...log.segments.segment_merge import merge_segments
from ...log.services.log_context import LogContext
from ...log.takeover.orphaned_segment import (
    OBSERVATION_INTERVAL_S,
    close_if_unchanged,
    close_orphaned,
    observe_orphan,
)
from ...metadata.client.metadata_client import MetadataClient
from ...runtime.interfaces.host import Host
from ...runtime.net.rpc import Endpoint
from ..repair.open_ledger_closer import OrphanCloser
from .retention import CloseOrphaned
from .segment_merger import Merge


@asynccontextmanager
async def open_orphan_closer(
    host: Host, endpoint: Endpoint, metadata: MetadataClient, name: str
) -> AsyncIterator[CloseOrphaned]:
    """Yield a function that closes a segment of a log in any namespace."""
    async with _open_logs(host, endpoint, metadata, name) as context:
        yield partial(close_orphaned, context)


@asynccontextmanager
async def open_ledger_closer(
    host: Host, endpoint: Endpoint, metadata: MetadataClient, name: str
) -> AsyncIterator[OrphanCloser]:
    """Yield the `OrphanCloser` for logs of any namespace."""
    async with _open_logs(host, endpoint, metadata, name) as context:
        yield make_closer(context)


def make_closer(context: LogContext) -> OrphanCloser:
    """Return an `OrphanCloser` that uses these clients."""
    return OrphanCloser(
        partial(observe_orphan, context),
        partial(close_if_unchanged, context, reason="repair"),
        OBSERVATION_INTERVAL_S,
    )


@asynccontextmanager
async def open_merger(
    host: Host, endpoint: Endpoint, metadata: MetadataClient, name: str
) -> AsyncIterator[Merge]:
    """Yield a function that merges segments of a log in any namespace."""
    async with _open_logs(host, endpoint, metadata, name) as context:
        yield partial(merge_segments, context)


@asynccontextmanager
async def _open_logs(
    host: Host, endpoint: Endpoint, metadata: MetadataClient, name: str
) -> AsyncIterator[LogContext]:
    async with trio.open_nursery() as nursery:
        ledgers = await start_client(nursery, host, endpoint, metadata)
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
