"""`dlog metadata save`, `restore`, `force-new-cluster`, `gc`: metadata that outlives its nodes."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..framework.errors import NO, ExitWithCode, say
from ..framework.options import (
    CliCommand,
    Group,
    Settings,
    common,
    consent,
    force_option,
    replaceable,
)
from ..framework.output import emit, plural

if TYPE_CHECKING:
    from ...metadata.node.force_new_cluster import LoadedBackup
    from ...runtime.disk.output_file import OutputFile
    from ...runtime.interfaces.host import Disk

MADE = "metadata.new"
BEFORE = "metadata.before"
"""Beside ``metadata`` in a node's data directory, while a new cluster is made of it and after."""

_data = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="A node's data directory.",
)


@click.command(
    cls=CliCommand,
    examples="""
    dlog metadata save /backup/meta-1.save
    dlog metadata save m1.save --data /var/lib/dlog/m      of a node that is stopped, from its disk
    dlog metadata save - | zstd > meta-1.save.zst
    """,
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--data",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Read a stopped node's directory instead of asking the quorum; nothing there is changed.",
)
@force_option
@common
def save(settings: Settings, file: Path, data: Path | None, force: bool) -> None:
    """Save all metadata as of one moment. FILE is complete, or it is not changed.

    A pipe, a device or "-" (standard output) receives the save as a stream: only "restore" checks that one.
    Writers and readers continue. A save has no data of bookies.
    """
    from ...metadata.node.force_new_cluster import chunks_of, read_survivor
    from ...runtime.disk.output_file import output_file
    from ..connection.cluster_connection import quorum, run

    to = replaceable(file, force)
    name = "" if to.file is None else to.file.name
    if name and (not name.isprintable() or name.startswith((".", "LOCK"))):
        raise click.UsageError(f"a save has a name that is shown in listings, not {name!r}")

    async def work() -> "LoadedBackup":
        with output_file(file, reader_wait_s=settings.timeout_s) as out:
            if data is None:
                async with quorum(settings) as metadata:
                    return await _write(out, metadata.save())
            async with locked(data / "metadata") as disk:
                return await _write(out, chunks_of(await read_survivor(disk)))

    saved = run(work)
    if to.stream is not None:
        settings.note(_summary(saved))  # standard output may be the save
    else:
        _tell(settings, saved, file=str(file))


@click.command(
    cls=CliCommand,
    examples="""
    dlog metadata restore /backup/meta-1.save --data /var/lib/dlog/m --name m1 --address h1:4181
    """,
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_data
@click.option("--name", required=True, help="Of the node; its name in --metadata lists.")
@click.option("--address", required=True, metavar="HOST:PORT", help="Where the others reach it.")
@force_option
@common
def restore(
    settings: Settings, file: Path, data: Path, name: str, address: str, force: bool
) -> None:
    """Make an empty directory the only metadata node of the cluster, with what FILE has.

    Only where no majority of the old nodes can be had: they must never run again. Start the node then, and
    let others in with "dlog metadata add". What was decided after the save is lost; nothing is deleted
    until "dlog metadata gc resume".
    """
    from ...cluster.declarations.config import format_address, parse_address
    from ...metadata.node.force_new_cluster import read_backup
    from ...runtime.disk.directory_disk import DirectoryDisk
    from ..connection.cluster_connection import run

    place = format_address(parse_address(address, "--address"))
    consent(f"begin the cluster anew from {file}, without its old metadata nodes", force)

    directory = file.absolute().parent

    async def work() -> dict[str, Any]:
        source = DirectoryDisk(directory)
        try:
            saved = await read_backup(source, file.name)
        finally:
            await source.close()
        async with locked(data / "metadata") as disk:
            return await _refound(disk, saved, name, place, f"restored from {file.name}")

    _tell_anew(settings, run(work))


@click.command(cls=CliCommand, examples="dlog metadata force-new-cluster --data /var/lib/dlog/m")
@_data
@click.option("--name", help="Default: the name that it has.")
@click.option("--address", metavar="HOST:PORT", help="Default: the address that it has.")
@force_option
@common
def force_new_cluster(
    settings: Settings, data: Path, name: str | None, address: str | None, force: bool
) -> None:
    """Make a stopped metadata node the only one of its cluster, with what its disk has.

    Only where the others are lost for good: they must never run again. What they acknowledged without this
    one is lost. Its directory as it was stays beside the new one, as metadata.before.
    """
    from ...cluster.declarations.config import format_address, parse_address
    from ...metadata.node.force_new_cluster import read_survivor
    from ...runtime.disk.node_identity import load_identity
    from ..connection.cluster_connection import run

    place, made, before = data / "metadata", data / MADE, data / BEFORE
    given = format_address(parse_address(address, "--address")) if address else ""
    if before.exists():
        if place.exists():
            raise click.UsageError(f"{before} is there from an earlier time: move it away first")
        if (made / "MEMBERS").exists():  # ended between the two renames
            made.rename(place)
            _sync(data)
            say(f"{place} is what was made before; it can be started")
            return
    if not place.exists():
        raise click.UsageError(f"{data} is no data directory of a metadata node")
    consent(f"go on with {data} alone, without the other metadata nodes", force)

    async def work() -> dict[str, Any]:
        async with locked(place) as disk:
            saved = await read_survivor(disk)
            identity = await load_identity(disk)
            assert identity is not None, "read just now"
            member = saved.head.members.member(identity.node_id)
            found = given or (member.address if member is not None else "")
            if not found:
                raise click.UsageError("its address is not known: give --address HOST:PORT")
            if made.exists():
                import shutil

                shutil.rmtree(made)  # of a try that did not end
            async with locked(made) as fresh:
                why = "went on with one node alone"
                return await _refound(fresh, saved, name or identity.label, found, why)

    done = run(work)
    place.rename(before)
    made.rename(place)
    _sync(data)
    _tell_anew(settings, done)


@click.group(
    cls=Group,
    examples="""
    dlog metadata gc show
    dlog metadata gc resume                   after a restore, when what is there was looked at
    """,
)
def gc() -> None:
    """Whether anything is deleted: truncated segments, deleted logs, segments that nobody linked."""


@gc.command(cls=CliCommand, examples="dlog metadata gc show")
@common
def show(settings: Settings) -> None:
    """Is deleting held, and why? Exit code 6 where it is."""
    from ...cluster.coordination.gc_hold import why_held
    from ..connection.cluster_connection import ask, quorum

    why = ask(settings, "why nothing is deleted", why_held, quorum)
    _tell_hold(settings, why)
    if why:
        raise ExitWithCode(NO)


@gc.command(cls=CliCommand, examples='dlog metadata gc hold --why "looking for log orders"')
@click.option("--why", default="an operator has asked for it", help="Told in the status.")
@common
def hold(settings: Settings, why: str) -> None:
    """Have nothing deleted until "resume": no bookie gives room back meanwhile."""
    from ...cluster.coordination import gc_hold as restored
    from ..connection.cluster_connection import ask, quorum

    ask(settings, "the hold", lambda metadata: restored.hold(metadata, why), quorum)
    _tell_hold(settings, why)


@gc.command(cls=CliCommand, examples="dlog metadata gc resume")
@common
def resume(settings: Settings) -> None:
    """Let deletions go on."""
    from ...cluster.coordination import gc_hold as restored
    from ..connection.cluster_connection import ask, quorum

    ask(settings, "the end of the hold", restored.resume, quorum)
    _tell_hold(settings, "")


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator["Disk"]:
    """A node's disk that no node has. Raises `DataDirectoryInUse`."""
    from ...runtime.disk.directory_disk import DirectoryDisk

    disk = DirectoryDisk(path)
    try:
        disk.lock()
        try:
            yield disk
        finally:
            disk.unlock()
    finally:
        await disk.close()


async def _write(out: "OutputFile", chunks: AsyncIterator[bytes]) -> "LoadedBackup":
    """Write a save; a file is read back before it gets its name. Raises `CorruptData`, `DiskFailed`."""
    from ...metadata.node.force_new_cluster import read_backup, saved_from, write_backup
    from ...runtime.disk.directory_disk import DirectoryDisk

    passed: list[bytes] = []

    async def passing() -> AsyncIterator[bytes]:
        async for chunk in chunks:
            passed.append(chunk)
            yield chunk

    async def again() -> AsyncIterator[bytes]:
        for chunk in passed:
            yield chunk

    if out.unfinished is None:
        await write_backup(out.write_in_thread, passing())
        return await saved_from(again(), "the save")
    await write_backup(out.write_in_thread, chunks)
    disk = DirectoryDisk(out.unfinished.parent)
    try:
        return await read_backup(disk, out.unfinished.name)
    finally:
        await disk.close()


async def _refound(
    disk: "Disk", saved: "LoadedBackup", name: str, address: str, why: str
) -> dict[str, Any]:
    from ...cluster.coordination.gc_hold import RESUME
    from ...cluster.coordination.restored_counters import restore_counters
    from ...metadata.node.force_new_cluster import force_new_cluster
    from ...runtime.machine import real_host

    made = restore_counters(saved.state, f"the metadata {why}; look, then: {RESUME}")
    node_id = await force_new_cluster(
        disk, saved.head, made.state, name=name, address=address, chance=real_host("dlog").random
    )
    return {
        "cluster": saved.head.cluster_id,
        "name": name,
        "id": node_id,
        "address": address,
        "restores": made.restores,
        "index": saved.head.index,
        "revision": saved.state.revision,
        "logs": made.logs,
        "unreadable": list(made.unreadable),
    }


def _tell(settings: Settings, saved: "LoadedBackup", **more: str) -> None:
    head = saved.head
    found = {
        **more,
        "cluster": head.cluster_id,
        "index": head.index,
        "revision": saved.state.revision,
        "keys": _keys(saved),
        "members": [member.name for member in head.members.members],
    }
    if settings.json:
        emit(found)
        return
    print(_summary(saved))


def _summary(saved: "LoadedBackup") -> str:
    head = saved.head
    return (
        f"{_keys(saved)} keys of cluster {head.cluster_id} as of entry {head.index}"
        f" (revision {saved.state.revision}) saved"
    )


def _keys(saved: "LoadedBackup") -> int:
    from ...metadata.node.force_new_cluster import all_items

    return sum(1 for _ in all_items(saved.state))


def _tell_anew(settings: Settings, found: dict[str, Any]) -> None:
    if settings.json:
        emit(found)
        return
    print(
        f"{found['name']} ({found['id']}) is the only metadata node of cluster {found['cluster']} now:"
        f" {plural(found['logs'], 'log')}, as of entry {found['index']}; what was decided after it is not"
        " there."
    )
    if found["unreadable"]:
        print(f"records that cannot be read, left as they are: {json.dumps(found['unreadable'])}")
    print(
        f"Start it under its name at {found['address']}, never again an old one; then others with empty"
        ' directories, each let in by "dlog metadata add NAME=HOST:PORT".\n'
        'Nothing is deleted until "dlog metadata gc resume".'
    )


def _tell_hold(settings: Settings, why: str) -> None:
    if settings.json:
        emit({"held": bool(why), "why": why})
    else:
        print(f"nothing is deleted: {why}" if why else "deletions go on")


def _sync(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
