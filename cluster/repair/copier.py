"""Copy entries of closed ledgers between bookies, and compute the entries that a bookie should hold.

Only closed ledgers are copied: their end is known and their entries never change. So nothing is fenced, and
no writer is disturbed (H22b). `corruption_repair.py` also copies entries of a ledger in recovery, which has
no writer. For such a ledger, the caller states where the requested range ends.

Records are copied verbatim, as recovery adds, which a fenced ledger accepts. Each record is verified on its
way (inv. 28). One batch of a ledger is in flight at a time. A pause after each batch limits the rate of all
ledgers together, so that repair does not slow down writers.
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
"""Bytes of records that are in flight at a time."""


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries first..last, inclusive."""

    first: int
    last: int


class EntryRanges:
    """Ranges of entries in ascending order, computed again by each iteration.

    The ranges are never stored as a list: a corrupt or malicious record can claim that a ledger has 2^62
    entries.
    """

    def __init__(self, find: Callable[[], Iterator[EntryRange]]) -> None:
        self._find = find

    def __iter__(self) -> Iterator[EntryRange]:
        return self._find()

    def __bool__(self) -> bool:
        return next(self._find(), None) is not None


def ranges_to_hold(ledger: LedgerMetadata, missing: MissingRange) -> EntryRanges:
    """Return the entries in a missing range that its bookie should hold by the ledger's record.

    Either the ledger or the missing range must have an end. The result is empty if an ensemble change has
    replaced the bookie since.
    """

    def find() -> Iterator[EntryRange]:
        for index, fragment in enumerate(ledger.ensembles):
            if missing.bookie in fragment.bookies:
                slot = fragment.bookies.index(missing.bookie)
                yield from ranges_of_slot(ledger, index, slot, missing.first, missing.end)

    return EntryRanges(find)


def ranges_of_slot(
    ledger: LedgerMetadata, fragment_index: int, slot: int, first: int = 0, end: int | None = None
) -> EntryRanges:
    """Return the entries from ``first`` to before ``end`` that a slot of one fragment should hold.

    Entries that were declared lost are excluded.
    """
    ranges = EntryRanges(partial(_iter_ranges_of_slot, ledger, fragment_index, slot, first, end))
    if ledger.lost:
        return subtract(ranges, [(loss.first, loss.last + 1 - loss.first) for loss in ledger.lost])
    return ranges


def _iter_ranges_of_slot(
    ledger: LedgerMetadata, fragment_index: int, slot: int, first: int, end_limit: int | None
) -> Iterator[EntryRange]:
    striping = ledger.striping
    ends = [ledger.fragment_end(fragment_index), end_limit]
    if ledger.last_entry is not None:
        ends.append(ledger.last_entry + 1)
    stop = min((end for end in ends if end is not None), default=None)
    assert stop is not None, "a range of a ledger that is not closed needs an end"
    entry = striping.next_held(slot, max(first, ledger.ensembles[fragment_index].first_entry))
    while entry < stop:
        last = entry
        while last + 1 < stop and striping.holds(slot, last + 1):
            if striping.is_unstriped:
                last = stop - 1
                break
            last += 1
        yield EntryRange(entry, last)
        entry = striping.next_held(slot, last + 1)


def subtract(ranges: Iterable[EntryRange], present_runs: list[tuple[int, int]]) -> EntryRanges:
    """Return the ranges without the entries that are present.

    Args:
        ranges: Ranges in ascending order.
        present_runs: The present entries as (first, count), in ascending order.
    """
    return EntryRanges(partial(_iter_without, ranges, present_runs))


def _iter_without(
    ranges: Iterable[EntryRange], present_runs: list[tuple[int, int]]
) -> Iterator[EntryRange]:
    first_run = 0
    for entry_range in ranges:
        first = entry_range.first
        while first_run < len(present_runs) and sum(present_runs[first_run]) <= first:
            first_run += 1  # before this range and all later ones
        for run_index in range(first_run, len(present_runs)):
            run_first, count = present_runs[run_index]
            if run_first > entry_range.last:
                break
            if run_first > first:
                yield EntryRange(first, run_first - 1)
            first = run_first + count
            if first > entry_range.last:
                break
        if first <= entry_range.last:
            yield EntryRange(first, entry_range.last)


def lacking_ranges(ledger: LedgerMetadata, bookie: str, held_entries: EntryList) -> EntryRanges:
    """Return the entries of a closed ledger that a bookie should hold and does not list.

    If the list was cut at its limit, entries after its last range are not included.
    """
    return subtract(
        ranges_to_hold(ledger, MissingRange(bookie, 0, list_end(held_entries))), held_entries.ranges
    )


def list_end(held_entries: EntryList) -> int | None:
    """Return one past the last entry that a cut list covers; None if the list was not cut."""
    if not held_entries.proves_absence and len(held_entries.ranges) >= LIST_RANGES_MAX:
        return sum(held_entries.ranges[-1])
    return None


class BookieConnections(Protocol):
    """The connections to bookies that repair uses; `BookiePool` provides them."""

    def get(self, bookie_id: str) -> BookieClient | None:
        """Return the connection to a bookie, or None while there is none."""
        ...


class Copier:
    """Copies ranges of ledgers from bookie to bookie, at a limited rate."""

    def __init__(self, pool: BookieConnections, *, bytes_per_s: int = RATE_BYTES_PER_S) -> None:
        self._pool = pool
        self._bytes_per_s = bytes_per_s
        self._rate_free_at = float("-inf")
        """When the rate allows the next batch, by the monotonic clock."""
        self.copied_entries = 0
        """Since the start."""
        self.copied_bytes = 0
        """Bytes of the records of these entries."""

    async def copy(
        self,
        ledger: LedgerMetadata,
        ranges: Iterable[EntryRange],
        target_bookie: str,
        target: BookieClient,
    ) -> int:
        """Copy ranges of entries to a bookie, and return the number of copied entries.

        All entries are durable on the target when the call returns. Entries that the target already lists are
        not sent.

        Args:
            ledger: The record of the ledger.
            ranges: The entries that the target should hold.
            target_bookie: The ID of the target, which is never used as a source.
            target: The connection to the target.

        Raises:
            ConnectionLost: No bookie could provide a copy of an entry.
            RequestTimeout: The target did not acknowledge a batch in time.
            DistributedLogError: The target returned another error.
        """
        if not ranges:
            return 0
        held_entries = await list_held_entries(ledger, target)
        copied = 0
        for entry_range in subtract(ranges, held_entries.ranges):
            entry = entry_range.first
            while entry <= entry_range.last:
                batch = await self._fetch(ledger, entry, entry_range.last, target_bookie)
                await _store(ledger, target, batch)
                entry = batch[-1].entry + 1
                copied += len(batch)
                self.copied_entries += len(batch)
                self.copied_bytes += sum(len(record.record) for record in batch)
                await self._wait_for_rate(batch)
        return copied

    async def check_readable(
        self, ledger: LedgerMetadata, entry_range: EntryRange, except_bookie: str
    ) -> None:
        """Read a range from other bookies than ``except_bookie``, at the limited rate.

        Raises:
            ConnectionLost: No other bookie could provide a copy of an entry.
        """
        entry = entry_range.first
        while entry <= entry_range.last:
            batch = await self._fetch(ledger, entry, entry_range.last, except_bookie)
            entry = batch[-1].entry + 1
            await trio.sleep(sum(len(record.record) for record in batch) / self._bytes_per_s)

    async def verify(
        self, ledger: LedgerMetadata, ranges: Iterable[EntryRange], target: BookieClient
    ) -> EntryRange | None:
        """Read ranges back from the target.

        Returns:
            The rest of the range from the first entry that is absent or damaged on the target; None if there
            is none.
        """
        for entry_range in ranges:
            entry = entry_range.first
            while entry <= entry_range.last:
                batch = await _read(ledger, target, entry, entry_range.last)
                if not batch:
                    return EntryRange(entry, entry_range.last)
                entry = batch[-1].entry + 1
                await self._wait_for_rate(batch)
        return None

    async def _wait_for_rate(self, batch: list[EntryRecord]) -> None:
        """Wait until the rate allows the next batch. All copies of this bookie share the rate."""
        cost_s = sum(len(record.record) for record in batch) / self._bytes_per_s
        self._rate_free_at = max(self._rate_free_at, trio.current_time()) + cost_s
        await trio.sleep_until(self._rate_free_at)

    async def _fetch(
        self, ledger: LedgerMetadata, first: int, last: int, except_bookie: str
    ) -> list[EntryRecord]:
        """Return consecutive entries from ``first`` on, at least one, from any other bookie that has them."""
        striping = ledger.striping
        bookies = ledger.fragment_of(first).bookies
        errors: list[str] = []
        for slot in striping.write_set(first):
            if bookies[slot] == except_bookie:
                continue
            source = self._pool.get(bookies[slot])
            if source is None:
                errors.append(f"{bookies[slot]}: not connected")
                continue
            try:
                entries = await _read(ledger, source, first, last)
            except (
                DistributedLogError
            ) as error:  # in limbo, busy or disconnected: another bookie may have the entry
                errors.append(f"{bookies[slot]}: {error}")
                continue
            if entries:
                return entries
            errors.append(f"{bookies[slot]}: does not have it")
        raise ConnectionLost(
            f"ledger {ledger.ledger_id} entry {first}: no copy is available now ({'; '.join(errors)})"
        )


async def list_held_entries(ledger: LedgerMetadata, target: BookieClient) -> EntryList:
    """Return the entries that the target lists.

    The list is empty if the target does not have the ledger. It is also marked as incomplete if the target
    may have lost the ledger (limbo).
    """
    try:
        return await target.list_entries(ledger.ledger_id, ledger.key, timeout_s=REQUEST_S)
    except NoSuchLedger:
        return EntryList([], proves_absence=True)
    except LedgerStateUnknown:
        return EntryList([], proves_absence=False)


async def _read(
    ledger: LedgerMetadata, source: BookieClient, first: int, last: int
) -> list[EntryRecord]:
    """Return intact consecutive entries from ``first`` on, as many as the source returns."""
    # Reads past the LAC that the source has: the end of a closed ledger is known from its record.
    response = await source.read(
        ledger.ledger_id,
        ledger.key,
        first,
        last,
        BATCH_BYTES,
        past_lac=True,
        timeout_s=REQUEST_S,
    )
    return consecutive_records(response.body, ledger.ledger_id, first)


def consecutive_records(body: Buffer, ledger_id: int, first: int) -> list[EntryRecord]:
    """Return the intact records ``first``, ``first`` + 1, … at the start of ``body``.

    The result ends before the first record that is missing or damaged.
    """
    accepted: list[EntryRecord] = []
    try:
        for record in records(body):
            if record.entry != first + len(accepted) or record.ledger != ledger_id:
                break
            accepted.append(record)
    except CorruptData:
        pass  # the records before the damage are valid
    return accepted


async def _store(ledger: LedgerMetadata, target: BookieClient, batch: list[EntryRecord]) -> None:
    """Send recovery adds, and wait until all are durable on the target."""
    is_stored = trio.Event()
    errors: list[DistributedLogError] = []

    def on_acked(count: int) -> None:
        if count >= len(batch):
            is_stored.set()

    def on_refused(position: int, error: DistributedLogError) -> None:
        errors.append(error)
        is_stored.set()

    await target.wait_for_capability(CapabilityKind.RECOVER, ledger.ledger_id, REQUEST_S)
    stream = target.open_stream(
        ledger.ledger_id,
        ledger.key,
        recovery=True,
        fragment_epoch=ledger.fragment_of(batch[0].entry).epoch,
        on_acked=on_acked,
        on_refused=on_refused,
    )
    try:
        for record in batch:
            stream.send(record.record)
        with trio.move_on_after(REQUEST_S):
            await is_stored.wait()
    finally:
        stream.close()
    if errors:
        raise errors[0]
    if not is_stored.is_set():
        raise RequestTimeout(
            f"ledger {ledger.ledger_id} entry {batch[0].entry}: copies not acknowledged in {REQUEST_S:g} s"
        )
