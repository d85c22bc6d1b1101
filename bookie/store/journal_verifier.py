"""Verify the journal at a start: which blocks count, and whether synced data may be lost.

The end of the blocks does not prove the end of the journal. Three checks prove that nothing synced is
missing. The file at the index's position is complete up to there, the sequences have no gap, and the journal
reaches the durable sequence that is recorded in the metadata quorum.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ...runtime.interfaces.errors import CorruptData
from ...runtime.interfaces.host import Disk
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.events import LOSS
from ..format import entry as entries
from ..format import journal_format as jb
from ..format.compacted_format import CompactedFile, compacted_file_name
from ..format.index_format import IndexCheckpoint, IndexDamaged
from ..format.journal_format import JournalIdentity
from ..ledgers.ledger_table import LIMBO_ALL, Ledger, LedgerTable
from ..replay.compacted_file_scan import find_damage
from ..replay.journal_replay import (
    ReplayDecision,
    ReplayedBlock,
    ReplayedJournal,
    decide,
    open_file,
    read_block_at,
    scan_file,
)
from ..storage.index import Index
from ..storage.ledger_state_snapshot import snapshot_exists

RANGES_SHOWN_MAX = 3
"""The maximum number of missing ranges in a message, which counts the others."""
SEQUENCE_LEAP_MAX = 1 << 40
"""A recorded durable sequence this far beyond the end is not plausible, and is ignored."""

log = get_logger("distributedlog.bookie.store.startup")


@dataclass(frozen=True, slots=True)
class JournalDirectoryListing:
    """The names of the files that a start finds in the journal's directory, by number."""

    journal: dict[int, str]
    compacted: dict[int, str]
    """Including files that are not listed in the journal or the index."""


@dataclass(frozen=True, slots=True)
class VerifiedJournal:
    """The verified journal of a start, from which its first file is made."""

    replay: ReplayedJournal
    checkpoint: IndexCheckpoint | None
    """The position of the index; None if the index was rebuilt."""
    blank_files: set[int]
    removed_files: set[int]
    """The numbers of removed files, which no new file may use."""
    compacted_files: dict[int, CompactedFile]
    state_snapshot: jb.StateSnapshotRef | None
    """A snapshot of states that the head of the first file may name."""
    states: list[bytes]
    """The states that ``state_snapshot`` lacks, as control records."""
    loss_reasons: tuple[str, ...]
    """Why synced data may be lost; empty if none is."""


class JournalVerifier:
    """Verify the journal of one start, while it is replayed into ledgers and index."""

    def __init__(
        self,
        disk: Disk,
        listing: JournalDirectoryListing,
        identity: JournalIdentity,
        recorded_sequence: int,
        sync_point_unknown_reason: str,
        ledgers: LedgerTable,
        index: Index,
    ) -> None:
        self.disk = disk
        self.names, self.compacted_names = listing.journal, listing.compacted
        self.compacted_files: dict[int, CompactedFile] = {}
        """Listed files that exist."""
        self.ledgers = ledgers
        self.index = index
        self.bookie_id, self.seed = identity.bookie_id, identity.seed
        self.has_served = identity.has_served
        """Whether this bookie has served. An empty journal is then a loss, not an interrupted first start."""
        self.recorded_sequence = recorded_sequence
        """The durable sequence that is recorded in the metadata quorum; 0 if there is none."""
        self.removed: set[int] = set()
        self.loss_reasons: list[str] = (
            [sync_point_unknown_reason] if sync_point_unknown_reason else []
        )
        """Why synced data may be lost."""
        self.unreadable_files: set[int] = set()
        """Files that could not be read completely."""
        self.missing_files: set[int] = set()
        """Files that should exist, and do not."""
        self.blank_files: set[int] = set()
        """Files of zeros: preallocated and never used, or the remains of a lost file."""
        self.unsynced_entries: set[tuple[int, int]] = set()
        """Ledgers and entries that are copied before this bookie serves."""

    async def replay(self, checkpoint: IndexCheckpoint) -> ReplayedJournal:
        """Replay the blocks after the index's position, and verify the files.

        Raises:
            IndexDamaged: The index is an older copy.
            ForeignData: Another bookie wrote a file.
            UnsupportedFormat: A newer version wrote a file.
            CorruptData: The content of a valid block is inconsistent.
        """
        self.ledgers.limbo_below, self.ledgers.must_verify_below = (
            checkpoint.limbo_below,
            checkpoint.must_verify_below,
        )
        blocks: list[ReplayedBlock] = []
        for number in sorted(self.names):
            if number >= checkpoint.file_number:
                start = checkpoint.offset if number == checkpoint.file_number else 0
                blocks += await self.scan_blocks(number, start)
        decision = decide(
            blocks,
            from_sequence=checkpoint.first_unindexed_sequence,
            recorded_sequence=self.plausible_recorded_sequence(
                blocks, checkpoint.first_unindexed_sequence
            ),
        )
        self._add_compacted(checkpoint.compacted_files)
        sealed = {number: (first, last) for number, first, last in checkpoint.sealed_files}
        replay = ReplayedJournal(
            decision, sealed, checkpoint.file_number, checkpoint.offset, checkpoint.start_count
        )
        replay.record_files(blocks, decision, checkpoint)
        self.apply_states((*decision.durable_blocks, *decision.unsynced_blocks))
        self.add_unsynced_entries(decision)
        for block in decision.durable_blocks:
            for extent in block.extents:
                await self.index_extent(extent, block.file_number)
        self._check_index()
        await self._prove_position(checkpoint)
        self.check_sealed_files(replay)
        await self.check_compacted_files()
        await self._check_files_before_position(checkpoint)
        return replay

    def _check_index(self) -> None:
        """Check that no removed file has live records, which only an older copy of the index would list."""
        for number, length in sorted(self.index.stored_totals.live_bytes.items()):
            if length and number in self.removed:
                raise IndexDamaged(
                    f"the index is an older copy: it has {length} bytes of records in file {number},"
                    " which was removed"
                )

    async def _prove_position(self, checkpoint: IndexCheckpoint) -> None:
        """Check the file at the index's position, its first block, and the last block before it."""
        number = checkpoint.file_number
        if number in self.removed:
            return
        description = f"journal file {number}, which is indexed up to {checkpoint.offset},"
        if number not in self.names:
            self.missing_files.add(number)
            self.record_loss(f"{description} is missing")
            return
        head = await self._read_block_at(number, 0)
        if head is None or head.head is None or head.sequence != checkpoint.first_sequence:
            self.record_loss(f"{description} does not begin with the expected block")
        elif checkpoint.last_block_offset >= 0:
            last = await self._read_block_at(number, checkpoint.last_block_offset)
            if last is None or last.sequence != checkpoint.first_unindexed_sequence - 1:
                self.record_loss(
                    f"{description} is incomplete there: it was truncated, damaged, or is an older copy"
                )

    async def _read_block_at(self, number: int, offset: int) -> ReplayedBlock | None:
        return await read_block_at(
            self.disk, self.names[number], number, self.seed, self.bookie_id, offset
        )

    async def verify(
        self, replay: ReplayedJournal, checkpoint: IndexCheckpoint | None
    ) -> VerifiedJournal:
        """Finish the verification of the replayed journal. After a loss, all ledgers are in limbo state.

        ``checkpoint`` is the index's position, or None if the index was rebuilt. Raises `LedgerStateUnknown`.
        """
        self._check_missing_blocks(replay.decision)
        if self.loss_reasons:
            await self._drop_empty_files(replay)
            await self._into_limbo()
        base, states = await self._states_for_head(checkpoint)
        return VerifiedJournal(
            replay,
            checkpoint,
            self.blank_files,
            self.removed,
            self.compacted_files,
            base,
            states,
            tuple(self.loss_reasons),
        )

    async def _states_for_head(
        self, checkpoint: IndexCheckpoint | None
    ) -> tuple[jb.StateSnapshotRef | None, list[bytes]]:
        """Return the snapshot that the new file's head may name, and the replayed states that it lacks.

        Without a snapshot, for example after a loss, the head repeats all states. Raises
        `LedgerStateUnknown`.
        """
        snapshot = (
            None
            if checkpoint is None or self.ledgers.limbo_below == LIMBO_ALL
            else checkpoint.state_snapshot
        )
        if snapshot is None or not await snapshot_exists(self.disk, snapshot):
            return None, await self.ledgers.state_records()
        dirty = self.index.dirty_states
        return snapshot, [ledger.state_record() for ledger in dirty if ledger.is_known]

    async def scan_blocks(self, number: int, start: int = 0) -> list[ReplayedBlock]:
        """Return the valid blocks of a file. An unreadable part is a loss."""

        def on_unreadable(error: CorruptData) -> None:
            # An unreadable part is not a torn tail, even at the end of a file: it may have been synced.
            self.record_loss(f"{self.names[number]} cannot be read ({error})", number)

        scanned = await scan_file(
            self.disk,
            self.names[number],
            number,
            self.seed,
            self.bookie_id,
            start,
            on_unreadable=on_unreadable,
        )
        if scanned.is_blank:
            self.blank_files.add(number)
        return scanned.blocks

    def record_loss(self, reason: str, number: int = 0) -> None:
        """Record that synced data may be lost; `verify` then puts all ledgers into limbo state.

        Only the first reason per file is kept.
        """
        if number and number in self.unreadable_files:
            return
        if number:
            self.unreadable_files.add(number)
        if reason not in self.loss_reasons:
            LOSS.emit(
                log, "bookie %s: %s", self.bookie_id, reason, bookie=self.bookie_id, why=reason
            )
            self.loss_reasons.append(reason)

    def plausible_recorded_sequence(self, blocks: list[ReplayedBlock], from_sequence: int) -> int:
        """Return the recorded durable sequence, or 0 if it is not plausible."""
        end = max((block.sequence for block in blocks), default=from_sequence)
        if self.recorded_sequence > end + SEQUENCE_LEAP_MAX:
            self.record_loss(
                f"the cluster has recorded that block {self.recorded_sequence} was synced here, but the"
                f" journal ends at {end}: that cannot be"
            )
            self.recorded_sequence = 0
        return self.recorded_sequence

    def _check_missing_blocks(self, decision: ReplayDecision) -> None:
        """Record the loss of synced blocks that the replay did not find.

        If the last missing block is the one in the cluster's progress record, the directory can be an older
        copy. The reason then states this.
        """
        if not decision.lost_ranges:
            return
        missing = ", ".join(
            f"{first} to {last}" if last > first else f"{first}"
            for first, last in decision.lost_ranges[:RANGES_SHOWN_MAX]
        )
        reason = f"synced blocks of the journal are missing: {missing}"
        if len(decision.lost_ranges) > RANGES_SHOWN_MAX:
            reason += f" and {len(decision.lost_ranges) - RANGES_SHOWN_MAX} more ranges"
        if decision.lost_ranges[-1][1] == decision.durable_to == self.recorded_sequence:
            reason += (
                f"; the cluster has recorded that block {self.recorded_sequence} was synced, so the"
                " bookie has an older copy of its directory, or its newest journal files were lost"
            )
        self.record_loss(reason)

    def _add_compacted(self, file_rows: Iterable[jb.CompactedFileRow]) -> None:
        for row in file_rows:
            self.compacted_files[row[0]] = CompactedFile(*row)

    async def check_compacted_files(self) -> None:
        """Record the loss of listed compacted files that are missing or damaged."""
        for number in [*self.compacted_files]:
            if number in self.removed:
                del self.compacted_files[number]
            elif number not in self.compacted_names:
                del self.compacted_files[number]
                self.missing_files.add(number)
                self.record_loss(f"{compacted_file_name(number)} is missing")
            else:
                damage, is_worthless = await find_damage(
                    self.disk, self.compacted_files[number], self.seed, self.bookie_id
                )
                if damage:
                    self.record_loss(damage, number)
                if is_worthless:
                    del self.compacted_files[number]
                    self.missing_files.add(number)

    def check_sealed_files(self, replay: ReplayedJournal) -> None:
        """Record the loss of sealed files that are missing."""
        for number in self.removed:
            replay.sealed_files.pop(number, None)
        for number in [*replay.sealed_files]:
            if number not in self.names:
                del replay.sealed_files[number]
                self.missing_files.add(number)
                self.record_loss(f"journal file {number} is missing")

    async def _check_files_before_position(self, checkpoint: IndexCheckpoint) -> None:
        """Check length and head of the files before the index's position, which no start reads completely.

        Without this check, only a read would detect that a file lost its content.
        """
        for number, end in sorted(self.index.stored_totals.file_ends.items()):
            if number >= checkpoint.file_number or number not in self.names:
                continue
            try:
                file = await open_file(self.disk, self.names[number])
            except CorruptData as error:
                self.record_loss(str(error), number)
                continue
            size = file.size()
            file.close()
            if size < end:
                self.record_loss(
                    f"journal file {number} ends at {size}, but had records up to {end}"
                )
            elif await self._read_block_at(number, 0) is None:
                self.record_loss(f"journal file {number} does not begin with a valid block")

    async def _drop_empty_files(self, replay: ReplayedJournal) -> None:
        """Drop the extents of files without any content, so that the entries can be copied here again.

        Called only with all ledgers in limbo state, in which absence is never reported. A file that cannot be
        opened is kept, because it may become readable again.
        """
        empty_files = set(self.missing_files)
        for number in sorted({*replay.sealed_files, replay.last_file_number} & set(self.names)):
            if await self._is_empty(number):
                empty_files.add(number)
                replay.remove_file(number)
        self.index.drop_files(empty_files)

    async def _is_empty(self, number: int) -> bool:
        if await self._read_block_at(number, 0) is not None:
            return False
        return not await self.scan_blocks(number) and number not in self.unreadable_files

    def apply_states(self, blocks: Iterable[ReplayedBlock]) -> None:
        """Apply the states, LACs and file lists in these blocks."""
        for block in blocks:
            if block.head is not None:
                self.removed.discard(
                    block.file_number
                )  # an earlier file of this number was removed
                self.ledgers.limbo_below = block.head.limbo_below
                self._raise_must_verify_below(block.head.must_verify_below)
                self._add_compacted(block.head.compacted_files)
            for control in block.controls:
                if control.kind == jb.STATE:
                    ledger = self.ledgers.get_or_make(control.subject)
                    self.ledgers.set_state(ledger, control.flags, control.a, control.key)
                    self.index.mark_state_dirty(ledger)
                elif control.kind == jb.LIMBO_BELOW:
                    self.ledgers.limbo_below = control.subject
                elif control.kind == jb.MUST_VERIFY_BELOW:
                    self._raise_must_verify_below(control.subject)
                elif control.kind == jb.FILE_REMOVED:
                    self.removed.add(control.subject)
                elif control.kind == jb.COMPACTED_ADDED:
                    self.removed.discard(control.subject)
                    self._add_compacted([(control.subject, control.a, control.b, control.flags)])
            for ledger_id, lac in block.lacs.items():
                ledger = self.ledgers.get_or_make(ledger_id)
                if lac > ledger.lac:
                    ledger.lac = lac
                    self.index.mark_state_dirty(ledger)

    def _raise_must_verify_below(self, below: int) -> None:
        self.ledgers.must_verify_below = max(self.ledgers.must_verify_below, below)

    def add_unsynced_entries(self, decision: ReplayDecision) -> None:
        """Make the ledgers of unsynced blocks known before the limbo state is set (inv. 22)."""
        for block in decision.unsynced_blocks:
            for extent in block.extents:
                self._ensure_known(self.ledgers.get_or_make(extent.ledger))
                self.unsynced_entries |= {
                    (extent.ledger, extent.first_entry + n) for n in range(extent.entry_count)
                }

    def _ensure_known(self, ledger: Ledger) -> None:
        """Record a loss if a ledger with an entry has no state, which is written before the entry."""
        if not ledger.deleted and not ledger.is_known:
            self.record_loss("a block with the state of a ledger is missing")
            self.ledgers.set_flags(ledger, ledger.flags)
            self.index.mark_state_dirty(ledger)

    async def index_extent(self, extent: jb.JournalExtent, number: int) -> None:
        """Index an extent. Entries that are already indexed keep their first location."""
        ledger = self.ledgers.get_or_make(extent.ledger)
        if ledger.deleted:
            return
        self._ensure_known(ledger)
        if extent.first_entry > ledger.last_added_entry:
            self.index.add(
                ledger, extent.first_entry, extent.entry_count, number, extent.offset, extent.length
            )
            ledger.last_added_entry = extent.first_entry + extent.entry_count - 1
            return
        last = extent.first_entry + extent.entry_count - 1
        next_extent = self.index.find_next(ledger, extent.first_entry)
        if self.index.find(ledger, extent.first_entry) or (
            next_extent and next_extent.first <= last
        ):
            await self._index_missing_entries(ledger, extent, number)
        else:
            self.index.add(
                ledger, extent.first_entry, extent.entry_count, number, extent.offset, extent.length
            )
            ledger.last_added_entry = max(ledger.last_added_entry, last)

    async def _index_missing_entries(
        self, ledger: Ledger, extent: jb.JournalExtent, number: int
    ) -> None:
        name = compacted_file_name(number) if number in self.compacted_files else self.names[number]
        try:
            file = await open_file(self.disk, name)
            try:
                data = await file.read_in_worker(extent.offset, extent.length)
            finally:
                file.close()
        except CorruptData as error:
            self.record_loss(f"{name} cannot be read ({error})", number)
            return
        position = 0
        for entry in range(extent.first_entry, extent.first_entry + extent.entry_count):
            length = _record_bytes(data, position, ledger.id, entry)
            if not length:  # freed or corrupt; the rest of the extent is not searched (H91)
                if not self._are_all_indexed(
                    ledger, entry, extent.first_entry + extent.entry_count - 1
                ):
                    self.record_loss(
                        f"{name} does not have the entries of ledger {ledger.id} from {entry} on"
                    )
                return
            if self.index.find(ledger, entry) is None:
                self.index.add(ledger, entry, 1, number, extent.offset + position, length)
                ledger.last_added_entry = max(ledger.last_added_entry, entry)
            position += length

    def _are_all_indexed(self, ledger: Ledger, first: int, last: int) -> bool:
        while first <= last:
            extent = self.index.find(ledger, first)
            if extent is None and (ledger.id, first) not in self.unsynced_entries:
                return False
            first = extent.last + 1 if extent is not None else first + 1
        return True

    async def _into_limbo(self) -> None:
        """Put all ledgers into limbo state.

        Lost blocks may have had entries, fences or tombstones of any ledger. All known ledgers stay in memory
        until the next checkpoint has written their states.
        """
        self.ledgers.limbo_below = LIMBO_ALL
        async for page in self.ledgers.state_pages():
            for state in page:
                ledger = self.ledgers.get_or_make(state.ledger_id)
                if not ledger.deleted:
                    self.ledgers.set_flags(ledger, ledger.flags | jb.FENCED | jb.LIMBO)
                    ledger.fence_durable = True  # by the new file's head, before serving
                    self.index.mark_state_dirty(ledger)


def _record_bytes(data: bytes, position: int, ledger_id: int, entry: int) -> int:
    """Return the length of this record at this position; 0 if other bytes are there."""
    if len(data) - position < entries.HEADER_BYTES:
        return 0
    _, length, payload_bytes, _, _, _, ledger, number, _, _ = entries.HEADER.unpack_from(
        data, position
    )
    fits = length == entries.record_bytes(payload_bytes) and position + length <= len(data)
    return int(length) if fits and (ledger, number) == (ledger_id, entry) else 0
