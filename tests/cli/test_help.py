"""`dlog help` and the manual pages: of each command and topic one text, which fits and can be typed."""

import shutil
import subprocess
from pathlib import Path

import click
import pytest

from distributedlog.cli.main import command, run
from distributedlog.cli.man import ROOM, _paragraphs, pages
from distributedlog.cli.topics import CHARS_MAX, TOPICS
from distributedlog.runtime.options import with_tables
from tests.test_documented_commands import calls, why_not

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"


def renewed() -> str:
    sections = [f"## {name}: {topic.title}\n\n{topic.text}" for name, topic in TOPICS.items()]
    return with_tables(DOCUMENT.read_text(), {"topics": "\n" + "\n".join(sections)})


def test_the_document_says_what_the_program_says() -> None:
    assert DOCUMENT.read_text() == renewed(), "python -m tests.cli.test_help makes it anew"


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


PAGES = {f"{name}.{section}": text for name, section, text in pages()}


def test_each_command_and_topic_has_a_manual_page() -> None:
    def paths(group: click.Command, path: str) -> list[str]:
        found = [path]
        if isinstance(group, click.Group):
            context = click.Context(group)
            for name in group.list_commands(context):
                one = group.get_command(context, name)
                assert one is not None
                found += paths(one, f"{path}-{name}")
        return found

    wanted = {f"{path}.1" for path in paths(command, "dlog")}
    assert set(PAGES) == wanted | {f"dlog-{topic}.7" for topic in TOPICS}


def test_a_manual_page_has_what_the_help_has() -> None:
    page = PAGES["dlog-log-truncate.1"]

    assert page.startswith('.TH "DLOG\\-LOG\\-TRUNCATE" "1"')
    for part in ("NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "OPTIONS", "SEE ALSO"):
        assert f".SH {part}\n" in page
    assert "dlog log truncate orders \\-\\-to 12.0.0\n" in page
    assert "\\-\\-up\\-to\\-subscriber POSITION" in page
    assert "\\fBdlog\\-log\\-truncate\\fR(1)" in PAGES["dlog-log.1"]


def test_what_a_manual_page_has_to_be_copied_fits_80_columns() -> None:
    """man does not break such lines: the terminal would, within words. Remarks are comments of a shell."""
    wide = [
        (name, line)
        for name, page in PAGES.items()
        for block in page.split(".nf\n")[1:]
        for line in block.partition(".fi\n")[0].splitlines()
        if len(line.replace("\\-", "-").replace("\\e", "\\")) > ROOM
    ]

    assert wide == []
    assert "# see it work: write, kill a bookie, read back\n" in PAGES["dlog.1"]


def test_no_line_of_a_text_is_taken_for_a_request() -> None:
    """A line that begins with a dot or a quote would vanish, and a bare backslash eat what comes after it."""
    known = {"TH", "SH", "PP", "RS", "RE", "nf", "fi", "TP", "B"}
    for name, page in PAGES.items():
        for line in page.splitlines():
            assert not line.startswith("'"), (name, line)
            assert not line.startswith(".") or line[1:].split()[0] in known, (name, line)
    assert " \\e\n" in PAGES["dlog-contexts.7"]
    assert list(_paragraphs(".RE and\n'so on'")) == [".PP", "\\&.RE and", "\\&'so on'"]


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff here")
def test_groff_prints_all_of_them_without_a_word() -> None:
    whole = "".join(PAGES.values())
    done = subprocess.run(
        ["groff", "-man", "-k", "-Tutf8", "-ww", "-P-c"],
        input=whole.encode(),
        capture_output=True,
        timeout=60,
        check=True,
    )

    assert done.stderr == b""
    shown = done.stdout.decode()
    assert "--from-txid 1700000000000" in shown.replace("\u2010", "-").replace("\u2212", "-")


def test_pages_are_written_where_man_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["man", str(tmp_path / "share" / "man")]) == 0

    assert f"{len(PAGES)} pages" in capsys.readouterr().err
    found = {path.name for path in (tmp_path / "share" / "man").rglob("*") if path.is_file()}
    assert found == set(PAGES)
    if shutil.which("manpath") is not None:
        (tmp_path / "bin").mkdir()
        where = subprocess.run(
            ["manpath", "-q"],
            env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
            capture_output=True,
            timeout=20,
            text=True,
        )
        assert str(tmp_path / "share" / "man") in where.stdout.strip().split(":")


@pytest.mark.skipif(shutil.which("manpath") is None, reason="no manpath here")
def test_where_man_does_not_look_it_is_told_where_the_pages_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It looks beside what is on the PATH; `man dlog` would say that there is none."""
    monkeypatch.delenv("MANPATH", raising=False)
    elsewhere, beside = tmp_path / "pages", tmp_path / "share" / "man"
    assert run(["man", str(elsewhere)]) == 0
    assert f"man -M {elsewhere} dlog" in " ".join(capsys.readouterr().err.split())

    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert run(["man", str(beside)]) == 0
    said = capsys.readouterr().err
    assert "-M" not in said
    assert "man dlog-log-read" in said


def test_where_pages_cannot_be_written_another_place_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "man1").write_text("a file")

    assert run(["man", str(tmp_path)]) == 2

    assert "name another place: dlog man ~/.local/share/man" in capsys.readouterr().err


if __name__ == "__main__":
    DOCUMENT.write_text(renewed())


def test_help_of_a_command_says_of_itself_what_the_command_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`dlog help log read` knew no ``-h``."""
    run(["log", "read", "--help"])
    asked = capsys.readouterr().out
    run(["help", "log", "read"])

    assert capsys.readouterr().out == asked
