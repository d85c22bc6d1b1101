"""`dlog console --open`: what the arguments of the browser show to other users of the machine (processes)."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from distributedlog.cluster.local.child_processes import environment

pytestmark = pytest.mark.processes


def test_arguments_of_the_browser_have_no_token(tmp_path: Path) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    os.mkfifo(seen)
    browser.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {seen}\n')
    browser.chmod(0o755)
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    command = (sys.executable, "-m", "distributedlog.cli.main", "console", "--open")
    variables = {"BROWSER": f"{browser} %s", "XDG_RUNTIME_DIR": str(private)}
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--uri", "distributedlog://127.0.0.1:1/n"],
        env=environment() | variables,
        stdout=subprocess.PIPE,
        text=True,
    ) as console:
        assert console.stdout is not None
        link = console.stdout.readline().split()[1]
        (argument,) = seen.read_text().splitlines()
        token = link.partition("#t=")[2]
        file = Path(urlsplit(argument).path)
        try:
            assert len(token) > 20
            assert token not in argument
            assert argument.startswith("file://")
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert f"url={link}" in file.read_text()
        finally:
            console.send_signal(signal.SIGTERM)
        assert console.wait(30) == 0

    assert not file.exists()
