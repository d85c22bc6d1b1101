"""The simulator's own exam: named bugs, each put in by replacing one function, each to be found by seeds.

    python tests/sim/planted.py --all            a table: bug | layer | seeds until found | found by
    python tests/sim/planted.py --bug NAME       one bug, in this process
    python tests/sim/planted.py --list

Each bug runs in a process of its own, with the product as it is. A bug that survives its budget is a
finding about the faults that are drawn, and is listed as such. The cores have tables of their own
(testing/sim/raft/raft_injected_bugs.py, testing/sim/ledger/ledger_injected_bugs.py); ``--all`` prints them
too.
"""

import argparse
import gc
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))


from distributedlog.testing.sim.ledger import ledger_injected_bugs as ledger_planted  # noqa: E402
from distributedlog.testing.sim.ledger.bookie_world import BookieWorld  # noqa: E402
from distributedlog.testing.sim.workloads.seed import LogRun  # noqa: E402
from distributedlog.testing.sim.world.bug_injection import first_cause  # noqa: E402
from tests.ledger.driver_world import DriverWorld  # noqa: E402
from tests.sim import planted_bookie, planted_cluster, planted_driver  # noqa: E402, F401 (they register)
from tests.sim.planting import BUGS, Bug  # noqa: E402

SECONDS_MAX = {"bookie": 120.0, "cluster": 400.0, "driver": 60.0}
"""CPU seconds before a bug counts as surviving."""


def hunt(planted: Bug, *, start: int = 0) -> tuple[int, str, float] | None:
    """Seeds until found (1 or more), by what, CPU seconds; None: it survives its budget."""
    logging.disable(logging.CRITICAL)
    planted.plant()
    began = time.process_time()
    for number in range(planted.seeds):
        seed = start + number
        failures = run_seed(planted.layer, seed)
        used_s = time.process_time() - began
        if failures:
            cause = first_cause(failures)
            if isinstance(cause, AttributeError | TypeError | NameError):
                raise RuntimeError(f"the bug does not fit the product any more: {cause}") from cause
            return number + 1, f"{type(cause).__name__}: {str(cause).split(chr(10))[0]}", used_s
        if used_s > SECONDS_MAX[planted.layer]:
            return None
        if number % 5 == 4:
            gc.collect()
    return None


def run_seed(layer: str, seed: int) -> list[BaseException]:
    """What goes wrong in one seed of a layer."""
    if layer == "driver":
        return DriverWorld(seed).run()
    world: Any = BookieWorld(seed) if layer == "bookie" else LogRun(seed)
    failures: list[BaseException] = world.run().failures
    return failures


def describe(planted: Bug, found: tuple[int, str, float] | None) -> str:
    if found is None:
        verdict = f"directed: {planted.directed}" if planted.directed else "survives"
        return f"{planted.name} | {planted.layer} | survives {planted.seeds} | {verdict}"
    seeds, why, used_s = found
    return f"{planted.name} | {planted.layer} | {seeds} ({used_s:.0f} s) | {why[:110]}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--layer", choices=("bookie", "driver", "cluster"))
    parser.add_argument("--bug")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--start", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(BUGS))
        return 0
    if options.bug:
        planted = BUGS[options.bug]
        found = hunt(planted, start=options.start)
        print(describe(planted, found), flush=True)
        return 0 if found is not None else 1
    survivors = 0
    print("planted bug | layer | seeds until found | found by")
    for name, planted in BUGS.items():
        if options.layer in (None, planted.layer):
            run = subprocess.run(
                [sys.executable, __file__, "--bug", name, "--start", str(options.start)],
                capture_output=True,
                text=True,
            )
            print(
                run.stdout.strip() or f"{name} | {run.stderr.strip().splitlines()[-1]}", flush=True
            )
            survivors += run.returncode != 0 and not planted.directed
    if options.layer is None:
        for name in ledger_planted.INJECTED_BUGS:
            seed = ledger_planted.seeds_until_found(name, range(2000))
            verdict = "survives 2000" if seed is None else str(seed + 1)
            print(
                f"{name} | ledger core | {verdict} | {'' if seed is None else 'seeds'}", flush=True
            )
        subprocess.run(
            [sys.executable, "-m", "distributedlog.testing.sim.raft.raft_injected_bugs", "500"],
            cwd=ROOT,
        )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
