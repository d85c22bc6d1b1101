"""Following the segments of a log: which one is opened, closed, or cut off.

Level-triggered (H29): what is told next is the difference between the newest state and what was told, and
only segments that are new are read. Nothing waits in a queue: who is slow finds what is there by then.
"""

from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Literal

import trio

from ...runtime.declarations.options import check_wait
from ...runtime.interfaces.errors import AlreadyClosed, DistributedLogError, LogTruncated
from ..format.dlsn import DLSN
from ..interfaces.error_boundary import error_boundary
from ..model.log_state import LogState
from ..model.segment_record import SegmentRecord
from .state_watch import StateWatch


@dataclass(frozen=True, slots=True)
class SegmentChange:
    """What became of a log's segments."""

    kind: Literal["opened", "closed", "truncated", "sealed"]
    """A segment that was linked, or opened and closed before anybody looked, is ``closed`` at once."""
    segment: SegmentRecord | None = None
    """Of ``opened`` and ``closed``."""
    first_dlsn: DLSN | None = None
    """Of ``truncated``: the first position that is left."""


class SegmentWatch:
    """The changes of a log's segments, in order. Made by `Log.watch_segments`; for one task at a time."""

    def __init__(self, state_watch: StateWatch, first: int | None) -> None:
        self.name = state_watch.state.name
        self._state_watch = state_watch
        state = state_watch.state
        self._next_to_close = (
            state.first_open_segment if first is None else max(first, state.first_segment)
        )
        """The first segment whose end was not told."""
        self._last_opened = state.last_segment if first is None else self._next_to_close - 1
        self._truncated_to = state.truncated_to
        self._sealed = False
        self._scope = trio.CancelScope()
        self._closed = False

    async def next(self, wait_s: float | None = None) -> SegmentChange | None:
        """The next change; None when ``wait_s`` is over (None: no limit; 0: takes only what is here), or
        after the end of a sealed log was told.

        Raises `LogDeleted` when the log is deleted, `AlreadyClosed`.

        Raises: LogDeleted, QuorumUnreachable, InvalidRequest, AlreadyClosed.
        """
        check_wait(wait_s)
        await trio.lowlevel.checkpoint()
        deadline = trio.current_time() + (float("inf") if wait_s is None else wait_s)
        while True:
            if self._closed:
                raise AlreadyClosed(f'log "{self.name}": this watch of segments is closed')
            change = await self._next_change()
            if change is not None or self._sealed:
                return change
            known_state = self._state_watch.state
            with trio.move_on_at(deadline) as scope:
                await self._state_watch.wait_until(partial(self._has_changed, known_state))
            if scope.cancelled_caught:
                return None

    def _has_changed(self, known_state: LogState, newest: LogState) -> bool:
        return newest is not known_state or self._closed

    async def _next_change(self) -> SegmentChange | None:
        """Something that the newest state has and nobody was told of."""
        state = self._state_watch.state
        if state.truncated_to > self._truncated_to:
            self._truncated_to = state.truncated_to
            return SegmentChange("truncated", first_dlsn=state.earliest)
        # What went before its end was told is cut off: that was told.
        number = self._next_to_close = max(self._next_to_close, state.first_segment)
        try:
            if number < state.first_open_segment:
                record = await self._state_watch.segment(number)
                self._next_to_close, self._last_opened = number + 1, max(self._last_opened, number)
                return SegmentChange("closed", record)
            number = max(self._last_opened + 1, state.first_open_segment)
            if number <= state.last_segment:
                record = await self._state_watch.segment(number)
                self._last_opened = number
                return SegmentChange("opened", record)
        except LogTruncated:
            return await self._next_change()  # by a newer state, which was read for the error
        if state.sealed and not self._sealed:
            self._sealed = True
            return SegmentChange("sealed")
        return None

    async def aclose(self) -> None:
        """Stop following. Idempotent.

        Raises: nothing.
        """
        self._close()
        await trio.lowlevel.checkpoint()

    def __aiter__(self) -> "SegmentWatch":
        return self

    async def __anext__(self) -> SegmentChange:
        change = await self.next()
        if change is None:
            raise StopAsyncIteration
        return change

    async def __aenter__(self) -> "SegmentWatch":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._close()

    async def run(self) -> None:
        """Follow until closed. A task of the namespace."""
        try:
            with (
                self._scope,
                error_boundary(f'a watch of segments of log "{self.name}"', self._set_error),
            ):
                await self._state_watch.run()
        finally:
            self._closed = self._closed or self._state_watch.error is None
            self._state_watch.wake_waiters()

    def _set_error(self, error: DistributedLogError) -> None:
        self._state_watch.error = error

    def _close(self) -> None:
        self._closed = True
        self._scope.cancel()
        self._state_watch.wake_waiters()
