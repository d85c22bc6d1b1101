"""An archive as a Spark data source of our own use: tasks write its files, or read them back verified.

``format("distributedlog-archive")``, registered by `history.py` and `transfer.py` where they need it. The
option ``plan`` says what is written; Spark's own Parquet reader is what users read archives with.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from ...log.dlsn import DLSN
from ...runtime.errors import InvalidRequest
from . import folder
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

    def empty(self) -> Manifest:
        """The manifest before there is one."""
        first = DLSN.parse(self.first)
        ids = self.first_sequence_id
        return Manifest(self.id, 0, self.log, self.incarnation, first, first, ids, ids)


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote."""

    partition: int
    files: list[ArchiveFile]


class Files(InputPartition):
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

    def schema(self) -> str:
        """Of a read: what can be written into a log again."""
        return "txid bigint, payload binary"

    def reader(self, schema: Any) -> "ArchiveReader":
        """For ``spark.read``."""
        return ArchiveReader(Path(self.options["path"]))

    def writer(self, schema: Any, overwrite: bool) -> "ArchiveWriter":
        """For ``df.write``."""
        from ..schema import COLUMNS

        given = {field.name: field.dataType.simpleString() for field in schema.fields}
        if given != COLUMNS:
            legal = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            raise InvalidRequest(
                f"an archive takes the columns of the source as they are: {legal}; not {', '.join(given)}"
            )
        return ArchiveWriter(
            Path(self.options["path"]), WritePlan(**json.loads(self.options["plan"]))
        )


class ArchiveReader(DataSourceReader):
    """All records in order, a few files a task; each file is verified before it is used."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def partitions(self) -> list[InputPartition]:
        """In the order of the log."""
        manifest = folder.read(self.directory)
        first = manifest.first_sequence_id
        placed = [(one, one.first_sequence_id - first) for one in manifest.files]
        each = -(-len(placed) // TASKS_MAX) or 1
        found = [Files(placed[at : at + each]) for at in range(0, len(placed), each)]
        return list(found) or [Files([])]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """In a task. Raises `CorruptData` before the task can succeed."""
        from ..client import settle
        from .parquet_file import records_of

        settle()
        assert isinstance(partition, Files)
        for one, place in partition.files:
            yield from records_of(self.directory, one, place)


class ArchiveWriter(DataSourceArrowWriter):
    """Tasks write files, which count once the manifest names them."""

    def __init__(self, directory: Path, plan: WritePlan) -> None:
        self.directory = directory
        self.plan = plan

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """In a task."""
        from pyspark import TaskContext

        from ..client import settle

        settle()
        context = TaskContext.get()
        assert context is not None
        return Written(context.partitionId(), self._files(iterator))

    def _files(self, batches: "Iterator[pa.RecordBatch]") -> list[ArchiveFile]:
        from .parquet_file import FILE_BYTES, PartWriter

        plan, files = self.plan, []
        part: PartWriter | None = None
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if part is None:
                    begin = batch.column("sequence_id")[0].as_py()
                    part = PartWriter(
                        self.directory, plan.log, plan.incarnation, plan.first_sequence_id, begin
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

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are through: publish. Raises what keeps the files from following on what is there."""
        plan, files = self.plan, _files_of(messages)

        def make(current: Manifest | None) -> Manifest:
            if current is not None and not files:
                return current  # all of it was in
            end = None if plan.end is None else DLSN.parse(plan.end)
            made = (current or plan.empty()).grown(files, end)
            if plan.end_sequence_id not in (None, made.end_sequence_id):
                raise InvalidRequest(
                    f'log "{plan.log}": records {plan.first_sequence_id} to {plan.end_sequence_id} were '
                    f"asked for, the files go to {made.end_sequence_id}"
                )
            return made

        folder.publish(self.directory, plan.id, plan.generation, make)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The job failed, or a commit raised, perhaps after it had published: what counts stays."""
        folder.discard(self.directory, [one.name for one in _files_of(messages)])


def _files_of(messages: Sequence[Any]) -> list[ArchiveFile]:
    sent = [one for one in messages if isinstance(one, Written)]
    return [
        file for message in sorted(sent, key=lambda one: one.partition) for file in message.files
    ]
