"""Check whether nodes can be stopped for a while without loss of read or write availability.

The check uses only the metadata, and can be made for several nodes at once, such as a rack. Unknown facts
count against a stop: a bookie that reports that it may have lost entries does not count as a copy. The result
is true at the moment of the check and reserves nothing: two operators who check at the same time may both get
a positive answer (H270).
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ...ledger.model import ledger_keys as keys
from ...ledger.model.bookie_registration import BookieRegistration
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...ledger.model.missing_range import MissingRange, decode_missing_ranges
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
"""Ledgers that are listed per condition code. Further ones are only counted."""
ATTEMPTS = 5
"""Attempts of a decommission while other bookies change. Each attempt reads all registrations."""
_UNCERTAIN = frozenset({Code.LIMBO, Code.LEGACY_TEXT})
"""Conditions of bookies whose copies are not counted.

A bookie in limbo may lack entries. A text from a version without condition codes may report the same, so it
has the same effect.
"""


@dataclass(frozen=True, slots=True)
class StopCheck:
    """The result of a check."""

    nodes: tuple[str, ...]
    """Names of the nodes to stop, IDs for bookies."""
    conditions: tuple[HealthCondition, ...]
    """Reasons against the stop; their codes begin with ``stop_``."""
    ledgers: int
    """The number of checked ledgers of these bookies."""

    @property
    def is_safe(self) -> bool:
        """Whether the nodes can be stopped."""
        return not self.conditions


async def check_stop(
    metadata: Metadata, members: Sequence[MemberStatus], names: Sequence[str]
) -> StopCheck:
    """Check the effects of stopping nodes. The check reads each ledger's record once.

    Args:
        metadata: The metadata store.
        members: The states of the metadata nodes.
        names: Names of metadata nodes, and names or IDs of bookies.

    Raises:
        InvalidRequest: A metadata node and a bookie have one of the names, or two bookies.
        UnknownBookie: No node has one of the names.
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
        # Running bookies without uncertain conditions have their copies. Bookies to stop count as having
        # none.
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
    """Request the decommission of a bookie, unless it would prevent the creation of logs.

    The check is whether a log without settings can be created now but not without this bookie, as in
    `check_stop` and the health of the cluster. The metadata quorum verifies the premises when it stores the
    request, so one of two such requests at the same moment is refused.

    Args:
        metadata: The metadata store.
        bookie: The ID of the bookie.
        successor: The ID of the bookie that replaces it where possible; "" for any bookie.
        force: Skip the check.

    Raises:
        ConfirmationRequired: No log could be created without this bookie.
        InvalidRequest: The bookie is its own successor, or has no cookie.
        VersionConflict: Other bookies joined or left during each of `ATTEMPTS` attempts.
    """
    for _ in range(ATTEMPTS):
        premises = [] if force else await _premises(metadata, bookie)
        if await request_decommission(metadata, bookie, successor=successor, premises=premises):
            return
    raise VersionConflict(
        f"bookie {bookie}: other bookies joined or left during each attempt; retry later"
    )


async def _premises(metadata: Metadata, bookie: str) -> list[Compare]:
    """Return the conditions that the other writable bookies are still available.

    Raises:
        ConfirmationRequired: No log could be created without the bookie.
    """
    candidates = await new_ledger_candidates(metadata)
    other_ids = [
        candidate.id
        for candidate in candidates
        if not candidate.is_unavailable and candidate.id != bookie
    ]
    if await _placement_conditions(metadata, candidates, ()):
        return []  # no log can be created now, which may be the reason for the decommission
    if why := await _placement_conditions(metadata, candidates, {bookie}):
        raise ConfirmationRequired("; ".join(texts_of(why)))
    return [
        *(Compare.exists(keys.bookie_key(candidate)) for candidate in other_ids),
        *(Compare.version(keys.leaving_key(candidate), 0) for candidate in other_ids),
    ]


async def _resolve_bookie(metadata: Metadata, name: str, metadata_nodes: Collection[str]) -> str:
    """Return the ID of the bookie with a name or ID; "" for a metadata node.

    Args:
        metadata: The metadata store.
        name: The name of a node, or the ID of a bookie or its beginning (`find_bookie`).
        metadata_nodes: The names of the metadata nodes.

    Raises:
        InvalidRequest: A metadata node and a bookie have this name, or two bookies.
        UnknownBookie: No node has this name.
    """
    if name not in metadata_nodes:
        return await find_bookie(metadata, name)
    async for item in Scan(metadata, keys.COOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):
            if decode_cookie(item.key, item.value)["label"] == name:
                raise InvalidRequest(
                    f"{name} is a metadata node and a bookie: give the bookie's ID"
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
    """Return conditions if no log could be created and rolled on the remaining bookies."""
    remaining = [
        replace(one, is_unavailable=one.is_unavailable or one.id in stopped) for one in candidates
    ]
    policy = PlacementPolicy()
    with suppress(CorruptData, UnsupportedFormat):  # `dlog status` lists the record
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
    """Return the registrations of the running bookies, by ID."""
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
    """Return the problems that ledgers of the stopped bookies would have, and the number of these ledgers."""
    missing_by_ledger: dict[int, list[MissingRange]] = {}
    async for item in Scan(metadata, keys.MISSING_RANGES_PREFIX):
        with suppress(CorruptData):
            missing_by_ledger[keys.ledger_id_of(item.key)] = list(decode_missing_ranges(item.value))
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
    """Return the problem that one ledger would have, or None."""
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
    """Return the log and segment of an open ledger; "" and -1 if it belongs to no log."""
    if ledger.owner is None:
        return "", -1
    name = ledger.custom.get("log", b"").decode(errors="replace") or f"{ledger.owner[0]:016x}"
    return name[:200], ledger.owner[1]
