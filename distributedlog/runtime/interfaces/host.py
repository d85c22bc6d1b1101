"""The platform layer: all input from the machine reaches a node through one small value, `Host`.

The real implementation is in `machine.py`, `tcp.py`, `directory_disk.py`, `lmdb_map.py` and `memory_disk.py`;
the simulated one is in `testing/sim/world`. Contract tests in `tests/runtime` verify that both behave the
same way. Time is not part of it: the clock is that of trio (`trio.current_time()`), which a run can replace.
"""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from .principals import CertificateIdentity, Credentials, Verifier

Address = tuple[str, int]
"""Host name or IP address, and port. With port 0, a listener gets a free port."""

Buffer = bytes | bytearray | memoryview


@runtime_checkable
class Connection(Protocol):
    """A byte stream to one peer. Bytes arrive in order or not at all, split and merged anywhere."""

    peer: str
    """The address of the other end, for messages: ``10.0.0.3:4181``."""

    identity: CertificateIdentity | None
    """The identity that the other end has proved by TLS, once anything was received from it; otherwise None.
    """
    is_secret: bool
    """Whether the connection is encrypted and authenticated, so that no third party can read or change its
    bytes."""

    @property
    def has_begun_handshake(self) -> bool:
        """Whether the peer has begun a handshake: it waits for its turn, or had it a moment ago."""
        ...

    async def receive_into(self, *buffers: memoryview) -> int:
        """Fill the buffers in order with received bytes, and return their number; 0 if the peer closed.

        There is a checkpoint before the read, and none between the read and the return. So the caller can
        parse a buffer that many connections share before its next ``await``.

        Raises:
            ConnectionLost: The connection is broken or was closed here.
        """
        ...

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        """Send as much as the connection accepts now without waiting, and return the number of bytes.

        The caller must offer the rest again before any other bytes, because its first bytes may be on their
        way.

        Raises:
            ConnectionLost: The connection is broken or was closed here.
        """
        ...

    async def wait_writable(self) -> None:
        """Wait until `try_send` may accept bytes again. Raises `ConnectionLost`."""
        ...

    def close(self) -> None:
        """Close now; tasks that wait on this connection get `ConnectionLost`. Idempotent."""
        ...


@runtime_checkable
class Listener(Protocol):
    """A listening address."""

    address: Address
    """The actual address, with the assigned port if port 0 was requested."""

    async def accept(self) -> Connection:
        """Wait for the next connection. If no file descriptor is free, it waits for one."""
        ...

    def close(self) -> None:
        """Stop listening. Idempotent."""
        ...


@runtime_checkable
class File(Protocol):
    """A file of a `Disk`. Offsets and sizes are in bytes.

    Each failed write or sync raises `DiskFailed` (`DiskFull` if there is no space). Afterwards the node must
    end, because the page cache can no longer be trusted.
    """

    name: str

    def size(self) -> int:
        """Return the size, including preallocated space."""
        ...

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write without making the data durable; the next sync does.

        A direct file requires aligned memory and size.
        """
        ...

    async def write_synced(self, offset: int, buffer: Buffer) -> None:
        """Write, then fdatasync: this data and all data written before the call began is durable.

        The sync does not cover data that is written while it runs (H10). The call uses at most one thread
        hop. ``buffer`` must not change until the call returns.
        """
        ...

    @property
    def syncs_inline(self) -> bool:
        """Whether the disk syncs on the event loop now, so that `write_synced_now` may be called.

        Check it before each call.
        """
        ...

    def write_synced_now(self, offset: int, buffer: Buffer) -> None:
        """Write and sync as `write_synced` does, within this call, which blocks the whole process."""
        ...

    async def write_zeros(self, offset: int, length: int) -> None:
        """Write at most 1 MiB of zeros, then fdatasync, in a worker thread.

        Other calls may run concurrently, but must not write to the same range. Their data is durable when
        they return, independent of this call.
        """
        ...

    async def write_in_worker(self, offset: int, buffer: Buffer) -> None:
        """Write and sync as `write_synced` does, always in a worker thread, for background work.

        Other calls may run concurrently, but must not write to the same range.
        """
        ...

    async def sync(self) -> None:
        """Run fdatasync: all data written before the call began is durable."""
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes, or fewer at the end of the file. May block on the device."""
        ...

    def read_if_cached(self, offset: int, length: int) -> Buffer | None:
        """Read as `read_at` does, or return None if that would block on the device.

        The caller owns the memory of the result.
        """
        ...

    async def read_in_worker(self, offset: int, length: int) -> bytes:
        """Read as `read_at` does, in a worker thread."""
        ...

    async def read_in_worker_unbuffered(self, offset: int, length: int) -> bytes:
        """Read as `read_in_worker` does, without read-ahead on the device.

        For background work: read-ahead would delay commits.
        """
        ...

    def truncate(self, size: int) -> None:
        """Set the size of the file, which cuts or extends it."""
        ...

    async def punch_hole(self, offset: int, length: int) -> bool:
        """Free all pages of 4 KiB that are completely in the range.

        They read as zeros afterwards, and the size of the file does not change. Runs in a worker thread.
        Returns False, without a change, if the file system does not support it. After a power cut, the old
        bytes may be there again.
        """
        ...

    def allocated_bytes(self) -> int:
        """Return the space that the file uses on the device: its size without holes, rounded up to pages."""
        ...

    def close(self) -> None:
        """Close the file. Idempotent."""
        ...


Summary = Callable[[Mapping[bytes, bytes]], tuple[bytes, bytes]]
"""Makes one more pair of a transaction, from the previous pairs that it replaces or deletes."""


@runtime_checkable
class OrderedMap(Protocol):
    """A durable map of bytes to bytes, ordered by key: LMDB, or a dict in memory and in the simulator."""

    async def apply(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes] = (),
        summary: Summary | None = None,
    ) -> None:
        """Put and delete pairs in one atomic, synced transaction, in a separate thread.

        ``summary`` is called in that thread, within the transaction, and its pair is put as well. With a
        summary, no key may occur twice in ``puts``.
        """
        ...

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        ...

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the pair with the greatest key <= ``key``, or None."""
        ...

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` pairs with start <= key < end, in order."""
        ...

    def close(self) -> None:
        """Close the map. Idempotent."""
        ...


@runtime_checkable
class Disk(Protocol):
    """A directory on a device. Names are flat, without separators."""

    durability: str
    """The meaning of a finished sync: ``fdatasync``, or ``memory`` if nothing is durable."""

    def list(self) -> list[str]:
        """Return the names of the files, sorted and without maps."""
        ...

    async def create(self, name: str, *, size: int = 0, direct: bool = False) -> File:
        """Create a file, preallocated to ``size``. Its name is durable when the call returns.

        ``direct`` requests O_DIRECT; if the file system refuses it, the file is buffered. Raises
        `FileExistsError`, `DiskFull` or `DiskFailed`.
        """
        ...

    async def open(self, name: str) -> File:
        """Open an existing file for reading and buffered writing. Raises `FileNotFoundError`."""
        ...

    async def rename(self, old: str, new: str) -> None:
        """Rename a file and replace an existing one; durable when the call returns.

        Raises `FileNotFoundError`.
        """
        ...

    async def delete(self, *names: str) -> None:
        """Remove files; durable when the call returns. Open files stay readable.

        The space of large files may be freed later, over minutes, or at once if little space is left. Several
        names in one call cost the device one update of the directory, and concurrent syncs one delay.

        Raises:
            FileNotFoundError: A file does not exist. The files before it in the list are removed, perhaps not
                durably.
        """
        ...

    async def open_map(self, name: str) -> OrderedMap:
        """Open an ordered map, or create it. Raises `CorruptData` if damage is detected."""
        ...

    async def delete_map(self, name: str) -> None:
        """Remove an ordered map that is not open. A missing map is not an error."""
        ...

    def free_bytes(self) -> int:
        """Return the free space of the device, without space of deleted files that is not freed yet."""
        ...

    def set_min_free_bytes(self, size: int) -> None:
        """Free the space of deleted files at once while fewer than ``size`` bytes are free."""
        ...

    async def check_directory(self) -> None:
        """Check that the directory's path still leads to it, and that all files open here are in it.

        Raises `DataDirectoryLost`.
        """
        ...

    def lock(self) -> None:
        """Lock this directory for this node until the process ends. Raises `DataDirectoryInUse`."""
        ...

    def unlock(self) -> None:
        """Release the lock, for a node that is started again in the same process. Idempotent."""
        ...

    def aligned_buffer(self, length: int) -> memoryview:
        """Return zeroed, page-aligned, writable memory, as direct files require."""
        ...


def _no_secrets(length: int) -> bytes:
    raise AssertionError("this host was given no source of secrets")


@dataclass(frozen=True, slots=True)
class Host:
    """The machine of one node.

    The real one is in `distributedlog/runtime/machine.py`, the simulated one in
    `testing/sim/world/sim_host.py`.
    """

    name: str
    dial: Callable[[Address], Awaitable[Connection]]
    """Connect. Raises `ConnectionLost` at once or after the timeout of the system; callers set deadlines."""
    listen: Callable[[Address], Awaitable[Listener]]
    """Listen. Raises `AddressInUse`."""
    disks: Mapping[str, Disk]
    """Disks by role: ``journal`` and ``index`` for a bookie, ``metadata`` for a metadata node."""
    random: random.Random
    wall_ms: Callable[[], int]
    """Milliseconds since 1970, for time stamps in records; never for ordering or timeouts."""
    connections_max: int = 1000
    """The number of peers that a server of this host may have: its descriptors, without those for its files.
    """
    features: int = -1
    """The bits of the optional protocol features that programs of this host support (`handshake.py`).

    By default all. A simulated host with an older version has fewer."""
    version: str | None = None
    """The version that programs of this host state, or None for that of this software (`versions.py`).

    A simulated host can have an older version, which states none: "".
    """
    secret_bytes: Callable[[int], bytes] = _no_secrets
    """Returns unpredictable bytes for keys, nonces and tokens. `random` is for everything else, because its
    output can be predicted from earlier output."""
    methods: Mapping[str, Verifier] = field(default_factory=dict)
    """The methods by which clients authenticate to a server of this host, by name; empty for no
    authentication."""
    credentials: Callable[[Address], Credentials | None] = lambda address: None
    """Returns the credentials for a server address, or None for none."""
    certificate: Callable[[], CertificateIdentity | None] = lambda: None
    """Returns the identity in this host's present certificate, or None without one."""
