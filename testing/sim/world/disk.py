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

from ....runtime.disk.memory_disk import DIRECT_ALIGN, pages_touched, pages_within, replaced
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


def draw_disk_faults(chance: random.Random) -> DiskFaults:
    """A mix for the disks of one seed."""
    return DiskFaults(
        sync_s=chance.choice(((0.0003, 0.003), (0.0003, 0.003), (0.005, 0.04))),
        slow_chance=chance.choice((0.0, 0.01, 0.05)),
        slow_s=chance.choice(((0.03, 0.3), (0.2, 1.0))),
        survive_chance=chance.choice((0.0, 0.1, 0.5, 0.9)),
        cold_chance=chance.choice((0.0, 0.1, 0.5)),
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

    def show(self, offset: int, length: int) -> bytes:
        """What a read finds: the cache's bytes, fewer at the end."""
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        with memoryview(self.cache) as view:
            found = bytes(view[offset:end])
        return found + bytes(end - offset - len(found))

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
        lost = {page for page in self.holes if (page + 1) * DIRECT_ALIGN > self.size}
        return self.size - DIRECT_ALIGN * len(self.holes - lost)


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
        self.damaged = False
        """Seen when it is opened: `CorruptData`."""
        self.commits = 0
        self.older: dict[bytes, bytes] = {}
        """An older content: the one before the first, the second, the fourth commit and so on."""
        self.committing: list[tuple[Pairs, list[bytes], Summary | None]] = []
        """Transactions whose sync runs: after a power cut or a kill each is there wholly or not at all."""

    def commit(self, puts: Pairs, deletes: list[bytes], summary: Summary | None = None) -> None:
        """Delete, then put: a key in both is put, the last put of a key counts."""
        values, keys = self.values, self.keys
        self.commits += 1
        if self.commits & (self.commits - 1) == 0:
            self.older = dict(values)
        if summary is not None:
            puts = [*puts, summary(replaced(values, puts, deletes))]
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
        for transaction in self.committing[: chance.randint(0, len(self.committing))]:
            self.commit(*transaction)
        self.committing.clear()

    on_kill = on_power_cut


class DiskWatcher(Protocol):
    """Told of every durable stretch, and of what begins: for oracles, and to strike there."""

    def on_durable(self, disk: "SimDisk", name: str, offset: int, data: bytes) -> None:
        """These bytes of file ``name`` have reached the platter."""
        ...

    def on_begun(self, disk: "SimDisk", what: str, name: str) -> None:
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
        self.locked_by: object | None = None
        """The handle that took it."""
        self.blamed = False
        """A fault that may end its node was planted here: `DiskFailed` or `CorruptData` is explained."""
        self.syncs = 0
        self._newest: deque[tuple[FileContent, int, int]] = deque(maxlen=SPARED)
        """The last stretches that syncs made durable, the newest last."""
        self._steps = 0
        self._names_pending: list[tuple[int, Callable[[dict[str, FileContent]], None]]] = []
        self._name_changes = 0

    # --- faults -----------------------------------------------------------------------------------

    def on_power_cut(self) -> None:
        """What was not synced survives by chance, sector by sector; names likewise."""
        self.locked_by = None
        for _, change in self._names_pending:
            if self.chance.random() < 0.5:
                change(self.durable_files)
        self._names_pending.clear()
        lost = 0
        for content in self.durable_files.values():
            lost += self._cut(content)
        self.files = dict(self.durable_files)
        for kept in self.maps.values():
            kept.on_power_cut(self.chance)
        self.simulation.note("power-cut", self.host.name, self.name, "lost", lost)

    def _cut(self, content: FileContent) -> int:
        lost = 0
        chance, survive = self.chance, self.faults.survive_chance
        if content.size != content.durable_size and chance.random() < 0.5:
            content.durable_size = content.size
        for _, offset, data in content.pending:
            for start in range(offset - offset % SECTOR_BYTES, offset + len(data), SECTOR_BYTES):
                low, high = max(start, offset), min(start + SECTOR_BYTES, offset + len(data))
                if chance.random() < survive:
                    put(content.durable, low, data[low - offset : high - offset])
                else:
                    lost += 1
        del content.durable[content.durable_size :]
        content.pending.clear()
        content.failed.clear()
        content.size = content.durable_size
        content.cache = bytearray(content.durable)
        return lost

    def on_kill(self) -> None:
        """The cache stays; pages over which a sync has failed may be dropped from it and read anew."""
        self.locked_by = None
        for content in self.files.values():
            for offset, length in content.failed:
                if self.chance.random() < 0.5:
                    old = bytes(content.durable[offset : offset + length])
                    put(content.cache, offset, old + bytes(length - len(old)))
            content.failed.clear()
        for kept in self.maps.values():
            kept.on_kill(self.chance)

    def wipe(self) -> None:
        """Everything on it is gone. Its machine is off."""
        self.files, self.durable_files, self.maps = {}, {}, {}
        self._names_pending.clear()
        self._newest.clear()
        self.simulation.note("wipe", self.host.name, self.name)

    def rot(self, *, newest: bool = False) -> str:
        """Flip a bit, or spoil a sector, of what was written once; say where, or "" for nothing done.

        ``newest``: in the last `NEWEST_BYTES` that were written of the last file of a journal.

        Spares what the very last syncs wrote: nothing after it says that it was synced, so its rot cannot
        be told from a torn tail by its own machine (H3 has the remedy, one more block 20 ms later).
        """
        names = [name for name, content in sorted(self.files.items()) if content.durable]
        if newest:
            names = [name for name in names if name.startswith("journal-")]
        if not names:
            return ""
        chance = self.chance
        name = names[-1] if newest else chance.choice(names)
        durable = self.files[name].durable
        size = len(durable)
        first = 0
        if newest:
            size = max(1, len(durable.rstrip(b"\0")))
            first = max(0, size - NEWEST_BYTES)
        # Room that was made ahead and never written shows no rot: most of a small file is that.
        for _ in range(ROT_TRIES):
            at = chance.randrange(first, size)
            sector = at - at % SECTOR_BYTES
            if any(durable[sector : sector + SECTOR_BYTES]):
                break
        else:
            return ""
        if chance.random() < 0.5:
            end = at + 1
        else:
            at -= at % SECTOR_BYTES
            end = min(len(durable), at + SECTOR_BYTES)
        content = self.files[name]
        spared = list(self._newest)[0 if newest else -1 :]
        if any(content is one and at < high and low < end for one, low, high in spared):
            return ""
        self.blamed = True
        durable[at:end] = (
            chance.randbytes(end - at)
            if end - at > 1
            else bytes([durable[at] ^ 1 << chance.randrange(8)])
        )
        if not any(low < end and at < low + len(data) for _, low, data in content.pending):
            put(content.cache, at, bytes(durable[at:end]))
        self.simulation.note("rot", self.host.name, self.name, name, at, end - at)
        return f"{name} {at}"

    def lose_file(self) -> str:
        """A file that was written goes whole: emptied, cut to a page, zeroed, or by name; which, and how.

        Its machine is off. "" for nothing done.
        """
        names = [name for name, content in sorted(self.files.items()) if any(content.durable)]
        if not names:
            return ""
        name = self.chance.choice(names)
        how = self.chance.choice(("emptied", "cut", "zeroed", "deleted"))
        content = self.files[name]
        if how == "deleted":
            del self.files[name], self.durable_files[name]
        else:
            if how == "zeroed":
                content.durable = bytearray(len(content.durable))
            else:
                content.durable_size = 0 if how == "emptied" else min(content.size, 4096)
                del content.durable[content.durable_size :]
            content.size = content.durable_size
            content.cache = bytearray(content.durable)
        self.blamed = True
        self.simulation.note("file lost", self.host.name, self.name, name, how)
        return f"{name} {how}"

    def damage_map(self) -> bool:
        """Damage the first map so that opening it sees it; False where there is none."""
        for name in sorted(self.maps):
            self.blamed = True
            self.maps[name].damaged = True
            self.simulation.note("map damaged", self.host.name, self.name, name)
            return True
        return False

    def age_map(self, chance: random.Random) -> bool:
        """Replace one page of the first changed map with older content, in which each pair is sound.

        This is a write that the device confirmed and lost. Its machine is off. False if nothing was done.
        """
        for name in sorted(self.maps):
            kept = self.maps[name]
            keys = sorted({*kept.values, *kept.older})
            changed = [
                at for at, key in enumerate(keys) if kept.values.get(key) != kept.older.get(key)
            ]
            if not changed:
                continue
            pairs = chance.randint(1, PAGE_PAIRS_MAX)
            first = max(0, chance.choice(changed) - chance.randrange(pairs))
            for key in keys[first : first + pairs]:
                kept.values.pop(key, None)
                if key in kept.older:
                    kept.values[key] = kept.older[key]
            kept.keys = sorted(kept.values)
            kept.bytes = sum(len(key) + len(value) for key, value in kept.values.items())
            self.blamed = True
            self.simulation.note("map aged", self.host.name, self.name, name, first, pairs)
            return True
        return False

    # --- what handles do --------------------------------------------------------------------------

    def step(self, what: str, number: int = 0) -> None:
        """A disk step: a crash point, and into the trace hash."""
        self.host.step(what)
        self._steps += 1
        self.simulation.mix(self._steps, number)

    def used_bytes(self) -> int:
        """The files' sizes in sum, less their holes; maps not included."""
        return sum(content.used_bytes for content in self.files.values())

    async def wait(self, incarnation: int) -> None:
        """Let a sync's time pass; raises `HostDown` if the process ended meanwhile.

        Like a thread's work it cannot be cancelled, unless the process is gone.
        """
        faults, chance = self.faults, self.chance
        slow = faults.slow_chance and chance.random() < faults.slow_chance
        low, high = faults.slow_s if slow else faults.sync_s
        ends = max(self.simulation.now + chance.uniform(low, high), self.stalled_until)
        task = trio.lowlevel.current_task()
        done = False

        def finish() -> None:
            if not done:
                trio.lowlevel.reschedule(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            nonlocal done
            if self.host.lives(incarnation):
                return trio.lowlevel.Abort.FAILED
            done = True
            return trio.lowlevel.Abort.SUCCEEDED

        self.simulation.at(ends, finish)
        await trio.lowlevel.wait_task_rescheduled(abort)
        done = True
        self.host.check(incarnation)

    async def sync_content(self, name: str, content: FileContent, incarnation: int) -> None:
        """One fdatasync."""
        covered, size = content.writes, content.size
        number, lost = self._begin_sync(content)
        await self.wait(incarnation)
        self._end_sync(name, content, covered, size, number, lost)

    def sync_content_now(self, name: str, content: FileContent) -> None:
        """One fdatasync on the loop."""
        covered, size = content.writes, content.size
        number, lost = self._begin_sync(content)
        self._end_sync(name, content, covered, size, number, lost)

    def _begin_sync(self, content: FileContent) -> tuple[int, int]:
        self.step("sync", content.writes)
        self.syncs += 1
        return self.syncs, len(content.failed)

    def _end_sync(
        self, name: str, content: FileContent, covered: int, size: int, number: int, lost: int
    ) -> None:
        if (
            len(content.failed) > lost
        ):  # by another sync, meanwhile: its pages may be this one's, too
            raise DiskFailed(f"{name}: input/output error during another sync (simulated)")
        fails = self.faults.failing_syncs > 0
        now_durable = [item for item in content.pending if item[0] <= covered]
        content.pending = [item for item in content.pending if item[0] > covered]
        if fails:
            self.faults.failing_syncs -= 1
            self.blamed = True
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

    def begin(self, what: str, name: str) -> None:
        """Tell the watchers."""
        for watcher in self.watchers:
            watcher.on_begun(self, what, name)

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
        await self.wait(incarnation)
        for kept, pending in [item for item in self._names_pending if item[0] <= number]:
            pending(self.durable_files)  # the directory's journal keeps their order
            self._names_pending = [item for item in self._names_pending if item[0] != kept]
