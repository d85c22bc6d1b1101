"""Do the records of ledgers, bookies and logs refer to each other both ways? For `dlog audit`.

Records of ledgers, logs and segments that cannot be read are found, too, and segments whose record stores
true or false as a txid: older programs stored what they were given, and cannot read such a log.

One pass over the ledgers' records beside one over each bookie's part of the reverse index, in the order of
ids, and one over the logs' segments: time and memory grow with the ledgers alone (some 100 bytes each).
What seems wrong is read again by itself: it may have changed while the pass went on.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...log.model.log_keys import (
    RETIRED_PREFIX,
    UNLINKED_PREFIX,
    ids_of_unlinked,
    retired_key,
    segment_key,
    unlinked_key,
)
from ...log.model.log_state import LogState
from ...log.model.segment_record import SegmentRecord, stores_flag
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import KeyValue
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ..repair.decommission import named

LOG_PREFIX = b"log/"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One reference without its counterpart, or one record that needs attention."""

    ledger: int | None
    """None: the record is not a ledger's, and names none that can be read."""
    what: str


class References:
    """One audit; what it counted stays for whoever asks."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.ledgers = 0
        self.segments = 0
        self.entries = 0
        """Of the reverse index."""

    async def audit(self) -> AsyncIterator[Mismatch]:
        """Yield every mismatch."""
        found: list[Mismatch] = []
        segments = await self._segments(found)
        for one in found:
            yield one
        noted = await self._noted()
        index = [_Part(self._metadata, bookie) async for bookie in named(self._metadata)]
        for part in index:
            await part.step()
        async for item in Scan(self._metadata, keys.LEDGER_PREFIX):
            try:
                ledger = LedgerMetadata.decode(item.key, item.value)
            except (CorruptData, UnsupportedFormat) as error:
                yield Mismatch(None, str(error))
                continue
            self.ledgers += 1
            there: set[str] = set()
            for part in index:
                while part.at is not None and part.at < ledger.ledger_id:
                    self.entries += 1
                    if await self._differs(part.at, part.bookie):
                        yield Mismatch(part.at, f"the index of {part.bookie} names it, it is gone")
                    await part.step()
                if part.at == ledger.ledger_id:
                    self.entries += 1
                    there.add(part.bookie)
                    await part.step()
            live = ledger.state is not LedgerState.DELETING
            wanted = set(ledger.bookies()) if live else set()
            for bookie in sorted(wanted ^ there):
                if await self._differs(ledger.ledger_id, bookie):
                    side = "its record names" if bookie in wanted else "the index alone names"
                    yield Mismatch(ledger.ledger_id, f"{side} bookie {bookie}")
            owner = segments.pop(ledger.ledger_id, None)
            if live:
                what = await self._orphaned(ledger, owner, ledger.ledger_id in noted)
                if what:
                    yield Mismatch(ledger.ledger_id, what)
        for part in index:
            while part.at is not None:
                self.entries += 1
                if await self._differs(part.at, part.bookie):
                    yield Mismatch(part.at, f"the index of {part.bookie} names it, it is gone")
                await part.step()
        for ledger_id, (log_id, segment) in segments.items():
            if await self._get(keys.ledger_key(ledger_id)) is not None:
                continue
            if await self._names(log_id, segment, ledger_id):
                yield Mismatch(
                    ledger_id, f"segment {segment} of log {log_id:016x} names it, it is gone"
                )

    async def _segments(self, wrong: list[Mismatch]) -> dict[int, tuple[int, int]]:
        """Ledger to the log and segment that name it; of several that share one, the last."""
        found: dict[int, tuple[int, int]] = {}
        async for item in Scan(self._metadata, LOG_PREFIX):
            parts = item.key.split(b"/")
            try:
                if len(parts) == 3 and parts[2] == b"state":
                    LogState.decode(item.value)
                    continue
                if len(parts) != 4 or parts[2] != b"segment":
                    continue
                record = SegmentRecord.decode(item.value)
                found[record.ledger_id] = (int(parts[1], 16), record.segment)
                self.segments += 1
                if stores_flag(item.value):
                    what = f"segment {record.segment} of log {parts[1].decode()}"
                    wrong.append(
                        Mismatch(
                            record.ledger_id,
                            f"{what} stores true or false as a txid. It is read as 1 or 0; older "
                            "programs cannot read or delete this log",
                        )
                    )
            except (CorruptData, UnsupportedFormat, ValueError) as error:
                wrong.append(Mismatch(None, f"{keys.shown(item.key)}: {error}"))
        return found

    async def _noted(self) -> set[int]:
        """Ledgers that were made for a log and are not linked, or that a merge has left."""
        found: set[int] = set()
        for prefix in (UNLINKED_PREFIX, RETIRED_PREFIX):
            async for item in Scan(self._metadata, prefix):
                with suppress(CorruptData):
                    found.add(ids_of_unlinked(item.key)[1])
        return found

    async def _orphaned(
        self, ledger: LedgerMetadata, by: tuple[int, int] | None, noted: bool
    ) -> str:
        """What is wrong with who owns it; "" for nothing."""
        if by is not None or noted:
            return ""
        ledger_id = ledger.ledger_id
        item = await self._get(keys.ledger_key(ledger_id))
        if item is None:
            return ""
        try:
            now = LedgerMetadata.decode(item.key, item.value)
        except (CorruptData, UnsupportedFormat):
            return ""
        if now.state is LedgerState.DELETING:
            return ""
        if now.owner is None:
            return "no log refers to it, and nobody has noted it for one"
        if await self._names(*now.owner, ledger_id):
            return ""
        for key in (unlinked_key(now.owner[0], ledger_id), retired_key(now.owner[0], ledger_id)):
            if await self._get(key) is not None:
                return ""
        return f"it is of segment {now.owner[1]} of log {now.owner[0]:016x}, which does not name it"

    async def _names(self, log_id: int, segment: int, ledger_id: int) -> bool:
        item = await self._get(segment_key(log_id, segment))
        try:
            return item is not None and SegmentRecord.decode(item.value).ledger_id == ledger_id
        except (CorruptData, UnsupportedFormat):
            return True  # what it names is not known

    async def _differs(self, ledger_id: int, bookie: str) -> bool:
        """Do record and index still differ in this bookie?"""
        item = await self._get(keys.ledger_key(ledger_id))
        try:
            ledger = None if item is None else LedgerMetadata.decode(item.key, item.value)
        except (CorruptData, UnsupportedFormat):
            return False
        live = ledger is not None and ledger.state is not LedgerState.DELETING
        wanted = ledger is not None and live and bookie in ledger.bookies()
        return wanted != (await self._get(keys.on_key(bookie, ledger_id)) is not None)

    async def _get(self, key: bytes) -> KeyValue | None:
        return await self._metadata.get(key)


class _Part:
    """One bookie's part of the reverse index, ledger by ledger."""

    def __init__(self, metadata: Metadata, bookie: str) -> None:
        self.bookie = bookie
        self.at: int | None = None
        """The ledger where it is; None at its end."""
        self._scan = Scan(metadata, keys.on_prefix(bookie))

    async def step(self) -> None:
        """To the next one."""
        async for item in self._scan:
            try:
                self.at = keys.ledger_id_of(item.key)
            except CorruptData:
                continue
            return
        self.at = None
