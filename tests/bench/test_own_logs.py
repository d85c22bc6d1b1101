"""What a bench has made for itself is gone when it ends, however it ends."""

import trio

from distributedlog import local_cluster, open_namespace
from distributedlog.testing.bench.measure.bench_plan import BenchPlan, own_logs


async def test_a_run_whose_connections_ended_by_an_interrupt_leaves_no_log() -> None:
    """Ctrl-C falls into a task of the namespace as often as into the bench: that one is over then."""
    async with local_cluster(memory=True, metadata_nodes=1, in_process=True) as cluster:
        names: list[str] = []
        async with (
            open_namespace(cluster.uri) as namespace,
            own_logs(namespace, BenchPlan(uri=cluster.uri)) as made,
        ):
            names += made
            namespace._nursery.cancel_scope.cancel()
            await trio.sleep_forever()

        assert names
        async with open_namespace(cluster.uri) as again:
            assert [await again.log_exists(name) for name in names] == [False]
