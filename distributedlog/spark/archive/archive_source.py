"""An internal Spark data source for archives: tasks write files, or read them back verified.

`cold_tier.py` and `log_transfer.py` register ``format("distributedlog-archive")`` when they need it. The
option ``plan`` describes the write. Users read archives with Spark's own Parquet reader.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from ...log.format.dlsn import DLSN
from ...runtime.interfaces.errors import DistributedLogError, InvalidRequest
from ..client.spark_errors import marks_errors, marks_errors_of_rows
from . import archive_folder as folder
from .archive_store import ArchiveStore, store_of
from .manifest import ArchiveFile, Manifest

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_NAME = "distributedlog-archive"
TASKS_MAX = 400
"""Maximum number of tasks of one read. Each creates at least one segment, and a link accepts 800."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """An addition to an archive, which can be a new one. It is sent as JSON."""

    id: str
    generation: int
    """The present generation of the archive; 0 if there is none yet."""
    log: str
    incarnation: str
    first: str
    """First position of the archive, as text."""
    first_sequence_id: int
    end: str | None
    """End of the archive after the write, even without a record there. None is after the last record.
    """
    end_sequence_id: int | None
    unkeyed_end: int | None = None
    """The sequence ID from which records may have keys and headers, which the frame lacks.

    None if the frame has their columns."""

    def to_option(self) -> str:
        """Return the value of the option ``plan``."""
        return json.dumps(asdict(self))

    def empty_manifest(self) -> Manifest:
        """Return the manifest of an archive without files."""
        first = DLSN.parse(self.first)
        ids = self.first_sequence_id
        return Manifest(self.id, 0, self.log, self.incarnation, first, first, ids, ids)


@dataclass
class WrittenFiles(WriterCommitMessage):
    """The files that a task wrote."""

    partition: int
    files: list[ArchiveFile]


class ReadFiles(InputPartition):
    """The files of one task, each with the index of its first record in the archive."""

    def __init__(self, files: Sequence[tuple[ArchiveFile, int]]) -> None:
        self.value = None
        self.files = files


class ArchiveSource(DataSource):
    """The source ``format("distributedlog-archive")``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return FORMAT_NAME

    @marks_errors
    def schema(self) -> str:
        """Return the columns of a read, which can be written to a log."""
        return "txid bigint, payload binary"

    @classmethod
    def keyed_ddl(cls) -> str:
        """Return the columns of `schema`, with those of keys and headers."""
        from ..read.table_schema import COLUMNS, KEYED_COLUMNS

        columns = {name: COLUMNS[name] for name in ("txid", "payload")} | KEYED_COLUMNS
        return ", ".join(f"{name} {kind}" for name, kind in columns.items())

    @marks_errors
    def reader(self, schema: Any) -> "ArchiveReader":
        """Return the reader for ``spark.read``."""
        until = self.options.get("until")
        columns = [field.name for field in schema.fields]
        store = store_of(self.options["path"])
        return ArchiveReader(store, columns, None if until is None else int(until))

    @marks_errors
    def writer(self, schema: Any, overwrite: bool) -> "ArchiveWriter":
        """Return the writer for ``df.write``."""
        from ..read.table_schema import COLUMNS, KEYED_COLUMNS, ddl

        type_by_column = {field.name: field.dataType.simpleString() for field in schema.fields}
        own = {"timestamp": COLUMNS["timestamp"], **type_by_column}
        if own not in (COLUMNS, COLUMNS | KEYED_COLUMNS):
            legal = ddl(include_headers=True)
            raise InvalidRequest(
                f"an archive requires the unchanged columns of the source: {legal}; got "
                f"{', '.join(type_by_column)}"
            )
        return ArchiveWriter(
            store_of(self.options["path"]), WritePlan(**json.loads(self.options["plan"]))
        )


class ArchiveReader(DataSourceReader):
    """Reads all records in order, a few files per task. Each file is verified before it is used.

    ``until`` is the end sequence ID of the read, even if the archive has grown since. None is the end of the
    archive.
    """

    def __init__(self, store: ArchiveStore, columns: Sequence[str], until: int | None) -> None:
        self.store = store
        self.columns = columns
        self.until = until

    @marks_errors
    def partitions(self) -> list[InputPartition]:
        """Return the tasks in log order."""
        manifest = folder.read_manifest(self.store)
        first = manifest.first_sequence_id
        files_with_offset = [
            (archive_file, archive_file.first_sequence_id - first)
            for archive_file in manifest.files
            if self.until is None or archive_file.end_sequence_id <= self.until
        ]
        files_per_task = -(-len(files_with_offset) // TASKS_MAX) or 1
        tasks = [
            ReadFiles(files_with_offset[index : index + files_per_task])
            for index in range(0, len(files_with_offset), files_per_task)
        ]
        return list(tasks) or [ReadFiles([])]

    @marks_errors_of_rows
    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the records of a task. Raises `CorruptData` before the task can succeed."""
        from ..client.worker_heap import freeze_worker_heap
        from .parquet_file import read_records

        freeze_worker_heap()
        assert isinstance(partition, ReadFiles)
        for archive_file, first_record in partition.files:
            yield from read_records(self.store, archive_file, first_record, self.columns)


class ArchiveWriter(DataSourceArrowWriter):
    """Writes files in tasks. They belong to the archive once the manifest lists them."""

    def __init__(self, store: ArchiveStore, plan: WritePlan) -> None:
        self.store = store
        self.plan = plan

    @marks_errors
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WrittenFiles:
        """Write the files of a task, in a worker process."""
        from pyspark import TaskContext

        from ..client.worker_heap import freeze_worker_heap

        freeze_worker_heap()
        context = TaskContext.get()
        assert context is not None
        return WrittenFiles(context.partitionId(), self._write_files(iterator))

    def _write_files(self, batches: "Iterator[pa.RecordBatch]") -> list[ArchiveFile]:
        from .parquet_file import FILE_BYTES, ParquetFileWriter

        plan, files = self.plan, []
        part: ParquetFileWriter | None = None
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                _check_unkeyed(batch, plan)
                if part is None:
                    first_sequence_id = batch.column("sequence_id")[0].as_py()
                    part = ParquetFileWriter(
                        self.store,
                        plan.log,
                        plan.incarnation,
                        plan.first_sequence_id,
                        first_sequence_id,
                        plan.generation + 1,
                    )
                part.add(batch)
                if part.size_bytes >= FILE_BYTES:
                    files.append(part.close())
                    part = None
            if part is not None:
                files.append(part.close())
        except BaseException:
            if part is not None:
                part.abort()
            raise
        return files

    @marks_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the files of all tasks. Raises the reason why they cannot follow the present archive."""
        plan, files = self.plan, _files_of(messages)

        def make(current: Manifest | None) -> Manifest:
            if current is not None and not files:
                return current  # the archive already has all records
            end = None if plan.end is None else DLSN.parse(plan.end)
            grown_manifest = (current or plan.empty_manifest()).grown(files, end)
            if plan.end_sequence_id not in (None, grown_manifest.end_sequence_id):
                raise InvalidRequest(
                    f'log "{plan.log}": records {plan.first_sequence_id} to {plan.end_sequence_id} were '
                    f"requested, but the files end at {grown_manifest.end_sequence_id}"
                )
            return grown_manifest

        folder.publish(self.store, plan.id, plan.generation, make)

    @marks_errors
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Clean up after the job or its commit failed, possibly after the manifest was published.

        Files that can still become part of the archive remain for the next append.
        """
        with suppress(DistributedLogError, OSError):  # the original error is reported
            folder.clean(self.store)


def _check_unkeyed(batch: "pa.RecordBatch", plan: WritePlan) -> None:
    """Refuse records that may have keys and headers, if the frame lacks the columns for them.

    The driver found the log without any before the records of this batch were written, but did not look
    again.
    """
    if plan.unkeyed_end is None:
        return
    last = batch.column("sequence_id")[batch.num_rows - 1].as_py()
    if last >= plan.unkeyed_end:
        raise InvalidRequest(
            f'log "{plan.log}": record {last} was written after this append began and may have a key and '
            'headers, which the frame lacks. Read the log with the option "includeHeaders", or append again'
        )


def _files_of(messages: Sequence[Any]) -> list[ArchiveFile]:
    written_messages = [
        message_candidate
        for message_candidate in messages
        if isinstance(message_candidate, WrittenFiles)
    ]
    return [
        file
        for message in sorted(
            written_messages, key=lambda message_candidate: message_candidate.partition
        )
        for file in message.files
    ]
