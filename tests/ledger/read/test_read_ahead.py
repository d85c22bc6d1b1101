"""A reader asks for what follows before its caller does; no answer is left waiting for nobody."""

import pytest
from trio.testing import MockClock

from distributedlog.bookie.format.bookie_messages import ReadEntriesRequest
from distributedlog.ledger.read.read_ahead import RANGES_MAX, READ_AHEAD_BYTES, ReadAhead

from ..model_bookie import ModelClient, ModelCluster, model_cluster

MIB = 1024 * 1024


def count_pending(cluster: ModelCluster) -> list[ReadEntriesRequest]:
    """The questions that were begun and neither finished nor forgotten, from now on."""
    pending: list[ReadEntriesRequest] = []

    def watch(client: ModelClient) -> None:
        begin, finish = client.begin_read, client.finish_read

        def begin_read(request: ReadEntriesRequest, timeout_s: float) -> ReadEntriesRequest:
            pending.append(request)
            return begin(request, timeout_s)

        async def finish_read(request: ReadEntriesRequest, timeout_s: float) -> object:
            try:
                return await finish(request, timeout_s)
            finally:
                cancel(request)

        def cancel(request: ReadEntriesRequest) -> None:
            pending[:] = [one for one in pending if one is not request]

        for name, method in (("begin_read", begin_read), ("finish_read", finish_read)):
            setattr(client, name, method)
        client.cancel = cancel  # type: ignore[method-assign,assignment]

    for node in cluster.pool.nodes.values():
        assert node.client is not None
        watch(node.client)
    return pending


async def test_no_question_is_left_unanswered(autojump_clock: MockClock) -> None:
    """H22: what a link keeps for those who asked is bounded, also when a replica is damaged and asked
    twice, and when the reader is closed.
    """
    async with model_cluster(3) as cluster:
        client = await cluster.client()
        writer = await client.create()
        for _ in range(40):
            writer.add([b"x" * 10], 10)
        await writer.close()
        pending = count_pending(cluster)
        bad = [node.model.ledgers[writer.ledger_id] for node in cluster.pool.nodes.values()][:2]
        for node in cluster.pool.nodes.values():
            node.entries_max = 4
        for entry in range(0, 40, 8):
            for held in bad:
                held.damaged = {entry}
            with await client.open(writer.ledger_id) as reader:
                await reader.read(entry, 39, bytes_max=1000)
                assert len(pending) <= RANGES_MAX

        assert pending == []


@pytest.mark.parametrize(
    ("sizes", "count"),
    [([250] * 4, 4), ([333] * 3, 3), ([100, 300, 200, 200], 4), ([2000], 1)],
)
async def test_a_range_is_as_many_entries_as_fit(sizes: list[int], count: int) -> None:
    """Of entries of one size it is known; where they differ some room is left."""
    asked = await asked_ahead(1000, sizes)

    assert [one.last + 1 - one.first for one in asked] == [count] * RANGES_MAX
    assert [one.first for one in asked] == [10, 10 + count, 10 + 2 * count]


@pytest.mark.parametrize(
    ("bytes_max", "count"),
    [
        (1, 3),
        (MIB, 3),
        (READ_AHEAD_BYTES // 3, 3),
        (READ_AHEAD_BYTES // 3 + 1, 2),
        (2 * MIB, 2),
        (8 * MIB, 2),
    ],
)
async def test_fewer_long_replies_are_under_way(bytes_max: int, count: int) -> None:
    """What has come and is not taken stays in memory; one is received while another is made."""
    assert len(await asked_ahead(bytes_max, [1000])) == count


async def asked_ahead(bytes_max: int, sizes: list[int]) -> list[ReadEntriesRequest]:
    """What is asked for at once after entries of these sizes."""
    async with model_cluster(1) as cluster:
        (node,) = cluster.pool.nodes.values()
        assert node.client is not None
        ahead = ReadAhead(5.0)
        ahead.observe_sizes(sizes)
        asked: list[ReadEntriesRequest] = []
        begin = node.client.begin_read

        def begin_read(request: ReadEntriesRequest, timeout_s: float) -> ReadEntriesRequest:
            asked.append(request)
            return begin(request, timeout_s)

        node.client.begin_read = begin_read  # type: ignore[method-assign]
        ahead.request_ahead(node.client, ReadEntriesRequest(7, bytes(16), 10, 99_999, bytes_max))  # type: ignore[arg-type]
    return asked
