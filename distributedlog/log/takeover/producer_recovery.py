"""The producers of a log, read from its end by whoever writes it next (H61).

The state names the newest closed segment whose last entry names a snapshot; that entry says where it is. So
one segment is read, from there to its end: some 32 MiB. All before it is in the snapshot, and what is after
the segment holds nothing of producers: it is empty, or was linked.
"""

from ...metadata.model.interface import Metadata
from ...runtime.interfaces.errors import CorruptData, EntriesLost, LogNotFound
from ...runtime.interfaces.log_lines import get_logger
from ..format.producer_section import ProducerSection, notes_of
from ..format.producer_table import ProducerTable
from ..interfaces.segment_store import SegmentEntryReader, SegmentEntryStore
from ..model.log_keys import segment_key
from ..model.log_state import LogState
from ..model.segment_record import SegmentRecord
from ..read.segment_reader import open_segment

READ_BYTES = 4 * 1024 * 1024
"""At once."""
EPOCH_NUMBERS = 32
"""Bits: fewer openings than that under one epoch."""

log = get_logger("distributedlog.log")


async def replay(
    metadata: Metadata, ledgers: SegmentEntryStore, state: LogState
) -> ProducerTable | None:
    """What a log says of its producers, all its segments being closed; None: it never had one.

    Where somebody has declared entries lost that say it, all are forgotten: what they send is refused, and
    not stored twice. Raises `CorruptData`, and whatever keeps an entry from being read.
    """
    if not state.has_producers:
        return None
    if not state.producers:
        return ProducerTable()
    found = await metadata.get(segment_key(state.log_id, state.producers))
    if found is None:
        raise LogNotFound(f'log "{state.name}" has no segment {state.producers}')
    record = SegmentRecord.decode(found.value)
    reader = await open_segment(ledgers, record)
    try:
        return await _replayed(reader, record)
    except EntriesLost as error:
        log.warning(
            'log "%s": %s; they said who its producers are: all of them are forgotten',
            state.name,
            error,
        )
        return ProducerTable(next_number=state.epoch << EPOCH_NUMBERS)
    finally:
        reader.close()


async def _replayed(reader: SegmentEntryReader, record: SegmentRecord) -> ProducerTable:
    last = record.last_entry
    (found,) = await reader.read(last, last, bytes_max=1)
    at = _notes(record, last, found.payload).snapshot_entry
    if at < 0:
        raise CorruptData(f"segment {record.segment}: its last entry names no snapshot")
    table: ProducerTable | None = None
    while at <= last:
        for one in await reader.read(at, last, bytes_max=READ_BYTES):
            notes = _notes(record, one.entry, one.payload)
            if table is None:
                table = notes.table
                if table is None:
                    raise CorruptData(f"segment {record.segment}: entry {at} is no snapshot")
            else:
                table.take(notes.spans, notes.opens, record.segment, one.entry, notes.clock_ms)
            table.next_number = max(table.next_number, notes.next_number)
            at = one.entry + 1
    assert table is not None, "the snapshot is at or before the last entry"
    return table


def _notes(record: SegmentRecord, entry: int, payload: memoryview) -> ProducerSection:
    notes = notes_of(entry, payload)
    if notes is None:
        raise CorruptData(f"segment {record.segment}: entry {entry} says nothing of producers")
    return notes
