"""Level-triggered work: look at the whole again on every change and on a timer, never at the change.

Changes are drained while the work goes on: however many come, one look follows them. With a look for each
change, 200 notes that their repair removed one by one cost 200 passes over what was left of them.
"""

from collections.abc import Awaitable, Callable, Sequence

import trio

from ...metadata.client.range_watch import follow_range
from ...metadata.model.interface import Metadata, prefix_end
from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.log_lines import Logger, get_logger
from ...runtime.schedule.work_failures import WorkFailures
from .gc_hold import ElectionStatus

RETRY_S = 1.0
BATCH_S = 0.1
"""After the first change: those that come with it are looked at together."""
REST_FACTOR = 4
"""Times as long as a look took nothing is looked at: a fifth of the time at most is spent on it."""

log = get_logger("distributedlog.cluster")


async def reconcile_on_change(
    metadata: Metadata,
    prefixes: Sequence[bytes],
    reconcile: Callable[[], Awaitable[None]],
    *,
    every_s: float,
    failures: WorkFailures,
    unit: str,
) -> None:
    """Await ``react()`` soon, after changes below a prefix, and every ``every_s``; until cancelled.

    ``react`` reads what there is and acts on that, so that a missed or doubled call harms nothing. What
    it raises of ours is logged and tried again. Any other exception is a failure of ``unit``.
    """
    changes = _ChangeSignal()
    async with trio.open_nursery() as nursery:
        for prefix in prefixes:
            watch_unit = f"the watch of {prefix!r} for {unit}"
            nursery.start_soon(failures.keep_running, watch_unit, _watch, metadata, prefix, changes)
        rest_s = BATCH_S
        last_error = ""
        while True:
            with trio.move_on_after(every_s):
                await changes.changed.wait()
                await trio.sleep(rest_s)
            changes.changed = (
                trio.Event()
            )  # before the look: what changes meanwhile is looked at again
            started_at = trio.current_time()
            is_failed = False
            try:
                with failures.attempt(unit) as attempt:
                    await reconcile()
                is_failed = attempt.failed
                last_error = ""
            except DistributedLogError as error:
                is_failed = True
                error_text = f"{type(error).__name__}: {error}"
                if error_text != last_error:  # not a line a second while the quorum is away
                    log.warning("%r: %s; trying again", prefixes, error_text)
                last_error = error_text
            rest_s = max(BATCH_S, REST_FACTOR * (trio.current_time() - started_at))
            if is_failed:
                await trio.sleep(
                    max(RETRY_S, failures.retry_delay_s(unit) if attempt.failed else 0.0)
                )
                changes.changed.set()


async def reconcile_periodically(
    election: ElectionStatus,
    run_pass: Callable[[], Awaitable[None]],
    reset: Callable[[], None],
    *,
    every_s: float,
    logger: Logger,
    failures: WorkFailures,
    unit: str,
) -> None:
    """Await ``work()`` each ``every_s`` while it is our turn, else ``forget()``; until cancelled.

    Any other exception is a failure of ``unit``. It is tried again after the backoff of the unit.
    """
    while True:
        await trio.sleep(failures.next_try_s(unit, every_s))
        try:
            with failures.attempt(unit, every_s=every_s):
                if await election.is_elected():
                    await run_pass()
                else:
                    reset()
        except DistributedLogError as error:
            logger.warning("%s: %s; trying again", type(error).__name__, error)


class _ChangeSignal:
    def __init__(self) -> None:
        self.changed = trio.Event()


async def _watch(metadata: Metadata, prefix: bytes, changes: _ChangeSignal) -> None:
    """Tell of each change, and of each time from which on changes are seen."""
    end = prefix_end(prefix)

    async def load() -> int:
        page = await metadata.range(prefix, end, limit=1)
        changes.changed.set()  # a pass from here on sees all changes before this revision
        return page.revision

    await follow_range(
        metadata,
        prefix,
        end,
        load=load,
        apply=lambda _: changes.changed.set(),
        on_error=lambda error: log.debug(
            "the watch of %r: %s: %s", prefix, type(error).__name__, error
        ),
        retry_s=RETRY_S,
    )
