"""The location of an archive: a directory that all hosts can access, or a URL of an object store.

Both provide the same operations: list, read, write a new object, create an object exclusively, delete.
Objects are never renamed, appended to, locked or changed. A created object is complete or does not exist. If
two processes create the same name, only one succeeds.

Buckets are accessed through fsspec, whose file systems support a conditional create,
``pipe_file(mode="create")``, for S3, GCS, Azure and others, each with a separate package. They take their
credentials from the environment. `pyarrow.fs` has no conditional create for any store.
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
    """An object that is being written sequentially. It is not visible before it is closed."""

    def write(self, data: Any) -> object:
        """Append bytes."""
        ...

    def close(self) -> None:
        """Make the object durable and visible."""
        ...

    def discard(self) -> None:
        """Abandon the object, so that it does not become visible, as far as possible."""
        ...


class ArchiveStore(Protocol):
    """The store of one archive. It is sent to tasks. Object names have no path."""

    location: str
    """The location as users write it."""
    is_local: bool
    """Whether it is a path that programs can open directly."""

    def prepare(self) -> None:
        """Create the location if necessary.

        Raises:
            InvalidRequest: It cannot contain an archive safely.
        """
        ...

    def list_sizes(self) -> dict[str, int]:
        """Return the sizes of all objects in bytes by name; none if the location does not exist."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content of an object, or None if it does not exist."""
        ...

    def read_pieces(self, name: str) -> Iterator[Any]:
        """Yield an object in pieces of some MiB. Raises `CorruptData` if it does not exist."""
        ...

    def read_buffer(self, name: str) -> Any:
        """Return an object as Arrow buffer, memory-mapped if possible.

        Raises:
            CorruptData: It does not exist.
        """
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Create an object durably, unless one of this name exists. Return whether it was created.

        Raises:
            ConnectionLost: The outcome is unknown.
        """
        ...

    def begin_object(self, name: str) -> NewObject:
        """Start a new object with a unique name."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete the existing objects of these names."""
        ...

    def path(self, name: str) -> str:
        """Return the path of an object, for messages."""
        ...


def store_of(location: str | Path) -> ArchiveStore:
    """Return the store of an archive, by a path or a URL. Raises `InvalidRequest`."""
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
        """Create the directory and its parents."""
        self._path.mkdir(parents=True, exist_ok=True)

    def list_sizes(self) -> dict[str, int]:
        """Return the sizes of all files."""
        size_by_name = {}
        with suppress(FileNotFoundError, NotADirectoryError):
            for file in self._path.iterdir():
                with suppress(FileNotFoundError):  # deleted since the listing
                    size_by_name[file.name] = file.stat().st_size
        return size_by_name

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None."""
        try:
            return (self._path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_pieces(self, name: str) -> Iterator[Any]:
        """Yield the content of a file in pieces."""
        with _translate_read_errors(self.path(name)), open(self._path / name, "rb") as file:
            while piece := file.read(READ_BYTES):
                yield piece

    def read_buffer(self, name: str) -> Any:
        """Return a memory-mapped file."""
        import pyarrow as pa

        with _translate_read_errors(self.path(name)):
            return pa.memory_map(
                self.path(name)
            ).read_buffer()  # stays mapped while the buffer is used

    def create(self, name: str, data: bytes) -> bool:
        """Write a temporary file, sync it, and link it. The link fails if the name exists."""
        temporary = self._path / f".{name}.{uuid4().hex}"
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            _sync(self._path)  # make the names of listed files durable before this object
            os.link(temporary, self._path / name)
        except (
            FileExistsError,
            FileNotFoundError,
        ):  # the name exists, or another process has cleaned up the temporary file
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            raise InvalidRequest(
                f"{self.location}: the file system has no hard links, which archives require"
            ) from None
        finally:
            temporary.unlink(missing_ok=True)
        _sync(self._path)
        return True

    def begin_object(self, name: str) -> NewObject:
        """Create a new file."""
        return _NewFile(self._path / name)

    def delete(self, names: Iterable[str]) -> None:
        """Delete the existing files of these names."""
        for name in names:
            (self._path / name).unlink(missing_ok=True)

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return str(self._path / name)


class _NewFile:
    """A file that is written sequentially, once."""

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
    """A location in an object store, by a URL that fsspec supports."""

    is_local = False

    def __init__(self, where: str) -> None:
        self.location = where.rstrip("/")

    def prepare(self) -> None:
        """Check that the store refuses to create an existing object.

        A store that overwrites it would lose records, because each of two concurrent appends would succeed.
        """
        name = f"_probe-{uuid4().hex}"
        try:
            if self.create(name, b"1") and not self.create(name, b"2"):
                return
        finally:
            with suppress(DistributedLogError):
                self.delete([name])
        raise InvalidRequest(
            f"{self.location}: this store overwrites existing objects. An archive requires conditional "
            "writes, which create an object only if it does not exist"
        )

    def list_sizes(self) -> dict[str, int]:
        """Return the sizes of all objects."""
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
        """Return the content of an object, or None."""
        fs, root = self._file_system()
        with self._translate_errors(self.path(name)):
            try:
                return bytes(fs.cat_file(f"{root}/{name}"))
            except FileNotFoundError:
                return None

    def read_pieces(self, name: str) -> Iterator[Any]:
        """Yield the content of an object, in one piece."""
        yield self.read_buffer(name)

    def read_buffer(self, name: str) -> Any:
        """Return the content of an object as Arrow buffer."""
        import pyarrow as pa

        data = self.read(name)
        if data is None:
            raise CorruptData(f"{self.path(name)} cannot be read: it does not exist")
        return pa.py_buffer(data)

    def create(self, name: str, data: bytes) -> bool:
        """Create an object by a conditional put."""
        fs, root = self._file_system()
        with self._translate_errors(self.path(name)):
            try:
                fs.pipe_file(f"{root}/{name}", data, mode="create")
            except FileExistsError:
                return False
        return True

    def begin_object(self, name: str) -> NewObject:
        """Start an upload."""
        return _NewUpload(self, name)

    def delete(self, names: Iterable[str]) -> None:
        """Delete the existing objects of these names."""
        fs, root = self._file_system()
        for name in names:
            with self._translate_errors(self.path(name)), suppress(FileNotFoundError):
                fs.rm_file(f"{root}/{name}")

    def path(self, name: str) -> str:
        """Return the URL of an object."""
        return f"{self.location}/{name}"

    def _file_system(self) -> tuple[Any, str]:
        """Return the file system, which fsspec caches per process, and the root path in it."""
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise InvalidRequest(
                f"{self.location}: archives in an object store require fsspec and the package of the store: "
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
        """Translate the exceptions of a store's package. Each package has its own classes."""
        try:
            yield
        except Exception as error:
            raise _to_own_error(object_path, error) from error


class _NewUpload:
    """An object that becomes visible when its upload is complete."""

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
        """Abandon the upload without closing it, which would complete it.

        Some packages cannot abandon an upload. Then the object exists, but no manifest lists it.
        """
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
