"""Query a node over a separate connection, and check that a node's addresses lead back to it.

A node registers the addresses that other programs dial. Only a program that dials a wrong address notices it,
so the node dials its addresses itself (`AddressCheck`). It compares the node ID in the HELLO of the answer
with its own. The handshake is that of every connection, so a node of any version answers it.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypeVar

import trio

from ..declarations.events import ADDRESS_LOOPBACK, ADDRESS_UNANSWERED
from ..declarations.health_conditions import Code, HealthCondition, Severity, condition
from ..interfaces.errors import ConnectionLost, DistributedLogError, RequestTimeout, TooBusy
from ..interfaces.host import Address, Host, Listener
from ..interfaces.log_lines import get_logger
from ..primitives.backoff import Backoff
from ..protocol.handshake import Hello
from .client_link import ClientLink
from .connection_limiter import HEALTH
from .local_secret import NAME, is_loopback
from .rpc import Endpoint
from .tcp import format_address

ANSWER_TIMEOUT_S = 5.0
"""An address that has not answered within this many seconds does not answer."""
CHECK_INTERVAL_S = 30.0
RETRY_MIN_S = 1.0
RETRY_MAX_S = 10.0
FAILURES_MIN = 2
"""Checks in a row that fail before a condition is reported. One may fail because the machine was busy."""

Answer = TypeVar("Answer")

log = get_logger("distributedlog.runtime.net.address_check")


async def query_node(
    host: Host,
    address: Address,
    query: Callable[[ClientLink, float], Awaitable[Answer]],
    timeout_s: float,
) -> Answer:
    """Dial a node, run a query on the connection, and close it.

    Args:
        query: Receives the link and the timeout in seconds, and returns the answer.
        timeout_s: The limit for all of this.

    Raises:
        DistributedLogError: The node could not be reached or did not answer in time, or the query failed.
    """
    endpoint = Endpoint(host, lambda: Hello(kind=HEALTH))
    answers: list[Answer] = []
    error: DistributedLogError = RequestTimeout(f"no answer within {timeout_s:g} s")
    with trio.move_on_after(timeout_s):
        async with trio.open_nursery() as nursery:
            try:
                link = await endpoint.dial(address, nursery=nursery)
                try:
                    answers.append(await query(link, timeout_s))
                finally:
                    link.close(ConnectionLost("the query is complete"))
            except DistributedLogError as caught:
                error = caught
            nursery.cancel_scope.cancel()
    if not answers:
        raise error
    return answers[0]


async def identify_node(host: Host, address: Address, timeout_s: float = ANSWER_TIMEOUT_S) -> Hello:
    """Return the HELLO of the node at an address. Raises `DistributedLogError`."""

    async def peer(link: ClientLink, timeout_s: float) -> Hello:
        return link.peer

    return await query_node(host, address, peer, timeout_s)


def describe_node(hello: Hello) -> str:
    """Return a node's kind, label and ID for people."""
    return f"{hello.kind} {hello.label or '?'} ({hello.node_id or 'no ID'})"


@dataclass(frozen=True, slots=True)
class AdvertisedAddress:
    """An address that a node advertises."""

    listener: str
    """The name of its listener; "" is the default one."""
    address: Address
    for_peers: bool
    """Whether other nodes dial it. Others may be for networks that this machine does not reach."""
    is_loopback: bool = False
    """Whether only this machine reaches it."""
    is_host_name: bool = False
    """Whether the operator gave a host name that the system resolved to a loopback address."""


def advertised_addresses_of(
    listen_addresses: Mapping[str, Address],
    listeners: Mapping[str, Listener],
    addresses: Mapping[str, Address],
    peers_listener: str,
) -> list[AdvertisedAddress]:
    """Return the addresses of a node.

    Args:
        listen_addresses: The addresses to listen on in the node's configuration, by listener name.
        listeners: The open listeners.
        addresses: The advertised addresses, by listener name.
        peers_listener: The listener whose addresses other nodes use.
    """
    advertised = []
    for_peers = next((name for name in (peers_listener, "", *addresses) if name in addresses), "")
    for name, address in addresses.items():
        host = address[0]
        configured_host = listen_addresses[name][0] if name in listen_addresses else host
        if host == configured_host and name in listeners:
            # A host name: only the address that the system resolved it to shows whether others reach it.
            host = listeners[name].address[0]
        leads_to_loopback = is_loopback(host)
        is_host_name = (
            leads_to_loopback and configured_host != NAME and not _is_literal(configured_host)
        )
        advertised.append(
            AdvertisedAddress(name, address, name == for_peers, leads_to_loopback, is_host_name)
        )
    return advertised


class AddressCheck:
    """Whether the addresses of one node lead back to it, and whether other machines can reach them."""

    def __init__(
        self,
        host: Host,
        node_id: str,
        addresses: Callable[[], Sequence[AdvertisedAddress]],
        peer_hosts: Callable[[], Awaitable[Iterable[str]]],
    ) -> None:
        """``peer_hosts`` returns the hosts at which other nodes of the cluster are dialed."""
        self._host = host
        self._node_id = node_id
        self._addresses = addresses
        self._peer_hosts = peer_hosts
        self._failures: dict[Address, int] = {}
        self._logged: set[tuple[str, Address]] = set()
        self._conditions_by_address: dict[Address, HealthCondition] = {}
        self._loopback_found: list[HealthCondition] = []

    def conditions(self) -> list[HealthCondition]:
        """Return the present problems of the addresses."""
        return [*self._conditions_by_address.values(), *self._loopback_found]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Check the addresses, again and again, until cancelled."""
        task_status.started()
        backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S)
        while True:
            if await self.check():
                backoff.reset()
                await trio.sleep(CHECK_INTERVAL_S)
            else:
                await trio.sleep(backoff.next_s())

    async def check(self) -> bool:
        """Check each address once; return whether all of them are correct."""
        addresses = self._addresses()
        self._loopback_found = await self._loopback_conditions(addresses)
        all_right = True
        for advertised in addresses:
            address_condition = await self._check_address(advertised)
            if address_condition is None:
                self._failures.pop(advertised.address, None)
                self._conditions_by_address.pop(advertised.address, None)
                self._logged.discard((ADDRESS_UNANSWERED.name, advertised.address))
                continue
            all_right = False
            self._failures[advertised.address] = self._failures.get(advertised.address, 0) + 1
            if self._failures[advertised.address] >= FAILURES_MIN:
                self._conditions_by_address[advertised.address] = address_condition
                self._log_unanswered(advertised.address, address_condition)
        return all_right

    async def _check_address(self, advertised: AdvertisedAddress) -> HealthCondition | None:
        address = format_address(advertised.address)
        try:
            hello = await identify_node(self._host, advertised.address)
        except TooBusy:
            return None  # a node answers; which one, the next check finds out
        except DistributedLogError as error:
            if not advertised.for_peers:
                return None
            return condition(
                Code.ADDRESS_UNANSWERED,
                listener=advertised.listener,
                address=address,
                error=str(error),
            )
        if hello.node_id == self._node_id:
            return None
        return condition(
            Code.ADDRESS_OF_OTHER_NODE,
            listener=advertised.listener,
            address=address,
            other=describe_node(hello),
        )

    async def _loopback_conditions(
        self, addresses: Sequence[AdvertisedAddress]
    ) -> list[HealthCondition]:
        loopback_addresses = [
            advertised
            for advertised in addresses
            if advertised.is_loopback and advertised.for_peers
        ]
        if not loopback_addresses:
            return []
        try:
            hosts = await self._peer_hosts()
        except DistributedLogError:
            return self._loopback_found  # the next check reads them
        has_remote_peers = any(_is_elsewhere(host) for host in hosts)
        loopback_conditions = []
        for advertised in loopback_addresses:
            if not (has_remote_peers or advertised.is_host_name):
                continue
            severity = Severity.DEGRADED if has_remote_peers else Severity.INFO
            address = format_address(advertised.address)
            loopback_conditions.append(
                condition(
                    Code.ADDRESS_LOOPBACK, severity, listener=advertised.listener, address=address
                )
            )
            if self._log_once(ADDRESS_LOOPBACK.name, advertised.address):
                ADDRESS_LOOPBACK.emit(
                    log,
                    "the address %s leads to this machine only: other machines cannot reach this node",
                    address,
                    address=address,
                )
        return loopback_conditions

    def _log_unanswered(self, address: Address, address_condition: HealthCondition) -> None:
        if self._log_once(ADDRESS_UNANSWERED.name, address):
            reason = address_condition.text("error") or f"{address_condition.text('other')} answers"
            ADDRESS_UNANSWERED.emit(
                log,
                "the advertised address %s does not lead to this node: %s",
                format_address(address),
                reason,
                address=format_address(address),
                why=reason,
            )

    def _log_once(self, event: str, address: Address) -> bool:
        if (event, address) in self._logged:
            return False
        self._logged.add((event, address))
        return True


def _is_elsewhere(host: str) -> bool:
    """Whether a host is the address of another machine. A host name may lead to this one."""
    return _is_literal(host) and not is_loopback(host)


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
