"""List and delete staged ledgers, which were created for a log and are not linked (H13).

Link and deletion are conditional on the same key, the ledger's record. The first one wins, and the other one
fails. So a linked ledger is never deleted here, no matter which client calls and how late.
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
    """The wall clock of its writer, in milliseconds since 1970."""

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """Encode it as a packed list with a format number."""
        return pack([FORMAT, self.app, self.version, self.created_ms])

    @classmethod
    def decode(cls, value: bytes) -> "StagedLedger":
        """Decode a stored value.

        Raises:
            CorruptData: The value is damaged.
            UnsupportedFormat: A newer program wrote the value.
        """
        fields = decode_fields(value, FORMAT, 4, "a staged ledger record")[:3]
        return cls(*check_stored(fields, _UNLINKED, "a staged ledger record"))


async def list_staged(metadata: Metadata, log_id: int) -> list[tuple[int, StagedLedger]]:
    """Return the staged ledgers of a log by ID, closed or not. Damaged records are left out."""
    staged: list[tuple[int, StagedLedger]] = []
    async for item in Scan(metadata, staged_ledgers_prefix(log_id)):
        try:
            staged.append((parse_staged_key(item.key)[1], StagedLedger.decode(item.value)))
        except CorruptData as error:
            log.warning("skipped: %s", error)
    return staged


async def delete_staged(
    metadata: Metadata, ledgers: LedgerFinder, log_id: int, ledger_id: int
) -> bool:
    """Delete a ledger unless a log refers to it.

    The record under the log alone proves nothing, because any client can have written it. The ledger's own
    record has the log for which it was created.

    Returns:
        Whether the ledger is deleted, now or earlier.
    Raises:
        VersionConflict: The ledger kept changing.
        DistributedLogError: The metadata did not answer. The ledger may be deleted, and the call can be
            repeated.
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
            log.warning("ledger %d is kept: it was not created for log %s", ledger_id, text)
            await metadata.transact(key_deletion)
            return False
        try:
            if (await metadata.transact(ledger.delete_ops() + key_deletion)).succeeded:
                return True
        except OutcomeUnknown:
            continue
    raise VersionConflict(
        f"ledger {ledger_id} changes while it is deleted. The deletion is retried later."
    )


async def collect_staged(
    metadata: Metadata, ledgers: LedgerFinder, log_id: int, *, older_than_ms: int, now_ms: int
) -> list[int]:
    """Delete staged ledgers that will not be linked any more, and return their IDs.

    These are ledgers whose application has linked their version or a later one, and those older than
    ``older_than_ms`` by their writers' clocks and ``now_ms``. A wrong clock makes a task repeat its work, but
    never loses a record of the log.
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
