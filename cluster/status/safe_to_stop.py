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
from ..repair.decommission import fewest_sound_copies, find_bookie, request_decommission
from .cluster_overview import DEFAULT_QUORUMS, new_ledger_candidates
from .placement_status import placement_status

LEDGERS_PER_CODE_MAX = 10
"""Ledgers that are named per code; the others are counted."""
ATTEMPTS = 5
"""Attempts of a decommission if other bookies change. Each attempt reads all registrations."""
_UNCERTAIN = frozenset({Code.LIMBO, Code.LEGACY_TEXT})
"""Conditions of a bookie whose copies are not counted. It may lack entries. A text of a version without codes
may report the same. It is not read, and counts as if it did."""


@dataclass(frozen=True, slots=True)
class StopCheck:
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


async def check_stop(
    metadata: Metadata, members: Sequence[MemberStatus], names: Sequence[str]
) -> StopCheck:
    """Look at all that would be without these nodes, each a metadata node's name, or a bookie's name or id.

    Reads every ledger's record once. Raises `InvalidRequest` for a name that is nobody's, or two nodes'.
    """
    nodes, bookies = set[str](), set[str]()
    for name in names:
        bookie_id = await _resolve_bookie(metadata, name, [member.name for member in members])
        (bookies if bookie_id else nodes).add(bookie_id or name)
    conditions = _voter_conditions(members, nodes)
    checked_ledgers = 0
    if bookies:
        candidates = await new_ledger_candidates(metadata)
        registered = await _load_registrations(metadata)
        live_bookies = set(registered)
        uncertain_bookies = {
            bookie
            for bookie, one in registered.items()
            if any(each.code in _UNCERTAIN for each in one.conditions)
        }
        writable_left = {one.id for one in candidates if not one.is_unavailable} - bookies
        conditions += await _placement_conditions(metadata, candidates, bookies)
        # A bookie that runs and is sound has its copies; one that is to stop has none.
        sound_left = live_bookies - uncertain_bookies - bookies
        ledger_conditions, checked_ledgers = await _check_ledgers(
            metadata, bookies, sound_left, live_bookies, writable_left
        )
        conditions += ledger_conditions
        if ledger_conditions:
            conditions += [
                condition(Code.STOP_COPIES_UNCERTAIN).about(bookie=one)
                for one in sorted(uncertain_bookies - bookies)
            ]
    return StopCheck(tuple(sorted(nodes | bookies)), tuple(conditions), checked_ledgers)


async def decommission(
    metadata: Metadata, bookie: str, *, successor: str = "", force: bool = False
) -> None:
    """Ask that a bookie leaves the cluster. Raises `InvalidRequest`.

    Raises `ConfirmationRequired`, unless ``force``, if a log without settings could be created now, and not
    without this bookie: the same answer that `check_stop` and the health of the cluster give. The metadata
    nodes check that its premises still hold: of two such requests at the same moment, one is refused.
    Raises `VersionConflict` if other bookies join or leave during each of `ATTEMPTS` attempts.
    """
    for _ in range(ATTEMPTS):
        premises = [] if force else await _premises(metadata, bookie)
        if await request_decommission(metadata, bookie, successor=successor, premises=premises):
            return
    raise VersionConflict(f"bookie {bookie}: other bookies join or leave all the time. Retry later")


async def _premises(metadata: Metadata, bookie: str) -> list[Compare]:
    """That the other bookies which take entries still do. Raises `ConfirmationRequired`."""
    candidates = await new_ledger_candidates(metadata)
    other_ids = [
        candidate.id
        for candidate in candidates
        if not candidate.is_unavailable and candidate.id != bookie
    ]
    if await _placement_conditions(metadata, candidates, ()):
        return []  # no log can be created now: that may be why a bookie is to leave
    if why := await _placement_conditions(metadata, candidates, {bookie}):
        raise ConfirmationRequired("; ".join(texts_of(why)))
    return [
        *(Compare.exists(keys.bookie_key(candidate)) for candidate in other_ids),
        *(Compare.version(keys.leaving_key(candidate), 0) for candidate in other_ids),
    ]


async def _resolve_bookie(metadata: Metadata, name: str, members: Collection[str]) -> str:
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


def _voter_conditions(
    members: Sequence[MemberStatus], stopped: Collection[str]
) -> list[HealthCondition]:
    if not stopped:
        return []
    voters = [member for member in members if member.is_voter]
    remaining = [
        member.name
        for member in voters
        if member.alive and not member.lost_data and member.name not in stopped
    ]
    needed = len(voters) // 2 + 1
    if len(remaining) >= needed:
        return []
    return [
        condition(
            Code.STOP_NO_MAJORITY,
            answering=len(remaining),
            voters=len(voters),
            names=", ".join(remaining),
            needed=needed,
        )
    ]


async def _placement_conditions(
    metadata: Metadata, candidates: Sequence[Candidate], stopped: Collection[str]
) -> list[HealthCondition]:
    """Could a log be created and rolled on the bookies that are left?"""
    remaining = [
        replace(one, is_unavailable=one.is_unavailable or one.id in stopped) for one in candidates
    ]
    policy = PlacementPolicy()
    with suppress(CorruptData, UnsupportedFormat):  # `dlog status` names it
        policy = (await placement_status(metadata)).policy
    if can_place(DEFAULT_QUORUMS, remaining, policy):
        return []
    return [
        condition(
            Code.STOP_NO_NEW_LEDGERS,
            writable=sum(not one.is_unavailable for one in remaining),
            ensemble=DEFAULT_QUORUMS.ensemble_size,
            write_quorum=DEFAULT_QUORUMS.write_quorum,
            ack_quorum=DEFAULT_QUORUMS.ack_quorum,
        )
    ]


async def _load_registrations(metadata: Metadata) -> dict[str, BookieRegistration]:
    """The registrations of the bookies that run, by ID."""
    by_id: dict[str, BookieRegistration] = {}
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):
            registration = BookieRegistration.decode(item.key, item.value)
            by_id[registration.id] = registration
    return by_id


async def _check_ledgers(
    metadata: Metadata,
    stopped: set[str],
    sound: Collection[str],
    live: Collection[str],
    writable: Collection[str],
) -> tuple[list[HealthCondition], int]:
    """What would be wrong with ledgers of the bookies that stop, and how many those are."""
    missing_by_ledger: dict[int, list[MissingRange]] = {}
    async for item in Scan(metadata, keys.MISSING_RANGES_PREFIX):
        with suppress(CorruptData):
            missing_by_ledger[keys.ledger_id_of(item.key)] = list(
                holes.decode_missing_ranges(item.value)
            )
    by_code: dict[str, list[HealthCondition]] = {}
    checked = 0
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
        checked += 1
        problem = _ledger_condition(
            ledger, missing_by_ledger.get(ledger.ledger_id, []), sound, live, writable
        )
        if problem is not None:
            by_code.setdefault(problem.code, []).append(problem)
    conditions: list[HealthCondition] = []
    for same_code in by_code.values():
        conditions += same_code[:LEDGERS_PER_CODE_MAX]
        if len(same_code) > LEDGERS_PER_CODE_MAX:
            conditions.append(
                condition(Code.STOP_MORE, count=len(same_code) - LEDGERS_PER_CODE_MAX)
            )
    return conditions, checked


def _ledger_condition(
    ledger: LedgerMetadata,
    missing_ranges: Sequence[MissingRange],
    sound: Collection[str],
    live: Collection[str],
    writable: Collection[str],
) -> HealthCondition | None:
    """Why the bookies of one ledger may not be stopped, None if they may."""
    ledger_id = ledger.ledger_id
    away_bookies = {bookie for bookie in ledger.bookies() if bookie not in sound}
    if ledger.closed:
        copies_left = fewest_sound_copies(ledger, away_bookies, missing_ranges)
        copies_now = fewest_sound_copies(
            ledger, {bookie for bookie in ledger.bookies() if bookie not in live}, missing_ranges
        )
        if copies_left == 0:
            return condition(Code.STOP_NO_COPY, ledger=ledger_id, open=0, log="", segment=-1)
        if copies_left == 1 and (ledger.write_quorum > 2 or copies_now < ledger.write_quorum):
            return condition(
                Code.STOP_ONE_COPY,
                ledger=ledger_id,
                copies=copies_now,
                write_quorum=ledger.write_quorum,
            )
        return None
    striping = ledger.striping
    log, segment = _segment_of(ledger)
    for fragment in ledger.ensembles[:-1]:
        for window in striping.all_write_sets():
            if not any(fragment.bookies[slot] in sound for slot in window):
                return condition(
                    Code.STOP_NO_COPY, ledger=ledger_id, open=1, log=log, segment=segment
                )
    last_ensemble = ledger.last_fragment.bookies
    lacking_bookies = {missing.bookie for missing in missing_ranges if missing.end is None}
    sound_slots = {
        slot
        for slot, bookie in enumerate(last_ensemble)
        if bookie in sound and bookie not in lacking_bookies
    }
    if not striping.covered(sound_slots):
        return condition(Code.STOP_NO_RECOVERY, ledger=ledger_id, log=log, segment=segment)
    spare_bookies = len(set(writable) - set(last_ensemble))
    fewest = min(
        sum(slot in sound_slots for slot in window) for window in striping.all_write_sets()
    )
    if fewest + spare_bookies < ledger.ack_quorum:
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
