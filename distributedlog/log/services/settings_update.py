"""Read stored settings, and change them by compare-and-set on their key, in one transaction."""

from collections.abc import Mapping
from typing import Any

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, Put, Transaction
from ...runtime.interfaces.errors import LogNotFound, OutcomeUnknown
from ..model.log_keys import state_key
from ..model.log_state import LogState
from ..model.stored_settings import QUORUMS, StoredSettings, conf_key


async def read_settings(metadata: Metadata, key: bytes) -> StoredSettings:
    """Return the stored settings.

    Raises:
        CorruptData: The value is invalid.
        UnsupportedFormat: A newer version wrote the value.
    """
    stored = await metadata.get(key)
    return (
        StoredSettings() if stored is None else StoredSettings.decode(stored.value, stored.version)
    )


async def update_settings(
    metadata: Metadata,
    key: bytes,
    settings: Mapping[str, Any],
    user_metadata: Mapping[str, bytes | None],
    *,
    extra_ops: Transaction | None = None,
) -> StoredSettings:
    """Set and unset options and metadata, and return the stored settings.

    The change is idempotent, so it is repeated after an unknown outcome.

    Args:
        metadata: The metadata store.
        key: The key of the settings.
        settings: Values by option. None unsets an option.
        user_metadata: Values by name. None removes a name.
        extra_ops: Further operations and conditions of the transaction.
    Raises:
        InvalidRequest: A setting is invalid.
        LogNotFound: A condition of ``extra_ops`` does not hold.
    """
    while True:
        old_settings = await read_settings(metadata, key)
        new_settings = old_settings.with_changes(settings, user_metadata)
        update = Transaction(
            (Compare.version(key, old_settings.version),), (Put(key, new_settings.encode()),)
        )
        if extra_ops is not None:
            update += extra_ops
        try:
            reply = await metadata.transact(update)
        except OutcomeUnknown:
            continue
        if reply.succeeded:
            return StoredSettings(
                new_settings.settings, new_settings.metadata, old_settings.version + 1
            )
        current = reply.current[0]
        if (0 if current is None else current.version) == old_settings.version:
            raise LogNotFound("the log was changed or deleted while its settings were changed")


async def update_log_settings(
    metadata: Metadata,
    log_id: int,
    settings: Mapping[str, Any],
    user_metadata: Mapping[str, bytes | None],
) -> StoredSettings:
    """Change the settings of a log as `update_settings` does.

    Quorums are also stored in the log's state, from which the next segment takes them.

    Raises:
        InvalidRequest: A setting is invalid.
        LogNotFound: The log was deleted.
    """
    log_state_key = state_key(log_id)
    while True:
        stored_state = await metadata.get(log_state_key)
        state = None if stored_state is None else LogState.decode(stored_state.value)
        if stored_state is None or state is None or state.deleting:
            raise LogNotFound("the log has been deleted")
        extra_ops = Transaction((Compare.exists(log_state_key),), ())
        if any(name in settings for name in QUORUMS):
            old_settings = await read_settings(metadata, conf_key(log_id))
            changed = state.with_quorums(old_settings.with_changes(settings, user_metadata).quorums)
            extra_ops = Transaction(
                (Compare.version(log_state_key, stored_state.version),),
                (Put(log_state_key, changed.encode()),),
            )
        try:
            return await update_settings(
                metadata, conf_key(log_id), settings, user_metadata, extra_ops=extra_ops
            )
        except LogNotFound:
            if await metadata.get(log_state_key) is None:
                raise
