"""Run the command `dlog`: find the command, and report each failure as one line and an exit code."""

import io
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from .framework.errors import report
from .framework.options import Group, Settings, common_options, merge_settings
from .framework.standard_streams import open_standard_streams


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "DLOG"},
    examples="""
    dlog local --demo                                        a demonstration: write, kill a bookie, read back
    dlog local --data ./data                                 run a cluster on this machine; prints its URI
    export DLOG_URI=distributedlog://127.0.0.1:4181/ns       the cluster for all other commands
    seq 1000000 | dlog log write numbers --create            append one record per line
    dlog log read numbers --limit 10
    dlog status
    """,
    lazy={
        "Start a cluster": {
            "local": (".server.local", "Run a whole cluster on this machine."),
            "serve": (
                ".server.serve",
                "Run one node: metadata, bookie, write-proxy, read-proxy or gateway.",
            ),
            "config": (
                ".server.config",
                "List all options and their reasons; write and check node files.",
            ),
            "check": (
                ".server.machine_check",
                "Check whether a machine and a data directory are fit for a node.",
            ),
        },
        "Write and read logs": {
            "log": (
                ".logs.log",
                "Create, list, show, configure, rename, write, read, truncate, seal, delete, export logs.",
            ),
            "context": (".connection.context", "Name clusters and select one."),
        },
        "Monitor": {
            "status": (
                ".cluster.status",
                "Show the health of the cluster, and the reasons for it.",
            ),
            "bookies": (".cluster.status", "List the bookies.", "bookies"),
            "under-replicated": (
                ".storage.ledger",
                "List ledgers that have fewer copies than required.",
                "under_replicated",
            ),
            "audit": (
                ".storage.ledger",
                "Check that the metadata records of logs and ledgers refer to each other.",
                "audit",
            ),
            "node": (".cluster.node", "Check whether nodes can be stopped."),
            "console": (".server.console", "Show the cluster in a browser: health, logs, records."),
        },
        "Maintain data and nodes": {
            "repair": (".storage.repair", "Copy missing replicas now, and show the progress."),
            "scrub": (
                ".storage.scrub",
                "Read and verify all data of a bookie, and repair corrupt entries.",
            ),
            "decommission": (".storage.decommission", "Move all data off a bookie and remove it."),
            "placement": (
                ".storage.placement",
                "Show or set the placement policy; list its violations.",
            ),
            "ledger": (
                ".storage.ledger",
                "List, show, read and recover ledgers; drop lost entries.",
            ),
            "cluster": (
                ".cluster.upgrade",
                "Show the versions of all nodes, finalize an upgrade, check a downgrade.",
            ),
            "metadata": (
                ".cluster.metadata",
                "Show the metadata quorum; add, remove and replace its nodes; make backups.",
            ),
            "proxy": (
                ".cluster.proxy",
                "List write proxies and their logs; move a log, drain a proxy, balance proxies.",
            ),
        },
        "Manage access": {
            "user": (".access.user", "Create, list, disable and remove users."),
            "grant": (".access.grant", "Manage the grants of users on logs."),
            "trust": (
                ".access.trust",
                "Manage the authorization mode, quotas and secrets; show the audit log.",
            ),
            "pki": (".access.pki", "Issue the certificates of nodes and users."),
            "whoami": (
                ".access.trust",
                "Show your principal and your roles on the cluster.",
                "whoami",
            ),
        },
        "Measure and test": {
            "bench": (
                ".testing.bench",
                "Measure rates and latencies, and the limits of the machine.",
            ),
            "chaos": (
                ".testing.chaos",
                "Inject faults into a test cluster and check that no data is lost.",
            ),
        },
        "Get help": {
            "help": (
                ".help.help",
                "Show help on a command, or on uris, contexts, exit-codes, environment, settings, positions,"
                " durability, formats.",
            ),
            "completion": (".help.help", "Print the completion script of a shell.", "completion"),
            "version": (".help.version", "Show the versions of dlog, Python and its packages."),
        },
    },
)
@common_options
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda *seen: _version(*seen),
    help="Show the version.",
)
@click.pass_context
def command(context: click.Context, /, **_: object) -> None:
    """Manage a replicated log service and its storage cluster.

    Every flag has an environment variable, DLOG_<COMMAND>_<FLAG>, such as DLOG_LOG_READ_FORMAT. Flags on
    the command line override variables, at any position. Data is printed to stdout, everything else to
    stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found or already exists, 4 unreachable or
    deadline passed, 5 refused, 6 negative result of a check, 7 outcome unknown, 130 interrupted.
    """
    merge_settings(context.ensure_object(Settings), context)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `dlog` and end the process with its exit code."""
    open_standard_streams()
    _show_all_characters()
    sys.unraisablehook = _handle_unraisable
    code = run(arguments)
    with suppress(ValueError):  # raised in a thread other than the main one
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # Ctrl-C must not change the exit code any more
    sys.exit(code)


INTERRUPT_RETRY_S = 0.001
"""Delay before an ignored interruption is raised again, in seconds."""


def _handle_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """Print exceptions that Python cannot raise, except `KeyboardInterrupt`, which is raised again.

    Python ignores exceptions in finalizers, such as the one that releases an import lock. One of 500
    interruptions while `dlog status` was loaded was lost that way, and the command continued.
    """
    if unraisable.exc_type is None or not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    with suppress(AttributeError, ValueError):  # no such timers on Windows; not the main thread
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, INTERRUPT_RETRY_S)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run `dlog` and return the exit code."""
    settings = Settings()
    try:
        result = command.main(
            args=None if arguments is None else list(arguments),
            prog_name="dlog",
            obj=settings,
            standalone_mode=False,
        )
        sys.stdout.flush()
    except BaseException as error:
        if isinstance(
            error, BrokenPipeError | SystemExit
        ):  # click turns BrokenPipeError into SystemExit
            _discard_stdout()
            error = BrokenPipeError()
        code = report(error, verbose=settings.verbose, context=settings.context)
        try:
            sys.stdout.flush()
        except (
            OSError
        ):  # already reported; the flush at interpreter exit would change the exit code
            _discard_stdout()
        return code
    return result if isinstance(result, int) else 0


def _version(context: click.Context, _: click.Parameter, is_requested: bool) -> None:
    if not is_requested:
        return
    from ..runtime.declarations.versions import VERSION

    click.echo(f"dlog {VERSION}")
    context.exit()


def _show_all_characters() -> None:
    """Print characters that the locale's encoding lacks as escapes. Records are bytes and not affected."""
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper):
        return
    if stdout.errors == "strict" or stdout.encoding.lower() not in ("utf-8", "utf8"):
        stdout.reconfigure(errors="backslashreplace")


def _discard_stdout() -> None:
    """Redirect stdout to the null device, to prevent another flush into the closed pipe at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main()
