"""Send one producer's frames through proxies, each with an explicit sequence, one after another.

For callers that may repeat a request, such as an HTTP gateway whose client retries, possibly at another
gateway. A frame that was sent before is answered with its first position, whichever gateway sent it. For
this, the producer's *number* is passed between the gateways, because opening the name again would fence the
other one.

Only the log's owner has information about the producer's frames. When a stream is opened, the owner returns
the newest frames and the next sequence. A rejection that depends on them is returned only after a stream
was opened for the request.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from ...log.format.dlsn import DLSN
from ...log.format.producer_table import FRAMES_KEPT
from ...log.format.record_headers import KeyedContent
from ...log.write.producer_state_manager import OpenedProducer
from ...runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    Moved,
    OutcomeUnknown,
    TooBusy,
    UnsupportedFormat,
)
from ...runtime.protocol.handshake import FEATURE_RECORD_HEADERS
from ..protocol.proxy_messages import (
    ACK_NO_POSITION,
    ACK_STORED_BEFORE,
    Ack,
    ProduceOpen,
    Refusal,
    encode_produce,
)
from .proxy_client import ProxyClient, ProxyStream, StreamHandlers

SUSPECT_S = 1.0
"""After this time without an answer, another proxy is probed, which may find that the owner has failed."""
RETRY_DELAY_MIN_S = 0.05
"""The minimum delay after a temporary refusal."""


@dataclass(frozen=True, slots=True)
class StoredBatchPosition:
    """A frame that is stored in the log."""

    sequence: int
    records: int
    first_dlsn: DLSN | None
    """The position of its first record; None if it was stored so long ago that the log has dropped the
    position."""
    is_duplicate: bool
    """Whether it was stored before this call."""


class StreamResponses:
    """The answers on one stream."""

    def __init__(self) -> None:
        self.acks: deque[Ack] = deque()
        self.refusal: Refusal | None = None
        self.lost_error: DistributedLogError | None = None
        self.waiting_since = float("inf")
        """When the wait for an answer started, or the last answer arrived."""
        self.is_late = False
        self.news_event = trio.Event()
        self.handlers = StreamHandlers(
            self._on_ack, self._on_refused, self._on_lost, self._on_sweep
        )

    @property
    def is_ended(self) -> bool:
        """Whether the stream has ended."""
        return self.refusal is not None or self.lost_error is not None

    async def wait(self) -> None:
        """Wait until an answer or event arrives."""
        await self.news_event.wait()
        self.news_event = trio.Event()

    def _on_ack(self, ack: Ack) -> None:
        self.acks.append(ack)
        if self.waiting_since < float("inf"):  # otherwise it belongs to an earlier frame
            self.waiting_since = trio.current_time()
        self.news_event.set()

    def _on_refused(self, refusal: Refusal) -> None:
        self.refusal = refusal
        self.news_event.set()

    def _on_lost(self, reason: DistributedLogError) -> None:
        self.lost_error = reason
        self.news_event.set()

    def _on_sweep(self, now: float) -> None:
        if now - self.waiting_since > SUSPECT_S:
            self.is_late, self.waiting_since = True, now
            self.news_event.set()


class BatchSender:
    """Sends the frames of one producer of one log. Any number of tasks can use it; they take turns."""

    def __init__(
        self,
        client: ProxyClient,
        path: str,
        log: str,
        producer: str,
        number: int = 0,
    ) -> None:
        """Create the sender.

        Args:
            client: Connections to the proxies.
            path: Path of the namespace.
            log: The log's name.
            producer: The producer's name.
            number: The producer's number from an earlier opening, here or elsewhere. With 0, `open` opens
                the name again and fences its present user.
        """
        self._client = client
        self._path, self._log = path, log
        self._producer = producer
        self.number = number
        self.next_sequence = 0
        """The sequence after the last record that the log's owner has accepted."""
        self._stored: deque[StoredBatchPosition] = deque(maxlen=2 * FRAMES_KEPT)
        self._stream: ProxyStream | None = None
        self._responses = StreamResponses()
        self._incarnation = ""
        self._send_lock = trio.Lock()

    async def open(self, deadline: float) -> OpenedProducer:
        """Open the producer and return its present state.

        Raises: ProducerFenced, ProducerForgotten, LogNotFound, OwnershipAcquireFailed, QuorumUnreachable.
        """
        async with self._send_lock:
            was_known = await self._open_stream(deadline)
        return OpenedProducer(self._producer, self.number, self.next_sequence, was_known)

    async def send(
        self,
        sequence: int,
        payloads: Sequence[bytes],
        *,
        txids: Sequence[int] | None = None,
        expect: DLSN | None = None,
        deadline: float,
    ) -> StoredBatchPosition:
        """Store records once, in one entry. ``sequence`` is the producer's sequence of the first record.

        A payload can be a checked `KeyedContent`.

        `OutcomeUnknown` means that the frame was sent and no answer arrived. Repeat the same call to get
        the result. After any other error, this call has stored nothing. After `TooBusy`, a retry may
        succeed.

        Raises: InvalidRequest, ProducerFenced, ProducerForgotten, PositionConflict, RecordTooLarge,
        TransactionIdOutOfOrder, OutcomeUnknown, TooBusy.
        """
        batch = _PendingBatch(sequence, payloads, txids, expect)
        reason = "no answer in time"
        try:
            with trio.move_on_at(deadline):
                async with self._send_lock:
                    return await self._store_batch(batch, deadline)
        except _BatchRefused as refusal_error:
            raise refusal_error.error from None
        except DistributedLogError as error:
            if not batch.was_sent:
                raise
            reason = str(error)
        if batch.was_sent:
            raise OutcomeUnknown(
                f'log "{self._log}": {reason}. It is unknown whether the {len(payloads)} records from'
                f" {sequence} of producer {self.number} are stored. Send the same records again"
            )
        raise TooBusy(f'log "{self._log}": producer {self.number} had no turn, nothing was stored')

    async def _store_batch(self, batch: "_PendingBatch", deadline: float) -> StoredBatchPosition:
        try:
            while True:
                is_new_stream = await self._ensure_stream(deadline)
                known_batch = self._find_stored(batch, is_new_stream)
                if known_batch is not None:
                    return known_batch
                if batch.sequence != self.next_sequence:
                    self.close()  # this frame is unknown, so query the present state
                    continue
                stored_batch = await self._send_batch(batch)
                if stored_batch is not None:
                    return stored_batch
        except _BatchRefused:
            raise
        except BaseException:
            self.close()  # the caller no longer waits for its answers
            raise

    def close(self) -> None:
        """Close the stream. It is opened again when necessary. Synchronous and idempotent."""
        if self._stream is not None:
            if not self._stream.ended:
                self._stream.close()
            self._stream = None

    # --- streams ----------------------------------------------------------------------------------

    async def _ensure_stream(self, deadline: float) -> bool:
        """Open a stream if there is none. Return whether it was opened now, so that the state is current."""
        if self._stream is not None and not self._stream.ended:
            return False
        await self._open_stream(deadline)
        return True

    def _open_request(self, stream: int, suspect: str) -> ProduceOpen:
        return ProduceOpen(
            stream,
            self._path,
            self._log,
            self._incarnation,
            self._producer,
            self.number,
            acked_through=0,  # the owner must return all stored frames
            suspect_proxy_id=suspect,
            create=False,
        )

    async def _open_stream(self, deadline: float) -> bool:
        """Open a stream and return whether the log has records of the producer."""
        while True:
            self.close()
            responses = StreamResponses()
            stream = await self._client.open_stream(
                self._open_request, self._path, self._log, responses.handlers, deadline=deadline
            )
            if await self._use_stream(stream, responses):
                return stream.opened.has_stored_records

    async def _use_stream(self, stream: ProxyStream, responses: StreamResponses) -> bool:
        """Receive the stored frames from the owner. Return False if the stream ended before."""
        self._stream, self._responses = stream, responses
        opened = stream.opened
        self._incarnation, self.number = opened.incarnation, opened.producer_number
        self._stored.clear()
        while opened.next_sequence and not self._acked_through(opened.next_sequence):
            if responses.is_ended:
                return False
            await responses.wait()
            self._collect_acks()
        self.next_sequence = opened.next_sequence
        return True

    def _acked_through(self, sequence: int) -> bool:
        self._collect_acks()
        return (
            bool(self._stored) and self._stored[-1].sequence + self._stored[-1].records >= sequence
        )

    def _collect_acks(self) -> None:
        acks = self._responses.acks
        while acks:
            ack = acks.popleft()
            first_dlsn = (
                None if ack.flags & ACK_NO_POSITION else DLSN(ack.segment, ack.entry, ack.slot)
            )
            repeated = bool(ack.flags & ACK_STORED_BEFORE)
            self._stored.append(
                StoredBatchPosition(ack.first_sequence, ack.records, first_dlsn, repeated)
            )

    # --- frames -----------------------------------------------------------------------------------

    def _find_stored(
        self, batch: "_PendingBatch", is_new_stream: bool
    ) -> StoredBatchPosition | None:
        """Return a frame that was stored before; None if it was not, or that is unknown.

        Raises:
            _BatchRefused: The sequence is invalid.
        """
        sequence, records = batch.sequence, len(batch.payloads)
        end = sequence + records
        if end <= self.next_sequence:
            for stored in self._stored:
                if (stored.sequence, stored.records) == (sequence, records):
                    return StoredBatchPosition(
                        sequence, records, stored.first_dlsn, is_duplicate=True
                    )
            oldest_known = self._stored[0].sequence if self._stored else self.next_sequence
            if is_new_stream and end <= oldest_known:
                return StoredBatchPosition(sequence, records, None, is_duplicate=True)
        if not is_new_stream or sequence == self.next_sequence:
            return None
        message_text = f'log "{self._log}": producer {self.number} sends'
        if sequence > self.next_sequence:
            message_text = (
                f"{message_text} from {sequence}, but the next sequence is {self.next_sequence}"
            )
        else:
            message_text = (
                f"{message_text} {records} records from {sequence}, some of which were sent in other"
                f" frames. The next sequence is {self.next_sequence}"
            )
        raise _BatchRefused(InvalidRequest(message_text))

    async def _send_batch(self, batch: "_PendingBatch") -> StoredBatchPosition | None:
        """Send one frame. Return None if a new stream must be opened to find its outcome.

        Raises:
            _BatchRefused: The frame is rejected permanently.
        """
        stream, responses = self._stream, self._responses
        assert stream is not None, "a stream is open"
        sequence, records = batch.sequence, len(batch.payloads)
        has_keyed = KeyedContent in map(type, batch.payloads)
        if has_keyed and not stream.proxy.link.peer.features & FEATURE_RECORD_HEADERS:
            raise _BatchRefused(
                UnsupportedFormat(
                    f'log "{self._log}": its proxy has an older version, which accepts no keys and headers'
                )
            )
        body = encode_produce(
            stream.number,
            sequence,
            sequence,
            batch.txids,
            batch.payloads,
            expect=batch.expect,
            has_keyed=has_keyed,
        )
        responses.waiting_since = trio.current_time()
        batch.was_sent = True
        stream.proxy.link.send(body)
        while True:
            self._collect_acks()
            if self._acked_through(sequence + records):
                responses.waiting_since = float("inf")
                self.next_sequence = sequence + records
                return self._stored[-1]
            if responses.refusal is not None:
                await self._handle_refusal(batch, responses.refusal)
                return None
            if responses.lost_error is not None:
                return None
            if responses.is_late:
                responses.is_late = False
                if await self._probe_other_proxy(stream):
                    return None
            await responses.wait()

    async def _handle_refusal(self, batch: "_PendingBatch", refusal: Refusal) -> None:
        """Raise `_BatchRefused` for a permanent refusal; otherwise wait until a retry is possible."""
        error = refusal.error
        self._stream = None
        if isinstance(error, Moved):
            self._client.record_owner(self._path, self._log, error.detail)
        elif not error.retryable and batch.sequence >= refusal.refused_from:
            raise _BatchRefused(error)
        await trio.sleep(max(RETRY_DELAY_MIN_S, refusal.retry_ms / 1000))

    async def _probe_other_proxy(self, stream: ProxyStream) -> bool:
        """Check whether another proxy has opened the log, because the owner does not answer."""
        responses = StreamResponses()
        other_stream = await self._client.probe(
            self._open_request, self._path, self._log, responses.handlers, stream.proxy.proxy_id
        )
        if other_stream is None:
            return False
        self.close()
        if not await self._use_stream(other_stream, responses):
            self.close()
        return True


@dataclass(slots=True)
class _PendingBatch:
    """A frame to store."""

    sequence: int
    payloads: Sequence[bytes]
    txids: Sequence[int] | None
    expect: DLSN | None
    was_sent: bool = False
    """Whether it was sent in this call."""


class _BatchRefused(Exception):
    """Carries the error of a call that was rejected permanently. Nothing of it is stored."""

    def __init__(self, error: DistributedLogError) -> None:
        super().__init__(str(error))
        self.error = error
