"""Bugs of one bookie, to be found in its own world (`testing/sim/ledger/bookie_world.py`)."""

import sys
from typing import Any

import trio

from distributedlog.bookie.format import journal_format as jb
from distributedlog.bookie.replay import journal_replay as replay
from distributedlog.bookie.storage.entry_reader import EntryReader
from distributedlog.bookie.storage.group_commit import GroupCommit
from distributedlog.bookie.storage.index import Index
from distributedlog.bookie.storage.journal import Journal
from distributedlog.bookie.store import first_journal_file, index_rebuild, journal_verifier
from distributedlog.bookie.store.add_handler import AddHandler
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.runtime.disk import checksummed_blocks as blocks
from tests.sim.planting import bug, patch


@bug("bookie")
def acknowledge_before_the_sync() -> None:
    """G2: a commit's acks leave while its sync runs."""
    original = Journal._write
    told: dict[int, bool] = {}

    async def write_and_tell(self: Any, block: Any) -> int:
        if self._told is not None and self._offset + block.padded_length < self._limit - 65536:
            told[id(block)] = True
            self._told(block, self.number, self._offset - block.start)
        return await original(self, block)

    async def commit_one(self: Any, on_synced: Any) -> None:
        block = self._buffer.take()
        shift = 0
        self._told = on_synced
        if block.padded_length:
            shift = await self._write(block)
        else:
            await trio.lowlevel.checkpoint()
        self._buffer.synced(block)
        self.counters.commits += 1
        if not told.pop(id(block), False):
            on_synced(block, self.number, shift)

    Journal._told = None  # type: ignore[attr-defined]
    patch(Journal, "_write", write_and_tell)
    patch(Journal, "_commit_one", commit_one)


@bug("bookie")
def fence_answered_before_it_is_durable() -> None:
    """Inv. 11."""
    original = BookieStore.fence

    def fence(self: Any, ledger_id: int, key: bytes, on_fenced: Any) -> None:
        said: list[bool] = []

        def once(ledger: Any, error: Any) -> None:
            if not said:
                said.append(True)
                on_fenced(ledger, error)

        original(self, ledger_id, key, once)
        once(self.ledgers.get_or_make(ledger_id), None)

    patch(BookieStore, "fence", fence)


@bug("bookie")
def fence_kept_in_memory_only() -> None:
    """Inv. 12: a restarted bookie has forgotten it."""

    from distributedlog.bookie.format import journal_format as journal_blocks
    from distributedlog.bookie.ledgers.ledger_table import Ledger

    original = Ledger.state_record

    def state_record(self: Any) -> bytes:
        flags = self.flags
        self.flags &= ~journal_blocks.FENCED
        try:
            return original(self)
        finally:
            self.flags = flags

    patch(Ledger, "state_record", state_record)


@bug("bookie")
def fence_not_asked_by_adds() -> None:
    """G4: adds do not look at the fence."""
    original = AddHandler.refusal

    def refusal(self: Any, stream: Any) -> Any:
        recovery, stream.recovery = stream.recovery, True
        try:
            return original(self, stream)
        finally:
            stream.recovery = recovery

    patch(AddHandler, "refusal", refusal)


@bug("bookie")
def page_cache_trusted_after_a_failed_sync() -> None:
    """H4: what a start finds in the cache is taken for durable and not written again."""
    original = replay.decide

    def decide(found: Any, *, from_sequence: int, recorded_sequence: int = 0) -> Any:
        decision = original(found, from_sequence=from_sequence, recorded_sequence=recorded_sequence)
        durable = [*decision.durable_blocks, *decision.unsynced_blocks]
        return replay.ReplayDecision(
            durable, [], decision.lost_ranges, decision.tail_from - 1, decision.tail_from
        )

    async def no_sync(self: Any, name: str) -> None:
        await trio.lowlevel.checkpoint()

    for module in (journal_verifier, index_rebuild):
        patch(module, "decide", decide)
    patch(first_journal_file.FirstJournalFile, "_sync", no_sync)


@bug("bookie")
def no_digest_check_on_replay() -> None:
    """A torn or rotten block counts if its header looks right."""

    def block_at(
        file_number: int, data: memoryview, seed: int, index: int, file_offset: int
    ) -> Any:
        if len(data) - index < blocks.HEADER_BYTES:
            return None
        _, magic, _, kind, length, payload_bytes, starts, _, sequence, durable_to, number = (
            blocks.HEADER.unpack_from(data, index)
        )
        if magic != blocks.MAGIC or number != file_number:
            return None
        if length != blocks.padded_length(payload_bytes) or index + length > len(data):
            return None
        payload = data[index + blocks.HEADER_BYTES : index + blocks.HEADER_BYTES + payload_bytes]
        return blocks.Block(
            kind, starts, sequence, durable_to, file_number, file_offset, payload, length
        )

    patch(blocks, "block_at", block_at)


@bug("bookie")
def tail_judged_by_bytes() -> None:
    """H3: the first bad block is taken for the torn tail, whatever is known to be synced."""

    def judge(
        blocks_meta: Any, *, from_sequence: int, min_durable_to: int, known_gaps: Any = ()
    ) -> Any:
        expected = from_sequence
        for first, last in sorted([*((at, at) for at, _ in blocks_meta), *known_gaps]):
            if first > expected:
                break
            expected = max(expected, last + 1)
        return blocks.BlockScanResult(
            max(expected, min_durable_to + 1), [], max(expected - 1, min_durable_to)
        )

    patch(blocks, "classify_tail", judge)


@bug("bookie", directed="tests/bookie/replay/test_journal_replay.py")
def old_blocks_after_a_cut_tail_come_back() -> None:
    """H4: what an earlier start left after its tail is replayed by a later one."""

    def keep_all(candidates: Any) -> list[Any]:
        return list(candidates)

    patch(replay, "_drop_overwritten_blocks", keep_all)


@bug("bookie")
def a_duplicate_is_acknowledged_at_once() -> None:
    """H10: the first copy is gathered and not synced."""
    original = AddHandler.add_records

    def take(self: Any, stream: Any, body: memoryview, resume: Any) -> int:
        before = self._stats.duplicates
        taken = original(self, stream, body, resume)
        if self._stats.duplicates > before:
            stream.owner.on_acked([(stream.number, stream.accepted)])
        return taken

    patch(AddHandler, "add_records", take)


@bug("bookie")
def losses_do_not_lead_to_limbo() -> None:
    """Inv. 22: after corruption the bookie denies what it may have held."""

    async def nothing(self: Any) -> None:
        return

    patch(journal_verifier.JournalVerifier, "_into_limbo", nothing)


@bug("bookie")
def a_read_that_is_cut_claims_to_be_complete() -> None:
    """H9: complete_to says the whole range, whatever the byte limit left out."""
    original = EntryReader.collect

    def collect(
        self: Any, ledger: Any, first: int, last: int, bytes_max: int, extent: Any = None
    ) -> Any:
        found = original(self, ledger, first, last, bytes_max, extent)
        if found.parts:
            found.complete_to = last
            found.device_extent = None
        return found

    patch(EntryReader, "collect", collect)


@bug("bookie")
def unsynced_entries_are_acknowledged_by_the_sync_that_runs() -> None:
    """H10, the twin: what was gathered during a sync is acknowledged by it."""
    original = GroupCommit.on_synced

    def on_synced(self: Any, block: Any, file_number: int, shift: int) -> None:
        newest = self._buffer.newest()
        if newest is not None and newest is not block and newest.acks:
            for stream, count in newest.acks.items():
                block.acks[stream] = max(count, block.acks.get(stream, 0))
        original(self, block, file_number, shift)

    patch(GroupCommit, "on_synced", on_synced)


@bug("bookie")
def acks_count_records_that_were_refused() -> None:
    """H1: the count runs ahead of what was gathered."""
    original = AddHandler.add_records

    def take(self: Any, stream: Any, body: memoryview, resume: Any) -> int:
        taken = original(self, stream, body, resume)
        block = self._buffer.newest()
        if block is not None and stream in block.acks:
            block.acks[stream] += 1
        return taken

    patch(AddHandler, "add_records", take)


@bug("bookie")
def the_end_is_where_the_blocks_end() -> None:
    """H80: nobody asks whether the newest file is gone."""
    original = replay.decide

    async def prove_nothing(self: Any, checkpoint: Any) -> None:
        if checkpoint.file_number not in self.names and checkpoint.file_number not in self.removed:
            self.record_loss("the file is gone")

    def decide(found: Any, *, from_sequence: int, recorded_sequence: int = 0) -> Any:
        return original(found, from_sequence=from_sequence)

    patch(journal_verifier.JournalVerifier, "_prove_position", prove_nothing)
    for module in (journal_verifier, index_rebuild):
        patch(module, "decide", decide)


@bug("bookie", seeds=60)
def an_index_of_two_moments_is_accepted() -> None:
    """G4: a page from the past has forgotten a fence, and each of its pairs fits its digest."""

    async def verify(self: Any, next_pause_s: Any = None) -> None:
        await trio.lowlevel.checkpoint()

    patch(Index, "verify", verify)


@bug("bookie")
def what_was_deleted_is_taken_again() -> None:
    """H89: nobody asks for a ledger whose tombstone has ended."""
    patch(AddHandler, "_must_be_looked_up", lambda self, stream: False)


@bug("bookie", seeds=400)
def which_files_are_gone_is_forgotten() -> None:
    """A survivor's word of it is skipped, and not said again."""
    original = jb.file_removed_record

    def said_once(number: int) -> bytes:
        starts = sys._getframe(1).f_globals["__name__"] == first_journal_file.__name__
        return jb.skip_record(0, 0) if starts else original(number)

    patch(jb, "file_removed_record", said_once)
