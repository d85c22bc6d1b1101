"""LogWriter: what writes a log. Records go through `send_queue.py`; segments are `segment_roller.py`'s.

Whatever ends it comes together in `SendQueue.fail`: a keeper that can neither roll nor replace its segment
(`SegmentKeeper.run`), a log that turns out to be another one's (`LogLock.when_lost`), what breaks in its
tasks, `LogWriter.abort`, the end of its namespace.
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
    """The one writer of a log, under its epoch. Made by `Log.open_writer`.

    Any number of tasks may write; records of one task keep their order (G1). Leaving its ``async with``
    normally closes it; on an exception it is aborted and the segment left for recovery.
    """

    def __init__(
        self,
        context: LogContext,
        claimed: LogLock,
        make_sink: MakeSink,
        table: ProducerTable | None = None,
    ) -> None:
        """``claimed`` is given back in the end; where proxies stand between, what they told stands for it.

        ``table``: who the log's producers are; None: it never had one.
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
        """What was taken. In the open: whoever takes records for it looks at `SendQueue.over` for each."""
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
        """Is a given txid below the last one refused?"""
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
        """Take one record; waits for room only. ``await`` what it returns for the DLSN.

        A payload alone is a record without txid, which the log fills in. Raises `RecordTooLarge`,
        `TransactionIdOutOfOrder`, `InvalidRequest`, `TooBusy` (``at_limit``; the writer goes on),
        `AlreadyClosed`, or the first error, for good. Cancelled, the record may or may not be in.

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
        """A record that is not plainly fine, or for which there is no room yet."""
        pipeline = self.pipeline
        while True:
            own, plain = await self._txids.admit(txid, payload)
            size = len(plain) + RECORD_COLUMN_BYTES
            self._txids.begin_kind(given=own is not None)
            if pipeline.fit(1, size):
                break
            await pipeline.wait_fit(1, size)
            payload = plain  # others may have written meanwhile: it is looked at again
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
        """Write one record; returns when it is durable (G2). Raises as `submit`, and `WriteFailed`.

        ``expect``: only where the log's last record is the one there (`DLSN.NONE`: where it never had one);
        it is then stored directly after that, or not at all (G10). `PositionConflict` says which one is last.
        Through proxies, ``expect`` requires a writer that was opened with ``producer``.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, NotEnoughBookies, PositionConflict.
        """
        if expect is not None:
            return (await self.sequenced.write_after(expect, [record]))[0]
        pipeline = self.pipeline
        if not pipeline.idle:
            return await (await self.submit(record))
        # It goes alone in any case, and its caller writes nothing before it is durable: no turn of
        # the loop is waited for. (`submit` does not wait here: it is called with room.)
        pipeline.direct = True
        try:
            pending = await self.submit(record)
        finally:
            pipeline.direct = False
        pipeline.send()
        return await pending

    async def submit_bulk(self, records: Sequence[LogRecord | Buffer]) -> PendingBulk:
        """Take many records, in order; waits for room only. ``await`` what it returns for the DLSNs.

        Raises only what closes or fails the writer; what is wrong with a record is its own outcome, and
        those after it are not taken. Where ``at_limit`` refuses, all from there on are `TooBusy`.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        return await self.submit_columns(*columns_of(records))

    async def submit_columns(
        self, txids: Sequence[int | None] | None, payloads: Sequence[bytes]
    ) -> PendingBulk:
        """As `submit_bulk`, from a list of txids and one of payloads; None for txids: the log fills them in.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        pipeline, source = self.pipeline, self._source
        pipeline.raise_if_over()
        bulk = PendingBulk(len(payloads) if txids is None else len(txids))
        taken = validate_columns(
            txids, payloads, source.last, self.checks_txids, self._name, source.rule
        )
        at = wanted = 0  # where it is, and for how many bytes there was no room there
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
                    bulk.refused(at, error)  # and so are all that follow
                    return bulk
                except DistributedLogError as error:
                    if at == 0:
                        raise
                    bulk.refused(at, error)
                    return bulk
            own = taken.txids
            given = own is not None and own[at] is not None
            if given and (taken.unordered or own[at] < source.last):
                if self.checks_txids:  # another task wrote greater ones while this waited
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
                    stop = at + (stop - at) // 2  # as many as there is room for
                    size = taken.bytes_of(at, stop)
                if not fits:
                    wanted = size
                    continue
                batch = pipeline.batch
            if not batch.txids:
                pipeline.wake()
            bulk.took(at, batch, len(batch.txids))
            span, sizes = taken.payloads, taken.sizes
            if stop - at < len(bulk):  # else they are not copied
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
        """Take records as the columns of one entry, as Arrow lays them out: no work a record, all or none.

        ``txids``: int64 each, None to have the log fill them in; ``offsets``: int32, one more than there are
        records, the first 0; ``payloads``: the bytes back to back, as long as the last offset says; all
        little-endian, none without records, at most 1,040,384 bytes in sum, best a quarter of that. What was
        taken before goes first, what comes later into other entries. Buffers that are not ``bytes`` are
        copied. Waits for room only; ``await`` what it returns for the DLSNs.

        Raises `InvalidRequest`, `RecordTooLarge`, `TransactionIdOutOfOrder` (nothing is taken, the writer
        goes on), `AlreadyClosed`, or the first error, for good.

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
                pipeline.raise_if_over()  # what it sent may have met the writer's end
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
        """Take records that belong together, all or none; waits for room only. ``await`` what it returns for
        the DLSNs.

        They are next to each other in one entry, so that whatever fails readers see all of them or none, and
        have one txid: each is given the same, or none, and the log fills it in.
        `LogRecord.more` and `LogReader.read_set` tell them. At least one, at most 1,040,384 bytes in sum with
        13 bytes a record. Not in a byte stream.

        Raises `RecordTooLarge`, `TransactionIdOutOfOrder`, `InvalidRequest`, `TooBusy` (nothing is taken, the
        writer goes on), `AlreadyClosed`, or the first error, for good.

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
        """As `submit_set`; returns their DLSNs when all are durable.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, NotEnoughBookies.
        """
        return await (await self.submit_set(records))

    async def write_bulk(self, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        """Write many records; returns their DLSNs when all are durable. Raises the first error.

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
        """Write records of the writer's producer, the first of which is its ``sequence``-th, once.

        For who may have written them before: then their first positions are returned, or none where the log
        has let them go, and nothing is written. They are all in one entry; repeated, they are the same ones
        together. All have txids, or none has. At most 1,040,384 bytes, with 12 more for each record after the
        first. ``expect`` as for `write`, of records that were not written before.

        Raises `InvalidRequest` without ``producer`` at the opening, for records that leave a gap, and for
        some that were written together with others.

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
        """Who writes the records, as it was opened: ``next_sequence`` says where its source goes on. None:
        nobody who wants them once."""
        return self.sequenced.own

    async def flush(self) -> None:
        """Send what is buffered; waits for nothing.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        self.pipeline.send_open()

    async def commit(self) -> DLSN | None:
        """Wait until all records written before are durable and readable.

        It costs one round trip to the bookies after the records are durable. The writer's first error sticks.

        Returns:
            The last DLSN, or None if no record was written.

        After `RequestTimeout` the records are durable, the writer continues, and readers may see them later.

        Raises: RequestTimeout, AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        await self.flush()
        return await self.pipeline.commit()

    @property
    def last_txid(self) -> int:
        """The greatest txid so far, of this writer's records and of all before them; -1 in an empty log.

        Of a log behind proxies, whose txids they fill in, it is about that.
        """
        return self._source.last

    @property
    def position(self) -> Position:
        """After the last record that is acknowledged: ``open_reader(position=…)`` goes on there.

        Before the first one: where the log ended when it was opened. Stays when the writer has ended.
        """
        dlsn, sequence_id = self._sink.current.position
        return Position(incarnation_text(self._claim.owned.log_id), dlsn, sequence_id)

    @property
    def txid_rule(self) -> str:
        """The stored name of the txid policy: ``auto``, ``given`` (strict), ``count``, ``ms``, ``bytes``."""
        return self._source.rule

    @property
    def over_rate(self) -> int:
        """Records that were taken above a rate of the log, where ``at_limit`` is ``"count"``."""
        return self.pipeline.throttle.over_rate

    @property
    def error(self) -> DistributedLogError | None:
        """The error that ended this writer, or None."""
        return self.pipeline.error

    @property
    def over(self) -> DistributedLogError | None:
        """What the next write would raise because this writer has ended; None while it has not."""
        return self.pipeline.over

    @property
    def segment(self) -> int:
        """The number of the segment in progress."""
        return self._sink.current.number

    async def aclose(self) -> None:
        """Commit, complete the segment, give the lock back. Idempotent after success or failure.

        Raises the writer's first error, or what kept the segment from being completed; then it is left
        in progress, and the next writer recovers it. All that was acknowledged stays (G2).

        Raises: WriterFenced, WriteFailed, NotEnoughBookies.
        """
        if not self._closed:
            await self._finish(LogState.released)

    async def mark_end_of_stream(self) -> None:
        """As `aclose`, and the log ends here for good: it takes no more records, readers reach an end.

        Raises as `aclose`; then the log is not sealed, or that is not known.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        self.pipeline.raise_if_over()
        await self._finish(lambda state: state.with_sealed().released())

    async def truncate(self, dlsn: DLSN) -> DLSN:
        """Give up all records before ``dlsn``; see `Log.truncate`. The writer goes on.

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
        """Send nothing more; what is not durable yet is unknown (G7). The segment awaits recovery.

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
        """Roll, until the writer ends. A task of the namespace."""
        try:
            with (
                self._scope,
                error_boundary(f'the writer of log "{self._name}"', self.pipeline.fail),
            ):
                await self._sink.run()
            if not self._closed:  # it failed: the next writer need not wait for the lease
                await self._claim.give_back()
        finally:
            if self.pipeline.error is None and not self._closed:
                self.pipeline.close("the namespace was closed")
                self.pipeline.fail(
                    WriteFailed(f'log "{self._name}": the namespace was closed; it may be stored')
                )
