"""What a leader takes of what is asked at once, and what it refuses early."""

import pytest
import trio

from distributedlog.metadata.model.commands import Transact, encode_command
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.metadata.protocol.client_messages import decode_outcome
from distributedlog.metadata.replica.admission_control import NO_TIMEOUT_S, AdmissionControl
from distributedlog.runtime.interfaces.errors import TooBusy
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op
from distributedlog.runtime.protocol.handshake import Hello

from ..client.test_request_router import entries, slow_followers
from ..quorum import quorum

MIB = 1024 * 1024


def busy(intake: AdmissionControl, *, rate: int, seconds: int, asker: object = "a") -> float:
    """Have ``rate`` bytes a second decided for so long, with ten seconds of them waiting; the time then."""
    intake.on_accepted(asker, rate * (seconds + 10), 0.0)
    for tenth in range(1, seconds * 10 + 1):
        intake.on_applied(asker, rate // 10, tenth / 10)
    return float(seconds)


def test_what_would_be_done_too_late_is_refused_at_once() -> None:
    intake = AdmissionControl(16 * MIB)
    now = busy(intake, rate=1000, seconds=3)

    assert intake.expected_wait_s(now) == pytest.approx(10, rel=0.3)
    assert intake.refusal("b", 100, 10.0, now) is not None
    assert intake.refusal("b", 100, 60.0, now) is None
    assert intake.refusal("b", 100, NO_TIMEOUT_S, now) is None


def test_a_burst_into_an_idle_leader_is_taken() -> None:
    intake = AdmissionControl(16 * MIB)
    for n in range(16_000):
        assert intake.refusal(n % 64, 200, 1.0, 5.0) is None
        intake.on_accepted(n % 64, 200, 5.0)


def test_one_slow_decision_does_not_turn_a_later_burst_away() -> None:
    """A lone request that took long, by a slow disk say, says nothing of what an idle leader can do."""
    intake = AdmissionControl(16 * MIB)
    intake.on_accepted("a", 100, 0.0)
    intake.on_applied("a", 100, 0.7)
    for n in range(16_000):
        assert intake.refusal(n % 64, 200, 1.0, 5.0) is None
        intake.on_accepted(n % 64, 200, 5.0)


def test_a_leader_that_decides_nothing_takes_no_more_after_a_while() -> None:
    """Its quorum is silent: who asks is told while it is certain that nothing was done."""
    intake = AdmissionControl(16 * MIB)
    intake.on_accepted("a", 100, 0.0)

    assert intake.refusal("b", 100, 4.0, 1.0) is None
    assert intake.refusal("b", 100, 4.0, 2.5) is not None
    intake.clear()
    assert intake.refusal("b", 100, 4.0, 2.5) is None


def test_one_connection_does_not_take_all_the_room() -> None:
    intake = AdmissionControl(16 * MIB)
    for _ in range(9):
        assert intake.refusal("greedy", MIB, 10.0, 0.1) is None
        intake.on_accepted("greedy", MIB, 0.1)

    assert intake.refusal("greedy", MIB, 10.0, 0.1) is not None
    assert intake.refusal("other", MIB, 10.0, 0.1) is None
    for _ in range(6):
        intake.on_applied("greedy", MIB, 0.2)
    assert intake.refusal("greedy", MIB, 10.0, 0.2) is None


def test_nothing_is_left_of_what_was_decided() -> None:
    intake = AdmissionControl(16 * MIB)
    for n in range(100):
        intake.on_accepted(n % 7, n, n / 10)
    for n in range(100):
        intake.on_applied(n % 7, n, 10 + n / 10)

    assert intake.waiting_bytes == 0
    assert intake._bytes_by_requester == {}


async def test_a_request_that_waits_too_long_already_is_not_proposed(
    autojump_clock: object,
) -> None:
    """It is refused, certainly not done; what was taken before is answered."""
    async with quorum(3) as nodes, trio.open_nursery() as nursery:
        await slow_followers(nodes, 3.0)
        hello = Hello(cluster_id="", node_id="other", kind="client")
        endpoint = Endpoint(nodes.machine("other"), lambda: hello)
        link = await endpoint.dial(nodes.peers[await nodes.leader()], nursery=nursery)
        before = await entries(nodes)

        def command(n: int) -> bytes:
            change = Transaction((), (Put(b"k%d" % n, b""),))
            return encode_command(Transact("someone", n, before, change))

        first = link.start_request(Op.META_TRANSACT, command(1), timeout_s=9)
        await trio.sleep(1.5)
        with pytest.raises(TooBusy, match="metadata quorum overloaded"):
            await link.request(Op.META_TRANSACT, command(2), timeout_s=2)
        assert decode_outcome((await link.wait_reply(first, 9)).body)[1].error is None
        await trio.sleep(4)

        assert await entries(nodes) == before + 1
        nursery.cancel_scope.cancel()
