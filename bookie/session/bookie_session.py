"""One connection: decode its frames, carry out adds and fences, send replies, without a task per request.

Adds and fences are carried out on arrival. Reads wait for their turn (`session_reads.py`). If the store
cannot accept adds yet, they are kept here, and no further frames are received.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

import trio

from ...runtime.interfaces.errors import (
    CapabilityOutdated,
    DistributedLogError,
    ProtocolError,
    TooBusy,
)
from ...runtime.net.link import Link
from ...runtime.protocol.capabilities import CapabilityKind
from ...runtime.protocol.frames import REPLY_MORE, Op, envelope, pack
from ..format import bookie_messages as m
from ..ledgers.ledger_table import IncomingStream, Ledger, LongPoll
from ..store.bookie_store import BookieStore
from .bookie_authorizer import BookieAuthorizer, PresentedCapabilities
from .read_scheduler import ReadScheduler
from .session_reads import SessionReads

WAIT_MS_MAX = 60_000
"""A long poll ends after this time even if its reader requested more, because the reader may be
disconnected."""


class BookieSession:
    """One connection: a `LinkSession` for its link, and an owner of streams and long polls for the store."""

    def __init__(
        self,
        store: BookieStore,
        read_scheduler: ReadScheduler,
        authorizer: BookieAuthorizer,
        link: Link,
        info: Callable[[], dict[str, object]],
    ) -> None:
        self._store = store
        self._add_handler = store.add_handler
        self._group_commit = store.group_commit
        self._ledgers = store.ledgers
        self._options = store.options
        self._read_scheduler = read_scheduler
        self._link = link
        self._info = info
        self._streams: dict[int, IncomingStream] = {}
        self._highest_stream = 0
        self._deferred: deque[tuple[IncomingStream, bytes]] = deque()
        self._deferred_lacs: dict[IncomingStream, int] = {}
        self._deferred_infos: list[int] = []
        """Requests for INFO that arrived after a deferred LAC: their answer shows that it was processed."""
        self._stream_keys: dict[int, bytes] = {}
        """The key that each stream presented when it was opened."""
        self._presented = PresentedCapabilities(authorizer, link)
        self._unsubscribe = authorizer.subscribe(self._recheck_access)
        self._long_polls: dict[LongPoll, bytes] = {}
        """The key that each long poll presented."""
        self._reads = SessionReads(store, read_scheduler, self._presented, link, self)
        self._has_new_adds = False
        """Whether a frame of the present receive put records into the journal buffer."""
        self._closed = False

    # --- frames -----------------------------------------------------------------------------------

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        """Handle one frame. Raises `ProtocolError`, which ends the connection."""
        if op == Op.ADD:
            self._on_add(ident, body)
        elif op == Op.ADD_MANY:
            self._on_add_many(
                m.decode_add_many_items(ident, body), body, m.ADD_MANY_ITEM_BYTES * ident
            )
        elif op == Op.READ:
            self._reads.on_read(ident, m.ReadEntriesRequest.decode(body))
        elif op == Op.WAIT_LAC:
            self._on_wait_lac(ident, m.WaitLacRequest.decode(body), flags)
        elif op == Op.WRITE_LAC:
            self._on_write_lac(ident, m.decode_lac(body))
        elif op == Op.WRITE_LACS:
            lacs = m.decode_lacs(body)
            if self._deferred:
                for number, lac in lacs:
                    self._on_write_lac(number, lac)
            else:
                self._store.write_lacs(self._streams, lacs)
        elif op == Op.STREAM_OPEN:
            self._on_stream_open(ident, m.StreamOpenRequest.decode(body))
        elif op == Op.FENCE:
            self._on_fence(ident, m.LedgerRequest.decode(body))
        elif op == Op.READ_LAC:
            self._on_read_lac(ident, m.LedgerRequest.decode(body))
        elif op == Op.LIST_ENTRIES:
            self._reads.on_list(ident, m.LedgerRequest.decode(body))
        elif op == Op.INFO:
            self._on_info(ident)
        else:
            raise ProtocolError(f"{self._link.peer_address} sent operation {op} to a bookie")

    def on_batch_end(self) -> None:
        """Commit the adds of one receive, and stop receiving if the journal buffer is full."""
        if self._has_new_adds:
            self._has_new_adds = False
            self._group_commit.commit_adds(self)
        if self._group_commit.is_full and not self._deferred:
            self._link.pause_reading()
            self._group_commit.call_when_capacity(self._resume)

    def on_closed(self) -> None:
        """End the streams and requests of the closed connection (H1)."""
        self._closed = True
        self._unsubscribe()
        self._group_commit.on_owner_closed(
            self
        )  # a frame may have ended the connection before `on_batch_end`
        for stream in self._streams.values():
            self._add_handler.close_stream(stream)
        self._streams.clear()
        for poll in self._long_polls:
            self._store.long_polls.remove(poll)
            self._ledgers.release_if_unused(poll.ledger)
        self._long_polls.clear()
        self._reads.close()
        self._store.device_reader.cancel(self)
        for _, body in self._deferred:
            self._store.stats.deferred_bytes -= len(body)
        self._deferred.clear()

    # --- adds -------------------------------------------------------------------------------------

    def _on_stream_open(self, number: int, request: m.StreamOpenRequest) -> None:
        if request.close:
            self._stream_keys.pop(number, None)
            stream = self._streams.pop(number, None)
            if stream is not None:
                self._add_handler.close_stream(stream)
            return
        if number <= self._highest_stream:
            raise ProtocolError(
                f"{self._link.peer_address} opened stream {number} after {self._highest_stream}"
            )
        self._highest_stream = number
        if len(self._streams) >= self._options.streams_max:
            # The other streams of this connection continue.
            count = len(self._streams)
            error = TooBusy(f"{count} add streams are open on this connection")
            self._refuse_stream(number, error, 0)
            return
        kind = CapabilityKind.RECOVER if request.recovery else CapabilityKind.ADD
        try:
            key = self._presented.key_to_check(kind, request.ledger, request.key)
        except CapabilityOutdated as error:  # before the ledger's state is read
            self._refuse_stream(number, error, 0)
            return
        self._stream_keys[number] = request.key
        self._streams[number] = self._add_handler.open_stream(
            self,
            number,
            request.ledger,
            key,
            recovery=request.recovery,
            fragment_epoch=request.fragment_epoch,
        )

    def _recheck_access(self) -> None:
        """Check open streams and long polls again, and end those that are no longer allowed.

        The authorizer calls this after a revocation, after a change of the mode or the keys, and when the
        bookie has lost contact with the quorum.
        """
        for number, stream in self._streams.items():
            kind = CapabilityKind.RECOVER if stream.recovery else CapabilityKind.ADD
            try:
                self._presented.key_to_check(kind, stream.ledger.id, self._stream_keys[number])
            except CapabilityOutdated as error:
                self._add_handler.refuse(stream, error)
        for poll, presented_key in list(self._long_polls.items()):
            try:
                self._presented.key_to_check(CapabilityKind.READ, poll.ledger.id, presented_key)
            except CapabilityOutdated as error:
                self._store.long_polls.remove(poll)
                self.on_poll_done(poll, error)

    def _on_add(self, number: int, body: memoryview) -> None:
        stream = self._streams.get(number)
        if stream is None:
            if number <= self._highest_stream:
                return  # it was closed
            raise ProtocolError(f"{self._link.peer_address} adds to stream {number}, not opened")
        accepted_bytes = 0
        if not self._deferred:
            self._has_new_adds = True
            single_item = iter(((number, len(body)),))
            if self._add_handler.add_single_entries(self._streams, single_item, body, 0) is None:
                return
            accepted_bytes = self._add_handler.add_records(stream, body, self._resume)
        if accepted_bytes < len(body):
            self._defer(stream, body[accepted_bytes:])

    def _on_add_many(self, items: list[tuple[int, int]], body: memoryview, offset: int) -> None:
        """Handle the ADDs of (stream, bytes) items in order. Their records begin at ``offset``."""
        add_single_entries, remaining_items = self._add_handler.add_single_entries, iter(items)
        self._has_new_adds = True
        while True:  # if adds are deferred, later ones are deferred behind them
            undecided = add_single_entries(
                {} if self._deferred else self._streams, remaining_items, body, offset
            )
            if undecided is None:
                return
            number, start, offset = undecided
            self._on_add(number, body[start:offset])

    def _defer(self, stream: IncomingStream, body: memoryview) -> None:
        """Keep received records until the journal buffer has space, and receive nothing more until then."""
        self._link.pause_reading()
        if self._store.stats.deferred_bytes + len(body) > self._options.deferred_bytes_max:
            self._add_handler.refuse(
                stream,
                TooBusy(f"{self._store.stats.deferred_bytes} bytes wait for the journal here"),
            )
            return
        self._store.stats.deferred_bytes += len(body)
        self._deferred.append((stream, bytes(body)))

    def _resume(self) -> None:
        """Add the deferred records after space was freed or the device answered, then receive again."""
        if self._closed:
            return
        while self._deferred:
            stream, body = self._deferred[0]
            accepted_bytes = self._add_handler.add_records(stream, memoryview(body), self._resume)
            self._group_commit.wake()
            self._store.stats.deferred_bytes -= accepted_bytes
            if accepted_bytes < len(body):
                self._deferred[0] = (stream, body[accepted_bytes:])
                return
            self._deferred.popleft()
        deferred_lacs, self._deferred_lacs = self._deferred_lacs, {}
        for stream, lac in deferred_lacs.items():
            self._store.write_lac(stream, lac)
        deferred_infos, self._deferred_infos = self._deferred_infos, []
        for ident in deferred_infos:
            self._on_info(ident)
        if self._group_commit.is_full:
            self._group_commit.call_when_capacity(self._resume)
        else:
            self._link.resume_reading()

    def _on_info(self, ident: int) -> None:
        if self._deferred_lacs:
            self._deferred_infos.append(ident)
        else:
            self._link.reply(ident, pack(self._info()))

    def _on_write_lac(self, number: int, lac: int) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        if self._deferred:
            self._deferred_lacs[stream] = lac  # after the adds that it may confirm
        else:
            self._store.write_lac(stream, lac)

    def on_acked(self, acks: list[tuple[int, int]]) -> None:
        """Send the acks of one commit in one frame."""
        if self._closed:
            return
        body = m.encode_acks(acks)
        flags = 0
        if self._store.long_polls.waiting_count:
            for number, _ in acks:
                stream = self._streams.get(number)
                if stream is not None and stream.ledger.long_polls:
                    flags = m.ACK_HAS_LONG_POLLS
                    break
        self._link.send(envelope(Op.ADD_ACKS, len(body), flags=flags) + body)
        self._link.flush()

    def on_refused(self, stream: IncomingStream, error: DistributedLogError, position: int) -> None:
        """Notify the peer of the first record that is refused."""
        if not self._closed:
            self._refuse_stream(stream.number, error, position)

    def _refuse_stream(self, number: int, error: DistributedLogError, position: int) -> None:
        body = m.encode_refusal(error, position)
        head = envelope(Op.STREAM_REFUSED, len(body), ident=number, status=error.code)
        self._link.send(head + body)

    # --- fences and LACs --------------------------------------------------------------------------

    def _on_fence(self, ident: int, request: m.LedgerRequest) -> None:
        self._reads.fence(ident, request.ledger, request.key, partial(self._reply_ends, ident))

    def _on_read_lac(self, ident: int, request: m.LedgerRequest) -> None:
        try:
            key = self._presented.key_to_check(CapabilityKind.LIST, request.ledger, request.key)
            self._reply_ends(ident, self._ledgers.get_known(request.ledger, key))
        except DistributedLogError as error:
            self._link.reply_error(ident, error)

    def _reply_ends(self, ident: int, ledger: Ledger) -> None:
        body = m.encode_lac_and_last(ledger.lac, ledger.last_entry)
        self._link.reply(ident, body, flags=0 if ledger.limbo else m.FLAG_PROVES_ABSENCE)

    def _on_wait_lac(self, ident: int, request: m.WaitLacRequest, flags: int) -> None:
        wait_s = min(request.wait_ms, WAIT_MS_MAX) / 1000

        def waiter_of(ledger: Ledger) -> LongPoll:
            poll = LongPoll(
                self,
                ident,
                ledger,
                key,
                request.previous_lac,
                request.bytes_max,
                trio.current_time() + wait_s,
                bool(flags & m.WAIT_PERSISTENT),
            )
            self._long_polls[poll] = request.key
            return poll

        try:
            key = self._presented.key_to_check(CapabilityKind.READ, request.ledger, request.key)
            self._store.add_long_poll(waiter_of, request.ledger, key)
        except DistributedLogError as error:
            for poll in [each for each in self._long_polls if each.ident == ident]:
                del self._long_polls[poll]
            self._link.reply_error(ident, error)

    def on_lac_advanced(self, poll: LongPoll) -> bool:
        """Answer a persistent poll and keep it, if all new records are in memory and fit."""
        if self._closed or not self._reads.has_credit:
            return False
        ledger = poll.ledger
        # A LAC above the last durable entry is reported when its entry is durable here.
        lac = min(ledger.lac, ledger.last_entry)
        if lac <= poll.previous_lac:
            return ledger.last_added_entry >= ledger.lac
        bytes_max = min(poll.bytes_max, self._options.reply_bytes_max)
        try:
            ledger.check_key(poll.key)
            entries = self._store.collect(ledger, poll.previous_lac + 1, lac, bytes_max)
        except DistributedLogError:
            return False  # `on_poll_done` reports the error
        if entries.complete_to < lac or entries.size_bytes >= bytes_max:
            return (
                False  # not in memory, or too large: the reader reads the entries and polls again
            )
        poll.previous_lac = lac
        poll.bytes_max -= entries.size_bytes
        self._store.stats.read_bytes += entries.size_bytes
        self._read_scheduler.record_reply(self._reads, entries.size_bytes)
        head = m.encode_wait_head(lac, ledger.fence_durable)
        self._link.reply(poll.ident, head, *entries.parts, flags=REPLY_MORE)
        return True

    def on_poll_done(self, poll: LongPoll, error: DistributedLogError | None) -> None:
        """Answer a long poll, with the new records that are in memory."""
        self._long_polls.pop(poll, None)
        if self._closed:
            return
        ledger = poll.ledger
        parts: list[bytes | memoryview] = []
        try:
            if error is not None:
                raise error
            ledger.check_key(poll.key)
            bytes_max = min(poll.bytes_max, self._options.reply_bytes_max)
            if bytes_max and ledger.lac > poll.previous_lac and self._reads.has_credit:
                entries = self._store.collect(ledger, poll.previous_lac + 1, ledger.lac, bytes_max)
                parts = entries.parts
                self._store.stats.read_bytes += entries.size_bytes
                self._read_scheduler.record_reply(self._reads, entries.size_bytes)
        except DistributedLogError as refusal:
            self._link.reply_error(poll.ident, refusal)
        else:
            self._link.reply(
                poll.ident, m.encode_wait_head(ledger.lac, ledger.fence_durable), *parts
            )
        self._ledgers.release_if_unused(ledger)
