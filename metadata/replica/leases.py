"""The leader's part of leases: keep-alives in memory, and ends by proposal (H19, M7).

The replicated state has no clock. A new leader grants every lease its full time again, and proposes the end
of leases that are not renewed. It answers a keep-alive only after a quorum round that began later, so that
a deposed leader keeps no lease alive. It never answers one after it has proposed the end of the lease.

A lease belongs to the connection on which it was last granted or renewed. If this connection ends, its
holder has died or reconnects immediately (as `metadata_client.py` does). The lease then ends
`CLOSED_LINK_TTL_S` later, unless it is renewed.
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
"""Interval of the checks of all leases."""
CLOSED_LINK_TTL_S = 0.8
"""Remaining time of a lease after its connection has closed.

With a check and a commit, less than a second.
"""
NEW_LEADER_TTL_MIN_S = 5.0
"""Minimum time that a new leader grants a lease without a known connection.

Its holder has to find the new leader first.
"""
SKIP_LATE_CHECK_S = 1.0
"""A check is skipped if the task wakes up later than this."""


class Leases:
    """The deadlines of all leases, while this node leads."""

    def __init__(self, replica: RaftReplica) -> None:
        self._replica = replica
        self._deadlines: dict[int, float] = {}
        self._links: dict[int, Link] = {}
        """The connection that each lease belongs to, if it is known."""
        self._expiring: dict[int, None] = {}

    def on_role(self) -> None:
        """Drop all deadlines. A new leader does not know earlier renewals."""
        self._deadlines.clear()
        self._links.clear()
        self._expiring.clear()

    def on_late(self, lateness_s: float) -> None:
        """Postpone all deadlines after a stall, during which no client could renew."""
        for lease in self._deadlines:
            self._deadlines[lease] += lateness_s

    def on_granted(self, lease: int, link: Link) -> None:
        """Start the time of a lease that was granted now or earlier to the client of ``link``."""
        lease_state = self._replica.state.leases.get(lease)
        if lease_state is not None and self._replica.is_leader:
            self._extend(lease, link, trio.current_time() + lease_state.ttl_ms / 1000)

    def on_closed(self, link: Link) -> None:
        """Shorten the time of all leases that belong to a closed connection."""
        deadline = trio.current_time() + CLOSED_LINK_TTL_S
        for lease in [lease for lease, lease_link in self._links.items() if lease_link is link]:
            del self._links[lease]
            self._deadlines[lease] = min(self._deadlines[lease], deadline)

    def _extend(self, lease: int, link: Link, deadline: float) -> None:
        """Extend a lease after a message of its holder on ``link``.

        If ``link`` has closed since, the lease gets only the short time. A late message on an older
        connection extends the lease, but does not move it back there, because its holder uses the newer
        connection.
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
        """Renew a lease after a keep-alive on ``link``.

        Args:
            lease: The lease.
            link: The connection of the request.
            reply: Receives None when a later quorum round has confirmed that this node leads, or the error.
        """
        requested_at = trio.current_time()

        def confirmed(error: DistributedLogError | None) -> None:
            lease_state = self._replica.state.leases.get(lease)
            if error is None and (lease_state is None or lease in self._expiring):
                error = LeaseExpired(f"lease {lease} does not exist or has ended")
            elif error is None:
                error = self.why_not(lease, request_identity(link.principal, link.token))
            if error is None and lease_state is not None:
                self._extend(lease, link, requested_at + lease_state.ttl_ms / 1000)
            reply(error)

        self._replica.read_linearizable(confirmed)

    def why_not(self, lease: int, principal: str) -> DistributedLogError | None:
        """Return why this principal may neither renew nor end the lease (H217), or None if it may.

        The lease must belong to the principal. A lease without an owner, which an anonymous client or an
        older version created, can be used by any client that has its number.
        """
        state = self._replica.state
        lease_state = state.leases.get(lease)
        if lease_state is None:
            if not self._replica.has_caught_up:
                return TooBusy("this metadata node has just become leader. Retry later")
            if lease < state.next_lease:
                return None
            # It may be granted to another principal before this request is applied.
            return NotAllowed(f"{principal} may not use lease {lease}: it is not granted yet")
        if lease_state.owner in ("", principal):
            return None
        return NotAllowed(f"{principal} may not use lease {lease}: it belongs to another principal")

    async def run(self) -> None:
        """Propose the end of expired leases, until cancelled."""
        while True:
            slept_at = trio.current_time()
            await trio.sleep(LEASE_CHECK_S)
            replica, now = self._replica, trio.current_time()
            if not replica.is_leader or now > slept_at + SKIP_LATE_CHECK_S:
                continue  # `on_late` postpones the deadlines first
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
            # not leader, or too busy: the next check tries again
            if isinstance(answer, DistributedLogError):
                self._expiring.pop(lease, None)

        return done
