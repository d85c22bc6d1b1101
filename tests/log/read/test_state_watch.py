"""A reader's view of its log's state, over a store that forgets its history and goes away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.model.log_keys import state_key
from distributedlog.log.read.state_watch import StateWatch, open_state_watch
from distributedlog.metadata.model.interface import Watch
from distributedlog.metadata.model.transaction import KeyValue
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    Compacted,
    DistributedLogError,
    LogNotFound,
    QuorumUnreachable,
)
from tests.metadata.local_metadata import LocalMetadata

from ..conftest import World


class Forgetful(LocalMetadata):
    """Its history is gone; then, for some reads, it is itself."""

    def __init__(self) -> None:
        super().__init__()
        self.away: list[DistributedLogError] = []
        self.compacted = 0

    @asynccontextmanager
    async def watch(self, start: bytes, end: bytes, *, after_revision: int) -> AsyncIterator[Watch]:
        if self.compacted:
            self.compacted -= 1
            raise Compacted("the changes are gone")
        async with super().watch(start, end, after_revision=after_revision) as watch:
            yield watch

    async def get(self, key: bytes) -> KeyValue | None:
        if self.away:
            raise self.away.pop()
        return await super().get(key)


async def followed(world: World) -> tuple[Forgetful, StateWatch]:
    world.metadata = world.ledgers.metadata = store = Forgetful()
    async with world.process() as namespace:
        await namespace.create_log("a")
        log_id = await namespace.resolve_name("a")
    return store, await open_state_watch(store, log_id, "a")


async def test_a_state_that_cannot_be_read_anew_now_is_read_later(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """H29; a follower ends nothing but itself: its error ended the tasks of all logs of the process."""
    store, follower = await followed(world)
    store.compacted, store.away = 3, [QuorumUnreachable("no leader")] * 2
    nursery.start_soon(follower.run)
    await trio.sleep(5)

    assert not store.away
    assert follower.error is None
    async with world.process() as namespace:
        await namespace.delete_log("a")
    with pytest.raises(LogNotFound), trio.fail_after(5):
        await follower.wait_until(lambda state: False)


async def test_a_follower_of_a_client_that_has_ended_says_so(
    world: World, autojump_clock: MockClock
) -> None:
    """The links of a namespace may end before its followers: that is no error of the namespace."""
    store, follower = await followed(world)
    store.compacted, store.away = 1, [AlreadyClosed("the metadata client has ended")]

    await follower.run()

    assert isinstance(follower.error, AlreadyClosed)
    assert await LocalMetadata.get(store, state_key(follower._log_id)) is not None
