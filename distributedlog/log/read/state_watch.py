"""A log's state as its readers follow it: loaded once, then pushed by a watch.

Level-triggered (H29): what counts is the newest state, never the steps to it; a watch that fell behind the
history reads the state and goes on from there. What a reader that cannot go on has met is
`resolve_position`'s to say, by the state as it is then (H30).
"""

from collections.abc import Callable

import trio

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import KeyValue
from ...runtime.interfaces.errors import Compacted, DistributedLogError, LogDeleted, NoSuchLedger
from ..format.dlsn import DLSN
from ..model.deleted_log_lookup import look_up
from ..model.log_keys import incarnation_text, segment_key, state_key
from ..model.log_state import LogState
from ..model.position_outcome import (
    HeldPosition,
    LogLookup,
    PositionOutcome,
    PositionResolution,
    resolve_position,
)
from ..model.segment_record import SegmentRecord

RETRY_S = 0.2


class StateWatch:
    """The newest state of one log, as far as it is known here. Made by `open_state_watch`."""

    def __init__(
        self, metadata: Metadata, namespace: str | None, name: str, state: LogState, revision: int
    ) -> None:
        self._metadata = metadata
        self._namespace = namespace
        self._log_id = state.log_id
        self._name = name
        self._revision = revision
        self._changed = trio.Event()
        self._is_deleted = False
        """Is its state's key deleted?"""
        self.state = state
        self.error: DistributedLogError | None = None
        """`LogDeleted` once the log is deleted, or is being so and its end is noted: until then all that it
        has is there."""

    @property
    def incarnation(self) -> str:
        """Which log of its name it is."""
        return incarnation_text(self._log_id)

    async def load(self) -> None:
        """Read the state again. Raises `LogDeleted`, also where that has only begun."""
        self._update(await self._metadata.get(state_key(self._log_id)))
        if self.error is None and self.state.deleting:
            raise _deleting_error(self.state)
        if self.error is not None:
            raise self.error.again()

    async def run(self) -> None:
        """Follow until cancelled, or the log is deleted. Raises nothing: `error` says why it ended."""
        while self.error is None:
            try:
                await self._run_watch()
            except DistributedLogError as error:
                if not error.retryable:
                    self.error = error
                    self._notify_changed()
                    return
                await trio.sleep(RETRY_S)

    async def wait_until(self, condition: Callable[[LogState], bool]) -> LogState:
        """Wait for a state. Raises `LogDeleted` when the log is deleted and it did not come before."""
        while not condition(self.state):
            if self.error is not None:
                raise self.error.again()
            await self._changed.wait()
        return self.state

    def wake_waiters(self) -> None:
        """Have whoever waits look again."""
        self._notify_changed()

    async def segment(self, number: int) -> SegmentRecord:
        """One segment's record. Raises `LogDeleted` or `LogTruncated` when it is gone (H30)."""
        stored = await self._metadata.get(segment_key(self._log_id, number))
        if stored is None:
            held_position = self.held_position(DLSN(number, 0, 0))
            resolution = await self.resolve_position(held_position)
            if (
                resolution.outcome is PositionOutcome.CONTINUE
                and resolution.position == held_position.dlsn
            ):
                raise NoSuchLedger(f'log "{self._name}" has no segment {number}')
            if resolution.outcome is PositionOutcome.CONTINUE:
                raise self.truncated_error(
                    held_position.dlsn
                )  # nothing is lost: who knows where he is goes on
            raise resolution.error(self._name, held_position)
        return SegmentRecord.decode(stored.value)

    def held_position(self, dlsn: DLSN, sequence_id: int | None = None) -> HeldPosition:
        """A position of this log."""
        return HeldPosition(dlsn, self.incarnation, sequence_id)

    async def resolve_position(self, held_position: HeldPosition) -> PositionResolution:
        """What has become of the log, and of the records from this position on, by its *current* state."""
        self._update(await self._metadata.get(state_key(self._log_id)))
        if self._is_deleted and self.state.end is None:  # it went faster than was told
            lookup, namespace = LogLookup(), self._namespace
            if namespace is not None:
                name = self.state.name
                lookup = await look_up(self._metadata, namespace, name, self._log_id)
            return resolve_position(held_position, lookup)
        return resolve_position(held_position, LogLookup.of(self.state))

    def check_position(self, segment: int, entry: int, slot: int | None = None) -> None:
        """Raise `LogTruncated` or `LogDeleted` where the entry here may be cut off: it is time to
        `resolve_position`.

        Or its slot, if one is given. Called for each entry that is read.
        """
        if self.error is not None:
            raise self.error.again()
        first = self.state.truncated_to
        if segment < self.state.first_segment or (
            (segment, entry) < first[:2] if slot is None else (segment, entry, slot) < first
        ):
            raise self.truncated_error(DLSN(segment, entry, slot or 0))

    def truncated_error(self, requested: DLSN) -> DistributedLogError:
        """The error that names the first position that is left."""
        held_position = self.held_position(requested)
        return PositionResolution(PositionOutcome.TRUNCATED, self.state.earliest, None).error(
            self._name, held_position
        )

    async def _run_watch(self) -> None:
        """One watch. What raises here, reading the state anew as well, is `run`'s to judge."""
        key = state_key(self._log_id)
        try:
            async with self._metadata.watch(
                key, key + b"\x00", after_revision=self._revision
            ) as watch:
                while self.error is None:
                    batch = await watch.next_batch()
                    for event in batch.events:
                        self._update(event.item if event.kind == "put" else None)
        except Compacted:
            self._update(await self._metadata.get(key))

    def _update(self, stored: KeyValue | None) -> None:
        if stored is None:
            self._is_deleted = True
            self.error = self.error or _log_deleted_error(self._name)
        elif stored.mod_revision > self._revision:
            try:
                self.state = LogState.decode(stored.value)
                if self.state.end is not None:
                    self.error = _deleting_error(self.state)
            except DistributedLogError as error:
                self.error = error
            self._revision = stored.mod_revision
        self._notify_changed()

    def _notify_changed(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


async def open_state_watch(
    metadata: Metadata, log_id: int, name: str, namespace: str | None = None
) -> StateWatch:
    """Read a log's state; who wants to know of its changes runs what this gives. Raises `LogDeleted`.

    Without ``namespace`` nobody looks where a log ended that is gone.
    """
    stored = await metadata.get(state_key(log_id))
    if stored is None:
        raise _log_deleted_error(name)
    state = LogState.decode(stored.value)
    if state.deleting:
        raise _deleting_error(state)
    return StateWatch(metadata, namespace, name, state, stored.mod_revision)


def _log_deleted_error(name: str) -> LogDeleted:
    return LogDeleted(f'log "{name}" has been deleted')


def _deleting_error(state: LogState) -> LogDeleted:
    message = f'log "{state.name}" is being deleted by {state.owner or "nobody any more"}'
    if state.end is None:
        return LogDeleted(f"{message}; where that was cut short, deleting it again finishes it")
    bound, end = "exactly" if state.end.is_exact else "at least", state.end
    return LogDeleted(
        f"{message}: it had {bound} {end.sequence_id} records, up to {end.dlsn}",
        LogDeleted.packed(str(end.dlsn), None, end.is_exact),
    )
