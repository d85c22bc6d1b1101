"""A cluster in memory that `dlog local` runs, and `dlog` asked about it."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from distributedlog.cluster.local.child_processes import environment
from tests import preloaded
from tests.cluster.story import dlog
from tests.preloaded import Started


class Cluster:
    """Where it is, and `dlog` on it."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def run(
        self, *arguments: str, stdin: bytes | None = None, uri: str | None = None
    ) -> "subprocess.CompletedProcess[bytes]":
        return preloaded.run(
            dlog(*arguments),
            input=stdin if stdin is not None else b"",
            timeout=180,
            env={**environment(), "DLOG_URI": uri or self.uri},
        )

    def start(self, *arguments: str) -> Started:
        """Without waiting for its end; stdin is a pipe."""
        return preloaded.popen(
            dlog(*arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**environment(), "DLOG_URI": self.uri},
        )

    def ok(self, *arguments: str, stdin: bytes | None = None) -> bytes:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def fails(self, code: int, *arguments: str, stdin: bytes | None = None) -> str:
        """The error's one line."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == code, (arguments, done.returncode, done.stderr)
        errors = [
            line for line in done.stderr.decode().splitlines() if line.startswith("dlog: error:")
        ]
        assert len(errors) == 1, done.stderr
        assert b"Traceback" not in done.stderr
        return errors[0]


@contextmanager
def running(bookies: int = 3) -> Iterator[Cluster]:
    """Until the block ends; then it ends as it is told to."""
    process = preloaded.popen(
        dlog("local", "--json", "--memory", "--metadata-nodes", "1", "--bookies", str(bookies)),
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    yield Cluster(json.loads(process.stdout.readline())["uri"])
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0
    process.stdout.close()
