"""The last version that each application has linked to a log, in one key per application (H14)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

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
from ..format.record_headers import KeyedContent
from ..model.log_keys import app_version_key, incarnation_text, state_key
from ..model.log_state import decode_fields

FORMAT = 1
"""The format of a record whose application gave no content. It has the first five fields."""
FORMAT_CONTENT = 2
"""The format of a record with the content of the link, as a sixth field."""


@dataclass(frozen=True, slots=True)
class LinkContent:
    """The linked records, regardless of their packing and order.

    Distinguishes a repeated link from a different one.
    """

    records: int
    digest: int
    """The sum, modulo 2^64, of ``xxh3_64(payload, seed=txid or 0)`` over the records.

    For a record with a key or headers, the payload is replaced by the 8 bytes of ``xxh3_64(payload)`` and the
    columns of key and headers of that record alone.
    """

    @classmethod
    def of(cls, txids: Iterable[int], payloads: Iterable[Buffer]) -> "LinkContent":
        """Return the content of these records. The transaction ID is 0 if the link assigns it."""
        digests = list(map(xxhash.xxh3_64_intdigest, payloads, txids))
        return cls(len(digests), sum(digests) % (1 << 64))

    @classmethod
    def of_contents(cls, txids: Iterable[int], contents: Iterable[Any]) -> "LinkContent":
        """Return the content of records as `of`. Some payloads are a `KeyedContent`."""
        return cls.of(
            txids,
            (
                content.digest_input() if type(content) is KeyedContent else content
                for content in contents
            ),
        )

    def __add__(self, other: "LinkContent") -> "LinkContent":
        return LinkContent(self.records + other.records, (self.digest + other.digest) % (1 << 64))

    def __str__(self) -> str:
        return f"{self.records} records of digest {self.digest:016x}"


_APP_VERSION_FORM = row(number(-NUMBER_MAX), text(4096), number(), number(), number())
_CONTENT_FORM = optional(row(number(), number(0, (1 << 64) - 1), later=True))


@dataclass(frozen=True, slots=True)
class AppVersion:
    """The value of ``log/<id>/txn/<application>``: the application's last link."""

    version: int
    identity: str
    """The run of the application that counts these versions, for example a query ID. Empty if none was
    given."""
    linked_ms: int
    first_segment: int
    """0 if no record was linked."""
    last_segment: int
    content: LinkContent | None = None
    """None if the application gave no content."""

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """Encode it as a packed list with a format number."""
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
        """Decode a stored value of either format. Errors name it "a link record".

        Raises:
            CorruptData: The value is damaged.
            UnsupportedFormat: A newer program wrote the value.
        """
        fields = decode_fields(value, FORMAT_CONTENT, 6, "a link record")
        base_fields = check_stored(fields[:5], _APP_VERSION_FORM, "a link record")
        content = (
            check_stored(fields[5], _CONTENT_FORM, "a link content") if len(fields) > 5 else None
        )
        return cls(*(*base_fields, None if content is None else LinkContent(*content)))


async def last_app_version(metadata: Metadata, log_id: int, app: str) -> AppVersion | None:
    """Return the last version that an application has linked to this log. None if none is stored.

    Raises:
        LogNotFound: The log was deleted.
    """
    stored_version = await metadata.get(app_version_key(log_id, app))
    if stored_version is not None:
        return AppVersion.decode(stored_version.value)
    if await metadata.get(state_key(log_id)) is None:
        raise LogNotFound(f"log {incarnation_text(log_id)} was deleted")
    return None
