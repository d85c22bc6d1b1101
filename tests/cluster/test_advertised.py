"""The addresses that a node advertises, and whether they lead to it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing

from distributedlog.cluster.declarations.options import BookieNodeConfig, MetadataNodeConfig
from distributedlog.cluster.node.metadata_assembly import addresses_of_voter
from distributedlog.cluster.node.node_lifecycle import advertised_addresses, check_advertise
from distributedlog.cluster.nodes import serve_node
from distributedlog.cluster.status.cluster_overview import status
from distributedlog.cluster.status.node_health import query_health
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.proxy.membership.proxy_registration import WRITE, ProxyRegistration
from distributedlog.runtime.declarations.health_conditions import Code, from_map
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import InvalidRequest
from distributedlog.runtime.interfaces.host import Address
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.net.address_check import CHECK_INTERVAL_S
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.handshake import Hello
from tests.conditions import codes_of

from ..runtime.pipe import PipeNetwork

ANY = ("0.0.0.0", 0)
STORE = {"journal_file_bytes": 4 << 20, "gather_bytes": 1 << 20}
ADDRESSES = (
    Code.ADDRESS_UNANSWERED,
    Code.ADDRESS_OF_OTHER_NODE,
    Code.ADDRESS_LOOPBACK,
    Code.BOOKIE_UNANSWERED,
)


async def test_an_address_that_nobody_can_dial_is_not_told() -> None:
    """A client that asks a follower is sent to the leader: by the quorum's list, not to 0.0.0.0."""
    host = real_host("m1")
    listeners = {"": await host.listen(ANY), "out": await host.listen(ANY)}
    try:
        assert advertised_addresses(listeners, {}) == {}
        assert advertised_addresses(listeners, {"out": ("h", 1)}) == {"out": ("h", 1)}
        with pytest.raises(InvalidRequest, match="nowhere"):
            advertised_addresses(listeners, {"nowhere": ("h", 1)})
    finally:
        for listener in listeners.values():
            listener.close()


@pytest.mark.parametrize("told", [{}, {"": ("0.0.0.0", 4182)}, {"": ("::", 1)}])
def test_a_bookie_must_be_told_what_others_should_dial(told: Mapping[str, Address]) -> None:
    with pytest.raises(InvalidRequest, match="--advertise"):
        check_advertise({"": ANY}, told)


def test_a_bookie_at_one_address_of_its_own_need_not_be_told() -> None:
    check_advertise({"": ("127.0.0.1", 0), "out": ANY}, {"out": ("h", 1)})


# --- what leads to whom ---------------------------------------------------------------------------

M, B1, B2 = ("m", 4181), ("b1", 4182), ("b2", 4182)


@asynccontextmanager
async def _nodes(
    *bookies: BookieNodeConfig, metadata: MetadataNodeConfig | None = None
) -> AsyncIterator[tuple[PipeNetwork, MetadataClient]]:
    """A metadata node and bookies on one network in memory."""
    network = PipeNetwork(5)
    config = metadata or MetadataNodeConfig("m", {"m": M})
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_node, network.host("m", metadata=MemoryDisk()), config)
        for bookie in bookies:
            disks = {"journal": MemoryDisk(), "index": MemoryDisk()}
            await nursery.start(serve_node, network.host(bookie.name, **disks), bookie)
        client = MetadataClient(
            Endpoint(network.host("client"), Hello), [M], client_id="test", timeout_s=10
        )
        await nursery.start(client.run)
        await trio.sleep(2 * CHECK_INTERVAL_S)
        yield network, client
        nursery.cancel_scope.cancel()


def _bookie(name: str, listen: Address, advertise: Address | None = None) -> BookieNodeConfig:
    told = {} if advertise is None else {"": advertise}
    return BookieNodeConfig(name, (M,), {"": listen}, told, store=STORE, metadata_timeout_s=5)


def _of_addresses(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Code and address of each condition about an address."""
    return [
        (one["code"], one["parameters"]["address"])
        for one in found["conditions"]
        if one["code"] in ADDRESSES
    ]


async def test_a_bookie_that_advertises_another_ones_address_is_not_healthy(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its clients reach another bookie, which refuses what is meant for this one."""
    async with _nodes(_bookie("b1", B1), _bookie("b2", B2, B1)) as (network, client):
        found = await status(client, 10)
        assert _of_addresses(found) == [(Code.ADDRESS_OF_OTHER_NODE, "b1:4182")]
        assert not found["healthy"]
        health = await query_health(network.host("x"), B2)
        assert health.healthy  # a restart would not help
        assert codes_of(health.conditions) == [Code.ADDRESS_OF_OTHER_NODE]

        shown = _of_addresses(await status(client, 10, host=network.host("client")))
        assert sorted(shown) == [
            (Code.ADDRESS_OF_OTHER_NODE, "b1:4182"),
            (Code.BOOKIE_UNANSWERED, "b1:4182"),
        ]


async def test_a_bookie_that_advertises_an_address_without_a_node_is_not_healthy(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _nodes(_bookie("b1", B1, ("elsewhere", 1))) as (network, client):
        found = await status(client, 10, host=network.host("client"))
        assert sorted(_of_addresses(found)) == [
            (Code.ADDRESS_UNANSWERED, "elsewhere:1"),
            (Code.BOOKIE_UNANSWERED, "elsewhere:1"),
        ]


async def test_a_proxy_that_does_not_answer_where_it_is_registered_is_shown(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _nodes(_bookie("b1", B1)) as (network, client):
        proxy = ProxyRegistration("1" * 16, WRITE, {"": B1}, label="w1")
        await client.transact(Transaction((), (Put(proxy.key, proxy.encode()),)))
        found = await status(client, 10, host=network.host("client"))
        [shown] = [one for one in found["conditions"] if one["code"] == Code.PROXY_UNANSWERED]
        assert shown["text"].startswith(
            "write proxy w1 is registered at b1:4182 and does not answer"
        )


async def test_a_silent_bookie_is_no_lost_quorum(autojump_clock: trio.testing.MockClock) -> None:
    """Each dial may take two seconds, and a status has few."""
    async with _nodes(_bookie("b1", B1, ("silent", 1))) as (network, client):
        await network.host("silent").listen(("silent", 1))
        found = await status(client, 2, host=network.host("client"))
        codes = codes_of(found["conditions"])
        assert Code.BOOKIE_UNANSWERED in codes
        assert Code.NO_METADATA_QUORUM not in codes


async def test_addresses_that_lead_to_their_nodes_are_no_condition(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _nodes(_bookie("b1", B1), _bookie("b2", B2)) as (network, client):
        assert _of_addresses(await status(client, 10, host=network.host("client"))) == []


async def test_a_metadata_node_whose_address_for_clients_is_a_bookies_reports_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    config = MetadataNodeConfig("m", {"m": M}, {}, {"": B1})
    async with _nodes(_bookie("b1", B1), metadata=config) as (_, client):
        found = await status(client, 10)
        assert _of_addresses(found) == [(Code.ADDRESS_OF_OTHER_NODE, "b1:4182")]
        assert [one.node for one in map(from_map, found["conditions"]) if one.node] == ["m"]


async def test_a_bookie_on_loopback_in_a_cluster_of_several_machines_reports_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A name of Debian's /etc/hosts leads to 127.0.1.1: no other machine reaches what listens there."""
    here, there = _bookie("b1", ("127.0.1.1", 4182)), _bookie("b2", ("10.0.0.2", 4182))
    async with _nodes(here, there) as (_, client):
        found = await status(client, 10)
        assert _of_addresses(found) == [(Code.ADDRESS_LOOPBACK, "127.0.1.1:4182")]
        assert not found["healthy"]


def test_a_listed_address_of_a_metadata_node_is_for_its_peers() -> None:
    inside, outside = ("10.0.0.1", 4181), ("192.0.2.1", 5181)
    config = MetadataNodeConfig(
        "m", {"m": inside}, {"inside": inside, "outside": ("0.0.0.0", 5181)}, {"outside": outside}
    )
    listeners: Any = {name: _Bound(address) for name, address in config.listen.items()}
    found = {one.address: one.for_peers for one in addresses_of_voter(config, listeners)}
    assert found == {inside: True, outside: False}


@dataclass(frozen=True)
class _Bound:
    address: Address
