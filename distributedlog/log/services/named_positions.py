"""Named positions: where each subscriber of a log goes on. They never go back.

A position is the DLSN of the next record to read, and whether that was proved: by a `Position`, never by an
address that somebody wrote down, which storing does not make a proof (H141). It belongs to one incarnation:
its key goes by the log's id, so a log that is made again begins without any.

One that *holds* keeps retention (`segment_expiry.py`) from what is at and after it, for a time that counts on
retention's own clock. Nothing is to pass a hold that was promised: a new one writes the log's stamps again,
and a retention that looked before finds them changed.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import Compare, Delete, Put, Transaction
from ...runtime.declarations.options import quoted
from ...runtime.interfaces.errors import InvalidRequest, LogNotFound, LogRecreated, OutcomeUnknown
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import NUMBER_MAX, check_stored, number, row, verify_round_trip
from ..format.dlsn import DLSN
from ..model.lock_record import LockRecord
from ..model.log_keys import incarnation_text, position_key, segment_key, state_key, subscriber_key
from ..model.log_state import LogState, decode_fields
from ..model.position import Position
from ..model.segment_expiry import (
    CLOCK_KEY,
    HOLD_MAX_S_MIN,
    NO_HOLD,
    Stamps,
    decode_clock,
    stamps_key,
)
from ..model.segment_record import SegmentRecord

FORMAT = 4
"""4: with a generation; who was never subscribed to is written as format 3."""
_WITHOUT_GENERATION = 3
NAME_BYTES_MAX = 255


UNPROVEN = -1
_POSITION = row(row(number(), number(), number()), number())
_SEQUENCE_ID = number(UNPROVEN)
_HELD_MS_FORM = number(NO_HOLD)
_GENERATION_FORM = number(0, NUMBER_MAX // 2)
"""Nobody counts so far; from a value that lies there is no next one."""


@dataclass(frozen=True, slots=True)
class PositionRecord:
    """The value of ``log/<id>/position/<name>``."""

    dlsn: DLSN
    """The next record to read, or where it will be. What a subscriber commits may be after a segment's last
    record; else that is the next segment's first."""
    moved_ms: int
    """Wall clock of who moved it; for people."""
    sequence_id: int = UNPROVEN
    """Of the next record, from a `Position`, which proves it; -1: only an address, as in format 1."""
    held_ms: int = NO_HOLD
    """The clock of retention when it was last moved, while it holds retention up; -1: it does not."""
    generation: int = 0
    """How often it was subscribed to. Who subscribes raises it, and each commit asks for its own (H155)."""

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """As a packed list with a format number."""
        fields = [list(self.dlsn), self.moved_ms, self.sequence_id, self.held_ms]
        if not self.generation:
            return pack([_WITHOUT_GENERATION, *fields])
        return pack([FORMAT, *fields, self.generation])

    @classmethod
    def decode(cls, value: bytes) -> "PositionRecord":
        """Raises `CorruptData`, or `UnsupportedFormat`."""
        fields = decode_fields(value, FORMAT, 3, "a position")
        dlsn, moved_ms = check_stored(fields[:2], _POSITION, "a position")
        sequence_id = (
            check_stored(fields[2], _SEQUENCE_ID, "a position") if len(fields) > 2 else UNPROVEN
        )
        held_ms = (
            check_stored(fields[3], _HELD_MS_FORM, "a position") if len(fields) > 3 else NO_HOLD
        )
        generation = (
            check_stored(fields[4], _GENERATION_FORM, "a position") if len(fields) > 4 else 0
        )
        return cls(DLSN(*dlsn), moved_ms, sequence_id, held_ms, generation)


class Positions:
    """The positions of one log. Made by `Log.positions`; asks the store at each call."""

    def __init__(
        self,
        metadata: Metadata,
        resolve_log_id: Callable[[], Awaitable[int]],
        clock_ms: Callable[[], int],
    ) -> None:
        self._metadata = metadata
        self._resolve_log_id = resolve_log_id
        self._clock_ms = clock_ms

    async def get(self, name: str) -> DLSN | None:
        """Where this subscriber goes on; None: it has no position.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        item = await self._metadata.get(
            position_key(await self._resolve_log_id(), check_position_name(name))
        )
        return None if item is None else PositionRecord.decode(item.value).dlsn

    async def proven(self, name: str) -> Position | None:
        """Where this subscriber goes on, with its proof: ``open_reader(position=…)``.

        None: it has no position, or was last moved to a bare DLSN.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        log_id = await self._resolve_log_id()
        item = await self._metadata.get(position_key(log_id, check_position_name(name)))
        if item is None:
            return None
        record = PositionRecord.decode(item.value)
        if record.sequence_id == UNPROVEN:
            return None
        return Position(incarnation_text(log_id), record.dlsn, record.sequence_id)

    async def advance(self, name: str, to: Position | DLSN, *, hold: bool = False) -> DLSN:
        """Move a position forwards, or make it; where it is then: never lower than before or than asked.

        To a `Position`, as `LogReader.position` gives it, or to a bare DLSN, which proves nothing. Raises
        `LogNotFound`, `LogRecreated`, `InvalidRequest` for a position in a segment that does not exist yet.
        With ``hold`` records at and after it do not go by age or size, until it is moved without ``hold`` or
        deleted, and for at most ``hold_max_s`` after it was last moved; the same place again counts as a
        move. `Log.truncate` does not ask. What already stands further keeps its own hold, or none.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        log_id = await self._resolve_log_id()
        dlsn, sequence_id = to, UNPROVEN
        if isinstance(to, Position):
            if to.incarnation != incarnation_text(log_id):
                raise LogRecreated(
                    f"{to} is a position of another log of this name, which was deleted: this one is "
                    f"{incarnation_text(log_id)}"
                )
            dlsn, sequence_id = to.dlsn, to.sequence_id
        if not isinstance(dlsn, DLSN):
            raise InvalidRequest(
                f"a subscriber is moved to a Position or a DLSN, not to {quoted(to)}"
            )
        key = position_key(log_id, check_position_name(name))
        target = await self._normalize(log_id, dlsn)
        while True:
            item = await self._metadata.get(key)
            current = None if item is None else PositionRecord.decode(item.value)
            if current is not None and current.dlsn > target:
                return current.dlsn
            held_ms, hold_ops = NO_HOLD, Transaction()
            if hold:
                previous_held_ms = NO_HOLD if current is None else current.held_ms
                held_ms, hold_ops = await prepare_hold(
                    self._metadata, log_id, previous_held_ms, await clock_now(self._metadata)
                )
            proven_id = sequence_id
            if current is not None and current.dlsn == target:
                # The same place again is written for its proof or its hold alone.
                proven_id = max(proven_id, current.sequence_id)
                if (proven_id, held_ms) == (current.sequence_id, current.held_ms):
                    return target
            generation = 0 if current is None else current.generation
            record = PositionRecord(target, self._clock_ms(), proven_id, held_ms, generation)
            put = Put(key, record.encode())
            compares = (
                # Not its version, which begins anew where it is deleted and made again (H155).
                Compare.mod_revision(key, 0 if item is None else item.mod_revision),
                Compare.exists(state_key(log_id)),
            )
            try:
                reply = await self._metadata.transact(Transaction(compares, (put,)) + hold_ops)
            except OutcomeUnknown:
                continue
            if reply.succeeded:
                return target
            if reply.current[1] is None:
                raise LogNotFound("the log was deleted while a position was moved")

    async def list(self) -> dict[str, DLSN]:
        """All positions, by name, in the order of names.

        Raises: LogNotFound, LogRecreated, QuorumUnreachable, AlreadyClosed.
        """
        prefix = position_key(await self._resolve_log_id(), "")
        return {
            item.key[len(prefix) :].decode(): PositionRecord.decode(item.value).dlsn
            async for item in Scan(self._metadata, prefix)
        }

    async def holds(self) -> dict[str, float]:
        """The positions that hold retention up, and for how many seconds each was not moved or held anew.

        By the clock of retention. One at or above the log's ``hold_max_s`` holds nothing up any more.

        Raises: LogNotFound, LogRecreated, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        prefix = position_key(await self._resolve_log_id(), "")
        now_ms = await clock_now(self._metadata)
        held_s: dict[str, float] = {}
        async for item in Scan(self._metadata, prefix):
            held_ms = PositionRecord.decode(item.value).held_ms
            if held_ms != NO_HOLD:
                held_s[item.key[len(prefix) :].decode()] = max(0, now_ms - held_ms) / 1000
        return held_s

    async def holders(self) -> dict[str, str]:
        """Who subscribes by which name at this moment (`Log.subscribe`), as it calls itself.

        Raises: LogNotFound, LogRecreated, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        prefix = subscriber_key(await self._resolve_log_id(), "")
        return {
            item.key[len(prefix) :].decode(): LockRecord.decode(item.value).owner
            async for item in Scan(self._metadata, prefix)
        }

    async def delete(self, name: str) -> bool:
        """Forget a position; was there one?

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        key = position_key(await self._resolve_log_id(), check_position_name(name))
        was_there = False
        while True:
            item = await self._metadata.get(key)
            if item is None:
                return was_there  # gone by this call or another one
            was_there = True
            delete = Transaction((Compare.mod_revision(key, item.mod_revision),), (Delete(key),))
            with suppress(OutcomeUnknown):
                if (await self._metadata.transact(delete)).succeeded:
                    return True

    async def _normalize(self, log_id: int, dlsn: DLSN) -> DLSN:
        """After the last record of a closed segment is the first position of the next one."""
        item = await self._metadata.get(state_key(log_id))
        if item is None:
            raise LogNotFound("the log was deleted")
        state = LogState.decode(item.value)
        if dlsn.segment > state.last_segment:
            if dlsn > DLSN(state.last_segment + 1, 0, 0):
                raise InvalidRequest(
                    f'log "{state.name}" has no position {dlsn}: its last segment is {state.last_segment}'
                )
            return dlsn
        stored_segment = await self._metadata.get(segment_key(log_id, dlsn.segment))
        if stored_segment is not None:
            record = SegmentRecord.decode(stored_segment.value)
            if record.closed and (record.last_dlsn is None or dlsn > record.last_dlsn):
                return DLSN(dlsn.segment + 1, 0, 0)
        return dlsn


async def clock_now(metadata: Metadata) -> int:
    """The clock of retention."""
    item = await metadata.get(CLOCK_KEY)
    return 0 if item is None else decode_clock(item.value)


async def prepare_hold(
    metadata: Metadata, log_id: int, held_ms: int, now_ms: int
) -> tuple[int, Transaction]:
    """From when a hold counts that is made now, and what lets no retention pass that has not seen it.

    ``held_ms``: of the hold that it follows; -1 for none. At most one such share of a log in a transaction.
    """
    if held_ms != NO_HOLD and now_ms - held_ms < HOLD_MAX_S_MIN * 1000 / 2:
        return now_ms, Transaction()  # it cannot have ended yet
    key = stamps_key(log_id)
    item = await metadata.get(key)
    value = Stamps().encode() if item is None else item.value
    unchanged = Compare.version(key, 0 if item is None else item.version)
    return now_ms, Transaction((unchanged,), (Put(key, value),))


def check_position_name(name: str) -> str:
    """Return the name, or raise `InvalidRequest` saying which names a position may have."""
    if (
        not isinstance(name, str)
        or not name
        or not name.isprintable()
        or len(name.encode(errors="replace")) > NAME_BYTES_MAX
    ):
        raise InvalidRequest(
            f"a position's name is printable text of 1 to {NAME_BYTES_MAX} bytes, not {quoted(name)}"
        )
    return name
