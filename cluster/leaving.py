"""Decommissioning from outside, and which ledgers have fewer copies than their records say.

Asking is one key, ``leaving/<bookie>``: the bookie, if it runs, takes no new entries, and the repairer
stores what it holds elsewhere (`lost.py`). When it holds nothing any more and does not run, its cookie goes:
its directory will never be let in again.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from ..ledger import holes, keys
from ..metadata.interface import Metadata, prefix_end
from ..metadata.transaction import Compare, Delete, KeyValue, Put, Transaction
from ..runtime.errors import InvalidRequest
from ..runtime.frames import unpack


@dataclass(frozen=True, slots=True)
class Leaving:
    """How far a bookie has come."""

    bookie: str
    ledgers: int
    """Whose records still name it."""
    running: bool
    known: bool
    """Its cookie is there: False once it was decommissioned."""
    asked: bool
    """It is to leave."""

    @property
    def drained(self) -> bool:
        """May it be stopped, and its disks be taken away?"""
        return self.ledgers == 0


@dataclass(frozen=True, slots=True)
class Shortage:
    """Entries of a ledger that a bookie should hold and cannot give."""

    ledger: int
    bookie: str
    first: int
    to: int | None
    """One past the last one; None: to the ledger's end."""
    why: str


async def find_bookie(metadata: Metadata, wanted: str) -> str:
    """The id of a bookie that is named by id, by the beginning of one, or by its name.

    Raises `InvalidRequest` where none fits, or several.
    """
    found: list[str] = []
    known: list[str] = []
    async for item in below(metadata, keys.COOKIE_PREFIX):
        bookie = keys.bookie_id_of(item.key)
        label = str(unpack(item.value, "a cookie").get("label", ""))
        known.append(f"{label} ({bookie})")
        if wanted in (bookie, label) or (len(wanted) >= 4 and bookie.startswith(wanted)):
            found.append(bookie)
    if len(found) != 1:
        said = "no bookie is" if not found else f"{len(found)} bookies are"
        raise InvalidRequest(f"{said} called {wanted}; known are {', '.join(known) or 'none'}")
    return found[0]


async def ask_to_leave(metadata: Metadata, bookie: str) -> None:
    """It is to be drained. Raises `InvalidRequest` for one that is not known."""
    asked = Transaction(
        (Compare.exists(keys.cookie_key(bookie)),), (Put(keys.leaving_key(bookie), b""),)
    )
    if not (await metadata.transact(asked)).succeeded:
        raise InvalidRequest(f"bookie {bookie} is not known: it was decommissioned already")


async def ask_to_stay(metadata: Metadata, bookie: str) -> None:
    """It need not leave: what was stored elsewhere stays there. No error where nobody asked."""
    await metadata.transact(Transaction((), (Delete(keys.leaving_key(bookie)),)))


async def how_far(metadata: Metadata, bookie: str) -> Leaving:
    """What is left to do for a bookie that is to leave."""
    ledgers = 0
    async for _ in below(metadata, keys.on_prefix(bookie)):
        ledgers += 1
    return Leaving(
        bookie,
        ledgers,
        running=await metadata.get(keys.bookie_key(bookie)) is not None,
        known=await metadata.get(keys.cookie_key(bookie)) is not None,
        asked=await metadata.get(keys.leaving_key(bookie)) is not None,
    )


async def shortages(metadata: Metadata) -> AsyncIterator[Shortage]:
    """All that is noted, and every ledger of a bookie that is away; by bookie, then by ledger."""
    async for item in below(metadata, keys.UNDER_PREFIX):
        for hole in holes.decode(item.value):
            yield Shortage(keys.ledger_id_of(item.key), hole.bookie, hole.first, hole.to, "noted")
    async for bookie in absent(metadata):
        async for item in below(metadata, keys.on_prefix(bookie)):
            yield Shortage(keys.ledger_id_of(item.key), bookie, 0, None, "bookie is down")


async def absent(metadata: Metadata) -> AsyncIterator[str]:
    """The bookies that ledgers' records name and that are not registered, in order."""
    async for bookie in named(metadata):
        if await metadata.get(keys.bookie_key(bookie)) is None:
            yield bookie


async def named(metadata: Metadata) -> AsyncIterator[str]:
    """Every bookie that the reverse index names, in order: one question each."""
    start, end = keys.ON_PREFIX, prefix_end(keys.ON_PREFIX)
    while True:
        page = await metadata.range(start, end, limit=1)
        if not page.items:
            return
        bookie = keys.bookie_id_of(page.items[0].key)
        yield bookie
        start = prefix_end(keys.on_prefix(bookie))


async def below(metadata: Metadata, prefix: bytes) -> AsyncIterator[KeyValue]:
    """All keys below a prefix, page by page."""
    start, end = prefix, prefix_end(prefix)
    while True:
        page = await metadata.range(start, end)
        for item in page.items:
            yield item
        if not page.more:
            return
        start = page.items[-1].key + b"\0"
