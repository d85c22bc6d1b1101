"""The client end of a connection to one bookie. Adds use streams, without an await per add.

Acks count the records of a stream in sending order (H1). The owner of a stream keeps sent records in a queue,
and removes as many as were acknowledged. A refusal or a lost connection is reported once, at once.
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
    """The answer to FENCE or READ_LAC.

    ``last_entry`` is -1 for none, and ``proves_absence`` means that the ledger is not in limbo state.
    """

    lac: int
    last_entry: int
    proves_absence: bool


@dataclass(frozen=True, slots=True)
class ReadResponse:
    """The answer to READ.

    ``body`` has the records in ascending order, unverified, in memory of the receiver. It has all requested
    entries up to ``complete_to`` that the bookie stores. If ``proves_absence``, the others are proven to be
    absent there. Otherwise nothing is known of them (H9). `entry.records` decodes ``body``.
    """

    complete_to: int
    lac: int
    proves_absence: bool
    body: memoryview


@dataclass(frozen=True, slots=True)
class LongPollResponse:
    """The answer to WAIT_LAC. ``body`` is as in `ReadResponse`, from the previous LAC + 1 on."""

    lac: int
    fenced: bool
    body: memoryview


@dataclass(frozen=True, slots=True)
class EntryList:
    """The ranges (first, count) of a ledger that a bookie stores. ``proves_absence``: the bookie has lost
    none."""

    ranges: list[tuple[int, int]]
    proves_absence: bool


SHARED_ENTRY_BYTES_MAX = 16 * 1024
"""Larger entries are sent in their own frames, which saves the copy into a joint one."""
SHARED_BYTES_MAX = 256 * 1024
"""The maximum size of a frame of shared adds: about that of a full entry."""


def _no_op() -> None:
    """Ignore the progress."""


def raise_error(error: Exception) -> None:
    """Raise the error, which ends the connection. This is the default for streams without a handler."""
    raise error


class AddStream:
    """Adds to one ledger over one connection, acknowledged by count. See `BookieClient.open_stream`."""

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
        self._link = client.link
        self._open_request = open_request
        self.on_acked = on_acked
        self.on_progress = on_progress
        self.on_broken = on_broken
        self._on_refused = on_refused
        self.stream_number = stream_number
        self.sent_count = 0
        """Records that were passed to `send`."""
        self.acked_count = 0
        """Records that are durable on the bookie: the first ones of those sent."""
        self.has_lac_waiters = False
        """Whether a long poll waited for the ledger's LAC on the bookie at the last ack."""
        self.refusal: DistributedLogError | None = None

    def send(self, record: Buffer) -> None:
        """Queue one record without a copy. Records of a refused stream are dropped silently."""
        if self.refusal is None:
            if self.client.pending_shared:
                self.client.send_deferred()  # may contain earlier records of this stream
            self.sent_count += 1
            # As `envelope`, without the call, because this runs for each entry and replica.
            size = ENVELOPE_BYTES + len(record)
            self._link.send(ENVELOPE.pack(size, Op.ADD, 0, 0, self.stream_number, 0, 0), record)

    def shared_sender(self, streams: Sequence[object]) -> Callable[[Buffer], bool] | None:
        """Return a function that sends a record on these streams of one ledger, or None.

        It sends the record in a joint frame with records of other ledgers. If it returns False, it sent
        nothing, and the caller must use `send`. None is returned if joint frames are never possible for these
        streams.
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
            # Pending joint frames, also with other connections, may contain records of these streams.
            if stream.client.pending_shared:
                stream.client.send_deferred()
        shared, add_streams = _shared_adds_of(add_streams)
        return partial(
            shared.add, tuple(add_streams), tuple([stream.stream_number for stream in add_streams])
        )

    def shared_lac_sender(self, streams: Sequence[object]) -> Callable[[int], bool] | None:
        """Return a function as `shared_sender` does, for LACs."""
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
        """Publish the LAC if no add follows that would contain it (H24).

        On an idle connection it is sent at once. Otherwise one frame has all LACs of an event-loop iteration.
        """
        if self.refusal is None:
            client = self.client
            if client.supports_lac_batches and self._link.will_send:
                client.pending_lacs[self.stream_number] = lac
            else:
                self._link.send(m.lac_frame(self.stream_number, lac))

    def call_when_processed(self, on_processed: Callable[[], None], timeout_s: float) -> None:
        """Call ``on_processed`` once the bookie has processed all frames sent so far.

        A bookie handles the frames of a connection in order, so the answer to a request without a ledger
        proves this. ``on_processed`` is not called if the connection ends first.
        """
        self.client.send_deferred()

        def on_reply(reply: Reply | DistributedLogError) -> None:
            if isinstance(reply, Reply):
                on_processed()

        with contextlib.suppress(DistributedLogError):  # the connection has ended
            self._link.start_repeated_request(Op.INFO, timeout_s=timeout_s, on_reply=on_reply)

    def close(self) -> None:
        """Close the stream. Later acks and refusals are not reported. Idempotent."""
        if self.client.streams.pop(self.stream_number, None) is None:
            return
        self.client.send_deferred()  # records of the stream are sent before its end
        if self.refusal is None:
            self.refusal = AlreadyClosed(f"add stream {self.stream_number} was closed")
        request = self._open_request
        body = m.StreamOpenRequest(
            request.ledger, request.key, request.recovery, request.fragment_epoch, close=True
        ).encode()
        self._link.send(envelope(Op.STREAM_OPEN, len(body), ident=self.stream_number) + body)

    def on_refusal(self, position: int, error: DistributedLogError) -> None:
        """Handle a refusal, or the loss of the connection."""
        if self.refusal is None:
            self.refusal = error
            try:
                self._on_refused(position, error)
            except (
                Exception
            ) as callback_error:  # an error of the owner; other streams must still be notified
                self.on_broken(callback_error)


def _shared_adds_of(streams: list[AddStream]) -> "tuple[SharedAdds, list[AddStream]]":
    """Return the joint adds for the connections of these streams, and the streams in their order."""
    # Sorted, so that ensembles of the same bookies share one object.
    ordered = sorted(streams, key=lambda stream: stream.client.bookie_id)
    return ordered[0].client.shared_with([stream.client for stream in ordered]), ordered


class SharedAdds:
    """Small entries and LACs of many ledgers with the same connections, sent in joint frames.

    They are collected until one of the connections sends. A header lists the stream of each record. The
    records are joined once, and sent on each connection. The records of a stream keep their order, because a
    direct send on it first sends the collected ones (`AddStream.send`).
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
        """Shows whether a send is coming. One connection suffices, because the joint frame is sent on all."""
        self._records: list[Buffer] = []
        self._stream_numbers: list[tuple[int, ...]] = []
        """For each record, its stream numbers, one per connection."""
        self._records_bytes = 0
        self._lac_by_streams: dict[tuple[int, ...], int] = {}
        """The newest LAC by stream numbers, one per connection."""

    @property
    def is_closed(self) -> bool:
        """Whether one of the connections has ended."""
        return any([client.close_error is not None for client in self._clients])

    def add(
        self, streams: tuple[AddStream, ...], stream_numbers: tuple[int, ...], record: Buffer
    ) -> bool:
        """Add one record for each of ``streams``; return False if it must be sent directly.

        ``stream_numbers`` are the numbers of the streams.
        """
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
        """Add the LAC of one ledger for these stream numbers; return False if it must be sent directly."""
        lacs = self._lac_by_streams
        if not lacs and not self._schedule_send():
            return False
        lacs[stream_numbers] = lac
        if len(lacs) >= m.WRITE_LACS_ITEMS_MAX:
            self.send()
        return True

    def _schedule_send(self) -> bool:
        """Schedule the next send; return False if none is coming, because the connection is idle."""
        if not self._first_link.will_send:
            return False
        for client in self._clients:
            client.pending_shared[self] = None
            client.link.request_send()  # the first connection that sends, sends the frame on all
        return True

    def send(self) -> None:
        """Send the collected records and LACs on all connections."""
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
    """The client of one bookie over one connection. A new one is created for each connection.

    The ``key`` argument of a method is the ledger's stored key. If ``capabilities`` is given, a capability
    may be presented in its place.
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
        """Joint frames with collected records or LACs."""
        self._shared_by_clients: dict[tuple[BookieClient, ...], SharedAdds] = {}
        self.pending_lacs: dict[int, int] = {}
        """The newest LAC by stream number, to be sent when the link sends next."""
        link.subscribe(
            self._on_frame, before_send=self.send_deferred, on_closed=self._on_link_closed
        )

    @property
    def close_error(self) -> DistributedLogError | None:
        """The error that ended the connection; None while it is open."""
        return self.link.closed

    # --- adds -------------------------------------------------------------------------------------

    @property
    def send_progress(self) -> tuple[int, int]:
        """The bytes that were sent on the connection, and the bytes that wait to be sent."""
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
        """Open a stream of adds to a ledger.

        A lost connection refuses the stream with `ConnectionLost` at the acknowledged count. Later records
        may be stored or not.

        Args:
            recovery: Whether to add for a recovery or a repair, which is possible on fenced ledgers.
            fragment_epoch: The epoch of the fragment.
            on_acked: Receives the total number of durable records of the stream, and should only count them.
                If it returns a true value, ``on_progress`` is called later. A `ProtocolError` that it raises
                refuses the stream.
            on_refused: Called once, with the first position (from 0, in sending order) that was not accepted,
                and the error. The stream acknowledges neither this record nor any later one.
            on_progress: Called after all acks of one frame were counted.
            on_broken: Receives any other error that the callbacks raise.
        Raises:
            DistributedLogError: The connection has ended, by this error.
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
        if presented_key is None:  # the owner opens another stream when the capability has arrived
            reason = f"the capability to add to ledger {ledger} has been requested"
            stream.on_refusal(0, refusal or CapabilityOutdated(reason))
            return stream
        self.streams[stream.stream_number] = stream
        body = request.encode()
        self.link.send(envelope(Op.STREAM_OPEN, len(body), ident=stream.stream_number) + body)
        return stream

    def shared_with(self, clients: "Sequence[BookieClient]") -> SharedAdds:
        """Return the joint adds for these connections, of which this is the first."""
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

    def send_deferred(self) -> None:
        """Send the collected adds and LACs."""
        for shared in tuple(self.pending_shared):
            shared.send()
        if self.pending_lacs:
            lacs, self.pending_lacs = list(self.pending_lacs.items()), {}
            for start in range(0, len(lacs), m.WRITE_LACS_ITEMS_MAX):
                body = m.encode_lacs(lacs[start : start + m.WRITE_LACS_ITEMS_MAX])
                self.link.send(envelope(Op.WRITE_LACS, len(body)), body)

    # --- requests: each raises the bookie's error, RequestTimeout or ConnectionLost ----------------

    async def fence(self, ledger: int, key: bytes, timeout_s: float) -> FenceResponse:
        """Refuse normal adds on the bookie from now on. The fence is durable when this returns (inv. 11)."""
        return await self._request_ends(Op.FENCE, CapabilityKind.RECOVER, ledger, key, timeout_s)

    async def read_lac(self, ledger: int, key: bytes, timeout_s: float) -> FenceResponse:
        """Return the LAC and the last entry on the bookie."""
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
        """Wait until a capability for the next request is cached, or until the timeout.

        Returns at once while no capabilities are presented.
        """
        if self._capabilities is not None and self._capabilities.active:
            await self._capabilities.wait_for_keys((self.bookie_id,), kind, ledger, timeout_s)

    def _presented_key(self, kind: CapabilityKind, ledger: int, key: bytes) -> bytes | None:
        """Return the key or capability to present. Raises `NotAllowed`.

        If a capability is necessary and none is cached, request one in the background and return None.
        """
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
        """Read entries ``first`` to ``last`` (inclusive).

        Args:
            bytes_max: The maximum bytes of the records. A longer first record is returned alone.
            fence: Whether to fence the ledger before the read, as a recovery does.
            past_lac: Whether to return entries above the LAC.
        """

        def ask(presented_key: bytes) -> Awaitable[ReadResponse]:
            request = m.ReadEntriesRequest(
                ledger, presented_key, first, last, bytes_max, fence, past_lac
            )
            pending = self.link.start_request(Op.READ, request.encode(), timeout_s=timeout_s)
            return self.finish_read(pending, timeout_s)

        kind = CapabilityKind.RECOVER if fence else CapabilityKind.READ
        return await self._request_with_key(kind, ledger, key, timeout_s, ask)

    def begin_read(self, request: m.ReadEntriesRequest, timeout_s: float) -> PendingReply:
        """Send a read request. Pass the result to `finish_read` or `cancel`.

        If the cluster requires capabilities and none is cached, one is requested in the background. The
        request is sent without it, and the answer is `CapabilityOutdated`. Unlike this method, `read` waits
        for a capability.

        Raises:
            NotAllowed: The leader denied the capability.
            DistributedLogError: The connection has ended, by this error.
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
        """Ignore the reply to `begin_read` or `long_poll_lac`."""
        self.link.discard_request(pending)

    def long_poll_lac(
        self,
        request: m.WaitLacRequest,
        on_response: Callable[[LongPollResponse | DistributedLogError, bool], None],
        *,
        persistent: bool,
    ) -> PendingReply:
        """Wait on the bookie until the LAC advances, without a task here.

        A missing capability has the same effect as for `begin_read`.

        Args:
            on_response: Receives the answer, or the error that ended the poll. The second value is whether
                more answers follow.
            persistent: Whether to receive an answer for each advance of the LAC, with all records since the
                previous one. This ends after the requested time, or when all answers together have
                ``request.bytes_max`` bytes.
        Returns:
            The pending request. The caller must detect a missing answer, and `cancel` the request.
        Raises:
            DistributedLogError: The connection has ended, by this error.
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
        """Return the entries of a ledger that the bookie stores."""
        reply = await self._request(Op.LIST_ENTRIES, CapabilityKind.LIST, ledger, key, timeout_s)
        ranges = m.decode_pairs(reply.body, "LIST_ENTRIES")
        return EntryList(ranges, bool(reply.flags & m.FLAG_PROVES_ABSENCE))

    async def info(self, timeout_s: float) -> dict[str, object]:
        """Return counters and gauges of the bookie."""
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
                    except Exception as callback_error:  # the other streams must still be notified
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
        """Count durable records, and collect in ``progressed`` the streams to notify of progress."""
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
            except Exception as error:  # an error of the owner; other ledgers share this connection
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
