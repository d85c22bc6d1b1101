"""Level-triggered work: look at the whole again on every change and on a timer, never at the change.

Changes are drained while the work goes on: however many come, one look follows them. With a look for each
change, 200 notes that their repair removed one by one cost 200 passes over what was left of them.
"""

from collections.abc import Awaitable, Callable, Sequence

import trio

from ...metadata.model.interface import Metadata, prefix_end
from ...runtime.interfaces.errors import Compacted, DistributedLogError
from ...runtime.interfaces.log_lines import Logger, get_logger
from ...runtime.schedule.work_failures import WorkFailures
from .gc_hold import ElectionStatus

RETRY_S = 1.0
GATHER_S = 0.1
"""After the first change: those that come with it are looked at together."""
REST = 4
"""Times as long as a look took nothing is looked at: a fifth of the time at most is spent on it."""

log = get_logger("distributedlog.cluster")


async def reconcile_on_change(
    metadata: Metadata,
    prefixes: Sequence[bytes],
    react: Callable[[], Awaitable[None]],
    *,
    every_s: float,
    failures: WorkFailures,
    unit: str,
) -> None:
    """Await ``react()`` soon, after changes below a prefix, and every ``every_s``; until cancelled.

    ``react`` reads what there is and acts on that, so that a missed or doubled call harms nothing. What
    it raises of ours is logged and tried again. Any other exception is a failure of ``unit``.
    """
    changes = _Changes()
    async with trio.open_nursery() as nursery:
        for prefix in prefixes:
            what = f"the watch of {prefix!r} for {unit}"
            nursery.start_soon(failures.keep, what, _watch, metadata, prefix, changes)
        rest_s = GATHER_S
        said = ""
        while True:
            with trio.move_on_after(every_s):
                await changes.come.wait()
                await trio.sleep(rest_s)
            changes.come = (
                trio.Event()
            )  # before the look: what changes meanwhile is looked at again
            begun = trio.current_time()
            failed = False
            try:
                with failures.contained(unit) as attempt:
                    await react()
                failed = attempt.failed
                said = ""
            except DistributedLogError as error:
                failed = True
                why = f"{type(error).__name__}: {error}"
                if why != said:  # not a line a second while the quorum is away
                    log.warning("%r: %s; trying again", prefixes, why)
                said = why
            rest_s = max(GATHER_S, REST * (trio.current_time() - begun))
            if failed:
                await trio.sleep(max(RETRY_S, failures.rest_s(unit) if attempt.failed else 0.0))
                changes.come.set()


async def reconcile_periodically(
    turn: ElectionStatus,
    work: Callable[[], Awaitable[None]],
    forget: Callable[[], None],
    *,
    every_s: float,
    said_by: Logger,
    failures: WorkFailures,
    unit: str,
) -> None:
    """Await ``work()`` each ``every_s`` while it is our turn, else ``forget()``; until cancelled.

    Any other exception is a failure of ``unit``. It is tried again after the backoff of the unit.
    """
    while True:
        await trio.sleep(failures.wait_s(unit, every_s))
        try:
            with failures.contained(unit, every_s=every_s):
                if await turn.elected():
                    await work()
                else:
                    forget()
        except DistributedLogError as error:
            said_by.warning("%s: %s; trying again", type(error).__name__, error)


class _Changes:
    def __init__(self) -> None:
        self.come = trio.Event()


async def _watch(metadata: Metadata, prefix: bytes, changes: _Changes) -> None:
    """Tell of each change, and of each time from which on changes are seen."""
    end = prefix_end(prefix)
    while True:
        try:
            page = await metadata.range(prefix, end, limit=1)
            async with metadata.watch(prefix, end, after_revision=page.revision) as watch:
                while True:
                    changes.come.set()
                    await watch.next()
        except Compacted:
            continue
        except DistributedLogError as error:
            log.debug("the watch of %r: %s: %s", prefix, type(error).__name__, error)
            await trio.sleep(RETRY_S)
