"""How many examples a property gets: few and the same each time, or many and drawn anew.

    python -m pytest -q --tier units,properties                                            what CI runs
    DLOG_EXAMPLES=20 python -m pytest -q --tier units,properties --hypothesis-profile random

What the second finds is put beside its property as an ``@example``, which the first then runs for ever.
"""

import os

FACTOR = int(os.environ.get("DLOG_EXAMPLES", "1"))


def examples(count: int) -> int:
    """So many, times ``DLOG_EXAMPLES``."""
    return count * FACTOR
