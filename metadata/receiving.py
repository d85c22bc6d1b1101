"""A follower takes a leader's snapshot, chunk by chunk, into a file; then the core is told (H39)."""

import gc
import logging
from collections.abc import AsyncIterator, Callable

import trio

from ..runtime.errors import CorruptData, DiskFull, ProtocolError, UnsupportedFormat
from ..runtime.host import File
from .configuration import UNKNOWN, Configuration, decode_configuration, is_configuration
from .kv import KeyValueState
from .kv_snapshot import SnapshotBuilder
from .messages import SnapshotChunk
from .ready import Snapshot
from .replica import Replica

log = logging.getLogger("distributedlog.metadata.receiving")

SnapshotProgress = Callable[[int], None]
"""Told the offset from which to go on."""


class SnapshotReceiver:
    """One snapshot at a time; a chunk that does not fit is answered with the offset that would."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._file: File | None = None
        self._of: tuple[str, Snapshot, int] | None = None
        self._offset = 0
        self._waiting: tuple[SnapshotChunk, SnapshotProgress] | None = None
        self._arrived = trio.Event()

    def take(self, chunk: SnapshotChunk, progress: SnapshotProgress) -> None:
        """A chunk came in; ``progress`` is told when it is taken. A newer one replaces one that waits."""
        self._waiting = (chunk, progress)
        self._arrived.set()

    async def run(self) -> None:
        """Take chunks until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            waiting, self._waiting = self._waiting, None
            if waiting is None:
                continue
            try:
                await self._take(*waiting)
            except DiskFull as error:  # the leader hears nothing, and sends it again
                if self._file is not None:
                    self._file.close()
                self._file, self._of, self._offset = None, None, 0
                await self._replica.storage.snapshots.drop_received()
                await self._replica.room.on_snapshot_failed(error)

    async def _take(self, chunk: SnapshotChunk, progress: SnapshotProgress) -> None:
        replica = self._replica
        snapshot = Snapshot(chunk.index, chunk.index_term)
        of = (chunk.sender, snapshot, chunk.total_bytes)
        if chunk.term < replica.raft.term:
            return  # of a leader that is none any more: it hears nothing and gives up
        if of != self._of or (chunk.offset == 0 and self._offset == 0):
            if self._file is not None:
                self._file.close()
            self._file = await replica.storage.snapshots.receive()
            self._of, self._offset = of, 0
        assert self._file is not None
        if chunk.offset != self._offset:
            progress(self._offset)
            return
        self._file.write_at(self._offset, [chunk.data])
        self._offset += len(chunk.data)
        if self._offset >= chunk.total_bytes:
            await self._finish(chunk, snapshot)
        progress(self._offset)

    async def _finish(self, chunk: SnapshotChunk, snapshot: Snapshot) -> None:
        assert self._file is not None
        file, self._file, self._of = self._file, None, None
        replica = self._replica
        snapshots = replica.storage.snapshots
        try:
            await file.sync()
            state, members = await restore(snapshots.received_chunks())  # first: it is not ours yet
            await snapshots.keep_received(snapshot, file)
        except (CorruptData, ProtocolError, UnsupportedFormat) as error:
            log.warning("the snapshot at entry %d cannot be taken: %s", chunk.index, error)
            self._offset = 0  # begin again
            return
        finally:
            file.close()
        if members == UNKNOWN:
            members = replica.raft.configuration
        snapshot = Snapshot(snapshot.index, snapshot.term, members)
        await replica.room.on_snapshot(replica.storage, replica.room.grown_bytes)
        replica.received = (snapshot, state)
        replica.raft.on_snapshot_received(chunk.term, chunk.sender, snapshot, trio.current_time())
        replica.drain()
        replica.received = None


async def restore(chunks: AsyncIterator[bytes]) -> tuple[KeyValueState, Configuration]:
    """The state that a snapshot holds, a chunk a turn (H39), and the members as of then.

    UNKNOWN members: a snapshot of before they could change. Raises `CorruptData`, `ProtocolError`,
    `UnsupportedFormat`.

    The search for cyclic garbage looks at every key in one turn: 0.7 s with 700,000 of them. None of them is
    part of a cycle, so it is held off until all are there, and then told to pass them over for good.
    """
    builder, members = SnapshotBuilder(KeyValueState()), UNKNOWN
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        async for chunk in chunks:
            if is_configuration(chunk):
                members = decode_configuration(chunk)
            else:
                builder.add(chunk)
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
    return builder.done(), members
