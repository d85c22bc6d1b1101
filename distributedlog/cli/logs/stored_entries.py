"""`dlog log inspect`: list the stored entries of a log, from their headers alone."""

from collections.abc import AsyncIterator
from typing import Any

from ...log.declarations.compression_codecs import CODEC_NAMES
from ...log.format.dlsn import DLSN
from ...log.format.log_clock import to_iso_time
from ...log.format.record import (
    CODEC_MASK,
    FLAG_CONTROL,
    FLAG_RECORD_FLAGS,
    FLAG_TXID_AT_LINK,
    decode_header,
)
from ...log.format.record_headers import FLAG_HEADERS, FLAG_KEYS
from ...log.model.segment_record import SegmentRecord
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    NoSuchEntry,
    UnsupportedFormat,
)

SEGMENTS_PER_PAGE = 100
READ_BYTES = 1024 * 1024
_FLAGS = (
    (FLAG_CONTROL, "control"),
    (FLAG_RECORD_FLAGS, "record flags"),
    (FLAG_KEYS, "keys"),
    (FLAG_HEADERS, "headers"),
    (FLAG_TXID_AT_LINK, "txid at link"),
)


async def entries(
    logs: Any, name: str, first: DLSN | None, limit: int | None
) -> AsyncIterator[dict[str, Any]]:
    """Yield a dict per entry from ``first`` on, including truncated segments that still exist.

    If an entry cannot be read or decoded, its dict has ``error``, and the next entry follows. Raises
    `LogNotFound`.
    """
    log, remaining = logs.open_log(name), limit
    number, entry = (1, 0) if first is None else (first.segment, first.entry)
    while segments := await log.segments(first=number, limit=SEGMENTS_PER_PAGE):
        for segment in segments:
            async for row in _segment_entries(
                logs, segment, entry if segment.segment == number else 0
            ):
                if remaining == 0:
                    return
                remaining = None if remaining is None else remaining - 1
                yield row
        number, entry = segments[-1].segment + 1, 0


async def _segment_entries(
    logs: Any, segment: SegmentRecord, entry: int
) -> AsyncIterator[dict[str, Any]]:
    try:
        ledger = await logs.ledgers.open(segment.ledger_id)
    except DistributedLogError as error:
        yield {"segment": segment.segment, "ledger": segment.ledger_id, "error": str(error)}
        return
    try:
        if segment.closed:
            last = segment.last_entry
        else:
            last = (
                ledger.lac if ledger.closed else await ledger.refresh_lac()
            ) - segment.base_entry
        while entry <= last:
            try:
                ledger_entries = await ledger.read(
                    segment.base_entry + entry, segment.base_entry + last, bytes_max=READ_BYTES
                )
            except (CorruptData, NoSuchEntry) as error:
                yield _entry_location(segment, entry) | {"error": str(error)}
                entry += 1
                continue
            for ledger_entry in ledger_entries:
                entry = ledger_entry.entry - segment.base_entry
                yield _entry_location(segment, entry) | _entry_header(segment, ledger_entry.payload)
                entry += 1
    finally:
        ledger.close()


def _entry_location(segment: SegmentRecord, entry: int) -> dict[str, Any]:
    return {
        "entry": f"{segment.segment}.{entry}",
        "ledger": segment.ledger_id,
        "ledger_entry": segment.base_entry + entry,
    }


def _entry_header(segment: SegmentRecord, payload: Any) -> dict[str, Any]:
    try:
        header = decode_header(payload)
    except (CorruptData, UnsupportedFormat) as error:
        return {"bytes": len(payload), "error": str(error)}
    flags = [flag_name for flag, flag_name in _FLAGS if header.flags & flag]
    if codec := header.flags & CODEC_MASK:
        flags.append(CODEC_NAMES[codec] if codec < len(CODEC_NAMES) else f"codec {codec}")
    has_sequence_id = segment.start_sequence_id >= 0 and not header.is_control
    # For linked segments, the transaction IDs are in the segment record, and zeros in the entry.
    origin = segment.origin(0, header)
    has_link_txid = origin.txid >= 0
    return {
        "records": header.count,
        "first_sequence_id": segment.start_sequence_id + header.records_before
        if has_sequence_id
        else None,
        "first_txid": origin.txid if has_link_txid else header.first_txid,
        "last_txid": segment.max_txid_of(header) if has_link_txid else header.last_txid,
        "payload_bytes": header.payload_bytes,
        "bytes": len(payload),
        "section_bytes": header.section_bytes,
        "flags": flags,
        "written_ms": header.written_ms,
        "written": to_iso_time(header.written_ms),
        "time_ms": segment.time_of(header),
    }
