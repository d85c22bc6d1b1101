"""Run one seed: a cluster with clients and faults within the guarantees, and checks after the faults.

Safety is checked all the time by oracles, liveness at the end. After all faults have ended, a new writer must
take the log over, write, commit and read the whole log within `LIVENESS_S` virtual seconds.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, ClassVar

import trio

from ....cluster.gc.retention import EVERY_S
from ....cluster.repair.copier import lacking_ranges, list_held_entries
from ....cluster.repair.decommission import request_decommission
from ....cluster.status.cluster_overview import bookies
from ....cluster.status.placement_status import change_policy
from ....cluster.status.upgrade import finalize_upgrade
from ....ledger.model import ledger_keys as keys
from ....ledger.model.ledger_metadata import LedgerMetadata
from ....log.namespace import Namespace
from ....metadata.model.interface import Scan
from ....runtime.interfaces.errors import DistributedLogError
from ....runtime.interfaces.host import Host
from ...verify.checks.history_check import LogReport, Violation, check_log
from ...verify.checks.register_check import check_registers
from ...verify.history.run_history import ObservedRecord, RunHistory
from ...verify.workloads import workload
from ...verify.workloads.gated_formats import GatedFormatClient
from ..faults.nemesis import Nemesis
from ..faults.parameter_sets import draw_overrides, overridden
from ..faults.targeted_faults import TargetedFaults
from ..faults.trigger_points import TriggerPoints
from ..faults.unexpected_errors import UnexpectedErrors
from ..world.disk import draw_disk_faults
from ..world.network import draw_network_faults
from ..world.scheduler import Simulation
from ..world.sim_cluster import Shape, SimCluster

LOGS = ("story", "tale", "legend")
QUORUMS = (*[(3, 3, 2)] * 6, (5, 3, 2), (4, 3, 2), (4, 2, 2), (3, 2, 2), (3, 3, 3))
"""Ensemble size, write quorum and ack quorum. All logs of a seed have the same."""
RACKS = ((), ("r1", "r2"), ("r1", "r2", "r3"))
"""Racks of a seed's bookies, assigned in rotation."""
AUDIT_S = 5.0
NEVER_S = 1e6
CHAOS_S = 20.0
FORMING_S = 60.0
LIVENESS_S = 60.0
COPIES_S = 120.0
"""Further virtual seconds for repair (L8): the delay until a bookie counts as lost, one check of the repair
leader, one audit pass, and the copies."""
ENTRIES_MIN = 100
"""Minimum number of acknowledged entries per seed. Missing ones are written after the faults."""
VIRTUAL_S_MAX = 500.0


@dataclass
class Result:
    """The result of a seed."""

    seed: int
    trace_hash: str = ""
    failures: list[BaseException] = field(default_factory=list)
    virtual_s: float = 0.0
    steps: int = 0
    messages: int = 0
    confirmed_entries: int = 0
    """Entries acknowledged by an ack quorum."""
    faults: Counter[str] = field(default_factory=Counter)
    limbo_answers: int = 0
    """Answers of bookies in the limbo state."""
    restarts: int = 0
    trigger_counts: Counter[str] = field(default_factory=Counter)
    """Occurrences of trigger points for targeted faults."""
    reports: list[LogReport] = field(default_factory=list)
    """One report per log."""
    register_calls: int = 0
    trace: list[str] | None = None
    mixed: bool = False
    """Whether processes of two versions ran (`SeedRun.mix_versions`)."""
    replies_to_older: int = 0
    """Raft replies to metadata nodes of the older version."""
    refusals: int = 0
    """Records that were refused until the upgrade was finalized (`GatedFormatClient`)."""
    offline_at_finalize: int = 0
    """Requests to decommission a bookie that was offline when the upgrade was finalized."""

    @property
    def failed(self) -> bool:
        """Whether a guarantee was broken, or a process ended unexpectedly."""
        return bool(self.failures)


class SeedRun(ABC):
    """The plan of one seed and its run. Subclasses define the clients."""

    proxied: ClassVar[bool] = False
    """Whether the first two clients use only proxies."""

    def __init__(self, seed: int, *, chaos_s: float = CHAOS_S, keep_trace: bool = False) -> None:
        self.is_calm = False
        """Whether the run has no random faults."""
        self.simulation = Simulation(
            seed, virtual_seconds_max=VIRTUAL_S_MAX + chaos_s, keep_trace=keep_trace
        )
        self.chaos_s = chaos_s
        self.liveness_s = LIVENESS_S
        self.history = RunHistory()
        """The history of the registers and of the first log."""
        self.result = Result(seed)
        rng = self.simulation.random_stream("swarm")
        self.rates = draw_rates(rng)
        self.shape = draw_shape(rng, self.simulation.random_stream("space"))
        self.overrides = draw_overrides(rng)
        logs = LOGS[: rng.choice((1, 1, 1, 2, 3))]
        self.histories = {log: RunHistory() for log in logs} | {LOGS[0]: self.history}
        self.has_deletions = rng.random() < 0.3
        """Whether a client creates logs and deletes them."""
        self.cluster: SimCluster
        self.nemesis: Nemesis
        self.trigger_points: TriggerPoints
        self.unexpected_errors: UnexpectedErrors

    def mix_versions(self) -> None:
        """Give each process of a node or client this version or the older one at random."""
        self.shape = replace(self.shape, mixed=True)
        self.result.mixed = True

    def run(self) -> Result:
        """Run the seed and check it. All failures are in the result."""
        simulation, result = self.simulation, self.result
        try:
            simulation.run(self._main)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            simulation.failures.append(error)
        result.failures = simulation.failures
        result.trace_hash = simulation.trace_hash
        result.virtual_s = simulation.main_lasted_s or simulation.now
        result.steps = simulation.steps
        result.messages = self.cluster.network.message_count
        result.confirmed_entries = self.cluster.oracles.bookies.confirmed_entries
        result.faults = self.nemesis.counts
        if self.unexpected_errors.thrown_at:
            result.faults["unexpected exception"] = len(self.unexpected_errors.thrown_at)
        result.trigger_counts = self.trigger_points.counts
        result.replies_to_older = self.cluster.oracles.metadata.replies_to_older
        result.limbo_answers = self.cluster.oracles.bookies.limbo_answers
        result.restarts = self.cluster.restarts
        result.trace = simulation.trace
        return result

    async def _main(self, simulation: Simulation) -> None:
        rng = simulation.random_stream("faults")
        network, disks = draw_network_faults(rng), draw_disk_faults(rng)
        disks.inline = simulation.random_stream("inline").random() < 0.5
        self.cluster = cluster = SimCluster(
            simulation, self.shape, network=network, disks=lambda: replace(disks)
        )
        writers, others = cluster.clients[:2], cluster.clients[2:]
        self.nemesis = Nemesis(cluster, rng, writers=[*writers, *cluster.write_proxies])
        targeted_faults = TargetedFaults(self.nemesis, simulation.random_stream("ambush"))
        on_trigger = inject_nothing if self.is_calm else targeted_faults.on_trigger
        self.unexpected_errors = UnexpectedErrors(cluster, simulation.random_stream("unexpected"))
        self.trigger_points = TriggerPoints(cluster.role_of, cluster.is_ready, on_trigger)
        cluster.watch(self.trigger_points)
        self._on_cluster(cluster)
        with cluster.oracles.observe_state_machines(), overridden(self.overrides):
            cluster.start_all()
            simulation.nursery.start_soon(cluster.supervise)
            with trio.move_on_after(FORMING_S) as start_timeout:
                await cluster.wait_all_ready()
            if start_timeout.cancelled_caught:
                missing = [name for name in cluster.nodes if not cluster.ready.get(name)]
                raise Violation(f"liveness: {missing} did not start within {FORMING_S:g} s")
            await self._begin()
            for name in writers:
                cluster.start_client(name, self._write, proxied=self.proxied)
            for name, client_main in zip(others, (self._read, self._place), strict=False):
                cluster.start_client(name, client_main)
            with trio.move_on_after(self.chaos_s):
                async with trio.open_nursery() as fault_nursery:
                    if not self.is_calm:
                        self.nemesis.start(fault_nursery)
                        fault_nursery.start_soon(targeted_faults.run)
                        fault_nursery.start_soon(self.unexpected_errors.run)
                    await trio.sleep_forever()
            await self._judge(simulation)

    async def _place(self, namespace: Namespace, host: Host) -> None:
        """Run the fourth client. It first enforces the placement policy if the shape requires that."""
        if self.shape.enforced:
            await change_policy(namespace.metadata, {"enforced": True})
        await self._measure(namespace, host)

    def _on_cluster(self, cluster: SimCluster) -> None:  # noqa: B027 (most have nothing to add)
        """Prepare the cluster before any of its nodes runs."""

    async def _begin(self) -> None:  # noqa: B027
        """Prepare the workload before the first client and the first fault."""

    # --- defined by the workload ------------------------------------------------------------------

    @abstractmethod
    async def _write(self, namespace: Namespace, host: Host) -> None:
        """Run each of the first two clients."""

    @abstractmethod
    async def _read(self, namespace: Namespace, host: Host) -> None:
        """Run the third client."""

    @abstractmethod
    async def _measure(self, namespace: Namespace, host: Host) -> None:
        """Run the fourth client, after the placement policy was set."""

    @abstractmethod
    async def _prove(self, namespace: Namespace, host: Host) -> None:
        """Work and read everything after the heal, as the last client. It is retried until it succeeds."""

    @abstractmethod
    async def _settle(self, namespace: Namespace) -> None:
        """Finish the work of that client."""

    @abstractmethod
    async def _conclude(self) -> None:
        """Check the final state. Raises `Violation`."""

    # --- the end ----------------------------------------------------------------------------------

    async def _judge(self, simulation: Simulation) -> None:
        cluster = self.cluster
        simulation.record_event("heal")
        self.nemesis.is_over = True
        cluster.heal()
        simulation.nursery.start_soon(self.nemesis.replace_damaged)
        done = trio.Event()

        async def prove(namespace: Namespace, host: Host) -> None:
            while not done.is_set():
                try:
                    await self._prove(namespace, host)
                    done.set()
                except DistributedLogError as error:
                    simulation.record_event("not yet", type(error).__name__, str(error)[:2000])
                    await trio.sleep(0.5)
            await self._settle(namespace)

        cluster.start_client(cluster.clients[-1], prove)
        limit_s = self.liveness_s
        with trio.move_on_after(limit_s) as liveness_timeout:
            await done.wait()
        if liveness_timeout.cancelled_caught:
            raise Violation(f"liveness: no client could work within {limit_s:g} s after healing")
        await self._conclude()


class LogRun(SeedRun):
    """Writers, readers and registers of one to three logs.

    In a cluster of two versions, a client also tries the formats that older versions refuse. After the
    faults, all nodes are upgraded and the upgrade is finalized.
    """

    finalizes: ClassVar[bool] = True
    """Whether its clients may finalize an upgrade."""

    def __init__(self, seed: int, *, chaos_s: float = CHAOS_S, keep_trace: bool = False) -> None:
        super().__init__(seed, chaos_s=chaos_s, keep_trace=keep_trace)
        self._final_records: dict[str, list[ObservedRecord]] = {}
        """The complete records of each log, read after the heal."""
        self.stores_odd_numbers = self.simulation.random_stream("settings").random() < 0.3
        """Whether a client stores numbers at and beyond the limits as settings of the logs."""
        if self.stores_odd_numbers:
            self.overrides = replace(self.overrides, retention_rescan_s=EVERY_S)
        self._gated_formats = GatedFormatClient()
        self._missing_copies: list[str] = []
        self._all_copies_present = trio.Event()
        """Set when all copies are complete."""

    # --- clients ----------------------------------------------------------------------------------

    async def _write(self, namespace: Namespace, host: Host) -> None:
        rates = replace(self.rates, burst_s=self.rates.burst_s * len(self.histories))
        async with trio.open_nursery() as nursery:
            for log, history in self.histories.items():
                nursery.start_soon(
                    workload.write_sessions, namespace, log, history, host.random, rates
                )

    async def _read(self, namespace: Namespace, host: Host) -> None:
        async with trio.open_nursery() as nursery:
            for log, history in self.histories.items():
                for name, read in (("tail", workload.tail), ("catch up", workload.catch_up)):
                    nursery.start_soon(read, namespace, log, history, name, host.random, self.rates)
            # Two processes on two machines, because each may use another leader (H26).
            nursery.start_soon(self._registers, "p2", namespace, host)

    async def _measure(self, namespace: Namespace, host: Host) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._registers, "p1", namespace, host)
            nursery.start_soon(workload.watch_registers, namespace.metadata)
            if self.has_deletions:
                nursery.start_soon(workload.make_and_delete, namespace, host.random)
            if self.shape.mixed and self.finalizes:
                nursery.start_soon(self._gated_formats.expect_refusals, namespace)
            if self.stores_odd_numbers:
                nursery.start_soon(
                    workload.store_numbers_at_limits, namespace, [*self.histories], host.random
                )

    async def _registers(self, process: str, namespace: Namespace, host: Host) -> None:
        await workload.use_registers(namespace.metadata, process, self.history, host.random)

    # --- the end ----------------------------------------------------------------------------------

    async def _prove(self, namespace: Namespace, host: Host) -> None:
        cluster = self.cluster
        for log, history in self.histories.items():
            await workload.prove_alive(namespace, log, history, host.random)
        for name in cluster.clients[:2]:  # no other client writes any more
            cluster.machines[name].kill()
        missing = ENTRIES_MIN - cluster.oracles.bookies.confirmed_entries
        for log, history in self.histories.items():
            await workload.prove_alive(
                namespace, log, history, host.random, entries=max(0, missing)
            )
            missing = 0
            self._final_records[log] = await workload.read_final(namespace, log)

    async def _settle(self, namespace: Namespace) -> None:
        if self.shape.mixed and self.finalizes:
            await self._finalize(namespace)
        while missing := await missing_copies(namespace, self._must_be_complete):
            self._missing_copies = missing
            await trio.sleep(1.0)
        racks = self.shape.racks[: self.shape.bookies]
        while problem := await rack_violation(namespace, racks):
            self._missing_copies = [problem]
            await trio.sleep(1.0)
        self._all_copies_present.set()

    async def _finalize(self, namespace: Namespace) -> None:
        """Upgrade all nodes, finalize the upgrade, and use the formats that it permits."""
        await self.cluster.upgrade()
        self._gated_formats.permitted = True
        while True:
            try:
                for bookie in await bookies(namespace.metadata):
                    if not bookie["running"] and not bookie["draining"]:  # its disk was replaced
                        self.result.offline_at_finalize += 1
                        await request_decommission(namespace.metadata, bookie["id"])
                await finalize_upgrade(namespace.metadata, force=True)
                await self._gated_formats.expect_permission(namespace)
            except DistributedLogError as error:
                self._missing_copies = [f"the upgrade is not finalized: {error}"]
                self.simulation.record_event("not finalized", type(error).__name__, str(error))
                await trio.sleep(0.5)
            else:
                self.result.refusals = self._gated_formats.refusals
                return

    async def _conclude(self) -> None:
        with trio.move_on_after(COPIES_S) as repair_timeout:
            await self._all_copies_present.wait()
        if repair_timeout.cancelled_caught:
            raise Violation(
                f"L8: {len(self._missing_copies)} copies are missing or share a rack, or an upgrade is not "
                f"finalized, {COPIES_S:g} s after healing, for example {self._missing_copies[:5]}"
            )
        for log, history in self.histories.items():
            self.simulation.record_event(
                "final", log, len(self._final_records[log]), history.acked_count
            )
            self.result.reports.append(check_log(history, self._final_records[log]))
        self.result.register_calls = check_registers(self.history.registers)

    def _must_be_complete(self, ledger_id: int) -> bool:
        """Return whether repair must complete this ledger.

        Without an audit, only ledgers that their own writer closed must be complete. A writer that dies
        before it records missing entries leaves some that only the audit finds (H22b).
        """
        return (
            self.shape.audit_every_s < NEVER_S
            or ledger_id not in self.cluster.oracles.recovered_ledgers
        )


def inject_nothing(kind: str, actor: str, request: str) -> None:
    """Inject no fault at a trigger point; see `OnTrigger`."""


def draw_shape(rng: Random, space: Random) -> Shape:
    """Return the shape of a seed's cluster, with small files and segments, so that all of them roll.

    ``space`` decides disk space options and racks of the bookies.
    """
    quorums = rng.choice(QUORUMS)
    racks = space.choice(RACKS)
    return Shape(
        racks=racks,
        enforced=len(racks) > 2 and space.random() < 0.5,
        quorums=quorums,
        bookies=quorums[0] + rng.choice((0, 1, 1) if quorums[0] < 5 else (0, 1)),
        audit_every_s=rng.choice((AUDIT_S, AUDIT_S, NEVER_S)),
        lost_after_s=rng.choice((4.0, 20.0)),
        clients=5,
        store={
            "journal_file_bytes": rng.choice((128, 256, 1024)) * 1024,
            "gather_bytes": 64 * 1024,
            "checkpoint_s": rng.choice((0.5, 2.0, 5.0)),
            "checkpoint_bytes": rng.choice((16, 256)) * 1024,
            "free_bytes_min": 8 * 1024 * 1024,
            "compaction_s": space.choice((0.7, 10.0)),
            "ledgers_in_memory_max": space.choice((2, 20_000)),
        },
        client={
            "segment_bytes_max": rng.choice((4, 16, 256)) * 1024,
            "segment_age_max_s": rng.choice((3.0, 10.0, 60.0)),
            "entry_bytes_max": rng.choice((512, 4096)),
            "lock_lease_s": 3.0,
            "add_timeout_s": rng.choice((2.0, 5.0)),
            "recover_timeout_s": 10.0,
            "close_timeout_s": 10.0,
            "metadata_timeout_s": rng.choice((3.0, 10.0)),
            "keep_alive_s": rng.choice((0.0, 0.0, 0.7)),
            "rolls_at_once": rng.choice((1, 16)),
        },
    )


def draw_rates(rng: Random) -> workload.WorkloadRates:
    """Return the rates of the clients of a seed."""
    return workload.WorkloadRates(
        burst_s=rng.choice((0.03, 0.06, 0.12)),
        burst_records_max=rng.choice((1, 3, 8)),
        long_burst_chance=rng.choice((0.0, 0.05)),
        payload_bytes_max=rng.choice((40, 300, 1500)),
        session_records_max=rng.choice((40, 150, 600)),
        takeover_chance=rng.choice((0.1, 0.4, 0.9)),
    )


# --- copies (L8), checked as a client sees them ------------------------------------------------------


async def missing_copies(namespace: Any, is_wanted: Callable[[int], bool]) -> list[str]:
    """Return descriptions of missing copies of closed ledgers, without those that ``is_wanted`` rejects."""
    pool = namespace.ledgers.pool
    problems: list[str] = []
    async for item in Scan(namespace.metadata, keys.LEDGER_PREFIX):
        ledger = LedgerMetadata.decode(item.key, item.value)
        if not ledger.closed or not is_wanted(ledger.ledger_id):
            continue
        for bookie in ledger.bookies():
            client = pool.get(bookie)
            if client is None:
                problems.append(f"ledger {ledger.ledger_id}: bookie {bookie[:8]} is unavailable")
                continue
            try:
                gaps = lacking_ranges(ledger, bookie, await list_held_entries(ledger, client))
            except DistributedLogError as error:
                problems.append(f"ledger {ledger.ledger_id}: bookie {bookie[:8]}: {error}")
                continue
            problems += [
                f"ledger {ledger.ledger_id}: bookie {bookie[:8]} lacks {gap.first} to {gap.last}"
                for gap in gaps
            ]
    return problems


async def rack_violation(namespace: Any, racks: Sequence[str]) -> str:
    """Return why a new ledger would have all copies in one rack, or "" if they are in different racks."""
    pool = namespace.ledgers.pool
    known_racks = {candidate.labels.get("rack", "") for candidate in pool.candidates()}
    if len(known_racks) < len({*racks}):
        return f"of the racks {racks} only {sorted(known_racks)} are available"
    bookies = (await namespace.ledgers.prepare()).metadata.bookies()
    chosen_racks = {pool.labels(candidate).get("rack", "") for candidate in bookies}
    return (
        ""
        if len(chosen_racks) >= min(2, len(known_racks))
        else f"a new ledger in {chosen_racks} of {known_racks}"
    )
