"""Large buffers that are used again once nobody looks at them any more (pure).

A fresh megabyte is zeroed and faulted in page by page, which costs as much as reading into it. Python knows
whether a `bytearray` is looked at: it refuses to change its length while a memoryview of it, or of a part
of it, is alive. So what is given out stays its taker's own for as long as any view lives (H16), and no
one has to give anything back.

Of those that are free the one that was taken last is used: its bytes are still in the core's caches, where
going round through all of them would find none.

Takers who keep a little more than what is kept here, the oldest first, must not find nothing: so what is
kept stays the same, and those beyond it are fresh each time. What nobody has taken for long is given up for
a fresh one now and then, or views that live for ever would hold all places.
"""

from collections import deque

SMALL_SIZE_DIVISOR = 16
"""What takes less than this part of a buffer gets none: it would keep the rest from being used."""


class BufferPool:
    """Gives out views of ``buffer_bytes`` at most out of ``buffers_max`` kept buffers, or of fresh ones."""

    def __init__(self, buffer_bytes: int, buffers_max: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._buffers_max = buffers_max
        self._buffers: deque[bytearray] = deque()
        """Those that were taken last are last."""
        self._misses = 0
        """How often all were looked at since one of them was given up."""

    def acquire(self, size: int) -> memoryview:
        """Writable memory of ``size`` bytes, whatever they hold. What is small or very large is fresh."""
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
            buffers.popleft()  # its views keep it alive; it does not come back
        buffers.append(buffer)
        return memoryview(buffer)[:size]


def _has_no_views(buffer: bytearray) -> bool:
    """Is there no view of it? Its length is changed back and forth: nothing is moved or allocated."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True
