"""The writer's calls for proxies, gateways and producers: frames of records, each stored whole and once.

A frame is what one producer sent in one call. It is in one entry, has one outcome, and is not stored twice if
its producer repeats it. `LogWriter.sequenced` has this object; programs that write records of their own need
none of it.
"""

from collections.abc import Callable, Sequence

import trio

from ...runtime.interfaces.errors import (
    InvalidRequest,
    PositionConflict,
    ProducerFenced,
    ProducerForgotten,
    RecordTooLarge,
)
from ...runtime.interfaces.host import Buffer
from ..format.dlsn import DLSN, check_dlsn
from ..format.producer_section import SPAN_BYTES
from ..format.producer_table import ProducerTable
from ..format.record import RECORD_BYTES_MAX, RECORD_COLUMN_BYTES, LogRecord, columns_of
from ..interfaces.segment_store import SegmentEntryStore
from ..model.log_state import LogState
from ..read.position_search import last_readable
from ..read.state_watch import follow
from ..services.lease_session import LogLock
from .producer_state_manager import (
    OpenedProducer,
    ProducerStateManager,
    SequenceCheck,
    check_name,
    check_sequence,
)
from .record_validation import sets_of_frame, validate_columns, validate_record
from .send_queue import AppendAfter, SendQueue
from .sequenced_batch import SequencedBatch
from .txid_admission import TxidAdmission
from .writer_ownership import WriterOwnership


class SequencedWriter:
    """Takes frames of producers for one log, and opens producers."""

    def __init__(
        self,
        claim: LogLock,
        ledgers: SegmentEntryStore,
        pipeline: SendQueue,
        txids: TxidAdmission,
        ownership: WriterOwnership,
    ) -> None:
        self._claim = claim
        self._ledgers = ledgers
        self._pipeline = pipeline
        self._txids = txids
        self._ownership = ownership
        self._name = pipeline.name
        self._own: OpenedProducer | None = None
        self._last_before: DLSN | None = None  # of the writers before; None: not looked for yet
        self._note_first = False
        """A frame whose txids decrease waits until the state records that (`frame_room`)."""

    @property
    def log_name(self) -> str:
        """The log's name when its state was read last; it may have changed since the log was opened."""
        return self._claim.owned.state.name

    # --- frames -----------------------------------------------------------------------------------

    def take_frame(
        self,
        payloads: list[bytes],
        on_done: Callable[[SequencedBatch], object],
        *,
        txids: list[int] | None = None,
        record_flags: bytes | None = None,
        producer: int = 0,
        sequence: int = 0,
    ) -> SequencedBatch | None:
        """Take records that one producer sent in one go, whole into one entry; waits for nothing.

        None: it must wait (`frame_room`), nothing was taken. ``on_done`` is called once, with the
        frame, when its outcome is known, perhaps in here; it must neither raise nor wait. ``txids``: None
        to have the log fill them in. At least one record; payloads of at most
        1,040,384 bytes, with 12 more for each record after the first. ``record_flags``: a byte a record,
        where some belong together, as an entry has them (`docs/reference/formats.md`).

        ``producer``: the number of who sent it (`open_producer`), ``sequence``: how many records it sent
        before it. One that was taken before is not taken again; it is told when its first copy is durable.

        Raises `InvalidRequest` (also for a frame that leaves a gap, or repeats one with other borders),
        `RecordTooLarge`, `TransactionIdOutOfOrder`,
        `ProducerFenced`, `ProducerForgotten`, or what ended the writer; nothing is taken then. What rests on
        the writer's knowing of producers is told to others after `check_owner` only.
        """
        pipeline, source = self._pipeline, self._txids.source
        pipeline.raise_if_over()
        number = len(payloads)
        rule = source.rule
        if set(map(type, payloads)) != {bytes}:
            raise InvalidRequest("a frame holds at least one payload, and payloads are bytes")
        sizes = list(map(len, payloads))
        size = sum(sizes) + number * RECORD_COLUMN_BYTES
        if size - RECORD_COLUMN_BYTES > RECORD_BYTES_MAX:
            raise RecordTooLarge(
                f"a frame of {number} records and {sum(sizes)} bytes; the most are {RECORD_BYTES_MAX} in sum "
                f"with {RECORD_COLUMN_BYTES} bytes for each record after the first"
            )
        sets = None
        if record_flags is not None:
            sets = sets_of_frame(record_flags, txids, payloads, self._name, rule)
        producers = pipeline.producers
        if producer:
            if producers is None:
                raise ProducerForgotten(f'log "{self._name}" has no producers')
            check_sequence(sequence)
            met = producers.meet(producer, sequence, number)
            if met is SequenceCheck.FULL:
                return None
            if met is not SequenceCheck.NEW:
                return self._repeated(met, number, on_done, producer, sequence)
            size += SPAN_BYTES
        unordered = False
        if txids is not None:
            taken = validate_columns(
                txids, payloads, source.last, self._txids.checks, self._name, rule
            )
            if taken.refusal is not None:
                raise taken.refusal
            txids, unordered = taken.txids, taken.unordered
            if unordered and not self._txids.back_noted:
                self._note_first = True
                return None
        batch = pipeline.batch
        if pipeline.pause or batch.bytes + size > batch.bytes_max:
            if not pipeline.fit_frame(number, size):
                return None
            batch = pipeline.batch
        if txids is not None:
            greatest = max(txids) if unordered else txids[-1]
            self._txids.took_given(batch, txids[0], txids[-1], greatest, unordered=unordered)
        elif number == 1:
            txids = [source.draw_one(sizes[0])]
        elif sets is None:
            txids = source.draw(sizes)
        else:
            txids = source.draw_for_sets(number, sets)
        slot = len(batch.txids)
        if not slot:
            pipeline.wake()
        if sets is not None:
            batch.sets = [*(batch.sets or ()), *((slot + first, many) for first, many in sets)]
        batch.txids += txids
        batch.payloads += payloads
        batch.bytes += size
        frame = SequencedBatch(number, on_done, producer=producer, sequence=sequence)
        frame.first_txid = txids[0]
        if producer and producers is not None:
            producers.took(batch, slot, frame)
        frame.in_batch(batch, slot)
        return frame

    @staticmethod
    def _repeated(
        met: SequenceCheck | SequencedBatch | DLSN,
        records: int,
        on_done: Callable[[SequencedBatch], object],
        producer: int,
        sequence: int,
    ) -> SequencedBatch:
        frame = SequencedBatch(records, on_done, producer=producer, sequence=sequence)
        if isinstance(met, SequencedBatch):
            frame.shares(met)
        else:
            frame.stored_at(met if isinstance(met, DLSN) else None)
        return frame

    async def frame_room(self, records: int, size: int, producer: int = 0) -> None:
        """Wait until a frame of so many records and payload bytes may be taken: then `take_frame` without a
        checkpoint between, which may say None again, for others write too.

        If its txids decrease, the log's state records that first. Raises `TooBusy` if the log is over a
        limit, `WriteCancelled` if its state cannot be changed, as `next_sequence`, and the writer's error.
        """
        pipeline = self._pipeline
        if self._note_first:
            self._note_first = False
            await self._txids.note_unordered()
            return
        while producer and pipeline.producers is not None:
            first = pipeline.producers.first_on_way(producer)
            if first is None:
                break
            await first.wait()
            pipeline.raise_if_over()
        size += records * RECORD_COLUMN_BYTES + SPAN_BYTES
        await pipeline.wait_fit_frame(records, size)

    async def frame_after(
        self,
        expect: DLSN,
        payloads: list[bytes],
        *,
        txids: list[int] | None = None,
        record_flags: bytes | None = None,
        producer: int = 0,
        sequence: int = 0,
        on_done: Callable[[SequencedBatch], object] | None = None,
    ) -> SequencedBatch:
        """As `take_frame`, where the log's last record is the one at ``expect``; returns when it is done, or,
        with ``on_done``, when it is taken.

        What was taken before it is waited for: only then it is known which record is the last. One of a
        producer that was taken before is a copy, whatever is expected. Raises as `take_frame`, and
        `PositionConflict`, each only after the metadata have said that the log is still ours (H64).
        """
        pipeline, done, waited = self._pipeline, trio.Event(), False
        await self._find_last()
        while True:
            pipeline.raise_if_over()
            try:
                if not (producer and self.is_copy(producer, sequence)):
                    last = self._last
                    stored = not pipeline.records_left
                    if last > expect or (last != expect and (waited or stored)):
                        break  # once: others may write without end, and never come to a far place
                    if not stored:
                        self._pipeline.send_open()
                        await pipeline.settle()
                        waited = True
                        continue
                frame = self.take_frame(
                    payloads,
                    on_done or (lambda _: done.set()),
                    txids=txids,
                    record_flags=record_flags,
                    producer=producer,
                    sequence=sequence,
                )
            except (InvalidRequest, ProducerFenced, ProducerForgotten):
                await self.check_owner()
                raise
            if frame is not None:
                if on_done is None:
                    await done.wait()
                return frame
            await self.frame_room(len(payloads), sum(map(len, payloads)), producer)
        await self.check_owner()
        raise PositionConflict(
            f'log "{self._name}": its last record is at {last}, not at {expect}; nothing was written',
            str(last),
        )

    @property
    def _last(self) -> DLSN:
        """Where the last record is that is durable; `_find_last` comes first."""
        batch = self._pipeline.last_stored
        if batch is not None:
            return DLSN(batch.segment, batch.entry, batch.count - 1)
        assert self._last_before is not None, "it was found"
        return self._last_before

    async def _find_last(self) -> None:
        if self._last_before is not None or self._pipeline.last_stored is not None:
            return
        owned = self._claim.owned
        last = owned.state.last_dlsn
        if last is None and not owned.state.next_sequence_id:
            last = DLSN.NONE
        if last is None:  # a log of the first format: its segments know, or nobody
            follower = await follow(owned.metadata, owned.log_id, self._name)
            last = await last_readable(owned.metadata, follower, self._ledgers)
        if last is None:
            raise InvalidRequest(
                f'log "{self._name}": it is not known where its last record was, for it is gone: write one '
                "without expecting any"
            )
        self._last_before = last

    async def write(self, sequence: int, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        """Write a frame of the writer's own producer and wait until it is durable; as `write_frame`."""
        own = self._own
        assert own is not None, "the caller has checked it"
        txids, payloads = await self._framed(records)
        done = trio.Event()
        frame: SequencedBatch | None = None
        while frame is None:
            self._note_own()
            try:
                frame = self.take_frame(
                    payloads,
                    lambda _: done.set(),
                    txids=txids,
                    producer=own.number,
                    sequence=sequence,
                )
            except (InvalidRequest, ProducerFenced, ProducerForgotten):
                await self.check_owner()
                raise
            if frame is None:
                await self.frame_room(len(payloads), sum(map(len, payloads)), own.number)
        await done.wait()
        return self._places(frame)

    async def _framed(
        self, records: Sequence[LogRecord | Buffer]
    ) -> tuple[list[int] | None, list[bytes]]:
        """Records as a frame has them."""
        txids, payloads = columns_of(records)
        given = bool(txids) and txids[0] is not None
        if any((txid is not None) != given for txid in txids):
            raise InvalidRequest("all records of a frame have a txid, or none has")
        await trio.lowlevel.checkpoint()
        rule = self._txids.source.rule
        admitted = [
            validate_record(txid, payload, 0, self._name, rule)
            for txid, payload in zip(txids, payloads, strict=True)
        ]
        own = [txid for txid, _ in admitted if txid is not None]
        return own if given else None, [payload for _, payload in admitted]

    @staticmethod
    def _places(frame: SequencedBatch) -> list[DLSN]:
        if frame.error is not None:
            raise frame.error.again()
        first = frame.first
        if first is None:
            return []
        return [first._replace(slot=first.slot + k) for k in range(frame.records)]

    async def write_after(
        self,
        expect: DLSN,
        records: Sequence[LogRecord | Buffer],
        producer: int = 0,
        sequence: int = 0,
    ) -> list[DLSN]:
        """Write records directly after the one at ``expect``; returns when they are durable."""
        check_dlsn(expect)
        if self._pipeline.sink.append_after is not None:
            return [await self._append_apart(self._pipeline.sink.append_after, expect, records)]
        txids, payloads = await self._framed(records)
        return self._places(
            await self.frame_after(
                expect, payloads, txids=txids, producer=producer, sequence=sequence
            )
        )

    async def _append_apart(
        self, append: AppendAfter, expect: DLSN, records: Sequence[LogRecord | Buffer]
    ) -> DLSN:
        """Have the owner of the log append one record of this writer's producer, as `frame_after`.

        A frame without a sequence cannot be sent again after its connection broke, so its outcome would stay
        unknown.
        """
        if self._own is None:
            raise InvalidRequest(
                f'log "{self._name}": through proxies, write(expect=) requires a producer. Open the writer '
                "with producer=."
            )
        txids, (payload,) = await self._framed(records)
        txid = None if txids is None else txids[0]
        pipeline = self._pipeline
        pipeline.send_open()
        await pipeline.settle()  # records that this writer accepted before are in front
        self._check_own_order(txids, payload)
        found = await append(expect, payload, txid)
        if txid is not None:
            self._txids.source.last = max(self._txids.source.last, txid)
        return found

    def _check_own_order(self, txids: list[int] | None, payload: bytes) -> None:
        """Raise `TransactionIdOutOfOrder` here. A refusal by the log's owner would end the writer."""
        if txids is None:
            return
        source = self._txids.source
        refusal = validate_columns(
            txids, [payload], source.last, self._txids.checks, self._name, source.rule
        ).refusal
        if refusal is not None:
            raise refusal

    def _note_own(self) -> None:
        """The records of the open batch are counted, so that it is known what is next."""
        if self._own is not None:
            self._producers().note_own(self._pipeline.batch, len(self._pipeline.batch.txids))

    # --- producers --------------------------------------------------------------------------------

    @property
    def own(self) -> OpenedProducer | None:
        """The producer of all records that come without a frame; None: there is none."""
        return self._own

    async def open_producer(self, name: str) -> OpenedProducer:
        """A number for a producer; returns when that is durable. Who had the name is fenced.

        Raises `InvalidRequest`; `TooBusy` where the log has 1,000 producers, none of them idle for an hour;
        `ProducerFenced` where another one opened the name meanwhile; what ended the writer.
        """
        check_name(name)
        pipeline = self._pipeline
        pipeline.raise_if_over()
        if pipeline.producers is None:
            await self._ownership.change_state(
                LogState.with_producers, lambda state: state.has_producers
            )
            if pipeline.producers is None:
                pipeline.producers = ProducerStateManager(ProducerTable(), self._name)
        number, batch = pipeline.producers.open(name)
        pipeline.open_producer(batch)
        await batch.wait()
        if batch.error is not None:
            raise batch.error.again()
        return pipeline.producers.opened(name, number)

    def resume_producer(self, name: str, number: int) -> OpenedProducer:
        """A producer that was opened before, by this writer or one before it, goes on with its number.

        Raises `ProducerFenced`, `ProducerForgotten`; see `take_frame`.
        """
        return self._producers().resume(name, number)

    def next_sequence(self, number: int) -> int:
        """How many records of a producer were taken. Raises `ProducerFenced`, `ProducerForgotten`."""
        return self._producers().next_sequence(number)

    def is_copy(self, number: int, sequence: int) -> bool:
        """Was a frame from there on taken before? Raises `InvalidRequest`, and as `next_sequence`."""
        check_sequence(sequence)
        self._note_own()
        return sequence < self._producers().next_sequence(number)

    def frames_from(
        self, number: int, sequence: int, on_done: Callable[[SequencedBatch], object]
    ) -> list[SequencedBatch]:
        """The frames of a producer from there on that are stored and not let go, or on their way; ascending.

        Each has an outcome of its own; ``on_done`` is called in here for those that are stored. Raises as
        `next_sequence`.
        """
        return self._producers().frames_from(number, sequence, on_done)

    def _producers(self) -> ProducerStateManager:
        if self._pipeline.producers is None:
            raise ProducerForgotten(f'log "{self._name}" has no producers')
        return self._pipeline.producers

    async def check_owner(self) -> None:
        """Read from the metadata whether the log is ours; see `WriterOwnership.check`."""
        await self._ownership.check()

    async def open_own(self, name: str) -> None:
        """Have all records that come without a frame written by a producer; before the first one."""
        own = await self.open_producer(name)
        self._producers().own = own.number
        self._own = own

    def owned_by(self, own: OpenedProducer) -> None:
        """A proxy has opened it: the writer's records are those of this producer."""
        self._own = own
