"""Clients that use a log as pipelines do: drivers that replay batches, an archiver that truncates.

Two drivers share one application name, as after a failover: both write the segments of each version, both
link, both discard what they can. An archiver copies the log away, moves its named position, truncates up to
it. Beside them an ordinary writer works, and a collector deletes what nobody will link.
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
"""So short that the collector and the drivers do get in each other's way."""


@dataclass(slots=True)
class PipelineVersion:
    """One version: the same records whoever writes it, cut into the same segments."""

    version: int
    parts: tuple[tuple[WriteAttempt, ...], ...]
    """Records of each segment, in order; each an entry of its own."""

    def linked(self, first_segment: int, now: float) -> None:
        """Somebody was told that it is linked. Raises `Violation` when it was linked elsewhere before."""
        for number, part in enumerate(self.parts, first_segment):
            for entry, append in enumerate(part):
                place: Position = (number, entry, 0)
                if append.position not in (None, place):
                    assert append.position is not None, "None is in the tuple"
                    raise Violation(
                        f"G8: version {self.version} is linked at {dotted(append.position)} and at"
                        f" {dotted(place)}"
                    )
                if append.outcome is not Outcome.OK:
                    append.position, append.outcome, append.ended_at = place, Outcome.OK, now


@dataclass(slots=True)
class PipelineHistory:
    """What was seen: appends of writers and batches, and what the archiver has copied."""

    history: RunHistory = field(default_factory=RunHistory)
    batches: dict[int, PipelineVersion] = field(default_factory=dict)
    archived: dict[Position, ObservedRecord] = field(default_factory=dict)
    truncations: int = 0
    links: int = 0
    replays: int = 0

    def batch(self, version: int, chance: Random) -> PipelineVersion:
        """The records of a version; made up by whoever asks first."""
        batch = self.batches.get(version)
        if batch is None:
            writer, counter = self.history.new_writer(), 0
            parts = []
            for _ in range(chance.choice((1, 1, 2))):
                part = []
                for _ in range(chance.randint(1, 4)):
                    value = Value(writer, counter)
                    part.append(self.history.begin_append(value, trio.current_time()))
                    counter += 1
                parts.append(tuple(part))
            batch = self.batches[version] = PipelineVersion(version, tuple(parts))
        return batch

    def keep(self, record: ObservedRecord) -> None:
        """The archiver has read a record. Raises `Violation` where it had another one from there."""
        before = self.archived.setdefault(record.position, record)
        if before != record:
            raise Violation(
                f"G5 changed: {record.value} at {dotted(record.position)}, where {before.value} was read"
            )

    def whole(self) -> list[ObservedRecord]:
        """All that was archived, in order: the log, when its rest has been read, too."""
        return [self.archived[position] for position in sorted(self.archived)]


async def drive(
    namespace: Namespace, name: str, pipe: PipelineHistory, chance: Random, pause_s: float = 0.15
) -> None:
    """Write and link one version after the other, until cancelled; go on where the log says, or before."""
    log = namespace.open_log(name)
    version: int | None = None
    while True:
        await trio.sleep(chance.expovariate(1.0 / pause_s))
        try:
            if version is None:
                last = await log.linked_version(APP)
                version = 0 if last is None else max(0, last.version + chance.randint(0, 1))
            if await link_version(log, version, pipe, chance, takeover=chance.random() < 0.7):
                version += 1
        except LinkOutOfOrder:
            version = None
        except DistributedLogError:
            await trio.sleep(REST_S * chance.random())


async def link_version(
    log: Log, version: int, pipe: PipelineHistory, chance: Random, *, takeover: bool
) -> bool:
    """Write the segments of a version and link them. True: it is in. Raises what kept it from that."""
    batch = pipe.batch(version, chance)
    tokens: list[SegmentToken] = []
    try:
        for part in batch.parts:
            async with log.open_segment_writer(app=APP, version=version) as writer:
                for append in part:
                    payload = to_payload(append.value, chance.randint(20, 200))
                    await writer.write(LogRecord(txid_now(), payload))
                    await writer.flush()
            assert writer.token is not None, "a writer that was closed has its token"
            tokens.append(writer.token)
        result = await log.link_segments(
            tokens, app=APP, version=version, takeover=takeover, wait_s=2.0
        )
    except DistributedLogError:
        if tokens and chance.random() < 0.5:
            await log.discard_segments(
                tokens
            )  # as a driver's abort does, whatever became of the link
        raise
    pipe.links += not result.already
    pipe.replays += result.already
    batch.linked(result.first_segment, trio.current_time())
    if result.already or chance.random() < 0.2:
        kept = await log.discard_segments(tokens)
        if not result.already and len(kept) < len(tokens):
            # The archiver may have given them up meanwhile: what is truncated is purged.
            point = (await log.describe(segments_max=1)).state.truncated_to.segment
            left = len(tokens) - max(0, min(point - result.first_segment, len(tokens)))
            if len(kept) < left:
                what = f"a segment of version {version} was deleted after it was linked"
                raise Violation(f"H13: {what}")
    return True


async def archive(namespace: Namespace, name: str, pipe: PipelineHistory, chance: Random) -> None:
    """Copy the log away, move the position, truncate; again, until cancelled."""
    log = namespace.open_log(name)
    while True:
        await trio.sleep(chance.expovariate(2.0))
        try:
            at = await copy_on(log, pipe, chance.randint(1, 60))
            if chance.random() < 0.6:
                point = await log.truncate(at)
                if point > at:
                    raise Violation(f"G6: truncated to {point}, only up to {at} was asked for")
                pipe.truncations += 1
        except LogTruncated as error:
            raise Violation(f"G6: what the archiver has not read yet is gone: {error}") from error
        except DistributedLogError:
            await trio.sleep(REST_S)


async def copy_on(log: Log, pipe: PipelineHistory, records: int) -> DLSN:
    """Read on from the stored position, then move it; where it is then."""
    at = await log.positions.get(ARCHIVER) or DLSN.INITIAL
    async with log.open_reader(dlsn=at) as reader:
        for _ in range(records):
            record = await reader.read_next(wait_s=1.0)
            if record is None:
                break
            pipe.keep(as_read(record))
            at = record.dlsn.next()
    stands = await log.positions.advance(ARCHIVER, at)
    if stands < at:
        raise Violation(f"a position went back: {stands} after {at} was stored")
    return stands


async def collect(namespace: Namespace, name: str, chance: Random) -> None:
    """Delete unlinked segments that are old or late, until cancelled."""
    log = namespace.open_log(name)
    while True:
        await trio.sleep(chance.expovariate(0.7))
        try:
            await log.collect_unlinked(older_than_s=UNLINKED_S)
        except DistributedLogError:
            await trio.sleep(REST_S)


async def read_rest(namespace: Namespace, name: str, pipe: PipelineHistory) -> None:
    """Everything that the archiver has not copied, up to the present end."""
    log = namespace.open_log(name)
    try:
        at = await log.positions.get(ARCHIVER) or DLSN.INITIAL
        async with log.open_reader(dlsn=at, to="end") as reader:
            async for record in reader:
                pipe.keep(as_read(record))
    except LogTruncated as error:
        raise Violation(f"G6: what the archiver has not read yet is gone: {error}") from error
    except LogNotFound:
        return


def check_batches(pipe: PipelineHistory) -> int:
    """G8: of each version all records or none, next to each other, in the order of the versions.

    How many are in. That none is in twice, and that what was told to be linked is there, `check_log` says.
    """
    place_of = {record.value: place for place, record in enumerate(pipe.whole())}
    found = 0
    before = -1
    for version in sorted(pipe.batches):
        values = [append.value for part in pipe.batches[version].parts for append in part]
        places = [place_of[value] for value in values if value in place_of]
        if not places:
            continue
        found += 1
        if len(places) < len(values):
            raise Violation(
                f"G8: of version {version} {len(places)} records of {len(values)} are in the log"
            )
        if places != list(range(places[0], places[0] + len(places))):
            raise Violation(f"G8: the records of version {version} lie apart, at {places}")
        if places[0] <= before:
            raise Violation(f"G8: version {version} lies before an earlier one")
        before = places[-1]
    return found
