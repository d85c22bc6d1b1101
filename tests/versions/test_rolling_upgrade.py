"""Upgrade and downgrade of a cluster of the older build under load, as docs/operate/upgrade.md describes."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from distributedlog.cluster.declarations.options import READ_PROXY, WRITE_PROXY
from distributedlog.testing.verify.checks.run_check import OK
from tests.cluster.story import Cluster

from .upgrade_run import ROOT, UpgradeRun, longest_gaps

SHARED = "shared"
"""The log of the producers."""
BUILDS = ("older", "newer")
SCRIPT = ROOT / "ops/rolling-restart.sh"
RECORDING = """\
#!/bin/sh
echo "{name} $*" >>"{folder}/calls"
case "$*" in *" can-"*) ;; *) exit 0 ;; esac
read -r code <"{folder}/codes" || exit 0
sed -i 1d "{folder}/codes"
exit "$code"
"""
"""A program that records its arguments."""


@contextmanager
def upgrade_run(
    directory: Path, older_python: str, older: Sequence[str] = ()
) -> Iterator[UpgradeRun]:
    """Run three metadata nodes, four bookies and two proxies: all of the older build, or only some."""
    kinds = (WRITE_PROXY, READ_PROXY)
    with Cluster.planned(directory, bookies=4, proxies=kinds) as cluster:
        names = [node.name for node in cluster.plan.nodes]
        cluster.pythons = dict.fromkeys(older or names, older_python)
        cluster.start()
        run = UpgradeRun(cluster, {"older": older_python, "newer": sys.executable})
        try:
            yield run
        finally:
            run.kill_clients()


def nodes_of(run: UpgradeRun) -> list[str]:
    """Return the nodes as rolling-restart.sh names them."""
    return [f"{node.kind}/{node.name}" for node in run.cluster.plan.nodes]


def assert_exactly_once(
    run: UpgradeRun, reports: dict[str, Any], build: str, *, proxied: bool
) -> None:
    """Check that a build reads each producer's records once and in order, directly or through a proxy."""
    found = run.read_producers(build, SHARED, proxied=proxied)
    assert found["unexpected"] == dict.fromkeys(reports), (found, reports)
    for producer, report in reports.items():
        assert found["counts"][producer] >= report["acknowledged"] > 0, (found, reports)


def run_script(directory: Path, *arguments: str, codes: str = "") -> tuple[int, list[str]]:
    """Run rolling-restart.sh with programs that record their calls; return the exit code and the calls.

    Each call of `can-stop` or `can-downgrade` takes one exit code from ``codes``; afterwards all are 0.
    """
    (directory / "codes").write_text("".join(f"{code}\n" for code in codes.split()))
    (directory / "calls").touch()
    for name in ("dlog", "restart-node", "sleep"):
        file = directory / name
        file.write_text(RECORDING.format(name=name, folder=directory))
        file.chmod(0o755)
    done = subprocess.run(
        ["sh", str(SCRIPT), *arguments],
        env={"PATH": f"{directory}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.returncode, (directory / "calls").read_text().splitlines()


@pytest.mark.parametrize(
    ("direction", "kinds"),
    [
        ("upgrade", ["metadata", "bookie", "write-proxy", "read-proxy", "gateway"]),
        ("downgrade", ["gateway", "read-proxy", "write-proxy", "bookie", "metadata"]),
    ],
)
def test_script_restarts_each_kind_after_its_checks(
    tmp_path: Path, direction: str, kinds: list[str]
) -> None:
    healthy = "dlog --quiet status --wait --timeout 600"
    checks = {
        "metadata": ["dlog --quiet node can-stop metadata1"],
        "bookie": ["dlog --quiet node can-stop bookie1"],
        "write-proxy": ["dlog --quiet proxy drain write-proxy1"],
    }

    version = ["0.1"] if direction == "downgrade" else []
    nodes = [f"{kind}/{kind}1" for kind in sorted(kinds)]
    code, calls = run_script(tmp_path, direction, *version, "restart-node", *nodes)

    expected = ["dlog --quiet cluster can-downgrade 0.1"] if version else []
    for kind in kinds:
        expected += [healthy, *checks.get(kind, []), f"restart-node {kind} {kind}1"]
    assert (code, calls) == (0, [*expected, healthy])


def test_script_repeats_a_negative_answer_and_stops_at_an_error(tmp_path: Path) -> None:
    code, calls = run_script(tmp_path, "upgrade", "restart-node", "bookie/b1", codes="6 6 0")
    assert code == 0
    assert [call.split()[-2] for call in calls].count("can-stop") == 3

    (tmp_path / "calls").unlink()
    for codes in ("4", "6 " * 1000):
        code, calls = run_script(tmp_path, "upgrade", "restart-node", "bookie/b1", codes=codes)
        assert code == 1
        assert not any(call.startswith("restart") for call in calls)


@pytest.mark.parametrize("code", [6, 4])
def test_script_refuses_a_downgrade_below_the_version_of_the_cluster(
    tmp_path: Path, code: int
) -> None:
    """Also if that version cannot be read. No node is restarted."""
    arguments = ("downgrade", "0.1", "restart-node", "gateway/g1", "bookie/b1")
    found, calls = run_script(tmp_path, *arguments, codes=str(code))
    assert (found, calls) == (code, ["dlog --quiet cluster can-downgrade 0.1"])


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("upgrade", "restart-node"),
        ("sidegrade", "r", "bookie/b1"),
        ("upgrade", "r", "b1"),
        ("downgrade", "r", "bookie/b1", "bookie/b2"),
        ("downgrade", "0.1", "r"),
    ],
)
def test_script_rejects_other_arguments(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert run_script(tmp_path, *arguments) == (2, [])


@pytest.mark.processes
def test_mixed_cluster_loses_and_repeats_nothing(tmp_path: Path, older_python: str) -> None:
    """One node of each kind is upgraded and downgraded, with a kill in between."""
    rolled = ("metadata1", "bookie1", "write-proxy1", "read-proxy1")
    with upgrade_run(tmp_path, older_python, (*rolled, "metadata2", "metadata3")) as run:
        nodes = [node for node in nodes_of(run) if node.endswith(rolled)]
        run.start_client("older", "writer", "direct")
        run.start_client("older", "tail", "direct", proxied=True)
        for build in BUILDS:
            run.start_producer(build, SHARED, proxied=True)
        run.roll("Upgrade", "newer", nodes)
        run.kill("bookie1")
        run.roll("Downgrade", "older", nodes)
        reports = run.end_clients()

        assert_exactly_once(run, reports, "older", proxied=True)
        assert_exactly_once(run, reports, "newer", proxied=False)
        result, _ = run.check(["newer"])
        assert result.verdict == OK, result.reasons


@pytest.mark.processes
@pytest.mark.campaigns
def test_three_upgrades_and_downgrades_with_kills_lose_and_repeat_nothing(
    tmp_path: Path, older_python: str
) -> None:
    """Prints records, losses, duplicates, and the longest gap of each writer in each step."""
    with upgrade_run(tmp_path, older_python) as run:
        for build in BUILDS:
            run.start_client(build, "writer", f"{build}-log")
            run.start_client(build, "writer", f"{build}-proxied-log", proxied=True)
            run.start_client(build, "tail", "older-log")
            run.start_client(build, "tail", "newer-log", proxied=True)
            run.start_producer(build, SHARED, proxied=True)
        with run.random_kills():
            for _ in range(3):
                run.roll("Upgrade", "newer", nodes_of(run))
                run.roll("Downgrade", "older", nodes_of(run))
        reports = run.end_clients()

        for build in BUILDS:
            assert_exactly_once(run, reports, build, proxied=False)
            assert_exactly_once(run, reports, build, proxied=True)
        result, observations = run.check(BUILDS)
        steps = [fault for fault in observations.faults if fault.kind != "kill"]
        kills = len(observations.faults) - len(steps)
        print(f"\n{result.totals()}, {kills} kills, {result.time_line.load_percentiles_ms}")
        for log in observations.logs.values():
            print(log.name, longest_gaps(log, steps))
        print_producers(reports, steps)
        assert result.verdict == OK, result.reasons


def print_producers(reports: dict[str, Any], steps: Sequence[Any]) -> None:
    """Print the number of records of each producer, and its longest gap in each step."""
    for producer, report in reports.items():
        gaps = [
            max(
                (gap for at, gap in report["gaps"] if one.begun_at <= at <= one.ended_at), default=0
            )
            for one in steps
        ]
        print(producer, report["acknowledged"], [round(gap, 1) for gap in gaps], report["errors"])
