"""Read stored settings, and change them by compare-and-set on their key, in one transaction.

The option ``record_headers`` also changes the state of the log at the first use (`permit_record_headers`).
Before the cluster is finalized for the version of that format, the option cannot be switched on.
"""

from collections.abc import Mapping
from typing import Any

from ...metadata.model.cluster_version import require_format
from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, Put, Transaction
from ...runtime.declarations.versions import GatedFormat
from ...runtime.interfaces.errors import InvalidRequest, LogNotFound, OutcomeUnknown
from ..model.log_keys import state_key
from ..model.log_state import LogState
from ..model.stored_settings import QUORUMS, StoredSettings, bind_key, conf_key, formats_of
from ..model.writer_log_state import update_shared_state


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
        UpgradeNotFinalized: A setting permits a format that older versions refuse.
        LogNotFound: A condition of ``extra_ops`` does not hold.
    """
    await check_formats(metadata, settings)
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
        UpgradeNotFinalized: A setting permits a format that older versions refuse.
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


async def check_formats(metadata: Metadata, settings: Mapping[str, Any]) -> None:
    """Check that settings permit only formats that the cluster permits.

    Raises:
        UpgradeNotFinalized: The cluster is not finalized for the version that a format needs.
    """
    if settings.get("record_headers"):
        await require_format(metadata, GatedFormat.RECORD_HEADERS, "a log")


async def require_record_headers(
    metadata: Metadata, namespace: str, log_id: int, name: str
) -> None:
    """Check that the cluster, and the option ``record_headers`` of a log or its namespace, permit headers.

    This is checked for the first record with a key or headers. Before that record is sent, the log's state
    gets a higher writer format, so that older programs refuse to change the log. Afterwards the option has no
    effect: the log has such records, and every program that can write it reads them.

    Args:
        metadata: The metadata store.
        namespace: The path of the namespace.
        log_id: The log's ID.
        name: The name of the log, for the error.
    Raises:
        UpgradeNotFinalized: The cluster is not finalized for a version that reads them.
        InvalidRequest: The option is off.
        CorruptData, UnsupportedFormat: The stored settings are unreadable.
    """
    await require_format(metadata, GatedFormat.RECORD_HEADERS, f'log "{name}"')
    log_settings = await read_settings(metadata, conf_key(log_id))
    namespace_settings = await read_settings(metadata, bind_key(namespace))
    if not formats_of(namespace_settings, log_settings).record_headers:
        raise InvalidRequest(
            f'log "{name}" accepts no keys and headers, by its option record_headers or that of its '
            "namespace. Permit them: dlog log config NAME set record_headers=true"
        )


async def permit_record_headers(metadata: Metadata, namespace: str, log_id: int, name: str) -> None:
    """Record in the log's state that its entries may have keys and headers.

    For clients that do not own the log. Arguments as for `require_record_headers`.

    Raises:
        InvalidRequest: The option ``record_headers`` is off.
        LogNotFound: The log was deleted.
        DistributedLogError: The metadata quorum does not answer.
    """
    # A change to the same state is not written, but the log is read and must exist.
    state = await update_shared_state(metadata, log_id, name, lambda state: state)
    if state.has_record_headers:
        return
    await require_record_headers(metadata, namespace, log_id, name)
    await update_shared_state(metadata, log_id, name, LogState.with_record_headers)
