"""What a leader knows of one peer's log, and how much it may send it (pure).

PROBE: one append at a time, until one is accepted. REPLICATE: appends are sent ahead of their answers,
bounded in bytes. SNAPSHOT: the peer needs entries that are compacted; nothing until the driver says how
sending one ended.

What a peer acknowledged over a connection that is gone is not counted: it may have been started from an older
copy of its directory since. It is told all the same, or it would not know what it forgot (H107). It counts
again when the peer has accepted an append that was sent later.
"""

from collections import deque
from enum import Enum

IN_FLIGHT_APPENDS_MAX = 256


class ProgressState(Enum):
    """How a leader sends to a peer."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One peer, as its leader sees it. ``next``: to be sent next.

    ``match``: durable there, by its word. ``counted``: so far commits go by it.
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
            0  # acknowledgements of appends numbered below are of an earlier connection
        )
        self.next_index = next_index
        self.last_contact = now
        self.refusals_count_from = 0  # refusals of appends numbered below are of an earlier attempt
        self.snapshot_catch_up_to = (
            0  # it got a snapshot: entries from ``holds_from`` to here are still for it
        )
        self.snapshot_index = 0
        self.is_responsive = False  # since the connection was last known to break
        self.round = 0
        self.commit_sent = 0
        self.probe_sent = False
        self.probe_number = 0  # of the newest append that was sent as a probe
        self.resend_probe = False
        self.stuck_since = -1.0  # appends wait while heartbeats are answered; -1: they do not
        self.in_flight: deque[tuple[int, int]] = (
            deque()
        )  # (last index, bytes) of unanswered appends
        self.in_flight_bytes = 0

    def on_sent(self, last_index: int, size: int) -> None:
        """An append with entries went out in pace REPLICATE."""
        self.in_flight.append((last_index, size))
        self.in_flight_bytes += size
        self.next_index = last_index + 1

    def has_capacity(self, bytes_max: int) -> bool:
        """Whether another append may be sent ahead."""
        return self.in_flight_bytes < bytes_max and len(self.in_flight) < IN_FLIGHT_APPENDS_MAX

    def on_accepted(self, index: int, number: int, base_index: int) -> bool:
        """The peer has everything up to ``index``; True if more counts now.

        ``number``: of the append that it answers; 0 from an older version.
        """
        if (number and number < self.acks_count_from) or index < self.match > self.quorum_match:
            return False  # of an earlier connection: a probe asks whether it still is there
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
        """The peer lacks ``prev_index``: try ``next_index``, unless this answers an earlier attempt.

        ``sent`` appends were sent so far: a lost one is followed by a refusal of each that was in
        flight after it, and only the first of them may make the leader start again.
        """
        self.stuck_since = -1.0
        if number < self.refusals_count_from or self.state is ProgressState.SNAPSHOT:
            return
        if prev_index <= self.match:
            is_newest_probe = self.state is ProgressState.PROBE and number >= self.probe_number
            if not is_newest_probe or prev_index != self.next_index - 1:
                return
            self.match = self.quorum_match = 0  # its disk has lost what it had acknowledged (H106)
            self.acks_count_from = appends_sent + 1
        self._set_state(ProgressState.PROBE, max(self.match + 1, min(next_index, prev_index)))
        self.refusals_count_from = appends_sent + 1

    def on_heard(self, now: float) -> None:
        """Any answer of the peer arrived."""
        self.last_contact = now
        if not self.is_responsive:
            self.is_responsive = True
            self.probe_sent = False  # it is back: the probe went to a connection that is gone

    def on_heartbeat_answered(self, last_index: int, now: float, stuck_s: float) -> None:
        """The peer is there: appends unanswered for ``patience_s`` may be lost, ask again."""
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
        """The connection broke: what was in flight is unknown, start from what was answered.

        ``sent`` appends were sent so far: what answers them says nothing of who will be there now.
        """
        self.is_responsive = False
        self.quorum_match, self.acks_count_from = 0, appends_sent + 1
        self.snapshot_catch_up_to = 0
        if self.state is ProgressState.REPLICATE:
            self._set_state(ProgressState.PROBE, self.match + 1)
            self.probe_sent = True  # until it answers a heartbeat

    def on_silent(self) -> None:
        """Not heard for an election timeout: it has no claim on the log any more."""
        self.is_responsive = False
        self.snapshot_catch_up_to = 0

    def on_snapshot_needed(self) -> None:
        """Nothing is sent until `on_snapshot_ended`."""
        self._set_state(ProgressState.SNAPSHOT, self.next_index)

    def on_snapshot_ended(self, index: int, delivered: bool, last_index: int) -> None:
        """The driver's sending ended; undelivered: wait for a heartbeat's answer, then try again."""
        if self.state is not ProgressState.SNAPSHOT:
            return
        if delivered:
            self.snapshot_index, self.snapshot_catch_up_to = index, last_index
        self._set_state(ProgressState.PROBE, max(self.match, index if delivered else 0) + 1)
        self.probe_sent = not delivered

    def compaction_limit(self, up_to: int, fully_fed_from: int) -> int | None:
        """The log must stay behind this index for the peer's sake; None: it makes no claim (H39).

        A peer that gets a snapshot claims what was appended meanwhile, until it has caught up with
        that or is silent: else one that takes longer than the log's tail lives would never catch up.
        A peer that has everything up to ``fed_from`` needs no snapshot at all.
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
