"""Standard streams of `dlog`: a write is complete or fails, and a read waits, on any kind of descriptor."""

import io
import os
import select
import sys
from typing import Any

from ...runtime.disk.output_file import write_all


def read_some(descriptor: int, size: int) -> bytes:
    """Read 1 to ``size`` bytes, or none at the end of the input; also from a non-blocking descriptor."""
    while True:
        try:
            return os.read(descriptor, size)
        except BlockingIOError:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll()


class StandardFile(io.RawIOBase):
    """A standard descriptor that may be non-blocking, as ssh and some CI runners leave it.

    Python's raw write may write a part and return normally. If stdout is unbuffered, Python ignores the
    returned count. Here `write` returns when everything is written, or raises.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    def readable(self) -> bool:
        """Whether reads are possible; the descriptor decides."""
        return True

    def writable(self) -> bool:
        """Whether writes are possible; the descriptor decides."""
        return True

    def write(self, data: Any, /) -> int:
        """Write all bytes. Raises `OSError`; then a part may have been written."""
        return write_all(self._descriptor, data)

    def readinto(self, buffer: Any, /) -> int:
        """Read at least one byte, or return 0 at the end."""
        view = memoryview(buffer).cast("B")
        data = read_some(self._descriptor, len(view))
        view[: len(data)] = data
        return len(data)


def write_stdout(data: bytes) -> None:
    """Write all bytes to standard output, past its buffer. Raises `OSError`.

    A thread that writes into an unread pipe would hold the lock of the buffer. The last flush of an
    interrupted command would wait for that lock, and so for the reader.
    """
    sys.stdout.flush()
    file = getattr(sys.stdout.buffer, "raw", None)
    if isinstance(file, StandardFile):
        file.write(data)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def open_standard_streams() -> None:
    """Replace `sys.stdin`, `sys.stdout` and `sys.stderr` with streams over `StandardFile`.

    A closed stream (`dlog … <&-`) becomes the null device. Otherwise the next file or socket would get its
    descriptor, and would receive the output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            # Never closed: it takes the lowest free descriptor, which is the closed one.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and isinstance(_raw(stream), io.FileIO):
            file = StandardFile(stream.fileno())
            buffer: io.BufferedReader | io.BufferedWriter
            if mode == "r":
                buffer = io.BufferedReader(file)
            else:
                buffer = io.BufferedWriter(file)
            unbuffered = not isinstance(stream.buffer, io.BufferedWriter | io.BufferedReader)
            wrapped = io.TextIOWrapper(
                buffer,
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=mode == "w" and (stream.line_buffering or unbuffered),
            )
            setattr(sys, name, wrapped)


def _raw(stream: io.TextIOWrapper) -> object:
    return getattr(stream.buffer, "raw", stream.buffer)
