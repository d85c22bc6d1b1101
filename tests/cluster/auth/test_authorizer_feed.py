"""How a bookie hears what it checks capabilities by."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.bookie.session.bookie_authorizer import BookieAuthorizer
from distributedlog.cluster.auth import authorizer_feed as gate_keeping
from distributedlog.cluster.auth.authorizer_feed import feed_authorizer
from distributedlog.metadata.model.acl_records import MODE_KEY, encode_mode
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.interfaces.errors import NotAuthenticated
from distributedlog.runtime.interfaces.principals import Credentials, HandshakeContext
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.capabilities import Generation
from distributedlog.runtime.protocol.capability_messages import BookieKeysReply
from distributedlog.runtime.protocol.handshake import Hello
from tests.metadata.local_metadata import LocalMetadata
from tests.runtime.pipe import PipeNetwork

HELD = Generation(1, bytes(32), bytes(32))


class Reply:
    def __init__(self, body: bytes) -> None:
        self.body = memoryview(body)


class Leader(LocalMetadata):
    """Answers a question by what is so when it comes, the first one later than the others."""

    def __init__(self) -> None:
        super().__init__()
        self.since: dict[str, int] = {}
        self.asked = 0

    async def request(self, op: int, body: bytes) -> Reply:
        self.asked += 1
        answer = BookieKeysReply("required", (HELD,), dict(self.since)).encode()
        await trio.sleep(5.0 if self.asked == 1 else 0.1)
        return Reply(answer)


async def a_leader() -> Leader:
    leader = Leader()
    await leader.transact(Transaction((), (Put(MODE_KEY, encode_mode("required")),)))
    return leader


async def test_an_answer_of_before_never_brings_back_what_was_taken_away(
    autojump_clock: MockClock,
) -> None:
    """Two questions under way, of which the older one is answered last: the bookie would take the ex-user's
    capabilities again, until it asks the next time."""
    gate = BookieAuthorizer(600.0, trio.current_time)
    leader: Any = await a_leader()
    endpoint: Any = Endpoint(PipeNetwork(1).host("b1"), Hello)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed_authorizer, gate, endpoint, leader, "b1")
        with trio.move_on_after(30):
            while not leader.asked:  # noqa: ASYNC110
                await trio.sleep(0.1)
            leader.since = {"user/ex": 50}
            gate.refresh_wanted.set()
            await trio.sleep(20)
            assert leader.asked >= 2
            assert gate._revoked_at_revision == {"user/ex": 50}
        nursery.cancel_scope.cancel()


async def test_a_silence_ends_what_is_open_while_the_question_still_waits(
    autojump_clock: MockClock,
) -> None:
    """H241: nothing comes of the quorum, not even that it cannot be reached."""
    gate = BookieAuthorizer(100.0, trio.current_time)
    gate.apply_reply(BookieKeysReply("required", (HELD,), {}))
    looked: list[bool] = []
    gate.subscribe(lambda: looked.append(gate.is_cut_off))
    leader: Any = await a_leader()
    endpoint: Any = Endpoint(PipeNetwork(1).host("b1"), Hello)

    async def silence(key: bytes) -> None:
        await trio.sleep_forever()

    leader.get = silence
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed_authorizer, gate, endpoint, leader, "b1")
        await trio.sleep(100 + gate_keeping.EVERY_S)
        assert looked == [True]
        nursery.cancel_scope.cancel()


async def test_a_pass_is_not_taken_in_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """H228: who overhears it would be its holder."""
    gate, endpoint = (
        BookieAuthorizer(600.0, trio.current_time),
        Endpoint(PipeNetwork(1).host("b1"), Hello),
    )
    leader: Any = await a_leader()
    leader.asked = 1
    await gate_keeping.refresh_authorizer(gate, endpoint, leader, "b1")
    assert Credentials("pass", lambda meeting: b"").method in endpoint.methods
    with pytest.raises(NotAuthenticated, match="unencrypted connection"):
        endpoint.methods["pass"](HandshakeContext("c:1", 1), b"whatever it is")
    with pytest.raises(NotAuthenticated, match="not a valid session credential"):
        endpoint.methods["pass"](HandshakeContext("c:1", 1, is_secret=True), b"x")
