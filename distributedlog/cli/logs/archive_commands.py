"""`dlog log export` and `dlog log import`: a log as Parquet files with a manifest, by Spark.

Spark is imported only when it is needed. Its output on stderr is suppressed without -v. Its errors are
reported as one line, like all others.
"""

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ..framework.options import CliCommand, Settings, common
from ..framework.output import emit, plural, size
from ..framework.progress import show_progress

if TYPE_CHECKING:
    from ...spark.archive.manifest import Manifest

MASTER = "local[2]"
INSTALL_HINT = "pip install '.[spark]', and a Java 17"


def add_to(group: click.Group) -> None:
    """Add these commands to `dlog log`."""
    group.add_command(export)
    group.add_command(import_)


@click.command(
    cls=CliCommand,
    examples="""
    dlog log export orders --output /backup/orders
    dlog log export orders --output /backup/orders-12 --from 12.0.0
    """,
)
@click.argument("name")
@click.option(
    "--output",
    "directory",
    metavar="DIR",
    required=True,
    help="Directory to write: empty or new, or the URL of an object store prefix.",
)
@click.option(
    "--from",
    "start",
    metavar="DLSN",
    default="earliest",
    help='First position (default "earliest").',
)
@click.option(
    "--to", metavar="DLSN", help="Last position, inclusive (default: the end of the log)."
)
@click.option(
    "--master", default=MASTER, show_default=True, help="Spark master. All its hosts need DIR."
)
@common
def export(
    settings: Settings, name: str, directory: str, start: str, to: str | None, master: str
) -> None:
    """Export the records of a log to Parquet files in DIR.

    The command also writes a manifest with the digests of all files. If an export is interrupted, repeat it
    with the same directory. The files have all columns of the Spark source. `dlog log import` writes them
    to a log.
    """
    from ...log.format.dlsn import DLSN

    start_position = start if start == "earliest" else str(DLSN.parse(start))
    end = "latest" if to is None else str(DLSN.parse(to).next())
    uri = settings.where()
    check_spark()
    _check_log(settings, name)
    started_at = time.perf_counter()
    with (
        show_progress(settings, lambda s: f"exporting {name} to {directory}: {s:.0f} s"),
        _spark_session(settings, master) as spark,
    ):
        from ...spark.archive.log_transfer import export_log

        manifest = export_log(
            spark,
            uri,
            name,
            directory,
            start=start_position,
            end=end,
            request_timeout_s=settings.timeout_s,
        )
    if settings.json:
        emit(
            {
                "log": name,
                "to": directory,
                **_manifest_output(manifest),
                "seconds": _elapsed_s(started_at),
            }
        )
    else:
        settings.note(
            f"exported {plural(manifest.records, 'record')} ({size(manifest.payload_bytes)}) of {name} from"
            f" {manifest.first} up to {manifest.end} into {plural(len(manifest.files), 'file')}, digest "
            f"{manifest.digest}"
        )


@click.command(
    name="import",
    cls=CliCommand,
    examples="""
    dlog log import /backup/orders --log orders-again
    """,
)
@click.argument("directory", metavar="DIR")
@click.option(
    "--log", "name", metavar="NAME", required=True, help="Log to use: a new or empty one."
)
@click.option(
    "--master", default=MASTER, show_default=True, help="Spark master. All its hosts need DIR."
)
@common
def import_(settings: Settings, directory: str, name: str, master: str) -> None:
    """Import the records of an export into a new log.

    The command verifies all files against the manifest first. It imports all records or none, exactly once,
    even if it is interrupted and repeated. Transaction IDs, payloads and order are kept. The records get new
    positions.
    """
    uri = settings.where()
    from ...log.interfaces.log_names import check_log_name

    check_log_name(name)
    check_spark()
    _check_archive(directory)
    started_at = time.perf_counter()
    with (
        show_progress(settings, lambda s: f"importing {directory} into {name}: {s:.0f} s"),
        _spark_session(settings, master) as spark,
    ):
        from ...spark.archive.log_transfer import import_log

        import_result = import_log(
            spark, uri, directory, name, request_timeout_s=settings.timeout_s
        )
    manifest = import_result.manifest
    first, last = (
        str(dlsn) if dlsn is not None else None
        for dlsn in (import_result.first, import_result.last)
    )
    if settings.json:
        output = {
            **_manifest_output(manifest),
            "first_dlsn": first,
            "last_dlsn": last,
            "already": import_result.was_imported,
        }
        output.pop("end_dlsn")
        emit({"log": name, "from": directory, **output, "seconds": _elapsed_s(started_at)})
    elif import_result.was_imported:
        settings.note(f"{name} already has this import, from {first or '-'} to {last or '-'}")
    else:
        settings.note(
            f"imported {plural(manifest.records, 'record')} ({size(manifest.payload_bytes)}) into "
            f"{name}: transaction IDs and"
            f" payloads as in {manifest.log}, new positions from {first or '-'} to {last or '-'}"
        )


def _manifest_output(manifest: "Manifest") -> dict[str, Any]:
    return {
        "archive": manifest.id,
        "incarnation": manifest.incarnation,
        "records": manifest.records,
        "bytes": manifest.payload_bytes,
        "first_dlsn": str(manifest.first),
        "end_dlsn": str(manifest.end),
        "files": len(manifest.files),
        "file_bytes": manifest.file_bytes,
        "digest": manifest.digest,
    }


def _elapsed_s(started_at: float) -> float:
    return round(time.perf_counter() - started_at, 3)


def _check_log(settings: Settings, name: str) -> None:
    """Fail early if the log does not exist, because the start of Spark takes ten seconds."""
    from ...runtime.interfaces.errors import LogNotFound
    from ..connection.cluster_connection import run_call

    async def check_exists(logs: Any) -> None:
        if not await logs.log_exists(name):
            raise LogNotFound(f'log "{name}" does not exist in {settings.where()}', name)

    run_call(settings, f"looking for {name}", check_exists)


def _check_archive(directory: str) -> None:
    """Fail early if there is no archive or if files are missing."""
    from ...spark.archive import archive_folder as folder
    from ...spark.archive.archive_store import store_of

    store = store_of(directory)
    manifest = folder.read_manifest(store)
    manifest.check_listing(folder.list_files(store, manifest), store.location, no_others=True)


def check_spark() -> None:
    """Check that Spark can run here. Raises an error that names the missing software."""
    for name in ("pyspark", "pyarrow", "numpy"):
        if importlib.util.find_spec(name) is None:
            raise click.ClickException(
                f"{name} is not installed, and this command requires Spark: {INSTALL_HINT}"
            )
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise click.ClickException(
            f"Java not found, and this command requires Spark: {INSTALL_HINT}"
        )


@contextmanager
def _spark_session(settings: Settings, master: str) -> Iterator[Any]:
    """Yield the active Spark session of this process, or a new one that ends with the command."""
    from pyspark.sql import SparkSession

    active_session = SparkSession.getActiveSession()
    if active_session is not None:
        yield active_session
        return
    from ...spark import session

    conf = {"spark.app.name": "dlog"}
    if settings.verbose:
        conf["spark.log.level"] = "WARN"
    with _silence_children(keep_stderr=bool(settings.verbose)):
        new_session = session(master, conf=conf)
    try:
        yield new_session
    finally:
        new_session.stop()


@contextmanager
def _silence_children(*, keep_stderr: bool) -> Iterator[None]:
    """Redirect stderr of Java and its workers, if they start within the block, to the null device.

    `sys.stderr` of this process still writes to the old stderr, for the progress line.
    """
    if keep_stderr:
        yield
        return
    own_stderr, dev_null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    stream = sys.stderr
    try:
        os.dup2(dev_null, 2)
        with open(own_stderr, "w", encoding=stream.encoding, buffering=1, closefd=False) as own:
            sys.stderr = own
            yield
    finally:
        sys.stderr = stream
        os.dup2(own_stderr, 2)
        os.close(own_stderr)
        os.close(dev_null)
