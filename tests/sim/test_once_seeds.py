"""Seeds of a log with producers, judged from the log alone (G9, G10), and a planted bug that they must find.

``DLOG_ONCE_SEEDS`` sets how many seeds (2), ``DLOG_SIM_START`` the first one. More bugs, at less cost:
tests/log/format/test_producer_table.py, tests/log/test_expected_position.py.
"""

import os
from typing import Any

import pytest

from distributedlog.log.format.producer_table import ProducerTable
from distributedlog.log.takeover import takeover
from distributedlog.log.takeover.producer_recovery import recover_producers
from distributedlog.testing.sim.workloads.campaign import describe_failure
from distributedlog.testing.sim.workloads.exactly_once import OnceRun
from distributedlog.testing.sim.workloads.seed import CHAOS_S

SEEDS = int(os.environ.get("DLOG_ONCE_SEEDS", "2"))
START = int(os.environ.get("DLOG_SIM_START", "0"))

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.seeds
def test_seeds_store_each_producers_records_once() -> None:
    runs = [OnceRun(seed) for seed in range(START, START + SEEDS)]
    for run in runs:
        result = run.run()
        if result.failed:
            pytest.fail(describe_failure(result, CHAOS_S, "once"), pytrace=False)
    assert sum(run.records for run in runs)
    assert sum(run.once_history.duplicates for run in runs)


async def forgetful(*args: Any) -> ProducerTable | None:
    table = await recover_producers(*args)
    for row in () if table is None else table.rows.values():
        row.next_sequence -= row.stored_frames.pop().records if row.stored_frames else 0
    return table


@pytest.mark.seeds
def test_a_takeover_that_forgets_the_last_frame_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "recover_producers", forgetful)

    assert OnceRun(START).run().failed
