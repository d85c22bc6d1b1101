"""`dlog log`: commands on logs. Export and import are in `archive_commands.py`."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import Field
from typing import Any, BinaryIO

import click
from click.shell_completion import CompletionItem

from ..framework.options import (
    CliCommand,
    Group,
    Settings,
    common,
    force_option,
    report_change,
    require_consent,
)
from ..framework.output import emit, layout_table, plural, size, table, terminal_width, visible
from ..framework.progress import show_progress
from . import archive_commands as archives

FORMAT = click.Choice(["lines", "jsonl", "frames"])
LOG_NAME_ARGUMENTS = ("name", "old", "prefix", "words")
"""Arguments that are completed with names of logs. ``words`` of `dlog log config` begin with one."""
COMPLETION_S = 2.0
"""How long a shell waits for the names of logs."""
COMPLETIONS_MAX = 200


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
    """Create, list, show, configure, rename, write, read, tail, truncate, seal and delete logs."""


@command.command(
    cls=CliCommand,
    examples="""
    dlog log create orders
    dlog log create orders --durability all        acknowledge when all three copies are durable
    dlog log create ticks --txid-policy strict     reject transaction IDs below the last one
    """,
)
@click.argument("name")
@click.option(
    "--durability",
    type=click.Choice(["standard", "all"]),
    default="standard",
    show_default=True,
    help="Acknowledge when two of three bookies have synced a record (standard), or when all three have.",
)
@click.option(
    "--txid-policy",
    type=click.Choice(["auto", "strict", "count", "ms", "bytes"]),
    default="auto",
    show_default=True,
    help="Policy for omitted transaction IDs: see above.",
)
@click.option(
    "--if-not-exists",
    is_flag=True,
    help="Succeed, and change nothing, if a log of this name exists.",
)
@common
def create(
    settings: Settings, name: str, durability: str, txid_policy: Any, if_not_exists: bool
) -> None:
    """Create a log.

    The exit code is 3 if a log of this name exists, unless --if-not-exists is used. A given transaction ID
    (txid) is stored unchanged. The policy determines an omitted one:

    \b
      auto    the last txid + 1 or the time in ms, whichever is greater
      count   the last txid + 1
      ms      the time in ms, but at least the last txid
      strict  as auto; a given txid below the last one is rejected
      bytes   a byte stream, whose txids are byte offsets
    """
    from ...runtime.interfaces.errors import LogExists
    from ..connection.cluster_connection import run_call

    async def call(logs: Any) -> bool:
        try:
            await logs.create_log(name, durability=durability, txids=txid_policy)
            return True
        except LogExists:
            if not if_not_exists:
                raise
            return False

    created = run_call(settings, f"creating {name}", call)
    if created:
        report_change(settings, "created", "log", name)
    elif settings.json:
        emit({"name": name, "created": False})
    else:
        settings.note(f"log {name} exists already")


@command.command(
    name="list",
    cls=CliCommand,
    examples="""
    dlog log list
    dlog log list orders/ --json
    dlog log list orders/ --sizes --limit 20
    """,
)
@click.argument("prefix", default="")
@click.option(
    "--sizes", is_flag=True, help="Show records, bytes and owner; several requests per log."
)
@click.option("--limit", type=click.IntRange(1), help="Maximum number of logs.")
@common
def list_(settings: Settings, prefix: str, sizes: bool, limit: int | None) -> None:
    """List the names of the logs in alphabetical order.

    With PREFIX, only names that start with it are listed. The bytes of --sizes are those of the entries,
    without replicas and without records before the truncation point. Through proxies, they do not include
    segments in progress.
    """
    from ...cluster.status.log_overview import read_log_sizes
    from ..connection.cluster_connection import namespace, notice_when_slow, run

    async def work() -> None:
        count = 0
        shown_sizes: list[dict[str, Any]] = []
        async with namespace(settings) as logs:
            with notice_when_slow(settings, "the names of the logs") as stop_notice:
                async for name in logs.logs(prefix):
                    stop_notice()
                    if count == limit:
                        break
                    count += 1
                    if sizes:
                        shown_sizes.append({"name": name})
                    else:
                        emit({"name": name}) if settings.json else print(name)
            if sizes:
                with show_progress(
                    settings, lambda s: f"reading the sizes of {plural(count, 'log')}: {s:.0f} s"
                ):
                    await read_log_sizes(logs, shown_sizes)
        _print_sizes(settings, shown_sizes)
        if not (count or settings.json):
            what = f"no log name starts with {prefix!r}" if prefix else "there are no logs"
            settings.note(f"{what} in {settings.where()}")

    run(work)


def _print_sizes(settings: Settings, rows: list[dict[str, Any]]) -> None:
    if settings.json:
        for row in rows:
            emit(row)
    elif rows:
        if any("bytes" in row and row["open_bytes"] is None for row in rows):
            settings.note(
                "the bytes do not include segments in progress, which proxies do not report"
            )
        cells = [
            [
                row["name"],
                row.get("records"),
                None if "bytes" not in row else size(row["bytes"]),
                row.get("error") or row.get("owner"),
            ]
            for row in rows
        ]
        table(("log", "records", "bytes", "owner"), cells)


@command.command(cls=CliCommand, examples="dlog log delete orders --force")
@click.argument("name")
@force_option
@common
def delete(settings: Settings, name: str, force: bool) -> None:
    """Delete a log and all its records.

    This cannot be undone.
    """
    from ...cluster.coordination.log_changes import delete_effect

    require_consent(f"{delete_effect(name)}, in {settings.where()}", force)
    from ..connection.cluster_connection import run_call

    run_call(settings, f"deleting {name}", lambda logs: logs.delete_log(name))
    report_change(settings, "deleted", "log", name)


@command.command(
    cls=CliCommand,
    examples="""
    dlog log config orders
    dlog log config orders set retention_s=1d segment_bytes_max=64MiB
    dlog log config orders unset retention_s
    dlog log config --namespace set retention_s=604800       default for all logs of the namespace
    """,
)
@click.argument("words", nargs=-1, metavar="[NAME] [set K=V… | unset K…]")
@click.option(
    "--namespace", "all_", is_flag=True, help="Use the settings of the namespace, without NAME."
)
@common
def config(settings: Settings, words: tuple[str, ...], all_: bool) -> None:
    """Show or change the settings of a log or a namespace.

    Without changes, the command lists all options of a log with value, unit and origin: the log, its
    namespace, or the default. With --namespace, and after a change, it lists the stored settings only.

    Settings of a log override those of its namespace. Both override open_namespace(config=) of a program, but
    not open_log(config=). Retention changes apply within a minute, segment sizes from the next segment on.
    docs/reference/options.md describes the options.
    """
    if not all_ and not words:
        raise click.UsageError("no log specified. Use NAME or --namespace")
    name, words_after_name = ("", words) if all_ else (words[0], words[1:])
    changes = _parse_changes(words_after_name)
    from ...cluster.status.log_overview import effective_options
    from ...proxy.client.proxied_namespace import ProxiedNamespace
    from ..connection.cluster_connection import run_call

    async def call(logs: Any) -> Any:
        scope = logs if all_ else logs.open_log(name)
        stored = await (scope.set(changes) if changes else scope.settings())
        if all_ or changes or isinstance(logs, ProxiedNamespace):  # proxies do not describe logs
            return stored, None
        description = await scope.describe(segments_max=1)
        return stored, effective_options(stored, await logs.settings(), description.state.quorums)

    result, effective = run_call(settings, f"settings of {name or 'the namespace'}", call)
    if settings.json:
        output: dict[str, Any] = {"name": name} if name else {}
        if effective is not None:
            output["effective"] = {
                key: {"value": value, "from": origin} for key, (value, origin) in effective.items()
            }
        notes = {key: value.decode(errors="replace") for key, value in result.metadata.items()}
        emit({**output, "settings": result.settings, "metadata": notes, "version": result.version})
    else:
        units = {name: one.metadata["unit"] for name, one in _log_options().items()}
        if effective is None:
            effective = {key: (value, "") for key, value in sorted(result.settings.items())}
        rows = [
            [key, _value_text(value), units.get(key, ""), origin]
            for key, (value, origin) in effective.items()
        ]
        column_count = 4 if any(row[3] for row in rows) else 3
        columns = ("option", "value", "unit", "from")[:column_count]
        table(columns, [row[:column_count] for row in rows], empty="no stored settings")


def _log_options() -> dict[str, Field[Any]]:
    """Return the options of logs, retention, merging, formats and ledgers, by name."""
    from ...ledger.declarations.options import LedgerOptions
    from ...log.declarations.options import LogOptions
    from ...log.model.stored_settings import FormatOptions, MergingOptions, RetentionOptions
    from ...runtime.declarations.options import option_fields

    parts = (LogOptions, RetentionOptions, MergingOptions, FormatOptions, LedgerOptions)
    return {one.name: one for part in parts for one in option_fields(part)}


def _parse_changes(words: tuple[str, ...]) -> dict[str, Any]:
    """Return ``set K=V…`` or ``unset K…`` as the argument of `Log.set`."""
    if not words:
        return {}
    action, *rest = words
    if action not in ("set", "unset") or not rest:
        raise click.UsageError("invalid change: use set K=V… or unset K…")
    if action == "unset":
        return dict.fromkeys(rest)
    from ...log.model.stored_settings import validate_settings
    from ...runtime.declarations.options import parse_option

    options = _log_options()
    changes_by_key: dict[str, Any] = {}
    for word in rest:
        key, equals, value = word.partition("=")
        if not equals:
            raise click.UsageError(f"{word!r} is not K=V")
        changes_by_key[key] = parse_option(options[key], value) if key in options else value
    return validate_settings(changes_by_key)  # before a request is sent to the cluster


def _value_text(value: Any) -> str:
    """Return a value in the form that ``set`` accepts."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@command.command(cls=CliCommand, examples="dlog log rename orders archive/orders-2025")
@click.argument("old")
@click.argument("new")
@common
def rename(settings: Settings, old: str, new: str) -> None:
    """Rename a log.

    Records, named positions and readers are kept. The log must have no active writer.
    """
    from ..connection.cluster_connection import run_call

    run_call(settings, f"renaming {old}", lambda logs: logs.rename_log(old, new))
    if settings.json:
        emit({"name": new, "old_name": old})
    else:
        settings.note(f"renamed log {old} to {new}")


@command.command(cls=CliCommand, examples="dlog log show orders\ndlog log show orders --json")
@click.argument("name")
@common
def show(settings: Settings, name: str) -> None:
    """Show segments, sizes, txid policy, owner and truncation point of a log.

    A narrow terminal omits the transaction IDs of segments; --json prints everything.
    """
    from ...cluster.status.log_overview import describe
    from ..connection.cluster_connection import run_call

    description = run_call(settings, f"showing {name}", lambda logs: describe(logs, name))
    if settings.json:
        emit(description)
    else:
        _print_log(description)


def _print_log(description: dict[str, Any]) -> None:
    print(f"log        {description['name']}{'  (sealed)' if description['sealed'] else ''}")
    segments_in_progress = [
        open_candidate
        for open_candidate in description["segments"]
        if open_candidate["state"] == "in progress" and open_candidate["records"]
    ]
    besides = (
        ", and in the segment in progress" if segments_in_progress else ""
    )  # whose size is not known yet
    print(f"records    {description['records']:,}  in {size(description['bytes'])}{besides}")
    print(f"positions  {description['first_dlsn'] or '-'} to {description['last_dlsn'] or '-'}")
    truncated_bytes = description["truncated_bytes"]
    removal_note = (
        f"  ({size(truncated_bytes)} more will be deleted soon)" if truncated_bytes else ""
    )
    print(f"truncated  {description['truncated_to'] or 'not'}{removal_note}")
    if description["clock_behind_s"]:
        print(f"clock      {description['clock_behind_s']:,} s behind the log's time")
    print(f"txids      {visible(description['txid_policy'])}")
    print(f"owner      {visible(description['owner'] or 'none')}")
    if description["segments_left_out"]:
        print(f"segments   {description['segments_left_out']:,} older ones are not shown")
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
    rows = [
        segment | {"bytes": None if segment in segments_in_progress else size(segment["bytes"])}
        for segment in description["segments"]
    ]
    table(
        columns,
        [[row[key] for key in columns] for row in rows],
        empty="no segments",
        optional_columns=("last_txid", "first_txid"),
    )


@command.command(
    cls=CliCommand,
    examples="""
    dlog log inspect orders --limit 20
    dlog log inspect orders --from 12.0.0 --json
    """,
)
@click.argument("name")
@click.option(
    "--from", "start", metavar="DLSN", help="First position (default: the oldest stored entry)."
)
@click.option("--limit", type=click.IntRange(0), help="Maximum number of entries.")
@common
def inspect(settings: Settings, name: str, start: str | None, limit: int | None) -> None:
    """List the stored entries of a log: position, records, transaction IDs, sizes, times, flags.

    The command reads entry headers only. Truncated entries are listed until they are deleted. For an entry
    that cannot be read, the command prints the error and continues. With --json, it prints one object per
    line.
    """
    from ...log.format.dlsn import DLSN
    from ..connection.cluster_connection import namespace, run
    from .stored_entries import entries

    first = None if start is None else DLSN.parse(start)
    columns = (
        "entry",
        "ledger",
        "records",
        "first_txid",
        "last_txid",
        "payload",
        "bytes",
        "written",
        "flags",
    )
    widths = (12, 10, 9, 16, 16, 10, 10, 24, 5)
    width = terminal_width()

    def padded(cells: Sequence[Any]) -> list[str]:
        return [str(cell).ljust(room) for cell, room in zip(cells, widths, strict=True)]

    header_cells = padded(columns)
    head_lines = len(layout_table([header_cells, header_cells], width)) // 2

    async def work() -> None:
        if not settings.json:
            print("\n".join(layout_table([header_cells, header_cells], width)[:head_lines]))
        async with namespace(settings) as logs:
            async for entry in entries(logs, name, first, limit):
                if settings.json:
                    emit(entry)
                elif "error" in entry:
                    print(f"{entry.get('entry', entry.get('segment'))}  {entry['error']}")
                else:
                    keys = ("entry", "ledger", "records", "first_txid", "last_txid")
                    cells = [entry[key] for key in keys]
                    cells += [size(entry["payload_bytes"]), size(entry["bytes"]), entry["written"]]
                    row = padded([*cells, ", ".join(entry["flags"])])
                    print("\n".join(layout_table([header_cells, row], width)[head_lines:]))

    run(work)


@command.command(
    cls=CliCommand,
    examples="""
    seq 1000000 | dlog log write numbers --create
    dlog log write orders orders.jsonl --format jsonl --json
    echo paid | dlog log write orders --key 1734 --header source=shop
    """,
)
@click.argument("name")
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "--format",
    "format_name",
    type=FORMAT,
    default="lines",
    show_default=True,
    help="Format of records (dlog help formats).",
)
@click.option(
    "--txid-policy",
    type=click.Choice(["count", "ms"]),
    help="Policy for omitted transaction IDs (default: that of the log). They are the last ID + 1 (count), or"
    " the time in ms, but at least the last ID (ms).",
)
@click.option("--key", metavar="TEXT", help="The key of each record; the log must permit keys.")
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="A header of each record, in addition to those in the input. Repeat the option for more.",
)
@click.option("--create", "create_", is_flag=True, help="Create the log if it does not exist.")
@click.option("--takeover", is_flag=True, help="Fence the current writer of the log.")
@common
def write(
    settings: Settings,
    name: str,
    file: BinaryIO,
    format_name: str,
    txid_policy: str | None,
    key: str | None,
    headers: tuple[str, ...],
    create_: bool,
    takeover: bool,
) -> None:
    """Append records from FILE or stdin to a log.

    The command ends when all records are durable. The formats are:

    \b
      lines   one record per line, of any bytes; empty lines count
      jsonl   one JSON object per line: "payload" or "payload_base64",
              and optionally "txid"
      frames  a length of four bytes (little-endian), then the payload

    JSON objects can also have "key" and "headers" ("dlog help formats").

    After a failure, the command prints the number of records that are certainly stored. Later records may
    be stored, too (exit code 7).
    """
    from ...log.format.record_headers import KeyedContent
    from ..connection.cluster_connection import run
    from .record_input import write_stream

    key_bytes = None if key is None else os.fsencode(key)

    if any("=" not in header for header in headers):
        raise click.UsageError("a header must be NAME=VALUE")
    pairs = [
        (name, value) for name, _, value in (os.fsencode(one).partition(b"=") for one in headers)
    ]

    async def work() -> None:
        await write_stream(
            settings,
            name,
            file,
            format_name,
            txid_policy=txid_policy,
            create=create_,
            takeover=takeover,
            keyed=KeyedContent(b"", key_bytes, pairs) if key is not None or pairs else None,
        )

    run(work)


@command.command(
    cls=CliCommand,
    examples="""
    dlog log count orders
    dlog log count orders --from 1.0.0 --to 12.0.0
    """,
)
@click.argument("name")
@click.option(
    "--from", "start", metavar="DLSN", help="First position (default: the earliest record)."
)
@click.option(
    "--to", metavar="DLSN", help="Last position, inclusive (default: the end of the log)."
)
@common
def count(settings: Settings, name: str, start: str | None, to: str | None) -> None:
    """Count the readable records of a log.

    Both positions are included. The command reads no records between them.
    """
    from ...log.format.dlsn import DLSN
    from ..connection.cluster_connection import run_call

    first = None if start is None else DLSN.parse(start)
    end = None if to is None else DLSN.parse(to).next()
    record_count = run_call(
        settings, f"counting {name}", lambda logs: logs.open_log(name).count(first, end)
    )
    if settings.json:
        emit({"name": name, "from": start, "to": to, "records": record_count})
    else:
        print(record_count)


def read_options(function: Any) -> Any:
    """Add the options of `read` and `tail`."""
    for option in (
        click.option(
            "--format",
            "format_name",
            type=FORMAT,
            default="lines",
            show_default=True,
            help="Format of records (dlog help formats).",
        ),
        click.option("--limit", type=click.IntRange(0), help="Maximum number of records."),
        click.option("--to", metavar="DLSN", help="Last position, inclusive."),
        click.option(
            "--from-txid",
            type=click.IntRange(0),
            help="First transaction ID: start at the first record with this or a greater one.",
        ),
        click.option(
            "--since",
            metavar="TIME",
            help="Start at the first record with this log time or a later one: a duration before now, such as"
            " 10m, or an ISO time.",
        ),
        click.option(
            "--from", "start", metavar="DLSN", help='First position (or "earliest", "latest").'
        ),
        click.argument("name"),
    ):
        function = option(function)
    return function


@command.command(
    cls=CliCommand,
    examples="""
    dlog log read orders > orders.txt
    dlog log read orders --from 1.12.3 --limit 100 --format jsonl
    dlog log read orders --follow
    dlog log read orders --since 2h
    """,
)
@read_options
@click.option("--follow", is_flag=True, help="Continue with new records until Ctrl-C.")
@common
def read(settings: Settings, **option_values: Any) -> None:
    """Print the records of a log.

    The command reads from the earliest available record to the current end of the log. With --follow, it
    continues with new records until you press Ctrl-C.
    """
    _read_records(settings, default="earliest", **option_values)


@command.command(
    cls=CliCommand,
    examples="""
    dlog log tail orders
    dlog log tail orders --from earliest --format jsonl
    dlog log tail orders --since 10m
    """,
)
@read_options
@common
def tail(settings: Settings, **option_values: Any) -> None:
    """Print new records of a log until Ctrl-C.

    The command starts after the last record, or at the position of --from, --from-txid or --since.
    """
    _read_records(settings, default="latest", follow=True, **option_values)


def _read_records(settings: Settings, *, default: str, **option_values: Any) -> None:
    starts = [option_values.pop(option) for option in ("start", "from_txid", "since")]
    if sum(given is not None for given in starts) > 1:
        raise click.UsageError("--from, --from-txid and --since exclude each other")
    if settings.json:
        option_values["format_name"] = "jsonl"
    option_values["start"] = _start_of(default, *starts)
    from ..connection.cluster_connection import run, run_until_stdout_closed
    from .record_output import read_stream

    run(lambda: run_until_stdout_closed(lambda: read_stream(settings, **option_values)))


def _start_of(
    default: str, start: str | None, from_txid: int | None, since: str | None
) -> dict[str, Any]:
    """Return the start of a read as arguments of `Log.open_reader`."""
    if from_txid is not None:
        return {"txid": from_txid}
    if since is not None:
        return {"since": _epoch_ms_of(since)}
    position = start or default
    if position in ("earliest", "latest"):
        return {"at": position}
    from ...log.format.dlsn import DLSN

    return {"dlsn": DLSN.parse(position)}


def _epoch_ms_of(text: str) -> int:
    """Return a time in ms since 1970. The text is a duration before now, or an ISO time.

    A number alone is rejected. It could be seconds, ms since 1970 or a date without dashes.
    """
    from datetime import datetime

    from ...runtime.declarations.options import DURATION_S_MAX, parse_duration
    from ...runtime.machine import client_host

    ago_s = parse_duration(text)
    if ago_s is not None and 0 <= ago_s <= DURATION_S_MAX:
        return max(0, client_host("dlog").wall_ms() - int(ago_s * 1000))
    try:
        if not text.strip().isdecimal():
            return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    raise click.UsageError(
        f"{text!r} is neither a duration with its unit, such as 10m or 90s, nor an ISO time such as"
        " 2026-01-31T12:00:00"
    )


@command.command(
    cls=CliCommand,
    examples="""
    dlog log truncate orders --before 12.0.0
    dlog log truncate orders --before-txid 1700000000000 --force
    dlog log truncate orders --before-position cold --force       for scripts: no confirmation
    """,
)
@click.argument("name")
@click.option("--before", metavar="DLSN", help="Delete all records before this position.")
@click.option(
    "--before-txid",
    type=click.IntRange(0),
    help="Delete all records before the first one with this or a greater transaction ID.",
)
@click.option(
    "--before-position",
    metavar="POSITION",
    help="Delete all records before this named position.",
)
@force_option
@common
def truncate(
    settings: Settings,
    name: str,
    before: str | None,
    before_txid: int | None,
    before_position: str | None,
    force: bool,
) -> None:
    """Delete the oldest records of a log.

    This cannot be undone. The command prints the new truncation point. The point never moves backward, and
    never beyond the end of the log.
    """
    if (
        sum(option_value is not None for option_value in (before, before_txid, before_position))
        != 1
    ):
        raise click.UsageError("specify exactly one of --before, --before-txid, --before-position")
    from ...cluster.coordination.log_changes import (
        TruncationTarget,
        truncate_effect,
        truncate_log,
    )
    from ...log.format.dlsn import DLSN
    from ..connection.cluster_connection import run_call

    target = TruncationTarget(
        None if before is None else DLSN.parse(before), before_txid, before_position
    )
    require_consent(f"{truncate_effect(name, target)}, in {settings.where()}", force)
    new_start = run_call(
        settings, f"truncating {name}", lambda logs: truncate_log(logs.open_log(name), target)
    )
    if settings.json:
        emit({"name": name, "truncated_to": str(new_start)})
    else:
        print(new_start)


@command.command(cls=CliCommand, examples="dlog log seal orders --force")
@click.argument("name")
@force_option
@click.option("--takeover", is_flag=True, help="Fence the current writer of the log.")
@common
def seal(settings: Settings, name: str, force: bool, takeover: bool) -> None:
    """End a log permanently.

    It accepts no more records, and readers receive an end. This cannot be undone.
    """
    require_consent(f"seal log {name} for good, in {settings.where()}", force)
    from ..connection.cluster_connection import run_call

    new = run_call(
        settings,
        f"sealing {name}",
        lambda logs: logs.open_log(name).seal(takeover=takeover, wait_s=0),
    )
    if new or settings.json:
        report_change(settings, "sealed", "log", name, before=not new)
    else:
        settings.note(f"log {name} was already sealed")


@command.command(
    cls=CliCommand,
    examples="""
    dlog log find orders --txid 1700000000000
    dlog log find orders --time 2026-01-31T12:00:00+00:00
    """,
)
@click.argument("name")
@click.option(
    "--txid",
    type=click.IntRange(0),
    help="Find the first record with this or a greater transaction ID.",
)
@click.option(
    "--time",
    "when",
    metavar="TIME",
    help="Find the first entry written at or after this time: a duration before now, such as 10m, or an ISO"
    " time.",
)
@common
def find(settings: Settings, name: str, txid: int | None, when: str | None) -> None:
    """Print the position of a transaction ID or a time.

    After the last record, it is the position of the next record.
    """
    if (txid is None) == (when is None):
        raise click.UsageError("specify exactly one of --txid, --time")
    from ..connection.cluster_connection import run_call

    wall_ms = None if when is None else _epoch_ms_of(when)
    dlsn = run_call(
        settings,
        f"searching {name}",
        lambda logs: logs.open_log(name).find(txid=txid, wall_ms=wall_ms),
    )
    if settings.json:
        emit({"name": name, "dlsn": str(dlsn)})
    else:
        print(dlsn)


@command.command(
    cls=CliCommand,
    examples="""
    dlog log positions orders
    dlog log positions orders --delete cold
    """,
)
@click.argument("name")
@click.option("--delete", "deleted", metavar="NAME", help="Delete the position of this name.")
@force_option
@common
def positions(settings: Settings, name: str, deleted: str | None, force: bool) -> None:
    """List the named positions of a log, with their subscribers and their lag.

    The lag counts the readable records at and after a position, their bytes, and the age of the first one.
    The list also shows how long each position still prevents retention from deleting records.
    """
    if deleted is not None:
        require_consent(f"delete position {deleted} of log {name}, in {settings.where()}", force)
    from ...log.model.segment_expiry import NO_HOLD
    from ...log.model.stored_settings import retention_of
    from ...log.services.named_positions import clock_now
    from ..connection.cluster_connection import await_answer, namespace, run

    async def work() -> None:
        async with namespace(settings) as logs:
            log = logs.open_log(name)
            if deleted is not None:
                await await_answer(
                    settings, f"deleting {deleted}", lambda: log.positions.delete(deleted)
                )
            overview = await await_answer(
                settings, f"positions of {name}", lambda: _consumers(settings, logs, name)
            )
            clock_ms = await await_answer(
                settings, f"positions of {name}", lambda: clock_now(logs.metadata)
            )
            log_settings = await await_answer(settings, f"settings of {name}", log.settings)
            namespace_settings = await await_answer(
                settings, "settings of the namespace", logs.settings
            )
        hold_max_s = retention_of(namespace_settings, log_settings).hold_max_s
        rows = overview["positions"]
        remaining_s = {
            row["position"]: max(0.0, hold_max_s - max(0, clock_ms - renewed_ms) / 1000)
            for row in rows
            if (renewed_ms := row["hold_renewed_ms"]) not in (None, NO_HOLD)
        }
        _note_left_out(settings, overview)
        _print_positions(settings, name, rows, remaining_s)

    run(work)


def _print_positions(
    settings: Settings, name: str, rows: list[dict[str, Any]], remaining_s: dict[str, float]
) -> None:
    owners = {row["position"]: row["subscriber"] for row in rows if row["subscriber"] is not None}
    if settings.json:
        emit(
            {
                "name": name,
                "positions": {row["position"]: row["dlsn"] for row in rows},
                "holds_s": remaining_s,
                "holders": {position: owner["owner"] for position, owner in owners.items()},
                "lag": {row["position"]: row["lag"] for row in rows},
                "damage": {row["position"]: row["damage"] for row in rows if row["damage"]},
            }
        )
        return
    _note_problems(settings, rows)
    columns = ("position", "dlsn", *LAG_COLUMNS, "subscribed by", "holds retention")
    cells = [
        [
            row["position"],
            _damage_text(row) or row["dlsn"],
            *_lag_cells(row["lag"]),
            _owner_text(owners.get(row["position"]), "-"),
            _hold_cell(row, remaining_s),
        ]
        for row in rows
    ]
    table(columns, cells, empty="no positions")


async def _consumers(settings: Settings, logs: Any, name: str) -> dict[str, Any]:
    """Return the consumers of a log. Lags are measured in half of the timeout: the list needs no bookies."""
    import trio

    from ...cluster.status.consumer_overview import consumers

    measure_until = trio.current_time() + settings.timeout_s / 2
    return await consumers(logs, name, measure_until=measure_until)


def _note_left_out(settings: Settings, overview: dict[str, Any]) -> None:
    if overview["left_out"]:
        settings.note("not all positions and work queues are listed: there are too many")


LAG_COLUMNS = ("records left", "bytes left", "behind", "lost")


def _lag_cells(lag: dict[str, Any] | None) -> list[str]:
    """Return the cells of `LAG_COLUMNS`."""
    if lag is None:
        return ["?"] * len(LAG_COLUMNS)
    return [
        f"{lag['records']:,}",
        "?" if lag["bytes"] is None else size(lag["bytes"]),
        f"{lag['seconds']:,.0f} s",
        "?" if lag["lost"] is None else f"{lag['lost']:,}",
    ]


def _note_problems(settings: Settings, rows: list[dict[str, Any]]) -> None:
    """Note why the lag of some rows is unknown, each reason once, and which records are damaged."""
    for problem in dict.fromkeys(
        row["problem"] for row in rows if row["problem"] and not row["damage"]
    ):
        settings.note(f"the lag is unknown: {problem}")
    for row in rows:
        if row["damage"]:
            settings.note(f"{row.get('position') or row.get('queue')}: {row['problem']}")


def _damage_text(row: dict[str, Any]) -> str:
    """Return the words for a damaged record, or "" for a sound one."""
    return {"corrupt": "corrupt record", "unsupported": "record of a newer version"}.get(
        row["damage"], ""
    )


def _owner_text(owner: dict[str, Any] | None, none: str) -> str:
    return none if owner is None else _damage_text(owner) or str(owner["owner"])


def _hold_cell(row: dict[str, Any], remaining_s: dict[str, float]) -> str:
    if row["damage"]:
        return "?"
    position = row["position"]
    return _hold_text(remaining_s[position]) if position in remaining_s else "no"


def _hold_text(remaining_s: float) -> str:
    return f"for {remaining_s:,.0f} s more" if remaining_s else "no longer: hold_max_s has passed"


@command.command(
    cls=CliCommand,
    examples="""
    dlog log queues orders
    dlog log queues orders --queue resize --retry 17
    dlog log queues orders --delete resize
    """,
)
@click.argument("name")
@click.option("--queue", metavar="QUEUE", help="Work queue of --retry and --drop.")
@click.option(
    "--retry", type=click.IntRange(1), help="Number of a dead-lettered range to process again."
)
@click.option(
    "--drop", type=click.IntRange(1), help="Number of a dead-lettered range to drop permanently."
)
@click.option("--delete", "deleted", metavar="NAME", help="Delete the work queue of this name.")
@force_option
@common
def queues(
    settings: Settings,
    name: str,
    queue: str | None,
    retry: int | None,
    drop: int | None,
    deleted: str | None,
    force: bool,
) -> None:
    """List the work queues of a log, or change one.

    The list shows the lowest unfinished position of each queue ("floor"), the lag from there, the claims with
    their workers, and the dead-lettered ranges. Some records of the lag may be finished.
    """
    numbers_given = (retry is not None) + (drop is not None)
    if numbers_given != (queue is not None) or (queue is not None and deleted is not None):
        raise click.UsageError("use --queue with either --retry or --drop, --delete alone, or none")
    changed_queue = queue if deleted is None else deleted
    if deleted is not None or drop is not None:
        action_text = "delete" if drop is None else f"drop number {drop} of"
        require_consent(
            f"{action_text} work queue {changed_queue} of log {name}, in {settings.where()}", force
        )
    from ...runtime.interfaces.errors import InvalidRequest
    from ..connection.cluster_connection import run_call

    async def call(logs: Any) -> Any:
        log = logs.open_log(name)
        # By its key, so that a damaged queue, also another one, does not prevent the change.
        if changed_queue is not None and not await _has_queue(logs, name, changed_queue):
            raise InvalidRequest(  # opening it would create it
                f'log "{name}" has no work queue {changed_queue!r}. To list its work queues:'
                f' "dlog log queues {name}"'
            )
        if deleted is not None:
            await log.delete_work_queue(deleted)
        elif queue is not None:
            async with log.work_queue(queue) as work_queue:
                await (work_queue.drop(drop) if retry is None else work_queue.retry(retry))
        return await _consumers(settings, logs, name)

    overview = run_call(settings, f"work queues of {name}", call)
    _note_left_out(settings, overview)
    rows = overview["queues"]
    if settings.json:
        emit({"name": name, "queues": [_queue_json(row) for row in rows]})
    else:
        _note_problems(settings, rows)
        columns = ("queue", "floor", *LAG_COLUMNS, "claims", "dead-lettered")
        cells = [
            [
                row["queue"],
                _damage_text(row) or row["floor"],
                *_lag_cells(row["lag"]),
                _claims_text(row["claims"]),
                _ranges_text(row["dead_lettered"]),
            ]
            for row in rows
        ]
        table(columns, cells, empty="no work queues")


async def _has_queue(logs: Any, name: str, queue: str) -> bool:
    from ...log.model.log_keys import work_key
    from ...log.services.named_positions import check_position_name

    key = work_key(await logs.resolve_name(name), check_position_name(queue))
    return await logs.metadata.get(key) is not None


def _queue_json(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "queue": row["queue"],
        "floor": row["floor"],
        "records_left": None if row["lag"] is None else row["lag"]["records"],
        "lag": row["lag"],
        "claims": len(row["claims"]),
        "claimed": row["claims"],
        "dead_lettered": row["dead_lettered"],
        "damage": row["damage"],
    }


def _claims_text(claims: list[dict[str, Any]]) -> str:
    """Return the number of claims and the workers that have them."""
    owners = dict.fromkeys(_owner_text(claim["worker"], "?") for claim in claims)
    return f"{len(claims)} ({', '.join(owners)})" if claims else "0"


def _ranges_text(ranges: list[dict[str, Any]]) -> str:
    return (
        ", ".join(
            f"{dead_lettered['number']}: {dead_lettered['first']} to {dead_lettered['end']}"
            for dead_lettered in ranges
        )
        or "-"
    )


@command.command(cls=CliCommand, examples="dlog log watch\ndlog log watch orders/ --json")
@click.argument("prefix", default="")
@common
def watch(settings: Settings, prefix: str) -> None:
    """List all logs, then print each created, renamed or deleted log until Ctrl-C.

    With PREFIX, only names that start with it are printed.
    """
    from ..connection.cluster_connection import namespace, run, run_until_stdout_closed

    def print_change(kind: str, name: str, incarnation: str, old_name: str = "") -> None:
        if settings.json:
            output = {"kind": kind, "name": name, "incarnation": incarnation}
            emit(output | ({"old_name": old_name} if old_name else {}))
        else:
            print(f"{kind:8} {name}{f'  (was {old_name})' if old_name else ''}", flush=True)

    async def work() -> None:
        async with namespace(settings) as logs, logs.watch_logs(prefix) as changes:
            for name, incarnation in changes.logs.items():
                print_change("exists", name, incarnation)
            async for change in changes:
                print_change(change.kind, change.name, change.incarnation, change.old_name)

    run(lambda: run_until_stdout_closed(work))


class LogName(click.types.StringParamType):
    """The name of a log, which a shell completes with the names of the cluster."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin with the word; none if no cluster answers soon."""
        import trio

        from ...runtime.interfaces.errors import DistributedLogError
        from ..connection.cluster_connection import namespace

        settings = Settings(timeout_s=COMPLETION_S, quiet=True)
        outer: click.Context | None = ctx
        while outer is not None:  # the innermost options apply
            settings.uri = settings.uri or outer.params.get("uri")
            settings.credentials = settings.credentials or outer.params.get("credentials")
            outer = outer.parent

        async def find() -> tuple[str, ...]:
            with trio.move_on_after(COMPLETION_S):
                async with namespace(settings) as logs:
                    names: tuple[str, ...] = (
                        await logs.log_page(incomplete, limit=COMPLETIONS_MAX)
                    ).names
                    return names
            return ()

        with suppress(DistributedLogError, click.ClickException, ExceptionGroup):
            return [CompletionItem(name) for name in trio.run(find)]
        return []


def _complete_log_names() -> None:
    """Complete each argument of these commands that is the name of a log, or the start of names."""
    for subcommand in command.commands.values():
        for parameter in subcommand.params:
            if isinstance(parameter, click.Argument) and parameter.name in LOG_NAME_ARGUMENTS:
                parameter.type = LogName()


archives.add_to(command)
_complete_log_names()
