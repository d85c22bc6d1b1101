"""Capabilities and passes: what they are made of, and that nothing else will do."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.runtime.interfaces.errors import NotAuthenticated
from distributedlog.runtime.protocol.capabilities import (
    CAPABILITY_BYTES,
    SUFFICIENT_KINDS,
    CapabilityKind,
    Generation,
    is_capability,
    issue_session_credential,
    make_capability,
    verify_session_credential,
)
from tests.examples import examples


def secret(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


FIRST = Generation(1, secret("K1"), secret("P1"))
SECOND = Generation(2, secret("K2"), secret("P2"))
OF_B1 = FIRST.for_bookie("c1", "b1")
PRINCIPALS = st.sampled_from(["user/a", "user/b", "user/a1", "bookie/b1", "anonymous"])
MEANT = st.tuples(st.sampled_from(CapabilityKind), st.integers(0, 3), PRINCIPALS, st.integers(0, 2))


def test_the_bytes_are_those_of_every_version() -> None:
    """Bookies and metadata nodes of different versions compute the same ones."""
    made = make_capability(OF_B1, CapabilityKind.ADD, 7, "user/etl", 9)

    assert made.hex() == "0301cbf038e20a5a929273bbab629229"
    assert (
        issue_session_credential(FIRST, "user/etl", 9, 77).hex()
        == "445032014d000000090000000000000008757365722f65746cd6ccefb0573a9d6db7e4c2067b9933b6"
    )


@settings(max_examples=examples(150))
@given(MEANT, MEANT)
def test_a_capability_is_good_for_exactly_what_it_was_made_for(
    made: tuple[CapabilityKind, int, str, int], used: tuple[CapabilityKind, int, str, int]
) -> None:
    """H229, H231: another ledger, principal, kind, or one from before something was taken away: refused."""
    shown = make_capability(OF_B1, *made)
    kind, ledger, principal, since = used

    allowed = made[0] in SUFFICIENT_KINDS[kind] and made[1:] == used[1:]
    assert is_capability(shown, [OF_B1], kind, ledger, principal, since) == allowed
    assert len(shown) == CAPABILITY_BYTES


def test_a_reader_can_not_fence_and_who_adds_can_not_recover_nor_read() -> None:
    def may(shown: CapabilityKind, wanted: CapabilityKind) -> bool:
        key = make_capability(OF_B1, shown, 1, "user/a", 0)
        return is_capability(key, [OF_B1], wanted, 1, "user/a", 0)

    assert [[may(shown, wanted) for wanted in CapabilityKind] for shown in CapabilityKind] == [
        [True, False, False, False],
        [True, True, False, False],
        [False, False, True, False],
        [True, True, False, True],
    ]


def test_what_one_bookie_holds_opens_nothing_at_another() -> None:
    """H229: all keys of b1 are known; those of b2 follow from none of them."""
    stolen = [one.for_bookie("c1", "b1") for one in (FIRST, SECOND)]
    of_b2 = [one.for_bookie("c1", "b2") for one in (FIRST, SECOND)]

    for held in stolen:
        for kind in CapabilityKind:
            assert not is_capability(
                make_capability(held, kind, 1, "user/a", 0), of_b2, kind, 1, "user/a", 0
            )
    assert not is_capability(
        make_capability(FIRST.for_bookie("c2", "b2"), CapabilityKind.READ, 1, "user/a", 0),
        of_b2,
        CapabilityKind.READ,
        1,
        "user/a",
        0,
    )


def test_a_generation_that_is_held_no_more_ends_what_was_made_with_it() -> None:
    key = make_capability(OF_B1, CapabilityKind.READ, 1, "user/a", 0)
    third = Generation(3, secret("K3"), secret("P3")).for_bookie("c1", "b1")
    second = SECOND.for_bookie("c1", "b1")

    assert is_capability(key, [second, OF_B1], CapabilityKind.READ, 1, "user/a", 0)
    assert not is_capability(key, [third, second], CapabilityKind.READ, 1, "user/a", 0)


def test_a_pass_says_whose_it_is_and_since_when() -> None:
    shown = issue_session_credential(SECOND, "user/etl", 12)

    assert verify_session_credential(shown, [SECOND, FIRST]) == ("user/etl", 12, 0)
    with pytest.raises(NotAuthenticated):
        verify_session_credential(shown, [FIRST])


@settings(max_examples=examples(100))
@given(st.integers(0, 60), st.integers(1, 255), st.binary(max_size=300))
def test_a_pass_that_was_changed_or_made_up_is_none(at: int, flipped: int, junk: bytes) -> None:
    shown = bytearray(issue_session_credential(FIRST, "user/etl", 12))
    shown[at % len(shown)] ^= flipped

    for proof in (bytes(shown), junk, bytes(shown)[:at], b"DP2" + junk):
        with pytest.raises(NotAuthenticated):
            verify_session_credential(proof, [FIRST, SECOND])


def test_no_secret_is_in_the_text_of_what_holds_it() -> None:
    assert FIRST.key.hex() not in repr(FIRST)
    assert repr(FIRST) == "Generation(number=1)"
