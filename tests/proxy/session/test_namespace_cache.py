"""The namespaces that a proxy serves: their number has a bound, whoever asks when."""

import pytest
import trio
from trio.testing import MockClock

from distributedlog.proxy.session.namespace_cache import Namespaces
from distributedlog.runtime.interfaces.errors import TooBusy
from tests.log.conftest import World


@pytest.mark.parametrize("used", [False, True])
async def test_openings_at_one_moment_keep_to_the_bound(
    nursery: trio.Nursery, autojump_clock: MockClock, used: bool
) -> None:
    world = World(nursery)
    namespaces = Namespaces(lambda path, tasks: world.namespace(tasks, path, {}), namespaces_max=2)
    await nursery.start(namespaces.run)
    if used:
        await namespaces.acquire("before")
    refused = []

    async def enter(path: str) -> None:
        try:
            await namespaces.acquire(path)
        except TooBusy:
            refused.append(path)

    async with trio.open_nursery() as asking:
        for number in range(5):
            asking.start_soon(enter, f"path{number}")

    assert len(refused) == 3 + used
    for number in range(5):
        if f"path{number}" not in refused:
            namespaces.release(f"path{number}")
    await namespaces.acquire("after")
    nursery.cancel_scope.cancel()


async def test_one_path_that_many_ask_for_is_one_namespace(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    world = World(nursery)
    namespaces = Namespaces(lambda path, tasks: world.namespace(tasks, path, {}), namespaces_max=1)
    await nursery.start(namespaces.run)
    found = []

    async def enter() -> None:
        found.append(await namespaces.acquire("same"))

    async with trio.open_nursery() as asking:
        for _ in range(5):
            asking.start_soon(enter)

    assert len(found) == 5
    assert len(set(map(id, found))) == 1
    nursery.cancel_scope.cancel()
