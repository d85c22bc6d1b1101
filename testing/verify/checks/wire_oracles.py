"""Check the guarantees of single nodes from their frames and their durable data.

End to end, redundancy hides the faults of one node, because another copy saves the entry. So these oracles
check every bookie and every metadata node separately, independent of the implementation. They read the frames
that a node receives and sends, and are notified of the data that becomes durable on its disks.

- A bookie sends an ADD_ACKS frame only when the counted records are durable on its disks (G2).
- A record that was not durable when a fence was answered is never acknowledged to a normal writer (G4).
- A bookie never denies an entry that it acknowledged: not as proven absence in a read, in a last entry or in
  a list.
- Two bookies never store different bytes of one acknowledged entry.
- An ack quorum has acknowledged every LAC that a writer sends (G3).
- A metadata node votes once per term, a term has one leader (M1), and an index has one command (M2).
- A metadata node that does not announce codes in its HELLO receives Raft replies in the form without them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash

from ....bookie.format import bookie_messages as messages
from ....bookie.format.entry import HEADER, HEADER_BYTES, records
from ....metadata.raft.raft_messages import AppendReply, AppendRequest, Heartbeat, Vote, VoteReply
from ....metadata.raft.raft_messages import decode as decode_raft
from ....metadata.raft.raft_messages import encode as encode_raft
from ....runtime.interfaces.errors import CorruptData, NoSuchEntry, NoSuchLedger
from ....runtime.protocol.frames import ENVELOPE, ENVELOPE_BYTES, Op

DENIALS = (NoSuchLedger.code, NoSuchEntry.code)

OnFrame = Callable[[int, int, int, int, memoryview], None]
"""Arguments: op, flags, status, ident, body."""


class FrameCutter:
    """Splits the data of one direction of a connection into frames."""

    def __init__(self) -> None:
        self._incomplete = b""

    def feed(self, data: bytes, on_frame: OnFrame) -> None:
        """Add data, and call ``on_frame`` for the frames that are now complete."""
        buffered = self._incomplete + data if self._incomplete else data
        start, end = 0, len(buffered)
        view = memoryview(buffered)
        while end - start >= ENVELOPE_BYTES:
            length, op, flags, status, ident, _, _ = ENVELOPE.unpack_from(view, start)
            if length < ENVELOPE_BYTES or start + length > end:
                break
            on_frame(op, flags, status, ident, view[start + ENVELOPE_BYTES : start + length])
            start += length
        self._incomplete = buffered[start:]


@dataclass(slots=True)
class _Sent:
    """A record that arrived in an add stream."""

    entry: int
    digest: int
    header: bytes
    after_fence: bool


@dataclass(slots=True)
class _Stream:
    ledger: int
    recovery: bool
    records: list[_Sent] = field(default_factory=list)
    acked: int = 0


@dataclass(slots=True)
class _Asked:
    """A pending request. Its answer must account for all entries that were acknowledged when it arrived."""

    op: int
    ledger: int
    first: int
    last: int
    acks_before: int
    is_fence: bool


@dataclass(slots=True)
class _BookieLink:
    """A connection of a client to a bookie."""

    bookie: str
    streams: dict[int, _Stream] = field(default_factory=dict)
    requests: dict[int, _Asked] = field(default_factory=dict)


class BookieOracle:
    """Checks the bookies of a run. ``fail`` receives violations."""

    def __init__(self, fail: Callable[[str], None], *, ack_quorum: int = 2) -> None:
        self._fail = fail
        self.ack_quorum = ack_quorum
        self._durable_chunks: dict[str, list[bytes]] = {}
        self._ack_count = 0
        self.acked: dict[tuple[str, int], dict[int, int]] = {}
        """By (bookie, ledger): entries with the number of their acknowledgement in the run."""
        self.holders: dict[tuple[int, int], dict[str, int]] = {}
        """By (ledger, entry): bookies with the digest of the acknowledged record."""
        self._streams: dict[tuple[str, int], list[_Stream]] = {}
        self._fenced: dict[tuple[str, int], None] = {}
        self._lac_checked: dict[int, int] = {}
        self.denied_ledgers: dict[int, None] = {}
        """Ledgers that the run has deleted, so that bookies may deny them."""
        self.lossy_bookies: dict[str, None] = {}
        """Bookies whose synced data was damaged.

        Until they are repaired, the limbo state protects what they lost.
        """
        self.closed_ledgers: dict[int, None] = {}
        self.limbo_answers = 0
        """Answers with the limbo state: missing entries may have been lost."""

    @property
    def confirmed_entries(self) -> int:
        """The number of entries that an ack quorum has acknowledged."""
        return sum(len(bookies) >= self.ack_quorum for bookies in self.holders.values())

    def on_durable(self, bookie: str, data: bytes) -> None:
        """Record that data has become durable on a disk of this bookie."""
        self._durable_chunks.setdefault(bookie, []).append(data)

    def forget(self, bookie: str) -> None:
        """Treat a bookie with emptied disks as a new one, which has acknowledged nothing.

        Its earlier acknowledgements still count, because one ensemble may list the old bookie and the new
        one.
        """
        for holders in self.holders.values():
            if bookie in holders:
                holders[f"{bookie} before it was emptied"] = holders.pop(bookie)
        self._durable_chunks.pop(bookie, None)
        for by_bookie in (self.acked, self._streams, self._fenced):
            for key in [key for key in by_bookie if key[0] == bookie]:
                del by_bookie[key]

    def new_link(self, bookie: str) -> "_BookieLink":
        """Return the state of a new connection to this bookie."""
        return _BookieLink(bookie)

    # --- frames to a bookie -----------------------------------------------------------------------

    def on_arrived(
        self, link: _BookieLink, op: int, flags: int, status: int, ident: int, body: memoryview
    ) -> None:
        """Process a frame from a client."""
        if op == Op.ADD:
            stream = link.streams.get(ident)
            if stream is not None:
                self._on_add(link.bookie, stream, body)
        elif op == Op.ADD_MANY:
            offset = messages.ADD_MANY_ITEM_BYTES * ident
            for number, size in messages.decode_add_many_items(ident, body):
                stream = link.streams.get(number)
                if stream is not None:
                    self._on_add(link.bookie, stream, body[offset : offset + size])
                offset += size
        elif op == Op.STREAM_OPEN:
            stream_open = messages.StreamOpenRequest.decode(body)
            if not stream_open.close:
                stream = link.streams[ident] = _Stream(stream_open.ledger, stream_open.recovery)
                self._streams.setdefault((link.bookie, stream_open.ledger), []).append(stream)
        elif op == Op.WRITE_LAC:
            stream = link.streams.get(ident)
            if stream is not None and not stream.recovery:
                self._on_lac(stream.ledger, messages.decode_lac(body))
        elif op == Op.WRITE_LACS:
            for number, lac in messages.decode_lacs(body):
                stream = link.streams.get(number)
                if stream is not None and not stream.recovery:
                    self._on_lac(stream.ledger, lac)
        elif op == Op.READ:
            read_request = messages.ReadEntriesRequest.decode(body)
            link.requests[ident] = _Asked(
                op,
                read_request.ledger,
                read_request.first,
                read_request.last,
                self._ack_count,
                read_request.fence,
            )
        elif op in (Op.FENCE, Op.READ_LAC, Op.LIST_ENTRIES):
            ledger = messages.LedgerRequest.decode(body).ledger
            link.requests[ident] = _Asked(op, ledger, 0, 0, self._ack_count, op == Op.FENCE)

    def _on_add(self, bookie: str, stream: _Stream, body: memoryview) -> None:
        is_after_fence = (bookie, stream.ledger) in self._fenced and not stream.recovery
        offset, end = 0, len(body)
        while end - offset >= HEADER_BYTES:
            digest, length, _, _, _, _, ledger, entry, _, lac = HEADER.unpack_from(body, offset)
            if length < HEADER_BYTES:
                return
            stream.records.append(
                _Sent(entry, digest, bytes(body[offset : offset + HEADER_BYTES]), is_after_fence)
            )
            if not stream.recovery and ledger == stream.ledger:
                self._on_lac(ledger, lac)
            offset += length

    def _on_lac(self, ledger: int, lac: int) -> None:
        for entry in range(self._lac_checked.get(ledger, -1) + 1, lac + 1):
            holders = self.holders.get((ledger, entry), {})
            if len(holders) < self.ack_quorum:
                self._fail(
                    f"G3: the writer of ledger {ledger} sent LAC {lac}; entry {entry} was acknowledged"
                    f" by {sorted(holders) or 'no bookie'}"
                )
                return
            self._lac_checked[ledger] = entry

    # --- frames from a bookie ---------------------------------------------------------------------

    def on_answer(
        self, link: _BookieLink, op: int, flags: int, status: int, ident: int, body: memoryview
    ) -> None:
        """Process a frame to a client."""
        if op == Op.ADD_ACKS:
            for number, count in messages.decode_pairs(body, "ADD_ACKS"):
                stream = link.streams.get(number)
                if stream is None:
                    self._fail(f"H1: {link.bookie} acknowledged stream {number}, never opened")
                else:
                    self._on_acks(link.bookie, stream, count)
        elif op == Op.REPLY:
            request = link.requests.pop(ident, None)
            if request is not None:
                self._on_reply(link.bookie, request, flags, status, body)

    def _on_acks(self, bookie: str, stream: _Stream, count: int) -> None:
        if count > len(stream.records) or count < stream.acked:
            self._fail(
                f"H1: {bookie} acknowledged {count} records of a stream of ledger {stream.ledger}"
                f" that had sent {len(stream.records)}, after {stream.acked}"
            )
            return
        for index in range(stream.acked, count):
            self._on_ack(bookie, stream, stream.records[index])
        stream.acked = count

    def _on_ack(self, bookie: str, stream: _Stream, record: _Sent) -> None:
        description = f"ledger {stream.ledger} entry {record.entry}"
        if not self._is_durable(bookie, record.header):
            self._fail(f"G2: {bookie} acknowledged {description}, which is not durable on its disk")
        if record.after_fence:
            self._fail(
                f"G4: {bookie} acknowledged {description} to its writer after it answered a fence"
            )
        holders = self.holders.setdefault((stream.ledger, record.entry), {})
        for other, digest in holders.items():
            if digest != record.digest:
                self._fail(f"H15: {bookie} and {other} hold different bytes of {description}")
        holders[bookie] = record.digest
        self._ack_count += 1
        self.acked.setdefault((bookie, stream.ledger), {}).setdefault(record.entry, self._ack_count)

    def _on_fenced(self, bookie: str, ledger: int) -> None:
        """Mark the pending records that are not durable when a fence is answered: they must stay
        unacknowledged.
        """
        self._fenced[bookie, ledger] = None
        for stream in self._streams.get((bookie, ledger), []):
            if not stream.recovery:
                for record in stream.records[stream.acked :]:
                    record.after_fence = not self._is_durable(bookie, record.header)

    def _is_durable(self, bookie: str, header: bytes) -> bool:
        return any(header in chunk for chunk in reversed(self._durable_chunks.get(bookie, [])))

    def _on_reply(
        self, bookie: str, request: _Asked, flags: int, status: int, body: memoryview
    ) -> None:
        if request.ledger in self.denied_ledgers:
            return
        if bookie in self.lossy_bookies and request.ledger in self.closed_ledgers:
            # After repair it may deny entries that its ledger's record does not assign to it (see L8).
            return
        acked_entries = [
            entry
            for entry, ack_number in self.acked.get((bookie, request.ledger), {}).items()
            if ack_number <= request.acks_before
        ]
        if status:
            if status in DENIALS and any(
                request.op != Op.READ or request.first <= entry <= request.last
                for entry in acked_entries
            ):
                self._fail(
                    f"H9: {bookie} denies ledger {request.ledger}, of which it acknowledged"
                    f" {len(acked_entries)} entries (code {status})"
                )
            return
        if request.is_fence:
            self._on_fenced(bookie, request.ledger)
        self.limbo_answers += not flags & messages.FLAG_PROVES_ABSENCE
        if not flags & messages.FLAG_PROVES_ABSENCE or not acked_entries:
            return
        if request.op == Op.READ:
            complete_to, _, record_bytes = messages.decode_read(body)
            returned_entries = _entries(record_bytes)
            if returned_entries is None:
                return
            denied = [
                entry
                for entry in acked_entries
                if request.first <= entry <= min(request.last, complete_to)
                and entry not in returned_entries
            ]
        elif request.op == Op.LIST_ENTRIES:
            entry_runs = messages.decode_pairs(body, "LIST_ENTRIES")
            denied = [
                acked_entry
                for acked_entry in acked_entries
                if not any(
                    run_first <= acked_entry < run_first + count for run_first, count in entry_runs
                )
            ]
        else:
            _, last_entry = messages.decode_lac_and_last(body)
            denied = [entry for entry in acked_entries if entry > last_entry]
        if denied:
            self._fail(
                f"H9: {bookie} denies entries {sorted(denied)[:5]} of ledger {request.ledger},"
                f" which it acknowledged (operation {request.op})"
            )


def _entries(body: memoryview) -> dict[int, None] | None:
    """Return the entry IDs in a reply; None if a record is corrupt, as a reader then assumes no absence."""
    try:
        return {record.entry: None for record in records(body)}
    except CorruptData:
        return None


class MetadataOracle:
    """Checks the votes of metadata nodes, that all have the same log, and the form of their replies."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self.replies_to_older = 0
        """Replies to nodes without codes."""
        self._votes: dict[tuple[str, int], str] = {}
        self._leaders: dict[int, str] = {}
        self._commands: dict[int, int] = {}
        self._states: dict[int, int] = {}

    def on_frame(
        self, machine: str, to: str, op: int, flags: int, status: int, ident: int, body: memoryview
    ) -> None:
        """Process a frame from one metadata node to another machine."""
        if op != Op.META_RAFT:
            return
        message = decode_raft(body)
        if isinstance(message, VoteReply) and message.granted:
            self._check_vote(machine, message.term, to)
        elif isinstance(message, Vote):
            self._check_vote(machine, message.term, machine)
        elif isinstance(message, AppendRequest | Heartbeat):
            leader = self._leaders.setdefault(message.term, machine)
            if leader != machine:
                self._fail(f"M1: {leader} and {machine} both lead term {message.term}")

    def on_raft_frame_to_older(self, machine: str, to: str, body: memoryview) -> None:
        """Check a Raft frame to a node without `FEATURE_ERROR_CODES`: it rejects other forms."""
        message = decode_raft(body)
        if isinstance(message, AppendReply):
            self.replies_to_older += 1
            if bytes(body) != encode_raft(message, codes=False):
                self._fail(
                    f"{machine} sent {to}, which has an older version, the newer form of a reply"
                )

    def _check_vote(self, machine: str, term: int, candidate: str) -> None:
        earlier_candidate = self._votes.setdefault((machine, term), candidate)
        if earlier_candidate != candidate:
            self._fail(
                f"M4: {machine} voted for {earlier_candidate} and {candidate} in term {term}"
            )

    def on_applied(self, machine: str, index: int, command: bytes) -> None:
        """Record that a node has applied the command at ``index``."""
        digest = xxhash.xxh3_64_intdigest(command)
        if self._commands.setdefault(index, digest) != digest:
            self._fail(f"M2: {machine} applied another command at index {index} than other nodes")

    def on_state(self, machine: str, index: int, digest: int) -> None:
        """Record that a node's state has this digest after the command at ``index`` (H105)."""
        if self._states.setdefault(index, digest) != digest:
            self._fail(f"M2: {machine} has another state after index {index} than other nodes")
