"""A cold tier: the past of a log as Parquet, and both together as one frame.

`append_history` is called by ``foreachBatch``. It is exactly once by what it writes, not by who asks: the
archive's manifest says up to which record it goes, what a batch has below that is in already, and the
manifest moves in one step with the files. So a replayed batch, a lost checkpoint and a second driver add
nothing twice. (Spark's own file sink knows its batches only by its checkpoint, and no position of the log.)
"""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from ...log.format.dlsn import DLSN
from ...log.model.log_keys import incarnation_text
from ...log.read.log_view import LogView
from ...runtime.interfaces.errors import ForeignData, LogRecreated, LogTruncated
from ..client.retry import RETRY_S
from ..client.spark_client import SparkClient, run
from ..client.spark_errors import plain_errors
from ..options.options import SourceOptions
from ..read.offsets import Offset
from ..read.source_logs import SourceLogs
from ..read.table_schema import ddl
from . import archive_folder as folder
from .archive_store import ArchiveStore, store_of
from .manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REQUEST_TIMEOUT_S = 10.0


def append_history(
    frame: "DataFrame",
    uri: str,
    log: str,
    directory: str | Path,
    *,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
) -> Manifest | None:
    """Add the records of ``frame`` to the archive in ``directory``; what that holds then, durably.

    ``frame``: all columns of the source, of one log, in the order of the log. What the archive holds
    already is left out. A new archive begins with the first record that comes; None: there was none yet.
    Raises `LogRecreated`, `ForeignData` (the archive is another log's), `CorruptData`; `VersionConflict`
    when somebody else appends; `InvalidRequest` for a gap. Then nothing of ``frame`` is added.
    """
    from pyspark.sql import functions as f

    from .archive_source import FORMAT_NAME, ArchiveSource, WritePlan

    store = store_of(directory)
    store.prepare()
    current = folder.read_manifest_if_any(store)
    incarnation = run(uri, request_timeout_s, lambda held: _incarnation(held, log), retry_s=RETRY_S)
    if current is None:
        first_row = f.struct("sequence_id", "segment", "entry", "slot")
        (first_values,) = frame.agg(f.min(first_row)).collect()[0]
        if first_values is None:
            return None
        first = str(DLSN(*first_values[1:]))
        plan = WritePlan(uuid4().hex[:16], 0, log, incarnation, first, first_values[0], None, None)
    else:
        _check_archive_of(current, store, log, incarnation)
        frame = frame.where(frame.sequence_id >= current.end_sequence_id)
        plan = WritePlan(
            current.id, current.generation, log, incarnation, str(current.first),
            current.first_sequence_id, None, None,
        )  # fmt: skip
    frame.sparkSession.dataSource.register(ArchiveSource)
    writer = frame.write.format(FORMAT_NAME).mode("append").option("plan", plan.to_option())
    with plain_errors():
        writer.save(store.location)
    return folder.read_manifest(store)


def history_manifest(directory: str | Path) -> Manifest | None:
    """What the archive in ``directory`` holds: ``end`` is the next position to be read from the log.

    None where there is none yet. Raises `CorruptData`, `ForeignData`.
    """
    return folder.read_manifest_if_any(store_of(directory))


def read_with_history(
    spark: "SparkSession",
    uri: str,
    log: str,
    directory: str | Path,
    *,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
) -> "DataFrame":
    """All records of a log: those of the archive from there, and what the log has before and after it.

    The columns of the source; each record once, whatever both have, in no order (`sequence_id` gives it).
    Raises `InvalidRequest` where there is no archive, `ForeignData` where it is another log's,
    `LogRecreated` where it is an earlier log's of that name, `LogTruncated` where the log lacks records
    after the archive's end, `CorruptData` where a file is missing or of another size.
    """
    store = store_of(directory)
    manifest = folder.read_manifest(store)
    manifest.check_listing(folder.list_files(store, manifest), store.location, no_others=False)
    range_before, range_after = run(
        uri,
        request_timeout_s,
        lambda held: _ranges_around(held, manifest, store, log),
        retry_s=RETRY_S,
    )

    def of_log(bounds: tuple[str, str]) -> "DataFrame":
        read = spark.read.format("distributedlog").option("log", log)
        read = read.option("startingPosition", bounds[0]).option("endingPosition", bounds[1])
        return read.option("requestTimeout", f"{request_timeout_s}s").load(uri)

    parts = [] if range_before is None else [of_log(range_before)]
    if manifest.files:
        parts.append(_read_archive(spark, store, manifest))
    frame = of_log(range_after)
    for part in parts:
        frame = part.unionByName(frame)
    return frame


def _read_archive(spark: "SparkSession", store: ArchiveStore, manifest: Manifest) -> "DataFrame":
    """By Spark's own reader, which prunes columns and row groups, where it can open the files; a store is
    reached as this process reaches it, and each of its files verified."""
    if store.is_local:
        names = [_escaped(store.path(one.name)) for one in manifest.files]
        return spark.read.schema(ddl()).parquet(*names)
    from .archive_source import FORMAT_NAME, ArchiveSource

    spark.dataSource.register(ArchiveSource)
    read = spark.read.format(FORMAT_NAME).schema(ddl())
    return read.option("until", str(manifest.end_sequence_id)).load(store.location)


async def _ranges_around(
    spark_client: SparkClient, manifest: Manifest, store: ArchiveStore, log: str
) -> tuple[tuple[str, str] | None, tuple[str, str]]:
    """(from, to) before the archive, if the log has anything there, and after it."""
    logs = SourceLogs(spark_client.namespace, SourceOptions(log=log))
    try:
        await logs.discover()
        view = logs.views[log]
        _check_archive_of(manifest, store, log, view.incarnation)
        missing_records = view.state.truncated_sequence_id - manifest.end_sequence_id
        if missing_records > 0:
            raise LogTruncated(
                f'log "{log}" begins at {view.earliest}, the archive in {store.location} ends at '
                f"{manifest.end}: {missing_records} records between them are in neither",
                str(view.earliest),
            )
        first = view.state.truncated_sequence_id
        range_before = None
        if view.ranges(view.earliest, manifest.first):
            range_before = (
                _position_json(view, view.earliest, first),
                _position_json(view, manifest.first, manifest.first_sequence_id),
            )
        # Ends are fixed here: after a restart of the cluster a log may show less than the archive has, for
        # a moment (G5), and what it shows then would be in both.
        start = min(max(manifest.end, view.earliest), view.end)
        range_after = _position_json(view, start, max(manifest.end_sequence_id, first))
        return range_before, (range_after, _position_json(view, view.end, None))
    finally:
        logs.close()


async def _incarnation(spark_client: SparkClient, log: str) -> str:
    return incarnation_text(await spark_client.namespace.resolve_name(log))


def _check_archive_of(manifest: Manifest, store: ArchiveStore, log: str, incarnation: str) -> None:
    if manifest.log != log:
        raise ForeignData(
            f'the archive in {store.location} is of log "{manifest.log}", not of "{log}"'
        )
    if manifest.incarnation != incarnation:
        raise LogRecreated(
            f'the archive in {store.location} is of log "{log}" {manifest.incarnation}; the log of that '
            "name is "
            f"{incarnation} now: it was deleted and made again"
        )


def _position_json(view: LogView, dlsn: DLSN, sequence_id: int | None) -> str:
    offset = Offset()
    offset.put(view.name, dlsn, view.incarnation, sequence_id)
    return json.dumps(offset.to_json())


def _escaped(path: str) -> str:
    """A path that Spark would take for a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)
