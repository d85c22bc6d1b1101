"""Alerts of more than one node: each provoked by a scenario of `dlog chaos`, its runbook typed to the end.

    python -m tests.chaos.runbooks_story [SCENARIO …]      needs `prometheus`; ten minutes, loopback only

`dlog chaos run SCENARIO --metrics --hold-faults` breaks a cluster of its own and leaves it broken. Prometheus
scrapes nodes, gateways and clients once a second. The rules of ``ops/prometheus/rules.yml`` run at sixty
times their speed, as in ``alerts_story``. The alert is raised, and the steps of its section in
docs/operate/alerts.md are typed one after the other. `dlog chaos end-faults` replaces steps that are no
command of `dlog`. The alert ends. Then the run ends, and its verdict counts.
"""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributedlog.cluster.local.child_processes import environment
from distributedlog.testing.chaos.run.runner import END, END_FAULTS
from tests.chaos.alerts_story import _firing, _uri, prometheus
from tests.cluster.story import dlog

HANG_S = 240.0
"""Against a hang only."""
LOOK_S = 0.5
PAUSED_S = 8.0
"""Longer than a proxy's lease, and than its clients wait for it."""


@dataclass
class Told:
    """How one alert went."""

    scenario: str
    raised_s: float
    """After the fault began."""
    over_s: float = 0.0
    """After the last line of its runbook."""
    typed: list[str] = field(default_factory=list)
    verdict: str = ""


class Drill:
    """A run of chaos that waits for somebody's hand, a Prometheus that watches it, and who types."""

    def __init__(self, scenario: str, out: Path) -> None:
        self.scenario = scenario
        self.out = out
        self.told: dict[str, Told] = {}
        self.run: subprocess.Popen[bytes]
        self.place = ""
        self._begun = 0.0
        self._typed: list[str] = []

    @property
    def cluster(self) -> Path:
        """Where the nodes are."""
        return self.out / "cluster"

    @property
    def targets(self) -> Path:
        """As Prometheus reads them."""
        return self.cluster / "targets.json"

    def start(self) -> None:
        """Returns when it is known what is to be scraped."""
        words = ("chaos", "run", self.scenario, "--metrics", "--hold-faults", "--json")
        self.run = subprocess.Popen(
            dlog(*words, "--output", str(self.out)), stdout=subprocess.PIPE, env=environment()
        )
        until("its nodes serve", lambda: self.targets.exists() or self.run.poll() is not None)
        assert self.run.poll() is None, f"{self.scenario} ended with {self.run.returncode}"

    def begun(self) -> None:
        """Returns when the fault is on."""
        until("the fault begins", lambda: bool(self.faults))
        self._begun = time.monotonic()

    @property
    def faults(self) -> list[list[str]]:
        """Whom each fault met that has begun."""
        content = (self.out / "runner.notes").read_text()
        lines = [json.loads(line) for line in content[: content.rfind("\n") + 1].splitlines()]
        return [list(line[4]) for line in lines if line[1] == "fault"]

    def raised(self, name: str) -> None:
        """Wait for the alert."""
        summary = ""

        def there() -> bool:
            nonlocal summary
            for one in self._firing():
                if one["labels"]["alertname"] == name:
                    summary = one["annotations"]["summary"]
            return bool(summary)

        until(f"{name} is raised", there)
        raised_s = time.monotonic() - self._begun
        self.told[name] = Told(self.scenario, raised_s, typed=self._typed)
        print(f"\n{name}, {raised_s:.0f} s after the fault began: {summary}", flush=True)

    def over(self, name: str) -> None:
        """Wait until it is not raised any more."""
        typed = time.monotonic()
        until(
            f"{name} is over",
            lambda: name not in {one["labels"]["alertname"] for one in self._firing()},
        )
        self.told[name].over_s = time.monotonic() - typed
        print(f"  {name} is over after {self.told[name].over_s:.0f} s", flush=True)

    def _firing(self) -> list[dict[str, Any]]:
        with contextlib.suppress(OSError):
            return _firing(self.place)
        return [{"labels": {"alertname": one}, "annotations": {}} for one in self.told]

    def typed(self, *words: str, says: str = "") -> str:
        """A line of a runbook; what it says, in which ``says`` is looked for."""
        done = subprocess.run(
            dlog(*words),
            capture_output=True,
            timeout=HANG_S,
            env={**environment(), "DLOG_URI": _uri(self.out, self._named()), **self._shown()},
            check=False,
        )
        said = (done.stdout + done.stderr).decode(errors="replace")
        self._show("dlog " + " ".join(words).replace(str(self.out), "OUT"), said)
        assert says in said, f"dlog {' '.join(words)}: no {says!r} in what it says: {said[-3000:]}"
        return said

    def _named(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.targets.read_text())
        return found

    def _shown(self) -> dict[str, str]:
        """Who types, where that counts."""
        admin = self.out / "certificates" / "user-root"
        return {"DLOG_CREDENTIALS": f"file:{admin}"} if admin.exists() else {}

    def mended(self, what: str) -> None:
        """A line of a runbook that is no command of `dlog`: what was broken is as it was."""
        said = self._mend(END_FAULTS)
        self._show(f"{what} (dlog chaos end-faults DIR)", said)

    def _mend(self, word: str) -> str:
        done = subprocess.run(
            dlog("chaos", "end-faults", str(self.out), *(["--end-run"] if word == END else [])),
            capture_output=True,
            env=environment(),
            check=False,
        )
        said = done.stderr.decode(errors="replace")
        assert done.returncode == 0, said
        return said

    def look(self, path: str, words: str) -> None:
        """The first line of a file of the run that has these words: a line of a runbook."""
        found = [line for line in (self.out / path).read_text().splitlines() if words in line]
        assert found, f"{words!r} is not in {path}"
        self._show(f"{path}: {words}", found[0])

    def _show(self, line: str, said: str) -> None:
        self._typed.append(line)
        print(f"  $ {line}")
        for one in said.splitlines()[:12]:
            print(f"      {one[:150]}", flush=True)

    def ended(self) -> None:
        """It is judged."""
        self._mend(END)
        out, _ = self.run.communicate(timeout=HANG_S)
        found = json.loads(out)
        print(f"  {self.scenario}: {found['verdict']}; {'; '.join(found['reasons'])[:300]}")
        for one in self.told.values():
            one.verdict = found["verdict"]


# --- the runbooks ---------------------------------------------------------------------------------


def strangers(d: Drill) -> None:
    """Somebody speaks HTTP to a bookie's port, and does not stop."""
    d.raised("DlogStrangers")
    d.look("cluster/bookie1/stderr", "runtime.net.rejection_log")
    d.typed("status", says="healthy")
    d.mended("the program at that address is ended")
    d.over("DlogStrangers")


def two_services(d: Drill) -> None:
    """Two services are configured for one log: each takes it over from the other."""
    d.raised("DlogWritersFail")
    d.look("writer-1.notes", "WriterFenced")
    d.typed("log", "show", "story", says="owner")
    d.mended("one of the two services is stopped for good")
    d.over("DlogWritersFail")


def paused_proxy(d: Drill) -> None:
    """A proxy's machine stood still."""
    time.sleep(PAUSED_S)
    d.mended("the proxy's machine goes on")
    d.raised("DlogProxyLosesLogs")
    [paused] = d.faults[0]
    d.look(f"cluster/{paused}/stderr", "proxy.log.lost")
    d.typed("log", "show", "shared-0", says="owner")
    d.typed("proxy", "list", says=paused)
    d.over("DlogProxyLosesLogs")


def proxies_alone(d: Drill) -> None:
    """The metadata quorum is lost."""
    d.raised("DlogProxyNotRegistered")
    d.typed("metadata", "show", "--timeout", "5", says="QuorumUnreachable")
    d.mended("the metadata nodes are started")
    d.over("DlogProxyNotRegistered")
    d.typed("status", "--wait", "--timeout", "60", says="healthy")


def gateway_fails(d: Drill) -> None:
    """All bookies are down: what is posted is not stored in time."""
    d.raised("DlogGatewayFails")
    d.typed("status", "--timeout", "6", says="is offline")
    d.typed("proxy", "list")
    d.mended("the bookies are started")
    d.over("DlogGatewayFails")


def thin(d: Drill) -> None:
    """A bookie is away, there is no spare, and a log is written on."""
    d.raised("DlogRepairBlocked")
    d.raised("DlogUnderReplicated")
    d.typed("status", says="is offline")
    d.typed("under-replicated", says="bookie")
    d.mended("the bookie is started; the writer goes on to its next segment")
    d.over("DlogRepairBlocked")
    d.over("DlogUnderReplicated")


def nobody_repairs(d: Drill) -> None:
    """Somebody has set `repair = false` everywhere."""
    d.raised("DlogNobodyRepairs")
    d.typed("status", says="no bookie runs repair")
    d.mended("the bookies are started with repair = true")
    d.over("DlogNobodyRepairs")


def wrong_memory(d: Drill) -> None:
    """A follower's memory changed a bit."""
    d.raised("DlogStatesDiffer")
    d.typed("status", says="metadata")
    d.mended("that node is started again")
    d.over("DlogStatesDiffer")
    d.typed("status", "--wait", "--timeout", "60", says="healthy")


def limbo(d: Drill) -> None:
    """A bookie lost a file of its journal, with what an open ledger has there."""
    d.mended("the bookie is started")
    d.raised("DlogLimbo")
    d.typed("status", says="may have lost entries")
    d.typed(
        "log", "show", "story", says="in progress"
    )  # until its segment ends; its writer goes on
    d.over("DlogLimbo")
    d.typed("status", "--wait", "--timeout", "60", says="healthy")


def rot_everywhere(d: Drill) -> None:
    """The same entry rots on all three bookies."""
    d.raised("DlogNoGoodCopy")
    said = d.typed("status", says="no other bookie has a good copy")
    d.typed("bookies", says="bookie3")  # all are up: nobody else has one
    lost = sorted(set(re.findall(r"ledger (\d+) entry (\d+)", said)))
    assert lost, f"the reason names no entry: {said}"
    for ledger, entry in lost:
        d.typed("ledger", "show", ledger, says=ledger)
        d.typed(
            *("ledger", "accept-loss", ledger, "--first", entry, "--last", entry),
            *("--discard-copies", "--reason", "it rotted on all three", "--force"),
            says="declared lost",
        )
    d.over("DlogNoGoodCopy")


def certificate(d: Drill) -> None:
    """Nobody has renewed it."""
    d.raised("DlogCertificateEnds")
    d.typed("status", says="certificate ends")
    place = d.out / "certificates"
    d.typed("pki", "renew", str(place / "bookie-bookie1"), "--authority", str(place / "authority"))
    d.over("DlogCertificateEnds")
    d.typed("status", says="healthy")


@dataclass(frozen=True)
class Runbook:
    """One scenario, what it provokes, and what to do."""

    alerts: tuple[str, ...]
    typed: Callable[[Drill], None]
    verdict: str = "OK"


RUNBOOKS = {
    "strangers": Runbook(("DlogStrangers",), strangers),
    "two-services": Runbook(("DlogWritersFail",), two_services),
    "paused-proxy": Runbook(("DlogProxyLosesLogs",), paused_proxy),
    "proxies-alone": Runbook(("DlogProxyNotRegistered",), proxies_alone),
    "gateway-fails": Runbook(("DlogGatewayFails",), gateway_fails),
    "thin": Runbook(("DlogRepairBlocked", "DlogUnderReplicated"), thin),
    "nobody-repairs": Runbook(("DlogNobodyRepairs",), nobody_repairs),
    "wrong-memory": Runbook(("DlogStatesDiffer",), wrong_memory),
    "limbo": Runbook(("DlogLimbo",), limbo),
    "rot-everywhere": Runbook(("DlogNoGoodCopy",), rot_everywhere, "FAIL"),
    "certificate": Runbook(("DlogCertificateEnds",), certificate),
}


# --- what it stands on ----------------------------------------------------------------------------


def play(directory: Path, scenario: str) -> dict[str, Told]:
    """One of them, from its start to its verdict."""
    directory.mkdir()
    d = Drill(scenario, directory / "run")
    d.start()
    try:
        with prometheus(directory, d.targets) as d.place:
            d.begun()
            RUNBOOKS[scenario].typed(d)
        d.ended()
    finally:
        if d.run.poll() is None:
            d.run.send_signal(signal.SIGINT)
            d.run.wait(60)
        if d.run.stdout is not None:
            d.run.stdout.close()
    return d.told


def until(what: str, there: Callable[[], bool]) -> None:
    """Look again and again."""
    limit = time.monotonic() + HANG_S
    while not there():
        assert time.monotonic() < limit, f"it never happened: {what}"
        time.sleep(LOOK_S)


def main() -> None:
    """Play those that are named, or all; ends with 1 where one is not raised, not over, or not so judged."""
    if shutil.which("prometheus") is None:
        sys.exit("needs prometheus on the PATH (Debian: apt-get install prometheus)")
    names = sys.argv[1:] or [*RUNBOOKS]
    if unknown := set(names) - RUNBOOKS.keys():
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    told: dict[str, Told] = {}
    wrong = []
    with tempfile.TemporaryDirectory() as directory:
        for name in names:
            told |= play(Path(directory) / name, name)
    print("\n| alert | scenario | raised after | runbook, typed | over after | verdict |")
    print("| --- | --- | --- | --- | --- | --- |")
    for alert, one in told.items():
        lines = "; ".join(f"`{line[:80]}`" for line in one.typed)
        print(
            f"| `{alert}` | `{one.scenario}` | {one.raised_s:.0f} s | {lines} | {one.over_s:.0f} s"
            f" | {one.verdict} |"
        )
        if one.verdict != RUNBOOKS[one.scenario].verdict:
            wrong.append(f"{one.scenario} is {one.verdict}")
    if wrong:
        sys.exit("; ".join(sorted(set(wrong))))


if __name__ == "__main__":
    main()
