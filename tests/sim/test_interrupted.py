"""`python -m distributedlog.testing.sim`, interrupted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distributedlog.cluster.local.child_processes import environment

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("seeds", [1, 50])
def test_an_interruption_is_no_failure_of_a_seed(seeds: int) -> None:
    """It was told as one, with the command that replays it, and the next seed began."""
    command = [
        sys.executable,
        "-m",
        "distributedlog.testing.sim",
        "--seeds",
        str(seeds),
        "--minutes",
        "60",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as sim:
        until = time.monotonic() + 60
        while not _begun(sim.pid) and time.monotonic() < until:
            time.sleep(0.05)
        workers = _children(sim.pid)
        sim.send_signal(signal.SIGINT)
        said = sim.communicate(timeout=60)

    assert said == (b"", b"interrupted\n")
    assert sim.returncode == 130
    assert bool(workers) == (seeds > 1)
    while any(os.path.exists(f"/proc/{worker}") for worker in workers) and time.monotonic() < until:
        time.sleep(0.05)
    assert [worker for worker in workers if os.path.exists(f"/proc/{worker}")] == []


def _children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def _begun(pid: int) -> bool:
    """Return whether it runs seeds, itself or in a worker. Imports alone take up to two seconds of CPU."""
    used = [
        Path(f"/proc/{one}/stat").read_text().rpartition(")")[2] for one in (pid, *_children(pid))
    ]
    return max(int(one.split()[11]) for one in used) > 4 * os.sysconf("SC_CLK_TCK")
