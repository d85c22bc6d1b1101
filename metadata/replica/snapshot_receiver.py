"""Receive a leader's snapshot in chunks into a file, then notify the core (H39)."""

import gc
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import trio

from ...runtime.interfaces.errors import CorruptData, DiskFull, ProtocolError, UnsupportedFormat
from ...runtime.interfaces.host import File
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.process.process_memory import freeze_existing_objects
from ..model.configuration import (
    UNKNOWN_CONFIGURATION,
    Configuration,
    decode_configuration,
    is_configuration,
)
from ..raft.raft_messages import SnapshotChunk
from ..raft.ready import Snapshot
from ..state.kv_snapshot import SnapshotBuilder
from ..state.kv_state import KeyValueState
from .replica import RaftReplica

log = get_logger("distributedlog.metadata.replica.snapshot_receiver")

SnapshotProgress = Callable[[int], None]
"""Receives the offset from which to continue."""


@dataclass(slots=True)
class _IncomingSnapshot:
    source: tuple[str, Snapshot, int]
    """Sender, snapshot, and total bytes."""
    file: File
    offset: int = 0


class SnapshotReceiver:
    """Receives one snapshot at a time. A chunk at a wrong offset is answered with the expected offset."""

    def __init__(self, replica: RaftReplica) -> None:
        self._replica = replica
        self._incoming: _IncomingSnapshot | None = None
        self._pending_chunk: tuple[SnapshotChunk, SnapshotProgress] | None = None
        self._arrived = trio.Event()

    def on_chunk(self, chunk: SnapshotChunk, on_progress: SnapshotProgress) -> None:
        """Queue a chunk.

        ``on_progress`` is called when it is written. A newer chunk replaces one that waits.
        """
        self._pending_chunk = (chunk, on_progress)
        self._arrived.set()

    async def run(self) -> None:
        """Write chunks until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            pending, self._pending_chunk = self._pending_chunk, None
            if pending is None:
                continue
            try:
                await self._write_chunk(*pending)
            except DiskFull as error:  # without an answer, the leader sends the snapshot again
                if self._incoming is not None:
                    self._incoming.file.close()
                    self._incoming = None
                await self._replica.storage.snapshots.drop_received()
                await self._replica.disk_space.on_snapshot_failed(error)

    async def _write_chunk(self, chunk: SnapshotChunk, on_progress: SnapshotProgress) -> None:
        replica, incoming = self._replica, self._incoming
        if chunk.term < replica.raft.term:
            return  # from a deposed leader: without an answer, its request times out
        source = (chunk.sender, Snapshot(chunk.index, chunk.index_term), chunk.total_bytes)
        if incoming is None or incoming.source != source or chunk.offset == incoming.offset == 0:
            if incoming is not None:
                incoming.file.close()
            incoming = self._incoming = _IncomingSnapshot(
                source, await replica.storage.snapshots.create_received()
            )
        if chunk.offset != incoming.offset:
            on_progress(incoming.offset)
            return
        incoming.file.write_at(incoming.offset, [chunk.data])
        incoming.offset += len(chunk.data)
        if incoming.offset >= chunk.total_bytes:
            self._incoming = None
            if not await self._install_received(chunk, incoming):
                incoming.offset = 0  # start again
        on_progress(incoming.offset)

    async def _install_received(self, chunk: SnapshotChunk, incoming: _IncomingSnapshot) -> bool:
        """Install a complete snapshot and notify the core. Return False if its content is invalid."""
        replica, (_, snapshot, _) = self._replica, incoming.source
        snapshots = replica.storage.snapshots
        try:
            await incoming.file.sync()
            # before the snapshot counts as stored
            state, members = await restore(snapshots.received_chunks())
            await snapshots.commit_received(snapshot, incoming.file)
        except (CorruptData, ProtocolError, UnsupportedFormat) as error:
            log.warning("the snapshot at entry %d cannot be installed: %s", chunk.index, error)
            return False
        finally:
            incoming.file.close()
        if members == UNKNOWN_CONFIGURATION:
            members = replica.raft.configuration
        snapshot = Snapshot(snapshot.index, snapshot.term, members)
        await replica.disk_space.on_snapshot(replica.disk_space.applied_bytes)
        replica.received_snapshot = (snapshot, state)
        now = trio.current_time()
        try:
            replica.raft.on_snapshot_received(chunk.term, chunk.sender, snapshot, now)
        except AssertionError as error:
            replica.fail(error)
            raise
        replica.fail_if_diverged()
        replica.drain()
        replica.received_snapshot = None
        return True


async def restore(chunks: AsyncIterator[bytes]) -> tuple[KeyValueState, Configuration]:
    """Restore state and members from a snapshot, one chunk per event-loop iteration (H39).

    A snapshot from before members could change has no members. Then they are `UNKNOWN_CONFIGURATION`.

    One run of the garbage collector over 700,000 keys takes 0.7 s in one event-loop iteration. No key is
    part of a cycle. So the collector is disabled until all keys are loaded, and then set to skip them
    permanently, if the process runs only this node.

    Raises:
        CorruptData, ProtocolError, UnsupportedFormat: The snapshot is invalid, or of a newer version.
    """
    builder, members = SnapshotBuilder(KeyValueState()), UNKNOWN_CONFIGURATION
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        async for chunk in chunks:
            if is_configuration(chunk):
                members = decode_configuration(chunk)
            else:
                builder.add(chunk)
        freeze_existing_objects()
    finally:
        if was_enabled:
            gc.enable()
    return builder.finish(), members
