"""The version of a cluster on metadata nodes: stored when a cluster forms, and checked by each node."""

from collections.abc import AsyncIterator, Collection
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
from distributedlog.metadata.node.version_guard import FOUNDING_S, VersionGuard
from distributedlog.runtime.declarations.versions import CURRENT, UNREPORTED, VERSION, Version
from distributedlog.runtime.interfaces.errors import UnsupportedFormat
from tests.metadata.quorum import Quorum, put, quorum

NEWER = ClusterVersion(Version(99, 0)).encode()


@asynccontextmanager
async def new_cluster(voters: int = 3) -> AsyncIterator[tuple[Quorum, MetadataClient]]:
    """Started metadata nodes with the keys of a cluster, and a client."""
    async with quorum(voters, classes=KEY_CLASSES) as nodes:
        await nodes.start()
        yield nodes, await nodes.client()


async def finalized_once(client: MetadataClient) -> ClusterVersion:
    """Wait until the cluster has a version."""
    end = CLUSTER_VERSION_KEY + b"\0"
    async with client.watch(CLUSTER_VERSION_KEY, end, after_revision=0) as changes:
        await changes.next_batch()
    return await read_cluster_version(client)


def run_older(monkeypatch: pytest.MonkeyPatch, names: Collection[str]) -> None:
    """Let these nodes state no version and write none, as version 0.1 does."""
    make, write = member_status.make_own_row, VersionGuard.write_first_version

    def make_older(options: Any, *arguments: Any, **named: Any) -> Any:
        if options.name in names:
            monkeypatch.setattr(member_status, "VERSION", "")
        row = make(options, *arguments, **named)
        monkeypatch.setattr(member_status, "VERSION", VERSION)
        return row

    async def write_unless_older(guard: Any) -> None:
        if guard._principal.removeprefix("metadata/") not in names:
            await write(guard)

    monkeypatch.setattr(member_status, "make_own_row", make_older)
    monkeypatch.setattr(VersionGuard, "write_first_version", write_unless_older)


async def let_lead(nodes: Quorum, name: str) -> None:
    """Restart leaders until this node leads."""
    while (leader := await nodes.leader()) != name:
        await nodes.kill(leader)
        await nodes.start(leader)


async def test_new_cluster_is_finalized_for_its_version(autojump_clock: object) -> None:
    async with new_cluster() as (nodes, client):
        found = await finalized_once(client)
        assert (found.finalized, found.principal[:9]) == (CURRENT, "metadata/")
        assert {row.version for row in (await nodes.rows()).values()} == {VERSION}
        assert {row.version for row in await client.status()} == {VERSION}


async def test_version_stays_readable_with_a_long_name_of_the_node(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        nodes = Quorum(["m" * 250], nursery, classes=KEY_CLASSES)
        await nodes.start()
        found = await finalized_once(await nodes.client())
        assert (found.finalized, found.principal[:10]) == (CURRENT, "metadata/m")
        nursery.cancel_scope.cancel()


async def test_new_cluster_with_an_older_voter_is_not_finalized(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_older(monkeypatch, ["m3"])
    async with new_cluster() as (_, client):
        await trio.sleep(10)
        assert (await read_cluster_version(client)).finalized == UNREPORTED
        assert {row.name: row.version for row in await client.status()} == {
            "m1": VERSION, "m2": VERSION, "m3": "",
        }  # fmt: skip


async def test_upgrade_of_an_older_founder_does_not_finalize_the_cluster(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bookies, proxies and clients can still be older, whichever metadata node leads then."""
    older = {"m3"}
    run_older(monkeypatch, older)
    async with new_cluster() as (nodes, client):
        follower = nodes.other_than("m3", await nodes.leader())
        await trio.sleep(FOUNDING_S)
        older.clear()
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


async def test_unreadable_version_ends_no_node(autojump_clock: object) -> None:
    async with new_cluster() as (_, client):
        await finalized_once(client)
        await client.transact(put(CLUSTER_VERSION_KEY, b"unreadable"))
        await client.transact(put(b"k", b"v"))
        assert await client.get(b"k") is not None
