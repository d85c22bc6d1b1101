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
from ...runtime.protocol.handshake import FEATURE_ADD_MANY, FEATURE_LACS
from ..format import bookie_messages as m
from .capability_cache import CapabilityCache

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FenceResponse:
    """The answer to FENCE or READ_LAC. ``last_entry`` -1: none; ``known``: not in limbo."""

    lac: int
    last_entry: int
    known: bool


@dataclass(frozen=True, slots=True)
class ReadResponse:
    """The answer to READ. ``body`` is the receiver's own memory: records ascending, unverified.

    Of the asked ids up to ``complete_to`` all that the bookie has are in ``body``; those that are not are
    absent there if ``known``, else nothing is known of them (H9). Use ``entry.records(body)``.
    """

    complete_to: int
    lac: int
    known: bool
    body: memoryview


@dataclass(frozen=True, slots=True)
class LongPollResponse:
    """The answer to WAIT_LAC; ``body`` as in `ReadResponse`, from the previous LAC + 1 on."""

    lac: int
    fenced: bool
    body: memoryview


@dataclass(frozen=True, slots=True)
class EntryList:
    """What a bookie holds of a ledger: stretches (first, count). ``known``: that is all it ever had."""

    ranges: list[tuple[int, int]]
    known: bool


SHARED_ENTRY_BYTES_MAX = 16 * 1024
"""Larger entries are frames of their own: their bytes need not be joined with others'."""
SHARED_BYTES_MAX = 256 * 1024
"""Of a frame of shared adds: about as large as a full entry."""


def _no_op() -> None:
    """Where nothing is told."""


def raise_error(error: Exception) -> None:
    """Where nobody else is told what broke: it ends the connection."""
    raise error


class AddStream:
    """Adds to one ledger over one connection, acked by count in sending order. See `open_stream`."""

    __slots__ = (
        "_link",
        "_on_refused",
        "_open_request",
        "acked_count",
        "client",
        "has_lac_waiters",
        "on_acked",
        "on_broken",
        "on_progress",
        "refusal",
        "sent_count",
        "stream_number",
    )

    def __init__(
        self,
        client: "BookieClient",
        stream_number: int,
        open_request: m.StreamOpenRequest,
        on_acked: Callable[[int], object],
        on_refused: Callable[[int, DistributedLogError], None],
        on_progress: Callable[[], None],
        on_broken: Callable[[Exception], None],
    ) -> None:
        self.client = client
        """Its connection."""
        self._link = client.link
        self._open_request = open_request
        self.on_acked = on_acked
        self.on_progress = on_progress
        self.on_broken = on_broken
        self._on_refused = on_refused
        self.stream_number = stream_number
        self.sent_count = 0
        """Records handed to `send`."""
        self.acked_count = 0
        """Records known to be durable there: the first so many of those sent."""
        self.has_lac_waiters = False
        """Did somebody wait for the ledger's LAC there, when last it was acked?"""
        self.refusal: DistributedLogError | None = None

    def send(self, record: Buffer) -> None:
        """Queue one record; it is kept by reference. Silently dropped once the stream was refused."""
        if self.refusal is None:
            if self.client.pending_shared:
                self.client.send_gathered()  # some of it may be this stream's
            self.sent_count += 1
            # As `envelope`, without its call: this is done for each entry and replica.
            size = ENVELOPE_BYTES + len(record)
            self._link.send(ENVELOPE.pack(size, Op.ADD, 0, 0, self.stream_number, 0, 0), record)

    def shared_sender(self, streams: Sequence[object]) -> Callable[[Buffer], bool] | None:
        """What sends a record on all these streams of one ledger, with the records of other ledgers.

        It answers false where there is nothing to share, and nothing was sent; None: there never is.
        """
        add_streams = [
            stream
            for stream in streams
            if isinstance(stream, AddStream) and stream.client.supports_shared_adds
        ]
        if (
            len(add_streams) < len(streams)
            or max([stream.stream_number for stream in add_streams]) >= 1 << 32
        ):
            return None
        for stream in add_streams:
            if (
                stream.client.pending_shared
            ):  # some of it may be these streams', with other connections
                stream.client.send_gathered()
        shared, add_streams = _shared_adds_of(add_streams)
        return partial(
            shared.add, tuple(add_streams), tuple([stream.stream_number for stream in add_streams])
        )

    def shared_lac_sender(self, streams: Sequence[object]) -> Callable[[int], bool] | None:
        """As `shared_sender`, of LACs."""
        add_streams = [
            stream
            for stream in streams
            if isinstance(stream, AddStream) and stream.client.supports_lac_batches
        ]
        if len(add_streams) < len(streams):
            return None
        shared, add_streams = _shared_adds_of(add_streams)
        return partial(shared.add_lac, tuple([stream.stream_number for stream in add_streams]))

    def send_lac(self, lac: int) -> None:
        """Publish what is confirmed, when no add follows that would carry it (H24).

        At once on an idle connection; else all of a turn are one frame.
        """
        if self.refusal is None:
            client = self.client
            if client.supports_lac_batches and self._link.is_gathering:
                client.pending_lacs[self.stream_number] = lac
            else:
                self._link.send(m.lac_frame(self.stream_number, lac))

    def call_when_processed(self, on_processed: Callable[[], None], timeout_s: float) -> None:
        """Call ``done`` once the bookie has processed everything that was sent on the connection so far.

        A bookie handles the frames of a connection in order, so the answer to a request that needs no ledger
        shows it. ``done`` is never called if the connection ends first.
        """
        self.client.send_gathered()

        def on_reply(reply: Reply | DistributedLogError) -> None:
            if isinstance(reply, Reply):
                on_processed()

        with contextlib.suppress(DistributedLogError):  # the connection has ended
            self._link.start_repeated_request(Op.INFO, timeout_s=timeout_s, on_reply=on_reply)

    def close(self) -> None:
        """No more acks and refusals are told; the bookie forgets the stream. Idempotent."""
        if self.client.streams.pop(self.stream_number, None) is None:
            return
        self.client.send_gathered()  # what was given to the stream goes before its end
        if self.refusal is None:
            self.refusal = AlreadyClosed(f"add stream {self.stream_number} was closed")
        request = self._open_request
        body = m.StreamOpenRequest(
            request.ledger, request.key, request.recovery, request.fragment_epoch, close=True
        ).encode()
        self._link.send(envelope(Op.STREAM_OPEN, len(body), ident=self.stream_number) + body)

    def on_refusal(self, position: int, error: DistributedLogError) -> None:
        """The connection heard a refusal, or broke."""
        if self.refusal is None:
            self.refusal = error
            try:
                self._on_refused(position, error)
            except Exception as callback_error:  # the owner's: others are to be told as well
                self.on_broken(callback_error)


def _shared_adds_of(streams: list[AddStream]) -> "tuple[SharedAdds, list[AddStream]]":
    """What is shared by the connections of these, and they in its order."""
    # In one order, so that ensembles of the same bookies are the same connections.
    ordered = sorted(streams, key=lambda stream: stream.client.bookie_id)
    return ordered[0].client.shared_with([stream.client for stream in ordered]), ordered


class SharedAdds:
    """Small entries of many ledgers on the same connections, and LACs: gathered until a turn of one of these.

    One head says whose they are; their bytes are joined once and given to each connection. A stream's
    records keep their order: whoever sends on it by itself sends what is gathered before (`AddStream.send`).
    """

    __slots__ = (
        "_clients",
        "_first_link",
        "_lac_by_streams",
        "_records",
        "_records_bytes",
        "_stream_numbers",
    )

    def __init__(self, clients: "tuple[BookieClient, ...]") -> None:
        self._clients = clients
        self._first_link = clients[0].link
        self._records: list[Buffer] = []
        self._stream_numbers: list[tuple[int, ...]] = []
        """For each record those of its streams, one a connection."""
        self._records_bytes = 0
        self._lac_by_streams: dict[tuple[int, ...], int] = {}
        """By the streams, one a connection; of them the newest counts."""

    @property
    def is_closed(self) -> bool:
        """Has one of the connections ended?"""
        return any([client.close_error is not None for client in self._clients])

    def add(
        self, streams: tuple[AddStream, ...], stream_numbers: tuple[int, ...], record: Buffer
    ) -> bool:
        """Take one record for each of ``streams``, whose numbers these are; false: it goes by itself."""
        size = len(record)
        if size >= SHARED_ENTRY_BYTES_MAX:
            return False
        if not self._records and not self._schedule_send():
            return False
        self._records.append(record)
        self._stream_numbers.append(stream_numbers)
        for stream in streams:
            stream.sent_count += 1
        self._records_bytes += size
        if self._records_bytes >= SHARED_BYTES_MAX or len(self._records) >= m.ADD_MANY_ITEMS_MAX:
            self.send()
        return True

    def add_lac(self, stream_numbers: tuple[int, ...], lac: int) -> bool:
        """Take the LAC of one ledger for the streams of these numbers; false: it goes by itself."""
        lacs = self._lac_by_streams
        if not lacs and not self._schedule_send():
            return False
        lacs[stream_numbers] = lac
        if len(lacs) >= m.WRITE_LACS_ITEMS_MAX:
            self.send()
        return True

    def _schedule_send(self) -> bool:
        """Have it sent, if there is a turn to come."""
        if not self._first_link.is_gathering:
            return False
        for client in self._clients:
            client.pending_shared[self] = None
            client.link.request_turn()  # the first to have its turn sends it to all
        return True

    def send(self) -> None:
        """Give the connections what has gathered."""
        for client in self._clients:
            client.pending_shared.pop(self, None)
        if self._records:
            self._send_records()
        if self._lac_by_streams:
            lacs, self._lac_by_streams = self._lac_by_streams, {}
            lac_values = list(lacs.values())
            for client, numbers in zip(self._clients, zip(*lacs, strict=True), strict=True):
                body = m.encode_lacs(list(zip(numbers, lac_values, strict=True)))
                client.link.send(envelope(Op.WRITE_LACS, len(body)), body)

    def _send_records(self) -> None:
        records, self._records = self._records, []
        numbers_by_record, self._stream_numbers = self._stream_numbers, []
        self._records_bytes = 0
        sizes = list(map(len, records))
        body = b"".join(records)
        for client, numbers in zip(
            self._clients, zip(*numbers_by_record, strict=True), strict=True
        ):
            if len(records) == 1:
                client.link.send(envelope(Op.ADD, len(body), ident=numbers[0]), body)
                continue
            items = m.encode_add_many_items(numbers, sizes)
            size = len(items) + len(body)
            client.link.send(envelope(Op.ADD_MANY, size, ident=len(records)) + items, body)


class BookieClient:
    """One bookie, over one link; made anew for each connection.

    ``key`` of a call is the ledger's stored one; ``keys`` says what is shown in its place (None: that).
    """

    def __init__(
        self, link: ClientLink, bookie_id: str, capabilities: CapabilityCache | None = None
    ) -> None:
        self.link = link
        self.bookie_id = bookie_id
        self._capabilities = capabilities
        self.streams: dict[int, AddStream] = {}
        self.on_closed: list[Callable[[ConnectionLost], None]] = []
        self._last_stream_number = 0
        self.supports_lac_batches = bool(link.peer.features & FEATURE_LACS)
        self.supports_shared_adds = bool(link.peer.features & FEATURE_ADD_MANY)
        self.pending_shared: dict[SharedAdds, None] = {}
        """Those that have gathered something."""
        self._shared_by_clients: dict[tuple[BookieClient, ...], SharedAdds] = {}
        self.pending_lacs: dict[int, int] = {}
        """By stream, to be sent with the link's turn; of one stream the newest counts."""
        link.subscribe(self._on_frame, on_turn=self.send_gathered, on_closed=self._on_link_closed)

    @property
    def close_error(self) -> DistributedLogError | None:
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
        on_progress: Callable[[], None] = _no_op,
        on_broken: Callable[[Exception], None] = raise_error,
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
        refusal: NotAllowed | None = None
        try:
            presented_key = self._presented_key(
                CapabilityKind.RECOVER if recovery else CapabilityKind.ADD, ledger, key
            )
        except NotAllowed as error:
            presented_key, refusal = None, error
        self._last_stream_number += 1
        request = m.StreamOpenRequest(
            ledger, key if presented_key is None else presented_key, recovery, fragment_epoch
        )
        stream = AddStream(
            self, self._last_stream_number, request, on_acked, on_refused, on_progress, on_broken
        )
        if presented_key is None:  # its owner opens another one when the capability is here
            reason = f"the capability to add to ledger {ledger} is asked for"
            stream.on_refusal(0, refusal or CapabilityOutdated(reason))
            return stream
        self.streams[stream.stream_number] = stream
        body = request.encode()
        self.link.send(envelope(Op.STREAM_OPEN, len(body), ident=stream.stream_number) + body)
        return stream

    def shared_with(self, clients: "Sequence[BookieClient]") -> SharedAdds:
        """What these connections share; this is the first of them."""
        key = tuple(clients)
        shared_adds = self._shared_by_clients.get(key)
        if shared_adds is None:
            for stale_key in [
                stale_key
                for stale_key, candidate in self._shared_by_clients.items()
                if candidate.is_closed
            ]:
                del self._shared_by_clients[stale_key]
            shared_adds = self._shared_by_clients[key] = SharedAdds(key)
        return shared_adds

    def send_gathered(self) -> None:
        """Send what waits for the link's turn."""
        for shared in tuple(self.pending_shared):
            shared.send()
        if self.pending_lacs:
            lacs, self.pending_lacs = list(self.pending_lacs.items()), {}
            for start in range(0, len(lacs), m.WRITE_LACS_ITEMS_MAX):
                body = m.encode_lacs(lacs[start : start + m.WRITE_LACS_ITEMS_MAX])
                self.link.send(envelope(Op.WRITE_LACS, len(body)), body)

    # --- requests: each raises what the bookie answered, RequestTimeout, ConnectionLost -------------

    async def fence(self, ledger: int, key: bytes, timeout_s: float) -> FenceResponse:
        """Refuse normal adds there for ever; durable when this returns (inv. 11)."""
        return await self._request_ends(Op.FENCE, CapabilityKind.RECOVER, ledger, key, timeout_s)

    async def read_lac(self, ledger: int, key: bytes, timeout_s: float) -> FenceResponse:
        """The LAC and the last entry there."""
        return await self._request_ends(Op.READ_LAC, CapabilityKind.LIST, ledger, key, timeout_s)

    async def _request_ends(
        self, op: int, kind: CapabilityKind, ledger: int, key: bytes, timeout_s: float
    ) -> FenceResponse:
        reply = await self._request(op, kind, ledger, key, timeout_s)
        lac, last_entry = m.decode_lac_and_last(reply.body)
        return FenceResponse(lac, last_entry, bool(reply.flags & m.FLAG_PROVES_ABSENCE))

    async def _request(
        self, op: int, kind: CapabilityKind, ledger: int, key: bytes, timeout_s: float
    ) -> Reply:
        def ask(presented_key: bytes) -> Awaitable[Reply]:
            body = m.LedgerRequest(ledger, presented_key).encode()
            return self.link.request(op, body, timeout_s=timeout_s)

        return await self._request_with_key(kind, ledger, key, timeout_s, ask)

    async def wait_for_capability(
        self, kind: CapabilityKind, ledger: int, timeout_s: float
    ) -> None:
        """Wait up to that long until what follows need not; at once while none are shown."""
        if self._capabilities is not None and self._capabilities.active:
            await self._capabilities.wait_for_keys((self.bookie_id,), kind, ledger, timeout_s)

    def _presented_key(self, kind: CapabilityKind, ledger: int, key: bytes) -> bytes | None:
        """What is shown; None: it is on its way. Raises `NotAllowed`."""
        keys = self._capabilities
        if keys is None or not keys.active:
            return key
        return keys.find_key(self.bookie_id, kind, ledger, key)

    async def _request_with_key(
        self,
        kind: CapabilityKind,
        ledger: int,
        key: bytes,
        timeout_s: float,
        send_request: Callable[[bytes], Awaitable[T]],
    ) -> T:
        if self._capabilities is None:
            return await send_request(key)
        return await self._capabilities.request_with_retry(
            self.bookie_id, kind, ledger, key, timeout_s, send_request
        )

    def _report_outdated(self, error: object) -> None:
        if self._capabilities is not None and isinstance(error, CapabilityOutdated):
            self._capabilities.invalidate(self.bookie_id)

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
    ) -> ReadResponse:
        """Entries first..last (inclusive), as many as fit ``bytes_max``, at least one if it is there."""

        def ask(presented_key: bytes) -> Awaitable[ReadResponse]:
            request = m.ReadEntriesRequest(
                ledger, presented_key, first, last, bytes_max, fence, past_lac
            )
            pending = self.link.start_request(Op.READ, request.encode(), timeout_s=timeout_s)
            return self.finish_read(pending, timeout_s)

        kind = CapabilityKind.RECOVER if fence else CapabilityKind.READ
        return await self._request_with_key(kind, ledger, key, timeout_s, ask)

    def begin_read(self, request: m.ReadEntriesRequest, timeout_s: float) -> PendingReply:
        """Ask, and go on: `finish_read` the reply, or `cancel` it. Raises what closed the link, `NotAllowed`.

        Where a capability is not at hand yet the answer is `CapabilityOutdated`, once the cluster requires
        it: `read` waits.
        """
        presented_key = self._presented_key(
            CapabilityKind.RECOVER if request.fence else CapabilityKind.READ,
            request.ledger,
            request.key,
        )
        if presented_key is not None and presented_key is not request.key:
            request = replace(request, key=presented_key)
        return self.link.start_request(Op.READ, request.encode(), timeout_s=timeout_s)

    async def finish_read(self, pending: PendingReply, timeout_s: float) -> ReadResponse:
        """Wait for the reply to `begin_read`."""
        try:
            reply = await self.link.wait_reply(pending, timeout_s)
        except CapabilityOutdated as error:
            self._report_outdated(error)
            raise
        complete_to, lac, body = m.decode_read(reply.body)
        return ReadResponse(complete_to, lac, bool(reply.flags & m.FLAG_PROVES_ABSENCE), body)

    def cancel(self, pending: PendingReply) -> None:
        """The reply to `begin_read` is not wanted any more."""
        self.link.discard_request(pending)

    def long_poll_lac(
        self,
        request: m.WaitLacRequest,
        on_response: Callable[[LongPollResponse | DistributedLogError, bool], None],
        *,
        persistent: bool,
    ) -> PendingReply:
        """Wait there without a task: ``on_answer`` gets the answer, or the error that ended it.

        ``standing``: an answer for each move of the LAC, each with all records since the one before,
        until the time is over or ``request.bytes_max`` are used up; the second value is whether more
        follow. Not answering is the caller's to notice, and to `cancel`. Raises what closed the link.
        """

        def on_reply(reply: Reply | DistributedLogError) -> None:
            if not isinstance(reply, Reply):
                self._report_outdated(reply)
                on_response(reply, False)
                return
            lac, fenced, body = m.decode_wait(reply.body)
            on_response(LongPollResponse(lac, fenced, body), bool(reply.flags & REPLY_MORE))

        presented_key = self._presented_key(CapabilityKind.READ, request.ledger, request.key)
        if presented_key is not None and presented_key is not request.key:
            request = replace(request, key=presented_key)
        return self.link.start_repeated_request(
            Op.WAIT_LAC,
            request.encode(),
            flags=m.WAIT_PERSISTENT if persistent else 0,
            timeout_s=request.wait_ms / 1000,
            on_reply=on_reply,
        )

    async def list_entries(self, ledger: int, key: bytes, timeout_s: float) -> EntryList:
        """Which entries are there."""
        reply = await self._request(Op.LIST_ENTRIES, CapabilityKind.LIST, ledger, key, timeout_s)
        ranges = m.decode_pairs(reply.body, "LIST_ENTRIES")
        return EntryList(ranges, bool(reply.flags & m.FLAG_PROVES_ABSENCE))

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
            progressed: list[AddStream] = []
            try:
                self._count_acks(m.decode_pairs(body, "ADD_ACKS"), flags, progressed)
            finally:
                for progressed_stream in progressed:
                    try:
                        progressed_stream.on_progress()
                    except (
                        Exception
                    ) as callback_error:  # the owner's: others are to be told as well
                        progressed_stream.on_broken(callback_error)
        elif op == Op.STREAM_REFUSED:
            error, position = m.decode_refusal(status, body)
            self._report_outdated(error)
            stream = self.streams.get(ident)
            if stream is not None:
                stream.on_refusal(position, error)

    def _count_acks(
        self, acks: list[tuple[int, int]], flags: int, progressed: list[AddStream]
    ) -> None:
        """Count what is durable; ``moved`` gets the streams whose owners have something to tell."""
        streams, has_waiters = self.streams, bool(flags & m.ACK_HAS_LONG_POLLS)
        for number, count in acks:
            stream = streams.get(number)
            if stream is None:
                continue
            stream.has_lac_waiters = has_waiters
            if not stream.acked_count < count <= stream.sent_count:
                if count == stream.acked_count:
                    continue
                raise ProtocolError(
                    f"stream {number}: {count} records acked, {stream.sent_count} sent,"
                    f" {stream.acked_count} before"
                )
            stream.acked_count = count
            try:
                if stream.on_acked(count):
                    progressed.append(stream)
            except ProtocolError as error:
                stream.on_refusal(count, error)
            except Exception as error:  # the owner's fault: other ledgers share this connection
                stream.on_broken(error)

    def _on_link_closed(self, reason: DistributedLogError) -> None:
        lost = (
            reason
            if isinstance(reason, ConnectionLost)
            else ConnectionLost(f"the connection to bookie {self.bookie_id} ended: {reason}")
        )
        streams, self.streams = self.streams, {}
        self.pending_lacs.clear()
        for stream in streams.values():
            stream.on_refusal(stream.acked_count, lost)
        for callback in self.on_closed:
            callback(lost)
