"""Describe the consumers of a log with their lag: named positions, their subscribers, and work queues.

`dlog log positions`, `dlog log queues` and the console show it. The rows have the keys of the JSON output.

A record that cannot be decoded is one row. It has ``damage``: "corrupt", or "unsupported" if a newer version
wrote it. ``damage`` is "" for other rows.
"""

from contextlib import suppress
from math import inf
from typing import Any

import trio

from ...log.consumers.work_state import WorkState
from ...log.format.dlsn import DLSN
from ...log.model.lock_record import LockRecord
from ...log.model.log_keys import (
    all_workers_prefix,
    incarnation_text,
    lock_key,
    position_key,
    subscriber_key,
    work_key,
)
from ...log.namespace import Namespace
from ...log.read.position_lag import LagCache, LagMeter, lag_meter
from ...log.read.state_watch import open_state_watch
from ...log.services.named_positions import UNPROVEN, PositionRecord
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import KeyValue
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    LogDeleted,
    NotAuthenticated,
    QuorumUnreachable,
    UnsupportedFormat,
)
from ...runtime.protocol.schema import readable

ROWS_MAX = 10_000
WORKER_ID_CHARS = 16
"""Digits of a worker's ID at the end of its key."""

Damage = CorruptData | UnsupportedFormat
"""Why a record cannot be decoded."""
Owner = LockRecord | Damage


async def consumers(
    namespace: Namespace,
    name: str,
    *,
    rows_max: int = ROWS_MAX,
    cache: LagCache | None = None,
    measure_until: float = inf,
) -> dict[str, Any]:
    """Return the writer, the named positions and the work queues of a log, each with its owners and its lag.

    The lag of a row is None if an entry could not be read, for example because bookies are unavailable. Then
    ``problem`` of the row has the error. The other values require only the metadata.

    Args:
        namespace: The namespace.
        name: The name of the log.
        rows_max: Maximum number of positions, and of work queues. ``left_out`` reports whether there are
            more.
        cache: The results of earlier calls, for a caller that polls.
        measure_until: The time of trio's clock after which no further lag is measured. Bookies that do not
            answer would otherwise delay each row by their timeouts.

    Raises:
        LogNotFound: The log does not exist.
        QuorumUnreachable: The metadata quorum did not answer.
    """
    metadata = namespace.metadata
    log_id = await namespace.resolve_name(name)
    position_items, more_positions = await _page(metadata, position_key(log_id, ""), rows_max)
    queue_items, more_queues = await _page(metadata, work_key(log_id, ""), rows_max)
    subscribers = await _subscribers(metadata, log_id, rows_max) if position_items else {}
    workers = await _workers(metadata, log_id) if queue_items else {}
    lock = await metadata.get(lock_key(log_id))
    measure = _LagRows(namespace, log_id, name, cache, measure_until)
    return {
        "name": name,
        "incarnation": incarnation_text(log_id),
        "writer": None if lock is None else _owner(readable(LockRecord.decode, lock.value)),
        "positions": [
            await _position_row(measure, item_name, item, subscribers.get(item_name))
            for item_name, item in position_items.items()
        ],
        "queues": [
            await _queue_row(measure, item_name, item, workers)
            for item_name, item in queue_items.items()
        ],
        "left_out": more_positions or more_queues,
    }


class _LagRows:
    """Measures the rows of one log against one end, which is read when the first row requires it."""

    def __init__(
        self,
        namespace: Namespace,
        log_id: int,
        name: str,
        cache: LagCache | None,
        until: float,
    ) -> None:
        self._namespace = namespace
        self._log_id = log_id
        self._name = name
        self._cache = cache
        self._until = until
        self._meter: LagMeter | None = None
        self._problem = ""
        """Why the end of the log cannot be read."""

    async def row(self, position: DLSN, sequence_id: int | None = None) -> dict[str, Any]:
        """Return the keys ``lag`` and ``problem`` of a row."""
        with trio.move_on_at(self._until):
            return await self._measure(position, sequence_id)
        return {"lag": None, "problem": "RequestTimeout: the entry was not read in time"}

    async def _measure(self, position: DLSN, sequence_id: int | None) -> dict[str, Any]:
        if self._problem:
            return {"lag": None, "problem": self._problem}
        meter = self._meter
        try:
            if meter is None:
                meter = self._meter = await self._open_meter()
            lag = await meter.lag(position, self._namespace.wall_ms(), sequence_id=sequence_id)
        except (QuorumUnreachable, NotAuthenticated, LogDeleted):
            raise
        except DistributedLogError as error:
            problem = f"{type(error).__name__}: {error}"
            if meter is None:
                self._problem = problem
            return {"lag": None, "problem": problem}
        return {"lag": lag.to_json(), "problem": ""}

    async def _open_meter(self) -> LagMeter:
        metadata = self._namespace.metadata
        state_watch = await open_state_watch(
            metadata, self._log_id, self._name, self._namespace.path
        )
        return await lag_meter(metadata, self._namespace.ledgers, state_watch, self._cache)


async def _position_row(
    measure: _LagRows, name: str, item: KeyValue, subscriber: Owner | None
) -> dict[str, Any]:
    owner = None if subscriber is None else _owner(subscriber)
    record = readable(PositionRecord.decode, item.value)
    if not isinstance(record, PositionRecord):
        unknown = dict.fromkeys(("dlsn", "moved_ms", "hold_renewed_ms"))
        return {"position": name, **unknown, "subscriber": owner, **_damaged(record)}
    sequence_id = None if record.sequence_id == UNPROVEN else record.sequence_id
    return {
        "position": name,
        "dlsn": str(record.dlsn),
        "moved_ms": record.moved_ms,
        "hold_renewed_ms": record.hold_renewed_ms,
        "subscriber": owner,
        "damage": "",
        **await measure.row(record.dlsn, sequence_id),
    }


async def _queue_row(
    measure: _LagRows, name: str, item: KeyValue, workers: dict[int, Owner]
) -> dict[str, Any]:
    state = readable(WorkState.decode, item.value)
    if not isinstance(state, WorkState):
        unknown: dict[str, Any] = {
            "floor": None,
            "moved_ms": None,
            "claims": [],
            "dead_lettered": [],
        }
        return {"queue": name, **unknown, **_damaged(state)}
    return {
        "queue": name,
        "floor": str(state.floor),
        "moved_ms": state.moved_ms,
        "claims": [
            {
                "number": claim.number,
                "first": str(claim.first),
                "end": str(claim.end),
                "tries": claim.tries,
                # The claims of a process that has ended are returned by the next worker.
                "worker": _owner(workers[claim.worker]) if claim.worker in workers else None,
            }
            for claim in sorted(state.claims, key=lambda claim: claim.first)
        ],
        "dead_lettered": [
            {
                "number": one.number,
                "first": str(one.first),
                "end": str(one.end),
                "tries": one.tries,
            }
            for one in state.dead_lettered
        ],
        "damage": "",
        **await measure.row(state.floor),
    }


def _owner(record: Owner) -> dict[str, Any]:
    if isinstance(record, LockRecord):
        return {"owner": record.owner, "since_ms": record.acquired_ms, "damage": ""}
    return {"owner": "", "since_ms": None, "damage": damage_of(record)}


def _damaged(error: Damage) -> dict[str, Any]:
    """Return the keys of the row of a damaged record."""
    problem = f"{type(error).__name__}: {error}"
    return {"damage": damage_of(error), "lag": None, "problem": problem}


def damage_of(error: Damage) -> str:
    """Return the value of ``damage``."""
    return "corrupt" if isinstance(error, CorruptData) else "unsupported"


async def _page(
    metadata: Metadata, prefix: bytes, rows_max: int
) -> tuple[dict[str, KeyValue], bool]:
    """Return at most ``rows_max`` items by the rest of their keys, and whether there are more."""
    items: dict[str, KeyValue] = {}
    async for item in Scan(metadata, prefix, limit=min(rows_max + 1, 1000)):
        if len(items) == rows_max:
            return items, True
        items[item.key[len(prefix) :].decode(errors="replace")] = item
    return items, False


async def _subscribers(metadata: Metadata, log_id: int, rows_max: int) -> dict[str, Owner]:
    items, _ = await _page(metadata, subscriber_key(log_id, ""), rows_max)
    return {name: readable(LockRecord.decode, item.value) for name, item in items.items()}


async def _workers(metadata: Metadata, log_id: int) -> dict[int, Owner]:
    """Return the live workers of all queues of a log, by their IDs."""
    items, _ = await _page(metadata, all_workers_prefix(log_id), ROWS_MAX)
    workers: dict[int, Owner] = {}
    for key, item in items.items():
        with suppress(ValueError):  # not a key of a worker
            worker = int(key[-WORKER_ID_CHARS:], 16)
            workers[worker] = readable(LockRecord.decode, item.value)
    return workers
