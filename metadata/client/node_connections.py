"""A client's connections to the nodes of the quorum, made when they are needed; who is asked next."""

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
"""A node that takes no connection within this time is not connected to."""
HANDSHAKE_TIMEOUT_S = 4.5
"""Nor one that took it, and does not greet within this: behind hundreds that came before it a client waits
some seconds for its turn (H224), and who gives up has to begin again. An `Endpoint` waits for five."""
PING_S = 0.3
"""A connection on which an answer is waited for is pinged after so long without a byte, …"""
SILENCE_S = 0.6
"""… and after so long others are asked beside it: shorter than an election takes, longer than a busy node
is away."""
PAUSE_S = 0.05
"""Between two attempts when nobody leads."""
REDIAL_MIN_S = 0.4
REDIAL_MAX_S = 4.0
"""A node that takes a connection and ends it before it has greeted has more callers than it can greet: it is
dialled again after so long, longer each time in a row. Hundreds that came back at once, each as often as it
could, kept it from greeting any (H224)."""
REFRESH_MEMBERS_S = 60.0
ASK_S = 2.0


class NodeConnections:
    """One connection a node; ``run`` holds them."""

    def __init__(
        self,
        endpoint: Endpoint,
        addresses: Sequence[Address],
        timeout_s: float,
        on_link: Callable[[ClientLink], None],
    ) -> None:
        """``on_link`` is given each connection when it is made."""
        self.timeout_s = timeout_s
        self.cluster_id = ""
        """Known after the first contact."""
        self.listener = ""
        """The name of the listener that we came in on: whose addresses of other nodes reach them."""
        self.known_nodes = KnownNodes(addresses)
        self.leader = addresses[0]
        """Where to ask next: the leader as far as we know."""
        self.random = endpoint.host.random.random
        self._endpoint = endpoint
        self._on_link = on_link
        self._nursery: trio.Nursery | None = None
        self._ended = False
        self._links: dict[Address, ClientLink] = {}
        self._pending_connections: dict[Address, _PendingConnection] = {}
        self._redial_backoff: dict[Address, tuple[Backoff, float]] = {}
        """Of nodes that ended a connection before they greeted: until when it is not dialled."""
        self._pinged_at: dict[Address, float] = {}
        self._search_lock = trio.Lock()
        """Held by the caller of `any_link` that looks for a node."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the connections until cancelled."""
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
        """The connection to a node, made if there is none. Raises what dialling raises.

        Raises `AlreadyClosed` once `run` has ended: whoever says a shielded goodbye may come that late.
        ``may_wait``: also to one that belongs to no cluster; that is not kept.
        """
        link = self.current_link(address)
        if link is not None:
            return link
        assert self._nursery is not None, "QuorumLinks.run is not running"
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
        if pending.link is None:  # it is dialled on: whoever asks it again may find it connected
            raise ConnectionLost(f"{address[0]}:{address[1]} did not answer within {timeout_s:g} s")
        return pending.link

    def current_link(self, address: Address) -> ClientLink | None:
        """The connection to that node, if there is one."""
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

    # --- who is asked -----------------------------------------------------------------------------

    async def any_link(self) -> ClientLink:
        """A connection to whichever node answers, the leader first. Raises `QuorumUnreachable`.

        One caller searches for all that wait. Thousands that each gave a node up after `SILENCE_S` woke all
        at once, again and again, and left no time for the connection to be made.
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
        """Ask the next node from now on."""
        self.move_on_from(self.leader)

    def follow_redirect(self, source: Address, leader: str) -> bool:
        """Ask the node that was named as leader next; False if that says nothing new."""
        address = parse_host_port(leader)
        if address is None or address == source or self._is_silent(address):
            self.move_on_from(source)
            return False
        self.leader = address
        return True

    def ping(self, address: Address, link: ClientLink) -> None:
        """Ask a silent connection for a sign of life, and not again before it has given one."""
        now, pinged_at = trio.current_time(), self._pinged_at.get(address, -SILENCE_S)
        if pinged_at <= link.received_at or now - pinged_at >= SILENCE_S:
            self._pinged_at[address] = now
            link.send(envelope(Op.PING, 0))

    def _is_silent(self, address: Address) -> bool:
        """Whether a ping there is unanswered: what names that node as the leader is out of date."""
        link = self._links.get(address)
        if link is None or link.closed is not None:
            return False
        pinged_at = self._pinged_at.get(address, 0.0)
        return link.received_at < pinged_at <= trio.current_time() - PING_S

    def move_on_from(self, failed_address: Address) -> None:
        """``asked`` was of no help: ask the next node, unless somebody else has turned already."""
        if self.leader != failed_address:
            return
        self.leader = self.known_nodes.next_after(failed_address)

    def unreachable_error(self, last_error: str) -> QuorumUnreachable:
        """Nobody answered in time: the error names all who were asked."""
        addresses = ", ".join(f"{host}:{port}" for host, port in self.known_nodes.addresses)
        return QuorumUnreachable(
            f"no node of the metadata quorum at {addresses} could be reached within"
            f" {self.timeout_s:g} s (last: {last_error})"
        )


class _PendingConnection:
    """A connection that is being made, by a task of its own: nobody who waits for it waits for long."""

    def __init__(self, may_wait: bool) -> None:
        self.allow_unjoined = may_wait
        self.link: ClientLink | None = None
        self.error: DistributedLogError | None = None
        self.is_connected = False
        """Has the node taken the connection?"""
        self.timeout_scope = trio.CancelScope()
        self.done = trio.Event()

    def on_connected(self) -> None:
        """It has."""
        self.is_connected = True
        self.timeout_scope.deadline = trio.current_time() + HANDSHAKE_TIMEOUT_S


class KnownNodes:
    """Addresses of nodes in the order in which a client tries them: the members' first, then the given ones.

    Members change, and a client may outlive all nodes that it was given. Each node that it is connected to is
    asked for the members at once, and again every minute.
    """

    def __init__(self, configured: Sequence[Address]) -> None:
        assert configured, "a quorum without addresses"
        self.addresses = list(configured)
        self._configured = list(configured)

    def next_after(self, address: Address) -> Address:
        """The one to try after ``asked``."""
        position = self.addresses.index(address) if address in self.addresses else -1
        return self.addresses[(position + 1) % len(self.addresses)]

    def update_members(self, members: Sequence[Address]) -> None:
        """These are the members now."""
        if not {*members} <= {*self._configured}:  # else the order that was given is as good
            self.addresses = [
                *members,
                *(address for address in self._configured if address not in members),
            ]

    async def refresh_members(self, link: ClientLink) -> None:
        """Learn from one node for as long as it is connected."""
        ended = trio.Event()
        link.on_closed.append(lambda _: ended.set())
        while link.closed is None:
            try:
                reply = await link.request(
                    Op.META_MEMBERS, MembersRequest("show").encode(), timeout_s=ASK_S
                )
                addresses = [parse_host_port(reach.address) for reach in decode_members(reply.body)]
                self.update_members([address for address in addresses if address is not None])
            except DistributedLogError:
                pass  # another node, or the next time
            with trio.move_on_after(REFRESH_MEMBERS_S):
                await ended.wait()
