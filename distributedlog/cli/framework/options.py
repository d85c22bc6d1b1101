"""What every command takes (``--uri --json --timeout -q -v``), and help that begins with examples."""

import dataclasses
import difflib
import functools
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ...runtime.interfaces.errors import ConfirmationRequired
from .errors import NO, ExitWithCode, innermost, say, tell
from .output import broken, terminal_width, visible

if TYPE_CHECKING:
    from ...runtime.disk.output_file import Destination

TIMEOUT_S = 30.0
NUMBER_MAX = (1 << 63) - 1
"""The largest txid, ledger id or entry id, as `distributedlog/runtime/protocol/schema.py` has it."""
LOGS = "log"
"""The group that is asked for most, and left out most."""
LINE_CHARS = 200
"""Of a command's first line of help, in the list of its group: wrapped there, and not cut."""
FIELDS = {
    "uri": "uri",
    "as_json": "json",
    "credentials": "credentials",
    "timeout": "timeout_s",
    "quiet": "quiet",
    "verbose": "verbose",
}
"""The common options, by the names that click has for them, and where `Settings` has them."""
RANKS: dict[ParameterSource | None, int] = {
    ParameterSource.ENVIRONMENT: 1,
    ParameterSource.COMMANDLINE: 2,
}
"""The higher goes before the lower; what is a default is no value at all."""

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")


@dataclasses.dataclass(slots=True)
class Settings:
    """How a command was called."""

    uri: str | None = None
    credentials: str | None = None
    """Names them, ``file:DIR``; never the secret itself."""
    json: bool = False
    timeout_s: float = TIMEOUT_S
    """No answer from the cluster for so long ends any command (exit code 4)."""
    quiet: bool = False
    verbose: int = 0
    context: str = ""
    """The context that named the cluster; "": none did, or none is asked yet."""
    ranks: dict[str, int] = dataclasses.field(default_factory=dict)
    """Field to where its value stood (`RANKS`)."""

    def where(self) -> str:
        """The URI: ``--uri``, else ``DLOG_URI``, else the current context. Raises a usage error.

        From here on all connections of this process are made with the credentials that go with it.
        """
        if self.uri:
            name_credentials(self.credentials)
            return self.uri
        from .named_clusters import current

        found, credentials, name = current()
        if found is None:
            raise click.UsageError(
                "no cluster is named: give --uri URI, set DLOG_URI, or choose a context"
                ' ("dlog context set NAME URI", then "dlog context use NAME"); "dlog local" starts one here'
            )
        name_credentials(self.credentials or credentials)
        self.context = name
        return found

    def note(self, text: str) -> None:
        """Progress or a remark, on stderr, unless -q; broken between words where a terminal ends."""
        if not self.quiet:
            width = terminal_width(sys.stderr)
            for line in text.split("\n"):
                tell("\n".join(map(visible, broken(line, width))) + "\n")


def name_credentials(told: str | None) -> None:
    """Have this process, and those it starts, use them; None: those of its own environment."""
    if told:
        os.environ["DLOG_CREDENTIALS"] = told


OF_A_CLUSTER = frozenset({"uri", "credentials", "timeout"})


def common_options(function: Function, hidden: Collection[str] = ()) -> Function:
    """Add the options that every command has, and `dlog` itself; ``hidden`` ones no help shows."""
    for option in (
        click.option(
            "-v", "--verbose", count=True, help="More; -vv shows the traceback of an error."
        ),
        click.option("-q", "--quiet", is_flag=True, default=None, help="No progress, no remarks."),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            metavar="S",
            hidden="timeout" in hidden,
            help=f"End when the cluster does not answer for S seconds (default {TIMEOUT_S:g}).",
        ),
        click.option(
            "--json", "as_json", is_flag=True, default=None, help="JSON on stdout, nothing else."
        ),
        click.option(
            "--credentials",
            metavar="file:PATH",
            hidden="credentials" in hidden,
            help="Who you are, where the cluster asks: a directory of dlog pki issue, or a token's file.",
        ),
        click.option(
            "--uri", metavar="URI", hidden="uri" in hidden, help="The cluster and namespace."
        ),
    ):
        function = option(function)
    return function


def common(function: Function) -> Function:
    """Add the common options; the command gets them as its first argument."""
    return _common(function, ())


def without_cluster(*shown: str) -> Callable[[Function], Function]:
    """The same of a command that asks no cluster: of `OF_A_CLUSTER` its help has those ``shown`` alone.

    They are taken all the same, so that one set of flags or variables does for all commands of a script.
    """
    return lambda function: _common(function, OF_A_CLUSTER - {*shown})


def _common(function: Function, hidden: Collection[str]) -> Function:
    @functools.wraps(function)
    def command(
        *arguments: Any,
        **given: Any,
    ) -> Any:
        context = click.get_current_context()
        settings = context.find_object(Settings) or Settings()
        lay(settings, context)
        rest = {name: value for name, value in given.items() if name not in FIELDS}
        return function(settings, *arguments, **rest)

    return common_options(command, hidden)  # type: ignore[return-value]


def lay(settings: Settings, context: click.Context) -> None:
    """Lay the common options of one level over those of the levels before it.

    What stands on the command line goes before what stands in the environment, wherever the option stands:
    `dlog --uri B log delete x` with DLOG_URI=A deletes in B. Of two from the same place the inner one counts.
    """
    for name, field in FIELDS.items():
        given = context.params[name]
        rank = RANKS.get(context.get_parameter_source(name), 0)
        before = settings.ranks.get(field, 0)
        if rank == 0 or rank < before:
            continue
        if name == "uri" and not given.strip():
            # Not "none is given": `--uri "$UNSET"` would reach the cluster of a variable or a context.
            raise click.UsageError("--uri is empty", context)
        if name == "verbose" and rank == before:
            given = max(given, settings.verbose)
        setattr(settings, field, given)
        settings.ranks[field] = rank


def name_variables(context: click.Context, parameters: list[click.Parameter]) -> None:
    """Give each flag its variable, by the flag's name: DLOG_LOG_READ_FORMAT for --format."""
    for option in parameters:
        if isinstance(option, click.Option):
            flag = max(option.opts, key=len).lstrip("-").replace("-", "_").upper()
            own = f"{context.auto_envvar_prefix}_{flag}"
            option.envvar = [own, "DLOG_URI"] if flag == "URI" and own != "DLOG_URI" else own


def check_value(parameter: click.Parameter, value: Any, context: click.Context) -> None:
    """Refuse what no command can mean: no number, no text. A file may have any name. Raises a usage error."""
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(one, int | float) and not isinstance(one, bool):
            from ...runtime.declarations.options import DURATION_S_MAX

            most = DURATION_S_MAX if isinstance(one, float) else NUMBER_MAX
            if not abs(one) <= most:  # not-a-number neither
                raise click.BadParameter(
                    f"a number above {most:,} is not accepted", context, parameter
                )
        if isinstance(one, str) and not isinstance(parameter.type, click.Path):
            try:
                one.encode()
            except UnicodeEncodeError:
                raise click.BadParameter(f"{one!r} is not UTF-8", context, parameter) from None


def text_of(path: Path) -> str:
    """What a text file holds. Raises a usage error that names it."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"{path} is not UTF-8") from None


class CliCommand(click.Command):
    """A command whose help begins with examples."""

    def __init__(self, *arguments: Any, examples: str = "", **rest: Any) -> None:
        super().__init__(*arguments, **rest)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Each flag has a variable."""
        name_variables(ctx, self.params)
        left = super().parse_args(ctx, args)
        for parameter in self.params:
            check_value(parameter, ctx.params.get(parameter.name or ""), ctx)
        return left

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Usage, then the examples, then the rest."""
        super().format_usage(ctx, formatter)
        write_examples(formatter, self.examples)


Lazy = tuple[str, str] | tuple[str, str, str]


class Group(CliCommand, click.Group):
    """A group whose commands are imported when they are called."""

    command_class = CliCommand

    def __init__(self, *arguments: Any, lazy: dict[str, Lazy] | None = None, **rest: Any) -> None:
        super().__init__(*arguments, **rest)
        self.lazy = lazy or {}
        """Name to (module relative to `distributedlog.cli`, its one line of help). The command there is
        called ``command``, or has the name that a third element gives."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order they were declared."""
        return [*self.lazy, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module now, and only this one."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        import importlib

        module = importlib.import_module(self.lazy[cmd_name][0], "distributedlog.cli")
        attribute = "".join(self.lazy[cmd_name][2:]) or "command"
        found: click.Command = getattr(module, attribute)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Ctrl-C becomes click's own error here, or click prints an empty line for it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise click.Abort from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command; one that is not there is answered with those that it may have meant."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            meant = self._meant(ctx, args)
            ctx.fail(f"no such command {args[0]!r}{f'; did you mean {meant}?' if meant else ''}")
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: click.Context, args: list[str]) -> str:
        """What was meant by a word that is no command here: what it names came too early, `log` was left out,
        or letters of it are others; "": nobody knows.
        """
        path, group = self._command_in(ctx, args[1:])
        if path and not isinstance(group, click.Group):
            rest = [args[0], *args[1 + len(path) :]]
            return f'"{shlex.join([*ctx.command_path.split(), *path, *rest])}"'
        if args[0] == "help":
            return f'"{" ".join(["dlog", "help", *ctx.command_path.split()[1:]])}"'
        logs = self.get_command(ctx, LOGS) if ctx.parent is None and LOGS in self.lazy else None
        if isinstance(logs, click.Group) and args[0] in logs.list_commands(ctx):
            return f'"{shlex.join([*ctx.command_path.split(), LOGS, *args])}"'
        return " or ".join(difflib.get_close_matches(args[0], self.list_commands(ctx), n=3))

    def _command_in(self, ctx: click.Context, words: list[str]) -> tuple[list[str], click.Command]:
        """The commands that these words begin with, and the last of them; or no word, and this group."""
        path: list[str] = []
        found: click.Command = self
        for word in words:
            child = found.get_command(ctx, word) if isinstance(found, click.Group) else None
            if child is None:
                break
            path.append(word)
            found = child
        return path, found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, each with its whole line; lazy ones are not imported."""
        rows = [(name, text) for name, (_, text, *_) in self.lazy.items()]
        for name in self.commands:
            one = self.commands[name]
            rows.append((name, one.get_short_help_str(LINE_CHARS)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


# --- destructive commands -------------------------------------------------------------------------
#
# One rule, docs/reference/command-line.md. It applies to a command that deletes data, would stop
# writes, remove the last right, lower the protection or replace a file. The command asks on a terminal, is
# refused without one, and proceeds with --force. The cluster decides about changes that it can judge better
# (`ConfirmationRequired`).


def consent(
    question: str, force: bool, *, consequence: str = "There is no way back", typed: str = ""
) -> None:
    """Ask before a destructive command, unless --force was given. Raises `ConfirmationRequired`,
    `ExitWithCode`.

    ``typed``: the text that is to be typed, where a "y" is not enough.
    """
    if force:
        return
    asked = f"{question}? {consequence}"
    if not sys.stdin.isatty():
        raise ConfirmationRequired(f"{asked}. Use --force to proceed")
    if typed:
        said = click.prompt(f"{asked}: type {typed}", default="", err=True)
        agreed = said.strip() == typed
    else:
        agreed = click.confirm(asked, err=True)
    if not agreed:
        say("nothing was changed")
        raise ExitWithCode(NO)


def confirmed(question: str, force: bool, call: Callable[[bool], Result]) -> Result:
    """Run ``call(False)``; if the cluster requires a confirmation, `consent`, then run ``call(True)``.

    A cluster of an older version requires none, and its nodes do not know the flag: it is not sent at once.
    """
    try:
        return call(False)
    except Exception as error:
        found = innermost(error)
        if not isinstance(found, ConfirmationRequired):
            raise
        consent(question, force, consequence=str(found))
    return call(True)


def replaceable(file: Path, force: bool) -> "Destination":
    """Return the destination of output to ``file``, after `consent` if it exists. Raises `InvalidRequest`."""
    from ...runtime.disk.output_file import destination

    found = destination(file)
    if found.exists:
        consent(f"replace {file}", force, consequence="It exists, and its content is lost")
    return found


def force_option(function: Function) -> Function:
    """``--force``, for `consent`."""
    return click.option("--force", is_flag=True, help="Proceed without confirmation.")(function)


def write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    """The section ``Examples``, as written where there is room."""
    if not examples:
        return
    with formatter.section("Examples"):
        lines = [line.strip() for line in examples.strip().splitlines()]
        for line in fitted(lines, formatter.width - formatter.current_indent):
            formatter.write(f"{'':{formatter.current_indent}}{line}{os.linesep}")


def fitted(lines: list[str], width: int) -> list[str]:
    """Commands with what they do after them, or above them where one is too wide; a shell takes both."""
    beside = [re.sub(r"(?<=\S)(\s{3,})(?=\S)", r"\1# ", line) for line in lines]
    if all(len(line) <= width for line in beside):
        return beside
    found = []
    for line in lines:
        command, _, note = line.partition("   ")
        if note:
            found.append(f"# {note.strip()}")
        found += _broken(command, width)
    return found


def _broken(command: str, width: int) -> list[str]:
    """Over several lines, as a shell takes them: in front of options, never within quotes."""
    if len(command) <= width:
        return [command]
    lines = [""]
    for part in re.findall(r"(?:^|-)(?:[^\s'\"]|'[^']*'|\"[^\"]*\"|\s(?!-))+", command):
        part = part.strip()
        if lines[-1] and len(lines[-1]) + 1 + len(part) + 2 > width:
            lines[-1] += " \\"
            lines.append(f"    {part}")
        else:
            lines[-1] = (
                f"{lines[-1]} {part}".strip(" ") if len(lines) == 1 else f"{lines[-1]} {part}"
            )
    return lines
