"""What fills a reader's queue from a read proxy: a subscription, and another one elsewhere when that ends.

The reader holds its place, not the proxy: (segment, entry) of what comes next. After whatever ended a
subscription it subscribes there anew, at the next proxy of the log's order; so there is no gap and nothing
twice. Digests and sequence ids are checked here: what a proxy changed or left out is not given.
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
"""A log's readers use so many of its proxies while those answer."""
BACKOFF_FIRST_S = 0.05
"""About so long a reader waits before it goes to another proxy: not all of a dead one's at once."""
SUBSCRIBE_TIMEOUT_S = 25.0
"""For the answer of one proxy."""
STABLE_AFTER_S = 5.0
"""A subscription that lasted so long ended for a new reason."""
WINDOW_BYTES_MAX = CREDIT_MAX // 4
WINDOW_BYTES_MIN = 64 * 1024


class ReadLinks:
    """The connections of a process to read proxies: one each, for all its readers."""

    def __init__(
        self,
        endpoint: Endpoint,
        nursery: trio.Nursery,
        proxies_of: Callable[[str, str], Sequence[Address]],
        *,
        listener: str = "",
    ) -> None:
        """``proxies_of`` a namespace's path and a log's name: read proxies, those to be asked first first."""
        self.proxies_of = proxies_of
        self._endpoint = endpoint
        self._nursery = nursery
        self._listener = listener
        self._links: dict[Address, ReadLink] = {}
        self._pending_dials: dict[Address, trio.Event] = {}

    async def link_to(self, address: Address) -> "ReadLink":
        """The connection to a proxy. Raises what keeps it from being made."""
        while True:
            link = self._links.get(address)
            if link is not None and link.closed is None:
                return link
            pending_dial = self._pending_dials.get(address)
            if pending_dial is not None:
                await pending_dial.wait()
                link = self._links.get(address)
                if link is None or link.closed is not None:
                    raise ConnectionLost(f"the read proxy at {address[0]}:{address[1]} is away")
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
    """A connection to a read proxy, and the readers that are subscribed over it."""

    def __init__(self, link: ClientLink) -> None:
        self.link = link
        self._sources: dict[int, EntrySource] = {}
        link.subscribe(self._on_frame, on_closed=self._on_closed)

    @property
    def closed(self) -> DistributedLogError | None:
        """What ended it."""
        return self.link.closed

    async def subscribe(self, source: "EntrySource", request: Subscribe) -> tuple[int, Subscribed]:
        """The subscription's number, and the answer. What it sends may come to ``source`` before that."""
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
        """So many bytes may come in all."""
        body = encode_credit(total)
        self.link.send(envelope(Op.CREDIT, len(body), ident=ident), body)

    def unsubscribe(self, ident: int) -> None:
        """Nothing more is wanted. Idempotent."""
        if self._sources.pop(ident, None) is not None:
            self.link.send(envelope(Op.UNSUBSCRIBE, 0, ident=ident))

    def _on_frame(self, op: int, flags: int, status: int, ident: int, body: memoryview) -> None:
        source = self._sources.get(ident)
        if source is None:
            return  # left meanwhile
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
    """A reader's subscription, wherever it is. `open` it, then `run` it."""

    def __init__(
        self,
        links: ReadLinks,
        request: Subscribe,
        options: LogOptions,
        meters: LogMeters,
        proxy_offset: int,
    ) -> None:
        """``turn``: any number; readers with different ones ask different proxies first."""
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
        """What came before the answer was read; None: that was."""
        self._next_entry = (0, 0)
        """What comes next."""
        self._is_proven = request.proven
        self._granted_bytes = self._received_bytes = 0
        """Bytes of ENTRIES of this subscription."""
        self._ended_event = trio.Event()
        self._end_error: DistributedLogError | None = None
        """Why the subscription is over; the reader may go on elsewhere."""
        self._has_progressed = False
        """Has anything come since the last trouble?"""
        self._proxies_tried = 0
        """How many proxies were asked."""
        self._early_end: tuple[DistributedLogError | None] | None = None
        """The end, if it came before the answer was read."""
        self._scope = trio.CancelScope()

    # --- opening ----------------------------------------------------------------------------------

    async def open(self) -> EntryQueue:
        """Subscribe for the first time, at whichever proxy answers. Raises what the log's state says."""
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
            raise ConnectionLost(f'log "{request.name}": no read proxy is known')
        first = proxies[:PREFERRED_PROXIES]
        offset = self._proxy_offset % len(first)
        ordered_proxies = [*first[offset:], *first[:offset], *proxies[PREFERRED_PROXIES:]]
        proxy_index = self._proxies_tried % len(ordered_proxies)
        self._proxies_tried += 1
        return await self._links.link_to(ordered_proxies[proxy_index])

    async def _subscribe(self, link: ReadLink, request: Subscribe) -> Subscribed:
        self._early_bodies, self._end_error, self._ended_event = [], None, trio.Event()
        self._early_end = None  # of one before, whose answer was never read
        self._received_bytes, self._granted_bytes = 0, self._window_bytes
        self._link = None  # a number of one connection is another one's on another
        ident, answer = await link.subscribe(self, replace(request, credit=self._granted_bytes))
        self._link, self._ident = link, ident
        return answer

    # --- the task ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the end, an error, or the reader is closed. A task of the namespace."""
        queue = self._queue
        assert queue is not None, "it was opened"
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
        """Go on at the next proxy; what keeps it from that is known after."""
        try:
            answer = await self._subscribe(await self._next_link(), self._resume_request(queue))
            if answer.incarnation != queue.incarnation or answer.start[:2] < self._next_entry:
                raise ProtocolError(f'log "{queue.name}": a read proxy begins elsewhere')
            self._next_entry = answer.start[:2]
            self._process_early()
        except DistributedLogError as error:
            if error.retryable or isinstance(error, ProtocolError):
                self._unsubscribe(error)
            else:
                queue.end(error)

    def _resume_request(self, queue: EntryQueue) -> Subscribe:
        """Where it goes on, with the same log, whatever that is called by now."""
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
        """Entries came. In a call of a connection that other readers share: raises nothing."""
        if self._early_bodies is not None:
            self._early_bodies.append(body)
        elif self._end_error is None:
            self._process_entries(body)

    def on_ended(self, error: DistributedLogError | None) -> None:
        """Everything was sent; None: the log is sealed."""
        if self._early_bodies is not None:
            self._early_end = (error,)
            return
        queue = self._queue
        assert queue is not None, "the answer was read"
        if error is None:
            queue.sealed = True
            queue.end()
        elif not error.retryable:
            queue.end(error)
        self._mark_ended(error)

    def on_lost(self, error: DistributedLogError) -> None:
        """The connection ended."""
        self._mark_ended(error)

    def _mark_ended(self, error: DistributedLogError | None) -> None:
        self._end_error = self._end_error or error
        self._ended_event.set()

    def _process_early(self) -> None:
        """The answer was read: take what came before."""
        early_bodies, self._early_bodies = self._early_bodies, None
        for body in early_bodies or ():
            self.on_entries(body)
        if self._early_end is not None:
            (error,), self._early_end = self._early_end, None
            self.on_ended(error)

    def _process_entries(self, body: bytes) -> None:
        queue = self._queue
        assert queue is not None, "the answer was read"
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
                        f'log "{queue.name}": a read proxy sent entry {entry_address}, wanted was '
                        f"{self._next_entry}"
                    )
                header = decode_header(record.payload)
                origin = head.origin(entry_address[1], header)
                queue.add_entry(decode_columns(record.payload, header, origin, queue.name))
                self._next_entry = (entry_address[0], entry_address[1] + 1)
                self._has_progressed = self._is_proven = True
        except (ProtocolError, CorruptData) as error:  # another proxy may do better
            self._unsubscribe(error)
        except DistributedLogError as error:
            queue.end(error)
        except Exception as error:  # this is a call of a connection that other readers share
            queue.end(to_internal_error(f'a reader of log "{queue.name}"', error))
        if queue.ended:
            self._mark_ended(None)
        elif not queue.entries:
            self._grant_credit()  # nobody will take what was cut off

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
        """Half of what may be on its way or here is free: more may come."""
        queue, window = self._queue, self._window_bytes
        assert queue is not None, "the answer was read"
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
        assert queue is not None, "it is its source"
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
    """A reader through read proxies; ``start`` runs its task. Raises as `Log.open_reader`."""
    source = EntrySource(links, request, options, meters, proxy_offset)
    queue = await source.open()
    start(source.run)
    return LogReader(queue, idle_error_s)
