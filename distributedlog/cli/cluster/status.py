"""`dlog status` and `dlog bookies`: whether the cluster is healthy, why not, and its bookies."""

import os
import sys
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

import click

from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Settings, common
from ..framework.output import emit, plural, prose, size, spare_ids, table

POLL_S = 0.25
WATCH_S = 2.0
HANG = 4
"""Columns at which a sentence goes on that is longer than a line."""


@click.command(
    cls=CliCommand,
    examples="""
    dlog status
    dlog status --probe                                append a record, sync it, read it back, time each
    dlog status --wait healthy --timeout 60            for scripts that start clusters
    dlog status --watch                                anew each 2 s; off a terminal a line a change
    """,
)
@click.option("--probe", is_flag=True, help="Write, sync and read back one record, and time each.")
@click.option("--wait", type=click.Choice(["healthy"]), help="Wait for it, up to --timeout.")
@click.option(
    "--watch",
    type=click.FloatRange(min=0.2),
    is_flag=False,
    flag_value=WATCH_S,
    metavar="[S]",
    help=f"Look again each S seconds (default {WATCH_S:g}), until Ctrl-C.",
)
@common
def command(settings: Settings, probe: bool, wait: str | None, watch: float | None) -> None:
    """Show whether the cluster is healthy, healing, degraded, at risk, or down, and why, the worst first.

    The exit code is 6 if it is degraded or worse: an operator must act. Healing needs no help. The
    ledgers and the free space of a bookie are those that it reported last, up to ten seconds ago.
    """
    if watch is not None:
        if probe or wait:
            raise click.UsageError("--watch goes with neither --probe nor --wait")
        _watch(settings, watch)
        return
    import trio

    from ...cluster.status.cluster_overview import status
    from ...runtime.declarations.health_conditions import Severity
    from ...runtime.machine import client_host
    from ..connection.cluster_connection import answer, namespace, quorum, run

    async def work() -> dict[str, Any]:
        deadline = trio.current_time() + settings.timeout_s
        settings.where()  # credentials are those of the context that it names
        host = client_host("dlog")
        async with quorum(settings, host, patient=wait is not None) as metadata:
            while True:
                found = await answer(
                    settings,
                    "the status",
                    lambda: status(metadata, max(1.0, deadline - trio.current_time()), host=host),
                )
                if found["healthy"] or wait is None or trio.current_time() >= deadline:
                    break
                await trio.sleep(POLL_S)
        if probe and found["logs"] is not None:
            async with namespace(settings) as logs:
                found["probe"] = await answer(settings, "the probe", lambda: _probe(logs))
        return found

    found = run(work)
    if settings.json:
        emit(found)
    else:
        show(found)
    if not found["healthy"] and (wait or found["health"] != Severity.HEALING.health):
        raise ExitWithCode(NO)


def _watch(settings: Settings, every_s: float) -> None:
    """The status again and again: a screen on a terminal, else one line a change, or one object a look."""
    import trio

    from ...cluster.status.cluster_overview import status, unknown
    from ...runtime.interfaces.errors import DistributedLogError
    from ...runtime.machine import client_host
    from ..connection.cluster_connection import quorum, run, while_read

    screen = sys.stdout.isatty() and not settings.json
    before: object = None

    async def work() -> None:
        nonlocal before
        settings.where()  # credentials are those of the context that it names
        host = client_host("dlog")
        async with quorum(settings, host, patient=True) as metadata:
            while True:
                try:
                    found = await status(metadata, settings.timeout_s, host=host)
                except DistributedLogError as error:  # who watches wants to see it come back
                    found = unknown(str(error))
                at = datetime.now(UTC).strftime("%H:%M:%S UTC")
                if settings.json:
                    emit({"at": at, **found})
                elif screen:
                    click.clear()
                    print(f"{at}, each {every_s:g} s; Ctrl-C ends\n")
                    show(found)
                elif (verdict := (found["healthy"], _codes(found))) != before:
                    before = verdict
                    said = "healthy" if found["healthy"] else "NOT healthy"
                    print(
                        "; ".join([f"{at} {said}", *map(_names(found).in_words, found["reasons"])])
                    )
                sys.stdout.flush()
                await trio.sleep(every_s)

    run(lambda: while_read(work))


async def _probe(logs: Any) -> dict[str, float]:
    """Milliseconds of each step of one record's life, in a log of its own."""
    from ...log.format.record import LogRecord

    name = f"dlog-probe-{os.getpid()}-{os.urandom(4).hex()}"
    steps: dict[str, float] = {}
    before = perf_counter()

    def took(step: str) -> None:
        nonlocal before
        now = perf_counter()
        steps[f"{step}_ms"] = round((now - before) * 1e3, 3)
        before = now

    await logs.create_log(name)
    took("create")
    try:
        log = logs.open_log(name)
        async with log.open_writer() as writer:
            took("open")
            await writer.write(LogRecord(1, b"probe"))
            took("append")
            await writer.commit()
            took("commit")
            async with log.open_reader() as reader:
                record = await reader.read_next()
            assert record is not None
            assert record.payload == b"probe", "a record comes back as it was written"
            took("read")
    finally:
        await logs.delete_log(name, wait_s=5.0)
    return steps


def show(found: dict[str, Any]) -> None:
    """The status for eyes."""
    names = _names(found)
    print("healthy" if found["healthy"] else f"NOT healthy: {_words(found['health'])}")
    for one in found["conditions"]:
        prose(f"  - {_words(one['severity'])}: {names.in_words(one['text'])}", hang=HANG)
    print()
    columns = ("name", "address", "role", "term", "applied", "alive")
    table(columns, [[member[key] for key in columns] for member in found["metadata"]])
    print()
    rows = [
        [
            names.name(bookie["id"]),
            bookie["state"],
            bookie["address"],
            bookie["ledgers"],
            _size(bookie["free_bytes"]),
        ]
        for bookie in found["bookies"]
    ]
    if found["logs"] is None:  # nobody could be asked: that is not "none"
        print("bookies, logs, ledgers with missing copies: unknown")
    else:
        table(("bookie", "state", "address", "ledgers", "free"), rows, empty="no bookies")
        print()
        for bookie in found["bookies"]:
            rot = bookie["rot"]
            if rot and any(rot.values()):
                prose(
                    f"rot on bookie {names.name(bookie['id'])}:"
                    f" {plural(rot['rotten_ledgers'], 'ledger waits', 'ledgers wait')} to be healed,"
                    f" {rot['without_a_good_copy']} of them without a good copy;"
                    f" {plural(rot['healed_entries'], 'entry', 'entries')} healed since its start",
                    hang=HANG,
                )
        noted = len(found["under_replicated"])
        away = sum(bookie["ledgers_missing"] for bookie in found["bookies"])
        print(
            f"logs {found['logs']}, ledgers with missing copies:"
            f" {noted} noted, {away} on bookies that are down"
        )
    if "probe" in found:
        print(
            "probe  " + ", ".join(f"{key[:-3]} {value} ms" for key, value in found["probe"].items())
        )


def _codes(found: dict[str, Any]) -> list[Any]:
    """The conditions without their texts: a line is printed when one of these changes."""
    keys = ("code", "severity", "parameters")
    return [[one[key] for key in keys] for one in found["conditions"]]


def _words(code: str) -> str:
    """``at risk`` for ``at_risk``."""
    return code.replace("_", " ")


def _names(found: dict[str, Any]) -> Any:
    from ...cluster.status.bookie_names import BookieNames

    return BookieNames({bookie["id"]: bookie["label"] for bookie in found["bookies"]})


def _size(count: int | None) -> str | None:
    return None if count is None else size(count)


@click.command(cls=CliCommand, examples="dlog bookies\ndlog bookies --json")
@common
def bookies(settings: Settings) -> None:
    """List the bookies, those that are down included; with --json one object a line.

    Ledgers, used and free are those that a bookie reported last, up to ten seconds ago. Of a bookie that is
    being decommissioned, the ledgers that still need it are counted, and not what its disk still has. A
    narrow terminal shows no ids, unless two have one name; --json has all.
    """
    from ...cluster.status import cluster_overview as overview
    from ..connection.cluster_connection import ask, quorum

    found = ask(
        settings,
        "listing the bookies",
        lambda metadata: overview.bookies(metadata, metadata.listener),
        quorum,
    )
    if settings.json:
        for bookie in found:
            emit(bookie)
        return
    rows = [
        [
            bookie["label"],
            bookie["id"],
            bookie["state"],
            bookie["address"],
            bookie["ledgers"],
            bookie["ledgers_missing"] or None,
            None if bookie["used_bytes"] is None else size(bookie["used_bytes"]),
            None if bookie["free_bytes"] is None else size(bookie["free_bytes"]),
            bookie["rack"] or None,
        ]
        for bookie in found
    ]
    columns = ("name", "id", "state", "address", "ledgers", "missing", "used", "free", "rack")
    spare = spare_ids([bookie["label"] for bookie in found])
    table(columns, rows, empty="no bookie has ever joined this cluster", spare=spare)
