"""What the collections of Spark's Python processes look at. Loads little: the search for sources loads it."""

import gc
import os
import sys

DAEMON = "pyspark.daemon"

_frozen = (0, False)
"""(process id, had it a client by then?)"""


def freeze_worker_heap(*, with_client: bool = False) -> None:
    """In a process of Spark's daemon: what is loaded by now is looked at by no collection any more.

    The daemon collects after *every* call that it serves, a task or a look of the driver's (which source,
    which partitions, may it be written, commit): 45 ms with pyarrow and numpy loaded. Once a process, and
    once more ``with_client``: what a client is made of is a quarter as much. Nowhere else, for what is
    frozen is never looked at again: a program would keep what it drops.
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
    """Is this a process that Spark's daemon has forked? It runs as the main module, or is imported by one."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(main, "name", "") == DAEMON or DAEMON in sys.modules
