"""How many examples a property or a sweep gets: few and the same each time, or many and drawn anew.

    python -m pytest -q --tier units,properties                                            what CI runs
    DLOG_EXAMPLES=20 python -m pytest -q --tier units,properties --hypothesis-profile random

What the second finds is put beside its property as an ``@example``, which the first then runs for ever.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytest

FACTOR = int(os.environ.get("DLOG_EXAMPLES", "1"))


def examples(count: int) -> int:
    """So many, times ``DLOG_EXAMPLES``."""
    return count * FACTOR


def few(cases: Iterable[Any], units: int) -> list[Any]:
    """Return the parameters of a sweep: so many units, the first ones; the others belong to `properties`."""
    rows = [case if isinstance(case, tuple) else (case,) for case in cases]
    rest = [pytest.param(*row, marks=pytest.mark.properties) for row in rows[units:]]
    return [*(pytest.param(*row) for row in rows[:units]), *rest]
