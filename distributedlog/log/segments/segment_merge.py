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
from ..model.log_keys import retired_key, segment_key, state_key, unlinked_key
from ..model.log_state import LogState
from ..model.segment_record import SegmentRecord
from ..read.segment_reader import open_segment
from ..services.log_context import LogContext
from .external_segment_writer import create_unlinked_ledger
from .staged_ledgers import StagedLedger, delete_staged

SEGMENTS_MAX = 256
"""Of one merge: some 80 KiB of a transaction."""
LEDGER_BYTES_MAX = 1024 * 1024 * 1024
SEGMENT_BYTES_MAX = 64 * 1024 * 1024
"""One that is larger gains nothing."""
ENTRIES_MAX = 1_000_000
"""Of one merge: a digest each is kept in memory."""
READ_BYTES = 1024 * 1024
RATE_BYTES_PER_S = 32 * 1024 * 1024
"""Copied, and read back: whoever merges must not starve those who write."""
CLOSE_S = 30.0
ATTEMPTS = 5
GOODBYE_S = 2.0

log = get_logger("distributedlog.log")


class MergeCandidate:
    """Consecutive segments that may become one ledger; fed with records in order (pure)."""

    def __init__(self, *, span_ms: int | None = None) -> None:
        self.members: list[SegmentRecord] = []
        self._span_ms = span_ms
        """How far apart their closes may be: they go together, with the last one; None: any."""
        self._bytes = self._entries = 0

    def takes(self, record: SegmentRecord) -> bool:
        """May it come next? What is large, or shares a ledger already, never may."""
        if not is_worth_merging(record):
            return False
        if not self.members:
            return True
        first, last = self.members[0], self.members[-1]
        apart_ms = abs(record.closed_ms - first.closed_ms)
        return (
            record.segment == last.segment + 1
            and len(self.members) < SEGMENTS_MAX
            and self._bytes + record.size_bytes <= LEDGER_BYTES_MAX
            and self._entries + record.last_entry + 1 <= ENTRIES_MAX
            and (self._span_ms is None or apart_ms <= self._span_ms)
        )

    def take(self, record: SegmentRecord) -> None:
        """It comes next."""
        assert self.takes(record), "asked before"
        self.members.append(record)
        self._bytes += record.size_bytes
        self._entries += record.last_entry + 1


def is_worth_merging(record: SegmentRecord) -> bool:
    """Is it a segment that gains by being merged?"""
    return (
        record.closed
        and not record.shared
        and not record.later  # a newer program's: it knows what they mean elsewhere
        and record.size_bytes <= SEGMENT_BYTES_MAX
        and record.last_entry < ENTRIES_MAX
    )


@dataclass(frozen=True, slots=True)
class _Copied:
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
    upto: int,
    *,
    segments_min: int,
    span_ms: int | None = None,
) -> AsyncGenerator[list[SegmentRecord], None]:
    """The runs of at least ``segments_min`` segments from ``first`` to ``upto`` that may be merged now.

    Leave it by `aclosing`. A segment whose ledger was linked without an application is none: who repeats
    that link is answered by the ledger's own record.
    """
    first = max(first, state.first_segment, state.earliest.segment)
    upto = min(upto, state.open_from - 1)
    run = MergeCandidate(span_ms=span_ms)
    async for item in Scan(
        context.metadata, segment_key(state.log_id, first), segment_key(state.log_id, upto + 1)
    ):
        record = SegmentRecord.decode(item.value)
        fits = is_worth_merging(record) and await _may_go(context, state.log_id, record)
        if fits and run.takes(record):
            run.take(record)
            continue
        if len(run.members) >= segments_min:
            yield run.members
        run = MergeCandidate(span_ms=span_ms)
        if fits:
            run.take(record)
    if len(run.members) >= segments_min:
        yield run.members


async def _may_go(context: LogContext, log_id: int, record: SegmentRecord) -> bool:
    """Is its ledger its own, as its record says, and not one that a link may be asked for again?"""
    try:
        found = await context.ledgers.find(record.ledger_id)
    except NoSuchLedger:
        return False
    by_itself = found.incarnation == log_id and not found.custom.get("app")
    return found.closed and found.owner == (log_id, record.segment) and not by_itself


async def compact(
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
    found = await context.metadata.get(state_key(log_id))
    if found is None:
        raise LogNotFound("the log has been deleted")
    state = LogState.decode(found.value)
    merged = ledgers = 0
    async with aclosing(
        merge_candidates(
            context,
            state,
            first,
            state.open_from - 1 - newest_kept,
            segments_min=segments_min,
            span_ms=span_ms,
        )
    ) as found_runs:
        async for members in found_runs:
            if await merge(context, state, members):
                merged += len(members)
                ledgers += 1
            if ledgers == merges_max:
                break
    return merged


async def merge(context: LogContext, state: LogState, members: Sequence[SegmentRecord]) -> bool:
    """Put these segments into one ledger; False: somebody was at them meanwhile, nothing was done.

    Raises as `compact`; the ledger that was begun is deleted, or collected later as any that is not linked.
    """
    try:
        return await _merge(context, state, members)
    except (NoSuchLedger, NoSuchEntry):
        if await _unchanged(context, state.log_id, members) is not None:
            raise
        return False  # they were removed, or merged, while they were copied


async def _merge(context: LogContext, state: LogState, members: Sequence[SegmentRecord]) -> bool:
    sources = [await context.ledgers.find(one.ledger_id) for one in members]
    prepared = await create_unlinked_ledger(
        context,
        state,
        StagedLedger("", 0, context.wall_ms()),
        custom={"log": state.name.encode(), "merged": b"%d" % len(members)},
        quorums=_quorums(sources),
    )
    failed: list[DistributedLogError] = []
    writer = context.ledgers.writer(prepared, on_failed=failed.append)
    done = False
    try:
        copied = await _copy(context, writer, members, sources)
        await _close(context, writer, copied)
        different = await context.ledgers.different_copy(writer.ledger_id, copied.digests)
        if different:
            raise CorruptData(
                f'log "{state.name}": a copy of segments {members[0].segment} to {members[-1].segment} in '
                f"ledger {writer.ledger_id} is not what was read ({different}); they stay as they were"
            )
        done = await _swap(context, state.log_id, members, copied)
        return done
    finally:
        if not done:
            writer.abort()
            goodbye = trio.CancelScope(shield=True, deadline=trio.current_time() + GOODBYE_S)
            with goodbye, suppress(DistributedLogError):  # else it is collected
                await delete_staged(
                    context.metadata, context.ledgers, state.log_id, writer.ledger_id
                )


def _quorums(sources: Sequence[SegmentLedger]) -> tuple[int, int, int]:
    """As many copies as any of them has, and all of them confirmed."""
    write = max(one.quorums[1] for one in sources)
    return max(write, *(one.quorums[0] for one in sources)), write, write


async def _copy(
    context: LogContext,
    writer: SegmentEntryWriter,
    members: Sequence[SegmentRecord],
    sources: Sequence[SegmentLedger],
) -> _Copied:
    """Add all entries of the members; they are not durable yet."""
    digests: list[int] = []
    laid: list[SegmentRecord] = []
    length = 0
    for record, source in zip(members, sources, strict=True):
        begun = length
        laid.append(
            replace(record, ledger_id=writer.ledger_id, base_entry=len(digests), base_bytes=length)
        )
        reader = await open_segment(context.ledgers, record)
        try:
            if reader.lac != record.last_entry or not reader.closed:
                raise CorruptData(
                    f"segment {record.segment} ends at entry {record.last_entry}, its ledger "
                    f"{record.ledger_id} at {reader.lac}"
                )
            at = 0
            while at <= record.last_entry:
                found = await reader.read(at, record.last_entry, bytes_max=READ_BYTES)
                size = 0
                for one in found:
                    if not writer.room:
                        await writer.wait_room()
                    writer.add([one.payload], len(one.payload))
                    digests.append(xxhash.xxh3_64_intdigest(one.payload))
                    size += len(one.payload)
                length += size
                at = found[-1].entry + 1
                await trio.sleep(size / RATE_BYTES_PER_S)
        finally:
            reader.close()
        if length - begun != source.length:
            raise CorruptData(
                f"ledger {record.ledger_id} has {source.length} entry bytes by its record, "
                f"{length - begun} were read"
            )
    return _Copied(writer.ledger_id, tuple(laid), digests)


async def _close(context: LogContext, writer: SegmentEntryWriter, copied: _Copied) -> None:
    """Wait until all is durable, and close the ledger."""
    with trio.move_on_after(CLOSE_S):
        await writer.settle()
        share = writer.closing_share()
        for _ in range(ATTEMPTS):
            with suppress(OutcomeUnknown):
                if (await context.metadata.transact(share)).succeeded:
                    return
            stored = await context.ledgers.find(writer.ledger_id)
            if stored.closed and stored.last_entry == len(copied.digests) - 1:
                return
    raise WriteFailed(f"ledger {writer.ledger_id}, of a merge, could not be closed")


async def _swap(
    context: LogContext, log_id: int, members: Sequence[SegmentRecord], copied: _Copied
) -> bool:
    """The one transaction; False where the members, or the log, are not what they were."""
    metadata = context.metadata
    for _ in range(ATTEMPTS):
        found = await metadata.get(state_key(log_id))
        if found is None or (state := LogState.decode(found.value)).deleting:
            return False
        kept = await _unchanged(context, log_id, members)
        if kept is None:
            # Perhaps by this very swap, whose answer was lost.
            at = await metadata.get(segment_key(log_id, members[-1].segment))
            return at is not None and SegmentRecord.decode(at.value) == copied.members[-1]
        stored = await context.ledgers.find(copied.ledger_id)
        if stored.owner is not None:
            return False
        own = Transaction(
            (
                Compare.version(found.key, found.version),
                *(Compare.version(one.key, one.version) for one in kept),
            ),
            (
                Put(found.key, state.encode()),
                *(Put(segment_key(log_id, one.segment), one.encode()) for one in copied.members),
                *(Put(retired_key(log_id, one.ledger_id), b"") for one in members),
                Delete(unlinked_key(log_id, copied.ledger_id)),
            ),
        )
        share = own + stored.link_share((log_id, members[-1].segment))
        with suppress(OutcomeUnknown):
            if (await metadata.transact(share)).succeeded:
                return True
        # The log's writer, a truncation or a purge came in between; or it was done and nobody said so.
    raise VersionConflict(f"log {log_id:016x} changes all the time; its segments stay as they were")


async def _unchanged(
    context: LogContext, log_id: int, members: Sequence[SegmentRecord]
) -> list[KeyValue] | None:
    """The members' keys as they are now; None where one is gone or says something else."""
    first, last = members[0].segment, members[-1].segment
    found = [
        item
        async for item in Scan(
            context.metadata, segment_key(log_id, first), segment_key(log_id, last + 1)
        )
    ]
    if [SegmentRecord.decode(item.value) for item in found] != list(members):
        return None
    return found
