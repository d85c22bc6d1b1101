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
from ..model.lock_record import lock_owner
from ..model.log_keys import decode_log_id, lock_key, name_key, state_key
from ..model.log_state import LogState
from ..services.log_watch import current_name


async def rename(metadata: Metadata, namespace: str, old: str, new: str) -> None:
    """Give the log ``old`` the name ``new``, which no log has. An unknown outcome is asked again.

    Raises `LogNotFound`, also for a log that is being deleted; `LogExists`; `OwnershipAcquireFailed` while a
    writer's lock lives; `InvalidRequest` where both names are one.
    """
    if old == new:
        raise InvalidRequest(f'log "{old}" has that name already')
    old_name_key, new_name_key = name_key(namespace, old), name_key(namespace, new)
    uncertain_log_id: int | None = None
    """The log of a try whose outcome is not known: from then on that one is meant, whatever has its name."""
    try:
        while True:
            stored_name = await metadata.get(old_name_key)
            if uncertain_log_id is not None and (
                stored_name is None or decode_log_id(stored_name.value) != uncertain_log_id
            ):
                name = await current_name(metadata, uncertain_log_id)
                if name == new:
                    return  # by the earlier try
                if name == old:
                    continue  # it was renamed to and fro between the two looks
                raise LogNotFound(
                    f'log "{old}" is called "{name}" now' if name else f'log "{old}" was deleted'
                )
            if stored_name is None:
                raise LogNotFound(f'log "{old}" does not exist in namespace {namespace}', old)
            log_id = decode_log_id(stored_name.value)
            stored_state = await metadata.get(state_key(log_id))
            state = None if stored_state is None else LogState.decode(stored_state.value)
            if stored_state is None or state is None or state.deleting:
                raise LogNotFound(f'log "{old}" is being deleted')
            change = _rename_change(stored_name, new_name_key, stored_state, state.with_name(new))
            try:
                reply = await metadata.transact(change)
            except OutcomeUnknown:
                uncertain_log_id = log_id
                continue
            if reply.succeeded:
                return
            if reply.current[1] is not None:
                raise LogExists(f'log "{new}" exists already in namespace {namespace}')
            if reply.current[3] is not None:
                owner = await lock_owner(metadata, log_id)
                if owner is not None:  # else it has just been given back
                    raise OwnershipAcquireFailed(
                        f'log "{old}" is being written by {owner}: it is renamed when nobody writes it',
                        owner,
                    )
    except QuorumUnreachable as error:
        if uncertain_log_id is None:
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
