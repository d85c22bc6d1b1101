"""`dlog metadata backup`, `restore`, `force-new-cluster`, `gc`: back up and restore the metadata."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..framework.errors import NO, ExitWithCode, print_notice
from ..framework.options import (
    CliCommand,
    Group,
    Settings,
    common,
    confirmed_destination,
    force_option,
    require_consent,
)
from ..framework.output import emit, plural
from ..framework.progress import show_progress

if TYPE_CHECKING:
    from ...metadata.node.force_new_cluster import LoadedBackup
    from ...runtime.disk.output_file import OutputFile
    from ...runtime.interfaces.host import Disk

NEW_DIRECTORY = "metadata.new"
OLD_DIRECTORY = "metadata.before"
"""Directories next to ``metadata`` in a data directory, during and after the creation of a new cluster."""

_data = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Data directory.",
)


@click.command(
    cls=CliCommand,
    examples="""
    dlog metadata backup /backup/meta-1.backup
    dlog metadata backup m1.backup --data /var/lib/dlog/m     from the disk of a stopped node
    dlog metadata backup - | zstd > meta-1.backup.zst
    """,
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--data",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Data directory (of a stopped node; it is read instead of the quorum, and not changed).",
)
@force_option
@common
def backup(settings: Settings, file: Path, data: Path | None, force: bool) -> None:
    """Back up all metadata, consistently.

    FILE is written completely or not changed. A pipe, a device or "-" (standard output) receives a stream,
    which only "restore" verifies. Writers and readers continue. The file contains no data of bookies.
    """
    from ...metadata.node.force_new_cluster import backup_file_chunks, read_node_disk
    from ...runtime.disk.output_file import output_file
    from ..connection.cluster_connection import quorum, run

    target = confirmed_destination(file, force)
    name = "" if target.file is None else target.file.name
    if name and (not name.isprintable() or name.startswith((".", "LOCK"))):
        raise click.UsageError(
            f"invalid file name {name!r}: it must be printable and not start with a dot or LOCK"
        )

    async def work() -> "LoadedBackup":
        with output_file(file, reader_wait_s=settings.timeout_s) as out:
            if data is None:
                async with quorum(settings) as metadata:
                    return await _write_backup(out, metadata.save())
            async with open_locked(data / "metadata") as disk:
                return await _write_backup(out, backup_file_chunks(await read_node_disk(disk)))

    with show_progress(settings, lambda s: f"backing up the metadata: {s:.0f} s"):
        loaded = run(work)
    if target.stream is not None:
        settings.note(_summary(loaded))  # stdout may be the destination
    else:
        _print_backup(settings, loaded, file=str(file))


@click.command(
    cls=CliCommand,
    examples="""
    dlog metadata restore /backup/meta-1.backup --data /var/lib/dlog/m --name m1 --address h1:4181
    """,
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_data
@click.option("--name", required=True, help="Name of the node (as in --metadata lists).")
@click.option(
    "--address", required=True, metavar="HOST:PORT", help="Address at which other nodes reach it."
)
@force_option
@common
def restore(
    settings: Settings, file: Path, data: Path, name: str, address: str, force: bool
) -> None:
    """Create a new one-node metadata quorum of the cluster from a backup.

    Use this only if a majority of the old nodes is lost. The old nodes must never run again. DIR of --data
    must be empty. Then start the node, and add others with "dlog metadata add". Changes after the backup are
    lost. Deletions are suspended until "dlog metadata gc resume".
    """
    from ...cluster.declarations.config import format_address, parse_address
    from ...metadata.node.force_new_cluster import read_backup
    from ...runtime.disk.directory_disk import DirectoryDisk
    from ..connection.cluster_connection import run

    node_address = format_address(parse_address(address, "--address"))
    require_consent(f"restart the cluster from {file}, without its old metadata nodes", force)

    directory = file.absolute().parent

    async def work() -> dict[str, Any]:
        source = DirectoryDisk(directory)
        try:
            backup = await read_backup(source, file.name)
        finally:
            await source.close()
        async with open_locked(data / "metadata") as disk:
            return await _restore_as_new_cluster(
                disk, backup, name, node_address, f"restored from {file.name}"
            )

    _print_new_cluster(settings, run(work))


@click.command(cls=CliCommand, examples="dlog metadata force-new-cluster --data /var/lib/dlog/m")
@_data
@click.option("--name", help="Name of the node (default: its present name).")
@click.option(
    "--address",
    metavar="HOST:PORT",
    help="Address at which other nodes reach it (default: its present address).",
)
@force_option
@common
def force_new_cluster(
    settings: Settings, data: Path, name: str | None, address: str | None, force: bool
) -> None:
    """Make a stopped metadata node the only one of its cluster, with the data on its disk.

    Use this only if the other nodes are lost permanently. They must never run again. Changes that they
    acknowledged without this node are lost. The previous directory is kept as metadata.before.
    """
    from ...cluster.declarations.config import format_address, parse_address
    from ...metadata.node.force_new_cluster import read_node_disk
    from ...runtime.disk.node_identity import load_identity
    from ..connection.cluster_connection import run

    metadata_directory, new_directory, old_directory = (
        data / "metadata",
        data / NEW_DIRECTORY,
        data / OLD_DIRECTORY,
    )
    given_address = format_address(parse_address(address, "--address")) if address else ""
    if old_directory.exists():
        if metadata_directory.exists():
            raise click.UsageError(
                f"{old_directory} exists from an earlier run: move it away first"
            )
        if (new_directory / "MEMBERS").exists():  # interrupted between the two renames
            new_directory.rename(metadata_directory)
            _sync_directory(data)
            print_notice(f"{metadata_directory} was completed from an earlier run; start the node")
            return
    if not metadata_directory.exists():
        raise click.UsageError(f"{data} is not the data directory of a metadata node")
    require_consent(f"continue with {data} only, without the other metadata nodes", force)

    async def work() -> dict[str, Any]:
        async with open_locked(metadata_directory) as disk:
            backup = await read_node_disk(disk)
            identity = await load_identity(disk)
            assert identity is not None, "read just now"
            member = backup.head.members.member(identity.node_id)
            node_address = given_address or (member.address if member is not None else "")
            if not node_address:
                raise click.UsageError(
                    "the address of the node is unknown: use --address HOST:PORT"
                )
            if new_directory.exists():
                import shutil

                shutil.rmtree(new_directory)  # from an interrupted run
            async with open_locked(new_directory) as new_disk:
                reason = "was reduced to one node"
                return await _restore_as_new_cluster(
                    new_disk, backup, name or identity.label, node_address, reason
                )

    result = run(work)
    metadata_directory.rename(old_directory)
    new_directory.rename(metadata_directory)
    _sync_directory(data)
    _print_new_cluster(settings, result)


@click.group(
    cls=Group,
    examples="""
    dlog metadata gc show
    dlog metadata gc resume                   after a restore, when the data was checked
    """,
)
def gc() -> None:
    """Show, hold or resume deletions of truncated segments, deleted logs and unlinked segments."""


@gc.command(cls=CliCommand, examples="dlog metadata gc show")
@common
def show(settings: Settings) -> None:
    """Show whether deletions are held, and the reason.

    The exit code is 6 if they are held.
    """
    from ...cluster.coordination.gc_hold import hold_reason
    from ..connection.cluster_connection import quorum, run_call

    why = run_call(settings, "why nothing is deleted", hold_reason, quorum)
    _print_hold(settings, why)
    if why:
        raise ExitWithCode(NO)


@gc.command(cls=CliCommand, examples='dlog metadata gc hold --reason "looking for log orders"')
@click.option(
    "--reason",
    default="an operator has asked for it",
    help='Reason: shown by "dlog status". The default is "an operator has asked for it".',
)
@common
def hold(settings: Settings, reason: str) -> None:
    """Hold all deletions until "resume".

    No bookie frees space in the meantime.
    """
    from ...cluster.coordination import gc_hold as restored
    from ..connection.cluster_connection import quorum, run_call

    run_call(
        settings, "the hold", lambda metadata: restored.hold_deletions(metadata, reason), quorum
    )
    _print_hold(settings, reason)


@gc.command(cls=CliCommand, examples="dlog metadata gc resume")
@common
def resume(settings: Settings) -> None:
    """Resume deletions."""
    from ...cluster.coordination import gc_hold as restored
    from ..connection.cluster_connection import quorum, run_call

    run_call(settings, "the end of the hold", restored.resume_deletions, quorum)
    _print_hold(settings, "")


@asynccontextmanager
async def open_locked(path: Path) -> AsyncIterator["Disk"]:
    """Lock and open a node's disk that no node uses. Raises `DataDirectoryInUse`."""
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


async def _write_backup(out: "OutputFile", chunks: AsyncIterator[bytes]) -> "LoadedBackup":
    """Write a backup. A file is verified before it gets its name. Raises `CorruptData` or `DiskFailed`."""
    from ...metadata.node.force_new_cluster import read_backup, restore_backup, write_backup
    from ...runtime.disk.directory_disk import DirectoryDisk

    sent_chunks: list[bytes] = []

    async def passing() -> AsyncIterator[bytes]:
        async for chunk in chunks:
            sent_chunks.append(chunk)
            yield chunk

    async def again() -> AsyncIterator[bytes]:
        for chunk in sent_chunks:
            yield chunk

    if out.unfinished is None:
        await write_backup(out.write_in_thread, passing())
        return await restore_backup(again(), "the backup")
    await write_backup(out.write_in_thread, chunks)
    disk = DirectoryDisk(out.unfinished.parent)
    try:
        return await read_backup(disk, out.unfinished.name)
    finally:
        await disk.close()


async def _restore_as_new_cluster(
    disk: "Disk", backup: "LoadedBackup", name: str, address: str, reason: str
) -> dict[str, Any]:
    from ...cluster.coordination.gc_hold import RESUME
    from ...cluster.coordination.restored_counters import restore_counters
    from ...metadata.node.force_new_cluster import force_new_cluster
    from ...runtime.machine import real_host

    counters = restore_counters(
        backup.state, f"the metadata {reason}; check the data, then: {RESUME}"
    )
    node_id = await force_new_cluster(
        disk, backup.head, counters.state, name=name, address=address, rng=real_host("dlog").random
    )
    return {
        "cluster": backup.head.cluster_id,
        "name": name,
        "id": node_id,
        "address": address,
        "restores": counters.restores,
        "index": backup.head.index,
        "revision": backup.state.revision,
        "logs": counters.logs,
        "unreadable": list(counters.unreadable),
    }


def _print_backup(settings: Settings, backup: "LoadedBackup", **extra_fields: str) -> None:
    head = backup.head
    output = {
        **extra_fields,
        "cluster": head.cluster_id,
        "index": head.index,
        "revision": backup.state.revision,
        "keys": _count_keys(backup),
        "members": [member.name for member in head.members.members],
    }
    if settings.json:
        emit(output)
        return
    print(_summary(backup))


def _summary(backup: "LoadedBackup") -> str:
    head = backup.head
    return (
        f"{_count_keys(backup)} keys of cluster {head.cluster_id} as of entry {head.index}"
        f" (revision {backup.state.revision}) backed up"
    )


def _count_keys(backup: "LoadedBackup") -> int:
    from ...metadata.node.force_new_cluster import iter_items

    return sum(1 for _ in iter_items(backup.state))


def _print_new_cluster(settings: Settings, result: dict[str, Any]) -> None:
    if settings.json:
        emit(result)
        return
    print(
        f"{result['name']} ({result['id']}) is now the only metadata node of cluster {result['cluster']}:"
        f" {plural(result['logs'], 'log')}, as of entry {result['index']}. Later changes are"
        " lost."
    )
    if result["unreadable"]:
        print(
            f"records that cannot be read and were not changed: {json.dumps(result['unreadable'])}"
        )
    print(
        f"Start it under its name at {result['address']}, and never an old node again. Then start others with"
        ' empty directories, and add each with "dlog metadata add NAME=HOST:PORT".\n'
        'Deletions are held until "dlog metadata gc resume".'
    )


def _print_hold(settings: Settings, reason: str) -> None:
    if settings.json:
        emit({"held": bool(reason), "why": reason})
    else:
        print(f"deletions are held: {reason}" if reason else "deletions are not held")


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
