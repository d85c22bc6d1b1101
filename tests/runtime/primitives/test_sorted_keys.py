"""Keys in order."""

from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.runtime.primitives.sorted_keys import SortedKeys
from tests.examples import examples

KEYS = st.binary(max_size=2)


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(KEYS, st.booleans()), max_size=60), KEYS, KEYS, st.integers(1, 9))
def test_keys_are_in_order_whatever_was_put_in_and_taken_out(
    changes: list[tuple[bytes, bool]], start: bytes, end: bytes, limit: int
) -> None:
    keys, expected = SortedKeys(), set[bytes]()
    for key, wanted in changes:
        if wanted and key not in expected:
            keys.add(key)
            expected.add(key)
        elif not wanted and key in expected:
            keys.remove(key)
            expected.remove(key)

    assert list(keys) == sorted(expected)
    assert len(keys) == len(expected)
    assert (
        keys.between(start, end, limit) == sorted(k for k in expected if start <= k < end)[:limit]
    )
    assert keys.after(start, limit) == sorted(k for k in expected if k > start)[:limit]
