"""An unexpected exception in any task of any node: the node goes on, or ends where nothing else is safe.

The tasks are found while a whole cluster runs. Each place in the code that begins a task must have begun one
by then, or be listed with the reason: a new task is thrown into, or makes this test fail. Seeds throw into
tasks at random times, next to all other faults.
"""

import ast
import sys
from functools import cache
from pathlib import Path
from random import Random

import pytest
import trio

from distributedlog.log.format.record import LogRecord
from distributedlog.log.namespace import Namespace
from distributedlog.runtime.interfaces.errors import DistributedLogError
from distributedlog.runtime.interfaces.host import Host
from distributedlog.runtime.schedule.work_failures import WorkFailures
from distributedlog.testing.sim.faults.unexpected_errors import (
    PART_OF_SEEDS,
    tasks_of,
    throw,
    waits_for_children,
    work_of,
)
from distributedlog.testing.sim.workloads.campaign import describe_failure
from distributedlog.testing.sim.workloads.seed import CHAOS_S, LogRun
from distributedlog.testing.sim.world.bug_injection import ENDS_NODE, Injected, Patch, first_seed
from distributedlog.testing.sim.world.scheduler import Simulation
from distributedlog.testing.sim.world.sim_cluster import Shape, SimCluster
from tests.parts import files_of, shown
from tests.sim import planted_cluster

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("runtime", "metadata", "bookie", "ledger", "log", "proxy", "cluster")
KINDS = {"m": "m1", "b": "b1", "w": "w1", "r": "r1"}
SHAPE = Shape(
    bookies=4,
    clients=2,
    write_proxies=1,
    read_proxies=1,
    store={
        "journal_file_bytes": 256 * 1024,
        "gather_bytes": 64 * 1024,
        "free_bytes_min": 8 * 1024 * 1024,
        "checkpoint_s": 0.5,
        "compaction_s": 0.7,
    },
    client={"segment_age_max_s": 10.0, "keep_alive_s": 0.7},
)
STEPS = 40
"""Tries, in tenths of a virtual second, to find a task at a wait that it lets itself be woken from."""
WITHIN_S = 60.0
PART = "its tasks end with the call, or the try, that began them, and raise into it"
CLIENTS = "clients alone run it"
PROCESSES = "it runs processes, and pages over HTTP, which no simulated machine has"
CONTAINED = (
    "its task is contained at this place, and needs a state that this world does not come to"
)
BEGINS_NO_TASK_HERE = {
    "bookie/session/session_reads.py": {"SessionReads.serve_one": CONTAINED},
    "cluster/local/node_child.py": {"run_node.<locals>.serve": PROCESSES},
    "cluster/process/http_server.py": {"serve_http.<locals>.accept_all": PROCESSES},
    "cluster/process/process_lifetime.py": {"run_until_stopped": PROCESSES},
    "cluster/local/local_cluster.py": dict.fromkeys(
        ("_NodeRunner._start_child", "_NodeRunner.start_planned", "_NodeRunner.stop_children"),
        PROCESSES,
    ),
    "cluster/repair/open_ledger_closer.py": {"OpenLedgerCloser.run_pass": PART},
    "cluster/status/cluster_overview.py": {"_check_addresses": CLIENTS},
    "cluster/status/log_overview.py": {"read_log_sizes": CLIENTS},
    "cluster/repair/pull_replication.py": {"PullReplication.pull_ledger": PART},
    "cluster/gc/retention.py": {"Retention._close_orphaned": PART},
    "cluster/auth/key_rotation.py": {"bookies_behind": PART},
    "cluster/auth/token_sessions.py": {"TokenSessions._start_session": CLIENTS},
    "ledger/read/ledger_reader.py": dict.fromkeys(
        ("LedgerReader._read_striped", "LedgerReader.why_unreadable"), PART
    ),
    "ledger/recovery/recovery_driver.py": {"RecoveryDriver._open": PART},
    "distributedlog/log/read/fetcher.py": dict.fromkeys(
        ("Fetcher._read_parallel", "Fetcher._start_end_lookup"), PART
    ),
    "distributedlog/log/read/multi_reader.py": dict.fromkeys(
        ("MultiReader._open_member", "MultiReader._start_opening"), CLIENTS
    ),
    "distributedlog/log/read/range_reader.py": dict.fromkeys(
        ("RangeReader.start_parallel_read", "RangeReader.run"), CLIENTS
    ),
    "distributedlog/log/consumers/work_queue.py": dict.fromkeys(
        ("WorkQueue._wait_for_work", "WorkQueue.run"), CLIENTS
    ),
    "metadata/node/quorum_member.py": {"MemberNode.on_snapshot_wanted": CONTAINED},
    "metadata/node/metadata_node.py": {"MetadataNode.become_member": CONTAINED},
    "metadata/peers/hard_state_recovery.py": {"request_voter_reports": PART},
    "metadata/peers/unknown_peers.py": {
        "UnknownPeers._query_all": PART,
        "UnknownPeers.is_trusted": CONTAINED,
    },
    "distributedlog/proxy/write/log_manager.py": {"LogManager._sweep": CONTAINED},
    "distributedlog/proxy/write/produce_session.py": {"ProduceSession._on_call": CONTAINED},
    "distributedlog/proxy/write/hosted_log.py": {
        "HostedLog._on_refused": CONTAINED,
        "HostedLog.append": CONTAINED,
    },
    "distributedlog/runtime/schedule/background_loop.py": dict.fromkeys(
        ("Background._start_call", "Background._main", "Background._settle", "Background.spawn"),
        CLIENTS,
    ),
    "distributedlog/runtime/net/rpc.py": {"_ServerConnection._handle_handshake": CONTAINED},
    "distributedlog/runtime/schedule/work_failures.py": {"WorkFailures._run_until_recovered": PART},
}
"""By file: functions that begin tasks, and none in this test, with the reason."""


class Spawned(trio.abc.Instrument):
    """The places that have begun a task: (file, function)."""

    def __init__(self) -> None:
        self.places: set[tuple[str, str]] = set()

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        frame = sys._getframe()
        while frame is not None:
            name = frame.f_code.co_filename
            if "distributedlog" in frame.f_globals.get("__name__", "") and "/sim/" not in name:
                path = Path(name).resolve()
                if path.is_relative_to(ROOT) and path.name != "work_failures.py":
                    self.places.add((str(path.relative_to(ROOT)), frame.f_code.co_qualname))
                return
            frame = frame.f_back  # type: ignore[assignment]


@cache
def places() -> frozenset[tuple[str, str]]:
    """Each function of the nodes' parts that begins a task in a nursery."""
    found: set[tuple[str, str]] = set()

    def walk(node: ast.AST, path: str, names: list[str]) -> None:
        for child in ast.iter_child_nodes(node):
            inner = names
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                inner = [*names, child.name, "<locals>"]
            elif isinstance(child, ast.ClassDef):
                inner = [*names, child.name]
            elif isinstance(child, ast.Attribute) and child.attr == "start_soon":
                found.add((path, ".".join(names[:-1])))
            walk(child, path, inner)

    for part in PARTS:
        for file in files_of(part):
            walk(ast.parse(file.read_text()), shown(file), [])
    return frozenset(found)


class World:
    """A cluster, and a client of its proxies that writes one record and reads it, again and again."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.cluster = SimCluster(simulation, SHAPE)
        self.thrown: dict[tuple[str, str], bool] = {}
        """Kind of node and work: has the node ended?"""
        self.wrong: list[str] = []
        self._wanted = trio.Event()
        self._done = trio.Event()
        self._count = 0

    async def main(self) -> None:
        cluster = self.cluster
        cluster.start_all()
        self.simulation.nursery.start_soon(cluster.supervise)
        await cluster.wait_all_ready()
        cluster.start_client("c1", self._work, proxied=True)
        cluster.start_client("c2", self._work_directly)
        await self._proven()
        for kind, name in KINDS.items():
            while (work := self._next(kind, name)) is not None:
                await self._throw_into(kind, name, work)

    def _next(self, kind: str, name: str) -> str | None:
        for task in tasks_of(self.cluster.machines[name]):
            work = work_of(task)
            if not work or (kind, work) in self.thrown or work.startswith("SimCluster."):
                continue
            if work in ENDS_NODE or not waits_for_children(task):
                return work
        return None

    async def _throw_into(self, kind: str, name: str, work: str) -> None:
        host = self.cluster.machines[name]
        life = host.state.incarnation
        for _ in range(STEPS):
            if any(throw(task) for task in tasks_of(host) if work_of(task) == work):
                break
            await trio.sleep(0.1)
        else:
            self.thrown[kind, work] = False
            self.wrong.append(f"{work} of {name} cannot be woken")
            return
        with trio.move_on_after(WITHIN_S) as tried:
            await trio.sleep(1.0)
            ended = host.state.incarnation != life or not host.state.running
            self.thrown[kind, work] = ended
            for _ in range(int(10 * WITHIN_S)):
                if host.state.running and self.cluster.is_ready(name):
                    break
                await trio.sleep(0.1)
            await self._proven()
        ended = self.thrown[kind, work]
        if tried.cancelled_caught:
            self.wrong.append(f"nothing is written or read after {work} of {name}")
        if ended != (work in ENDS_NODE):
            self.wrong.append(f"{work} of {name}: {'ended' if ended else 'lives'}")
        if ended and not isinstance(host.last_end, Injected):
            self.wrong.append(f"{work} of {name}: {host.last_end!r}")

    # --- the clients ------------------------------------------------------------------------------

    async def _proven(self) -> None:
        """Return when a record that was written from now on has been read, through the proxies."""
        self._done = trio.Event()
        self._wanted.set()
        await self._done.wait()

    async def _work(self, namespace: Namespace, host: Host) -> None:
        while True:
            await self._wanted.wait()
            self._count += 1
            try:
                with trio.move_on_after(20.0):
                    await self._write_and_read(namespace, "proxied", self._count)
                    self._wanted = trio.Event()
                    self._done.set()
            except DistributedLogError as error:
                self.simulation.record_event("not yet", type(error).__name__)
                await trio.sleep(0.2)

    async def _work_directly(self, namespace: Namespace, host: Host) -> None:
        """Ledgers that come and go, whatever is thrown."""
        count = 0
        while True:
            count += 1
            log = f"passing-{count}"
            try:
                with trio.move_on_after(20.0):
                    await namespace.metadata.status()
                    await self._write_and_read(namespace, log, 1)
                    await namespace.open_log(log).truncate(txid=1)
                    await namespace.delete_log(log, wait_s=5.0)
            except DistributedLogError as error:
                self.simulation.record_event("not yet", type(error).__name__)
            await trio.sleep(2.0)

    async def _write_and_read(self, namespace: Namespace, log: str, txid: int) -> None:
        await namespace.log_exists(log)
        one = namespace.open_log(log)
        async with one.open_writer(wait_s=10.0) as writer:
            dlsn = await writer.write(LogRecord(txid, b"x" * 100))
            await writer.commit()
        async with one.open_reader(dlsn=dlsn) as reader:
            [record] = await reader.read_bulk(1, wait_s=10.0)
            assert record.txid == txid


@pytest.mark.seeds
def test_an_unexpected_exception_in_any_task_ends_no_node_but_where_it_must() -> None:
    simulation = Simulation(3, virtual_seconds_max=5000.0)
    world = World(simulation)
    spawned = Spawned()

    async def main(_: Simulation) -> None:
        trio.lowlevel.add_instrument(spawned)
        with world.cluster.oracles.observe_state_machines():  # they learn of deletions there
            await world.main()

    simulation.run(main)

    assert simulation.failures == []
    assert world.wrong == []
    assert {work for (_, work), ended in world.thrown.items() if ended} == set(ENDS_NODE)
    assert len(world.thrown) > 100
    listed = {(file, one) for file, found in BEGINS_NO_TASK_HERE.items() for one in found}
    assert places() - spawned.places - listed == set()
    assert listed - places() == set()


WANTED = [seed for seed in range(200) if Random(f"{seed}/unexpected").random() < PART_OF_SEEDS]
"""Seeds that throw."""


@pytest.mark.seeds
def test_seeds_with_unexpected_exceptions_keep_every_promise() -> None:
    thrown: list[str] = []
    for seed in WANTED[:3]:
        run = LogRun(seed)
        result = run.run()
        if result.failed:
            pytest.fail(describe_failure(result, CHAOS_S), pytrace=False)
        thrown += run.unexpected_errors.thrown_at

    assert len(set(thrown)) > 5


KEEP: Patch = (WorkFailures, "keep_running", planted_cluster.keep_without_containing)


@pytest.mark.seeds
@pytest.mark.parametrize(
    ("patches", "start", "by"),
    [
        ([KEEP], 0, "Injected: "),
        (planted_cluster.CONTAINED_CORE, 6, "continues after an unexpected"),
    ],
    ids=["too little is contained", "the core of Raft is contained"],
)
def test_seeds_find_a_node_that_ends_or_goes_on_and_must_not(
    patches: list[Patch], start: int, by: str
) -> None:
    found = first_seed(patches, WANTED[start:][:8], lambda seed: LogRun(seed).run().failures)

    assert found is not None
    assert by in found[1]
