"""Producers whose records are stored once (G9), and records after others (G10), judged from the log alone.

Each process that writes does so for producers of its own, as a proxy does for its clients: they outlive it,
keep what they have sent and were not told, and send it again to whoever opens the log next, with the same
borders. Each payload says whose it is, which one of his, and of how many in its frame; or after which record
it was to be.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import trio

from ....log.format.dlsn import DLSN
from ....log.format.record import LogRecord
from ....log.namespace import Namespace
from ....log.write.log_writer import LogWriter
from ....log.write.sequenced_batch import SequencedBatch
from ....runtime.interfaces.errors import (
    DistributedLogError,
    LogExists,
    PositionConflict,
    ProducerFenced,
    ProducerForgotten,
)
from ..checks.history_check import Violation, dotted
from .workload import REST_S, WorkloadRates

FRAME_RECORDS_MAX = 5
SOURCES = 3
"""Of a process."""


@dataclass(slots=True)
class ExactlyOnceProducer:
    """A producer, as its client knows it."""

    name: str
    number: int = 0
    frames: list[tuple[int, int]] = field(default_factory=list)
    """First sequence and records of each that was sent, in order: sent again, it is the same."""
    told: dict[int, DLSN] = field(default_factory=dict)
    """Where each acknowledged one is, by its first sequence."""

    @property
    def sent(self) -> int:
        """How many records were ever sent."""
        first, records = self.frames[-1] if self.frames else (0, 0)
        return first + records

    def next_after(self, sequence: int) -> tuple[int, int] | None:
        """The frame that was sent from there on, if any was. Raises `Violation` within one."""
        for first, records in self.frames:
            if first == sequence:
                return first, records
        if sequence == self.sent:
            return None
        raise Violation(f"G9: {self.name} is at {sequence}, within a frame of {self.frames}")

    def payloads(self, first: int, records: int, size: int) -> list[bytes]:
        """Of a frame."""
        heads = [
            b"%s %d %d %d " % (self.name.encode(), first + k, k, records) for k in range(records)
        ]
        return [head.ljust(size, b".") for head in heads]


@dataclass(slots=True)
class OnceHistory:
    """What all processes sent and were told."""

    sources: dict[str, ExactlyOnceProducer] = field(default_factory=dict)
    repeated: int = 0
    """Frames that were told to be there already."""
    fenced: int = 0
    conflicts: int = 0
    placed: dict[bytes, DLSN] = field(default_factory=dict)
    """Where records after others are, that were acknowledged, by payload."""

    def on_done(self, frame: SequencedBatch, source: ExactlyOnceProducer) -> None:
        """A frame has an outcome. Raises `Violation` where it had another place before."""
        if frame.error is not None:
            return
        self.repeated += frame.repeated
        before = source.told.get(frame.sequence)
        if frame.first is not None and before not in (None, frame.first):
            raise Violation(
                f"G9: {source.name} from {frame.sequence} on is at {frame.first}, it was at {before}"
            )
        if frame.first is not None:
            source.told[frame.sequence] = frame.first


async def produce(
    namespace: Namespace,
    log: str,
    history: OnceHistory,
    owner: str,
    chance: Random,
    rates: WorkloadRates,
) -> None:
    """Own the log, send for producers, give it up or lose it; again, until cancelled."""
    for k in range(SOURCES):
        history.sources.setdefault(f"{owner}-{k}", ExactlyOnceProducer(f"{owner}-{k}"))
    mine = [source for name, source in history.sources.items() if name.startswith(f"{owner}-")]
    while True:
        try:
            writer = await open_it(namespace, log, takeover=chance.random() < rates.takeover_chance)
        except DistributedLogError:
            await trio.sleep(chance.uniform(0.0, 2 * REST_S))
            continue
        try:
            await WriterLifetime(writer, history, mine, chance, rates).run()
        except DistributedLogError:
            await writer.abort()
        await trio.sleep(chance.uniform(0.0, 2 * REST_S))


async def open_it(namespace: Namespace, log: str, *, takeover: bool) -> LogWriter:
    """The writer of the log, which is made where it is not there."""
    if not await namespace.log_exists(log):
        with suppress(LogExists):
            await namespace.create_log(log, txids="count")
    return await namespace.open_log(log).open_writer(takeover=takeover)


class WriterLifetime:
    """One opening of the log's writer."""

    def __init__(
        self,
        writer: LogWriter,
        history: OnceHistory,
        sources: Sequence[ExactlyOnceProducer],
        chance: Random,
        rates: WorkloadRates,
    ) -> None:
        self._writer = writer
        self._history = history
        self._sources = sources
        self._chance = chance
        self._rates = rates
        self._last = DLSN.NONE
        self._counter = 0

    async def run(self) -> None:
        """Send about as many records as a session has, then close. Raises what ended the writer."""
        chance, rates = self._chance, self._rates
        left = chance.randrange(1, rates.session_records_max)
        for source in self._sources:
            if source.number and chance.random() < 0.7:
                await self._resume(source)
            else:
                await self._open(source)
        while left > 0:
            await trio.sleep(chance.expovariate(1.0 / rates.burst_s))
            for _ in range(chance.randint(1, rates.burst_records_max)):
                left -= await self._send(chance.choice(self._sources))
            if chance.random() < 0.2:
                await self._writer.submit(b"plain %d" % left)
            if chance.random() < 0.2:
                await self._write_after()
            if chance.random() < 0.03:
                await self._open(chance.choice(self._sources))
            if chance.random() < rates.commit_chance:
                await self._writer.commit()
        await self._writer.aclose()

    async def _open(self, source: ExactlyOnceProducer) -> None:
        before = source.number
        opened = await self._writer.sequenced.open_producer(source.name)
        source.number = opened.number
        self._check(source, opened.next_sequence)
        if before:
            try:
                self._writer.sequenced.take_frame(
                    [b"of before"], print, producer=before, sequence=0
                )
            except (ProducerFenced, ProducerForgotten):
                self._history.fenced += 1
            else:
                raise Violation(f"G9: number {before} of {source.name} writes after {opened}")

    async def _resume(self, source: ExactlyOnceProducer) -> None:
        opened = self._writer.sequenced.resume_producer(source.name, source.number)
        self._check(source, opened.next_sequence)
        await trio.lowlevel.checkpoint()

    def _check(self, source: ExactlyOnceProducer, next_sequence: int) -> None:
        source.next_after(next_sequence)
        for first in source.told:
            if first >= next_sequence:
                raise Violation(
                    f"G9: {source.name} was told that {first} is stored, and {next_sequence} is next"
                )

    async def _send(self, source: ExactlyOnceProducer) -> int:
        """The next frame, or one again that may not have arrived, or that has; how many are new."""
        chance, writer = self._chance, self._writer
        now = writer.sequenced.next_sequence(source.number)
        frame = source.next_after(now)
        new = 0
        if source.frames and chance.random() < 0.2:
            frame = chance.choice(source.frames[-8:])
            if frame[0] > now:
                frame = source.next_after(now)
        if frame is None:
            frame = now, chance.randint(1, FRAME_RECORDS_MAX)
            source.frames.append(frame)
            new = frame[1]
        first, records = frame
        payloads = source.payloads(
            first, records, chance.randrange(20, self._rates.payload_bytes_max)
        )
        while (
            writer.sequenced.take_frame(
                payloads,
                lambda frame: self._history.on_done(frame, source),
                producer=source.number,
                sequence=first,
            )
            is None
        ):
            size = sum(map(len, payloads))
            await writer.sequenced.frame_room(records, size, source.number)
        return new

    async def _write_after(self) -> None:
        """A record after the one that is last, as far as this one knows."""
        self._counter += 1
        payload = b"after %s %d %d" % (
            dotted(self._last).encode(), self._counter, self._chance.getrandbits(64)
        )  # fmt: skip
        try:
            self._last = await self._writer.write(payload, expect=self._last)
        except PositionConflict as conflict:
            self._history.conflicts += 1
            segment, entry, slot = map(int, conflict.last.split("."))
            self._last = DLSN(segment, entry, slot)
            self._history.placed[payload] = DLSN.NONE
        else:
            self._history.placed[payload] = self._last


async def read_all(namespace: Namespace, log: str) -> list[LogRecord]:
    """All of it."""
    async with namespace.open_log(log).open_reader(to="end") as reader:
        return [record async for record in reader]


def check_once(history: OnceHistory, final: Sequence[LogRecord]) -> dict[str, int]:
    """G9 and G10 over the whole log; how many records of each producer there are. Raises `Violation`."""
    found: dict[str, int] = dict.fromkeys(history.sources, 0)
    places: dict[tuple[str, int], DLSN] = {}
    before: LogRecord | None = None
    last = DLSN.NONE
    for record in final:
        at, words = record.dlsn, bytes(record.payload).split()
        if words[0] == b"after":
            told = history.placed.get(bytes(record.payload))
            if words[1].decode() != dotted(last):
                raise Violation(f"G10: {record!r} is after the record at {last}")
            if told not in (None, at):
                raise Violation(f"G10: {record!r} is there, its writer was told {told}")
        elif words[0] != b"plain":
            name, sequence, k = words[0].decode(), int(words[1]), int(words[2])
            if sequence != found[name]:
                raise Violation(f"G9: {record!r}, where {found[name]} is next")
            whole = before is not None and at == before.dlsn.next()
            if k and not whole:
                raise Violation(f"G9: {record!r} is not next to {before!r}, of one frame")
            found[name] += 1
            places[name, sequence] = at
        before, last = record, at
    for source in history.sources.values():
        for sequence, told in source.told.items():
            if places.get((source.name, sequence)) != told:
                raise Violation(
                    f"G9: {source.name} {sequence} was acknowledged at {told}, and is at "
                    f"{places.get((source.name, sequence))}"
                )
    for payload, told in history.placed.items():
        if told != DLSN.NONE and payload not in {bytes(one.payload) for one in final}:
            raise Violation(f"G10: {payload!r} was acknowledged at {told}, and is missing")
    return found
