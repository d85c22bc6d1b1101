"""A scrub that somebody asks for: one key, ``scrub/<bookie>``, there until the pass is done.

So a bookie that is down scrubs when it is up, and one that is started again meanwhile begins anew.
"""

from collections.abc import Awaitable, Callable
from math import inf

import trio

from ...bookie.integrity.corruption_tracker import CorruptionTracker
from ...bookie.integrity.scrubber import Scrubber
from ...ledger.model import ledger_keys as keys
from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, Delete, Put, Transaction
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.reconcile_loop import reconcile_on_change

CHECK_EVERY_S = 1.0
HEAL_S = 30.0
"""So long after a pass it is not said to be done while what it found is being healed."""


async def request_scrub(metadata: Metadata, bookie_id: str) -> None:
    """Have the bookie read all that it holds, now; one that is at it goes on."""
    key = keys.scrub_key(bookie_id)
    await metadata.transact(Transaction((Compare.version(key, 0),), (Put(key, b""),)))


async def is_scrub_pending(metadata: Metadata, bookie_id: str) -> bool:
    """Is a pass that somebody asked for not done yet?"""
    return await metadata.get(keys.scrub_key(bookie_id)) is not None


async def run_requested_scrubs(
    scrub: Scrubber,
    corruption: CorruptionTracker,
    metadata: Metadata,
    bookie_id: str,
    update_registration: Callable[[], Awaitable[None]],
    failures: WorkFailures,
) -> None:
    """A bookie's own part; until cancelled. ``tell`` is awaited before a pass is said to be done."""
    key = keys.scrub_key(bookie_id)
    done_at = inf

    async def look() -> None:
        nonlocal done_at
        request = await metadata.get(key)
        if request is None:
            return
        if scrub.completed_number != request.mod_revision:
            scrub.request_pass(request.mod_revision)
            done_at = inf
            return
        done_at = min(done_at, trio.current_time())
        if corruption.corrupt_ranges and trio.current_time() < done_at + HEAL_S:
            return
        await update_registration()
        unchanged = Compare.mod_revision(key, request.mod_revision)
        await metadata.transact(Transaction((unchanged,), (Delete(key),)))

    await reconcile_on_change(
        metadata,
        (key,),
        look,
        every_s=CHECK_EVERY_S,
        failures=failures,
        unit="the look for a requested scrub",
    )
