"""The batch reader on the driver, and the code of its tasks."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ...log.arrow.arrow_columns import TXID_UNITS, Projection
from ...log.format.dlsn import DLSN
from ...log.model.segment_ranges import SegmentRange, ranges_between
from ...log.read.log_view import LogView
from ..client.delegation_token import DelegatedToken
from ..client.retry import RETRY_S, retry_unavailable_blocking
from ..client.spark_client import SparkClient, client, delegated_token_for, run
from ..client.spark_errors import marks_errors, marks_errors_of_rows
from ..options.filter_pushdown import HIGH, LOW, FilterBounds, filter_bounds
from ..options.options import SourceOptions
from .offsets import Offset
from .scan_planner import pack_tasks
from .source_logs import SourceLogs
from .task_entries import TaskEntries

if TYPE_CHECKING:
    import pyarrow as pa


class ReadTask(InputPartition):
    """The ranges of one task, in order. It is sent to the task."""

    def __init__(
        self, ranges: list[SegmentRange], delegated_token: DelegatedToken | None = None
    ) -> None:
        self.value = None
        self.ranges = ranges
        self.delegated_token = delegated_token

    def __repr__(self) -> str:
        if not self.ranges:
            return "Task(nothing)"
        return f"Task({self.ranges[0].log} from {self.ranges[0].start}, {len(self.ranges)} ranges)"


def read_task(
    options: SourceOptions, projection: Projection, task: ReadTask
) -> "Iterator[pa.RecordBatch]":
    """Yield the record batches of one task, in a worker process."""
    from ...log.arrow.arrow_batches import BatchBuilder, group_entries

    if not task.ranges:
        return
    builder = BatchBuilder(projection)
    spark_client = retry_unavailable_blocking(
        lambda: client(
            options.uri, options.request_timeout_s, options.credentials, task.delegated_token
        ),
        options.read_timeout_s,
        "a task",
    )
    task_entries = TaskEntries(
        spark_client,
        task.ranges,
        timeout_s=options.read_timeout_s,
        fail_on_data_loss=options.fail_on_data_loss,
    )
    try:
        for name, entries in task_entries.by_log():
            for parts in group_entries(entries, options.batch_bytes):
                yield builder.batch(name, parts)
    finally:
        task_entries.close()


class BatchReader(DataSourceReader):
    """Plans one ``spark.read``: logs, ranges and tasks."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self.options = options
        self.projection = projection
        self.filter_bounds = FilterBounds()

    @marks_errors
    def partitions(self) -> list[InputPartition]:
        """Return the tasks, ordered by log and position. Without data, return one task without ranges."""
        options = self.options
        ranges = run(
            options.uri,
            options.request_timeout_s,
            self.plan,
            retry_s=options.read_timeout_s,
            credentials=options.credentials,
        )
        tasks = pack_tasks(
            ranges, self.options.max_bytes_per_partition, self.options.min_partitions
        )
        delegated_token = delegated_token_for(options, is_stream=False) if tasks else None
        return [ReadTask(task_ranges, delegated_token) for task_ranges in tasks] or [ReadTask([])]

    async def plan(self, spark_client: SparkClient) -> list[SegmentRange]:
        """Return the ranges between start and end of the options, in the background loop."""
        logs = SourceLogs(spark_client.namespace, self.options)
        try:
            names = sorted(await logs.discover())
            starts = await logs.starts(names, "earliest")
            ends = await logs.ends(names)
            ranges: list[SegmentRange] = []
            for name in names:
                ranges += await self._log_ranges(logs.views[name], starts[name], ends[name])
            return ranges
        finally:
            logs.close()

    @marks_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a task, in a worker process, on an unpickled copy of the reader."""
        assert isinstance(partition, ReadTask)
        return read_task(self.options, self.projection, partition)

    @property
    def pushFilters(self) -> Callable[[list[Any]], Iterable[Any]]:
        """With ``pushdown``, the method that receives Spark's filters.

        If Spark's own setting is off, it rejects readers that override this method.
        """
        return self._record_filters if self.options.pushdown else super().pushFilters

    def _record_filters(self, filters: list[Any]) -> Iterable[Any]:
        """Store the limits of the filters. All filters are returned, so that Spark applies each exactly."""
        txid_unit = self.options.txid_unit
        self.filter_bounds = filter_bounds(
            filters, None if txid_unit is None else TXID_UNITS[txid_unit]
        )
        return filters

    async def _log_ranges(self, view: LogView, start: DLSN, end: DLSN) -> list[SegmentRange]:
        """Return the ranges of one log, limited by the filters."""
        bounds = self.filter_bounds
        if not bounds.allows(view.name):
            return []
        if view.state.had_unordered_txids:
            bounds = bounds.without_column("txid")
        if not all(part.last_time_ms for part in view.closed if part.records):
            bounds = bounds.without_column(
                "timestamp"
            )  # an older version closed a segment without exact times
        start, end = await _narrow_positions(bounds, view, start, end)
        segments = [part for part in view.segments if bounds.may_match(part)]
        ranges = []
        for part in ranges_between(view.name, view.incarnation, segments, start, end):
            first, last = bounds.entries(part.first_entry, part.last_entry)
            if first <= last:
                ranges.append(part.sub_range(first, last))
        return ranges


async def _narrow_positions(
    bounds: FilterBounds, view: LogView, start: DLSN, end: DLSN
) -> tuple[DLSN, DLSN]:
    """Limit two positions by the filters on transaction ID, log time and sequence ID."""
    for bound, find in (
        (bounds.bound("txid"), view.first_with_txid),
        (bounds.bound("timestamp"), view.first_with_time),
    ):
        if bound.low > LOW:
            start = max(start, await find(bound.low))
        if bound.high < HIGH:
            end = min(end, await find(bound.high + 1))
    ids = bounds.bound("sequence_id")
    if start < end and (ids.low > LOW or ids.high < HIGH):
        start_sequence_id = (await view.totals_before(start)).sequence_id
        low, high = max(0, ids.low - start_sequence_id), max(0, ids.high + 1 - start_sequence_id)
        if ids.high < HIGH:  # up to the end of the entry with the last matching record
            stop = await view.limit_position(start, end, records=high, size=None)
            end = min(end, view.entry_after(stop))
        if low:
            start = await view.limit_position(start, end, records=low, size=None)
    return start, end


def positions(
    uri: str,
    logs: list[str] | str,
    *,
    at: str = "latest",
    request_timeout_s: float = 10.0,
    read_timeout_s: float = RETRY_S,
    credentials: str = "",
) -> str:
    """Return the present starts or ends of logs, as JSON for ``startingPosition`` and ``endingPosition``.

    The same pair of positions gives the same rows in the same order, also later and in another session (G5).

    Args:
        uri: The cluster and namespace.
        logs: Names, or one glob.
        at: ``earliest`` or ``latest``.
        request_timeout_s: Timeout of one request, in seconds.
        read_timeout_s: Time of retries while the cluster is unavailable, in seconds.
        credentials: As the option ``credentials``.

    Raises:
        LogNotFound: A named log does not exist.
    """
    log_option = {"logPattern": logs} if isinstance(logs, str) else {"logs": ",".join(logs)}
    source_options = {"uri": uri, "startingPosition": at, **log_option}
    options = SourceOptions.parse(source_options, "batch")

    async def ask(spark_client: SparkClient) -> Offset:
        logs = SourceLogs(spark_client.namespace, options)
        try:
            names = await logs.discover()
            dlsns = await logs.starts(names, "latest")
            offset = Offset()
            for name in names:
                view = logs.views[name]
                offset.put(
                    name,
                    dlsns[name],
                    view.incarnation,
                    (await view.totals_before(dlsns[name])).sequence_id,
                )
            return offset
        finally:
            logs.close()

    latest_positions = run(
        uri, request_timeout_s, ask, retry_s=read_timeout_s, credentials=credentials
    )
    return json.dumps(latest_positions.to_json())
