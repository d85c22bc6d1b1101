"""Which of the system's policies the threads of this process are scheduled by.

Under ``batch`` (SCHED_BATCH of Linux) a thread that becomes runnable does not push the one that runs off its
core. Where bookies share few cores with who writes to them, each acknowledgement that comes wakes somebody in
the middle of something: with fewer of these switches a lone record is sooner done, and costs less CPU.
"""

import os

from .log_lines import get_logger

AS_STARTED, BATCH = "as_started", "batch"
POLICIES = (AS_STARTED, BATCH)

log = get_logger("distributedlog.runtime")


def take(policy: str) -> None:
    """Have this thread, and those that it starts from now on, scheduled so: called before there are others.

    `AS_STARTED` leaves what a service manager, or `chrt`, chose. Where the system refuses, it is said, and
    the process goes on: nothing but time depends on it.
    """
    if policy != BATCH:
        return
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        log.warning("cpu_policy = %s: %s; it goes on as it was started", policy, error.strerror)
