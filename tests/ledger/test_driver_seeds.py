"""Seeds of the ledger drivers (`driver_world.py`). ``DLOG_DRIVER_SEEDS`` sets how many (150)."""

import logging
import os
from collections.abc import Iterator

import pytest

from .driver_world import DriverWorld, run_seed

SEEDS = int(os.environ.get("DLOG_DRIVER_SEEDS", "150"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.seeds
def test_seeds_of_the_ledger_drivers_keep_every_promise() -> None:
    """G3 to G5, L8, inv. 20, while the store loses answers and does things late, and bookies fail."""
    worlds = [run_seed(seed) for seed in range(SEEDS)]

    assert sum(world.confirmed + 1 for world in worlds) > 10 * SEEDS
    assert sum(world.store.unknowns for world in worlds) > SEEDS / 4
    assert sum(world.changes for world in worlds) > SEEDS / 10
    assert sum(world.store.recovered for world in worlds) > SEEDS / 4


def test_a_driver_seed_is_the_same_run_each_time() -> None:
    first, second = DriverWorld(3), DriverWorld(3)

    assert first.run() == second.run() == []
    assert first.simulation.trace_hash == second.simulation.trace_hash
