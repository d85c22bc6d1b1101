"""Positions in a log: the last readable one, and the first with a txid (distributedlog.md 3.5, 3.6)."""

from ..metadata.interface import Metadata
from .dlsn import DLSN
from .follower import StateFollower
from .keys import segment_key
from .ledgers import LedgerReader, Ledgers
from .record import decode_header
from .segments import SegmentRecord, first_at_or_after
from .state import LogState
from .takeover import read_header

PAGE = 500


async def all_segments(metadata: Metadata, state: LogState) -> list[SegmentRecord]:
    """The records of all segments of a log, ascending, page by page."""
    start = segment_key(state.log_id, state.first_segment)
    end = segment_key(state.log_id, state.last_segment + 1)
    found: list[SegmentRecord] = []
    while True:
        page = await metadata.range(start, end, limit=PAGE)
        found += [SegmentRecord.decode(item.value) for item in page.items]
        if not page.more or not page.items:
            return found
        start = page.items[-1].key + b"\x00"


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
        return DLSN(record.segment, await _first_entry(reader, txid), 0)
    finally:
        reader.close()


async def _first_entry(reader: LedgerReader, txid: int) -> int:
    """Binary search over the entries' last txids; lac + 1 when all are lower."""
    low, high = 0, reader.lac + 1
    while low < high:
        middle = (low + high) // 2
        found = await reader.read(middle, middle, bytes_max=1)
        if decode_header(found[0].payload).last_txid < txid:
            low = middle + 1
        else:
            high = middle
    return low
