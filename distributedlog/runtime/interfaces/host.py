"""The seam: everything that is not computed comes in through one small value, `Host`.

The real side is `machine.py`, `tcp.py`, `directory_disk.py`, `lmdb_map.py` and `memory_disk.py`; the
simulated side is `sim/`. Contract tests in tests/runtime hold both to the same behaviour. Time is not here:
it is trio's clock (`trio.current_time()`), which a run can replace whole.
"""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from .principals import CertificateIdentity, Credentials, Verify

Address = tuple[str, int]
"""Host name or IP, and port. Port 0 asks a listener for a free one."""

Buffer = bytes | bytearray | memoryview


@runtime_checkable
class Connection(Protocol):
    """A byte stream to one peer. Bytes arrive in order or not at all, split and merged anywhere."""

    peer: str
    """Who is at the other end, for messages: ``10.0.0.3:4181``."""

    identity: CertificateIdentity | None
    """Who the other end has proved to be, by TLS, once anything was received from it; else None."""
    is_secret: bool
    """Nobody between the two ends can read or change what goes over it."""

    @property
    def has_begun(self) -> bool:
        """Has the other end begun a handshake here: does it wait for its turn, or had it just now?"""
        ...

    async def receive_into(self, *buffers: memoryview) -> int:
        """Fill the buffers in order with what has arrived; return how many bytes (0: peer closed).

        A checkpoint comes before the read and none between the read and the return, so a buffer
        that is shared by many connections may be parsed before the next ``await``.
        Raises `ConnectionLost` when the connection is broken or was closed here.
        """
        ...

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        """Hand over what the connection takes now, never waiting; return how many bytes (maybe 0).

        What was not taken is offered again, before anything else: its first bytes may be on their way.

        Raises `ConnectionLost`.
        """
        ...

    async def wait_writable(self) -> None:
        """Return when `try_send` may take bytes again. Raises `ConnectionLost`."""
        ...

    def close(self) -> None:
        """Close now; whoever waits on this connection gets `ConnectionLost`. Idempotent."""
        ...


@runtime_checkable
class Listener(Protocol):
    """A listening address."""

    address: Address
    """The real one, with the port that was given for port 0."""

    async def accept(self) -> Connection:
        """Wait for the next connection. Survives a lack of file descriptors by waiting."""
        ...

    def close(self) -> None:
        """Stop listening. Idempotent."""
        ...


@runtime_checkable
class File(Protocol):
    """A file of a `Disk`. Offsets and sizes are bytes.

    Every failed write or sync raises `DiskFailed` (`DiskFull` for a lack of space), after which the
    node must end: what the page cache shows is no longer to be trusted.
    """

    name: str

    def size(self) -> int:
        """The size, preallocated space included."""
        ...

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write, not durable before the next sync. A direct file wants aligned memory and size."""
        ...

    async def write_synced(self, offset: int, buffer: Buffer) -> None:
        """Write, then fdatasync: this and all that was written before the call began is durable.

        Covers nothing that was written while it ran (H10). One thread hop at most. ``buffer`` must
        stay as it is until the call returns.
        """
        ...

    @property
    def syncs_inline(self) -> bool:
        """May `write_synced_now` be called: does this disk sync on the loop? Asked before each call."""
        ...

    def write_synced_now(self, offset: int, buffer: Buffer) -> None:
        """As `write_synced`, within this call: nothing else of the process runs until it is durable."""
        ...

    async def write_zeros(self, offset: int, length: int) -> None:
        """Write zeros, then fdatasync, in a worker: beside other calls, none of which writes there.

        At most 1 MiB. What the other calls wrote is durable when they return, not when this does.
        """
        ...

    async def write_in_worker(self, offset: int, buffer: Buffer) -> None:
        """As `write_synced`, in a worker whatever the disk's mode: for what nobody waits for.

        Other calls go on beside it; none of them writes there.
        """
        ...

    async def sync(self) -> None:
        """fdatasync: what was written before the call began is durable."""
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes (fewer at the end of the file); may wait for the device."""
        ...

    def read_if_cached(self, offset: int, length: int) -> Buffer | None:
        """As `read_at`, or None when that would wait for the device. Memory of the caller's own."""
        ...

    async def read_in_worker(self, offset: int, length: int) -> bytes:
        """As `read_at`, in a worker, off the loop."""
        ...

    async def read_in_worker_unbuffered(self, offset: int, length: int) -> bytes:
        """As `read_in_worker`, and nothing is read of the device ahead of what was asked for.

        For work in the background: what is read ahead keeps commits waiting.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut or extend."""
        ...

    async def punch_hole(self, offset: int, length: int) -> bool:
        """Give back the pages of 4 KiB that lie whole in there: they read as zeros, the size stays.

        In a worker. False where the file system cannot do it; nothing is changed then. After a power cut
        the old bytes may be there again.
        """
        ...

    def allocated_bytes(self) -> int:
        """What the file takes of the device: its size less its holes, rounded up to pages."""
        ...

    def close(self) -> None:
        """Close. Idempotent."""
        ...


Summary = Callable[[Mapping[bytes, bytes]], tuple[bytes, bytes]]
"""Makes one more pair of a transaction, from the pairs that it replaces or deletes, as they were before."""


@runtime_checkable
class OrderedMap(Protocol):
    """A durable map of bytes to bytes, ordered by key: LMDB, or a dict in memory and simulation."""

    async def apply(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes] = (),
        summary: Summary | None = None,
    ) -> None:
        """Put and delete in one synced transaction, in a separate thread. All or nothing.

        ``summary`` is called in that thread, within the transaction; its pair is put as well. With one, no
        key is put twice.
        """
        ...

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        ...

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The pair with the greatest key <= ``key``, or None."""
        ...

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to ``limit`` pairs with start <= key < end, in order."""
        ...

    def close(self) -> None:
        """Close. Idempotent."""
        ...


@runtime_checkable
class Disk(Protocol):
    """A directory on a device. Names are flat: no separators."""

    durability: str
    """What a finished sync means here: ``fdatasync``, or ``memory`` for none at all."""

    def list(self) -> list[str]:
        """The names of the files here, sorted (maps not included)."""
        ...

    async def create(self, name: str, *, size: int = 0, direct: bool = False) -> File:
        """Make a new file, preallocated to ``size``; its name is durable when this returns.

        ``direct`` asks for O_DIRECT; where the file system refuses it the file is buffered.
        Raises `FileExistsError`, `DiskFull`, `DiskFailed`.
        """
        ...

    async def open(self, name: str) -> File:
        """Open an existing file for reading and buffered writing. Raises `FileNotFoundError`."""
        ...

    async def rename(self, old: str, new: str) -> None:
        """Rename over whatever is there; durable when this returns. Raises `FileNotFoundError`."""
        ...

    async def delete(self, *names: str) -> None:
        """Remove the names; durable when this returns. Open files stay readable.

        The room of large files may come back later, over minutes; where it is short, at once.
        Many together cost the device one update of the directory, and whoever syncs beside it one wait.
        Raises `FileNotFoundError`; those named before that one are gone then, perhaps not durably.
        """
        ...

    async def open_map(self, name: str) -> OrderedMap:
        """Open or make an ordered map. Raises `CorruptData` where it is seen to be damaged."""
        ...

    async def delete_map(self, name: str) -> None:
        """Remove an ordered map that is not open. No error where there is none."""
        ...

    def free_bytes(self) -> int:
        """Space left on the device; not what deleted files have yet to give back."""
        ...

    def set_min_free_bytes(self, size: int) -> None:
        """While less than so many bytes are free, deleted files give their room back at once."""
        ...

    async def check_directory(self) -> None:
        """Check that the directory's name still leads to it, and that all files open here are in it.

        Raises `DataDirectoryLost`.
        """
        ...

    def lock(self) -> None:
        """Take this directory for this node, until it ends. Raises `DataDirectoryInUse`."""
        ...

    def unlock(self) -> None:
        """Give it back: for a node that is started again in the same process. Idempotent."""
        ...

    def aligned_buffer(self, length: int) -> memoryview:
        """Zeroed, page-aligned, writable memory, as direct files want it."""
        ...


def _no_secrets(length: int) -> bytes:
    raise AssertionError("this host was given no source of secrets")


@dataclass(frozen=True, slots=True)
class Host:
    """The machine one node runs on. Real: distributedlog/runtime/machine.py. Simulated:
    testing/sim/world/sim_host.py."""

    name: str
    dial: Callable[[Address], Awaitable[Connection]]
    """Connect. Raises `ConnectionLost` at once or after the system's time; callers set deadlines."""
    listen: Callable[[Address], Awaitable[Listener]]
    """Listen. Raises `AddressInUse`."""
    disks: Mapping[str, Disk]
    """By role: ``journal`` and ``index`` for a bookie, ``metadata`` for a metadata node."""
    random: random.Random
    wall_ms: Callable[[], int]
    """Milliseconds since 1970, for time stamps in records; never for ordering or timeouts."""
    connections_max: int = 1000
    """Peers that a server of this host may have at once: its descriptors, less those that its files need."""
    secret_bytes: Callable[[int], bytes] = _no_secrets
    """So many bytes that nobody can guess: for keys, nonces, tokens. `random` is for everything else, and
    whoever sees enough of it can compute the rest."""
    methods: Mapping[str, Verify] = field(default_factory=dict)
    """How a server of this host has proved to it who comes, by the method's name; empty: not at all."""
    credentials: Callable[[Address], Credentials | None] = lambda address: None
    """What to prove who we are with, to who listens there; None: nothing."""
    certificate: Callable[[], CertificateIdentity | None] = lambda: None
    """Who our certificate says that we are, as it is now; None: there is none."""
