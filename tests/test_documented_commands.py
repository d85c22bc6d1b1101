"""What the documents, the help and the program itself tell somebody to type is a command that there is."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from distributedlog.cli.main import command, run
from tests.parts import files_of, part_folders

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("docker/*.md"),
        *ROOT.glob("examples/**/*.md"),
    )
)
OPERATORS = {"|", "||", "&&", ";", "&", ">", ">>", "<", ")", "(", "2>"}
BEFORE = re.compile(r"sudo|timeout|time|\d+|\w+=.*|if|!|docker/compose|run|--rm|-T|source")
"""What may stand before a command on its line: `useradd dlog` is none of ours."""
PLACEHOLDER = re.compile(r"^(…|\.\.\.|[A-Z][A-Z0-9=,/-]*|\[.*)$")
"""A word in a sentence that stands for what is to be put there: NAME, ID, …"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("DLOG_"):
            monkeypatch.delenv(name)


def blocks(text: str) -> Iterator[str]:
    """Blocks that are copied into a shell; those without a language where they begin with `dlog`."""
    for language, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.M | re.S):
        if language == "sh" or (not language and block.startswith("dlog ")):
            yield block


def typed(block: str) -> Iterator[list[str]]:
    """The arguments of each `dlog` of a shell's lines."""
    for line in block.replace("\\\n", " ").splitlines():
        yield from calls(line)


def calls(line: str) -> Iterator[list[str]]:
    """Of each `dlog` in a shell's line, whatever stands before it (a folder, `docker/compose run`)."""
    if "--entrypoint" in line:
        return  # another program in a container of that name
    line = re.sub(r"\$\(", " ( ", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        words = list(lexer)
    except ValueError:  # a quote that goes on: no line of dlog's own
        return
    found: list[str] | None = None
    begins = True
    for word in words:
        if word in OPERATORS:
            if found is not None:
                yield found
            found, begins = None, True
        elif found is not None:
            found.append(word)
        elif begins and (word == "dlog" or word.endswith("/bin/dlog")):
            found = []
        else:
            begins = begins and BEFORE.fullmatch(word) is not None
    if found is not None:
        yield found


def why_not(arguments: list[str]) -> str:
    """What `dlog` would say to these before it does anything, or ""."""
    try:
        context: click.Context = command.make_context("dlog", list(arguments))
        while isinstance(context.command, click.Group):
            rest = [*context._protected_args, *context.args]
            if not rest:
                return f"{context.command_path} alone is no command"
            name, found, rest = context.command.resolve_command(context, rest)
            assert found is not None
            context = found.make_context(name, rest, parent=context)
    except click.exceptions.Exit:
        return ""  # --help, --version
    except click.UsageError as error:
        said = error.format_message()
        return "" if "does not exist" in said else said  # a file of the example's
    return ""


def sentence(text: str) -> str:
    """Why what a sentence calls a command is none, or "".

    It may leave arguments out, say NAME for one, and write|read|tail for three.
    """
    try:
        words = shlex.split(text)[1:]
    except ValueError:
        words = text.split()[1:]
    group: click.Command = command
    context = click.Context(command, info_name="dlog")
    for at, word in enumerate(words):
        if not isinstance(group, click.Group):
            break
        if word.startswith("-") or PLACEHOLDER.match(word):
            if word.startswith("-"):
                continue
            return ""
        named = [group.get_command(context, one) for one in word.split("|")]
        if None in named:
            at_value = at > 0 and words[at - 1].startswith("--") and group is command
            if at_value:
                continue  # of an option before the command: dlog --uri … log read
            return f"no command {word!r}"
        assert named[0] is not None
        group = named[0]
        context = click.Context(group, parent=context, info_name=word)
    known = {flag for option in group.params for flag in option.opts} | {"--help", "-h", "-vv"}
    if group is command:
        known |= {"--version"}
    unknown = [
        word.partition("=")[0]
        for word in words
        if re.match(r"^--?[a-z]", word) and word.partition("=")[0] not in known
    ]
    return f"no option {unknown[0]} of {context.command_path}" if unknown else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_has_to_be_copied_is_taken(page: Path) -> None:
    wrong = [
        f"dlog {shlex.join(arguments)}: {said}"
        for block in blocks(page.read_text())
        for arguments in typed(block)
        if (said := why_not(arguments))
    ]

    assert wrong == []


SPOKEN_OF = [page for page in PAGES if page.parent.name != "decisions"]
"""Decisions tell of commands that were thought of, and are not there."""


@pytest.mark.parametrize("page", SPOKEN_OF, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_calls_a_command_is_one(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    wrong = [
        f"`{found}`: {said}"
        for found in re.findall(r"`(dlog(?:[ \n][^`]*)?)`", text)
        if (said := sentence(found))
    ]

    assert wrong == []


def groups(group: click.Group, path: list[str]) -> Iterator[list[str]]:
    context = click.Context(group)
    yield path
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from groups(found, [*path, name])


@pytest.mark.parametrize("path", [*groups(command, [])], ids=lambda path: " ".join(["dlog", *path]))
def test_no_line_of_a_list_of_commands_is_cut(
    path: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert run([*path, "--help"]) == 0

    listed = capsys.readouterr().out.partition("Show this message and exit.\n")[2]
    assert listed
    assert [line for line in listed.splitlines() if line.endswith("...")] == []
    assert max(map(len, listed.splitlines())) <= 80


PLACE = re.compile(r"(docs/operate/[a-z-]+\.md), ([a-z][a-z ]+[a-z])")
"""A section, as the rows of metrics and events name it."""


def test_the_sections_that_a_metric_or_an_event_sends_somebody_to_are_there() -> None:
    sources = [
        *(
            path
            for part in part_folders()
            for path in files_of(part)
            if path.name in ("metrics.py", "events.py")
        ),
        ROOT / "ops/prometheus/rules.yml",
    ]
    named = {
        (source.relative_to(ROOT).as_posix(), page, section)
        for source in sources
        for page, section in PLACE.findall(source.read_text())
    }
    headings = {
        page: {
            line.lstrip("# ").lower()
            for line in (ROOT / page).read_text().splitlines()
            if line[:1] == "#"
        }
        for _, page, _ in named
    }

    assert named
    assert sorted(one for one in named if one[2] not in headings[one[1]]) == []


MODULE = re.compile(
    r"python -m ((?:tests|distributedlog)\.[\w.]+)((?:\s+--[a-z][\w-]*(?:[ =][\w.,'=*/-]+)*)*)"
)


@pytest.mark.parametrize("page", SPOKEN_OF, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_programs_of_the_tree_that_a_page_has_started_take_their_options(page: Path) -> None:
    wrong = []
    for name, rest in MODULE.findall(page.read_text().replace("\\\n", " ")):
        place = ROOT / name.replace(".", "/")
        looked = (place.with_suffix(".py"), place / "__main__.py")
        files = [file for file in looked if file.is_file()]
        if not files:
            wrong.append(f"{name} is no program")
            continue
        source = files[0].read_text()
        wrong += [
            f"{name} takes no {option}"
            for option in re.findall(r"--[a-z][\w-]*", rest)
            if f'"{option}"' not in source
        ]

    assert wrong == []
