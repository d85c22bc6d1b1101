"""The leader's side of leases: keep-alives in its memory, ends by proposal (H19, M7).

No clock is in the replicated state. A leader that begins grants every lease its full time anew; it proposes
the end of those that nobody renewed. A keep-alive is answered only after a quorum round that began later, so
that a leader that was deposed keeps nothing alive; and never once the lease's end has been proposed.

A lease belongs to the connection that it was granted or renewed on last. When that one ends, its holder has
died, or comes back at once (`metadata_client.py` does): the lease ends `CLOSED_LINK_TTL_S` later, unless it
was renewed.
"""

from collections.abc import Callable

import trio

from ...runtime.interfaces.errors import DistributedLogError, LeaseExpired, NotAllowed, TooBusy
from ...runtime.net.link import Link
from ..model.command_results import CommandResult
from ..model.commands import ExpireLease, encode_command
from ..model.request_identity import request_identity
from .replica import RaftReplica

LEASE_CHECK_S = 0.1
"""How often the leases are looked at, in seconds."""
CLOSED_LINK_TTL_S = 0.8
"""So long a lease outlives the connection it belongs to: with a look and a commit less than a second."""
NEW_LEADER_TTL_MIN_S = 5.0
"""A new leader gives a lease of unknown connection so much at least: all holders have to find it first."""
SKIP_LATE_CHECK_S = 1.0
"""A look that comes so late is left out."""


class Leases:
    """The deadlines of all leases, while this node leads."""

    def __init__(self, replica: RaftReplica) -> None:
        self._replica = replica
        self._deadlines: dict[int, float] = {}
        self._links: dict[int, Link] = {}
        """The connection that each lease belongs to, where one is known."""
        self._expiring: dict[int, None] = {}

    def on_role(self) -> None:
        """A new leader knows nothing of what was renewed before it."""
        self._deadlines.clear()
        self._links.clear()
        self._expiring.clear()

    def on_late(self, lateness_s: float) -> None:
        """We were stalled: nobody could renew in that time."""
        for lease in self._deadlines:
            self._deadlines[lease] += lateness_s

    def on_granted(self, lease: int, link: Link) -> None:
        """A lease was made, or was made before, for whoever asks over ``link``."""
        lease_state = self._replica.state.leases.get(lease)
        if lease_state is not None and self._replica.is_leader:
            self._extend(lease, link, trio.current_time() + lease_state.ttl_ms / 1000)

    def on_closed(self, link: Link) -> None:
        """A connection has ended: what belongs to it does soon."""
        deadline = trio.current_time() + CLOSED_LINK_TTL_S
        for lease in [lease for lease, lease_link in self._links.items() if lease_link is link]:
            del self._links[lease]
            self._deadlines[lease] = min(self._deadlines[lease], deadline)

    def _extend(self, lease: int, link: Link, deadline: float) -> None:
        """Its holder was heard on ``link``, which may have ended meanwhile: then it was heard too early.

        What comes late on an older connection than the lease belongs to is a sign of life, and takes the
        lease along no more: its holder has left that one.
        """
        current_link = self._links.get(lease)
        if link.closed is None:
            if current_link is None or current_link.created_at <= link.created_at:
                self._links[lease] = link
        elif self._links.get(lease, link) is link:
            self._links.pop(lease, None)
            deadline = min(deadline, trio.current_time() + CLOSED_LINK_TTL_S)
        self._deadlines[lease] = max(self._deadlines.get(lease, 0.0), deadline)

    def renew(
        self, lease: int, link: Link, reply: Callable[[DistributedLogError | None], None]
    ) -> None:
        """A keep-alive came in on ``link``; ``reply`` is told when a later quorum round has confirmed us."""
        requested_at = trio.current_time()

        def confirmed(error: DistributedLogError | None) -> None:
            lease_state = self._replica.state.leases.get(lease)
            if error is None and (lease_state is None or lease in self._expiring):
                error = LeaseExpired(f"lease {lease} is gone")
            elif error is None:
                error = self.why_not(lease, request_identity(link.principal, link.token))
            if error is None and lease_state is not None:
                self._extend(lease, link, requested_at + lease_state.ttl_ms / 1000)
            reply(error)

        self._replica.read_linearizable(confirmed)

    def why_not(self, lease: int, principal: str) -> DistributedLogError | None:
        """Why this principal neither keeps nor ends that lease: it is another one's (H217).

        One without an owner, of an anonymous client or of a version before, is whoever's knows its number.
        """
        state = self._replica.state
        lease_state = state.leases.get(lease)
        if lease_state is None:
            if not self._replica.has_caught_up:
                return TooBusy("this metadata node has just begun to lead: come again")
            if lease < state.next_lease:
                return None
            # It may be granted before what is asked here is applied: to somebody else.
            return NotAllowed(f"{principal} may not touch lease {lease}: nobody has it yet")
        if lease_state.owner in ("", principal):
            return None
        return NotAllowed(f"{principal} may not touch lease {lease}: it is another's")

    async def run(self) -> None:
        """Propose the end of leases that are due."""
        while True:
            slept_at = trio.current_time()
            await trio.sleep(LEASE_CHECK_S)
            replica, now = self._replica, trio.current_time()
            if not replica.is_leader or now > slept_at + SKIP_LATE_CHECK_S:
                continue  # what a stall means `on_late` says first
            for lease in [
                tracked for tracked in self._deadlines if tracked not in replica.state.leases
            ]:
                del self._deadlines[lease]
                self._links.pop(lease, None)
                self._expiring.pop(lease, None)
            for lease, lease_state in replica.state.leases.items():
                ttl_s = max(lease_state.ttl_ms / 1000, NEW_LEADER_TTL_MIN_S)
                deadline = self._deadlines.setdefault(lease, now + ttl_s)
                if deadline <= now and lease not in self._expiring:
                    self._expiring[lease] = None
                    replica.propose(
                        encode_command(ExpireLease(lease=lease)), self._on_expire_result(lease)
                    )
            replica.drain()

    def _on_expire_result(
        self, lease: int
    ) -> Callable[[CommandResult | DistributedLogError], None]:
        def done(answer: CommandResult | DistributedLogError) -> None:
            if isinstance(answer, DistributedLogError):  # not led, or too busy: looked at again
                self._expiring.pop(lease, None)

        return done
