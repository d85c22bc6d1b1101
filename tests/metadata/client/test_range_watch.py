"""`follow_range`: what its caller has seen, whatever happens to its watches."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from distributedlog.metadata.client.range_watch import follow_range
from distributedlog.metadata.model.interface import Watch, WatchBatch
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.runtime.interfaces.errors import (
    DistributedLogError,
    NotAllowed,
    QuorumUnreachable,
)
from tests.metadata.local_metadata import LocalMetadata

RETRY_S = 0.5


class EndingWatches(LocalMetadata):
    """Metadata whose watches can be ended with an error, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.scope = trio.CancelScope()
        self.error: DistributedLogError | None = None

    @asynccontextmanager
    async def _ending(self, start: bytes, end: bytes, after_revision: int) -> AsyncIterator[Watch]:
        with trio.CancelScope() as self.scope:
            async with super().watch(start, end, after_revision=after_revision) as watch:
                yield watch
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def watch(self, start: bytes, end: bytes, *, after_revision: int):  # type: ignore[no-untyped-def]
        return self._ending(start, end, after_revision)

    def end_watch(self, error: DistributedLogError) -> None:
        self.error = error
        self.scope.cancel()

    async def put(self, key: bytes, value: bytes) -> None:
        await self.transact(Transaction(operations=(Put(key, value),)))


class Follower:
    """Keep the keys of a range that begin with b"k"."""

    def __init__(self, metadata: LocalMetadata) -> None:
        self.metadata = metadata
        self.known: dict[bytes, bytes] = {}
        self.load_count = 0
        self.load_error: DistributedLogError | None = None
        self.errors: list[DistributedLogError] = []

    async def load(self) -> int:
        self.load_count += 1
        if self.load_error is not None:
            raise self.load_error
        page = await self.metadata.range(b"k", b"l")
        self.known = {item.key: item.value for item in page.items}
        return page.revision

    def apply(self, batch: WatchBatch) -> None:
        for event in batch.events:
            if event.kind == "put":
                self.known[event.item.key] = event.item.value
            else:
                del self.known[event.item.key]

    async def run(
        self,
        *,
        after_revision: int | None = None,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        await follow_range(
            self.metadata,
            b"k",
            b"l",
            load=self.load,
            apply=self.apply,
            on_error=self.errors.append,
            retry_s=RETRY_S,
            after_revision=after_revision,
            task_status=task_status,
        )


@pytest.fixture
def metadata() -> EndingWatches:
    return EndingWatches()


async def test_changes_after_the_load_are_applied(
    metadata: EndingWatches, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    await metadata.put(b"k1", b"a")
    follower = Follower(metadata)
    await nursery.start(follower.run)
    assert follower.known == {b"k1": b"a"}

    await metadata.put(b"k2", b"b")
    await metadata.transact(Transaction(operations=(Delete(b"k1"),)))
    await trio.sleep(0.1)

    assert follower.known == {b"k2": b"b"}
    assert follower.load_count == 1


async def test_a_lost_watch_continues_after_the_last_revision_without_a_load(
    metadata: EndingWatches, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    follower = Follower(metadata)
    await nursery.start(follower.run)
    await metadata.put(b"k1", b"a")
    await trio.sleep(0.1)

    metadata.end_watch(error := QuorumUnreachable("no node answers"))
    await metadata.put(b"k2", b"b")
    await trio.sleep(2 * RETRY_S)

    assert follower.known == {b"k1": b"a", b"k2": b"b"}
    assert follower.errors == [error]
    assert follower.load_count == 1


async def test_keys_are_loaded_again_if_their_changes_are_forgotten(
    metadata: EndingWatches, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    await metadata.put(b"k1", b"a")
    follower = Follower(metadata)
    await nursery.start(follower.run)

    metadata.end_watch(QuorumUnreachable("no node answers"))
    await trio.sleep(RETRY_S / 2)
    await metadata.transact(Transaction(operations=(Delete(b"k1"),)))
    for number in range(10):  # more than the history of changes holds
        await metadata.put(b"k2", bytes(1_000_000) + bytes([number]))
    await trio.sleep(2 * RETRY_S)

    assert follower.known == {b"k2": bytes(1_000_000) + bytes([9])}
    assert follower.load_count == 2
    await metadata.put(b"k3", b"c")
    await trio.sleep(0.1)
    assert follower.known[b"k3"] == b"c"


async def test_keys_are_loaded_again_after_a_right_was_missing(
    metadata: EndingWatches, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    follower = Follower(metadata)
    await nursery.start(follower.run)

    metadata.end_watch(error := NotAllowed("no right to read these keys"))
    await trio.sleep(2 * RETRY_S)

    assert follower.errors == [error]
    assert follower.load_count == 2


async def test_a_failed_load_is_repeated_and_the_task_starts_with_the_first_success(
    metadata: EndingWatches, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    await metadata.put(b"k1", b"a")
    follower = Follower(metadata)
    follower.load_error = QuorumUnreachable("no node answers")

    async def recover() -> None:
        await trio.sleep(2.5 * RETRY_S)
        follower.load_error = None

    nursery.start_soon(recover)
    await nursery.start(follower.run)

    assert trio.current_time() >= 3 * RETRY_S
    assert follower.known == {b"k1": b"a"}
    assert follower.load_count == 4
    assert len(follower.errors) == 3


async def test_a_caller_that_has_loaded_the_keys_continues_from_there(
    metadata: EndingWatches, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    follower = Follower(metadata)
    revision = await follower.load()
    await metadata.put(b"k1", b"a")
    await nursery.start(
        lambda task_status: follower.run(after_revision=revision, task_status=task_status)
    )
    await trio.sleep(0.1)

    assert follower.known == {b"k1": b"a"}
    assert follower.load_count == 1
