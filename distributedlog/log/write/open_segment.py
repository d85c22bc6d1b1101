"""The segment that a writer is writing: its ledger, and what is in it, sent and confirmed.

Entries go to one segment at a time (H11), so entry ids of what is in flight ascend without gaps.
"""

from operator import attrgetter

import trio

from ...runtime.interfaces.host import Buffer
from ..declarations.options import LogOptions
from ..format.compression import Compression
from ..format.control_record import LastRecord, build_control
from ..format.dlsn import DLSN
from ..format.producer_section import SECTION_PRODUCERS
from ..format.record import build_entry, build_single_record_entry, with_section
from ..interfaces.segment_store import SegmentEntryWriter
from ..model.segment_record import UNKNOWN, SegmentBegin, SegmentEnd, SegmentRecord, roll_reason
from .entry_batch import EntryBatch
from .producer_state_manager import ProducerStateManager

PREPARE_NEXT_FRACTION = 15 / 16
"""Of its size or age, when the next one is made ready: what is left is time for that (64 MiB of 1 GiB)."""

SNAPSHOT_BYTES = 32 * 1024 * 1024
"""Sent after one snapshot of the producers before the next, or `SNAPSHOT_SIZE_FACTOR` times its size: what a
takeover reads."""
SNAPSHOT_SIZE_FACTOR = 32


class OpenSegment:
    """A segment in progress, as its writer sees it."""

    __slots__ = (
        "_age_factor",
        "_compression",
        "_confirmed_bytes",
        "_confirmed_names_snapshot",
        "_confirmed_txid",
        "_first_txid",
        "_last_confirmed",
        "_last_time_ms",
        "_max_txid",
        "_newest_batch",
        "_pending_begin",
        "_snapshot_after",
        "_snapshot_bytes",
        "_snapshot_entry",
        "last_entry",
        "ledger",
        "opened_at",
        "record",
        "segment_number",
        "sent_bytes",
        "sent_records",
        "start_sequence_id",
    )

    def __init__(
        self,
        record: SegmentRecord,
        ledger: SegmentEntryWriter,
        compression: Compression,
        *,
        age_factor: float,
    ) -> None:
        """``age_share``: of the greatest age, how much this one is given."""
        self.record = record
        self.segment_number = record.segment
        """Counts from 1 in the log."""
        self.ledger = ledger
        self.opened_at = trio.current_time()
        self.start_sequence_id = record.start_sequence_id
        """Of its first record; -1 until `follow`, where it was made ready under the one before it."""
        self.sent_records = 0
        self.sent_bytes = 0
        self._age_factor = age_factor
        self.last_entry = UNKNOWN
        """The last one that is confirmed; -1: none is."""
        self._confirmed_bytes = 0
        self._newest_batch: EntryBatch | None = None  # that was sent
        self._snapshot_entry = UNKNOWN
        """The newest one that was sent, of the log's producers."""
        self._snapshot_bytes = self._snapshot_after = 0
        self._confirmed_names_snapshot = False
        """Does the last entry that is confirmed name one?"""
        self._first_txid = UNKNOWN  # of what was sent
        self._max_txid = UNKNOWN  # sent; a search for a txid uses the greatest so far
        self._confirmed_txid = UNKNOWN  # the greatest confirmed one
        self._last_confirmed = (UNKNOWN, UNKNOWN, 0)
        """Entry and slot of the last record that is confirmed, and how many are. One value: it is looked at
        from other threads."""
        self._last_time_ms = 0  # of what was sent: of what is confirmed, or later
        self._pending_begin: SegmentBegin | None = None
        """What its first entry is to say, while there is none."""
        self._compression = compression

    has_capacity = property(attrgetter("ledger.room"))
    """Does its ledger take another entry now? Without a call of Python's own: it is asked for each."""

    @property
    def position(self) -> tuple[DLSN, int]:
        """After the last record that is confirmed, with the sequence id there. From any thread."""
        entry, slot, records = self._last_confirmed
        dlsn = DLSN(self.segment_number, entry, slot + 1) if records else self.record.first_dlsn
        return dlsn, self.start_sequence_id + records

    @property
    def is_drained(self) -> bool:
        """Is all that was sent to it confirmed?"""
        return self.sent_bytes == self._confirmed_bytes

    def continue_after(self, previous: "OpenSegment") -> None:
        """It is written from now on. All of the one before it is confirmed, and no more is written there."""
        self.start_sequence_id = previous.position[1]
        self._pending_begin = SegmentBegin(previous.last_entry, self.start_sequence_id)
        self.opened_at = trio.current_time()

    def send(
        self, batch: EntryBatch, written_ms: int, producers: ProducerStateManager | None = None
    ) -> None:
        """Give a batch its place and hand it to the ledger. Raises the ledger's error.

        One without records becomes a control entry. ``producers``: of a log that has any.
        """
        txids, snapshot_entry, max_txid_if_greater = batch.txids, UNKNOWN, 0
        if txids:
            last_txid = txids[-1]
            batch_max_txid = max(txids) if batch.is_unordered else last_txid
            if batch_max_txid > self._max_txid:
                self._max_txid = batch_max_txid
            if self._max_txid > last_txid:
                max_txid_if_greater = self._max_txid
            batch.max_txid = self._max_txid
        if len(txids) == 1 and producers is None and batch.columns is None:  # a set has two or more
            buffers, length = build_single_record_entry(
                txids[0], batch.payloads[0], self.sent_records, written_ms, max_txid_if_greater
            )
        else:
            if producers is not None:
                snapshot_entry = self.ledger.last_entry + 1
            buffers, length = self._build_buffers(
                batch, written_ms, producers, snapshot_entry, max_txid_if_greater
            )
        if self._pending_begin is not None:
            buffers, length = self._pending_begin.add_to_entry(buffers, length)
            self._pending_begin = None
        if self._compression.codec_number:
            buffers, length = self._compression.compress(buffers, length)
        batch.entry = self.ledger.add(buffers, length)
        batch.segment = self.segment_number
        batch.stored_bytes = length
        if txids:
            if not self.sent_records:
                self._first_txid = txids[0]
            self._newest_batch = batch
            self.sent_records += len(txids)
        elif batch.producer_section is not None and batch.producer_section.table is not None:
            assert batch.entry == snapshot_entry, "a snapshot names itself"
            self._snapshot_entry, self._snapshot_bytes = snapshot_entry, length
            self._snapshot_after = self.sent_bytes + length
        self.sent_bytes += length
        self._last_time_ms = written_ms

    def _build_buffers(
        self,
        batch: EntryBatch,
        written_ms: int,
        producers: ProducerStateManager | None,
        snapshot_entry: int,
        max_txid: int,
    ) -> tuple[list[Buffer], int]:
        """The buffers of its entry, and their length. ``max_txid``: as of `record.build`."""
        sections: tuple[tuple[int, int, Buffer], ...] = ()
        if producers is not None:
            section = producers.encode_section(batch, snapshot_entry, self._snapshot_entry)
            sections = ((SECTION_PRODUCERS, 0, section),)
        if not batch.txids:
            return self._build_control_entry(written_ms, sections)
        if batch.columns is None:
            return build_entry(
                batch.txids,
                batch.payloads,
                records_before=self.sent_records,
                written_ms=written_ms,
                record_flags=None if batch.sets is None else batch.record_flags(),
                sections=sections,
                sizes=batch.sizes,
                max_txid=max_txid,
            )
        buffers, length = batch.columns.build_entry(
            records_before=self.sent_records, written_ms=written_ms, max_txid=max_txid
        )
        for kind, _, data in sections:
            buffers, length = with_section(buffers, length, kind, data)
        return buffers, length

    @property
    def needs_snapshot(self) -> bool:
        """Is the next entry of a log with producers to be a snapshot of them?"""
        if self._snapshot_entry < 0:
            return True
        threshold_bytes = max(SNAPSHOT_BYTES, SNAPSHOT_SIZE_FACTOR * self._snapshot_bytes)
        return self.sent_bytes - self._snapshot_after > threshold_bytes

    def confirm(self, batch: EntryBatch) -> None:
        """The batch is durable here: count it, and tell whoever waits for it."""
        txids = batch.txids
        self.last_entry = batch.entry
        self._confirmed_bytes += batch.stored_bytes
        if not txids:
            if batch.producer_section is not None and batch.producer_section.table is not None:
                self._confirmed_names_snapshot = True
            batch.finish()
            return
        records = self._last_confirmed[2]
        self._confirmed_txid = batch.max_txid
        self._last_confirmed = (batch.entry, len(txids) - 1, records + len(txids))
        batch.finish()

    def _build_control_entry(
        self, written_ms: int, sections: tuple[tuple[int, int, Buffer], ...]
    ) -> tuple[list[Buffer], int]:
        newest_batch, records, max_txid, last_record = (
            self._newest_batch,
            self.sent_records,
            UNKNOWN,
            None,
        )
        if newest_batch is not None:
            # What was sent before it is in front of it, wherever the ledger ends.
            entry, slot, _ = self._last_confirmed
            max_txid = self._confirmed_txid
            if not newest_batch.is_done:
                entry, slot = newest_batch.entry, len(newest_batch.txids) - 1
                max_txid = newest_batch.max_txid
            last_record = LastRecord(entry, slot, self._first_txid)
        return build_control(
            last_record, max_txid, records_before=records, written_ms=written_ms, sections=sections
        )

    def segment_end(self) -> SegmentEnd:
        """What it holds, when everything that counts is confirmed."""
        last_record_entry, slot, records = self._last_confirmed
        return SegmentEnd(
            self.last_entry,
            self._confirmed_bytes,
            records,
            self._first_txid if records else UNKNOWN,
            self._confirmed_txid,
            last_record_entry,
            slot,
            self._last_time_ms,
            has_producer_snapshot=self._confirmed_names_snapshot,
        )

    def next_segment_reason(self, options: LogOptions) -> str:
        """Why the next one should be made ready by now; "" when it should not."""
        return self._roll_reason(options, PREPARE_NEXT_FRACTION)

    def is_full(self, options: LogOptions) -> bool:
        """Should it end, whatever is in flight?"""
        return self._roll_reason(options, 1.0) != ""

    @property
    def needs_better_ensemble(self) -> bool:
        """Would another ledger be better off (H22)? What is empty has nothing to gain."""
        return self.ledger.needs_roll and self.sent_bytes > 0

    def _roll_reason(self, options: LogOptions, fraction: float) -> str:
        if not options.rolling:
            return ""
        if self.ledger.unwanted:
            return "a bookie of its ledger is to leave, or gone, or has lost data"
        return roll_reason(
            bytes_written=self.sent_bytes,
            bytes_max=options.segment_bytes_max * fraction,
            user_bytes=self.sent_bytes if self.sent_records else 0,
            age_s=trio.current_time() - self.opened_at,
            age_max_s=options.segment_age_max_s * self._age_factor * fraction,
            ledger_needs_roll=self.needs_better_ensemble,
        )

    def publish(self) -> None:
        """Make what is confirmed readable, where no later entry says so."""
        self.ledger.publish_lac()
