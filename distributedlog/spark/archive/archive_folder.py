"""The objects in an archive's store, and the one step that changes an archive.

The manifest of each state is a separate object, numbered by its generation, and the newest one applies. An
archive grows by the creation of the next number, which its store allows only once. Of two concurrent appends
one fails, and no intermediate state is visible. The name of a file contains the generation for which it was
written. Once a manifest of that generation exists, no later manifest can list the file. Files of failed
attempts are therefore known without a lock, and the next append deletes them.

    _manifest-GENERATION.json                   generation as 19 digits
    SEQUENCE_ID-gGENERATION-UUID.parquet        sequence ID as 19 digits
    manifest.json, SEQUENCE_ID-UUID.parquet     of older versions, which can be read and appended to
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
"""Number of manifests that are kept, so that a reader can read the newest one that it has just listed."""
TRIES = 5
"""Attempts of a create with unknown outcome, and of a read of an object that was deleted in the meantime."""
_MANIFEST = re.compile(r"_manifest-([0-9]{19})\.json")
_FILE = re.compile(r"[0-9]{19}-(?:g([0-9]{1,19})-)?[0-9a-f]{32}\.parquet")
_TEMPORARY = re.compile(r"\._manifest-([0-9]{19})\.json\.[0-9a-f]{32}|\.manifest\.json\..*")
_PROBE = re.compile(r"_probe-[0-9a-f]{32}")

log = logging.getLogger("distributedlog.spark")


def file_name(first_sequence_id: int, generation: int) -> str:
    """Return the name of a new file. It sorts in log order, and belongs to one attempt of one task."""
    return f"{first_sequence_id:019d}-g{generation}-{uuid4().hex}.parquet"


def manifest_name(generation: int) -> str:
    """Return the name of the manifest of a generation."""
    return f"_manifest-{generation:019d}.json"


def read_manifest(store: ArchiveStore) -> Manifest:
    """Return the newest manifest.

    Raises:
        InvalidRequest: There is none.
        CorruptData, ForeignData: It is damaged, or another program wrote it.
    """
    manifest = read_manifest_if_any(store)
    if manifest is None:
        raise InvalidRequest(
            f"{store.location} has no manifest: it is not an archive, or its export did not finish"
        )
    return manifest


def read_manifest_if_any(store: ArchiveStore) -> Manifest | None:
    """Return the newest manifest, or None if there is none."""
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
                    f"{store.path(name)} has generation {manifest.generation}: it was renamed or copied"
                )
            return manifest
        sizes = store.list_sizes()  # many appends since the listing have deleted the manifest
    raise CorruptData(f"{store.location}: the newest manifest is listed and cannot be read")


def list_files(store: ArchiveStore, manifest: Manifest) -> dict[str, int]:
    """Return the objects except manifests and files of failed attempts, with their sizes in bytes."""
    named_files = {one.name for one in manifest.files}
    return {
        name: size
        for name, size in store.list_sizes().items()
        if name in named_files or not _is_archive_object(name)
    }


def verify(store: ArchiveStore, manifest: Manifest) -> None:
    """Check that all files exist with the digests of the manifest, and no other files.

    Raises:
        CorruptData: A file is missing or damaged.
        ForeignData: There is another file.
    """
    manifest.check_listing(list_files(store, manifest), store.location, no_others=True)
    for file in manifest.files:
        hasher = xxhash.xxh3_64()
        for piece in store.read_pieces(file.name):
            hasher.update(piece)
        if hasher.intdigest() != file.file_xxh3:
            raise CorruptData(
                f"{store.path(file.name)} is damaged: its digest differs from the manifest"
            )


def prepare_new(store: ArchiveStore) -> None:
    """Prepare the location of a new archive. Files of an interrupted export are accepted.

    Raises:
        ForeignData: The location contains an archive or other objects.
    """
    store.prepare()
    sizes = store.list_sizes()
    if _manifest_generations(sizes) or OLD_NAME in sizes:
        raise ForeignData(f"{store.location} already contains an archive. Use an empty directory")
    for name in sorted(sizes):
        if not _is_archive_object(name):
            raise ForeignData(
                f"{store.location} is not empty: it contains {name}. Use an empty directory"
            )


def publish(
    store: ArchiveStore, id_: str, generation: int, make: Callable[[Manifest | None], Manifest]
) -> None:
    """Durably publish a changed manifest, if the present one is still the expected one.

    Args:
        store: The archive.
        id_: The expected ID of the archive.
        generation: The expected generation; 0 if there is no archive yet.
        make: Returns the new manifest from the present one.

    Raises:
        VersionConflict: Another append was faster, or deleted a new file.
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
            raise VersionConflict(f"{store.path(name)} was deleted by another append")
    name, text = manifest_name(new_manifest.generation), new_manifest.encode()
    created = _create(store, name, text)
    # After many appends the number is free again. Then this manifest is too late and not the newest one.
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
            "%s: files of failed attempts remain until the next append: %s", store.location, error
        )


def clean(store: ArchiveStore) -> None:
    """Delete objects that no later manifest can list: files of existing generations, and old manifests."""
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
        removable.append(
            OLD_NAME
        )  # otherwise an older version would continue from the old manifest
    store.delete(removable)


def _create(store: ArchiveStore, name: str, text: bytes) -> bool:
    """Call `ArchiveStore.create` until the outcome is known.

    The text identifies the creator, because it lists new files.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            if store.create(name, text):
                return True
            return store.read(name) == text
        except ConnectionLost as error:
            if not tries_left:
                raise
            log.warning("%s: retrying: %s", store.location, error)
    raise AssertionError("the last try returns or raises")


def _conflict(
    store: ArchiveStore, current_version: tuple[str, int], expected: tuple[str, int]
) -> VersionConflict:
    return VersionConflict(
        f"{store.location} has generation {current_version[1]} of archive {current_version[0]}, expected "
        f"{expected[1]} of "
        f"{expected[0]}: another process has appended to it"
    )


def _manifest_generations(sizes: Mapping[str, int]) -> list[int]:
    """Return the generations that have a manifest."""
    return [int(match[1]) for name in sizes if (match := _MANIFEST.fullmatch(name))]


def _is_archive_object(name: str) -> bool:
    """Whether an archive creates objects of this name. Names with a leading dot are ignored, too."""
    return bool(
        name.startswith(".")
        or name == OLD_NAME
        or any(one.fullmatch(name) for one in (_MANIFEST, _FILE, _PROBE))
    )
