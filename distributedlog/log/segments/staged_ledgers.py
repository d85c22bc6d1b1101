"""Ledgers that were made for a log and are not linked: found, and deleted (H13).

Link and deletion are conditional on the same key, the ledger's record: whichever comes first wins, and the
other one is told. So nothing that is linked is ever deleted here, whoever asks, however late.
"""

from dataclasses import dataclass

from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import Delete, Transaction
from ...runtime.interfaces.errors import CorruptData, NoSuchLedger, OutcomeUnknown, VersionConflict
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import (
    NUMBER_MAX,
    check_stored,
    number,
    row,
    text,
    verify_round_trip,
)
from ..interfaces.segment_store import LedgerFinder
from ..model.log_keys import (
    app_version_key,
    incarnation_text,
    parse_staged_key,
    staged_ledger_key,
    staged_ledgers_prefix,
)
from ..model.log_state import decode_fields
from .app_versions import AppVersion

FORMAT = 1

log = get_logger("distributedlog.log")
ATTEMPTS = 5


_UNLINKED = row(text(4096), number(-NUMBER_MAX), number())


@dataclass(frozen=True, slots=True)
class StagedLedger:
    """The value of ``loose/<log id>/<ledger id>``."""

    app: str
    version: int
    created_ms: int
    """Wall clock of its writer."""

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """As a packed list with a format number."""
        return pack([FORMAT, self.app, self.version, self.created_ms])

    @classmethod
    def decode(cls, value: bytes) -> "StagedLedger":
        """Raises `CorruptData`, or `UnsupportedFormat`."""
        fields = decode_fields(value, FORMAT, 4, "an unlinked ledger's note")[:3]
        return cls(*check_stored(fields, _UNLINKED, "an unlinked ledger's note"))


async def list_staged(metadata: Metadata, log_id: int) -> list[tuple[int, StagedLedger]]:
    """The ledgers of a log that are not linked, by id, finished or not; without what cannot be read."""
    staged: list[tuple[int, StagedLedger]] = []
    async for item in Scan(metadata, staged_ledgers_prefix(log_id)):
        try:
            staged.append((parse_staged_key(item.key)[1], StagedLedger.decode(item.value)))
        except CorruptData as error:
            log.warning("passed over: %s", error)
    return staged


async def delete_staged(
    metadata: Metadata, ledgers: LedgerFinder, log_id: int, ledger_id: int
) -> bool:
    """Delete a ledger unless a log refers to it. True: it is gone (also when it was already).

    The note alone proves nothing, whoever wrote it: the ledger's own record says for which log it was made.
    Raises what the metadata raises: then it may be gone or not, and the call may be repeated.
    """
    key_deletion = Transaction((), (Delete(staged_ledger_key(log_id, ledger_id)),))
    for _ in range(ATTEMPTS):
        try:
            ledger = await ledgers.find(ledger_id)
        except NoSuchLedger:
            await metadata.transact(key_deletion)
            return True
        if ledger.owner is not None:
            return False
        if ledger.incarnation != log_id:
            text = incarnation_text(log_id)
            log.warning("ledger %d stays: it was not made for log %s", ledger_id, text)
            await metadata.transact(key_deletion)
            return False
        try:
            if (await metadata.transact(ledger.delete_ops() + key_deletion)).succeeded:
                return True
        except OutcomeUnknown:
            continue
    raise VersionConflict(
        f"ledger {ledger_id} changes while it is deleted; it is tried again later"
    )


async def collect_staged(
    metadata: Metadata, ledgers: LedgerFinder, log_id: int, *, older_than_ms: int, now_ms: int
) -> list[int]:
    """Delete unlinked ledgers that nobody will link any more; their ids.

    Those whose application has linked their version or a later one, and those that are older than
    ``older_than_ms`` by the clocks of their writers and ``now_ms``. A clock that is wrong costs a task that
    is repeated, never a record of the log.
    """
    versions: dict[str, int | None] = {}
    deleted_ids: list[int] = []
    for ledger_id, staged in await list_staged(metadata, log_id):
        if staged.app and staged.app not in versions:
            app_version = await metadata.get(app_version_key(log_id, staged.app))
            versions[staged.app] = (
                None if app_version is None else AppVersion.decode(app_version.value).version
            )
        linked_version = versions.get(staged.app)
        is_superseded = linked_version is not None and linked_version >= staged.version
        if (is_superseded or now_ms - staged.created_ms > older_than_ms) and await delete_staged(
            metadata, ledgers, log_id, ledger_id
        ):
            deleted_ids.append(ledger_id)
    return deleted_ids
