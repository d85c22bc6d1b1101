"""A new cluster of one node, made from a save, or from the disk of a node that is left (H104).

What was decided after the save is lost, and its clients, bookies and old nodes live on. So nothing that was
given out then may be given out again: everything that counts is moved ahead by more than can have been given.

    log index          a request of before, sent again, is below the floor: unknown, never done twice (H20)
    revision           watches begin anew (`Compacted`), no condition on a revision of before holds by chance
    version of a key   nor does one on a version: a key that went on from 4 to 5 twice is not the same key
    lease numbers      keys under leases are gone: who holds one is told, and takes it again

What the parts above hand out in keys of their own, they move ahead themselves (`change`).
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
"""Log indexes and revisions: so many between a save and the loss would take weeks at any rate."""
VERSIONS_AHEAD = 1 << 24
"""Versions of one key, and leases."""
PAGE = 1000
KEY_UPPER_BOUND = b"\xff" * 64

ChangeValue = Callable[[KeyValue], bytes]
"""The value that a key is to have in the new cluster."""


@dataclass(frozen=True, slots=True)
class LoadedBackup:
    """A whole save, in memory."""

    head: BackupHeader
    state: KeyValueState


async def write_backup(
    write: Callable[[bytes], Awaitable[None]], chunks: AsyncIterator[bytes]
) -> None:
    """Write a save, from its beginning to its end. Raises what ``write`` and ``chunks`` raise."""
    count = 0
    async for chunk in chunks:
        await write(CHUNK.pack(len(chunk), xxhash.xxh3_64_intdigest(chunk)) + chunk)
        count += 1
    await write(CHUNK.pack(0, count))


async def read_backup(disk: Disk, name: str) -> LoadedBackup:
    """Read a save and check all of it. Raises `CorruptData`, `UnsupportedFormat`."""
    return await restore_backup(checked_chunks(disk, name), name)


async def restore_backup(chunks: AsyncIterator[bytes], name: str) -> LoadedBackup:
    """Restore the chunks of the save ``name``. Raises `CorruptData`, `UnsupportedFormat`."""
    head: BackupHeader | None = None
    async for chunk in chunks:
        head = BackupHeader.decode(chunk)
        break
    assert head is not None, "a file without chunks is damaged"
    state, _ = await restore(chunks)
    if state.index != head.index:
        raise CorruptData(f"{name}: a save at entry {head.index} of a state at {state.index}")
    return LoadedBackup(head, state)


async def read_node_disk(disk: Disk) -> LoadedBackup:
    """What a node that does not run has on its disk, to its last entry; nothing there is changed.

    The last entries may not have been acknowledged by anybody: they count here as if they were, for nobody is
    left who could say. Raises `ForeignData`, `CorruptData` (a damaged disk), `UnsupportedFormat`.
    """
    members, identity = await load_member_identity(disk), await load_identity(disk)
    if members is None or identity is None:
        raise ForeignData("this is no data directory of a metadata node that belongs to a cluster")
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
            raise CorruptData("the disk of this node is damaged: its log is less than it ever was")
    state = KeyValueState()
    if loaded.snapshot is not None:
        state, _ = await restore(storage.snapshots.chunks(loaded.snapshot))
    for entry in loaded.log.entries_from(state.index + 1):
        state.apply(entry.index, b"" if is_configuration(entry.data) else entry.data)
    term = loaded.log.last_term
    if not state.index or not term:
        raise ForeignData("this node never had an entry of its cluster's log")
    head = BackupHeader(members.cluster_id, state.index, term, loaded.log.configuration)
    return LoadedBackup(head, state)


async def backup_file_chunks(backup: LoadedBackup) -> AsyncIterator[bytes]:
    """For `write_backup`."""
    for chunk in backup_chunks(backup.head, backup.state):
        yield chunk


def advance_state(
    old_state: KeyValueState, change: ChangeValue, added_keys: Mapping[bytes, bytes]
) -> KeyValueState:
    """The state that a new cluster begins with; the module says what moves. ``added``: keys to be set."""
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
    """All keys, in order."""
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
    """Make an empty directory the only node of the cluster, by that name; return its new id.

    ``state``: what `advance_state` made. MEMBERS is the last that is written: a directory without it is begun
    anew. Raises `ForeignData` for one that belongs to a cluster, or to somebody else.
    """
    identity = await load_identity(disk)
    if MEMBERS_FILE in disk.list():
        raise ForeignData(
            "this directory belongs to a cluster already; give the new node an empty one"
        )
    others = [
        name for name in disk.list() if name != IDENTITY + TEMPORARY_SUFFIX
    ]  # of a try that was killed
    if identity is None and others:
        raise ForeignData(f"this directory is not empty: it holds {others[0]}")
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


assert CHUNK_BYTES_MAX >= kv_snapshot.CHUNK_BYTES, "a chunk of a snapshot fits into one of a save"
