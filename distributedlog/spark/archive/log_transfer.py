"""Export a log as an archive, and import an archive as a log, for `dlog log export` and `import`.

An export is complete when its manifest exists. An import verifies every file before it creates the log, and
again in the tasks that read it. The sink links all records or none, once for each state of each archive, even
if the import is repeated. Transaction IDs, payloads and order are kept; positions are new.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from ...log.format.dlsn import DLSN
from ...log.services.settings_update import permit_record_headers
from ...runtime.interfaces.errors import LogExists, LogNotFound
from ..client.retry import RETRY_S
from ..client.spark_client import SparkClient, run
from ..client.spark_errors import plain_errors
from ..options.options import SourceOptions
from ..read.offsets import Offset
from ..read.source_logs import SourceLogs
from . import archive_folder as folder
from .archive_store import store_of
from .manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENT_BYTES = 1 << 30
SEGMENTS_MAX = 400
"""Maximum number of segments of an import. A link accepts 800, and each task starts a new one."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of an import."""

    manifest: Manifest
    was_imported: bool
    """Whether the log already had this import, so that nothing was written."""
    first: DLSN | None
    """First position in the new log; None if the import has no records."""
    last: DLSN | None


def export_log(
    spark: "SparkSession",
    uri: str,
    log: str,
    directory: str | Path,
    *,
    start: str = "earliest",
    end: str = "latest",
    request_timeout_s: float = 10.0,
) -> Manifest:
    """Export the records of a log to an archive in a directory, and return its manifest.

    Args:
        spark: The session.
        uri: The cluster and namespace.
        log: The log.
        directory: An empty or new directory, one with an interrupted export, or the URL of an object store.
        start: First position: `earliest`, `latest` or a DLSN as text.
        end: End position, exclusive, in the same form.
        request_timeout_s: Timeout of one request, in seconds.

    Raises:
        LogNotFound, LogTruncated, InvalidRequest: The log, the start or an argument is invalid.
        ForeignData: The directory contains other objects.
    """
    from .archive_source import FORMAT_NAME, ArchiveSource, WritePlan

    store = store_of(directory)
    bounds = {
        "startingPosition": json.dumps({log: start}),
        "endingPosition": json.dumps({log: end}),
    }
    options = SourceOptions.parse({"uri": uri, "log": log, **bounds}, "batch")
    begin, stop = run(
        uri, request_timeout_s, lambda held: _resolve_bounds(held, options), retry_s=RETRY_S
    )
    folder.prepare_new(store)
    plan = WritePlan(
        uuid4().hex[:16],
        0,
        log,
        begin.ids[log],
        str(begin.logs[log]),
        begin.sequence_ids[log],
        str(stop.logs[log]),
        stop.sequence_ids[log],
    )
    frame = (
        spark.read.format("distributedlog")
        .option("log", log)
        .option("startingPosition", json.dumps(begin.to_json()))
        .option("endingPosition", json.dumps(stop.to_json()))
        .option("requestTimeout", f"{request_timeout_s}s")
        .option("includeHeaders", "true")
        .load(uri)
    )
    spark.dataSource.register(ArchiveSource)
    writer = frame.write.format(FORMAT_NAME).mode("append").option("plan", plan.to_option())
    with plain_errors():
        writer.save(store.location)
    return folder.read_manifest(store)


def import_log(
    spark: "SparkSession",
    uri: str,
    directory: str | Path,
    log: str,
    *,
    request_timeout_s: float = 10.0,
) -> ImportResult:
    """Import an archive into a log that does not exist, has no records, or already has this import.

    Args:
        spark: The session.
        uri: The cluster and namespace.
        directory: A directory or the URL of an object store.
        log: The log.
        request_timeout_s: Timeout of one request, in seconds.

    Raises:
        InvalidRequest: There is no archive.
        CorruptData: A file differs from the manifest.
        ForeignData: A file does not belong to the archive.
        LogExists: The log has other records.
        InvalidRequest: Records have keys and headers, and the existing log does not permit them.
        After an error, nothing was written.
    """
    from .archive_source import FORMAT_NAME, ArchiveSource

    store = store_of(directory)
    manifest = folder.read_manifest(store)
    folder.verify(store, manifest)
    app = f"import-{manifest.id}"

    async def is_imported(spark_client: SparkClient) -> bool:
        return await _is_imported(spark_client, log, app, manifest)

    async def find(spark_client: SparkClient) -> tuple[DLSN, DLSN] | None:
        return await _imported_range(spark_client, log, app)

    was_imported = run(uri, request_timeout_s, is_imported, retry_s=RETRY_S)
    if not was_imported:
        spark.dataSource.register(ArchiveSource)
        archive_reader = spark.read.format(FORMAT_NAME).option(
            "until", str(manifest.end_sequence_id)
        )
        if manifest.keyed_records:
            archive_reader = archive_reader.schema(ArchiveSource.keyed_ddl())
            run(uri, request_timeout_s, lambda held: _prepare_keyed(held, log), retry_s=RETRY_S)
        frame = archive_reader.load(store.location)
        writer = frame.write.format("distributedlog").mode("append").option("log", log)
        size = max(SEGMENT_BYTES, manifest.payload_bytes // SEGMENTS_MAX)
        writer = writer.option("createLogs", "true").option("segmentBytes", str(size))
        writer = writer.option("txnAppId", app).option("txnVersion", str(manifest.generation))
        writer = writer.option("requestTimeout", f"{request_timeout_s}s")
        with plain_errors():
            writer.save(uri)
    position_range = run(uri, request_timeout_s, find, retry_s=RETRY_S)
    return ImportResult(manifest, was_imported, *(position_range or (None, None)))


async def _prepare_keyed(spark_client: SparkClient, log: str) -> None:
    """Create the log for records with keys and headers, or check that the existing one permits them.

    Raises:
        InvalidRequest: The existing log does not permit them.
    """
    namespace = spark_client.namespace
    try:
        await namespace.create_log(log, config={"record_headers": True})
    except LogExists:
        await permit_record_headers(
            namespace.metadata, namespace.path, await namespace.resolve_name(log), log
        )


async def _resolve_bounds(
    spark_client: SparkClient, options: SourceOptions
) -> tuple[Offset, Offset]:
    """Return start and end, each with its sequence ID."""
    logs = SourceLogs(spark_client.namespace, options)
    try:
        await logs.discover()
        (view,) = logs.views.values()
        starts, ends = (
            await logs.starts([view.name], "earliest"),
            await logs.ends([view.name]),
        )
        bounds = Offset(), Offset()
        start = starts[view.name]
        for offset, dlsn in zip(bounds, (start, max(start, ends[view.name])), strict=True):
            offset.put(
                view.name, dlsn, view.incarnation, (await view.totals_before(dlsn)).sequence_id
            )
        return bounds
    finally:
        logs.close()


async def _is_imported(spark_client: SparkClient, name: str, app: str, manifest: Manifest) -> bool:
    """Whether the log already has this import. Raises `LogExists` if it has other records."""
    log = spark_client.namespace.open_log(name)
    try:
        state = await log.snapshot()
        linked = await log.linked_version(app)
    except LogNotFound:
        return False
    if linked is not None and linked.version == manifest.generation:
        return True
    if state.end_sequence_id:
        raise LogExists(
            f'log "{name}" has other records: import into a log that does not exist or is empty'
        )
    return False


async def _imported_range(
    spark_client: SparkClient, name: str, app: str
) -> tuple[DLSN, DLSN] | None:
    """Return the first and the last position of an import."""
    log = spark_client.namespace.open_log(name)
    linked = await log.linked_version(app)
    if linked is None or not linked.first_segment:
        return None
    for segment in await log.segments(first=linked.last_segment, limit=1):
        if segment.segment == linked.last_segment and segment.last_dlsn is not None:
            return DLSN(linked.first_segment, 0, 0), segment.last_dlsn
    return None  # the records were truncated in the meantime
