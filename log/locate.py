"""Positions in a log: the last readable one, and the first with a txid."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

from ..metadata.interface import Metadata, Scan
from ..runtime.errors import NoSuchEntry, NoSuchLedger
from .dlsn import DLSN
from .follower import StateFollower
from .keys import segment_key
from .ledgers import LedgerReader, Ledgers
from .record import Columns, EntryHeader, Origin, decode, decode_header
from .segments import UNKNOWN, SegmentRecord, first_at_or_after
from .state import LogState
from .takeover import read_header


async def all_segments(metadata: Metadata, state: LogState) -> list[SegmentRecord]:
    """The records of all segments of a log, ascending."""
    start = segment_key(state.log_id, state.first_segment)
    end = segment_key(state.log_id, state.last_segment + 1)
    return [SegmentRecord.decode(item.value) async for item in Scan(metadata, start, end)]


async def last_readable(follower: StateFollower, ledgers: Ledgers) -> DLSN | None:
    """The position of the last user record that can be read now; None in an empty log."""
    state = follower.state
    for number in range(state.last_segment, state.first_segment - 1, -1):
        record = await follower.segment(number)
        if record.closed:
            if record.last_dlsn is not None:
                return _unless_truncated(record.last_dlsn, state)
            continue
        reader = await ledgers.open(record.ledger_id)
        try:
            entry = reader.lac
            while entry >= 0:
                header = await read_header(reader, entry)
                if not header.control:
                    return _unless_truncated(DLSN(number, entry, header.count - 1), state)
                entry -= 1
        finally:
            reader.close()
    return None


def _unless_truncated(dlsn: DLSN, state: LogState) -> DLSN | None:
    return None if dlsn < state.truncated_to else dlsn


async def first_with_txid(
    metadata: Metadata, follower: StateFollower, ledgers: Ledgers, txid: int
) -> DLSN:
    """Where to begin reading for the first record whose txid is at least this one.

    The entry is right, the slot is 0: the reader skips what is lower. Beyond the end: where the next
    record will be.
    """
    segments = await all_segments(metadata, follower.state)
    at = first_at_or_after(segments, txid)
    if at == len(segments):
        return DLSN(follower.state.last_segment + 1, 0, 0)
    record = segments[at]
    reader = await ledgers.open(record.ledger_id)
    try:
        return DLSN(record.segment, await _first_not(reader, partial(_ends_below, txid, record)), 0)
    finally:
        reader.close()


async def find_txid(
    metadata: Metadata, follower: StateFollower, ledgers: Ledgers, txid: int
) -> DLSN:
    """The position of the first record whose txid is at least this one; after the end: where the next one
    will be. Never below the truncation point."""
    segments = await all_segments(metadata, follower.state)
    return await search_txid(follower.state, ledgers, segments, txid)


async def search_txid(
    state: LogState, ledgers: Ledgers, segments: Sequence[SegmentRecord], txid: int
) -> DLSN:
    """As `find_txid`, for whoever knows the segments; the one in progress may say how far it is confirmed."""
    return await _search(
        state,
        ledgers,
        segments[first_at_or_after(segments, txid) :],
        partial(_ends_below, txid),
        lambda columns: bisect_left(columns.txids, txid),
    )


async def find_time(
    metadata: Metadata, follower: StateFollower, ledgers: Ledgers, wall_ms: int
) -> DLSN:
    """The position of the first entry written at ``wall_ms`` or later, by its writer's clock; as `find_txid`.

    Clocks of writers that followed each other may differ by what the machines' clocks do: the answer is
    as right as they are.
    """
    segments = await all_segments(metadata, follower.state)
    at = bisect_left(
        segments, True, key=lambda segment: not segment.closed or segment.closed_ms >= wall_ms
    )
    return await _search(
        follower.state,
        ledgers,
        segments[at:],
        lambda _, header: header.wall_ms < wall_ms,
        lambda _: 0,
    )


async def _search(
    state: LogState,
    ledgers: Ledgers,
    segments: Sequence[SegmentRecord],
    below: Callable[[SegmentRecord, EntryHeader], bool],
    slot: Callable[[Columns], int],
) -> DLSN:
    """The first entry of these segments that is not ``below``, and the slot in it."""
    earliest = state.earliest
    end = earliest if segments else max(earliest, DLSN(state.last_segment + 1, 0, 0))
    for record in segments:
        if record.start_sequence_id == UNKNOWN:
            break  # after one in progress: not readable yet (H11)
        reader = await ledgers.open(record.ledger_id)
        try:
            if not reader.closed:
                reader.note_lac(record.last_entry)
            entry = await _first_not(reader, partial(below, record))
            while entry <= reader.lac:
                found = await reader.read(entry, entry, bytes_max=1)
                header = decode_header(found[0].payload)
                if not header.control and not below(record, header):
                    origin = Origin(record.segment, entry, 0, record.given_txid)
                    columns = decode(found[0].payload, header, origin)
                    return max(earliest, DLSN(record.segment, entry, slot(columns)))
                entry += 1
        finally:
            reader.close()
        end = DLSN(record.segment + 1, 0, 0) if record.closed else DLSN(record.segment, entry, 0)
    return max(earliest, end)


def _ends_below(txid: int, record: SegmentRecord, header: EntryHeader) -> bool:
    return header.last_txid_in(record.given_txid) < txid


async def sequence_id_at(ledgers: Ledgers, record: SegmentRecord, at: DLSN) -> int:
    """The sequence id of the first record at or after a position of this segment, up to its end.

    The caller has seen that the position can be read, or lies before one that could be.
    """
    if record.closed and (record.last_dlsn is None or at > record.last_dlsn):
        return record.start_sequence_id + record.records
    if at.entry == 0 and at.slot == 0:
        return record.start_sequence_id
    reader = await ledgers.open(record.ledger_id)
    try:
        if not reader.closed:
            reader.note_lac(at.entry)  # the bookies may have forgotten it since (H24)
        header = await read_header(reader, at.entry)
    finally:
        reader.close()
    return record.start_sequence_id + min(header.records_before + at.slot, header.records_through)


async def is_cut_off(metadata: Metadata, ledgers: Ledgers, state: LogState, dlsn: DLSN) -> bool:
    """Has anything at or after this position been truncated? Different positions may name one place: the
    last one's successor, the next entry's first, the next segment's first."""
    if dlsn >= state.truncated_to or state.truncated_sequence_id == 0:
        return False
    found = await metadata.get(segment_key(state.log_id, dlsn.segment))
    if found is None:
        return True
    record = SegmentRecord.decode(found.value)
    if record.start_sequence_id == UNKNOWN:
        return True
    try:
        return await sequence_id_at(ledgers, record, dlsn) < state.truncated_sequence_id
    except (NoSuchLedger, NoSuchEntry):
        return True


async def _first_not(reader: LedgerReader, below: Callable[[EntryHeader], bool]) -> int:
    """Binary search over the entries; lac + 1 when all are below."""
    low, high = 0, reader.lac + 1
    while low < high:
        middle = (low + high) // 2
        if below(await read_header(reader, middle)):
            low = middle + 1
        else:
            high = middle
    return low
