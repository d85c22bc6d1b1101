"""How a client's questions find a leader, stay with it, and are done once (docs/guarantees.md, M2; H20)."""

import random
from collections.abc import Sequence

import pytest
import trio

from distributedlog.metadata.client import UNDER_WAY_MAX, MetadataClient
from distributedlog.metadata.commands import Transact, encode_command
from distributedlog.metadata.transaction import Compare
from distributedlog.metadata.wire import decode_outcome
from distributedlog.runtime.errors import OutcomeUnknown, QuorumUnreachable, TooBusy
from distributedlog.runtime.frames import Op
from distributedlog.runtime.host import Buffer, File
from distributedlog.runtime.memory import MemoryDisk
from distributedlog.runtime.rpc import Endpoint, Hello

from .quorum import Quorum, quorum
from .test_metadata_quorum import applied, put


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
    return sum(link._last_request for link in client._links._links.values())


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


@pytest.mark.parametrize("seed", range(20))
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
    async with quorum(3) as nodes:
        await nodes.start()
        client = await nodes.client()
        await client.transact(put(b"k"))
        nodes.silence(await nodes.leader())
        begun = trio.current_time()

        await put_all(client, [b"k%03d" % n for n in range(200)])

        assert trio.current_time() - begun <= 1.0
        assert sent(client) < 200 * 2 + 50


async def test_a_silent_leader_that_wakes_does_nothing_twice(autojump_clock: object) -> None:
    """M2: a conditional change that was sent to two leaders is done once, and its client learns which."""
    async with quorum(3) as nodes:
        await nodes.start()
        client = await nodes.client()
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
    async with quorum(3) as nodes, trio.open_nursery() as nursery:
        await nodes.start()
        client = await nodes.client()
        await client.transact(put(b"k"))
        before = await entries(nodes)
        hello = Hello(cluster_id="", node_id="other", kind="client")
        endpoint = Endpoint(nodes.machine("other"), lambda: hello)
        place = nodes.peers[await nodes.leader()]
        links = [await endpoint.dial(place, nursery=nursery) for _ in range(3)]
        command = encode_command(Transact("someone", 1, before, put(b"once")))

        asked = [link.begin(Op.META_TRANSACT, command, timeout_s=5) for link in links]
        found = [await link.finish(p, 5) for link, p in zip(links, asked, strict=True)]
        again = await links[0].request(Op.META_TRANSACT, command, timeout_s=5)

        answers = [decode_outcome(reply.body)[1] for reply in (*found, again)]
        assert all(answer == answers[0] and answer.error is None for answer in answers)
        assert await entries(nodes) == before + 1
        nursery.cancel_scope.cancel()


async def test_joined_requests_of_a_leader_that_is_none_any_more_are_all_unknown(
    autojump_clock: object,
) -> None:
    """H110: its entry may be done by the next leader, or not: none of those who asked may hear "done"."""
    async with quorum(3) as nodes, trio.open_nursery() as nursery:
        await nodes.start()
        client = await nodes.client()
        await client.transact(put(b"k"))
        leader = await nodes.leader()
        hello = Hello(cluster_id="", node_id="other", kind="client")
        endpoint = Endpoint(nodes.machine("other"), lambda: hello)
        links = [await endpoint.dial(nodes.peers[leader], nursery=nursery) for _ in range(2)]
        command = encode_command(Transact("someone", 1, await entries(nodes), put(b"once")))
        for name in nodes.names:
            if name != leader:
                nodes.silence(name)

        asked = [link.begin(Op.META_TRANSACT, command, timeout_s=5) for link in links]
        for link, pending in zip(links, asked, strict=True):
            with pytest.raises(OutcomeUnknown):
                await link.finish(pending, 5)
        nursery.cancel_scope.cancel()


async def test_thousands_of_changes_at_once_are_one_entry_each(autojump_clock: object) -> None:
    """All are answered, and no more of them are under way than the client's bound."""
    async with quorum(3) as nodes:
        await nodes.start()
        client = await nodes.client()
        await client.transact(put(b"k"))
        before = await entries(nodes)
        most = 0

        async def look() -> None:
            nonlocal most
            while True:
                most = max(most, len(client._links.questions))
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await put_all(client, [b"k%05d" % n for n in range(3000)])
            nursery.cancel_scope.cancel()

        assert most == UNDER_WAY_MAX
        assert await entries(nodes) == before + 3000


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
            for n in range(UNDER_WAY_MAX + 10):
                nursery.start_soon(one, n)

        assert outcomes == {OutcomeUnknown: UNDER_WAY_MAX, TooBusy: 10}
