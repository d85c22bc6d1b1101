"""Link staged ledgers, which were written outside the log, as its next segments, in one transaction (H13).

The order is fixed:

1. If this version was already linked, return that result.
2. Claim the log as a writer does: take the lock, raise the epoch, recover the segments of a dead writer. The
   call fails while another writer's lock is alive.
3. Run one transaction. It compares the log's state (this epoch, not sealed, no segment in progress), each
   ledger's record (closed, no owner) and the application's key. It appends the segments, sets the owners,
   stores the version and releases the log.

After any failure everything or nothing is linked. A repeated call finds out by step 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import trio

from ...metadata.model.cluster_version import require_format
from ...metadata.model.interface import Scan
from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from ...runtime.declarations.versions import GatedFormat
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    InvalidRequest,
    LinkMismatch,
    LinkOutOfOrder,
    LogRecreated,
    TooBusy,
    TransactionIdOutOfOrder,
    UpgradeNotFinalized,
    VersionConflict,
    WriterFenced,
)
from ..format.dlsn import DLSN
from ..interfaces.segment_store import SegmentLedger
from ..model.log_keys import (
    app_version_key,
    incarnation_text,
    purge_key,
    segment_key,
    staged_ledger_key,
)
from ..model.log_state import GIVEN, LogState
from ..model.segment_ranges import SegmentToken
from ..model.segment_record import SegmentEnd, SegmentRecord
from ..model.txid_policy import assign_at_link
from ..model.writer_log_state import is_retryable
from ..services.lease_session import LogLock
from ..services.log_context import LogContext
from ..takeover.log_lock import acquire_log_lock
from ..takeover.takeover import recover_with_retry
from .app_versions import AppVersion, LinkContent

LINK_LEDGERS_MAX = 800
"""The maximum number of ledgers of one link. Each needs four operations and about 900 bytes of the 4,096
and 1 MiB of a transaction."""
APPS_MAX = 10_000
"""The maximum number of applications whose last version a log stores."""
APP_AGE_MS = 30 * 24 * 3600 * 1000
"""An application that has linked nothing for longer can be evicted, but only at the maximum number."""
APP_BYTES_MAX = 255
EVICTED_APPS_MAX = 1000
RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class LinkResult:
    """The result of a link."""

    already: bool
    """Whether it was linked before this call."""
    first_segment: int
    """The first linked segment. 0 if no ledger had a record."""
    last_segment: int

    @property
    def first_dlsn(self) -> DLSN | None:
        """The first linked position. None if no ledger had a record."""
        return DLSN(self.first_segment, 0, 0) if self.first_segment else None


@dataclass(frozen=True, slots=True)
class _LinkableLedger:
    ledger_id: int
    ledger: SegmentLedger
    end: SegmentEnd


class SegmentLinking:
    """One call of `Log.link_segments`."""

    def __init__(
        self,
        context: LogContext,
        log_id: int,
        name: str,
        *,
        app: str,
        version: int,
        identity: str,
        truncate_before: bool,
        content: LinkContent | None,
    ) -> None:
        self._context = context
        self._metadata = context.metadata
        self._ledgers = context.ledgers
        self._options = context.options
        self._log_id = log_id
        self._name = name
        self._app = app
        self._version = version
        self._identity = identity
        self._now_ms = context.clock_ms()
        self._not_finalized: UpgradeNotFinalized | None = None
        """The error for transaction IDs that decrease, if the cluster's version does not permit them."""
        self._truncate_before = truncate_before
        self._content = content

    async def run(
        self, tokens: Sequence[SegmentToken], *, takeover: bool, wait_s: float
    ) -> LinkResult:
        """Link the ledgers, or return the result of the earlier link. See `Log.link_segments`."""
        self._check_tokens(tokens)
        if self._content is None:
            self._content = combined_content(tokens)
        deadline = trio.current_time() + self._options.recover_timeout_s
        for attempt in count():
            linked, stored_version = await self._find_earlier_link(tokens)
            if linked is not None:
                return linked
            if self._app and stored_version is None:
                await self._evict_old_apps()
            try:
                linkable = await self._load_ledgers(tokens, again=attempt > 0)
                return await self._lock_and_link(
                    linkable, stored_version, takeover=takeover, wait_s=wait_s
                )
            except (VersionConflict, WriterFenced) as error:
                # A compared key other than the state changed, or another client took over the log while
                # the outcome was unknown. The next attempt uses the present state.
                if trio.current_time() >= deadline:
                    raise VersionConflict(f"{error} (gave up after too many attempts)") from error
            except DistributedLogError as error:
                if error.definite or not is_retryable(error) or trio.current_time() >= deadline:
                    raise
            await trio.sleep(RETRY_S)
        raise AssertionError("the loop ends by a result or an error")

    # --- checks before the link -------------------------------------------------------------------

    def _check_tokens(self, tokens: Sequence[SegmentToken]) -> None:
        if len(tokens) > LINK_LEDGERS_MAX:
            raise InvalidRequest(
                f"a link of {len(tokens)} ledgers is above the limit of {LINK_LEDGERS_MAX}. Write larger "
                "ledgers."
            )
        if len({token.ledger_id for token in tokens}) < len(tokens):
            raise InvalidRequest("a ledger is listed twice in one link")
        if len(self._app.encode()) > APP_BYTES_MAX or len(self._identity.encode()) > APP_BYTES_MAX:
            raise InvalidRequest(f"an application name must have at most {APP_BYTES_MAX} bytes")
        incarnation = incarnation_text(self._log_id)
        for token in tokens:
            if token.incarnation != incarnation:
                raise LogRecreated(
                    f'log "{self._name}" was deleted and made again: ledger {token.ledger_id} was written'
                    f" for incarnation {token.incarnation}, the present one is {incarnation}"
                )

    async def _find_earlier_link(
        self, tokens: Sequence[SegmentToken]
    ) -> tuple[LinkResult | None, KeyValue | None]:
        """Return the result of an earlier link of the same version, if there was one, and the
        application's key."""
        if self._app:
            stored_version = await self._metadata.get(app_version_key(self._log_id, self._app))
            if stored_version is None:
                return None, None
            last_link = AppVersion.decode(stored_version.value)
            if last_link.identity and self._identity and last_link.identity != self._identity:
                raise LinkOutOfOrder(
                    f'log "{self._name}": application {self._app!r} has linked with identity '
                    f"{last_link.identity!r}, this call has {self._identity!r}. Use another application name."
                )
            if last_link.version > self._version:
                raise LinkOutOfOrder(
                    f'log "{self._name}": application {self._app!r} has linked version {last_link.version}, '
                    f"so version {self._version} is too old"
                )
            if last_link.version == self._version:
                check_content(self._name, self._app, last_link, self._content)
                return LinkResult(
                    True, last_link.first_segment, last_link.last_segment
                ), stored_version
            return None, stored_version
        owners: list[int] = []
        for token in tokens:
            ledger = await self._ledgers.find(token.ledger_id)
            if ledger.owner is not None and ledger.owner[0] == self._log_id:
                owners.append(ledger.owner[1])
        # One transaction sets all owners, so one owner proves that all ledgers with records are linked.
        return (LinkResult(True, min(owners), max(owners)) if owners else None), None

    async def _evict_old_apps(self) -> None:
        """At the maximum number, evict the applications with the oldest links, by age alone (H14).

        Raises:
            TooBusy: No application is old enough.
        """
        stored_apps = [
            item async for item in Scan(self._metadata, app_version_key(self._log_id, ""))
        ]
        if len(stored_apps) < APPS_MAX:
            return
        stamped = [(AppVersion.decode(item.value).linked_ms, item) for item in stored_apps]
        # Against the newest stamp that is stored, not this machine's clock alone (H18).
        newest_ms = min(self._now_ms, max(stamp for stamp, _ in stamped))
        evicted = [item for stamp, item in stamped if stamp < newest_ms - APP_AGE_MS][
            :EVICTED_APPS_MAX
        ]
        if not evicted:
            raise TooBusy(
                f'log "{self._name}" stores {len(stored_apps)} applications, all used within 30 days. '
                "Link without an application name, or with an existing one."
            )
        await self._metadata.transact(
            Transaction(
                # Compared by revision, because an application that is evicted and added again restarts
                # its version numbers.
                tuple(Compare.mod_revision(item.key, item.mod_revision) for item in evicted),
                tuple(Delete(item.key) for item in evicted),
            )
        )

    # --- the link ---------------------------------------------------------------------------------

    async def _lock_and_link(
        self,
        linkable: Sequence[_LinkableLedger],
        txn: KeyValue | None,
        *,
        takeover: bool,
        wait_s: float,
    ) -> LinkResult:
        log_lock = await acquire_log_lock(
            self._context, self._log_id, takeover=takeover, wait_s=wait_s
        )
        try:
            await recover_with_retry(
                self._context, log_lock.writer_state, timeout_s=self._options.recover_timeout_s
            )
            return await self._link(log_lock, linkable, txn)
        finally:
            await log_lock.release()

    async def _load_ledgers(
        self, tokens: Sequence[SegmentToken], *, again: bool
    ) -> list[_LinkableLedger]:
        """Read the ledgers' records, and return the ledgers that have records.

        A ledger with an owner may belong to this very version, linked by another process just now.
        `VersionConflict` makes the caller check that. If it has (``again``), the error is `InvalidRequest`.

        Raises:
            InvalidRequest: A ledger cannot be linked.
            NoSuchLedger: A ledger was deleted.
            CorruptData: A ledger ends at another entry than its writer counted.
        """
        linkable: list[_LinkableLedger] = []
        for token in tokens:
            ledger = await self._ledgers.find(token.ledger_id)
            end_value = ledger.custom.get("end")
            if ledger.incarnation != self._log_id:
                raise InvalidRequest(
                    f'ledger {token.ledger_id} was not written for log "{self._name}" '
                    f"({incarnation_text(self._log_id)})"
                )
            if not ledger.closed or end_value is None:
                raise InvalidRequest(f"ledger {token.ledger_id} was not closed by its writer")
            end = SegmentEnd.decode(end_value)
            if (end.last_entry, end.size_bytes) != (ledger.last_entry, ledger.length):
                raise CorruptData(
                    f"ledger {token.ledger_id} ends at entry {ledger.last_entry}, its writer counted "
                    f"{end.last_entry}"
                )
            if ledger.owner is not None:
                log_id, segment = ledger.owner
                message = (
                    f"ledger {token.ledger_id} is segment {segment} of log {log_id:016x} already"
                )
                raise InvalidRequest(message) if again else VersionConflict(message)
            if end.records:
                linkable.append(_LinkableLedger(token.ledger_id, ledger, end))
        return linkable

    async def _link(
        self,
        log_lock: LogLock,
        linkable: Sequence[_LinkableLedger],
        stored_version: KeyValue | None,
    ) -> LinkResult:
        writer_state = log_lock.writer_state
        linked, _ = self._append_segments(writer_state.state, linkable)
        if linked.had_unordered_txids and not writer_state.state.had_unordered_txids:
            try:
                await require_format(
                    self._metadata, GatedFormat.DECREASING_TXIDS, f'log "{self._name}"'
                )
            except UpgradeNotFinalized as error:
                self._not_finalized = error

        def apply(state: LogState) -> LogState:
            linked, _ = self._append_segments(state, linkable)
            if self._truncate_before:
                # For an overwrite, the same transaction truncates all earlier records.
                linked = linked.with_truncation(
                    DLSN(state.last_segment + 1, 0, 0), state.next_sequence_id
                )
            return linked.without_owner()

        async def extra_ops(state: LogState) -> Transaction:
            return self._link_ops(state, linkable, stored_version)

        # Only this call releases the log under its epoch, so a released log proves that it was linked.
        await writer_state.change(
            apply, is_done=lambda state: not state.writer_id, extra_ops=extra_ops
        )
        last = writer_state.state.last_segment  # only this call adds segments under its epoch
        return (
            LinkResult(False, last - len(linkable) + 1, last)
            if linkable
            else LinkResult(False, 0, 0)
        )

    def _append_segments(
        self, state: LogState, linkable: Sequence[_LinkableLedger]
    ) -> tuple[LogState, list[SegmentRecord]]:
        """Return the state with these ledgers as its last segments, and their records.

        It only depends on the state that the transaction compares. So neither assigned transaction IDs nor
        the log time decrease, even if another client wrote to the log in between.
        """
        records: list[SegmentRecord] = []
        for ledger in linkable:
            end, has_own_txids = ledger.end, not ledger.end.needs_txids
            txid_base, txid_rule = assign_at_link(state, has_own_txids, end.records, self._now_ms)
            if not has_own_txids:
                end = end.with_txids(txid_base, txid_rule)
            if end.is_unordered or end.first_txid < state.last_txid:
                self._check_order(state, ledger, end)
                if self._not_finalized is None or state.had_unordered_txids:
                    state = state.with_unordered()
                elif self._options.max_txid_check:
                    raise self._not_finalized
                else:  # as version 0.1 does
                    state = state.with_unsearchable_txids()
            record = SegmentRecord(
                state.last_segment + 1,
                ledger.ledger_id,
                state.epoch,
                self._now_ms,
                time_floor_ms=self._now_ms,
                txid_base=txid_base,
                txid_rule=txid_rule,
            ).with_end(end, state, closed_ms=self._now_ms)
            state = state.with_linked(record.totals)
            records.append(record)
        return state, records

    def _check_order(self, state: LogState, ledger: _LinkableLedger, end: SegmentEnd) -> None:
        if end.first_txid < state.last_txid and (
            self._options.max_txid_check and state.policy == GIVEN
        ):
            raise TransactionIdOutOfOrder(
                f'log "{self._name}" has the txid policy "strict": ledger {ledger.ledger_id} has txids '
                f"{end.first_txid} to {end.last_txid}, and would follow {state.last_txid}. Nothing is linked."
            )
        if end.is_unordered and not end.stores_max_txid and state.is_txid_searchable:
            raise TransactionIdOutOfOrder(
                f'log "{self._name}": the txids of ledger {ledger.ledger_id} decrease, and an older program '
                "wrote it, so txid searches would be wrong. Write it again. Nothing was linked."
            )

    def _link_ops(
        self,
        state: LogState,
        linkable: Sequence[_LinkableLedger],
        stored_version: KeyValue | None,
    ) -> Transaction:
        first_segment, last_segment = (
            (state.last_segment + 1, state.last_segment + len(linkable)) if linkable else (0, 0)
        )
        link_ops = Transaction()
        _, records = self._append_segments(state, linkable)
        for ledger, record in zip(linkable, records, strict=True):
            link_ops += ledger.ledger.link_ops((self._log_id, record.segment)) + Transaction(
                (),
                (
                    Put(segment_key(self._log_id, record.segment), record.encode()),
                    Delete(staged_ledger_key(self._log_id, ledger.ledger_id)),
                ),
            )
        if self._truncate_before and state.last_segment >= state.first_segment:
            link_ops += Transaction((), (Put(purge_key(self._log_id), b""),))
        if self._app:
            key = app_version_key(self._log_id, self._app)
            app_version = AppVersion(
                self._version,
                self._identity,
                self._now_ms,
                first_segment,
                last_segment,
                self._content,
            )
            unchanged = Compare.mod_revision(
                key, 0 if stored_version is None else stored_version.mod_revision
            )
            link_ops += Transaction((unchanged,), (Put(key, app_version.encode()),))
        return link_ops


def combined_content(tokens: Sequence[SegmentToken]) -> LinkContent | None:
    """Return the content of these segments in sum. None if one of them has no digest."""
    content = LinkContent(0, 0)
    for token in tokens:
        if token.digest is None:
            return None
        content += LinkContent(token.records, token.digest)
    return content if tokens else None


def check_content(name: str, app: str, linked: AppVersion, content: LinkContent | None) -> None:
    """Check that the content to link equals the one that was linked under this version.

    If one of the two is unknown, they are assumed to be equal.

    Raises:
        LinkMismatch: The contents differ.
    """
    if content is None or linked.content is None or content == linked.content:
        return
    raise LinkMismatch(
        f'log "{name}": application {app!r} has linked version {linked.version} with {linked.content}, but '
        f"this call has {content}. Nothing was linked. Two writes of one batch need different application "
        "names. If this call repeats a batch with different results, the linked records are kept."
    )
