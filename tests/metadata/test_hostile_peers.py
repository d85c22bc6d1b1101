"""What speaks as a member and is none, and what a member says that no honest one can (H214)."""

import logging

import pytest
import trio
import xxhash

from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.protocol.client_messages import MembersRequest
from distributedlog.metadata.raft.raft import TERMS_AHEAD_MAX
from distributedlog.metadata.raft.raft_messages import (
    TERM_MAX,
    AppendRequest,
    Entry,
    Heartbeat,
    Message,
    PreVoteReply,
    SnapshotChunk,
    TimeoutNow,
    Vote,
    WireMessage,
    decode,
    encode,
)
from distributedlog.metadata.raft.ready import RaftRole, Snapshot
from distributedlog.metadata.storage.snapshot_store import CHUNK
from distributedlog.runtime.interfaces.errors import ConnectionLost, ProtocolError
from distributedlog.runtime.net.client_link import ClientLink
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op, envelope, pack
from distributedlog.runtime.protocol.handshake import Hello

from .quorum import Quorum, fill, filled_quorum, put, quorum, serving_quorum
from .raft_cores import elected, node, settle


@pytest.mark.parametrize("term", [TERM_MAX + 1, (1 << 62) - 1])
def test_a_term_that_nobody_may_enter_is_no_message(term: int) -> None:
    assert decode(encode(Heartbeat(TERM_MAX, "b", 0, 1))) == Heartbeat(TERM_MAX, "b", 0, 1)
    with pytest.raises(ProtocolError):
        decode(encode(Heartbeat(term, "b", 0, 1)))


@pytest.mark.parametrize("kind", [Heartbeat, Vote, AppendRequest, PreVoteReply, TimeoutNow])
def test_a_term_further_ahead_than_elections_go_is_refused(kind: type) -> None:
    """One forged message must not leave the quorum without a term for its next election."""
    core = node(1, 1)
    far = core.term + TERMS_AHEAD_MAX + 1
    by_kind: dict[type, Message] = {
        Heartbeat: Heartbeat(far, "b", 0, 1),
        Vote: Vote(far, "b", 9, far, True),
        AppendRequest: AppendRequest(far, "b", 2, 1, 0, (Entry(3, far, b"x"),)),
        PreVoteReply: PreVoteReply(far, "b", False),
        TimeoutNow: TimeoutNow(far, "b"),
    }

    with pytest.raises(ProtocolError):
        core.on_message(by_kind[kind], 0.1)

    assert core.term == 1
    elected(core)


def test_a_snapshot_of_a_leader_so_far_ahead_is_dropped() -> None:
    core = node(1, 1)
    core.on_snapshot_received(TERMS_AHEAD_MAX + 2, "b", Snapshot(9, 1), 0.1)
    assert core.term == 1
    assert core.log.last_index == 2


def test_a_node_that_has_nothing_yet_takes_the_term_of_an_old_cluster() -> None:
    core = node()
    core.on_message(Heartbeat(TERMS_AHEAD_MAX * 5, "b", 0, 1), 0.1)
    assert core.term == TERMS_AHEAD_MAX * 5
    core = node(1)
    core.on_message(Heartbeat(1 + TERMS_AHEAD_MAX, "b", 0, 1), 0.1)
    assert core.term == 1 + TERMS_AHEAD_MAX


def test_nobody_campaigns_for_a_term_that_cannot_be_told() -> None:
    core = node(1, term=TERM_MAX)
    core.on_time(5.0)
    core.on_message(TimeoutNow(TERM_MAX, "b"), 5.1)
    assert settle(core) == []
    assert core.role is RaftRole.FOLLOWER


async def greet(nodes: Quorum, name: str, node_id: str, nursery: trio.Nursery) -> ClientLink:
    """As a metadata node of that id."""
    hello = Hello(await nodes.cluster_id(), node_id, "metadata", "m9")
    endpoint = Endpoint(nodes.machine("attacker"), lambda: hello)
    return await endpoint.dial((name, 4181), nursery=nursery)


async def say(nodes: Quorum, name: str, node_id: str, message: WireMessage) -> None:
    async with trio.open_nursery() as nursery:
        link = await greet(nodes, name, node_id, nursery)
        body = encode(message)
        link.send(envelope(Op.META_RAFT, len(body), ident=7), body)
        await trio.sleep(1)
        link.close(ConnectionLost("said all"))


async def chatter(nodes: Quorum, name: str, node_id: str) -> None:
    """Speak as a member, again and again."""
    body = encode(Heartbeat(1, node_id, 0, 1))
    async with trio.open_nursery() as nursery:
        link = await greet(nodes, name, node_id, nursery)
        while link.closed is None:
            link.send(envelope(Op.META_RAFT, len(body)), body)
            await trio.sleep(0.02)


async def forge(nodes: Quorum, name: str, node_id: str, *terms: int) -> None:
    """Greet a node as a metadata node of that id, and say that one leads in these terms."""
    async with trio.open_nursery() as nursery:
        for term in terms:
            link = await greet(nodes, name, node_id, nursery)
            body = encode(Heartbeat(term, node_id, 0, 1))
            link.send(envelope(Op.META_RAFT, len(body)), body)
            await trio.sleep(2.5)
            link.close(ConnectionLost("said all"))


async def test_a_stranger_moves_no_term(autojump_clock: object) -> None:
    """A greeting names itself: what counts is who the members at the known addresses say there are."""
    async with filled_quorum() as (nodes, client):
        before = {row.term for row in (await nodes.rows()).values()}

        for name in nodes.names:
            await forge(nodes, name, "f" * 32, 1000, TERMS_AHEAD_MAX)

        assert {row.term for row in (await nodes.rows()).values()} == before
        await client.transact(put(b"after"))


async def test_a_member_s_name_does_not_help_to_end_all_terms(autojump_clock: object) -> None:
    """Names are no secret: a forged high term is refused whoever it comes from, and the quorum elects."""
    async with filled_quorum() as (nodes, client):
        ids = {name: row.node_id for name, row in (await nodes.rows()).items()}

        for name in nodes.names:
            forged = next(node_id for other, node_id in ids.items() if other != name)
            await forge(nodes, name, forged, TERM_MAX, 1 << 40)

        await nodes.kill(await nodes.leader())
        await client.transact(put(b"after"))
        assert max(row.term for row in (await nodes.rows()).values()) < 100


@pytest.mark.parametrize("content", [b"\xc1" + pack([1, [["n", 7]]]), pack([99]), pack([1, 2])])
async def test_a_snapshot_that_cannot_be_read_ends_nobody(
    content: bytes, autojump_clock: object
) -> None:
    """Whole and checksummed, from a member's id, and none of ours: nothing is kept of it."""
    async with filled_quorum() as (nodes, client):
        rows = await nodes.rows()
        term = max(row.term for row in rows.values())
        head = CHUNK.pack(len(content), xxhash.xxh3_64_intdigest(content))
        file = head + content + CHUNK.pack(0, 1)
        for name in nodes.names:
            forged = next(row.node_id for other, row in rows.items() if other != name)
            chunk = SnapshotChunk(term, forged, 1 << 60, term, 0, len(file), file)
            await say(nodes, name, forged, chunk)
            assert not [found for found in nodes.disks[name].list() if "1000000000000000" in found]

        await client.transact(put(b"after"))
        assert len(await nodes.rows()) == 3


@pytest.mark.properties
async def test_a_crowd_of_strangers_keeps_no_member_out(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """One question serves all of them, and one line tells of them."""
    async with quorum(3) as nodes, trio.open_nursery() as nursery:
        client = await nodes.client(timeout_s=30)
        await grown_while_m3_is_away(nodes, client)
        await led_by_one_that_m3_has_not_read_of(nodes)
        await nodes.start("m3")
        for n in range(100):
            nursery.start_soon(chatter, nodes, "m3", f"{n:032x}\nforged line")

        await until_m3_has_read(nodes)

        lines = [
            record.getMessage() for record in caplog.records if "forged" in record.getMessage()
        ]
        assert len(lines) <= 1
        assert all("\n" not in line for line in lines)
        nursery.cancel_scope.cancel()


async def grown_while_m3_is_away(nodes: Quorum, client: MetadataClient) -> None:
    """Voters m1 to m5, of which m3 has read of the first three only."""
    await nodes.start()
    await fill(client)
    await nodes.kill("m3")
    for name in ("m4", "m5"):
        nodes.add(name)
        await nodes.start(name)
        await client.change_members(MembersRequest("add", name, f"{name}:4181"))
        with trio.fail_after(30):
            while (await nodes.rows())[name].role != "follower":  # noqa: ASYNC110
                await trio.sleep(0.1)


async def led_by_one_that_m3_has_not_read_of(nodes: Quorum) -> None:
    while (leader := await nodes.leader()) in ("m1", "m2"):
        await nodes.kill(leader)
        await nodes.leader()
        await nodes.start(leader)


async def until_m3_has_read(nodes: Quorum) -> None:
    with trio.fail_after(30):
        while True:
            applied = {name: row.applied for name, row in (await nodes.rows()).items()}
            if applied["m3"] == applied["m4"]:
                return
            await trio.sleep(0.1)


async def test_a_member_speaks_for_itself_alone(autojump_clock: object) -> None:
    """What it says in another one's name ends its connection, and moves nothing."""
    async with filled_quorum() as (nodes, _):
        rows = await nodes.rows()
        ids = {name: row.node_id for name, row in rows.items()}
        target, other, third = nodes.names
        async with trio.open_nursery() as nursery:
            link = await greet(nodes, target, ids[other], nursery)
            term = rows[target].term
            body = encode(Vote(term + 1, ids[third], 1 << 40, term, True))
            link.send(envelope(Op.META_RAFT, len(body)), body)
            await trio.sleep(1)

            assert isinstance(link.closed, ProtocolError)
        assert {row.term for row in (await nodes.rows()).values()} == {term}


async def test_a_member_that_this_node_has_not_read_of_is_heard(autojump_clock: object) -> None:
    """The leader was let in by entries that a node which was away lacks: another that it knows vouches."""
    async with quorum(3) as nodes:
        client = await nodes.client(timeout_s=30)
        await grown_while_m3_is_away(nodes, client)
        await led_by_one_that_m3_has_not_read_of(nodes)
        await nodes.start("m3")

        await until_m3_has_read(nodes)


async def test_a_node_all_of_whose_members_were_replaced_is_brought_back(
    autojump_clock: object,
) -> None:
    """Nobody whom it knows answers any more: it hears the leader that it does not know."""
    async with quorum(3) as nodes:
        client = await nodes.client(timeout_s=30)
        await grown_while_m3_is_away(nodes, client)
        for name in ("m1", "m2"):
            of_now = await nodes.client("m4", "m5", timeout_s=30)
            await of_now.change_members(MembersRequest("remove", name))
            await nodes.leader()
            await nodes.kill(name)
        await nodes.start("m3")

        await until_m3_has_read(nodes)


async def test_a_change_of_the_leader_is_logged_once(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Who leads since when is what an operator asks first; a term in which nobody does says nothing."""
    caplog.set_level(logging.INFO, logger="distributedlog.metadata.replica.replica")
    async with serving_quorum() as (nodes, client):
        await client.transact(put(b"k"))
        leader = await nodes.leader()
        await nodes.kill(leader)
        await client.transact(put(b"k"))
        await trio.sleep(3)

        term = max(row.term for row in (await nodes.rows()).values())
        said = [record.getMessage() for record in caplog.records]
        of_term = sorted(text.split()[0] for text in said if f"in term {term}" in text)
        assert of_term == ["metadata", "this"], said
