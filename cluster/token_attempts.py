"""What tokens that nobody knows yet may cost a cluster, at a door such as a gateway (pure).

Whose a token is, the cluster alone can say, and a stranger has as many as it likes. So few are looked at at
a time, and each address, and all together, may show so many in vain. One that is taken costs nothing of that.
"""

from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from ..runtime.errors import TooBusy

AT_ONCE = 8
"""That are looked at at a time; half of it for one address."""
IN_VAIN, IN_VAIN_S = 60.0, 1.0
"""Of one address: so many, and so many more a second."""
ALL_IN_VAIN, ALL_IN_VAIN_S = 200.0, 10.0
"""Of all together."""
ADDRESSES_MAX = 1000
"""Above, those that come new have one share together."""


@dataclass(slots=True)
class _Share:
    """Of one address, or of all."""

    left: float
    at: float
    under_way: int = 0

    def fill(self, now: float, most: float, a_second: float) -> None:
        self.left = min(most, self.left + a_second * max(0.0, now - self.at))
        self.at = now


class TokenAttempts:
    """Those of one door."""

    def __init__(self) -> None:
        self._all = _Share(ALL_IN_VAIN, 0.0)
        self._of: dict[str, _Share] = {}

    def begin(self, address: str, now: float) -> str:
        """A token of that address is about to be looked at; what to `end` by. Raises `TooBusy`."""
        who = _network(address)
        if who not in self._of and len(self._of) >= ADDRESSES_MAX:
            self._forget(now)
            if len(self._of) >= ADDRESSES_MAX:
                who = ""
        own, every = self._of.setdefault(who, _Share(IN_VAIN, now)), self._all
        own.fill(now, IN_VAIN, IN_VAIN_S)
        every.fill(now, ALL_IN_VAIN, ALL_IN_VAIN_S)
        if every.under_way >= AT_ONCE or own.under_way >= AT_ONCE // 2:
            raise TooBusy(f"{every.under_way} tokens that are new here are being looked at")
        if own.left < 1 or every.left < 1:
            raise TooBusy("too many tokens were shown in vain: one that is new here has to wait")
        for share in (own, every):
            share.left -= 1
            share.under_way += 1
        return who

    def end(self, who: str, *, refused: bool) -> None:
        """It was looked at. ``refused``: the cluster does not take it."""
        for share in (self._of[who], self._all):
            share.under_way -= 1
            if not refused:
                share.left += 1

    def _forget(self, now: float) -> None:
        """Those that have all of their share."""
        for who, share in list(self._of.items()):
            share.fill(now, IN_VAIN, IN_VAIN_S)
            if who and not share.under_way and share.left >= IN_VAIN:
                del self._of[who]


def _network(address: str) -> str:
    """Whoever has an address of IPv6 has 2^64 of them."""
    try:
        found = ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        return found.exploded[:19]
    return str(found)
