"""Clients that write: sessions at a rate, duels for a log, many small logs.

What is noted before a call begins and what after it decides what the checker may believe: a session before
its first record, an acknowledgement only when it is there.
"""

import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import trio

from ....log.format.dlsn import DLSN
from ....log.format.record import LogRecord
from ....log.namespace import Namespace
from ....log.write.log_writer import LogWriter
from ....runtime.interfaces.errors import DistributedLogError
from ...verify.history.run_history import Outcome, Value, to_payload
from .client_context import Life, after, before, one_line

TICK_S = 0.01
"""A writer hands over what is due this often: the records of one tick are one run."""
IN_FLIGHT_MAX = 100
"""Ticks whose outcome is not known; beyond it the writer waits."""


class ChaosWriterSession:
    """One opening of a writer: hands records over by the tick, notes their outcomes in order."""

    def __init__(self, life: Life, writer: LogWriter, number: int) -> None:
        self.life = life
        self.writer = writer
        self.number = number
        self.counter = 0
        self.failure: BaseException | None = None
        self._under_way: deque[tuple[int, float, Any]] = deque()
        self._wake = trio.Event()
        self._over = False

    @classmethod
    async def open(
        cls, life: Life, namespace: Namespace, log: str, *, takeover: bool
    ) -> "ChaosWriterSession | None":
        """Open the log's writer; None, noted, when that fails."""
        number, begun = life.new_session(), before()
        takeover = takeover and not life.options.get(
            "through"
        )  # proxies have one owner, their affair
        try:
            writer = await namespace.open_log(log, config=life.log_options).open_writer(
                takeover=takeover
            )
        except DistributedLogError as error:
            life.notes.note("note", after(), f"{log} does not open: {one_line(error)}")
            return None
        life.notes.note("open", number, log, takeover, begun, after())
        return cls(life, writer, number)

    async def run(self, feed: Callable[[], Awaitable[None]]) -> None:
        """Note outcomes while ``feed`` hands records over; then close, or abort what failed."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._collect)
                await feed()
                self._over = True
                self._wake.set()
            if self.failure is None:
                await self.writer.aclose()
            else:
                await self.writer.abort()
        except DistributedLogError as error:
            self.failure = error
        why = one_line(self.failure) if self.failure is not None else ""
        self.life.notes.note("end", self.number, self.counter, after(), why)

    async def write(self, records: int, payload_bytes: int) -> None:
        """Hand some records over now. After a failure there are none any more."""
        begun, first = before(), self.counter
        txid = max(self.writer.last_txid, time.time_ns() // 1_000_000)
        batch = [
            LogRecord(txid, to_payload(Value(self.number, first + n), payload_bytes))
            for n in range(records)
        ]
        self.counter += records
        try:
            taken = await self.writer.submit_bulk(batch)
        except DistributedLogError as error:
            self.failure = self.failure or error
            self._note_failed(first, records, begun, error)
            return
        self._under_way.append((first, begun, taken))
        self._wake.set()

    async def feed_at(self, rate: float, payload_bytes: int, seconds: float = math.inf) -> None:
        """Write at ``rate`` until told to stop, until ``seconds`` are over, or until it fails."""
        start, given = time.monotonic(), 0
        while not self.life.stop.is_set() and self.failure is None:
            now = time.monotonic() - start
            if now >= seconds:
                break
            # What a long stall made due is not made up for: a paused client does not come back with a flood.
            given = max(given, int((now - 1.0) * rate))
            due = min(int(now * rate) + 1 - given, max(1, int(rate * TICK_S * 4)))
            if due > 0 and len(self._under_way) < IN_FLIGHT_MAX:
                await self.write(due, payload_bytes)
                given += due
            await trio.sleep(min(0.2, max(TICK_S, given / rate - now)))

    async def feed_from_outside(self) -> None:
        """`write` is called by others until told to stop, or until it fails."""
        while not await self.life.rest(0.2) and self.failure is None:
            pass

    async def _collect(self) -> None:
        """Outcomes, in the order in which the records were handed over."""
        while self._under_way or not self._over:
            if not self._under_way:
                self._wake = trio.Event()
                await self._wake.wait()
                continue
            first, begun, taken = self._under_way[0]
            outcomes = await taken.outcomes()
            self._under_way.popleft()
            self._note(first, begun, outcomes)

    def _note(
        self, first: int, begun: float, outcomes: Sequence[DLSN | DistributedLogError]
    ) -> None:
        good = 0
        while good < len(outcomes) and isinstance(outcomes[good], DLSN):
            good += 1
        if good:
            places = consecutive([one for one in outcomes[:good] if isinstance(one, DLSN)])
            self.life.notes.note("ack", self.number, first, begun, after(), places)
        self._note_rest(first, begun, outcomes, good)

    def _note_rest(
        self, first: int, begun: float, outcomes: Sequence[DLSN | DistributedLogError], start: int
    ) -> None:
        """What follows the first failure: records that failed alike are one line."""
        while start < len(outcomes):
            error = outcomes[start]
            end = start + 1
            if isinstance(error, DLSN):
                places = [(*error, 1)]
                self.life.notes.note("ack", self.number, first + start, begun, after(), places)
            else:
                while end < len(outcomes) and _alike(error, outcomes[end]):
                    end += 1
                self.failure = self.failure or error
                self._note_failed(first + start, end - start, begun, error)
            start = end

    def _note_failed(
        self, first: int, count: int, begun: float, error: DistributedLogError
    ) -> None:
        outcome = Outcome.REFUSED if error.definite else Outcome.UNKNOWN
        self.life.notes.note(
            "fail", self.number, first, count, begun, after(), outcome.value, one_line(error)
        )


def _alike(error: DistributedLogError, other: DLSN | DistributedLogError) -> bool:
    return type(other) is type(error) and other.definite == error.definite


def consecutive(positions: Sequence[DLSN]) -> list[tuple[int, int, int, int]]:
    """(segment, entry, slot, count): positions of consecutive records, by entry."""
    found: list[list[int]] = []
    for segment, entry, slot in positions:
        last = found[-1] if found else None
        if last is not None and last[:2] == [segment, entry] and last[2] + last[3] == slot:
            last[3] += 1
        else:
            found.append([segment, entry, slot, 1])
    return [(a, b, c, d) for a, b, c, d in found]


def _feeding(
    session: ChaosWriterSession, life: Life, seconds: float = math.inf
) -> Callable[[], Awaitable[None]]:
    options = life.options
    return partial(session.feed_at, options["rate"], options["payload_bytes"], seconds)


async def write(life: Life, namespace: Namespace) -> None:
    """One writer at a time, for ever; a new session takes over what the last one left."""
    while not life.stop.is_set():
        session = await ChaosWriterSession.open(life, namespace, life.options["log"], takeover=True)
        if session is None:
            await life.rest(0.2)
            continue
        await session.run(_feeding(session, life))


async def duel(life: Life, namespace: Namespace) -> None:
    """Take the log over, keep it for a while or lose it, rest, again."""
    chance, (low, high) = life.chance, life.options["pause_s"]
    while not await life.rest(chance.uniform(0, high / 2)):
        session = await ChaosWriterSession.open(
            life, namespace, life.options["log"], takeover=chance.random() < 0.8
        )
        if session is not None:
            keep_s = chance.uniform(low, high)
            await session.run(_feeding(session, life, keep_s))


async def many_logs(life: Life, namespace: Namespace) -> None:
    """Some records to one log after the other; each is kept open until it fails."""
    open_: dict[str, ChaosWriterSession] = {}
    chance = life.chance
    share = max(1, int(life.options["rate"] * TICK_S * 5))
    async with trio.open_nursery() as nursery:

        async def keep(name: str, session: ChaosWriterSession) -> None:
            await session.run(session.feed_from_outside)
            open_.pop(name, None)

        while not await life.rest(TICK_S * 5):
            name = f"{life.options['log']}-{chance.randrange(life.options['logs'])}"
            session = open_.get(name)
            if session is None:
                session = await ChaosWriterSession.open(life, namespace, name, takeover=True)
                if session is None:
                    continue
                open_[name] = session
                nursery.start_soon(keep, name, session)
            if session.failure is None:
                await session.write(share, life.options["payload_bytes"])
