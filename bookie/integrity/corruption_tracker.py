"""Entries that do not read here as they were written: found, noted, and dropped when a good copy is at hand.

A rotten entry stays in the index, so that nobody is told that it is not here: a read of it is damage, which
is no answer. What is noted survives restarts; it may claim too much, for who heals looks again. An entry is
dropped only by `drop_corrupt`: its ledger is in limbo then, durably and before, so that what is absent is not
denied until the copy is here (inv. 22). So there is no moment at which a crash makes a "no" of it.
"""

from collections import deque
from dataclasses import dataclass

import trio

from ...runtime.declarations.health_conditions import (
    Code,
    HealthCondition,
    NodeConditions,
    RepairCount,
    condition,
)
from ...runtime.interfaces.errors import CorruptData, NoSuchLedger
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.events import DEVICE_ERROR, ROTTED
from ..format import journal_format as jb
from ..format.extent_map import ExtentLocation
from ..format.index_format import (
    CORRUPTION_KEY,
    CORRUPTION_VALUE,
    IndexDamaged,
    decode_corruption_records,
)
from ..format.record_slices import merge_adjacent, sound_parts
from ..gc.checkpointer import Checkpointer
from ..ledgers.ledger_table import Ledger
from ..storage.bookie_storage import BookieStorage
from ..storage.group_commit import GroupCommit

RETRY_READ_BYTES = 64 * 1024
"""Where the device cannot read a run, so much of it counts as unreadable around each bad place."""
DEVICE_ERRORS_MAX = 16
"""Of the device within `DEVICE_ERRORS_S`: beyond it the disk is dying, and is written to no more than it must
(H92)."""
DEVICE_ERRORS_S = 3600.0

log = get_logger("distributedlog.bookie.integrity.corruption_tracker")


@dataclass(frozen=True, slots=True)
class CorruptExtent:
    """A run of which some entries are rotten."""

    location: ExtentLocation
    sound_parts: list[ExtentLocation]
    """Its parts that are sound, ascending."""

    @property
    def corrupt_ranges(self) -> list[tuple[int, int]]:
        """First and last (inclusive) of its stretches that are not."""
        ranges = []
        next_entry = self.location.first
        for part in self.sound_parts:
            if part.first > next_entry:
                ranges.append((next_entry, part.first - 1))
            next_entry = part.last + 1
        if next_entry <= self.location.last:
            ranges.append((next_entry, self.location.last))
        return ranges

    @property
    def corrupt_entry_count(self) -> int:
        """How many are rotten."""
        return self.location.count - sum(part.count for part in self.sound_parts)


class CorruptionTracker:
    """What has rotted in one bookie's store."""

    def __init__(
        self,
        storage: BookieStorage,
        group_commit: GroupCommit,
        checkpointer: Checkpointer,
        conditions: NodeConditions,
    ) -> None:
        self._index = storage.index
        self._ledgers = storage.ledgers
        self._files = storage.files
        self._space = storage.space
        self._group_commit = group_commit
        self._checkpointer = checkpointer
        self._conditions = conditions
        self._device_errors: deque[float] = deque(maxlen=DEVICE_ERRORS_MAX + 1)
        self.corrupt_ranges = decode_corruption_records(storage.index.extra_values)
        """Ledger to the stretch (both ends inclusive) in which some entries are rotten, or were."""
        self.unrepairable: dict[int, str] = {}
        """Ledgers of those without a good copy of some entry anywhere, and what the others said."""
        self.repaired_entries = 0
        """Since the start."""
        self.repaired_ledgers = RepairCount()
        """Ledgers of which nothing is rotten here any more: mended, deleted, or another bookie's now."""
        self.corruption_recorded = trio.Event()
        """Set when something was noted."""

    @property
    def has_read_errors(self) -> bool:
        """Does the device fail so often that nothing should be healed onto it?"""
        return self._space.suspect

    # --- noting -----------------------------------------------------------------------------------

    def record(self, ledger_id: int, first: int, last: int) -> None:
        """Some of the entries ``first`` to ``last`` do not read as they were written.

        May claim too much. Durable with the next checkpoint; what a crash makes of that is found again.
        """
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.deleted:
            return
        last = min(last, max(ledger.last_added_entry, first))
        previous = self.corrupt_ranges.get(ledger_id)
        if previous is not None:
            first, last = min(first, previous[0]), max(last, previous[1])
        if (first, last) == previous:
            return
        if previous is None:
            ROTTED.emit(
                log,
                "ledger %d: some of entries %d to %d rotted here",
                ledger_id,
                first,
                last,
                ledger=ledger_id,
                first=first,
                last=last,
            )
        self.corrupt_ranges[ledger_id] = first, last
        self._index.put_extra(
            CORRUPTION_KEY.pack(b"x", ledger_id), CORRUPTION_VALUE.pack(first, last)
        )
        self.corruption_recorded.set()

    def clear(self, ledger_id: int) -> None:
        """Nothing of it is rotten any more, or it is nothing that this bookie should hold."""
        self.unrepairable.pop(ledger_id, None)
        if self.corrupt_ranges.pop(ledger_id, None) is not None:
            self._index.put_extra(CORRUPTION_KEY.pack(b"x", ledger_id), None)
            self.repaired_ledgers.add(trio.current_time())
        if not self.corrupt_ranges:
            self._conditions.clear(Code.DAMAGED_READS)

    def conditions(self) -> list[HealthCondition]:
        """Return the conditions of entries that are corrupt here, or were within the last hour."""
        conditions = []
        if self.corrupt_ranges:
            conditions.append(condition(Code.ENTRIES_CORRUPT, ledgers=len(self.corrupt_ranges)))
        if self.unrepairable:
            cause = next(iter(self.unrepairable.values()))
            conditions.append(
                condition(
                    Code.ENTRIES_CORRUPT_WITHOUT_COPY, ledgers=len(self.unrepairable), cause=cause
                )
            )
        if self.repaired_ledgers.is_reported(trio.current_time()):
            conditions.append(condition(Code.ENTRIES_REPAIRED, ledgers=self.repaired_ledgers.count))
        return conditions

    # --- looking ----------------------------------------------------------------------------------

    async def find_corrupt(self, ledger_id: int, first: int, last: int) -> list[CorruptExtent]:
        """The runs that hold ids ``first`` to ``last`` and are not sound; reads all of their bytes.

        Raises `TooBusy` for a lack of descriptors, `LedgerStateUnknown` where the index is damaged.
        """
        ledger = self._ledgers.get(ledger_id)
        corrupt_extents: list[CorruptExtent] = []
        while ledger is not None and not ledger.deleted and first <= last:
            location = self._extent_at_or_after(ledger, first)
            if location is None or location.first > last:
                break
            corrupt = await self.examine(ledger, location)
            if corrupt is not None:
                corrupt_extents.append(corrupt)
            first = location.last + 1
        return corrupt_extents

    def _extent_at_or_after(self, ledger: Ledger, entry: int) -> ExtentLocation | None:
        try:
            return self._index.find(ledger, entry) or self._index.find_next(ledger, entry)
        except IndexDamaged as error:
            raise self._ledgers.record_damage(ledger.id, error) from error

    async def examine(self, ledger: Ledger, location: ExtentLocation) -> CorruptExtent | None:
        """Read one run: None where all of it is sound, or it is not there any more."""
        data = await self._read_extent(location)
        parts: list[ExtentLocation] = []
        for part in sound_parts(data, ledger.id, location):
            parts.append(part)
            await trio.lowlevel.checkpoint()
        sound_extents = merge_adjacent(parts)
        if sound_extents == [location]:
            return None
        if ledger.deleted or self._extent_at_or_after(ledger, location.first) != location:
            return None  # moved or deleted meanwhile: what was read was something else's
        return CorruptExtent(location, sound_extents)

    async def _read_extent(self, location: ExtentLocation) -> bytes:
        """The run's bytes, zeros where the device gives none. Raises `TooBusy`."""
        try:
            file = await self._files.open(location.file_number)
        except CorruptData:
            return b""
        try:
            return await file.read_in_worker(location.offset, location.length)
        except CorruptData as error:
            self._record_device_error(error)
        pieces = []
        for offset in range(0, location.length, RETRY_READ_BYTES):
            length = min(RETRY_READ_BYTES, location.length - offset)
            try:
                file = await self._files.open(location.file_number)
                piece = await file.read_in_worker(location.offset + offset, length)
            except CorruptData:
                piece = b""
            pieces.append(piece.ljust(length, b"\0"))
        return b"".join(pieces)

    def _record_device_error(self, error: CorruptData) -> None:
        now = trio.current_time()
        self._device_errors.append(now)
        DEVICE_ERROR.emit(log, "%s", error, why=str(error))
        if (
            len(self._device_errors) > DEVICE_ERRORS_MAX
            and self._device_errors[0] > now - DEVICE_ERRORS_S
            and not self._space.suspect
        ):
            self._space.suspect = True
            self._space.check()

    # --- dropping ---------------------------------------------------------------------------------

    async def drop_corrupt(
        self, ledger_id: int, key: bytes, candidates: list[CorruptExtent]
    ) -> list[CorruptExtent]:
        """Take what is rotten of these runs out of the index, so that good copies can be added here.

        Call when those were seen elsewhere a moment ago, and not while it has a writer. In limbo it is, and
        fenced, from now on and durably: whoever calls this adds the copies and lifts it. Returns the runs
        that were changed: one that reads otherwise now than before stays as it is.
        Raises `NoSuchLedger`, `WrongLedgerKey`, `DiskFull`: then nothing was dropped.
        """
        ledger = self._ledgers.get_or_make(ledger_id)
        ledger.check_key(key)
        if ledger.deleted:
            raise NoSuchLedger(f"ledger {ledger_id} was deleted")
        self._ledgers.set_flags(ledger, ledger.flags | jb.FENCED | jb.LIMBO)
        durable = trio.Event()
        self._group_commit.write_state(ledger, durable.set)
        await durable.wait()
        ledger.fence_durable = True
        unchanged: list[CorruptExtent] = []
        for candidate in candidates:
            if await self.examine(ledger, candidate.location) == candidate:
                unchanged.append(candidate)
            elif (
                not ledger.deleted
                and self._extent_at_or_after(ledger, candidate.location.first) == candidate.location
            ):  # not moved
                self._record_device_error(
                    CorruptData(f"ledger {ledger_id}: read twice, it is not the same")
                )
        await self._checkpointer.replace_extents(
            ledger, [(candidate.location, candidate.sound_parts) for candidate in unchanged]
        )
        return unchanged
