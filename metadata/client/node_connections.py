"""A client's connections to the nodes of the quorum, opened on demand, and the node to try next."""

from collections.abc import Callable, Sequence

import trio

from ...runtime.interfaces.errors import (
    AlreadyClosed,
    ConnectionLost,
    DistributedLogError,
    NotReady,
    QuorumUnreachable,
)
from ...runtime.interfaces.host import Address
from ...runtime.interfaces.principals import METADATA
from ...runtime.net.client_link import ClientLink
from ...runtime.net.rpc import Endpoint
from ...runtime.primitives.backoff import Backoff
from ...runtime.protocol.frames import Op, envelope
from ..model.configuration import parse_host_port
from ..protocol.client_messages import MembersRequest, decode_members

DIAL_TIMEOUT_S = 2.0
"""Time limit to establish a TCP connection."""
HANDSHAKE_TIMEOUT_S = 4.5
"""Time limit of the handshake on a new connection.

Behind hundreds of earlier clients, a client waits some seconds for its handshake (H224), and after a
timeout it has to start again. An `Endpoint` waits for five seconds.
"""
PING_S = 0.3
"""A connection with pending requests is pinged after this time without a byte."""
SILENCE_S = 0.6
"""After this time without a byte, other nodes are tried concurrently.

It is shorter than an election, and longer than the pauses of a busy node.
"""
PAUSE_S = 0.05
"""Pause between two attempts when no node leads."""
REDIAL_MIN_S = 0.4
REDIAL_MAX_S = 4.0
"""Longest pause before a node is dialed again that closed a connection before its handshake.

Such a node has more clients than it can serve. The pauses grow. Hundreds of clients that reconnected
without a pause kept a node from completing any handshake (H224).
"""
REFRESH_MEMBERS_S = 60.0
QUERY_TIMEOUT_S = 2.0


class NodeConnections:
    """One connection per node, while `run` is running."""

    def __init__(
        self,
        endpoint: Endpoint,
        addresses: Sequence[Address],
        timeout_s: float,
        on_link: Callable[[ClientLink], None],
    ) -> None:
        """Create the connections.

        Args:
            endpoint: The endpoint of this process.
            addresses: The configured addresses of nodes.
            timeout_s: The time limit of a request.
            on_link: Receives each new connection.
        """
        self.timeout_s = timeout_s
        self.cluster_id = ""
        """Empty before the first contact."""
        self.listener = ""
        """The name of the listener that this client connected to.

        The addresses that other nodes advertise for this listener are reachable for this client.
        """
        self.known_nodes = KnownNodes(addresses)
        self.leader = addresses[0]
        """The node to try next, usually the last known leader."""
        self.random = endpoint.host.random.random
        self._endpoint = endpoint
        self._on_link = on_link
        self._nursery: trio.Nursery | None = None
        self._ended = False
        self._links: dict[Address, ClientLink] = {}
        self._pending_connections: dict[Address, _PendingConnection] = {}
        self._redial_backoff: dict[Address, tuple[Backoff, float]] = {}
        """Nodes that closed a connection before the handshake, with the time of the next attempt."""
        self._pinged_at: dict[Address, float] = {}
        self._search_lock = trio.Lock()
        """Held by the caller of `any_link` that searches for a node."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the connections until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._ended = True

    async def connect(
        self, address: Address, deadline: float, *, allow_unjoined: bool = False
    ) -> ClientLink:
        """Return the connection to a node, and open it if necessary.

        Args:
            address: The address of the node.
            deadline: The time limit of the caller.
            allow_unjoined: Also connect to a node that belongs to no cluster. This connection is not kept.

        Raises:
            AlreadyClosed: `run` has ended. A shielded clean-up may call this method so late.
            NotReady: The node belongs to no cluster yet.
            DistributedLogError: The connection failed.
        """
        link = self.current_link(address)
        if link is not None:
            return link
        assert self._nursery is not None, "NodeConnections.run is not running"
        if self._ended:
            raise AlreadyClosed("the metadata client has ended")
        pending = self._pending_connections.get(address)
        if pending is None or pending.allow_unjoined != allow_unjoined:
            pending = self._pending_connections[address] = _PendingConnection(allow_unjoined)
            self._nursery.start_soon(self._dial, self._nursery, address, pending)
        timeout_s = DIAL_TIMEOUT_S if allow_unjoined else SILENCE_S
        with trio.move_on_at(min(deadline, trio.current_time() + timeout_s)):
            await pending.done.wait()
        if pending.error is not None:
            raise pending.error
        # The attempt continues, and a later call may find the connection open.
        if pending.link is None:
            raise ConnectionLost(f"{address[0]}:{address[1]} did not answer within {timeout_s:g} s")
        return pending.link

    def current_link(self, address: Address) -> ClientLink | None:
        """Return the open connection to a node, or None."""
        link = self._links.get(address)
        return link if link is not None and link.closed is None else None

    async def _dial(
        self, nursery: trio.Nursery, address: Address, pending: "_PendingConnection"
    ) -> None:
        address_text = "{}:{}".format(*address)
        try:
            with self._endpoint.failures.attempt(
                f"dialing metadata node {address_text}"
            ) as attempt:
                await self._dial_once(nursery, address, pending)
            if attempt.failed:
                pending.error = ConnectionLost(f"dialing {address_text} failed here")
        finally:
            if self._ended:
                pending.error = AlreadyClosed("the metadata client has ended")
            if self._pending_connections.get(address) is pending:
                del self._pending_connections[address]
            pending.done.set()

    async def _dial_once(
        self, nursery: trio.Nursery, address: Address, pending: "_PendingConnection"
    ) -> None:
        try:
            backoff, redial_at = self._redial_backoff.get(
                address, (Backoff(REDIAL_MIN_S, REDIAL_MAX_S), 0.0)
            )
            await trio.sleep_until(redial_at)
            with pending.timeout_scope:
                pending.timeout_scope.deadline = trio.current_time() + DIAL_TIMEOUT_S
                pending.link = await self._dial_and_register(nursery, address, pending)
                self._redial_backoff.pop(address, None)
        except DistributedLogError as error:
            pending.error = error
            if pending.is_connected and isinstance(error, ConnectionLost):
                self._redial_backoff[address] = (
                    backoff,
                    trio.current_time() + backoff.next_s(self.random()),
                )

    async def _dial_and_register(
        self, nursery: trio.Nursery, address: Address, pending: "_PendingConnection"
    ) -> ClientLink:
        link = await self._endpoint.dial(
            address, nursery=nursery, kind=METADATA, on_connected=pending.on_connected
        )
        if not link.peer.cluster_id:
            if not pending.allow_unjoined:
                link.close(NotReady(f"{link.peer_address} belongs to no cluster yet"))
                raise NotReady(f"{link.peer_address} belongs to no cluster yet")
            return link
        self._links[address] = link
        self.cluster_id = self.cluster_id or link.peer.cluster_id
        self.listener = link.listener
        self._on_link(link)
        keep = self._endpoint.failures.keep_running
        nursery.start_soon(
            keep, "the list of metadata nodes", self.known_nodes.refresh_members, link
        )
        return link

    # --- selection of a node ----------------------------------------------------------------------

    async def any_link(self) -> ClientLink:
        """Return a connection to any node that answers, preferably the leader.

        One caller searches for all that wait. When thousands of callers abandoned a node after `SILENCE_S`,
        they all woke up again and again, and left no time to establish the connection.

        Raises:
            QuorumUnreachable: No node answered within the time limit.
        """
        link = self.current_link(self.leader)
        if link is not None:
            return link
        deadline = trio.current_time() + self.timeout_s
        with trio.move_on_at(deadline) as scope:
            await self._search_lock.acquire()
        if scope.cancelled_caught:
            raise self.unreachable_error("no answer")
        try:
            return await self._search_link(deadline)
        finally:
            self._search_lock.release()

    async def _search_link(self, deadline: float) -> ClientLink:
        last_error: DistributedLogError | None = None
        while trio.current_time() < deadline:
            address = self.leader
            try:
                return await self.connect(address, deadline)
            except DistributedLogError as error:
                last_error = error
                self.move_on_from(address)
                await trio.sleep(PAUSE_S)
        raise self.unreachable_error(f"{last_error}")

    def try_next_node(self) -> None:
        """Try the next node from now on."""
        self.move_on_from(self.leader)

    def follow_redirect(self, source: Address, leader: str) -> bool:
        """Try the node that was named as leader next. Return False if the name is not useful."""
        address = parse_host_port(leader)
        if address is None or address == source or self._is_silent(address):
            self.move_on_from(source)
            return False
        self.leader = address
        return True

    def ping(self, address: Address, link: ClientLink) -> None:
        """Ping a silent connection, but not again before it has answered."""
        now, pinged_at = trio.current_time(), self._pinged_at.get(address, -SILENCE_S)
        if pinged_at <= link.received_at or now - pinged_at >= SILENCE_S:
            self._pinged_at[address] = now
            link.send(envelope(Op.PING, 0))

    def _is_silent(self, address: Address) -> bool:
        """Whether a ping to that node is unanswered. A redirect to it is then outdated."""
        link = self._links.get(address)
        if link is None or link.closed is not None:
            return False
        pinged_at = self._pinged_at.get(address, 0.0)
        return link.received_at < pinged_at <= trio.current_time() - PING_S

    def move_on_from(self, failed_address: Address) -> None:
        """Try the node after ``failed_address``, unless another caller has already moved on."""
        if self.leader != failed_address:
            return
        self.leader = self.known_nodes.next_after(failed_address)

    def unreachable_error(self, last_error: str) -> QuorumUnreachable:
        """Return the error after a timeout, with the addresses of all nodes."""
        addresses = ", ".join(f"{host}:{port}" for host, port in self.known_nodes.addresses)
        return QuorumUnreachable(
            f"no node of the metadata quorum at {addresses} could be reached within"
            f" {self.timeout_s:g} s (last: {last_error})"
        )


class _PendingConnection:
    """A connection attempt in a separate task, so that its waiters can time out earlier."""

    def __init__(self, may_wait: bool) -> None:
        self.allow_unjoined = may_wait
        self.link: ClientLink | None = None
        self.error: DistributedLogError | None = None
        self.is_connected = False
        """Whether the TCP connection is established."""
        self.timeout_scope = trio.CancelScope()
        self.done = trio.Event()

    def on_connected(self) -> None:
        """Start the time limit of the handshake."""
        self.is_connected = True
        self.timeout_scope.deadline = trio.current_time() + HANDSHAKE_TIMEOUT_S


class KnownNodes:
    """Addresses of nodes in the order in which a client tries them.

    The members are tried first, then the configured ones.

    Members change, and a client may outlive all nodes of its configuration. It queries each connected node
    for the members immediately, and then every minute.
    """

    def __init__(self, configured: Sequence[Address]) -> None:
        assert configured, "a quorum without addresses"
        self.addresses = list(configured)
        self._configured = list(configured)

    def next_after(self, address: Address) -> Address:
        """Return the address to try after ``address``."""
        position = self.addresses.index(address) if address in self.addresses else -1
        return self.addresses[(position + 1) % len(self.addresses)]

    def update_members(self, members: Sequence[Address]) -> None:
        """Set the present members."""
        if not {*members} <= {*self._configured}:  # otherwise the configured order is sufficient
            self.addresses = [
                *members,
                *(address for address in self._configured if address not in members),
            ]

    async def refresh_members(self, link: ClientLink) -> None:
        """Query the members from one node while it is connected."""
        ended = trio.Event()
        link.on_closed.append(lambda _: ended.set())
        while link.closed is None:
            try:
                reply = await link.request(
                    Op.META_MEMBERS, MembersRequest("show").encode(), timeout_s=QUERY_TIMEOUT_S
                )
                addresses = [parse_host_port(reach.address) for reach in decode_members(reply.body)]
                self.update_members([address for address in addresses if address is not None])
            except DistributedLogError:
                pass  # Another node, or the next query, may succeed.
            with trio.move_on_after(REFRESH_MEMBERS_S):
                await ended.wait()
