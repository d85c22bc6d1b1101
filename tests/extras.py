"""What a test needs that the extra `test` does not bring: without it the test is skipped, by name.

Such a test has the marker ``extra`` (``spark`` where it runs on a session), and is of the tier `extras`.
"""

import importlib.util

SPARK = ("numpy", "pyarrow", "pyspark")
GATEWAY = ("hypercorn", "starlette")
INSTALL = "pip install '.[spark]'"
INSTALL_GATEWAY = "pip install '.[gateway]'"


def missing(folder: str = "") -> str:
    """Which package is not there, and what installs it; "" where all are.

    ``folder``: of the test; those of the gateway need its extra, all others that of Spark.
    """
    needs, install = (GATEWAY, INSTALL_GATEWAY) if folder == "gateway" else (SPARK, INSTALL)
    for name in needs:
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed: {install}"
    return ""
