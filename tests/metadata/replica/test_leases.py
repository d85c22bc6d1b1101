"""The leader's side of leases (M7, H19), over a replica that says what it is told to say."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.metadata.model.command_results import CommandResult
from distributedlog.metadata.model.commands import ExpireLease, decode_command
from distributedlog.metadata.replica.leases import Leases
from distributedlog.runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    LeaseExpired,
)
from distributedlog.runtime.interfaces.principals import ANONYMOUS

TTL_S = 10.0


@dataclass(eq=False)
class Connection:
    """As much of a link as leases look at."""

    closed: ConnectionLost | None = None
    created_at: float = field(default_factory=trio.current_time)
    principal: str = ANONYMOUS
    token: None = None

    def end(self, leases: Leases) -> None:
        self.closed = ConnectionLost("cut")
        leases.on_closed(self)  # type: ignore[arg-type]


OPEN: Any = Connection(created_at=0.0)


@dataclass
class Held:
    ttl_ms: int = int(TTL_S * 1000)
    owner: str = ""


@dataclass
class State:
    leases: dict[int, Held] = field(default_factory=lambda: {7: Held()})


class OneReplica:
    """Leads or not; proposals are kept, reads are confirmed when asked."""

    def __init__(self) -> None:
        self.is_leader = True
        self.state = State()
        self.proposed: list[tuple[int, Callable[[CommandResult | DistributedLogError], None]]] = []

    def propose(
        self, command: bytes, reply: Callable[[CommandResult | DistributedLogError], None]
    ) -> None:
        expire = decode_command(command)
        assert isinstance(expire, ExpireLease)
        self.proposed.append((expire.lease, reply))

    def read_linearizable(self, reply: Callable[[DistributedLogError | None], None]) -> None:
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
        replica.is_leader = False
        leases.on_role()
        await trio.sleep(3 * TTL_S)
        replica.is_leader = True
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
        leases.renew(7, OPEN, said.append)
        assert isinstance(said[0], LeaseExpired)

        replica.proposed[0][1](DistributedLogError("too busy"))
        leases.renew(7, OPEN, said.append)
        assert said[1] is None
        await trio.sleep(TTL_S - 1)
        assert len(replica.proposed) == 1
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def running(replica: OneReplica) -> AsyncIterator[Leases]:
    leases = of(replica)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leases.run)
        yield leases
        nursery.cancel_scope.cancel()


async def test_a_lease_ends_within_a_second_of_its_connection(autojump_clock: MockClock) -> None:
    """H19: a writer that was killed holds its log no longer than that."""
    replica, link = OneReplica(), Connection()
    async with running(replica) as leases:
        leases.on_granted(7, link)  # type: ignore[arg-type]
        await trio.sleep(5)
        link.end(leases)

        await trio.sleep(0.7)
        assert replica.proposed == []
        await trio.sleep(0.3)
        assert [lease for lease, _ in replica.proposed] == [7]


async def test_a_lease_belongs_to_the_connection_it_was_renewed_on_last(
    autojump_clock: MockClock,
) -> None:
    """H19: a blip. The new connection may be heard before the end of the old one is."""
    replica = OneReplica()
    said: list[DistributedLogError | None] = []
    for heard_first in (True, False):
        old: Any = Connection()
        new: Any = Connection()
        async with running(replica) as leases:
            leases.on_granted(7, old)
            if heard_first:
                leases.renew(7, new, said.append)
                old.end(leases)
            else:
                old.end(leases)
                await trio.sleep(0.5)
                leases.renew(7, new, said.append)

            await trio.sleep(TTL_S - 1)
            assert replica.proposed == []
            assert said.pop() is None


@pytest.mark.parametrize("ended", [False, True])
async def test_a_renewal_that_comes_late_on_the_older_connection_takes_no_lease_along(
    ended: bool, autojump_clock: MockClock
) -> None:
    """H19: it was sent before its holder left that connection, whose end then ends nothing."""
    replica = OneReplica()
    said: list[DistributedLogError | None] = []
    old: Any = Connection()
    await trio.sleep(0.1)
    new: Any = Connection()
    async with running(replica) as leases:
        leases.on_granted(7, old)
        leases.renew(7, new, said.append)
        if ended:
            old.end(leases)
        leases.renew(7, old, said.append)
        if not ended:
            old.end(leases)

        await trio.sleep(TTL_S - 1)
        assert replica.proposed == []
        new.end(leases)
        await trio.sleep(1)
        assert [lease for lease, _ in replica.proposed] == [7]
        assert said == [None, None]


async def test_what_is_confirmed_after_its_connections_end_keeps_no_lease(
    autojump_clock: MockClock,
) -> None:
    """H19: the last words of a writer that was killed, a request or a renewal, are no sign of life."""
    for granted in (True, False):
        replica = OneReplica()
        late: Any = Connection()
        async with running(replica) as leases:
            late.end(leases)
            if granted:
                leases.on_granted(7, late)
            else:
                leases.renew(7, late, lambda error: None)

            await trio.sleep(1)
            assert [lease for lease, _ in replica.proposed] == [7]


async def test_a_new_leader_gives_short_leases_the_time_to_find_it(
    autojump_clock: MockClock,
) -> None:
    """Else a leader that was silent for two seconds would end all short leases together."""
    replica = OneReplica()
    replica.state.leases[7].ttl_ms = 2000
    async with running(replica):
        await trio.sleep(4.8)
        assert replica.proposed == []
        await trio.sleep(0.5)
        assert [lease for lease, _ in replica.proposed] == [7]
