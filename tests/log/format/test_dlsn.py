"""The text forms and the order of positions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.log.format.dlsn import DLSN
from distributedlog.runtime.interfaces.errors import InvalidRequest
from tests.examples import examples

positions = st.builds(
    DLSN, st.integers(1, 10**10 - 1), st.integers(0, 10**15 - 1), st.integers(0, 10**7 - 1)
)


def test_the_text_forms_of_the_product_page() -> None:
    """Str, sort_key, parse takes both."""
    dlsn = DLSN(1, 12, 3)

    assert str(dlsn) == "1.12.3"
    assert dlsn.sort_key() == "0000000001.000000000000012.0000003"
    assert DLSN.parse("1.12.3") == DLSN.parse(dlsn.sort_key()) == dlsn
    assert DLSN(1, 0, 0) == DLSN.INITIAL
    assert DLSN(1, 2, 3).next() == DLSN(1, 2, 4)
    assert repr(dlsn) == "DLSN(1, 12, 3)"


@settings(max_examples=examples(100))
@given(positions, positions)
def test_text_sorts_as_positions_do(one: DLSN, other: DLSN) -> None:
    """G1: DLSNs are ordered, also as text."""
    assert (one < other) == (one.sort_key() < other.sort_key())
    assert DLSN.parse(str(one)) == DLSN.parse(one.sort_key()) == one


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "1.2.3.4", "0.0.0", "1.-1.0", "a.b.c", "1.2.3 ", "１.2.3"]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="not a DLSN"):
        DLSN.parse(text)
