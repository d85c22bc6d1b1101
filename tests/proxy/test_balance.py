"""Which logs go where when an operator evens proxies out."""

from contextlib import AsyncExitStack

from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog import open_namespace
from distributedlog.cluster.status import proxy_overview as proxy_view
from distributedlog.cluster.status.log_overview import describe
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.proxy.membership.rendezvous_hash import LogMove, plan_moves

from ..examples import examples
from .proxy_world import world


@settings(max_examples=examples(100))
@given(st.lists(st.lists(st.integers(0, 5), max_size=12), min_size=1, max_size=8))
def test_it_is_even_with_the_fewest_moves_and_then_at_rest(drawn: list[list[int]]) -> None:
    """H180, for a plan that is made once: nothing swings, for there is nothing left to do."""
    owned = {
        f"p{n}": [("ns", f"{n}-{k}", producers) for k, producers in enumerate(logs)]
        for n, logs in enumerate(drawn)
    }
    before = {log for logs in owned.values() for log in logs}
    counts = [len(logs) for logs in owned.values()]
    least = sum(counts) // len(counts)
    ahead = sum(counts) % len(counts)
    fewest = sum(max(0, n - least) for n in counts) - min(ahead, sum(n > least for n in counts))

    moves = plan_moves(owned)
    for one in moves:
        [found] = [log for log in owned[one.owner] if log[1] == one.log]
        owned[one.owner].remove(found)
        owned[one.target].append(found)

    assert {log for logs in owned.values() for log in logs} == before
    assert max(map(len, owned.values())) - min(map(len, owned.values())) <= 1
    assert len(moves) == len({one.log for one in moves}) == fewest
    assert plan_moves(owned) == []


def test_those_with_few_producers_go() -> None:
    owned = {"a": [("ns", "busy", 9), ("ns", "quiet", 0)], "b": []}

    assert plan_moves(owned) == [LogMove("ns", "quiet", "a", "b")]
    assert plan_moves({}) == []


async def test_logs_are_moved_until_all_have_as_many_and_writers_go_on() -> None:
    async with world() as it:
        first = await it.proxy("w1")
        place = f"{first.address[0]}:{first.address[1]}"
        metadata = it.namespace.metadata
        assert isinstance(metadata, MetadataClient)
        async with (
            open_namespace(f"distributedlog+proxy://{place}/default") as namespace,
            AsyncExitStack() as stack,
        ):
            logs = [namespace.open_log(f"log{n}") for n in range(5)]
            writers = [await stack.enter_async_context(one.open_writer()) for one in logs]
            for writer in writers:
                await writer.write(b"before")
            await it.proxy("w2")

            planned = await proxy_view.balance_logs(metadata, dry_run=True)
            moved = await proxy_view.balance_logs(metadata)
            for writer in writers:
                await writer.write(b"after")

            assert [one["outcome"] for one in planned] == ["planned"] * 2
            assert [(one["from"], one["to"], one["outcome"]) for one in moved] == [
                ("w1", "w2", "moved")
            ] * 2
            rows = await proxy_view.hosted_logs(metadata)
            assert sorted(one["proxy"] for one in rows) == ["w1"] * 3 + ["w2"] * 2
            assert await proxy_view.balance_logs(metadata) == []
            for log in logs:
                assert await it.stored(log.name) == [b"before", b"after"]

            shown = await describe(namespace, moved[0]["log"])  # `dlog log show`, through proxies
            direct = await describe(it.namespace, moved[0]["log"])
            assert shown["records"] == direct["records"] == 2
            for one in (*shown["segments"], *direct["segments"]):
                del one["ledger_state"], one["ensembles"]  # what only the metadata know
            assert shown == direct
