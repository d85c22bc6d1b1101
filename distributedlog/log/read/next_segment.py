"""The segment after the one at whose end a reader is: opened before the roll, entered without its close.

The next segment is registered while this one is written on. So a reader of this one opens it, too, and waits
there as well. Its first entry says where this one ended (`segment_record.py`): up to there all is confirmed,
and nothing comes after. That is the only proof but the close (H173): an entry in the next segment alone does
not say that this reader has heard of all before it. Where the entry says nothing, for an older program wrote
it, or the next segment stays empty (H150), the reader waits for the close, as ever.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import trio

from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.log_lines import get_logger
from ..interfaces.segment_store import SegmentEntry, SegmentEntryReader, SegmentEntryStore
from ..model.segment_record import UNKNOWN, SegmentBegin, SegmentRecord, segment_begin
from .state_watch import RETRY_S, StateWatch

log = get_logger("distributedlog.log")


class NextSegment:
    """What is known of the segment after ``before``, which is in progress. `run` is a task of its reader."""

    def __init__(
        self,
        previous: SegmentRecord,
        state_watch: StateWatch,
        ledgers: SegmentEntryStore,
        *,
        wait_s: float,
        on_begin_known: Callable[[SegmentBegin], object],
    ) -> None:
        """``on_begun`` is called at most once, by `run`, when `begin` is known."""
        self.begin: SegmentBegin | None = None
        """Where ``before`` ended; None: not known yet."""
        self.record: SegmentRecord | None = None
        """Its record, numbered, once `begin` is known."""
        self.ledger: SegmentEntryReader | None = None
        """Whoever enters the segment takes it, and closes it."""
        self._previous = previous
        self._number = previous.segment + 1
        self._state_watch = state_watch
        self._ledgers = ledgers
        self._wait_s = wait_s
        self._on_begin_known = on_begin_known
        self._scope = trio.CancelScope()

    def proves_read_before(self, entry: int, sequence_id: int | None) -> bool:
        """Is ``before`` certainly read to its end, by who has had all before ``entry`` of it?

        ``sequence_id``: of the record that comes next, as the reader has counted; None: it has not. Where the
        two do not agree the log's own word is waited for.
        """
        begin = self.begin
        return (
            begin is not None
            and entry > begin.last_entry
            and sequence_id in (None, begin.sequence_id)
        )

    def enter(self) -> tuple[SegmentRecord, SegmentEntryReader]:
        """The segment, for whoever enters it."""
        record, ledger = self.record, self.ledger
        assert record is not None, "its begin is known"
        assert ledger is not None, "it is entered once"
        self.ledger = None
        return record, ledger

    def close(self) -> None:
        """Wait for it no longer. Idempotent."""
        self._scope.cancel()
        self._close_ledger()

    async def run(self) -> None:
        """Until `begin` is known, or there is nothing to be known, or `close`."""
        try:
            with self._scope:
                while True:
                    try:
                        await self._find_begin()
                        return
                    except DistributedLogError as error:
                        # What is wrong is met again by who reads it when the log says that it may be read.
                        self._close_ledger()
                        if not error.retryable:
                            log.debug("segment %d is waited for: %s", self._number, error)
                            return
                    await trio.sleep(RETRY_S)
        finally:
            if self.begin is None:
                self._close_ledger()

    async def _find_begin(self) -> None:
        state = await self._state_watch.wait_until(
            lambda state: state.last_segment >= self._number or state.sealed
        )
        if not state.first_open_segment < self._number <= state.last_segment:
            return  # this one is closed: the log says all there is to know
        record = await self._state_watch.segment(self._number)
        if record.start_sequence_id != UNKNOWN or record.epoch != self._previous.epoch:
            return  # closed since, or not by the writer of this one
        self.ledger = ledger = await self._ledgers.follow(record.ledger_id)
        first_entries: list[SegmentEntry] = []

        def look(entries: Sequence[SegmentEntry]) -> int:
            first_entries.extend(entries[:1])
            return 0  # they are for whoever reads the segment

        while not first_entries:
            lac = await ledger.wait(-1, wait_s=self._wait_s, on_entries=look)
            if lac >= 0 and not first_entries:
                first_entries.extend(await ledger.read(0, 0, bytes_max=1))
            elif ledger.closed and lac < 0:
                return
        assert first_entries[0].entry == 0, "entries come from the first one on"
        begin = segment_begin(first_entries[0].payload)
        if begin is None:
            return
        # Whoever wrote both never lets time go back, so an entry of this one is not before that one's.
        min_time_ms = max(record.time_floor_ms, self._previous.time_floor_ms)
        self.record = replace(
            record, start_sequence_id=begin.sequence_id, time_floor_ms=min_time_ms
        )
        self.begin = begin
        self._on_begin_known(begin)

    def _close_ledger(self) -> None:
        if self.ledger is not None:
            self.ledger.close()
            self.ledger = None
