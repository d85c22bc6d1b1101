"""One connection to one bookie, typed. Adds go over streams: nothing is awaited for them.

Acks count a stream's records in sending order (H1); its owner keeps what it sent in a queue and pops that
many. Refusals and broken connections are told once, at once.
"""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from ...runtime.interfaces.errors import (
    AlreadyClosed,
    CapabilityOutdated,
    ConnectionLost,
    DistributedLogError,
    NotAllowed,
    ProtocolError,
)
from ...runtime.interfaces.host import Buffer
from ...runtime.net.client_link import ClientLink, PendingReply, Reply
from ...runtime.protocol.capabilities import CapabilityKind
from ...runtime.protocol.frames import ENVELOPE, ENVELOPE_BYTES, REPLY_MORE, Op, envelope, unpack
from ...runtime.protocol.handshake import FEATURE_LACS, FEATURE_MANY
from ..format import bookie_messages as m
from .capability_cache import ClientKeys

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
SHARED_BYTES_MAX = 256 * 1024
"""Of a frame of shared adds: about as large as a full entry."""


def _nothing() -> None:
    """Where nothing is told."""


def raise_it(error: Exception) -> None:
    """Where nobody else is told what broke: it ends the connection."""
    raise error


class AddStream:
    """Adds to one ledger over one connection, acked by count in sending order. See `open_stream`."""

    __slots__ = (
        "_link", "_on_refused", "_opening", "acked", "client", "number", "on_acked", "on_broken",
        "on_progress", "refused", "sent", "watched",
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
        self.sent = 0
        """Records handed to `send`."""
        self.acked = 0
        """Records known to be durable there: the first so many of those sent."""
        self.watched = False
        """Did somebody wait for the ledger's LAC there, when last it was acked?"""
        self.refused: DistributedLogError | None = None

    def send(self, record: Buffer) -> None:
        """Queue one record; it is kept by reference. Silently dropped once the stream was refused."""
        if self.refused is None:
            if self.client.shared:
                self.client.send_gathered()  # some of it may be this stream's
            self.sent += 1
            # As `envelope`, without its call: this is done for each entry and replica.
            size = ENVELOPE_BYTES + len(record)
            self._link.send(ENVELOPE.pack(size, Op.ADD, 0, 0, self.number, 0, 0), record)

    def together(self, streams: Sequence[object]) -> Callable[[Buffer], bool] | None:
        """What sends a record on all these streams of one ledger, with the records of other ledgers.

        It answers false where there is nothing to share, and nothing was sent; None: there never is.
        """
        mine = [one for one in streams if isinstance(one, AddStream) and one.client.takes_many]
        if len(mine) < len(streams) or max([one.number for one in mine]) >= 1 << 32:
            return None
        for one in mine:
            if one.client.shared:  # some of it may be these streams', with other connections
                one.client.send_gathered()
        shared, mine = _shared_by(mine)
        return partial(shared.add, tuple(mine), tuple([one.number for one in mine]))

    def lacs_together(self, streams: Sequence[object]) -> Callable[[int], bool] | None:
        """As `together`, of LACs."""
        mine = [one for one in streams if isinstance(one, AddStream) and one.client.takes_lacs]
        if len(mine) < len(streams):
            return None
        shared, mine = _shared_by(mine)
        return partial(shared.tell, tuple([one.number for one in mine]))

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

    def when_processed(self, done: Callable[[], None], timeout_s: float) -> None:
        """Call ``done`` once the bookie has processed everything that was sent on the connection so far.

        A bookie handles the frames of a connection in order, so the answer to a request that needs no ledger
        shows it. ``done`` is never called if the connection ends first.
        """
        self.client.send_gathered()

        def on_reply(reply: Reply | DistributedLogError) -> None:
            if isinstance(reply, Reply):
                done()

        with contextlib.suppress(DistributedLogError):  # the connection has ended
            self._link.stand(Op.INFO, timeout_s=timeout_s, on_reply=on_reply)

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


def _shared_by(streams: list[AddStream]) -> "tuple[SharedAdds, list[AddStream]]":
    """What is shared by the connections of these, and they in its order."""
    # In one order, so that ensembles of the same bookies are the same connections.
    ordered = sorted(streams, key=lambda one: one.client.bookie_id)
    return ordered[0].client.shared_with([one.client for one in ordered]), ordered


class SharedAdds:
    """Small entries of many ledgers on the same connections, and LACs: gathered until a turn of one of these.

    One head says whose they are; their bytes are joined once and given to each connection. A stream's
    records keep their order: whoever sends on it by itself sends what is gathered before (`AddStream.send`).
    """

    __slots__ = ("_bytes", "_clients", "_first", "_lacs", "_numbers", "_records")

    def __init__(self, clients: "tuple[BookieClient, ...]") -> None:
        self._clients = clients
        self._first = clients[0].link
        self._records: list[Buffer] = []
        self._numbers: list[tuple[int, ...]] = []
        """For each record those of its streams, one a connection."""
        self._bytes = 0
        self._lacs: dict[tuple[int, ...], int] = {}
        """By the streams, one a connection; of them the newest counts."""

    @property
    def closed(self) -> bool:
        """Has one of the connections ended?"""
        return any([client.closed is not None for client in self._clients])

    def add(self, streams: tuple[AddStream, ...], numbers: tuple[int, ...], record: Buffer) -> bool:
        """Take one record for each of ``streams``, whose numbers these are; false: it goes by itself."""
        size = len(record)
        if size >= SHARED_ENTRY_BYTES:
            return False
        if not self._records and not self._gathers():
            return False
        self._records.append(record)
        self._numbers.append(numbers)
        for stream in streams:
            stream.sent += 1
        self._bytes += size
        if self._bytes >= SHARED_BYTES_MAX or len(self._records) >= m.MANY_ITEMS_MAX:
            self.send()
        return True

    def tell(self, numbers: tuple[int, ...], lac: int) -> bool:
        """Take the LAC of one ledger for the streams of these numbers; false: it goes by itself."""
        lacs = self._lacs
        if not lacs and not self._gathers():
            return False
        lacs[numbers] = lac
        if len(lacs) >= m.LACS_MAX:
            self.send()
        return True

    def _gathers(self) -> bool:
        """Have it sent, if there is a turn to come."""
        if not self._first.gathers:
            return False
        for client in self._clients:
            client.shared[self] = None
            client.link.soon()  # the first to have its turn sends it to all
        return True

    def send(self) -> None:
        """Give the connections what has gathered."""
        for client in self._clients:
            client.shared.pop(self, None)
        if self._records:
            self._send_records()
        if self._lacs:
            lacs, self._lacs = self._lacs, {}
            told = list(lacs.values())
            for client, numbers in zip(self._clients, zip(*lacs, strict=True), strict=True):
                body = m.encode_lacs(list(zip(numbers, told, strict=True)))
                client.link.send(envelope(Op.WRITE_LACS, len(body)), body)

    def _send_records(self) -> None:
        records, self._records = self._records, []
        of_records, self._numbers = self._numbers, []
        self._bytes = 0
        sizes = list(map(len, records))
        body = b"".join(records)
        for client, numbers in zip(self._clients, zip(*of_records, strict=True), strict=True):
            if len(records) == 1:
                client.link.send(envelope(Op.ADD, len(body), ident=numbers[0]), body)
                continue
            items = m.encode_many(numbers, sizes)
            size = len(items) + len(body)
            client.link.send(envelope(Op.ADD_MANY, size, ident=len(records)) + items, body)


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
        self._sharing: dict[tuple[BookieClient, ...], SharedAdds] = {}
        self.lacs: dict[int, int] = {}
        """By stream, to be sent with the link's turn; of one stream the newest counts."""
        link.subscribe(self._on_frame, on_turn=self.send_gathered, on_closed=self._on_link_closed)

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
            shown = self._key(
                CapabilityKind.RECOVER if recovery else CapabilityKind.ADD, ledger, key
            )
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

    def shared_with(self, clients: "Sequence[BookieClient]") -> SharedAdds:
        """What these connections share; this is the first of them."""
        key = tuple(clients)
        found = self._sharing.get(key)
        if found is None:
            for other in [other for other, one in self._sharing.items() if one.closed]:
                del self._sharing[other]
            found = self._sharing[key] = SharedAdds(key)
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
        return await self._ends(Op.FENCE, CapabilityKind.RECOVER, ledger, key, timeout_s)

    async def read_lac(self, ledger: int, key: bytes, timeout_s: float) -> FenceAnswer:
        """The LAC and the last entry there."""
        return await self._ends(Op.READ_LAC, CapabilityKind.LIST, ledger, key, timeout_s)

    async def _ends(
        self, op: int, kind: CapabilityKind, ledger: int, key: bytes, timeout_s: float
    ) -> FenceAnswer:
        reply = await self._ask(op, kind, ledger, key, timeout_s)
        lac, last_entry = m.decode_ends(reply.body)
        return FenceAnswer(lac, last_entry, bool(reply.flags & m.FLAG_KNOWN))

    async def _ask(
        self, op: int, kind: CapabilityKind, ledger: int, key: bytes, timeout_s: float
    ) -> Reply:
        def ask(shown: bytes) -> Awaitable[Reply]:
            body = m.LedgerRequest(ledger, shown).encode()
            return self.link.request(op, body, timeout_s=timeout_s)

        return await self._with_key(kind, ledger, key, timeout_s, ask)

    async def have_capability(self, kind: CapabilityKind, ledger: int, timeout_s: float) -> None:
        """Wait up to that long until what follows need not; at once while none are shown."""
        if self._keys is not None and self._keys.active:
            await self._keys.have((self.bookie_id,), kind, ledger, timeout_s)

    def _key(self, kind: CapabilityKind, ledger: int, key: bytes) -> bytes | None:
        """What is shown; None: it is on its way. Raises `NotAllowed`."""
        keys = self._keys
        if keys is None or not keys.active:
            return key
        return keys.key(self.bookie_id, kind, ledger, key)

    async def _with_key(
        self,
        kind: CapabilityKind,
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
            request = m.ReadEntriesRequest(ledger, shown, first, last, bytes_max, fence, past_lac)
            pending = self.link.begin(Op.READ, request.encode(), timeout_s=timeout_s)
            return self.finish_read(pending, timeout_s)

        kind = CapabilityKind.RECOVER if fence else CapabilityKind.READ
        return await self._with_key(kind, ledger, key, timeout_s, ask)

    def begin_read(self, request: m.ReadEntriesRequest, timeout_s: float) -> PendingReply:
        """Ask, and go on: `finish_read` the reply, or `forget` it. Raises what closed the link, `NotAllowed`.

        Where a capability is not at hand yet the answer is `CapabilityOutdated`, once the cluster requires
        it: `read` waits.
        """
        shown = self._key(
            CapabilityKind.RECOVER if request.fence else CapabilityKind.READ,
            request.ledger,
            request.key,
        )
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

        shown = self._key(CapabilityKind.READ, request.ledger, request.key)
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
        reply = await self._ask(Op.LIST_ENTRIES, CapabilityKind.LIST, ledger, key, timeout_s)
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
            try:
                self._count_acks(m.decode_pairs(body, "ADD_ACKS"), flags, moved)
            finally:
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

    def _count_acks(self, acks: list[tuple[int, int]], flags: int, moved: list[AddStream]) -> None:
        """Count what is durable; ``moved`` gets the streams whose owners have something to tell."""
        streams, watched = self.streams, bool(flags & m.ACK_WATCHED)
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
        for stream in streams.values():
            stream.take_refusal(stream.acked, lost)
        for callback in self.on_closed:
            callback(lost)
