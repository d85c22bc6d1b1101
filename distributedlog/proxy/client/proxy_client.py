"""Connections of a client to proxies, the list of proxies, and the owner of each log.

The client starts with the addresses of a URI. Any proxy then sends it the list of all proxies, and its
changes. A request for a log is sent to its last owner, otherwise to the first proxy in the log's order
(`rendezvous_hash.py`). A proxy without the log names the owner. If a proxy is unreachable, the client names
it to the next one as the suspect, which then checks it.
"""

import math
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
    OwnershipAcquireFailed,
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
from ..membership.rendezvous_hash import rank_proxies
from ..protocol.proxy_messages import (
    PERMIT_RECORD_HEADERS,
    Ack,
    LogCall,
    MemberRow,
    ProduceOpen,
    ProduceOpened,
    Refusal,
    decode_acks,
    decode_answer,
    decode_members,
    encode_stream_notice,
)

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0
DIAL_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 15.0
"""The time limit for an answer. A proxy waits up to 10 s for a log that another one has."""
PING_AFTER_S = 1.0
PING_TIMEOUT_S = 0.5
"""If an opening is not answered within `PING_AFTER_S`, the proxy is pinged.

If it does not respond to the ping within `PING_TIMEOUT_S`, another proxy is asked.
"""
CALL_TIMEOUT_S = 130.0
SWEEP_INTERVAL_S = 0.5
GATHERED_BYTES_MAX = 64 * 1024
CACHED_OWNERS_MAX = 10_000
"""The maximum number of logs with a cached owner."""
REPEATABLE_CALLS = {
    *("exists", "page", "truncate", "seal", "describe", "settings", "find", "count"),
    PERMIT_RECORD_HEADERS,
}
"""Calls that can be repeated safely."""

log = get_logger("distributedlog.proxy")


@dataclass(frozen=True, slots=True, eq=False)
class StreamHandlers:
    """Callbacks of the sender on a stream. They must not block."""

    on_ack: Callable[[Ack], None]
    """A frame is stored. Raises `ProtocolError` if it is not the expected one."""
    on_refused: Callable[[Refusal], None]
    """The proxy has ended the stream."""
    on_lost: Callable[[DistributedLogError], None]
    """The connection has ended."""
    on_sweep: Callable[[float], None]
    """Called periodically with the time while the stream is open, to detect late answers."""


class ProxyLink:
    """A connection to one proxy, and the streams on it by number."""

    def __init__(self, link: ClientLink, proxy_id: str) -> None:
        self.link = link
        self.proxy_id = proxy_id
        self.streams: dict[int, StreamHandlers] = {}
        self._last_number = 0
        self._frames: list[bytes] = []
        """Frames of concurrent streams, which are sent together at the connection's next turn."""
        self._frames_bytes = 0
        link.subscribe(self._on_frame, before_send=self._send_frames, on_closed=self._on_closed)

    def add_stream(self, handlers: StreamHandlers) -> int:
        """Assign a number to a new stream. ``handlers`` receive its frames from now on."""
        self._last_number += 1
        self.streams[self._last_number] = handlers
        return self._last_number

    def remove_stream(self, number: int) -> None:
        """Remove a stream, which is no longer used. Idempotent."""
        self.streams.pop(number, None)

    def close_stream(self, number: int) -> None:
        """Remove a stream and notify the proxy."""
        self.send_notice(encode_stream_notice(Op.PRODUCE_CLOSE, number))
        self.remove_stream(number)

    def produce(self, frame: bytes) -> None:
        """Send records of a stream. On an idle connection they are sent at once."""
        link = self.link
        if not link.will_send:
            link.send(frame)
            return
        if not self._frames:
            link.request_send()
        self._frames.append(frame)
        self._frames_bytes += len(frame)
        # the link counts the bytes that a slow peer does not read
        if self._frames_bytes >= GATHERED_BYTES_MAX:
            self._send_frames()

    def send_notice(self, notice: bytes) -> None:
        """Send a message about a stream, after its records."""
        self._send_frames()
        self.link.send(notice)

    def _send_frames(self) -> None:
        if self._frames:
            frames, self._frames, self._frames_bytes = self._frames, [], 0
            self.link.send(b"".join(frames))

    def _on_frame(self, op: int, flags: int, status: int, ident: int, body: memoryview) -> None:
        if op == Op.PRODUCE_ACKS:
            streams = self.streams
            for ack in decode_acks(body):
                handlers = streams.get(ack.stream)
                if handlers is not None:
                    handlers.on_ack(ack)
        elif op == Op.PRODUCE_REFUSED:
            handlers = self.streams.pop(ident, None)
            if handlers is not None:
                handlers.on_refused(Refusal.decode(status, body))

    def _on_closed(self, reason: DistributedLogError) -> None:
        streams, self.streams = self.streams, {}
        for handlers in streams.values():
            handlers.on_lost(reason)


@dataclass(frozen=True, slots=True)
class ProxyStream:
    """An open stream."""

    proxy: ProxyLink
    number: int
    opened: ProduceOpened

    @property
    def ended(self) -> bool:
        """Whether the stream was refused or its connection lost, possibly before the opener continues."""
        return self.proxy.link.closed is not None or self.number not in self.proxy.streams

    def close(self) -> None:
        """Close the stream and notify its proxy."""
        self.proxy.close_stream(self.number)


@dataclass(slots=True)
class _PendingDial:
    """A connection that is being opened. Concurrent users wait for it."""

    finished: trio.Event = field(default_factory=trio.Event)
    error: DistributedLogError | None = None


class ProxyClient:
    """Connections to proxies and their list. `run` must be running."""

    def __init__(
        self, endpoint: Endpoint, addresses: Sequence[Address], *, timeout_s: float = 30.0
    ) -> None:
        self.endpoint = endpoint
        self.cluster_id = ""
        self._addresses = tuple(addresses)
        self._timeout_s = timeout_s
        self._members: dict[str, MemberRow] = {}
        self._members_changed = trio.Event()
        self._auth_error: NotAuthenticated | None = None
        """Set if the proxies rejected the credentials before any of them sent the list."""
        self._links: dict[str, ProxyLink] = {}
        self._pending_dials: dict[str, _PendingDial] = {}
        self._cached_owners: dict[tuple[str, str], str] = {}
        self._nursery: trio.Nursery | None = None

    # --- for many writers -------------------------------------------------------------------------

    def defer_sends(self) -> None:
        """Hold back what writers send until `send_deferred`."""
        for proxy in self._links.values():
            proxy.link.defer_sends()

    def send_deferred(self) -> None:
        """Send what `defer_sends` held back."""
        for proxy in self._links.values():
            proxy.link.send_deferred()

    # --- who there is -----------------------------------------------------------------------------

    def write_proxies(self, path: str, name: str) -> list[MemberRow]:
        """Return the write proxies in the order of a log. Those that accept no additional logs are last."""
        return self._ranked_members(WRITE, path, name)

    def read_proxies(self, path: str, name: str) -> list[Address]:
        """Return the addresses of the read proxies in the order of a log."""
        return [(member.host, member.port) for member in self._ranked_members(READ, path, name)]

    def _ranked_members(self, kind: str, path: str, name: str) -> list[MemberRow]:
        ids = rank_proxies(
            path, name, [member.id for member in self._members.values() if member.kind == kind]
        )
        members = [self._members[member] for member in ids]
        return sorted(members, key=lambda member: not member.accepting)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the list of proxies until cancelled. The task has started when it was received once.

        Raises:
            NotAuthenticated: The answering proxies reject the credentials.
            QuorumUnreachable: No proxy answered. The message lists the addresses.
        """
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._sweep)
            listed = trio.Event()
            self._nursery.start_soon(self._watch_members, listed)
            failure = await self._wait_first_listing(listed)
            if failure is None:
                task_status.started()
            else:
                self._nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure  # the nursery would wrap it

    async def _wait_first_listing(self, listed: trio.Event) -> DistributedLogError | None:
        with trio.move_on_after(self._timeout_s):
            await listed.wait()
            return self._auth_error
        address_text = ", ".join(f"{host}:{port}" for host, port in self._addresses)
        return QuorumUnreachable(
            f"no proxy answered at {address_text} within {self._timeout_s:g} s"
        )

    async def _watch_members(self, listed: trio.Event) -> None:
        """Receive the list of proxies from one proxy after another."""
        backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MAX_S)
        rng = self.endpoint.host.random
        while True:
            member_addresses = [(member.host, member.port) for member in self._members.values()]
            addresses = list(dict.fromkeys([*self._addresses, *member_addresses]))
            rng.shuffle(addresses)
            auth_error: NotAuthenticated | None = None
            for address in addresses:
                ended = trio.Event()
                try:
                    link = await self._dial(address)
                except DistributedLogError as error:
                    log.debug("proxy %s:%d: %s", *address, error)
                    if isinstance(error, NotAuthenticated):
                        auth_error = error
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
                    self._members = {member.id: member for member in rows}
                    self._members_changed.set()
                    self._members_changed = trio.Event()
                    backoff.reset()
                    listed.set()

                try:
                    link.start_repeated_request(
                        Op.MEMBERS, timeout_s=ANSWER_TIMEOUT_S, on_reply=on_reply
                    )
                    await ended.wait()
                except DistributedLogError as error:
                    log.debug("proxy %s:%d: %s", *address, error)
            if auth_error is not None and not listed.is_set():
                self._auth_error = auth_error  # the same credentials would be rejected again
                listed.set()
            await trio.sleep(backoff.next_s(rng.random()))

    async def _dial(self, address: Address, expected_node_id: str = "") -> ClientLink:
        assert self._nursery is not None, "`run` is running"
        with trio.move_on_after(DIAL_TIMEOUT_S):
            link = await self.endpoint.dial(
                address, nursery=self._nursery, expected_node_id=expected_node_id, kind=PROXY
            )
            self.cluster_id = self.cluster_id or link.peer.cluster_id
            return link
        raise ConnectionLost(
            f"{address[0]}:{address[1]} did not answer within {DIAL_TIMEOUT_S:g} s"
        )

    async def _link_to(self, member: MemberRow) -> ProxyLink:
        """Return the connection to a proxy.

        Raises:
            ConnectionLost: The proxy is unreachable.
            DistributedLogError: The handshake failed.
        """
        while True:
            proxy_link = self._links.get(member.id)
            if proxy_link is not None and proxy_link.link.closed is None:
                return proxy_link
            pending_dial = self._pending_dials.get(member.id)
            if pending_dial is None:
                break
            await pending_dial.finished.wait()
            if (
                pending_dial.error is not None
            ):  # all waiting tasks share one dial to an unresponsive proxy
                raise pending_dial.error.again()
        pending_dial = self._pending_dials[member.id] = _PendingDial()
        try:
            link = await self._dial((member.host, member.port), member.id)
            proxy_link = self._links[member.id] = ProxyLink(link, member.id)
            return proxy_link
        except DistributedLogError as error:
            pending_dial.error = error
            raise
        finally:  # waiting tasks dial themselves if this one was cancelled
            del self._pending_dials[member.id]
            pending_dial.finished.set()

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP_INTERVAL_S)
            now = trio.current_time()
            for proxy_id, proxy in list(self._links.items()):
                if proxy.link.closed is not None:
                    del self._links[proxy_id]
                for handlers in list(proxy.streams.values()):
                    handlers.on_sweep(now)

    # --- streams ----------------------------------------------------------------------------------

    async def open_stream(
        self,
        request: Callable[[int, str], ProduceOpen],
        path: str,
        name: str,
        handlers: StreamHandlers,
        *,
        deadline: float,
        delay_s: float = 0.0,
    ) -> ProxyStream:
        """Open a stream at the proxy that has the log, or that opens it.

        Args:
            request: Creates the request from the stream's number and the ID of a suspect proxy.
            path: Path of the namespace.
            name: The log's name.
            handlers: The callbacks of the stream.
            deadline: When to stop trying.
            delay_s: The delay before the first request.

        Raises:
            DistributedLogError: A permanent refusal, or the last error before the deadline.
        """
        rng = self.endpoint.host.random
        if delay_s:
            await trio.sleep(delay_s)

        async def ask(member: MemberRow, suspect: str) -> ProxyStream:
            return await self._open_stream_at(member, request, handlers, suspect)

        stream: ProxyStream = await self._call_owner(path, name, ask, deadline, rng.random)
        return stream

    async def _open_stream_at(
        self,
        member: MemberRow,
        request: Callable[[int, str], ProduceOpen],
        handlers: StreamHandlers,
        suspect: str,
    ) -> ProxyStream:
        proxy_link = await self._link_to(member)
        number = proxy_link.add_stream(handlers)
        try:
            body = request(number, suspect).encode()
            reply = await _wait_for_open_reply(proxy_link.link, body)
            opened = ProduceOpened.decode(reply.body)
        except BaseException:
            proxy_link.close_stream(number)  # it may still be opened later
            raise
        return ProxyStream(proxy_link, number, opened)

    async def probe(
        self,
        request: Callable[[int, str], ProduceOpen],
        path: str,
        name: str,
        handlers: StreamHandlers,
        owner: str,
    ) -> ProxyStream | None:
        """Open a stream at another proxy than the owner, which does not answer.

        Returns:
            The stream, or None if the owner still has the log or no proxy is reachable.
        """
        for member in self.write_proxies(path, name):
            if member.id == owner or not member.accepting:
                continue
            try:
                stream = await self._open_stream_at(member, request, handlers, owner)
                self._record_owner(path, name, member.id)
                return stream
            except DistributedLogError as error:
                log.debug(
                    "proxy %s did not open log %s of proxy %s: %s", member.id, name, owner, error
                )
                if not isinstance(error, ConnectionLost | WrongPeer):
                    return None
        return None

    def cached_owner(self, path: str, name: str) -> str:
        """Return the last owner of a log, or ""."""
        return self._cached_owners.get((path, name), "")

    def record_owner(self, path: str, name: str, proxy_id: str) -> None:
        """Set the proxy to ask first; "" for the first one in the log's order."""
        self._record_owner(path, name, proxy_id)

    def _record_owner(self, path: str, name: str, proxy_id: str) -> None:
        self._cached_owners.pop((path, name), None)
        if proxy_id:
            self._cached_owners[path, name] = proxy_id
            if len(self._cached_owners) > CACHED_OWNERS_MAX:
                del self._cached_owners[next(iter(self._cached_owners))]

    async def _call_owner(
        self,
        path: str,
        name: str,
        attempt: Callable[[MemberRow, str], Awaitable[Any]],
        deadline: float,
        random_fraction: Callable[[], float],
        ownership_deadline: float = math.inf,
    ) -> Any:
        """Call the owner of a log, or the proxies in the log's order, each once before a pause.

        Args:
            path: The path of the namespace.
            name: The name of the log.
            attempt: Calls one proxy. It receives the ID of a proxy that may have failed, or "".
            deadline: When the last error is raised.
            random_fraction: Spreads the retries.
            ownership_deadline: From when on `OwnershipAcquireFailed` of a proxy is raised.

        Raises:
            OwnershipAcquireFailed: The owner has a writer, or is a proxy that could not be called.
            DistributedLogError: An error that another proxy or a retry would not change, or the last error
                before the deadline.
        """
        backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MAX_S)
        tried_ids: set[str] = set()
        suspect, last_error = "", DistributedLogError()
        while True:
            cached_owner = self._cached_owners.get((path, name), "")
            member = self._next_candidate(path, name, cached_owner, tried_ids)
            if member is None:
                if not tried_ids:
                    last_error = QuorumUnreachable(f"no write proxy is available to write {name}")
                delay_s = backoff.next_s(random_fraction())
                if trio.current_time() + delay_s >= deadline:
                    raise _error_for_caller(last_error)
                with trio.move_on_after(delay_s):
                    await self._members_changed.wait()
                tried_ids.clear()
                continue
            tried_ids.add(member.id)
            try:
                answer = await attempt(member, suspect)
            except Moved as error:
                last_error = error
                if error.detail != member.id:
                    self._record_owner(path, name, error.detail)
                if error.detail in tried_ids:
                    suspect = error.detail
            except (ConnectionLost, WrongPeer, RequestTimeout) as error:
                last_error, suspect = error, member.id
                if cached_owner == member.id:
                    self._record_owner(path, name, "")
            except OwnershipAcquireFailed as error:
                if trio.current_time() >= ownership_deadline:
                    raise
                last_error = error
            except DistributedLogError as error:
                if not error.retryable:
                    raise
                last_error = error
            else:
                self._record_owner(path, name, member.id)
                return answer
            if trio.current_time() >= deadline:
                raise _error_for_caller(last_error)

    def _next_candidate(
        self, path: str, name: str, cached_owner: str, tried_ids: set[str]
    ) -> MemberRow | None:
        """Return the cached owner or the first write proxy that was not tried, None if all were."""
        member = self._members.get(cached_owner) if cached_owner not in tried_ids else None
        if member is not None:
            return member
        return next(
            (
                candidate
                for candidate in self.write_proxies(path, name)
                if candidate.id not in tried_ids
            ),
            None,
        )

    # --- calls ------------------------------------------------------------------------------------

    async def call(
        self,
        call: LogCall,
        form: Form,
        *,
        wait_s: float = 30.0,
        ownership_wait_s: float = math.inf,
    ) -> Any:
        """Have a proxy execute a call, and return the decoded result.

        Args:
            call: The call.
            form: Decodes the result.
            wait_s: How long to try.
            ownership_wait_s: How long to try while the log has a writer.

        Raises:
            OwnershipAcquireFailed: The log has a writer.
            OutcomeUnknown: The answer of a call that cannot be repeated was lost.
            DistributedLogError: The call failed.
        """
        body = call.encode()

        async def ask(member: MemberRow, _: str) -> Any:
            proxy_link = await self._link_to(member)
            try:
                reply = await proxy_link.link.request(Op.LOG_CALL, body, timeout_s=CALL_TIMEOUT_S)
            except (ConnectionLost, RequestTimeout) as error:
                if call.call in REPEATABLE_CALLS:
                    raise
                raise OutcomeUnknown(
                    f"it is unknown whether {call.call} of {call.log} was completed: {error}"
                ) from error
            return decode_answer(reply.body, form, f"the reply to {call.call}")

        now = trio.current_time()
        random_fraction = self.endpoint.host.random.random
        return await self._call_owner(
            call.path, call.log, ask, now + wait_s, random_fraction, now + ownership_wait_s
        )


async def _wait_for_open_reply(link: ClientLink, body: bytes) -> Reply:
    """Send an opening and wait for its answer, which can take long if another proxy has the log.

    Raises:
        RequestTimeout: There was no answer within `ANSWER_TIMEOUT_S`.
        ConnectionLost: The proxy is unresponsive, so the log may need another owner.
        DistributedLogError: The proxy refused, or the connection ended.
    """
    pending = link.start_request(Op.PRODUCE_OPEN, body, timeout_s=ANSWER_TIMEOUT_S)
    deadline = trio.current_time() + ANSWER_TIMEOUT_S
    try:
        while not pending.finished.is_set() and trio.current_time() < deadline:
            with trio.move_on_after(PING_AFTER_S):
                await pending.finished.wait()
                break
            pinged_at = trio.current_time()
            link.send(envelope(Op.PING, 0))
            with trio.move_on_after(PING_TIMEOUT_S):
                await pending.finished.wait()
                break
            if link.received_at < pinged_at:
                raise ConnectionLost(f"{link.peer_address} is unresponsive")
    except BaseException:
        link.discard_request(pending)
        raise
    return await link.wait_reply(pending, 0.0)


def _error_for_caller(error: DistributedLogError) -> DistributedLogError:
    """Return the last error of a search for a log's owner, as the caller receives it.

    `Moved` is sent from proxies to their clients only. As a last error, it means that the proxy which it
    names did not answer for the log.
    """
    if isinstance(error, Moved):
        return OwnershipAcquireFailed(str(error), f"proxy {error.detail}")
    return error
