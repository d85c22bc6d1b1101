"""Positions in a log: the last readable one, and the first with a txid or of a time.

A search reads little, however long the log: the keys of segments are dense, so they are bisected by single
reads until `PAGE` are left, which are one page; in the segment that is found entries are.
"""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from dataclasses import replace

import trio

from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import CorruptData, InvalidRequest, NoSuchEntry, NoSuchLedger
from ..format.control_record import last_record
from ..format.dlsn import DLSN
from ..format.record import Columns, EntryHeader, LogRecord, decode, decode_header
from ..interfaces.segment_store import SegmentEntry, SegmentEntryReader, SegmentEntryStore
from ..model.log_keys import incarnation_text, segment_key
from ..model.log_state import LogState
from ..model.position_outcome import HeldPosition, LogLookup, PositionOutcome, resolve_position
from ..model.segment_record import UNKNOWN, SegmentRecord
from .segment_reader import open_segment, read_header
from .state_watch import StateWatch

PAGE = 64
"""Segments: some 8 KiB of records, in one read."""
LIST_PAGE = 1000
ROLL_WAIT_S = 2.0
"""How long somebody who asks for the end waits for a roll that is under way."""
ROLL_LOOK_S = 0.05


async def segments_page(
    metadata: Metadata, state: LogState, first: int, limit: int | None = None
) -> list[SegmentRecord]:
    """The records of a log's segments from number ``first`` on, ascending, at most ``limit``."""
    start = segment_key(state.log_id, max(first, state.first_segment))
    end = segment_key(state.log_id, state.last_segment + 1)
    found: list[SegmentRecord] = []
    if limit == 0 or start >= end:
        return found
    async for item in Scan(metadata, start, end, limit=min(limit or LIST_PAGE, LIST_PAGE)):
        found.append(SegmentRecord.decode(item.value))
        if len(found) == limit:
            break
    return found


async def segments_from(
    metadata: Metadata, state: LogState, passed: Callable[[SegmentRecord], bool]
) -> AsyncGenerator[SegmentRecord, None]:
    """The segments from the first on that is not ``passed``, ascending; leave it by `aclosing`.

    ``passed`` holds for closed segments alone, and for all before one for which it holds.
    """
    low, high = state.first_segment, state.open_from
    while high - low > PAGE:
        middle = (low + high) // 2
        found = await metadata.get(segment_key(state.log_id, middle))
        # One that is gone was truncated meanwhile.
        if found is None or passed(SegmentRecord.decode(found.value)):
            low = middle + 1
        else:
            high = middle
    first = segment_key(state.log_id, low)
    end = segment_key(state.log_id, state.last_segment + 1)
    leading = True
    async for item in Scan(metadata, first, end, limit=PAGE):
        record = SegmentRecord.decode(item.value)
        leading = leading and record.closed and passed(record)
        if not leading:
            yield record


async def first_readable(metadata: Metadata, state: LogState) -> DLSN:
    """Where the first user record that is left is looked for; in an empty log, the first position of all."""
    before = state.truncated_sequence_id
    async with aclosing(
        segments_from(metadata, state, lambda one: one.end_sequence_id <= before)
    ) as found:
        async for record in found:
            return max(state.truncated_to, record.first_dlsn)
    return DLSN.INITIAL


async def see_roll_through(follower: StateWatch, ledgers: SegmentEntryStore) -> None:
    """Where a roll is under way: look until the segment that ended is closed, for `ROLL_WAIT_S` at most.

    What is in the next one is acknowledged, and may have been committed (G4), and nobody can say of which
    number its records are before that. A next segment that was only made ready has none.
    """
    state = follower.state
    if state.last_segment <= state.open_from:
        return
    following = await follower.segment(state.last_segment)
    if not following.closed:
        reader = await open_segment(ledgers, following)
        reader.close()
        if reader.lac < 0:
            return
    with trio.move_on_after(ROLL_WAIT_S):
        while follower.state.open_from < following.segment:
            await trio.sleep(ROLL_LOOK_S)
            await follower.load()


async def last_readable(
    metadata: Metadata, follower: StateWatch, ledgers: SegmentEntryStore
) -> DLSN | None:
    """The position of the last user record that can be read now; None in an empty log."""
    await see_roll_through(follower, ledgers)
    state = follower.state
    last = None
    if state.in_progress:
        record = await follower.segment(state.open_from)
        # By now it may be closed.
        last = record.last_dlsn if record.closed else await _last_of(ledgers, record)
    if last is None:
        # Segments may be empty, also all those at the end.
        every = state.next_sequence_id
        async with aclosing(
            segments_from(metadata, state, lambda one: one.end_sequence_id < every)
        ) as found:
            async for record in found:
                last = record.last_dlsn if record.closed else None
                break
    return None if last is None or last < state.truncated_to else last


async def record_with_id(
    metadata: Metadata, state: LogState, ledgers: SegmentEntryStore, sequence_id: int
) -> LogRecord | None:
    """The record that was the log's ``sequence_id``-th, from 0, and is left; None: it cannot be read yet."""
    async with aclosing(
        segments_from(metadata, state, lambda one: one.end_sequence_id <= sequence_id)
    ) as found:
        async for record in found:
            if not 0 <= record.start_sequence_id <= sequence_id:
                return None  # after one in progress (H11)
            wanted = sequence_id - record.start_sequence_id
            reader = await open_segment(ledgers, record)
            try:
                _, entry = await _first(
                    reader,
                    lambda header: header.records_through,
                    wanted + 1,
                    0,
                    reader.lac + 1,
                    0,
                    max(record.records, wanted + 1),
                )
            finally:
                reader.close()
            if entry is None:
                return None
            header = decode_header(entry.payload)
            return _records(state.name, record, entry, header)[wanted - header.records_before]
    return None


async def record_at(
    ledgers: SegmentEntryStore, name: str, record: SegmentRecord, at: DLSN
) -> LogRecord:
    """The record at this position of a segment, which the caller has seen that it can be read."""
    reader = await open_segment(ledgers, record)
    try:
        if not reader.closed:
            reader.note_lac(at.entry)  # the bookies may have forgotten it since (H24)
        (entry,) = await reader.read(at.entry, at.entry, bytes_max=1)
    finally:
        reader.close()
    return _records(name, record, entry, decode_header(entry.payload))[at.slot]


def _records(
    name: str, record: SegmentRecord, entry: SegmentEntry, header: EntryHeader
) -> list[LogRecord]:
    return decode(entry.payload, header, record.origin(entry.entry, header), name).records()


async def count_before(
    metadata: Metadata, follower: StateWatch, ledgers: SegmentEntryStore, at: DLSN | None
) -> int:
    """How many records the log ever had before a position; None, and whatever is after the end: the end.

    Reads at most one segment's record and one entry. Raises `LogTruncated` where it is not left.
    """
    state = follower.state
    if at is not None:
        held = await held_at(metadata, ledgers, state, at)
        verdict = resolve_position(held, LogLookup.of(state))
        if verdict.met is not PositionOutcome.GO_ON:
            raise verdict.error(state.name, held)
    if at is not None and at <= state.truncated_to:
        return state.truncated_sequence_id
    if at is None:
        await see_roll_through(follower, ledgers)
        state = follower.state
    if at is None or at.segment >= state.open_from:
        if not state.in_progress:
            return state.next_sequence_id
        record = await follower.segment(state.open_from)
        if at is not None and at.segment > state.open_from:
            at = None
    else:
        record = await follower.segment(at.segment)
    if record.closed:
        end = record.end_sequence_id
        return end if at is None else await sequence_id_at(ledgers, record, at)
    reader = await open_segment(ledgers, record)
    try:
        if reader.lac < 0:
            return record.start_sequence_id
        header = await read_header(reader, reader.lac if at is None else min(at.entry, reader.lac))
        if at is None or at.entry > reader.lac:
            return record.start_sequence_id + header.records_through
        within = min(header.records_before + at.slot, header.records_through)
        return record.start_sequence_id + within
    finally:
        reader.close()


async def _last_of(ledgers: SegmentEntryStore, record: SegmentRecord) -> DLSN | None:
    """The last record of a segment in progress, as far as it is confirmed."""
    reader = await open_segment(ledgers, record)
    try:
        entry = reader.lac
        if entry < 0:
            return None
        (found,) = await reader.read(entry, entry, bytes_max=1)
        header = decode_header(found.payload)
        if header.control:
            said = last_record(entry, found.payload, header)
            if said is not None:
                return DLSN(record.segment, said.entry, said.slot)
            # It counts the records before it, as every entry does: the last one is found by that.
            every = header.records_before
            if every == 0:
                return None
            entry, holder = await _first(
                reader, lambda one: one.records_through, every, 0, entry, 0, every
            )
            if holder is None:
                raise CorruptData(
                    f"entry {record.segment}.{entry} counts {every} records before it, and none has them"
                )
            header = decode_header(holder.payload)
        return DLSN(record.segment, entry, header.count - 1)
    finally:
        reader.close()


async def find_txid(
    metadata: Metadata, follower: StateWatch, ledgers: SegmentEntryStore, txid: int
) -> DLSN:
    """The position of the first record whose txid is at least this one; after the end: where the next one
    will be. Never below the truncation point. Raises `InvalidRequest` as `check_searchable`."""
    state = follower.state
    check_searchable(state)
    return await search_txid(
        state, ledgers, segments_from(metadata, state, lambda one: one.last_txid < txid), txid
    )


def check_searchable(state: LogState) -> None:
    """Raise `InvalidRequest` if txids decreased and the entries do not store the greatest so far."""
    if not state.searchable:
        raise InvalidRequest(
            f'log "{state.name}": an older program wrote txids that are not in order, so none can be '
            "searched for; a time can"
        )


async def search_txid(
    state: LogState,
    ledgers: SegmentEntryStore,
    segments: AsyncGenerator[SegmentRecord, None],
    txid: int,
) -> DLSN:
    """As `find_txid`, among these segments; the one in progress may say how far it is confirmed.

    The first record with at least this txid is the first one at which the greatest txid so far is at least
    that. So the search uses the greatest so far, which never decreases: of a log at a segment's end, of a
    segment at an entry's end.
    """

    def first_slot(columns: Columns) -> int | None:
        return next((slot for slot, one in enumerate(columns.txids) if one >= txid), None)

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
    metadata: Metadata, follower: StateWatch, ledgers: SegmentEntryStore, wall_ms: int
) -> DLSN:
    """The position of the first entry whose log time is ``wall_ms`` or later; as `find_txid`.

    Log time never goes back, whatever the clocks did (H148).
    """
    state = follower.state
    return await search_time(
        state,
        ledgers,
        segments_from(metadata, state, lambda one: one.end_time_ms < wall_ms),
        wall_ms,
    )


async def search_time(
    state: LogState,
    ledgers: SegmentEntryStore,
    segments: AsyncGenerator[SegmentRecord, None],
    wall_ms: int,
) -> DLSN:
    """As `find_time`, among these segments; the one in progress may say how far it is confirmed."""
    return await _search(
        state,
        ledgers,
        segments,
        wall_ms,
        SegmentRecord.time_of,
        lambda record: (record.created_ms, record.end_time_ms),
        lambda _: 0,
    )


async def _search(
    state: LogState,
    ledgers: SegmentEntryStore,
    segments: AsyncGenerator[SegmentRecord, None],
    wanted: int,
    value: Callable[[SegmentRecord, EntryHeader], int],
    ends: Callable[[SegmentRecord], tuple[int, int]],
    slot: Callable[[Columns], int | None],
) -> DLSN:
    """The first entry of these segments whose value is at least ``wanted``, and the slot in it.

    ``ends``: about the values of a closed segment's first and last entry. ``slot``: None if no record
    of the entry matches, because an earlier record gave the entry its value.
    """
    earliest = state.earliest
    end = None
    async with aclosing(segments):
        async for record in segments:
            if record.start_sequence_id == UNKNOWN:
                break  # after one in progress: not readable yet (H11)
            if record.segment < earliest.segment:
                continue  # it is truncated, and not removed yet
            reader = await open_segment(ledgers, record)
            try:
                if not reader.closed:
                    reader.note_lac(record.last_entry)

                def value_here(header: EntryHeader, record: SegmentRecord = record) -> int:
                    return value(record, header)

                high = reader.lac + 1
                low = min(earliest.entry, high) if record.segment == earliest.segment else 0
                low_value, high_value = ends(record)
                if not record.closed and low < high:
                    # How far it goes only the last entry says; most ask for what is new.
                    high_value = value_here(await read_header(reader, high - 1))
                    low_value = value_here(await read_header(reader, low))
                    if high_value < wanted:
                        low = high
                entry, found = await _first(
                    reader, value_here, wanted, low, high, low_value, high_value
                )
                while entry < high:
                    if found is None:
                        (found,) = await reader.read(entry, entry, bytes_max=1)
                    header = decode_header(found.payload)
                    if header.control:
                        entry, found = await _pass_control(reader, record, header, entry + 1, high)
                        continue
                    if value_here(header) >= wanted:
                        columns = _columns_from(state, record, found, header)
                        at = slot(columns) if columns.count else None
                        if at is not None:
                            return DLSN(record.segment, entry, columns.first_slot + at)
                    entry, found = entry + 1, None
            finally:
                reader.close()
            after = (record.segment + 1, 0) if record.closed else (record.segment, entry)
            end = DLSN(*after, 0)
    return max(earliest, end or DLSN(state.open_from, 0, 0))


async def _pass_control(
    reader: SegmentEntryReader, record: SegmentRecord, header: EntryHeader, entry: int, high: int
) -> tuple[int, SegmentEntry | None]:
    """Find the first entry from ``entry`` on that has a record: there may be thousands without one."""
    before = header.records_before
    return await _first(
        reader,
        lambda one: one.records_through,
        before + 1,
        entry,
        high,
        before,
        max(record.records, before + 1),
    )


def _columns_from(
    state: LogState, record: SegmentRecord, found: SegmentEntry, header: EntryHeader
) -> Columns:
    """Return the records of an entry that are not truncated."""
    earliest = state.earliest
    origin = record.origin(found.entry, header)
    columns = decode(found.payload, header, origin, state.name)
    if record.segment == earliest.segment and found.entry == earliest.entry:
        return columns.cut(min(earliest.slot, columns.count), columns.count)
    return columns


async def sequence_id_at(ledgers: SegmentEntryStore, record: SegmentRecord, at: DLSN) -> int:
    """The sequence id of the first record at or after a position of this segment, up to its end.

    The caller has seen that the position can be read, or lies before one that could be.
    """
    if record.closed and (record.last_dlsn is None or at > record.last_dlsn):
        return record.start_sequence_id + record.records
    if at.entry == 0 and at.slot == 0:
        return record.start_sequence_id
    reader = await open_segment(ledgers, record)
    try:
        if not reader.closed:
            reader.note_lac(at.entry)  # the bookies may have forgotten it since (H24)
        header = await read_header(reader, at.entry)
    finally:
        reader.close()
    return record.start_sequence_id + min(header.records_before + at.slot, header.records_through)


async def held_at(
    metadata: Metadata, ledgers: SegmentEntryStore, state: LogState, dlsn: DLSN
) -> HeldPosition:
    """An address as a position of this log: below the truncation point with its sequence id, if known.

    For different positions may name one place: the last one's successor, the next entry's first, the next
    segment's first.
    """
    held = HeldPosition(dlsn, incarnation_text(state.log_id), None)
    if dlsn >= state.truncated_to or state.truncated_sequence_id == 0:
        return held
    found = await metadata.get(segment_key(state.log_id, dlsn.segment))
    if found is None:
        return held
    record = SegmentRecord.decode(found.value)
    if record.start_sequence_id == UNKNOWN:
        return held
    try:
        return replace(held, sequence_id=await sequence_id_at(ledgers, record, dlsn))
    except (NoSuchLedger, NoSuchEntry):
        return held


async def _first(
    reader: SegmentEntryReader,
    value: Callable[[EntryHeader], int],
    wanted: int,
    low: int,
    high: int,
    low_value: int,
    high_value: int,
) -> tuple[int, SegmentEntry | None]:
    """The first entry from ``low`` to ``high`` whose value is at least ``wanted``, as it was read.

    ``high`` and None where there is none; the values need only be about right.
    """
    looks = first_reaching(wanted, low, high, low_value, high_value)
    reached = None
    try:
        place = next(looks)
        while True:
            (found,) = await reader.read(place, place, bytes_max=1)
            seen = value(decode_header(found.payload))
            if seen >= wanted:
                reached = found
            place = looks.send(seen)
    except StopIteration as over:
        return over.value, reached


# Txids, times and counts grow about evenly, so the next place is guessed by interpolation. After a guess that
# left more than a half, the next place is the middle. At most 2 log2 of the length + 1 places are read.

Looks = Generator[int, int, int]
"""Gives a place to look at, takes the value there; returns the first place that reaches what is wanted."""


def first_reaching(wanted: int, low: int, high: int, low_value: int, high_value: int) -> Looks:
    """The first place from ``low`` to ``high`` whose value is at least ``wanted``; ``high`` where none is.

    The two values are about those at ``low`` and at ``high``: wrong ones cost looks, and nothing else.
    """
    past = 1
    """How far beyond a guess it looks, so that what is wanted lies on the short side."""
    halve = False
    while low < high:
        before = high - low
        middle = place = low + before // 2
        if not halve:
            if wanted <= low_value:
                place = low
            elif wanted >= high_value:
                place = high
            else:
                place = low + before * (wanted - low_value) // (high_value - low_value)
            place += past if place < middle else -past
            place = min(max(place, low), high - 1)
        value = yield place
        if value < wanted:
            low, low_value = place + 1, value
        else:
            high, high_value = place, value
        if 2 * (high - low) <= before:
            halve = False
        else:
            halve, past = not halve, 4 * past
    return low
