"""Between a trio run in a thread and its callers outside: what the blocking and asyncio faces share.

Nothing here knows how a caller waits: that is `blocking.py` and `aio.py`. What is written goes through
`write_buffer.py`.
"""

import warnings
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

import trio

from .log.position import Position
from .log.reader import LogReader, position_after
from .log.record import Columns, LogRecord
from .log.work_queue import WorkClaim
from .runtime.background import Background, Handover, Promise
from .runtime.errors import AlreadyClosed, DistributedLogError

T = TypeVar("T")
C = TypeVar("C", bound="Owned")

GIVE_UP_S = 2.0
"""How long the end of a block that an exception ends waits until what it opened is given up."""


class Owned:
    """What a face opened. Dropped without being closed, it is given up by the loop.

    So no interrupt between ``open_writer()`` and the caller's name for it leaves a log locked.
    """

    def __init__(
        self, background: Background, what: str, give_up: Callable[[], Awaitable[object]]
    ) -> None:
        self._background = background
        self._give_up = give_up
        """In the loop."""
        self._kept = background.keep(self, give_up)
        self._on_dropped = weakref.finalize(self, _dropped, background, what, self._kept)
        self._on_dropped.atexit = False

    @property
    def _open(self) -> bool:
        """Is there something to close?"""
        return self._on_dropped.alive

    def _abandon(self) -> Promise[object]:
        """Have it given up in the loop, whatever becomes of who waits for it; what is returned says when."""
        outcome: Promise[object] = Promise()
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
    warnings.warn(f"{what} was dropped unclosed; it is given up", ResourceWarning, stacklevel=2)


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


class LocalCluster:
    """A cluster on this machine: where it is, who its nodes are."""

    def __init__(self, background: Background, cluster: Any) -> None:
        self.uri: str = cluster.uri
        self.proxied_uri: str = cluster.proxied_uri
        self.data: str | None = cluster.data
        self.nodes: list[Any] = cluster.nodes


class HeldContext(Generic[T]):
    """An async context manager that is entered, held and left by one task of a background loop."""

    def __init__(self, background: Background, manager: AbstractAsyncContextManager[T]) -> None:
        self.entered: Promise[T] = Promise()
        self._background = background
        self._manager = manager
        self._leave = trio.Event()
        self.left: Promise[None] = Promise()
        """Set when the manager was left; has what it raised."""
        self.left.when_done(self._on_left)
        background.begin(self.left, trio.CancelScope(), self._hold)

    async def _hold(self) -> None:
        async with self._manager as value:
            self.entered.set(value)
            await self._leave.wait()

    def leave(self) -> Promise[None]:
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

    `fill` in the loop; ``items`` from the caller's thread while that does not run.
    """

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self._filling = trio.Lock()  # a wait that was given up may be about to end

    async def fill(self, fetch: Callable[[], Awaitable[Iterable[T]]]) -> None:
        """Until there is something, or ``fetch`` gave nothing."""
        async with self._filling:
            if not self.items:
                self.items.extend(await fetch())

    async def fill_one(self, fetch: Callable[[], Awaitable[T | None]]) -> None:
        """As `fill`; ``fetch`` gives one, or None."""
        async with self._filling:
            if not self.items and (item := await fetch()) is not None:
                self.items.append(item)

    async def gather(
        self, enough: Callable[[], bool], fetch: Callable[[], Awaitable[bool]]
    ) -> None:
        """Go on until there is enough, or ``fetch``, which fills it, gave nothing."""
        async with self._filling:
            while not enough() and await fetch():
                pass

    def take(self) -> list[T]:
        """All that is here."""
        return [self.items.popleft() for _ in range(len(self.items))]


class Cursor:
    """The entries that were fetched for a caller, and where it is in them; nothing once it is closed."""

    __slots__ = (
        "_at",
        "_closed",
        "_columns",
        "_inbox",
        "_reader",
        "_records",
        "_start",
        "_waiting",
    )

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._start = reader.position
        self._inbox: Inbox[Columns] = Inbox()
        self._waiting = self._inbox.items
        self._columns: Columns | None = None
        self._records: list[LogRecord] = []
        self._at = 0
        self._closed = False

    # --- in the loop ------------------------------------------------------------------------------

    async def fetch(self, wait_s: float | None) -> None:
        """As `LogReader.read_columns_many`, into this; nothing where something is."""
        self._check_open()
        await self._inbox.fill(lambda: self._reader.read_columns_many(wait_s))

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
        return len(self._records) - self._at + sum([one.count for one in self._waiting])

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
        at = self._at
        if at < len(self._records):
            self._at = at + 1
            return self._records[at]
        if not self._waiting:
            return None
        self._columns = self._waiting.popleft()
        self._records = self._columns.records()
        self._at = 1
        return self._records[0]

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
            if self._at == len(self._records):
                if not self._waiting:
                    break
                self._columns = self._waiting.popleft()
                self._records, self._at = self._columns.records(), 0
            part = self._records[self._at : self._at + number - len(found)]
            self._at += len(part)
            found += part
        return found

    def columns(self) -> Columns | None:
        """The rest of the entry at hand, or the next one that is here."""
        at, left = self._at, len(self._records) - self._at
        if left:
            assert self._columns is not None
            self._at = len(self._records)
            return self._columns.cut(at, at + left)
        if not self._waiting:
            return None
        self._columns, self._records, self._at = self._waiting.popleft(), [], 0
        return self._columns
