"""docs/spark.md says what the code does."""

import subprocess
import sys
from pathlib import Path

from distributedlog.cluster.processes import environment
from distributedlog.spark.tables import renewed

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "spark.md"


def test_the_option_tables_are_those_of_the_code() -> None:
    """When this fails: ``python -m distributedlog.spark.tables docs/spark.md``."""
    text = DOCUMENT.read_text()

    assert renewed(text) == text


def test_importing_it_loads_neither_servers_nor_spark() -> None:
    """Executors need no lmdb; the module that Spark looks for must import fast."""
    program = (
        "import sys, distributedlog.spark, distributedlog.spark.client, distributedlog.spark.feed\n"
        "print([name for name in ('lmdb', 'pyspark', 'rich', 'click') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=True,
    )

    assert done.stdout.strip() == "[]"
