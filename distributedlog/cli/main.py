"""The command `dlog`: finds the command, turns whatever goes wrong into one line and an exit code."""

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
    dlog local --demo                                        see it work: write, kill a bookie, read back
    dlog local --data ./data                                 a cluster on this machine; prints its URI
    export DLOG_URI=distributedlog://127.0.0.1:4181/ns       where the other commands look
    seq 1000000 | dlog log write numbers --create            a record a line
    dlog log read numbers --limit 10
    dlog status
    """,
    lazy={
        "local": (".server.local", "Run a whole cluster on this machine."),
        "serve": (
            ".server.serve",
            "Run one node: metadata, bookie, write-proxy, read-proxy or gateway.",
        ),
        "log": (
            ".logs.log",
            "Create, list, show, set up, rename, write, read, cut, seal, delete, export logs.",
        ),
        "bookies": (".cluster.status", "List the bookies.", "bookies"),
        "proxy": (
            ".cluster.proxy",
            "List the proxies and their logs; move a log, drain a proxy, even them out.",
        ),
        "under-replicated": (
            ".storage.ledger",
            "List ledgers that miss copies.",
            "under_replicated",
        ),
        "ledger": (
            ".storage.ledger",
            "List, show, read, recover ledgers, below the logs; give up what is lost.",
        ),
        "audit": (
            ".storage.ledger",
            "Do the metadata's records refer to each other both ways?",
            "audit",
        ),
        "scrub": (".storage.scrub", "Have a bookie read all that it holds, and heal what rotted."),
        "repair": (".storage.repair", "Bring missing copies back now, and say how far it is."),
        "placement": (".storage.placement", "How far apart copies are kept, and which are not."),
        "node": (".cluster.node", "May nodes be stopped for a while?"),
        "decommission": (".storage.decommission", "Take a bookie out of the cluster for good."),
        "metadata": (
            ".cluster.metadata",
            "Show the metadata quorum; replace, add, remove its nodes.",
        ),
        "status": (".cluster.status", "Is the cluster healthy? Who is there?"),
        "console": (".server.console", "The cluster in a browser: how well it is, logs, records."),
        "bench": (".testing.bench", "Measure rates and latencies, and what the machine allows."),
        "check": (
            ".server.machine_check",
            "Is this machine fit for a node, and a directory for its data?",
        ),
        "chaos": (".testing.chaos", "Break a cluster of its own in every way; judge what it kept."),
        "pki": (".access.pki", "Make the certificates of nodes and users."),
        "user": (".access.user", "Make, list, disable, remove users."),
        "grant": (".access.grant", "Say who may do what with which logs."),
        "trust": (".access.trust", "Is it judged who may do what? Who changed it?"),
        "whoami": (".access.trust", "Who the cluster takes you for.", "whoami"),
        "context": (".connection.context", "Name clusters and choose one."),
        "help": (
            ".help.help",
            "Of a command, or on uris, contexts, exit-codes, environment, settings, positions,"
            " durability, formats.",
        ),
        "completion": (".help.help", "Let a shell complete commands and options.", "completion"),
        "config": (
            ".server.config",
            "What can be set, and why; files of nodes, written and checked.",
        ),
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
    """A replicated log service on its own replicated storage cluster.

    Every flag has an environment variable: DLOG_<COMMAND>_<FLAG>, such as DLOG_LOG_READ_FORMAT; what
    stands on the command line goes before it, at whatever place. Data goes to stdout, everything else to
    stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found or exists already, 4 unreachable or
    deadline passed, 5 refused, 6 the answer is no, 7 outcome unknown, 130 interrupted.
    """
    merge_settings(context.ensure_object(Settings), context)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `dlog` and end the process with its exit code."""
    open_standard_streams()
    _show_all_characters()
    sys.unraisablehook = _handle_unraisable
    code = run(arguments)
    with suppress(ValueError):  # a thread that is not the main one has no say
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is done: its exit code stands
    sys.exit(code)


INTERRUPT_RETRY_S = 0.001
"""After an interruption that was swallowed it comes again."""


def _handle_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """What Python swallows, where nobody can catch it: printed, but for Ctrl-C, which comes again.

    It may fall into a finalizer, such as an import's when it lets go of its lock: one in five hundred that
    came while `dlog status` was loaded was passed over, and the command went on.
    """
    if unraisable.exc_type is None or not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    with suppress(AttributeError, ValueError):  # no such timers on Windows; not the main thread
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, INTERRUPT_RETRY_S)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run `dlog`; return the exit code."""
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
        if isinstance(error, BrokenPipeError | SystemExit):  # click makes the one into the other
            _discard_stdout()
            error = BrokenPipeError()
        code = report(error, verbose=settings.verbose, context=settings.context)
        try:
            sys.stdout.flush()
        except (
            OSError
        ):  # it was the error: the interpreter's own flush would end with another exit code
            _discard_stdout()
        return code
    return result if isinstance(result, int) else 0


def _version(context: click.Context, _: click.Parameter, is_requested: bool) -> None:
    if not is_requested:
        return
    from importlib import metadata

    try:
        version_text = metadata.version("distributedlog-py")
    except metadata.PackageNotFoundError:
        version_text = "of a checkout that is not installed"
    click.echo(f"dlog {version_text}")
    context.exit()


def _show_all_characters() -> None:
    """A name that the locale's encoding has no characters for is printed with escapes; records are bytes."""
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper):
        return
    if stdout.errors == "strict" or stdout.encoding.lower() not in ("utf-8", "utf8"):
        stdout.reconfigure(errors="backslashreplace")


def _discard_stdout() -> None:
    """Stop the interpreter from flushing into the closed pipe once more at its end."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main()
