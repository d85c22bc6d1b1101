"""Rebuild a lost or damaged index from the journal, the cold files and the states (H7).

Runs come from the footers of the files, and from their blocks where a file has none. States come from the
newest file head that is whole, or from the snapshot that it names.
"""

from ...runtime.interfaces.errors import CorruptData
from ..format import journal_format as jb
from ..format.compacted_format import CompactedFile, cold_name
from ..replay.compacted_file_scan import find_records, read_compacted_footer
from ..replay.journal_replay import (
    Replayed,
    ReplayedJournal,
    decide,
    is_within,
    open_file,
    read_footer,
    skipped_ranges,
)
from ..storage.ledger_state_snapshot import read_base
from .journal_verifier import JournalVerifier


class IndexRebuild:
    """Fill an empty index at a start, from the files that `JournalVerifier` accepts."""

    def __init__(self, verifier: JournalVerifier) -> None:
        self._verifier = verifier
        self._disk = verifier.disk
        self._names = verifier.names
        self._ledgers = verifier.ledgers
        self._index = verifier.index
        self._ended_below = 0
        """All states are known, so runs of unknown ledgers below this ID are dead, not lost."""

    async def rebuild(self) -> ReplayedJournal:
        """Add all runs and states, and return the replayed journal (H7)."""
        verifier = self._verifier
        if not self._names:
            if verifier.started:
                verifier.lose("there is no journal file, and no index")
            decision = decide([], from_sequence=1, witnessed=verifier.believed([], 1))
            return ReplayedJournal(decision, {}, 0, 0, 0)
        scanned: dict[int, list[Replayed]] = {}
        base: int | None = None
        for number in sorted(self._names, reverse=True):
            scanned[number] = await verifier.scan(number)
            if _whole_head(scanned[number]):
                base = number if base is None else base
                if _all_before_is_durable(scanned, number):
                    base = number
                    break
        found = [block for number in sorted(scanned) for block in scanned[number]]
        if base is None and (verifier.started or found):
            verifier.lose("no journal file has a whole head, and there is no index")
        head_block = scanned[base][0] if base is not None else None
        first = head_block.sequence if head_block else min((b.sequence for b in found), default=1)
        head = head_block.head if head_block else None
        if head is not None and head.base is not None:
            first = min(first, await self._scan_back_to(head.base.position, head, scanned))
            found = [block for number in sorted(scanned) for block in scanned[number]]
            await self._take_base(
                head.base
            )  # blocks before its position repeat some of these states
        decision = decide(found, from_sequence=first, witnessed=verifier.believed(found, first))
        sealed = {number: (a, b) for number, a, b in head.files} if head else {}
        replay = ReplayedJournal(decision, sealed, base or 0, 0, 0)
        replay.note_files(found, decision, None)
        if head is not None:
            self._ledgers.limbo_below, self._ledgers.gone_below = head.limbo_below, head.gone_below
        verifier.take_states((*decision.durable, *decision.survivors))
        verifier.know_survivors(decision)
        removed = verifier.removed
        self._ended_below = 0 if decision.corrupt or verifier.losses else self._ledgers.gone_below
        await verifier.miss_cold()
        whole, with_holes = await self._cold_in_order()
        for cold in whole:
            await self._rebuild_cold(cold)
        skipped = skipped_ranges((*decision.durable, *decision.survivors))
        for number in sorted(set(self._names) - set(scanned) - removed):
            if number in sealed:
                await self._rebuild_file(number, sealed[number], skipped)
        for block in decision.durable:
            for run in block.runs:
                await verifier.add_run(run, block.file_number)
        for cold in with_holes:
            await self._rebuild_cold(cold)
        verifier.miss_files(replay)
        return replay

    async def _cold_in_order(self) -> tuple[list[CompactedFile], list[CompactedFile]]:
        """Return the whole cold files and those with punched holes, each with the newest first.

        The first run of an entry keeps its place. A footer still names punched runs, whose records were moved
        to a newer cold file, or were copied to the journal again.
        """
        whole: list[CompactedFile] = []
        with_holes: list[CompactedFile] = []
        for _, cold in sorted(self._verifier.cold.items(), reverse=True):
            try:
                file = await open_file(self._disk, cold_name(cold.number))
            except CorruptData:
                with_holes.append(cold)
                continue
            holes = file.allocated_bytes() < cold.length
            file.close()
            (with_holes if holes else whole).append(cold)
        return whole, with_holes

    async def _scan_back_to(
        self, position: int, head: jb.Head, scanned: dict[int, list[Replayed]]
    ) -> int:
        """Read the files from the one that holds ``position``; return the first sequence of that one."""
        first = 1 << 63
        for number, begins, last in head.files:
            if last >= position:
                first = min(first, begins)
                if number in self._names and number not in scanned:
                    scanned[number] = await self._verifier.scan(number)
        return first

    async def _take_base(self, base: jb.Base) -> None:
        """Take the states that no journal file repeats. An older base would lack fences (H88)."""
        try:
            for chunk in await read_base(self._disk, base, self._verifier.seed):
                for state in jb.controls_of(memoryview(chunk)):
                    ledger = self._ledgers.get_or_make(state.subject)
                    self._ledgers.set_state(ledger, state.flags, state.a, state.key)
                    self._index.note_state(ledger)
        except CorruptData as error:
            self._verifier.lose(f"the states of the ledgers cannot be read ({error})")

    async def _rebuild_file(
        self,
        number: int,
        span: tuple[int, int],
        skipped: list[tuple[int, int]],
    ) -> None:
        footer = await read_footer(self._disk, self._names[number], number, self._verifier.seed)
        if footer is not None:
            for run in footer[1]:
                await self._add_old_run(run, number)
            return
        scanned = await self._verifier.scan(number)
        skipped = [*skipped, *skipped_ranges(scanned)]
        counting = [n for n in range(span[0], span[1] + 1) if not is_within(n, skipped)]
        blocks = [
            block
            for block in scanned
            if span[0] <= block.sequence <= span[1] and not is_within(block.sequence, skipped)
        ]
        if len(blocks) != len(counting):
            self._verifier.lose(
                f"{len(counting) - len(blocks)} blocks of {self._names[number]} are gone"
            )
        for block in blocks:
            for run in block.runs:
                await self._add_old_run(run, number)

    async def _add_old_run(self, run: jb.JournalExtent, number: int) -> None:
        """Add a run that is older than the states. Without a state, its ledger was deleted or is lost."""
        known = self._ledgers.get(run.ledger)
        if run.ledger >= self._ended_below or (known is not None and known.stored):
            await self._verifier.add_run(run, number)

    async def _rebuild_cold(self, cold: CompactedFile) -> None:
        """Add the runs of a cold file. Dead ones belong to deleted ledgers, or are in another file too."""
        runs = await read_compacted_footer(self._disk, cold, self._verifier.seed)
        if runs is not None:
            for run in runs:
                at = run.at
                found = jb.JournalExtent(run.ledger, at.first, at.count, at.offset, at.length)
                await self._add_old_run(found, cold.number)
            return
        self._verifier.lose(f"{cold_name(cold.number)} has no sound footer, and there is no index")
        async for ledger_id, at in find_records(self._disk, cold):
            found = jb.JournalExtent(ledger_id, at.first, at.count, at.offset, at.length)
            await self._add_old_run(found, cold.number)


def _all_before_is_durable(scanned: dict[int, list[Replayed]], number: int) -> bool:
    """Whether everything before a whole head was synced.

    A start writes its head before the copies of survivors. If that start was killed and the cache lost a
    survivor, only the head before it is complete (H4).
    """
    head = scanned[number][0]
    known = max(block.durable_to for found in scanned.values() for block in found)
    return head.durable_to >= head.sequence - 1 or known >= head.sequence


def _whole_head(found: list[Replayed]) -> bool:
    """Whether a file begins with its head and all the states that belong to it."""
    if not found or found[0].head is None:
        return False
    wanted = found[0].head.state_blocks
    states = found[1 : 1 + wanted]
    return len(states) == wanted and all(
        block.sequence == found[0].sequence + place for place, block in enumerate(states, 1)
    )
