"""The operations in the blocks of a metadata node's log file, and the state that they produce (pure).

The operations::

    ["begin", sequence of this block]  ["begun"]            before and after the initial state of a file
    ["hard", term, vote]                                    the present term, and the vote in it
    ["snapshot", index, term, configuration]                empty the log after a snapshot with these members
    ["truncate", index]  ["entry", index, term, data]       drop entries from an index on; append an entry

The note of a block (`distributedlog/runtime/disk/checksummed_blocks.py`) is 1 plus the number of entries,
at the end of the log after that block, that were not known to be committed when it was written. 0 means
unknown. Older versions write 0 and ignore it.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from ...runtime.protocol.schema import SchemaError, list_of_any
from ..model.configuration import (
    UNKNOWN_CONFIGURATION,
    Configuration,
    decode_configuration,
    is_configuration,
)
from ..raft.raft_log import RaftLog
from ..raft.raft_messages import TERM_MAX, Entry
from ..raft.ready import HardState

BLOCK_OPERATIONS_BYTES = 256 * 1024
BLOCK_OPERATIONS_MAX = 4096


class RaftLogReplay:
    """The state that results from the operations of a file."""

    def __init__(self, founders: Configuration = UNKNOWN_CONFIGURATION) -> None:
        """Create an empty state.

        ``founders`` are the members if a file does not contain them, because it was written before they
        could change.
        """
        self._founders = founders
        self.hard_state = HardState()
        self.log = RaftLog()
        self.first_sequence = 0
        """Sequence number of the first block of the file, according to that block."""
        self.has_complete_beginning = False

    def apply_operations(self, operations: Any) -> None:
        """Apply the operations of a block.

        Raises:
            SchemaError, ProtocolError: The operations are invalid. `SchemaError` is a `ValueError`.
        """
        for operation in list_of_any(operations):
            match operation:
                case ["begin", int() as sequence]:
                    self.first_sequence = sequence
                case ["begun"]:
                    self.has_complete_beginning = True
                case ["hard", int() as term, str() as vote] if 0 <= term <= TERM_MAX:
                    self.hard_state = HardState(term, vote)
                case ["snapshot", int() as index, int() as term]:
                    self.log.reset(index, term, self._founders)
                case ["snapshot", int() as index, int() as term, bytes() as members]:
                    self.log.reset(index, term, decode_configuration(members))
                case ["truncate", int() as index] if index > self.log.base_index:
                    self.log.truncate(index)
                case ["entry", int() as index, int() as term, bytes() as data] if (
                    index == self.log.last_index + 1 and term >= self.log.last_term
                ):
                    if is_configuration(data):
                        decode_configuration(data)  # because the log does not check it
                    self.log.append([Entry(index, term, data)])
                case _:
                    raise SchemaError("an operation that does not fit those before it")


NOTE_MAX = (1 << 32) - 1


def commit_note(last_index: int, commit: int) -> int:
    """Return the note of a block.

    Args:
        last_index: The last index of the log after that block.
        commit: The last entry that is known to be committed.
    """
    open_entries = last_index - min(commit, last_index)
    return open_entries + 1 if commit > 0 and open_entries < NOTE_MAX else 0


def commit_of_note(last_index: int, note: int) -> int:
    """Return the commit index in a note, at most ``last_index``, or 0 if it is unknown."""
    return max(0, last_index - (note - 1)) if note else 0


def last_index_after(operations: Iterable[Any], last_index: int) -> int:
    """Return the last index of the log after these operations, which start at ``last_index``."""
    for operation in operations:
        match operation:
            case ["entry" | "snapshot", int() as index, *_]:
                last_index = index
            case ["truncate", int() as index]:
                last_index = index - 1
    return last_index


def group_operations(operations: Iterable[Any]) -> Iterator[list[Any]]:
    """Group operations into lists of about one block each, in order."""
    group: list[Any] = []
    size = 0
    for operation in operations:
        group.append(operation)
        size += 40 + (len(operation[3]) if operation[0] == "entry" else 0)
        if size >= BLOCK_OPERATIONS_BYTES or len(group) >= BLOCK_OPERATIONS_MAX:
            yield group
            group, size = [], 0
    if group:
        yield group
