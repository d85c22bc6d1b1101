"""What tokens that nobody knows may cost: few at a time, so many in vain, and an honest one nothing."""

import pytest

from distributedlog.cluster.auth.token_attempts import (
    ADDRESS_BURST,
    ADDRESSES_MAX,
    ATTEMPTS_AT_ONCE,
    OFFENDER_S,
    OFFENDERS_BURST,
    OFFENDERS_RATE_PER_S,
    OTHERS_BURST,
    TokenAttempts,
)
from distributedlog.runtime.interfaces.errors import TooBusy


def vain(attempts: TokenAttempts, address: str, now: float) -> int:
    """How many an address may show in vain at that time."""
    count = 0
    while True:
        try:
            attempts.end(attempts.begin(address, now), is_rejected=True)
        except TooBusy:
            return count
        count += 1


def test_an_address_may_show_so_many_in_vain_and_others_are_not_kept_out() -> None:
    attempts = TokenAttempts()

    assert vain(attempts, "10.0.0.1", 0.0) == ADDRESS_BURST
    assert vain(attempts, "10.0.0.1", 3.0) == 3
    attempts.end(attempts.begin("10.0.0.2", 3.0), is_rejected=False)


def test_a_token_that_is_taken_costs_nothing() -> None:
    attempts = TokenAttempts()

    for _ in range(10 * int(ADDRESS_BURST)):
        attempts.end(attempts.begin("10.0.0.1", 0.0), is_rejected=False)


def test_few_are_looked_at_at_a_time_and_one_address_has_half_of_it() -> None:
    attempts = TokenAttempts()
    begun = [attempts.begin("10.0.0.1", 0.0) for _ in range(ATTEMPTS_AT_ONCE // 2)]

    with pytest.raises(TooBusy, match="are being verified"):
        attempts.begin("10.0.0.1", 0.0)
    others = [attempts.begin(f"10.0.1.{one}", 0.0) for one in range(ATTEMPTS_AT_ONCE // 2)]
    with pytest.raises(TooBusy, match="are being verified"):
        attempts.begin("10.0.2.1", 0.0)
    for one in (*begun, *others):
        attempts.end(one, is_rejected=False)
    attempts.begin("10.0.0.1", 0.0)


def test_all_together_may_show_so_many_in_vain_from_however_many_addresses() -> None:
    attempts = TokenAttempts()

    tried = sum(vain(attempts, f"10.0.0.{one}", 0.0) for one in range(50))
    assert tried == 50 + OFFENDERS_BURST
    assert sum(vain(attempts, f"10.0.1.{one}", 0.0) for one in range(50)) == OTHERS_BURST - 50
    assert vain(attempts, "10.0.0.49", 1.0) == OFFENDERS_RATE_PER_S
    assert vain(attempts, "10.9.9.9", 1.0) == 1


def test_ten_addresses_that_go_on_guessing_keep_nobody_else_out() -> None:
    """However slowly each of them does; for as long as they are known for it, also after a pause."""
    attempts = TokenAttempts()

    def guess(now: float) -> int:
        return sum(vain(attempts, f"10.6.6.{one}", now) for one in range(10))

    for second in range(0, 60):
        guess(float(second))
    assert guess(60.0) == OFFENDERS_RATE_PER_S
    assert guess(60.0) == 0
    for one in range(200):
        attempts.end(attempts.begin(f"10.0.{one}.1", 60.0), is_rejected=False)
    assert guess(60.0 + OFFENDER_S / 2) == OFFENDERS_BURST
    attempts.end(attempts.begin("10.0.1.2", 60.0 + OFFENDER_S / 2), is_rejected=False)


def test_those_that_guessed_have_half_of_what_is_looked_at_at_a_time() -> None:
    attempts = TokenAttempts()
    for one in range(ATTEMPTS_AT_ONCE):
        attempts.end(attempts.begin(f"10.6.6.{one}", 0.0), is_rejected=True)
    begun = [attempts.begin(f"10.6.6.{one}", 1.0) for one in range(ATTEMPTS_AT_ONCE // 2)]
    with pytest.raises(TooBusy, match="are being verified"):
        attempts.begin(f"10.6.6.{ATTEMPTS_AT_ONCE - 1}", 1.0)
    begun += [attempts.begin(f"10.0.0.{one}", 1.0) for one in range(ATTEMPTS_AT_ONCE // 2)]
    with pytest.raises(TooBusy, match="are being verified"):
        attempts.begin("10.0.1.1", 1.0)
    for attempt in begun:
        attempts.end(attempt, is_rejected=False)


def test_who_waits_long_has_no_more_than_at_first() -> None:
    attempts = TokenAttempts()
    vain(attempts, "10.0.0.1", 0.0)

    assert vain(attempts, "10.0.0.1", 10**6) == ADDRESS_BURST
    others = sum(vain(attempts, f"10.0.1.{one}", 2 * 10**6) for one in range(50))
    assert others == 50 + OFFENDERS_BURST


def test_who_is_looked_at_is_not_forgotten_whoever_comes() -> None:
    attempts = TokenAttempts()
    who = attempts.begin("10.0.0.1", 0.0)
    for one in range(2 * ADDRESSES_MAX):
        now = 1000.0 + one
        attempts.end(attempts.begin(f"10.1.{one >> 8}.{one & 255}", now), is_rejected=True)
    attempts.end(who, is_rejected=False)


def test_whoever_has_many_addresses_is_one() -> None:
    """IPv6 gives everybody 2^64; and the table does not grow with those of IPv4."""
    attempts = TokenAttempts()

    assert vain(attempts, "2001:db8::1", 0.0) == ADDRESS_BURST
    assert vain(attempts, "2001:db8::2", 0.0) == 0
    assert vain(attempts, "::ffff:10.0.0.1", 0.0) == ADDRESS_BURST
    assert vain(attempts, "::ffff:10.0.0.2", 0.0) == ADDRESS_BURST
    for one in range(2 * ADDRESSES_MAX):
        now = 100.0 + one
        attempts.end(attempts.begin(f"10.1.{one >> 8}.{one & 255}", now), is_rejected=True)
    assert len(attempts._by_network) <= ADDRESSES_MAX
    assert "" not in attempts._by_network, "who is not known has a share of its own"
    assert vain(attempts, "10.2.0.1", now + 60.0) == ADDRESS_BURST
