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
    appends: list[WriteAttempt] = field(default_factory=list)
    """By sequence: all that were ever sent."""
    stored: int = 0
    """So many are in the log: an acknowledgement says so, or what the log said when the name was opened."""

    def opened(self, next_sequence: int) -> None:
        """The log says how many it has. Raises `Violation`."""
        if not self.stored <= next_sequence <= len(self.appends):
            raise Violation(
                f"G9: of {self.name} the log has {next_sequence} records, it had {self.stored}, and"
                f" {len(self.appends)} were sent"
            )
        self.stored = next_sequence

    def begin(self, sequence: int, history: RunHistory) -> WriteAttempt:
        """A record is about to be sent, for the first time or again."""
        if sequence == len(self.appends):
            self.appends.append(
                history.begin_append(Value(self.writer, sequence), trio.current_time())
            )
        append = self.appends[sequence]
        append.outcome, append.ended_at, append.error = Outcome.UNKNOWN, float("inf"), ""
        return append


@dataclass(slots=True)
class Crowd:
    """What all of them saw."""

    history: RunHistory
    forgets: bool = False
    """May the log forget a name?"""
    truncates: bool = False
    """Does a reader begin somewhere, when it begins at the beginning?"""
    sources: dict[str, CrowdProducer] = field(default_factory=dict)
    """By name, as the log knows it."""
    ended: list[CrowdProducer] = field(default_factory=list)
    """Of names that the log had forgotten."""
    alone: dict[int, None] = field(default_factory=dict)
    """Writers that had the log for themselves."""
    reached: dict[str, Position] = field(default_factory=dict)
    """The last record of each reader that follows."""
    hurried: bool = False
    """Do guests come in a hurry?"""
    over: bool = False
    """Nobody is slow any more."""
    sessions: int = 0
    guests: int = 0
    truncated: int = 0
    """Readers that were overtaken by a truncation."""

    def source(self, opened: OpenedProducer) -> CrowdProducer:
        """Whose name was opened. Raises `Violation` where the log does not say what it must."""
        found = self.sources.get(opened.name)
        if found is not None and not opened.known and found.appends:
            if found.stored and not self.forgets:
                raise Violation(
                    f"G9: {found.name} has {found.stored} records in the log, which does not know it"
                )
            self.ended.append(found)
            found = None
        if found is None:
            found = self.sources[opened.name] = CrowdProducer(
                opened.name, self.history.new_writer()
            )
        found.opened(opened.next_sequence)
        return found


class CrowdSession:
    """One opening of a writer: sends in a pipeline, notes each record's outcome."""

    def __init__(
        self, writer: LogWriter, crowd: Crowd, chance: Random, rates: WorkloadRates
    ) -> None:
        crowd.sessions += 1
        self._writer = writer
        self._history = crowd.history
        self._chance = chance
        self._rates = rates
        self._source = None if writer.producer is None else crowd.source(writer.producer)
        self.number = crowd.history.new_writer() if self._source is None else self._source.writer
        self._next = 0 if writer.producer is None else writer.producer.next_sequence
        self._under_way: deque[tuple[WriteAttempt, PendingWrite]] = deque()

    async def run(self, records: int) -> None:
        """Send about so many, then close or go without a word. Raises what ended the writer."""
        chance, rates = self._chance, self._rates
        while records > 0:
            await trio.sleep(chance.expovariate(1.0 / rates.burst_s))
            burst = chance.randint(1, rates.burst_records_max)
            if rates.long_burst_chance and chance.random() < rates.long_burst_chance:
                burst *= 10
            await self.burst(burst, chance.choice((0, 0, UNDER_WAY_MAX)))
            records -= burst
            if chance.random() < rates.commit_chance:
                await self._writer.commit()
        if chance.random() < 0.8:
            await self.burst(0, 0)
            await self._writer.aclose()
        else:
            await self._writer.abort()

    async def burst(self, records: int, under_way_max: int, *, size: int = 0) -> None:
        """Send so many; wait until so many are under way. ``size``: of each, bytes; 0: drawn.

        Raises the first error, when all outcomes are noted.
        """
        failure: DistributedLogError | None = None
        for _ in range(records):
            append = self._begin()
            drawn = size or self._chance.randrange(20, self._rates.payload_bytes_max)
            try:
                pending = await self._writer.submit(to_payload(append.value, drawn))
            except DistributedLogError as error:
                note_error(append, error)
                failure = error
                break
            self._under_way.append((append, pending))
        while self._under_way and (failure or len(self._under_way) > under_way_max):
            failure = await self._settle() or failure
        if failure is not None:
            raise failure

    def _begin(self) -> WriteAttempt:
        sequence, self._next = self._next, self._next + 1
        if self._source is not None:
            return self._source.begin(sequence, self._history)
        return self._history.begin_append(Value(self.number, sequence), trio.current_time())

    async def _settle(self) -> DistributedLogError | None:
        """Wait for the oldest one."""
        append, pending = self._under_way.popleft()
        try:
            segment, entry, slot = await pending
        except DistributedLogError as error:
            note_error(append, error)
            return error
        append.outcome, append.ended_at = Outcome.OK, trio.current_time()
        append.position = (segment, entry, slot)
        if self._source is not None:
            self._source.stored = max(self._source.stored, append.value.counter + 1)
        return None


async def produce(
    namespace: Namespace,
    log: str,
    crowd: Crowd,
    name: str | None,
    chance: Random,
    rates: WorkloadRates,
) -> None:
    """Write through proxies, under a name or without; open again after whatever ended it. Until cancelled."""
    while True:
        try:
            writer = await namespace.open_log(log).open_writer(producer=name)
        except DistributedLogError:
            await trio.sleep(chance.uniform(0.0, 2 * REST_S))
            continue
        try:
            session = CrowdSession(writer, crowd, chance, rates)
            await session.run(chance.randrange(1, rates.session_records_max))
        except DistributedLogError:
            await writer.abort()
        await trio.sleep(chance.uniform(0.0, REST_S))


async def visit(
    namespace: Namespace, log: str, crowd: Crowd, chance: Random, rates: WorkloadRates
) -> None:
    """A new name each time, for a few records: the log is to forget some. Until cancelled."""
    while True:
        pause_s = HURRIED_PAUSE_S if crowd.hurried else GUEST_PAUSE_S
        await trio.sleep(chance.expovariate(1.0 / pause_s))
        crowd.guests += 1
        try:
            writer = await namespace.open_log(log).open_writer(producer=f"guest-{crowd.guests}")
        except DistributedLogError:
            continue
        try:
            await CrowdSession(writer, crowd, chance, rates).run(chance.randint(1, 3))
        except DistributedLogError:
            await writer.abort()


async def write_past(
    namespace: Namespace, log: str, crowd: Crowd, name: str, chance: Random, rates: WorkloadRates
) -> None:
    """Now and then have the log without a proxy, also taken from one; with the name or without it."""
    while True:
        await trio.sleep(chance.expovariate(1.0 / DIRECT_PAUSE_S))
        takeover = chance.random() < rates.takeover_chance
        lock = not (takeover and chance.random() < rates.lock_free_chance)
        producer = name if chance.random() < 0.5 else None
        try:
            writer = await namespace.open_log(log).open_writer(
                takeover=takeover, lock=lock, producer=producer, wait_s=1.0 if lock else None
            )
        except DistributedLogError:
            continue
        try:
            session = CrowdSession(writer, crowd, chance, rates)
            if producer is None:
                crowd.alone[session.number] = None
            await session.run(chance.randint(1, DIRECT_RECORDS_MAX))
        except DistributedLogError:
            await writer.abort()


async def prove_written(
    namespace: Namespace, log: str, crowd: Crowd, name: str | None, chance: Random, records: int
) -> None:
    """Write so many records one by one, commit, close. Raises if any of it fails."""
    writer = await namespace.open_log(log).open_writer(producer=name)
    try:
        session = CrowdSession(writer, crowd, chance, WorkloadRates())
        for _ in range(records):
            await session.burst(1, 0, size=400)
        await writer.commit()
        await writer.aclose()
    except BaseException:
        await writer.abort()
        raise


# --- readers --------------------------------------------------------------------------------------


async def follow(
    namespace: Namespace, log: str, crowd: Crowd, name: str, chance: Random, *, slow: bool = False
) -> None:
    """Follow the log for ever; after an error, or now and then, go on after the last record that was got.

    By its place, or by the position that proves what was read. Who was overtaken by a truncation begins anew.
    """
    start: DLSN | None = None
    position: ReaderPosition | None = None
    while True:
        begun = trio.current_time()
        try:
            one = namespace.open_log(log)
            if position is not None and chance.random() < 0.5:
                reader = await one.open_reader(position=position)
            else:
                reader = await one.open_reader(dlsn=start)
        except DistributedLogError as error:
            if isinstance(error, LogTruncated):
                start, position = None, None
                crowd.truncated += 1
            await trio.sleep(REST_S)
            continue
        records: list[ObservedRecord] | None = None
        try:
            ends = trio.current_time() + chance.expovariate(0.1)
            while trio.current_time() < ends:
                record = await reader.read_next(wait_s=1.0)
                if record is None:
                    continue
                read = as_read(record)
                if records is None:
                    first = (start[0], start[1], start[2]) if start is not None else None
                    if first is None and crowd.truncates:
                        first = read.position
                    records = crowd.history.begin_reading(name, begun, first).records
                records.append(read)
                crowd.reached[name] = read.position
                start, position = record.dlsn.next(), reader.position
                if slow and not crowd.over and chance.random() < 0.2:
                    await trio.sleep(chance.expovariate(2.0))
        except DistributedLogError as error:
            if isinstance(error, LogTruncated):
                start, position = None, None
                crowd.truncated += 1
            await trio.sleep(REST_S)
        await reader.aclose()


async def read_again(
    namespace: Namespace, log: str, crowd: Crowd, name: str, chance: Random, rates: WorkloadRates
) -> None:
    """Read all of the log to its present end, again and again, until cancelled."""
    while True:
        await trio.sleep(chance.expovariate(1.0 / (20 * rates.read_pause_s)))
        try:
            await read_once(namespace, log, crowd, name)
        except DistributedLogError:
            await trio.sleep(REST_S)


async def read_once(
    namespace: Namespace, log: str, crowd: Crowd, name: str
) -> list[ObservedRecord]:
    """All that is there; it is judged with everything else."""
    begun = trio.current_time()
    records: list[ObservedRecord] = []
    async with namespace.open_log(log).open_reader(to="end") as reader:
        async for record in reader:
            read = as_read(record)
            if not records:
                first = read.position if crowd.truncates else None
                records = crowd.history.begin_reading(name, begun, first).records
            records.append(read)
    return records


# --- judging --------------------------------------------------------------------------------------


def check_sources(crowd: Crowd, final: Sequence[ObservedRecord]) -> dict[str, int]:
    """G9: of each name what the log said is there, from its first record on, without a hole.

    How many records there are of each name that the log knows. That none is there twice, and that what was
    acknowledged is where it was told to be, `check_log` says. Raises `Violation`.
    """
    of_writer: dict[int, list[int]] = {}
    for record in final:
        if record.value is not None:
            of_writer.setdefault(record.value.writer, []).append(record.value.counter)
    for source in (*crowd.sources.values(), *crowd.ended):
        counters = of_writer.get(source.writer, [])
        if counters != list(range(len(counters))):
            raise Violation(f"G9: of {source.name} the log has the records {counters}")
        if len(counters) < source.stored:
            raise Violation(
                f"G9: of {source.name} the log said that it has {source.stored} records, it has"
                f" {len(counters)}"
            )
    return {name: len(of_writer.get(source.writer, [])) for name, source in crowd.sources.items()}


def check_known(crowd: Crowd, found: dict[str, int], known: dict[str, int]) -> None:
    """G9: what a takeover knows of producers (``known``) is what the log has of them. Raises `Violation`."""
    for name, records in found.items():
        said = known.get(name)
        if said == records or (crowd.forgets and not said) or (said is None and not records):
            continue
        raise Violation(f"G9: of {name} the log has {records} records, a takeover knows {said}")
