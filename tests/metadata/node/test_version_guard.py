"""The version of a cluster on metadata nodes: stored when a cluster forms, and checked by each node."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from distributedlog.cluster.auth.cluster_key_space import KEY_CLASSES
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.cluster_version import (
    CLUSTER_VERSION_KEY,
    ClusterVersion,
    read_cluster_version,
)
from distributedlog.metadata.node import member_status
from distributedlog.metadata.node.version_guard import FOUNDING_S
from distributedlog.runtime.declarations.versions import CURRENT, UNREPORTED, VERSION, Version
from distributedlog.runtime.interfaces.errors import UnsupportedFormat
from distributedlog.runtime.protocol.frames import pack
from tests.metadata.quorum import Quorum, put, quorum

NEWER = ClusterVersion(Version(99, 0)).encode()


@asynccontextmanager
async def new_cluster(
    voters: int = 3, *, older: str = ""
) -> AsyncIterator[tuple[Quorum, MetadataClient]]:
    """Started metadata nodes with the keys of a cluster, and a client. ``older`` has version 0.1."""
    async with quorum(voters, classes=KEY_CLASSES) as nodes:
        nodes.versions = {older: ""}
        await nodes.start()
        yield nodes, await nodes.client()


async def finalized_once(client: MetadataClient) -> ClusterVersion:
    """Wait until the cluster has a version."""
    end = CLUSTER_VERSION_KEY + b"\0"
    async with client.watch(CLUSTER_VERSION_KEY, end, after_revision=0) as changes:
        await changes.next_batch()
    return await read_cluster_version(client)


async def let_lead(nodes: Quorum, name: str) -> None:
    """Restart leaders until this node leads."""
    while (leader := await nodes.leader()) != name:
        await nodes.kill(leader)
        await nodes.start(leader)


async def test_new_cluster_is_finalized_for_its_version(autojump_clock: object) -> None:
    async with new_cluster() as (nodes, client):
        found = await finalized_once(client)
        assert found.finalized == CURRENT
        assert {row.version for row in (await nodes.rows()).values()} == {VERSION}
        assert {row.version for row in await client.status()} == {VERSION}


async def test_new_cluster_with_an_older_voter_is_not_finalized(autojump_clock: object) -> None:
    async with new_cluster(older="m3") as (_, client):
        await trio.sleep(10)
        assert (await read_cluster_version(client)).finalized == UNREPORTED
        assert {row.name: row.version for row in await client.status()} == {
            "m1": VERSION, "m2": VERSION, "m3": "",
        }  # fmt: skip


async def test_upgrade_of_an_older_founder_does_not_finalize_the_cluster(
    autojump_clock: object,
) -> None:
    """Bookies, proxies and clients can still be older, whichever metadata node leads then."""
    async with new_cluster(older="m3") as (nodes, client):
        follower = nodes.other_than("m3", await nodes.leader())
        await trio.sleep(FOUNDING_S)
        nodes.versions.clear()
        await let_lead(nodes, follower)
        await trio.sleep(10)
        assert (await read_cluster_version(client)).finalized == UNREPORTED


async def test_status_of_all_nodes_comes_from_one_that_passes_on_versions(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 0.1 decodes the rows of the others without their version, and so passes them on."""
    async with new_cluster() as (nodes, client):
        leader = await nodes.leader()
        real = member_status.StatusBoard.query_all

        def query_all_of_older(board: Any, reply: Any) -> bool:
            def without_versions(rows: Any) -> None:
                if board.own_row().status.name == leader:
                    for row in rows:
                        object.__setattr__(row.status, "version", "")
                reply(rows)

            return real(board, without_versions)

        monkeypatch.setattr(member_status.StatusBoard, "query_all", query_all_of_older)
        assert {row.version for row in await client.status()} == {VERSION}


async def test_node_ends_when_the_cluster_is_finalized_for_a_newer_version_and_at_each_start(
    autojump_clock: object,
) -> None:
    async with new_cluster(1) as (nodes, client):
        nodes.may_end.add("m1")
        await finalized_once(client)
        await client.transact(put(CLUSTER_VERSION_KEY, NEWER))
        end = await nodes.end_of("m1")
        assert end.subgroup(UnsupportedFormat) is not None
        await nodes.start("m1")
        end = await nodes.end_of("m1")
        assert end.subgroup(UnsupportedFormat) is not None


async def test_version_with_the_fields_of_earlier_builds_is_read() -> None:
    """Builds before the release stored the time and the principal, too."""
    stored = pack([1, 0, 2, 1_800_000_000_000, "user/ann"])
    assert ClusterVersion.decode(stored) == ClusterVersion(Version(0, 2))


async def test_unreadable_version_ends_no_node(autojump_clock: object) -> None:
    async with new_cluster() as (_, client):
        await finalized_once(client)
        await client.transact(put(CLUSTER_VERSION_KEY, b"unreadable"))
        await client.transact(put(b"k", b"v"))
        assert await client.get(b"k") is not None
