"""What a bookie promises: add once, refuse after a fence, read what was acknowledged.

- An add is acknowledged when the block that holds it is synced, in the order its stream sent it (H1).
- The fence is checked and the add gathered without an await between them; a fence is answered when it is
  durable, also for a ledger never heard of (inv. 11, 12). Recovery adds pass on fenced ledgers.
- An id that is here already is not written again: equal digests join the next commit, other bytes are
  refused (H10).
- A ledger of which something may have been lost is in limbo and gives no negative answer (inv. 22).

All methods but `open`, `run`, `checkpoint` and `delete_ledger` are synchronous; callbacks come after the
sync that covers what was asked.
"""

import hmac
from collections.abc import Callable

import trio

from ..runtime.errors import (
    BookieReadOnly,
    CorruptData,
    DistributedLogError,
    LedgerFenced,
    LedgerStateUnknown,
    NoSuchLedger,
    TooBusy,
    WrongLedgerKey,
)
from ..runtime.host import Disk, Host
from ..runtime.reasons import Reasons, bounded
from . import entry as entries
from . import journal_blocks as jb
from .adds import Adds
from .commits import Commits
from .gather import GatheringBlock, GatherRing
from .index import Index
from .index_records import IndexDamaged
from .journal import Journal
from .ledgers import IncomingStream, Ledger, StreamOwner, Waiter
from .limbo import Limbo
from .options import BookieOptions
from .read_sources import Extent
from .reads import ColdReader, Collected, JournalFiles, Reader
from .reserve import Reserve
from .runs import Located
from .stats import Stats
from .upkeep import Upkeep
from .waiters import Waiters

LIMBO_ALL = 0xFFFF_FFFF_FFFF_FFFF

Done = Callable[[Ledger, DistributedLogError | None], None]


class Store:
    """One bookie's ledgers, journal and index. Made by `open`; serves while `run` runs."""

    def __init__(
        self,
        disk: Disk,
        journal: Journal,
        ring: GatherRing,
        index: Index,
        ledgers: dict[int, Ledger],
        files: JournalFiles,
        options: BookieOptions,
        *,
        bookie_id: str,
        seed: int,
        index_disk: Disk,
        reserves: dict[str, Reserve],
    ) -> None:
        self._disk = disk
        self._journal = journal
        self._ring = ring
        self._index = index
        self._ledgers = ledgers
        self._files = files
        self.options = self._options = options
        self._seed = seed
        self.bookie_id = bookie_id
        self.limbo = Limbo(self, ledgers)
        self.stats = Stats()
        self.reasons = Reasons()
        """What is wrong here, beside what `what_is_wrong` counts itself."""
        self.reader = Reader(ring, files, index)
        self.cold = ColdReader(files, options)
        self.waiters = Waiters(options.waiters_max)
        self.commits = Commits(journal, ring, index, self.waiters, options)
        self._adds = Adds(
            ring, journal, self.reader, self.cold, options.unsynced_bytes_max, self.stats, self
        )
        self.read_only = False
        """No normal adds: too little space, or told so."""
        self.read_only_reasons: dict[str, str] = {}
        """Why, by name (space.py)."""
        self.index_is_behind = False
        """No adds at all: too much of the index waits in memory."""
        self.read_only_asked = False
        """Set by the operator: `read_only` stays on whatever the space."""
        self.on_ledger_created: Callable[[int], None] | None = None
        """Told of each ledger that an add makes known here (H21)."""
        self.failure: IndexDamaged | None = None
        """What was found broken at a read: `run` raises it."""
        self._upkeep = Upkeep(
            self,
            disk,
            journal,
            ring,
            index,
            files,
            options,
            seed,
            index_disk=index_disk,
            reserves=reserves,
        )

    @classmethod
    async def open(
        cls,
        host: Host,
        options: BookieOptions | None = None,
        *,
        bookie_id: str = "",
        witnessed: int = 0,
        doubt: str = "",
    ) -> "Store":
        """Replay what is on ``host.disks["journal"]`` and ``["index"]``, and be ready to serve.

        ``witnessed``: somebody else knows that the block of this sequence was synced here (`durable_to`).
        ``doubt``: why nobody can say, in words; then nothing is denied.
        All that was acknowledged is there, or what may have lost it is in limbo. Raises `ForeignData` for
        another bookie's data, `UnsupportedFormat`, `DiskFailed`, `CorruptData`.
        """
        from .opening import open_store

        return await open_store(
            host, options or BookieOptions(), bookie_id, witnessed=witnessed, doubt=doubt
        )

    # --- running ----------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit, checkpoint and read until cancelled. Raises what ends the node (`DiskFailed`)."""
        self._upkeep.look_at_space()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    self._journal.run, self.commits.before_take, self.commits.on_synced
                )
                nursery.start_soon(self._upkeep.run)
                nursery.start_soon(self.cold.run)
                nursery.start_soon(self.waiters.run)
                task_status.started()
        finally:
            self.close()

    def close(self) -> None:
        """Close files and the index, as they are. `run` does it at its end."""
        self._journal.close()
        self._files.close()
        self._index.close()

    # --- streams and adds -------------------------------------------------------------------------

    def open_stream(
        self,
        owner: StreamOwner,
        number: int,
        ledger_id: int,
        key: bytes,
        *,
        recovery: bool,
        fragment_epoch: int,
    ) -> IncomingStream:
        """Adds of one connection to a ledger begin. A key that is not the ledger's refuses the stream."""
        ledger = self._ledger(ledger_id)
        stream = IncomingStream(number, ledger, recovery, fragment_epoch, owner)
        ledger.users += 1
        try:
            self._check_key(ledger, key)
        except WrongLedgerKey as error:
            self.refuse(stream, error)
            return stream
        if not ledger.key:
            ledger.key = bytes(key)
        return stream

    def close_stream(self, stream: IncomingStream) -> None:
        """The stream is over; what it gathered stays."""
        stream.refused = True
        stream.ledger.users -= 1
        self.release(stream.ledger)

    def add_records(
        self, stream: IncomingStream, body: memoryview, resume: Callable[[], None]
    ) -> int:
        """See `Adds.take`."""
        return self._adds.take(stream, body, resume)

    def refusal(self, stream: IncomingStream) -> DistributedLogError | None:
        """Why a stream takes no more records, by the state of its ledger and this bookie."""
        ledger = stream.ledger
        if ledger.flags:
            if ledger.flags & jb.DELETED:
                return NoSuchLedger(f"ledger {ledger.id} was deleted")
            if ledger.flags & jb.LIMBO and not stream.recovery:
                return self._limbo_refusal(ledger)
            if ledger.flags & jb.FENCED and not stream.recovery:
                return LedgerFenced(f"ledger {ledger.id} was fenced by a recovery")
        if not ledger.stored and ledger.id < self.limbo.below and not stream.recovery:
            return self._limbo_refusal(ledger)
        if self.read_only and not stream.recovery:
            why = "; ".join(self.read_only_reasons.values())
            return BookieReadOnly(f"bookie {self.bookie_id} takes no new entries: {why}")
        if self.index_is_behind:
            return TooBusy(
                f"bookie {self.bookie_id}: its index cannot follow, its disk may be full"
            )
        return None

    @staticmethod
    def _limbo_refusal(ledger: Ledger) -> DistributedLogError:
        """No fence is known: the writer goes on without this bookie, where one that knows ends it."""
        return LedgerStateUnknown(
            f"ledger {ledger.id}: this bookie lost data and may have been told to fence it (limbo)"
        )

    def refuse(self, stream: IncomingStream, error: DistributedLogError) -> None:
        """Poison a stream: its owner is told once, nothing more of it is taken (H1)."""
        if not stream.refused:
            stream.refused = True
            self.stats.refusals += 1
            stream.owner.on_refused(stream, error, stream.taken)

    # --- fences, LACs, deletion -------------------------------------------------------------------

    def fence(self, ledger_id: int, key: bytes, done: Done) -> None:
        """Refuse normal adds from now on; ``done`` is called when that is durable (inv. 11, 12)."""
        ledger = self._ledger(ledger_id)
        try:
            self._check_key(ledger, key)
            if ledger.deleted:
                raise NoSuchLedger(f"ledger {ledger_id} was deleted")
        except DistributedLogError as error:
            done(ledger, error)
            self.release(ledger)
            return
        if ledger.fence_durable:
            done(ledger, None)
            return
        if self._journal.waits_for_space:
            done(
                ledger,
                TooBusy(f"the disk of bookie {self.bookie_id} is full, and so is its reserve"),
            )
            self.release(ledger)
            return
        if not ledger.key:
            ledger.key = bytes(key)

        def durable() -> None:
            ledger.fence_durable = True
            if ledger.deleted:
                done(ledger, NoSuchLedger(f"ledger {ledger_id} was deleted"))
                return
            done(ledger, None)
            if ledger.waiters:
                self.waiters.wake(ledger)

        if not ledger.fenced:
            self.stats.fences += 1
            ledger.flags |= jb.FENCED
            if not ledger.stored and ledger.id < self.limbo.below:
                ledger.flags |= jb.LIMBO
            ledger.stored = True
        # Asked again before it is durable: written again, for the first record may still wait for room.
        self.commits.write_state(ledger, durable)

    def write_lac(self, stream: IncomingStream, lac: int) -> None:
        """The writer says what is confirmed; see `Commits.publish_lac`."""
        ledger = stream.ledger
        if stream.refused or stream.recovery or ledger.flags or not ledger.stored:
            return
        if lac <= ledger.lac or lac > entries.ENTRY_ID_MAX:
            return
        self.commits.publish_lac(ledger, lac)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forget the ledger for good: a durable tombstone, then its runs go. Call on proof only (inv. 27).

        Raises nothing for a ledger that is not known: the tombstone is written all the same.
        """
        ledger = self._ledger(ledger_id)
        ledger.flags |= jb.DELETED
        ledger.stored = True
        done = trio.Event()

        def durable() -> None:
            # With the sync that says so, whether or not anybody waits for it still.
            self._index.forget_runs(ledger)
            self.waiters.wake(ledger, error=NoSuchLedger(f"ledger {ledger_id} was deleted"))
            done.set()

        self.commits.write_state(ledger, durable)
        await done.wait()

    async def checkpoint(self) -> None:
        """Write the index as it stands, so that a start has little to replay. Raises `DiskFull`."""
        await self._upkeep.checkpoint()

    async def checkpoint_if_room(self) -> bool:
        """As `checkpoint`; False on a full disk: then this bookie is read-only."""
        return await self._upkeep.checkpoint_if_room()

    async def make_reserves(self) -> None:
        """Before serving: what fences and deletions need is put aside first."""
        await self._upkeep.make_reserves()

    def look_at_space(self) -> None:
        """The journal's room changed."""
        self._upkeep.look_at_space()

    # --- looking ----------------------------------------------------------------------------------

    def look_up(self, ledger_id: int, key: bytes) -> Ledger:
        """A ledger that is known here. Raises `NoSuchLedger`, `LedgerStateUnknown`, `WrongLedgerKey`."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or not ledger.stored:
            if ledger_id < self.limbo.below:
                raise LedgerStateUnknown(f"ledger {ledger_id}: this bookie lost data (limbo)")
            raise NoSuchLedger(f"ledger {ledger_id} is not known here")
        self._check_key(ledger, key)
        if ledger.deleted:
            raise NoSuchLedger(f"ledger {ledger_id} was deleted")
        return ledger

    def collect(
        self, ledger: Ledger, first: int, last: int, bytes_max: int, extent: Extent | None = None
    ) -> Collected:
        """See `Reader.collect`."""
        try:
            return self.reader.collect(ledger, first, last, bytes_max, extent)
        except IndexDamaged as error:
            self.failure = error
            raise LedgerStateUnknown(f"ledger {ledger.id}: the index is damaged") from error
        except CorruptData as error:
            self.met_damage(error)
            raise

    def met_damage(self, error: CorruptData) -> None:
        """A read met a file that is gone or unreadable, or bytes that are not what was written."""
        self.stats.damaged_reads += 1
        self.reasons.set(
            "damaged reads",
            f"{self.stats.damaged_reads} reads since its start met damage, the last one: {error}; readers use"
            " other copies",
        )

    def wait_lac(self, waiter_of: Callable[[Ledger], Waiter], ledger_id: int, key: bytes) -> None:
        """Park a long poll, or answer it at once. Raises as `look_up`, but waits on unknown ledgers."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None and ledger.stored:
            ledger = self.look_up(ledger_id, key)
        else:
            ledger = self._ledger(ledger_id)
        waiter = waiter_of(ledger)
        self.stats.waits += 1
        if ledger.lac > waiter.previous_lac and not (
            waiter.standing and waiter.owner.on_wait_news(waiter)
        ):
            waiter.over = True
            waiter.owner.on_wait_over(waiter, None)
            return
        try:
            self.waiters.park(waiter)
        except DistributedLogError:
            self.release(ledger)
            raise

    def check_waiter(self, waiter: Waiter) -> None:
        """May this waiter see the ledger, now that it is answered? Raises `WrongLedgerKey`."""
        self._check_key(waiter.ledger, waiter.key)

    def ranges(
        self, ledger: Ledger, start: int, runs_max: int
    ) -> tuple[list[tuple[int, int]], int]:
        """Stretches of ids that are durable here; see `Index.ranges`."""
        try:
            return self._index.ranges(ledger, start, runs_max)
        except IndexDamaged as error:
            self.failure = error
            raise LedgerStateUnknown(f"ledger {ledger.id}: the index is damaged") from error

    def ledgers(self) -> list[int]:
        """Ids of the ledgers that are here, ascending, tombstones not included."""
        return sorted(
            id for id, ledger in self._ledgers.items() if ledger.stored and not ledger.deleted
        )

    @property
    def durable_to(self) -> int:
        """The sequence of the last block that is known synced: a start that finds less has lost something."""
        return self._journal.durable_to

    @property
    def stored_bytes(self) -> int:
        """Of all its journal files."""
        return self._journal.stored_bytes

    @property
    def unsynced_bytes(self) -> int:
        """Gathered, and not yet durable."""
        return self._ring.unsynced_bytes

    @property
    def congested(self) -> bool:
        """Is it time to stop reading connections until a sync has finished?"""
        return self.commits.congested

    def on_room(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` once when a sync has made room."""
        self.commits.on_room(resume)

    def info(self) -> dict[str, object]:
        """Counters and gauges, for Op.INFO and the health page."""
        journal, stats = self._journal, self.stats
        shown: dict[str, object] = {name: getattr(stats, name) for name in stats.__slots__}
        shown |= {
            "bookie_id": self.bookie_id,
            "durability": self._disk.durability,
            "sync_mode": getattr(self._disk, "sync_mode", ""),
            "syncs": journal.syncs,
            "commits": journal.commits,
            "device_bytes": journal.device_bytes,
            "rolls": journal.rolls,
            "journal_file": journal.number,
            "journal_files": len(journal.sealed) + 1,
            "sequence": journal.sequence,
            "unsynced_bytes": self._ring.unsynced_bytes,
            "ledgers": len(self._ledgers),
            "limbo_ledgers": self.limbo.ledgers,
            "limbo_below": self.limbo.below,
            "runs_in_memory": self._index.runs_in_memory + self._index.runs_frozen,
            "runs_in_map": self._index.map_runs,
            "live_bytes": sum(self._index.live_bytes.values()),
            "stored_bytes": self.stored_bytes,
            "read_only": self.read_only,
            "read_only_reasons": dict(self.read_only_reasons),
            "reasons": list(self.what_is_wrong()),
            "free_bytes": self._disk.free_bytes(),
            "waiting": self.waiters.waiting,
            "stretches_read": self.cold.extents,
        }
        return shown

    def what_is_wrong(self) -> tuple[str, ...]:
        """For `dlog status` and ``/health``: each a line, the worst first; of what was met, not searched."""
        found = []
        if reason := self.limbo.reason:
            found.append(f"some ledgers are in limbo: {reason}")
        if self.limbo.below == LIMBO_ALL:
            found.append("a start found data lost: it answers for no ledger that it does not know")
        elif self.limbo.below:
            found.append(
                f"a start found data lost: it answers for no ledger below {self.limbo.below}"
                " that it does not know"
            )
        if in_limbo := self.limbo.ledgers:
            found.append(
                f"{in_limbo} of its ledgers are in limbo: what they may lack is not denied"
            )
        return bounded((*found, *self.read_only_reasons.values(), *self.reasons.texts()))

    def make_known(self, ledger: Ledger, block: GatheringBlock) -> None:
        """An add makes the ledger known: its key goes into the same block."""
        if ledger.id < self.limbo.below:
            ledger.flags |= jb.FENCED | jb.LIMBO
        ledger.stored = True
        block.controls.append(ledger.state_record())
        self._index.note_state(ledger)
        if self.on_ledger_created is not None:
            self.on_ledger_created(ledger.id)

    # --- helpers ----------------------------------------------------------------------------------

    def _ledger(self, ledger_id: int) -> Ledger:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            ledger = self._ledgers[ledger_id] = Ledger(ledger_id)
        return ledger

    def known(self, ledger_id: int, key: bytes) -> Ledger:
        """The one object of this id, made where there is none, with its key. Raises `WrongLedgerKey`."""
        ledger = self._ledger(ledger_id)
        self._check_key(ledger, key)
        if not ledger.key:
            ledger.key = bytes(key)
        return ledger

    def release(self, ledger: Ledger) -> None:
        """Nobody waits on it any more: an unknown ledger without users is forgotten."""
        if not (ledger.stored or ledger.users or ledger.waiters):
            self._ledgers.pop(ledger.id, None)

    def _check_key(self, ledger: Ledger, key: bytes) -> None:
        if ledger.key and not hmac.compare_digest(ledger.key, key):
            raise WrongLedgerKey(f"ledger {ledger.id}: the key shown is not the ledger's")

    def find(self, ledger: Ledger, entry: int) -> Located | None:
        """Where an entry is durable here. Raises `LedgerStateUnknown` where the index is damaged."""
        try:
            return self._index.find(ledger, entry)
        except IndexDamaged as error:
            self.failure = error
            raise LedgerStateUnknown(f"ledger {ledger.id}: the index is damaged") from error
