"""The producers of a log, read from its end by whoever writes it next (H61).

The state names the newest closed segment whose last entry names a snapshot; that entry says where it is. So
one segment is read, from there to its end: some 32 MiB. All before it is in the snapshot, and what is after
the segment holds nothing of producers: it is empty, or was linked.
"""

from ...metadata.model.interface import Metadata
from ...runtime.interfaces.errors import CorruptData, EntriesLost, LogNotFound
from ...runtime.interfaces.log_lines import get_logger
from ..format.producer_section import ProducerSection, read_producer_section
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


async def recover_producers(
    metadata: Metadata, ledgers: SegmentEntryStore, state: LogState
) -> ProducerTable | None:
    """What a log says of its producers, all its segments being closed; None: it never had one.

    Where somebody has declared entries lost that say it, all are forgotten: what they send is refused, and
    not stored twice. Raises `CorruptData`, and whatever keeps an entry from being read.
    """
    if not state.has_producers:
        return None
    if not state.producer_snapshot_segment:
        return ProducerTable()
    stored_segment = await metadata.get(segment_key(state.log_id, state.producer_snapshot_segment))
    if stored_segment is None:
        raise LogNotFound(f'log "{state.name}" has no segment {state.producer_snapshot_segment}')
    record = SegmentRecord.decode(stored_segment.value)
    reader = await open_segment(ledgers, record)
    try:
        return await _replay_segment(reader, record)
    except EntriesLost as error:
        log.warning(
            'log "%s": %s; they said who its producers are: all of them are forgotten',
            state.name,
            error,
        )
        return ProducerTable(next_number=state.epoch << EPOCH_NUMBERS)
    finally:
        reader.close()


async def _replay_segment(reader: SegmentEntryReader, record: SegmentRecord) -> ProducerTable:
    last = record.last_entry
    (last_read,) = await reader.read(last, last, bytes_max=1)
    next_entry = _require_section(record, last, last_read.payload).snapshot_entry
    if next_entry < 0:
        raise CorruptData(f"segment {record.segment}: its last entry names no snapshot")
    table: ProducerTable | None = None
    while next_entry <= last:
        for read_entry in await reader.read(next_entry, last, bytes_max=READ_BYTES):
            section = _require_section(record, read_entry.entry, read_entry.payload)
            if table is None:
                table = section.table
                if table is None:
                    raise CorruptData(
                        f"segment {record.segment}: entry {next_entry} is no snapshot"
                    )
            else:
                table.apply_entry(
                    section.spans,
                    section.openings,
                    record.segment,
                    read_entry.entry,
                    section.clock_ms,
                )
            table.next_number = max(table.next_number, section.next_number)
            next_entry = read_entry.entry + 1
    assert table is not None, "the snapshot is at or before the last entry"
    return table


def _require_section(record: SegmentRecord, entry: int, payload: memoryview) -> ProducerSection:
    section = read_producer_section(entry, payload)
    if section is None:
        raise CorruptData(f"segment {record.segment}: entry {entry} says nothing of producers")
    return section
