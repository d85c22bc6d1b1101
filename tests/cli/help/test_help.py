"""`dlog help`: each topic fits a terminal and can be typed; the help of a command is printed both ways."""

import re
from pathlib import Path

import click
import pytest

from distributedlog.cli.help.help_topics import CHARS_MAX, TOPICS
from distributedlog.cli.main import command, run
from distributedlog.runtime.declarations.options import replace_tables
from tests.test_documented_commands import calls, why_not

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "command-line.md"


def renewed() -> str:
    sections = [f"## {name}: {topic.title}\n\n{topic.text}" for name, topic in TOPICS.items()]
    return replace_tables(DOCUMENT.read_text(), {"topics": "\n" + "\n".join(sections)})


def test_the_document_says_what_the_program_says() -> None:
    assert DOCUMENT.read_text() == renewed(), "python -m tests.cli.help.test_help makes it anew"


@pytest.mark.parametrize("name", TOPICS)
def test_a_topic_fits_a_terminal_and_what_it_shows_can_be_typed(name: str) -> None:
    text = TOPICS[name].text

    assert max(map(len, text.splitlines())) <= CHARS_MAX
    assert len(text.splitlines()) <= 36, "a screen, with its title"
    blocks = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    for line in blocks.replace("\\\n", " ").splitlines():
        for arguments in calls(line):
            assert why_not(arguments) == "", line


def test_a_topic_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["uris"], ["uri"], ["exit-codes"], ["exit", "codes"]):
        assert run(["help", *words]) == 0
        name = "uris" if words[0].startswith("uri") else "exit-codes"
        assert capsys.readouterr().out == f"{name}: {TOPICS[name].title}\n\n{TOPICS[name].text}"


def test_the_list_of_commands_names_the_topics(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"on {', '.join(TOPICS)}." in said

    assert run(["help"]) == 0
    said = capsys.readouterr().out
    for name, topic in TOPICS.items():
        assert topic.title in said, name


def test_commands_are_listed_by_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    lines = capsys.readouterr().out.partition("Options:")[2].splitlines()

    tasks = [line for line in lines if re.fullmatch(r"[A-Z][a-z ]+:", line)]
    listed = [line.split()[0] for line in lines if re.match(r"  [a-z]", line)]
    assert "Write and read logs:" in tasks
    assert len(tasks) == 7
    assert listed == command.list_commands(click.Context(command))


@pytest.mark.parametrize("words", [["log"], ["log", "read"], ["metadata", "gc", "resume"]])
def test_help_of_a_command_is_its_help(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--help"]) == 0
    expected = capsys.readouterr().out

    assert run(["help", *words]) == 0

    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["positons"], "no such topic or command 'positons'; did you mean positions?"),
        (["stauts"], "did you mean status"),
        (["log", "raed"], "no such command of dlog log 'raed'; did you mean read"),
        (["status", "x"], "no such command of dlog status 'x'"),
    ],
)
def test_what_is_not_there_is_answered_with_what_was_meant(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["help", *words]) == 2
    assert said in capsys.readouterr().err


def test_no_topic_is_called_as_a_command_is() -> None:
    assert not set(TOPICS) & set(command.list_commands(click.Context(command)))


def test_help_of_a_command_says_of_itself_what_the_command_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`dlog help log read` knew no ``-h``."""
    run(["log", "read", "--help"])
    asked = capsys.readouterr().out
    run(["help", "log", "read"])

    assert capsys.readouterr().out == asked


if __name__ == "__main__":
    DOCUMENT.write_text(renewed())
