"""Seeds with processes of two versions, and injected bugs that they must find.

Each process of a node or client has this version or the older one (commit fea56d70), at random. A restarted
node may be upgraded or downgraded. The older version announces fewer features, reports texts only, and states
no version. The cluster is not finalized until all nodes are upgraded after the faults.
"""

from functools import cache
from typing import Any

import pytest

from distributedlog.metadata.peers import raft_peers
from distributedlog.metadata.raft.raft_messages import encode
from distributedlog.runtime.declarations.versions import GatedFormat
from distributedlog.testing.sim.workloads.campaign import describe_failure
from distributedlog.testing.sim.workloads.proxy_world import ProxiedRun
from distributedlog.testing.sim.workloads.seed import LogRun, Result, SeedRun
from distributedlog.testing.sim.world.bug_injection import patched

CHAOS_S = 6.0

pytestmark = [pytest.mark.seeds, pytest.mark.usefixtures("quiet")]


def run_mixed(run: type[SeedRun], seed: int) -> Result:
    """Run a seed with processes of two versions."""
    seed_run = run(seed, chaos_s=CHAOS_S)
    seed_run.mix_versions()
    return seed_run.run()


unpatched = cache(run_mixed)


def test_seeds_with_two_versions_keep_every_promise() -> None:
    replies_to_older = refusals = offline = 0
    for run, workload, seed in ((LogRun, "log", 0), (LogRun, "log", 2), (ProxiedRun, "proxied", 1)):
        result = unpatched(run, seed)
        assert not result.failed, describe_failure(result, CHAOS_S, workload)
        replies_to_older += result.replies_to_older
        refusals += result.refusals
        offline += result.offline_at_finalize

    assert replies_to_older > 0
    assert refusals > 0
    assert offline > 0, "of seed 0: a bookie whose disk was replaced"


def test_newer_form_of_a_reply_to_an_older_node_is_found() -> None:
    def encode_newer(message: Any, *, codes: bool = True) -> bytes:
        return encode(message)

    with patched([(raft_peers, "encode", encode_newer)]):
        result = run_mixed(LogRun, 0)

    assert any("older version" in str(failure) for failure in result.failures), result.failures


def test_format_that_is_written_before_the_upgrade_is_finalized_is_found() -> None:
    with patched([(GatedFormat, "is_permitted", lambda gated, finalized: True)]):
        result = run_mixed(LogRun, 0)

    assert any("before the upgrade was finalized" in str(one) for one in result.failures), (
        result.failures
    )


def test_mixed_seed_that_is_run_twice_is_the_same_run() -> None:
    first, second = unpatched(LogRun, 0), run_mixed(LogRun, 0)

    assert first.trace_hash == second.trace_hash
    assert first.refusals == second.refusals
