"""Split the bytes of one connection into complete frames, in memory that all connections share (pure).

Bytes are received into one buffer per process. An incomplete frame moves to a separate buffer. That buffer
grows as bytes arrive, within a memory limit of the process (H36).
"""

from collections.abc import Callable, Iterator
from math import inf

from ..interfaces.errors import ProtocolError, TooBusy
from ..primitives.buffer_pool import BufferPool
from ..protocol.frames import ENVELOPE, ENVELOPE_BYTES, FRAME_BYTES_MAX, check_length, is_http

WINDOW_BYTES = 1024 * 1024
WINDOW_FIRST_BYTES = 128 * 1024
WINDOW_MIN_BYTES = 4 * 1024
WINDOW_DIALED_BYTES = 64 * 1024
"""How many bytes of the shared buffer a connection receives at a time.

A server handles everything that it received from one peer before it serves another one. One megabyte of the
smallest requests would take a second. So a peer's window starts small, and then changes with the time that
its requests take (`FrameReader.adapt_window`). A large reply of a server is received into its final buffer,
and only its first bytes pass through the shared one.
"""
SERVE_TIME_TARGET_S = 0.01
"""The requests of one receive should take at most this time."""
PARTIAL_FIRST_BYTES = 256 * 1024
"""The first size of the buffer for an incomplete frame. When it is full, the buffer becomes four times as
large."""
SLOW_AFTER_S = 0.1
SLOW_BYTES_PER_SECOND = 1024 * 1024
"""An incomplete frame that pauses for this long, or arrives at a lower rate, can lose its memory to other
frames."""
LARGE_BYTES = 2 * 1024 * 1024 + 64 * 1024
LARGE_BUFFERS = 12
"""A sequential reader has two or three pending replies, and about five that its caller has not consumed yet.
"""
FRAME_TIME_MIN_S = 5.0
FRAME_BYTES_PER_SECOND = 256 * 1024
"""A started frame must be complete within `FRAME_TIME_MIN_S` plus its length divided by this rate."""

Frame = tuple[int, int, int, int, int, memoryview, bool]
"""op, flags, status, ident, deadline_ms, body, owned. A body that is not owned is invalid after the next
frame."""


class ReceiveSpace:
    """Memory that all connections of a process share: a receive buffer, and a budget for incomplete frames.

    The first ENVELOPE_BYTES of the buffer are for the first part of an envelope that was received in two
    parts.
    """

    def __init__(self, receive_bytes: int, partial_bytes_max: int) -> None:
        self.buffer = memoryview(bytearray(ENVELOPE_BYTES + receive_bytes))
        self.partial_bytes = 0
        self.partial_bytes_max = partial_bytes_max
        self.large_buffers = BufferPool(LARGE_BYTES, LARGE_BUFFERS)
        """Buffers for large frames. A reference to a part of a frame keeps its buffer in use."""
        self.outgoing_bytes = 0
        """The bytes that wait to be sent, on all links."""
        self.partials: dict[FrameReader, None] = {}
        """The readers with an incomplete frame, without those of dialed servers."""

    def free_partial_space(self, size: int, for_reader: "FrameReader", now: float) -> bool:
        """Make space for more bytes of incomplete frames, and return whether there is enough.

        If necessary, the slowest frames lose their memory. Otherwise, a peer that announces large frames and
        sends little could block those that do send.

        Args:
            for_reader: The reader that needs the space. If it is the slowest itself, the result is False.
        """
        while self.partial_bytes + size > self.partial_bytes_max:
            slow = [(reader.partial_rate(now), index) for index, reader in enumerate(self.partials)]
            slow = [(rate, index) for rate, index in slow if rate < SLOW_BYTES_PER_SECOND]
            if not slow:
                return False
            slowest = list(self.partials)[min(slow)[1]]
            if slowest is for_reader:
                return False
            slowest.drop_partial_for_others()
        return True


class FrameReader:
    """The incoming half of one connection: bytes are received into `buffers`, `parse_received` yields frames.

    Args:
        frame_bytes_max: The first value of the attribute.
        on_partial_dropped: Called when another connection took the memory of an incomplete frame. Nothing
            more can be read then.
        dialed: Whether the peer is a dialed server. The frame lengths that a server announces are trusted,
            and memory of its replies is never taken away.
    """

    def __init__(
        self,
        receive_space: ReceiveSpace,
        peer: str,
        *,
        frame_bytes_max: int,
        on_partial_dropped: Callable[[], None],
        dialed: bool = False,
        now: float,
    ) -> None:
        self._receive_space = receive_space
        self._peer = peer
        self._on_partial_dropped = on_partial_dropped
        self._dialed = dialed
        window_bytes = WINDOW_DIALED_BYTES if dialed else WINDOW_FIRST_BYTES
        self._window = (receive_space.buffer[ENVELOPE_BYTES : ENVELOPE_BYTES + window_bytes],)
        self._cut_envelope = b""
        """The received part of the next frame's envelope, if it was cut."""
        self._partial: memoryview | None = None
        self._partial_received = 0
        self._partial_length = 0
        self._partial_started_at = 0.0
        self.buffers: tuple[memoryview, ...] = self._window
        """The buffers for the next receive. Each call of `parse_received` can change them."""
        self.frame_bytes_max = frame_bytes_max
        """Small before the peer is authenticated (H36), then FRAME_BYTES_MAX."""
        self.received_at = now
        """When bytes were last received. Infinite while reading is paused, so that the pause does not count
        as silence."""
        self.deadline = inf
        """When the frame that has begun must be complete."""
        self.is_http = False
        """Whether the frame was rejected because the peer speaks HTTP. The peer then receives an HTTP
        response."""

    def parse_received(self, count: int, now: float) -> Iterator[Frame]:
        """Yield each complete frame after a receive into `buffers`, in order.

        The caller must iterate at once, because other connections use the same buffer. If it stops before the
        end, it must not read from this connection again.

        Args:
            count: The number of received bytes.

        Raises:
            ProtocolError: A frame announces a length that is not allowed.
            TooBusy: The memory for incomplete frames is used up.
        """
        self.received_at = now
        buffer = self._receive_space.buffer
        start, end = ENVELOPE_BYTES, ENVELOPE_BYTES + count
        unpack_from = ENVELOPE.unpack_from
        partial = self._partial
        if partial is not None:
            length = self._partial_length
            missing = len(partial) - self._partial_received
            if count < missing or len(partial) < length:
                self._continue_partial(partial, count, now)
                return
            self.drop_partial()
            _, op, flags, status, ident, deadline_ms, _ = unpack_from(partial, 0)
            yield op, flags, status, ident, deadline_ms, partial[ENVELOPE_BYTES:length], True
            end -= missing
        elif self._cut_envelope:
            start -= len(self._cut_envelope)
            buffer[start:ENVELOPE_BYTES] = self._cut_envelope
            self._cut_envelope = b""
            self.deadline = inf
        while end - start >= ENVELOPE_BYTES:
            length, op, flags, status, ident, deadline_ms, _ = unpack_from(buffer, start)
            if length > self.frame_bytes_max or length < ENVELOPE_BYTES:
                self._refuse_length(length)
            stop = start + length
            if stop > end:
                self._begin_partial(length, buffer[start:end], now)
                return
            body = buffer[start + ENVELOPE_BYTES : stop]
            yield op, flags, status, ident, deadline_ms, body, False
            start = stop
        if start == end:
            return
        if end - start >= 4:  # an invalid length is rejected before the whole envelope arrives
            length = int.from_bytes(buffer[start : start + 4], "little")
            if length > self.frame_bytes_max or length < ENVELOPE_BYTES:
                self._refuse_length(length)
        self._cut_envelope = bytes(buffer[start:end])
        self.deadline = now + FRAME_TIME_MIN_S

    def adapt_window(self, count: int, duration_s: float) -> None:
        """Adapt the size of the receive window to the time that the frames of one receive took."""
        old_window = self._window[0]
        size = len(old_window)
        if duration_s > SERVE_TIME_TARGET_S and size >= 2 * WINDOW_MIN_BYTES:
            size //= 2
        elif 4 * count >= 3 * size and 4 * duration_s < SERVE_TIME_TARGET_S and size < WINDOW_BYTES:
            size *= 2
        else:
            return
        self._window = (self._receive_space.buffer[ENVELOPE_BYTES : ENVELOPE_BYTES + size],)
        if self.buffers[-1] is old_window:
            self.buffers = (*self.buffers[:-1], *self._window)

    def _refuse_length(self, length: int) -> None:
        self.is_http = is_http(length)
        check_length(length, self._peer)
        raise ProtocolError(
            f"{self._peer} announced a frame of {length} bytes before authentication;"
            f" the limit is {self.frame_bytes_max}"
        )

    # --- a frame that is not complete ---------------------------------------------------------------

    def _begin_partial(self, length: int, received: memoryview, now: float) -> None:
        self._partial_length = length
        self._partial_received = received_bytes = len(received)
        self._partial_started_at = now
        self._partial = memoryview(b"")
        first_bytes = FRAME_BYTES_MAX if self._dialed else PARTIAL_FIRST_BYTES
        if not self._dialed:
            self._receive_space.partials[self] = None
        size = first_bytes if received_bytes < first_bytes else 4 * received_bytes
        self._grow_partial(min(length, size), received, now)
        self.deadline = now + FRAME_TIME_MIN_S + length / FRAME_BYTES_PER_SECOND

    def _continue_partial(self, partial: memoryview, count: int, now: float) -> None:
        self._partial_received += count
        if self._partial_received == len(partial):
            self._grow_partial(min(self._partial_length, 4 * len(partial)), partial, now)
        else:
            self._set_receive_buffers(partial)

    def _grow_partial(self, size: int, content: memoryview, now: float) -> None:
        assert self._partial is not None
        receive_space, added_bytes = self._receive_space, size - len(self._partial)
        if (
            receive_space.partial_bytes + added_bytes > receive_space.partial_bytes_max
            and not receive_space.free_partial_space(added_bytes, self, now)
        ):
            raise TooBusy(
                f"incomplete frames use {receive_space.partial_bytes} of "
                f"{receive_space.partial_bytes_max} bytes here"
            )
        receive_space.partial_bytes += added_bytes
        new_partial = receive_space.large_buffers.acquire(size)
        new_partial[: len(content)] = content
        self._partial = new_partial
        self._set_receive_buffers(new_partial)

    def _set_receive_buffers(self, partial: memoryview) -> None:
        """Receive into the incomplete frame, and after it into the window if its buffer has the full size."""
        free_part = partial[self._partial_received :]
        is_full_size = len(partial) == self._partial_length
        self.buffers = (free_part, *self._window) if is_full_size else (free_part,)

    def partial_rate(self, now: float) -> float:
        """Return the bytes per second of the incomplete frame; infinite while it cannot be judged yet."""
        duration_s = now - self._partial_started_at
        if duration_s < SLOW_AFTER_S or self.received_at > now:
            return inf
        stands_still = now - self.received_at >= SLOW_AFTER_S
        return 0.0 if stands_still else self._partial_received / duration_s

    def drop_partial_for_others(self) -> None:
        """Free the memory of the incomplete frame for another connection."""
        self.drop_partial()
        self._on_partial_dropped()

    def drop_partial(self) -> None:
        """Free the memory of the incomplete frame, if there is one."""
        if self._partial is not None:
            self._receive_space.partial_bytes -= len(self._partial)
            self._receive_space.partials.pop(self, None)
            self._partial = None
            self.buffers = self._window
        self.deadline = inf
