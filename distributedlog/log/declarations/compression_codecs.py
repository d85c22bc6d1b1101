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
NAMES = ("none", "lz4", "zstd")
"""The values of the option ``codec``, by number."""
PACKAGES = {LZ4: "lz4", ZSTD: "zstandard"}
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


def codec(number: int, whose: str) -> Codec:
    """The codec of this number, 1 or 2. Raises `UnsupportedFormat`, begun by ``whose``: no package for it."""
    try:
        return _lz4() if number == LZ4 else _zstd()
    except ImportError:
        raise UnsupportedFormat(
            f"{whose}: codec {NAMES[number]} needs the package {PACKAGES[number]}, which is missing here: "
            f"pip install {PACKAGES[number]}"
        ) from None


class _Lz4:
    def __init__(self) -> None:
        self._block: Any = import_module("lz4.block")

    def compress(self, data: Buffer) -> bytes:
        return self._block.compress(data, store_size=False)  # type: ignore[no-any-return]

    def decompress(self, data: Buffer, size: int) -> bytes:
        # It writes nowhere beyond `size`, and the block must end with its last byte.
        try:
            return _whole(self._block.decompress(data, uncompressed_size=size), size)
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
            one = self._compressors.pop()
        except IndexError:
            one = self._package.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True)
        found: bytes = one.compress(data)
        self._compressors.append(one)
        return found

    def decompress(self, data: Buffer, size: int) -> bytes:
        # What the frame says is looked at first: the package makes as much room as a frame asks for,
        # whatever bound it is given (3 KB made 100 MB of it).
        try:
            said = self._package.get_frame_parameters(data)
            if said.content_size != size or said.window_size > COLUMN_BYTES_MAX or said.dict_id:
                raise CorruptData(
                    f"a zstd frame of {len(data)} bytes for {size} says {said.content_size}, window "
                    f"{said.window_size}, dictionary {said.dict_id}"
                )
            try:
                one = self._decompressors.pop()
            except IndexError:
                one = self._package.ZstdDecompressor(max_window_size=COLUMN_BYTES_MAX)
            found: bytes = one.decompress(data, read_across_frames=False, allow_extra_data=False)
        except self._package.ZstdError as error:
            raise CorruptData(f"a zstd frame of {len(data)} bytes for {size}: {error}") from None
        self._decompressors.append(one)
        return _whole(found, size)


_lz4, _zstd = cache(_Lz4), cache(_Zstd)


def _whole(found: bytes, size: int) -> bytes:
    if len(found) != size:
        raise CorruptData(f"compressed columns of {len(found)} bytes, by their header {size}")
    return found
