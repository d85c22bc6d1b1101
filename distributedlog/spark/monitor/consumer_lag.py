"""Compute the lag of a query, a subscriber or given positions behind the ends of logs. Requires no Spark."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...log.format.dlsn import DLSN
from ...log.model.position_outcome import HeldPosition
from ...log.read.log_view import LogView
from ...log.read.position_lag import age_s
from ...runtime.interfaces.errors import InvalidRequest, LogNotFound
from ..client.retry import RETRY_S
from ..client.spark_client import SparkClient, run
from ..options.options import SourceOptions
from ..read.data_loss_policy import LogAction, decide
from ..read.offsets import Offset, requested_positions
from ..read.source_logs import SourceLogs, for_each_log


@dataclass(frozen=True, slots=True)
class Lag:
    """The distance between a position and the end of one log."""

    log: str
    position: DLSN | None
    """Where the reader continues in the present log; None if it has no position or the log was deleted."""
    end: DLSN | None
    """The position of the next record, after all readable ones; None if the log was deleted."""
    records: int
    bytes: int
    """Bytes of entries, exact to one entry; 0 if there are no records."""
    seconds: float
    """Age of the first unread record, from its log time and the clock of this machine; 0 if there is none."""
    lost: int | None = 0
    """Unread records after the position that were truncated or deleted; None if their number is unknown."""
    note: str = ""
    """A description of changes to the log, such as its deletion."""


def lag(
    uri: str,
    *,
    query: Any = None,
    subscriber: str | None = None,
    positions: Any = None,
    logs: Sequence[str] | str | None = None,
    request_timeout_s: float = 10.0,
    read_timeout_s: float = RETRY_S,
) -> list[Lag]:
    """Return the present lag, one row per log, ordered by name.

    Give exactly one of ``query``, ``subscriber`` and ``positions``. The call reads no records, only a few
    entry headers per log.

    Args:
        uri: The cluster and namespace.
        query: A streaming query, its progress, or the progress as JSON. The end of its last micro-batch
            counts.
        subscriber: A named position of the logs.
        positions: JSON of `positions()`, as text or parsed.
        logs: Names, or one glob. By default all logs of the query or the positions, or all logs of the
            namespace in
            which the subscriber has a position. A given log without a position counts from its first record.
        request_timeout_s: Timeout of one request, in seconds.
        read_timeout_s: Time of retries while the cluster is unavailable, in seconds.

    Raises:
        InvalidRequest: The arguments are invalid, or the query has made no progress.
        LogNotFound: A given log does not exist, and no position of it is given.
        QuorumUnreachable: The cluster was unavailable for ``read_timeout_s``.
    """
    if sum(one is not None for one in (query, subscriber, positions)) != 1:
        raise InvalidRequest("use exactly one of query, subscriber, positions")
    positions_json = _json(positions, "positions") if query is None else offset_of(query).to_json()
    if isinstance(logs, str):
        options = SourceOptions(uri=uri, log_pattern=logs, fail_on_data_loss=False)
    else:
        names = _names_in_positions(positions_json) if logs is None else tuple(logs)
        pattern = "*" if names is None else None
        options = SourceOptions(uri=uri, logs=names, log_pattern=pattern, fail_on_data_loss=False)

    async def ask(spark_client: SparkClient) -> list[Lag]:
        source_logs = SourceLogs(spark_client.namespace, options)
        try:
            return await _rows(spark_client, source_logs, positions_json, subscriber)
        finally:
            source_logs.close()

    return run(uri, request_timeout_s, ask, retry_s=read_timeout_s)


def offset_of(query: Any) -> Offset:
    """Return the positions up to which a query has read, over all its sources.

    For a log in several sources, the lowest position counts. Raises `InvalidRequest` if the query has made no
    progress or reads no logs.
    """
    progress = _json(getattr(query, "lastProgress", query), "query")
    if progress is None:
        raise InvalidRequest("the query has made no progress yet")
    offset = Offset()
    is_own_source = False
    for source in _field(progress, "sources") or ():
        value = _json(_field(source, "endOffset"), "endOffset")
        if not isinstance(value, dict) or not {"v", "logs", "ids"} <= set(value):
            continue  # a source of another format
        is_own_source, source_offset = True, Offset.from_json(value)
        for name, dlsn in source_offset.logs.items():
            if name not in offset.logs or dlsn < offset.logs[name]:
                offset.sequence_ids.pop(name, None)
                offset.copy_position(name, source_offset)
    if not is_own_source:
        raise InvalidRequest(
            "the last progress of the query has no position of a log: it does not read logs"
        )
    return offset


async def _rows(
    spark_client: SparkClient, logs: SourceLogs, positions: Any, subscriber: str | None
) -> list[Lag]:
    named_logs = logs.options.names
    await logs.discover(required=False)
    if subscriber is not None:
        position_by_log = await _subscriber_positions(spark_client, logs, subscriber)
    else:
        names = list(named_logs or sorted(logs.views))
        position_by_log = _given_positions(logs, positions, names)
    now_ms = spark_client.namespace.wall_ms()
    rows: dict[str, Lag] = {}

    async def add_row(name: str) -> None:
        rows[name] = await _row(logs, name, position_by_log[name], now_ms)

    await for_each_log(sorted(position_by_log), add_row)
    return [rows[name] for name in sorted(rows)]


async def _subscriber_positions(
    spark_client: SparkClient, logs: SourceLogs, subscriber: str
) -> dict[str, HeldPosition | None]:
    """Return the subscriber's positions; for explicitly given logs also None where it has none."""
    position_by_log: dict[str, HeldPosition | None] = {}
    named_logs = logs.options.names

    async def read_position(name: str) -> None:
        incarnation = logs.views[name].incarnation
        stored = spark_client.namespace.open_log(name, incarnation=incarnation).positions
        # Both values come from one request: the subscriber can commit between two. Only a position without
        # a proof needs the second one, which then returns the DLSN alone.
        proven = await stored.proven(subscriber)
        if proven is not None:
            position_by_log[name] = HeldPosition(proven.dlsn, incarnation, proven.sequence_id)
        elif (dlsn := await stored.get(subscriber)) is not None:
            position_by_log[name] = HeldPosition(dlsn, incarnation, None)
        elif named_logs is not None:
            position_by_log[name] = None

    await for_each_log(sorted(logs.views), read_position)
    for name in named_logs or ():
        if name not in logs.views:
            raise LogNotFound(f'log "{name}" does not exist', name)
    return position_by_log


def _given_positions(
    logs: SourceLogs, positions_json: Any, names: Sequence[str]
) -> dict[str, HeldPosition | None]:
    position_by_log: dict[str, HeldPosition | None] = {}
    for name, requested in requested_positions(
        positions_json, names, "positions", "earliest"
    ).items():
        view = logs.views.get(name)
        if requested.identity is None and view is None:
            raise LogNotFound(f'log "{name}" does not exist', name)
        if requested.dlsn is not None:
            incarnation = requested.identity or (view.incarnation if view is not None else "")
            position_by_log[name] = HeldPosition(requested.dlsn, incarnation, requested.sequence_id)
        elif view is not None and requested.word == "latest":
            position_by_log[name] = HeldPosition(view.end, view.incarnation, None)
        else:
            position_by_log[name] = None
    return position_by_log


async def _row(logs: SourceLogs, name: str, position: HeldPosition | None, now_ms: int) -> Lag:
    lost_records: int | None = 0
    note = ""
    if position is None:
        view = logs.views[name]
        return await _lag_between(view, None, view.earliest, now_ms, lost_records, note)
    view_now = logs.views.get(name)
    if view_now is not None and view_now.incarnation == position.incarnation:
        view_now.mark_readable_before(position.dlsn)
    decision = decide(name, position, await logs.look_up(name, position), logs.loss_rules(name))
    lost_records, note = decision.lost_records, decision.warning
    if decision.action is not LogAction.READ:
        return Lag(name, None, None, 0, 0, 0.0, lost_records, note)
    assert decision.start is not None
    return await _lag_between(
        logs.views[name], decision.start, decision.start, now_ms, lost_records, note
    )


async def _lag_between(
    view: LogView, position: DLSN | None, begin: DLSN, now_ms: int, lost: int | None, note: str
) -> Lag:
    records, size = await view.totals_between(begin, view.end)
    since_ms = await view.time_at(begin) if records else None
    newest_ms = view.tail.last_time_ms if view.tail is not None else view.state.time_ms
    seconds = 0.0 if since_ms is None else age_s(since_ms, newest_ms, now_ms)
    return Lag(view.name, position, view.end, records, size if records else 0, seconds, lost, note)


def _names_in_positions(positions_json: Any) -> tuple[str, ...] | None:
    """Return the logs in JSON of positions, in either form."""
    if not isinstance(positions_json, Mapping):
        return None
    logs = positions_json.get("logs") if "v" in positions_json else positions_json
    if not isinstance(logs, Mapping) or not logs:
        raise InvalidRequest("the positions contain no log")
    return tuple(str(name) for name in logs)


def _json(value: Any, what: str) -> Any:
    if not isinstance(value, str) or value in ("earliest", "latest"):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise InvalidRequest(f"{what} is not JSON: {error}") from None


def _field(value: Any, name: str) -> Any:
    """Return a field of Spark's progress, which is an object, a mapping, or both."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
