"""A local cluster keeps its names, ports and URI."""

import random

import pytest

from distributedlog.cluster.local import cluster_plan as plans
from distributedlog.cluster.local.cluster_plan import ClusterPlan
from distributedlog.runtime.interfaces.errors import AddressInUse, CorruptData, InvalidRequest
from distributedlog.runtime.interfaces.host import Address, Connection, Listener
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.net.port_reservation import ReservedPorts


class _Listening:
    """A machine on which some ports are taken."""

    def __init__(self, *taken: int) -> None:
        self.taken = set(taken)

    async def listen(self, address: Address) -> Listener:
        if address[1] in self.taken:
            raise AddressInUse(f"port {address[1]} is taken")
        return _Idle(address)

    def hold(self, address: Address) -> None:
        if address[1] in self.taken:
            raise AddressInUse(f"port {address[1]} is taken")


class _Idle:
    def __init__(self, address: Address) -> None:
        self.address = address

    async def accept(self) -> Connection:
        raise NotImplementedError

    def close(self) -> None:
        pass


async def _make(
    kept: ClusterPlan | None = None,
    *,
    bookies: int = 3,
    metadata_nodes: int = 3,
    port: int = 0,
    taken: tuple[int, ...] = (),
) -> ClusterPlan:
    machine = _Listening(*taken)
    return await plans.make_plan(
        kept,
        bookies=bookies,
        metadata_nodes=metadata_nodes,
        port=port,
        host="127.0.0.1",
        listen=machine.listen,
        reserve_port=machine.hold,
        rng=random.Random(3),
    )


async def test_a_plan_outlives_its_file_and_is_the_same_at_the_next_start() -> None:
    first = await _make()

    again = await _make(plans.decode(plans.encode(first), "cluster.json"))

    assert again == first
    assert again.uri == first.uri
    assert [node.name for node in first.nodes] == [
        "metadata1", "metadata2", "metadata3", "bookie1", "bookie2", "bookie3",
    ]  # fmt: skip


async def test_ports_go_up_from_the_first_one() -> None:
    made = await _make(port=4181)

    assert [node.address[1] for node in made.nodes] == list(range(4181, 4187))
    assert made.uri == "distributedlog://127.0.0.1:4181,127.0.0.1:4182,127.0.0.1:4183/default"


async def test_a_taken_port_is_an_error_where_ports_were_asked_for_and_skipped_where_not() -> None:
    with pytest.raises(AddressInUse, match="4183"):
        await _make(port=4181, taken=(4183,))

    free = await _make()
    shifted = await _make(taken=(free.nodes[0].address[1],))
    assert free.nodes[0].address[1] not in [node.address[1] for node in shifted.nodes]


async def test_two_that_start_at_one_moment_have_other_ports() -> None:
    """Neither listens yet when both have chosen; and then each can."""
    here = real_host("test")

    async def plan(ports: ReservedPorts) -> ClusterPlan:
        chance = random.Random(3)
        return await plans.make_plan(
            None, bookies=3, metadata_nodes=3, port=0, host="127.0.0.1", listen=here.listen,
            reserve_port=ports.reserve, rng=chance,
        )  # fmt: skip

    with ReservedPorts() as one, ReservedPorts() as other:
        places = [node.address for ports in (one, other) for node in (await plan(ports)).nodes]
        assert len(set(places)) == 12
        listeners = [await here.listen(place) for place in places]
        for listener in listeners:
            listener.close()


async def test_ports_lie_below_the_ephemeral_range() -> None:
    """A client that dials a dead node's ephemeral port may be connected to itself."""
    made = await _make()

    assert all(plans.PORT_LOW <= node.address[1] < plans.PORT_HIGH for node in made.nodes)


async def test_bookies_can_be_added_and_the_quorum_cannot_be_changed() -> None:
    first = await _make()

    more = await _make(first, bookies=4)

    assert more.nodes_of_kind("bookie")[:3] == first.nodes_of_kind("bookie")
    assert more.nodes_of_kind("bookie")[3].name == "bookie4"
    assert plans.with_bookies(more, 2).nodes_of_kind("bookie") == first.nodes_of_kind("bookie")[:2]
    with pytest.raises(InvalidRequest, match="--metadata-nodes 3"):
        await _make(first, metadata_nodes=1)
    with pytest.raises(InvalidRequest, match="1, 3 or 5"):
        await _make(metadata_nodes=2)
    with pytest.raises(InvalidRequest, match="has stored ports"):
        await _make(first, port=4181)


def test_a_damaged_file_is_named() -> None:
    half = '{"nodes": [{"name": "a"}]}'
    for text in ("", "{}", half, '{"nodes": [{"name":"a","kind":"b","address":"c"}]}'):
        with pytest.raises(CorruptData, match=r"cluster\.json"):
            plans.decode(text, "cluster.json")
