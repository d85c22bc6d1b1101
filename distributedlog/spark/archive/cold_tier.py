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
from ..client.retry import PATIENCE_S
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
    current = folder.read_if_any(store)
    incarnation = run(
        uri, request_timeout_s, lambda held: _incarnation(held, log), patience_s=PATIENCE_S
    )
    if current is None:
        place = f.struct("sequence_id", "segment", "entry", "slot")
        (head,) = frame.agg(f.min(place)).collect()[0]
        if head is None:
            return None
        first = str(DLSN(*head[1:]))
        plan = WritePlan(uuid4().hex[:16], 0, log, incarnation, first, head[0], None, None)
    else:
        _check_ours(current, store, log, incarnation)
        frame = frame.where(frame.sequence_id >= current.end_sequence_id)
        plan = WritePlan(
            current.id, current.generation, log, incarnation, str(current.first),
            current.first_sequence_id, None, None,
        )  # fmt: skip
    frame.sparkSession.dataSource.register(ArchiveSource)
    writer = frame.write.format(FORMAT_NAME).mode("append").option("plan", plan.to_option())
    with plain_errors():
        writer.save(store.where)
    return folder.read(store)


def history_manifest(directory: str | Path) -> Manifest | None:
    """What the archive in ``directory`` holds: ``end`` is the next position to be read from the log.

    None where there is none yet. Raises `CorruptData`, `ForeignData`.
    """
    return folder.read_if_any(store_of(directory))


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
    manifest = folder.read(store)
    manifest.check_listing(folder.files(store, manifest), store.where, alone=False)
    before, after = run(
        uri,
        request_timeout_s,
        lambda held: _around(held, manifest, store, log),
        patience_s=PATIENCE_S,
    )

    def of_log(bounds: tuple[str, str]) -> "DataFrame":
        read = spark.read.format("distributedlog").option("log", log)
        read = read.option("startingPosition", bounds[0]).option("endingPosition", bounds[1])
        return read.option("requestTimeout", f"{request_timeout_s}s").load(uri)

    parts = [] if before is None else [of_log(before)]
    if manifest.files:
        parts.append(_of_archive(spark, store, manifest))
    found = of_log(after)
    for part in parts:
        found = part.unionByName(found)
    return found


def _of_archive(spark: "SparkSession", store: ArchiveStore, manifest: Manifest) -> "DataFrame":
    """By Spark's own reader, which prunes columns and row groups, where it can open the files; a store is
    reached as this process reaches it, and each of its files verified."""
    if store.local:
        names = [_escaped(store.path(one.name)) for one in manifest.files]
        return spark.read.schema(ddl()).parquet(*names)
    from .archive_source import FORMAT_NAME, ArchiveSource

    spark.dataSource.register(ArchiveSource)
    read = spark.read.format(FORMAT_NAME).schema(ddl())
    return read.option("until", str(manifest.end_sequence_id)).load(store.where)


async def _around(
    held: SparkClient, manifest: Manifest, store: ArchiveStore, log: str
) -> tuple[tuple[str, str] | None, tuple[str, str]]:
    """(from, to) before the archive, if the log has anything there, and after it."""
    logs = SourceLogs(held.namespace, SourceOptions(log=log))
    try:
        await logs.discover()
        view = logs.views[log]
        _check_ours(manifest, store, log, view.incarnation)
        lost = view.state.truncated_sequence_id - manifest.end_sequence_id
        if lost > 0:
            raise LogTruncated(
                f'log "{log}" begins at {view.earliest}, the archive in {store.where} ends at '
                f"{manifest.end}: {lost} records between them are in neither",
                str(view.earliest),
            )
        first = view.state.truncated_sequence_id
        before = None
        if view.ranges(view.earliest, manifest.first):
            before = (
                _position(view, view.earliest, first),
                _position(view, manifest.first, manifest.first_sequence_id),
            )
        # Ends are fixed here: after a restart of the cluster a log may show less than the archive has, for
        # a moment (G5), and what it shows then would be in both.
        start = min(max(manifest.end, view.earliest), view.end)
        after = _position(view, start, max(manifest.end_sequence_id, first))
        return before, (after, _position(view, view.end, None))
    finally:
        logs.close()


async def _incarnation(held: SparkClient, log: str) -> str:
    return incarnation_text(await held.namespace.find(log))


def _check_ours(manifest: Manifest, store: ArchiveStore, log: str, incarnation: str) -> None:
    if manifest.log != log:
        raise ForeignData(
            f'the archive in {store.where} is of log "{manifest.log}", not of "{log}"'
        )
    if manifest.incarnation != incarnation:
        raise LogRecreated(
            f'the archive in {store.where} is of log "{log}" {manifest.incarnation}; the log of that name is '
            f"{incarnation} now: it was deleted and made again"
        )


def _position(view: LogView, dlsn: DLSN, sequence_id: int | None) -> str:
    found = Offset()
    found.put(view.name, dlsn, view.incarnation, sequence_id)
    return json.dumps(found.to_json())


def _escaped(path: str) -> str:
    """A path that Spark would take for a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)
