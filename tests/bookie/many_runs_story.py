"""What compaction costs a lone writer on a bookie of very many runs.

    python -m tests.bookie.many_runs_story --runs 6000000

One store in this process, on a directory. Its index is filled with ``--runs`` runs of entries that are
nowhere (a second a quarter of a million). Then a lone writer of 1 KB, beside nothing, and beside compaction
of ``--files`` files in which of four interleaved ledgers three were deleted. Printed are, for both, its p50
and p99, and the CPU of this process; and for compaction how long each cold file took.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import trio

from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.bookie.gc.compaction_policy import SHORT_OUTPUT_S
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.bookie.store.startup import open_store
from distributedlog.runtime.declarations.options import MIB
from distributedlog.runtime.disk.directory_disk import DirectoryDisk
from distributedlog.runtime.disk.sync_mode import choose_sync_mode
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.primitives.background_rate import p99

from .kit import Adder, record

NOWHERE = 1 << 40
"""Ids of the ledgers whose entries are nowhere."""
RUNS_A_LEDGER = 100_000
FILE_BYTES = 16 * MIB
LONE = 1 << 41
PAYLOAD_BYTES = 4000
OPTIONS = replace(
    BookieOptions(),
    free_bytes_min=0,
    compaction_s=0,
    journal_file_bytes=FILE_BYTES,
    checkpoint_runs=1 << 30,
)


async def fill(store: BookieStore, runs: int) -> None:
    """So many runs in the map, in a file that nobody looks for."""
    number = 1 << 30
    for first in range(0, runs, RUNS_A_LEDGER):
        ledger = store.ledgers.get_or_make(NOWHERE + first)
        store._index.mark_state_dirty(ledger)
        for n in range(RUNS_A_LEDGER):
            store._index.add(ledger, n, 1, number, 4096 * n, 1100)
        await store.checkpoint()


async def interleaved(store: BookieStore, first: int, files: int) -> None:
    """Four ledgers over so many files, three of which are deleted."""
    adders = [Adder(store, first + n) for n in range(4)]
    for n in range(files * FILE_BYTES // (4 * PAYLOAD_BYTES)):
        for adder in adders:
            adder.send(record(adder.ledger, n, bytes(PAYLOAD_BYTES)))
        if n % 16 == 0:
            for adder in adders:
                await adder.all_acked()
    for adder in adders:
        await adder.all_acked()
    for adder in adders[1:]:
        await store.delete_ledger(adder.ledger)
    await store.checkpoint()


async def alone(store: BookieStore, ledger: int, times: list[float]) -> None:
    """1 KB each, the next a millisecond after the last one."""
    adder = Adder(store, ledger)
    number = 0
    while True:
        begun = time.perf_counter()
        adder.send(record(ledger, number, bytes(1000)))
        await adder.all_acked()
        times.append(time.perf_counter() - begun)
        number += 1
        await trio.sleep(0.001)


def say(what: str, times: list[float], cpu_s: float, wall_s: float) -> None:
    """A line of figures."""
    print(
        f"{what}: {len(times)} records in {wall_s:.1f} s, p50 {median(times) * 1000:.2f} p99"
        f" {p99(times) * 1000:.2f} max {max(times) * 1000:.1f} ms, CPU {cpu_s / wall_s:.2f} of a core",
        flush=True,
    )


async def tell(path: Path, runs: int, files: int, quiet_s: float) -> None:
    """The whole of it."""
    disk = DirectoryDisk(path)
    disk.sync_mode = (await choose_sync_mode(disk.path)).mode
    host = real_host("b1", disks={"journal": disk, "index": disk})
    store = await open_store(host, OPTIONS, bookie_id="b1")
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await fill(store, runs)
        await interleaved(store, 1, files)
        store.compactor._started_at -= SHORT_OUTPUT_S
        for working in (False, True):
            times: list[float] = []
            took: list[float] = []
            async with trio.open_nursery() as beside:
                beside.start_soon(alone, store, LONE + working, times)
                await trio.sleep(0.5)
                times.clear()
                cpu, begun = time.process_time(), time.monotonic()
                if working:
                    at = begun
                    while await store.compactor.compact_once():
                        took.append(time.monotonic() - at)
                        at = time.monotonic()
                else:
                    await trio.sleep(quiet_s)
                say(
                    f"beside compaction, {store._index.stored_totals.extent_count:,} runs"
                    if working
                    else "alone",
                    times,
                    time.process_time() - cpu,
                    time.monotonic() - begun,
                )
                beside.cancel_scope.cancel()
            if took:
                print("each cold file took, s:", *(round(each, 2) for each in took))
        nursery.cancel_scope.cancel()
    await disk.close()


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--quiet", type=float, default=5.0, help="seconds beside nothing")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        trio.run(tell, Path(directory), asked.runs, asked.files, asked.quiet)


if __name__ == "__main__":
    main()
