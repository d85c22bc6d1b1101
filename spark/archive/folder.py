"""An archive's directory: what is in it, and the one step in which it changes.

The manifest is written aside, synced and renamed under a lock, and only if it is still the one that the
change began with: of two that append at once one fails, and no state in between can be seen. Files that no
manifest names are what killed attempts left; they are removed under the same lock, so that a manifest never
names a file that is gone.
"""

import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import xxhash

from ...runtime.errors import CorruptData, ForeignData, InvalidRequest, VersionConflict
from .manifest import NAME, Manifest

LOCK = ".lock"
READ_BYTES = 8 * 1024 * 1024
_OURS = re.compile(r"[0-9]{19}-[0-9a-f]{32}\.parquet")


def file_name(first_sequence_id: int) -> str:
    """Of a new file: sorts as the log does, and belongs to one attempt of one task."""
    return f"{first_sequence_id:019d}-{uuid4().hex}.parquet"


def local(directory: str | Path) -> Path:
    """The directory, which driver and executors share. Raises `InvalidRequest` for another file system."""
    text = str(directory)
    if "://" in text:
        raise InvalidRequest(
            f"{text}: an archive is in a directory that all hosts see under one path, not in a store with "
            "a scheme"
        )
    return Path(os.path.abspath(text))


def read(directory: Path) -> Manifest:
    """The manifest. Raises `InvalidRequest` where there is none, `CorruptData`, `ForeignData`."""
    found = read_if_any(directory)
    if found is None:
        raise InvalidRequest(
            f"{directory} has no {NAME}: it is no archive, or its export did not finish"
        )
    return found


def read_if_any(directory: Path) -> Manifest | None:
    """The manifest; None where there is none."""
    try:
        text = (directory / NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Manifest.decode(text, str(directory / NAME))


def sizes(directory: Path) -> dict[str, int]:
    """The files beside the manifest and their sizes; those with a dot in front belong to nobody."""
    return {
        one.name: one.stat().st_size
        for one in directory.iterdir()
        if one.name != NAME and not one.name.startswith(".")
    }


def verify(directory: Path, manifest: Manifest) -> None:
    """Are all files there as the manifest states, byte for byte, and no others?

    Raises `CorruptData` or `ForeignData`, naming the first that is not.
    """
    manifest.check_listing(sizes(directory), str(directory), alone=True)
    for one in manifest.files:
        seen = xxhash.xxh3_64()
        with open(directory / one.name, "rb") as file:
            while piece := file.read(READ_BYTES):
                seen.update(piece)
        if seen.intdigest() != one.file_xxh3:
            raise CorruptData(
                f"{directory / one.name} is damaged: its bytes are not those that the manifest states"
            )


def prepare(directory: Path) -> None:
    """A directory for a new archive: made, and cleared of what a killed attempt left in it.

    Raises `ForeignData` naming what else is in there, an archive for example.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory):
        if (directory / NAME).exists():
            raise ForeignData(f"{directory} holds an archive already: name an empty directory")
        for name in sorted(sizes(directory)):
            if not _OURS.fullmatch(name):
                raise ForeignData(
                    f"{directory} is not empty: it holds {name}; name an empty directory"
                )
        _remove_leftovers(directory, None)


def clean(directory: Path) -> None:
    """Remove what killed attempts left."""
    with locked(directory):
        _remove_leftovers(directory, read_if_any(directory))


def publish(
    directory: Path, id_: str, generation: int, make: Callable[[Manifest | None], Manifest]
) -> None:
    """Put what ``make`` makes of the manifest into its place, durably, if it is still this one.

    ``generation`` 0: there is none yet. Raises `VersionConflict` when there is another one, or a new file
    is not there (any more).
    """
    with locked(directory):
        current = read_if_any(directory)
        stands = (id_, 0) if current is None else (current.id, current.generation)
        if stands != (id_, generation):
            raise VersionConflict(
                f"{directory} is at generation {stands[1]} of archive {stands[0]}, not {generation} of "
                f"{id_}: somebody else appended to it meanwhile"
            )
        made = make(current)
        if made is current:
            return
        known = set() if current is None else {one.name for one in current.files}
        for one in made.files:
            if one.name not in known and not (directory / one.name).exists():
                raise VersionConflict(f"{directory}/{one.name} was removed by another append")
        aside = directory / f".{NAME}.{uuid4().hex}"
        with open(aside, "xb") as file:
            file.write(made.encode())
            file.flush()
            os.fsync(file.fileno())
        _sync(directory)  # the names of the files, before a manifest names them
        aside.rename(directory / NAME)
        _sync(directory)


def discard(directory: Path, names: Iterable[str]) -> None:
    """Remove files of an attempt that failed; those that the manifest names stay."""
    with locked(directory):
        current = read_if_any(directory)
        linked = {one.name for one in current.files} if current is not None else set()
        for name in names:
            if name not in linked:
                (directory / name).unlink(missing_ok=True)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Alone with the manifest, for milliseconds; a killed process holds nothing."""
    number = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _remove_leftovers(directory: Path, current: Manifest | None) -> None:
    linked = {one.name for one in current.files} if current is not None else set()
    for one in directory.iterdir():
        aside = one.name.startswith(f".{NAME}.")
        if aside or (_OURS.fullmatch(one.name) and one.name not in linked):
            with suppress(FileNotFoundError):
                one.unlink()


def _sync(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
