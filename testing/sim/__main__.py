"""``python -m distributedlog.testing.sim``: run seeds of the whole cluster in virtual time, and check each.

    python -m distributedlog.testing.sim --seeds 300            seeds 0 to 299
    python -m distributedlog.testing.sim --seed 7 --keep-trace  one seed again, with its trace on stdout
    python -m distributedlog.testing.sim --workload pipeline    links, truncation, named positions
    python -m distributedlog.testing.sim --workload proxied     producers and readers behind proxies
    python -m distributedlog.testing.sim --workload trusted     authorization: clients with and without rights
    python -m distributedlog.testing.sim --mixed                processes of this version and of the older one

The command prints totals and, for each failure, the seed, the commit and the command that replays it. It
exits with 1 if any seed failed.
"""

import argparse
import logging
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from .workloads.campaign import CHUNK_SEEDS, WORKLOADS, CampaignTotals, run_chunk

INTERRUPTED = 130
"""Exit code after an interruption, the same as that of `dlog`."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m distributedlog.testing.sim")
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--minutes", type=float, help="virtual minutes of faults per seed")
    parser.add_argument("--keep-trace", action="store_true", help="print each event")
    parser.add_argument("--stop-first", action="store_true", help="end at the first failure")
    parser.add_argument("--hash", action="store_true", help="print each seed's trace hash")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run seeds")
    parser.add_argument(
        "--mixed", action="store_true", help="run processes of two versions, at random"
    )
    parser.add_argument(
        "--workload", choices=sorted(WORKLOADS), default="log", help="the kind of clients"
    )
    options = parser.parse_args(arguments)
    seeds = range(options.start, options.start + options.seeds)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    if options.keep_trace:
        logging.basicConfig(format="%(name)s: %(message)s", stream=sys.stdout)
    totals = CampaignTotals()
    # Several chunks per process, so that the processes end at about the same time.
    chunk_seeds = min(CHUNK_SEEDS, max(1, len(seeds) // (4 * options.jobs)))
    chunks = [seeds[start : start + chunk_seeds] for start in range(0, len(seeds), chunk_seeds)]
    if len(chunks) == 1:
        totals.add_totals(run_chunk(options, seeds))
    else:
        spawn = multiprocessing.get_context("spawn")
        # Ctrl-C interrupts only this process, which then ends the workers.
        ignore_interrupt = (signal.SIGINT, signal.SIG_IGN)
        with ProcessPoolExecutor(
            options.jobs, spawn, signal.signal, ignore_interrupt, max_tasks_per_child=1
        ) as workers:
            for totals_part in workers.map(partial(run_chunk, options), chunks):
                totals.add_totals(totals_part)
                if options.stop_first and totals.failed:
                    workers.shutdown(cancel_futures=True)
                    break
    print(totals.describe())
    return 1 if totals.failed else 0


def _end(*_: object) -> None:
    """Handle an interruption by ending the process at once.

    An exception inside a simulation would count as an error of a node, and the seed would fail.
    """
    print("interrupted", file=sys.stderr, flush=True)
    workers = multiprocessing.active_children()
    for worker in workers:
        worker.terminate()
    if workers:  # no simulation runs in this process, so it may end normally
        raise SystemExit(INTERRUPTED)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _end)
    sys.exit(main())
