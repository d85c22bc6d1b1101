"""Who may found a cluster, and who may join one (H5)."""

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.metadata.peers.bootstrap import (
    VOTERS_MAX,
    Bootstrap,
    BootstrapAnswer,
    ListDifference,
    bootstrap_obstacle,
    list_difference,
    may_join,
    sorted_peers,
)
from distributedlog.runtime.declarations.health_conditions import Code
from distributedlog.runtime.interfaces.errors import ProtocolError
from distributedlog.runtime.protocol.frames import pack
from tests.examples import examples

from ..quorum import quorum

PEERS = sorted_peers({"m2": ("h2", 2), "m1": ("h1", 1), "m3": ("h3", 3)})


def answer(name: str, *, cluster_id: str = "", node_id: str = "") -> BootstrapAnswer:
    return BootstrapAnswer(name, node_id or f"id of {name}", cluster_id, PEERS)


ALL = {name: answer(name) for name in ("m2", "m3")}


def test_the_smallest_name_founds_when_all_are_empty_and_of_one_mind() -> None:
    assert bootstrap_obstacle(answer("m1"), ALL) == ""


def test_lists_that_differ_say_how() -> None:
    theirs = sorted_peers({"m2": ("h2", 2), "m1": ("localhost", 1), "m4": ("h4", 4)})

    found = list_difference("m3", PEERS, theirs)

    assert found == ListDifference("m3", ("m3",), ("m4",), (("m1", "h1:1", "localhost:1"),))
    assert "m1 is h1:1 here and localhost:1 there" in str(found)
    assert list_difference("m2", PEERS, PEERS) is None


async def test_nodes_with_two_lists_say_so_in_log_and_status(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """No cluster is formed, and nobody would learn why. Each node says it once, not only who founds."""
    async with quorum(3) as nodes:
        nodes.list_for("m3", {"m1": ("localhost", 1), "m2": ("m2", 4181), "m3": ("m3", 4181)})
        await nodes.start()
        await trio.sleep(30)

        rows = await nodes.rows()
        for name, peer in (("m1", "m3"), ("m2", "m3")):
            (differ,) = rows[name].conditions
            assert (differ.code, differ.text("peer")) == (Code.METADATA_LISTS_DIFFER, peer)
            assert differ.text("moved") == "m1: m1:4181, localhost:1"
        told = [one for one in caplog.records if getattr(one, "event", "") == "metadata.lists"]
        assert len(told) == 3, "each node once"


def test_one_voter_founds_alone() -> None:
    alone = BootstrapAnswer("m1", "id", "", sorted_peers({"m1": ("h1", 1)}))

    assert bootstrap_obstacle(alone, {}) == ""


@pytest.mark.parametrize(
    ("ours", "answers", "why"),
    [
        (answer("m2"), {"m1": answer("m1"), "m3": answer("m3")}, "m1 founds the cluster"),
        (answer("m1"), {"m2": answer("m2")}, "m3 has not answered"),
        (answer("m1"), {**ALL, "m3": answer("m3", cluster_id="c")}, "belongs to cluster c"),
        (
            answer("m1"),
            {**ALL, "m3": BootstrapAnswer("m3", "id of m3", "", sorted_peers({"m3": ("h3", 3)}))},
            "lists other peers",
        ),
        (answer("m1"), {**ALL, "m3": answer("m2", node_id="x")}, "answers as m2"),
        (answer("m1"), {**ALL, "m3": answer("m3", node_id="id of m1")}, "the same node ID"),
    ],
    ids=["not the smallest", "silent", "old member", "other list", "wrong name", "same machine"],
)
def test_nobody_founds_otherwise(
    ours: BootstrapAnswer, answers: dict[str, BootstrapAnswer], why: str
) -> None:
    """H5: one node with an old cluster's data is enough to know that this is not a new one."""
    assert why in bootstrap_obstacle(ours, answers)


def test_a_node_joins_under_its_own_id_and_only_while_it_is_empty() -> None:
    founding = Bootstrap("c", {"m1": "id of m1", "m2": "id of m2"})

    assert may_join(answer("m2"), founding)
    assert not may_join(answer("m2", node_id="another disk"), founding)
    assert not may_join(answer("m2", cluster_id="c"), founding)
    assert not may_join(answer("m3"), founding)


def test_both_come_back_from_their_bytes() -> None:
    founding = Bootstrap("c", {"m1": "id of m1"})

    assert BootstrapAnswer.decode(answer("m1").encode()) == answer("m1")
    assert Bootstrap.decode(founding.encode()) == founding


@pytest.mark.parametrize(
    "value",
    [
        5,
        [],
        ["c", {}],
        ["", {"m1": "id"}],
        ["c", {"m1": 7}],
        ["c", {"m1": ""}],
        [7, {"m1": "id"}],
        ["c", {f"m{n}": f"id{n}" for n in range(VOTERS_MAX + 1)}],
        ["c", {"m1": "same", "m2": "same"}],
    ],
    ids=str,
)
def test_a_founding_that_cannot_be_meant_is_refused(value: object) -> None:
    with pytest.raises(ProtocolError):
        Bootstrap.decode(pack(value))


JUNK = st.recursive(
    st.none() | st.integers(0, 9) | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)


@settings(max_examples=examples(100))
@given(st.one_of(st.binary(max_size=32), JUNK.map(pack)))
def test_no_bytes_of_a_stranger_end_a_node(data: bytes) -> None:
    for decode in (BootstrapAnswer.decode, Bootstrap.decode):
        try:
            decode(data)
        except ProtocolError:
            continue


@pytest.mark.parametrize(
    "said",
    [
        ["c" * 300, {"n1": "i1"}],
        ["c1", {"n" * 300: "i1"}],
        ["c1", {"n1": "i" * 300}],
        ["c1", {"n1": "i1", "n2": "i1"}],
        ["c1", {}],
        ["c1", {"n1": "i1"}, False],
    ],
)
def test_a_founding_that_no_start_could_read_again_is_refused(said: list[object]) -> None:
    """What is told here is stored in MEMBERS, whose reader has the same bounds."""
    with pytest.raises(ProtocolError):
        Bootstrap.decode(pack(said))
