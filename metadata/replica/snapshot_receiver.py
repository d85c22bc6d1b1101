"""A follower takes a leader's snapshot, chunk by chunk, into a file; then the core is told (H39)."""

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
"""Told the offset from which to go on."""


@dataclass(slots=True)
class _IncomingSnapshot:
    source: tuple[str, Snapshot, int]
    """Sender, which one, how many bytes."""
    file: File
    offset: int = 0


class SnapshotReceiver:
    """One snapshot at a time; a chunk that does not fit is answered with the offset that would."""

    def __init__(self, replica: RaftReplica) -> None:
        self._replica = replica
        self._incoming: _IncomingSnapshot | None = None
        self._pending_chunk: tuple[SnapshotChunk, SnapshotProgress] | None = None
        self._arrived = trio.Event()

    def on_chunk(self, chunk: SnapshotChunk, on_progress: SnapshotProgress) -> None:
        """A chunk came in; ``progress`` is told when it is taken. A newer one replaces one that waits."""
        self._pending_chunk = (chunk, on_progress)
        self._arrived.set()

    async def run(self) -> None:
        """Take chunks until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            pending, self._pending_chunk = self._pending_chunk, None
            if pending is None:
                continue
            try:
                await self._write_chunk(*pending)
            except DiskFull as error:  # the leader hears nothing, and sends it again
                if self._incoming is not None:
                    self._incoming.file.close()
                    self._incoming = None
                await self._replica.storage.snapshots.drop_received()
                await self._replica.disk_space.on_snapshot_failed(error)

    async def _write_chunk(self, chunk: SnapshotChunk, on_progress: SnapshotProgress) -> None:
        replica, incoming = self._replica, self._incoming
        if chunk.term < replica.raft.term:
            return  # of a leader that is none any more: it hears nothing and gives up
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
                incoming.offset = 0  # begin again
        on_progress(incoming.offset)

    async def _install_received(self, chunk: SnapshotChunk, incoming: _IncomingSnapshot) -> bool:
        """All of it is here: have it, and tell the core; False where it is nonsense."""
        replica, (_, snapshot, _) = self._replica, incoming.source
        snapshots = replica.storage.snapshots
        try:
            await incoming.file.sync()
            state, members = await restore(snapshots.received_chunks())  # first: it is not ours yet
            await snapshots.commit_received(snapshot, incoming.file)
        except (CorruptData, ProtocolError, UnsupportedFormat) as error:
            log.warning("the snapshot at entry %d cannot be taken: %s", chunk.index, error)
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
    """The state that a snapshot holds, a chunk a turn (H39), and the members as of then.

    UNKNOWN members: a snapshot of before they could change. Raises `CorruptData`, `ProtocolError`,
    `UnsupportedFormat`.

    The search for cyclic garbage looks at every key in one turn: 0.7 s with 700,000 of them. None of them is
    part of a cycle, so it is held off until all are there, and then told to pass them over for good, if the
    process is this node's alone.
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
