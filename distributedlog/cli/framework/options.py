"""Provide the options that every command has (``--uri --json --timeout -q -v``), and help with examples."""

import dataclasses
import difflib
import functools
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ...runtime.interfaces.errors import ConfirmationRequired
from .errors import NO, ExitWithCode, innermost, print_notice, print_stderr
from .output import emit, terminal_width, visible, wrap_text

if TYPE_CHECKING:
    from ...runtime.disk.output_file import Destination

TIMEOUT_S = 30.0
NUMBER_MAX = (1 << 63) - 1
"""The largest transaction ID, ledger ID or entry ID, as in `distributedlog/runtime/protocol/schema.py`."""
LOG_GROUP = "log"
"""The most frequently used group. It is suggested if a user omits it."""
LINE_CHARS = 200
"""Maximum length of a command's summary in the list of its group. It is wrapped there, not cut."""
SETTING_OF_OPTION = {
    "uri": "uri",
    "as_json": "json",
    "credentials": "credentials",
    "timeout": "timeout_s",
    "quiet": "quiet",
    "verbose": "verbose",
}
"""Click parameter names of the common options, and the fields of `Settings` that store them."""
RANK_OF_SOURCE: dict[ParameterSource | None, int] = {
    ParameterSource.ENVIRONMENT: 1,
    ParameterSource.COMMANDLINE: 2,
}
"""Precedence of a value by its source: the higher rank wins. A default has no rank and sets nothing."""

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")


@dataclasses.dataclass(slots=True)
class Settings:
    """The values of the common options."""

    uri: str | None = None
    credentials: str | None = None
    """A reference to credentials, such as ``file:DIR``, never a secret."""
    json: bool = False
    timeout_s: float = TIMEOUT_S
    """Maximum wait for an answer of the cluster, in seconds. Then the command ends with exit code 4."""
    quiet: bool = False
    verbose: int = 0
    context: str = ""
    """Name of the context that provided the URI; "" if none did, or none was read yet."""
    ranks: dict[str, int] = dataclasses.field(default_factory=dict)
    """Field name to the rank of its value's source (`RANK_OF_SOURCE`)."""

    def where(self) -> str:
        """Return the cluster URI from ``--uri``, ``DLOG_URI`` or the selected context, in this order.

        Later connections of this process use the credentials that belong to this URI.

        Raises:
            click.UsageError: No cluster is specified.
        """
        if self.uri:
            set_credentials(self.credentials)
            return self.uri
        from .named_clusters import current_context

        context_uri, credentials, name = current_context()
        if context_uri is None:
            raise click.UsageError(
                "no cluster specified. Use --uri URI, set DLOG_URI, or select a context"
                ' ("dlog context set NAME URI", then "dlog context use NAME"); "dlog local" starts a cluster'
            )
        set_credentials(self.credentials or credentials)
        self.context = name
        return context_uri

    def note(self, text: str) -> None:
        """Print progress or a note to stderr, unless ``--quiet`` is set; wrap it at the terminal width."""
        if not self.quiet:
            width = terminal_width(sys.stderr)
            for line in text.split("\n"):
                print_stderr("\n".join(map(visible, wrap_text(line, width))) + "\n")


def report_change(
    settings: Settings, action: str, kind: str, name: str, detail: str = "", **values: Any
) -> None:
    """Report a completed change in the same words for all commands.

    Args:
        settings: The common options.
        action: The past participle of a verb, such as "created". It is also a key of the JSON object.
        kind: The kind of object, such as "log".
        name: Its name.
        detail: Text after the name.
        values: Further keys of the JSON object.
    """
    if settings.json:
        emit({"name": name, action: True, **values})
    else:
        settings.note(f"{action} {kind} {name}{detail}")


def set_credentials(credentials: str | None) -> None:
    """Use these credentials in this process and its child processes. None keeps those of the environment."""
    if credentials:
        os.environ["DLOG_CREDENTIALS"] = credentials


CLUSTER_OPTIONS = frozenset({"uri", "credentials", "timeout"})


def common_options(function: Function, hidden: Collection[str] = ()) -> Function:
    """Add the common options to a command or to `dlog`. Help does not show those in ``hidden``."""
    for option in (
        click.option(
            "-v", "--verbose", count=True, help="Print details; -vv also prints tracebacks."
        ),
        click.option(
            "-q", "--quiet", is_flag=True, default=None, help="Suppress progress and notes."
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            metavar="S",
            hidden="timeout" in hidden,
            help=f"Maximum wait for the cluster, in seconds (default {TIMEOUT_S:g}).",
        ),
        click.option("--json", "as_json", is_flag=True, default=None, help="Print JSON only."),
        click.option(
            "--credentials",
            metavar="file:PATH",
            hidden="credentials" in hidden,
            help="Client identity: a certificate directory (dlog pki issue) or a token file.",
        ),
        click.option("--uri", metavar="URI", hidden="uri" in hidden, help="Cluster and namespace."),
    ):
        function = option(function)
    return function


def common(function: Function) -> Function:
    """Add the common options; the command receives `Settings` as its first argument."""
    return _common(function, ())


def without_cluster(*shown_options: str) -> Callable[[Function], Function]:
    """Add the common options to a command that does not connect to a cluster.

    Of `CLUSTER_OPTIONS`, its help shows only ``shown_options``. The command accepts the others, too, so that
    a script can use the same flags or variables for all its commands.
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
    """Merge the common options of one command level into those of the outer levels.

    The command line has precedence over the environment, wherever the option is placed:
    `dlog --uri B log delete x` with DLOG_URI=A deletes in B. From equal sources, the innermost value applies.
    """
    for name, field in SETTING_OF_OPTION.items():
        value = context.params[name]
        rank = RANK_OF_SOURCE.get(context.get_parameter_source(name), 0)
        rank_before = settings.ranks.get(field, 0)
        if rank == 0 or rank < rank_before:
            continue
        if name == "uri" and not value.strip():
            # An empty URI is an error: `--uri "$UNSET"` would use the cluster of a variable or a context.
            raise click.UsageError("--uri is empty", context)
        if name == "verbose" and rank == rank_before:
            value = max(value, settings.verbose)
        setattr(settings, field, value)
        settings.ranks[field] = rank


def set_environment_variables(context: click.Context, parameters: list[click.Parameter]) -> None:
    """Assign each flag its environment variable: DLOG_LOG_READ_FORMAT for --format."""
    for option in parameters:
        if isinstance(option, click.Option):
            flag = max(option.opts, key=len).lstrip("-").replace("-", "_").upper()
            variable = f"{context.auto_envvar_prefix}_{flag}"
            option.envvar = (
                [variable, "DLOG_URI"] if flag == "URI" and variable != "DLOG_URI" else variable
            )


def check_value(parameter: click.Parameter, value: Any, context: click.Context) -> None:
    """Reject values that no command accepts.

    These are numbers that are too large or NaN, and text that is not UTF-8. File names are not checked.
    Raises a usage error.
    """
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, int | float) and not isinstance(item, bool):
            from ...runtime.declarations.options import DURATION_S_MAX

            maximum = DURATION_S_MAX if isinstance(item, float) else NUMBER_MAX
            if not abs(item) <= maximum:  # NaN, too
                raise click.BadParameter(
                    f"a number above {maximum:,} is not accepted", context, parameter
                )
        if isinstance(item, str) and not isinstance(parameter.type, click.Path):
            try:
                item.encode()
            except UnicodeEncodeError:
                raise click.BadParameter(f"{item!r} is not UTF-8", context, parameter) from None


def read_text(path: Path) -> str:
    """Return the content of a text file. Raises a usage error with the file name."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"{path} is not UTF-8") from None


class CliCommand(click.Command):
    """A command whose help has examples after the description."""

    def __init__(self, *arguments: Any, examples: str = "", **rest: Any) -> None:
        super().__init__(*arguments, **rest)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Assign each flag its environment variable, parse the arguments, and check the values."""
        set_environment_variables(ctx, self.params)
        remaining_args = super().parse_args(ctx, args)
        for parameter in self.params:
            check_value(parameter, ctx.params.get(parameter.name or ""), ctx)
        return remaining_args

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description, then the examples."""
        super().format_help_text(ctx, formatter)
        write_examples(formatter, self.examples)


class CommandWithSubcommands(CliCommand):
    """A command with arguments, whose first argument can name a subcommand instead.

    Options before the name, such as --json, belong to the subcommand. After ``--``, or with a path such as
    ./NAME, the argument is never the name of a subcommand.
    """

    def __init__(
        self, *arguments: Any, subcommands: Sequence[click.Command] = (), **rest: Any
    ) -> None:
        super().__init__(*arguments, **rest)
        self.subcommands = {command.name: command for command in subcommands}

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the context of the subcommand that the arguments name, or of this command."""
        count = self._count_options(info_name, args, parent)
        command = self.subcommands.get(args[count]) if count < len(args) else None
        if command is None or args[:count][-1:] == ["--"]:
            return super().make_context(info_name, args, parent, **extra)
        outer = self.outer_context(info_name, parent)
        return command.make_context(
            command.name, [*args[:count], *args[count + 1 :]], outer, **extra
        )

    def outer_context(self, info_name: str | None, parent: click.Context | None) -> click.Context:
        """Return the parent context of the subcommands.

        It is that of a group, so that usage and environment variables have the words "repair pause".
        """
        return click.Context(click.Group(self.name), parent, info_name)

    def _count_options(
        self, info_name: str | None, args: list[str], parent: click.Context | None
    ) -> int:
        """Return how many words precede the first argument: options and their values."""
        options_only = click.Command(
            self.name, params=[one for one in self.params if isinstance(one, click.Option)]
        )
        context = click.Context(options_only, parent, info_name, allow_interspersed_args=False)
        try:
            _, from_argument, _ = options_only.make_parser(context).parse_args([*args])
        except click.UsageError:  # raised again when all words are parsed
            return 0
        return len(args) - len(from_argument)


def subcommand_of(
    command: click.Command, context: click.Context, name: str
) -> click.Command | None:
    """Return a subcommand by its name, or None."""
    if isinstance(command, CommandWithSubcommands):
        return command.subcommands.get(name)
    return command.get_command(context, name) if isinstance(command, click.Group) else None


Lazy = tuple[str, str] | tuple[str, str, str]


class Group(CliCommand, click.Group):
    """A group whose commands are imported when they are called."""

    command_class = CliCommand

    def __init__(
        self, *arguments: Any, lazy: dict[str, dict[str, Lazy]] | None = None, **rest: Any
    ) -> None:
        super().__init__(*arguments, **rest)
        self._tasks = lazy or {}
        """Task to its commands, in the order of the help."""
        self.lazy = {name: entry for task in self._tasks.values() for name, entry in task.items()}
        """Name to (module relative to `distributedlog.cli`, its help line). The click command in it is
        called ``command``, or has the name of the optional third element.
        """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order of their declaration."""
        return [*self.lazy, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import only the module of this command, and return the command."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        import importlib

        module = importlib.import_module(self.lazy[cmd_name][0], "distributedlog.cli")
        attribute = "".join(self.lazy[cmd_name][2:]) or "command"
        loaded: click.Command = getattr(module, attribute)
        return loaded

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Turn Ctrl-C into click's own error here; otherwise click prints an empty line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise click.Abort from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. If it does not exist, the error suggests similar commands."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            suggestions = self._suggest_command(ctx, args)
            ctx.fail(
                f"no such command {args[0]!r}{f'; did you mean {suggestions}?' if suggestions else ''}"
            )
        return super().resolve_command(ctx, args)

    def _suggest_command(self, ctx: click.Context, args: list[str]) -> str:
        """Suggest a command for an unknown word, or return "".

        The word may be an argument before its command, a command of `dlog log` without `log`, or a typing
        error.
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
        """Return the longest prefix of ``words`` that is a command path, and its last command.

        Without such a prefix the command is this group.
        """
        path: list[str] = []
        innermost_command: click.Command = self
        for word in words:
            child = subcommand_of(innermost_command, ctx, word)
            if child is None:
                break
            path.append(word)
            innermost_command = child
        return path, innermost_command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by task, with their whole help lines, without importing lazy ones."""
        rows_by_task = {
            task: [(name, text) for name, (_, text, *_) in commands.items()]
            for task, commands in self._tasks.items()
        }
        if self.commands:
            rows_by_task["Commands"] = [
                (name, subcommand.get_short_help_str(LINE_CHARS))
                for name, subcommand in self.commands.items()
            ]
        # One width for all tasks, so that the help lines are in one column.
        name_width = max(len(name) for rows in rows_by_task.values() for name, _ in rows)
        for task, rows in rows_by_task.items():
            with formatter.section(task):
                formatter.write_dl([(name.ljust(name_width), text) for name, text in rows])


# --- destructive commands -------------------------------------------------------------------------
#
# The rule is documented in docs/reference/command-line.md. It applies to a command that deletes data, stops
# writes, removes the last right, lowers the protection or replaces a file. On a terminal, the command asks.
# Without a terminal it is refused, unless --force is given. The cluster decides if it has the better
# information (`ConfirmationRequired`).


def require_consent(
    question: str, force: bool, *, consequence: str = "There is no way back", typed: str = ""
) -> None:
    """Ask for confirmation before a destructive command, unless --force was given.

    Args:
        question: The action, without a question mark.
        force: Whether --force was given.
        consequence: The effect of the action.
        typed: A text that the user must type; by default "y" is sufficient.

    Raises:
        ConfirmationRequired: Stdin is not a terminal.
        ExitWithCode: The user declined.
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
    """Run ``call(False)``; if the cluster requires a confirmation, ask, then run ``call(True)``.

    The flag is not sent at once, because an older cluster does not support it and requires no confirmation.
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
    """Return the destination of output to ``file``; if the file exists, ask for confirmation first.

    Raises:
        InvalidRequest: The destination is not valid.
        ConfirmationRequired, ExitWithCode: As for `require_consent`.
    """
    from ...runtime.disk.output_file import resolve_destination

    target = resolve_destination(file)
    if target.exists:
        require_consent(f"replace {file}", force, consequence="It exists, and its content is lost")
    return target


def force_option(function: Function) -> Function:
    """Add ``--force``, for `require_consent`."""
    return click.option("--force", is_flag=True, help="Proceed without confirmation.")(function)


def write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    """Write the section ``Examples``."""
    if not examples:
        return
    with formatter.section("Examples"):
        lines = [line.strip() for line in examples.strip().splitlines()]
        for line in fit_examples(lines, formatter.width - formatter.current_indent):
            formatter.write(f"{'':{formatter.current_indent}}{line}{os.linesep}")


def fit_examples(lines: list[str], width: int) -> list[str]:
    """Return the lines of examples, with comments behind the commands, or above them if a line is too wide.

    All lines remain valid shell input.
    """
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
    """Wrap a command before its options, never within quotes, with backslashes as a shell accepts them."""
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
