"""Reading: the batch reader on the driver, and what a task does with its ranges."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ...log.format.dlsn import DLSN
from ...log.model.segment_ranges import SegmentRange, ranges_between
from ...log.read.log_view import LogView
from ..client.delegation_token import DelegatedToken
from ..client.retry import PATIENCE_S, wait_for
from ..client.spark_client import SparkClient, client, lent_for, run
from ..client.spark_errors import told, told_rows
from ..options.filter_pushdown import HIGH, LOW, FilterBounds, filter_bounds
from ..options.options import TXID_UNITS, SourceOptions
from .offsets import Offset
from .scan_planner import pack
from .source_logs import SourceLogs
from .table_schema import Projection
from .task_entries import TaskEntries

if TYPE_CHECKING:
    import pyarrow as pa


class Task(InputPartition):
    """The ranges of one task, in order. Travels to it."""

    def __init__(self, ranges: list[SegmentRange], lent: DelegatedToken | None = None) -> None:
        self.value = None
        self.ranges = ranges
        self.lent = lent

    def __repr__(self) -> str:
        if not self.ranges:
            return "Task(nothing)"
        return f"Task({self.ranges[0].log} from {self.ranges[0].start}, {len(self.ranges)} ranges)"


def read_task(
    options: SourceOptions, projection: Projection, task: Task
) -> "Iterator[pa.RecordBatch]":
    """The record batches of one task; runs in a worker process."""
    from .arrow_batches import Builder, gathered

    if not task.ranges:
        return
    builder = Builder(projection)
    held = wait_for(
        lambda: client(options.uri, options.request_timeout_s, options.credentials, task.lent),
        options.read_timeout_s,
        "a task",
    )
    found = TaskEntries(
        held,
        task.ranges,
        timeout_s=options.read_timeout_s,
        fail_on_data_loss=options.fail_on_data_loss,
    )
    try:
        for name, entries in found.by_log():
            for parts in gathered(entries, options.batch_bytes):
                yield builder.batch(name, parts)
    finally:
        found.close()


class BatchReader(DataSourceReader):
    """Plans one ``spark.read``: which logs, from where to where, in which tasks."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self.options = options
        self.projection = projection
        self.narrowing = FilterBounds()

    @told
    def partitions(self) -> list[InputPartition]:
        """The tasks, in (log, position) order; one without ranges where there is nothing to read."""
        options = self.options
        ranges = run(
            options.uri,
            options.request_timeout_s,
            self.plan,
            patience_s=options.read_timeout_s,
            credentials=options.credentials,
        )
        tasks = pack(ranges, self.options.max_bytes_per_partition, self.options.min_partitions)
        lent = lent_for(options, stream=False) if tasks else None
        return [Task(one, lent) for one in tasks] or [Task([])]

    async def plan(self, held: SparkClient) -> list[SegmentRange]:
        """The ranges between the bounds that the options set. In the background loop."""
        logs = SourceLogs(held.namespace, self.options)
        try:
            names = sorted(await logs.discover())
            starts = await logs.starts(names, "earliest")
            ends = await logs.ends(names)
            found: list[SegmentRange] = []
            for name in names:
                found += await self._log_ranges(logs.views[name], starts[name], ends[name])
            return found
        finally:
            logs.close()

    @told_rows
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Runs in a worker process, on an unpickled copy."""
        assert isinstance(partition, Task)
        return read_task(self.options, self.projection, partition)

    @property
    def pushFilters(self) -> Callable[[list[Any]], Iterable[Any]]:
        """With ``pushdown``: what Spark gives its filters to. It refuses readers that have one of their own
        while its setting is off."""
        return self._narrow if self.options.pushdown else super().pushFilters

    def _narrow(self, filters: list[Any]) -> Iterable[Any]:
        """Note what they leave; all of them go back, so that Spark still applies each exactly."""
        unit = self.options.txid_unit
        self.narrowing = filter_bounds(filters, None if unit is None else TXID_UNITS[unit])
        return filters

    async def _log_ranges(self, view: LogView, start: DLSN, end: DLSN) -> list[SegmentRange]:
        """Of one log, what the filters leave."""
        narrowing = self.narrowing
        if not narrowing.allows(view.name):
            return []
        if view.state.unordered_once:
            narrowing = narrowing.without("txid")
        if not all(one.last_time_ms for one in view.closed if one.records):
            narrowing = narrowing.without(
                "timestamp"
            )  # an older program closed one: not known exactly
        start, end = await _within(narrowing, view, start, end)
        segments = [one for one in view.segments if narrowing.wants(one)]
        found = []
        for one in ranges_between(view.name, view.incarnation, segments, start, end):
            first, last = narrowing.entries(one.first_entry, one.last_entry)
            if first <= last:
                found.append(one.part(first, last))
        return found


async def _within(
    narrowing: FilterBounds, view: LogView, start: DLSN, end: DLSN
) -> tuple[DLSN, DLSN]:
    """What the bounds on txid, log time and sequence id leave between two positions."""
    for bound, find in (
        (narrowing.bound("txid"), view.first_with_txid),
        (narrowing.bound("timestamp"), view.first_with_time),
    ):
        if bound.low > LOW:
            start = max(start, await find(bound.low))
        if bound.high < HIGH:
            end = min(end, await find(bound.high + 1))
    ids = narrowing.bound("sequence_id")
    if start < end and (ids.low > LOW or ids.high < HIGH):
        here = (await view.mark(start)).sequence_id
        low, high = max(0, ids.low - here), max(0, ids.high + 1 - here)
        if ids.high < HIGH:  # up to the end of the entry that holds the last one wanted
            stop = await view.advance(start, end, records=high, size=None)
            end = min(end, view.entry_after(stop))
        if low:
            start = await view.advance(start, end, records=low, size=None)
    return start, end


def positions(
    uri: str,
    logs: list[str] | str,
    *,
    at: str = "latest",
    request_timeout_s: float = 10.0,
    read_timeout_s: float = PATIENCE_S,
    credentials: str = "",
) -> str:
    """Where logs begin or end now, as JSON for ``startingPosition`` and ``endingPosition``.

    The same pair of positions gives the same rows in the same order, today and in another session (G5).
    ``logs``: names, or one glob. ``at``: ``earliest`` or ``latest``. While the cluster is away it is asked
    again for ``read_timeout_s``. ``credentials``: as the option. Raises `LogNotFound`.
    """
    which = {"logPattern": logs} if isinstance(logs, str) else {"logs": ",".join(logs)}
    given = {"uri": uri, "startingPosition": at, **which}
    options = SourceOptions.parse(given, "batch")

    async def ask(held: SparkClient) -> Offset:
        logs = SourceLogs(held.namespace, options)
        try:
            names = await logs.discover()
            found = await logs.starts(names, "latest")
            made = Offset()
            for name in names:
                view = logs.views[name]
                made.put(
                    name, found[name], view.incarnation, (await view.mark(found[name])).sequence_id
                )
            return made
        finally:
            logs.close()

    found = run(uri, request_timeout_s, ask, patience_s=read_timeout_s, credentials=credentials)
    return json.dumps(found.to_json())
