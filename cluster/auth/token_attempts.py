"""What tokens that nobody knows yet may cost a cluster, at a door such as a gateway (pure).

Whose a token is, the cluster alone can say, and a stranger has as many as it likes. So few are looked at at
a time, and each address, and all together, may show so many in vain. One that is taken costs nothing of that,
and who has shown none in vain lately waits for nobody who has.
"""

from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from math import inf

from ...runtime.interfaces.errors import TooBusy

ATTEMPTS_AT_ONCE = 8
"""That are looked at at a time; half of it for one address, and for all that showed some in vain."""
ADDRESS_BURST, ADDRESS_RATE_PER_S = 60.0, 1.0
"""Of one address: so many, and so many more a second."""
OFFENDERS_BURST, OFFENDERS_RATE_PER_S = 200.0, 10.0
"""Of all together that have shown some in vain."""
OTHERS_BURST, OTHERS_RATE_PER_S = 60.0, 5.0
"""Of all others: who goes on guessing, from ten addresses or from a hundred, keeps them out no more."""
OFFENDER_S = 600.0
"""So long an address that has shown one in vain is known for it."""
ADDRESSES_MAX = 1000
"""Above, those that showed none in vain for longest are forgotten; where none can be, who comes new has one
share with his like."""


@dataclass(slots=True)
class _TokenBucket:
    """Of one address, or of many."""

    tokens: float
    filled_at: float
    pending_attempts: int = 0
    rejected_at: float = -inf
    """When it showed the last one that was refused."""

    def fill(self, now: float, burst: float, rate_per_s: float) -> None:
        self.tokens = min(burst, self.tokens + rate_per_s * max(0.0, now - self.filled_at))
        self.filled_at = now


@dataclass(frozen=True, slots=True)
class TokenAttempt:
    """One that is being looked at."""

    address_bucket: _TokenBucket
    group_bucket: _TokenBucket
    started_at: float


class TokenAttempts:
    """Those of one door."""

    def __init__(self) -> None:
        self._offenders = _TokenBucket(OFFENDERS_BURST, 0.0)
        self._others = _TokenBucket(OTHERS_BURST, 0.0)
        self._by_network: dict[str, _TokenBucket] = {}

    def begin(self, address: str, now: float) -> TokenAttempt:
        """A token of that address is about to be looked at; what to `end`. Raises `TooBusy`."""
        network = network_of(address)
        if network not in self._by_network and len(self._by_network) >= ADDRESSES_MAX:
            self._evict_idle(now)
            if len(self._by_network) >= ADDRESSES_MAX:
                network = ""
        address_bucket = self._by_network.setdefault(network, _TokenBucket(ADDRESS_BURST, now))
        address_bucket.fill(now, ADDRESS_BURST, ADDRESS_RATE_PER_S)
        self._offenders.fill(now, OFFENDERS_BURST, OFFENDERS_RATE_PER_S)
        self._others.fill(now, OTHERS_BURST, OTHERS_RATE_PER_S)
        is_offender = now - address_bucket.rejected_at < OFFENDER_S
        group_bucket = self._offenders if is_offender else self._others
        pending_attempts = self._offenders.pending_attempts + self._others.pending_attempts
        half_limit = ATTEMPTS_AT_ONCE // 2
        if (
            pending_attempts >= ATTEMPTS_AT_ONCE
            or address_bucket.pending_attempts >= half_limit
            or (is_offender and group_bucket.pending_attempts >= half_limit)
        ):
            raise TooBusy(f"{pending_attempts} tokens that are new here are being looked at")
        if address_bucket.tokens < 1 or group_bucket.tokens < 1:
            raise TooBusy("too many tokens were shown in vain: one that is new here has to wait")
        for bucket in (address_bucket, group_bucket):
            bucket.tokens -= 1
            bucket.pending_attempts += 1
        return TokenAttempt(address_bucket, group_bucket, now)

    def end(self, attempt: TokenAttempt, *, is_rejected: bool) -> None:
        """It was looked at. ``refused``: the cluster does not take it."""
        for bucket in (attempt.address_bucket, attempt.group_bucket):
            bucket.pending_attempts -= 1
            if not is_rejected:
                bucket.tokens += 1
        if is_rejected:
            attempt.address_bucket.rejected_at = attempt.started_at

    def _evict_idle(self, now: float) -> None:
        """A quarter of those that have all of their share: those that showed none in vain for longest."""
        idle = []
        for network, bucket in self._by_network.items():
            bucket.fill(now, ADDRESS_BURST, ADDRESS_RATE_PER_S)
            if bucket.tokens >= ADDRESS_BURST and not bucket.pending_attempts:
                idle.append((bucket.rejected_at, network))
        for _, network in sorted(idle)[: ADDRESSES_MAX // 4]:
            del self._by_network[network]


def network_of(address: str) -> str:
    """Whoever has an address of IPv6 has 2^64 of them."""
    try:
        parsed = ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is None:
            return parsed.exploded[:19]
        parsed = parsed.ipv4_mapped
    return str(parsed)
