"""Verify the records of an ADD frame and put them into the journal buffer, in one synchronous call.

Every entry takes this path: one loop over the records of a frame, one hash per record, and one copy per range
of consecutive IDs. There is no await, and no allocation per entry.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import xxhash

from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    EntryConflict,
    InvalidRequest,
    LedgerFenced,
    LedgerStateUnknown,
    NoSuchLedger,
    ProtocolError,
    RecordTooLarge,
    TooBusy,
    UnsupportedFormat,
    WrongLedgerKey,
)
from ..declarations.counters import Stats
from ..format import entry as entries
from ..format import journal_format as jb
from ..format.extent_map import ExtentLocation
from ..format.index_format import IndexDamaged
from ..format.read_sources import LoadedExtent
from ..format.record_slices import find_record
from ..ledgers.ledger_existence import LedgerStatus, OnStatus
from ..ledgers.ledger_table import IncomingStream, Ledger, PendingExtent, StreamOwner
from ..storage.bookie_storage import BookieStorage
from ..storage.entry_reader import DeviceReader, EntryReader
from ..storage.group_commit import GroupCommit
from ..storage.journal_buffer import CommitBlock


class AddHandler:
    """The adds of one bookie: checks the streams, and puts their records into the journal buffer."""

    def __init__(
        self,
        storage: BookieStorage,
        group_commit: GroupCommit,
        reader: EntryReader,
        device_reader: DeviceReader,
        stats: Stats,
        on_corruption: Callable[[int, int, int], None],
    ) -> None:
        """Create the handler.

        ``on_corruption`` receives entries (ledger, first, last) whose stored records are corrupt.
        """
        self._buffer = storage.buffer
        self._journal = storage.journal
        self._group_commit = group_commit
        self._index = storage.index
        self._ledgers = storage.ledgers
        self._space = storage.space
        self._reader = reader
        self._device_reader = device_reader
        self._unsynced_bytes_max = storage.options.unsynced_bytes_max
        self._deferred_bytes_max = storage.options.deferred_bytes_max
        self._stats = stats
        self._on_corruption = on_corruption
        self._ledger_listeners: list[Callable[[int], None]] = []
        self._lookup: Callable[[int, OnStatus], None] | None = None

    def subscribe(self, on_ledger_created: Callable[[int], None]) -> None:
        """Call ``on_ledger_created`` with the ID of each ledger that an add makes known here (H21)."""
        self._ledger_listeners.append(on_ledger_created)

    def set_lookup(self, lookup: Callable[[int, OnStatus], None]) -> None:
        """Set the query of the metadata for ledgers that are unknown here (H89).

        Before this call, adds to an unknown ledger whose tombstone may have been removed are refused.
        """
        self._lookup = lookup

    # --- streams ----------------------------------------------------------------------------------

    def open_stream(
        self,
        owner: StreamOwner,
        number: int,
        ledger_id: int,
        key: bytes,
        *,
        recovery: bool,
        fragment_epoch: int,
    ) -> IncomingStream:
        """Open an add stream of a connection to a ledger.

        With a wrong key, or while the ledger's copy is being dropped, the stream is refused at once.

        Args:
            number: The stream's number on the connection.
            key: The key that was presented, or `NO_KEY`.
            recovery: Whether the stream adds for a recovery or a repair, which may add to fenced ledgers.
            fragment_epoch: The epoch of the fragment, as the client sent it.
        """
        ledger = self._ledgers.get_or_make(ledger_id)
        stream = IncomingStream(number, ledger, recovery, fragment_epoch, owner)
        ledger.stream_count += 1
        try:
            ledger.set_key_if_unknown(key)
        except WrongLedgerKey as error:
            self.refuse(stream, error)
        else:
            if ledger.removing:  # an entry that is added after the removal would belong to a stub
                self.refuse(stream, _removing_refusal(ledger))
            elif recovery and ledger.flags & jb.DROPPED:
                # The ledger is stored here again, and is in limbo state until it is complete.
                self._ledgers.set_flags(ledger, ledger.flags & ~jb.DROPPED)
                self._group_commit.write_state(ledger, _no_op)
        return stream

    def close_stream(self, stream: IncomingStream) -> None:
        """Close a stream. Its records in the journal buffer remain."""
        stream.refused, stream.accepting = True, False
        self._discard_deferred(stream)
        stream.ledger.stream_count -= 1
        self._ledgers.release_if_unused(stream.ledger)

    def refusal(self, stream: IncomingStream) -> DistributedLogError | None:
        """Return the error for a stream that accepts no more records, by the state of ledger and bookie."""
        ledger = stream.ledger
        if ledger.flags:
            if ledger.flags & jb.DELETED:
                return NoSuchLedger(f"ledger {ledger.id} was deleted")
            if ledger.removing:
                return _removing_refusal(ledger)
            if ledger.flags & jb.LIMBO and not stream.recovery:
                return _limbo_refusal(ledger)
            if ledger.flags & jb.FENCED and not stream.recovery:
                return LedgerFenced(f"ledger {ledger.id} was fenced by a recovery")
        if not ledger.is_known and ledger.id < self._ledgers.limbo_below and not stream.recovery:
            return _limbo_refusal(ledger)
        space = self._space
        if space.read_only or space.index_is_behind:
            return space.refusal(recovery=stream.recovery)
        return None

    def refuse(self, stream: IncomingStream, error: DistributedLogError) -> None:
        """Refuse a stream: notify its owner once, and accept no more records of it (H1)."""
        if not stream.refused:
            stream.refused, stream.accepting = True, False
            self._discard_deferred(stream)
            self._stats.refusals += 1
            stream.owner.on_refused(stream, error, stream.accepted)

    def _record_new_ledger(self, stream: IncomingStream, block: CommitBlock) -> None:
        """Put the state of a new ledger, with its key, into the block of its first record.

        A copy by a recovery or a repair is stored with the fence. The ledger's writer has ended by then, and
        an earlier fence here may have been dropped with an earlier copy (H95).
        """
        ledger = stream.ledger
        flags = jb.FENCED if stream.recovery else 0
        if ledger.id < self._ledgers.limbo_below:
            flags = jb.FENCED | jb.LIMBO
        self._ledgers.set_flags(ledger, flags)
        self._write_state(ledger, block)
        if flags:
            block.after_sync.append(partial(_mark_fence_durable, ledger))
        self._index.mark_state_dirty(ledger)
        self.notify_ledger_created(ledger)

    def _write_state(self, ledger: Ledger, block: CommitBlock) -> None:
        """Write the state into the same block, before the first record that relies on it."""
        block.control_records.append(ledger.state_record())
        ledger.is_journaled = True

    def notify_ledger_created(self, ledger: Ledger) -> None:
        """Notify the subscribers, which check whether the ledger exists."""
        for on_ledger_created in self._ledger_listeners:
            on_ledger_created(ledger.id)

    # --- adds that wait for a lookup --------------------------------------------------------------

    def _must_be_looked_up(self, stream: IncomingStream) -> bool:
        """Whether its unknown ledger may have been deleted, or fenced and moved away."""
        return stream.ledger.id < self._ledgers.must_verify_below and not stream.lookup_passed

    def _defer(self, stream: IncomingStream, body: memoryview) -> None:
        """Keep records to an unknown ledger until a query of the metadata, which the first of them starts.

        The ledger may have been deleted, closed or fenced, and this bookie may have removed its tombstone or
        fence since (H89). Other streams continue.
        """
        stats, is_first_deferred = self._stats, stream.accepting
        if self._lookup is None or stats.deferred_bytes + len(body) > self._deferred_bytes_max:
            self.refuse(stream, _lookup_unavailable(stream.ledger))
            return
        stream.accepting = False
        stream.deferred_frames.append(bytes(body))
        stats.deferred_bytes += len(body)
        if is_first_deferred:
            self._lookup(stream.ledger.id, partial(self._on_lookup_done, stream))

    def _on_lookup_done(self, stream: IncomingStream, status: LedgerStatus | None) -> None:
        """Add the deferred records or refuse the stream.

        `add_records` checks the flags of the ledger after this (H95).
        """
        if stream.refused:
            return
        ledger = stream.ledger
        if status is LedgerStatus.DELETED:
            self.refuse(stream, NoSuchLedger(f"ledger {ledger.id} was deleted"))
        elif status is LedgerStatus.ENDED and not stream.recovery:
            self.refuse(
                stream, LedgerFenced(f"ledger {ledger.id} was closed, or is being recovered")
            )
        elif status is None:
            self.refuse(stream, _lookup_unavailable(ledger))
        else:
            stream.lookup_passed = True
            self._add_deferred(stream)

    def _add_deferred(self, stream: IncomingStream) -> None:
        """Add the deferred records in order, and the rest when there is space again."""
        if stream.refused:
            return
        stream.accepting = True
        while stream.deferred_frames:
            body = stream.deferred_frames.pop(0)
            added_bytes = self.add_records(
                stream, memoryview(body), partial(self._add_deferred, stream)
            )
            self._stats.deferred_bytes -= added_bytes
            if added_bytes < len(body):
                stream.deferred_frames.insert(0, body[added_bytes:])
                stream.accepting = False
                break
        self._group_commit.wake()

    def _discard_deferred(self, stream: IncomingStream) -> None:
        self._stats.deferred_bytes -= sum(map(len, stream.deferred_frames))
        stream.deferred_frames.clear()

    # --- records ----------------------------------------------------------------------------------

    def add_records(
        self, stream: IncomingStream, body: memoryview, resume: Callable[[], None]
    ) -> int:
        """Verify the records of one ADD frame and put them into the journal buffer.

        The commit is left to `GroupCommit.commit_adds`, which is called for all frames of a receive at once.

        Returns:
            The accepted bytes of the frame. If they are fewer than all, the ring is full or the device must
            be read. The caller passes the rest again when ``resume`` is called, before any other frame of the
            connection. A refusal accepts all bytes.
        """
        size_bytes = len(body)
        if stream.refused:
            return size_bytes
        if not stream.accepting:
            self._defer(stream, body)
            return size_bytes
        ledger = stream.ledger
        refusal = self.refusal(stream)
        if refusal is None and size_bytes > self._buffer.entry_bytes_max:
            refusal = RecordTooLarge(
                f"{size_bytes} bytes in one frame, but at most {self._buffer.entry_bytes_max} are allowed"
            )
        if (
            refusal is None
            and self._space.no_next_file
            and not self._journal.has_capacity(size_bytes)
        ):
            refusal = TooBusy("the rest of the last journal file is kept for fences and deletions")
        if refusal is not None:
            self.refuse(stream, refusal)
            return size_bytes
        is_over_limit = self._buffer.unsynced_bytes + size_bytes > self._unsynced_bytes_max
        block = self._buffer.block_for_records(size_bytes)
        if block is None or (is_over_limit and self._buffer.unsynced_bytes):
            self._group_commit.call_when_capacity(resume)
            self._journal.wake()
            return 0
        if not ledger.is_known:
            if self._must_be_looked_up(stream):
                self._defer(stream, body)
                return size_bytes
            self._record_new_ledger(stream, block)
        elif not ledger.is_journaled:
            self._write_state(ledger, block)
        stats = self._stats
        ledger_id, last_added = ledger.id, ledger.last_added_entry
        header_bytes, unpack_from = entries.HEADER_BYTES, entries.HEADER.unpack_from
        digest_of = xxhash.xxh3_64_intdigest
        entry_id_max, version_known = entries.ENTRY_ID_MAX, entries.VERSION
        position = start = 0
        first_entry = expected_entry = -1
        count = accepted = payload_total = 0
        highest_lac = -1
        error: DistributedLogError | None = None
        while position < size_bytes:
            if size_bytes - position < header_bytes:
                error = ProtocolError(f"{size_bytes - position} bytes after the last record")
                break
            digest, length, payload_bytes, version, _, _, record_ledger_id, entry, _, lac = (
                unpack_from(body, position)
            )
            record_end = position + length
            if record_end > size_bytes or length != (header_bytes + payload_bytes + 7) & ~7:
                error = ProtocolError(f"a record of {length} bytes in {size_bytes - position}")
                break
            if digest_of(body[position + 8 : record_end]) != digest:
                error = CorruptData(f"ledger {ledger_id} entry {entry}: the digest does not match")
                break
            if record_ledger_id != ledger_id or not -1 <= lac < entry <= entry_id_max:
                error = InvalidRequest(
                    f"ledger {record_ledger_id} entry {entry} LAC {lac} on a stream of ledger {ledger_id}"
                )
                break
            if version != version_known:
                error = UnsupportedFormat(
                    f"record version {version} is not supported, only {version_known}"
                )
                break
            if entry != expected_entry or entry <= last_added:
                if count:
                    self._append_records(block, ledger, first_entry, count, body[start:position])
                    accepted += count
                    count, last_added = 0, ledger.last_added_entry
                start, first_entry = position, entry
                if entry <= last_added:
                    try:
                        stored_digest = self._stored_digest(stream, entry, resume)
                    except DistributedLogError as digest_error:
                        error = digest_error
                        break
                    if stored_digest is None:
                        size_bytes = (
                            position  # the caller repeats the rest after the device was read
                        )
                        break
                    if stored_digest >= 0:
                        if stored_digest != digest:
                            error = EntryConflict(
                                f"ledger {ledger_id} entry {entry} is stored here with other bytes"
                            )
                            break
                        stats.duplicates += 1
                        accepted += 1
                        expected_entry = -1
                        start = position = record_end
                        continue
            expected_entry = entry + 1
            count += 1
            payload_total += payload_bytes
            if lac > highest_lac:
                highest_lac = lac
            position = record_end
        if count:
            self._append_records(block, ledger, first_entry, count, body[start:position])
            accepted += count
        if accepted:
            stream.accepted += accepted
            block.acks[stream] = stream.accepted
            if highest_lac > block.highest_lacs.get(ledger, ledger.lac):
                block.highest_lacs[ledger] = highest_lac
            if highest_lac >= ledger.lac:
                ledger.lac_unjournaled = False
            stats.entries += accepted
            stats.payload_bytes += payload_total
        stats.adds += 1
        if error is not None:
            self.refuse(stream, error)
            return len(body)
        return size_bytes

    def add_single_entries(
        self,
        streams: Mapping[int, IncomingStream],
        items: Iterator[tuple[int, int]],
        buffer: memoryview,
        offset: int,
    ) -> tuple[int, int, int] | None:
        """Put contiguous records, each of a different stream, into the journal buffer.

        It stops at the first record that needs a decision. With a thousand busy logs, this is the path of
        every entry: one loop and one copy for a frame. As for `add_records`, the commit is left to
        `GroupCommit.commit_adds`.

        Args:
            streams: The streams of the connection by number.
            items: The stream number and the bytes of each record.
            offset: The offset of the first record in ``buffer``.
        Returns:
            The stream number, start and end of the first record that `add_records` must handle. It has been
            consumed from ``items``. None if all records were added.
        """
        journal_buffer = self._buffer
        block: CommitBlock | None = None
        start_offset = offset
        copied_bytes = position = block_limit = payload_total = count = 0
        last_ledger_id = -1
        if self._space.read_only:  # this covers every shortage of space
            streams = {}
        try:
            for number, size_bytes in items:
                stream, record_end = streams.get(number), offset + size_bytes
                if stream is None or not stream.accepting or size_bytes < _HEADER_BYTES:
                    return number, offset, record_end
                ledger = stream.ledger
                if ledger.flags or not ledger.is_journaled:  # a journaled ledger is also known
                    return number, offset, record_end
                digest, length, payload_bytes, version, _, _, record_ledger_id, entry, _, lac = (
                    _unpack_header(buffer, offset)
                )
                if (
                    not length == size_bytes == (_HEADER_BYTES + payload_bytes + 7) & ~7
                    or record_ledger_id != ledger.id
                    or version != _VERSION
                    or not -1 <= lac < entry <= _ENTRY_ID_MAX
                    or entry <= ledger.last_added_entry
                    or _digest_of(buffer[offset + 8 : record_end]) != digest
                ):
                    return number, offset, record_end
                if position + size_bytes > block_limit:
                    if (
                        block is not None
                        or (block := journal_buffer.block_for_records(size_bytes)) is None
                    ):
                        return number, offset, record_end
                    position = block.end
                    block_limit = journal_buffer.records_end_max(block, self._unsynced_bytes_max)
                    if position + size_bytes > block_limit:
                        return number, offset, record_end
                    view, pending_extents = block.buffer.view, block.pending_extents
                    acks, lacs = block.acks, block.highest_lacs
                    if pending_extents:
                        last_ledger_id = pending_extents[-1].ledger.id
                copied_bytes += (
                    size_bytes  # from here on, the record is copied even after an exception
                )
                if record_ledger_id != last_ledger_id or not _extend_if_contiguous(
                    pending_extents[-1], entry, position, size_bytes
                ):
                    pending_extent = PendingExtent(ledger, entry, 1, view, position, size_bytes)
                    pending_extents.append(pending_extent)
                    ledger.pending_extents.append(pending_extent)  # in order: the ID is the highest
                    last_ledger_id = record_ledger_id
                ledger.last_added_entry = entry
                stream.accepted = acks[stream] = stream.accepted + 1
                if lac >= ledger.lac:
                    ledger.lac_unjournaled = False
                    if lac > ledger.lac and lac > lacs.get(ledger, -1):
                        lacs[ledger] = lac
                position += size_bytes
                payload_total += payload_bytes
                count += 1
                offset = record_end
            return None
        finally:
            if block is not None and copied_bytes:
                journal_buffer.append(block, buffer[start_offset : start_offset + copied_bytes])
                stats = self._stats
                stats.bytes += copied_bytes
                stats.adds += count
                stats.entries += count
                stats.payload_bytes += payload_total

    def _append_records(
        self, block: CommitBlock, ledger: Ledger, first: int, count: int, records: memoryview
    ) -> None:
        position = self._buffer.append(block, records)
        length = len(records)
        self._stats.bytes += length
        if block.pending_extents:
            last = block.pending_extents[-1]
            if last.ledger is ledger and _extend_if_contiguous(
                last, first, position, length, count
            ):
                if first + count - 1 > ledger.last_added_entry:
                    ledger.last_added_entry = first + count - 1
                return
        pending_extent = PendingExtent(ledger, first, count, block.buffer.view, position, length)
        block.pending_extents.append(pending_extent)
        ledger.add_pending(pending_extent)

    def _stored_digest(
        self, stream: IncomingStream, entry: int, resume: Callable[[], None]
    ) -> int | None:
        """Return the digest that is stored for ``entry``.

        Returns:
            -1 if the entry is not stored. None if the device must be read; ``resume`` is called afterwards.
        Raises:
            CorruptData: The stored record is corrupt, so it confirms nothing. The stream is refused, so that
                the client uses another bookie.
        """
        ledger = stream.ledger
        pending_extent = ledger.find_pending(entry)
        if pending_extent is not None:
            extent = ExtentLocation(
                pending_extent.first, pending_extent.count, 0, 0, pending_extent.length
            )
            start = pending_extent.position
            view: memoryview | bytes = pending_extent.buffer[start : start + pending_extent.length]
        else:
            try:
                stored_extent = self._index.find(ledger, entry)
            except IndexDamaged as error:
                raise self._ledgers.record_damage(ledger.id, error) from error
            if stored_extent is None:
                return -1
            extent = stored_extent
            loaded_view = self._reader.loaded_view(extent, stream.loaded_extent)
            if loaded_view is None:

                def loaded(result: LoadedExtent | DistributedLogError) -> None:
                    if isinstance(result, LoadedExtent):
                        stream.loaded_extent = result
                    else:
                        self.refuse(stream, result)
                    resume()

                self._device_reader.submit(
                    stream.owner, extent.file_number, extent.offset, extent.length, loaded
                )
                return None
            view = loaded_view
        try:
            record = find_record(view, ledger.id, extent, entry)
            entries.verify_record(record)
        except CorruptData:
            if pending_extent is None:
                self._on_corruption(ledger.id, extent.first, extent.last)
            raise
        return int.from_bytes(record[:8], "little")


def _extend_if_contiguous(
    last: PendingExtent, first: int, position: int, length: int, count: int = 1
) -> bool:
    """Extend the last extent by records of the same ledger; return False if they are not contiguous."""
    if (
        last.first + last.count == first
        and last.position + last.length == position
        and last.length < jb.EXTENT_BYTES_MAX
    ):
        last.count += count
        last.length += length
        return True
    return False


# For `add_single_entries`, which runs for each entry of a thousand logs.
_unpack_header, _HEADER_BYTES = entries.HEADER.unpack_from, entries.HEADER_BYTES
_digest_of = xxhash.xxh3_64_intdigest
_VERSION, _ENTRY_ID_MAX = entries.VERSION, entries.ENTRY_ID_MAX


def _mark_fence_durable(ledger: Ledger) -> None:
    ledger.fence_durable = True


def _lookup_unavailable(ledger: Ledger) -> DistributedLogError:
    """Return a temporary error, because an unknown state proves nothing. The writer retries."""
    return TooBusy(f"ledger {ledger.id} is not known here, and the metadata cannot be queried now")


def _no_op() -> None:
    """No action is needed when the state is durable."""


def _removing_refusal(ledger: Ledger) -> TooBusy:
    return TooBusy(f"ledger {ledger.id}: an unneeded copy is being dropped")


def _limbo_refusal(ledger: Ledger) -> DistributedLogError:
    """Return the error for a ledger whose fence may be lost.

    The writer continues without this bookie. If the ledger was fenced, another bookie with the fence refuses
    it.
    """
    return LedgerStateUnknown(
        f"ledger {ledger.id}: this bookie lost data and may have lost a fence of the ledger (limbo)"
    )
