"""One real bookie with simulated disk and network, and clients that misuse it within the protocol.

This is the cheapest world for the promises of a single bookie: syncs before acknowledgements, durable fences,
limbo state instead of wrong denials, and replay after any crash. The oracles of `testing/verify` check each
frame. At the end, all acknowledged entries must be readable, or reported as unknown if data was corrupted.
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
"""Virtual seconds after the faults within which the bookie must serve all entries."""


@dataclass
class BookieResult:
    """The result of a seed."""

    seed: int
    failures: list[BaseException] = field(default_factory=list)
    acked: int = 0
    starts: int = 0
    deletions: int = 0
    is_start_refused: bool = False
    """Corruption destroyed data that the start requires, and the bookie reported that it cannot start."""
    faults: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    trace: list[str] | None = None
    trace_hash: str = ""


@dataclass
class _Ledger:
    """The state of a ledger, as its clients have observed it."""

    id: int
    key: bytes
    bodies: list[bytes] = field(default_factory=list)
    acked_entries: int = 0
    """Entries below this number were acknowledged."""
    is_fenced: bool = False
    is_delete_started: bool = False
    """Whether its deletion has begun."""
    is_deleted: bool = False
    """Whether its deletion is durable."""

    @property
    def status(self) -> LedgerStatus:
        """The status in the ledger's metadata."""
        if self.is_delete_started:
            return LedgerStatus.DELETED
        return LedgerStatus.ENDED if self.is_fenced else LedgerStatus.OPEN


class BookieWorld:
    """The run of one seed."""

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
        self.is_calm = calm
        self.crash_at = crash_at
        """Lose power at this step of the first process, in addition to the random faults."""
        self.result = BookieResult(seed)
        rng = self.simulation.random_stream("swarm")
        self.options = BookieOptions(
            journal_file_bytes=rng.choice((64, 128, 512)) * 1024,
            journal_file_bytes_min=64 * 1024,
            gather_bytes=64 * 1024,
            checkpoint_s=rng.choice((0.3, 2.0, 30.0)),
            checkpoint_bytes=rng.choice((8, 256)) * 1024,
            checkpoint_runs=rng.choice((10, 1000)),
            free_bytes_min=1 << 20,
            compaction_s=self.simulation.random_stream("room").choice((0, 0.5)),
            ledgers_in_memory_max=self.simulation.random_stream("loaded").choice((20_000, 2)),
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
        self.fault_kinds = [kind for kind in kinds if rng.random() < 0.5]
        self.payload_bytes = rng.choice((30, 500, 6000))
        self.is_data_destroyed = False
        """Whether synced data was destroyed. The bookie may then report entries as unknown."""
        self.recorded_sequence = 0
        self.is_index_damaged = False
        """Whether the index was damaged. Ledgers that are only in the index may then be in limbo."""
        self.deletion_s = self.simulation.random_stream("deletions").choice((0.0, 0.2, 1.0))
        """Mean seconds between two deletions; 0 for none."""
        self.crash_on_start_chance = self.simulation.random_stream("starts").choice((0.0, 0.0, 0.5))
        """Probability of a crash during a start, and during the removal of a journal file."""
        self.ages_index = self.simulation.random_stream("aged index").random() < 0.4
        """Whether the disk sometimes loses a write to the index in a power cut."""
        self.is_over = False
        self._ledgers: list[_Ledger] = []
        self._last_ledger = 0

    def run(self) -> BookieResult:
        """Run the seed and check its result."""
        try:
            self.simulation.run(self._main)
        except Exception as error:
            self.simulation.failures.append(error)
        result = self.result
        result.failures = self.simulation.failures
        result.virtual_s = self.simulation.main_lasted_s
        result.starts = self.bookie.state.incarnation
        result.acked = sum(ledger.acked_entries for ledger in self._ledgers)
        result.trace = self.simulation.trace
        result.trace_hash = self.simulation.trace_hash
        return result

    async def _main(self, simulation: Simulation) -> None:
        rng = simulation.random_stream("faults")
        network = SimNetwork(simulation, draw_network_faults(rng))
        self.bookie = SimHost(simulation, network, "b1", ADDRESS[0])
        disk = SimDisk(simulation, self.bookie.state, "journal", draw_disk_faults(rng))
        disk.faults.inline = simulation.random_stream("inline").random() < 0.5
        for role in ("journal", "index"):
            self.bookie.add_disk(role, disk)
        client = SimHost(simulation, network, "c1", "10.0.3.1")
        disk.watchers.append(self)
        oracles = Oracles(simulation)
        oracles.bookies.ack_quorum = 1
        oracles.add_machine(self.bookie, "bookie")
        network.taps.append(oracles)
        self._denied_ledgers = oracles.bookies.denied_ledgers
        self.bookie.start(self._serve)
        self.bookie.state.crash_after(self.crash_at, power=True)
        simulation.nursery.start_soon(self._supervise)
        client.start(self._clients)
        with trio.move_on_after(self.chaos_s):
            if self.is_calm:
                await trio.sleep(self.chaos_s)
            else:
                async with trio.open_nursery() as faults:
                    if self.ages_index:
                        faults.start_soon(self._age_index, simulation.random_stream("aged pages"))
                    await self._nemesis(simulation.random_stream("nemesis"))
        self.is_over = True
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
        with trio.move_on_after(CALM_S) as recovery_timeout:
            await done.wait()
        if self.is_data_destroyed and isinstance(self.bookie.last_end, CorruptData):
            self.result.is_start_refused = True  # correct: it reports that it must be replaced
        elif recovery_timeout.cancelled_caught:
            raise Violation(f"liveness: the bookie does not serve {CALM_S:g} s after the faults")

    # --- the bookie -------------------------------------------------------------------------------

    async def _serve(self, host: Host) -> None:
        for disk in dict.fromkeys(host.disks.values()):
            disk.lock()
        store = await open_store(
            host, self.options, bookie_id=BOOKIE_ID, recorded_sequence=self.recorded_sequence
        )
        listener = await host.listen(ADDRESS)
        hello = Hello("cluster", BOOKIE_ID, "bookie", "b1", "fdatasync")
        endpoint = Endpoint(host, lambda: hello)
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            nursery.start_soon(self._record_sequence, store)
            if self.deletion_s:
                nursery.start_soon(self._delete_ledgers, store)
            await nursery.start(
                lambda task_status: serve_bookie_protocol(
                    endpoint,
                    {"": listener},
                    store,
                    ledger_statuses=self._ledger_statuses,
                    task_status=task_status,
                )
            )

    async def _record_sequence(self, store: BookieStore) -> None:
        """Record how far the journal was synced, as the progress record in the metadata does."""
        while True:
            self.recorded_sequence = store.durable_to
            await trio.sleep(WITNESS_S)

    async def _delete_ledgers(self, store: BookieStore) -> None:
        """Delete fenced ledgers, so that whole files become empty. An unfinished deletion may be repeated."""
        rng = self.simulation.random_stream(f"deletions/{self.bookie.state.incarnation}")
        while True:
            await trio.sleep(rng.expovariate(1 / self.deletion_s))
            fenced = [ledger for ledger in self._ledgers if ledger.is_fenced]
            if fenced:
                ledger = rng.choice(fenced)
                ledger.is_delete_started = True
                self._denied_ledgers[ledger.id] = None
                await store.delete_ledger(ledger.id)
                ledger.is_deleted = True
                self.result.deletions += 1
                if rng.random() < 0.2:
                    await store.drop_tombstones(rng.randrange(self._last_ledger + 2))

    async def _ledger_statuses(self, ledger_ids: Sequence[int]) -> dict[int, LedgerStatus]:
        await trio.sleep(0.01)
        ledgers = {ledger.id: ledger for ledger in self._ledgers}
        return {ledger_id: ledgers[ledger_id].status for ledger_id in ledger_ids}

    async def _supervise(self) -> None:
        rng, deaths = (
            self.simulation.random_stream("supervisor"),
            self.simulation.random_stream("deaths"),
        )
        while True:
            await trio.sleep(rng.uniform(0.01, 0.4))
            if not self.bookie.state.running:
                self.bookie.start(self._serve)
                self._maybe_crash_soon(deaths, 40)

    def _maybe_crash_soon(self, rng: Random, steps: int) -> None:
        if not self.is_over and rng.random() < self.crash_on_start_chance:
            self.bookie.state.crash_after(rng.randrange(1, steps), power=rng.random() < 0.7)
            self.result.faults["dies again"] += 1

    def on_durable(self, disk: SimDisk, name: str, offset: int, data: bytes) -> None:
        """Ignore durable bytes; see `DiskWatcher`."""

    def on_change_started(self, disk: SimDisk, change: str, name: str) -> None:
        """Crash soon after the removal of a journal file, with some probability; see `DiskWatcher`."""
        if change == "delete" and name.startswith("journal-"):
            self._maybe_crash_soon(self.simulation.random_stream(f"removal of {name}"), 8)

    async def _nemesis(self, rng: Random) -> None:
        disk = self.bookie.devices()[0]
        network = self.bookie.network
        while True:
            await trio.sleep(rng.expovariate(1.5))
            if not self.fault_kinds:
                continue
            kind = rng.choice(self.fault_kinds)
            self.result.faults[kind] += 1
            if kind == "power cut":
                self.bookie.power_cut()
            elif kind == "kill":
                self.bookie.kill()
            elif kind == "crash point" and self.bookie.state.running:
                self.bookie.state.crash_after(rng.randrange(1, 60), power=rng.random() < 0.7)
            elif kind == "EIO":
                disk.faults.failing_syncs += 1
            elif kind == "slow disk":
                disk.stalled_until = self.simulation.now + rng.random()
            elif kind == "rot" and rng.random() < 0.5:
                self.is_data_destroyed = bool(disk.corrupt()) or self.is_data_destroyed
            elif kind == "file lost" and rng.random() < 0.3:
                self.bookie.power_cut()
                self.is_data_destroyed = bool(disk.lose_file()) or self.is_data_destroyed
            elif kind == "index damage":
                self.is_index_damaged = disk.damage_map() or self.is_index_damaged
            elif kind == "reset" and network.connections:
                network.reset(rng.choice(list(network.connections.values())))

    async def _age_index(self, rng: Random) -> None:
        """Cut the power and replace a page of the index by older content, as if the device lost a write."""
        disk = self.bookie.devices()[0]
        while True:
            await trio.sleep(rng.expovariate(0.4))
            self.bookie.power_cut()
            if disk.age_map(rng):
                self.is_index_damaged = True  # the start rebuilds it
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
        """Write one ledger after the other. After a lost connection, continue with the same ledger."""
        rng = host.random
        ledger: _Ledger | None = None
        async with trio.open_nursery() as nursery:
            while True:
                bookie = await self._dial(host, nursery)
                try:
                    while bookie.close_error is None:
                        if ledger is None or ledger.is_fenced:
                            ledger = self._new_ledger(rng)
                        await self._write_to(bookie, self._fenced_ledger(rng) or ledger, rng)
                except (DistributedLogError, trio.TooSlowError):
                    await trio.sleep(rng.random() * 0.2)
                bookie.link.close(CorruptData("the client disconnects"))

    def _new_ledger(self, rng: Random) -> _Ledger:
        self._last_ledger += 1
        ledger = _Ledger(self._last_ledger, rng.randbytes(16))
        self._ledgers.append(ledger)
        return ledger

    def _fenced_ledger(self, rng: Random) -> _Ledger | None:
        """Return a fenced ledger in a fifth of the calls, so that a fenced writer tries to continue."""
        fenced = [ledger for ledger in self._ledgers if ledger.is_fenced]
        return rng.choice(fenced) if fenced and rng.random() < 0.2 else None

    async def _write_to(self, bookie: BookieClient, ledger: _Ledger, rng: Random) -> None:
        """Write with a new stream: first resend some acknowledged entries (H10), then send new ones."""
        is_recovery = rng.random() < 0.1
        start = max(0, ledger.acked_entries - rng.randrange(0, 4))
        errors: list[DistributedLogError] = []
        progress = trio.Event()

        was_deleted = ledger.is_deleted

        def on_acked(count: int) -> None:
            if was_deleted and not self.is_data_destroyed:
                what = f"H89: ledger {ledger.id} was deleted, and accepts entries"
                self.simulation.fail(Violation(what))
            ledger.acked_entries = max(ledger.acked_entries, start + count)
            progress.set()

        def on_refused(position: int, error: DistributedLogError) -> None:
            errors.append(error)
            progress.set()

        stream = bookie.open_stream(
            ledger.id, ledger.key, recovery=is_recovery, fragment_epoch=0,
            on_acked=on_acked, on_refused=on_refused,
        )  # fmt: skip
        next_entry = start
        for _ in range(rng.randrange(1, 6)):
            for _ in range(rng.randrange(1, 8)):
                self._send(stream, ledger, next_entry, rng)
                next_entry += 1
            if rng.random() < 0.15:
                await self._send_request(bookie, ledger, rng)
            await trio.sleep(rng.expovariate(20.0))
        with trio.fail_after(TIMEOUT_S):
            while ledger.acked_entries < next_entry and not errors:
                progress = trio.Event()
                await progress.wait()
        if errors:
            raise errors[0]
        stream.close()
        if rng.random() < 0.3:
            await self._send_request(bookie, ledger, rng)

    def _send(self, stream: AddStream, ledger: _Ledger, entry: int, rng: Random) -> None:
        if entry == len(ledger.bodies):
            payload = rng.randbytes(rng.randrange(1, self.payload_bytes))
            body = encode(
                ledger.id, entry, 0, min(ledger.acked_entries, entry) - 1, (payload,), len(payload)
            )
            ledger.bodies.append(bytes(body))
        stream.send(ledger.bodies[entry])

    async def _send_request(self, bookie: BookieClient, ledger: _Ledger, rng: Random) -> None:
        choice = rng.random()
        if choice < 0.3:
            ledger.is_fenced = True
            await bookie.fence(ledger.id, ledger.key, TIMEOUT_S)
        elif choice < 0.5:
            await bookie.read_lac(ledger.id, ledger.key, TIMEOUT_S)
        elif choice < 0.6:
            await bookie.list_entries(ledger.id, ledger.key, TIMEOUT_S)
        else:
            first = rng.randrange(0, len(ledger.bodies) + 2)
            size = rng.choice((1, 1000, 1 << 20))
            await bookie.read(
                ledger.id, ledger.key, first, first + rng.randrange(0, 50), size,
                past_lac=True, timeout_s=TIMEOUT_S,
            )  # fmt: skip

    # --- the end ----------------------------------------------------------------------------------

    async def _read_back(self, host: Host) -> None:
        """Check that all acknowledged entries are readable and unchanged, or unknown after destruction."""
        next_by_ledger: dict[int, int] = {}
        async with trio.open_nursery() as nursery:
            while True:
                bookie = await self._dial(host, nursery)
                try:
                    for ledger in self._ledgers:
                        while (
                            not ledger.is_delete_started
                            and (entry := next_by_ledger.get(ledger.id, 0)) < ledger.acked_entries
                        ):
                            next_by_ledger[ledger.id] = await self._read_range(
                                bookie, ledger, entry
                            )
                    break
                except ConnectionLost:
                    continue
            nursery.cancel_scope.cancel()

    async def _read_range(self, bookie: BookieClient, ledger: _Ledger, entry: int) -> int:
        try:
            response = await bookie.read(
                ledger.id,
                ledger.key,
                entry,
                ledger.acked_entries - 1,
                1 << 20,
                past_lac=True,
                timeout_s=9.0,
            )
            read_records = list(records(response.body))
        except NoSuchLedger:
            if not ledger.is_delete_started:
                raise
            return ledger.acked_entries
        except (CorruptData, LedgerStateUnknown):
            if not self.is_data_destroyed:
                raise
            return entry + 1
        for record in read_records:
            if bytes(record.record) != ledger.bodies[record.entry]:
                raise Violation(
                    f"ledger {ledger.id} entry {record.entry} was returned with other bytes"
                )
        expected = list(range(entry, response.complete_to + 1))
        if not response.proves_absence and not self.is_data_destroyed and not self.is_index_damaged:
            raise Violation(f"H3: ledger {ledger.id} is in limbo, although no data was destroyed")
        if [record.entry for record in read_records] != expected and not (
            self.is_data_destroyed and not response.proves_absence
        ):
            raise Violation(
                f"ledger {ledger.id}: requested {entry} to {ledger.acked_entries - 1}, received"
                f" {[record.entry for record in read_records]} complete to {response.complete_to}"
            )
        return (
            max(entry + 1, response.complete_to + 1)
            if self.is_data_destroyed
            else response.complete_to + 1
        )
