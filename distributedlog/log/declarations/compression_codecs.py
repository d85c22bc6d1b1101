"""lz4 and zstd, as an entry's columns may be compressed: bounded before anything is made (H159, pure).

The packages are imported when a first entry needs them: who meets no such entry needs neither. A codec's
number is what the header of an entry says. lz4 is a block without its size before it; zstd is one frame that
says its size, without a dictionary.
"""

from functools import cache
from importlib import import_module
from typing import Any, Protocol

from ...runtime.declarations.options import MIB
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ...runtime.interfaces.host import Buffer

NONE, LZ4, ZSTD = range(3)
CODEC_NAMES = ("none", "lz4", "zstd")
"""The values of the option ``load_codec``, by number."""
CODEC_PACKAGES = {LZ4: "lz4", ZSTD: "zstandard"}
"""What pip calls them; each is imported under the same name."""
COLUMN_BYTES_MAX = 5 * MIB
"""Of the columns of one entry. What is larger is neither compressed nor decompressed."""
ZSTD_LEVEL = 1


class Codec(Protocol):
    """One way to compress; for any thread."""

    def compress(self, data: Buffer) -> bytes:
        """As one block or frame."""
        ...

    def decompress(self, data: Buffer, size: int) -> bytes:
        """What was compressed: ``size`` bytes, at most `COLUMN_BYTES_MAX`. Raises `CorruptData`."""
        ...


def load_codec(number: int, owner_text: str) -> Codec:
    """The codec of this number, 1 or 2. Raises `UnsupportedFormat`, begun by ``whose``: no package for it."""
    try:
        return _lz4() if number == LZ4 else _zstd()
    except ImportError:
        raise UnsupportedFormat(
            f"{owner_text}: codec {CODEC_NAMES[number]} needs the package {CODEC_PACKAGES[number]}, "
            "which is missing here: "
            f"pip install {CODEC_PACKAGES[number]}"
        ) from None


class _Lz4:
    def __init__(self) -> None:
        self._block: Any = import_module("lz4.block")

    def compress(self, data: Buffer) -> bytes:
        return self._block.compress(data, store_size=False)  # type: ignore[no-any-return]

    def decompress(self, data: Buffer, size: int) -> bytes:
        # It writes nowhere beyond `size`, and the block must end with its last byte.
        try:
            return _check_size(self._block.decompress(data, uncompressed_size=size), size)
        except self._block.LZ4BlockError as error:
            raise CorruptData(f"an lz4 block of {len(data)} bytes for {size}: {error}") from None


class _Zstd:
    def __init__(self) -> None:
        self._package: Any = import_module("zstandard")
        # Making one anew costs ten times what a small entry does. One is for one thread at a time, and a
        # process may have several loops: each takes one that rests, in one step, and gives it back.
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
        # What the frame says is looked at first: the package makes as much room as a frame asks for,
        # whatever bound it is given (3 KB made 100 MB of it).
        try:
            parameters = self._package.get_frame_parameters(data)
            if (
                parameters.content_size != size
                or parameters.window_size > COLUMN_BYTES_MAX
                or parameters.dict_id
            ):
                raise CorruptData(
                    f"a zstd frame of {len(data)} bytes for {size} says {parameters.content_size}, window "
                    f"{parameters.window_size}, dictionary {parameters.dict_id}"
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
        raise CorruptData(f"compressed columns of {len(result)} bytes, by their header {size}")
    return result
