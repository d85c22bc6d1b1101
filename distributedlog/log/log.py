"""`Log`: a name in a namespace, and what can be done with the log of that name."""

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
"""Segments that nobody has linked for this long are given up."""
DESCRIBED_SEGMENTS_MAX = 1000
"""By `Log.describe`: what a terminal has use for; some 150 KB."""
LINK_WAIT_S = 5.0
"""How long a link waits for another one's lock: links beside it take milliseconds, a writer stays."""


@dataclass(frozen=True, slots=True)
class LogDescription:
    """A log as its metadata describes it; of a segment in progress only what is readable counts."""

    name: str
    state: LogState
    segments: tuple[SegmentRecord, ...]
    """The newest ones, ascending: `Log.segments` has all."""
    owner: str
    """Whose lock lives, "" for nobody's."""
    first_dlsn: DLSN | None
    last_dlsn: DLSN | None
    records: int
    """User records of the closed segments, truncated ones included while they are there."""
    size_bytes: int
    """Entry bytes of the closed segments, without replication; of a log whose state does not count them, of
    those among `segments`."""

    @property
    def txid_policy(self) -> str:
        """The txid policy: ``auto``, ``strict``, ``count``, ``ms`` or ``bytes`` (`Namespace.create_log`)."""
        return policy_name(self.state.policy)


class Log:
    """Names a log; asks nothing until it is used. Made by `Namespace.open_log`."""

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
        """The options that `open_log` was given."""
        self.incarnation = incarnation
        """Which log of this name is meant; None: whichever there is."""
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
        """The log's one writer; ``async with`` or ``await`` what this returns.

        While another writer's lock lives, waits up to ``wait_s`` (default: the lease and 2 s; 0: not at
        all) and raises `OwnershipAcquireFailed`, which names it. ``takeover`` fences it at once: its
        later writes fail with `WriterFenced` (G4).

        ``lock=False`` takes no lock and asks nobody's: whoever wrote is fenced as by ``takeover``, and so is
        this one by whoever opens, links or seals the log next; the last one wins. Where it has been idle
        for 15 s while a bookie of its segment is away, repair may close that as a dead writer's.

        ``producer``: all records are written by a producer of this name (True: of a drawn one), which the log
        counts: after whatever failed, ``writer.producer.next_sequence`` of the next opening says how many of
        them are stored, and `LogWriter.write_frame` writes none twice (G9).

        Raises also `LogNotFound` (with ``create_if_missing`` off), `RecoveryIncomplete`, `NotEnoughBookies`,
        `EndOfStream`, `UnsupportedFormat` (the package of its codec is missing).

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
            raise InvalidRequest("wait_s is for a lock: without one nothing is waited for")
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
        """A reader; ``async with`` or ``await`` what this returns.

        From ``position`` on, after all that was had before; from ``dlsn`` on (or the next record there is),
        or from the first record with a txid of at least ``txid``, or with a log time of at least ``since`` (a
        datetime with a time zone, or ms since 1970), or from the earliest that is left, or after the latest;
        up to and with ``to`` (``"end"``: what is readable at opening). What is below the truncation point is
        `LogTruncated`, also the first position of all. A `Position` proves what is before it; a ``dlsn``
        proves nothing: what nobody has read yet is waited for, not believed (G5). Raises `LogNotFound`, and
        for a position `LogRecreated`.

        ``broken="skip"`` passes over entries of closed segments of which every replica says that its copy is
        damaged or missing, never what is merely away; ``on_skipped`` is told of each stretch, in the loop;
        `LogReader.skipped` has them. ``idle_error_s``: a read that waits raises `ReaderIdle` when no entry
        has come for so long, and again after as long; the reader goes on.

        Raises: LogTruncated, LogNotFound, LogDeleted, LogRecreated, LedgerStateUnknown, InvalidRequest,
        QuorumUnreachable, AlreadyClosed.
        """
        if broken not in ("raise", "skip"):
            raise InvalidRequest(
                f'the policy for broken entries is "raise" or "skip", not {quoted(broken)}'
            )
        if on_skipped is not None and broken != "skip":
            raise InvalidRequest('on_skipped is told of nothing without broken="skip"')
        if idle_error_s is not None:
            check_seconds("idle_error_s", idle_error_s, above_0=True)
        start = check_read_start(position, dlsn, txid, since, at)
        if not (to is None or to == "end" or isinstance(to, DLSN)):
            raise InvalidRequest(f'a reader ends at a DLSN or "end", not at {quoted(to)}')
        return Opening(
            lambda: self._open_reader(
                start,
                to,
                skip=broken == "skip",
                on_skipped=on_skipped,
                idle_error_s=idle_error_s,
            )
        )

    def open_byte_writer(
        self, *, takeover: bool = False, wait_s: float | None = None
    ) -> Opening[ByteWriter]:
        """Append to a log of ``txids="bytes"`` as to a file; ``async with`` or ``await`` what this returns.

        ``takeover`` and ``wait_s`` as for `open_writer`. It goes on where the log ends, so that bytes whose
        write failed before leave no gap.

        Raises: OwnershipAcquireFailed, LogNotFound, LogRecreated, EndOfStream, RecoveryIncomplete,
        NotEnoughBookies, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        opening = self.open_writer(takeover=takeover, wait_s=wait_s)
        return Opening(lambda: self._open_byte_writer(opening))

    def open_byte_reader(self, *, offset: int = 0, follow: bool = False) -> Opening[ByteReader]:
        """Read a log of ``txids="bytes"`` as a file, from ``offset`` on; ``async with`` or ``await`` it.

        ``open_state_watch``: a read at the end of what is readable waits for more, where it gives ``b""``
        otherwise.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        check_offset(offset)
        return Opening(lambda: self._open_byte_reader(offset, follow))

    async def last_dlsn(self) -> DLSN:
        """The position of the last readable record.

        Raises: LogEmpty, LogNotFound, LogRecreated, LedgerStateUnknown, QuorumUnreachable, AlreadyClosed.
        """
        follower = await self._open_state_watch()
        last = await last_readable(self._context.metadata, follower, self._context.ledgers)
        if last is None:
            raise self._log_empty_error()
        return last

    async def first_record(self) -> LogRecord:
        """The first record that is left.

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
        """The last record that can be read.

        Raises: LogEmpty, LogNotFound, LogRecreated, LedgerStateUnknown, CorruptData, QuorumUnreachable,
        AlreadyClosed.
        """
        context = self._context
        follower = await self._open_state_watch()
        last = await last_readable(context.metadata, follower, context.ledgers)
        if last is None:
            raise self._log_empty_error()
        record = await follower.segment(last.segment)
        return await record_at(context.ledgers, self.name, record, last)

    async def count(self, from_: DLSN | None = None, to: DLSN | None = None) -> int:
        """How many records can be read from ``from_`` (None: the first that is left) up to, and without,
        ``to`` (None: the end).

        Nothing that lies between is read: at most two segments' records and two entries. Raises
        `LogTruncated` where ``from_`` or ``to`` is not left any more, `LogNotFound`, `LedgerStateUnknown`.

        Raises: LogNotFound, LogRecreated, LogTruncated, LedgerStateUnknown, InvalidRequest,
        QuorumUnreachable, AlreadyClosed.
        """
        for given in (from_, to):
            if given is not None:
                check_dlsn(given)
        context = self._context
        follower = await self._open_state_watch()
        end = await count_before(context.metadata, follower, context.ledgers, to)
        if from_ is None:
            return max(0, end - follower.state.truncated_sequence_id)
        return max(0, end - await count_before(context.metadata, follower, context.ledgers, from_))

    async def describe(self, *, segments_max: int = DESCRIBED_SEGMENTS_MAX) -> LogDescription:
        """State, ends, counts, owner, and the newest segments.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, QuorumUnreachable, InvalidRequest,
        AlreadyClosed.
        """
        check_whole("segments_max", segments_max, 1)
        follower = await self._open_state_watch()
        metadata, state = self._context.metadata, follower.state
        newest = max(state.first_segment, state.last_segment + 1 - segments_max)
        segments = await segments_page(metadata, state, newest, segments_max)
        last = await last_readable(metadata, follower, self._context.ledgers)
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
        """The log's segments from number ``first`` on, ascending, at most ``limit``.

        [] after the last one. Those that are truncated and not removed yet are among them.

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
        """Give up all records before ``dlsn``, or before the first one with a txid of at least ``txid``, or
        those with a log time below ``before`` (a datetime with a time zone, or ms since 1970).

        Where the truncation point is then: it never goes back, and a point after the end is taken as the
        end. Nothing at or after it is touched (G6); also while the log is being written. Open readers
        below it get `LogTruncated`; the bytes go later, whole segments at a time. Raises `LogNotFound`,
        `LedgerStateUnknown` when too few bookies answer.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, InvalidRequest, QuorumUnreachable,
        OutcomeUnknown, AlreadyClosed.
        """
        if (dlsn is not None) + (txid is not None) + (before is not None) != 1:
            raise InvalidRequest("a log is truncated to a dlsn, a txid or a time: give one of them")
        if dlsn is not None:
            check_dlsn(dlsn)
        if txid is not None:
            check_txid(txid)
        before_ms = None if before is None else to_epoch_ms(before, "before")
        context = self._context
        follower = await self._open_state_watch()
        if dlsn is None:
            dlsn = await self._search(follower, txid, before_ms)
        return await truncate(context.metadata, context.ledgers, follower, dlsn)

    async def settings(self) -> StoredSettings:
        """What the log has set of its own options, and the user's notes.

        Raises: LogNotFound, LogRecreated, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        return await read_settings(self._context.metadata, conf_key(await self._resolve_log_id()))

    async def set(
        self,
        settings: Mapping[str, Any],
        *,
        metadata: Mapping[str, bytes | None] | None = None,
    ) -> StoredSettings:
        """Set options of the log, whoever opens it, and notes of its user; None takes one back.

        What is stored then. Limits and retention hold at once (within a minute at the bookies), sizes and
        quorums from the next segment, entries' size and the order check from the next opening.

        Raises: LogNotFound, LogRecreated, InvalidRequest, CorruptData, UnsupportedFormat, QuorumUnreachable,
        AlreadyClosed.
        """
        return await update_log_settings(
            self._context.metadata, await self._resolve_log_id(), settings, metadata or {}
        )

    async def seal(self, *, takeover: bool = False, wait_s: float | None = None) -> bool:
        """End the log where it is, for good: it takes no more records, readers reach an end.

        False: it was sealed already. While a writer's lock lives, as `open_writer`; the writer itself has
        `LogWriter.mark_end_of_stream`.

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
        """The position of the first record with a txid of at least ``txid``, or with a log time of at least
        ``since`` (a datetime with a time zone, or ms since 1970; ``wall_ms`` is an older name for it); after
        the end: the next one's.

        Costs some reads of single segments and entries, however long the log. Later records may have lower
        txids. A log where an older program let txids decrease refuses a txid.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, InvalidRequest, QuorumUnreachable,
        AlreadyClosed.
        """
        if (txid is not None) + (since is not None) + (wall_ms is not None) != 1:
            raise InvalidRequest("find a txid or a time: give one of them")
        if txid is not None:
            check_txid(txid)
        since = wall_ms if since is None else since
        since_ms = None if since is None else to_epoch_ms(since, "since")
        return await self._search(await self._open_state_watch(), txid, since_ms)

    async def compact(self) -> int:
        """Put small closed segments that lie side by side into common ledgers; how many were moved.

        Nothing that is read changes: every position, sequence id, txid and byte stays, and readers go on.
        Entries are copied, at most 32 MiB a second, read back from each bookie and compared, before anything
        is given up. Left where they are: segments above 64 MiB, those that share a ledger already, and those
        that were linked without ``app``. Beside a writer too; two at once do no harm. What it cannot read or
        store is raised, and stays as it was. The stored setting ``merging`` has the cluster do it by itself.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, NotEnoughBookies, WriteFailed, CorruptData,
        QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        return await merge_segments(self._context, await self._resolve_log_id())

    @property
    def positions(self) -> Positions:
        """Where subscribers of this log go on, by name."""
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
        """Read the log from the named position on, as its one holder; ``async with`` or ``await`` it.

        A name that has no position begins ``at`` the earliest record or after the latest. What was handled
        is committed (`Subscription.commit`), nothing by itself: each record is given at least once. While
        another holder's lock lives, waits up to ``wait_s`` (default: the lease and 2 s; 0: not at all) and
        raises `OwnershipAcquireFailed`, which names it; ``takeover`` does not wait, and the former holder's
        next commit is `SubscriptionLost`. With ``hold`` records at and after the position do not go by age or
        size, as by `Positions.advance`; each commit counts as a move.

        Raises: OwnershipAcquireFailed, LogTruncated, LogNotFound, LogRecreated, LedgerStateUnknown,
        InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        if at not in ("earliest", "latest"):
            raise InvalidRequest(
                f'a subscriber begins at "earliest" or "latest", not at {quoted(at)}'
            )
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
        """Handle the log together with other workers, here and elsewhere; ``async with`` or ``await`` it.

        Each stretch of records goes to one of them and, until it is done, to another one if that one is gone,
        gave it back, or took longer than ``claim_s``: each record is handled at least once, in no order. A
        stretch that was tried ``tries_max`` times is parked (`WorkQueue.retry`, `WorkQueue.drop`), 64 at
        most. A queue that is new begins ``at`` the earliest record or after the latest. With ``hold`` records
        from its floor on do not go by age or size; each claim and each end of one counts as a move.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, InvalidRequest, QuorumUnreachable,
        OutcomeUnknown, AlreadyClosed.
        """
        if at not in ("earliest", "latest"):
            raise InvalidRequest(
                f'a work queue begins at "earliest" or "latest", not at {quoted(at)}'
            )
        check_whole("tries_max", tries_max, 1)
        check_seconds("claim_s", claim_s, above_0=True)
        return Opening(lambda: self._work_queue(name, at, hold, tries_max, claim_s))

    async def work_queues(self) -> dict[str, WorkState]:
        """How far each work queue of the log is handled, by name.

        Raises: LogNotFound, LogRecreated, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        return await list_work_queues(self._context.metadata, await self._resolve_log_id())

    async def delete_work_queue(self, name: str) -> bool:
        """Forget a work queue, claims and all; was there one? Who works on it meets `LogNotFound`.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        return await delete_work_queue(self._context.metadata, await self._resolve_log_id(), name)

    def watch_segments(self, *, first: int | None = None) -> Opening[SegmentWatch]:
        """Follow which segments are opened, closed and cut off; ``async with`` or ``await`` it.

        From now on; with ``first`` those that are there from this number on come as if they were new, so that
        who keeps the number of the last one that he handled misses none.

        Raises: LogNotFound, LogRecreated, QuorumUnreachable, InvalidRequest, AlreadyClosed.
        """
        if first is not None:
            check_whole("first", first, 1, NUMBER_MAX)
        return Opening(lambda: self._watch_segments(first))

    async def snapshot(self, *, first: int = 1, limit: int | None = None) -> LogSnapshot:
        """The log as it can be read now, for planners: its segments, how far each goes, both ends.

        Of a long log in pages: the segments from number ``first`` on, at most ``limit``; the next page begins
        at `LogSnapshot.next_segment`. The ends are the whole log's, in each page those of its moment.
        What it names can be read from any process, with `open_ranges`. Raises `LogNotFound`,
        `LedgerStateUnknown` when too few bookies answer.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, QuorumUnreachable, InvalidRequest,
        AlreadyClosed.
        """
        _check_page(first, limit)
        context = self._context
        follower = await self._open_state_watch()
        return await take_snapshot(
            context.metadata, context.ledgers, follower, first=first, limit=limit
        )

    def open_ranges(self, ranges: Sequence[SegmentRange]) -> Opening[RangeReader]:
        """Read stretches of entries that a `snapshot` named, in order; ``async with`` or ``await`` it.

        In any process; nothing is searched for, and nothing beyond the ranges is read.

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
        """Write a segment outside the log, for `link_segments`; ``async with`` or ``await`` it.

        Any number at once, from any process, also while the log has a writer. ``app`` and ``version`` say
        what it will be linked as, for `collect_unlinked`; ``custom`` goes into the ledger's metadata (4 KiB
        at most). With ``digest`` its token says which records it holds (a quarter of a microsecond each):
        where all of a link do, other records under the same version are refused (`LinkMismatch`).

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
        """Make ledgers the log's next segments, in this order, all in one transaction (G8).

        Exactly once: with ``app`` and ``version`` a version that was linked already, with whatever ledgers,
        is answered with ``already``; without, the same ledgers are. With ``content``, or where the writers of
        all segments were asked for ``digest``, a version that was linked with other records is refused
        (`LinkMismatch`). Versions of an application ascend.
        ``identity`` says who counts them. ``truncate_before`` truncates all that was there before, in the
        same transaction. Records without txids get theirs here. Empty segments are left out
        (`discard_segments` deletes them). While a writer's lock lives it waits up to ``wait_s`` and is
        refused; ``takeover`` fences the writer.

        Raises `OwnershipAcquireFailed`, `LinkOutOfOrder` (a later version was linked, or another identity
        counts), `TransactionIdOutOfOrder`, `EndOfStream`, `LogNotFound`, `LogRecreated`, `NoSuchLedger`
        (deleted as an orphan), `InvalidRequest`, `TransactionTooLarge`: nothing was linked. Raises
        `OutcomeUnknown` or `QuorumUnreachable`: ask again with the same arguments, until it is known.

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
        """What an application has linked last; None: nothing that the log remembers (30 days at least).

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        return await last_app_version(self._context.metadata, await self._resolve_log_id(), app)

    async def discard_segments(self, segments: Sequence[SegmentToken]) -> list[SegmentToken]:
        """Delete what was written with `open_segment_writer`, unless it is linked; those that are.

        Safe at any time, also after a link whose outcome is not known.

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
        """Delete segments that nobody will link: their version or a later one is in, or they are too old.

        How many. Links of them that come later are refused (`NoSuchLedger`), and nothing that is linked
        goes. Ages are by the clocks of their writers and of this process.

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
        Compression(self.name, context.options.codec)  # raises before anybody is fenced
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
            await writer.abort()  # with the ledger that was opened for it
            raise
        return writer

    async def _context_with_stored_options(self, log_id: int) -> LogContext:
        """The context with the options that hold for this log. Raises `InvalidRequest`."""
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
            follower = await self._open_state_watch()
        except LogNotFound as error:
            if not isinstance(start, Position):
                raise
            context, held_position = self._context, HeldPosition.of(start)
            raise await explain_deleted(
                context.metadata, context.namespace, self.name, held_position
            ) from error
        fetcher = await open_fetcher(
            self._context, follower, start, to, skip=skip, on_skipped=on_skipped
        )
        self._context.start(fetcher.run)
        return LogReader(fetcher.queue, idle_error_s)

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
        follower = await self._open_state_watch()
        return await open_work_queue(
            self._context, follower, name, at=at, hold=hold, tries_max=tries_max, claim_s=claim_s
        )

    async def _open_byte_writer(self, opening: Opening[LogWriter]) -> ByteWriter:
        check_stream((await self._open_state_watch()).state)  # before a log is made of another kind
        writer = await opening
        return ByteWriter(writer)

    async def _open_byte_reader(self, offset: int, follows: bool) -> ByteReader:
        context, log_id = self._context, await self._resolve_log_id()

        async def follower() -> StateWatch:
            """Of this very log, whatever it is called by now, and whose ever its name is."""
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
            fetcher = await open_fetcher(context, await follower(), TxidStart(txid), to)
            context.start(fetcher.run)
            return LogReader(fetcher.queue)

        async def end() -> int:
            state_watch = await follower()
            last = await last_readable(context.metadata, state_watch, context.ledgers)
            if last is None:
                return max(0, state_watch.state.last_txid)
            record = await state_watch.segment(last.segment)
            return (await record_at(context.ledgers, self.name, record, last)).txid

        check_stream((await follower()).state)
        return ByteReader(self.name, offset, follow=follows, open_reader_at=open_at, end_offset=end)

    async def _watch_segments(self, first: int | None) -> SegmentWatch:
        watch = SegmentWatch(await self._open_state_watch(), first)
        self._context.start(watch.run)
        return watch

    async def _search(self, follower: StateWatch, txid: int | None, since_ms: int | None) -> DLSN:
        metadata, ledgers = self._context.metadata, self._context.ledgers
        if txid is not None:
            return await find_txid(metadata, follower, ledgers, txid)
        assert since_ms is not None, "one of the two was given"
        return await find_time(metadata, follower, ledgers, since_ms)

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
        follower = await self._open_state_watch()
        context, state = self._context, follower.state
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
        return LogEmpty(f'log "{self.name}" holds no record')

    async def _resolve_log_id(self) -> int:
        """The log's id. Raises `LogNotFound`, `LogRecreated`."""
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
        """What has become of the log of this handle's incarnation."""
        assert self._log_id is not None, "one was meant"
        context = self._context
        lookup = await look_up(context.metadata, context.namespace, self.name, self._log_id)
        held_position = HeldPosition(DLSN.INITIAL, incarnation_text(self._log_id), None)
        resolution = replace(
            resolve_position(held_position, lookup), lost=None
        )  # no position is held
        if resolution.successor:
            cause = (
                f'is called "{resolution.current_name}" now and another one made'
                if resolution.current_name
                else "was deleted and made again"
            )
            return resolution.error_with_message(
                f'log "{self.name}" {cause}: {self.incarnation} was meant, it is '
                f"{resolution.successor} now"
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
    """As `Log.open_writer`, for who knows that a lock's holder is dead: his lock is not waited for.

    ``writer_id``: of the lock as it was looked at. Whoever took the log since then lives, and is waited for.
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
    """The entries of a writer that has the log go to its segments, to this one first."""
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
