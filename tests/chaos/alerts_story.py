"""Each alert that one scenario of chaos can provoke is provoked: nodes on processes, a real Prometheus.

    python -m tests.chaos.alerts_story          needs root, a loop device, and `prometheus`; four minutes

`dlog chaos run alerts --metrics` breaks a cluster; Prometheus scrapes each node once a second, by the rules
of ``ops/prometheus/rules.yml`` at sixty times their speed (a minute is a second). When an alert is raised its
runbook's first step is taken: `dlog status` has to name what it is about. In the end the verdict of the chaos
run counts, each alert that is expected was raised, and none but those whose cause lasts is left.
"""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributedlog.cluster.local.child_processes import environment
from distributedlog.cluster.local.cluster_plan import NAMESPACE
from tests.cluster.story import dlog

RULES = Path(__file__).resolve().parents[2] / "ops" / "prometheus" / "rules.yml"
FASTER = 60
START_S = 120.0
POLL_S = 1.0
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
CODES = {
    block.split("\n", 1)[0]: frozenset(codes.split())
    for block in RULES.read_text().split("- alert: ")[1:]
    for codes in re.findall(r'^ +codes: "(.*)"$', block, re.M)
}
"""By alert, the codes of which `dlog status` reports one meanwhile."""
EXPECTED = {
    name: CODES.get(name, frozenset())
    for name in (
        "DlogNodeDown", "DlogNoLeader", "DlogElections", "DlogNotRegistered", "DlogFewBookies",
        "DlogReadOnly", "DlogDiskFull24h", "DlogDamage", "DlogSyncSlow", "DlogLoopLate",
    )
}  # fmt: skip
"""The alerts of this story with their codes; none if an alert is about a past or a rate."""
CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: dlog
    file_sd_configs: [{{files: [{targets}], refresh_interval: 1s}}]
"""


@dataclass
class Alert:
    """One alert of a run."""

    raised_s: float
    """Of the run."""
    summary: str
    named: str = ""
    """What `dlog status` said to it."""
    over_s: float = 0.0
    """When it was seen no more."""
    nodes: set[str] = field(default_factory=set)


def faster(rules: str) -> str:
    """The rules, with each time a sixtieth of itself, one second at least."""

    def shorter(found: "re.Match[str]") -> str:
        seconds = int(found[2]) * UNITS_S[found[3]]
        return f"{found[1]}{max(1, seconds // FASTER)}s{found[4]}"

    found = re.sub(r"(for: )(\d+)([smhd])()$", shorter, rules, flags=re.M)
    found = re.sub(r"(\[)(\d+)([smhd])(\])", shorter, found)
    found = re.sub(r"(offset )(\d+)([smhd])()", shorter, found)
    return re.sub(r", 86400\)", f", {86_400 // FASTER})", found)


def play(directory: Path) -> tuple[dict[str, Alert], list[str], str]:
    """Alerts by name, those that are raised in the end, and the verdict of the chaos run."""
    out = directory / "run"
    command = dlog("chaos", "run", "alerts", "--metrics", "--json", "--output", str(out))
    run = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment())
    try:
        targets = out / "cluster" / "targets.json"
        _until(lambda: targets.exists() or run.poll() is not None)
        named = json.loads(targets.read_text())
        uri = _uri(out, named)
        _until(lambda: all(_ready(one["targets"][0]) for one in named))
        with prometheus(directory, targets) as place:
            _until(lambda: _scraped(place, len(named)))
            seen, last = _watch(run, place, uri)
        assert run.stdout is not None
        result = json.loads(run.stdout.read())
        for reason in result["reasons"]:
            print(f"chaos: {reason}")
        return seen, last, str(result["verdict"])
    finally:
        if run.poll() is None:
            run.send_signal(signal.SIGINT)
            run.wait(60)


def _watch(
    run: "subprocess.Popen[bytes]", place: str, uri: str
) -> tuple[dict[str, Alert], list[str]]:
    seen: dict[str, Alert] = {}
    last: list[str] = []
    begun = time.monotonic()
    while run.poll() is None:
        try:
            firing = _firing(place)
        except OSError:
            time.sleep(POLL_S)
            continue
        now = time.monotonic() - begun
        names = {one["labels"]["alertname"] for one in firing}
        if not _serves(place):
            break  # the nodes are being ended: what is raised now is about that
        for name in names:
            [one, *_] = [each for each in firing if each["labels"]["alertname"] == name]
            if name not in seen:
                seen[name] = Alert(now, one["annotations"]["summary"])
                print(f"{now:6.1f} s  {name}: {seen[name].summary}", flush=True)
            codes = EXPECTED.get(name, frozenset())
            if codes and not seen[name].named:
                seen[name].named = next((text for code, text in _status(uri) if code in codes), "")
                if seen[name].named:
                    print(f"          dlog status: {seen[name].named}", flush=True)
            seen[name].over_s = 0.0
        for name in seen.keys() - names:
            seen[name].over_s = seen[name].over_s or now
        last = sorted(names)
        time.sleep(POLL_S)
    return seen, last


def _ready(place: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{place}/ready", timeout=2):
            return True
    except OSError:
        return False


def _scraped(place: str, count: int) -> bool:
    """Is every node scraped, and nothing raised that was about their start?"""
    try:
        found = _ask(f"{place}/api/v1/targets?state=active")["data"]["activeTargets"]
        return sum(one["health"] == "up" for one in found) == count and not _firing(place)
    except OSError:
        return False


def _serves(place: str) -> bool:
    """Are any nodes there?"""
    found = _ask(f"{place}/api/v1/targets?state=active")["data"]["activeTargets"]
    return not found or any(one["health"] != "down" for one in found)


def _firing(place: str) -> list[dict[str, Any]]:
    alerts = _ask(f"{place}/api/v1/alerts")["data"]["alerts"]
    # Clients are ended before nodes are, and nobody is told.
    ended = {"alertname": "DlogNodeDown", "kind": "client"}
    return [
        one
        for one in alerts
        if one["state"] == "firing" and not ended.items() <= one["labels"].items()
    ]


def _ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def _status(uri: str) -> list[tuple[str, str]]:
    """The runbook's first step: code and text of each condition."""
    done = subprocess.run(
        dlog("status", "--json", "--timeout", "6", "--uri", uri),
        capture_output=True,
        env=environment(),
        check=False,
    )
    if not done.stdout:
        return [("no_metadata_quorum", done.stderr.decode(errors="replace"))]
    return [(one["code"], one["text"]) for one in json.loads(done.stdout)["conditions"]]


def _uri(out: Path, targets: list[dict[str, Any]]) -> str:
    names = [one["labels"]["instance"] for one in targets]
    text = (out / "cluster" / names[0] / "node.toml").read_text()
    [quorum] = re.findall(r'^metadata = "([^"]+)"$', text, re.M)
    places = ";".join(one.partition("=")[2] for one in quorum.split(","))
    return f"distributedlog://{places}/{NAMESPACE}"


@contextmanager
def prometheus(directory: Path, targets: Path) -> Iterator[str]:
    """A Prometheus of these targets; where it answers."""
    (directory / "rules.yml").write_text(faster(RULES.read_text()))
    config = CONFIG.format(rules=directory / "rules.yml", targets=targets)
    (directory / "prometheus.yml").write_text(config)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [
        "prometheus",
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    process = subprocess.Popen(command)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _until(there: Any) -> None:
    end = time.monotonic() + START_S
    while not there():
        assert time.monotonic() < end, "the run did not begin"
        time.sleep(POLL_S)


def main() -> None:
    """Play it; ends with 1 where an alert was not raised, was not named, or something was lost."""
    if shutil.which("prometheus") is None:
        sys.exit("needs prometheus on the PATH (Debian: apt-get install prometheus)")
    with tempfile.TemporaryDirectory() as directory:
        seen, last, verdict = play(Path(directory))
    print(f"\nverdict of the chaos run: {verdict}")
    print("| alert | raised after | over after | `dlog status` said |\n| --- | --- | --- | --- |")
    for name, words in EXPECTED.items():
        one = seen.get(name)
        if one is None:
            print(f"| `{name}` | never | | |")
            continue
        over = f"{one.over_s:.0f} s" if one.over_s else "at the end still raised"
        said = re.sub(r" \([0-9a-f]{32}\)", "", one.named)[:100] if words else "-"
        print(f"| `{name}` | {one.raised_s:.0f} s | {over} | {said} |")
    print(f"raised in the end: {', '.join(last) or 'none'}")
    wrong = [name for name in EXPECTED if name not in seen]
    wrong += [f"{name} (not named)" for name in seen if EXPECTED.get(name) and not seen[name].named]
    if wrong or verdict != "OK":
        sys.exit(f"not raised, or not named: {', '.join(wrong) or 'none'}; verdict {verdict}")


if __name__ == "__main__":
    main()
