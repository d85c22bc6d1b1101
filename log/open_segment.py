"""The segment that a writer is writing: its ledger, and what is in it, sent and confirmed.

Entries go to one segment at a time (H11), so entry ids of what is in flight ascend without gaps.
"""

import trio

from .batch import Batch
from .ledgers import LedgerWriter
from .options import LogOptions
from .record import HEADER_BYTES, build
from .segments import UNKNOWN, SegmentEnd, SegmentRecord, why_roll


class OpenSegment:
    """A segment in progress, as its writer sees it."""

    def __init__(self, record: SegmentRecord, ledger: LedgerWriter) -> None:
        self.record = record
        self.ledger = ledger
        self.opened_at = trio.current_time()
        self.sent_records = 0
        self.sent_bytes = 0
        self._last_entry = UNKNOWN
        self._records = 0
        self._bytes = 0
        self._first_txid = UNKNOWN
        self._last_txid = UNKNOWN
        self._last_slot = UNKNOWN
        self._last_time_ms = 0  # of what was sent: of what is confirmed, or later

    @property
    def number(self) -> int:
        """Counts from 1 in the log."""
        return self.record.segment

    def send(self, batch: Batch, wall_ms: int) -> None:
        """Give a batch its place and hand it to the ledger. Raises the ledger's error."""
        if batch.columns is not None:
            buffers, length = batch.columns.build(records_before=self.sent_records, wall_ms=wall_ms)
        else:
            buffers, length = build(
                batch.txids, batch.payloads, records_before=self.sent_records, wall_ms=wall_ms
            )
        batch.entry = self.ledger.add(buffers, length)
        batch.segment = self.record.segment
        self.sent_records += len(batch.txids)
        self.sent_bytes += length
        self._last_time_ms = wall_ms

    def confirm(self, batch: Batch) -> None:
        """The batch is durable here: count it, and tell whoever waits for it."""
        txids = batch.txids
        if self._records == 0:
            self._first_txid = txids[0]
        self._records += len(txids)
        self._bytes += batch.bytes + HEADER_BYTES + 4
        self._last_txid = txids[-1]
        self._last_entry = batch.entry
        self._last_slot = len(txids) - 1
        batch.finish()

    def end(self) -> SegmentEnd:
        """What it holds, when everything that counts is confirmed."""
        return SegmentEnd(
            self._last_entry,
            self._bytes,
            self._records,
            self._first_txid,
            self._last_txid,
            self._last_entry,
            self._last_slot,
            self._last_time_ms,
        )

    def why_roll(self, options: LogOptions) -> str:
        """Why it should end now; "" when it should not."""
        if not options.rolling:
            return ""
        return why_roll(
            bytes_written=self.sent_bytes,
            bytes_max=options.segment_bytes_max,
            age_s=trio.current_time() - self.opened_at,
            age_max_s=options.segment_age_max_s,
            ledger_wants=self.ledger.wants_roll and self.sent_bytes > 0,
        )

    def publish(self) -> None:
        """Make what is confirmed readable, where no later entry says so."""
        self.ledger.publish_lac()
