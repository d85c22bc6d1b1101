"""Reading and changing what is stored of settings: compare-and-set on their key, in one transaction."""

from collections.abc import Mapping
from typing import Any

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, Put, Transaction
from ...runtime.interfaces.errors import LogNotFound, OutcomeUnknown
from ..model.log_keys import state_key
from ..model.log_state import LogState
from ..model.stored_settings import QUORUMS, StoredSettings, conf_key


async def read_stored(metadata: Metadata, key: bytes) -> StoredSettings:
    """Raises `CorruptData`, `UnsupportedFormat`."""
    found = await metadata.get(key)
    return StoredSettings() if found is None else StoredSettings.decode(found.value, found.version)


async def change_stored(
    metadata: Metadata,
    key: bytes,
    settings: Mapping[str, Any],
    notes: Mapping[str, bytes | None],
    *,
    beside: Transaction | None = None,
) -> StoredSettings:
    """Set and unset; what is stored then. The same change twice is one, so an unknown outcome is asked again.

    ``beside`` is done in the same transaction; where its comparisons fail, `LogNotFound`.
    """
    while True:
        before = await read_stored(metadata, key)
        after = before.changed(settings, notes)
        share = Transaction((Compare.version(key, before.version),), (Put(key, after.encode()),))
        if beside is not None:
            share += beside
        try:
            reply = await metadata.transact(share)
        except OutcomeUnknown:
            continue
        if reply.succeeded:
            return StoredSettings(after.settings, after.metadata, before.version + 1)
        now = reply.current[0]
        if (0 if now is None else now.version) == before.version:
            raise LogNotFound("the log was changed or deleted while its settings were")


async def change_of_log(
    metadata: Metadata,
    log_id: int,
    settings: Mapping[str, Any],
    notes: Mapping[str, bytes | None],
) -> StoredSettings:
    """The same for a log; its quorums go into its state, where its next segment finds them."""
    at = state_key(log_id)
    while True:
        found = await metadata.get(at)
        state = None if found is None else LogState.decode(found.value)
        if found is None or state is None or state.deleting:
            raise LogNotFound("the log has been deleted")
        beside = Transaction((Compare.exists(at),), ())
        if any(name in settings for name in QUORUMS):
            stored = await read_stored(metadata, conf_key(log_id))
            changed = state.with_quorums(stored.changed(settings, notes).quorums)
            beside = Transaction(
                (Compare.version(at, found.version),), (Put(at, changed.encode()),)
            )
        try:
            return await change_stored(metadata, conf_key(log_id), settings, notes, beside=beside)
        except LogNotFound:
            if await metadata.get(at) is None:
                raise
