"""The map from ledger and entry to a location in the files, and the state of each ledger.

Extents of consecutive IDs are disjoint for each ledger (H8). Those since the last checkpoint are in memory,
and older ones are in an ordered map (`index_format.py` has its layout). The index is derived data. If a pair
does not match its checksum, the map is dropped and rebuilt from the journal (`index_rebuild.py`).

Each transaction writes totals with the map's position, which a start accepts. Among them is the sum of the
digests of all pairs, because valid pairs need not be from the same transaction. If the device loses the write
of a page, fences, tombstones or extents disappear with it. A start reads all pairs and compares the sum
before the bookie answers any request. A scrub compares it again, for pages that are read from the device
later.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import trio

from ...runtime.interfaces.host import OrderedMap
from ...runtime.interfaces.log_lines import get_logger
from ..format.extent_map import ExtentLocation, ExtentMap
from ..format.index_format import (
    DIGESTS_MODULUS,
    EXTENT_KEY,
    EXTENT_VALUE,
    EXTRA_KEYS,
    META_KEY,
    STATE_KEY,
    STATE_VALUE,
    IndexCheckpoint,
    IndexDamaged,
    IndexTotals,
    decode_extent,
    decode_state,
    extent_pairs,
    extents_end_key,
    flags_of,
    sum_of_digests,
    verified_value,
    verify_and_sum_digests,
    with_digest,
)
from ..format.journal_format import DELETED, state_record
from ..ledgers.ledger_table import Ledger, LedgerTable, PendingExtent

MAP_NAME = "bookie"
PUTS_PER_SLICE = 500
"""The puts that are prepared per event-loop iteration (H34). With 5,000, all connections were blocked for 4
ms."""
PAIRS_PER_PAGE = 256
"""The pairs of the map that are read per event-loop iteration."""
TOMBSTONES_PER_CHECKPOINT = 5_000
"""The maximum number of tombstones that one checkpoint removes."""
STATES_SCANNED_MAX = 50_000
"""The maximum number of states that are scanned for them before a checkpoint."""
LEDGERS_PER_YIELD = 1_000
"""After a checkpoint, the ledgers per event-loop iteration whose frozen extents are dropped."""

log = get_logger("distributedlog.bookie.storage.index")


def no_pause() -> float:
    """Return no pause: work continues in the next event-loop iteration."""
    return 0.0


@dataclass(slots=True)
class _DigestScan:
    """The progress of a pass over all pairs. It includes later changes of the pairs before it."""

    counted_below: bytes = b"\0"
    """The pairs below this key are included in the sum."""
    digest_sum: int = 0

    def on_transaction(self, put: Mapping[bytes, bytes], replaced: Mapping[bytes, bytes]) -> None:
        """Apply a transaction that has put and replaced or deleted these pairs."""
        self.digest_sum += sum_of_digests([put[key] for key in put if key < self.counted_below])
        self.digest_sum -= sum_of_digests(
            [replaced[key] for key in replaced if key < self.counted_below]
        )


class Index:
    """The index of one bookie over its ledgers, which it shares with the store.

    A checkpoint that writes the state of a deleted ledger also deletes its extents. The extents to delete
    follow from the states, so that a crash cannot leave them.
    """

    def __init__(self, stored: OrderedMap, ledgers: LedgerTable) -> None:
        self.ordered_map = stored
        """The ordered map, for reads only. `apply` and `checkpoint` write it."""
        self._ledgers = ledgers
        self._dirty_extents: dict[Ledger, None] = {}
        self._dirty_states: dict[Ledger, None] = {}
        self._removed_files: set[int] = set()
        self._tombstone_scan_wanted = False
        """Whether the bound of tombstones has increased since the last scan for them."""
        self._tombstone_scan_from: int | None = None
        """The first ID of the next scan for removable tombstones; None if no scan is due."""
        self._removable_tombstones: list[int] = []
        """Tombstones in the map that the next checkpoint may remove."""
        self._tombstone_scan_next: int | None = None
        """The first ID of the scan after the next checkpoint; None if the scan has reached the bound."""
        self.extents_in_memory = 0
        self.extents_frozen = 0
        """Extents that a checkpoint is writing. They stay in memory until it is done."""
        self.bytes_since_checkpoint = 0
        """Record bytes indexed since the last checkpoint began."""
        self.live_bytes: dict[int, int] = {}
        """File -> bytes of records in it that are not deleted."""
        self.stored_totals = IndexTotals()
        """The totals of the map's contents."""
        self._stored_checkpoint: IndexCheckpoint | None = None
        """The position in the map."""
        self.extra_values: dict[bytes, bytes] = {}
        """The values of `put_extra`, including those that a start has loaded."""
        self._dirty_extra_values: dict[bytes, bytes | None] = {}
        """Those that changed since the last checkpoint. None for values to delete."""
        self._transaction_lock = trio.Lock()
        """Held by a transaction, and by a pass over all pairs while it reads a page."""
        self._digest_scan: _DigestScan | None = None

    # --- lookups ----------------------------------------------------------------------------------

    def find(self, ledger: Ledger, entry: int) -> ExtentLocation | None:
        """Return the extent that contains ``entry``, or None. Raises `IndexDamaged`."""
        for extent_map in (ledger.extents, ledger.frozen_extents):
            if extent_map is not None and (extent := extent_map.find(entry)) is not None:
                return extent
        if entry > ledger.last_indexed_entry:
            return None
        pair = self.ordered_map.floor(EXTENT_KEY.pack(b"r", ledger.id, entry))
        if pair is None or pair[0][:9] != STATE_KEY.pack(b"r", ledger.id):
            return None
        stored_extent = decode_extent(*pair)
        return stored_extent if entry <= stored_extent.last else None

    def find_next(self, ledger: Ledger, entry: int) -> ExtentLocation | None:
        """Return the first extent that begins after ``entry``, or None. Raises `IndexDamaged`."""
        nearest: ExtentLocation | None = None
        for extent_map in (ledger.extents, ledger.frozen_extents):
            if extent_map is not None:
                extent = extent_map.find_next(entry)
                if extent is not None and (nearest is None or extent.first < nearest.first):
                    nearest = extent
        if entry < ledger.last_indexed_entry:
            pairs = self.ordered_map.scan(
                EXTENT_KEY.pack(b"r", ledger.id, entry + 1), extents_end_key(ledger.id), 1
            )
            if pairs:
                stored_extent = decode_extent(*pairs[0])
                if nearest is None or stored_extent.first < nearest.first:
                    nearest = stored_extent
        return nearest

    def ranges(
        self, ledger: Ledger, start: int, extents_max: int
    ) -> tuple[list[tuple[int, int]], int]:
        """Return ranges (first, count) of the IDs that are stored from ``start`` on, ascending and merged.

        Returns:
            The ranges of at most ``extents_max`` extents, and the entry at which to continue, -1 at the end.
        """
        merged: list[tuple[int, int]] = []
        next_entry = start
        for _ in range(extents_max):
            extent = self.find(ledger, next_entry) or self.find_next(ledger, next_entry)
            if extent is None:
                return merged, -1
            first = max(extent.first, start)
            count = extent.last - first + 1
            if merged and merged[-1][0] + merged[-1][1] == first:
                merged[-1] = (merged[-1][0], merged[-1][1] + count)
            else:
                merged.append((first, count))
            next_entry = extent.last + 1
        return merged, next_entry

    async def invalidate(self) -> None:
        """Make the next start rebuild the damaged map, by the removal of its position.

        Raises as `OrderedMap.apply`.
        """
        await self.ordered_map.apply((), [META_KEY])

    # --- changing ---------------------------------------------------------------------------------

    def add(
        self, ledger: Ledger, first: int, count: int, file_number: int, offset: int, length: int
    ) -> None:
        """Add an extent that became durable. None of its entries may be indexed already."""
        self._add(ledger, first, count, file_number, offset, length)
        self._count_added(file_number, 1, length)

    def add_pending_extents(
        self, pending_extents: list[PendingExtent], file_number: int, shift: int
    ) -> None:
        """Add the extents of a block that became durable, except those of deleted ledgers.

        ``shift`` is the difference between an offset in the file and a position in the block's buffer.
        """
        extent_count = size_bytes = 0
        for pending in pending_extents:
            ledger, length = pending.ledger, pending.length
            if not ledger.flags & DELETED:
                first, extents, offset = pending.first, ledger.extents, pending.position + shift
                if extents is not None and first > ledger.last_entry:
                    extents.append(first, pending.count, file_number, offset, length)
                    ledger.last_entry = first + pending.count - 1
                else:
                    self._add(ledger, first, pending.count, file_number, offset, length)
                extent_count += 1
                size_bytes += length
        self._count_added(file_number, extent_count, size_bytes)

    def _add(
        self, ledger: Ledger, first: int, count: int, file_number: int, offset: int, length: int
    ) -> None:
        extents = ledger.extents
        if extents is None:
            extents = ledger.extents = ExtentMap()
            self._dirty_extents[ledger] = None
        extents.add(first, count, file_number, offset, length)
        last = first + count - 1
        if last > ledger.last_entry:
            ledger.last_entry = last

    def _count_added(self, file_number: int, extent_count: int, size_bytes: int) -> None:
        if extent_count:
            self.extents_in_memory += extent_count
            self.bytes_since_checkpoint += size_bytes
            self.live_bytes[file_number] = self.live_bytes.get(file_number, 0) + size_bytes

    def mark_state_dirty(self, ledger: Ledger) -> None:
        """Write the state of the ledger with the next checkpoint."""
        self._dirty_states[ledger] = None

    def mark_states_dirty(self, ledgers: Iterable[Ledger]) -> None:
        """Write the states of these ledgers with the next checkpoint."""
        self._dirty_states |= dict.fromkeys(ledgers)

    def drop_files(self, numbers: set[int]) -> None:
        """Delete the extents in these files, which have no content, with the next checkpoint.

        The same checkpoint makes durable that their ledgers are in limbo state. If the extents were deleted
        earlier, a start after a crash could report their entries as absent.
        """
        self._removed_files |= numbers

    def request_tombstone_scan(self) -> None:
        """Remove tombstones below the increased bound with the next checkpoints."""
        self._tombstone_scan_wanted = True

    async def delete_extents(self, ledger: Ledger) -> None:
        """Delete all extents of a ledger, durably.

        The caller prevents checkpoints, and the last one must have written all extents of the ledger. No add
        to it may be pending. Raises `DiskFull`.
        """
        assert ledger.extents is None, "nothing was added since the checkpoint"
        assert ledger.frozen_extents is None, "the checkpoint has written all extents"
        start = EXTENT_KEY.pack(b"r", ledger.id, 0)
        while page := self.ordered_map.scan(start, extents_end_key(ledger.id), PAIRS_PER_PAGE):
            totals = self.stored_totals.copy()
            for key, value in page:
                totals.subtract_extent(decode_extent(key, value))
            await self.apply([], [key for key, _ in page], totals)
        ledger.last_added_entry = ledger.last_entry = ledger.last_indexed_entry = -1

    @property
    def dirty(self) -> bool:
        """Whether a checkpoint would write anything."""
        ending = self._tombstone_scan_wanted or self._tombstone_scan_from is not None
        return bool(self._dirty_extents or self._dirty_states or ending or self._dirty_extra_values)

    # --- scans and repairs ------------------------------------------------------------------------

    def put_extra(self, key: bytes, value: bytes | None) -> None:
        """Store an additional value with the next checkpoint, or delete it for None.

        ``key`` is in the range `EXTRA_KEYS`, whose pairs an older version does not change.
        """
        self._dirty_extra_values[key] = value
        if value is None:
            self.extra_values.pop(key, None)
        else:
            self.extra_values[key] = value

    def extents_from(
        self, ledger_id: int, entry: int, limit: int
    ) -> list[tuple[int, ExtentLocation]]:
        """Return extents of the map with their ledger IDs, in order of ledger and entry.

        The first one begins at or after ``entry`` of the ledger. Raises `IndexDamaged`.
        """
        pairs = self.ordered_map.scan(EXTENT_KEY.pack(b"r", ledger_id, entry), b"s", limit)
        extents = [decode_extent(key, value) for key, value in pairs]
        return [
            (EXTENT_KEY.unpack(key)[1], extent)
            for (key, _), extent in zip(pairs, extents, strict=True)
        ]

    async def replace_extents(
        self, ledger: Ledger, changes: list[tuple[ExtentLocation, list[ExtentLocation]]]
    ) -> None:
        """Replace extents by parts of them, in one synced transaction.

        Extents that have changed are not replaced. The caller prevents checkpoints, and the last one must
        have written all of these extents. Raises `DiskFull`.
        """
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        totals = self.stored_totals.copy()
        for extent, parts in changes:
            key = EXTENT_KEY.pack(b"r", ledger.id, extent.first)
            stored = self.ordered_map.get(key)
            if stored is None or decode_extent(key, stored) != extent:
                continue
            if not parts or parts[0].first != extent.first:
                deletes.append(key)
            for part in parts:
                key = EXTENT_KEY.pack(b"r", ledger.id, part.first)
                value = EXTENT_VALUE.pack(part.file_number, part.offset, part.length, part.count)
                puts.append((key, with_digest(key, value)))
                totals.add_extent(part)
            totals.subtract_extent(extent)
        if puts or deletes:
            await self.apply(puts, deletes, totals)

    @property
    def dirty_states(self) -> list[Ledger]:
        """The ledgers whose state has changed since the last checkpoint."""
        return list(self._dirty_states)

    # --- the map ----------------------------------------------------------------------------------

    async def state_records(self) -> AsyncIterator[bytes]:
        """Yield the states in the map as control records, by ledger ID. Raises `IndexDamaged`."""
        async for key, value in pairs_between(self.ordered_map, b"s", b"t"):
            ledger_id, flags, lac, ledger_key = decode_state(key, value)
            yield state_record(ledger_id, flags, lac, ledger_key)

    async def load(self) -> IndexCheckpoint | None:
        """Verify the map, and load its position and totals; None for a new map. Raises `IndexDamaged`.

        An older version may have omitted some totals, which are then computed from the pairs.
        """
        meta = self.ordered_map.get(META_KEY)
        if meta is None:
            if self.ordered_map.scan(b"\0", b"\xff", 1):
                raise IndexDamaged("the index has extents but no position")
            return None
        checkpoint = self._stored_checkpoint = IndexCheckpoint.decode(
            verified_value(META_KEY, meta)
        )
        async for key, value in pairs_between(self.ordered_map, *EXTRA_KEYS):
            self.extra_values[key] = verified_value(key, value)
        self.stored_totals = (
            await self.recount() if checkpoint.totals is None else checkpoint.totals
        )
        if checkpoint.totals is None or checkpoint.totals.digest_sum is None:
            self.stored_totals.digest_sum = await self._sum_digests()
        else:
            await self.verify()
        totals, ledgers = self.stored_totals, self._ledgers
        ledgers.known_count, ledgers.limbo_count, ledgers.tombstone_count = (
            totals.known_count,
            totals.limbo_count,
            totals.tombstone_count,
        )
        self.live_bytes = dict(totals.live_bytes)
        return checkpoint

    async def recount(self) -> IndexTotals:
        """Read and verify all of the map, and return its totals. Raises `IndexDamaged`.

        Extents of deleted ledgers, which an older version left, are deleted with the next checkpoint.
        """
        totals = IndexTotals()
        async for key, value in pairs_between(self.ordered_map, b"s", b"t"):
            _, flags, _, _ = decode_state(key, value)
            totals.count_state(flags)
        ledger_id, last_entry = -1, -1
        async for key, value in pairs_between(self.ordered_map, b"r", b"s"):
            extent = decode_extent(key, value)
            if EXTENT_KEY.unpack(key)[1] != ledger_id:
                ledger_id, last_entry = EXTENT_KEY.unpack(key)[1], -1
                state_key = STATE_KEY.pack(b"s", ledger_id)
                if (state := self.ordered_map.get(state_key)) is None:
                    raise IndexDamaged(f"ledger {ledger_id}: extents without a state")
                if decode_state(state_key, state)[1] & DELETED:
                    self.mark_state_dirty(self._ledgers.get_or_make(ledger_id))
            if extent.first <= last_entry:
                raise IndexDamaged(f"ledger {ledger_id}: extents overlap")
            last_entry = extent.last
            totals.add_extent(extent)
        return totals

    async def verify(self, next_pause_s: Callable[[], float] = no_pause) -> None:
        """Read all pairs, even while they change: check each digest, and the sum of all.

        This takes about 0.8 s of CPU time per million pairs.

        Raises:
            IndexDamaged: A digest does not match, or the device has lost a write.
        """
        actual, expected = await self._sum_digests(next_pause_s), self.stored_totals.digest_sum
        if actual != expected:
            raise IndexDamaged(
                f"the index is inconsistent: the device lost a write (sum {actual:016x} instead of"
                f" {expected:016x})"
            )

    async def _sum_digests(self, next_pause_s: Callable[[], float] = no_pause) -> int:
        """Return the sum of the digests of all pairs in the map at the end. Raises `IndexDamaged`."""
        assert self._digest_scan is None, "one pass at a time"
        self._digest_scan = scan = _DigestScan()
        try:
            while True:
                async with self._transaction_lock:
                    page = self.ordered_map.scan(scan.counted_below, b"\xff", PAIRS_PER_PAGE)
                    if not page:
                        return scan.digest_sum % DIGESTS_MODULUS
                    scan.digest_sum += verify_and_sum_digests(
                        [pair for pair in page if pair[0] != META_KEY]
                    )
                    scan.counted_below = page[-1][0] + b"\0"
                await trio.sleep(next_pause_s())
        finally:
            self._digest_scan = None

    async def checkpoint(self, position: IndexCheckpoint, *, pause_s: float = 0.0) -> None:
        """Write the changes in memory, and the position, in one synced transaction.

        The state at the call is written. Later changes are left to the next checkpoint.

        Args:
            position: The new position of the index.
            pause_s: The pause between two slices, for other work. Without effect if extents are added faster
                than they are written.
        Raises:
            DiskFull: Nothing was written. The caller may call `checkpoint` again.
        """
        frozen_ledgers, self._dirty_extents = self._dirty_extents, {}
        dirty_ledgers, self._dirty_states = list(self._dirty_states), {}
        deleted_ledgers = {ledger: None for ledger in dirty_ledgers if ledger.flags & DELETED}
        ended_tombstones = self._tombstones_to_remove(position.must_verify_below, dirty_ledgers)
        totals = self.stored_totals.copy()
        totals.known_count, totals.limbo_count = (
            self._ledgers.known_count,
            self._ledgers.limbo_count,
        )
        totals.tombstone_count = self._ledgers.tombstone_count - len(ended_tombstones)
        frozen_bytes, self.bytes_since_checkpoint = self.bytes_since_checkpoint, 0
        extra_values, self._dirty_extra_values = self._dirty_extra_values, {}
        self.extents_frozen, self.extents_in_memory = self.extents_in_memory, 0
        for ledger in frozen_ledgers:
            assert ledger.frozen_extents is None, "one checkpoint at a time"
            ledger.frozen_extents, ledger.extents = ledger.extents, None
        puts: list[tuple[bytes, bytes]] = []
        try:
            await self._add_state_puts(dirty_ledgers, puts, pause_s)
            self._drop_frozen(frozen_ledgers, deleted_ledgers)
            added_bytes_by_file = await self._add_extent_puts(frozen_ledgers, puts, totals, pause_s)
            deletes = await self._extent_keys_of_deleted(deleted_ledgers, totals)
            if self._removed_files:
                await self._add_extent_keys_of_removed_files(
                    {key for key, _ in puts}, deletes, totals
                )
            state_keys = [STATE_KEY.pack(b"s", ledger_id) for ledger_id in ended_tombstones]
            puts += (
                (key, with_digest(key, value))
                for key, value in extra_values.items()
                if value is not None
            )
            deleted_extra_keys = [key for key, value in extra_values.items() if value is None]
            await self.apply(
                puts,
                deletes + state_keys + deleted_extra_keys,
                totals,
                position,
                added_bytes_by_file,
            )
        except BaseException:
            self._restore_dirty(frozen_ledgers, dirty_ledgers, frozen_bytes)
            self._dirty_extra_values = extra_values | self._dirty_extra_values
            raise
        self._removed_files.clear()
        self.extents_frozen = 0
        self._remove_tombstones(ended_tombstones)
        with trio.CancelScope(shield=True):
            await self._release_frozen(frozen_ledgers)

    async def apply(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes],
        totals: IndexTotals,
        position: IndexCheckpoint | None = None,
        added_bytes_by_file: Mapping[int, int] | None = None,
    ) -> None:
        """Run one synced transaction, which also stores the totals. Raises `DiskFull`.

        Args:
            puts: Keys and stored values.
            deletes: Keys to delete.
            totals: The totals after the transaction.
            position: The new position; None for the present one.
            added_bytes_by_file: Bytes of extents that were in memory before, and are already counted in
                `live_bytes`.
        """
        position = position or self._stored_checkpoint
        assert position is not None, "changed extents have been checkpointed"
        position = replace(position, totals=totals)
        digests_before = self.stored_totals.digest_sum
        assert digests_before is not None, (
            "a start has computed the totals that an older version omits"
        )
        replaced: Mapping[bytes, bytes] = {}

        def summary(pairs: Mapping[bytes, bytes]) -> tuple[bytes, bytes]:
            # The old pairs are read from the map within the transaction, never taken from memory. So the
            # sum is right for any keys, and an older page is noticed even after its pairs have changed.
            nonlocal replaced
            replaced = pairs
            digest_change = sum_of_digests([value for _, value in puts]) - sum_of_digests(
                pairs.values()
            )
            totals.digest_sum = (digests_before + digest_change) % DIGESTS_MODULUS
            return META_KEY, with_digest(META_KEY, position.encode())

        async with self._transaction_lock:
            await self.ordered_map.apply(puts, deletes, summary)
            if self._digest_scan is not None:
                self._digest_scan.on_transaction(dict(puts), replaced)
        live_byte_changes = Counter(totals.live_bytes)
        live_byte_changes.subtract(self.stored_totals.live_bytes)
        live_byte_changes.subtract(added_bytes_by_file or {})
        for number, length in live_byte_changes.items():
            if length:
                self.live_bytes[number] = self.live_bytes.get(number, 0) + length
        self.stored_totals, self._stored_checkpoint = totals, position

    async def _release_frozen(self, frozen_ledgers: dict[Ledger, None]) -> None:
        """Drop the extents that were kept for readers during the checkpoint, because the map has them now."""
        for count, ledger in enumerate(frozen_ledgers, 1):
            if ledger.frozen_extents is not None:
                ledger.last_indexed_entry = max(
                    ledger.last_indexed_entry, ledger.frozen_extents.last
                )
                ledger.frozen_extents = None
            if count % LEDGERS_PER_YIELD == 0:
                await trio.lowlevel.checkpoint()

    async def find_removable_tombstones(self) -> None:
        """Before a checkpoint, find tombstones in the map that it may remove. Raises `IndexDamaged`."""
        self._removable_tombstones, self._tombstone_scan_next = [], None
        if self._tombstone_scan_wanted:
            self._tombstone_scan_wanted, self._tombstone_scan_from = False, 0
        if self._tombstone_scan_from is None:
            return
        start, below = (
            STATE_KEY.pack(b"s", self._tombstone_scan_from),
            self._ledgers.must_verify_below,
        )
        for _ in range(STATES_SCANNED_MAX // PAIRS_PER_PAGE):
            page = self.ordered_map.scan(start, STATE_KEY.pack(b"s", below), PAIRS_PER_PAGE)
            for key, value in page:
                if flags_of(value) & DELETED:
                    self._removable_tombstones.append(decode_state(key, value)[0])
            if len(page) < PAIRS_PER_PAGE:
                self._tombstone_scan_next = None
                return
            start = page[-1][0] + b"\0"
            self._tombstone_scan_next = decode_state(*page[-1])[0] + 1
            if len(self._removable_tombstones) >= TOMBSTONES_PER_CHECKPOINT:
                return
            await trio.lowlevel.checkpoint()

    def _tombstones_to_remove(self, below: int, dirty_ledgers: list[Ledger]) -> list[int]:
        """Return the found tombstones that are not in use and have no unwritten state.

        This runs at the moment of the position. Otherwise, a block after the position could have an extent of
        a ledger without a state, which a replay treats as a loss.
        """
        if not self._removable_tombstones:
            return []
        unwritten_ledgers = dict.fromkeys(dirty_ledgers)
        ended: list[int] = []
        for ledger_id in self._removable_tombstones:
            ledger = self._ledgers.get_loaded(ledger_id)
            if ledger_id < below and (
                ledger is None or not (_is_in_use(ledger) or ledger in unwritten_ledgers)
            ):
                ended.append(ledger_id)
        return ended

    def _remove_tombstones(self, ledger_ids: list[int]) -> None:
        """Forget tombstones that the checkpoint has deleted from the map."""
        self._tombstone_scan_from, self._removable_tombstones = self._tombstone_scan_next, []
        for ledger_id in ledger_ids:
            ledger = self._ledgers.get_loaded(ledger_id)
            if ledger is not None and ledger.deleted and self._is_needed(ledger):
                self.mark_state_dirty(ledger)  # in use since the selection, so it is written again
            else:
                self._ledgers.remove_tombstone(ledger_id)

    def _is_needed(self, ledger: Ledger) -> bool:
        return _is_in_use(ledger) or ledger in self._dirty_states

    def _subtract_live_bytes(self, bytes_by_file: dict[int, int]) -> None:
        for number, length in bytes_by_file.items():
            self.live_bytes[number] -= length

    def _drop_frozen(
        self, frozen_ledgers: dict[Ledger, None], deleted_ledgers: dict[Ledger, None]
    ) -> None:
        """Drop frozen extents of deleted ledgers, which need not be written."""
        for ledger in deleted_ledgers:
            if ledger in frozen_ledgers and ledger.frozen_extents is not None:
                self.extents_frozen -= len(ledger.frozen_extents)
                self._subtract_live_bytes(ledger.frozen_extents.bytes_by_file())
                ledger.frozen_extents = None

    async def _add_state_puts(
        self, dirty_ledgers: list[Ledger], puts: list[tuple[bytes, bytes]], pause_s: float
    ) -> None:
        state_values = [
            (
                STATE_KEY.pack(b"s", ledger.id),
                STATE_VALUE.pack(ledger.flags, ledger.lac, ledger.key),
            )
            for ledger in dirty_ledgers
        ]
        for key, value in state_values:
            puts.append((key, with_digest(key, value)))
            if len(puts) % PUTS_PER_SLICE == 0:
                await self._pause_between_slices(pause_s)

    async def _add_extent_puts(
        self,
        frozen_ledgers: dict[Ledger, None],
        puts: list[tuple[bytes, bytes]],
        totals: IndexTotals,
        pause_s: float,
    ) -> Counter[int]:
        """Add the frozen extents to ``puts``; return their bytes by file."""
        added_bytes_by_file: Counter[int] = Counter()
        puts_at_pause = len(puts)
        for ledger in frozen_ledgers:
            frozen = ledger.frozen_extents
            for position in range(0, 0 if frozen is None else len(frozen), PUTS_PER_SLICE):
                assert frozen is not None
                extents = frozen.columns(position, position + PUTS_PER_SLICE)
                puts += extent_pairs(ledger.id, extents)
                added_bytes_by_file.update(totals.add_extents(extents))
                if len(puts) - puts_at_pause >= PUTS_PER_SLICE:
                    puts_at_pause = len(puts)
                    await self._pause_between_slices(pause_s)
        return added_bytes_by_file

    async def _pause_between_slices(self, pause_s: float) -> None:
        """Pause for other work, or only yield if as many extents were added as are being written."""
        await trio.sleep(pause_s if self.extents_in_memory < self.extents_frozen else 0)

    async def _extent_keys_of_deleted(
        self, deleted_ledgers: dict[Ledger, None], totals: IndexTotals
    ) -> list[bytes]:
        """Return the keys of the map's extents of deleted ledgers, and subtract them from ``totals``."""
        deletes: list[bytes] = []
        for count, ledger in enumerate(deleted_ledgers, 1):
            if count % PAIRS_PER_PAGE == 0:
                await trio.lowlevel.checkpoint()
            if ledger.last_indexed_entry < 0:
                continue
            first = EXTENT_KEY.pack(b"r", ledger.id, 0)
            async for key, value in pairs_between(
                self.ordered_map, first, extents_end_key(ledger.id)
            ):
                deletes.append(key)
                totals.subtract_extent(decode_extent(key, value))
        return deletes

    async def _add_extent_keys_of_removed_files(
        self, written_keys: set[bytes], deletes: list[bytes], totals: IndexTotals
    ) -> None:
        """Add to ``deletes`` the extents in removed files that are neither deleted nor written already."""
        skipped_keys = {*written_keys, *deletes}
        async for key, value in pairs_between(self.ordered_map, b"r", b"s"):
            extent = decode_extent(key, value)
            if extent.file_number in self._removed_files and key not in skipped_keys:
                deletes.append(key)
                totals.subtract_extent(extent)

    def _restore_dirty(
        self,
        frozen_ledgers: dict[Ledger, None],
        dirty_ledgers: list[Ledger],
        frozen_bytes: int,
    ) -> None:
        """Mark all changes of a failed checkpoint as unwritten again, in addition to later changes."""
        for ledger in frozen_ledgers:
            frozen, ledger.frozen_extents = ledger.frozen_extents, None
            if frozen is None:
                continue
            for extent in ledger.extents or ():
                frozen.add(
                    extent.first, extent.count, extent.file_number, extent.offset, extent.length
                )
            ledger.extents = frozen
            self._dirty_extents[ledger] = None
        self._dirty_states = dict.fromkeys((*dirty_ledgers, *self._dirty_states))
        self.extents_in_memory += self.extents_frozen
        self.extents_frozen = 0
        self.bytes_since_checkpoint += frozen_bytes

    def close(self) -> None:
        """Close the map."""
        self.ordered_map.close()


async def pairs_between(
    ordered_map: OrderedMap, start: bytes, end: bytes, next_pause_s: Callable[[], float] = no_pause
) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield the pairs of a map in key order, one page per event-loop iteration."""
    while page := ordered_map.scan(start, end, PAIRS_PER_PAGE):
        for pair in page:
            yield pair
        start = page[-1][0] + b"\0"
        await trio.sleep(next_pause_s())


def _is_in_use(ledger: Ledger) -> bool:
    """Whether a stream, a long poll or an unwritten extent depends on the object."""
    return bool(
        ledger.stream_count
        or ledger.long_polls
        or ledger.pending_extents
        or ledger.extents
        or ledger.frozen_extents
    )
