"""From (ledger, entry) to a place in the journal; and each ledger's state.

Runs of consecutive ids, disjoint for each ledger (H8): those since the last checkpoint in memory, the older
ones in an ordered map (`index_records.py` has its bytes). The index is derived data: what does not fit its
checksum is never believed: the map is dropped and built again from the journal (`replay.py`).

"""

import logging
from collections.abc import AsyncIterator, Container, Sequence
from itertools import islice

import trio

from ..runtime.errors import LedgerStateUnknown
from ..runtime.host import OrderedMap
from .index_records import (
    KEPT_KEYS,
    META_KEY,
    RUN,
    RUN_KEY,
    STATE,
    STATE_KEY,
    IndexDamaged,
    Saved,
    checked,
    file_of,
    ledger_end,
    located,
    sealed,
    stated,
)
from .journal_blocks import DELETED, state_record
from .ledgers import Ledger, Ledgers, Note
from .runs import Located, Runs

MAP_NAME = "bookie"
SLICE = 500
"""Puts prepared between two turns of the loop (H34): 5,000 held every connection for 4 ms."""
PAGE = 256
"""Pairs of the map that one turn of the loop looks at."""
TOMBSTONES_AT_ONCE = 5_000
"""So many end with one checkpoint."""
LEDGERS_A_TURN = 1_000
"""Of those that a checkpoint has written, when it lets go of what it kept for readers."""

log = logging.getLogger("distributedlog.bookie.index")


class Index:
    """The index of one bookie over its ledgers, which it shares with the store.

    A checkpoint that writes the state of a deleted ledger takes its runs along: what is to be forgotten
    follows from the state, so that no crash can come between.
    """

    def __init__(self, stored: OrderedMap, ledgers: Ledgers) -> None:
        self._map = stored
        self._ledgers = ledgers
        self._dirty_runs: dict[Ledger, None] = {}
        self._dirty_states: dict[Ledger, None] = {}
        self._gone_files: set[int] = set()
        self._ending = False
        """Are there tombstones that may end?"""
        self.runs_in_memory = 0
        self.runs_frozen = 0
        """Being written by a checkpoint, and in memory as well until it is done."""
        self.bytes_since = 0
        """Record bytes indexed since the last checkpoint began."""
        self.live_bytes: dict[int, int] = {}
        """Journal file -> bytes of records in it that are not deleted."""
        self.file_ends: dict[int, int] = {}
        """As of `load`: how long a file must be at least, for the last record in it that is kept."""
        self.map_runs = 0
        self.kept: dict[bytes, bytes] = {}
        """What `keep` was given, as a start finds it."""
        self._to_keep: dict[bytes, bytes | None] = {}
        """Since the last checkpoint; None: to be deleted."""
        self.damage: IndexDamaged | None = None
        """What a look-up met: the node ends with it soon."""

    # --- looking up -------------------------------------------------------------------------------

    def find(self, ledger: Ledger, entry: int) -> Located | None:
        """The run that holds ``entry``; None: it is not here. Raises `IndexDamaged`."""
        for runs in (ledger.runs, ledger.frozen):
            if runs is not None and (found := runs.find(entry)) is not None:
                return found
        if entry > ledger.persisted_last:
            return None
        pair = self._map.floor(RUN_KEY.pack(b"r", ledger.id, entry))
        if pair is None or pair[0][:9] != STATE_KEY.pack(b"r", ledger.id):
            return None
        run = located(*pair)
        return run if entry <= run.last else None

    def following(self, ledger: Ledger, entry: int) -> Located | None:
        """The first run that begins after ``entry``, or None. Raises `IndexDamaged`."""
        best: Located | None = None
        for runs in (ledger.runs, ledger.frozen):
            if runs is not None:
                found = runs.following(entry)
                if found is not None and (best is None or found.first < best.first):
                    best = found
        if entry < ledger.persisted_last:
            pairs = self._map.scan(
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

    def note_damage(self, ledger: Ledger, error: IndexDamaged) -> LedgerStateUnknown:
        """A look-up met damage; the answer for whoever asked."""
        self.damage = error
        return LedgerStateUnknown(f"ledger {ledger.id}: the index is damaged")

    # --- changing ---------------------------------------------------------------------------------

    def add(
        self, ledger: Ledger, first: int, count: int, file_number: int, offset: int, length: int
    ) -> None:
        """A run became durable. None of its ids may be here already."""
        self._add(ledger, first, count, file_number, offset, length)
        self._count(file_number, 1, length)

    def add_notes(self, notes: list[Note], file_number: int, shift: int) -> None:
        """The runs of one block became durable; those of deleted ledgers are passed over.

        ``shift``: what to add to a note's position to get the place in the file.
        """
        number = size = 0
        for note in notes:
            ledger, length = note.ledger, note.length
            if not ledger.flags & DELETED:
                self._add(
                    ledger, note.first, note.count, file_number, note.position + shift, length
                )
                number += 1
                size += length
        self._count(file_number, number, size)

    def _add(
        self, ledger: Ledger, first: int, count: int, file_number: int, offset: int, length: int
    ) -> None:
        runs = ledger.runs
        if runs is None:
            runs = ledger.runs = Runs()
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

    def forget_files(self, numbers: set[int]) -> None:
        """Nothing is left of these journal files: their runs go with the next checkpoint.

        With it and not before: it makes durable that the ledgers are in limbo, else what is forgotten would
        be denied by a start after a crash.
        """
        self._gone_files |= numbers

    def end_tombstones(self) -> None:
        """The bound below which they are not needed has moved: those that a checkpoint has written go."""
        self._ending = True

    async def delete_runs(self, ledger: Ledger) -> None:
        """Nothing of the ledger is here any more; durable.

        Call as `replace_runs`, while nothing is added to it. Raises `DiskFull`.
        """
        assert ledger.runs is None, "nothing was added since the checkpoint"
        assert ledger.frozen is None, "the checkpoint has taken all runs"
        start = RUN_KEY.pack(b"r", ledger.id, 0)
        while page := self._map.scan(start, ledger_end(ledger.id), PAGE):
            freed: dict[int, int] = {}
            for key, value in page:
                run = located(key, value)
                freed[run.file_number] = freed.get(run.file_number, 0) + run.length
            await self._map.apply((), [key for key, _ in page])
            self.map_runs -= len(page)
            for number, length in freed.items():
                self.live_bytes[number] -= length
        ledger.top = ledger.last_entry = ledger.persisted_last = -1

    @property
    def dirty(self) -> bool:
        """Would a checkpoint write anything?"""
        return bool(self._dirty_runs or self._dirty_states or self._ending or self._to_keep)

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

    def runs_from(self, ledger_id: int, entry: int, limit: int) -> list[tuple[int, Located]]:
        """Runs that are in the map, in order of ledger and entry, with their ledgers' ids.

        From the first run on that begins at ``entry`` of the ledger, or after it. Raises `IndexDamaged`.
        """
        pairs = self._map.scan(RUN_KEY.pack(b"r", ledger_id, entry), b"s", limit)
        runs = [located(key, value) for key, value in pairs]
        return [(RUN_KEY.unpack(key)[1], run) for (key, _), run in zip(pairs, runs, strict=True)]

    async def replace_runs(
        self, ledger: Ledger, changes: list[tuple[Located, list[Located]]]
    ) -> None:
        """Put parts of runs in the place of these, in one synced transaction; a run that changed stays.

        Call while no checkpoint is written, after one that has taken all of the runs. Raises `DiskFull`.
        """
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        dropped: dict[int, int] = {}
        number = 0
        for run, parts in changes:
            key = RUN_KEY.pack(b"r", ledger.id, run.first)
            stored = self._map.get(key)
            if stored is None or located(key, stored) != run:
                continue
            if not parts or parts[0].first != run.first:
                deletes.append(key)
            for part in parts:
                key = RUN_KEY.pack(b"r", ledger.id, part.first)
                value = RUN.pack(part.file_number, part.offset, part.length, part.count)
                puts.append((key, sealed(key, value)))
            size = run.length - sum(part.length for part in parts)
            dropped[run.file_number] = dropped.get(run.file_number, 0) + size
            number += len(parts) - 1
        if puts or deletes:
            await self._map.apply(puts, deletes)
        self.map_runs += number
        for file_number, size in dropped.items():
            self.live_bytes[file_number] -= size

    @property
    def dirty_states(self) -> list[Ledger]:
        """Those whose state has changed since the last checkpoint."""
        return list(self._dirty_states)

    # --- the map ----------------------------------------------------------------------------------

    async def states(self) -> AsyncIterator[bytes]:
        """The states that the map has, as control records, by ledger id. Raises `IndexDamaged`."""
        async for key, value in self._pairs(b"s", b"t"):
            ledger_id, flags, lac, ledger_key = stated(key, value)
            yield state_record(ledger_id, flags, lac, ledger_key)

    async def load(self) -> Saved | None:
        """Read and verify all of the map; None for a new one. Raises `IndexDamaged`."""
        meta = self._map.get(META_KEY)
        if meta is None:
            if self._map.scan(b"\0", b"\xff", 1):
                raise IndexDamaged("the index holds runs and no position")
            return None
        saved = Saved.decode(checked(META_KEY, meta))
        async for key, value in self._pairs(*KEPT_KEYS):
            self.kept[key] = checked(key, value)
        async for key, value in self._pairs(b"s", b"t"):
            ledger_id, flags, lac, ledger_key = stated(key, value)
            self._ledgers.set_state(self._ledgers.get_or_make(ledger_id), flags, lac, ledger_key)
        by_id = self._ledgers.by_id
        ledger_id, last = -1, -1
        async for key, value in self._pairs(b"r", b"s"):
            run = located(key, value)
            if RUN_KEY.unpack(key)[1] != ledger_id:
                ledger_id, last = RUN_KEY.unpack(key)[1], -1
                if (found := by_id.get(ledger_id)) is not None and found.deleted:
                    self.note_state(
                        found
                    )  # left by an older version: the next checkpoint takes them
            if ledger_id not in by_id or run.first <= last:
                raise IndexDamaged(f"ledger {ledger_id}: runs that overlap, or have no state")
            last = run.last
            ledger = by_id[ledger_id]
            ledger.persisted_last = ledger.last_entry = ledger.top = last
            self.map_runs += 1
            number = run.file_number
            self.live_bytes[number] = self.live_bytes.get(number, 0) + run.length
            end = run.offset + run.length
            self.file_ends[number] = max(self.file_ends.get(number, 0), end)
        return saved

    async def _pairs(self, start: bytes, end: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        while page := self._map.scan(start, end, PAGE):
            for pair in page:
                yield pair
            start = page[-1][0] + b"\0"
            await trio.lowlevel.checkpoint()

    async def checkpoint(self, saved: Saved) -> None:
        """Write what is in memory, in one synced transaction that makes ``saved`` the position.

        ``saved`` and what is written are of the moment of the call; what changes meanwhile stays for the
        next one. Raises `DiskFull`: then nothing was written, and `checkpoint` is called again.
        """
        taken, self._dirty_runs = self._dirty_runs, {}
        states, self._dirty_states = list(self._dirty_states), {}
        doomed = {ledger: None for ledger in states if ledger.flags & DELETED}
        ended = self._ended(saved.gone_below, doomed)
        taken_bytes, self.bytes_since = self.bytes_since, 0
        to_keep, self._to_keep = self._to_keep, {}
        self.runs_frozen, self.runs_in_memory = self.runs_in_memory, 0
        for ledger in taken:
            assert ledger.frozen is None, "one checkpoint at a time"
            ledger.frozen, ledger.runs = ledger.runs, None
        puts = [(META_KEY, sealed(META_KEY, saved.encode()))]
        state_values = [
            (STATE_KEY.pack(b"s", ledger.id), STATE.pack(ledger.flags, ledger.lac, ledger.key))
            for ledger in states
        ]
        try:
            for key, value in state_values:
                puts.append((key, sealed(key, value)))
                if len(puts) % SLICE == 0:
                    await trio.lowlevel.checkpoint()
            self._drop_frozen(taken, doomed)
            await self._put_runs(taken, puts)
            deletes, freed = await self._doomed_keys(doomed)
            if self._gone_files:
                await self._add_gone_keys({key for key, _ in puts}, deletes, freed)
            state_keys = [STATE_KEY.pack(b"s", ledger.id) for ledger in ended]
            puts += (
                (key, sealed(key, value)) for key, value in to_keep.items() if value is not None
            )
            kept_no_more = [key for key, value in to_keep.items() if value is None]
            await self._map.apply(puts, deletes + state_keys + kept_no_more)
        except BaseException:
            self._put_back(taken, states, taken_bytes, ending=bool(ended))
            self._to_keep = to_keep | self._to_keep
            raise
        self._gone_files.clear()
        self.map_runs += self.runs_frozen - len(deletes)
        self.runs_frozen = 0
        self._freed(freed)
        self._end(ended)
        with trio.CancelScope(shield=True):
            await self._let_go(taken)

    async def _let_go(self, taken: dict[Ledger, None]) -> None:
        """The map has what was kept for readers meanwhile."""
        for place, ledger in enumerate(taken, 1):
            if ledger.frozen is not None:
                ledger.persisted_last = max(ledger.persisted_last, ledger.frozen.last)
                ledger.frozen = None
            if place % LEDGERS_A_TURN == 0:
                await trio.lowlevel.checkpoint()

    def _ended(self, below: int, doomed: dict[Ledger, None]) -> list[Ledger]:
        """Tombstones that are not needed: the map has them, without runs, and nothing of theirs is under way.

        Of the moment of the position: a block after it that holds a run of theirs would be missed something.
        """
        if not self._ending:
            return []
        unwritten = (doomed, self._dirty_states)
        tombstones = (
            ledger
            for ledger in self._ledgers.tombstones
            if ledger.id < below
            and not (_in_use(ledger) or any(ledger in each for each in unwritten))
        )
        ended = list(islice(tombstones, TOMBSTONES_AT_ONCE))
        self._ending = len(ended) == TOMBSTONES_AT_ONCE
        return ended

    def _end(self, ended: list[Ledger]) -> None:
        """The map has them no more."""
        for ledger in ended:
            if _in_use(ledger) or ledger in self._dirty_states:
                self.note_state(ledger)  # it came to be used meanwhile: written again
            else:
                self._ledgers.end_tombstone(ledger)

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

    async def _put_runs(self, taken: dict[Ledger, None], puts: list[tuple[bytes, bytes]]) -> None:
        for ledger in taken:
            for run in ledger.frozen or ():
                key = RUN_KEY.pack(b"r", ledger.id, run.first)
                value = RUN.pack(run.file_number, run.offset, run.length, run.count)
                puts.append((key, sealed(key, value)))
                if len(puts) % SLICE == 0:
                    await trio.lowlevel.checkpoint()

    async def _doomed_keys(self, doomed: dict[Ledger, None]) -> tuple[list[bytes], dict[int, int]]:
        """The runs of deleted ledgers that the map holds, and how many bytes of each file they take."""
        deletes: list[bytes] = []
        freed: dict[int, int] = {}
        for place, ledger in enumerate(doomed, 1):
            if place % PAGE == 0:
                await trio.lowlevel.checkpoint()
            if ledger.persisted_last < 0:
                continue
            first = RUN_KEY.pack(b"r", ledger.id, 0)
            async for key, value in self._pairs(first, ledger_end(ledger.id)):
                deletes.append(key)
                run = located(key, value)
                freed[run.file_number] = freed.get(run.file_number, 0) + run.length
        return deletes, freed

    async def _add_gone_keys(
        self, written: set[bytes], deletes: list[bytes], freed: dict[int, int]
    ) -> None:
        """The runs of files that are gone, which nothing else deletes or writes anew."""
        passed_over = {*written, *deletes}
        async for key, value in self._pairs(b"r", b"s"):
            run = located(key, value)
            if run.file_number in self._gone_files and key not in passed_over:
                deletes.append(key)
                freed[run.file_number] = freed.get(run.file_number, 0) + run.length

    # --- moving -----------------------------------------------------------------------------------

    async def runs_in(
        self, numbers: Container[int], runs_max: int, bytes_max: int
    ) -> tuple[list[tuple[int, Located]], bool]:
        """What the map has in these files, sorted: (ledger, run). False: there is more.

        At most so many runs, and bytes; at least one run. What is in memory alone is not among them.
        """
        found: list[tuple[int, Located]] = []
        size = 0
        async for key, value in self._pairs(b"r", b"s"):
            if file_of(value) not in numbers:
                continue
            run = located(key, value)
            size += run.length
            if found and (len(found) >= runs_max or size > bytes_max):
                return found, False
            found.append((RUN_KEY.unpack(key)[1], run))
        return found, True

    async def move(self, moves: Sequence[tuple[int, Located, Located]]) -> None:
        """Point to the copies of runs, (ledger, old, new), given sorted; one synced transaction.

        Only of those that are in the map as they were: what was deleted or replaced meanwhile is passed
        over (H84). The caller holds off checkpoints. Raises `DiskFull`: then nothing was changed.
        """
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        change: dict[int, int] = {}
        last: tuple[int, Located] | None = None

        def put_last() -> None:
            if last is not None:
                ledger_id, run = last
                key = RUN_KEY.pack(b"r", ledger_id, run.first)
                value = RUN.pack(run.file_number, run.offset, run.length, run.count)
                puts.append((key, sealed(key, value)))

        for at, (ledger_id, old, new) in enumerate(moves, 1):
            if at % SLICE == 0:
                await trio.lowlevel.checkpoint()
            key = RUN_KEY.pack(b"r", ledger_id, old.first)
            stored = self._map.get(key)
            if stored is None or located(key, stored) != old:
                continue
            deletes.append(key)
            change[old.file_number] = change.get(old.file_number, 0) - old.length
            change[new.file_number] = change.get(new.file_number, 0) + new.length
            whole = last[1].joined(new) if last is not None and last[0] == ledger_id else None
            if whole is None:
                put_last()
            last = (ledger_id, whole or new)
        put_last()
        await self._map.apply(puts, deletes)
        self.map_runs += len(puts) - len(deletes)
        for number, length in change.items():
            self.live_bytes[number] = self.live_bytes.get(number, 0) + length

    async def count_again(self, numbers: Container[int]) -> None:
        """Take what is live in these files from the map, not from what was counted.

        All their runs are in the map, and the caller holds off checkpoints.
        """
        live = {number: 0 for number in self.live_bytes if number in numbers}
        async for key, value in self._pairs(b"r", b"s"):
            number = file_of(value)
            if number in live:
                live[number] += located(key, value).length
        for number, length in live.items():
            if length != self.live_bytes.get(number, 0):
                log.warning(
                    "file %d: %d bytes are live, %d were counted",
                    number,
                    length,
                    self.live_bytes.get(number, 0),
                )
            self.live_bytes[number] = length

    def _put_back(
        self,
        taken: dict[Ledger, None],
        states: list[Ledger],
        taken_bytes: int,
        *,
        ending: bool,
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
        self._ending = self._ending or ending

    def close(self) -> None:
        """Close the map."""
        self._map.close()


def _in_use(ledger: Ledger) -> bool:
    """May somebody still rely on the object, or on its state?"""
    return bool(ledger.users or ledger.waiters or ledger.pending or ledger.runs or ledger.frozen)
