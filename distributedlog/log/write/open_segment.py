"""The open segment of a writer: its ledger, and its sent and confirmed entries.

Entries are sent to one segment at a time (H11), so the entry IDs of batches in flight ascend without gaps.
"""

from operator import attrgetter

import trio

from ...runtime.interfaces.host import Buffer
from ..declarations.options import LogOptions
from ..format.compression import Compression
from ..format.control_record import LastRecord, build_control_entry
from ..format.dlsn import DLSN
from ..format.producer_section import SECTION_PRODUCERS
from ..format.record import build_entry, build_single_record_entry, with_section
from ..interfaces.segment_store import SegmentEntryWriter
from ..model.segment_record import UNKNOWN, SegmentBegin, SegmentEnd, SegmentRecord, roll_reason
from .entry_batch import EntryBatch
from .producer_state_manager import ProducerStateManager

PREPARE_NEXT_FRACTION = 15 / 16
"""The fraction of a segment's size or age at which the next one is prepared. The rest (64 MiB of 1 GiB)
leaves time for that."""

SNAPSHOT_BYTES = 32 * 1024 * 1024
"""The least number of bytes that are sent between two snapshots of the producers. A takeover reads them."""
SNAPSHOT_SIZE_FACTOR = 32
"""At least this multiple of a snapshot's size is sent before the next one."""


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
        """Start with an empty ledger.

        Args:
            age_factor: The segment's share of the maximum age.
        """
        self.record = record
        self.segment_number = record.segment
        """The number of the segment in the log, counted from 1."""
        self.ledger = ledger
        self.opened_at = trio.current_time()
        self.start_sequence_id = record.start_sequence_id
        """The sequence ID of the first record. -1 until `continue_after`, for a segment prepared while the
        previous one is written."""
        self.sent_records = 0
        self.sent_bytes = 0
        self._age_factor = age_factor
        self.last_entry = UNKNOWN
        """The last confirmed entry. -1 if there is none."""
        self._confirmed_bytes = 0
        self._newest_batch: EntryBatch | None = None  # the last one sent with records
        self._snapshot_entry = UNKNOWN
        """The newest snapshot of the log's producers that was sent."""
        self._snapshot_bytes = self._snapshot_after = 0
        self._confirmed_names_snapshot = False
        """Whether the last confirmed entry refers to a snapshot."""
        self._first_txid = UNKNOWN  # of the sent records
        self._max_txid = UNKNOWN  # of the sent records; searches use the greatest so far
        self._confirmed_txid = UNKNOWN  # the greatest of the confirmed records
        self._last_confirmed = (UNKNOWN, UNKNOWN, 0)
        """Entry and slot of the last confirmed record, and the number of confirmed records. One value,
        because other threads read it."""
        self._last_time_ms = 0  # of the last sent entry, so not before that of the confirmed ones
        self._pending_begin: SegmentBegin | None = None
        """The begin data that the first entry carries, until that entry is sent."""
        self._compression = compression

    has_capacity = property(attrgetter("ledger.has_capacity"))
    """Whether the ledger accepts another entry now. Read for each entry, so it avoids a Python-level call."""

    @property
    def position(self) -> tuple[DLSN, int]:
        """The position and the sequence ID after the last confirmed record. Thread-safe."""
        entry, slot, records = self._last_confirmed
        dlsn = DLSN(self.segment_number, entry, slot + 1) if records else self.record.first_dlsn
        return dlsn, self.start_sequence_id + records

    @property
    def is_drained(self) -> bool:
        """Whether all sent entries are confirmed."""
        return self.sent_bytes == self._confirmed_bytes

    def continue_after(self, previous: "OpenSegment") -> None:
        """Become the segment that is written.

        All entries of ``previous`` must be confirmed, and none may follow.
        """
        self.start_sequence_id = previous.position[1]
        self._pending_begin = SegmentBegin(previous.last_entry, self.start_sequence_id)
        self.opened_at = trio.current_time()

    def send(
        self, batch: EntryBatch, written_ms: int, producers: ProducerStateManager | None = None
    ) -> None:
        """Assign the position of a batch and add it to the ledger. A batch without records becomes a control
        entry.

        Args:
            written_ms: The log time of the entry, in milliseconds since 1970.
            producers: The producers of the log. None if it never had one.
        Raises:
            DistributedLogError: The ledger has failed.
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
        if (
            len(txids) == 1  # a set has two or more
            and producers is None
            and batch.columns is None
            and not batch.has_keyed
        ):
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
        """Return the buffers of the entry and their length.

        ``max_txid`` has the meaning as in `build_entry`.
        """
        sections: tuple[tuple[int, int, Buffer], ...] = ()
        if producers is not None:
            section = producers.encode_section(batch, snapshot_entry, self._snapshot_entry)
            sections = ((SECTION_PRODUCERS, 0, section),)
        if not batch.txids:
            return self._build_control_entry(written_ms, sections)
        if batch.columns is None:
            payloads, keys, headers = batch.split_contents()
            return build_entry(
                batch.txids,
                payloads,
                records_before=self.sent_records,
                written_ms=written_ms,
                record_flags=None if batch.sets is None else batch.record_flags(),
                sections=sections,
                sizes=None if batch.has_keyed else batch.sizes,
                max_txid=max_txid,
                keys=keys,
                headers=headers,
            )
        buffers, length = batch.columns.build_entry(
            records_before=self.sent_records, written_ms=written_ms, max_txid=max_txid
        )
        for kind, _, data in sections:
            buffers, length = with_section(buffers, length, kind, data)
        return buffers, length

    @property
    def needs_snapshot(self) -> bool:
        """Whether the next entry, in a log with producers, must be a snapshot of them."""
        if self._snapshot_entry < 0:
            return True
        threshold_bytes = max(SNAPSHOT_BYTES, SNAPSHOT_SIZE_FACTOR * self._snapshot_bytes)
        return self.sent_bytes - self._snapshot_after > threshold_bytes

    def confirm(self, batch: EntryBatch) -> None:
        """Count a batch that is durable in this segment, and finish it."""
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
            # The entries sent before it are stored before it, wherever the ledger ends.
            entry, slot, _ = self._last_confirmed
            max_txid = self._confirmed_txid
            if not newest_batch.is_done:
                entry, slot = newest_batch.entry, len(newest_batch.txids) - 1
                max_txid = newest_batch.max_txid
            last_record = LastRecord(entry, slot, self._first_txid)
        return build_control_entry(
            last_record, max_txid, records_before=records, written_ms=written_ms, sections=sections
        )

    def segment_end(self) -> SegmentEnd:
        """Return the end of the segment, once all entries to be kept are confirmed."""
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
        """Return the reason to prepare the next segment now, or ""."""
        return self._roll_reason(options, PREPARE_NEXT_FRACTION)

    def is_full(self, options: LogOptions) -> bool:
        """Return whether the segment must end, regardless of the entries in flight."""
        return self._roll_reason(options, 1.0) != ""

    @property
    def needs_better_ensemble(self) -> bool:
        """Whether the log should continue in another ledger (H22).

        False for an empty segment, which gains nothing.
        """
        return self.ledger.needs_roll and self.sent_bytes > 0

    def _roll_reason(self, options: LogOptions, fraction: float) -> str:
        if not options.rolling:
            return ""
        if self.ledger.should_close_early:
            return "a bookie of its ledger leaves the cluster, is lost, or has lost data"
        return roll_reason(
            bytes_written=self.sent_bytes,
            bytes_max=options.segment_bytes_max * fraction,
            user_bytes=self.sent_bytes if self.sent_records else 0,
            age_s=trio.current_time() - self.opened_at,
            age_max_s=options.segment_age_max_s * self._age_factor * fraction,
            ledger_needs_roll=self.needs_better_ensemble,
        )

    def publish(self) -> None:
        """Send the LAC to the bookies, if no later entry carries it."""
        self.ledger.publish_lac()
