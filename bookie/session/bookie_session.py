"""One connection to a bookie: frames in, acks and replies out, no task a request.

Adds and fences are carried out as they arrive; reads wait for their turn (`session_reads.py`). What the store
cannot take yet is kept here, and the connection is not read on.
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
from ..ledgers.ledger_table import IncomingStream, Ledger, Waiter
from ..store.bookie_store import BookieStore
from .bookie_authorizer import BookieAuthorizer, PresentedCapabilities
from .read_scheduler import ReadScheduler
from .session_reads import SessionReads

WAIT_MS_MAX = 60_000
"""A long poll ends after this time even if its reader asked for more: it may have been disconnected."""


class BookieSession:
    """One connection: a `Session` to its link, an owner of streams and waiters to the store."""

    def __init__(
        self,
        store: BookieStore,
        turns: ReadScheduler,
        gate: BookieAuthorizer,
        link: Link,
        info: Callable[[], dict[str, object]],
    ) -> None:
        self._store = store
        self._adds = store.adds
        self._commits = store.commits
        self._ledgers = store.ledgers
        self._options = store.options
        self._turns = turns
        self._link = link
        self._info = info
        """What INFO answers."""
        self._streams: dict[int, IncomingStream] = {}
        self._highest_stream = 0
        self._deferred: deque[tuple[IncomingStream, bytes]] = deque()
        self._late_lacs: dict[IncomingStream, int] = {}
        self._late_infos: list[int] = []
        """Requests for INFO that arrived after a deferred LAC: their answer shows that it was processed."""
        self._stream_keys: dict[int, bytes] = {}
        """What each was opened with."""
        self._shown = PresentedCapabilities(gate, link)
        self._leave_gate = gate.subscribe(self._look_again)
        self._waiters: dict[Waiter, bytes] = {}
        """With what each has shown."""
        self._reads = SessionReads(store, turns, self._shown, link, self)
        self._gathered = False
        """Has a frame of this receive gathered something?"""
        self._closed = False

    # --- frames -----------------------------------------------------------------------------------

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        """Take one frame. Raises `ProtocolError`, which ends the connection."""
        if op == Op.ADD:
            self._on_add(ident, body)
        elif op == Op.ADD_MANY:
            self._on_add_many(m.decode_many(ident, body), body, m.MANY_ITEM_BYTES * ident)
        elif op == Op.READ:
            self._reads.on_read(ident, m.ReadEntriesRequest.decode(body))
        elif op == Op.WAIT_LAC:
            self._on_wait_lac(ident, m.WaitLac.decode(body), flags)
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
            self._on_stream_open(ident, m.StreamOpen.decode(body))
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
        """All frames of one receive were taken: commit; is there room for more?"""
        if self._gathered:
            self._gathered = False
            self._commits.gathered(self)
        if self._commits.congested and not self._deferred:
            self._link.hold()
            self._commits.on_room(self._resume)

    def on_closed(self) -> None:
        """The connection is gone, and its streams die with it (H1)."""
        self._closed = True
        self._leave_gate()
        self._commits.gone(self)  # a frame may have ended the connection before `on_batch_end`
        for stream in self._streams.values():
            self._adds.close_stream(stream)
        self._streams.clear()
        for waiter in self._waiters:
            self._store.waiters.forget(waiter)
            self._ledgers.release(waiter.ledger)
        self._waiters.clear()
        self._reads.close()
        self._store.cold.forget(self)
        for _, body in self._deferred:
            self._store.stats.deferred_bytes -= len(body)
        self._deferred.clear()

    # --- adds -------------------------------------------------------------------------------------

    def _on_stream_open(self, number: int, request: m.StreamOpen) -> None:
        if request.close:
            self._stream_keys.pop(number, None)
            stream = self._streams.pop(number, None)
            if stream is not None:
                self._adds.close_stream(stream)
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
            key = self._shown.key(kind, request.ledger, request.key)
        except CapabilityOutdated as error:  # before anything is known of the ledger
            self._refuse_stream(number, error, 0)
            return
        self._stream_keys[number] = request.key
        self._streams[number] = self._adds.open_stream(
            self,
            number,
            request.ledger,
            key,
            recovery=request.recovery,
            fragment_epoch=request.fragment_epoch,
        )

    def _look_again(self) -> None:
        """What is checked by has changed: is what was let in still allowed?"""
        for number, stream in self._streams.items():
            kind = CapabilityKind.RECOVER if stream.recovery else CapabilityKind.ADD
            try:
                self._shown.key(kind, stream.ledger.id, self._stream_keys[number])
            except CapabilityOutdated as error:
                self._adds.refuse(stream, error)
        for waiter, shown in list(self._waiters.items()):
            try:
                self._shown.key(CapabilityKind.READ, waiter.ledger.id, shown)
            except CapabilityOutdated as error:
                self._store.waiters.forget(waiter)
                self.on_wait_over(waiter, error)

    def _on_add(self, number: int, body: memoryview) -> None:
        stream = self._streams.get(number)
        if stream is None:
            if number <= self._highest_stream:
                return  # it was closed
            raise ProtocolError(f"{self._link.peer_address} adds to stream {number}, not opened")
        taken = 0
        if not self._deferred:
            self._gathered = True
            lone = iter(((number, len(body)),))
            if self._adds.take_lone(self._streams, lone, body, 0) is None:
                return
            taken = self._adds.take(stream, body, self._resume)
        if taken < len(body):
            self._defer(stream, body[taken:])

    def _on_add_many(self, items: list[tuple[int, int]], frame: memoryview, at: int) -> None:
        """The ADDs of (stream, bytes), one after another; their records begin at ``at``."""
        take_lone, rest = self._adds.take_lone, iter(items)
        self._gathered = True
        while True:  # where something waits, all that comes is to wait after it
            left = take_lone({} if self._deferred else self._streams, rest, frame, at)
            if left is None:
                return
            number, start, at = left
            self._on_add(number, frame[start:at])

    def _defer(self, stream: IncomingStream, body: memoryview) -> None:
        """The ring is full: keep what was received already, and read on when there is room."""
        self._link.hold()
        if self._store.stats.deferred_bytes + len(body) > self._options.deferred_bytes_max:
            self._adds.refuse(
                stream,
                TooBusy(f"{self._store.stats.deferred_bytes} bytes wait for the journal here"),
            )
            return
        self._store.stats.deferred_bytes += len(body)
        self._deferred.append((stream, bytes(body)))

    def _resume(self) -> None:
        """There is room, or the device has answered: go on with what was kept, then with reading."""
        if self._closed:
            return
        while self._deferred:
            stream, body = self._deferred[0]
            taken = self._adds.take(stream, memoryview(body), self._resume)
            self._commits.wake()
            self._store.stats.deferred_bytes -= taken
            if taken < len(body):
                self._deferred[0] = (stream, body[taken:])
                return
            self._deferred.popleft()
        late_lacs, self._late_lacs = self._late_lacs, {}
        for stream, lac in late_lacs.items():
            self._store.write_lac(stream, lac)
        late_infos, self._late_infos = self._late_infos, []
        for ident in late_infos:
            self._on_info(ident)
        if self._commits.congested:
            self._commits.on_room(self._resume)
        else:
            self._link.release()

    def _on_info(self, ident: int) -> None:
        if self._late_lacs:
            self._late_infos.append(ident)
        else:
            self._link.reply(ident, pack(self._info()))

    def _on_write_lac(self, number: int, lac: int) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        if self._deferred:
            self._late_lacs[stream] = lac  # after the adds that it may confirm
        else:
            self._store.write_lac(stream, lac)

    def on_acked(self, acks: list[tuple[int, int]]) -> None:
        """By one commit, as one frame."""
        if self._closed:
            return
        body = m.encode_acks(acks)
        flags = 0
        if self._store.waiters.waiting:
            for number, _ in acks:
                stream = self._streams.get(number)
                if stream is not None and stream.ledger.waiters:
                    flags = m.ACK_WATCHED
                    break
        self._link.send(envelope(Op.ADD_ACKS, len(body), flags=flags) + body)
        self._link.flush()

    def on_refused(self, stream: IncomingStream, error: DistributedLogError, position: int) -> None:
        """Tell the sender which record was the first that is not taken."""
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
            key = self._shown.key(CapabilityKind.LIST, request.ledger, request.key)
            self._reply_ends(ident, self._ledgers.look_up(request.ledger, key))
        except DistributedLogError as error:
            self._link.reply_error(ident, error)

    def _reply_ends(self, ident: int, ledger: Ledger) -> None:
        body = m.encode_ends(ledger.lac, ledger.last_entry)
        self._link.reply(ident, body, flags=0 if ledger.limbo else m.FLAG_KNOWN)

    def _on_wait_lac(self, ident: int, request: m.WaitLac, flags: int) -> None:
        wait_s = min(request.wait_ms, WAIT_MS_MAX) / 1000

        def waiter_of(ledger: Ledger) -> Waiter:
            waiter = Waiter(
                self,
                ident,
                ledger,
                key,
                request.previous_lac,
                request.bytes_max,
                trio.current_time() + wait_s,
                bool(flags & m.WAIT_STANDING),
            )
            self._waiters[waiter] = request.key
            return waiter

        try:
            key = self._shown.key(CapabilityKind.READ, request.ledger, request.key)
            self._store.wait_lac(waiter_of, request.ledger, key)
        except DistributedLogError as error:
            for waiter in [each for each in self._waiters if each.ident == ident]:
                del self._waiters[waiter]
            self._link.reply_error(ident, error)

    def on_wait_news(self, waiter: Waiter) -> bool:
        """Answer a standing poll and let it stand, where all new records are at hand and fit."""
        if self._closed or not self._reads.has_credit:
            return False
        ledger = waiter.ledger
        # What is confirmed, but here still on its way to the disk, is told with its record.
        lac = min(ledger.lac, ledger.last_entry)
        if lac <= waiter.previous_lac:
            return ledger.top >= ledger.lac
        bytes_max = min(waiter.bytes_max, self._options.reply_bytes_max)
        try:
            ledger.check_key(waiter.key)
            found = self._store.collect(ledger, waiter.previous_lac + 1, lac, bytes_max)
        except DistributedLogError:
            return False  # `on_wait_over` says it
        if found.complete_to < lac or found.size >= bytes_max:
            return False  # cold, or more than may be sent: the reader catches up, and comes again
        waiter.previous_lac = lac
        waiter.bytes_max -= found.size
        self._store.stats.read_bytes += found.size
        self._turns.note_reply(self._reads, found.size)
        head = m.encode_wait_head(lac, ledger.fence_durable)
        self._link.reply(waiter.ident, head, *found.parts, flags=REPLY_MORE)
        return True

    def on_wait_over(self, waiter: Waiter, error: DistributedLogError | None) -> None:
        """Answer a long poll, with the records that are at hand."""
        self._waiters.pop(waiter, None)
        if self._closed:
            return
        ledger = waiter.ledger
        parts: list[bytes | memoryview] = []
        try:
            if error is not None:
                raise error
            ledger.check_key(waiter.key)
            bytes_max = min(waiter.bytes_max, self._options.reply_bytes_max)
            if bytes_max and ledger.lac > waiter.previous_lac and self._reads.has_credit:
                found = self._store.collect(ledger, waiter.previous_lac + 1, ledger.lac, bytes_max)
                parts = found.parts
                self._store.stats.read_bytes += found.size
                self._turns.note_reply(self._reads, found.size)
        except DistributedLogError as refusal:
            self._link.reply_error(waiter.ident, refusal)
        else:
            self._link.reply(
                waiter.ident, m.encode_wait_head(ledger.lac, ledger.fence_durable), *parts
            )
        self._ledgers.release(ledger)
