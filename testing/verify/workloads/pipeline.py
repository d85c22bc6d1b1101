"""Clients that use a log as pipelines do: drivers that repeat batches, and an archiver that truncates.

Two drivers share one application name, as after a failover. Both write the segments of each version, link
them, and discard those that they can. An archiver copies the log, advances its named position, and truncates
up to it. A normal writer and a collector of unlinked segments run concurrently.
"""

from dataclasses import dataclass, field
from random import Random

import trio

from ....log.format.dlsn import DLSN
from ....log.format.record import LogRecord
from ....log.log import Log
from ....log.model.segment_ranges import SegmentToken
from ....log.namespace import Namespace
from ....runtime.interfaces.errors import (
    DistributedLogError,
    LinkOutOfOrder,
    LogNotFound,
    LogTruncated,
)
from ..checks.history_check import Violation, dotted
from ..history.run_history import (
    ObservedRecord,
    Outcome,
    Position,
    RunHistory,
    Value,
    WriteAttempt,
    to_payload,
)
from .workload import REST_S, as_read, txid_now

APP = "etl"
ARCHIVER = "archive"
UNLINKED_S = 4.0
"""Short, so that the collector and the drivers conflict."""


@dataclass(slots=True)
class PipelineVersion:
    """One version: every driver writes the same records in the same segments."""

    version: int
    parts: tuple[tuple[WriteAttempt, ...], ...]
    """The records of each segment, in order. Each record is in a separate entry."""

    def on_linked(self, first_segment: int, now: float) -> None:
        """Record that a driver received the result that the version is linked.

        Raises:
            Violation: The version was linked at another position before.
        """
        for number, part in enumerate(self.parts, first_segment):
            for entry, attempt in enumerate(part):
                position: Position = (number, entry, 0)
                if attempt.position not in (None, position):
                    assert attempt.position is not None, "None is in the tuple"
                    raise Violation(
                        f"G8: version {self.version} is linked at {dotted(attempt.position)} and at"
                        f" {dotted(position)}"
                    )
                if attempt.outcome is not Outcome.OK:
                    attempt.position, attempt.outcome, attempt.ended_at = position, Outcome.OK, now


@dataclass(slots=True)
class PipelineHistory:
    """The observations: appends of writers and batches, and the archived records."""

    history: RunHistory = field(default_factory=RunHistory)
    batches: dict[int, PipelineVersion] = field(default_factory=dict)
    archived: dict[Position, ObservedRecord] = field(default_factory=dict)
    truncations: int = 0
    new_links: int = 0
    repeated_links: int = 0

    def batch(self, version: int, rng: Random) -> PipelineVersion:
        """Return the records of a version; the first call generates them."""
        batch = self.batches.get(version)
        if batch is None:
            writer, counter = self.history.new_writer(), 0
            parts = []
            for _ in range(rng.choice((1, 1, 2))):
                part = []
                for _ in range(rng.randint(1, 4)):
                    value = Value(writer, counter)
                    part.append(self.history.begin_attempt(value, trio.current_time()))
                    counter += 1
                parts.append(tuple(part))
            batch = self.batches[version] = PipelineVersion(version, tuple(parts))
        return batch

    def add_archived(self, record: ObservedRecord) -> None:
        """Add a record that the archiver has read.

        Raises:
            Violation: It read another record at this position before.
        """
        earlier_record = self.archived.setdefault(record.position, record)
        if earlier_record != record:
            raise Violation(
                f"G5 changed: {record.value} at {dotted(record.position)}, where {earlier_record.value} "
                "was read"
            )

    def archived_records(self) -> list[ObservedRecord]:
        """Return all archived records in order. After `read_rest`, this is the whole log."""
        return [self.archived[position] for position in sorted(self.archived)]


async def drive(
    namespace: Namespace,
    name: str,
    pipeline_history: PipelineHistory,
    rng: Random,
    pause_s: float = 0.15,
) -> None:
    """Write and link version after version, until cancelled.

    After errors, continue as the log reports or before.
    """
    log = namespace.open_log(name)
    version: int | None = None
    while True:
        await trio.sleep(rng.expovariate(1.0 / pause_s))
        try:
            if version is None:
                linked = await log.linked_version(APP)
                version = 0 if linked is None else max(0, linked.version + rng.randint(0, 1))
            if await link_version(log, version, pipeline_history, rng, takeover=rng.random() < 0.7):
                version += 1
        except LinkOutOfOrder:
            version = None
        except DistributedLogError:
            await trio.sleep(REST_S * rng.random())


async def link_version(
    log: Log, version: int, pipeline_history: PipelineHistory, rng: Random, *, takeover: bool
) -> bool:
    """Write the segments of a version and link them. Return True if they are linked; errors are raised."""
    batch = pipeline_history.batch(version, rng)
    tokens: list[SegmentToken] = []
    try:
        for part in batch.parts:
            async with log.open_segment_writer(app=APP, version=version) as writer:
                for append in part:
                    payload = to_payload(append.value, rng.randint(20, 200))
                    await writer.write(LogRecord(txid_now(), payload))
                    await writer.flush()
            assert writer.token is not None, "a writer that was closed has its token"
            tokens.append(writer.token)
        result = await log.link_segments(
            tokens, app=APP, version=version, takeover=takeover, wait_s=2.0
        )
    except DistributedLogError:
        if tokens and rng.random() < 0.5:
            await log.discard_segments(
                tokens
            )  # as a driver does when it aborts, whatever the outcome of the link
        raise
    pipeline_history.new_links += not result.already
    pipeline_history.repeated_links += result.already
    batch.on_linked(result.first_segment, trio.current_time())
    if result.already or rng.random() < 0.2:
        kept_tokens = await log.discard_segments(tokens)
        if not result.already and len(kept_tokens) < len(tokens):
            # The archiver may have truncated them in the meantime, and truncated segments are purged.
            truncated_segment = (await log.describe(segments_max=1)).state.truncated_to.segment
            unpurged = len(tokens) - max(
                0, min(truncated_segment - result.first_segment, len(tokens))
            )
            if len(kept_tokens) < unpurged:
                violation = f"a segment of version {version} was deleted after it was linked"
                raise Violation(f"H13: {violation}")
    return True


async def archive(
    namespace: Namespace, name: str, pipeline_history: PipelineHistory, rng: Random
) -> None:
    """Copy the log, advance the position and truncate, repeatedly until cancelled."""
    log = namespace.open_log(name)
    while True:
        await trio.sleep(rng.expovariate(2.0))
        try:
            position = await copy_on(log, pipeline_history, rng.randint(1, 60))
            if rng.random() < 0.6:
                truncated_to = await log.truncate(position)
                if truncated_to > position:
                    raise Violation(
                        f"G6: truncated to {truncated_to}, but only {position} was requested"
                    )
                pipeline_history.truncations += 1
        except LogTruncated as error:
            raise Violation(
                f"G6: records that the archiver has not read are deleted: {error}"
            ) from error
        except DistributedLogError:
            await trio.sleep(REST_S)


async def copy_on(log: Log, pipeline_history: PipelineHistory, records: int) -> DLSN:
    """Read from the stored position on, advance it, and return it."""
    position = await log.positions.get(ARCHIVER) or DLSN.INITIAL
    async with log.open_reader(dlsn=position) as reader:
        for _ in range(records):
            record = await reader.read_next(wait_s=1.0)
            if record is None:
                break
            pipeline_history.add_archived(as_read(record))
            position = record.dlsn.next()
    stored_position = await log.positions.advance(ARCHIVER, position)
    if stored_position < position:
        raise Violation(f"a position decreased: {stored_position} after {position} was stored")
    return stored_position


async def collect(namespace: Namespace, name: str, rng: Random) -> None:
    """Delete old or outdated unlinked segments, until cancelled."""
    log = namespace.open_log(name)
    while True:
        await trio.sleep(rng.expovariate(0.7))
        try:
            await log.collect_unlinked(older_than_s=UNLINKED_S)
        except DistributedLogError:
            await trio.sleep(REST_S)


async def read_rest(namespace: Namespace, name: str, pipeline_history: PipelineHistory) -> None:
    """Read all records that the archiver has not copied, up to the present end."""
    log = namespace.open_log(name)
    try:
        position = await log.positions.get(ARCHIVER) or DLSN.INITIAL
        async with log.open_reader(dlsn=position, to="end") as reader:
            async for record in reader:
                pipeline_history.add_archived(as_read(record))
    except LogTruncated as error:
        raise Violation(
            f"G6: records that the archiver has not read are deleted: {error}"
        ) from error
    except LogNotFound:
        return


def check_batches(pipeline_history: PipelineHistory) -> int:
    """Check that each version is in the log completely or not at all (G8).

    The records of a version are adjacent, and the versions are in order. `check_log` checks that none is
    duplicated and that linked versions are in the log.

    Returns:
        The number of versions in the log.

    Raises:
        Violation: A version is incomplete or out of order.
    """
    index_by_value = {
        record.value: record_index
        for record_index, record in enumerate(pipeline_history.archived_records())
    }
    versions_found = 0
    previous_index = -1
    for version in sorted(pipeline_history.batches):
        values = [
            append.value for part in pipeline_history.batches[version].parts for append in part
        ]
        indexes = [index_by_value[value] for value in values if value in index_by_value]
        if not indexes:
            continue
        versions_found += 1
        if len(indexes) < len(values):
            raise Violation(
                f"G8: of version {version} {len(indexes)} records of {len(values)} are in the log"
            )
        if indexes != list(range(indexes[0], indexes[0] + len(indexes))):
            raise Violation(f"G8: the records of version {version} are not adjacent: {indexes}")
        if indexes[0] <= previous_index:
            raise Violation(f"G8: version {version} is before an earlier one")
        previous_index = indexes[-1]
    return versions_found
