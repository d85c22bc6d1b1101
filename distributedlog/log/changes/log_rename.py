"""Rename a log in one transaction of constant size, because all data of a log is stored under its ID (H30).

Only the key of the name and the name in the state change. Readers, positions, links and a paused writer are
not affected. The lock is only checked as a courtesy, as everywhere else, because the epoch protects a log
(H12).
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
    """Rename the log ``old`` to ``new``, which must be an unused name.

    After an unknown outcome the call checks whether the log was renamed, and retries if not.

    Raises:
        LogNotFound: The log does not exist or is being deleted.
        LogExists: A log has the new name.
        OwnershipAcquireFailed: A writer holds the lock.
        InvalidRequest: Both names are equal.
        OutcomeUnknown: The metadata quorum did not answer, and the log may be renamed.
    """
    if old == new:
        raise InvalidRequest(f'log "{old}" has that name already')
    old_name_key, new_name_key = name_key(namespace, old), name_key(namespace, new)
    uncertain_log_id: int | None = None
    """The log of an attempt with an unknown outcome. Later attempts rename this one, whatever log has its
    name."""
    try:
        while True:
            stored_name = await metadata.get(old_name_key)
            if uncertain_log_id is not None and (
                stored_name is None or decode_log_id(stored_name.value) != uncertain_log_id
            ):
                name = await current_name(metadata, uncertain_log_id)
                if name == new:
                    return  # the earlier attempt renamed it
                if name == old:
                    continue  # it was renamed back between the two reads
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
                if owner is not None:  # otherwise the lock has just been released
                    raise OwnershipAcquireFailed(
                        f'log "{old}" is being written by {owner}. Rename it when it has no writer.',
                        owner,
                    )
    except QuorumUnreachable as error:
        if uncertain_log_id is None:
            raise
        raise OutcomeUnknown(f'log "{old}" may or may not be renamed: {error}') from error


def _rename_change(
    name: KeyValue, new_key: bytes, state: KeyValue, renamed: LogState
) -> Transaction:
    """Return the change of both names, if nothing changed, the new name is unused and no writer holds the
    lock."""
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
