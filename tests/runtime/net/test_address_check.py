"""A node dials the addresses that it advertises, and reports those that do not lead back to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from distributedlog.runtime.declarations.health_conditions import Code, Severity
from distributedlog.runtime.interfaces.errors import ConnectionLost
from distributedlog.runtime.interfaces.host import Address, Listener
from distributedlog.runtime.net.address_check import (
    FAILURES_MIN,
    AddressCheck,
    AdvertisedAddress,
    advertised_addresses_of,
    identify_node,
)
from distributedlog.runtime.net.link import Link, LinkSession
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.handshake import Hello
from tests.conditions import codes_of

from ..pipe import PipeNetwork
from .test_rpc import EchoSession

B1, B2, NOBODY = ("b1", 4182), ("b2", 4182), ("nowhere", 4182)
LAN = ["10.0.0.1"]
HERE = ["127.0.0.1", "localhost"]


@asynccontextmanager
async def _bookies() -> AsyncIterator[PipeNetwork]:
    """Two bookies that serve, of one cluster."""
    network = PipeNetwork(7)
    async with trio.open_nursery() as nursery:
        for name, address in (("b1", B1), ("b2", B2)):
            host = network.host(name)
            hello = Hello(cluster_id="c", node_id=f"id-{name}", kind="bookie", label=name)
            endpoint = Endpoint(host, lambda hello=hello: hello, receive_bytes=4096)  # type: ignore[misc]

            def session(link: Link) -> LinkSession:
                return EchoSession(link, [])

            nursery.start_soon(endpoint.serve, {"": await host.listen(address)}, session)
        yield network
        nursery.cancel_scope.cancel()


def _check(
    network: PipeNetwork, *addresses: AdvertisedAddress, hosts: list[str] | None = None
) -> AddressCheck:
    """The check of bookie b1."""

    async def peers() -> list[str]:
        return LAN if hosts is None else hosts

    return AddressCheck(network.host("b1"), "id-b1", lambda: addresses, peers)


async def _checked(check: AddressCheck, times: int = FAILURES_MIN) -> list[str]:
    for _ in range(times):
        await check.check()
    return codes_of(check.conditions())


async def test_an_address_that_leads_back_is_no_condition() -> None:
    async with _bookies() as network:
        check = _check(network, AdvertisedAddress("", B1, True))
        assert await check.check()
        assert check.conditions() == []


async def test_an_address_of_another_node_is_reported_with_its_name() -> None:
    async with _bookies() as network:
        check = _check(network, AdvertisedAddress("", B2, True))
        assert await _checked(check) == [Code.ADDRESS_OF_OTHER_NODE]
        [found] = check.conditions()
        assert found.severity is Severity.DEGRADED
        assert found.text("address") == "b2:4182"
        assert found.text("other") == "bookie b2 (id-b2)"


async def test_an_address_without_an_answer_is_reported_until_it_answers() -> None:
    async with _bookies() as network:
        addresses = [AdvertisedAddress("", NOBODY, True)]

        async def peers() -> list[str]:
            return LAN

        check = AddressCheck(network.host("b1"), "id-b1", lambda: addresses, peers)
        assert await _checked(check, 1) == []  # one failure may be that of a busy machine
        assert await _checked(check, 1) == [Code.ADDRESS_UNANSWERED]
        listener = await network.host("b1").listen(NOBODY)
        endpoint = Endpoint(
            network.host("b1"), lambda: Hello(cluster_id="c", node_id="id-b1", kind="bookie")
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(endpoint.serve, {"": listener}, lambda link: EchoSession(link, []))
            assert await check.check()
            nursery.cancel_scope.cancel()
        assert check.conditions() == []


async def test_an_address_for_another_network_need_not_be_reachable_from_here() -> None:
    """A container advertises the address of its published port, which leads elsewhere from inside."""
    async with _bookies() as network:
        inside, outside = (
            AdvertisedAddress("inside", B1, True),
            AdvertisedAddress("outside", NOBODY, False),
        )
        assert await _checked(_check(network, inside, outside)) == []
        wrong = AdvertisedAddress("outside", B2, False)
        assert await _checked(_check(network, inside, wrong)) == [Code.ADDRESS_OF_OTHER_NODE]


@pytest.mark.parametrize(
    ("by_name", "hosts", "severity"),
    [
        (True, LAN, Severity.DEGRADED),
        (False, LAN, Severity.DEGRADED),
        (True, HERE, Severity.INFO),
        (True, ["h1.example.org"], Severity.INFO),
        (False, HERE, None),
        (False, [], None),
    ],
)
async def test_a_loopback_address_is_a_fault_if_peers_are_on_other_machines(
    by_name: bool, hosts: list[str], severity: Severity | None
) -> None:
    async with _bookies() as network:
        own = AdvertisedAddress("", B1, True, is_loopback=True, is_host_name=by_name)
        check = _check(network, own, hosts=hosts)
        assert await check.check()  # it leads back to this node
        found = [(one.code, one.severity) for one in check.conditions()]
        assert found == ([] if severity is None else [(Code.ADDRESS_LOOPBACK, severity)])


class _Bound:
    """A listener of the system: at the address to which a name was resolved."""

    def __init__(self, address: Address) -> None:
        self.address = address


def _advertised(
    given: Address, bound: Address, advertised: Address | None = None
) -> tuple[bool, bool]:
    listeners: dict[str, Listener] = {"": _Bound(bound)}  # type: ignore[dict-item]
    [found] = advertised_addresses_of({"": given}, listeners, {"": advertised or bound}, "")
    return found.is_loopback, found.is_host_name


def test_a_host_name_that_leads_to_loopback_is_known_by_the_listener() -> None:
    """Debian's /etc/hosts has a line "127.0.1.1 h4"."""
    assert _advertised(("h4", 1), ("127.0.1.1", 1)) == (True, True)
    assert _advertised(("h4", 1), ("127.0.1.1", 1), ("h4", 1)) == (True, True)
    assert _advertised(("h4", 1), ("10.0.0.4", 1)) == (False, False)
    assert _advertised(("127.0.0.1", 1), ("127.0.0.1", 1)) == (True, False)
    assert _advertised(("localhost", 1), ("127.0.0.1", 1)) == (True, False)
    # A tunnel or a door on this machine: other nodes dial another address.
    assert _advertised(("127.0.0.1", 1), ("127.0.0.1", 1), ("10.0.0.4", 1)) == (False, False)
    assert _advertised(("0.0.0.0", 1), ("0.0.0.0", 1), ("h4", 1)) == (False, False)


def test_peers_use_the_listener_through_which_a_node_reaches_the_quorum() -> None:
    addresses = {"outside": NOBODY, "inside": B1}
    found = advertised_addresses_of({}, {}, addresses, "inside")
    assert [one.listener for one in found if one.for_peers] == ["inside"]
    found = advertised_addresses_of({}, {}, {"": B1, **addresses}, "other")
    assert [one.listener for one in found if one.for_peers] == [""]


async def test_who_answers_is_asked_by_the_handshake_alone() -> None:
    async with _bookies() as network:
        assert (await identify_node(network.host("x"), B2)).label == "b2"
        with pytest.raises(ConnectionLost):
            await identify_node(network.host("x"), NOBODY)
