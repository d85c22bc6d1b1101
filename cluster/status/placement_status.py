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
from ...ledger.placement.ensemble_placement import Labels, describe_violations
from ...ledger.placement.placement_policy import PlacementPolicy
from ...metadata.model.interface import Metadata, Scan, prefix_end
from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from ...runtime.declarations.health_conditions import Code, HealthCondition, condition
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat, VersionConflict

NEWEST_LEDGERS = 200
"""A status looks at so many, or at most a block of ids more, where there may be something to see."""
RANGES_MAX = 20
"""Questions for them, from the newest ids on. Of most blocks the most is given up
(`ledger/model/ledger_ids.py`), so each question is for as many blocks as all before it."""


@dataclass(frozen=True, slots=True)
class FailureDomain:
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
    domains: tuple[FailureDomain, ...]
    """By name."""

    @property
    def open_domains(self) -> int:
        """How many take entries; bookies without the label are in none."""
        return sum(bool(domain.name and domain.writable) for domain in self.domains)

    @property
    def may_miss(self) -> bool:
        """Can there be a ledger that is not as the policy wants it, and somebody who minds?"""
        hosts = [
            bookie_labels["host"]
            for bookie_labels in self.labels.values()
            if "host" in bookie_labels
        ]
        # With a single host it cannot be otherwise.
        return self.stored or 1 < len(set(hosts)) < len(hosts)

    def condition(self) -> HealthCondition | None:
        """Return a condition if an enforced policy stops writes, or would after losing one more domain."""
        policy, writable_count = self.policy, self.open_domains
        if not policy.enforced or writable_count > policy.at_least:
            return None
        return condition(
            Code.PLACEMENT_AT_LIMIT,
            level=policy.level,
            domains=writable_count,
            needed=policy.at_least,
        )


async def placement_status(metadata: Metadata) -> PlacementStatus:
    """Read the policy, and every registration. Raises `CorruptData`, `UnsupportedFormat`: of the policy."""
    policy_item = await metadata.get(keys.PLACEMENT)
    policy = _decode_policy(policy_item)
    registrations: list[BookieRegistration] = []
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):  # `dlog status` names it
            registrations.append(BookieRegistration.decode(item.key, item.value))
    by_name: dict[str, list[BookieRegistration]] = {}
    for registration in registrations:
        by_name.setdefault(registration.where().get(policy.level, ""), []).append(registration)
    domains = tuple(
        FailureDomain(
            name,
            tuple(registration.id for registration in same_domain),
            sum(registration.free_bytes for registration in same_domain),
            sum(not registration.read_only for registration in same_domain),
        )
        for name, same_domain in sorted(by_name.items())
    )
    return PlacementStatus(
        policy,
        policy_item is not None,
        {registration.id: registration.where() for registration in registrations},
        domains,
    )


def _decode_policy(item: KeyValue | None) -> PlacementPolicy:
    """Raises `CorruptData`, `UnsupportedFormat`."""
    try:
        return PlacementPolicy() if item is None else PlacementPolicy.decode(item.value)
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
    stored_policy = await metadata.get(keys.PLACEMENT)
    if len(changes) < len(fields(PlacementPolicy)):
        policy = replace(_decode_policy(stored_policy), **changes)
    else:
        policy = PlacementPolicy(**changes)
    domains: dict[str, int] = {}
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):
            registration = BookieRegistration.decode(item.key, item.value)
            if name := registration.where().get(policy.level, ""):
                domains[name] = domains.get(name, 0) + 1
    policy.check_reachable(domains)
    unchanged = Compare.mod_revision(
        keys.PLACEMENT, 0 if stored_policy is None else stored_policy.mod_revision
    )
    put = Transaction((unchanged,), (Put(keys.PLACEMENT, policy.encode()),))
    if not (await metadata.transact(put)).succeeded:
        raise VersionConflict("the placement policy was changed meanwhile: look again")


async def reset_policy(metadata: Metadata) -> None:
    """What holds without one holds again."""
    await metadata.transact(Transaction((), (Delete(keys.PLACEMENT),)))


async def placement_conditions(
    metadata: Metadata, placement: PlacementStatus
) -> list[HealthCondition]:
    """Return conditions, all of severity info, for copies that are closer to each other than preferred."""
    if not placement.may_miss:
        return []
    conditions = []
    unlabeled_bookies = next((one.bookies for one in placement.domains if not one.name), ())
    if placement.stored and unlabeled_bookies:
        conditions.append(
            condition(
                Code.DOMAIN_UNKNOWN,
                level=placement.policy.level,
                names=", ".join(unlabeled_bookies),
            )
        )
    violations = [
        one
        async for one in placement_violations(metadata, placement, newest_ledgers=NEWEST_LEDGERS)
    ]
    if violations:
        ledger, cause = violations[0]
        conditions.append(
            condition(Code.COPIES_TOGETHER, ledgers=len(violations), ledger=ledger, cause=cause)
        )
    return conditions


async def placement_violations(
    metadata: Metadata, placement: PlacementStatus, *, newest_ledgers: int | None = None
) -> AsyncIterator[tuple[int, str]]:
    """Ledgers that have copies together, and which: all, or some of the ``newest`` so many.

    Of a ledger all fragments with entries count, and the last one of an open one. Who is not there is
    not counted.
    """
    checked = 0
    for start, end in await _ranges(metadata, newest_ledgers):
        if newest_ledgers is not None and checked >= newest_ledgers:
            return
        async for item in Scan(metadata, start, end):
            checked += 1
            if newest_ledgers is not None and checked > newest_ledgers + keys.LEDGER_ID_BLOCK:
                return  # older ones stand closer
            try:
                ledger = LedgerMetadata.decode(item.key, item.value)
            except (CorruptData, UnsupportedFormat):
                continue  # `dlog status` names it
            problems: dict[str, None] = {}
            for index, fragment in enumerate(ledger.ensembles):
                if ledger.fragment_end(index) == fragment.first_entry:
                    continue  # no entry is in it
                problems.update(
                    dict.fromkeys(
                        describe_violations(
                            ledger.striping, fragment.bookies, placement.labels, placement.policy
                        )
                    )
                )
            if problems and ledger.state is not LedgerState.DELETING:
                yield ledger.ledger_id, "; ".join(problems)


async def _ranges(metadata: Metadata, newest_ledgers: int | None) -> list[tuple[bytes, bytes]]:
    """Where the ledgers are: one range of all, or blocks of ids from the newest on."""
    all_ledgers = [(keys.LEDGER_PREFIX, prefix_end(keys.LEDGER_PREFIX))]
    item = None if newest_ledgers is None else await metadata.get(keys.NEXT_LEDGER)
    if item is None:
        return all_ledgers
    try:
        end = ids.decode_next_ledger(item.value)
    except CorruptData:
        return all_ledgers
    ranges: list[tuple[bytes, bytes]] = []
    block_count = 1
    while end > 0 and len(ranges) < RANGES_MAX:
        start = max(0, end - block_count * keys.LEDGER_ID_BLOCK)
        ranges.append((keys.ledger_key(start), keys.ledger_key(end)))
        end, block_count = start, block_count * 2 if len(ranges) > 1 else 1
    return ranges
