"""A client's side of the proxies: one connection to each that it needs, who there is, who has which log.

It knows the addresses of a URI, then all proxies, as any one of them tells and goes on telling. A stream to a
log is asked for at who had the log last, else at the first proxy in the log's order (`rendezvous_hash.py`);
who has not got the log says who has. One that is not reached is named to the next one as the suspect, who
looks himself.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from ...runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    Moved,
    NotAuthenticated,
    OutcomeUnknown,
    ProtocolError,
    QuorumUnreachable,
    RequestTimeout,
    WrongPeer,
)
from ...runtime.interfaces.host import Address
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.interfaces.principals import PROXY
from ...runtime.net.client_link import ClientLink, Reply
from ...runtime.net.rpc import Endpoint
from ...runtime.primitives.backoff import Backoff
from ...runtime.protocol.frames import Op, envelope
from ...runtime.protocol.schema import Form
from ..membership.proxy_registration import READ, WRITE
from ..membership.rendezvous_hash import order
from ..protocol.proxy_messages import (
    Ack,
    LogCall,
    MemberRow,
    ProduceOpen,
    ProduceOpened,
    Refusal,
    about_stream,
    decode_acks,
    decode_answer,
    decode_members,
)

PAUSE_FIRST_S = 0.05
PAUSE_LONGEST_S = 2.0
DIAL_S = 2.0
ANSWER_S = 15.0
"""A proxy waits 10 s for a log that another one has."""
ALIVE_S = 1.0
PING_S = 0.5
"""An opening that is not answered within the first: the proxy is asked whether it lives, and has the second
to say so. Else another one is asked."""
CALL_S = 130.0
SWEEP_S = 0.5
GATHERED_BYTES_MAX = 64 * 1024
OWNERS_MAX = 10_000
"""Logs of which it is known who has them."""
AGAIN = {"exists", "page", "truncate", "seal", "describe", "settings", "find", "count"}
"""Calls that may be made twice."""

log = get_logger("distributedlog.proxy")


@dataclass(frozen=True, slots=True, eq=False)
class StreamEnd:
    """Who sends on a stream, as its connection sees it. Nothing of it may wait."""

    on_ack: Callable[[Ack], None]
    """A frame is stored. Raises `ProtocolError` where it is not the one that is waited for."""
    on_refused: Callable[[Refusal], None]
    """The last word on this stream."""
    on_lost: Callable[[DistributedLogError], None]
    """The connection has ended."""
    on_sweep: Callable[[float], None]
    """Called now and then, with the time, while the stream is open: is an answer late?"""


class ProxyLink:
    """A connection to one proxy, and the streams on it by number."""

    def __init__(self, link: ClientLink, proxy_id: str) -> None:
        self.link = link
        self.proxy_id = proxy_id
        self.streams: dict[int, StreamEnd] = {}
        self._highest = 0
        self._frames: list[bytes] = []
        """Of streams that are busy together: they leave as one, with the connection's turn."""
        self._frames_bytes = 0
        link.subscribe(self._on_frame, on_turn=self._send_frames, on_closed=self._on_closed)

    def enter(self, end: StreamEnd) -> int:
        """A number for a new stream; what comes for it goes to ``end`` from now on."""
        self._highest += 1
        self.streams[self._highest] = end
        return self._highest

    def leave(self, number: int) -> None:
        """Nobody sends on it any more. Idempotent."""
        self.streams.pop(number, None)

    def close(self, number: int) -> None:
        """As `leave`, and the proxy is told."""
        self.tell(about_stream(Op.PRODUCE_CLOSE, number))
        self.leave(number)

    def produce(self, frame: bytes) -> None:
        """Send records of a stream. On an idle connection they go at once."""
        link = self.link
        if not link.gathers:
            link.send(frame)
            return
        if not self._frames:
            link.soon()
        self._frames.append(frame)
        self._frames_bytes += len(frame)
        if self._frames_bytes >= GATHERED_BYTES_MAX:  # the link counts what a slow peer leaves
            self._send_frames()

    def tell(self, about: bytes) -> None:
        """Send something about a stream, after its records."""
        self._send_frames()
        self.link.send(about)

    def _send_frames(self) -> None:
        if self._frames:
            frames, self._frames, self._frames_bytes = self._frames, [], 0
            self.link.send(b"".join(frames))

    def _on_frame(self, op: int, flags: int, status: int, ident: int, body: memoryview) -> None:
        if op == Op.PRODUCE_ACKS:
            streams = self.streams
            for ack in decode_acks(body):
                end = streams.get(ack.stream)
                if end is not None:
                    end.on_ack(ack)
        elif op == Op.PRODUCE_REFUSED:
            end = self.streams.pop(ident, None)
            if end is not None:
                end.on_refused(Refusal.decode(status, body))

    def _on_closed(self, reason: DistributedLogError) -> None:
        streams, self.streams = self.streams, {}
        for end in streams.values():
            end.on_lost(reason)


@dataclass(frozen=True, slots=True)
class ProxyStream:
    """A stream that was opened."""

    proxy: ProxyLink
    number: int
    opened: ProduceOpened

    @property
    def ended(self) -> bool:
        """Was it refused since, or its connection lost? That may come before whoever opened it looks."""
        return self.proxy.link.closed is not None or self.number not in self.proxy.streams

    def close(self) -> None:
        """Nobody sends on it any more, and its proxy is told."""
        self.proxy.close(self.number)


@dataclass(slots=True)
class _Dialling:
    """A connection that is being made; whoever needs it meanwhile waits for the same."""

    done: trio.Event = field(default_factory=trio.Event)
    error: DistributedLogError | None = None


class ProxyClient:
    """See the module. `run` must be running."""

    def __init__(
        self, endpoint: Endpoint, addresses: Sequence[Address], *, timeout_s: float = 30.0
    ) -> None:
        self.endpoint = endpoint
        self.cluster_id = ""
        self._addresses = tuple(addresses)
        self._timeout_s = timeout_s
        self._members: dict[str, MemberRow] = {}
        self._changed = trio.Event()
        self._refused: NotAuthenticated | None = None
        """What a proxy said of who we are, before any of them told anything."""
        self._links: dict[str, ProxyLink] = {}
        self._dialling: dict[str, _Dialling] = {}
        self._owners: dict[tuple[str, str], str] = {}
        self._nursery: trio.Nursery | None = None

    # --- for many writers -------------------------------------------------------------------------

    def gather(self) -> None:
        """Many writers are about to send: what they send leaves with `send_gathered`."""
        for proxy in self._links.values():
            proxy.link.gather()

    def send_gathered(self) -> None:
        """Send it."""
        for proxy in self._links.values():
            proxy.link.send_gathered()

    # --- who there is -----------------------------------------------------------------------------

    def writers(self, path: str, name: str) -> list[MemberRow]:
        """The write proxies in the order of a log: those that take no new logs last."""
        return self._in_order(WRITE, path, name)

    def readers_of(self, path: str, name: str) -> list[Address]:
        """Where the read proxies are, in the order of a log."""
        return [(one.host, one.port) for one in self._in_order(READ, path, name)]

    def _in_order(self, kind: str, path: str, name: str) -> list[MemberRow]:
        ids = order(path, name, [one.id for one in self._members.values() if one.kind == kind])
        found = [self._members[one] for one in ids]
        return sorted(found, key=lambda one: not one.accepting)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow who there is, until cancelled. Started when that was told once.

        Raises `NotAuthenticated` where none of those that answer at first takes who we are, and
        `QuorumUnreachable`, naming the addresses, where none answers.
        """
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._sweep)
            told = trio.Event()
            self._nursery.start_soon(self._follow, told)
            failure = await self._first_told(told)
            if failure is None:
                task_status.started()
            else:
                self._nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure  # the nursery would wrap it

    async def _first_told(self, told: trio.Event) -> DistributedLogError | None:
        with trio.move_on_after(self._timeout_s):
            await told.wait()
            return self._refused
        places = ", ".join(f"{host}:{port}" for host, port in self._addresses)
        return QuorumUnreachable(f"no proxy answered at {places} within {self._timeout_s:g} s")

    async def _follow(self, told: trio.Event) -> None:
        """Hear from one proxy after another who there is."""
        backoff = Backoff(PAUSE_FIRST_S, PAUSE_LONGEST_S)
        chance = self.endpoint.host.random
        while True:
            known = [(one.host, one.port) for one in self._members.values()]
            places = list(dict.fromkeys([*self._addresses, *known]))
            chance.shuffle(places)
            refused: NotAuthenticated | None = None
            for place in places:
                ended = trio.Event()
                try:
                    link = await self._dial(place)
                except DistributedLogError as error:
                    log.debug("proxy %s:%d: %s", *place, error)
                    if isinstance(error, NotAuthenticated):
                        refused = error
                    continue

                def on_reply(
                    reply: Reply | DistributedLogError,
                    link: ClientLink = link,
                    ended: trio.Event = ended,
                ) -> None:
                    if isinstance(reply, DistributedLogError):
                        ended.set()
                        return
                    try:
                        rows = decode_members(reply.body)
                    except ProtocolError as error:
                        link.close(error)
                        return
                    self._members = {one.id: one for one in rows}
                    self._changed.set()
                    self._changed = trio.Event()
                    backoff.reset()
                    told.set()

                try:
                    link.stand(Op.MEMBERS, timeout_s=ANSWER_S, on_reply=on_reply)
                    await ended.wait()
                except DistributedLogError as error:
                    log.debug("proxy %s:%d: %s", *place, error)
            if refused is not None and not told.is_set():
                self._refused = refused  # the same credentials meet the same answer
                told.set()
            await trio.sleep(backoff.next_s(chance.random()))

    async def _dial(self, place: Address, expected: str = "") -> ClientLink:
        assert self._nursery is not None, "asked while it runs"
        with trio.move_on_after(DIAL_S):
            link = await self.endpoint.dial(
                place, nursery=self._nursery, expected_node_id=expected, kind=PROXY
            )
            self.cluster_id = self.cluster_id or link.peer.cluster_id
            return link
        raise ConnectionLost(f"{place[0]}:{place[1]} did not answer within {DIAL_S:g} s")

    async def _linked(self, one: MemberRow) -> ProxyLink:
        """The connection to a proxy. Raises `ConnectionLost`, and others of a handshake."""
        while True:
            found = self._links.get(one.id)
            if found is not None and found.link.closed is None:
                return found
            dialling = self._dialling.get(one.id)
            if dialling is None:
                break
            await dialling.done.wait()
            if (
                dialling.error is not None
            ):  # who hangs costs all who wait one dial, and not each of them
                raise dialling.error.again()
        dialling = self._dialling[one.id] = _Dialling()
        try:
            link = await self._dial((one.host, one.port), one.id)
            found = self._links[one.id] = ProxyLink(link, one.id)
            return found
        except DistributedLogError as error:
            dialling.error = error
            raise
        finally:  # whoever waits dials himself where this one was cancelled
            del self._dialling[one.id]
            dialling.done.set()

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP_S)
            now = trio.current_time()
            for proxy_id, proxy in list(self._links.items()):
                if proxy.link.closed is not None:
                    del self._links[proxy_id]
                for end in list(proxy.streams.values()):
                    end.on_sweep(now)

    # --- streams ----------------------------------------------------------------------------------

    async def open_stream(
        self,
        request: Callable[[int, str], ProduceOpen],
        path: str,
        name: str,
        end: StreamEnd,
        *,
        deadline: float,
        pause_s: float = 0.0,
    ) -> ProxyStream:
        """Open a stream at who has the log, or takes it. ``request``: of a stream's number and a suspect.

        ``pause_s``: before the first question. Raises what a proxy refuses for good; by the deadline what
        stood in the way last.
        """
        chance = self.endpoint.host.random
        if pause_s:
            await trio.sleep(pause_s)

        async def ask(one: MemberRow, suspect: str) -> ProxyStream:
            return await self._ask_for(one, request, end, suspect)

        found: ProxyStream = await self._routed(path, name, ask, deadline, chance.random)
        return found

    async def _ask_for(
        self,
        one: MemberRow,
        request: Callable[[int, str], ProduceOpen],
        end: StreamEnd,
        suspect: str,
    ) -> ProxyStream:
        proxy = await self._linked(one)
        number = proxy.enter(end)
        try:
            body = request(number, suspect).encode()
            reply = await _answered(proxy.link, body)
            opened = ProduceOpened.decode(reply.body)
        except BaseException:
            proxy.close(number)  # it may be opened all the same, later
            raise
        return ProxyStream(proxy, number, opened)

    async def probe(
        self,
        request: Callable[[int, str], ProduceOpen],
        path: str,
        name: str,
        end: StreamEnd,
        owner: str,
    ) -> ProxyStream | None:
        """Ask another proxy for a log whose owner does not answer; None: it is the owner's still."""
        for one in self.writers(path, name):
            if one.id == owner or not one.accepting:
                continue
            try:
                found = await self._ask_for(one, request, end, owner)
                self._note_owner(path, name, one.id)
                return found
            except DistributedLogError as error:
                log.debug("asked %s for log %s, which %s has: %s", one.id, name, owner, error)
                if not isinstance(error, ConnectionLost | WrongPeer):
                    return None
        return None

    def owner(self, path: str, name: str) -> str:
        """Who had the log last; "": that is not known."""
        return self._owners.get((path, name), "")

    def note_owner(self, path: str, name: str, proxy_id: str) -> None:
        """Who is to be asked first; "": whoever is first in its order."""
        self._note_owner(path, name, proxy_id)

    def _note_owner(self, path: str, name: str, proxy_id: str) -> None:
        self._owners.pop((path, name), None)
        if proxy_id:
            self._owners[path, name] = proxy_id
            if len(self._owners) > OWNERS_MAX:
                del self._owners[next(iter(self._owners))]

    async def _routed(
        self,
        path: str,
        name: str,
        ask: Callable[[MemberRow, str], Awaitable[Any]],
        deadline: float,
        draw: Callable[[], float],
    ) -> Any:
        """Ask who has a log, or should, until somebody answers; each proxy once before a pause.

        Raises what is no matter of who or when; by the deadline what stood in the way last.
        """
        backoff = Backoff(PAUSE_FIRST_S, PAUSE_LONGEST_S)
        asked: set[str] = set()
        suspect, failed = "", DistributedLogError()
        while True:
            target = self._owners.get((path, name), "")
            one = self._members.get(target) if target not in asked else None
            if one is None:
                one = next((w for w in self.writers(path, name) if w.id not in asked), None)
            if one is None:
                if not asked:
                    failed = QuorumUnreachable(f"no write proxy is there that could write {name}")
                pause_s = backoff.next_s(draw())
                if trio.current_time() + pause_s >= deadline:
                    raise failed
                with trio.move_on_after(pause_s):
                    await self._changed.wait()
                asked.clear()
                continue
            asked.add(one.id)
            try:
                answer = await ask(one, suspect)
            except Moved as error:
                failed = error
                if error.detail != one.id:
                    self._note_owner(path, name, error.detail)
                if error.detail in asked:
                    suspect = error.detail
            except (ConnectionLost, WrongPeer, RequestTimeout) as error:
                failed, suspect = error, one.id
                if target == one.id:
                    self._note_owner(path, name, "")
            except DistributedLogError as error:
                if not error.retryable:
                    raise
                failed = error
            else:
                self._note_owner(path, name, one.id)
                return answer
            if trio.current_time() >= deadline:
                raise failed

    # --- calls ------------------------------------------------------------------------------------

    async def call(self, call: LogCall, form: Form, *, wait_s: float = 30.0) -> Any:
        """Have a proxy make a call; what it gives, in its form.

        Raises what the call raises; `OutcomeUnknown` where the answer was lost of one that may not be made
        twice.
        """
        body = call.encode()

        async def ask(one: MemberRow, _: str) -> Any:
            proxy = await self._linked(one)
            try:
                reply = await proxy.link.request(Op.LOG_CALL, body, timeout_s=CALL_S)
            except (ConnectionLost, RequestTimeout) as error:
                if call.call in AGAIN:
                    raise
                raise OutcomeUnknown(
                    f"whether {call.call} of {call.log} was done is not known: {error}"
                ) from error
            return decode_answer(reply.body, form, f"the reply to {call.call}")

        deadline = trio.current_time() + wait_s
        draw = self.endpoint.host.random.random
        return await self._routed(call.path, call.log, ask, deadline, draw)


async def _answered(link: ClientLink, body: bytes) -> Reply:
    """The answer to an opening, which takes its time where another one has the log.

    Raises what it carries, `RequestTimeout`, what closed the link, and `ConnectionLost` where nothing is
    heard of the proxy meanwhile: it hangs, and the log may need another owner.
    """
    pending = link.begin(Op.PRODUCE_OPEN, body, timeout_s=ANSWER_S)
    deadline = trio.current_time() + ANSWER_S
    try:
        while not pending.done.is_set() and trio.current_time() < deadline:
            with trio.move_on_after(ALIVE_S):
                await pending.done.wait()
                break
            asked = trio.current_time()
            link.send(envelope(Op.PING, 0))
            with trio.move_on_after(PING_S):
                await pending.done.wait()
                break
            if link.received_at < asked:
                raise ConnectionLost(f"{link.peer_address} hangs")
    except BaseException:
        link.forget(pending)
        raise
    return await link.finish(pending, 0.0)
