"""Many producers and readers of one log at a time, through proxies and beside them.

Producers with a name outlive every process and go on where the log says that they are (G9). Plain ones begin
anew after each failure, and say what they do not know (G7). What each sent and was told is a `RunHistory`,
which `check_log` judges; `check_sources` judges what the log says of names.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import trio

from ....log.format.dlsn import DLSN
from ....log.model.position import Position as ReaderPosition
from ....log.namespace import Namespace
from ....log.write.entry_batch import PendingWrite
from ....log.write.log_writer import LogWriter
from ....log.write.producer_state_manager import OpenedProducer
from ....runtime.interfaces.errors import DistributedLogError, LogTruncated
from ..checks.history_check import Violation
from ..history.run_history import (
    ObservedRecord,
    Outcome,
    Position,
    RunHistory,
    Value,
    WriteAttempt,
    to_payload,
)
from .workload import REST_S, WorkloadRates, as_read, note_error

UNDER_WAY_MAX = 60
"""Records of a session that nobody was told about yet."""
DIRECT_RECORDS_MAX = 15
"""A session past the proxies is short: they wait for it."""
DIRECT_PAUSE_S = 5.0
GUEST_PAUSE_S = 1.0
"""Between two names that come once and never again,"""
HURRIED_PAUSE_S = 0.1
"""and while somebody is away, whose names are to be forgotten."""


@dataclass(slots=True)
class CrowdProducer:
    """A named producer, from when the log did not know its name until it does not know it any more."""

    name: str
    writer: int
    """In the values of its records."""
    attempts: list[WriteAttempt] = field(default_factory=list)
    """By sequence: all that were ever sent."""
    stored_records: int = 0
    """So many are in the log: an acknowledgement says so, or what the log said when the name was opened."""

    def on_opened(self, next_sequence: int) -> None:
        """The log says how many it has. Raises `Violation`."""
        if not self.stored_records <= next_sequence <= len(self.attempts):
            raise Violation(
                f"G9: of {self.name} the log has {next_sequence} records, it had {self.stored_records}, and"
                f" {len(self.attempts)} were sent"
            )
        self.stored_records = next_sequence

    def begin_attempt(self, sequence: int, history: RunHistory) -> WriteAttempt:
        """A record is about to be sent, for the first time or again."""
        if sequence == len(self.attempts):
            self.attempts.append(
                history.begin_attempt(Value(self.writer, sequence), trio.current_time())
            )
        attempt = self.attempts[sequence]
        attempt.outcome, attempt.ended_at, attempt.error = Outcome.UNKNOWN, float("inf"), ""
        return attempt


@dataclass(slots=True)
class Crowd:
    """What all of them saw."""

    history: RunHistory
    may_forget_names: bool = False
    """May the log forget a name?"""
    is_truncated_meanwhile: bool = False
    """Does a reader begin somewhere, when it begins at the beginning?"""
    producers: dict[str, CrowdProducer] = field(default_factory=dict)
    """By name, as the log knows it."""
    forgotten_producers: list[CrowdProducer] = field(default_factory=list)
    """Of names that the log had forgotten."""
    exclusive_writers: dict[int, None] = field(default_factory=dict)
    """Writers that had the log for themselves."""
    last_read: dict[str, Position] = field(default_factory=dict)
    """The last record of each reader that follows."""
    guests_hurry: bool = False
    """Do guests come in a hurry?"""
    is_calm: bool = False
    """Nobody is slow any more."""
    session_count: int = 0
    guest_count: int = 0
    truncated_readers: int = 0
    """Readers that were overtaken by a truncation."""

    def producer_of(self, opened: OpenedProducer) -> CrowdProducer:
        """Whose name was opened. Raises `Violation` where the log does not say what it must."""
        producer = self.producers.get(opened.name)
        if producer is not None and not opened.known and producer.attempts:
            if producer.stored_records and not self.may_forget_names:
                raise Violation(
                    f"G9: {producer.name} has {producer.stored_records} records in the log, which does "
                    "not know it"
                )
            self.forgotten_producers.append(producer)
            producer = None
        if producer is None:
            producer = self.producers[opened.name] = CrowdProducer(
                opened.name, self.history.new_writer()
            )
        producer.on_opened(opened.next_sequence)
        return producer


class CrowdSession:
    """One opening of a writer: sends in a pipeline, notes each record's outcome."""

    def __init__(self, writer: LogWriter, crowd: Crowd, rng: Random, rates: WorkloadRates) -> None:
        crowd.session_count += 1
        self._writer = writer
        self._history = crowd.history
        self._rng = rng
        self._rates = rates
        self._producer = None if writer.producer is None else crowd.producer_of(writer.producer)
        self.number = (
            crowd.history.new_writer() if self._producer is None else self._producer.writer
        )
        self._next_sequence = 0 if writer.producer is None else writer.producer.next_sequence
        self._pending: deque[tuple[WriteAttempt, PendingWrite]] = deque()

    async def run(self, records: int) -> None:
        """Send about so many, then close or go without a word. Raises what ended the writer."""
        rng, rates = self._rng, self._rates
        while records > 0:
            await trio.sleep(rng.expovariate(1.0 / rates.burst_s))
            burst = rng.randint(1, rates.burst_records_max)
            if rates.long_burst_chance and rng.random() < rates.long_burst_chance:
                burst *= 10
            await self.burst(burst, rng.choice((0, 0, UNDER_WAY_MAX)))
            records -= burst
            if rng.random() < rates.commit_chance:
                await self._writer.commit()
        if rng.random() < 0.8:
            await self.burst(0, 0)
            await self._writer.aclose()
        else:
            await self._writer.abort()

    async def burst(self, records: int, pending_max: int, *, size: int = 0) -> None:
        """Send so many; wait until so many are under way. ``size``: of each, bytes; 0: drawn.

        Raises the first error, when all outcomes are noted.
        """
        failure: DistributedLogError | None = None
        for _ in range(records):
            attempt = self._begin_attempt()
            payload_bytes = size or self._rng.randrange(20, self._rates.payload_bytes_max)
            try:
                pending_write = await self._writer.submit(to_payload(attempt.value, payload_bytes))
            except DistributedLogError as error:
                note_error(attempt, error)
                failure = error
                break
            self._pending.append((attempt, pending_write))
        while self._pending and (failure or len(self._pending) > pending_max):
            failure = await self._await_oldest() or failure
        if failure is not None:
            raise failure

    def _begin_attempt(self) -> WriteAttempt:
        sequence, self._next_sequence = self._next_sequence, self._next_sequence + 1
        if self._producer is not None:
            return self._producer.begin_attempt(sequence, self._history)
        return self._history.begin_attempt(Value(self.number, sequence), trio.current_time())

    async def _await_oldest(self) -> DistributedLogError | None:
        """Wait for the oldest one."""
        attempt, pending_write = self._pending.popleft()
        try:
            segment, entry, slot = await pending_write
        except DistributedLogError as error:
            note_error(attempt, error)
            return error
        attempt.outcome, attempt.ended_at = Outcome.OK, trio.current_time()
        attempt.position = (segment, entry, slot)
        if self._producer is not None:
            self._producer.stored_records = max(
                self._producer.stored_records, attempt.value.counter + 1
            )
        return None


async def produce(
    namespace: Namespace,
    log: str,
    crowd: Crowd,
    name: str | None,
    rng: Random,
    rates: WorkloadRates,
) -> None:
    """Write through proxies, under a name or without; open again after whatever ended it. Until cancelled."""
    while True:
        try:
            writer = await namespace.open_log(log).open_writer(producer=name)
        except DistributedLogError:
            await trio.sleep(rng.uniform(0.0, 2 * REST_S))
            continue
        try:
            session = CrowdSession(writer, crowd, rng, rates)
            await session.run(rng.randrange(1, rates.session_records_max))
        except DistributedLogError:
            await writer.abort()
        await trio.sleep(rng.uniform(0.0, REST_S))


async def visit(
    namespace: Namespace, log: str, crowd: Crowd, rng: Random, rates: WorkloadRates
) -> None:
    """A new name each time, for a few records: the log is to forget some. Until cancelled."""
    while True:
        pause_s = HURRIED_PAUSE_S if crowd.guests_hurry else GUEST_PAUSE_S
        await trio.sleep(rng.expovariate(1.0 / pause_s))
        crowd.guest_count += 1
        try:
            writer = await namespace.open_log(log).open_writer(
                producer=f"guest-{crowd.guest_count}"
            )
        except DistributedLogError:
            continue
        try:
            await CrowdSession(writer, crowd, rng, rates).run(rng.randint(1, 3))
        except DistributedLogError:
            await writer.abort()


async def write_past(
    namespace: Namespace, log: str, crowd: Crowd, name: str, rng: Random, rates: WorkloadRates
) -> None:
    """Now and then have the log without a proxy, also taken from one; with the name or without it."""
    while True:
        await trio.sleep(rng.expovariate(1.0 / DIRECT_PAUSE_S))
        takeover = rng.random() < rates.takeover_chance
        lock = not (takeover and rng.random() < rates.lock_free_chance)
        producer = name if rng.random() < 0.5 else None
        try:
            writer = await namespace.open_log(log).open_writer(
                takeover=takeover, lock=lock, producer=producer, wait_s=1.0 if lock else None
            )
        except DistributedLogError:
            continue
        try:
            session = CrowdSession(writer, crowd, rng, rates)
            if producer is None:
                crowd.exclusive_writers[session.number] = None
            await session.run(rng.randint(1, DIRECT_RECORDS_MAX))
        except DistributedLogError:
            await writer.abort()


async def prove_written(
    namespace: Namespace, log: str, crowd: Crowd, name: str | None, rng: Random, records: int
) -> None:
    """Write so many records one by one, commit, close. Raises if any of it fails."""
    writer = await namespace.open_log(log).open_writer(producer=name)
    try:
        session = CrowdSession(writer, crowd, rng, WorkloadRates())
        for _ in range(records):
            await session.burst(1, 0, size=400)
        await writer.commit()
        await writer.aclose()
    except BaseException:
        await writer.abort()
        raise


# --- readers --------------------------------------------------------------------------------------


async def follow(
    namespace: Namespace, log: str, crowd: Crowd, name: str, rng: Random, *, slow: bool = False
) -> None:
    """Follow the log for ever; after an error, or now and then, go on after the last record that was got.

    By its place, or by the position that proves what was read. Who was overtaken by a truncation begins anew.
    """
    start: DLSN | None = None
    position: ReaderPosition | None = None
    while True:
        begun_at = trio.current_time()
        try:
            log_handle = namespace.open_log(log)
            if position is not None and rng.random() < 0.5:
                reader = await log_handle.open_reader(position=position)
            else:
                reader = await log_handle.open_reader(dlsn=start)
        except DistributedLogError as error:
            if isinstance(error, LogTruncated):
                start, position = None, None
                crowd.truncated_readers += 1
            await trio.sleep(REST_S)
            continue
        records: list[ObservedRecord] | None = None
        try:
            ends_at = trio.current_time() + rng.expovariate(0.1)
            while trio.current_time() < ends_at:
                record = await reader.read_next(wait_s=1.0)
                if record is None:
                    continue
                observed_record = as_read(record)
                if records is None:
                    first_position = (start[0], start[1], start[2]) if start is not None else None
                    if first_position is None and crowd.is_truncated_meanwhile:
                        first_position = observed_record.position
                    records = crowd.history.begin_reading(name, begun_at, first_position).records
                records.append(observed_record)
                crowd.last_read[name] = observed_record.position
                start, position = record.dlsn.next(), reader.position
                if slow and not crowd.is_calm and rng.random() < 0.2:
                    await trio.sleep(rng.expovariate(2.0))
        except DistributedLogError as error:
            if isinstance(error, LogTruncated):
                start, position = None, None
                crowd.truncated_readers += 1
            await trio.sleep(REST_S)
        await reader.aclose()


async def read_again(
    namespace: Namespace, log: str, crowd: Crowd, name: str, rng: Random, rates: WorkloadRates
) -> None:
    """Read all of the log to its present end, again and again, until cancelled."""
    while True:
        await trio.sleep(rng.expovariate(1.0 / (20 * rates.read_pause_s)))
        try:
            await read_once(namespace, log, crowd, name)
        except DistributedLogError:
            await trio.sleep(REST_S)


async def read_once(
    namespace: Namespace, log: str, crowd: Crowd, name: str
) -> list[ObservedRecord]:
    """All that is there; it is judged with everything else."""
    begun_at = trio.current_time()
    records: list[ObservedRecord] = []
    async with namespace.open_log(log).open_reader(to="end") as reader:
        async for record in reader:
            observed_record = as_read(record)
            if not records:
                first_position = observed_record.position if crowd.is_truncated_meanwhile else None
                records = crowd.history.begin_reading(name, begun_at, first_position).records
            records.append(observed_record)
    return records


# --- judging --------------------------------------------------------------------------------------


def check_sources(crowd: Crowd, final: Sequence[ObservedRecord]) -> dict[str, int]:
    """G9: of each name what the log said is there, from its first record on, without a hole.

    How many records there are of each name that the log knows. That none is there twice, and that what was
    acknowledged is where it was told to be, `check_log` says. Raises `Violation`.
    """
    counters_by_writer: dict[int, list[int]] = {}
    for record in final:
        if record.value is not None:
            counters_by_writer.setdefault(record.value.writer, []).append(record.value.counter)
    for producer in (*crowd.producers.values(), *crowd.forgotten_producers):
        counters = counters_by_writer.get(producer.writer, [])
        if counters != list(range(len(counters))):
            raise Violation(f"G9: of {producer.name} the log has the records {counters}")
        if len(counters) < producer.stored_records:
            raise Violation(
                f"G9: of {producer.name} the log said that it has {producer.stored_records} records, it has"
                f" {len(counters)}"
            )
    return {
        name: len(counters_by_writer.get(producer.writer, []))
        for name, producer in crowd.producers.items()
    }


def check_known(
    crowd: Crowd, records_by_name: dict[str, int], takeover_sequences: dict[str, int]
) -> None:
    """G9: what a takeover knows of producers (``known``) is what the log has of them. Raises `Violation`."""
    for name, records in records_by_name.items():
        takeover_sequence = takeover_sequences.get(name)
        if (
            takeover_sequence == records
            or (crowd.may_forget_names and not takeover_sequence)
            or (takeover_sequence is None and not records)
        ):
            continue
        raise Violation(
            f"G9: of {name} the log has {records} records, a takeover knows {takeover_sequence}"
        )
