"""The minimal repair: what the notes ``under/<ledger>`` name is copied to the bookies that lack it.

One bookie does it, the holder of a key under its registration's lease; two at once would only do the same
work twice. Level-triggered: on every change of a note or of the registered bookies, and on a timer.
Only closed ledgers are touched, whose end is known and whose entries never change: nothing is fenced,
so no live writer is ever disturbed (H22b). Records go verbatim, as recovery adds, which a fenced ledger
takes (H2), and a note is removed by compare-and-set only when every copy it asked for is durable.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from ..bookie.client import BookieClient
from ..bookie.entry import EntryRecord, records
from ..ledger import holes as notes
from ..ledger import keys
from ..ledger.holes import Hole
from ..ledger.metadata import LedgerMetadata, LedgerState
from ..ledger.striping import Striping
from ..metadata.client import Metadata, prefix_end
from ..metadata.transaction import Compare, Delete, KeyValue, Put, Transaction
from ..runtime.errors import (
    ConnectionLost,
    CorruptData,
    DistributedLogError,
    NoSuchLedger,
    RequestTimeout,
)
from .watching import at_each_change

ELECTION_KEY = b"repair/leader"
EVERY_S = 5.0
PAGE = 100
REQUEST_S = 10.0
BATCH_BYTES = 1024 * 1024

log = logging.getLogger("distributedlog.cluster.repair")


@dataclass(frozen=True, slots=True)
class Missing:
    """Entries first..last, inclusive, that a bookie should hold."""

    first: int
    last: int


def wanted(metadata: LedgerMetadata, hole: Hole) -> list[Missing]:
    """The entries of a closed ledger that the hole's bookie should hold: stretches, ascending.

    None where an ensemble change has put another bookie in its place since.
    """
    assert metadata.last_entry is not None, "only a closed ledger is repaired"
    striping = Striping(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
    end = metadata.last_entry + 1 if hole.to is None else min(hole.to, metadata.last_entry + 1)
    found: list[Missing] = []
    for index, fragment in enumerate(metadata.ensembles):
        if hole.bookie not in fragment.bookies:
            continue
        slot = fragment.bookies.index(hole.bookie)
        fragment_end = metadata.fragment_end(index)
        assert fragment_end is not None, "every fragment of a closed ledger ends"
        entry = striping.next_held(slot, max(hole.first, fragment.first_entry))
        stop = min(end, fragment_end)
        while entry < stop:
            last = entry
            while last + 1 < stop and striping.holds(slot, last + 1):
                if striping.everywhere:
                    last = stop - 1
                    break
                last += 1
            found.append(Missing(entry, last))
            entry = striping.next_held(slot, last + 1)
    return found


def without(stretches: list[Missing], present: list[tuple[int, int]]) -> list[Missing]:
    """The stretches less what is present already: (first, count) runs, ascending."""
    left: list[Missing] = []
    for stretch in stretches:
        first = stretch.first
        for run_first, count in present:
            run_end = run_first + count
            if run_end <= first or run_first > stretch.last:
                continue
            if run_first > first:
                left.append(Missing(first, run_first - 1))
            first = run_end
            if first > stretch.last:
                break
        if first <= stretch.last:
            left.append(Missing(first, stretch.last))
    return left


class Connections(Protocol):
    """What is asked of a pool of bookies."""

    def get(self, bookie_id: str) -> BookieClient | None:
        """The connection to a bookie, or None while there is none."""
        ...


class Repair:
    """Fills holes while this bookie is the elected one."""

    def __init__(
        self, metadata: Metadata, pool: Connections, node_id: str, lease: Callable[[], int]
    ) -> None:
        self._metadata = metadata
        self._pool = pool
        self._value = node_id.encode()
        self.copied_entries = 0
        """Since the start, for counters."""
        self._lease = lease
        """The lease of this bookie's registration, under which the election's key is held; 0: none."""
        self._working = trio.Lock()

    async def run(self) -> None:
        """Look at the notes again and again, and work when elected; until cancelled."""
        async with trio.open_nursery() as nursery:
            for prefix in (keys.UNDER_PREFIX, keys.BOOKIE_PREFIX):
                nursery.start_soon(self._watch, prefix)

    async def _watch(self, prefix: bytes) -> None:
        await at_each_change(self._metadata, prefix, self._work_if_elected, every_s=EVERY_S)

    async def _work_if_elected(self) -> None:
        async with self._working:  # two watches, one repairer
            if await self.elected():
                await self.work()

    async def elected(self) -> bool:
        """Do we hold the key, or can we take it?"""
        lease = self._lease()
        if not lease:
            return False
        holder = await self._metadata.get(ELECTION_KEY)
        if holder is not None:
            return holder.value == self._value and holder.lease == lease
        take = Transaction(
            (Compare.version(ELECTION_KEY, 0),), (Put(ELECTION_KEY, self._value, lease),)
        )
        return (await self._metadata.transact(take)).succeeded

    async def work(self) -> None:
        """Try every note once."""
        start, end = keys.UNDER_PREFIX, prefix_end(keys.UNDER_PREFIX)
        while True:
            page = await self._metadata.range(start, end, limit=PAGE)
            for note in page.items:
                try:
                    await self.fill(note)
                except DistributedLogError as error:
                    log.warning(
                        "ledger %d is not repaired yet: %s: %s",
                        keys.ledger_id_of(note.key),
                        type(error).__name__,
                        error,
                    )
            if not page.more:
                return
            start = page.items[-1].key + b"\0"

    async def fill(self, note: KeyValue) -> bool:
        """Copy what one note names; True when the note is gone. False: something must wait."""
        ledger_id = keys.ledger_id_of(note.key)
        found = await self._metadata.get(keys.ledger_key(ledger_id))
        if found is None:
            return await self._shorten(note, ())
        metadata = LedgerMetadata.decode(found.value)
        if metadata.state is LedgerState.DELETING:
            return await self._shorten(note, ())
        if metadata.state is not LedgerState.CLOSED:
            return False  # its writer, or whoever recovers it, closes it first
        left: list[Hole] = []
        for hole in notes.merged(notes.decode(note.value)):
            target = self._pool.get(hole.bookie)
            if target is None:
                left.append(hole)
                continue
            try:
                await self._fill_hole(metadata, hole, target)
            except DistributedLogError as error:
                log.warning(
                    "ledger %d: entries for bookie %s are not copied yet: %s",
                    ledger_id,
                    hole.bookie,
                    error,
                )
                left.append(hole)
        return await self._shorten(note, left)

    async def _fill_hole(self, metadata: LedgerMetadata, hole: Hole, target: BookieClient) -> None:
        stretches = wanted(metadata, hole)
        if not stretches:
            return
        stretches = without(stretches, await _present(metadata, target))
        copied = 0
        for stretch in stretches:
            entry = stretch.first
            while entry <= stretch.last:
                batch = await self._fetch(metadata, entry, stretch.last, hole.bookie)
                await _store(metadata, target, batch)
                entry = batch[-1].entry + 1
                copied += len(batch)
        self.copied_entries += copied
        if copied:
            log.info(
                "ledger %d: copied %d entries to bookie %s", metadata.ledger_id, copied, hole.bookie
            )

    async def _fetch(
        self, metadata: LedgerMetadata, first: int, last: int, without_bookie: str
    ) -> list[EntryRecord]:
        """Consecutive entries from ``first`` on, at least one, from any other bookie that has them."""
        striping = Striping(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        bookies = metadata.fragment_of(first).bookies
        said: list[str] = []
        for slot in striping.write_set(first):
            source = self._pool.get(bookies[slot])
            if bookies[slot] == without_bookie:
                continue
            if source is None:
                said.append(f"{bookies[slot]}: not connected")
                continue
            try:
                # Past the LAC that the source has heard of: the end of a closed ledger is known better.
                answer = await source.read(
                    metadata.ledger_id,
                    metadata.key,
                    first,
                    last,
                    BATCH_BYTES,
                    past_lac=True,
                    timeout_s=REQUEST_S,
                )
                found: list[EntryRecord] = []
                for record in records(answer.body):
                    if record.entry != first + len(found) or record.ledger != metadata.ledger_id:
                        break
                    found.append(record)
                if found:
                    return found
                said.append(f"{bookies[slot]}: does not have it")
            except (ConnectionLost, RequestTimeout, CorruptData, NoSuchLedger) as error:
                said.append(f"{bookies[slot]}: {error}")
        raise ConnectionLost(
            f"ledger {metadata.ledger_id} entry {first}: no copy to be had now ({'; '.join(said)})"
        )

    async def _shorten(self, note: KeyValue, left: "list[Hole] | tuple[Hole, ...]") -> bool:
        """Write what is left of a note, if nobody has written it since."""
        if tuple(left) == notes.merged(notes.decode(note.value)):
            return False
        change = Put(note.key, notes.encode(left)) if left else Delete(note.key)
        unchanged = Compare.mod_revision(note.key, note.mod_revision)
        reply = await self._metadata.transact(Transaction((unchanged,), (change,)))
        return reply.succeeded and not left


async def _present(metadata: LedgerMetadata, target: BookieClient) -> list[tuple[int, int]]:
    """What the target has already: runs of (first, count)."""
    try:
        answer = await target.list_entries(metadata.ledger_id, metadata.key, timeout_s=REQUEST_S)
    except NoSuchLedger:
        return []
    return list(answer.ranges)


async def _store(metadata: LedgerMetadata, target: BookieClient, batch: list[EntryRecord]) -> None:
    """Recovery adds, until all are durable at the target."""
    done = trio.Event()
    refused: list[DistributedLogError] = []

    def on_acked(count: int) -> None:
        if count >= len(batch):
            done.set()

    def on_refused(position: int, error: DistributedLogError) -> None:
        refused.append(error)
        done.set()

    stream = target.open_stream(
        metadata.ledger_id,
        metadata.key,
        recovery=True,
        fragment_epoch=metadata.fragment_of(batch[0].entry).epoch,
        on_acked=on_acked,
        on_refused=on_refused,
    )
    try:
        for record in batch:
            stream.send(record.raw)
        with trio.move_on_after(REQUEST_S):
            await done.wait()
    finally:
        stream.close()
    if refused:
        raise refused[0]
    if not done.is_set():
        raise RequestTimeout(
            f"ledger {metadata.ledger_id} entry {batch[0].entry}: no ack of a copy in {REQUEST_S:g} s"
        )
