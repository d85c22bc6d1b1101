"""The simulated side of `OrderedMap`: LMDB's promise (a transaction is whole and synced), and its faults."""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from ..runtime.errors import AlreadyClosed, DiskFailed, DiskFull
from ..runtime.memory import KEY_BYTES_MAX

if TYPE_CHECKING:
    from .disk import SimDisk

MAP_BYTES_MAX = 64 << 20

Pairs = list[tuple[bytes, bytes]]


class StoredMap:
    """What a map holds, ordered; it outlives processes and power cuts."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []
        self.bytes = 0
        self.damaged = False
        """Seen when it is opened: `CorruptData`."""
        self.committing: list[tuple[Pairs, list[bytes]]] = []
        """Transactions whose sync runs: after a power cut or a kill each is there wholly or not at all."""

    def commit(self, puts: Pairs, deletes: list[bytes]) -> None:
        """Delete, then put: a key in both is put, the last put of a key counts."""
        values, keys = self.values, self.keys
        for key in deletes:
            old = values.pop(key, None)
            if old is not None:
                self.bytes -= len(key) + len(old)
                del keys[bisect_left(keys, key)]
        added = []
        for key, value in puts:
            before = values.get(key)
            if before is None:
                added.append(key)
                self.bytes += len(key)
            else:
                self.bytes -= len(before)
            values[key] = value
            self.bytes += len(value)
        if added:
            keys += added
            keys.sort()

    def on_power_cut(self, chance: random.Random) -> None:
        """The first few of the commits under way were through."""
        for puts, deletes in self.committing[: chance.randint(0, len(self.committing))]:
            self.commit(puts, deletes)
        self.committing.clear()

    on_kill = on_power_cut


class SimMap:
    """An `OrderedMap` for one life of a process; all handles of a name show the same pairs."""

    def __init__(self, disk: "SimDisk", incarnation: int, name: str, stored: StoredMap) -> None:
        self.name = name
        self.closed = False
        self._disk = disk
        self._incarnation = incarnation
        self._stored = stored

    async def apply(
        self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()
    ) -> None:
        """One synced transaction, all or nothing. Raises `DiskFull`, `DiskFailed`."""
        pairs = [(bytes(key), bytes(value)) for key, value in puts]
        gone = [bytes(key) for key in deletes]
        for key in (*(key for key, _ in pairs), *gone):
            assert 0 < len(key) <= KEY_BYTES_MAX, f"a key of {len(key)} bytes"
        self._check()
        await trio.lowlevel.checkpoint_if_cancelled()
        disk, stored = self._disk, self._stored
        disk.begin("map", self.name)
        disk.step("map", len(pairs))
        size = sum(len(key) + len(value) for key, value in pairs)
        if stored.bytes + size > MAP_BYTES_MAX or size > disk.faults.bytes_max - disk.used_bytes():
            disk.blamed = True
            raise DiskFull(f"map {self.name}: no room for {size} bytes more")
        transaction = (pairs, gone)
        stored.committing.append(transaction)
        while stored.committing[0] is not transaction:  # one writer at a time, in order
            await disk.wait(self._incarnation)
        await disk.wait(self._incarnation)
        del stored.committing[0]
        if disk.faults.failing_syncs > 0:
            disk.faults.failing_syncs -= 1
            disk.blamed = True
            disk.simulation.note("EIO", disk.host.name, disk.name, self.name)
            raise DiskFailed(f"map {self.name}: input/output error during a commit (simulated)")
        stored.commit(pairs, gone)
        disk.step("map synced", len(pairs))

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        self._check()
        return self._stored.values.get(key)

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The pair with the greatest key <= ``key``, or None."""
        self._check()
        keys, values = self._stored.keys, self._stored.values
        at = bisect_right(keys, key)
        return (keys[at - 1], values[keys[at - 1]]) if at else None

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to ``limit`` pairs with start <= key < end, in order."""
        self._check()
        keys, values = self._stored.keys, self._stored.values
        first = bisect_left(keys, start)
        last = min(bisect_left(keys, end), first + limit)
        return [(key, values[key]) for key in keys[first:last]]

    def close(self) -> None:
        """Close. Idempotent."""
        self.closed = True

    def _check(self) -> None:
        self._disk.host.check(self._incarnation)
        if self.closed:
            raise AlreadyClosed(f"map {self.name} is closed")
