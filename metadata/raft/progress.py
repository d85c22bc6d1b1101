"""The leader's view of one peer's log, and how much it may send to the peer (pure).

In state PROBE, the leader sends one append at a time until one is accepted. In REPLICATE, it sends appends
before earlier ones are answered, with a limit in bytes. In SNAPSHOT, the peer needs compacted entries, and
the leader sends nothing until the driver reports the end of the snapshot.

An acknowledgement over a closed connection does not count, because the peer may have been restarted from an
older copy of its directory. Heartbeats still carry commit indexes up to it, so that the peer can detect
entries that it lost (H107). Acknowledgements count again when the peer has accepted an append that was sent
later.
"""

from collections import deque
from enum import Enum

IN_FLIGHT_APPENDS_MAX = 256


class ProgressState(Enum):
    """How a leader sends entries to a peer."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """The progress of one peer.

    ``next_index`` is the next entry to send. ``match`` is the last entry that the peer acknowledged as
    durable. ``quorum_match`` is the part of it that counts for commits.
    """

    __slots__ = (
        "acks_count_from",
        "commit_sent",
        "in_flight",
        "in_flight_bytes",
        "is_responsive",
        "last_contact",
        "match",
        "next_index",
        "probe_number",
        "probe_sent",
        "quorum_match",
        "refusals_count_from",
        "resend_probe",
        "round",
        "snapshot_catch_up_to",
        "snapshot_index",
        "state",
        "stuck_since",
    )

    def __init__(self, next_index: int, now: float) -> None:
        self.state = ProgressState.PROBE
        self.match = 0
        self.quorum_match = 0
        self.acks_count_from = (
            0  # acknowledgements of appends with lower numbers belong to an earlier connection
        )
        self.next_index = next_index
        self.last_contact = now
        # refusals of appends with lower numbers belong to an earlier attempt
        self.refusals_count_from = 0
        self.snapshot_catch_up_to = (
            0  # after a snapshot, entries from `snapshot_index` to here are kept for the peer
        )
        self.snapshot_index = 0
        self.is_responsive = False  # since the connection was last known to be lost
        self.round = 0
        self.commit_sent = 0
        self.probe_sent = False
        self.probe_number = 0  # number of the newest append that was sent as a probe
        self.resend_probe = False
        # time since which appends wait while heartbeats are answered, or -1
        self.stuck_since = -1.0
        self.in_flight: deque[tuple[int, int]] = (
            deque()
        )  # (last index, bytes) of unanswered appends
        self.in_flight_bytes = 0

    def on_sent(self, last_index: int, size: int) -> None:
        """Record an append with entries that was sent in state REPLICATE."""
        self.in_flight.append((last_index, size))
        self.in_flight_bytes += size
        self.next_index = last_index + 1

    def has_capacity(self, bytes_max: int) -> bool:
        """Whether another append may be sent before earlier ones are answered."""
        return self.in_flight_bytes < bytes_max and len(self.in_flight) < IN_FLIGHT_APPENDS_MAX

    def on_accepted(self, index: int, number: int, base_index: int) -> bool:
        """Record that the peer has all entries up to ``index``.

        Return whether more entries count for commits than before.

        ``number`` is that of the append that was answered, or 0 from an older version.
        """
        if (number and number < self.acks_count_from) or index < self.match > self.quorum_match:
            # of an earlier connection: a probe checks whether the peer still has the entries
            return False
        self.stuck_since = -1.0
        while self.in_flight and self.in_flight[0][0] <= index:
            self.in_flight_bytes -= self.in_flight.popleft()[1]
        has_advanced = index > self.quorum_match
        self.quorum_match = max(self.quorum_match, index)
        self.match = max(self.match, index)
        self.next_index = max(self.next_index, index + 1)
        if self.state is ProgressState.PROBE or (
            self.state is ProgressState.SNAPSHOT and self.match >= base_index
        ):
            self._set_state(ProgressState.REPLICATE, self.match + 1)
        return has_advanced

    def on_refused(self, number: int, prev_index: int, next_index: int, appends_sent: int) -> None:
        """Record that the peer lacks ``prev_index``, and continue at ``next_index``.

        A refusal of an earlier attempt is ignored. After a lost append, the peer refuses each append that
        was in flight after it, and only the first refusal may restart the replication.

        Args:
            number: The number of the refused append.
            prev_index: The entry that the peer lacks.
            next_index: The next entry to try.
            appends_sent: The number of appends sent so far.
        """
        self.stuck_since = -1.0
        if number < self.refusals_count_from or self.state is ProgressState.SNAPSHOT:
            return
        if prev_index <= self.match:
            is_newest_probe = self.state is ProgressState.PROBE and number >= self.probe_number
            if not is_newest_probe or prev_index != self.next_index - 1:
                return
            # The peer's disk has lost entries that it had acknowledged (H106).
            self.match = self.quorum_match = 0
            self.acks_count_from = appends_sent + 1
        self._set_state(ProgressState.PROBE, max(self.match + 1, min(next_index, prev_index)))
        self.refusals_count_from = appends_sent + 1

    def on_heard(self, now: float) -> None:
        """Record any answer of the peer."""
        self.last_contact = now
        if not self.is_responsive:
            self.is_responsive = True
            self.probe_sent = False  # the earlier probe was sent on a connection that is closed

    def on_heartbeat_answered(self, last_index: int, now: float, stuck_s: float) -> None:
        """Process an answered heartbeat.

        Appends that are unanswered for ``stuck_s`` may be lost, so probe again.
        """
        is_waiting = (
            self.probe_sent if self.state is ProgressState.PROBE else self.match < last_index
        )
        if not is_waiting:
            self.stuck_since = -1.0
        elif self.stuck_since < 0:
            self.stuck_since = now
        elif now - self.stuck_since >= stuck_s:
            self.stuck_since = now
            self.probe_sent = False
            self.resend_probe = self.state is ProgressState.REPLICATE

    def on_connection_lost(self, appends_sent: int) -> None:
        """Record that the connection was lost. Sending restarts from the last acknowledged entry.

        ``appends_sent`` is the number of appends sent so far. Answers to them do not show the state of the
        peer after it reconnects.
        """
        self.is_responsive = False
        self.quorum_match, self.acks_count_from = 0, appends_sent + 1
        self.snapshot_catch_up_to = 0
        if self.state is ProgressState.REPLICATE:
            self._set_state(ProgressState.PROBE, self.match + 1)
            self.probe_sent = True  # until it answers a heartbeat

    def on_silent(self) -> None:
        """Record that the peer was silent for an election timeout. The log is no longer kept for it."""
        self.is_responsive = False
        self.snapshot_catch_up_to = 0

    def on_snapshot_needed(self) -> None:
        """Send nothing until `on_snapshot_ended`."""
        self._set_state(ProgressState.SNAPSHOT, self.next_index)

    def on_snapshot_ended(self, index: int, delivered: bool, last_index: int) -> None:
        """Process the end of sending a snapshot.

        If it was not delivered, wait for a heartbeat reply, then retry.
        """
        if self.state is not ProgressState.SNAPSHOT:
            return
        if delivered:
            self.snapshot_index, self.snapshot_catch_up_to = index, last_index
        self._set_state(ProgressState.PROBE, max(self.match, index if delivered else 0) + 1)
        self.probe_sent = not delivered

    def compaction_limit(self, up_to: int, fully_fed_from: int) -> int | None:
        """Return the index after which the log must be kept for the peer, or None (H39).

        For a peer that receives a snapshot, the entries appended during the transfer are kept until it has
        them or is silent. Otherwise a peer whose transfer takes longer than the log is kept would never
        catch up. A peer that has everything up to ``fully_fed_from`` needs no snapshot.
        """
        if self.state is ProgressState.SNAPSHOT:
            return 0
        if self.match < self.snapshot_catch_up_to:
            return max(self.match, self.snapshot_index)
        if self.is_responsive and fully_fed_from <= self.match <= up_to:
            return self.match
        return None

    def _set_state(self, state: ProgressState, next_index: int) -> None:
        self.state = state
        self.next_index = next_index
        self.probe_sent = self.resend_probe = False
        self.in_flight.clear()
        self.in_flight_bytes = 0
