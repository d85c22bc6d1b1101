"""Named positions: stored positions at which the subscribers of a log continue. They never move backwards.

A position is the DLSN of the next record to read. It also has a sequence ID if it was stored from a
`Position`, which proves it. A DLSN that a program constructed does not become a proof by being stored (H141).
A named position belongs to one incarnation: its key contains the log ID, so a log that is created again
starts without any.

A position that *holds* prevents retention (`segment_expiry.py`) from deleting records at and after it. The
time limit of a hold is measured on the retention clock. No retention that started earlier may ignore a
promised hold. Therefore a new hold also writes the log's stamps, and a retention that read them before
detects the change.
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
    SegmentCloseTimes,
    decode_clock,
    stamps_key,
)
from ..model.segment_record import SegmentRecord

FORMAT = 4
"""Format 4 has a generation. A position that never had a subscriber is written in format 3."""
_WITHOUT_GENERATION = 3
NAME_BYTES_MAX = 255


UNPROVEN = -1
_POSITION = row(row(number(), number(), number()), number())
_SEQUENCE_ID = number(UNPROVEN)
_HELD_MS_FORM = number(NO_HOLD)
_GENERATION_FORM = number(0, NUMBER_MAX // 2)
"""Counting never reaches this limit. It only ensures that even a wrong stored value has a successor."""


@dataclass(frozen=True, slots=True)
class PositionRecord:
    """The value of ``log/<id>/position/<name>``."""

    dlsn: DLSN
    """The next record to read, or where it will be. A subscriber may commit a position after a segment's
    last record. Otherwise the first position of the next segment is stored."""
    moved_ms: int
    """The wall clock of the client that moved it, for people."""
    sequence_id: int = UNPROVEN
    """The sequence ID of the next record, from a `Position`, which proves it. -1 means only an address, as
    in format 1."""
    hold_renewed_ms: int = NO_HOLD
    """The retention clock when the hold was last renewed, or -1 if the position does not hold."""
    generation: int = 0
    """The number of subscriptions so far. Each subscriber raises it, and its commits require it unchanged
    (H155)."""

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """Encode the record as a packed list with a format number."""
        fields = [list(self.dlsn), self.moved_ms, self.sequence_id, self.hold_renewed_ms]
        if not self.generation:
            return pack([_WITHOUT_GENERATION, *fields])
        return pack([FORMAT, *fields, self.generation])

    @classmethod
    def decode(cls, value: bytes) -> "PositionRecord":
        """Decode the record.

        Raises:
            CorruptData: The value is invalid.
            UnsupportedFormat: A newer version wrote the value.
        """
        fields = decode_fields(value, FORMAT, 3, "a position")
        dlsn, moved_ms = check_stored(fields[:2], _POSITION, "a position")
        sequence_id = (
            check_stored(fields[2], _SEQUENCE_ID, "a position") if len(fields) > 2 else UNPROVEN
        )
        hold_renewed_ms = (
            check_stored(fields[3], _HELD_MS_FORM, "a position") if len(fields) > 3 else NO_HOLD
        )
        generation = (
            check_stored(fields[4], _GENERATION_FORM, "a position") if len(fields) > 4 else 0
        )
        return cls(DLSN(*dlsn), moved_ms, sequence_id, hold_renewed_ms, generation)


class Positions:
    """The named positions of one log. `Log.positions` returns it. Each call reads the metadata store."""

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
        """Return the position at which a subscriber continues, or None if it has none.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        item = await self._metadata.get(
            position_key(await self._resolve_log_id(), check_position_name(name))
        )
        return None if item is None else PositionRecord.decode(item.value).dlsn

    async def proven(self, name: str) -> Position | None:
        """Return a subscriber's position with its proof, or None.

        Use it for ``open_reader(position=…)``. None means that it has no position, or that it was last moved
        to a DLSN, which proves nothing.

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
        """Create a position or move it forwards.

        A position that is already after ``to`` stays unchanged, with or without its hold.

        Args:
            name: The name of the position.
            to: A `Position`, as from `LogReader.position`, or a DLSN, which proves nothing. A position in a
                segment that does not exist yet is refused.
            hold: Prevent retention from deleting records at and after the position by age or size. The hold
                ends when the position is deleted or moved without ``hold``, and at most ``hold_max_s`` after
                the last move. A move to the same place renews it. `Log.truncate` ignores holds.

        Returns:
            The position after the call, never lower than before, or than ``to``.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        log_id = await self._resolve_log_id()
        dlsn, sequence_id = to, UNPROVEN
        if isinstance(to, Position):
            if to.incarnation != incarnation_text(log_id):
                raise LogRecreated(
                    f"{to} is a position of a deleted log of the same name; the incarnation of this log is "
                    f"{incarnation_text(log_id)}"
                )
            dlsn, sequence_id = to.dlsn, to.sequence_id
        if not isinstance(dlsn, DLSN):
            raise InvalidRequest(
                f"a position can be moved to a Position or a DLSN, not to {quoted(to)}"
            )
        key = position_key(log_id, check_position_name(name))
        target = await self._normalize(log_id, dlsn)
        while True:
            item = await self._metadata.get(key)
            current = None if item is None else PositionRecord.decode(item.value)
            if current is not None and current.dlsn > target:
                return current.dlsn
            hold_renewed_ms, hold_ops = NO_HOLD, Transaction()
            if hold:
                previous_renewed_ms = NO_HOLD if current is None else current.hold_renewed_ms
                hold_renewed_ms, hold_ops = await prepare_hold(
                    self._metadata, log_id, previous_renewed_ms, await clock_now(self._metadata)
                )
            proven_id = sequence_id
            if current is not None and current.dlsn == target:
                # The same place is written again only if its proof or its hold changes.
                proven_id = max(proven_id, current.sequence_id)
                if (proven_id, hold_renewed_ms) == (current.sequence_id, current.hold_renewed_ms):
                    return target
            generation = 0 if current is None else current.generation
            record = PositionRecord(
                target, self._clock_ms(), proven_id, hold_renewed_ms, generation
            )
            put = Put(key, record.encode())
            compares = (
                # Not the version, which restarts if the key is deleted and created again (H155).
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
        """Return all positions by name, in the order of names.

        Raises: LogNotFound, LogRecreated, QuorumUnreachable, AlreadyClosed.
        """
        prefix = position_key(await self._resolve_log_id(), "")
        return {
            item.key[len(prefix) :].decode(): PositionRecord.decode(item.value).dlsn
            async for item in Scan(self._metadata, prefix)
        }

    async def holds(self) -> dict[str, float]:
        """Return the positions that hold records, and their age.

        The age is the time in seconds since the last renewal, on the retention clock. A hold with at least
        the log's ``hold_max_s`` has expired.

        Raises: LogNotFound, LogRecreated, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        prefix = position_key(await self._resolve_log_id(), "")
        now_ms = await clock_now(self._metadata)
        held_s: dict[str, float] = {}
        async for item in Scan(self._metadata, prefix):
            hold_renewed_ms = PositionRecord.decode(item.value).hold_renewed_ms
            if hold_renewed_ms != NO_HOLD:
                held_s[item.key[len(prefix) :].decode()] = max(0, now_ms - hold_renewed_ms) / 1000
        return held_s

    async def holders(self) -> dict[str, str]:
        """Return the current subscribers (`Log.subscribe`): the name of each position and of its process.

        Raises: LogNotFound, LogRecreated, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        prefix = subscriber_key(await self._resolve_log_id(), "")
        return {
            item.key[len(prefix) :].decode(): LockRecord.decode(item.value).owner
            async for item in Scan(self._metadata, prefix)
        }

    async def delete(self, name: str) -> bool:
        """Delete a position, and return whether it existed.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        key = position_key(await self._resolve_log_id(), check_position_name(name))
        was_there = False
        while True:
            item = await self._metadata.get(key)
            if item is None:
                return was_there  # deleted by this call or another one
            was_there = True
            delete = Transaction((Compare.mod_revision(key, item.mod_revision),), (Delete(key),))
            with suppress(OutcomeUnknown):
                if (await self._metadata.transact(delete)).succeeded:
                    return True

    async def _normalize(self, log_id: int, dlsn: DLSN) -> DLSN:
        """Replace a position after the last record of a closed segment by the start of the next segment."""
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
    """Return the retention clock."""
    item = await metadata.get(CLOCK_KEY)
    return 0 if item is None else decode_clock(item.value)


async def prepare_hold(
    metadata: Metadata, log_id: int, hold_renewed_ms: int, now_ms: int
) -> tuple[int, Transaction]:
    """Return the start of a new hold, and the operations that make concurrent retention detect it.

    A transaction may contain these operations only once per log.

    Args:
        metadata: The metadata store.
        log_id: The log.
        hold_renewed_ms: The start of the previous hold, or -1 if there was none.
        now_ms: The retention clock.
    """
    if hold_renewed_ms != NO_HOLD and now_ms - hold_renewed_ms < HOLD_MAX_S_MIN * 1000 / 2:
        return now_ms, Transaction()  # the previous hold cannot have expired yet
    key = stamps_key(log_id)
    item = await metadata.get(key)
    value = SegmentCloseTimes().encode() if item is None else item.value
    unchanged = Compare.version(key, 0 if item is None else item.version)
    return now_ms, Transaction((unchanged,), (Put(key, value),))


def check_position_name(name: str) -> str:
    """Return the name of a position if it is valid.

    Raises:
        InvalidRequest: The name is not printable text of 1 to 255 bytes.
    """
    if (
        not isinstance(name, str)
        or not name
        or not name.isprintable()
        or len(name.encode(errors="replace")) > NAME_BYTES_MAX
    ):
        raise InvalidRequest(
            f"a position's name must be printable text of 1 to {NAME_BYTES_MAX} bytes, not {quoted(name)}"
        )
    return name
