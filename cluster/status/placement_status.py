"""Read and change the placement policy, and find the ledgers that violate it.

The policy is stored in the record ``conf/placement``, and every client follows it
(`ledger/placement/bookie_pool.py`). It applies to later placements only: no existing copy is moved.
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
"""A status checks this number of ledgers, or at most one block of IDs more, if violations are possible."""
RANGES_MAX = 20
"""The number of range requests for these ledgers, from the newest IDs on.

Most IDs of most blocks are unused (`ledger/model/ledger_ids.py`), so each request covers as many blocks as
all requests before it.
"""


@dataclass(frozen=True, slots=True)
class FailureDomain:
    """The bookies in one rack, or in another failure domain at the policy's level."""

    name: str
    """The name of the domain; "" for bookies without the label."""
    bookies: tuple[str, ...]
    free_bytes: int
    writable: int
    """The number of writable bookies."""


@dataclass(frozen=True, slots=True)
class PlacementStatus:
    """The placement policy, and the locations of the registered bookies."""

    policy: PlacementPolicy
    stored: bool
    """False if no policy is stored, and the default applies."""
    labels: Mapping[str, Labels]
    """Of each registered bookie."""
    domains: tuple[FailureDomain, ...]
    """In the order of their names."""

    @property
    def open_domains(self) -> int:
        """The number of domains with a writable bookie. Bookies without the label are in no domain."""
        return sum(bool(domain.name and domain.writable) for domain in self.domains)

    @property
    def may_miss(self) -> bool:
        """Whether ledgers can violate the policy, so that a check is useful."""
        hosts = [
            bookie_labels["host"]
            for bookie_labels in self.labels.values()
            if "host" in bookie_labels
        ]
        # Without a policy, placement can only be improved if some bookies share a host and others do not.
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
    """Load the policy and all registrations.

    Raises:
        CorruptData: The policy is unreadable.
        UnsupportedFormat: The policy is from a newer version.
    """
    policy_item = await metadata.get(keys.PLACEMENT)
    policy = _decode_policy(policy_item)
    registrations: list[BookieRegistration] = []
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):  # `dlog status` lists the record
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
    """Decode the policy. The error message has the commands that replace an unreadable one."""
    try:
        return PlacementPolicy() if item is None else PlacementPolicy.decode(item.value)
    except CorruptData as error:
        raise CorruptData(
            f"{error}: dlog placement --level LEVEL --at-least N with --enforced or --preferred replaces it,"
            " --reset removes it"
        ) from error


async def change_policy(metadata: Metadata, changes: Mapping[str, Any]) -> None:
    """Change some fields of the stored policy.

    Args:
        metadata: The metadata store.
        changes: The new values, by the names of the fields.

    Raises:
        InvalidRequest: The loss of one domain would stop all writes under the new policy (H111).
        VersionConflict: The policy was changed during the call.
        CorruptData: The stored policy is unreadable, and some fields are not given.
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
        raise VersionConflict(
            "the placement policy was changed by another client: check it and retry"
        )


async def reset_policy(metadata: Metadata) -> None:
    """Delete the stored policy, so that the default applies."""
    await metadata.transact(Transaction((), (Delete(keys.PLACEMENT),)))


async def placement_conditions(
    metadata: Metadata, placement: PlacementStatus
) -> list[HealthCondition]:
    """Return conditions of severity info if copies share a domain contrary to the policy."""
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
    """Yield the ledgers whose copies violate the policy, with the reason.

    The check covers all fragments with entries, and the last fragment of an open ledger. Unregistered bookies
    do not count.

    Args:
        metadata: The metadata store.
        placement: The policy and the locations of the bookies.
        newest_ledgers: Check about this number of the newest ledgers; None for all.
    """
    checked = 0
    for start, end in await _ranges(metadata, newest_ledgers):
        if newest_ledgers is not None and checked >= newest_ledgers:
            return
        async for item in Scan(metadata, start, end):
            checked += 1
            if newest_ledgers is not None and checked > newest_ledgers + keys.LEDGER_ID_BLOCK:
                return  # only older ledgers are left
            try:
                ledger = LedgerMetadata.decode(item.key, item.value)
            except (CorruptData, UnsupportedFormat):
                continue  # `dlog status` lists the record
            problems: dict[str, None] = {}
            for index, fragment in enumerate(ledger.ensembles):
                if ledger.fragment_end(index) == fragment.first_entry:
                    continue  # the fragment has no entries
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
    """Return the key ranges to read: one range of all ledgers, or blocks of IDs from the newest on."""
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
