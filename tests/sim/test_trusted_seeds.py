"""Seeds where it counts who asks, and planted bugs that they must find.

``DLOG_TRUSTED_SEEDS`` sets how many seeds (2), ``DLOG_SIM_START`` the first one (2). All bugs:
``python -m distributedlog.testing.sim.bugs.authorization_injected_bugs``.
"""

import os

import pytest

from distributedlog.testing.sim.bugs.authorization_injected_bugs import (
    AT_A_PROXY,
    INJECTED_BUGS,
    seed_that_finds,
)
from distributedlog.testing.sim.workloads.authorized_world import AuthorizedRun
from distributedlog.testing.sim.workloads.campaign import describe_failure
from distributedlog.testing.sim.workloads.seed import CHAOS_S

SEEDS = int(os.environ.get("DLOG_TRUSTED_SEEDS", "2"))
START = int(os.environ.get("DLOG_SIM_START", "2"))
"""In these somebody who is watched gets something done at a bookie: asserted below."""

PROXY_SEED = 0
"""In this seed rights are required."""

FOUND_AT_ONCE = (
    "a compare is not judged (H234)",
    "a lease is whoever's knows its number (H217)",
    "judged before the change, applied after it (H233)",
    "a to-do is believed (H213)",
    "a bookie gives a place to itself",
    "what is read is not judged",
    "a token's narrowing is not looked at",
    "one key for all bookies (H229)",
    "tokens end by the wall clock (H237)",
    "a revoked token is taken",
)

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.seeds
def test_nobody_does_what_no_grant_allows() -> None:
    """T1 to T4, and all promises of a log, while rights, secrets and modes change under faults."""
    runs = [AuthorizedRun(seed) for seed in range(START, START + SEEDS)]
    for run in runs:
        result = run.run()
        if result.failed:
            pytest.fail(describe_failure(result, CHAOS_S, "trusted"), pytrace=False)
    assert sum(run.independent_authorizer.checked_commands for run in runs)
    assert sum(run.bookie_effects.effect_count for run in runs)
    assert sum(run.denied_attempts for run in runs)
    assert sum(run.disclosure_oracle.checked_answers for run in runs)
    assert sum(run.token_ends.accepted_proofs for run in runs)
    assert sum(run.token_ends.expired_proofs for run in runs)


@pytest.mark.seeds
@pytest.mark.parametrize("name", FOUND_AT_ONCE)
def test_a_planted_bug_is_found(name: str) -> None:
    assert name in INJECTED_BUGS
    assert seed_that_finds(name, 4) is not None


@pytest.mark.seeds
def test_a_proxy_gives_nothing_by_a_token_that_ended() -> None:
    """T3, T4, H237: and while there is one, it lets in whose token is good."""
    run = AuthorizedRun(PROXY_SEED, with_proxy=True)
    result = run.run()
    if result.failed:
        pytest.fail(describe_failure(result, CHAOS_S, "trusted"), pytrace=False)
    assert run.proxy_rights.checked_subscriptions
    assert run.proxy_rights.frames_to_token_users


@pytest.mark.seeds
@pytest.mark.parametrize("name", AT_A_PROXY)
def test_a_bug_of_proxies_is_found(name: str) -> None:
    """Two of three seeds find each."""
    assert name in INJECTED_BUGS
    assert seed_that_finds(name, 6) is not None
