"""The ledger protocol in a seeded world without tasks: the product's cores, model bookies, one event heap.

A writer, tailing readers and several recoverers use one ledger. Links delay, stall and break. Bookies stop,
hang, become read-only, lose entries (limbo state) or corrupt them. The metadata store freezes or loses
answers. The cores are the product's code (`PendingAdds`, `EnsembleChange`, `LedgerRecovery`, `SlotStreams`).
This package adds only drivers and oracles. After the faults everything is repaired, and the ledger must
close.
One process runs thousands of seeds per minute. The test suite runs DLOG_LEDGER_SEEDS of them.
"""

from dataclasses import dataclass
from functools import partial
from random import Random

from ....ledger.model.ledger_metadata import Fragment, LedgerMetadata
from .ledger_actors import SimReader, SimWriter
from .ledger_network import KEY, LEDGER, NEVER, LedgerNet, SimBookie
from .ledger_oracles import LedgerOracles
from .ledger_recoverer import SimRecoverer

FAULTS = [
    "stop",
    "stop",
    "break",
    "break",
    "break",
    "hang",
    "cut",
    "read_only",
    "freeze",
    "limbo",
    "rot",
    "lose",
]


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """The size of one seed."""

    entries_max: int = 24
    recoverers: int = 3
    readers: int = 1
    faults: tuple[str, ...] = tuple(FAULTS)
    """The kinds of faults, chosen with equal probability. A kind that is listed twice is twice as likely."""
    horizon_s: float = 4.0
    """When all faults end, in virtual seconds."""
    deadline_s: float = 60.0


class World:
    """The run of one seed."""

    def __init__(self, seed: int, options: WorldOptions = WorldOptions()) -> None:
        self.random = Random(seed)
        self.options = options
        quorum_sizes = self.random.choice(
            [(3, 3, 2)] * 4 + [(4, 3, 2), (5, 3, 2), (3, 2, 2), (3, 3, 3), (2, 2, 1)]
        )
        ensemble_size = quorum_sizes[0]
        self.net = LedgerNet(self.random, ensemble_size + self.random.choice([0, 1, 1, 2]))
        ensemble = self.random.sample(sorted(self.net.bookies), ensemble_size)
        metadata = LedgerMetadata(
            ledger_id=LEDGER,
            ensemble_size=quorum_sizes[0],
            write_quorum=quorum_sizes[1],
            ack_quorum=quorum_sizes[2],
            ensembles=(Fragment(0, tuple(ensemble), 0),),
            key=KEY,
        )
        self.oracles = LedgerOracles(self.net, metadata)
        self.random.randrange(3)  # unused draw, kept so that each seed stays the same run
        self.busy_share = self.random.choice([0.0, 0.1, 0.3])
        """Share of fence requests that a bookie rejects as too busy."""
        kinds = dict.fromkeys(options.faults)
        chosen_kinds = tuple(kind for kind in kinds if self.random.random() < 0.35)
        self.faults = (
            chosen_kinds if chosen_kinds and self.random.random() < 0.6 else options.faults
        )
        """The fault kinds of this seed: mostly a few kinds, each often (swarm testing)."""
        self.writer = SimWriter(self.net, self.oracles, options.entries_max)
        self.readers = [
            SimReader(self.net, self.oracles, f"reader{n}", options.horizon_s + 2.0)
            for n in range(options.readers)
        ]
        self.recoverers: list[SimRecoverer] = []

    # --- a run ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the seed. Raises `LedgerViolation`, or an AssertionError of a core, if a rule is broken."""
        rng, options = self.random, self.options
        self.net.call_after(0.0, self.writer.start)
        for reader in self.readers:
            self.net.call_after(rng.random() * 0.2, reader.poll)
        for n in range(options.recoverers):
            start_s = 0.02 + rng.random() * 2.5
            self.net.call_after(start_s, partial(self.recover, f"recoverer{n}"))
        if options.faults:
            for _ in range(rng.choice([0, 1, 2, 4, 6, 8])):
                self.net.call_after(rng.random() * 2.5, self._inject_fault)
        self.net.call_after(options.horizon_s, self._heal)
        self.net.run_until(options.deadline_s, self._is_done)
        self.oracles.final_check("; ".join(str(r.error) for r in self.recoverers if r.error))

    def _is_done(self) -> bool:
        net = self.net
        return (
            self.oracles.closed_metadata is not None
            and net.healed
            and net.now > self.options.horizon_s + 1.0
        )

    def recover(self, name: str) -> None:
        """Start another recoverer."""
        recoverer = SimRecoverer(self.net, self.oracles, name, self.busy_share)
        self.recoverers.append(recoverer)
        recoverer.begin()

    def _inject_fault(self) -> None:
        rng = self.random
        bookie = self.net.bookies[rng.choice(sorted(self.net.bookies))]
        kind = rng.choice(self.faults)
        self.net.record_event(f"fault {kind} {bookie.id}")
        if kind == "stop":
            self.net.stop(bookie, rng.random() * 1.5)
        elif kind == "break":
            for link in list(self.net.links.values()):
                if link.bookie is bookie and rng.random() < 0.7:
                    link.break_(rng.choice([0.0, 0.01, NEVER]))
        elif kind == "hang":
            bookie.hung_until = self.net.now + rng.random() * 2.0
        elif kind == "cut":
            name = rng.choice(["writer", "recoverer0", "recoverer1", "recoverer2"])
            bookie.cut_off_until[name] = self.net.now + rng.random() * 2.0
            cut_link = self.net.links.get((name, bookie.id))
            if cut_link is not None:
                cut_link.break_(rng.choice([0.0, NEVER]))
        elif kind == "read_only":
            bookie.model.read_only = True
        elif kind == "freeze":
            self.oracles.store.frozen_until = self.net.now + rng.random() * 1.5
        elif kind == "lose":
            self.oracles.store.lose_replies = True
        elif kind == "limbo":
            # Losing one disk is within the guarantees, and the bookie reports the limbo state (inv. 22).
            if self.oracles.striping.ack_quorum > 1 and not any(
                b.damaged for b in self.net.bookies.values()
            ):
                bookie.damaged = True
                ledger = bookie.model.ledger(LEDGER, KEY)
                ledger.limbo, ledger.fenced = True, True
                for entry in list(ledger.entries):
                    if rng.random() < 0.5:
                        del ledger.entries[entry]
        elif kind == "rot" and (
            self.oracles.striping.ack_quorum > 1
            and not any(b.damaged for b in self.net.bookies.values())
        ):
            bookie.damaged = True
            ledger = bookie.model.ledger(LEDGER, KEY)
            ledger.damaged.update(e for e in ledger.entries if rng.random() < 0.5)

    def _heal(self) -> None:
        self.net.record_event("heal")
        self.net.healed = True
        self.oracles.store.frozen_until = 0.0
        self.oracles.store.lose_replies = False
        for bookie in self.net.bookies.values():
            bookie.hung_until = 0.0
            bookie.down = False
            bookie.cut_off_until.clear()
            bookie.model.read_only = False
            if bookie.damaged:
                self._repair(bookie)
        self.net.call_after(3.0, lambda: self.recover("last"))

    def _repair(self, bookie: SimBookie) -> None:
        """Copy missing entries from other bookies, as repair does, and end limbo state and corruption."""
        damaged = bookie.model.ledger(LEDGER, KEY)
        for other in self.net.bookies.values():
            for entry, record in other.model.ledger(LEDGER, KEY).entries.items():
                if (
                    other is not bookie
                    and entry not in damaged.entries
                    and self._holds(bookie.id, entry)
                ):
                    damaged.entries[entry] = record
        damaged.limbo = False
        damaged.damaged.clear()

    def _holds(self, bookie_id: str, entry: int) -> bool:
        fragment = self.oracles.store.value.fragment_of(entry)
        return any(fragment.bookies[s] == bookie_id for s in self.oracles.striping.write_set(entry))


def run_seed(seed: int, options: WorldOptions = WorldOptions()) -> World:
    """Run one seed. Its error, a `LedgerViolation` or AssertionError, has the trace in its notes."""
    world = World(seed, options)
    try:
        world.run()
    except AssertionError as error:
        error.add_note(f"seed {seed}\n" + "\n".join(world.net.trace[-60:]))
        raise
    return world
