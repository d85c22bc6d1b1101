"""`dlog log export`, `dlog log import`: a log as Parquet files with a manifest, and the way back, by Spark.

Spark is imported when it is needed; what it says on stderr is left out without -v, and what it raises is
one line as everywhere.
"""

import importlib.util
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ..framework.options import CliCommand, Settings, common
from ..framework.output import emit, plural, size
from ..framework.progress import ticking

if TYPE_CHECKING:
    from ...spark.archive.manifest import Manifest

MASTER = "local[2]"
NEEDS = "pip install '.[spark]', and a Java 17"


def add_to(group: click.Group) -> None:
    """Put these commands into `dlog log`."""
    group.add_command(export)
    group.add_command(import_)


@click.command(
    cls=CliCommand,
    examples="""
    dlog log export orders --to /backup/orders
    dlog log export orders --to /backup/orders-12 --from 12.0.0
    """,
)
@click.argument("name")
@click.option(
    "--to",
    "directory",
    metavar="DIR",
    required=True,
    help="An empty or a new directory, or the URL of a place in an object store.",
)
@click.option("--from", "start", metavar="DLSN", default="earliest", help="Begin at this position.")
@click.option("--until", metavar="DLSN", help="End after this position; else at the end.")
@click.option("--master", default=MASTER, show_default=True, help="Spark's; all hosts see DIR.")
@common
def export(
    settings: Settings, name: str, directory: str, start: str, until: str | None, master: str
) -> None:
    """Write a log's records into DIR as Parquet files, with a manifest that proves them.

    A killed export is none, and may be repeated into the same directory. All columns of Spark's source are
    in the files; `import` makes a log of them again.
    """
    from ...log.format.dlsn import DLSN

    begin = start if start == "earliest" else str(DLSN.parse(start))
    end = "latest" if until is None else str(DLSN.parse(until).next())
    uri = settings.where()
    check_spark()
    _check_log(settings, name)
    began = time.perf_counter()
    with (
        ticking(settings, lambda s: f"exporting {name} to {directory}: {s:.0f} s"),
        _spark(settings, master) as spark,
    ):
        from ...spark.archive.log_transfer import export_log

        made = export_log(
            spark,
            uri,
            name,
            directory,
            start=begin,
            end=end,
            request_timeout_s=settings.timeout_s,
        )
    if settings.json:
        emit({"log": name, "to": directory, **_told(made), "seconds": _since(began)})
    else:
        settings.note(
            f"exported {plural(made.records, 'record')} ({size(made.payload_bytes)}) of {name} from"
            f" {made.first} up to {made.end} into {plural(len(made.files), 'file')}, digest {made.digest}"
        )


@click.command(
    name="import",
    cls=CliCommand,
    examples="""
    dlog log import /backup/orders --log orders-again
    """,
)
@click.argument("directory", metavar="DIR")
@click.option("--log", "name", metavar="NAME", required=True, help="A new log, or an empty one.")
@click.option("--master", default=MASTER, show_default=True, help="Spark's; all hosts see DIR.")
@common
def import_(settings: Settings, directory: str, name: str, master: str) -> None:
    """Write what DIR holds into a new log: all of it, once, or nothing.

    Every file is verified against the manifest first. Txids and payloads are kept, in order; positions are
    new ones. Killed and repeated it is in once; repeated later, nothing is written again.
    """
    uri = settings.where()
    from ...log.interfaces.log_names import check_log_name

    check_log_name(name)
    check_spark()
    _check_archive(directory)
    began = time.perf_counter()
    with (
        ticking(settings, lambda s: f"importing {directory} into {name}: {s:.0f} s"),
        _spark(settings, master) as spark,
    ):
        from ...spark.archive.log_transfer import import_log

        done = import_log(spark, uri, directory, name, request_timeout_s=settings.timeout_s)
    made = done.manifest
    first, last = (str(one) if one is not None else None for one in (done.first, done.last))
    if settings.json:
        told = {**_told(made), "first_dlsn": first, "last_dlsn": last, "already": done.already}
        told.pop("end_dlsn")
        emit({"log": name, "from": directory, **told, "seconds": _since(began)})
    elif done.already:
        settings.note(f"{name} holds this import already, from {first or '-'} to {last or '-'}")
    else:
        settings.note(
            f"imported {plural(made.records, 'record')} ({size(made.payload_bytes)}) into {name}: txids and"
            f" payloads as in {made.log}, positions are new ones, {first or '-'} to {last or '-'}"
        )


def _told(made: "Manifest") -> dict[str, Any]:
    return {
        "archive": made.id,
        "incarnation": made.incarnation,
        "records": made.records,
        "bytes": made.payload_bytes,
        "first_dlsn": str(made.first),
        "end_dlsn": str(made.end),
        "files": len(made.files),
        "file_bytes": made.file_bytes,
        "digest": made.digest,
    }


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 3)


def _check_log(settings: Settings, name: str) -> None:
    """Ten seconds of Spark's start are not to be spent on a log that is not there."""
    from ...runtime.interfaces.errors import LogNotFound
    from ..connection.cluster_connection import ask

    async def look(logs: Any) -> None:
        if not await logs.log_exists(name):
            raise LogNotFound(f'log "{name}" does not exist in {settings.where()}', name)

    ask(settings, f"looking for {name}", look)


def _check_archive(directory: str) -> None:
    """Nor on an archive that is none, or lacks files."""
    from ...spark.archive import archive_folder as folder
    from ...spark.archive.archive_store import store_of

    store = store_of(directory)
    manifest = folder.read(store)
    manifest.check_listing(folder.files(store, manifest), store.where, alone=True)


def check_spark() -> None:
    """Can Spark run here? Raises a one-line error that says what to install."""
    for name in ("pyspark", "pyarrow", "numpy"):
        if importlib.util.find_spec(name) is None:
            raise click.ClickException(f"{name} is not installed, this runs on Spark: {NEEDS}")
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise click.ClickException(f"there is no Java, this runs on Spark: {NEEDS}")


@contextmanager
def _spark(settings: Settings, master: str) -> Iterator[Any]:
    """The session that this process has, or one of our own, which ends with the command."""
    from pyspark.sql import SparkSession

    there = SparkSession.getActiveSession()
    if there is not None:
        yield there
        return
    from ...spark import session

    conf = {"spark.app.name": "dlog"}
    if settings.verbose:
        conf["spark.log.level"] = "WARN"
    with _stderr_of_children(keep=bool(settings.verbose)):
        made = session(master, conf=conf)
    try:
        yield made
    finally:
        made.stop()


@contextmanager
def _stderr_of_children(*, keep: bool) -> Iterator[None]:
    """A Java that is started meanwhile writes to nowhere, and so do its workers: stderr is for our lines."""
    if keep:
        yield
        return
    own, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
        os.close(nowhere)
