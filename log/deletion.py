"""Deleting a log: its ledgers to DELETING and its keys away, together (H13, H21).

The lock is taken first, so a living writer refuses it; the epoch is raised, so a dead one cannot come back.
A log of more segments than one transaction holds goes front first; the name goes last, so that a deletion
that was cut short is finished by asking again.
"""

from ..metadata.interface import Metadata, prefix_end
from ..metadata.transaction import Compare, Delete, Put, Transaction
from ..runtime.errors import LogNotFound, VersionConflict
from .keys import (
    lock_key,
    name_key,
    position_key,
    purge_key,
    segment_key,
    state_key,
    txn_key,
)
from .ledgers import Ledgers
from .loose import delete_loose, list_loose
from .ownership import OwnedLog
from .takeover import read_segment

SEGMENTS_AT_ONCE = 200
"""A ledger's share is a handful of operations; a transaction has at most 4,096."""
ATTEMPTS = 5
PAGE = 1000


async def sweep(metadata: Metadata, ledgers: Ledgers, log_id: int) -> None:
    """Delete what hangs on a log beside its segments: positions, applications' notes, unlinked ledgers.

    Called before the log goes, so that a deletion that is cut short is repeated, and after, when nothing
    new can come: each of these is made on condition that the log is there.
    """
    for prefix in (position_key(log_id, ""), txn_key(log_id, "")):
        while (page := await metadata.range(prefix, prefix_end(prefix), limit=PAGE)).items:
            await metadata.transact(Transaction((), tuple(Delete(item.key) for item in page.items)))
    for ledger_id, _ in await list_loose(metadata, log_id):
        await delete_loose(metadata, ledgers, log_id, ledger_id)


async def delete_claimed(owned: OwnedLog, ledgers: Ledgers, namespace: str) -> None:
    """Delete a log that was claimed for it. Raises `VersionConflict` when its ledgers keep changing."""
    attempts = 0
    await sweep(owned.metadata, ledgers, owned.log_id)
    while True:
        await owned.refresh()
        state = owned.state
        last = min(state.first_segment + SEGMENTS_AT_ONCE - 1, state.last_segment)
        share = Transaction()
        for segment in range(state.first_segment, last + 1):
            record = await read_segment(owned.metadata, state, segment)
            share += await ledgers.deletion_share(record.ledger_id)
            share += Transaction((), (Delete(segment_key(state.log_id, segment)),))
        key = state_key(state.log_id)
        compare = Compare.version(key, owned.version)
        if last < state.last_segment:
            rest = state.without_segments_to(last)
            own = Transaction((compare,), (Put(key, rest.encode()),))
        else:
            own = Transaction(
                (compare,),
                (
                    Delete(key),
                    Delete(lock_key(state.log_id)),
                    Delete(purge_key(state.log_id)),
                    Delete(name_key(namespace, state.name)),
                ),
            )
        reply = await owned.metadata.transact(own + share)
        if reply.succeeded and last == state.last_segment:
            await sweep(owned.metadata, ledgers, owned.log_id)
            return
        if not reply.succeeded:
            attempts += 1
            if reply.current[0] is None:
                raise LogNotFound(f'log "{state.name}" has been deleted by somebody else')
            if attempts == ATTEMPTS:
                raise VersionConflict(f'log "{state.name}": its ledgers change while it is deleted')
