"""The stream reader of ``spark.readStream``: one object on the driver for the whole life of a query."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ...log.arrow.arrow_columns import Projection
from ..client.retry import retry_unavailable_blocking
from ..client.spark_client import SparkClient, client, delegated_token_for
from ..client.spark_errors import marks_errors, marks_errors_of_rows
from ..options.options import SourceOptions
from .batch_reader import ReadTask, read_task
from .offsets import Offset
from .scan_planner import pack_tasks
from .stream_progress import BatchLimit, StreamProgress


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Adapts `StreamProgress` to Spark. It is pickled for the tasks, without the progress."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self.options = options
        self.projection = projection
        self._progress: tuple[SparkClient, StreamProgress] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None}

    @marks_errors
    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query. Spark asks twice, and the answers are equal."""
        offset: Offset = self._call("initial")
        return offset.to_json()

    @marks_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch; ``start`` in the same spelling if there is no new data."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        offset: Offset = self._call("latest", Offset.from_json(start), BatchLimit(rows, size))
        return offset.to_json()

    @marks_errors
    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of ``maxRecordsPerTrigger`` or ``maxBytesPerTrigger``."""
        if self.options.max_records_per_trigger is not None:
            return ReadMaxRows(self.options.max_records_per_trigger)
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        return ReadAllAvailable()

    @marks_errors
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the logs, which Spark shows in its progress next to the query's position."""
        offset: Offset | None = self._call("ends")
        return None if offset is None else offset.to_json()

    @marks_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Set the ends that this run does not pass."""
        self._call("set_target")

    @marks_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a micro-batch: the same content for the same offsets, also after a restart."""
        ranges = self._call("ranges", Offset.from_json(start), Offset.from_json(end))
        tasks = pack_tasks(
            ranges, self.options.max_bytes_per_partition, self.options.min_partitions
        )
        delegated_token = delegated_token_for(self.options, is_stream=True) if tasks else None
        return [ReadTask(task_ranges, delegated_token) for task_ranges in tasks]

    @marks_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a task, in a worker process, on an unpickled copy of the reader."""
        assert isinstance(partition, ReadTask)
        return read_task(self.options, self.projection, partition)

    @marks_errors
    def commit(self, end: dict[str, Any]) -> None:
        """Advance the subscriber's position, if any: Spark has finished all records before ``end``."""
        if self.options.subscriber is not None:
            self._call("committed", Offset.from_json(end))

    @marks_errors
    def stop(self) -> None:
        """Release the client after the query failed. Spark does not always call this when a query ends."""
        if self._progress is not None:
            spark_client, progress = self._progress
            self._progress = None
            spark_client.users -= 1
            if spark_client.is_alive:
                spark_client.background.post(progress.close)

    def _call(self, method: str, *arguments: object) -> Any:
        """Call a method of the query's progress, which is created with the process's client."""
        options = self.options
        if self._progress is None or not self._progress[0].is_alive:
            previous = None if self._progress is None else self._progress[1]
            spark_client = retry_unavailable_blocking(
                lambda: client(options.uri, options.request_timeout_s, options.credentials),
                options.read_timeout_s,
            )
            spark_client.users += 1
            self._progress = (
                spark_client,
                StreamProgress(spark_client.namespace, options, previous),
            )
        spark_client, progress = self._progress
        return spark_client.run(getattr(progress, method), *arguments)
