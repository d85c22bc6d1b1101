"""Where an archive lies: a directory that all hosts see, or a bucket of an object store, by its URL.

Both do the same few things: list, read, write a new object, create one that nobody else has created, delete.
Nothing is renamed, appended to, locked or changed in place, so whatever gives these is enough. What is
created is there whole, or not at all; of two that create one name, one is told.

Buckets are reached through fsspec, whose file systems know a conditional create
(``pipe_file(mode="create")``: S3, GCS, Azure and others, each with a package of its own); credentials are
theirs, from the environment. `pyarrow.fs` has no conditional create in any store.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from ...runtime.interfaces.errors import (
    ConnectionLost,
    CorruptData,
    DistributedLogError,
    InvalidRequest,
)

READ_BYTES = 8 * 1024 * 1024


class NewObject(Protocol):
    """An object that is being written, from front to back; nobody sees it before it is closed."""

    def write(self, data: Any) -> object:
        """Take bytes."""
        ...

    def close(self) -> None:
        """Durable, and there."""
        ...

    def discard(self) -> None:
        """It will not be there, as far as that can be had."""
        ...


class ArchiveStore(Protocol):
    """Of one archive. Travels to tasks. Names are without a path."""

    location: str
    """As users name it."""
    is_local: bool
    """Is it a path that programs may open by themselves?"""

    def prepare(self) -> None:
        """Make it where that is needed. Raises `InvalidRequest` where it cannot hold an archive safely."""
        ...

    def list_sizes(self) -> dict[str, int]:
        """All objects and their bytes; none where there is no such place."""
        ...

    def read(self, name: str) -> bytes | None:
        """All of an object; None where it is not there."""
        ...

    def read_pieces(self, name: str) -> Iterator[Any]:
        """An object in pieces of some MiB. Raises `CorruptData` where it is not there."""
        ...

    def read_buffer(self, name: str) -> Any:
        """An object as Arrow's buffer, mapped where that is possible. Raises `CorruptData` as
        `read_pieces`."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Put an object there, durably, if there is none of the name; was there none?

        Raises `ConnectionLost` where that is not known.
        """
        ...

    def begin_object(self, name: str) -> NewObject:
        """Begin an object whose name nobody else uses."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Those that are there."""
        ...

    def path(self, name: str) -> str:
        """Of an object, for messages."""
        ...


def store_of(location: str | Path) -> ArchiveStore:
    """The store of an archive, by a path or a URL. Raises `InvalidRequest`."""
    text = str(location)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        return BucketStore(text)
    return DirectoryStore(os.path.abspath(text))


class DirectoryStore:
    """A directory, on a file system with hard links."""

    is_local = True

    def __init__(self, where: str) -> None:
        self.location = where
        self._path = Path(where)

    def prepare(self) -> None:
        """Make it, with what is above it."""
        self._path.mkdir(parents=True, exist_ok=True)

    def list_sizes(self) -> dict[str, int]:
        """All of them."""
        size_by_name = {}
        with suppress(FileNotFoundError, NotADirectoryError):
            for file in self._path.iterdir():
                with suppress(FileNotFoundError):  # removed since it was listed
                    size_by_name[file.name] = file.stat().st_size
        return size_by_name

    def read(self, name: str) -> bytes | None:
        """All of one; None where it is not there."""
        try:
            return (self._path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_pieces(self, name: str) -> Iterator[Any]:
        """As they lie in it."""
        with _translate_read_errors(self.path(name)), open(self._path / name, "rb") as file:
            while piece := file.read(READ_BYTES):
                yield piece

    def read_buffer(self, name: str) -> Any:
        """In memory, or mapped."""
        import pyarrow as pa

        with _translate_read_errors(self.path(name)):
            return pa.memory_map(self.path(name)).read_buffer()  # mapped as long as it is used

    def create(self, name: str, data: bytes) -> bool:
        """Written aside, synced, and linked: a link is refused where there is one of the name."""
        temporary = self._path / f".{name}.{uuid4().hex}"
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            _sync(self._path)  # the names of other objects, before this one speaks of them
            os.link(temporary, self._path / name)
        except (
            FileExistsError,
            FileNotFoundError,
        ):  # or what was aside is gone: another one cleans up
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            raise InvalidRequest(
                f"{self.location}: its file system has no hard links, by which an archive grows in one step"
            ) from None
        finally:
            temporary.unlink(missing_ok=True)
        _sync(self._path)
        return True

    def begin_object(self, name: str) -> NewObject:
        """Begin one."""
        return _NewFile(self._path / name)

    def delete(self, names: Iterable[str]) -> None:
        """Those that are there."""
        for name in names:
            (self._path / name).unlink(missing_ok=True)

    def path(self, name: str) -> str:
        """Of one."""
        return str(self._path / name)


class _NewFile:
    """A file that is written once from front to back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "xb")  # noqa: SIM115

    def write(self, data: Any) -> object:
        return self._file.write(data)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


class BucketStore:
    """A place in an object store, by a URL that fsspec knows."""

    is_local = False

    def __init__(self, where: str) -> None:
        self.location = where.rstrip("/")

    def prepare(self) -> None:
        """Does the store refuse to create what is there? One that writes over it would lose records: each of
        two appends would believe that it was the one."""
        name = f"_probe-{uuid4().hex}"
        try:
            if self.create(name, b"1") and not self.create(name, b"2"):
                return
        finally:
            with suppress(DistributedLogError):
                self.delete([name])
        raise InvalidRequest(
            f"{self.location}: this store writes over what is there; an archive needs one that creates an "
            "object only if there is none (conditional writes)"
        )

    def list_sizes(self) -> dict[str, int]:
        """All of them."""
        fs, root = self._file_system()
        with self._translate_errors(root):
            fs.invalidate_cache()
            try:
                listed = fs.ls(root, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return {}
        files = [entry for entry in listed if entry["type"] == "file"]
        return {str(entry["name"]).rpartition("/")[2]: int(entry["size"]) for entry in files}

    def read(self, name: str) -> bytes | None:
        """All of one; None where it is not there."""
        fs, root = self._file_system()
        with self._translate_errors(self.path(name)):
            try:
                return bytes(fs.cat_file(f"{root}/{name}"))
            except FileNotFoundError:
                return None

    def read_pieces(self, name: str) -> Iterator[Any]:
        """As they lie in it."""
        yield self.read_buffer(name)

    def read_buffer(self, name: str) -> Any:
        """In memory, or mapped."""
        import pyarrow as pa

        data = self.read(name)
        if data is None:
            raise CorruptData(f"{self.path(name)} cannot be read: it is not there")
        return pa.py_buffer(data)

    def create(self, name: str, data: bytes) -> bool:
        """A conditional put."""
        fs, root = self._file_system()
        with self._translate_errors(self.path(name)):
            try:
                fs.pipe_file(f"{root}/{name}", data, mode="create")
            except FileExistsError:
                return False
        return True

    def begin_object(self, name: str) -> NewObject:
        """Begin one."""
        return _NewUpload(self, name)

    def delete(self, names: Iterable[str]) -> None:
        """Those that are there."""
        fs, root = self._file_system()
        for name in names:
            with self._translate_errors(self.path(name)), suppress(FileNotFoundError):
                fs.rm_file(f"{root}/{name}")

    def path(self, name: str) -> str:
        """Of one."""
        return f"{self.location}/{name}"

    def _file_system(self) -> tuple[Any, str]:
        """The file system, which fsspec keeps for a process, and the root in it."""
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise InvalidRequest(
                f"{self.location}: archives in an object store need fsspec and the store's package: "
                "pip install fsspec s3fs (S3), gcsfs (GCS), adlfs (Azure)"
            ) from None
        try:
            fs, root = url_to_fs(self.location)
        except (ImportError, ValueError) as error:
            raise InvalidRequest(f"{self.location}: {error}") from None
        except Exception as error:
            raise _to_own_error(self.location, error) from error
        return fs, str(root).rstrip("/")

    @contextmanager
    def _translate_errors(self, object_path: str) -> Iterator[None]:
        """What a store's package raises, as errors of ours; each has classes of its own."""
        try:
            yield
        except Exception as error:
            raise _to_own_error(object_path, error) from error


class _NewUpload:
    """An object that its store shows when the upload is complete."""

    def __init__(self, bucket: BucketStore, name: str) -> None:
        self._bucket = bucket
        self._object_path = bucket.path(name)
        fs, root = bucket._file_system()
        with bucket._translate_errors(self._object_path):
            self._file = fs.open(f"{root}/{name}", "wb")

    def write(self, data: Any) -> object:
        with self._bucket._translate_errors(self._object_path):
            return self._file.write(data)

    def close(self) -> None:
        with self._bucket._translate_errors(self._object_path):
            self._file.close()

    def discard(self) -> None:
        """Without a close, which would complete it; some packages cannot leave an upload: then it is there,
        and no manifest names it."""
        with suppress(Exception):
            self._file.discard()


@contextmanager
def _translate_read_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CorruptData(f"{path} cannot be read: {error}") from None


def _sync(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _to_own_error(object_path: str, error: Exception) -> DistributedLogError:
    if isinstance(error, DistributedLogError):
        return error
    text = f"{object_path}: {type(error).__name__}: {error!s:.300}"
    if isinstance(error, PermissionError):
        return InvalidRequest(text)
    return ConnectionLost(text)
