"""Decommissioning from outside, and which ledgers have fewer copies than their records say.

Asking is one key, ``leaving/<bookie>``: the bookie, if it runs, takes no new entries, and the repairer
stores what it holds elsewhere (`lost.py`). When it holds nothing any more and does not run, its cookie goes:
its directory will never be let in again.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from ..ledger import holes, keys
from ..metadata.interface import Metadata, Scan, prefix_end
from ..metadata.transaction import Compare, Delete, Put, Transaction
from ..runtime.errors import CorruptData, InvalidRequest
from .cookie import decode_cookie


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
    async for item in Scan(metadata, keys.COOKIE_PREFIX):
        try:
            bookie = keys.bookie_id_of(item.key)
            label = decode_cookie(item.key, item.value)["label"]
        except CorruptData:
            continue  # `dlog status` names it
        known.append(f"{label} ({bookie})")
        if wanted in (bookie, label) or (len(wanted) >= 4 and bookie.startswith(wanted)):
            found.append(bookie)
    if not found:
        raise InvalidRequest(
            f"no bookie is called {wanted}; known are {', '.join(known) or 'none'}"
        )
    if len(found) > 1:  # a new one took the name of one whose disk was lost: say which is which
        told = [
            f"{bookie} (down)"
            if await metadata.get(keys.bookie_key(bookie)) is None
            else f"{bookie} (up)"
            for bookie in found
        ]
        raise InvalidRequest(
            f"{len(found)} bookies are called {wanted}: {', '.join(told)}; give the id of one"
        )
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
    async for _ in Scan(metadata, keys.on_prefix(bookie)):
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
    async for item in Scan(metadata, keys.UNDER_PREFIX):
        try:
            ledger_id, noted = keys.ledger_id_of(item.key), holes.decode(item.value)
        except CorruptData:
            continue  # `dlog status` names it
        for hole in noted:
            yield Shortage(ledger_id, hole.bookie, hole.first, hole.to, "noted")
    async for bookie in absent(metadata):
        async for item in Scan(metadata, keys.on_prefix(bookie)):
            try:
                ledger_id = keys.ledger_id_of(item.key)
            except CorruptData:
                continue
            yield Shortage(ledger_id, bookie, 0, None, "bookie is down")


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
        try:
            bookie = keys.bookie_id_of(page.items[0].key)
        except CorruptData:
            start = page.items[0].key + b"\0"
            continue
        yield bookie
        start = prefix_end(keys.on_prefix(bookie))
