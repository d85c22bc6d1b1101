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
from .errors import NO, ExitWithCode, innermost, print_notice, print_stderr
from .output import terminal_width, visible, wrap_text

if TYPE_CHECKING:
    from ...runtime.disk.output_file import Destination

TIMEOUT_S = 30.0
NUMBER_MAX = (1 << 63) - 1
"""The largest txid, ledger id or entry id, as `distributedlog/runtime/protocol/schema.py` has it."""
LOG_GROUP = "log"
"""The group that is asked for most, and left out most."""
LINE_CHARS = 200
"""Of a command's first line of help, in the list of its group: wrapped there, and not cut."""
SETTING_OF_OPTION = {
    "uri": "uri",
    "as_json": "json",
    "credentials": "credentials",
    "timeout": "timeout_s",
    "quiet": "quiet",
    "verbose": "verbose",
}
"""The common options, by the names that click has for them, and where `Settings` has them."""
RANK_OF_SOURCE: dict[ParameterSource | None, int] = {
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
    """Field to where its value stood (`RANK_OF_SOURCE`)."""

    def where(self) -> str:
        """The URI: ``--uri``, else ``DLOG_URI``, else the current context. Raises a usage error.

        From here on all connections of this process are made with the credentials that go with it.
        """
        if self.uri:
            set_credentials(self.credentials)
            return self.uri
        from .named_clusters import current_context

        context_uri, credentials, name = current_context()
        if context_uri is None:
            raise click.UsageError(
                "no cluster is named: give --uri URI, set DLOG_URI, or choose a context"
                ' ("dlog context set NAME URI", then "dlog context use NAME"); "dlog local" starts one here'
            )
        set_credentials(self.credentials or credentials)
        self.context = name
        return context_uri

    def note(self, text: str) -> None:
        """Progress or a remark, on stderr, unless -q; broken between words where a terminal ends."""
        if not self.quiet:
            width = terminal_width(sys.stderr)
            for line in text.split("\n"):
                print_stderr("\n".join(map(visible, wrap_text(line, width))) + "\n")


def set_credentials(credentials: str | None) -> None:
    """Have this process, and those it starts, use them; None: those of its own environment."""
    if credentials:
        os.environ["DLOG_CREDENTIALS"] = credentials


CLUSTER_OPTIONS = frozenset({"uri", "credentials", "timeout"})


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


def without_cluster(*shown_options: str) -> Callable[[Function], Function]:
    """The same of a command that asks no cluster: of `CLUSTER_OPTIONS` its help has those ``shown`` alone.

    They are taken all the same, so that one set of flags or variables does for all commands of a script.
    """
    return lambda function: _common(function, CLUSTER_OPTIONS - {*shown_options})


def _common(function: Function, hidden_options: Collection[str]) -> Function:
    @functools.wraps(function)
    def command(
        *arguments: Any,
        **option_values: Any,
    ) -> Any:
        context = click.get_current_context()
        settings = context.find_object(Settings) or Settings()
        merge_settings(settings, context)
        own_options = {
            name: value for name, value in option_values.items() if name not in SETTING_OF_OPTION
        }
        return function(settings, *arguments, **own_options)

    return common_options(command, hidden_options)  # type: ignore[return-value]


def merge_settings(settings: Settings, context: click.Context) -> None:
    """Lay the common options of one level over those of the levels before it.

    What stands on the command line goes before what stands in the environment, wherever the option stands:
    `dlog --uri B log delete x` with DLOG_URI=A deletes in B. Of two from the same place the inner one counts.
    """
    for name, field in SETTING_OF_OPTION.items():
        value = context.params[name]
        rank = RANK_OF_SOURCE.get(context.get_parameter_source(name), 0)
        rank_before = settings.ranks.get(field, 0)
        if rank == 0 or rank < rank_before:
            continue
        if name == "uri" and not value.strip():
            # Not "none is given": `--uri "$UNSET"` would reach the cluster of a variable or a context.
            raise click.UsageError("--uri is empty", context)
        if name == "verbose" and rank == rank_before:
            value = max(value, settings.verbose)
        setattr(settings, field, value)
        settings.ranks[field] = rank


def set_environment_variables(context: click.Context, parameters: list[click.Parameter]) -> None:
    """Give each flag its variable, by the flag's name: DLOG_LOG_READ_FORMAT for --format."""
    for option in parameters:
        if isinstance(option, click.Option):
            flag = max(option.opts, key=len).lstrip("-").replace("-", "_").upper()
            variable = f"{context.auto_envvar_prefix}_{flag}"
            option.envvar = (
                [variable, "DLOG_URI"] if flag == "URI" and variable != "DLOG_URI" else variable
            )


def check_value(parameter: click.Parameter, value: Any, context: click.Context) -> None:
    """Refuse what no command can mean: no number, no text. A file may have any name. Raises a usage error."""
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, int | float) and not isinstance(item, bool):
            from ...runtime.declarations.options import DURATION_S_MAX

            maximum = DURATION_S_MAX if isinstance(item, float) else NUMBER_MAX
            if not abs(item) <= maximum:  # not-a-number neither
                raise click.BadParameter(
                    f"a number above {maximum:,} is not accepted", context, parameter
                )
        if isinstance(item, str) and not isinstance(parameter.type, click.Path):
            try:
                item.encode()
            except UnicodeEncodeError:
                raise click.BadParameter(f"{item!r} is not UTF-8", context, parameter) from None


def read_text(path: Path) -> str:
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
        set_environment_variables(ctx, self.params)
        remaining_args = super().parse_args(ctx, args)
        for parameter in self.params:
            check_value(parameter, ctx.params.get(parameter.name or ""), ctx)
        return remaining_args

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
        loaded: click.Command = getattr(module, attribute)
        return loaded

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
            suggestions = self._suggest_command(ctx, args)
            ctx.fail(
                f"no such command {args[0]!r}{f'; did you mean {suggestions}?' if suggestions else ''}"
            )
        return super().resolve_command(ctx, args)

    def _suggest_command(self, ctx: click.Context, args: list[str]) -> str:
        """What was meant by a word that is no command here: what it names came too early, `log` was left out,
        or letters of it are others; "": nobody knows.
        """
        path, group = self._find_command(ctx, args[1:])
        if path and not isinstance(group, click.Group):
            remaining_words = [args[0], *args[1 + len(path) :]]
            return f'"{shlex.join([*ctx.command_path.split(), *path, *remaining_words])}"'
        if args[0] == "help":
            return f'"{" ".join(["dlog", "help", *ctx.command_path.split()[1:]])}"'
        logs = (
            self.get_command(ctx, LOG_GROUP)
            if ctx.parent is None and LOG_GROUP in self.lazy
            else None
        )
        if isinstance(logs, click.Group) and args[0] in logs.list_commands(ctx):
            return f'"{shlex.join([*ctx.command_path.split(), LOG_GROUP, *args])}"'
        return " or ".join(difflib.get_close_matches(args[0], self.list_commands(ctx), n=3))

    def _find_command(
        self, ctx: click.Context, words: list[str]
    ) -> tuple[list[str], click.Command]:
        """The commands that these words begin with, and the last of them; or no word, and this group."""
        path: list[str] = []
        innermost_command: click.Command = self
        for word in words:
            child = (
                innermost_command.get_command(ctx, word)
                if isinstance(innermost_command, click.Group)
                else None
            )
            if child is None:
                break
            path.append(word)
            innermost_command = child
        return path, innermost_command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, each with its whole line; lazy ones are not imported."""
        rows = [(name, text) for name, (_, text, *_) in self.lazy.items()]
        for name in self.commands:
            subcommand = self.commands[name]
            rows.append((name, subcommand.get_short_help_str(LINE_CHARS)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


# --- destructive commands -------------------------------------------------------------------------
#
# One rule, docs/reference/command-line.md. It applies to a command that deletes data, would stop
# writes, remove the last right, lower the protection or replace a file. The command asks on a terminal, is
# refused without one, and proceeds with --force. The cluster decides about changes that it can judge better
# (`ConfirmationRequired`).


def require_consent(
    question: str, force: bool, *, consequence: str = "There is no way back", typed: str = ""
) -> None:
    """Ask before a destructive command, unless --force was given. Raises `ConfirmationRequired`,
    `ExitWithCode`.

    ``typed``: the text that is to be typed, where a "y" is not enough.
    """
    if force:
        return
    prompt = f"{question}? {consequence}"
    if not sys.stdin.isatty():
        raise ConfirmationRequired(f"{prompt}. Use --force to proceed")
    if typed:
        typed_text = click.prompt(f"{prompt}: type {typed}", default="", err=True)
        is_agreed = typed_text.strip() == typed
    else:
        is_agreed = click.confirm(prompt, err=True)
    if not is_agreed:
        print_notice("nothing was changed")
        raise ExitWithCode(NO)


def run_confirmed(question: str, force: bool, call: Callable[[bool], Result]) -> Result:
    """Run ``call(False)``; if the cluster requires a confirmation, `require_consent`, then run
    ``call(True)``.

    A cluster of an older version requires none, and its nodes do not know the flag: it is not sent at once.
    """
    try:
        return call(False)
    except Exception as error:
        cause = innermost(error)
        if not isinstance(cause, ConfirmationRequired):
            raise
        require_consent(question, force, consequence=str(cause))
    return call(True)


def confirmed_destination(file: Path, force: bool) -> "Destination":
    """Return the destination of output to ``file``, after `require_consent` if it exists. Raises
    `InvalidRequest`."""
    from ...runtime.disk.output_file import resolve_destination

    target = resolve_destination(file)
    if target.exists:
        require_consent(f"replace {file}", force, consequence="It exists, and its content is lost")
    return target


def force_option(function: Function) -> Function:
    """``--force``, for `require_consent`."""
    return click.option("--force", is_flag=True, help="Proceed without confirmation.")(function)


def write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    """The section ``Examples``, as written where there is room."""
    if not examples:
        return
    with formatter.section("Examples"):
        lines = [line.strip() for line in examples.strip().splitlines()]
        for line in fit_examples(lines, formatter.width - formatter.current_indent):
            formatter.write(f"{'':{formatter.current_indent}}{line}{os.linesep}")


def fit_examples(lines: list[str], width: int) -> list[str]:
    """Commands with what they do after them, or above them where one is too wide; a shell takes both."""
    one_line_each = [re.sub(r"(?<=\S)(\s{3,})(?=\S)", r"\1# ", line) for line in lines]
    if all(len(line) <= width for line in one_line_each):
        return one_line_each
    fitted_lines = []
    for line in lines:
        command, _, note = line.partition("   ")
        if note:
            fitted_lines.append(f"# {note.strip()}")
        fitted_lines += _wrap_command(command, width)
    return fitted_lines


def _wrap_command(command: str, width: int) -> list[str]:
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
