"""Report each failure of a command as one line on stderr and a documented exit code.

0 done, 1 failed, 2 wrong usage, 3 not found or already exists, 4 unreachable or deadline passed, 5 refused,
6 negative result of a check, 7 outcome unknown, 130 interrupted. A traceback is printed only with -vv.
"""

import contextlib
import shlex
import sys
import traceback

import click

from ...runtime.interfaces.errors import (
    DistributedLogError,
    LogNotFound,
    NotAllowed,
    QuorumUnreachable,
)
from .output import visible

FAILED = 1
USAGE = 2
NO = 6
INTERRUPTED = 130


class ExitWithCode(Exception):
    """End a command with an exit code. The command has already printed all messages."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def report(error: BaseException, *, verbose: int, context: str = "") -> int:
    """Print one line about an error to stderr.

    Args:
        error: The error or exception group that ended the command.
        verbose: From 2 on, the traceback is printed, too.
        context: The context from which the cluster URI was taken, or "".

    Returns:
        The exit code of the process.
    """
    original, error = error, innermost(error)
    if verbose >= 2 and not isinstance(error, ExitWithCode | click.exceptions.Exit):
        traceback.print_exception(original)
    match error:
        case ExitWithCode():
            return error.exit_code
        case click.exceptions.Exit():
            return error.exit_code
        case KeyboardInterrupt() | click.exceptions.Abort():
            print_notice("interrupted")
            return INTERRUPTED
        case click.exceptions.NoArgsIsHelpError():
            print_stderr(error.format_message() + "\n")
            return USAGE
        case click.UsageError():
            print_notice(f"error: {_one_line(error.format_message())}{_see_help(error)}")
            return USAGE
        case click.ClickException():
            print_notice(f"error: {_one_line(error.format_message())}")
            return error.exit_code
        case DistributedLogError():
            print_notice(
                f"error: {type(error).__name__} ({error.code}): {_one_line(with_hint(error, context))}"
            )
            return error.exit_code
        case BrokenPipeError():  # the reader of stdout has ended normally: `dlog log read x | head`
            return 0
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            print_notice(f"error: {type(error).__name__}: {where}{error.strerror or error}")
            return FAILED
    print_notice(
        f"error: {type(error).__name__}: {_one_line(str(error))} (a defect of dlog; -vv shows where)"
    )
    return FAILED


def innermost(error: BaseException) -> BaseException:
    """Return the one error of an exception group to report.

    `KeyboardInterrupt` has precedence, then `ExitWithCode`, then errors of this project, then others.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = list(_leaves(error))
    for kind in (KeyboardInterrupt, ExitWithCode, DistributedLogError, Exception):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return leaves[0]


def print_notice(message: str) -> None:
    """Print one line to stderr."""
    print_stderr(f"dlog: {visible(message)}\n")


def print_stderr(text: str) -> None:
    """Print to stderr, and ignore failures.

    A closed stderr must not end a command. Its `BrokenPipeError` looked like a reader of stdout that had
    ended: the command returned exit code 0 with half of the records written.
    """
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def with_hint(error: DistributedLogError, context: str = "") -> str:
    """Return the message of an error, with a next step if the message has none."""
    text = str(error)
    if isinstance(error, LogNotFound) and (name := missing_log(error)):
        if similar_names := getattr(error, "__notes__", ()):
            text += f"; did you mean {similar_names[0]}?"
        create_hint = " Create" if similar_names else "; create"
        text += f'{create_hint} it with "dlog log create {shlex.quote(name)}"'
    if isinstance(error, QuorumUnreachable) and context:
        text += f'; the URI is from the context "{context}". Check whether that cluster is running'
    if isinstance(error, NotAllowed) and error.detail == NotAllowed.RESTRICTED_TOKEN:
        text += '; "dlog user token" creates a token with more rights'
    elif isinstance(error, NotAllowed):
        text += '; an admin can grant rights with "dlog grant add USER ROLE PATH"'
    return text


def missing_log(error: BaseException) -> str:
    """Return the name of the log that does not exist, or "" if the error is about something else."""
    return error.detail if type(error) is LogNotFound else ""


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _see_help(error: click.UsageError) -> str:
    return f' (see "{error.ctx.command_path} --help")' if error.ctx is not None else ""
