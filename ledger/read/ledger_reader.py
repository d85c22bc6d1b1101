"""Read verified entries of a ledger up to the LAC, from any available replica.

A reader never decides that an entry does not exist, and never returns an entry above its LAC (inv. 31). It
follows the ledger's record, because ensembles can change (H23). If all replicas lack an entry, it reads the
record again: only an absence under the current record is a loss.

Returned entries do not share memory with the connection's buffers. If every bookie stores every entry, the
reader stays with one bookie, whose read-ahead is then effective.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import trio

from ...bookie.format.bookie_messages import ReadEntriesRequest
from ...bookie.format.entry import EntryRecord, records
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    EntriesLost,
    InvalidRequest,
    LedgerStateUnknown,
    NoSuchEntry,
    NoSuchLedger,
    NotAllowed,
    RequestTimeout,
    UnsupportedFormat,
)
from ..declarations.options import LONG_POLL_S, LedgerOptions
from ..model.ledger_metadata import NO_ENTRY, Fragment, LedgerMetadata, LedgerState
from ..placement.bookie_pool import BookiePool
from .ledger_watch import LedgerWatch
from .read_ahead import ReadAhead
from .tail_polls import TailPolls

OnEntries = Callable[[Sequence[EntryRecord]], int]
"""Receives contiguous entries and returns how many of them, from the first one, it accepted."""


class LedgerReader:
    """Reads one ledger. `LedgerClient.open` creates it. Call `close`, or use it in a `with` block."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        ledger_watch: LedgerWatch,
        pool: BookiePool,
        options: LedgerOptions,
        first_poll: int = 0,
        replica_offset: int = 0,
    ) -> None:
        self.ledger_id = metadata.ledger_id
        self.metadata = metadata
        """The record as last read. It is updated while the ledger is open."""
        self.deleted = False
        self._metadata_read_at = trio.current_time()
        """The record is at least as new as this time."""
        self._ledger_watch = ledger_watch
        self._pool = pool
        self._options = options
        self._striping = metadata.striping
        self._lac = NO_ENTRY
        # Readers of the same ledger start with the same bookie, so that one page cache serves them all.
        self._replica = metadata.ledger_id + replica_offset
        self._read_ahead_requests = ReadAhead(options.request_timeout_s)
        self._changed = trio.Event()
        self._tail_polls = TailPolls(
            self.ledger_id, pool, bookie_offset=first_poll, on_response=self._on_poll_response
        )
        self._delivered_to = NO_ENTRY
        self._on_entries: OnEntries | None = None
        """The callback of the current `wait`, and the last entry that it accepted."""
        self._stop_watch: Callable[[], None] | None = None
        self._update_metadata(metadata)
        if not self.closed:
            self._stop_watch = ledger_watch.subscribe(self.ledger_id, self._update_metadata)

    def __enter__(self) -> "LedgerReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop following the ledger. Idempotent."""
        self._tail_polls.close()
        self._read_ahead_requests.cancel_all()
        if self._stop_watch is not None:
            self._stop_watch()
            self._stop_watch = None

    # --- how far ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the ledger's end is final. `lac` is then the last entry."""
        return self.metadata.last_entry is not None

    @property
    def lac(self) -> int:
        """The last readable entry; -1 for none. It never decreases."""
        last = self.metadata.last_entry
        return self._lac if last is None else last

    @property
    def last_response_at(self) -> float:
        """When a bookie last answered a poll for the ledger's end, by trio's clock."""
        return self._tail_polls.last_response_at

    def record_lac(self, lac: int) -> None:
        """Record that ``lac`` is confirmed, for instance because the next entry was delivered (H24)."""
        self._lac = max(self._lac, lac)

    def _update_metadata(self, metadata: LedgerMetadata | None) -> None:
        if metadata is None or metadata.state is LedgerState.DELETING:
            self.deleted = True
        else:
            self.metadata = metadata
            # earlier fragments contain only confirmed entries
            self._lac = max(self._lac, metadata.last_fragment.first_entry - 1)
        if self.closed or self.deleted:
            self.close()
        self._notify_change()

    async def _refresh(self) -> None:
        """Read the ledger's record again.

        Raises:
            NoSuchLedger: The ledger was deleted.
        """
        requested_at = trio.current_time()
        stored = await self._ledger_watch.get(self.ledger_id)
        self._update_metadata(None if stored is None else stored[0])
        self._metadata_read_at = requested_at
        if self.deleted:
            raise NoSuchLedger(f"ledger {self.ledger_id} was deleted")

    async def refresh_lac(self) -> int:
        """Query the LAC from the bookies of the last ensemble, and return the highest.

        Raises:
            LedgerStateUnknown: Too few bookies answered. A missing answer does not mean that there is no
                entry.
            NotAllowed: The client may not read the ledger.
        """
        if self.closed:
            return self.lac
        metadata = self.metadata
        lac_by_slot: dict[int, int] = {}
        denied: list[NotAllowed] = []
        settled = trio.Event()

        async def ask(slot: int, bookie_id: str) -> None:
            try:
                client = await self._pool.connected(bookie_id, self._options.connect_timeout_s)
                response = await client.read_lac(
                    self.ledger_id, metadata.key, self._options.request_timeout_s
                )
                self._lac = max(self._lac, response.lac)
                lac_by_slot[slot] = response.lac
            except NoSuchLedger:  # definite: the bookie has no entry of the ledger
                lac_by_slot[slot] = NO_ENTRY
            except NotAllowed as error:
                denied.append(error)
                settled.set()
                return
            except DistributedLogError:
                return
            if self._striping.covered(lac_by_slot):
                settled.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._query_all_slots, ask, metadata.last_fragment, settled)
            await settled.wait()
            nursery.cancel_scope.cancel()
        if denied:
            raise denied[0]
        if not self.closed and not self._striping.covered(lac_by_slot):
            bookies = metadata.last_fragment.bookies
            silent_bookies = ", ".join(
                silent_bookie
                for slot, silent_bookie in enumerate(bookies)
                if slot not in lac_by_slot
            )
            raise LedgerStateUnknown(
                f"the last readable entry of ledger {self.ledger_id} is unknown, because these bookies did"
                f" not answer: {silent_bookies}"
            )
        return self.lac

    async def _query_all_slots(
        self,
        query_slot: Callable[[int, str], Awaitable[None]],
        fragment: Fragment,
        done: trio.Event,
    ) -> None:
        async with trio.open_nursery() as nursery:
            for slot, bookie in enumerate(fragment.bookies):
                nursery.start_soon(query_slot, slot, bookie)
        done.set()

    # --- reading ----------------------------------------------------------------------------------

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[EntryRecord]:
        """Return verified contiguous entries from ``first``, at least one and at most to ``last``.

        The memory belongs to the caller. A view of any record keeps all of it alive.

        Args:
            first: The first entry.
            last: The last entry, at most `lac`.
            bytes_max: The approximate maximum size of the records.

        Raises:
            InvalidRequest: The range is not readable.
            NoSuchLedger: The ledger was deleted.
            EntriesLost: ``first`` was declared lost, even if a copy has reappeared since.
            DistributedLogError: No replica returned ``first``: `NoSuchEntry`, or a more specific error of a
                replica.
        """
        if not 0 <= first <= last <= self.lac:
            raise InvalidRequest(
                f"ledger {self.ledger_id}: cannot read entries {first} to {last},"
                f" readable are 0 to {self.lac}"
            )
        pushed_entries = self._tail_polls.take_entries(first, last)
        if pushed_entries:
            return pushed_entries
        for attempt in range(2):
            metadata = self.metadata
            index = metadata.fragment_index(first)
            end = metadata.fragment_end(index)
            fragment_last = last if end is None else min(last, end - 1)
            if metadata.lost:
                self._check_not_lost(metadata, first)
                fragment_last = metadata.last_before_loss(first, fragment_last)
            try:
                if self._striping.is_unstriped:
                    fragment = metadata.ensembles[index]
                    arguments = (metadata, fragment, first, fragment_last, bytes_max)
                    entries = await self._take_prefetched(*arguments) or await self._read_replicas(
                        *arguments
                    )
                    self._request_ahead(fragment, entries, fragment_last, bytes_max)
                    return entries
                return await self._read_striped(
                    metadata, metadata.ensembles[index], first, fragment_last, bytes_max
                )
            except DistributedLogError:
                await self._refresh()
                self._check_not_lost(self.metadata, first)
                if attempt or metadata.fragment_of(first) == self.metadata.fragment_of(first):
                    raise
        raise AssertionError("the second attempt returns or raises")

    def _must_check_losses(self, bookie: str) -> bool:
        """Whether the bookie was away after the record was read.

        Entries that only this bookie stores may then have been declared lost.
        """
        return self.closed and self._pool.registered_since(bookie) > self._metadata_read_at

    def _check_not_lost(self, metadata: LedgerMetadata, entry: int) -> None:
        loss = metadata.loss_at(entry)
        if loss is not None:
            raise EntriesLost(
                f"ledger {self.ledger_id} entries {loss.first} to {loss.last} were declared lost by"
                f" {loss.declared_by}: {loss.reason}"
            )

    async def why_unreadable(self, entry: int) -> str:
        """Return the answer of each replica if an entry is certainly unreadable, otherwise "".

        It is certain if the ledger is closed and each bookie of the current record explicitly reports that
        its copy is damaged or absent. Missing answers, the limbo state (the bookie cannot prove that it has
        all entries) and rejections prove nothing (H164).

        Raises:
            NoSuchLedger: The ledger was deleted.
        """
        await self._refresh()
        metadata = self.metadata
        if not metadata.closed or entry > self.lac:
            return ""
        loss = metadata.loss_at(entry)
        if loss is not None:
            return f"declared lost by {loss.declared_by}: {loss.reason}"
        fragment = metadata.fragment_of(entry)
        bookies = [fragment.bookies[slot] for slot in self._striping.write_set(entry)]
        errors: dict[str, str] = {}

        async def ask(bookie_id: str) -> None:
            with suppress(DistributedLogError):
                errors[bookie_id] = await self._permanent_error(bookie_id, entry)

        async with trio.open_nursery() as nursery:
            for bookie in bookies:
                nursery.start_soon(ask, bookie)
        await self._refresh()  # if the entry was copied since then, other bookies must answer
        if fragment != self.metadata.fragment_of(entry) or not all(map(errors.get, bookies)):
            return ""
        return "; ".join(f"{bookie}: {errors[bookie]}" for bookie in bookies)

    async def _permanent_error(self, bookie: str, entry: int) -> str:
        """Return why a bookie certainly cannot provide an entry; "" if that is not certain."""
        try:
            client = await self._pool.connected(bookie, self._options.connect_timeout_s)
            for _ in range(2):  # retry once if the digest does not match (H16)
                response = await client.read(
                    self.ledger_id,
                    self.metadata.key,
                    entry,
                    entry,
                    1,
                    past_lac=True,
                    timeout_s=self._options.request_timeout_s,
                )
                if len(response.body) == 0:
                    is_absent = response.proves_absence and response.complete_to >= entry
                    return "it has none" if is_absent else ""
                try:
                    self._append_records(response.body, entry, entry, [])
                except CorruptData:
                    continue
                return ""
        except CorruptData:
            pass
        except NoSuchLedger:
            return "it does not have the ledger"
        return "its copy is damaged"

    async def _read_replicas(
        self, metadata: LedgerMetadata, fragment: Fragment, first: int, last: int, bytes_max: int
    ) -> list[EntryRecord]:
        """Query the bookies of the write set of ``first`` in turn, and a second one if the first is slow."""
        # If every bookie stores every entry, start with the bookie that answered last.
        start = self._replica if self._striping.is_unstriped else first
        order = [fragment.bookies[slot] for slot in self._striping.write_set(start)]
        # Prefer connected bookies. Waiting for a connection is the last resort.
        order.sort(key=lambda bookie: self._pool.get(bookie) is None)
        send, receive = trio.open_memory_channel[
            tuple[str, list[EntryRecord] | DistributedLogError]
        ](len(order))
        errors: list[tuple[str, DistributedLogError]] = []

        async def ask(bookie: str) -> None:
            try:
                answer = await self._read_from_bookie(metadata, bookie, first, last, bytes_max)
            except DistributedLogError as error:
                send.send_nowait((bookie, error))
            else:
                send.send_nowait((bookie, answer))

        async with trio.open_nursery() as nursery:
            request_count = response_count = 0
            while True:
                if request_count < len(order) and (
                    response_count == request_count or request_count == 0
                ):
                    nursery.start_soon(ask, order[request_count])
                    request_count += 1
                outcome = None
                has_more_replicas = request_count < len(order)
                with trio.move_on_after(
                    self._options.speculative_s if has_more_replicas else float("inf")
                ):
                    outcome = await receive.receive()
                if outcome is None:  # slow, so a second bookie is queried, too
                    nursery.start_soon(ask, order[request_count])
                    request_count += 1
                    continue
                bookie, answer = outcome
                response_count += 1
                if not isinstance(answer, DistributedLogError):
                    nursery.cancel_scope.cancel()
                    break
                errors.append((bookie, answer))
                if response_count == len(order):
                    break
        if isinstance(answer, DistributedLogError):
            raise self._most_specific_error(first, errors)
        if self._striping.is_unstriped:
            self._replica = fragment.bookies.index(bookie)
        return answer

    def _most_specific_error(
        self, entry: int, errors: list[tuple[str, DistributedLogError]]
    ) -> DistributedLogError:
        """Return the first error other than "not found", with the answers of all replicas in its message."""
        descriptions = "; ".join(f"{bookie}: {type(e).__name__} {e}" for bookie, e in errors)
        for _, error in errors:
            if not isinstance(error, NoSuchEntry | NoSuchLedger):
                cls = type(error)
                break
        else:
            cls = NoSuchEntry
        return cls(f"ledger {self.ledger_id} entry {entry} cannot be read ({descriptions})")

    async def _read_from_bookie(
        self, metadata: LedgerMetadata, bookie: str, first: int, last: int, bytes_max: int
    ) -> list[EntryRecord]:
        """Return contiguous entries from ``first`` from one bookie.

        The read is repeated once if the digest does not match (H16).
        """
        client = await self._pool.connected(bookie, self._options.connect_timeout_s)
        if self._must_check_losses(bookie):
            await self._refresh()
            self._check_not_lost(self.metadata, first)
            last = self.metadata.last_before_loss(first, last)
        timeout_s = self._options.request_timeout_s
        for can_retry in (True, False):
            # The entries are confirmed for this reader, but the bookie may not have this LAC yet.
            request = ReadEntriesRequest(
                self.ledger_id, metadata.key, first, last, bytes_max, past_lac=True
            )
            response = await client.finish_read(client.begin_read(request, timeout_s), timeout_s)
            self._lac = max(self._lac, response.lac)
            entries: list[EntryRecord] = []
            try:
                self._append_records(response.body, first, last, entries)
            except (CorruptData, UnsupportedFormat):
                if not entries and not can_retry:
                    raise
            if entries:
                return entries
            if len(response.body) == 0:
                break
        raise NoSuchEntry(f"bookie {bookie} does not have the entry")

    async def _take_prefetched(
        self, metadata: LedgerMetadata, fragment: Fragment, first: int, last: int, bytes_max: int
    ) -> list[EntryRecord]:
        """Return the entries that were requested ahead, or [], so that `_read_replicas` reads them."""
        bookie = fragment.bookies[self._replica % len(fragment.bookies)]
        client = self._pool.get(bookie)
        if client is None or self._must_check_losses(bookie):
            self._read_ahead_requests.cancel_all()
            return []
        request = ReadEntriesRequest(
            self.ledger_id, metadata.key, first, last, bytes_max, past_lac=True
        )
        entries: list[EntryRecord] = []
        try:
            response = await self._read_ahead_requests.next_response(
                client, request, self._options.speculative_s
            )
            if response is None:
                return []
            self._lac = max(self._lac, response.lac)
            self._append_records(response.body, first, last, entries)
        except RequestTimeout:
            self._replica += 1  # it is slow, so start with another bookie
        except DistributedLogError:
            pass
        if not entries:
            self._read_ahead_requests.cancel_all()
        return entries

    def _request_ahead(
        self, fragment: Fragment, entries: list[EntryRecord], last: int, bytes_max: int
    ) -> None:
        """Request the entries after ``entries`` while the caller processes those."""
        first = entries[-1].entry + 1
        client = self._pool.get(fragment.bookies[self._replica % len(fragment.bookies)])
        if first <= last and client is not None:
            self._read_ahead_requests.observe_sizes([len(entry.record) for entry in entries])
            key = self.metadata.key
            request = ReadEntriesRequest(self.ledger_id, key, first, last, bytes_max, past_lac=True)
            self._read_ahead_requests.request_ahead(client, request)

    def _append_records(
        self, body: memoryview, first: int, last: int, entries: list[EntryRecord]
    ) -> None:
        """Append the valid records ``first``, first + 1, ... of a reply."""
        expected = first
        for record in records(body):
            if record.ledger != self.ledger_id:
                raise CorruptData(
                    f"ledger {record.ledger} in a reply about ledger {self.ledger_id}"
                )
            if record.entry != expected or expected > last:
                return
            entries.append(record)
            expected += 1

    async def _read_striped(
        self, metadata: LedgerMetadata, fragment: Fragment, first: int, last: int, bytes_max: int
    ) -> list[EntryRecord]:
        """Read with E > Qw: query the fewest bookies that together have the range, concurrently.

        If ``first`` fails, it is read from its replicas one after the other.
        """
        slots = self._covering_slots(fragment, first)
        entries_by_id: dict[int, EntryRecord] = {}

        async def ask(slot: int) -> None:
            start = self._striping.next_held(slot, first)
            if start > last or self._must_check_losses(fragment.bookies[slot]):
                return
            try:
                client = await self._pool.connected(
                    fragment.bookies[slot], self._options.connect_timeout_s
                )
                response = await client.read(
                    self.ledger_id,
                    metadata.key,
                    start,
                    last,
                    bytes_max // len(slots),
                    past_lac=True,
                    timeout_s=self._options.speculative_s,
                )
                for record in records(response.body):
                    if record.ledger == self.ledger_id:
                        entries_by_id[record.entry] = record
            except DistributedLogError:
                return

        async with trio.open_nursery() as nursery:
            for slot in slots:
                nursery.start_soon(ask, slot)
        if first not in entries_by_id:
            return await self._read_replicas(metadata, fragment, first, first, bytes_max)
        entry = first
        while entry + 1 <= last and entry + 1 in entries_by_id:
            entry += 1
        return [entries_by_id[e] for e in range(first, entry + 1)]

    def _covering_slots(self, fragment: Fragment, first: int) -> Sequence[int]:
        """Return the slots to query, connected ones if possible.

        An absent bookie would delay every range.
        """
        connected_slots = [
            slot
            for slot, bookie in enumerate(fragment.bookies)
            if self._pool.get(bookie) is not None
        ]
        covers = self._striping.covering_slot_sets(first)
        connected_covers = (cover for cover in covers if set(cover) <= set(connected_slots))
        # If no small set has the whole range, the connected slots may have its beginning.
        return next(connected_covers, connected_slots or covers[0])

    # --- tailing ----------------------------------------------------------------------------------

    async def wait(self, after: int, *, wait_s: float, on_entries: OnEntries | None = None) -> int:
        """Wait for a LAC above ``after``, the end of the ledger, or ``wait_s``. Return the LAC.

        Bookies may push entries with the LAC (`tail_polls.py`). The next `read` returns them.

        Args:
            after: The last entry that the caller has.
            wait_s: The maximum wait in seconds.
            on_entries: Receives pushed entries from ``after`` + 1, without gaps, in a callback of the
                connection. It must not raise. While it accepts all entries, the wait continues.

        Raises:
            NoSuchLedger: The ledger was deleted.
        """
        end = trio.current_time() + wait_s
        self._delivered_to, self._on_entries = after, on_entries
        try:
            while self.lac <= self._delivered_to and not self.closed and not self.deleted:
                if self._tail_polls.fenced:
                    await self._refresh_after_fence()
                    continue
                polls_due_at = self._tail_polls.start_polls(self.metadata, self._delivered_to)
                changed = self._changed
                with trio.CancelScope(deadline=min(polls_due_at, end)):
                    await changed.wait()
                if trio.current_time() >= end:
                    break
        finally:
            self._on_entries = None
        if self.deleted:
            raise NoSuchLedger(f"ledger {self.ledger_id} was deleted")
        return self.lac

    async def _refresh_after_fence(self) -> None:
        """Read the record again. Another client recovers the ledger, so bookies have no further entries."""
        with trio.move_on_after(LONG_POLL_S / 2):
            await self._changed.wait()
        self._tail_polls.fenced = False
        await self._refresh()

    def _on_poll_response(self, lac: int) -> None:
        """Process the answer to a poll."""
        self._lac = max(self._lac, lac)
        if not self._deliver():
            self._notify_change()

    def _deliver(self) -> bool:
        """Pass pushed entries to the waiting caller. Return False if its task must continue."""
        if self._on_entries is None or self.lac <= self._delivered_to:
            return False
        polls = self._tail_polls
        entries = polls.take_entries(self._delivered_to + 1, self.lac)
        accepted_count = self._on_entries(entries)
        self._delivered_to += accepted_count
        polls.pushed_entries[:0] = entries[accepted_count:]  # the next `read` returns them
        return self._delivered_to == self.lac and polls.is_following

    def _notify_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
