"""The placement policy from outside: stored, with what it needs, and which ledgers are not as it wants them.

The record is ``conf/placement``; every client follows it (`ledger/placement/bookie_pool.py`). What it says
holds for what is placed from then on: nothing moves because of it.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from ...ledger.model import ledger_ids as ids
from ...ledger.model import ledger_keys as keys
from ...ledger.model.bookie_registration import BookieRegistration
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...ledger.placement.ensemble_placement import Labels, not_adhering
from ...ledger.placement.placement_policy import PlacementPolicy
from ...metadata.model.interface import Metadata, Scan, prefix_end
from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from ...runtime.declarations.health_conditions import Code, HealthCondition, condition
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat, VersionConflict

NEWEST_LEDGERS = 200
"""A status looks at so many, or at most a block of ids more, where there may be something to see."""
LOOKS_MAX = 20
"""Questions for them, from the newest ids on. Of most blocks the most is given up
(`ledger/model/ledger_ids.py`), so each question is for as many blocks as all before it."""


@dataclass(frozen=True, slots=True)
class Domain:
    """What stands in one rack, or whatever the policy's level is."""

    name: str
    """"": bookies without the label."""
    bookies: tuple[str, ...]
    free_bytes: int
    writable: int
    """How many of the bookies take entries."""


@dataclass(frozen=True, slots=True)
class PlacementStatus:
    """The policy, and where the live bookies stand."""

    policy: PlacementPolicy
    stored: bool
    """False: nobody has set one, this is what holds without."""
    labels: Mapping[str, Labels]
    """Of each live bookie."""
    domains: tuple[Domain, ...]
    """By name."""

    @property
    def open_domains(self) -> int:
        """How many take entries; bookies without the label are in none."""
        return sum(bool(one.name and one.writable) for one in self.domains)

    @property
    def may_miss(self) -> bool:
        """Can there be a ledger that is not as the policy wants it, and somebody who minds?"""
        hosts = [one["host"] for one in self.labels.values() if "host" in one]
        # With a single host it cannot be otherwise.
        return self.stored or 1 < len(set(hosts)) < len(hosts)

    def condition(self) -> HealthCondition | None:
        """Return a condition if an enforced policy stops writes, or would after losing one more domain."""
        policy, there = self.policy, self.open_domains
        if not policy.enforced or there > policy.at_least:
            return None
        return condition(
            Code.PLACEMENT_AT_LIMIT, level=policy.level, domains=there, needed=policy.at_least
        )


async def placement_status(metadata: Metadata) -> PlacementStatus:
    """Read the policy, and every registration. Raises `CorruptData`, `UnsupportedFormat`: of the policy."""
    found = await metadata.get(keys.PLACEMENT)
    policy = _policy(found)
    live: list[BookieRegistration] = []
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):  # `dlog status` names it
            live.append(BookieRegistration.decode(item.key, item.value))
    by_name: dict[str, list[BookieRegistration]] = {}
    for one in live:
        by_name.setdefault(one.where().get(policy.level, ""), []).append(one)
    domains = tuple(
        Domain(
            name,
            tuple(one.id for one in here),
            sum(one.free_bytes for one in here),
            sum(not one.read_only for one in here),
        )
        for name, here in sorted(by_name.items())
    )
    return PlacementStatus(
        policy, found is not None, {one.id: one.where() for one in live}, domains
    )


def _policy(found: KeyValue | None) -> PlacementPolicy:
    """Raises `CorruptData`, `UnsupportedFormat`."""
    try:
        return PlacementPolicy() if found is None else PlacementPolicy.decode(found.value)
    except CorruptData as error:
        raise CorruptData(
            f"{error}: dlog placement --level LEVEL --at-least N with --enforced or --preferred sets it anew,"
            " --default forgets it"
        ) from error


async def change_policy(metadata: Metadata, changes: Mapping[str, Any]) -> None:
    """Store the policy with these of its fields otherwise.

    Raises `InvalidRequest` where it would stop all writes when one domain is gone (H111), `VersionConflict`;
    `CorruptData` where what is stored cannot be read, and not every field is given.
    """
    before = await metadata.get(keys.PLACEMENT)
    if len(changes) < len(fields(PlacementPolicy)):
        policy = replace(_policy(before), **changes)
    else:
        policy = PlacementPolicy(**changes)
    domains: dict[str, int] = {}
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):
            one = BookieRegistration.decode(item.key, item.value)
            if name := one.where().get(policy.level, ""):
                domains[name] = domains.get(name, 0) + 1
    policy.check_reachable(domains)
    unchanged = Compare.mod_revision(keys.PLACEMENT, 0 if before is None else before.mod_revision)
    put = Transaction((unchanged,), (Put(keys.PLACEMENT, policy.encode()),))
    if not (await metadata.transact(put)).succeeded:
        raise VersionConflict("the placement policy was changed meanwhile: look again")


async def forget_policy(metadata: Metadata) -> None:
    """What holds without one holds again."""
    await metadata.transact(Transaction((), (Delete(keys.PLACEMENT),)))


async def copies_together(metadata: Metadata, where: PlacementStatus) -> list[HealthCondition]:
    """Return conditions, all of severity info, for copies that are closer to each other than preferred."""
    if not where.may_miss:
        return []
    conditions = []
    unnamed = next((one.bookies for one in where.domains if not one.name), ())
    if where.stored and unnamed:
        conditions.append(
            condition(Code.DOMAIN_UNKNOWN, level=where.policy.level, names=", ".join(unnamed))
        )
    found = [one async for one in not_as_wanted(metadata, where, newest=NEWEST_LEDGERS)]
    if found:
        ledger, why = found[0]
        conditions.append(
            condition(Code.COPIES_TOGETHER, ledgers=len(found), ledger=ledger, cause=why)
        )
    return conditions


async def not_as_wanted(
    metadata: Metadata, where: PlacementStatus, *, newest: int | None = None
) -> AsyncIterator[tuple[int, str]]:
    """Ledgers that have copies together, and which: all, or some of the ``newest`` so many.

    Of a ledger all fragments with entries count, and the last one of an open one. Who is not there is
    not counted.
    """
    looked = 0
    for start, end in await _ranges(metadata, newest):
        if newest is not None and looked >= newest:
            return
        async for item in Scan(metadata, start, end):
            looked += 1
            if newest is not None and looked > newest + keys.LEDGER_ID_BLOCK:
                return  # older ones stand closer
            try:
                ledger = LedgerMetadata.decode(item.key, item.value)
            except (CorruptData, UnsupportedFormat):
                continue  # `dlog status` names it
            found: dict[str, None] = {}
            for index, fragment in enumerate(ledger.ensembles):
                if ledger.fragment_end(index) == fragment.first_entry:
                    continue  # no entry is in it
                found.update(
                    dict.fromkeys(
                        not_adhering(ledger.striping, fragment.bookies, where.labels, where.policy)
                    )
                )
            if found and ledger.state is not LedgerState.DELETING:
                yield ledger.ledger_id, "; ".join(found)


async def _ranges(metadata: Metadata, newest: int | None) -> list[tuple[bytes, bytes]]:
    """Where the ledgers are: one range of all, or blocks of ids from the newest on."""
    whole = [(keys.LEDGER_PREFIX, prefix_end(keys.LEDGER_PREFIX))]
    found = None if newest is None else await metadata.get(keys.NEXT_LEDGER)
    if found is None:
        return whole
    try:
        end = ids.next_of(found.value)
    except CorruptData:
        return whole
    ranges: list[tuple[bytes, bytes]] = []
    blocks = 1
    while end > 0 and len(ranges) < LOOKS_MAX:
        start = max(0, end - blocks * keys.LEDGER_ID_BLOCK)
        ranges.append((keys.ledger_key(start), keys.ledger_key(end)))
        end, blocks = start, blocks * 2 if len(ranges) > 1 else 1
    return ranges
