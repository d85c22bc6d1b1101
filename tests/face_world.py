"""A namespace over the model of the ledger part, for the faces: real threads, no cluster."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from distributedlog.log.namespace import Namespace
from tests.log.model_ledger import ModelLedgers
from tests.metadata.local_metadata import LocalMetadata


@asynccontextmanager
async def model_namespace(owner: str = "model") -> AsyncIterator[Namespace]:
    """As `distributedlog.connect.open_direct`, over memory."""
    metadata = LocalMetadata()
    ledgers = ModelLedgers(metadata)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ledgers.run)
        namespace = Namespace(
            "ns",
            metadata=metadata,
            ledgers=ledgers,
            nursery=nursery,
            random=random.Random(1),
            wall_ms=lambda: 1_700_000_000_000,
            owner=owner,
        )
        yield namespace
        namespace.close()
        nursery.cancel_scope.cancel()
