"""What a test needs that the extra `test` does not bring: without it the test is skipped, by name.

Such a test has the marker ``extra`` (``spark`` where it runs on a session), and is of the tier `extras`.
"""

import importlib.util

SPARK = ("numpy", "pyarrow", "pyspark")
ARROW = ("numpy", "pyarrow")
GATEWAY = ("hypercorn", "starlette")
RELEASE = ("kubernetes_validate", "twine", "yaml")
INSTALL = "pip install '.[spark]'"
INSTALL_ARROW = "pip install '.[arrow]'"
INSTALL_GATEWAY = "pip install '.[gateway]'"
INSTALL_RELEASE = "pip install '.[release]'"
OTHER_FOLDERS = {
    "arrow": (ARROW, INSTALL_ARROW),
    "gateway": (GATEWAY, INSTALL_GATEWAY),
    "kubernetes": (RELEASE, INSTALL_RELEASE),
    "packaging": (RELEASE, INSTALL_RELEASE),
}
"""Folders of tests that need another extra than Spark."""


def missing(folder: str = "") -> str:
    """Which package is not there, and what installs it; "" where all are.

    ``folder``: of the test. Those of `OTHER_FOLDERS` need that extra, all others that of Spark.
    """
    needs, install = OTHER_FOLDERS.get(folder, (SPARK, INSTALL))
    for name in needs:
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed: {install}"
    return ""
