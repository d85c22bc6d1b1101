"""May nodes be stopped for a while, and everything still be read and written meanwhile?

Asked of the metadata alone, for several nodes at once (a rack). What is not known counts against it: a bookie
that says that it may have lost something is no copy. An answer is about this moment, and holds nothing: two
who ask at once are both told yes (H270).
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ...ledger.model import ledger_keys as keys
from ...ledger.model import missing_range as holes
from ...ledger.model.bookie_registration import BookieRegistration
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...ledger.model.missing_range import MissingRange
from ...ledger.placement.ensemble_placement import Candidate, can_place
from ...ledger.placement.placement_policy import PlacementPolicy
from ...metadata.model.interface import MemberStatus, Metadata, Scan
from ...metadata.model.transaction import Compare
from ...runtime.declarations.condition_texts import texts_of
from ...runtime.declarations.health_conditions import Code, HealthCondition, condition
from ...runtime.interfaces.errors import (
    ConfirmationRequired,
    CorruptData,
    InvalidRequest,
    UnsupportedFormat,
    VersionConflict,
)
from ..coordination.cookie import decode_cookie
from ..repair.decommission import ask_to_leave, find_bookie, sound_copies
from .cluster_overview import DEFAULT_QUORUMS, new_ledger_candidates
from .placement_status import placement_status

EACH_MAX = 10
"""Ledgers that are named per code; the others are counted."""
ATTEMPTS = 5
"""Attempts of a decommission if other bookies change. Each attempt reads all registrations."""
_UNCERTAIN = frozenset({Code.LIMBO, Code.LEGACY_TEXT})
"""Conditions of a bookie whose copies are not counted. It may lack entries. A text of a version without codes
may report the same. It is not read, and counts as if it did."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """What was found."""

    nodes: tuple[str, ...]
    """Who is to stop, as it is called."""
    conditions: tuple[HealthCondition, ...]
    """Why not: codes that begin with ``stop_``."""
    ledgers: int
    """Of those bookies, looked at."""

    @property
    def may(self) -> bool:
        """Nothing speaks against it."""
        return not self.conditions


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
    conditions = _voters(members, nodes)
    looked = 0
    if bookies:
        candidates = await new_ledger_candidates(metadata)
        registered = await _registered(metadata)
        live = set(registered)
        uncertain = {
            bookie
            for bookie, one in registered.items()
            if any(each.code in _UNCERTAIN for each in one.conditions)
        }
        writable = {one.id for one in candidates if not one.down} - bookies
        conditions += await _writers(metadata, candidates, bookies)
        # A bookie that runs and is sound has its copies; one that is to stop has none.
        there = live - uncertain - bookies
        of_ledgers, looked = await _ledgers(metadata, bookies, there, live, writable)
        conditions += of_ledgers
        if of_ledgers:
            conditions += [
                condition(Code.STOP_COPIES_UNCERTAIN).about(bookie=one)
                for one in sorted(uncertain - bookies)
            ]
    return Stopping(tuple(sorted(nodes | bookies)), tuple(conditions), looked)


async def decommission(
    metadata: Metadata, bookie: str, *, by: str = "", force: bool = False
) -> None:
    """Ask that a bookie leaves the cluster. Raises `InvalidRequest`.

    Raises `ConfirmationRequired`, unless ``force``, if a log without settings could be created now, and not
    without this bookie: the same answer that `may_stop` and the health of the cluster give. The metadata
    nodes check that its premises still hold: of two such requests at the same moment, one is refused.
    Raises `VersionConflict` if other bookies join or leave during each of `ATTEMPTS` attempts.
    """
    for _ in range(ATTEMPTS):
        premises = [] if force else await _premises(metadata, bookie)
        if await ask_to_leave(metadata, bookie, by=by, premises=premises):
            return
    raise VersionConflict(f"bookie {bookie}: other bookies join or leave all the time. Retry later")


async def _premises(metadata: Metadata, bookie: str) -> list[Compare]:
    """That the other bookies which take entries still do. Raises `ConfirmationRequired`."""
    candidates = await new_ledger_candidates(metadata)
    others = [one.id for one in candidates if not one.down and one.id != bookie]
    if await _writers(metadata, candidates, ()):
        return []  # no log can be created now: that may be why a bookie is to leave
    if why := await _writers(metadata, candidates, {bookie}):
        raise ConfirmationRequired("; ".join(texts_of(why)))
    return [
        *(Compare.exists(keys.bookie_key(one)) for one in others),
        *(Compare.version(keys.leaving_key(one), 0) for one in others),
    ]


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


def _voters(members: Sequence[MemberStatus], stopped: Collection[str]) -> list[HealthCondition]:
    if not stopped:
        return []
    voters = [one for one in members if one.is_voter]
    left = [
        one.name for one in voters if one.alive and not one.lost_data and one.name not in stopped
    ]
    needed = len(voters) // 2 + 1
    if len(left) >= needed:
        return []
    return [
        condition(
            Code.STOP_NO_MAJORITY,
            answering=len(left),
            voters=len(voters),
            names=", ".join(left),
            needed=needed,
        )
    ]


async def _writers(
    metadata: Metadata, candidates: Sequence[Candidate], stopped: Collection[str]
) -> list[HealthCondition]:
    """Could a log be created and rolled on the bookies that are left?"""
    left = [replace(one, down=one.down or one.id in stopped) for one in candidates]
    policy = PlacementPolicy()
    with suppress(CorruptData, UnsupportedFormat):  # `dlog status` names it
        policy = (await placement_status(metadata)).policy
    if can_place(DEFAULT_QUORUMS, left, policy):
        return []
    return [
        condition(
            Code.STOP_NO_NEW_LEDGERS,
            writable=sum(not one.down for one in left),
            ensemble=DEFAULT_QUORUMS.ensemble_size,
            write_quorum=DEFAULT_QUORUMS.write_quorum,
            ack_quorum=DEFAULT_QUORUMS.ack_quorum,
        )
    ]


async def _registered(metadata: Metadata) -> dict[str, BookieRegistration]:
    """The registrations of the bookies that run, by ID."""
    found: dict[str, BookieRegistration] = {}
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):
            one = BookieRegistration.decode(item.key, item.value)
            found[one.id] = one
    return found


async def _ledgers(
    metadata: Metadata,
    stopped: set[str],
    there: Collection[str],
    live: Collection[str],
    writable: Collection[str],
) -> tuple[list[HealthCondition], int]:
    """What would be wrong with ledgers of the bookies that stop, and how many those are."""
    noted: dict[int, list[MissingRange]] = {}
    async for item in Scan(metadata, keys.UNDER_PREFIX):
        with suppress(CorruptData):
            noted[keys.ledger_id_of(item.key)] = list(holes.decode(item.value))
    by_code: dict[str, list[HealthCondition]] = {}
    looked = 0
    async for item in Scan(metadata, keys.LEDGER_PREFIX):
        try:
            ledger = LedgerMetadata.decode(item.key, item.value)
        except (CorruptData, UnsupportedFormat):
            key = item.key.decode(errors="replace")
            unreadable = condition(Code.STOP_RECORD_UNREADABLE, key=key)
            by_code.setdefault(unreadable.code, []).append(unreadable)
            continue
        if ledger.state is LedgerState.DELETING or not stopped & set(ledger.bookies()):
            continue
        looked += 1
        found = _why_not(ledger, noted.get(ledger.ledger_id, []), there, live, writable)
        if found is not None:
            by_code.setdefault(found.code, []).append(found)
    conditions: list[HealthCondition] = []
    for of_code in by_code.values():
        conditions += of_code[:EACH_MAX]
        if len(of_code) > EACH_MAX:
            conditions.append(condition(Code.STOP_MORE, count=len(of_code) - EACH_MAX))
    return conditions, looked


def _why_not(
    ledger: LedgerMetadata,
    noted: Sequence[MissingRange],
    there: Collection[str],
    live: Collection[str],
    writable: Collection[str],
) -> HealthCondition | None:
    """Why the bookies of one ledger may not be stopped, None if they may."""
    ledger_id = ledger.ledger_id
    away = {one for one in ledger.bookies() if one not in there}
    if ledger.closed:
        left = sound_copies(ledger, away, noted)
        now = sound_copies(ledger, {one for one in ledger.bookies() if one not in live}, noted)
        if left == 0:
            return condition(Code.STOP_NO_COPY, ledger=ledger_id, open=0, log="", segment=-1)
        if left == 1 and (ledger.write_quorum > 2 or now < ledger.write_quorum):
            return condition(
                Code.STOP_ONE_COPY, ledger=ledger_id, copies=now, write_quorum=ledger.write_quorum
            )
        return None
    striping = ledger.striping
    log, segment = _segment_of(ledger)
    for fragment in ledger.ensembles[:-1]:
        for window in striping.windows():
            if not any(fragment.bookies[slot] in there for slot in window):
                return condition(
                    Code.STOP_NO_COPY, ledger=ledger_id, open=1, log=log, segment=segment
                )
    last = ledger.last_fragment.bookies
    lacking = {hole.bookie for hole in noted if hole.to is None}
    known = {slot for slot, one in enumerate(last) if one in there and one not in lacking}
    if not striping.covered(known):
        return condition(Code.STOP_NO_RECOVERY, ledger=ledger_id, log=log, segment=segment)
    spare = len(set(writable) - set(last))
    fewest = min(sum(slot in known for slot in window) for window in striping.windows())
    if fewest + spare < ledger.ack_quorum:
        return condition(
            Code.STOP_NO_ACKS,
            ledger=ledger_id,
            log=log,
            segment=segment,
            acks=fewest,
            ack_quorum=ledger.ack_quorum,
        )
    return None


def _segment_of(ledger: LedgerMetadata) -> tuple[str, int]:
    """Return the log and segment of an open ledger, "" and -1 if it belongs to no log."""
    if ledger.owner is None:
        return "", -1
    name = ledger.custom.get("log", b"").decode(errors="replace") or f"{ledger.owner[0]:016x}"
    return name[:200], ledger.owner[1]
