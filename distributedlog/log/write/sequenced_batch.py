"""A frame: records that one call hands over, which lie next to each other in one entry and have one outcome.

What a proxy writes with: a frame holds what a producer sent in one go, an entry the frames of many producers.
It is never divided and never merged with what is not its own, so that whoever sends it again sends the same.
"""

from collections.abc import Callable

from ...runtime.interfaces.errors import DistributedLogError
from ..format.dlsn import DLSN
from .entry_batch import EntryBatch


class SequencedBatch:
    """Records on their way, until ``on_done`` was called with this, once."""

    __slots__ = (
        "_batch",
        "_on_done",
        "_slot",
        "error",
        "first_dlsn",
        "first_txid",
        "is_done",
        "is_duplicate",
        "producer",
        "records",
        "sequence",
    )  # fmt: skip

    def __init__(
        self,
        records: int,
        on_done: "Callable[[SequencedBatch], object]",
        *,
        producer: int = 0,
        sequence: int = 0,
    ) -> None:
        self.records = records
        """How many it holds."""
        self.producer = producer
        """The number of who wrote it; 0: of nobody who wants it once."""
        self.sequence = sequence
        """The producer's count of its records before these."""
        self.is_done = False
        self.error: DistributedLogError | None = None
        self.first_dlsn: DLSN | None = None
        """Where its first record is, once it is done without error. None: stored before, and the place was
        let go, for the producer has had the answer."""
        self.first_txid = -1
        """Of its first record; -1: not known, of one that was stored before."""
        self.is_duplicate = False
        """Was it there already, stored or on its way?"""
        self._on_done = on_done
        self._batch: EntryBatch | None = None
        self._slot = 0

    def attach(self, batch: EntryBatch, slot: int) -> None:
        """It shares the outcome of a batch; its records begin at this slot."""
        self._batch, self._slot = batch, slot
        batch.add_done_callback(self._finish)

    def share_outcome(self, original: "SequencedBatch") -> None:
        """It is a copy of one that is on its way: one outcome for both."""
        self.is_duplicate = True
        assert original._batch is not None, "it is on its way"
        self.attach(original._batch, original._slot)

    def finish_stored(self, first_dlsn: DLSN | None) -> None:
        """It is stored, and was before."""
        self.is_duplicate = self.is_done = True
        self.first_dlsn = first_dlsn
        self._on_done(self)

    @property
    def batch_and_slot(self) -> tuple[EntryBatch, int]:
        """The batch and the slot of its first record, while it is on its way."""
        assert self._batch is not None, "asked of what is on its way"
        return self._batch, self._slot

    def _finish(self) -> None:
        batch, self._batch = self._batch, None
        assert batch is not None, "a batch is done once"
        self.is_done = True
        self.error = batch.error
        if batch.error is None:
            self.first_dlsn = DLSN(batch.segment, batch.entry, self._slot)
        self._on_done(self)
