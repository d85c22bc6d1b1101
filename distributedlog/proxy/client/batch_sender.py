"""A producer's frames by hand, through proxies: each with its sequence, one after the other.

For who is himself asked again, such as an HTTP gateway whose client repeats a request, perhaps at another
gateway: what was sent before is answered with its first position, whoever sent it then. So the producer's
*number* goes over from one to the other; opening its name again would fence who has it. All that is known of
the producer's frames is what the log's owner tells when a stream is opened: the newest of them, and what is
next. A no that rests on knowing is said only after a stream that was opened for it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from ...log.format.dlsn import DLSN
from ...log.format.producer_table import FRAMES_KEPT
from ...log.write.producer_state_manager import OpenedProducer
from ...runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    Moved,
    OutcomeUnknown,
    TooBusy,
)
from ..protocol.proxy_messages import (
    ACK_NO_POSITION,
    ACK_STORED_BEFORE,
    Ack,
    ProduceOpen,
    Refusal,
    produce_frame,
)
from .proxy_client import ProxyClient, ProxyStream, StreamEnd

SUSPECT_S = 1.0
"""After this time without an answer, another proxy is asked, which may find that the owner has failed."""
PAUSE_S = 0.05
"""At least so long after a refusal that passes."""


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """A frame that is in the log."""

    sequence: int
    records: int
    first: DLSN | None
    """Where its first record is; None: stored so long ago that the log has let the place go."""
    repeated: bool
    """Was it there before this call?"""


class StreamResponses:
    """The answers of one stream."""

    def __init__(self) -> None:
        self.acks: deque[Ack] = deque()
        self.refusal: Refusal | None = None
        self.lost: DistributedLogError | None = None
        self.since = float("inf")
        """When the wait for an answer began, or news came last."""
        self.late = False
        self.news = trio.Event()
        self.end = StreamEnd(self._on_ack, self._on_refused, self._on_lost, self._on_sweep)

    @property
    def over(self) -> bool:
        """Does nothing more come?"""
        return self.refusal is not None or self.lost is not None

    async def wait(self) -> None:
        """Until something was heard."""
        await self.news.wait()
        self.news = trio.Event()

    def _on_ack(self, ack: Ack) -> None:
        self.acks.append(ack)
        if self.since < float("inf"):  # else nobody waits: it is of something sent before
            self.since = trio.current_time()
        self.news.set()

    def _on_refused(self, refusal: Refusal) -> None:
        self.refusal = refusal
        self.news.set()

    def _on_lost(self, reason: DistributedLogError) -> None:
        self.lost = reason
        self.news.set()

    def _on_sweep(self, now: float) -> None:
        if now - self.since > SUSPECT_S:
            self.late, self.since = True, now
            self.news.set()


class BatchSender:
    """One producer of one log. For any number of tasks, which take turns."""

    def __init__(
        self,
        client: ProxyClient,
        path: str,
        log: str,
        producer: str,
        number: int = 0,
    ) -> None:
        """``number``: of an opening before, here or elsewhere; 0: `open` opens the name anew, and fences who
        has it."""
        self._client = client
        self._path, self._log = path, log
        self._producer = producer
        self.number = number
        self.next_sequence = 0
        """After what the log's owner has taken, as far as it was told."""
        self._kept: deque[StoredFrame] = deque(maxlen=2 * FRAMES_KEPT)
        self._stream: ProxyStream | None = None
        self._heard = StreamResponses()
        self._incarnation = ""
        self._turn = trio.Lock()

    async def open(self, deadline: float) -> OpenedProducer:
        """The producer, as it is now. Raises as `ProxyClient.open_stream`.

        Raises: ProducerFenced, ProducerForgotten, LogNotFound, OwnershipAcquireFailed, QuorumUnreachable.
        """
        async with self._turn:
            known = await self._open(deadline)
        return OpenedProducer(self._producer, self.number, self.next_sequence, known)

    async def send(
        self,
        sequence: int,
        payloads: Sequence[bytes],
        *,
        txids: Sequence[int] | None = None,
        expect: DLSN | None = None,
        deadline: float,
    ) -> StoredFrame:
        """Have records stored, the first of which is the producer's ``sequence``-th, in one entry and once.

        Raises `OutcomeUnknown` where it was sent and no answer came: the same call again tells. All else that
        it raises says that this call stored nothing, `TooBusy` that it is worth another try.

        Raises: InvalidRequest, ProducerFenced, ProducerForgotten, PositionConflict, RecordTooLarge,
        TransactionIdOutOfOrder, OutcomeUnknown, TooBusy.
        """
        frame = _Frame(sequence, payloads, txids, expect)
        why = "no answer in time"
        try:
            with trio.move_on_at(deadline):
                async with self._turn:
                    return await self._store(frame, deadline)
        except _Refused as refused:
            raise refused.error from None
        except DistributedLogError as error:
            if not frame.sent:
                raise
            why = str(error)
        if frame.sent:
            raise OutcomeUnknown(
                f'log "{self._log}": {why}; whether the {len(payloads)} records from {sequence} on of '
                f"producer {self.number} are stored is not known: send the same again"
            )
        raise TooBusy(f'log "{self._log}": producer {self.number} had no turn; nothing was stored')

    async def _store(self, frame: "_Frame", deadline: float) -> StoredFrame:
        try:
            while True:
                fresh = await self._have_stream(deadline)
                found = self._look_up(frame, fresh)
                if found is not None:
                    return found
                if frame.sequence != self.next_sequence:
                    self.close()  # nothing was told about this frame: what is there now?
                    continue
                stored = await self._send(frame)
                if stored is not None:
                    return stored
        except _Refused:
            raise
        except BaseException:
            self.close()  # what it will answer is nobody's any more
            raise

    def close(self) -> None:
        """Leave the stream; it is opened again where that is needed. Synchronous and idempotent."""
        if self._stream is not None:
            if not self._stream.ended:
                self._stream.close()
            self._stream = None

    # --- streams ----------------------------------------------------------------------------------

    async def _have_stream(self, deadline: float) -> bool:
        """True: it was opened now, and what is known is what there is."""
        if self._stream is not None and not self._stream.ended:
            return False
        await self._open(deadline)
        return True

    def _request(self, stream: int, suspect: str) -> ProduceOpen:
        return ProduceOpen(
            stream,
            self._path,
            self._log,
            self._incarnation,
            self._producer,
            self.number,
            through=0,  # whatever is known of it is to be told
            suspect=suspect,
            create=False,
        )

    async def _open(self, deadline: float) -> bool:
        """Was the name known?"""
        while True:
            self.close()
            heard = StreamResponses()
            stream = await self._client.open_stream(
                self._request, self._path, self._log, heard.end, deadline=deadline
            )
            if await self._enter(stream, heard):
                return stream.opened.known

    async def _enter(self, stream: ProxyStream, heard: StreamResponses) -> bool:
        """Hear what the owner knows of the frames before; False: it was lost on the way."""
        self._stream, self._heard = stream, heard
        opened = stream.opened
        self._incarnation, self.number = opened.incarnation, opened.number
        self._kept.clear()
        while opened.next_sequence and not self._told_through(opened.next_sequence):
            if heard.over:
                return False
            await heard.wait()
            self._take_acks()
        self.next_sequence = opened.next_sequence
        return True

    def _told_through(self, sequence: int) -> bool:
        self._take_acks()
        return bool(self._kept) and self._kept[-1].sequence + self._kept[-1].records >= sequence

    def _take_acks(self) -> None:
        acks = self._heard.acks
        while acks:
            ack = acks.popleft()
            place = None if ack.flags & ACK_NO_POSITION else DLSN(ack.segment, ack.entry, ack.slot)
            repeated = bool(ack.flags & ACK_STORED_BEFORE)
            self._kept.append(StoredFrame(ack.first, ack.records, place, repeated))

    # --- frames -----------------------------------------------------------------------------------

    def _look_up(self, frame: "_Frame", fresh: bool) -> StoredFrame | None:
        """A frame that was stored before; None: it was not, or that is not known. Raises `_Refused`."""
        sequence, records = frame.sequence, len(frame.payloads)
        end = sequence + records
        if end <= self.next_sequence:
            for one in self._kept:
                if (one.sequence, one.records) == (sequence, records):
                    return StoredFrame(sequence, records, one.first, repeated=True)
            oldest = self._kept[0].sequence if self._kept else self.next_sequence
            if fresh and end <= oldest:
                return StoredFrame(sequence, records, None, repeated=True)
        if not fresh or sequence == self.next_sequence:
            return None
        said = f'log "{self._log}": producer {self.number} sends'
        if sequence > self.next_sequence:
            said = f"{said} from {sequence} on, and {self.next_sequence} is next"
        else:
            said = (
                f"{said} {records} records from {sequence} on, of which some were sent in other frames; "
                f"{self.next_sequence} is next"
            )
        raise _Refused(InvalidRequest(said))

    async def _send(self, frame: "_Frame") -> StoredFrame | None:
        """Send one frame; None: a stream is to be opened to learn what became of it. Raises `_Refused`."""
        stream, heard = self._stream, self._heard
        assert stream is not None, "opened before"
        sequence, records = frame.sequence, len(frame.payloads)
        body = produce_frame(
            stream.number, sequence, sequence, frame.txids, frame.payloads, expect=frame.expect
        )
        heard.since = trio.current_time()
        frame.sent = True
        stream.proxy.link.send(body)
        while True:
            self._take_acks()
            if self._told_through(sequence + records):
                heard.since = float("inf")
                self.next_sequence = sequence + records
                return self._kept[-1]
            if heard.refusal is not None:
                await self._refused(frame, heard.refusal)
                return None
            if heard.lost is not None:
                return None
            if heard.late:
                heard.late = False
                if await self._ask_another(stream):
                    return None
            await heard.wait()

    async def _refused(self, frame: "_Frame", refusal: Refusal) -> None:
        """Raise `_Refused` where it is for good; else wait until it may be tried again."""
        error = refusal.error
        self._stream = None
        if isinstance(error, Moved):
            self._client.note_owner(self._path, self._log, error.detail)
        elif not error.retryable and frame.sequence >= refusal.refused_from:
            raise _Refused(error)
        await trio.sleep(max(PAUSE_S, refusal.retry_ms / 1000))

    async def _ask_another(self, stream: ProxyStream) -> bool:
        """The owner does not answer: has another one found that it is gone, and taken the log?"""
        heard = StreamResponses()
        found = await self._client.probe(
            self._request, self._path, self._log, heard.end, stream.proxy.proxy_id
        )
        if found is None:
            return False
        self.close()
        if not await self._enter(found, heard):
            self.close()
        return True


@dataclass(slots=True)
class _Frame:
    """One that is to be stored."""

    sequence: int
    payloads: Sequence[bytes]
    txids: Sequence[int] | None
    expect: DLSN | None
    sent: bool = False
    """Was it, in this call?"""


class _Refused(Exception):
    """Carries what this call is refused with, for good: nothing of it is stored."""

    def __init__(self, error: DistributedLogError) -> None:
        super().__init__(str(error))
        self.error = error
