"""`Log`: a handle to a log by name, with all operations on it."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from ..runtime.declarations.options import check_seconds, check_wait, check_whole, quoted
from ..runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    LogDeleted,
    LogEmpty,
    LogNotFound,
)
from ..runtime.protocol.schema import NUMBER_MAX
from .arrow.arrow_columns import Projection, choose_columns
from .arrow.arrow_reader import BATCH_BYTES, ArrowReader
from .byte_stream import ByteReader, ByteWriter, check_offset, check_stream
from .changes.log_truncation import seal, truncate
from .consumers.subscription import Subscription, subscribe
from .consumers.work_queue import (
    CLAIM_S,
    TRIES_MAX,
    WorkQueue,
    delete_work_queue,
    list_work_queues,
    open_work_queue,
)
from .consumers.work_state import WorkState
from .format.compression import Compression
from .format.dlsn import DLSN, check_dlsn
from .format.log_clock import to_epoch_ms
from .format.packed_columns import PACKED_BYTES_MAX
from .format.record import LogRecord, check_txid
from .interfaces.open_call import Opening
from .interfaces.segment_store import NewSegmentLedger
from .model.deleted_log_lookup import explain_deleted, look_up
from .model.lock_record import lock_owner
from .model.log_keys import incarnation_id, incarnation_text
from .model.log_state import LogState
from .model.position import Position, ReadStart, TxidStart, check_read_start
from .model.position_outcome import HeldPosition, resolve_position
from .model.segment_ranges import LogSnapshot, SegmentRange, SegmentToken
from .model.segment_record import SegmentRecord
from .model.stored_settings import StoredSettings, conf_key
from .model.txid_policy import policy_name
from .model.writer_log_state import WriterLogState
from .read.fetcher import open_fetcher
from .read.log_reader import LogReader
from .read.log_snapshot import take_snapshot
from .read.position_search import (
    count_before,
    find_time,
    find_txid,
    first_readable,
    last_readable,
    record_at,
    record_with_id,
    segments_page,
)
from .read.range_reader import RangeReader, open_ranges
from .read.segment_watch import SegmentWatch
from .read.skipped_entries import Skipped
from .read.state_watch import StateWatch, open_state_watch
from .segments.app_versions import AppVersion, LinkContent, last_app_version
from .segments.external_segment_writer import ENTRY_BYTES, SegmentWriter, open_external_segment
from .segments.segment_link import LinkResult, SegmentLinking
from .segments.segment_merge import merge_segments
from .segments.staged_ledgers import collect_staged, delete_staged
from .services.log_context import LogContext
from .services.named_positions import Positions
from .services.settings_update import read_settings, update_log_settings
from .takeover.log_lock import acquire_log_lock
from .takeover.takeover import recover_and_open
from .write.log_writer import LogWriter
from .write.producer_state_manager import check_producer_name
from .write.segment_roller import SegmentRoller
from .write.send_queue import MakeSink

STAGED_MAX_AGE_S = 24 * 3600.0
"""Default age from which `Log.collect_unlinked` deletes staged ledgers."""
DESCRIBED_SEGMENTS_MAX = 1000
"""Default number of segments in `Log.describe`, about 150 KB, which suffices for a terminal."""
LINK_WAIT_S = 5.0
"""How long a link waits for a lock of another client. Concurrent links take milliseconds, but a writer
keeps its lock."""


@dataclass(frozen=True, slots=True)
class LogDescription:
    """A log as its metadata describes it. Of a segment in progress, only the readable part counts."""

    name: str
    state: LogState
    segments: tuple[SegmentRecord, ...]
    """The newest segments, ascending. `Log.segments` returns all."""
    owner: str
    """The name of the writer that has the log's lock, or ""."""
    first_dlsn: DLSN | None
    last_dlsn: DLSN | None
    records: int
    """The number of user records in the closed segments, including truncated ones that are not deleted
    yet."""
    size_bytes: int
    """Entry bytes of the closed segments, without replication. For a log whose state does not count them,
    only of those among `segments`."""

    @property
    def txid_policy(self) -> str:
        """The txid policy of the log (see `Namespace.create_log`)."""
        return policy_name(self.state.policy)


class Log:
    """A handle to a log by name. `Namespace.open_log` creates it. It sends no request until it is used."""

    def __init__(
        self,
        context: LogContext,
        name: str,
        *,
        resolve_name: Callable[[str], Awaitable[int]],
        create: Callable[[str], Awaitable[int]],
        incarnation: str | None,
        explicit_options: Collection[str] = (),
    ) -> None:
        self._context = context
        self._resolve_name = resolve_name
        self._create = create
        self.name = name
        self.options = context.options
        self._explicit_options = explicit_options
        """The options that the caller of `open_log` gave."""
        self.incarnation = incarnation
        """The incarnation that the handle refers to. None means whichever log has the name."""
        self._log_id = None if incarnation is None else incarnation_id(incarnation)

    def __repr__(self) -> str:
        return f'Log("{self.name}"{f", {self.incarnation}" if self.incarnation else ""})'

    def open_writer(
        self,
        *,
        takeover: bool = False,
        wait_s: float | None = None,
        lock: bool = True,
        producer: str | Literal[True] | None = None,
    ) -> Opening[LogWriter]:
        """Open the log's writer, which is the only one at a time.

        Use the result with ``async with``, or ``await`` it and close it later. If the previous writer failed,
        its segments are recovered first. A missing log is created, unless the option ``create_if_missing`` is
        off or the handle has an incarnation.

        Args:
            takeover: Fence another writer immediately, instead of waiting for its lock. Its later writes fail
                with `WriterFenced` (G4).
            wait_s: Maximum time in seconds to wait for the lock of another writer. Afterwards
                `OwnershipAcquireFailed` is raised, which names that writer. None means the lease and 2 s, and
                0 means no wait.
            lock: If False, neither take a lock nor respect one. The previous writer is fenced as by
                ``takeover``, and this writer is fenced by the next client that opens, links or seals the log.
                The last one wins. If this writer is idle for 15 s while a bookie of its segment is away,
                repair may close the segment as one of a failed writer.
            producer: The name of a producer that writes all records, or True for a random name. The log
                counts its records. After any failure, ``writer.producer.next_sequence`` of the next opening
                is the number of records that are stored, and `LogWriter.write_frame` stores none twice (G9).

        `UnsupportedFormat` is also raised if the package of the log's codec is not installed.

        Raises: OwnershipAcquireFailed, LogNotFound, LogRecreated, EndOfStream, RecoveryIncomplete,
        NotEnoughBookies, InvalidRequest, UnsupportedFormat, QuorumUnreachable, OutcomeUnknown, AlreadyClosed,
        TooBusy.
        """
        if producer is True:
            producer = f"{self._context.random.getrandbits(128):032x}"
        if producer is not None:
            check_producer_name(producer)
        check_wait(wait_s)
        if not lock and wait_s is not None:
            raise InvalidRequest("wait_s= has no effect with lock=False")
        return Opening(lambda: self._open_writer(takeover, wait_s, lock, producer))

    def open_reader(
        self,
        *,
        position: Position | None = None,
        dlsn: DLSN | None = None,
        txid: int | None = None,
        since: datetime | int | None = None,
        at: Literal["earliest", "latest"] = "earliest",
        to: DLSN | Literal["end"] | None = None,
        broken: Literal["raise", "skip"] = "raise",
        on_skipped: Callable[[Skipped], object] | None = None,
        idle_error_s: float | None = None,
    ) -> Opening[LogReader]:
        """Open a reader, by default at the earliest record.

        Use the result with ``async with``, or ``await`` it and close it later. Only one start may be given. A
        start before the truncation point raises `LogTruncated`, also `DLSN.INITIAL`.

        Args:
            position: Continue after all records that were read before. A `Position` proves that these records
                exist.
            dlsn: Start at this DLSN, or at the next record. A DLSN proves nothing, so the reader waits until
                the entry there is confirmed (G5).
            txid: Start at the first record with a txid of at least this value.
            since: Start at the first record with a log time of at least this time (a datetime with a time
                zone, or ms since 1970).
            at: If no other start is given: the "earliest" available record, or after the "latest".
            to: Stop after this DLSN. "end" means the last record that is readable at the time of the opening.
                To read up to a time, stop at the first record with a later `LogRecord.time_ms`.
            broken: "skip" skips entries of closed segments if every replica reports that its copy is corrupt
                or missing. Entries on unavailable bookies are not skipped. `LogReader.skipped` returns the
                skipped ranges.
            on_skipped: Called with each skipped range. In the trio API, it is called in the event loop, in
                the others by a separate thread.
            idle_error_s: A read that waits raises `ReaderIdle` if no entry has arrived for this time, and
                again after the same time. The reader stays usable.

        `LogRecreated` is raised only for a position or for a handle with an incarnation.

        Raises: LogTruncated, LogNotFound, LogDeleted, LogRecreated, LedgerStateUnknown, InvalidRequest,
        QuorumUnreachable, AlreadyClosed.
        """
        if broken not in ("raise", "skip"):
            raise InvalidRequest(f'broken must be "raise" or "skip", not {quoted(broken)}')
        if on_skipped is not None and broken != "skip":
            raise InvalidRequest('on_skipped= has no effect without broken="skip"')
        if idle_error_s is not None:
            check_seconds("idle_error_s", idle_error_s, above_0=True)
        start = check_read_start(position, dlsn, txid, since, at)
        if not (to is None or to == "end" or isinstance(to, DLSN)):
            raise InvalidRequest(f'to must be a DLSN or "end", not {quoted(to)}')
        return Opening(
            lambda: self._open_reader(
                start,
                to,
                skip=broken == "skip",
                on_skipped=on_skipped,
                idle_error_s=idle_error_s,
            )
        )

    def to_arrow(
        self,
        *,
        position: Position | None = None,
        dlsn: DLSN | None = None,
        txid: int | None = None,
        since: datetime | int | None = None,
        to: DLSN | Literal["end"] = "end",
        columns: Sequence[str] | None = None,
        batch_bytes_max: int = BATCH_BYTES,
    ) -> Opening[ArrowReader]:
        """Read the log as Arrow record batches, from a start up to its present end.

        Use the result with ``async with``, or ``await`` it and close it later. The blocking and asyncio APIs
        return a ``pyarrow.RecordBatchReader`` instead, which DuckDB, polars and pandas read. Memory is
        limited to ``read_ahead_bytes`` and a few batches. A large backlog is read from several bookies at
        once. Without the extra ``arrow``, the call raises `UnsupportedFormat`.

        Args:
            position: Start after all records before it, as for `open_reader`. By default, start at the
                earliest available record.
            dlsn: Instead: start at this DLSN, or at the next record.
            txid: Instead: start at the first record with a txid of at least this value.
            since: Instead: start at the first record with a log time of at least this time (a datetime with
                a time zone, or ms since 1970).
            to: Stop after this DLSN, but no later than after the last record that is readable at the time of
                the opening. "end" means that record.
            columns: Names among ``segment``, ``entry``, ``slot``, ``sequence_id``, ``txid``, ``payload``,
                ``timestamp``, ``log``, ``dlsn``, ``key`` and ``headers``, in the requested order. The default
                is the first seven. Only the requested columns are built.
            batch_bytes_max: The largest payload size of a batch, except that a batch has at least one entry.
                A batch of one entry has no copies of its payloads.

        Raises: LogTruncated, LogNotFound, LogDeleted, LogRecreated, LedgerStateUnknown, InvalidRequest,
        UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        start = check_read_start(position, dlsn, txid, since, "earliest")
        if not (to == "end" or isinstance(to, DLSN)):
            raise InvalidRequest(f'to must be a DLSN or "end", not {quoted(to)}')
        check_whole("batch_bytes_max", batch_bytes_max, 1)
        projection = choose_columns(columns)
        return Opening(lambda: self._open_arrow(start, to, projection, batch_bytes_max))

    def open_byte_writer(
        self, *, takeover: bool = False, wait_s: float | None = None
    ) -> Opening[ByteWriter]:
        """Open a writer that appends bytes to a byte stream.

        The log must have ``txids="bytes"``. Use the result with ``async with``, or ``await`` it and close it
        later. The writer continues at the end of the log, so bytes whose write failed leave no gap.

        Args:
            takeover: As for `open_writer`.
            wait_s: As for `open_writer`.

        Raises: OwnershipAcquireFailed, LogNotFound, LogRecreated, EndOfStream, RecoveryIncomplete,
        NotEnoughBookies, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        opening = self.open_writer(takeover=takeover, wait_s=wait_s)
        return Opening(lambda: self._open_byte_writer(opening))

    def open_byte_reader(self, *, offset: int = 0, follow: bool = False) -> Opening[ByteReader]:
        """Open a reader for the bytes of a byte stream.

        The log must have ``txids="bytes"``. Use the result with ``async with``, or ``await`` it and close it
        later.

        Args:
            offset: The first offset to read.
            follow: At the end of the log, wait for more bytes instead of returning ``b""``.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        check_offset(offset)
        return Opening(lambda: self._open_byte_reader(offset, follow))

    async def last_dlsn(self) -> DLSN:
        """Return the position of the last readable record.

        Raises: LogEmpty, LogNotFound, LogRecreated, LedgerStateUnknown, QuorumUnreachable, AlreadyClosed.
        """
        state_watch = await self._open_state_watch()
        last = await last_readable(self._context.metadata, state_watch, self._context.ledgers)
        if last is None:
            raise self._log_empty_error()
        return last

    async def first_record(self) -> LogRecord:
        """Return the first available record.

        Raises: LogEmpty, LogNotFound, LogRecreated, LedgerStateUnknown, CorruptData, QuorumUnreachable,
        AlreadyClosed.
        """
        context = self._context
        state = (await self._open_state_watch()).state
        record = await record_with_id(
            context.metadata, state, context.ledgers, state.truncated_sequence_id
        )
        if record is None:
            raise self._log_empty_error()
        return record

    async def last_record(self) -> LogRecord:
        """Return the last readable record.

        Raises: LogEmpty, LogNotFound, LogRecreated, LedgerStateUnknown, CorruptData, QuorumUnreachable,
        AlreadyClosed.
        """
        context = self._context
        state_watch = await self._open_state_watch()
        last = await last_readable(context.metadata, state_watch, context.ledgers)
        if last is None:
            raise self._log_empty_error()
        record = await state_watch.segment(last.segment)
        return await record_at(context.ledgers, self.name, record, last)

    async def count(self, from_: DLSN | None = None, to: DLSN | None = None) -> int:
        """Return the number of readable records between two positions.

        The call reads at most two entries and the metadata of two segments, whatever the number of records.
        A position before the truncation point raises `LogTruncated`.

        Args:
            from_: The first position. None means the first available record.
            to: The first position that does not count. None means the end.

        Raises: LogNotFound, LogRecreated, LogTruncated, LedgerStateUnknown, InvalidRequest,
        QuorumUnreachable, AlreadyClosed.
        """
        for given in (from_, to):
            if given is not None:
                check_dlsn(given)
        context = self._context
        state_watch = await self._open_state_watch()
        end = await count_before(context.metadata, state_watch, context.ledgers, to)
        if from_ is None:
            return max(0, end - state_watch.state.truncated_sequence_id)
        return max(
            0, end - await count_before(context.metadata, state_watch, context.ledgers, from_)
        )

    async def describe(self, *, segments_max: int = DESCRIBED_SEGMENTS_MAX) -> LogDescription:
        """Describe the log: state, ends, counts, owner and segments.

        Args:
            segments_max: Maximum number of segments. The newest ones are returned.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, QuorumUnreachable, InvalidRequest,
        AlreadyClosed.
        """
        check_whole("segments_max", segments_max, 1)
        state_watch = await self._open_state_watch()
        metadata, state = self._context.metadata, state_watch.state
        newest = max(state.first_segment, state.last_segment + 1 - segments_max)
        segments = await segments_page(metadata, state, newest, segments_max)
        last = await last_readable(metadata, state_watch, self._context.ledgers)
        first = None
        if last is not None:
            first = await first_readable(metadata, state)
        oldest = await segments_page(metadata, state, state.first_segment, 1)
        first_kept_sequence_id = oldest[0].start_sequence_id if oldest else state.next_sequence_id
        return LogDescription(
            self.name,
            state,
            tuple(segments),
            await lock_owner(metadata, state.log_id) or "",
            first,
            last,
            state.next_sequence_id - max(0, first_kept_sequence_id),
            _retained_bytes(state, oldest, segments),
        )

    async def segments(self, *, first: int = 1, limit: int = 1000) -> list[SegmentRecord]:
        """Return segments of the log, ascending.

        The list is empty after the last segment. Truncated segments that are not deleted yet are included.

        Args:
            first: The lowest segment number.
            limit: Maximum number of segments.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        _check_page(first, limit)
        state = (await self._open_state_watch()).state
        return await segments_page(self._context.metadata, state, first, limit)

    async def truncate(
        self,
        dlsn: DLSN | None = None,
        *,
        txid: int | None = None,
        before: datetime | int | None = None,
    ) -> DLSN:
        """Delete all records before a position or time.

        The point never decreases. A position after the end is replaced by the end. No record at or after it
        is affected (G6), and the log may have a writer. Open readers before the point receive `LogTruncated`.
        The space is freed later, by whole segments. If too few bookies answer, the call raises
        `LedgerStateUnknown`.

        Args:
            dlsn: The first record to keep.
            txid: Instead: keep the first record with a txid of at least this value, and all after it.
            before: Instead: delete records with a log time below this time (a datetime with a time zone, or
                ms since 1970).

        Returns:
            The truncation point after the call.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, InvalidRequest, QuorumUnreachable,
        OutcomeUnknown, AlreadyClosed.
        """
        if (dlsn is not None) + (txid is not None) + (before is not None) != 1:
            raise InvalidRequest("truncate to a dlsn, a txid or a time; give exactly one of them")
        if dlsn is not None:
            check_dlsn(dlsn)
        if txid is not None:
            check_txid(txid)
        before_ms = None if before is None else to_epoch_ms(before, "before")
        context = self._context
        state_watch = await self._open_state_watch()
        if dlsn is None:
            dlsn = await self._search(state_watch, txid, before_ms)
        return await truncate(context.metadata, context.ledgers, state_watch, dlsn)

    async def settings(self) -> StoredSettings:
        """Return the stored settings of the log, and the metadata of its user.

        Raises: LogNotFound, LogRecreated, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        return await read_settings(self._context.metadata, conf_key(await self._resolve_log_id()))

    async def set(
        self,
        settings: Mapping[str, Any],
        *,
        metadata: Mapping[str, bytes | None] | None = None,
    ) -> StoredSettings:
        """Store settings of the log, and metadata of its user.

        Settings apply to every client that opens the log. Limits and retention apply immediately, on bookies
        within a minute. Segment sizes and quorums apply from the next segment on. The entry size and the
        check of txids apply when the log is opened next.

        Args:
            settings: Values by option. None unsets an option.
            metadata: Metadata of the user. None removes a name.

        Returns:
            All stored settings and metadata.

        Raises: LogNotFound, LogRecreated, InvalidRequest, CorruptData, UnsupportedFormat, QuorumUnreachable,
        AlreadyClosed.
        """
        return await update_log_settings(
            self._context.metadata, await self._resolve_log_id(), settings, metadata or {}
        )

    async def seal(self, *, takeover: bool = False, wait_s: float | None = None) -> bool:
        """Seal the log, so that it accepts no more records.

        This is final. Readers receive an end after the last record. The log's own writer uses
        `LogWriter.mark_end_of_stream` instead.

        Args:
            takeover: As for `open_writer`.
            wait_s: As for `open_writer`.

        Returns:
            False if the log was already sealed.

        Raises: OwnershipAcquireFailed, LogNotFound, LogRecreated, RecoveryIncomplete, QuorumUnreachable,
        OutcomeUnknown, InvalidRequest, AlreadyClosed.
        """
        check_wait(wait_s)
        return await seal(
            self._context, await self._resolve_log_id(), takeover=takeover, wait_s=wait_s
        )

    async def find(
        self,
        *,
        txid: int | None = None,
        since: datetime | int | None = None,
        wall_ms: int | None = None,
    ) -> DLSN:
        """Return the position of the first record from a txid or time on.

        If there is none, return the position of the next record to be written. The search reads a few segment
        records and entries, regardless of the log's size. Later records may have lower txids. A search by
        txid raises `InvalidRequest` for a log in which an older program let txids decrease.

        Args:
            txid: The lowest txid.
            since: Instead: the earliest log time (a datetime with a time zone, or ms since 1970).
            wall_ms: An older name of ``since``.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, InvalidRequest, QuorumUnreachable,
        AlreadyClosed.
        """
        if (txid is not None) + (since is not None) + (wall_ms is not None) != 1:
            raise InvalidRequest("find a txid or a time; give exactly one of them")
        if txid is not None:
            check_txid(txid)
        since = wall_ms if since is None else since
        since_ms = None if since is None else to_epoch_ms(since, "since")
        return await self._search(await self._open_state_watch(), txid, since_ms)

    async def merge_segments(self) -> int:
        """Merge adjacent small closed segments into common ledgers.

        Nothing changes for readers: positions, sequence IDs, txids and bytes stay the same. Entries are
        copied at 32 MiB/s at most. They are read back from each bookie and compared before the old ledgers
        are deleted. An entry that cannot be read or stored raises an error, and its segments stay unchanged.

        Segments above 64 MiB, segments that already share a ledger, and segments that were linked without
        ``app`` are not merged. The log may have a writer, and concurrent calls are safe. With the stored
        setting ``merging``, the cluster merges segments automatically.

        Returns:
            The number of merged segments.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, NotEnoughBookies, WriteFailed, CorruptData,
        QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        return await merge_segments(self._context, await self._resolve_log_id())

    @property
    def positions(self) -> Positions:
        """The named positions of this log."""
        return Positions(self._context.metadata, self._resolve_log_id, self._context.clock_ms)

    def subscribe(
        self,
        name: str,
        *,
        at: Literal["earliest", "latest"] = "earliest",
        hold: bool = False,
        takeover: bool = False,
        wait_s: float | None = None,
    ) -> Opening[Subscription]:
        """Read from a named position on, as its only subscriber.

        Use the result with ``async with``, or ``await`` it and close it later. The program commits the
        records that it has processed (`Subscription.commit`). Nothing is committed automatically, so each
        record is delivered at least once.

        Args:
            name: The name of the position.
            at: The start if the position does not exist: the "earliest" available record, or after the
                "latest".
            hold: Prevent retention from deleting records at and after the position by age or size, as by
                `Positions.advance`. Each commit renews the hold.
            takeover: Replace another subscriber immediately, instead of waiting for its lock. Its next commit
                raises `SubscriptionLost`.
            wait_s: Maximum time in seconds to wait for the lock of another subscriber. Afterwards
                `OwnershipAcquireFailed` is raised, which names that subscriber. None means the lease and 2 s,
                and 0 means no wait.

        Raises: OwnershipAcquireFailed, LogTruncated, LogNotFound, LogRecreated, LedgerStateUnknown,
        InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        if at not in ("earliest", "latest"):
            raise InvalidRequest(f'at must be "earliest" or "latest", not {quoted(at)}')
        check_wait(wait_s)
        return Opening(lambda: self._subscribe(name, at, hold, takeover, wait_s))

    def work_queue(
        self,
        name: str,
        *,
        at: Literal["earliest", "latest"] = "earliest",
        hold: bool = False,
        tries_max: int = TRIES_MAX,
        claim_s: float = CLAIM_S,
    ) -> Opening[WorkQueue]:
        """Process the log together with other workers.

        Use the result with ``async with``, or ``await`` it and close it later. The workers may be in this
        process and in others. Each range of records is claimed by one worker. If its block fails, or it
        returns the range, takes longer than ``claim_s``, or dies and its lease expires (``lock_lease_s``),
        another worker gets it. Each record is processed at least once, in no particular order.

        Args:
            name: The name of the queue.
            at: The start of a new queue: the "earliest" available record, or after the "latest".
            hold: Prevent retention from deleting records from the queue's floor on by age or size. The start
                and the end of each claim renew the hold.
            tries_max: After this number of attempts, a range is dead-lettered (see `WorkQueue.retry` and
                `WorkQueue.drop`). A queue has at most 64 such ranges.
            claim_s: Maximum time in seconds for one range.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, InvalidRequest, QuorumUnreachable,
        OutcomeUnknown, AlreadyClosed.
        """
        if at not in ("earliest", "latest"):
            raise InvalidRequest(f'at must be "earliest" or "latest", not {quoted(at)}')
        check_whole("tries_max", tries_max, 1)
        check_seconds("claim_s", claim_s, above_0=True)
        return Opening(lambda: self._work_queue(name, at, hold, tries_max, claim_s))

    async def work_queues(self) -> dict[str, WorkState]:
        """Return the progress of each work queue of the log, by name.

        Raises: LogNotFound, LogRecreated, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        return await list_work_queues(self._context.metadata, await self._resolve_log_id())

    async def delete_work_queue(self, name: str) -> bool:
        """Delete a work queue, and return whether it existed.

        Its claims are deleted too, and its workers receive `LogNotFound`.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        return await delete_work_queue(self._context.metadata, await self._resolve_log_id(), name)

    def watch_segments(self, *, first: int | None = None) -> Opening[SegmentWatch]:
        """Watch for opened, closed and truncated segments.

        Use the result with ``async with``, or ``await`` it and close it later.

        Args:
            first: Also report existing segments from this number on as if they were new. A program that
                stores the number of the last processed segment then misses none. None reports only changes
                from now on.

        Raises: LogNotFound, LogRecreated, QuorumUnreachable, InvalidRequest, AlreadyClosed.
        """
        if first is not None:
            check_whole("first", first, 1, NUMBER_MAX)
        return Opening(lambda: self._watch_segments(first))

    async def snapshot(self, *, first: int = 1, limit: int | None = None) -> LogSnapshot:
        """Return the segments and ends of the log, for planning.

        The snapshot contains only the readable part. Any process can read the ranges of a snapshot with
        `open_ranges`. If too few bookies answer, the call raises `LedgerStateUnknown`.

        Args:
            first: The number of the first segment.
            limit: Maximum number of segments. `LogSnapshot.next_segment` is ``first`` for the next page. Each
                page has both ends of the whole log, at the time of its request.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, QuorumUnreachable, InvalidRequest,
        AlreadyClosed.
        """
        _check_page(first, limit)
        context = self._context
        state_watch = await self._open_state_watch()
        return await take_snapshot(
            context.metadata, context.ledgers, state_watch, first=first, limit=limit
        )

    def open_ranges(self, ranges: Sequence[SegmentRange]) -> Opening[RangeReader]:
        """Read ranges of entries of a `snapshot`, in order.

        Use the result with ``async with``, or ``await`` it and close it later. Any process can read them. The
        reader searches for nothing, and reads nothing outside the ranges.

        Raises: LogNotFound, LogDeleted, LogRecreated, LogTruncated, QuorumUnreachable, AlreadyClosed.
        """
        return Opening(lambda: self._open_ranges(ranges))

    def open_segment_writer(
        self,
        *,
        app: str = "",
        version: int = 0,
        custom: Mapping[str, bytes] | None = None,
        entry_bytes: int = ENTRY_BYTES,
        digest: bool = False,
    ) -> Opening[SegmentWriter]:
        """Open a writer for a segment outside the log.

        `link_segments` attaches the segment to the log. Use the result with ``async with``, or ``await`` it
        and close it later. Any number of processes can write such segments concurrently, even while the log
        has a writer.

        Args:
            app: The application that will link the segment, for `collect_unlinked`.
            version: The version under which it will be linked.
            custom: Custom metadata of the ledger, at most 4 KiB.
            entry_bytes: The size of an entry in bytes, at most 1,040,384.
            digest: Add a digest of the records to the token, which takes 0.25 µs per record. If all segments
                of a link have one, other records under the same version are refused (`LinkMismatch`).

        Raises: LogNotFound, LogRecreated, EndOfStream, NotEnoughBookies, InvalidRequest, QuorumUnreachable,
        UnsupportedFormat, OutcomeUnknown, AlreadyClosed.
        """
        check_whole("version", version, 0, NUMBER_MAX)
        check_whole("entry_bytes", entry_bytes, 1, PACKED_BYTES_MAX)
        return Opening(lambda: self._open_segment_writer(app, version, custom, entry_bytes, digest))

    async def link_segments(
        self,
        segments: Sequence[SegmentToken],
        *,
        app: str = "",
        version: int = 0,
        identity: str = "",
        takeover: bool = False,
        wait_s: float = LINK_WAIT_S,
        truncate_before: bool = False,
        content: LinkContent | None = None,
    ) -> LinkResult:
        """Attach staged ledgers as the log's next segments (G8).

        They are attached in this order, in one transaction. Each link takes effect exactly once. A repeated
        call returns a result with ``already``. With ``app`` and ``version``, a call is a repetition if this
        version was linked, whatever its ledgers. Without them, it is one if the same ledgers were linked.

        After `OutcomeUnknown` or `QuorumUnreachable`, repeat the call with the same arguments until the
        outcome is known. Nothing was linked after `OwnershipAcquireFailed`, `TransactionIdOutOfOrder`,
        `EndOfStream`, `LogNotFound`, `LogRecreated`, `InvalidRequest`, `TransactionTooLarge`, and these:

        - `LinkOutOfOrder`: a later version was linked, or another identity counts the versions.
        - `NoSuchLedger`: a ledger was deleted, for example by `collect_unlinked`.

        Records without txids get theirs now. Empty segments are left out, and `discard_segments` deletes
        them.

        Args:
            segments: The tokens of the segment writers.
            app: The name of the application.
            version: The version of the application's output. Versions must ascend.
            identity: The run of the application that counts the versions, such as the ID of a query.
            takeover: Fence a writer of the log, instead of waiting for its lock.
            wait_s: Maximum time in seconds to wait for the lock of a writer. Afterwards
                `OwnershipAcquireFailed` is raised.
            truncate_before: Truncate all earlier records, in the same transaction.
            content: A digest of the records. If the same version was linked with other records, the call
                raises `LinkMismatch`. It can be omitted if all segments were written with ``digest``.

        Raises: OwnershipAcquireFailed, LinkOutOfOrder, LinkMismatch, TransactionIdOutOfOrder, EndOfStream,
        LogNotFound, LogRecreated, NoSuchLedger, InvalidRequest, TransactionTooLarge, RecoveryIncomplete,
        QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        check_whole("version", version, 0, NUMBER_MAX)
        check_seconds("wait_s", wait_s)
        linking = SegmentLinking(
            self._context,
            await self._resolve_log_id(),
            self.name,
            app=app,
            version=version,
            identity=identity,
            truncate_before=truncate_before,
            content=content,
        )
        return await linking.run(segments, takeover=takeover, wait_s=wait_s)

    async def linked_version(self, app: str) -> AppVersion | None:
        """Return the last version that an application has linked.

        The result is None if the log has no record of it. A log keeps this record for at least 30 days.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        return await last_app_version(self._context.metadata, await self._resolve_log_id(), app)

    async def discard_segments(self, segments: Sequence[SegmentToken]) -> list[SegmentToken]:
        """Delete segments that are not linked.

        The call is safe at any time, even after a link with an unknown outcome.

        Args:
            segments: The tokens of segments that `open_segment_writer` wrote.

        Returns:
            The tokens of the segments that are linked.

        Raises: LogNotFound, LogRecreated, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        log_id = await self._resolve_log_id()
        context = self._context
        linked: list[SegmentToken] = []
        for token in segments:
            if not await delete_staged(context.metadata, context.ledgers, log_id, token.ledger_id):
                linked.append(token)
        return linked

    async def collect_unlinked(self, *, older_than_s: float = STAGED_MAX_AGE_S) -> int:
        """Delete staged segments that will never be linked.

        These are segments whose version or a later one was linked, and segments above an age. Linking them
        afterwards raises `NoSuchLedger`. Linked segments are never deleted.

        Args:
            older_than_s: The age in seconds, by the clocks of their writers and of this process.

        Returns:
            The number of deleted segments.

        Raises: LogNotFound, LogRecreated, QuorumUnreachable, OutcomeUnknown, InvalidRequest, AlreadyClosed.
        """
        check_seconds("older_than_s", older_than_s)
        context = self._context
        deleted_ids = await collect_staged(
            context.metadata,
            context.ledgers,
            await self._resolve_log_id(),
            older_than_ms=int(older_than_s * 1000),
            now_ms=context.clock_ms(),
        )
        return len(deleted_ids)

    async def _open_writer(
        self,
        takeover: bool,
        wait_s: float | None,
        locked: bool,
        producer: str | None,
        dead_writer_id: str = "",
    ) -> LogWriter:
        log_id = await self._resolve_or_create()
        context = await self._context_with_stored_options(log_id)
        Compression(self.name, context.options.codec)  # raises before another writer is fenced
        log_lock = await acquire_log_lock(
            context,
            log_id,
            takeover=takeover,
            wait_s=wait_s,
            with_lock=locked,
            dead_writer_id=dead_writer_id,
        )
        try:
            first_segment, table = await recover_and_open(context, log_lock.writer_state)
            sink = _segment_sink_factory(context, log_lock.writer_state, first_segment)
            writer = LogWriter(context, log_lock, sink, table)
        except BaseException:
            await log_lock.release()
            raise
        try:
            self._context.start(writer.run)
            if producer is not None:
                await writer.sequenced_writer.open_default_producer(producer)
        except BaseException:
            await writer.abort()  # also aborts its new ledger
            raise
        return writer

    async def _context_with_stored_options(self, log_id: int) -> LogContext:
        """Return the context with the options that apply to this log. Raises `InvalidRequest`."""
        context = self._context
        followed_log = await context.settings.follow_log(
            log_id, context.options, self._explicit_options
        )
        return replace(context, options=followed_log.options, followed_log=followed_log)

    async def _open_reader(
        self,
        start: ReadStart,
        to: DLSN | Literal["end"] | None,
        *,
        skip: bool,
        on_skipped: Callable[[Skipped], object] | None,
        idle_error_s: float | None,
    ) -> LogReader:
        try:
            state_watch = await self._open_state_watch()
        except LogNotFound as error:
            if not isinstance(start, Position):
                raise
            context, held_position = self._context, HeldPosition.of(start)
            raise await explain_deleted(
                context.metadata, context.namespace, self.name, held_position
            ) from error
        fetcher = await open_fetcher(
            self._context, state_watch, start, to, skip=skip, on_skipped=on_skipped
        )
        self._context.start(fetcher.run)
        return LogReader(fetcher.queue, idle_error_s)

    async def _open_arrow(
        self,
        start: ReadStart,
        to: DLSN | Literal["end"],
        projection: Projection,
        batch_bytes_max: int,
    ) -> ArrowReader:
        if isinstance(to, DLSN):
            try:
                to = min(to, await self.last_dlsn())  # a reader would wait for a later record
            except LogEmpty:
                to = "end"
        reader = await self._open_reader(start, to, skip=False, on_skipped=None, idle_error_s=None)
        return ArrowReader(
            reader,
            projection,
            batch_bytes_max=batch_bytes_max,
            wait_max_s=2 * self.options.read_retry_s,
        )

    async def _subscribe(
        self,
        name: str,
        at: Literal["earliest", "latest"],
        hold: bool,
        takeover: bool,
        wait_s: float | None,
    ) -> Subscription:
        log_id = await self._resolve_log_id()
        return await subscribe(
            self._context,
            log_id,
            self.name,
            name,
            at=at,
            hold=hold,
            takeover=takeover,
            wait_s=wait_s,
        )

    async def _work_queue(
        self,
        name: str,
        at: Literal["earliest", "latest"],
        hold: bool,
        tries_max: int,
        claim_s: float,
    ) -> WorkQueue:
        state_watch = await self._open_state_watch()
        return await open_work_queue(
            self._context, state_watch, name, at=at, hold=hold, tries_max=tries_max, claim_s=claim_s
        )

    async def _open_byte_writer(self, opening: Opening[LogWriter]) -> ByteWriter:
        check_stream(
            (await self._open_state_watch()).state
        )  # before a missing log is created with another policy
        writer = await opening
        return ByteWriter(writer)

    async def _open_byte_reader(self, offset: int, follows: bool) -> ByteReader:
        context, log_id = self._context, await self._resolve_log_id()

        async def watch_log() -> StateWatch:
            """Watch this incarnation of the log, whatever its present name is."""
            try:
                return await open_state_watch(
                    context.metadata, log_id, self.name, context.namespace
                )
            except LogDeleted as error:
                held_position = HeldPosition(DLSN.INITIAL, incarnation_text(log_id), None)
                raise await explain_deleted(
                    context.metadata, context.namespace, self.name, held_position
                ) from error

        async def open_at(txid: int, to_end: bool) -> LogReader:
            to: Literal["end"] | None = "end" if to_end else None
            fetcher = await open_fetcher(context, await watch_log(), TxidStart(txid), to)
            context.start(fetcher.run)
            return LogReader(fetcher.queue)

        async def end() -> int:
            state_watch = await watch_log()
            last = await last_readable(context.metadata, state_watch, context.ledgers)
            if last is None:
                return max(0, state_watch.state.last_txid)
            record = await state_watch.segment(last.segment)
            return (await record_at(context.ledgers, self.name, record, last)).txid

        check_stream((await watch_log()).state)
        return ByteReader(self.name, offset, follow=follows, open_reader_at=open_at, end_offset=end)

    async def _watch_segments(self, first: int | None) -> SegmentWatch:
        watch = SegmentWatch(await self._open_state_watch(), first)
        self._context.start(watch.run)
        return watch

    async def _search(
        self, state_watch: StateWatch, txid: int | None, since_ms: int | None
    ) -> DLSN:
        metadata, ledgers = self._context.metadata, self._context.ledgers
        if txid is not None:
            return await find_txid(metadata, state_watch, ledgers, txid)
        assert since_ms is not None, "either txid or since_ms is given"
        return await find_time(metadata, state_watch, ledgers, since_ms)

    async def _open_ranges(self, ranges: Sequence[SegmentRange]) -> RangeReader:
        try:
            log_id = await self._resolve_log_id()
        except LogNotFound as error:
            if not ranges:
                raise
            context, held_position = self._context, ranges[0].held_position
            raise await explain_deleted(
                context.metadata, context.namespace, self.name, held_position
            ) from error
        return await open_ranges(self._context, self.name, log_id, ranges)

    async def _open_segment_writer(
        self,
        app: str,
        version: int,
        custom: Mapping[str, bytes] | None,
        entry_bytes: int,
        digest: bool,
    ) -> SegmentWriter:
        state_watch = await self._open_state_watch()
        context, state = self._context, state_watch.state
        return await open_external_segment(
            context,
            state,
            app=app,
            version=version,
            custom=custom or {},
            entry_bytes=entry_bytes,
            codec=await context.settings.codec(
                state.log_id, context.options, self._explicit_options
            ),
            digest=digest,
        )

    def _log_empty_error(self) -> LogEmpty:
        return LogEmpty(f'log "{self.name}" has no record')

    async def _resolve_log_id(self) -> int:
        """Return the log's ID. Raises `LogNotFound` or `LogRecreated`."""
        try:
            log_id = await self._resolve_name(self.name)
        except LogNotFound as error:
            if self._log_id is None:
                raise
            raise await self._lookup_error(str(error)) from None
        if self._log_id is not None and log_id != self._log_id:
            raise await self._lookup_error("")
        return log_id

    async def _lookup_error(self, default_message: str) -> DistributedLogError:
        assert self._log_id is not None, "the handle has an incarnation"
        context = self._context
        lookup = await look_up(context.metadata, context.namespace, self.name, self._log_id)
        held_position = HeldPosition(DLSN.INITIAL, incarnation_text(self._log_id), None)
        resolution = replace(
            resolve_position(held_position, lookup), lost=None
        )  # there is no held position
        if resolution.successor:
            cause = (
                f'is called "{resolution.current_name}" now, and another log has its name'
                if resolution.current_name
                else "was deleted and created again"
            )
            return resolution.error_with_message(
                f'log "{self.name}" {cause}: incarnation {self.incarnation} was requested, the present '
                f"one is {resolution.successor}"
            )
        if resolution.current_name:
            return resolution.error_with_message(
                f'log "{self.name}" ({self.incarnation}) is called "{resolution.current_name}" now'
            )
        return resolution.error_with_message(
            default_message or f'log "{self.name}" ({self.incarnation}) was deleted'
        )

    async def _resolve_or_create(self) -> int:
        try:
            return await self._resolve_log_id()
        except LogNotFound:
            if not self.options.create_if_missing or self._log_id is not None:
                raise
        return await self._create(self.name)

    async def _open_state_watch(self) -> StateWatch:
        context = self._context
        return await open_state_watch(
            context.metadata, await self._resolve_log_id(), self.name, context.namespace
        )


async def open_writer_after_dead_holder(log: Log, writer_id: str, wait_s: float) -> LogWriter:
    """Open a writer, without waiting for the lock of a writer that is known to have failed.

    Args:
        log: The log.
        writer_id: The writer ID of the failed writer's lock. If another writer has taken the log since, its
            lock is respected.
        wait_s: Maximum time in seconds to wait for such a lock.
    """
    return await log._open_writer(False, wait_s, True, None, writer_id)


def _retained_bytes(
    state: LogState, oldest: list[SegmentRecord], newest: list[SegmentRecord]
) -> int:
    if state.bytes_total >= 0 and (not oldest or oldest[0].bytes_before >= 0):
        return state.bytes_total - (oldest[0].bytes_before if oldest else state.bytes_total)
    return sum(segment.size_bytes for segment in newest)


def _check_page(first: int, limit: int | None) -> None:
    check_whole("first", first, 1, NUMBER_MAX)
    if limit is not None:
        check_whole("limit", limit, 1)


def _segment_sink_factory(
    context: LogContext,
    writer_state: WriterLogState,
    first_segment: tuple[SegmentRecord, NewSegmentLedger],
) -> MakeSink:
    """Return the factory of the sink that writes entries to segments, starting with this one."""
    return lambda send_queue: SegmentRoller(
        context,
        writer_state,
        first_segment,
        on_confirmed=send_queue.handle_confirmed,
        on_replaced=send_queue.return_to_queue,
        on_sendable=send_queue.wake,
        on_idle=send_queue.keep_alive,
        on_failed=send_queue.fail,
    )
