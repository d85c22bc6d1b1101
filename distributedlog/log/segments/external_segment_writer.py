"""Write a segment outside its log: a staged ledger, to which no log refers until it is linked (H13).

Any number of processes can write such ledgers concurrently with each other and with the log's writer. They
are not readable. `Log.link_segments` makes them the log's next segments, completely, in one transaction.
Ledgers that are never linked are deleted, either by their creator (`abort`, `discard_segments`) or later
(`staged_ledgers.py`).
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import trio

from ...metadata.model.transaction import Compare, Put, Transaction
from ...runtime.interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    EndOfStream,
    InvalidRequest,
    LogNotFound,
    NoSuchLedger,
    NotEnoughBookies,
    OutcomeUnknown,
    RecordTooLarge,
    WriteFailed,
)
from ...runtime.interfaces.host import Buffer
from ..format.compression import Compression
from ..format.log_clock import LogClock
from ..format.packed_columns import copy_and_check_packed
from ..format.record import FLAG_TXID_AT_LINK, LogRecord, build_entry, split_columns
from ..format.record_headers import Headers, split_contents
from ..interfaces.segment_store import NewSegmentLedger, SegmentEntryStore, SegmentEntryWriter
from ..model.log_keys import incarnation_text, staged_ledger_key, state_key
from ..model.log_state import BYTES, GIVEN, LogState
from ..model.segment_ranges import SegmentToken
from ..model.segment_record import EMPTY_END, UNKNOWN, SegmentEnd
from ..model.txid_policy import txid_order_error
from ..services.log_context import LogContext
from ..services.settings_update import permit_record_headers
from ..takeover.takeover import CREATE_ATTEMPTS
from ..write.record_validation import keyed_refused_error, validate_columns
from .app_versions import LinkContent
from .staged_ledgers import StagedLedger, delete_staged

ENTRY_BYTES = 256 * 1024
CLOSE_ATTEMPTS = 5
DELETE_TIMEOUT_S = 2.0
RESERVED_KEYS = ("log", "app", "version", "end")
"""The keys of a ledger's custom metadata that this module uses."""


class SegmentWriter:
    """Writes one staged ledger for a log, then closes it. `Log.open_segment_writer` creates it.

    Only one task may use it. Records are not acknowledged one by one. `aclose` returns when all are durable
    (G2), and `Log.link_segments` takes its token. If the ``async with`` block ends with an exception, the
    ledger is deleted.
    """

    def __init__(
        self,
        context: LogContext,
        state: LogState,
        ledger: SegmentEntryWriter,
        entry_bytes: int,
        compression: Compression,
        *,
        digest: bool,
    ) -> None:
        self._metadata = context.metadata
        self._ledgers = context.ledgers
        self._now_ms = LogClock(context.clock_ms, state.name).now_ms
        self._time_ms = 0
        self._close_timeout_s = context.options.close_timeout_s
        self._state = state
        self._entry_bytes = entry_bytes
        self._compression = compression
        self._content = LinkContent(0, 0) if digest else None
        """The content of the sent records."""
        self._refuses_unordered = context.options.max_txid_check and state.policy == GIVEN
        self._max_txid = UNKNOWN
        """The greatest transaction ID so far."""
        self._txids_at_link: bool | None = None
        """Whether the link assigns the transaction IDs. None before the first record."""
        self._txids: list[int] = []
        self._payloads: list[Any] = []
        self._buffered_bytes = 0
        self._namespace = context.namespace
        self._keyed_permitted = state.has_record_headers
        self._has_keyed = False
        """Whether a buffered record has a key or headers. Its payload is then a `KeyedContent`."""
        self._end: SegmentEnd = EMPTY_END
        self._ledger = ledger
        self._closed = False
        self.token: SegmentToken | None = None
        """Set by `aclose`."""

    # --- for the caller ---------------------------------------------------------------------------

    @property
    def ledger_id(self) -> int:
        """The ID of the ledger that is written."""
        return self._ledger.ledger_id

    @property
    def size_bytes(self) -> int:
        """The entry bytes so far, including buffered records."""
        return self._end.size_bytes + self._buffered_bytes

    @property
    def records(self) -> int:
        """The number of records accepted so far."""
        return self._end.records + len(self._txids)

    async def write(self, record: LogRecord | Buffer) -> None:
        """Accept one record, waiting only for free space in the send window.

        Args:
            record: The record, or its payload if the link assigns the transaction IDs.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, AlreadyClosed, WriteFailed.
        """
        await self.write_bulk([record])

    async def write_bulk(self, records: Sequence[LogRecord | Buffer]) -> None:
        """Accept records in order, waiting only for free space in the send window.

        After an error for one record, the records before it are accepted.

        Args:
            records: All have transaction IDs, or all are payloads or records without one.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, AlreadyClosed, WriteFailed.
        """
        txids, payloads = split_columns(records)
        missing_count = txids.count(None)
        if missing_count and missing_count < len(txids):
            raise self._mixed_txids_error()
        await self.write_columns(None if missing_count else txids, payloads)

    async def write_columns(self, txids: Sequence[int] | None, payloads: Sequence[bytes]) -> None:
        """Accept records as `write_bulk`, from a list of transaction IDs and one of payloads.

        After `RecordTooLarge`, `TransactionIdOutOfOrder` and `InvalidRequest` the records before the rejected
        one are accepted, and the writer stays usable. The error that ended the ledger is permanent.

        Args:
            txids: One per record. None if the log assigns them when the segment is linked, by its policy.
                Either all records of a segment have transaction IDs, or none has.
            payloads: One per record.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, AlreadyClosed, WriteFailed.
        """
        self._check_open()
        self._require_same_kind(txids_at_link=txids is None)
        policy = self._state.policy
        validated = validate_columns(
            txids, payloads, self._max_txid, self._refuses_unordered, self._name, policy
        )
        validated.copy_lists()  # `flush` may wait, and the caller may change its lists during the wait
        if validated.is_keyed:
            try:
                await self._permit_keyed()
            except InvalidRequest as error:
                validated = validated.without_keyed(error)
        if txids is None:
            entry_txids = [0] * validated.record_count  # placeholders until the link assigns them
        elif validated.has_mixed_txids or (validated.record_count and validated.txids is None):
            raise self._mixed_txids_error()  # some IDs are None, or all of them
        else:
            entry_txids = validated.txids or []
            if entry_txids:
                self._max_txid = max(
                    self._max_txid, max(entry_txids) if validated.is_unordered else entry_txids[-1]
                )
        position = 0
        while position < validated.record_count:
            stop = validated.fitting_end(position, self._entry_bytes, self._buffered_bytes)
            if stop > position:
                self._txids += entry_txids[position:stop]
                self._payloads += validated.payloads[position:stop]
                self._has_keyed |= validated.first_keyed < stop
                self._buffered_bytes += validated.entry_bytes(position, stop)
                position = stop
            if position < validated.record_count or self._buffered_bytes >= self._entry_bytes:
                await self.flush()
        if validated.refusal is not None:
            raise validated.refusal

    async def write_packed(
        self,
        txids: Buffer | None,
        offsets: Buffer,
        payloads: Buffer,
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Sequence[tuple[bytes, bytes]]] | None = None,
    ) -> None:
        """Write one entry from columns in Arrow's layout, without work per record.

        The columns are little-endian. They have at least one record and at most 1,040,384 bytes in sum.
        Records that were buffered before are written first. The buffers are copied.

        Args:
            txids: int64 per record. None as for `write_columns`.
            offsets: int32, one more than records. The first is 0.
            payloads: The bytes of all payloads, up to the last offset.
            keys: One key per record, None for a record without. They cost work per record.
            headers: Pairs of a name and a value per record, as in a `KeyedRecord`.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, AlreadyClosed, WriteFailed.
        """
        self._check_open()
        await self.flush()
        self._require_same_kind(txids_at_link=txids is None)
        try:
            columns = copy_and_check_packed(txids, offsets, payloads, txids_at_link=True)
            if keys is not None or headers is not None:
                columns = columns.with_keyed(keys, headers)
        except RecordTooLarge as error:
            raise RecordTooLarge(f'log "{self._name}": {error}') from None
        if columns.is_keyed:
            await self._permit_keyed()
        first_txid, last_txid = columns.txids[0], columns.txids[-1]
        if txids is not None:
            if self._refuses_unordered and first_txid < self._max_txid:
                raise txid_order_error(first_txid, self._max_txid, self._name)
            if self._refuses_unordered and not columns.is_ascending:
                raise txid_order_error(last_txid, first_txid, self._name)
            self._max_txid = max(
                self._max_txid, last_txid if columns.is_ascending else max(columns.txids)
            )
        if self._content is not None:
            self._content += (
                LinkContent.of_contents(columns.txids, columns.contents)
                if columns.is_keyed
                else LinkContent.of(columns.txids, columns.iter_payloads())
            )
        buffers, length = columns.build_entry(
            records_before=self._end.records,
            written_ms=self._next_time_ms(),
            max_txid=self._max_txid if self._max_txid > last_txid else 0,
        )
        await self._add(
            buffers, length, len(columns.txids), first_txid, self._max_txid,
            ascending=columns.is_ascending,
        )  # fmt: skip

    async def flush(self) -> None:
        """Send the buffered records, waiting only for free space in the send window.

        Raises: AlreadyClosed, WriteFailed.
        """
        self._check_open()
        if not self._txids:
            return
        txids, payloads = self._txids, self._payloads
        keys: list[bytes | None] | None = None
        headers: list[Headers] | None = None
        if self._content is not None:
            self._content += LinkContent.of_contents(txids, payloads)
        if self._has_keyed:
            payloads, keys, headers = split_contents(payloads)
        self._txids, self._payloads, self._buffered_bytes = [], [], 0
        self._has_keyed = False
        ascending = self._refuses_unordered or sorted(txids) == txids
        max_txid = max(self._end.last_txid, txids[-1] if ascending else max(txids))
        buffers, length = build_entry(
            txids,
            payloads,
            records_before=self._end.records,
            written_ms=self._next_time_ms(),
            flags=FLAG_TXID_AT_LINK if self._txids_at_link else 0,
            max_txid=max_txid if max_txid > txids[-1] else 0,
            keys=keys,
            headers=headers,
        )
        await self._add(buffers, length, len(txids), txids[0], max_txid, ascending=ascending)

    async def aclose(self) -> SegmentToken:
        """Wait until all records are durable, and close the ledger. Idempotent.

        After an error the ledger cannot be linked, and a later collection deletes it.

        Returns:
            The token for `Log.link_segments`.

        Raises: WriteFailed, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        if self.token is not None:
            return self.token
        await self.flush()
        with trio.move_on_after(self._close_timeout_s) as scope:
            await self._ledger.wait_settled()
            await self._close_ledger()
        if scope.cancelled_caught:
            self._closed = True
            self._ledger.abort()
            raise WriteFailed(
                f'log "{self._name}": a segment was not durable within '
                f"{self._close_timeout_s:g} s of its end and cannot be linked"
            )
        end = self._end
        self._closed = True
        self.token = SegmentToken(
            incarnation_text(self._state.log_id),
            self.ledger_id,
            end.records,
            end.size_bytes,
            end.first_txid,
            end.last_txid,
            end.last_entry,
            end.last_slot,
            None if self._content is None else self._content.digest,
        )
        return self.token

    async def abort(self) -> None:
        """Stop sending, and delete the ledger if the metadata quorum answers. Idempotent.

        Raises: nothing.
        """
        if self._closed:
            return
        self._closed = True
        self._ledger.abort()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + DELETE_TIMEOUT_S):
            try:
                await delete_staged(
                    self._metadata, self._ledgers, self._state.log_id, self.ledger_id
                )
            except DistributedLogError:
                return  # `collect_staged` deletes it later

    async def __aenter__(self) -> "SegmentWriter":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            await self.abort()

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return self._state.name

    def _require_same_kind(self, *, txids_at_link: bool) -> None:
        if self._txids_at_link is not None and self._txids_at_link != txids_at_link:
            raise self._mixed_txids_error()
        self._txids_at_link = txids_at_link

    async def _permit_keyed(self) -> None:
        """Permit keys and headers in the log, before the first one is written for it.

        Raises:
            InvalidRequest: The log accepts none.
            DistributedLogError: The metadata quorum does not answer. Nothing was accepted.
        """
        if self._state.policy == BYTES:
            raise keyed_refused_error(self._name)
        if not self._keyed_permitted:
            await permit_record_headers(
                self._metadata, self._namespace, self._state.log_id, self._name
            )
            self._keyed_permitted = True

    def _mixed_txids_error(self) -> InvalidRequest:
        return InvalidRequest(
            f'log "{self._name}": either all records of a segment must have a txid, or none'
        )

    def _next_time_ms(self) -> int:
        self._time_ms = self._now_ms()
        return self._time_ms

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed(f'log "{self._name}": this segment writer is closed')

    async def _add(
        self,
        buffers: list[Buffer],
        length: int,
        count: int,
        first_txid: int,
        max_txid: int,
        *,
        ascending: bool,
    ) -> None:
        """Add one entry. ``max_txid`` is the greatest transaction ID up to this entry."""
        if self._txids_at_link:
            first_txid = max_txid = UNKNOWN
        if self._compression.codec_number:
            buffers, length = self._compression.compress(buffers, length)
        ledger = self._ledger
        if ledger.has_capacity:
            await trio.lowlevel.checkpoint()
        else:
            await ledger.wait_capacity()
        entry = ledger.add(buffers, length)
        end = self._end
        self._end = SegmentEnd(
            last_entry=entry,
            size_bytes=end.size_bytes + length,
            records=end.records + count,
            first_txid=end.first_txid if end.records else first_txid,
            last_txid=max_txid,
            last_user_entry=entry,
            last_slot=count - 1,
            last_time_ms=self._time_ms,
            is_unordered=end.is_unordered or first_txid < end.last_txid or not ascending,
            stores_max_txid=True,
        )

    async def _close_ledger(self) -> None:
        """Close the ledger, and store the writer's counts in its record, which a link uses."""
        custom = {"end": self._end.encode()}
        close_ops = self._ledger.close_ops(custom)
        for _ in range(CLOSE_ATTEMPTS):
            try:
                if (await self._metadata.transact(close_ops)).succeeded:
                    return
            except OutcomeUnknown:
                pass
            ledger = await self._ledgers.find(self.ledger_id)
            if ledger.closed:
                if ledger.custom.get("end") == custom["end"]:
                    return
                break  # another client recovered and closed it
        raise WriteFailed(
            f'log "{self._name}": ledger {self.ledger_id} could not be closed by its writer '
            "and cannot be linked"
        )


async def open_external_segment(
    context: LogContext,
    state: LogState,
    *,
    app: str,
    version: int,
    custom: Mapping[str, bytes],
    entry_bytes: int,
    codec: str,
    digest: bool,
) -> SegmentWriter:
    """Create a staged ledger and return its writer, as `Log.open_segment_writer`."""
    for key in custom:
        if key in RESERVED_KEYS:
            raise InvalidRequest(f"the custom metadata key {key!r} is reserved")
    if state.sealed:
        raise EndOfStream(f'log "{state.name}" is sealed and accepts no more records')
    compression = Compression(state.name, codec)
    staged = StagedLedger(app, version, context.clock_ms())
    custom = {
        **custom,
        "log": state.name.encode(),
        "app": app.encode(),
        "version": b"%d" % version,
    }
    prepared = await create_staged_ledger(
        context, state, staged, custom=custom, quorums=state.quorums
    )
    writer = context.ledgers.writer(prepared)
    return SegmentWriter(context, state, writer, entry_bytes, compression, digest=digest)


async def create_staged_ledger(
    context: LogContext,
    state: LogState,
    staged: StagedLedger,
    *,
    custom: Mapping[str, bytes],
    quorums: tuple[int, int, int] | None,
) -> NewSegmentLedger:
    """Create a ledger for a log, with a record under the log that it is staged.

    Raises:
        LogNotFound: The log was deleted.
        NotEnoughBookies: Too few bookies are available.
    """
    log_state_key = state_key(state.log_id)
    for _ in range(CREATE_ATTEMPTS):
        prepared = await context.ledgers.prepare(
            custom=custom, quorums=quorums, incarnation=state.log_id
        )
        put = Put(staged_ledger_key(state.log_id, prepared.ledger_id), staged.encode())
        try:
            reply = await context.metadata.transact(
                Transaction((Compare.exists(log_state_key),), (put,)) + prepared.create_ops()
            )
            created, log_deleted = reply.succeeded, not reply.succeeded and reply.current[0] is None
        except OutcomeUnknown:
            created, log_deleted = await _was_created(context.ledgers, prepared.ledger_id), False
        if created:
            return prepared
        if log_deleted:
            raise LogNotFound(f'log "{state.name}" was deleted')
    raise NotEnoughBookies(
        f'log "{state.name}": a bookie became unavailable in each of {CREATE_ATTEMPTS} attempts to '
        "create a ledger"
    )


async def _was_created(ledgers: SegmentEntryStore, ledger_id: int) -> bool:
    """Return whether the ledger exists. No other client can have created one with this ID."""
    try:
        await ledgers.find(ledger_id)
    except NoSuchLedger:
        return False
    return True
