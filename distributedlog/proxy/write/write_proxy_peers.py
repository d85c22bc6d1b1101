"""Connections of a write proxy to other write proxies, to check that they are live and to hand logs over."""

import trio

from ...runtime.interfaces.errors import ConnectionLost, DistributedLogError
from ...runtime.interfaces.principals import PROXY
from ...runtime.net.client_link import ClientLink
from ...runtime.net.rpc import Endpoint
from ...runtime.protocol.frames import Op
from ...runtime.protocol.schema import flag
from ..membership.proxy_registration import ProxyRegistration
from ..protocol.proxy_messages import ProxyCall, decode_answer

TAKE_TIMEOUT_S = 10.0
"""How long the receiver of a log may take to answer. The caller may wait for less."""
REDIAL_DELAY_S = 2.0
"""An unreachable proxy is not dialed again for this time, because a drain hands over log after log."""


class WriteProxyPeers:
    """Connections to other write proxies. `run` must be running for `ask_to_open`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._links: dict[str, ClientLink] = {}
        """By proxy ID."""
        self._dial_locks: dict[str, trio.Lock] = {}
        self._unreachable_since: dict[str, float] = {}
        """When a dial of each proxy failed or started."""
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep connections until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def probe(self, peer: ProxyRegistration) -> None:
        """Connect to a proxy and close the connection, to check that it is live.

        Raises:
            ConnectionLost: The proxy cannot be reached.
            WrongPeer: Another process listens at the address.
            DistributedLogError: The handshake failed for another reason.
        """
        probe_error: DistributedLogError | None = None
        async with trio.open_nursery() as nursery:
            try:
                link = await self._dial(peer, nursery)
                link.close(ConnectionLost("the probe is complete"))
            except DistributedLogError as error:
                probe_error = error  # the nursery would wrap it
            nursery.cancel_scope.cancel()
        if probe_error is not None:
            raise probe_error

    async def ask_to_open(
        self, peer: ProxyRegistration, path: str, name: str, incarnation: str
    ) -> None:
        """Have a proxy open a log that was released, and wait until it has.

        Raises:
            DistributedLogError: The proxy could not open the log.
        """
        link = await self._link_to(peer)
        call = ProxyCall("take", [path, name, incarnation])
        reply = await link.request(Op.PROXY_CALL, call.encode(), timeout_s=TAKE_TIMEOUT_S)
        decode_answer(reply.body, flag, "take")

    async def _link_to(self, peer: ProxyRegistration) -> ClientLink:
        async with self._dial_locks.setdefault(peer.id, trio.Lock()):
            link = self._links.get(peer.id)
            if link is not None and link.closed is None:
                return link
            now = trio.current_time()
            if now - self._unreachable_since.get(peer.id, -REDIAL_DELAY_S) < REDIAL_DELAY_S:
                raise ConnectionLost(f"{peer.label} could not be reached recently")
            assert self._nursery is not None, "`run` is running"
            self._unreachable_since[peer.id] = now  # also if the caller cancels the dial
            link = self._links[peer.id] = await self._dial(peer, self._nursery)
            del self._unreachable_since[peer.id]
            return link

    async def _dial(self, peer: ProxyRegistration, nursery: trio.Nursery) -> ClientLink:
        address = peer.address("")
        if address is None:
            raise ConnectionLost(f"{peer.label} has no address")
        return await self._endpoint.dial(
            address, nursery=nursery, expected_node_id=peer.id, kind=PROXY
        )
