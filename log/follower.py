"""A log's state as its readers follow it: loaded once, then pushed by a watch.

Level-triggered (H29): what counts is the newest state, never the steps to it; a watch that fell behind the
history reads the state and goes on from there.
"""

from collections.abc import Callable

import trio

from ..metadata.interface import Metadata
from ..metadata.transaction import KeyValue
from ..runtime.errors import Compacted, DistributedLogError, LogNotFound, LogTruncated, NoSuchLedger
from .keys import segment_key, state_key
from .segments import SegmentRecord
from .state import LogState

RETRY_S = 0.2


class StateFollower:
    """The newest state of one log, as far as it is known here. Made by `follow`."""

    def __init__(self, metadata: Metadata, name: str, state: LogState, revision: int) -> None:
        self._metadata = metadata
        self._log_id = state.log_id
        self._name = name
        self._revision = revision
        self._changed = trio.Event()
        self.state = state
        self.error: DistributedLogError | None = _deleted(state) if state.deleting else None
        """`LogNotFound` once the log is deleted, or being so."""

    async def load(self) -> None:
        """Read the state again. Raises `LogNotFound`."""
        found = await self._metadata.get(state_key(self._log_id))
        self._take(found)
        if self.error is not None:
            raise self.error.again()

    async def run(self) -> None:
        """Follow until cancelled, or the log is deleted. Raises nothing: `error` says why it ended."""
        while self.error is None:
            try:
                await self._follow()
            except DistributedLogError as error:
                if not error.retryable:
                    self.error = error
                    self._tell()
                    return
                await trio.sleep(RETRY_S)

    async def until(self, holds: Callable[[LogState], bool]) -> LogState:
        """Wait for a state. Raises `LogNotFound` when the log is deleted meanwhile."""
        while True:
            if self.error is not None:
                raise self.error.again()
            if holds(self.state):
                return self.state
            await self._changed.wait()

    def wake(self) -> None:
        """Have whoever waits look again."""
        self._tell()

    async def segment(self, number: int) -> SegmentRecord:
        """One segment's record. Raises `LogNotFound` or `LogTruncated` when it is gone (H30)."""
        found = await self._metadata.get(segment_key(self._log_id, number))
        if found is None:
            raise await self.explain(
                NoSuchLedger(f'log "{self._name}" has no segment {number}'), number
            )
        return SegmentRecord.decode(found.value)

    async def explain(self, error: DistributedLogError, segment: int) -> DistributedLogError:
        """What a miss at a bookie or in the store means under the log's *current* state (H30).

        Deleted and truncated are definite answers; what is left is the miss itself, and data loss.
        """
        found = await self._metadata.get(state_key(self._log_id))
        self._take(found)
        if self.error is not None:
            return self.error
        if segment < self.state.first_segment:
            return self.truncated()
        return error

    def check_position(self, segment: int, entry: int, slot: int | None = None) -> None:
        """Raise `LogTruncated` when the entry at this position, or its slot, has been cut off meanwhile.

        In a log that is being deleted segments go front first too: that is `LogNotFound`.
        """
        if self.error is not None:
            raise self.error.again()
        first = self.state.truncated_to
        if segment < self.state.first_segment or (
            (segment, entry) < first[:2] if slot is None else (segment, entry, slot) < first
        ):
            raise self.truncated()

    def truncated(self, more: str = "") -> LogTruncated:
        """The error that names the first position that is left."""
        first = self.state.earliest
        return LogTruncated(
            f'log "{self._name}" was truncated: its first position is {first}; at="earliest" begins there'
            f"{more}",
            str(first),
        )

    async def _follow(self) -> None:
        """One watch. What raises here, reading the state anew as well, is `run`'s to judge."""
        key = state_key(self._log_id)
        try:
            async with self._metadata.watch(
                key, key + b"\x00", after_revision=self._revision
            ) as watch:
                while self.error is None:
                    batch = await watch.next()
                    for event in batch.events:
                        self._take(event.item if event.kind == "put" else None)
        except Compacted:
            self._take(await self._metadata.get(key))

    def _take(self, found: KeyValue | None) -> None:
        if found is None:
            self.error = _gone(self._name)
        elif found.mod_revision > self._revision:
            try:
                self.state = LogState.decode(found.value)
                if self.state.deleting:
                    self.error = _deleted(self.state)
            except DistributedLogError as error:
                self.error = error
            self._revision = found.mod_revision
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


async def follow(metadata: Metadata, log_id: int, name: str) -> StateFollower:
    """Read a log's state; who wants to know of its changes runs what this gives. Raises `LogNotFound`."""
    found = await metadata.get(state_key(log_id))
    if found is None:
        raise _gone(name)
    follower = StateFollower(metadata, name, LogState.decode(found.value), found.mod_revision)
    if follower.error is not None:
        raise follower.error
    return follower


def _gone(name: str) -> LogNotFound:
    return LogNotFound(f'log "{name}" has been deleted')


def _deleted(state: LogState) -> LogNotFound:
    said = f'log "{state.name}" is being deleted by {state.owner or "nobody any more"}'
    if state.end is None:
        return LogNotFound(f"{said}; where that was cut short, deleting it again finishes it")
    at = "exactly" if state.end.exact else "at least"
    return LogNotFound(
        f"{said}: it had {at} {state.end.sequence_id} records, up to {state.end.dlsn}"
    )
