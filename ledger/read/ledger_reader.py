"""Reading a ledger: up to the LAC, verified, from whichever replica answers.

A reader never decides that an entry does not exist, and never returns one beyond its LAC (inv. 31). It
follows the ledger's record, because ensembles change under it (H23), and asks the store again when all
replicas miss: only a miss under the current record is a loss. What it returns is memory of its own.
Where every bookie holds every entry it stays with one, whose read-ahead then pays.
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
"""Gets entries without a gap; says how many of them, from the first on, it has taken."""


class LedgerReader:
    """Made by `LedgerClient.open`. `close` it, or use it in a `with`."""

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
        """As last seen; follows the store while the ledger is open."""
        self.deleted = False
        self._metadata_read_at = trio.current_time()
        """Of when the record is at least."""
        self._ledger_watch = ledger_watch
        self._pool = pool
        self._options = options
        self._striping = metadata.striping
        self._lac = NO_ENTRY
        # The same for all who read the ledger, or a part of it: then one bookie's page cache serves them all.
        self._replica = metadata.ledger_id + replica_offset
        self._read_ahead_requests = ReadAhead(options.request_timeout_s)
        self._changed = trio.Event()
        self._tail_polls = TailPolls(
            self.ledger_id, pool, bookie_offset=first_poll, on_response=self._on_poll_response
        )
        self._delivered_to = NO_ENTRY
        self._on_entries: OnEntries | None = None
        """Who waits, and what it was given so far."""
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
        """Is the end known for good? Then `lac` is the last entry."""
        return self.metadata.last_entry is not None

    @property
    def lac(self) -> int:
        """The last entry known to be readable; -1 for none. Never goes back."""
        last = self.metadata.last_entry
        return self._lac if last is None else last

    @property
    def last_response_at(self) -> float:
        """When a bookie last answered a poll for the ledger's end, by trio's clock."""
        return self._tail_polls.last_response_at

    def record_lac(self, lac: int) -> None:
        """Somebody proved that ``lac`` is confirmed, for instance by having been given the next (H24)."""
        self._lac = max(self._lac, lac)

    def _update_metadata(self, metadata: LedgerMetadata | None) -> None:
        if metadata is None or metadata.state is LedgerState.DELETING:
            self.deleted = True
        else:
            self.metadata = metadata
            # Earlier fragments are confirmed by construction.
            self._lac = max(self._lac, metadata.last_fragment.first_entry - 1)
        if self.closed or self.deleted:
            self.close()
        self._notify_change()

    async def _refresh(self) -> None:
        """Read the ledger's record anew. Raises `NoSuchLedger` where it is gone."""
        requested_at = trio.current_time()
        stored = await self._ledger_watch.get(self.ledger_id)
        self._update_metadata(None if stored is None else stored[0])
        self._metadata_read_at = requested_at
        if self.deleted:
            raise NoSuchLedger(f"ledger {self.ledger_id} was deleted")

    async def refresh_lac(self) -> int:
        """Ask the last ensemble's bookies how far is confirmed; the best answer that came.

        Raises `LedgerStateUnknown` when too few answered to know: silence does not say "no entry";
        `NotAllowed`.
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
            except NoSuchLedger:  # definite: it has no entry of it
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
                f"ledger {self.ledger_id}: how far it can be read is not known, for these bookies did not"
                f" answer: {silent_bookies}"
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
        """Entries from ``first`` on without a gap, at least one, at most to ``last``.

        About ``bytes_max`` of records; verified; memory of the caller's own, which each record's views
        pin as a whole. ``last`` <= `lac`. Raises `NoSuchLedger` when the ledger was deleted,
        `NoSuchEntry` or what the replicas said when no replica gives ``first``; `EntriesLost` where it was
        declared lost, also where a copy has turned up since.
        """
        if not 0 <= first <= last <= self.lac:
            raise InvalidRequest(
                f"ledger {self.ledger_id}: entries {first} to {last}, readable are 0 to {self.lac}"
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
        """Has the bookie been away since the record was read? What it alone had may have been given up."""
        return self.closed and self._pool.registered_since(bookie) > self._metadata_read_at

    def _check_not_lost(self, metadata: LedgerMetadata, entry: int) -> None:
        loss = metadata.loss_at(entry)
        if loss is not None:
            raise EntriesLost(
                f"ledger {self.ledger_id}: entries {loss.first} to {loss.last} were declared lost by"
                f" {loss.declared_by}: {loss.reason}"
            )

    async def why_unreadable(self, entry: int) -> str:
        """What each replica of an entry says, where it certainly cannot be read any more; else "".

        The ledger is closed, and each bookie that its record names, as it is now, says in so many words that
        its copy is damaged, or that it has none. Silence, limbo and refusals say nothing (H164). Raises
        `NoSuchLedger` when the ledger was deleted.
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
        await self._refresh()  # where it was copied meanwhile, others are to be asked
        if fragment != self.metadata.fragment_of(entry) or not all(map(errors.get, bookies)):
            return ""
        return "; ".join(f"{bookie}: {errors[bookie]}" for bookie in bookies)

    async def _permanent_error(self, bookie: str, entry: int) -> str:
        """Why a bookie certainly cannot give an entry; "": it can, or does not know."""
        try:
            client = await self._pool.connected(bookie, self._options.connect_timeout_s)
            for _ in range(2):  # once more if the digest does not fit (H16)
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
                    is_absent = response.known and response.complete_to >= entry
                    return "it has none" if is_absent else ""
                try:
                    self._append_records(response.body, entry, entry, [])
                except CorruptData:
                    continue
                return ""
        except CorruptData:
            pass
        except NoSuchLedger:
            return "it does not know the ledger"
        return "its copy is damaged"

    async def _read_replicas(
        self, metadata: LedgerMetadata, fragment: Fragment, first: int, last: int, bytes_max: int
    ) -> list[EntryRecord]:
        """Ask the bookies of ``first``'s write set in turn, and two at once when one is slow."""
        # Where all have all, it stays with the one that answered last, whatever the entry.
        start = self._replica if self._striping.is_unstriped else first
        order = [fragment.bookies[slot] for slot in self._striping.write_set(start)]
        # Who is connected first: a wait for a connection is the last resort.
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
                if outcome is None:  # slow: a second one is asked as well
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
        """The first that is not merely "not here", naming what each replica said."""
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
        """The run from ``first`` that one bookie has; once more if the digest does not fit (H16)."""
        client = await self._pool.connected(bookie, self._options.connect_timeout_s)
        if self._must_check_losses(bookie):
            await self._refresh()
            self._check_not_lost(self.metadata, first)
            last = self.metadata.last_before_loss(first, last)
        timeout_s = self._options.request_timeout_s
        for can_retry in (True, False):
            # This reader knows that they are confirmed; the bookie may not yet.
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
        raise NoSuchEntry(f"bookie {bookie} does not have it")

    async def _take_prefetched(
        self, metadata: LedgerMetadata, fragment: Fragment, first: int, last: int, bytes_max: int
    ) -> list[EntryRecord]:
        """What was asked for before; nothing where that is not to be had, and `_read_replicas` will know."""
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
            self._replica += 1  # it is slow: another one first
        except DistributedLogError:
            pass
        if not entries:
            self._read_ahead_requests.cancel_all()
        return entries

    def _request_ahead(
        self, fragment: Fragment, entries: list[EntryRecord], last: int, bytes_max: int
    ) -> None:
        """Ask for what follows ``found`` while the caller is busy with it."""
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
        """Append the sound records ``first``, first + 1, ... of a reply."""
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
        """E > Qw: ask as few bookies as hold all of the range, at once; fill what fails one by one."""
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
        """The slots to ask: whose bookie is away holds up every range that it has a part of."""
        connected_slots = [
            slot
            for slot, bookie in enumerate(fragment.bookies)
            if self._pool.get(bookie) is not None
        ]
        covers = self._striping.covering_slot_sets(first)
        connected_covers = (cover for cover in covers if set(cover) <= set(connected_slots))
        # Where no few have all of it, those that are there may have the beginning.
        return next(connected_covers, connected_slots or covers[0])

    # --- tailing ----------------------------------------------------------------------------------

    async def wait(self, after: int, *, wait_s: float, on_entries: OnEntries | None = None) -> int:
        """The LAC, once it is above ``after``, or the ledger is closed, or ``wait_s`` is over.

        Entries may come with the news (`tail_polls.py`); the next `read` has them. ``take`` gets them as they
        come, from ``after`` + 1 on without a gap, within the link's call: it must not raise. While it
        takes them all, this goes on waiting for what follows. Raises `NoSuchLedger` when the ledger was
        deleted.
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
        """Somebody recovers: the record will say how it ends; the bookies have no more to tell."""
        with trio.move_on_after(LONG_POLL_S / 2):
            await self._changed.wait()
        self._tail_polls.fenced = False
        await self._refresh()

    def _on_poll_response(self, lac: int) -> None:
        """A poll was answered."""
        self._lac = max(self._lac, lac)
        if not self._deliver():
            self._notify_change()

    def _deliver(self) -> bool:
        """Give what came to whoever waits for it. False: its task has something to see to."""
        if self._on_entries is None or self.lac <= self._delivered_to:
            return False
        polls = self._tail_polls
        entries = polls.take_entries(self._delivered_to + 1, self.lac)
        accepted_count = self._on_entries(entries)
        self._delivered_to += accepted_count
        polls.pushed_entries[:0] = entries[accepted_count:]  # the next `read` has them
        return self._delivered_to == self.lac and polls.is_following

    def _notify_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
