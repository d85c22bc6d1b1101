"""The manifest of an archive: which Parquet files hold which part of a log, and how that is proved (pure).

An archive is a place with Parquet files and a manifest for each state that it had, of which the newest says
what counts: a file that it does not name is a leftover. `export_log` makes one, `append_history` lets one
grow. Records have no gap: they run from ``first_sequence_id`` up to ``end_sequence_id`` of one incarnation.

The digest of records is the sum, modulo 2^64, over record k from 0 (its place in the archive) of

    xxh3_64(payload, seed = k * PLACE + txid * TXID mod 2^64)

so it tells order, txids and payloads, parts of an archive can be digested apart and added up, and it does
not depend on how records are cut into files, nor on which log they are in.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import xxhash

from ...log.format.dlsn import DLSN
from ...runtime.interfaces.errors import CorruptData, ForeignData, InvalidRequest, UnsupportedFormat

FORMAT = 1
KIND = "distributedlog archive"
POSITION_FACTOR = 0x9E3779B97F4A7C15
TXID_FACTOR = 0xC2B2AE3D27D4EB4F
DIGEST_MODULUS = 2**64
"""Of digests and seeds."""


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """One Parquet file: consecutive records, in order."""

    name: str
    """Without a directory."""
    records: int
    payload_bytes: int
    first: DLSN
    last: DLSN
    """Of its last record."""
    first_sequence_id: int
    digest: int
    """Of its records, by their place in the whole archive."""
    file_bytes: int
    file_xxh3: int
    """xxh3_64 of the whole file."""

    @property
    def end_sequence_id(self) -> int:
        """Of the record that would follow."""
        return self.first_sequence_id + self.records

    def to_json(self) -> dict[str, Any]:
        """Digests as 16 hex digits, positions as text."""
        values = asdict(self)
        return {name: _to_json_value(name, value) for name, value in values.items()}

    @classmethod
    def from_json(cls, value: Any) -> "ArchiveFile":
        """Raises `CorruptData`."""
        archive_file: ArchiveFile = _from_json_values(cls, value)
        if (
            archive_file.name != archive_file.name.rpartition("/")[2]
            or not archive_file.name
            or archive_file.records < 1
        ):
            raise CorruptData(
                f"a file of the name {archive_file.name!r:.80} with {archive_file.records} records"
            )
        return archive_file


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive holds. ``end`` is the next position to be read from the log."""

    id: str
    """Made with the archive, 16 hex digits: who imports it, exactly once."""
    generation: int
    """From 1 up, one more with each time it grew."""
    log: str
    incarnation: str
    first: DLSN
    end: DLSN
    first_sequence_id: int
    end_sequence_id: int
    files: tuple[ArchiveFile, ...] = ()

    @property
    def records(self) -> int:
        """In all files."""
        return sum(archive_file.records for archive_file in self.files)

    @property
    def payload_bytes(self) -> int:
        """In all files."""
        return sum(archive_file.payload_bytes for archive_file in self.files)

    @property
    def file_bytes(self) -> int:
        """Of all files."""
        return sum(archive_file.file_bytes for archive_file in self.files)

    @property
    def digest(self) -> str:
        """Of all records, 16 hex digits."""
        return f"{sum(archive_file.digest for archive_file in self.files) % DIGEST_MODULUS:016x}"

    def grown(self, files: Iterable[ArchiveFile], end: DLSN | None = None) -> "Manifest":
        """With more files, in order, up to ``end`` (else right after the last record), a generation on.

        Raises `InvalidRequest` when they do not follow on what is there.
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
        """Are its records those from its first to its end, once, in order? Raises ``error``."""
        next_sequence_id, next_position = self.first_sequence_id, self.first
        for file in self.files:
            if file.first_sequence_id != next_sequence_id or file.first < next_position:
                raise error(
                    f"file {file.name} begins with record {file.first_sequence_id} at {file.first}, expected "
                    f"is record {next_sequence_id} from {next_position} on: a gap, or records twice or "
                    "out of order"
                )
            next_sequence_id, next_position = file.end_sequence_id, file.last.next()
        if (
            next_sequence_id != self.end_sequence_id
            or next_position > self.end
            or self.first > self.end
        ):
            raise error(
                f"records {self.first_sequence_id} to {self.end_sequence_id} up to {self.end} are stated, "
                f"the files end before record {next_sequence_id} at {next_position}"
            )
        if len({file.name for file in self.files}) != len(self.files):
            raise error("a file is named twice")

    def check_listing(self, sizes: Mapping[str, int], where: str, *, no_others: bool) -> None:
        """Are its files there, whole by their size; ``alone``: and no others? Raises `CorruptData` naming
        one that is missing or of another size, `ForeignData` naming one that does not belong here."""
        for file in self.files:
            if file.name not in sizes:
                raise CorruptData(f"{where}/{file.name} is missing")
            if sizes[file.name] != file.file_bytes:
                raise CorruptData(
                    f"{where}/{file.name} has {sizes[file.name]} bytes, the manifest says {file.file_bytes}"
                )
        extra = sorted(set(sizes) - {file.name for file in self.files})
        if no_others and extra:
            raise ForeignData(f"{where}/{extra[0]} is not in the manifest: it does not belong here")

    def encode(self) -> bytes:
        """The text of the object, with a digest of its own."""
        body = {
            "format": FORMAT,
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
        """Raises `CorruptData`, `ForeignData` for another program's, `UnsupportedFormat` for a newer one."""
        try:
            body = json.loads(text)
        except ValueError as error:
            raise CorruptData(f"{where} is damaged: {error}") from None
        except RecursionError:
            raise CorruptData(f"{where} is damaged: it is nested too deep") from None
        if not isinstance(body, dict) or body.get("kind") != KIND:
            raise ForeignData(f"{where} is not the manifest of a {KIND}")
        stated_digest = body.pop("xxh3", None)
        try:
            is_sound = stated_digest == _digest_of(body)
        except (ValueError, RecursionError):
            is_sound = False
        if not is_sound:
            raise CorruptData(f"{where} is damaged: its digest is not the one that it states")
        if body.get("format") != FORMAT:
            raise UnsupportedFormat(
                f"{where} has format {body.get('format')!r:.40}, this version reads {FORMAT}: a newer"
                " version made it"
            )
        try:
            files = [ArchiveFile.from_json(one) for one in body["files"]]
            manifest: Manifest = _from_json_values(cls, {**body, "files": tuple(files)})
            manifest.check(CorruptData)
        except (CorruptData, KeyError, TypeError, OverflowError) as error:
            raise CorruptData(f"{where} contradicts itself: {error!s:.400}") from None
        sums = (manifest.records, manifest.payload_bytes, manifest.digest)
        if sums != (body.get("records"), body.get("payload_bytes"), body.get("digest")):
            raise CorruptData(f"{where} contradicts itself: the sums are not those of its files")
        return manifest


_POSITIONS = {"first", "last", "end"}
_DIGESTS = {"digest", "file_xxh3"}


def _to_json_value(name: str, value: Any) -> Any:
    if name in _POSITIONS:
        return str(DLSN(*value))
    return f"{value:016x}" if name in _DIGESTS else value


def _from_json_values(cls: type[Any], value: Any) -> Any:
    """A dataclass of its JSON; what else is in there is left alone. Raises `CorruptData`."""
    arguments: dict[str, Any] = {}
    try:
        for field in fields(cls):
            raw = value[field.name]
            if field.name in _POSITIONS:
                raw = DLSN.parse(raw)
            elif field.name in _DIGESTS:
                raw = int(raw, 16)
            elif field.type in (int, str) and type(raw) is not field.type:
                raise ValueError(f"{field.name} is {type(raw).__name__}, no {field.type.__name__}")
            arguments[field.name] = raw
    except (KeyError, TypeError, ValueError, InvalidRequest) as error:
        raise CorruptData(f"{cls.__name__}: {error}") from None
    return cls(**arguments)


def _digest_of(body: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(
        json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    )
