"""``python -m distributedlog.testing.sim``: run seeds of the whole cluster in virtual time, and judge each.

    python -m distributedlog.testing.sim --seeds 300            300 seeds from 0 on
    python -m distributedlog.testing.sim --seed 7 --keep-trace  one seed again, with its trace on stdout
    python -m distributedlog.testing.sim --workload pipeline    links, truncation, positions instead
    python -m distributedlog.testing.sim --workload proxied     producers and readers behind proxies
    python -m distributedlog.testing.sim --workload trusted     who may do what, and who tries what he may not

Prints totals, and for each failure the seed, the commit and the command that replays it. Exits with 1 if
any seed failed.
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
"""Exit code, as that of `dlog`."""


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m distributedlog.testing.sim")
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run only this one")
    parser.add_argument("--minutes", type=float, help="virtual minutes of faults a seed")
    parser.add_argument("--keep-trace", action="store_true", help="print each event")
    parser.add_argument("--stop-first", action="store_true", help="end at the first failure")
    parser.add_argument("--hash", action="store_true", help="print each seed's trace hash")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run seeds")
    parser.add_argument(
        "--workload", choices=sorted(WORKLOADS), default="log", help="what the clients do"
    )
    options = parser.parse_args(arguments)
    seeds = range(options.start, options.start + options.seeds)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    if options.keep_trace:
        logging.basicConfig(format="%(name)s: %(message)s", stream=sys.stdout)
    totals = CampaignTotals()
    # Several per process, so that no process has much left when the others have ended.
    chunk_seeds = min(CHUNK_SEEDS, max(1, len(seeds) // (4 * options.jobs)))
    chunks = [seeds[start : start + chunk_seeds] for start in range(0, len(seeds), chunk_seeds)]
    if len(chunks) == 1:
        totals.add_totals(run_chunk(options, seeds))
    else:
        spawn = multiprocessing.get_context("spawn")
        # A Ctrl-C is for this process, which ends them.
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
    """At once, for an interruption: within a simulation it would be an error of some node, and the seed's."""
    print("interrupted", file=sys.stderr, flush=True)
    workers = multiprocessing.active_children()
    for worker in workers:
        worker.terminate()
    if workers:  # no simulation runs here: what belongs to the workers is let go
        raise SystemExit(INTERRUPTED)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _end)
    sys.exit(main())
