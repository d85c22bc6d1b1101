"""The writers of logs for plain requests, and the producers of requests that store each record once.

A gateway has one writer per log, which all plain requests share, and closes it when it is idle. A request of
a producer is one frame: it is stored in one entry and exactly once, even if several gateways receive it.
Through proxies, the frame uses a stream to the owner of the log (`BatchSender`). Otherwise, the one writer of
the log in this gateway accepts it.

The numbers of writers and producers are limited. Above the limit, those that were idle longest are closed. A
user can have at most half of them, and gets `TooBusy` if none of them is idle.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TypeVar

import trio

from ..log.format.dlsn import DLSN
from ..log.format.record import RECORD_BYTES_MAX, RECORD_COLUMN_BYTES
from ..log.namespace import Namespace
from ..log.write.log_writer import LogWriter
from ..log.write.producer_state_manager import OpenedProducer, check_producer_name
from ..log.write.sequenced_batch import SequencedBatch
from ..proxy.client.batch_sender import BatchSender, StoredBatchPosition
from ..proxy.client.proxied_namespace import ProxiedNamespace
from ..runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    OutcomeUnknown,
    ProducerFenced,
    ProducerForgotten,
    RecordTooLarge,
    TooBusy,
)
from ..runtime.interfaces.log_lines import get_logger
from ..runtime.schedule.work_failures import WorkFailures
from .metrics import GatewayMeters
from .options import GatewayOptions
from .request_format import ProducerRef, SubmittedRecords
from .user_share import IdleEviction, UserShare

log = get_logger("distributedlog.gateway")

IDLE_CHECK_S = 1.0

Key = TypeVar("Key")


@dataclass(slots=True, eq=False)
class _OpenWriter:
    """The writer of a log, open or being opened, and the number of requests that use it."""

    writer: LogWriter | None = None
    open_lock: trio.Lock = field(default_factory=trio.Lock)
    user_count: int = 0
    used_at: float = 0.0


@dataclass(slots=True, eq=False)
class _ProducerStream:
    """The stream of a producer, and the number of requests that use it."""

    sender: BatchSender
    user_count: int = 0
    used_at: float = 0.0


class AppendHandler:
    """Append the records of requests; see the module. `run` must be running."""

    def __init__(
        self,
        namespace: Namespace,
        options: GatewayOptions,
        meters: GatewayMeters,
        *,
        producer_prefix: str = "",
        share: UserShare | None = None,
    ) -> None:
        """Create a handler for one namespace.

        Args:
            producer_prefix: Added to the names of these producers in the log, so that users cannot use each
                other's producers.
            share: The share of the user to whom all of this belongs.
        """
        self._share = share
        self._idle = IdleEviction(
            partial(self._close_writers, 1, -inf), partial(self._close_streams, 1, -inf)
        )
        self._nursery: trio.Nursery | None = None
        self._namespace = namespace
        self._producer_prefix = producer_prefix
        self._counted = (0, 0)
        """The numbers of writers and producers that are included in the meters now."""
        self._has_ended = False
        """True after the end of `run`. Later changes are not counted."""
        self._options = options
        self._meters = meters
        self._writers: dict[str, _OpenWriter] = {}
        self._streams: dict[tuple[str, ProducerRef], _ProducerStream] = {}
        self._random = namespace.context.random

    async def run(self) -> None:
        """Close idle writers and producers until cancelled, then all of them."""
        share = self._share
        if share is not None:
            share.evictions.append(self._idle)
        try:
            async with trio.open_nursery() as self._nursery:
                await WorkFailures().keep_running(
                    "the sweep of writers", self._close_idle_periodically
                )
        finally:
            self._nursery = None
            if share is not None:
                share.evictions.remove(self._idle)
            for stream in self._streams.values():
                stream.sender.close()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._options.stop_s):
                async with trio.open_nursery() as nursery:
                    for open_writer in self._writers.values():
                        nursery.start_soon(_close_writer, open_writer)
            self._update_counts(0, 0)
            self._has_ended = True

    async def _close_idle_periodically(self) -> None:
        while True:
            await trio.sleep(IDLE_CHECK_S)
            self._close_idle()

    def _close_idle(self) -> None:
        options, meters = self._options, self._meters
        idle_since = trio.current_time() - options.writer_idle_s
        self._close_writers(meters.writers - options.writers_max, idle_since)
        self._close_streams(meters.producers - options.producers_max, idle_since)

    def _close_writers(self, excess: int, idle_since: float) -> None:
        nursery = self._nursery
        if nursery is None:
            return  # `run` ends, and closes all of them
        for log in _unused(self._writers, excess, idle_since):
            nursery.start_soon(_close_writer, self._writers.pop(log))
        self._count_open()

    def _close_streams(self, excess: int, idle_since: float) -> None:
        for key in _unused(self._streams, excess, idle_since):
            self._streams.pop(key).sender.close()
        self._count_open()

    def _count_open(self) -> None:
        if not self._has_ended:
            self._update_counts(len(self._writers), len(self._streams))

    def _update_counts(self, writers: int, producers: int) -> None:
        """Update the numbers of this handler in those of the gateway and of the user."""
        more_writers, more_producers = writers - self._counted[0], producers - self._counted[1]
        self._counted = writers, producers
        self._meters.writers += more_writers
        self._meters.producers += more_producers
        if self._share is not None:
            self._share.writers += more_writers
            self._share.producers += more_producers

    # --- what requests do -------------------------------------------------------------------------

    async def close_unused(self, log: str) -> None:
        """Close the unused writer and streams of a log that is about to be deleted.

        If they stayed open for later requests, they would hold the lock of the log, and a client that wrote a
        log here could not delete it here.
        """
        for key, stream in list(self._streams.items()):
            if key[0] == log and not stream.user_count:
                self._streams.pop(key).sender.close()
        open_writer = self._writers.get(log)
        if open_writer is not None and not open_writer.user_count:
            await _close_writer(self._writers.pop(log))
        self._count_open()

    async def append(
        self, log: str, records: SubmittedRecords, expected: DLSN | None
    ) -> list[DLSN]:
        """Append records, and return their positions when all are durable.

        Records of other requests may be between them.

        Args:
            expected: The required position of the log's last record, for a single record.

        Raises:
            PositionConflict: The last record is at another position.
            DistributedLogError: The error of the writer. Unless it is definite, some of the records may be
                stored.
        """
        check_sizes(records.payloads, is_one_entry=expected is not None)
        is_writer_open = False
        with trio.move_on_after(self._options.append_s):
            async with self._writer(log) as writer:
                is_writer_open = True
                if expected is None:
                    dlsns = await (await writer.submit_columns(records.txids, records.payloads))
                else:
                    dlsns = [await self._append_if_last(log, writer, records, expected)]
            self._count_written(records)
            return dlsns
        raise self._timeout_error(log, is_writer_open)

    async def open_producer(self, log: str, name: str) -> OpenedProducer:
        """Open a producer by its name, and fence its previous user. Raises the errors of opening a writer.

        If ``name`` is empty, a name is generated.
        """
        user_name = name or f"{self._random.getrandbits(128):032x}"
        name = check_producer_name(self._producer_prefix + user_name)
        deadline = trio.current_time() + self._options.append_s
        with trio.move_on_at(deadline):
            if not isinstance(self._namespace, ProxiedNamespace):
                async with self._writer(log) as writer:
                    return replace(
                        await writer.sequenced_writer.open_producer(name), name=user_name
                    )
            if self._share is not None:
                self._share.make_room_for_producer(self._idle)
            sender = BatchSender(self._namespace.client, self._namespace.path, log, name)
            try:
                opened = await sender.open(deadline)
            except BaseException:
                sender.close()
                raise
            key = log, ProducerRef(opened.number, name)
            self._streams[key] = _ProducerStream(sender, used_at=trio.current_time())
            self._count_open()
            return replace(opened, name=user_name)
        raise OutcomeUnknown(
            f'log "{log}": producer {name} was not opened in time; its earlier user may be fenced: try again'
        )

    async def append_once(
        self,
        log: str,
        producer: ProducerRef,
        sequence: int,
        records: SubmittedRecords,
        expected: DLSN | None,
    ) -> StoredBatchPosition:
        """Store a producer's records in one entry, exactly once.

        Args:
            sequence: The sequence number of the first record.
            expected: The required position of the log's last record.

        Raises:
            OutcomeUnknown: No answer arrived. Repeating the request clarifies the outcome.
            DistributedLogError: Nothing was stored, if the error is definite.
        """
        check_sizes(records.payloads, is_one_entry=True)
        producer = ProducerRef(
            producer.number, check_producer_name(self._producer_prefix + producer.name)
        )
        if isinstance(self._namespace, ProxiedNamespace):
            stored = await self._append_by_proxy(
                self._namespace, log, producer, sequence, records, expected
            )
        else:
            stored = await self._append_here(log, producer, sequence, records, expected)
        if not stored.is_duplicate:
            self._count_written(records)
        return stored

    def _count_written(self, records: SubmittedRecords) -> None:
        self._meters.records_written += len(records.payloads)
        self._meters.bytes_written += sum(map(len, records.payloads))

    def _timeout_error(self, log: str, was_started: bool) -> DistributedLogError:
        if not was_started:
            return TooBusy(f'log "{log}" was not opened for writing in time; nothing was written')
        return OutcomeUnknown(
            f'log "{log}": not all records were stored within {self._options.append_s:g} s; they may be later'
        )

    # --- through proxies --------------------------------------------------------------------------

    async def _append_by_proxy(
        self,
        namespace: ProxiedNamespace,
        log: str,
        producer: ProducerRef,
        sequence: int,
        records: SubmittedRecords,
        expected: DLSN | None,
    ) -> StoredBatchPosition:
        key = log, producer
        stream = self._streams.get(key)
        if stream is None:
            if self._share is not None:
                self._share.make_room_for_producer(self._idle)
            sender = BatchSender(
                namespace.client, namespace.path, log, producer.name, producer.number
            )
            stream = self._streams[key] = _ProducerStream(sender)
            self._count_open()
        stream.user_count += 1
        try:
            return await stream.sender.send(
                sequence,
                records.payloads,
                txids=records.txids,
                expect=expected,
                deadline=trio.current_time() + self._options.append_s,
            )
        except (ProducerFenced, ProducerForgotten):
            if self._streams.get(key) is stream:
                del self._streams[key]
                stream.sender.close()
                self._count_open()
            raise
        finally:
            stream.user_count -= 1
            stream.used_at = trio.current_time()

    # --- where the log is written here ------------------------------------------------------------

    async def _append_here(
        self,
        log: str,
        producer: ProducerRef,
        sequence: int,
        records: SubmittedRecords,
        expected: DLSN | None,
    ) -> StoredBatchPosition:
        is_producer_open = False
        with trio.move_on_after(self._options.append_s):
            async with self._writer(log) as writer:
                try:
                    writer.sequenced_writer.resume_producer(producer.name, producer.number)
                except (ProducerFenced, ProducerForgotten):
                    await (
                        writer.sequenced_writer.check_owner()
                    )  # the rejection is valid only while this writer owns the log
                    raise
                is_producer_open = True
                batch = await _append_batch(writer, producer.number, sequence, records, expected)
            if batch.error is not None:
                raise batch.error.again()
            return StoredBatchPosition(
                sequence, batch.records, batch.first_dlsn, batch.is_duplicate
            )
        raise self._timeout_error(log, is_producer_open)

    async def _append_if_last(
        self, log: str, writer: LogWriter, records: SubmittedRecords, expected: DLSN
    ) -> DLSN:
        """Append one record if the log's last record is at the expected position.

        Raises `PositionConflict` otherwise.
        """
        if len(records.payloads) > 1:
            raise InvalidRequest("If-Match is for one record, or for those of a producer")
        if isinstance(self._namespace, ProxiedNamespace):
            raise InvalidRequest(
                f'log "{log}": through proxies, If-Match requires a producer: POST …/producers opens one'
            )
        batch = await _append_batch(writer, 0, 0, records, expected)
        if batch.error is not None:
            raise batch.error.again()
        assert batch.first_dlsn is not None, "it was stored now"
        return batch.first_dlsn

    # --- writers ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _writer(self, log: str) -> AsyncIterator[LogWriter]:
        """Return the log's writer in this gateway, opened if necessary; it stays open while it is used."""
        open_writer = self._writers.get(log)
        if open_writer is None:
            if self._share is not None:
                self._share.make_room_for_writer(self._idle)
            open_writer = self._writers[log] = _OpenWriter()
            self._count_open()
        open_writer.user_count += 1
        try:
            async with open_writer.open_lock:
                if open_writer.writer is not None and open_writer.writer.end_error is not None:
                    open_writer.writer = None
                if open_writer.writer is None:
                    open_writer.writer = await self._namespace.open_log(log).open_writer()
                writer = open_writer.writer
            yield writer
        finally:
            open_writer.user_count -= 1
            open_writer.used_at = trio.current_time()
            if (
                open_writer.writer is None
                and not open_writer.user_count
                and self._writers.get(log) is open_writer
            ):
                del self._writers[log]
                self._count_open()


async def _append_batch(
    writer: LogWriter,
    producer_number: int,
    sequence: int,
    records: SubmittedRecords,
    expected: DLSN | None,
) -> SequencedBatch:
    """Append a frame of a producer (0 for none) and wait for its result.

    Raises the error if the writer rejects it.
    """
    if expected is not None:
        return await writer.sequenced_writer.append_if_last(
            expected,
            records.payloads,
            txids=records.txids,
            producer=producer_number,
            sequence=sequence,
        )
    done = trio.Event()
    while True:
        try:
            batch = writer.sequenced_writer.append_batch(
                records.payloads,
                lambda _: done.set(),
                txids=records.txids,
                producer=producer_number,
                sequence=sequence,
            )
        except (InvalidRequest, ProducerFenced, ProducerForgotten):
            await writer.sequenced_writer.check_owner()
            raise
        if batch is not None:
            await done.wait()
            return batch
        await writer.sequenced_writer.wait_capacity(
            len(records.payloads), sum(map(len, records.payloads)), producer_number
        )


def check_sizes(payloads: Sequence[bytes], *, is_one_entry: bool) -> None:
    """Raise `RecordTooLarge` before anything is written.

    With ``is_one_entry``, all of the records must fit into one entry.
    """
    for number, payload in enumerate(payloads, 1):
        if len(payload) > RECORD_BYTES_MAX:
            raise RecordTooLarge(
                f"record {number} has {len(payload)} bytes; the limit is {RECORD_BYTES_MAX}"
            )
    size = sum(map(len, payloads)) + RECORD_COLUMN_BYTES * (len(payloads) - 1)
    if is_one_entry and size > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"{len(payloads)} records of {size} bytes are stored together; the limit is {RECORD_BYTES_MAX}, "
            f"with {RECORD_COLUMN_BYTES} for each after the first"
        )


def _unused(
    in_use: "Mapping[Key, _OpenWriter | _ProducerStream]", excess: int, idle_since: float
) -> list[Key]:
    """Return the unused writers or streams that were idle for long, or that exceed the limit."""
    idle = sorted(
        (user.used_at, index) for index, user in enumerate(in_use.values()) if not user.user_count
    )
    keys = list(in_use)
    return [
        keys[index]
        for rank, (used_at, index) in enumerate(idle)
        if rank < excess or used_at <= idle_since
    ]


async def _close_writer(open_writer: _OpenWriter) -> None:
    if open_writer.writer is not None:
        try:
            await open_writer.writer.aclose()
        except DistributedLogError:
            pass  # recovery closes the segment later
        except Exception:
            log.exception("closing a writer failed")  # other writers are not affected
