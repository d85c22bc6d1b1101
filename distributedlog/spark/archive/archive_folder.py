"""What is in an archive's store, and the one step in which the archive changes.

The manifest of each state is an object of its own, numbered by its generation: the newest one counts. An
archive grows by creating the next number, which its store lets one do alone: of two that append at once one
fails, and no state in between can be seen. A file's name says for which generation it was written, and once
there is a manifest of that generation nothing more can come to name it: so what failed attempts left is known
without a lock, and removed by whoever appends next.

    _manifest-GENERATION.json                   generation as 19 digits
    SEQUENCE_ID-gGENERATION-UUID.parquet        sequence id as 19 digits
    manifest.json, SEQUENCE_ID-UUID.parquet     of older programs, which are read, and grow as others do
"""

import logging
import re
from collections.abc import Callable, Mapping
from uuid import uuid4

import xxhash

from ...runtime.interfaces.errors import (
    ConnectionLost,
    CorruptData,
    DistributedLogError,
    ForeignData,
    InvalidRequest,
    VersionConflict,
)
from .archive_store import ArchiveStore
from .manifest import Manifest

OLD_NAME = "manifest.json"
MANIFESTS_KEPT = 10
"""Manifests that stay: whoever has just listed them finds the one it saw."""
TRIES = 5
"""Of a create whose outcome is not known, and of a read of what was removed meanwhile."""
_MANIFEST = re.compile(r"_manifest-([0-9]{19})\.json")
_FILE = re.compile(r"[0-9]{19}-(?:g([0-9]{1,19})-)?[0-9a-f]{32}\.parquet")
_TEMPORARY = re.compile(r"\._manifest-([0-9]{19})\.json\.[0-9a-f]{32}|\.manifest\.json\..*")
_PROBE = re.compile(r"_probe-[0-9a-f]{32}")

log = logging.getLogger("distributedlog.spark")


def file_name(first_sequence_id: int, generation: int) -> str:
    """Of a new file: sorts as the log does, and belongs to one attempt of one task of one append."""
    return f"{first_sequence_id:019d}-g{generation}-{uuid4().hex}.parquet"


def manifest_name(generation: int) -> str:
    """Of the manifest of a generation."""
    return f"_manifest-{generation:019d}.json"


def read_manifest(store: ArchiveStore) -> Manifest:
    """The manifest. Raises `InvalidRequest` where there is none, `CorruptData`, `ForeignData`."""
    manifest = read_manifest_if_any(store)
    if manifest is None:
        raise InvalidRequest(
            f"{store.location} has no manifest: it is no archive, or its export did not finish"
        )
    return manifest


def read_manifest_if_any(store: ArchiveStore) -> Manifest | None:
    """The newest manifest; None where there is none."""
    return _newest_manifest(store, store.list_sizes())


def _newest_manifest(store: ArchiveStore, sizes: Mapping[str, int]) -> Manifest | None:
    for _ in range(TRIES):
        generations = _manifest_generations(sizes)
        name = manifest_name(max(generations)) if generations else OLD_NAME
        if not generations and OLD_NAME not in sizes:
            return None
        text = store.read(name)
        if text is not None:
            manifest = Manifest.decode(text, store.path(name))
            if generations and manifest.generation != max(generations):
                raise CorruptData(
                    f"{store.path(name)} is of generation {manifest.generation}: it was renamed, or copied"
                )
            return manifest
        sizes = store.list_sizes()  # it grew by many since, and the one that was seen is gone
    raise CorruptData(f"{store.location}: its newest manifest is listed and cannot be read")


def list_files(store: ArchiveStore, manifest: Manifest) -> dict[str, int]:
    """What is in there beside manifests and what failed attempts left, and its bytes."""
    named_files = {one.name for one in manifest.files}
    return {
        name: size
        for name, size in store.list_sizes().items()
        if name in named_files or not _is_archive_object(name)
    }


def verify(store: ArchiveStore, manifest: Manifest) -> None:
    """Are all files there as the manifest states, byte for byte, and no others?

    Raises `CorruptData` or `ForeignData`, naming the first that is not.
    """
    manifest.check_listing(list_files(store, manifest), store.location, no_others=True)
    for file in manifest.files:
        hasher = xxhash.xxh3_64()
        for piece in store.read_pieces(file.name):
            hasher.update(piece)
        if hasher.intdigest() != file.file_xxh3:
            raise CorruptData(
                f"{store.path(file.name)} is damaged: its bytes are not those that the manifest states"
            )


def prepare_new(store: ArchiveStore) -> None:
    """A place for a new archive, perhaps one where an export was killed.

    Raises `ForeignData` naming what else is in there, an archive for example.
    """
    store.prepare()
    sizes = store.list_sizes()
    if _manifest_generations(sizes) or OLD_NAME in sizes:
        raise ForeignData(f"{store.location} holds an archive already: name an empty directory")
    for name in sorted(sizes):
        if not _is_archive_object(name):
            raise ForeignData(
                f"{store.location} is not empty: it holds {name}; name an empty directory"
            )


def publish(
    store: ArchiveStore, id_: str, generation: int, make: Callable[[Manifest | None], Manifest]
) -> None:
    """Make what ``make`` makes of the manifest the newest one, durably, if it is still this one.

    ``generation`` 0: there is none yet. Raises `VersionConflict` when there is another one, or a new file
    is not there (any more).
    """
    sizes = store.list_sizes()
    current = _newest_manifest(store, sizes)
    current_version = (id_, 0) if current is None else (current.id, current.generation)
    if current_version != (id_, generation):
        raise _conflict(store, current_version, (id_, generation))
    new_manifest = make(current)
    if new_manifest is current:
        return
    known_names = (
        set() if current is None else {generation_name.name for generation_name in current.files}
    )
    new_names = [
        generation_name.name
        for generation_name in new_manifest.files
        if generation_name.name not in known_names
    ]
    for name in new_names:
        if name not in sizes:
            raise VersionConflict(f"{store.path(name)} was removed by another append")
    name, text = manifest_name(new_manifest.generation), new_manifest.encode()
    created = _create(store, name, text)
    # The number is free again once many have followed: then it came too late, and counts for nothing.
    newest = read_manifest(store)
    newest_names = {generation_name.name for generation_name in newest.files}
    if not created or newest.id != new_manifest.id or not newest_names.issuperset(new_names):
        if created:
            store.delete([name])
        raise _conflict(store, (newest.id, newest.generation), (id_, generation))
    try:
        clean(store)
    except (DistributedLogError, OSError) as error:
        log.warning(
            "%s: what failed attempts left stays for the next append: %s", store.location, error
        )


def clean(store: ArchiveStore) -> None:
    """Remove what nothing can come to name any more: files of generations that there are, old manifests."""
    sizes = store.list_sizes()
    current = _newest_manifest(store, sizes)
    if current is None:
        return
    generations, linked = _manifest_generations(sizes), {item.name for item in current.files}
    removable = [
        manifest_name(item) for item in generations if item <= current.generation - MANIFESTS_KEPT
    ]
    for name in sizes:
        file, temporary = _FILE.fullmatch(name), _TEMPORARY.fullmatch(name)
        for match in (file, temporary):
            if match and name not in linked and int(match[1] or 0) <= current.generation:
                removable.append(name)
    if generations and OLD_NAME in sizes:
        removable.append(OLD_NAME)  # else an older program would grow another archive from there
    store.delete(removable)


def _create(store: ArchiveStore, name: str, text: bytes) -> bool:
    """`ArchiveStore.create`, until its outcome is known: the text tells whose it is, for it names new
    files."""
    for tries_left in reversed(range(TRIES)):
        try:
            if store.create(name, text):
                return True
            return store.read(name) == text
        except ConnectionLost as error:
            if not tries_left:
                raise
            log.warning("%s: asked again: %s", store.location, error)
    raise AssertionError("the last try returns or raises")


def _conflict(
    store: ArchiveStore, current_version: tuple[str, int], expected: tuple[str, int]
) -> VersionConflict:
    return VersionConflict(
        f"{store.location} is at generation {current_version[1]} of archive {current_version[0]}, not "
        f"{expected[1]} of "
        f"{expected[0]}: somebody else appended to it meanwhile"
    )


def _manifest_generations(sizes: Mapping[str, int]) -> list[int]:
    """The generations of which there is a manifest."""
    return [int(match[1]) for name in sizes if (match := _MANIFEST.fullmatch(name))]


def _is_archive_object(name: str) -> bool:
    """Is it an object that an archive makes, whether it counts or not? A dot in front: nobody's."""
    return bool(
        name.startswith(".")
        or name == OLD_NAME
        or any(one.fullmatch(name) for one in (_MANIFEST, _FILE, _PROBE))
    )
