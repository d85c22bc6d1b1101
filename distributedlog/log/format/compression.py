"""How one writer's entries are compressed, and whether that pays.

In the call that sends them, in order (H160): 256 KiB hold the loop no longer than some frames do.
Bookies never know of it. Header and sections of an entry stay as they are, so whatever goes by them (search,
counts, retention) decompresses nothing.
"""

from struct import pack_into

from ...runtime.interfaces.errors import UnsupportedFormat
from ...runtime.interfaces.host import Buffer
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.compression_codecs import COLUMN_BYTES_MAX, NAMES, NONE, Codec, codec
from .record import FLAGS_AT, HEADER, HEADER_BYTES

FROM_BYTES = HEADER_BYTES + 512
"""Entries below are left as they are."""
VAIN_MAX = 16
"""After so many in a row that would not shrink to 7/8, only every `TRIED_EVERY` th is tried."""
TRIED_EVERY = 64

log = get_logger("distributedlog.log")


class Compression:
    """Of the entries of one writer, or of one segment that is written outside its log; for one task."""

    def __init__(self, log_name: str, name: str) -> None:
        """``name``: a value of the option ``codec``. Raises `UnsupportedFormat`: its package is missing."""
        self.number = NONE
        """What goes into headers; 0: nothing is compressed, nobody calls `compress`."""
        self._log_name = log_name
        self._name = ""
        self._codec: Codec | None = None
        self._in_vain = 0
        self._passed_over = 0
        self._take(name)

    def follow(self, name: str) -> None:
        """The option has this value now. Where its package is missing that is logged, and nothing changes."""
        if name != self._name:
            try:
                self._take(name)
            except UnsupportedFormat as error:
                log.warning("%s; its writer goes on as it began", error)

    def compress(self, buffers: list[Buffer], length: int) -> tuple[list[Buffer], int]:
        """An entry as `record.build` makes it: smaller, or as it is; and its length in bytes."""
        if not FROM_BYTES <= length <= COLUMN_BYTES_MAX or self._is_passed_over():
            return buffers, length
        assert self._codec is not None, "nobody asks where the codec is none"
        entry = memoryview(b"".join(buffers))
        _, _, flags, _, _, _, section_bytes, *_ = HEADER.unpack_from(entry)
        at = HEADER_BYTES + section_bytes
        columns = self._codec.compress(entry[at:])
        if 8 * len(columns) > 7 * (length - at):
            self._in_vain += 1
            return buffers, length
        self._in_vain = 0
        head = bytearray(entry[:at])
        pack_into("<H", head, FLAGS_AT, flags | self.number)
        return [head, columns], at + len(columns)

    def _take(self, name: str) -> None:
        self._name = name  # its package is asked for once, also where it is missing
        number = NAMES.index(name)
        self._codec = codec(number, f'log "{self._log_name}"') if number else None
        self.number = number
        self._in_vain = self._passed_over = 0

    def _is_passed_over(self) -> bool:
        if self._in_vain < VAIN_MAX:
            return False
        self._passed_over = (self._passed_over + 1) % TRIED_EVERY
        return self._passed_over != 0
