"""What tokens that nobody knows yet may cost a cluster, at a door such as a gateway (pure).

Whose a token is, the cluster alone can say, and a stranger has as many as it likes. So few are looked at at
a time, and each address, and all together, may show so many in vain. One that is taken costs nothing of that,
and who has shown none in vain lately waits for nobody who has.
"""

from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from math import inf

from ...runtime.interfaces.errors import TooBusy

AT_ONCE = 8
"""That are looked at at a time; half of it for one address, and for all that showed some in vain."""
IN_VAIN, IN_VAIN_S = 60.0, 1.0
"""Of one address: so many, and so many more a second."""
ALL_IN_VAIN, ALL_IN_VAIN_S = 200.0, 10.0
"""Of all together that have shown some in vain."""
FIRST_IN_VAIN, FIRST_IN_VAIN_S = 60.0, 5.0
"""Of all others: who goes on guessing, from ten addresses or from a hundred, keeps them out no more."""
NOTED_S = 600.0
"""So long an address that has shown one in vain is known for it."""
ADDRESSES_MAX = 1000
"""Above, those that showed none in vain for longest are forgotten; where none can be, who comes new has one
share with his like."""


@dataclass(slots=True)
class _Share:
    """Of one address, or of many."""

    left: float
    at: float
    under_way: int = 0
    in_vain_at: float = -inf
    """When it showed the last one that was refused."""

    def fill(self, now: float, most: float, a_second: float) -> None:
        self.left = min(most, self.left + a_second * max(0.0, now - self.at))
        self.at = now


@dataclass(frozen=True, slots=True)
class TokenAttempt:
    """One that is being looked at."""

    own: _Share
    among: _Share
    begun: float


class TokenAttempts:
    """Those of one door."""

    def __init__(self) -> None:
        self._noted = _Share(ALL_IN_VAIN, 0.0)
        self._first = _Share(FIRST_IN_VAIN, 0.0)
        self._of: dict[str, _Share] = {}

    def begin(self, address: str, now: float) -> TokenAttempt:
        """A token of that address is about to be looked at; what to `end`. Raises `TooBusy`."""
        who = network_of(address)
        if who not in self._of and len(self._of) >= ADDRESSES_MAX:
            self._forget(now)
            if len(self._of) >= ADDRESSES_MAX:
                who = ""
        own = self._of.setdefault(who, _Share(IN_VAIN, now))
        own.fill(now, IN_VAIN, IN_VAIN_S)
        self._noted.fill(now, ALL_IN_VAIN, ALL_IN_VAIN_S)
        self._first.fill(now, FIRST_IN_VAIN, FIRST_IN_VAIN_S)
        noted = now - own.in_vain_at < NOTED_S
        among = self._noted if noted else self._first
        under_way = self._noted.under_way + self._first.under_way
        half = AT_ONCE // 2
        if under_way >= AT_ONCE or own.under_way >= half or (noted and among.under_way >= half):
            raise TooBusy(f"{under_way} tokens that are new here are being looked at")
        if own.left < 1 or among.left < 1:
            raise TooBusy("too many tokens were shown in vain: one that is new here has to wait")
        for share in (own, among):
            share.left -= 1
            share.under_way += 1
        return TokenAttempt(own, among, now)

    def end(self, attempt: TokenAttempt, *, refused: bool) -> None:
        """It was looked at. ``refused``: the cluster does not take it."""
        for share in (attempt.own, attempt.among):
            share.under_way -= 1
            if not refused:
                share.left += 1
        if refused:
            attempt.own.in_vain_at = attempt.begun

    def _forget(self, now: float) -> None:
        """A quarter of those that have all of their share: those that showed none in vain for longest."""
        idle = []
        for who, share in self._of.items():
            share.fill(now, IN_VAIN, IN_VAIN_S)
            if share.left >= IN_VAIN and not share.under_way:
                idle.append((share.in_vain_at, who))
        for _, who in sorted(idle)[: ADDRESSES_MAX // 4]:
            del self._of[who]


def network_of(address: str) -> str:
    """Whoever has an address of IPv6 has 2^64 of them."""
    try:
        found = ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is None:
            return found.exploded[:19]
        found = found.ipv4_mapped
    return str(found)
