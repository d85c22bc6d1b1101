"""What is wrong is seen: how soon `dlog status` and the console name it, each with its reason.

    python -m tests.cluster.seen_story          needs root, for two file systems of its own; two minutes

Three metadata nodes and four bookies, with certificates. A bookie is killed; a drain waits; a start finds
data lost; a disk fills, and an index's disk; a scrub finds rot; a certificate is near its end, and ends; the
quorum is lost. Prints the seconds until both have named it, and fails where that takes more than three.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from distributedlog.cli.access import certificates
from tests.cluster.full_disk_story import SMALL, file_systems, fill
from tests.cluster.story import Cluster
from tests.cluster.test_damage_told import flip_pages
from tests.console.live import Browser
from tests.preloaded import Started

SEEN_S = 3.0
HANG_S = 120.0
CERTIFICATE_S = 70
"""From the story's beginning to the end of a bookie's certificate: less than a fifth of its life."""
RECORD = b"x" * 3000
RECORDS = 300
Say = Callable[[str], None]


class Looks:
    """What somebody who looks all the time has seen, and when."""

    def __init__(self, who: str, states: Iterator[list[str]]) -> None:
        self.who = who
        self._seen: list[tuple[float, list[str]]] = []
        self._news = threading.Condition()
        threading.Thread(target=self._run, args=(states,), daemon=True).start()

    def _run(self, states: Iterator[list[str]]) -> None:
        with contextlib.suppress(OSError, ValueError):  # it was ended
            for reasons in states:
                with self._news:
                    self._seen.append((time.monotonic(), reasons))
                    self._news.notify_all()

    def first(self, *words: str, since: float) -> tuple[float, str]:
        """When a reason with all these words was there first, from ``since`` on, and the reason."""

        def found() -> tuple[float, str] | None:
            for at, reasons in self._seen:
                for reason in reasons:
                    if at >= since and all(word in reason for word in words):
                        return at, reason
            return None

        with self._news:
            if not self._news.wait_for(lambda: found() is not None, HANG_S):
                last = self._seen[-1][1] if self._seen else []
                raise AssertionError(f"{self.who} never said {words}; it says {last}")
            seen = found()
            assert seen is not None
            return seen


def play(directory: Path, *, say: Say) -> dict[str, float]:
    """Play it; the seconds until each was named, by what it is."""
    directory.mkdir(parents=True, exist_ok=True)
    pki = directory / "pki"
    certificates.make_authority(pki / "ca", "seen")
    directory.joinpath("small.toml").write_text(SMALL)
    with contextlib.ExitStack() as stack:
        stack.enter_context(file_systems([directory / "bookie4", directory / "index2"]))
        cluster = stack.enter_context(Cluster.planned(directory, bookies=4))
        for node in cluster.plan.nodes:
            certificates.issue(pki / "ca", f"{node.kind}/{node.name}", pki / node.name)
            cluster.more[node.name] = ["--tls", str(pki / node.name)]
            if node.kind == "bookie":
                cluster.more[node.name] += ["--config", str(directory / "small.toml")]
        cluster.more["bookie2"] += ["--index-dir", str(directory / "index2")]
        certificates.issue(pki / "ca", "user/ops", pki / "ops")
        stack.enter_context(_credentials(f"file:{pki / 'ops'}"))
        short: Any = CERTIFICATE_S / 86_400
        certificates.issue(pki / "ca", "bookie/bookie3", pki / "bookie3", days=short)
        ends_at = time.monotonic() + CERTIFICATE_S
        begun = time.monotonic()
        cluster.start()
        return _steps(cluster, stack, begun, ends_at, say)


def _steps(
    cluster: Cluster,
    stack: contextlib.ExitStack,
    begun: float,
    ends_at: float,
    say: Say,
) -> dict[str, float]:
    looks = [_watch(cluster, stack), _console(cluster, stack)]
    took: dict[str, float] = {}

    def seen(
        what: str, *words: str, since: float, timed: bool = True, known_at: float = 0.0
    ) -> None:
        """Both have named it. ``timed``: it is known when it began, or that it has."""
        found = [one.first(*words, since=since) for one in looks]
        if timed:
            took[what] = max(0.0, max(at for at, _ in found) - max(since, known_at))
            say(f"{took[what]:5.1f} s  {what}: {found[0][1]}")
        else:
            say(f"         {what}: {found[0][1]}")

    seen(
        "a certificate that ends soon", "bookie3", "its certificate ends", since=begun, timed=False
    )
    lines = b"\n".join([RECORD] * RECORDS) + b"\n"
    _ok(cluster.run("log", "write", "kept", "--create", input=lines))
    writer = cluster.popen(
        "log", "write", "open", "--create", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    stack.callback(_end, writer)
    assert writer.stdin is not None
    writer.stdin.write(5 * lines)
    writer.stdin.flush()

    now = time.monotonic()
    cluster.kill("bookie1")
    seen("a dead bookie", "bookie1", "is offline", since=now)

    _ok(cluster.run("log", "write", "later", "--create", input=lines))  # on the three that are left
    now = time.monotonic()
    _ok(cluster.run("decommission", "bookie4"), 0, 6)
    seen(
        "a drain that waits", "bookie4", "is being decommissioned", "no bookie can take", since=now
    )
    _ok(cluster.run("decommission", "bookie4", "--cancel"))

    for path in _journals(cluster, "bookie1"):
        path.write_bytes(b"")
    cluster.start("bookie1")
    seen("limbo", "bookie1", "may have lost entries", since=time.monotonic())

    ballast = cluster.directory / "bookie4" / "ballast"
    now = time.monotonic()
    fill(ballast)
    seen("a full disk", "bookie4", "journal's disk", since=now)
    ballast.unlink()
    ballast = cluster.directory / "index2" / "ballast"
    now = time.monotonic()
    fill(ballast)
    seen("a read-only index", "bookie2", "index's disk", since=now)
    ballast.unlink()

    _rot(cluster, seen)

    seen("an expired certificate", "bookie3", "certificate ended", since=ends_at)

    now = time.monotonic()
    cluster.kill("metadata1", "metadata2")
    seen("a quorum without a leader", "no metadata quorum", since=now)
    return took


def _rot(cluster: Cluster, seen: Callable[..., None]) -> None:
    """A scrub finds some, and it is healed."""
    served = cluster.served["bookie2"]
    served.signal(signal.SIGTERM)  # it checkpoints: nothing is written anew
    served.process.wait(HANG_S)
    cluster.kill("bookie2")
    chance = random.Random(7)
    assert sum(flip_pages(path, chance) for path in _journals(cluster, "bookie2")) > 1
    cluster.start("bookie2")
    log = cluster.directory / "bookie2.stderr"
    size = log.stat().st_size
    now = time.monotonic()
    _ok(cluster.run("scrub", "bookie2"))
    _until(lambda: b'"bookie.rot"' in log.read_bytes()[size:])
    # It is healed soon, and told all the same: who is slow here looks when that is done.
    seen("damage found", "bookie2", "corrupt here", since=now, known_at=time.monotonic() - 0.05)


@contextlib.contextmanager
def _credentials(credentials: str) -> Iterator[None]:
    os.environ["DLOG_CREDENTIALS"] = credentials
    try:
        yield
    finally:
        del os.environ["DLOG_CREDENTIALS"]


def _watch(cluster: Cluster, stack: contextlib.ExitStack) -> Looks:
    process = cluster.popen("status", "--watch", "0.5", "--json", stdout=subprocess.PIPE)
    stack.callback(_end, process)
    assert process.stdout is not None
    return Looks("dlog status", (json.loads(line)["reasons"] for line in process.stdout))


def _console(cluster: Cluster, stack: contextlib.ExitStack) -> Looks:
    process = cluster.popen("console", "--listen", "127.0.0.1:0", "--json", stdout=subprocess.PIPE)
    stack.callback(_end, process)
    assert process.stdout is not None
    browser = Browser(json.loads(process.stdout.readline())["console"])
    browser.let_in()
    states = browser.events("/events", page="cluster")
    return Looks("the console", ([one["text"] for one in state["conditions"]] for state in states))


def _end(process: Started) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _journals(cluster: Cluster, name: str) -> list[Path]:
    return sorted((cluster.directory / name).rglob("journal-*"))


def _ok(done: "subprocess.CompletedProcess[bytes]", *codes: int) -> None:
    assert done.returncode in (codes or (0,)), (done.args, done.returncode, done.stderr[-2000:])


def _until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_S
    while not there():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.05)


def main() -> None:
    """Play it; ends with 1 where something was named too late."""
    if os.geteuid():
        sys.exit("needs root, for file systems of its own")
    with tempfile.TemporaryDirectory() as directory:
        took = play(Path(directory), say=print)
    late = [what for what, seconds in took.items() if seconds > SEEN_S]
    if late:
        sys.exit(f"later than {SEEN_S:g} s: {', '.join(late)}")


if __name__ == "__main__":
    main()
