"""The ledger protocol in a seeded world without tasks: cores, model bookies, one heap of events.

A writer, tailing readers and several recoverers meet on one ledger while links delay, stall and break,
bookies stop, hang, turn read-only, lose their memory of what they lost (limbo) or rot, and the metadata
store freezes or loses its answers. The cores are the product's own (`add_window`, `ensemble_change`,
`recovery`, `streams`); what is here are the drivers and the oracles. After the faults everything heals and
the ledger must close. Thousands of seeds a minute; `pytest` runs DLOG_LEDGER_SEEDS of them.
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
    """How much happens in one seed."""

    entries_max: int = 24
    recoverers: int = 3
    readers: int = 1
    faults: tuple[str, ...] = tuple(FAULTS)
    """What may happen, drawn evenly; a kind named twice is twice as likely."""
    horizon_s: float = 4.0
    """Faults end here; then all heals."""
    deadline_s: float = 60.0


class World:
    """One seed's run."""

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
        self.random.randrange(3)  # drawn for nothing: without it every seed is another run
        self.busy_share = self.random.choice([0.0, 0.1, 0.3])
        """How often a bookie refuses a fence as too busy."""
        kinds = dict.fromkeys(options.faults)
        chosen_kinds = tuple(kind for kind in kinds if self.random.random() < 0.35)
        self.faults = (
            chosen_kinds if chosen_kinds and self.random.random() < 0.6 else options.faults
        )
        """What may happen in this seed: mostly a few kinds, each often (swarm testing)."""
        self.writer = SimWriter(self.net, self.oracles, options.entries_max)
        self.readers = [
            SimReader(self.net, self.oracles, f"reader{n}", options.horizon_s + 2.0)
            for n in range(options.readers)
        ]
        self.recoverers: list[SimRecoverer] = []

    # --- a run ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises `LedgerViolation` (or a core's own assert) when anything is wrong."""
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
        """Start one more recoverer."""
        recoverer = SimRecoverer(self.net, self.oracles, name, self.busy_share)
        self.recoverers.append(recoverer)
        recoverer.begin()

    def _inject_fault(self) -> None:
        rng = self.random
        bookie = self.net.bookies[rng.choice(sorted(self.net.bookies))]
        kind = rng.choice(self.faults)
        self.net.note(f"fault {kind} {bookie.id}")
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
            # A disk is lost: within the promise while it is one, and the bookie says so (inv. 22).
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
        self.net.note("heal")
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
        """Limbo and rot end by copying from the others, as repair does."""
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
    """Run one seed; raise `LedgerViolation` or AssertionError with the trace in its notes."""
    world = World(seed, options)
    try:
        world.run()
    except AssertionError as error:
        error.add_note(f"seed {seed}\n" + "\n".join(world.net.trace[-60:]))
        raise
    return world
