"""Where the entries of a proxied writer go: frames on a stream to the proxy that has the log.

The log's order is the stream's: a batch is a frame, frames are answered in order, and what a stream refuses
is sent again, in order and with the same borders, on the next one, which is opened where the log is by then.
Of a plain producer that is done only with frames that are certainly not stored: where that is not known the
writer ends and says so (G7). A named one's frame, once sent, is under way until it is answered, on whichever
stream: what a connection had that broke may be read by its proxy when the next one is long there.
A stream is opened again when there is something to send, not before.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import trio

from ...log.format.dlsn import DLSN
from ...log.format.producer_table import FRAMES_KEPT
from ...log.format.record import RECORD_COLUMN_BYTES
from ...log.model.log_state import LogState
from ...log.write.entry_batch import EntryBatch
from ...log.write.producer_state_manager import OpenedProducer, ProducerStateManager
from ...log.write.send_queue import SendQueue
from ...runtime.interfaces.errors import (
    AlreadyClosed,
    ConnectionLost,
    DistributedLogError,
    InvalidRequest,
    LedgerFenced,
    Moved,
    PositionConflict,
    ProtocolError,
    RequestTimeout,
    TooBusy,
    WriteFailed,
    WriterFenced,
)
from ...runtime.protocol.frames import Op
from ...runtime.protocol.handshake import FEATURE_COMMIT
from ...runtime.protocol.schema import flag
from ..protocol.proxy_messages import (
    ACK_NO_POSITION,
    Ack,
    LogCall,
    ProduceOpen,
    ProduceOpened,
    Refusal,
    about_stream,
    encode_commit,
    produce_frame,
)
from .batch_sender import SUSPECT_S
from .proxy_client import ANSWER_S, ProxyClient, ProxyStream, StreamEnd

COMMIT_RETRY_S = 0.1
OWNER_CHANGES = (ConnectionLost, Moved, AlreadyClosed, TooBusy, WriterFenced, LedgerFenced)
"""Answers to a commit after which the next owner of the log is asked."""
LAST_WORD_S = 0.5
"""Where another proxy has the log, a plain writer waits so long for what its owner has said of it."""


@dataclass(slots=True, eq=False)
class _ConditionalAppend:
    """A batch of one record that is appended directly after ``expect``, or not at all (G10)."""

    batch: EntryBatch
    expect: DLSN
    uncertain_sends: int = 0
    """Streams on which it was sent and not refused."""


class ProducerSink:
    """See the module. `open` first, then `bind` makes it a writer's."""

    following = None
    """A stream never goes over to another one while it works."""
    room = True
    """What may be sent is what `sendable` says."""
    wants_snapshot = False
    """The log's owner keeps its producers."""

    def __init__(
        self,
        client: ProxyClient,
        path: str,
        name: str,
        *,
        incarnation: str,
        create: bool,
        open_s: float,
        producer: str = "",
    ) -> None:
        """``open_s``: for so long it is tried to open a stream again. ``producer``: a name, whose records the
        log has once."""
        self._client = client
        self._path, self._name = path, name
        self._incarnation = incarnation
        self._create = create
        self._producer = producer
        self._number = 0
        """Of the producer, since it was opened."""
        self._open_s = open_s
        self._pipeline: SendQueue | None = None
        self._stream: ProxyStream | None = None
        self._first: ProduceOpened | None = None
        self._serial = 0
        """Of the last batch that was sent, in the pipeline's eyes."""
        self._next = 0
        """The sequence of the next batch's first record."""
        self._sent: deque[tuple[EntryBatch, int, int, int]] = deque()
        """Batch, first sequence, records, bytes of each frame that is not answered."""
        self._there = 0
        """So many of these, the first ones, the log's owner has, or this stream; the rest is sent again."""
        self._held_bytes = 0
        """Of those that are there."""
        self._news_at = 0.0
        self._pause_s = 0.0
        self._place = (0, 0, 0)
        self._last: DLSN | None = None
        self._end = StreamEnd(self.on_ack, self.on_refused, self.on_lost, self.on_sweep)
        self._wake = trio.Event()
        self._late = False
        self._over = False
        self._conditional_turn = trio.Lock()
        self._conditional: _ConditionalAppend | None = None
        """The conditional append that waits for the frames before it, or for its answer. No other
        batch is sent until then: it would have the sequence of a record that may be refused."""
        self._answered: trio.Event | None = None
        """Set after an answer, if a task waits for one."""

    async def open(self, deadline: float) -> LogState:
        """Open a first stream; the log, as a writer must know it. Raises as `ProxyClient.open_stream`."""
        while self._stream is None:  # the connection may break in the very moment
            await self._open(deadline)
        opened = self._first = self._stream.opened
        self._incarnation, self._next = opened.incarnation, opened.next_sequence
        return LogState(
            int(opened.incarnation, 16),
            self._name,
            0,
            txid_rule=opened.txid_rule,
            last_txid=opened.last_txid,
        )

    @property
    def own(self) -> OpenedProducer | None:
        """The producer, as it was opened first; None: there is none."""
        opened = self._first
        if not self._producer or opened is None:
            return None
        return OpenedProducer(self._producer, opened.number, opened.next_sequence, opened.known)

    def bind(self, pipeline: SendQueue) -> "ProducerSink":
        """It is this one's."""
        self._pipeline = pipeline
        return self

    # --- for the pipeline -------------------------------------------------------------------------

    @property
    def current(self) -> "ProducerSink":
        """What entries are sent to: itself."""
        return self

    @property
    def number(self) -> int:
        """The segment of the last record that is acknowledged; 0: none is."""
        return self._place[0]

    @property
    def position(self) -> tuple[DLSN, int]:
        """Raises `InvalidRequest`: others' records are between, and their number is not told."""
        raise InvalidRequest(
            f'log "{self._name}": the position of a proxied writer is not known; the DLSN of each record is'
        )

    @property
    def sendable(self) -> bool:
        """May a frame go now?"""
        stream = self._stream
        return (
            stream is not None
            and self._conditional is None
            and stream.proxy.link.closed is None  # else `on_lost` is about to come
            and (not self._sent or self._held_bytes < stream.opened.window_bytes)
            and (not self._producer or len(self._sent) < FRAMES_KEPT)
        )

    def look(self, *, drained: bool) -> bool:
        """There is something to send: may it go now?"""
        if self._stream is None:
            self._wake.set()
        return self.sendable

    def wake(self) -> None:
        """Look after the stream."""
        self._wake.set()

    def wait_room(self) -> None:
        """There always is."""

    def send(
        self, batch: EntryBatch, wall_ms: int, producers: ProducerStateManager | None = None
    ) -> None:
        """Send a batch as one frame."""
        first, count = self._next, len(batch.txids)
        if not self._sent:
            self._news_at = trio.current_time()
        self._serial += 1
        batch.entry = self._serial
        self._next = first + count
        batch.stored_bytes = size = self._send(batch, first)
        self._sent.append((batch, first, count, size))

    def _send(self, batch: EntryBatch, first: int) -> int:
        """Put it on the stream; its bytes."""
        stream = self._stream
        assert stream is not None, "asked while there is one"
        columns = batch.columns
        payloads = batch.payloads if columns is None else list(columns.each_payload())
        through = self._sent[0][1] if self._sent else first
        conditional = self._conditional_of(batch)
        frame = produce_frame(
            stream.number,
            first,
            through,
            batch.txids if batch.given else None,
            payloads,
            record_flags=None if batch.sets is None else batch.record_flags(),
            expect=None if conditional is None else conditional.expect,
        )
        if conditional is not None:
            conditional.uncertain_sends += 1
        self._there += 1
        self._held_bytes += len(frame)
        stream.proxy.produce(frame)
        return len(frame)

    def confirm(self, batch: EntryBatch) -> None:
        """A batch is stored where the last acknowledgement says."""
        batch.segment, batch.entry, batch.first_slot = self._place
        batch.finish()

    def publish(self) -> None:
        """Make what is acknowledged readable."""
        self._tell(Op.PRODUCE_PUBLISH)

    async def make_readable(self) -> None:
        """Wait until the log's owner confirms that readers see every acknowledged record.

        An owner of an older version has no answer to that: it is asked to publish, as before. Raises the
        writer's error, and `RequestTimeout`.
        """
        with trio.move_on_after(ANSWER_S):
            while True:
                self._of_pipeline.raise_if_over()
                stream = self._stream
                if stream and not stream.proxy.link.peer.features & FEATURE_COMMIT:
                    self.publish()
                    return
                if stream:
                    # Another owner, or none for a moment: the record is stored, so the question is repeated.
                    with suppress(*OWNER_CHANGES):
                        body = encode_commit(stream.number)
                        await stream.proxy.link.request(Op.PRODUCE_COMMIT, body, timeout_s=ANSWER_S)
                        return
                self._wake.set()
                await trio.sleep(COMMIT_RETRY_S)
        raise RequestTimeout(
            f'log "{self._name}": its owner did not confirm within {ANSWER_S:g} s that readers see the'
            " records; they are durable"
        )

    async def append_after(self, expect: DLSN, payload: bytes, txid: int | None) -> DLSN:
        """Append one record of a producer directly after ``expect``, as the only frame in flight.

        If the call is cancelled, the record may or may not be written. The next frame waits for its answer.

        Raises:
            PositionConflict: The log's last record is another one. Nothing was written.
            WriteFailed, WriterFenced, and others: The writer has ended.
        """
        assert self._producer, "a plain frame cannot be sent again"
        batch, pipeline = EntryBatch(), self._of_pipeline
        batch.txids, batch.payloads = [txid or 0], [payload]
        batch.given, batch.bytes = txid is not None, len(payload) + RECORD_COLUMN_BYTES
        async with self._conditional_turn:
            while self._conditional is not None:  # its caller was cancelled
                await self._next_answer()
            self._conditional = _ConditionalAppend(batch, expect)
            try:
                while self._sent:
                    await self._next_answer()
                pipeline.raise_if_over()
            except BaseException:
                self._end_conditional()
                raise
            self._sent.append((batch, self._next, 1, 0))
            self._next += 1
            if self._is_open:
                self._news_at = trio.current_time()
                self._send_rest()
            else:
                self._wake.set()
            await batch.wait()
        return batch.dlsn(0)

    async def _next_answer(self) -> None:
        if self._answered is None:
            self._answered = trio.Event()
        await self._answered.wait()

    def _on_answer(self) -> None:
        if self._answered is not None:
            self._answered.set()
            self._answered = None

    def _end_conditional(self) -> None:
        """Let other batches be sent again."""
        self._conditional = None
        self._on_answer()
        self._of_pipeline.wake()

    def _conditional_of(self, batch: EntryBatch) -> _ConditionalAppend | None:
        """The conditional append of this batch; None for other batches."""
        conditional = self._conditional
        return conditional if conditional is not None and conditional.batch is batch else None

    def _refuse_conditional(
        self, conditional: _ConditionalAppend, conflict: PositionConflict
    ) -> None:
        """Report a conflict to the caller, if no earlier stream can still store the record.

        A frame of a broken connection may be read by its proxy later. It is refused as well if the log is
        past the expected position. Otherwise the log may still reach that position.
        """
        if conditional.uncertain_sends and not self._is_past(conflict, conditional.expect):
            self._of_pipeline.fail(self._unknown(conflict))
            return
        self._next = self._sent[0][1]
        self._forget_sent()
        conditional.batch.finish(conflict)
        self._end_conditional()
        self._wake_if_needed()

    @staticmethod
    def _is_past(conflict: PositionConflict, expect: DLSN) -> bool:
        try:
            return DLSN.parse(conflict.last) > expect
        except DistributedLogError:
            return False

    def abort(self) -> None:
        """Send nothing more. Synchronous and idempotent."""
        self._over = True
        conditional, self._conditional = self._conditional, None
        if conditional is not None:
            conditional.batch.finish(
                WriteFailed(
                    f'log "{self._name}": the writer has ended; the record that was to come after '
                    f"{conditional.expect} may be stored"
                )
            )
        self._forget_sent()
        self._drop()
        self._wake.set()
        self._on_answer()

    async def finish(self, then: Callable[[LogState], LogState]) -> None:
        """Nothing more comes, and all is answered. ``then``: does the log end here, too?"""
        while self._conditional is not None:
            await self._next_answer()
        self._drop()
        self._over = True
        if then(LogState(0, self._name, 0)).sealed:
            await self._client.call(
                LogCall(self._path, "seal", self._name, self._incarnation, [False, None]), flag
            )

    async def run(self) -> None:
        """Open streams, until cancelled or the writer is over."""
        while not self._over:
            await self._wake.wait()
            self._wake = trio.Event()
            try:
                if self._over:
                    return
                if self._stream is None:
                    await self._open(trio.current_time() + self._open_s)
                    self._of_pipeline.wake()
                elif self._late:
                    await self._ask_another(self._stream)
            except DistributedLogError as error:
                self._of_pipeline.fail(error)

    # --- streams ----------------------------------------------------------------------------------

    @property
    def _of_pipeline(self) -> SendQueue:
        assert self._pipeline is not None, "bound when its writer was made"
        return self._pipeline

    def _request(self, stream: int, suspect: str) -> ProduceOpen:
        return ProduceOpen(
            stream,
            self._path,
            self._name,
            self._incarnation,
            self._producer,
            self._number,
            through=self._sent[0][1] if self._sent else self._next,
            suspect=suspect,
            create=self._create,
        )

    async def _open(self, deadline: float) -> None:
        pause_s, self._pause_s = self._pause_s, 0.0
        stream = await self._client.open_stream(
            self._request, self._path, self._name, self._end, deadline=deadline, pause_s=pause_s
        )
        if self._over:
            stream.close()
        if self._over or stream.ended:
            self._stream = None
            self._wake.set()
            return
        self._enter(stream)

    def _enter(self, stream: ProxyStream) -> None:
        """Go on with this one. What its owner has of the producer it answers; the rest is sent again."""
        opened, sent = stream.opened, self._sent
        self._stream, self._late = stream, False
        self._news_at = trio.current_time()
        if not self._producer or self._pipeline is None:
            self._number = opened.number
            assert not sent, "a plain one's frames are never sent twice"
            self._next = (
                opened.next_sequence
            )  # what was asked for; more may have been answered meanwhile
            return
        first = sent[0][1] if sent else self._next
        if opened.next_sequence < first:
            raise WriteFailed(
                f'log "{self._name}": producer {self._producer} has {opened.next_sequence} records there, '
                f"{first} were acknowledged"
            )
        self._number = opened.number
        there = sum(1 for _, at, count, _ in sent if at + count <= opened.next_sequence)
        goes_on = sent[there][1] if there < len(sent) else self._next
        if goes_on != opened.next_sequence:
            raise ProtocolError(
                f'log "{self._name}": producer {self._producer} goes on at {opened.next_sequence} there, at '
                f"{goes_on} here"
            )
        self._there = there
        self._held_bytes = sum(size for *_, size in islice(sent, there))
        self._send_rest()

    def _send_rest(self) -> None:
        """Send again what the owner has not, in order, as far as the stream's window goes."""
        stream, sent = self._stream, self._sent
        while (
            stream is not None
            and self._there < len(sent)
            and (not self._there or self._held_bytes < stream.opened.window_bytes)
        ):
            batch, first, count, _ = sent[self._there]
            size = self._send(batch, first)
            sent[self._there - 1] = batch, first, count, size

    async def _ask_another(self, stream: ProxyStream) -> None:
        """The owner does not answer: does another one find that it is gone?"""
        self._late, self._news_at = False, trio.current_time()
        found = await self._client.probe(
            self._request, self._path, self._name, self._end, stream.proxy.proxy_id
        )
        if found is None:
            return
        if not self._producer:
            # Who gave the log up has said of each frame what became of it, and that may be on its way.
            until = trio.current_time() + LAST_WORD_S
            while self._sent and not stream.ended and trio.current_time() < until:  # noqa: ASYNC110
                await trio.sleep(0.01)
        self._drop()
        if self._sent and not self._producer:
            self.on_lost(Moved(f"{stream.proxy.link.peer_address} has lost the log"))
        if self._over:
            found.close()
        elif found.ended:
            self._wake.set()
        else:
            self._enter(found)
            self._of_pipeline.wake()

    def _drop(self) -> None:
        """Leave the stream, and say so."""
        self._tell(Op.PRODUCE_CLOSE)
        if self._stream is not None:
            self._stream.proxy.leave(self._stream.number)
            self._stream = None

    def _tell(self, op: int) -> None:
        if self._stream is not None:
            self._stream.proxy.tell(about_stream(op, self._stream.number))

    # --- from the connection ----------------------------------------------------------------------

    def on_ack(self, ack: Ack) -> None:
        """The oldest frame is stored. Raises `ProtocolError`, which ends the connection."""
        first = self._sent[0][1] if self._sent else self._next
        if self._producer and ack.first + ack.records <= first:
            return  # by the owner before, too, while this one was asked
        if not self._sent:
            raise ProtocolError(f"a frame of log {self._name} is acknowledged that was not sent")
        batch, first, count, size = self._sent[0]
        if (ack.first, ack.records) != (first, count) or ack.flags & ACK_NO_POSITION:
            raise ProtocolError(
                f"log {self._name}: {ack.records} records from {ack.first} on are acknowledged, "
                f"waited is for {count} from {first} on"
            )
        self._sent.popleft()
        if self._there:  # else it is by a stream that is just being opened
            self._there -= 1
            self._held_bytes -= size
        stream = self._stream
        self._news_at = trio.current_time() if stream is None else stream.proxy.link.received_at
        self._place = (ack.segment, ack.entry, ack.slot)
        if self._conditional_of(batch) is not None:
            self.confirm(batch)
            self._of_pipeline.stored_apart(batch)
            self._end_conditional()
            return
        self._send_rest()  # before what is new, which `confirmed` sends
        self._of_pipeline.confirmed(self, batch.entry)
        self._on_answer()

    def on_refused(self, refusal: Refusal) -> None:
        """The stream takes nothing more; all before what it refused was acknowledged."""
        self._pause_s = refusal.retry_ms / 1000
        if self._pipeline is None or self._is_open:
            return  # no writer yet: it is opened again, or told why not; or another one's, only asked
        self._stream = None
        error = refusal.error
        if isinstance(error, Moved):
            self._client.note_owner(self._path, self._name, error.detail)
        again = isinstance(error, Moved) or error.retryable
        is_refused = not self._sent or self._sent[0][1] >= refusal.refused_from
        conditional = self._conditional_of(self._sent[0][0]) if self._sent else None
        if conditional is not None and is_refused:
            conditional.uncertain_sends -= 1
        if conditional is not None and is_refused and isinstance(error, PositionConflict):
            self._refuse_conditional(conditional, error)
        elif again and self._producer:
            self._wake_if_needed()  # where it is opened next knows what there is
        elif not is_refused:
            self._of_pipeline.fail(self._unknown(error))
        elif again:
            self._send_again()
        else:
            self._of_pipeline.fail(error)

    def on_lost(self, reason: DistributedLogError) -> None:
        """The connection has ended: what was not answered may be stored."""
        if self._is_open:
            return  # another one's, that was only asked: the owner may answer yet
        self._stream = None
        if self._sent and not self._producer:
            self._of_pipeline.fail(self._unknown(reason))
        else:
            self._wake_if_needed()

    def on_sweep(self, now: float) -> None:
        """Is an answer late?"""
        if self._sent and self._stream is not None and now - self._news_at > SUSPECT_S:
            self._late = True
            self._wake.set()

    @property
    def _is_open(self) -> bool:
        return self._stream is not None and not self._stream.ended

    def _unknown(self, error: DistributedLogError) -> WriteFailed:
        return WriteFailed(
            f'log "{self._name}": {error}; {len(self._sent)} frames were sent and may be stored'
        )

    def _send_again(self) -> None:
        """What was sent and not taken is sent once more, from the first on, on another stream."""
        if self._sent:
            self._next = self._sent[0][1]
            self._forget_sent()
            self._of_pipeline.take_back()
        self._wake_if_needed()

    def _forget_sent(self) -> None:
        self._sent.clear()
        self._there = self._held_bytes = 0

    def _wake_if_needed(self) -> None:
        """A stream is opened again where something waits for it."""
        if self._sent or (self._pipeline is not None and self._pipeline.gathered):
            self._wake.set()
