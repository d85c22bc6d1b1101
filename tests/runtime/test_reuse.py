"""Memory that is used again: never while anybody can see it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.runtime.reuse import ReusedMemory
from tests.examples import examples

BYTES = 64


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "drop", "narrow"]), st.integers(1, 80)), max_size=60
    )
)
def test_what_is_looked_at_is_nobody_elses(steps: list[tuple[str, int]]) -> None:
    memory = ReusedMemory(BYTES, 3)
    held: list[tuple[memoryview, bytes]] = []
    for number, (step, size) in enumerate(steps):
        if step == "take":
            view = memory.take(size)
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
    memory = ReusedMemory(BYTES, 2)
    first = memory.take(50)
    first[:] = b"a" * 50
    assert bytes(memory.take(50)) != b"a" * 50
    del first
    assert b"a" * 40 in [bytes(memory.take(40)), bytes(memory.take(40))]


def test_no_more_is_kept_than_was_said() -> None:
    memory = ReusedMemory(BYTES, 2)
    views = [memory.take(BYTES) for _ in range(5)]
    views.clear()
    assert len(memory._kept) == 2
    assert memory._kept[0] is not memory._kept[1]
