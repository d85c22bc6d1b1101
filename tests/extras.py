"""What a test needs that the extra `test` does not bring: without it the test is skipped, by name.

Such a test has the marker ``extra`` (``spark`` where it runs on a session), so that CI can run what was
skipped for want of it, and nothing else: ``pytest -m "extra or spark"``.
"""

import importlib.util

SPARK = ("numpy", "pyarrow", "pyspark")
GATEWAY = ("hypercorn", "starlette")
INSTALL = "pip install '.[spark]'"


def missing() -> str:
    """Which package of the extra `spark` is not there, and what installs it; "" where all are."""
    for name in SPARK:
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed: {INSTALL}"
    return ""
