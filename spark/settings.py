"""The session settings that we recommend, and a session that has them."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def recommended_conf(*, record_bytes: int = 1024, local: bool = False) -> Mapping[str, str]:
    """For ``SparkSession.builder.config(map=…)``.

    ``record_bytes``: the size of a typical record; the sink is handed batches of some 4 MiB of them.
    ``local``: also what a session on one machine wants (no web interface, loopback); and this interpreter for
    Spark's workers, unless ``PYSPARK_PYTHON`` says another one. Else they take ``python3`` from PATH, which
    does not know this format where a virtual environment was not activated (``DATA_SOURCE_NOT_FOUND``).
    Spark reads that from the environment alone, so it is set there.
    """
    records = min(65_536, max(100, 4 * 1024 * 1024 // max(1, record_bytes)))
    found = {
        # Two TCP stalls a task less; together with the frozen heap of a worker 31 ms become 4.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(records),
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.streaming.metricsEnabled": "true",
        "spark.task.maxFailures": "4",
    }
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        found |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
        }
    return found


def session(
    master: str = "local[2]", *, record_bytes: int = 1024, conf: Mapping[str, str] | None = None
) -> "SparkSession":
    """A session of a program's own: quiet, with what `recommended_conf` says, and ``conf`` above that.

    Its workers run this interpreter, unless ``PYSPARK_PYTHON`` says another one.
    """
    from pyspark.sql import SparkSession

    from .source import DistributedLogSource

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        **recommended_conf(record_bytes=record_bytes, local=master.startswith("local")),
        **(conf or {}),
    }
    made = SparkSession.builder.master(master).config(map=settings).getOrCreate()
    made.dataSource.register(
        DistributedLogSource
    )  # an editable install hides it from Spark's search
    return made
