"""Two bookies lost one after the other under a dead writer's open ledger: it is read, and written on."""

import pytest
import trio

from distributedlog import LogRecord
from distributedlog.cluster.coordination.cookie import decode_cookie
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import LedgerMetadata
from distributedlog.ledger.placement.bookie_pool import BookiePool
from distributedlog.log.namespace import Namespace
from distributedlog.metadata.model.interface import Scan
from distributedlog.runtime.interfaces.host import Host
from distributedlog.testing.sim.world.scheduler import Simulation
from distributedlog.testing.sim.world.sim_cluster import Shape, SimCluster

RECORDS = 50
APART_S = 45.0
SHAPE = Shape(
    bookies=5,
    clients=2,
    store={
        "journal_file_bytes": 256 * 1024,
        "gather_bytes": 64 * 1024,
        "free_bytes_min": 8 * 1024 * 1024,
    },
    lost_after_s=300.0,
    audit_every_s=3600.0,
    lease_s=6.0,
)


class Story:
    """One run: what it found."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.ensemble: list[str] = []
        """Of the ledger: its bookies, by name."""
        self.read: list[int] = []
        self.copies = 0
        """Of the ledger, at live bookies, after all."""

    async def run(self, simulation: Simulation) -> None:
        cluster = SimCluster(simulation, SHAPE)
        cluster.is_supervised = False
        cluster.start_all()
        with trio.fail_after(60):
            await cluster.wait_all_ready()
        written, over = trio.Event(), trio.Event()

        async def write(namespace: Namespace, host: Host) -> None:
            await namespace.create_log("l")
            writer = await namespace.open_log("l").open_writer()
            for txid in range(RECORDS):
                await writer.write(LogRecord(txid, b"x" * 1000))
                self.acknowledged += 1
            names = {
                keys.bookie_id_of(item.key): decode_cookie(item.key, item.value)["label"]
                async for item in Scan(namespace.metadata, keys.COOKIE_PREFIX)
            }
            self.ensemble = [names[one] for one in (await self._ledger(namespace)).bookies()]
            written.set()
            await trio.sleep_forever()

        async def go_on(namespace: Namespace, host: Host) -> None:
            log = namespace.open_log("l")
            async with log.open_writer() as writer:
                await writer.write(LogRecord(RECORDS, b"new"))
                await writer.commit()
            async with log.open_reader() as reader:
                while len(self.read) <= RECORDS:
                    record = await reader.read_next()
                    assert record is not None
                    self.read.append(record.txid)
            live = {registered.id for registered in self._pool(namespace).live()}
            self.copies = sum(one in live for one in (await self._ledger(namespace)).bookies())
            over.set()

        cluster.start_client("c1", write)
        with trio.fail_after(60):
            await written.wait()
        first, second = self.ensemble[:2]
        cluster.machines["c1"].kill()
        cluster.machines[first].kill()
        await trio.sleep(APART_S)
        cluster.machines[second].kill()
        await trio.sleep(APART_S)
        cluster.start_client("c2", go_on)
        with trio.fail_after(60):
            await over.wait()

    @staticmethod
    def _pool(namespace: Namespace) -> BookiePool:
        pool: BookiePool = namespace.ledgers.pool  # type: ignore[attr-defined]
        return pool

    async def _ledger(self, namespace: Namespace) -> LedgerMetadata:
        """The log's first."""
        (segment, *_) = await namespace.open_log("l").segments()
        item = await namespace.metadata.get(keys.ledger_key(segment.ledger_id))
        assert item is not None
        return LedgerMetadata.decode(item.key, item.value)


@pytest.mark.seeds
def test_two_bookies_lost_45_s_apart_under_a_dead_writers_ledger(quiet: None) -> None:
    simulation, story = Simulation(7), Story()
    simulation.run(story.run)

    assert not simulation.failures
    assert story.acknowledged == RECORDS
    assert story.read == list(range(RECORDS + 1))
    assert story.copies == 2, (
        "the copy that was left is copied in haste, and nobody is lost by time"
    )
