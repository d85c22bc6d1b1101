"""A simulated disk: what the process sees lies in a page cache above durable 512-byte sectors.

- A write changes the cache; a sync takes virtual time and makes durable what was written before it began,
  nothing that was written while it ran (H10).
- A power cut leaves, of each write not yet covered, a random subset of its sectors: lost, torn, reordered.
  A kill leaves the cache.
- A failed sync (EIO) marks its pages clean: the cache shows them, the next sync succeeds, and they are
  gone at the next power cut (fsyncgate). `read_at` may show the durable bytes instead once they are evicted.
- Names: create, rename and delete return when the directory is synced; until then a power cut may undo them.
- A map is one synced transaction an apply: LMDB's promise, and its faults (full, slow, damaged).

What a process does with it goes through a handle of its own (`disk_handle.py`).
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
"""Loss of the newest spares what the last so many syncs wrote."""
NEWEST_BYTES = 48 * 1024
PAGE_PAIRS_MAX = 60
"""Extents in one page of 4 KiB of a map, about."""
ROT_TRIES = 30
"""Places looked at for one that was written."""

Pairs = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class DiskFaults:
    """How one disk behaves; times in seconds, chances from 0 to 1, changed while the run goes on."""

    sync_s: tuple[float, float] = (0.0003, 0.003)
    slow_chance: float = 0.01
    slow_s: tuple[float, float] = (0.03, 0.3)
    survive_chance: float = 0.5
    """That an unsynced sector is durable after a power cut."""
    failing_syncs: int = 0
    """So many of the next syncs fail with EIO."""
    bytes_max: int = 1 << 34
    cold_chance: float = 0.1
    """That `read_hot` finds a stretch cold."""
    inline: bool = False
    """Does it sync on the loop where its user asks for that? In no time then."""


def draw_disk_faults(rng: random.Random) -> DiskFaults:
    """A mix for the disks of one seed."""
    return DiskFaults(
        sync_s=rng.choice(((0.0003, 0.003), (0.0003, 0.003), (0.005, 0.04))),
        slow_chance=rng.choice((0.0, 0.01, 0.05)),
        slow_s=rng.choice(((0.03, 0.3), (0.2, 1.0))),
        survive_chance=rng.choice((0.0, 0.1, 0.5, 0.9)),
        cold_chance=rng.choice((0.0, 0.1, 0.5)),
    )


class FileContent:
    """A file's bytes, which outlive its name: the cache, the durable ones, the writes between them."""

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
        """Pages that were punched, by number: they take no space."""
        self.pending: list[tuple[int, int, bytes]] = []
        """(number, offset, data) of writes that no finished sync covers, ascending."""
        self.failed: list[tuple[int, int]] = []
        """(offset, length) of what looks written and is not: a sync failed over it."""
        self.writes = 0
        self.sized_by = 0
        """The number of the sync that made ``durable_size`` durable."""

    def read(self, offset: int, length: int) -> bytes:
        """What a read finds: the cache's bytes, fewer at the end."""
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        with memoryview(self.cache) as view:
            data = bytes(view[offset:end])
        return data + bytes(end - offset - len(data))

    def write(self, offset: int, data: bytes) -> None:
        """Change the cache; the write waits for a sync."""
        put(self.cache, offset, data)
        if self.holes:
            self.holes -= set(pages_touched(offset, len(data)))
        self.size = max(self.size, offset + len(data))
        self.writes += 1
        self.pending.append((self.writes, offset, data))

    def punch(self, offset: int, length: int) -> None:
        """Zeros in whole pages, which the next sync makes durable, or a power cut by chance."""
        pages = pages_within(offset, min(length, self.size - offset))
        if pages:
            self.write(pages.start * DIRECT_ALIGN, bytes(len(pages) * DIRECT_ALIGN))
            self.holes |= set(pages)

    @property
    def used_bytes(self) -> int:
        """Its size less its holes."""
        if not self.holes:
            return self.size
        beyond_end = {page for page in self.holes if (page + 1) * DIRECT_ALIGN > self.size}
        return self.size - DIRECT_ALIGN * len(self.holes - beyond_end)


def put(target: bytearray, offset: int, data: bytes) -> None:
    """Overwrite in place; a hole before the end reads as zeros."""
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


class StoredMap:
    """What a map holds, ordered; it outlives processes and power cuts."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []
        self.bytes = 0
        self.is_damaged = False
        """Seen when it is opened: `CorruptData`."""
        self.commits = 0
        self.older_values: dict[bytes, bytes] = {}
        """An older content: the one before the first, the second, the fourth commit and so on."""
        self.committing: list[tuple[Pairs, list[bytes], Summary | None]] = []
        """Transactions whose sync runs: after a power cut or a kill each is there wholly or not at all."""

    def commit(self, puts: Pairs, deletes: list[bytes], summary: Summary | None = None) -> None:
        """Delete, then put: a key in both is put, the last put of a key counts."""
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
        """The first few of the commits under way were through."""
        for transaction in self.committing[: rng.randint(0, len(self.committing))]:
            self.commit(*transaction)
        self.committing.clear()

    on_kill = on_power_cut


class DiskWatcher(Protocol):
    """Told of every durable stretch, and of what begins: for oracles, and to strike there."""

    def on_durable(self, disk: "SimDisk", name: str, offset: int, data: bytes) -> None:
        """These bytes of file ``name`` have reached the platter."""
        ...

    def on_change_started(self, disk: "SimDisk", change: str, name: str) -> None:
        """A file is about to be made, renamed (``name``: from now on) or deleted, or a map changed."""
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
        self.chance = simulation.chance(f"disk/{host.name}/{name}")
        self.stalled_until = 0.0
        """No sync ends before this virtual time."""
        self.watchers: list[DiskWatcher] = []
        self.files: dict[str, FileContent] = {}
        self.maps: dict[str, StoredMap] = {}
        self.durable_files: dict[str, FileContent] = {}
        self.lock_holder: object | None = None
        """The handle that took it."""
        self.is_fault_injected = False
        """A fault that may end its node was planted here: `DiskFailed` or `CorruptData` is explained."""
        self.sync_count = 0
        self._newest: deque[tuple[FileContent, int, int]] = deque(maxlen=SPARED)
        """The last stretches that syncs made durable, the newest last."""
        self._steps = 0
        self._names_pending: list[tuple[int, Callable[[dict[str, FileContent]], None]]] = []
        self._name_changes = 0

    # --- faults -----------------------------------------------------------------------------------

    def on_power_cut(self) -> None:
        """What was not synced survives by chance, sector by sector; names likewise."""
        self.lock_holder = None
        for _, change in self._names_pending:
            if self.chance.random() < 0.5:
                change(self.durable_files)
        self._names_pending.clear()
        lost_sectors = 0
        for content in self.durable_files.values():
            lost_sectors += self._lose_unsynced(content)
        self.files = dict(self.durable_files)
        for stored_map in self.maps.values():
            stored_map.on_power_cut(self.chance)
        self.simulation.note("power-cut", self.host.name, self.name, "lost", lost_sectors)

    def _lose_unsynced(self, content: FileContent) -> int:
        lost_sectors = 0
        rng, survive_chance = self.chance, self.faults.survive_chance
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
        """The cache stays; pages over which a sync has failed may be dropped from it and read anew."""
        self.lock_holder = None
        for content in self.files.values():
            for offset, length in content.failed:
                if self.chance.random() < 0.5:
                    durable_bytes = bytes(content.durable[offset : offset + length])
                    put(content.cache, offset, durable_bytes + bytes(length - len(durable_bytes)))
            content.failed.clear()
        for stored_map in self.maps.values():
            stored_map.on_kill(self.chance)

    def wipe(self) -> None:
        """Everything on it is gone. Its machine is off."""
        self.files, self.durable_files, self.maps = {}, {}, {}
        self._names_pending.clear()
        self._newest.clear()
        self.simulation.note("wipe", self.host.name, self.name)

    def corrupt(self, *, in_newest: bool = False) -> str:
        """Flip a bit, or spoil a sector, of what was written once; say where, or "" for nothing done.

        ``newest``: in the last `NEWEST_BYTES` that were written of the last file of a journal.

        Spares what the very last syncs wrote: nothing after it says that it was synced, so its rot cannot
        be told from a torn tail by its own machine (H3 has the remedy, one more block 20 ms later).
        """
        names = [name for name, content in sorted(self.files.items()) if content.durable]
        if in_newest:
            names = [name for name in names if name.startswith("journal-")]
        if not names:
            return ""
        rng = self.chance
        name = names[-1] if in_newest else rng.choice(names)
        durable = self.files[name].durable
        size = len(durable)
        first = 0
        if in_newest:
            size = max(1, len(durable.rstrip(b"\0")))
            first = max(0, size - NEWEST_BYTES)
        # Room that was made ahead and never written shows no rot: most of a small file is that.
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
        self.simulation.note("rot", self.host.name, self.name, name, offset, end - offset)
        return f"{name} {offset}"

    def lose_file(self) -> str:
        """A file that was written goes whole: emptied, cut to a page, zeroed, or by name; which, and how.

        Its machine is off. "" for nothing done.
        """
        names = [name for name, content in sorted(self.files.items()) if any(content.durable)]
        if not names:
            return ""
        name = self.chance.choice(names)
        damage = self.chance.choice(("emptied", "cut", "zeroed", "deleted"))
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
        self.simulation.note("file lost", self.host.name, self.name, name, damage)
        return f"{name} {damage}"

    def damage_map(self) -> bool:
        """Damage the first map so that opening it sees it; False where there is none."""
        for name in sorted(self.maps):
            self.is_fault_injected = True
            self.maps[name].is_damaged = True
            self.simulation.note("map damaged", self.host.name, self.name, name)
            return True
        return False

    def age_map(self, rng: random.Random) -> bool:
        """Replace one page of the first changed map with older content, in which each pair is sound.

        This is a write that the device confirmed and lost. Its machine is off. False if nothing was done.
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
            self.simulation.note("map aged", self.host.name, self.name, name, first, pairs)
            return True
        return False

    # --- what handles do --------------------------------------------------------------------------

    def step(self, name: str, number: int = 0) -> None:
        """A disk step: a crash point, and into the trace hash."""
        self.host.step(name)
        self._steps += 1
        self.simulation.hash_step(self._steps, number)

    def used_bytes(self) -> int:
        """The files' sizes in sum, less their holes; maps not included."""
        return sum(content.used_bytes for content in self.files.values())

    async def wait_for_device(self, incarnation: int) -> None:
        """Let a sync's time pass; raises `HostDown` if the process ended meanwhile.

        Like a thread's work it cannot be cancelled, unless the process is gone.
        """
        faults, rng = self.faults, self.chance
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
        """One fdatasync."""
        covered_writes, size = content.writes, content.size
        number, failed_before = self._begin_sync(content)
        await self.wait_for_device(incarnation)
        self._end_sync(name, content, covered_writes, size, number, failed_before)

    def sync_content_now(self, name: str, content: FileContent) -> None:
        """One fdatasync on the loop."""
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
        ):  # by another sync, meanwhile: its pages may be this one's, too
            raise DiskFailed(f"{name}: input/output error during another sync (simulated)")
        is_failing = self.faults.failing_syncs > 0
        now_durable = [item for item in content.pending if item[0] <= covered_writes]
        content.pending = [item for item in content.pending if item[0] > covered_writes]
        if is_failing:
            self.faults.failing_syncs -= 1
            self.is_fault_injected = True
            self.simulation.note("EIO", self.host.name, self.name, name)
            content.failed += [(offset, len(data)) for _, offset, data in now_durable]
            raise DiskFailed(f"{name}: input/output error during a sync (simulated)")
        if number > content.sized_by:  # of two syncs at once the later begun knows the newer size
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
        """Tell the watchers."""
        for watcher in self.watchers:
            watcher.on_change_started(self, change, name)

    async def change_names(
        self, incarnation: int, *changes: Callable[[dict[str, FileContent]], None]
    ) -> None:
        """Change the directory now, durably when this returns; until then each survives by chance."""
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
