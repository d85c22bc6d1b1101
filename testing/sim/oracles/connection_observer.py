"""Clients' connections to nodes as the wire shows them: who came, what he asked, what he was told.

A `Tap` that cuts the frames of each connection which a client's machine has dialled, once for all that judge
them. Who is there is what the node has answered to AUTH; which machine it was is a fact of the run, that
nobody can forge.
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
"""Of what was asked under that number: the answer may be on its way yet."""
_PASS = Struct("<3sBIQB")
"""| "DP2" | generation u8 | ends u32 s | since u64 | length u8 | principal | mac |"""


@dataclass(slots=True)
class Asked:
    """A request as it arrived at a node."""

    op: int
    body: bytes
    arrived_at: float
    revision: int
    """Of the last change of who may do what, by then."""


@dataclass(slots=True, eq=False)
class ObservedConnection:
    """One connection."""

    machine: str
    """Who has dialled."""
    node: str
    principal: str = ""
    """Who the node says that it is; "" before."""
    token: Token | None = None
    """That was shown."""
    ends_s: int = 0
    """What was shown ends then, seconds since 1970; 0: never."""
    shown_at: float = 0.0
    """When it arrived."""
    was_node_stalled: bool = False
    """Did the node stand still when something arrived last?"""
    ends_at: float = float("inf")
    """At the latest it is over then, in virtual time."""
    open_requests: dict[int, Asked] = field(default_factory=dict)
    request_cutter: FrameCutter = field(default_factory=FrameCutter)
    answer_cutter: FrameCutter = field(default_factory=FrameCutter)


@dataclass(frozen=True, slots=True)
class SessionFrame:
    """A frame that leaves a node."""

    request: Asked | None
    """What it answers, of a REPLY."""
    op: int
    status: int
    body: memoryview


class ConnectionOracle:
    """Judges connections, by what of them it wants to hear."""

    def on_welcome(self, connection: ObservedConnection) -> None:
        """The node has taken what was shown."""

    def on_rejected(self, connection: ObservedConnection, error: DistributedLogError) -> None:
        """It has not."""

    def on_request(
        self, connection: ObservedConnection, op: int, flags: int, ident: int, body: memoryview
    ) -> None:
        """A frame has arrived, after the welcome."""

    def on_answer(self, connection: ObservedConnection, answer: SessionFrame) -> None:
        """A frame leaves."""


class ConnectionObserver:
    """All of a run, of the clients' machines."""

    def __init__(self, now: Callable[[], float], revision: Callable[[], int]) -> None:
        self.listeners: list[ConnectionOracle] = []
        self._now = now
        self._revision = revision
        self._connections: dict[int, ObservedConnection] = {}

    def on_arrived(self, connection: SimConnection, data: bytes) -> None:
        """See `Tap`."""
        met = self._observed(connection)
        if met is not None:
            met.was_node_stalled = connection.host.stalled
            met.request_cutter.feed(data, partial(self._on_request, met))

    def on_sent(self, connection: SimConnection, data: bytes) -> None:
        """See `Tap`."""
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
                connection.open_requests[ident] = Asked(
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
            return  # what cannot be read is refused

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
