"""Limits of requests, leases and watches per principal, so that none uses the share of others (pure; H216).

They apply in mode "required", on the leader, and for watches on each node. Nothing of this is in the
replicated state. Nodes and the local owner of a cluster have no limit, so that repair continues during a
flood (H236).

**Requests.** The results of the newest commands are remembered (`request_dedup.py`), so that a repeated
command is not executed again. A client repeats a command for less than `RESEND_WINDOW_S`. If its result is
forgotten earlier, the outcome is unknown. So within this time at most as many commands are accepted as are
remembered. Three quarters are for any principal, and the last quarter is divided equally. A principal that
floods the leader gets only its share of the last quarter, and the results of others are kept.

**Leases and watches** have a limit per principal. The last leases are reserved for nodes.
"""

from collections import deque
from collections.abc import Mapping

from ...runtime.interfaces.errors import OverQuota, TooBusy
from ...runtime.interfaces.principals import ANONYMOUS, LOCAL, SERVERS
from ..model.request_identity import principal_of_client
from ..state.kv_state import LEASES_MAX, KeyValueState
from ..state.request_dedup import RequestDedup

RESEND_WINDOW_S = 35.0
"""Somewhat more than the time limit of a client."""
LEASES_PER_PRINCIPAL_MAX = 1_000
USER_LEASES_MAX = LEASES_MAX - 5_000
SCOPED_TOKENS_MAX = 4 * LEASES_MAX
"""Number of restricted tokens whose principal is stored. More than all leases and remembered results."""
WATCHES_PER_PRINCIPAL_MAX = 10_000
"""Limit on one node, over all connections."""


class PrincipalQuotas:
    """The quotas of all principals on one node."""

    def __init__(self) -> None:
        self._shared_limit = self._fair_share_limit = 0
        self._term = -1
        self._recent_commands: deque[tuple[float, str]] = deque()
        """Time and owner of each accepted command (`request_identity.request_identity`), oldest first."""
        self._count_by_principal: dict[str, int] = {}
        """Number of these commands by principal, if the principal of the owner is known."""
        self._principal_of_owner: dict[str, str] = {}
        """The principal of each known owner that is a restricted token."""
        self._owners_of_principal: dict[str, set[str]] = {}
        """The owners of each principal that sent a request since its leases were counted, or have some."""

    # --- requests ---------------------------------------------------------------------------------

    def begin_term(self, term: int, request_dedup: RequestDedup, now: float) -> None:
        """Start a term as leader. All remembered commands may have been sent just before."""
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
        """Record the principal of a restricted token.

        Called before its command is checked, and when it gets a lease.

        Otherwise a user with a separate restricted token per lease, or after each change of the leader,
        would have no limit. ``leases_of`` has the number of leases per owner.
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

    def request_error(self, principal: str, now: float) -> TooBusy | None:
        """Return why no command of the principal is accepted now, or None.

        Its client retries automatically.
        """
        self._drop_old(now)
        if len(self._recent_commands) < self._shared_limit or is_unlimited(principal):
            return None
        accepted_count = self._count_by_principal.get(principal, 0)
        principal_count = len(self._count_by_principal) + (not accepted_count)
        if accepted_count < self._fair_share_limit // principal_count:
            return None
        return TooBusy(
            f"{principal} sent {accepted_count} of the {len(self._recent_commands)} changes of the last "
            f"{RESEND_WINDOW_S:g} s,"
            " which exceeds its share of remembered results. Retry later"
        )

    def on_accepted(self, owner: str, now: float) -> None:
        """Count a command of that owner that was added to the log."""
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

    def lease_error(self, state: KeyValueState, principal: str) -> OverQuota | None:
        """Return why the principal gets no further lease, or None."""
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
            return OverQuota(
                f"there are {len(state.leases)} leases, and the remaining ones are reserved for nodes"
            )
        return None


def watch_quota_error(principal: str, watches: int) -> OverQuota | None:
    """Return why the principal may not open a further watch on a node with ``watches`` of it, or None."""
    if watches < WATCHES_PER_PRINCIPAL_MAX or is_unlimited(principal):
        return None
    return OverQuota(
        f"{principal} has {watches} watches here, allowed are {WATCHES_PER_PRINCIPAL_MAX}"
    )


def is_unlimited(principal: str) -> bool:
    """Whether the principal has no limits."""
    return principal == LOCAL or principal.partition("/")[0] in SERVERS
