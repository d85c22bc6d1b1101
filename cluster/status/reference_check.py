"""Check the references between the records of ledgers, bookies and logs, for `dlog audit`.

Each reference must exist in both directions. The check also reports unreadable records of ledgers, logs and
segments, and segments whose record has a boolean as a transaction ID. Older programs stored such values
unchecked, and cannot read such a log.

One pass over the ledgers' records runs concurrently with one over each bookie's part of the reverse index, in
the order of IDs. Another pass reads the logs' segments. Time and memory are proportional to the number of
ledgers (about 100 bytes per ledger). Each apparent mismatch is read again separately, because it may have
changed during the pass.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...log.model.log_keys import (
    REPLACED_PREFIX,
    STAGED_PREFIX,
    parse_staged_key,
    replaced_ledger_key,
    segment_key,
    staged_ledger_key,
)
from ...log.model.log_state import LogState
from ...log.model.segment_record import SegmentRecord, stores_bool_txid
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import KeyValue
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ..repair.decommission import bookies_in_index

LOG_PREFIX = b"log/"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A reference without its counterpart, or a record that needs attention."""

    ledger: int | None
    """None if the record is not a ledger's, and contains no readable ledger ID."""
    what: str


class ReferenceCheck:
    """One audit. Its counters remain readable after it."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.ledgers = 0
        self.segments = 0
        self.entries = 0
        """Of the reverse index."""

    async def audit(self) -> AsyncIterator[Mismatch]:
        """Yield every mismatch."""
        mismatches: list[Mismatch] = []
        segments = await self._load_segments(mismatches)
        for one in mismatches:
            yield one
        staged_or_replaced = await self._load_staged_or_replaced()
        index = [
            _IndexCursor(self._metadata, bookie)
            async for bookie in bookies_in_index(self._metadata)
        ]
        for part in index:
            await part.advance()
        async for item in Scan(self._metadata, keys.LEDGER_PREFIX):
            try:
                ledger = LedgerMetadata.decode(item.key, item.value)
            except (CorruptData, UnsupportedFormat) as error:
                yield Mismatch(None, str(error))
                continue
            self.ledgers += 1
            index_bookies: set[str] = set()
            for part in index:
                while part.ledger_id is not None and part.ledger_id < ledger.ledger_id:
                    if mismatch := await self._check_orphaned(part.ledger_id, part.bookie):
                        yield mismatch
                    await part.advance()
                if part.ledger_id == ledger.ledger_id:
                    self.entries += 1
                    index_bookies.add(part.bookie)
                    await part.advance()
            is_live = ledger.state is not LedgerState.DELETING
            record_bookies = set(ledger.bookies()) if is_live else set()
            for bookie in sorted(record_bookies ^ index_bookies):
                if await self._is_still_different(ledger.ledger_id, bookie):
                    side = (
                        "its record lists" if bookie in record_bookies else "only the index lists"
                    )
                    yield Mismatch(ledger.ledger_id, f"{side} bookie {bookie}")
            owner = segments.pop(ledger.ledger_id, None)
            if is_live:
                problem = await self._check_owner(
                    ledger, owner, ledger.ledger_id in staged_or_replaced
                )
                if problem:
                    yield Mismatch(ledger.ledger_id, problem)
        for part in index:
            while part.ledger_id is not None:
                if mismatch := await self._check_orphaned(part.ledger_id, part.bookie):
                    yield mismatch
                await part.advance()
        for ledger_id, (log_id, segment) in segments.items():
            if await self._get(keys.ledger_key(ledger_id)) is not None:
                continue
            if await self._is_named_by_segment(log_id, segment, ledger_id):
                yield Mismatch(
                    ledger_id,
                    f"segment {segment} of log {log_id:016x} refers to it, but it does not exist",
                )

    async def _load_segments(self, mismatches: list[Mismatch]) -> dict[int, tuple[int, int]]:
        """Return the log and segment that refer to each ledger; the last segment of a shared ledger."""
        by_ledger: dict[int, tuple[int, int]] = {}
        async for item in Scan(self._metadata, LOG_PREFIX):
            parts = item.key.split(b"/")
            try:
                if len(parts) == 3 and parts[2] == b"state":
                    LogState.decode(item.value)
                    continue
                if len(parts) != 4 or parts[2] != b"segment":
                    continue
                record = SegmentRecord.decode(item.value)
                by_ledger[record.ledger_id] = (int(parts[1], 16), record.segment)
                self.segments += 1
                if stores_bool_txid(item.value):
                    description = f"segment {record.segment} of log {parts[1].decode()}"
                    mismatches.append(
                        Mismatch(
                            record.ledger_id,
                            f"{description} stores true or false as a txid. It is read as 1 or 0; older "
                            "programs cannot read or delete this log",
                        )
                    )
            except (CorruptData, UnsupportedFormat, ValueError) as error:
                mismatches.append(Mismatch(None, f"{keys.printable_key(item.key)}: {error}"))
        return by_ledger

    async def _load_staged_or_replaced(self) -> set[int]:
        """Return the ledgers that were created for a log and are not linked, or that a merge has replaced."""
        ledger_ids: set[int] = set()
        for prefix in (STAGED_PREFIX, REPLACED_PREFIX):
            async for item in Scan(self._metadata, prefix):
                with suppress(CorruptData):
                    ledger_ids.add(parse_staged_key(item.key)[1])
        return ledger_ids

    async def _check_orphaned(self, ledger_id: int, bookie: str) -> Mismatch | None:
        """Count an index entry whose ledger has no record, and return its mismatch if it persists."""
        self.entries += 1
        if await self._is_still_different(ledger_id, bookie):
            return Mismatch(ledger_id, f"the index of {bookie} lists it, but it does not exist")
        return None

    async def _check_owner(
        self,
        ledger: LedgerMetadata,
        referring_segment: tuple[int, int] | None,
        is_staged_or_replaced: bool,
    ) -> str:
        """Return the problem of a ledger's owner; "" if there is none."""
        if referring_segment is not None or is_staged_or_replaced:
            return ""
        ledger_id = ledger.ledger_id
        item = await self._get(keys.ledger_key(ledger_id))
        if item is None:
            return ""
        try:
            current = LedgerMetadata.decode(item.key, item.value)
        except (CorruptData, UnsupportedFormat):
            return ""
        if current.state is LedgerState.DELETING:
            return ""
        if current.owner is None:
            return "no log refers to it, and it is not recorded as staged or replaced"
        if await self._is_named_by_segment(*current.owner, ledger_id):
            return ""
        for key in (
            staged_ledger_key(current.owner[0], ledger_id),
            replaced_ledger_key(current.owner[0], ledger_id),
        ):
            if await self._get(key) is not None:
                return ""
        return f"its segment {current.owner[1]} of log {current.owner[0]:016x} does not refer to it"

    async def _is_named_by_segment(self, log_id: int, segment: int, ledger_id: int) -> bool:
        item = await self._get(segment_key(log_id, segment))
        try:
            return item is not None and SegmentRecord.decode(item.value).ledger_id == ledger_id
        except (CorruptData, UnsupportedFormat):
            return True  # the ledger in the record is not known

    async def _is_still_different(self, ledger_id: int, bookie: str) -> bool:
        """Return whether a ledger's record and the index still differ in one bookie."""
        item = await self._get(keys.ledger_key(ledger_id))
        try:
            ledger = None if item is None else LedgerMetadata.decode(item.key, item.value)
        except (CorruptData, UnsupportedFormat):
            return False
        is_live = ledger is not None and ledger.state is not LedgerState.DELETING
        is_in_record = ledger is not None and is_live and bookie in ledger.bookies()
        return is_in_record != (
            await self._get(keys.bookie_ledger_key(bookie, ledger_id)) is not None
        )

    async def _get(self, key: bytes) -> KeyValue | None:
        return await self._metadata.get(key)


class _IndexCursor:
    """A cursor over one bookie's part of the reverse index, ledger by ledger."""

    def __init__(self, metadata: Metadata, bookie: str) -> None:
        self.bookie = bookie
        self.ledger_id: int | None = None
        """The present ledger; None at the end."""
        self._scan = Scan(metadata, keys.bookie_ledgers_prefix(bookie))

    async def advance(self) -> None:
        """Move to the next ledger."""
        async for item in self._scan:
            try:
                self.ledger_id = keys.ledger_id_of(item.key)
            except CorruptData:
                continue
            return
        self.ledger_id = None
