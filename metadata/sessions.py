"""The server's side of one connection to a metadata node: a client's requests, a peer's messages.

Synchronous: a frame is decoded and handed on; its answer is sent when the state has it. No task a request.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..runtime.errors import (
    Compacted,
    DistributedLogError,
    NotReady,
    ProtocolError,
    TooBusy,
    WrongPeer,
)
from ..runtime.frames import Op, envelope, error_body, pack
from ..runtime.rpc import Link
from ..runtime.schema import message
from .commands import Grant, Revoke, Transact, decode_command
from .forming import Founding
from .interface import Event, WatchBatch
from .kv import Answer, KeyValueState
from .messages import SnapshotChunk, SnapshotChunkReply, decode
from .wire import (
    STATUS_QUESTION,
    MembersRequest,
    ReadRequest,
    WatchRequest,
    decode_lease,
    encode_events,
    encode_item,
    encode_members,
    encode_outcome,
    encode_page,
    encode_rows,
)

if TYPE_CHECKING:
    from .replica import Replica
    from .server import MetadataNode

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


@dataclass(slots=True)
class _Watch:
    request: WatchRequest
    seen: int
    """The revision up to which its changes were looked for."""
    told: int | None = None
    """The revision that its client knows of from here."""


class MetadataSession:
    """One connection."""

    def __init__(self, node: "MetadataNode", link: Link) -> None:
        self._node = node
        self._link = link
        self._watches: dict[int, _Watch] = {}
        """By the client's number."""
        node.sessions[self] = None

    # --- runtime.link.Session ---------------------------------------------------------------------

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        """See `link.Session`."""
        replica = self._node.replica
        if op == Op.META_FORM:
            self._form(ident, body)
        elif op == Op.META_STATUS:
            self._status(ident, body)
        elif op == Op.META_MEMBERS:
            self._members(ident, body)
        elif replica is None:
            self._refuse(op, ident, NotReady(self._node.waiting_because))
        elif op == Op.META_RAFT:
            self._raft(replica, ident, body)
        elif op == Op.META_READ:
            self._read(replica, ident, body)
        elif op == Op.META_TRANSACT:
            self._transact(replica, ident, body)
        elif op == Op.META_LEASE:
            self._renew(ident, decode_lease(body))
        elif op == Op.META_WATCH:
            self._watch(replica.state, ident, body)
        elif op == Op.META_WATCH_CANCEL:
            self._watches.pop(ident, None)
        elif op == Op.INFO:
            if self._has_credit(ident):
                self._link.reply(ident, pack(self._node.info()))
        else:
            raise ProtocolError(
                f"{self._link.peer_address} asked a metadata node for operation {op}"
            )

    def on_batch_end(self) -> None:
        """See `link.Session`."""
        if self._node.replica is not None:
            self._node.replica.drain()

    def on_closed(self) -> None:
        """See `link.Session`."""
        del self._node.sessions[self]

    # --- requests ---------------------------------------------------------------------------------

    def _raft(self, replica: "Replica", ident: int, body: memoryview) -> None:
        peer = self._link.peer
        if peer.kind != "metadata" or peer.cluster_id != self._node.hello().cluster_id:
            raise WrongPeer(f"{self._link.peer_address} is no metadata node of this cluster")
        said = decode(body)
        if said.sender != peer.node_id:
            raise ProtocolError(f"{self._link.peer_address} speaks for {said.sender}")
        if isinstance(said, SnapshotChunkReply):
            raise ProtocolError("a snapshot's progress is a reply, not a message")
        if not self._node.may_speak(peer.node_id, self._link):
            return  # said again, when it is known that it is a member
        if isinstance(said, SnapshotChunk):
            self._node.receiver.take(said, lambda offset: self._link.reply(ident, pack([offset])))
        else:
            self._node.on_peer_heard(peer.node_id, self._link)
            replica.on_message(said)

    def _read(self, replica: "Replica", ident: int, body: memoryview) -> None:
        request = ReadRequest.decode(body)

        def ready(error: DistributedLogError | None) -> None:
            state = replica.state
            if error is not None:
                self._link.reply_error(ident, self._led_from_here(error))
            elif not self._has_credit(ident):
                return
            elif request.end is None:
                item = state.get(request.start)
                self._link.reply(ident, encode_item(state.index, state.revision, item))
            else:
                page = state.range(request.start, request.end, request.limit)
                self._link.reply(ident, encode_page(state.index, page))

        replica.read(ready)

    def _transact(self, replica: "Replica", ident: int, body: memoryview) -> None:
        command = bytes(body)
        try:
            meant = decode_command(command)
        except DistributedLogError as error:
            self._link.reply_error(ident, error)
            return
        if not isinstance(meant, Transact | Grant | Revoke) or not meant.client:
            raise ProtocolError(f"{self._link.peer_address} sent a command that is not a client's")

        def done(answer: Answer | DistributedLogError) -> None:
            if isinstance(answer, DistributedLogError):
                self._link.reply_error(ident, self._led_from_here(answer))
            else:
                self._link.reply(ident, encode_outcome(replica.state.index, answer))

        replica.request(command, meant, done)

    def _renew(self, ident: int, lease: int) -> None:
        def done(error: DistributedLogError | None) -> None:
            if error is None:
                self._link.reply(ident, pack([]))
            else:
                self._link.reply_error(ident, self._led_from_here(error))

        self._node.leases.renew(lease, done)

    def _form(self, ident: int, body: memoryview) -> None:
        if len(body):
            self._node.offer(
                Founding.decode(body), lambda answer: self._link.reply(ident, answer.encode())
            )
        else:
            self._link.reply(ident, self._node.form_answer().encode())

    def _status(self, ident: int, body: memoryview) -> None:
        if message(body, STATUS_QUESTION, "META_STATUS") == ("self",):
            if self._has_credit(ident):
                self._link.reply(ident, encode_rows([self._node.board.row()]))
        elif not self._node.ask_all(lambda rows: self._link.reply(ident, encode_rows(rows))):
            self._link.reply_error(ident, TooBusy("too many ask for the status of all nodes"))

    def _members(self, ident: int, body: memoryview) -> None:
        request = MembersRequest.decode(body)
        if request.kind == "show":
            if self._has_credit(ident):
                reached = self._node.board.reach(self._link.listener)
                self._link.reply(ident, encode_members(reached))
            return

        def done(error: DistributedLogError | None) -> None:
            if error is None:
                self._link.reply(ident, encode_members(self._node.board.reach(self._link.listener)))
            else:
                self._link.reply_error(ident, self._led_from_here(error))

        if self._node.admission is None:
            self._link.reply_error(ident, NotReady(self._node.waiting_because))
        else:
            self._node.admission.ask(request, done)

    def _has_credit(self, ident: int) -> bool:
        """May it be answered? Else the peer is told to read what it was sent, and to come again."""
        if self._node.endpoint.has_credit(self._link):
            return True
        self._link.reply_error(ident, TooBusy("answers wait here that are not read"))
        return False

    def _refuse(self, op: int, ident: int, error: DistributedLogError) -> None:
        if op == Op.META_WATCH:
            self._end_watch(ident, error)
        elif ident:  # Raft's messages have none, and are sent again
            self._link.reply_error(ident, error)

    def _led_from_here(self, error: DistributedLogError) -> DistributedLogError:
        return self._node.board.for_listener(error, self._link.listener)

    # --- watches ----------------------------------------------------------------------------------

    def _watch(self, state: KeyValueState, ident: int, body: memoryview) -> None:
        request = WatchRequest.decode(body)
        contact = self._node.quorum_contact
        if contact is not None and contact.lost is not None:
            self._end_watch(ident, contact.lost)
            return
        if len(self._watches) >= WATCHES_MAX:
            self._end_watch(ident, TooBusy(f"{WATCHES_MAX} watches on one connection"))
            return
        self._watches[ident] = _Watch(request, request.after_revision)
        self.push(state, ident)

    def end_watches(self, error: DistributedLogError) -> None:
        """No watch can be served here any more."""
        for ident in list(self._watches):
            self._end_watch(ident, error)

    def push(self, state: KeyValueState, only: int | None = None) -> None:
        """Send what has changed to the watches of this connection."""
        if not self._watches:
            return
        for ident in [only] if only is not None else list(self._watches):
            watch = self._watches[ident]
            if state.revision <= watch.seen:
                continue
            if self._link.outgoing_bytes > WATCH_BYTES_MAX:
                self._end_watch(ident, TooBusy("this watch's changes are read too slowly"))
                continue
            start, end = watch.request.start, watch.request.end
            try:
                found = state.events_after(watch.seen, start, end)
            except Compacted as error:
                self._end_watch(ident, error)
                continue
            # Looked at is not told: a quiet watch must not fall behind the history.
            watch.seen = state.revision
            new = watch.told is None
            if found or new or watch.seen - (watch.told or 0) >= PROGRESS_REVISIONS:
                watch.told = watch.seen
                self._send_changes(ident, watch.seen, found)

    def _send_changes(
        self, ident: int, revision: int, found: list[tuple[int, tuple[Event, ...]]]
    ) -> None:
        """Changes and how far they go, cut between revisions so that each message is within its bound."""
        events: list[Event] = []
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

    def _end_watch(self, ident: int, error: DistributedLogError) -> None:
        self._watches.pop(ident, None)
        body = error_body(error)
        self._link.send(
            envelope(Op.META_WATCH_EVENTS, len(body), ident=ident, status=error.code), body
        )
