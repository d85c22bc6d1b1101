"""The guarantees of a bookie: add once, refuse adds after a fence, read acknowledged entries, report the LAC.

- An add is acknowledged when the block that contains it is synced, in the order of its stream (H1).
- The check of the fence and the add are one step without an await. A fence is answered when it is durable,
  also for an unknown ledger (inv. 11, 12). Recovery adds are accepted on fenced ledgers.
- An entry that is already stored is not written again. With an equal digest it is acknowledged by the next
  commit, and with other bytes it is refused.
- A ledger of which entries or a fence may be lost is in limbo state, and gives no negative answers (inv. 22).

Callbacks of synchronous methods follow the sync that makes the request durable.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import trio

from ...runtime.declarations.condition_texts import report_of
from ...runtime.declarations.health_conditions import (
    Code,
    HealthCondition,
    condition,
    limit_conditions,
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
from ..integrity.limbo import LimboLedgers
from ..integrity.replica_removal import ReplicaRemoval
from ..integrity.scrubber import Scrubber
from ..ledgers.ledger_table import IncomingStream, Ledger, LongPoll
from ..ledgers.long_poll import LongPolls
from ..storage.bookie_storage import BookieStorage
from ..storage.entry_reader import CollectedEntries, DeviceReader, EntryReader
from ..storage.group_commit import GroupCommit
from .add_handler import AddHandler

MONITOR_S = 0.25
LAG_SAMPLES = 240
"""The samples of one minute. The gauge of the event loop's delay is their maximum."""

OnFenced = Callable[[Ledger, DistributedLogError | None], None]


class BookieStore:
    """The ledgers, journal and index of one bookie. Created by `open_store`; serves while `run` runs."""

    def __init__(self, storage: BookieStorage, *, loss_reason: str, failures: WorkFailures) -> None:
        """Create the parts of the store.

        ``loss_reason`` is a text about synced data that may be lost, or empty.
        """
        self._storage = storage
        self._disk = storage.disk
        self._journal = storage.journal
        self._buffer = storage.buffer
        self._index = storage.index
        self._files = storage.files
        self.ledgers = storage.ledgers
        self.space = storage.space
        self.space.subscribe(self._on_space_changed)
        self.space_changed = trio.Event()
        """Set when the bookie becomes read-only or writable, and then replaced by a new event."""
        self.options = options = storage.options
        self.bookie_id = storage.bookie_id
        health = BookieHealth(failures)
        self.stats, self.conditions, self.failures = health.stats, health.conditions, failures
        self.reader = EntryReader(self._buffer, self._files, self._index)
        self.device_reader = DeviceReader(self._files, options, failures)
        self.long_polls = LongPolls(options.waiters_max)
        self.group_commit = GroupCommit(
            self._journal, self._buffer, self._index, self.long_polls, options
        )
        self.limbo = LimboLedgers(self.ledgers, self.group_commit, loss_reason)
        self.checkpointer = Checkpointer(storage, self.group_commit, health)
        self.file_removal = FileRemoval(storage, self.group_commit, self.checkpointer, self.stats)
        self.corruption_tracker = CorruptionTracker(
            storage, self.group_commit, self.checkpointer, self.conditions
        )
        self.add_handler = AddHandler(
            storage,
            self.group_commit,
            self.reader,
            self.device_reader,
            self.stats,
            on_corruption=self.corruption_tracker.record,
        )
        self.replica_removal = ReplicaRemoval(self.ledgers, self.group_commit, self.checkpointer)
        self.scrubber = Scrubber(
            self._index,
            self.ledgers,
            self.corruption_tracker,
            options,
            failures,
            start_now=bool(loss_reason),
        )
        self.compactor = Compactor(
            storage, self.group_commit, self.checkpointer, health, self.on_corruption
        )

    # --- running ----------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit, checkpoint and read until cancelled.

        An exception in a task of the journal ends the node. An unexpected exception in another task is
        contained.

        Raises:
            DiskFailed: A write or sync failed.
        """
        self.space.check()
        keep_running = self.failures.keep_running
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    self._journal.run, self.group_commit.add_due_lacs, self.group_commit.on_synced
                )
                nursery.start_soon(
                    keep_running, "the journal's watermark", self.group_commit.write_watermarks
                )
                nursery.start_soon(
                    keep_running,
                    "checkpoints of the index",
                    self.checkpointer.run,
                    self.file_removal.remove_dead_files,
                )
                nursery.start_soon(keep_running, "the check of free space", self._monitor_disk)
                nursery.start_soon(self.device_reader.run)
                nursery.start_soon(keep_running, "compaction", self.compactor.run)
                nursery.start_soon(keep_running, "the end of long polls", self.long_polls.run)
                nursery.start_soon(keep_running, "the scrub", self.scrubber.run)
                task_status.started()
        except BaseExceptionGroup as errors:
            if self.ledgers.damage is not None or errors.subgroup(IndexDamaged) is not None:
                await self._storage.invalidate_index()
            raise
        finally:
            self.close()

    async def _monitor_disk(self) -> None:
        """Check free space, the delay of the event loop, and whether the index was found damaged."""
        lag_ms: deque[float] = deque(maxlen=LAG_SAMPLES)
        while True:
            slept_at = trio.current_time()
            await trio.sleep(MONITOR_S)
            lag_ms.append((trio.current_time() - slept_at - MONITOR_S) * 1000)
            self.stats.loop_lag_max_ms = max(lag_ms)
            if self.ledgers.damage is not None:
                raise self.ledgers.damage
            await self._storage.ensure_reserves()
            self.space.check()
            # A checkpoint lets dead files be removed, and refused writers may wait for their space.
            if self.space.is_low and (self._index.dirty or self.file_removal.dead_files()):
                self.group_commit.checkpoint_wanted.set()
            self._journal.check_idle()

    def close(self) -> None:
        """Close the files and the index without a checkpoint. `run` calls this at its end."""
        self._storage.close()

    def _on_space_changed(self) -> None:
        self.space_changed.set()
        self.space_changed = trio.Event()

    # --- fences, LACs, deletion -------------------------------------------------------------------

    def fence(self, ledger_id: int, key: bytes, on_fenced: OnFenced) -> None:
        """Refuse normal adds from now on; ``on_fenced`` is called when the fence is durable (inv. 11, 12)."""
        ledger = self.ledgers.get_or_make(ledger_id)
        try:
            ledger.check_key(key)
            if ledger.deleted:
                raise NoSuchLedger(f"ledger {ledger_id} was deleted")
        except DistributedLogError as error:
            on_fenced(ledger, error)
            self.ledgers.release_if_unused(ledger)
            return
        if not ledger.is_journaled:  # the index may be lost, so the journal must contain the fence
            ledger.fence_durable = False
        if ledger.fence_durable:
            on_fenced(ledger, None)
            return
        if self._journal.waits_for_space:
            on_fenced(
                ledger,
                TooBusy(f"the disk of bookie {self.bookie_id} is full, and its reserve is used up"),
            )
            self.ledgers.release_if_unused(ledger)
            return
        if not ledger.key:
            ledger.key = bytes(key)

        def durable() -> None:
            ledger.fence_durable = True
            if ledger.deleted:
                on_fenced(ledger, NoSuchLedger(f"ledger {ledger_id} was deleted"))
                return
            on_fenced(ledger, None)
            if ledger.long_polls:
                self.long_polls.on_ledger_changed(ledger)

        if not ledger.fenced:
            self.stats.fences += 1
            flags = ledger.flags | jb.FENCED
            if not ledger.is_known and ledger.id < self.ledgers.limbo_below:
                flags |= jb.LIMBO
            was_known = ledger.is_known
            self.ledgers.set_flags(ledger, flags)
            if not was_known and ledger.id < self.ledgers.must_verify_below:
                self.add_handler.notify_ledger_created(ledger)  # the ledger may have been deleted
        # A repeated request is written again, because the first record may still wait for space.
        self.group_commit.write_state(ledger, durable)

    def write_lac(self, stream: IncomingStream, lac: int) -> None:
        """Publish an explicit LAC of one stream, as `write_lacs`."""
        self.write_lacs({0: stream}, ((0, lac),))

    def write_lacs(
        self, streams: Mapping[int, IncomingStream], lacs: Iterable[tuple[int, int]]
    ) -> None:
        """Publish explicit LACs by stream number; see `GroupCommit.publish_lacs`.

        LACs of unknown or refused streams, and of ledgers that are fenced or in limbo state, are ignored.
        """
        updated_lacs: dict[Ledger, int] = {}
        for number, lac in lacs:
            stream = streams.get(number)
            if stream is None or stream.refused or stream.recovery:
                continue
            ledger = stream.ledger
            if ledger.lac < lac <= entries.ENTRY_ID_MAX and ledger.is_known and not ledger.flags:
                ledger.lac, ledger.lac_unjournaled = lac, True
                updated_lacs[ledger] = lac
        if updated_lacs:
            self.group_commit.publish_lacs(updated_lacs)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Write a durable tombstone for a ledger; its extents are removed later.

        Call this only after proof of the deletion (inv. 27). The tombstone is also written for an unknown
        ledger.
        """
        ledger = self.ledgers.get_or_make(ledger_id)
        self.ledgers.set_flags(ledger, ledger.flags | jb.DELETED)
        deleted = trio.Event()

        def durable() -> None:
            self.long_polls.on_ledger_changed(
                ledger, error=NoSuchLedger(f"ledger {ledger_id} was deleted")
            )
            deleted.set()

        self.group_commit.write_state(ledger, durable)
        await deleted.wait()

    async def drop_tombstones(self, below: int) -> None:
        """Remove the tombstones of ledgers with IDs below ``below``, which are no longer needed.

        Afterwards, an add that would make such a ledger known waits for a query of the metadata (H89). This
        bound is durable when the method returns, and never decreases. The next checkpoints then remove the
        tombstones.

        ``below`` should be the cluster's next ledger ID of some time ago. Most ledgers below it are then
        already known here, so few first adds have to wait.
        """
        await self.limbo.require_lookup_below(below)
        self._index.request_tombstone_scan()

    async def checkpoint(self) -> None:
        """Write a checkpoint of the index, so that a start has little to replay. Raises `DiskFull`."""
        await self.checkpointer.checkpoint()

    # --- reads ------------------------------------------------------------------------------------

    def collect(
        self,
        ledger: Ledger,
        first: int,
        last: int,
        bytes_max: int,
        extent: LoadedExtent | None = None,
    ) -> CollectedEntries:
        """Collect entries for a reply; see `EntryReader.collect`. Records corruption that it finds."""
        try:
            return self.reader.collect(ledger, first, last, bytes_max, extent)
        except IndexDamaged as error:
            raise self.ledgers.record_damage(ledger.id, error) from error
        except CorruptData as error:
            self.on_corruption(error, ledger.id, first, last)
            raise

    def on_corruption(
        self, error: DistributedLogError, ledger_id: int, first: int, last: int
    ) -> None:
        """Record that entries ``first`` to ``last`` are unreadable, because a file is missing or corrupt."""
        self.corruption_tracker.record(ledger_id, first, last)
        self.stats.damaged_reads += 1
        self.conditions.set(
            condition(Code.DAMAGED_READS, reads=self.stats.damaged_reads, error=str(error))
        )

    def add_long_poll(
        self, make_poll: Callable[[Ledger], LongPoll], ledger_id: int, key: bytes
    ) -> None:
        """Add a long poll, or answer it at once. The ledger may be unknown.

        Raises:
            DistributedLogError: The ledger was deleted, the key is wrong, or there are too many long polls.
        """
        ledger = self.ledgers.get_or_make(ledger_id)
        if ledger.is_known:
            self.ledgers.get_known(ledger_id, key)
        poll = make_poll(ledger)
        self.stats.waits += 1
        if ledger.lac > poll.previous_lac and not (
            poll.persistent and poll.owner.on_lac_advanced(poll)
        ):
            poll.is_done = True
            poll.owner.on_poll_done(poll, None)
            return
        try:
            self.long_polls.add(poll)
        except DistributedLogError:
            self.ledgers.release_if_unused(ledger)
            raise

    def ranges(
        self, ledger: Ledger, start: int, extents_max: int
    ) -> tuple[list[tuple[int, int]], int]:
        """Return ranges of IDs that are durable here; see `Index.ranges`."""
        try:
            return self._index.ranges(ledger, start, extents_max)
        except IndexDamaged as error:
            raise self.ledgers.record_damage(ledger.id, error) from error

    @property
    def durable_to(self) -> int:
        """The sequence of the last block that is known to be synced.

        A start that finds less has lost data.
        """
        return self._journal.durable_to

    @property
    def stored_bytes(self) -> int:
        """The bytes that all journal and compacted files occupy on the device."""
        return self._journal.stored_bytes

    def info(self) -> dict[str, object]:
        """Return counters and gauges for `Op.INFO`. The health page uses only state and conditions."""
        journal, counters, stats = self._journal, self._journal.counters, self.stats
        values: dict[str, object] = {name: getattr(stats, name) for name in stats.__slots__}
        values |= {
            "bookie_id": self.bookie_id,
            "durability": self._disk.durability,
            "sync_mode": getattr(self._disk, "sync_mode", ""),
            "syncs": counters.syncs,
            "commits": counters.commits,
            "device_bytes": counters.device_bytes,
            "rolls": counters.rolls,
            "journal_file": journal.number,
            "journal_files": len(journal.sealed_files) + 1,
            "cold_files": len(journal.compacted_files),
            "sequence": journal.next_sequence,
            "unsynced_bytes": self._buffer.unsynced_bytes,
            "ledgers": self.ledgers.known_count,
            "tombstones": self.ledgers.tombstone_count,
            "ledgers_in_memory": self.ledgers.loaded_count,
            "limbo_ledgers": self.ledgers.limbo_count,
            "limbo_below": self.ledgers.limbo_below,
            "limbo_of_unknown": self.limbo.includes_unknown,
            "rot_ledgers": len(self.corruption_tracker.corrupt_ranges),
            "rot_stuck_ledgers": len(self.corruption_tracker.unrepairable),
            "rot_healed_entries": self.corruption_tracker.repaired_entries,
            "scrub_passes": self.scrubber.progress.passes,
            "scrub_found_entries": self.scrubber.progress.found,
            "runs_in_memory": self._index.extents_in_memory + self._index.extents_frozen,
            "runs_in_map": self._index.stored_totals.extent_count,
            "live_bytes": sum(self._index.live_bytes.values()),
            "stored_bytes": self.stored_bytes,
            "read_only": self.space.read_only,
            "writable": not self.space.read_only,
            "sync_seconds": counters.sync_seconds.snapshot(),
            "read_only_codes": [condition.code for condition in self.space.conditions],
            **report_of(self.health_conditions()),
            "free_bytes": self._disk.free_bytes(),
            "waiting": self.long_polls.waiting_count,
            "extents_read": self.device_reader.extents_read,
        }
        return values

    def health_conditions(self) -> tuple[HealthCondition, ...]:
        """Return the bookie's conditions, without reads: damage is reported after a read found it."""
        limbo = self.limbo.condition()
        return limit_conditions(
            worst_first(
                (
                    *(() if limbo is None else (limbo,)),
                    *self.corruption_tracker.conditions(),
                    *self.space.conditions,
                    *self.conditions.current(),
                )
            )
        )
