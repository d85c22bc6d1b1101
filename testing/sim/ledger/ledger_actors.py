"""The writer and the tailing reader of the ledger world, which drive the product's cores without tasks."""

from collections.abc import Callable
from functools import partial

from ....bookie.client.bookie_client import raise_error
from ....bookie.format.entry import encode
from ....ledger.model.ledger_metadata import LedgerMetadata
from ....ledger.write.add_streams import AddStreamListener, SlotStreams
from ....ledger.write.ensemble_change import EnsembleChange, EnsembleChangeRound
from ....ledger.write.pending_adds import PendingAdds
from ....runtime.interfaces.errors import ConnectionLost, DistributedLogError, LedgerFenced
from .ledger_model import header_of
from .ledger_network import KEY, LEDGER, NEVER, LedgerNet
from .ledger_oracles import LedgerOracles


class SimWriter:
    """Drives `PendingAdds` and `EnsembleChange` without the tasks of `ledger/write/ledger_writer.py`."""

    def __init__(self, net: LedgerNet, oracles: LedgerOracles, entries_max: int) -> None:
        self.net = net
        self.oracles = oracles
        self.store = oracles.store
        self._choose = partial(net.choose, oracles.striping, "writer")
        metadata = self.store.value
        self.window = PendingAdds(oracles.striping, metadata.last_fragment.bookies)
        self.change = EnsembleChange(metadata, 1)
        self.streams = SlotStreams(
            self.window,
            LEDGER,
            KEY,
            recovery=False,
            connection_of=lambda bookie: net.link("writer", bookie),
            listener=AddStreamListener(
                self.window.on_acked, self._on_slot_failed, raise_error, self._on_progress
            ),
        )
        self.error: DistributedLogError | None = None
        self.entries_left = net.random.randint(0, entries_max)
        self.will_close = net.random.random() < 0.3
        self.failed_since: dict[int, float] = {}
        self.length = 0
        self.deadline = NEVER

    def start(self) -> None:
        """Open the add streams and start adding entries."""
        for slot in range(len(self.window.slots)):
            self._open(slot)
        self._add()
        self._tick()

    def _add(self) -> None:
        net = self.net
        if self.error is not None:
            return
        for _ in range(min(self.entries_left, net.random.choice([1, 1, 2, 5]))):
            self.entries_left -= 1
            payload = bytes(net.random.randint(0, 3))
            self.length += len(payload)
            entry = self.window.last_entry + 1
            record = bytes(
                encode(LEDGER, entry, self.length, self.window.lac, [payload], len(payload))
            )
            self.oracles.records[entry] = record
            self.window.add(record)
            self.streams.send(entry, record)
        if self.entries_left:
            net.call_after(net.random.choice([0.0005, 0.005, 0.2]) * net.random.random(), self._add)
        elif self.will_close:
            self.will_close = False
            net.call_after(net.random.random(), self._close)

    def _on_progress(self) -> None:
        if self.error is None:
            self._on_lac_advanced()

    def _on_lac_advanced(self) -> None:
        self.oracles.on_acked(self.window.lac)
        if self.window.lac == self.window.last_entry:
            self.streams.send_lac(self.window.lac)

    def _on_slot_failed(self, slot: int, bookie: str, error: DistributedLogError) -> None:
        if self.error is not None:
            return
        if isinstance(error, LedgerFenced):
            self._fail(error)
        elif isinstance(error, ConnectionLost):
            self.failed_since.setdefault(slot, self.net.now)
        else:
            self.change.on_failure(slot, bookie)
            self._run_change()

    def _open(self, slot: int) -> None:
        if self.streams.open(slot):
            self.failed_since.pop(slot, None)
        else:
            self.failed_since.setdefault(slot, self.net.now)

    def _tick(self) -> None:
        """Reconnect failed slots for 0.3 s, then replace their bookies. Retry detached slots."""
        if self.error is not None:
            return
        net = self.net
        for slot, since in sorted(self.failed_since.items()):
            if self.window.slots[slot].detached:
                if not self.window.ensemble_changing and net.random.random() < 0.3:
                    bookie = self.window.slots[slot].bookie
                    if net.random.random() < 0.5 and net.link("writer", bookie) is not None:
                        self.window.attach(slot)
                        self._open(slot)
                    else:
                        self.change.on_failure(slot, bookie)
            elif net.now - since > 0.3:
                self.change.on_failure(slot, self.window.slots[slot].bookie)
            elif net.random.random() < 0.5:
                self._open(slot)
        for number in range(len(self.window.slots)):
            if (
                self.streams.is_open(number)
                and self.window.has_unacked(number)
                and net.random.random() < 0.02
            ):
                self.streams.end(number)
                self.failed_since[number] = net.now - 1.0  # silent for too long
        self._run_change()
        net.call_after(0.02 + 0.05 * net.random.random(), self._tick)

    def _run_change(self) -> None:
        if (
            not self.change.failed_slots
            or self.change.pending_round is not None
            or self.error is not None
        ):
            return
        detached = [n for n, slot in enumerate(self.window.slots) if slot.detached]
        round_ = self.change.start_round(self.window.lac, detached, self._choose)
        self.window.begin_change()
        for slot in (*round_.replacements, *round_.newly_detached):
            self.streams.end(slot)
        if round_.proposed is None:
            self._committed(round_.version)
        else:
            self._propose(round_)

    def _propose(self, round_: EnsembleChangeRound) -> None:
        assert round_.proposed is not None
        self.net.record_event(f"writer proposes {round_.replacements} at {round_.first_entry}")
        self.store.cas(round_.version, round_.proposed, self._on_answer)

    def _on_answer(self, outcome: bool | None, value: LedgerMetadata, version: int) -> None:
        if self.error is not None:
            return
        if outcome:
            self._committed(version)
        elif outcome is None:
            self.store.get(self._on_conflict)
        else:
            self._on_conflict(outcome, value, version)

    def _on_conflict(self, _: bool | None, value: LedgerMetadata, version: int) -> None:
        try:
            next_round = self.change.on_conflict(value, version)
        except DistributedLogError as error:
            self._fail(error)
            return
        if next_round is None:
            self._committed(version)
        else:
            self._propose(next_round)

    def _committed(self, version: int) -> None:
        change = self.change.on_committed(version)
        confirmed = self.window.end_change(
            change.replacements, self.change.metadata.last_fragment.epoch
        )
        for slot in change.newly_detached:
            confirmed += self.window.detach(slot)
            self.failed_since.setdefault(slot, self.net.now)
        for slot in change.unreplaced:
            self.failed_since.setdefault(slot, self.net.now)
        for slot in sorted(change.replacements):
            self.failed_since.pop(slot, None)
            self._open(slot)
        if confirmed:
            self._on_lac_advanced()

    def _close(self) -> None:
        if self.error is not None or self.change.pending_round is not None:
            return
        lac = self.window.lac
        self.error = LedgerFenced("closing")
        length = header_of(self.oracles.records[lac]).length_so_far if lac >= 0 else 0
        closed = self.change.metadata.close_by_writer(lac, length)
        self.store.cas(self.change.version, closed, lambda *_: None)

    def _fail(self, error: DistributedLogError) -> None:
        self.net.record_event(f"writer ends: {error}")
        self.error = error
        self.streams.end_all()


class SimReader:
    """Tails the ledger: requests the LAC from a bookie of the stored ensemble, and reads up to it."""

    def __init__(self, net: LedgerNet, oracles: LedgerOracles, name: str, until_s: float) -> None:
        self.net = net
        self.oracles = oracles
        self.name = name
        self.until_s = until_s
        self.next_entry = 0

    def poll(self) -> None:
        """Poll once, and schedule the next poll until ``until_s``."""
        net = self.net
        bookie = net.random.choice(self.oracles.store.value.last_fragment.bookies)
        link = net.link(self.name, bookie)
        if link is not None and link.closed is None:
            bookie_model = link.bookie.model

            def act() -> Callable[[], None]:
                lac = bookie_model.ledger(LEDGER, KEY).lac
                return lambda: self._read(lac)

            link.request(act, lambda _: None, 0.5)
        if net.now < self.until_s:
            net.call_after(net.random.random() * 0.2, self.poll)

    def _read(self, lac: int) -> None:
        while self.next_entry <= lac:
            fragment = self.oracles.store.value.fragment_of(self.next_entry)
            for slot in self.oracles.striping.write_set(self.next_entry):
                ledger = self.net.bookies[fragment.bookies[slot]].model.ledger(LEDGER, KEY)
                if self.next_entry in ledger.entries and self.next_entry not in ledger.damaged:
                    self.oracles.on_delivered(self.next_entry, ledger.entries[self.next_entry])
                    self.next_entry += 1
                    break
            else:
                return
