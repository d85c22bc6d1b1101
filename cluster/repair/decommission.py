"""Decommission bookies, and list the ledgers that have fewer copies than their records require.

A decommission is requested by one key, ``leaving/<bookie>``. The bookie then takes no new entries, if it
runs, and the repair leader stores its entries on other bookies (`lost_bookies.py`). When the bookie holds
nothing and does not run, its cookie is deleted. Its data directory can then never join the cluster again.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from ...ledger.model import ledger_keys as keys
from ...ledger.model.bookie_registration import BookieRegistration
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...ledger.model.missing_range import MissingRange, decode_missing_ranges
from ...log.model.lock_record import LockRecord
from ...log.model.log_keys import lock_key
from ...metadata.model.interface import Metadata, Scan, prefix_end
from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import (
    CorruptData,
    InvalidRequest,
    UnknownBookie,
    UnsupportedFormat,
)
from ..coordination.cookie import decode_cookie
from .pull_replication import ReplicaMove


@dataclass(frozen=True, slots=True)
class DecommissionStatus:
    """The progress of a bookie's decommission."""

    bookie: str
    ledgers: int
    """The number of ledgers whose records list the bookie."""
    running: bool
    known: bool
    """Whether its cookie exists: False once it was decommissioned."""
    asked: bool
    """Whether its decommission was requested."""
    waiting: tuple["Waiting", ...] = ()
    """Some of the ledgers with the reason of the delay; empty unless requested."""

    @property
    def drained(self) -> bool:
        """Whether the bookie can be stopped and its disks removed."""
        return self.ledgers == 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A ledger whose record still lists a bookie that is being decommissioned."""

    ledger: int
    bytes: int | None
    """None if the ledger is open."""
    why: str
    stuck: bool = False
    """Whether an operator must act: start another bookie, or an offline one."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """Entries of a ledger that a bookie should hold and cannot provide."""

    ledger: int
    bookie: str
    first: int
    to: int | None
    """One past the last entry; None for all up to the ledger's end."""
    why: str


async def find_bookie(metadata: Metadata, name_or_id: str) -> str:
    """Return the ID of a bookie, given by its ID, the first four or more characters of its ID, or its name.

    Raises:
        UnknownBookie: No bookie matches.
        InvalidRequest: Several bookies match.
    """
    matches: list[str] = []
    known_bookies: list[str] = []
    async for item in Scan(metadata, keys.COOKIE_PREFIX):
        try:
            bookie = keys.bookie_id_of(item.key)
            label = decode_cookie(item.key, item.value)["label"]
        except CorruptData:
            continue  # `dlog status` lists the record
        known_bookies.append(f"{label} ({bookie})")
        if name_or_id in (bookie, label) or (
            len(name_or_id) >= 4 and bookie.startswith(name_or_id)
        ):
            matches.append(bookie)
    if not matches:
        raise UnknownBookie(
            f"no bookie is called {name_or_id}; known are {', '.join(sorted(known_bookies)) or 'none'}"
        )
    if len(matches) > 1:  # a new bookie has the name of one whose disk was lost: list the IDs
        described = [
            f"{bookie} (offline)"
            if await metadata.get(keys.bookie_key(bookie)) is None
            else f"{bookie} (up)"
            for bookie in matches
        ]
        raise InvalidRequest(
            f"{len(matches)} bookies are called {name_or_id}: {', '.join(described)}; give the id of one"
        )
    return matches[0]


async def request_decommission(
    metadata: Metadata, bookie: str, *, successor: str = "", premises: Sequence[Compare] = ()
) -> bool:
    """Request that a bookie is drained.

    `safe_to_stop.decommission` refuses a request that would stop writes. This function does not.

    Args:
        metadata: The metadata store.
        bookie: The ID of the bookie.
        successor: The ID of the bookie that replaces it where possible; "" for any bookie.
        premises: Conditions that must hold when the request is stored. If one does not, nothing is requested.

    Returns:
        False if a premise did not hold.

    Raises:
        InvalidRequest: The bookie is its own successor, or has no cookie.
    """
    if successor == bookie:
        raise InvalidRequest(f"bookie {bookie} cannot take its own place")
    request = Transaction(
        (Compare.exists(keys.cookie_key(bookie)), *premises),
        (Put(keys.leaving_key(bookie), successor.encode()),),
    )
    if (await metadata.transact(request)).succeeded:
        return True
    if await metadata.get(keys.cookie_key(bookie)) is None:
        raise InvalidRequest(f"bookie {bookie} has no cookie: it was decommissioned already")
    return False


async def cancel_decommission(metadata: Metadata, bookie: str) -> None:
    """Withdraw the request; copies that were made elsewhere stay there. Do nothing if there is no request."""
    await metadata.transact(Transaction((), (Delete(keys.leaving_key(bookie)),)))


async def decommission_status(
    metadata: Metadata, bookie: str, *, waiting_max: int = 0
) -> DecommissionStatus:
    """Return the progress of a decommission.

    Args:
        metadata: The metadata store.
        bookie: The ID of the bookie.
        waiting_max: For how many of the first ledgers the reason of the delay is included.
    """
    ledgers = 0
    waiting: list[Waiting] = []
    takes_copies = await _copy_targets(metadata) if waiting_max else {}
    moves = await _moves_off(metadata, bookie) if waiting_max else {}
    async for item in Scan(metadata, keys.bookie_ledgers_prefix(bookie)):
        ledgers += 1
        if len(waiting) < waiting_max:
            with suppress(CorruptData, UnsupportedFormat):  # `dlog status` lists the record
                waiting.append(await _waiting_for(metadata, item, bookie, takes_copies, moves))
    return DecommissionStatus(
        bookie,
        ledgers,
        running=await metadata.get(keys.bookie_key(bookie)) is not None,
        known=await metadata.get(keys.cookie_key(bookie)) is not None,
        asked=await metadata.get(keys.leaving_key(bookie)) is not None,
        waiting=tuple(waiting),
    )


async def count_ledgers(metadata: Metadata, bookie: str, *, until: float) -> tuple[int, bool]:
    """Return the number of ledgers whose records list a bookie, and whether all of them were counted.

    Args:
        metadata: The metadata store.
        bookie: The ID of the bookie.
        until: The time of trio's clock after which no further ledgers are counted.
    """
    ledgers = 0
    with trio.move_on_at(until):
        async for _ in Scan(metadata, keys.bookie_ledgers_prefix(bookie)):
            ledgers += 1
        return ledgers, True
    return ledgers, False


async def _copy_targets(metadata: Metadata) -> dict[str, bool]:
    """Return whether each registered bookie accepts copies: it is writable and not being decommissioned."""
    leaving = {item.key async for item in Scan(metadata, keys.LEAVING_PREFIX)}
    takes_copies: dict[str, bool] = {}
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):
            registration = BookieRegistration.decode(item.key, item.value)
            takes_copies[registration.id] = (
                not registration.read_only and keys.leaving_key(registration.id) not in leaving
            )
    return takes_copies


async def _moves_off(metadata: Metadata, bookie: str) -> dict[int, str]:
    """Return the replacement bookie of each ledger that one fetches in place of the given bookie."""
    target_of_ledger: dict[int, str] = {}
    async for item in Scan(metadata, keys.MOVE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):
            if ReplicaMove.decode(item.value).leaving == bookie:
                target_of_ledger[keys.ledger_id_of(item.key)] = keys.bookie_id_of(item.key)
    return target_of_ledger


async def _waiting_for(
    metadata: Metadata,
    index_item: KeyValue,
    bookie: str,
    takes_copies: Mapping[str, bool],
    moves: Mapping[int, str],
) -> Waiting:
    """Return the reason why one ledger still lists the bookie.

    Raises:
        CorruptData: A record is corrupt.
        UnsupportedFormat: A record is from a newer version.
    """
    ledger_id = keys.ledger_id_of(index_item.key)
    item = await metadata.get(keys.ledger_key(ledger_id))
    if item is None:
        return Waiting(ledger_id, 0, "deleted: the next repair pass removes it from the index")
    ledger = LedgerMetadata.decode(item.key, item.value)
    if ledger.state is LedgerState.DELETING:
        return Waiting(ledger_id, ledger.length, "being deleted")
    if not ledger.closed:
        return Waiting(ledger_id, None, await why_open(metadata, ledger))
    for index, fragment in enumerate(ledger.ensembles):
        if bookie not in fragment.bookies or ledger.fragment_end(index) == fragment.first_entry:
            continue
        if not any(
            is_writable and other not in fragment.bookies
            for other, is_writable in takes_copies.items()
        ):
            writable = (
                ", ".join(
                    sorted(other for other, is_writable in takes_copies.items() if is_writable)
                )
                or "none"
            )
            return Waiting(
                ledger_id,
                ledger.length,
                f"no bookie can take its place: it is stored on {', '.join(fragment.bookies)}, and"
                f" writable bookies are {writable}",
                stuck=True,
            )
        if (
            fewest_sound_copies(
                ledger, {other for other in ledger.bookies() if other not in takes_copies}, ()
            )
            == 0
        ):
            return Waiting(
                ledger_id, ledger.length, "no source: all its bookies are offline", stuck=True
            )
    why = f"bookie {moves[ledger_id]} fetches it" if ledger_id in moves else "waits for its copy"
    return Waiting(ledger_id, ledger.length, why)


async def why_open(metadata: Metadata, ledger: LedgerMetadata) -> str:
    """Return the reason why a ledger is still open."""
    if ledger.owner is None:
        return "open, of no log: a staged ledger, attached by its writer or deleted after a day"
    log_id, segment = ledger.owner
    name = ledger.custom.get("log", b"").decode(errors="replace") or f"{log_id:016x}"
    lock = await metadata.get(lock_key(log_id))
    if lock is None:
        return f'open, segment {segment} of log "{name}", which has no writer: closed within half a minute'
    owner = LockRecord.decode(lock.value).owner
    return f'open, segment {segment} of log "{name}": its writer {owner} must roll it'


def is_majority_away(away: int, total: int) -> bool:
    """Return whether most bookies are away, so that this process may be on the minority side of a partition.

    Repair copies nothing in this state.
    """
    return 2 * away > total


def fewest_sound_copies(
    ledger: LedgerMetadata, away_bookies: Collection[str], missing_ranges: Iterable[MissingRange]
) -> int:
    """Return the lowest number of intact copies of any entry of a closed ledger.

    Copies on bookies that are away, and recorded missing ranges, do not count. A bookie that lacks some
    entries of a fragment counts as if it lacked the whole fragment, so the result can be too low. Fragments
    that are declared lost completely are skipped. If there is no entry to count, the result is the write
    quorum.
    """
    assert ledger.last_entry is not None, "only of a closed ledger"
    striping = ledger.striping
    recorded = list(missing_ranges)
    fewest = striping.write_quorum
    for index, fragment in enumerate(ledger.ensembles):
        end = ledger.fragment_end(index)
        assert end is not None, "every fragment of a closed ledger ends"
        stop = min(end, ledger.last_entry + 1)
        if any(
            other.first <= fragment.first_entry and stop <= other.last + 1 for other in ledger.lost
        ):
            continue
        lacking_bookies = {
            missing.bookie for missing in recorded if _overlaps(missing, fragment.first_entry, stop)
        }
        # Further entries repeat the write sets of these, because striping is periodic.
        entries_to_check = 1 if striping.is_unstriped else striping.ensemble_size
        for entry in range(
            fragment.first_entry, min(stop, fragment.first_entry + entries_to_check)
        ):
            write_set = [fragment.bookies[slot] for slot in striping.write_set(entry)]
            sound = sum(
                other not in away_bookies and other not in lacking_bookies for other in write_set
            )
            fewest = min(fewest, sound)
    return fewest


def _overlaps(missing: MissingRange, first: int, stop: int) -> bool:
    return missing.first < stop and (missing.end is None or missing.end > first)


async def shortages(metadata: Metadata) -> AsyncIterator[Shortage]:
    """Yield all recorded missing ranges by ledger, then all ledgers of unregistered bookies by bookie."""
    async for item in Scan(metadata, keys.MISSING_RANGES_PREFIX):
        try:
            ledger_id, missing_ranges = (
                keys.ledger_id_of(item.key),
                decode_missing_ranges(item.value),
            )
        except CorruptData:
            continue  # `dlog status` lists the record
        for missing in missing_ranges:
            yield Shortage(ledger_id, missing.bookie, missing.first, missing.end, "recorded")
    async for bookie in absent_bookies(metadata):
        async for item in Scan(metadata, keys.bookie_ledgers_prefix(bookie)):
            try:
                ledger_id = keys.ledger_id_of(item.key)
            except CorruptData:
                continue
            yield Shortage(ledger_id, bookie, 0, None, "bookie is offline")


async def absent_bookies(metadata: Metadata) -> AsyncIterator[str]:
    """Yield the unregistered bookies that ledgers' records list, in order."""
    async for bookie in bookies_in_index(metadata):
        if await metadata.get(keys.bookie_key(bookie)) is None:
            yield bookie


async def bookies_in_index(metadata: Metadata) -> AsyncIterator[str]:
    """Yield every bookie in the reverse index, in order, with one range request per bookie."""
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
        start = prefix_end(keys.bookie_ledgers_prefix(bookie))
