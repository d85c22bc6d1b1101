"""`dlog status` and `dlog bookies`: the health of the cluster with reasons, and its bookies."""

import os
import sys
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

import click

from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Settings, common
from ..framework.output import (
    State,
    emit,
    optional_id_column,
    paint,
    plural,
    prose,
    size,
    table,
    visible,
    yes_or_no,
)

POLL_S = 0.25
WATCH_S = 2.0
CONTINUATION_INDENT = 4
"""Indentation of the second and later lines of a condition."""


@click.command(
    cls=CliCommand,
    examples="""
    dlog status
    dlog status --probe                                append, sync and read a record, and measure each step
    dlog status --wait --timeout 60                    for scripts that start clusters
    dlog status --watch                                refresh every 2 s; without a terminal, print changes
    """,
)
@click.option(
    "--probe", is_flag=True, help="Append, sync and read one record, and measure each step."
)
@click.option(
    "--wait",
    is_flag=True,
    help="Wait, up to --timeout: until the cluster is healthy (otherwise exit code 6).",
)
@click.option(
    "--watch",
    type=click.FloatRange(min=0.2),
    is_flag=False,
    flag_value=WATCH_S,
    metavar="[S]",
    help=f"Refresh every S seconds (default {WATCH_S:g}) until Ctrl-C.",
)
@common
def command(settings: Settings, probe: bool, wait: bool, watch: float | None) -> None:
    """Show the health of the cluster, and the reasons for it.

    \b
    healthy   No problems.
    healing   The cluster repairs itself. No action is required.
    degraded  An operator must act.
    at risk   An entry has at most one available copy.
    down      Reads or writes fail.

    The most serious reason comes first. The exit code is 6 for degraded, at risk and down. Ledger counts and
    free space can be up to ten seconds old.
    """
    if watch is not None:
        if probe or wait:
            raise click.UsageError("--watch excludes --probe and --wait")
        _watch(settings, watch)
        return
    import trio

    from ...cluster.status.cluster_overview import status
    from ...runtime.declarations.health_conditions import Severity
    from ...runtime.machine import client_host
    from ..connection.cluster_connection import await_answer, namespace, quorum, run

    async def work() -> dict[str, Any]:
        deadline = trio.current_time() + settings.timeout_s
        settings.where()  # sets the credentials of the selected context
        host = client_host("dlog")
        async with quorum(settings, host, wait_for_start=wait) as metadata:
            while True:
                cluster_status = await await_answer(
                    settings,
                    "the status",
                    lambda: status(
                        metadata,
                        max(1.0, deadline - trio.current_time()),
                        host=host,
                        now_ms=host.wall_ms(),
                    ),
                )
                if cluster_status["healthy"] or not wait or trio.current_time() >= deadline:
                    break
                await trio.sleep(POLL_S)
        if probe and cluster_status["logs"] is not None:
            async with namespace(settings) as logs:
                cluster_status["probe"] = await await_answer(
                    settings, "the probe", lambda: _probe(logs)
                )
        return cluster_status

    result = run(work)
    if settings.json:
        emit(result)
    else:
        show(result)
    if not result["healthy"] and (wait or result["health"] != Severity.HEALING.health):
        raise ExitWithCode(NO)


def _watch(settings: Settings, every_s: float) -> None:
    """Show the status repeatedly: as a screen on a terminal, otherwise one line per change.

    With --json, every poll prints one object.
    """
    import trio

    from ...cluster.status.cluster_overview import status, unknown
    from ...runtime.interfaces.errors import DistributedLogError
    from ...runtime.machine import client_host
    from ..connection.cluster_connection import quorum, run, run_until_stdout_closed

    is_screen = sys.stdout.isatty() and not settings.json
    last_state: object = None

    async def work() -> None:
        nonlocal last_state
        settings.where()  # sets the credentials of the selected context
        host = client_host("dlog")
        async with quorum(settings, host, wait_for_start=True) as metadata:
            while True:
                try:
                    cluster_status = await status(
                        metadata, settings.timeout_s, host=host, now_ms=host.wall_ms()
                    )
                except DistributedLogError as error:  # continue, to show when the cluster is back
                    cluster_status = unknown(str(error))
                time_text = datetime.now(UTC).strftime("%H:%M:%S UTC")
                if settings.json:
                    emit({"at": time_text, **cluster_status})
                elif is_screen:
                    click.clear()
                    print(f"{time_text}, every {every_s:g} s; Ctrl-C ends\n")
                    show(cluster_status)
                elif (
                    verdict := (cluster_status["healthy"], _condition_codes(cluster_status))
                ) != last_state:
                    last_state = verdict
                    health_text = "healthy" if cluster_status["healthy"] else "NOT healthy"
                    print(
                        "; ".join(
                            [
                                f"{time_text} {health_text}",
                                *map(
                                    _bookie_names(cluster_status).with_names,
                                    cluster_status["reasons"],
                                ),
                            ]
                        )
                    )
                sys.stdout.flush()
                await trio.sleep(every_s)

    run(lambda: run_until_stdout_closed(work))


async def _probe(logs: Any) -> dict[str, float]:
    """Write and read one record in a new log, and return the milliseconds of each step."""
    from ...log.format.record import LogRecord

    name = f"dlog-probe-{os.getpid()}-{os.urandom(4).hex()}"
    steps: dict[str, float] = {}
    step_started_at = perf_counter()

    def took(step: str) -> None:
        nonlocal step_started_at
        now = perf_counter()
        steps[f"{step}_ms"] = round((now - step_started_at) * 1e3, 3)
        step_started_at = now

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
            assert record.payload == b"probe", "a record is read as it was written"
            took("read")
    finally:
        await logs.delete_log(name, wait_s=5.0)
    return steps


def show(cluster_status: dict[str, Any]) -> None:
    """Print the status as text."""
    names = _bookie_names(cluster_status)
    health = _code_text(cluster_status["health"])
    print(paint("healthy" if cluster_status["healthy"] else f"NOT healthy: {health}", health))
    for condition in cluster_status["conditions"]:
        severity = _code_text(condition["severity"])
        text = names.with_names(condition["text"])
        prose(f"  - {severity}: {text}", indent=CONTINUATION_INDENT, state=severity)
    print()
    columns = ("name", "address", "role", "term", "applied", "alive")
    table(
        columns,
        [
            [*[member[key] for key in columns[:-1]], yes_or_no(member["alive"])]
            for member in cluster_status["metadata"]
        ],
    )
    print()
    rows = [
        [
            names.name(bookie["id"]),
            State(bookie["state"]),
            bookie["address"],
            bookie["ledgers"],
            _size(bookie["free_bytes"]),
        ]
        for bookie in cluster_status["bookies"]
    ]
    if cluster_status["logs"] is None:  # unknown, because no node could be asked
        print("bookies, logs, ledgers with missing copies: unknown")
    else:
        table(("bookie", "state", "address", "ledgers", "free"), rows, empty="no bookies")
        print()
        for bookie in cluster_status["bookies"]:
            corruption = bookie["corruption"]
            if corruption and any(corruption.values()):
                prose(
                    f"corruption on bookie {names.name(bookie['id'])}:"
                    f" {plural(corruption['corrupt_ledgers'], 'ledger waits', 'ledgers wait')} for repair,"
                    f" {corruption['without_a_good_copy']} of them without a good copy;"
                    f" {plural(corruption['repaired_entries'], 'entry', 'entries')} repaired since its start",
                    indent=CONTINUATION_INDENT,
                )
        recorded_count = len(cluster_status["under_replicated"])
        missing_count = sum(bookie["ledgers_missing"] for bookie in cluster_status["bookies"])
        print(
            f"logs {cluster_status['logs']}, ledgers with missing copies:"
            f" {recorded_count} recorded, {missing_count} on offline bookies"
        )
    _show_versions(cluster_status["versions"])
    if "probe" in cluster_status:
        print(
            "probe  "
            + ", ".join(f"{key[:-3]} {value} ms" for key, value in cluster_status["probe"].items())
        )


def _show_versions(versions: dict[str, Any] | None) -> None:
    """Print the version of the nodes, unless a condition lists several."""
    if versions is not None and len(versions["nodes"]) == 1:
        (version,) = map(visible, versions["nodes"])
        print(
            f"version {version}, finalized for {versions['finalized'] or 'an unreadable version'}"
        )


def _condition_codes(cluster_status: dict[str, Any]) -> list[Any]:
    """Return the conditions without their texts. A line is printed when one of these changes."""
    keys = ("code", "severity", "parameters")
    return [[condition[key] for key in keys] for condition in cluster_status["conditions"]]


def _code_text(code: str) -> str:
    """Return ``at risk`` for ``at_risk``."""
    return code.replace("_", " ")


def _bookie_names(cluster_status: dict[str, Any]) -> Any:
    from ...cluster.status.bookie_names import BookieNames

    return BookieNames({bookie["id"]: bookie["label"] for bookie in cluster_status["bookies"]})


def _size(count: int | None) -> str | None:
    return None if count is None else size(count)


@click.command(cls=CliCommand, examples="dlog bookies\ndlog bookies --json")
@common
def bookies(settings: Settings) -> None:
    """List all bookies, including offline ones.

    Ledgers, used and free space are as last reported by a bookie, up to ten seconds ago. For a draining
    bookie, "ledgers" is the number of ledgers that still need it. With --json, the command
    prints one object per line. A narrow terminal omits IDs, unless two bookies have the same name.
    """
    from ...cluster.status import cluster_overview as overview
    from ..connection.cluster_connection import quorum, run_call

    rows_found = run_call(
        settings,
        "listing the bookies",
        lambda metadata: overview.bookies(metadata, metadata.listener),
        quorum,
    )
    if settings.json:
        for bookie in rows_found:
            emit(bookie)
        return
    rows = [
        [
            bookie["label"],
            bookie["id"],
            State(bookie["state"]),
            bookie["address"],
            bookie["ledgers"],
            bookie["ledgers_missing"] or None,
            None if bookie["used_bytes"] is None else size(bookie["used_bytes"]),
            None if bookie["free_bytes"] is None else size(bookie["free_bytes"]),
            bookie["rack"] or None,
        ]
        for bookie in rows_found
    ]
    columns = ("name", "id", "state", "address", "ledgers", "missing", "used", "free", "rack")
    spare = optional_id_column([bookie["label"] for bookie in rows_found])
    table(columns, rows, empty="no bookie has ever joined this cluster", optional_columns=spare)
