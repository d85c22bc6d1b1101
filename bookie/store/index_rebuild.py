"""Rebuild a lost or damaged index from the journal, the compacted files and the states (H7).

Extents are read from the footers of the files, and from the blocks of a file without a footer. States are
read from the newest complete file head, or from the snapshot that it names.
"""

from ...runtime.interfaces.errors import CorruptData
from ..format import journal_format as jb
from ..format.compacted_format import CompactedFile, compacted_file_name
from ..replay.compacted_file_scan import read_compacted_footer, scan_records
from ..replay.journal_replay import (
    ReplayedBlock,
    ReplayedJournal,
    decide,
    is_in_ranges,
    open_file,
    read_footer,
    skipped_ranges,
)
from ..storage.ledger_state_snapshot import read_snapshot
from .journal_verifier import JournalVerifier


class IndexRebuild:
    """Fill an empty index at a start, from the files that `JournalVerifier` accepts."""

    def __init__(self, verifier: JournalVerifier) -> None:
        self._verifier = verifier
        self._disk = verifier.disk
        self._file_names = verifier.names
        self._ledgers = verifier.ledgers
        self._index = verifier.index
        self._dead_below = 0
        """All states are known, so extents of unknown ledgers below this ID are dead, not lost."""

    async def rebuild(self) -> ReplayedJournal:
        """Add all extents and states, and return the replayed journal (H7)."""
        verifier = self._verifier
        if not self._file_names:
            if verifier.has_served:
                verifier.record_loss("there is no journal file, and no index")
            decision = decide(
                [], from_sequence=1, recorded_sequence=verifier.plausible_recorded_sequence([], 1)
            )
            return ReplayedJournal(decision, {}, 0, 0, 0)
        scanned, base_file = await self._scan_to_newest_head()
        all_blocks = [block for number in sorted(scanned) for block in scanned[number]]
        if base_file is None and (verifier.has_served or all_blocks):
            verifier.record_loss("no journal file has a complete head, and there is no index")
        head_block = scanned[base_file][0] if base_file is not None else None
        first_sequence = (
            head_block.sequence if head_block else min((b.sequence for b in all_blocks), default=1)
        )
        head = head_block.head if head_block else None
        if head is not None and head.state_snapshot is not None:
            first_sequence = min(
                first_sequence,
                await self._scan_back_to(head.state_snapshot.next_sequence, head, scanned),
            )
            all_blocks = [block for number in sorted(scanned) for block in scanned[number]]
            # Before the blocks are applied, which have newer versions of some of these states.
            await self._load_state_snapshot(head.state_snapshot)
        decision = decide(
            all_blocks,
            from_sequence=first_sequence,
            recorded_sequence=verifier.plausible_recorded_sequence(all_blocks, first_sequence),
        )
        sealed_files = {number: (a, b) for number, a, b in head.sealed_files} if head else {}
        replay = ReplayedJournal(decision, sealed_files, base_file or 0, 0, 0)
        replay.record_files(all_blocks, decision, None)
        if head is not None:
            self._ledgers.limbo_below, self._ledgers.must_verify_below = (
                head.limbo_below,
                head.must_verify_below,
            )
        verifier.apply_states((*decision.durable_blocks, *decision.unsynced_blocks))
        verifier.add_unsynced_entries(decision)
        await self._index_all_files(replay, set(scanned))
        verifier.check_sealed_files(replay)
        return replay

    async def _scan_to_newest_head(self) -> tuple[dict[int, list[ReplayedBlock]], int | None]:
        """Read the journal files backward to the newest complete head with all blocks before it synced.

        Returns:
            The blocks of the files that were read, by file number. The file with this head. If no head has
            all blocks before it synced, the newest file with a complete head; None if no file has one.
        """
        scanned: dict[int, list[ReplayedBlock]] = {}
        base_file: int | None = None
        for number in sorted(self._file_names, reverse=True):
            scanned[number] = await self._verifier.scan_blocks(number)
            if _has_complete_head(scanned[number]):
                base_file = number if base_file is None else base_file
                if _all_before_is_durable(scanned, number):
                    base_file = number
                    break
        return scanned, base_file

    async def _index_all_files(self, replay: ReplayedJournal, scanned_files: set[int]) -> None:
        """Add the extents of the compacted files, the sealed journal files and the replayed blocks."""
        verifier, decision = self._verifier, replay.decision
        removed = verifier.removed
        self._dead_below = (
            0 if decision.lost_ranges or verifier.loss_reasons else self._ledgers.must_verify_below
        )
        await verifier.check_compacted_files()
        unpunched, punched = await self._compacted_newest_first()
        for compacted in unpunched:
            await self._index_compacted_file(compacted)
        skipped = skipped_ranges((*decision.durable_blocks, *decision.unsynced_blocks))
        for number in sorted(set(self._file_names) - scanned_files - removed):
            if number in replay.sealed_files:
                await self._index_journal_file(number, replay.sealed_files[number], skipped)
        for block in decision.durable_blocks:
            for extent in block.extents:
                await verifier.index_extent(extent, block.file_number)
        for compacted in punched:
            await self._index_compacted_file(compacted)

    async def _compacted_newest_first(self) -> tuple[list[CompactedFile], list[CompactedFile]]:
        """Return the compacted files without and with freed pages, each newest first.

        The first indexed location of an entry is kept. The footer of a file with freed pages also lists the
        extents in these pages. Their records were moved to a newer compacted file, or copied to the journal
        again.
        """
        unpunched: list[CompactedFile] = []
        punched: list[CompactedFile] = []
        for _, compacted in sorted(self._verifier.compacted_files.items(), reverse=True):
            try:
                file = await open_file(self._disk, compacted_file_name(compacted.number))
            except CorruptData:
                punched.append(compacted)
                continue
            has_holes = file.allocated_bytes() < compacted.length
            file.close()
            (punched if has_holes else unpunched).append(compacted)
        return unpunched, punched

    async def _scan_back_to(
        self, position: int, head: jb.Head, scanned: dict[int, list[ReplayedBlock]]
    ) -> int:
        """Read the files from the one with ``position`` on; return the first sequence of that file."""
        first_sequence = 1 << 63
        for number, first_in_file, last_in_file in head.sealed_files:
            if last_in_file >= position:
                first_sequence = min(first_sequence, first_in_file)
                if number in self._file_names and number not in scanned:
                    scanned[number] = await self._verifier.scan_blocks(number)
        return first_sequence

    async def _load_state_snapshot(self, snapshot: jb.StateSnapshotRef) -> None:
        """Load the states that no journal file repeats. An older snapshot would lack fences (H88)."""
        try:
            for chunk in await read_snapshot(self._disk, snapshot, self._verifier.seed):
                for state in jb.decode_controls(memoryview(chunk)):
                    ledger = self._ledgers.get_or_make(state.subject)
                    self._ledgers.set_state(ledger, state.flags, state.a, state.key)
                    self._index.mark_state_dirty(ledger)
        except CorruptData as error:
            self._verifier.record_loss(f"the states of the ledgers cannot be read ({error})")

    async def _index_journal_file(
        self,
        number: int,
        sequences: tuple[int, int],
        skipped: list[tuple[int, int]],
    ) -> None:
        footer = await read_footer(
            self._disk, self._file_names[number], number, self._verifier.seed
        )
        if footer is not None:
            for extent in footer[1]:
                await self._index_if_live(extent, number)
            return
        scanned = await self._verifier.scan_blocks(number)
        skipped = [*skipped, *skipped_ranges(scanned)]
        expected_sequences = [
            n for n in range(sequences[0], sequences[1] + 1) if not is_in_ranges(n, skipped)
        ]
        blocks = [
            block
            for block in scanned
            if sequences[0] <= block.sequence <= sequences[1]
            and not is_in_ranges(block.sequence, skipped)
        ]
        if len(blocks) != len(expected_sequences):
            self._verifier.record_loss(
                f"{len(expected_sequences) - len(blocks)} blocks of {self._file_names[number]} are missing"
            )
        for block in blocks:
            for extent in block.extents:
                await self._index_if_live(extent, number)

    async def _index_if_live(self, extent: jb.JournalExtent, number: int) -> None:
        """Add an extent that is older than the states.

        If its ledger has no state, it was deleted or is lost.
        """
        ledger = self._ledgers.get(extent.ledger)
        if extent.ledger >= self._dead_below or (ledger is not None and ledger.is_known):
            await self._verifier.index_extent(extent, number)

    async def _index_compacted_file(self, compacted: CompactedFile) -> None:
        """Add the extents of a compacted file.

        Dead ones belong to deleted ledgers, or are in another file as well.
        """
        extents = await read_compacted_footer(self._disk, compacted, self._verifier.seed)
        if extents is not None:
            for extent in extents:
                await self._index_if_live(extent, compacted.number)
            return
        self._verifier.record_loss(
            f"{compacted_file_name(compacted.number)} has no valid footer, and there is no index"
        )
        async for ledger_id, location in scan_records(self._disk, compacted):
            extent = jb.JournalExtent(
                ledger_id, location.first, location.count, location.offset, location.length
            )
            await self._index_if_live(extent, compacted.number)


def _all_before_is_durable(scanned: dict[int, list[ReplayedBlock]], number: int) -> bool:
    """Whether all blocks before a complete head were synced.

    A start writes its head before the copies of unsynced blocks. If that start was killed and an unsynced
    block was lost from the page cache, only the head before it is complete (H4).
    """
    head = scanned[number][0]
    highest_durable = max(
        block.durable_to for file_blocks in scanned.values() for block in file_blocks
    )
    return head.durable_to >= head.sequence - 1 or highest_durable >= head.sequence


def _has_complete_head(file_blocks: list[ReplayedBlock]) -> bool:
    """Whether a file begins with its head and all states that belong to it."""
    if not file_blocks or file_blocks[0].head is None:
        return False
    state_count = file_blocks[0].head.state_blocks
    states = file_blocks[1 : 1 + state_count]
    return len(states) == state_count and all(
        block.sequence == file_blocks[0].sequence + position
        for position, block in enumerate(states, 1)
    )
