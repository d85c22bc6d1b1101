"""A cold tier: the past of a log as Parquet, and archive and log as one frame.

`append_history` is called by ``foreachBatch``. It is exactly once by its content, not by its caller. The
manifest of the archive contains its last record, earlier records of a batch are skipped, and the manifest
changes in one step with the files. Therefore a replayed batch, a lost checkpoint or a second driver adds
nothing twice. (Spark's own file sink recognizes its batches only by its checkpoint, and not by positions of
the log.)
"""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from ...log.format.dlsn import DLSN
from ...log.model.log_keys import incarnation_text
from ...log.read.log_view import LogView
from ...runtime.interfaces.errors import (
    ForeignData,
    InvalidRequest,
    LogRecreated,
    LogTruncated,
)
from ..client.retry import RETRY_S
from ..client.spark_client import SparkClient, run
from ..client.spark_errors import plain_errors
from ..options.options import SourceOptions
from ..read.offsets import Offset
from ..read.source_logs import SourceLogs
from ..read.table_schema import KEYED_COLUMNS, ddl
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
    """Append the records of a frame to the archive in a directory, durably.

    Records that the archive already has are skipped. A new archive starts with the first record of the frame.

    Args:
        frame: All columns of the source, of one log, in log order. If records of the log may have keys and
            headers, it needs their columns (option ``includeHeaders``).
        uri: The cluster and namespace of the log.
        log: The log.
        directory: A directory or the URL of an object store.
        request_timeout_s: Timeout of one request, in seconds.

    Returns:
        The manifest after the call; None if there is no archive yet and the frame is empty.

    Raises:
        LogRecreated, ForeignData: The archive belongs to a deleted log of this name, or to another log.
        CorruptData: The archive is damaged.
        VersionConflict: Another process has appended at the same time.
        InvalidRequest: Records are missing between archive and frame, or the frame lacks the columns of keys
            and headers.
        After an error, no record of the frame was added.
    """
    from pyspark.sql import functions as f

    from .archive_source import FORMAT_NAME, ArchiveSource, WritePlan

    store = store_of(directory)
    store.prepare()
    current = folder.read_manifest_if_any(store)
    is_keyed = set(KEYED_COLUMNS) <= set(frame.columns)
    incarnation, unkeyed_end = run(
        uri, request_timeout_s, lambda held: _incarnation(held, log, is_keyed), retry_s=RETRY_S
    )
    if current is None:
        first_row = f.struct("sequence_id", "segment", "entry", "slot")
        (first_values,) = frame.agg(f.min(first_row)).collect()[0]
        if first_values is None:
            return None
        first = str(DLSN(*first_values[1:]))
        plan = WritePlan(
            uuid4().hex[:16], 0, log, incarnation, first, first_values[0], None, None, unkeyed_end
        )
    else:
        _check_archive_of(current, store, log, incarnation)
        frame = frame.where(frame.sequence_id >= current.end_sequence_id)
        plan = WritePlan(
            current.id, current.generation, log, incarnation, str(current.first),
            current.first_sequence_id, None, None, unkeyed_end,
        )  # fmt: skip
    frame.sparkSession.dataSource.register(ArchiveSource)
    writer = frame.write.format(FORMAT_NAME).mode("append").option("plan", plan.to_option())
    with plain_errors():
        writer.save(store.location)
    return folder.read_manifest(store)


def history_manifest(directory: str | Path) -> Manifest | None:
    """Return the manifest of the archive in a directory, or None if there is none.

    Its ``end`` is the next position to be read from the log. Raises `CorruptData` or `ForeignData`.
    """
    return folder.read_manifest_if_any(store_of(directory))


def read_with_history(
    spark: "SparkSession",
    uri: str,
    log: str,
    directory: str | Path,
    *,
    include_headers: bool = False,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
) -> "DataFrame":
    """Return all records of a log: those of the archive, and those of the log before and after it.

    The frame has the columns of the source. Each record is contained once, even if both have it. The order is
    undefined; sort by `sequence_id`.

    Args:
        spark: The session.
        uri: The cluster and namespace of the log.
        log: The log.
        directory: A directory or the URL of an object store.
        include_headers: Whether the frame has the columns ``key`` and ``headers``.
        request_timeout_s: Timeout of one request, in seconds.

    Raises:
        InvalidRequest: There is no archive.
        ForeignData: The archive belongs to another log.
        LogRecreated: The archive belongs to a deleted log of this name.
        LogTruncated: Records between the end of the archive and the start of the log are missing.
        CorruptData: A file is missing or has another size.
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
        read = read.option("includeHeaders", str(include_headers).lower())
        return read.option("requestTimeout", f"{request_timeout_s}s").load(uri)

    parts = [] if range_before is None else [of_log(range_before)]
    if manifest.files:
        parts.append(_read_archive(spark, store, manifest, ddl(include_headers=include_headers)))
    frame = of_log(range_after)
    for part in parts:
        frame = part.unionByName(frame)
    return frame


def _read_archive(
    spark: "SparkSession", store: ArchiveStore, manifest: Manifest, columns: str
) -> "DataFrame":
    """Read a local archive with Spark's own reader, which prunes columns and row groups.

    An object store is accessed like in this process, and each file is verified.
    """
    from pyspark.sql import functions as f

    if store.is_local:
        names = [_escaped(store.path(one.name)) for one in manifest.files]
        frame = spark.read.schema(columns).parquet(*names)
        if "headers" in frame.columns:  # files of older versions have no such column
            return frame.withColumn(
                "headers", f.coalesce("headers", f.array().cast(KEYED_COLUMNS["headers"]))
            )
        return frame
    from .archive_source import FORMAT_NAME, ArchiveSource

    spark.dataSource.register(ArchiveSource)
    read = spark.read.format(FORMAT_NAME).schema(columns)
    return read.option("until", str(manifest.end_sequence_id)).load(store.location)


async def _ranges_around(
    spark_client: SparkClient, manifest: Manifest, store: ArchiveStore, log: str
) -> tuple[tuple[str, str] | None, tuple[str, str]]:
    """Return (start, end) of the records before the archive, if any, and of those after it."""
    logs = SourceLogs(spark_client.namespace, SourceOptions(log=log))
    try:
        await logs.discover()
        view = logs.views[log]
        _check_archive_of(manifest, store, log, view.incarnation)
        missing_records = view.state.truncated_sequence_id - manifest.end_sequence_id
        if missing_records > 0:
            raise LogTruncated(
                f'log "{log}" begins at {view.earliest}, and the archive in {store.location} ends at '
                f"{manifest.end}: {missing_records} records between them are missing",
                str(view.earliest),
            )
        first = view.state.truncated_sequence_id
        range_before = None
        if view.ranges(view.earliest, manifest.first):
            range_before = (
                _position_json(view, view.earliest, first),
                _position_json(view, manifest.first, manifest.first_sequence_id),
            )
        # The ends are fixed here. After a restart of the cluster, a log may temporarily show fewer records
        # than the archive has (G5). Records that it shows later would be in both.
        start = min(max(manifest.end, view.earliest), view.end)
        range_after = _position_json(view, start, max(manifest.end_sequence_id, first))
        return range_before, (range_after, _position_json(view, view.end, None))
    finally:
        logs.close()


async def _incarnation(
    spark_client: SparkClient, log: str, is_keyed: bool
) -> tuple[str, int | None]:
    """Return the incarnation, and the ``unkeyed_end`` of a `WritePlan`.

    Args:
        spark_client: The client.
        log: The log.
        is_keyed: Whether the frame has the columns of keys and headers.

    Raises:
        InvalidRequest: It has not, and records of the log may have them.
    """
    handle = spark_client.namespace.open_log(log)
    incarnation = incarnation_text(await spark_client.namespace.resolve_name(log))
    if is_keyed:
        return incarnation, None
    # The end first: if the state does not permit keys and headers then, no earlier record has any.
    end = (await handle.snapshot()).end_sequence_id
    if (await handle.describe(segments_max=1)).state.has_record_headers:
        raise InvalidRequest(
            f'log "{log}" may have records with keys and headers, which the frame lacks. Read the log with '
            'the option "includeHeaders"'
        )
    return incarnation, end


def _check_archive_of(manifest: Manifest, store: ArchiveStore, log: str, incarnation: str) -> None:
    if manifest.log != log:
        raise ForeignData(
            f'the archive in {store.location} belongs to log "{manifest.log}", not to "{log}"'
        )
    if manifest.incarnation != incarnation:
        raise LogRecreated(
            f'the archive in {store.location} belongs to incarnation {manifest.incarnation} of log "{log}", '
            "but the log was deleted and created again: its incarnation is "
            f"{incarnation}"
        )


def _position_json(view: LogView, dlsn: DLSN, sequence_id: int | None) -> str:
    offset = Offset()
    offset.put(view.name, dlsn, view.incarnation, sequence_id)
    return json.dumps(offset.to_json())


def _escaped(path: str) -> str:
    """Escape the characters of a path that Spark interprets as a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)
