"""Fills noted holes: what the notes ``under/<ledger>`` name is copied to the bookies that lack it.

One bookie repairs, the holder of a key under its registration's lease; two at once would only do the same
work twice. Level-triggered: on every change of a note or of the registered bookies, and on a timer.
A note is removed by compare-and-set only when every copy it asked for is durable.
"""

import logging
from collections.abc import Callable

import trio

from ..ledger import holes as notes
from ..ledger import keys
from ..ledger.holes import Hole
from ..ledger.metadata import LedgerMetadata, LedgerState
from ..metadata.client import Metadata, prefix_end
from ..metadata.transaction import Compare, Delete, KeyValue, Put, Transaction
from ..runtime.errors import ConnectionLost, DistributedLogError
from .copying import Connections, Copier, wanted
from .watching import at_each_change

ELECTION_KEY = b"repair/leader"
EVERY_S = 5.0
PAGE = 100

log = logging.getLogger("distributedlog.cluster.repair")


class Election:
    """Is this bookie the one that repairs? Economy only: what is done is guarded by compare-and-set."""

    def __init__(self, metadata: Metadata, node_id: str, lease: Callable[[], int]) -> None:
        self._metadata = metadata
        self._value = node_id.encode()
        self._lease = lease
        """The lease of this bookie's registration, under which the key is held; 0: none."""

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


class Repair:
    """Fills holes while this bookie is the elected one."""

    def __init__(
        self, metadata: Metadata, pool: Connections, election: Election, copier: Copier
    ) -> None:
        self._metadata = metadata
        self._pool = pool
        self._election = election
        self._copier = copier
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
            if await self._election.elected():
                await self.work()

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
            try:
                await self._fill_hole(metadata, hole)
            except DistributedLogError as error:
                log.warning(
                    "ledger %d: entries for bookie %s are not copied yet: %s",
                    ledger_id,
                    hole.bookie,
                    error,
                )
                left.append(hole)
        return await self._shorten(note, left)

    async def _fill_hole(self, metadata: LedgerMetadata, hole: Hole) -> None:
        stretches = wanted(metadata, hole)
        if not stretches:
            return  # also where another bookie has taken its place
        target = self._pool.get(hole.bookie)
        if target is None:
            raise ConnectionLost(f"bookie {hole.bookie} is not connected")
        copied = await self._copier.copy(metadata, stretches, hole.bookie, target)
        if copied:
            log.info(
                "ledger %d: copied %d entries to bookie %s", metadata.ledger_id, copied, hole.bookie
            )

    async def _shorten(self, note: KeyValue, left: "list[Hole] | tuple[Hole, ...]") -> bool:
        """Write what is left of a note, if nobody has written it since."""
        if tuple(left) == notes.merged(notes.decode(note.value)):
            return False
        change = Put(note.key, notes.encode(left)) if left else Delete(note.key)
        unchanged = Compare.mod_revision(note.key, note.mod_revision)
        reply = await self._metadata.transact(Transaction((unchanged,), (change,)))
        return reply.succeeded and not left
