"""The snapshots of a metadata node as checksummed files, which other nodes receive byte by byte.

The name and the content of a file::

    snapshot.<index>.<term>   | u32 length | xxh3_64 u64 | chunk | ... | u32 0 | u64 chunks |

A file is written under a temporary name, synced and renamed, so this name stands for a complete file.
`kv_snapshot.py` defines the content of a chunk. No file is held in memory completely, because a state may
have 200 MB (H39).
"""

import re
import struct
from collections.abc import AsyncIterator, Iterable

import trio
import xxhash

from ...runtime.disk.atomic_file import TEMPORARY_SUFFIX
from ...runtime.interfaces.errors import CorruptData, DiskFailed, DiskFull
from ...runtime.interfaces.host import Disk, File
from ..raft.ready import Snapshot

CHUNK = struct.Struct("<IQ")
CHUNK_BYTES_MAX = 2 * 1024 * 1024
PAUSE_S = 0.002
"""Pause after each chunk.

A snapshot then takes a fifth of the event loop's time and some 30 MB/s of the disk.
"""
SYNC_BYTES = 4 * 1024 * 1024
"""Bytes between two syncs of a new file, so that no sync of the log waits for 200 MB (H25)."""
RECEIVED_FILE = "received" + TEMPORARY_SUFFIX


class SnapshotStore:
    """The snapshot files of one node."""

    def __init__(self, disk: Disk) -> None:
        self.reclaimable_bytes = 0
        """Bytes of a snapshot in progress, or of one whose predecessors are not deleted yet.

        They will be free again.
        """
        self._disk = disk

    def list(self) -> list[tuple[Snapshot, str]]:
        """Return all snapshots with their file names, oldest first, valid or not."""
        snapshots = []
        for name in self._disk.list():
            if match := _NAME.fullmatch(name):
                snapshots.append((int(match[1], 16), int(match[2], 16), name))
        return [(Snapshot(index, term), name) for index, term, name in sorted(snapshots)]

    async def save(
        self, snapshot: Snapshot, chunks: Iterable[bytes], *, replace: bool = False
    ) -> None:
        """Write a snapshot, one chunk per event-loop iteration. It is durable on return.

        Args:
            snapshot: Its index and term.
            chunks: Its chunks.
            replace: Whether to replace a file of that name, which is damaged.

        Raises:
            DiskFull: There is no space. The incomplete file was deleted.
        """
        name = _name(snapshot)
        if name in self._disk.list() and not replace:
            return
        file = await self._create_empty(name + TEMPORARY_SUFFIX)
        try:
            offset = count = synced = 0
            for chunk in chunks:
                assert 0 < len(chunk) <= CHUNK_BYTES_MAX, f"a chunk of {len(chunk)} bytes"
                head = CHUNK.pack(len(chunk), xxhash.xxh3_64_intdigest(chunk))
                file.write_at(offset, [head, chunk])
                offset += CHUNK.size + len(chunk)
                self.reclaimable_bytes = offset
                count += 1
                if offset - synced > SYNC_BYTES:
                    synced = offset
                    await file.sync()
                await trio.sleep(PAUSE_S)
            await file.write_synced(offset, CHUNK.pack(0, count))
        except DiskFull:
            file.close()
            await self._disk.delete(name + TEMPORARY_SUFFIX)  # because its space is needed
            self.reclaimable_bytes = 0
            raise
        finally:
            file.close()
        await self._disk.rename(name + TEMPORARY_SUFFIX, name)

    def chunks(self, snapshot: Snapshot) -> AsyncIterator[bytes]:
        """Yield the chunks of a snapshot, each verified, one per event-loop iteration.

        Raises:
            CorruptData: The file is missing or damaged.
        """
        return checked_chunks(self._disk, _name(snapshot))

    async def is_sound(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot exists and is undamaged."""
        try:
            async for _ in self.chunks(snapshot):
                pass
        except CorruptData:
            return False
        return True

    async def open(self, snapshot: Snapshot) -> File:
        """Open a snapshot file to send its bytes to another node."""
        return await self._disk.open(_name(snapshot))

    async def create_received(self) -> File:
        """Create an empty file for a snapshot that a leader sends."""
        return await self._create_empty(RECEIVED_FILE)

    def received_chunks(self) -> AsyncIterator[bytes]:
        """Yield the chunks of the received file before it is renamed. Raises `CorruptData`."""
        return checked_chunks(self._disk, RECEIVED_FILE)

    async def commit_received(self, snapshot: Snapshot, file: File) -> None:
        """Verify and rename the received file. It is durable on return. Raises `CorruptData`."""
        await file.sync()
        async for _ in checked_chunks(self._disk, RECEIVED_FILE):
            pass
        await self._disk.rename(RECEIVED_FILE, _name(snapshot))

    async def drop_received(self) -> None:
        """Delete the received file."""
        if RECEIVED_FILE in self._disk.list():
            await self._disk.delete(RECEIVED_FILE)

    async def newest_bytes(self) -> int:
        """Return the size of the newest snapshot, or 0 if there is none."""
        snapshots = self.list()
        if not snapshots:
            return 0
        file = await self._disk.open(snapshots[-1][1])
        try:
            return file.size()
        finally:
            file.close()

    async def delete_before(self, index: int) -> None:
        """Delete the snapshots that end before ``index``."""
        for snapshot, name in self.list():
            if snapshot.index < index:
                await self._disk.delete(name)
        self.reclaimable_bytes = 0

    async def _create_empty(self, name: str) -> File:
        if name in self._disk.list():
            await self._disk.delete(name)
        return await self._disk.create(name)


async def checked_chunks(disk: Disk, name: str) -> AsyncIterator[bytes]:
    """Yield the chunks of a file in the snapshot format, one per event-loop iteration.

    Raises `CorruptData`.
    """
    try:
        file = await disk.open(name)
    except FileNotFoundError:
        raise CorruptData(f"{name}: there is no such snapshot") from None
    except DiskFailed as error:  # nothing was written, so only this file is affected
        raise CorruptData(f"{name} cannot be opened: {error}") from error
    try:
        offset = count = 0
        while True:
            head = await file.read_in_worker(offset, CHUNK.size)
            if len(head) < CHUNK.size:
                raise CorruptData(f"{name}: ends at offset {offset}, before its end mark")
            length, digest = CHUNK.unpack(head)
            if length == 0:
                # a file of zeros would look like an empty snapshot
                if digest != count or not count:
                    raise CorruptData(f"{name}: has {count} chunks instead of {digest}")
                return
            if length > CHUNK_BYTES_MAX:
                raise CorruptData(f"{name}: a chunk of {length} bytes at offset {offset}")
            chunk = await file.read_in_worker(offset + CHUNK.size, length)
            if len(chunk) != length or xxhash.xxh3_64_intdigest(chunk) != digest:
                raise CorruptData(f"{name}: the chunk at offset {offset} is damaged")
            yield chunk
            offset += CHUNK.size + length
            count += 1
    finally:
        file.close()


_NAME = re.compile(r"snapshot\.([0-9a-f]{16})\.([0-9a-f]{1,12})")
"""Other files in the directory are not snapshots."""


def _name(snapshot: Snapshot) -> str:
    return f"snapshot.{snapshot.index:016x}.{snapshot.term:x}"
