"""The list of logs with sizes and rates, and one log with its segments, holes and positions."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import trio

from ..cluster.status.log_overview import describe
from ..ledger.model import ledger_keys as keys
from ..ledger.model import missing_range as holes
from ..log.interfaces.log_names import check_log_name
from ..log.namespace import Namespace
from ..metadata.model.interface import Scan
from ..runtime.interfaces.errors import CorruptData, DistributedLogError, UnsupportedFormat
from .cluster_state import cut
from .rate_history import RateHistory

LOGS_SHOWN = 50
"""Of one page; the search says which."""
AT_ONCE = 8
LOG_S = 4.0
"""For all of a page; who is not known by then has no numbers."""
SEGMENTS_SHOWN = 200
"""The newest."""
FRAGMENTS_SHOWN = 8
"""Of a segment: how often its bookies changed."""
POSITIONS_SHOWN = 100
NOTES_MAX = 10_000
"""Notes of missing copies that are looked through."""


class LogList:
    """The logs of a namespace below one prefix, a page of them. For one task at a time."""

    def __init__(self, namespace: Namespace, prefix: str, after: str) -> None:
        self._namespace = namespace
        self._prefix = prefix
        self._after = after
        self._rates = RateHistory()

    async def look(self) -> dict[str, Any]:
        """The state. Raises `QuorumUnreachable`; what one log meets stands in its row."""
        page = await self._namespace.log_page(self._prefix, self._after, LOGS_SHOWN)
        rows = {name: dict[str, Any](name=name) for name in page.names}
        places = trio.CapacityLimiter(AT_ONCE)

        async def read(name: str) -> None:
            async with places:
                try:
                    rows[name] |= await self._log(name)
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

    async def _log(self, name: str) -> dict[str, Any]:
        log = self._namespace.open_log(name)
        found = await log.describe(segments_max=1)
        state = found.state
        readable = await log.snapshot(first=state.open_from, limit=1)
        in_progress = sum(one.size_bytes for one in readable.segments if not one.closed)
        size = found.size_bytes + in_progress
        # What was written is what ends grow by: truncation is no negative rate.
        written = {"records": float(readable.end_sequence_id)}
        if state.bytes_total >= 0:
            written["bytes"] = float(state.bytes_total + in_progress)
        rates = self._rates.look(name, trio.current_time(), written)
        return {
            "records": readable.records,
            "bytes": size,
            "segments": state.last_segment - state.first_segment + 1,
            "owner": cut(found.owner, 100) or None,
            "sealed": state.sealed,
            "end": None if found.last_dlsn is None else str(found.last_dlsn),
            "records_s": rates.get("records"),
            "bytes_s": rates.get("bytes"),
        }


class OneLog:
    """One log. For one task at a time."""

    def __init__(self, namespace: Namespace, name: str, labels: Mapping[str, str]) -> None:
        self._namespace = namespace
        self._name = check_log_name(name)
        self._labels = labels
        self._rates = RateHistory()

    async def look(self) -> dict[str, Any]:
        """The state. Raises `LogNotFound`, `QuorumUnreachable`, `LedgerStateUnknown`."""
        namespace = self._namespace
        found = await describe(namespace, self._name, segments_max=SEGMENTS_SHOWN)
        log = namespace.open_log(self._name)
        positions = await log.positions.list()
        segments = found.pop("segments")
        for segment in segments:
            if segment["state"] == "in progress":  # its record counts nothing before it is closed
                tail = await log.snapshot(first=segment["segment"], limit=1)
                segment["bytes"] = sum(one.size_bytes for one in tail.segments)
                found["bytes"] += segment["bytes"]
                break
        ledgers = {segment["ledger"] for segment in segments}
        missing = await self._missing(ledgers) if ledgers else {}
        bookies = dict[str, str]()
        for segment in segments:
            fragments = segment["ensembles"]
            segment["fragments_left_out"] = max(0, len(fragments) - FRAGMENTS_SHOWN)
            segment["ensembles"] = fragments[-FRAGMENTS_SHOWN:]
            for fragment in segment["ensembles"]:
                for bookie in fragment["bookies"]:
                    bookies[bookie] = self._labels.get(bookie, bookie[:8])
            segment["missing"] = missing.get(segment["ledger"], [])
        rates = self._rates.look("log", trio.current_time(), {"records": float(found["records"])})
        return found | {
            "owner": cut(found["owner"], 100) if found["owner"] else None,
            "now_ms": namespace.wall_ms(),
            "records_s": rates["records"],
            "segments": segments,
            "bookies": bookies,
            "positions": [
                {"name": cut(name, 255), "dlsn": str(dlsn)}
                for name, dlsn in list(positions.items())[:POSITIONS_SHOWN]
            ],
            "positions_left_out": max(0, len(positions) - POSITIONS_SHOWN),
        }

    async def _missing(self, ledgers: set[int]) -> dict[int, list[str]]:
        """Bookies that are noted to miss entries of these ledgers."""
        found: dict[int, list[str]] = {}
        looked = 0
        async for item in Scan(self._namespace.metadata, keys.UNDER_PREFIX):
            looked += 1
            if looked > NOTES_MAX:
                break
            with suppress(CorruptData, UnsupportedFormat):
                ledger = keys.ledger_id_of(item.key)
                if ledger in ledgers:
                    found[ledger] = [
                        self._labels.get(hole.bookie, hole.bookie[:8])
                        for hole in holes.decode(item.value)[:16]
                    ]
        return found
