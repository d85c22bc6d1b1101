"""Producers whose records are stored exactly once (G9), and conditional records (G10).

The log alone is sufficient to check them. Each writing process writes for several producers, as a proxy does
for its clients. The producers outlive the process. They keep frames without a known outcome, and send them
again to the next writer of the log, with the same boundaries. Each payload contains its producer, its
sequence number, and its place in its frame, or the record after which it must be stored.
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
"""Per process."""


@dataclass(slots=True)
class ExactlyOnceProducer:
    """The client's state of a producer."""

    name: str
    number: int = 0
    batches: list[tuple[int, int]] = field(default_factory=list)
    """First sequence and number of records of each frame, in the order of sending.

    A repeated frame is the same.
    """
    acked_positions: dict[int, DLSN] = field(default_factory=dict)
    """The position of each acknowledged frame, by its first sequence."""

    @property
    def sent_records(self) -> int:
        """The number of records that were ever sent."""
        first, records = self.batches[-1] if self.batches else (0, 0)
        return first + records

    def batch_at(self, sequence: int) -> tuple[int, int] | None:
        """Return the frame that was sent from a sequence on, if any.

        Raises:
            Violation: The sequence is inside a frame.
        """
        for first, records in self.batches:
            if first == sequence:
                return first, records
        if sequence == self.sent_records:
            return None
        raise Violation(f"G9: {self.name} is at {sequence}, within a frame of {self.batches}")

    def payloads(self, first: int, records: int, size: int) -> list[bytes]:
        """Return the payloads of a frame."""
        payload_heads = [
            b"%s %d %d %d " % (self.name.encode(), first + k, k, records) for k in range(records)
        ]
        return [head.ljust(size, b".") for head in payload_heads]


@dataclass(slots=True)
class OnceHistory:
    """The observations of all processes."""

    producers: dict[str, ExactlyOnceProducer] = field(default_factory=dict)
    duplicates: int = 0
    """Frames that were reported as already stored."""
    fenced: int = 0
    conflicts: int = 0
    conditional_positions: dict[bytes, DLSN] = field(default_factory=dict)
    """The positions of acknowledged conditional records, by payload."""

    def on_done(self, batch: SequencedBatch, producer: ExactlyOnceProducer) -> None:
        """Record the outcome of a frame.

        Raises:
            Violation: The frame had another position before.
        """
        if batch.error is not None:
            return
        self.duplicates += batch.is_duplicate
        earlier_position = producer.acked_positions.get(batch.sequence)
        if batch.first_dlsn is not None and earlier_position not in (None, batch.first_dlsn):
            raise Violation(
                f"G9: {producer.name} from {batch.sequence} on is at {batch.first_dlsn}, but was at "
                f"{earlier_position}"
            )
        if batch.first_dlsn is not None:
            producer.acked_positions[batch.sequence] = batch.first_dlsn


async def produce(
    namespace: Namespace,
    log: str,
    history: OnceHistory,
    owner: str,
    rng: Random,
    rates: WorkloadRates,
) -> None:
    """Own the log, send for producers, and close or lose it, repeatedly until cancelled."""
    for k in range(SOURCES):
        history.producers.setdefault(f"{owner}-{k}", ExactlyOnceProducer(f"{owner}-{k}"))
    own_producers = [
        source for name, source in history.producers.items() if name.startswith(f"{owner}-")
    ]
    while True:
        try:
            writer = await open_it(namespace, log, takeover=rng.random() < rates.takeover_chance)
        except DistributedLogError:
            await trio.sleep(rng.uniform(0.0, 2 * REST_S))
            continue
        try:
            await WriterLifetime(writer, history, own_producers, rng, rates).run()
        except DistributedLogError:
            await writer.abort()
        await trio.sleep(rng.uniform(0.0, 2 * REST_S))


async def open_it(namespace: Namespace, log: str, *, takeover: bool) -> LogWriter:
    """Open a writer of the log, and create the log if it does not exist."""
    if not await namespace.log_exists(log):
        with suppress(LogExists):
            await namespace.create_log(log, txids="count")
    return await namespace.open_log(log).open_writer(takeover=takeover)


class WriterLifetime:
    """A writer of the log, from its opening to its end."""

    def __init__(
        self,
        writer: LogWriter,
        history: OnceHistory,
        producers: Sequence[ExactlyOnceProducer],
        rng: Random,
        rates: WorkloadRates,
    ) -> None:
        self._writer = writer
        self._history = history
        self._producers = producers
        self._rng = rng
        self._rates = rates
        self._last_known = DLSN.NONE
        self._counter = 0

    async def run(self) -> None:
        """Send about as many records as a session has, then close. Errors of the writer are raised."""
        rng, rates = self._rng, self._rates
        records_left = rng.randrange(1, rates.session_records_max)
        for producer in self._producers:
            if producer.number and rng.random() < 0.7:
                await self._resume_producer(producer)
            else:
                await self._open_producer(producer)
        while records_left > 0:
            await trio.sleep(rng.expovariate(1.0 / rates.burst_s))
            for _ in range(rng.randint(1, rates.burst_records_max)):
                records_left -= await self._send_batch(rng.choice(self._producers))
            if rng.random() < 0.2:
                await self._writer.submit(b"plain %d" % records_left)
            if rng.random() < 0.2:
                await self._write_conditionally()
            if rng.random() < 0.03:
                await self._open_producer(rng.choice(self._producers))
            if rng.random() < rates.commit_chance:
                await self._writer.commit()
        await self._writer.aclose()

    async def _open_producer(self, producer: ExactlyOnceProducer) -> None:
        previous_number = producer.number
        session = await self._writer.sequenced_writer.open_producer(producer.name)
        producer.number = session.number
        self._check_next_sequence(producer, session.next_sequence)
        if previous_number:
            try:
                self._writer.sequenced_writer.append_batch(
                    [b"of before"], print, producer=previous_number, sequence=0
                )
            except (ProducerFenced, ProducerForgotten):
                self._history.fenced += 1
            else:
                raise Violation(
                    f"G9: number {previous_number} of {producer.name} writes after {session}"
                )

    async def _resume_producer(self, producer: ExactlyOnceProducer) -> None:
        session = self._writer.sequenced_writer.resume_producer(producer.name, producer.number)
        self._check_next_sequence(producer, session.next_sequence)
        await trio.lowlevel.checkpoint()

    def _check_next_sequence(self, producer: ExactlyOnceProducer, next_sequence: int) -> None:
        producer.batch_at(next_sequence)
        for first in producer.acked_positions:
            if first >= next_sequence:
                raise Violation(
                    f"G9: {producer.name} has an acknowledgement of {first}, but {next_sequence} is next"
                )

    async def _send_batch(self, producer: ExactlyOnceProducer) -> int:
        """Send the next frame, or repeat one that is or may be stored; return the number of new records."""
        rng, writer = self._rng, self._writer
        next_sequence = writer.sequenced_writer.next_sequence(producer.number)
        batch = producer.batch_at(next_sequence)
        new_records = 0
        if producer.batches and rng.random() < 0.2:
            batch = rng.choice(producer.batches[-8:])
            if batch[0] > next_sequence:
                batch = producer.batch_at(next_sequence)
        if batch is None:
            batch = next_sequence, rng.randint(1, FRAME_RECORDS_MAX)
            producer.batches.append(batch)
            new_records = batch[1]
        first, records = batch
        payloads = producer.payloads(
            first, records, rng.randrange(20, self._rates.payload_bytes_max)
        )
        while (
            writer.sequenced_writer.append_batch(
                payloads,
                lambda batch: self._history.on_done(batch, producer),
                producer=producer.number,
                sequence=first,
            )
            is None
        ):
            size = sum(map(len, payloads))
            await writer.sequenced_writer.wait_capacity(records, size, producer.number)
        return new_records

    async def _write_conditionally(self) -> None:
        """Write a record on the condition that it follows the last known one."""
        self._counter += 1
        payload = b"after %s %d %d" % (
            dotted(self._last_known).encode(), self._counter, self._rng.getrandbits(64)
        )  # fmt: skip
        try:
            self._last_known = await self._writer.write(payload, expect=self._last_known)
        except PositionConflict as conflict:
            self._history.conflicts += 1
            segment, entry, slot = map(int, conflict.last.split("."))
            self._last_known = DLSN(segment, entry, slot)
            self._history.conditional_positions[payload] = DLSN.NONE
        else:
            self._history.conditional_positions[payload] = self._last_known


async def read_all(namespace: Namespace, log: str) -> list[LogRecord]:
    """Return the whole log."""
    async with namespace.open_log(log).open_reader(to="end") as reader:
        return [record async for record in reader]


def check_once(history: OnceHistory, final: Sequence[LogRecord]) -> dict[str, int]:
    """Check G9 and G10 over the whole log, and return the number of records of each producer.

    Raises:
        Violation: A guarantee was violated.
    """
    next_sequences: dict[str, int] = dict.fromkeys(history.producers, 0)
    stored_positions: dict[tuple[str, int], DLSN] = {}
    previous: LogRecord | None = None
    last_position = DLSN.NONE
    for record in final:
        position, payload_words = record.dlsn, bytes(record.payload).split()
        if payload_words[0] == b"after":
            acked_position = history.conditional_positions.get(bytes(record.payload))
            if payload_words[1].decode() != dotted(last_position):
                raise Violation(f"G10: {record!r} is after the record at {last_position}")
            if acked_position not in (None, position):
                raise Violation(
                    f"G10: {record!r} is there, but was acknowledged at {acked_position}"
                )
        elif payload_words[0] != b"plain":
            name, sequence, k = (
                payload_words[0].decode(),
                int(payload_words[1]),
                int(payload_words[2]),
            )
            if sequence != next_sequences[name]:
                raise Violation(f"G9: {record!r}, where {next_sequences[name]} is expected")
            is_adjacent = previous is not None and position == previous.dlsn.next()
            if k and not is_adjacent:
                raise Violation(f"G9: {record!r} is not adjacent to {previous!r} of the same frame")
            next_sequences[name] += 1
            stored_positions[name, sequence] = position
        previous, last_position = record, position
    for producer in history.producers.values():
        for sequence, acked_position in producer.acked_positions.items():
            if stored_positions.get((producer.name, sequence)) != acked_position:
                raise Violation(
                    f"G9: {producer.name} {sequence} was acknowledged at {acked_position}, but is at "
                    f"{stored_positions.get((producer.name, sequence))}"
                )
    for payload, acked_position in history.conditional_positions.items():
        if acked_position != DLSN.NONE and payload not in {
            bytes(record_found.payload) for record_found in final
        }:
            raise Violation(
                f"G10: {payload!r} was acknowledged at {acked_position}, but is missing"
            )
    return next_sequences
