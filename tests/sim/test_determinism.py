"""The same seed is the same run: in another process, with other hash seeds, after other seeds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def hashes(hash_seed: str, seeds: list[int]) -> list[str]:
    code = (
        "import logging, sys; logging.disable(logging.CRITICAL);"
        "from distributedlog.testing.sim.workloads.seed import LogRun;"
        "from distributedlog.testing.sim.ledger.bookie_world import BookieWorld;"
        "print(*(LogRun(int(seed), chaos_s=6.0).run().trace_hash for seed in sys.argv[1:]),"
        " *(BookieWorld(int(seed), chaos_s=3.0).run().trace_hash for seed in sys.argv[1:]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *map(str, seeds)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.split()


@pytest.mark.seeds
def test_a_seed_has_one_trace_in_every_process() -> None:
    """Architecture 6: what else ran, which process, PYTHONHASHSEED: none of it matters."""
    first = hashes("1", [3, 4])
    second = hashes("77", [4, 3])

    assert first[0] == second[1]
    assert first[1] == second[0]
    assert first[2] == second[3]
    assert first[0] != first[1]
