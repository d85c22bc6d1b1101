"""How much one principal may have at the metadata at once, so that it takes nothing from others (pure; H216).

Where rights are required, at the leader and at whoever serves a watch; nothing of it is in the replicated
state. Nodes, and whoever has the secret of a cluster on its own machine, have no bound: what cures a cluster
is not starved by who floods it (H236).

**Requests.** The answers to the newest commands are remembered (`request_ring.py`), so that one that is sent
again is not done again. A client sends again for less than `FRESH_S`; what is forgotten before that is
unknown to it. So no more commands than are remembered are taken within `FRESH_S`: three quarters from whoever
comes, the last quarter in equal shares. Who floods fills all but his share of that, and others' answers stay.

**Leases and watches** have a bound a principal; the last leases are for nodes.
"""

from collections import deque

from ..runtime.errors import OverQuota, TooBusy
from ..runtime.principals import LOCAL, SERVERS
from .kv import LEASES_MAX, KeyValueState
from .owners import owner_of
from .request_ring import RequestRing

FRESH_S = 35.0
"""A client's deadline, and some."""
LEASES_OF_ONE_MAX = 1_000
LEASES_OF_USERS_MAX = LEASES_MAX - 5_000
WATCHES_OF_ONE_MAX = 10_000
"""On one node, over all connections."""


class Quotas:
    """Of one node."""

    def __init__(self) -> None:
        self._open_to_all = self._in_shares = 0
        self._term = -1
        self._fresh: deque[tuple[float, str]] = deque()
        """When each command was taken, and from whom, the oldest first."""
        self._taken: dict[str, int] = {}
        self._leases: dict[str, int] = {}
        self._leases_as_of = (-1, -1)
        self._narrowed: dict[str, str] = {}
        """Whose the leases of a narrowed token are (`owners.owner_by`), as far as that was heard."""

    # --- requests ---------------------------------------------------------------------------------

    def begin(self, term: int, ring: RequestRing, now: float) -> None:
        """This node leads in that term: all that is remembered may have been asked for just now."""
        if term == self._term:
            return
        self._term = term
        self._open_to_all = ring.size * 3 // 4
        self._in_shares = ring.size - self._open_to_all
        self._fresh.clear()
        self._taken.clear()
        for _, client, _, _, _ in ring.rows():
            self.on_taken(owner_of(client), now)

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

    def on_taken(self, principal: str, now: float) -> None:
        """A command was put into the log."""
        self._fresh.append((now, principal))
        self._taken[principal] = self._taken.get(principal, 0) + 1

    def _forget(self, now: float) -> None:
        fresh, taken = self._fresh, self._taken
        while fresh and fresh[0][0] <= now - FRESH_S:
            _, principal = fresh.popleft()
            taken[principal] -= 1
            if not taken[principal]:
                del taken[principal]

    # --- leases and watches -----------------------------------------------------------------------

    def on_lease(self, owner: str, principal: str) -> None:
        """A lease of that owner was granted to this principal, or renewed by it.

        Else who takes a narrower token for each lease would have no bound.
        """
        if owner != principal and owner not in self._narrowed:
            self._narrowed[owner] = principal
            self._leases_as_of = (-1, -1)

    def why_not_lease(self, state: KeyValueState, principal: str) -> OverQuota | None:
        """Why it gets no further lease."""
        if is_free(principal):
            return None
        as_of = (state.next_lease, len(state.leases))
        if as_of != self._leases_as_of:
            self._leases_as_of = as_of
            self._leases.clear()
            owners = {lease.owner for lease in state.leases.values()}
            self._narrowed = {of: who for of, who in self._narrowed.items() if of in owners}
            for lease in state.leases.values():
                who = self._narrowed.get(lease.owner, lease.owner)
                self._leases[who] = self._leases.get(who, 0) + 1
        held = self._leases.get(principal, 0)
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
