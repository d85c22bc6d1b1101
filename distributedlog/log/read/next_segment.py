"""The segment after the one that a reader reads: opened before the roll, entered before the close.

The writer registers the next segment while it still writes the present one. A reader of the present segment
opens the next one at that time and waits for its first entry, too.

That entry states the end of the present segment (`segment_record.py`). All entries up to it are confirmed,
and none follow. Besides the close of the segment, this is the only proof of the end (H173). An entry in the
next segment alone does not prove that this reader has received all entries before it.

The first entry has no such statement if an older program wrote it, and there is no entry if the segment stays
empty (H150). The reader then waits for the close.
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
    """The segment after ``previous``, which is in progress. `run` is a task of the reader."""

    def __init__(
        self,
        previous: SegmentRecord,
        state_watch: StateWatch,
        ledgers: SegmentEntryStore,
        *,
        wait_s: float,
        on_previous_end_known: Callable[[SegmentBegin], object],
    ) -> None:
        """Start to wait when `run` is started.

        Args:
            wait_s: The duration of one long poll, in seconds.
            on_previous_end_known: Called by `run` at most once, when `previous_end` is known.
        """
        self.previous_end: SegmentBegin | None = None
        """The statement of the first entry with the end of ``previous``. None until it is known."""
        self.record: SegmentRecord | None = None
        """The record of the segment, with its first sequence ID. Set together with `previous_end`."""
        self.ledger: SegmentEntryReader | None = None
        """The reader of the segment's ledger. `enter` passes it to the caller, who closes it."""
        self._previous = previous
        self._number = previous.segment + 1
        self._state_watch = state_watch
        self._ledgers = ledgers
        self._wait_s = wait_s
        self._on_previous_end_known = on_previous_end_known
        self._scope = trio.CancelScope()

    def proves_read_before(self, entry: int, sequence_id: int | None) -> bool:
        """Return whether all entries of ``previous`` were read, given that all before ``entry`` were.

        If the sequence IDs do not match, the result is False, and the reader waits for the log's metadata.

        Args:
            entry: The next entry to read.
            sequence_id: The sequence ID of the next record, as the reader counted. None if it has not.
        """
        previous_end = self.previous_end
        return (
            previous_end is not None
            and entry > previous_end.last_entry
            and sequence_id in (None, previous_end.sequence_id)
        )

    def enter(self) -> tuple[SegmentRecord, SegmentEntryReader]:
        """Return the segment's record and ledger. The caller closes the ledger."""
        record, ledger = self.record, self.ledger
        assert record is not None, "the begin is known"
        assert ledger is not None, "it is entered once"
        self.ledger = None
        return record, ledger

    def close(self) -> None:
        """Stop waiting for the segment. Idempotent."""
        self._scope.cancel()
        self._close_ledger()

    async def run(self) -> None:
        """Run until `previous_end` is known, or the wait is pointless, or `close` is called."""
        try:
            with self._scope:
                while True:
                    try:
                        await self._find_previous_end()
                        return
                    except DistributedLogError as error:
                        # The reader of the segment encounters the error again, once it may read it.
                        self._close_ledger()
                        if not error.retryable:
                            log.debug("wait for segment %d ended: %s", self._number, error)
                            return
                    await trio.sleep(RETRY_S)
        finally:
            if self.previous_end is None:
                self._close_ledger()

    async def _find_previous_end(self) -> None:
        state = await self._state_watch.wait_until(
            lambda state: state.last_segment >= self._number or state.sealed
        )
        if not state.first_open_segment < self._number <= state.last_segment:
            return  # the previous segment is closed, and the log's state has its end
        record = await self._state_watch.segment(self._number)
        if record.start_sequence_id != UNKNOWN or record.epoch != self._previous.epoch:
            return  # the previous segment was closed just now, or another writer registered this one
        self.ledger = ledger = await self._ledgers.open_tailing(record.ledger_id)
        first_entries: list[SegmentEntry] = []

        def keep_first(entries: Sequence[SegmentEntry]) -> int:
            first_entries.extend(entries[:1])
            return 0  # not consumed: the reader of the segment reads them

        while not first_entries:
            lac = await ledger.wait(-1, wait_s=self._wait_s, on_entries=keep_first)
            if lac >= 0 and not first_entries:
                first_entries.extend(await ledger.read(0, 0, bytes_max=1))
            elif ledger.closed and lac < 0:
                return
        assert first_entries[0].entry == 0, "entries arrive from the first one on"
        previous_end = segment_begin(first_entries[0].payload)
        if previous_end is None:
            return
        # The log time of a writer never decreases, so it is not below that of the previous segment.
        min_time_ms = max(record.time_floor_ms, self._previous.time_floor_ms)
        self.record = replace(
            record, start_sequence_id=previous_end.sequence_id, time_floor_ms=min_time_ms
        )
        self.previous_end = previous_end
        self._on_previous_end_known(previous_end)

    def _close_ledger(self) -> None:
        if self.ledger is not None:
            self.ledger.close()
            self.ledger = None
