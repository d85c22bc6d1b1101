"""The state of a log as its readers watch it: loaded once, then updated by a watch.

The watch is level-triggered (H29). Only the newest state counts, never the steps to it. A watch that has
fallen behind the metadata history reads the state and continues from there. If a reader cannot continue at
its position, `resolve_position` classifies the loss by the present state (H30).
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
    """The newest known state of one log. `open_state_watch` creates it."""

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
        """Whether the key of the state is deleted."""
        self.state = state
        self.error: DistributedLogError | None = None
        """`LogDeleted` once the log is deleted, or once its deletion has recorded the end. Before that,
        all its entries exist."""

    @property
    def incarnation(self) -> str:
        """The incarnation of the log with this name, 16 hex digits."""
        return incarnation_text(self._log_id)

    async def load(self) -> None:
        """Read the present state now, without waiting for the watch.

        Raises:
            LogDeleted: The log is deleted, or its deletion has started.
            DistributedLogError: The metadata could not be read, or the watch has ended with this error.
        """
        self._update(await self._metadata.get(state_key(self._log_id)))
        if self.error is None and self.state.deleting:
            # Not stored in `error`: readers continue until the deletion has recorded the end.
            raise _deleting_error(self.state)
        if self.error is not None:
            raise self.error.again()

    async def run(self) -> None:
        """Watch until cancelled, or until the log is deleted. Raises nothing, but sets `error` at the end."""
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
        """Wait until the state fulfills a condition, and return the state.

        Raises:
            LogDeleted: The log was deleted before.
            DistributedLogError: The watch has ended with this error.
        """
        while not condition(self.state):
            if self.error is not None:
                raise self.error.again()
            await self._changed.wait()
        return self.state

    def wake_waiters(self) -> None:
        """Let all waiting calls check their condition again."""
        self._notify_changed()

    async def segment(self, number: int) -> SegmentRecord:
        """Read the record of one segment.

        Raises:
            LogDeleted, LogTruncated: The segment was deleted (H30).
            NoSuchLedger: The record is missing although the segment should exist.
        """
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
                )  # no record is lost, so a reader with a known position continues
            raise resolution.error(self._name, held_position)
        return SegmentRecord.decode(stored.value)

    def held_position(self, dlsn: DLSN, sequence_id: int | None = None) -> HeldPosition:
        """Return a position of this log."""
        return HeldPosition(dlsn, self.incarnation, sequence_id)

    async def resolve_position(self, held_position: HeldPosition) -> PositionResolution:
        """Return the fate of the records from a position on, by the present state in the metadata."""
        self._update(await self._metadata.get(state_key(self._log_id)))
        if self._is_deleted and self.state.end is None:  # deleted before the watch reported the end
            lookup, namespace = LogLookup(), self._namespace
            if namespace is not None:
                name = self.state.name
                lookup = await look_up(self._metadata, namespace, name, self._log_id)
            return resolve_position(held_position, lookup)
        return resolve_position(held_position, LogLookup.of(self.state))

    def check_position(self, segment: int, entry: int, slot: int | None = None) -> None:
        """Raise an error if this entry may be truncated, so that the caller calls `resolve_position`.

        Called for each entry that is read.

        Args:
            slot: Check this slot of the entry. By default, an entry counts as existing if some part of it is
                not truncated.
        Raises:
            LogTruncated, LogDeleted: The entry may not exist any more.
        """
        if self.error is not None:
            raise self.error.again()
        first = self.state.truncated_to
        if segment < self.state.first_segment or (
            (segment, entry) < first[:2] if slot is None else (segment, entry, slot) < first
        ):
            raise self.truncated_error(DLSN(segment, entry, slot or 0))

    def truncated_error(self, requested: DLSN) -> DistributedLogError:
        """Return the error with the first position that is not truncated."""
        held_position = self.held_position(requested)
        return PositionResolution(PositionOutcome.TRUNCATED, self.state.earliest, None).error(
            self._name, held_position
        )

    async def _run_watch(self) -> None:
        """Run one watch. `run` handles its errors, and those of reading the state again."""
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
    """Read a log's state. To receive its changes, run the result.

    Args:
        namespace: Where to look up the end of a deleted log. None for no lookup.
    Raises:
        LogDeleted: The log is deleted, or its deletion has started.
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
    message = f'log "{state.name}" is being deleted by {state.owner or "an interrupted client"}'
    if state.end is None:
        return LogDeleted(f"{message}. Delete it again if the deletion was interrupted.")
    bound, end = "exactly" if state.end.is_exact else "at least", state.end
    return LogDeleted(
        f"{message}. It had {bound} {end.sequence_id} records, up to {end.dlsn}.",
        LogDeleted.encode_detail(str(end.dlsn), None, end.is_exact),
    )
