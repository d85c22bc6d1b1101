"""Seeds of a log with producers whose records are stored once (G9), and with expected positions (G10).

Cluster, faults and oracles are those of `seed.py`. The clients differ, and a checker reads only the log.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import trio

from ....log.namespace import Namespace
from ....log.write import open_segment
from ....runtime.interfaces.host import Host
from ...verify.checks.history_check import Violation
from ...verify.workloads import exactly_once as once
from ...verify.workloads.exactly_once import OnceHistory
from ..world.bug_injection import patched
from ..world.scheduler import Simulation
from .seed import CHAOS_S, SeedRun

LOG = "once"
SESSION_RECORDS_MAX = 150
SNAPSHOT_BYTES = (200, 3_000, open_segment.SNAPSHOT_BYTES)


class OnceRun(SeedRun):
    """One seed with producers."""

    def __init__(self, seed: int, *, chaos_s: float = CHAOS_S, keep_trace: bool = False) -> None:
        super().__init__(seed, chaos_s=chaos_s, keep_trace=keep_trace)
        self.once_history = OnceHistory()
        self.records = 0
        """Number of records of producers in the log at the end."""
        self._next_sequences: dict[str, int] = {}

    async def _main(self, simulation: Simulation) -> None:
        with snapshots_each(simulation.random_stream("snapshots").choice(SNAPSHOT_BYTES)):
            await super()._main(simulation)

    async def _write(self, namespace: Namespace, host: Host) -> None:
        records_max = min(self.rates.session_records_max, SESSION_RECORDS_MAX)
        rates = replace(self.rates, session_records_max=records_max)
        await once.produce(namespace, LOG, self.once_history, host.name, host.random, rates)

    async def _read(self, namespace: Namespace, host: Host) -> None:
        await self._write(namespace, host)

    async def _measure(self, namespace: Namespace, host: Host) -> None:
        await trio.sleep_forever()

    async def _prove(self, namespace: Namespace, host: Host) -> None:
        """Stop all other clients, then compare the log's content with the producer table of a takeover."""
        for name in self.cluster.clients[:-1]:
            self.cluster.machines[name].kill()
        writer = await once.open_it(namespace, LOG, takeover=True)
        try:
            takeover_sequences = {
                name: (await writer.sequenced_writer.open_producer(name)).next_sequence
                for name in self.once_history.producers
            }
            await writer.write(b"plain")
            await writer.commit()
            await writer.aclose()
        except BaseException:
            await writer.abort()
            raise
        self._next_sequences = once.check_once(
            self.once_history, await once.read_all(namespace, LOG)
        )
        if takeover_sequences != self._next_sequences:
            raise Violation(
                f"G9: the log has {self._next_sequences}, a takeover reads {takeover_sequences}"
            )

    async def _settle(self, namespace: Namespace) -> None:
        """Do nothing."""

    async def _conclude(self) -> None:
        self.records = sum(self._next_sequences.values())
        self.simulation.record_event(
            "final", self.records, self.once_history.duplicates, self.once_history.conflicts
        )


@contextmanager
def snapshots_each(size: int) -> Iterator[None]:
    """Write a snapshot of the producers after each ``size`` bytes, within the `with` block."""
    with patched(
        [(open_segment, "SNAPSHOT_BYTES", size), (open_segment, "SNAPSHOT_SIZE_FACTOR", 1)]
    ):
        yield
