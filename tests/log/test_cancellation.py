"""H31: cancelled wherever: a record is there at most once, in place, and the next one goes on."""

import random

import trio
from trio.testing import MockClock

from distributedlog.ledger.declarations.options import LedgerOptions
from distributedlog.ledger.ledger_client import LedgerClient
from distributedlog.log.declarations.options import LogOptions
from distributedlog.log.format.record import LogRecord
from distributedlog.log.namespace import Namespace
from distributedlog.runtime.declarations.options import with_overrides
from distributedlog.runtime.interfaces.errors import DistributedLogError
from distributedlog.runtime.interfaces.host import Host
from tests.ledger.model_bookie import ModelCluster, model_cluster, no_endpoint
from tests.log.conftest import World


def rec(number: int) -> LogRecord:
    return LogRecord(0, b"%d" % number)


async def numbers(namespace: Namespace) -> list[int]:
    async with namespace.open_log("l").open_reader(to="end") as reader:
        return [int(record.payload) async for record in reader]


async def test_a_write_cancelled_at_any_step(world: World, autojump_clock: MockClock) -> None:
    """Never taken out of its batch; at most once, in order; those beside it and after it are there."""
    async with world.process(in_flight_bytes_max=300, entry_bytes_max=100) as ns:
        sure: list[int] = []
        async with ns.open_log("l").open_writer() as writer:
            for steps in range(40):
                world.ledgers.held = steps % 2 == 1
                base = 10 * steps
                async with trio.open_nursery() as nursery:
                    scopes = []

                    async def write(number: int, scope: trio.CancelScope) -> None:
                        with scope:
                            await writer.write(rec(number))
                            sure.append(number)

                    for number in range(base, base + 6):
                        scopes.append(trio.CancelScope())
                        nursery.start_soon(write, number, scopes[-1])
                    for _ in range(steps // 2):
                        await trio.lowlevel.checkpoint()
                    for scope in scopes[::2]:
                        scope.cancel()
                    await trio.lowlevel.checkpoint()
                    world.ledgers.release()
            await writer.write(rec(1000))
        found = await numbers(ns)
    assert len(found) == len(set(found))
    assert [number // 10 for number in found] == sorted(number // 10 for number in found)
    assert set(sure) <= set(found)
    assert found[-1] == 1000
    assert sum(1 for number in range(400) if number % 10 in (1, 3, 5) and number in found) == 120


def namespace_over(
    cluster: ModelCluster, ledgers: LedgerClient, nursery: trio.Nursery
) -> Namespace:
    return Namespace(
        "ns",
        metadata=cluster.store,
        ledgers=ledgers,
        nursery=nursery,
        random=random.Random(1),
        wall_ms=lambda: 1_700_000_000_000,
        owner="process",
        options=with_overrides(LogOptions(), {"lock_lease_s": 5.0, "segment_bytes_max": 300}),
    )


async def test_openings_and_closings_cancelled_at_any_step(autojump_clock: MockClock) -> None:
    """A takeover (claim, recovery, new segment), a roll and a close, over real ledgers: cancelled after n
    steps, the next writer finds all that was acknowledged, and no task or stream is left behind.
    """
    async with model_cluster(4) as cluster, trio.open_nursery() as nursery:
        host = Host(
            name="process",
            dial=None,  # type: ignore[arg-type]
            listen=None,  # type: ignore[arg-type]
            disks={},
            random=random.Random(1),
            wall_ms=lambda: 1_700_000_000_000,
        )
        ledgers = LedgerClient(
            host,
            no_endpoint(),
            cluster.store,
            cluster.pool,
            LedgerOptions(),
        )
        await nursery.start(ledgers.run)
        ns = namespace_over(cluster, ledgers, nursery)
        acked: list[int] = []
        sent = 0

        async def session(scope: trio.CancelScope) -> None:
            nonlocal sent
            with scope:
                async with ns.open_log("l").open_writer(takeover=True) as writer:
                    for _ in range(4):
                        sent += 1
                        number = sent
                        await writer.write(rec(number))
                        acked.append(number)

        # In steps of 0.3 ms of virtual time: an opening, four writes and a close take about 30.
        for step in range(80):
            scope = trio.CancelScope()
            async with trio.open_nursery() as sessions:
                sessions.start_soon(session, scope)
                await trio.sleep(step * 0.0003)
                scope.cancel()
        try:
            await session(trio.CancelScope())
        except DistributedLogError as error:
            raise AssertionError("the last writer is nobody's victim") from error
        found = await numbers(ns)
        await trio.sleep(1)
        streams = [
            stream
            for node in cluster.pool.nodes.values()
            if node.client is not None
            for stream in node.client.streams
        ]
        nursery.cancel_scope.cancel()

    assert found == sorted(set(found))
    assert set(acked) <= set(found)
    assert found[-4:] == acked[-4:]
    assert streams == []


async def test_a_bulk_read_that_is_cancelled_gives_the_next_call_what_it_had(
    world: World, autojump_clock: MockClock
) -> None:
    """At any moment: nothing is given twice, nothing is lost, and `position` does not run ahead."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            for number in range(0, 12, 3):
                await writer.write_bulk([rec(number), rec(number + 1), rec(number + 2)])
            await writer.commit()
            for taken in range(12):
                async with log.open_reader() as reader:
                    for _ in range(taken):
                        assert await reader.read_next() is not None
                    with trio.move_on_after(1) as scope:
                        await reader.read_bulk(100, wait_s=60)
                    assert scope.cancelled_caught
                    assert reader.position is not None
                    assert reader.position.sequence_id == taken
                    found = await reader.read_bulk(100)
                    assert [int(one.payload) for one in found] == [*range(taken, 12)]
                    assert reader.position.sequence_id == 12
