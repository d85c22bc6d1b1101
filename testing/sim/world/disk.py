"""A simulated disk: a process sees a page cache above durable 512-byte sectors.

- A write changes the cache. A sync takes virtual time. It makes durable the writes that were made before it
  began, and no write that was made while it ran (H10).
- A power cut keeps a random subset of the sectors of each unsynced write, so that writes are lost, torn or
  reordered. A kill keeps the cache.
- A failed sync (EIO) marks its pages clean: the cache shows them, the next sync succeeds, and the next power
  cut loses them (fsyncgate). After eviction, `read_at` may show the older durable bytes.
- Names: create, rename and delete return when the directory is synced. Until then a power cut may undo them.
- Each `apply` of a map is one synced transaction, as LMDB guarantees. A map can be full, slow or damaged.

A process uses the disk through a `DiskHandle` (`disk_handle.py`).
"""

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from ....runtime.disk.memory_disk import DIRECT_ALIGN, pages_touched, pages_within, replaced_pairs
from ....runtime.interfaces.errors import DiskFailed
from ....runtime.interfaces.host import Summary
from .machine_state import MachineState
from .scheduler import Simulation

SECTOR_BYTES = 512
SPARED = 3
"""`SimDisk.corrupt` with ``in_newest`` spares this many of the latest synced writes."""
NEWEST_BYTES = 48 * 1024
PAGE_PAIRS_MAX = 60
"""Approximate number of extents in one 4 KiB page of a map."""
ROT_TRIES = 30
"""How many offsets `corrupt` tries to find one that was written."""

Pairs = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class DiskFaults:
    """The behavior of one disk: times in seconds, probabilities from 0 to 1.

    A run may change them at any time.
    """

    sync_s: tuple[float, float] = (0.0003, 0.003)
    slow_chance: float = 0.01
    slow_s: tuple[float, float] = (0.03, 0.3)
    survive_chance: float = 0.5
    """Probability that an unsynced sector is durable after a power cut."""
    failing_syncs: int = 0
    """How many of the next syncs fail with EIO."""
    bytes_max: int = 1 << 34
    cold_chance: float = 0.1
    """Probability that `read_if_cached` finds the range not cached."""
    inline: bool = False
    """Whether a sync on the event loop is possible. Such a sync takes no virtual time."""


def draw_disk_faults(rng: random.Random) -> DiskFaults:
    """Return random faults for the disks of one seed."""
    return DiskFaults(
        sync_s=rng.choice(((0.0003, 0.003), (0.0003, 0.003), (0.005, 0.04))),
        slow_chance=rng.choice((0.0, 0.01, 0.05)),
        slow_s=rng.choice(((0.03, 0.3), (0.2, 1.0))),
        survive_chance=rng.choice((0.0, 0.1, 0.5, 0.9)),
        cold_chance=rng.choice((0.0, 0.1, 0.5)),
    )


class FileContent:
    """The bytes of a file, which outlive its name: cached bytes, durable bytes and unsynced writes."""

    __slots__ = (
        "cache",
        "durable",
        "durable_size",
        "failed",
        "holes",
        "pending",
        "size",
        "sized_by",
        "writes",
    )

    def __init__(self) -> None:
        self.cache = bytearray()
        self.durable = bytearray()
        self.size = 0
        self.durable_size = 0
        self.holes: set[int] = set()
        """Numbers of punched pages, which use no space."""
        self.pending: list[tuple[int, int, bytes]] = []
        """(number, offset, data) of writes that no finished sync covers, ascending."""
        self.failed: list[tuple[int, int]] = []
        """(offset, length) of ranges that look written and are not durable, because their sync failed."""
        self.writes = 0
        self.sized_by = 0
        """The number of the sync that made ``durable_size`` durable."""

    def read(self, offset: int, length: int) -> bytes:
        """Return the cached bytes of a range, fewer at the end of the file."""
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        with memoryview(self.cache) as view:
            data = bytes(view[offset:end])
        return data + bytes(end - offset - len(data))

    def write(self, offset: int, data: bytes) -> None:
        """Change the cache. The bytes become durable with a later sync."""
        put(self.cache, offset, data)
        if self.holes:
            self.holes -= set(pages_touched(offset, len(data)))
        self.size = max(self.size, offset + len(data))
        self.writes += 1
        self.pending.append((self.writes, offset, data))

    def punch(self, offset: int, length: int) -> None:
        """Zero whole pages. The next sync makes this durable; until then a power cut keeps or loses it."""
        pages = pages_within(offset, min(length, self.size - offset))
        if pages:
            self.write(pages.start * DIRECT_ALIGN, bytes(len(pages) * DIRECT_ALIGN))
            self.holes |= set(pages)

    @property
    def used_bytes(self) -> int:
        """The size minus punched pages."""
        if not self.holes:
            return self.size
        beyond_end = {page for page in self.holes if (page + 1) * DIRECT_ALIGN > self.size}
        return self.size - DIRECT_ALIGN * len(self.holes - beyond_end)


def put(target: bytearray, offset: int, data: bytes) -> None:
    """Overwrite bytes in place. A gap after the previous end is filled with zeros."""
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


class StoredMap:
    """The ordered content of a map, which outlives processes and power cuts."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []
        self.bytes = 0
        self.is_damaged = False
        """Opening the map raises `CorruptData`."""
        self.commits = 0
        self.older_values: dict[bytes, bytes] = {}
        """Earlier content for `SimDisk.age_map`, replaced before the commits 1, 2, 4, 8 and so on."""
        self.committing: list[tuple[Pairs, list[bytes], Summary | None]] = []
        """Transactions whose sync runs. A power cut or a kill stores each completely or not at all."""

    def commit(self, puts: Pairs, deletes: list[bytes], summary: Summary | None = None) -> None:
        """Apply the deletes, then the puts.

        A key in both is put; of several puts of a key the last one counts.
        """
        values, keys = self.values, self.keys
        self.commits += 1
        if self.commits & (self.commits - 1) == 0:
            self.older_values = dict(values)
        if summary is not None:
            puts = [*puts, summary(replaced_pairs(values, puts, deletes))]
        for key in deletes:
            removed = values.pop(key, None)
            if removed is not None:
                self.bytes -= len(key) + len(removed)
                del keys[bisect_left(keys, key)]
        added = []
        for key, value in puts:
            previous = values.get(key)
            if previous is None:
                added.append(key)
                self.bytes += len(key)
            else:
                self.bytes -= len(previous)
            values[key] = value
            self.bytes += len(value)
        if added:
            keys += added
            keys.sort()

    def on_power_cut(self, rng: random.Random) -> None:
        """Complete a random number of the pending commits, in order, and drop the others."""
        for transaction in self.committing[: rng.randint(0, len(self.committing))]:
            self.commit(*transaction)
        self.committing.clear()

    on_kill = on_power_cut


class DiskWatcher(Protocol):
    """Observes durable bytes and the start of changes, for oracles and targeted faults."""

    def on_durable(self, disk: "SimDisk", name: str, offset: int, data: bytes) -> None:
        """Bytes of file ``name`` have become durable."""
        ...

    def on_change_started(self, disk: "SimDisk", change: str, name: str) -> None:
        """A file is about to be created, renamed to ``name`` or deleted, or a map to be changed."""
        ...


class SimDisk:
    """One device of one machine."""

    def __init__(
        self,
        simulation: Simulation,
        host: MachineState,
        name: str,
        faults: DiskFaults | None = None,
    ) -> None:
        self.simulation = simulation
        self.host = host
        self.name = name
        self.faults = faults or DiskFaults()
        self.rng = simulation.random_stream(f"disk/{host.name}/{name}")
        self.stalled_until = 0.0
        """No sync ends before this virtual time."""
        self.watchers: list[DiskWatcher] = []
        self.files: dict[str, FileContent] = {}
        self.maps: dict[str, StoredMap] = {}
        self.durable_files: dict[str, FileContent] = {}
        self.lock_holder: object | None = None
        """The handle that holds the lock."""
        self.is_fault_injected = False
        """A fault was injected that may end the node. `DiskFailed` and `CorruptData` are then expected."""
        self.sync_count = 0
        self._newest: deque[tuple[FileContent, int, int]] = deque(maxlen=SPARED)
        """The ranges that the latest syncs made durable, newest last."""
        self._steps = 0
        self._names_pending: list[tuple[int, Callable[[dict[str, FileContent]], None]]] = []
        self._name_changes = 0

    # --- faults -----------------------------------------------------------------------------------

    def on_power_cut(self) -> None:
        """Keep a random part of the unsynced sectors and name changes."""
        self.lock_holder = None
        for _, change in self._names_pending:
            if self.rng.random() < 0.5:
                change(self.durable_files)
        self._names_pending.clear()
        lost_sectors = 0
        for content in self.durable_files.values():
            lost_sectors += self._lose_unsynced(content)
        self.files = dict(self.durable_files)
        for stored_map in self.maps.values():
            stored_map.on_power_cut(self.rng)
        self.simulation.record_event("power-cut", self.host.name, self.name, "lost", lost_sectors)

    def _lose_unsynced(self, content: FileContent) -> int:
        lost_sectors = 0
        rng, survive_chance = self.rng, self.faults.survive_chance
        if content.size != content.durable_size and rng.random() < 0.5:
            content.durable_size = content.size
        for _, offset, data in content.pending:
            for start in range(offset - offset % SECTOR_BYTES, offset + len(data), SECTOR_BYTES):
                low, high = max(start, offset), min(start + SECTOR_BYTES, offset + len(data))
                if rng.random() < survive_chance:
                    put(content.durable, low, data[low - offset : high - offset])
                else:
                    lost_sectors += 1
        del content.durable[content.durable_size :]
        content.pending.clear()
        content.failed.clear()
        content.size = content.durable_size
        content.cache = bytearray(content.durable)
        return lost_sectors

    def on_kill(self) -> None:
        """Keep the cache. Pages of failed syncs may be evicted, and are then read from the durable bytes."""
        self.lock_holder = None
        for content in self.files.values():
            for offset, length in content.failed:
                if self.rng.random() < 0.5:
                    durable_bytes = bytes(content.durable[offset : offset + length])
                    put(content.cache, offset, durable_bytes + bytes(length - len(durable_bytes)))
            content.failed.clear()
        for stored_map in self.maps.values():
            stored_map.on_kill(self.rng)

    def wipe(self) -> None:
        """Delete all content. The machine must be off."""
        self.files, self.durable_files, self.maps = {}, {}, {}
        self._names_pending.clear()
        self._newest.clear()
        self.simulation.record_event("wipe", self.host.name, self.name)

    def corrupt(self, *, in_newest: bool = False) -> str:
        """Flip a bit or overwrite a sector that was written.

        The latest synced writes are spared. Nothing written after them proves that they were synced, so
        their own machine cannot distinguish corruption from a torn end (H3). A bookie resolves this by one
        more block 20 ms later.

        Args:
            in_newest: Choose among the last `NEWEST_BYTES` written to the last journal file.
        Returns:
            The file name and the offset, or "" if nothing was changed.
        """
        names = [name for name, content in sorted(self.files.items()) if content.durable]
        if in_newest:
            names = [name for name in names if name.startswith("journal-")]
        if not names:
            return ""
        rng = self.rng
        name = names[-1] if in_newest else rng.choice(names)
        durable = self.files[name].durable
        size = len(durable)
        first = 0
        if in_newest:
            size = max(1, len(durable.rstrip(b"\0")))
            first = max(0, size - NEWEST_BYTES)
        # Preallocated bytes that were never written show no corruption. Most of a small file consists of
        # them.
        for _ in range(ROT_TRIES):
            offset = rng.randrange(first, size)
            sector = offset - offset % SECTOR_BYTES
            if any(durable[sector : sector + SECTOR_BYTES]):
                break
        else:
            return ""
        if rng.random() < 0.5:
            end = offset + 1
        else:
            offset -= offset % SECTOR_BYTES
            end = min(len(durable), offset + SECTOR_BYTES)
        content = self.files[name]
        spared_ranges = list(self._newest)[0 if in_newest else -1 :]
        if any(
            content is spared_content and offset < high and low < end
            for spared_content, low, high in spared_ranges
        ):
            return ""
        self.is_fault_injected = True
        durable[offset:end] = (
            rng.randbytes(end - offset)
            if end - offset > 1
            else bytes([durable[offset] ^ 1 << rng.randrange(8)])
        )
        if not any(low < end and offset < low + len(data) for _, low, data in content.pending):
            put(content.cache, offset, bytes(durable[offset:end]))
        self.simulation.record_event("rot", self.host.name, self.name, name, offset, end - offset)
        return f"{name} {offset}"

    def lose_file(self) -> str:
        """Damage a complete file that has content: empty it, cut it to one page, zero it or delete it.

        The machine must be off.

        Returns:
            The file name and the kind of damage, or "" if nothing was changed.
        """
        names = [name for name, content in sorted(self.files.items()) if any(content.durable)]
        if not names:
            return ""
        name = self.rng.choice(names)
        damage = self.rng.choice(("emptied", "cut", "zeroed", "deleted"))
        content = self.files[name]
        if damage == "deleted":
            del self.files[name], self.durable_files[name]
        else:
            if damage == "zeroed":
                content.durable = bytearray(len(content.durable))
            else:
                content.durable_size = 0 if damage == "emptied" else min(content.size, 4096)
                del content.durable[content.durable_size :]
            content.size = content.durable_size
            content.cache = bytearray(content.durable)
        self.is_fault_injected = True
        self.simulation.record_event("file lost", self.host.name, self.name, name, damage)
        return f"{name} {damage}"

    def damage_map(self) -> bool:
        """Damage the first map, so that opening it fails. Return False if there is no map."""
        for name in sorted(self.maps):
            self.is_fault_injected = True
            self.maps[name].is_damaged = True
            self.simulation.record_event("map damaged", self.host.name, self.name, name)
            return True
        return False

    def age_map(self, rng: random.Random) -> bool:
        """Replace one page of the first changed map with older content, in which each pair is intact.

        This simulates a write that the device confirmed and lost. The machine must be off. Return False if
        nothing was changed.
        """
        for name in sorted(self.maps):
            stored_map = self.maps[name]
            keys = sorted({*stored_map.values, *stored_map.older_values})
            changed = [
                index
                for index, key in enumerate(keys)
                if stored_map.values.get(key) != stored_map.older_values.get(key)
            ]
            if not changed:
                continue
            pairs = rng.randint(1, PAGE_PAIRS_MAX)
            first = max(0, rng.choice(changed) - rng.randrange(pairs))
            for key in keys[first : first + pairs]:
                stored_map.values.pop(key, None)
                if key in stored_map.older_values:
                    stored_map.values[key] = stored_map.older_values[key]
            stored_map.keys = sorted(stored_map.values)
            stored_map.bytes = sum(
                len(key) + len(value) for key, value in stored_map.values.items()
            )
            self.is_fault_injected = True
            self.simulation.record_event("map aged", self.host.name, self.name, name, first, pairs)
            return True
        return False

    # --- operations of handles ----------------------------------------------------------------------------

    def step(self, name: str, number: int = 0) -> None:
        """Count a disk step: it is a crash point and part of the trace hash."""
        self.host.step(name)
        self._steps += 1
        self.simulation.hash_step(self._steps, number)

    def used_bytes(self) -> int:
        """Return the total size of the files, minus punched pages and without maps."""
        return sum(content.used_bytes for content in self.files.values())

    async def wait_for_device(self, incarnation: int) -> None:
        """Wait for the duration of a sync.

        Like work in a thread, the wait cannot be cancelled while the process lives.

        Raises:
            HostDown: The process ended in the meantime.
        """
        faults, rng = self.faults, self.rng
        is_slow = faults.slow_chance and rng.random() < faults.slow_chance
        low, high = faults.slow_s if is_slow else faults.sync_s
        end = max(self.simulation.now + rng.uniform(low, high), self.stalled_until)
        task = trio.lowlevel.current_task()
        is_done = False

        def finish() -> None:
            if not is_done:
                trio.lowlevel.reschedule(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            nonlocal is_done
            if self.host.is_current(incarnation):
                return trio.lowlevel.Abort.FAILED
            is_done = True
            return trio.lowlevel.Abort.SUCCEEDED

        self.simulation.call_at(end, finish)
        await trio.lowlevel.wait_task_rescheduled(abort)
        is_done = True
        self.host.check(incarnation)

    async def sync_content(self, name: str, content: FileContent, incarnation: int) -> None:
        """Sync a file as fdatasync does, in virtual time."""
        covered_writes, size = content.writes, content.size
        number, failed_before = self._begin_sync(content)
        await self.wait_for_device(incarnation)
        self._end_sync(name, content, covered_writes, size, number, failed_before)

    def sync_content_now(self, name: str, content: FileContent) -> None:
        """Sync a file as fdatasync does, on the event loop and without virtual time."""
        covered_writes, size = content.writes, content.size
        number, failed_before = self._begin_sync(content)
        self._end_sync(name, content, covered_writes, size, number, failed_before)

    def _begin_sync(self, content: FileContent) -> tuple[int, int]:
        self.step("sync", content.writes)
        self.sync_count += 1
        return self.sync_count, len(content.failed)

    def _end_sync(
        self,
        name: str,
        content: FileContent,
        covered_writes: int,
        size: int,
        number: int,
        failed_before: int,
    ) -> None:
        if (
            len(content.failed) > failed_before
        ):  # Another sync failed while this one ran, perhaps for the same pages.
            raise DiskFailed(f"{name}: input/output error during another sync (simulated)")
        is_failing = self.faults.failing_syncs > 0
        now_durable = [item for item in content.pending if item[0] <= covered_writes]
        content.pending = [item for item in content.pending if item[0] > covered_writes]
        if is_failing:
            self.faults.failing_syncs -= 1
            self.is_fault_injected = True
            self.simulation.record_event("EIO", self.host.name, self.name, name)
            content.failed += [(offset, len(data)) for _, offset, data in now_durable]
            raise DiskFailed(f"{name}: input/output error during a sync (simulated)")
        if (
            number > content.sized_by
        ):  # Of two concurrent syncs, the one that began later has the newer size.
            content.sized_by = number
            content.durable_size = size
            del content.durable[size:]
        for _, offset, data in now_durable:
            put(content.durable, offset, data)
            self._newest.append((content, offset, offset + len(data)))
            for watcher in self.watchers:
                watcher.on_durable(self, name, offset, data)
        self.step("synced", len(now_durable))

    def notify_change(self, change: str, name: str) -> None:
        """Notify the watchers."""
        for watcher in self.watchers:
            watcher.on_change_started(self, change, name)

    async def change_names(
        self, incarnation: int, *changes: Callable[[dict[str, FileContent]], None]
    ) -> None:
        """Change the directory now.

        The changes are durable on return; before, a power cut may lose each of them.
        """
        for change in changes:
            change(self.files)
            self._name_changes += 1
            self._names_pending.append((self._name_changes, change))
        number = self._name_changes
        self.step("directory", number)
        await self.wait_for_device(incarnation)
        for done_number, apply_change in [
            item for item in self._names_pending if item[0] <= number
        ]:
            apply_change(self.durable_files)  # the directory's journal keeps their order
            self._names_pending = [item for item in self._names_pending if item[0] != done_number]
