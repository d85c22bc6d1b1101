"""Whole frames out of the bytes of one connection, and the memory that all connections share for it (pure).

Received bytes land in one buffer a process; a frame that is not complete moves to a buffer of its own that
grows as its bytes arrive, out of the process' budget (H36).
"""

from collections.abc import Callable, Iterator
from math import inf

from ..interfaces.errors import ProtocolError, TooBusy
from ..primitives.buffer_pool import BufferPool
from ..protocol.frames import ENVELOPE, ENVELOPE_BYTES, FRAME_BYTES_MAX, check_length, is_http

WINDOW_BYTES = 1024 * 1024
WINDOW_FIRST_BYTES = 128 * 1024
WINDOW_MIN_BYTES = 4 * 1024
WINDOW_DIALLED_BYTES = 64 * 1024
"""How much of the process' buffer a connection reads into at a time. What a server receives is served before
anybody else is: a megabyte of the smallest requests would be a second. So a peer's window begins small, and
grows and shrinks with the time that what was in it took (`served`). A server's large reply is received where
it will stay: only its first bytes pass through that buffer."""
SERVE_TIME_TARGET_S = 0.01
"""What was received at a time should take no longer."""
PARTIAL_FIRST_BYTES = 256 * 1024
"""A frame not yet complete gets this much at first, and four times as much when that is full."""
SLOW_AFTER_S = 0.1
SLOW_BYTES_PER_SECOND = 1024 * 1024
"""An unfinished frame that stands still for so long, or comes so slowly, gives its memory up to others."""
LARGE_BYTES = 2 * 1024 * 1024 + 64 * 1024
LARGE_BUFFERS = 12
"""A reader in sequence has two or three replies under way and about five not yet taken by its caller."""
FRAME_TIME_MIN_S = 5.0
FRAME_BYTES_PER_SECOND = 256 * 1024
"""A started frame must be complete within FRAME_SECONDS plus its length at this rate."""

Frame = tuple[int, int, int, int, int, memoryview, bool]
"""op, flags, status, ident, deadline_ms, body, owned: a body that is not owned is gone with the next one."""


class ReceiveSpace:
    """What the connections of a process share: one buffer, one budget for incomplete frames.

    The first ENVELOPE_BYTES of the buffer are room for the head of a frame whose envelope was cut.
    """

    def __init__(self, receive_bytes: int, partial_bytes_max: int) -> None:
        self.buffer = memoryview(bytearray(ENVELOPE_BYTES + receive_bytes))
        self.partial_bytes = 0
        self.partial_bytes_max = partial_bytes_max
        self.large_buffers = BufferPool(LARGE_BYTES, LARGE_BUFFERS)
        """Where large frames are received; who keeps a part of one keeps its buffer."""
        self.outgoing_bytes = 0
        """What waits to be sent, on all links."""
        self.partials: dict[FrameReader, None] = {}
        """Those of peers, not of servers that we dialled, with a frame that is not complete."""

    def free_partial_space(self, size: int, for_reader: "FrameReader", now: float) -> bool:
        """Is there room for so much more? Frames that hardly move give theirs up, the slowest first.

        Who announces much and sends little would hold the room of those who send: it is theirs first.
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
    """The incoming half of one connection: bytes go into `buffers`, frames come out of `received`.

    ``dialled``: the peer is a server of ours. It is trusted with the lengths that it announces, and keeps the
    memory of a reply that we asked for. ``on_given_up`` is told that another connection took the memory of
    the frame that was not complete: nothing can be read any more.
    """

    def __init__(
        self,
        receive_space: ReceiveSpace,
        peer: str,
        *,
        frame_bytes_max: int,
        on_partial_dropped: Callable[[], None],
        dialled: bool = False,
        now: float,
    ) -> None:
        self._receive_space = receive_space
        self._peer = peer
        self._on_partial_dropped = on_partial_dropped
        self._dialled = dialled
        window_bytes = WINDOW_DIALLED_BYTES if dialled else WINDOW_FIRST_BYTES
        self._window = (receive_space.buffer[ENVELOPE_BYTES : ENVELOPE_BYTES + window_bytes],)
        self._cut_envelope = b""
        """The cut envelope of the next frame, if any."""
        self._partial: memoryview | None = None
        self._partial_received = 0
        self._partial_length = 0
        self._partial_started_at = 0.0
        self.buffers: tuple[memoryview, ...] = self._window
        """What to receive into next; changes with each call of `received`."""
        self.frame_bytes_max = frame_bytes_max
        """Small before the peer is known (H36), then FRAME_BYTES_MAX."""
        self.received_at = now
        """When something came last; infinite while nothing is read, which is not the peer's delay."""
        self.deadline = inf
        """When the frame that has begun must be complete."""
        self.is_http = False
        """Was it refused for speaking HTTP? Then it is told so in its own tongue."""

    def parse_received(self, count: int, now: float) -> Iterator[Frame]:
        """``count`` bytes have come into `buffers`: give each frame that is whole, in order.

        To be gone through at once, for other connections use the same buffer; whoever stops before the end
        reads no further. Raises `ProtocolError` for a length that no frame may have, and `TooBusy` where the
        memory for a frame that is not complete is used up.
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
        if end - start >= 4:  # garbage is told from its first four bytes
            length = int.from_bytes(buffer[start : start + 4], "little")
            if length > self.frame_bytes_max or length < ENVELOPE_BYTES:
                self._refuse_length(length)
        self._cut_envelope = bytes(buffer[start:end])
        self.deadline = now + FRAME_TIME_MIN_S

    def adapt_window(self, count: int, duration_s: float) -> None:
        """``count`` bytes were received, and it took so long to serve the frames that were in them."""
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
            f"{self._peer} announced a frame of {length} bytes before it said who it is;"
            f" allowed are {self.frame_bytes_max}"
        )

    # --- a frame that is not complete ---------------------------------------------------------------

    def _begin_partial(self, length: int, received: memoryview, now: float) -> None:
        self._partial_length = length
        self._partial_received = received_bytes = len(received)
        self._partial_started_at = now
        self._partial = memoryview(b"")
        first_bytes = FRAME_BYTES_MAX if self._dialled else PARTIAL_FIRST_BYTES
        if not self._dialled:
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
                f"incomplete frames hold {receive_space.partial_bytes} of "
                f"{receive_space.partial_bytes_max} bytes here"
            )
        receive_space.partial_bytes += added_bytes
        new_partial = receive_space.large_buffers.acquire(size)
        new_partial[: len(content)] = content
        self._partial = new_partial
        self._set_receive_buffers(new_partial)

    def _set_receive_buffers(self, partial: memoryview) -> None:
        """Receive into the incomplete frame and, where that has all its room, after it."""
        free_part = partial[self._partial_received :]
        is_full_size = len(partial) == self._partial_length
        self.buffers = (free_part, *self._window) if is_full_size else (free_part,)

    def partial_rate(self, now: float) -> float:
        """Bytes a second of the frame that is not complete; infinite while that says nothing."""
        duration_s = now - self._partial_started_at
        if duration_s < SLOW_AFTER_S or self.received_at > now:
            return inf
        stands_still = now - self.received_at >= SLOW_AFTER_S
        return 0.0 if stands_still else self._partial_received / duration_s

    def drop_partial_for_others(self) -> None:
        """The memory of the frame that is not complete is needed elsewhere."""
        self.drop_partial()
        self._on_partial_dropped()

    def drop_partial(self) -> None:
        """Give the memory of the frame that is not complete back, if there is one."""
        if self._partial is not None:
            self._receive_space.partial_bytes -= len(self._partial)
            self._receive_space.partials.pop(self, None)
            self._partial = None
            self.buffers = self._window
        self.deadline = inf
