"""Send the entries of a proxied writer as frames on a stream to the proxy that has the log.

The order of the log is that of the stream. A batch is one frame, and frames are answered in order. Frames
that a stream refuses are sent again on the next stream, in order and with the same boundaries. The next
stream is opened at the proxy that has the log then.

For a plain producer, only frames that are certainly not stored are sent again. If that is unknown, the
writer ends with an error (G7). A frame of a named producer is in flight from its first sending until its
answer on any stream. The proxy may read frames of a broken connection long after the next one is open.

A stream is opened again only when there is something to send.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import trio

from ...log.format.dlsn import DLSN
from ...log.format.producer_table import FRAMES_KEPT
from ...log.format.record import RECORD_COLUMN_BYTES
from ...log.format.record_headers import KeyedContent
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
    UnsupportedFormat,
    WriteFailed,
    WriterFenced,
)
from ...runtime.protocol.frames import Op
from ...runtime.protocol.handshake import FEATURE_COMMIT, FEATURE_RECORD_HEADERS
from ...runtime.protocol.schema import flag
from ..protocol.proxy_messages import (
    ACK_NO_POSITION,
    PERMIT_RECORD_HEADERS,
    Ack,
    LogCall,
    ProduceOpen,
    ProduceOpened,
    Refusal,
    encode_commit,
    encode_produce,
    encode_stream_notice,
)
from .batch_sender import SUSPECT_S
from .proxy_client import ANSWER_TIMEOUT_S, ProxyClient, ProxyStream, StreamHandlers

COMMIT_RETRY_S = 0.1
OWNER_CHANGE_ERRORS = (ConnectionLost, Moved, AlreadyClosed, TooBusy, WriterFenced, LedgerFenced)
"""Errors of a commit after which the log's next owner is asked."""
FINAL_ANSWERS_WAIT_S = 0.5
"""If another proxy has the log, a plain writer waits this long for answers of the previous owner."""


@dataclass(slots=True, eq=False)
class _ConditionalAppend:
    """A batch with one record that must directly follow ``expect`` (G10)."""

    batch: EntryBatch
    expect: DLSN
    uncertain_sends: int = 0
    """The number of streams on which it was sent and not refused."""


class ProducerSink:
    """Sends a writer's batches through proxies. Call `open` first, then `bind` to attach it to a writer."""

    next_segment = None
    """A sink has no next segment."""
    has_capacity = True
    """`can_send` decides instead."""
    needs_snapshot = False
    """The log's owner stores its producers."""

    def __init__(
        self,
        client: ProxyClient,
        path: str,
        name: str,
        *,
        incarnation: str,
        create: bool,
        reopen_timeout_s: float,
        producer: str = "",
    ) -> None:
        """Create the sink.

        Args:
            client: Connections to the proxies.
            path: Path of the namespace.
            name: The log's name.
            incarnation: The log's incarnation; "" for any.
            create: Whether a missing log is created.
            reopen_timeout_s: How long to try to open a stream again.
            producer: A producer's name, whose records are stored once; "" for a plain producer.
        """
        self._client = client
        self._path, self._name = path, name
        self._incarnation = incarnation
        self._create = create
        self._producer = producer
        self._producer_number = 0
        """The producer's number after it was opened."""
        self._reopen_timeout_s = reopen_timeout_s
        self._send_queue: SendQueue | None = None
        self._stream: ProxyStream | None = None
        self._first_opened: ProduceOpened | None = None
        self._batch_serial = 0
        """The serial number of the last sent batch, as the send queue uses it."""
        self._next_sequence = 0
        """The sequence of the next batch's first record."""
        self._unacked: deque[tuple[EntryBatch, int, int, int]] = deque()
        """Batch, first sequence, records and bytes of each unanswered frame."""
        self._sent_count = 0
        """How many of these frames the owner or this stream has, from the first one. The others are sent
        again."""
        self._sent_bytes = 0
        """Bytes of the frames in ``_sent_count``."""
        self._last_answer_at = 0.0
        self._reopen_delay_s = 0.0
        self._last_acked = (0, 0, 0)
        self._last: DLSN | None = None
        self._handlers = StreamHandlers(self.on_ack, self.on_refused, self.on_lost, self.on_sweep)
        self._wake = trio.Event()
        self._answer_is_late = False
        self._keyed_error: UnsupportedFormat | None = None
        """Ends the writer: records with keys or headers, and an owner of an older version."""
        self._is_ended = False
        self._conditional_lock = trio.Lock()
        self._conditional: _ConditionalAppend | None = None
        """The conditional append that waits for earlier frames or its answer.

        No other batch is sent until then, because it would use the sequence of a record that may be
        refused.
        """
        self._answer_event: trio.Event | None = None
        """Set after an answer, if a task waits for one."""

    async def open(self, deadline: float) -> LogState:
        """Open the first stream and return the log's state. Raises as `ProxyClient.open_stream`."""
        while self._stream is None:  # the connection may end at once
            await self._open_stream(deadline)
        opened = self._first_opened = self._stream.opened
        self._incarnation, self._next_sequence = opened.incarnation, opened.next_sequence
        return LogState(
            int(opened.incarnation, 16),
            self._name,
            0,
            txid_rule=opened.txid_rule,
            last_txid=opened.last_txid,
        )

    @property
    def opened_producer(self) -> OpenedProducer | None:
        """The producer as it was first opened.

        The source continues at its next sequence. Streams that are opened later may start at a higher one.
        None for a plain producer (without a name), or before `open`.
        """
        opened = self._first_opened
        if not self._producer or opened is None:
            return None
        return OpenedProducer(
            self._producer, opened.producer_number, opened.next_sequence, opened.has_stored_records
        )

    def bind(self, send_queue: SendQueue) -> "ProducerSink":
        """Attach the sink to a writer's send queue."""
        self._send_queue = send_queue
        return self

    # --- for the pipeline -------------------------------------------------------------------------

    @property
    def current_target(self) -> "ProducerSink":
        """The target of entries, which is this sink."""
        return self

    @property
    def segment_number(self) -> int:
        """The segment of the last acknowledged record; 0 if there is none."""
        return self._last_acked[0]

    @property
    def position(self) -> tuple[DLSN, int]:
        """Raise `InvalidRequest`: other producers' records are in between, and their number is unknown."""
        raise InvalidRequest(
            f'log "{self._name}": a proxied writer has no position, but each record has a DLSN'
        )

    @property
    def can_send(self) -> bool:
        """Whether a frame may be sent now."""
        stream = self._stream
        return (
            stream is not None
            and self._conditional is None
            and stream.proxy.link.closed is None  # otherwise `on_lost` follows
            and (not self._unacked or self._sent_bytes < stream.opened.window_bytes)
            and (not self._producer or len(self._unacked) < FRAMES_KEPT)
        )

    def prepare_send(self, *, drained: bool) -> bool:
        """Open a stream if necessary. Return whether a frame may be sent now."""
        if self._stream is None:
            self._wake.set()
        return self.can_send

    def wake(self) -> None:
        """Wake the task that opens streams."""
        self._wake.set()

    def wake_on_capacity(self) -> None:
        """Do nothing: there is always capacity."""

    def send(
        self, batch: EntryBatch, written_ms: int, producers: ProducerStateManager | None = None
    ) -> None:
        """Send a batch as one frame."""
        first, count = self._next_sequence, len(batch.txids)
        if self._keyed_error is not None:
            raise self._keyed_error
        if not self._unacked:
            self._last_answer_at = trio.current_time()
        self._batch_serial += 1
        batch.entry = self._batch_serial
        self._next_sequence = first + count
        batch.stored_bytes = size = self._send_frame(batch, first)
        self._unacked.append((batch, first, count, size))

    def _send_frame(self, batch: EntryBatch, first: int) -> int:
        """Send a batch on the stream and return the size of its frame in bytes."""
        stream = self._stream
        assert stream is not None, "a stream is open"
        columns = batch.columns
        if columns is None:
            payloads = batch.payloads
        else:
            payloads = list(columns.contents if columns.is_keyed else columns.iter_payloads())
        if batch.has_keyed and not stream.proxy.link.peer.features & FEATURE_RECORD_HEADERS:
            # An older proxy took over the log after `permit_record_headers`.
            self._keyed_error = self._older_proxy_error(stream)
            self._wake.set()
            raise self._keyed_error
        acked_through = self._unacked[0][1] if self._unacked else first
        conditional = self._conditional_of(batch)
        frame = encode_produce(
            stream.number,
            first,
            acked_through,
            batch.txids if batch.has_given_txids else None,
            payloads,
            record_flags=None if batch.sets is None else batch.record_flags(),
            expect=None if conditional is None else conditional.expect,
            has_keyed=batch.has_keyed,
        )
        if conditional is not None:
            conditional.uncertain_sends += 1
        self._sent_count += 1
        self._sent_bytes += len(frame)
        stream.proxy.produce(frame)
        return len(frame)

    def confirm(self, batch: EntryBatch) -> None:
        """Complete a batch with the position of the last acknowledgement."""
        batch.segment, batch.entry, batch.first_slot = self._last_acked
        batch.finish()

    def publish(self) -> None:
        """Make acknowledged records readable."""
        self._send_notice(Op.PRODUCE_PUBLISH)

    async def make_readable(self) -> None:
        """Wait until the log's owner confirms that readers see every acknowledged record.

        An owner of an older version cannot confirm this. It receives a publish request instead.

        Raises:
            RequestTimeout: The owner did not confirm in time.
            DistributedLogError: The writer has ended.
        """
        with trio.move_on_after(ANSWER_TIMEOUT_S):
            while True:
                self._bound_queue.raise_if_over()
                stream = self._stream
                if stream and not stream.proxy.link.peer.features & FEATURE_COMMIT:
                    self.publish()
                    return
                if stream:
                    # The owner may change or be absent. The record is stored, so the request is repeated.
                    with suppress(*OWNER_CHANGE_ERRORS):
                        body = encode_commit(stream.number)
                        await stream.proxy.link.request(
                            Op.PRODUCE_COMMIT, body, timeout_s=ANSWER_TIMEOUT_S
                        )
                        return
                self._wake.set()
                await trio.sleep(COMMIT_RETRY_S)
        raise RequestTimeout(
            f'log "{self._name}": its owner did not confirm within {ANSWER_TIMEOUT_S:g} s that readers'
            " see the records. They are durable"
        )

    async def permit_record_headers(self) -> None:
        """Check that the log's owner accepts keys and headers, and permit them in the log's state.

        Raises:
            InvalidRequest: The log accepts none.
            UnsupportedFormat: A proxy has an older version.
            RequestTimeout: No proxy owns the log.
            DistributedLogError: The writer has ended, or no proxy answers.
        """
        with trio.move_on_after(ANSWER_TIMEOUT_S) as scope:
            while self._stream is None:
                self._bound_queue.raise_if_over()
                self._wake.set()
                await trio.sleep(COMMIT_RETRY_S)
        stream = self._stream
        if stream is None:
            assert scope.cancelled_caught
            raise RequestTimeout(
                f'log "{self._name}": no proxy owned it within {ANSWER_TIMEOUT_S:g} s'
            )
        if not stream.proxy.link.peer.features & FEATURE_RECORD_HEADERS:
            raise self._older_proxy_error(stream)
        call = LogCall(self._path, PERMIT_RECORD_HEADERS, self._name, self._incarnation, [])
        await self._client.call(call, flag)

    def _older_proxy_error(self, stream: ProxyStream) -> UnsupportedFormat:
        return UnsupportedFormat(
            f'log "{self._name}": its proxy {stream.proxy.link.peer_address} has an older version, which '
            "accepts no keys and headers. Nothing was sent to it"
        )

    async def conditional_append(self, expect: DLSN, payload: Any, txid: int | None) -> DLSN:
        """Append one record of a producer directly after ``expect``, as the only frame in flight.

        If the call is cancelled, the record may or may not be written. The next frame waits for its answer.

        Raises:
            PositionConflict: The log's last record is another one. Nothing was written.
            DistributedLogError: The writer has ended, for instance with `WriteFailed` or `WriterFenced`.
        """
        assert self._producer, "only named producers append conditionally"
        batch, send_queue = EntryBatch(), self._bound_queue
        batch.txids, batch.payloads = [txid or 0], [payload]
        batch.has_keyed = type(payload) is KeyedContent
        batch.has_given_txids, batch.size_bytes = (
            txid is not None,
            len(payload) + RECORD_COLUMN_BYTES,
        )
        async with self._conditional_lock:
            while self._conditional is not None:  # its caller was cancelled
                await self._next_answer()
            self._conditional = _ConditionalAppend(batch, expect)
            try:
                while self._unacked:
                    await self._next_answer()
                send_queue.raise_if_over()
            except BaseException:
                self._end_conditional()
                raise
            self._unacked.append((batch, self._next_sequence, 1, 0))
            self._next_sequence += 1
            if self._is_open:
                self._last_answer_at = trio.current_time()
                self._send_unsent()
            else:
                self._wake.set()
            await batch.wait()
        return batch.dlsn(0)

    async def _next_answer(self) -> None:
        if self._answer_event is None:
            self._answer_event = trio.Event()
        await self._answer_event.wait()

    def _on_answer(self) -> None:
        if self._answer_event is not None:
            self._answer_event.set()
            self._answer_event = None

    def _end_conditional(self) -> None:
        """Let other batches be sent again."""
        self._conditional = None
        self._on_answer()
        self._bound_queue.wake()

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
            self._bound_queue.fail(self._outcome_unknown_error(conflict))
            return
        self._next_sequence = self._unacked[0][1]
        self._clear_unacked()
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
        self._is_ended = True
        conditional, self._conditional = self._conditional, None
        if conditional is not None:
            conditional.batch.finish(
                WriteFailed(
                    f'log "{self._name}": the writer has ended, and the record expected after'
                    f" {conditional.expect} may be stored"
                )
            )
        self._clear_unacked()
        self._close_stream()
        self._wake.set()
        self._on_answer()

    async def finish(self, final_change: Callable[[LogState], LogState]) -> None:
        """Close the stream after everything is answered. Seal the log if ``final_change`` does."""
        while self._conditional is not None:
            await self._next_answer()
        self._close_stream()
        self._is_ended = True
        if final_change(LogState(0, self._name, 0)).sealed:
            await self._client.call(
                LogCall(self._path, "seal", self._name, self._incarnation, [False, None]), flag
            )

    async def run(self) -> None:
        """Open streams until cancelled or the writer has ended."""
        while not self._is_ended:
            await self._wake.wait()
            self._wake = trio.Event()
            try:
                if self._is_ended:
                    return
                if self._keyed_error is not None:
                    raise self._keyed_error
                if self._stream is None:
                    await self._open_stream(trio.current_time() + self._reopen_timeout_s)
                    self._bound_queue.wake()
                elif self._answer_is_late:
                    await self._probe_other_proxy(self._stream)
            except DistributedLogError as error:
                self._bound_queue.fail(error)

    # --- streams ----------------------------------------------------------------------------------

    @property
    def _bound_queue(self) -> SendQueue:
        assert self._send_queue is not None, "the sink is bound to a writer"
        return self._send_queue

    def _open_request(self, stream: int, suspect: str) -> ProduceOpen:
        return ProduceOpen(
            stream,
            self._path,
            self._name,
            self._incarnation,
            self._producer,
            self._producer_number,
            acked_through=self._unacked[0][1] if self._unacked else self._next_sequence,
            suspect_proxy_id=suspect,
            create=self._create,
        )

    async def _open_stream(self, deadline: float) -> None:
        delay_s, self._reopen_delay_s = self._reopen_delay_s, 0.0
        stream = await self._client.open_stream(
            self._open_request,
            self._path,
            self._name,
            self._handlers,
            deadline=deadline,
            delay_s=delay_s,
        )
        if self._is_ended:
            stream.close()
        if self._is_ended or stream.ended:
            self._stream = None
            self._wake.set()
            return
        self._use_stream(stream)

    def _use_stream(self, stream: ProxyStream) -> None:
        """Continue on this stream. Its owner answers the frames that it has; the others are sent again."""
        opened, unacked = stream.opened, self._unacked
        self._stream, self._answer_is_late = stream, False
        self._last_answer_at = trio.current_time()
        if not self._producer or self._send_queue is None:
            self._producer_number = opened.producer_number
            assert not unacked, "frames of a plain producer are never sent twice"
            self._next_sequence = (
                opened.next_sequence
            )  # as requested, because more frames may have been answered since
            return
        first = unacked[0][1] if unacked else self._next_sequence
        if opened.next_sequence < first:
            raise WriteFailed(
                f'log "{self._name}": its owner has {opened.next_sequence} records of producer'
                f" {self._producer}, but {first} were acknowledged"
            )
        self._producer_number = opened.producer_number
        received_count = sum(
            1 for _, sequence, count, _ in unacked if sequence + count <= opened.next_sequence
        )
        local_next = (
            unacked[received_count][1] if received_count < len(unacked) else self._next_sequence
        )
        if local_next != opened.next_sequence:
            raise ProtocolError(
                f'log "{self._name}": producer {self._producer} continues at {opened.next_sequence} at'
                f" its owner, but at {local_next} here"
            )
        self._sent_count = received_count
        self._sent_bytes = sum(size for *_, size in islice(unacked, received_count))
        self._send_unsent()

    def _send_unsent(self) -> None:
        """Send the frames that the owner lacks, in order, up to the stream's window."""
        stream, unacked = self._stream, self._unacked
        while (
            stream is not None
            and self._sent_count < len(unacked)
            and (not self._sent_count or self._sent_bytes < stream.opened.window_bytes)
        ):
            batch, first, count, _ = unacked[self._sent_count]
            try:
                size = self._send_frame(batch, first)
            except UnsupportedFormat:
                return  # `run` ends the writer
            unacked[self._sent_count - 1] = batch, first, count, size

    async def _probe_other_proxy(self, stream: ProxyStream) -> None:
        """Check whether another proxy has opened the log, because the owner does not answer."""
        self._answer_is_late, self._last_answer_at = False, trio.current_time()
        other_stream = await self._client.probe(
            self._open_request, self._path, self._name, self._handlers, stream.proxy.proxy_id
        )
        if other_stream is None:
            return
        if not self._producer:
            # A proxy that released the log has sent the outcome of each frame, which may be in flight.
            deadline = trio.current_time() + FINAL_ANSWERS_WAIT_S
            while self._unacked and not stream.ended and trio.current_time() < deadline:  # noqa: ASYNC110
                await trio.sleep(0.01)
        self._close_stream()
        if self._unacked and not self._producer:
            self.on_lost(Moved(f"{stream.proxy.link.peer_address} has lost the log"))
        if self._is_ended:
            other_stream.close()
        elif other_stream.ended:
            self._wake.set()
        else:
            self._use_stream(other_stream)
            self._bound_queue.wake()

    def _close_stream(self) -> None:
        """Close the stream and notify the proxy."""
        self._send_notice(Op.PRODUCE_CLOSE)
        if self._stream is not None:
            self._stream.proxy.remove_stream(self._stream.number)
            self._stream = None

    def _send_notice(self, op: int) -> None:
        if self._stream is not None:
            self._stream.proxy.send_notice(encode_stream_notice(op, self._stream.number))

    # --- from the connection ----------------------------------------------------------------------

    def on_ack(self, ack: Ack) -> None:
        """Process the acknowledgement of the oldest frame.

        Raises:
            ProtocolError: The frame was not sent, so the connection must end.
        """
        first = self._unacked[0][1] if self._unacked else self._next_sequence
        if self._producer and ack.first_sequence + ack.records <= first:
            return  # the previous owner has acknowledged it, too
        if not self._unacked:
            raise ProtocolError(f"a frame of log {self._name} was acknowledged that was not sent")
        batch, first, count, size = self._unacked[0]
        if (ack.first_sequence, ack.records) != (first, count) or ack.flags & ACK_NO_POSITION:
            raise ProtocolError(
                f"log {self._name}: {ack.records} records from {ack.first_sequence} are acknowledged,"
                f" expected {count} from {first}"
            )
        self._unacked.popleft()
        if self._sent_count:  # otherwise a stream that is still being opened sent it
            self._sent_count -= 1
            self._sent_bytes -= size
        stream = self._stream
        self._last_answer_at = (
            trio.current_time() if stream is None else stream.proxy.link.received_at
        )
        self._last_acked = (ack.segment, ack.entry, ack.slot)
        if self._conditional_of(batch) is not None:
            self.confirm(batch)
            self._bound_queue.record_separate_write(batch)
            self._end_conditional()
            return
        self._send_unsent()  # before new frames, which `handle_confirmed` sends
        self._bound_queue.handle_confirmed(self, batch.entry)
        self._on_answer()

    def on_refused(self, refusal: Refusal) -> None:
        """Process the end of a stream. All frames before the refused one were acknowledged."""
        self._reopen_delay_s = refusal.retry_ms / 1000
        if self._send_queue is None or self._is_open:
            return  # the writer does not exist yet, or the stream was only a probe
        self._stream = None
        error = refusal.error
        if isinstance(error, Moved):
            self._client.record_owner(self._path, self._name, error.detail)
        is_resendable = isinstance(error, Moved) or error.retryable
        is_refused = not self._unacked or self._unacked[0][1] >= refusal.refused_from
        conditional = self._conditional_of(self._unacked[0][0]) if self._unacked else None
        if conditional is not None and is_refused:
            conditional.uncertain_sends -= 1
        if conditional is not None and is_refused and isinstance(error, PositionConflict):
            self._refuse_conditional(conditional, error)
        elif is_resendable and self._producer:
            self._wake_if_needed()  # the next owner returns the stored frames
        elif not is_refused:
            self._bound_queue.fail(self._outcome_unknown_error(error))
        elif is_resendable:
            self._resend_all()
        else:
            self._bound_queue.fail(error)

    def on_lost(self, reason: DistributedLogError) -> None:
        """Process the end of the connection. Unanswered frames may be stored."""
        if self._is_open:
            return  # of a probed stream; the owner may still answer
        self._stream = None
        if self._unacked and not self._producer:
            self._bound_queue.fail(self._outcome_unknown_error(reason))
        else:
            self._wake_if_needed()

    def on_sweep(self, now: float) -> None:
        """Check whether an answer is late."""
        if self._unacked and self._stream is not None and now - self._last_answer_at > SUSPECT_S:
            self._answer_is_late = True
            self._wake.set()

    @property
    def _is_open(self) -> bool:
        return self._stream is not None and not self._stream.ended

    def _outcome_unknown_error(self, error: DistributedLogError) -> WriteFailed:
        return WriteFailed(
            f'log "{self._name}": {error}. {len(self._unacked)} frames were sent and may be stored'
        )

    def _resend_all(self) -> None:
        """Send the refused frames again on another stream, from the first one."""
        if self._unacked:
            self._next_sequence = self._unacked[0][1]
            self._clear_unacked()
            self._bound_queue.return_to_queue()
        self._wake_if_needed()

    def _clear_unacked(self) -> None:
        self._unacked.clear()
        self._sent_count = self._sent_bytes = 0

    def _wake_if_needed(self) -> None:
        """Open a stream again if something waits for it."""
        if self._unacked or (self._send_queue is not None and self._send_queue.has_unsent):
            self._wake.set()
