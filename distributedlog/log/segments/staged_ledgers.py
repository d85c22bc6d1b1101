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
from ...runtime.protocol.schema import NUMBER_MAX, fit, number, reads_back, row, text
from ..interfaces.segment_store import LedgerFinder
from ..model.log_keys import (
    ids_of_unlinked,
    incarnation_text,
    txn_key,
    unlinked_key,
    unlinked_prefix,
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

    @reads_back(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """As a packed list with a format number."""
        return pack([FORMAT, self.app, self.version, self.created_ms])

    @classmethod
    def decode(cls, value: bytes) -> "StagedLedger":
        """Raises `CorruptData`, or `UnsupportedFormat`."""
        fields = decode_fields(value, FORMAT, 4, "an unlinked ledger's note")[:3]
        return cls(*fit(fields, _UNLINKED, "an unlinked ledger's note"))


async def list_staged(metadata: Metadata, log_id: int) -> list[tuple[int, StagedLedger]]:
    """The ledgers of a log that are not linked, by id, finished or not; without what cannot be read."""
    found: list[tuple[int, StagedLedger]] = []
    async for item in Scan(metadata, unlinked_prefix(log_id)):
        try:
            found.append((ids_of_unlinked(item.key)[1], StagedLedger.decode(item.value)))
        except CorruptData as error:
            log.warning("passed over: %s", error)
    return found


async def delete_staged(
    metadata: Metadata, ledgers: LedgerFinder, log_id: int, ledger_id: int
) -> bool:
    """Delete a ledger unless a log refers to it. True: it is gone (also when it was already).

    The note alone proves nothing, whoever wrote it: the ledger's own record says for which log it was made.
    Raises what the metadata raises: then it may be gone or not, and the call may be repeated.
    """
    note = Transaction((), (Delete(unlinked_key(log_id, ledger_id)),))
    for _ in range(ATTEMPTS):
        try:
            found = await ledgers.find(ledger_id)
        except NoSuchLedger:
            await metadata.transact(note)
            return True
        if found.owner is not None:
            return False
        if found.incarnation != log_id:
            text = incarnation_text(log_id)
            log.warning("ledger %d stays: it was not made for log %s", ledger_id, text)
            await metadata.transact(note)
            return False
        try:
            if (await metadata.transact(found.deletion_share() + note)).succeeded:
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
    gone: list[int] = []
    for ledger_id, unlinked in await list_staged(metadata, log_id):
        if unlinked.app and unlinked.app not in versions:
            note = await metadata.get(txn_key(log_id, unlinked.app))
            versions[unlinked.app] = None if note is None else AppVersion.decode(note.value).version
        last = versions.get(unlinked.app)
        passed = last is not None and last >= unlinked.version
        if (passed or now_ms - unlinked.created_ms > older_than_ms) and await delete_staged(
            metadata, ledgers, log_id, ledger_id
        ):
            gone.append(ledger_id)
    return gone
