"""Faults from a seed, within the promise: three loops and ambushes, so that faults overlap freely.

With one fault at a time, faults that need two (a partition around a crash) are never met. Each seed draws
its own mix of kinds (swarm testing). The loops strike at random times, `targeted_faults.py` at moments.

The fault atlas: data that was synced is destroyed on one bookie, the ``rotten`` one (G3: on fewer than the
ack quorum, which is 2 or 3 here), and on no metadata node. Power cuts, kills, failed syncs and full disks
may hit any, and all at once: what was synced survives them.

A new fault is a name in the ``…_KINDS`` of its loop and a method that `Nemesis._loop` knows it by; what is
to strike at moments as well is a deed of `targeted_faults.py`.
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
"""Seconds in which a bookie refuses its disks before its operator believes it."""


class Nemesis:
    """What goes wrong in one run."""

    def __init__(self, cluster: SimCluster, chance: Random, *, writers: Sequence[str]) -> None:
        self.cluster = cluster
        self.counts: Counter[str] = Counter()
        self._chance = chance
        self._writers = list(writers)
        self.rotten = chance.choice(cluster.bookies)
        """The one bookie whose synced data may be destroyed."""
        self.kinds = [
            kind for kind in (*MACHINE_KINDS, *NETWORK_KINDS, *DISK_KINDS) if chance.random() < 0.55
        ]
        self.over = False
        """The cluster is healed: what was to be restarted later is not this object's business any more."""
        self._wiped = False
        self._pause_s = chance.choice((3.0, 5.0, 9.0))

    def start(self, nursery: trio.Nursery) -> None:
        """Plague the cluster until cancelled."""
        for number, kinds in enumerate((MACHINE_KINDS, NETWORK_KINDS, DISK_KINDS)):
            drawn = [kind for kind in kinds if kind in self.kinds]
            if drawn:
                chance = self.cluster.simulation.chance(f"nemesis/{number}")
                nursery.start_soon(self._loop, drawn, chance)

    async def _loop(self, kinds: list[str], chance: Random) -> None:
        deeds: dict[str, Callable[[Random], None]] = {
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
            "rot": self._rot,
            "lose blocks": self.lose_blocks,
            "full disk": self._full_disk,
            "clock": self._clock,
            "index damage": self._damage_index,
            "wipe": self.wipe_once,
        }
        while True:
            await trio.sleep(chance.expovariate(1.0 / self._pause_s))
            kind = chance.choice(kinds)
            self.counts[kind] += 1
            deeds[kind](chance)

    # --- machines ---------------------------------------------------------------------------------

    def later_on(self, chance: Random, names: Sequence[str]) -> None:
        """Power these on again after a while; a client's process starts anew."""

        def on() -> None:
            for name in names:
                if not self.cluster.machines[name].state.running and not self.over:
                    if name in self.cluster.clients:
                        self.cluster.restart_client(name)
                    else:
                        self.cluster.start(name)

        self.cluster.simulation.after(chance.choice((0.05, 0.5, 2.0, 8.0)) * chance.random(), on)

    def _power_cut(self, chance: Random) -> None:
        name = chance.choice(self.cluster.nodes)
        self.cluster.machines[name].power_cut()
        self.later_on(chance, [name])

    def _kill(self, chance: Random) -> None:
        name = chance.choice(self.cluster.nodes)
        self.cluster.machines[name].kill()
        self.later_on(chance, [name])

    def _crash_point(self, chance: Random) -> None:
        """Die at some disk or network step, mostly of a bookie: between two lines of its code."""
        name = chance.choice(self.cluster.nodes + self.cluster.bookies)
        self.crash_soon(chance, name, chance.randrange(1, 60), power=chance.random() < 0.7)

    def crash_soon(self, chance: Random, name: str, steps: int, *, power: bool) -> None:
        """Have a machine die at a step of its disk or network, within 2 s at the latest."""
        host = self.cluster.machines[name]
        host.state.crash_after(steps, power=power)
        lives = host.state.incarnation

        def look() -> None:
            if self.over:
                return
            if host.state.running and host.state.incarnation == lives:
                host.kill()  # too idle to get there
            self.later_on(chance, [name])

        self.cluster.simulation.after(2.0, look)

    def _all_crash(self, chance: Random) -> None:
        """A coordinated power cut: of all bookies, of all metadata nodes, of everything."""
        cluster = self.cluster
        names = chance.choice((cluster.bookies, cluster.metadata, cluster.nodes))
        for name in names:
            cluster.machines[name].power_cut()
        for name in names:
            self.later_on(chance, [name])

    def _stall(self, chance: Random) -> None:
        name = chance.choice(self.cluster.nodes + self._writers)
        self.cluster.machines[name].stall(chance.choice((0.2, 1.0, 4.0, 10.0)) * chance.random())

    def _swap_addresses(self, chance: Random) -> None:
        one, other = chance.sample(self.cluster.bookies, 2)
        for name in (one, other):
            self.cluster.machines[name].kill()
        self.cluster.swap_addresses(one, other)
        self.later_on(chance, [one, other])

    def _client_crash(self, chance: Random) -> None:
        name = chance.choice(self._writers)
        self.cluster.machines[name].kill()
        self.later_on(chance, [name])

    # --- network ----------------------------------------------------------------------------------

    def cut(
        self, chance: Random, pairs: list[tuple[str, str]], mended_after_s: float = 0.0
    ) -> None:
        """Cut these directions, for a drawn time if none is given."""
        network = self.cluster.network
        fresh = [pair for pair in pairs if not network.is_cut(*pair)]
        for source, target in fresh:
            network.cut(source, target)
        self.cluster.simulation.note("cut", *(f"{a}>{b}" for a, b in fresh))
        mended_after_s = mended_after_s or chance.choice((0.5, 3.0, 8.0)) * chance.random()
        self.cluster.simulation.after(mended_after_s, network.mend, fresh)

    def _partition(self, chance: Random) -> None:
        names = list(self.cluster.machines)
        side = chance.sample(names, chance.randrange(1, len(names) // 2))
        rest = [name for name in names if name not in side]
        self.cut(chance, [pair for a in side for b in rest for pair in ((a, b), (b, a))])

    def _one_way(self, chance: Random) -> None:
        names = list(self.cluster.machines)
        side = chance.sample(names, chance.randrange(1, 4))
        rest = [name for name in names if name not in side]
        if chance.random() < 0.5:
            side, rest = rest, side
        self.cut(chance, [(a, b) for a in side for b in rest])

    def _links(self, chance: Random) -> None:
        """Single directed links, mostly between clients and bookies: what partial partitions are."""
        names = list(self.cluster.machines)
        pairs = []
        for _ in range(chance.randrange(1, 5)):
            source = chance.choice(self._writers if chance.random() < 0.5 else names)
            target = chance.choice(self.cluster.bookies if chance.random() < 0.6 else names)
            if source != target:
                pairs.append((source, target) if chance.random() < 0.6 else (target, source))
        self.cut(chance, list(dict.fromkeys(pairs)))

    def _cut_off(self, chance: Random) -> None:
        """A writer from all bookies, and not from the metadata: what it has in flight ends nowhere."""
        writer = chance.choice(self._writers)
        pairs = [(writer, bookie) for bookie in self.cluster.bookies]
        if chance.random() < 0.7:
            pairs += [(bookie, writer) for _, bookie in pairs]
        self.cut(chance, pairs, mended_after_s=chance.uniform(1.0, 8.0))

    def _reset(self, chance: Random) -> None:
        network = self.cluster.network
        for end in chance.sample(list(network.ends.values()), min(3, len(network.ends))):
            network.reset(end)

    def _half_open(self, chance: Random) -> None:
        network = self.cluster.network
        if network.ends:
            network.lose(chance.choice(list(network.ends.values())))

    def _refuse(self, chance: Random) -> None:
        network = self.cluster.network
        name = chance.choice(self.cluster.nodes)
        network.refusing[name] = None
        self.cluster.simulation.after(
            chance.uniform(0.1, 4.0), lambda: network.refusing.pop(name, None)
        )

    # --- disks and clocks -------------------------------------------------------------------------

    def _slow_disk(self, chance: Random) -> None:
        host = self.cluster.machines[chance.choice(self.cluster.storage)]
        for disk in host.devices():
            until = self.cluster.simulation.now + chance.choice((0.3, 2.0, 6.0)) * chance.random()
            disk.stalled_until = until
            self.cluster.simulation.note("slow disk", host.name, f"{until:.3f}")

    def _fail_syncs(self, chance: Random) -> None:
        host = self.cluster.machines[chance.choice(self.cluster.storage)]
        disk = chance.choice([host.devices()[0], *host.devices()])
        disk.faults.failing_syncs += 1

    def _rot(self, chance: Random) -> None:
        """Several places at once: most of a disk is not read again."""
        if self._wiped:
            return  # what it held before it was wiped is lost already: that is all that may be
        self._lose_data()
        for _ in range(chance.choice((1, 5, 20))):
            self.cluster.machines[self.rotten].disks["journal"].rot()

    def lose_blocks(self, chance: Random) -> None:
        """The newest of the journal, but for its last syncs, is not there after a power cut: limbo."""
        if self._wiped:
            return
        host = self.cluster.machines[self.rotten]
        self._lose_data()
        host.power_cut()
        for _ in range(chance.choice((1, 1, 3))):
            host.disks["journal"].rot(newest=True)
        self.later_on(chance, [self.rotten])

    def _damage_index(self, chance: Random) -> None:
        """Seen at the next start, that its digests do not fit or that its pairs are not of one moment."""
        if self._wiped:
            return
        host = self.cluster.machines[self.rotten]
        self._lose_data()
        aging = self.cluster.simulation.chance(f"aged index/{self.counts['index damage']}")
        if aging.random() < 0.5:
            host.disks["index"].damage_map()
            return
        host.power_cut()
        host.disks["index"].age_map(aging)
        self.later_on(aging, [self.rotten])

    def _lose_data(self) -> None:
        self.cluster.oracles.bookies.lossy[self.rotten] = None

    def wipe_once(self, chance: Random) -> None:
        """Once a run: the bookie that starts on the emptied disks is another one, of a new id (H6).

        Twice would be beyond the promise: an ensemble may name both of the machine's earlier bookies.
        """
        if not self._wiped:
            self.wipe()
            self.later_on(chance, [self.rotten])

    def wipe(self) -> None:
        """Empty the disks of the one bookie, and let it be."""
        self._wiped = True
        host = self.cluster.machines[self.rotten]
        host.power_cut()
        for disk in host.devices():
            disk.wipe()
        self.cluster.oracles.bookies.forget(host.name)

    async def build_anew(self) -> None:
        """Replace a bookie that refuses its damaged disks (docs/operate/replace-bookie.md)."""
        host, refused = self.cluster.machines[self.rotten], 0
        while not self._wiped:
            await trio.sleep(1.0)
            dead = isinstance(host.last_end, CorruptData) and not self.cluster.ready[host.name]
            refused = refused + 1 if dead else 0
            if refused == REFUSALS:
                self.wipe()
                self.cluster.start(host.name)

    def _full_disk(self, chance: Random) -> None:
        host = self.cluster.machines[chance.choice(self.cluster.bookies)]
        disk = host.disks[chance.choice(("journal", "journal", "index"))]
        disk.faults.bytes_max = disk.used_bytes() + chance.choice((0, FULL_LEAVES_BYTES))
        disk.blamed = True

        def empty() -> None:
            disk.faults.bytes_max = self.cluster.shape.disk_bytes

        self.cluster.simulation.note("full disk", host.name, disk.name)
        self.cluster.simulation.after(chance.uniform(0.5, 8.0), empty)

    def _clock(self, chance: Random) -> None:
        host = self.cluster.machines[chance.choice(list(self.cluster.machines))]
        host.jump_clock(
            chance.choice((-3_600_000, -1000, 1000, 60_000, 3_600_000, 400 * 86_400_000))
        )
