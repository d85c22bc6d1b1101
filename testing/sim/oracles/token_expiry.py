"""Check tokens and passes against the clocks of the nodes that accept them (H237), and their revocation (T3).

A node uses a clock that starts with its wall clock and afterwards follows it by at most a twelfth of the
elapsed time. Its possible values are thus between two lines, no matter how often the wall clock jumps. A
proof must end between the times at which the lines reach its end. A proxy has no such clock. The metadata
leader, which may be any metadata node, returns the remaining lifetime of a token. A node must not answer
requests with revoked tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ....runtime.interfaces.errors import DistributedLogError, NotAuthenticated
from ....runtime.protocol.frames import Op
from ...verify.checks.independent_authorizer import IndependentAuthorizer
from ..world.scheduler import EPOCH_S
from .connection_observer import ConnectionOracle, ObservedConnection, SessionFrame

METADATA, PROXIES = "m", "wr"
"""First letters of the names of metadata nodes and of proxies."""
FOLLOWS = 1 / 12
SWEEP_S = 3.0
"""Nodes check their connections every second. A node that is late may skip a check."""
ANSWERS = (Op.META_READ, Op.META_TRANSACT, Op.META_CAPS, Op.META_TRUST)


@dataclass(slots=True)
class _Clock:
    begun_at: float
    """Virtual time at which the node began."""
    offset_s: float
    """How far its wall clock was ahead then."""
    ended_at: float = float("inf")
    """Virtual time at which the node restarted."""

    def possible_range(self, now: float) -> tuple[float, float]:
        """Return the lowest and highest time that the clock may show, in seconds since 1970."""
        estimate, drift_s = EPOCH_S + now + self.offset_s, FOLLOWS * (now - self.begun_at)
        return estimate - drift_s, estimate + drift_s


class TokenExpiryOracle(ConnectionOracle):
    """A `ConnectionOracle` of clients with a token or with a pass that ends."""

    def __init__(
        self,
        now: Callable[[], float],
        reference: IndependentAuthorizer,
        fail: Callable[[str], None],
        *,
        tolerance_s: float,
        stalled_until: Callable[[str], float],
    ) -> None:
        """Create the oracle.

        Args:
            tolerance_s: How long nodes accept a proof after its end.
            stalled_until: Returns when the last stall of a node ended.
        """
        self._now = now
        self._stalled_until = stalled_until
        self._reference = reference
        self._fail = fail
        self._tolerance_s = tolerance_s
        self._clocks: dict[str, list[_Clock]] = {}
        """The clock of each process life of a node, the present one last."""
        self.accepted_proofs = self.expired_proofs = self.answered_requests = 0
        """Numbers of accepted proofs, of proofs rejected as ended, and of answers to checked clients."""

    def on_clock(self, node: str, offset_ms: int) -> None:
        """Record that a node has started with a wall clock that is wrong by ``offset_ms``."""
        clocks = self._clocks.setdefault(node, [])
        if clocks:
            clocks[-1].ended_at = self._now()
        clocks.append(_Clock(self._now(), offset_ms / 1000))

    def _deciding_clocks(self, connection: ObservedConnection) -> list[_Clock]:
        """Return the clocks that may decide how long the client's proof lasts, or none if it never ends."""
        if not connection.ends_s:
            return []
        if connection.node[0] not in PROXIES:
            return self._clocks.get(connection.node, [])[-1:]
        # Each of these nodes may have been the leader since the proof arrived.
        return [
            clock
            for node, clocks in self._clocks.items()
            for clock in clocks
            if node[0] == METADATA and clock.ended_at >= connection.shown_at
        ]

    def on_welcome(self, connection: ObservedConnection) -> None:
        """Check that an accepted proof had not ended; see `ConnectionOracle`."""
        clocks = self._deciding_clocks(connection)
        if not clocks:
            return
        self.accepted_proofs += 1
        slowest = min(clock.possible_range(connection.shown_at)[0] for clock in clocks)
        left_s = connection.ends_s + self._tolerance_s - slowest
        # A proxy counts from the leader's answer, which is now.
        connection.ends_at = (
            self._now() if connection.node[0] in PROXIES else connection.shown_at
        ) + max(0.0, left_s)
        if left_s < -1:
            self._fail(
                f"H237: {connection.node} accepted a proof that had ended {-left_s:.1f} s before"
                f" by its slowest clock,"
                f" from {connection.machine}"
            )

    def on_rejected(self, connection: ObservedConnection, error: DistributedLogError) -> None:
        """Check that a proof rejected as ended had really ended; see `ConnectionOracle`."""
        clocks = self._deciding_clocks(connection)
        if not clocks or error.detail != NotAuthenticated.ENDED:
            return
        self.expired_proofs += 1
        fastest = max(clock.possible_range(self._now())[1] for clock in clocks)
        if fastest + 1 < connection.ends_s + self._tolerance_s:
            self._fail(
                f"H237: {connection.node} rejected a proof with"
                f" {connection.ends_s + self._tolerance_s - fastest:.1f} s left by its fastest clock,"
                f" of {connection.machine}"
            )

    def on_answer(self, connection: ObservedConnection, answer: SessionFrame) -> None:
        """Check that no request is answered after the end or the revocation of the client's proof."""
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
                f"T3: {connection.node} answered {connection.machine} for a revoked token of "
                f"{connection.token.principal}"
                f" (operation {request.op})"
            )
