"""Questions to a node over a separate connection, and the check that its addresses lead back to it.

A node registers the addresses that others dial. Only a program that dials a wrong one notices it, so the node
dials its addresses itself (`AddressCheck`). It compares the node ID in the HELLO of the answer with its own.
The handshake is that of every connection, so a node of any version answers it.
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
from .tcp import place

ANSWER_S = 5.0
"""An address that has not answered within this many seconds does not answer."""
CHECK_S = 30.0
RETRY_MIN_S = 1.0
RETRY_MAX_S = 10.0
FAILURES_MIN = 2
"""Checks in a row that fail before a condition is reported. One may fail because the machine was busy."""

Answer = TypeVar("Answer")

log = get_logger("distributedlog.runtime.net.address_check")


async def ask_node(
    host: Host,
    address: Address,
    question: Callable[[ClientLink, float], Awaitable[Answer]],
    timeout_s: float,
) -> Answer:
    """Dial a node, greet it, ask it, and close the connection. Raises `DistributedLogError`."""
    endpoint = Endpoint(host, lambda: Hello(kind=HEALTH))
    found: list[Answer] = []
    error: DistributedLogError = RequestTimeout(f"no answer within {timeout_s:g} s")
    with trio.move_on_after(timeout_s):
        async with trio.open_nursery() as nursery:
            try:
                link = await endpoint.dial(address, nursery=nursery)
                try:
                    found.append(await question(link, timeout_s))
                finally:
                    link.close(ConnectionLost("the question is answered"))
            except DistributedLogError as caught:
                error = caught
            nursery.cancel_scope.cancel()
    if not found:
        raise error
    return found[0]


async def who_answers(host: Host, address: Address, timeout_s: float = ANSWER_S) -> Hello:
    """Return what the node at an address states about itself. Raises `DistributedLogError`."""

    async def peer(link: ClientLink, timeout_s: float) -> Hello:
        return link.peer

    return await ask_node(host, address, peer, timeout_s)


def name_of(hello: Hello) -> str:
    """Return a node's kind, label and ID for people."""
    return f"{hello.kind} {hello.label or '?'} ({hello.node_id or 'no ID'})"


@dataclass(frozen=True, slots=True)
class Advertised:
    """An address that a node advertises."""

    listener: str
    """Its name; "" is the default one."""
    address: Address
    for_peers: bool
    """Whether other nodes dial it. Others may be for networks that this machine does not reach."""
    is_loopback: bool = False
    """Whether only this machine reaches it."""
    by_name: bool = False
    """Whether the operator gave a host name that the system resolved to a loopback address."""


def advertised_by(
    given: Mapping[str, Address],
    listeners: Mapping[str, Listener],
    addresses: Mapping[str, Address],
    peers_listener: str,
) -> list[Advertised]:
    """Return the addresses of a node.

    Args:
        given: The addresses in the node's configuration to listen on, by listener name.
        listeners: The open listeners.
        addresses: The advertised addresses, by listener name.
        peers_listener: The listener whose addresses other nodes use.
    """
    found = []
    for_peers = next((name for name in (peers_listener, "", *addresses) if name in addresses), "")
    for name, address in addresses.items():
        host = address[0]
        told = given[name][0] if name in given else host
        if host == told and name in listeners:
            # A host name: only the address that the system resolved it to shows whether others reach it.
            host = listeners[name].address[0]
        loopback = is_loopback(host)
        by_name = loopback and told != NAME and not _is_literal(told)
        found.append(Advertised(name, address, name == for_peers, loopback, by_name))
    return found


class AddressCheck:
    """Whether the addresses of one node lead back to it, and whether other machines can reach them."""

    def __init__(
        self,
        host: Host,
        node_id: str,
        addresses: Callable[[], Sequence[Advertised]],
        peer_hosts: Callable[[], Awaitable[Iterable[str]]],
    ) -> None:
        """``peer_hosts`` returns the hosts at which other nodes of the cluster are dialed."""
        self._host = host
        self._node_id = node_id
        self._addresses = addresses
        self._peer_hosts = peer_hosts
        self._failures: dict[Address, int] = {}
        self._logged: set[tuple[str, Address]] = set()
        self._found: dict[Address, HealthCondition] = {}
        self._loopback: list[HealthCondition] = []

    def conditions(self) -> list[HealthCondition]:
        """Return what is wrong with the addresses now."""
        return [*self._found.values(), *self._loopback]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Check the addresses, again and again, until cancelled."""
        task_status.started()
        backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S)
        while True:
            if await self.check():
                backoff.reset()
                await trio.sleep(CHECK_S)
            else:
                await trio.sleep(backoff.next_s())

    async def check(self) -> bool:
        """Check each address once; return whether all of them are right."""
        addresses = self._addresses()
        self._loopback = await self._loopback_of(addresses)
        sound = True
        for one in addresses:
            wrong = await self._wrong(one)
            if wrong is None:
                self._failures.pop(one.address, None)
                self._found.pop(one.address, None)
                self._logged.discard((ADDRESS_UNANSWERED.name, one.address))
                continue
            sound = False
            self._failures[one.address] = self._failures.get(one.address, 0) + 1
            if self._failures[one.address] >= FAILURES_MIN:
                self._found[one.address] = wrong
                self._log_unanswered(one.address, wrong)
        return sound

    async def _wrong(self, one: Advertised) -> HealthCondition | None:
        address = place(one.address)
        try:
            hello = await who_answers(self._host, one.address)
        except TooBusy:
            return None  # a node answers; which one, the next check finds out
        except DistributedLogError as error:
            if not one.for_peers:
                return None
            return condition(
                Code.ADDRESS_UNANSWERED, listener=one.listener, address=address, error=str(error)
            )
        if hello.node_id == self._node_id:
            return None
        return condition(
            Code.ADDRESS_OF_OTHER_NODE,
            listener=one.listener,
            address=address,
            other=name_of(hello),
        )

    async def _loopback_of(self, addresses: Sequence[Advertised]) -> list[HealthCondition]:
        suspects = [one for one in addresses if one.is_loopback and one.for_peers]
        if not suspects:
            return []
        try:
            hosts = await self._peer_hosts()
        except DistributedLogError:
            return self._loopback  # the next check reads them
        elsewhere = any(_is_elsewhere(host) for host in hosts)
        found = []
        for one in suspects:
            if not (elsewhere or one.by_name):
                continue
            severity = Severity.DEGRADED if elsewhere else Severity.INFO
            address = place(one.address)
            found.append(
                condition(Code.ADDRESS_LOOPBACK, severity, listener=one.listener, address=address)
            )
            if self._is_news(ADDRESS_LOOPBACK.name, one.address):
                ADDRESS_LOOPBACK.say(
                    log,
                    "the address %s leads to this machine only: other machines cannot reach this node",
                    address,
                    address=address,
                )
        return found

    def _log_unanswered(self, address: Address, wrong: HealthCondition) -> None:
        if self._is_news(ADDRESS_UNANSWERED.name, address):
            why = wrong.text("error") or f"{wrong.text('other')} answers"
            ADDRESS_UNANSWERED.say(
                log,
                "the advertised address %s does not lead to this node: %s",
                place(address),
                why,
                address=place(address),
                why=why,
            )

    def _is_news(self, event: str, address: Address) -> bool:
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
