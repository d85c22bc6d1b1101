"""Clients that use a log as intensively as its guarantees allow, and record their observations.

There are writers that take over from each other, readers that tail, readers that catch up, and registers on
the metadata quorum. Each is an endless coroutine over a `Namespace` (or a `Metadata`) that is cancelled from
outside. They run in the simulator and against real processes.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan
from random import Random

import trio

from ....log.format.dlsn import DLSN
from ....log.format.record import LogRecord
from ....log.model.stored_settings import StoredSettings, bind_key, conf_key
from ....log.namespace import Namespace
from ....log.read.log_reader import LogReader
from ....log.write.entry_batch import PendingWrite
from ....log.write.log_writer import LogWriter
from ....metadata.model.interface import Metadata, prefix_end
from ....metadata.model.transaction import Compare, Put, Transaction
from ....runtime.declarations.options import DURATION_S_MAX
from ....runtime.interfaces.errors import DistributedLogError, LogNotFound
from ..checks.history_check import Violation
from ..history.run_history import (
    ObservedRecord,
    Outcome,
    RegisterCall,
    RunHistory,
    Value,
    WriteAttempt,
    from_payload,
    to_payload,
)

REGISTERS = "verify/register/"
REST_S = 0.5
"""How long a client waits after an error before it retries."""


@dataclass(frozen=True, slots=True)
class WorkloadRates:
    """The load of the clients, in seconds, bytes and probabilities."""

    burst_s: float = 0.2
    """Mean pause between two bursts of a writer."""
    burst_records_max: int = 6
    long_burst_chance: float = 0.0
    """The probability of a burst with ten times as many records, which exceeds the entries in flight."""
    bulk_chance: float = 0.25
    """The probability of a burst that is submitted in one call."""
    large_chance: float = 0.05
    """The probability that a record of a bulk is larger than an entry of the run."""
    payload_bytes_max: int = 400
    large_bytes: int = 5000
    session_records_max: int = 120
    """The maximum number of records of a writer session."""
    takeover_chance: float = 0.5
    lock_free_chance: float = 0.2
    """The share of takeovers that take no lock."""
    commit_chance: float = 0.3
    stubborn_chance: float = 0.3
    """The probability that a session continues after a failed write.

    A writer must then accept nothing that would leave a gap.
    """
    read_pause_s: float = 0.3


def txid_now() -> int:
    """Return a transaction ID that never decreases over all clients: virtual (or monotonic) milliseconds."""
    return int(trio.current_time() * 1000)


async def write_sessions(
    namespace: Namespace, log: str, history: RunHistory, rng: Random, rates: WorkloadRates
) -> None:
    """Own the log, write, and close or lose it, repeatedly until cancelled."""
    while True:
        takeover = rng.random() < rates.takeover_chance
        try:
            lock = not (takeover and rng.random() < rates.lock_free_chance)
            writer = await namespace.open_log(log).open_writer(takeover=takeover, lock=lock)
        except DistributedLogError:
            await trio.sleep(rng.uniform(0.0, 2 * REST_S))
            continue
        session = WorkloadWriterSession(writer, history, rng, rates)
        try:
            await session.run(rng.randrange(1, rates.session_records_max))
        except DistributedLogError:
            await writer.abort()
        await trio.sleep(rng.uniform(0.0, 2 * REST_S))


class WorkloadWriterSession:
    """A writer from its opening to its end, which submits bursts and records the outcomes."""

    def __init__(
        self, writer: LogWriter, history: RunHistory, rng: Random, rates: WorkloadRates
    ) -> None:
        self.number = history.new_writer()
        self._writer = writer
        self._history = history
        self._rng = rng
        self._rates = rates
        self._next_counter = 0

    async def run(self, records: int) -> None:
        """Write about ``records`` records, then close. Errors of the writer are raised."""
        rng, rates = self._rng, self._rates
        retries_after_failure = rng.random() < rates.stubborn_chance
        while self._next_counter < records:
            await trio.sleep(rng.expovariate(1.0 / rates.burst_s))
            records_now = rng.randint(1, rates.burst_records_max)
            if rates.long_burst_chance and rng.random() < rates.long_burst_chance:
                records_now *= 10
            try:
                await self.burst(records_now)
            except DistributedLogError:
                if not retries_after_failure:
                    raise
                await self.burst(records_now)
            if rng.random() < rates.commit_chance:
                await self._writer.commit()
        await self._writer.aclose()

    async def burst(self, records: int) -> None:
        """Submit records at once, then wait for each. The first error is raised."""
        if self._rng.random() < self._rates.bulk_chance:
            pending = await self._submit_bulk(records)
        else:
            pending = await self._submit_each(records)
        failure: DistributedLogError | None = None
        for append, pending_write in pending:
            try:
                dlsn = await pending_write
            except DistributedLogError as error:
                note_error(append, error)
                failure = failure or error
            else:
                append.ended_at = trio.current_time()
                append.position = tuple(dlsn)  # type: ignore[assignment]
                append.outcome = Outcome.OK
        if failure is not None or len(pending) < records:
            raise failure or DistributedLogError("the writer accepts no more records")

    async def _submit_each(self, records: int) -> list[tuple[WriteAttempt, PendingWrite]]:
        pending: list[tuple[WriteAttempt, PendingWrite]] = []
        for _ in range(records):
            value = Value(self.number, self._next_counter)
            self._next_counter += 1
            size = self._rng.randrange(20, self._rates.payload_bytes_max)
            append = self._history.begin_attempt(value, trio.current_time())
            try:
                pending_write = await self._writer.submit(
                    LogRecord(txid_now(), to_payload(value, size))
                )
            except DistributedLogError as error:
                note_error(append, error)
                break  # records that were accepted before have separate outcomes
            pending.append((append, pending_write))
        return pending

    async def _submit_bulk(self, records: int) -> list[tuple[WriteAttempt, PendingWrite]]:
        """Submit records in one call.

        The writer starts a new entry if a record does not fit, also around a large one.
        """
        rng, rates, now = self._rng, self._rates, trio.current_time()
        appends: list[WriteAttempt] = []
        batch: list[LogRecord] = []
        for _ in range(records):
            value = Value(self.number, self._next_counter)
            self._next_counter += 1
            size = rng.randrange(20, rates.payload_bytes_max)
            if rng.random() < rates.large_chance:
                size = rates.large_bytes
            appends.append(self._history.begin_attempt(value, now))
            batch.append(LogRecord(txid_now(), to_payload(value, size)))
        try:
            bulk = await self._writer.submit_bulk(batch)
        except DistributedLogError as error:
            for append in appends:
                note_error(append, error)
            return []
        return list(zip(appends, bulk, strict=True))


def note_error(append: WriteAttempt, error: DistributedLogError) -> None:
    """Record that an append failed. Its outcome is unknown, unless the error is definite (G7)."""
    append.ended_at = trio.current_time()
    append.outcome = Outcome.REFUSED if error.definite else Outcome.UNKNOWN
    append.error = f"{type(error).__name__}: {error}"


async def tail(
    namespace: Namespace,
    log: str,
    history: RunHistory,
    name: str,
    rng: Random,
    rates: WorkloadRates,
) -> None:
    """Tail the log forever. After an error, continue after the last record that was read."""
    start: DLSN | None = None
    while True:
        try:
            reader = await namespace.open_log(log).open_reader(dlsn=start)
        except DistributedLogError:
            await trio.sleep(REST_S)
            continue
        reading = history.begin_reading(
            name, trio.current_time(), None if start is None else (start[0], start[1], start[2])
        )
        try:
            ends_at = trio.current_time() + rng.expovariate(0.1)
            while trio.current_time() < ends_at:
                record = await reader.read_next(wait_s=1.0)
                if record is not None:
                    reading.records.append(as_read(record))
                    start = DLSN(record.dlsn[0], record.dlsn[1], record.dlsn[2] + 1)
        except DistributedLogError:
            await trio.sleep(REST_S)
        await reader.aclose()


async def catch_up(
    namespace: Namespace,
    log: str,
    history: RunHistory,
    name: str,
    rng: Random,
    rates: WorkloadRates,
) -> None:
    """Read the whole log from its beginning to its present end, repeatedly until cancelled."""
    while True:
        await trio.sleep(rng.expovariate(1.0 / (20 * rates.read_pause_s)))
        begun_at = trio.current_time()
        try:
            async with namespace.open_log(log).open_reader(to="end") as reader:
                reading = history.begin_reading(name, begun_at)
                async for record in reader:
                    reading.records.append(as_read(record))
        except DistributedLogError:
            await trio.sleep(REST_S)


def as_read(record: LogRecord) -> ObservedRecord:
    """Return a record in the form of the history."""
    segment, entry, slot = record.dlsn
    return ObservedRecord(
        (segment, entry, slot), record.sequence_id, record.txid, from_payload(record.payload)
    )


async def read_whole(reader: LogReader) -> list[ObservedRecord]:
    """Return all records up to the reader's end."""
    return [as_read(record) async for record in reader]


async def prove_alive(
    namespace: Namespace, log: str, history: RunHistory, rng: Random, *, entries: int = 0
) -> None:
    """Take over the log, write a few records, commit and close. All errors are raised.

    ``entries`` more records are written one by one, each in a separate entry.
    """
    writer = await namespace.open_log(log).open_writer(takeover=True)
    session = WorkloadWriterSession(writer, history, rng, WorkloadRates(burst_s=0.01))
    try:
        await session.burst(3)
        for _ in range(entries):
            await session.burst(1)
        await writer.commit()
        await writer.aclose()
    except BaseException:
        await writer.abort()
        raise


async def make_and_delete(namespace: Namespace, rng: Random) -> None:
    """Create a log, write a little and delete it, repeatedly until cancelled. A deleted log must not exist.

    Raises:
        Violation: A deleted log can be read.
    """
    number = 0
    while True:
        await trio.sleep(rng.expovariate(1.0))
        name = f"doomed/{rng.getrandbits(32):08x}-{number}"
        number += 1
        try:
            async with await namespace.open_log(name).open_writer() as writer:
                for _ in range(rng.randrange(4)):
                    await writer.write(LogRecord(txid_now(), bytes(rng.randrange(1, 2000))))
            await namespace.delete_log(name, wait_s=REST_S)
        except DistributedLogError:
            await trio.sleep(REST_S)
            continue
        with contextlib.suppress(DistributedLogError):
            async with namespace.open_log(name).open_reader(to="end") as reader:
                raise Violation(
                    f"log {name} was deleted, but can be read: {await read_whole(reader)}"
                )


NUMBERS_AT_LIMITS: tuple[tuple[str, float], ...] = tuple(
    (name, value)
    for name in (
        *("retention_s", "hold_max_s", "retention_bytes", "retention_segments_min"),
        *("segment_age_max_s", "segment_bytes_max", "keep_alive_s", "records_per_s_max"),
    )
    for value in (inf, -inf, nan, 1e306, DURATION_S_MAX, -1, 2**63 - 1, 2**64 - 1)
)
"""Settings that a program without limits may store. None of them may end a node or remove records."""


async def store_numbers_at_limits(namespace: Namespace, logs: Sequence[str], rng: Random) -> None:
    """Store settings of logs and of their namespace without any checks, until cancelled."""
    while True:
        settings = dict(rng.sample(NUMBERS_AT_LIMITS, rng.randrange(1, 4)))
        value = StoredSettings({**settings, "merging": rng.random() < 0.5}).encode()
        try:
            key = bind_key(namespace.path)
            if rng.random() < 0.7:
                key = conf_key(await namespace.resolve_name(rng.choice(logs)))
            await namespace.metadata.transact(Transaction((), (Put(key, value),)))
        except DistributedLogError:
            pass  # the log does not exist yet, or there is no quorum
        await trio.sleep(rng.expovariate(1.0))


async def read_final(namespace: Namespace, log: str) -> list[ObservedRecord]:
    """Return the whole present log; empty if it does not exist."""
    try:
        async with namespace.open_log(log).open_reader(to="end") as reader:
            return await read_whole(reader)
    except LogNotFound:
        return []


async def watch_registers(metadata: Metadata) -> None:
    """Check that a watch reports each version of every register once and in order (M6), also over reconnects.

    A watch that falls behind the stored history starts again from a listing (H29).

    Raises:
        Violation: A version is missing, repeated or out of order.
    """
    start = REGISTERS.encode()
    while True:
        try:
            page = await metadata.range(start, prefix_end(start))
            versions = {item.key: item.version for item in page.items}
            revision = page.revision
            async with metadata.watch(start, prefix_end(start), after_revision=revision) as watch:
                while True:
                    batch = await watch.next_batch()
                    if batch.revision < revision:
                        raise Violation(f"M6: revision {batch.revision} arrived after {revision}")
                    revision = batch.revision
                    for event in batch.events:
                        item = event.item
                        version_before = versions.get(item.key, 0)
                        if item.version != version_before + 1:
                            raise Violation(
                                f"M6: version {item.version} of {item.key!r} arrived after {version_before}"
                            )
                        versions[item.key] = item.version
        except DistributedLogError:
            await trio.sleep(REST_S)


async def use_registers(
    metadata: Metadata, process: str, history: RunHistory, rng: Random, *, keys: int = 3
) -> None:
    """Read and conditionally change a few registers, until cancelled."""
    known_versions: dict[str, int] = {}
    counter = 0
    while True:
        await trio.sleep(rng.expovariate(3.0))
        key = f"{REGISTERS}{rng.randrange(keys)}"
        counter += 1
        kind = "get" if rng.random() < 0.5 else "cas"
        call = RegisterCall(process, key, kind, trio.current_time())
        history.registers.append(call)
        try:
            if kind == "get":
                item = await metadata.get(key.encode())
                call.succeeded = True
            else:
                call.expected = known_versions.get(key, 0)
                call.wrote = f"{process}/{counter}"
                reply = await metadata.transact(
                    Transaction(
                        (Compare.version(key.encode(), call.expected),),
                        (Put(key.encode(), call.wrote.encode()),),
                    )
                )
                call.succeeded = reply.succeeded
                item = None if reply.succeeded else reply.current[0]
        except DistributedLogError as error:
            if error.definite and kind == "cas":
                call.outcome = Outcome.REFUSED
            await trio.sleep(REST_S)
            continue
        call.ended_at = trio.current_time()
        call.outcome = Outcome.OK
        if kind == "cas" and call.succeeded:
            call.version, call.value = call.expected + 1, call.wrote
        elif item is not None:
            call.version, call.value = item.version, item.value.decode()
        known_versions[key] = call.version
