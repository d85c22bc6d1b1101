"""LogWriter: what writes a log. Records go through `pipeline.py`; segments are `keeper.py`'s.

Whatever ends it comes together in `Pipeline.fail`: a keeper that can neither roll nor replace its segment
(`SegmentKeeper.run`), a log that turns out to be another one's (`Claim.when_lost`), what breaks in its tasks,
`LogWriter.abort`, the end of its namespace.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Any

import trio

from ..runtime.errors import (
    DistributedLogError,
    InvalidRequest,
    PositionConflict,
    ProducerFenced,
    ProducerForgotten,
    RecordTooLarge,
    TooBusy,
    WriteCancelled,
    WriteFailed,
)
from ..runtime.host import Buffer
from .admission import admit, admit_columns, admit_set, sets_of_frame
from .batch import Batch, PendingBulk, PendingWrite
from .containment import contained
from .context import LogContext
from .dlsn import DLSN, check_dlsn
from .follower import follow
from .frames import Frame
from .keys import incarnation_text
from .locate import last_readable
from .lock_session import Claim
from .ownership import may_pass
from .packed import own_packed
from .pipeline import AppendAfter, MakeSink, Pipeline
from .position import Position
from .producers import ProducerTable
from .producers_format import SPAN_BYTES
from .producing import Met, OpenedProducer, Producers, check_name, check_sequence
from .record import (
    RECORD_BYTES_MAX,
    RECORD_COLUMN_BYTES,
    TXID_MAX,
    LogRecord,
    columns_of,
    txid_and_payload,
)
from .state import BYTES, GIVEN, LogState
from .truncation import truncate
from .txids import TxidSource, out_of_order, refuse_given

NOTE_RETRY_S = 0.2
NONE_IS_FINE = -2
"""Below each txid, and below the -1 that stands for an empty log's last one."""


class LogWriter:
    """The one writer of a log, under its epoch. Made by `Log.open_writer`.

    Any number of tasks may write; records of one task keep their order (G1). Leaving its ``async with``
    normally closes it; on an exception it is aborted and the segment left for recovery.
    """

    def __init__(
        self,
        context: LogContext,
        claimed: Claim,
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
        self.pipeline = Pipeline(context, claimed.owned.state, make_sink, self._scope.cancel)
        """What was taken. In the open: whoever takes records for it looks at `Pipeline.over` for each."""
        self._sink = self.pipeline.sink
        if table is not None:
            self.pipeline.producers = Producers(table, self._name)
        self._own: OpenedProducer | None = None
        self._last_before: DLSN | None = None  # of the writers before; None: not looked for yet
        self._owner_looks = (0, 0)  # begun; the last one that found the log to be ours
        self._owner_turn = trio.Lock()
        self._entry_bytes_max = options.entry_bytes_max
        self._note_timeout_s = options.recover_timeout_s
        self._closed = False
        state = claimed.owned.state
        self._source = TxidSource(state.policy, state.last_txid, context.wall_ms, self._name)
        self.checks_txids = options.max_txid_check and state.policy == GIVEN
        """Is a given txid below the last one refused?"""
        self._back_noted = state.unordered_once
        """Does the log's state record that its txids decrease?"""
        self._note_first = False
        """A frame whose txids decrease waits until it does (`frame_room`)."""
        self._apart = self._sink.append_after is not None
        """Is the log a proxy's, which fills in txids? Then all records of an entry have one, or none has."""
        self._draws = True
        """Is a payload alone plainly fine?"""
        self._most = NONE_IS_FINE
        """The greatest txid that is plainly fine."""
        self._set_plain()
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
        if self._draws and type(record) is bytes:
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
                or not source.last <= txid <= self._most
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
            own, plain = await self._admit(txid, payload)
            size = len(plain) + RECORD_COLUMN_BYTES
            self._begin_kind(given=own is not None)
            if pipeline.fit(1, size):
                break
            await pipeline.wait_fit(1, size)
            payload = plain  # others may have written meanwhile: it is looked at again
        batch = pipeline.batch
        if own is None:
            own = self._source.draw_one(len(plain))
        else:
            self._took_given(batch, own, own, own)
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

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, NotEnoughBookies, PositionConflict.
        """
        if expect is not None:
            return (await self._write_after(expect, [record]))[0]
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
        taken = admit_columns(
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
                if not self._back_noted:
                    taken.keep()
                    try:
                        await self._note_unordered()
                    except DistributedLogError as error:
                        if at == 0:
                            raise
                        bulk.refused(at, error)
                        return bulk
                    continue  # other tasks may have written
            self._begin_kind(given=given)
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
                self._took_given(batch, own[0], own[-1], greatest, unordered=taken.unordered)
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
                await self._note_unordered()
            if pipeline.batch.txids:
                pipeline.close_batch()
                pipeline.raise_if_over()  # what it sent may have met the writer's end
            self._begin_kind(given=given)
            if pipeline.fit(len(columns.txids), size):
                break
            await pipeline.wait_fit(len(columns.txids), size)
        batch = pipeline.batch
        if given:
            greatest = last if columns.ascending else max(columns.txids)
            self._took_given(batch, first, last, greatest, unordered=not columns.ascending)
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
            txid, plain = await self._admit_set(txids, payloads)
            size = sum(map(len, plain)) + len(plain) * RECORD_COLUMN_BYTES
            self._begin_kind(given=txid is not None)
            if pipeline.fit(len(plain), size):
                break
            await pipeline.wait_fit(len(plain), size)
        batch = pipeline.batch
        if txid is None:
            txid = self._source.draw_one(sum(map(len, plain)))
        else:
            self._took_given(batch, txid, txid, txid)
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
        own = self._own
        if own is None:
            raise InvalidRequest(f'log "{self._name}": open its writer with producer= to write so')
        if self._sink.append_after is not None:
            raise InvalidRequest(f'log "{self._name}": through proxies no frames are made by hand')
        if expect is not None:
            return await self._write_after(expect, records, own.number, sequence)
        txids, payloads = await self._framed(records)
        done = trio.Event()
        frame: Frame | None = None
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
        rule = self._source.rule
        admitted = [
            admit(txid, payload, 0, self._name, rule)
            for txid, payload in zip(txids, payloads, strict=True)
        ]
        own = [txid for txid, _ in admitted if txid is not None]
        return own if given else None, [payload for _, payload in admitted]

    @staticmethod
    def _places(frame: Frame) -> list[DLSN]:
        if frame.error is not None:
            raise frame.error.again()
        first = frame.first
        if first is None:
            return []
        return [first._replace(slot=first.slot + k) for k in range(frame.records)]

    async def _write_after(
        self,
        expect: DLSN,
        records: Sequence[LogRecord | Buffer],
        producer: int = 0,
        sequence: int = 0,
    ) -> list[DLSN]:
        check_dlsn(expect)
        if self._sink.append_after is not None:
            return [await self._append_apart(self._sink.append_after, expect, records)]
        txids, payloads = await self._framed(records)
        return self._places(
            await self.frame_after(
                expect, payloads, txids=txids, producer=producer, sequence=sequence
            )
        )

    async def _append_apart(
        self, append: AppendAfter, expect: DLSN, records: Sequence[LogRecord | Buffer]
    ) -> DLSN:
        """As `frame_after`, of one record, by who has the log."""
        txids, (payload,) = await self._framed(records)
        txid = None if txids is None else txids[0]
        await self.commit()  # what this writer took before is in front
        found = await append(expect, payload, txid)
        if txid is not None:
            self._source.last = max(self._source.last, txid)
        return found

    def _note_own(self) -> None:
        """The records of the open batch are counted, so that it is known what is next."""
        if self._own is not None:
            self._producers().note_own(self.pipeline.batch, len(self.pipeline.batch.txids))

    @property
    def producer(self) -> OpenedProducer | None:
        """Who writes the records, as it was opened: ``next_sequence`` says where its source goes on. None:
        nobody who wants them once."""
        return self._own

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
        return self.pipeline.over_rate

    @property
    def error(self) -> DistributedLogError | None:
        """The error that ended this writer, or None."""
        return self.pipeline.error

    @property
    def over(self) -> DistributedLogError | None:
        """What the next write would raise because this writer has ended; None while it has not."""
        return self.pipeline.over

    @property
    def log_name(self) -> str:
        """What the log was called when its state was read last; it may have another name than when it was
        opened."""
        return self._claim.owned.state.name

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

    # --- frames, for who writes for others --------------------------------------------------------

    def take_frame(
        self,
        payloads: list[bytes],
        on_done: Callable[[Frame], object],
        *,
        txids: list[int] | None = None,
        record_flags: bytes | None = None,
        producer: int = 0,
        sequence: int = 0,
    ) -> Frame | None:
        """Take records that one producer sent in one go, whole into one entry; waits for nothing.

        None: it must wait (`frame_room`), nothing was taken. ``on_done`` is called once, with the
        frame, when its outcome is known, perhaps in here; it must neither raise nor wait. ``txids``: None
        to have the log fill them in. At least one record; payloads of at most
        1,040,384 bytes, with 12 more for each record after the first. ``record_flags``: a byte a record,
        where some belong together, as an entry has them (`docs/formats.md`).

        ``producer``: the number of who sent it (`open_producer`), ``sequence``: how many records it sent
        before it. One that was taken before is not taken again; it is told when its first copy is durable.

        Raises `InvalidRequest` (also for a frame that leaves a gap, or repeats one with other borders),
        `RecordTooLarge`, `TransactionIdOutOfOrder`,
        `ProducerFenced`, `ProducerForgotten`, or what ended the writer; nothing is taken then. What rests on
        the writer's knowing of producers is told to others after `check_owner` only.
        """
        pipeline, source = self.pipeline, self._source
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
            if met is Met.FULL:
                return None
            if met is not Met.NEW:
                return self._repeated(met, number, on_done, producer, sequence)
            size += SPAN_BYTES
        unordered = False
        if txids is not None:
            taken = admit_columns(txids, payloads, source.last, self.checks_txids, self._name, rule)
            if taken.refusal is not None:
                raise taken.refusal
            txids, unordered = taken.txids, taken.unordered
            if unordered and not self._back_noted:
                self._note_first = True
                return None
        batch = pipeline.batch
        if pipeline.pause or batch.bytes + size > batch.bytes_max:
            if not pipeline.fit_frame(number, size):
                return None
            batch = pipeline.batch
        if txids is not None:
            greatest = max(txids) if unordered else txids[-1]
            self._took_given(batch, txids[0], txids[-1], greatest, unordered=unordered)
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
        frame = Frame(number, on_done, producer=producer, sequence=sequence)
        frame.first_txid = txids[0]
        if producer and producers is not None:
            producers.took(batch, slot, frame)
        frame.in_batch(batch, slot)
        return frame

    @staticmethod
    def _repeated(
        met: Met | Frame | DLSN,
        records: int,
        on_done: Callable[[Frame], object],
        producer: int,
        sequence: int,
    ) -> Frame:
        frame = Frame(records, on_done, producer=producer, sequence=sequence)
        if isinstance(met, Frame):
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
        pipeline = self.pipeline
        if self._note_first:
            self._note_first = False
            await self._note_unordered()
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
        on_done: Callable[[Frame], object] | None = None,
    ) -> Frame:
        """As `take_frame`, where the log's last record is the one at ``expect``; returns when it is done, or,
        with ``on_done``, when it is taken.

        What was taken before it is waited for: only then it is known which record is the last. One of a
        producer that was taken before is a copy, whatever is expected. Raises as `take_frame`, and
        `PositionConflict`, each only after the metadata have said that the log is still ours (H64).
        """
        pipeline, done, waited = self.pipeline, trio.Event(), False
        await self._find_last()
        while True:
            pipeline.raise_if_over()
            try:
                if not (producer and self.is_copy(producer, sequence)):
                    last = self._last
                    if last > expect or (last != expect and (waited or pipeline.all_stored)):
                        break  # once: others may write without end, and never come to a far place
                    if not pipeline.all_stored:
                        await self.flush()
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
        batch = self.pipeline.last_stored
        if batch is not None:
            return DLSN(batch.segment, batch.entry, batch.count - 1)
        assert self._last_before is not None, "it was found"
        return self._last_before

    async def _find_last(self) -> None:
        if self._last_before is not None or self.pipeline.last_stored is not None:
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

    # --- producers --------------------------------------------------------------------------------

    async def open_producer(self, name: str) -> OpenedProducer:
        """A number for a producer; returns when that is durable. Who had the name is fenced.

        Raises `InvalidRequest`; `TooBusy` where the log has 1,000 producers, none of them idle for an hour;
        `ProducerFenced` where another one opened the name meanwhile; what ended the writer.
        """
        check_name(name)
        pipeline = self.pipeline
        pipeline.raise_if_over()
        if pipeline.producers is None:
            await self._note(LogState.with_producers, lambda state: state.has_producers)
            if pipeline.producers is None:
                pipeline.producers = Producers(ProducerTable(), self._name)
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
        self, number: int, sequence: int, on_done: Callable[[Frame], object]
    ) -> list[Frame]:
        """The frames of a producer from there on that are stored and not let go, or on their way; ascending.

        Each has an outcome of its own; ``on_done`` is called in here for those that are stored. Raises as
        `next_sequence`.
        """
        return self._producers().frames_from(number, sequence, on_done)

    def _producers(self) -> Producers:
        if self.pipeline.producers is None:
            raise ProducerForgotten(f'log "{self._name}" has no producers')
        return self.pipeline.producers

    async def check_owner(self) -> None:
        """Ask the metadata whether the log is ours: who was paused says no to nobody before (H64).

        A read that began after this was called has found our epoch; all who wait share it. Raises
        `WriterFenced`, `LogNotFound`, which end the writer, and what keeps the metadata from answering.
        """
        asked, _ = self._owner_looks
        async with self._owner_turn:
            begun, found = self._owner_looks
            if found > asked:
                return
            self._owner_looks = (begun + 1, found)
            try:
                await self._claim.owned.refresh()
            except DistributedLogError as error:
                if not may_pass(error):
                    self.pipeline.fail(error)
                raise
            self._owner_looks = (begun + 1, begun + 1)

    async def open_own(self, name: str) -> None:
        """Have all records that come without a frame written by a producer; before the first one."""
        own = await self.open_producer(name)
        self._producers().own = own.number
        self._own = own

    def owned_by(self, own: OpenedProducer) -> None:
        """A proxy has opened it: the writer's records are those of this producer."""
        self._own = own

    # --- txids ------------------------------------------------------------------------------------

    def _set_plain(self) -> None:
        """Set which records `submit` accepts without `_admit`; not the first given txid of an empty log."""
        given = self.pipeline.given
        self._draws = not (self._apart and given)
        fine = self._source.rule != BYTES and self._source.last >= 0
        self._most = TXID_MAX if fine and (given or not self._apart) else NONE_IS_FINE

    def _begin_kind(self, *, given: bool) -> None:
        """Records with a txid follow, or records without; behind proxies no entry has both."""
        pipeline = self.pipeline
        if self._apart and pipeline.given != given:
            if pipeline.batch.txids:
                pipeline.close_batch()
                pipeline.raise_if_over()  # what it sent may have met the writer's end
            pipeline.given = given
            self._set_plain()

    def _took_given(
        self, batch: Batch, first: int, last: int, greatest: int, *, unordered: bool = False
    ) -> None:
        """Update the greatest txid for given ones of a batch, and mark a batch where one decreases."""
        source = self._source
        if unordered or first < source.last:
            batch.unordered = True
            source.last = max(source.last, greatest)
        else:
            source.last = last
        if self._most < 0:
            self._set_plain()

    async def _admit(self, txid: object, payload: object) -> tuple[int | None, bytes]:
        """A record that is not plainly fine; None for a txid that the log fills in."""
        source = self._source
        floor = source.last if self.checks_txids else 0
        own, plain = admit(txid, payload, floor, self._name, source.rule)
        if own is not None and own < source.last:
            await self._note_unordered()
        return own, plain

    async def _admit_set(
        self, txids: Sequence[object], payloads: Sequence[object]
    ) -> tuple[int | None, list[bytes]]:
        """As `_admit`, of a set."""
        source = self._source
        floor = source.last if self.checks_txids else 0
        own, plain = admit_set(txids, payloads, floor, self._name, source.rule)
        if own is not None and own < source.last:
            await self._note_unordered()
        return own, plain

    async def _note_unordered(self) -> None:
        """Record in the log's state that txids decrease, before the first lower one is sent.

        Programs that would close its segments by their last txid cannot change the log afterwards.
        """
        if not self._back_noted:
            await self._note(LogState.with_unordered, lambda state: state.unordered_once)
            self._back_noted = True

    async def _note(
        self, apply: Callable[[LogState], LogState], done: Callable[[LogState], bool]
    ) -> None:
        """Have the state say what a record is, before the record is sent. What fails here takes no record."""
        pipeline, owned = self.pipeline, self._claim.owned
        pipeline.direct = False  # this waits, and others may submit meanwhile
        until = trio.current_time() + self._note_timeout_s
        while True:
            try:
                await owned.change(apply, done=done)
                break
            except DistributedLogError as error:
                if not may_pass(error):
                    pipeline.fail(error)
                    raise
                if trio.current_time() >= until:
                    raise WriteCancelled(f"{error}; nothing was written") from error
            await trio.sleep(NOTE_RETRY_S)
        pipeline.raise_if_over()

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

    def fail(self, error: DistributedLogError) -> None:
        """End it: what is not durable yet is unknown. The first error sticks."""
        self.pipeline.fail(error)

    async def run(self) -> None:
        """Roll, until the writer ends. A task of the namespace."""
        try:
            with self._scope, contained(f'the writer of log "{self._name}"', self.fail):
                await self._sink.run()
            if not self._closed:  # it failed: the next writer need not wait for the lease
                await self._claim.give_back()
        finally:
            if self.pipeline.error is None and not self._closed:
                self.pipeline.close("the namespace was closed")
                self.pipeline.fail(
                    WriteFailed(f'log "{self._name}": the namespace was closed; it may be stored')
                )
