"""Tokens as bytes, what a narrowing leaves, and the clock that they end by."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.metadata.model import rights
from distributedlog.runtime.interfaces.errors import NotAuthenticated
from distributedlog.runtime.interfaces.principals import Token, TokenScope
from distributedlog.runtime.primitives.steady_clock import SteadyClock
from distributedlog.runtime.protocol import tokens
from distributedlog.runtime.protocol.tokens import (
    BYTES_MAX,
    allowed_by,
    covers,
    encode_token,
    is_within,
    read_token,
    restrict_to_scope,
    verify_token,
)
from tests.examples import examples

SECRET = b"t" * 32
CLUSTER = "0123456789abcdef" * 2
PLAIN = Token("etl", 1_800_000_000, 9, 1, CLUSTER, b"n" * 8)
PATHS = st.sampled_from(["", "a", "a/", "a/b", "a/b/", "a/b/c", "ab"])
ROWS = st.lists(
    st.tuples(st.sampled_from(["ns", "other"]), PATHS, st.integers(1, 31)), max_size=4
).map(tuple)


def test_the_bytes_are_those_of_every_version() -> None:
    token = Token("etl", 1_800_000_000, 9, 1, CLUSTER, b"n" * 8, (("ns", "a/", 1),))

    assert encode_token(token, SECRET) == (
        b"dlog1_AQEAANJJawkAAAAAAAAAASNFZ4mrze8BI0VniavN725ubm5ubm5uA2"
        b"V0bAkAkZOibnOiYS8BpQ7MJYrllT7cLmPL-wIearMLFuQEG598e2sCVhpVlfQ"
    )


def test_a_token_says_what_it_was_made_with_and_shows_itself_to_nobody() -> None:
    token = Token("etl", 1_800_000_000, 9, 1, CLUSTER, b"n" * 8, (("ns", "a/", 1), ("ns", "b", 3)))
    shown = encode_token(token, SECRET)

    found = verify_token(shown, lambda number: {1: SECRET}[number])
    assert found == read_token(shown) == token
    assert found.proof == shown
    assert shown.decode() not in repr(found)


@settings(max_examples=examples(100))
@given(st.integers(0, 300), st.integers(1, 255), st.binary(max_size=200))
def test_a_token_that_was_changed_or_made_up_is_none(at: int, flipped: int, junk: bytes) -> None:
    shown = bytearray(encode_token(PLAIN, SECRET))
    shown[at % len(shown)] ^= flipped

    for made in (
        bytes(shown),
        junk,
        b"dlog1_" + junk,
        encode_token(PLAIN, b"u" * 32),
        bytes(shown)[:at],
    ):
        with pytest.raises(NotAuthenticated):
            verify_token(made, lambda number: SECRET)


def test_the_bits_are_those_of_rights() -> None:
    assert (tokens.READ, tokens.WRITE, tokens.MANAGE) == (rights.READ, rights.WRITE, rights.MANAGE)


def test_a_token_of_who_owns_local_clusters_is_none() -> None:
    """That principal may everything; no certificate names it either."""
    with pytest.raises(NotAuthenticated, match="reserved"):
        verify_token(encode_token(replace(PLAIN, user="local"), SECRET), lambda number: SECRET)


def test_a_token_of_more_paths_than_fit_is_not_made() -> None:
    token = Token("etl", 1, 0, 1, CLUSTER, b"n" * 8, tuple(("ns", "x" * 200, 1) for _ in range(8)))

    with pytest.raises(ValueError, match="fewer paths"):
        encode_token(token, SECRET)
    assert len(encode_token(PLAIN, SECRET)) < BYTES_MAX


@settings(max_examples=examples(200))
@given(ROWS, ROWS, st.sampled_from(["ns", "other"]), PATHS.filter(lambda p: p[-1:] != "/"))
def test_a_narrowed_token_allows_what_both_allow(
    grants: TokenScope, token_scope: TokenScope, namespace: str, path: str
) -> None:
    """H235: against the plain union over each, of one log."""
    if not token_scope:
        return

    def held(some: TokenScope) -> int:
        found = 0
        for of, granted, bits in some:
            if of == namespace and covers(granted, path):
                found |= bits
        return found

    assert held(restrict_to_scope(grants, token_scope)) == held(grants) & held(token_scope)
    assert allowed_by(token_scope, namespace, path) == held(token_scope)
    assert allowed_by((), namespace, path) == -1


@settings(max_examples=examples(200))
@given(ROWS, ROWS, st.sampled_from(["ns", "other"]), PATHS.filter(lambda p: p[-1:] != "/"))
def test_a_narrower_token_is_never_wider(
    inner: TokenScope, outer: TokenScope, namespace: str, path: str
) -> None:
    if is_within(inner, outer):
        inside, outside = (allowed_by(one, namespace, path) for one in (inner, outer))
        assert not inside & ~outside
    if outer:
        assert not is_within((), outer)
    assert is_within(inner, ())
    assert not inner or is_within(inner, inner)


# --- the clock ------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_jump_of_an_hour_is_five_minutes_after_an_hour(jump_s: float) -> None:
    """H237: and never back; a clock that is set right meanwhile has cost nothing."""
    clock = SteadyClock(1000.0, 0.0)
    before = 0.0
    for now in range(1, 3601):
        time_s = clock.time_s(1000.0 + now + jump_s, float(now))
        assert time_s >= before
        assert abs(time_s - (1000.0 + now)) <= 300.0 + 1e-6
        before = time_s
    for now in range(3601, 7202):
        clock.time_s(1000.0 + now, float(now))
    assert clock.time_s(1000.0 + 7202, 7202.0) == pytest.approx(1000.0 + 7202)


def test_a_jump_just_before_a_rare_look_is_not_taken_in_at_once() -> None:
    clock = SteadyClock(1000.0, 0.0)

    assert clock.time_s(1000.0 + 36_000 + 3600, 36_000.0) == pytest.approx(1000.0 + 36_000 + 5.0)
