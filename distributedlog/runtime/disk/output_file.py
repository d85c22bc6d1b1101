"""Write output under a name that a user gave, and decide which existing files such a write may replace.

A regular file is replaced atomically. A reader sees the old content or the new one, and a failed write leaves
the old one. A symbolic link stays, and its target is replaced. A character device, a pipe and an open
descriptor of this process (``-``, ``/dev/stdout``) receive the bytes as a stream. Nothing else is written to.
A rename over ``/dev/null`` would make an ordinary file of it for every program.
"""

import contextlib
import errno
import os
import re
import select
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..interfaces.errors import DiskFailed, InvalidRequest

if TYPE_CHECKING:
    from ..interfaces.host import Buffer

STANDARD_OUTPUT = "-"
PARTIAL_SUFFIX = ".part"
"""The suffix of a file while it is written. Each write uses its own name, so that two never mix."""
SECRET_MODE, MODE = 0o600, 0o666
"""The modes of new files; the second one without the bits of the process's umask."""
SYNC_BYTES = 4 * 1024 * 1024
"""The data is synced after this many bytes, because a node's sync on the same disk waits for the data of one
sync (H25)."""
LINKS_MAX = 40
READER_WAIT_S, READER_POLL_S = 30.0, 0.05
"""A pipe's reader may be started after its writer."""
NAME_CHARS_MAX = 60
"""The characters of the file name that the temporary name contains; a name has at most 255 bytes."""
_DESCRIPTORS = re.compile(r"/dev/fd|/proc/([0-9]+)(?:/task/[0-9]+)?/fd")
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a block device"),
)


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of output. Exactly one of ``file`` and ``stream`` is set."""

    given_name: str
    """The name as the user gave it."""
    file: Path | None = None
    """The regular file that is created or replaced; no part of the path is a link."""
    exists: bool = False
    """Whether the file exists and is replaced."""
    stream: str | int | None = None
    """The device or pipe, or the number of an open descriptor."""


def resolve_destination(path: Path | str) -> Destination:
    """Determine what a write to ``path`` does.

    Raises:
        InvalidRequest: Nothing can be written to it, such as a directory.
    """
    named = os.fspath(path)
    if named == STANDARD_OUTPUT:
        return Destination(named, stream=1)
    if (descriptor := _descriptor_number(named)) is not None:
        return Destination(named, stream=descriptor)
    try:
        mode = os.stat(named).st_mode
    except FileNotFoundError:
        if not os.path.basename(named):
            _raise_not_writable(named, "a directory that does not exist")
        return Destination(named, file=Path(os.path.realpath(named)))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{named}: {getattr(error, 'strerror', error)}") from None
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        return Destination(named, stream=named)
    for is_kind, kind in _KINDS:
        if is_kind(mode):
            _raise_not_writable(named, kind)
    return Destination(named, file=Path(os.path.realpath(named)), exists=True)


class OutputFile:
    """Output that is being written; see `output_file`."""

    def __init__(self, target: Destination, descriptor: int, unfinished: Path | None) -> None:
        self.unfinished = unfinished
        """The file that is being written; None for a stream, which cannot be read back."""
        self._destination = target
        self._descriptor = descriptor
        self._unsynced_bytes = 0
        self.in_thread = False
        """Whether a thread writes, or was abandoned during a write."""

    def write(self, data: "Buffer") -> None:
        """Write all of it. Raises `DiskFull`, `DiskFailed`."""
        try:
            self._unsynced_bytes += write_all(self._descriptor, data)
            if self.unfinished is not None and self._unsynced_bytes > SYNC_BYTES:
                os.fsync(self._descriptor)
                self._unsynced_bytes = 0
        except BrokenPipeError:
            raise DiskFailed(
                f"{self._destination.given_name}: its reader ended before everything was written"
            ) from None
        except OSError as error:
            raise _disk_error(error, f"{self._destination.given_name}: writing it") from error

    async def write_in_thread(self, data: "Buffer") -> None:
        """Write without blocking the event loop, because a pipe's reader may be slow."""
        import trio  # here: a command that writes no file does not load it

        self.in_thread = True
        await trio.to_thread.run_sync(self.write, data, abandon_on_cancel=self.unfinished is None)
        self.in_thread = False


@contextlib.contextmanager
def output_file(
    path: Path | str, *, secret: bool = False, reader_wait_s: float = READER_WAIT_S
) -> Iterator[OutputFile]:
    """Write to ``path`` as the module describes. The file gets its name if the block ends without an error.

    Args:
        path: The destination.
        secret: Only the owner can read the file, from the beginning. Otherwise, a replaced file keeps its
            mode.
        reader_wait_s: How long to wait for the reader of a pipe.

    Raises:
        InvalidRequest: ``path`` cannot be written to.
        DiskFull: There is no space left.
        DiskFailed: A write or sync failed, or the reader of the pipe ended.
    """
    target = resolve_destination(path)
    if target.file is not None:
        with _replace_file(target, target.file, secret) as output:
            yield output
        return
    descriptor = _open_stream(target, reader_wait_s)
    output = OutputFile(target, descriptor, None)
    try:
        yield output
    finally:
        if not output.in_thread:  # otherwise the end of the process closes it
            os.close(descriptor)


def write_file(path: Path | str, content: "Buffer | str", *, secret: bool = False) -> None:
    """Write one small file. See `output_file`."""
    with output_file(path, secret=secret) as output:
        output.write(content.encode() if isinstance(content, str) else content)


def write_all(descriptor: int, data: "Buffer") -> int:
    """Write all bytes, also to a descriptor that is non-blocking; return their number.

    Raises `OSError`; a part may have been written then.
    """
    remaining = memoryview(data).cast("B")
    size = len(remaining)
    while remaining:
        try:
            remaining = remaining[os.write(descriptor, remaining) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
    return size


@contextlib.contextmanager
def _replace_file(target: Destination, file: Path, secret: bool) -> Iterator[OutputFile]:
    unfinished = file.with_name(
        f"{file.name[:NAME_CHARS_MAX]}.{os.urandom(8).hex()}{PARTIAL_SUFFIX}"
    )
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        old_stat = file.stat() if target.exists else None
        descriptor = os.open(unfinished, flags, SECRET_MODE if secret else MODE)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_error(error, f"{target.given_name}: writing it") from error
        raise InvalidRequest(
            f"{target.given_name}: no file can be made in {file.parent}: {error.strerror}"
        ) from None
    try:
        try:
            if old_stat is not None and not secret:
                _copy_owner_and_mode(descriptor, old_stat)
            yield OutputFile(target, descriptor, unfinished)
            try:
                os.fsync(descriptor)
            except OSError as error:
                raise _disk_error(error, f"{target.given_name}: syncing it") from error
        finally:
            os.close(descriptor)
        try:
            os.replace(unfinished, file)
        except OSError as error:  # such as a file that is a mount point of a container
            raise InvalidRequest(
                f"{target.given_name}: it cannot be replaced: {error.strerror}"
            ) from None
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    _sync_names(file.parent)


def _disk_error(error: OSError, what: str) -> DiskFailed:
    from .directory_file import disk_error

    return disk_error(error, what)


def _copy_owner_and_mode(descriptor: int, old_stat: os.stat_result) -> None:
    """Copy the mode of the old file to the new one, and its owner, which only root can change."""
    with contextlib.suppress(OSError):
        os.fchown(descriptor, old_stat.st_uid, old_stat.st_gid)
    with contextlib.suppress(
        OSError
    ):  # after the owner, whose change clears bits; not every file system has modes
        os.fchmod(descriptor, stat.S_IMODE(old_stat.st_mode))


def _open_stream(target: Destination, reader_wait_s: float) -> int:
    assert target.stream is not None, "a destination is a file or a stream"
    try:
        if isinstance(target.stream, int):
            if target.stream == 1:
                sys.stdout.flush()  # earlier output precedes it
            return os.dup(target.stream)
        return _open_when_read(target.stream, time.monotonic() + reader_wait_s)
    except OSError as error:
        reason = "no program reads this pipe" if error.errno == errno.ENXIO else error.strerror
        raise InvalidRequest(f"{target.given_name}: {reason}") from None


def _open_when_read(stream: str, deadline: float) -> int:
    """Open a device, or a pipe when it has a reader. Raises `OSError`.

    A blocking open would wait forever.
    """
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    while True:
        try:
            descriptor = os.open(stream, flags)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() >= deadline:
                raise
            time.sleep(READER_POLL_S)
            continue
        os.set_blocking(descriptor, True)
        return descriptor


def _descriptor_number(path: str) -> int | None:
    """Return the number of the open descriptor of this process that ``path`` leads to, or None.

    It must not be opened by name, which would start at the beginning of a file and fails for a socket.
    """
    for _ in range(LINKS_MAX):
        directory, name = os.path.split(path)
        directory = os.path.realpath(directory or ".")
        if (match := _DESCRIPTORS.fullmatch(directory)) and name.isdecimal():
            return int(name) if match[1] in (None, str(os.getpid())) else None
        try:
            path = os.path.join(directory, os.readlink(path))
        except (OSError, ValueError):
            return None
    return None


def _raise_not_writable(given_name: str, kind: str) -> NoReturn:
    raise InvalidRequest(
        f"{given_name} is {kind}, and is not written to: give the name of a file, a pipe or a character "
        "device,"
        ' or "-" for standard output'
    )


def _sync_names(directory: Path) -> None:
    """Make the rename durable if the directory can be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
