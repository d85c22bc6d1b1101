"""Disk space of a metadata node: the space to keep free, and the behavior when space is low.

A snapshot frees space, but needs space itself. So a node reports its disk as low before it is full: when
less is free than its next snapshot and some log need. Then a leader refuses commands that make the state
larger. It accepts commands that lead to free space: deletions, requests for deletions, and keys bound to a
lease. A small reserve file helps on a disk that other programs fill to the last byte.

A full disk does not end the node. It sends no vote and acknowledges nothing that is not written. Pending
operations are written when space is free (`raft_storage.py`), and a failed snapshot is retried.
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
"""Interval of the checks of free space, and delay until a failed write is retried."""
CHECK_INTERVAL_BYTES = 64 * 1024
"""The free space is also checked after this many written bytes, while it is not low.

Much less than the space kept free.
"""
RESERVE_FILE = "reserve"
RESERVE_BYTES_MAX = 2 * 1024 * 1024
DISK_FRACTION_DIVISOR = 16
"""The log between two snapshots and the reserve may each use this part of the disk."""
SHARE_BYTES_MIN = 1024 * 1024


class MetadataDiskSpace:
    """The disk space of one node."""

    def __init__(
        self, disk: Disk, storage: RaftStorage, conditions: NodeConditions, name: str
    ) -> None:
        self.is_low = False
        """Whether less is free than the next snapshot may need."""
        self.is_full = False
        """Whether a write of the log failed for lack of space, so that nothing is acknowledged."""
        self.is_quorum_low = False
        """On a leader, whether the disks of most voters are low."""
        self.snapshot_failed = False
        self.applied_bytes = 0
        """Size of the commands applied since the start."""
        self._applied_bytes_in_snapshot = 0
        """Size of those that are in the newest snapshot."""
        self.snapshot_bytes = 0
        """The size of the newest snapshot."""
        self.log_bytes_max = SHARE_BYTES_MIN
        """Limit of the log between two snapshots, as a part of free space and own files.

        See `DISK_FRACTION_DIVISOR`.
        """
        self._disk = disk
        self._storage = storage
        self._conditions = conditions
        self._name = name
        self._free_bytes = 0
        self._bytes_written_at_check = 0
        """Bytes that the storage had written at the last check."""

    async def start(self) -> None:
        """Check the free space for the first time, after the start has loaded the data."""
        self.snapshot_bytes = await self._storage.snapshots.newest_bytes()
        await self.check_and_restore_reserve()

    @property
    def grown_bytes(self) -> int:
        """Return the size of the commands since the newest snapshot.

        The next one grows by at most about this size.
        """
        return self.applied_bytes - self._applied_bytes_in_snapshot

    @property
    def needed_bytes(self) -> int:
        """Return the space that the next snapshot may need, plus some log."""
        log_bytes = min(RESERVE_BYTES_MAX, self.log_bytes_max)
        return self.snapshot_bytes + self.grown_bytes + log_bytes

    def refusal(self, pending_bytes: int) -> MetadataFull | None:
        """Return the error if the state may not grow, or None.

        ``pending_bytes`` is the size of commands that are proposed and not applied.
        """
        remaining_bytes = self._free_bytes - self.needed_bytes
        self._set_low(self.is_low or remaining_bytes < 0)
        # Pending bytes are written twice, into the log and into a snapshot. They change with each request,
        # so they refuse this request and do not set the disk to low. Otherwise the state would alternate.
        if self.is_low or self.is_full or remaining_bytes < 2 * pending_bytes:
            return MetadataFull(self._condition_text())
        if self.is_quorum_low:
            return MetadataFull(
                "the disks of most metadata nodes are nearly full (see dlog status), so requests that"
                " make the metadata larger are refused. Free space there, or delete logs"
            )
        return None

    async def check_and_restore_reserve(self) -> None:
        """Check the free space, report it, and create the reserve again if there is space for it."""
        used_bytes = self._storage.log_bytes + self.snapshot_bytes
        share_bytes = (used_bytes + self._disk.free_bytes()) // DISK_FRACTION_DIVISOR
        self.log_bytes_max = max(SHARE_BYTES_MIN, share_bytes)
        self.check()
        has_space_for_reserve = self._free_bytes >= self.needed_bytes + 2 * self._reserve_bytes()
        if has_space_for_reserve and not self.is_full and RESERVE_FILE not in self._disk.list():
            # Another program was faster. Continue without the reserve for now.
            with suppress(DiskFull):
                (await self._disk.create(RESERVE_FILE, size=self._reserve_bytes())).close()
            self.check()

    def check(self) -> None:
        """Check the free space."""
        self._bytes_written_at_check = self._storage.bytes_written
        self._free_bytes = self._disk.free_bytes() + self._storage.snapshots.reclaimable_bytes
        # Once low, the disk stays low until somewhat more is free. Otherwise the log would have hundreds of
        # messages.
        hysteresis_bytes = self._reserve_bytes() if self.is_low else 0
        self._set_low(self._free_bytes < self.needed_bytes + hysteresis_bytes)

    def _set_low(self, is_low: bool) -> None:
        was_low, self.is_low = self.is_low, is_low
        self._storage.zeroing_allowed = not is_low
        if not (was_low or is_low or self.is_full or self.snapshot_failed):
            return  # called for each change, and usually nothing has changed
        self._update_condition()
        if was_low != self.is_low:
            text = (
                self._condition_text()
                if self.is_low
                else f"{self._name}: its disk has enough free space again"
            )
            ROOM.emit(log, "%s", text, state="short" if self.is_low else "enough")

    async def on_full(self, error: DiskFull) -> bool:
        """Handle a failed write of the log. Return whether freeing the reserve made space."""
        if not self.is_full:
            self.is_full = True
            self._update_condition()
            FULL.emit(log, "%s: %s", self._condition_text(), error, what="log")
        return await self.free_reserve()

    def on_written(self) -> None:
        """Record that the log was written."""
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
        """Handle a failed snapshot. Return whether freeing the reserve made space."""
        if not self.snapshot_failed:
            self.snapshot_failed = True
            text = "%s: no space for a snapshot, which will be retried: %s"
            FULL.emit(log, text, self._name, error, what="snapshot")
        self._update_condition()
        return await self.free_reserve()

    async def on_snapshot(self, applied_bytes: int) -> None:
        """Record a new snapshot. ``applied_bytes`` is the value of `self.applied_bytes` at its start."""
        self.snapshot_failed = False
        # A snapshot that ends after a leader's newer one must not lower the value.
        self._applied_bytes_in_snapshot = max(self._applied_bytes_in_snapshot, applied_bytes)
        self.snapshot_bytes = await self._storage.snapshots.newest_bytes()
        self._update_condition()

    def on_snapshot_current(self) -> None:
        """Record that the newest snapshot has all entries, so that a failed attempt does not matter."""
        if self.snapshot_failed:
            self.snapshot_failed = False
            self._update_condition()

    async def free_reserve(self) -> bool:
        """Delete the reserve file. Return whether it existed."""
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
