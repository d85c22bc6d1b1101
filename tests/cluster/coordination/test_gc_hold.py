"""What a cluster does otherwise whose metadata came from a save (H104)."""

import random
from dataclasses import replace

import pytest
import trio

from distributedlog.cluster.coordination.cookie import claim_identity
from distributedlog.cluster.coordination.gc_hold import (
    HOLD,
    GcHold,
    count_restores,
    hold_deletions,
    hold_reason,
    resume_deletions,
)
from distributedlog.cluster.coordination.restored_counters import LEDGERS_AHEAD, restore_counters
from distributedlog.cluster.gc.ledger_lookup import missing_ledgers
from distributedlog.cluster.gc.staged_ledger_collector import StagedLedgerCollector
from distributedlog.cluster.repair.ledger_deletion import LedgerDeletion
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_ids import LedgerIds
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.log.model.log_keys import state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.writer_log_state import WriterLogState
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.metadata.node.force_new_cluster import iter_items
from distributedlog.metadata.state.kv_snapshot import SnapshotBuilder, snapshot_chunks
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.disk.node_identity import load_identity, store_identity
from distributedlog.runtime.interfaces.errors import ForeignData, WriterFenced
from tests.metadata.local_metadata import LocalMetadata

BOOKIES = ("b1", "b2", "b3")


def restored(metadata: LocalMetadata) -> LocalMetadata:
    """The cluster that begins anew from what the metadata has at this moment."""
    return LocalMetadata(restore_counters(metadata.state, "for a test").state)


def copy(metadata: LocalMetadata) -> LocalMetadata:
    """It goes on from the same place, apart."""
    builder = SnapshotBuilder(KeyValueState())
    for chunk in snapshot_chunks(metadata.state):
        builder.add(chunk)
    return LocalMetadata(builder.finish())


async def _put(metadata: LocalMetadata, key: bytes, value: bytes) -> None:
    await metadata.transact(Transaction((), (Put(key, value),)))


async def test_a_ledgers_id_is_given_out_once_before_and_after() -> None:
    before = LocalMetadata()
    old = {await LedgerIds(before).next()}
    now = restored(before)
    for _ in range(50):
        old.add(await LedgerIds(before).next())  # after the save

    new = {await LedgerIds(now).next() for _ in range(50)}

    assert not old & new
    assert min(new) > LEDGERS_AHEAD


async def test_a_writer_of_before_is_fenced_though_another_came_after() -> None:
    """One took the log after the save; so did another one after the restore. They are never one."""
    before = LocalMetadata()
    state = LogState(7, "l", 0).with_writer("first", "w1")
    await _put(before, state_key(7), state.encode())
    saved = copy(before)
    zombie = state.with_writer("zombie", "w2")
    await _put(before, state_key(7), zombie.encode())
    now = restored(saved)
    found = await now.get(state_key(7))
    assert found is not None
    heir = LogState.decode(found.value).with_writer("heir", "w3")
    await _put(now, state_key(7), heir.encode())
    owned = WriterLogState(now, zombie, 2)

    with pytest.raises(WriterFenced):
        await owned.refresh()
    with pytest.raises(WriterFenced):
        await owned.change(LogState.with_segment, is_done=lambda _: False)

    assert heir.epoch > zombie.epoch
    again = await restored(now).get(state_key(7))
    assert again is not None
    assert LogState.decode(again.value).epoch > heir.epoch  # and so each time


async def test_nothing_is_deleted_while_it_is_held() -> None:
    """Of what the save says is deleted, and of what it does not know: both may be newer than it."""
    before = LocalMetadata()
    ledger = LedgerMetadata(7, 3, 3, 2, (Fragment(0, BOOKIES, 0),), bytes(16)).deleting()
    await _put(before, keys.ledger_key(7), ledger.encode())
    await _put(before, keys.delete_key("b1", 7), b"")
    now = restored(before)
    gone: list[int] = []

    async def delete(ledger_id: int) -> None:
        await trio.lowlevel.checkpoint()
        gone.append(ledger_id)

    worker = LedgerDeletion(now, "b1", delete)
    await worker.run_pass()
    assert not gone
    assert await missing_ledgers(now, [8]) == set()
    assert await hold_reason(now) == "for a test"

    await resume_deletions(now)
    await worker.run_pass()
    assert gone == [7]
    assert await missing_ledgers(now, [8]) == {8}
    await hold_deletions(now, "")
    assert await hold_reason(now)


class _Elected:
    async def is_elected(self) -> bool:
        await trio.lowlevel.checkpoint()
        return True


async def test_nobody_is_elected_to_delete_while_it_is_held() -> None:
    metadata = LocalMetadata()
    turn = GcHold(metadata, _Elected())
    StagedLedgerCollector(metadata, turn, unlinked_s=1)

    assert await turn.is_elected()
    await hold_deletions(metadata, "looking")
    assert not await turn.is_elected()
    await metadata.transact(Transaction((), (Delete(HOLD),)))
    assert await turn.is_elected()


class _Bookie:
    """Two disks and the way to start on them."""

    def __init__(self, seed: int = 7) -> None:
        self.disks = {"journal": MemoryDisk(), "index": MemoryDisk()}
        self.chance = random.Random(seed)

    async def start(self, metadata: LocalMetadata) -> int:
        identity, _ = await claim_identity(
            self.disks, metadata, cluster_id="c", label="b", rng=self.chance
        )
        if "journal-1" not in self.disks["journal"].list():
            await self.disks["journal"].create("journal-1")
        return identity.incarnation


async def test_a_bookie_that_started_since_the_save_raises_its_cookie() -> None:
    metadata, bookie = LocalMetadata(), _Bookie()
    await bookie.start(metadata)
    saved = copy(metadata)
    for _ in range(5):
        await bookie.start(metadata)
    with pytest.raises(ForeignData, match="the metadata is an older copy"):
        await bookie.start(saved)  # not said to be a restore

    now = restored(saved)
    assert await bookie.start(now) == 7
    assert await bookie.start(now) == 8
    assert await count_restores(now) == 1

    stale = _Bookie()
    stale.disks = {**bookie.disks}
    identity = stale.disks["journal"]
    stale.disks["journal"] = MemoryDisk()
    with pytest.raises(ForeignData):
        await stale.start(now)
    assert identity is bookie.disks["journal"]


async def test_once_raised_a_cookie_is_believed_again() -> None:
    """A copy of the disks of before the raise is an older copy, as ever."""
    metadata, bookie = LocalMetadata(), _Bookie()
    await bookie.start(metadata)
    now = restored(metadata)
    old = await load_identity(bookie.disks["journal"])
    assert old is not None
    for _ in range(3):
        await bookie.start(now)
    for disk in bookie.disks.values():
        await store_identity(disk, replace(old, incarnation=old.incarnation + 9))

    with pytest.raises(ForeignData, match="older copy"):
        await bookie.start(now)


async def test_a_bookie_of_after_the_save_is_let_in_while_an_operator_looks() -> None:
    before, bookie = LocalMetadata(), _Bookie()
    saved = copy(before)
    await bookie.start(before)
    await bookie.start(before)
    with pytest.raises(ForeignData, match="has no cookie"):
        await bookie.start(saved)
    now = restored(saved)

    assert await bookie.start(now) == 3
    other = _Bookie(8)
    await other.start(before)
    await resume_deletions(now)
    with pytest.raises(ForeignData, match="has no cookie"):
        await other.start(now)


async def test_records_that_cannot_be_read_are_kept_and_named() -> None:
    metadata = LocalMetadata()
    await _put(metadata, state_key(7), b"rot")
    await _put(metadata, keys.NEXT_LEDGER, b"rot")

    made = restore_counters(metadata.state, "why")

    assert len(made.unreadable) == 2
    assert {item.key: item.value for item in iter_items(made.state)}[state_key(7)] == b"rot"
