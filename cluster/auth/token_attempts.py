"""Limit the cost of unverified tokens in a gateway or console (pure).

Only the cluster can verify a token, and an unauthenticated client can send any number of them. So few tokens
are verified at a time, and the rejected tokens per address and in total are limited by rates. An accepted
token does not count against these rates. A client without recent rejections does not wait for clients that
have some.
"""

from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from math import inf

from ...runtime.interfaces.errors import TooBusy

ATTEMPTS_AT_ONCE = 8
"""Tokens that are verified at a time.

One address, and all addresses with rejections together, may use half of it.
"""
ADDRESS_BURST, ADDRESS_RATE_PER_S = 60.0, 1.0
"""The limit of one address: a burst, and the rate at which it recovers."""
OFFENDERS_BURST, OFFENDERS_RATE_PER_S = 200.0, 10.0
"""The limit of all addresses with recent rejections together."""
OTHERS_BURST, OTHERS_RATE_PER_S = 60.0, 5.0
"""The limit of all other addresses, so that repeated guesses from many addresses do not block them."""
OFFENDER_S = 600.0
"""How long an address counts as one with a rejection."""
ADDRESSES_MAX = 1000
"""The number of addresses with separate limits.

Above it, the addresses that had no rejection for longest are removed. If none can be removed, all new
addresses share one limit.
"""


@dataclass(slots=True)
class _TokenBucket:
    """The limit of one address or of many."""

    tokens: float
    filled_at: float
    pending_attempts: int = 0
    rejected_at: float = -inf
    """When its last token was rejected."""

    def fill(self, now: float, burst: float, rate_per_s: float) -> None:
        self.tokens = min(burst, self.tokens + rate_per_s * max(0.0, now - self.filled_at))
        self.filled_at = now


@dataclass(frozen=True, slots=True)
class TokenAttempt:
    """A token that is being verified."""

    address_bucket: _TokenBucket
    group_bucket: _TokenBucket
    started_at: float


class TokenAttempts:
    """The limits of one gateway or console."""

    def __init__(self) -> None:
        self._offenders = _TokenBucket(OFFENDERS_BURST, 0.0)
        self._others = _TokenBucket(OTHERS_BURST, 0.0)
        self._by_network: dict[str, _TokenBucket] = {}

    def begin(self, address: str, now: float) -> TokenAttempt:
        """Begin to verify a token of an address; pass the result to `end`.

        Raises:
            TooBusy: A limit is reached.
        """
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
            raise TooBusy(f"{pending_attempts} new tokens are being verified")
        if address_bucket.tokens < 1 or group_bucket.tokens < 1:
            raise TooBusy("too many tokens were rejected: new tokens must wait")
        for bucket in (address_bucket, group_bucket):
            bucket.tokens -= 1
            bucket.pending_attempts += 1
        return TokenAttempt(address_bucket, group_bucket, now)

    def end(self, attempt: TokenAttempt, *, is_rejected: bool) -> None:
        """End the verification of a token; ``is_rejected`` if the cluster rejected it."""
        for bucket in (attempt.address_bucket, attempt.group_bucket):
            bucket.pending_attempts -= 1
            if not is_rejected:
                bucket.tokens += 1
        if is_rejected:
            attempt.address_bucket.rejected_at = attempt.started_at

    def _evict_idle(self, now: float) -> None:
        """Remove a quarter of the addresses at their full limit: those that had no rejection for longest."""
        idle = []
        for network, bucket in self._by_network.items():
            bucket.fill(now, ADDRESS_BURST, ADDRESS_RATE_PER_S)
            if bucket.tokens >= ADDRESS_BURST and not bucket.pending_attempts:
                idle.append((bucket.rejected_at, network))
        for _, network in sorted(idle)[: ADDRESSES_MAX // 4]:
            del self._by_network[network]


def network_of(address: str) -> str:
    """Return the network of an address: 64 bits for IPv6, because a client may have 2^64 such addresses."""
    try:
        parsed = ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is None:
            return parsed.exploded[:19]
        parsed = parsed.ipv4_mapped
    return str(parsed)
