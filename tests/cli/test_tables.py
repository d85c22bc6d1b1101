"""Tables fit the terminal they are shown on, and lose nothing by it."""

import shlex
from collections.abc import Iterator

import click
import pytest

from distributedlog.cli import main
from distributedlog.cli.framework.options import CliCommand, Settings, fit_examples
from distributedlog.cli.framework.output import layout_table, optional_id_column, table
from distributedlog.cli.logs.log import _print_log
from distributedlog.cli.server import machine_check as check
from distributedlog.cli.server.local_demo import TEXT_COLUMN, _DemoSteps
from distributedlog.testing.bench.measure.interpreter_info import Build

BOOKIES = [
    ["name", "id", "state", "address", "ledgers", "missing", "used", "free", "rack"],
    ["b1", "7b0c1a52-3c1d-4f", "up", "127.0.0.1:41811", "1200", "-", "64.0 MiB", "1.2 TiB", "-"],
    ["b2", "2f6a9c11-90aa-4e", "read-only", "127.0.0.1:41812", "9", "-", "0 B", "3.0 GiB", "-"],
]


def test_where_there_is_room_a_row_is_a_line() -> None:
    for width in (None, 200):
        lines = layout_table(BOOKIES, width)

        assert len(lines) == 3
        assert lines[0].split() == BOOKIES[0]
        at = lines[0].index("address")
        assert all(line[at:].startswith(row[3]) for line, row in zip(lines, BOOKIES, strict=True))


@pytest.mark.parametrize("width", [80, 60, 40, 20])
def test_a_narrow_terminal_breaks_no_cell_and_loses_none(width: int) -> None:
    lines = layout_table(BOOKIES, width)

    assert max(map(len, lines)) <= max(width, 20)
    shown = "\n".join(lines)
    for row in BOOKIES[1:]:
        assert all(cell in shown for cell in row if cell != "-")
    assert "missing" not in shown  # says nothing of anybody
    assert "rack" not in shown
    heads = lines[: len(lines) // 3]
    assert [len(line) - len(line.lstrip()) for line in heads] == [0] + [4] * (len(heads) - 1)


def test_a_sentence_in_the_last_column_is_broken_between_words() -> None:
    why = "the disk is slow, or shared: nothing is acknowledged faster than a sync of its journal"
    texts = [["option", "value", "reason"], ["sync_s", "5", why], ["x", "-", "it is short"]]

    lines = layout_table(texts, 50)

    assert max(map(len, lines)) <= 50
    at = lines[0].index("reason")
    assert " ".join(line[at:] for line in lines[1:-1]) == why
    assert lines[-1].split("  ")[0] == "x"


def test_a_remark_is_broken_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`dlog bench` warned of the interpreter in a line that terminals of 80 columns cut within a word."""
    plain = Build("CPython 3.11", pgo=False, lto=False, debug=False, free_threaded=False, jit=None)
    advice = plain.advice()
    assert advice is not None
    monkeypatch.setenv("COLUMNS", "80")
    Settings().note(f"warning: {advice}\n  second")
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines[:-1]) == f"warning: {advice}"
    assert lines[-1] == "  second"

    monkeypatch.delenv("COLUMNS")
    Settings().note(advice)
    assert capsys.readouterr().err == f"{advice}\n"


def test_a_cell_that_is_wider_than_the_terminal_stays_whole() -> None:
    name = "a" * 100

    assert layout_table([["name", "n"], [name, "1"]], 80)[2] == name


def test_ids_go_where_names_do_and_a_row_is_a_line_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`dlog bookies`, `dlog proxy list` and `dlog metadata show` took two lines for 32 letters of an id."""
    monkeypatch.setenv("COLUMNS", "80")
    rows = [[cells[0], "0" * 32, *cells[2:]] for cells in BOOKIES[1:]]
    table(BOOKIES[0], rows, optional_columns=optional_id_column([row[0] for row in rows]))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "0" * 32 not in lines[1]

    twins = [["b1", *row[1:]] for row in rows]
    table(BOOKIES[0], twins, optional_columns=optional_id_column([row[0] for row in twins]))
    assert capsys.readouterr().out.count("0" * 32) == 2, "a name does not say which"


def test_what_goes_to_no_terminal_is_a_line_a_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table(BOOKIES[0], BOOKIES[1:])
    wide = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    table(BOOKIES[0], BOOKIES[1:])

    assert len(wide.splitlines()) == 3
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


SEGMENT = {
    "segment": 1234, "ledger": 104_857, "state": "closed", "records": 12_345_678,
    "bytes": 1_073_741_823, "first_txid": 1_700_000_000_000, "last_txid": 1_700_000_999_999,
    "last_dlsn": "1234.56789.255",
}  # fmt: skip
LOG = {
    "name": "orders", "sealed": False, "records": 12_345_678, "bytes": 10_737_418_230,
    "first_dlsn": "1.0.0", "last_dlsn": "1234.56789.255", "truncated_to": None, "truncated_bytes": 0,
    "clock_behind_s": 0, "owner": None, "segments_left_out": 0, "txid_policy": "auto",
    "segments": [SEGMENT, SEGMENT | {"state": "in progress"}],
}  # fmt: skip


def test_a_segment_of_a_log_is_one_line_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took two: txids of 13 digits go first, the larger one before the smaller."""
    shown = {}
    for width in ("", "120", "90", "80"):
        monkeypatch.setenv("COLUMNS", width)
        if not width:
            monkeypatch.delenv("COLUMNS")
        _print_log(LOG)
        text = capsys.readouterr().out
        shown[width] = text.partition("\n\n")[2].splitlines()
        assert len(shown[width]) == 3
        assert max(map(len, text.splitlines())) <= int(width or 1000)
        for cell in ("1234", "104857", "closed", "12345678", "1024.0 MiB", "1234.56789.255"):
            assert cell in shown[width][1]
        assert "1024.0 MiB" not in shown[width][2], "nobody has counted them yet"
        assert "10.0 GiB, and in the segment in progress\n" in text

    assert shown[""] == shown["120"]
    assert shown[""][0].split()[5:7] == ["first_txid", "last_txid"]
    assert "last_txid" not in shown["90"][0]
    assert "first_txid" in shown["90"][0]
    assert "txid" not in shown["80"][0]


def test_what_a_machine_lacks_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build = "CPython 3.11.7, without PGO, without LTO"
    then = (
        "this Python is slow: build with --enable-optimizations --with-lto "
        + "or take another " * 5
    )
    slow = check.MachineCheckResult("python", check.WARN, build, "3.11 or newer, with PGO", then)
    monkeypatch.setattr(check, "check_python", lambda: slow)
    monkeypatch.setenv("COLUMNS", "80")

    assert main.run(["check"]) == 0

    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert "3.11 or newer, with PGO" in words
    assert then.strip() in words
    assert words.startswith("check required found warn python 3.11")
    rows = [line for line in text.splitlines() if line.startswith(("pass", "warn", "FAIL"))]
    assert all(len(line.split("  ")) > 3 for line in rows), (
        "check, required and found are in one row"
    )


def _commands(group: click.Group, path: list[str]) -> Iterator[tuple[list[str], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield [*path, name], found
        if isinstance(found, click.Group):
            yield from _commands(found, [*path, name])


EXAMPLES = [
    (path, one.examples)
    for path, one in [(["dlog"], main.command), *_commands(main.command, ["dlog"])]
    if isinstance(one, CliCommand) and one.examples
]


@pytest.mark.parametrize(
    ("path", "examples"), EXAMPLES, ids=[" ".join(path) for path, _ in EXAMPLES]
)
def test_examples_of_the_help_fit_a_terminal_and_can_be_copied(
    path: list[str], examples: str
) -> None:
    written = [line.strip() for line in examples.strip().splitlines()]

    lines = fit_examples(written, 76)

    assert max(map(len, lines)) <= 76
    whole = "\n".join(line for line in lines if not line.startswith("#")).replace(" \\\n", " ")
    assert [shlex.split(line.partition("   ")[0]) for line in written] == [
        shlex.split(line, comments=True) for line in whole.splitlines()
    ]


def test_what_the_demonstration_says_goes_on_below_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "3 metadata nodes and 3 bookies, bookie2 in its own process, on /tmp/dlog-2tjw_524"
    for columns in (80, None):
        if columns is None:
            monkeypatch.delenv("COLUMNS")
        else:
            monkeypatch.setenv("COLUMNS", str(columns))
        with _DemoSteps(Settings()).step("start") as note:
            note(said)

    first, second, alone = capsys.readouterr().out.splitlines()
    assert first.startswith("start ")
    assert len(first) <= 80
    assert second.startswith(" " * TEXT_COLUMN)
    assert f"{first[TEXT_COLUMN:]} {second.strip()}" == said
    assert alone.endswith(f" s  {said}")
