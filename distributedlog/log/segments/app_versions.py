"""What each application has linked last to a log: keys of their own beside the log's state (H14)."""

from collections.abc import Iterable
from dataclasses import dataclass

import xxhash

from ...metadata.model.interface import Metadata
from ...runtime.interfaces.errors import LogNotFound
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import (
    NUMBER_MAX,
    check_stored,
    number,
    optional,
    row,
    text,
    verify_round_trip,
)
from ..model.log_keys import app_version_key, incarnation_text, state_key
from ..model.log_state import decode_fields

FORMAT = 1
FORMAT_CONTENT = 2
"""Of a note that says what was linked."""


@dataclass(frozen=True, slots=True)
class LinkContent:
    """What was linked, whatever its packing and order: tells a repetition from another write."""

    records: int
    digest: int
    """The sum, modulo 2^64, of ``xxh3_64(payload, seed=txid or 0)`` over the records."""

    @classmethod
    def of(cls, txids: Iterable[int], payloads: Iterable[Buffer]) -> "LinkContent":
        """Of these records; 0 for each txid that is given at the link."""
        digests = list(map(xxhash.xxh3_64_intdigest, payloads, txids))
        return cls(len(digests), sum(digests) % (1 << 64))

    def __add__(self, other: "LinkContent") -> "LinkContent":
        return LinkContent(self.records + other.records, (self.digest + other.digest) % (1 << 64))

    def __str__(self) -> str:
        return f"{self.records} records of digest {self.digest:016x}"


_APP_VERSION_FORM = row(number(-NUMBER_MAX), text(4096), number(), number(), number())
_CONTENT_FORM = optional(row(number(), number(0, (1 << 64) - 1), later=True))


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
    content: LinkContent | None = None
    """None: whoever linked did not say."""

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """As a packed list with a format number."""
        return pack(
            [
                FORMAT if self.content is None else FORMAT_CONTENT,
                self.version,
                self.identity,
                self.linked_ms,
                self.first_segment,
                self.last_segment,
                *([] if self.content is None else [[self.content.records, self.content.digest]]),
            ]
        )

    @classmethod
    def decode(cls, value: bytes) -> "AppVersion":
        """Raises `CorruptData`, or `UnsupportedFormat`."""
        fields = decode_fields(value, FORMAT_CONTENT, 6, "a link's note")
        note = check_stored(fields[:5], _APP_VERSION_FORM, "a link's note")
        content = (
            check_stored(fields[5], _CONTENT_FORM, "what was linked") if len(fields) > 5 else None
        )
        return cls(*(*note, None if content is None else LinkContent(*content)))


async def last_app_version(metadata: Metadata, log_id: int, app: str) -> AppVersion | None:
    """What an application has linked last to this log; None: nothing that is remembered.

    Raises `LogNotFound` where the log is gone.
    """
    stored_version = await metadata.get(app_version_key(log_id, app))
    if stored_version is not None:
        return AppVersion.decode(stored_version.value)
    if await metadata.get(state_key(log_id)) is None:
        raise LogNotFound(f"log {incarnation_text(log_id)} was deleted")
    return None
