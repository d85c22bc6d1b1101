"""One log that this proxy writes: its producers' streams, and what waits for room in its writer.

A frame goes to the log's writer in the call that received it. It waits in the inbox if that has no room, if
its txids decrease and the log's state must record that first, or if it must directly follow some record. A
task runs while the inbox is not empty.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

import trio

from ...log.format.dlsn import DLSN
from ...log.interfaces.error_boundary import error_boundary
from ...log.write.log_writer import LogWriter
from ...log.write.sequenced_batch import SequencedBatch
from ...runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    Moved,
    ProducerFenced,
    ProducerForgotten,
    TooBusy,
)
from ..protocol.proxy_messages import ProducedFrame
from .producer_stream import ProducerStream, as_told, held

OF_PRODUCERS = (ProducerFenced, ProducerForgotten, InvalidRequest)
"""What rests on knowing, or not knowing, a log's producers."""
RETRY_MS = 200
"""Who met a limit of the log comes again after this."""


class HostedLog:
    """See the module. Made by `Owner`."""

    def __init__(self, path: str, name: str, writer: LogWriter) -> None:
        self.path = path
        self.name = name
        self.incarnation = writer.position.incarnation
        self.writer = writer
        self.streams: dict[ProducerStream, None] = {}
        self.used_at = trio.current_time()
        """When a stream came last, or a frame had come at a look of the owner's."""
        self.used = False
        """Has a frame come since?"""
        self.leaving = False
        self._inbox: deque[tuple[ProducerStream, ProducedFrame]] = deque()
        self._waiting: dict[ProducerStream, list[int]] = {}
        """Of each stream that has frames there: the sequence of the first one, and the cost of all. What is
        there of any other stream is passed over."""
        self._waiting_cost = self._gone_cost = 0
        """Of those that wait, and of those to be passed over."""
        self._serving = trio.CancelScope()
        """What the first one in the inbox waits in, until what was taken before it is stored."""
        self._busy = False
        self._nursery: trio.Nursery | None = None

    @property
    def over(self) -> bool:
        """Does its writer take nothing more?"""
        return self.leaving or self.writer.over is not None

    def join(self, stream: ProducerStream, nursery: trio.Nursery) -> None:
        """A producer has come. ``nursery``: runs what waits for room."""
        self._nursery = nursery
        self.streams[stream] = None
        self.used_at = trio.current_time()

    def leave(self, stream: ProducerStream) -> None:
        """Its producer has gone: what of it waits here is dropped, what the writer has goes on."""
        self.streams.pop(stream, None)
        first = self._drop_of(stream)
        if first is not None:
            stream.refuse(Moved("its producer has gone"), first)

    def turn_away(self, stream: ProducerStream, error: DistributedLogError) -> None:
        """Its producer may do this no more: nothing of it is given to the writer from now on."""
        first = self._drop_of(stream)
        stream.refuse(error, stream.next if first is None else first)

    def take(self, stream: ProducerStream, frame: ProducedFrame) -> None:
        """A frame of one of its streams, which has accepted it."""
        self.used = True
        waits = self._inbox or frame.expect is not None
        if waits or not self._try(stream, frame):
            if stream.error is not None:
                return  # it was refused: by the log, or because that is over
            self._wait(stream, frame)
            if not self._busy and self._nursery is not None:
                self._busy = True
                self._nursery.start_soon(self._run_inbox)

    def resume(self, stream: ProducerStream, through: int) -> None:
        """What its producer sent before, from there on, is answered on this stream: now, or when it is known.

        Raises `ProducerFenced`, `ProducerForgotten`.
        """
        stored: list[SequencedBatch] = []
        tell: Callable[[SequencedBatch], None] = stored.append

        for frame in self.writer.sequenced.frames_from(
            stream.producer, through, lambda one: tell(one)
        ):
            stream.expect(frame.sequence, frame.records)
        tell = partial(_answer, stream)  # those that are on their way
        for frame in stored:
            tell(frame)

    async def make_readable(self) -> None:
        """Wait until readers see every record that is acknowledged."""
        await self.writer.pipeline.sink.make_readable()

    def publish(self) -> None:
        """What is acknowledged is to be readable, where no later entry says so."""
        self.writer.pipeline.sink.current.publish()

    def _drop_of(self, stream: ProducerStream) -> int | None:
        """Take what of a stream waits here out; the sequence of its first record."""
        waiting = self._waiting.pop(stream, None)
        if waiting is None:
            return None
        if self._inbox[0][0] is stream:
            self._serving.cancel()  # else it is stored after it was said that it is not
        first, cost = waiting
        self._waiting_cost -= cost
        self._gone_cost += cost
        if (
            self._gone_cost >= self._waiting_cost
        ):  # seldom: many may go at once, each of many frames
            self._inbox = deque(one for one in self._inbox if one[0] in self._waiting)
            self._gone_cost = 0
        return first

    def _wait(self, stream: ProducerStream, frame: ProducedFrame) -> None:
        cost = _cost(frame)
        self._inbox.append((stream, frame))
        self._waiting.setdefault(stream, [frame.first, 0])[1] += cost
        self._waiting_cost += cost

    def _pop(self) -> None:
        """The first one in the inbox waits no more."""
        stream, frame = self._inbox.popleft()
        waiting, cost = self._waiting.get(stream), _cost(frame)
        if waiting is None:
            self._gone_cost -= cost
            return
        waiting[0], waiting[1] = frame.first + len(frame.payloads), waiting[1] - cost
        self._waiting_cost -= cost
        if not waiting[1]:
            del self._waiting[stream]

    # --- the end ----------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Take nothing more, and tell nobody yet: what was given to the writer is still answered."""
        self.leaving = True
        self._drop(Moved("the log moves away"), withhold=True)

    def release(self, target: str) -> None:
        """It was given up: tell all who stay, and who should have it now ("": whoever is asked)."""
        for stream in list(self.streams):
            stream.release(Moved(f'log "{self.name}" has moved', target))
        self.streams.clear()

    def end(self, error: DistributedLogError) -> None:
        """Its writer is over: whoever is not told by what he sent is told now, or by `release`."""
        if self.leaving:
            return
        self._drop(as_told(error), withhold=False)
        self.streams.clear()

    def _drop(self, error: DistributedLogError, *, withhold: bool) -> None:
        waiting, self._waiting = self._waiting, {}
        self._waiting_cost = self._gone_cost = 0
        self._serving.cancel()
        self._inbox.clear()
        for stream in list(self.streams):
            first = waiting[stream][0] if stream in waiting else stream.next
            stream.refuse(error, first, withhold=withhold)

    # --- into the writer --------------------------------------------------------------------------

    def _try(self, stream: ProducerStream, frame: ProducedFrame) -> bool:
        """False: it was not taken, for lack of room or because it was refused."""
        try:
            taken = self.writer.sequenced.take_frame(
                frame.payloads,
                partial(_answer, stream),
                txids=None if frame.txids is None else list(frame.txids),
                record_flags=frame.record_flags,
                producer=stream.producer,
                sequence=frame.first,
            )
        except DistributedLogError as error:
            self._on_refused(stream, frame, error)
            return False
        return taken is not None

    def _on_refused(
        self, stream: ProducerStream, frame: ProducedFrame, error: DistributedLogError
    ) -> None:
        if self.writer.over is not None:
            stream.refuse(as_told(self.writer.over), frame.first)
            self.end(self.writer.over)
        elif stream.producer and isinstance(error, OF_PRODUCERS) and self._nursery is not None:
            stream.refuse(error, frame.first, withhold=True)
            self._nursery.start_soon(self._deny, stream, error)
        else:
            retry_ms = RETRY_MS if isinstance(error, TooBusy) else 0
            stream.refuse(error, frame.first, retry_ms=retry_ms)

    async def _deny(self, stream: ProducerStream, error: DistributedLogError) -> None:
        """Say no because of what the log knows of its producers: only while it is ours (H64)."""
        with error_boundary(f'the answer of log "{self.name}" to a producer', stream.release):
            try:
                await self.writer.sequenced.check_owner()
            except DistributedLogError as lost:
                error = as_told(lost)
            stream.release(error)

    async def _run_inbox(self) -> None:
        try:
            with error_boundary(f'the inbox of log "{self.name}"', self.writer.pipeline.fail):
                while self._inbox:
                    stream, frame = self._inbox[0]
                    if stream in self._waiting:
                        await self._serve(stream, frame)
                    else:
                        self._pop()
        finally:
            self._busy = False

    async def _serve(self, stream: ProducerStream, frame: ProducedFrame) -> None:
        """Give the first one in the inbox to the writer, or wait until that can be tried."""
        head = self._inbox[0]
        done = await self._serve_one(stream, frame)
        if done and self._inbox and self._inbox[0] is head:
            self._pop()

    async def _serve_one(self, stream: ProducerStream, frame: ProducedFrame) -> bool:
        """Is it done with?"""
        try:
            if stream.error is not None and frame.first >= stream.refused_from:
                await trio.lowlevel.checkpoint()
            elif frame.expect is not None:
                # What was taken before is stored first, and whatever comes after waits here.
                with trio.CancelScope() as self._serving:
                    await self.writer.sequenced.frame_after(
                        DLSN(*frame.expect),
                        frame.payloads,
                        txids=None if frame.txids is None else list(frame.txids),
                        record_flags=frame.record_flags,
                        producer=stream.producer,
                        sequence=frame.first,
                        on_done=partial(_answer_if_wanted, stream, frame.first),
                    )
            elif not self._try(stream, frame) and stream.error is None:
                size = sum(map(len, frame.payloads))
                await self.writer.sequenced.frame_room(len(frame.payloads), size, stream.producer)
                return False
        except DistributedLogError as error:
            self._on_refused(stream, frame, error)
        return True


def _cost(frame: ProducedFrame) -> int:
    """What a frame that waits takes, about."""
    return held(len(frame.payloads), frame.bytes)


def _answer(stream: ProducerStream, frame: SequencedBatch) -> None:
    stream.on_done(frame.first, frame.first_txid, frame.repeated, frame.error)


def _answer_if_wanted(stream: ProducerStream, first: int, frame: SequencedBatch) -> None:
    """Of a frame that waited for others: its stream may have gone meanwhile, and hears nothing of it."""
    if not 0 <= stream.refused_from <= first:
        _answer(stream, frame)
