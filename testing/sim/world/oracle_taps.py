"""Connect the oracles of `testing/verify` to the network, the disks and the state machines of a run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ....ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ....metadata.model.command_results import CommandResult
from ....metadata.model.commands import ReplicatedCommand
from ....metadata.model.interface import WatchEvent
from ....metadata.state.kv_state import KeyValueState
from ....runtime.protocol.frames import Op
from ....runtime.protocol.handshake import FEATURE_ERROR_CODES, decode_hello
from ...verify.checks.history_check import Violation
from ...verify.checks.wire_oracles import BookieOracle, FrameCutter, MetadataOracle
from .bug_injection import patched
from .disk import SimDisk
from .machine_state import machine_of_task
from .network import SimConnection
from .scheduler import Simulation
from .sim_host import SimHost

OnApplied = Callable[[int, bytes, CommandResult, tuple[WatchEvent, ...], int], None]
"""Called with the log index, the command, its result, the changes and the revision after them."""


class Oracles:
    """All oracles of one run. They are a `Tap` of its network and a `DiskWatcher` of its disks."""

    def __init__(self, simulation: Simulation, *, ack_quorum: int = 2) -> None:
        def fail(message: str) -> None:
            simulation.fail(Violation(message))

        self.bookies = BookieOracle(fail, ack_quorum=ack_quorum)
        self.metadata = MetadataOracle(fail)
        self.on_applied: list[OnApplied] = []
        """Called for each command that a node's state machine applies, with its effects."""
        self.recovered_ledgers: dict[int, None] = {}
        """Ledgers that a recovering client, and not their writer, closes."""
        self._node_kinds: dict[str, str] = {}
        self._links: dict[int, Any] = {}
        self._arrived_cutters: dict[int, FrameCutter] = {}
        self._sent_cutters: dict[int, FrameCutter] = {}
        self._features: dict[int, int] = {}
        """The features in the HELLO of each end of a connection of two metadata nodes."""

    def add_machine(self, host: SimHost, kind: str) -> None:
        """Observe a machine. ``kind`` is ``bookie`` or ``metadata``."""
        self._node_kinds[host.name] = kind
        for disk in host.devices():
            disk.watchers.append(self)

    def on_durable(self, disk: SimDisk, name: str, offset: int, data: bytes) -> None:
        """See `DiskWatcher`."""
        if self._node_kinds.get(disk.host.name) == "bookie":
            self.bookies.on_durable(disk.host.name, data)

    def on_change_started(self, disk: SimDisk, change: str, name: str) -> None:
        """See `DiskWatcher`."""

    def on_arrived(self, connection: SimConnection, data: bytes) -> None:
        """See `Tap`."""
        if self._node_kinds.get(connection.host.name) == "bookie" and not connection.is_dialer:
            cutter = self._arrived_cutters.setdefault(connection.serial, FrameCutter())
            cutter.feed(data, partial(self.bookies.on_arrived, self._link(connection)))

    def on_sent(self, connection: SimConnection, data: bytes) -> None:
        """See `Tap`."""
        kind = self._node_kinds.get(connection.host.name)
        if kind is None:
            return
        cutter = self._sent_cutters.setdefault(connection.serial, FrameCutter())
        if kind == "metadata":
            cutter.feed(data, partial(self._on_metadata_frame, connection))
        elif not connection.is_dialer:
            cutter.feed(data, partial(self.bookies.on_answer, self._link(connection)))

    def _on_metadata_frame(
        self,
        connection: SimConnection,
        op: int,
        flags: int,
        status: int,
        ident: int,
        body: memoryview,
    ) -> None:
        """Process a frame that a metadata node sends."""
        machine, to = connection.host.name, connection.peer_end.host.name
        if op == Op.HELLO:
            self._features[connection.serial] = decode_hello(body, machine).hello.features
        elif op == Op.META_RAFT:
            features = self._features.get(connection.peer_end.serial, 0)
            if not features & FEATURE_ERROR_CODES:
                self.metadata.on_raft_frame_to_older(machine, to, body)
        self.metadata.on_frame(machine, to, op, flags, status, ident, body)

    def _link(self, connection: SimConnection) -> Any:
        link = self._links.get(connection.serial)
        if link is None:
            link = self._links[connection.serial] = self.bookies.new_link(connection.host.name)
        return link

    @contextmanager
    def observe_state_machines(self) -> Iterator[None]:
        """Observe each command that a node's state machine applies, within the `with` block."""
        original = KeyValueState.apply
        oracle = self.metadata

        def apply(
            state: KeyValueState,
            index: int,
            command: bytes,
            decoded: ReplicatedCommand | None = None,
        ) -> Any:
            machine = machine_of_task.get()
            name = "?" if machine is None else machine.name
            oracle.on_applied(name, index, command)
            answer, events = original(state, index, command, decoded)
            oracle.on_state(name, index, state.digest())
            for on_applied in self.on_applied:
                on_applied(index, command, answer, events, state.revision)
            for event in events:
                if event.kind == "put" and event.item.key.startswith(b"ledger/"):
                    record = LedgerMetadata.decode(event.item.key, event.item.value)
                    if record.state is LedgerState.DELETING:
                        # From now on bookies may deny the ledger, and finally must. A purge task alone
                        # permits nothing.
                        self.bookies.denied_ledgers[record.ledger_id] = None
                    elif record.state is LedgerState.IN_RECOVERY:
                        self.recovered_ledgers[record.ledger_id] = None
                    elif record.closed:
                        self.bookies.closed_ledgers[record.ledger_id] = None
            return answer, events

        with patched([(KeyValueState, "apply", apply)]):
            yield
