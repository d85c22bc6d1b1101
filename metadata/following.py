"""What a node takes from its leader (pure): the third layer of the Raft core, see `roles.py`.

A leader need not be of the members that this node knows of: it may have been let in by entries that this
node lacks, or this node may know of nobody yet (thesis 4.1).

Source: Raft paper 5.3, 7. Hazards H26, H39.
"""

from ..runtime.errors import CorruptData
from .elections import Elections
from .messages import Append, AppendReply, Heartbeat, HeartbeatReply
from .ready import Snapshot


class Following(Elections):
    """Entries, commits and snapshots as they come in."""

    def _on_append(self, message: Append, now: float) -> None:
        if message.term < self.term:
            self._refuse_old_leader(message.sender)
            return
        self._follow(message.term, message.sender, now)
        if message.prev_index < self.commit:  # an old one: what is committed here is equal there
            self._accept(message.sender, self.commit)
            return
        if self.log.term_at(message.prev_index) != message.prev_term:
            hint_index, hint_term = self.log.hint(message.prev_index)
            self._send(
                message.sender,
                AppendReply(
                    self.term,
                    self.node_id,
                    False,
                    message.prev_index,
                    hint_index,
                    hint_term,
                    message.number,
                ),
            )
            return
        last = self.marks.accept(message.prev_index, message.entries)
        self._on_log_changed(now)
        self.marks.commit_to(min(message.commit, last))
        self._accept(message.sender, last)

    def _accept(self, leader_id: str, index: int) -> None:
        self._send(
            leader_id,
            AppendReply(self.term, self.node_id, True, index, 0, 0),
            index > self.durable_index,
        )

    def _on_heartbeat(self, message: Heartbeat, now: float) -> None:
        if message.term < self.term:
            self._refuse_old_leader(message.sender)
            return
        self._follow(message.term, message.sender, now)
        if message.commit > self.log.last_index:
            raise CorruptData(
                f"leader {message.sender} has this node's word for entry {message.commit}, "
                f"the log here ends at {self.log.last_index}: acknowledged entries were lost"
            )
        self.marks.commit_to(message.commit)
        if message.round:
            self._send(message.sender, HeartbeatReply(self.term, self.node_id, message.round))

    def _refuse_old_leader(self, sender: str) -> None:
        """Tell a leader of an earlier term that it is one; without this a node whose term ran ahead
        while it was cut off, and whom nobody votes for, would never be heard again."""
        self._send(sender, AppendReply(self.term, self.node_id, False, 0, 0, 0))

    def _on_snapshot_received(self, term: int, sender: str, snapshot: Snapshot, now: float) -> None:
        if term < self.term or self._has_rival(term, sender):
            return
        if not 0 < snapshot.term <= term or snapshot.index <= 0 or self.is_out_of_reach(term):
            return  # no entry is newer than its leader, no leader so far ahead
        self._follow(term, sender, now)
        if snapshot.index > self.commit:
            if self.log.term_at(snapshot.index) == snapshot.term:
                self.marks.commit_to(snapshot.index)  # paper 7: the log covers it, keep the rest
            else:
                self.marks.install(snapshot)
                self._on_log_changed(now)
        self._send(sender, AppendReply(self.term, self.node_id, True, self.commit, 0, 0), True)
