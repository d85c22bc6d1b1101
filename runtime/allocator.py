"""What the C library does with memory that was freed: keep some of it.

A reader at full speed makes and drops records by the megabyte. glibc gives each megabyte back to the kernel
at once, and takes it again, zeroed and page by page: measured, 1.0 instead of 0.4 µs a record of 1 KB. It is
a setting of the whole process, so only processes of ours call it (`dlog`); a program that reads a lot may.
"""

import ctypes
import os

MIB = 1024 * 1024
TRIM_THRESHOLD = -1
TOP_PAD = -2
MMAP_THRESHOLD = -3
SETTINGS = ((TRIM_THRESHOLD, 32 * MIB), (TOP_PAD, 4 * MIB), (MMAP_THRESHOLD, 4 * MIB))
"""M_* of malloc.h, and bytes: what may stay free at the heap's end, and what is mapped alone."""

_done = False


def keep_freed_memory() -> None:
    """Keep up to 32 MiB of freed memory in this process. Once; never against a setting of the user's.

    Whoever set ``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_TOP_PAD_`` or ``MALLOC_MMAP_THRESHOLD_`` decides.
    Without glibc it does nothing.
    """
    global _done
    if _done:
        return
    _done = True
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # on Windows None names no library
        return
    for parameter, value in SETTINGS:
        mallopt(parameter, value)
