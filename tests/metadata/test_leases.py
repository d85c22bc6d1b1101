"""The leader's side of leases (M7, H19), over a replica that says what it is told to say."""

from collections.abc import Callable
from dataclasses import dataclass, field

import trio
from trio.testing import MockClock

from distributedlog.metadata.answers import Answer
from distributedlog.metadata.commands import Expire, decode_command
from distributedlog.metadata.leases import Leases
from distributedlog.runtime.errors import DistributedLogError, LeaseExpired

TTL_S = 10.0


@dataclass
class Held:
    ttl_ms: int = int(TTL_S * 1000)


@dataclass
class State:
    leases: dict[int, Held] = field(default_factory=lambda: {7: Held()})


class OneReplica:
    """Leads or not; proposals are kept, reads are confirmed when asked."""

    def __init__(self) -> None:
        self.leads = True
        self.state = State()
        self.proposed: list[tuple[int, Callable[[Answer | DistributedLogError], None]]] = []

    def propose(
        self, command: bytes, reply: Callable[[Answer | DistributedLogError], None]
    ) -> None:
        expire = decode_command(command)
        assert isinstance(expire, Expire)
        self.proposed.append((expire.lease, reply))

    def read(self, reply: Callable[[DistributedLogError | None], None]) -> None:
        reply(None)

    def drain(self) -> None:
        pass


def of(replica: OneReplica) -> Leases:
    return Leases(replica)  # type: ignore[arg-type]


async def test_a_leader_that_comes_back_grants_every_lease_anew(autojump_clock: MockClock) -> None:
    """H19: what was renewed at others meanwhile is known to them alone."""
    replica = OneReplica()
    leases = of(replica)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leases.run)
        await trio.sleep(0.5)
        replica.leads = False
        leases.on_role()
        await trio.sleep(3 * TTL_S)
        replica.leads = True
        leases.on_role()

        await trio.sleep(TTL_S - 1)
        assert replica.proposed == []
        await trio.sleep(2)
        assert [lease for lease, _ in replica.proposed] == [7]
        nursery.cancel_scope.cancel()


async def test_a_lease_whose_end_is_proposed_is_renewed_no_more(autojump_clock: MockClock) -> None:
    """M7: nobody is told that it lives on, while its end is on its way; where that fails, it does."""
    replica = OneReplica()
    leases = of(replica)
    said: list[DistributedLogError | None] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leases.run)
        await trio.sleep(TTL_S + 1)
        assert [lease for lease, _ in replica.proposed] == [7]
        leases.renew(7, said.append)
        assert isinstance(said[0], LeaseExpired)

        replica.proposed[0][1](DistributedLogError("too busy"))
        leases.renew(7, said.append)
        assert said[1] is None
        await trio.sleep(TTL_S - 1)
        assert len(replica.proposed) == 1
        nursery.cancel_scope.cancel()
