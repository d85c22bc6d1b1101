"""Where a command looks, on a live cluster: --uri before DLOG_URI before the chosen context."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributedlog.cluster.local.child_processes import environment
from tests import preloaded
from tests.cli.live import running
from tests.cluster.story import dlog

pytestmark = pytest.mark.processes


@pytest.fixture
def root() -> Iterator[str]:
    """The URI of a cluster, up to its namespace."""
    with running(bookies=1) as cluster:
        yield cluster.uri.rpartition("/")[0]


def test_the_place_is_the_flags_then_the_variables_then_the_contexts(
    root: str, tmp_path: Path
) -> None:
    """Flag, environment, context: a namespace each tells who was heard."""
    clean = {name: value for name, value in environment().items() if not name.startswith("DLOG_")}
    clean["XDG_CONFIG_HOME"] = str(tmp_path)

    def run(code: int, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[bytes]":
        done = preloaded.run(
            dlog(*arguments),
            timeout=60,
            env=clean | variables,
        )
        assert done.returncode == code, (arguments, done.stderr)
        return done

    assert b"dlog context set" in run(2, "log", "create", "a").stderr
    run(0, "context", "set", "here", f"{root}/context")
    run(0, "log", "create", "a")
    run(0, "log", "create", "b", DLOG_URI=f"{root}/variable")
    run(0, "log", "create", "c", "--uri", f"{root}/flag", DLOG_URI=f"{root}/variable")

    for namespace, name in (("context", b"a\n"), ("variable", b"b\n"), ("flag", b"c\n")):
        assert run(0, "log", "list", "--uri", f"{root}/{namespace}").stdout == name
    listed = run(0, "log", "list", DLOG_LOG_LIST_JSON="1", DLOG_LOG_LIST_URI=f"{root}/flag")
    assert json.loads(listed.stdout) == {"name": "c"}
    assert b"--force" in run(5, "log", "delete", "a").stderr
    for namespace in ("flag", "variable"):
        run(0, "log", "create", "same", "--uri", f"{root}/{namespace}")
    flag = ("--uri", f"{root}/flag")
    run(0, *flag, "log", "delete", "same", "--force", DLOG_URI=f"{root}/variable")
    assert run(0, "log", "list", *flag).stdout == b"c\n"
    assert run(0, *flag, "log", "list", DLOG_LOG_LIST_URI=f"{root}/variable").stdout == b"c\n"
    assert run(0, "log", "list", DLOG_URI=f"{root}/variable").stdout == b"b\nsame\n"
    assert (
        b"--uri is empty"
        in run(
            2, "--uri", "", "log", "delete", "same", "--force", DLOG_URI=f"{root}/variable"
        ).stderr
    )
    run(0, "log", "delete", "a", DLOG_LOG_DELETE_FORCE="1")
    assert run(0, "log", "list").stdout == b""
    assert sorted(os.listdir(tmp_path / "dlog")) == ["contexts.lock", "contexts.toml"]
