"""The server's part of watches: the watches of a connection, and the revision that each has received (M6).

A watch receives each change once, in order, and the revision of the state from time to time if nothing
changes. A watch ends if its connection reads too slowly, or if its changes are no longer kept. The client
then resumes it (`watch_client.py`).
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
"""Limit of unread bytes. Above it, the watches of a connection end, and the client resumes them."""
PROGRESS_REVISIONS = 1000
"""A quiet watch receives the revision at this interval, so that it need not list after a reconnect."""
EVENTS_BYTES_MAX = 1024 * 1024
"""Size limit of one message, except for a single revision, which is never split and has its own limit."""
EVENTS_MAX = 10_000
EVENT_BYTES = 40
"""Approximate size of an event in addition to its key and value."""
LEADER_CHECK_S = 0.5
LEADERLESS_CHECKS_MAX = 6
"""Number of consecutive checks without a leader after which the watches end. Longer than an election.

Checks are counted instead of time, because a process that did not run has not checked.
"""


def serial_of(link: Link) -> str:
    """Return the serial number of the peer's certificate, or "" without a certificate."""
    return link.identity.serial if link.identity is not None else ""


@dataclass(slots=True)
class _ServedWatch:
    request: WatchRequest
    checked_revision: int
    """The revision up to which changes were checked."""
    sent_revision: int | None = None
    """The revision that the client has received on this node."""
    visible_parts: VisibleParts | None = None
    """The visible parts of the range, or None if all of it is visible."""

    def filter_visible(
        self, changes: list[tuple[int, tuple[WatchEvent, ...]]]
    ) -> list[tuple[int, tuple[WatchEvent, ...]]]:
        """Return only the changes in the visible parts."""
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
    """The watches of one connection."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._watches: dict[int, _ServedWatch] = {}
        """Watches by the number that the client chose."""

    def __len__(self) -> int:
        return len(self._watches)

    @property
    def principal(self) -> str:
        """Return the principal of the connection."""
        return self._link.principal

    def open(
        self,
        state: KeyValueState,
        ident: int,
        request: WatchRequest,
        visible_parts: VisibleParts | None = None,
    ) -> None:
        """Open a watch. ``visible_parts`` are the parts of its range that the client may see."""
        if len(self._watches) >= WATCHES_MAX:
            self.end(ident, TooBusy(f"{WATCHES_MAX} watches on one connection"))
            return
        self._watches[ident] = _ServedWatch(
            request, request.after_revision, visible_parts=visible_parts
        )
        self.push(state, ident)

    def cancel(self, ident: int) -> None:
        """Remove a watch that the client cancelled."""
        self._watches.pop(ident, None)

    def reauthorize(
        self, may_read: Callable[[Link, bytes, bytes], NotAllowed | VisibleParts | None]
    ) -> None:
        """Authorize all watches again, and end those that are no longer allowed."""
        for ident, watch in list(self._watches.items()):
            visible_parts = may_read(self._link, watch.request.start, watch.request.end)
            if isinstance(visible_parts, NotAllowed):
                self.end(ident, visible_parts)
            else:
                watch.visible_parts = visible_parts

    def close_if_revoked(self, authorizer: Authorizer) -> bool:
        """Close the connection if its principal, certificate or token is no longer valid.

        Return whether it was closed.
        """
        error = authorizer.connection_error(
            self._link.principal, serial_of(self._link), self._link.token
        )
        if error is not None:
            self._link.refuse(error)
        return error is not None

    def end_all(self, error: DistributedLogError) -> None:
        """End all watches with this error."""
        for ident in list(self._watches):
            self.end(ident, error)

    def end(self, ident: int, error: DistributedLogError) -> None:
        """Send the client the error with which a watch ends or was refused."""
        self._watches.pop(ident, None)
        body = error_body(error)
        self._link.send(
            envelope(Op.META_WATCH_EVENTS, len(body), ident=ident, status=error.code), body
        )

    def push(self, state: KeyValueState, only: int | None = None) -> None:
        """Send changes to the watches of this connection, or to one of them."""
        if not self._watches:
            return
        for ident in [only] if only is not None else list(self._watches):
            watch = self._watches[ident]
            if state.revision <= watch.checked_revision:
                continue
            if self._link.outgoing_bytes > WATCH_BYTES_MAX:
                self.end(ident, TooBusy("the client reads the changes of this watch too slowly"))
                continue
            start, end = watch.request.start, watch.request.end
            try:
                changes = watch.filter_visible(
                    state.events_after(watch.checked_revision, start, end)
                )
            except Compacted as error:
                self.end(ident, error)
                continue
            # Update this without a message, so that a quiet watch stays within the history.
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
        """Send changes and the revision they reach.

        They are split between revisions to limit the size of a message.
        """
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
    """Checks whether this node has contact with a leader, and ends its watches otherwise.

    A node that is disconnected from the quorum receives no changes. A watch on it would be silent
    permanently, which its client could not distinguish from a quiet range. So the watch ends, and the
    client resumes it on another node (M6).
    """

    def __init__(self, replica: RaftReplica, watches: Iterable[ServedWatches]) -> None:
        self.lost_error: NotReady | None = None
        """The reason why no watch can be served here, or None."""
        self._replica = replica
        self._watches = watches

    async def run(self) -> None:
        """Check the contact, until cancelled."""
        leaderless_checks = 0
        while True:
            await trio.sleep(LEADER_CHECK_S)
            if self._replica.raft.has_leader_contact(trio.current_time()):
                leaderless_checks, self.lost_error = 0, None
                continue
            leaderless_checks += 1
            if leaderless_checks == LEADERLESS_CHECKS_MAX:
                self.lost_error = NotReady(
                    f"this metadata node has had no leader for {LEADERLESS_CHECKS_MAX * LEADER_CHECK_S:g} s"
                )
                for watches in list(self._watches):
                    watches.end_all(self.lost_error)
