"""Fill a reader's queue by a subscription at a read proxy. When it ends, subscribe again at another proxy.

The reader, not the proxy, stores the place: (segment, entry) of the next entry. After a subscription has
ended, it subscribes from there at the next proxy in the log's order. No entry is skipped or delivered
twice. Digests and sequence IDs are verified here, so that entries which a proxy changed or left out are not
delivered.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import trio

from ...bookie.format.entry import records
from ...log.declarations.options import LogOptions
from ...log.format.dlsn import DLSN
from ...log.format.record import decode_columns, decode_header
from ...log.interfaces.error_boundary import error_boundary, to_internal_error
from ...log.model.position import Position
from ...log.read.entry_queue import EntryQueue, ReadRange
from ...log.read.log_reader import LogReader
from ...log.services.log_metrics import LogMeters
from ...runtime.interfaces.errors import (
    AlreadyClosed,
    ConnectionLost,
    CorruptData,
    DistributedLogError,
    ProtocolError,
)
from ...runtime.interfaces.host import Address
from ...runtime.interfaces.principals import PROXY
from ...runtime.net.client_link import ClientLink
from ...runtime.net.rpc import Endpoint
from ...runtime.primitives.backoff import Backoff
from ...runtime.protocol.frames import Op, envelope, error_from
from ..protocol.read_messages import (
    CREDIT_MAX,
    HEAD_BYTES,
    SegmentHead,
    Subscribe,
    Subscribed,
    encode_credit,
)

PREFERRED_PROXIES = 2
"""The readers of a log use this many of its proxies while they answer."""
BACKOFF_FIRST_S = 0.05
"""The approximate delay before a reader uses another proxy, so that not all readers of a failed proxy do at
once."""
SUBSCRIBE_TIMEOUT_S = 25.0
"""The time limit for the answer of one proxy, in seconds."""
STABLE_AFTER_S = 5.0
"""If a subscription lasted this long, its end is not related to earlier failures."""
WINDOW_BYTES_MAX = CREDIT_MAX // 4
WINDOW_BYTES_MIN = 64 * 1024


class ReadLinks:
    """The connections of a process to read proxies: one per proxy, for all its readers."""

    def __init__(
        self,
        endpoint: Endpoint,
        nursery: trio.Nursery,
        proxies_of: Callable[[str, str], Sequence[Address]],
        *,
        listener: str = "",
    ) -> None:
        """Create the connections.

        Args:
            endpoint: The endpoint that opens the connections.
            nursery: Runs the connections.
            proxies_of: Returns the read proxies for a namespace's path and a log's name, in the order to
                try them.
            listener: The name of the listener through which this process connects.
        """
        self.proxies_of = proxies_of
        self._endpoint = endpoint
        self._nursery = nursery
        self._listener = listener
        self._links: dict[Address, ReadLink] = {}
        self._pending_dials: dict[Address, trio.Event] = {}

    async def link_to(self, address: Address) -> "ReadLink":
        """Return the connection to a proxy.

        Raises:
            DistributedLogError: The connection failed.
        """
        while True:
            link = self._links.get(address)
            if link is not None and link.closed is None:
                return link
            pending_dial = self._pending_dials.get(address)
            if pending_dial is not None:
                await pending_dial.wait()
                link = self._links.get(address)
                if link is None or link.closed is not None:
                    raise ConnectionLost(
                        f"the read proxy at {address[0]}:{address[1]} is unreachable"
                    )
                continue
            self._pending_dials[address] = trio.Event()
            try:
                client_link = await self._endpoint.dial(
                    address, nursery=self._nursery, listener=self._listener, kind=PROXY
                )
                self._links[address] = ReadLink(client_link)
            finally:
                self._pending_dials.pop(address).set()


class ReadLink:
    """A connection to a read proxy, with the readers that are subscribed on it."""

    def __init__(self, link: ClientLink) -> None:
        self.link = link
        self._sources: dict[int, EntrySource] = {}
        link.subscribe(self._on_frame, on_closed=self._on_closed)

    @property
    def closed(self) -> DistributedLogError | None:
        """The error that ended the connection, or None."""
        return self.link.closed

    async def subscribe(self, source: "EntrySource", request: Subscribe) -> tuple[int, Subscribed]:
        """Subscribe and return the subscription's number and the answer.

        Entries may reach ``source`` before the answer.
        """
        pending = self.link.start_request(
            Op.SUBSCRIBE, request.encode(), timeout_s=SUBSCRIBE_TIMEOUT_S
        )
        self._sources[pending.ident] = source
        try:
            reply = await self.link.wait_reply(pending, SUBSCRIBE_TIMEOUT_S)
            return pending.ident, Subscribed.decode(reply.body)
        except BaseException:
            self.unsubscribe(pending.ident)
            raise

    def grant(self, ident: int, total: int) -> None:
        """Allow ``total`` bytes of entries since the start of the subscription."""
        body = encode_credit(total)
        self.link.send(envelope(Op.CREDIT, len(body), ident=ident), body)

    def unsubscribe(self, ident: int) -> None:
        """End a subscription. Idempotent."""
        if self._sources.pop(ident, None) is not None:
            self.link.send(envelope(Op.UNSUBSCRIBE, 0, ident=ident))

    def _on_frame(self, op: int, flags: int, status: int, ident: int, body: memoryview) -> None:
        source = self._sources.get(ident)
        if source is None:
            return  # already unsubscribed
        if op == Op.ENTRIES:
            source.on_entries(bytes(body))
        elif op == Op.SUBSCRIPTION_ENDED:
            del self._sources[ident]
            source.on_ended(error_from(status, body) if status else None)

    def _on_closed(self, reason: DistributedLogError) -> None:
        sources, self._sources = self._sources, {}
        lost = ConnectionLost(f"the connection to a read proxy ended: {reason}")
        for source in sources.values():
            source.on_lost(lost)


class EntrySource:
    """The subscription of one reader, at any proxy. Call `open`, then `run`."""

    def __init__(
        self,
        links: ReadLinks,
        request: Subscribe,
        options: LogOptions,
        meters: LogMeters,
        proxy_offset: int,
    ) -> None:
        """Create the source. Readers with different ``proxy_offset`` start at different proxies."""
        self._links = links
        self._request = request
        self._options = options
        self._meters = meters
        self._proxy_offset = proxy_offset
        self._jitter = proxy_offset % 1024 / 1024
        self._queue: EntryQueue | None = None
        self._link: ReadLink | None = None
        self._ident = 0
        self._early_bodies: list[bytes] | None = []
        """Bodies that arrived before the answer was processed; None afterwards."""
        self._next_entry = (0, 0)
        """The next entry: segment and entry."""
        self._is_proven = request.proven
        self._granted_bytes = self._received_bytes = 0
        """Bytes of ENTRIES of this subscription."""
        self._ended_event = trio.Event()
        self._end_error: DistributedLogError | None = None
        """Why the subscription ended. The reader may continue at another proxy."""
        self._has_progressed = False
        """Whether entries have arrived since the last failure."""
        self._proxies_tried = 0
        """The number of proxies that were tried."""
        self._early_end: tuple[DistributedLogError | None] | None = None
        """The end of the subscription, if it arrived before the answer was processed."""
        self._scope = trio.CancelScope()

    # --- opening ----------------------------------------------------------------------------------

    async def open(self) -> EntryQueue:
        """Subscribe for the first time, at any proxy that answers.

        Raises:
            DistributedLogError: A permanent error, or the last error after ``read_retry_s``.
        """
        backoff, started = Backoff(BACKOFF_FIRST_S), trio.current_time()
        while True:
            try:
                return await self._open_at(await self._next_link())
            except DistributedLogError as error:
                if not error.retryable:
                    raise
                if trio.current_time() - started > self._options.read_retry_s:
                    raise
            await trio.sleep(backoff.next_s(self._jitter))

    async def _open_at(self, link: ReadLink) -> EntryQueue:
        answer = await self._subscribe(link, self._request)
        request = self._request
        position = None
        if answer.sequence_id >= 0:
            position = Position(answer.incarnation, answer.start, answer.sequence_id)
        queue = self._queue = EntryQueue(
            answer.name,
            answer.incarnation,
            ReadRange(
                answer.start,
                position,
                request.txid,
                request.since_ms,
                answer.to,
                is_empty=answer.nothing,
            ),
            options=self._options,
            meters=self._meters,
        )
        queue.connect_source(
            last_response=self._last_response_at,
            stop=self._scope.cancel,
            on_capacity=self._grant_credit,
        )
        self._next_entry = answer.start[:2]
        self._process_early()
        return queue

    async def _next_link(self) -> ReadLink:
        request = self._request
        proxies = self._links.proxies_of(request.path, request.name)
        if not proxies:
            raise ConnectionLost(f'log "{request.name}": no read proxy is available')
        first = proxies[:PREFERRED_PROXIES]
        offset = self._proxy_offset % len(first)
        ordered_proxies = [*first[offset:], *first[:offset], *proxies[PREFERRED_PROXIES:]]
        proxy_index = self._proxies_tried % len(ordered_proxies)
        self._proxies_tried += 1
        return await self._links.link_to(ordered_proxies[proxy_index])

    async def _subscribe(self, link: ReadLink, request: Subscribe) -> Subscribed:
        self._early_bodies, self._end_error, self._ended_event = [], None, trio.Event()
        self._early_end = None  # of an earlier subscription whose answer was not processed
        self._received_bytes, self._granted_bytes = 0, self._window_bytes
        self._link = None  # a subscription number is valid on its connection only
        ident, answer = await link.subscribe(self, replace(request, credit=self._granted_bytes))
        self._link, self._ident = link, ident
        return answer

    # --- the task ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the reader subscribed until its end, an error, or its close. A task of the namespace."""
        queue = self._queue
        assert queue is not None, "`open` has succeeded"
        try:
            with self._scope, error_boundary(f'a reader of log "{queue.name}"', queue.end):
                await self._resubscribe_until_end(queue)
        finally:
            if self._link is not None:
                self._link.unsubscribe(self._ident)
            if not queue.ended:
                queue.end(AlreadyClosed(f'log "{queue.name}": the namespace was closed'))

    async def _resubscribe_until_end(self, queue: EntryQueue) -> None:
        backoff, failing_since = Backoff(BACKOFF_FIRST_S), trio.current_time()
        subscribed_at = -STABLE_AFTER_S
        while not queue.ended:
            await self._ended_event.wait()
            if queue.ended:
                return
            now = trio.current_time()
            if self._has_progressed or now - subscribed_at > STABLE_AFTER_S:
                backoff, failing_since = Backoff(BACKOFF_FIRST_S), now
                self._has_progressed = False
            if now - failing_since > self._options.read_retry_s:
                queue.end(self._end_error)
                return
            await trio.sleep(backoff.next_s(self._jitter))
            subscribed_at = trio.current_time()
            await self._resubscribe(queue)

    async def _resubscribe(self, queue: EntryQueue) -> None:
        """Subscribe at the next proxy. An error is handled by the caller's loop."""
        try:
            answer = await self._subscribe(await self._next_link(), self._resume_request(queue))
            if answer.incarnation != queue.incarnation or answer.start[:2] < self._next_entry:
                raise ProtocolError(f'log "{queue.name}": a read proxy starts at another position')
            self._next_entry = answer.start[:2]
            self._process_early()
        except DistributedLogError as error:
            if error.retryable or isinstance(error, ProtocolError):
                self._unsubscribe(error)
            else:
                queue.end(error)

    def _resume_request(self, queue: EntryQueue) -> Subscribe:
        """Return the request that continues the same log, even if the log was renamed."""
        slot = queue.start.slot if self._next_entry == queue.start[:2] else 0
        sequence_id = -1 if queue.next_sequence_id is None else queue.next_sequence_id + slot
        return Subscribe(
            self._request.path,
            queue.name,
            incarnation=queue.incarnation,
            resumes=True,
            dlsn=DLSN(*self._next_entry, slot),
            sequence_id=sequence_id,
            proven=self._is_proven,
        )

    # --- from the connection ----------------------------------------------------------------------

    def on_entries(self, body: bytes) -> None:
        """Process received entries in a callback of a shared connection. It raises nothing."""
        if self._early_bodies is not None:
            self._early_bodies.append(body)
        elif self._end_error is None:
            self._process_entries(body)

    def on_ended(self, error: DistributedLogError | None) -> None:
        """Process the end of the subscription, after all entries; None means that the log is sealed."""
        if self._early_bodies is not None:
            self._early_end = (error,)
            return
        queue = self._queue
        assert queue is not None, "the answer is processed"
        if error is None:
            queue.sealed = True
            queue.end()
        elif not error.retryable:
            queue.end(error)
        self._mark_ended(error)

    def on_lost(self, error: DistributedLogError) -> None:
        """Process the end of the connection."""
        self._mark_ended(error)

    def _mark_ended(self, error: DistributedLogError | None) -> None:
        self._end_error = self._end_error or error
        self._ended_event.set()

    def _process_early(self) -> None:
        """Process the entries and the end that arrived before the answer."""
        early_bodies, self._early_bodies = self._early_bodies, None
        for body in early_bodies or ():
            self.on_entries(body)
        if self._early_end is not None:
            (error,), self._early_end = self._early_end, None
            self.on_ended(error)

    def _process_entries(self, body: bytes) -> None:
        queue = self._queue
        assert queue is not None, "the answer is processed"
        self._received_bytes += len(body)
        queue.last_entry_at = trio.current_time()
        try:
            head = SegmentHead.decode(body)
            for record in records(memoryview(body)[HEAD_BYTES:]):
                if queue.ended:
                    break
                entry_address = (head.segment, record.entry - head.base_entry)
                if entry_address < self._next_entry or entry_address[1] < 0:
                    raise ProtocolError(
                        f'log "{queue.name}": a read proxy sent entry {entry_address}, expected '
                        f"{self._next_entry}"
                    )
                header = decode_header(record.payload)
                origin = head.origin(entry_address[1], header)
                queue.add_entry(decode_columns(record.payload, header, origin, queue.name))
                self._next_entry = (entry_address[0], entry_address[1] + 1)
                self._has_progressed = self._is_proven = True
        except (ProtocolError, CorruptData) as error:  # another proxy may send valid entries
            self._unsubscribe(error)
        except DistributedLogError as error:
            queue.end(error)
        except Exception as error:  # this is a callback of a connection that other readers share
            queue.end(to_internal_error(f'a reader of log "{queue.name}"', error))
        if queue.ended:
            self._mark_ended(None)
        elif not queue.entries:
            self._grant_credit()  # no reader will consume the entries that were cut off

    def _unsubscribe(self, error: DistributedLogError) -> None:
        if self._link is not None:
            self._link.unsubscribe(self._ident)
        self._mark_ended(error)

    # --- credit -----------------------------------------------------------------------------------

    @property
    def _window_bytes(self) -> int:
        wanted_bytes = (
            self._options.read_ahead_bytes if self._queue is None else self._queue.bytes_max
        )
        return max(WINDOW_BYTES_MIN, min(wanted_bytes, WINDOW_BYTES_MAX))

    def _grant_credit(self) -> None:
        """Allow more bytes if at least half of the window is free."""
        queue, window = self._queue, self._window_bytes
        assert queue is not None, "the answer is processed"
        total = self._received_bytes + window - min(queue.buffered_bytes, window)
        if (
            2 * (total - self._granted_bytes) >= window
            and self._link is not None
            and not queue.ended
        ):
            self._granted_bytes = total
            self._link.grant(self._ident, total)

    def _last_response_at(self) -> float:
        queue = self._queue
        assert queue is not None, "the source has a queue"
        return queue.last_entry_at if self._link is None else max(0.0, self._link.link.received_at)


async def open_proxied_reader(
    links: ReadLinks,
    request: Subscribe,
    *,
    options: LogOptions,
    meters: LogMeters,
    proxy_offset: int,
    start: Callable[[Callable[[], Awaitable[None]]], None],
    idle_error_s: float | None = None,
) -> LogReader:
    """Open a reader through read proxies. ``start`` runs its task. Raises as `Log.open_reader`."""
    source = EntrySource(links, request, options, meters, proxy_offset)
    queue = await source.open()
    start(source.run)
    return LogReader(queue, idle_error_s)
