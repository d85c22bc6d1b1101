"""Run many seeds of the Raft world: ``python -m tests.metadata.raft_fuzz --seeds 20000``.

A failing seed prints its number and the command that replays it. ``--first`` starts elsewhere.
"""

import argparse
import sys
import time

from distributedlog.testing.sim.raft.raft_world import RaftWorld, run_seeds


def main(arguments: list[str]) -> int:
    """Run the seeds; 0 if all hold."""
    parser = argparse.ArgumentParser(prog="raft_fuzz")
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args(arguments)
    started = time.process_time()
    found = run_seeds(range(options.first, options.first + options.seeds), RaftWorld)
    if found is not None:
        print(f"seed {found[0]}: {found[1]}")
        print(f"replay: python -m tests.metadata.raft_fuzz --first {found[0]} --seeds 1")
        return 1
    took = time.process_time() - started
    print(f"{options.seeds} seeds hold; {60 * options.seeds / max(took, 1e-9):.0f} seeds a minute")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
