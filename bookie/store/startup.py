"""Start a bookie: replay its data, rewrite blocks that may be unsynced, then serve.

1. Load the index. Its map stores the journal position that it covers, and totals of its contents. All pairs
   are verified, but a ledger is loaded only when the replay needs it. A damaged index is deleted and rebuilt
   (`index_rebuild.py`, H7).
2. Replay the journal after this position, and verify it (`journal_replay.py`, `journal_verifier.py`).
3. Begin a new journal file, copy into it the blocks that count and may be unsynced, and sync it
   (`first_journal_file.py`).
4. Write a checkpoint of the index. By then, ledgers that may have had entries in lost blocks are fenced and
   in limbo state.
"""

from functools import partial

from ...runtime.disk.atomic_file import read_file, replace_file
from ...runtime.interfaces.errors import CorruptData, DiskFailed, ForeignData, LedgerStateUnknown
from ...runtime.interfaces.host import Disk, Host, OrderedMap
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..declarations.events import INDEX_REBUILT
from ..declarations.options import BookieOptions
from ..disk.bookie_disk_space import BookieDiskSpace, DiskSpaceFacts
from ..disk.disk_reserve import Reserve
from ..format.compacted_format import compacted_file_number
from ..format.index_format import IndexCheckpoint, IndexDamaged
from ..format.journal_format import (
    FILE_PREFIX,
    IDENTITY_FILE_NAME,
    JournalIdentity,
    decode_identity,
    file_number,
)
from ..ledgers.ledger_table import LedgerTable
from ..storage.bookie_storage import BookieStorage
from ..storage.entry_reader import JournalFiles
from ..storage.index import MAP_NAME, Index
from ..storage.journal import Journal
from ..storage.journal_buffer import JournalBuffer
from .bookie_store import BookieStore
from .first_journal_file import FirstJournalFile
from .index_rebuild import IndexRebuild
from .journal_verifier import JournalDirectoryListing, JournalVerifier, VerifiedJournal

log = get_logger("distributedlog.bookie.store.startup")


async def open_store(
    host: Host,
    options: BookieOptions | None = None,
    *,
    bookie_id: str = "",
    recorded_sequence: int = 0,
    sync_point_unknown_reason: str = "",
    failures: WorkFailures | None = None,
) -> BookieStore:
    """Replay the data on the disks "journal" and "index", and return the store.

    Every acknowledged entry is present, or its ledger is in limbo state.

    Args:
        host: The machine with both disks.
        options: The options of the bookie; the defaults if None.
        bookie_id: The expected owner of the data; "" accepts any owner.
        recorded_sequence: The last block that the metadata records as synced here; 0 if there is none.
        sync_point_unknown_reason: The reason why the metadata has no reliable record, or "". With a reason,
            the store gives no negative answers about entries.
        failures: The failures of background work on the node.

    Raises:
        ForeignData: The data belongs to another bookie.
        UnsupportedFormat: A newer version wrote the data.
        CorruptData: The seed file and the index are both missing or damaged, or data that the start requires.
        DiskFailed: A disk returned an error.
    """
    options = options or BookieOptions()
    disk, map_disk = host.disks["journal"], host.disks["index"]
    listing = _list_files(disk)
    identity_bytes, stored_identity = await _read_identity(disk, bookie_id)
    ledgers, index, checkpoint = await _open_index(map_disk, options, stored_identity, bookie_id)
    try:
        has_files = bool(listing.journal or listing.compacted)
        identity = _resolve_identity(
            host, identity_bytes, stored_identity, checkpoint, bookie_id, has_files
        )
        if identity_bytes != identity.encode():
            await replace_file(disk, IDENTITY_FILE_NAME, identity.encode())
        new_verifier = partial(
            JournalVerifier, disk, listing, identity, recorded_sequence, sync_point_unknown_reason
        )
        try:
            verified = await _verify(new_verifier(ledgers, index), checkpoint)
        except (IndexDamaged, LedgerStateUnknown) as error:
            # The replay encountered damage in the map. Handle it like damage that loading the index finds.
            if checkpoint is None:
                raise
            log.error("bookie %s rebuilds its index: %s", identity.bookie_id, error)
            ledgers, index = await _new_index(map_disk, options, index)
            verified = await _verify(new_verifier(ledgers, index), None)
        storage = _make_storage(host, options, identity, ledgers, index)
        return await _begin_store(storage, listing, verified, identity, failures or WorkFailures())
    except BaseException as error:
        if ledgers.damage is not None or isinstance(error, IndexDamaged):
            await index.invalidate()
        index.close()
        raise


async def _verify(verifier: JournalVerifier, checkpoint: IndexCheckpoint | None) -> VerifiedJournal:
    """Replay the journal into the index, or rebuild an empty index, and verify the journal."""
    if checkpoint is None:
        replay = await IndexRebuild(verifier).rebuild()
    else:
        replay = await verifier.replay(checkpoint)
    return await verifier.verify(replay, checkpoint)


async def _begin_store(
    storage: BookieStorage,
    listing: JournalDirectoryListing,
    verified: VerifiedJournal,
    identity: JournalIdentity,
    failures: WorkFailures,
) -> BookieStore:
    """Create the store, begin its first journal file, and record that the bookie serves."""
    store = BookieStore(storage, loss_reason="; ".join(verified.loss_reasons), failures=failures)
    store.stats.corrupt_ranges = len(verified.replay.decision.lost_ranges)
    first_file = FirstJournalFile(
        storage, store.group_commit, store.checkpointer, listing, verified
    )
    await first_file.begin()
    if not identity.has_served:  # adds may be acknowledged after this
        served_identity = JournalIdentity(identity.bookie_id, identity.seed, True)
        await replace_file(storage.disk, IDENTITY_FILE_NAME, served_identity.encode())
    await storage.ensure_reserves()
    return store


def _make_storage(
    host: Host,
    options: BookieOptions,
    identity: JournalIdentity,
    ledgers: LedgerTable,
    index: Index,
) -> BookieStorage:
    """Create the parts that write, for the replayed index."""
    disk = host.disks["journal"]
    buffer = JournalBuffer(
        disk.aligned_buffer,
        buffers=options.gather_buffers,
        bytes_each=options.gather_bytes,
        block_max=options.block_bytes_max,
    )
    reserves = {
        role: Reserve(host.disks[role], role, options.first_file_bytes)
        for role in ("journal", "index")
    }
    # The disk keeps this space free for the journal's next files, so adds need not be refused for it.
    disk.set_min_free_bytes(options.free_bytes_min + 2 * options.journal_file_bytes)
    space = BookieDiskSpace(
        identity.bookie_id, lambda: _disk_space_facts(host, options, index, reserves)
    )
    journal = Journal(
        disk,
        buffer,
        options,
        identity=identity,
        ledgers=ledgers,
        space=space,
        reserve=reserves["journal"],
    )
    files = JournalFiles(disk, journal.file_name_of, options.open_files_max)
    return BookieStorage(disk, journal, buffer, index, ledgers, files, space, reserves, options)


def _list_files(disk: Disk) -> JournalDirectoryListing:
    compacted = {
        number: name for name in disk.list() if (number := compacted_file_number(name)) is not None
    }
    return JournalDirectoryListing(_journal_names(disk), compacted)


def _disk_space_facts(
    host: Host, options: BookieOptions, index: Index, reserves: dict[str, Reserve]
) -> DiskSpaceFacts:
    """Return the facts that decide whether the bookie is read-only."""
    return DiskSpaceFacts(
        journal_free_bytes=host.disks["journal"].free_bytes(),
        index_free_bytes=host.disks["index"].free_bytes(),
        free_bytes_min=options.free_bytes_min,
        reserves_missing=tuple(
            role for role, reserve in reserves.items() if not reserve.is_complete
        ),
        extents_in_memory=index.extents_in_memory + index.extents_frozen,
        checkpoint_runs=options.checkpoint_runs,
    )


def _journal_names(disk: Disk) -> dict[int, str]:
    """Return the names of the journal files on the disk, by number."""
    names: dict[int, str] = {}
    for name in disk.list():
        number = file_number(name)
        if number is not None:
            names[number] = name
        elif name.startswith(FILE_PREFIX):
            log.warning("%s is not a journal file of a bookie, and is ignored", name)
    return names


async def _read_identity(disk: Disk, bookie_id: str) -> tuple[bytes | None, JournalIdentity | None]:
    """Read the identity file.

    Returns:
        Its bytes: None if it is missing, b"" if it is unreadable. Its content: None if missing or damaged.

    Raises:
        ForeignData: The file belongs to another bookie.
    """
    try:
        data = await read_file(disk, IDENTITY_FILE_NAME)
    except (CorruptData, DiskFailed) as error:  # handled as damaged: the index may have the seed
        log.error("bookie %s: %s cannot be read (%s)", bookie_id, IDENTITY_FILE_NAME, error)
        data = b""
    identity = decode_identity(data) if data is not None else None
    if identity is not None:
        _check_owner(identity, bookie_id)
    return data, identity


async def _open_index(
    disk: Disk, options: BookieOptions, identity: JournalIdentity | None, bookie_id: str
) -> tuple[LedgerTable, Index, IndexCheckpoint | None]:
    index: Index | None = None
    try:
        ledgers, index = _make_index(await disk.open_map(MAP_NAME), options)
        checkpoint = await index.load()
        if checkpoint is not None and identity is not None and checkpoint.seed != identity.seed:
            # Its position may fit this journal anyway: bookies with the same entries have similar ones (H80).
            raise CorruptData(f"it belongs to another journal, of bookie {checkpoint.bookie_id}")
        return ledgers, index, checkpoint
    except (CorruptData, LedgerStateUnknown) as error:
        reason = str(error)
        text = "bookie %s rebuilds its index: %s"
        INDEX_REBUILT.emit(log, text, bookie_id, reason, bookie=bookie_id, why=reason)
        return *await _new_index(disk, options, index), None


async def _new_index(
    disk: Disk, options: BookieOptions, damaged: Index | None
) -> tuple[LedgerTable, Index]:
    if damaged is not None:
        damaged.close()
    await disk.delete_map(MAP_NAME)
    return _make_index(await disk.open_map(MAP_NAME), options)


def _make_index(ordered_map: OrderedMap, options: BookieOptions) -> tuple[LedgerTable, Index]:
    ledgers = LedgerTable(ordered_map, options.ledgers_in_memory_max)
    return ledgers, Index(ordered_map, ledgers)


def _resolve_identity(
    host: Host,
    identity_bytes: bytes | None,
    identity: JournalIdentity | None,
    checkpoint: IndexCheckpoint | None,
    bookie_id: str,
    has_files: bool,
) -> JournalIdentity:
    """Return the seed of block digests: the stored one, or a new one in an empty directory.

    The seed is stored in its own file and in the index, so that one of them can be lost.

    Raises:
        CorruptData: There is data, but no copy of the seed is readable.
        ForeignData: The seed belongs to another bookie.
    """
    if identity is None and checkpoint is not None:
        identity = JournalIdentity(checkpoint.bookie_id, checkpoint.seed, True)
    elif identity is None and (identity_bytes is not None or has_files):
        raise CorruptData(
            f"{IDENTITY_FILE_NAME} is missing or damaged, and so is the index: nothing in the journal can be"
            " verified. Start it with empty directories, as a new bookie, then decommission the old id"
            ' (docs/operate/replace-bookie.md, "CorruptData")'
        )
    elif identity is None:
        identity = JournalIdentity(bookie_id, host.random.getrandbits(63), False)
    _check_owner(identity, bookie_id)
    return identity


def _check_owner(identity: JournalIdentity, bookie_id: str) -> None:
    if bookie_id and identity.bookie_id != bookie_id:
        raise ForeignData(f"the journal of bookie {identity.bookie_id}, this is {bookie_id}")
