"""A bookie is drained while the cluster serves, and every record is still there (processes)."""

import json
import signal
import subprocess
from collections.abc import Iterator

import pytest

from distributedlog.cluster.processes import environment
from tests.cluster.story import dlog

pytestmark = pytest.mark.processes


@pytest.fixture
def uri() -> Iterator[str]:
    process = subprocess.Popen(
        dlog("local", "--memory", "--metadata-nodes", "1", "--bookies", "4"),
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    yield str(json.loads(process.stdout.readline())["uri"])
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0
    process.stdout.close()


def test_a_bookie_is_drained_and_nothing_is_missing(uri: str) -> None:
    def run(*arguments: str, stdin: bytes = b"") -> bytes:
        done = subprocess.run(
            dlog(*arguments),
            input=stdin,
            capture_output=True,
            timeout=60,
            env={**environment(), "DLOG_URI": uri},
            check=False,
        )
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    lines = b"".join(b"%d\n" % n for n in range(1000))
    for name in ("one", "two", "three"):  # of four bookies each log is on three
        run("log", "write", name, "--create", stdin=lines)
    bookies = [json.loads(line) for line in run("bookies", "--json").splitlines()]
    full = max(bookies, key=lambda one: int(one["ledgers"]))

    left = json.loads(
        run("decommission", full["label"], "--wait", "--json", "--timeout", "50").splitlines()[-1]
    )

    bookies = [json.loads(line) for line in run("bookies", "--json").splitlines()]
    assert [one["state"] for one in bookies if one["id"] == full["id"]] == ["leaving"]
    assert all(one["ledgers_missing"] == 0 for one in bookies)
    assert left["drained"]
    assert left["running"]
    assert left["bookie"] == full["id"]
    assert run("under-replicated") == b"every ledger has all its copies\n"
    for name in ("one", "two", "three"):
        assert run("log", "read", name) == lines
    run("decommission", full["id"], "--cancel")
