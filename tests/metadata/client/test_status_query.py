"""Who forms the quorum: asked of whoever answers, for as long as that may still help."""

from typing import cast

import pytest
import trio
import trio.testing

from distributedlog.metadata.client.node_connections import NodeConnections
from distributedlog.metadata.client.status_query import query_status
from distributedlog.runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    NotAuthenticated,
    QuorumUnreachable,
)
from distributedlog.runtime.interfaces.host import Address

TIMEOUT_S = 30.0
PLACES = [("m1", 1), ("m2", 2)]


class _KnownNodes:
    addresses = PLACES


class Refusing:
    """Links of which none is made, for these reasons."""

    leader = PLACES[0]
    known_nodes = _KnownNodes()
    timeout_s = TIMEOUT_S

    def __init__(self, why: dict[str, DistributedLogError]) -> None:
        self.why = why

    async def connect(
        self, address: Address, deadline: float, *, allow_unjoined: bool = False
    ) -> None:
        raise self.why[address[0]]

    def unreachable_error(self, last: str) -> QuorumUnreachable:
        return QuorumUnreachable(last)


async def test_whom_no_node_takes_is_told_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """`dlog status` without credentials tried for half a minute, and then said that nobody is there."""
    links = Refusing({name: NotAuthenticated(f"{name} asks who this is") for name, _ in PLACES})

    with pytest.raises(NotAuthenticated, match="m2 asks who this is"):
        await query_status(cast("NodeConnections", links))

    assert trio.current_time() < 1


async def test_while_one_node_may_still_answer_it_is_asked_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    why = {"m1": NotAuthenticated("m1 asks who this is"), "m2": ConnectionLost("m2 is away")}
    began = trio.current_time()

    with pytest.raises(QuorumUnreachable, match="m2 is away"):
        await query_status(cast("NodeConnections", Refusing(why)))

    assert trio.current_time() - began >= TIMEOUT_S
