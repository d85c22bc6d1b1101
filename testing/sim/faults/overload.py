"""Clients that try to use more than their share, and checks of the share that other users must keep.

The greedy user has a certificate and almost no rights. It acquires leases, watches, connections and memory
for requests until the nodes answer `OverQuota`. Unauthenticated peers connect and send nothing or garbage.

`QuotaOracle` checks the promises of the nodes to other users while authorization is enforced (H216, H236). No
user has more leases than its limit. The result of a request of another user stays stored while the client
may repeat the request.
"""

from collections import deque
from collections.abc import Callable

import trio

from ....metadata.client.metadata_client import MetadataClient
from ....metadata.model.command_results import CommandResult
from ....metadata.model.commands import (
    ExpireLease,
    GrantLease,
    RevokeLease,
    Transact,
    decode_command,
    encode_command,
)
from ....metadata.model.interface import WatchEvent, prefix_end
from ....metadata.model.transaction import Transaction
from ....runtime.interfaces.errors import DistributedLogError, OverQuota
from ....runtime.interfaces.host import Address, Host
from ....runtime.net.rpc import Endpoint
from ....runtime.protocol.frames import Op
from ....runtime.protocol.handshake import Hello
from ...verify.checks.independent_authorizer import IndependentAuthorizer

CONNECTIONS_MAX = 200
"""Limit of a node: a sixth for unauthenticated peers, an eighth for nodes, and three quarters of the rest
for one address."""
LEASES_MAX = 20
WATCHES_MAX = 25
REQUESTS_KEPT = 1024
FRESH_S = 6.0
"""How long a client may repeat a request."""
TAKERS = 3
"""Number of tasks that acquire leases. Each may send a request before the others' leases are granted."""
STRANGERS = 60
"""Concurrent unauthenticated connections per node."""
PATIENCE_S = 0.3
NEVER = 1 << 62


class QuotaOracle:
    """Checks the shares of one run from the commands that its metadata nodes apply.

    Requests of the ``greedy_user`` may be forgotten early.
    """

    def __init__(
        self,
        now: Callable[[], float],
        reference: IndependentAuthorizer,
        fail: Callable[[str], None],
        *,
        greedy_user: str,
    ) -> None:
        self._now = now
        self._reference = reference
        self._fail = fail
        self._greedy_user = greedy_user
        self._applied_index = 0
        self._lease_owners: dict[int, str] = {}
        self._remembered: deque[tuple[float, str, int]] = deque()
        self._known_requests: dict[tuple[str, int], None] = {}
        self._required_since = 0.0
        self.forgotten_requests = 0
        """Number of requests, of any age, that dropped out of the modeled table."""

    def on_applied(
        self,
        index: int,
        command: bytes,
        answer: CommandResult,
        events: tuple[WatchEvent, ...],
        revision: int,
    ) -> None:
        """Apply a command to the model; see `OnApplied`. Called after the independent authorizer."""
        if index <= self._applied_index or not command:
            return
        self._applied_index = index
        if self._reference.current_policy.mode != "required":
            self._required_since = self._now()
        try:
            decoded = decode_command(command)
        except DistributedLogError:
            return
        if isinstance(decoded, GrantLease) and answer.lease:
            owner = decoded.client.rpartition("/")[0]
            self._lease_owners[answer.lease] = owner
            lease_count = list(self._lease_owners.values()).count(owner)
            if (
                owner == self._greedy_user
                and self._is_required()
                and lease_count > LEASES_MAX + TAKERS
            ):
                self._fail(f"H236: {owner} holds {lease_count} leases, the limit is {LEASES_MAX}")
        elif isinstance(decoded, RevokeLease | ExpireLease):
            self._lease_owners.pop(decoded.lease, None)
        if decoded.client and (decoded.client, decoded.request_number) not in self._known_requests:
            self._remember(decoded.client, decoded.request_number)

    def _remember(self, client: str, request: int) -> None:
        self._known_requests[client, request] = None
        self._remembered.append((self._now(), client, request))
        if len(self._remembered) <= REQUESTS_KEPT:
            return
        applied_at, client, request = self._remembered.popleft()
        self._known_requests.pop((client, request), None)
        self.forgotten_requests += 1
        age_s = self._now() - applied_at
        owner = client.rpartition("/")[0]
        is_honest = owner.startswith("user/") and owner != self._greedy_user
        if age_s < FRESH_S and is_honest and self._is_required():
            self._fail(
                f"H216: the result of request {request} of {owner} was forgotten after {age_s:.2f} s"
                f" because of other users' requests"
            )

    def _is_required(self) -> bool:
        """Whether authorization has been enforced for longer than any request is stored."""
        return self._now() - self._required_since > 2 * FRESH_S


class Greedy:
    """The greedy user's requests from one machine."""

    def __init__(
        self, metadata: MetadataClient, host: Host, addresses: Callable[[], list[Address]]
    ):
        self._metadata = metadata
        self._host = host
        self._rng = host.random
        self._addresses = addresses
        self._last_request = 0
        self.over_quota = 0
        """Number of `OverQuota` errors."""

    async def run(self) -> None:
        """Use as many resources as possible until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(TAKERS):
                nursery.start_soon(self._grab_leases)
            for _ in range(2 * WATCHES_MAX):
                nursery.start_soon(self._watch)
            for _ in range(4):
                nursery.start_soon(self._flood)
            nursery.start_soon(self._grab_connections)

    async def _grab_leases(self) -> None:
        while True:
            try:
                await self._metadata.grant_lease(5_000)
            except OverQuota:
                self.over_quota += 1
                await trio.sleep(PATIENCE_S)
            except DistributedLogError:
                await trio.sleep(PATIENCE_S)

    async def _watch(self) -> None:
        start = b"name/"
        while True:
            try:
                page = await self._metadata.range(start, prefix_end(start))
                async with self._metadata.watch(
                    start, prefix_end(start), after_revision=page.revision
                ) as watch:
                    while True:
                        await watch.next_batch()
            except OverQuota:
                self.over_quota += 1
            except DistributedLogError:
                pass
            await trio.sleep(2 * PATIENCE_S)

    async def _flood(self) -> None:
        """Send each request after the answer to the previous one, with pauses of random length."""
        client = f"{self._rng.getrandbits(63):016x}"
        number = 0
        while True:
            burst_end = trio.current_time() + self._rng.expovariate(0.25)
            while trio.current_time() < burst_end:
                number += 1
                transact = Transact(client, number, NEVER, Transaction())
                try:
                    await self._metadata.request(Op.META_TRANSACT, encode_command(transact))
                except DistributedLogError:
                    await trio.sleep(PATIENCE_S)
            await trio.sleep(self._rng.expovariate(0.5))

    async def _grab_connections(self) -> None:
        endpoint = Endpoint(self._host, lambda: Hello("", kind="client"))
        while True:
            address = self._rng.choice(self._addresses())
            with trio.move_on_after(3.0):
                async with trio.open_nursery() as nursery:
                    try:
                        for _ in range(CONNECTIONS_MAX):
                            await endpoint.dial(address, nursery=nursery)
                    except DistributedLogError:
                        pass
                    await trio.sleep_forever()
            await trio.sleep(self._rng.expovariate(0.5))


async def flood(host: Host, addresses: Callable[[], list[Address]]) -> None:
    """Run an unauthenticated peer: connect to all nodes, send nothing or garbage, and disconnect late."""
    async with trio.open_nursery() as nursery:
        for number in range(len(addresses())):
            for _ in range(STRANGERS):
                nursery.start_soon(_intrude, host, addresses, number)


async def _intrude(host: Host, addresses: Callable[[], list[Address]], number: int) -> None:
    rng = host.random
    while True:
        await trio.sleep(rng.random() * PATIENCE_S)
        try:
            connection = await host.dial(addresses()[number])
            if rng.random() < 0.2:
                connection.try_send([rng.randbytes(rng.randrange(1, 200))])
        except DistributedLogError:
            continue
        await trio.sleep(rng.uniform(1.0, 6.0))
        connection.close()
