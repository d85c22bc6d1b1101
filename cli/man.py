"""`dlog man`: manual pages, made when they are asked for, of the parser and of the topics.

None is kept in the tree: it would be one more text that can differ from the program.
"""

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from ..runtime.errors import DistributedLogError
from ..runtime.output_file import write_file
from .options import Command, Group, Settings, fitted, without_cluster
from .output import emit
from .topics import TOPICS

ROOM = 69
"""What an indented line of a page has on a terminal of 80 columns: man breaks none of these."""
MANPATH_S = 5.0
SEE_ALSO = ("dlog-environment(7)", "dlog-exit-codes(7)")


@click.command(
    cls=Command,
    examples="""
    dlog man && man dlog-log-read
    dlog man ~/.local/share/man              where the other one may not be written
    """,
)
@click.argument(
    "directory", required=False, type=click.Path(file_okay=False, path_type=Path), metavar="[DIR]"
)
@without_cluster()
def command(settings: Settings, directory: Path | None) -> None:
    """Write a manual page for each command and each topic of dlog help.

    Below DIR; by default in share/man of the Python environment that dlog is installed in, beside its bin:
    man looks there for what is on the PATH. Once more after an upgrade.
    """
    place = directory or Path(sys.prefix) / "share" / "man"
    count = 0
    for name, section, text in pages():
        file = place / f"man{section}" / f"{name}.{section}"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_file(file, text)
        except (OSError, DistributedLogError) as error:
            why = f"{file}: {error.strerror}" if isinstance(error, OSError) else str(error)
            raise click.UsageError(
                f"{why}; name another place: dlog man ~/.local/share/man"
            ) from None
        count += 1
    if settings.json:
        emit({"directory": str(place), "pages": count})
    else:
        settings.note(f"{count} pages in {place}: {_how_to_read(place)}")


def _how_to_read(place: Path) -> str:
    """What to type: with the place where man does not look there by itself, or nobody says where it does."""
    there = f"man -M {shlex.quote(os.path.abspath(place))} dlog"
    program = shutil.which("manpath")
    if program is None:
        return there
    try:
        done = subprocess.run([program, "-q"], capture_output=True, timeout=MANPATH_S, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return there
    if os.path.realpath(place) in map(os.path.realpath, done.stdout.strip().split(":")):
        return "man dlog, man dlog-log-read, man dlog-uris"
    return f"{there}, for man does not look there by itself"


def pages() -> Iterator[tuple[str, int, str]]:
    """Each page's name, its section, and what is in the file."""
    from .main import command as dlog

    yield from _commands(click.Context(dlog, info_name="dlog"))
    for name, (title, text) in TOPICS.items():
        lines = [_head(f"dlog-{name}", 7, title), ".SH DESCRIPTION", *_paragraphs(text)]
        yield f"dlog-{name}", 7, "\n".join([*lines, ".SH SEE ALSO", _plain("dlog(1)"), ""])


def _commands(context: click.Context) -> Iterator[tuple[str, int, str]]:
    """The page of one command, then those of its own."""
    name, children = context.command_path.replace(" ", "-"), list(_children(context))
    yield name, 1, _page(context, name, children)
    for child in children:
        yield from _commands(child)


def _children(context: click.Context) -> Iterator[click.Context]:
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None, "a group has the commands that it lists"
            yield click.Context(found, context, info_name=name)


def _page(context: click.Context, name: str, children: list[click.Context]) -> str:
    one = context.command
    words = inspect.cleandoc(one.help or "")
    lines = [_head(name, 1, _first(one)), ".SH SYNOPSIS", f".B {_plain(context.command_path)}"]
    lines += [_plain(" ".join(one.collect_usage_pieces(context)))]
    lines += [".SH DESCRIPTION", *_paragraphs(words)]
    if isinstance(one, Command) and one.examples:
        written = inspect.cleandoc(one.examples).splitlines()
        lines += [".SH EXAMPLES", *_as_it_is(fitted(written, ROOM))]
    if children:
        lines.append(".SH COMMANDS")
        for child in children:
            page = child.command_path.replace(" ", "-")
            lines += [".TP", f"\\fB{_escaped(page)}\\fR(1)", _plain(_short(context, child))]
    lines.append(".SH OPTIONS")
    for parameter in one.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            lines += [".TP", f"\\fB{_escaped(record[0])}\\fR", _plain(record[1])]
    parent = [] if context.parent is None else [context.parent.command_path.replace(" ", "-")]
    also = [*(f"{one}(1)" for one in parent), *SEE_ALSO]
    if not parent:
        also = [f"dlog-{topic}(7)" for topic in TOPICS]
    return "\n".join([*lines, ".SH SEE ALSO", _plain(", ".join(also)), ""])


def _short(context: click.Context, child: click.Context) -> str:
    """What the group says of it."""
    group = context.command
    told = group.lazy.get(child.info_name or "") if isinstance(group, Group) else None
    return told[1] if told else _first(child.command)


def _first(one: click.Command) -> str:
    """The first sentence, or line, of a command's help: man shows it in lists."""
    words = " ".join(inspect.cleandoc(one.help or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.?]) ", words)[0].rstrip(".")


def _head(name: str, section: int, title: str) -> str:
    return "\n".join(
        [
            f'.TH "{_escaped(name.upper())}" "{section}" "" "" "distributedlog"',
            ".SH NAME",
            f"{_escaped(name)} \\- {_escaped(title)}",
        ]
    )


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs, and blocks that stand as they are: those that are four spaces in."""
    for part in re.split(r"\n\n+", text.rstrip()):
        lines = part.split("\n")
        if all(line.startswith("    ") for line in lines):
            yield from _as_it_is([line[4:] for line in lines])
        else:
            yield ".PP"
            yield from (_plain(line.strip()) for line in lines)


def _as_it_is(lines: list[str]) -> Iterator[str]:
    yield from (".PP", ".RS 4", ".nf", *(_plain(line) for line in lines), ".fi", ".RE")


def _plain(line: str) -> str:
    """A line of text: one that begins as a request does is none."""
    found = _escaped(line)
    return f"\\&{found}" if found.startswith((".", "'")) else found


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")
