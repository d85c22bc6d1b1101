"""Large buffers that are reused when they have no views any more (pure).

A new megabyte is zeroed and mapped page by page, which costs as much as reading into it. Python refuses to
resize a `bytearray` while a memoryview of it, or of a part of it, exists. By this, the pool detects whether a
buffer is in use. So a buffer belongs to its user as long as any view exists (H16), and users need not return
buffers.

Among free buffers, the most recently used one is taken, because its bytes are still in the CPU caches.

If users hold slightly more buffers than the pool keeps, a strict order of replacement would find no free
buffer. So the kept buffers stay, and the buffers beyond them are new each time. From time to time, the buffer
that was not reused for the longest time is replaced by a new one. Otherwise, views that exist forever could
occupy all places.
"""

from collections import deque

SMALL_SIZE_DIVISOR = 16
"""A request for less than this fraction of a buffer does not use the pool, since it would block the rest of
the buffer."""


class BufferPool:
    """Views of at most ``buffer_bytes``, from ``buffers_max`` reused buffers or from new ones."""

    def __init__(self, buffer_bytes: int, buffers_max: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._buffers_max = buffers_max
        self._buffers: deque[bytearray] = deque()
        """The most recently used ones are last."""
        self._misses = 0
        """How often no buffer was free since one was replaced."""

    def acquire(self, size: int) -> memoryview:
        """Return writable memory of ``size`` bytes with any content.

        Small and very large requests get new memory.
        """
        if not self._buffer_bytes // SMALL_SIZE_DIVISOR <= size <= self._buffer_bytes:
            return memoryview(bytearray(size))
        buffers = self._buffers
        for index in range(len(buffers) - 1, -1, -1):
            buffer = buffers[index]
            if _has_no_views(buffer):
                del buffers[index]
                buffers.append(buffer)
                return memoryview(buffer)[:size]
        buffer = bytearray(self._buffer_bytes)
        if len(buffers) == self._buffers_max:
            self._misses += 1
            if self._misses < self._buffers_max:
                return memoryview(buffer)[:size]
            self._misses = 0
            buffers.popleft()  # its views keep it alive, but the pool no longer has it
        buffers.append(buffer)
        return memoryview(buffer)[:size]


def _has_no_views(buffer: bytearray) -> bool:
    """Return whether a buffer has no views. Changing its length by one and back moves no memory."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True
