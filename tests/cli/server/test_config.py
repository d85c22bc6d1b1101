"""What can be set of a node: shown, written into a file, read back, given by flags; and contexts' names."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.cli.main import command, run
from distributedlog.cli.server.config import KINDS, LINE_CHARS, PARTS, config_file_text
from distributedlog.cli.server.node_settings import (
    BOOKIE_NODE_OPTIONS,
    STORE_OPTIONS,
    check_options,
    parse_changes,
    read_file,
    split_settings,
)
from distributedlog.runtime.declarations.options import parse_value, with_overrides
from distributedlog.runtime.interfaces.errors import InvalidRequest


def dlog(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(command, arguments, env=variables)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64MiB", 64 * 1024 * 1024),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("10 m", 600),
        ("7", 7),
        ("0.5", 0.5),
        ("-1", -1),
        ("true", True),
        ("64 MB", "64 MB"),
        ("MiB", "MiB"),
        ("1e400", float("inf")),
        ("", ""),
    ],
)
def test_what_is_typed(text: str, value: object) -> None:
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_a_file_as_it_is_written_is_right_and_changes_nothing(tmp_path: Path) -> None:
    for kind in KINDS:
        file = tmp_path / f"{kind}.toml"
        file.write_text(config_file_text(kind))
        done = dlog("config", "check", str(file))
        assert done.exit_code == 0, done.output
        assert read_file(file, kind)[1] == {}


def test_every_setting_of_a_written_file_may_be_uncommented(tmp_path: Path) -> None:
    """And is the default then: what stands behind the hash is what the code has."""
    names = [*BOOKIE_NODE_OPTIONS, *STORE_OPTIONS]
    lines = [
        line[2:] if line.startswith("# ") and line[2:].split(" ")[0] in names else line
        for line in config_file_text("bookie").splitlines()
    ]
    file = tmp_path / "all.toml"
    file.write_text("\n".join(lines))
    node, store = split_settings(read_file(file, "bookie")[1], "x")
    assert node == {name: one.default for name, one in BOOKIE_NODE_OPTIONS.items()}
    assert with_overrides(BookieOptions(), store) == BookieOptions()
    assert len(node) + len(store) == len(names)


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_file_without_its_hashes_is_one_still_and_fits_80_columns(
    kind: str, tmp_path: Path
) -> None:
    """Who takes a hash away has no bad file: what is said beside a value is a comment of its own."""
    lines = config_file_text(kind).splitlines()
    shown = [re.sub(r"^# (?=[a-z_-]+ = )", "", line) for line in lines]
    file = tmp_path / f"{kind}.toml"
    file.write_text("\n".join(shown))

    done = dlog("config", "check", str(file))

    assert done.exit_code == 0, (done.output, done.exception)
    assert shown != lines
    assert [line for line in lines if len(line) > LINE_CHARS] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[stroe]\n", "unknown table [stroe]"),
        ("[bookie]\nlost_after = 3\n", "[bookie] has no key lost_after"),
        ("[bookie]\nlost_after_s = -1\n", "lost_after_s"),
        ("[bookie]\nrepair_bytes_per_s = '1 parsec'\n", "repair_bytes_per_s"),
        ("[bookie]\n[store]\nrack = 'a'\n", "rack"),
        ("[bookie]\nmetadata = 'h1'\n", "HOST:PORT"),
        ("[metadata]\nlost_after_s = 3\n", "[metadata] has no key lost_after_s"),
        ("x = 1\n", "outside of a table"),
    ],
)
def test_a_wrong_file_says_where_and_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)
    assert run(["config", "check", str(file)]) in (2, 5)
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("part", "text", "said"),
    [
        ("write-proxy", "data = 'd'", r"\[write-proxy\] has no key data"),
        ("write-proxy", "label = 'a=b'", r"\[write-proxy\] has no key label"),
        ("read-proxy", "logs_max = 0", "logs_max"),
        ("read-proxy", "lock_lease_s = 'soon'", "lock_lease_s"),
        ("gateway", "metadata = 'h1:1'", r"\[gateway\] has no key metadata"),
        ("gateway", "body_s = 'soon'", "body_s"),
        ("metadata", "rack = 'a'", r"\[metadata\] has no key rack"),
        (
            "bookie",
            "[store]\nwait_ms_max = 9",
            "'wait_ms_max' was removed: the value is always 60 s",
        ),
        ("read-proxy", "tail_wait_s = 0.5", "'tail_wait_s' was removed: the value is always 1 s"),
        ("gateway", "reader_bytes = '1MiB'", "'reader_bytes' was removed: the value is .* Delete"),
    ],
)
def test_a_table_has_what_its_kind_of_node_takes(
    tmp_path: Path, part: str, text: str, said: str
) -> None:
    file = tmp_path / "node.toml"
    file.write_text(f"[{part}]\n{text}\n")
    with pytest.raises(InvalidRequest, match=said):
        read_file(file, part)


def test_a_proxys_file_sets_what_its_flags_do(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        "[write-proxy]\nmetadata = 'h1:4181'\nlisten = '0.0.0.0:4183'\nlogs_max = 7\n"
        "idle_s = '10m'\nsegment_bytes_max = '64MiB'\nack_quorum = 1\n"
    )
    flags, options = read_file(file, "write-proxy")
    assert flags == {"metadata": "h1:4181", "listen": "0.0.0.0:4183"}
    assert options == {
        "logs_max": 7,
        "idle_s": 600.0,
        "segment_bytes_max": 64 << 20,
        "ack_quorum": 1,
    }
    assert check_options("write-proxy", parse_changes(["logs_max=8"]), "--set") == {"logs_max": 8}
    with pytest.raises(InvalidRequest, match="--set: unknown option 'log_max'"):
        check_options("read-proxy", parse_changes(["log_max=8"]), "--set")


def test_flags_set_any_option_of_a_bookie() -> None:
    node, store = split_settings(
        parse_changes(["lost_after_s=10m", "journal_file_bytes=64MiB", "repair=false"]), "--set"
    )
    assert node == {"lost_after_s": 600.0, "repair": False}
    assert store == {"journal_file_bytes": 64 * 1024 * 1024}
    for wrong in (
        ["lost_after_s"],
        ["a=1"],
        ["lost_after_s=1", "lost_after_s=2"],
        ["lost_after_s=soon"],
        ["lost_after_s=64MiB"],
        ["journal_file_bytes=10m"],
    ):
        with pytest.raises(InvalidRequest, match="--set"):
            split_settings(parse_changes(wrong), "--set")


def test_settings_are_shown_with_where_they_are_from(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[bookie]\nlost_after_s = '10m'\n")
    done = dlog("config", "show", "bookie", "--file", str(file), "--changed", "--json")
    [found] = [json.loads(line) for line in done.stdout.splitlines()]
    assert (found["option"], found["value"], found["default"]) == ("lost_after_s", 600.0, 300.0)
    assert found["from"] == str(file)
    for part in PARTS:
        shown = dlog("config", "show", part)
        assert shown.exit_code == 0
        assert all(len(line) <= 80 for line in shown.stdout.splitlines())


def test_contexts_are_renamed_deleted_and_taken_back(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    for name in ("a", "b"):
        assert dlog("context", "set", name, f"distributedlog://{name}:1/ns", **home).exit_code == 0
    assert dlog("context", "use", "b", **home).exit_code == 0
    assert dlog("context", "use", "-", **home).exit_code == 0
    assert dlog("context", "show", **home).stdout == "distributedlog://a:1/ns\n"
    assert dlog("context", "rename", "a", "b", **home).exit_code != 0
    assert dlog("context", "rename", "a", "c", **home).exit_code == 0
    assert dlog("context", "show", **home).stdout == "distributedlog://a:1/ns\n"
    assert dlog("context", "delete", "c", **home).exit_code == 0
    assert dlog("context", "show", **home).exit_code != 0
    assert dlog("context", "use", "c", **home).exit_code != 0
    assert "b" in dlog("context", "list", **home).stdout


def test_shells_get_what_completes() -> None:
    for shell in ("zsh", "fish"):
        assert "_DLOG_COMPLETE" in dlog("completion", shell).stdout
    done = subprocess.run(
        [sys.executable, "-m", "distributedlog.cli.main"],
        env={"COMP_WORDS": "dlog log re", "COMP_CWORD": "2", "_DLOG_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "plain,rename" in done.stdout
