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
    at: float
    """In virtual time, when it began."""
    wrong_s: float
    """By how much the wall clock was ahead then."""
    until: float = float("inf")
    """When the node began anew."""

    def between(self, now: float) -> tuple[float, float]:
        """Seconds since 1970 that it may show."""
        true, strayed = EPOCH_S + now + self.wrong_s, FOLLOWS * (now - self.at)
        return true - strayed, true + strayed


class TokenEnds(ConnectionOracle):
    """A `ConnectionOracle` of what is said to those who come with a token, or with a pass that ends."""

    def __init__(
        self,
        now: Callable[[], float],
        judge: SecondJudge,
        fail: Callable[[str], None],
        *,
        tolerance_s: float,
        stood_until: Callable[[str], float],
    ) -> None:
        """``stood_until``: when a node last stood still."""
        self._now = now
        self._stood_until = stood_until
        self._judge = judge
        self._fail = fail
        self._tolerance_s = tolerance_s
        self._clocks: dict[str, list[_Clock]] = {}
        """Of each node, of its lives, the present one last."""
        self.taken = self.ended = self.answered = 0
        """Proofs that were taken; refused because they had ended; answers to who came by a token."""

    def on_clock(self, node: str, wrong_ms: int) -> None:
        """A node that has begun reads its wall clock, which is wrong by so much."""
        lives = self._clocks.setdefault(node, [])
        if lives:
            lives[-1].until = self._now()
        lives.append(_Clock(self._now(), wrong_ms / 1000))

    def _goes_by(self, met: ObservedConnection) -> list[_Clock]:
        """What may have said how long that one's proof lasts; none: nobody does."""
        if not met.ends_s:
            return []
        if met.node[0] not in PROXIES:
            return self._clocks.get(met.node, [])[-1:]
        # Any of them may have led since the proof was shown.
        return [
            clock
            for node, lives in self._clocks.items()
            for clock in lives
            if node[0] == METADATA and clock.until >= met.shown_at
        ]

    def on_welcome(self, met: ObservedConnection) -> None:
        """See `ConnectionOracle`."""
        clocks = self._goes_by(met)
        if not clocks:
            return
        self.taken += 1
        slowest = min(clock.between(met.shown_at)[0] for clock in clocks)
        left_s = met.ends_s + self._tolerance_s - slowest
        # A proxy counts from when it was told, which is now.
        met.until = (self._now() if met.node[0] in PROXIES else met.shown_at) + max(0.0, left_s)
        if left_s < -1:
            self._fail(
                f"H237: {met.node} took what had ended {-left_s:.1f} s before by its slowest clock,"
                f" from {met.machine}"
            )

    def on_turned_away(self, met: ObservedConnection, error: DistributedLogError) -> None:
        """See `ConnectionOracle`."""
        clocks = self._goes_by(met)
        if not clocks or error.detail != NotAuthenticated.ENDED:
            return
        self.ended += 1
        fastest = max(clock.between(self._now())[1] for clock in clocks)
        if fastest + 1 < met.ends_s + self._tolerance_s:
            self._fail(
                f"H237: {met.node} refused what had"
                f" {met.ends_s + self._tolerance_s - fastest:.1f} s left by its fastest clock,"
                f" of {met.machine}"
            )

    def on_answer(self, met: ObservedConnection, answer: SessionFrame) -> None:
        """See `ConnectionOracle`."""
        asked, op, status = answer.asked, answer.op, answer.status
        if not met.ends_s or op != Op.REPLY or asked is None or status:
            return
        self.answered += 1
        late_s = asked.at - max(met.until, self._stood_until(met.node))
        if late_s > SWEEP_S and not met.node_stood:
            self._fail(
                f"H237: {met.node} answered {met.machine} on a connection whose proof had ended"
                f" {late_s:.1f} s before"
            )
        if met.token is None or asked.op not in ANSWERS or not met.node.startswith("m"):
            return
        number = self._judge.at(asked.revision).tokens.get(met.token.user, met.token.since)
        if met.token.since != number:
            self._fail(
                f"T3: {met.node} answered {met.machine} by a token of {met.token.principal} that was"
                f" revoked (operation {asked.op})"
            )
