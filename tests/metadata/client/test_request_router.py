"""A client's requests find a leader, stay with it, and are executed once (M2, H20)."""

import random
from collections.abc import Sequence

import pytest
import trio

from distributedlog.metadata.client.metadata_client import PENDING_REQUESTS_MAX, MetadataClient
from distributedlog.metadata.model.commands import Transact, encode_command
from distributedlog.metadata.model.transaction import Compare
from distributedlog.metadata.node.metadata_session import MetadataSession
from distributedlog.metadata.protocol.client_messages import decode_outcome, encode_item
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    MetadataFull,
    OutcomeUnknown,
    QuorumUnreachable,
    TooBusy,
)
from distributedlog.runtime.interfaces.host import Buffer, File
from distributedlog.runtime.net.link import Link
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op
from distributedlog.runtime.protocol.handshake import Hello
from tests.examples import few

from ...runtime.pipe import PipeNetwork
from ..quorum import Quorum, put, quorum, serving_quorum
from ..test_metadata_quorum import applied


class SlowDisk(MemoryDisk):
    """Its syncs take as long as they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.sync_s = 0.0

    async def create(self, name: str, *, size: int = 0, direct: bool = False) -> File:
        return self._slow(await super().create(name, size=size, direct=direct))

    def _slow(self, file: File) -> File:
        quick = file.write_synced

        async def write_synced(offset: int, buffer: Buffer) -> None:
            await trio.sleep(self.sync_s)
            await quick(offset, buffer)

        file.write_synced = write_synced  # type: ignore[method-assign]
        return file


async def put_all(client: MetadataClient, keys: Sequence[bytes], value: bytes = b"") -> None:
    async def one(key: bytes) -> None:
        assert (await client.transact(put(key, value))).succeeded

    async with trio.open_nursery() as nursery:
        for key in keys:
            nursery.start_soon(one, key)


def sent(client: MetadataClient) -> int:
    """How many requests left on the connections that are there."""
    return sum(link._last_request for link in client._connections._links.values())


async def slow_followers(nodes: Quorum, sync_s: float) -> MetadataClient:
    """A quorum that serves, whose leader waits so long for each commit."""
    for name in nodes.names:
        nodes.disks[name] = SlowDisk()
    await nodes.start()
    client = await nodes.client(timeout_s=60)
    await client.transact(put(b"k"))
    leader = await nodes.leader()
    for name in nodes.names:
        if name != leader:
            nodes.disks[name].sync_s = sync_s  # type: ignore[attr-defined]
    return client


async def entries(nodes: Quorum) -> int:
    return max((await applied(nodes)).values())


@pytest.mark.parametrize("seed", few(range(20), 4))
async def test_a_silent_leader_costs_a_client_at_most_a_second(
    seed: int, autojump_clock: object
) -> None:
    """Nothing closes its connections: another one is elected, and asked beside it, within the second."""
    async with quorum(3, seed=seed) as nodes:
        await nodes.start()
        client = await nodes.client()
        await client.transact(put(b"k", b"1"))
        await trio.sleep(random.Random(seed).random())
        leader = await nodes.leader()
        nodes.silence(leader)

        worst = 0.0
        for n in range(40):
            asked_at = trio.current_time()
            await (client.transact(put(b"k", b"%d" % n)) if n % 2 else client.get(b"k"))
            worst = max(worst, trio.current_time() - asked_at)
            await trio.sleep(0.03)

        assert worst <= 1.0


async def test_many_questions_to_a_silent_leader_are_not_a_storm(autojump_clock: object) -> None:
    """One of them searches for all: the others come when it has found who leads."""
    async with serving_quorum() as (nodes, client):
        await client.transact(put(b"k"))
        nodes.silence(await nodes.leader())
        begun = trio.current_time()

        await put_all(client, [b"k%03d" % n for n in range(200)])

        assert trio.current_time() - begun <= 1.0
        assert sent(client) < 200 * 2 + 50


async def test_a_silent_leader_that_wakes_does_nothing_twice(autojump_clock: object) -> None:
    """M2: a conditional change that was sent to two leaders is done once, and its client learns which."""
    async with serving_quorum() as (nodes, client):
        await client.get(b"n")
        for n in range(6):
            leader = await nodes.leader()
            nodes.silence(leader)
            transaction = put(b"n", b"%d" % n)
            transaction += type(transaction)((Compare.version(b"n", n),), ())
            assert (await client.transact(transaction)).succeeded
            nodes.end_silence(leader)
            await trio.sleep(1.5)
        found = await client.get(b"n")
        assert found is not None
        assert found.version == 6


async def test_a_slow_commit_is_waited_for_and_not_sent_again(autojump_clock: object) -> None:
    """A leader whose connection shows signs of life has the question: no second entry for it."""
    async with quorum(3) as nodes:
        client = await slow_followers(nodes, 5.0)
        before, sent_before = await entries(nodes), sent(client)

        begun = trio.current_time()
        await put_all(client, [b"a", b"b", b"c"])

        assert trio.current_time() - begun > 4
        assert await entries(nodes) == before + 3
        assert sent(client) == sent_before + 3


async def test_a_request_that_is_sent_again_is_one_entry(autojump_clock: object) -> None:
    """H110: it joins the one that is under way, or gets the answer that is remembered."""
    async with serving_quorum() as (nodes, client), trio.open_nursery() as nursery:
        await client.transact(put(b"k"))
        before = await entries(nodes)
        hello = Hello(cluster_id="", node_id="other", kind="client")
        endpoint = Endpoint(nodes.machine("other"), lambda: hello)
        place = nodes.peers[await nodes.leader()]
        links = [await endpoint.dial(place, nursery=nursery) for _ in range(3)]
        command = encode_command(Transact("someone", 1, before, put(b"once")))

        asked = [link.start_request(Op.META_TRANSACT, command, timeout_s=5) for link in links]
        found = [await link.wait_reply(p, 5) for link, p in zip(links, asked, strict=True)]
        again = await links[0].request(Op.META_TRANSACT, command, timeout_s=5)

        answers = [decode_outcome(reply.body)[1] for reply in (*found, again)]
        assert all(answer == answers[0] and answer.error is None for answer in answers)
        assert await entries(nodes) == before + 1
        nursery.cancel_scope.cancel()


async def test_a_request_under_way_is_joined_where_there_is_no_room_any_more(
    autojump_clock: object,
) -> None:
    """ "Refused for lack of room" would deny what the first sending may still do (G7)."""
    async with quorum(3) as nodes, trio.open_nursery() as nursery:
        await slow_followers(nodes, 4.0)
        leader = await nodes.leader()
        hello = Hello(cluster_id="", node_id="other", kind="client")
        endpoint = Endpoint(nodes.machine("other"), lambda: hello)
        link = await endpoint.dial(nodes.peers[leader], nursery=nursery)
        command = encode_command(
            Transact("someone", 1, await entries(nodes), put(b"k2", bytes(500)))
        )
        asked = [link.start_request(Op.META_TRANSACT, command, timeout_s=9)]
        await trio.sleep(1)
        nodes.disks[leader].bytes_max = 0
        await trio.sleep(1)  # it looks at its disk twice a second

        asked.append(link.start_request(Op.META_TRANSACT, command, timeout_s=9))
        for pending in asked:
            answer = decode_outcome((await link.wait_reply(pending, 9)).body)[1]
            assert answer.transaction is not None
            assert answer.transaction.succeeded
        nursery.cancel_scope.cancel()


class Forgetful:
    """A metadata node that takes a change and hangs up, and refuses it when it is asked again."""

    def __init__(self, link: Link, asked: list[int], refusal: DistributedLogError) -> None:
        self._link = link
        self._asked = asked
        self._refusal = refusal

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        if op == Op.META_READ:
            self._link.reply(ident, encode_item(1, 1, None))
        elif op == Op.META_TRANSACT:
            self._asked.append(ident)
            if len(self._asked) == 1:
                self._link.close(ConnectionLost("its node was killed"))
            else:
                self._link.reply_error(ident, self._refusal)

    def on_batch_end(self) -> None:
        pass

    def on_closed(self) -> None:
        pass


@pytest.mark.parametrize(
    "refusal", [MetadataFull("no room"), TooBusy("later")], ids=["full", "busy"]
)
async def test_a_refusal_says_nothing_of_an_earlier_sending(
    refusal: DistributedLogError, autojump_clock: object
) -> None:
    """G7: the first one was sent and not answered; the next leader, which has it in its log, refuses."""
    network, asked = PipeNetwork(1), list[int]()
    server = Endpoint(network.host("m1"), lambda: Hello("c1", "n1", "metadata"))
    asker = Endpoint(network.host("client"), lambda: Hello(node_id="client"))
    async with trio.open_nursery() as nursery:
        listener = await server.host.listen(("m1", 4181))
        nursery.start_soon(
            server.serve, {"": listener}, lambda link: Forgetful(link, asked, refusal)
        )
        client = MetadataClient(asker, [("m1", 4181)], client_id="client")
        await nursery.start(lambda task_status: client.run(task_status=task_status))

        with pytest.raises(OutcomeUnknown):
            await client.transact(put(b"k", bytes(1000)))
        sent = len(asked)
        with pytest.raises(type(refusal)):
            await client.transact(put(b"k", bytes(1000)))

        assert len(asked) > sent > 1
        nursery.cancel_scope.cancel()


async def test_joined_requests_of_a_leader_that_is_none_any_more_are_all_unknown(
    autojump_clock: object,
) -> None:
    """H110: its entry may be done by the next leader, or not: none of those who asked may hear "done"."""
    async with serving_quorum() as (nodes, client), trio.open_nursery() as nursery:
        await client.transact(put(b"k"))
        leader = await nodes.leader()
        hello = Hello(cluster_id="", node_id="other", kind="client")
        endpoint = Endpoint(nodes.machine("other"), lambda: hello)
        links = [await endpoint.dial(nodes.peers[leader], nursery=nursery) for _ in range(2)]
        command = encode_command(Transact("someone", 1, await entries(nodes), put(b"once")))
        for name in nodes.names:
            if name != leader:
                nodes.silence(name)

        asked = [link.start_request(Op.META_TRANSACT, command, timeout_s=5) for link in links]
        for link, pending in zip(links, asked, strict=True):
            with pytest.raises(OutcomeUnknown):
                await link.wait_reply(pending, 5)
        nursery.cancel_scope.cancel()


async def test_thousands_of_changes_at_once_are_one_entry_each(autojump_clock: object) -> None:
    """All are answered, and no more of them are under way than the client's bound."""
    async with serving_quorum() as (nodes, client):
        await client.transact(put(b"k"))
        before = await entries(nodes)
        most = 0

        async def look() -> None:
            nonlocal most
            while True:
                most = max(most, len(client._router.pending_requests))
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await put_all(client, [b"k%05d" % n for n in range(3000)])
            nursery.cancel_scope.cancel()

        assert most == PENDING_REQUESTS_MAX
        assert await entries(nodes) == before + 3000


@pytest.mark.properties
async def test_a_leader_that_has_too_much_to_do_is_asked_again_later(
    autojump_clock: object,
) -> None:
    """More bytes than may wait for a quorum at once: the client waits, its callers hear nothing of it."""
    async with quorum(3) as nodes:
        client = await slow_followers(nodes, 1.0)
        await put_all(client, [b"k%02d" % n for n in range(40)], bytes(1_000_000))


async def test_a_client_without_answers_says_what_is_unknown_and_what_was_not_sent(
    autojump_clock: object,
) -> None:
    """A question that never left waits for its turn in vain: it certainly did not happen."""
    async with quorum(3) as nodes:
        await nodes.start()
        client = await nodes.client(timeout_s=3.0)
        await client.transact(put(b"k"))
        for name in nodes.names:
            nodes.silence(name)
        outcomes: dict[type, int] = {}

        async def one(n: int) -> None:
            try:
                await client.transact(put(b"k%d" % n))
            except (OutcomeUnknown, QuorumUnreachable, TooBusy) as error:
                outcomes[type(error)] = outcomes.get(type(error), 0) + 1

        async with trio.open_nursery() as nursery:
            for n in range(PENDING_REQUESTS_MAX + 10):
                nursery.start_soon(one, n)

        assert outcomes == {OutcomeUnknown: PENDING_REQUESTS_MAX, TooBusy: 10}


async def test_what_may_be_done_once_alone_is_asked_of_nobody_beside_a_silent_leader(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """It may have done it, and another one that leads by then would do it again."""
    asked: list[object] = []
    monkeypatch.setattr(MetadataSession, "_rotate", lambda *what: asked.append(what))
    async with quorum(3) as nodes:
        await nodes.start()
        client = await nodes.client(timeout_s=8.0)
        await client.transact(put(b"k", b"1"))
        nodes.silence(await nodes.leader())
        with pytest.raises(OutcomeUnknown, match="may have been created"):
            await client.rotate_secrets()
        assert not asked
