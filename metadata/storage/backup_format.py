"""A save of the metadata: the whole state as of one moment in one file, which outlives every node (pure).

    | u32 length | xxh3_64 u64 | chunk | ... | u32 0 | u64 chunks |      framed as a snapshot file is
    the first chunk: msgpack [format, cluster id, index, term, members]
    those after it: the state (`kv_snapshot.py`)

A node gives it out over one connection, asked chunk by chunk (META_SAVE); `force_new_cluster.py` makes a
cluster of one node from it.

    META_SAVE  ["begin"]          REPLY  [number of the save, its first chunk]
               ["next", number, n]  REPLY  [chunk n, from 1; empty: there are no more]
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
"""What changes while a save is fetched is kept for it, up to so much: its client may stand still for ever."""


@dataclass(frozen=True, slots=True)
class BackupHeader:
    """What a save is of: the first chunk."""

    cluster_id: str
    index: int
    """Of the last command that is in it."""
    term: int
    """Of that command."""
    members: Configuration
    """Who formed the quorum then: for people, nothing is made of it."""

    def encode(self) -> bytes:
        """As a chunk."""
        return pack([BACKUP_FORMAT, self.cluster_id, self.index, self.term, self.members.encode()])

    @classmethod
    def decode(cls, chunk: bytes) -> "BackupHeader":
        """Raises `CorruptData`, `UnsupportedFormat`."""
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
_BEGUN = row(number(1), _BLOB)
_CHUNK = row(_BLOB)


def backup_chunks(head: BackupHeader, state: KeyValueState) -> Iterator[bytes]:
    """All of a save, as the state is at this call, without its secrets.

    Raises `InvalidRequest` when more changes meanwhile.
    """
    return chain(
        [head.encode()],
        kv_snapshot.snapshot_chunks(state, CHANGES_BYTES_MAX, excluded_prefix=SECRET_PREFIX),
    )


class BackupTransfer:
    """A save that one connection fetches, a chunk at a time; the last one may be asked for again."""

    def __init__(self, number: int, chunks: Iterator[bytes]) -> None:
        self.number = number
        self._chunks = chunks
        self._position = -1
        self._chunk = b""

    def chunk(self, n: int) -> bytes:
        """Chunk ``n``, from 0; empty after the last. Raises `InvalidRequest` for another than the next."""
        if n == self._position + 1:
            self._position, self._chunk = n, next(self._chunks, b"")
        elif n != self._position:
            raise InvalidRequest(
                f"chunk {n} of a save of which {self._position + 1} were given out"
            )
        return self._chunk


@dataclass(frozen=True, slots=True)
class BackupRequest:
    """``number`` 0: begin; else chunk ``chunk`` of that save."""

    backup_number: int = 0
    chunk: int = 0

    def encode(self) -> bytes:
        """As a frame body."""
        return pack(["next", self.backup_number, self.chunk] if self.backup_number else ["begin"])

    @classmethod
    def decode(cls, body: Buffer) -> "BackupRequest":
        """Raises `ProtocolError`."""
        match unpack(body, "META_SAVE"):
            case ["begin"]:
                return cls()
            case ["next", save, chunk] if is_number(save, 1) and is_number(chunk, 1):
                return cls(save, chunk)
        raise ProtocolError("META_SAVE: neither a beginning nor a chunk")


def encode_backup_start(save: int, chunk: bytes) -> bytes:
    """The answer to a beginning."""
    return pack([save, chunk])


def decode_backup_start(body: Buffer) -> tuple[int, bytes]:
    """(number of the save, its first chunk). Raises `ProtocolError`."""
    backup_start: tuple[int, bytes] = decode_message(body, _BEGUN, "the beginning of a save")
    return backup_start


def encode_chunk(chunk: bytes) -> bytes:
    """The answer to a chunk that was asked for."""
    return pack([chunk])


def decode_chunk(body: Buffer) -> bytes:
    """Raises `ProtocolError`."""
    (chunk,) = decode_message(body, _CHUNK, "a chunk of a save")
    data: bytes = chunk
    return data
