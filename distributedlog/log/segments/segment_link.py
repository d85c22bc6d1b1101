"""Linking: ledgers that were written outside the log become its next segments, in one transaction (H13).

The order is fixed. (1) Was this very version linked already? Then that is the answer. (2) The log is claimed
as a writer claims it: lock, epoch, recovery of what a dead writer left; refused while another one's lock
lives. (3) One transaction, conditional on the log's state (our epoch, not sealed, no segment in progress),
on each ledger's record (closed, no owner) and on the application's own key: segments appended, owners set,
the version noted, the log released. All of it or nothing, whatever fails; asked again, (1) tells.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import trio

from ...metadata.model.interface import Scan
from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    InvalidRequest,
    LinkMismatch,
    LinkOutOfOrder,
    LogRecreated,
    TooBusy,
    TransactionIdOutOfOrder,
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
"""Ledgers of one link: four operations each, and some 900 bytes, of one transaction's 4,096 and 1 MiB."""
APPS_MAX = 10_000
"""Applications whose last version a log remembers."""
APP_AGE_MS = 30 * 24 * 3600 * 1000
"""One that has linked nothing for longer than this is forgotten, and only when there is no room."""
APP_BYTES_MAX = 255
EVICTED_APPS_MAX = 1000
RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class LinkResult:
    """What became of a link."""

    already: bool
    """It had been linked before this call."""
    first_segment: int
    """Of those that were linked then; 0 when none of the ledgers held a record."""
    last_segment: int

    @property
    def first_dlsn(self) -> DLSN | None:
        """The first position of what was linked."""
        return DLSN(self.first_segment, 0, 0) if self.first_segment else None


@dataclass(frozen=True, slots=True)
class _LinkableLedger:
    """A ledger that may be linked, and what is in it."""

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
        self._truncate_before = truncate_before
        self._content = content

    async def run(
        self, tokens: Sequence[SegmentToken], *, takeover: bool, wait_s: float
    ) -> LinkResult:
        """Link, or say that it was. See `Log.link_segments`."""
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
                # A key beside the state changed, or somebody took the log over while the outcome was
                # open: what stands now decides.
                if trio.current_time() >= deadline:
                    raise VersionConflict(f"{error}; it was tried for too long") from error
            except DistributedLogError as error:
                if error.definite or not is_retryable(error) or trio.current_time() >= deadline:
                    raise
            await trio.sleep(RETRY_S)
        raise AssertionError("it ends by an answer")

    # --- before -----------------------------------------------------------------------------------

    def _check_tokens(self, tokens: Sequence[SegmentToken]) -> None:
        if len(tokens) > LINK_LEDGERS_MAX:
            raise InvalidRequest(
                f"{len(tokens)} ledgers in one link; the most are {LINK_LEDGERS_MAX}: write larger ones"
            )
        if len({token.ledger_id for token in tokens}) < len(tokens):
            raise InvalidRequest("a ledger is named twice in one link")
        if len(self._app.encode()) > APP_BYTES_MAX or len(self._identity.encode()) > APP_BYTES_MAX:
            raise InvalidRequest(f"an application's name has at most {APP_BYTES_MAX} bytes")
        incarnation = incarnation_text(self._log_id)
        for token in tokens:
            if token.incarnation != incarnation:
                raise LogRecreated(
                    f'log "{self._name}" was deleted and made again: ledger {token.ledger_id} was written'
                    f" for incarnation {token.incarnation}, this one is {incarnation}"
                )

    async def _find_earlier_link(
        self, tokens: Sequence[SegmentToken]
    ) -> tuple[LinkResult | None, KeyValue | None]:
        """The result of an earlier link of the same, if there was one; and the application's key."""
        if self._app:
            stored_version = await self._metadata.get(app_version_key(self._log_id, self._app))
            if stored_version is None:
                return None, None
            last_link = AppVersion.decode(stored_version.value)
            if last_link.identity and self._identity and last_link.identity != self._identity:
                raise LinkOutOfOrder(
                    f'log "{self._name}": application {self._app!r} counts its versions as '
                    f"{last_link.identity!r}, this call as {self._identity!r}; use another application name"
                )
            if last_link.version > self._version:
                raise LinkOutOfOrder(
                    f'log "{self._name}": application {self._app!r} has linked version {last_link.version}, '
                    f"{self._version} comes too late"
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
        # One transaction sets them all, so one says it for all that hold a record.
        return (LinkResult(True, min(owners), max(owners)) if owners else None), None

    async def _evict_old_apps(self) -> None:
        """At the bound the longest silent ones go, by age alone (H14); else a new one is refused."""
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
                f'log "{self._name}" remembers {len(stored_apps)} applications, all younger than 30 days: '
                "link without an application name, or under one that is there"
            )
        await self._metadata.transact(
            Transaction(
                # By its revision: one that is forgotten and made again counts its versions anew.
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
        """The ledgers' records. Raises `InvalidRequest` for one that cannot be linked, `NoSuchLedger`.

        An owner may come from this very version, linked by another process a moment ago: `VersionConflict`
        has that looked at; ``again``, it has been.
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

        def apply(state: LogState) -> LogState:
            linked, _ = self._append_segments(state, linkable)
            if self._truncate_before:
                # An overwrite: what was there before goes in the same moment.
                linked = linked.with_truncation(
                    DLSN(state.last_segment + 1, 0, 0), state.next_sequence_id
                )
            return linked.without_owner()

        async def share(state: LogState) -> Transaction:
            return self._link_ops(state, linkable, stored_version)

        # Nobody but this call releases the log under its epoch: that tells that it went through.
        await writer_state.change(apply, is_done=lambda state: not state.writer_id, extra_ops=share)
        last = writer_state.state.last_segment  # under our epoch nobody else adds any
        return (
            LinkResult(False, last - len(linkable) + 1, last)
            if linkable
            else LinkResult(False, 0, 0)
        )

    def _append_segments(
        self, state: LogState, linkable: Sequence[_LinkableLedger]
    ) -> tuple[LogState, list[SegmentRecord]]:
        """The log with these as its last segments, and their records.

        A function of the state that the transaction compares: whoever wrote to the log meanwhile, neither a
        txid that nobody asked for nor the log's time goes back.
        """
        records: list[SegmentRecord] = []
        for ledger in linkable:
            end, has_own_txids = ledger.end, not ledger.end.needs_txids
            txid_base, txid_rule = assign_at_link(state, has_own_txids, end.records, self._now_ms)
            if not has_own_txids:
                end = end.with_txids(txid_base, txid_rule)
            if end.is_unordered or end.first_txid < state.last_txid:
                self._check_order(state, ledger, end)
                state = state.with_unordered()
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
                f"{end.first_txid} to {end.last_txid}, and would follow {state.last_txid}; nothing was linked"
            )
        if end.is_unordered and not end.stores_max_txid and state.is_txid_searchable:
            raise TransactionIdOutOfOrder(
                f'log "{self._name}": the txids of ledger {ledger.ledger_id} go back, and an older program '
                "wrote it, so that no search for a txid would be right: write it again; nothing was linked"
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
    """What is in these segments; None where one of them does not say."""
    content = LinkContent(0, 0)
    for token in tokens:
        if token.digest is None:
            return None
        content += LinkContent(token.records, token.digest)
    return content if tokens else None


def check_content(name: str, app: str, linked: AppVersion, content: LinkContent | None) -> None:
    """Is what was linked under this version what is to be linked now? Raises `LinkMismatch`.

    Not known of one of the two: then it is believed.
    """
    if content is None or linked.content is None or content == linked.content:
        return
    raise LinkMismatch(
        f'log "{name}": application {app!r} has linked version {linked.version} with {linked.content}, now '
        f"there are {content}: nothing was linked. Two writes of one batch need an application name each; if "
        "this one is a repetition whose records come out otherwise, what is in stays"
    )
