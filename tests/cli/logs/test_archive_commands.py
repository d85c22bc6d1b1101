"""`dlog log export` and `import` where Spark cannot run: one line that says what to install."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from distributedlog.cli.logs import archive_commands as archives
from distributedlog.cli.main import run
from distributedlog.cluster.local.child_processes import environment

URI = "distributedlog://127.0.0.1:1/ns"
COMMANDS = [
    ["log", "export", "orders", "--output", "x", "--uri", URI],
    ["log", "import", "x", "--log", "orders", "--uri", URI],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=["export", "import"])
def test_without_spark_or_java_it_says_what_to_install(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is asked of the cluster, which is not there."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert run(arguments) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "dlog: error: pyspark is not installed, and this command requires Spark: "
        "pip install '.[spark]', and a Java 17\n"
    )

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: sys)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert run(arguments) == 1
    assert capsys.readouterr().err.startswith("dlog: error: Java not found")


def test_what_is_no_archive_is_said_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(archives, "check_spark", lambda: None)

    assert run(["log", "import", str(tmp_path), "--log", "orders", "--uri", URI]) == 2
    assert "its export did not finish" in capsys.readouterr().err
    assert run(["log", "import", str(tmp_path), "--log", "a\nb", "--uri", URI]) == 2
    assert "InvalidLogName" in capsys.readouterr().err


def test_progress_is_shown_while_the_messages_of_children_are_suppressed() -> None:
    """Spark takes ten seconds to start. The progress line was suppressed together with its messages."""
    program = """
import subprocess, sys
from distributedlog.cli.framework.errors import print_stderr
from distributedlog.cli.logs.archive_commands import _silence_children

with _silence_children(keep_stderr=False):
    print_stderr("progress\\\\n")
    subprocess.run(["sh", "-c", "echo a message of a child >&2"], check=True)
print_stderr("done\\\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", program.replace("\\\\n", "\\n")],
        capture_output=True,
        env=environment(),
        check=True,
        timeout=60,
    )
    assert done.stderr == b"progress\ndone\n"
