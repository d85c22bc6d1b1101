"""Other write proxies, as one of them speaks to them: is it there, and would it take a log."""

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
"""Whoever is asked to take a log has so long to answer; who asked may wait for less."""
REDIAL_DELAY_S = 2.0
"""Who was not reached is not dialled again for so long: a drain asks for log after log."""


class WriteProxyPeers:
    """See the module. `run` must be running for `ask_to_open`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._links: dict[str, ClientLink] = {}
        """By the id of who is there."""
        self._dial_locks: dict[str, trio.Lock] = {}
        self._unreachable_since: dict[str, float] = {}
        """When one was not reached."""
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep connections until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def probe(self, peer: ProxyRegistration) -> None:
        """Dial it and hang up. Raises `ConnectionLost`, `WrongPeer`, and others of a handshake."""
        probe_error: DistributedLogError | None = None
        async with trio.open_nursery() as nursery:
            try:
                link = await self._dial(peer, nursery)
                link.close(ConnectionLost("it is there"))
            except DistributedLogError as error:
                probe_error = error  # the nursery would wrap it
            nursery.cancel_scope.cancel()
        if probe_error is not None:
            raise probe_error

    async def ask_to_open(
        self, peer: ProxyRegistration, path: str, name: str, incarnation: str
    ) -> None:
        """Have it take a log that was given back; returns when it has. Raises what keeps it from that."""
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
                raise ConnectionLost(f"{peer.label} was not reached a moment ago")
            assert self._nursery is not None, "asked while it runs"
            self._unreachable_since[peer.id] = now  # also where whoever asks gives up first
            link = self._links[peer.id] = await self._dial(peer, self._nursery)
            del self._unreachable_since[peer.id]
            return link

    async def _dial(self, peer: ProxyRegistration, nursery: trio.Nursery) -> ClientLink:
        address = peer.address("")
        if address is None:
            raise ConnectionLost(f"{peer.label} gives no address")
        return await self._endpoint.dial(
            address, nursery=nursery, expected_node_id=peer.id, kind=PROXY
        )
