"""`dlog log show`: a log in the keys of the contract; `dlog log config`: what counts for it.

``bytes`` counts from the segment of the truncation point on, ``truncated_bytes`` what is before it and there.
"""

from typing import Any

from ...ledger.declarations.options import LedgerOptions
from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata
from ...log.declarations.options import LogOptions
from ...log.log import SEGMENTS_SHOWN, LogDescription
from ...log.model.segment_record import SegmentRecord
from ...log.model.stored_settings import (
    KNOWN,
    QUORUMS,
    MergingOptions,
    RetentionOptions,
    StoredSettings,
)
from ...proxy.client.proxied_namespace import ProxiedLog, ProxiedNamespace
from ...runtime.declarations.options import names


async def describe(logs: Any, name: str, *, segments_max: int = SEGMENTS_SHOWN) -> dict[str, Any]:
    """What is known of a log; of a segment in progress what is readable now. Raises `LogNotFound`.

    Of its segments the newest ``segments_max``.
    """
    log = logs.open_log(name)
    found: LogDescription = await log.describe(segments_max=segments_max)
    records, end = await _readable(log, found)
    # What comes after the closed ones is in the first one in progress: the next is made ready ahead, empty,
    # and nobody reads it before this one is closed.
    open_records = end - found.state.next_sequence_id
    segments = [await _segment(logs, segment, found) for segment in found.segments]
    for segment in segments:
        if segment["state"] == "in progress" and open_records > 0:
            segment["records"] = open_records
            segment["last_dlsn"] = str(found.last_dlsn)
            break
    truncated = found.state.truncated_sequence_id
    truncated_bytes = await _truncated_bytes(log, found)
    return {
        "name": name,
        "first_dlsn": None if found.first_dlsn is None else str(found.first_dlsn),
        "last_dlsn": None if found.last_dlsn is None else str(found.last_dlsn),
        "records": records,
        "bytes": found.size_bytes - truncated_bytes,
        "truncated_bytes": truncated_bytes,
        "clock_behind_s": max(0, found.state.time_ms - logs.wall_ms()) // 1000,
        "truncated_to": str(found.state.truncated_to) if truncated else None,
        "txid_policy": found.txid_policy,
        "sealed": found.state.sealed,
        "owner": found.owner or None,
        "segments_left_out": max(0, found.segments[0].segment - found.state.first_segment)
        if found.segments
        else 0,
        "segments": segments,
    }


async def _readable(log: Any, found: LogDescription) -> tuple[int, int]:
    """How many records can be read, and how many the log ever had."""
    if isinstance(log, ProxiedLog):
        records = 0 if found.last_dlsn is None else await log.count()
        return records, found.state.truncated_sequence_id + records
    readable = await log.snapshot(limit=1)
    return readable.records, readable.end_sequence_id


async def _truncated_bytes(log: Any, found: LogDescription) -> int:
    """Of whole segments before the truncation point that are not removed yet."""
    point = found.state.truncated_to.segment
    if point <= found.state.first_segment:
        return 0
    if isinstance(log, ProxiedLog):
        return sum(one.size_bytes for one in found.segments if one.segment < point)
    oldest, left = await log.segments(limit=1), await log.segments(first=point, limit=1)
    if not left:
        return found.size_bytes
    if oldest and min(oldest[0].bytes_before, left[0].bytes_before) >= 0:
        return int(left[0].bytes_before - oldest[0].bytes_before)
    return sum(one.size_bytes for one in found.segments if one.segment < point)


async def _segment(logs: Any, segment: SegmentRecord, log: LogDescription) -> dict[str, Any]:
    ensembles: list[Any] = []
    state: str | None = "missing"
    stored = None
    if isinstance(logs, ProxiedNamespace):
        state = None  # only who reaches the metadata knows ledgers
    else:
        stored = await logs.metadata.get(keys.ledger_key(segment.ledger_id))
    if stored is not None:
        ledger = LedgerMetadata.decode(stored.key, stored.value)
        state = ledger.state.value
        ensembles = [
            {"first_entry": fragment.first_entry, "bookies": list(fragment.bookies)}
            for fragment in ledger.ensembles
        ]
    truncated = log.state.truncated_to.segment
    status = "truncated" if segment.segment < truncated else "readable"
    if segment.segment == truncated and log.state.truncated_sequence_id > segment.start_sequence_id:
        status = "partly truncated"
    return {
        "segment": segment.segment,
        "ledger": segment.ledger_id,
        "first_entry": segment.base_entry,
        "state": "closed" if segment.closed else "in progress",
        "status": status,
        "ledger_state": state,
        "first_txid": segment.first_txid if segment.first_txid >= 0 else None,
        "last_txid": segment.last_txid if segment.last_txid >= 0 else None,
        "last_dlsn": None if segment.last_dlsn is None else str(segment.last_dlsn),
        "records": segment.records,
        "bytes": segment.size_bytes,
        "start_sequence_id": segment.start_sequence_id if segment.start_sequence_id >= 0 else None,
        "ensembles": ensembles,
    }


def in_effect(
    own: StoredSettings, shared: StoredSettings, quorums: tuple[int, int, int] | None
) -> dict[str, tuple[Any, str]]:
    """Each option that may be stored: its value for whoever opens the log, and whose it is.

    ``own``: of the log, ``shared``: of its namespace, ``quorums``: of its state. Whose: ``log``,
    ``namespace``, or ``default``, which a program may have otherwise (``config`` of `open_namespace`).
    """
    parts = (LogOptions(), RetentionOptions(), MergingOptions(), LedgerOptions())
    found = {
        name: (getattr(part, name), "default")
        for part in parts
        for name in names(type(part))
        if name in KNOWN
    }
    told = {} if quorums is None else dict(zip(QUORUMS, quorums, strict=True))
    found |= {name: (value, "namespace") for name, value in shared.settings.items()}
    found |= {name: (value, "log") for name, value in {**told, **own.settings}.items()}
    return found
