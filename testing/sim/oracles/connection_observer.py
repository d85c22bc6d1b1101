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
    at: float
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
    node_stood: bool = False
    """Did the node stand still when something arrived last?"""
    until: float = float("inf")
    """At the latest it is over then, in virtual time."""
    asked: dict[int, Asked] = field(default_factory=dict)
    arriving: FrameCutter = field(default_factory=FrameCutter)
    leaving: FrameCutter = field(default_factory=FrameCutter)


@dataclass(frozen=True, slots=True)
class SessionFrame:
    """A frame that leaves a node."""

    asked: Asked | None
    """What it answers, of a REPLY."""
    op: int
    status: int
    body: memoryview


class ConnectionOracle:
    """Judges connections, by what of them it wants to hear."""

    def on_welcome(self, met: ObservedConnection) -> None:
        """The node has taken what was shown."""

    def on_turned_away(self, met: ObservedConnection, error: DistributedLogError) -> None:
        """It has not."""

    def on_request(
        self, met: ObservedConnection, op: int, flags: int, ident: int, body: memoryview
    ) -> None:
        """A frame has arrived, after the welcome."""

    def on_answer(self, met: ObservedConnection, answer: SessionFrame) -> None:
        """A frame leaves."""


class ConnectionObserver:
    """All of a run, of the clients' machines."""

    def __init__(self, now: Callable[[], float], revision: Callable[[], int]) -> None:
        self.listeners: list[ConnectionOracle] = []
        self._now = now
        self._revision = revision
        self._met: dict[int, ObservedConnection] = {}

    def on_arrived(self, end: SimConnection, data: bytes) -> None:
        """See `Tap`."""
        met = self._of(end)
        if met is not None:
            met.node_stood = end.host.stalled
            met.arriving.feed(data, partial(self._on_request, met))

    def on_sent(self, end: SimConnection, data: bytes) -> None:
        """See `Tap`."""
        met = self._of(end)
        if met is not None:
            met.leaving.feed(data, partial(self._on_answer, met))

    def _of(self, end: SimConnection) -> ObservedConnection | None:
        if end.dialled or end.far.host.name[0] not in "cx":
            return None
        met = self._met.get(end.serial)
        if met is None:
            met = self._met[end.serial] = ObservedConnection(end.far.host.name, end.host.name)
        return met

    def _on_request(
        self,
        met: ObservedConnection,
        op: int,
        flags: int,
        status: int,
        ident: int,
        body: memoryview,
    ) -> None:
        if op == Op.AUTH:
            self._on_proof(met, body)
        elif met.principal:
            if ident and op not in ASK_NOTHING:
                met.asked[ident] = Asked(op, bytes(body), self._now(), self._revision())
            for listener in self.listeners:
                listener.on_request(met, op, flags, ident, body)

    def _on_proof(self, met: ObservedConnection, body: memoryview) -> None:
        met.shown_at = self._now()
        try:
            method, proof = decode_auth(body, met.machine)
            if method == BY_TOKEN:
                met.token = read_token(proof)
                met.ends_s = met.token.ends_s
            elif method == BY_PASS and len(proof) > _PASS.size:
                met.ends_s = _PASS.unpack_from(proof)[2]
        except DistributedLogError:
            return  # what cannot be read is refused

    def _on_answer(
        self,
        met: ObservedConnection,
        op: int,
        flags: int,
        status: int,
        ident: int,
        body: memoryview,
    ) -> None:
        if not met.principal:
            if op == Op.AUTH and not status:
                met.principal = decode_welcome(body, met.node).principal or ANONYMOUS
                for listener in self.listeners:
                    listener.on_welcome(met)
            elif status == NotAuthenticated.code:
                error = error_from(status, body)
                for listener in self.listeners:
                    listener.on_turned_away(met, error)
            return
        asked = None
        if op == Op.REPLY:
            more = flags & REPLY_MORE
            asked = met.asked.get(ident) if more else met.asked.pop(ident, None)
        answer = SessionFrame(asked, op, status, body)
        for listener in self.listeners:
            listener.on_answer(met, answer)
