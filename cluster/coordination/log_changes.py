"""Changes of logs that operators request with `dlog` or the console, with their checks and their effects.

Both use these functions, so both refuse the same requests and describe the same effects.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...log.format.dlsn import DLSN
from ...log.interfaces.open_call import Opening
from ...log.log import Log
from ...log.model.log_keys import position_key
from ...log.model.log_state import AUTO
from ...log.model.txid_policy import STRICT
from ...log.namespace import Namespace
from ...log.services.named_positions import PositionRecord
from ...log.write.log_writer import LogWriter
from ...log.write.record_validation import validate_record
from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    LogEmpty,
    LogNotFound,
    LogTruncated,
)
from ...runtime.protocol.schema import readable

NO_WAY_BACK = "There is no way back"
"""The consequence of each change that destroys records."""
PASSED_SHOWN = 10
"""Maximum number of named positions that an effect lists."""
NAME_SHOWN = 40
"""Maximum number of characters of the name of such a position."""


@dataclass(frozen=True, slots=True)
class TruncationTarget:
    """The first record that a truncation keeps. Exactly one field is set."""

    dlsn: DLSN | None = None
    txid: int | None = None
    """The first record with this or a greater transaction ID."""
    position: str | None = None
    """A named position of the log."""

    def __str__(self) -> str:
        if self.dlsn is not None:
            return str(self.dlsn)
        return f"txid {self.txid}" if self.txid is not None else f"position {self.position}"

    async def resolve(self, log: Log) -> DLSN:
        """Return the DLSN of the target.

        Raises:
            InvalidRequest: The log has no such position, or its transaction IDs cannot be searched.
            LogNotFound: The log does not exist.
        """
        if self.dlsn is not None:
            return self.dlsn
        if self.position is None:
            return await log.find(txid=self.txid)
        dlsn = await log.positions.get(self.position)
        if dlsn is None:
            raise InvalidRequest(
                f'log "{log.name}" has no position {self.position!r}. To list its positions: '
                f'"dlog log positions {log.name}"'
            )
        return dlsn


def delete_effect(name: str) -> str:
    """Return the effect of the deletion of a log, as the part of a sentence."""
    return f"delete log {name} and all its records"


def truncate_effect(name: str, target: TruncationTarget) -> str:
    """Return the effect of a truncation, as the part of a sentence."""
    return f"delete the records of log {name} before {target}"


async def truncate_log(log: Log, target: TruncationTarget) -> DLSN:
    """Delete all records before the target, and return the truncation point.

    Raises:
        InvalidRequest: As for `TruncationTarget.resolve`.
        DistributedLogError: As for `Log.truncate`.
    """
    if target.position is not None:
        return await log.truncate(await target.resolve(log))
    return await log.truncate(target.dlsn, txid=target.txid)


async def records_before(log: Log, dlsn: DLSN) -> int:
    """Return the number of readable records before a position: those that a truncation there deletes."""
    try:
        return await log.count(to=dlsn)
    except LogTruncated:
        return 0


async def positions_before(metadata: Metadata, log_id: int, dlsn: DLSN) -> list[str]:
    """Return the named positions that a truncation at ``dlsn`` would pass, in the order of their names.

    A position that cannot be decoded may be one of them, and is marked as unreadable.
    """
    passed: list[str] = []
    prefix = position_key(log_id, "")
    async for item in Scan(metadata, prefix):
        name = item.key[len(prefix) :].decode(errors="replace")
        record = readable(PositionRecord.decode, item.value)
        if not isinstance(record, PositionRecord):
            passed.append(f"{name[:NAME_SHOWN]} (unreadable)")
        elif record.dlsn < dlsn:
            passed.append(name[:NAME_SHOWN])
    return passed


async def open_checked_writer(
    namespace: Namespace,
    name: str,
    first_record: tuple[int | None, Any],
    *,
    create: bool,
    recover_timeout_s: float,
    takeover: bool = False,
    wait_s: float | None = None,
    incarnation: str | None = None,
) -> Opening[LogWriter]:
    """Return the opening of a writer, after a check that the log would accept the first record.

    The check comes first, because opening a writer fences the previous one and creates a segment.

    Args:
        namespace: The namespace.
        name: The name of the log.
        first_record: The transaction ID or None, and the payload or `KeyedContent`.
        create: Create the log if it does not exist.
        recover_timeout_s: Maximum time for the recovery of a failed writer's segments, in seconds.
        takeover: Fence another writer instead of waiting for it.
        wait_s: As for `Log.open_writer`.
        incarnation: As for `Namespace.open_log`.

    Raises:
        LogNotFound: The log does not exist, and ``create`` is False.
        DistributedLogError: The log would reject the record.
    """
    if not create and not await namespace.log_exists(name):
        raise LogNotFound(f'log "{name}" does not exist in namespace {namespace.path}', name)
    config = {"create_if_missing": create, "recover_timeout_s": recover_timeout_s}
    log = namespace.open_log(name, config=config, incarnation=incarnation)
    await _check_first_record(log, *first_record)
    return log.open_writer(takeover=takeover, wait_s=wait_s)


async def _check_first_record(log: Log, txid: int | None, payload: Any) -> None:
    """Raise the error with which the log would reject the record, before the log is opened for it."""
    last_txid = -1
    try:
        description = await log.describe(segments_max=1)
        if txid is not None and description.txid_policy == STRICT:
            last_txid = description.state.last_txid
            with suppress(LogEmpty):
                last_txid = max(last_txid, (await log.last_record()).txid)
    except LogNotFound:  # opening creates it
        validate_record(txid, payload, 0, log.name, AUTO)
        return
    except DistributedLogError:
        return  # the end cannot be read now: opening waits for it or reports the reason
    validate_record(txid, payload, last_txid, log.name, description.state.policy)
