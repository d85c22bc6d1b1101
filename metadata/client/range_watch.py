"""Follow the keys of a range: load them once, then apply their changes."""

from collections.abc import Awaitable, Callable

import trio

from ...runtime.interfaces.errors import Compacted, DistributedLogError, NotAllowed
from ..model.interface import Metadata, WatchBatch


async def follow_range(
    metadata: Metadata,
    start: bytes,
    end: bytes,
    *,
    load: Callable[[], Awaitable[int]],
    apply: Callable[[WatchBatch], None],
    on_error: Callable[[DistributedLogError], None],
    retry_s: float,
    after_revision: int | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Load the keys start <= key < end, then apply their changes in order, until cancelled.

    The task has started when the keys were loaded once. After an error it continues after the last applied
    revision. It loads the keys again if their changes are no longer in the quorum's history, or if the right
    to read them was missing, because changes of that time may not be delivered.

    Args:
        metadata: The client of the metadata.
        start: The first key of the range.
        end: The end of the range, which is not part of it.
        load: Read the keys, and return the revision after which their changes are to be applied. It may be
            called again at any time, and then replaces all earlier data.
        apply: Apply the changes of one batch. It does not wait.
        on_error: Called with each error, except `Compacted`, before the wait for the next attempt.
        retry_s: Seconds from an error to the next attempt.
        after_revision: The result of ``load``, if the caller has already called it.
        task_status: Receives None when the keys were loaded once.

    Raises:
        Exception: Any error of ``load`` or ``apply`` that is not a `DistributedLogError`.
    """
    revision = after_revision
    started = False
    while True:
        try:
            if revision is None:
                revision = await load()
            if not started:
                started = True
                task_status.started()
            async with metadata.watch(start, end, after_revision=revision) as watch:
                while True:
                    batch = await watch.next_batch()
                    apply(batch)
                    revision = max(revision, batch.revision)
        except Compacted:
            revision = None
        except DistributedLogError as error:
            if isinstance(error, NotAllowed):
                revision = None
            on_error(error)
            await trio.sleep(retry_s)
