"""The writers of logs that requests write to, and the producers of those that want each record once.

A log has one writer here, which all plain requests share, and which is closed when nobody uses it.
A producer's request is a frame of its own: whole in one entry, and stored once, whichever gateway it came to.
Over proxies that is a stream to whoever has the log (`BatchSender`); else the log's one writer here takes it.

Of both there are so many: above, those that were idle longest are closed. A user has half of them at most,
and is told so where none of his is idle.
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
from ..log.write.producer_state_manager import OpenedProducer, check_name
from ..log.write.sequenced_batch import SequencedBatch
from ..proxy.client.batch_sender import BatchSender, StoredFrame
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
from .request_format import Given, ProducerRef
from .user_share import IdleEviction, UserShare

log = get_logger("distributedlog.gateway")

SWEEP_S = 1.0

Key = TypeVar("Key")


@dataclass(slots=True, eq=False)
class _Writing:
    """A log's writer, open or being opened, and who uses it."""

    writer: LogWriter | None = None
    turn: trio.Lock = field(default_factory=trio.Lock)
    users: int = 0
    used_at: float = 0.0


@dataclass(slots=True, eq=False)
class _Sending:
    """A producer's stream, and who uses it."""

    sender: BatchSender
    users: int = 0
    used_at: float = 0.0


class AppendHandler:
    """See the module. `run` must be running."""

    def __init__(
        self,
        namespace: Namespace,
        options: GatewayOptions,
        meters: GatewayMeters,
        *,
        own: str = "",
        share: UserShare | None = None,
    ) -> None:
        """``own``: what the log has before these producers' names, so that no other one is meant by them.

        ``share``: of the user whose these all are.
        """
        self._share = share
        self._idle = IdleEviction(
            partial(self._close_writers, 1, -inf), partial(self._close_senders, 1, -inf)
        )
        self._nursery: trio.Nursery | None = None
        self._namespace = namespace
        self._own = own
        self._told = (0, 0)
        """Writers and producers, as they are counted."""
        self._over = False
        """From then on what requests still do counts for nobody."""
        self._options = options
        self._meters = meters
        self._writing: dict[str, _Writing] = {}
        self._sending: dict[tuple[str, ProducerRef], _Sending] = {}
        self._random = namespace.context.random

    async def run(self) -> None:
        """Close what nobody uses, until cancelled; then all."""
        share = self._share
        if share is not None:
            share.held_by.append(self._idle)
        try:
            async with trio.open_nursery() as self._nursery:
                await WorkFailures().keep("the sweep of writers", self._sweep_again)
        finally:
            self._nursery = None
            if share is not None:
                share.held_by.remove(self._idle)
            for sending in self._sending.values():
                sending.sender.close()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._options.stop_s):
                async with trio.open_nursery() as nursery:
                    for writing in self._writing.values():
                        nursery.start_soon(_close, writing)
            self._tell(0, 0)
            self._over = True

    async def _sweep_again(self) -> None:
        while True:
            await trio.sleep(SWEEP_S)
            self._sweep()

    def _sweep(self) -> None:
        options, meters = self._options, self._meters
        since = trio.current_time() - options.writer_idle_s
        self._close_writers(meters.writers - options.writers_max, since)
        self._close_senders(meters.producers - options.producers_max, since)

    def _close_writers(self, above: int, since: float) -> None:
        nursery = self._nursery
        if nursery is None:
            return  # it ends, and all with it
        for log in _unused(self._writing, above, since):
            nursery.start_soon(_close, self._writing.pop(log))
        self._count_open()

    def _close_senders(self, above: int, since: float) -> None:
        for key in _unused(self._sending, above, since):
            self._sending.pop(key).sender.close()
        self._count_open()

    def _count_open(self) -> None:
        if not self._over:
            self._tell(len(self._writing), len(self._sending))

    def _tell(self, writers: int, producers: int) -> None:
        """How many there are here: others of the gateway, and of the user, have their own."""
        more_writers, more_producers = writers - self._told[0], producers - self._told[1]
        self._told = writers, producers
        self._meters.writers += more_writers
        self._meters.producers += more_producers
        if self._share is not None:
            self._share.writers += more_writers
            self._share.producers += more_producers

    # --- what requests do -------------------------------------------------------------------------

    async def let_go(self, log: str) -> None:
        """Close the writer and the streams of a log that is to be deleted, but for those in use.

        Kept for the next request they would hold its lock, and who wrote a log here could not delete it here.
        """
        for key, sending in list(self._sending.items()):
            if key[0] == log and not sending.users:
                self._sending.pop(key).sender.close()
        writing = self._writing.get(log)
        if writing is not None and not writing.users:
            await _close(self._writing.pop(log))
        self._count_open()

    async def append(self, log: str, given: Given, expect: DLSN | None) -> list[DLSN]:
        """Store records; their places when all are durable. They may be mixed with those of others.

        ``expect``: of one record, where the log's last one must be. Raises what a writer raises; where that
        is not known to have stored nothing, the first of several may be stored.
        """
        check_sizes(given.payloads, one_entry=expect is not None)
        begun = False
        with trio.move_on_after(self._options.append_s):
            async with self._writer(log) as writer:
                begun = True
                if expect is None:
                    found = await (await writer.submit_columns(given.txids, given.payloads))
                else:
                    found = [await self._after(log, writer, given, expect)]
            self._count(given)
            return found
        raise self._late(log, begun)

    async def open_producer(self, log: str, name: str) -> OpenedProducer:
        """Open a producer by its name; who had it is fenced. Raises what a writer's opening raises.

        ``name``: "" for one that is drawn.
        """
        shown = name or f"{self._random.getrandbits(128):032x}"
        name = check_name(self._own + shown)
        deadline = trio.current_time() + self._options.append_s
        with trio.move_on_at(deadline):
            if not isinstance(self._namespace, ProxiedNamespace):
                async with self._writer(log) as writer:
                    return replace(await writer.sequenced.open_producer(name), name=shown)
            if self._share is not None:
                self._share.make_room_for_producer(self._idle)
            sender = BatchSender(self._namespace.client, self._namespace.path, log, name)
            try:
                opened = await sender.open(deadline)
            except BaseException:
                sender.close()
                raise
            key = log, ProducerRef(opened.number, name)
            self._sending[key] = _Sending(sender, used_at=trio.current_time())
            self._count_open()
            return replace(opened, name=shown)
        raise OutcomeUnknown(
            f'log "{log}": producer {name} was not opened in time; who had it may be fenced: open it again'
        )

    async def append_once(
        self, log: str, producer: ProducerRef, sequence: int, given: Given, expect: DLSN | None
    ) -> StoredFrame:
        """Store a producer's records, the first of which is its ``sequence``-th, in one entry.

        Raises `OutcomeUnknown` where nobody answered: the same again tells. What is definite stored nothing.
        """
        check_sizes(given.payloads, one_entry=True)
        producer = ProducerRef(producer.number, check_name(self._own + producer.name))
        if isinstance(self._namespace, ProxiedNamespace):
            stored = await self._send(self._namespace, log, producer, sequence, given, expect)
        else:
            stored = await self._take(log, producer, sequence, given, expect)
        if not stored.repeated:
            self._count(given)
        return stored

    def _count(self, given: Given) -> None:
        self._meters.records_written += len(given.payloads)
        self._meters.bytes_written += sum(map(len, given.payloads))

    def _late(self, log: str, begun: bool) -> DistributedLogError:
        if not begun:
            return TooBusy(f'log "{log}" was not opened for writing in time; nothing was written')
        return OutcomeUnknown(
            f'log "{log}": not everything was stored within {self._options.append_s:g} s; it may be yet'
        )

    # --- through proxies --------------------------------------------------------------------------

    async def _send(
        self,
        namespace: ProxiedNamespace,
        log: str,
        producer: ProducerRef,
        sequence: int,
        given: Given,
        expect: DLSN | None,
    ) -> StoredFrame:
        key = log, producer
        found = self._sending.get(key)
        if found is None:
            if self._share is not None:
                self._share.make_room_for_producer(self._idle)
            sender = BatchSender(
                namespace.client, namespace.path, log, producer.name, producer.number
            )
            found = self._sending[key] = _Sending(sender)
            self._count_open()
        found.users += 1
        try:
            return await found.sender.send(
                sequence,
                given.payloads,
                txids=given.txids,
                expect=expect,
                deadline=trio.current_time() + self._options.append_s,
            )
        except (ProducerFenced, ProducerForgotten):
            if self._sending.get(key) is found:
                del self._sending[key]
                found.sender.close()
                self._count_open()
            raise
        finally:
            found.users -= 1
            found.used_at = trio.current_time()

    # --- where the log is written here ------------------------------------------------------------

    async def _take(
        self,
        log: str,
        producer: ProducerRef,
        sequence: int,
        given: Given,
        expect: DLSN | None,
    ) -> StoredFrame:
        begun = False
        with trio.move_on_after(self._options.append_s):
            async with self._writer(log) as writer:
                try:
                    writer.sequenced.resume_producer(producer.name, producer.number)
                except (ProducerFenced, ProducerForgotten):
                    await (
                        writer.sequenced.check_owner()
                    )  # a no is worth something while the log is ours
                    raise
                begun = True
                frame = await _framed(writer, producer.number, sequence, given, expect)
            if frame.error is not None:
                raise frame.error.again()
            return StoredFrame(sequence, frame.records, frame.first, frame.repeated)
        raise self._late(log, begun)

    async def _after(self, log: str, writer: LogWriter, given: Given, expect: DLSN) -> DLSN:
        """One record, where the last one is the expected one. Raises `PositionConflict`."""
        if len(given.payloads) > 1:
            raise InvalidRequest("If-Match is for one record, or for those of a producer")
        if isinstance(self._namespace, ProxiedNamespace):
            raise InvalidRequest(
                f'log "{log}": through proxies If-Match wants a producer: POST …/producers opens one'
            )
        frame = await _framed(writer, 0, 0, given, expect)
        if frame.error is not None:
            raise frame.error.again()
        assert frame.first is not None, "it was stored now"
        return frame.first

    # --- writers ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _writer(self, log: str) -> AsyncIterator[LogWriter]:
        """The log's writer here, opened where it is not; it stays while it is used."""
        found = self._writing.get(log)
        if found is None:
            if self._share is not None:
                self._share.make_room_for_writer(self._idle)
            found = self._writing[log] = _Writing()
            self._count_open()
        found.users += 1
        try:
            async with found.turn:
                if found.writer is not None and found.writer.over is not None:
                    found.writer = None
                if found.writer is None:
                    found.writer = await self._namespace.open_log(log).open_writer()
                writer = found.writer
            yield writer
        finally:
            found.users -= 1
            found.used_at = trio.current_time()
            if found.writer is None and not found.users and self._writing.get(log) is found:
                del self._writing[log]
                self._count_open()


async def _framed(
    writer: LogWriter, number: int, sequence: int, given: Given, expect: DLSN | None
) -> SequencedBatch:
    """A frame of a producer (0: of nobody), done. Raises what does not take it."""
    if expect is not None:
        return await writer.sequenced.frame_after(
            expect, given.payloads, txids=given.txids, producer=number, sequence=sequence
        )
    done = trio.Event()
    while True:
        try:
            frame = writer.sequenced.take_frame(
                given.payloads,
                lambda _: done.set(),
                txids=given.txids,
                producer=number,
                sequence=sequence,
            )
        except (InvalidRequest, ProducerFenced, ProducerForgotten):
            await writer.sequenced.check_owner()
            raise
        if frame is not None:
            await done.wait()
            return frame
        await writer.sequenced.frame_room(
            len(given.payloads), sum(map(len, given.payloads)), number
        )


def check_sizes(payloads: Sequence[bytes], *, one_entry: bool) -> None:
    """Raise `RecordTooLarge` before anything is taken. ``one_entry``: they are stored in one."""
    for number, payload in enumerate(payloads, 1):
        if len(payload) > RECORD_BYTES_MAX:
            raise RecordTooLarge(
                f"record {number} has {len(payload)} bytes; the most are {RECORD_BYTES_MAX}"
            )
    size = sum(map(len, payloads)) + RECORD_COLUMN_BYTES * (len(payloads) - 1)
    if one_entry and size > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"{len(payloads)} records of {size} bytes are stored together; the most are {RECORD_BYTES_MAX}, "
            f"with {RECORD_COLUMN_BYTES} for each after the first"
        )


def _unused(found: "Mapping[Key, _Writing | _Sending]", above: int, since: float) -> list[Key]:
    """Those that nobody uses: for long, or as many as are above the bound."""
    idle = sorted((one.used_at, at) for at, one in enumerate(found.values()) if not one.users)
    keys = list(found)
    return [keys[at] for rank, (used_at, at) in enumerate(idle) if rank < above or used_at <= since]


async def _close(writing: _Writing) -> None:
    if writing.writer is not None:
        try:
            await writing.writer.aclose()
        except DistributedLogError:
            pass  # it is left for recovery then
        except Exception:
            log.exception("the end of a writer")  # and no other one's
