"""The worlds of `contract_sides`, as fixtures."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from distributedlog.runtime.interfaces.host import Disk
from tests.runtime.contract_sides import DISK_SIDES, NETWORK_SIDES, DiskWorld, NetworkWorld


@pytest.fixture(params=sorted(DISK_SIDES))
async def disk_world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DiskWorld]:
    world = DISK_SIDES[request.param](tmp_path)
    yield world
    await world.close()


@pytest.fixture
def disk(disk_world: DiskWorld) -> Disk:
    return disk_world.look()


@pytest.fixture(params=sorted(NETWORK_SIDES))
def network(request: pytest.FixtureRequest) -> NetworkWorld:
    return NETWORK_SIDES[request.param]()
