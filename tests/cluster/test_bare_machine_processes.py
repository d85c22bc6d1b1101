"""Nodes and clients without a writable temporary directory, a user's entry or HOME, as in containers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from distributedlog.cluster.local.child_processes import environment
from tests.runtime.bare_machine import bare

pytestmark = pytest.mark.processes

PROGRAM = f"""
import json, os, subprocess, sys
place, dlog = sys.argv[1], [{sys.executable!r}, "-m", "distributedlog.cli.main"]
def run(*arguments, **variables):
    done = subprocess.run([*dlog, *arguments], capture_output=True, text=True, timeout=60,
                          env=dict(os.environ, **variables))
    return [done.returncode, done.stderr]
uri = {{"DLOG_URI": "distributedlog://127.0.0.1:25311/ns"}}
serve = [*dlog, "serve"]
node = subprocess.Popen([*serve, "metadata", "--metadata", "127.0.0.1:25311", "--data", place + "/m",
                         "--insecure"], stdout=subprocess.PIPE)
ready = bool(node.stdout.readline())
bookie = subprocess.Popen([*serve, "bookie", "--metadata", "127.0.0.1:25311", "--data", place + "/b",
                           "--insecure", "--listen", "127.0.0.1:25312"], stdout=subprocess.PIPE)
found = {{
    "metadata": ready,
    "bookie": bool(bookie.stdout.readline()),
    "client": run("-q", "log", "list", **uri),
    "contexts": run("context", "list"),
    "no URI": run("log", "list"),
    "credentials": run("log", "list", "--credentials", "file:~/me", **uri),
    "local": run("local", "--data", place + "/c"),
    "local temporary": run("local", XDG_RUNTIME_DIR=place),
}}
for process in (bookie, node):
    process.terminate()
    process.wait()
print(json.dumps(found))
"""


def test_nodes_start_and_commands_name_what_they_lack(tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "only")]
    paths = f"PYTHONPATH={environment()['PYTHONPATH']}"
    done = subprocess.run(
        bare(tmp_path / "only", [paths, *command]), capture_output=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)

    assert found["metadata"]
    assert found["bookie"]
    assert found["client"][0] == 0
    for name, missing in (
        ("contexts", "HOME"),
        ("no URI", "HOME"),
        ("credentials", "HOME"),
        ("local", "XDG_RUNTIME_DIR"),
        ("local temporary", "TMPDIR"),
    ):
        code, said = found[name]
        assert (code, missing in said, said.count("\n")) == (2, True, 1), (name, said)
        assert "InvalidRequest" in said
