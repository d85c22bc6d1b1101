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
from ..format.producer_table import Carried
from ..format.record import RECORD_MORE

_new_tuple = tuple.__new__
"""What makes a `DLSN` of its three numbers, without the call in Python that `DLSN` itself is."""


class EntryBatch:
    """The records of one entry, from the first that is buffered until the entry's outcome is known."""

    __slots__ = (
        "_callbacks", "_event", "bytes", "bytes_max", "carried", "columns", "count", "done", "entry", "error",
        "first_slot", "given", "max_txid", "payloads", "segment", "sets", "sizes", "stored_bytes", "txids",
        "unordered",
    )  # fmt: skip

    def __init__(self, bytes_max: int = 0) -> None:
        self.txids: Any = []
        """Ints: a list, or a view of what came packed."""
        self.payloads: Any = []
        """A list of bytes, until it is done."""
        self.sizes: list[int] | None = None
        """Of the payloads, bytes, where all came with them (`take_columns`); fewer say nothing."""
        self.columns: PackedColumns | None = None
        """Instead of `payloads`, where they came as the columns of an entry (`take_packed`)."""
        self.sets: list[tuple[int, int]] | None = None
        """First slot and number of records of each set; None: there is none."""
        self.carried: Carried | None = None
        """What it has of producers; with openings or a snapshot it has no record."""
        self.unordered = False
        """Is one of its txids lower than one before it?"""
        self.given = False
        """Did its records come with txids? Set where a proxy fills in those of other batches."""
        self.max_txid = -1
        """The greatest of its segment up to this entry, once it was sent."""
        self.bytes = 0
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
        self.done = False
        self.count = 0
        """Its records, once it is done."""
        self.error: DistributedLogError | None = None
        self._event: trio.Event | None = None
        self._callbacks: list[Callable[[], object]] = []

    def take_packed(self, columns: PackedColumns) -> None:
        """An empty batch becomes an entry of these columns."""
        assert not self.txids, "columns are an entry of their own"
        self.txids, self.columns = columns.txids, columns
        self.bytes = columns.column_bytes - 4

    def take_columns(
        self, txids: Sequence[int], payloads: Sequence[bytes], sizes: Sequence[int]
    ) -> None:
        """Put records into it; ``sizes``: of the payloads, bytes."""
        if not self.payloads:
            self.sizes = list(sizes)
        elif self.sizes is not None:
            self.sizes += sizes
        self.txids += txids
        self.payloads += payloads

    def take_set(self, txid: int, payloads: Sequence[bytes]) -> int:
        """Put a set into it; its first slot."""
        first, number = len(self.txids), len(payloads)
        if number > 1:
            self.sets = [*(self.sets or ()), (first, number)]
        self.txids += [txid] * number
        self.payloads += payloads
        return first

    def record_flags(self) -> bytearray:
        """A byte a record, of a batch with sets."""
        assert self.sets is not None, "asked where there are sets"
        flags = bytearray(len(self.txids))
        for first, number in self.sets:
            flags[first : first + number - 1] = bytes([RECORD_MORE]) * (number - 1)
        return flags

    def finish(self, error: DistributedLogError | None = None) -> None:
        """The outcome is known: stored at (segment, entry), or an error."""
        self.error = error
        self.count = len(self.txids)
        self.done = True
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

    def when_done(self, callback: Callable[[], object]) -> None:
        """Have it called once, by `finish`, or here where the outcome is known. It must not raise.

        From any thread: here ``done`` is looked at after the appending, in `finish` it is set before.
        """
        self._callbacks.append(callback)
        if self.done and self.forget(callback):
            callback()

    def forget(self, callback: Callable[[], object]) -> bool:
        """Take back what was given to `when_done`; False: it was called, or just will be. From any thread."""
        try:
            self._callbacks.remove(callback)
        except ValueError:
            return False
        return True

    async def wait(self) -> None:
        """Until `done`. Cancelling the wait withdraws nothing (H31)."""
        if not self.done:
            if self._event is None:
                self._event = trio.Event()
            await self._event.wait()

    def dlsn(self, slot: int) -> DLSN:
        """The position of one record. Raises the batch's error."""
        if self.error is not None:
            raise self.error.again()
        return DLSN(self.segment, self.entry, self.first_slot + slot)


def _positions(batch: EntryBatch, slot: int, number: int) -> "map[DLSN]":
    """The positions of ``number`` records of a batch that is stored; made in C, at half the cost."""
    slot += batch.first_slot
    places = zip(repeat(batch.segment), repeat(batch.entry), range(slot, slot + number))
    return map(_new_tuple, repeat(DLSN), places)


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
        return self._batch.done

    def result(self) -> DLSN:
        """The DLSN. Raises the write's error, or `InvalidRequest` while the outcome is not known."""
        if not self._batch.done:
            raise InvalidRequest("the write is not done yet: await it")
        return self._batch.dlsn(self._slot)

    def __await__(self) -> Generator[Any, Any, DLSN]:
        if not self._batch.done:
            yield from self._batch.wait().__await__()
        return self._batch.dlsn(self._slot)

    def __repr__(self) -> str:
        return f"PendingWrite({state_of(self)})"


def state_of(pending: Any) -> str:
    """Of a write, or of many: the position, the error, or that it is on its way. For a ``repr``."""
    if not pending.done():
        return "on its way"
    try:
        found = pending.result()
    except DistributedLogError as error:
        return f"{type(error).__name__}: {error}"
    if isinstance(found, DLSN):
        return str(found)
    return f"{found[0]} to {found[-1]}" if found else "no record"


class PendingBulk(Sequence[PendingWrite]):
    """Records that were handed over in one call; ``await`` gives their DLSNs, or raises the first error.

    One of them, ``bulk[i]``, can be awaited alone. A record that was refused has its error; those after it
    were not taken (`WriteCancelled`), those before it are written.
    """

    __slots__ = ("_firsts", "_length", "_spans")

    def __init__(self, length: int) -> None:
        self._length = length
        self._spans: list[tuple[int, EntryBatch, int]] = []  # first index, batch, slot of the first
        self._firsts: list[int] = []

    def took(self, index: int, batch: EntryBatch, slot: int) -> None:
        """Records from ``index`` on are in this batch from ``slot`` on."""
        self._spans.append((index, batch, slot))
        self._firsts.append(index)

    def refused(self, index: int, error: DistributedLogError) -> None:
        """Records from ``index`` on (to the next span) were not taken."""
        batch = EntryBatch()
        batch.finish(error)
        self.took(index, batch, 0)

    def took_part(self, index: int, other: "PendingBulk", first: int, number: int) -> None:
        """Records from ``index`` on are ``number`` of another bulk, from ``first`` on."""
        stop = first + number
        while first < stop:
            self.took(index, *other.place(first))
            at = bisect_right(other._firsts, first)
            end = min(stop, other._firsts[at]) if at < len(other._firsts) else stop
            index, first = index + end - first, end

    def when_done(self, callback: Callable[[], object], at: int = 0) -> None:
        """Have it called once all are known, by who finishes the last, or here. From any thread."""
        spans = self._spans
        while at < len(spans) and spans[at][1].done:
            at += 1
        if at < len(spans):
            spans[at][1].when_done(partial(self.when_done, callback, at))
        else:
            callback()

    def place(self, index: int) -> tuple[EntryBatch, int]:
        """The batch of one record, 0 to the length - 1, and its slot there."""
        first, batch, slot = self._spans[bisect_right(self._firsts, index) - 1]
        return batch, slot + index - first

    def done(self) -> bool:
        """Are all outcomes known?"""
        return all(batch.done for _, batch, _ in self._spans)

    @property
    def not_durable(self) -> int:
        """How many of the records are not known to be durable."""
        return sum(
            end - first
            for first, end, batch, _ in self._ended_spans()
            if not batch.done or batch.error is not None
        )

    async def wait(self) -> None:
        """Until `done`; raises nothing."""
        for _, batch, _ in self._spans:
            await batch.wait()

    async def outcomes(self) -> list[DLSN | DistributedLogError]:
        """One a record, when all are known."""
        await self.wait()
        return self.known()

    def known(self) -> list[DLSN | DistributedLogError]:
        """One a record, of a bulk that is done."""
        found: list[DLSN | DistributedLogError] = []
        for first, end, batch, slot in self._ended_spans():
            if batch.error is not None:
                found += [batch.error] * (end - first)
            else:
                found += _positions(batch, slot, end - first)
        return found

    def result(self) -> list[DLSN]:
        """The DLSNs. Raises the first error, or `InvalidRequest` while an outcome is not known."""
        if not self.done():
            raise InvalidRequest("the writes are not done yet: await them")
        found: list[DLSN] = []
        for first, end, batch, slot in self._ended_spans():
            if batch.error is not None:
                raise batch.error.again()
            found += _positions(batch, slot, end - first)
        return found

    def __await__(self) -> Generator[Any, Any, list[DLSN]]:
        yield from self.wait().__await__()
        return self.result()

    def __repr__(self) -> str:
        return f"PendingBulk({self._length} records, {state_of(self)})"

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        if index < 0:
            index += self._length
        if not 0 <= index < self._length:
            raise IndexError(index)
        return PendingWrite.of(*self.place(index))

    def _ended_spans(self) -> list[tuple[int, int, EntryBatch, int]]:
        """First index, the one after the last, batch, slot of the first."""
        ends = [first for first, _, _ in self._spans] + [self._length]
        return [
            (first, end, batch, slot)
            for (first, batch, slot), end in zip(self._spans, ends[1:], strict=True)
        ]
