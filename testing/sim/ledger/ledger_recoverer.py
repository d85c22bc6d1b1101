"""A recoverer of the ledger world: drives `ledger.recovery`, dies now and then, tries again."""

from collections.abc import Callable
from functools import partial

from ....bookie.client.bookie_client import raise_it
from ....ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ....ledger.recovery.ledger_recovery import Phase, Recovery
from ....ledger.recovery.recovery_actions import (
    Action,
    Close,
    Fence,
    FoundEntry,
    OpenRecoveryStream,
    Read,
    Send,
)
from ....ledger.write.add_streams import AddStreamListener, SlotStreams
from ....runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    RequestTimeout,
    TooBusy,
)
from .ledger_model import header_of
from .ledger_network import KEY, LEDGER, LedgerNet
from .ledger_oracles import LedgerOracles, LedgerViolation, end_of


class SimRecoverer:
    """The driver of `Recovery`; tries again until the ledger is closed."""

    def __init__(self, net: LedgerNet, oracles: LedgerOracles, name: str, busy: float) -> None:
        self.net = net
        self.oracles = oracles
        self.store = oracles.store
        self.name = name
        self.busy = busy
        """How often a bookie refuses a fence as too busy."""
        self.recovery: Recovery | None = None
        self.streams: SlotStreams | None = None
        self.version = 0
        self.error: DistributedLogError | None = None
        self.attempt = 0
        self.dies = net.random.random() < 0.2 and name != "last"
        self.seen: set[int] = set()

    def begin(self) -> None:
        """Read the record; mark it as in recovery."""
        self.attempt += 1
        self.recovery, self.streams = None, None
        self.seen = set()
        self.store.get(self._on_record)

    def _on_record(self, _: bool | None, value: LedgerMetadata, version: int) -> None:
        if value.closed:
            return
        if value.state is LedgerState.OPEN:
            self.store.cas(version, value.in_recovery(), self._on_marked)
            return
        self.version = version
        self.recovery = Recovery(value, partial(self.net.choose, self.oracles.striping, ""))
        self.net.note(f"{self.name} begins {self.attempt}")
        self._act(self.recovery.begin())

    def _on_marked(self, outcome: bool | None, value: LedgerMetadata, version: int) -> None:
        self.store.get(self._on_record)

    def _act(self, actions: list[Action]) -> None:
        recovery = self.recovery
        assert recovery is not None
        for action in actions:
            if isinstance(action, Fence):
                self._fence(recovery, action)
            elif isinstance(action, Read):
                self._read(recovery, action)
            elif isinstance(action, OpenRecoveryStream):
                self._open(recovery, action)
            elif isinstance(action, Send):
                assert self.streams is not None
                self.streams.send_new()
            elif isinstance(action, Close):
                self._close(recovery, action)
        if recovery.phase is Phase.FAILED and self.recovery is recovery:
            self.error, self.recovery = recovery.error, None
            self.net.note(f"{self.name} gives up: {recovery.error}")
            if self.streams is not None:
                self.streams.end_all()
            if not self.dies or self.attempt < 2:
                self.net.after(0.3 + self.net.random.random() * 0.3, self.begin)

    def _input(self, recovery: Recovery, actions: Callable[[], list[Action]]) -> None:
        if self.recovery is recovery:
            self._act(actions())

    def _fence(self, recovery: Recovery, action: Fence) -> None:
        link = self.net.link(self.name, action.bookie)

        def failed(error: DistributedLogError) -> None:
            self._input(recovery, lambda: recovery.on_fence_failed(action.slot, error))

        if link is None:
            self.net.after(0.05, lambda: failed(ConnectionLost("not connected")))
            return

        def act() -> Callable[[], None]:
            if not self.net.healed and self.net.random.random() < self.busy:
                return lambda: failed(TooBusy("too busy to fence"))
            lac, _, known = link.bookie.model.fence(LEDGER, KEY)
            return lambda: self._input(
                recovery, lambda: recovery.on_fenced(action.slot, lac, known)
            )

        link.request(act, failed, 1.0)

    def _read(self, recovery: Recovery, action: Read) -> None:
        link = self.net.link(self.name, action.bookie)

        def failed(error: DistributedLogError) -> None:
            self._input(recovery, lambda: recovery.on_read_failed(action.request, error))

        if link is None:
            self.net.after(0.05, lambda: failed(ConnectionLost("not connected")))
            return

        def act() -> Callable[[], None]:
            entries_max = self.net.random.choice([1, 2, 3, 100])
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
            if record != self.oracles.records[header.entry]:  # stands for the digest
                damaged = True
                break
            found.append(FoundEntry(header.entry, header.length_so_far, record))
            if recovery.phase is Phase.READING and recovery.end is None:
                self.seen.add(header.entry)
        return recovery.on_read(action.request, complete_to, known, found, damaged=damaged)

    def _open(self, recovery: Recovery, action: OpenRecoveryStream) -> None:
        window = recovery.window
        if self.streams is None:
            self.streams = SlotStreams(
                window,
                LEDGER,
                KEY,
                recovery=True,
                target=lambda bookie: self.net.link(self.name, bookie),
                listener=AddStreamListener(
                    acked=lambda stream, count: self._input(
                        recovery, lambda: recovery.on_acked(stream, count)
                    ),
                    failed=lambda slot, bookie, error: self._input(
                        recovery, lambda: recovery.on_write_failed(slot, bookie, error)
                    ),
                    broken=raise_it,
                ),
            )
            self.net.after(0.5, lambda: self._sweep(recovery, {}))
        if window.slots[action.slot].bookie != action.bookie or window.slots[action.slot].detached:
            return
        if not self.streams.open(action.slot):
            self.net.after(
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
        self.net.after(0.5, lambda: self._sweep(recovery, now))

    def _close(self, recovery: Recovery, action: Close) -> None:
        if self.dies and self.attempt == 1:
            self.recovery = None  # killed just before the close: nothing of it is visible
            self.net.after(0.5, self.begin)
            return
        end = end_of(action.metadata)
        if end + 1 in self.seen and end + 1 > recovery.start:
            raise LedgerViolation(f"inv. 17: {self.name} saw entry {end + 1} and closes at {end}")

        def done(outcome: bool | None, value: LedgerMetadata, version: int) -> None:
            if outcome:
                self._input(recovery, lambda: recovery.on_closed(value))
                return
            self.version = version
            if outcome is None:
                self.store.get(done_get)
            else:
                self._input(recovery, lambda: recovery.on_close_conflict(value))

        def done_get(_: bool | None, value: LedgerMetadata, version: int) -> None:
            self.version = version
            self._input(recovery, lambda: recovery.on_close_conflict(value))

        self.store.cas(self.version, action.metadata, done)
