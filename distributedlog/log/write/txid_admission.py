"""The txids of one writer's records: which records are accepted, and what is sent before a lower txid.

One object for all calls that take records (`LogWriter`, `SequencedWriter`): they share the greatest txid so
far. Behind a proxy, which fills in omitted txids, all records of an entry have a txid, or none has.
"""

from collections.abc import Callable, Sequence

from ..format.record import TXID_MAX
from ..model.log_state import BYTES, GIVEN, LogState
from ..model.txid_policy import NONE_IS_FINE, TxidAssigner
from .entry_batch import EntryBatch
from .record_validation import validate_record, validate_record_set
from .send_queue import SendQueue
from .writer_ownership import WriterOwnership


class TxidAdmission:
    """Accepts the txids of one writer's records. `LogWriter.submit` reads `source` directly."""

    __slots__ = (
        "_is_proxied", "_ownership", "_pipeline", "back_noted", "checks", "source",
    )  # fmt: skip

    def __init__(
        self,
        state: LogState,
        pipeline: SendQueue,
        ownership: WriterOwnership,
        *,
        wall_ms: Callable[[], int],
        checked: bool,
    ) -> None:
        """``checked``: the option ``max_txid_check``."""
        self.source = TxidAssigner(state.policy, state.last_txid, wall_ms, pipeline.name)
        self.checks = checked and state.policy == GIVEN
        """Is a given txid below the last one refused?"""
        self.back_noted = state.unordered_once
        """Does the log's state record that its txids decrease?"""
        self._pipeline = pipeline
        self._ownership = ownership
        self._is_proxied = pipeline.sink.append_after is not None
        self._set_plain()

    def _set_plain(self) -> None:
        """Set which records `submit` accepts without `validate_record`; not the first given txid of an empty
        log."""
        given = self._pipeline.given
        self.source.draws = not (self._is_proxied and given)
        fine = self.source.rule != BYTES and self.source.last >= 0
        self.source.most = TXID_MAX if fine and (given or not self._is_proxied) else NONE_IS_FINE

    def begin_kind(self, *, given: bool) -> None:
        """Records with a txid follow, or records without; behind proxies no entry has both."""
        pipeline = self._pipeline
        if self._is_proxied and pipeline.given != given:
            if pipeline.batch.txids:
                pipeline.close_batch()
                pipeline.raise_if_over()  # what it sent may have met the writer's end
            pipeline.given = given
            self._set_plain()

    def took_given(
        self, batch: EntryBatch, first: int, last: int, greatest: int, *, unordered: bool = False
    ) -> None:
        """Update the greatest txid for given ones of a batch, and mark a batch where one decreases."""
        source = self.source
        if unordered or first < source.last:
            batch.unordered = True
            source.last = max(source.last, greatest)
        else:
            source.last = last
        if self.source.most < 0:
            self._set_plain()

    async def admit(self, txid: object, payload: object) -> tuple[int | None, bytes]:
        """A record that is not plainly fine; None for a txid that the log fills in."""
        source = self.source
        floor = source.last if self.checks else 0
        own, plain = validate_record(txid, payload, floor, self._pipeline.name, source.rule)
        if own is not None and own < source.last:
            await self.note_unordered()
        return own, plain

    async def admit_set(
        self, txids: Sequence[object], payloads: Sequence[object]
    ) -> tuple[int | None, list[bytes]]:
        """As `validate_record`, of a set."""
        source = self.source
        floor = source.last if self.checks else 0
        own, plain = validate_record_set(txids, payloads, floor, self._pipeline.name, source.rule)
        if own is not None and own < source.last:
            await self.note_unordered()
        return own, plain

    async def note_unordered(self) -> None:
        """Record in the log's state that txids decrease, before the first lower one is sent.

        Programs that would close its segments by their last txid cannot change the log afterwards.
        """
        if not self.back_noted:
            await self._ownership.change_state(
                LogState.with_unordered, lambda state: state.unordered_once
            )
            self.back_noted = True
