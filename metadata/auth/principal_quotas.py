"""How much one principal may have at the metadata at once, so that it takes nothing from others (pure; H216).

Where rights are required, at the leader and at whoever serves a watch; nothing of it is in the replicated
state. Nodes, and whoever has the secret of a cluster on its own machine, have no bound: what cures a cluster
is not starved by who floods it (H236).

**Requests.** The answers to the newest commands are remembered (`request_dedup.py`), so that one that is sent
again is not done again. A client sends again for less than `RESEND_WINDOW_S`; what is forgotten before that
is unknown to it. So no more commands than are remembered are taken within `RESEND_WINDOW_S`: three quarters
from whoever comes, the last quarter in equal shares. Who floods fills all but his share of that, and others'
answers stay.

**Leases and watches** have a bound a principal; the last leases are for nodes.
"""

from collections import deque
from collections.abc import Mapping

from ...runtime.interfaces.errors import OverQuota, TooBusy
from ...runtime.interfaces.principals import ANONYMOUS, LOCAL, SERVERS
from ..model.request_identity import principal_of_client
from ..state.kv_state import LEASES_MAX, KeyValueState
from ..state.request_dedup import RequestDedup

RESEND_WINDOW_S = 35.0
"""A client's deadline, and some."""
LEASES_PER_PRINCIPAL_MAX = 1_000
USER_LEASES_MAX = LEASES_MAX - 5_000
SCOPED_TOKENS_MAX = 4 * LEASES_MAX
"""Narrowed tokens that are known by whose they are: more than there are leases, and answers remembered."""
WATCHES_PER_PRINCIPAL_MAX = 10_000
"""On one node, over all connections."""


class PrincipalQuotas:
    """Of one node."""

    def __init__(self) -> None:
        self._shared_limit = self._fair_share_limit = 0
        self._term = -1
        self._recent_commands: deque[tuple[float, str]] = deque()
        """When each command was taken, and whose it is (`owners.owner_by`), the oldest first."""
        self._count_by_principal: dict[str, int] = {}
        """By principal, as far as it is heard whose it is."""
        self._principal_of_owner: dict[str, str] = {}
        """Whose a narrowed token is, as far as that was heard: the owner's principal."""
        self._owners_of_principal: dict[str, set[str]] = {}
        """The other way round: those that have asked since its leases were counted last, or have some."""

    # --- requests ---------------------------------------------------------------------------------

    def begin_term(self, term: int, request_dedup: RequestDedup, now: float) -> None:
        """This node leads in that term: all that is remembered may have been asked for just now."""
        if term == self._term:
            return
        self._term = term
        self._shared_limit = request_dedup.size * 3 // 4
        self._fair_share_limit = request_dedup.size - self._shared_limit
        self._recent_commands.clear()
        self._count_by_principal.clear()
        for _, client, _, _, _ in request_dedup.rows():
            self.on_accepted(principal_of_client(client) or ANONYMOUS, now)

    def record_owner(self, owner: str, principal: str, leases_of: Mapping[str, int]) -> None:
        """Whose it is that asks; said before a narrowed token is asked about, and when it gets a lease.

        Else who takes a narrower token for each lease, or waits for another leader, would have no bound.
        ``leases_of``: how many each owner has.
        """
        if owner == principal:
            return
        if owner in self._principal_of_owner:
            self._owners_of_principal.setdefault(principal, set()).add(owner)
            return
        if len(self._principal_of_owner) >= SCOPED_TOKENS_MAX:
            recent_owners = {known_owner for _, known_owner in self._recent_commands}
            self._principal_of_owner = {
                known_owner: known_principal
                for known_owner, known_principal in self._principal_of_owner.items()
                if known_owner in recent_owners or known_owner in leases_of
            }
            self._owners_of_principal = {}
            for known_owner, known_principal in self._principal_of_owner.items():
                self._owners_of_principal.setdefault(known_principal, set()).add(known_owner)
        self._principal_of_owner[owner] = principal
        self._owners_of_principal.setdefault(principal, set()).add(owner)
        if owner in self._count_by_principal:
            self._count_by_principal[principal] = self._count_by_principal.get(
                principal, 0
            ) + self._count_by_principal.pop(owner)

    def why_not_request(self, principal: str, now: float) -> TooBusy | None:
        """Why no command is taken now from this principal: its client comes again by itself."""
        self._drop_old(now)
        if len(self._recent_commands) < self._shared_limit or is_unlimited(principal):
            return None
        accepted_count = self._count_by_principal.get(principal, 0)
        principal_count = len(self._count_by_principal) + (not accepted_count)
        if accepted_count < self._fair_share_limit // principal_count:
            return None
        return TooBusy(
            f"{accepted_count} of the {len(self._recent_commands)} changes of the last "
            f"{RESEND_WINDOW_S:g} s were asked for by"
            f" {principal}: more would push the answers to others out of memory"
        )

    def on_accepted(self, owner: str, now: float) -> None:
        """A command of that owner was put into the log."""
        self._recent_commands.append((now, owner))
        principal = self._principal_of_owner.get(owner, owner)
        self._count_by_principal[principal] = self._count_by_principal.get(principal, 0) + 1

    def _drop_old(self, now: float) -> None:
        recent, counts = self._recent_commands, self._count_by_principal
        while recent and recent[0][0] <= now - RESEND_WINDOW_S:
            _, owner = recent.popleft()
            principal = self._principal_of_owner.get(owner, owner)
            counts[principal] -= 1
            if not counts[principal]:
                del counts[principal]

    # --- leases and watches -----------------------------------------------------------------------

    def why_not_lease(self, state: KeyValueState, principal: str) -> OverQuota | None:
        """Why it gets no further lease."""
        if is_unlimited(principal):
            return None
        counts = state.lease_count_by_owner
        scoped_owners = {
            scoped_owner
            for scoped_owner in self._owners_of_principal.pop(principal, ())
            if scoped_owner in counts
        }
        if scoped_owners:
            self._owners_of_principal[principal] = scoped_owners
        lease_count = counts.get(principal, 0) + sum(
            counts[scoped_owner] for scoped_owner in scoped_owners
        )
        if lease_count >= LEASES_PER_PRINCIPAL_MAX:
            return OverQuota(
                f"{principal} holds {lease_count} leases, allowed are {LEASES_PER_PRINCIPAL_MAX}"
            )
        if len(state.leases) >= USER_LEASES_MAX:
            return OverQuota(f"there are {len(state.leases)} leases: the last ones are for nodes")
        return None


def watch_quota_error(principal: str, watches: int) -> OverQuota | None:
    """Why a node serves it no further watch; ``watches``: those that it has there."""
    if watches < WATCHES_PER_PRINCIPAL_MAX or is_unlimited(principal):
        return None
    return OverQuota(
        f"{principal} has {watches} watches here, allowed are {WATCHES_PER_PRINCIPAL_MAX}"
    )


def is_unlimited(principal: str) -> bool:
    """Has it no bound?"""
    return principal == LOCAL or principal.partition("/")[0] in SERVERS
