"""What known ledgers cost a bookie: its start, a renewal of its lease, its memory.

    python -m tests.bookie.known_ledgers --ledgers 1000000

Every ledger has one entry; a tenth of them are deleted. Then the bookie is stopped as a node stops it, and
started; adds to a thousand of its ledgers and is killed; and started. Each in a process of its own. Prints
seconds, CPU seconds of that process and of the child that probes the index, memory before and after the
start and at its most, and what the profiler sees of one renewal, and of the first use of a ledger.
"""

import argparse
import gc
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import trio

from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.bookie.store.startup import open_store
from distributedlog.runtime.disk.directory_disk import DirectoryDisk
from distributedlog.runtime.machine import real_host

from .kit import KEY, Adder, record

OPTIONS = BookieOptions(free_bytes_min=0)
AT_ONCE = 1_000
DELETED_OF = 10


@dataclass(slots=True)
class Start:
    """What one start cost."""

    wall_s: float
    cpu_s: float
    child_cpu_s: float
    ledgers: int
    in_memory: int
    """`Ledger` objects."""
    rss_mib: float
    grown_mib: float
    """By the start; pages of the index that were read count."""
    peak_mib: int
    renewal_events: int
    first_use_events: int


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def _cpu_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


async def _add(store: BookieStore, first: int, last: int, entry: int) -> list[Adder]:
    adders = [
        Adder(store, ledger) for ledger in range(first, last) if ledger % DELETED_OF or not entry
    ]
    for adder in adders:
        adder.send(record(adder.ledger, entry))
    for adder in adders:
        await adder.all_acked()
        store.add_handler.close_stream(adder.stream)
    return adders


async def _fill(store: BookieStore, ledgers: int) -> None:
    for first in range(0, ledgers, AT_ONCE):
        adders = await _add(store, first, min(ledgers, first + AT_ONCE), 0)
        async with trio.open_nursery() as nursery:
            for adder in adders[::DELETED_OF]:
                nursery.start_soon(store.delete_ledger, adder.ledger)


def _renewal(store: BookieStore) -> None:
    """What is asked of the store with each renewal of its lease."""
    assert store.ledgers.known_count
    store.health_conditions()
    assert not store.limbo.any_limbo
    assert store.durable_to
    assert store.stored_bytes


def _events(call: Callable[[], object]) -> int:
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


async def _serve(directory: Path, ledgers: int, how: str) -> Start:
    """Start a bookie, look at it, and use it so that the next start finds what it should."""
    journal, index = DirectoryDisk(directory / "journal"), DirectoryDisk(directory / "index")
    host = real_host("b1", disks={"journal": journal, "index": index})
    gc.collect()
    before = time.monotonic(), _cpu_s(resource.RUSAGE_SELF), _cpu_s(resource.RUSAGE_CHILDREN)
    rss = _rss_mib()
    store = await open_store(host, OPTIONS, bookie_id="b1")
    found = Start(
        round(time.monotonic() - before[0], 2),
        round(_cpu_s(resource.RUSAGE_SELF) - before[1], 2),
        round(_cpu_s(resource.RUSAGE_CHILDREN) - before[2], 2),
        store.ledgers.known_count,
        store.ledgers.loaded_count,
        round(_rss_mib(), 1),
        round(_rss_mib() - rss, 1),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        _events(lambda: _renewal(store)) if how != "fill" else 0,
        _events(lambda: store.ledgers.get_known(ledgers // 2 + 1, KEY)) if how != "fill" else 0,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        if how == "fill":
            await _fill(store, ledgers)
            await store.checkpoint()
        elif how == "after a clean stop":
            await _add(store, ledgers // 2, ledgers // 2 + AT_ONCE, 1)
        nursery.cancel_scope.cancel()
    if how != "after a clean stop":
        await journal.close()
        await index.close()
    return found


def _run(directory: Path, ledgers: int, how: str) -> Start:
    return trio.run(_serve, directory, ledgers, how)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ledgers", type=int, default=1_000_000)
    ledgers = parser.parse_args().ledgers
    with tempfile.TemporaryDirectory() as directory:
        for how in ("fill", "after a clean stop", "after a kill"):
            with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as process:
                found = process.submit(_run, Path(directory), ledgers, how).result()
            if how != "fill":
                print(f"{how}: {found}", flush=True)


if __name__ == "__main__":
    main()
