"""The writer's calls for proxies, gateways and producers: frames of records, each stored whole and once.

A frame is what one producer sent in one call. It is in one entry, has one outcome, and is not stored twice if
its producer repeats it. `LogWriter.sequenced_writer` has this object; programs that write records of their
own need none of it.
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
from ..format.record import RECORD_BYTES_MAX, RECORD_COLUMN_BYTES, LogRecord, split_columns
from ..interfaces.segment_store import SegmentEntryStore
from ..model.log_state import LogState
from ..read.position_search import last_readable
from ..read.state_watch import open_state_watch
from ..services.lease_session import LogLock
from .producer_state_manager import (
    OpenedProducer,
    ProducerStateManager,
    SequenceCheck,
    check_producer_name,
    check_sequence,
)
from .record_validation import validate_columns, validate_record, validate_sets
from .send_queue import ConditionalAppend, SendQueue
from .sequenced_batch import SequencedBatch
from .txid_admission import TxidAdmission
from .writer_ownership import WriterOwnership


class SequencedWriter:
    """Takes frames of producers for one log, and opens producers."""

    def __init__(
        self,
        log_lock: LogLock,
        ledgers: SegmentEntryStore,
        send_queue: SendQueue,
        txid_admission: TxidAdmission,
        writer_ownership: WriterOwnership,
    ) -> None:
        self._log_lock = log_lock
        self._ledgers = ledgers
        self._send_queue = send_queue
        self._txid_admission = txid_admission
        self._writer_ownership = writer_ownership
        self._name = send_queue.name
        self._default_producer: OpenedProducer | None = None
        self._tail_at_open: DLSN | None = None  # of the writers before; None: not looked for yet
        self._must_record_unordered = False
        """A frame whose txids decrease waits until the state records that (`wait_capacity`)."""

    @property
    def log_name(self) -> str:
        """The log's name when its state was read last; it may have changed since the log was opened."""
        return self._log_lock.writer_state.state.name

    # --- frames -----------------------------------------------------------------------------------

    def append_batch(
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

        None: it must wait (`wait_capacity`), nothing was taken. ``on_done`` is called once, with the
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
        send_queue, assigner = self._send_queue, self._txid_admission.assigner
        send_queue.raise_if_over()
        record_count = len(payloads)
        policy = assigner.policy
        if set(map(type, payloads)) != {bytes}:
            raise InvalidRequest("a frame holds at least one payload, and payloads are bytes")
        sizes = list(map(len, payloads))
        size = sum(sizes) + record_count * RECORD_COLUMN_BYTES
        if size - RECORD_COLUMN_BYTES > RECORD_BYTES_MAX:
            raise RecordTooLarge(
                f"a frame of {record_count} records and {sum(sizes)} bytes; the most are "
                f"{RECORD_BYTES_MAX} in sum "
                f"with {RECORD_COLUMN_BYTES} bytes for each record after the first"
            )
        sets = None
        if record_flags is not None:
            sets = validate_sets(record_flags, txids, payloads, self._name, policy)
        producers = send_queue.producers
        if producer:
            if producers is None:
                raise ProducerForgotten(f'log "{self._name}" has no producers')
            check_sequence(sequence)
            check = producers.check_sequence(producer, sequence, record_count)
            if check is SequenceCheck.WINDOW_FULL:
                return None
            if check is not SequenceCheck.NEW:
                return self._duplicate(check, record_count, on_done, producer, sequence)
            size += SPAN_BYTES
        unordered = False
        if txids is not None:
            validated = validate_columns(
                txids,
                payloads,
                assigner.last,
                self._txid_admission.checks_order,
                self._name,
                policy,
            )
            if validated.refusal is not None:
                raise validated.refusal
            txids, unordered = validated.txids, validated.is_unordered
            if unordered and not self._txid_admission.unordered_recorded:
                self._must_record_unordered = True
                return None
        batch = send_queue.batch
        if send_queue.pause or batch.size_bytes + size > batch.bytes_max:
            if not send_queue.try_reserve_batch(record_count, size):
                return None
            batch = send_queue.batch
        if txids is not None:
            greatest = max(txids) if unordered else txids[-1]
            self._txid_admission.record_given(
                batch, txids[0], txids[-1], greatest, unordered=unordered
            )
        elif record_count == 1:
            txids = [assigner.assign_one(sizes[0])]
        elif sets is None:
            txids = assigner.assign(sizes)
        else:
            txids = assigner.assign_for_sets(record_count, sets)
        slot = len(batch.txids)
        if not slot:
            send_queue.wake()
        if sets is not None:
            batch.sets = [
                *(batch.sets or ()),
                *((slot + first, set_records) for first, set_records in sets),
            ]
        batch.txids += txids
        batch.payloads += payloads
        batch.size_bytes += size
        batch_entry = SequencedBatch(record_count, on_done, producer=producer, sequence=sequence)
        batch_entry.first_txid = txids[0]
        if producer and producers is not None:
            producers.record_batch(batch, slot, batch_entry)
        batch_entry.attach(batch, slot)
        return batch_entry

    @staticmethod
    def _duplicate(
        check: SequenceCheck | SequencedBatch | DLSN,
        records: int,
        on_done: Callable[[SequencedBatch], object],
        producer: int,
        sequence: int,
    ) -> SequencedBatch:
        duplicate = SequencedBatch(records, on_done, producer=producer, sequence=sequence)
        if isinstance(check, SequencedBatch):
            duplicate.share_outcome(check)
        else:
            duplicate.finish_stored(check if isinstance(check, DLSN) else None)
        return duplicate

    async def wait_capacity(self, records: int, size: int, producer: int = 0) -> None:
        """Wait until a frame of so many records and payload bytes may be taken: then `append_batch` without a
        checkpoint between, which may say None again, for others write too.

        If its txids decrease, the log's state records that first. Raises `TooBusy` if the log is over a
        limit, `WriteCancelled` if its state cannot be changed, as `next_sequence`, and the writer's error.
        """
        send_queue = self._send_queue
        if self._must_record_unordered:
            self._must_record_unordered = False
            await self._txid_admission.record_unordered()
            return
        while producer and send_queue.producers is not None:
            oldest_unacked = send_queue.producers.window_blocker(producer)
            if oldest_unacked is None:
                break
            await oldest_unacked.wait()
            send_queue.raise_if_over()
        size += records * RECORD_COLUMN_BYTES + SPAN_BYTES
        await send_queue.wait_batch_capacity(records, size)

    async def append_if_last(
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
        """As `append_batch`, where the log's last record is the one at ``expect``; returns when it is done,
        or, with ``on_done``, when it is taken.

        What was taken before it is waited for: only then it is known which record is the last. One of a
        producer that was taken before is a copy, whatever is expected. Raises as `append_batch`, and
        `PositionConflict`, each only after the metadata have said that the log is still ours (H64).
        """
        send_queue, done, waited = self._send_queue, trio.Event(), False
        await self._resolve_tail()
        while True:
            send_queue.raise_if_over()
            try:
                if not (producer and self.is_duplicate(producer, sequence)):
                    last = self._last_stored
                    all_stored = not send_queue.records_left
                    if last > expect or (last != expect and (waited or all_stored)):
                        break  # once: others may write without end, and never come to a far place
                    if not all_stored:
                        self._send_queue.send_open()
                        await send_queue.settle()
                        waited = True
                        continue
                appended = self.append_batch(
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
            if appended is not None:
                if on_done is None:
                    await done.wait()
                return appended
            await self.wait_capacity(len(payloads), sum(map(len, payloads)), producer)
        await self.check_owner()
        raise PositionConflict(
            f'log "{self._name}": its last record is at {last}, not at {expect}; nothing was written',
            str(last),
        )

    @property
    def _last_stored(self) -> DLSN:
        """Where the last record is that is durable; `_resolve_tail` comes first."""
        batch = self._send_queue.last_durable_batch
        if batch is not None:
            return DLSN(batch.segment, batch.entry, batch.count - 1)
        assert self._tail_at_open is not None, "it was found"
        return self._tail_at_open

    async def _resolve_tail(self) -> None:
        if self._tail_at_open is not None or self._send_queue.last_durable_batch is not None:
            return
        writer_state = self._log_lock.writer_state
        last = writer_state.state.last_dlsn
        if last is None and not writer_state.state.next_sequence_id:
            last = DLSN.NONE
        if last is None:  # a log of the first format: its segments know, or nobody
            state_watch = await open_state_watch(
                writer_state.metadata, writer_state.log_id, self._name
            )
            last = await last_readable(writer_state.metadata, state_watch, self._ledgers)
        if last is None:
            raise InvalidRequest(
                f'log "{self._name}": it is not known where its last record was, for it is gone: write one '
                "without expecting any"
            )
        self._tail_at_open = last

    async def write(self, sequence: int, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        """Write a frame of the writer's own producer and wait until it is durable; as `write_frame`."""
        default_producer = self._default_producer
        assert default_producer is not None, "the caller has checked it"
        txids, payloads = await self._split_batch(records)
        done = trio.Event()
        appended: SequencedBatch | None = None
        while appended is None:
            self._count_default_producer()
            try:
                appended = self.append_batch(
                    payloads,
                    lambda _: done.set(),
                    txids=txids,
                    producer=default_producer.number,
                    sequence=sequence,
                )
            except (InvalidRequest, ProducerFenced, ProducerForgotten):
                await self.check_owner()
                raise
            if appended is None:
                await self.wait_capacity(
                    len(payloads), sum(map(len, payloads)), default_producer.number
                )
        await done.wait()
        return self._positions_of(appended)

    async def _split_batch(
        self, records: Sequence[LogRecord | Buffer]
    ) -> tuple[list[int] | None, list[bytes]]:
        """Records as a frame has them."""
        txids, payloads = split_columns(records)
        has_txids = bool(txids) and txids[0] is not None
        if any((txid is not None) != has_txids for txid in txids):
            raise InvalidRequest("all records of a frame have a txid, or none has")
        await trio.lowlevel.checkpoint()
        policy = self._txid_admission.assigner.policy
        validated = [
            validate_record(txid, payload, 0, self._name, policy)
            for txid, payload in zip(txids, payloads, strict=True)
        ]
        given_txids = [txid for txid, _ in validated if txid is not None]
        return given_txids if has_txids else None, [payload for _, payload in validated]

    @staticmethod
    def _positions_of(appended: SequencedBatch) -> list[DLSN]:
        if appended.error is not None:
            raise appended.error.again()
        first = appended.first_dlsn
        if first is None:
            return []
        return [first._replace(slot=first.slot + index) for index in range(appended.records)]

    async def write_after(
        self,
        expect: DLSN,
        records: Sequence[LogRecord | Buffer],
        producer: int = 0,
        sequence: int = 0,
    ) -> list[DLSN]:
        """Write records directly after the one at ``expect``; returns when they are durable."""
        check_dlsn(expect)
        if self._send_queue.sink.conditional_append is not None:
            return [
                await self._append_through_proxy(
                    self._send_queue.sink.conditional_append, expect, records
                )
            ]
        txids, payloads = await self._split_batch(records)
        return self._positions_of(
            await self.append_if_last(
                expect, payloads, txids=txids, producer=producer, sequence=sequence
            )
        )

    async def _append_through_proxy(
        self, append: ConditionalAppend, expect: DLSN, records: Sequence[LogRecord | Buffer]
    ) -> DLSN:
        """Have the owner of the log append one record of this writer's producer, as `append_if_last`.

        A frame without a sequence cannot be sent again after its connection broke, so its outcome would stay
        unknown.
        """
        if self._default_producer is None:
            raise InvalidRequest(
                f'log "{self._name}": through proxies, write(expect=) requires a producer. Open the writer '
                "with producer=."
            )
        txids, (payload,) = await self._split_batch(records)
        txid = None if txids is None else txids[0]
        send_queue = self._send_queue
        send_queue.send_open()
        await send_queue.settle()  # records that this writer accepted before are in front
        self._check_order(txids, payload)
        position = await append(expect, payload, txid)
        if txid is not None:
            self._txid_admission.assigner.last = max(self._txid_admission.assigner.last, txid)
        return position

    def _check_order(self, txids: list[int] | None, payload: bytes) -> None:
        """Raise `TransactionIdOutOfOrder` here. A refusal by the log's owner would end the writer."""
        if txids is None:
            return
        admission = self._txid_admission
        refusal = validate_columns(
            txids,
            [payload],
            admission.assigner.last,
            admission.checks_order,
            self._name,
            admission.assigner.policy,
        ).refusal
        if refusal is not None:
            raise refusal

    def _count_default_producer(self) -> None:
        """The records of the open batch are counted, so that it is known what is next."""
        if self._default_producer is not None:
            self._require_producers().record_default(
                self._send_queue.batch, len(self._send_queue.batch.txids)
            )

    # --- producers --------------------------------------------------------------------------------

    @property
    def default_producer(self) -> OpenedProducer | None:
        """The producer of all records that come without a frame; None: there is none."""
        return self._default_producer

    async def open_producer(self, name: str) -> OpenedProducer:
        """A number for a producer; returns when that is durable. Who had the name is fenced.

        Raises `InvalidRequest`; `TooBusy` where the log has 1,000 producers, none of them idle for an hour;
        `ProducerFenced` where another one opened the name meanwhile; what ended the writer.
        """
        check_producer_name(name)
        send_queue = self._send_queue
        send_queue.raise_if_over()
        if send_queue.producers is None:
            await self._writer_ownership.change_state(
                LogState.with_producers, lambda state: state.has_producers
            )
            if send_queue.producers is None:
                send_queue.producers = ProducerStateManager(ProducerTable(), self._name)
        number, batch = send_queue.producers.open(name)
        send_queue.open_producer(batch)
        await batch.wait()
        if batch.error is not None:
            raise batch.error.again()
        return send_queue.producers.opened(name, number)

    def resume_producer(self, name: str, number: int) -> OpenedProducer:
        """A producer that was opened before, by this writer or one before it, goes on with its number.

        Raises `ProducerFenced`, `ProducerForgotten`; see `append_batch`.
        """
        return self._require_producers().resume(name, number)

    def next_sequence(self, number: int) -> int:
        """How many records of a producer were taken. Raises `ProducerFenced`, `ProducerForgotten`."""
        return self._require_producers().next_sequence(number)

    def is_duplicate(self, number: int, sequence: int) -> bool:
        """Was a frame from there on taken before? Raises `InvalidRequest`, and as `next_sequence`."""
        check_sequence(sequence)
        self._count_default_producer()
        return sequence < self._require_producers().next_sequence(number)

    def batches_from(
        self, number: int, sequence: int, on_done: Callable[[SequencedBatch], object]
    ) -> list[SequencedBatch]:
        """The frames of a producer from there on that are stored and not let go, or on their way; ascending.

        Each has an outcome of its own; ``on_done`` is called in here for those that are stored. Raises as
        `next_sequence`.
        """
        return self._require_producers().batches_from(number, sequence, on_done)

    def _require_producers(self) -> ProducerStateManager:
        if self._send_queue.producers is None:
            raise ProducerForgotten(f'log "{self._name}" has no producers')
        return self._send_queue.producers

    async def check_owner(self) -> None:
        """Read from the metadata whether the log is ours; see `WriterOwnership.check`."""
        await self._writer_ownership.check()

    async def open_default_producer(self, name: str) -> None:
        """Have all records that come without a frame written by a producer; before the first one."""
        opened = await self.open_producer(name)
        self._require_producers().default_number = opened.number
        self._default_producer = opened

    def set_default_producer(self, opened: OpenedProducer) -> None:
        """A proxy has opened it: the writer's records are those of this producer."""
        self._default_producer = opened
