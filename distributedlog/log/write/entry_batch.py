"""Records on their way: one outcome an entry, shared by all its records (no event or task a record)."""

from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import trio

from ...runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
)
from ..format.dlsn import DLSN
from ..format.packed_columns import PackedColumns
from ..format.producer_table import EntryProducers
from ..format.record import RECORD_MORE

_new_tuple = tuple.__new__
"""What makes a `DLSN` of its three numbers, without the call in Python that `DLSN` itself is."""


class EntryBatch:
    """The records of one entry, from the first that is buffered until the entry's outcome is known."""

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
        """Ints: a list, or a view of what came packed."""
        self.payloads: Any = []
        """A list of bytes, until it is done."""
        self.sizes: list[int] | None = None
        """Of the payloads, bytes, where all came with them (`take_columns`); fewer say nothing."""
        self.columns: PackedColumns | None = None
        """Instead of `payloads`, where they came as the columns of an entry (`set_columns`)."""
        self.sets: list[tuple[int, int]] | None = None
        """First slot and number of records of each set; None: there is none."""
        self.producer_section: EntryProducers | None = None
        """What it has of producers; with openings or a snapshot it has no record."""
        self.is_unordered = False
        """Is one of its txids lower than one before it?"""
        self.has_given_txids = False
        """Did its records come with txids? Set where a proxy fills in those of other batches."""
        self.max_txid = -1
        """The greatest of its segment up to this entry, once it was sent."""
        self.size_bytes = 0
        """Columns and payloads; what counts against the writer's bound."""
        self.stored_bytes = 0
        """Of its entry, once it was sent."""
        self.bytes_max = bytes_max
        """What it may grow to, before `Pipeline.fit` is asked."""
        self.segment = 0
        self.entry = -1
        """Where it was sent; may change while it is not done (a roll after an error)."""
        self.first_slot = 0
        """Of its first record in that entry: other than 0 where a proxy put it behind others' records."""
        self.is_done = False
        self.count = 0
        """Its records, once it is done."""
        self.error: DistributedLogError | None = None
        self._event: trio.Event | None = None
        self._callbacks: list[Callable[[], object]] = []

    def set_columns(self, columns: PackedColumns) -> None:
        """An empty batch becomes an entry of these columns."""
        assert not self.txids, "columns are an entry of their own"
        self.txids, self.columns = columns.txids, columns
        self.size_bytes = columns.column_bytes - 4

    def add_records(
        self, txids: Sequence[int], payloads: Sequence[bytes], sizes: Sequence[int]
    ) -> None:
        """Put records into it; ``sizes``: of the payloads, bytes."""
        if not self.payloads:
            self.sizes = list(sizes)
        elif self.sizes is not None:
            self.sizes += sizes
        self.txids += txids
        self.payloads += payloads

    def add_set(self, txid: int, payloads: Sequence[bytes]) -> int:
        """Put a set into it; its first slot."""
        first_set_slot, set_records = len(self.txids), len(payloads)
        if set_records > 1:
            self.sets = [*(self.sets or ()), (first_set_slot, set_records)]
        self.txids += [txid] * set_records
        self.payloads += payloads
        return first_set_slot

    def record_flags(self) -> bytearray:
        """A byte a record, of a batch with sets."""
        assert self.sets is not None, "asked where there are sets"
        flags = bytearray(len(self.txids))
        for first, set_records in self.sets:
            flags[first : first + set_records - 1] = bytes([RECORD_MORE]) * (set_records - 1)
        return flags

    def finish(self, error: DistributedLogError | None = None) -> None:
        """The outcome is known: stored at (segment, entry), or an error."""
        self.error = error
        self.count = len(self.txids)
        self.is_done = True
        # Whoever keeps a handle must not keep the bytes.
        self.txids = self.payloads = ()
        self.columns = self.sizes = None
        if self._event is not None:
            self._event.set()
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # it was taken back at this moment
                break
            callback()

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Have it called once, by `finish`, or here where the outcome is known. It must not raise.

        From any thread: here ``done`` is looked at after the appending, in `finish` it is set before.
        """
        self._callbacks.append(callback)
        if self.is_done and self.remove_done_callback(callback):
            callback()

    def remove_done_callback(self, callback: Callable[[], object]) -> bool:
        """Take back what was given to `when_done`; False: it was called, or just will be. From any thread."""
        try:
            self._callbacks.remove(callback)
        except ValueError:
            return False
        return True

    async def wait(self) -> None:
        """Until `done`. Cancelling the wait withdraws nothing (H31)."""
        if not self.is_done:
            if self._event is None:
                self._event = trio.Event()
            await self._event.wait()

    def dlsn(self, slot: int) -> DLSN:
        """The position of one record. Raises the batch's error."""
        if self.error is not None:
            raise self.error.again()
        return DLSN(self.segment, self.entry, self.first_slot + slot)


def _positions(batch: EntryBatch, slot: int, record_count: int) -> "map[DLSN]":
    """The positions of ``number`` records of a batch that is stored; made in C, at half the cost."""
    slot += batch.first_slot
    components = zip(repeat(batch.segment), repeat(batch.entry), range(slot, slot + record_count))
    return map(_new_tuple, repeat(DLSN), components)


class PendingWrite:
    """A record that was taken: ``await`` gives its DLSN once it is durable, or raises (G2, G7).

    Cancelling the wait does not withdraw the write.
    """

    __slots__ = ("_batch", "_slot")

    # No `__init__`: one is made a record, and a call of Python's own is a fifteenth of what `submit` costs.
    _batch: EntryBatch
    _slot: int

    @classmethod
    def of(cls, batch: EntryBatch, slot: int) -> "PendingWrite":
        """Of the record in that slot."""
        pending = cls()
        pending._batch = batch
        pending._slot = slot
        return pending

    def done(self) -> bool:
        """Is the outcome known?"""
        return self._batch.is_done

    def result(self) -> DLSN:
        """The DLSN. Raises the write's error, or `InvalidRequest` while the outcome is not known."""
        if not self._batch.is_done:
            raise InvalidRequest("the write is not done yet: await it")
        return self._batch.dlsn(self._slot)

    def __await__(self) -> Generator[Any, Any, DLSN]:
        if not self._batch.is_done:
            yield from self._batch.wait().__await__()
        return self._batch.dlsn(self._slot)

    def __repr__(self) -> str:
        return f"PendingWrite({outcome_text(self)})"


def outcome_text(pending: Any) -> str:
    """Of a write, or of many: the position, the error, or that it is on its way. For a ``repr``."""
    if not pending.done():
        return "on its way"
    try:
        result = pending.result()
    except DistributedLogError as error:
        return f"{type(error).__name__}: {error}"
    if isinstance(result, DLSN):
        return str(result)
    return f"{result[0]} to {result[-1]}" if result else "no record"


class PendingBulk(Sequence[PendingWrite]):
    """Records that were handed over in one call; ``await`` gives their DLSNs, or raises the first error.

    One of them, ``bulk[i]``, can be awaited alone. A record that was refused has its error; those after it
    were not taken (`WriteCancelled`), those before it are written.
    """

    __slots__ = ("_first_indexes", "_length", "_spans")

    def __init__(self, length: int) -> None:
        self._length = length
        self._spans: list[tuple[int, EntryBatch, int]] = []  # first index, batch, slot of the first
        self._first_indexes: list[int] = []

    def add_span(self, index: int, batch: EntryBatch, slot: int) -> None:
        """Records from ``index`` on are in this batch from ``slot`` on."""
        self._spans.append((index, batch, slot))
        self._first_indexes.append(index)

    def add_refused(self, index: int, error: DistributedLogError) -> None:
        """Records from ``index`` on (to the next span) were not taken."""
        batch = EntryBatch()
        batch.finish(error)
        self.add_span(index, batch, 0)

    def add_part_of(self, index: int, other: "PendingBulk", first: int, record_count: int) -> None:
        """Records from ``index`` on are ``number`` of another bulk, from ``first`` on."""
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
        """Have it called once all are known, by who finishes the last, or here. From any thread."""
        spans = self._spans
        while span_index < len(spans) and spans[span_index][1].is_done:
            span_index += 1
        if span_index < len(spans):
            spans[span_index][1].add_done_callback(partial(self.when_done, callback, span_index))
        else:
            callback()

    def locate(self, index: int) -> tuple[EntryBatch, int]:
        """The batch of one record, 0 to the length - 1, and its slot there."""
        first, batch, slot = self._spans[bisect_right(self._first_indexes, index) - 1]
        return batch, slot + index - first

    def done(self) -> bool:
        """Are all outcomes known?"""
        return all(batch.is_done for _, batch, _ in self._spans)

    @property
    def not_durable(self) -> int:
        """How many of the records are not known to be durable."""
        return sum(
            end - first
            for first, end, batch, _ in self._spans_with_ends()
            if not batch.is_done or batch.error is not None
        )

    async def wait(self) -> None:
        """Until `done`; raises nothing."""
        for _, batch, _ in self._spans:
            await batch.wait()

    async def outcomes(self) -> list[DLSN | DistributedLogError]:
        """One a record, when all are known."""
        await self.wait()
        return self.known_outcomes()

    def known_outcomes(self) -> list[DLSN | DistributedLogError]:
        """One a record, of a bulk that is done."""
        outcomes: list[DLSN | DistributedLogError] = []
        for first, end, batch, slot in self._spans_with_ends():
            if batch.error is not None:
                outcomes += [batch.error] * (end - first)
            else:
                outcomes += _positions(batch, slot, end - first)
        return outcomes

    def result(self) -> list[DLSN]:
        """The DLSNs. Raises the first error, or `InvalidRequest` while an outcome is not known."""
        if not self.done():
            raise InvalidRequest("the writes are not done yet: await them")
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

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        if index < 0:
            index += self._length
        if not 0 <= index < self._length:
            raise IndexError(index)
        return PendingWrite.of(*self.locate(index))

    def _spans_with_ends(self) -> list[tuple[int, int, EntryBatch, int]]:
        """First index, the one after the last, batch, slot of the first."""
        ends = [first for first, _, _ in self._spans] + [self._length]
        return [
            (first, end, batch, slot)
            for (first, batch, slot), end in zip(self._spans, ends[1:], strict=True)
        ]
