"""The readable state of a log for planners: its segments, their ends, and the positions of both ends.

The cost is three reads of the metadata and one per page of segments. For the open segment, its bookies are
queried once and two entries are read, or more if control entries precede its first record. Nothing is fenced
or written.
"""

from dataclasses import replace

from ...metadata.model.interface import Metadata
from ..format.dlsn import DLSN
from ..format.record import decode_header
from ..interfaces.segment_store import SegmentEntryStore
from ..model.lock_record import lock_owner
from ..model.log_keys import incarnation_text
from ..model.log_state import LogState
from ..model.segment_ranges import LogSnapshot, SegmentInfo
from ..model.segment_record import UNKNOWN, SegmentRecord
from .position_search import header_of_record, segments_page, wait_for_roll
from .segment_reader import open_segment
from .state_watch import StateWatch


async def take_snapshot(
    metadata: Metadata,
    ledgers: SegmentEntryStore,
    state_watch: StateWatch,
    *,
    first: int = 0,
    limit: int | None = None,
) -> LogSnapshot:
    """Return a snapshot of a log whose state has just been loaded.

    Args:
        first: The number of the first segment to include.
        limit: The maximum number of segments. None for no limit.
    Raises:
        LedgerStateUnknown: Too few bookies answered.
    """
    await wait_for_roll(state_watch, ledgers)
    state = state_watch.state
    owner = await lock_owner(metadata, state.log_id)
    tail = None
    end, end_sequence_id = DLSN(state.first_open_segment, 0, 0), state.next_sequence_id
    last_txid = state.last_txid
    if state.in_progress:
        # Segments after the first one in progress cannot be read yet (H11).
        record = await state_watch.segment(state.first_open_segment)
        if record.start_sequence_id != UNKNOWN:
            tail = (
                _segment_info(record, state)
                if record.closed
                else await _read_open_segment(ledgers, record, state)
            )
            end_sequence_id = tail.start_sequence_id + tail.records
            last_txid = max(last_txid, tail.last_txid)
            end = DLSN(record.segment, tail.last_entry + 1, 0)
            if record.closed:  # it was closed since the state was read
                end = DLSN(record.segment + 1, 0, 0)
    # Segments that are completely truncated are skipped.
    first = max(
        first, state.first_segment, min(state.truncated_to.segment, state.first_open_segment)
    )
    records = await segments_page(metadata, state, first, limit)
    infos = [
        _segment_info(segment_record, state)
        for segment_record in records
        if segment_record.segment < state.first_open_segment
    ]
    if tail is not None and first <= tail.segment and len(infos) != limit:
        infos.append(tail)
    last_readable_segment = state.first_open_segment - (tail is None)
    infos = [_without_truncated(info, state) for info in infos]
    return LogSnapshot(
        state.name,
        incarnation_text(state.log_id),
        first_dlsn=state.earliest,
        first_sequence_id=min(end_sequence_id, state.truncated_sequence_id),
        end_dlsn=max(end, state.earliest),
        end_sequence_id=end_sequence_id,
        last_txid=last_txid,
        sealed=state.sealed,
        owner=owner or "",
        segments=tuple(info for info in infos if info.entries > 0 or not info.closed),
        next_segment=infos[-1].segment + 1
        if infos and infos[-1].segment < last_readable_segment
        else None,
    )


async def _read_open_segment(
    ledgers: SegmentEntryStore, record: SegmentRecord, state: LogState
) -> SegmentInfo:
    reader = await open_segment(ledgers, record)
    try:
        last_entry = reader.lac
        records, size_bytes, first_txid, last_txid = 0, 0, UNKNOWN, state.last_txid
        if last_entry >= 0:
            read_entries = await reader.read(last_entry, last_entry, bytes_max=1)
            header = decode_header(read_entries[0].payload)
            records, size_bytes = header.records_through, read_entries[0].length_so_far
            if records:
                # Not of entry 0: a control entry of an idle writer has no record and no txid.
                first_txid = (await header_of_record(reader, record, 0, 0)).first_txid
                last_txid = max(last_txid, header.max_txid)
    finally:
        reader.close()
    return replace(
        _segment_info(record, state),
        last_entry=last_entry,
        records=records,
        size_bytes=size_bytes,
        first_txid=first_txid,
        last_txid=last_txid,
    )


def _segment_info(record: SegmentRecord, state: LogState) -> SegmentInfo:
    return SegmentInfo(
        incarnation_text(state.log_id),
        record.segment,
        record.ledger_id,
        closed=record.closed,
        first_entry=0,
        last_entry=record.last_entry,
        records=record.records,
        size_bytes=record.size_bytes,
        first_txid=record.first_txid,
        last_txid=record.last_txid,
        start_sequence_id=record.start_sequence_id,
        created_ms=record.created_ms,
        closed_ms=record.closed_ms,
        txid_base=record.txid_base,
        txid_rule=record.txid_rule,
        time_floor_ms=record.time_floor_ms,
        base_entry=record.base_entry,
    )


def _without_truncated(info: SegmentInfo, state: LogState) -> SegmentInfo:
    truncated_to = state.truncated_to
    if info.segment > truncated_to.segment:
        return info
    first = truncated_to.entry if info.segment == truncated_to.segment else info.last_entry + 1
    if first > info.last_entry:
        return replace(info, first_entry=info.last_entry + 1)
    return replace(info, first_entry=first, first_slot=truncated_to.slot)
