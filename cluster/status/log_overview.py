"""Describe one log for `dlog log show`, and its effective options for `dlog log config`.

``bytes`` counts from the segment of the truncation point on. ``truncated_bytes`` counts older segments that
are not deleted yet.
"""

from collections.abc import Sequence
from typing import Any

import trio

from ...ledger.declarations.options import LedgerOptions
from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata
from ...log.declarations.options import LogOptions
from ...log.log import DESCRIBED_SEGMENTS_MAX, LogDescription
from ...log.model.segment_record import SegmentRecord
from ...log.model.stored_settings import (
    QUORUMS,
    STORED_OPTIONS,
    FormatOptions,
    MergingOptions,
    RetentionOptions,
    StoredSettings,
)
from ...proxy.client.proxied_namespace import ProxiedLog, ProxiedNamespace
from ...runtime.declarations.options import option_names
from ...runtime.interfaces.errors import DistributedLogError

LOGS_AT_ONCE = 16
"""How many logs `read_log_sizes` describes concurrently."""


async def describe(
    logs: Any, name: str, *, segments_max: int = DESCRIBED_SEGMENTS_MAX
) -> dict[str, Any]:
    """Return the state of a log and its newest segments, by the keys of the JSON output.

    For a segment in progress, the row has what is readable now.

    Args:
        logs: The namespace.
        name: The name of the log.
        segments_max: How many of the newest segments are included.

    Raises:
        LogNotFound: The log does not exist.
    """
    log = logs.open_log(name)
    description: LogDescription = await log.describe(segments_max=segments_max)
    records, end = await _count_records(log, description)
    # Records after the closed segments are in the first segment in progress. The next segment is created
    # ahead, and stays empty and unread until this one is closed.
    open_records = end - description.state.next_sequence_id
    segments = [await _segment_row(logs, segment, description) for segment in description.segments]
    for segment in segments:
        if segment["state"] == "in progress" and open_records > 0:
            segment["records"] = open_records
            segment["last_dlsn"] = str(description.last_dlsn)
            break
    truncated = description.state.truncated_sequence_id
    truncated_bytes = await _truncated_bytes(log, description)
    return {
        "name": name,
        "first_dlsn": None if description.first_dlsn is None else str(description.first_dlsn),
        "last_dlsn": None if description.last_dlsn is None else str(description.last_dlsn),
        "records": records,
        "bytes": description.size_bytes - truncated_bytes,
        "truncated_bytes": truncated_bytes,
        "clock_behind_s": max(0, description.state.time_ms - logs.wall_ms()) // 1000,
        "truncated_to": str(description.state.truncated_to) if truncated else None,
        "txid_policy": description.txid_policy,
        "sealed": description.state.sealed,
        "owner": description.owner or None,
        "segments_left_out": max(
            0, description.segments[0].segment - description.state.first_segment
        )
        if description.segments
        else 0,
        "segments": segments,
    }


async def read_log_sizes(logs: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Add records, bytes and owner of each log to its row.

    ``open_bytes`` is the part of ``bytes`` in segments in progress. It is None through proxies, which do not
    report these bytes; then ``bytes`` does not include them.

    Args:
        logs: The namespace.
        rows: One row per log, with its ``name``. If a log cannot be described, for example because it was
            deleted in the meantime, its row gets ``error`` instead.
    """
    remaining = iter(rows)

    async def read() -> None:
        for row in remaining:
            try:
                row |= await _log_size(logs, row["name"])
            except DistributedLogError as error:
                row["error"] = f"{type(error).__name__}: {error}"

    # No task per log, because a namespace can have 100,000 logs.
    async with trio.open_nursery() as nursery:
        for _ in range(min(LOGS_AT_ONCE, len(rows))):
            nursery.start_soon(read)


async def _log_size(logs: Any, name: str) -> dict[str, Any]:
    log = logs.open_log(name)
    description: LogDescription = await log.describe(segments_max=1)
    records, _ = await _count_records(log, description)
    open_bytes = None
    if not isinstance(log, ProxiedLog):
        snapshot = await log.snapshot(first=description.state.first_open_segment, limit=1)
        open_bytes = sum(one.size_bytes for one in snapshot.segments if not one.closed)
    return {
        "records": records,
        "bytes": description.size_bytes
        - await _truncated_bytes(log, description)
        + (open_bytes or 0),
        "open_bytes": open_bytes,
        "owner": description.owner or None,
    }


async def _count_records(log: Any, description: LogDescription) -> tuple[int, int]:
    """Return the number of readable records, and the number of records that the log ever had."""
    if isinstance(log, ProxiedLog):
        records = 0 if description.last_dlsn is None else await log.count()
        return records, description.state.truncated_sequence_id + records
    snapshot = await log.snapshot(limit=1)
    return snapshot.records, snapshot.end_sequence_id


async def _truncated_bytes(log: Any, description: LogDescription) -> int:
    """Return the bytes of whole segments before the truncation point that are not deleted yet."""
    truncated_to_segment = description.state.truncated_to.segment
    if truncated_to_segment <= description.state.first_segment:
        return 0
    if isinstance(log, ProxiedLog):
        return sum(
            segment.size_bytes
            for segment in description.segments
            if segment.segment < truncated_to_segment
        )
    oldest, first_kept = (
        await log.segments(limit=1),
        await log.segments(first=truncated_to_segment, limit=1),
    )
    if not first_kept:
        return description.size_bytes
    if oldest and min(oldest[0].bytes_before, first_kept[0].bytes_before) >= 0:
        return int(first_kept[0].bytes_before - oldest[0].bytes_before)
    return sum(
        segment.size_bytes
        for segment in description.segments
        if segment.segment < truncated_to_segment
    )


async def _segment_row(
    logs: Any, segment: SegmentRecord, description: LogDescription
) -> dict[str, Any]:
    ensembles: list[Any] = []
    state: str | None = "missing"
    item = None
    if isinstance(logs, ProxiedNamespace):
        state = None  # the ledgers are known only with access to the metadata store
    else:
        item = await logs.metadata.get(keys.ledger_key(segment.ledger_id))
    if item is not None:
        ledger = LedgerMetadata.decode(item.key, item.value)
        state = ledger.state.value
        ensembles = [
            {"first_entry": fragment.first_entry, "bookies": list(fragment.bookies)}
            for fragment in ledger.ensembles
        ]
    truncated_to_segment = description.state.truncated_to.segment
    status = "truncated" if segment.segment < truncated_to_segment else "readable"
    if (
        segment.segment == truncated_to_segment
        and description.state.truncated_sequence_id > segment.start_sequence_id
    ):
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


def effective_options(
    log_settings: StoredSettings,
    namespace_settings: StoredSettings,
    quorums: tuple[int, int, int] | None,
) -> dict[str, tuple[Any, str]]:
    """Return each option that can be stored, with its effective value and its source.

    The source is ``log``, ``namespace`` or ``default``. A program can replace defaults by ``config`` of
    `open_namespace`.

    Args:
        log_settings: The settings of the log.
        namespace_settings: The settings of its namespace.
        quorums: The quorums in the state of the log, if there are any.
    """
    parts = (
        LogOptions(),
        RetentionOptions(),
        MergingOptions(),
        FormatOptions(),
        LedgerOptions(),
    )
    values = {
        name: (getattr(part, name), "default")
        for part in parts
        for name in option_names(type(part))
        if name in STORED_OPTIONS
    }
    quorum_settings = {} if quorums is None else dict(zip(QUORUMS, quorums, strict=True))
    values |= {
        name: (value, "namespace")
        for name, value in namespace_settings.settings.items()
        if name not in QUORUMS  # they are copied into the state of logs that are created
    }
    values |= {
        name: (value, "log") for name, value in {**quorum_settings, **log_settings.settings}.items()
    }
    return values
