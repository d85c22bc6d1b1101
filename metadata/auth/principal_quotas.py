"""How much one principal may have at the metadata at once, so that it takes nothing from others (pure; H216).

Where rights are required, at the leader and at whoever serves a watch; nothing of it is in the replicated
state. Nodes, and whoever has the secret of a cluster on its own machine, have no bound: what cures a cluster
is not starved by who floods it (H236).

**Requests.** The answers to the newest commands are remembered (`request_dedup.py`), so that one that is sent
again is not done again. A client sends again for less than `FRESH_S`; what is forgotten before that is
unknown to it. So no more commands than are remembered are taken within `FRESH_S`: three quarters from whoever
comes, the last quarter in equal shares. Who floods fills all but his share of that, and others' answers stay.

**Leases and watches** have a bound a principal; the last leases are for nodes.
"""

from collections import deque
from collections.abc import Mapping

from ...runtime.interfaces.errors import OverQuota, TooBusy
from ...runtime.interfaces.principals import ANONYMOUS, LOCAL, SERVERS
from ..model.request_identity import owner_of
from ..state.kv_state import LEASES_MAX, KeyValueState
from ..state.request_dedup import RequestDedup

FRESH_S = 35.0
"""A client's deadline, and some."""
LEASES_OF_ONE_MAX = 1_000
LEASES_OF_USERS_MAX = LEASES_MAX - 5_000
NARROWED_MAX = 4 * LEASES_MAX
"""Narrowed tokens that are known by whose they are: more than there are leases, and answers remembered."""
WATCHES_OF_ONE_MAX = 10_000
"""On one node, over all connections."""


class Quotas:
    """Of one node."""

    def __init__(self) -> None:
        self._open_to_all = self._in_shares = 0
        self._term = -1
        self._fresh: deque[tuple[float, str]] = deque()
        """When each command was taken, and whose it is (`owners.owner_by`), the oldest first."""
        self._taken: dict[str, int] = {}
        """By principal, as far as it is heard whose it is."""
        self._narrowed: dict[str, str] = {}
        """Whose a narrowed token is, as far as that was heard: the owner's principal."""
        self._narrowings: dict[str, set[str]] = {}
        """The other way round: those that have asked since its leases were counted last, or have some."""

    # --- requests ---------------------------------------------------------------------------------

    def begin(self, term: int, ring: RequestDedup, now: float) -> None:
        """This node leads in that term: all that is remembered may have been asked for just now."""
        if term == self._term:
            return
        self._term = term
        self._open_to_all = ring.size * 3 // 4
        self._in_shares = ring.size - self._open_to_all
        self._fresh.clear()
        self._taken.clear()
        for _, client, _, _, _ in ring.rows():
            self.on_taken(owner_of(client) or ANONYMOUS, now)

    def on_owner(self, owner: str, principal: str, leases_of: Mapping[str, int]) -> None:
        """Whose it is that asks; said before a narrowed token is asked about, and when it gets a lease.

        Else who takes a narrower token for each lease, or waits for another leader, would have no bound.
        ``leases_of``: how many each owner has.
        """
        if owner == principal:
            return
        if owner in self._narrowed:
            self._narrowings.setdefault(principal, set()).add(owner)
            return
        if len(self._narrowed) >= NARROWED_MAX:
            counted = {one for _, one in self._fresh}
            self._narrowed = {
                one: who
                for one, who in self._narrowed.items()
                if one in counted or one in leases_of
            }
            self._narrowings = {}
            for one, who in self._narrowed.items():
                self._narrowings.setdefault(who, set()).add(one)
        self._narrowed[owner] = principal
        self._narrowings.setdefault(principal, set()).add(owner)
        if owner in self._taken:
            self._taken[principal] = self._taken.get(principal, 0) + self._taken.pop(owner)

    def why_not_request(self, principal: str, now: float) -> TooBusy | None:
        """Why no command is taken now from this principal: its client comes again by itself."""
        self._forget(now)
        if len(self._fresh) < self._open_to_all or is_free(principal):
            return None
        taken = self._taken.get(principal, 0)
        among = len(self._taken) + (not taken)
        if taken < self._in_shares // among:
            return None
        return TooBusy(
            f"{taken} of the {len(self._fresh)} changes of the last {FRESH_S:g} s were asked for by"
            f" {principal}: more would push the answers to others out of memory"
        )

    def on_taken(self, owner: str, now: float) -> None:
        """A command of that owner was put into the log."""
        self._fresh.append((now, owner))
        principal = self._narrowed.get(owner, owner)
        self._taken[principal] = self._taken.get(principal, 0) + 1

    def _forget(self, now: float) -> None:
        fresh, taken = self._fresh, self._taken
        while fresh and fresh[0][0] <= now - FRESH_S:
            _, owner = fresh.popleft()
            principal = self._narrowed.get(owner, owner)
            taken[principal] -= 1
            if not taken[principal]:
                del taken[principal]

    # --- leases and watches -----------------------------------------------------------------------

    def why_not_lease(self, state: KeyValueState, principal: str) -> OverQuota | None:
        """Why it gets no further lease."""
        if is_free(principal):
            return None
        counts = state.leases_of
        narrower = {one for one in self._narrowings.pop(principal, ()) if one in counts}
        if narrower:
            self._narrowings[principal] = narrower
        held = counts.get(principal, 0) + sum(counts[one] for one in narrower)
        if held >= LEASES_OF_ONE_MAX:
            return OverQuota(f"{principal} holds {held} leases, allowed are {LEASES_OF_ONE_MAX}")
        if len(state.leases) >= LEASES_OF_USERS_MAX:
            return OverQuota(f"there are {len(state.leases)} leases: the last ones are for nodes")
        return None


def why_not_watch(principal: str, watches: int) -> OverQuota | None:
    """Why a node serves it no further watch; ``watches``: those that it has there."""
    if watches < WATCHES_OF_ONE_MAX or is_free(principal):
        return None
    return OverQuota(f"{principal} has {watches} watches here, allowed are {WATCHES_OF_ONE_MAX}")


def is_free(principal: str) -> bool:
    """Has it no bound?"""
    return principal == LOCAL or principal.partition("/")[0] in SERVERS
