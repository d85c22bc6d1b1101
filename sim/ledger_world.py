"""The ledger protocol in a seeded world without tasks: cores, model bookies, one heap of events.

A writer, tailing readers and several recoverers meet on one ledger while links delay, stall and break,
bookies stop, hang, turn read-only, lose their memory of what they lost (limbo) or rot, and the metadata
store freezes or loses its answers. The cores are the product's own (`add_window`, `ensemble_change`,
`recovery`, `streams`); what is here are the drivers and the oracles. After the faults everything heals and
the ledger must close. Thousands of seeds a minute; `pytest` runs DLOG_LEDGER_SEEDS of them.

Oracles, at every step: an entry is acked only when Qa bookies of the *stored* ensemble have it (inv. 4, 7,
8); at the close and after: no acked or delivered entry lies beyond the end (inv. 16, 20, D18), every entry
has Qa copies in its recorded fragment (inv. 20), what recovery saw it kept (inv. 17), no bookie's LAC is
beyond the end (inv. 5).
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ..ledger.metadata import Fragment, LedgerMetadata
from ..ledger.striping import Striping
from .ledger_actors import SimReader, SimWriter
from .ledger_model import header_of
from .ledger_net import KEY, LEDGER, NEVER, SimBookie, SimLink, SimStore
from .ledger_recoverer import SimRecoverer, Violation, end_of

QUORUMS = [*[(3, 3, 2)] * 4, (4, 3, 2), (5, 3, 2), (4, 2, 2), (3, 2, 2), (3, 3, 3), (2, 2, 1)]
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
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self.trace: list[str] = []
        quorums = self.random.choice(
            [(3, 3, 2)] * 4 + [(4, 3, 2), (5, 3, 2), (3, 2, 2), (3, 3, 3), (2, 2, 1)]
        )
        self.striping = Striping(*quorums)
        size = quorums[0]
        self.bookies = {
            f"b{n}": SimBookie(self, f"b{n}")
            for n in range(size + self.random.choice([0, 1, 1, 2]))
        }
        ensemble = self.random.sample(sorted(self.bookies), size)
        self.store = SimStore(
            self,
            LedgerMetadata(
                ledger_id=LEDGER,
                ensemble_size=quorums[0],
                write_quorum=quorums[1],
                ack_quorum=quorums[2],
                ensembles=(Fragment(0, tuple(ensemble), 0),),
                key=KEY,
            ),
        )
        self.acked = -1
        self.records: dict[int, bytes] = {}
        self.delivered = -1
        self.kept: dict[int, int] = {}
        self.closed: LedgerMetadata | None = None
        self.healed = False
        self.impatience = self.random.choice([0.02, 0.02, 0.2])
        """How readily the writer gives up on a slot that owes acks."""
        self.busy = self.random.choice([0.0, 0.1, 0.3])
        """How often a bookie refuses a fence as too busy."""
        kinds = dict.fromkeys(options.faults)
        drawn = tuple(kind for kind in kinds if self.random.random() < 0.35)
        self.faults = drawn if drawn and self.random.random() < 0.6 else options.faults
        """What may happen in this seed: mostly a few kinds, each often (swarm testing)."""
        self.links: dict[tuple[str, str], SimLink] = {}
        self.writer = SimWriter(self)
        self.readers = [SimReader(self, f"reader{n}") for n in range(options.readers)]
        self.recoverers: list[SimRecoverer] = []

    # --- time and chance --------------------------------------------------------------------------

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._sequence, action))

    def delay(self) -> float:
        """How long a message takes: mostly about a millisecond, now and then very long."""
        drawn = self.random.random()
        if self.healed or drawn > 0.06:
            return 0.0005 + 0.001 * self.random.random()
        return self.random.random() * (0.05 if drawn > 0.015 else 1.5)

    def note(self, line: str) -> None:
        """Into the trace that a failing seed prints."""
        self.trace.append(f"{self.now:8.4f} {line}")

    def link(self, client: str, bookie_id: str) -> "SimLink | None":
        """The live connection, made where there is none; None when it cannot be made now."""
        link = self.links.get((client, bookie_id))
        if link is not None and link.closed is None:
            return link
        bookie = self.bookies[bookie_id]
        if bookie.down or self.now < bookie.cut_from.get(client, 0.0):
            return None
        link = self.links[client, bookie_id] = SimLink(self, client, bookie)
        return link

    # --- a run ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises `Violation` (or a core's own assert) when anything is wrong."""
        chance, options = self.random, self.options
        self.after(0.0, self.writer.start)
        for reader in self.readers:
            self.after(chance.random() * 0.2, reader.poll)
        for n in range(options.recoverers):
            self.after(0.02 + chance.random() * 2.5, lambda n=n: self.recover(f"recoverer{n}"))  # type: ignore[misc]
        if options.faults:
            for _ in range(chance.choice([0, 1, 2, 4, 6, 8])):
                self.after(chance.random() * 2.5, self._fault)
        self.after(options.horizon_s, self._heal)
        while self._heap and self.now < options.deadline_s:
            self.now, _, action = heapq.heappop(self._heap)
            action()
            if self.closed is not None and self.healed and self.now > options.horizon_s + 1.0:
                break
        self.final_check()

    def recover(self, name: str) -> None:
        """Start one more recoverer."""
        recoverer = SimRecoverer(self, name)
        self.recoverers.append(recoverer)
        recoverer.begin()

    def _fault(self) -> None:
        chance = self.random
        bookie = self.bookies[chance.choice(sorted(self.bookies))]
        kind = chance.choice(self.faults)
        self.note(f"fault {kind} {bookie.id}")
        if kind == "stop":
            bookie.stop(chance.random() * 1.5)
        elif kind == "break":
            for link in list(self.links.values()):
                if link.bookie is bookie and chance.random() < 0.7:
                    link.break_(chance.choice([0.0, 0.01, NEVER]))
        elif kind == "hang":
            bookie.hung_until = self.now + chance.random() * 2.0
        elif kind == "cut":
            name = chance.choice(["writer", "recoverer0", "recoverer1", "recoverer2"])
            bookie.cut_from[name] = self.now + chance.random() * 2.0
            cut = self.links.get((name, bookie.id))
            if cut is not None:
                cut.break_(chance.choice([0.0, NEVER]))
        elif kind == "read_only":
            bookie.model.read_only = True
        elif kind == "freeze":
            self.store.frozen_until = self.now + chance.random() * 1.5
        elif kind == "lose":
            self.store.lose_replies = True
        elif kind == "limbo":
            # A disk is lost: within the promise while it is one, and the bookie says so (inv. 22).
            if self.striping.ack_quorum > 1 and not any(b.damaged for b in self.bookies.values()):
                bookie.damaged = True
                ledger = bookie.model.ledger(LEDGER, KEY)
                ledger.limbo, ledger.fenced = True, True
                for entry in list(ledger.entries):
                    if chance.random() < 0.5:
                        del ledger.entries[entry]
        elif kind == "rot" and (
            self.striping.ack_quorum > 1 and not any(b.damaged for b in self.bookies.values())
        ):
            bookie.damaged = True
            ledger = bookie.model.ledger(LEDGER, KEY)
            ledger.damaged.update(e for e in ledger.entries if chance.random() < 0.5)

    def _heal(self) -> None:
        self.note("heal")
        self.healed = True
        self.store.frozen_until = 0.0
        self.store.lose_replies = False
        for bookie in self.bookies.values():
            bookie.hung_until = 0.0
            bookie.down = False
            bookie.cut_from.clear()
            bookie.model.read_only = False
            if bookie.damaged:
                self._repair(bookie)
        self.after(3.0, lambda: self.recover("last"))

    def _repair(self, bookie: "SimBookie") -> None:
        """Limbo and rot end by copying from the others, as repair does."""
        ledger = bookie.model.ledger(LEDGER, KEY)
        for other in self.bookies.values():
            for entry, record in other.model.ledger(LEDGER, KEY).entries.items():
                if (
                    other is not bookie
                    and entry not in ledger.entries
                    and self._holds(bookie.id, entry)
                ):
                    ledger.entries[entry] = record
        ledger.limbo = False
        ledger.damaged.clear()

    def _holds(self, bookie_id: str, entry: int) -> bool:
        fragment = self.store.value.fragment_of(entry)
        return any(fragment.bookies[s] == bookie_id for s in self.striping.write_set(entry))

    # --- oracles ----------------------------------------------------------------------------------

    def copies(self, entry: int) -> int:
        """How many bookies of the stored ensemble hold this entry (what a lost disk held counts)."""
        fragment = self.store.value.fragment_of(entry)
        return sum(
            entry in self.bookies[fragment.bookies[slot]].model.ledger(LEDGER, KEY).entries
            or self.bookies[fragment.bookies[slot]].damaged
            for slot in self.striping.write_set(entry)
        )

    def on_acked(self, lac: int) -> None:
        """The application was told: all up to ``lac`` is safe."""
        for entry in range(self.acked + 1, lac + 1):
            if self.copies(entry) < self.striping.ack_quorum:
                raise Violation(
                    f"inv. 4: entry {entry} acked with {self.copies(entry)} copies in the stored ensemble"
                )
        self.acked = max(self.acked, lac)
        if self.closed is not None and lac > end_of(self.closed):
            raise Violation(f"inv. 20: entry {lac} acked after the close at {end_of(self.closed)}")

    def on_delivered(self, entry: int, record: bytes) -> None:
        """A reader handed this entry to its user."""
        if self.records.get(entry) != record:
            raise Violation(f"G5: entry {entry} delivered with other bytes")
        self.delivered = max(self.delivered, entry)
        if self.closed is not None and entry > end_of(self.closed):
            raise Violation(f"D18: entry {entry} delivered beyond the end {end_of(self.closed)}")

    def on_closed(self, metadata: LedgerMetadata) -> None:
        """The store took a close."""
        if self.closed is not None:
            if (self.closed.last_entry, self.closed.length) != (
                metadata.last_entry,
                metadata.length,
            ):
                raise Violation("inv. 2: a closed ledger's end changed")
            return
        self.closed = metadata
        end = end_of(metadata)
        self.note(f"closed at {end}: {metadata.ensembles}")
        if self.acked > end:
            raise Violation(f"inv. 20: closed at {end}, entry {self.acked} was acked")
        if self.delivered > end:
            raise Violation(f"D18: closed at {end}, entry {self.delivered} was delivered")
        length = sum(header_of(self.records[e]).payload_bytes for e in range(end + 1))
        if metadata.length != length:
            raise Violation(f"closed with length {metadata.length}, it is {length}")
        for entry in range(end + 1):
            if self.copies(entry) < self.striping.ack_quorum:
                raise Violation(
                    f"inv. 20: closed at {end}, entry {entry} has {self.copies(entry)} copies"
                )

    def final_check(self) -> None:
        """After the heal."""
        if self.closed is None:
            raise Violation(
                "the ledger did not close after the heal: "
                + "; ".join(str(r.error) for r in self.recoverers if r.error)
            )
        end = end_of(self.closed)
        for bookie in self.bookies.values():
            if bookie.model.ledger(LEDGER, KEY).lac > end:
                raise Violation(f"inv. 5: {bookie.id} publishes a LAC beyond the end {end}")


def run_seed(seed: int, options: WorldOptions = WorldOptions()) -> World:
    """Run one seed; raise `Violation` or AssertionError with the trace in its notes."""
    world = World(seed, options)
    try:
        world.run()
    except AssertionError as error:
        error.add_note(f"seed {seed}\n" + "\n".join(world.trace[-60:]))
        raise
    return world


__all__ = ["Violation", "World", "WorldOptions", "run_seed"]
