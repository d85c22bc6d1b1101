"""What known ledgers cost a bookie: its start, a renewal of its lease, its memory.

    python -m tests.bookie.known_ledgers --ledgers 1000000

Every ledger has one entry; a tenth of them are deleted. Then the bookie is stopped as a node stops it, and
started; killed, and started. Prints CPU seconds of this process and of the child that probes the index,
memory, and the calls that one renewal makes.
"""

import argparse
import gc
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import trio

from distributedlog.bookie.opening import open_store
from distributedlog.bookie.options import BookieOptions
from distributedlog.bookie.store import Store
from distributedlog.runtime.errors import DistributedLogError
from distributedlog.runtime.files import DirectoryDisk
from distributedlog.runtime.machine import real_host

from .kit import Adder, record

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
    peak_mib: int
    renewal_calls: int


async def _fill(store: Store, ledgers: int) -> None:
    for first in range(0, ledgers, AT_ONCE):
        adders = [Adder(store, ledger) for ledger in range(first, min(ledgers, first + AT_ONCE))]
        for adder in adders:
            adder.send(record(adder.ledger, 0))
        for adder in adders:
            await adder.all_acked()
            store.adds.close_stream(adder.stream)
        async with trio.open_nursery() as nursery:
            for adder in adders[::DELETED_OF]:
                nursery.start_soon(store.delete_ledger, adder.ledger)


def _cpu_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def _renewal(store: Store) -> None:
    """What is asked of the store with each renewal of its lease."""
    assert store.ledgers.known
    store.what_is_wrong()
    assert not store.limbo.any_limbo
    assert store.durable_to


def _calls(store: Store) -> int:
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(note)
    try:
        _renewal(store)
    finally:
        sys.setprofile(None)
    return count


async def measure(directory: Path, ledgers: int) -> dict[str, Start]:
    """Fill a bookie, then start it after a clean stop and after a kill."""
    found: dict[str, Start] = {}
    for how in ("fill", "after a clean stop", "after a kill"):
        journal, index = DirectoryDisk(directory / "journal"), DirectoryDisk(directory / "index")
        gc.collect()
        before = time.monotonic(), _cpu_s(resource.RUSAGE_SELF), _cpu_s(resource.RUSAGE_CHILDREN)
        host = real_host("b1", disks={"journal": journal, "index": index})
        store = await open_store(host, OPTIONS, bookie_id="b1")
        found[how] = Start(
            time.monotonic() - before[0],
            _cpu_s(resource.RUSAGE_SELF) - before[1],
            _cpu_s(resource.RUSAGE_CHILDREN) - before[2],
            store.ledgers.known,
            len(store.ledgers.by_id),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            _calls(store) if how != "fill" else 0,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            if how == "fill":
                await _fill(store, ledgers)
            if how != "after a clean stop":  # the next start finds this one's last checkpoint
                try:
                    await store.checkpoint()
                except DistributedLogError as error:
                    raise SystemExit(f"no checkpoint: {error}") from error
            nursery.cancel_scope.cancel()
        await journal.close()
        await index.close()
    del found["fill"]
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ledgers", type=int, default=1_000_000)
    ledgers = parser.parse_args().ledgers
    with tempfile.TemporaryDirectory() as directory:
        found = trio.run(measure, Path(directory), ledgers)
    for how, start in found.items():
        print(f"{how}: {start}")


if __name__ == "__main__":
    main()
