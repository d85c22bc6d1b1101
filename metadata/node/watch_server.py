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
from ..auth.authorizer import Authorizer, Parts, is_within
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
STEP_S = 0.5
CUT_OFF_STEPS = 6
"""So many looks in a row without a leader: longer than an election takes. Looks, not time: a node that stood
still has not been looking."""


def serial_of(link: Link) -> str:
    """Of the certificate that its peer has; "": of none."""
    return link.identity.serial if link.identity is not None else ""


@dataclass(slots=True)
class _Watch:
    request: WatchRequest
    seen: int
    """The revision up to which its changes were looked for."""
    told: int | None = None
    """The revision that its client knows of from here."""
    parts: Parts | None = None
    """Those of the range that it may see; None: all of it."""

    def visible(
        self, found: list[tuple[int, tuple[WatchEvent, ...]]]
    ) -> list[tuple[int, tuple[WatchEvent, ...]]]:
        """What is in these parts."""
        parts = self.parts
        if parts is None:
            return found
        seen = []
        for revision, events in found:
            inside = tuple(event for event in events if is_within(parts, event.item.key))
            if inside:
                seen.append((revision, inside))
        return seen


class ServedWatches:
    """Those of one connection."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._watches: dict[int, _Watch] = {}
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
        parts: Parts | None = None,
    ) -> None:
        """The client wants one more. ``parts``: of its range, what it may see."""
        if len(self._watches) >= WATCHES_MAX:
            self.end(ident, TooBusy(f"{WATCHES_MAX} watches on one connection"))
            return
        self._watches[ident] = _Watch(request, request.after_revision, parts=parts)
        self.push(state, ident)

    def cancel(self, ident: int) -> None:
        """The client wants it no more."""
        self._watches.pop(ident, None)

    def judge(self, may_read: Callable[[Link, bytes, bytes], NotAllowed | Parts | None]) -> None:
        """Who may what has changed: end those that are allowed no more."""
        for ident, watch in list(self._watches.items()):
            part = may_read(self._link, watch.request.start, watch.request.end)
            if isinstance(part, NotAllowed):
                self.end(ident, part)
            else:
                watch.parts = part

    def is_out(self, trust: Authorizer) -> bool:
        """Is it the connection of somebody who is no user any more? Then it ends here."""
        why = trust.why_out(self._link.principal, serial_of(self._link), self._link.token)
        if why is not None:
            self._link.refuse(why)
        return why is not None

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
            if state.revision <= watch.seen:
                continue
            if self._link.outgoing_bytes > WATCH_BYTES_MAX:
                self.end(ident, TooBusy("this watch's changes are read too slowly"))
                continue
            start, end = watch.request.start, watch.request.end
            try:
                found = watch.visible(state.events_after(watch.seen, start, end))
            except Compacted as error:
                self.end(ident, error)
                continue
            # Looked at is not told: a quiet watch must not fall behind the history.
            watch.seen = state.revision
            new = watch.told is None
            if found or new or watch.seen - (watch.told or 0) >= PROGRESS_REVISIONS:
                watch.told = watch.seen
                self._send_changes(ident, watch.seen, found)

    def _send_changes(
        self, ident: int, revision: int, found: list[tuple[int, tuple[WatchEvent, ...]]]
    ) -> None:
        """Changes and how far they go, cut between revisions so that each message is within its bound."""
        events: list[WatchEvent] = []
        size = last = 0
        for at, changed in found:
            more = sum(len(e.item.key) + len(e.item.value) + EVENT_BYTES for e in changed)
            if events and (size + more > EVENTS_BYTES_MAX or len(events) > EVENTS_MAX):
                self._send_events(ident, WatchBatch(last, tuple(events)))
                events, size = [], 0
            events += changed
            size, last = size + more, at
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
        self.lost: NotReady | None = None
        """The reason why no watch can be served here, or None."""
        self._replica = replica
        self._watches = watches

    async def run(self) -> None:
        """Look, until cancelled."""
        silent = 0
        while True:
            await trio.sleep(STEP_S)
            if self._replica.raft.hears_leader(trio.current_time()):
                silent, self.lost = 0, None
                continue
            silent += 1
            if silent == CUT_OFF_STEPS:
                self.lost = NotReady(
                    f"this metadata node has heard no leader for {CUT_OFF_STEPS * STEP_S:g} s"
                )
                for watches in list(self._watches):
                    watches.end_all(self.lost)
