"""What every command takes (``--uri --json --timeout -q -v``), and help that begins with examples."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

TIMEOUT_S = 30.0

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(slots=True)
class Settings:
    """How a command was called."""

    uri: str | None = None
    json: bool = False
    timeout_s: float = TIMEOUT_S
    """No answer from the cluster for so long ends any command (exit code 4)."""
    quiet: bool = False
    verbose: int = 0

    def where(self) -> str:
        """The URI: ``--uri``, else ``DLOG_URI``, else the current context. Raises a usage error."""
        if self.uri:
            return self.uri
        from .context import current_uri

        found = current_uri()
        if found is None:
            raise click.UsageError(
                "no cluster is named: give --uri URI, set DLOG_URI, or choose a context"
                ' ("dlog context set NAME URI", then "dlog context use NAME")'
            )
        return found

    def note(self, text: str) -> None:
        """Progress or a remark, on stderr, unless -q."""
        if not self.quiet:
            click.echo(text, err=True)


def common(function: Function) -> Function:
    """Add the options that every command has; the command gets them as its first argument."""

    @click.option("--uri", envvar="DLOG_URI", metavar="URI", help="The cluster and namespace.")
    @click.option(
        "--json", "as_json", is_flag=True, default=None, help="JSON on stdout, nothing else."
    )
    @click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="S",
        help=f"End when the cluster does not answer for S seconds (default {TIMEOUT_S:g}).",
    )
    @click.option("-q", "--quiet", is_flag=True, default=None, help="No progress, no remarks.")
    @click.option("-v", "--verbose", count=True, help="More; -vv shows the traceback of an error.")
    @functools.wraps(function)
    def command(
        *arguments: Any,
        uri: str | None,
        as_json: bool | None,
        timeout: float | None,
        quiet: bool | None,
        verbose: int,
        **rest: Any,
    ) -> Any:
        settings = click.get_current_context().find_object(Settings) or Settings()
        lay(settings, uri=uri, as_json=as_json, timeout=timeout, quiet=quiet, verbose=verbose)
        return function(settings, *arguments, **rest)

    return command  # type: ignore[return-value]


def lay(
    settings: Settings,
    *,
    uri: str | None,
    as_json: bool | None,
    timeout: float | None,
    quiet: bool | None,
    verbose: int,
) -> None:
    """Lay what was given over what ``settings`` holds."""
    settings.uri = uri or settings.uri
    settings.json = bool(as_json) or settings.json
    settings.timeout_s = timeout if timeout is not None else settings.timeout_s
    settings.quiet = bool(quiet) or settings.quiet
    settings.verbose = max(verbose, settings.verbose)


class Command(click.Command):
    """A command whose help begins with examples."""

    def __init__(self, *arguments: Any, examples: str = "", **rest: Any) -> None:
        super().__init__(*arguments, **rest)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give each flag its variable, by the flag's name: DLOG_LOG_READ_FORMAT for --format."""
        for option in self.params:
            if isinstance(option, click.Option):
                flag = max(option.opts, key=len).lstrip("-").replace("-", "_").upper()
                own = f"{ctx.auto_envvar_prefix}_{flag}"
                option.envvar = [own, "DLOG_URI"] if flag == "URI" else own
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Usage, then the examples, then the rest."""
        super().format_usage(ctx, formatter)
        write_examples(formatter, self.examples)


class Group(click.Group):
    """A group whose commands are imported when they are called, and whose help begins with examples."""

    command_class = Command

    def __init__(
        self,
        *arguments: Any,
        examples: str = "",
        lazy: dict[str, tuple[str, str]] | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(*arguments, **rest)
        self.examples = examples
        self.lazy = lazy or {}
        """Name to (module relative to this package, its one line of help)."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Usage, then the examples, then the rest."""
        super().format_usage(ctx, formatter)
        write_examples(formatter, self.examples)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order they were declared."""
        return [*self.lazy, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module now, and only this one."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        import importlib

        module = importlib.import_module(self.lazy[cmd_name][0], __package__)
        found: click.Command = module.command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing them."""
        if not self.lazy:
            super().format_commands(ctx, formatter)
            return
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])


def write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    """The section ``Examples``, as written."""
    if not examples:
        return
    formatter.write_paragraph()
    with formatter.section("Examples"):
        for line in examples.strip().splitlines():
            formatter.write(f"{'':{formatter.current_indent}}{line.strip()}{os.linesep}")
