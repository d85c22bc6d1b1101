"""May nodes be stopped for a while, and everything still be read and written meanwhile?

Asked of the metadata alone, for several nodes at once (a rack). What is not known counts against it: a bookie
that says that it may have lost something is no copy. An answer is about this moment, and holds nothing: two
who ask at once are both told yes (H270).
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..ledger import holes, keys
from ..ledger.holes import Hole
from ..ledger.metadata import LedgerMetadata, LedgerState
from ..ledger.registration import BookieRegistration
from ..metadata.interface import MemberStatus, Metadata, Scan
from ..runtime.errors import CorruptData, InvalidRequest, UnsupportedFormat
from ..runtime.reasons import HEALED
from .cookie import decode_cookie
from .counted import counted
from .leaving import find_bookie, sound_copies
from .overview import EMPTY, WRITABLE_BOOKIES_MIN

VOTERS_NOT = ("learner", "removed")
LIMBO = "limbo"
"""A bookie whose reasons have this word does not know what it lacks."""
EACH_MAX = 10
"""Ledgers that are named of each kind of reason; the others are counted."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """What was found."""

    nodes: tuple[str, ...]
    """Who is to stop, as it is called."""
    reasons: tuple[str, ...]
    """Why not."""
    ledgers: int
    """Of those bookies, looked at."""

    @property
    def may(self) -> bool:
        """Nothing speaks against it."""
        return not self.reasons


async def may_stop(
    metadata: Metadata, members: Sequence[MemberStatus], names: Sequence[str]
) -> Stopping:
    """Look at all that would be without these nodes, each a metadata node's name, or a bookie's name or id.

    Reads every ledger's record once. Raises `InvalidRequest` for a name that is nobody's, or two nodes'.
    """
    nodes, bookies = set[str](), set[str]()
    for name in names:
        found = await _bookie(metadata, name, [member.name for member in members])
        (bookies if found else nodes).add(found or name)
    reasons = _voters(members, nodes)
    looked = 0
    if bookies:
        live, doubtful, writable = await _live(metadata)
        # Who is registered and sound is there; who is to stop is not.
        there = live - doubtful - bookies
        reasons += _writers(writable - bookies)
        of_ledgers, looked = await _ledgers(metadata, bookies, there, live, writable - bookies)
        reasons += of_ledgers
        if of_ledgers:
            reasons += [
                f"bookie {one} may have lost something (limbo): its copies are not counted above"
                for one in sorted(doubtful - bookies)
            ]
    return Stopping(tuple(sorted(nodes | bookies)), tuple(reasons), looked)


async def _bookie(metadata: Metadata, name: str, members: Collection[str]) -> str:
    """The id of the bookie that is called so; "": it is a metadata node. Raises `InvalidRequest`."""
    if name not in members:
        return await find_bookie(metadata, name)
    async for item in Scan(metadata, keys.COOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):
            if decode_cookie(item.key, item.value)["label"] == name:
                raise InvalidRequest(
                    f"{name} is a metadata node and a bookie: give the bookie's id"
                )
    return ""


def _voters(members: Sequence[MemberStatus], stopped: Collection[str]) -> list[str]:
    if not stopped:
        return []
    voters = [one for one in members if one.role not in VOTERS_NOT]
    left = [
        one.name
        for one in voters
        if one.alive
        and one.role != EMPTY
        and not one.role.startswith("damaged")
        and one.name not in stopped
    ]
    needed = len(voters) // 2 + 1
    if len(left) >= needed:
        return []
    return [
        f"metadata: {len(left)} of {len(voters)} voters would answer"
        f" ({', '.join(left) or 'none'}), {needed} are a majority"
    ]


def _writers(writable: Collection[str]) -> list[str]:
    if len(writable) >= WRITABLE_BOOKIES_MIN:
        return []
    return [
        f"{counted(len(writable), 'bookie')} would take entries, a new ledger needs {WRITABLE_BOOKIES_MIN}:"
        " nothing could be opened or rolled"
    ]


async def _live(metadata: Metadata) -> tuple[set[str], set[str], set[str]]:
    """The registered bookies; those of them that may have lost something; those that take new entries."""
    leaving = {item.key async for item in Scan(metadata, keys.LEAVING_PREFIX)}
    live, doubtful, writable = set[str](), set[str](), set[str]()
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):
            one = BookieRegistration.decode(item.key, item.value)
            live.add(one.id)
            if any(LIMBO in reason and not reason.startswith(HEALED) for reason in one.reasons):
                doubtful.add(one.id)
            if not one.read_only and keys.leaving_key(one.id) not in leaving:
                writable.add(one.id)
    return live, doubtful, writable


async def _ledgers(
    metadata: Metadata,
    stopped: set[str],
    there: Collection[str],
    live: Collection[str],
    writable: Collection[str],
) -> tuple[list[str], int]:
    """What would be wrong with ledgers of the bookies that stop, and how many those are."""
    noted: dict[int, list[Hole]] = {}
    async for item in Scan(metadata, keys.UNDER_PREFIX):
        with suppress(CorruptData):
            noted[keys.ledger_id_of(item.key)] = list(holes.decode(item.value))
    kinds: dict[str, list[str]] = {}
    looked = 0
    async for item in Scan(metadata, keys.LEDGER_PREFIX):
        try:
            ledger = LedgerMetadata.decode(item.key, item.value)
        except (CorruptData, UnsupportedFormat):
            kinds.setdefault("damaged", []).append(
                f"{item.key.decode(errors='replace')}: its record cannot be read"
            )
            continue
        if ledger.state is LedgerState.DELETING or not stopped & set(ledger.bookies()):
            continue
        looked += 1
        kind, why = _why(ledger, noted.get(ledger.ledger_id, []), there, live, writable)
        if kind:
            kinds.setdefault(kind, []).append(f"ledger {ledger.ledger_id}: {why}")
    reasons: list[str] = []
    for found in kinds.values():
        reasons += found[:EACH_MAX]
        if len(found) > EACH_MAX:
            reasons.append(f"and {counted(len(found) - EACH_MAX, 'more ledger')} like these")
    return reasons, looked


def _why(
    ledger: LedgerMetadata,
    noted: Sequence[Hole],
    there: Collection[str],
    live: Collection[str],
    writable: Collection[str],
) -> tuple[str, str]:
    """A kind of reason, and the reason; "" twice where it may be."""
    away = {one for one in ledger.bookies() if one not in there}
    if ledger.closed:
        left = sound_copies(ledger, away, noted)
        now = sound_copies(ledger, {one for one in ledger.bookies() if one not in live}, noted)
        if left == 0:
            return "none", "some of its entries would have no copy that can be reached"
        if left == 1 and (ledger.write_quorum > 2 or now < ledger.write_quorum):
            return (
                "one",
                f"{now} of {ledger.write_quorum} copies of some entries are there now, one would be left",
            )
        return "", ""
    striping = ledger.striping
    named = _named(ledger)
    for fragment in ledger.ensembles[:-1]:
        for window in striping.windows():
            if not any(fragment.bookies[slot] in there for slot in window):
                return "none", f"{named}: some of its entries would have no copy"
    last = ledger.last_fragment.bookies
    lacking = {hole.bookie for hole in noted if hole.to is None}
    known = {slot for slot, one in enumerate(last) if one in there and one not in lacking}
    if not striping.covered(known):
        return (
            "recovery",
            f"{named}: too few of its bookies would be left to find its end, should its writer end too",
        )
    spare = len(set(writable) - set(last))
    fewest = min(sum(slot in known for slot in window) for window in striping.windows())
    if fewest + spare < ledger.ack_quorum:
        return (
            "acks",
            f"{named}: its writer would have {fewest} of {ledger.ack_quorum} acknowledgements, and no other"
            " bookie takes entries",
        )
    return "", ""


def _named(ledger: LedgerMetadata) -> str:
    if ledger.owner is None:
        return "open, of no log"
    name = ledger.custom.get("log", b"").decode(errors="replace") or f"{ledger.owner[0]:016x}"
    return f'open, segment {ledger.owner[1]} of log "{name[:200]}"'
