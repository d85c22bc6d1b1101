"""Check the references between the records of ledgers, bookies and logs, for `dlog audit`.

Each reference must exist in both directions. The check also reports unreadable records, and records of
version 0.1 that need attention before an upgrade (`audit_findings.py`).

One pass over the ledgers' records runs concurrently with one over each bookie's part of the reverse index, in
the order of IDs. Other passes read the logs and their settings. Time and memory are proportional to the
number of ledgers (about 100 bytes per ledger). Each apparent mismatch is read again separately, because it
may have changed during the pass. At most `FINDINGS_MAX` findings per code are listed.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...log.model.log_keys import (
    REPLACED_PREFIX,
    STAGED_PREFIX,
    parse_staged_key,
    replaced_ledger_key,
    segment_key,
    staged_ledger_key,
    state_key,
)
from ...log.model.log_state import LogState
from ...log.model.segment_record import SegmentRecord, end_stores_bool_txid, stores_bool_txid
from ...log.model.stored_settings import BIND_PREFIX, CONF_PREFIX
from ...metadata.model.cluster_version import CLUSTER_VERSION_KEY, read_cluster_version
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import KeyValue
from ...runtime.declarations.versions import UNREPORTED, Version
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ..repair.decommission import bookies_in_index
from .audit_findings import AuditFinding, FindingCode, log_text, settings_findings, state_findings
from .damaged_records import FEW_RECORDS, next_step

LOG_PREFIX = b"log/"
FINDINGS_MAX = 1000
"""The number of findings per code that are listed. Further ones are counted."""


class ReferenceCheck:
    """One audit. Its counters remain readable after it."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._segments: dict[int, tuple[int, int]] = {}
        """The log and segment that refer to each ledger, without those that were checked."""
        self.ledgers = 0
        self.segments = 0
        self.entries = 0
        """Of the reverse index."""
        self.findings: Counter[FindingCode] = Counter()
        """The number of findings per code, including those that are not listed."""

    async def audit(self) -> AsyncIterator[AuditFinding]:
        """Yield the findings. One more finding per code has the number of those that are not listed."""
        counts = self.findings
        finalized = await self._load_finalized()
        checks = (self._check_logs, self._check_settings, self._check_ledgers, self._check_others)
        for findings in (check() for check in checks):
            async for finding in findings:
                counts[finding.code] += 1
                if counts[finding.code] <= FINDINGS_MAX:
                    yield replace(finding, finalized=finalized)
        for code, count in counts.items():
            if (others := count - FINDINGS_MAX) > 0:
                what = f"{others} more findings"
                yield AuditFinding(code, "other objects", what, count=others, finalized=finalized)

    async def _load_finalized(self) -> Version:
        """Return the version for which the cluster is finalized, 0.1 if it is unreadable."""
        try:
            return (await read_cluster_version(self._metadata)).finalized
        except (CorruptData, UnsupportedFormat):
            return UNREPORTED  # `_check_others` reports it

    async def _check_ledgers(self) -> AsyncIterator[AuditFinding]:
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
                yield _unreadable(item, error)
                continue
            self.ledgers += 1
            index_bookies: set[str] = set()
            for part in index:
                while part.ledger_id is not None and part.ledger_id < ledger.ledger_id:
                    if orphan := await self._check_orphaned(part.ledger_id, part.bookie):
                        yield orphan
                    await part.advance()
                if part.ledger_id == ledger.ledger_id:
                    self.entries += 1
                    index_bookies.add(part.bookie)
                    await part.advance()
            async for finding in self._check_bookies(ledger, index_bookies):
                yield finding
            owner = self._segments.pop(ledger.ledger_id, None)
            if ledger.state is not LedgerState.DELETING:
                is_staged = ledger.ledger_id in staged_or_replaced
                if problem := await self._check_owner(ledger, owner, is_staged):
                    yield _of_ledger(FindingCode.LEDGER_UNREFERENCED, ledger.ledger_id, problem)
                if is_staged and _ends_with_bool_txid(ledger):
                    what = "stores true or false as a txid. Programs of version 0.1 cannot link it"
                    yield _of_ledger(FindingCode.TXID_BOOLEAN, ledger.ledger_id, what)
        for part in index:
            while part.ledger_id is not None:
                if orphan := await self._check_orphaned(part.ledger_id, part.bookie):
                    yield orphan
                await part.advance()
        async for finding in self._check_missing():
            yield finding

    async def _check_bookies(
        self, ledger: LedgerMetadata, index_bookies: set[str]
    ) -> AsyncIterator[AuditFinding]:
        is_live = ledger.state is not LedgerState.DELETING
        record_bookies = set(ledger.bookies()) if is_live else set()
        for bookie in sorted(record_bookies ^ index_bookies):
            if await self._is_still_different(ledger.ledger_id, bookie):
                side = "its record lists" if bookie in record_bookies else "only the index lists"
                what = f"{side} bookie {bookie}"
                yield _of_ledger(FindingCode.INDEX_DIFFERS, ledger.ledger_id, what)

    async def _check_missing(self) -> AsyncIterator[AuditFinding]:
        """Yield the ledgers that segments refer to, and that do not exist."""
        for ledger_id, (log_id, segment) in self._segments.items():
            if await self._get(keys.ledger_key(ledger_id)) is not None:
                continue
            if await self._is_named_by_segment(log_id, segment, ledger_id):
                what = (
                    f"segment {segment} of {log_text(log_id)} refers to it, but it does not exist"
                )
                yield _of_ledger(FindingCode.LEDGER_MISSING, ledger_id, what)

    async def _check_logs(self) -> AsyncIterator[AuditFinding]:
        """Check states and segments, and store the log and segment that refer to each ledger.

        Of a shared ledger, this is the last segment. The keys of a log are read in the order of their names,
        so its segments come before its state.
        """
        assigned_in = b""  # the last log that has a segment with assigned txids
        async for item in Scan(self._metadata, LOG_PREFIX):
            parts = item.key.split(b"/")
            try:
                if len(parts) == 3 and parts[2] == b"state":
                    has_assigned = assigned_in == parts[1]
                    for finding in state_findings(item.value, has_assigned_txids=has_assigned):
                        yield finding
                    continue
                if len(parts) != 4 or parts[2] != b"segment":
                    continue
                record = SegmentRecord.decode(item.value)
                log_id = int(parts[1], 16)
                self._segments[record.ledger_id] = (log_id, record.segment)
                self.segments += 1
                if record.txid_base >= 0:
                    assigned_in = parts[1]
                if stores_bool_txid(item.value):
                    where = f"segment {record.segment} of {await self._log_text(log_id)}"
                    what = (
                        "stores true or false as a txid. It is read as 1 or 0; programs of version 0.1"
                        " cannot read or delete this log"
                    )
                    yield AuditFinding(FindingCode.TXID_BOOLEAN, where, what, record.ledger_id)
            except (CorruptData, UnsupportedFormat, ValueError) as error:
                yield _unreadable(item, error)

    async def _check_settings(self) -> AsyncIterator[AuditFinding]:
        for prefix in (BIND_PREFIX, CONF_PREFIX):
            async for item in Scan(self._metadata, prefix):
                owner = item.key.removeprefix(prefix).decode(errors="replace")
                try:
                    for finding in settings_findings(item.value, owner):
                        where = f'namespace "{owner}"'
                        if prefix == CONF_PREFIX:
                            where = await self._log_text(int(owner, 16))
                        yield replace(finding, where=where)
                except (CorruptData, UnsupportedFormat, ValueError) as error:
                    yield _unreadable(item, error)

    async def _check_others(self) -> AsyncIterator[AuditFinding]:
        """Read the records of all other kinds, of which there are few."""
        for prefix, decode in FEW_RECORDS.items():
            if prefix == BIND_PREFIX:
                continue  # `_check_settings` reads them
            async for item in Scan(self._metadata, prefix):
                try:
                    decode(item.key, item.value)
                except (CorruptData, UnsupportedFormat) as error:
                    yield _unreadable(item, error)

    async def _log_text(self, log_id: int) -> str:
        """Return a log with its name, if its state is readable."""
        item = await self._get(state_key(log_id))
        try:
            return log_text(log_id, "" if item is None else LogState.decode(item.value).name)
        except (CorruptData, UnsupportedFormat):
            return log_text(log_id)

    async def _load_staged_or_replaced(self) -> set[int]:
        """Return the ledgers that were created for a log and are not linked, or that a merge has replaced."""
        ledger_ids: set[int] = set()
        for prefix in (STAGED_PREFIX, REPLACED_PREFIX):
            async for item in Scan(self._metadata, prefix):
                with suppress(CorruptData):
                    ledger_ids.add(parse_staged_key(item.key)[1])
        return ledger_ids

    async def _check_orphaned(self, ledger_id: int, bookie: str) -> AuditFinding | None:
        """Count an index entry whose ledger has no record, and return its finding if it persists."""
        self.entries += 1
        if await self._is_still_different(ledger_id, bookie):
            what = f"the index of {bookie} lists it, but it does not exist"
            return _of_ledger(FindingCode.INDEX_DIFFERS, ledger_id, what)
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


def _of_ledger(code: FindingCode, ledger_id: int, what: str) -> AuditFinding:
    return AuditFinding(code, f"ledger {ledger_id}", what, ledger_id)


def _unreadable(item: KeyValue, error: Exception) -> AuditFinding:
    code, step = FindingCode.RECORD_UNREADABLE, next_step(item.key)
    if isinstance(error, UnsupportedFormat):
        code, step = FindingCode.RECORD_UNSUPPORTED, ""
    elif item.key == CLUSTER_VERSION_KEY:
        code = FindingCode.VERSION_UNREADABLE
    return AuditFinding(code, keys.printable_key(item.key), str(error), record_step=step)


def _ends_with_bool_txid(ledger: LedgerMetadata) -> bool:
    end = ledger.custom.get("end")
    try:
        return end is not None and end_stores_bool_txid(end)
    except (CorruptData, UnsupportedFormat):
        return False  # the link reports it


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
