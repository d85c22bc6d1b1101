"""How far a query, a subscriber, or whoever holds positions is behind its logs' ends. Needs no Spark."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...log.format.dlsn import DLSN
from ...log.model.position_outcome import HeldPosition
from ...log.read.log_view import LogView
from ...runtime.interfaces.errors import InvalidRequest, LogNotFound
from ..client.retry import PATIENCE_S
from ..client.spark_client import SparkClient, run
from ..options.options import SourceOptions
from ..read.data_loss_policy import Do, decide
from ..read.offsets import Offset, wanted_positions
from ..read.source_logs import SourceLogs, each


@dataclass(frozen=True, slots=True)
class Lag:
    """Of one log: what lies between a position and the log's end."""

    log: str
    position: DLSN | None
    """Where the reader goes on, by what the log has now; None: it has no position, or its log is gone."""
    end: DLSN | None
    """The next record's, behind all that can be read; None: the log is gone."""
    records: int
    bytes: int
    """Of entries, to about an entry; 0 where there is no record."""
    seconds: float
    """For how long the first unread record has been there, by its log time and this machine's clock; 0 where
    there is none."""
    lost: int | None = 0
    """Records after the position that were truncated or deleted unread; None: not known how many, if any."""
    note: str = ""
    """What became of the log meanwhile, in words."""


def lag(
    uri: str,
    *,
    query: Any = None,
    subscriber: str | None = None,
    positions: Any = None,
    logs: Sequence[str] | str | None = None,
    request_timeout_s: float = 10.0,
    read_timeout_s: float = PATIENCE_S,
) -> list[Lag]:
    """How far somebody is behind now, a row a log, by name. Exactly one of the three says who.

    ``query``: a streaming query, its progress, or that as JSON: what its last micro-batch ended at.
    ``subscriber``: a named position of the logs. ``positions``: JSON as `positions()` gives it, as text or
    parsed. ``logs``: names, or one glob: of which logs; else all that the query or the positions name, or
    all of the namespace in which the subscriber has a position. A log that is named and in which it has none
    counts from its first record. No record is read: at most a few entries' headers a log.

    Raises `InvalidRequest`, `LogNotFound` for a named log that is not there and of which nothing is held,
    `QuorumUnreachable` when the cluster was away for ``read_timeout_s``.
    """
    if sum(one is not None for one in (query, subscriber, positions)) != 1:
        raise InvalidRequest("whose lag: exactly one of query, subscriber, positions")
    given = _json(positions, "positions") if query is None else offset_of(query).to_json()
    if isinstance(logs, str):
        options = SourceOptions(uri=uri, log_pattern=logs, fail_on_data_loss=False)
    else:
        names = _named(given) if logs is None else tuple(logs)
        pattern = "*" if names is None else None
        options = SourceOptions(uri=uri, logs=names, log_pattern=pattern, fail_on_data_loss=False)

    async def ask(held: SparkClient) -> list[Lag]:
        found = SourceLogs(held.namespace, options)
        try:
            return await _rows(held, found, given, subscriber)
        finally:
            found.close()

    return run(uri, request_timeout_s, ask, patience_s=read_timeout_s)


def offset_of(query: Any) -> Offset:
    """What a query has read of our logs, of all its sources: the lower of two positions in one log.

    Raises `InvalidRequest` where it has made no progress, or reads no log of ours.
    """
    progress = _json(getattr(query, "lastProgress", query), "query")
    if progress is None:
        raise InvalidRequest("the query has made no progress yet: there is nothing to compare")
    found = Offset()
    ours = False
    for source in _field(progress, "sources") or ():
        value = _json(_field(source, "endOffset"), "endOffset")
        if not isinstance(value, dict) or not {"v", "logs", "ids"} <= set(value):
            continue  # another source's
        ours, one = True, Offset.from_json(value)
        for name, dlsn in one.logs.items():
            if name not in found.logs or dlsn < found.logs[name]:
                found.sequence_ids.pop(name, None)
                found.keep(name, one)
    if not ours:
        raise InvalidRequest(
            "the query's last progress names no position of a log: not our source's"
        )
    return found


async def _rows(
    held: SparkClient, logs: SourceLogs, given: Any, subscriber: str | None
) -> list[Lag]:
    named = logs.options.names
    await logs.discover(required=False)
    if subscriber is not None:
        holds = await _of_subscriber(held, logs, subscriber)
    else:
        wanted = list(named or sorted(logs.views))
        holds = _of_positions(logs, given, wanted)
    now_ms = held.namespace.wall_ms()
    rows: dict[str, Lag] = {}

    async def look(name: str) -> None:
        rows[name] = await _row(logs, name, holds[name], now_ms)

    await each(sorted(holds), look)
    return [rows[name] for name in sorted(rows)]


async def _of_subscriber(
    held: SparkClient, logs: SourceLogs, subscriber: str
) -> dict[str, HeldPosition | None]:
    """Its positions; of logs that were named also where it has none."""
    found: dict[str, HeldPosition | None] = {}
    named = logs.options.names

    async def look(name: str) -> None:
        identity = logs.views[name].incarnation
        target = held.namespace.open_log(name, incarnation=identity)
        dlsn = await target.positions.get(subscriber)
        if dlsn is not None:
            proven = await target.positions.proven(subscriber)
            found[name] = HeldPosition(
                dlsn, identity, None if proven is None else proven.sequence_id
            )
        elif named is not None:
            found[name] = None

    await each(sorted(logs.views), look)
    for name in named or ():
        if name not in logs.views:
            raise LogNotFound(f'log "{name}" does not exist', name)
    return found


def _of_positions(
    logs: SourceLogs, given: Any, names: Sequence[str]
) -> dict[str, HeldPosition | None]:
    found: dict[str, HeldPosition | None] = {}
    for name, wanted in wanted_positions(given, names, "positions", "earliest").items():
        view = logs.views.get(name)
        if wanted.identity is None and view is None:
            raise LogNotFound(f'log "{name}" does not exist', name)
        if wanted.dlsn is not None:
            identity = wanted.identity or (view.incarnation if view is not None else "")
            found[name] = HeldPosition(wanted.dlsn, identity, wanted.sequence_id)
        elif view is not None and wanted.word == "latest":
            found[name] = HeldPosition(view.end, view.incarnation, None)
        else:
            found[name] = None
    return found


async def _row(logs: SourceLogs, name: str, held: HeldPosition | None, now_ms: int) -> Lag:
    lost: int | None = 0
    note = ""
    if held is None:
        view = logs.views[name]
        return await _between(view, None, view.earliest, now_ms, lost, note)
    view_now = logs.views.get(name)
    if view_now is not None and view_now.incarnation == held.identity:
        view_now.prove(held.dlsn)
    decision = decide(name, held, await logs.found(name, held), logs.rules(name))
    lost, note = decision.lost, decision.warning
    if decision.do is not Do.READ:
        return Lag(name, None, None, 0, 0, 0.0, lost, note)
    assert decision.at is not None
    return await _between(logs.views[name], decision.at, decision.at, now_ms, lost, note)


async def _between(
    view: LogView, position: DLSN | None, begin: DLSN, now_ms: int, lost: int | None, note: str
) -> Lag:
    records, size = await view.between(begin, view.end)
    since_ms = await view.time_at(begin) if records else None
    seconds = 0.0
    if since_ms is not None:
        # A clock that is ahead of this one's made the log's time: it counts.
        newest = view.tail.last_time_ms if view.tail is not None else view.state.time_ms
        seconds = max(0, max(now_ms, newest) - since_ms) / 1000
    return Lag(view.name, position, view.end, records, size if records else 0, seconds, lost, note)


def _named(given: Any) -> tuple[str, ...] | None:
    """The logs that JSON of positions names, in either form."""
    if not isinstance(given, Mapping):
        return None
    logs = given.get("logs") if "v" in given else given
    if not isinstance(logs, Mapping) or not logs:
        raise InvalidRequest("positions of no log: there is nothing to compare")
    return tuple(str(name) for name in logs)


def _json(value: Any, what: str) -> Any:
    if not isinstance(value, str) or value in ("earliest", "latest"):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise InvalidRequest(f"{what} is no JSON: {error}") from None


def _field(value: Any, name: str) -> Any:
    """Of Spark's progress, which is an object, a mapping, or both."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
