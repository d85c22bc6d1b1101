"""Verify the journal at a start: which blocks count, and whether synced data may be lost.

The end of the blocks does not prove the end of the journal. Three checks prove that nothing synced is
missing: the file at the index's position is whole up to there, sequences have no gap, and the journal reaches
the durable sequence that the cluster knows.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ...runtime.interfaces.errors import CorruptData
from ...runtime.interfaces.host import Disk
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.events import LOSS
from ..format import entry as entries
from ..format import journal_format as jb
from ..format.compacted_format import CompactedFile, cold_name
from ..format.index_format import IndexCheckpoint, IndexDamaged
from ..format.journal_format import JournalIdentity
from ..ledgers.ledger_table import LIMBO_ALL, Ledger, LedgerTable
from ..replay.compacted_file_scan import what_is_wrong
from ..replay.journal_replay import (
    ReplayDecision,
    Replayed,
    ReplayedJournal,
    decide,
    open_file,
    read_one,
    scan_file,
)
from ..storage.index import Index
from ..storage.ledger_state_snapshot import is_there

RANGES_NAMED = 3
"""Missing ranges in a message; it counts the others."""
LEAP_MAX = 1 << 40
"""A durable sequence this far beyond the end is not plausible, and is not taken over."""

log = get_logger("distributedlog.bookie.store.startup")


@dataclass(frozen=True, slots=True)
class FilesFound:
    """The names of the files that a start finds in the journal's directory, by number."""

    journal: dict[int, str]
    cold: dict[int, str]
    """Including files that no list names."""


@dataclass(frozen=True, slots=True)
class VerifiedJournal:
    """The verified journal of a start, from which its first file is made."""

    replay: ReplayedJournal
    saved: IndexCheckpoint | None
    """The position of the index; None: it was built again."""
    blank: set[int]
    """Files without any write."""
    removed: set[int]
    """Files that were removed: no file takes the number of one again."""
    cold: dict[int, CompactedFile]
    """The cold files that are listed, and there."""
    base: jb.Base | None
    """A snapshot of states that the head of the first file may name."""
    states: list[bytes]
    """Those that ``base`` lacks, as control records."""
    losses: tuple[str, ...]
    """Why synced data may be lost; empty if none is."""


class JournalVerifier:
    """Verify the journal of one start, while it is replayed into ledgers and index."""

    def __init__(
        self,
        disk: Disk,
        found: FilesFound,
        ledgers: LedgerTable,
        index: Index,
        seed: JournalIdentity,
        witnessed: int,
        doubt: str,
    ) -> None:
        self.disk = disk
        self.names, self.cold_names = found.journal, found.cold
        self.cold: dict[int, CompactedFile] = {}
        """The cold files that are listed, and there."""
        self.ledgers = ledgers
        self.index = index
        self.bookie_id, self.seed = seed.bookie_id, seed.seed
        self.started = seed.started
        """This bookie has served: an empty journal is a loss, not a first start that was cut short."""
        self.witnessed = witnessed
        """The durable sequence that the cluster knows; 0 if it knows of none."""
        self.removed: set[int] = set()
        self.losses: list[str] = [doubt] if doubt else []
        """Why synced data may be lost."""
        self.unreadable: set[int] = set()
        """Files that could not be read everywhere."""
        self.missing: set[int] = set()
        """Files that should be there, and are not."""
        self.blank: set[int] = set()
        """Files of zeros: preallocated and never used, or the rest of a lost one."""
        self.survivors: set[tuple[int, int]] = set()
        """Ledgers and entries that are copied before this bookie serves."""

    async def replay(self, saved: IndexCheckpoint) -> ReplayedJournal:
        """The blocks after the index's position."""
        self.ledgers.limbo_below, self.ledgers.gone_below = saved.limbo_below, saved.gone_below
        found: list[Replayed] = []
        for number in sorted(self.names):
            if number >= saved.file_number:
                start = saved.offset if number == saved.file_number else 0
                found += await self.scan(number, start)
        decision = decide(
            found, from_sequence=saved.sequence, witnessed=self.believed(found, saved.sequence)
        )
        self._list_cold(saved.cold)
        sealed = {number: (first, last) for number, first, last in saved.files}
        replay = ReplayedJournal(
            decision, sealed, saved.file_number, saved.offset, saved.start_count
        )
        replay.note_files(found, decision, saved)
        self.take_states((*decision.durable, *decision.survivors))
        self.know_survivors(decision)
        for block in decision.durable:
            for run in block.runs:
                await self.add_run(run, block.file_number)
        self._check_index()
        await self._prove_position(saved)
        self.miss_files(replay)
        await self.miss_cold()
        await self._miss_older(saved)
        return replay

    def _check_index(self) -> None:
        """Check that no removed file has live records, which only an older copy of the index claims."""
        for number, length in sorted(self.index.in_map.live_bytes.items()):
            if length and number in self.removed:
                raise IndexDamaged(
                    f"it has {length} bytes of records in file {number}, which was removed: an older copy"
                )

    async def _prove_position(self, saved: IndexCheckpoint) -> None:
        """Check the file at the index's position, its first block, and the last block before it."""
        number = saved.file_number
        if number in self.removed:
            return
        where = f"journal file {number}, which the index knows up to {saved.offset},"
        if number not in self.names:
            self.missing.add(number)
            self.lose(f"{where} is gone")
            return
        head = await self._read_one(number, 0)
        if head is None or head.head is None or head.sequence != saved.first_sequence:
            self.lose(f"{where} does not begin as it did")
        elif saved.last_offset >= 0:
            last = await self._read_one(number, saved.last_offset)
            if last is None or last.sequence != saved.sequence - 1:
                self.lose(f"{where} is not whole there: it was cut, damaged, or is an older copy")

    async def _read_one(self, number: int, offset: int) -> Replayed | None:
        return await read_one(
            self.disk, self.names[number], number, self.seed, self.bookie_id, offset
        )

    async def verify(
        self, replay: ReplayedJournal, saved: IndexCheckpoint | None
    ) -> VerifiedJournal:
        """Judge the replayed journal. If synced data may be lost, all ledgers are in limbo afterwards.

        ``saved``: the index's position, or None for one that was built again. Raises `LedgerStateUnknown`.
        """
        self._ask_what_is_missing(replay.decision)
        if self.losses:
            await self._forget_gone_files(replay)
            await self._into_limbo()
        base, states = await self._states_of_head(saved)
        return VerifiedJournal(
            replay, saved, self.blank, self.removed, self.cold, base, states, tuple(self.losses)
        )

    async def _states_of_head(
        self, saved: IndexCheckpoint | None
    ) -> tuple[jb.Base | None, list[bytes]]:
        """Return the base that the new file's head may name, and the replayed states that it lacks.

        Without a base, for example after a loss, the head repeats all states. Raises `LedgerStateUnknown`.
        """
        base = None if saved is None or self.ledgers.limbo_below == LIMBO_ALL else saved.base
        if base is None or not await is_there(self.disk, base):
            return None, await self.ledgers.state_records()
        dirty = self.index.dirty_states
        return base, [ledger.state_record() for ledger in dirty if ledger.stored]

    async def scan(self, number: int, start: int = 0) -> list[Replayed]:
        """Return the valid blocks of a file. An unreadable part is a loss."""

        def on_unreadable(error: CorruptData) -> None:
            # Not a torn tail, even at the end of a file: the unreadable part may have been synced.
            self.lose(f"{self.names[number]} cannot be read ({error})", number)

        scanned = await scan_file(
            self.disk,
            self.names[number],
            number,
            self.seed,
            self.bookie_id,
            start,
            on_unreadable=on_unreadable,
        )
        if scanned.blank:
            self.blank.add(number)
        return scanned.blocks

    def lose(self, reason: str, number: int = 0) -> None:
        """Note that synced data may be lost. Only the first reason of each file counts."""
        if number and number in self.unreadable:
            return
        if number:
            self.unreadable.add(number)
        if reason not in self.losses:
            LOSS.say(
                log, "bookie %s: %s", self.bookie_id, reason, bookie=self.bookie_id, why=reason
            )
            self.losses.append(reason)

    def believed(self, found: list[Replayed], from_sequence: int) -> int:
        """Return the durable sequence that the cluster knows, or 0 if it is not plausible."""
        end = max((block.sequence for block in found), default=from_sequence)
        if self.witnessed > end + LEAP_MAX:
            self.lose(
                f"the cluster says that block {self.witnessed} was synced here, and the journal goes to"
                f" {end}: that cannot be"
            )
            self.witnessed = 0
        return self.witnessed

    def _ask_what_is_missing(self, decision: ReplayDecision) -> None:
        if not decision.corrupt:
            return
        missing = ", ".join(
            f"{first} to {last}" if last > first else f"{first}"
            for first, last in decision.corrupt[:RANGES_NAMED]
        )
        reason = f"blocks of the journal that were synced are gone: {missing}"
        if len(decision.corrupt) > RANGES_NAMED:
            reason += f" and {len(decision.corrupt) - RANGES_NAMED} ranges more"
        if decision.corrupt[-1][1] == decision.durable_to == self.witnessed:
            reason += (
                f"; it had told the cluster that block {self.witnessed} was synced: this is an older"
                " copy of its directory, or its newest journal files were lost"
            )
        self.lose(reason)

    def _list_cold(self, listed: Iterable[jb.ColdRow]) -> None:
        for row in listed:
            self.cold[row[0]] = CompactedFile(*row)

    async def miss_cold(self) -> None:
        """Note the loss of listed cold files that are missing or damaged."""
        for number in [*self.cold]:
            if number in self.removed:
                del self.cold[number]
            elif number not in self.cold_names:
                del self.cold[number]
                self.missing.add(number)
                self.lose(f"{cold_name(number)} is gone")
            else:
                wrong, all_gone = await what_is_wrong(
                    self.disk, self.cold[number], self.seed, self.bookie_id
                )
                if wrong:
                    self.lose(wrong, number)
                if all_gone:
                    del self.cold[number]
                    self.missing.add(number)

    def miss_files(self, replay: ReplayedJournal) -> None:
        """Note the loss of sealed files that are missing."""
        for number in self.removed:
            replay.sealed.pop(number, None)
        for number in [*replay.sealed]:
            if number not in self.names:
                del replay.sealed[number]
                self.missing.add(number)
                self.lose(f"journal file {number} is gone")

    async def _miss_older(self, saved: IndexCheckpoint) -> None:
        """Check length and head of the files before the index's position, which no start reads in full.

        Without this check, the loss of an emptied file would be noticed only by a read.
        """
        for number, end in sorted(self.index.in_map.file_ends.items()):
            if number >= saved.file_number or number not in self.names:
                continue
            try:
                file = await open_file(self.disk, self.names[number])
            except CorruptData as error:
                self.lose(str(error), number)
                continue
            size = file.size()
            file.close()
            if size < end:
                self.lose(f"journal file {number} ends at {size}, and held records up to {end}")
            elif await self._read_one(number, 0) is None:
                self.lose(f"journal file {number} does not begin as it did")

    async def _forget_gone_files(self, replay: ReplayedJournal) -> None:
        """Drop the runs of files without any content, so that the entries can be copied here again.

        Called only with all ledgers in limbo, where absence is no answer. A file that cannot be opened may
        become readable again.
        """
        gone = set(self.missing)
        for number in sorted({*replay.sealed, replay.number} & set(self.names)):
            if await self._is_gone(number):
                gone.add(number)
                replay.leave_out(number)
        self.index.forget_files(gone)

    async def _is_gone(self, number: int) -> bool:
        if await self._read_one(number, 0) is not None:
            return False
        return not await self.scan(number) and number not in self.unreadable

    def take_states(self, blocks: Iterable[Replayed]) -> None:
        """Take over states, LACs and file lists of these blocks."""
        for block in blocks:
            if block.head is not None:
                self.removed.discard(block.file_number)  # another file of this number was, before
                self.ledgers.limbo_below = block.head.limbo_below
                self._end_tombstones(block.head.gone_below)
                self._list_cold(block.head.cold)
            for control in block.controls:
                if control.kind == jb.STATE:
                    ledger = self.ledgers.get_or_make(control.subject)
                    self.ledgers.set_state(ledger, control.flags, control.a, control.key)
                    self.index.note_state(ledger)
                elif control.kind == jb.LIMBO_BELOW:
                    self.ledgers.limbo_below = control.subject
                elif control.kind == jb.GONE_BELOW:
                    self._end_tombstones(control.subject)
                elif control.kind == jb.FILE_REMOVED:
                    self.removed.add(control.subject)
                elif control.kind == jb.COLD_ADDED:
                    self.removed.discard(control.subject)
                    self._list_cold([(control.subject, control.a, control.b, control.flags)])
            for ledger_id, lac in block.lacs.items():
                ledger = self.ledgers.get_or_make(ledger_id)
                if lac > ledger.lac:
                    ledger.lac = lac
                    self.index.note_state(ledger)

    def _end_tombstones(self, below: int) -> None:
        self.ledgers.gone_below = max(self.ledgers.gone_below, below)

    def know_survivors(self, decision: ReplayDecision) -> None:
        """Make the ledgers of survivors known before limbo is marked (inv. 22)."""
        for block in decision.survivors:
            for run in block.runs:
                self._know(self.ledgers.get_or_make(run.ledger))
                self.survivors |= {(run.ledger, run.first + n) for n in range(run.count)}

    def _know(self, ledger: Ledger) -> None:
        """Note a loss if a ledger with an entry has no state: the state precedes the entry."""
        if not ledger.deleted and not ledger.stored:
            self.lose("a block with the state of a ledger is gone")
            self.ledgers.mark(ledger, ledger.flags)
            self.index.note_state(ledger)

    async def add_run(self, run: jb.JournalExtent, number: int) -> None:
        """Index a run. IDs that are indexed already keep their first place."""
        ledger = self.ledgers.get_or_make(run.ledger)
        if ledger.deleted:
            return
        self._know(ledger)
        if run.first > ledger.top:
            self.index.add(ledger, run.first, run.count, number, run.offset, run.length)
            ledger.top = run.first + run.count - 1
            return
        last = run.first + run.count - 1
        following = self.index.following(ledger, run.first)
        if self.index.find(ledger, run.first) or (following and following.first <= last):
            await self._add_missing(ledger, run, number)
        else:
            self.index.add(ledger, run.first, run.count, number, run.offset, run.length)
            ledger.top = max(ledger.top, last)

    async def _add_missing(self, ledger: Ledger, run: jb.JournalExtent, number: int) -> None:
        name = cold_name(number) if number in self.cold else self.names[number]
        try:
            file = await open_file(self.disk, name)
            try:
                data = await file.read_cold(run.offset, run.length)
            finally:
                file.close()
        except CorruptData as error:
            self.lose(f"{name} cannot be read ({error})", number)
            return
        position = 0
        for entry in range(run.first, run.first + run.count):
            length = _record_bytes(data, position, ledger.id, entry)
            if not length:  # punched or corrupt; the rest of the run is not searched (H91)
                if not self._is_all_here(ledger, entry, run.first + run.count - 1):
                    self.lose(f"{name} does not hold ledger {ledger.id} from entry {entry} on")
                return
            if self.index.find(ledger, entry) is None:
                self.index.add(ledger, entry, 1, number, run.offset + position, length)
                ledger.top = max(ledger.top, entry)
            position += length

    def _is_all_here(self, ledger: Ledger, first: int, last: int) -> bool:
        while first <= last:
            found = self.index.find(ledger, first)
            if found is None and (ledger.id, first) not in self.survivors:
                return False
            first = found.last + 1 if found is not None else first + 1
        return True

    async def _into_limbo(self) -> None:
        """Put all ledgers in limbo: lost blocks may have held entries, fences or tombstones of any.

        All known ledgers stay in memory until the checkpoint that follows has written this.
        """
        self.ledgers.limbo_below = LIMBO_ALL
        async for page in self.ledgers.states():
            for state in page:
                ledger = self.ledgers.get_or_make(state.ledger_id)
                if not ledger.deleted:
                    self.ledgers.mark(ledger, ledger.flags | jb.FENCED | jb.LIMBO)
                    ledger.fence_durable = True  # by the new file's head, before serving
                    self.index.note_state(ledger)


def _record_bytes(data: bytes, position: int, ledger_id: int, entry: int) -> int:
    """Return the length of this record at this position; 0 if other bytes are there."""
    if len(data) - position < entries.HEADER_BYTES:
        return 0
    _, length, payload_bytes, _, _, _, ledger, number, _, _ = entries.HEADER.unpack_from(
        data, position
    )
    fits = length == entries.record_bytes(payload_bytes) and position + length <= len(data)
    return int(length) if fits and (ledger, number) == (ledger_id, entry) else 0
