"""What a node whose disk is damaged still knows of what it promised (pure; H106).

In Raft (index, term) names one content for ever, so what a node has lost can be had again from any leader.
What nobody can give back is its word: the term and vote it stored, and how far it acknowledged. That it takes
from its own newest blocks, where they are sound: each begins with term and vote, each mark ends with
the last entry. Such a node keeps the sound beginning of its log and a *ghost*: the (term, index) of the
last entry that it had. While its log is less than that

    it votes, but only for a log that is at least as new as its ghost, and does not stand itself;
    it acknowledges what it really holds, and believes no commit that no append of a leader has shown to fit;
    the leader's appends fill it up again, and then the ghost is gone.

A vote for less could elect somebody without an entry that this node's word has made committed. A node
that has not even that left asks all other voters (`hard_state_recovery.py`).

    GHOST   | xxh3_64 u64 | msgpack [format, term of the last entry, its index, term, vote] |

Source: protocol-aware recovery (Alagappan et al., FAST 2018), reduced to what Raft's terms allow.
"""

from typing import Any, NamedTuple

from ...runtime.interfaces.errors import ProtocolError, UnsupportedFormat
from ...runtime.protocol.frames import pack, unpack
from ...runtime.protocol.schema import SchemaError, decode_stored, list_of_any, number, row, text
from .raft_messages import TERM_MAX
from .ready import HardState

RECOVERY_FLOOR_FILE = "GHOST"
RECOVERY_FLOOR_FORMAT = 1
_FORM = row(number(), number(0, TERM_MAX), number(), number(0, TERM_MAX), text())
_MARK = row(number(0, TERM_MAX), text(), number(0, TERM_MAX), number())


class RaftEntryId(NamedTuple):
    """The last entry of a log, in the order in which logs are newer than others."""

    term: int
    log_index: int


class RecoveredHardState(NamedTuple):
    """What a node has promised: its term and vote, and the last entry that it ever had."""

    hard_state: HardState
    last: RaftEntryId


class HardStateScanner:
    """The word of a node, from its sound blocks in order."""

    def __init__(self) -> None:
        self._sequence = -1
        self._hard_state: HardState | None = None
        self._last_entry: RaftEntryId | None = None

    def add_operations(self, sequence: int, operations: Any) -> None:
        """A block of operations (`log_replay.py`). One missing before it may have said anything."""
        self._check_sequence(sequence)
        for operation in list_of_any(operations):
            match operation:
                case ["hard", int() as term, str() as vote]:
                    self._hard_state = HardState(term, vote)
                case ["snapshot" | "entry", int() as index, int() as term, *_]:
                    self._last_entry = RaftEntryId(term, index)
                case ["truncate", *_]:
                    self._last_entry = None

    def take_mark(self, sequence: int, payload: bytes) -> None:
        """A mark; those of before they said something are empty."""
        self._check_sequence(sequence)
        if payload:
            try:
                term, vote, last_term, last_index = _MARK(unpack(payload, "a mark"))
            except (SchemaError, ProtocolError):
                self._hard_state = self._last_entry = None
                return
            self._hard_state = HardState(term, vote)
            self._last_entry = RaftEntryId(last_term, last_index)

    def _check_sequence(self, sequence: int) -> None:
        if sequence != self._sequence + 1:
            self._hard_state = self._last_entry = None
        self._sequence = sequence

    @property
    def last_entry(self) -> RaftEntryId | None:
        """The last entry of the log as of the last block; None where that cannot be known."""
        return self._last_entry

    def recovered_state(self) -> RecoveredHardState | None:
        """As of the last block; None where that cannot be known."""
        if self._hard_state is None or self._last_entry is None:
            return None
        return RecoveredHardState(self._hard_state, self._last_entry)


def watermark_payload(recovered: RecoveredHardState) -> bytes:
    """What a mark says."""
    return pack([*_hard_state_fields(recovered.hard_state), *recovered.last])


def _hard_state_fields(hard_state: HardState) -> tuple[int, str]:
    return hard_state.term, hard_state.vote


def encode_hard_state(recovered: RecoveredHardState) -> bytes:
    """As the file's content after its checksum."""
    return pack([RECOVERY_FLOOR_FORMAT, *recovered.last, *_hard_state_fields(recovered.hard_state)])


def decode_hard_state(body: bytes) -> RecoveredHardState:
    """What the file says after its checksum. Raises `CorruptData`, `UnsupportedFormat`."""
    (form, *_) = decode_stored(body, row(number(), later=True), RECOVERY_FLOOR_FILE)
    if form != RECOVERY_FLOOR_FORMAT:
        raise UnsupportedFormat(
            f"{RECOVERY_FLOOR_FILE}: format {form}, known is {RECOVERY_FLOOR_FORMAT}"
        )
    _, last_term, last_index, term, vote = decode_stored(body, _FORM, RECOVERY_FLOOR_FILE)
    return RecoveredHardState(HardState(term, vote), RaftEntryId(last_term, last_index))
