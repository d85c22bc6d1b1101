"""Find positions in a log: the last readable one, and the first with a transaction ID or a time.

A search reads little, however long the log is. Segment numbers have no gaps, so their records are bisected by
single reads until `BISECT_PAGE` are left, which are read at once. In the segment found, the entries are
bisected.
"""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from dataclasses import replace

import trio

from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import CorruptData, InvalidRequest, NoSuchEntry, NoSuchLedger
from ..format.control_record import decode_last_record
from ..format.dlsn import DLSN
from ..format.record import Columns, EntryHeader, LogRecord, decode_columns, decode_header
from ..interfaces.segment_store import SegmentEntry, SegmentEntryReader, SegmentEntryStore
from ..model.log_keys import incarnation_text, segment_key
from ..model.log_state import LogState
from ..model.position_outcome import HeldPosition, LogLookup, PositionOutcome, resolve_position
from ..model.segment_record import UNKNOWN, SegmentRecord
from .segment_reader import open_segment, read_header
from .state_watch import StateWatch

BISECT_PAGE = 64
"""The number of segment records in one read, about 8 KiB."""
LIST_PAGE = 1000
ROLL_WAIT_S = 2.0
"""How long a lookup of the end waits for a roll in progress."""
ROLL_POLL_INTERVAL_S = 0.05


async def segments_page(
    metadata: Metadata, state: LogState, first: int, limit: int | None = None
) -> list[SegmentRecord]:
    """Return at most ``limit`` segment records of a log from number ``first`` on, in ascending order."""
    start = segment_key(state.log_id, max(first, state.first_segment))
    end = segment_key(state.log_id, state.last_segment + 1)
    segments: list[SegmentRecord] = []
    if limit == 0 or start >= end:
        return segments
    async for item in Scan(metadata, start, end, limit=min(limit or LIST_PAGE, LIST_PAGE)):
        segments.append(SegmentRecord.decode(item.value))
        if len(segments) == limit:
            break
    return segments


async def segments_from(
    metadata: Metadata, state: LogState, is_before: Callable[[SegmentRecord], bool]
) -> AsyncGenerator[SegmentRecord, None]:
    """Yield the segments, in ascending order, from the first one on that is not ``is_before``.

    Use it with `aclosing`.

    Args:
        is_before: Only called for closed segments. If True for one, it must be True for all before it.
    """
    low, high = state.first_segment, state.first_open_segment
    while high - low > BISECT_PAGE:
        middle = (low + high) // 2
        stored = await metadata.get(segment_key(state.log_id, middle))
        # A missing record was truncated in the meantime.
        if stored is None or is_before(SegmentRecord.decode(stored.value)):
            low = middle + 1
        else:
            high = middle
    first = segment_key(state.log_id, low)
    end = segment_key(state.log_id, state.last_segment + 1)
    skipping = True
    async for item in Scan(metadata, first, end, limit=BISECT_PAGE):
        record = SegmentRecord.decode(item.value)
        skipping = skipping and record.closed and is_before(record)
        if not skipping:
            yield record


async def first_readable(metadata: Metadata, state: LogState) -> DLSN:
    """Return a position at or before the first remaining user record.

    In an empty log, the first position of all.
    """
    truncated_id = state.truncated_sequence_id
    async with aclosing(
        segments_from(metadata, state, lambda segment: segment.end_sequence_id <= truncated_id)
    ) as segments:
        async for record in segments:
            return max(state.truncated_to, record.first_dlsn)
    return DLSN.INITIAL


async def wait_for_roll(state_watch: StateWatch, ledgers: SegmentEntryStore) -> None:
    """If a roll is in progress, wait until the ended segment is closed, at most `ROLL_WAIT_S`.

    The records in the next segment are acknowledged and may be committed (G4), but have no sequence IDs
    before that close. A next segment that was only prepared has no records.
    """
    state = state_watch.state
    if state.last_segment <= state.first_open_segment:
        return
    next_segment = await state_watch.segment(state.last_segment)
    if not next_segment.closed:
        reader = await open_segment(ledgers, next_segment)
        reader.close()
        if reader.lac < 0:
            return
    with trio.move_on_after(ROLL_WAIT_S):
        while state_watch.state.first_open_segment < next_segment.segment:
            await trio.sleep(ROLL_POLL_INTERVAL_S)
            await state_watch.load()


async def last_readable(
    metadata: Metadata, state_watch: StateWatch, ledgers: SegmentEntryStore
) -> DLSN | None:
    """Return the position of the last readable user record. None in an empty log."""
    await wait_for_roll(state_watch, ledgers)
    state = state_watch.state
    last = None
    if state.in_progress:
        record = await state_watch.segment(state.first_open_segment)
        # It may have been closed since the state was read.
        last = record.last_dlsn if record.closed else await _last_confirmed_record(ledgers, record)
    if last is None:
        # Segments can be empty, even all of those at the end.
        record_total = state.next_sequence_id
        async with aclosing(
            segments_from(metadata, state, lambda segment: segment.end_sequence_id < record_total)
        ) as segments:
            async for record in segments:
                last = record.last_dlsn if record.closed else None
                break
    return None if last is None or last < state.truncated_to else last


async def record_with_id(
    metadata: Metadata, state: LogState, ledgers: SegmentEntryStore, sequence_id: int
) -> LogRecord | None:
    """Return the record with this sequence ID, counted from 0. None if it is truncated or not readable
    yet."""
    async with aclosing(
        segments_from(metadata, state, lambda segment: segment.end_sequence_id <= sequence_id)
    ) as segments:
        async for record in segments:
            if not 0 <= record.start_sequence_id <= sequence_id:
                return None  # after one in progress (H11)
            segment_index = sequence_id - record.start_sequence_id
            reader = await open_segment(ledgers, record)
            try:
                _, entry = await _first_entry_reaching(
                    reader,
                    lambda header: header.records_through,
                    segment_index + 1,
                    0,
                    reader.lac + 1,
                    0,
                    max(record.records, segment_index + 1),
                )
            finally:
                reader.close()
            if entry is None:
                return None
            header = decode_header(entry.payload)
            return _decode_records(state.name, record, entry, header)[
                segment_index - header.records_before
            ]
    return None


async def record_at(
    ledgers: SegmentEntryStore, name: str, record: SegmentRecord, position: DLSN
) -> LogRecord:
    """Return the record at this position of a segment. The caller has seen that it is readable."""
    reader = await open_segment(ledgers, record)
    try:
        if not reader.closed:
            reader.record_lac(position.entry)  # the bookies may have lost the LAC since (H24)
        (entry,) = await reader.read(position.entry, position.entry, bytes_max=1)
    finally:
        reader.close()
    return _decode_records(name, record, entry, decode_header(entry.payload))[position.slot]


def _decode_records(
    name: str, record: SegmentRecord, entry: SegmentEntry, header: EntryHeader
) -> list[LogRecord]:
    return decode_columns(entry.payload, header, record.origin(entry.entry, header), name).records()


async def count_before(
    metadata: Metadata, state_watch: StateWatch, ledgers: SegmentEntryStore, position: DLSN | None
) -> int:
    """Return the number of records that the log ever had before a position.

    At most one segment record and one entry are read.

    Args:
        position: None, or any position after the end, for the end.
    Raises:
        LogTruncated: The position is truncated.
    """
    state = state_watch.state
    if position is not None:
        held_position = await held_position_at(metadata, ledgers, state, position)
        resolution = resolve_position(held_position, LogLookup.of(state))
        if resolution.outcome is not PositionOutcome.CONTINUE:
            raise resolution.error(state.name, held_position)
    if position is not None and position <= state.truncated_to:
        return state.truncated_sequence_id
    if position is None:
        await wait_for_roll(state_watch, ledgers)
        state = state_watch.state
    if position is None or position.segment >= state.first_open_segment:
        if not state.in_progress:
            return state.next_sequence_id
        record = await state_watch.segment(state.first_open_segment)
        if position is not None and position.segment > state.first_open_segment:
            position = None
    else:
        record = await state_watch.segment(position.segment)
    if record.closed:
        end = record.end_sequence_id
        return end if position is None else await sequence_id_at(ledgers, record, position)
    reader = await open_segment(ledgers, record)
    try:
        if reader.lac < 0:
            return record.start_sequence_id
        header = await read_header(
            reader, reader.lac if position is None else min(position.entry, reader.lac)
        )
        if position is None or position.entry > reader.lac:
            return record.start_sequence_id + header.records_through
        segment_index = min(header.records_before + position.slot, header.records_through)
        return record.start_sequence_id + segment_index
    finally:
        reader.close()


async def _last_confirmed_record(ledgers: SegmentEntryStore, record: SegmentRecord) -> DLSN | None:
    """Return the position of the last confirmed record of an open segment."""
    reader = await open_segment(ledgers, record)
    try:
        entry = reader.lac
        if entry < 0:
            return None
        (last_entry,) = await reader.read(entry, entry, bytes_max=1)
        header = decode_header(last_entry.payload)
        if header.is_control:
            stored_last = decode_last_record(entry, last_entry.payload, header)
            if stored_last is not None:
                return DLSN(record.segment, stored_last.entry, stored_last.slot)
            # Every entry counts the records before it, so the last record is found by its number.
            record_total = header.records_before
            if record_total == 0:
                return None
            entry, last_with_records = await _first_entry_reaching(
                reader,
                lambda entry_header: entry_header.records_through,
                record_total,
                0,
                entry,
                0,
                record_total,
            )
            if last_with_records is None:
                raise CorruptData(
                    f"entry {record.segment}.{entry} counts {record_total} records before it, but no entry "
                    "has them"
                )
            header = decode_header(last_with_records.payload)
        return DLSN(record.segment, entry, header.count - 1)
    finally:
        reader.close()


async def find_txid(
    metadata: Metadata, state_watch: StateWatch, ledgers: SegmentEntryStore, txid: int
) -> DLSN:
    """Return the position of the first record whose transaction ID is at least ``txid``.

    If there is none, return the position of the next record. The result is never below the truncation point.

    Raises:
        InvalidRequest: The log cannot be searched (`check_searchable`).
    """
    state = state_watch.state
    check_searchable(state)
    return await search_txid(
        state,
        ledgers,
        segments_from(metadata, state, lambda segment: segment.last_txid < txid),
        txid,
    )


def check_searchable(state: LogState) -> None:
    """Raise `InvalidRequest` if transaction IDs decreased and the entries do not store the greatest so
    far."""
    if not state.is_txid_searchable:
        raise InvalidRequest(
            f'log "{state.name}": an older program wrote decreasing txids, so they cannot be searched. '
            "Search by time instead."
        )


async def search_txid(
    state: LogState,
    ledgers: SegmentEntryStore,
    segments: AsyncGenerator[SegmentRecord, None],
    txid: int,
) -> DLSN:
    """Search as `find_txid` in these segments. The open one may have its last confirmed entry.

    The first record with at least this transaction ID is the first one at which the greatest so far is at
    least ``txid``. So the search uses the greatest so far, which never decreases. It is stored per segment
    and per entry.
    """

    def first_slot(columns: Columns) -> int | None:
        return next(
            (slot for slot, record_txid in enumerate(columns.txids) if record_txid >= txid), None
        )

    return await _search(
        state,
        ledgers,
        segments,
        txid,
        SegmentRecord.max_txid_of,
        lambda record: (record.first_txid, record.last_txid),
        first_slot,
    )


async def find_time(
    metadata: Metadata, state_watch: StateWatch, ledgers: SegmentEntryStore, time_ms: int
) -> DLSN:
    """Return the position of the first entry whose log time is at least ``time_ms``, as `find_txid`.

    Log time never decreases, regardless of the clocks (H148).
    """
    state = state_watch.state
    return await search_time(
        state,
        ledgers,
        segments_from(metadata, state, lambda segment: segment.end_time_ms < time_ms),
        time_ms,
    )


async def search_time(
    state: LogState,
    ledgers: SegmentEntryStore,
    segments: AsyncGenerator[SegmentRecord, None],
    time_ms: int,
) -> DLSN:
    """Search as `find_time` in these segments. The open one may have its last confirmed entry."""
    return await _search(
        state,
        ledgers,
        segments,
        time_ms,
        SegmentRecord.time_of,
        lambda record: (record.created_ms, record.end_time_ms),
        lambda _: 0,
    )


async def _search(
    state: LogState,
    ledgers: SegmentEntryStore,
    segments: AsyncGenerator[SegmentRecord, None],
    wanted: int,
    entry_value: Callable[[SegmentRecord, EntryHeader], int],
    end_values: Callable[[SegmentRecord], tuple[int, int]],
    find_slot: Callable[[Columns], int | None],
) -> DLSN:
    """Return the first entry of these segments whose value is at least ``wanted``, and the slot in it.

    Args:
        entry_value: Returns the value of an entry.
        end_values: Returns the approximate values of a closed segment's first and last entry.
        find_slot: Returns None if no record of the entry matches, because an earlier record gave the entry
            its value.
    """
    earliest = state.earliest
    end = None
    async with aclosing(segments):
        async for record in segments:
            if record.start_sequence_id == UNKNOWN:
                break  # the segment before is in progress, so this one is not readable yet (H11)
            if record.segment < earliest.segment:
                continue  # truncated and not deleted yet
            reader = await open_segment(ledgers, record)
            try:
                if not reader.closed:
                    reader.record_lac(record.last_entry)
                match, entry = await _search_segment(
                    state, reader, record, wanted, entry_value, end_values, find_slot
                )
                if match is not None:
                    return match
            finally:
                reader.close()
            next_position = (record.segment + 1, 0) if record.closed else (record.segment, entry)
            end = DLSN(*next_position, 0)
    return max(earliest, end or DLSN(state.first_open_segment, 0, 0))


async def _search_segment(
    state: LogState,
    reader: SegmentEntryReader,
    record: SegmentRecord,
    wanted: int,
    entry_value: Callable[[SegmentRecord, EntryHeader], int],
    end_values: Callable[[SegmentRecord], tuple[int, int]],
    find_slot: Callable[[Columns], int | None],
) -> tuple[DLSN | None, int]:
    """Return the first match in one segment, or None, and the entry at which the search ended.

    Args:
        state: The log's state.
        reader: The reader of the segment's ledger.
        record: The segment.
        wanted: The lowest matching value.
        entry_value: Returns the value of an entry, which does not decrease within the segment.
        end_values: Returns the approximate values of the first and last entry of a closed segment.
        find_slot: Returns the slot of the first matching record of an entry. None if no record of the entry
            matches, because an earlier record gave the entry its value.
    """

    def value_here(header: EntryHeader) -> int:
        return entry_value(record, header)

    high = reader.lac + 1
    low = min(state.earliest.entry, high) if record.segment == state.earliest.segment else 0
    low_value, high_value = end_values(record)
    if not record.closed and low < high:
        # Only the last entry has the end value of an open segment. Most searches are for new records.
        high_value = value_here(await read_header(reader, high - 1))
        low_value = value_here(await read_header(reader, low))
        if high_value < wanted:
            low = high
    entry, stored_entry = await _first_entry_reaching(
        reader, value_here, wanted, low, high, low_value, high_value
    )
    while entry < high:
        if stored_entry is None:
            (stored_entry,) = await reader.read(entry, entry, bytes_max=1)
        header = decode_header(stored_entry.payload)
        if header.is_control:
            entry, stored_entry = await _skip_control_entries(
                reader, record, header, entry + 1, high
            )
            continue
        if value_here(header) >= wanted:
            columns = _untruncated_columns(state, record, stored_entry, header)
            matching_slot = find_slot(columns) if columns.count else None
            if matching_slot is not None:
                return DLSN(record.segment, entry, columns.first_slot + matching_slot), entry
        entry, stored_entry = entry + 1, None
    return None, entry


async def _skip_control_entries(
    reader: SegmentEntryReader, record: SegmentRecord, header: EntryHeader, entry: int, high: int
) -> tuple[int, SegmentEntry | None]:
    """Find the first entry from ``entry`` on that has a record.

    Thousands of control entries can precede it.
    """
    records_before = header.records_before
    return await _first_entry_reaching(
        reader,
        lambda entry_header: entry_header.records_through,
        records_before + 1,
        entry,
        high,
        records_before,
        max(record.records, records_before + 1),
    )


async def header_of_record(
    reader: SegmentEntryReader, record: SegmentRecord, index: int, entry: int
) -> EntryHeader:
    """Return the header of the entry that has a record.

    Args:
        reader: The reader of the segment's ledger.
        record: The segment.
        index: The number of records of the segment before this one. The caller has seen that it is readable.
        entry: An entry that is not after that of the record. Usually, one or two entries are read. If many
            control entries follow it, they are bisected.

    Raises:
        CorruptData: No entry has the record.
    """
    high = reader.lac + 1
    for near_entry in range(entry, min(entry + 2, high)):
        header = await read_header(reader, near_entry)
        if header.records_through > index:
            return header
    _, found = await _first_entry_reaching(
        reader,
        lambda entry_header: entry_header.records_through,
        index + 1,
        min(entry + 2, high),
        high,
        index,
        max(record.records, index + 1),
    )
    if found is None:
        raise CorruptData(
            f"segment {record.segment}: no entry up to {high - 1} has record {index}, which is counted"
        )
    return decode_header(found.payload)


def _untruncated_columns(
    state: LogState, record: SegmentRecord, stored_entry: SegmentEntry, header: EntryHeader
) -> Columns:
    earliest = state.earliest
    origin = record.origin(stored_entry.entry, header)
    columns = decode_columns(stored_entry.payload, header, origin, state.name)
    if record.segment == earliest.segment and stored_entry.entry == earliest.entry:
        return columns.cut(min(earliest.slot, columns.count), columns.count)
    return columns


async def sequence_id_at(ledgers: SegmentEntryStore, record: SegmentRecord, position: DLSN) -> int:
    """Return the sequence ID of the first record at or after a position of this segment, up to its end.

    The caller has seen that the position is readable, or is before a readable one.
    """
    if record.closed and (record.last_dlsn is None or position > record.last_dlsn):
        return record.start_sequence_id + record.records
    if position.entry == 0 and position.slot == 0:
        return record.start_sequence_id
    reader = await open_segment(ledgers, record)
    try:
        if not reader.closed:
            reader.record_lac(position.entry)  # the bookies may have lost the LAC since (H24)
        header = await read_header(reader, position.entry)
    finally:
        reader.close()
    return record.start_sequence_id + min(
        header.records_before + position.slot, header.records_through
    )


async def held_position_at(
    metadata: Metadata, ledgers: SegmentEntryStore, state: LogState, dlsn: DLSN
) -> HeldPosition:
    """Return a DLSN as a position of this log. Below the truncation point, it has its sequence ID, if known.

    The sequence ID is needed because different DLSNs can be the same position: the successor of a last
    record, the start of the next entry, the start of the next segment.
    """
    held_position = HeldPosition(dlsn, incarnation_text(state.log_id), None)
    # With 0, no record was truncated, so the position needs no proof that its records remain.
    if dlsn >= state.truncated_to or state.truncated_sequence_id == 0:
        return held_position
    stored = await metadata.get(segment_key(state.log_id, dlsn.segment))
    if stored is None:
        return held_position
    record = SegmentRecord.decode(stored.value)
    if record.start_sequence_id == UNKNOWN:
        return held_position
    try:
        return replace(held_position, sequence_id=await sequence_id_at(ledgers, record, dlsn))
    except (NoSuchLedger, NoSuchEntry):
        return held_position


async def _first_entry_reaching(
    reader: SegmentEntryReader,
    entry_value: Callable[[EntryHeader], int],
    wanted: int,
    low: int,
    high: int,
    low_value: int,
    high_value: int,
) -> tuple[int, SegmentEntry | None]:
    """Return the first entry from ``low`` to ``high`` whose value is at least ``wanted``, and its read data.

    Return ``high`` and None if there is none. The given values can be approximate.
    """
    probes = interpolation_search(wanted, low, high, low_value, high_value)
    match = None
    try:
        probe = next(probes)
        while True:
            (entry,) = await reader.read(probe, probe, bytes_max=1)
            probed_value = entry_value(decode_header(entry.payload))
            if probed_value >= wanted:
                match = entry
            probe = probes.send(probed_value)
    except StopIteration as search_end:
        return search_end.value, match


# Transaction IDs, times and counts grow about evenly, so the next probe is interpolated. After a probe that
# left more than half of the range, the next probe is its middle. At most 2 log2(length + 1) entries are read.

Probes = Generator[int, int, int]
"""Yields the next index to probe and receives its value. Returns the first index with at least the wanted
value."""


def interpolation_search(
    wanted: int, low: int, high: int, low_value: int, high_value: int
) -> Probes:
    """Search the first index from ``low`` to ``high`` whose value is at least ``wanted``. ``high`` if there
    is none.

    The two values are the approximate ones at ``low`` and ``high``. Wrong values only cost additional probes.
    """
    overshoot = 1
    """How far the probe is beyond the interpolated index, so that the wanted one is on the shorter side."""
    bisect_next = False
    while low < high:
        length_before = high - low
        middle = probe = low + length_before // 2
        if not bisect_next:
            if wanted <= low_value:
                probe = low
            elif wanted >= high_value:
                probe = high
            else:
                probe = low + length_before * (wanted - low_value) // (high_value - low_value)
            probe += overshoot if probe < middle else -overshoot
            probe = min(max(probe, low), high - 1)
        probed_value = yield probe
        if probed_value < wanted:
            low, low_value = probe + 1, probed_value
        else:
            high, high_value = probe, probed_value
        if 2 * (high - low) <= length_before:
            bisect_next = False
        else:
            bisect_next, overshoot = not bisect_next, 4 * overshoot
    return low
