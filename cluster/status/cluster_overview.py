"""The state of the cluster from its metadata: bookies, missing copies, and health conditions."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import trio

from ...ledger.declarations.options import LedgerOptions
from ...ledger.model import ledger_keys as keys
from ...ledger.model.bookie_registration import BookieRegistration
from ...ledger.model.ledger_metadata import NO_ENTRY, LedgerMetadata
from ...ledger.model.missing_range import decode_missing_ranges
from ...ledger.model.striping import Striping
from ...ledger.placement.ensemble_placement import (
    Candidate,
    can_place,
    ensemble_candidates,
    failures_tolerated,
)
from ...metadata.client.metadata_client import MetadataClient
from ...metadata.model.cluster_version import read_cluster_version
from ...metadata.model.interface import MemberRole, MemberStatus, Metadata, Scan
from ...metadata.model.transaction import KeyValue
from ...proxy.membership.proxy_registration import PREFIX as PROXY_PREFIX
from ...proxy.membership.proxy_registration import ProxyRegistration
from ...runtime.declarations.condition_texts import as_json, texts_of
from ...runtime.declarations.health_conditions import (
    Code,
    HealthCondition,
    Severity,
    condition,
    worst_first,
    worst_of,
)
from ...runtime.declarations.versions import Version, shown_version
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    NotAllowed,
    NotAuthenticated,
    TooBusy,
    UnsupportedFormat,
)
from ...runtime.interfaces.host import Address, Host
from ...runtime.net.address_check import describe_node, identify_node
from ..coordination.cookie import decode_cookie
from ..coordination.gc_hold import hold_reason
from ..coordination.repair_settings import usable_repair_settings
from ..declarations.config import format_address
from ..repair.decommission import decommission_status, is_majority_away
from .bookie_names import name_order
from .cluster_versions import (
    NodeVersion,
    member_version,
    node_versions,
    nodes_by_version,
    version_conditions,
)
from .damaged_records import damaged_records
from .placement_status import PlacementStatus, placement_conditions, placement_status

NAME_PREFIX = b"name/"
LEADERLESS_S = 1.5
"""Without a leader, a status waits only this long. An election is much shorter."""
DESCRIBED_DRAINS_MAX = 5
"""Bookies in decommission for which a status states why ledgers remain."""
DRAIN_LEDGERS_MAX = 50
"""The number of ledgers that it checks per such bookie."""
CHECKED_LEDGERS_MAX = 500
"""Ledgers whose records a status reads to count the remaining copies."""
DIAL_S = 2.0
"""A node without a handshake within this time in seconds counts as not answering.

The time is shorter if the status has less time.
"""
DIALS_S = 5.0
"""For all nodes, within the time limit of the status. Nodes without a result by then are not reported."""
DIALED_AT_ONCE = 32
CACHE_S = 10.0
CACHE_TIME_FACTOR = 50
"""The interval of the search for damaged records and logs, in multiples of its duration.

It applies to programs that poll the status, with `CACHE_S` as the minimum. With 10,000 logs, the search was
80 % of a status.
"""
_DEFAULTS = LedgerOptions()
DEFAULT_QUORUMS = Striping(_DEFAULTS.ensemble_size, _DEFAULTS.write_quorum, _DEFAULTS.ack_quorum)
"""The quorums of a log without settings. The health of a cluster refers to such a log."""


async def bookies(metadata: Metadata, listener: str = "") -> list[dict[str, Any]]:
    """Return a row per bookie with a cookie, in the order of their names. Offline bookies are included.

    Args:
        metadata: The metadata store.
        listener: The listener by which the client connected, which determines the addresses.
    """
    rows_read = await read_bookies(metadata, listener)
    return [row for row, _ in rows_read]


async def new_ledger_candidates(metadata: Metadata) -> list[Candidate]:
    """Return all bookies that can be in the ensemble of a new ledger."""
    return _candidates(await read_bookies(metadata, ""))


BookieRow = tuple[dict[str, Any], BookieRegistration | None]
"""A row, and the registration of a running bookie."""


async def read_bookies(metadata: Metadata, listener: str = "") -> list[BookieRow]:
    """Return the rows of `bookies`, each with the registration of the bookie."""
    registrations: dict[str, BookieRegistration] = {}
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):  # counted as damaged records
            registrations[keys.bookie_id_of(item.key)] = BookieRegistration.decode(
                item.key, item.value
            )
    leaving = {item.key async for item in Scan(metadata, keys.LEAVING_PREFIX)}
    rows: list[BookieRow] = []
    async for item in Scan(metadata, keys.COOKIE_PREFIX):
        try:
            bookie_id = keys.bookie_id_of(item.key)
            label = decode_cookie(item.key, item.value)["label"]
        except (CorruptData, UnsupportedFormat):
            continue
        registration, is_leaving = (
            registrations.get(bookie_id),
            keys.leaving_key(bookie_id) in leaving,
        )
        ledgers_naming_it = 0
        if registration is None or is_leaving:  # the ledgers whose records list it
            ledgers_naming_it = await _count(metadata, keys.bookie_ledgers_prefix(bookie_id))
        ledgers = None if registration is None else registration.ledgers
        row = {
            "id": bookie_id,
            "label": label,
            "address": None if registration is None else _address(registration, listener),
            "state": _state(registration, is_leaving),
            "running": registration is not None,
            "ledgers_missing": ledgers_naming_it if registration is None else 0,
            "ledgers": ledgers_naming_it if is_leaving else ledgers,
            "used_bytes": None if registration is None else registration.used_bytes,
            "free_bytes": None if registration is None else registration.free_bytes,
            "rack": None if registration is None else registration.rack,
            "conditions": [] if registration is None else as_json(registration.conditions),
            "corruption": None if registration is None else _corruption(registration),
            "repairs": None if registration is None else registration.copies_assigned_ledgers,
            "version": None if registration is None else shown_version(registration.version),
            "draining": is_leaving,
            "drain": None,
        }
        rows.append((row, registration))
    return sorted(rows, key=lambda row_read: (name_order(row_read[0]["label"]), row_read[0]["id"]))


def _state(registration: BookieRegistration | None, is_leaving: bool) -> str:
    if is_leaving:
        return "draining"
    return "offline" if registration is None else "read-only" if registration.read_only else "up"


def _candidates(bookie_rows: Sequence[BookieRow]) -> list[Candidate]:
    """Return the candidates of a client that reaches all registered bookies."""
    return ensemble_candidates(
        [registration for _, registration in bookie_rows if registration is not None],
        [row["id"] for row, _ in bookie_rows],
        [row["id"] for row, _ in bookie_rows if row["draining"]],
        lambda bookie: {},
    )


def _corruption(registration: BookieRegistration) -> dict[str, int]:
    ledgers, without_good_copy, repaired_entries = registration.corruption_counts
    return {
        "corrupt_ledgers": ledgers,
        "without_a_good_copy": without_good_copy,
        "repaired_entries": repaired_entries,
    }


async def _add_drains(metadata: Metadata, rows: list[dict[str, Any]]) -> None:
    """Add the progress of decommissions: the remaining ledgers, and the reason of the most blocked one."""
    for bookie in [row for row in rows if row["draining"]][:DESCRIBED_DRAINS_MAX]:
        progress = await decommission_status(metadata, bookie["id"], waiting_max=DRAIN_LEDGERS_MAX)
        worst = max(progress.waiting, key=lambda row: (row.stuck, row.bytes is None), default=None)
        bookie["drain"] = {
            "ledgers": progress.ledgers,
            "stuck": sum(row.stuck for row in progress.waiting),
            "ledger": None if worst is None else worst.ledger,
            "why": "" if worst is None else worst.why,
        }


async def corruption_of(metadata: Metadata, bookie_id: str) -> dict[str, int] | None:
    """Return a bookie's last report of corrupt entries; None while it is offline."""
    item = await metadata.get(keys.bookie_key(bookie_id))
    return None if item is None else _corruption(BookieRegistration.decode(item.key, item.value))


async def _count(metadata: Metadata, prefix: bytes) -> int:
    count = 0
    async for _ in Scan(metadata, prefix):
        count += 1
    return count


class StatusCache:
    """Caches the parts of a status that a polling program need not read each time; see `CACHE_S`."""

    def __init__(self) -> None:
        self._damaged_records: list[dict[str, str]] = []
        self._log_count = 0
        self._refresh_at = -float("inf")

    async def read(self, metadata: Metadata) -> tuple[list[dict[str, str]], int]:
        """Return the damaged records, and the number of logs."""
        started_at = trio.current_time()
        if started_at >= self._refresh_at:
            self._damaged_records = [
                {"key": record.key, "why": record.why} for record in await damaged_records(metadata)
            ]
            self._log_count = await _count(metadata, NAME_PREFIX)
            took_s = trio.current_time() - started_at
            self._refresh_at = started_at + max(CACHE_S, CACHE_TIME_FACTOR * took_s)
        return self._damaged_records, self._log_count


async def _check_addresses(
    host: Host,
    bookie_rows: Sequence[BookieRow],
    proxies: Sequence[ProxyRegistration],
    listener: str,
    deadline: float,
) -> list[HealthCondition]:
    """Return a condition for each registered node that cannot be reached at its address from this machine."""
    conditions: list[HealthCondition] = []
    limiter = trio.CapacityLimiter(DIALED_AT_ONCE)

    async def check(node: BookieRegistration | ProxyRegistration, address: Address) -> None:
        async with limiter:
            try:
                hello = await identify_node(host, address, dial_s)
            except (NotAllowed, NotAuthenticated, TooBusy):
                return  # the node answers
            except DistributedLogError as error:
                problem = str(error)
            else:
                if hello.node_id == node.id:
                    return
                problem = f"{describe_node(hello)} answers there"
        shown_address = format_address(address)
        if isinstance(node, BookieRegistration):
            bookie_condition = condition(
                Code.BOOKIE_UNANSWERED, address=shown_address, error=problem
            )
            conditions.append(bookie_condition.about(bookie=node.id))
        else:
            name = f"{node.kind} proxy {node.label or node.id}"
            conditions.append(
                condition(Code.PROXY_UNANSWERED, proxy=name, address=shown_address, error=problem)
            )

    nodes: list[BookieRegistration | ProxyRegistration] = [
        *(one for _, one in bookie_rows if one is not None),
        *proxies,
    ]
    remaining_s = min(DIALS_S, max(0.0, deadline - trio.current_time()))
    dial_s = min(DIAL_S, remaining_s / 2)  # a node that does not answer is detected in time
    with trio.move_on_after(remaining_s):
        async with trio.open_nursery() as nursery:
            for one in nodes:
                address = one.address(listener)
                if address is not None:
                    nursery.start_soon(check, one, address)
    return sorted(conditions, key=lambda one: (one.code, one.bookie, one.text("proxy")))


async def _proxies(metadata: Metadata) -> list[ProxyRegistration]:
    registrations = []
    async for item in Scan(metadata, PROXY_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):  # counted as damaged records
            registrations.append(ProxyRegistration.decode(item.key, item.value))
    return registrations


def _no_quorum(members: Sequence[MemberStatus]) -> HealthCondition:
    answering = sum(member.alive for member in members)
    return condition(Code.NO_METADATA_QUORUM, answering=answering, members=len(members))


async def _under_replicated(metadata: Metadata) -> list[dict[str, Any]]:
    """Return the records of ledgers that lack copies."""
    records = []
    async for item in Scan(metadata, keys.MISSING_RANGES_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):  # counted as damaged records
            records.append(_missing_record_row(item))
    return records


async def status(
    metadata: MetadataClient,
    timeout_s: float,
    cache: StatusCache | None = None,
    host: Host | None = None,
    *,
    now_ms: int = 0,
) -> dict[str, Any]:
    """Return the status of the cluster by the keys of `dlog status`.

    It works with nodes offline and without a quorum.

    Args:
        metadata: The metadata client.
        timeout_s: The time limit.
        cache: Kept by a program that calls this repeatedly.
        host: The machine from which to connect to the registered bookies and proxies, to check whether they
            answer; None to skip this check.
        now_ms: The wall time, which decides whether a pause of repair has ended.

    Raises:
        NotAllowed: The client has no right to read the metadata.
        NotAuthenticated: The client's credentials were rejected.
    """
    deadline = trio.current_time() + timeout_s
    members = await metadata.status()
    result: dict[str, Any] = {
        "healthy": False,
        "health": "",
        "conditions": [],
        "reasons": [],
        "metadata": [_member_row(member) for member in members],
        "bookies": [],
        "logs": None,
        "under_replicated": [],
        "damaged_records": [],
        "versions": None,
    }
    conditions = conditions_of_members(members)
    error: DistributedLogError | None = None
    has_leader = any(member.alive and member.role == MemberRole.LEADER for member in members)
    # Only half of the time, because a status without a quorum is also a result.
    with trio.move_on_after(
        timeout_s / 2 if has_leader else min(timeout_s / 2, LEADERLESS_S)
    ) as scope:
        try:
            bookie_rows = await read_bookies(metadata, metadata.listener)
            result["bookies"] = [row for row, _ in bookie_rows]
            await _add_drains(metadata, result["bookies"])
            result["under_replicated"] = await _under_replicated(metadata)
            result["damaged_records"], logs = await (cache or StatusCache()).read(metadata)
            cluster_conditions = await _cluster_conditions(metadata, bookie_rows, result, now_ms)
            proxies = await _proxies(metadata)
            nodes = node_versions(members, bookie_rows, proxies)
            cluster_conditions += await _versions(metadata, nodes, result)
            result["logs"] = logs
        except (NotAllowed, NotAuthenticated):
            raise  # a missing right is not a problem of the cluster
        except DistributedLogError as caught:
            error = caught
    if error is not None or scope.cancelled_caught:
        conditions.append(_no_quorum(members))
    else:
        conditions += cluster_conditions
        if (
            host is not None
        ):  # outside of the scope above, because a silent node is not a lost quorum
            conditions += await _check_addresses(
                host, bookie_rows, proxies, metadata.listener, deadline
            )
    labels = {row["id"]: row["label"] for row in result["bookies"]}
    return {**result, **_health_rows(conditions, labels)}


async def _cluster_conditions(
    metadata: Metadata, bookie_rows: list[BookieRow], result: dict[str, Any], now_ms: int
) -> list[HealthCondition]:
    """Return the conditions of deletions, repair, ledgers, placement and bookies.

    They are based on the rows in ``result``.
    """
    conditions: list[HealthCondition] = []
    if reason := await hold_reason(metadata):
        conditions.append(condition(Code.DELETIONS_HELD, cause=reason))
    repair_settings = await usable_repair_settings(metadata)
    if repair_settings.is_paused(now_ms):
        conditions.append(condition(Code.REPAIR_PAUSED, until=repair_settings.pause_end))
    thin_ledgers = await _thin_ledgers(metadata, result)
    if thin_ledgers:
        conditions.append(
            condition(Code.ONE_COPY_LEFT, ledgers=len(thin_ledgers), ledger=thin_ledgers[0])
        )
    placement: PlacementStatus | None = None
    with suppress(CorruptData, UnsupportedFormat):  # an unreadable policy is a damaged record
        placement = await placement_status(metadata)
        conditions += await placement_conditions(metadata, placement)
    return conditions + conditions_of_bookies(bookie_rows, placement, result)


def unknown(error: str) -> dict[str, Any]:
    """Return the status if no metadata node answers; ``error`` is the reason for people."""
    empty = ("metadata", "bookies", "under_replicated", "damaged_records")
    return {
        **_health_rows([condition(Code.NO_METADATA_ANSWER, error=error)], {}),
        "logs": None,
        "versions": None,
        **{key: list[Any]() for key in empty},
    }


async def _versions(
    metadata: Metadata, nodes: Sequence[NodeVersion], result: dict[str, Any]
) -> list[HealthCondition]:
    """Set ``versions`` in ``result``, and return the conditions that follow from the versions of nodes."""
    finalized: Version | None = None
    with suppress(CorruptData, UnsupportedFormat):  # an unreadable version is a damaged record
        finalized = (await read_cluster_version(metadata)).finalized
    result["versions"] = {
        "finalized": None if finalized is None else str(finalized),
        "nodes": nodes_by_version(nodes),
    }
    return version_conditions(finalized, nodes)


def _health_rows(
    conditions: Sequence[HealthCondition], labels: Mapping[str, str]
) -> dict[str, Any]:
    ordered, worst_severity = worst_first(conditions), worst_of(conditions)

    def named(bookie: str) -> str:
        return f"{labels[bookie]} ({bookie})" if bookie in labels else bookie

    return {
        "healthy": worst_severity is Severity.INFO,
        "health": worst_severity.health,
        "conditions": as_json(ordered, named),
        "reasons": texts_of(ordered, named),
    }


def conditions_of_members(members: Sequence[MemberStatus]) -> list[HealthCondition]:
    """Return the conditions of the metadata nodes, found here or reported by them."""
    conditions: list[HealthCondition] = []
    lost_majority = majority_lost(members)
    if lost_majority is not None:
        conditions.append(lost_majority)
    replaceable = int(lost_majority is None)
    is_forming = bool(members) and all(
        voter.role == MemberRole.EMPTY or not voter.alive for voter in members
    )
    if is_forming and any(voter.role == MemberRole.EMPTY for voter in members):
        conditions.append(condition(Code.NO_CLUSTER_FORMED))
    for member in members:
        own_condition: HealthCondition | None = None
        if not member.alive:
            own_condition = condition(
                Code.METADATA_NODE_DOWN, address=member.address, error=member.role_detail
            )
        elif member.role == MemberRole.EMPTY and not is_forming:
            own_condition = condition(
                Code.METADATA_NODE_EMPTY, address=member.address, replaceable=replaceable
            )
        elif member.role == MemberRole.DAMAGED:
            own_condition = condition(
                Code.METADATA_NODE_DAMAGED, error=member.role_detail, replaceable=replaceable
            )
        elif member.role == MemberRole.LEARNER:
            own_condition = condition(Code.METADATA_NODE_LEARNER)
        reported = (() if own_condition is None else (own_condition,)) + member.conditions
        conditions += [voter.about(node=member.name) for voter in reported]
    return conditions


def conditions_of_bookies(
    bookie_rows: Sequence[BookieRow],
    placement: PlacementStatus | None,
    status_values: dict[str, Any],
) -> list[HealthCondition]:
    """Return the conditions of bookies and their ledgers.

    Args:
        bookie_rows: The bookies.
        placement: The placement policy; None if its record is unreadable.
        status_values: The status, with ``bookies``, ``under_replicated`` and ``damaged_records``.
    """
    candidates = _candidates(bookie_rows)
    writable = sum(not candidate.is_unavailable for candidate in candidates)
    conditions = _conditions_of_placement(candidates, placement)
    running = [row for row, _ in bookie_rows if row["running"]]
    # An older version does not state whether it repairs.
    is_repair_running = any(row["repairs"] is not False for row in running)
    if running and not is_repair_running:
        conditions.append(condition(Code.NO_REPAIR))
    away_count = len(bookie_rows) - len(running)
    no_repair_reason = _no_repair_reason(
        away_count, len(bookie_rows), writable, is_repair_running=is_repair_running
    )
    spare_bookies = failures_tolerated(DEFAULT_QUORUMS, candidates)
    for row, candidate in bookie_rows:
        own_condition = _bookie_condition(
            row, no_repair_reason, spare_bookies, has_enough_writable=writable >= _writable_needed()
        )
        if own_condition is not None:
            conditions.append(own_condition.about(bookie=row["id"]))
        if candidate is not None:
            conditions += [
                reported.about(bookie=row["id"])
                for reported in _reported_conditions(row, candidate.conditions)
            ]
    if under_replicated := status_values["under_replicated"]:
        running_ids = {row["id"] for row in running}
        lacking_bookies = {
            missing["bookie"] for note in under_replicated for missing in note["missing_ranges"]
        }
        is_healing = is_repair_running and (lacking_bookies <= running_ids or not no_repair_reason)
        conditions.append(
            condition(
                Code.UNDER_REPLICATED,
                Severity.HEALING if is_healing else Severity.DEGRADED,
                ledgers=len(under_replicated),
            )
        )
    if damaged := status_values["damaged_records"]:
        conditions.append(
            condition(Code.DAMAGED_RECORDS, records=len(damaged), key=damaged[0]["key"])
        )
    return conditions


def _conditions_of_placement(
    candidates: Sequence[Candidate], placement: PlacementStatus | None
) -> list[HealthCondition]:
    """Return a condition if no log can be created, or none after the loss of one more domain."""
    at_limit = None if placement is None else placement.condition()
    policy = None if placement is None else placement.policy
    if can_place(DEFAULT_QUORUMS, candidates, policy):
        return [] if at_limit is None else [at_limit]
    preferred = None if policy is None else policy.as_preference()
    if at_limit is not None and can_place(DEFAULT_QUORUMS, candidates, preferred):
        return [at_limit.with_severity(Severity.DOWN)]
    writable = sum(not candidate.is_unavailable for candidate in candidates)
    return [
        condition(
            Code.NO_NEW_LEDGERS, writable=writable, bookies=len(candidates), **_default_quorums()
        )
    ]


def _default_quorums() -> dict[str, int]:
    return {
        "ensemble": DEFAULT_QUORUMS.ensemble_size,
        "write_quorum": DEFAULT_QUORUMS.write_quorum,
        "ack_quorum": DEFAULT_QUORUMS.ack_quorum,
    }


def _writable_needed() -> int:
    return DEFAULT_QUORUMS.ensemble_size


def _no_repair_reason(
    away_count: int, bookie_count: int, writable_count: int, *, is_repair_running: bool
) -> str:
    """Return why the copies of a failed bookie are not made elsewhere, for people; "" if they are."""
    if not is_repair_running:
        return "no bookie runs repair"
    if is_majority_away(away_count, bookie_count):
        return "more than half of the bookies are offline"
    if writable_count < _writable_needed():
        return "no other bookie can take its place"
    return ""


def _bookie_condition(
    row: dict[str, Any], no_repair_reason: str, spare: int, *, has_enough_writable: bool
) -> HealthCondition | None:
    """Return the condition of a bookie as a whole."""
    if row["draining"]:
        return _drain_condition(row)
    if row["state"] == "read-only":
        return condition(Code.BOOKIE_READ_ONLY)
    if row["running"]:
        return None
    missing_ledgers = row["ledgers_missing"]
    if not missing_ledgers and has_enough_writable:
        return condition(Code.BOOKIE_DOWN_UNUSED)
    if not no_repair_reason:
        return condition(Code.BOOKIE_DOWN, ledgers=missing_ledgers)
    return condition(
        Code.BOOKIE_DOWN_NO_REPLACEMENT,
        ledgers=missing_ledgers,
        spare=spare,
        cause=no_repair_reason,
    )


def _reported_conditions(
    row: dict[str, Any], conditions: Sequence[HealthCondition]
) -> list[HealthCondition]:
    """Return a bookie's own conditions. Those of a drained bookie are harmless."""
    if not row["draining"]:
        return list(conditions)
    remaining = [one for one in conditions if one.code != Code.READ_ONLY_REQUESTED]
    is_drained = row["drain"] is not None and not row["drain"]["ledgers"]
    return [one.with_severity(Severity.INFO) for one in remaining] if is_drained else remaining


def _drain_condition(row: dict[str, Any]) -> HealthCondition:
    """Return the progress of a bookie that is being decommissioned."""
    drain, running = row["drain"], int(row["running"])
    if drain is None:
        drain = {"ledgers": row["ledgers"], "stuck": 0, "ledger": None, "why": ""}
    if not drain["ledgers"]:
        return condition(Code.BOOKIE_DRAINED, running=running)
    ledger = -1 if drain["ledger"] is None else drain["ledger"]
    return condition(
        Code.BOOKIE_LEAVING,
        Severity.DEGRADED if drain["stuck"] else Severity.HEALING,
        ledgers=drain["ledgers"],
        stuck=drain["stuck"],
        ledger=ledger,
        cause=drain["why"],
        running=running,
    )


async def _thin_ledgers(metadata: Metadata, status_values: dict[str, Any]) -> list[int]:
    """Return ledgers of which some entry has at most one reachable copy, by their records.

    Only ledgers with two or more bookies that are offline or lack entries are checked, up to
    `CHECKED_LEDGERS_MAX`.
    """
    bad_bookies: dict[int, set[str]] = {}
    for recorded in status_values["under_replicated"]:
        for missing_range in recorded["missing_ranges"]:
            bad_bookies.setdefault(recorded["ledger"], set()).add(missing_range["bookie"])
    for bookie in status_values["bookies"]:
        if bookie["ledgers_missing"]:
            async for item in Scan(metadata, keys.bookie_ledgers_prefix(bookie["id"])):
                with suppress(CorruptData):
                    bad_bookies.setdefault(keys.ledger_id_of(item.key), set()).add(bookie["id"])
    suspect_ledgers = [
        ledger for ledger, missing in sorted(bad_bookies.items()) if len(missing) > 1
    ]
    thin: list[int] = []
    for ledger_id in suspect_ledgers[:CHECKED_LEDGERS_MAX]:
        record = await metadata.get(keys.ledger_key(ledger_id))
        if record is None:
            continue
        with suppress(CorruptData, UnsupportedFormat):
            ledger = LedgerMetadata.decode(record.key, record.value)
            copies = min(
                ledger.striping.write_quorum - len(bad_bookies[ledger_id] & set(fragment.bookies))
                for fragment in ledger.ensembles
            )
            if copies <= 1 and ledger.last_entry != NO_ENTRY:
                thin.append(ledger_id)
    return thin


def majority_lost(members: Sequence[MemberStatus]) -> HealthCondition | None:
    """Return a condition if so many voters lost their data that no node can be added any more.

    Adding a node is a change of the quorum, which a majority of its voters must store.
    """
    voters = [member for member in members if member.is_voter]
    lost_names = [member.name for member in voters if member.lost_data]
    is_formed = any(member.role != MemberRole.EMPTY for member in voters)
    if len(voters) - len(lost_names) > len(voters) // 2 or not is_formed:
        return None
    return condition(
        Code.METADATA_MAJORITY_LOST,
        lost=len(lost_names),
        voters=len(voters),
        names=", ".join(lost_names),
    )


def _address(registration: BookieRegistration, listener: str) -> str | None:
    bookie_address = registration.address(listener)
    return None if bookie_address is None else format_address(bookie_address)


def _member_row(member: MemberStatus) -> dict[str, Any]:
    version = member_version(member)
    return {
        "name": member.name,
        "address": member.address,
        "role": member.role if member.alive else MemberRole.UNREACHABLE.value,
        "term": member.term,
        "applied": member.applied,
        "alive": member.alive,
        "version": None if version is None else shown_version(version),
        "conditions": as_json(member.conditions),
    }


def _missing_record_row(item: KeyValue) -> dict[str, Any]:
    missing_ranges = decode_missing_ranges(item.value)
    return {
        "ledger": keys.ledger_id_of(item.key),
        "missing_ranges": [
            {"bookie": missing.bookie, "first": missing.first, "to": missing.end}
            for missing in missing_ranges
        ],
    }
