"""Renaming a log: one transaction, whatever its size, for all that is kept of a log goes by its id (H30).

Only the name's key and the name in the state change. Readers, positions, links and a paused writer notice
nothing; the lock is looked at as a courtesy, as everywhere: what protects a log is its epoch (H12).
"""

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import (
    InvalidRequest,
    LogExists,
    LogNotFound,
    OutcomeUnknown,
    OwnershipAcquireFailed,
    QuorumUnreachable,
)
from ..model.lock_record import owner_of
from ..model.log_keys import decode_log_id, lock_key, name_key, state_key
from ..model.log_state import LogState
from ..services.log_watch import name_now


async def rename(metadata: Metadata, namespace: str, old: str, new: str) -> None:
    """Give the log ``old`` the name ``new``, which no log has. An unknown outcome is asked again.

    Raises `LogNotFound`, also for a log that is being deleted; `LogExists`; `OwnershipAcquireFailed` while a
    writer's lock lives; `InvalidRequest` where both names are one.
    """
    if old == new:
        raise InvalidRequest(f'log "{old}" has that name already')
    old_at, new_at = name_key(namespace, old), name_key(namespace, new)
    tried: int | None = None
    """The log of a try whose outcome is not known: from then on that one is meant, whatever has its name."""
    try:
        while True:
            named = await metadata.get(old_at)
            if tried is not None and (named is None or decode_log_id(named.value) != tried):
                name = await name_now(metadata, tried)
                if name == new:
                    return  # by the earlier try
                if name == old:
                    continue  # it was renamed to and fro between the two looks
                raise LogNotFound(
                    f'log "{old}" is called "{name}" now' if name else f'log "{old}" was deleted'
                )
            if named is None:
                raise LogNotFound(f'log "{old}" does not exist in namespace {namespace}', old)
            log_id = decode_log_id(named.value)
            found = await metadata.get(state_key(log_id))
            state = None if found is None else LogState.decode(found.value)
            if found is None or state is None or state.deleting:
                raise LogNotFound(f'log "{old}" is being deleted')
            change = _rename_change(named, new_at, found, state.renamed(new))
            try:
                reply = await metadata.transact(change)
            except OutcomeUnknown:
                tried = log_id
                continue
            if reply.succeeded:
                return
            if reply.current[1] is not None:
                raise LogExists(f'log "{new}" exists already in namespace {namespace}')
            if reply.current[3] is not None:
                owner = await owner_of(metadata, log_id)
                if owner is not None:  # else it has just been given back
                    raise OwnershipAcquireFailed(
                        f'log "{old}" is being written by {owner}: it is renamed when nobody writes it',
                        owner,
                    )
    except QuorumUnreachable as error:
        if tried is None:
            raise
        raise OutcomeUnknown(f'whether log "{old}" was renamed is not known: {error}') from error


def _rename_change(
    name: KeyValue, new_key: bytes, state: KeyValue, renamed: LogState
) -> Transaction:
    """Return the change of both names, if nothing changed, the new name is free and no lock lives."""
    return Transaction(
        (
            Compare.version(name.key, name.version),
            Compare.version(new_key, 0),
            Compare.version(state.key, state.version),
            Compare.version(lock_key(renamed.log_id), 0),
        ),
        (
            Delete(name.key),
            Put(new_key, name.value),
            Put(state.key, renamed.encode()),
        ),
    )
