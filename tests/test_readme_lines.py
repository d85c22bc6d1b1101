"""The lines that docs/start/quickstart.md has for two terminals, typed unchanged."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distributedlog.cluster.local.child_processes import environment

pytestmark = pytest.mark.processes

PAGE = Path(__file__).resolve().parent.parent / "docs/start/quickstart.md"
ACTIVATE = ". .venv/bin/activate\n"
START_S = 60.0


def terminals() -> list[str]:
    """Return the lines of each terminal, without the one that activates the environment."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    return [block.removeprefix(ACTIVATE) for block in blocks if block.startswith(ACTIVATE)]


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment in which `dlog` is the tree's, and contexts are nobody's."""
    commands = tmp_path / "bin"
    commands.mkdir()
    script = commands / "dlog"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m distributedlog.cli.main "$@"\n')
    script.chmod(0o755)
    kept = {name: value for name, value in environment().items() if not name.startswith("DLOG_")}
    path = f"{commands}{os.pathsep}{kept['PATH']}"
    return {**kept, "PATH": path, "XDG_CONFIG_HOME": str(tmp_path / "config")}


@contextmanager
def typed(lines: str, home: dict[str, str], cwd: Path, until: str) -> Iterator[str]:
    """Lines on a terminal, until it has shown something; ended by Ctrl-C."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["bash", "-c", f"{lines.rstrip()}"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=home,
        cwd=cwd,
        start_new_session=True,
    ) as shell:
        os.close(theirs)
        shown, end = b"", time.monotonic() + START_S
        while until.encode() not in shown and time.monotonic() < end:
            if select.select([ours], [], [], 1.0)[0]:
                shown += os.read(ours, 65536)
        try:
            assert until.encode() in shown, shown.decode()
            yield shown.decode()
        finally:
            os.killpg(shell.pid, signal.SIGINT)
            shell.wait(30)
            os.close(ours)


def test_the_two_terminals_of_the_quickstart(home: dict[str, str], tmp_path: Path) -> None:
    first, second = terminals()
    measured = second.replace("--seconds 10", "--seconds 1")
    assert measured != second

    with typed(first, home, tmp_path, "bench write --seconds 5") as shown:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", measured],
            env=home,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )

    assert "http://127.0.0.1:" in shown
    assert done.returncode == 0, done
    assert done.stdout.startswith("100000\n")
    assert "\nrecords    100,000 " in done.stdout
    assert "\nhealthy\n" in done.stdout
    assert re.search(r"[\d,]+ records/s, [\d.]+ [KM]iB/s", done.stdout)
