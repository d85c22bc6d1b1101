"""Inject random faults, chosen by the seed, within the limits of the guarantees.

Three loops inject faults at random times, and `targeted_faults.py` at given protocol states. The loops run
concurrently, because some failures need two faults at once, such as a partition during a crash. Each seed
chooses its own mix of fault kinds (swarm testing).

Synced data is destroyed on one bookie only, the lossy one, and on no metadata node. G3 permits this loss on
fewer bookies than the ack quorum, which is 2 or 3 here. Power cuts, kills, failed syncs and full disks may
affect any node, also all at once, because synced data survives them.

To add a fault, add its name to the ``…_KINDS`` of its loop and its method to the table in
`Nemesis._inject_faults`. A fault that is also injected at protocol states needs an entry in
`targeted_faults.py`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import trio

from ....runtime.interfaces.errors import CorruptData
from ..world.sim_cluster import SimCluster

MACHINE_KINDS = (
    "power cut", "kill", "crash point", "all crash", "stall", "swap addresses", "client crash",
)  # fmt: skip
NETWORK_KINDS = ("partition", "one way", "links", "cut off", "reset", "half open", "refuse")
DISK_KINDS = (
    "slow disk", "EIO", "rot", "lose blocks", "full disk", "clock", "index damage", "wipe",
)  # fmt: skip
FULL_LEAVES_BYTES = 64 * 1024
REFUSALS = 5
"""A bookie with damaged disks is replaced after this many failed starts, checked once per second."""


class Nemesis:
    """The faults of one run."""

    def __init__(self, cluster: SimCluster, rng: Random, *, writers: Sequence[str]) -> None:
        self.cluster = cluster
        self.counts: Counter[str] = Counter()
        self._rng = rng
        self._writers = list(writers)
        self.lossy_bookie = rng.choice(cluster.bookies)
        """The one bookie whose synced data may be destroyed."""
        self.kinds = [
            kind for kind in (*MACHINE_KINDS, *NETWORK_KINDS, *DISK_KINDS) if rng.random() < 0.55
        ]
        self.is_over = False
        """Whether the cluster is healed. Restarts that were scheduled earlier are then skipped."""
        self._is_wiped = False
        self._pause_s = rng.choice((3.0, 5.0, 9.0))

    def start(self, nursery: trio.Nursery) -> None:
        """Inject faults until cancelled."""
        for number, kinds in enumerate((MACHINE_KINDS, NETWORK_KINDS, DISK_KINDS)):
            chosen_kinds = [kind for kind in kinds if kind in self.kinds]
            if chosen_kinds:
                rng = self.cluster.simulation.random_stream(f"nemesis/{number}")
                nursery.start_soon(self._inject_faults, chosen_kinds, rng)

    async def _inject_faults(self, kinds: list[str], rng: Random) -> None:
        fault_functions: dict[str, Callable[[Random], None]] = {
            "power cut": self._power_cut,
            "kill": self._kill,
            "crash point": self._crash_point,
            "all crash": self._all_crash,
            "stall": self._stall,
            "swap addresses": self._swap_addresses,
            "client crash": self._client_crash,
            "partition": self._partition,
            "one way": self._one_way,
            "links": self._links,
            "cut off": self._cut_off,
            "reset": self._reset,
            "half open": self._half_open,
            "refuse": self._refuse,
            "slow disk": self._slow_disk,
            "EIO": self._fail_syncs,
            "rot": self._corrupt,
            "lose blocks": self.lose_blocks,
            "full disk": self._full_disk,
            "clock": self._clock,
            "index damage": self._damage_index,
            "wipe": self.wipe_once,
        }
        while True:
            await trio.sleep(rng.expovariate(1.0 / self._pause_s))
            kind = rng.choice(kinds)
            self.counts[kind] += 1
            fault_functions[kind](rng)

    # --- machines ---------------------------------------------------------------------------------

    def restart_later(self, rng: Random, names: Sequence[str]) -> None:
        """Restart these machines after a random time. A client process starts from its beginning."""

        def on() -> None:
            for name in names:
                if not self.cluster.machines[name].state.running and not self.is_over:
                    if name in self.cluster.clients:
                        self.cluster.restart_client(name)
                    else:
                        self.cluster.start(name)

        self.cluster.simulation.call_after(rng.choice((0.05, 0.5, 2.0, 8.0)) * rng.random(), on)

    def _power_cut(self, rng: Random) -> None:
        name = rng.choice(self.cluster.nodes)
        self.cluster.machines[name].power_cut()
        self.restart_later(rng, [name])

    def _kill(self, rng: Random) -> None:
        name = rng.choice(self.cluster.nodes)
        self.cluster.machines[name].kill()
        self.restart_later(rng, [name])

    def _crash_point(self, rng: Random) -> None:
        """Crash a node, mostly a bookie, at one of its next disk or network steps."""
        name = rng.choice(self.cluster.nodes + self.cluster.bookies)
        self.crash_soon(rng, name, rng.randrange(1, 60), power=rng.random() < 0.7)

    def crash_soon(self, rng: Random, name: str, steps: int, *, power: bool) -> None:
        """Crash a machine at its ``steps``-th disk or network step, or after 2 s, and restart it later."""
        host = self.cluster.machines[name]
        host.state.crash_after(steps, power=power)
        incarnation = host.state.incarnation

        def restart_after_crash() -> None:
            if self.is_over:
                return
            if host.state.running and host.state.incarnation == incarnation:
                host.kill()  # too idle to reach the step
            self.restart_later(rng, [name])

        self.cluster.simulation.call_after(2.0, restart_after_crash)

    def _all_crash(self, rng: Random) -> None:
        """Cut the power of all bookies, of all metadata nodes or of all nodes at once."""
        cluster = self.cluster
        names = rng.choice((cluster.bookies, cluster.metadata, cluster.nodes))
        for name in names:
            cluster.machines[name].power_cut()
        for name in names:
            self.restart_later(rng, [name])

    def _stall(self, rng: Random) -> None:
        name = rng.choice(self.cluster.nodes + self._writers)
        self.cluster.machines[name].stall(rng.choice((0.2, 1.0, 4.0, 10.0)) * rng.random())

    def _swap_addresses(self, rng: Random) -> None:
        first, second = rng.sample(self.cluster.bookies, 2)
        for name in (first, second):
            self.cluster.machines[name].kill()
        self.cluster.swap_addresses(first, second)
        self.restart_later(rng, [first, second])

    def _client_crash(self, rng: Random) -> None:
        name = rng.choice(self._writers)
        self.cluster.machines[name].kill()
        self.restart_later(rng, [name])

    # --- network ----------------------------------------------------------------------------------

    def cut(self, rng: Random, pairs: list[tuple[str, str]], mended_after_s: float = 0.0) -> None:
        """Cut these directions for ``mended_after_s`` seconds, or for a random time if it is 0."""
        network = self.cluster.network
        fresh = [pair for pair in pairs if not network.is_cut(*pair)]
        for source, target in fresh:
            network.cut(source, target)
        self.cluster.simulation.record_event("cut", *(f"{a}>{b}" for a, b in fresh))
        mended_after_s = mended_after_s or rng.choice((0.5, 3.0, 8.0)) * rng.random()
        self.cluster.simulation.call_after(mended_after_s, network.reconnect, fresh)

    def _partition(self, rng: Random) -> None:
        names = list(self.cluster.machines)
        side = rng.sample(names, rng.randrange(1, len(names) // 2))
        other_nodes = [name for name in names if name not in side]
        self.cut(rng, [pair for a in side for b in other_nodes for pair in ((a, b), (b, a))])

    def _one_way(self, rng: Random) -> None:
        names = list(self.cluster.machines)
        side = rng.sample(names, rng.randrange(1, 4))
        other_nodes = [name for name in names if name not in side]
        if rng.random() < 0.5:
            side, other_nodes = other_nodes, side
        self.cut(rng, [(a, b) for a in side for b in other_nodes])

    def _links(self, rng: Random) -> None:
        """Cut single directions, mostly between clients and bookies, as in a partial partition."""
        names = list(self.cluster.machines)
        pairs = []
        for _ in range(rng.randrange(1, 5)):
            source = rng.choice(self._writers if rng.random() < 0.5 else names)
            target = rng.choice(self.cluster.bookies if rng.random() < 0.6 else names)
            if source != target:
                pairs.append((source, target) if rng.random() < 0.6 else (target, source))
        self.cut(rng, list(dict.fromkeys(pairs)))

    def _cut_off(self, rng: Random) -> None:
        """Cut a writer off from all bookies, but not from the metadata nodes, so that adds stay pending."""
        writer = rng.choice(self._writers)
        pairs = [(writer, bookie) for bookie in self.cluster.bookies]
        if rng.random() < 0.7:
            pairs += [(bookie, writer) for _, bookie in pairs]
        self.cut(rng, pairs, mended_after_s=rng.uniform(1.0, 8.0))

    def _reset(self, rng: Random) -> None:
        network = self.cluster.network
        for end in rng.sample(list(network.connections.values()), min(3, len(network.connections))):
            network.reset(end)

    def _half_open(self, rng: Random) -> None:
        network = self.cluster.network
        if network.connections:
            network.make_half_open(rng.choice(list(network.connections.values())))

    def _refuse(self, rng: Random) -> None:
        network = self.cluster.network
        name = rng.choice(self.cluster.nodes)
        network.refusing_machines[name] = None
        self.cluster.simulation.call_after(
            rng.uniform(0.1, 4.0), lambda: network.refusing_machines.pop(name, None)
        )

    # --- disks and clocks -------------------------------------------------------------------------

    def _slow_disk(self, rng: Random) -> None:
        host = self.cluster.machines[rng.choice(self.cluster.storage)]
        for disk in host.devices():
            until = self.cluster.simulation.now + rng.choice((0.3, 2.0, 6.0)) * rng.random()
            disk.stalled_until = until
            self.cluster.simulation.record_event("slow disk", host.name, f"{until:.3f}")

    def _fail_syncs(self, rng: Random) -> None:
        host = self.cluster.machines[rng.choice(self.cluster.storage)]
        disk = rng.choice([host.devices()[0], *host.devices()])
        disk.faults.failing_syncs += 1

    def _corrupt(self, rng: Random) -> None:
        """Corrupt several ranges of the journal at once, because most of a disk is not read again."""
        if self._is_wiped:
            return  # the wiped data is lost already, and the guarantees permit no further loss
        self._lose_data()
        for _ in range(rng.choice((1, 5, 20))):
            self.cluster.machines[self.lossy_bookie].disks["journal"].corrupt()

    def lose_blocks(self, rng: Random) -> None:
        """Corrupt the newest part of the journal, without the last syncs, during a power cut.

        The bookie cannot prove afterwards that it has all entries of its ledgers: it starts in the limbo
        state.
        """
        if self._is_wiped:
            return
        host = self.cluster.machines[self.lossy_bookie]
        self._lose_data()
        host.power_cut()
        for _ in range(rng.choice((1, 1, 3))):
            host.disks["journal"].corrupt(in_newest=True)
        self.restart_later(rng, [self.lossy_bookie])

    def _damage_index(self, rng: Random) -> None:
        """Damage the index: the next start finds wrong checksums, or pairs of different ages."""
        if self._is_wiped:
            return
        host = self.cluster.machines[self.lossy_bookie]
        self._lose_data()
        aging = self.cluster.simulation.random_stream(f"aged index/{self.counts['index damage']}")
        if aging.random() < 0.5:
            host.disks["index"].damage_map()
            return
        host.power_cut()
        host.disks["index"].age_map(aging)
        self.restart_later(aging, [self.lossy_bookie])

    def _lose_data(self) -> None:
        self.cluster.oracles.bookies.lossy_bookies[self.lossy_bookie] = None

    def wipe_once(self, rng: Random) -> None:
        """Wipe the lossy bookie, once per run. It restarts on the empty disks with a new bookie ID (H6).

        A second wipe would exceed the guarantees, because one ensemble may contain both earlier bookies.
        """
        if not self._is_wiped:
            self.wipe()
            self.restart_later(rng, [self.lossy_bookie])

    def wipe(self) -> None:
        """Empty the disks of the lossy bookie, without a restart."""
        self._is_wiped = True
        host = self.cluster.machines[self.lossy_bookie]
        host.power_cut()
        for disk in host.devices():
            disk.wipe()
        self.cluster.oracles.bookies.forget(host.name)

    async def replace_damaged(self) -> None:
        """Replace the lossy bookie if it rejects its damaged disks (docs/operate/replace-bookie.md)."""
        host, refused_starts = self.cluster.machines[self.lossy_bookie], 0
        while not self._is_wiped:
            await trio.sleep(1.0)
            is_refusing = (
                isinstance(host.last_end, CorruptData) and not self.cluster.ready[host.name]
            )
            refused_starts = refused_starts + 1 if is_refusing else 0
            if refused_starts == REFUSALS:
                self.wipe()
                self.cluster.start(host.name)

    def _full_disk(self, rng: Random) -> None:
        host = self.cluster.machines[rng.choice(self.cluster.bookies)]
        disk = host.disks[rng.choice(("journal", "journal", "index"))]
        disk.faults.bytes_max = disk.used_bytes() + rng.choice((0, FULL_LEAVES_BYTES))
        disk.is_fault_injected = True

        def empty() -> None:
            disk.faults.bytes_max = self.cluster.shape.disk_bytes

        self.cluster.simulation.record_event("full disk", host.name, disk.name)
        self.cluster.simulation.call_after(rng.uniform(0.5, 8.0), empty)

    def _clock(self, rng: Random) -> None:
        host = self.cluster.machines[rng.choice(list(self.cluster.machines))]
        host.jump_clock(rng.choice((-3_600_000, -1000, 1000, 60_000, 3_600_000, 400 * 86_400_000)))
