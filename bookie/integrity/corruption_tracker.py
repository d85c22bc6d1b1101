"""Entries that do not read here as they were written: found, noted, and dropped when a good copy is at hand.

A rotten entry stays in the index, so that nobody is told that it is not here: a read of it is damage, which
is no answer. What is noted survives restarts; it may claim too much, for who heals looks again. An entry is
dropped only by `drop`: its ledger is in limbo then, durably and before, so that what is absent is not denied
until the copy is here (inv. 22). So there is no moment at which a crash makes a "no" of it.
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
from ..format.index_format import ROT, ROT_KEY, IndexDamaged, rot_noted
from ..format.record_slices import joined, sound_parts
from ..gc.checkpointer import Checkpointer
from ..ledgers.ledger_table import Ledger
from ..storage.bookie_storage import BookieStorage
from ..storage.group_commit import GroupCommit

PIECE = 64 * 1024
"""Where the device cannot read a run, so much of it counts as unreadable around each bad place."""
DEVICE_ERRORS_MAX = 16
"""Of the device within `DEVICE_ERRORS_S`: beyond it the disk is dying, and is written to no more than it must
(H92)."""
DEVICE_ERRORS_S = 3600.0

log = get_logger("distributedlog.bookie.integrity.corruption_tracker")


@dataclass(frozen=True, slots=True)
class CorruptExtent:
    """A run of which some entries are rotten."""

    run: ExtentLocation
    sound: list[ExtentLocation]
    """Its parts that are sound, ascending."""

    @property
    def rotten(self) -> list[tuple[int, int]]:
        """First and last (inclusive) of its stretches that are not."""
        found = []
        at = self.run.first
        for part in self.sound:
            if part.first > at:
                found.append((at, part.first - 1))
            at = part.last + 1
        if at <= self.run.last:
            found.append((at, self.run.last))
        return found

    @property
    def entries(self) -> int:
        """How many are rotten."""
        return self.run.count - sum(part.count for part in self.sound)


class CorruptionTracker:
    """What has rotted in one bookie's store."""

    def __init__(
        self,
        storage: BookieStorage,
        commits: GroupCommit,
        checkpointer: Checkpointer,
        conditions: NodeConditions,
    ) -> None:
        self._index = storage.index
        self._ledgers = storage.ledgers
        self._files = storage.files
        self._space = storage.space
        self._commits = commits
        self._checkpointer = checkpointer
        self._conditions = conditions
        self._device_errors: deque[float] = deque(maxlen=DEVICE_ERRORS_MAX + 1)
        self.noted = rot_noted(storage.index.kept)
        """Ledger to the stretch (both ends inclusive) in which some entries are rotten, or were."""
        self.stuck: dict[int, str] = {}
        """Ledgers of those without a good copy of some entry anywhere, and what the others said."""
        self.healed_entries = 0
        """Since the start."""
        self.over = RepairCount()
        """Ledgers of which nothing is rotten here any more: mended, deleted, or another bookie's now."""
        self.news = trio.Event()
        """Set when something was noted."""

    @property
    def suspect(self) -> bool:
        """Does the device fail so often that nothing should be healed onto it?"""
        return self._space.suspect

    # --- noting -----------------------------------------------------------------------------------

    def note(self, ledger_id: int, first: int, last: int) -> None:
        """Some of the entries ``first`` to ``last`` do not read as they were written.

        May claim too much. Durable with the next checkpoint; what a crash makes of that is found again.
        """
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.deleted:
            return
        last = min(last, max(ledger.top, first))
        before = self.noted.get(ledger_id)
        if before is not None:
            first, last = min(first, before[0]), max(last, before[1])
        if (first, last) == before:
            return
        if before is None:
            ROTTED.say(
                log,
                "ledger %d: some of entries %d to %d rotted here",
                ledger_id,
                first,
                last,
                ledger=ledger_id,
                first=first,
                last=last,
            )
        self.noted[ledger_id] = first, last
        self._index.keep(ROT_KEY.pack(b"x", ledger_id), ROT.pack(first, last))
        self.news.set()

    def forget(self, ledger_id: int) -> None:
        """Nothing of it is rotten any more, or it is nothing that this bookie should hold."""
        self.stuck.pop(ledger_id, None)
        if self.noted.pop(ledger_id, None) is not None:
            self._index.keep(ROT_KEY.pack(b"x", ledger_id), None)
            self.over.add(trio.current_time())
        if not self.noted:
            self._conditions.clear(Code.DAMAGED_READS)

    def conditions(self) -> list[HealthCondition]:
        """Return the conditions of entries that are corrupt here, or were within the last hour."""
        found = []
        if self.noted:
            found.append(condition(Code.ENTRIES_CORRUPT, ledgers=len(self.noted)))
        if self.stuck:
            cause = next(iter(self.stuck.values()))
            found.append(
                condition(Code.ENTRIES_CORRUPT_WITHOUT_COPY, ledgers=len(self.stuck), cause=cause)
            )
        if self.over.shown(trio.current_time()):
            found.append(condition(Code.ENTRIES_REPAIRED, ledgers=self.over.count))
        return found

    # --- looking ----------------------------------------------------------------------------------

    async def look(self, ledger_id: int, first: int, last: int) -> list[CorruptExtent]:
        """The runs that hold ids ``first`` to ``last`` and are not sound; reads all of their bytes.

        Raises `TooBusy` for a lack of descriptors, `LedgerStateUnknown` where the index is damaged.
        """
        ledger = self._ledgers.get(ledger_id)
        found: list[CorruptExtent] = []
        while ledger is not None and not ledger.deleted and first <= last:
            run = self._run_at(ledger, first)
            if run is None or run.first > last:
                break
            rotten = await self.examine(ledger, run)
            if rotten is not None:
                found.append(rotten)
            first = run.last + 1
        return found

    def _run_at(self, ledger: Ledger, entry: int) -> ExtentLocation | None:
        try:
            return self._index.find(ledger, entry) or self._index.following(ledger, entry)
        except IndexDamaged as error:
            raise self._ledgers.note_damage(ledger.id, error) from error

    async def examine(self, ledger: Ledger, run: ExtentLocation) -> CorruptExtent | None:
        """Read one run: None where all of it is sound, or it is not there any more."""
        data = await self._read(run)
        parts: list[ExtentLocation] = []
        for part in sound_parts(data, ledger.id, run):
            parts.append(part)
            await trio.lowlevel.checkpoint()
        sound = joined(parts)
        if sound == [run]:
            return None
        if ledger.deleted or self._run_at(ledger, run.first) != run:
            return None  # moved or deleted meanwhile: what was read was something else's
        return CorruptExtent(run, sound)

    async def _read(self, run: ExtentLocation) -> bytes:
        """The run's bytes, zeros where the device gives none. Raises `TooBusy`."""
        try:
            file = await self._files.open(run.file_number)
        except CorruptData:
            return b""
        try:
            return await file.read_cold(run.offset, run.length)
        except CorruptData as error:
            self._note_device_error(error)
        pieces = []
        for offset in range(0, run.length, PIECE):
            length = min(PIECE, run.length - offset)
            try:
                file = await self._files.open(run.file_number)
                piece = await file.read_cold(run.offset + offset, length)
            except CorruptData:
                piece = b""
            pieces.append(piece.ljust(length, b"\0"))
        return b"".join(pieces)

    def _note_device_error(self, error: CorruptData) -> None:
        now = trio.current_time()
        self._device_errors.append(now)
        DEVICE_ERROR.say(log, "%s", error, why=str(error))
        if (
            len(self._device_errors) > DEVICE_ERRORS_MAX
            and self._device_errors[0] > now - DEVICE_ERRORS_S
            and not self._space.suspect
        ):
            self._space.suspect = True
            self._space.look()

    # --- dropping ---------------------------------------------------------------------------------

    async def drop(
        self, ledger_id: int, key: bytes, runs: list[CorruptExtent]
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
        self._ledgers.mark(ledger, ledger.flags | jb.FENCED | jb.LIMBO)
        durable = trio.Event()
        self._commits.write_state(ledger, durable.set)
        await durable.wait()
        ledger.fence_durable = True
        same: list[CorruptExtent] = []
        for run in runs:
            if await self.examine(ledger, run.run) == run:
                same.append(run)
            elif not ledger.deleted and self._run_at(ledger, run.run.first) == run.run:  # not moved
                self._note_device_error(
                    CorruptData(f"ledger {ledger_id}: read twice, it is not the same")
                )
        await self._checkpointer.replace_runs(ledger, [(run.run, run.sound) for run in same])
        return same
