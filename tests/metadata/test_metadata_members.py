"""Metadata nodes that are replaced, added and put out, over whole nodes (H5)."""

import logging
from collections.abc import AsyncIterator
from typing import NoReturn

import pytest
import trio

from distributedlog.metadata.client import node_connections as quorum_links
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.interface import MemberStatus
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.metadata.protocol.client_messages import MembersRequest
from distributedlog.metadata.raft.progress import Progress
from distributedlog.metadata.raft.raft import Raft
from distributedlog.metadata.raft.ready import RaftRole
from distributedlog.metadata.replica import replica
from distributedlog.metadata.replica import snapshot_receiver as receiving
from distributedlog.runtime.interfaces.errors import (
    MembersRefused,
    QuorumUnreachable,
    UnsupportedFormat,
)

from .quorum import Quorum, fill, filled_quorum, put, quorum, serving_quorum
from .test_metadata_quorum import MIB, damage


async def holds(client: MetadataClient, count: int = 20) -> bool:
    page = await client.range(b"k", b"l")
    return [item.value for item in page.items] == [b"v%d" % n for n in range(count)]


async def until_voters(client: MetadataClient, *names: str) -> dict[str, MemberStatus]:
    """Wait until exactly these are members, and vote."""
    with trio.fail_after(60):
        while True:
            rows = await client.status()
            roles = {row.role for row in rows}
            if sorted(row.name for row in rows) == sorted(names) and roles <= {
                "leader",
                "follower",
            }:
                return {row.name: row for row in rows}
            await trio.sleep(0.2)


async def follower(nodes: Quorum) -> str:
    return nodes.other_than(await nodes.leader())


async def change(client: MetadataClient, kind: str, name: str, address: str = "") -> None:
    await client.change_members(MembersRequest(kind, name, address))


async def test_a_wiped_node_is_replaced_and_another_may_then_be_lost(
    autojump_clock: object,
) -> None:
    """H5: the quorum bears the loss of one node again, with all data."""
    async with filled_quorum() as (nodes, client):
        lost = await follower(nodes)
        before = (await nodes.rows())[lost].node_id
        await nodes.restart_empty(lost)
        await change(client, "replace", lost)
        rows = await until_voters(client, *nodes.names)
        assert rows[lost].node_id != before
        await nodes.kill(nodes.other_than(lost))

        await client.transact(put(b"k20", b"v20"))
        assert await holds(client, 21)


async def test_a_node_that_replaces_one_looks_for_it_nowhere(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Under its old id it is at our own address: we dialled ourselves, and said that we cannot be reached."""
    caplog.set_level(logging.INFO)
    async with filled_quorum() as (nodes, client):
        lost = await follower(nodes)
        await nodes.restart_empty(lost)
        await trio.sleep(10)  # until the others have said that its directory is an empty one
        caplog.clear()
        await change(client, "replace", lost)
        await until_voters(client, *nodes.names)
        await trio.sleep(5)

    said = [one.getMessage() for one in caplog.records]
    assert any(f"metadata node {lost} is added to" in one for one in said)
    assert [one for one in said if "is unreachable" in one] == []


async def test_a_replaced_node_finds_its_members_again_after_a_restart(
    autojump_clock: object,
) -> None:
    """Who forms the quorum is in each node's log, not in what it was started with."""
    async with filled_quorum() as (nodes, client):
        for lost in nodes.names:
            await nodes.restart_empty(lost)
            await change(client, "replace", lost)
            await until_voters(client, *nodes.names)
        await nodes.kill()
        await nodes.start()

        assert await holds(await nodes.client())


async def test_a_replacement_is_fed_by_a_snapshot(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H39: the snapshot names the members as of its last entry."""
    monkeypatch.setattr(replica, "SNAPSHOT_BYTES", 4 * MIB)
    async with serving_quorum() as (nodes, client):
        for n in range(8):
            await client.transact(put(b"big%02d" % n, bytes(MIB - 100)))
        lost = await follower(nodes)
        await nodes.restart_empty(lost)
        await change(client, "replace", lost)
        await until_voters(client, *nodes.names)
        assert any(file.startswith("snapshot.") for file in nodes.disks[lost].list())
        await nodes.kill(lost)
        await nodes.start(lost)
        await nodes.kill(nodes.other_than(lost))

        page = await client.range(b"big", b"bih", limit=1)
        assert page.more


async def test_a_node_that_cannot_take_a_snapshot_is_not_sent_it_without_end(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older program, say. It is tried again now and then, and the leader's memory does not grow by it."""
    monkeypatch.setattr(replica, "SNAPSHOT_BYTES", 4 * MIB)
    refused = []
    compacted: list[tuple[int, int]] = []
    compact = Raft.compact

    def noted(core: Raft, up_to: int) -> int:
        base = compact(core, up_to)
        if core.role is RaftRole.LEADER:
            compacted.append((up_to, base))
        return base

    monkeypatch.setattr(Raft, "compact", noted)
    needs_after = Progress.compaction_limit
    monkeypatch.setattr(
        Progress, "compaction_limit", lambda self, up_to, _: needs_after(self, up_to, up_to - 2)
    )

    async def refuse(chunks: AsyncIterator[bytes]) -> NoReturn:
        await trio.lowlevel.checkpoint()
        refused.append(trio.current_time())
        assert len(refused) < 50, "sent again and again"
        raise UnsupportedFormat("a snapshot of format 2, known are up to 1")

    async with serving_quorum() as (nodes, client):
        for n in range(8):
            await client.transact(put(b"big%02d" % n, bytes(MIB - 100)))
        lost = await follower(nodes)
        with monkeypatch.context() as older:
            older.setattr(receiving, "restore", refuse)
            await nodes.restart_empty(lost)
            await change(client, "replace", lost)
            await trio.sleep(5)
            for n in range(8):
                await client.transact(put(b"big%02d" % n, bytes(MIB - 100)))
            await trio.sleep(60)
            assert 2 <= len(refused) <= 8
            # What was kept for it in the leader's memory goes between two tries.
            assert compacted[-1][0] == compacted[-1][1] > 16
        await until_voters(client, *nodes.names)


async def test_a_damaged_node_is_replaced_after_its_directory_is_emptied(
    autojump_clock: object,
) -> None:
    """M4: what cannot be trusted takes no part; it is told what to do, then let in anew."""
    async with filled_quorum() as (nodes, client):
        lost = await follower(nodes)
        await nodes.kill(lost)
        await damage(nodes, lost)
        await nodes.start(lost)
        with pytest.raises(MembersRefused, match="empty its directory"):
            await change(client, "replace", lost)
        await nodes.restart_empty(lost)
        await change(client, "replace", lost)

        await until_voters(client, *nodes.names)


async def test_an_added_node_votes_and_a_removed_one_does_not_disturb(
    autojump_clock: object,
) -> None:
    """Thesis 4.2: one by one; who was put out goes on asking for votes, and nobody helps it."""
    async with filled_quorum() as (nodes, client):
        nodes.add("m4")
        await nodes.start("m4")
        await change(client, "add", "m4", "m4:4181")
        await until_voters(client, "m1", "m2", "m3", "m4")
        out = await follower(nodes)
        await change(client, "remove", out)
        left = [name for name in ("m1", "m2", "m3", "m4") if name != out]
        await until_voters(client, *left)
        term = (await nodes.rows())["m4"].term
        await trio.sleep(60)

        assert (await nodes.rows())["m4"].term == term
        assert await holds(client)


async def test_a_leader_that_is_put_out_hands_over(autojump_clock: object) -> None:
    """Thesis 4.2.2."""
    async with filled_quorum() as (nodes, client):
        leader = await nodes.leader()
        left = [name for name in nodes.names if name != leader]
        await change(client, "remove", leader)
        await until_voters(client, *left)

        assert (await nodes.rows())[leader].role == "removed"
        assert await holds(client)


async def test_what_would_lose_the_quorum_is_refused(autojump_clock: object) -> None:
    async with filled_quorum() as (nodes, client):
        leader = await nodes.leader()
        dead, other = (name for name in nodes.names if name != leader)
        await nodes.kill(dead)
        await trio.sleep(3)
        with pytest.raises(MembersRefused, match="the quorum would be lost"):
            await change(client, "remove", other)
        with pytest.raises(MembersRefused, match="no node answers"):
            await change(client, "replace", dead)
        with pytest.raises(MembersRefused, match="nothing to replace"):
            await change(client, "replace", other)
        with pytest.raises(MembersRefused, match="no node answers at m9:1"):
            await change(client, "add", "m9", "m9:1")
        await change(client, "remove", dead)
        await until_voters(client, leader, other)
        with pytest.raises(MembersRefused, match="has the name"):
            await change(client, "add", "m9", f"{other}:4181")


async def test_a_node_that_lives_moves_to_another_host(autojump_clock: object) -> None:
    """docs/operate/recover-metadata.md: also the leader; its successor of the same name takes its place."""
    async with filled_quorum() as (nodes, client):
        moved = await nodes.leader()
        nodes.add("elsewhere", called=moved)
        await nodes.start("elsewhere")
        await change(client, "replace", moved, "elsewhere:4181")
        with trio.fail_after(60):
            while (await until_voters(client, *nodes.names))[moved].address != "elsewhere:4181":  # noqa: ASYNC110
                await trio.sleep(0.5)
        await nodes.kill(moved)
        await nodes.kill(nodes.other_than(moved))

        await client.transact(put(b"k20", b"v20"))
        assert await holds(client, 21)


async def test_an_operator_sees_which_node_is_to_be_replaced(autojump_clock: object) -> None:
    """`dlog status` says that the node waits, empty, and does not call it gone."""
    async with serving_quorum() as (nodes, client):
        await fill(client, 1)
        lost = await follower(nodes)
        await nodes.restart_empty(lost)
        await trio.sleep(2)

        rows = {row.name: row for row in await client.status()}
        assert (rows[lost].role, rows[lost].alive) == ("empty", True)


async def test_nodes_that_wait_are_shown_where_nobody_belongs_to_a_cluster(
    autojump_clock: object,
) -> None:
    async with quorum(3) as nodes:
        await nodes.start("m1", "m2")
        client = await nodes.client(timeout_s=5.0)
        rows = await client.status()

        assert [(row.name, row.role) for row in rows] == [
            ("m1", "empty"),
            ("m2", "empty"),
        ]
        with pytest.raises(QuorumUnreachable):
            await client.get(b"k")


async def test_a_client_outlives_all_the_nodes_it_was_given(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients learn of changed addresses from the members that they reach."""
    monkeypatch.setattr(quorum_links, "REFRESH_MEMBERS_S", 6.0)
    async with quorum(3) as nodes:
        await nodes.start()
        client, admin = await nodes.client(), await nodes.client()
        await fill(client)
        for old, new in (("m1", "m4"), ("m2", "m5"), ("m3", "m6")):
            nodes.add(new)
            await nodes.start(new)
            await change(admin, "add", new, f"{new}:4181")
            voters = {row.name for row in await admin.status()}
            await until_voters(admin, *voters)
            await change(admin, "remove", old)
            await until_voters(admin, *(voters - {old}))
            await trio.sleep(7)
        await nodes.kill("m1", "m2", "m3")

        assert await holds(client)
        await client.transact(Transaction((), (Put(b"k20", b"v20", 0),)))
        assert await holds(client, 21)
