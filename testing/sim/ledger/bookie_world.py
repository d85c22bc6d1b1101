"""One real bookie, its disk and network simulated, and clients that use it as badly as they may.

The cheapest place for what a bookie promises alone: syncs before acks, durable fences, limbo instead of
denial, replay after any crash. The oracles of verify/ judge every frame; at the end everything that was
acknowledged must be read back, or be said to be unknown where rot was planted.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import trio

from ....bookie.client.bookie_client import AddStream, BookieClient
from ....bookie.declarations.options import BookieOptions
from ....bookie.format.entry import encode, records
from ....bookie.ledgers.ledger_existence import LedgerStatus
from ....bookie.server import serve_bookie_protocol
from ....bookie.store.bookie_store import BookieStore
from ....bookie.store.startup import open_store
from ....runtime.interfaces.errors import (
    ConnectionLost,
    CorruptData,
    DistributedLogError,
    LedgerStateUnknown,
    NoSuchLedger,
)
from ....runtime.interfaces.host import Host
from ....runtime.net.rpc import Endpoint
from ....runtime.protocol.handshake import Hello
from ...verify.checks.history_check import Violation
from ..world.disk import SimDisk, draw_disk_faults
from ..world.network import SimNetwork, draw_network_faults
from ..world.oracle_taps import Oracles
from ..world.scheduler import Simulation
from ..world.sim_host import SimHost

BOOKIE_ID = "b1-id"
ADDRESS = ("10.0.2.1", 4181)
TIMEOUT_S = 2.0
WITNESS_S = 0.2
CALM_S = 30.0
"""After the faults the bookie must serve everything within this virtual time."""


@dataclass
class BookieResult:
    """What came of a seed."""

    seed: int
    failures: list[BaseException] = field(default_factory=list)
    acked: int = 0
    starts: int = 0
    deletions: int = 0
    refused: bool = False
    """Rot has destroyed what nothing can be verified without: it does not start any more, and says so."""
    faults: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    trace: list[str] | None = None
    trace_hash: str = ""


@dataclass
class _Ledger:
    """What a client knows of a ledger it writes."""

    id: int
    key: bytes
    bodies: list[bytes] = field(default_factory=list)
    acked: int = 0
    """Entries below this were acknowledged."""
    fenced: bool = False
    deleted: bool = False
    """Somebody began to delete it."""
    gone: bool = False
    """That is durable."""

    @property
    def standing(self) -> LedgerStatus:
        """What its record says."""
        if self.deleted:
            return LedgerStatus.GONE
        return LedgerStatus.ENDED if self.fenced else LedgerStatus.OPEN


class BookieWorld:
    """One seed."""

    def __init__(
        self,
        seed: int,
        *,
        chaos_s: float = 8.0,
        crash_at: int = 0,
        calm: bool = False,
        keep_trace: bool = False,
    ) -> None:
        self.simulation = Simulation(seed, virtual_seconds_max=300.0, keep_trace=keep_trace)
        self.chaos_s = chaos_s
        self.calm = calm
        self.crash_at = crash_at
        """Lose power at this step of the first process, beside (or instead of) the drawn faults."""
        self.result = BookieResult(seed)
        chance = self.simulation.chance("swarm")
        self.options = BookieOptions(
            journal_file_bytes=chance.choice((64, 128, 512)) * 1024,
            journal_file_bytes_min=64 * 1024,
            gather_bytes=64 * 1024,
            checkpoint_s=chance.choice((0.3, 2.0, 30.0)),
            checkpoint_bytes=chance.choice((8, 256)) * 1024,
            checkpoint_runs=chance.choice((10, 1000)),
            free_bytes_min=1 << 20,
            compaction_s=self.simulation.chance("room").choice((0, 0.5)),
            ledgers_in_memory_max=self.simulation.chance("loaded").choice((20_000, 2)),
        )
        kinds = (
            "power cut",
            "kill",
            "crash point",
            "EIO",
            "slow disk",
            "rot",
            "index damage",
            "file lost",
            "reset",
        )
        self.kinds = [kind for kind in kinds if chance.random() < 0.5]
        self.payload_bytes = chance.choice((30, 500, 6000))
        self.rotten = False
        """What was synced was destroyed: the bookie may say that it does not know."""
        self.witnessed = 0
        self.damaged = False
        """The index was: what it alone knew may be in limbo."""
        self.deletion_s = self.simulation.chance("deletions").choice((0.0, 0.2, 1.0))
        """The mean pause between two; 0: none."""
        self.dies_again = self.simulation.chance("starts").choice((0.0, 0.0, 0.5))
        """How likely a start is not survived, nor the removal of a file."""
        self.ages = self.simulation.chance("aged index").random() < 0.4
        """Does its disk lose a write of the index now and then, with a power cut?"""
        self.over = False
        self._ledgers: list[_Ledger] = []
        self._last_ledger = 0

    def run(self) -> BookieResult:
        """Run and judge."""
        try:
            self.simulation.run(self._main)
        except Exception as error:
            self.simulation.failures.append(error)
        result = self.result
        result.failures = self.simulation.failures
        result.virtual_s = self.simulation.lasted_s
        result.starts = self.bookie.state.incarnation
        result.acked = sum(ledger.acked for ledger in self._ledgers)
        result.trace = self.simulation.trace
        result.trace_hash = self.simulation.trace_hash
        return result

    async def _main(self, simulation: Simulation) -> None:
        chance = simulation.chance("faults")
        network = SimNetwork(simulation, draw_network_faults(chance))
        self.bookie = SimHost(simulation, network, "b1", ADDRESS[0])
        disk = SimDisk(simulation, self.bookie.state, "journal", draw_disk_faults(chance))
        disk.faults.inline = simulation.chance("inline").random() < 0.5
        for role in ("journal", "index"):
            self.bookie.add_disk(role, disk)
        client = SimHost(simulation, network, "c1", "10.0.3.1")
        disk.watchers.append(self)
        oracles = Oracles(simulation)
        oracles.bookies.ack_quorum = 1
        oracles.add_machine(self.bookie, "bookie")
        network.taps.append(oracles)
        self._denied = oracles.bookies.denied_ledgers
        self.bookie.start(self._serve)
        self.bookie.state.crash_after(self.crash_at, power=True)
        simulation.nursery.start_soon(self._supervise)
        client.start(self._clients)
        with trio.move_on_after(self.chaos_s):
            if self.calm:
                await trio.sleep(self.chaos_s)
            else:
                async with trio.open_nursery() as faults:
                    if self.ages:
                        faults.start_soon(self._age_index, simulation.chance("aged pages"))
                    await self._nemesis(simulation.chance("nemesis"))
        self.over = True
        client.kill()
        disk.faults.failing_syncs = 0
        disk.stalled_until = 0.0
        self.bookie.state.crash_after(0, power=False)
        await trio.sleep(1.5)
        done = trio.Event()

        async def read_back(host: Host) -> None:
            await self._read_back(host)
            done.set()
            await trio.sleep_forever()

        client.start(read_back)
        with trio.move_on_after(CALM_S) as calm:
            await done.wait()
        if self.rotten and isinstance(self.bookie.last_end, CorruptData):
            self.result.refused = (
                True  # it says that it is to be replaced: honest, and within its promise
            )
        elif calm.cancelled_caught:
            raise Violation(f"liveness: the bookie does not serve {CALM_S:g} s after the faults")

    # --- the bookie -------------------------------------------------------------------------------

    async def _serve(self, host: Host) -> None:
        for disk in dict.fromkeys(host.disks.values()):
            disk.lock()
        store = await open_store(host, self.options, bookie_id=BOOKIE_ID, witnessed=self.witnessed)
        listener = await host.listen(ADDRESS)
        hello = Hello("cluster", BOOKIE_ID, "bookie", "b1", "fdatasync")
        endpoint = Endpoint(host, lambda: hello)
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            nursery.start_soon(self._witness, store)
            if self.deletion_s:
                nursery.start_soon(self._delete, store)
            await nursery.start(
                lambda task_status: serve_bookie_protocol(
                    endpoint,
                    {"": listener},
                    store,
                    standings=self._standings,
                    task_status=task_status,
                )
            )

    async def _witness(self, store: BookieStore) -> None:
        """Somebody else knows how far it was synced, of each start and now and then."""
        while True:
            self.witnessed = store.durable_to
            await trio.sleep(WITNESS_S)

    async def _delete(self, store: BookieStore) -> None:
        """Whole files hold nothing any more after a while. What was begun may be begun again."""
        chance = self.simulation.chance(f"deletions/{self.bookie.state.incarnation}")
        while True:
            await trio.sleep(chance.expovariate(1 / self.deletion_s))
            fenced = [ledger for ledger in self._ledgers if ledger.fenced]
            if fenced:
                ledger = chance.choice(fenced)
                ledger.deleted = True
                self._denied[ledger.id] = None
                await store.delete_ledger(ledger.id)
                ledger.gone = True
                self.result.deletions += 1
                if chance.random() < 0.2:
                    await store.end_tombstones(chance.randrange(self._last_ledger + 2))

    async def _standings(self, asked: Sequence[int]) -> dict[int, LedgerStatus]:
        """What the metadata says of them."""
        await trio.sleep(0.01)
        known = {ledger.id: ledger for ledger in self._ledgers}
        return {one: known[one].standing for one in asked}

    async def _supervise(self) -> None:
        chance, again = self.simulation.chance("supervisor"), self.simulation.chance("deaths")
        while True:
            await trio.sleep(chance.uniform(0.01, 0.4))
            if not self.bookie.state.running:
                self.bookie.start(self._serve)
                self._die_soon(again, 40)

    def _die_soon(self, chance: Random, steps: int) -> None:
        if not self.over and chance.random() < self.dies_again:
            self.bookie.state.crash_after(chance.randrange(1, steps), power=chance.random() < 0.7)
            self.result.faults["dies again"] += 1

    def on_durable(self, disk: SimDisk, name: str, offset: int, data: bytes) -> None:
        """See `DiskWatcher`."""

    def on_begun(self, disk: SimDisk, what: str, name: str) -> None:
        """See `DiskWatcher`."""
        if what == "delete" and name.startswith("journal-"):
            self._die_soon(self.simulation.chance(f"removal of {name}"), 8)

    async def _nemesis(self, chance: Random) -> None:
        disk = self.bookie.devices()[0]
        network = self.bookie.network
        while True:
            await trio.sleep(chance.expovariate(1.5))
            if not self.kinds:
                continue
            kind = chance.choice(self.kinds)
            self.result.faults[kind] += 1
            if kind == "power cut":
                self.bookie.power_cut()
            elif kind == "kill":
                self.bookie.kill()
            elif kind == "crash point" and self.bookie.state.running:
                self.bookie.state.crash_after(chance.randrange(1, 60), power=chance.random() < 0.7)
            elif kind == "EIO":
                disk.faults.failing_syncs += 1
            elif kind == "slow disk":
                disk.stalled_until = self.simulation.now + chance.random()
            elif kind == "rot" and chance.random() < 0.5:
                self.rotten = bool(disk.rot()) or self.rotten
            elif kind == "file lost" and chance.random() < 0.3:
                self.bookie.power_cut()
                self.rotten = bool(disk.lose_file()) or self.rotten
            elif kind == "index damage":
                self.damaged = disk.damage_map() or self.damaged
            elif kind == "reset" and network.ends:
                network.reset(chance.choice(list(network.ends.values())))

    async def _age_index(self, chance: Random) -> None:
        """The device lost a write that it had confirmed: after a power cut, a page has older content."""
        disk = self.bookie.devices()[0]
        while True:
            await trio.sleep(chance.expovariate(0.4))
            self.bookie.power_cut()
            if disk.age_map(chance):
                self.damaged = True  # it is built again
                self.result.faults["aged index"] += 1

    # --- the clients ------------------------------------------------------------------------------

    async def _clients(self, host: Host) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(self._client, host)

    async def _dial(self, host: Host, nursery: trio.Nursery) -> BookieClient:
        endpoint = Endpoint(host, lambda: Hello("cluster", kind="client"))
        while True:
            try:
                with trio.fail_after(TIMEOUT_S):
                    link = await endpoint.dial(ADDRESS, expected_node_id=BOOKIE_ID, nursery=nursery)
                return BookieClient(link, BOOKIE_ID)
            except (DistributedLogError, trio.TooSlowError):
                await trio.sleep(0.1)

    async def _client(self, host: Host) -> None:
        """Write one ledger after the other; go on with the same one after a lost connection."""
        chance = host.random
        ledger: _Ledger | None = None
        async with trio.open_nursery() as nursery:
            while True:
                bookie = await self._dial(host, nursery)
                try:
                    while bookie.closed is None:
                        if ledger is None or ledger.fenced:
                            ledger = self._new_ledger(chance)
                        await self._use(bookie, self._zombie(chance) or ledger, chance)
                except (DistributedLogError, trio.TooSlowError):
                    await trio.sleep(chance.random() * 0.2)
                bookie.link.close(CorruptData("the client goes away"))

    def _new_ledger(self, chance: Random) -> _Ledger:
        self._last_ledger += 1
        ledger = _Ledger(self._last_ledger, chance.randbytes(16))
        self._ledgers.append(ledger)
        return ledger

    def _zombie(self, chance: Random) -> _Ledger | None:
        """Now and then a writer that was fenced tries again."""
        fenced = [ledger for ledger in self._ledgers if ledger.fenced]
        return chance.choice(fenced) if fenced and chance.random() < 0.2 else None

    async def _use(self, bookie: BookieClient, ledger: _Ledger, chance: Random) -> None:
        """A stream: send again from somewhere below what was acknowledged (H10), then new entries."""
        recovery = chance.random() < 0.1
        start = max(0, ledger.acked - chance.randrange(0, 4))
        refused: list[DistributedLogError] = []
        progress = trio.Event()

        was_gone = ledger.gone

        def on_acked(count: int) -> None:
            if was_gone and not self.rotten:
                what = f"H89: ledger {ledger.id} was deleted, and takes entries"
                self.simulation.fail(Violation(what))
            ledger.acked = max(ledger.acked, start + count)
            progress.set()

        def on_refused(position: int, error: DistributedLogError) -> None:
            refused.append(error)
            progress.set()

        stream = bookie.open_stream(
            ledger.id, ledger.key, recovery=recovery, fragment_epoch=0,
            on_acked=on_acked, on_refused=on_refused,
        )  # fmt: skip
        sent = start
        for _ in range(chance.randrange(1, 6)):
            for _ in range(chance.randrange(1, 8)):
                self._send(stream, ledger, sent, chance)
                sent += 1
            if chance.random() < 0.15:
                await self._ask(bookie, ledger, chance)
            await trio.sleep(chance.expovariate(20.0))
        with trio.fail_after(TIMEOUT_S):
            while ledger.acked < sent and not refused:
                progress = trio.Event()
                await progress.wait()
        if refused:
            raise refused[0]
        stream.close()
        if chance.random() < 0.3:
            await self._ask(bookie, ledger, chance)

    def _send(self, stream: AddStream, ledger: _Ledger, entry: int, chance: Random) -> None:
        if entry == len(ledger.bodies):
            payload = chance.randbytes(chance.randrange(1, self.payload_bytes))
            body = encode(
                ledger.id, entry, 0, min(ledger.acked, entry) - 1, (payload,), len(payload)
            )
            ledger.bodies.append(bytes(body))
        stream.send(ledger.bodies[entry])

    async def _ask(self, bookie: BookieClient, ledger: _Ledger, chance: Random) -> None:
        what = chance.random()
        if what < 0.3:
            ledger.fenced = True
            await bookie.fence(ledger.id, ledger.key, TIMEOUT_S)
        elif what < 0.5:
            await bookie.read_lac(ledger.id, ledger.key, TIMEOUT_S)
        elif what < 0.6:
            await bookie.list_entries(ledger.id, ledger.key, TIMEOUT_S)
        else:
            first = chance.randrange(0, len(ledger.bodies) + 2)
            size = chance.choice((1, 1000, 1 << 20))
            await bookie.read(
                ledger.id, ledger.key, first, first + chance.randrange(0, 50), size,
                past_lac=True, timeout_s=TIMEOUT_S,
            )  # fmt: skip

    # --- the end ----------------------------------------------------------------------------------

    async def _read_back(self, host: Host) -> None:
        """All that was acknowledged is there, byte by byte; or is unknown, where rot was planted."""
        done: dict[int, int] = {}
        async with trio.open_nursery() as nursery:
            while True:
                bookie = await self._dial(host, nursery)
                try:
                    for ledger in self._ledgers:
                        while (
                            not ledger.deleted and (entry := done.get(ledger.id, 0)) < ledger.acked
                        ):
                            done[ledger.id] = await self._read_some(bookie, ledger, entry)
                    break
                except ConnectionLost:
                    continue
            nursery.cancel_scope.cancel()

    async def _read_some(self, bookie: BookieClient, ledger: _Ledger, entry: int) -> int:
        try:
            answer = await bookie.read(
                ledger.id,
                ledger.key,
                entry,
                ledger.acked - 1,
                1 << 20,
                past_lac=True,
                timeout_s=9.0,
            )
            found = list(records(answer.body))
        except NoSuchLedger:
            if not ledger.deleted:
                raise
            return ledger.acked
        except (CorruptData, LedgerStateUnknown):
            if not self.rotten:
                raise
            return entry + 1
        for record in found:
            if bytes(record.raw) != ledger.bodies[record.entry]:
                raise Violation(f"ledger {ledger.id} entry {record.entry} came back changed")
        expected = list(range(entry, answer.complete_to + 1))
        if not answer.known and not self.rotten and not self.damaged:
            raise Violation(f"H3: ledger {ledger.id} is in limbo, and nothing was destroyed")
        if [record.entry for record in found] != expected and not (
            self.rotten and not answer.known
        ):
            raise Violation(
                f"ledger {ledger.id}: asked for {entry} to {ledger.acked - 1}, got"
                f" {[record.entry for record in found]} complete to {answer.complete_to}"
            )
        return max(entry + 1, answer.complete_to + 1) if self.rotten else answer.complete_to + 1
