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

Take = Callable[[Sequence[EntryRecord]], int]
"""Gets entries without a gap; says how many of them, from the first on, it has taken."""


class LedgerReader:
    """Made by `LedgerClient.open`. `close` it, or use it in a `with`."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        records: LedgerWatch,
        pool: BookiePool,
        options: LedgerOptions,
        first_poll: int = 0,
        turn: int = 0,
    ) -> None:
        self.ledger_id = metadata.ledger_id
        self.metadata = metadata
        """As last seen; follows the store while the ledger is open."""
        self.deleted = False
        self._record_of = trio.current_time()
        """Of when the record is at least."""
        self._records = records
        self._pool = pool
        self._options = options
        self._striping = metadata.striping
        self._lac = NO_ENTRY
        # The same for all who read the ledger, or a part of it: then one bookie's page cache serves them all.
        self._replica = metadata.ledger_id + turn
        self._ahead = ReadAhead(options.request_timeout_s)
        self._changed = trio.Event()
        self._polls = TailPolls(self.ledger_id, pool, turn=first_poll, on_news=self._on_news)
        self._given = NO_ENTRY
        self._give: Take | None = None
        """Who waits, and what it was given so far."""
        self._stop: Callable[[], None] | None = None
        self._take_record(metadata)
        if not self.closed:
            self._stop = records.follow(self.ledger_id, self._take_record)

    def __enter__(self) -> "LedgerReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop following the ledger. Idempotent."""
        self._polls.close()
        self._ahead.forget()
        if self._stop is not None:
            self._stop()
            self._stop = None

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
    def heard_at(self) -> float:
        """When a bookie last answered a poll for the ledger's end, by trio's clock."""
        return self._polls.heard_at

    def note_lac(self, lac: int) -> None:
        """Somebody proved that ``lac`` is confirmed, for instance by having been given the next (H24)."""
        self._lac = max(self._lac, lac)

    def _take_record(self, metadata: LedgerMetadata | None) -> None:
        if metadata is None or metadata.state is LedgerState.DELETING:
            self.deleted = True
        else:
            self.metadata = metadata
            # Earlier fragments are confirmed by construction.
            self._lac = max(self._lac, metadata.last_fragment.first_entry - 1)
        if self.closed or self.deleted:
            self.close()
        self._tell()

    async def _refresh(self) -> None:
        """Read the ledger's record anew. Raises `NoSuchLedger` where it is gone."""
        asked_at = trio.current_time()
        found = await self._records.get(self.ledger_id)
        self._take_record(None if found is None else found[0])
        self._record_of = asked_at
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
        known: dict[int, int] = {}
        denied: list[NotAllowed] = []
        enough = trio.Event()

        async def ask(slot: int, bookie: str) -> None:
            try:
                client = await self._pool.connected(bookie, self._options.connect_timeout_s)
                answer = await client.read_lac(
                    self.ledger_id, metadata.key, self._options.request_timeout_s
                )
                self._lac = max(self._lac, answer.lac)
                known[slot] = answer.lac
            except NoSuchLedger:  # definite: it has no entry of it
                known[slot] = NO_ENTRY
            except NotAllowed as error:
                denied.append(error)
                enough.set()
                return
            except DistributedLogError:
                return
            if self._striping.covered(known):
                enough.set()

        async with trio.open_nursery() as asking:
            asking.start_soon(self._all_of, ask, metadata.last_fragment, enough)
            await enough.wait()
            asking.cancel_scope.cancel()
        if denied:
            raise denied[0]
        if not self.closed and not self._striping.covered(known):
            bookies = metadata.last_fragment.bookies
            silent = ", ".join(one for slot, one in enumerate(bookies) if slot not in known)
            raise LedgerStateUnknown(
                f"ledger {self.ledger_id}: how far it can be read is not known, for these bookies did not"
                f" answer: {silent}"
            )
        return self.lac

    async def _all_of(
        self,
        ask: Callable[[int, str], Awaitable[None]],
        fragment: Fragment,
        done: trio.Event,
    ) -> None:
        async with trio.open_nursery() as nursery:
            for slot, bookie in enumerate(fragment.bookies):
                nursery.start_soon(ask, slot, bookie)
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
        ahead = self._polls.take(first, last)
        if ahead:
            return ahead
        for attempt in range(2):
            metadata = self.metadata
            index = metadata.fragment_index(first)
            end = metadata.fragment_end(index)
            upto = last if end is None else min(last, end - 1)
            if metadata.lost:
                self._check_not_lost(metadata, first)
                upto = metadata.without_lost(first, upto)
            try:
                if self._striping.everywhere:
                    fragment = metadata.ensembles[index]
                    asked = (metadata, fragment, first, upto, bytes_max)
                    found = await self._read_ahead(*asked) or await self._read_replicas(*asked)
                    self._ask_ahead(fragment, found, upto, bytes_max)
                    return found
                return await self._read_striped(
                    metadata, metadata.ensembles[index], first, upto, bytes_max
                )
            except DistributedLogError:
                await self._refresh()
                self._check_not_lost(self.metadata, first)
                if attempt or metadata.fragment_of(first) == self.metadata.fragment_of(first):
                    raise
        raise AssertionError("the second attempt returns or raises")

    def _may_have_been_declared_lost(self, bookie: str) -> bool:
        """Has the bookie been away since the record was read? What it alone had may have been given up."""
        return self.closed and self._pool.came_at(bookie) > self._record_of

    def _check_not_lost(self, metadata: LedgerMetadata, entry: int) -> None:
        loss = metadata.loss_at(entry)
        if loss is not None:
            raise EntriesLost(
                f"ledger {self.ledger_id}: entries {loss.first} to {loss.last} were declared lost by"
                f" {loss.by}: {loss.why}"
            )

    async def why_unreadable(self, entry: int) -> str:
        """What each replica of an entry says, where it certainly cannot be read any more; else "".

        The ledger is closed, and each bookie that its record names, as it is now, says in so many words that
        its copy is damaged, or that it has none. Silence, limbo and refusals say nothing (H164). Raises
        `NoSuchLedger` when the ledger was deleted.
        """
        await self._refresh()
        before = self.metadata
        if not before.closed or entry > self.lac:
            return ""
        loss = before.loss_at(entry)
        if loss is not None:
            return f"declared lost by {loss.by}: {loss.why}"
        fragment = before.fragment_of(entry)
        bookies = [fragment.bookies[slot] for slot in self._striping.write_set(entry)]
        said: dict[str, str] = {}

        async def ask(bookie: str) -> None:
            with suppress(DistributedLogError):
                said[bookie] = await self._why_not(bookie, entry)

        async with trio.open_nursery() as nursery:
            for bookie in bookies:
                nursery.start_soon(ask, bookie)
        await self._refresh()  # where it was copied meanwhile, others are to be asked
        if fragment != self.metadata.fragment_of(entry) or not all(map(said.get, bookies)):
            return ""
        return "; ".join(f"{bookie}: {said[bookie]}" for bookie in bookies)

    async def _why_not(self, bookie: str, entry: int) -> str:
        """Why a bookie certainly cannot give an entry; "": it can, or does not know."""
        try:
            client = await self._pool.connected(bookie, self._options.connect_timeout_s)
            for _ in range(2):  # once more if the digest does not fit (H16)
                answer = await client.read(
                    self.ledger_id,
                    self.metadata.key,
                    entry,
                    entry,
                    1,
                    past_lac=True,
                    timeout_s=self._options.request_timeout_s,
                )
                if len(answer.body) == 0:
                    absent = answer.known and answer.complete_to >= entry
                    return "it has none" if absent else ""
                try:
                    self._take(answer.body, entry, entry, [])
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
        start = self._replica if self._striping.everywhere else first
        order = [fragment.bookies[slot] for slot in self._striping.write_set(start)]
        # Who is connected first: a wait for a connection is the last resort.
        order.sort(key=lambda bookie: self._pool.get(bookie) is None)
        send, receive = trio.open_memory_channel[
            tuple[str, list[EntryRecord] | DistributedLogError]
        ](len(order))
        errors: list[tuple[str, DistributedLogError]] = []

        async def ask(bookie: str) -> None:
            try:
                answer = await self._read_one(metadata, bookie, first, last, bytes_max)
            except DistributedLogError as error:
                send.send_nowait((bookie, error))
            else:
                send.send_nowait((bookie, answer))

        async with trio.open_nursery() as nursery:
            asked = answered = 0
            while True:
                if asked < len(order) and (answered == asked or asked == 0):
                    nursery.start_soon(ask, order[asked])
                    asked += 1
                outcome = None
                more = asked < len(order)
                with trio.move_on_after(self._options.speculative_s if more else float("inf")):
                    outcome = await receive.receive()
                if outcome is None:  # slow: a second one is asked as well
                    nursery.start_soon(ask, order[asked])
                    asked += 1
                    continue
                bookie, answer = outcome
                answered += 1
                if not isinstance(answer, DistributedLogError):
                    nursery.cancel_scope.cancel()
                    break
                errors.append((bookie, answer))
                if answered == len(order):
                    break
        if isinstance(answer, DistributedLogError):
            raise self._best_error(first, errors)
        if self._striping.everywhere:
            self._replica = fragment.bookies.index(bookie)
        return answer

    def _best_error(
        self, entry: int, errors: list[tuple[str, DistributedLogError]]
    ) -> DistributedLogError:
        """The first that is not merely "not here", naming what each replica said."""
        said = "; ".join(f"{bookie}: {type(e).__name__} {e}" for bookie, e in errors)
        for _, error in errors:
            if not isinstance(error, NoSuchEntry | NoSuchLedger):
                cls = type(error)
                break
        else:
            cls = NoSuchEntry
        return cls(f"ledger {self.ledger_id} entry {entry} cannot be read ({said})")

    async def _read_one(
        self, metadata: LedgerMetadata, bookie: str, first: int, last: int, bytes_max: int
    ) -> list[EntryRecord]:
        """The run from ``first`` that one bookie has; once more if the digest does not fit (H16)."""
        client = await self._pool.connected(bookie, self._options.connect_timeout_s)
        if self._may_have_been_declared_lost(bookie):
            await self._refresh()
            self._check_not_lost(self.metadata, first)
            last = self.metadata.without_lost(first, last)
        timeout_s = self._options.request_timeout_s
        for again in (True, False):
            # This reader knows that they are confirmed; the bookie may not yet.
            request = ReadEntriesRequest(
                self.ledger_id, metadata.key, first, last, bytes_max, past_lac=True
            )
            answer = await client.finish_read(client.begin_read(request, timeout_s), timeout_s)
            self._lac = max(self._lac, answer.lac)
            found: list[EntryRecord] = []
            try:
                self._take(answer.body, first, last, found)
            except (CorruptData, UnsupportedFormat):
                if not found and not again:
                    raise
            if found:
                return found
            if len(answer.body) == 0:
                break
        raise NoSuchEntry(f"bookie {bookie} does not have it")

    async def _read_ahead(
        self, metadata: LedgerMetadata, fragment: Fragment, first: int, last: int, bytes_max: int
    ) -> list[EntryRecord]:
        """What was asked for before; nothing where that is not to be had, and `_read_replicas` will know."""
        bookie = fragment.bookies[self._replica % len(fragment.bookies)]
        client = self._pool.get(bookie)
        if client is None or self._may_have_been_declared_lost(bookie):
            self._ahead.forget()
            return []
        request = ReadEntriesRequest(
            self.ledger_id, metadata.key, first, last, bytes_max, past_lac=True
        )
        found: list[EntryRecord] = []
        try:
            answer = await self._ahead.take(client, request, self._options.speculative_s)
            if answer is None:
                return []
            self._lac = max(self._lac, answer.lac)
            self._take(answer.body, first, last, found)
        except RequestTimeout:
            self._replica += 1  # it is slow: another one first
        except DistributedLogError:
            pass
        if not found:
            self._ahead.forget()
        return found

    def _ask_ahead(
        self, fragment: Fragment, found: list[EntryRecord], last: int, bytes_max: int
    ) -> None:
        """Ask for what follows ``found`` while the caller is busy with it."""
        first = found[-1].entry + 1
        client = self._pool.get(fragment.bookies[self._replica % len(fragment.bookies)])
        if first <= last and client is not None:
            self._ahead.note([len(one.raw) for one in found])
            key = self.metadata.key
            request = ReadEntriesRequest(self.ledger_id, key, first, last, bytes_max, past_lac=True)
            self._ahead.ask(client, request)

    def _take(self, body: memoryview, first: int, last: int, found: list[EntryRecord]) -> None:
        """Append the sound records ``first``, first + 1, ... of a reply."""
        expected = first
        for one in records(body):
            if one.ledger != self.ledger_id:
                raise CorruptData(f"ledger {one.ledger} in a reply about ledger {self.ledger_id}")
            if one.entry != expected or expected > last:
                return
            found.append(one)
            expected += 1

    async def _read_striped(
        self, metadata: LedgerMetadata, fragment: Fragment, first: int, last: int, bytes_max: int
    ) -> list[EntryRecord]:
        """E > Qw: ask as few bookies as hold all of the range, at once; fill what fails one by one."""
        cover = self._cover(fragment, first)
        pieces: dict[int, EntryRecord] = {}

        async def ask(slot: int) -> None:
            start = self._striping.next_held(slot, first)
            if start > last or self._may_have_been_declared_lost(fragment.bookies[slot]):
                return
            try:
                client = await self._pool.connected(
                    fragment.bookies[slot], self._options.connect_timeout_s
                )
                answer = await client.read(
                    self.ledger_id,
                    metadata.key,
                    start,
                    last,
                    bytes_max // len(cover),
                    past_lac=True,
                    timeout_s=self._options.speculative_s,
                )
                for one in records(answer.body):
                    if one.ledger == self.ledger_id:
                        pieces[one.entry] = one
            except DistributedLogError:
                return

        async with trio.open_nursery() as nursery:
            for slot in cover:
                nursery.start_soon(ask, slot)
        if first not in pieces:
            return await self._read_replicas(metadata, fragment, first, first, bytes_max)
        entry = first
        while entry + 1 <= last and entry + 1 in pieces:
            entry += 1
        return [pieces[e] for e in range(first, entry + 1)]

    def _cover(self, fragment: Fragment, first: int) -> Sequence[int]:
        """The slots to ask: whose bookie is away holds up every range that it has a part of."""
        there = [
            slot
            for slot, bookie in enumerate(fragment.bookies)
            if self._pool.get(bookie) is not None
        ]
        covers = self._striping.covers(first)
        whole = (cover for cover in covers if set(cover) <= set(there))
        # Where no few have all of it, those that are there may have the beginning.
        return next(whole, there or covers[0])

    # --- tailing ----------------------------------------------------------------------------------

    async def wait(self, after: int, *, wait_s: float, take: Take | None = None) -> int:
        """The LAC, once it is above ``after``, or the ledger is closed, or ``wait_s`` is over.

        Entries may come with the news (`tail_polls.py`); the next `read` has them. ``take`` gets them as they
        come, from ``after`` + 1 on without a gap, within the link's call: it must not raise. While it
        takes them all, this goes on waiting for what follows. Raises `NoSuchLedger` when the ledger was
        deleted.
        """
        end = trio.current_time() + wait_s
        self._given, self._give = after, take
        try:
            while self.lac <= self._given and not self.closed and not self.deleted:
                if self._polls.fenced:
                    await self._look_at_record()
                    continue
                due = self._polls.arm(self.metadata, self._given)
                changed = self._changed
                with trio.CancelScope(deadline=min(due, end)):
                    await changed.wait()
                if trio.current_time() >= end:
                    break
        finally:
            self._give = None
        if self.deleted:
            raise NoSuchLedger(f"ledger {self.ledger_id} was deleted")
        return self.lac

    async def _look_at_record(self) -> None:
        """Somebody recovers: the record will say how it ends; the bookies have no more to tell."""
        with trio.move_on_after(LONG_POLL_S / 2):
            await self._changed.wait()
        self._polls.fenced = False
        await self._refresh()

    def _on_news(self, lac: int) -> None:
        """A poll was answered."""
        self._lac = max(self._lac, lac)
        if not self._hand_over():
            self._tell()

    def _hand_over(self) -> bool:
        """Give what came to whoever waits for it. False: its task has something to see to."""
        if self._give is None or self.lac <= self._given:
            return False
        polls = self._polls
        found = polls.take(self._given + 1, self.lac)
        taken = self._give(found)
        self._given += taken
        polls.ahead[:0] = found[taken:]  # the next `read` has them
        return self._given == self.lac and polls.follows

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
