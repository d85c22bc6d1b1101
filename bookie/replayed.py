"""The journal as a start has replayed it: which blocks count, and in which files they lie."""

from itertools import pairwise

from .index_records import Saved
from .replay import Decision, Replayed


class ReplayedJournal:
    """What counts of it, and which files are there."""

    def __init__(
        self,
        decision: Decision,
        sealed: dict[int, tuple[int, int]],
        number: int,
        end: int,
        start_count: int,
    ) -> None:
        self.decision = decision
        self.sealed = sealed
        self.number = number
        """The last file that counts; 0: none."""
        self.end = end
        self.first = 0
        """The first sequence of that file."""
        self.start_count = start_count

    def leave_out(self, number: int) -> None:
        """Nothing is left of this file."""
        self.sealed.pop(number, None)
        if number == self.number:
            self.first = 0

    def note_files(self, found: list[Replayed], decision: Decision, saved: Saved | None) -> None:
        """Which sequences lie in which file, from the blocks that count."""
        self.start_count = max((self.start_count, *(block.start_count for block in found)))
        spans: dict[int, tuple[int, int]] = {}
        for block in (*decision.durable, *decision.survivors):
            first, _ = spans.get(block.file_number, (block.sequence, 0))
            spans[block.file_number] = first, block.sequence
            if block.file_number >= self.number:  # a file is sealed after the next one has begun
                self.number = block.file_number
                self.end = block.offset + block.padded_length
        if saved is not None and saved.file_number:
            _, last = spans.get(saved.file_number, (0, saved.sequence - 1))
            spans[saved.file_number] = (saved.first_sequence, last)
        numbers = sorted(spans)
        for number, following in pairwise(numbers):
            self.sealed[number] = (spans[number][0], spans[following][0] - 1)
        if numbers:
            self.first = spans[numbers[-1]][0]
