"""What subscribers commit: noted at once, written together.

One task a namespace writes the positions that have moved, up to `POSITIONS_AT_ONCE` in a transaction. Each
is compared by its revision, and where that has changed looked at again: whoever subscribed since has raised
the generation, and what the former holder commits then is refused, not written late (H155).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import DistributedLogError, OutcomeUnknown, SubscriptionLost
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.primitives.backoff import Backoff
from ..interfaces.error_boundary import error_boundary
from ..model.position import Position
from ..model.segment_expiry import UNHELD
from .lease_session import Start
from .named_positions import PositionRecord, clock_now, hold_share

POSITIONS_AT_ONCE = 500

log = get_logger("distributedlog.log")


@dataclass(slots=True, eq=False)
class Committed:
    """One named position that one holder in this process moves."""

    what: str
    """The subscription, in errors."""
    log_id: int
    key: bytes
    revision: int
    """That changed the key last, as far as is known here. (Its version begins anew where it is made anew.)"""
    create_revision: int
    """Of the key: a position that was deleted and made again counts its generations anew."""
    written: PositionRecord
    hold: bool
    """Does it keep retention from what is after it?"""
    interval_s: float
    noted: Position | None = None
    """To be written; never goes back."""
    due_at: float = float("inf")
    error: DistributedLogError | None = None
    """Why nothing more is written."""
    _on_lost: Callable[[DistributedLogError], None] | None = None

    def when_lost(self, call: Callable[[DistributedLogError], None]) -> None:
        """Have ``call`` receive `error` once: when it is set, or now if it is already."""
        self._on_lost = call
        if self.error is not None:
            call(self.error)

    def note(self, position: Position) -> bool:
        """Everything before it was handled. Is it further than what was noted?"""
        stands = self.written.dlsn if self.noted is None else self.noted.dlsn
        if position.dlsn <= stands:
            return False
        self.noted = position
        return True

    def look(self, found: KeyValue | None) -> None:
        """Its key as it is now; sets `error` where that is another holder's."""
        if self.error is not None:
            return
        record = None if found is None else PositionRecord.decode(found.value)
        if (
            found is None
            or record is None
            or (found.create_revision, record.generation)
            != (self.create_revision, self.written.generation)
        ):
            why = "has no position any more: it was deleted, alone or with its log"
            if record is not None:
                why = (
                    f"has another holder: this one is number {self.written.generation}, "
                    f"{record.generation} subscribed since, it stands at {record.dlsn}"
                )
            self.fail(SubscriptionLost(f"{self.what} {why}"))
        elif found.mod_revision >= self.revision:
            self.revision, self.written = found.mod_revision, record

    def fail(self, error: DistributedLogError) -> None:
        """Nothing more of it is written."""
        if self.error is None:
            self.error = error
            if self._on_lost is not None:
                self._on_lost(error)


class PositionCommits:
    """The positions of one namespace's subscribers that have moved and are not written."""

    def __init__(self, metadata: Metadata, wall_ms: Callable[[], int], start: Start) -> None:
        self._metadata = metadata
        self._wall_ms = wall_ms
        self._start = start
        self._moved: dict[Committed, None] = {}
        self._runs = False
        self._wake = trio.Event()
        self._writing = trio.Lock()

    def note(self, one: Committed, position: Position) -> None:
        """To be written within its interval. Raises what ended it."""
        if one.error is not None:
            raise one.error.again()
        if one.note(position) and one not in self._moved:
            self._moved[one] = None
            one.due_at = trio.current_time() + one.interval_s
            if not self._runs:
                self._start(self._run)
                self._runs = True
            self._wake.set()

    async def write(self, some: Sequence[Committed]) -> int:
        """Write what has moved of these, now; how many had. Raises what the store raises; each one's `error`
        is its own."""
        async with self._writing:
            moved = [one for one in some if one in self._moved]
            for at in range(0, len(moved), POSITIONS_AT_ONCE):
                await self._write_some(moved[at : at + POSITIONS_AT_ONCE])
            return len(moved)

    async def look(self, one: Committed) -> None:
        """Is it still its holder's? Sets its `error`. Raises what the store raises, and `CorruptData`."""
        one.look(await self._metadata.get(one.key))

    def forget(self, one: Committed) -> None:
        """It is closed: nothing more of it is written."""
        self._moved.pop(one, None)

    async def _run(self) -> None:
        """Write all that has moved whenever one is due. A task of the namespace."""
        backoff = Backoff()
        with error_boundary("the task that commits positions", self._fail):
            while True:
                due_at = min((one.due_at for one in self._moved), default=float("inf"))
                with trio.move_on_at(due_at):
                    await self._wake.wait()
                    self._wake = trio.Event()
                    continue
                try:
                    await self.write(list(self._moved))
                    backoff.reset()
                except DistributedLogError as error:
                    log.info("positions are not committed yet: %s", error)
                    again_at = trio.current_time() + backoff.next_s()
                    for one in self._moved:
                        one.due_at = again_at

    def _fail(self, error: DistributedLogError) -> None:
        self._runs = False
        for one in list(self._moved):
            one.fail(error)
        self._moved.clear()

    async def _write_some(self, left: list[Committed]) -> None:
        now_ms = await clock_now(self._metadata) if any(one.hold for one in left) else 0
        while left := [one for one in left if self._wanted(one)]:
            asked: list[tuple[Committed, int, Position, PositionRecord]] = []
            shares: dict[int, Transaction] = {}
            for one in left:
                position, held_ms = one.noted, UNHELD
                assert position is not None, "what has moved was noted"
                if one.hold:
                    held_ms, share = await hold_share(
                        self._metadata, one.log_id, one.written.held_ms, now_ms
                    )
                    if share.operations:
                        shares[one.log_id] = share  # two positions of a log write the same
                record = PositionRecord(
                    position.dlsn,
                    self._wall_ms(),
                    position.sequence_id,
                    held_ms,
                    one.written.generation,
                )
                asked.append((one, one.revision, position, record))
            change = Transaction(
                tuple(Compare.mod_revision(one.key, seen) for one, seen, _, _ in asked),
                tuple(Put(one.key, record.encode()) for one, _, _, record in asked),
            )
            found: Sequence[KeyValue | None]
            try:
                reply = await self._metadata.transact(sum(shares.values(), change))
            except OutcomeUnknown:
                found = [await self._metadata.get(one.key) for one in left]
            else:
                if reply.succeeded:
                    for one, seen, position, record in asked:
                        if one.revision == seen:  # else somebody has looked since
                            one.revision, one.written = reply.revision, record
                        if one.noted is position:
                            self._moved.pop(one, None)
                        else:  # it moved on meanwhile
                            one.due_at = trio.current_time() + one.interval_s
                    return
                found = reply.current
            for one, item in zip(left, found, strict=False):
                try:
                    one.look(item)
                except DistributedLogError as error:  # the record is damaged: this one's affair
                    one.fail(error)

    def _wanted(self, one: Committed) -> bool:
        """Is there something of it to write? Somebody may have moved it by hand, and further."""
        if one.error is None and one.noted is not None and one.noted.dlsn > one.written.dlsn:
            return True
        self._moved.pop(one, None)
        return False
