"""What a bookie promises: add once, refuse after a fence, read what was acknowledged.

- An add is acknowledged when the block that holds it is synced, in the order its stream sent it (H1).
- The fence is checked and the add gathered without an await between them; a fence is answered when it is
  durable, also for a ledger never heard of (inv. 11, 12). Recovery adds pass on fenced ledgers.
- An id that is here already is not written again: equal digests join the next commit, other bytes are
  refused.
- A ledger of which something may have been lost is in limbo and gives no negative answer (inv. 22).

All methods but `run`, `checkpoint` and `delete_ledger` are synchronous; callbacks come after the
sync that covers what was asked.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import trio

from ...runtime.declarations.condition_texts import report_of
from ...runtime.declarations.health_conditions import (
    Code,
    HealthCondition,
    condition,
    limited,
    worst_first,
)
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    NoSuchLedger,
    TooBusy,
)
from ...runtime.schedule.work_failures import WorkFailures
from ..declarations.counters import BookieHealth
from ..format import entry as entries
from ..format import journal_format as jb
from ..format.index_format import IndexDamaged
from ..format.read_sources import LoadedExtent
from ..gc.checkpointer import Checkpointer
from ..gc.compactor import Compactor
from ..gc.file_removal import FileRemoval
from ..integrity.corruption_tracker import CorruptionTracker
from ..integrity.limbo import Limbo
from ..integrity.replica_removal import ReplicaRemoval
from ..integrity.scrubber import Scrubber
from ..ledgers.ledger_table import IncomingStream, Ledger, Waiter
from ..ledgers.long_poll import LongPolls
from ..storage.bookie_storage import BookieStorage
from ..storage.entry_reader import ColdReader, Collected, EntryReader
from ..storage.group_commit import GroupCommit
from .add_handler import Adds

TICK_S = 0.25
LAG_TICKS = 240
"""A minute of them: the gauge of how late the loop runs is the worst of these."""

Done = Callable[[Ledger, DistributedLogError | None], None]


class BookieStore:
    """One bookie's ledgers, journal and index. Made by `opening.open_store`; serves while `run` runs."""

    def __init__(self, storage: BookieStorage, *, lost: str, failures: WorkFailures) -> None:
        """``lost``: why synced data may be lost, in words; empty if none is."""
        self._storage = storage
        self._disk = storage.disk
        self._journal = storage.journal
        self._ring = storage.ring
        self._index = storage.index
        self._files = storage.files
        self.ledgers = storage.ledgers
        self.space = storage.space
        self.space.subscribe(self._on_space_changed)
        self.space_changed = trio.Event()
        """Set when it begins or ends to be read-only, and another one is made."""
        self.options = options = storage.options
        self.bookie_id = storage.bookie_id
        health = BookieHealth(failures)
        self.stats, self.conditions, self.failures = health.stats, health.conditions, failures
        self.reader = EntryReader(self._ring, self._files, self._index)
        self.cold = ColdReader(self._files, options, failures)
        self.waiters = LongPolls(options.waiters_max)
        self.commits = GroupCommit(self._journal, self._ring, self._index, self.waiters, options)
        self.limbo = Limbo(self.ledgers, self.commits, lost)
        self.checkpointer = Checkpointer(storage, self.commits, health)
        self.file_removal = FileRemoval(storage, self.commits, self.checkpointer, self.stats)
        self.rot = CorruptionTracker(storage, self.commits, self.checkpointer, self.conditions)
        self.adds = Adds(
            storage, self.commits, self.reader, self.cold, self.stats, on_rot=self.rot.note
        )
        self.dropping = ReplicaRemoval(self.ledgers, self.commits, self.checkpointer)
        self.scrub = Scrubber(
            self._index, self.ledgers, self.rot, options, failures, begin=bool(lost)
        )
        self.compactor = Compactor(
            storage, self.commits, self.checkpointer, health, self.met_damage
        )

    # --- running ----------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit, checkpoint and read until cancelled. Raises what ends the node (`DiskFailed`).

        Whatever the journal's tasks raise ends it. An unexpected exception of the others is contained.
        """
        self.space.look()
        keep = self.failures.keep
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    self._journal.run, self.commits.before_take, self.commits.on_synced
                )
                nursery.start_soon(keep, "the journal's watermark", self.commits.prove_when_idle)
                nursery.start_soon(
                    keep,
                    "checkpoints of the index",
                    self.checkpointer.run,
                    self.file_removal.remove_dead_files,
                )
                nursery.start_soon(keep, "the look at free space", self._look_at_space)
                nursery.start_soon(self.cold.run)
                nursery.start_soon(keep, "compaction", self.compactor.run)
                nursery.start_soon(keep, "the end of long polls", self.waiters.run)
                nursery.start_soon(keep, "the scrub", self.scrub.run)
                task_status.started()
        except BaseExceptionGroup as ended:
            if self.ledgers.damage is not None or ended.subgroup(IndexDamaged) is not None:
                await self._storage.condemn_index()
            raise
        finally:
            self.close()

    async def _look_at_space(self) -> None:
        """Look at free space, at how late the loop runs, and at whether the index was found damaged."""
        late_ms: deque[float] = deque(maxlen=LAG_TICKS)
        while True:
            before = trio.current_time()
            await trio.sleep(TICK_S)
            late_ms.append((trio.current_time() - before - TICK_S) * 1000)
            self.stats.loop_lag_max_ms = max(late_ms)
            if self.ledgers.damage is not None:
                raise self.ledgers.damage
            await self._storage.make_reserves()
            self.space.look()
            # A checkpoint lets dead files be removed, and refused writers may wait for their space.
            if self.space.short and (self._index.dirty or self.file_removal.dead_files()):
                self.commits.checkpoint_wanted.set()
            self._journal.look_at_rest()

    def close(self) -> None:
        """Close files and the index, as they are. `run` does it at its end."""
        self._storage.close()

    def _on_space_changed(self) -> None:
        self.space_changed.set()
        self.space_changed = trio.Event()

    # --- fences, LACs, deletion -------------------------------------------------------------------

    def fence(self, ledger_id: int, key: bytes, done: Done) -> None:
        """Refuse normal adds from now on; ``done`` is called when that is durable (inv. 11, 12)."""
        ledger = self.ledgers.get_or_make(ledger_id)
        try:
            ledger.check_key(key)
            if ledger.deleted:
                raise NoSuchLedger(f"ledger {ledger_id} was deleted")
        except DistributedLogError as error:
            done(ledger, error)
            self.ledgers.release(ledger)
            return
        if not ledger.journaled:  # the index may be lost, and is not to be all that knows it
            ledger.fence_durable = False
        if ledger.fence_durable:
            done(ledger, None)
            return
        if self._journal.waits_for_space:
            done(
                ledger,
                TooBusy(f"the disk of bookie {self.bookie_id} is full, and so is its reserve"),
            )
            self.ledgers.release(ledger)
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
            flags = ledger.flags | jb.FENCED
            if not ledger.stored and ledger.id < self.ledgers.limbo_below:
                flags |= jb.LIMBO
            stored = ledger.stored
            self.ledgers.mark(ledger, flags)
            if not stored and ledger.id < self.ledgers.gone_below:
                self.adds.made_known(ledger)  # it may be one of those that were deleted
        # Asked again before it is durable: written again, for the first record may still wait for room.
        self.commits.write_state(ledger, durable)

    def write_lac(self, stream: IncomingStream, lac: int) -> None:
        """As `write_lacs`, of one stream."""
        self.write_lacs({0: stream}, ((0, lac),))

    def write_lacs(
        self, streams: Mapping[int, IncomingStream], lacs: Iterable[tuple[int, int]]
    ) -> None:
        """The writers say what is confirmed, each by the number of its stream; see `GroupCommit.publish`."""
        told: dict[Ledger, int] = {}
        for number, lac in lacs:
            stream = streams.get(number)
            if stream is None or stream.refused or stream.recovery:
                continue
            ledger = stream.ledger
            if ledger.lac < lac <= entries.ENTRY_ID_MAX and ledger.stored and not ledger.flags:
                ledger.lac, ledger.lac_owed = lac, True
                told[ledger] = lac
        if told:
            self.commits.publish(told)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forget the ledger for good: a durable tombstone, then its runs go. Call on proof only (inv. 27).

        Raises nothing for a ledger that is not known: the tombstone is written all the same.
        """
        ledger = self.ledgers.get_or_make(ledger_id)
        self.ledgers.mark(ledger, ledger.flags | jb.DELETED)
        done = trio.Event()

        def durable() -> None:
            self.waiters.wake(ledger, error=NoSuchLedger(f"ledger {ledger_id} was deleted"))
            done.set()

        self.commits.write_state(ledger, durable)
        await done.wait()

    async def end_tombstones(self, below: int) -> None:
        """Tombstones of ledgers with ids below ``below`` are not needed any more: they go. Durable.

        From now on an add that would make such a ledger known waits until the metadata was asked (H89). The
        bound never moves back. To be called with what the cluster's next ledger id was some time ago: the
        more of the ids below it are in use already, the fewer first adds wait.
        """
        await self.limbo.look_up_below(below)
        self._index.end_tombstones()

    async def checkpoint(self) -> None:
        """Write the index as it stands, so that a start has little to replay. Raises `DiskFull`."""
        await self.checkpointer.checkpoint()

    # --- looking ----------------------------------------------------------------------------------

    def collect(
        self,
        ledger: Ledger,
        first: int,
        last: int,
        bytes_max: int,
        extent: LoadedExtent | None = None,
    ) -> Collected:
        """See `EntryReader.collect`."""
        try:
            return self.reader.collect(ledger, first, last, bytes_max, extent)
        except IndexDamaged as error:
            raise self.ledgers.note_damage(ledger.id, error) from error
        except CorruptData as error:
            self.met_damage(error, ledger.id, first, last)
            raise

    def met_damage(self, error: DistributedLogError, ledger_id: int, first: int, last: int) -> None:
        """A read of these ids met a file that is gone or unreadable, or other bytes than were written."""
        self.rot.note(ledger_id, first, last)
        self.stats.damaged_reads += 1
        self.conditions.set(
            condition(Code.DAMAGED_READS, reads=self.stats.damaged_reads, error=str(error))
        )

    def wait_lac(self, waiter_of: Callable[[Ledger], Waiter], ledger_id: int, key: bytes) -> None:
        """Park a long poll, or answer it at once. Raises as `look_up`, but waits on unknown ledgers."""
        ledger = self.ledgers.get_or_make(ledger_id)
        if ledger.stored:
            self.ledgers.look_up(ledger_id, key)
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
            self.ledgers.release(ledger)
            raise

    def ranges(
        self, ledger: Ledger, start: int, runs_max: int
    ) -> tuple[list[tuple[int, int]], int]:
        """Stretches of ids that are durable here; see `Index.ranges`."""
        try:
            return self._index.ranges(ledger, start, runs_max)
        except IndexDamaged as error:
            raise self.ledgers.note_damage(ledger.id, error) from error

    @property
    def durable_to(self) -> int:
        """The sequence of the last block that is known synced: a start that finds less has lost something."""
        return self._journal.durable_to

    @property
    def stored_bytes(self) -> int:
        """What all its journal and cold files take of the device."""
        return self._journal.stored_bytes

    def info(self) -> dict[str, object]:
        """Counters and gauges, for `Op.INFO`; the health page takes state and conditions alone."""
        journal, counters, stats = self._journal, self._journal.counters, self.stats
        shown: dict[str, object] = {name: getattr(stats, name) for name in stats.__slots__}
        shown |= {
            "bookie_id": self.bookie_id,
            "durability": self._disk.durability,
            "sync_mode": getattr(self._disk, "sync_mode", ""),
            "syncs": counters.syncs,
            "commits": counters.commits,
            "device_bytes": counters.device_bytes,
            "rolls": counters.rolls,
            "journal_file": journal.number,
            "journal_files": len(journal.sealed) + 1,
            "cold_files": len(journal.cold),
            "sequence": journal.sequence,
            "unsynced_bytes": self._ring.unsynced_bytes,
            "ledgers": self.ledgers.known,
            "tombstones": self.ledgers.tombstones,
            "ledgers_in_memory": self.ledgers.loaded_count,
            "limbo_ledgers": self.ledgers.limbo,
            "limbo_below": self.ledgers.limbo_below,
            "limbo_of_unknown": self.limbo.of_unknown,
            "rot_ledgers": len(self.rot.noted),
            "rot_stuck_ledgers": len(self.rot.stuck),
            "rot_healed_entries": self.rot.healed_entries,
            "scrub_passes": self.scrub.place.passes,
            "scrub_found_entries": self.scrub.place.found,
            "runs_in_memory": self._index.runs_in_memory + self._index.runs_frozen,
            "runs_in_map": self._index.in_map.runs,
            "live_bytes": sum(self._index.live_bytes.values()),
            "stored_bytes": self.stored_bytes,
            "read_only": self.space.read_only,
            "writable": not self.space.read_only,
            "sync_seconds": counters.sync_seconds.said(),
            "read_only_codes": [one.code for one in self.space.conditions],
            **report_of(self.what_is_wrong()),
            "free_bytes": self._disk.free_bytes(),
            "waiting": self.waiters.waiting,
            "extents_read": self.cold.extents,
        }
        return shown

    def what_is_wrong(self) -> tuple[HealthCondition, ...]:
        """Return the bookie's conditions. They cost no reads: damage is known after a read found it."""
        limbo = self.limbo.condition()
        return limited(
            worst_first(
                (
                    *(() if limbo is None else (limbo,)),
                    *self.rot.conditions(),
                    *self.space.conditions,
                    *self.conditions.current(),
                )
            )
        )
