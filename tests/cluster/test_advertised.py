"""What a node tells others to dial."""

from collections.abc import Mapping

import pytest

from distributedlog.cluster.node import advertised, must_be_told
from distributedlog.runtime.errors import InvalidRequest
from distributedlog.runtime.host import Address
from distributedlog.runtime.machine import real_host

ANY = ("0.0.0.0", 0)


async def test_an_address_that_nobody_can_dial_is_not_told() -> None:
    """A client that asks a follower is sent to the leader: by the quorum's list, not to 0.0.0.0."""
    host = real_host("m1")
    listeners = {"": await host.listen(ANY), "out": await host.listen(ANY)}
    try:
        assert advertised(listeners, {}) == {}
        assert advertised(listeners, {"out": ("h", 1)}) == {"out": ("h", 1)}
        with pytest.raises(InvalidRequest, match="nowhere"):
            advertised(listeners, {"nowhere": ("h", 1)})
    finally:
        for listener in listeners.values():
            listener.close()


@pytest.mark.parametrize("told", [{}, {"": ("0.0.0.0", 4182)}, {"": ("::", 1)}])
def test_a_bookie_must_be_told_what_others_should_dial(told: Mapping[str, Address]) -> None:
    with pytest.raises(InvalidRequest, match="--advertise"):
        must_be_told({"": ANY}, told)


def test_a_bookie_at_one_address_of_its_own_need_not_be_told() -> None:
    must_be_told({"": ("127.0.0.1", 0), "out": ANY}, {"out": ("h", 1)})
