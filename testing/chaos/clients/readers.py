"""Clients that read, truncate and use registers, and record every call and answer."""

import time
from collections.abc import Sequence
from typing import Any

import trio

from ....log.format.dlsn import DLSN
from ....log.format.record import LogRecord
from ....log.namespace import Namespace
from ....metadata.model.transaction import Compare, Put, Transaction
from ....runtime.interfaces.errors import (
    DistributedLogError,
    LogTruncated,
    NotAllowed,
    NotAuthenticated,
)
from ...verify.history.observations import DONE, FAILED, REFUSED, Piece
from ...verify.history.run_history import Outcome, from_payload
from .client_context import ClientLife, after, before, one_line

READ_RECORDS = 5000
REGISTERS = "chaos/register/"
STRANGE = "-of-a-stranger"
TRY_S = 10.0
FILLING = b"."
"""Padding for values of the size in the scenario. Large values make the quorum take a snapshot."""


def pieces(records: Sequence[Any]) -> list[Piece]:
    """Return records as pieces."""
    result: list[Piece] = []
    for record in records:
        segment, entry, slot = record.dlsn
        value = from_payload(record.payload)
        writer, counter = value if value is not None else (-1, 0)
        if result:
            last_piece = result[-1]
            if (
                last_piece.segment == segment
                and last_piece.entry == entry
                and last_piece.slot + last_piece.records == slot
                and last_piece.writer == writer >= 0
                and last_piece.counter + last_piece.records == counter
                and last_piece.txid == record.txid
                and last_piece.sequence_id + last_piece.records == record.sequence_id
            ):
                result[-1] = last_piece._replace(records=last_piece.records + 1)
                continue
        result.append(
            Piece(segment, entry, slot, 1, record.sequence_id, record.txid, writer, counter)
        )
    return result


async def tail(life: ClientLife, namespace: Namespace) -> None:
    """Tail the log. After an error, continue after the last record that was read."""
    start: DLSN | None = None
    log = life.options["log"]
    while not life.stop.is_set():
        try:
            reader = await namespace.open_log(log, config=life.log_options).open_reader(dlsn=start)
        except LogTruncated:
            start = None
            continue
        except DistributedLogError:
            await life.wait_or_stop(0.2)
            continue
        number = life.new_reading()
        life.observations.record(
            "read", number, log, before(), None if start is None else list(start)
        )
        try:
            while not life.stop.is_set():
                first = await reader.read_next(wait_s=0.5)
                if first is None:
                    continue
                records = [first]
                while len(records) < READ_RECORDS:
                    next_record = await reader.read_next(wait_s=0)
                    if next_record is None:
                        break
                    records.append(next_record)
                life.observations.record("got", number, after(), pieces(records))
                segment, entry, slot = records[-1].dlsn
                start = DLSN(segment, entry, slot + 1)
                await life.wait_or_stop(0.05)  # collects records for one piece
        except DistributedLogError as error:
            if isinstance(error, LogTruncated):
                start = None  # a truncation overtook it, and it received an error (G6)
            life.observations.record("note", after(), f"reading {log} ended: {one_line(error)}")
            await life.wait_or_stop(0.2)
        await reader.aclose()


async def catch_up(life: ClientLife, namespace: Namespace) -> None:
    """Read the whole log from its beginning to its present end, repeatedly."""
    rng, (shortest_s, longest_s) = life.make_rng, life.options["pause_s"]
    while not await life.wait_or_stop(rng.uniform(shortest_s, longest_s)):
        try:
            await read_whole(life, namespace, life.options["log"])
        except DistributedLogError as error:
            life.observations.record("note", after(), f"catching up ended: {one_line(error)}")


async def read_whole(life: ClientLife, namespace: Namespace, log: str) -> int:
    """Read and record the whole log, and return the number of records. Errors are raised."""
    begun_at, count = before(), 0
    async with namespace.open_log(log, config=life.log_options).open_reader(to="end") as reader:
        number = life.new_reading()
        life.observations.record("read", number, log, begun_at, None)
        while True:
            records = await reader.read_bulk(READ_RECORDS)
            if not records:
                break
            count += len(records)
            life.observations.record("got", number, after(), pieces(records))
            if life.stop.is_set():
                return count
        life.observations.record("whole", number, after())
    return count


# --- truncation -----------------------------------------------------------------------------------


async def truncate(life: ClientLife, namespace: Namespace) -> None:
    """Truncate the log from time to time to its end at the previous time."""
    rng, (shortest_s, longest_s) = life.make_rng, life.options["pause_s"]
    log, truncation_point = life.options["log"], None
    while not await life.wait_or_stop(rng.uniform(shortest_s, longest_s)):
        handle = namespace.open_log(log, config=life.log_options)
        begun_at = before()
        try:
            if truncation_point is not None:
                # Recorded before the call, which may take effect even if this process is killed.
                life.observations.record(
                    "cut", log, begun_at, begun_at, list(truncation_point), Outcome.UNKNOWN.value
                )
                await handle.truncate(truncation_point)
                life.observations.record(
                    "cut", log, begun_at, after(), list(truncation_point), Outcome.OK.value
                )
            truncation_point = await handle.last_dlsn()
        except DistributedLogError as error:
            life.observations.record("note", after(), f"truncating {log} failed: {one_line(error)}")


# --- unauthorized clients --------------------------------------------------------------------------


async def intrude(life: ClientLife, namespace: Namespace) -> None:
    """Try to read another client's log and to write a log.

    The history decides whether this must be refused.
    """
    rng, (shortest_s, longest_s) = life.make_rng, life.options["pause_s"]
    log = life.options["log"]
    while not await life.wait_or_stop(rng.uniform(shortest_s, longest_s)):
        for attempt_kind, attempt in (("read", _read_some), ("write", _write_one)):
            begun_at = before()
            try:
                with trio.fail_after(TRY_S):
                    outcome = DONE if await attempt(namespace, log) else FAILED
            except (NotAllowed, NotAuthenticated):
                outcome = REFUSED
            except (DistributedLogError, trio.TooSlowError):
                outcome = FAILED
            life.observations.record("try", attempt_kind, begun_at, after(), outcome)


async def _read_some(namespace: Namespace, log: str) -> bool:
    async with namespace.open_log(log).open_reader(to="end") as reader:
        return bool(await reader.read_bulk(1))


async def _write_one(namespace: Namespace, log: str) -> bool:
    """Write to a log that no other client writes, and that is not checked."""
    handle = namespace.open_log(f"{log}{STRANGE}")
    async with handle.open_writer(takeover=True) as writer:
        await writer.write(LogRecord(time.time_ns() // 1_000_000, b"by one who has no right"))
    return True


# --- registers ------------------------------------------------------------------------------------


async def registers(life: ClientLife, namespace: Namespace) -> None:
    """Read and conditionally change a few keys."""
    rng, known_versions = life.make_rng, dict[str, int]()
    metadata, number, value_bytes = namespace.metadata, 0, life.options["payload_bytes"]
    while not await life.wait_or_stop(rng.expovariate(life.options["rate"])):
        key = f"{REGISTERS}{rng.randrange(life.options['keys'])}"
        kind = "get" if rng.random() < 0.5 else "cas"
        number += 1
        expected = known_versions.get(key, 0) if kind == "cas" else 0
        written = f"{life.first_session}/{number}" if kind == "cas" else ""
        life.observations.record("ask", number, key, kind, before(), expected, written)
        try:
            if kind == "get":
                item = await metadata.get(key.encode())
                succeeded = True
            else:
                reply = await metadata.transact(
                    Transaction(
                        (Compare.version(key.encode(), expected),),
                        (Put(key.encode(), written.encode().ljust(value_bytes, FILLING)),),
                    )
                )
                succeeded = reply.succeeded
                item = None if reply.succeeded else reply.current[0]
        except DistributedLogError as error:
            is_definite = error.definite and kind == "cas"
            outcome = Outcome.REFUSED if is_definite else Outcome.UNKNOWN
            life.observations.record("answer", number, after(), outcome.value, False, 0, "")
            continue
        version, value = 0, ""
        if kind == "cas" and succeeded:
            version, value = expected + 1, written
        elif item is not None:
            version, value = item.version, item.value.rstrip(FILLING).decode()
        life.observations.record("answer", number, after(), "ok", succeeded, version, value)
        known_versions[key] = version
