"""Record corrupt entries, check them again, and drop them when another copy is available.

A corrupt entry stays in the index, so that the bookie never answers that it does not exist. A read of it
raises an error, which proves nothing. The records of corruption survive restarts. They may cover too many
entries, because a repair verifies the entries again. Only `drop_corrupt` drops an entry. Before that, it
durably sets the limbo state of the ledger, so that the bookie gives no negative answers until the copy is
stored (inv. 22). So no crash leads to a negative answer about a stored entry.
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
from ..format.record_slices import merge_adjacent, valid_parts
from ..gc.checkpointer import Checkpointer
from ..ledgers.ledger_table import Ledger
from ..storage.bookie_storage import BookieStorage
from ..storage.group_commit import GroupCommit

RETRY_READ_BYTES = 64 * 1024
"""If the device cannot read an extent, it is read in pieces of this size. Only the failing pieces
are lost."""
DEVICE_ERRORS_MAX = 16
"""With more device errors within `DEVICE_ERRORS_S`, the disk is considered failing, and is written to as
little as possible (H92)."""
DEVICE_ERRORS_S = 3600.0

log = get_logger("distributedlog.bookie.integrity.corruption_tracker")


@dataclass(frozen=True, slots=True)
class CorruptExtent:
    """An extent with some corrupt entries."""

    location: ExtentLocation
    valid_parts: list[ExtentLocation]
    """Ascending."""

    @property
    def corrupt_ranges(self) -> list[tuple[int, int]]:
        """First and last entry (inclusive) of its corrupt ranges."""
        ranges = []
        next_entry = self.location.first
        for part in self.valid_parts:
            if part.first > next_entry:
                ranges.append((next_entry, part.first - 1))
            next_entry = part.last + 1
        if next_entry <= self.location.last:
            ranges.append((next_entry, self.location.last))
        return ranges

    @property
    def corrupt_entry_count(self) -> int:
        """The number of corrupt entries."""
        return self.location.count - sum(part.count for part in self.valid_parts)


class CorruptionTracker:
    """The corrupt entries of one bookie's store."""

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
        """By ledger, the range (both ends inclusive) in which some entries are corrupt, or were."""
        self.unrepairable: dict[int, str] = {}
        """Ledgers of these with an entry that has no valid copy anywhere, and the answers of the other
        bookies."""
        self.repaired_entries = 0
        """The entries that were repaired since the start."""
        self.repaired_ledgers = RepairCount()
        """Ledgers without corrupt entries here any more: repaired, deleted, or moved to another bookie."""
        self.corruption_recorded = trio.Event()

    @property
    def has_read_errors(self) -> bool:
        """Whether the device fails so often that no copies should be repaired onto it."""
        return self._space.has_read_errors

    # --- recording --------------------------------------------------------------------------------

    def record(self, ledger_id: int, first: int, last: int) -> None:
        """Record that some of the entries ``first`` to ``last`` are corrupt.

        The range may be too wide. It is durable with the next checkpoint. Corruption that a crash loses from
        the record is found again.
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
                "ledger %d: some of the entries %d to %d are corrupt here",
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
        """Forget the corruption of a ledger after its repair, or because it belongs to other bookies now."""
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

    # --- checking ---------------------------------------------------------------------------------

    async def find_corrupt(self, ledger_id: int, first: int, last: int) -> list[CorruptExtent]:
        """Read all extents with entries ``first`` to ``last``; return those with corrupt entries.

        Raises:
            TooBusy: No file descriptor is free.
            LedgerStateUnknown: The index is damaged.
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
        """Read one extent; return None if all of it is valid, or if the index no longer has it."""
        data = await self._read_extent(location)
        parts: list[ExtentLocation] = []
        for part in valid_parts(data, ledger.id, location):
            parts.append(part)
            await trio.lowlevel.checkpoint()
        sound_extents = merge_adjacent(parts)
        if sound_extents == [location]:
            return None
        if ledger.deleted or self._extent_at_or_after(ledger, location.first) != location:
            return None  # moved or deleted during the read, so the bytes may be of another extent
        return CorruptExtent(location, sound_extents)

    async def _read_extent(self, location: ExtentLocation) -> bytes:
        """Return the bytes of an extent, with zeros for unreadable pieces. Raises `TooBusy`."""
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
            and not self._space.has_read_errors
        ):
            self._space.has_read_errors = True
            self._space.check()

    # --- dropping ---------------------------------------------------------------------------------

    async def drop_corrupt(
        self, ledger_id: int, key: bytes, candidates: list[CorruptExtent]
    ) -> list[CorruptExtent]:
        """Remove the corrupt entries of these extents from the index, so that valid copies can be added here.

        The ledger must have no writer, and other bookies must just have been found to have the entries. The
        ledger is durably fenced and in limbo state afterwards. The caller adds the copies and ends the limbo
        state.

        Args:
            candidates: Results of `find_corrupt`. An extent that now reads differently is not changed.
        Returns:
            The extents that were changed.
        Raises:
            NoSuchLedger: The ledger was deleted. No entry was dropped.
            WrongLedgerKey: The ledger has another key. No entry was dropped.
            DiskFull: The index could not be written. No entry was dropped.
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
            ):  # the extent was not moved
                self._record_device_error(
                    CorruptData(
                        f"ledger {ledger_id}: two reads of an extent returned different bytes"
                    )
                )
        await self._checkpointer.replace_extents(
            ledger, [(candidate.location, candidate.valid_parts) for candidate in unchanged]
        )
        return unchanged
