"""One connection to a write proxy: frames in, acknowledgements out, one frame of them a turn.

No task a frame: a frame goes to its log's writer as it arrives. A stream is opened at once where the log is
written here, else by a task that takes the log.
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
    acks_frame,
    decode_commit,
    decode_produce,
)
from ..session.client_authorizer import PRODUCES
from ..session.proxy_session import CommonSession
from .hosted_log import HostedLog
from .log_manager import LogManager, log
from .producer_stream import ProducerStream, as_told, held

STREAMS_MAX = 10_000
OPENINGS_MAX = 256
CALLS_MAX = 8
"""Of a connection: streams, those that are being opened, calls under way."""
UNWANTED = "it was closed while it was opened"
ACKS_MAX = 256
"""In one frame of acknowledgements."""


class ProduceSession:
    """See the module. A `Session` to its link."""

    def __init__(
        self, link: Link, owner: LogManager, limits: "Limits", common: CommonSession
    ) -> None:
        self._link = link
        self._owner = owner
        self._limits = limits
        self._common = common
        self._client = common.client
        self._streams: dict[int, tuple[ProducerStream, HostedLog]] = {}
        self._logs: Counter[HostedLog] = Counter()
        """How many of them each log has."""
        self._let_in: dict[int, int] = {}
        """Of each of them, what the client's right to it is left by."""
        self._opening: dict[int, trio.CancelScope] = {}
        """Those that are being opened: each ends when its client closes it, or has gone."""
        self._highest = 0
        self._calls = 0
        self._windows_bytes = self._held_bytes = 0
        """Of its streams: windows, and what is not answered."""
        self._acks: list[bytes] = []
        self._closed = False
        link.subscribe_turns(self._send_acks)

    # --- frames -----------------------------------------------------------------------------------

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        """Take one frame. Raises `ProtocolError`, which ends the connection."""
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
            self._close(ident)
        elif op == Op.PROXY_CALL and (call := ProxyCall.decode(body)).call != "would_refuse":
            self._on_call(ident, call)
        elif not self._common.take(op, ident, body):
            raise ProtocolError(f"{self._link.peer_address} sent operation {op} to a write proxy")

    def on_batch_end(self) -> None:
        """All frames of one receive were taken."""

    def on_closed(self) -> None:
        """The connection is gone, and its streams die with it (H1)."""
        self._closed = True
        self._common.on_closed()
        for number in [*self._streams, *self._opening]:
            self._close(number)

    def _on_produce(self, number: int, body: memoryview) -> None:
        found = self._streams.get(number)
        if found is None:
            if number <= self._highest and number not in self._opening:
                return  # it was refused, or closed
            raise ProtocolError(f"{self._link.peer_address} sends on stream {number}, not opened")
        stream, written = found
        if stream.error is not None:
            return
        size = len(body)
        stats = self._owner.stats
        try:
            frame = decode_produce(body)
        except CorruptData as error:
            stream.refuse(error, stream.next)
            return
        records = len(frame.payloads)
        if frame.first != stream.next:
            stream.refuse(
                InvalidRequest(
                    f"a frame begins with record {frame.first}, wanted is {stream.next}"
                ),
                stream.next,
            )
        elif stream.held_bytes >= stream.window_bytes:
            # Who is below it may send one frame more, of any size.
            raise ProtocolError(
                f"{self._link.peer_address} sends on stream {number} while {stream.held_bytes} bytes of it "
                f"are not answered, its window is {stream.window_bytes}"
            )
        elif not self._owner.may_hold(self._held_bytes, held(records, size)):
            stream.refuse(TooBusy("this proxy holds too much"), stream.next, retry_ms=100)
        elif (wait_s := self._limits.wait_s(records, size)) > 0:
            retry_ms = max(1, int(wait_s * 1000))
            stream.refuse(
                TooBusy("this proxy is at its limit of records or bytes a second"),
                stream.next,
                retry_ms=retry_ms,
            )
        else:
            stats.frames += 1
            stats.records += records
            stats.bytes += size
            stream.take(frame.first, records, size)
            written.take(stream, frame)

    # --- streams ----------------------------------------------------------------------------------

    def _on_open(self, ident: int, request: ProduceOpen) -> None:
        number = request.stream
        if number <= self._highest:
            raise ProtocolError(
                f"{self._link.peer_address} opened stream {number} after {self._highest}"
            )
        self._highest = number
        if len(self._streams) >= STREAMS_MAX or len(self._opening) >= OPENINGS_MAX:
            error = TooBusy(
                f"{len(self._streams)} streams are open on this connection, and "
                f"{len(self._opening)} are being opened"
            )
            self._link.reply_error(ident, error)
            return
        written = self._owner.has(request.path, request.log)
        if (
            written is not None
            and not self._client.judged
            and not request.producer
            and request.incarnation in ("", written.incarnation)
        ):
            self._join(ident, request, written, None)
        else:
            self._opening[number] = trio.CancelScope()
            self._owner.nursery.start_soon(self._take, ident, request)

    async def _take(self, ident: int, request: ProduceOpen) -> None:
        scope = self._opening[request.stream]
        try:
            with scope:
                await self._take_wanted(ident, request, scope)
            if scope.cancelled_caught:
                raise Moved(UNWANTED)
        except DistributedLogError as error:
            self._link.reply_error(ident, error)
        except Exception as error:
            log.exception("opening a stream to log %s", request.log)
            self._link.reply_error(ident, InternalError(f"opening: {type(error).__name__}"))
        finally:
            del self._opening[request.stream]

    async def _take_wanted(self, ident: int, request: ProduceOpen, scope: trio.CancelScope) -> None:
        client = self._client
        path = check_namespace_path(request.path)
        client.check_producer(request.producer)
        here = self._owner.has(path, request.log)
        if here is not None and here.incarnation == request.incarnation:
            await client.check(PRODUCES, path, request.log)
        else:
            await client.check_log(PRODUCES, path, request.log, request.incarnation)
        if request.create and not await client.may_make(path, request.log):
            request = replace(request, create=False)
        if self._owner.has(path, request.log) is None:
            self._owner.check_share(path, self._logs, len(self._opening))
        with client.doing(PRODUCES, path, request.log):
            written = await self._owner.take(request)
        opened = None
        if request.producer:
            opened = await _open_producer(written.writer, request)
        if scope.cancel_called:
            raise Moved(UNWANTED)
        if written.over:
            raise Moved(f'log "{request.log}" is on its way elsewhere')
        self._join(ident, request, written, opened)

    def _join(
        self,
        ident: int,
        request: ProduceOpen,
        written: HostedLog,
        producer: OpenedProducer | None,
    ) -> None:
        if self._closed:
            return
        owner, client = self._owner, self._client
        try:
            window_bytes = owner.window(self._windows_bytes)
            let_in = client.let_in(
                PRODUCES,
                written.path,
                lambda: written.name,
                lambda why: written.turn_away(stream, why),
            )
        except (TooBusy, NotAllowed) as error:
            self._link.reply_error(ident, error)
            return
        stream = ProducerStream(
            request.stream,
            window_bytes,
            ack=self._on_ack,
            refuse=self._on_refused,
            on_bytes=self._hold,
            producer=0 if producer is None else producer.number,
            next_sequence=request.through if producer is None else producer.next_sequence,
        )
        owner.stats.streams += 1
        owner.stats.windows_bytes += window_bytes
        self._windows_bytes += window_bytes
        self._streams[request.stream] = stream, written
        self._logs[written] += 1
        self._let_in[request.stream] = let_in
        written.join(stream, owner.nursery)
        writer = written.writer
        opened = ProduceOpened(
            written.incarnation,
            stream.producer,
            producer is not None and producer.known,
            stream.next,
            window_bytes,
            writer.txid_rule,
            writer.last_txid,
        )
        self._link.reply(ident, opened.encode())
        if producer is not None:
            written.resume(stream, request.through)

    def _close(self, number: int) -> None:
        found = self._streams.pop(number, None)
        if found is not None:
            stream, written = found
            self._logs[written] -= 1
            if not self._logs[written]:
                del self._logs[written]
            self._client.leave(self._let_in.pop(number))
            stream.drop()
            written.leave(stream)
            self._owner.stats.streams -= 1
            self._owner.stats.windows_bytes -= stream.window_bytes
            self._windows_bytes -= stream.window_bytes
        elif number in self._opening:
            self._opening[number].cancel()

    def _hold(self, more: int) -> None:
        """So many more bytes of frames are not answered, or fewer."""
        self._held_bytes += more
        self._owner.stats.held_bytes += more

    # --- answers ----------------------------------------------------------------------------------

    def _on_ack(self, item: bytes) -> None:
        if not self._closed:
            acks = self._acks
            if not acks:
                self._link.soon()
            acks.append(item)
            if len(acks) >= ACKS_MAX:
                # The turn does not come while the peer reads nothing: the link counts what waits for it.
                self._send_acks()

    def _on_refused(self, number: int, refusal: Refusal) -> None:
        self._owner.stats.frames_refused += 1
        self._send_acks()
        self._link.send(refusal.frame(number))
        self._close(number)

    def _send_acks(self) -> None:
        if self._acks:
            acks, self._acks = self._acks, []
            self._link.send(acks_frame(acks))

    # --- calls about this proxy -------------------------------------------------------------------

    def _on_commit(self, ident: int, number: int) -> None:
        found = self._streams.get(number)
        if found is None:
            self._link.reply_error(ident, AlreadyClosed(f"stream {number} is not open here"))
        elif self._calls >= CALLS_MAX:
            self._link.reply_error(
                ident, TooBusy(f"{self._calls} calls of this connection are under way")
            )
        else:
            self._calls += 1
            self._owner.nursery.start_soon(self._commit, ident, found[1])

    async def _commit(self, ident: int, written: HostedLog) -> None:
        try:
            await written.make_readable()
            self._link.reply(ident, b"")
        except DistributedLogError as error:
            self._link.reply_error(ident, error)
        except Exception as error:
            log.exception("a commit")
            self._link.reply_error(ident, InternalError(f"commit: {type(error).__name__}"))
        finally:
            self._calls -= 1

    def _on_call(self, ident: int, call: ProxyCall) -> None:
        if self._calls >= CALLS_MAX:
            error = TooBusy(f"{self._calls} calls of this connection are under way")
            self._link.reply_error(ident, error)
        else:
            self._calls += 1
            self._owner.nursery.start_soon(self._call, ident, call)

    async def _call(self, ident: int, call: ProxyCall) -> None:
        owner = self._owner
        try:
            answer: object = None
            if call.call == "take":
                self._client.check_proxy("have a log taken")
                path, name, incarnation = call.arguments
                request = ProduceOpen(1, path, name, incarnation, create=False)
                await owner.take(request)
                self._link.reply(ident, pack(True))
                return
            self._client.check_cluster(f"{call.call} logs of a proxy")
            if call.call == "owned":
                after, limit = call.arguments
                keys = sorted(key for key in owner.logs if "\0".join(key) > after)
                answer = [
                    [*key, len(owner.logs[key].streams), owner.logs[key].writer.segment]
                    for key in keys[:limit]
                ]
            elif call.call == "move":
                path, name, target = call.arguments
                answer = await owner.give_up((path, name), target)
            else:
                await owner.drain()
            self._link.reply(ident, pack(answer))
        except DistributedLogError as error:
            self._link.reply_error(ident, error)
        except Exception as error:
            log.exception("the call %s", call.call)
            self._link.reply_error(ident, InternalError(f"{call.call}: {type(error).__name__}"))
        finally:
            self._calls -= 1


async def _open_producer(writer: LogWriter, request: ProduceOpen) -> OpenedProducer:
    """A name's new number, or the one that it had. A no is said only while the log is ours (H64)."""
    try:
        if request.number:
            await (
                writer.sequenced.check_owner()
            )  # who was paused knows less than was acknowledged since
            return writer.sequenced.resume_producer(request.producer, request.number)
        return await writer.sequenced.open_producer(request.producer)
    except DistributedLogError as error:
        if isinstance(error, ProducerFenced | ProducerForgotten):
            try:
                await writer.sequenced.check_owner()
            except DistributedLogError as lost:
                raise as_told(lost) from lost
        elif writer.over is not None:
            raise as_told(writer.over) from error
        raise


class Limits:
    """How much a second a whole proxy takes."""

    def __init__(self, records_per_s_max: int, bytes_per_s_max: int) -> None:
        self._records_max, self._bytes_max = records_per_s_max, bytes_per_s_max
        self._records, self._bytes = Rate(), Rate()

    def wait_s(self, records: int, size: int) -> float:
        """0: so much is taken, and charged; else when to come again."""
        if not (self._records_max or self._bytes_max):
            return 0.0
        now = trio.current_time()
        wait_s = max(
            self._records.wait_s(records, self._records_max, now),
            self._bytes.wait_s(size, self._bytes_max, now),
        )
        if wait_s <= 0:
            self._records.take(records, self._records_max)
            self._bytes.take(size, self._bytes_max)
        return wait_s
