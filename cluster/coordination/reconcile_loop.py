"""Run level-triggered work: process the whole present state after changes and on a timer.

Changes that arrive during a pass cause one further pass, however many they are. With one pass per change, 200
records that their repair deleted one by one would cause 200 passes over the remaining ones.
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
"""How long changes are collected after the first one."""
REST_FACTOR = 4
"""The pause after a pass, in multiples of its duration, so that passes take at most a fifth of the time."""

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
    """Run a function soon after changes below some key prefixes, and every ``every_s``, until cancelled.

    A `DistributedLogError` of the function is logged, and the function is retried. Any other exception is
    counted as a failure of ``unit``.

    Args:
        metadata: The metadata store.
        prefixes: The watched key prefixes.
        reconcile: Reads the present state and acts on it, so that missing or repeated calls do no harm.
        every_s: The longest pause between two calls.
        failures: Counts failures, and delays retries.
        unit: The name of the work.
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
            )  # before the pass: a change during the pass causes another one
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
                if error_text != last_error:  # not one line per second while there is no quorum
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
    """Run a function every ``every_s`` while this process is elected, until cancelled.

    A `DistributedLogError` of the function is logged, and the function is retried. Any other exception is
    counted as a failure of ``unit``, and the function is retried after the backoff of the unit.

    Args:
        election: Whether this process is elected.
        run_pass: The work.
        reset: Called instead while this process is not elected.
        every_s: The pause between two calls.
        logger: Logs the errors.
        failures: Counts failures, and delays retries.
        unit: The name of the work.
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
    """Signal each change, and each start of the watch."""
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
