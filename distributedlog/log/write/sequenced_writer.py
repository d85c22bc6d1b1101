"""The writer's calls for proxies, gateways and producers: frames, each stored completely and once.

A frame holds the records that one producer sent in one call. It is stored in one entry, has one outcome, and
is not stored twice if the producer repeats it. `LogWriter.sequenced_writer` is the object. Programs that only
write their own records do not need it.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

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
from ..format.record_headers import KeyedContent
from ..interfaces.segment_store import SegmentEntryStore
from ..model.log_state import BYTES, LogState
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
from .record_validation import (
    keyed_refused_error,
    validate_columns,
    validate_record,
    validate_sets,
)
from .send_queue import ConditionalAppend, SendQueue
from .sequenced_batch import SequencedBatch
from .txid_admission import TxidAdmission
from .writer_ownership import WriterOwnership

REFUSAL_S = 1.0
"""After this time, a refused change of the log's state is tried again."""


class _StateChange:
    """A change of the log's state that a frame needs before it is accepted.

    `SequencedWriter.append_batch`, which never waits, requests it. `SequencedWriter.wait_capacity` makes it.
    The call that waited may have been for another frame, so its error is kept for the frame.
    """

    __slots__ = ("_refusal", "_refused_at", "is_requested")

    def __init__(self) -> None:
        self.is_requested = False
        self._refused_at = -float("inf")
        self._refusal = InvalidRequest()

    def request(self) -> None:
        """Request the change, or raise the error of the last attempt if that is recent."""
        if trio.current_time() < self._refused_at + REFUSAL_S:
            raise self._refusal.again()
        self.is_requested = True

    async def make(self, change: Callable[[], Awaitable[None]]) -> None:
        """Make the change. A refusal is raised by the next `request`."""
        self.is_requested = False
        try:
            await change()
        except InvalidRequest as error:
            self._refused_at, self._refusal = trio.current_time(), error


class SequencedWriter:
    """Accepts frames of producers for one log, and opens producers."""

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
        self._tail_at_open: DLSN | None = None  # last record of earlier writers, once read
        self._unordered_change = _StateChange()
        """For a frame with decreasing transaction IDs."""
        self._keyed_change = _StateChange()
        """For the first frame with a key or headers."""

    @property
    def log_name(self) -> str:
        """The log's name when its state was last read. It may have changed since the log was opened."""
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
        """Accept a frame, which one producer sent in one call, completely into one entry. Never waits.

        After an error nothing was accepted. Before an answer that depends on the writer's producer table is
        sent to a client, `check_owner` must confirm the ownership of the log.

        Args:
            payloads: At least one, at most 1,040,384 bytes in sum, counting 12 more for each record after the
                first. A checked `KeyedContent` for a record with a key or headers.
            on_done: Called once with the frame when its outcome is known, possibly during this call. It must
                neither raise nor wait.
            txids: None if the log assigns them.
            record_flags: One byte per record, if the frame has record sets, as in an entry
                (`docs/reference/formats.md`).
            producer: The number of the producer (`open_producer`). 0 for none.
            sequence: The number of records that the producer sent before this frame.
        Returns:
            The frame. None if nothing was accepted because the call would have to wait (`wait_capacity`). A
            repeated frame is not accepted again, and has the outcome of its first copy.
        Raises:
            InvalidRequest: An argument is invalid, or the frame leaves a gap, or some of its records were
                sent in other frames, or a record has a key or headers and the log does not permit them.
            RecordTooLarge: The frame is above the limit.
            TransactionIdOutOfOrder: A transaction ID decreases, and the log checks the order.
            ProducerFenced: Another opening fenced the producer.
            ProducerForgotten: The producer is unknown.
            DistributedLogError: The error that ended the writer.
        """
        send_queue, assigner = self._send_queue, self._txid_admission.assigner
        send_queue.raise_if_over()
        record_count = len(payloads)
        policy = assigner.policy
        types = set(map(type, payloads))
        is_keyed = KeyedContent in types
        if types - {KeyedContent} != {bytes} and types != {KeyedContent}:
            raise InvalidRequest("a frame must have at least one payload, all of type bytes")
        if is_keyed and policy == BYTES:
            raise keyed_refused_error(self._name)
        sizes = list(map(len, payloads))
        size = sum(sizes) + record_count * RECORD_COLUMN_BYTES
        if size - RECORD_COLUMN_BYTES > RECORD_BYTES_MAX:
            raise RecordTooLarge(
                f"a frame of {record_count} records and {sum(sizes)} bytes is above the limit of "
                f"{RECORD_BYTES_MAX}, "
                f"counting {RECORD_COLUMN_BYTES} more bytes for each record after the first"
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
                self._unordered_change.request()
                return None
        if is_keyed and not self._txid_admission.keyed_permitted:
            self._keyed_change.request()
            return None
        batch = send_queue.batch
        if send_queue.needs_slow_path or batch.size_bytes + size > batch.bytes_max:
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
        batch.has_keyed |= is_keyed
        batch.size_bytes += size
        batch_entry = SequencedBatch(record_count, on_done, producer=producer, sequence=sequence)
        batch_entry.first_txid = txids[0]
        if producer and producers is not None:
            producers.record_batch(batch, slot, batch_entry)
        batch_entry.attach(batch, slot)
        return batch_entry

    @property
    def is_keyed_permitted(self) -> bool:
        """Whether records with keys and headers are accepted without `permit_keyed`."""
        return self._txid_admission.keyed_permitted

    async def permit_keyed(self) -> None:
        """Permit keys and headers, if the log does, as `TxidAdmission.permit_keyed`."""
        await self._txid_admission.permit_keyed()

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
        """Wait until a frame of this size may be accepted.

        Then call `append_batch` without a checkpoint between. It can still return None, because other tasks
        write, too. If the transaction IDs of a waiting frame decrease, or it has the first keys or headers,
        this call records that in the log's state first.

        Args:
            records: The number of records.
            size: The payload bytes.
            producer: The number of the producer. 0 for none.
        Raises:
            TooBusy: The log is above a limit.
            WriteCancelled: The log's state cannot be changed.
            ProducerFenced, ProducerForgotten: As for `next_sequence`.
            DistributedLogError: The error that ended the writer.
        """
        send_queue = self._send_queue
        if self._unordered_change.is_requested:
            await self._unordered_change.make(self._txid_admission.record_unordered)
            return
        if self._keyed_change.is_requested:
            await self._keyed_change.make(self._txid_admission.permit_keyed)
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
        """Accept a frame as `append_batch`, but only if the last record of the log is at ``expect``.

        Records accepted earlier are waited for, because only then the last record is known. A repeated frame
        of a producer is a duplicate, whatever position is expected.

        Args:
            expect: The position of the last record.
            on_done: If given, the call returns when the frame is accepted. Otherwise it returns when the
                frame is done.
        Raises:
            PositionConflict: The last record is at another position. Raised only after the metadata confirmed
                the ownership of the log (H64).
            DistributedLogError: As for `append_batch`. Answers that depend on the producer table are checked
                in the same way.
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
                        break  # wait once: other tasks can write endlessly and never reach ``expect``
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
            f'log "{self._name}": the last record is at {last}, not at {expect} (nothing was written)',
            str(last),
        )

    @property
    def _last_stored(self) -> DLSN:
        """The position of the last durable record. Call `_resolve_tail` first."""
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
        if last is None:  # a log of the first format stores its last position only in its segments
            state_watch = await open_state_watch(
                writer_state.metadata, writer_state.log_id, self._name
            )
            last = await last_readable(writer_state.metadata, state_watch, self._ledgers)
        if last is None:
            raise InvalidRequest(
                f'log "{self._name}": the position of the last record is unknown, because it was deleted. '
                "Write a record without expect= first."
            )
        self._tail_at_open = last

    async def write(self, sequence: int, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        """Write a frame of the default producer and wait until it is durable, as `LogWriter.write_frame`."""
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
    ) -> tuple[list[int] | None, list[Any]]:
        txids, payloads = split_columns(records)
        has_txids = bool(txids) and txids[0] is not None
        if any((txid is not None) != has_txids for txid in txids):
            raise InvalidRequest("either all records of a frame must have a txid, or none")
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
        """Write records directly after the record at ``expect``, and return their positions when they are
        durable."""
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
        """Append one record of the default producer through the log's owner, as `append_if_last`.

        A frame without a sequence cannot be sent again after its connection broke, so its outcome would stay
        unknown.
        """
        if self._default_producer is None:
            raise InvalidRequest(
                f'log "{self._name}": through proxies, write(expect=) requires a producer. Open the writer '
                "with producer=."
            )
        txids, (payload,) = await self._split_batch(records)
        if type(payload) is KeyedContent:
            await self._txid_admission.permit_keyed()
        txid = None if txids is None else txids[0]
        send_queue = self._send_queue
        send_queue.send_open()
        await send_queue.settle()  # earlier records of this writer are stored before it
        self._check_order(txids, payload)
        position = await append(expect, payload, txid)
        if txid is not None:
            self._txid_admission.assigner.last = max(self._txid_admission.assigner.last, txid)
        return position

    def _check_order(self, txids: list[int] | None, payload: bytes) -> None:
        """Raise `TransactionIdOutOfOrder` here, because a rejection by the log's owner would end the
        writer."""
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
        """Count the records of the open batch, so that the default producer's next sequence is known."""
        if self._default_producer is not None:
            self._require_producers().record_default(
                self._send_queue.batch, len(self._send_queue.batch.txids)
            )

    # --- producers --------------------------------------------------------------------------------

    @property
    def default_producer(self) -> OpenedProducer | None:
        """The producer of all records that are submitted without a frame. None if there is none."""
        return self._default_producer

    async def open_producer(self, name: str) -> OpenedProducer:
        """Assign a new number to a producer name, and return when the opening is durable.

        The previous producer of the name is fenced.

        Raises:
            InvalidRequest: The name is invalid.
            TooBusy: The log has 1,000 producers, none of which was idle for an hour.
            ProducerFenced: Another call opened the name at the same time.
            DistributedLogError: The error that ended the writer.
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
        """Continue a producer with its number, which this writer or a previous one assigned.

        See `append_batch` for the check of the ownership.

        Raises:
            ProducerFenced: The name was opened again.
            ProducerForgotten: The name or the number is unknown.
        """
        return self._require_producers().resume(name, number)

    def next_sequence(self, number: int) -> int:
        """Return the number of accepted records of a producer.

        Raises:
            ProducerFenced: The name was opened again.
            ProducerForgotten: The number is unknown.
        """
        return self._require_producers().next_sequence(number)

    def is_duplicate(self, number: int, sequence: int) -> bool:
        """Return whether a frame with this sequence was accepted before.

        Raises:
            InvalidRequest: The sequence is invalid.
            ProducerFenced, ProducerForgotten: As for `next_sequence`.
        """
        check_sequence(sequence)
        self._count_default_producer()
        return sequence < self._require_producers().next_sequence(number)

    def batches_from(
        self, number: int, sequence: int, on_done: Callable[[SequencedBatch], object]
    ) -> list[SequencedBatch]:
        """Return the known frames of a producer from ``sequence`` on, ascending: those in flight and the
        newest stored ones.

        Each is a new object with its own outcome. For stored frames, ``on_done`` is called during this call.

        Raises:
            ProducerFenced, ProducerForgotten: As for `next_sequence`.
        """
        return self._require_producers().batches_from(number, sequence, on_done)

    def _require_producers(self) -> ProducerStateManager:
        if self._send_queue.producers is None:
            raise ProducerForgotten(f'log "{self._name}" has no producers')
        return self._send_queue.producers

    async def check_owner(self) -> None:
        """Read from the metadata whether this writer owns the log, as `WriterOwnership.check`."""
        await self._writer_ownership.check()

    async def open_default_producer(self, name: str) -> None:
        """Open a producer for all records that are submitted without a frame.

        Call it before the first record.
        """
        opened = await self.open_producer(name)
        self._require_producers().default_number = opened.number
        self._default_producer = opened

    def set_default_producer(self, opened: OpenedProducer) -> None:
        """Set the default producer, which a proxy has opened."""
        self._default_producer = opened
