"""Tokens and passes against the clocks of the nodes that take them (H237), and against their revocation (T3).

A node goes by a clock that follows the wall's by a twelfth of what passes, from what that said when the node
began. So at any moment it lies between two lines, however often the wall clock jumps; and what ends by it
ends between the moments at which these two say so. A proxy has no clock for it: it is told by the leader of
the metadata how long a token lasts, whichever node that is just then. Whose tokens were revoked is told
nothing any more.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ....runtime.interfaces.errors import DistributedLogError, NotAuthenticated
from ....runtime.protocol.frames import Op
from ...verify.checks.independent_authorizer import SecondJudge
from ..world.scheduler import EPOCH_S
from .connection_observer import ConnectionOracle, ObservedConnection, SessionFrame

METADATA, PROXIES = "m", "wr"
"""First letters of nodes' names."""
FOLLOWS = 1 / 12
SWEEP_S = 3.0
"""Connections are looked at each second; one look is left out by a node that comes late to it."""
ANSWERS = (Op.META_READ, Op.META_TRANSACT, Op.META_CAPS, Op.META_TRUST)


@dataclass(slots=True)
class _Clock:
    begun_at: float
    """In virtual time, when it began."""
    offset_s: float
    """By how much the wall clock was ahead then."""
    ended_at: float = float("inf")
    """When the node began anew."""

    def possible_range(self, now: float) -> tuple[float, float]:
        """Seconds since 1970 that it may show."""
        estimate, drift_s = EPOCH_S + now + self.offset_s, FOLLOWS * (now - self.begun_at)
        return estimate - drift_s, estimate + drift_s


class TokenEnds(ConnectionOracle):
    """A `ConnectionOracle` of what is said to those who come with a token, or with a pass that ends."""

    def __init__(
        self,
        now: Callable[[], float],
        reference: SecondJudge,
        fail: Callable[[str], None],
        *,
        tolerance_s: float,
        stalled_until: Callable[[str], float],
    ) -> None:
        """``stood_until``: when a node last stood still."""
        self._now = now
        self._stalled_until = stalled_until
        self._reference = reference
        self._fail = fail
        self._tolerance_s = tolerance_s
        self._clocks: dict[str, list[_Clock]] = {}
        """Of each node, of its lives, the present one last."""
        self.accepted_proofs = self.expired_proofs = self.answered_requests = 0
        """Proofs that were taken; refused because they had ended; answers to who came by a token."""

    def on_clock(self, node: str, offset_ms: int) -> None:
        """A node that has begun reads its wall clock, which is wrong by so much."""
        clocks = self._clocks.setdefault(node, [])
        if clocks:
            clocks[-1].ended_at = self._now()
        clocks.append(_Clock(self._now(), offset_ms / 1000))

    def _deciding_clocks(self, connection: ObservedConnection) -> list[_Clock]:
        """What may have said how long that one's proof lasts; none: nobody does."""
        if not connection.ends_s:
            return []
        if connection.node[0] not in PROXIES:
            return self._clocks.get(connection.node, [])[-1:]
        # Any of them may have led since the proof was shown.
        return [
            clock
            for node, clocks in self._clocks.items()
            for clock in clocks
            if node[0] == METADATA and clock.ended_at >= connection.shown_at
        ]

    def on_welcome(self, connection: ObservedConnection) -> None:
        """See `ConnectionOracle`."""
        clocks = self._deciding_clocks(connection)
        if not clocks:
            return
        self.accepted_proofs += 1
        slowest = min(clock.possible_range(connection.shown_at)[0] for clock in clocks)
        left_s = connection.ends_s + self._tolerance_s - slowest
        # A proxy counts from when it was told, which is now.
        connection.ends_at = (
            self._now() if connection.node[0] in PROXIES else connection.shown_at
        ) + max(0.0, left_s)
        if left_s < -1:
            self._fail(
                f"H237: {connection.node} took what had ended {-left_s:.1f} s before by its slowest clock,"
                f" from {connection.machine}"
            )

    def on_rejected(self, connection: ObservedConnection, error: DistributedLogError) -> None:
        """See `ConnectionOracle`."""
        clocks = self._deciding_clocks(connection)
        if not clocks or error.detail != NotAuthenticated.ENDED:
            return
        self.expired_proofs += 1
        fastest = max(clock.possible_range(self._now())[1] for clock in clocks)
        if fastest + 1 < connection.ends_s + self._tolerance_s:
            self._fail(
                f"H237: {connection.node} refused what had"
                f" {connection.ends_s + self._tolerance_s - fastest:.1f} s left by its fastest clock,"
                f" of {connection.machine}"
            )

    def on_answer(self, connection: ObservedConnection, answer: SessionFrame) -> None:
        """See `ConnectionOracle`."""
        request, op, status = answer.request, answer.op, answer.status
        if not connection.ends_s or op != Op.REPLY or request is None or status:
            return
        self.answered_requests += 1
        late_s = request.arrived_at - max(connection.ends_at, self._stalled_until(connection.node))
        if late_s > SWEEP_S and not connection.was_node_stalled:
            self._fail(
                f"H237: {connection.node} answered {connection.machine} on a connection whose proof had ended"
                f" {late_s:.1f} s before"
            )
        if (
            connection.token is None
            or request.op not in ANSWERS
            or not connection.node.startswith("m")
        ):
            return
        valid_since = self._reference.policy_at(request.revision).tokens.get(
            connection.token.user, connection.token.revoked_at_revision
        )
        if connection.token.revoked_at_revision != valid_since:
            self._fail(
                f"T3: {connection.node} answered {connection.machine} by a token of "
                f"{connection.token.principal} that was"
                f" revoked (operation {request.op})"
            )
