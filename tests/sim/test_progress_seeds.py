"""Honest writers beside a greedy user (T5), and a bug by which he starves them.

Beside each adversary: ``python -m distributedlog.testing.sim.workloads.writer_progress``.
"""

import pytest

from distributedlog.metadata.auth.principal_quotas import PrincipalQuotas, is_unlimited
from distributedlog.runtime.interfaces.errors import TooBusy
from distributedlog.testing.sim.workloads.authorized_world import GREEDY
from distributedlog.testing.sim.workloads.writer_progress import WriterProgress, progress_beside
from distributedlog.testing.sim.world.bug_injection import patched

pytestmark = pytest.mark.usefixtures("quiet")


def test_what_is_worse_is_said() -> None:
    alone = WriterProgress(300, 0.050)

    assert WriterProgress(150, 0.120).why_worse(alone) == ""
    assert "p99 160.0 ms, without adversary 50.0 ms" in WriterProgress(290, 0.160).why_worse(alone)
    assert "140 records acknowledged, without adversary 300" in WriterProgress(
        140, 0.010
    ).why_worse(alone)
    assert WriterProgress(300, 0.019).why_worse(WriterProgress(300, 0.004)) == "", (
        "nobody complains of that"
    )


@pytest.mark.seeds
def test_a_greedy_user_costs_honest_writers_little_and_one_bound_for_all_is_found() -> None:
    """T5, H216. The bug: who floods fills what all may ask for, and there is no share for the others."""

    def for_all(self: PrincipalQuotas, principal: str, now: float) -> TooBusy | None:
        self._drop_old(now)
        full = len(self._recent_commands) >= self._shared_limit and not is_unlimited(principal)
        return TooBusy("much is asked for") if full else None

    alone, beside = progress_beside(1, ()), progress_beside(1, (GREEDY,))
    assert not alone.failures + beside.failures
    assert beside.why_worse(alone) == ""
    with patched([(PrincipalQuotas, "request_error", for_all)]):
        assert any(
            progress_beside(seed, (GREEDY,)).why_worse(progress_beside(seed, ()))
            for seed in (1, 2, 3)
        )
