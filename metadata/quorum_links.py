"""A client's connections to the nodes of the quorum, made when they are needed; who is asked next."""

from collections.abc import Callable, Sequence

import trio

from ..runtime.errors import (
    AlreadyClosed,
    ConnectionLost,
    DistributedLogError,
    NotReady,
    QuorumUnreachable,
)
from ..runtime.host import Address
from ..runtime.rpc import ClientLink, Endpoint
from .known_nodes import KnownNodes

ATTEMPT_S = 2.0
"""A node that is silent for so long is left."""
PAUSE_S = 0.05
"""Between two attempts when nobody leads."""


class QuorumLinks:
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
        self.known = KnownNodes(addresses)
        self.leader = addresses[0]
        """Where to ask next: the leader as far as we know."""
        self._endpoint = endpoint
        self._on_link = on_link
        self._nursery: trio.Nursery | None = None
        self._over = False
        self._links: dict[Address, ClientLink] = {}
        self._dialing: dict[Address, trio.Event] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the connections until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._over = True

    async def link(
        self, address: Address, deadline: float, *, may_wait: bool = False
    ) -> ClientLink:
        """The connection to a node, made if there is none. Raises what dialling raises.

        Raises `AlreadyClosed` once `run` has ended: whoever says a shielded goodbye may come that late.
        ``may_wait``: also to one that belongs to no cluster; that is not kept.
        """
        while True:
            link = self._links.get(address)
            if link is not None and link.closed is None:
                return link
            dialing = self._dialing.get(address)
            if dialing is None:
                break
            await dialing.wait()
        assert self._nursery is not None, "QuorumLinks.run is not running"
        if self._over:
            raise AlreadyClosed("the metadata client has ended")
        done = self._dialing[address] = trio.Event()
        try:
            with trio.move_on_at(min(deadline, trio.current_time() + ATTEMPT_S)):
                try:
                    link = await self._endpoint.dial(address, nursery=self._nursery)
                except RuntimeError:  # the nursery ended while the connection was made
                    if not self._over:
                        raise
                    raise AlreadyClosed("the metadata client has ended") from None
                if not link.peer.cluster_id and may_wait:
                    return link
                if not link.peer.cluster_id:
                    link.close(NotReady(f"{link.peer_address} belongs to no cluster yet"))
                    raise NotReady(f"{link.peer_address} belongs to no cluster yet")
                self._links[address] = link
                self.cluster_id = self.cluster_id or link.peer.cluster_id
                self.listener = link.listener
                self._on_link(link)
                self._nursery.start_soon(self.known.keep_up, link)
                return link
            raise ConnectionLost(f"{address[0]}:{address[1]} did not answer within {ATTEMPT_S:g} s")
        finally:
            del self._dialing[address]
            done.set()

    async def any_link(self) -> ClientLink:
        """A connection to whichever node answers, the leader first. Raises `QuorumUnreachable`."""
        deadline = trio.current_time() + self.timeout_s
        last: DistributedLogError | None = None
        while trio.current_time() < deadline:
            address = self.leader
            try:
                return await self.link(address, deadline)
            except DistributedLogError as error:
                last = error
                self.next_after(address)
                await trio.sleep(PAUSE_S)
        raise self.unreachable(f"{last}")

    def turn(self) -> None:
        """Ask the next node from now on."""
        self.next_after(self.leader)

    def follow(self, asked: Address, leader: str) -> bool:
        """Ask the node that was named as leader next; False if that says nothing new."""
        host, _, port = leader.rpartition(":")
        if host and port.isdigit() and (host, int(port)) != asked:
            self.leader = (host, int(port))
            return True
        self.next_after(asked)
        return False

    def next_after(self, asked: Address) -> None:
        """``asked`` was of no help: ask the next node, unless somebody else has turned already."""
        if self.leader != asked:
            return
        self.leader = self.known.after(asked)

    def unreachable(self, last: str) -> QuorumUnreachable:
        """Nobody answered in time: the error names all who were asked."""
        places = ", ".join(f"{host}:{port}" for host, port in self.known.all)
        return QuorumUnreachable(
            f"no node of the metadata quorum at {places} could be reached within"
            f" {self.timeout_s:g} s (last: {last})"
        )
