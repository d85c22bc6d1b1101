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
from ...log.format.record import decode, decode_header
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

SPREAD = 2
"""A log's readers use so many of its proxies while those answer."""
FIRST_S = 0.05
"""About so long a reader waits before it goes to another proxy: not all of a dead one's at once."""
SUBSCRIBE_S = 25.0
"""For the answer of one proxy."""
LIVED_S = 5.0
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
        self._dialling: dict[Address, trio.Event] = {}

    async def link_to(self, address: Address) -> "ReadLink":
        """The connection to a proxy. Raises what keeps it from being made."""
        while True:
            link = self._links.get(address)
            if link is not None and link.closed is None:
                return link
            dialling = self._dialling.get(address)
            if dialling is not None:
                await dialling.wait()
                link = self._links.get(address)
                if link is None or link.closed is not None:
                    raise ConnectionLost(f"the read proxy at {address[0]}:{address[1]} is away")
                continue
            self._dialling[address] = trio.Event()
            try:
                dialled = await self._endpoint.dial(
                    address, nursery=self._nursery, listener=self._listener, kind=PROXY
                )
                self._links[address] = ReadLink(dialled)
            finally:
                self._dialling.pop(address).set()


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

    async def subscribe(self, source: "EntrySource", ask: Subscribe) -> tuple[int, Subscribed]:
        """The subscription's number, and the answer. What it sends may come to ``source`` before that."""
        pending = self.link.begin(Op.SUBSCRIBE, ask.encode(), timeout_s=SUBSCRIBE_S)
        self._sources[pending.ident] = source
        try:
            reply = await self.link.finish(pending, SUBSCRIBE_S)
            return pending.ident, Subscribed.decode(reply.body)
        except BaseException:
            self.leave(pending.ident)
            raise

    def grant(self, ident: int, total: int) -> None:
        """So many bytes may come in all."""
        body = encode_credit(total)
        self.link.send(envelope(Op.CREDIT, len(body), ident=ident), body)

    def leave(self, ident: int) -> None:
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
        self, links: ReadLinks, ask: Subscribe, options: LogOptions, meters: LogMeters, turn: int
    ) -> None:
        """``turn``: any number; readers with different ones ask different proxies first."""
        self._links = links
        self._ask = ask
        self._options = options
        self._meters = meters
        self._turn = turn
        self._draw = turn % 1024 / 1024
        self._out: EntryQueue | None = None
        self._link: ReadLink | None = None
        self._ident = 0
        self._early: list[bytes] | None = []
        """What came before the answer was read; None: that was."""
        self._at = (0, 0)
        """What comes next."""
        self._proven = ask.proven
        self._granted = self._received = 0
        """Bytes of ENTRIES of this subscription."""
        self._over = trio.Event()
        self._lost: DistributedLogError | None = None
        """Why the subscription is over; the reader may go on elsewhere."""
        self._moved = False
        """Has anything come since the last trouble?"""
        self._tried = 0
        """How many proxies were asked."""
        self._early_end: tuple[DistributedLogError | None] | None = None
        """The end, if it came before the answer was read."""
        self._scope = trio.CancelScope()

    # --- opening ----------------------------------------------------------------------------------

    async def open(self) -> EntryQueue:
        """Subscribe for the first time, at whichever proxy answers. Raises what the log's state says."""
        backoff, began = Backoff(FIRST_S), trio.current_time()
        while True:
            try:
                return await self._open_at(await self._next_link())
            except DistributedLogError as error:
                if not error.retryable:
                    raise
                if trio.current_time() - began > self._options.read_retry_s:
                    raise
            await trio.sleep(backoff.next_s(self._draw))

    async def _open_at(self, link: ReadLink) -> EntryQueue:
        answer = await self._subscribe(link, self._ask)
        ask = self._ask
        position = None
        if answer.sequence_id >= 0:
            position = Position(answer.incarnation, answer.start, answer.sequence_id)
        out = self._out = EntryQueue(
            answer.name,
            answer.incarnation,
            ReadRange(
                answer.start, position, ask.txid, ask.since_ms, answer.to, is_empty=answer.nothing
            ),
            options=self._options,
            meters=self._meters,
        )
        out.connect_source(heard=self._heard, stop=self._scope.cancel, on_room=self._grant)
        self._at = answer.start[:2]
        self._take_early()
        return out

    async def _next_link(self) -> ReadLink:
        ask = self._ask
        proxies = self._links.proxies_of(ask.path, ask.name)
        if not proxies:
            raise ConnectionLost(f'log "{ask.name}": no read proxy is known')
        first = proxies[:SPREAD]
        at = self._turn % len(first)
        order = [*first[at:], *first[:at], *proxies[SPREAD:]]
        tried = self._tried % len(order)
        self._tried += 1
        return await self._links.link_to(order[tried])

    async def _subscribe(self, link: ReadLink, ask: Subscribe) -> Subscribed:
        self._early, self._lost, self._over = [], None, trio.Event()
        self._early_end = None  # of one before, whose answer was never read
        self._received, self._granted = 0, self._window
        self._link = None  # a number of one connection is another one's on another
        ident, answer = await link.subscribe(self, replace(ask, credit=self._granted))
        self._link, self._ident = link, ident
        return answer

    # --- the task ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the end, an error, or the reader is closed. A task of the namespace."""
        out = self._out
        assert out is not None, "it was opened"
        try:
            with self._scope, error_boundary(f'a reader of log "{out.name}"', out.end):
                await self._follow(out)
        finally:
            if self._link is not None:
                self._link.leave(self._ident)
            if not out.ended:
                out.end(AlreadyClosed(f'log "{out.name}": the namespace was closed'))

    async def _follow(self, out: EntryQueue) -> None:
        backoff, trouble_since = Backoff(FIRST_S), trio.current_time()
        subscribed_at = -LIVED_S
        while not out.ended:
            await self._over.wait()
            if out.ended:
                return
            now = trio.current_time()
            if self._moved or now - subscribed_at > LIVED_S:
                backoff, trouble_since = Backoff(FIRST_S), now
                self._moved = False
            if now - trouble_since > self._options.read_retry_s:
                out.end(self._lost)
                return
            await trio.sleep(backoff.next_s(self._draw))
            subscribed_at = trio.current_time()
            await self._resubscribe(out)

    async def _resubscribe(self, out: EntryQueue) -> None:
        """Go on at the next proxy; what keeps it from that is known after."""
        try:
            answer = await self._subscribe(await self._next_link(), self._resumption(out))
            if answer.incarnation != out.incarnation or answer.start[:2] < self._at:
                raise ProtocolError(f'log "{out.name}": a read proxy begins elsewhere')
            self._at = answer.start[:2]
            self._take_early()
        except DistributedLogError as error:
            if error.retryable or isinstance(error, ProtocolError):
                self._drop(error)
            else:
                out.end(error)

    def _resumption(self, out: EntryQueue) -> Subscribe:
        """Where it goes on, with the same log, whatever that is called by now."""
        slot = out.start.slot if self._at == out.start[:2] else 0
        sequence_id = -1 if out.next_id is None else out.next_id + slot
        return Subscribe(
            self._ask.path,
            out.name,
            incarnation=out.incarnation,
            resumes=True,
            dlsn=DLSN(*self._at, slot),
            sequence_id=sequence_id,
            proven=self._proven,
        )

    # --- from the connection ----------------------------------------------------------------------

    def on_entries(self, body: bytes) -> None:
        """Entries came. In a call of a connection that other readers share: raises nothing."""
        if self._early is not None:
            self._early.append(body)
        elif self._lost is None:
            self._take(body)

    def on_ended(self, error: DistributedLogError | None) -> None:
        """Everything was sent; None: the log is sealed."""
        if self._early is not None:
            self._early_end = (error,)
            return
        out = self._out
        assert out is not None, "the answer was read"
        if error is None:
            out.sealed = True
            out.end()
        elif not error.retryable:
            out.end(error)
        self._leave(error)

    def on_lost(self, error: DistributedLogError) -> None:
        """The connection ended."""
        self._leave(error)

    def _leave(self, error: DistributedLogError | None) -> None:
        self._lost = self._lost or error
        self._over.set()

    def _take_early(self) -> None:
        """The answer was read: take what came before."""
        early, self._early = self._early, None
        for body in early or ():
            self.on_entries(body)
        if self._early_end is not None:
            (error,), self._early_end = self._early_end, None
            self.on_ended(error)

    def _take(self, body: bytes) -> None:
        out = self._out
        assert out is not None, "the answer was read"
        self._received += len(body)
        out.entry_at = trio.current_time()
        try:
            head = SegmentHead.decode(body)
            for record in records(memoryview(body)[HEAD_BYTES:]):
                if out.ended:
                    break
                place = (head.segment, record.entry - head.base_entry)
                if place < self._at or place[1] < 0:
                    raise ProtocolError(
                        f'log "{out.name}": a read proxy sent entry {place}, wanted was {self._at}'
                    )
                header = decode_header(record.payload)
                origin = head.origin(place[1], header)
                out.give(decode(record.payload, header, origin, out.name))
                self._at = (place[0], place[1] + 1)
                self._moved = self._proven = True
        except (ProtocolError, CorruptData) as error:  # another proxy may do better
            self._drop(error)
        except DistributedLogError as error:
            out.end(error)
        except Exception as error:  # this is a call of a connection that other readers share
            out.end(to_internal_error(f'a reader of log "{out.name}"', error))
        if out.ended:
            self._leave(None)
        elif not out.entries:
            self._grant()  # nobody will take what was cut off

    def _drop(self, error: DistributedLogError) -> None:
        if self._link is not None:
            self._link.leave(self._ident)
        self._leave(error)

    # --- credit -----------------------------------------------------------------------------------

    @property
    def _window(self) -> int:
        wanted = self._options.read_ahead_bytes if self._out is None else self._out.bytes_max
        return max(WINDOW_BYTES_MIN, min(wanted, WINDOW_BYTES_MAX))

    def _grant(self) -> None:
        """Half of what may be on its way or here is free: more may come."""
        out, window = self._out, self._window
        assert out is not None, "the answer was read"
        total = self._received + window - min(out.bytes, window)
        if 2 * (total - self._granted) >= window and self._link is not None and not out.ended:
            self._granted = total
            self._link.grant(self._ident, total)

    def _heard(self) -> float:
        out = self._out
        assert out is not None, "it is its source"
        return out.entry_at if self._link is None else max(0.0, self._link.link.received_at)


async def open_proxied_reader(
    links: ReadLinks,
    ask: Subscribe,
    *,
    options: LogOptions,
    meters: LogMeters,
    turn: int,
    start: Callable[[Callable[[], Awaitable[None]]], None],
    idle_error_s: float | None = None,
) -> LogReader:
    """A reader through read proxies; ``start`` runs its task. Raises as `Log.open_reader`."""
    source = EntrySource(links, ask, options, meters, turn)
    out = await source.open()
    start(source.run)
    return LogReader(out, idle_error_s)
