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
"""A full collection runs if the process is `GROWTH_FACTOR` times as large as after the previous one.

In an idle node, `GROWTH_FACTOR_IDLE` is enough. New objects, for example of opened logs, are then collected
before they are used.
"""
BLOCKS_MIN, BLOCKS_MIN_IDLE = 100_000, 20_000
"""The minimum growth in blocks of Python's allocator, about one per object. 100,000 blocks are about 8 MB."""
RESIDENT_KIB_MIN = 64 * 1024
IDLE_CPU_FRACTION = 0.2
"""A node that used less than this fraction of a core since the previous check is idle."""
FULL_COLLECTION_NEVER = 1 << 30
"""The number of young collections before a full one."""

_own_process = False
"""True while `collect_when_grown` runs: this process is a node and nothing else."""


class GrowthThresholds:
    """Whether a process has grown since its last full collection (pure)."""

    def __init__(self, blocks: int, resident_kib: int) -> None:
        self._blocks_max = max(GROWTH_FACTOR * blocks, blocks + BLOCKS_MIN)
        self._blocks_max_idle = max(GROWTH_FACTOR_IDLE * blocks, blocks + BLOCKS_MIN_IDLE)
        self._resident_kib_max = max(GROWTH_FACTOR * resident_kib, resident_kib + RESIDENT_KIB_MIN)

    def is_exceeded(self, blocks: int, resident_kib: int, *, idle: bool) -> bool:
        """Return whether a full collection is worthwhile.

        Few objects can hold much memory, so the resident size counts too.
        """
        blocks_limit = self._blocks_max_idle if idle else self._blocks_max
        return blocks > blocks_limit or resident_kib > self._resident_kib_max


async def collect_when_grown() -> None:
    """Run a full collection whenever the process has grown, until cancelled (see the module)."""
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
    """Exclude all present objects from garbage collection, in a process that is only a node.

    A program that contains nodes, or a simulated world, would keep them forever, so there the call has no
    effect.
    """
    if _own_process:
        gc.freeze()


def _cpu_used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _process_size() -> tuple[int, int]:
    """Return the number of allocated blocks, and the peak resident size in KiB."""
    return sys.getallocatedblocks(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# --- freed memory ------------------------------------------------------------------------------------

MIB = 1024 * 1024
TRIM_THRESHOLD = -1
TOP_PAD = -2
MMAP_THRESHOLD = -3
MALLOC_SETTINGS = ((TRIM_THRESHOLD, 32 * MIB), (TOP_PAD, 4 * MIB), (MMAP_THRESHOLD, 4 * MIB))
"""Parameters of mallopt (``M_*`` in malloc.h) and their values in bytes."""

_keeps_freed_memory = False


def keep_freed_memory() -> None:
    """Keep up to 32 MiB of freed memory in this process. Only the first call has an effect.

    A reader at full speed makes and drops records by the megabyte. glibc returns each megabyte to the kernel
    at once and requests it again, zeroed page by page. That costs 1.0 instead of 0.4 µs per record of 1 KB.
    The setting applies to the whole process, so only the command `dlog` calls this function. Other programs
    that read much may call it too.

    The environment variables ``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_TOP_PAD_`` and ``MALLOC_MMAP_THRESHOLD_``
    have precedence. Without glibc, the call has no effect.
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
