"""A lease ends within a second of its holder's death, and a mere blip of a connection ends none (H19)."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.runtime.interfaces.errors import ConnectionLost, LeaseExpired
from tests.examples import few

from .quorum import Quorum, put, serving_quorum

TTL_MS = 10_000


@asynccontextmanager
async def holder(nodes: Quorum, key: bytes) -> AsyncIterator[tuple[MetadataClient, int]]:
    """A client with a lease and a key under it; it is as dead as after SIGKILL when this ends."""
    async with trio.open_nursery() as nursery:
        client = await nodes.client(nursery=nursery)
        lease = await client.grant_lease(TTL_MS)
        await client.transact(put(key, lease=lease))
        yield client, lease
        nursery.cancel_scope.cancel()


async def gone_after(client: MetadataClient, key: bytes) -> float:
    """Seconds until the key is not there any more."""
    began = trio.current_time()
    while await client.get(key) is not None:  # noqa: ASYNC110
        await trio.sleep(0.01)
    return trio.current_time() - began


def cut(client: MetadataClient) -> None:
    """All its connections end, and it dials again."""
    for link in list(client._connections._links.values()):
        link.close(ConnectionLost("cut by the test"))


async def test_what_a_dead_client_held_is_free_within_a_second(autojump_clock: object) -> None:
    async with serving_quorum() as (nodes, other):
        for renewals in (0, 1):
            async with holder(nodes, b"lock") as (client, lease):
                await trio.sleep(3)
                for _ in range(renewals):
                    await client.renew_lease(lease)

            assert await gone_after(other, b"lock") < 1.0


@pytest.mark.parametrize("seed", few(range(5), 2))
async def test_a_blip_of_a_connection_ends_no_lease(seed: int, autojump_clock: object) -> None:
    """Also where the holder's own next renewal is seconds away, and while one is under way."""
    chance = random.Random(seed)
    async with serving_quorum() as (nodes, other), holder(nodes, b"lock") as (client, lease):
        async with trio.open_nursery() as nursery:

            async def renew() -> None:
                while True:
                    await client.renew_lease(lease)
                    await trio.sleep(TTL_MS / 3000)

            nursery.start_soon(renew)
            for _ in range(30):
                await trio.sleep(chance.choice((0.0, 0.001, 0.05, 2.0)))
                cut(client)
            await trio.sleep(TTL_MS / 500)
            nursery.cancel_scope.cancel()

        assert await other.get(b"lock") is not None


async def test_a_lease_that_nobody_renews_ends_though_its_client_lives(
    autojump_clock: object,
) -> None:
    """A client renews by itself where a connection has ended, and only there."""
    async with serving_quorum() as (nodes, other), holder(nodes, b"lock") as (client, lease):
        await trio.sleep(1)
        cut(client)
        await trio.sleep(TTL_MS / 1000 - 1)
        assert await other.get(b"lock") is not None
        await trio.sleep(2)
        assert await other.get(b"lock") is None
        with pytest.raises(LeaseExpired):
            await client.renew_lease(lease)


async def test_the_leader_and_a_holder_die_together(autojump_clock: object) -> None:
    """The next leader knows no connection of the dead one: its lease lasts its time, others live on."""
    async with serving_quorum() as (nodes, other):
        async with holder(nodes, b"living") as (living, kept):
            async with holder(nodes, b"dead"):
                await trio.sleep(1)
                leader = await nodes.leader()
                await nodes.kill(leader)
            died_at = trio.current_time()

            async with trio.open_nursery() as nursery:

                async def renew() -> None:
                    while True:
                        await trio.sleep(TTL_MS / 3000)
                        await living.renew_lease(kept)

                nursery.start_soon(renew)
                await gone_after(other, b"dead")
                assert TTL_MS / 1000 < trio.current_time() - died_at < TTL_MS / 1000 + 3
                await trio.sleep(TTL_MS / 1000)
                assert await other.get(b"living") is not None
                nursery.cancel_scope.cancel()
        assert await gone_after(other, b"living") < 1.0


async def test_a_new_leader_learns_at_once_whose_connection_a_lease_is(
    autojump_clock: object,
) -> None:
    """The holder's next renewal is seconds away; it dies before it, after the election."""
    async with serving_quorum() as (nodes, other):
        async with holder(nodes, b"lock"):
            await trio.sleep(0.1)
            await nodes.kill(await nodes.leader())
            await trio.sleep(2.5)

        assert await gone_after(other, b"lock") < 1.0
