"""The requests of a client to the quorum: the nodes they are sent to, the replies, and the next attempts.

A request is sent to the leader. It stays there as long as that node's connection shows activity, because a
slow commit is no reason to send a command again. If a connection is silent and does not answer a ping, its
node may be unresponsive or unreachable. Then the request is also sent to other nodes, and the first reply
counts. This is safe because a command is executed once even if it is sent several times (H20).

When the leader is silent, one request searches for the new leader on behalf of all requests of the client
(`RequestRouter.searcher`). If thousands of requests tried node after node, they would overload the next
leader.
"""

from enum import Enum, auto
from functools import partial
from math import inf
from typing import NamedTuple

import trio

from ...runtime.interfaces.errors import (
    AlreadyClosed,
    ConnectionLost,
    DistributedLogError,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    ProtocolError,
    QuorumUnreachable,
    RequestTimeout,
    TooBusy,
    WrongPeer,
)
from ...runtime.interfaces.host import Address, Buffer
from ...runtime.net.client_link import ClientLink, PendingReply, Reply
from ...runtime.primitives.backoff import Backoff
from .node_connections import PAUSE_S, PING_S, SILENCE_S, NodeConnections

TRY_NEXT_ERRORS = (
    ConnectionLost,
    NotReady,
    OutcomeUnknown,
    ProtocolError,
    RequestTimeout,
    WrongPeer,
)
"""Errors after which another node is tried."""
BUSY_MIN_S = 0.05
BUSY_MAX_S = 2.0
"""Longest pause before a busy leader is tried again. The pauses grow and are random."""
SEARCH_WAIT_S = 0.5
"""Time for which a request waits for another one to find the leader before it searches itself."""
SILENCE_CHECK_S = 0.05
"""Interval of the checks for silent connections.

One timer serves all requests, because a timeout per wait would cost more than the wait.
"""
LATE_WAKEUP_S = 0.1
"""If a wait ends this much too late, the process did not run.

The silence in that time proves nothing (H25).
"""


class RetryAction(Enum):
    """The action after a refusal."""

    FOLLOW_REDIRECT = auto()
    """Try the leader that the reply named."""
    SEARCH = auto()
    """No node leads: one request searches for the leader, and the others wait for the result."""
    PAUSE = auto()
    """The leader is busy: pause and retry."""


class SentRequest(NamedTuple):
    """A request that is pending on one connection."""

    link: ClientLink
    pending_reply: PendingReply
    sent_at: float


class RequestRouter:
    """All pending requests of a client."""

    def __init__(self, links: NodeConnections) -> None:
        self.connections = links
        self.pending_requests: dict[QuorumRequest, None] = {}
        self.searcher: QuorumRequest | None = None
        """The request that searches for the leader."""
        self._request_added = trio.Event()

    async def run(self) -> None:
        """Wake requests whose waiting time has ended, until cancelled."""
        while True:
            if not self.pending_requests:
                self._request_added = trio.Event()
                await self._request_added.wait()
            await trio.sleep(SILENCE_CHECK_S)
            now = trio.current_time()
            for request in self.pending_requests:
                if request.wake_at <= now:
                    request.wake()

    def add(self, request: "QuorumRequest") -> None:
        """Add a request, which is pending until `remove`."""
        self.pending_requests[request] = None
        self._request_added.set()

    def remove(self, request: "QuorumRequest") -> None:
        """Remove a request that was answered or timed out."""
        del self.pending_requests[request]
        if self.searcher is request:
            self.searcher = None
            self.wake_all()  # another request continues the search, if no leader was found

    def on_leader_found(self, leader: Address) -> None:
        """Set the leader after a reply that only a leader can send."""
        if self.connections.leader != leader or self.searcher is not None:
            self.connections.leader = leader
            self.wake_all()

    def wake_all(self) -> None:
        """Wake all requests, so that they check the leader again."""
        for request in self.pending_requests:
            request.wake()


class QuorumRequest:
    """One request with all its attempts. `send` may be called again after a stale refusal."""

    __slots__ = (
        "_answers",
        "_busy_backoff",
        "_connections",
        "_resumed_at",
        "_router",
        "_search_steps",
        "_sent_by_address",
        "_wake",
        "last_error",
        "send_once",
        "unknown_outcomes",
        "wake_at",
    )

    def __init__(self, router: RequestRouter, *, once: bool = False) -> None:
        self.send_once = once
        """Whether a second attempt would repeat the effect.

        It is then not sent again after an unknown outcome.
        """
        self.unknown_outcomes = 0
        """Number of attempts with an unknown outcome."""
        self.last_error: DistributedLogError | None = None
        self.wake_at = inf
        """Time after which `RequestRouter.run` wakes the request."""
        self._router = router
        self._connections = router.connections
        self._sent_by_address: dict[Address, SentRequest] = {}
        self._answers: list[tuple[Address, Reply | DistributedLogError]] = []
        self._wake: trio.Event | None = None
        """Set when there is a reply or news. None while the request does not wait."""
        self._resumed_at = 0.0
        """End of the last time in which this process did not run. Silence is measured from here."""
        self._search_steps = 0
        self._busy_backoff: Backoff | None = None

    async def send(self, op: int, body: Buffer, deadline: float) -> Reply:
        """Send the request until a node answers.

        Raises:
            TooBusy, QuorumUnreachable: No node answered before the deadline.
            DistributedLogError: The error of the reply.
        """
        connections, router = self._connections, self._router
        router.add(self)
        address: Address | None = connections.leader
        try:
            while trio.current_time() < deadline:
                if address is not None and address not in self._sent_by_address:
                    await self._send_to(address, op, body, deadline)
                await self._wait_for_answer(deadline)
                if (
                    not self._answers and self.send_once and self._sent_by_address
                ):  # no other node is tried
                    await self._wait_until(min(deadline, trio.current_time() + SEARCH_WAIT_S))
                    continue
                if not self._answers:  # all connections are silent
                    for silent_address in self._sent_by_address:
                        connections.move_on_from(silent_address)
                    address = await self._next_search_address(deadline)
                    continue
                answering_address, answer = self._answers.pop(0)
                if isinstance(answer, Reply):
                    self.unknown_outcomes -= 1
                    router.on_leader_found(answering_address)
                    return answer
                self.last_error = answer
                action = self._retry_action(answering_address, answer)
                address = connections.leader
                if action is RetryAction.PAUSE:
                    self._busy_backoff = self._busy_backoff or Backoff(BUSY_MIN_S, BUSY_MAX_S)
                    pause_s = self._busy_backoff.next_s(connections.random())
                    await self._wait_until(min(deadline, trio.current_time() + pause_s))
                elif action is RetryAction.SEARCH:
                    now = trio.current_time()
                    has_contact = now < self._last_contact(now) + SILENCE_S
                    address = None if has_contact else await self._next_search_address(deadline)
        finally:
            self._finish()
        if isinstance(self.last_error, TooBusy) and not self.unknown_outcomes:
            raise self.last_error
        addresses = ", ".join(f"{host}:{port}" for host, port in connections.known_nodes.addresses)
        raise QuorumUnreachable(
            f"no leader of the metadata quorum at {addresses} answered within {connections.timeout_s:g} s"
            f" (last: {self.last_error or 'no answer'})"
        )

    def wake(self) -> None:
        """Wake the request after news of a leader."""
        if self._wake is not None:
            self._wake.set()

    # --- sending ----------------------------------------------------------------------------------

    async def _send_to(self, address: Address, op: int, body: Buffer, deadline: float) -> None:
        try:
            link = self._connections.current_link(address) or await self._connections.connect(
                address, deadline
            )
            now = trio.current_time()
            timeout_s = max(0.01, deadline - now)
            on_reply = partial(self._on_reply, address)
            pending = link.start_repeated_request(op, body, timeout_s=timeout_s, on_reply=on_reply)
        except AlreadyClosed:
            raise
        except DistributedLogError as error:
            self._answers.append((address, error))
            self.unknown_outcomes += (
                error.definite
            )  # never sent: `_retry_action` subtracts it again
            return
        self._sent_by_address[address] = SentRequest(link, pending, now)
        self.unknown_outcomes += 1

    def _on_reply(self, address: Address, answer: Reply | DistributedLogError) -> None:
        self._sent_by_address.pop(address, None)
        self._answers.append((address, answer))
        if self._wake is not None:
            self._wake.set()

    def _is_sent_to(self, address: Address) -> bool:
        return address in self._sent_by_address

    def _finish(self) -> None:
        for sending in self._sent_by_address.values():
            sending.link.discard_request(sending.pending_reply)
        self._sent_by_address.clear()
        self._answers.clear()
        self._router.remove(self)

    # --- waiting ----------------------------------------------------------------------------------

    async def _wait_for_answer(self, deadline: float) -> None:
        """Wait for a reply, or until all nodes with this request are silent."""
        while not self._answers and self._sent_by_address:
            now = trio.current_time()
            last_contact = self._last_contact(now)
            silence_deadline = last_contact + PING_S
            if now >= silence_deadline:
                silence_deadline = last_contact + SILENCE_S
                for address, sending in self._sent_by_address.items():
                    self._connections.ping(address, sending.link)
            if now >= min(silence_deadline, deadline):
                return
            self.wake_at = min(silence_deadline, deadline)
            self._wake = wake_event = trio.Event()
            await wake_event.wait()
            self._wake, self.wake_at = None, inf
            if trio.current_time() > silence_deadline + SILENCE_CHECK_S + LATE_WAKEUP_S:
                self._resumed_at = trio.current_time()

    def _last_contact(self, now: float) -> float:
        """Return the last activity of a node with this request, or -inf if there is none."""
        last_contact = -inf
        for sending in self._sent_by_address.values():
            last_contact = max(
                last_contact, sending.link.received_at, sending.sent_at, self._resumed_at
            )
        return min(now, last_contact)

    async def _wait_until(self, deadline: float) -> None:
        if not self._answers:
            self._wake = wake_event = trio.Event()
            with trio.CancelScope(deadline=deadline):
                await wake_event.wait()
            self._wake = None

    async def _next_search_address(self, deadline: float) -> Address | None:
        """Return the next address to try for a leader, or None if there is a reply."""
        connections, router = self._connections, self._router
        if router.searcher not in (None, self):
            await self._wait_until(min(deadline, trio.current_time() + SEARCH_WAIT_S))
            return (
                None
                if self._answers or self._is_sent_to(connections.leader)
                else connections.leader
            )
        router.searcher = self
        self._search_steps += 1
        # All nodes may name a leader that has just died. So pause after one round of attempts.
        if self._search_steps >= len(connections.known_nodes.addresses):
            await self._wait_until(min(deadline, trio.current_time() + PAUSE_S))
        for _ in connections.known_nodes.addresses:
            if not self._is_sent_to(connections.leader):
                break
            connections.try_next_node()
        return None if self._answers else connections.leader

    # --- replies ----------------------------------------------------------------------------------

    def _retry_action(self, address: Address, error: DistributedLogError) -> RetryAction:
        """Return the action after a refusal, or raise the error if it is the final reply."""
        self.unknown_outcomes -= error.definite
        if self.send_once and self.unknown_outcomes:
            raise error
        links = self._connections
        if isinstance(error, NotLeader):
            return (
                RetryAction.FOLLOW_REDIRECT
                if links.follow_redirect(address, error.leader)
                else RetryAction.SEARCH
            )
        if isinstance(error, TooBusy):
            return RetryAction.PAUSE
        if isinstance(error, TRY_NEXT_ERRORS):
            links.move_on_from(address)
            return RetryAction.SEARCH
        raise error
