"""`dlog ledger`, `dlog under-replicated`, `dlog audit`: ledgers, their missing copies and their records."""

import sys
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Group, Settings, common, force_option, require_consent
from ..framework.output import emit, plural, size, table, visible

READ_BYTES = 1024 * 1024


@click.group(
    cls=Group,
    examples="""
    dlog ledger list --bookie b3 --state open
    dlog ledger show 1042                       its metadata record and the state of each copy
    dlog ledger read 1042 --first 10 --limit 5
    dlog ledger recover 1042                    fence it, find its end, close it
    dlog ledger accept-loss 1042 --first 3 --last 9 --reason "two disks"
    """,
)
def command() -> None:
    """List, show, read and recover ledgers, the storage of log segments; drop lost entries."""


@command.command(
    cls=CliCommand,
    name="list",
    examples="""
    dlog ledger list
    dlog ledger list --state open --json
    dlog ledger list --bookie b3
    """,
)
@click.option(
    "--bookie",
    default="",
    help="Only ledgers on this bookie: a name, an ID, or the start of an ID.",
)
@click.option(
    "--state",
    type=click.Choice(["open", "in_recovery", "closed", "deleting"]),
    help="Only ledgers in this state.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Maximum number of ledgers.",
)
@common
def list_(settings: Settings, bookie: str, state: str | None, limit: int) -> None:
    """List ledgers, ordered by ID.

    With --json, the command prints one object per line, with bookie IDs.
    """
    from ...cluster.status.bookie_names import bookie_names
    from ..connection.cluster_connection import quorum, run_call
    from . import ledger_view

    async def find(metadata: Any) -> tuple[Any, list[dict[str, Any]]]:
        names = await bookie_names(metadata)
        return names, [row async for row in ledger_view.ledgers(metadata, bookie, state, limit)]

    names, rows_found = run_call(settings, "listing ledgers", find, quorum)
    if settings.json:
        for row in rows_found:
            emit(row)
        return
    columns = ("ledger", "state", "log", "segment", "entries", "bytes", "bookies")
    rows = [
        [
            row["ledger"],
            row["state"],
            row["log"],
            row["segment"],
            row["entries"],
            _size(row["bytes"]),
            ", ".join(map(names.name, row["bookies"])),
        ]
        for row in rows_found
    ]
    table(columns, rows, empty="no such ledger")


@command.command(cls=CliCommand, examples="dlog ledger show 1042\ndlog ledger show 1042 --json")
@click.argument("ledger", type=click.IntRange(0))
@common
def show(settings: Settings, ledger: int) -> None:
    """Show the metadata record of a ledger, and the copy on each bookie.

    The command does not fence the ledger. For a bookie that does not answer or is in the limbo state (it
    cannot prove that it has all entries of the ledger), the reason is shown.
    """
    from ...cluster.status.bookie_names import bookie_names
    from ..connection.cluster_connection import run_call
    from . import ledger_view

    async def read_ledger(logs: Any) -> tuple[Any, dict[str, Any]]:
        return await bookie_names(logs.metadata), await ledger_view.describe(logs, ledger)

    names, description = run_call(settings, "the ledger", read_ledger)
    if settings.json:
        emit(description)
        return
    shown = {**description, "bytes": _size(description["bytes"])}
    for key in ("ledger", "state", "quorums", "log", "segment", "last_entry", "bytes"):
        print(f"{key}: {shown[key] if shown[key] is not None else '-'}")
    table(
        ("from entry", "bookies"),
        [
            [ensemble["first_entry"], ", ".join(map(names.name, ensemble["bookies"]))]
            for ensemble in description["ensembles"]
        ],
    )
    table(
        ("bookie", "confirmed to", "lists", "last", "report"),
        [
            [
                names.name(ensemble["bookie"]),
                ensemble["lac"],
                ensemble["lists"],
                ensemble["last"],
                names.with_names(ensemble["report"]),
            ]
            for ensemble in description["bookies"]
        ],
    )
    for ensemble in description["placement_violations"]:
        print(f"placement: {visible(names.with_names(ensemble))}")
    for ensemble in description["lost"]:
        declared_by, why = visible(ensemble["by"]), visible(ensemble["why"])
        print(f"declared lost: {ensemble['first']} to {ensemble['last']}, by {declared_by}: {why}")
    for ensemble in description["missing_ranges"]:
        who = visible(names.name(ensemble["bookie"]))
        print(f"recorded: {who} misses entries from {ensemble['first']} to before {ensemble['to']}")


@command.command(
    cls=CliCommand,
    examples="""
    dlog ledger read 1042
    dlog ledger read 1042 --first 10 --limit 5 --raw > entries
    """,
)
@click.argument("ledger", type=click.IntRange(0))
@click.option(
    "--first", type=click.IntRange(0), default=0, show_default=True, help="First entry ID."
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Maximum number of entry IDs.",
)
@click.option(
    "--raw", is_flag=True, help="Print the bytes of the entries only, without separators."
)
@common
def read(settings: Settings, ledger: int, first: int, limit: int, raw: bool) -> None:
    """Print the confirmed entries of a ledger, with the payload in hex.

    With --json, the command prints one object per line.
    """
    from ..connection.cluster_connection import await_answer, namespace, run

    async def work() -> None:
        async with namespace(settings) as logs:
            reader = await await_answer(
                settings, "opening the ledger", lambda: logs.ledgers.open(ledger)
            )
            try:
                next_entry, end = first, min(reader.lac, first + limit - 1)
                while next_entry <= end:
                    read = partial(reader.read, next_entry, end, bytes_max=READ_BYTES)
                    for entry in await await_answer(settings, "reading the ledger", read):
                        next_entry = entry.entry + 1
                        _print_entry(settings, entry, is_raw=raw)
            finally:
                reader.close()

    run(work)


def _size(count: int | None) -> str | None:
    return None if count is None else size(count)


def _print_entry(settings: Settings, entry: Any, *, is_raw: bool) -> None:
    payload = bytes(entry.payload)
    if is_raw:
        sys.stdout.buffer.write(payload)
    elif settings.json:
        emit({"entry": entry.entry, "bytes": len(payload), "payload": payload.hex()})
    else:
        print(f"entry {entry.entry}  {size(len(payload))}  {payload.hex()}")


@command.command(
    cls=CliCommand, examples="dlog ledger recover 1042\ndlog ledger recover 1042 --force"
)
@click.argument("ledger", type=click.IntRange(0))
@force_option
@common
def recover(settings: Settings, ledger: int, force: bool) -> None:
    """Fence a ledger, find its last entry, and close it.

    A writer of the log continues in a new ledger, or is fenced. The command requires as many bookies as a
    takeover. If too few answer, it changes nothing.
    """
    from ..connection.cluster_connection import run_call

    require_consent(f"stop the writer of ledger {ledger}", force)
    closed_ledger = run_call(settings, "the recovery", lambda logs: logs.ledgers.recover(ledger))
    output = {
        "ledger": ledger,
        "last_entry": closed_ledger.last_entry,
        "bytes": closed_ledger.length,
    }
    if settings.json:
        emit(output)
    else:
        print(f"ledger {ledger} is closed, its last entry is {closed_ledger.last_entry}")


@command.command(
    cls=CliCommand,
    name="accept-loss",
    examples="""
    dlog ledger accept-loss 1042 --first 3 --last 9 --reason "disks of b2 and b4"
    dlog ledger accept-loss 1042 --last-kept 7741 --reason "disks of b2 and b4"   an open ledger
    """,
)
@click.argument("ledger", type=click.IntRange(0))
@click.option(
    "--first",
    type=click.IntRange(0),
    help="First entry ID: of the lost entries of a closed ledger.",
)
@click.option(
    "--last", type=click.IntRange(0), help="Last entry ID, inclusive: of the lost entries."
)
@click.option(
    "--last-kept",
    type=click.IntRange(-1),
    help="Last entry that an open ledger keeps; -1 if none.",
)
@click.option("--reason", required=True, help="Reason: stored in the ledger and shown to readers.")
@click.option(
    "--discard-copies",
    is_flag=True,
    help="Proceed even if a bookie has, or may have, some of the entries.",
)
@force_option
@common
def accept_loss(
    settings: Settings,
    ledger: int,
    first: int | None,
    last: int | None,
    last_kept: int | None,
    reason: str,
    discard_copies: bool,
    force: bool,
) -> None:
    """Declare entries of a ledger permanently lost.

    Readers then receive EntriesLost for these entries. With broken="skip", they continue after them. Repair
    no longer tries to copy the entries, and copies that appear later are never read. Inspect the ledger with
    `dlog ledger show` first. If a bookie has one of the entries, or may have it, the command fails with exit
    code 2. Only --discard-copies changes that, not --force.
    """
    from ...cluster.repair import loss_declaration as giving_up
    from ...cluster.status.bookie_names import bookie_names
    from ...ledger.model.ledger_metadata import LOSS_BY_CHARS_MAX, LOSS_WHY_CHARS_MAX, DeclaredLoss
    from ..connection.cluster_connection import run_call

    if (last_kept is None) == (first is None) or (first is None) != (last is None):
        raise click.UsageError("specify either --first and --last, or --last-kept")
    loss_text = (
        f"entries {first} to {last}" if last_kept is None else f"all entries after {last_kept}"
    )
    try:
        reason.encode()
    except UnicodeEncodeError:
        raise click.UsageError("--reason is not UTF-8") from None
    require_consent(f"drop {loss_text} of ledger {ledger}", force, typed=str(ledger))

    async def work(logs: Any) -> Any:
        declared_by, reason_text = (
            logs.context.owner[:LOSS_BY_CHARS_MAX],
            reason[:LOSS_WHY_CHARS_MAX],
        )
        pool = logs.ledgers.pool
        with (await bookie_names(logs.metadata)).names_in_errors():
            if last_kept is not None:
                return await giving_up.force_close(
                    logs.metadata,
                    pool,
                    ledger,
                    last_kept,
                    by=declared_by,
                    why=reason_text,
                    force=discard_copies,
                )
            assert first is not None
            assert last is not None
            loss = DeclaredLoss(first, last, declared_by, logs.wall_ms(), reason_text)
            return await giving_up.declare_lost(
                logs.metadata, pool, ledger, loss, force=discard_copies
            )

    _print_declared_losses(settings, ledger, run_call(settings, "the change", work))


def _print_declared_losses(settings: Settings, ledger: int, changed_ledger: Any) -> None:
    """Print the last entry of a ledger, and the ranges of entries that are declared lost."""
    lost_ranges = [[one.first, one.last] for one in changed_ledger.lost]
    if settings.json:
        emit({"ledger": ledger, "last_entry": changed_ledger.last_entry, "lost": lost_ranges})
    else:
        print(
            f"ledger {ledger} ends with entry {changed_ledger.last_entry}; declared lost: "
            f"{lost_ranges or 'none'}"
        )


@click.command(
    cls=CliCommand,
    examples="""
    dlog under-replicated
    dlog under-replicated --json | wc -l
    """,
)
@common
def under_replicated(settings: Settings) -> None:
    """List ledgers that have fewer copies than required.

    The list contains entries that writers recorded as missing, and all ledgers on offline bookies. With
    --json, the command prints one object per line, with bookie IDs. The exit code is 0 even if the list is
    not empty.
    """
    from ...cluster.repair.decommission import shortages
    from ...cluster.status.bookie_names import bookie_names
    from ..connection.cluster_connection import quorum, run_call

    async def all_of_them(metadata: Any) -> tuple[Any, list[dict[str, Any]]]:
        names = await bookie_names(metadata)
        return names, [asdict(shortage) async for shortage in shortages(metadata)]

    names, shortage_rows = run_call(settings, "listing missing copies", all_of_them, quorum)
    if settings.json:
        for shortage in shortage_rows:
            emit(shortage)
        return
    columns = ("ledger", "bookie", "first", "to", "why")
    rows = [
        [(shortage | {"bookie": names.name(shortage["bookie"])})[key] for key in columns]
        for shortage in shortage_rows
    ]
    table(columns, rows, empty="every ledger has all its copies")


@click.command(cls=CliCommand, examples="dlog audit\ndlog audit --json --timeout 600")
@common
def audit(settings: Settings) -> None:
    """Check the metadata records of ledgers, bookies and logs, also before an upgrade from version 0.1.

    Ledgers, the index of bookies and the segments of logs must refer to each other. The command also lists
    records that cannot be read, and records of version 0.1 that need attention before an upgrade. Each
    finding has a code, a severity, an object and a next step. At most 1000 findings per code are listed; one
    more line has the number of the others, with --json as "count".

    The command changes nothing. It does not read positions, work queues and locks. The exit code is 6 if a
    finding has another severity than info. To list missing copies, use `dlog under-replicated`.
    """
    from ...cluster.status.bookie_names import bookie_names
    from ...cluster.status.reference_check import ReferenceCheck
    from ...runtime.declarations.health_conditions import Severity
    from ..connection.cluster_connection import quorum, run_call

    async def check(metadata: Any) -> tuple[Any, Any, list[Any]]:
        references = ReferenceCheck(metadata)
        names = await bookie_names(metadata)
        return names, references, [one async for one in references.audit()]

    names, references, findings = run_call(settings, "the audit", check, quorum)
    problems = sum(finding.severity > Severity.INFO for finding in findings)
    if settings.json:
        for finding in findings:
            emit(
                {
                    "code": finding.code,
                    "where": finding.where,
                    "what": finding.what,
                    "ledger": finding.ledger,
                    "count": finding.count,
                    "severity": finding.severity.word,
                    "next_step": finding.next_step,
                }
            )
    else:
        table(
            ("code", "severity", "object", "finding", "next step"),
            [
                [one.code, one.severity.word, one.where, names.with_names(one.what), one.next_step]
                for one in findings
            ],
        )
        print(
            f"{plural(references.ledgers, 'ledger')}, {plural(references.segments, 'segment')},"
            f" {plural(references.entries, 'entry', 'entries')} of the index;"
            f" findings: {references.findings.total() or 'none'}"
        )
    if problems:
        raise ExitWithCode(NO)
