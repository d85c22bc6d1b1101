"""Request a scrub of a bookie by one key, ``scrub/<bookie>``, which exists until the scrub is done.

A bookie that is down scrubs after its start. A bookie that restarts during the scrub begins again.
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
"""How long after a scrub the key remains while corrupt entries that it found are being repaired."""


async def request_scrub(metadata: Metadata, bookie_id: str) -> None:
    """Request that a bookie reads and verifies all its entries.

    A scrub that is already requested continues.
    """
    key = keys.scrub_key(bookie_id)
    await metadata.transact(Transaction((Compare.version(key, 0),), (Put(key, b""),)))


async def is_scrub_pending(metadata: Metadata, bookie_id: str) -> bool:
    """Return whether a requested scrub is not done yet."""
    return await metadata.get(keys.scrub_key(bookie_id)) is not None


async def run_requested_scrubs(
    scrub: Scrubber,
    corruption: CorruptionTracker,
    metadata: Metadata,
    bookie_id: str,
    update_registration: Callable[[], Awaitable[None]],
    failures: WorkFailures,
) -> None:
    """Run the scrubs that are requested of this bookie, until cancelled.

    The number of a scrub is the revision of its request, so that a later request starts another scrub. When
    the scrub is done, the request remains for up to `HEAL_S` while corrupt entries are repaired. The
    registration is updated before the request is deleted, so that a client that waits for the scrub then
    finds its result.
    """
    key = keys.scrub_key(bookie_id)
    seen_done_at = inf  # when the present scrub was first found to be done

    async def check_request() -> None:
        nonlocal seen_done_at
        request = await metadata.get(key)
        if request is None:
            return
        if scrub.completed_number != request.mod_revision:
            scrub.request_pass(request.mod_revision)  # does nothing if this scrub is running
            seen_done_at = inf
            return
        seen_done_at = min(seen_done_at, trio.current_time())
        if corruption.corrupt_ranges and trio.current_time() < seen_done_at + HEAL_S:
            return
        await update_registration()
        unchanged = Compare.mod_revision(key, request.mod_revision)
        await metadata.transact(Transaction((unchanged,), (Delete(key),)))

    await reconcile_on_change(
        metadata,
        (key,),
        check_request,
        every_s=CHECK_EVERY_S,
        failures=failures,
        unit="the check for a scrub request",
    )
