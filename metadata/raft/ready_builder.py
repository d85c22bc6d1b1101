"""The contents of the next Ready besides the log (pure): messages, hard state, reads.

While a term or vote is not durable, no message that depends on it is sent (M4). This rule is enforced here.
"""

from .raft_messages import Message
from .ready import HardState, RaftRole, SendSnapshot


class ReadyBuilder:
    """Filled by the inputs of the core, and emptied by `Raft.ready`."""

    def __init__(self) -> None:
        self.ready_number = 0  # of the last Ready that was returned
        self.persisted = 0
        self.hard_state: HardState | None = None
        self.send_now: list[tuple[str, Message]] = []
        self.send_after_persist: list[tuple[str, Message]] = []
        self.reads: list[tuple[int, int]] = []
        self.reads_lost: list[int] = []
        self.send_snapshots: list[SendSnapshot] = []
        self._hard_state_number = 0  # the Ready with the newest hard state
        self._last_state: tuple[RaftRole, int, str] | None = None

    def send(self, to: str, message: Message, after_persist: bool = False) -> None:
        """Queue a message. It waits for the disk if it must, or if a term or vote is being written."""
        if after_persist or self.hard_state is not None or self._hard_state_number > self.persisted:
            self.send_after_persist.append((to, message))
        else:
            self.send_now.append((to, message))

    def has_work(self, state: tuple[RaftRole, int, str]) -> bool:
        """Whether there is something to report. ``state`` is the present role, term and leader."""
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
        """Whether role, term or leader differ from the previous Ready."""
        return state != self._last_state

    def clear_taken(self, state: tuple[RaftRole, int, str]) -> None:
        """Remove everything that the present Ready contains."""
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
        """Record that the Readys up to ``number`` are durable."""
        assert number <= self.ready_number, f"Ready {number} was never returned"
        self.persisted = max(self.persisted, number)
