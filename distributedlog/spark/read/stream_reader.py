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

from ..client.retry import wait_for
from ..client.spark_client import SparkClient, client, lent_for
from ..client.spark_errors import told, told_rows
from ..options.options import SourceOptions
from .batch_reader import Task, read_task
from .offsets import Offset
from .scan_planner import pack
from .stream_progress import Limit, StreamProgress
from .table_schema import Projection


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark calls; `StreamProgress` decides. Its pickle goes to the tasks, without the latter."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self.options = options
        self.projection = projection
        self._progress: tuple[SparkClient, StreamProgress] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None}

    @told
    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins. Spark asks twice; the answer is the same."""
        found: Offset = self._call("initial")
        return found.to_json()

    @told
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next micro-batch goes; ``start`` itself, as spelled, where there is nothing new."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        found: Offset = self._call("latest", Offset.from_json(start), Limit(rows, size))
        return found.to_json()

    @told
    def getDefaultReadLimit(self) -> ReadLimit:
        """By ``maxRecordsPerTrigger`` or ``maxBytesPerTrigger``."""
        if self.options.max_records_per_trigger is not None:
            return ReadMaxRows(self.options.max_records_per_trigger)
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        return ReadAllAvailable()

    @told
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The true ends: Spark shows them in its progress, beside how far the query is."""
        found: Offset | None = self._call("ends")
        return None if found is None else found.to_json()

    @told
    def prepareForTriggerAvailableNow(self) -> None:
        """Note the ends that this run will not pass."""
        self._call("set_target")

    @told
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a micro-batch; the same content for the same pair, also after a restart."""
        ranges = self._call("ranges", Offset.from_json(start), Offset.from_json(end))
        tasks = pack(ranges, self.options.max_bytes_per_partition, self.options.min_partitions)
        lent = lent_for(self.options, stream=True) if tasks else None
        return [Task(one, lent) for one in tasks]

    @told_rows
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Runs in a worker process, on an unpickled copy."""
        assert isinstance(partition, Task)
        return read_task(self.options, self.projection, partition)

    @told
    def commit(self, end: dict[str, Any]) -> None:
        """Spark has done with all before ``end``: advance the subscriber's position, if there is one."""
        if self.options.subscriber is not None:
            self._call("committed", Offset.from_json(end))

    @told
    def stop(self) -> None:
        """The query failed (Spark does not always say when it ends)."""
        if self._progress is not None:
            held, progress = self._progress
            self._progress = None
            held.users -= 1
            if held.alive:
                held.background.post(progress.close)

    def _call(self, method: str, *arguments: object) -> Any:
        """Ask the progress of this query, which is made with the process's client."""
        options = self.options
        if self._progress is None or not self._progress[0].alive:
            before = None if self._progress is None else self._progress[1]
            held = wait_for(
                lambda: client(options.uri, options.request_timeout_s, options.credentials),
                options.read_timeout_s,
            )
            held.users += 1
            self._progress = (held, StreamProgress(held.namespace, options, before))
        held, progress = self._progress
        return held.run(getattr(progress, method), *arguments)
