"""Buffered and sent records of a writer, with one outcome per entry.

All records of an entry share its outcome, so no event or task is needed per record.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, overload

import trio

from ...runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
)
from ..format.dlsn import DLSN
from ..format.packed_columns import PackedColumns
from ..format.producer_table import EntryProducers
from ..format.record import RECORD_MORE
from ..format.record_headers import Headers, KeyedContent, split_contents

_new_tuple = tuple.__new__
"""Creates a `DLSN` from its three numbers without the Python-level call of the `DLSN` constructor."""


class EntryBatch:
    """The records of one entry, from the first buffered record until the outcome of the entry is known."""

    __slots__ = (
        "_callbacks",
        "_event",
        "bytes_max",
        "columns",
        "count",
        "entry",
        "error",
        "first_slot",
        "has_given_txids",
        "has_keyed",
        "is_done",
        "is_unordered",
        "max_txid",
        "payloads",
        "producer_section",
        "segment",
        "sets",
        "size_bytes",
        "sizes",
        "stored_bytes",
        "txids",
    )

    def __init__(self, bytes_max: int = 0) -> None:
        self.txids: Any = []
        """Integers: a list, or a view of packed transaction IDs."""
        self.payloads: Any = []
        """A list of bytes, or of a `KeyedContent` for a record with a key or headers, until the batch is
        done."""
        self.has_keyed = False
        """Whether a record has a key or headers."""
        self.sizes: list[int] | None = None
        """The payload sizes in bytes, if `add_records` added all records. A list that is shorter than the
        payloads is ignored."""
        self.columns: PackedColumns | None = None
        """The columns of the entry, used in place of `payloads` (`set_columns`)."""
        self.sets: list[tuple[int, int]] | None = None
        """First slot and number of records of each record set. None if there is no set."""
        self.producer_section: EntryProducers | None = None
        """The producer data of the entry. An entry with openings or a snapshot has no records."""
        self.is_unordered = False
        """Whether some transaction ID is lower than one before it."""
        self.has_given_txids = False
        """Whether the records were submitted with transaction IDs. Set when the batch is closed. A proxy
        assigns those of the other batches."""
        self.max_txid = -1
        """The greatest transaction ID of the segment up to this entry. Set when the batch is sent."""
        self.size_bytes = 0
        """Columns and payloads, as counted against the writer's limit."""
        self.stored_bytes = 0
        """The length of the entry in bytes. Set when the batch is sent."""
        self.bytes_max = bytes_max
        """The size up to which records are added without a call of `SendQueue.try_reserve`."""
        self.segment = 0
        self.entry = -1
        """Segment and entry to which the batch was sent. They can change until the batch is done (a roll
        after an error)."""
        self.first_slot = 0
        """The slot of the first record. It is above 0 if a proxy stored records of others before it in the
        entry."""
        self.is_done = False
        self.count = 0
        """The number of records. Set when the batch is done."""
        self.error: DistributedLogError | None = None
        self._event: trio.Event | None = None
        self._callbacks: list[Callable[[], object]] = []

    def set_columns(self, columns: PackedColumns) -> None:
        """Turn an empty batch into an entry with these columns."""
        assert not self.txids, "columns are an entry of their own"
        self.txids, self.columns = columns.txids, columns
        self.has_keyed = columns.is_keyed
        self.size_bytes = columns.column_bytes - 4

    def add_records(
        self, txids: Sequence[int], payloads: Sequence[bytes], sizes: Sequence[int]
    ) -> None:
        """Add records, with the sizes of their payloads in bytes."""
        if not self.payloads:
            self.sizes = list(sizes)
        elif self.sizes is not None:
            self.sizes += sizes
        self.txids += txids
        self.payloads += payloads

    def split_contents(
        self,
    ) -> tuple[Sequence[bytes], list[bytes | None] | None, list[Headers] | None]:
        """Return payloads, keys and headers. A column that no record has is None."""
        if self.has_keyed:
            return split_contents(self.payloads)
        return self.payloads, None, None

    def add_set(self, txid: int, payloads: Sequence[bytes]) -> int:
        """Add a record set and return its first slot."""
        first_set_slot, set_records = len(self.txids), len(payloads)
        if set_records > 1:
            self.sets = [*(self.sets or ()), (first_set_slot, set_records)]
        self.txids += [txid] * set_records
        self.payloads += payloads
        self.has_keyed |= KeyedContent in map(type, payloads)
        return first_set_slot

    def record_flags(self) -> bytearray:
        """Return one byte of flags per record. The batch must have sets."""
        assert self.sets is not None, "asked where there are sets"
        flags = bytearray(len(self.txids))
        for first, set_records in self.sets:
            flags[first : first + set_records - 1] = bytes([RECORD_MORE]) * (set_records - 1)
        return flags

    def finish(self, error: DistributedLogError | None = None) -> None:
        """Set the outcome: stored at (segment, entry), or an error."""
        self.error = error
        self.count = len(self.txids)
        self.is_done = True
        # A pending write that a caller keeps must not keep the payloads in memory.
        self.txids = self.payloads = ()
        self.columns = self.sizes = None
        if self._event is not None:
            self._event.set()
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # another thread removed the last one just now
                break
            callback()

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once when the outcome is known, possibly during this call. It must not raise.

        Thread-safe: this method appends before it reads ``is_done``, and `finish` sets ``is_done`` before it
        reads the callbacks.
        """
        self._callbacks.append(callback)
        if self.is_done and self.remove_done_callback(callback):
            callback()

    def remove_done_callback(self, callback: Callable[[], object]) -> bool:
        """Remove a callback of `add_done_callback`. Thread-safe.

        Returns:
            False if the callback was called or is about to be called.
        """
        try:
            self._callbacks.remove(callback)
        except ValueError:
            return False
        return True

    async def wait(self) -> None:
        """Wait until the outcome is known. Cancelling the wait does not withdraw the records (H31)."""
        if not self.is_done:
            if self._event is None:
                self._event = trio.Event()
            await self._event.wait()

    def dlsn(self, slot: int) -> DLSN:
        """Return the position of the record in a slot. Raise the error of the batch."""
        if self.error is not None:
            raise self.error.again()
        return DLSN(self.segment, self.entry, self.first_slot + slot)


def _positions(batch: EntryBatch, slot: int, record_count: int) -> "map[DLSN]":
    """Return the positions of ``record_count`` records of a stored batch.

    The C-level ``map`` halves the cost.
    """
    slot += batch.first_slot
    components = zip(repeat(batch.segment), repeat(batch.entry), range(slot, slot + record_count))
    return map(_new_tuple, repeat(DLSN), components)


class PendingWrite:
    """An accepted record. Await it to get its DLSN once the record is durable, or the error (G2, G7).

    Cancelling the wait does not withdraw the write.
    """

    __slots__ = ("_batch", "_slot")

    # No `__init__`: an object is created per record, and a Python-level call costs a fifteenth of `submit`.
    _batch: EntryBatch
    _slot: int

    @classmethod
    def of(cls, batch: EntryBatch, slot: int) -> "PendingWrite":
        """Return the pending write of the record in a slot of a batch."""
        pending = cls()
        pending._batch = batch
        pending._slot = slot
        return pending

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._batch.is_done

    def result(self) -> DLSN:
        """Return the DLSN.

        Raises:
            InvalidRequest: The outcome is not known yet.
            DistributedLogError: The write failed.
        """
        if not self._batch.is_done:
            raise InvalidRequest("the write is not done yet. Await it.")
        return self._batch.dlsn(self._slot)

    def __await__(self) -> Generator[Any, Any, DLSN]:
        if not self._batch.is_done:
            yield from self._batch.wait().__await__()
        return self._batch.dlsn(self._slot)

    def __repr__(self) -> str:
        return f"PendingWrite({outcome_text(self)})"


def outcome_text(pending: Any) -> str:
    """Describe a pending write or bulk for a ``repr``: its position, its error, or "pending"."""
    if not pending.done():
        return "pending"
    try:
        result = pending.result()
    except DistributedLogError as error:
        return f"{type(error).__name__}: {error}"
    if isinstance(result, DLSN):
        return str(result)
    return f"{result[0]} to {result[-1]}" if result else "no record"


class PendingBulk(Sequence[PendingWrite]):
    """Records that were submitted in one call. Await it to get their DLSNs, or the first error.

    One record, ``bulk[i]``, can be awaited alone. A rejected record has its error, and the records before it
    are written. The records after it are not accepted (`WriteCancelled`).
    """

    __slots__ = ("_first_indexes", "_length", "_spans", "accepted_count")

    def __init__(self, length: int) -> None:
        self._length = length
        self.accepted_count = length
        """The number of records before the first one that was not accepted."""
        self._spans: list[tuple[int, EntryBatch, int]] = []  # first index, batch, slot of the first
        self._first_indexes: list[int] = []

    def add_span(self, index: int, batch: EntryBatch, slot: int) -> None:
        """State that the records from ``index`` on are in ``batch`` from ``slot`` on."""
        self._spans.append((index, batch, slot))
        self._first_indexes.append(index)

    def add_refused(self, index: int, error: DistributedLogError) -> None:
        """State that the records from ``index`` to the next span were not accepted."""
        batch = EntryBatch()
        batch.finish(error)
        self.add_span(index, batch, 0)
        self.accepted_count = min(self.accepted_count, index)

    def add_part_of(self, index: int, other: "PendingBulk", first: int, record_count: int) -> None:
        """State that the records from ``index`` on are ``record_count`` records of another bulk, from
        ``first`` on."""
        end_index = first + record_count
        while first < end_index:
            self.add_span(index, *other.locate(first))
            span_index = bisect_right(other._first_indexes, first)
            end = (
                min(end_index, other._first_indexes[span_index])
                if span_index < len(other._first_indexes)
                else end_index
            )
            index, first = index + end - first, end

    def when_done(self, callback: Callable[[], object], span_index: int = 0) -> None:
        """Call ``callback`` once when all outcomes are known, possibly during this call. Thread-safe.

        The call that finishes the last batch runs the callback.

        Args:
            span_index: The spans before this one are done.
        """
        spans = self._spans
        while span_index < len(spans) and spans[span_index][1].is_done:
            span_index += 1
        if span_index < len(spans):
            spans[span_index][1].add_done_callback(partial(self.when_done, callback, span_index))
        else:
            callback()

    def locate(self, index: int) -> tuple[EntryBatch, int]:
        """Return the batch of one record, and its slot in the batch. ``index`` is 0 to the length - 1."""
        first, batch, slot = self._spans[bisect_right(self._first_indexes, index) - 1]
        return batch, slot + index - first

    def done(self) -> bool:
        """Return whether all outcomes are known."""
        return all(batch.is_done for _, batch, _ in self._spans)

    @property
    def not_durable(self) -> int:
        """The number of records that are not known to be durable."""
        return sum(
            end - first
            for first, end, batch, _ in self._spans_with_ends()
            if not batch.is_done or batch.error is not None
        )

    async def wait(self) -> None:
        """Wait until all outcomes are known. Raise no error of a write."""
        for _, batch, _ in self._spans:
            await batch.wait()

    async def outcomes(self) -> list[DLSN | DistributedLogError]:
        """Wait until all outcomes are known, and return one DLSN or error per record."""
        await self.wait()
        return self.known_outcomes()

    def known_outcomes(self) -> list[DLSN | DistributedLogError]:
        """Return one DLSN or error per record. The bulk must be done."""
        outcomes: list[DLSN | DistributedLogError] = []
        for first, end, batch, slot in self._spans_with_ends():
            if batch.error is not None:
                outcomes += [batch.error] * (end - first)
            else:
                outcomes += _positions(batch, slot, end - first)
        return outcomes

    def result(self) -> list[DLSN]:
        """Return the DLSNs of all records.

        Raises:
            InvalidRequest: An outcome is not known yet.
            DistributedLogError: The first error of a record.
        """
        if not self.done():
            raise InvalidRequest("the writes are not done yet. Await them.")
        positions: list[DLSN] = []
        for first, end, batch, slot in self._spans_with_ends():
            if batch.error is not None:
                raise batch.error.again()
            positions += _positions(batch, slot, end - first)
        return positions

    def __await__(self) -> Generator[Any, Any, list[DLSN]]:
        yield from self.wait().__await__()
        return self.result()

    def __repr__(self) -> str:
        return f"PendingBulk({self._length} records, {outcome_text(self)})"

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> PendingWrite: ...

    @overload
    def __getitem__(self, index: slice) -> list[PendingWrite]: ...

    def __getitem__(self, index: int | slice) -> PendingWrite | list[PendingWrite]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        if index < 0:
            index += self._length
        if not 0 <= index < self._length:
            raise IndexError(index)
        return PendingWrite.of(*self.locate(index))

    def _spans_with_ends(self) -> list[tuple[int, int, EntryBatch, int]]:
        """Return first index, end index (exclusive), batch and slot of the first record, per span."""
        ends = [first for first, _, _ in self._spans] + [self._length]
        return [
            (first, end, batch, slot)
            for (first, batch, slot), end in zip(self._spans, ends[1:], strict=True)
        ]
