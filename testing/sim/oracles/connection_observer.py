"""Clients' connections to nodes, as the network shows them: principals, requests and answers.

The observer is a `Tap` that cuts the frames of each connection from a client machine, once for all oracles.
The principal is the node's answer to AUTH. The machine is a fact of the run, which cannot be forged.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from struct import Struct

from ....runtime.interfaces.errors import DistributedLogError, NotAuthenticated
from ....runtime.interfaces.principals import ANONYMOUS, Token
from ....runtime.protocol.frames import REPLY_MORE, Op, error_from
from ....runtime.protocol.handshake import decode_auth, decode_welcome
from ....runtime.protocol.tokens import METHOD as BY_TOKEN
from ....runtime.protocol.tokens import read_token
from ...verify.checks.wire_oracles import FrameCutter
from ..world.network import SimConnection

BY_PASS = "pass"
ASK_NOTHING = (Op.META_WATCH_CANCEL, Op.CREDIT, Op.UNSUBSCRIBE)
"""Operations without an answer. The answer to an earlier request with the same number may still arrive."""
_PASS = Struct("<3sBIQB")
"""| "DP2" | generation u8 | ends u32 s | since u64 | length u8 | principal | mac |"""


@dataclass(slots=True)
class ObservedRequest:
    """A request as it arrived at a node."""

    op: int
    body: bytes
    arrived_at: float
    revision: int
    """Revision of the last authorization change when it arrived."""


@dataclass(slots=True, eq=False)
class ObservedConnection:
    """The state of one connection."""

    machine: str
    """The machine of the client."""
    node: str
    principal: str = ""
    """The principal that the node has authenticated; "" before."""
    token: Token | None = None
    """The token that the client presented, if any."""
    ends_s: int = 0
    """When the presented proof ends, in seconds since 1970; 0 if it never ends."""
    shown_at: float = 0.0
    """When the proof arrived at the node, in virtual time."""
    was_node_stalled: bool = False
    """Whether the node was stalled when the last bytes arrived."""
    ends_at: float = float("inf")
    """Virtual time at which the node must have ended the connection."""
    open_requests: dict[int, ObservedRequest] = field(default_factory=dict)
    request_cutter: FrameCutter = field(default_factory=FrameCutter)
    answer_cutter: FrameCutter = field(default_factory=FrameCutter)


@dataclass(frozen=True, slots=True)
class SessionFrame:
    """A frame that a node sends."""

    request: ObservedRequest | None
    """The request that a REPLY answers."""
    op: int
    status: int
    body: memoryview


class ConnectionOracle:
    """Base class of the oracles that check connections. Each overrides the events that it needs."""

    def on_welcome(self, connection: ObservedConnection) -> None:
        """The node has accepted the client's proof."""

    def on_rejected(self, connection: ObservedConnection, error: DistributedLogError) -> None:
        """The node has rejected the client's proof."""

    def on_request(
        self, connection: ObservedConnection, op: int, flags: int, ident: int, body: memoryview
    ) -> None:
        """A frame has arrived after the authentication."""

    def on_answer(self, connection: ObservedConnection, answer: SessionFrame) -> None:
        """The node sends a frame."""


class ConnectionObserver:
    """Observes all connections of the client machines of a run."""

    def __init__(self, now: Callable[[], float], revision: Callable[[], int]) -> None:
        self.listeners: list[ConnectionOracle] = []
        self._now = now
        self._revision = revision
        self._connections: dict[int, ObservedConnection] = {}

    def on_arrived(self, connection: SimConnection, data: bytes) -> None:
        """Pass the frames of a client to the oracles; see `Tap`."""
        met = self._observed(connection)
        if met is not None:
            met.was_node_stalled = connection.host.stalled
            met.request_cutter.feed(data, partial(self._on_request, met))

    def on_sent(self, connection: SimConnection, data: bytes) -> None:
        """Pass the frames of a node to the oracles; see `Tap`."""
        met = self._observed(connection)
        if met is not None:
            met.answer_cutter.feed(data, partial(self._on_answer, met))

    def _observed(self, sim_connection: SimConnection) -> ObservedConnection | None:
        if sim_connection.is_dialer or sim_connection.peer_end.host.name[0] not in "cx":
            return None
        connection = self._connections.get(sim_connection.serial)
        if connection is None:
            connection = self._connections[sim_connection.serial] = ObservedConnection(
                sim_connection.peer_end.host.name, sim_connection.host.name
            )
        return connection

    def _on_request(
        self,
        connection: ObservedConnection,
        op: int,
        flags: int,
        status: int,
        ident: int,
        body: memoryview,
    ) -> None:
        if op == Op.AUTH:
            self._on_proof(connection, body)
        elif connection.principal:
            if ident and op not in ASK_NOTHING:
                connection.open_requests[ident] = ObservedRequest(
                    op, bytes(body), self._now(), self._revision()
                )
            for listener in self.listeners:
                listener.on_request(connection, op, flags, ident, body)

    def _on_proof(self, connection: ObservedConnection, body: memoryview) -> None:
        connection.shown_at = self._now()
        try:
            method, proof = decode_auth(body, connection.machine)
            if method == BY_TOKEN:
                connection.token = read_token(proof)
                connection.ends_s = connection.token.ends_s
            elif method == BY_PASS and len(proof) > _PASS.size:
                connection.ends_s = _PASS.unpack_from(proof)[2]
        except DistributedLogError:
            return  # the node rejects a proof that cannot be decoded

    def _on_answer(
        self,
        connection: ObservedConnection,
        op: int,
        flags: int,
        status: int,
        ident: int,
        body: memoryview,
    ) -> None:
        if not connection.principal:
            if op == Op.AUTH and not status:
                connection.principal = decode_welcome(body, connection.node).principal or ANONYMOUS
                for listener in self.listeners:
                    listener.on_welcome(connection)
            elif status == NotAuthenticated.code:
                error = error_from(status, body)
                for listener in self.listeners:
                    listener.on_rejected(connection, error)
            return
        request = None
        if op == Op.REPLY:
            has_more = flags & REPLY_MORE
            request = (
                connection.open_requests.get(ident)
                if has_more
                else connection.open_requests.pop(ident, None)
            )
        answer = SessionFrame(request, op, status, body)
        for listener in self.listeners:
            listener.on_answer(connection, answer)
