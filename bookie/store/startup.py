"""Start a bookie: replay its data, rewrite blocks that may be unsynced, then serve.

1. Load the index. Its map stores the journal position that it covers, and totals of its contents. Other pairs
   are read only when the replay requires them. A damaged index is deleted and rebuilt (`index_rebuild.py`,
   H7).
2. Replay the journal after this position, and verify it (`journal_replay.py`, `journal_verifier.py`).
3. Begin a new journal file, copy into it the blocks that count and may be unsynced, and sync it
   (`first_journal_file.py`).
4. Write a checkpoint of the index. By then, ledgers that may have had entries in lost blocks are fenced and
   in limbo state.
"""

from ...runtime.disk.atomic_file import read_file, replace_file
from ...runtime.interfaces.errors import CorruptData, DiskFailed, ForeignData, LedgerStateUnknown
from ...runtime.interfaces.host import Disk, Host, OrderedMap
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..declarations.events import INDEX_REBUILT
from ..declarations.options import BookieOptions
from ..disk.bookie_disk_space import BookieDiskSpace, Facts
from ..disk.disk_reserve import Reserve
from ..format.compacted_format import cold_number
from ..format.index_format import IndexCheckpoint, IndexDamaged
from ..format.journal_format import PREFIX, SEED_NAME, JournalIdentity, file_number, seed_of
from ..ledgers.ledger_table import LedgerTable
from ..storage.bookie_storage import BookieStorage
from ..storage.entry_reader import JournalFiles
from ..storage.index import MAP_NAME, Index
from ..storage.journal import Journal
from ..storage.journal_buffer import JournalBuffer
from .bookie_store import BookieStore
from .first_journal_file import FirstJournalFile
from .index_rebuild import IndexRebuild
from .journal_verifier import FilesFound, JournalVerifier, VerifiedJournal

log = get_logger("distributedlog.bookie.store.startup")


async def open_store(
    host: Host,
    options: BookieOptions | None = None,
    *,
    bookie_id: str = "",
    witnessed: int = 0,
    doubt: str = "",
    failures: WorkFailures | None = None,
) -> BookieStore:
    """Replay the data on the disks "journal" and "index", and return the store.

    Every acknowledged entry is present, or its ledger is in limbo state.

    Args:
        host: The machine with both disks.
        options: The options of the bookie; the defaults if None.
        bookie_id: The expected owner of the data; "" accepts any owner.
        witnessed: The last block that the metadata records as synced here; 0 if there is none.
        doubt: The reason why the metadata has no reliable record, or "". With a reason, the store gives no
            negative answers about entries.
        failures: The failures of background work on the node.

    Raises:
        ForeignData: The data belongs to another bookie.
        UnsupportedFormat: A newer version wrote the data.
        CorruptData: The seed file and the index are both missing or damaged, or data that the start requires.
        DiskFailed: A disk returned an error.
    """
    options = options or BookieOptions()
    disk, map_disk = host.disks["journal"], host.disks["index"]
    found = _find_files(disk)
    data, known_seed = await _read_seed(disk, bookie_id)
    ledgers, index, saved = await _open_index(map_disk, options, known_seed, bookie_id)
    try:
        seed = _seed_to_take(
            host, data, known_seed, saved, bookie_id, bool(found.journal or found.cold)
        )
        if data != seed.encode():
            await replace_file(disk, SEED_NAME, seed.encode())
        verifier = JournalVerifier(disk, found, ledgers, index, seed, witnessed, doubt)
        try:
            verified = await _verify(verifier, saved)
        except (IndexDamaged, LedgerStateUnknown) as error:
            # The replay encountered damage in the map. Handle it like damage that loading the index finds.
            if saved is None:
                raise
            log.error("bookie %s: the index is built again: %s", seed.bookie_id, error)
            ledgers, index = await _new_index(map_disk, options, index)
            verifier = JournalVerifier(disk, found, ledgers, index, seed, witnessed, doubt)
            verified = await _verify(verifier, None)
        storage = _storage_of(host, options, seed, ledgers, index)
        store = BookieStore(
            storage, lost="; ".join(verified.losses), failures=failures or WorkFailures()
        )
        store.stats.corrupt_ranges = len(verified.replay.decision.corrupt)
        first_file = FirstJournalFile(storage, store.commits, store.checkpointer, found, verified)
        await first_file.begin()
        if not seed.started:  # adds may be acknowledged after this
            started = JournalIdentity(seed.bookie_id, seed.seed, True)
            await replace_file(disk, SEED_NAME, started.encode())
        await storage.make_reserves()
        return store
    except BaseException as error:
        if ledgers.damage is not None or isinstance(error, IndexDamaged):
            await index.condemn()
        index.close()
        raise


async def _verify(verifier: JournalVerifier, saved: IndexCheckpoint | None) -> VerifiedJournal:
    """Replay the journal into the index, or rebuild an empty index, and verify the journal."""
    if saved is None:
        replay = await IndexRebuild(verifier).rebuild()
    else:
        replay = await verifier.replay(saved)
    return await verifier.verify(replay, saved)


def _storage_of(
    host: Host, options: BookieOptions, seed: JournalIdentity, ledgers: LedgerTable, index: Index
) -> BookieStorage:
    """Create the parts that write, for the replayed index."""
    disk = host.disks["journal"]
    ring = JournalBuffer(
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
    disk.keep_free(options.free_bytes_min + 2 * options.journal_file_bytes)
    space = BookieDiskSpace(seed.bookie_id, lambda: _measure(host, options, index, reserves))
    journal = Journal(
        disk,
        ring,
        options,
        identity=seed,
        ledgers=ledgers,
        space=space,
        reserve=reserves["journal"],
    )
    files = JournalFiles(disk, journal.name_of, options.open_files_max)
    return BookieStorage(disk, journal, ring, index, ledgers, files, space, reserves, options)


def _find_files(disk: Disk) -> FilesFound:
    cold = {number: name for name in disk.list() if (number := cold_number(name)) is not None}
    return FilesFound(_journal_names(disk), cold)


def _measure(
    host: Host, options: BookieOptions, index: Index, reserves: dict[str, Reserve]
) -> Facts:
    """Return the facts that decide whether the bookie is read-only."""
    return Facts(
        journal_free_bytes=host.disks["journal"].free_bytes(),
        index_free_bytes=host.disks["index"].free_bytes(),
        free_bytes_min=options.free_bytes_min,
        reserves_missing=tuple(role for role, reserve in reserves.items() if not reserve.held),
        runs_in_memory=index.runs_in_memory + index.runs_frozen,
        checkpoint_runs=options.checkpoint_runs,
    )


def _journal_names(disk: Disk) -> dict[int, str]:
    """Return the names of the journal files on the disk, by number."""
    names: dict[int, str] = {}
    for name in disk.list():
        number = file_number(name)
        if number is not None:
            names[number] = name
        elif name.startswith(PREFIX):
            log.warning("%s is no journal file of a bookie's: it is left alone", name)
    return names


async def _read_seed(disk: Disk, bookie_id: str) -> tuple[bytes | None, JournalIdentity | None]:
    """Read the seed file.

    Returns:
        Its bytes: None if it is missing, b"" if it is unreadable. Its content: None if missing or damaged.

    Raises:
        ForeignData: The seed belongs to another bookie.
    """
    try:
        data = await read_file(disk, SEED_NAME)
    except (CorruptData, DiskFailed) as error:  # handled as damaged: the index may have the seed
        log.error("bookie %s: %s cannot be read: %s", bookie_id, SEED_NAME, error)
        data = b""
    found = seed_of(data) if data is not None else None
    if found is not None:
        _check_owner(found, bookie_id)
    return data, found


async def _open_index(
    disk: Disk, options: BookieOptions, seed: JournalIdentity | None, bookie_id: str
) -> tuple[LedgerTable, Index, IndexCheckpoint | None]:
    index: Index | None = None
    try:
        ledgers, index = _index_of(await disk.open_map(MAP_NAME), options)
        saved = await index.load()
        if saved is not None and seed is not None and saved.seed != seed.seed:
            # Its position may fit this journal anyway: bookies with the same entries have similar ones (H80).
            raise CorruptData(f"it belongs to another journal, of bookie {saved.bookie_id}")
        return ledgers, index, saved
    except (CorruptData, LedgerStateUnknown) as error:
        why = str(error)
        text = "bookie %s: the index is built again: %s"
        INDEX_REBUILT.say(log, text, bookie_id, why, bookie=bookie_id, why=why)
        return *await _new_index(disk, options, index), None


async def _new_index(
    disk: Disk, options: BookieOptions, damaged: Index | None
) -> tuple[LedgerTable, Index]:
    """Delete the index, and return an empty one."""
    if damaged is not None:
        damaged.close()
    await disk.delete_map(MAP_NAME)
    return _index_of(await disk.open_map(MAP_NAME), options)


def _index_of(stored: OrderedMap, options: BookieOptions) -> tuple[LedgerTable, Index]:
    ledgers = LedgerTable(stored, options.ledgers_in_memory_max)
    return ledgers, Index(stored, ledgers)


def _seed_to_take(
    host: Host,
    data: bytes | None,
    found: JournalIdentity | None,
    saved: IndexCheckpoint | None,
    bookie_id: str,
    any_file: bool,
) -> JournalIdentity:
    """Return the seed of block digests: the stored one, or a new one in an empty directory.

    The seed is stored in its own file and in the index, so that one of them can be lost.

    Raises:
        CorruptData: There is data, but no copy of the seed is readable.
        ForeignData: The seed belongs to another bookie.
    """
    if found is None and saved is not None:
        found = JournalIdentity(saved.bookie_id, saved.seed, True)
    elif found is None and (data is not None or any_file):
        raise CorruptData(
            f"{SEED_NAME} is missing or damaged, and so is the index: nothing in the journal can be"
            " verified. Start it with empty directories, as a new bookie, then decommission the old id"
            ' (docs/operate/replace-bookie.md, "CorruptData")'
        )
    elif found is None:
        found = JournalIdentity(bookie_id, host.random.getrandbits(63), False)
    _check_owner(found, bookie_id)
    return found


def _check_owner(found: JournalIdentity, bookie_id: str) -> None:
    if bookie_id and found.bookie_id != bookie_id:
        raise ForeignData(f"the journal of bookie {found.bookie_id}, this is {bookie_id}")
