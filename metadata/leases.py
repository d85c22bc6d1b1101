"""The leader's side of leases: keep-alives in its memory, ends by proposal (H19, M7).

No clock is in the replicated state. A leader that begins grants every lease its full time anew; it proposes
the end of those that nobody renewed. A keep-alive is answered only after a quorum round that began later, so
that a leader that was deposed keeps nothing alive; and never once the lease's end has been proposed.
"""

from collections.abc import Callable

import trio

from ..runtime.errors import DistributedLogError, LeaseExpired
from .answers import Answer
from .commands import Expire, encode_command
from .replica import Replica

STEP_S = 0.1
"""How often the leases are looked at, in seconds."""
STALLED_S = 1.0
"""A look that comes so late is left out."""


class Leases:
    """The deadlines of all leases, while this node leads."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._deadlines: dict[int, float] = {}
        self._ending: dict[int, None] = {}

    def on_role(self) -> None:
        """A new leader knows nothing of what was renewed before it."""
        self._deadlines.clear()
        self._ending.clear()

    def on_late(self, lateness_s: float) -> None:
        """We were stalled: nobody could renew in that time."""
        for lease in self._deadlines:
            self._deadlines[lease] += lateness_s

    def renew(self, lease: int, reply: Callable[[DistributedLogError | None], None]) -> None:
        """A keep-alive came in; ``reply`` is told when a later quorum round has confirmed us."""
        asked_at = trio.current_time()

        def confirmed(error: DistributedLogError | None) -> None:
            held = self._replica.state.leases.get(lease)
            if error is None and (held is None or lease in self._ending):
                error = LeaseExpired(f"lease {lease} is gone")
            if error is None and held is not None:
                renewed_to = asked_at + held.ttl_ms / 1000
                self._deadlines[lease] = max(self._deadlines.get(lease, 0.0), renewed_to)
            reply(error)

        self._replica.read(confirmed)

    async def run(self) -> None:
        """Propose the end of leases that are due."""
        while True:
            before = trio.current_time()
            await trio.sleep(STEP_S)
            replica, now = self._replica, trio.current_time()
            if not replica.leads or now > before + STALLED_S:
                continue  # what a stall means `on_late` says first
            for lease in [known for known in self._deadlines if known not in replica.state.leases]:
                del self._deadlines[lease]
                self._ending.pop(lease, None)
            for lease, held in replica.state.leases.items():
                deadline = self._deadlines.setdefault(lease, now + held.ttl_ms / 1000)
                if deadline <= now and lease not in self._ending:
                    self._ending[lease] = None
                    replica.propose(encode_command(Expire(lease=lease)), self._ended(lease))
            replica.drain()

    def _ended(self, lease: int) -> Callable[[Answer | DistributedLogError], None]:
        def done(answer: Answer | DistributedLogError) -> None:
            if isinstance(
                answer, DistributedLogError
            ):  # not led any more, or too busy: it is looked at again
                self._ending.pop(lease, None)

        return done
