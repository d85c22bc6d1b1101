"""The replicated log in memory, after a compacted prefix (pure).

The log stores the term of each index, removes a conflicting tail, and finds where two logs may differ. It
also provides the members: the newest configuration in it applies, committed or not, until it is removed
(thesis 4.1). The durable and committed indexes are in metadata/raft/log_watermarks.py, and the bytes on
disk in metadata/storage/raft_storage.py.
"""

from collections.abc import Iterable

from ..model.configuration import (
    UNKNOWN_CONFIGURATION,
    Configuration,
    decode_configuration,
    is_configuration,
)
from .raft_messages import ENTRIES_MAX, Entry


class RaftLog:
    """The entries ``base_index`` + 1 .. ``last_index``. Entries up to ``base_index`` are compacted.

    ``base_index`` and ``base_term`` are those of the last entry in a snapshot, or 0 and 0 without one. A
    new node creates ``RaftLog()``. A restarted node creates ``RaftLog(index, term, entries)`` with the end
    of its snapshot and the entries after it, without a gap. ``configuration`` is the one at ``base_index``.
    """

    def __init__(
        self,
        base_index: int = 0,
        base_term: int = 0,
        entries: Iterable[Entry] = (),
        configuration: Configuration = UNKNOWN_CONFIGURATION,
    ) -> None:
        assert (base_index == 0) == (base_term == 0), "an index without a term"
        self.base_index = base_index
        self.base_term = base_term
        self._entries: list[Entry] = []
        self._configurations = [(base_index, configuration)]  # the one at the base, then later ones
        self.append(entries)

    @property
    def last_index(self) -> int:
        """Return the index of the last entry, or ``base_index`` if there is none after it."""
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        """Return the term of the last entry."""
        return self._entries[-1].term if self._entries else self.base_term

    def term_at(self, index: int) -> int | None:
        """Return the term of entry ``index``, or None if it is compacted or does not exist."""
        position = index - self.base_index - 1
        if 0 <= position < len(self._entries):
            return self._entries[position].term
        return self.base_term if position == -1 else None

    @property
    def configuration(self) -> Configuration:
        """Return the newest configuration in the log, committed or not."""
        return self._configurations[-1][1]

    @property
    def configuration_index(self) -> int:
        """Return the index of `configuration`, or ``base_index`` if it is there or earlier."""
        return self._configurations[-1][0]

    @property
    def configurations(self) -> tuple[tuple[int, Configuration], ...]:
        """Return (index, configuration) at the base and of all later configuration entries."""
        return tuple(self._configurations)

    def configuration_at(self, index: int) -> Configuration:
        """Return the configuration as of entry ``index``, which is not before ``base_index``."""
        assert index >= self.base_index, f"entry {index} is compacted"
        return next(
            configuration
            for config_index, configuration in reversed(self._configurations)
            if config_index <= index
        )

    def entry(self, index: int) -> Entry:
        """Return the entry at ``index``, which is above ``base_index`` and at most ``last_index``."""
        assert self.base_index < index <= self.last_index, f"no entry {index} in memory"
        return self._entries[index - self.base_index - 1]

    def slice(
        self, first: int, last: int, *, bytes_max: int, entries_max: int = ENTRIES_MAX
    ) -> tuple[Entry, ...]:
        """Return entries ``first`` .. ``last`` (or the end), with a limit of ``bytes_max`` of data.

        At least one entry is returned.
        """
        assert first > self.base_index, f"entry {first} is compacted (base {self.base_index})"
        start = first - self.base_index - 1
        stop = min(last - self.base_index, len(self._entries), start + entries_max)
        size_bytes = 0
        for position in range(start, stop):
            size_bytes += len(self._entries[position].data)
            if size_bytes > bytes_max and position > start:
                stop = position
                break
        return tuple(self._entries[start:stop])

    def index_before_last_bytes(self, up_to: int, *, bytes_max: int, entries_max: int) -> int:
        """Return the lowest index after which at most so many bytes and entries follow up to ``up_to``."""
        position = up_to - self.base_index
        position_min = max(0, position - entries_max)
        while position > position_min:
            bytes_max -= len(self._entries[position - 1].data)
            if bytes_max < 0:
                break
            position -= 1
        return self.base_index + position

    def entries_from(self, first: int) -> tuple[Entry, ...]:
        """Return entry ``first``, which is above ``base_index``, and all later entries."""
        assert first > self.base_index, f"entry {first} is compacted (base {self.base_index})"
        return tuple(self._entries[first - self.base_index - 1 :])

    def append(self, entries: Iterable[Entry]) -> None:
        """Append entries. Their indexes must be consecutive, and their terms must not decrease."""
        index, term = self.last_index, self.last_term
        for entry in entries:
            index += 1
            assert entry.index == index, f"entry {entry.index} put at {index}"
            assert entry.term >= term, f"entry {index}: term {entry.term} after {term}"
            term = entry.term
            self._entries.append(entry)
            if is_configuration(entry.data):
                self._configurations.append((index, decode_configuration(entry.data)))

    def truncate(self, from_index: int) -> None:
        """Remove entry ``from_index`` and all later entries."""
        assert from_index > self.base_index, f"entry {from_index} is compacted"
        del self._entries[from_index - self.base_index - 1 :]
        while self._configurations[-1][0] >= from_index:
            self._configurations.pop()

    def compact(self, up_to: int) -> None:
        """Discard the entries up to and including ``up_to``, which a durable snapshot contains."""
        if up_to <= self.base_index:
            return
        term = self.term_at(up_to)
        assert term is not None, f"compact to {up_to}, the log ends at {self.last_index}"
        base_configuration = self.configuration_at(up_to)
        del self._entries[: up_to - self.base_index]
        self.base_index, self.base_term = up_to, term
        later_configurations = [
            (config_index, configuration)
            for config_index, configuration in self._configurations
            if config_index > up_to
        ]
        self._configurations = [(up_to, base_configuration), *later_configurations]

    def reset(
        self, index: int, term: int, configuration: Configuration = UNKNOWN_CONFIGURATION
    ) -> None:
        """Remove all entries. The log then starts after a snapshot that ends at (``index``, ``term``)."""
        self._entries.clear()
        self.base_index, self.base_term = index, term
        self._configurations = [(index, configuration)]

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log with this last entry is at least as complete as this one (paper 5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def conflicts_with(self, index: int, term: int, data: bytes | None = None) -> bool:
        """Whether the entry at ``index`` has another term or other data. False if its term is unknown here.

        In Raft, entries with the same index and term are equal. If most disks are older copies, a second
        leader may be elected in the same term, and then they are not.
        """
        own_term = self.term_at(index)
        if own_term is None or own_term != term:
            return own_term is not None
        return data is not None and index > self.base_index and self.entry(index).data != data

    def first_conflict(self, entries: Iterable[Entry]) -> int:
        """Return the first index of ``entries`` that is missing or different here, or 0."""
        for entry in entries:
            missing = self.term_at(entry.index) is None
            if missing or self.conflicts_with(entry.index, entry.term, entry.data):
                return entry.index
        return 0

    def conflict_hint(self, prev_index: int) -> tuple[int, int]:
        """Return the hint for a refused ``prev_index``: the first index of the term there, and that term.

        The hint is (last index + 1, 0) if this log is too short. It limits refusals to one per term instead
        of one per entry (paper 5.3).
        """
        if prev_index > self.last_index:
            return self.last_index + 1, 0
        term = self.term_at(prev_index)
        if term is None:  # compacted entries are committed, so the leader has them too
            return self.base_index + 1, 0
        first = prev_index
        while first - 1 > self.base_index and self.term_at(first - 1) == term:
            first -= 1
        return first, term

    def next_after_hint(self, prev_index: int, hint_index: int, hint_term: int) -> int:
        """Return the next index to try after a refusal of ``prev_index`` with a `conflict_hint`."""
        if hint_term == 0:
            return hint_index
        for index in range(min(prev_index - 1, self.last_index), self.base_index, -1):
            term = self.term_at(index)
            assert term is not None
            if term == hint_term:
                return index + 1  # this leader has the term, so the logs may agree up to its end
            if term < hint_term:
                break
        return hint_index
