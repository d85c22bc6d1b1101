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

from ..bookie.entry import encode
from ..ledger.add_window import AddWindow, Stream
from ..ledger.ensemble_change import EnsembleChange, Round
from ..ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ..ledger.placement import Candidate, choose_replacements
from ..ledger.recovery import (
    Action,
    Close,
    Fence,
    Found,
    OpenStream,
    Phase,
    Read,
    Recovery,
    Send,
)
from ..ledger.streams import SlotStreams
from ..ledger.striping import Striping
from ..runtime.errors import (
    ConnectionLost,
    DistributedLogError,
    LedgerFenced,
    RequestTimeout,
    TooBusy,
)
from ..runtime.host import Buffer
from .ledger_model import ModelBookie, ModelStream, header_of

LEDGER = 7
KEY = b"0123456789abcdef"
NEVER = float("inf")
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


class Violation(AssertionError):
    """An oracle was not satisfied."""


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
        chance, options = self.random, self.options
        bookie = self.bookies[chance.choice(sorted(self.bookies))]
        kind = chance.choice(options.faults)
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
        if self.closed is not None and lac > _end(self.closed):
            raise Violation(f"inv. 20: entry {lac} acked after the close at {_end(self.closed)}")

    def on_delivered(self, entry: int, record: bytes) -> None:
        """A reader handed this entry to its user."""
        if self.records.get(entry) != record:
            raise Violation(f"G5: entry {entry} delivered with other bytes")
        self.delivered = max(self.delivered, entry)
        if self.closed is not None and entry > _end(self.closed):
            raise Violation(f"D18: entry {entry} delivered beyond the end {_end(self.closed)}")

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
        end = _end(metadata)
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
        end = _end(self.closed)
        for bookie in self.bookies.values():
            if bookie.model.ledger(LEDGER, KEY).lac > end:
                raise Violation(f"inv. 5: {bookie.id} publishes a LAC beyond the end {end}")


def _end(metadata: LedgerMetadata) -> int:
    assert metadata.last_entry is not None
    return metadata.last_entry


class SimBookie:
    """A model bookie with its misfortunes."""

    def __init__(self, world: World, bookie_id: str) -> None:
        self.world = world
        self.id = bookie_id
        self.model = ModelBookie(bookie_id)
        self.down = False
        self.damaged = False
        self.hung_until = 0.0
        self.cut_from: dict[str, float] = {}

    def stop(self, for_s: float) -> None:
        """A power cut: connections end, what was stored stays."""
        self.down = True
        for link in list(self.world.links.values()):
            if link.bookie is self:
                link.break_(0.0)

        def start() -> None:
            self.down = False

        self.world.after(for_s, start)


class SimLink:
    """A connection: in order, any delay; when it breaks, a prefix of what was sent still arrives."""

    def __init__(self, world: World, client: str, bookie: SimBookie) -> None:
        self.world = world
        self.client = client
        self.bookie = bookie
        self.closed: DistributedLogError | None = None
        self._there = self._back = 0.0
        self._cut_at = NEVER
        self._sinks: list[SimSink] = []
        self._requests: list[Callable[[DistributedLogError], None]] = []

    def break_(self, prefix_s: float) -> None:
        """What arrives later than ``prefix_s`` from now is lost; the client learns at once."""
        if self.closed is not None:
            return
        self.closed = ConnectionLost(f"the connection to {self.bookie.id} broke")
        self._cut_at = self.world.now + prefix_s
        sinks, self._sinks = self._sinks, []
        requests, self._requests = self._requests, []
        for sink in sinks:
            sink.on_broken(self.closed)
        for failed in requests:
            failed(self.closed)

    def there(self, action: Callable[[], None]) -> None:
        """Send to the bookie; ``action`` runs on arrival."""
        world = self.world
        self._there = max(self._there, world.now + world.delay())

        def arrive() -> None:
            if world.now > self._cut_at or (self.bookie.down and self.closed is not None):
                return
            if world.now < self.bookie.hung_until:
                world.after(self.bookie.hung_until - world.now, arrive)
            else:
                action()

        world.after(self._there - world.now, arrive)

    def back(self, action: Callable[[], None]) -> None:
        """Send to the client."""
        world = self.world
        self._back = max(self._back, world.now + world.delay())

        def arrive() -> None:
            if self.closed is None:
                action()

        world.after(self._back - world.now, arrive)

    def request(
        self,
        act: Callable[[], Callable[[], None]],
        failed: Callable[[DistributedLogError], None],
        timeout_s: float,
    ) -> None:
        """``act`` runs at the bookie and returns what is done with the answer at the client."""
        if self.closed is not None:
            failed(self.closed)
            return
        done = False

        def fail(error: DistributedLogError) -> None:
            nonlocal done
            if not done:
                done = True
                failed(error)

        def at_bookie() -> None:
            answer = act()

            def at_client() -> None:
                nonlocal done
                if not done:
                    done = True
                    self._requests.remove(fail)
                    answer()

            self.back(at_client)

        def late() -> None:
            if not done:
                if fail in self._requests:
                    self._requests.remove(fail)
                fail(RequestTimeout(f"{self.bookie.id} did not answer"))

        self._requests.append(fail)
        self.there(at_bookie)
        self.world.after(timeout_s, late)

    def open_stream(
        self,
        ledger: int,
        key: bytes,
        *,
        recovery: bool,
        fragment_epoch: int,
        on_acked: Callable[[int], None],
        on_refused: Callable[[int, DistributedLogError], None],
    ) -> "SimSink":
        """As `bookie/client.py`."""
        sink = SimSink(self, ledger, key, recovery, on_acked, on_refused)
        self._sinks.append(sink)
        return sink


class SimSink:
    """One add stream, both sides of it."""

    def __init__(
        self,
        link: SimLink,
        ledger: int,
        key: bytes,
        recovery: bool,
        on_acked: Callable[[int], None],
        on_refused: Callable[[int, DistributedLogError], None],
    ) -> None:
        self._link = link
        self._ledger, self._key = ledger, key
        self._on_acked = on_acked
        self._on_refused = on_refused
        self._stream = ModelStream(link.bookie.model, ledger, key, recovery=recovery)
        self._told = 0
        self._acking = False
        self._closed = False

    def send(self, record: Buffer) -> None:
        """One record to the bookie."""
        self._link.there(lambda: self._arrive(record))

    def send_lac(self, lac: int) -> None:
        """The explicit LAC to the bookie."""
        self._link.there(lambda: self._link.bookie.model.write_lac(self._ledger, self._key, lac))

    def close(self) -> None:
        """What comes back is dropped."""
        self._closed = True

    def on_broken(self, error: DistributedLogError) -> None:
        """The link ended."""
        if not self._closed:
            self._on_refused(self._told, error)

    def _arrive(self, record: Buffer) -> None:
        refused = self._stream.refused
        if self._stream.add(record):
            if not self._acking:  # acks gather, as behind one sync
                self._acking = True
                self._link.world.after(self._link.world.random.random() * 0.002, self._ack)
        elif refused is None and self._stream.refused is not None:
            position, error = self._stream.count, self._stream.refused
            self._link.back(lambda: self._refused(position, error))

    def _refused(self, position: int, error: DistributedLogError) -> None:
        if not self._closed:
            self._on_refused(position, error)

    def _ack(self) -> None:
        self._acking = False
        count = self._stream.count

        # A closed stream's acks still come in: it is the window that must not count them.
        def told() -> None:
            self._told = count
            self._on_acked(count)

        self._link.back(told)


class SimStore:
    """The ledger's record under compare-and-set; answers may be late, or lost."""

    def __init__(self, world: World, value: LedgerMetadata) -> None:
        self.world = world
        self.value = value
        self.version = 1
        self.frozen_until = 0.0
        self.lose_replies = False

    def cas(
        self,
        version: int,
        new: LedgerMetadata,
        done: Callable[[bool | None, LedgerMetadata, int], None],
    ) -> None:
        """``done`` gets True, False (conflict) or None (unknown), and the record as it is then."""
        self._call(lambda: self._apply(version, new), done)

    def get(self, done: Callable[[bool | None, LedgerMetadata, int], None]) -> None:
        """The record and its version."""
        self._call(lambda: True, done, lossless=True)

    def _call(
        self,
        act: Callable[[], bool],
        done: Callable[[bool | None, LedgerMetadata, int], None],
        *,
        lossless: bool = False,
    ) -> None:
        world = self.world

        def arrive() -> None:
            if world.now < self.frozen_until:
                world.after(self.frozen_until - world.now + 0.001, arrive)
                return
            outcome: bool | None = act()
            if self.lose_replies and not lossless and world.random.random() < 0.5:
                outcome = None
            value, version = self.value, self.version
            world.after(
                0.0005 + world.random.random() * 0.003, lambda: done(outcome, value, version)
            )

        world.after(0.0005 + world.random.random() * 0.003, arrive)

    def _apply(self, version: int, new: LedgerMetadata) -> bool:
        if version != self.version:
            return False
        self.value, self.version = new, self.version + 1
        self.world.note(
            f"store v{self.version} {new.state} {[(f.first_entry, f.bookies) for f in new.ensembles]}"
        )
        if new.closed:
            self.world.on_closed(new)
        return True


class SimWriter:
    """The driver of `AddWindow` and `EnsembleChange`, as `ledger/writer.py` does it with tasks."""

    def __init__(self, world: World) -> None:
        self.world = world
        metadata = world.store.value
        self.window = AddWindow(world.striping, metadata.last_fragment.bookies)
        self.change = EnsembleChange(metadata, 1)
        self.streams = SlotStreams(
            self.window,
            LEDGER,
            KEY,
            recovery=False,
            target=lambda bookie: world.link("writer", bookie),
            acked=self._on_acked,
            failed=self._on_slot_failed,
        )
        self.error: DistributedLogError | None = None
        self.left = world.random.randint(0, world.options.entries_max)
        self.closes = world.random.random() < 0.3
        self.down_since: dict[int, float] = {}
        self.length = 0
        self.deadline = NEVER

    def start(self) -> None:
        """Open the streams, begin adding."""
        for slot in range(len(self.window.slots)):
            self._open(slot)
        self._add()
        self._tick()

    def _add(self) -> None:
        world = self.world
        if self.error is not None:
            return
        for _ in range(min(self.left, world.random.choice([1, 1, 2, 5]))):
            self.left -= 1
            payload = bytes(world.random.randint(0, 3))
            self.length += len(payload)
            entry = self.window.last + 1
            record = bytes(
                encode(LEDGER, entry, self.length, self.window.lac, [payload], len(payload))
            )
            world.records[entry] = record
            self.window.push(record)
            self.streams.send(entry, record)
        if self.left:
            world.after(
                world.random.choice([0.0005, 0.005, 0.2]) * world.random.random(), self._add
            )
        elif self.closes:
            self.closes = False
            world.after(world.random.random(), self._close)

    def _on_acked(self, stream: Stream, count: int) -> None:
        if self.error is None and self.window.on_acked(stream, count):
            self._confirmed()

    def _confirmed(self) -> None:
        self.world.on_acked(self.window.lac)
        if self.window.lac == self.window.last:
            self.streams.send_lac(self.window.lac)

    def _on_slot_failed(self, slot: int, bookie: str, error: DistributedLogError) -> None:
        if self.error is not None:
            return
        if isinstance(error, LedgerFenced):
            self._fail(error)
        elif isinstance(error, ConnectionLost):
            self.down_since.setdefault(slot, self.world.now)
        else:
            self.change.on_failure(slot, bookie)
            self._run_change()

    def _open(self, slot: int) -> None:
        if self.streams.open(slot):
            self.down_since.pop(slot, None)
        else:
            self.down_since.setdefault(slot, self.world.now)

    def _tick(self) -> None:
        """Reconnect within the bound, replace beyond it, try again for those that go without."""
        if self.error is not None:
            return
        world = self.world
        for slot, since in sorted(self.down_since.items()):
            if self.window.slots[slot].detached:
                if not self.window.changing and world.random.random() < 0.3:
                    bookie = self.window.slots[slot].bookie
                    if world.random.random() < 0.5 and world.link("writer", bookie) is not None:
                        self.window.attach(slot)
                        self._open(slot)
                    else:
                        self.change.on_failure(slot, bookie)
            elif world.now - since > 0.3:
                self.change.on_failure(slot, self.window.slots[slot].bookie)
            elif world.random.random() < 0.5:
                self._open(slot)
        for number in range(len(self.window.slots)):
            if (
                self.streams.is_open(number)
                and self.window.owed(number)
                and world.random.random() < 0.02
            ):
                self.streams.end(number)
                self.down_since[number] = world.now - 1.0  # silent for too long
        self._run_change()
        world.after(0.02 + 0.05 * world.random.random(), self._tick)

    def _run_change(self) -> None:
        if not self.change.failed or self.change.round is not None or self.error is not None:
            return
        detached = [n for n, slot in enumerate(self.window.slots) if slot.detached]
        round_ = self.change.start(self.window.lac, detached, self._choose)
        self.window.begin_change()
        for slot in (*round_.replaced, *round_.detached):
            self.streams.end(slot)
        if round_.proposed is None:
            self._committed(round_.version)
        else:
            self._propose(round_)

    def _choose(
        self, slots: list[int], kept: dict[int, str], excluded: list[str]
    ) -> dict[int, str]:
        candidates = [
            Candidate(b.id, down=b.down or self.world.now < b.cut_from.get("writer", 0.0))
            for b in self.world.bookies.values()
        ]
        return choose_replacements(
            self.world.striping,
            kept,
            slots,
            candidates,
            self.world.random.random,
            excluded=excluded,
        )

    def _propose(self, round_: Round) -> None:
        assert round_.proposed is not None
        self.world.note(f"writer proposes {round_.replaced} at {round_.first_entry}")
        self.world.store.cas(round_.version, round_.proposed, self._on_answer)

    def _on_answer(self, outcome: bool | None, value: LedgerMetadata, version: int) -> None:
        if self.error is not None:
            return
        if outcome:
            self._committed(version)
        elif outcome is None:
            self.world.store.get(self._on_conflict)
        else:
            self._on_conflict(outcome, value, version)

    def _on_conflict(self, _: bool | None, value: LedgerMetadata, version: int) -> None:
        try:
            again = self.change.on_conflict(value, version)
        except DistributedLogError as error:
            self._fail(error)
            return
        if again is None:
            self._committed(version)
        else:
            self._propose(again)

    def _committed(self, version: int) -> None:
        done = self.change.on_committed(version)
        confirmed = self.window.end_change(done.replaced, self.change.metadata.last_fragment.epoch)
        for slot in done.detached:
            confirmed += self.window.detach(slot)
            self.down_since.setdefault(slot, self.world.now)
        for slot in done.starved:
            self.down_since.setdefault(slot, self.world.now)
        for slot in sorted(done.replaced):
            self.down_since.pop(slot, None)
            self._open(slot)
        if confirmed:
            self._confirmed()

    def _close(self) -> None:
        if self.error is not None or self.change.round is not None:
            return
        lac = self.window.lac
        self.error = LedgerFenced("closing")
        length = header_of(self.world.records[lac]).length_so_far if lac >= 0 else 0
        closed = self.change.metadata.close_by_writer(lac, length)
        self.world.store.cas(self.change.version, closed, lambda *_: None)

    def _fail(self, error: DistributedLogError) -> None:
        self.world.note(f"writer ends: {error}")
        self.error = error
        self.streams.end_all()


class SimReader:
    """Tails: asks some bookie of the stored ensemble for its LAC and reads up to it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.next = 0

    def poll(self) -> None:
        """One round, and again."""
        world = self.world
        bookie = world.random.choice(world.store.value.last_fragment.bookies)
        link = world.link(self.name, bookie)
        if link is not None and link.closed is None:
            bookie_model = link.bookie.model

            def act() -> Callable[[], None]:
                lac = bookie_model.ledger(LEDGER, KEY).lac
                return lambda: self._read(lac)

            link.request(act, lambda _: None, 0.5)
        if world.now < world.options.horizon_s + 2.0:
            world.after(world.random.random() * 0.2, self.poll)

    def _read(self, lac: int) -> None:
        while self.next <= lac:
            fragment = self.world.store.value.fragment_of(self.next)
            for slot in self.world.striping.write_set(self.next):
                ledger = self.world.bookies[fragment.bookies[slot]].model.ledger(LEDGER, KEY)
                if self.next in ledger.entries and self.next not in ledger.damaged:
                    self.world.on_delivered(self.next, ledger.entries[self.next])
                    self.next += 1
                    break
            else:
                return


class SimRecoverer:
    """The driver of `Recovery`; tries again until the ledger is closed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.recovery: Recovery | None = None
        self.streams: SlotStreams | None = None
        self.version = 0
        self.error: DistributedLogError | None = None
        self.attempt = 0
        self.dies = world.random.random() < 0.2 and name != "last"
        self.seen: set[int] = set()

    def begin(self) -> None:
        """Read the record; mark it as in recovery."""
        self.attempt += 1
        self.recovery, self.streams = None, None
        self.seen = set()
        self.world.store.get(self._on_record)

    def _on_record(self, _: bool | None, value: LedgerMetadata, version: int) -> None:
        if value.closed:
            return
        if value.state is LedgerState.OPEN:
            self.world.store.cas(version, value.in_recovery(), self._on_marked)
            return
        self.version = version
        self.recovery = Recovery(value, self._choose)
        self.world.note(f"{self.name} begins {self.attempt}")
        self._act(self.recovery.begin())

    def _on_marked(self, outcome: bool | None, value: LedgerMetadata, version: int) -> None:
        self.world.store.get(self._on_record)

    def _choose(
        self, slots: list[int], kept: dict[int, str], excluded: list[str]
    ) -> dict[int, str]:
        candidates = [Candidate(b.id, down=b.down) for b in self.world.bookies.values()]
        return choose_replacements(
            self.world.striping,
            kept,
            slots,
            candidates,
            self.world.random.random,
            excluded=excluded,
        )

    def _act(self, actions: list[Action]) -> None:
        recovery = self.recovery
        assert recovery is not None
        for action in actions:
            if isinstance(action, Fence):
                self._fence(recovery, action)
            elif isinstance(action, Read):
                self._read(recovery, action)
            elif isinstance(action, OpenStream):
                self._open(recovery, action)
            elif isinstance(action, Send):
                assert self.streams is not None
                self.streams.send_new()
            elif isinstance(action, Close):
                self._close(recovery, action)
        if recovery.phase is Phase.FAILED and self.recovery is recovery:
            self.error, self.recovery = recovery.error, None
            self.world.note(f"{self.name} gives up: {recovery.error}")
            if self.streams is not None:
                self.streams.end_all()
            if not self.dies or self.attempt < 2:
                self.world.after(0.3 + self.world.random.random() * 0.3, self.begin)

    def _input(self, recovery: Recovery, actions: Callable[[], list[Action]]) -> None:
        if self.recovery is recovery:
            self._act(actions())

    def _fence(self, recovery: Recovery, action: Fence) -> None:
        link = self.world.link(self.name, action.bookie)

        def failed(error: DistributedLogError) -> None:
            self._input(recovery, lambda: recovery.on_fence_failed(action.slot, error))

        if link is None:
            self.world.after(0.05, lambda: failed(ConnectionLost("not connected")))
            return

        def act() -> Callable[[], None]:
            if not self.world.healed and self.world.random.random() < self.world.busy:
                return lambda: failed(TooBusy("too busy to fence"))
            lac, _, known = link.bookie.model.fence(LEDGER, KEY)
            return lambda: self._input(
                recovery, lambda: recovery.on_fenced(action.slot, lac, known)
            )

        link.request(act, failed, 1.0)

    def _read(self, recovery: Recovery, action: Read) -> None:
        link = self.world.link(self.name, action.bookie)

        def failed(error: DistributedLogError) -> None:
            self._input(recovery, lambda: recovery.on_read_failed(action.request, error))

        if link is None:
            self.world.after(0.05, lambda: failed(ConnectionLost("not connected")))
            return

        def act() -> Callable[[], None]:
            entries_max = self.world.random.choice([1, 2, 3, 100])
            answer = link.bookie.model.read(
                LEDGER, KEY, action.first, action.last, entries_max, fence=action.fence
            )
            return lambda: self._input(recovery, lambda: self._on_read(recovery, action, *answer))

        link.request(act, failed, 1.0)

    def _on_read(
        self,
        recovery: Recovery,
        action: Read,
        complete_to: int,
        lac: int,
        known: bool,
        records: list[bytes],
    ) -> list[Action]:
        found, damaged = [], False
        for record in records:
            header = header_of(record)
            if record != self.world.records[header.entry]:  # stands for the digest
                damaged = True
                break
            found.append(Found(header.entry, header.length_so_far, header.payload_bytes, record))
            if recovery.phase is Phase.READING and recovery.end is None:
                self.seen.add(header.entry)
        return recovery.on_read(action.request, complete_to, known, found, damaged=damaged)

    def _open(self, recovery: Recovery, action: OpenStream) -> None:
        window = recovery.window
        assert window is not None
        if self.streams is None:
            self.streams = SlotStreams(
                window,
                LEDGER,
                KEY,
                recovery=True,
                target=lambda bookie: self.world.link(self.name, bookie),
                acked=lambda stream, count: self._input(
                    recovery, lambda: recovery.on_acked(stream, count)
                ),
                failed=lambda slot, bookie, error: self._input(
                    recovery, lambda: recovery.on_write_failed(slot, bookie, error)
                ),
            )
            self.world.after(0.5, lambda: self._sweep(recovery, {}))
        if window.slots[action.slot].bookie != action.bookie or window.slots[action.slot].detached:
            return
        if not self.streams.open(action.slot):
            self.world.after(
                0.0,
                lambda: self._input(
                    recovery,
                    lambda: recovery.on_write_failed(
                        action.slot, action.bookie, ConnectionLost("not connected")
                    ),
                ),
            )

    def _sweep(self, recovery: Recovery, before: dict[int, int]) -> None:
        """A slot that owes and says nothing has failed."""
        if self.recovery is not recovery or recovery.phase is not Phase.READING:
            return
        window = recovery.window
        assert window is not None
        now = {n: slot.through for n, slot in enumerate(window.slots) if window.owed(n)}
        for number, through in now.items():
            if before.get(number) == through and self.streams is not None:
                self.streams.end(number)
                slot = window.slots[number]
                self._input(
                    recovery,
                    lambda number=number, slot=slot: recovery.on_write_failed(  # type: ignore[misc]
                        number, slot.bookie, RequestTimeout("silent")
                    ),
                )
        self.world.after(0.5, lambda: self._sweep(recovery, now))

    def _close(self, recovery: Recovery, action: Close) -> None:
        if self.dies and self.attempt == 1:
            self.recovery = None  # killed just before the close: nothing of it is visible
            self.world.after(0.5, self.begin)
            return
        end = _end(action.metadata)
        if end + 1 in self.seen and end + 1 > recovery.start:
            raise Violation(f"inv. 17: {self.name} saw entry {end + 1} and closes at {end}")

        def done(outcome: bool | None, value: LedgerMetadata, version: int) -> None:
            if outcome:
                self._input(recovery, lambda: recovery.on_closed(value))
                return
            self.version = version
            if outcome is None:
                self.world.store.get(done_get)
            else:
                self._input(recovery, lambda: recovery.on_close_conflict(value))

        def done_get(_: bool | None, value: LedgerMetadata, version: int) -> None:
            self.version = version
            self._input(recovery, lambda: recovery.on_close_conflict(value))

        self.world.store.cas(self.version, action.metadata, done)


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
