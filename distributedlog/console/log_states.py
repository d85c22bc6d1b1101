"""Collect the list of logs with sizes and rates, and one log with segments, missing copies and positions."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import trio

from ..cluster.status.consumer_overview import damage_of
from ..cluster.status.log_overview import describe
from ..ledger.model import ledger_keys as keys
from ..ledger.model.missing_range import decode_missing_ranges
from ..log.interfaces.log_names import check_log_name
from ..log.model.log_keys import position_key
from ..log.namespace import Namespace
from ..log.services.named_positions import PositionRecord
from ..metadata.model.interface import Metadata, Scan
from ..runtime.interfaces.errors import CorruptData, DistributedLogError, UnsupportedFormat
from ..runtime.protocol.schema import readable
from .cluster_state import cut, sample_time
from .rate_history import RateHistory

LOGS_SHOWN = 50
"""Logs per page. Users narrow the list by search."""
LOGS_AT_ONCE = 8
LOG_S = 4.0
"""Timeout for all logs of a page, in seconds. Later logs are shown without numbers."""
SEGMENTS_SHOWN = 200
"""Maximum number of segments, the newest ones."""
FRAGMENTS_SHOWN = 8
"""Maximum number of fragments per segment. Each ensemble change starts a fragment."""
POSITIONS_SHOWN = 100
RECORDS_MAX = 10_000
"""Maximum number of records of missing copies that are scanned."""


class LogList:
    """One page of the logs with a prefix. For one task at a time."""

    def __init__(self, namespace: Namespace, prefix: str, after_name: str) -> None:
        self._namespace = namespace
        self._prefix = prefix
        self._after = after_name
        self._rates = RateHistory()
        self._sample_time = sample_time(namespace.wall_ms)

    async def poll(self) -> dict[str, Any]:
        """Return the state. Raises `QuorumUnreachable`. The error of one log is part of its row."""
        page = await self._namespace.log_page(self._prefix, self._after, LOGS_SHOWN)
        rows = {name: dict[str, Any](name=name) for name in page.names}
        limiter = trio.CapacityLimiter(LOGS_AT_ONCE)

        async def read(name: str) -> None:
            async with limiter:
                try:
                    rows[name] |= await self._log_row(name)
                except DistributedLogError as error:
                    rows[name]["error"] = cut(f"{type(error).__name__}: {error}")

        with trio.move_on_after(LOG_S):
            async with trio.open_nursery() as nursery:
                for name in page.names:
                    nursery.start_soon(read, name)
        return {
            "now_ms": self._namespace.wall_ms(),
            "prefix": self._prefix,
            "after": self._after,
            "next": page.next,
            "logs": list(rows.values()),
        }

    async def _log_row(self, name: str) -> dict[str, Any]:
        log = self._namespace.open_log(name)
        description = await log.describe(segments_max=1)
        state = description.state
        snapshot = await log.snapshot(first=state.first_open_segment, limit=1)
        in_progress = sum(segment.size_bytes for segment in snapshot.segments if not segment.closed)
        size = description.size_bytes + in_progress
        # Rates are computed from the end of the log, so that truncation does not make them negative.
        counters = {"records": float(snapshot.end_sequence_id)}
        if state.bytes_total >= 0:
            counters["bytes"] = float(state.bytes_total + in_progress)
        rates = self._rates.rates(name, self._sample_time(), counters)
        return {
            "records": snapshot.records,
            "bytes": size,
            "segments": state.last_segment - state.first_segment + 1,
            "owner": cut(description.owner, 100) or None,
            "sealed": state.sealed,
            "end": None if description.last_dlsn is None else str(description.last_dlsn),
            "records_s": rates.get("records"),
            "bytes_s": rates.get("bytes"),
        }


class LogDetail:
    """One log. For one task at a time."""

    def __init__(self, namespace: Namespace, name: str, labels: Mapping[str, str]) -> None:
        self._namespace = namespace
        self._name = check_log_name(name)
        self._labels = labels
        self._rates = RateHistory()
        self._sample_time = sample_time(namespace.wall_ms)

    async def poll(self) -> dict[str, Any]:
        """Return the state. Raises `LogNotFound`, `QuorumUnreachable` or `LedgerStateUnknown`."""
        namespace = self._namespace
        log_row = await describe(namespace, self._name, segments_max=SEGMENTS_SHOWN)
        log = namespace.open_log(self._name)
        log_id = await namespace.resolve_name(self._name)
        positions = await position_rows(namespace.metadata, log_id)
        segments = log_row.pop("segments")
        for segment in segments:
            if segment["state"] == "in progress":  # its size is recorded only when it is closed
                tail = await log.snapshot(first=segment["segment"], limit=1)
                segment["bytes"] = sum(tail_segment.size_bytes for tail_segment in tail.segments)
                log_row["bytes"] += segment["bytes"]
                break
        ledgers = {segment["ledger"] for segment in segments}
        missing = await self._bookies_with_missing(ledgers) if ledgers else {}
        bookies = dict[str, str]()
        for segment in segments:
            fragments = segment["ensembles"]
            segment["fragments_left_out"] = max(0, len(fragments) - FRAGMENTS_SHOWN)
            segment["ensembles"] = fragments[-FRAGMENTS_SHOWN:]
            for fragment in segment["ensembles"]:
                for bookie in fragment["bookies"]:
                    bookies[bookie] = self._labels.get(bookie, bookie[:8])
            segment["missing"] = missing.get(segment["ledger"], [])
        rates = self._rates.rates(
            "log", self._sample_time(), {"records": float(log_row["records"])}
        )
        return log_row | {
            "owner": cut(log_row["owner"], 100) if log_row["owner"] else None,
            "now_ms": namespace.wall_ms(),
            "records_s": rates["records"],
            "segments": segments,
            "bookies": bookies,
            "positions": positions[:POSITIONS_SHOWN],
            "positions_left_out": max(0, len(positions) - POSITIONS_SHOWN),
        }

    async def _bookies_with_missing(self, ledgers: set[int]) -> dict[int, list[str]]:
        """Return the bookies that are recorded to lack entries of these ledgers, by ledger."""
        by_ledger: dict[int, list[str]] = {}
        checked = 0
        async for item in Scan(self._namespace.metadata, keys.MISSING_RANGES_PREFIX):
            checked += 1
            if checked > RECORDS_MAX:
                break
            with suppress(CorruptData, UnsupportedFormat):
                ledger = keys.ledger_id_of(item.key)
                if ledger in ledgers:
                    by_ledger[ledger] = [
                        self._labels.get(missing_range.bookie, missing_range.bookie[:8])
                        for missing_range in decode_missing_ranges(item.value)[:16]
                    ]
        return by_ledger


async def position_rows(metadata: Metadata, log_id: int) -> list[dict[str, Any]]:
    """Return the named positions of a log. One that cannot be decoded has ``damage`` and no DLSN."""
    rows: list[dict[str, Any]] = []
    prefix = position_key(log_id, "")
    async for item in Scan(metadata, prefix):
        record = readable(PositionRecord.decode, item.value)
        dlsn, damage = (
            (str(record.dlsn), "")
            if isinstance(record, PositionRecord)
            else (None, damage_of(record))
        )
        name = cut(item.key[len(prefix) :].decode(errors="replace"), 255)
        rows.append({"name": name, "dlsn": dlsn, "damage": damage})
    return rows
