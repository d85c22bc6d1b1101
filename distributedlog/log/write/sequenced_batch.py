"""A frame: records of one call that are stored next to each other in one entry and have one outcome.

Proxies write frames. A frame holds the records that a producer sent in one call, and an entry holds frames of
many producers. A frame is never divided or merged with other records, so that a client that repeats it sends
the same records.
"""

from collections.abc import Callable

from ...runtime.interfaces.errors import DistributedLogError
from ..format.dlsn import DLSN
from .entry_batch import EntryBatch


class SequencedBatch:
    """A frame in flight, until ``on_done`` was called with it, once."""

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
        """The number of its records."""
        self.producer = producer
        """The number of the producer. 0 for a frame without a producer, which is not deduplicated."""
        self.sequence = sequence
        """The number of records that the producer wrote before these."""
        self.is_done = False
        self.error: DistributedLogError | None = None
        self.first_dlsn: DLSN | None = None
        """The position of the first record, once the frame is done without error. None if the frame was
        stored earlier and the position is no longer kept, because the producer has received it."""
        self.first_txid = -1
        """The transaction ID of the first record. -1 if unknown, for a frame that was stored earlier."""
        self.is_duplicate = False
        """Whether the frame was already stored or in flight."""
        self._on_done = on_done
        self._batch: EntryBatch | None = None
        self._slot = 0

    def attach(self, batch: EntryBatch, slot: int) -> None:
        """Share the outcome of a batch, in which the records begin at this slot."""
        self._batch, self._slot = batch, slot
        batch.add_done_callback(self._finish)

    def share_outcome(self, original: "SequencedBatch") -> None:
        """Share the outcome of the first copy of this frame, which is in flight."""
        self.is_duplicate = True
        assert original._batch is not None, "the first copy is in flight"
        self.attach(original._batch, original._slot)

    def finish_stored(self, first_dlsn: DLSN | None) -> None:
        """Finish the frame as a duplicate of a stored one, and call ``on_done``."""
        self.is_duplicate = self.is_done = True
        self.first_dlsn = first_dlsn
        self._on_done(self)

    @property
    def batch_and_slot(self) -> tuple[EntryBatch, int]:
        """The batch and the slot of the first record. Only available while the frame is in flight."""
        assert self._batch is not None, "the frame is in flight"
        return self._batch, self._slot

    def _finish(self) -> None:
        batch, self._batch = self._batch, None
        assert batch is not None, "a batch is done once"
        self.is_done = True
        self.error = batch.error
        if batch.error is None:
            self.first_dlsn = DLSN(batch.segment, batch.entry, self._slot)
        self._on_done(self)
