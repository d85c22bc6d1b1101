"""A backup of the metadata: the whole state as of one moment in one file, independent of any node (pure).

The file is framed like a snapshot file::

    | u32 length | xxh3_64 u64 | chunk | ... | u32 0 | u64 chunks |
    the first chunk: msgpack [format, cluster id, index, term, members]
    the other chunks: the state (`kv_snapshot.py`)

A client fetches the chunks from a node over one connection (META_SAVE). `force_new_cluster.py` makes a
cluster of one node from the file. Requests and replies::

    META_SAVE  ["begin"]          REPLY  [number of the backup, its first chunk]
               ["next", number, n]  REPLY  [chunk n, from 1; empty after the last chunk]
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from ...runtime.interfaces.errors import (
    CorruptData,
    InvalidRequest,
    ProtocolError,
    UnsupportedFormat,
)
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import pack, unpack
from ...runtime.protocol.schema import (
    blob,
    decode_message,
    decode_stored,
    is_number,
    number,
    row,
    text,
)
from ..auth.quorum_secrets import SECRET_PREFIX
from ..model.configuration import Configuration, decode_configuration
from ..state import kv_snapshot
from ..state.kv_state import KeyValueState

BACKUP_FORMAT = 1
CHUNK_BYTES_MAX = 2 * 1024 * 1024
CHANGES_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size of old values that are kept for a backup in progress, because its client may stop reading."""


@dataclass(frozen=True, slots=True)
class BackupHeader:
    """The first chunk: the origin of a backup."""

    cluster_id: str
    index: int
    """Log index of the last command in the backup."""
    term: int
    """Term of that command."""
    members: Configuration
    """The members at that time. They are information for operators and are not restored."""

    def encode(self) -> bytes:
        """Encode the header as a chunk."""
        return pack([BACKUP_FORMAT, self.cluster_id, self.index, self.term, self.members.encode()])

    @classmethod
    def decode(cls, chunk: bytes) -> "BackupHeader":
        """Decode the first chunk.

        Raises:
            CorruptData: The chunk is invalid.
            UnsupportedFormat: Another version wrote the backup.
        """
        what = "the beginning of a save of the metadata"
        (form, *_) = decode_stored(chunk, row(number(), later=True), what)
        if form != BACKUP_FORMAT:
            raise UnsupportedFormat(f"{what}: format {form}, known is {BACKUP_FORMAT}")
        _, cluster_id, index, term, members = decode_stored(chunk, _HEAD, what)
        try:
            return cls(cluster_id, index, term, decode_configuration(members))
        except ProtocolError as error:
            raise CorruptData(f"{what}: {error}") from None


_BLOB = blob(CHUNK_BYTES_MAX)
_HEAD = row(number(), text(chars_min=1), number(1), number(1), _BLOB)
_BACKUP_START = row(number(1), _BLOB)
_CHUNK = row(_BLOB)


def backup_chunks(head: BackupHeader, state: KeyValueState) -> Iterator[bytes]:
    """Return all chunks of a backup, as of this call, without the secrets of the state.

    The iteration raises `InvalidRequest` if more than `CHANGES_BYTES_MAX` would have to be kept.
    """
    return chain(
        [head.encode()],
        kv_snapshot.snapshot_chunks(state, CHANGES_BYTES_MAX, excluded_prefix=SECRET_PREFIX),
    )


class BackupTransfer:
    """A backup that one connection fetches chunk by chunk. The last chunk may be requested again."""

    def __init__(self, number: int, chunks: Iterator[bytes]) -> None:
        self.number = number
        self._chunks = chunks
        self._position = -1
        self._chunk = b""

    def chunk(self, n: int) -> bytes:
        """Return chunk ``n``, from 0, or an empty chunk after the last.

        Raises:
            InvalidRequest: ``n`` is neither the next nor the last returned chunk.
        """
        if n == self._position + 1:
            self._position, self._chunk = n, next(self._chunks, b"")
        elif n != self._position:
            raise InvalidRequest(
                f"chunk {n} of a backup of which {self._position + 1} chunks were sent"
            )
        return self._chunk


@dataclass(frozen=True, slots=True)
class BackupRequest:
    """A request to begin a backup (number 0), or for chunk ``chunk`` of a backup."""

    backup_number: int = 0
    chunk: int = 0

    def encode(self) -> bytes:
        """Encode the request as a frame body."""
        return pack(["next", self.backup_number, self.chunk] if self.backup_number else ["begin"])

    @classmethod
    def decode(cls, body: Buffer) -> "BackupRequest":
        """Decode a frame body, or raise `ProtocolError`."""
        match unpack(body, "META_SAVE"):
            case ["begin"]:
                return cls()
            case ["next", backup_number, chunk] if is_number(backup_number, 1) and is_number(
                chunk, 1
            ):
                return cls(backup_number, chunk)
        raise ProtocolError("META_SAVE: neither a beginning nor a chunk")


def encode_backup_start(backup_number: int, chunk: bytes) -> bytes:
    """Encode the reply to the beginning of a backup."""
    return pack([backup_number, chunk])


def decode_backup_start(body: Buffer) -> tuple[int, bytes]:
    """Return number and first chunk of a new backup, or raise `ProtocolError`."""
    backup_start: tuple[int, bytes] = decode_message(body, _BACKUP_START, "the beginning of a save")
    return backup_start


def encode_chunk(chunk: bytes) -> bytes:
    """Encode the reply to a request for a chunk."""
    return pack([chunk])


def decode_chunk(body: Buffer) -> bytes:
    """Decode the reply to a request for a chunk, or raise `ProtocolError`."""
    (chunk,) = decode_message(body, _CHUNK, "a chunk of a save")
    data: bytes = chunk
    return data
