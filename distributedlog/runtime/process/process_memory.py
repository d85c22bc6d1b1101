"""Memory of a process: full garbage collections, and freed memory that the C library keeps.

A node runs a full collection after its process has grown, and not before. Python runs one if the survivors
of young collections are a quarter of the old objects. Under load most survivors belong to requests in
progress: a proxy of 2,000 logs ran one every ten seconds and blocked for a third of a second.

Full collections stay on, because cycles can hold buffers. Freezing after each opening instead would keep the
cycles of closed logs forever, and unfreezing writes into pages that forked nodes share.
"""

import contextlib
import ctypes
import gc
import os
import sys

import trio

with contextlib.suppress(ImportError):  # not on Windows, where only clients run
    import resource

CHECK_INTERVAL_S = 1.0
GROWTH_FACTOR = 1.5
"""So many times as much as after the last look is worth the next one,"""
GROWTH_FACTOR_IDLE = 1.2
"""and so many in a node that has nothing else to do: what was opened is looked at before it is used."""
BLOCKS_MIN, BLOCKS_MIN_IDLE = 100_000, 20_000
"""More, at the least: blocks of Python's allocator, about as many as objects. The first are some 8 MB."""
RESIDENT_KIB_MIN = 64 * 1024
IDLE_CPU_FRACTION = 0.2
"""Of a core, used since the last look: below it a node is idle."""
FULL_COLLECTION_NEVER = 1 << 30
"""Collections of the young before one of all."""

_own_process = False
"""While `collect_when_grown` runs: this process is a node and nothing else."""


class GrowthThresholds:
    """How large a process was when all was looked at, and whether it has grown since (pure)."""

    def __init__(self, blocks: int, resident_kib: int) -> None:
        self._blocks_max = max(GROWTH_FACTOR * blocks, blocks + BLOCKS_MIN)
        self._blocks_max_idle = max(GROWTH_FACTOR_IDLE * blocks, blocks + BLOCKS_MIN_IDLE)
        self._resident_kib_max = max(GROWTH_FACTOR * resident_kib, resident_kib + RESIDENT_KIB_MIN)

    def is_exceeded(self, blocks: int, resident_kib: int, *, idle: bool) -> bool:
        """Is it worth a look? Of few objects some may hold much."""
        blocks_limit = self._blocks_max_idle if idle else self._blocks_max
        return blocks > blocks_limit or resident_kib > self._resident_kib_max


async def collect_when_grown() -> None:
    """See the module; until cancelled."""
    global _own_process
    _own_process = True
    thresholds_before = gc.get_threshold()
    gc.set_threshold(thresholds_before[0], thresholds_before[1], FULL_COLLECTION_NEVER)
    try:
        thresholds, used_s = GrowthThresholds(*_process_size()), _cpu_used_s()
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            previous_used_s, used_s = used_s, _cpu_used_s()
            if thresholds.is_exceeded(
                *_process_size(),
                idle=used_s - previous_used_s < IDLE_CPU_FRACTION * CHECK_INTERVAL_S,
            ):
                gc.collect()
                thresholds, used_s = GrowthThresholds(*_process_size()), _cpu_used_s()
    finally:
        _own_process = False
        gc.set_threshold(*thresholds_before)


def freeze_existing_objects() -> None:
    """Nothing that is there now is looked at for garbage again, in a process that is a node and nothing else.

    Of a program, of whose nodes each is a part only, and of a simulated world it would be kept for ever.
    """
    if _own_process:
        gc.freeze()


def _cpu_used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _process_size() -> tuple[int, int]:
    """Blocks that are allocated, and the most KiB that were ever resident."""
    return sys.getallocatedblocks(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# --- freed memory ------------------------------------------------------------------------------------

MIB = 1024 * 1024
TRIM_THRESHOLD = -1
TOP_PAD = -2
MMAP_THRESHOLD = -3
MALLOC_SETTINGS = ((TRIM_THRESHOLD, 32 * MIB), (TOP_PAD, 4 * MIB), (MMAP_THRESHOLD, 4 * MIB))
"""M_* of malloc.h, and bytes: free memory at the end of the heap, and the smallest separate mapping."""

_keeps_freed_memory = False


def keep_freed_memory() -> None:
    """Keep up to 32 MiB of freed memory in this process. Once; never against a setting of the user's.

    A reader at full speed makes and drops records by the megabyte. glibc gives each megabyte back to the
    kernel at once, and takes it again, zeroed and page by page: measured, 1.0 instead of 0.4 µs a record of
    1 KB. It is a setting of the whole process, so only the command `dlog` calls it; another program
    that reads much may call it too.

    ``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_TOP_PAD_`` and ``MALLOC_MMAP_THRESHOLD_`` have precedence.
    Without glibc it does nothing.
    """
    global _keeps_freed_memory
    if _keeps_freed_memory:
        return
    _keeps_freed_memory = True
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # on Windows None names no library
        return
    for parameter, value in MALLOC_SETTINGS:
        mallopt(parameter, value)
