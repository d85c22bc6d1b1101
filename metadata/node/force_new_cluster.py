"""Make a new cluster of one node from a backup, or from the disk of a remaining node (H104).

Everything after the backup is lost, but its clients, bookies and old nodes continue to run. Numbers that
were assigned after the backup must not be assigned again. So every counter is advanced by more than can
have been assigned:

- **Log index**: a repeated request from before the loss is below the floor, so its outcome is unknown and
  it is not executed twice (H20).
- **Revision**: watches start again (`Compacted`), and no condition on an old revision holds by chance.
- **Version of a key**: no condition on an old version holds by chance. A key may have changed from version
  4 to 5 twice.
- **Lease numbers**: keys bound to leases are deleted. A client with a lease is notified, and acquires it
  again.

The other parts advance their own counters, which are stored in keys, themselves (`change`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain
from random import Random

import xxhash

from ...runtime.disk.atomic_file import TEMPORARY_SUFFIX
from ...runtime.disk.node_identity import FILE_NAME as IDENTITY
from ...runtime.disk.node_identity import NodeIdentity, load_identity, new_node_id, store_identity
from ...runtime.interfaces.errors import CorruptData, ForeignData
from ...runtime.interfaces.host import Disk
from ..model.configuration import Configuration, Member, is_configuration
from ..model.transaction import KeyValue
from ..raft.ready import Snapshot
from ..raft.recovered_hard_state import RaftEntryId
from ..replica.snapshot_receiver import restore
from ..state import kv_snapshot
from ..state.kv_state import KeyValueState, pack_item
from ..storage.backup_format import CHUNK_BYTES_MAX, BackupHeader, backup_chunks
from ..storage.member_identity import (
    MEMBERS_FILE,
    MemberIdentity,
    load_member_identity,
    load_recovery_floor,
    store_member_identity,
)
from ..storage.raft_storage import RaftStorage
from ..storage.snapshot_store import CHUNK, checked_chunks

INDEXES_AHEAD = 1 << 32
"""Advance of log indexes and revisions. This number of commands would take weeks at any rate."""
VERSIONS_AHEAD = 1 << 24
"""Advance of lease numbers and of the version of each key."""
PAGE = 1000
KEY_UPPER_BOUND = b"\xff" * 64

ChangeValue = Callable[[KeyValue], bytes]
"""Returns the value of a key in the new cluster."""


@dataclass(frozen=True, slots=True)
class LoadedBackup:
    """A complete backup in memory."""

    head: BackupHeader
    state: KeyValueState


async def write_backup(
    write: Callable[[bytes], Awaitable[None]], chunks: AsyncIterator[bytes]
) -> None:
    """Write a complete backup. Raises the errors of ``write`` and ``chunks``."""
    count = 0
    async for chunk in chunks:
        await write(CHUNK.pack(len(chunk), xxhash.xxh3_64_intdigest(chunk)) + chunk)
        count += 1
    await write(CHUNK.pack(0, count))


async def read_backup(disk: Disk, name: str) -> LoadedBackup:
    """Read a backup and verify it completely.

    Raises:
        CorruptData: The file is damaged.
        UnsupportedFormat: A newer version wrote it.
    """
    return await restore_backup(checked_chunks(disk, name), name)


async def restore_backup(chunks: AsyncIterator[bytes], name: str) -> LoadedBackup:
    """Restore the backup ``name`` from its chunks.

    Raises:
        CorruptData: The chunks are damaged.
        UnsupportedFormat: A newer version wrote them.
    """
    head: BackupHeader | None = None
    async for chunk in chunks:
        head = BackupHeader.decode(chunk)
        break
    assert head is not None, "a file without chunks is damaged"
    state, _ = await restore(chunks)
    if state.index != head.index:
        raise CorruptData(
            f"{name}: the header has entry {head.index}, but the state is at entry {state.index}"
        )
    return LoadedBackup(head, state)


async def read_node_disk(disk: Disk) -> LoadedBackup:
    """Read the state on the disk of a stopped node, up to its last entry, without a change of the disk.

    The last entries may never have been acknowledged. They count as acknowledged, because no other node is
    left.

    Raises:
        ForeignData: The directory has no data of a cluster.
        CorruptData: The disk is damaged.
        UnsupportedFormat: A newer version wrote the data.
    """
    members, identity = await load_member_identity(disk), await load_identity(disk)
    if members is None or identity is None:
        raise ForeignData(
            "this is not a data directory of a metadata node that belongs to a cluster"
        )
    storage = RaftStorage(disk, members.seed)
    loaded = await storage.inspect(members)
    if loaded.damage:
        raise CorruptData(f"the disk of this node is damaged: {loaded.damage}")
    if not members.may_vote:
        recovered = await load_recovery_floor(disk)
        if (
            recovered is None
            or RaftEntryId(loaded.log.last_term, loaded.log.last_index) < recovered.last
        ):
            raise CorruptData(
                "the disk of this node is damaged: its log lacks entries that it once had"
            )
    state = KeyValueState()
    if loaded.snapshot is not None:
        state, _ = await restore(storage.snapshots.chunks(loaded.snapshot))
    for entry in loaded.log.entries_from(state.index + 1):
        state.apply(entry.index, b"" if is_configuration(entry.data) else entry.data)
    term = loaded.log.last_term
    if not state.index or not term:
        raise ForeignData("this node has no entry of its cluster's log")
    head = BackupHeader(members.cluster_id, state.index, term, loaded.log.configuration)
    return LoadedBackup(head, state)


async def backup_file_chunks(backup: LoadedBackup) -> AsyncIterator[bytes]:
    """Yield the chunks of a backup for `write_backup`."""
    for chunk in backup_chunks(backup.head, backup.state):
        yield chunk


def advance_state(
    old_state: KeyValueState, change: ChangeValue, added_keys: Mapping[bytes, bytes]
) -> KeyValueState:
    """Return the initial state of a new cluster, with the counters advanced as the module describes.

    Args:
        old_state: The state of the backup.
        change: Returns the new value of a key.
        added_keys: Keys to set in addition.
    """
    new_state = KeyValueState()
    new_state.index = old_state.index + INDEXES_AHEAD
    new_state.revision = old_state.revision + INDEXES_AHEAD
    new_state.next_lease = old_state.next_lease + VERSIONS_AHEAD
    new_state.watch_history.compacted_to = new_state.revision
    new_state.authorization_revision = new_state.revision if old_state.authorization_revision else 0
    for remembered in old_state.request_dedup.rows():
        new_state.request_dedup.add(*remembered)
    new_state.request_dedup.forgotten_through = new_state.index

    def moved(old_item: KeyValue) -> KeyValue:
        value = change(old_item)
        revision = old_item.mod_revision if value == old_item.value else new_state.revision
        version = old_item.version + VERSIONS_AHEAD
        return replace(old_item, value=value, version=version, mod_revision=revision)

    revision = new_state.revision
    kept_items = (
        moved(i) for i in iter_items(old_state) if not i.lease and i.key not in added_keys
    )
    new_items = (
        KeyValue(key, value, VERSIONS_AHEAD, revision, revision, 0)
        for key, value in sorted(added_keys.items())
    )
    for item in merge(kept_items, new_items, key=lambda item: item.key):
        new_state.add_stored(item.key, pack_item(item), 0)
    return new_state


def iter_items(state: KeyValueState) -> Iterator[KeyValue]:
    """Yield all keys, in order."""
    start = b""
    while True:
        page = state.range(start, KEY_UPPER_BOUND, PAGE)
        yield from page.items
        if not page.more:
            return
        start = page.items[-1].key + b"\0"


async def force_new_cluster(
    disk: Disk, head: BackupHeader, state: KeyValueState, *, name: str, address: str, rng: Random
) -> str:
    """Make a directory the only node of a cluster, and return its new node ID.

    MEMBERS is written last. A directory without it is overwritten by the next attempt.

    Args:
        disk: The empty directory.
        head: The header of the backup.
        state: The result of `advance_state`.
        name: The name of the node.
        address: Its address, "host:port".
        rng: Source of the node ID.

    Raises:
        ForeignData: The directory belongs to a cluster, or is not empty.
    """
    identity = await load_identity(disk)
    if MEMBERS_FILE in disk.list():
        raise ForeignData(
            "this directory belongs to a cluster already. Use an empty directory for the new node"
        )
    others = [
        name for name in disk.list() if name != IDENTITY + TEMPORARY_SUFFIX
    ]  # a temporary file of a killed attempt
    if identity is None and others:
        raise ForeignData(f"this directory is not empty: it contains {others[0]}")
    node_id = new_node_id(rng)
    members = MemberIdentity(head.cluster_id, {name: node_id}, True, rng.getrandbits(63))
    await store_identity(disk, NodeIdentity("", node_id, "metadata", name, 1, "distributedlog 0.1"))
    configuration = Configuration.from_members([Member(node_id, name, address, True)])
    snapshot = Snapshot(state.index, head.term, configuration)
    storage = RaftStorage(disk, members.seed)
    for _, old_name in storage.snapshots.list():
        await disk.delete(old_name)
    await storage.snapshots.save(
        snapshot, chain([configuration.encode()], kv_snapshot.snapshot_chunks(state))
    )
    await storage.create_log(base_snapshot=snapshot)
    await store_member_identity(disk, members)
    return node_id


assert CHUNK_BYTES_MAX >= kv_snapshot.CHUNK_BYTES, (
    "a chunk of a snapshot fits into a chunk of a backup"
)
