"""Room on the disk of a metadata node: what is kept free, and what goes on where there is too little.

A snapshot is what gives room back, and needs room itself. So a node calls its disk short before it is full:
when less is free than its next snapshot and some log need. Then a leader refuses what makes the state larger,
and lets pass what leads to room again: deletions, notes of what is to be deleted, what lives under a lease.
A small reserve is there for a disk that others fill to the last byte.

A disk that is full ends nothing: no vote leaves and nothing is acknowledged that was not written, what
waits is written when there is room (`raft_storage.py`), and a snapshot that failed is tried again.
"""

from collections.abc import Iterable
from contextlib import suppress

from ...runtime.declarations.condition_texts import text_of
from ...runtime.declarations.health_conditions import (
    Code,
    HealthCondition,
    NodeConditions,
    condition,
)
from ...runtime.interfaces.errors import DiskFull, MetadataFull
from ...runtime.interfaces.host import Disk
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.events import FULL, ROOM
from .raft_storage import RaftStorage

log = get_logger("distributedlog.metadata.storage.metadata_disk_space")

CHECK_INTERVAL_S = 0.5
"""How often the free space is looked at, and how soon after a failure what failed is tried again."""
CHECK_INTERVAL_BYTES = 64 * 1024
"""… and after how much that was written here, where nothing is short: much less than what is kept free."""
RESERVE_FILE = "reserve"
RESERVE_BYTES_MAX = 2 * 1024 * 1024
DISK_FRACTION_DIVISOR = 16
"""The log between two snapshots, and the reserve, are at most such a part of the disk each."""
SHARE_BYTES_MIN = 1024 * 1024


class MetadataDiskSpace:
    """The room of one node."""

    def __init__(
        self, disk: Disk, storage: RaftStorage, conditions: NodeConditions, name: str
    ) -> None:
        self.is_low = False
        """Less is free than the next snapshot may need."""
        self.is_full = False
        """A write of the log failed for lack of space: nothing is acknowledged."""
        self.is_quorum_low = False
        """A leader's view: most voters are short."""
        self.snapshot_failed = False
        self.applied_bytes = 0
        """Of commands, since the start."""
        self._applied_bytes_in_snapshot = 0
        """… up to the newest snapshot."""
        self.snapshot_bytes = 0
        """The size of the newest snapshot."""
        self.log_bytes_max = SHARE_BYTES_MIN
        """Of the disk, as far as it is ours or free; see `DISK_FRACTION_DIVISOR`."""
        self._disk = disk
        self._storage = storage
        self._conditions = conditions
        self._name = name
        self._free_bytes = 0
        self._bytes_written_at_check = 0
        """Bytes that the storage had written then."""

    async def start(self) -> None:
        """A start has loaded what there is."""
        self.snapshot_bytes = await self._storage.snapshots.newest_bytes()
        await self.check_and_restore_reserve()

    @property
    def grown_bytes(self) -> int:
        """Commands applied since the newest snapshot: the next is about so much larger, at most."""
        return self.applied_bytes - self._applied_bytes_in_snapshot

    @property
    def needed_bytes(self) -> int:
        """What the next snapshot may need, and the log beside it."""
        log_bytes = min(RESERVE_BYTES_MAX, self.log_bytes_max)
        return self.snapshot_bytes + self.grown_bytes + log_bytes

    def refusal(self, pending_bytes: int) -> MetadataFull | None:
        """Why the state may not grow by what is proposed and not applied yet; None if it may."""
        remaining_bytes = self._free_bytes - self.needed_bytes
        self._set_low(self.is_low or remaining_bytes < 0)
        # Pending bytes are written twice, into the log and into a snapshot. They change with each request, so
        # they refuse this request and do not make the disk short. Otherwise the state would alternate.
        if self.is_low or self.is_full or remaining_bytes < 2 * pending_bytes:
            return MetadataFull(self._condition_text())
        if self.is_quorum_low:
            return MetadataFull(
                "the disks of most metadata nodes are short of room (see dlog status): what would make"
                " the metadata larger is refused; free space there, or delete logs"
            )
        return None

    async def check_and_restore_reserve(self) -> None:
        """See how much is free, say so, and have the reserve again where there is room for it."""
        used_bytes = self._storage.log_bytes + self.snapshot_bytes
        share_bytes = (used_bytes + self._disk.free_bytes()) // DISK_FRACTION_DIVISOR
        self.log_bytes_max = max(SHARE_BYTES_MIN, share_bytes)
        self.check()
        has_space_for_reserve = self._free_bytes >= self.needed_bytes + 2 * self._reserve_bytes()
        if has_space_for_reserve and not self.is_full and RESERVE_FILE not in self._disk.list():
            with suppress(DiskFull):  # somebody else was quicker: without it, for now
                (await self._disk.create(RESERVE_FILE, size=self._reserve_bytes())).close()
            self.check()

    def check(self) -> None:
        """See how much is free."""
        self._bytes_written_at_check = self._storage.bytes_written
        self._free_bytes = self._disk.free_bytes() + self._storage.snapshots.reclaimable_bytes
        # Once short, short until there is some room more: else it would say so a hundred times.
        hysteresis_bytes = self._reserve_bytes() if self.is_low else 0
        self._set_low(self._free_bytes < self.needed_bytes + hysteresis_bytes)

    def _set_low(self, is_low: bool) -> None:
        was_low, self.is_low = self.is_low, is_low
        self._storage.zeroing_allowed = not is_low
        if not (was_low or is_low or self.is_full or self.snapshot_failed):
            return  # for each change: there is nothing to say, and there was nothing
        self._update_condition()
        if was_low != self.is_low:
            text = (
                self._condition_text() if self.is_low else f"{self._name}: its disk has room again"
            )
            ROOM.emit(log, "%s", text, state="short" if self.is_low else "enough")

    async def on_full(self, error: DiskFull) -> bool:
        """The log could not be written; True if there is more room now, by the reserve."""
        if not self.is_full:
            self.is_full = True
            self._update_condition()
            FULL.emit(log, "%s: %s", self._condition_text(), error, what="log")
        return await self.free_reserve()

    def on_written(self) -> None:
        """The log could be written."""
        if (
            self.is_low
            or self.is_full
            or self._storage.bytes_written - self._bytes_written_at_check >= CHECK_INTERVAL_BYTES
        ):
            self.check()
        if self.is_full:
            self.is_full = False
            self._update_condition()
            ROOM.emit(log, "%s: its log is written again", self._name, state="written")

    async def on_snapshot_failed(self, error: DiskFull) -> bool:
        """There was no room for a snapshot; True if there is more now, by the reserve."""
        if not self.snapshot_failed:
            self.snapshot_failed = True
            text = "%s: no room for a snapshot, tried again: %s"
            FULL.emit(log, text, self._name, error, what="snapshot")
        self._update_condition()
        return await self.free_reserve()

    async def on_snapshot(self, applied_bytes: int) -> None:
        """There is a new one; ``self.applied_bytes`` was so much when it was begun."""
        self.snapshot_failed = False
        # Its own, finished after a leader's newer one came, moves nothing back.
        self._applied_bytes_in_snapshot = max(self._applied_bytes_in_snapshot, applied_bytes)
        self.snapshot_bytes = await self._storage.snapshots.newest_bytes()
        self._update_condition()

    async def free_reserve(self) -> bool:
        """True if there was one."""
        if RESERVE_FILE not in self._disk.list():
            return False
        await self._disk.delete(RESERVE_FILE)
        return True

    def _reserve_bytes(self) -> int:
        return min(RESERVE_BYTES_MAX, self.log_bytes_max)

    def _update_condition(self) -> None:
        if self.is_low or self.is_full or self.snapshot_failed:
            self._conditions.set(self._condition())
        else:
            self._conditions.clear(Code.METADATA_DISK_LOW)

    def _condition(self) -> HealthCondition:
        return condition(
            Code.METADATA_DISK_LOW,
            free_bytes=self._disk.free_bytes(),
            needed_bytes=self.needed_bytes,
            log_full=int(self.is_full),
            snapshot_failed=int(self.snapshot_failed),
        )

    def _condition_text(self) -> str:
        return text_of(self._condition().about(node=self._name))


def is_disk_low(conditions: Iterable[HealthCondition]) -> bool:
    """Whether a node that reports these conditions is low on disk space. Its leader decides from that."""
    return any(reported.code == Code.METADATA_DISK_LOW for reported in conditions)
