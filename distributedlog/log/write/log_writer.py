"""Write a log. `send_queue.py` sends the records, `segment_roller.py` manages the segments.

All causes that end a writer call `SendQueue.fail`:

- `SegmentRoller.run` can neither roll nor replace its segment.
- Another writer owns the log (`LogLock.set_on_lost`).
- An unexpected exception ends one of the writer's tasks.
- `LogWriter.abort` is called.
- The namespace is closed.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Any

import trio

from ...runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    TooBusy,
    TransactionIdOutOfOrder,
    WriteCancelled,
    WriteFailed,
)
from ...runtime.interfaces.host import Buffer
from ..changes.log_truncation import truncate
from ..format.dlsn import DLSN, check_dlsn
from ..format.packed_columns import copy_and_check_packed
from ..format.producer_table import ProducerTable
from ..format.record import (
    RECORD_BYTES_MAX,
    RECORD_COLUMN_BYTES,
    LogRecord,
    split_columns,
    txid_and_content,
)
from ..format.record_headers import KeyedContent
from ..interfaces.error_boundary import error_boundary
from ..model.log_keys import incarnation_text
from ..model.log_state import BYTES, LogState
from ..model.position import Position
from ..model.txid_policy import txid_order_error, txid_refused_error
from ..read.state_watch import open_state_watch
from ..services.lease_session import LogLock
from ..services.log_context import LogContext
from .entry_batch import PendingBulk, PendingWrite
from .producer_state_manager import OpenedProducer, ProducerStateManager
from .record_validation import ValidatedBatch, keyed_refused_error, validate_columns
from .send_queue import MakeSink, SendQueue
from .sequenced_writer import SequencedWriter
from .txid_admission import TxidAdmission
from .writer_ownership import WriterOwnership


class LogWriter:
    """The one writer of a log, under its epoch. `Log.open_writer` creates it.

    Any number of tasks may write. Records of one task keep their order (G1). At the normal end of its
    ``async with`` the writer is closed. After an exception it is aborted, and the segment awaits recovery.
    """

    def __init__(
        self,
        context: LogContext,
        log_lock: LogLock,
        make_sink: MakeSink,
        table: ProducerTable | None = None,
    ) -> None:
        """Start with an empty queue.

        Args:
            log_lock: The claim on the log, which the writer releases at its end. A writer through proxies has
                a substitute, made from the proxy's answers.
            make_sink: Makes the destination of the entries.
            table: The producers of the log. None if it never had one.
        """
        options = context.options
        self._log_lock = log_lock
        self._ledgers = context.ledgers
        self._close_timeout_s = options.close_timeout_s
        self._name = log_lock.writer_state.state.name
        self._owner = context.owner
        self._scope = trio.CancelScope()
        context.meters.writers += 1
        self.send_queue = SendQueue(
            context, log_lock.writer_state.state, make_sink, self._scope.cancel
        )
        """The accepted records. Public, because callers that accept more read `SendQueue.end_error` each
        time."""
        self._sink = self.send_queue.sink
        if table is not None:
            self.send_queue.producers = ProducerStateManager(table, self._name)
        self._entry_bytes_max = options.entry_bytes_max
        self._closed = False
        writer_ownership = WriterOwnership(
            log_lock, self.send_queue, context.namespace, options.recover_timeout_s
        )
        self._txids = TxidAdmission(
            log_lock.writer_state.state,
            self.send_queue,
            writer_ownership,
            clock_ms=context.clock_ms,
            checks_order=options.max_txid_check,
        )
        self._txid_assigner = self._txids.assigner
        self.checks_txids = self._txids.checks_order
        """Whether a given transaction ID below the last one is rejected."""
        self.sequenced_writer = SequencedWriter(
            log_lock, context.ledgers, self.send_queue, self._txids, writer_ownership
        )
        """The calls for proxies, gateways and producers."""
        log_lock.set_on_lost(self.send_queue.fail)

    def __repr__(self) -> str:
        end_error = self.send_queue.error or self.send_queue.end_error
        state = "open" if end_error is None else f"{type(end_error).__name__}: {end_error}"
        return (
            f'LogWriter("{self._name}", segment {self.segment}, last txid {self.last_txid}, '
            f"by {self._owner}, {state})"
        )

    # --- for the caller ---------------------------------------------------------------------------

    async def submit(self, record: LogRecord | Buffer) -> PendingWrite:
        """Accept one record and return a pending write. Await that to get the DLSN.

        The call waits only for free space in the queue and for the log's rate. If it is cancelled, the record
        may or may not be written.

        After `RecordTooLarge`, `TransactionIdOutOfOrder`, `InvalidRequest` and `TooBusy` (a limit is reached
        and ``at_limit`` is "reject") the writer stays usable. Once it has ended, each call raises
        `AlreadyClosed` or the writer's first error.

        Args:
            record: The record, or its payload if the log assigns the transaction ID.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed.
        """
        send_queue = self.send_queue
        if send_queue.needs_slow_path:
            await send_queue.before_submit()
        txid: Any
        payload: Any
        batch, assigner = send_queue.batch, self._txid_assigner
        if assigner.accepts_bare_payload and type(record) is bytes:
            size = len(record)
            if size > RECORD_BYTES_MAX or (
                (size := batch.size_bytes + size + RECORD_COLUMN_BYTES) > batch.bytes_max
            ):
                return await self._submit_checked(None, record)
            txid, payload = assigner.assign_one(len(record)), record
        else:
            try:
                txid, payload = record.txid, record.content  # type: ignore[union-attr]
            except AttributeError:  # a payload alone
                txid, payload = txid_and_content(record)
            if (
                type(payload) is not bytes
                or type(txid) is not int
                or not assigner.last <= txid <= assigner.max_fast_txid
                or (size := len(payload)) > RECORD_BYTES_MAX
                or (size := batch.size_bytes + size + RECORD_COLUMN_BYTES) > batch.bytes_max
            ):
                return await self._submit_checked(txid, payload)
            assigner.last = txid
        batch.size_bytes = size
        txids = batch.txids
        slot = len(txids)
        txids.append(txid)
        batch.payloads.append(payload)
        if not slot:
            send_queue.wake()
        pending = PendingWrite()  # as `PendingWrite.of`
        pending._batch = batch
        pending._slot = slot
        return pending

    async def _submit_checked(self, txid: object, payload: object) -> PendingWrite:
        """Accept a record that needs a check, or for which there is no free space yet."""
        send_queue = self.send_queue
        while True:
            record_txid, record_payload = await self._txids.validate(txid, payload)
            size = len(record_payload) + RECORD_COLUMN_BYTES
            self._txids.separate_given(given=record_txid is not None)
            if send_queue.try_reserve(1, size):
                break
            await send_queue.wait_capacity(1, size)
            payload = record_payload  # checked again, because other tasks may have written during the wait
        batch = send_queue.batch
        if record_txid is None:
            record_txid = self._txid_assigner.assign_one(len(record_payload))
        else:
            self._txids.record_given(batch, record_txid, record_txid, record_txid)
        if not batch.txids:
            send_queue.wake()
        batch.txids.append(record_txid)
        batch.payloads.append(record_payload)
        batch.has_keyed |= type(record_payload) is KeyedContent
        batch.size_bytes += size
        return PendingWrite.of(batch, len(batch.txids) - 1)

    async def write(self, record: LogRecord | Buffer, *, expect: DLSN | None = None) -> DLSN:
        """Write one record and return its DLSN when it is durable (G2).

        Args:
            record: As for `submit`.
            expect: The DLSN of the log's last record, or `DLSN.NONE` if it never had one. The record is then
                stored directly after that one, or not at all (G10). `PositionConflict` contains the actual
                last position. Through proxies, the writer must have been opened with ``producer``.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, PositionConflict.
        """
        if expect is not None:
            return (await self.sequenced_writer.write_after(expect, [record]))[0]
        send_queue = self.send_queue
        if not send_queue.is_idle:
            return await (await self.submit(record))
        # The record is alone in its entry in any case, because its caller waits until it is durable. So no
        # event-loop iteration is spent on batching. `submit` does not wait here, because there is free space.
        send_queue.is_direct_write = True
        try:
            pending = await self.submit(record)
        finally:
            send_queue.is_direct_write = False
        send_queue.send()
        return await pending

    async def submit_bulk(self, records: Sequence[LogRecord | Buffer]) -> PendingBulk:
        """Accept many records, in order, and return a pending bulk. Await that to get the DLSNs.

        The call waits only for free space in the queue and for the log's rate. It raises only errors that end
        the writer. A rejected record has its own error as outcome, and the records after it are not accepted.
        If a limit is reached and ``at_limit`` is "reject", the outcome of all records from there on is
        `TooBusy`.

        Raises: AlreadyClosed, WriterFenced, WriteFailed.
        """
        return await self.submit_columns(*split_columns(records))

    async def submit_columns(
        self, txids: Sequence[int | None] | None, payloads: Sequence[bytes]
    ) -> PendingBulk:
        """Accept many records as `submit_bulk`, from a list of transaction IDs and one of payloads.

        Args:
            txids: None if the log assigns all of them. A None in the list is assigned, too.
            payloads: One per transaction ID.

        Raises: AlreadyClosed, WriterFenced, WriteFailed.
        """
        send_queue, assigner = self.send_queue, self._txid_assigner
        send_queue.raise_if_over()
        bulk = PendingBulk(len(payloads) if txids is None else len(txids))
        validated = validate_columns(
            txids, payloads, assigner.last, self.checks_txids, self._name, assigner.policy
        )
        if validated.is_keyed:
            validated = await self._permit_keyed(validated)
        position = needed_bytes = 0  # next record; bytes of it that had no space
        while position < validated.record_count:
            if send_queue.needs_slow_path or needed_bytes:
                validated.copy_lists()
                try:
                    if needed_bytes:
                        await send_queue.wait_capacity(1, needed_bytes)
                        needed_bytes = 0
                    else:
                        await send_queue.before_submit()
                except TooBusy as error:
                    bulk.add_refused(position, error)  # this record and all after it
                    return bulk
                except DistributedLogError as error:
                    if position == 0:
                        raise
                    bulk.add_refused(position, error)
                    return bulk
            given_txids = validated.txids
            has_txid = given_txids is not None and given_txids[position] is not None
            if has_txid and (validated.is_unordered or given_txids[position] < assigner.last):
                if self.checks_txids:  # another task wrote greater ones during the wait
                    bulk.add_refused(
                        position, txid_order_error(given_txids[position], assigner.last, self._name)
                    )
                    return bulk
                if not self._txids.unordered_recorded:
                    validated.copy_lists()
                    try:
                        await self._txids.record_unordered()
                    except DistributedLogError as error:
                        if position == 0:
                            raise
                        bulk.add_refused(position, error)
                        return bulk
                    continue  # other tasks may have written
            self._txids.separate_given(given=has_txid)
            batch = send_queue.batch
            stop = validated.same_kind_end(
                position, validated.fitting_end(position, self._entry_bytes_max, batch.size_bytes)
            )
            if stop == position:
                send_queue.close_batch()
                continue
            size = validated.entry_bytes(position, stop)
            if batch.size_bytes + size > batch.bytes_max:
                while (
                    not (
                        has_capacity := send_queue.try_reserve(
                            stop - position, size, divisible=True
                        )
                    )
                    and stop - position > 1
                ):
                    stop = position + (stop - position) // 2  # until the records fit
                    size = validated.entry_bytes(position, stop)
                if not has_capacity:
                    needed_bytes = size
                    continue
                batch = send_queue.batch
            if not batch.txids:
                send_queue.wake()
            bulk.add_span(position, batch, len(batch.txids))
            payload_slice, sizes = validated.payloads, validated.sizes
            if stop - position < len(bulk):  # a slice of all records would be a needless copy
                payload_slice, sizes = payload_slice[position:stop], sizes[position:stop]
                given_txids = given_txids[position:stop] if has_txid else None
            if has_txid:
                greatest = max(given_txids) if validated.is_unordered else given_txids[-1]
                self._txids.record_given(
                    batch,
                    given_txids[0],
                    given_txids[-1],
                    greatest,
                    unordered=validated.is_unordered,
                )
            else:
                given_txids = assigner.assign(sizes)
            batch.add_records(given_txids, payload_slice, sizes)
            batch.has_keyed |= validated.first_keyed < stop
            batch.size_bytes += size
            position = stop
        if validated.refusal is not None:
            bulk.add_refused(position, validated.refusal)
            if position + 1 < len(bulk):
                reason = f"record {position} of the call was refused: {validated.refusal}"
                bulk.add_refused(position + 1, WriteCancelled(reason))
        return bulk

    async def _permit_keyed(self, validated: ValidatedBatch) -> ValidatedBatch:
        """Return the records that the log accepts: up to the first one with a key or headers, or all."""
        if self._txids.keyed_permitted:
            return validated
        validated.copy_lists()
        try:
            await self._txids.permit_keyed()
        except DistributedLogError as error:
            if self.send_queue.end_error is not None:
                raise
            return validated.without_keyed(error)
        return validated

    async def submit_packed(
        self,
        txids: Buffer | None,
        offsets: Buffer,
        payloads: Buffer,
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Sequence[tuple[bytes, bytes]]] | None = None,
    ) -> PendingBulk:
        """Accept records as the columns of one entry in Arrow's layout, all or none.

        There is no work per record. The columns are little-endian. They have at least one record and at most
        1,040,384 bytes in sum, best a quarter of that. Records accepted earlier are stored before them, and
        later ones in other entries. Buffers that are not ``bytes`` are copied. The call waits only for free
        space in the queue and for the log's rate. Await the result to get the DLSNs.

        After `InvalidRequest`, `RecordTooLarge`, `TransactionIdOutOfOrder` and `TooBusy` no record was
        accepted, and the writer stays usable. Once it has ended, each call raises `AlreadyClosed` or the
        writer's first error.

        Args:
            txids: int64 per record. None if the log assigns them.
            offsets: int32, one more than records. The first is 0.
            payloads: The bytes of all payloads, up to the last offset.
            keys: One key per record, None for a record without. They cost work per record.
            headers: Pairs of a name and a value per record, as in a `KeyedRecord`.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed.
        """
        send_queue, assigner = self.send_queue, self._txid_assigner
        send_queue.raise_if_over()
        has_txids = txids is not None
        columns = copy_and_check_packed(txids, offsets, payloads)
        if keys is not None or headers is not None:
            columns = columns.with_keyed(keys, headers)
            if columns.is_keyed and assigner.policy == BYTES:
                raise keyed_refused_error(self._name)
        if has_txids and assigner.policy == BYTES:
            raise txid_refused_error(self._name)
        first, last = columns.txids[0], columns.txids[-1]
        if has_txids and self.checks_txids and not columns.is_ascending:
            raise _decreasing_txid_error(columns.txids.tolist(), self._name)
        if send_queue.needs_slow_path:
            await send_queue.before_submit()
        if columns.is_keyed:
            await self._txids.permit_keyed()
        size = columns.column_bytes - 4
        while True:
            if has_txids and (not columns.is_ascending or first < assigner.last):
                if self.checks_txids:
                    raise txid_order_error(first, assigner.last, self._name)
                await self._txids.record_unordered()
            if send_queue.batch.txids:
                send_queue.close_batch()
                send_queue.raise_if_over()  # sending the batch may have ended the writer
            self._txids.separate_given(given=has_txids)
            if send_queue.try_reserve(len(columns.txids), size):
                break
            await send_queue.wait_capacity(len(columns.txids), size)
        batch = send_queue.batch
        if has_txids:
            greatest = last if columns.is_ascending else max(columns.txids)
            self._txids.record_given(
                batch, first, last, greatest, unordered=not columns.is_ascending
            )
        else:
            columns = columns.with_txids(assigner.assign_packed(columns.offsets))
        batch.set_columns(columns)
        bulk = PendingBulk(len(columns.txids))
        bulk.add_span(0, batch, 0)
        send_queue.wake()
        send_queue.close_batch()
        return bulk

    async def submit_set(self, records: Sequence[LogRecord | Buffer]) -> PendingBulk:
        """Accept a record set, all records or none, and return a pending bulk. Await that to get the DLSNs.

        The records are next to each other in one entry, so after any failure readers see all of them or none.
        Readers recognize the set by `LogRecord.more` and `LogReader.read_set`. The call waits only for free
        space in the queue and for the log's rate. A byte stream accepts no sets.

        After `RecordTooLarge`, `TransactionIdOutOfOrder`, `InvalidRequest` and `TooBusy` no record was
        accepted, and the writer stays usable. Once it has ended, each call raises `AlreadyClosed` or the
        writer's first error.

        Args:
            records: At least one, at most 1,040,384 bytes in sum, counting 13 more bytes per record. All have
                the same transaction ID, or none, and then the log assigns one for all.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed.
        """
        send_queue = self.send_queue
        send_queue.raise_if_over()
        txids, payloads = split_columns(records)
        if send_queue.needs_slow_path:
            await send_queue.before_submit()
        while True:
            txid, set_payloads = await self._txids.validate_set(txids, payloads)
            size = sum(map(len, set_payloads)) + len(set_payloads) * RECORD_COLUMN_BYTES
            self._txids.separate_given(given=txid is not None)
            if send_queue.try_reserve(len(set_payloads), size):
                break
            await send_queue.wait_capacity(len(set_payloads), size)
        batch = send_queue.batch
        if txid is None:
            txid = self._txid_assigner.assign_one(sum(map(len, set_payloads)))
        else:
            self._txids.record_given(batch, txid, txid, txid)
        if not batch.txids:
            send_queue.wake()
        bulk = PendingBulk(len(set_payloads))
        bulk.add_span(0, batch, batch.add_set(txid, set_payloads))
        batch.size_bytes += size
        return bulk

    async def write_set(self, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        """Write a record set, as `submit_set`, and return the DLSNs when all records are durable.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed.
        """
        return await (await self.submit_set(records))

    async def write_bulk(self, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        """Write many records and return their DLSNs when all are durable. Raise the first error.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed,
        WriteCancelled, WriterFenced, WriteFailed.
        """
        return await (await self.submit_bulk(records))

    async def write_frame(
        self,
        sequence: int,
        records: Sequence[LogRecord | Buffer],
        *,
        expect: DLSN | None = None,
    ) -> list[DLSN]:
        """Write a frame: records of the writer's producer, stored at most once.

        Use it if the records may have been written before. If they were, nothing is written, and the result
        is their first positions, or an empty list if the log no longer has these. A frame is stored in one
        entry. A repeated frame must contain the same records.

        `InvalidRequest` is also raised if the writer was opened without ``producer``, if the records leave a
        gap, and if they were written together with other ones.

        Args:
            sequence: The number of records that the producer wrote before, which is the number of the first.
            records: At most 1,040,384 bytes, counting 12 more for each record after the first. All have
                transaction IDs, or none has.
            expect: As for `write`, if the records were not written before.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, QuorumUnreachable, PositionConflict.
        """
        default_producer = self.sequenced_writer.default_producer
        if default_producer is None:
            raise InvalidRequest(f'log "{self._name}": open it with producer= to write frames')
        if self._sink.conditional_append is not None:
            raise InvalidRequest(f'log "{self._name}": write_frame does not work through proxies')
        if expect is not None:
            return await self.sequenced_writer.write_after(
                expect, records, default_producer.number, sequence
            )
        return await self.sequenced_writer.write(sequence, records)

    @property
    def producer(self) -> OpenedProducer | None:
        """The producer of this writer when it was opened. None for a writer without a producer.

        Its source continues at ``next_sequence``.
        """
        return self.sequenced_writer.default_producer

    async def flush(self) -> None:
        """Send the buffered records without waiting.

        Raises: AlreadyClosed, WriterFenced, WriteFailed.
        """
        self.send_queue.send_open()

    async def commit(self) -> DLSN | None:
        """Wait until all records written before are durable and readable.

        It costs one round trip to the bookies after the records are durable. After `RequestTimeout` the
        records are durable, the writer continues, and readers may see the records later. The writer's first
        error is permanent.

        Returns:
            The last DLSN, or None if no record was written.

        Raises: RequestTimeout, AlreadyClosed, WriterFenced, WriteFailed.
        """
        await self.flush()
        return await self.send_queue.commit()

    @property
    def last_txid(self) -> int:
        """The greatest transaction ID in the log so far, with this writer's records. -1 in an empty log.

        It is approximate if proxies assign the transaction IDs.
        """
        return self._txid_assigner.last

    @property
    def position(self) -> Position:
        """The position after the last acknowledged record. ``open_reader(position=…)`` continues there.

        Before the first acknowledgement it is the end of the log at the time of opening. It remains available
        after the writer has ended.
        """
        dlsn, sequence_id = self._sink.current_target.position
        return Position(incarnation_text(self._log_lock.writer_state.log_id), dlsn, sequence_id)

    @property
    def txid_policy(self) -> str:
        """The stored name of the policy: ``auto``, ``given`` (strict), ``count``, ``ms``, ``bytes``."""
        return self._txid_assigner.policy

    @property
    def over_rate(self) -> int:
        """The number of records accepted above a rate of the log, if ``at_limit`` is ``"count"``."""
        return self.send_queue.throttle.over_rate

    @property
    def error(self) -> DistributedLogError | None:
        """The error that ended this writer, or None."""
        return self.send_queue.error

    @property
    def end_error(self) -> DistributedLogError | None:
        """The error that the next write would raise because this writer has ended, or None."""
        return self.send_queue.end_error

    @property
    def segment(self) -> int:
        """The number of the open segment."""
        return self._sink.current_target.segment_number

    async def aclose(self) -> None:
        """Commit, close the segment and release the lock. Idempotent after success or failure.

        Raises the writer's first error, or the error that prevented the close of the segment. The segment
        then stays open, and the next writer recovers it. All acknowledged records are kept (G2).

        Raises: WriterFenced, WriteFailed.
        """
        if not self._closed:
            await self._finish(LogState.without_owner)

    async def mark_end_of_stream(self) -> None:
        """Close the writer, as `aclose`, and seal the log: it accepts no more records, and readers end.

        Readers receive `EndOfStream` after the last record.

        After an error the log is not sealed, or it is unknown whether it is sealed.

        Raises: AlreadyClosed, WriterFenced, WriteFailed.
        """
        self.send_queue.raise_if_over()
        await self._finish(lambda state: state.with_seal().without_owner())

    async def truncate(self, dlsn: DLSN) -> DLSN:
        """Truncate the log before ``dlsn``, as `Log.truncate`. The writer stays open.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, InvalidRequest, QuorumUnreachable,
        OutcomeUnknown, AlreadyClosed.
        """
        check_dlsn(dlsn)
        writer_state = self._log_lock.writer_state
        state_watch = await open_state_watch(writer_state.metadata, writer_state.log_id, self._name)
        return await truncate(writer_state.metadata, self._ledgers, state_watch, dlsn)

    async def _finish(self, final_change: Callable[[LogState], LogState]) -> None:
        send_queue = self.send_queue
        if send_queue.error is not None:
            error = send_queue.error
            await self.abort()
            raise error.again()
        send_queue.close("this writer is closed")
        try:
            with trio.fail_after(self._close_timeout_s):
                if send_queue.batch.txids:
                    send_queue.close_batch()
                await send_queue.settle()
                await self._sink.finish(final_change)
        except trio.TooSlowError:
            await self.abort()
            raise WriteFailed(
                f'log "{self._name}": not all records were durable within '
                f"{self._close_timeout_s:g} s of closing. The next writer recovers the segment."
            ) from None
        except BaseException:
            await self.abort()
            raise
        self._closed = True
        send_queue.budget_share.close()
        self._scope.cancel()
        await self._log_lock.release()

    async def abort(self) -> None:
        """Stop sending. Writes that are not durable have an unknown outcome (G7).

        They raise `WriteFailed`, also if they were not sent. Records that still waited for capacity raise
        `AlreadyClosed`, and are not stored.

        The segment awaits recovery.

        Raises: nothing.
        """
        if self._closed:
            return
        self._closed = True
        self.send_queue.close("this writer was aborted")
        self.send_queue.fail(
            WriteFailed(f'log "{self._name}": the writer was aborted; it may be stored')
        )
        await self._log_lock.release()

    async def __aenter__(self) -> "LogWriter":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            await self.abort()

    # --- its tasks --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Roll segments until the writer ends. Runs in a task of the namespace."""
        try:
            with (
                self._scope,
                error_boundary(f'the writer of log "{self._name}"', self.send_queue.fail),
            ):
                await self._sink.run()
            if not self._closed:  # it failed: spare the next writer a wait for the lease
                await self._log_lock.release()
        finally:
            if self.send_queue.error is None and not self._closed:
                self.send_queue.close("the namespace was closed")
                self.send_queue.fail(
                    WriteFailed(f'log "{self._name}": the namespace was closed; it may be stored')
                )


def _decreasing_txid_error(txids: list[int], log_name: str) -> TransactionIdOutOfOrder:
    """Return the error of the first txid that is lower than the txid before it."""
    decreasing_txid = next(b for a, b in pairwise(txids) if b < a)
    greatest = max(txids[: txids.index(decreasing_txid)])
    return txid_order_error(decreasing_txid, greatest, log_name)
