"""Exclude loaded modules from garbage collection in Spark's Python processes.

This module imports little, because the search for data sources imports it.
"""

import gc
import os
import sys

DAEMON = "pyspark.daemon"

_frozen = (0, False)
"""(process ID, whether it had a client at that time)"""


def freeze_worker_heap(*, with_client: bool = False) -> None:
    """In a process of Spark's daemon, exclude all present objects from garbage collection.

    The daemon collects after *every* call that it serves: a task, or a planning step of the driver. With
    pyarrow and numpy loaded, a collection takes 45 ms. The heap is frozen once per process, and once more
    ``with_client``, because a client adds a quarter as many objects. It is not done in other processes:
    frozen objects are never collected, so a program would keep objects that it drops.
    """
    global _frozen
    pid, frozen_before = os.getpid(), _frozen
    if (
        frozen_before[0] == pid and frozen_before[1] >= with_client
    ) or not _is_spark_daemon_child():
        return
    _frozen = (pid, with_client)
    gc.collect()
    gc.freeze()


def _is_spark_daemon_child() -> bool:
    """Whether Spark's daemon forked this process: its module is the main module or is imported by it."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(main, "name", "") == DAEMON or DAEMON in sys.modules
