"""Column expressions over what the source gives, computed in the JVM."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


def dlsn_text() -> "Column":
    """``1.12.3`` from the columns segment, entry, slot; a sixth of the cost of a column ``dlsn string``."""
    from pyspark.sql import functions as f

    return f.concat_ws(".", "segment", "entry", "slot")
