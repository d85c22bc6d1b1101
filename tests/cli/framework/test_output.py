"""What commands say: to terminals that others' names must not move, and to who reads no more."""

import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from distributedlog.cli.framework import named_clusters
from distributedlog.cli.framework.errors import print_notice, report
from distributedlog.cli.framework.options import Settings
from distributedlog.cli.framework.output import (
    GREEN,
    RED,
    RESET,
    RateEstimate,
    State,
    prose,
    table,
    visible,
)
from distributedlog.cli.framework.progress import ProgressLine
from distributedlog.cli.logs.record_input import StoredSummary
from distributedlog.cli.main import run
from distributedlog.cluster.declarations.config import parse_address
from distributedlog.runtime.interfaces.errors import InvalidRequest, LogNotFound

HOSTILE = "\x1b]0;pwned\x07\x1b[2J\u202eb1\n\r\x9b31m"


def test_names_of_others_move_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """H265: a label, a reason or an owner is what a peer says."""
    table(("name", "why"), [[HOSTILE, HOSTILE]])
    print_notice(HOSTILE)
    Settings().note(f"{HOSTILE}\nsecond line")
    report(LogNotFound(HOSTILE), verbose=0)
    shown = capsys.readouterr()

    for text in (shown.out, shown.err):
        assert all(line.isprintable() for line in text.split("\n"))
        assert "pwned" in text
    assert visible("größe 5 µs") == "größe 5 µs"
    assert visible("a\x1bb") == "a\\x1bb"


@pytest.fixture
def nobody_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    reads, writes = os.pipe()
    os.close(reads)
    with io.TextIOWrapper(io.FileIO(writes, "w"), write_through=True) as broken:
        monkeypatch.setattr(sys, "stderr", broken)
        yield
        monkeypatch.undo()


def test_who_reads_no_remarks_ends_no_command(nobody_reads: None) -> None:
    """`dlog log write … 2>&1 | head -1` ended half way, with exit code 0."""
    ProgressLine(Settings()).show(StoredSummary().progress_text())
    print_notice("x")
    Settings().note("x")

    assert report(LogNotFound("x"), verbose=0) == 3
    assert report(click.UsageError("x"), verbose=0) == 2
    assert report(KeyboardInterrupt(), verbose=0) == 130


@pytest.mark.parametrize("name", ["", "-", "a\x7fb", "a\nb", "\udcff", "x" * 65])
def test_a_context_has_a_name_that_can_be_stored_and_typed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control character made the file unreadable, and with it each command that looks there."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(click.UsageError, match="invalid context name"):
        named_clusters.check_name(name)


def test_any_name_that_is_taken_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    names = [named_clusters.check_name(name) for name in ('a"b', "a\\b", "a b", "ü", "x" * 64)]
    contexts = {"current": names[0], "previous": "", "contexts": dict.fromkeys(names, "u")}

    named_clusters.store_contexts(contexts)

    assert list(named_clusters.load_contexts()["contexts"]) == names


def test_contexts_are_stored_in_the_users_configuration_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the XDG specification has it, and as the documents say."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert named_clusters.contexts_file() == tmp_path / ".config" / "dlog" / "contexts.toml"


@pytest.mark.parametrize(
    "text", ["[contexts.a]\nuri = 'x'\n", "contexts = {a = 5}\n", "credentials = {a = [1]}\n"]
)
def test_a_file_of_contexts_of_another_form_is_named_and_stays(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next "context set" wrote what nobody could read any more."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    named_clusters.contexts_file().parent.mkdir()
    named_clusters.contexts_file().write_text(text)

    assert run(["context", "set", "b", "distributedlog://h:1/x"]) == 2

    assert named_clusters.contexts_file().read_text() == text


@pytest.mark.parametrize("port", ["9" * 5000, "99999", "१२", "-1", ""])
def test_a_port_that_is_none_is_a_wrong_address(port: str) -> None:
    """Python refuses to read a number of 5,000 digits: that was a defect of dlog."""
    with pytest.raises(InvalidRequest, match="HOST:PORT"):
        parse_address(f"h:{port}", "--listen")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status", "--timeout", "nan"], "above 315,360,000 is not accepted"),
        (["--timeout", "inf", "status"], "above 315,360,000 is not accepted"),
        (["--timeout", "1e306", "status"], "above 315,360,000 is not accepted"),
        (["repair", "--throttle", "1e400"], "above 315,360,000 is not accepted"),
        (["status", "--watch", "nan"], "above 315,360,000 is not accepted"),
        (["log", "read", "l", "--limit", "9" * 30], "above 9,223,372,036,854,775,807"),
        (["log", "config", "x", "set", "retention_s=nan"], "'nan' is not a number"),
        (["log", "create", "\udcff"], "not UTF-8"),
        (["user", "remove", "\udcff", "--force"], "not UTF-8"),
        (["log", "config", "x", "set", "a=\udcff"], "not UTF-8"),
        (["metadata", "backup", "a\nb"], "invalid file name"),
        (["metadata", "backup", ".hidden"], "invalid file name"),
        (["config", "check", "BINARY"], "not UTF-8"),
        (["chaos", "run", "BINARY"], "not UTF-8"),
        (["serve", "gateway", "--token-file", "BINARY"], "not UTF-8"),
    ],
    ids=str,
)
def test_what_nobody_can_mean_is_wrong_usage(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each was "a defect of dlog": found by what a thousand calls were given."""
    (tmp_path / "BINARY").write_bytes(b"\xae\xff\x00")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DLOG_URI", "distributedlog://127.0.0.1:1/x")

    code = run(arguments)

    shown = capsys.readouterr().err
    assert code in (2, 5), shown
    assert said in shown
    assert "defect" not in shown


def test_how_long_the_rest_takes_is_told_from_what_has_gone() -> None:
    pace = RateEstimate()
    assert pace.describe(100.0, 200) == ""
    assert pace.describe(100.0, 190) == ""
    assert pace.describe(104.0, 150) == ", 12.5 a second, about 12 s more"
    assert pace.describe(108.0, 150) == ", 6.2 a second, about 24 s more"
    assert pace.describe(109.0, 300) == "", "others came: what was before says nothing"
    assert pace.describe(119.0, 290) == ", 1.0 a second, about 290 s more"
    assert pace.describe(129.0, 0).endswith("about 0 s more")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _printed(monkeypatch: pytest.MonkeyPatch, stdout: io.StringIO) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", stdout)
    table(("name", "state", "ledgers"), [["b1", State("up"), 7], ["b2", State("read-only"), 12]])
    prose("  - at risk: ledger 7 has one copy, at risk", state="at risk")
    monkeypatch.undo()
    return stdout.getvalue()


def test_a_terminal_shows_states_in_color_and_the_same_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    plain, colored = _printed(monkeypatch, io.StringIO()), _printed(monkeypatch, _Terminal())

    assert "\033" not in plain
    assert plain.splitlines()[1] == "b1    up         7"
    assert f"b1    {GREEN}up{RESET}         7\n" in colored
    assert f"  - {RED}at risk{RESET}: ledger 7 has one copy, at risk\n" in colored
    assert re.sub(r"\033\[\d+m", "", colored) == plain


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_color_is_switched_off_by_the_environment(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    assert "\033" not in _printed(monkeypatch, _Terminal())
