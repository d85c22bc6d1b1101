"""One connection to a write proxy: receive frames, and send acknowledgements batched per turn.

There is no task per frame: a frame is passed to its log's writer on arrival. A stream is opened at once if
the proxy writes the log, otherwise by a task that opens the log.
"""

from collections import Counter
from dataclasses import replace

import trio

from ...log.interfaces.log_names import check_namespace_path
from ...log.limits.write_throttle import Rate
from ...log.write.log_writer import LogWriter
from ...log.write.producer_state_manager import OpenedProducer
from ...runtime.interfaces.errors import (
    AlreadyClosed,
    CorruptData,
    DistributedLogError,
    InternalError,
    InvalidRequest,
    Moved,
    NotAllowed,
    ProducerFenced,
    ProducerForgotten,
    ProtocolError,
    TooBusy,
)
from ...runtime.net.link import Link
from ...runtime.protocol.frames import Op, pack
from ..protocol.proxy_messages import (
    ProduceOpen,
    ProduceOpened,
    ProxyCall,
    Refusal,
    decode_commit,
    decode_produce,
    encode_acks,
)
from ..session.client_authorizer import WRITING_RIGHTS
from ..session.proxy_session import CommonSession
from .hosted_log import HostedLog
from .log_manager import LogManager, log
from .producer_stream import ProducerStream, client_error, memory_bytes

STREAMS_MAX = 10_000
OPENINGS_MAX = 256
CALLS_MAX = 8
"""Limits per connection: streams, streams that are being opened, and running calls."""
CLOSED_WHILE_OPENING = "the stream was closed while it was being opened"
ACKS_MAX = 256
"""The maximum acknowledgements in one frame."""


class ProduceSession:
    """The requests of a client's connection to a write proxy. A `LinkSession`."""

    def __init__(
        self,
        link: Link,
        log_manager: LogManager,
        limits: "ProxyRateLimits",
        common_session: CommonSession,
    ) -> None:
        self._link = link
        self._log_manager = log_manager
        self._limits = limits
        self._common_session = common_session
        self._client = common_session.client
        self._streams: dict[int, tuple[ProducerStream, HostedLog]] = {}
        self._streams_per_log: Counter[HostedLog] = Counter()
        """The number of streams per log."""
        self._operations: dict[int, int] = {}
        """By stream: the number of the client's admitted operation."""
        self._opening: dict[int, trio.CancelScope] = {}
        """Streams that are being opened. The scope is cancelled if the client closes the stream or
        disconnects."""
        self._last_stream = 0
        self._running_calls = 0
        self._windows_bytes = self._unanswered_bytes = 0
        """Of all its streams: bytes of windows, and memory of unanswered frames."""
        self._acks: list[bytes] = []
        self._closed = False
        link.subscribe_sends(self._send_acks)

    # --- frames -----------------------------------------------------------------------------------

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        """Process one frame.

        Raises:
            ProtocolError: The frame is invalid, so the connection must end.
        """
        if op == Op.PRODUCE:
            self._on_produce(ident, body)
        elif op == Op.PRODUCE_OPEN:
            self._on_open(ident, ProduceOpen.decode(body))
        elif op == Op.PRODUCE_PUBLISH:
            if ident in self._streams:
                self._streams[ident][1].publish()
        elif op == Op.PRODUCE_COMMIT:
            self._on_commit(ident, decode_commit(body))
        elif op == Op.PRODUCE_CLOSE:
            self._close_stream(ident)
        elif op == Op.PROXY_CALL and (call := ProxyCall.decode(body)).call != "would_refuse":
            self._on_call(ident, call)
        elif not self._common_session.try_serve(op, ident, body):
            raise ProtocolError(f"{self._link.peer_address} sent operation {op} to a write proxy")

    def on_batch_end(self) -> None:
        """Do nothing: frames are processed on arrival."""

    def on_closed(self) -> None:
        """End all streams of the closed connection (H1)."""
        self._closed = True
        self._common_session.on_closed()
        for number in [*self._streams, *self._opening]:
            self._close_stream(number)

    def _on_produce(self, number: int, body: memoryview) -> None:
        stream_and_log = self._streams.get(number)
        if stream_and_log is None:
            if number <= self._last_stream and number not in self._opening:
                return  # it was refused or closed
            raise ProtocolError(
                f"{self._link.peer_address} sends on stream {number}, which is not open"
            )
        stream, hosted_log = stream_and_log
        if stream.error is not None:
            return
        size = len(body)
        stats = self._log_manager.stats
        try:
            frame = decode_produce(body)
        except CorruptData as error:
            stream.refuse(error, stream.next_sequence)
            return
        records = len(frame.payloads)
        if frame.first_sequence != stream.next_sequence:
            stream.refuse(
                InvalidRequest(
                    f"a frame begins with record {frame.first_sequence}, expected {stream.next_sequence}"
                ),
                stream.next_sequence,
            )
        elif stream.unanswered_bytes >= stream.window_bytes:
            # Below the window, one more frame of any size is allowed.
            raise ProtocolError(
                f"{self._link.peer_address} sends on stream {number} with {stream.unanswered_bytes}"
                f" unanswered bytes, its window is {stream.window_bytes}"
            )
        elif not self._log_manager.may_buffer(self._unanswered_bytes, memory_bytes(records, size)):
            stream.refuse(
                TooBusy("this proxy has too many unacknowledged bytes"),
                stream.next_sequence,
                retry_ms=100,
            )
        elif (wait_s := self._limits.try_charge(records, size)) > 0:
            retry_ms = max(1, int(wait_s * 1000))
            stream.refuse(
                TooBusy("this proxy is at its limit of records or bytes per second"),
                stream.next_sequence,
                retry_ms=retry_ms,
            )
        else:
            stats.frames += 1
            stats.records += records
            stats.bytes += size
            stream.accept_frame(frame.first_sequence, records, size)
            hosted_log.append(stream, frame)

    # --- streams ----------------------------------------------------------------------------------

    def _on_open(self, ident: int, request: ProduceOpen) -> None:
        number = request.stream
        if number <= self._last_stream:
            raise ProtocolError(
                f"{self._link.peer_address} opened stream {number} after {self._last_stream}"
            )
        self._last_stream = number
        if len(self._streams) >= STREAMS_MAX or len(self._opening) >= OPENINGS_MAX:
            error = TooBusy(
                f"{len(self._streams)} streams are open on this connection, and "
                f"{len(self._opening)} are being opened"
            )
            self._link.reply_error(ident, error)
            return
        hosted_log = self._log_manager.find_hosted(request.path, request.log)
        if (
            hosted_log is not None
            and not self._client.authorization_enabled
            and not request.producer
            and request.incarnation in ("", hosted_log.incarnation)
        ):
            self._add_stream(ident, request, hosted_log, None)
        else:
            self._opening[number] = trio.CancelScope()
            self._log_manager.nursery.start_soon(self._open_stream, ident, request)

    async def _open_stream(self, ident: int, request: ProduceOpen) -> None:
        scope = self._opening[request.stream]
        try:
            with scope:
                await self._find_log_and_join(ident, request, scope)
            if scope.cancelled_caught:
                raise Moved(CLOSED_WHILE_OPENING)
        except DistributedLogError as error:
            self._link.reply_error(ident, error)
        except Exception as error:
            log.exception("opening a stream to log %s", request.log)
            self._link.reply_error(ident, InternalError(f"opening: {type(error).__name__}"))
        finally:
            del self._opening[request.stream]

    async def _find_log_and_join(
        self, ident: int, request: ProduceOpen, scope: trio.CancelScope
    ) -> None:
        client = self._client
        path = check_namespace_path(request.path)
        client.check_producer(request.producer)
        hosted_here = self._log_manager.find_hosted(path, request.log)
        if hosted_here is not None and hosted_here.incarnation == request.incarnation:
            await client.check(WRITING_RIGHTS, path, request.log)
        else:
            await client.check_log(WRITING_RIGHTS, path, request.log, request.incarnation)
        if request.create and not await client.may_create(path, request.log):
            request = replace(request, create=False)
        if self._log_manager.find_hosted(path, request.log) is None:
            self._log_manager.check_connection_share(
                path, self._streams_per_log, len(self._opening)
            )
        with client.admitted(WRITING_RIGHTS, path, request.log):
            hosted_log = await self._log_manager.find_or_open(request)
        opened = None
        if request.producer:
            opened = await _open_producer(hosted_log.writer, request)
        if scope.cancel_called:
            raise Moved(CLOSED_WHILE_OPENING)
        if hosted_log.has_ended:
            raise Moved(f'log "{request.log}" is moving to another proxy')
        self._add_stream(ident, request, hosted_log, opened)

    def _add_stream(
        self,
        ident: int,
        request: ProduceOpen,
        hosted_log: HostedLog,
        producer: OpenedProducer | None,
    ) -> None:
        if self._closed:
            return
        log_manager, client = self._log_manager, self._client
        try:
            window_bytes = log_manager.new_window_bytes(self._windows_bytes)
            operation = client.admit(
                WRITING_RIGHTS,
                hosted_log.path,
                lambda: hosted_log.name,
                lambda reason: hosted_log.revoke_stream(stream, reason),
            )
        except (TooBusy, NotAllowed) as error:
            self._link.reply_error(ident, error)
            return
        stream = ProducerStream(
            request.stream,
            window_bytes,
            ack=self._on_ack,
            refuse=self._on_refused,
            on_bytes=self._add_unanswered,
            producer=0 if producer is None else producer.number,
            next_sequence=request.acked_through if producer is None else producer.next_sequence,
        )
        log_manager.stats.streams += 1
        log_manager.stats.windows_bytes += window_bytes
        self._windows_bytes += window_bytes
        self._streams[request.stream] = stream, hosted_log
        self._streams_per_log[hosted_log] += 1
        self._operations[request.stream] = operation
        hosted_log.add_stream(stream, log_manager.nursery)
        writer = hosted_log.writer
        opened = ProduceOpened(
            hosted_log.incarnation,
            stream.producer,
            producer is not None and producer.has_stored_records,
            stream.next_sequence,
            window_bytes,
            writer.txid_policy,
            writer.last_txid,
        )
        self._link.reply(ident, opened.encode())
        if producer is not None:
            hosted_log.answer_earlier(stream, request.acked_through)

    def _close_stream(self, number: int) -> None:
        stream_and_log = self._streams.pop(number, None)
        if stream_and_log is not None:
            stream, hosted_log = stream_and_log
            self._streams_per_log[hosted_log] -= 1
            if not self._streams_per_log[hosted_log]:
                del self._streams_per_log[hosted_log]
            self._client.finish(self._operations.pop(number))
            stream.drop()
            hosted_log.remove_stream(stream)
            self._log_manager.stats.streams -= 1
            self._log_manager.stats.windows_bytes -= stream.window_bytes
            self._windows_bytes -= stream.window_bytes
        elif number in self._opening:
            self._opening[number].cancel()

    def _add_unanswered(self, added_bytes: int) -> None:
        """Add to the memory of unanswered frames."""
        self._unanswered_bytes += added_bytes
        self._log_manager.stats.held_bytes += added_bytes

    # --- answers ----------------------------------------------------------------------------------

    def _on_ack(self, item: bytes) -> None:
        if not self._closed:
            acks = self._acks
            if not acks:
                self._link.request_send()
            acks.append(item)
            if len(acks) >= ACKS_MAX:
                # The turn does not come while the peer reads nothing, but the link counts waiting bytes.
                self._send_acks()

    def _on_refused(self, number: int, refusal: Refusal) -> None:
        self._log_manager.stats.frames_refused += 1
        self._send_acks()
        self._link.send(refusal.encode_frame(number))
        self._close_stream(number)

    def _send_acks(self) -> None:
        if self._acks:
            acks, self._acks = self._acks, []
            self._link.send(encode_acks(acks))

    # --- calls about this proxy -------------------------------------------------------------------

    def _on_commit(self, ident: int, number: int) -> None:
        stream_and_log = self._streams.get(number)
        if stream_and_log is None:
            self._link.reply_error(ident, AlreadyClosed(f"stream {number} is not open here"))
        elif self._running_calls >= CALLS_MAX:
            self._link.reply_error(
                ident, TooBusy(f"{self._running_calls} calls of this connection are running")
            )
        else:
            self._running_calls += 1
            self._log_manager.nursery.start_soon(self._commit, ident, stream_and_log[1])

    async def _commit(self, ident: int, hosted_log: HostedLog) -> None:
        try:
            await hosted_log.make_readable()
            self._link.reply(ident, b"")
        except DistributedLogError as error:
            self._link.reply_error(ident, error)
        except Exception as error:
            log.exception("a commit")
            self._link.reply_error(ident, InternalError(f"commit: {type(error).__name__}"))
        finally:
            self._running_calls -= 1

    def _on_call(self, ident: int, call: ProxyCall) -> None:
        if self._running_calls >= CALLS_MAX:
            error = TooBusy(f"{self._running_calls} calls of this connection are running")
            self._link.reply_error(ident, error)
        else:
            self._running_calls += 1
            self._log_manager.nursery.start_soon(self._call, ident, call)

    async def _call(self, ident: int, call: ProxyCall) -> None:
        log_manager = self._log_manager
        try:
            answer: object = None
            if call.call == "take":
                self._client.check_proxy("hand a log to a proxy")
                path, name, incarnation = call.arguments
                request = ProduceOpen(1, path, name, incarnation, create=False)
                await log_manager.find_or_open(request)
                self._link.reply(ident, pack(True))
                return
            self._client.check_cluster(f"{call.call} logs of a proxy")
            if call.call == "owned":
                after, limit = call.arguments
                keys = sorted(key for key in log_manager.logs if "\0".join(key) > after)
                answer = [
                    [*key, len(log_manager.logs[key].streams), log_manager.logs[key].writer.segment]
                    for key in keys[:limit]
                ]
            elif call.call == "move":
                path, name, target = call.arguments
                answer = await log_manager.hand_off((path, name), target)
            else:
                await log_manager.drain()
            self._link.reply(ident, pack(answer))
        except DistributedLogError as error:
            self._link.reply_error(ident, error)
        except Exception as error:
            log.exception("the call %s", call.call)
            self._link.reply_error(ident, InternalError(f"{call.call}: {type(error).__name__}"))
        finally:
            self._running_calls -= 1


async def _open_producer(writer: LogWriter, request: ProduceOpen) -> OpenedProducer:
    """Open a producer by name, or resume it by its number. Reject it only after an ownership check (H64)."""
    try:
        if request.producer_number:
            await (
                writer.sequenced_writer.check_owner()
            )  # a paused owner may lack records that another owner acknowledged
            return writer.sequenced_writer.resume_producer(
                request.producer, request.producer_number
            )
        return await writer.sequenced_writer.open_producer(request.producer)
    except DistributedLogError as error:
        if isinstance(error, ProducerFenced | ProducerForgotten):
            try:
                await writer.sequenced_writer.check_owner()
            except DistributedLogError as owner_error:
                raise client_error(owner_error) from owner_error
        elif writer.end_error is not None:
            raise client_error(writer.end_error) from error
        raise


class ProxyRateLimits:
    """The rate limits of a whole proxy."""

    def __init__(self, records_per_s_max: int, bytes_per_s_max: int) -> None:
        self._records_per_s_max, self._bytes_per_s_max = records_per_s_max, bytes_per_s_max
        self._record_rate, self._byte_rate = Rate(), Rate()

    def try_charge(self, records: int, size: int) -> float:
        """Charge records and bytes and return 0, or return the seconds to wait without charging."""
        if not (self._records_per_s_max or self._bytes_per_s_max):
            return 0.0
        now = trio.current_time()
        wait_s = max(
            self._record_rate.wait_s(records, self._records_per_s_max, now),
            self._byte_rate.wait_s(size, self._bytes_per_s_max, now),
        )
        if wait_s <= 0:
            self._record_rate.consume(records, self._records_per_s_max)
            self._byte_rate.consume(size, self._bytes_per_s_max)
        return wait_s
