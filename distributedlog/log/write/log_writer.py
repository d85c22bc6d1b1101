"""Write a log. `send_queue.py` sends the records, `segment_roller.py` manages the segments.

All causes that end a writer call `SendQueue.fail`:

- `SegmentRoller.run` can neither roll nor replace its segment.
- Another writer owns the log (`LogLock.when_lost`).
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
    WriteCancelled,
    WriteFailed,
)
from ...runtime.interfaces.host import Buffer
from ..changes.log_truncation import truncate
from ..format.dlsn import DLSN, check_dlsn
from ..format.packed_columns import own_packed
from ..format.producer_table import ProducerTable
from ..format.record import (
    RECORD_BYTES_MAX,
    RECORD_COLUMN_BYTES,
    LogRecord,
    columns_of,
    txid_and_payload,
)
from ..interfaces.error_boundary import error_boundary
from ..model.log_keys import incarnation_text
from ..model.log_state import BYTES, LogState
from ..model.position import Position
from ..model.txid_policy import out_of_order, refuse_given
from ..read.state_watch import follow
from ..services.lease_session import LogLock
from ..services.log_context import LogContext
from .entry_batch import PendingBulk, PendingWrite
from .producer_state_manager import OpenedProducer, ProducerStateManager
from .record_validation import validate_columns
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
        claimed: LogLock,
        make_sink: MakeSink,
        table: ProducerTable | None = None,
    ) -> None:
        """Start with an empty queue.

        Args:
            claimed: The claim on the log, which the writer releases at its end. A writer through proxies has
                a substitute, made from the proxy's answers.
            table: The producers of the log. None if it never had one.
        """
        options = context.options
        self._claim = claimed
        self._ledgers = context.ledgers
        self._close_timeout_s = options.close_timeout_s
        self._name = claimed.owned.state.name
        self._owner = context.owner
        self._scope = trio.CancelScope()
        context.meters.writers += 1
        self.pipeline = SendQueue(context, claimed.owned.state, make_sink, self._scope.cancel)
        """The accepted records. Public, because callers that accept more read `SendQueue.over` for each."""
        self._sink = self.pipeline.sink
        if table is not None:
            self.pipeline.producers = ProducerStateManager(table, self._name)
        self._entry_bytes_max = options.entry_bytes_max
        self._closed = False
        ownership = WriterOwnership(claimed, self.pipeline, options.recover_timeout_s)
        self._txids = TxidAdmission(
            claimed.owned.state,
            self.pipeline,
            ownership,
            wall_ms=context.wall_ms,
            checked=options.max_txid_check,
        )
        self._source = self._txids.source
        self.checks_txids = self._txids.checks
        """Whether a given transaction ID below the last one is rejected."""
        self.sequenced = SequencedWriter(
            claimed, context.ledgers, self.pipeline, self._txids, ownership
        )
        """The calls for proxies, gateways and producers."""
        claimed.when_lost(self.pipeline.fail)

    def __repr__(self) -> str:
        over = self.pipeline.error or self.pipeline.over
        state = "open" if over is None else f"{type(over).__name__}: {over}"
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
        WriteFailed, NotEnoughBookies.
        """
        pipeline = self.pipeline
        if pipeline.pause:
            await pipeline.before_submit()
        txid: Any
        payload: Any
        batch, source = pipeline.batch, self._source
        if source.draws and type(record) is bytes:
            size = len(record)
            if size > RECORD_BYTES_MAX or (
                (size := batch.bytes + size + RECORD_COLUMN_BYTES) > batch.bytes_max
            ):
                return await self._submit_slowly(None, record)
            txid, payload = source.draw_one(len(record)), record
        else:
            try:
                txid, payload = record.txid, record.payload  # type: ignore[union-attr]
            except AttributeError:  # a payload alone
                txid, payload = txid_and_payload(record)
            if (
                type(payload) is not bytes
                or type(txid) is not int
                or not source.last <= txid <= source.most
                or (size := len(payload)) > RECORD_BYTES_MAX
                or (size := batch.bytes + size + RECORD_COLUMN_BYTES) > batch.bytes_max
            ):
                return await self._submit_slowly(txid, payload)
            source.last = txid
        batch.bytes = size
        txids = batch.txids
        slot = len(txids)
        txids.append(txid)
        batch.payloads.append(payload)
        if not slot:
            pipeline.wake()
        pending = PendingWrite()  # as `PendingWrite.of`
        pending._batch = batch
        pending._slot = slot
        return pending

    async def _submit_slowly(self, txid: object, payload: object) -> PendingWrite:
        """Accept a record that needs a check, or for which there is no free space yet."""
        pipeline = self.pipeline
        while True:
            own, plain = await self._txids.admit(txid, payload)
            size = len(plain) + RECORD_COLUMN_BYTES
            self._txids.begin_kind(given=own is not None)
            if pipeline.fit(1, size):
                break
            await pipeline.wait_fit(1, size)
            payload = plain  # checked again, because other tasks may have written during the wait
        batch = pipeline.batch
        if own is None:
            own = self._source.draw_one(len(plain))
        else:
            self._txids.took_given(batch, own, own, own)
        if not batch.txids:
            pipeline.wake()
        batch.txids.append(own)
        batch.payloads.append(plain)
        batch.bytes += size
        return PendingWrite.of(batch, len(batch.txids) - 1)

    async def write(self, record: LogRecord | Buffer, *, expect: DLSN | None = None) -> DLSN:
        """Write one record and return its DLSN when it is durable (G2).

        Args:
            record: As for `submit`.
            expect: The DLSN of the log's last record, or `DLSN.NONE` if it never had one. The record is then
                stored directly after that one, or not at all (G10). `PositionConflict` contains the actual
                last position. Through proxies, the writer must have been opened with ``producer``.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, NotEnoughBookies, PositionConflict.
        """
        if expect is not None:
            return (await self.sequenced.write_after(expect, [record]))[0]
        pipeline = self.pipeline
        if not pipeline.idle:
            return await (await self.submit(record))
        # The record is alone in its entry in any case, because its caller waits until it is durable. So no
        # event-loop iteration is spent on batching. `submit` does not wait here, because there is free space.
        pipeline.direct = True
        try:
            pending = await self.submit(record)
        finally:
            pipeline.direct = False
        pipeline.send()
        return await pending

    async def submit_bulk(self, records: Sequence[LogRecord | Buffer]) -> PendingBulk:
        """Accept many records, in order, and return a pending bulk. Await that to get the DLSNs.

        The call waits only for free space in the queue and for the log's rate. It raises only errors that end
        the writer. A rejected record has its own error as outcome, and the records after it are not accepted.
        If a limit is reached and ``at_limit`` is "reject", the outcome of all records from there on is
        `TooBusy`.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        return await self.submit_columns(*columns_of(records))

    async def submit_columns(
        self, txids: Sequence[int | None] | None, payloads: Sequence[bytes]
    ) -> PendingBulk:
        """Accept many records as `submit_bulk`, from a list of transaction IDs and one of payloads.

        Args:
            txids: None if the log assigns all of them. A None in the list is assigned, too.
            payloads: One per transaction ID.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        pipeline, source = self.pipeline, self._source
        pipeline.raise_if_over()
        bulk = PendingBulk(len(payloads) if txids is None else len(txids))
        taken = validate_columns(
            txids, payloads, source.last, self.checks_txids, self._name, source.rule
        )
        at = wanted = 0  # index of the next record, and bytes of it for which no space was free
        while at < taken.number:
            if pipeline.pause or wanted:
                taken.keep()
                try:
                    if wanted:
                        await pipeline.wait_fit(1, wanted)
                        wanted = 0
                    else:
                        await pipeline.before_submit()
                except TooBusy as error:
                    bulk.refused(at, error)  # this record and all after it
                    return bulk
                except DistributedLogError as error:
                    if at == 0:
                        raise
                    bulk.refused(at, error)
                    return bulk
            own = taken.txids
            given = own is not None and own[at] is not None
            if given and (taken.unordered or own[at] < source.last):
                if self.checks_txids:  # another task wrote greater ones during the wait
                    bulk.refused(at, out_of_order(own[at], source.last, self._name))
                    return bulk
                if not self._txids.back_noted:
                    taken.keep()
                    try:
                        await self._txids.note_unordered()
                    except DistributedLogError as error:
                        if at == 0:
                            raise
                        bulk.refused(at, error)
                        return bulk
                    continue  # other tasks may have written
            self._txids.begin_kind(given=given)
            batch = pipeline.batch
            stop = taken.kind_stop(at, taken.stop(at, self._entry_bytes_max, batch.bytes))
            if stop == at:
                pipeline.close_batch()
                continue
            size = taken.bytes_of(at, stop)
            if batch.bytes + size > batch.bytes_max:
                while not (fits := pipeline.fit(stop - at, size, divisible=True)) and stop - at > 1:
                    stop = at + (stop - at) // 2  # until the records fit
                    size = taken.bytes_of(at, stop)
                if not fits:
                    wanted = size
                    continue
                batch = pipeline.batch
            if not batch.txids:
                pipeline.wake()
            bulk.took(at, batch, len(batch.txids))
            span, sizes = taken.payloads, taken.sizes
            if stop - at < len(bulk):  # a slice of all records would be a needless copy
                span, sizes = span[at:stop], sizes[at:stop]
                own = own[at:stop] if given else None
            if given:
                greatest = max(own) if taken.unordered else own[-1]
                self._txids.took_given(batch, own[0], own[-1], greatest, unordered=taken.unordered)
            else:
                own = source.draw(sizes)
            batch.take_columns(own, span, sizes)
            batch.bytes += size
            at = stop
        if taken.refusal is not None:
            bulk.refused(at, taken.refusal)
            if at + 1 < len(bulk):
                why = f"record {at} of the call was refused: {taken.refusal}"
                bulk.refused(at + 1, WriteCancelled(why))
        return bulk

    async def submit_packed(
        self, txids: Buffer | None, offsets: Buffer, payloads: Buffer
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

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, NotEnoughBookies.
        """
        pipeline, source = self.pipeline, self._source
        pipeline.raise_if_over()
        given = txids is not None
        columns = own_packed(txids, offsets, payloads)
        if given and source.rule == BYTES:
            raise refuse_given(self._name)
        first, last = columns.txids[0], columns.txids[-1]
        if given and self.checks_txids and not columns.ascending:
            listed = columns.txids.tolist()
            falls = next(b for a, b in pairwise(listed) if b < a)
            raise out_of_order(falls, max(listed[: listed.index(falls)]), self._name)
        if pipeline.pause:
            await pipeline.before_submit()
        size = columns.column_bytes - 4
        while True:
            if given and (not columns.ascending or first < source.last):
                if self.checks_txids:
                    raise out_of_order(first, source.last, self._name)
                await self._txids.note_unordered()
            if pipeline.batch.txids:
                pipeline.close_batch()
                pipeline.raise_if_over()  # sending the batch may have ended the writer
            self._txids.begin_kind(given=given)
            if pipeline.fit(len(columns.txids), size):
                break
            await pipeline.wait_fit(len(columns.txids), size)
        batch = pipeline.batch
        if given:
            greatest = last if columns.ascending else max(columns.txids)
            self._txids.took_given(batch, first, last, greatest, unordered=not columns.ascending)
        else:
            columns = columns.with_txids(source.draw_packed(columns.offsets))
        batch.take_packed(columns)
        bulk = PendingBulk(len(columns.txids))
        bulk.took(0, batch, 0)
        pipeline.wake()
        pipeline.close_batch()
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
        WriteFailed, NotEnoughBookies.
        """
        pipeline = self.pipeline
        pipeline.raise_if_over()
        txids, payloads = columns_of(records)
        if pipeline.pause:
            await pipeline.before_submit()
        while True:
            txid, plain = await self._txids.admit_set(txids, payloads)
            size = sum(map(len, plain)) + len(plain) * RECORD_COLUMN_BYTES
            self._txids.begin_kind(given=txid is not None)
            if pipeline.fit(len(plain), size):
                break
            await pipeline.wait_fit(len(plain), size)
        batch = pipeline.batch
        if txid is None:
            txid = self._source.draw_one(sum(map(len, plain)))
        else:
            self._txids.took_given(batch, txid, txid, txid)
        if not batch.txids:
            pipeline.wake()
        bulk = PendingBulk(len(plain))
        bulk.took(0, batch, batch.take_set(txid, plain))
        batch.bytes += size
        return bulk

    async def write_set(self, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        """Write a record set, as `submit_set`, and return the DLSNs when all records are durable.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, NotEnoughBookies.
        """
        return await (await self.submit_set(records))

    async def write_bulk(self, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        """Write many records and return their DLSNs when all are durable. Raise the first error.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed,
        WriteCancelled, WriterFenced, WriteFailed, NotEnoughBookies.
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
        WriteFailed, NotEnoughBookies, QuorumUnreachable, PositionConflict.
        """
        own = self.sequenced.own
        if own is None:
            raise InvalidRequest(f'log "{self._name}": open its writer with producer= to write so')
        if self._sink.append_after is not None:
            raise InvalidRequest(f'log "{self._name}": through proxies no frames are made by hand')
        if expect is not None:
            return await self.sequenced.write_after(expect, records, own.number, sequence)
        return await self.sequenced.write(sequence, records)

    @property
    def producer(self) -> OpenedProducer | None:
        """The producer of this writer when it was opened. None for a writer without a producer.

        Its source continues at ``next_sequence``.
        """
        return self.sequenced.own

    async def flush(self) -> None:
        """Send the buffered records without waiting.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        self.pipeline.send_open()

    async def commit(self) -> DLSN | None:
        """Wait until all records written before are durable and readable.

        It costs one round trip to the bookies after the records are durable. After `RequestTimeout` the
        records are durable, the writer continues, and readers may see the records later. The writer's first
        error is permanent.

        Returns:
            The last DLSN, or None if no record was written.

        Raises: RequestTimeout, AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        await self.flush()
        return await self.pipeline.commit()

    @property
    def last_txid(self) -> int:
        """The greatest transaction ID in the log so far, with this writer's records. -1 in an empty log.

        It is approximate if proxies assign the transaction IDs.
        """
        return self._source.last

    @property
    def position(self) -> Position:
        """The position after the last acknowledged record. ``open_reader(position=…)`` continues there.

        Before the first acknowledgement it is the end of the log at the time of opening. It remains available
        after the writer has ended.
        """
        dlsn, sequence_id = self._sink.current.position
        return Position(incarnation_text(self._claim.owned.log_id), dlsn, sequence_id)

    @property
    def txid_rule(self) -> str:
        """The stored name of the policy: ``auto``, ``given`` (strict), ``count``, ``ms``, ``bytes``."""
        return self._source.rule

    @property
    def over_rate(self) -> int:
        """The number of records accepted above a rate of the log, if ``at_limit`` is ``"count"``."""
        return self.pipeline.throttle.over_rate

    @property
    def error(self) -> DistributedLogError | None:
        """The error that ended this writer, or None."""
        return self.pipeline.error

    @property
    def over(self) -> DistributedLogError | None:
        """The error that the next write would raise because this writer has ended, or None."""
        return self.pipeline.over

    @property
    def segment(self) -> int:
        """The number of the open segment."""
        return self._sink.current.number

    async def aclose(self) -> None:
        """Commit, close the segment and release the lock. Idempotent after success or failure.

        Raises the writer's first error, or the error that prevented the close of the segment. The segment
        then stays open, and the next writer recovers it. All acknowledged records are kept (G2).

        Raises: WriterFenced, WriteFailed, NotEnoughBookies.
        """
        if not self._closed:
            await self._finish(LogState.released)

    async def mark_end_of_stream(self) -> None:
        """Close the writer, as `aclose`, and seal the log: it accepts no more records, and readers end.

        Readers receive `EndOfStream` after the last record.

        After an error the log is not sealed, or it is unknown whether it is sealed.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        self.pipeline.raise_if_over()
        await self._finish(lambda state: state.with_sealed().released())

    async def truncate(self, dlsn: DLSN) -> DLSN:
        """Truncate the log before ``dlsn``, as `Log.truncate`. The writer stays open.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, InvalidRequest, QuorumUnreachable,
        OutcomeUnknown, AlreadyClosed.
        """
        check_dlsn(dlsn)
        owned = self._claim.owned
        follower = await follow(owned.metadata, owned.log_id, self._name)
        return await truncate(owned.metadata, self._ledgers, follower, dlsn)

    async def _finish(self, then: Callable[[LogState], LogState]) -> None:
        pipeline = self.pipeline
        if pipeline.error is not None:
            error = pipeline.error
            await self.abort()
            raise error.again()
        pipeline.close("this writer is closed")
        try:
            with trio.fail_after(self._close_timeout_s):
                if pipeline.batch.txids:
                    pipeline.close_batch()
                await pipeline.settle()
                await self._sink.finish(then)
        except trio.TooSlowError:
            await self.abort()
            raise WriteFailed(
                f'log "{self._name}": not everything was durable within '
                f"{self._close_timeout_s:g} s of closing; the segment is left for recovery"
            ) from None
        except BaseException:
            await self.abort()
            raise
        self._closed = True
        pipeline.part.end()
        self._scope.cancel()
        await self._claim.give_back()

    async def abort(self) -> None:
        """Stop sending. Writes that are not durable have an unknown outcome (G7).

        The segment awaits recovery.

        Raises: nothing.
        """
        if self._closed:
            return
        self._closed = True
        self.pipeline.close("this writer was aborted")
        self.pipeline.fail(
            WriteFailed(f'log "{self._name}": the writer was aborted; it may be stored')
        )
        await self._claim.give_back()

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
                error_boundary(f'the writer of log "{self._name}"', self.pipeline.fail),
            ):
                await self._sink.run()
            if not self._closed:  # it failed: spare the next writer a wait for the lease
                await self._claim.give_back()
        finally:
            if self.pipeline.error is None and not self._closed:
                self.pipeline.close("the namespace was closed")
                self.pipeline.fail(
                    WriteFailed(f'log "{self._name}": the namespace was closed; it may be stored')
                )
