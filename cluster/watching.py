"""Level-triggered work: look at the whole again on every change and on a timer, never at the change."""

import logging
from collections.abc import Awaitable, Callable

import trio

from ..metadata.client import Metadata, prefix_end
from ..runtime.errors import Compacted, DistributedLogError

RETRY_S = 1.0

log = logging.getLogger("distributedlog.cluster")


async def at_each_change(
    metadata: Metadata, prefix: bytes, react: Callable[[], Awaitable[None]], *, every_s: float
) -> None:
    """Await ``react()`` now, after each change below ``prefix``, and every ``every_s``; until cancelled.

    ``react`` reads what there is and acts on that, so that a missed or doubled call harms nothing. What
    it raises of ours is logged and tried again.
    """
    end = prefix_end(prefix)
    while True:
        try:
            page = await metadata.range(prefix, end, limit=1)
            async with metadata.watch(prefix, end, after_revision=page.revision) as watch:
                while True:
                    await react()
                    with trio.move_on_after(every_s):
                        await watch.next()
        except Compacted:
            continue
        except DistributedLogError as error:
            log.warning("%r: %s: %s; trying again", prefix, type(error).__name__, error)
            await trio.sleep(RETRY_S)
