"""Watch the segments of a log: opened, closed and truncated segments.

The watch is level-triggered (H29): the next change is the difference between the newest state and the
reported one, and only new segments are read. Changes are not queued, so a slow caller receives the present
state.
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
    """A change of a log's segments."""

    kind: Literal["opened", "closed", "truncated", "sealed"]
    """A linked segment, or one that was opened and closed between two calls, is reported only as
    ``closed``."""
    segment: SegmentRecord | None = None
    """The segment, for ``opened`` and ``closed``."""
    first_dlsn: DLSN | None = None
    """The first position that is not truncated, for ``truncated``."""


class SegmentWatch:
    """The changes of a log's segments, in order.

    `Log.watch_segments` creates it. Only one task may use it at a time.
    """

    def __init__(self, state_watch: StateWatch, first: int | None) -> None:
        self.name = state_watch.state.name
        self._state_watch = state_watch
        state = state_watch.state
        self._next_to_close = (
            state.first_open_segment if first is None else max(first, state.first_segment)
        )
        """The first segment whose close was not reported."""
        self._last_opened = state.last_segment if first is None else self._next_to_close - 1
        self._truncated_to = state.truncated_to
        self._sealed = False
        self._scope = trio.CancelScope()
        self._closed = False

    async def next(self, wait_s: float | None = None) -> SegmentChange | None:
        """Return the next change, waiting for it if necessary.

        `LogDeleted` is raised when the log is deleted.

        Args:
            wait_s: The longest wait in seconds. None for no limit, 0 to return only a change that is already
                known.
        Returns:
            The change. None after ``wait_s``, or after the seal of the log was reported.

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
        """Return a change of the newest state that was not reported yet."""
        state = self._state_watch.state
        if state.truncated_to > self._truncated_to:
            self._truncated_to = state.truncated_to
            return SegmentChange("truncated", first_dlsn=state.earliest)
        # Segments deleted before their close was reported were reported as truncated.
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
            return await self._next_change()  # the lookup for the error read a newer state
        if state.sealed and not self._sealed:
            self._sealed = True
            return SegmentChange("sealed")
        return None

    async def aclose(self) -> None:
        """Stop watching. Idempotent.

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
        """Watch until closed. Runs in a task of the namespace."""
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
