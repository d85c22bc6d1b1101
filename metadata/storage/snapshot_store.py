"""A metadata node's snapshots as checksummed files, which other nodes get byte by byte.

    snapshot.<index>.<term>   | u32 length | xxh3_64 u64 | chunk | ... | u32 0 | u64 chunks |

Written aside, synced, renamed: a name stands for a whole file. What is in a chunk is the state's business
(`kv_snapshot.py`). Nothing here holds a file whole: a state may have 200 MB (H39).
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
"""After each chunk: a snapshot takes a fifth of the time of the loop, and some 30 MB/s of the disk."""
SYNC_BYTES = 4 * 1024 * 1024
"""Synced so often while it is written, so that no sync of the log waits for 200 MB (H25)."""
RECEIVED_FILE = "received" + TEMPORARY_SUFFIX


class SnapshotStore:
    """The snapshot files of one node."""

    def __init__(self, disk: Disk) -> None:
        self.reclaimable_bytes = 0
        """Of one that is being written, or whose predecessors are not deleted yet: room that comes back."""
        self._disk = disk

    def list(self) -> list[tuple[Snapshot, str]]:
        """All with their file names, the oldest first, valid or not."""
        snapshots = []
        for name in self._disk.list():
            if match := _NAME.fullmatch(name):
                snapshots.append((int(match[1], 16), int(match[2], 16), name))
        return [(Snapshot(index, term), name) for index, term, name in sorted(snapshots)]

    async def save(
        self, snapshot: Snapshot, chunks: Iterable[bytes], *, replace: bool = False
    ) -> None:
        """Write one, a chunk a turn; durable when this returns. Raises `DiskFull`: nothing is left of it.

        ``anew``: also in the place of a damaged one.
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
            await self._disk.delete(name + TEMPORARY_SUFFIX)  # the room that it took is needed
            self.reclaimable_bytes = 0
            raise
        finally:
            file.close()
        await self._disk.rename(name + TEMPORARY_SUFFIX, name)

    def chunks(self, snapshot: Snapshot) -> AsyncIterator[bytes]:
        """Its chunks, each checked, one a turn. Raises `CorruptData`."""
        return checked_chunks(self._disk, _name(snapshot))

    async def is_sound(self, snapshot: Snapshot) -> bool:
        """Is it there, and whole?"""
        try:
            async for _ in self.chunks(snapshot):
                pass
        except CorruptData:
            return False
        return True

    async def open(self, snapshot: Snapshot) -> File:
        """The file's bytes, to be sent to another node."""
        return await self._disk.open(_name(snapshot))

    async def create_received(self) -> File:
        """An empty file for one that comes from the leader."""
        return await self._create_empty(RECEIVED_FILE)

    def received_chunks(self) -> AsyncIterator[bytes]:
        """The chunks of what was received, before it has a name. Raises `CorruptData`."""
        return checked_chunks(self._disk, RECEIVED_FILE)

    async def commit_received(self, snapshot: Snapshot, file: File) -> None:
        """Check and name what was received; durable when this returns. Raises `CorruptData`."""
        await file.sync()
        async for _ in checked_chunks(self._disk, RECEIVED_FILE):
            pass
        await self._disk.rename(RECEIVED_FILE, _name(snapshot))

    async def drop_received(self) -> None:
        """What was received so far is of no use."""
        if RECEIVED_FILE in self._disk.list():
            await self._disk.delete(RECEIVED_FILE)

    async def newest_bytes(self) -> int:
        """The size of the newest one; 0 where there is none."""
        snapshots = self.list()
        if not snapshots:
            return 0
        file = await self._disk.open(snapshots[-1][1])
        try:
            return file.size()
        finally:
            file.close()

    async def delete_before(self, index: int) -> None:
        """Forget those that end before ``index``."""
        for snapshot, name in self.list():
            if snapshot.index < index:
                await self._disk.delete(name)
        self.reclaimable_bytes = 0

    async def _create_empty(self, name: str) -> File:
        if name in self._disk.list():
            await self._disk.delete(name)
        return await self._disk.create(name)


async def checked_chunks(disk: Disk, name: str) -> AsyncIterator[bytes]:
    """The chunks of a file that is framed like a snapshot, one a turn. Raises `CorruptData`."""
    try:
        file = await disk.open(name)
    except FileNotFoundError:
        raise CorruptData(f"{name}: there is no such snapshot") from None
    except DiskFailed as error:  # nothing was written: what is wrong is this one file
        raise CorruptData(f"{name} cannot be opened: {error}") from error
    try:
        offset = count = 0
        while True:
            head = await file.read_in_worker(offset, CHUNK.size)
            if len(head) < CHUNK.size:
                raise CorruptData(f"{name}: ends at offset {offset}, before its last mark")
            length, digest = CHUNK.unpack(head)
            if length == 0:
                if digest != count or not count:  # a file of zeros would be an empty one
                    raise CorruptData(f"{name}: {count} chunks, announced were {digest}")
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
"""What else lies in the directory is none."""


def _name(snapshot: Snapshot) -> str:
    return f"snapshot.{snapshot.index:016x}.{snapshot.term:x}"
