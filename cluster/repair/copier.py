"""Copies of entries of closed ledgers: which ones a bookie should hold, and how it gets them.

Only closed ledgers, whose end is known and whose entries never change: nothing is fenced and no live
writer is disturbed (H22b). One that is being recovered has no writer; of that it is said where what is wanted
ends (`corruption_repair.py`). Records go verbatim, as recovery adds, which a fenced ledger takes, and each is
verified on its way (inv. 28). One batch of a ledger is in flight at a time, and a pause after each
keeps the rate, of all ledgers together: whoever repairs must not starve those who write.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import trio

from ...bookie.client.bookie_client import BookieClient, EntryList
from ...bookie.format.entry import EntryRecord, records
from ...bookie.session.session_reads import LIST_RANGES_MAX
from ...ledger.model.ledger_metadata import LedgerMetadata
from ...ledger.model.missing_range import MissingRange
from ...runtime.interfaces.errors import (
    ConnectionLost,
    CorruptData,
    DistributedLogError,
    LedgerStateUnknown,
    NoSuchLedger,
    RequestTimeout,
)
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.capabilities import CapabilityKind
from ..declarations.options import RATE_BYTES_PER_S

REQUEST_S = 10.0
BATCH_BYTES = 1024 * 1024
"""Of records in flight at a time."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Entries first..last, inclusive, that a bookie should hold."""

    first: int
    last: int


class Stretches:
    """Stretches of entries, ascending; found as they are asked for, each time anew.

    A record may say that a ledger has 2^62 entries, whoever wrote it: nobody makes a list of that.
    """

    def __init__(self, find: Callable[[], Iterator[Missing]]) -> None:
        self._find = find

    def __iter__(self) -> Iterator[Missing]:
        return self._find()

    def __bool__(self) -> bool:
        return next(self._find(), None) is not None


def wanted(metadata: LedgerMetadata, hole: MissingRange) -> Stretches:
    """The entries of a ledger that the hole's bookie should hold; one of the two has an end.

    None where an ensemble change has put another bookie in its place since.
    """

    def find() -> Iterator[Missing]:
        for index, fragment in enumerate(metadata.ensembles):
            if hole.bookie in fragment.bookies:
                slot = fragment.bookies.index(hole.bookie)
                yield from held_by_slot(metadata, index, slot, hole.first, hole.to)

    return Stretches(find)


def held_by_slot(
    metadata: LedgerMetadata, index: int, slot: int, first: int = 0, to: int | None = None
) -> Stretches:
    """The entries from ``first`` to before ``to`` that a slot of fragment ``index`` should hold.

    Not those that were declared lost.
    """
    held = Stretches(partial(_held_by_slot, metadata, index, slot, first, to))
    if metadata.lost:
        return without(held, [(one.first, one.last + 1 - one.first) for one in metadata.lost])
    return held


def _held_by_slot(
    metadata: LedgerMetadata, index: int, slot: int, first: int, to: int | None
) -> Iterator[Missing]:
    striping = metadata.striping
    ends = [metadata.fragment_end(index), to]
    if metadata.last_entry is not None:
        ends.append(metadata.last_entry + 1)
    stop = min((end for end in ends if end is not None), default=None)
    assert stop is not None, "of a ledger that is not closed, what ends somewhere is asked for"
    entry = striping.next_held(slot, max(first, metadata.ensembles[index].first_entry))
    while entry < stop:
        last = entry
        while last + 1 < stop and striping.holds(slot, last + 1):
            if striping.everywhere:
                last = stop - 1
                break
            last += 1
        yield Missing(entry, last)
        entry = striping.next_held(slot, last + 1)


def without(stretches: Iterable[Missing], present: list[tuple[int, int]]) -> Stretches:
    """The stretches less what is present already: (first, count) runs; both ascending."""
    return Stretches(partial(_without, stretches, present))


def _without(stretches: Iterable[Missing], present: list[tuple[int, int]]) -> Iterator[Missing]:
    begin = 0
    for stretch in stretches:
        first = stretch.first
        while begin < len(present) and sum(present[begin]) <= first:
            begin += 1  # lies before this stretch, and before those after it
        for at in range(begin, len(present)):
            run_first, count = present[at]
            if run_first > stretch.last:
                break
            if run_first > first:
                yield Missing(first, run_first - 1)
            first = run_first + count
            if first > stretch.last:
                break
        if first <= stretch.last:
            yield Missing(first, stretch.last)


def lacking(metadata: LedgerMetadata, bookie: str, held: EntryList) -> Stretches:
    """What a bookie should hold of a closed ledger and, by its own list, does not.

    A list that was cut at its bound says nothing of what lies after its last run.
    """
    return without(wanted(metadata, MissingRange(bookie, 0, known_to(held))), held.ranges)


def known_to(held: EntryList) -> int | None:
    """Where what a list says ends, if it was cut."""
    if not held.known and len(held.ranges) >= LIST_RANGES_MAX:
        return sum(held.ranges[-1])
    return None


class Connections(Protocol):
    """What is asked of a pool of bookies."""

    def get(self, bookie_id: str) -> BookieClient | None:
        """The connection to a bookie, or None while there is none."""
        ...


class Copier:
    """Copies stretches of closed ledgers from bookie to bookie."""

    def __init__(self, pool: Connections, *, bytes_per_s: int = RATE_BYTES_PER_S) -> None:
        self._pool = pool
        self._bytes_per_s = bytes_per_s
        self._paid_at = float("-inf")
        """When the rate allows more than what was copied."""
        self.copied_entries = 0
        """Since the start, for counters."""
        self.copied_bytes = 0
        """Of their records."""

    async def copy(
        self,
        metadata: LedgerMetadata,
        stretches: Iterable[Missing],
        bookie: str,
        target: BookieClient,
    ) -> int:
        """Store the stretches on ``target``, the connection to ``bookie``; return how many entries.

        All are durable there when it returns. What is there already is asked first, and not sent.
        Raises `ConnectionLost` where no copy of an entry is to be had now, and what the target answers.
        """
        if not stretches:
            return 0
        held = await list_held(metadata, target)
        copied = 0
        for stretch in without(stretches, held.ranges):
            entry = stretch.first
            while entry <= stretch.last:
                batch = await self._fetch(metadata, entry, stretch.last, bookie)
                await _store(metadata, target, batch)
                entry = batch[-1].entry + 1
                copied += len(batch)
                self.copied_entries += len(batch)
                self.copied_bytes += sum(len(record.raw) for record in batch)
                await self._pay(batch)
        return copied

    async def obtainable(self, metadata: LedgerMetadata, stretch: Missing, bookie: str) -> None:
        """Read a stretch from other bookies than this. Raises `ConnectionLost` where one is not to be had."""
        entry = stretch.first
        while entry <= stretch.last:
            batch = await self._fetch(metadata, entry, stretch.last, bookie)
            entry = batch[-1].entry + 1
            await trio.sleep(sum(len(record.raw) for record in batch) / self._bytes_per_s)

    async def verify(
        self, metadata: LedgerMetadata, stretches: Iterable[Missing], target: BookieClient
    ) -> Missing | None:
        """Read the stretches back from ``target``; the first that is absent or damaged there, or None."""
        for stretch in stretches:
            entry = stretch.first
            while entry <= stretch.last:
                batch = await _read(metadata, target, entry, stretch.last)
                if not batch:
                    return Missing(entry, stretch.last)
                entry = batch[-1].entry + 1
                await self._pay(batch)
        return None

    async def _pay(self, batch: list[EntryRecord]) -> None:
        """Wait until the rate allows what was copied, by whomever."""
        cost_s = sum(len(record.raw) for record in batch) / self._bytes_per_s
        self._paid_at = max(self._paid_at, trio.current_time()) + cost_s
        await trio.sleep_until(self._paid_at)

    async def _fetch(
        self, metadata: LedgerMetadata, first: int, last: int, without_bookie: str
    ) -> list[EntryRecord]:
        """Consecutive entries from ``first`` on, at least one, from any other bookie that has them."""
        striping = metadata.striping
        bookies = metadata.fragment_of(first).bookies
        said: list[str] = []
        for slot in striping.write_set(first):
            if bookies[slot] == without_bookie:
                continue
            source = self._pool.get(bookies[slot])
            if source is None:
                said.append(f"{bookies[slot]}: not connected")
                continue
            try:
                found = await _read(metadata, source, first, last)
            except DistributedLogError as error:  # in limbo, busy, gone: another one may serve
                said.append(f"{bookies[slot]}: {error}")
                continue
            if found:
                return found
            said.append(f"{bookies[slot]}: does not have it")
        raise ConnectionLost(
            f"ledger {metadata.ledger_id} entry {first}: no copy to be had now ({'; '.join(said)})"
        )


async def list_held(metadata: LedgerMetadata, target: BookieClient) -> EntryList:
    """What the target has already; nothing of a ledger that it does not know, or lost (limbo)."""
    try:
        return await target.list_entries(metadata.ledger_id, metadata.key, timeout_s=REQUEST_S)
    except NoSuchLedger:
        return EntryList([], known=True)
    except LedgerStateUnknown:
        return EntryList([], known=False)


async def _read(
    metadata: LedgerMetadata, source: BookieClient, first: int, last: int
) -> list[EntryRecord]:
    """Sound consecutive entries from ``first`` on, as far as the source has them."""
    # Past the LAC that the source has heard of: the end of a closed ledger is known better.
    answer = await source.read(
        metadata.ledger_id,
        metadata.key,
        first,
        last,
        BATCH_BYTES,
        past_lac=True,
        timeout_s=REQUEST_S,
    )
    return consecutive(answer.body, metadata.ledger_id, first)


def consecutive(body: Buffer, ledger_id: int, first: int) -> list[EntryRecord]:
    """The sound records ``first``, ``first`` + 1, … at the head of ``body``, up to the first that is not."""
    found: list[EntryRecord] = []
    try:
        for record in records(body):
            if record.entry != first + len(found) or record.ledger != ledger_id:
                break
            found.append(record)
    except CorruptData:
        pass  # what stands before the damage counts
    return found


async def _store(metadata: LedgerMetadata, target: BookieClient, batch: list[EntryRecord]) -> None:
    """Recovery adds, until all are durable at the target."""
    done = trio.Event()
    refused: list[DistributedLogError] = []

    def on_acked(count: int) -> None:
        if count >= len(batch):
            done.set()

    def on_refused(position: int, error: DistributedLogError) -> None:
        refused.append(error)
        done.set()

    await target.have_capability(CapabilityKind.RECOVER, metadata.ledger_id, REQUEST_S)
    stream = target.open_stream(
        metadata.ledger_id,
        metadata.key,
        recovery=True,
        fragment_epoch=metadata.fragment_of(batch[0].entry).epoch,
        on_acked=on_acked,
        on_refused=on_refused,
    )
    try:
        for record in batch:
            stream.send(record.raw)
        with trio.move_on_after(REQUEST_S):
            await done.wait()
    finally:
        stream.close()
    if refused:
        raise refused[0]
    if not done.is_set():
        raise RequestTimeout(
            f"ledger {metadata.ledger_id} entry {batch[0].entry}: no ack of a copy in {REQUEST_S:g} s"
        )
