"""Alerts that no scenario of `dlog chaos` provokes: each provoked on processes, its runbook typed to the end.

    python -m tests.chaos.runbooks_story [ALERT …]      needs `prometheus`; eight minutes, loopback only

Three metadata nodes, three bookies, a write proxy, a gateway, and programs; then two nodes with certificates.
Prometheus scrapes all once a second, by the rules of ``ops/prometheus/rules.yml`` at sixty times their speed,
as in ``alerts_story``. Of each alert: what provokes it is done, it is raised, the lines of its runbook
(docs/operations.md, "When an alert is raised") are typed one after the other, and it is over.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributedlog.cli import certificates
from distributedlog.cluster.config import format_address
from distributedlog.cluster.plan import Plan, PlannedNode
from distributedlog.cluster.processes import environment
from tests.chaos.alerts_story import _firing, _scraped, prometheus
from tests.chaos.planted_state import WHERE
from tests.cluster.story import Cluster

HANG_S = 150.0
"""Against a hang only."""
LOOK_S = 0.5
CERTIFICATE_S = 90
STRANGERS = 300
POSTERS = 4
RECORD = 400
"""Bytes of a line that is written."""


@dataclass
class Told:
    """How one alert went."""

    raised_s: float
    """After what provoked it."""
    over_s: float = 0.0
    """After the last line of its runbook."""
    typed: list[str] = field(default_factory=list)


class Watched:
    """A cluster under a Prometheus, and somebody who types."""

    def __init__(self, directory: Path, cluster: Cluster, stack: contextlib.ExitStack) -> None:
        self.directory = directory
        self.cluster = cluster
        self.stack = stack
        self.told: dict[str, Told] = {}
        self._targets: dict[str, tuple[str, str]] = {}
        self._begun = 0.0
        self._typed: list[str] = []
        self._place = ""
        self.watch_nodes()

    @property
    def targets(self) -> Path:
        """As Prometheus reads them."""
        return self.directory / "targets.json"

    def watch_nodes(self) -> None:
        """Give each node a port for its pages, and have them scraped."""
        for node in self.cluster.plan.nodes:
            place = f"127.0.0.1:{free_port()}"
            self.cluster.more.setdefault(node.name, []).extend(["--http", place])
            self._targets[node.name] = node.kind, place
        self._write()

    def watch(self, name: str, kind: str, port: int) -> None:
        """Have this one scraped, too."""
        self._targets[name] = kind, f"127.0.0.1:{port}"
        self._write()

    def forget(self, name: str) -> None:
        """It is ended on purpose."""
        del self._targets[name]
        self._write()

    def _write(self) -> None:
        found = [
            {"targets": [place], "labels": {"instance": name, "kind": kind}}
            for name, (kind, place) in self._targets.items()
        ]
        aside = self.targets.with_suffix(".aside")
        aside.write_text(json.dumps(found))
        aside.rename(self.targets)

    def begin(self) -> None:
        """Start Prometheus; returns when it scrapes all, and nothing is raised."""
        self._place = self.stack.enter_context(prometheus(self.directory, self.targets))
        self.settled()

    def settled(self) -> None:
        """Everything is scraped, and no alert is raised."""
        until("all is quiet", lambda: _scraped(self._place, len(self._targets)))
        self._begun = time.monotonic()
        self._typed = []

    def raised(self, name: str) -> str:
        """Wait for the alert; what it says."""
        summary = ""

        def there() -> bool:
            nonlocal summary
            for one in self._firing():
                if one["labels"]["alertname"] == name:
                    summary = one["annotations"]["summary"]
            return bool(summary)

        until(f"{name} is raised", there)
        self.told[name] = Told(time.monotonic() - self._begun, typed=self._typed)
        print(f"\n{name}, after {self.told[name].raised_s:.0f} s: {summary}", flush=True)
        return summary

    def over(self, name: str, *, quiet: bool = True) -> None:
        """Wait until it is not raised any more, and (``quiet``) no other one is."""
        typed = time.monotonic()
        until(
            f"{name} is over",
            lambda: name not in {one["labels"]["alertname"] for one in self._firing()},
        )
        self.told[name].over_s = time.monotonic() - typed
        print(f"  {name} is over after {self.told[name].over_s:.0f} s", flush=True)
        if quiet:
            self.settled()

    def _firing(self) -> list[dict[str, Any]]:
        with contextlib.suppress(OSError):
            return _firing(self._place)
        return [{"labels": {"alertname": one}, "annotations": {}} for one in self.told]

    def typed(self, *words: str, says: str = "", input: bytes = b"") -> str:
        """A line of a runbook; what it says, in which ``says`` is looked for."""
        done = self.cluster.run(*words, input=input)
        said = (done.stdout + done.stderr).decode(errors="replace")
        self._show("dlog " + " ".join(words), said)
        assert says in said, f"dlog {' '.join(words)}: no {says!r} in what it says: {said[-3000:]}"
        return said

    def done(self, what: str, deed: Callable[[], object]) -> None:
        """A line of a runbook that is no command of `dlog`."""
        deed()
        self._show(what, "")

    def read_log(self, name: str, words: str) -> str:
        """The line of a node's log that has these words: a line of a runbook."""
        path = self.cluster.directory / f"{name}.stderr"
        found = [line for line in path.read_text().splitlines() if words in line]
        assert found, f"{words!r} is not in {path}"
        self._show(f"journalctl -u {name} | grep {words}", found[-1])
        return found[-1]

    def _show(self, line: str, said: str) -> None:
        self._typed.append(line)
        print(f"  $ {line}")
        for one in said.splitlines()[:12]:
            print(f"      {one[:150]}", flush=True)

    def writer(self, log: str, uri: str = "") -> "subprocess.Popen[bytes]":
        """A `dlog log write` that stays open; it has written one line."""
        options = ["--uri", uri] if uri else []
        writer = self.cluster.popen(
            *("log", "write", log, "--create", *options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.stack.callback(end, writer)
        say(writer)
        return writer

    def bookies(self) -> list[str]:
        """Their names."""
        return [node.name for node in self.cluster.plan.of("bookie")]

    def stop(self, name: str) -> None:
        """As systemd does."""
        served = self.cluster.served[name]
        served.signal(signal.SIGTERM)
        served.process.wait(60)
        self.cluster.kill(name)


# --- the alerts -----------------------------------------------------------------------------------


def strangers(w: Watched) -> None:
    """Somebody speaks HTTP to a bookie's port, and does not stop."""
    [address] = [n.address for n in w.cluster.plan.nodes if n.name == "bookie1"]
    stop = threading.Event()

    def knock() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=5) as one:
                one.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(64))
                one.recv(1)
            time.sleep(0.01)

    threads = [threading.Thread(target=knock, daemon=True) for _ in range(2)]
    for one in threads:
        one.start()
    try:
        w.raised("DlogStrangers")
        line = w.read_log("bookie1", "runtime.refusals")
        assert "127.0.0.1" in line
        w.typed("status", says="healthy")
        w.done("the program at that address is ended", stop.set)
    finally:
        stop.set()
        for one in threads:
            one.join()
    w.over("DlogStrangers")


def writers_fail(w: Watched) -> None:
    """Two services are configured for one log: each takes it over from the other."""
    w.typed("log", "create", "fought")
    programs = []
    for name in ("service1", "service2"):
        port = free_port()
        out = (w.directory / f"{name}.out").open("wb")
        programs.append(
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.chaos.counted_writer"),
                    *(w.cluster.uri, "fought", str(port)),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(),
            )
        )
        out.close()
        w.stack.callback(end, programs[-1])
        w.watch(name, "client", port)
    w.raised("DlogWritersFail")
    first = (w.directory / "service1.out").read_text().splitlines()[0]
    assert "WriterFenced" in first, first
    w.done(f"service1's first error: {first[:90]}", lambda: None)
    w.typed("log", "show", "fought", says="owner")
    w.done("one of the two services is stopped for good", lambda: end(programs[1]))
    w.forget("service2")
    w.over("DlogWritersFail")
    end(programs[0])
    w.forget("service1")


def proxy_loses_logs(w: Watched) -> None:
    """A program writes directly, and takes over what a proxy has."""
    [proxy] = w.cluster.plan.of("write-proxy")
    uri = (
        f"distributedlog+proxy://{format_address(proxy.address)}/{w.cluster.uri.rsplit('/', 1)[1]}"
    )
    w.typed("log", "create", "shared")
    writer = w.writer("shared", uri)
    w.cluster.run("log", "write", "shared", "--takeover", input=b"mine\n")
    say(writer)
    w.raised("DlogProxyLosesLogs")
    w.read_log(proxy.name, "shared")
    w.typed("proxy", "list", says=proxy.name)
    w.typed("log", "show", "shared", says="owner")
    w.done("the direct writer is told to go through the proxies", lambda: end(writer))
    w.over("DlogProxyLosesLogs")
    w.typed("log", "write", "shared", "--uri", uri, input=b"ours again\n")


def proxy_not_registered(w: Watched) -> None:
    """The metadata quorum is lost."""
    w.cluster.kill("metadata1", "metadata2")
    w.raised("DlogProxyNotRegistered")
    w.typed("metadata", "show", "--timeout", "5", says="metadata1")
    w.done("metadata1 and metadata2 are started", lambda: w.cluster.start("metadata1", "metadata2"))
    w.over("DlogProxyNotRegistered")


def gateway_fails(w: Watched) -> None:
    """Two of three bookies are down: what is posted is not stored in time."""
    port = free_port()
    gateway = w.cluster.popen(
        *("serve", "gateway", "--listen", f"127.0.0.1:{port}", "--set", "append_s=3s"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    w.stack.callback(end, gateway)
    assert gateway.stdout is not None
    gateway.stdout.readline()
    w.typed("log", "create", "posted")
    w.watch("gateway1", "gateway", port)
    url = f"http://127.0.0.1:{port}/v1/logs/posted/records"
    assert post(url) == 200
    w.settled()
    stop = threading.Event()

    def go_on() -> None:
        while not stop.wait(0.2):
            post(url)

    threads = [threading.Thread(target=go_on, daemon=True) for _ in range(POSTERS)]
    try:
        w.cluster.kill("bookie1", "bookie2")
        for one in threads:
            one.start()
        w.raised("DlogGatewayFails")
        w.typed("status", "--timeout", "6", says="is down")
        w.typed("proxy", "list")
        w.done("bookie1 and bookie2 are started", lambda: w.cluster.start("bookie1", "bookie2"))
        w.over("DlogGatewayFails")
        until("it takes records again", lambda: post(url) == 200)
    finally:
        stop.set()
        for one in threads:
            one.join()
    end(gateway)
    w.forget("gateway1")


def under_replicated(w: Watched) -> None:
    """A bookie is away, there is no spare, and a log is written on."""
    writer = w.writer("thin")
    w.cluster.kill("bookie3")
    for _ in range(5):
        say(writer)
    w.raised("DlogRepairBlocked")
    w.raised("DlogUnderReplicated")
    w.typed("status", says="bookie3")
    w.typed("under-replicated", says="bookie")
    w.done("bookie3 is started", lambda: w.cluster.start("bookie3"))
    w.done("the writer goes on to its next segment, or ends", lambda: end(writer))
    w.over("DlogRepairBlocked", quiet=False)
    w.over("DlogUnderReplicated")
    w.typed("status", "--wait", "healthy", "--timeout", "60", says="healthy")


def nobody_repairs(w: Watched) -> None:
    """Somebody has set `repair = false` everywhere."""
    for name in w.bookies():
        w.stop(name)
        w.cluster.more[name] += ["--set", "repair=false"]
        w.cluster.start(name)
    w.raised("DlogNobodyRepairs")
    w.typed("status", says="no bookie repairs")
    for name in w.bookies():
        del w.cluster.more[name][-2:]
    w.stop("bookie1")
    w.done("bookie1 is started with repair = true", lambda: w.cluster.start("bookie1"))
    w.over("DlogNobodyRepairs")
    for name in w.bookies()[1:]:
        w.stop(name)
        w.cluster.start(name)


def states_differ(w: Watched) -> None:
    """A follower's memory changes a bit."""
    leader = w.cluster.leader()
    name = next(n.name for n in w.cluster.plan.of("metadata") if n.name != leader)
    planted = w.directory / "planted"
    w.stop(name)
    w.cluster.modules[name] = "tests.chaos.planted_state"
    os.environ[WHERE] = str(planted)
    w.cluster.start(name)
    w.settled()
    planted.touch()
    for number in range(80):  # a digest is compared each 64 entries
        script = f"log create differ-{number}"
        assert w.cluster.run(*script.split()).returncode == 0
        if number % 10 == 9 and any(
            one["labels"]["alertname"] == "DlogStatesDiffer" for one in w._firing()
        ):
            break
    assert not planted.exists(), "nothing was planted"
    w.raised("DlogStatesDiffer")
    w.typed("status", says=name)
    del w.cluster.modules[name]

    def again() -> None:
        w.stop(name)
        w.cluster.start(name)

    w.done(f"{name} is started again", again)
    w.over("DlogStatesDiffer")
    w.typed("status", "--wait", "healthy", "--timeout", "60", says="healthy")


def no_good_copy(w: Watched) -> None:
    """The same entry rots on all three bookies."""
    lines = b"".join(
        b"%08d" % n + os.urandom(RECORD // 2).hex().encode() + b"\n" for n in range(200)
    )
    assert w.cluster.run("log", "write", "rotten", "--create", input=lines).returncode == 0
    mark = lines.split(b"\n")[100][100:160]
    for name in w.bookies():
        w.stop(name)  # it checkpoints: nothing is written anew
        files = sorted((w.cluster.directory / name).rglob("journal-*"))
        assert sum(flip(path, mark) for path in files), f"{name} has no copy"
    w.cluster.start(*w.bookies())
    for name in w.bookies():
        w.cluster.run("scrub", name)
    w.raised("DlogNoGoodCopy")
    said = w.typed("status", says="without a good copy")
    found = re.search(r"ledger (\d+) entry (\d+)", said)
    assert found, f"the reason names no entry: {said}"
    ledger, entry = found[1], found[2]
    w.typed("bookies", says="bookie3")  # all are up: nobody else has one
    w.typed("ledger", "show", ledger, says=ledger)
    w.typed(
        *("ledger", "accept-loss", ledger, "--first", entry, "--last", entry),
        *("--even-so", "--reason", "it rotted on all three", "--yes"),
        says="declared lost",
    )
    w.over("DlogNoGoodCopy")
    w.typed("log", "read", "rotten", "--limit", "200", "--timeout", "10", says="EntriesLost")


def certificate_ends(w: Watched) -> None:
    """Nobody has renewed it."""
    w.raised("DlogCertificateEnds")
    w.typed("status", says="certificate ends")
    pki = w.directory / "pki"
    w.typed("pki", "renew", str(pki / "bookie1"), "--authority", str(pki / "ca"))
    w.over("DlogCertificateEnds")
    w.typed("status", says="healthy")


PLAIN: dict[str, Callable[[Watched], None]] = {
    "DlogStrangers": strangers,
    "DlogWritersFail": writers_fail,
    "DlogProxyLosesLogs": proxy_loses_logs,
    "DlogProxyNotRegistered": proxy_not_registered,
    "DlogGatewayFails": gateway_fails,
    "DlogUnderReplicated": under_replicated,
    "DlogNobodyRepairs": nobody_repairs,
    "DlogStatesDiffer": states_differ,
    "DlogNoGoodCopy": no_good_copy,
}
TLS: dict[str, Callable[[Watched], None]] = {"DlogCertificateEnds": certificate_ends}


# --- what it stands on ----------------------------------------------------------------------------


def plain(directory: Path, names: list[str]) -> dict[str, Told]:
    """Those that need no certificates, one after the other."""
    with contextlib.ExitStack() as stack:
        cluster = Cluster.planned(directory, bookies=3)
        proxy = PlannedNode("proxy1", "write-proxy", ("127.0.0.1", free_port()))
        cluster.plan = Plan((*cluster.plan.nodes, proxy))
        w = Watched(directory, stack.enter_context(cluster), stack)
        cluster.start()
        w.begin()
        for name in names:
            PLAIN[name](w)
            w.settled()
        return w.told


def with_certificates(directory: Path, names: list[str]) -> dict[str, Told]:
    """The others."""
    pki = directory / "pki"
    certificates.make_authority(pki / "ca", "story")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster.planned(directory, bookies=3, metadata_nodes=1))
        for node in cluster.plan.nodes:
            short: Any = CERTIFICATE_S / 86_400 if node.name == "bookie1" else 1
            certificates.issue(pki / "ca", f"{node.kind}/{node.name}", pki / node.name, days=short)
            cluster.more[node.name] = ["--tls", str(pki / node.name)]
        certificates.issue(pki / "ca", "user/ops", pki / "ops")
        os.environ["DLOG_CREDENTIALS"] = f"file:{pki / 'ops'}"
        stack.callback(os.environ.pop, "DLOG_CREDENTIALS")
        w = Watched(directory, cluster, stack)
        cluster.start()
        w.begin()
        for name in names:
            TLS[name](w)
        return w.told


def free_port() -> int:
    """A port that nobody had a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def flip(path: Path, mark: bytes) -> int:
    """A bit in each place of a file that has these bytes; how many."""
    data = path.read_bytes()
    places = [found.start() for found in re.finditer(re.escape(mark), data)]
    with path.open("r+b") as file:
        for at in places:
            file.seek(at + 10)
            file.write(bytes([data[at + 10] ^ 1]))
    return len(places)


def post(url: str) -> int:
    """The status of one record's posting; 0: no answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, b"x"), timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def say(writer: "subprocess.Popen[bytes]") -> None:
    """A line more of a `dlog log write`."""
    assert writer.stdin is not None
    writer.stdin.write(b"y" * RECORD + b"\n")
    writer.stdin.flush()
    time.sleep(0.5)


def end(process: "subprocess.Popen[bytes]") -> None:
    """By the end of its input where it reads one, else at once."""
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def until(what: str, there: Callable[[], bool]) -> None:
    """Look again and again."""
    limit = time.monotonic() + HANG_S
    while not there():
        assert time.monotonic() < limit, f"it never happened: {what}"
        time.sleep(LOOK_S)


def play(directory: Path, names: list[str]) -> Iterator[tuple[str, Told]]:
    """Play these alerts."""
    for part, run in ((PLAIN, plain), (TLS, with_certificates)):
        chosen = [name for name in part if name in names]
        if chosen:
            place = directory / run.__name__
            place.mkdir()
            yield from run(place, chosen).items()


def main() -> None:
    """Play those that are named, or all; ends with 1 where one is not raised, or not over."""
    if shutil.which("prometheus") is None:
        sys.exit("needs prometheus on the PATH (Debian: apt-get install prometheus)")
    names = sys.argv[1:] or [*PLAIN, *TLS]
    if unknown := set(names) - PLAIN.keys() - TLS.keys():
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as directory:
        told = dict(play(Path(directory), names))
    print("\n| alert | raised after | runbook, typed | over after |\n| --- | --- | --- | --- |")
    for name, one in told.items():
        lines = "; ".join(f"`{line[:80]}`" for line in one.typed)
        print(f"| `{name}` | {one.raised_s:.0f} s | {lines} | {one.over_s:.0f} s |")
    if missing := [name for name in names if name not in told]:
        sys.exit(f"not raised: {', '.join(missing)}")


if __name__ == "__main__":
    main()
