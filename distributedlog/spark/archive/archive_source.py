"""An archive as a Spark data source of our own use: tasks write its files, or read them back verified.

``format("distributedlog-archive")``, registered by `cold_tier.py` and `log_transfer.py` where they need it.
The option ``plan`` says what is written; Spark's own Parquet reader is what users read archives with.
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
"""Of one read: each becomes at least a segment, and a link takes 800."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What is added to an archive, beginning with one of no generation. Travels as JSON."""

    id: str
    generation: int
    """That the archive has now; 0: there is none yet."""
    log: str
    incarnation: str
    first: str
    """Of the archive, as text."""
    first_sequence_id: int
    end: str | None
    """Up to here, also without a record there; None: right after the last record."""
    end_sequence_id: int | None

    def to_option(self) -> str:
        """As the option ``plan``."""
        return json.dumps(asdict(self))

    def empty_manifest(self) -> Manifest:
        """The manifest before there is one."""
        first = DLSN.parse(self.first)
        ids = self.first_sequence_id
        return Manifest(self.id, 0, self.log, self.incarnation, first, first, ids, ids)


@dataclass
class WrittenFiles(WriterCommitMessage):
    """What a task wrote."""

    partition: int
    files: list[ArchiveFile]


class ReadFiles(InputPartition):
    """The files of one task, each with the place of its first record."""

    def __init__(self, files: Sequence[tuple[ArchiveFile, int]]) -> None:
        self.value = None
        self.files = files


class ArchiveSource(DataSource):
    """``format("distributedlog-archive")``."""

    @classmethod
    def name(cls) -> str:
        """The word for ``format``."""
        return FORMAT_NAME

    @marks_errors
    def schema(self) -> str:
        """Of a read: what can be written into a log again."""
        return "txid bigint, payload binary"

    @marks_errors
    def reader(self, schema: Any) -> "ArchiveReader":
        """For ``spark.read``."""
        until = self.options.get("until")
        columns = [field.name for field in schema.fields]
        store = store_of(self.options["path"])
        return ArchiveReader(store, columns, None if until is None else int(until))

    @marks_errors
    def writer(self, schema: Any, overwrite: bool) -> "ArchiveWriter":
        """For ``df.write``."""
        from ..read.table_schema import COLUMNS, ddl

        type_by_column = {field.name: field.dataType.simpleString() for field in schema.fields}
        if {"timestamp": COLUMNS["timestamp"], **type_by_column} != COLUMNS:
            legal = ddl()
            raise InvalidRequest(
                f"an archive takes the columns of the source as they are: {legal}; not "
                f"{', '.join(type_by_column)}"
            )
        return ArchiveWriter(
            store_of(self.options["path"]), WritePlan(**json.loads(self.options["plan"]))
        )


class ArchiveReader(DataSourceReader):
    """All records in order, a few files a task; each file is verified before it is used.

    ``until``: the sequence id up to which it is read, however far it has grown since; None: to its end.
    """

    def __init__(self, store: ArchiveStore, columns: Sequence[str], until: int | None) -> None:
        self.store = store
        self.columns = columns
        self.until = until

    @marks_errors
    def partitions(self) -> list[InputPartition]:
        """In the order of the log."""
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
        """In a task. Raises `CorruptData` before the task can succeed."""
        from ..client.worker_heap import freeze_worker_heap
        from .parquet_file import read_records

        freeze_worker_heap()
        assert isinstance(partition, ReadFiles)
        for archive_file, first_record in partition.files:
            yield from read_records(self.store, archive_file, first_record, self.columns)


class ArchiveWriter(DataSourceArrowWriter):
    """Tasks write files, which count once the manifest names them."""

    def __init__(self, store: ArchiveStore, plan: WritePlan) -> None:
        self.store = store
        self.plan = plan

    @marks_errors
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WrittenFiles:
        """In a task."""
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
        """All tasks are through: publish. Raises what keeps the files from following on what is there."""
        plan, files = self.plan, _files_of(messages)

        def make(current: Manifest | None) -> Manifest:
            if current is not None and not files:
                return current  # all of it was in
            end = None if plan.end is None else DLSN.parse(plan.end)
            grown_manifest = (current or plan.empty_manifest()).grown(files, end)
            if plan.end_sequence_id not in (None, grown_manifest.end_sequence_id):
                raise InvalidRequest(
                    f'log "{plan.log}": records {plan.first_sequence_id} to {plan.end_sequence_id} were '
                    f"asked for, the files go to {grown_manifest.end_sequence_id}"
                )
            return grown_manifest

        folder.publish(self.store, plan.id, plan.generation, make)

    @marks_errors
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The job failed, or a commit raised, perhaps after it had published. Files that may still come to
        count stay, for the next append."""
        with suppress(DistributedLogError, OSError):  # the job's own error matters
            folder.clean(self.store)


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
