"""Memory that is used again: never while anybody can see it."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.runtime.primitives.buffer_pool import BufferPool
from tests.examples import examples

BYTES = 64


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "drop", "narrow"]), st.integers(1, 80)), max_size=60
    )
)
def test_what_is_looked_at_is_nobody_elses(steps: list[tuple[str, int]]) -> None:
    memory = BufferPool(BYTES, 3)
    held: list[tuple[memoryview, bytes]] = []
    for number, (step, size) in enumerate(steps):
        if step == "take":
            view = memory.acquire(size)
            assert len(view) == size
            view[:] = bytes([number]) * size
            held.append((view, bytes(view)))
        elif held and step == "drop":
            del held[size % len(held)]
        elif held:
            view, content = held.pop(size % len(held))  # a part of it pins all of it
            held.append((view[size % len(view) :], content[size % len(content) :]))
            del view
        assert all(view == content for view, content in held)


def test_what_nobody_looks_at_is_used_again() -> None:
    memory = BufferPool(BYTES, 2)
    first = memory.acquire(50)
    first[:] = b"a" * 50
    assert bytes(memory.acquire(50)) != b"a" * 50
    del first
    views = [memory.acquire(40), memory.acquire(40)]
    assert b"a" * 40 in [bytes(view) for view in views]


def test_of_those_that_are_free_the_one_that_was_taken_last_is_used() -> None:
    """Its bytes are in the core's caches: going through all that are kept, none ever is."""
    memory = BufferPool(BYTES, 4)
    views = [memory.acquire(BYTES) for _ in range(4)]
    for number, view in enumerate(views):
        view[:] = bytes([number]) * BYTES
    del view, views[1:3]

    assert bytes(memory.acquire(BYTES)) == bytes([2]) * BYTES
    assert bytes(memory.acquire(BYTES)) == bytes([2]) * BYTES


def test_no_more_is_kept_than_was_said() -> None:
    memory = BufferPool(BYTES, 2)
    views = [memory.acquire(BYTES) for _ in range(5)]
    views.clear()
    assert len(memory._buffers) == 2
    assert memory._buffers[0] is not memory._buffers[1]


def test_who_keeps_a_few_more_than_are_kept_finds_most_of_them_again() -> None:
    """A reader that had 13 replies in memory, of which 12 are kept, got a fresh one each time."""
    memory = BufferPool(BYTES, 6)
    fresh = 0
    held: deque[memoryview] = deque()
    for _ in range(600):
        if len(held) == 7:
            held.popleft()  # the oldest first, as a reader takes them
        view = memory.acquire(BYTES)
        fresh += bytes(view) == bytes(BYTES)
        view[:] = b"u" * BYTES
        held.append(view)

    assert fresh < 600 // 4


def test_what_somebody_keeps_for_ever_gives_its_place_up() -> None:
    memory = BufferPool(BYTES, 3)
    kept = [memory.acquire(BYTES) for _ in range(3)]
    for _ in range(3):
        assert bytes(memory.acquire(BYTES)) == bytes(BYTES)
    memory.acquire(BYTES)[:] = b"u" * BYTES  # it has a place now

    assert bytes(memory.acquire(BYTES)) == b"u" * BYTES
    assert all(bytes(view) == bytes(BYTES) for view in kept)


def test_what_was_taken_last_is_not_what_gives_its_place_up() -> None:
    memory = BufferPool(BYTES, 3)
    held = [memory.acquire(BYTES) for _ in range(3)]
    del held[0]
    last = memory.acquire(BYTES)
    for _ in range(3):
        memory.acquire(BYTES)  # nothing is free: the third time one gives its place up
    last[:] = b"u" * BYTES
    del last

    taken = [memory.acquire(BYTES) for _ in range(3)]
    assert b"u" * BYTES in [bytes(view) for view in taken]


@pytest.mark.parametrize(("size", "reused"), [(BYTES // 16, True), (BYTES // 16 - 1, False)])
def test_what_is_small_takes_no_buffer(size: int, reused: bool) -> None:
    memory = BufferPool(BYTES, 2)
    memory.acquire(BYTES)[:] = b"u" * BYTES

    assert (bytes(memory.acquire(size)) == b"u" * size) == reused
