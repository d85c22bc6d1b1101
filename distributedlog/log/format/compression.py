"""Compress the entries of one writer, and stop trying when it saves too little.

An entry is compressed in the call that sends it, which keeps the entries in order (H160). 256 KiB block the
event loop no longer than a few frames do. Only the columns are compressed. Header and sections stay readable,
so searches, counts and retention decompress nothing. Bookies do not distinguish compressed entries.
"""

from struct import pack_into

from ...runtime.interfaces.errors import UnsupportedFormat
from ...runtime.interfaces.host import Buffer
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.compression_codecs import CODEC_NAMES, COLUMN_BYTES_MAX, NONE, Codec, load_codec
from .record import FLAGS_OFFSET, HEADER, HEADER_BYTES

COMPRESS_MIN_BYTES = HEADER_BYTES + 512
"""Smaller entries are not compressed."""
FAILED_TRIES_MAX = 16
"""After this number of consecutive entries that did not shrink to 7/8, only every `RETRY_INTERVAL_ENTRIES` th
entry is tried."""
RETRY_INTERVAL_ENTRIES = 64

log = get_logger("distributedlog.log")


class Compression:
    """Compresses the entries of one log writer, or of one segment that is written outside its log.

    Only one task may use it.
    """

    def __init__(self, log_name: str, codec_name: str) -> None:
        """Load the codec.

        Args:
            log_name: The log's name, for messages.
            codec_name: A value of the option ``codec``.
        Raises:
            UnsupportedFormat: The package of the codec is not installed.
        """
        self.codec_number = NONE
        """The codec number for entry headers. If it is 0, nothing is compressed, and `compress` must not be
        called."""
        self._log_name = log_name
        self._codec_name = ""
        self._codec: Codec | None = None
        self._failed_tries = 0
        self._skipped_entries = 0
        self._set_codec(codec_name)

    def update_codec(self, codec_name: str) -> None:
        """Use another value of the option ``codec``.

        If its package is missing, log that and keep the current codec.
        """
        if codec_name != self._codec_name:
            try:
                self._set_codec(codec_name)
            except UnsupportedFormat as error:
                log.warning("%s; the writer keeps its current codec", error)

    def compress(self, buffers: list[Buffer], length: int) -> tuple[list[Buffer], int]:
        """Compress an entry if that saves enough.

        Args:
            buffers: An entry as `build_entry` returns it.
            length: Its length in bytes.
        Returns:
            The compressed entry, or the unchanged one, and its length in bytes.
        """
        if not COMPRESS_MIN_BYTES <= length <= COLUMN_BYTES_MAX or self._should_skip():
            return buffers, length
        assert self._codec is not None, "compress() needs a codec"
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
        # Set first, so that a missing package is reported once and not at each update.
        self._codec_name = codec_name
        codec_number = CODEC_NAMES.index(codec_name)
        self._codec = load_codec(codec_number, f'log "{self._log_name}"') if codec_number else None
        self.codec_number = codec_number
        self._failed_tries = self._skipped_entries = 0

    def _should_skip(self) -> bool:
        if self._failed_tries < FAILED_TRIES_MAX:
            return False
        self._skipped_entries = (self._skipped_entries + 1) % RETRY_INTERVAL_ENTRIES
        return self._skipped_entries != 0
