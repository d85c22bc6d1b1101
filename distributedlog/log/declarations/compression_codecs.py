"""lz4 and zstd compression of the columns of an entry, with sizes checked before memory is used (H159, pure).

The packages are imported when the first entry needs them. A program without such entries needs neither. The
header of an entry has the number of its codec. An lz4 entry is a block without a size prefix. A zstd entry is
one frame that contains its size and uses no dictionary.
"""

from functools import cache
from importlib import import_module
from typing import Any, Protocol

from ...runtime.declarations.options import MIB
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ...runtime.interfaces.host import Buffer

NONE, LZ4, ZSTD = range(3)
CODEC_NAMES = ("none", "lz4", "zstd")
"""The values of the option ``codec``, by number."""
CODEC_PACKAGES = {LZ4: "lz4", ZSTD: "zstandard"}
"""The package names for pip, which are also the import names."""
COLUMN_BYTES_MAX = 5 * MIB
"""Maximum size of the columns of one entry. Larger columns are neither compressed nor decompressed."""
ZSTD_LEVEL = 1


class Codec(Protocol):
    """A compression method. It is safe to use from any thread."""

    def compress(self, data: Buffer) -> bytes:
        """Return the data as one compressed block or frame."""
        ...

    def decompress(self, data: Buffer, size: int) -> bytes:
        """Return the decompressed data.

        Args:
            data: The result of `compress`.
            size: The size of the decompressed data, at most `COLUMN_BYTES_MAX`.
        Raises:
            CorruptData: The data is invalid, or has another size when decompressed.
        """
        ...


def load_codec(number: int, owner_text: str) -> Codec:
    """Return the codec with this number, 1 or 2.

    Args:
        number: The codec number.
        owner_text: The start of the error message, such as the log's name.
    Raises:
        UnsupportedFormat: The package of the codec is not installed.
    """
    try:
        return _lz4() if number == LZ4 else _zstd()
    except ImportError:
        raise UnsupportedFormat(
            f"{owner_text}: codec {CODEC_NAMES[number]} needs the package {CODEC_PACKAGES[number]}, "
            "which is not installed. "
            "Run: pip install 'distributedlog-py[compression]'"
        ) from None


class _Lz4:
    def __init__(self) -> None:
        self._block: Any = import_module("lz4.block")

    def compress(self, data: Buffer) -> bytes:
        return self._block.compress(data, store_size=False)  # type: ignore[no-any-return]

    def decompress(self, data: Buffer, size: int) -> bytes:
        # The package never writes beyond `size`, and it requires that the block ends with its last byte.
        try:
            return _check_size(self._block.decompress(data, uncompressed_size=size), size)
        except self._block.LZ4BlockError as error:
            raise CorruptData(f"an lz4 block of {len(data)} bytes for {size}: {error}") from None


class _Zstd:
    def __init__(self) -> None:
        self._package: Any = import_module("zstandard")
        # Creating a compressor costs ten times as much as compressing a small entry. Each may be used by one
        # thread at a time, and a process may run several event loops. Therefore each call takes an idle one
        # with an atomic pop, and returns it.
        self._compressors: list[Any] = []
        self._decompressors: list[Any] = []

    def compress(self, data: Buffer) -> bytes:
        try:
            compressor = self._compressors.pop()
        except IndexError:
            compressor = self._package.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True)
        compressed: bytes = compressor.compress(data)
        self._compressors.append(compressor)
        return compressed

    def decompress(self, data: Buffer, size: int) -> bytes:
        # The size in the frame is checked first: the package allocates that size, regardless of
        # `max_window_size` (a frame of 3 KB made it allocate 100 MB).
        try:
            parameters = self._package.get_frame_parameters(data)
            if (
                parameters.content_size != size
                or parameters.window_size > COLUMN_BYTES_MAX
                or parameters.dict_id
            ):
                raise CorruptData(
                    f"a zstd frame of {len(data)} bytes for {size} has content size "
                    f"{parameters.content_size}, window {parameters.window_size}, dictionary "
                    f"{parameters.dict_id}"
                )
            try:
                decompressor = self._decompressors.pop()
            except IndexError:
                decompressor = self._package.ZstdDecompressor(max_window_size=COLUMN_BYTES_MAX)
            decompressed: bytes = decompressor.decompress(
                data, read_across_frames=False, allow_extra_data=False
            )
        except self._package.ZstdError as error:
            raise CorruptData(f"a zstd frame of {len(data)} bytes for {size}: {error}") from None
        self._decompressors.append(decompressor)
        return _check_size(decompressed, size)


_lz4, _zstd = cache(_Lz4), cache(_Zstd)


def _check_size(result: bytes, size: int) -> bytes:
    if len(result) != size:
        raise CorruptData(
            f"decompressed columns of {len(result)} bytes; by the header, {size} were expected"
        )
    return result
