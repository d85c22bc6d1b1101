"""`dlog log inspect`: the entries of a log as they are stored, from their headers alone."""

from collections.abc import AsyncIterator
from typing import Any

from ...log.declarations.compression_codecs import NAMES
from ...log.format.dlsn import DLSN
from ...log.format.log_clock import iso_of
from ...log.format.record import (
    CODEC_MASK,
    FLAG_CONTROL,
    FLAG_RECORD_FLAGS,
    FLAG_TXID_AT_LINK,
    decode_header,
)
from ...log.model.segment_record import SegmentRecord
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    NoSuchEntry,
    UnsupportedFormat,
)

SEGMENTS_A_PAGE = 100
READ_BYTES = 1024 * 1024
_FLAGS = (
    (FLAG_CONTROL, "control"),
    (FLAG_RECORD_FLAGS, "record flags"),
    (FLAG_TXID_AT_LINK, "txid at link"),
)


async def entries(
    logs: Any, name: str, first: DLSN | None, limit: int | None
) -> AsyncIterator[dict[str, Any]]:
    """An object an entry, from ``first`` on, truncated segments too while they are there.

    What cannot be read or decoded has ``error``, and the next one follows. Raises `LogNotFound`.
    """
    log, left = logs.open_log(name), limit
    number, entry = (1, 0) if first is None else (first.segment, first.entry)
    while segments := await log.segments(first=number, limit=SEGMENTS_A_PAGE):
        for segment in segments:
            async for found in _of_segment(
                logs, segment, entry if segment.segment == number else 0
            ):
                if left == 0:
                    return
                left = None if left is None else left - 1
                yield found
        number, entry = segments[-1].segment + 1, 0


async def _of_segment(
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
                found = await ledger.read(
                    segment.base_entry + entry, segment.base_entry + last, bytes_max=READ_BYTES
                )
            except (CorruptData, NoSuchEntry) as error:
                yield _place(segment, entry) | {"error": str(error)}
                entry += 1
                continue
            for one in found:
                entry = one.entry - segment.base_entry
                yield _place(segment, entry) | _header(segment, one.payload)
                entry += 1
    finally:
        ledger.close()


def _place(segment: SegmentRecord, entry: int) -> dict[str, Any]:
    return {
        "entry": f"{segment.segment}.{entry}",
        "ledger": segment.ledger_id,
        "ledger_entry": segment.base_entry + entry,
    }


def _header(segment: SegmentRecord, payload: Any) -> dict[str, Any]:
    try:
        header = decode_header(payload)
    except (CorruptData, UnsupportedFormat) as error:
        return {"bytes": len(payload), "error": str(error)}
    flags = [said for flag, said in _FLAGS if header.flags & flag]
    if codec := header.flags & CODEC_MASK:
        flags.append(NAMES[codec] if codec < len(NAMES) else f"codec {codec}")
    counted = segment.start_sequence_id >= 0 and not header.control
    # Txids that were given at the link are in the segment's record; in the entry they are zeros.
    origin = segment.origin(0, header)
    at_link = origin.txid >= 0
    return {
        "records": header.count,
        "first_sequence_id": segment.start_sequence_id + header.records_before if counted else None,
        "first_txid": origin.txid if at_link else header.first_txid,
        "last_txid": segment.max_txid_of(header) if at_link else header.last_txid,
        "payload_bytes": header.payload_bytes,
        "bytes": len(payload),
        "section_bytes": header.section_bytes,
        "flags": flags,
        "written_ms": header.wall_ms,
        "written": iso_of(header.wall_ms),
        "time_ms": segment.time_of(header),
    }
