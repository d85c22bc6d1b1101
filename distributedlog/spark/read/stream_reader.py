"""``spark.readStream``: the stream reader, one object for the whole life of a query on the driver."""

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

from ..client.retry import retry_unavailable_blocking
from ..client.spark_client import SparkClient, client, delegated_token_for
from ..client.spark_errors import marks_errors, marks_errors_of_rows
from ..options.options import SourceOptions
from .batch_reader import ReadTask, read_task
from .offsets import Offset
from .scan_planner import pack_tasks
from .stream_progress import BatchLimit, StreamProgress
from .table_schema import Projection


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark calls; `StreamProgress` decides. Its pickle goes to the tasks, without the latter."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self.options = options
        self.projection = projection
        self._progress: tuple[SparkClient, StreamProgress] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None}

    @marks_errors
    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins. Spark asks twice; the answer is the same."""
        offset: Offset = self._call("initial")
        return offset.to_json()

    @marks_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next micro-batch goes; ``start`` itself, as spelled, where there is nothing new."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        offset: Offset = self._call("latest", Offset.from_json(start), BatchLimit(rows, size))
        return offset.to_json()

    @marks_errors
    def getDefaultReadLimit(self) -> ReadLimit:
        """By ``maxRecordsPerTrigger`` or ``maxBytesPerTrigger``."""
        if self.options.max_records_per_trigger is not None:
            return ReadMaxRows(self.options.max_records_per_trigger)
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        return ReadAllAvailable()

    @marks_errors
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The true ends: Spark shows them in its progress, beside how far the query is."""
        offset: Offset | None = self._call("ends")
        return None if offset is None else offset.to_json()

    @marks_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Note the ends that this run will not pass."""
        self._call("set_target")

    @marks_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a micro-batch; the same content for the same pair, also after a restart."""
        ranges = self._call("ranges", Offset.from_json(start), Offset.from_json(end))
        tasks = pack_tasks(
            ranges, self.options.max_bytes_per_partition, self.options.min_partitions
        )
        delegated_token = delegated_token_for(self.options, is_stream=True) if tasks else None
        return [ReadTask(task_ranges, delegated_token) for task_ranges in tasks]

    @marks_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Runs in a worker process, on an unpickled copy."""
        assert isinstance(partition, ReadTask)
        return read_task(self.options, self.projection, partition)

    @marks_errors
    def commit(self, end: dict[str, Any]) -> None:
        """Spark has done with all before ``end``: advance the subscriber's position, if there is one."""
        if self.options.subscriber is not None:
            self._call("committed", Offset.from_json(end))

    @marks_errors
    def stop(self) -> None:
        """The query failed (Spark does not always say when it ends)."""
        if self._progress is not None:
            spark_client, progress = self._progress
            self._progress = None
            spark_client.users -= 1
            if spark_client.is_alive:
                spark_client.background.post(progress.close)

    def _call(self, method: str, *arguments: object) -> Any:
        """Ask the progress of this query, which is made with the process's client."""
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
