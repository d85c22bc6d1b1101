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


def state_no_version(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let these nodes answer as version 0.1 does."""
    make = member_status.make_own_row

    def make_older(options: Any, *arguments: Any, **named: Any) -> Any:
        if options.name in names:
            monkeypatch.setattr(member_status, "VERSION", "")
        row = make(options, *arguments, **named)
        monkeypatch.setattr(member_status, "VERSION", VERSION)
        return row

    monkeypatch.setattr(member_status, "make_own_row", make_older)


async def test_new_cluster_is_finalized_for_its_version(autojump_clock: object) -> None:
    async with new_cluster() as (nodes, client):
        found = await finalized_once(client)
        assert (found.finalized, found.principal[:9]) == (CURRENT, "metadata/")
        assert {row.version for row in (await nodes.rows()).values()} == {VERSION}
        assert {row.version for row in await client.status()} == {VERSION}


async def test_new_cluster_with_an_older_voter_is_not_finalized(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_no_version(monkeypatch, "m3")
    async with new_cluster() as (_, client):
        await trio.sleep(10)
        assert (await read_cluster_version(client)).finalized == UNREPORTED
        assert {row.name: row.version for row in await client.status()} == {
            "m1": VERSION, "m2": VERSION, "m3": "",
        }  # fmt: skip


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
