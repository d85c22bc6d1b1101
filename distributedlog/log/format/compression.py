"""How one writer's entries are compressed, and whether that pays.

In the call that sends them, in order (H160): 256 KiB hold the loop no longer than some frames do.
Bookies never know of it. Header and sections of an entry stay as they are, so whatever goes by them (search,
counts, retention) decompresses nothing.
"""

from struct import pack_into

from ...runtime.interfaces.errors import UnsupportedFormat
from ...runtime.interfaces.host import Buffer
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.compression_codecs import CODEC_NAMES, COLUMN_BYTES_MAX, NONE, Codec, load_codec
from .record import FLAGS_OFFSET, HEADER, HEADER_BYTES

COMPRESS_MIN_BYTES = HEADER_BYTES + 512
"""Entries below are left as they are."""
FAILED_TRIES_MAX = 16
"""After so many in a row that would not shrink to 7/8, only every `RETRY_INTERVAL_ENTRIES` th is tried."""
RETRY_INTERVAL_ENTRIES = 64

log = get_logger("distributedlog.log")


class Compression:
    """Of the entries of one writer, or of one segment that is written outside its log; for one task."""

    def __init__(self, log_name: str, codec_name: str) -> None:
        """``name``: a value of the option ``load_codec``. Raises `UnsupportedFormat`: its package is
        missing."""
        self.codec_number = NONE
        """What goes into headers; 0: nothing is compressed, nobody calls `compress`."""
        self._log_name = log_name
        self._codec_name = ""
        self._codec: Codec | None = None
        self._failed_tries = 0
        self._skipped_entries = 0
        self._set_codec(codec_name)

    def update_codec(self, codec_name: str) -> None:
        """The option has this value now. Where its package is missing that is logged, and nothing changes."""
        if codec_name != self._codec_name:
            try:
                self._set_codec(codec_name)
            except UnsupportedFormat as error:
                log.warning("%s; its writer goes on as it began", error)

    def compress(self, buffers: list[Buffer], length: int) -> tuple[list[Buffer], int]:
        """An entry as `record.build` makes it: smaller, or as it is; and its length in bytes."""
        if not COMPRESS_MIN_BYTES <= length <= COLUMN_BYTES_MAX or self._should_skip():
            return buffers, length
        assert self._codec is not None, "nobody asks where the codec is none"
        entry = memoryview(b"".join(buffers))
        _, _, flags, _, _, _, section_bytes, *_ = HEADER.unpack_from(entry)
        header_end = HEADER_BYTES + section_bytes
        columns = self._codec.compress(entry[header_end:])
        if 8 * len(columns) > 7 * (length - header_end):
            self._failed_tries += 1
            return buffers, length
        self._failed_tries = 0
        head = bytearray(entry[:header_end])
        pack_into("<H", head, FLAGS_OFFSET, flags | self.codec_number)
        return [head, columns], header_end + len(columns)

    def _set_codec(self, codec_name: str) -> None:
        self._codec_name = codec_name  # its package is asked for once, also where it is missing
        codec_number = CODEC_NAMES.index(codec_name)
        self._codec = load_codec(codec_number, f'log "{self._log_name}"') if codec_number else None
        self.codec_number = codec_number
        self._failed_tries = self._skipped_entries = 0

    def _should_skip(self) -> bool:
        if self._failed_tries < FAILED_TRIES_MAX:
            return False
        self._skipped_entries = (self._skipped_entries + 1) % RETRY_INTERVAL_ENTRIES
        return self._skipped_entries != 0
