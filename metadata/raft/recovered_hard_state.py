"""The hard state that a node recovers from its own damaged disk (pure; H106).

In Raft, (index, term) identifies one content, so any leader can resend lost entries. Only the node itself
has its hard state: the stored term and vote, and the last acknowledged entry. It reads them from its newest
blocks if they are sound. Each block begins with term and vote, and each mark ends with the last entry. Such
a node keeps the sound beginning of its log and a *recovery floor*: the (term, index) of the last entry that
it had.

While the log ends before the recovery floor:

- The node votes only for a log that is at least as new as the floor, and does not campaign.
- It acknowledges only entries that it has. It accepts a commit index only for entries that an append of a
  leader has verified.
- The leader's appends restore the log, and then the floor is removed.

A vote for a shorter log could elect a leader without an entry that was committed with this node's
acknowledgement. A node without sound blocks queries all other voters (`hard_state_recovery.py`).

The file::

    GHOST   | xxh3_64 u64 | msgpack [format, term of the last entry, its index, term, vote] |

Source: protocol-aware recovery (Alagappan et al., FAST 2018), reduced to the rules that Raft's terms
require.
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
    """Term and index of an entry. A tuple that compares greater belongs to a newer log."""

    term: int
    log_index: int


class RecoveredHardState(NamedTuple):
    """A recovered hard state: term and vote, and the last entry that the node ever had."""

    hard_state: HardState
    last: RaftEntryId


class HardStateScanner:
    """Recovers the hard state from the sound blocks of a node, in order."""

    def __init__(self) -> None:
        self._sequence = -1
        self._hard_state: HardState | None = None
        self._last_entry: RaftEntryId | None = None

    def add_operations(self, sequence: int, operations: Any) -> None:
        """Add a block of operations (`log_replay.py`).

        A missing block before it makes the earlier values unknown.
        """
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
        """Add a mark. Marks of older versions are empty."""
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
        """Return the last entry of the log as of the last block, or None if it is unknown."""
        return self._last_entry

    def recovered_state(self) -> RecoveredHardState | None:
        """Return the hard state as of the last block, or None if it is unknown."""
        if self._hard_state is None or self._last_entry is None:
            return None
        return RecoveredHardState(self._hard_state, self._last_entry)


def watermark_payload(recovered: RecoveredHardState) -> bytes:
    """Return the payload of a mark."""
    return pack([*_hard_state_fields(recovered.hard_state), *recovered.last])


def _hard_state_fields(hard_state: HardState) -> tuple[int, str]:
    return hard_state.term, hard_state.vote


def encode_hard_state(recovered: RecoveredHardState) -> bytes:
    """Encode the content of the file after its checksum."""
    return pack([RECOVERY_FLOOR_FORMAT, *recovered.last, *_hard_state_fields(recovered.hard_state)])


def decode_hard_state(body: bytes) -> RecoveredHardState:
    """Decode the content of the file after its checksum.

    Raises:
        CorruptData: The content is invalid.
        UnsupportedFormat: A newer version wrote it.
    """
    (form, *_) = decode_stored(body, row(number(), later=True), RECOVERY_FLOOR_FILE)
    if form != RECOVERY_FLOOR_FORMAT:
        raise UnsupportedFormat(
            f"{RECOVERY_FLOOR_FILE}: format {form}, known is {RECOVERY_FLOOR_FORMAT}"
        )
    _, last_term, last_index, term, vote = decode_stored(body, _FORM, RECOVERY_FLOOR_FILE)
    return RecoveredHardState(HardState(term, vote), RaftEntryId(last_term, last_index))
