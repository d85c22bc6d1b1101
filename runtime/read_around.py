"""Reading a file around what the device cannot read: one bad place is no reason to lose the rest."""

from collections.abc import Callable

from .errors import CorruptData
from .host import File

PIECE = 64 * 1024
"""So much is given up around each bad place."""


async def read_around(
    file: File, offset: int, length: int, on_unreadable: Callable[[CorruptData, int], None]
) -> bytes:
    """The bytes, with zeros in place of the pieces that the device cannot read.

    ``on_unreadable`` is told of each of them, with the offset where it ends.
    """
    try:
        return await file.read_cold(offset, length)
    except CorruptData as error:
        if length <= PIECE:
            on_unreadable(error, offset + length)
            return bytes(length)
    half = max(PIECE, length // 2 // PIECE * PIECE)
    first = await read_around(file, offset, half, on_unreadable)
    return first + await read_around(file, offset + half, length - half, on_unreadable)
