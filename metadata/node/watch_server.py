"""The server's side of watches: which a connection has, and what each has been told (M6).

A watch is told of each change once, in order, and how far the state is when nothing concerns it. Whose
connection reads too slowly, or asks for changes that are forgotten, is told its end: the client takes it up
again (`watch_client.py`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import trio

from ...runtime.interfaces.errors import (
    Compacted,
    DistributedLogError,
    NotAllowed,
    NotReady,
    TooBusy,
)
from ...runtime.net.link import Link
from ...runtime.protocol.frames import Op, envelope, error_body
from ..auth.authorizer import Authorizer, VisibleParts, is_visible
from ..model.interface import WatchBatch, WatchEvent
from ..protocol.client_messages import WatchRequest, encode_events
from ..replica.replica import RaftReplica
from ..state.kv_state import KeyValueState

WATCHES_MAX = 10_000
WATCH_BYTES_MAX = 4 * 1024 * 1024
"""A connection that reads its changes too slowly is cut off here, and takes them up again."""
PROGRESS_REVISIONS = 1000
"""A quiet watch is told how far the state is, so that it need not list again after a reconnect."""
EVENTS_BYTES_MAX = 1024 * 1024
"""In one message, if they are not of one revision: that is never cut (and has bounds of its own)."""
EVENTS_MAX = 10_000
EVENT_BYTES = 40
"""What an event takes beside its key and value, about."""
LEADER_CHECK_S = 0.5
LEADERLESS_CHECKS_MAX = 6
"""So many looks in a row without a leader: longer than an election takes. Looks, not time: a node that stood
still has not been looking."""


def serial_of(link: Link) -> str:
    """Of the certificate that its peer has; "": of none."""
    return link.identity.serial if link.identity is not None else ""


@dataclass(slots=True)
class _ServedWatch:
    request: WatchRequest
    checked_revision: int
    """The revision up to which its changes were looked for."""
    sent_revision: int | None = None
    """The revision that its client knows of from here."""
    visible_parts: VisibleParts | None = None
    """Those of the range that it may see; None: all of it."""

    def filter_visible(
        self, changes: list[tuple[int, tuple[WatchEvent, ...]]]
    ) -> list[tuple[int, tuple[WatchEvent, ...]]]:
        """What is in these parts."""
        parts = self.visible_parts
        if parts is None:
            return changes
        visible_changes = []
        for revision, events in changes:
            visible_events = tuple(event for event in events if is_visible(parts, event.item.key))
            if visible_events:
                visible_changes.append((revision, visible_events))
        return visible_changes


class ServedWatches:
    """Those of one connection."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._watches: dict[int, _ServedWatch] = {}
        """By the client's number."""

    def __len__(self) -> int:
        return len(self._watches)

    @property
    def principal(self) -> str:
        """Whose they are."""
        return self._link.principal

    def open(
        self,
        state: KeyValueState,
        ident: int,
        request: WatchRequest,
        visible_parts: VisibleParts | None = None,
    ) -> None:
        """The client wants one more. ``parts``: of its range, what it may see."""
        if len(self._watches) >= WATCHES_MAX:
            self.end(ident, TooBusy(f"{WATCHES_MAX} watches on one connection"))
            return
        self._watches[ident] = _ServedWatch(
            request, request.after_revision, visible_parts=visible_parts
        )
        self.push(state, ident)

    def cancel(self, ident: int) -> None:
        """The client wants it no more."""
        self._watches.pop(ident, None)

    def judge(
        self, may_read: Callable[[Link, bytes, bytes], NotAllowed | VisibleParts | None]
    ) -> None:
        """Who may what has changed: end those that are allowed no more."""
        for ident, watch in list(self._watches.items()):
            visible_parts = may_read(self._link, watch.request.start, watch.request.end)
            if isinstance(visible_parts, NotAllowed):
                self.end(ident, visible_parts)
            else:
                watch.visible_parts = visible_parts

    def close_if_revoked(self, authorizer: Authorizer) -> bool:
        """Is it the connection of somebody who is no user any more? Then it ends here."""
        error = authorizer.connection_error(
            self._link.principal, serial_of(self._link), self._link.token
        )
        if error is not None:
            self._link.refuse(error)
        return error is not None

    def end_all(self, error: DistributedLogError) -> None:
        """No watch can be served here any more."""
        for ident in list(self._watches):
            self.end(ident, error)

    def end(self, ident: int, error: DistributedLogError) -> None:
        """Tell the client why that one is served no more, or never was."""
        self._watches.pop(ident, None)
        body = error_body(error)
        self._link.send(
            envelope(Op.META_WATCH_EVENTS, len(body), ident=ident, status=error.code), body
        )

    def push(self, state: KeyValueState, only: int | None = None) -> None:
        """Send what has changed to the watches of this connection."""
        if not self._watches:
            return
        for ident in [only] if only is not None else list(self._watches):
            watch = self._watches[ident]
            if state.revision <= watch.checked_revision:
                continue
            if self._link.outgoing_bytes > WATCH_BYTES_MAX:
                self.end(ident, TooBusy("this watch's changes are read too slowly"))
                continue
            start, end = watch.request.start, watch.request.end
            try:
                changes = watch.filter_visible(
                    state.events_after(watch.checked_revision, start, end)
                )
            except Compacted as error:
                self.end(ident, error)
                continue
            # Looked at is not told: a quiet watch must not fall behind the history.
            watch.checked_revision = state.revision
            is_new = watch.sent_revision is None
            if (
                changes
                or is_new
                or watch.checked_revision - (watch.sent_revision or 0) >= PROGRESS_REVISIONS
            ):
                watch.sent_revision = watch.checked_revision
                self._send_changes(ident, watch.checked_revision, changes)

    def _send_changes(
        self, ident: int, revision: int, changes: list[tuple[int, tuple[WatchEvent, ...]]]
    ) -> None:
        """Changes and how far they go, cut between revisions so that each message is within its bound."""
        events: list[WatchEvent] = []
        size = last_revision = 0
        for change_revision, revision_events in changes:
            change_bytes = sum(
                len(e.item.key) + len(e.item.value) + EVENT_BYTES for e in revision_events
            )
            if events and (size + change_bytes > EVENTS_BYTES_MAX or len(events) > EVENTS_MAX):
                self._send_events(ident, WatchBatch(last_revision, tuple(events)))
                events, size = [], 0
            events += revision_events
            size, last_revision = size + change_bytes, change_revision
        self._send_events(ident, WatchBatch(revision, tuple(events)))

    def _send_events(self, ident: int, batch: WatchBatch) -> None:
        body = encode_events(batch)
        self._link.send(envelope(Op.META_WATCH_EVENTS, len(body), ident=ident), body)


class LeaderContact:
    """Whether this node hears a leader, and the end of its watches if it does not.

    A node that is cut off from the quorum observes no change: a watch on it would be silent for ever, and its
    client could not distinguish that from quiet. The watch ends, and the client takes it up elsewhere (M6).
    """

    def __init__(self, replica: RaftReplica, watches: Iterable[ServedWatches]) -> None:
        self.lost_error: NotReady | None = None
        """The reason why no watch can be served here, or None."""
        self._replica = replica
        self._watches = watches

    async def run(self) -> None:
        """Look, until cancelled."""
        leaderless_checks = 0
        while True:
            await trio.sleep(LEADER_CHECK_S)
            if self._replica.raft.has_leader_contact(trio.current_time()):
                leaderless_checks, self.lost_error = 0, None
                continue
            leaderless_checks += 1
            if leaderless_checks == LEADERLESS_CHECKS_MAX:
                self.lost_error = NotReady(
                    f"this metadata node has heard no leader for {LEADERLESS_CHECKS_MAX * LEADER_CHECK_S:g} s"
                )
                for watches in list(self._watches):
                    watches.end_all(self.lost_error)
