"""What each application has linked last to a log: keys of their own beside the log's state (H14)."""

from dataclasses import dataclass

from ..metadata.interface import Metadata
from ..runtime.errors import LogNotFound
from ..runtime.frames import pack
from ..runtime.schema import NUMBER_MAX, fit, number, row, text
from .keys import incarnation_text, state_key, txn_key
from .state import decode_fields

FORMAT = 1


_NOTE = row(number(-NUMBER_MAX), text(4096), number(), number(), number())


@dataclass(frozen=True, slots=True)
class AppVersion:
    """The value of ``log/<id>/txn/<application>``: what it linked last."""

    version: int
    identity: str
    """Which run of the application counts these versions, such as a query's id; "" when none was given."""
    linked_ms: int
    first_segment: int
    """0 when nothing was in it."""
    last_segment: int

    def encode(self) -> bytes:
        """As a packed list with a format number."""
        return pack(
            [
                FORMAT,
                self.version,
                self.identity,
                self.linked_ms,
                self.first_segment,
                self.last_segment,
            ]
        )

    @classmethod
    def decode(cls, value: bytes) -> "AppVersion":
        """Raises `CorruptData`, or `UnsupportedFormat`."""
        return cls(
            *fit(decode_fields(value, FORMAT, 6, "a link's note")[:5], _NOTE, "a link's note")
        )


async def last_version(metadata: Metadata, log_id: int, app: str) -> AppVersion | None:
    """What an application has linked last to this log; None: nothing that is remembered.

    Raises `LogNotFound` where the log is gone.
    """
    found = await metadata.get(txn_key(log_id, app))
    if found is not None:
        return AppVersion.decode(found.value)
    if await metadata.get(state_key(log_id)) is None:
        raise LogNotFound(f"log {incarnation_text(log_id)} was deleted")
    return None
