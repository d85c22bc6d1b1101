"""The manifest of an archive: its Parquet files, the records in each, and their digests (pure).

An archive consists of Parquet files and a manifest for each of its states. The newest manifest applies, and
files that it does not list are leftovers. `export_log` creates an archive, and `append_history` extends it.
Records have
no gaps: they are those from ``first_sequence_id`` up to ``end_sequence_id`` (exclusive) of one incarnation.

The digest of records is the sum, modulo 2^64, over record k (its index in the archive, from 0) of

    xxh3_64(payload, seed = k * POSITION_FACTOR + txid * TXID_FACTOR mod 2^64)

For a record with a key or headers, the payload is replaced by `KeyedContent.digest_input`, which includes
these. The digest covers order, transaction IDs and contents. Digests of parts of an archive can be computed
separately and added. The digest depends neither on the division into files, nor on the log.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any

import xxhash

from ...log.format.dlsn import DLSN
from ...runtime.interfaces.errors import CorruptData, ForeignData, InvalidRequest, UnsupportedFormat

FORMAT = 1
FORMAT_KEYED = 2
"""The format of a manifest with records that have keys or headers. Version 0.1 refuses it, and never reads or
extends such an archive without them."""
KIND = "distributedlog archive"
POSITION_FACTOR = 0x9E3779B97F4A7C15
TXID_FACTOR = 0xC2B2AE3D27D4EB4F
DIGEST_MODULUS = 2**64
"""Modulus of digests and seeds."""


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """One Parquet file: consecutive records, in order."""

    name: str
    """Without a directory."""
    records: int
    payload_bytes: int
    first: DLSN
    last: DLSN
    """Position of the last record."""
    first_sequence_id: int
    digest: int
    """Digest of the records, by their index in the whole archive."""
    file_bytes: int
    file_xxh3: int
    """xxh3_64 of the whole file."""
    keyed_records: int = 0
    """The number of records that have a key or headers."""

    @property
    def end_sequence_id(self) -> int:
        """The sequence ID after the last record."""
        return self.first_sequence_id + self.records

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, with digests as 16 hex digits and positions as text."""
        values = asdict(self)
        if not self.keyed_records:
            del values["keyed_records"]
        return {name: _to_json_value(name, value) for name, value in values.items()}

    @classmethod
    def from_json(cls, value: Any) -> "ArchiveFile":
        """Parse a JSON object. Raises `CorruptData`."""
        archive_file: ArchiveFile = _from_json_values(cls, value)
        if (
            archive_file.name != archive_file.name.rpartition("/")[2]
            or not archive_file.name
            or archive_file.records < 1
        ):
            raise CorruptData(
                f"invalid file entry {archive_file.name!r:.80} with {archive_file.records} records"
            )
        return archive_file


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of an archive. ``end`` is the next position to be read from the log."""

    id: str
    """16 hex digits, generated with the archive. Imports use it to be exactly once."""
    generation: int
    """From 1 on, increased by one with each append."""
    log: str
    incarnation: str
    first: DLSN
    end: DLSN
    first_sequence_id: int
    end_sequence_id: int
    files: tuple[ArchiveFile, ...] = ()

    @property
    def records(self) -> int:
        """The number of records in all files."""
        return sum(archive_file.records for archive_file in self.files)

    @property
    def payload_bytes(self) -> int:
        """The payload bytes in all files."""
        return sum(archive_file.payload_bytes for archive_file in self.files)

    @property
    def format(self) -> int:
        """The format of the manifest object."""
        return FORMAT_KEYED if self.keyed_records else FORMAT

    @property
    def keyed_records(self) -> int:
        """The number of records that have a key or headers."""
        return sum(archive_file.keyed_records for archive_file in self.files)

    @property
    def file_bytes(self) -> int:
        """The size of all files."""
        return sum(archive_file.file_bytes for archive_file in self.files)

    @property
    def digest(self) -> str:
        """The digest of all records, as 16 hex digits."""
        return f"{sum(archive_file.digest for archive_file in self.files) % DIGEST_MODULUS:016x}"

    def grown(self, files: Iterable[ArchiveFile], end: DLSN | None = None) -> "Manifest":
        """Return the next generation, with more files in order.

        ``end`` is the new end, by default directly after the last record. Raises `InvalidRequest` if the
        files do not follow the present ones.
        """
        files = tuple(files)
        last = files[-1].last.next() if files else self.end
        grown_manifest = replace(
            self,
            generation=self.generation + 1,
            files=self.files + files,
            end=last if end is None else end,
            end_sequence_id=files[-1].end_sequence_id if files else self.end_sequence_id,
        )
        grown_manifest.check(InvalidRequest)
        return grown_manifest

    def check(self, error: type[CorruptData] | type[InvalidRequest]) -> None:
        """Check that the files contain the records from first to end, once and in order. Raises ``error``."""
        next_sequence_id, next_position = self.first_sequence_id, self.first
        for file in self.files:
            if file.first_sequence_id != next_sequence_id or file.first < next_position:
                raise error(
                    f"file {file.name} begins with record {file.first_sequence_id} at {file.first}, expected "
                    f"record {next_sequence_id} from {next_position} on: records are missing, repeated or "
                    "out of order"
                )
            next_sequence_id, next_position = file.end_sequence_id, file.last.next()
        if (
            next_sequence_id != self.end_sequence_id
            or next_position > self.end
            or self.first > self.end
        ):
            raise error(
                f"the manifest has records {self.first_sequence_id} to {self.end_sequence_id} up to "
                f"{self.end}, but the files end before record {next_sequence_id} at {next_position}"
            )
        if len({file.name for file in self.files}) != len(self.files):
            raise error("a file is listed twice")

    def check_listing(self, sizes: Mapping[str, int], where: str, *, no_others: bool) -> None:
        """Check that all files exist with the right size, and that there are no other files if ``no_others``.

        Raises:
            CorruptData: A file is missing or has another size.
            ForeignData: There is another file.
        """
        for file in self.files:
            if file.name not in sizes:
                raise CorruptData(f"{where}/{file.name} is missing")
            if sizes[file.name] != file.file_bytes:
                raise CorruptData(
                    f"{where}/{file.name} has {sizes[file.name]} bytes, the manifest has {file.file_bytes}"
                )
        extra = sorted(set(sizes) - {file.name for file in self.files})
        if no_others and extra:
            raise ForeignData(
                f"{where}/{extra[0]} is not in the manifest and does not belong to the archive"
            )

    def encode(self) -> bytes:
        """Return the text of the manifest object, including its own digest."""
        body = {
            "format": self.format,
            "kind": KIND,
            **{
                manifest_field.name: _to_json_value(
                    manifest_field.name, getattr(self, manifest_field.name)
                )
                for manifest_field in fields(self)
                if manifest_field.name != "files"
            },
            "records": self.records,
            "payload_bytes": self.payload_bytes,
            "digest": self.digest,
            "files": [manifest_field.to_json() for manifest_field in self.files],
        }
        return json.dumps({**body, "xxh3": _digest_of(body)}, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, text: bytes, where: str) -> "Manifest":
        """Parse the text of a manifest object.

        Raises:
            CorruptData: It is damaged.
            ForeignData: Another program wrote it.
            UnsupportedFormat: A newer version wrote it.
        """
        try:
            body = json.loads(text)
        except ValueError as error:
            raise CorruptData(f"{where} is damaged: {error}") from None
        except RecursionError:
            raise CorruptData(f"{where} is damaged: it is nested too deeply") from None
        if not isinstance(body, dict) or body.get("kind") != KIND:
            raise ForeignData(f"{where} is not the manifest of a {KIND}")
        stated_digest = body.pop("xxh3", None)
        try:
            is_sound = stated_digest == _digest_of(body)
        except (ValueError, RecursionError):
            is_sound = False
        if not is_sound:
            raise CorruptData(f"{where} is damaged: its digest is wrong")
        if body.get("format") not in (FORMAT, FORMAT_KEYED):
            raise UnsupportedFormat(
                f"{where} has format {body.get('format')!r:.40}, this version reads formats {FORMAT} to "
                f"{FORMAT_KEYED}: a newer version wrote it"
            )
        try:
            files = [ArchiveFile.from_json(one) for one in body["files"]]
            manifest: Manifest = _from_json_values(cls, {**body, "files": tuple(files)})
            manifest.check(CorruptData)
        except (CorruptData, KeyError, TypeError, OverflowError) as error:
            raise CorruptData(f"{where} is inconsistent: {error!s:.400}") from None
        sums = (manifest.format, manifest.records, manifest.payload_bytes, manifest.digest)
        if sums != tuple(map(body.get, ("format", "records", "payload_bytes", "digest"))):
            raise CorruptData(f"{where} is inconsistent: its sums differ from those of its files")
        return manifest


_POSITIONS = {"first", "last", "end"}
_DIGESTS = {"digest", "file_xxh3"}


def _to_json_value(name: str, value: Any) -> Any:
    if name in _POSITIONS:
        return str(DLSN(*value))
    return f"{value:016x}" if name in _DIGESTS else value


def _from_json_values(cls: type[Any], value: Any) -> Any:
    """Return a dataclass from its JSON object, ignoring other keys. Raises `CorruptData`."""
    arguments: dict[str, Any] = {}
    try:
        for field in fields(cls):
            if field.name not in value and field.default is not MISSING:
                continue
            raw = value[field.name]
            if field.name in _POSITIONS:
                raw = DLSN.parse(raw)
            elif field.name in _DIGESTS:
                raw = int(raw, 16)
            elif field.type in (int, str) and type(raw) is not field.type:
                raise ValueError(
                    f"{field.name} must be {field.type.__name__}, got {type(raw).__name__}"
                )
            arguments[field.name] = raw
    except (KeyError, TypeError, ValueError, InvalidRequest) as error:
        raise CorruptData(f"{cls.__name__}: {error}") from None
    return cls(**arguments)


def _digest_of(body: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(
        json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    )
