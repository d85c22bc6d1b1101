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
from ..model.log_keys import incarnation_text, purge_key, segment_key, txn_key, unlinked_key
from ..model.log_state import GIVEN, LogState
from ..model.segment_ranges import SegmentToken
from ..model.segment_record import SegmentEnd, SegmentRecord
from ..model.txid_policy import at_link
from ..model.writer_log_state import is_retryable
from ..services.lease_session import LogLock
from ..services.log_context import LogContext
from ..takeover.log_lock import claim
from ..takeover.takeover import recover_patiently
from .app_versions import AppVersion, LinkContent

LINK_LEDGERS_MAX = 800
"""Ledgers of one link: four operations each, and some 900 bytes, of one transaction's 4,096 and 1 MiB."""
APPS_MAX = 10_000
"""Applications whose last version a log remembers."""
APP_AGE_MS = 30 * 24 * 3600 * 1000
"""One that has linked nothing for longer than this is forgotten, and only when there is no room."""
APP_BYTES_MAX = 255
FORGOTTEN_AT_ONCE = 1000
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
class _Ready:
    """A ledger that may be linked, and what is in it."""

    ledger_id: int
    found: SegmentLedger
    end: SegmentEnd


class Linking:
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
        self._now_ms = context.wall_ms()
        self._truncate_before = truncate_before
        self._content = content

    async def run(
        self, tokens: Sequence[SegmentToken], *, takeover: bool, wait_s: float
    ) -> LinkResult:
        """Link, or say that it was. See `Log.link_segments`."""
        self._check(tokens)
        if self._content is None:
            self._content = content_of(tokens)
        deadline = trio.current_time() + self._options.recover_timeout_s
        for attempt in count():
            linked, txn = await self._already(tokens)
            if linked is not None:
                return linked
            if self._app and txn is None:
                await self._make_room()
            try:
                ready = await self._look(tokens, again=attempt > 0)
                return await self._claim_and_link(ready, txn, takeover=takeover, wait_s=wait_s)
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

    def _check(self, tokens: Sequence[SegmentToken]) -> None:
        if len(tokens) > LINK_LEDGERS_MAX:
            raise InvalidRequest(
                f"{len(tokens)} ledgers in one link; the most are {LINK_LEDGERS_MAX}: write larger ones"
            )
        if len({token.ledger_id for token in tokens}) < len(tokens):
            raise InvalidRequest("a ledger is named twice in one link")
        if len(self._app.encode()) > APP_BYTES_MAX or len(self._identity.encode()) > APP_BYTES_MAX:
            raise InvalidRequest(f"an application's name has at most {APP_BYTES_MAX} bytes")
        ours = incarnation_text(self._log_id)
        for token in tokens:
            if token.incarnation != ours:
                raise LogRecreated(
                    f'log "{self._name}" was deleted and made again: ledger {token.ledger_id} was written'
                    f" for incarnation {token.incarnation}, this one is {ours}"
                )

    async def _already(
        self, tokens: Sequence[SegmentToken]
    ) -> tuple[LinkResult | None, KeyValue | None]:
        """The result of an earlier link of the same, if there was one; and the application's key."""
        if self._app:
            txn = await self._metadata.get(txn_key(self._log_id, self._app))
            if txn is None:
                return None, None
            last = AppVersion.decode(txn.value)
            if last.identity and self._identity and last.identity != self._identity:
                raise LinkOutOfOrder(
                    f'log "{self._name}": application {self._app!r} counts its versions as '
                    f"{last.identity!r}, this call as {self._identity!r}; use another application name"
                )
            if last.version > self._version:
                raise LinkOutOfOrder(
                    f'log "{self._name}": application {self._app!r} has linked version {last.version}, '
                    f"{self._version} comes too late"
                )
            if last.version == self._version:
                check_content(self._name, self._app, last, self._content)
                return LinkResult(True, last.first_segment, last.last_segment), txn
            return None, txn
        owners: list[int] = []
        for token in tokens:
            found = await self._ledgers.find(token.ledger_id)
            if found.owner is not None and found.owner[0] == self._log_id:
                owners.append(found.owner[1])
        # One transaction sets them all, so one says it for all that hold a record.
        return (LinkResult(True, min(owners), max(owners)) if owners else None), None

    async def _make_room(self) -> None:
        """At the bound the longest silent ones go, by age alone (H14); else a new one is refused."""
        found = [item async for item in Scan(self._metadata, txn_key(self._log_id, ""))]
        if len(found) < APPS_MAX:
            return
        stamps = [(AppVersion.decode(item.value).linked_ms, item) for item in found]
        # Against the newest stamp that is stored, not this machine's clock alone (H18).
        newest = min(self._now_ms, max(stamp for stamp, _ in stamps))
        old = [item for stamp, item in stamps if stamp < newest - APP_AGE_MS][:FORGOTTEN_AT_ONCE]
        if not old:
            raise TooBusy(
                f'log "{self._name}" remembers {len(found)} applications, all younger than 30 days: '
                "link without an application name, or under one that is there"
            )
        await self._metadata.transact(
            Transaction(
                # By its revision: one that is forgotten and made again counts its versions anew.
                tuple(Compare.mod_revision(item.key, item.mod_revision) for item in old),
                tuple(Delete(item.key) for item in old),
            )
        )

    # --- the link ---------------------------------------------------------------------------------

    async def _claim_and_link(
        self,
        ready: Sequence[_Ready],
        txn: KeyValue | None,
        *,
        takeover: bool,
        wait_s: float,
    ) -> LinkResult:
        claimed = await claim(self._context, self._log_id, takeover=takeover, wait_s=wait_s)
        try:
            await recover_patiently(
                self._context, claimed.owned, timeout_s=self._options.recover_timeout_s
            )
            return await self._link(claimed, ready, txn)
        finally:
            await claimed.give_back()

    async def _look(self, tokens: Sequence[SegmentToken], *, again: bool) -> list[_Ready]:
        """The ledgers' records. Raises `InvalidRequest` for one that cannot be linked, `NoSuchLedger`.

        An owner may come from this very version, linked by another process a moment ago: `VersionConflict`
        has that looked at; ``again``, it has been.
        """
        ready: list[_Ready] = []
        for token in tokens:
            found = await self._ledgers.find(token.ledger_id)
            note = found.custom.get("end")
            if found.incarnation != self._log_id:
                raise InvalidRequest(
                    f'ledger {token.ledger_id} was not written for log "{self._name}" '
                    f"({incarnation_text(self._log_id)})"
                )
            if not found.closed or note is None:
                raise InvalidRequest(f"ledger {token.ledger_id} was not closed by its writer")
            end = SegmentEnd.decode(note)
            if (end.last_entry, end.size_bytes) != (found.last_entry, found.length):
                raise CorruptData(
                    f"ledger {token.ledger_id} ends at entry {found.last_entry}, its writer counted "
                    f"{end.last_entry}"
                )
            if found.owner is not None:
                log_id, segment = found.owner
                said = f"ledger {token.ledger_id} is segment {segment} of log {log_id:016x} already"
                raise InvalidRequest(said) if again else VersionConflict(said)
            if end.records:
                ready.append(_Ready(token.ledger_id, found, end))
        return ready

    async def _link(
        self, claimed: LogLock, ready: Sequence[_Ready], txn: KeyValue | None
    ) -> LinkResult:
        owned = claimed.owned

        def apply(state: LogState) -> LogState:
            linked, _ = self._laid(state, ready)
            if self._truncate_before:
                # An overwrite: what was there before goes in the same moment.
                linked = linked.with_truncated(
                    DLSN(state.last_segment + 1, 0, 0), state.next_sequence_id
                )
            return linked.released()

        async def share(state: LogState) -> Transaction:
            return self._share(state, ready, txn)

        # Nobody but this call releases the log under its epoch: that tells that it went through.
        await owned.change(apply, done=lambda state: not state.writer_id, share=share)
        last = owned.state.last_segment  # under our epoch nobody else adds any
        return LinkResult(False, last - len(ready) + 1, last) if ready else LinkResult(False, 0, 0)

    def _laid(
        self, state: LogState, ready: Sequence[_Ready]
    ) -> tuple[LogState, list[SegmentRecord]]:
        """The log with these as its last segments, and their records.

        A function of the state that the transaction compares: whoever wrote to the log meanwhile, neither a
        txid that nobody asked for nor the log's time goes back.
        """
        laid: list[SegmentRecord] = []
        for one in ready:
            end, own = one.end, not one.end.wants_txid
            base, rule = at_link(state, own, end.records, self._now_ms)
            if not own:
                end = end.with_txids(base, rule)
            if end.unordered or end.first_txid < state.last_txid:
                self._check_order(state, one, end)
                state = state.with_unordered()
            record = SegmentRecord(
                state.last_segment + 1,
                one.ledger_id,
                state.epoch,
                self._now_ms,
                time_floor_ms=self._now_ms,
                txid_base=base,
                txid_rule=rule,
            ).with_end(end, state, closed_ms=self._now_ms)
            state = state.with_linked(record.added)
            laid.append(record)
        return state, laid

    def _check_order(self, state: LogState, one: _Ready, end: SegmentEnd) -> None:
        if end.first_txid < state.last_txid and (
            self._options.max_txid_check and state.policy == GIVEN
        ):
            raise TransactionIdOutOfOrder(
                f'log "{self._name}" has the txid policy "strict": ledger {one.ledger_id} has txids '
                f"{end.first_txid} to {end.last_txid}, and would follow {state.last_txid}; nothing was linked"
            )
        if end.unordered and not end.greatest and state.searchable:
            raise TransactionIdOutOfOrder(
                f'log "{self._name}": the txids of ledger {one.ledger_id} go back, and an older program '
                "wrote it, so that no search for a txid would be right: write it again; nothing was linked"
            )

    def _share(
        self,
        state: LogState,
        ready: Sequence[_Ready],
        txn: KeyValue | None,
    ) -> Transaction:
        first, last = (state.last_segment + 1, state.last_segment + len(ready)) if ready else (0, 0)
        share = Transaction()
        _, laid = self._laid(state, ready)
        for one, record in zip(ready, laid, strict=True):
            share += one.found.link_share((self._log_id, record.segment)) + Transaction(
                (),
                (
                    Put(segment_key(self._log_id, record.segment), record.encode()),
                    Delete(unlinked_key(self._log_id, one.ledger_id)),
                ),
            )
        if self._truncate_before and state.last_segment >= state.first_segment:
            share += Transaction((), (Put(purge_key(self._log_id), b""),))
        if self._app:
            key = txn_key(self._log_id, self._app)
            note = AppVersion(
                self._version, self._identity, self._now_ms, first, last, self._content
            )
            as_read = Compare.mod_revision(key, 0 if txn is None else txn.mod_revision)
            share += Transaction((as_read,), (Put(key, note.encode()),))
        return share


def content_of(tokens: Sequence[SegmentToken]) -> LinkContent | None:
    """What is in these segments; None where one of them does not say."""
    found = LinkContent(0, 0)
    for token in tokens:
        if token.digest is None:
            return None
        found += LinkContent(token.records, token.digest)
    return found if tokens else None


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
