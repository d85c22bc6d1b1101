"""The columns of a log in Spark, and the user's schema as the projection.

Spark does not prune columns of a Python source: columns that the query does not use are built anyway.
Therefore a schema (``.schema(...)``) selects any subset of the columns below, with exactly these types, and
only those are built.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...log.arrow.arrow_columns import Projection
from ...runtime.interfaces.errors import InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

COLUMNS = {
    "log": "string",
    "segment": "bigint",
    "entry": "bigint",
    "slot": "int",
    "sequence_id": "bigint",
    "txid": "bigint",
    "payload": "binary",
    "timestamp": "timestamp",
}
"""Columns of every frame, in this order. `docs/guides/spark-read.md` describes them."""
DLSN_TYPES = ("string", "struct<segment:bigint,entry:bigint,slot:int>")
"""Types of the column ``dlsn``, which exists only if the schema contains it.

As text it costs six times as much as all other columns together.
"""

KEYED_COLUMNS = {"key": "binary", "headers": "array<struct<name:binary,value:binary>>"}
"""Columns that are built only if the schema names them, or with the option ``includeHeaders``.

``key`` is null for a record without a key, and ``headers`` is empty for a record without headers."""


def ddl(*, include_headers: bool = False) -> str:
    """Return the columns of a frame without a user schema, with the option ``includeHeaders`` or not."""
    columns = COLUMNS | KEYED_COLUMNS if include_headers else COLUMNS
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def projection(
    fields: Sequence[tuple[str, str]], arrow: "pa.Schema", txid_unit: str | None
) -> Projection:
    """Check the requested columns, as (name, Spark type). Raises `InvalidRequest`."""
    legal = ddl()
    for name, kind in fields:
        if name == "dlsn":
            allowed_types: tuple[str, ...] = DLSN_TYPES
        elif name in COLUMNS:
            allowed_types = (COLUMNS[name],)
        elif name in KEYED_COLUMNS:
            allowed_types = (KEYED_COLUMNS[name],)
        else:
            raise InvalidRequest(
                f'unknown column "{name}": a log has {legal}, dlsn {" or ".join(DLSN_TYPES)}, '
                f"{', '.join(' '.join(column) for column in KEYED_COLUMNS.items())}"
            )
        if kind not in allowed_types:
            raise InvalidRequest(
                f'column "{name}" must be {" or ".join(allowed_types)}, not {kind}'
            )
    return Projection(tuple(name for name, _ in fields), arrow, txid_unit)


def projection_of_schema(schema: Any, txid_unit: str | None) -> Projection:
    """As `projection`, from Spark's ``StructType``."""
    from pyspark.sql.pandas.types import to_arrow_schema

    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    return projection(fields, to_arrow_schema(schema, timezone="UTC"), txid_unit)


def dlsn_text() -> "Column":
    """Return ``1.12.3`` from the columns segment, entry and slot.

    This costs a sixth of a column ``dlsn string``.
    """
    from pyspark.sql import functions as f

    return f.concat_ws(".", "segment", "entry", "slot")
