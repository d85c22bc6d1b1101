"""Placement: hosts and racks apart, by every order of choosing; enforced or not; disks filled evenly."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.ledger.model.striping import Striping
from distributedlog.ledger.placement.ensemble_placement import (
    Candidate,
    choose_ensemble,
    choose_replacements,
    describe_violations,
)
from distributedlog.ledger.placement.placement_policy import PlacementPolicy, parse_labels
from distributedlog.runtime.interfaces.errors import InvalidRequest
from tests.examples import examples

SIZES = st.integers(1, 4).flatmap(lambda e: st.integers(1, e).map(lambda w: Striping(e, w, 1)))
HOSTS = st.lists(st.integers(0, 3), min_size=4, max_size=6)
"""The host of each bookie; host ``n`` stands in rack ``n % 2``."""


def cluster(hosts: list[int]) -> list[Candidate]:
    return [
        Candidate(f"b{n}", {"host": f"h{host}", "rack": f"r{host % 2}"})
        for n, host in enumerate(hosts)
    ]


def together(striping: Striping, places: list[str]) -> int:
    """Pairs of slots of one write set with the same of something."""
    size = striping.ensemble_size
    pairs = {
        (a, b)
        for window in striping.all_write_sets()
        for a in window
        for b in window
        if a < b < size
    }
    return sum(places[a] == places[b] for a, b in pairs)


def labels(ensemble: tuple[str, ...], candidates: list[Candidate], level: str) -> list[str]:
    of = {one.id: one.labels for one in candidates}
    return [of[one][level] for one in ensemble]


@settings(max_examples=examples(60))
@given(SIZES, HOSTS, st.floats(0, 0.999))
def test_no_choice_of_bookies_has_fewer_copies_on_one_host(
    striping: Striping, hosts: list[int], drawn: float
) -> None:
    """Also where ensembles are larger than write sets, and the first choice was not the best."""
    candidates = cluster(hosts)

    chosen = choose_ensemble(striping, candidates, lambda: drawn)

    assert chosen is not None
    size = striping.ensemble_size
    best = min(
        together(striping, [f"h{host}" for host in some]) for some in permutations(hosts, size)
    )
    assert together(striping, labels(chosen[0], candidates, "host")) == best


@settings(max_examples=examples(60))
@given(SIZES, HOSTS, st.floats(0, 0.999), st.integers(1, 3))
def test_enforced_means_that_each_write_set_reaches_its_racks_or_nothing_is_made(
    striping: Striping, hosts: list[int], drawn: float, at_least: int
) -> None:
    candidates = cluster(hosts)
    policy = PlacementPolicy("rack", at_least, enforced=True)
    need = min(at_least, striping.write_quorum)

    def reached(racks: list[str]) -> bool:
        return all(len({racks[n] for n in window}) >= need for window in striping.all_write_sets())

    chosen = choose_ensemble(striping, candidates, lambda: drawn, policy)

    possible = any(
        reached([f"r{host % 2}" for host in some])
        for some in permutations(hosts, striping.ensemble_size)
    )
    assert (chosen is not None) == possible
    if chosen is not None:
        assert reached(labels(chosen[0], candidates, "rack"))


def test_who_has_no_label_is_not_chosen_where_it_is_enforced() -> None:
    policy = PlacementPolicy("zone", 2, enforced=True)
    unnamed = [Candidate("b0"), Candidate("b1"), Candidate("b2")]
    named = [Candidate("b3", {"zone": "z1"}), Candidate("b4", {"zone": "z2"})]

    assert choose_ensemble(Striping(3, 3, 2), [*unnamed, *named], lambda: 0.5, policy) is None
    assert choose_ensemble(Striping(2, 2, 2), [*unnamed, *named], lambda: 0.5, policy) is not None
    soft = choose_ensemble(Striping(3, 3, 2), unnamed, lambda: 0.5, policy.as_preference())
    assert soft is not None


def test_where_it_is_enforced_a_bookie_that_is_down_reaches_no_rack() -> None:
    """What is acknowledged without it would lie in one rack."""
    policy = PlacementPolicy("rack", 2, enforced=True)
    live = [Candidate("b0", {"rack": "r0"}), Candidate("b1", {"rack": "r0"})]
    down = [Candidate("b2", {"rack": "r1"}, is_unavailable=True)]

    assert choose_ensemble(Striping(3, 3, 2), [*live, *down], lambda: 0.5, policy) is None
    assert choose_ensemble(Striping(3, 3, 2), [*live, *down], lambda: 0.5) is not None


def test_a_place_in_an_ensemble_stays_empty_rather_than_that_a_rack_is_short() -> None:
    """H111: as a preference the same place is filled."""
    kept, labels = {0: "b0"}, {"b0": {"rack": "r0"}}
    same = [Candidate("b1", {"rack": "r0"}), Candidate("b2", {"rack": "r0"})]
    other = Candidate("b3", {"rack": "r1"})
    enforced = PlacementPolicy("rack", 2, enforced=True)

    def chosen(candidates: list[Candidate], policy: PlacementPolicy) -> dict[int, str]:
        return choose_replacements(
            Striping(2, 2, 1), kept, [1], candidates, lambda: 0.0, labels=labels, policy=policy
        )

    assert chosen(same, enforced) == {}
    assert chosen(same, enforced.as_preference()) == {1: "b1"}
    assert chosen([*same, other], enforced) == {1: "b3"}


def test_a_new_empty_bookie_gets_more_and_not_everything() -> None:
    """H101: one of ten has a hundred times the room of the others."""
    full = [Candidate(f"b{n}", free_bytes=10 << 30) for n in range(9)]
    new = Candidate("new", free_bytes=1000 << 30)
    one = Striping(1, 1, 1)

    drawn = [choose_ensemble(one, [*full, new], lambda n=n: n / 1000) for n in range(1000)]  # type: ignore[misc]

    share = sum(found is not None and found[0] == ("new",) for found in drawn) / 1000
    assert 0.2 < share <= 0.26
    assert {found[0][0] for found in drawn if found} == {one.id for one in [*full, new]}


def test_what_stands_together_is_said() -> None:
    where = {
        "b0": {"host": "h0", "rack": "r0"},
        "b1": {"host": "h0", "rack": "r0"},
        "b2": {"host": "h1", "rack": "r0"},
        "b3": {"host": "h2", "rack": "r1"},
    }
    policy = PlacementPolicy()

    assert describe_violations(Striping(3, 3, 2), ("b0", "b2", "b3"), where, policy) == []
    assert describe_violations(Striping(3, 3, 2), ("b0", "b1", "b2"), where, policy) == [
        "b0 and b1 share host h0",
        "b0, b1 and b2 are in 1 rack, not 2",
    ]
    # One of whom nothing is known may stand anywhere; of another write set it is no matter.
    assert describe_violations(Striping(2, 2, 1), ("b0", "gone"), where, policy) == []
    assert describe_violations(Striping(4, 2, 1), ("b0", "b3", "b1", "b3"), where, policy) == []


def test_a_policy_that_one_loss_would_turn_into_a_stop_is_refused() -> None:
    """H111."""
    policy = PlacementPolicy("rack", 2, enforced=True)

    with pytest.raises(InvalidRequest, match="there are r0: 3, r1: 1"):
        policy.check_reachable({"r0": 3, "r1": 1})
    policy.check_reachable({"r0": 1, "r1": 1, "r2": 1})
    policy.as_preference().check_reachable({})


def test_labels_are_read_one_by_one() -> None:
    assert parse_labels(["zone=z1", " host = h 7 "], "--label") == {"zone": "z1", "host": "h 7"}
    for wrong in (["zone"], ["zone="], ["=z"], ["zone=a", "zone=b"]):
        with pytest.raises(InvalidRequest, match="--label"):
            parse_labels(wrong, "--label")
