"""The kinds of clients: each works until it is told to stop, and notes every call and every answer.

What is noted before a call begins and what after it decides what the checker may believe: a session before
its first record, a register's change before it is asked for, an acknowledgement only when it is there.
"""

import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import trio

from ..log.dlsn import DLSN
from ..log.namespace import Namespace
from ..log.record import LogRecord
from ..log.writer import LogWriter
from ..metadata.transaction import Compare, Put, Transaction
from ..runtime.errors import DistributedLogError, LogTruncated
from ..verify.history import Outcome, Value, from_payload, to_payload
from ..verify.notes import Piece
from .client import Life, after, before

TICK_S = 0.01
"""A writer hands over what is due this often: the records of one tick are one stretch."""
IN_FLIGHT_MAX = 400
"""Ticks whose outcome is not known; beyond it the writer waits."""
READ_RECORDS = 5000
REGISTERS = "chaos/register/"
FILLING = b"."
"""Makes values as long as the scenario wants them: enough of them, and the quorum takes a snapshot."""


def words(error: BaseException) -> str:
    """An error on one short line."""
    return f"{type(error).__name__}: {error}"[:300]


# --- writers --------------------------------------------------------------------------------------


class Session:
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
    ) -> "Session | None":
        """Open the log's writer; None, noted, when that fails."""
        number, begun = life.new_session(), before()
        try:
            writer = await namespace.open_log(log, config=life.log_options).open_writer(
                takeover=takeover
            )
        except DistributedLogError as error:
            life.notes.note("note", after(), f"{log} does not open: {words(error)}")
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
        why = words(self.failure) if self.failure is not None else ""
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
            places = stretches([one for one in outcomes[:good] if isinstance(one, DLSN)])
            self.life.notes.note("ack", self.number, first, begun, after(), places)
        for offset in range(good, len(outcomes)):
            error = outcomes[offset]
            if isinstance(error, DLSN):
                places = [(*error, 1)]
                self.life.notes.note("ack", self.number, first + offset, begun, after(), places)
                continue
            self.failure = self.failure or error
            self._note_failed(first + offset, 1, begun, error)

    def _note_failed(
        self, first: int, count: int, begun: float, error: DistributedLogError
    ) -> None:
        outcome = Outcome.REFUSED if error.definite else Outcome.UNKNOWN
        self.life.notes.note(
            "fail", self.number, first, count, begun, after(), outcome.value, words(error)
        )


def stretches(positions: Sequence[DLSN]) -> list[tuple[int, int, int, int]]:
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
    session: Session, life: Life, seconds: float = math.inf
) -> Callable[[], Awaitable[None]]:
    options = life.options
    return partial(session.feed_at, options["rate"], options["payload_bytes"], seconds)


async def write(life: Life, namespace: Namespace) -> None:
    """One writer at a time, for ever; a new session takes over what the last one left."""
    while not life.stop.is_set():
        session = await Session.open(life, namespace, life.options["log"], takeover=True)
        if session is None:
            await life.rest(0.2)
            continue
        await session.run(_feeding(session, life))


async def duel(life: Life, namespace: Namespace) -> None:
    """Take the log over, keep it for a while or lose it, rest, again."""
    chance, (low, high) = life.chance, life.options["pause_s"]
    while not await life.rest(chance.uniform(0, high / 2)):
        session = await Session.open(
            life, namespace, life.options["log"], takeover=chance.random() < 0.8
        )
        if session is not None:
            keep_s = chance.uniform(low, high)
            await session.run(_feeding(session, life, keep_s))


async def many_logs(life: Life, namespace: Namespace) -> None:
    """Some records to one log after the other; each is kept open until it fails."""
    open_: dict[str, Session] = {}
    chance = life.chance
    share = max(1, int(life.options["rate"] * TICK_S * 5))
    async with trio.open_nursery() as nursery:

        async def keep(name: str, session: Session) -> None:
            await session.run(session.feed_from_outside)
            open_.pop(name, None)

        while not await life.rest(TICK_S * 5):
            name = f"{life.options['log']}-{chance.randrange(life.options['logs'])}"
            session = open_.get(name)
            if session is None:
                session = await Session.open(life, namespace, name, takeover=True)
                if session is None:
                    continue
                open_[name] = session
                nursery.start_soon(keep, name, session)
            if session.failure is None:
                await session.write(share, life.options["payload_bytes"])


# --- readers --------------------------------------------------------------------------------------


def pieces(records: Sequence[Any]) -> list[Piece]:
    """What was read, as stretches."""
    found: list[Piece] = []
    for record in records:
        segment, entry, slot = record.dlsn
        value = from_payload(record.payload)
        writer, counter = value if value is not None else (-1, 0)
        if found:
            last = found[-1]
            if (
                last.segment == segment
                and last.entry == entry
                and last.slot + last.records == slot
                and last.writer == writer >= 0
                and last.counter + last.records == counter
                and last.txid == record.txid
                and last.sequence_id + last.records == record.sequence_id
            ):
                found[-1] = last._replace(records=last.records + 1)
                continue
        found.append(
            Piece(segment, entry, slot, 1, record.sequence_id, record.txid, writer, counter)
        )
    return found


async def tail(life: Life, namespace: Namespace) -> None:
    """Follow the log; after an error go on behind the last record that was got."""
    start: DLSN | None = None
    log = life.options["log"]
    while not life.stop.is_set():
        try:
            reader = await namespace.open_log(log, config=life.log_options).open_reader(dlsn=start)
        except LogTruncated:
            start = None
            continue
        except DistributedLogError:
            await life.rest(0.2)
            continue
        number = life.new_reading()
        life.notes.note("read", number, log, before(), None if start is None else list(start))
        try:
            while not life.stop.is_set():
                first = await reader.read_next(wait_s=0.5)
                if first is None:
                    continue
                records = [first]
                while len(records) < READ_RECORDS:
                    more = await reader.read_next(wait_s=0)
                    if more is None:
                        break
                    records.append(more)
                life.notes.note("got", number, after(), pieces(records))
                segment, entry, slot = records[-1].dlsn
                start = DLSN(segment, entry, slot + 1)
                await life.rest(0.05)  # a stretch at a time
        except DistributedLogError as error:
            if isinstance(error, LogTruncated):
                start = None  # it was slower than the truncation, and was told so (G6)
            life.notes.note("note", after(), f"reading {log} ended: {words(error)}")
            await life.rest(0.2)
        await reader.aclose()


async def catch_up(life: Life, namespace: Namespace) -> None:
    """Read the whole log from its beginning to its present end, again and again."""
    chance, (low, high) = life.chance, life.options["pause_s"]
    while not await life.rest(chance.uniform(low, high)):
        try:
            await read_whole(life, namespace, life.options["log"])
        except DistributedLogError as error:
            life.notes.note("note", after(), f"catching up ended: {words(error)}")


async def read_whole(life: Life, namespace: Namespace, log: str) -> int:
    """The whole log, noted; how many records. Raises what ended it before its end."""
    begun, count = before(), 0
    async with namespace.open_log(log, config=life.log_options).open_reader(to="end") as reader:
        number = life.new_reading()
        life.notes.note("read", number, log, begun, None)
        while True:
            records = await reader.read_bulk(READ_RECORDS)
            if not records:
                break
            count += len(records)
            life.notes.note("got", number, after(), pieces(records))
            if life.stop.is_set():
                return count
        life.notes.note("whole", number, after())
    return count


# --- truncation -----------------------------------------------------------------------------------


async def truncate(life: Life, namespace: Namespace) -> None:
    """Now and then give up what was written before the last time."""
    chance, (low, high) = life.chance, life.options["pause_s"]
    log, point = life.options["log"], None
    while not await life.rest(chance.uniform(low, high)):
        handle = namespace.open_log(log, config=life.log_options)
        begun = before()
        try:
            if point is not None:
                # Before the call: it may have an effect that nobody lives to tell of.
                life.notes.note("cut", log, begun, begun, list(point), Outcome.UNKNOWN.value)
                await handle.truncate(point)
                life.notes.note("cut", log, begun, after(), list(point), Outcome.OK.value)
            point = await handle.last_dlsn()
        except DistributedLogError as error:
            life.notes.note("note", after(), f"truncating {log} failed: {words(error)}")


# --- registers ------------------------------------------------------------------------------------


async def registers(life: Life, namespace: Namespace) -> None:
    """Read and conditionally change a few keys."""
    chance, known = life.chance, dict[str, int]()
    metadata, number, size = namespace.metadata, 0, life.options["payload_bytes"]
    while not await life.rest(chance.expovariate(life.options["rate"])):
        key = f"{REGISTERS}{chance.randrange(life.options['keys'])}"
        kind = "get" if chance.random() < 0.5 else "cas"
        number += 1
        expected = known.get(key, 0) if kind == "cas" else 0
        wrote = f"{life.first_session}/{number}" if kind == "cas" else ""
        life.notes.note("ask", number, key, kind, before(), expected, wrote)
        try:
            if kind == "get":
                found = await metadata.get(key.encode())
                succeeded = True
            else:
                reply = await metadata.transact(
                    Transaction(
                        (Compare.version(key.encode(), expected),),
                        (Put(key.encode(), wrote.encode().ljust(size, FILLING)),),
                    )
                )
                succeeded = reply.succeeded
                found = None if reply.succeeded else reply.current[0]
        except DistributedLogError as error:
            definite = error.definite and kind == "cas"
            outcome = Outcome.REFUSED if definite else Outcome.UNKNOWN
            life.notes.note("answer", number, after(), outcome.value, False, 0, "")
            continue
        version, value = 0, ""
        if kind == "cas" and succeeded:
            version, value = expected + 1, wrote
        elif found is not None:
            version, value = found.version, found.value.rstrip(FILLING).decode()
        life.notes.note("answer", number, after(), "ok", succeeded, version, value)
        known[key] = version


# --- the end --------------------------------------------------------------------------------------


async def finish(life: Life, namespace: Namespace) -> None:
    """After the faults: take each log over, write, and read all of it back.

    Tries again until it succeeds; the runner bounds how long that may take.
    """
    for log in life.options["logs"]:
        while not await _prove(life, namespace, log):
            if await life.rest(0.5):
                return
        while not life.stop.is_set():
            try:
                await read_whole(life, namespace, log)
                break
            except DistributedLogError as error:
                life.notes.note("note", after(), f"the last reading ended: {words(error)}")
                await life.rest(0.5)
    life.notes.note("note", after(), "finished")


async def _prove(life: Life, namespace: Namespace, log: str) -> bool:
    session = await Session.open(life, namespace, log, takeover=True)
    if session is None:
        return False
    await session.run(partial(session.feed_at, 200.0, 100, 0.2))
    return session.failure is None


KINDS: dict[str, Callable[[Life, Namespace], Awaitable[None]]] = {
    "writer": write,
    "duel": duel,
    "many-logs": many_logs,
    "tail": tail,
    "catch-up": catch_up,
    "registers": registers,
    "truncate": truncate,
    "finish": finish,
}
