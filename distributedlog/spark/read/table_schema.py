"""The columns of a log as Spark sees it, and the user's schema as the projection.

Spark prunes no columns of a Python source: what is not asked for by ``.schema(...)`` is built all the same.
So a schema names any subset of the columns below, with exactly these types, and only those are built.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
"""Of the column ``dlsn``, which comes only where the schema asks for it: as text it costs six times the
rest together."""


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns that are asked for, in order. Travels to the tasks."""

    names: tuple[str, ...]
    arrow: "pa.Schema"
    """Exactly what Spark expects of the first batch, nullability included."""
    txid_unit: str | None
    """What a txid counts, where ``timestamp`` is made of it; None: it is the log time."""

    @property
    def dlsn_as_text(self) -> bool:
        """Is ``dlsn`` asked for as a string?"""
        import pyarrow as pa

        return bool(pa.types.is_string(self.arrow.field("dlsn").type))


def ddl() -> str:
    """What a frame without a schema of the user's has."""
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


def projection(
    fields: Sequence[tuple[str, str]], arrow: "pa.Schema", txid_unit: str | None
) -> Projection:
    """Check the columns that are asked for, as (name, Spark type). Raises `InvalidRequest`."""
    legal = ddl()
    for name, kind in fields:
        if name == "dlsn":
            allowed_types: tuple[str, ...] = DLSN_TYPES
        elif name in COLUMNS:
            allowed_types = (COLUMNS[name],)
        else:
            raise InvalidRequest(
                f'unknown column "{name}": a log has {legal}, and dlsn {" or ".join(DLSN_TYPES)}'
            )
        if kind not in allowed_types:
            raise InvalidRequest(f'column "{name}" is {" or ".join(allowed_types)}, not {kind}')
    return Projection(tuple(name for name, _ in fields), arrow, txid_unit)


def projection_of_schema(schema: Any, txid_unit: str | None) -> Projection:
    """The same from Spark's ``StructType``."""
    from pyspark.sql.pandas.types import to_arrow_schema

    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    return projection(fields, to_arrow_schema(schema, timezone="UTC"), txid_unit)


def dlsn_text() -> "Column":
    """``1.12.3`` from the columns segment, entry, slot; a sixth of the cost of a column ``dlsn string``."""
    from pyspark.sql import functions as f

    return f.concat_ws(".", "segment", "entry", "slot")
