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
    KEPT_KEYS,
    META_KEY,
    RUN,
    RUN_KEY,
    STATE,
    STATE_KEY,
    IndexCheckpoint,
    IndexDamaged,
    IndexTotals,
    checked,
    flags_of,
    ledger_end,
    located,
    run_pairs,
    sealed,
    stated,
    sum_of_digests,
    verified_digests,
)
from ..format.journal_format import DELETED, state_record
from ..ledgers.ledger_table import Ledger, LedgerTable, PendingExtent

MAP_NAME = "bookie"
SLICE = 500
"""Puts prepared between two turns of the loop (H34): 5,000 held every connection for 4 ms."""
PAGE = 256
"""Pairs of the map that one turn of the loop looks at."""
TOMBSTONES_AT_ONCE = 5_000
"""So many end with one checkpoint."""
STATES_AT_ONCE = 50_000
"""So many are looked through for them before it."""
LEDGERS_A_TURN = 1_000
"""Of those that a checkpoint has written, when it lets go of what it kept for readers."""

log = get_logger("distributedlog.bookie.storage.index")


def no_rest() -> float:
    """Return no pause: work continues in the next turn of the loop."""
    return 0.0


@dataclass(slots=True)
class _Pass:
    """The progress of a pass over all pairs. It includes later changes of the pairs before it."""

    upto: bytes = b"\0"
    """The pairs below this key are counted."""
    digests: int = 0

    def note(self, put: Mapping[bytes, bytes], replaced: Mapping[bytes, bytes]) -> None:
        """A transaction has put these pairs, and replaced or deleted those."""
        self.digests += sum_of_digests([put[key] for key in put if key < self.upto])
        self.digests -= sum_of_digests([replaced[key] for key in replaced if key < self.upto])


class Index:
    """The index of one bookie over its ledgers, which it shares with the store.

    A checkpoint that writes the state of a deleted ledger takes its runs along: what is to be forgotten
    follows from the state, so that no crash can come between.
    """

    def __init__(self, stored: OrderedMap, ledgers: LedgerTable) -> None:
        self.stored = stored
        """The ordered map, to be read; `apply` and `checkpoint` write it."""
        self._ledgers = ledgers
        self._dirty_runs: dict[Ledger, None] = {}
        self._dirty_states: dict[Ledger, None] = {}
        self._gone_files: set[int] = set()
        self._end_asked = False
        """The bound of tombstones has moved since they were looked for."""
        self._ending_from: int | None = None
        """The first id of tombstones that may end, or None."""
        self._may_end: list[int] = []
        """Tombstones that the map has, as was looked before the checkpoint that is to end them."""
        self._ending_next: int | None = None
        """Where to go on looking when those have ended."""
        self.runs_in_memory = 0
        self.runs_frozen = 0
        """Being written by a checkpoint, and in memory as well until it is done."""
        self.bytes_since = 0
        """Record bytes indexed since the last checkpoint began."""
        self.live_bytes: dict[int, int] = {}
        """Journal file -> bytes of records in it that are not deleted."""
        self.in_map = IndexTotals()
        """What the map holds, as it says itself."""
        self._saved: IndexCheckpoint | None = None
        """The position that the map holds."""
        self.kept: dict[bytes, bytes] = {}
        """What `keep` was given, as a start finds it."""
        self._to_keep: dict[bytes, bytes | None] = {}
        """Since the last checkpoint. None for values to delete."""
        self._changing = trio.Lock()
        """Held by a transaction, and by a pass over all pairs while it reads some of them."""
        self._pass: _Pass | None = None
        """The pass over all pairs that is under way."""

    # --- looking up -------------------------------------------------------------------------------

    def find(self, ledger: Ledger, entry: int) -> ExtentLocation | None:
        """Return the run that holds ``entry``, or None. Raises `IndexDamaged`."""
        for runs in (ledger.runs, ledger.frozen):
            if runs is not None and (found := runs.find(entry)) is not None:
                return found
        if entry > ledger.persisted_last:
            return None
        pair = self.stored.floor(RUN_KEY.pack(b"r", ledger.id, entry))
        if pair is None or pair[0][:9] != STATE_KEY.pack(b"r", ledger.id):
            return None
        run = located(*pair)
        return run if entry <= run.last else None

    def following(self, ledger: Ledger, entry: int) -> ExtentLocation | None:
        """The first run that begins after ``entry``, or None. Raises `IndexDamaged`."""
        best: ExtentLocation | None = None
        for runs in (ledger.runs, ledger.frozen):
            if runs is not None:
                found = runs.following(entry)
                if found is not None and (best is None or found.first < best.first):
                    best = found
        if entry < ledger.persisted_last:
            pairs = self.stored.scan(
                RUN_KEY.pack(b"r", ledger.id, entry + 1), ledger_end(ledger.id), 1
            )
            if pairs:
                stored = located(*pairs[0])
                if best is None or stored.first < best.first:
                    best = stored
        return best

    def ranges(
        self, ledger: Ledger, start: int, runs_max: int
    ) -> tuple[list[tuple[int, int]], int]:
        """Stretches (first, count) of the ids that are here from ``start`` on, ascending, merged.

        Looks at no more than ``runs_max`` runs; the second value is where to go on, -1 at the end.
        """
        merged: list[tuple[int, int]] = []
        at = start
        for _ in range(runs_max):
            found = self.find(ledger, at) or self.following(ledger, at)
            if found is None:
                return merged, -1
            first = max(found.first, start)
            count = found.last - first + 1
            if merged and merged[-1][0] + merged[-1][1] == first:
                merged[-1] = (merged[-1][0], merged[-1][1] + count)
            else:
                merged.append((first, count))
            at = found.last + 1
        return merged, at

    async def condemn(self) -> None:
        """The map is damaged: the next start, which reads little of it, is to build it again.

        Without a position nothing of it counts. Raises as `OrderedMap.apply`.
        """
        await self.stored.apply((), [META_KEY])

    # --- changing ---------------------------------------------------------------------------------

    def add(
        self, ledger: Ledger, first: int, count: int, file_number: int, offset: int, length: int
    ) -> None:
        """A run became durable. None of its ids may be here already."""
        self._add(ledger, first, count, file_number, offset, length)
        self._count(file_number, 1, length)

    def add_notes(self, notes: list[PendingExtent], file_number: int, shift: int) -> None:
        """The runs of one block became durable; those of deleted ledgers are passed over.

        ``shift``: what to add to a note's position to get the place in the file.
        """
        number = size = 0
        for note in notes:
            ledger, length = note.ledger, note.length
            if not ledger.flags & DELETED:
                first, runs, offset = note.first, ledger.runs, note.position + shift
                if runs is not None and first > ledger.last_entry:
                    runs.append(first, note.count, file_number, offset, length)
                    ledger.last_entry = first + note.count - 1
                else:
                    self._add(ledger, first, note.count, file_number, offset, length)
                number += 1
                size += length
        self._count(file_number, number, size)

    def _add(
        self, ledger: Ledger, first: int, count: int, file_number: int, offset: int, length: int
    ) -> None:
        runs = ledger.runs
        if runs is None:
            runs = ledger.runs = ExtentMap()
            self._dirty_runs[ledger] = None
        runs.add(first, count, file_number, offset, length)
        last = first + count - 1
        if last > ledger.last_entry:
            ledger.last_entry = last

    def _count(self, file_number: int, number: int, size: int) -> None:
        if number:
            self.runs_in_memory += number
            self.bytes_since += size
            self.live_bytes[file_number] = self.live_bytes.get(file_number, 0) + size

    def note_state(self, ledger: Ledger) -> None:
        """The ledger's state changed: the next checkpoint takes it along."""
        self._dirty_states[ledger] = None

    def note_states(self, ledgers: Iterable[Ledger]) -> None:
        """As `note_state`, of many."""
        self._dirty_states |= dict.fromkeys(ledgers)

    def forget_files(self, numbers: set[int]) -> None:
        """Nothing is left of these journal files: their runs go with the next checkpoint.

        With it and not before: it makes durable that the ledgers are in limbo, else what is forgotten would
        be denied by a start after a crash.
        """
        self._gone_files |= numbers

    def end_tombstones(self) -> None:
        """The bound below which they are not needed has moved: those that a checkpoint has written go."""
        self._end_asked = True

    async def delete_runs(self, ledger: Ledger) -> None:
        """Nothing of the ledger is here any more; durable.

        Call as `replace_runs`, while nothing is added to it. Raises `DiskFull`.
        """
        assert ledger.runs is None, "nothing was added since the checkpoint"
        assert ledger.frozen is None, "the checkpoint has taken all runs"
        start = RUN_KEY.pack(b"r", ledger.id, 0)
        while page := self.stored.scan(start, ledger_end(ledger.id), PAGE):
            totals = self.in_map.copy()
            for key, value in page:
                totals.drop_run(located(key, value))
            await self.apply([], [key for key, _ in page], totals)
        ledger.top = ledger.last_entry = ledger.persisted_last = -1

    @property
    def dirty(self) -> bool:
        """Would a checkpoint write anything?"""
        ending = self._end_asked or self._ending_from is not None
        return bool(self._dirty_runs or self._dirty_states or ending or self._to_keep)

    # --- looking through, and mending ---------------------------------------------------------------

    def keep(self, key: bytes, value: bytes | None) -> None:
        """Have a value beside runs and states, durable with the next checkpoint; None: no more.

        ``key`` is one of `KEPT_KEYS`: an older program leaves it alone.
        """
        self._to_keep[key] = value
        if value is None:
            self.kept.pop(key, None)
        else:
            self.kept[key] = value

    def runs_from(self, ledger_id: int, entry: int, limit: int) -> list[tuple[int, ExtentLocation]]:
        """Runs that are in the map, in order of ledger and entry, with their ledgers' ids.

        From the first run on that begins at ``entry`` of the ledger, or after it. Raises `IndexDamaged`.
        """
        pairs = self.stored.scan(RUN_KEY.pack(b"r", ledger_id, entry), b"s", limit)
        runs = [located(key, value) for key, value in pairs]
        return [(RUN_KEY.unpack(key)[1], run) for (key, _), run in zip(pairs, runs, strict=True)]

    async def replace_runs(
        self, ledger: Ledger, changes: list[tuple[ExtentLocation, list[ExtentLocation]]]
    ) -> None:
        """Put parts of runs in the place of these, in one synced transaction; a run that changed stays.

        Call while no checkpoint is written, after one that has taken all of the runs. Raises `DiskFull`.
        """
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        totals = self.in_map.copy()
        for run, parts in changes:
            key = RUN_KEY.pack(b"r", ledger.id, run.first)
            stored = self.stored.get(key)
            if stored is None or located(key, stored) != run:
                continue
            if not parts or parts[0].first != run.first:
                deletes.append(key)
            for part in parts:
                key = RUN_KEY.pack(b"r", ledger.id, part.first)
                value = RUN.pack(part.file_number, part.offset, part.length, part.count)
                puts.append((key, sealed(key, value)))
                totals.add_run(part)
            totals.drop_run(run)
        if puts or deletes:
            await self.apply(puts, deletes, totals)

    @property
    def dirty_states(self) -> list[Ledger]:
        """Those whose state has changed since the last checkpoint."""
        return list(self._dirty_states)

    # --- the map ----------------------------------------------------------------------------------

    async def states(self) -> AsyncIterator[bytes]:
        """The states that the map has, as control records, by ledger id. Raises `IndexDamaged`."""
        async for key, value in pairs_between(self.stored, b"s", b"t"):
            ledger_id, flags, lac, ledger_key = stated(key, value)
            yield state_record(ledger_id, flags, lac, ledger_key)

    async def load(self) -> IndexCheckpoint | None:
        """Verify the map, and read what a start needs of it; None for a new one. Raises `IndexDamaged`.

        An older program leaves out what it does not know of the totals: that is counted again.
        """
        meta = self.stored.get(META_KEY)
        if meta is None:
            if self.stored.scan(b"\0", b"\xff", 1):
                raise IndexDamaged("the index holds runs and no position")
            return None
        saved = self._saved = IndexCheckpoint.decode(checked(META_KEY, meta))
        async for key, value in pairs_between(self.stored, *KEPT_KEYS):
            self.kept[key] = checked(key, value)
        self.in_map = await self.recount() if saved.totals is None else saved.totals
        if saved.totals is None or saved.totals.digests is None:
            self.in_map.digests = await self._digests()
        else:
            await self.verify()
        totals, ledgers = self.in_map, self._ledgers
        ledgers.known, ledgers.limbo, ledgers.tombstones = (
            totals.known,
            totals.limbo,
            totals.tombstones,
        )
        self.live_bytes = dict(totals.live_bytes)
        return saved

    async def recount(self) -> IndexTotals:
        """Read and verify all of the map, and say what it holds. Raises `IndexDamaged`.

        Runs of deleted ledgers, which an older version left, go with the next checkpoint.
        """
        totals = IndexTotals()
        async for key, value in pairs_between(self.stored, b"s", b"t"):
            _, flags, _, _ = stated(key, value)
            totals.count_state(flags)
        ledger_id, last = -1, -1
        async for key, value in pairs_between(self.stored, b"r", b"s"):
            run = located(key, value)
            if RUN_KEY.unpack(key)[1] != ledger_id:
                ledger_id, last = RUN_KEY.unpack(key)[1], -1
                state_key = STATE_KEY.pack(b"s", ledger_id)
                if (state := self.stored.get(state_key)) is None:
                    raise IndexDamaged(f"ledger {ledger_id}: runs without a state")
                if stated(state_key, state)[1] & DELETED:
                    self.note_state(self._ledgers.get_or_make(ledger_id))
            if run.first <= last:
                raise IndexDamaged(f"ledger {ledger_id}: runs that overlap")
            last = run.last
            totals.add_run(run)
        return totals

    async def verify(self, next_rest_s: Callable[[], float] = no_rest) -> None:
        """Read all pairs, also while they change: each fits its digest, and all are of one moment.

        Some 0.8 s of CPU time per million pairs. Raises `IndexDamaged`.
        """
        found, expected = await self._digests(next_rest_s), self.in_map.digests
        if found != expected:
            raise IndexDamaged(
                f"the index is not of one moment: the device lost a write (sum {found:016x} instead of"
                f" {expected:016x})"
            )

    async def _digests(self, next_rest_s: Callable[[], float] = no_rest) -> int:
        """Return the sum of the digests of all pairs that the map has at the end. Raises `IndexDamaged`."""
        assert self._pass is None, "one pass at a time"
        self._pass = under_way = _Pass()
        try:
            while True:
                async with self._changing:
                    page = self.stored.scan(under_way.upto, b"\xff", PAGE)
                    if not page:
                        return under_way.digests % DIGESTS_MODULUS
                    under_way.digests += verified_digests(
                        [pair for pair in page if pair[0] != META_KEY]
                    )
                    under_way.upto = page[-1][0] + b"\0"
                await trio.sleep(next_rest_s())
        finally:
            self._pass = None

    async def checkpoint(self, saved: IndexCheckpoint, *, rest_s: float = 0.0) -> None:
        """Write what is in memory, in one synced transaction that makes ``saved`` the position.

        ``rest_s``: between two slices of it, for what is done beside, unless more comes than is written.

        ``saved`` and what is written are of the moment of the call; what changes meanwhile stays for the
        next one. Raises `DiskFull`: then nothing was written, and `checkpoint` is called again.
        """
        taken, self._dirty_runs = self._dirty_runs, {}
        states, self._dirty_states = list(self._dirty_states), {}
        doomed = {ledger: None for ledger in states if ledger.flags & DELETED}
        ended = self._ended(saved.gone_below, states)
        totals = self.in_map.copy()
        totals.known, totals.limbo = self._ledgers.known, self._ledgers.limbo
        totals.tombstones = self._ledgers.tombstones - len(ended)
        taken_bytes, self.bytes_since = self.bytes_since, 0
        to_keep, self._to_keep = self._to_keep, {}
        self.runs_frozen, self.runs_in_memory = self.runs_in_memory, 0
        for ledger in taken:
            assert ledger.frozen is None, "one checkpoint at a time"
            ledger.frozen, ledger.runs = ledger.runs, None
        puts: list[tuple[bytes, bytes]] = []
        try:
            state_values = [
                (STATE_KEY.pack(b"s", ledger.id), STATE.pack(ledger.flags, ledger.lac, ledger.key))
                for ledger in states
            ]
            for key, value in state_values:
                puts.append((key, sealed(key, value)))
                if len(puts) % SLICE == 0:
                    await self._rest(rest_s)
            self._drop_frozen(taken, doomed)
            added = await self._put_runs(taken, puts, totals, rest_s)
            deletes = await self._doomed_keys(doomed, totals)
            if self._gone_files:
                await self._add_gone_keys({key for key, _ in puts}, deletes, totals)
            state_keys = [STATE_KEY.pack(b"s", ledger_id) for ledger_id in ended]
            puts += (
                (key, sealed(key, value)) for key, value in to_keep.items() if value is not None
            )
            kept_no_more = [key for key, value in to_keep.items() if value is None]
            await self.apply(puts, deletes + state_keys + kept_no_more, totals, saved, added)
        except BaseException:
            self._put_back(taken, states, taken_bytes)
            self._to_keep = to_keep | self._to_keep
            raise
        self._gone_files.clear()
        self.runs_frozen = 0
        self._end(ended)
        with trio.CancelScope(shield=True):
            await self._let_go(taken)

    async def apply(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes],
        totals: IndexTotals,
        saved: IndexCheckpoint | None = None,
        added: Mapping[int, int] | None = None,
    ) -> None:
        """One synced transaction, which says what the map holds after it. Raises `DiskFull`.

        ``saved``: its position from now on. ``added``: of the bytes in each file that it holds from now on,
        those that were in memory.
        """
        saved = saved or self._saved
        assert saved is not None, "runs that are changed have been checkpointed"
        saved = replace(saved, totals=totals)
        before = self.in_map.digests
        assert before is not None, "a start has counted what an older program left out"
        replaced: Mapping[bytes, bytes] = {}

        def summary(pairs: Mapping[bytes, bytes]) -> tuple[bytes, bytes]:
            # The old pairs are read from the map within the transaction, never taken from memory. So the
            # sum is right for any keys, and an older page is noticed even after its pairs have changed.
            nonlocal replaced
            replaced = pairs
            change = sum_of_digests([value for _, value in puts]) - sum_of_digests(pairs.values())
            totals.digests = (before + change) % DIGESTS_MODULUS
            return META_KEY, sealed(META_KEY, saved.encode())

        async with self._changing:
            await self.stored.apply(puts, deletes, summary)
            if self._pass is not None:
                self._pass.note(dict(puts), replaced)
        change = Counter(totals.live_bytes)
        change.subtract(self.in_map.live_bytes)
        change.subtract(added or {})
        for number, length in change.items():
            if length:
                self.live_bytes[number] = self.live_bytes.get(number, 0) + length
        self.in_map, self._saved = totals, saved

    async def _let_go(self, taken: dict[Ledger, None]) -> None:
        """The map has what was kept for readers meanwhile."""
        for place, ledger in enumerate(taken, 1):
            if ledger.frozen is not None:
                ledger.persisted_last = max(ledger.persisted_last, ledger.frozen.last)
                ledger.frozen = None
            if place % LEDGERS_A_TURN == 0:
                await trio.lowlevel.checkpoint()

    async def look_for_ended(self) -> None:
        """Before a checkpoint: find some tombstones in the map that may end, where their bound has moved.

        Raises `IndexDamaged`.
        """
        self._may_end, self._ending_next = [], None
        if self._end_asked:
            self._end_asked, self._ending_from = False, 0
        if self._ending_from is None:
            return
        start, below = STATE_KEY.pack(b"s", self._ending_from), self._ledgers.gone_below
        for _ in range(STATES_AT_ONCE // PAGE):
            page = self.stored.scan(start, STATE_KEY.pack(b"s", below), PAGE)
            for key, value in page:
                if flags_of(value) & DELETED:
                    self._may_end.append(stated(key, value)[0])
            if len(page) < PAGE:
                self._ending_next = None
                return
            start = page[-1][0] + b"\0"
            self._ending_next = stated(*page[-1])[0] + 1
            if len(self._may_end) >= TOMBSTONES_AT_ONCE:
                return
            await trio.lowlevel.checkpoint()

    def _ended(self, below: int, states: list[Ledger]) -> list[int]:
        """Tombstones that are not needed: the map has them, without runs, and nothing of theirs is under way.

        Of the moment of the position: a block after it that holds a run of theirs would be missed something.
        """
        if not self._may_end:
            return []
        unwritten = dict.fromkeys(states)
        ended: list[int] = []
        for ledger_id in self._may_end:
            ledger = self._ledgers.loaded(ledger_id)
            if ledger_id < below and (
                ledger is None or not (_in_use(ledger) or ledger in unwritten)
            ):
                ended.append(ledger_id)
        return ended

    def _end(self, ended: list[int]) -> None:
        """The map has them no more."""
        self._ending_from, self._may_end = self._ending_next, []
        for ledger_id in ended:
            ledger = self._ledgers.loaded(ledger_id)
            if ledger is not None and ledger.deleted and self._is_needed(ledger):
                self.note_state(ledger)  # it came to be used meanwhile: written again
            else:
                self._ledgers.end_tombstone(ledger_id)

    def _is_needed(self, ledger: Ledger) -> bool:
        return _in_use(ledger) or ledger in self._dirty_states

    def _freed(self, freed: dict[int, int]) -> None:
        for number, length in freed.items():
            self.live_bytes[number] -= length

    def _drop_frozen(self, taken: dict[Ledger, None], doomed: dict[Ledger, None]) -> None:
        """What was never written of deleted ledgers need not be."""
        for ledger in doomed:
            if ledger in taken and ledger.frozen is not None:
                self.runs_frozen -= len(ledger.frozen)
                self._freed(ledger.frozen.bytes_by_file())
                ledger.frozen = None

    async def _put_runs(
        self,
        taken: dict[Ledger, None],
        puts: list[tuple[bytes, bytes]],
        totals: IndexTotals,
        rest_s: float,
    ) -> Counter[int]:
        """Add what was kept to ``puts``; return how many bytes of each file that is."""
        added: Counter[int] = Counter()
        rested_at = len(puts)
        for ledger in taken:
            frozen = ledger.frozen
            for at in range(0, 0 if frozen is None else len(frozen), SLICE):
                assert frozen is not None
                runs = frozen.columns(at, at + SLICE)
                puts += run_pairs(ledger.id, runs)
                added.update(totals.add_runs(runs))
                if len(puts) - rested_at >= SLICE:
                    rested_at = len(puts)
                    await self._rest(rest_s)
        return added

    async def _rest(self, rest_s: float) -> None:
        """Between two slices of a checkpoint; for one turn where as much has come meanwhile as it writes."""
        await trio.sleep(rest_s if self.runs_in_memory < self.runs_frozen else 0)

    async def _doomed_keys(self, doomed: dict[Ledger, None], totals: IndexTotals) -> list[bytes]:
        """The runs of deleted ledgers that the map holds."""
        deletes: list[bytes] = []
        for place, ledger in enumerate(doomed, 1):
            if place % PAGE == 0:
                await trio.lowlevel.checkpoint()
            if ledger.persisted_last < 0:
                continue
            first = RUN_KEY.pack(b"r", ledger.id, 0)
            async for key, value in pairs_between(self.stored, first, ledger_end(ledger.id)):
                deletes.append(key)
                totals.drop_run(located(key, value))
        return deletes

    async def _add_gone_keys(
        self, written: set[bytes], deletes: list[bytes], totals: IndexTotals
    ) -> None:
        """The runs of files that are gone, which nothing else deletes or writes anew."""
        passed_over = {*written, *deletes}
        async for key, value in pairs_between(self.stored, b"r", b"s"):
            run = located(key, value)
            if run.file_number in self._gone_files and key not in passed_over:
                deletes.append(key)
                totals.drop_run(run)

    def _put_back(
        self,
        taken: dict[Ledger, None],
        states: list[Ledger],
        taken_bytes: int,
    ) -> None:
        """A checkpoint wrote nothing: all it took is dirty again, beside what came meanwhile."""
        for ledger in taken:
            frozen, ledger.frozen = ledger.frozen, None
            if frozen is None:
                continue
            for run in ledger.runs or ():
                frozen.add(run.first, run.count, run.file_number, run.offset, run.length)
            ledger.runs = frozen
            self._dirty_runs[ledger] = None
        self._dirty_states = dict.fromkeys((*states, *self._dirty_states))
        self.runs_in_memory += self.runs_frozen
        self.runs_frozen = 0
        self.bytes_since += taken_bytes

    def close(self) -> None:
        """Close the map."""
        self.stored.close()


async def pairs_between(
    stored: OrderedMap, start: bytes, end: bytes, next_rest_s: Callable[[], float] = no_rest
) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield the pairs of a map in key order, a page at a turn of the loop."""
    while page := stored.scan(start, end, PAGE):
        for pair in page:
            yield pair
        start = page[-1][0] + b"\0"
        await trio.sleep(next_rest_s())


def _in_use(ledger: Ledger) -> bool:
    """May somebody still rely on the object, or on its state?"""
    return bool(ledger.users or ledger.waiters or ledger.pending or ledger.runs or ledger.frozen)
