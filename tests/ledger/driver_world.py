"""The ledger drivers in a seeded world: the real client, writer, slot care, recovery, copier and swaps.

Where `testing/sim/ledger/ledger_world.py` runs the cores with drivers of its own, here the product's drivers
run, over model bookies and a metadata store that loses answers, does things late, and refuses. A seed takes a
few milliseconds of CPU for what takes seconds in a whole cluster.

Judged at every step: an entry is confirmed when an ack quorum of the *stored* ensemble has it; what a
reader gets is what was written. At the end: the ledger closes, nowhere below what was confirmed or read;
after one pass over the notes a ledger that its own writer closed has all its copies (without an audit);
after an audit every ledger has; after a bookie is lost for good the record names others that have them.
"""

import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import trio

from distributedlog.cluster.repair.copier import Copier
from distributedlog.cluster.repair.ledger_audit import LedgerAudit
from distributedlog.cluster.repair.lost_bookies import (
    BookieLiveness,
    LostBookieRepair,
    RepairTargets,
)
from distributedlog.cluster.repair.replication_worker import ReplicationWorker
from distributedlog.ledger.declarations.options import LedgerOptions
from distributedlog.ledger.ledger_client import LedgerClient
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from distributedlog.ledger.model.striping import Striping
from distributedlog.ledger.write.ledger_writer import LedgerWriter
from distributedlog.metadata.model.command_results import CommandResult
from distributedlog.metadata.model.commands import ReplicatedCommand, Transact
from distributedlog.metadata.model.interface import RangePage
from distributedlog.metadata.model.transaction import KeyValue, Put, Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import (
    BookieReadOnly,
    DistributedLogError,
    OutcomeUnknown,
    QuorumUnreachable,
)
from distributedlog.runtime.interfaces.host import Host
from distributedlog.testing.sim.world.scheduler import Simulation
from tests.metadata.local_metadata import LocalMetadata

from .model_bookie import LATENCY_S, ModelClient, ModelCluster, ModelPool, Node, no_endpoint

QUORUMS = (*[(3, 3, 2)] * 4, (4, 3, 2), (5, 3, 2), (4, 2, 2), (3, 2, 2), (3, 3, 3))
HORIZON_S = 12.0
HEALED_S = 60.0
LOOKS = 3
"""Of the repair at what a lost bookie held."""


class Wrong(AssertionError):
    """A promise was broken."""


class MoodyMetadata(LocalMetadata):
    """Loses answers, does things late or not at all, and stands still; never does a thing twice."""

    def __init__(self, chance: Random, nursery: trio.Nursery) -> None:
        super().__init__()
        self._chance = chance
        self._nursery = nursery
        self.mood = chance.choice((0.0, 0.05, 0.2, 0.5))
        self.frozen_until = 0.0
        self.unknowns = 0
        self.recovered = False
        """Somebody else than its writer began to close the ledger."""

    async def _wait(self) -> None:
        await trio.sleep(LATENCY_S * (0.5 + self._chance.random()))
        await trio.sleep_until(max(trio.current_time(), self.frozen_until))

    async def transact(self, transaction: Transaction) -> TransactionReply:
        await self._wait()
        if self._chance.random() >= self.mood:
            reply = await super().transact(transaction)
            await self._wait()
            return reply
        kind = self._chance.choice(("done", "done", "late", "never", "refused"))
        if kind == "refused":
            raise QuorumUnreachable("no leader (the store is moody)")
        self.unknowns += 1
        if kind == "done":
            await super().transact(transaction)
        elif kind == "late":
            self._nursery.start_soon(self._later, transaction)
        await trio.sleep(self._chance.choice((0.0, 0.3, 2.0)))
        raise OutcomeUnknown(f"the answer was lost ({kind})")

    async def _later(self, transaction: Transaction) -> None:
        await trio.sleep(self._chance.expovariate(1.0))
        await super().transact(transaction)

    def _do(self, command: ReplicatedCommand) -> CommandResult:
        answer = super()._do(command)
        if isinstance(command, Transact) and answer.transaction and answer.transaction.succeeded:
            for one in command.transaction.operations:
                if isinstance(one, Put) and one.key.startswith(keys.LEDGER_PREFIX):
                    state = LedgerMetadata.decode(one.key, one.value).state
                    self.recovered = self.recovered or state is LedgerState.IN_RECOVERY
        return answer

    async def get(self, key: bytes) -> KeyValue | None:
        await self._wait()
        if self._chance.random() < self.mood / 2:
            raise QuorumUnreachable("no leader (the store is moody)")
        return await super().get(key)

    async def range(self, start: bytes, end: bytes, *, limit: int = 1000) -> RangePage:
        await self._wait()
        return await super().range(start, end, limit=limit)


class OwnPool(ModelPool):
    """The connections of one client, which break without those of others."""

    def __init__(self, cluster: ModelCluster) -> None:
        super().__init__()
        self.nodes = cluster.pool.nodes
        self._own: dict[str, ModelClient] = {}
        self._cut: dict[str, None] = {}

    def get(self, bookie_id: str) -> Any:
        node = self.nodes.get(bookie_id)
        if node is None or node.client is None or bookie_id in self._cut:
            return None
        client = self._own.get(bookie_id)
        if client is None or client.closed is not None:
            client = self._own[bookie_id] = ModelClient(node)
        return client

    def break_(self, bookie_id: str, *, cut: bool) -> None:
        if cut:
            self._cut[bookie_id] = None
        client = self._own.pop(bookie_id, None)
        if client is not None:
            client.close()
        self.tell()

    def mend(self, bookie_id: str) -> None:
        self._cut.pop(bookie_id, None)
        self.tell()


class Always:
    """An election that is won."""

    async def is_elected(self) -> bool:
        return True


class DriverWorld:
    """One seed."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.simulation = Simulation(seed, virtual_seconds_max=400.0, keep_trace=keep_trace)
        self.chance = self.simulation.random_stream("world")
        self.quorums = self.chance.choice(QUORUMS)
        self.striping = Striping(*self.quorums)
        self.records: dict[int, bytes] = {}
        self.confirmed = -1
        self.delivered = -1
        self.ledger_id = -1
        self.damaged = ""
        """The one bookie that lost synced data."""
        self.healed = False
        self.cluster: ModelCluster
        self.store: MoodyMetadata
        self.pools: list[OwnPool] = []
        self.writer: LedgerWriter | None = None

    def run(self) -> list[BaseException]:
        """Run and judge; what went wrong."""
        simulation = self.simulation
        try:
            simulation.run(self._main)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            simulation.failures.append(error)
        return simulation.failures

    async def _main(self, simulation: Simulation) -> None:
        chance = self.chance
        async with trio.open_nursery() as nursery:
            self.cluster = cluster = ModelCluster(0, nursery)
            self.store = MoodyMetadata(simulation.random_stream("store"), nursery)
            cluster.store = self.store  # type: ignore[assignment]
            for n in range(self.quorums[0] + chance.choice((0, 1, 2, 3))):
                await self._add_bookie(f"b{n}")
            writer = await self._client(nursery, "writer")
            await self._create(writer)
            with trio.move_on_after(HORIZON_S):
                async with trio.open_nursery() as busy:
                    busy.start_soon(self._write)
                    busy.start_soon(self._read, await self._client(nursery, "reader"))
                    for n in range(chance.choice((0, 0, 1, 2, 3))):
                        one = await self._client(nursery, f"recoverer{n}")
                        busy.start_soon(self._recover_later, one, nursery)
                    for _ in range(chance.choice((0, 1, 1, 2, 3))):
                        busy.start_soon(self._misfortunes, nursery)
            self._heal()
            with trio.move_on_after(HEALED_S) as alive:
                await self._judge(await self._client(nursery, "last"))
            if alive.cancelled_caught:
                raise Wrong(f"liveness: not closed and repaired {HEALED_S:g} s after healing")
            nursery.cancel_scope.cancel()

    async def _add_bookie(self, bookie_id: str) -> None:
        self.cluster.add(bookie_id).entries_max = self.chance.choice((1, 3, 100))
        cookie = Put(keys.cookie_key(bookie_id), b"")
        await LocalMetadata.transact(self.store, Transaction((), (cookie,)))

    async def _client(self, nursery: trio.Nursery, name: str) -> LedgerClient:
        pool = OwnPool(self.cluster)
        self.pools.append(pool)
        unused: Any = None
        host = Host(
            name, unused, unused, {}, self.simulation.random_stream(f"host/{name}"), lambda: 0
        )
        ensemble, write, ack = self.quorums
        options = LedgerOptions(
            ensemble_size=ensemble,
            write_quorum=write,
            ack_quorum=ack,
            slot_silence_s=self.chance.choice((0.3, 1.0)),
            add_timeout_s=self.chance.choice((2.0, 5.0)),
            request_timeout_s=1.0,
            connect_timeout_s=0.3,
        )
        client = LedgerClient(host, no_endpoint(), self.store, pool, options)
        await nursery.start(client.run)
        return client

    # --- clients ------------------------------------------------------------------------------------

    async def _create(self, client: LedgerClient) -> None:
        while self.writer is None:
            try:
                self.writer = await client.create(on_confirmed=self._on_confirmed)
            except DistributedLogError:
                await trio.sleep(0.1)
        self.ledger_id = self.writer.ledger_id

    async def _write(self) -> None:
        writer, chance = self.writer, self.chance
        assert writer is not None
        pause_s = chance.choice((0.003, 0.03, 0.1))
        try:
            for _ in range(chance.choice((0, 3, 30, 200))):
                for _ in range(chance.choice((1, 1, 4))):
                    await writer.wait_capacity()
                    body = chance.randbytes(chance.randrange(1, 30))
                    self.records[writer.add([body], len(body))] = body
                await trio.sleep(chance.expovariate(1.0 / pause_s))
            if chance.random() < 0.6:
                closed = await writer.close()
                self.simulation.record_event("the writer closed at", closed.last_entry)
            elif chance.random() < 0.5:
                writer.abort()
        except DistributedLogError as error:
            self.simulation.record_event("the writer ends:", type(error).__name__, error)

    async def _read(self, client: LedgerClient) -> None:
        position = 0
        while not self.healed:
            await trio.sleep(self.chance.expovariate(3.0))
            try:
                with await client.open(self.ledger_id) as reader:
                    while position <= reader.lac:
                        found = await reader.read(position, reader.lac, bytes_max=200)
                        for one in found:
                            self._on_delivered(one.entry, bytes(one.payload))
                        position = found[-1].entry + 1
            except DistributedLogError:
                continue

    async def _recover_later(self, client: LedgerClient, nursery: trio.Nursery) -> None:
        """While entries are in flight, and just when some of the bookies cannot be asked."""
        await trio.sleep(self.chance.expovariate(0.7))
        deeds = [self._hang, self._stop, self._lose_fences, self._damage, self._slow]
        while True:
            for _ in range(self.chance.choice((0, 1, 2, 2))):
                node = self.cluster[self.chance.choice(self._stored().last_fragment.bookies)]
                deed = self.chance.choice(deeds)
                self.simulation.record_event("before a recovery", deed.__name__, node.id)
                nursery.start_soon(deed, node)
            try:
                closed = await client.recover(self.ledger_id)
            except DistributedLogError as error:
                self.simulation.record_event("a recovery failed:", type(error).__name__, error)
                await trio.sleep(self.chance.expovariate(2.0))
            else:
                self._check_end(closed)
                return

    # --- misfortunes --------------------------------------------------------------------------------

    async def _misfortunes(self, nursery: trio.Nursery) -> None:
        chance = self.chance
        pause_s = chance.choice((0.1, 0.3, 1.0))
        deeds: list[Callable[[Node], Awaitable[None]]] = [
            self._stop, self._hang, self._mute, self._break, self._break, self._refuse, self._lose_fences,
            self._slow, self._damage, self._freeze,
        ]  # fmt: skip
        while True:
            await trio.sleep(chance.expovariate(1.0 / pause_s))
            node = self.cluster[chance.choice(sorted(self.cluster.pool.nodes))]
            deed = chance.choice(deeds)
            self.simulation.record_event(deed.__name__, node.id)
            nursery.start_soon(deed, node)

    async def _for_a_while(self) -> None:
        await trio.sleep(self.chance.choice((0.1, 1.0, 4.0, 8.0)) * self.chance.random())

    async def _stop(self, node: Node) -> None:
        node.registered = False
        node.client = None
        for pool in self.pools:
            pool.break_(node.id, cut=False)
        await self._for_a_while()
        if not self.healed:
            self._start(node)

    def _start(self, node: Node) -> None:
        node.registered, node.client = True, ModelClient(node)
        for pool in self.pools:
            pool.tell()

    async def _hang(self, node: Node) -> None:
        node.hang()
        await self._for_a_while()
        node.hang(on=False)

    async def _mute(self, node: Node) -> None:
        """Stores adds and acknowledges none: a connection that stays mute breaks in the end."""
        node.mute = True
        await self._for_a_while()
        node.mute = False
        for pool in self.pools:
            pool.break_(node.id, cut=False)

    async def _break(self, node: Node) -> None:
        pool = self.chance.choice(self.pools)
        pool.break_(node.id, cut=self.chance.random() < 0.5)
        await self._for_a_while()
        pool.mend(node.id)

    async def _refuse(self, node: Node) -> None:
        node.refuse_adds = BookieReadOnly(f"{node.id} is full")
        await self._for_a_while()
        node.refuse_adds = None

    async def _lose_fences(self, node: Node) -> None:
        node.loses_fences = True
        await self._for_a_while()
        node.loses_fences = False

    async def _slow(self, node: Node) -> None:
        node.read_delay_s, node.add_delay_s = self.chance.choice(
            ((0.0, 0.5), (0.5, 0.0), (0.2, 0.2))
        )
        await self._for_a_while()
        node.read_delay_s = node.add_delay_s = 0.0

    async def _damage(self, node: Node) -> None:
        """Loses entries and says so, or has some that are damaged; one bookie of a run (G3)."""
        if self.damaged or self.quorums[2] < 2:
            return
        self.damaged = node.id
        ledger = node.model.ledgers.get(self.ledger_id)
        if ledger is None:
            return
        if self.chance.random() < 0.5:
            ledger.limbo = ledger.fenced = True
            for entry in list(ledger.entries):
                if self.chance.random() < 0.5:
                    del ledger.entries[entry]
        else:
            ledger.damaged.update(e for e in ledger.entries if self.chance.random() < 0.5)

    async def _freeze(self, node: Node) -> None:
        until = trio.current_time() + self.chance.choice((0.2, 1.0, 3.0)) * self.chance.random()
        self.store.frozen_until = max(self.store.frozen_until, until)

    def _heal(self) -> None:
        self.simulation.record_event("heal")
        self.healed = True
        self.store.mood = self.store.frozen_until = 0.0
        if self.writer is not None:
            self.writer.abort()
        for node in self.cluster.pool.nodes.values():
            node.hang(on=False)
            node.mute = node.loses_fences = False
            node.refuse_adds = None
            node.read_delay_s = node.add_delay_s = 0.0
            for pool in self.pools:
                pool.mend(node.id)
            self._start(node)

    @property
    def changes(self) -> int:
        """Ensemble changes of its writer that are stored."""
        return len(self._stored().ensembles) - 1

    # --- oracles ------------------------------------------------------------------------------------

    def _stored(self) -> LedgerMetadata:
        found = self.store.state.get(keys.ledger_key(self.ledger_id))
        assert found is not None
        return LedgerMetadata.decode(found.key, found.value)

    def _copies(self, record: LedgerMetadata, entry: int) -> list[str]:
        """The bookies that the record names for an entry and that have it; the damaged one had it."""
        bookies = record.fragment_of(entry).bookies
        found = []
        for slot in self.striping.write_set(entry):
            ledger = self.cluster[bookies[slot]].model.ledgers.get(self.ledger_id)
            had = self.damaged == bookies[slot]
            if had or (ledger is not None and entry in ledger.entries):
                found.append(bookies[slot])
        return found

    def _on_confirmed(self, lac: int) -> None:
        if self.healed:
            return
        record = self._stored()
        for entry in range(self.confirmed + 1, lac + 1):
            copies = self._copies(record, entry)
            if len(copies) < self.striping.ack_quorum:
                self._fail(
                    f"G3: entry {entry} is confirmed, the stored ensemble has it on {copies}"
                )
        if record.closed and record.last_entry is not None and lac > record.last_entry:
            self._fail(f"G4: entry {lac} is confirmed after a close at {record.last_entry}")
        self.confirmed = max(self.confirmed, lac)

    def _on_delivered(self, entry: int, payload: bytes) -> None:
        if self.records.get(entry) != payload:
            self._fail(f"G5: entry {entry} was read with bytes that nobody wrote")
        self.delivered = max(self.delivered, entry)

    def _fail(self, message: str) -> None:
        self.simulation.fail(Wrong(message))

    def _check_end(self, closed: LedgerMetadata) -> None:
        end = closed.last_entry
        assert end is not None
        stored = self._stored()
        if (stored.state, stored.last_entry) != (LedgerState.CLOSED, end):
            self._fail(
                f"a close at {end} was reported, stored is {stored.state} {stored.last_entry}"
            )
        if end < max(self.confirmed, self.delivered):
            self._fail(
                f"G3, G5: closed at {end}; confirmed to {self.confirmed}, read to {self.delivered}"
            )
        length = sum(len(self.records[entry]) for entry in range(end + 1))
        if closed.length != length:
            self._fail(f"closed with length {closed.length}, it is {length}")

    # --- the end ------------------------------------------------------------------------------------

    async def _judge(self, client: LedgerClient) -> None:
        closed: LedgerMetadata | None = None
        while closed is None:
            try:
                closed = await client.recover(self.ledger_id)
            except DistributedLogError as error:
                self.simulation.record_event("not yet:", error)
                await trio.sleep(0.5)
        self._check_end(closed)
        assert closed.last_entry is not None
        for entry in range(closed.last_entry + 1):
            copies = self._copies(self._stored(), entry)
            if len(copies) < self.striping.ack_quorum:
                self._fail(f"inv. 20: closed at {closed.last_entry}, entry {entry} is on {copies}")
        pool: Any = client.pool
        election: Any = Always()
        copier = Copier(pool, bytes_per_s=1 << 30)
        repair = ReplicationWorker(self.store, pool, election, copier)
        if self.damaged:  # it is not healed here, but lost for good
            await self._lose(self.damaged, client, copier)
        elif self.chance.random() < 0.3:
            await self._lose(self.chance.choice(sorted(closed.bookies())), client, copier)
        await repair.run_pass()
        if not self.store.recovered:
            self._check_copies("its writer closed it, and noted what is missing")
        await LedgerAudit(self.store, pool, election, every_s=math.inf).audit_all()
        await repair.run_pass()
        self._check_copies("after an audit")
        if (left := await self.store.range(b"under/", b"under0")).items:
            self._fail(f"notes are left after the repair: {left.items}")

    async def _lose(self, bookie: str, client: LedgerClient, copier: Copier) -> None:
        """It does not come back: its closed ledger is stored elsewhere."""
        await self._add_bookie("spare")
        node = self.cluster[bookie]
        node.registered, node.client = False, None
        for pool in self.pools:
            pool.break_(bookie, cut=True)
        unused: Any = client.pool
        lost = LostBookieRepair(
            self.store,
            unused,
            Always(),  # type: ignore[arg-type]
            copier,
            RepairTargets(unused.candidates, self.chance.random),
            BookieLiveness(0.0),
        )
        lost.liveness.lost_bookies = {bookie: "is lost"}
        for _ in range(LOOKS):
            # False also where a ledger whose creation was unknown names it.
            await lost.drain(bookie)
            if bookie not in self._stored().bookies():
                break
            await trio.sleep(1.0)  # what was late may have met the swap
        else:
            self._fail(f"L8: the record still names {bookie}, which is lost")
        self.damaged = ""

    def _check_copies(self, why: str) -> None:
        record = self._stored()
        assert record.last_entry is not None
        for entry in range(record.last_entry + 1):
            copies = self._copies(record, entry)
            if len(copies) < self.striping.write_quorum:
                self._fail(
                    f"L8: {why}; entry {entry} is on {copies}, of {record.fragment_of(entry)}"
                )


def run_seed(seed: int) -> DriverWorld:
    """Run one; raise the first thing that went wrong, with its seed in the notes."""
    world = DriverWorld(seed)
    failures = world.run()
    if failures:
        failures[0].add_note(f"seed {seed} of tests/ledger/driver_world.py")
        raise failures[0]
    return world
