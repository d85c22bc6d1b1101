"""`dlog log`: create, list, show, write, read, tail, delete; more in `log_ends.py` and `archives.py`."""

import json
from typing import Any, BinaryIO

import click

from . import archives, log_ends
from .options import Command, Group, Settings, common, consent, yes_option
from .output import emit, size, table

FORMAT = click.Choice(["lines", "jsonl", "frames"])


@click.group(
    cls=Group,
    examples="""
    dlog log create orders
    seq 1000 | dlog log write orders
    dlog log read orders --limit 10
    dlog log tail orders --format jsonl
    dlog log show orders
    """,
)
def command() -> None:
    """Create, list, show, write, read, tail, truncate, seal, delete, export and import logs."""


log_ends.add_to(command)
archives.add_to(command)


@command.command(
    cls=Command,
    examples="""
    dlog log create orders
    dlog log create orders --durability all        every copy before an acknowledgement
    """,
)
@click.argument("name")
@click.option(
    "--durability",
    type=click.Choice(["standard", "all"]),
    default="standard",
    show_default=True,
    help="Acknowledge when two of three bookies have it synced, or when all have.",
)
@common
def create(settings: Settings, name: str, durability: str) -> None:
    """Create a log. Exit code 3 when there is one of that name."""
    from .connect import answer, namespace, run

    async def work() -> None:
        async with namespace(settings) as logs:
            await answer(
                settings, f"creating {name}", lambda: logs.create_log(name, durability=durability)
            )
        if settings.json:
            emit({"name": name, "created": True})
        else:
            settings.note(f"created {name}")

    run(work)


@command.command(name="list", cls=Command, examples="dlog log list\ndlog log list orders/ --json")
@click.argument("prefix", default="")
@common
def list_(settings: Settings, prefix: str) -> None:
    """The names of the logs, in order; with --json one object a line."""
    from .connect import namespace, run

    async def work() -> None:
        async with namespace(settings) as logs:
            async for name in logs.logs(prefix):
                print(json.dumps({"name": name}) if settings.json else name)

    run(work)


@command.command(cls=Command, examples="dlog log delete orders --yes")
@click.argument("name")
@yes_option
@common
def delete(settings: Settings, name: str, yes: bool) -> None:
    """Delete a log and all its records. There is no way back."""
    consent(f"delete log {name} and all its records, in {settings.where()}", yes)
    from .connect import answer, namespace, run

    async def work() -> None:
        async with namespace(settings) as logs:
            await answer(settings, f"deleting {name}", lambda: logs.delete_log(name))
        if settings.json:
            emit({"name": name, "deleted": True})

    run(work)


@command.command(cls=Command, examples="dlog log show orders\ndlog log show orders --json")
@click.argument("name")
@common
def show(settings: Settings, name: str) -> None:
    """A log's segments, sizes, owner and truncation."""
    from .connect import answer, namespace, run
    from .show import describe

    async def work() -> None:
        async with namespace(settings) as logs:
            found = await answer(settings, f"showing {name}", lambda: describe(logs, name))
        if settings.json:
            emit(found)
        else:
            _print_log(found)

    run(work)


def _print_log(found: dict[str, Any]) -> None:
    print(f"log        {found['name']}{'  (sealed)' if found['sealed'] else ''}")
    print(f"records    {found['records']:,}  in {size(found['bytes'])}")
    print(f"positions  {found['first_dlsn'] or '-'} to {found['last_dlsn'] or '-'}")
    print(f"truncated  {found['truncated_to'] or 'not'}")
    print(f"owner      {found['owner'] or 'none'}")
    print()
    columns = (
        "segment",
        "ledger",
        "state",
        "records",
        "bytes",
        "first_txid",
        "last_txid",
        "last_dlsn",
    )
    table(
        columns,
        [[segment[key] for key in columns] for segment in found["segments"]],
        empty="no segments",
    )


@command.command(
    cls=Command,
    examples="""
    seq 1000000 | dlog log write numbers --create
    dlog log write orders orders.jsonl --format jsonl --json
    """,
)
@click.argument("name")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--format", "format_name", type=FORMAT, default="lines", show_default=True)
@click.option(
    "--txid",
    type=click.Choice(["time", "count"]),
    default="time",
    show_default=True,
    help="time: the later of the log's last and now, in ms; count: the log's last + 1.",
)
@click.option("--create", "create_", is_flag=True, help="Create the log if there is none.")
@click.option("--takeover", is_flag=True, help="Fence another writer instead of waiting for it.")
@common
def write(
    settings: Settings,
    name: str,
    file: BinaryIO,
    format_name: str,
    txid: str,
    create_: bool,
    takeover: bool,
) -> None:
    """Write records from FILE or stdin; ends when all are durable.

    A record a line (any bytes; empty lines count), or JSON objects ({"txid"?, "payload" or
    "payload_base64"}), or frames (u32 little-endian length, bytes). When it fails, it says how many
    records are certainly stored; what was under way then may be stored too (exit code 7).
    """
    from .connect import run
    from .write import write_stream

    async def work() -> None:
        await write_stream(
            settings,
            name,
            file,
            format_name,
            count=txid == "count",
            create=create_,
            takeover=takeover,
        )

    run(work)


def reading(function: Any) -> Any:
    """The options of read and tail."""
    for option in (
        click.option("--format", "format_name", type=FORMAT, default="lines", show_default=True),
        click.option("--limit", type=click.IntRange(0), help="End after so many records."),
        click.option("--to", metavar="DLSN", help="End after this position."),
        click.option(
            "--from-txid", type=click.IntRange(0), help="Begin at the first record >= this txid."
        ),
        click.option("--from", "start", metavar="DLSN", help="A position, earliest, or latest."),
        click.argument("name"),
    ):
        function = option(function)
    return function


@command.command(
    cls=Command,
    examples="""
    dlog log read orders > orders.txt
    dlog log read orders --from 1.12.3 --limit 100 --format jsonl
    dlog log read orders --follow
    """,
)
@reading
@click.option("--follow", is_flag=True, help="Go on with new records, until Ctrl-C.")
@common
def read(settings: Settings, **given: Any) -> None:
    """Read records, from the earliest one on, to the last one there is now (or on, with --follow)."""
    _read(settings, default="earliest", **given)


@command.command(
    cls=Command,
    examples="""
    dlog log tail orders
    dlog log tail orders --from earliest --format jsonl
    """,
)
@reading
@common
def tail(settings: Settings, **given: Any) -> None:
    """Follow a log: records that are written from now on, until Ctrl-C."""
    _read(settings, default="latest", follow=True, **given)


def _read(settings: Settings, *, default: str, **given: Any) -> None:
    if given["start"] is not None and given["from_txid"] is not None:
        raise click.UsageError("--from and --from-txid: choose one")
    if settings.json:
        given["format_name"] = "jsonl"
    given["start"] = given["start"] or default
    from .connect import run
    from .read import read_stream

    run(lambda: read_stream(settings, **given))
