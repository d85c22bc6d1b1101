"""How the records of an ADD frame are taken: verified, looked up, gathered, counted; all in one call.

The path that every entry goes: one loop over the records of a frame, one hash each, one copy for a stretch
of consecutive ids; no await, nothing allocated per entry.
"""

from collections.abc import Callable
from typing import Protocol

import xxhash

from ..runtime.errors import (
    CorruptData,
    DistributedLogError,
    EntryConflict,
    InvalidRequest,
    ProtocolError,
    RecordTooLarge,
    TooBusy,
    UnsupportedFormat,
)
from . import entry as entries
from . import journal_blocks as jb
from .cutting import find_record
from .gather import GatheringBlock, GatherRing
from .journal import Journal
from .ledgers import IncomingStream, Ledger, Note
from .read_sources import Extent
from .reads import ColdReader, Reader
from .runs import Located
from .stats import Stats


class Gate(Protocol):
    """What the store decides about adds."""

    def refusal(self, stream: IncomingStream) -> DistributedLogError | None:
        """Why the stream takes no more records; None: it does."""
        ...

    def refuse(self, stream: IncomingStream, error: DistributedLogError) -> None:
        """Poison the stream."""
        ...

    def make_known(self, ledger: Ledger, block: GatheringBlock) -> None:
        """The first record of a ledger is about to be gathered in ``block``."""
        ...

    def find(self, ledger: Ledger, entry: int) -> Located | None:
        """Where an entry is durable here."""
        ...

    def on_room(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` once when a sync has made room."""
        ...


class Adds:
    """The adds of one bookie, into its gather ring."""

    def __init__(
        self,
        ring: GatherRing,
        journal: Journal,
        reader: Reader,
        cold: ColdReader,
        unsynced_bytes_max: int,
        stats: Stats,
        gate: Gate,
    ) -> None:
        self._ring = ring
        self._journal = journal
        self._reader = reader
        self._cold = cold
        self._unsynced_bytes_max = unsynced_bytes_max
        self._stats = stats
        self._gate = gate

    def take(self, stream: IncomingStream, body: memoryview, resume: Callable[[], None]) -> int:
        """Verify and gather the records of one ADD frame; return how many bytes of it were taken.

        Fewer than all: the ring is full or the device must be asked. The rest is to be offered again,
        before anything else of the connection, when ``resume`` is called. A refusal takes everything.
        """
        size = len(body)
        if stream.refused:
            return size
        ledger = stream.ledger
        refusal = self._gate.refusal(stream)
        if refusal is None and size > self._ring.entry_bytes_max:
            refusal = RecordTooLarge(
                f"{size} bytes in one frame, allowed are {self._ring.entry_bytes_max}"
            )
        if refusal is None and self._journal.space_low and not self._journal.has_room(size):
            refusal = TooBusy("the rest of the last journal file is kept for fences and deletions")
        if refusal is not None:
            self._gate.refuse(stream, refusal)
            return size
        over = self._ring.unsynced_bytes + size > self._unsynced_bytes_max
        block = self._ring.room(size)
        if block is None or (over and self._ring.unsynced_bytes):
            self._gate.on_room(resume)
            self._journal.wake()
            return 0
        if not ledger.stored:
            self._gate.make_known(ledger, block)
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
                error = ProtocolError(f"{size - position} bytes behind the last record")
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
            stats.entries += taken
            stats.payload_bytes += payload
            self._journal.wake()
        stats.adds += 1
        if error is not None:
            self._gate.refuse(stream, error)
            return len(body)
        return size

    def _gather(
        self, block: GatheringBlock, ledger: Ledger, first: int, count: int, records: memoryview
    ) -> None:
        position = self._ring.append(block, records)
        length = len(records)
        self._stats.bytes += length
        if block.notes:
            last = block.notes[-1]
            if (
                last.ledger is ledger
                and last.first + last.count == first
                and last.position + last.length == position
                and last.length < jb.RUN_BYTES_MAX
            ):
                last.count += count
                last.length += length
                if first + count - 1 > ledger.top:
                    ledger.top = first + count - 1
                return
        note = Note(ledger, first, count, block.buffer.view, position, length)
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
            run = Located(note.first, note.count, 0, 0, note.length)
            start = note.position
            view: memoryview | bytes = note.buffer[start : start + note.length]
        else:
            found = self._gate.find(ledger, entry)
            if found is None:
                return -1
            run = found
            here = self._reader.view(run, stream.loaded)
            if here is None:

                def loaded(answer: Extent | DistributedLogError) -> None:
                    if isinstance(answer, Extent):
                        stream.loaded = answer
                    else:
                        self._gate.refuse(stream, answer)
                    resume()

                self._cold.submit(stream.owner, run.file_number, run.offset, run.length, loaded)
                return None
            view = here
        record = find_record(view, ledger.id, run, entry)
        entries.check(record)
        return int.from_bytes(record[:8], "little")
