"""Which changes of the members are allowed, step by step, and the bytes of a configuration."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.metadata.model.configuration import (
    CONFIGURATION_MARKER,
    Configuration,
    Member,
    decode_configuration,
    is_configuration,
)
from distributedlog.metadata.peers.bootstrap import BootstrapAnswer
from distributedlog.metadata.peers.membership_rules import (
    add_learner,
    next_promotion_step,
    remove_member,
)
from distributedlog.metadata.raft.quorum import majority
from distributedlog.runtime.interfaces.errors import MembersRefused, ProtocolError
from tests.examples import examples

THREE = Configuration.from_members(Member(f"id{n}", f"m{n}", f"h{n}:4181", True) for n in (1, 2, 3))
ALL = {"id1", "id2", "id3"}


def empty(name: str, node_id: str = "new") -> BootstrapAnswer:
    return BootstrapAnswer(name, node_id, "", ())


def replaced(
    configuration: Configuration, answer: BootstrapAnswer, heard: set[str]
) -> Configuration:
    found = add_learner(
        configuration,
        answer.name,
        "h9:1",
        answer,
        replace=True,
        cluster_id="c",
        active_voters=heard,
    )
    assert found is not None
    return found


def test_a_lost_voter_is_replaced_in_three_steps_and_counts_until_the_last_but_one() -> None:
    """A removal before the replacement has caught up would only take away the way back."""
    heard = {"id1", "id3"}
    one = replaced(THREE, empty("m2"), heard)
    assert (one.voters, one.learners) == (("id1", "id2", "id3"), ("new",))
    assert next_promotion_step(one, (), heard) is None  # it has not caught up

    two = next_promotion_step(one, ("new",), heard)
    assert two is not None
    three = next_promotion_step(two, ("new",), heard)

    assert (two.voters, two.learners) == (("id1", "id3"), ("new",))
    assert three is not None
    assert (three.voters, three.learners) == (("id1", "id3", "new"), ())
    assert three.can_follow(two)
    assert two.can_follow(one)


def test_a_voter_that_is_alive_moves_to_another_host_the_same_way() -> None:
    one = replaced(THREE, empty("m2"), ALL)
    two = next_promotion_step(one, ("new",), ALL)

    assert two is not None
    assert two.members_named("m2") == [Member("new", "m2", "h9:1", False)]


def test_a_replacement_that_lost_its_disk_again_is_replaced_itself() -> None:
    one = replaced(THREE, empty("m2"), ALL)
    again = replaced(one, empty("m2", "newer"), ALL)

    assert (again.voters, again.learners) == (THREE.voters, ("newer",))


def test_the_same_request_again_changes_nothing() -> None:
    """Requests are sent again when their answer was lost."""
    one = replaced(THREE, empty("m2"), ALL)
    told = BootstrapAnswer("m2", "new", "c", ())

    assert (
        add_learner(one, "m2", "h9:1", told, replace=True, cluster_id="c", active_voters=ALL)
        is None
    )
    assert remove_member(THREE, "m9", ALL) is None


@pytest.mark.parametrize(
    ("name", "answer", "replace", "heard", "why"),
    [
        ("m2", empty("m3"), True, ALL, "has the name m3"),
        ("m2", BootstrapAnswer("m2", "id2", "c", ()), True, ALL, "nothing to replace"),
        ("m2", BootstrapAnswer("m2", "x", "c", ()), True, ALL, "data of this cluster"),
        ("m2", BootstrapAnswer("m2", "x", "d", ()), True, ALL, "data of another cluster"),
        ("m4", empty("m4"), True, ALL, "no voter of the quorum has the name m4"),
        ("m2", empty("m2"), False, ALL, "there is a metadata node m2"),
        ("m2", empty("m2"), True, {"id1"}, "the quorum would be lost"),
    ],
)
def test_who_is_not_let_in(
    name: str, answer: BootstrapAnswer, replace: bool, heard: set[str], why: str
) -> None:
    with pytest.raises(MembersRefused, match=why):
        add_learner(
            THREE, name, "h9:1", answer, replace=replace, cluster_id="c", active_voters=heard
        )


def test_the_last_voter_stays() -> None:
    with pytest.raises(MembersRefused, match="last voter"):
        remove_member(THREE.without("id2").without("id3"), "m1", {"id1"})


def test_removing_one_that_is_being_replaced_takes_the_new_one_back() -> None:
    one = replaced(THREE, empty("m2"), ALL)

    assert remove_member(one, "m2", ALL) == THREE


members = st.builds(Member, st.text(min_size=1, max_size=9), st.text(), st.text(), st.booleans())


@settings(max_examples=examples(100))
@given(st.lists(members, max_size=9, unique_by=lambda member: member.node_id))
def test_a_configuration_comes_back_as_it_was(found: list[Member]) -> None:
    configuration = Configuration.from_members(found)
    data = configuration.encode()

    assert is_configuration(data)
    assert decode_configuration(data) == configuration


@settings(max_examples=examples(100))
@given(st.binary(max_size=60))
def test_nonsense_is_no_configuration(data: bytes) -> None:
    try:
        found = decode_configuration(CONFIGURATION_MARKER + data)
    except ProtocolError:
        return
    assert decode_configuration(found.encode()) == found


@settings(max_examples=examples(100))
@given(st.sets(st.sampled_from("abcdefg")), st.sets(st.sampled_from("abcdefg")))
def test_majorities_of_configurations_that_follow_each_other_meet(
    before: set[str], after: set[str]
) -> None:
    """Thesis 4.1, figure 4.3."""
    one, two = Configuration.from_ids(before), Configuration.from_ids(after)
    if one.voters and two.can_follow(one):
        assert majority(len(before)) + majority(len(after)) > len(before | after)
