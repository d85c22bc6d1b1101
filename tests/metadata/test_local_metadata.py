"""What `LocalMetadata` does beyond the contract that it shares with a quorum."""

import pytest
import trio

from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.runtime.interfaces.errors import Compacted, TooBusy
from tests.metadata.local_metadata import WATCH_EVENTS_MAX, LocalMetadata


def put(key: bytes, value: bytes = b"") -> Transaction:
    return Transaction((), (Put(key, value),))


async def test_a_slow_watcher_misses_nothing_while_there_is_room() -> None:
    """M6: the history is short, but the watch follows."""
    metadata = LocalMetadata(KeyValueState(history_bytes_max=1000))
    async with metadata.watch(b"k", b"l", after_revision=0) as watch:
        await metadata.transact(put(b"k"))
        await watch.next_batch()
        for n in range(50):
            await metadata.transact(put(b"k", b"%d" % n + bytes(100)))
        events = (await watch.next_batch()).events

    assert [event.item.mod_revision for event in events] == list(range(2, 52))


async def test_a_watcher_that_is_much_too_slow_resumes_from_the_history() -> None:
    """H29: as over the network: definitely compacted, or nothing is missing."""
    keys = [b"k%04d" % n for n in range(4000)]
    change = Transaction((), tuple(Put(key, b"") for key in keys))
    for history_bytes_max, compacted in ((1 << 20, True), (1 << 26, False)):
        metadata = LocalMetadata(KeyValueState(history_bytes_max=history_bytes_max))
        async with metadata.watch(b"k", b"l", after_revision=0) as watch:
            await metadata.transact(put(b"k"))
            await watch.next_batch()
            for _ in range(WATCH_EVENTS_MAX // len(keys) + 1):
                await metadata.transact(change)
            if compacted:
                with pytest.raises(Compacted):
                    await watch.next_batch()
            else:
                events = (await watch.next_batch()).events
                assert len(events) == (WATCH_EVENTS_MAX // len(keys) + 1) * len(keys)


async def test_a_watch_that_is_left_costs_nothing_more() -> None:
    metadata = LocalMetadata()
    async with metadata.watch(b"k", b"l", after_revision=0):
        assert len(metadata._watches) == 1
    assert metadata._watches == []


async def test_a_lease_ends_while_nobody_asks(autojump_clock: object) -> None:
    metadata = LocalMetadata()
    lease = await metadata.grant_lease(1000)
    await metadata.transact(Transaction((), (Put(b"k", b"", lease),)))
    async with metadata.watch(b"k", b"l", after_revision=1) as watch:
        with trio.fail_after(1.5):
            batch = await watch.next_batch()

    assert [event.kind for event in batch.events] == ["delete"]


async def test_errors_of_the_state_are_raised() -> None:
    metadata = LocalMetadata(KeyValueState(leases_max=1))
    await metadata.grant_lease(1000)
    with pytest.raises(TooBusy):
        await metadata.grant_lease(1000)
