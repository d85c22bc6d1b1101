"""Between a trio run in a thread and its callers outside: what the blocking and asyncio faces share.

Nothing here knows how a caller waits: that is `blocking.py` and `aio.py`. What is written goes through
`write_buffer.py`.
"""

import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

import trio

from .log.consumers.work_queue import WorkClaim
from .log.format.record import Columns, LogRecord
from .log.model.position import Position
from .log.read.log_reader import LogReader, position_after
from .runtime.interfaces.errors import AlreadyClosed, DistributedLogError, InvalidRequest
from .runtime.interfaces.log_lines import get_logger
from .runtime.schedule.background_loop import (
    INTERRUPTING,
    Background,
    CrossThreadFuture,
    Handover,
    Mutex,
    interrupts,
    told,
    uninterrupted,
)

T = TypeVar("T")
C = TypeVar("C", bound="Closeable")

log = get_logger("distributedlog.client")

GIVEN_UP_S = 0.1
"""How long a call of a reader waits for another one that was cancelled to end."""
IN_USE = "another call of this reader is waiting: one thread or task at a time may use it"
GIVE_UP_S = 2.0
"""How long the end of a block that an exception ends waits until what it opened is given up."""


class Closeable:
    """What a face opened. Dropped without being closed, it is given up by the loop.

    So no interrupt between ``open_writer()`` and the caller's name for it leaves a log locked.
    """

    def __init__(
        self,
        background: Background,
        what: str,
        give_up: Callable[[], Awaitable[object]],
        drop: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """``drop``: called in the loop instead of ``give_up`` if the object was dropped unclosed."""
        self._background = background
        self._give_up = give_up
        """In the loop."""
        self._kept = background.keep(self, drop or give_up)
        self._on_dropped = weakref.finalize(self, _dropped, background, what, self._kept)
        self._on_dropped.atexit = False

    @property
    def _open(self) -> bool:
        """Is there something to close?"""
        return self._on_dropped.alive

    def _abandon(self) -> CrossThreadFuture[object]:
        """Have it given up in the loop, whatever becomes of who waits for it; what is returned says when."""
        outcome: CrossThreadFuture[object] = CrossThreadFuture()
        try:
            self._background.begin(outcome, trio.CancelScope(), self._give_up)
        except AlreadyClosed:  # it ended with its namespace
            outcome.set(None)
        self._ended()
        return outcome

    def _ended(self) -> None:
        """It was closed: nothing is left to give up."""
        self._on_dropped.detach()
        self._background.let_go(self._kept)


def _dropped(background: Background, what: str, kept: "weakref.ref[object]") -> None:
    try:
        background.post(lambda: background.give_up(kept))
    except AlreadyClosed:
        return  # it ended with its namespace
    background.warn(f"{what} was dropped unclosed; it is given up", stacklevel=3)


def hand_over(
    background: Background, wrap: Callable[[Background, T], C], open_it: Callable[[], Awaitable[T]]
) -> Handover[C]:
    """What ``open_it`` will open in the loop, wrapped, on its way to a caller."""

    async def open_and_wrap() -> C:
        return wrap(background, await open_it())

    async def give_up(owned: C) -> None:
        owned._ended()
        await owned._give_up()

    return Handover(background, open_and_wrap, give_up)


def hand_over_claim(
    background: Background, claim: Callable[[], Awaitable[WorkClaim | None]]
) -> Handover[WorkClaim | None]:
    """A stretch of a work queue on its way to a caller."""

    async def give_up(claimed: WorkClaim | None) -> None:
        if claimed is not None:
            claimed.ungiven()

    return Handover(background, claim, give_up)


def beside_loop(
    background: Background, call: Callable[[T], object] | None
) -> Callable[[T], object] | None:
    """Wrap users' code for the loop: a separate thread calls it."""
    return None if call is None else lambda value: background.aside(partial(call, value))


def report_left(background: Background) -> None:
    """Log which records are lost with a namespace that is closed before its writers."""
    if left := background.not_durable():
        log.warning("%s; their writers were not closed before their namespace", told(left))


class LocalClusterInfo:
    """A cluster on this machine: where it is, who its nodes are."""

    def __init__(self, background: Background, cluster: Any) -> None:
        background.use(self)
        self.uri: str = cluster.uri
        self.proxied_uri: str = cluster.proxied_uri
        self.data: str | None = cluster.data
        self.nodes: list[Any] = cluster.nodes


class HeldContext(Generic[T]):
    """An async context manager that is entered, held and left by one task of a background loop."""

    def __init__(self, background: Background, manager: AbstractAsyncContextManager[T]) -> None:
        self.entered: CrossThreadFuture[T] = CrossThreadFuture()
        self._background = background
        self._manager = manager
        self._leave = trio.Event()
        self.left: CrossThreadFuture[None] = CrossThreadFuture()
        """Set when the manager was left; has what it raised."""
        self.left.when_done(self._on_left)
        background.begin(self.left, trio.CancelScope(), self._hold)

    async def _hold(self) -> None:
        async with self._manager as value:
            self.entered.set(value)
            await self._leave.wait()

    def leave(self) -> CrossThreadFuture[None]:
        """Ask for the end; what is returned is set when it is reached."""
        if self.entered.done and not self.left.done:
            self._background.post(self._leave.set)
        return self.left

    def _on_left(self) -> None:
        try:
            self.left.result()
            self.entered.fail(AlreadyClosed("closed while it was being opened"))
        except BaseException as error:
            self.entered.fail(error)


class Inbox(Generic[T]):
    """What the loop has fetched for a caller; who gave up a wait finds at the next call what came of it.

    `fill` in the loop; ``items`` from the caller's thread. Of two calls that wait at the same time one is
    refused, because each would get an arbitrary part of the items.
    """

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self._filling = trio.Lock()

    async def fill(self, fetch: Callable[[], Awaitable[Iterable[T]]]) -> bool:
        """Wait for an item, or until ``fetch`` gave nothing. Return whether there is an item."""
        await self._begin()
        try:
            if not self.items:
                self.items.extend(await fetch())
            return bool(self.items)
        finally:
            self._filling.release()

    async def fill_one(self, fetch: Callable[[], Awaitable[T | None]]) -> bool:
        """As `fill`; ``fetch`` gives one, or None."""

        async def fetch_one() -> list[T]:
            item = await fetch()
            return [] if item is None else [item]

        return await self.fill(fetch_one)

    async def gather(
        self, enough: Callable[[], bool], fetch: Callable[[], Awaitable[bool]]
    ) -> None:
        """Go on until there is enough, or ``fetch``, which fills it, gave nothing."""
        await self._begin()
        try:
            while not enough() and await fetch():
                pass
        finally:
            self._filling.release()

    async def _begin(self) -> None:
        try:
            self._filling.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_after(GIVEN_UP_S):  # a cancelled wait is about to end
                await self._filling.acquire()
                return
            raise InvalidRequest(IN_USE) from None

    def take(self) -> list[T]:
        """All that is here."""
        found: list[T] = []
        with suppress(IndexError):
            while True:
                found.append(self.items.popleft())
        return found


class Cursor:
    """The entries that were fetched for a caller, and where it is in them; nothing once it is closed.

    `next` makes no call between reading the index and storing the next one, so that the interpreter does not
    switch threads or handle signals there. Threads that use a reader at the same time get each record once,
    until one of them is refused (`Inbox`), and an interrupt loses no record.
    """

    __slots__ = (
        "_at",
        "_background",
        "_closed",
        "_columns",
        "_entered",
        "_inbox",
        "_mutex",
        "_reader",
        "_records",
        "_start",
        "_waiting",
    )

    def __init__(self, background: Background, reader: LogReader) -> None:
        self._background = background
        self._reader = reader
        self._mutex = Mutex()
        self._entered = False
        """Somebody is at a step under the mutex, or was and did not come to its end."""
        self._start = reader.position
        self._inbox: Inbox[Columns] = Inbox()
        self._waiting = self._inbox.items
        self._columns: Columns | None = None
        self._records: list[LogRecord] = []
        self._at = 0
        self._closed = False

    # --- in the loop ------------------------------------------------------------------------------

    async def fetch(self, wait_s: float | None) -> bool:
        """As `LogReader.read_columns_many`, into this; nothing where something is. Is something here?"""
        self._check_open()
        return await self._inbox.fill(lambda: self._reader.read_columns_many(wait_s))

    async def gather(self, number: int, wait_s: float | None) -> None:
        """Wait as `LogReader.read_bulk` does, until ``number`` records are here."""
        self._check_open()
        deadline = trio.current_time() + (wait_s or 0.0)

        async def more() -> bool:
            here = len(self)
            patience: float | None = max(0.0, deadline - trio.current_time())
            if not here and wait_s != 0:
                patience = None
            try:
                found = await self._reader.read_columns_many(patience)
            except DistributedLogError:
                if here:
                    return False  # it sticks, and is the next call's
                raise
            self._waiting.extend(found)
            return bool(found)

        await self._inbox.gather(lambda: len(self) >= number, more)

    async def aclose(self) -> None:
        """Stop fetching, and forget what is here."""
        self.close()
        await self._reader.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed("this reader is closed")

    # --- for the caller ---------------------------------------------------------------------------

    def close(self) -> None:
        """Forget what is here."""
        self._start = self.position
        self._closed = True
        self._waiting.clear()
        self._columns, self._records, self._at = None, [], 0

    def __len__(self) -> int:
        """How many records are here."""
        left = len(self._records) - self._at
        return left + sum([one.count for one in list(self._waiting)])

    @property
    def position(self) -> Position | None:
        """As `LogReader.position`, of what the caller was given."""
        columns = self._columns
        if columns is None:
            return self._start
        left = len(self._records) - self._at
        return position_after(self._reader.incarnation, columns, columns.count - left)

    def next(self) -> LogRecord | None:
        """The next record, or None when more must be fetched."""
        records, at = self._records, self._at
        try:
            record = records[at]
        except IndexError:
            return self.next() if self._next_entry() else None
        self._at = at + 1
        return record

    @uninterrupted
    def _next_entry(self) -> bool:
        """Move to the next entry if all records of this one were read; False if there is none."""
        with self._mutex:
            self._check_entry()
            found = self._at < len(self._records)  # another thread may have been here
            if not found and self._waiting:
                columns = self._waiting[0]
                records = columns.records()
                self._columns, self._records, self._at = columns, records, 0
                del self._waiting[0]
                found = True
            self._entered = False
        return found

    def _check_entry(self) -> None:
        if self._entered and interrupts(self._background, depth=1):
            raise InvalidRequest(
                f"a reader: {INTERRUPTING}; nothing was read. Set a flag or use another thread"
            )
        self._entered = True

    def rest_of_set(self, first: LogRecord) -> list[LogRecord]:
        """What follows the record that `next` gave, of its set."""
        found = [first]
        while found[-1].more and self._at < len(self._records):
            found.append(self._records[self._at])
            self._at += 1
        return found[1:]

    def take(self, number: int) -> list[LogRecord]:
        """Up to ``number`` records that are here."""
        found: list[LogRecord] = []
        while len(found) < number:
            stop = min(self._at + number - len(found), len(self._records))
            records, at = self._records, self._at
            if at < stop:
                part = records[at:stop]
                self._at = stop
                found += part
            elif not self._next_entry():
                break
        return found

    @uninterrupted
    def columns(self) -> Columns | None:
        """The rest of the entry at hand, or the next one that is here."""
        with self._mutex:
            self._check_entry()
            found, stop = self._columns, len(self._records)
            at, self._at = self._at, stop
            if at < stop:
                assert found is not None
                found = found.cut(at, stop)
            elif self._waiting:
                found = self._waiting[0]
                self._columns, self._records, self._at = found, [], 0
                del self._waiting[0]
            else:
                found = None
            self._entered = False
        return found
