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
    """The newest state of one log, as far as it is known here. Made by `follow`."""

    def __init__(
        self, metadata: Metadata, namespace: str | None, name: str, state: LogState, revision: int
    ) -> None:
        self._metadata = metadata
        self._namespace = namespace
        self._log_id = state.log_id
        self._name = name
        self._revision = revision
        self._changed = trio.Event()
        self._gone = False
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
        self._take(await self._metadata.get(state_key(self._log_id)))
        if self.error is None and self.state.deleting:
            raise _deleted(self.state)
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
        """Wait for a state. Raises `LogDeleted` when the log is deleted and it did not come before."""
        while not holds(self.state):
            if self.error is not None:
                raise self.error.again()
            await self._changed.wait()
        return self.state

    def wake(self) -> None:
        """Have whoever waits look again."""
        self._tell()

    async def segment(self, number: int) -> SegmentRecord:
        """One segment's record. Raises `LogDeleted` or `LogTruncated` when it is gone (H30)."""
        found = await self._metadata.get(segment_key(self._log_id, number))
        if found is None:
            held = self.held(DLSN(number, 0, 0))
            verdict = await self.meet(held)
            if verdict.met is PositionOutcome.GO_ON and verdict.at == held.dlsn:
                raise NoSuchLedger(f'log "{self._name}" has no segment {number}')
            if verdict.met is PositionOutcome.GO_ON:
                raise self.truncated(held.dlsn)  # nothing is lost: who knows where he is goes on
            raise verdict.error(self._name, held)
        return SegmentRecord.decode(found.value)

    def held(self, dlsn: DLSN, sequence_id: int | None = None) -> HeldPosition:
        """A position of this log."""
        return HeldPosition(dlsn, self.incarnation, sequence_id)

    async def meet(self, held: HeldPosition) -> PositionResolution:
        """What has become of the log, and of the records from this position on, by its *current* state."""
        self._take(await self._metadata.get(state_key(self._log_id)))
        if self._gone and self.state.end is None:  # it went faster than was told
            found, namespace = LogLookup(), self._namespace
            if namespace is not None:
                name = self.state.name
                found = await look_up(self._metadata, namespace, name, self._log_id)
            return resolve_position(held, found)
        return resolve_position(held, LogLookup.of(self.state))

    def check_position(self, segment: int, entry: int, slot: int | None = None) -> None:
        """Raise `LogTruncated` or `LogDeleted` where the entry here may be cut off: it is time to `meet`.

        Or its slot, if one is given. Called for each entry that is read.
        """
        if self.error is not None:
            raise self.error.again()
        first = self.state.truncated_to
        if segment < self.state.first_segment or (
            (segment, entry) < first[:2] if slot is None else (segment, entry, slot) < first
        ):
            raise self.truncated(DLSN(segment, entry, slot or 0))

    def truncated(self, wanted: DLSN) -> DistributedLogError:
        """The error that names the first position that is left."""
        held = self.held(wanted)
        return PositionResolution(PositionOutcome.TRUNCATED, self.state.earliest, None).error(
            self._name, held
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
            self._gone = True
            self.error = self.error or _gone(self._name)
        elif found.mod_revision > self._revision:
            try:
                self.state = LogState.decode(found.value)
                if self.state.end is not None:
                    self.error = _deleted(self.state)
            except DistributedLogError as error:
                self.error = error
            self._revision = found.mod_revision
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


async def follow(
    metadata: Metadata, log_id: int, name: str, namespace: str | None = None
) -> StateWatch:
    """Read a log's state; who wants to know of its changes runs what this gives. Raises `LogDeleted`.

    Without ``namespace`` nobody looks where a log ended that is gone.
    """
    found = await metadata.get(state_key(log_id))
    if found is None:
        raise _gone(name)
    state = LogState.decode(found.value)
    if state.deleting:
        raise _deleted(state)
    return StateWatch(metadata, namespace, name, state, found.mod_revision)


def _gone(name: str) -> LogDeleted:
    return LogDeleted(f'log "{name}" has been deleted')


def _deleted(state: LogState) -> LogDeleted:
    said = f'log "{state.name}" is being deleted by {state.owner or "nobody any more"}'
    if state.end is None:
        return LogDeleted(f"{said}; where that was cut short, deleting it again finishes it")
    at, end = "exactly" if state.end.exact else "at least", state.end
    return LogDeleted(
        f"{said}: it had {at} {end.sequence_id} records, up to {end.dlsn}",
        LogDeleted.packed(str(end.dlsn), None, end.exact),
    )
