"""Many concurrent producers and readers of one log, through proxies and directly.

Named producers outlive every process, and continue after their last record in the log (G9). Unnamed ones
start again after each failure, and record which outcomes are unknown (G7). All observations are in a
`RunHistory`, which `check_log` checks. `check_sources` checks the records of named producers.
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
"""Records of a session without a known outcome."""
DIRECT_RECORDS_MAX = 15
"""A session without proxies is short, because proxies wait for it."""
DIRECT_PAUSE_S = 5.0
GUEST_PAUSE_S = 1.0
"""Pause between two producers with a name that is used only once,"""
HURRIED_PAUSE_S = 0.1
"""and during the absence of a process whose names should be forgotten."""


@dataclass(slots=True)
class CrowdProducer:
    """A named producer, from the time when the log does not have its name until it has forgotten it."""

    name: str
    writer: int
    """The writer in the values of its records."""
    attempts: list[WriteAttempt] = field(default_factory=list)
    """By sequence number: all records that were ever sent."""
    stored_records: int = 0
    """The number of records in the log, by acknowledgements or by the log's answer at an opening."""

    def on_opened(self, next_sequence: int) -> None:
        """Record the number of records that the log reports.

        Raises:
            Violation: The number is impossible.
        """
        if not self.stored_records <= next_sequence <= len(self.attempts):
            raise Violation(
                f"G9: of {self.name} the log has {next_sequence} records, it had {self.stored_records}, and"
                f" {len(self.attempts)} were sent"
            )
        self.stored_records = next_sequence

    def begin_attempt(self, sequence: int, history: RunHistory) -> WriteAttempt:
        """Record that a record will be sent, for the first time or again."""
        if sequence == len(self.attempts):
            self.attempts.append(
                history.begin_attempt(Value(self.writer, sequence), trio.current_time())
            )
        attempt = self.attempts[sequence]
        attempt.outcome, attempt.ended_at, attempt.error = Outcome.UNKNOWN, float("inf"), ""
        return attempt


@dataclass(slots=True)
class Crowd:
    """The observations of all clients."""

    history: RunHistory
    may_forget_names: bool = False
    """Whether the log may forget a name."""
    is_truncated_meanwhile: bool = False
    """Whether a reader from the beginning may start at a later position."""
    producers: dict[str, CrowdProducer] = field(default_factory=dict)
    """The producers that the log has, by name."""
    forgotten_producers: list[CrowdProducer] = field(default_factory=list)
    """Producers that the log had forgotten."""
    exclusive_writers: dict[int, None] = field(default_factory=dict)
    """Writers that owned the log exclusively."""
    last_read: dict[str, Position] = field(default_factory=dict)
    """The last record of each tailing reader."""
    guests_hurry: bool = False
    """Whether guests use short pauses."""
    is_calm: bool = False
    """Whether slow readers have stopped being slow."""
    session_count: int = 0
    guest_count: int = 0
    truncated_readers: int = 0
    """The number of readers that were overtaken by a truncation."""

    def producer_of(self, opened: OpenedProducer) -> CrowdProducer:
        """Return the producer whose name was opened.

        Raises:
            Violation: The log has forgotten a name that it must have, or reports an impossible number.
        """
        producer = self.producers.get(opened.name)
        if producer is not None and not opened.has_stored_records and producer.attempts:
            if producer.stored_records and not self.may_forget_names:
                raise Violation(
                    f"G9: {producer.name} has {producer.stored_records} records in the log, which has "
                    "forgotten it"
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
    """A writer from its opening to its end, which sends records in a pipeline and records their outcomes."""

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
        """Send about this number of records, then close or abort the writer.

        Errors of the writer are raised.
        """
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
        """Send records, and wait until at most ``pending_max`` are pending.

        Args:
            records: The number of records.
            pending_max: The number of records that may remain pending.
            size: Bytes per record; 0 for random sizes.

        Raises:
            DistributedLogError: The first error, after all outcomes are recorded.
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
        """Wait for the oldest record, and return its error, if any."""
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
    """Write through proxies, with or without a name, and reopen the writer after each end; until
    cancelled.
    """
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
    """Write a few records with a new name each time, so that the log must forget some; until cancelled."""
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
    """Write from time to time without a proxy, with or without the name; until cancelled.

    The writer sometimes takes the log over from a proxy.
    """
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
    """Write records one by one, commit and close. All errors are raised."""
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
    """Tail the log. After an error, or from time to time, continue after the last record that was read.

    The reader continues by DLSN, or by the position that proves what was read. After it was overtaken by a
    truncation, it starts from the beginning.
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
    """Read the log to its present end repeatedly, until cancelled."""
    while True:
        await trio.sleep(rng.expovariate(1.0 / (20 * rates.read_pause_s)))
        try:
            await read_once(namespace, log, crowd, name)
        except DistributedLogError:
            await trio.sleep(REST_S)


async def read_once(
    namespace: Namespace, log: str, crowd: Crowd, name: str
) -> list[ObservedRecord]:
    """Read the log to its present end, and add it to the observations."""
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


# --- checks ---------------------------------------------------------------------------------------


def check_sources(crowd: Crowd, final: Sequence[ObservedRecord]) -> dict[str, int]:
    """Check that the records of each name start at 0 and have no gap, as the log reported (G9).

    `check_log` checks that none is duplicated and that acknowledged records are at their positions.

    Returns:
        The number of records of each name that the log has.

    Raises:
        Violation: Records of a name are missing.
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
                f"G9: of {producer.name} the log reported {producer.stored_records} records, but it has"
                f" {len(counters)}"
            )
    return {
        name: len(counters_by_writer.get(producer.writer, []))
        for name, producer in crowd.producers.items()
    }


def check_known(
    crowd: Crowd, records_by_name: dict[str, int], takeover_sequences: dict[str, int]
) -> None:
    """Check that a takeover recovers the state of producers that results from the log (G9).

    Raises:
        Violation: The state of a name is wrong.
    """
    for name, records in records_by_name.items():
        takeover_sequence = takeover_sequences.get(name)
        if (
            takeover_sequence == records
            or (crowd.may_forget_names and not takeover_sequence)
            or (takeover_sequence is None and not records)
        ):
            continue
        raise Violation(
            f"G9: of {name} the log has {records} records, but a takeover found {takeover_sequence}"
        )
