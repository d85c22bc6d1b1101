"""Chaos on real processes: a minute with a fixed seed, planted bugs that must be found, and refusals.

All in all some five minutes of CI. `-s` shows the verdicts as they come.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from distributedlog.cluster.local.child_processes import environment
from distributedlog.testing.chaos.adapters import loop_disks as disks

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parent.parent.parent
SCENARIOS = ROOT / "testing" / "chaos" / "scenarios"
LONGEST_S = 300
BOUNDS = "[bounds]\nacked_min = 100\nacked_per_s_min = 1\nfaults_min = 2\n"
"""Hold on a machine that is busy with other work, too. Promises are judged in full, throughput is not."""


def without_rates(name: str) -> str:
    """Return a packaged scenario without its own bounds, which expect an idle machine."""
    return (SCENARIOS / f"{name}.toml").read_text().partition("[bounds]")[0] + BOUNDS


def chaos(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "distributedlog.cli.main", "chaos", *arguments],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        env=environment(),
        cwd=ROOT,  # where `tests` can be imported from: the planted bugs
        check=False,
    )


def verdict(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.stdout, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    print(
        f"{found['verdict']}: {found['acked']:,} acknowledged, {found['lost']:,} lost,"
        f" {len(found['faults'])} faults, longest gap {found['gap_s']:.2f} s; {found['reasons'][:3]}"
    )
    return found


def test_a_minute_of_chaos_breaks_no_promise(tmp_path: Path) -> None:
    scenario = tmp_path / "ci.toml"
    scenario.write_text(without_rates("ci"))
    done = chaos("run", str(scenario), "--seed", "1", "--output", str(tmp_path / "run"), "--json")

    found = verdict(done)

    assert found["verdict"] == "OK", (found["reasons"], done.stderr[-3000:])
    assert done.returncode == 0
    assert found["lost"] == 0
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    again = chaos("check", str(tmp_path / "run" / "history"), "--json")
    assert verdict(again)["history"] == found["history"]


def test_rights_go_to_required_and_back_under_kills(tmp_path: Path) -> None:
    """Nothing is lost, who has no right is refused then and only then, nobody else ever is."""
    scenario = tmp_path / "walk.toml"
    text = without_rates("walk").replace("hold_s = [3, 7]", "hold_s = [2, 3]", 1)
    scenario.write_text(text + "rounds_min = 1\n")
    done = chaos(
        "run", str(scenario), "--seconds", "20", "--output", str(tmp_path / "run"), "--json"
    )

    found = verdict(done)

    assert found["verdict"] == "OK", (found["reasons"], done.stderr[-3000:])
    assert found["rights"]["rounds"] >= 1


def planted(
    tmp_path: Path, scenario: str, module: str, seconds: str, *, runs_max: int = 1
) -> dict[str, Any]:
    """Run a scenario with a planted bug, at most ``runs_max`` times, until its report finds the bug."""
    for seed in range(1, runs_max + 1):
        out = tmp_path / f"run-{seed}"
        done = chaos(
            "run", scenario, "--seed", str(seed), "--seconds", seconds, "--json", "--output", str(out),
            "--node-module", f"tests.chaos.{module}",
        )  # fmt: skip
        found = verdict(done)
        if done.returncode == 6:
            return found
    raise AssertionError(f"{module} was not found in {runs_max} runs: {found}")


BESIDE = """
seconds = 20
[cluster]
bookies = 3
metadata_nodes = 1
write_proxies = 2
read_proxies = 1
gateways = 1
[[client]]
kind = "poster"
log = "posted"
rate = 100
[[client]]
kind = "many-logs"
logs = 4
rate = 200
through = "proxies"
[[client]]
kind = "tail"
log = "posted"
through = "proxies"
[[client]]
kind = "duel"
log = "fought"
rate = 100
pause_s = [0.1, 0.5]
waits = true
[[moment]]
at_s = 1
kind = "restart"
target = "write-proxy1"
hold_s = 0.5
[[moment]]
at_s = 2
kind = "strangers"
target = "bookie1"
hold_s = 3
[[moment]]
at_s = 3
kind = "kill"
target = "gateway"
hold_s = 0.5
[[moment]]
at_s = 3
kind = "run-client"
target = "duel"
hold_s = 10
[[moment]]
at_s = 6
kind = "settings"
target = "bookies"
settings = { repair = false }
hold_s = 1
"""
SHOWN = """
seconds = 300
[cluster]
bookies = 3
metadata_nodes = 1
read_proxies = 1
certificate_days = 1
[[client]]
kind = "many-logs"
logs = 20
rate = 200
[[client]]
kind = "tail"
log = "story-0"
through = "proxies"
[[moment]]
at_s = 1
kind = "wrong-memory"
target = "metadata"
hold_s = 1
[[moment]]
at_s = 1
kind = "clock"
target = "bookie1"
offset_s = 72_000
hold_s = 1
"""


@pytest.mark.extra
def test_proxies_gateways_and_strangers_break_no_promise(tmp_path: Path) -> None:
    pytest.importorskip("hypercorn", reason="needs the extra gateway")
    (tmp_path / "beside.toml").write_text(BESIDE + BOUNDS)

    out = tmp_path / "run"
    done = chaos("run", str(tmp_path / "beside.toml"), "--json", "--metrics", "--output", str(out))

    found = verdict(done)
    assert found["verdict"] == "OK", (found["reasons"], done.stderr[-3000:])
    said = {fault["kind"]: fault["words"] for fault in found["faults"]}
    assert len(said) == 5
    observations = (out / "history").read_text()
    # On a busy machine, neither writer of the duel may own the log long enough to get an acknowledgement.
    for client in ('"poster-1","ack"', '"many-logs-2","ack"', '"tail-3","got"', '"duel-4",'):
        assert client in observations


def test_a_run_by_hand_lasts_until_it_is_ended(tmp_path: Path) -> None:
    """With certificates, which clients show; and the fault lasts for minutes where nobody mends it."""
    (tmp_path / "shown.toml").write_text(SHOWN + BOUNDS)
    out = tmp_path / "run"
    words = ("chaos", "run", str(tmp_path / "shown.toml"), "--json", "--metrics", "--hold-faults")
    run = subprocess.Popen(
        [sys.executable, "-m", "distributedlog.cli.main", *words, "--output", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        limit = time.monotonic() + LONGEST_S
        while not (out / "runner.notes").exists() or (
            (out / "runner.notes").read_text().count(',"fault",') < 2
        ):
            assert run.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.2)
        named = json.loads((out / "cluster" / "targets.json").read_text())
        # The name of a log that is made meanwhile is kept wrongly.
        while any(out.glob("cluster/metadata1/memory")):
            assert time.monotonic() < limit
            time.sleep(0.2)
        assert chaos("end-faults", str(out)).returncode == 0
        assert chaos("end-faults", str(out), "--end-run").returncode == 0
        done, errors = run.communicate(timeout=LONGEST_S)
    finally:
        run.kill()
        run.wait()

    found = json.loads(done)
    assert found["verdict"] == "OK", (found["reasons"], errors[-3000:])
    assert "a bit was wrong at metadata1" in errors
    kinds = {one["labels"]["instance"]: one["labels"]["kind"] for one in named}
    assert kinds["read-proxy1"] == "read-proxy"
    assert kinds["tail-2"] == "client"
    late = chaos("end-faults", str(out), "--timeout", "1")
    assert late.returncode == 1
    assert "no run is active in" in late.stderr


@pytest.mark.campaigns
@pytest.mark.skipif(disks.refusal() is not None, reason=f"a power cut {disks.refusal()}")
def test_acknowledging_before_the_sync_is_found_by_the_power_cut(tmp_path: Path) -> None:
    """Planted: G2. What was acknowledged is gone: it is counted, or it ends every reader's way for good."""
    scenario = tmp_path / "power-all.toml"
    packaged = SCENARIOS / "power-all.toml"
    # What is lost ends no reader's way but the time for it: 40 s, not 90, for some seconds' records.
    scenario.write_text("settle_s = 10\n" + packaged.read_text())
    found = planted(tmp_path, str(scenario), "planted_sync", "15")

    assert found["verdict"] == "FAIL"
    assert found["acked_per_s"] > 0
    unread = [reason for reason in found["reasons"] if "no client read it completely" in reason]
    assert found["lost"] > 0 or unread


def test_skipping_the_fence_is_found_by_the_pause(tmp_path: Path) -> None:
    """Planted: G4.

    A pause shows it only if another writer takes the log over in time, and the paused one still has records
    to send. On a busy machine one run may have no such pause.
    """
    found = planted(tmp_path, "pauses", "planted_fence", "25", runs_max=3)

    assert found["verdict"] == "FAIL"
    assert found["lost"] > 0


def test_what_needs_root_is_refused_by_name_without_it(tmp_path: Path) -> None:
    """Exit code 5, and nothing is started; never passed over in silence."""
    here = Path(__file__).resolve()
    if os.geteuid() == 0 and not all(one.stat().st_mode & 0o005 == 0o005 for one in here.parents):
        pytest.skip("needs a checkout that other users may read, such as nobody")
    program = (
        "import os, sys, tomllib; from distributedlog.cli.main import main;"
        "from distributedlog.testing.chaos.adapters import local_processes;"
        "from distributedlog.testing.chaos.run import html_report as report, runner;"
        "from distributedlog.cli.testing import chaos;"
        "os.geteuid() or os.setuid(65534);"  # what python itself needs is loaded by now
        "main(sys.argv[1:])"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            "chaos",
            "run",
            "power-all",
            "--output",
            str(tmp_path / "run"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )

    assert done.returncode == 5, done.stderr
    assert "refused: power-cut on processes: needs root" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="asks what only root has")
def test_list_says_what_can_be_played_here() -> None:
    done = chaos("list", "--json")

    found = {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert found["kills"]["refused"] == []
    assert "power-cut" in found["power-all"]["faults"]
    assert bool(found["power-all"]["refused"]) == (disks.refusal() is not None)
