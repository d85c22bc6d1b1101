"""A namespace over the model of the ledger part."""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.declarations.options import LogOptions
from distributedlog.log.limits.memory_budget import PROCESS_BYTES_MAX
from distributedlog.log.log import Log
from distributedlog.log.namespace import Namespace
from distributedlog.runtime.declarations.options import with_overrides
from tests.log.model_ledger import ModelLedgers
from tests.metadata.local_metadata import LocalMetadata


class World:
    """One metadata store, one set of ledgers, any number of processes (namespaces) over both."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.metadata = LocalMetadata()
        self.metadata.finalize()
        self.ledgers = ModelLedgers(self.metadata)
        self._nursery = nursery
        self._seed = 0
        nursery.start_soon(self.ledgers.run)

    @asynccontextmanager
    async def process(self, owner: str = "process", **options: Any) -> AsyncIterator[Namespace]:
        """A namespace as one client process has it; leaving it is a kill: its tasks end at once."""
        self._seed += 1
        async with trio.open_nursery() as nursery:
            yield self.namespace(nursery, owner, options)
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def log(self, name: str, *, txids: Any = "auto") -> AsyncIterator[Log]:
        """An empty log, in a process of its own."""
        async with self.process() as namespace:
            await namespace.create_log(name, txids=txids)
            yield namespace.open_log(name)

    def namespace(
        self, nursery: trio.Nursery, owner: str, options: Mapping[str, Any], path: str = "ns"
    ) -> Namespace:
        self._seed += 1
        return Namespace(
            path,
            metadata=self.metadata,
            ledgers=self.ledgers,
            nursery=nursery,
            random=random.Random(self._seed),
            wall_ms=lambda: 1_700_000_000_000 + int(trio.current_time() * 1000),
            owner=owner,
            options=with_overrides(
                LogOptions(), {k: v for k, v in options.items() if k != "process_bytes_max"}
            ),
            process_bytes_max=options.get("process_bytes_max", PROCESS_BYTES_MAX),
        )


@pytest.fixture
async def world(nursery: trio.Nursery, autojump_clock: MockClock) -> World:
    """The world, in virtual time."""
    return World(nursery)


@pytest.fixture
def turns(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """With which turns ledgers are opened, in order."""
    found: list[int] = []
    original = world.ledgers.open

    async def opened(ledger_id: int, *, replica_offset: int = 0) -> Any:
        found.append(replica_offset)
        return await original(ledger_id)

    monkeypatch.setattr(world.ledgers, "open", opened)
    return found
