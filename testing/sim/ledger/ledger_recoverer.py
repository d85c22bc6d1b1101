"""A client of the ledger world that recovers the ledger, sometimes dies, and retries."""

from collections.abc import Callable
from functools import partial

from ....bookie.client.bookie_client import raise_error
from ....ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ....ledger.recovery.ledger_recovery import LedgerRecovery, RecoveryPhase
from ....ledger.recovery.recovery_actions import (
    CloseLedger,
    FenceBookie,
    FoundEntry,
    OpenRecoveryStream,
    ReadReplica,
    RecoveryAction,
    SendEntries,
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
    """Drives `LedgerRecovery`, and retries until the ledger is closed."""

    def __init__(
        self, net: LedgerNet, oracles: LedgerOracles, name: str, busy_share: float
    ) -> None:
        self.net = net
        self.oracles = oracles
        self.store = oracles.store
        self.name = name
        self.busy_share = busy_share
        """Share of fence requests that a bookie rejects as too busy."""
        self.recovery: LedgerRecovery | None = None
        self.streams: SlotStreams | None = None
        self.version = 0
        self.error: DistributedLogError | None = None
        self.attempt = 0
        self.will_die = net.random.random() < 0.2 and name != "last"
        self.seen_entries: set[int] = set()

    def begin(self) -> None:
        """Start an attempt: read the ledger's metadata and mark it as in recovery."""
        self.attempt += 1
        self.recovery, self.streams = None, None
        self.seen_entries = set()
        self.store.get(self._on_record)

    def _on_record(self, _: bool | None, value: LedgerMetadata, version: int) -> None:
        if value.closed:
            return
        if value.state is LedgerState.OPEN:
            self.store.cas(version, value.in_recovery(), self._on_marked)
            return
        self.version = version
        self.recovery = LedgerRecovery(value, partial(self.net.choose, self.oracles.striping, ""))
        self.net.record_event(f"{self.name} begins {self.attempt}")
        self._act(self.recovery.begin())

    def _on_marked(self, outcome: bool | None, value: LedgerMetadata, version: int) -> None:
        self.store.get(self._on_record)

    def _act(self, actions: list[RecoveryAction]) -> None:
        recovery = self.recovery
        assert recovery is not None
        for action in actions:
            if isinstance(action, FenceBookie):
                self._fence(recovery, action)
            elif isinstance(action, ReadReplica):
                self._read(recovery, action)
            elif isinstance(action, OpenRecoveryStream):
                self._open(recovery, action)
            elif isinstance(action, SendEntries):
                assert self.streams is not None
                self.streams.send_unsent()
            elif isinstance(action, CloseLedger):
                self._close(recovery, action)
        if recovery.phase is RecoveryPhase.FAILED and self.recovery is recovery:
            self.error, self.recovery = recovery.error, None
            self.net.record_event(f"{self.name} fails: {recovery.error}")
            if self.streams is not None:
                self.streams.end_all()
            if not self.will_die or self.attempt < 2:
                self.net.call_after(0.3 + self.net.random.random() * 0.3, self.begin)

    def _apply_if_current(
        self, recovery: LedgerRecovery, next_actions: Callable[[], list[RecoveryAction]]
    ) -> None:
        if self.recovery is recovery:
            self._act(next_actions())

    def _fence(self, recovery: LedgerRecovery, action: FenceBookie) -> None:
        link = self.net.link(self.name, action.bookie)

        def failed(error: DistributedLogError) -> None:
            self._apply_if_current(recovery, lambda: recovery.on_fence_failed(action.slot, error))

        if link is None:
            self.net.call_after(0.05, lambda: failed(ConnectionLost("not connected")))
            return

        def act() -> Callable[[], None]:
            if not self.net.healed and self.net.random.random() < self.busy_share:
                return lambda: failed(TooBusy("too busy to fence"))
            lac, _, known = link.bookie.model.fence(LEDGER, KEY)
            return lambda: self._apply_if_current(
                recovery, lambda: recovery.on_fenced(action.slot, lac, known)
            )

        link.request(act, failed, 1.0)

    def _read(self, recovery: LedgerRecovery, action: ReadReplica) -> None:
        link = self.net.link(self.name, action.bookie)

        def failed(error: DistributedLogError) -> None:
            self._apply_if_current(
                recovery, lambda: recovery.on_read_failed(action.request_id, error)
            )

        if link is None:
            self.net.call_after(0.05, lambda: failed(ConnectionLost("not connected")))
            return

        def act() -> Callable[[], None]:
            entries_max = self.net.random.choice([1, 2, 3, 100])
            answer = link.bookie.model.read(
                LEDGER, KEY, action.first, action.last, entries_max, fence=action.fence
            )
            return lambda: self._apply_if_current(
                recovery, lambda: self._on_read(recovery, action, *answer)
            )

        link.request(act, failed, 1.0)

    def _on_read(
        self,
        recovery: LedgerRecovery,
        action: ReadReplica,
        complete_to: int,
        lac: int,
        is_known: bool,
        records: list[bytes],
    ) -> list[RecoveryAction]:
        entries, is_damaged = [], False
        for record in records:
            header = header_of(record)
            if record != self.oracles.records[header.entry]:  # in place of the digest check
                is_damaged = True
                break
            entries.append(FoundEntry(header.entry, header.length_so_far, record))
            if recovery.phase is RecoveryPhase.READING and recovery.last_entry is None:
                self.seen_entries.add(header.entry)
        return recovery.on_read(
            action.request_id, complete_to, is_known, entries, damaged=is_damaged
        )

    def _open(self, recovery: LedgerRecovery, action: OpenRecoveryStream) -> None:
        window = recovery.pending_adds
        if self.streams is None:
            self.streams = SlotStreams(
                window,
                LEDGER,
                KEY,
                recovery=True,
                connection_of=lambda bookie: self.net.link(self.name, bookie),
                listener=AddStreamListener(
                    on_acked=lambda stream, count: self._apply_if_current(
                        recovery, lambda: recovery.on_acked(stream, count)
                    ),
                    on_failed=lambda slot, bookie, error: self._apply_if_current(
                        recovery, lambda: recovery.on_write_failed(slot, bookie, error)
                    ),
                    on_internal_error=raise_error,
                ),
            )
            self.net.call_after(0.5, lambda: self._check_silent(recovery, {}))
        if window.slots[action.slot].bookie != action.bookie or window.slots[action.slot].detached:
            return
        if not self.streams.open(action.slot):
            self.net.call_after(
                0.0,
                lambda: self._apply_if_current(
                    recovery,
                    lambda: recovery.on_write_failed(
                        action.slot, action.bookie, ConnectionLost("not connected")
                    ),
                ),
            )

    def _check_silent(self, recovery: LedgerRecovery, acked_before: dict[int, int]) -> None:
        """Fail the slots with unacknowledged entries that made no progress since the last check."""
        if self.recovery is not recovery or recovery.phase is not RecoveryPhase.READING:
            return
        window = recovery.pending_adds
        acked_now = {
            n: slot.acked_through for n, slot in enumerate(window.slots) if window.has_unacked(n)
        }
        for number, through in acked_now.items():
            if acked_before.get(number) == through and self.streams is not None:
                self.streams.end(number)
                slot = window.slots[number]
                self._apply_if_current(
                    recovery,
                    lambda number=number, slot=slot: recovery.on_write_failed(  # type: ignore[misc]
                        number, slot.bookie, RequestTimeout("silent")
                    ),
                )
        self.net.call_after(0.5, lambda: self._check_silent(recovery, acked_now))

    def _close(self, recovery: LedgerRecovery, action: CloseLedger) -> None:
        if self.will_die and self.attempt == 1:
            self.recovery = None  # killed just before the close, of which nothing is visible
            self.net.call_after(0.5, self.begin)
            return
        end = end_of(action.metadata)
        if end + 1 in self.seen_entries and end + 1 > recovery.start_lac:
            raise LedgerViolation(f"inv. 17: {self.name} saw entry {end + 1} and closes at {end}")

        def done(outcome: bool | None, value: LedgerMetadata, version: int) -> None:
            if outcome:
                self._apply_if_current(recovery, lambda: recovery.on_closed(value))
                return
            self.version = version
            if outcome is None:
                self.store.get(done_get)
            else:
                self._apply_if_current(recovery, lambda: recovery.on_close_conflict(value))

        def done_get(_: bool | None, value: LedgerMetadata, version: int) -> None:
            self.version = version
            self._apply_if_current(recovery, lambda: recovery.on_close_conflict(value))

        self.store.cas(self.version, action.metadata, done)
