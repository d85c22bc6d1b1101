"""Whole frames out of bytes, without a connection."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributedlog.runtime.interfaces.errors import ProtocolError, TooBusy
from distributedlog.runtime.net.frame_reader import (
    FRAME_BYTES_PER_SECOND,
    FRAME_TIME_MIN_S,
    PARTIAL_FIRST_BYTES,
    SERVE_TIME_TARGET_S,
    WINDOW_BYTES,
    WINDOW_MIN_BYTES,
    FrameReader,
    ReceiveSpace,
)
from distributedlog.runtime.protocol.frames import ENVELOPE_BYTES, FRAME_BYTES_MAX, envelope

Seen = tuple[int, int, int, int, int, bytes]


class Incoming:
    """A reader of 100 bytes at a time, fed by hand."""

    def __init__(
        self,
        *,
        space: ReceiveSpace | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        dialled: bool = False,
    ) -> None:
        self.space = space or ReceiveSpace(100, 1 << 30)
        self.given_up = False
        self.took: Callable[[], float] = float
        """Seconds to serve what was received."""
        self.taken = 0
        """Bytes of the last receive but one."""
        self.sizes: list[int] = []
        self.seen: list[Seen] = []
        self.owned: list[memoryview] = []
        self.reader = FrameReader(
            self.space,
            "peer:1",
            frame_bytes_max=frame_bytes_max,
            on_partial_dropped=self._on_given_up,
            dialed=dialled,
            now=0.0,
        )

    def _on_given_up(self) -> None:
        self.given_up = True

    def feed(self, content: bytes, now: float = 0.0) -> None:
        """As a connection does: what the buffers take at a time."""
        while content:
            taken = 0
            for buffer in self.reader.buffers:
                part = content[taken : taken + len(buffer)]
                buffer[: len(part)] = part
                taken += len(part)
            content = content[taken:]
            self.taken = taken if content else self.taken
            self.sizes.append(taken)
            for op, flags, status, ident, deadline_ms, body, owned in self.reader.parse_received(
                taken, now
            ):
                self.seen.append((op, flags, status, ident, deadline_ms, bytes(body)))
                if owned:
                    self.owned.append(body)
            self.reader.adapt_window(taken, self.took())


@given(
    sizes=st.lists(st.integers(0, 60_000), max_size=12),
    times=st.lists(st.sampled_from([0.0, 0.005, 1.0]), min_size=1, max_size=40),
)
def test_what_takes_long_is_received_in_smaller_pieces_and_gives_the_same_frames(
    sizes: list[int], times: list[float]
) -> None:
    incoming, often = Incoming(space=ReceiveSpace(1024 * 1024, 1 << 30)), itertools.cycle(times)
    incoming.took = lambda: next(often)

    incoming.feed(b"".join(frame(size, ident) for ident, size in enumerate(sizes)))

    assert incoming.seen == [seen(size, ident) for ident, size in enumerate(sizes)]


def test_the_smallest_requests_are_served_some_at_a_time() -> None:
    """A megabyte of them is a second of the loop: what is received at a time follows what it takes."""
    incoming = Incoming(space=ReceiveSpace(1024 * 1024, 1 << 30))
    incoming.took = lambda: 20e-6 * incoming.taken / ENVELOPE_BYTES
    incoming.feed(envelope(100, 0) * 100_000)
    assert incoming.took() <= 0.01
    assert incoming.taken >= 4096
    assert max(incoming.sizes) <= 128 * 1024

    incoming.took = lambda: 0.0
    incoming.feed(envelope(100, 0) * 200_000)
    assert incoming.taken > 512 * 1024


def test_a_window_that_was_nearly_filled_grows() -> None:
    """TLS fills none to its last byte: what is received at a time is ciphertext, longer than what it says."""
    incoming = Incoming(space=ReceiveSpace(1024 * 1024, 1 << 30))
    (window,) = incoming.reader.buffers
    incoming.reader.adapt_window(len(window) - 1000, 0.0)
    assert len(incoming.reader.buffers[0]) == 2 * len(window)
    incoming.reader.adapt_window(len(window), 0.0)
    assert len(incoming.reader.buffers[0]) == 2 * len(window)


def test_a_window_grows_and_shrinks_within_bounds() -> None:
    """Where there is time to spare alone, never beyond the buffer, and never to next to nothing."""
    incoming = Incoming(space=ReceiveSpace(2 * WINDOW_BYTES, 1 << 30))

    def served(took_s: float) -> int:
        incoming.reader.adapt_window(len(incoming.reader.buffers[0]), took_s)
        return len(incoming.reader.buffers[0])

    (window,) = incoming.reader.buffers
    assert served(SERVE_TIME_TARGET_S / 2) == len(window)
    assert max(served(0.0) for _ in range(20)) == WINDOW_BYTES
    assert min(served(2 * SERVE_TIME_TARGET_S) for _ in range(40)) == WINDOW_MIN_BYTES


def frame(size: int, ident: int = 0) -> bytes:
    head = envelope(100, size, ident=ident, flags=ident % 7, status=ident % 5, deadline_ms=ident)
    return head + bytes([ident % 256]) * size


def seen(size: int, ident: int) -> Seen:
    return 100, ident % 7, ident % 5, ident, ident, bytes([ident % 256]) * size


@given(
    sizes=st.lists(st.integers(0, 700), max_size=12),
    cuts=st.lists(st.integers(1, 300), max_size=40),
    dialled=st.booleans(),
)
def test_any_cutting_of_the_bytes_gives_the_same_frames(
    sizes: list[int], cuts: list[int], dialled: bool
) -> None:
    """H36. Another connection uses the same buffer in between."""
    incoming, neighbour = Incoming(dialled=dialled), b"\xaa" * 100
    content = b"".join(frame(size, ident) for ident, size in enumerate(sizes))
    for cut in cuts:
        incoming.feed(content[:cut])
        content = content[cut:]
        incoming.space.buffer[:100] = neighbour
    incoming.feed(content)

    assert incoming.seen == [seen(size, ident) for ident, size in enumerate(sizes)]
    assert incoming.space.partial_bytes == 0
    assert not incoming.space.partials
    assert incoming.reader.deadline == float("inf")


@pytest.mark.parametrize("dialled", [False, True])
@pytest.mark.parametrize("size", [PARTIAL_FIRST_BYTES, 3_000_000, FRAME_BYTES_MAX - ENVELOPE_BYTES])
def test_a_large_frame_is_received_where_it_stays(size: int, dialled: bool) -> None:
    """H17: its body is the taker's own, and the frame after it is none of it."""
    incoming = Incoming(dialled=dialled)

    incoming.feed(frame(size, 7) + frame(3, 8))

    assert incoming.seen == [seen(size, 7), seen(3, 8)]
    assert [bytes(body) for body in incoming.owned] == [bytes([7]) * size]
    assert incoming.space.partial_bytes == 0


def test_what_is_announced_takes_memory_only_as_it_comes() -> None:
    incoming = Incoming()

    incoming.feed(frame(4_000_000)[:1000])
    assert incoming.space.partial_bytes == PARTIAL_FIRST_BYTES

    incoming.feed(bytes(PARTIAL_FIRST_BYTES))
    assert incoming.space.partial_bytes == 4 * PARTIAL_FIRST_BYTES


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x00\x00\x40",  # 1 GiB
        b"\x17\x00\x00\x00",  # less than an envelope
        b"\xff" * 64,
        b"GET / HTTP/1.1\r\n\r\n",
        frame(2000),  # too long for a stranger
    ],
)
@pytest.mark.parametrize("cut", [1, 4, 5, 100])
def test_a_length_that_no_frame_may_have_is_refused_at_its_fourth_byte(
    garbage: bytes, cut: int
) -> None:
    """What came before it was a frame all the same."""
    incoming = Incoming(frame_bytes_max=1000)
    incoming.feed(frame(5, 1))

    fourth = (3 // cut + 1) * cut
    for start in range(0, fourth - cut, cut):
        incoming.feed(garbage[start : start + cut])

    with pytest.raises(ProtocolError, match="peer:1 announced a frame of"):
        incoming.feed(garbage[fourth - cut : fourth])

    assert incoming.seen == [seen(5, 1)]
    assert incoming.reader.is_http == garbage.startswith(b"GET")
    assert incoming.space.partial_bytes == 0


def test_the_bound_may_be_lifted_between_two_frames_of_one_receive() -> None:
    """It is lifted by the last frame of a greeting, after which the peer may say more at once."""
    incoming = Incoming(space=ReceiveSpace(4000, 1 << 30), frame_bytes_max=100)
    content = frame(5, 1) + frame(2000, 2)
    incoming.reader.buffers[0][: len(content)] = content

    frames = incoming.reader.parse_received(len(content), 0.0)
    assert next(frames)[3] == 1
    incoming.reader.frame_bytes_max = FRAME_BYTES_MAX
    assert next(frames)[3] == 2


def test_a_frame_that_has_begun_has_a_deadline() -> None:
    incoming = Incoming()
    incoming.feed(frame(50), now=3.0)
    assert incoming.reader.deadline == float("inf")

    incoming.feed(frame(5000)[:10], now=4.0)
    assert incoming.reader.deadline == 4.0 + FRAME_TIME_MIN_S

    incoming.feed(frame(5000)[10:200], now=5.0)
    due = 5.0 + FRAME_TIME_MIN_S + (5000 + ENVELOPE_BYTES) / FRAME_BYTES_PER_SECOND
    assert incoming.reader.deadline == due

    incoming.feed(frame(5000)[200:], now=6.0)
    assert incoming.reader.deadline == float("inf")
    assert incoming.reader.received_at == 6.0


def test_the_frame_that_hardly_moves_gives_its_room_to_the_one_that_does() -> None:
    """H36. One that was given up says so to its connection, and is not asked again."""
    space = ReceiveSpace(100, 2 * PARTIAL_FIRST_BYTES)
    slow, slower, quick = (Incoming(space=space) for _ in range(3))
    slow.feed(frame(400_000)[:150], now=0.0)
    slower.feed(frame(400_000)[:150], now=0.0)
    slow.feed(bytes(100), now=0.95)

    quick.feed(frame(200_000)[:150], now=1.0)

    assert (slow.given_up, slower.given_up, quick.given_up) == (False, True, False)
    assert list(space.partials) == [slow.reader, quick.reader]
    assert space.partial_bytes <= space.partial_bytes_max


def test_who_comes_when_all_move_is_told_to_come_again() -> None:
    space = ReceiveSpace(100, PARTIAL_FIRST_BYTES)
    first, second = Incoming(space=space), Incoming(space=space)
    first.feed(frame(400_000)[:150], now=1.0)

    with pytest.raises(TooBusy, match="incomplete frames use 262144 of 262144 bytes here"):
        second.feed(frame(400_000)[:150], now=1.05)

    assert not first.given_up
    second.reader.drop_partial()
    assert list(space.partials) == [first.reader]


def test_a_connection_that_is_not_read_does_not_lose_its_frame() -> None:
    """That it stands still is not its peer's delay."""
    space = ReceiveSpace(100, PARTIAL_FIRST_BYTES)
    held, other = Incoming(space=space), Incoming(space=space)
    held.feed(frame(400_000)[:150], now=0.0)
    held.reader.received_at = float("inf")

    with pytest.raises(TooBusy):
        other.feed(frame(400_000)[:150], now=9.0)

    assert not held.given_up


def test_the_memory_of_a_reply_is_not_taken() -> None:
    space = ReceiveSpace(100, 400_024)
    reply, other = Incoming(space=space, dialled=True), Incoming(space=space)
    reply.feed(frame(400_000)[:150], now=0.0)

    with pytest.raises(TooBusy):
        other.feed(frame(400_000)[:150], now=9.0)

    assert not reply.given_up


def test_the_slowest_of_all_makes_no_room_for_itself() -> None:
    """It is told so, once, and what it held is given back once."""
    space = ReceiveSpace(100, PARTIAL_FIRST_BYTES)
    slow = Incoming(space=space)
    slow.feed(frame(400_000)[:150], now=0.0)

    with pytest.raises(TooBusy, match="incomplete frames use 262144 of 262144 bytes here"):
        slow.feed(bytes(PARTIAL_FIRST_BYTES), now=9.0)

    assert not slow.given_up
    slow.reader.drop_partial()
    assert space.partial_bytes == 0
