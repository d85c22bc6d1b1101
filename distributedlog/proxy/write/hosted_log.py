"""One log that this proxy writes: its producers' streams, and the frames that wait for its writer.

A frame is passed to the log's writer in the call that received it. It waits in the inbox in three cases:
the writer has no capacity, its transaction IDs decrease and the log's state must record that first, or it
must directly follow a given record. A task runs while the inbox is not empty.
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
from .producer_stream import ProducerStream, client_error, memory_bytes

PRODUCER_ERRORS = (ProducerFenced, ProducerForgotten, InvalidRequest)
"""Errors that depend on the producers that a log has stored."""
RETRY_MS = 200
"""A client that reached a limit of the log retries after this time."""


class HostedLog:
    """One log that this proxy writes. `LogManager` creates it."""

    def __init__(self, path: str, name: str, writer: LogWriter) -> None:
        self.path = path
        self.name = name
        self.incarnation = writer.position.incarnation
        self.writer = writer
        self.streams: dict[ProducerStream, None] = {}
        self.used_at = trio.current_time()
        """When a stream was last added, or a sweep of the `LogManager` found new frames."""
        self.has_new_frames = False
        """Whether a frame has arrived since the last sweep."""
        self.is_releasing = False
        self._inbox: deque[tuple[ProducerStream, ProducedFrame]] = deque()
        self._waiting_streams: dict[ProducerStream, list[int]] = {}
        """Streams with frames in the inbox: the sequence of their first frame, and the cost of all.

        Frames of other streams in the inbox are skipped.
        """
        self._waiting_cost = self._dropped_cost = 0
        """The cost of waiting frames, and of frames to be skipped."""
        self._head_scope = trio.CancelScope()
        """Cancels the wait of the first frame in the inbox until earlier frames are stored."""
        self._inbox_runs = False
        self._nursery: trio.Nursery | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the writer accepts no more frames."""
        return self.is_releasing or self.writer.end_error is not None

    def add_stream(self, stream: ProducerStream, nursery: trio.Nursery) -> None:
        """Add a producer's stream. ``nursery`` runs the task of the inbox."""
        self._nursery = nursery
        self.streams[stream] = None
        self.used_at = trio.current_time()

    def remove_stream(self, stream: ProducerStream) -> None:
        """Remove a producer's stream. Its waiting frames are dropped; the writer completes the others."""
        self.streams.pop(stream, None)
        first = self._drop_waiting(stream)
        if first is not None:
            stream.refuse(Moved("its producer has disconnected"), first)

    def revoke_stream(self, stream: ProducerStream, error: DistributedLogError) -> None:
        """End a stream whose right was revoked. No further frame of it is passed to the writer."""
        first = self._drop_waiting(stream)
        stream.refuse(error, stream.next_sequence if first is None else first)

    def append(self, stream: ProducerStream, frame: ProducedFrame) -> None:
        """Append a frame that one of the streams has accepted."""
        self.has_new_frames = True
        must_wait = self._inbox or frame.expect is not None
        if must_wait or not self._try_append(stream, frame):
            if stream.error is not None:
                return  # rejected, because of the log or because the writer has ended
            self._enqueue(stream, frame)
            if not self._inbox_runs and self._nursery is not None:
                self._inbox_runs = True
                self._nursery.start_soon(self._run_inbox)

    def answer_earlier(self, stream: ProducerStream, acked_through: int) -> None:
        """Answer the producer's earlier frames, from ``acked_through``, on this stream when they are
        stored.

        Raises:
            ProducerFenced: Another client has opened the producer.
            ProducerForgotten: The log no longer has the producer.
        """
        stored: list[SequencedBatch] = []
        report: Callable[[SequencedBatch], None] = stored.append

        for earlier_batch in self.writer.sequenced_writer.batches_from(
            stream.producer, acked_through, lambda batch_done: report(batch_done)
        ):
            stream.expect_answer(earlier_batch.sequence, earlier_batch.records)
        report = partial(_report_outcome, stream)  # for frames in flight
        for earlier_batch in stored:
            report(earlier_batch)

    async def make_readable(self) -> None:
        """Wait until readers can read every acknowledged record."""
        await self.writer.send_queue.sink.make_readable()

    def publish(self) -> None:
        """Make acknowledged records readable, unless a later entry does so."""
        self.writer.send_queue.sink.current_target.publish()

    def _drop_waiting(self, stream: ProducerStream) -> int | None:
        """Drop the waiting frames of a stream and return the sequence of their first record."""
        waiting_entry = self._waiting_streams.pop(stream, None)
        if waiting_entry is None:
            return None
        if self._inbox[0][0] is stream:
            # otherwise the frame could be stored after its refusal was sent
            self._head_scope.cancel()
        first_sequence, cost = waiting_entry
        self._waiting_cost -= cost
        self._dropped_cost += cost
        if (
            self._dropped_cost >= self._waiting_cost
        ):  # rebuild the inbox rarely: many streams with many frames may end together
            self._inbox = deque(item for item in self._inbox if item[0] in self._waiting_streams)
            self._dropped_cost = 0
        return first_sequence

    def _enqueue(self, stream: ProducerStream, frame: ProducedFrame) -> None:
        cost = _cost(frame)
        self._inbox.append((stream, frame))
        self._waiting_streams.setdefault(stream, [frame.first_sequence, 0])[1] += cost
        self._waiting_cost += cost

    def _pop_inbox(self) -> None:
        """Remove the first frame of the inbox."""
        stream, frame = self._inbox.popleft()
        waiting_entry, cost = self._waiting_streams.get(stream), _cost(frame)
        if waiting_entry is None:
            self._dropped_cost -= cost
            return
        waiting_entry[0], waiting_entry[1] = (
            frame.first_sequence + len(frame.payloads),
            waiting_entry[1] - cost,
        )
        self._waiting_cost -= cost
        if not waiting_entry[1]:
            del self._waiting_streams[stream]

    # --- the end ----------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        """Accept no more frames.

        Streams are not notified yet, so that frames in the writer are still answered.
        """
        self.is_releasing = True
        self._refuse_all(Moved("the log is moving to another proxy"), withhold=True)

    def notify_released(self, target: str) -> None:
        """Notify all streams that the log was released.

        Args:
            target: The ID of the proxy that should have the log next, or "".
        """
        for stream in list(self.streams):
            stream.report_withheld(Moved(f'log "{self.name}" has moved', target))
        self.streams.clear()

    def fail(self, error: DistributedLogError) -> None:
        """Refuse the frames of all streams after the writer has failed.

        During a release, `notify_released` does this.
        """
        if self.is_releasing:
            return
        self._refuse_all(client_error(error), withhold=False)
        self.streams.clear()

    def _refuse_all(self, error: DistributedLogError, *, withhold: bool) -> None:
        waiting_streams, self._waiting_streams = self._waiting_streams, {}
        self._waiting_cost = self._dropped_cost = 0
        self._head_scope.cancel()
        self._inbox.clear()
        for stream in list(self.streams):
            first = (
                waiting_streams[stream][0] if stream in waiting_streams else stream.next_sequence
            )
            stream.refuse(error, first, withhold=withhold)

    # --- into the writer --------------------------------------------------------------------------

    def _try_append(self, stream: ProducerStream, frame: ProducedFrame) -> bool:
        """Pass a frame to the writer. Return False if there is no capacity or the frame was rejected."""
        try:
            appended = self.writer.sequenced_writer.append_batch(
                frame.payloads,
                partial(_report_outcome, stream),
                txids=None if frame.txids is None else list(frame.txids),
                record_flags=frame.record_flags,
                producer=stream.producer,
                sequence=frame.first_sequence,
            )
        except DistributedLogError as error:
            self._on_refused(stream, frame, error)
            return False
        return appended is not None

    def _on_refused(
        self, stream: ProducerStream, frame: ProducedFrame, error: DistributedLogError
    ) -> None:
        if self.writer.end_error is not None:
            stream.refuse(client_error(self.writer.end_error), frame.first_sequence)
            self.fail(self.writer.end_error)
        elif stream.producer and isinstance(error, PRODUCER_ERRORS) and self._nursery is not None:
            stream.refuse(error, frame.first_sequence, withhold=True)
            self._nursery.start_soon(self._deny_if_owner, stream, error)
        else:
            retry_ms = RETRY_MS if isinstance(error, TooBusy) else 0
            stream.refuse(error, frame.first_sequence, retry_ms=retry_ms)

    async def _deny_if_owner(self, stream: ProducerStream, error: DistributedLogError) -> None:
        """Send an error that depends on stored producers, if this proxy still owns the log (H64)."""
        with error_boundary(
            f'the answer of log "{self.name}" to a producer', stream.report_withheld
        ):
            try:
                await self.writer.sequenced_writer.check_owner()
            except DistributedLogError as owner_error:
                error = client_error(owner_error)
            stream.report_withheld(error)

    async def _run_inbox(self) -> None:
        try:
            with error_boundary(f'the inbox of log "{self.name}"', self.writer.send_queue.fail):
                while self._inbox:
                    stream, frame = self._inbox[0]
                    if stream in self._waiting_streams:
                        await self._serve_head(stream, frame)
                    else:
                        self._pop_inbox()
        finally:
            self._inbox_runs = False

    async def _serve_head(self, stream: ProducerStream, frame: ProducedFrame) -> None:
        """Pass the first frame of the inbox to the writer, or wait until that can be tried again."""
        head_item = self._inbox[0]
        is_served = await self._try_serve(stream, frame)
        if is_served and self._inbox and self._inbox[0] is head_item:
            self._pop_inbox()

    async def _try_serve(self, stream: ProducerStream, frame: ProducedFrame) -> bool:
        """Return whether the frame is processed."""
        try:
            if stream.error is not None and frame.first_sequence >= stream.refused_from:
                await trio.lowlevel.checkpoint()
            elif frame.expect is not None:
                # Earlier frames are stored first, and later ones wait in the inbox.
                with trio.CancelScope() as self._head_scope:
                    await self.writer.sequenced_writer.append_if_last(
                        DLSN(*frame.expect),
                        frame.payloads,
                        txids=None if frame.txids is None else list(frame.txids),
                        record_flags=frame.record_flags,
                        producer=stream.producer,
                        sequence=frame.first_sequence,
                        on_done=partial(_report_unless_refused, stream, frame.first_sequence),
                    )
            elif not self._try_append(stream, frame) and stream.error is None:
                size = sum(map(len, frame.payloads))
                await self.writer.sequenced_writer.wait_capacity(
                    len(frame.payloads), size, stream.producer
                )
                return False
        except DistributedLogError as error:
            self._on_refused(stream, frame, error)
        return True


def _cost(frame: ProducedFrame) -> int:
    """Return the approximate memory of a waiting frame."""
    return memory_bytes(len(frame.payloads), frame.bytes)


def _report_outcome(stream: ProducerStream, batch: SequencedBatch) -> None:
    stream.on_done(batch.first_dlsn, batch.first_txid, batch.is_duplicate, batch.error)


def _report_unless_refused(
    stream: ProducerStream, first_sequence: int, batch: SequencedBatch
) -> None:
    """Report the outcome of a frame that waited for others, unless its stream has ended in the meantime."""
    if not 0 <= stream.refused_from <= first_sequence:
        _report_outcome(stream, batch)
