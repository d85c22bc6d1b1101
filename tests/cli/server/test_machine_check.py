"""Is a machine fit for a node: what passes, what is warned of, what fails, and that nothing is left."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from distributedlog.cli.main import command
from distributedlog.cli.server import machine_check as check
from distributedlog.testing.bench.measure.histogram import Histogram


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SECONDS", 0.05)


def test_a_directory_is_looked_at_and_left_as_it_was(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["check", str(tmp_path), "--json"])
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["what"] for one in found] == [
        "python", "system", "descriptors", "room", "file system", "syncs",
    ]  # fmt: skip
    assert all(one["verdict"] in (check.PASS, check.WARN, check.FAIL) for one in found)
    assert list(tmp_path.iterdir()) == []


def test_without_a_directory_nothing_is_written() -> None:
    done = CliRunner().invoke(command, ["check"])
    assert done.exit_code == 0
    assert "syncs" not in done.stdout


@pytest.mark.parametrize(
    ("took_s", "verdict"), [(0.001, check.PASS), (0.05, check.WARN), (0.9, check.FAIL)]
)
def test_slow_syncs_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_s: float, verdict: str
) -> None:
    times = Histogram()
    times.add(took_s, 100)
    monkeypatch.setattr(
        "distributedlog.testing.bench.measure.hardware_baseline.file_baseline", lambda *_: times
    )
    found = check.check_syncs(tmp_path, 1.0)
    assert found.verdict == verdict
    assert bool(found.then) == (verdict != check.PASS)


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /run tmpfs rw 0 0
/dev/sdb1 /run/with\\040blank xfs rw 0 0
tmpfs /data tmpfs rw 0 0
/dev/sdc1 /data ext4 rw 0 0
"""


@pytest.mark.parametrize(
    ("place", "verdict", "name"),
    [
        ("/var/lib", check.PASS, "ext4"),
        ("/run/x", check.FAIL, "tmpfs"),
        ("/run/with blank/x", check.PASS, "xfs"),
        ("/data", check.PASS, "ext4"),
    ],
)
def test_what_is_in_memory_fails(tmp_path: Path, place: str, verdict: str, name: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    found = check.check_file_system(Path(place), mounts)
    assert (found.verdict, found.found) == (verdict, name)


def test_what_cannot_be_known_is_said(tmp_path: Path) -> None:
    assert check.check_file_system(tmp_path, tmp_path / "none").verdict == check.WARN
