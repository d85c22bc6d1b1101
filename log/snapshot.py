"""A log as it can be read now, for planners: segments, how far each goes, positions of both ends.

Two reads of the metadata store, a page of segments at a time, and for the segment in progress one question
to its bookies and one entry. Nothing is fenced, nothing is written.
"""

from dataclasses import replace

from ..metadata.interface import Metadata
from .dlsn import DLSN
from .follower import StateFollower
from .keys import incarnation_text
from .ledgers import Ledgers
from .locate import all_segments
from .lock import owner_of
from .ranges import LogSnapshot, SegmentInfo
from .record import decode_header
from .segments import UNKNOWN, SegmentRecord
from .state import LogState
from .takeover import read_header


async def take_snapshot(
    metadata: Metadata, ledgers: Ledgers, follower: StateFollower
) -> LogSnapshot:
    """Of a log whose state has just been loaded. Raises `LedgerStateUnknown` when too few bookies answer."""
    state = follower.state
    records = await all_segments(metadata, state)
    owner = await owner_of(metadata, state.log_id)
    infos: list[SegmentInfo] = []
    first = state.earliest
    end, end_sequence_id, last_txid = first, state.next_sequence_id, UNKNOWN
    if not records:
        last_txid = state.last_txid
    for record in records:
        # A segment after one in progress cannot be read yet (H11).
        if record.start_sequence_id == UNKNOWN:
            break
        info = _without_truncated(
            _info(record, state) if record.closed else await _open(ledgers, record, state), state
        )
        infos.append(info)
        end_sequence_id = info.start_sequence_id + info.records
        last_txid = max(last_txid, info.last_txid)
        if record.closed:
            end = DLSN(record.segment + 1, 0, 0)
        else:
            end = DLSN(record.segment, info.last_entry + 1, 0)
            break
    return LogSnapshot(
        state.name,
        incarnation_text(state.log_id),
        first_dlsn=first,
        first_sequence_id=min(
            end_sequence_id, max(state.truncated_sequence_id, _first_id(records, state))
        ),
        end_dlsn=max(end, first),
        end_sequence_id=end_sequence_id,
        last_txid=last_txid,
        sealed=state.sealed,
        owner=owner or "",
        segments=tuple(info for info in infos if info.entries > 0 or not info.closed),
    )


def _first_id(records: list[SegmentRecord], state: LogState) -> int:
    if records and records[0].start_sequence_id != UNKNOWN:
        return records[0].start_sequence_id
    return state.next_sequence_id


async def _open(ledgers: Ledgers, record: SegmentRecord, state: LogState) -> SegmentInfo:
    reader = await ledgers.open(record.ledger_id)
    try:
        last_entry = reader.lac
        records, size_bytes, first_txid, last_txid = 0, 0, UNKNOWN, state.last_txid
        if last_entry >= 0:
            found = await reader.read(last_entry, last_entry, bytes_max=1)
            header = decode_header(found[0].payload)
            records, size_bytes = header.records_through, found[0].length_so_far
            if records:
                first_txid = (await read_header(reader, 0)).first_txid
                last_txid = max(last_txid, header.last_txid)
    finally:
        reader.close()
    return replace(
        _info(record, state),
        last_entry=last_entry,
        records=records,
        size_bytes=size_bytes,
        first_txid=first_txid,
        last_txid=last_txid,
    )


def _info(record: SegmentRecord, state: LogState) -> SegmentInfo:
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
        given_txid=record.given_txid,
    )


def _without_truncated(info: SegmentInfo, state: LogState) -> SegmentInfo:
    cut = state.truncated_to
    if info.segment > cut.segment:
        return info
    first = cut.entry if info.segment == cut.segment else info.last_entry + 1
    if first > info.last_entry:
        return replace(info, first_entry=info.last_entry + 1)
    return replace(info, first_entry=first, first_slot=cut.slot)
