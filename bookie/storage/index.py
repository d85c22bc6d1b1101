"""From (ledger, entry) to a place in the journal; and each ledger's state.

Runs of consecutive ids, disjoint for each ledger (H8): those since the last checkpoint in memory, the older
ones in an ordered map (`index_format.py` has its bytes). The index is derived data. If a pair does not
fit its checksum, the map is dropped and built again from the journal (`journal_replay.py`).

Each transaction writes totals with the map's position, which a start accepts. Among them is the sum of the
digests of all pairs, because sound pairs need not be of one moment. If the device loses the write of a page,
fences, tombstones or runs disappear with it. A start reads all pairs and compares the sum before the bookie
answers any request. A scrub compares it again, for pages that are read from the device later.
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
"""Puts prepared between two turns of the loop (H34): 5,000 held every connection for 4 ms."""
PAIRS_PER_PAGE = 256
"""Pairs of the map that one turn of the loop looks at."""
TOMBSTONES_PER_CHECKPOINT = 5_000
"""So many end with one checkpoint."""
STATES_SCANNED_MAX = 50_000
"""So many are looked through for them before it."""
LEDGERS_PER_YIELD = 1_000
"""Of those that a checkpoint has written, when it lets go of what it kept for readers."""

log = get_logger("distributedlog.bookie.storage.index")


def no_pause() -> float:
    """Return no pause: work continues in the next turn of the loop."""
    return 0.0


@dataclass(slots=True)
class _DigestScan:
    """The progress of a pass over all pairs. It includes later changes of the pairs before it."""

    counted_below: bytes = b"\0"
    """The pairs below this key are counted."""
    digest_sum: int = 0

    def on_transaction(self, put: Mapping[bytes, bytes], replaced: Mapping[bytes, bytes]) -> None:
        """A transaction has put these pairs, and replaced or deleted those."""
        self.digest_sum += sum_of_digests([put[key] for key in put if key < self.counted_below])
        self.digest_sum -= sum_of_digests(
            [replaced[key] for key in replaced if key < self.counted_below]
        )


class Index:
    """The index of one bookie over its ledgers, which it shares with the store.

    A checkpoint that writes the state of a deleted ledger takes its runs along: what is to be forgotten
    follows from the state, so that no crash can come between.
    """

    def __init__(self, stored: OrderedMap, ledgers: LedgerTable) -> None:
        self.ordered_map = stored
        """The ordered map, to be read; `apply` and `checkpoint` write it."""
        self._ledgers = ledgers
        self._dirty_extents: dict[Ledger, None] = {}
        self._dirty_states: dict[Ledger, None] = {}
        self._removed_files: set[int] = set()
        self._tombstone_scan_wanted = False
        """The bound of tombstones has moved since they were looked for."""
        self._tombstone_scan_from: int | None = None
        """The first id of tombstones that may end, or None."""
        self._removable_tombstones: list[int] = []
        """Tombstones that the map has, as was looked before the checkpoint that is to end them."""
        self._tombstone_scan_next: int | None = None
        """Where to go on looking when those have ended."""
        self.extents_in_memory = 0
        self.extents_frozen = 0
        """Being written by a checkpoint, and in memory as well until it is done."""
        self.bytes_since_checkpoint = 0
        """Record bytes indexed since the last checkpoint began."""
        self.live_bytes: dict[int, int] = {}
        """Journal file -> bytes of records in it that are not deleted."""
        self.stored_totals = IndexTotals()
        """What the map holds, as it says itself."""
        self._stored_checkpoint: IndexCheckpoint | None = None
        """The position that the map holds."""
        self.extra_values: dict[bytes, bytes] = {}
        """What `put_extra` was given, as a start finds it."""
        self._dirty_extra_values: dict[bytes, bytes | None] = {}
        """Since the last checkpoint. None for values to delete."""
        self._transaction_lock = trio.Lock()
        """Held by a transaction, and by a pass over all pairs while it reads some of them."""
        self._digest_scan: _DigestScan | None = None
        """The pass over all pairs that is under way."""

    # --- looking up -------------------------------------------------------------------------------

    def find(self, ledger: Ledger, entry: int) -> ExtentLocation | None:
        """Return the run that holds ``entry``, or None. Raises `IndexDamaged`."""
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
        """The first run that begins after ``entry``, or None. Raises `IndexDamaged`."""
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
        """Stretches (first, count) of the ids that are here from ``start`` on, ascending, merged.

        Looks at no more than ``runs_max`` runs; the second value is where to go on, -1 at the end.
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
        """The map is damaged: the next start, which reads little of it, is to build it again.

        Without a position nothing of it counts. Raises as `OrderedMap.apply`.
        """
        await self.ordered_map.apply((), [META_KEY])

    # --- changing ---------------------------------------------------------------------------------

    def add(
        self, ledger: Ledger, first: int, count: int, file_number: int, offset: int, length: int
    ) -> None:
        """A run became durable. None of its ids may be here already."""
        self._add(ledger, first, count, file_number, offset, length)
        self._count_added(file_number, 1, length)

    def add_pending_extents(
        self, pending_extents: list[PendingExtent], file_number: int, shift: int
    ) -> None:
        """The runs of one block became durable; those of deleted ledgers are passed over.

        ``shift``: what to add to a note's position to get the place in the file.
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
        """The ledger's state changed: the next checkpoint takes it along."""
        self._dirty_states[ledger] = None

    def mark_states_dirty(self, ledgers: Iterable[Ledger]) -> None:
        """As `mark_state_dirty`, of many."""
        self._dirty_states |= dict.fromkeys(ledgers)

    def drop_files(self, numbers: set[int]) -> None:
        """Nothing is left of these journal files: their runs go with the next checkpoint.

        With it and not before: it makes durable that the ledgers are in limbo, else what is forgotten would
        be denied by a start after a crash.
        """
        self._removed_files |= numbers

    def request_tombstone_scan(self) -> None:
        """The bound below which they are not needed has moved: those that a checkpoint has written go."""
        self._tombstone_scan_wanted = True

    async def delete_extents(self, ledger: Ledger) -> None:
        """Nothing of the ledger is here any more; durable.

        Call as `replace_extents`, while nothing is added to it. Raises `DiskFull`.
        """
        assert ledger.extents is None, "nothing was added since the checkpoint"
        assert ledger.frozen_extents is None, "the checkpoint has taken all runs"
        start = EXTENT_KEY.pack(b"r", ledger.id, 0)
        while page := self.ordered_map.scan(start, extents_end_key(ledger.id), PAIRS_PER_PAGE):
            totals = self.stored_totals.copy()
            for key, value in page:
                totals.subtract_extent(decode_extent(key, value))
            await self.apply([], [key for key, _ in page], totals)
        ledger.last_added_entry = ledger.last_entry = ledger.last_indexed_entry = -1

    @property
    def dirty(self) -> bool:
        """Would a checkpoint write anything?"""
        ending = self._tombstone_scan_wanted or self._tombstone_scan_from is not None
        return bool(self._dirty_extents or self._dirty_states or ending or self._dirty_extra_values)

    # --- looking through, and mending ---------------------------------------------------------------

    def put_extra(self, key: bytes, value: bytes | None) -> None:
        """Have a value beside runs and states, durable with the next checkpoint; None: no more.

        ``key`` is one of `EXTRA_KEYS`: an older program leaves it alone.
        """
        self._dirty_extra_values[key] = value
        if value is None:
            self.extra_values.pop(key, None)
        else:
            self.extra_values[key] = value

    def runs_from(self, ledger_id: int, entry: int, limit: int) -> list[tuple[int, ExtentLocation]]:
        """Runs that are in the map, in order of ledger and entry, with their ledgers' ids.

        From the first run on that begins at ``entry`` of the ledger, or after it. Raises `IndexDamaged`.
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
        """Put parts of runs in the place of these, in one synced transaction; a run that changed stays.

        Call while no checkpoint is written, after one that has taken all of the runs. Raises `DiskFull`.
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
        """Those whose state has changed since the last checkpoint."""
        return list(self._dirty_states)

    # --- the map ----------------------------------------------------------------------------------

    async def state_records(self) -> AsyncIterator[bytes]:
        """The states that the map has, as control records, by ledger id. Raises `IndexDamaged`."""
        async for key, value in pairs_between(self.ordered_map, b"s", b"t"):
            ledger_id, flags, lac, ledger_key = decode_state(key, value)
            yield state_record(ledger_id, flags, lac, ledger_key)

    async def load(self) -> IndexCheckpoint | None:
        """Verify the map, and read what a start needs of it; None for a new one. Raises `IndexDamaged`.

        An older program leaves out what it does not know of the totals: that is counted again.
        """
        meta = self.ordered_map.get(META_KEY)
        if meta is None:
            if self.ordered_map.scan(b"\0", b"\xff", 1):
                raise IndexDamaged("the index holds runs and no position")
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
        """Read and verify all of the map, and say what it holds. Raises `IndexDamaged`.

        Runs of deleted ledgers, which an older version left, go with the next checkpoint.
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
                    raise IndexDamaged(f"ledger {ledger_id}: runs without a state")
                if decode_state(state_key, state)[1] & DELETED:
                    self.mark_state_dirty(self._ledgers.get_or_make(ledger_id))
            if extent.first <= last_entry:
                raise IndexDamaged(f"ledger {ledger_id}: runs that overlap")
            last_entry = extent.last
            totals.add_extent(extent)
        return totals

    async def verify(self, next_pause_s: Callable[[], float] = no_pause) -> None:
        """Read all pairs, also while they change: each fits its digest, and all are of one moment.

        Some 0.8 s of CPU time per million pairs. Raises `IndexDamaged`.
        """
        actual, expected = await self._sum_digests(next_pause_s), self.stored_totals.digest_sum
        if actual != expected:
            raise IndexDamaged(
                f"the index is not of one moment: the device lost a write (sum {actual:016x} instead of"
                f" {expected:016x})"
            )

    async def _sum_digests(self, next_pause_s: Callable[[], float] = no_pause) -> int:
        """Return the sum of the digests of all pairs that the map has at the end. Raises `IndexDamaged`."""
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

    async def checkpoint(self, position: IndexCheckpoint, *, rest_s: float = 0.0) -> None:
        """Write what is in memory, in one synced transaction that makes ``position`` the saved one.

        ``rest_s``: between two slices of it, for what is done beside, unless more comes than is written.

        Writes the state at the call; later changes stay for the next checkpoint. Raises `DiskFull`: then
        nothing was written, and `checkpoint` is called again.
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
            await self._add_state_puts(dirty_ledgers, puts, rest_s)
            self._drop_frozen(frozen_ledgers, deleted_ledgers)
            added_bytes_by_file = await self._add_extent_puts(frozen_ledgers, puts, totals, rest_s)
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
        """One synced transaction, which says what the map holds after it. Raises `DiskFull`.

        ``saved``: its position from now on. ``added``: of the bytes in each file that it holds from now on,
        those that were in memory.
        """
        position = position or self._stored_checkpoint
        assert position is not None, "runs that are changed have been checkpointed"
        position = replace(position, totals=totals)
        digests_before = self.stored_totals.digest_sum
        assert digests_before is not None, "a start has counted what an older program left out"
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
        """The map has what was kept for readers meanwhile."""
        for count, ledger in enumerate(frozen_ledgers, 1):
            if ledger.frozen_extents is not None:
                ledger.last_indexed_entry = max(
                    ledger.last_indexed_entry, ledger.frozen_extents.last
                )
                ledger.frozen_extents = None
            if count % LEDGERS_PER_YIELD == 0:
                await trio.lowlevel.checkpoint()

    async def find_removable_tombstones(self) -> None:
        """Before a checkpoint: find some tombstones in the map that may end, where their bound has moved.

        Raises `IndexDamaged`.
        """
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
        """Tombstones that are not needed: the map has them, without runs, and nothing of theirs is under way.

        Of the moment of the position: a block after it that holds a run of theirs would be missed something.
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
        """The map has them no more."""
        self._tombstone_scan_from, self._removable_tombstones = self._tombstone_scan_next, []
        for ledger_id in ledger_ids:
            ledger = self._ledgers.get_loaded(ledger_id)
            if ledger is not None and ledger.deleted and self._is_needed(ledger):
                self.mark_state_dirty(ledger)  # it came to be used meanwhile: written again
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
        """What was never written of deleted ledgers need not be."""
        for ledger in deleted_ledgers:
            if ledger in frozen_ledgers and ledger.frozen_extents is not None:
                self.extents_frozen -= len(ledger.frozen_extents)
                self._subtract_live_bytes(ledger.frozen_extents.bytes_by_file())
                ledger.frozen_extents = None

    async def _add_state_puts(
        self, dirty_ledgers: list[Ledger], puts: list[tuple[bytes, bytes]], pause_s: float
    ) -> None:
        """Add the present states of the ledgers to ``puts``."""
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
        """Add what was kept to ``puts``; return how many bytes of each file that is."""
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
        """Between two slices of a checkpoint; for one turn where as much has come meanwhile as it writes."""
        await trio.sleep(pause_s if self.extents_in_memory < self.extents_frozen else 0)

    async def _extent_keys_of_deleted(
        self, deleted_ledgers: dict[Ledger, None], totals: IndexTotals
    ) -> list[bytes]:
        """The runs of deleted ledgers that the map holds."""
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
        """The runs of files that are gone, which nothing else deletes or writes anew."""
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
        """A checkpoint wrote nothing: all it took is dirty again, beside what came meanwhile."""
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
    """Yield the pairs of a map in key order, a page at a turn of the loop."""
    while page := ordered_map.scan(start, end, PAIRS_PER_PAGE):
        for pair in page:
            yield pair
        start = page[-1][0] + b"\0"
        await trio.sleep(next_pause_s())


def _is_in_use(ledger: Ledger) -> bool:
    """May somebody still rely on the object, or on its state?"""
    return bool(
        ledger.stream_count
        or ledger.long_polls
        or ledger.pending_extents
        or ledger.extents
        or ledger.frozen_extents
    )
