"""One connection to one bookie, typed. Adds go over streams: nothing is awaited for them.

Acks count a stream's records in sending order (H1); its owner keeps what it sent in a queue and pops that
many. Refusals and broken connections are told once, at once.

Small entries of many ledgers go in one frame to the same connections (`SharedAdds`). A bookie acknowledges
it by saying of each of its streams how far it is: where those are the very bytes that were expected, all
of the frame is there, and no stream is looked at. Whatever else is said is counted stream by stream.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from operator import add
from typing import Protocol, TypeVar

from ..runtime.capabilities import Kind
from ..runtime.client_link import ClientLink, PendingReply, Reply
from ..runtime.errors import (
    AlreadyClosed,
    CapabilityOutdated,
    ConnectionLost,
    DistributedLogError,
    NotAllowed,
    ProtocolError,
)
from ..runtime.frames import ENVELOPE, ENVELOPE_BYTES, REPLY_MORE, Op, envelope, unpack
from ..runtime.hello import FEATURE_LACS, FEATURE_MANY
from ..runtime.host import Buffer
from . import messages as m
from .client_keys import ClientKeys
from .entry import HEADER_BYTES

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FenceAnswer:
    """The answer to FENCE or READ_LAC. ``last_entry`` -1: none; ``known``: not in limbo."""

    lac: int
    last_entry: int
    known: bool


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """The answer to READ. ``body`` is the receiver's own memory: records ascending, unverified.

    Of the asked ids up to ``complete_to`` all that the bookie has are in ``body``; those that are not are
    absent there if ``known``, else nothing is known of them (H9). Use ``entry.records(body)``.
    """

    complete_to: int
    lac: int
    known: bool
    body: memoryview


@dataclass(frozen=True, slots=True)
class WaitAnswer:
    """The answer to WAIT_LAC; ``body`` as in `ReadAnswer`, from the previous LAC + 1 on."""

    lac: int
    fenced: bool
    body: memoryview


@dataclass(frozen=True, slots=True)
class EntryList:
    """What a bookie holds of a ledger: stretches (first, count). ``known``: that is all it ever had."""

    ranges: list[tuple[int, int]]
    known: bool


SHARED_ENTRY_BYTES = 16 * 1024
"""Larger entries are frames of their own: their bytes need not be joined with others'."""
SHARED_BYTES_MAX = m.MANY_ITEMS_MAX * HEADER_BYTES
"""Of a frame of shared adds, 224 KiB: about a full entry, and in no case more records than one may have."""


def _nothing() -> None:
    """Where nothing is told."""


def raise_it(error: Exception) -> None:
    """Where nobody else is told what broke: it ends the connection."""
    raise error


class AddStream:
    """Adds to one ledger over one connection, acked by count in sending order. See `open_stream`."""

    __slots__ = (
        "_link", "_on_refused", "_opening", "_sent", "acked", "client", "number", "on_acked", "on_broken",
        "on_progress", "refused", "shared", "watched",
    )  # fmt: skip

    def __init__(
        self,
        client: "BookieClient",
        number: int,
        opening: m.StreamOpen,
        on_acked: Callable[[int], object],
        on_refused: Callable[[int, DistributedLogError], None],
        on_progress: Callable[[], None],
        on_broken: Callable[[Exception], None],
    ) -> None:
        self.client = client
        """Its connection."""
        self._link = client.link
        self._opening = opening
        self.on_acked = on_acked
        self.on_progress = on_progress
        self.on_broken = on_broken
        self._on_refused = on_refused
        self.number = number
        self._sent = 0
        self.shared: SharedStreams | None = None
        """What it is part of: what that was given counts as sent here, too."""
        self.acked = 0
        """Records known to be durable there: the first so many of those sent. Of shared frames it is not
        noted: then as many are, or more."""
        self.watched = False
        """Did somebody wait for the ledger's LAC there, when last it was acked?"""
        self.refused: DistributedLogError | None = None

    @property
    def sent(self) -> int:
        """Records that were handed over to be sent."""
        return self._sent if self.shared is None else self._sent + self.shared.sent

    @sent.setter
    def sent(self, count: int) -> None:
        self._sent += count - self.sent

    def send(self, record: Buffer) -> None:
        """Queue one record; it is kept by reference. Silently dropped once the stream was refused."""
        assert self.shared is None, "what shares frames is sent to by `SharedStreams`, which counts"
        if self.refused is None:
            if self.client.shared:
                self.client.send_gathered()  # some of it may be this stream's
            self._sent += 1
            self.write(record)

    def write(self, record: Buffer) -> None:
        """As `send`, of what counts as sent already and nothing is gathered before."""
        if self.refused is None:
            # As `envelope`, without its call: this is done for each entry and replica.
            size = ENVELOPE_BYTES + len(record)
            self._link.send(ENVELOPE.pack(size, Op.ADD, 0, 0, self.number, 0, 0), record)

    def send_many(self, *records: Buffer) -> None:
        """Queue records as one frame; together at most a frame's bound."""
        assert self.shared is None, "what shares frames is sent to by `SharedStreams`, which counts"
        if self.refused is None:
            self.client.send_gathered()
            self._sent += len(records)
            size = sum(len(record) for record in records)
            self._link.send(envelope(Op.ADD, size, ident=self.number), *records)

    def together(
        self, streams: Sequence[object], ack_quorum: int, owner: "FrameOwner"
    ) -> "SharedStreams | None":
        """All these streams of one ledger, which share frames with those of others; None: they cannot.

        ``owner`` hears of what is acknowledged by ``ack_quorum`` connections.
        """
        mine = [one for one in streams if isinstance(one, AddStream)]
        if len(mine) < len(streams) or max([one.number for one in mine]) >= 1 << 32:
            return None
        if not all([one.client.takes_many and one.client.takes_lacs for one in mine]):
            return None
        for one in mine:
            if one.client.shared:  # some of it may be these streams', with other connections
                one.client.send_gathered()
        shared, mine = _shared_by(mine, ack_quorum)
        return SharedStreams(shared, mine, owner)

    def lacs_together(self, streams: Sequence[object]) -> Callable[[int], bool] | None:
        """As `together`, of LACs."""
        mine = [one for one in streams if isinstance(one, AddStream) and one.client.takes_lacs]
        if len(mine) < len(streams):
            return None
        shared, mine = _shared_by(mine, 0)
        numbers = tuple([one.number for one in mine])
        return lambda lac: shared.tell(numbers, lac)

    def send_lac(self, lac: int) -> None:
        """Publish what is confirmed, when no add follows that would carry it (H24).

        At once on an idle connection; else all of a turn are one frame.
        """
        if self.refused is None:
            client = self.client
            if client.takes_lacs and self._link.gathers:
                client.lacs[self.number] = lac
            else:
                self._link.send(m.lac_frame(self.number, lac))

    def close(self) -> None:
        """No more acks and refusals are told; the bookie forgets the stream. Idempotent."""
        if self.client.streams.pop(self.number, None) is None:
            return
        self.client.send_gathered()  # what was given to the stream goes before its end
        if self.refused is None:
            self.refused = AlreadyClosed(f"add stream {self.number} was closed")
        opening = self._opening
        body = m.StreamOpen(
            opening.ledger, opening.key, opening.recovery, opening.fragment_epoch, close=True
        ).encode()
        self._link.send(envelope(Op.STREAM_OPEN, len(body), ident=self.number) + body)

    def take_refusal(self, position: int, error: DistributedLogError) -> None:
        """The connection heard a refusal, or broke."""
        if self.refused is None:
            self.refused = error
            try:
                self._on_refused(position, error)
            except Exception as fault:  # the owner's: others are to be told as well
                self.on_broken(fault)


def _shared_by(streams: list[AddStream], ack_quorum: int) -> "tuple[SharedAdds, list[AddStream]]":
    """What is shared by the connections of these, and they in its order."""
    # In one order, so that ensembles of the same bookies are the same connections.
    ordered = sorted(streams, key=lambda one: one.client.bookie_id)
    clients = [one.client for one in ordered]
    return clients[0].shared_with(clients, ack_quorum), ordered


class FrameOwner(Protocol):
    """The writer of a ledger's entries that go in shared frames."""

    def on_frame_acked(self, frame: "SharedFrame", *, watched: bool) -> None:
        """``frame`` is at its quorum. ``watched``: somebody waits for the LAC at a bookie of it."""
        ...

    def rested_lac(self, streams: "SharedStreams") -> int:
        """The LAC, if it is to be told by these now, since no add has followed; -1: it is not."""
        ...

    def broken(self, error: Exception) -> None:
        """One of these raised."""
        ...


class SharedStreams:
    """The streams of one ledger, one on each connection of a `SharedAdds`. All are sent the same."""

    __slots__ = ("_adds", "before", "newest", "numbers", "owner", "sent", "streams", "watched")

    def __init__(self, adds: "SharedAdds", streams: Sequence[AddStream], owner: FrameOwner) -> None:
        self._adds = adds
        self.streams = streams
        self.owner = owner
        self.numbers = tuple([one.number for one in streams])
        self.sent = 0
        """Records that all of them were sent since."""
        self.newest: SharedFrame | None = None
        """In which a record of them is."""
        self.watched = 0
        """A bit a connection: did somebody wait for the LAC there, when last a frame was acknowledged?"""
        for one in streams:
            if one.shared is not None:
                one.shared.end()
        self.before = tuple([one.sent for one in streams])
        """What each was sent before this."""
        for one in streams:
            one.shared = self

    def add(self, record: Buffer) -> "SharedFrame | None":
        """Put it into the frame that gathers; None: it goes by itself, and nothing was sent."""
        size = len(record)
        if size >= SHARED_ENTRY_BYTES:
            return None
        adds = self._adds
        frame = adds.frame
        if frame is None or frame is self.newest:
            if frame is not None:  # a stream is in it once: that is how it is acknowledged
                adds.send()
            frame = adds.begin_frame()
            if frame is None:
                return None
        self.newest = frame
        self.sent += 1
        frame.streams.append(self)
        frame.records.append(record)
        frame.bytes += size
        if frame.bytes >= SHARED_BYTES_MAX:
            adds.send()
        return frame

    def send(self, record: Buffer) -> None:
        """To each of them by itself, after what is gathered."""
        self._adds.send_gathered()
        self.sent += 1
        for one in self.streams:
            one.write(record)

    def end(self) -> None:
        """They are single streams from now on. What was gathered is sent."""
        self._adds.send_gathered()
        for one in self.streams:
            if one.shared is self:
                count, one.shared = one.sent, None
                one.sent = count

    def note_watched(self, frame: "SharedFrame") -> bool:
        """What the bookies said that have acknowledged it; does somebody wait for the LAC at one of all?"""
        self.watched = self.watched & ~frame.acked | frame.watched
        for bit, one in enumerate(self.streams):
            if frame.acked >> bit & 1:
                one.watched = bool(frame.watched >> bit & 1)
        return self.watched != 0


class SharedFrame:
    """Entries of many ledgers, one frame to each of the same connections, until all have acknowledged it."""

    __slots__ = (
        "_adds", "_alone", "_counts", "_sent", "_waits", "acked", "acks", "bytes", "is_told",
        "is_whole", "ledgers", "numbers", "quorum", "records", "streams", "watched",
    )  # fmt: skip

    def __init__(self, adds: "SharedAdds") -> None:
        self._adds = adds
        self.quorum = adds.ack_quorum
        self.bytes = 0
        """Of its records."""
        self.ledgers = 0
        """As many as there are records: see `RestingLacs`."""
        self.acked = 0
        """A bit a connection, of those that have acknowledged all of it."""
        self.acks = 0
        """How many have."""
        self.is_whole = False
        """Have all?"""
        self.watched = 0
        """A bit a connection: one at whose bookie somebody waits for a LAC."""
        self.is_told = False
        """Is it to tell its LACs when they have rested?"""
        self._waits = True
        """Has it not told them yet?"""
        self.records: list[Buffer] = []
        self.streams: list[SharedStreams] = []
        """Whose each of the records is; none is there twice."""
        self._alone: list[int] = []
        """Of these, those of which each acknowledgement is told to its stream."""
        self.numbers: list[tuple[int, ...]] = []
        self._counts: list[list[int]] = []
        """Once it is sent, of each connection: a record's stream, and how many that was sent with it."""
        self._sent: list[int] = []
        """And how many all its streams were, as `SharedStreams.sent`."""

    def leave(self, streams: object) -> None:
        """What is not acknowledged yet of the record of these is told to its streams."""
        if not self.is_whole:
            self._alone.append(self.streams.index(streams))  # type: ignore[arg-type]

    def leave_newest(self) -> None:
        """As `leave`, of the last record that was put in."""
        self._alone.append(len(self.streams) - 1)

    def send(self, clients: "Sequence[BookieClient]") -> None:
        """Give it to the connections, and say what acknowledges it."""
        records, self.records = self.records, []
        self.ledgers = len(records)
        sizes = list(map(len, records))
        body = b"".join(records)
        streams = self.streams
        sent = self._sent = [one.sent for one in streams]
        self.numbers = list(zip(*[one.numbers for one in streams], strict=True))
        for bit, before in enumerate(zip(*[one.before for one in streams], strict=True)):
            counts = list(map(add, before, sent))
            self._counts.append(counts)
            client, numbers = clients[bit], self.numbers[bit]
            if client.link.closed is None:
                client.expected.append((m.encode_ack_columns(numbers, counts), self, bit))
            if len(records) == 1:
                client.link.send(envelope(Op.ADD, len(body), ident=numbers[0]), body)
                continue
            items = m.encode_many(numbers, sizes)
            size = len(items) + len(body)
            client.link.send(envelope(Op.ADD_MANY, size, ident=len(records)) + items, body)

    def on_acked(self, bit: int, *, watched: bool) -> list[tuple[int, int]]:
        """A connection has acknowledged all of it. Return what is to be told to its streams all the same."""
        self.acked |= 1 << bit
        self.acks += 1
        self.is_whole = self.acks == len(self.numbers)
        if watched:
            self.watched |= 1 << bit
            self._adds.watched = True
        if self._adds.watched and self.acks > self.quorum:  # its owners look no more
            for streams in self.streams:
                streams.note_watched(self)
        self._forget()
        numbers, counts = self.numbers[bit], self._counts[bit]
        return [(numbers[n], counts[n]) for n in self._alone]

    def _forget(self) -> None:
        """Nothing more is told of it: whoever still knows it as its newest keeps no other ledger with it."""
        told = self.acks > self.quorum and not self.is_told
        if self.is_whole and (told or not self._waits):
            self.streams, self._sent = [], []

    def acked_further(self, bit: int, acks: bytes) -> list[tuple[int, int]] | None:
        """Do these acknowledge all of it, and more of some streams? Return that; None: they do not."""
        numbers, counts = self.numbers[bit], self._counts[bit]
        if len(acks) != m.ACK_BYTES * len(numbers):
            return None
        pairs = m.decode_pairs(acks, "ADD_ACKS")
        if tuple([number for number, _ in pairs]) != numbers:
            return None
        further = []
        for pair, count in zip(pairs, counts, strict=True):
            if pair[1] < count:
                return None
            if pair[1] > count:
                further.append(pair)
        return further

    def has(self, bit: int, number: int, count: int) -> bool:
        """Is one of its records among the first ``count`` of that stream?"""
        numbers = self.numbers[bit]
        return number in numbers and self._counts[bit][numbers.index(number)] <= count

    def tell_acked(self) -> None:
        """Tell the owners: it is at its quorum."""
        watched = self.watched
        for streams in self.streams:
            owner = streams.owner
            try:
                owner.on_frame_acked(
                    self,
                    watched=(watched or streams.watched) != 0 and streams.note_watched(self),
                )
            except Exception as fault:  # the owner's: others are to be told as well
                owner.broken(fault)

    def tell(self, _: int) -> None:
        """What of it rests has rested: tell the LACs that no add has said, together."""
        numbers: list[tuple[int, ...]] = []
        told: list[int] = []
        for streams, sent in zip(self.streams, self._sent, strict=True):
            if streams.sent == sent:
                try:
                    lac = streams.owner.rested_lac(streams)
                except Exception as fault:
                    streams.owner.broken(fault)
                    continue
                if lac >= 0:
                    numbers.append(streams.numbers)
                    told.append(lac)
        if told:
            self._adds.tell_all(numbers, told)
        self._waits = False
        self._forget()

    def broken(self, error: Exception) -> None:
        """It could not be told: that is each owner's."""
        for streams in self.streams:
            streams.owner.broken(error)


class SharedAdds:
    """Small entries of many ledgers on the same connections, and LACs: gathered until a turn of one of these.

    One head says whose they are; their bytes are joined once and given to each connection. A stream's
    records keep their order: whoever sends on it by itself sends what is gathered before (`AddStream.send`).
    """

    __slots__ = ("_clients", "_first", "_lacs", "ack_quorum", "frame", "watched")

    def __init__(self, clients: "tuple[BookieClient, ...]", ack_quorum: int) -> None:
        self._clients = clients
        self._first = clients[0].link
        self.ack_quorum = ack_quorum
        self.frame: SharedFrame | None = None
        """The one that gathers."""
        self.watched = False
        """Did anybody ever wait for a LAC at one of the bookies?"""
        self._lacs: dict[tuple[int, ...], int] = {}
        """By the streams, one a connection; of them the newest counts."""

    @property
    def closed(self) -> bool:
        """Has one of the connections ended?"""
        return any([client.closed is not None for client in self._clients])

    def begin_frame(self) -> SharedFrame | None:
        """One that gathers from now on; None: there is no turn to come that would send it."""
        if not self._lacs and not self._gathers():
            return None
        frame = self.frame = SharedFrame(self)
        return frame

    def tell(self, numbers: tuple[int, ...], lac: int) -> bool:
        """Take the LAC of one ledger for the streams of these numbers; false: it goes by itself."""
        lacs = self._lacs
        if not lacs and self.frame is None and not self._gathers():
            return False
        lacs[numbers] = lac
        if len(lacs) >= m.LACS_MAX:
            self.send()
        return True

    def tell_all(self, numbers: list[tuple[int, ...]], lacs: list[int]) -> None:
        """As `tell`, of many, each of which is told in any case."""
        self._lacs.update(zip(numbers, lacs, strict=True))
        if self.frame is not None or len(self._lacs) > len(lacs) or self._gathers():
            if len(self._lacs) >= m.LACS_MAX:
                self.send()
        else:
            self.send()

    def _gathers(self) -> bool:
        """Have it sent, if there is a turn to come."""
        if not self._first.gathers:
            return False
        for client in self._clients:
            client.shared[self] = None
            client.link.soon()  # the first to have its turn sends it to all
        return True

    def send_gathered(self) -> None:
        """Send what any of the connections has gathered: it may be of the same streams."""
        for client in self._clients:
            if client.shared:
                client.send_gathered()

    def send(self) -> None:
        """Give the connections what has gathered."""
        for client in self._clients:
            client.shared.pop(self, None)
        frame, self.frame = self.frame, None
        if frame is not None:
            frame.send(self._clients)
        if self._lacs:
            lacs, self._lacs = self._lacs, {}
            told = list(lacs.values())
            for client, numbers in zip(self._clients, zip(*lacs, strict=True), strict=True):
                for start in range(0, len(told), m.LACS_MAX):
                    stop = start + m.LACS_MAX
                    pairs = list(zip(numbers[start:stop], told[start:stop], strict=True))
                    body = m.encode_lacs(pairs)
                    client.link.send(envelope(Op.WRITE_LACS, len(body)), body)


class BookieClient:
    """One bookie, over one link; made anew for each connection.

    ``key`` of a call is the ledger's stored one; ``keys`` says what is shown in its place (None: that).
    """

    def __init__(self, link: ClientLink, bookie_id: str, keys: ClientKeys | None = None) -> None:
        self.link = link
        self.bookie_id = bookie_id
        self._keys = keys
        self.streams: dict[int, AddStream] = {}
        self.on_closed: list[Callable[[ConnectionLost], None]] = []
        self._last_stream = 0
        self.takes_lacs = bool(link.peer.features & FEATURE_LACS)
        self.takes_many = bool(link.peer.features & FEATURE_MANY)
        self.shared: dict[SharedAdds, None] = {}
        """Those that have gathered something."""
        self.expected: deque[tuple[bytes, SharedFrame, int]] = deque()
        """What acknowledges shared frames, in the order in which they were sent: the bytes, and our bit."""
        self._sharing: dict[tuple[int, tuple[BookieClient, ...]], SharedAdds] = {}
        self.lacs: dict[int, int] = {}
        """By stream, to be sent with the link's turn; of one stream the newest counts."""
        link.on_turn = self.send_gathered
        link.on_frame = self._on_frame
        link.on_closed.append(self._on_link_closed)

    @property
    def closed(self) -> DistributedLogError | None:
        """What ended the connection; None while it lives."""
        return self.link.closed

    # --- adds -------------------------------------------------------------------------------------

    @property
    def leaving(self) -> tuple[int, int]:
        """Bytes that were sent on the connection, and bytes that wait to be."""
        return self.link.sent_bytes, self.link.outgoing_bytes

    def open_stream(
        self,
        ledger: int,
        key: bytes,
        *,
        recovery: bool,
        fragment_epoch: int,
        on_acked: Callable[[int], object],
        on_refused: Callable[[int, DistributedLogError], None],
        on_progress: Callable[[], None] = _nothing,
        on_broken: Callable[[Exception], None] = raise_it,
    ) -> AddStream:
        """Begin adding to a ledger.

        ``on_acked`` gets how many of the stream's records are durable in all, and is to count them, no more;
        where it says true, ``on_progress`` is called when all that the bookie told together was counted. A
        `ProtocolError` of ``on_acked`` refuses the stream, ``on_broken`` gets whatever else these raise.
        ``on_refused`` is called once, with the first position (from 0, in sending order) that was not taken,
        and why: with all after it that record is not acknowledged by this stream. A broken connection refuses
        at the acked count, with `ConnectionLost`: what is after it may be there or not. Raises what closed
        the connection.
        """
        if self.link.closed is not None:
            raise self.link.closed.again()
        refused: NotAllowed | None = None
        try:
            shown = self._key(Kind.RECOVER if recovery else Kind.ADD, ledger, key)
        except NotAllowed as error:
            shown, refused = None, error
        self._last_stream += 1
        opening = m.StreamOpen(ledger, key if shown is None else shown, recovery, fragment_epoch)
        stream = AddStream(
            self, self._last_stream, opening, on_acked, on_refused, on_progress, on_broken
        )
        if shown is None:  # its owner opens another one when the capability is here
            why = f"the capability to add to ledger {ledger} is asked for"
            stream.take_refusal(0, refused or CapabilityOutdated(why))
            return stream
        self.streams[stream.number] = stream
        body = opening.encode()
        self.link.send(envelope(Op.STREAM_OPEN, len(body), ident=stream.number) + body)
        return stream

    def shared_with(self, clients: "Sequence[BookieClient]", ack_quorum: int) -> SharedAdds:
        """What these connections share of ledgers of this quorum; this is the first of them."""
        key = (ack_quorum, tuple(clients))
        found = self._sharing.get(key)
        if found is None:
            for other in [other for other, one in self._sharing.items() if one.closed]:
                del self._sharing[other]
            found = self._sharing[key] = SharedAdds(key[1], ack_quorum)
        return found

    def send_gathered(self) -> None:
        """Send what waits for the link's turn."""
        for shared in tuple(self.shared):
            shared.send()
        if self.lacs:
            lacs, self.lacs = list(self.lacs.items()), {}
            for start in range(0, len(lacs), m.LACS_MAX):
                body = m.encode_lacs(lacs[start : start + m.LACS_MAX])
                self.link.send(envelope(Op.WRITE_LACS, len(body)), body)

    # --- requests: each raises what the bookie answered, RequestTimeout, ConnectionLost -------------

    async def fence(self, ledger: int, key: bytes, timeout_s: float) -> FenceAnswer:
        """Refuse normal adds there for ever; durable when this returns (inv. 11)."""
        return await self._ends(Op.FENCE, Kind.RECOVER, ledger, key, timeout_s)

    async def read_lac(self, ledger: int, key: bytes, timeout_s: float) -> FenceAnswer:
        """The LAC and the last entry there."""
        return await self._ends(Op.READ_LAC, Kind.LIST, ledger, key, timeout_s)

    async def _ends(
        self, op: int, kind: Kind, ledger: int, key: bytes, timeout_s: float
    ) -> FenceAnswer:
        reply = await self._ask(op, kind, ledger, key, timeout_s)
        lac, last_entry = m.decode_ends(reply.body)
        return FenceAnswer(lac, last_entry, bool(reply.flags & m.FLAG_KNOWN))

    async def _ask(self, op: int, kind: Kind, ledger: int, key: bytes, timeout_s: float) -> Reply:
        def ask(shown: bytes) -> Awaitable[Reply]:
            body = m.LedgerRequest(ledger, shown).encode()
            return self.link.request(op, body, timeout_s=timeout_s)

        return await self._with_key(kind, ledger, key, timeout_s, ask)

    async def have_capability(self, kind: Kind, ledger: int, timeout_s: float) -> None:
        """Wait up to that long until what follows need not; at once while none are shown."""
        if self._keys is not None and self._keys.active:
            await self._keys.have((self.bookie_id,), kind, ledger, timeout_s)

    def _key(self, kind: Kind, ledger: int, key: bytes) -> bytes | None:
        """What is shown; None: it is on its way. Raises `NotAllowed`."""
        keys = self._keys
        if keys is None or not keys.active:
            return key
        return keys.key(self.bookie_id, kind, ledger, key)

    async def _with_key(
        self,
        kind: Kind,
        ledger: int,
        key: bytes,
        timeout_s: float,
        ask: Callable[[bytes], Awaitable[T]],
    ) -> T:
        if self._keys is None:
            return await ask(key)
        return await self._keys.patiently(self.bookie_id, kind, ledger, key, timeout_s, ask)

    def _note_outdated(self, error: object) -> None:
        if self._keys is not None and isinstance(error, CapabilityOutdated):
            self._keys.outdated(self.bookie_id)

    async def read(
        self,
        ledger: int,
        key: bytes,
        first: int,
        last: int,
        bytes_max: int,
        *,
        fence: bool = False,
        past_lac: bool = False,
        timeout_s: float,
    ) -> ReadAnswer:
        """Entries first..last (inclusive), as many as fit ``bytes_max``, at least one if it is there."""

        def ask(shown: bytes) -> Awaitable[ReadAnswer]:
            request = m.ReadRequest(ledger, shown, first, last, bytes_max, fence, past_lac)
            pending = self.link.begin(Op.READ, request.encode(), timeout_s=timeout_s)
            return self.finish_read(pending, timeout_s)

        kind = Kind.RECOVER if fence else Kind.READ
        return await self._with_key(kind, ledger, key, timeout_s, ask)

    def begin_read(self, request: m.ReadRequest, timeout_s: float) -> PendingReply:
        """Ask, and go on: `finish_read` the reply, or `forget` it. Raises what closed the link, `NotAllowed`.

        Where a capability is not at hand yet the answer is `CapabilityOutdated`, once the cluster requires
        it: `read` waits.
        """
        shown = self._key(Kind.RECOVER if request.fence else Kind.READ, request.ledger, request.key)
        if shown is not None and shown is not request.key:
            request = replace(request, key=shown)
        return self.link.begin(Op.READ, request.encode(), timeout_s=timeout_s)

    async def finish_read(self, pending: PendingReply, timeout_s: float) -> ReadAnswer:
        """Wait for the reply to `begin_read`."""
        try:
            reply = await self.link.finish(pending, timeout_s)
        except CapabilityOutdated as error:
            self._note_outdated(error)
            raise
        complete_to, lac, body = m.decode_read(reply.body)
        return ReadAnswer(complete_to, lac, bool(reply.flags & m.FLAG_KNOWN), body)

    def forget(self, pending: PendingReply) -> None:
        """The reply to `begin_read` is not wanted any more."""
        self.link.forget(pending)

    def follow_lac(
        self,
        request: m.WaitLac,
        on_answer: Callable[[WaitAnswer | DistributedLogError, bool], None],
        *,
        standing: bool,
    ) -> PendingReply:
        """Wait there without a task: ``on_answer`` gets the answer, or the error that ended it.

        ``standing``: an answer for each move of the LAC, each with all records since the one before,
        until the time is over or ``request.bytes_max`` are used up; the second value is whether more
        follow. Not answering is the caller's to notice, and to `forget`. Raises what closed the link.
        """

        def on_reply(reply: Reply | DistributedLogError) -> None:
            if not isinstance(reply, Reply):
                self._note_outdated(reply)
                on_answer(reply, False)
                return
            lac, fenced, body = m.decode_wait(reply.body)
            on_answer(WaitAnswer(lac, fenced, body), bool(reply.flags & REPLY_MORE))

        shown = self._key(Kind.READ, request.ledger, request.key)
        if shown is not None and shown is not request.key:
            request = replace(request, key=shown)
        return self.link.stand(
            Op.WAIT_LAC,
            request.encode(),
            flags=m.WAIT_STANDING if standing else 0,
            timeout_s=request.wait_ms / 1000,
            on_reply=on_reply,
        )

    async def list_entries(self, ledger: int, key: bytes, timeout_s: float) -> EntryList:
        """Which entries are there."""
        reply = await self._ask(Op.LIST_ENTRIES, Kind.LIST, ledger, key, timeout_s)
        ranges = m.decode_pairs(reply.body, "LIST_ENTRIES")
        return EntryList(ranges, bool(reply.flags & m.FLAG_KNOWN))

    async def info(self, timeout_s: float) -> dict[str, object]:
        """Counters and gauges."""
        reply = await self.link.request(Op.INFO, timeout_s=timeout_s)
        value = unpack(reply.body, "INFO")
        if not isinstance(value, dict):
            raise ProtocolError("INFO: not a map")
        return value

    # --- from the link ----------------------------------------------------------------------------

    def _on_frame(self, op: int, flags: int, status: int, ident: int, body: memoryview) -> None:
        if op == Op.ADD_ACKS:
            moved: list[AddStream] = []
            frames: list[SharedFrame] = []
            try:
                if self.expected:
                    self._match_acks(bytes(body), bool(flags & m.ACK_WATCHED), moved, frames)
                else:
                    pairs = m.decode_pairs(body, "ADD_ACKS")
                    self._count_acks(pairs, bool(flags & m.ACK_WATCHED), moved)
            finally:
                for frame in frames:
                    frame.tell_acked()
                for one in moved:
                    try:
                        one.on_progress()
                    except Exception as fault:  # the owner's: others are to be told as well
                        one.on_broken(fault)
        elif op == Op.STREAM_REFUSED:
            error, position = m.decode_refusal(status, body)
            self._note_outdated(error)
            stream = self.streams.get(ident)
            if stream is not None:
                stream.take_refusal(position, error)

    def _match_acks(
        self, acks: bytes, watched: bool, moved: list[AddStream], frames: list[SharedFrame]
    ) -> None:
        """As `_count_acks`, where frames are under way; ``frames`` gets those that are at their quorum."""
        expected = self.expected
        at, end = 0, len(acks)
        while at < end:
            further: list[tuple[int, int]] | None = None
            if expected:
                awaited, frame, bit = expected[0]
                if acks.startswith(awaited, at):
                    further = []
                elif acks.startswith(awaited[: m.ACK_BYTES // 2], at):  # of the same stream
                    further = frame.acked_further(bit, acks[at : at + len(awaited)])
            if further is not None:
                expected.popleft()
                at += len(awaited)
                alone = frame.on_acked(bit, watched=watched)
                if frame.acks == frame.quorum:
                    frames.append(frame)
                if alone or further:
                    self._count_acks(self._untold(alone) + further, watched, moved)
                continue
            pairs = m.decode_pairs(acks[at : at + m.ACK_BYTES], "ADD_ACKS")
            at += m.ACK_BYTES
            stream = self.streams.get(pairs[0][0])
            if stream is not None and stream.shared is not None:
                self._lose_frames(*pairs[0])
            self._count_acks(pairs, watched, moved)

    def _untold(self, acks: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Without those of streams that were told of so many: a bookie that went further said it before."""
        streams = self.streams
        return [
            (number, count)
            for number, count in acks
            if (stream := streams.get(number)) is not None and stream.acked < count
        ]

    def _lose_frames(self, number: int, count: int) -> None:
        """A stream is acknowledged by itself: so are all of the frame of which that is a record, and of those
        before it. They are looked for no more; each owner counts what its stream is told."""
        expected = self.expected
        for index, (_, frame, bit) in enumerate(expected):
            if frame.has(bit, number, count):
                for _ in range(index + 1):
                    expected.popleft()
                return

    def _count_acks(
        self, acks: list[tuple[int, int]], watched: bool, moved: list[AddStream]
    ) -> None:
        """Count what is durable; ``moved`` gets the streams whose owners have something to tell."""
        streams = self.streams
        for number, count in acks:
            stream = streams.get(number)
            if stream is None:
                continue
            stream.watched = watched
            if not stream.acked < count <= stream.sent:
                if count == stream.acked:
                    continue
                raise ProtocolError(
                    f"stream {number}: {count} records acked, {stream.sent} sent,"
                    f" {stream.acked} before"
                )
            stream.acked = count
            try:
                if stream.on_acked(count):
                    moved.append(stream)
            except ProtocolError as error:
                stream.take_refusal(count, error)
            except Exception as error:  # the owner's fault: other ledgers share this connection
                stream.on_broken(error)

    def _on_link_closed(self, reason: DistributedLogError) -> None:
        lost = (
            reason
            if isinstance(reason, ConnectionLost)
            else ConnectionLost(f"the connection to bookie {self.bookie_id} ended: {reason}")
        )
        streams, self.streams = self.streams, {}
        self.lacs.clear()
        self.expected.clear()
        for stream in streams.values():
            stream.take_refusal(stream.acked, lost)
        for callback in self.on_closed:
            callback(lost)
