"""The columns of a log in Arrow, and the choice of some of them.

This module loads neither pyarrow nor numpy, so that clients without the extra ``arrow`` can load it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...runtime.declarations.options import quoted
from ...runtime.interfaces.errors import InvalidRequest, UnsupportedFormat

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_COLUMNS = ("segment", "entry", "slot", "sequence_id", "txid", "payload", "timestamp")
"""The columns of a reader without a choice, in this order. `docs/guides/arrow.md` describes them."""
OPTIONAL_COLUMNS = ("log", "dlsn", "key", "headers")
"""Columns that are built only if the caller names them, because few programs need them and they cost more
than all others."""
TXID_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds per unit of transaction IDs that are times, for the column ``timestamp``."""


@dataclass(frozen=True, slots=True)
class Projection:
    """The requested columns, in order."""

    names: tuple[str, ...]
    arrow: "pa.Schema"
    """The exact schema of the batches, including nullability."""
    txid_unit: str | None = None
    """The unit of transaction IDs, if ``timestamp`` shows them. None if it shows log time."""

    @property
    def dlsn_as_text(self) -> bool:
        """Whether ``dlsn`` is requested as a string."""
        import pyarrow as pa

        return bool(pa.types.is_string(self.arrow.field("dlsn").type))


def choose_columns(names: Sequence[str] | None) -> Projection:
    """Return the projection of these columns, or of `DEFAULT_COLUMNS`.

    Raises:
        UnsupportedFormat: The packages of the extra ``arrow`` are not installed.
        InvalidRequest: A name is unknown or repeated, or there is none.
    """
    types = _arrow_types()
    chosen = DEFAULT_COLUMNS if names is None else tuple(names)
    if isinstance(names, str) or not chosen or any(name not in types for name in chosen):
        raise InvalidRequest(
            f"columns must be a sequence of names among {', '.join(types)}, not {quoted(names)}"
        )
    if len({*chosen}) < len(chosen):
        raise InvalidRequest(f"columns must be different, not {quoted(names)}")
    import pyarrow as pa

    return Projection(chosen, pa.schema([(name, types[name]) for name in chosen]))


def _arrow_types() -> dict[str, Any]:
    try:
        import numpy  # noqa: F401
        import pyarrow as pa
    except ImportError as error:
        raise UnsupportedFormat(
            f"Arrow tables need the package {error.name}, which is not installed. "
            "Run: pip install 'distributedlog-py[arrow]'"
        ) from None
    return {
        "segment": pa.int64(),
        "entry": pa.int64(),
        "slot": pa.int32(),
        "sequence_id": pa.int64(),
        "txid": pa.int64(),
        "payload": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "log": pa.string(),
        "dlsn": pa.string(),
        "key": pa.binary(),
        "headers": pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())])),
    }
