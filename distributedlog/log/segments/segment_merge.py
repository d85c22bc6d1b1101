"""Merge small segments: many ledgers become one, without a change for readers (G5).

The entries of consecutive closed segments, including control entries, are copied verbatim into one ledger.
Then each segment's record has that ledger and the segment's first entry in it. Every DLSN, sequence ID,
transaction ID and byte stays the same. The address of an entry is (incarnation, segment, entry), and a ledger
ID is only a hint (H157).

The order is fixed, and the copies are verified before any source is dropped (H158):

1. Write a staged ledger, confirmed by its whole write quorum, and close it.
2. Read each replica of it back and compare it with the entries read from the sources.
3. Run one transaction. It compares the log's state, each member's record and the ledger's record. It also
   writes the state again, so that other clients that compare it must read it again.
4. The old ledgers are recorded as replaced (`replaced_ledgers.py`) and kept for a while.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace

import trio
import xxhash

from ...metadata.model.interface import Scan
from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    LogNotFound,
    NoSuchEntry,
    NoSuchLedger,
    OutcomeUnknown,
    VersionConflict,
    WriteFailed,
)
from ...runtime.interfaces.log_lines import get_logger
from ..interfaces.segment_store import SegmentEntryWriter, SegmentLedger
from ..model.log_keys import replaced_ledger_key, segment_key, staged_ledger_key, state_key
from ..model.log_state import LogState
from ..model.segment_record import SegmentRecord
from ..read.segment_reader import open_segment
from ..services.log_context import LogContext
from .external_segment_writer import create_staged_ledger
from .staged_ledgers import StagedLedger, delete_staged

MERGED_SEGMENTS_MAX = 256
"""The maximum number of segments of one merge, which need about 80 KiB of a transaction."""
LEDGER_BYTES_MAX = 1024 * 1024 * 1024
SEGMENT_BYTES_MAX = 64 * 1024 * 1024
"""A larger segment gains nothing from a merge."""
ENTRIES_MAX = 1_000_000
"""The maximum number of entries of one merge, because a digest of each is kept in memory."""
READ_BYTES = 1024 * 1024
RATE_BYTES_PER_S = 32 * 1024 * 1024
"""The rate of copying and of reading back, so that a merge does not slow down writers."""
CLOSE_TIMEOUT_S = 30.0
ATTEMPTS = 5
DELETE_TIMEOUT_S = 2.0

log = get_logger("distributedlog.log")


class MergeCandidate:
    """Consecutive segments that can become one ledger, added in order (pure)."""

    def __init__(self, *, span_ms: int | None = None) -> None:
        self.members: list[SegmentRecord] = []
        self._close_span_ms = span_ms
        """The largest difference between the close times of its segments, because retention deletes them
        together, with the last one. None for no limit."""
        self._bytes = self._entries = 0

    def accepts(self, record: SegmentRecord) -> bool:
        """Return whether this segment can be the next one.

        Large segments and those in a shared ledger cannot.
        """
        if not is_worth_merging(record):
            return False
        if not self.members:
            return True
        first, last = self.members[0], self.members[-1]
        close_distance_ms = abs(record.closed_ms - first.closed_ms)
        return (
            record.segment == last.segment + 1
            and len(self.members) < MERGED_SEGMENTS_MAX
            and self._bytes + record.size_bytes <= LEDGER_BYTES_MAX
            and self._entries + record.last_entry + 1 <= ENTRIES_MAX
            and (self._close_span_ms is None or close_distance_ms <= self._close_span_ms)
        )

    def add(self, record: SegmentRecord) -> None:
        """Add the next segment, which must be accepted."""
        assert self.accepts(record), "the caller has checked it"
        self.members.append(record)
        self._bytes += record.size_bytes
        self._entries += record.last_entry + 1


def is_worth_merging(record: SegmentRecord) -> bool:
    """Return whether a segment gains by a merge."""
    return (
        record.closed
        and not record.shares_ledger
        and not record.unknown_fields  # a newer program wrote them, and they may depend on the ledger
        and record.size_bytes <= SEGMENT_BYTES_MAX
        and record.last_entry < ENTRIES_MAX
    )


@dataclass(frozen=True, slots=True)
class _CopiedLedger:
    """A closed ledger with all entries of some segments."""

    ledger_id: int
    members: tuple[SegmentRecord, ...]
    """The future records of the segments."""
    digests: Sequence[int]
    """The xxh3_64 of each entry's payload when it was read."""


async def merge_candidates(
    context: LogContext,
    state: LogState,
    first: int,
    last: int,
    *,
    segments_min: int,
    span_ms: int | None = None,
) -> AsyncGenerator[list[SegmentRecord], None]:
    """Yield the sequences of at least ``segments_min`` segments from ``first`` to ``last`` that can be merged
    now.

    Use it with `aclosing`. Segments that were linked without an application are excluded, because a repeated
    link is recognized by the record of its ledger.
    """
    first = max(first, state.first_segment, state.earliest.segment)
    last = min(last, state.first_open_segment - 1)
    candidate = MergeCandidate(span_ms=span_ms)
    async for item in Scan(
        context.metadata, segment_key(state.log_id, first), segment_key(state.log_id, last + 1)
    ):
        record = SegmentRecord.decode(item.value)
        is_mergeable = is_worth_merging(record) and await _owns_ledger(
            context, state.log_id, record
        )
        if is_mergeable and candidate.accepts(record):
            candidate.add(record)
            continue
        if len(candidate.members) >= segments_min:
            yield candidate.members
        candidate = MergeCandidate(span_ms=span_ms)
        if is_mergeable:
            candidate.add(record)
    if len(candidate.members) >= segments_min:
        yield candidate.members


async def _owns_ledger(context: LogContext, log_id: int, record: SegmentRecord) -> bool:
    """Return whether the segment has its own ledger, and no link that can be repeated depends on it."""
    try:
        ledger = await context.ledgers.find(record.ledger_id)
    except NoSuchLedger:
        return False
    is_repeatable_link = ledger.incarnation == log_id and not ledger.custom.get("app")
    return ledger.closed and ledger.owner == (log_id, record.segment) and not is_repeatable_link


async def merge_segments(
    context: LogContext,
    log_id: int,
    *,
    first: int = 1,
    newest_kept: int = 0,
    segments_min: int = 2,
    span_ms: int | None = None,
    merges_max: int | None = None,
) -> int:
    """Merge the small segments of a log.

    After an error, the segments that are not merged yet are unchanged.

    Args:
        first: The number of the first segment.
        newest_kept: The number of newest closed segments that are not merged.
        segments_min: The least number of segments of one merge.
        span_ms: The largest difference between the close times of merged segments. None for no limit.
        merges_max: The largest number of merges. None for no limit.
    Returns:
        The number of segments that were merged.
    Raises:
        LogNotFound: The log was deleted.
        DistributedLogError: Entries could not be read or stored.
    """
    stored = await context.metadata.get(state_key(log_id))
    if stored is None:
        raise LogNotFound("the log has been deleted")
    state = LogState.decode(stored.value)
    merged_count = ledger_count = 0
    async with aclosing(
        merge_candidates(
            context,
            state,
            first,
            state.first_open_segment - 1 - newest_kept,
            segments_min=segments_min,
            span_ms=span_ms,
        )
    ) as candidate_runs:
        async for members in candidate_runs:
            if await merge(context, state, members):
                merged_count += len(members)
                ledger_count += 1
            if ledger_count == merges_max:
                break
    return merged_count


async def merge(context: LogContext, state: LogState, members: Sequence[SegmentRecord]) -> bool:
    """Merge these segments into one ledger.

    After an error or without success, the new ledger is deleted, or collected later as any staged ledger.

    Returns:
        False if another client changed the segments in the meantime, and nothing was merged.
    Raises:
        DistributedLogError: As for `merge_segments`.
    """
    try:
        return await _merge(context, state, members)
    except (NoSuchLedger, NoSuchEntry):
        if await _unchanged_keys(context, state.log_id, members) is not None:
            raise
        return False  # another client deleted or merged them during the copy


async def _merge(context: LogContext, state: LogState, members: Sequence[SegmentRecord]) -> bool:
    sources = [await context.ledgers.find(member.ledger_id) for member in members]
    prepared = await create_staged_ledger(
        context,
        state,
        StagedLedger("", 0, context.clock_ms()),
        custom={"log": state.name.encode(), "merged": b"%d" % len(members)},
        quorums=_quorums(sources),
    )
    errors: list[DistributedLogError] = []
    writer = context.ledgers.writer(prepared, on_failed=errors.append)
    is_linked = False
    try:
        copied = await _copy(context, writer, members, sources)
        await _close(context, writer, copied)
        different = await context.ledgers.different_copy(writer.ledger_id, copied.digests)
        if different:
            raise CorruptData(
                f'log "{state.name}": the copy of segments {members[0].segment} to {members[-1].segment} in '
                f"ledger {writer.ledger_id} differs from its source ({different}). They are not merged."
            )
        is_linked = await _replace_members(context, state.log_id, members, copied)
        return is_linked
    finally:
        if not is_linked:
            writer.abort()
            close_scope = trio.CancelScope(
                shield=True, deadline=trio.current_time() + DELETE_TIMEOUT_S
            )
            with close_scope, suppress(DistributedLogError):  # otherwise it is collected later
                await delete_staged(
                    context.metadata, context.ledgers, state.log_id, writer.ledger_id
                )


def _quorums(sources: Sequence[SegmentLedger]) -> tuple[int, int, int]:
    """Return E, Qw and Qa for as many copies as any source has, all of which must be confirmed."""
    write_quorum = max(source.quorums[1] for source in sources)
    return max(write_quorum, *(source.quorums[0] for source in sources)), write_quorum, write_quorum


async def _copy(
    context: LogContext,
    writer: SegmentEntryWriter,
    members: Sequence[SegmentRecord],
    sources: Sequence[SegmentLedger],
) -> _CopiedLedger:
    """Add all entries of the members. They are not durable yet."""
    digests: list[int] = []
    moved_records: list[SegmentRecord] = []
    length = 0
    for record, source in zip(members, sources, strict=True):
        start_length = length
        moved_records.append(
            replace(record, ledger_id=writer.ledger_id, base_entry=len(digests), base_bytes=length)
        )
        reader = await open_segment(context.ledgers, record)
        try:
            if reader.lac != record.last_entry or not reader.closed:
                raise CorruptData(
                    f"segment {record.segment} ends at entry {record.last_entry}, its ledger "
                    f"{record.ledger_id} at {reader.lac}"
                )
            next_entry = 0
            while next_entry <= record.last_entry:
                read_entries = await reader.read(
                    next_entry, record.last_entry, bytes_max=READ_BYTES
                )
                size = 0
                for read_entry in read_entries:
                    if not writer.has_capacity:
                        await writer.wait_capacity()
                    writer.add([read_entry.payload], len(read_entry.payload))
                    digests.append(xxhash.xxh3_64_intdigest(read_entry.payload))
                    size += len(read_entry.payload)
                length += size
                next_entry = read_entries[-1].entry + 1
                await trio.sleep(size / RATE_BYTES_PER_S)
        finally:
            reader.close()
        if length - start_length != source.length:
            raise CorruptData(
                f"ledger {record.ledger_id} has {source.length} entry bytes by its record, "
                f"{length - start_length} were read"
            )
    return _CopiedLedger(writer.ledger_id, tuple(moved_records), digests)


async def _close(context: LogContext, writer: SegmentEntryWriter, copied: _CopiedLedger) -> None:
    with trio.move_on_after(CLOSE_TIMEOUT_S):
        await writer.wait_settled()
        close_ops = writer.close_ops()
        for _ in range(ATTEMPTS):
            with suppress(OutcomeUnknown):
                if (await context.metadata.transact(close_ops)).succeeded:
                    return
            ledger = await context.ledgers.find(writer.ledger_id)
            if ledger.closed and ledger.last_entry == len(copied.digests) - 1:
                return
    raise WriteFailed(f"ledger {writer.ledger_id} of a merge could not be closed")


async def _replace_members(
    context: LogContext, log_id: int, members: Sequence[SegmentRecord], copied: _CopiedLedger
) -> bool:
    """Run the transaction. Return False if the members or the log have changed."""
    metadata = context.metadata
    for _ in range(ATTEMPTS):
        stored_state = await metadata.get(state_key(log_id))
        if stored_state is None or (state := LogState.decode(stored_state.value)).deleting:
            return False
        member_keys = await _unchanged_keys(context, log_id, members)
        if member_keys is None:
            # Perhaps an earlier attempt of this call changed them, and its answer was lost.
            stored_member = await metadata.get(segment_key(log_id, members[-1].segment))
            return (
                stored_member is not None
                and SegmentRecord.decode(stored_member.value) == copied.members[-1]
            )
        new_ledger = await context.ledgers.find(copied.ledger_id)
        if new_ledger.owner is not None:
            return False
        update = Transaction(
            (
                Compare.version(stored_state.key, stored_state.version),
                *(Compare.version(item.key, item.version) for item in member_keys),
            ),
            (
                Put(stored_state.key, state.encode()),
                *(Put(segment_key(log_id, item.segment), item.encode()) for item in copied.members),
                *(Put(replaced_ledger_key(log_id, item.ledger_id), b"") for item in members),
                Delete(staged_ledger_key(log_id, copied.ledger_id)),
            ),
        )
        link_ops = update + new_ledger.link_ops((log_id, members[-1].segment))
        with suppress(OutcomeUnknown):
            if (await metadata.transact(link_ops)).succeeded:
                return True
        # The log's writer, a truncation or a purge changed the log, or the answer was lost.
    raise VersionConflict(f"log {log_id:016x} kept changing. Its segments are not merged.")


async def _unchanged_keys(
    context: LogContext, log_id: int, members: Sequence[SegmentRecord]
) -> list[KeyValue] | None:
    """Return the members' present keys. None if a record was deleted or has changed."""
    first, last = members[0].segment, members[-1].segment
    stored_members = [
        item
        async for item in Scan(
            context.metadata, segment_key(log_id, first), segment_key(log_id, last + 1)
        )
    ]
    if [SegmentRecord.decode(item.value) for item in stored_members] != list(members):
        return None
    return stored_members
