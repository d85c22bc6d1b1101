"""Adds: which streams may, and how the records of an ADD frame are taken: verified, looked up, gathered,
counted; all in one call.

The path that every entry goes: one loop over the records of a frame, one hash each, one copy for a stretch
of consecutive ids; no await, nothing allocated per entry.
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
from ..ledgers.ledger_existence import Answer, LedgerStatus
from ..ledgers.ledger_table import IncomingStream, Ledger, PendingExtent, StreamOwner
from ..storage.bookie_storage import BookieStorage
from ..storage.entry_reader import ColdReader, EntryReader
from ..storage.group_commit import GroupCommit
from ..storage.journal_buffer import CommitBlock


class Adds:
    """The adds of one bookie, into its gather ring: who may add, and what is taken."""

    def __init__(
        self,
        storage: BookieStorage,
        commits: GroupCommit,
        reader: EntryReader,
        cold: ColdReader,
        stats: Stats,
        on_rot: Callable[[int, int, int], None],
    ) -> None:
        """``on_rot`` gets entries (ledger, first, last) that do not read as they were written."""
        self._ring = storage.ring
        self._journal = storage.journal
        self._commits = commits
        self._index = storage.index
        self._ledgers = storage.ledgers
        self._space = storage.space
        self._reader = reader
        self._cold = cold
        self._unsynced_bytes_max = storage.options.unsynced_bytes_max
        self._deferred_bytes_max = storage.options.deferred_bytes_max
        self._stats = stats
        self._on_rot = on_rot
        self._ledger_listeners: list[Callable[[int], None]] = []
        self._look_up: Callable[[int, Answer], None] | None = None

    def subscribe(self, on_ledger_created: Callable[[int], None]) -> None:
        """Call ``on_ledger_created`` with the id of each ledger that an add makes known here (H21)."""
        self._ledger_listeners.append(on_ledger_created)

    def use_look_up(self, look_up: Callable[[int, Answer], None]) -> None:
        """From now on ask the metadata, by ``look_up``, for ledgers that are not known here (H89).

        Until then adds to a ledger whose tombstone may have ended are refused.
        """
        self._look_up = look_up

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
        """Adds of one connection to a ledger begin. A key that is not the ledger's refuses the stream."""
        ledger = self._ledgers.get_or_make(ledger_id)
        stream = IncomingStream(number, ledger, recovery, fragment_epoch, owner)
        ledger.users += 1
        try:
            ledger.take_key(key)
        except WrongLedgerKey as error:
            self.refuse(stream, error)
        else:
            if ledger.going:  # what it stored when the copy is gone would be a stub's
                self.refuse(stream, _going_refusal(ledger))
            elif recovery and ledger.flags & jb.DROPPED:
                self._ledgers.mark(
                    ledger, ledger.flags & ~jb.DROPPED
                )  # it comes back: in limbo, until all of it is here
                self._commits.write_state(ledger, _nothing)
        return stream

    def close_stream(self, stream: IncomingStream) -> None:
        """The stream is over; what it gathered stays."""
        stream.refused, stream.plain = True, False
        self._drop_late(stream)
        stream.ledger.users -= 1
        self._ledgers.release(stream.ledger)

    def refusal(self, stream: IncomingStream) -> DistributedLogError | None:
        """Why a stream takes no more records, by the state of its ledger and this bookie."""
        ledger = stream.ledger
        if ledger.flags:
            if ledger.flags & jb.DELETED:
                return NoSuchLedger(f"ledger {ledger.id} was deleted")
            if ledger.going:
                return _going_refusal(ledger)
            if ledger.flags & jb.LIMBO and not stream.recovery:
                return _limbo_refusal(ledger)
            if ledger.flags & jb.FENCED and not stream.recovery:
                return LedgerFenced(f"ledger {ledger.id} was fenced by a recovery")
        if not ledger.stored and ledger.id < self._ledgers.limbo_below and not stream.recovery:
            return _limbo_refusal(ledger)
        space = self._space
        if space.read_only or space.index_is_behind:
            return space.refusal(recovery=stream.recovery)
        return None

    def refuse(self, stream: IncomingStream, error: DistributedLogError) -> None:
        """Poison a stream: its owner is told once, nothing more of it is taken (H1)."""
        if not stream.refused:
            stream.refused, stream.plain = True, False
            self._drop_late(stream)
            self._stats.refusals += 1
            stream.owner.on_refused(stream, error, stream.taken)

    def _make_known(self, stream: IncomingStream, block: CommitBlock) -> None:
        """The first record of a ledger is about to be gathered: its key goes into the same block.

        The copy of a recovery or a repair brings the fence along: whoever copies, the writer is past, and a
        fence that was here once may have gone with an earlier copy (H95).
        """
        ledger = stream.ledger
        flags = jb.FENCED if stream.recovery else 0
        if ledger.id < self._ledgers.limbo_below:
            flags = jb.FENCED | jb.LIMBO
        self._ledgers.mark(ledger, flags)
        self._write_state(ledger, block)
        if flags:
            block.after_sync.append(partial(_fence_is_durable, ledger))
        self._index.note_state(ledger)
        self.made_known(ledger)

    def _write_state(self, ledger: Ledger, block: CommitBlock) -> None:
        """Before the first record that relies on it."""
        block.controls.append(ledger.state_record())
        ledger.journaled = True

    def made_known(self, ledger: Ledger) -> None:
        """Somebody asks whether there is such a ledger."""
        for on_ledger_created in self._ledger_listeners:
            on_ledger_created(ledger.id)

    # --- adds that wait for a look-up -------------------------------------------------------------

    def _must_be_looked_up(self, stream: IncomingStream) -> bool:
        """May its ledger, not known here, have been deleted, or fenced and moved away?"""
        return stream.ledger.id < self._ledgers.gone_below and not stream.looked_up

    def _keep_late(self, stream: IncomingStream, body: memoryview) -> None:
        """Nothing of the stream is acknowledged before the metadata was asked; other streams go on."""
        stats, asks = self._stats, stream.plain
        if self._look_up is None or stats.deferred_bytes + len(body) > self._deferred_bytes_max:
            self.refuse(stream, _not_looked_up(stream.ledger))
            return
        stream.plain = False
        stream.late.append(bytes(body))
        stats.deferred_bytes += len(body)
        if asks:
            self._look_up(stream.ledger.id, partial(self._on_looked_up, stream))

    def _on_looked_up(self, stream: IncomingStream, standing: LedgerStatus | None) -> None:
        """Take what waited, or refuse it. The ledger's flags are looked at after this, by `take` (H95)."""
        if stream.refused:
            return
        ledger = stream.ledger
        if standing is LedgerStatus.GONE:
            self.refuse(stream, NoSuchLedger(f"ledger {ledger.id} was deleted"))
        elif standing is LedgerStatus.ENDED and not stream.recovery:
            self.refuse(
                stream, LedgerFenced(f"ledger {ledger.id} was closed, or is being recovered")
            )
        elif standing is None:
            self.refuse(stream, _not_looked_up(ledger))
        else:
            stream.looked_up = True
            self._take_late(stream)

    def _take_late(self, stream: IncomingStream) -> None:
        """In order; what finds no room comes again."""
        if stream.refused:
            return
        stream.plain = True
        while stream.late:
            body = stream.late.pop(0)
            taken = self.take(stream, memoryview(body), partial(self._take_late, stream))
            self._stats.deferred_bytes -= taken
            if taken < len(body):
                stream.late.insert(0, body[taken:])
                stream.plain = False
                break
        self._commits.wake()

    def _drop_late(self, stream: IncomingStream) -> None:
        self._stats.deferred_bytes -= sum(map(len, stream.late))
        stream.late.clear()

    # --- records ----------------------------------------------------------------------------------

    def take(self, stream: IncomingStream, body: memoryview, resume: Callable[[], None]) -> int:
        """Verify and gather the records of one ADD frame; return how many bytes of it were taken.

        Fewer than all: the ring is full or the device must be asked. The rest is to be offered again,
        before anything else of the connection, when ``resume`` is called. A refusal takes everything.
        What was gathered is committed when `GroupCommit.gathered` is told, of all frames of a receive at
        once.
        """
        size = len(body)
        if stream.refused:
            return size
        if not stream.plain:
            self._keep_late(stream, body)
            return size
        ledger = stream.ledger
        refusal = self.refusal(stream)
        if refusal is None and size > self._ring.entry_bytes_max:
            refusal = RecordTooLarge(
                f"{size} bytes in one frame, allowed are {self._ring.entry_bytes_max}"
            )
        if refusal is None and self._space.no_next_file and not self._journal.has_room(size):
            refusal = TooBusy("the rest of the last journal file is kept for fences and deletions")
        if refusal is not None:
            self.refuse(stream, refusal)
            return size
        over = self._ring.unsynced_bytes + size > self._unsynced_bytes_max
        block = self._ring.room(size)
        if block is None or (over and self._ring.unsynced_bytes):
            self._commits.on_room(resume)
            self._journal.wake()
            return 0
        if not ledger.stored:
            if self._must_be_looked_up(stream):
                self._keep_late(stream, body)
                return size
            self._make_known(stream, block)
        elif not ledger.journaled:
            self._write_state(ledger, block)
        stats = self._stats
        ledger_id, top = ledger.id, ledger.top
        header_bytes, unpack_from = entries.HEADER_BYTES, entries.HEADER.unpack_from
        digest_of = xxhash.xxh3_64_intdigest
        entry_id_max, version_known = entries.ENTRY_ID_MAX, entries.VERSION
        position = start = 0
        first = expected = -1
        count = taken = payload = 0
        highest_lac = -1
        error: DistributedLogError | None = None
        while position < size:
            if size - position < header_bytes:
                error = ProtocolError(f"{size - position} bytes after the last record")
                break
            digest, length, payload_bytes, version, _, _, of_ledger, entry, _, lac = unpack_from(
                body, position
            )
            stop = position + length
            if stop > size or length != (header_bytes + payload_bytes + 7) & ~7:
                error = ProtocolError(f"a record of {length} bytes in {size - position}")
                break
            if digest_of(body[position + 8 : stop]) != digest:
                error = CorruptData(f"ledger {ledger_id} entry {entry}: the digest does not fit")
                break
            if of_ledger != ledger_id or not -1 <= lac < entry <= entry_id_max:
                error = InvalidRequest(
                    f"ledger {of_ledger} entry {entry} LAC {lac} on a stream of ledger {ledger_id}"
                )
                break
            if version != version_known:
                error = UnsupportedFormat(f"record version {version}, known is {version_known}")
                break
            if entry != expected or entry <= top:
                if count:
                    self._gather(block, ledger, first, count, body[start:position])
                    taken += count
                    count, top = 0, ledger.top
                start, first = position, entry
                if entry <= top:
                    try:
                        stored = self._stored_digest(stream, entry, resume)
                    except DistributedLogError as found:
                        error = found
                        break
                    if stored is None:
                        size = position  # the rest comes again when the device has answered
                        break
                    if stored >= 0:
                        if stored != digest:
                            error = EntryConflict(
                                f"ledger {ledger_id} entry {entry} is here with other bytes"
                            )
                            break
                        stats.duplicates += 1
                        taken += 1
                        expected = -1
                        start = position = stop
                        continue
            expected = entry + 1
            count += 1
            payload += payload_bytes
            if lac > highest_lac:
                highest_lac = lac
            position = stop
        if count:
            self._gather(block, ledger, first, count, body[start:position])
            taken += count
        if taken:
            stream.taken += taken
            block.acks[stream] = stream.taken
            if highest_lac > block.lacs.get(ledger, ledger.lac):
                block.lacs[ledger] = highest_lac
            if highest_lac >= ledger.lac:
                ledger.lac_owed = False
            stats.entries += taken
            stats.payload_bytes += payload
        stats.adds += 1
        if error is not None:
            self.refuse(stream, error)
            return len(body)
        return size

    def take_lone(
        self,
        streams: Mapping[int, IncomingStream],
        items: Iterator[tuple[int, int]],
        frame: memoryview,
        at: int,
    ) -> tuple[int, int, int] | None:
        """Gather records that lie back to back from ``at`` on, each of a stream of its own, while there is
        nothing to decide. ``items``: the stream's number and the bytes of each.

        That is each entry of a thousand busy logs: one loop and one copy for all of a frame. Returned is the
        first that `take` is to decide, the number of its stream and where it lies, taken from ``items``;
        None: all were gathered. As `take`, it leaves the commit to `GroupCommit.gathered`.
        """
        ring = self._ring
        block: CommitBlock | None = None
        began = at
        gathered = position = limit = payload = count = 0
        previous = -1
        if self._space.read_only:  # whatever is short, it is that
            streams = {}
        try:
            for number, size in items:
                stream, stop = streams.get(number), at + size
                if stream is None or not stream.plain or size < _HEADER_BYTES:
                    return number, at, stop
                ledger = stream.ledger
                if ledger.flags or not ledger.journaled:  # if it is, it is stored, too
                    return number, at, stop
                digest, length, payload_bytes, version, _, _, of_ledger, entry, _, lac = (
                    _unpack_header(frame, at)
                )
                if (
                    not length == size == (_HEADER_BYTES + payload_bytes + 7) & ~7
                    or of_ledger != ledger.id
                    or version != _VERSION
                    or not -1 <= lac < entry <= _ENTRY_ID_MAX
                    or entry <= ledger.top
                    or _digest_of(frame[at + 8 : stop]) != digest
                ):
                    return number, at, stop
                if position + size > limit:
                    if block is not None or (block := ring.room(size)) is None:
                        return number, at, stop
                    position = block.end
                    limit = ring.records_end_max(block, self._unsynced_bytes_max)
                    if position + size > limit:
                        return number, at, stop
                    view, notes = block.buffer.view, block.notes
                    acks, lacs = block.acks, block.lacs
                    if notes:
                        previous = notes[-1].ledger.id
                gathered += size  # from here on it is copied, whatever happens
                if of_ledger != previous or not _joined(notes[-1], entry, position, size):
                    note = PendingExtent(ledger, entry, 1, view, position, size)
                    notes.append(note)
                    ledger.pending.append(note)  # in order: it is above the top
                    previous = of_ledger
                ledger.top = entry
                stream.taken = acks[stream] = stream.taken + 1
                if lac >= ledger.lac:
                    ledger.lac_owed = False
                    if lac > ledger.lac and lac > lacs.get(ledger, -1):
                        lacs[ledger] = lac
                position += size
                payload += payload_bytes
                count += 1
                at = stop
            return None
        finally:
            if block is not None and gathered:
                ring.append(block, frame[began : began + gathered])
                stats = self._stats
                stats.bytes += gathered
                stats.adds += count
                stats.entries += count
                stats.payload_bytes += payload

    def _gather(
        self, block: CommitBlock, ledger: Ledger, first: int, count: int, records: memoryview
    ) -> None:
        position = self._ring.append(block, records)
        length = len(records)
        self._stats.bytes += length
        if block.notes:
            last = block.notes[-1]
            if last.ledger is ledger and _joined(last, first, position, length, count):
                if first + count - 1 > ledger.top:
                    ledger.top = first + count - 1
                return
        note = PendingExtent(ledger, first, count, block.buffer.view, position, length)
        block.notes.append(note)
        ledger.add_pending(note)

    def _stored_digest(
        self, stream: IncomingStream, entry: int, resume: Callable[[], None]
    ) -> int | None:
        """The digest that is stored for ``entry``; -1: it is not here; None: ask again at ``resume``.

        Raises `CorruptData` where what is stored is damaged: it confirms nothing, and the copy that is
        offered is refused with it, so that another bookie is asked.
        """
        ledger = stream.ledger
        note = ledger.find_pending(entry)
        if note is not None:
            run = ExtentLocation(note.first, note.count, 0, 0, note.length)
            start = note.position
            view: memoryview | bytes = note.buffer[start : start + note.length]
        else:
            try:
                found = self._index.find(ledger, entry)
            except IndexDamaged as error:
                raise self._ledgers.note_damage(ledger.id, error) from error
            if found is None:
                return -1
            run = found
            here = self._reader.view(run, stream.loaded)
            if here is None:

                def loaded(answer: LoadedExtent | DistributedLogError) -> None:
                    if isinstance(answer, LoadedExtent):
                        stream.loaded = answer
                    else:
                        self.refuse(stream, answer)
                    resume()

                self._cold.submit(stream.owner, run.file_number, run.offset, run.length, loaded)
                return None
            view = here
        try:
            record = find_record(view, ledger.id, run, entry)
            entries.check(record)
        except CorruptData:
            if note is None:
                self._on_rot(ledger.id, run.first, run.last)
            raise
        return int.from_bytes(record[:8], "little")


def _joined(last: PendingExtent, first: int, position: int, length: int, count: int = 1) -> bool:
    """Is what follows, of the same ledger, one run with the last one? It is from now on."""
    if (
        last.first + last.count == first
        and last.position + last.length == position
        and last.length < jb.RUN_BYTES_MAX
    ):
        last.count += count
        last.length += length
        return True
    return False


# Of `take_lone`, which looks at each entry of a thousand logs.
_unpack_header, _HEADER_BYTES = entries.HEADER.unpack_from, entries.HEADER_BYTES
_digest_of = xxhash.xxh3_64_intdigest
_VERSION, _ENTRY_ID_MAX = entries.VERSION, entries.ENTRY_ID_MAX


def _fence_is_durable(ledger: Ledger) -> None:
    ledger.fence_durable = True


def _not_looked_up(ledger: Ledger) -> DistributedLogError:
    """Unknown is not "no": the writer comes again."""
    return TooBusy(f"ledger {ledger.id} is not known here, and the metadata cannot be asked now")


def _nothing() -> None:
    """Nobody waits for it."""


def _going_refusal(ledger: Ledger) -> TooBusy:
    return TooBusy(f"ledger {ledger.id}: a copy that nobody wanted is being dropped")


def _limbo_refusal(ledger: Ledger) -> DistributedLogError:
    """No fence is known: the writer goes on without this bookie, where one that knows ends it."""
    return LedgerStateUnknown(
        f"ledger {ledger.id}: this bookie lost data and may have been told to fence it (limbo)"
    )
