"""Read the producers of a log from its end, for its next writer (H61).

The state has the newest closed segment whose last entry refers to a snapshot, and that entry has the
snapshot's entry ID. So one segment is read from there to its end, about 32 MiB. The snapshot includes all
earlier entries. Later segments have no producer data, because they are empty or were linked.
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
"""The size of one read in bytes."""
EPOCH_NUMBERS = 32
"""The number of bits for producer numbers within an epoch. Fewer producers than 2^32 are opened under one
epoch."""

log = get_logger("distributedlog.log")


async def recover_producers(
    metadata: Metadata, ledgers: SegmentEntryStore, state: LogState
) -> ProducerTable | None:
    """Return the producers of a log whose segments are all closed. None if it never had one.

    If entries with producer data were declared lost, all producers are forgotten. Their frames are then
    rejected instead of being stored twice.

    Raises:
        CorruptData: The producer data is damaged.
        DistributedLogError: An entry could not be read.
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
            'log "%s": all producers are forgotten, because their entries are lost (%s)',
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
        raise CorruptData(f"segment {record.segment}: the last entry refers to no snapshot")
    table: ProducerTable | None = None
    while next_entry <= last:
        for read_entry in await reader.read(next_entry, last, bytes_max=READ_BYTES):
            section = _require_section(record, read_entry.entry, read_entry.payload)
            if table is None:
                table = section.table
                if table is None:
                    raise CorruptData(
                        f"segment {record.segment}: entry {next_entry} is not a snapshot"
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
        raise CorruptData(f"segment {record.segment}: entry {entry} has no producer section")
    return section
