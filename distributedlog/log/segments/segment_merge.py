"""Merging small segments: many ledgers become one, and nothing that anybody knows of the log changes (G5).

The entries of consecutive closed segments are copied verbatim, control entries too, into one ledger; then
each segment's record says in which ledger it lies, and from which entry on. Every DLSN, sequence id, txid
and byte stays; (incarnation, segment, entry) is the address, a ledger's id a hint (H157).

The order is fixed, and the copies are certain before anything is given up (H158): (1) a ledger that nobody
refers to yet, confirmed by its whole write quorum, then closed; (2) each replica of it is read back and
compared with what was read of the sources; (3) one transaction, conditional on the log's state (which is
put again, so that whoever looked before looks anew), on each member's record and on the ledger's; (4) the
old ledgers are noted as left (`replaced_ledgers.py`) and stay for a while.
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
"""Of one merge: some 80 KiB of a transaction."""
LEDGER_BYTES_MAX = 1024 * 1024 * 1024
SEGMENT_BYTES_MAX = 64 * 1024 * 1024
"""One that is larger gains nothing."""
ENTRIES_MAX = 1_000_000
"""Of one merge: a digest each is kept in memory."""
READ_BYTES = 1024 * 1024
RATE_BYTES_PER_S = 32 * 1024 * 1024
"""Copied, and read back: whoever merges must not starve those who write."""
CLOSE_TIMEOUT_S = 30.0
ATTEMPTS = 5
DELETE_TIMEOUT_S = 2.0

log = get_logger("distributedlog.log")


class MergeCandidate:
    """Consecutive segments that may become one ledger; fed with records in order (pure)."""

    def __init__(self, *, span_ms: int | None = None) -> None:
        self.members: list[SegmentRecord] = []
        self._close_span_ms = span_ms
        """How far apart their closes may be: they go together, with the last one; None: any."""
        self._bytes = self._entries = 0

    def accepts(self, record: SegmentRecord) -> bool:
        """May it come next? What is large, or shares a ledger already, never may."""
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
        """It comes next."""
        assert self.accepts(record), "asked before"
        self.members.append(record)
        self._bytes += record.size_bytes
        self._entries += record.last_entry + 1


def is_worth_merging(record: SegmentRecord) -> bool:
    """Is it a segment that gains by being merged?"""
    return (
        record.closed
        and not record.shares_ledger
        and not record.unknown_fields  # a newer program's: it knows what they mean elsewhere
        and record.size_bytes <= SEGMENT_BYTES_MAX
        and record.last_entry < ENTRIES_MAX
    )


@dataclass(frozen=True, slots=True)
class _CopiedLedger:
    """A ledger with all entries of some segments, closed."""

    ledger_id: int
    members: tuple[SegmentRecord, ...]
    """As their records will be."""
    digests: Sequence[int]
    """xxh3_64 of each entry's payload, as it was read."""


async def merge_candidates(
    context: LogContext,
    state: LogState,
    first: int,
    last: int,
    *,
    segments_min: int,
    span_ms: int | None = None,
) -> AsyncGenerator[list[SegmentRecord], None]:
    """The runs of at least ``segments_min`` segments from ``first`` to ``upto`` that may be merged now.

    Leave it by `aclosing`. A segment whose ledger was linked without an application is none: who repeats
    that link is answered by the ledger's own record.
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
    """Is its ledger its own, as its record says, and not one that a link may be asked for again?"""
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
    """Merge what there is to merge; how many segments share a ledger now that did not before.

    All but the newest ``newest_kept`` closed ones; ``merges_max`` ledgers at most. Raises `LogNotFound`, and
    what keeps entries from being read or stored: then what was not merged stays as it was.
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
    """Put these segments into one ledger; False: somebody was at them meanwhile, nothing was done.

    Raises as `merge_segments`; the ledger that was begun is deleted, or collected later as any that is not
    linked.
    """
    try:
        return await _merge(context, state, members)
    except (NoSuchLedger, NoSuchEntry):
        if await _unchanged_keys(context, state.log_id, members) is not None:
            raise
        return False  # they were removed, or merged, while they were copied


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
                f'log "{state.name}": a copy of segments {members[0].segment} to {members[-1].segment} in '
                f"ledger {writer.ledger_id} is not what was read ({different}); they stay as they were"
            )
        is_linked = await _replace_members(context, state.log_id, members, copied)
        return is_linked
    finally:
        if not is_linked:
            writer.abort()
            close_scope = trio.CancelScope(
                shield=True, deadline=trio.current_time() + DELETE_TIMEOUT_S
            )
            with close_scope, suppress(DistributedLogError):  # else it is collected
                await delete_staged(
                    context.metadata, context.ledgers, state.log_id, writer.ledger_id
                )


def _quorums(sources: Sequence[SegmentLedger]) -> tuple[int, int, int]:
    """As many copies as any of them has, and all of them confirmed."""
    write_quorum = max(source.quorums[1] for source in sources)
    return max(write_quorum, *(source.quorums[0] for source in sources)), write_quorum, write_quorum


async def _copy(
    context: LogContext,
    writer: SegmentEntryWriter,
    members: Sequence[SegmentRecord],
    sources: Sequence[SegmentLedger],
) -> _CopiedLedger:
    """Add all entries of the members; they are not durable yet."""
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
                    if not writer.room:
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
    """Wait until all is durable, and close the ledger."""
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
    raise WriteFailed(f"ledger {writer.ledger_id}, of a merge, could not be closed")


async def _replace_members(
    context: LogContext, log_id: int, members: Sequence[SegmentRecord], copied: _CopiedLedger
) -> bool:
    """The one transaction; False where the members, or the log, are not what they were."""
    metadata = context.metadata
    for _ in range(ATTEMPTS):
        stored_state = await metadata.get(state_key(log_id))
        if stored_state is None or (state := LogState.decode(stored_state.value)).deleting:
            return False
        member_keys = await _unchanged_keys(context, log_id, members)
        if member_keys is None:
            # Perhaps by this very swap, whose answer was lost.
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
        # The log's writer, a truncation or a purge came in between; or it was done and nobody said so.
    raise VersionConflict(f"log {log_id:016x} changes all the time; its segments stay as they were")


async def _unchanged_keys(
    context: LogContext, log_id: int, members: Sequence[SegmentRecord]
) -> list[KeyValue] | None:
    """The members' keys as they are now; None where one is gone or says something else."""
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
