"""What a core's next Ready says beside the log (pure): messages, hard state, reads.

The rule that lives here: while a term or vote is not durable, nothing that shows it leaves (M4).
"""

from .raft_messages import Message
from .ready import HardState, RaftRole, SendSnapshot


class ReadyBuilder:
    """Filled by the core's inputs, emptied by `Raft.ready`."""

    def __init__(self) -> None:
        self.ready_number = 0  # of the last Ready given out
        self.persisted = 0
        self.hard_state: HardState | None = None
        self.send_now: list[tuple[str, Message]] = []
        self.send_after_persist: list[tuple[str, Message]] = []
        self.reads: list[tuple[int, int]] = []
        self.reads_lost: list[int] = []
        self.send_snapshots: list[SendSnapshot] = []
        self._hard_state_number = 0  # the Ready that carries the newest hard state
        self._last_state: tuple[RaftRole, int, str] | None = None

    def send(self, to: str, message: Message, after_persist: bool = False) -> None:
        """Queue a message, after the disk if it must be or if a term or vote is on its way there."""
        if after_persist or self.hard_state is not None or self._hard_state_number > self.persisted:
            self.send_after_persist.append((to, message))
        else:
            self.send_now.append((to, message))

    def has_work(self, state: tuple[RaftRole, int, str]) -> bool:
        """Whether there is something to say; ``state``: role, term, leader as they are."""
        return bool(
            self.send_now
            or self.send_after_persist
            or self.hard_state is not None
            or self.reads
            or self.reads_lost
            or self.send_snapshots
            or state != self._last_state
        )

    def has_changed(self, state: tuple[RaftRole, int, str]) -> bool:
        """Whether role, term or leader differ from what the Ready before said."""
        return state != self._last_state

    def clear_taken(self, state: tuple[RaftRole, int, str]) -> None:
        """The Ready ``number`` took everything."""
        if self.hard_state is not None:
            self._hard_state_number = self.ready_number
            self.hard_state = None
        if self.send_now:
            self.send_now = []
        if self.send_after_persist:
            self.send_after_persist = []
        if self.reads:
            self.reads = []
        if self.reads_lost:
            self.reads_lost = []
        if self.send_snapshots:
            self.send_snapshots = []
        self._last_state = state

    def on_persisted(self, number: int) -> None:
        """The Readys up to ``number`` are durable."""
        assert number <= self.ready_number, f"Ready {number} was never given out"
        self.persisted = max(self.persisted, number)
