"""Collect the consumers of logs with their lag and owners, one page of logs at a time."""

import json
from collections.abc import Sequence
from typing import Any

import trio

from ..cluster.status.consumer_overview import consumers
from ..log.namespace import Namespace
from ..log.read.position_lag import LagCache
from ..runtime.interfaces.errors import DistributedLogError
from .cluster_state import cut

LOGS_CHECKED = 20
"""Logs per page. A log without consumers costs four reads of the metadata, and has no rows."""
LOGS_AT_ONCE = 4
ROWS_PER_LOG = 25
"""Maximum number of positions, and of work queues, per log."""
CLAIMS_SHOWN = 8
"""Maximum number of claims, and of dead-lettered ranges, per work queue."""
LAG_EVERY_S = 5.0
"""Minimum interval between two polls, in seconds."""
LAG_S = 4.0
"""Timeout for all logs of a page, in seconds. Later logs are counted as unanswered."""
MEASURE_S = 3.0
"""Time for the lags of a page, in seconds. The rows of later logs have owners, and their lag is unknown."""
NAME_CHARS_MAX = 255
ROWS_BYTES_MAX = 120 * 1024
"""When the rows of a page have this size, the rows of its further logs are omitted."""


class LagList:
    """The consumers of one page of logs. For one task at a time."""

    def __init__(self, namespace: Namespace, prefix: str, after_name: str) -> None:
        self._namespace = namespace
        self._prefix = prefix
        self._after = after_name
        self._cache: LagCache = {}

    async def poll(self) -> dict[str, Any]:
        """Return the state. Raises `QuorumUnreachable`. The error of one log is part of its row."""
        page = await self._namespace.log_page(self._prefix, self._after, LOGS_CHECKED)
        logs: dict[str, dict[str, Any]] = {}
        limiter = trio.CapacityLimiter(LOGS_AT_ONCE)
        measure_until = trio.current_time() + MEASURE_S

        async def read(name: str) -> None:
            async with limiter:
                try:
                    overview = await consumers(
                        self._namespace,
                        name,
                        rows_max=ROWS_PER_LOG,
                        cache=self._cache,
                        measure_until=measure_until,
                    )
                except DistributedLogError as error:
                    logs[name] = {"name": name, "error": cut(f"{type(error).__name__}: {error}")}
                else:
                    logs[name] = shown_overview(overview)

        with trio.move_on_after(LAG_S):
            async with trio.open_nursery() as nursery:
                for name in page.names:
                    nursery.start_soon(read, name)
        answers = [logs[name] for name in page.names if name in logs]
        with_rows = [answer for answer in answers if has_rows(answer)]
        shown = within_limit(with_rows)
        return {
            "now_ms": self._namespace.wall_ms(),
            "prefix": self._prefix,
            "after": self._after,
            "next": page.next,
            "checked": len(page.names),
            "unanswered": len(page.names) - len(answers),
            "logs": shown,
            "omitted": len(with_rows) - len(shown),
        }


def within_limit(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first answers, up to the one with which they exceed `ROWS_BYTES_MAX`."""
    kept: list[dict[str, Any]] = []
    size = 0
    for answer in answers:
        if size > ROWS_BYTES_MAX:
            break
        kept.append(answer)
        size += len(json.dumps(answer))
    return kept


def has_rows(answer: dict[str, Any]) -> bool:
    """Return whether a log has an error, a writer, a position or a work queue to show."""
    return bool(answer.get("error") or answer["writer"] or answer["positions"] or answer["queues"])


def shown_overview(overview: dict[str, Any]) -> dict[str, Any]:
    """Return the overview of a log with names and lists of limited length."""
    return {
        "name": overview["name"],
        "writer": _shown_owner(overview["writer"]),
        "positions": [
            {
                "position": cut(row["position"], NAME_CHARS_MAX),
                "dlsn": row["dlsn"],
                "moved_ms": row["moved_ms"],
                "subscriber": _shown_owner(row["subscriber"]),
                "damage": row["damage"],
                "lag": row["lag"],
                "problem": cut(row["problem"]),
            }
            for row in overview["positions"]
        ],
        "queues": [
            {
                "queue": cut(row["queue"], NAME_CHARS_MAX),
                "floor": row["floor"],
                "moved_ms": row["moved_ms"],
                "claims": [
                    {
                        "number": claim["number"],
                        "first": claim["first"],
                        "end": claim["end"],
                        "tries": claim["tries"],
                        "worker": _shown_owner(claim["worker"]),
                    }
                    for claim in row["claims"][:CLAIMS_SHOWN]
                ],
                "claims_left_out": max(0, len(row["claims"]) - CLAIMS_SHOWN),
                "dead_lettered": row["dead_lettered"][:CLAIMS_SHOWN],
                "dead_lettered_left_out": max(0, len(row["dead_lettered"]) - CLAIMS_SHOWN),
                "damage": row["damage"],
                "lag": row["lag"],
                "problem": cut(row["problem"]),
            }
            for row in overview["queues"]
        ],
        "left_out": overview["left_out"],
    }


def _shown_owner(owner: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if owner is None else {**owner, "owner": cut(owner["owner"], 100)}
