"""The cluster as its metadata shows it: bookies, missing copies, metadata nodes, and health conditions."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import trio

from ...ledger.declarations.options import LedgerOptions
from ...ledger.model import ledger_keys as keys
from ...ledger.model import missing_range as holes
from ...ledger.model.bookie_registration import BookieRegistration
from ...ledger.model.ledger_metadata import NO_ENTRY, LedgerMetadata
from ...ledger.model.striping import Striping
from ...ledger.placement.ensemble_placement import (
    Candidate,
    can_place,
    ensemble_candidates,
    failures_left,
)
from ...metadata.client.metadata_client import MetadataClient
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
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    NotAllowed,
    NotAuthenticated,
    TooBusy,
    UnsupportedFormat,
)
from ...runtime.interfaces.host import Address, Host
from ...runtime.net.address_check import name_of, who_answers
from ..coordination.cookie import decode_cookie
from ..coordination.gc_hold import why_held
from ..declarations.config import format_address
from ..repair.decommission import how_far, most_are_away
from .bookie_names import name_order
from .damaged_records import damaged_records
from .placement_status import PlacementStatus, copies_together, placement_status

NAME_PREFIX = b"name/"
LEADERLESS_S = 1.5
"""An election is long over then: without a leader a status does not wait any longer."""
DRAINS_MAX = 5
"""Bookies that are to leave of which a status says what they wait for."""
DRAIN_LEDGERS_MAX = 50
"""Of each it looks at so many ledgers."""
THIN_MAX = 500
"""Ledgers whose records a status reads, to know how many copies are left."""
DIAL_S = 2.0
"""A node that does not greet within this many seconds does not answer; less if the status has less time."""
DIALS_S = 5.0
"""For all of them, within the time limit of the status. Nodes without a result by then are not reported."""
DIALED_AT_ONCE = 32
SELDOM_S = 10.0
SELDOM_REST = 50
"""Who looks each second has damaged records and logs looked for after so long, and so many times as long as
that took: with 10,000 logs it was four fifths of a look."""
_DEFAULTS = LedgerOptions()
DEFAULT_QUORUMS = Striping(_DEFAULTS.ensemble_size, _DEFAULTS.write_quorum, _DEFAULTS.ack_quorum)
"""The quorums of a log without settings. The health of a cluster is about such a log."""


async def bookies(metadata: Metadata, listener: str = "") -> list[dict[str, Any]]:
    """Return a row per bookie that has a cookie, down ones included, in the order of their names.

    Addresses are those for a client that came in on ``listener``.
    """
    found = await _read_bookies(metadata, listener)
    return [row for row, _ in found]


async def new_ledger_candidates(metadata: Metadata) -> list[Candidate]:
    """Return all bookies that a new ledger's ensemble can name."""
    return _candidates(await _read_bookies(metadata, ""))


_Read = tuple[dict[str, Any], BookieRegistration | None]
"""A row, and the registration of a bookie that runs."""


async def _read_bookies(metadata: Metadata, listener: str) -> list[_Read]:
    live: dict[str, BookieRegistration] = {}
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):  # counted among the damaged records
            live[keys.bookie_id_of(item.key)] = BookieRegistration.decode(item.key, item.value)
    leaving = {item.key async for item in Scan(metadata, keys.LEAVING_PREFIX)}
    found: list[_Read] = []
    async for item in Scan(metadata, keys.COOKIE_PREFIX):
        try:
            bookie_id = keys.bookie_id_of(item.key)
            label = decode_cookie(item.key, item.value)["label"]
        except (CorruptData, UnsupportedFormat):
            continue
        one, leaves = live.get(bookie_id), keys.leaving_key(bookie_id) in leaving
        named = 0
        if one is None or leaves:  # the ledgers whose records name it
            named = await _count(metadata, keys.on_prefix(bookie_id))
        ledgers = None if one is None else one.ledgers
        row = {
            "id": bookie_id,
            "label": label,
            "address": None if one is None else _address(one, listener),
            "state": _state(one, leaves),
            "running": one is not None,
            "ledgers_missing": named if one is None else 0,
            "ledgers": named if leaves else ledgers,
            "used_bytes": None if one is None else one.used_bytes,
            "free_bytes": None if one is None else one.free_bytes,
            "rack": None if one is None else one.rack,
            "conditions": [] if one is None else as_json(one.conditions),
            "rot": None if one is None else _rot(one),
            "repairs": None if one is None else one.pulls,
            "to_leave": leaves,
            "drain": None,
        }
        found.append((row, one))
    return sorted(found, key=lambda each: (name_order(each[0]["label"]), each[0]["id"]))


def _state(one: BookieRegistration | None, leaving: bool) -> str:
    if leaving:
        return "leaving"
    return "down" if one is None else "read-only" if one.read_only else "up"


def _candidates(read: Sequence[_Read]) -> list[Candidate]:
    """Return the candidates of a client that reaches all registered bookies."""
    return ensemble_candidates(
        [one for _, one in read if one is not None],
        [row["id"] for row, _ in read],
        [row["id"] for row, _ in read if row["to_leave"]],
        lambda bookie: {},
    )


def _rot(one: BookieRegistration) -> dict[str, int]:
    ledgers, stuck, healed = one.rot
    return {"rotten_ledgers": ledgers, "without_a_good_copy": stuck, "healed_entries": healed}


async def _see_drains(metadata: Metadata, found: list[dict[str, Any]]) -> None:
    """Of those that are to leave: how many ledgers are left, and what one waits for; stuck ones first."""
    for bookie in [one for one in found if one["to_leave"]][:DRAINS_MAX]:
        left = await how_far(metadata, bookie["id"], named=DRAIN_LEDGERS_MAX)
        waits = max(left.waiting, key=lambda one: (one.stuck, one.bytes is None), default=None)
        bookie["drain"] = {
            "ledgers": left.ledgers,
            "stuck": sum(one.stuck for one in left.waiting),
            "ledger": None if waits is None else waits.ledger,
            "why": "" if waits is None else waits.why,
        }


async def rot_of(metadata: Metadata, bookie_id: str) -> dict[str, int] | None:
    """What rotted on a bookie, by its own last words; None while it is down."""
    found = await metadata.get(keys.bookie_key(bookie_id))
    return None if found is None else _rot(BookieRegistration.decode(found.key, found.value))


async def _count(metadata: Metadata, prefix: bytes) -> int:
    count = 0
    async for _ in Scan(metadata, prefix):
        count += 1
    return count


class Seldom:
    """What a status reads and who looks each second need not read each time; see `SELDOM_S`."""

    def __init__(self) -> None:
        self._damaged: list[dict[str, str]] = []
        self._logs = 0
        self._again_at = -float("inf")

    async def read(self, metadata: Metadata) -> tuple[list[dict[str, str]], int]:
        """The damaged records, and how many logs there are."""
        begun = trio.current_time()
        if begun >= self._again_at:
            self._damaged = [
                {"key": one.key, "why": one.why} for one in await damaged_records(metadata)
            ]
            self._logs = await _count(metadata, NAME_PREFIX)
            took_s = trio.current_time() - begun
            self._again_at = begun + max(SELDOM_S, SELDOM_REST * took_s)
        return self._damaged, self._logs


async def _unanswered(
    host: Host,
    read: Sequence[_Read],
    proxies: Sequence[ProxyRegistration],
    listener: str,
    deadline: float,
) -> list[HealthCondition]:
    """Return a condition for each registered node whose address does not lead to it from here."""
    found: list[HealthCondition] = []
    places = trio.CapacityLimiter(DIALED_AT_ONCE)

    async def look(one: BookieRegistration | ProxyRegistration, address: Address) -> None:
        async with places:
            try:
                hello = await who_answers(host, address, dial_s)
            except (NotAllowed, NotAuthenticated, TooBusy):
                return  # it answers
            except DistributedLogError as error:
                why = str(error)
            else:
                if hello.node_id == one.id:
                    return
                why = f"{name_of(hello)} answers there"
        place = format_address(address)
        if isinstance(one, BookieRegistration):
            of_bookie = condition(Code.BOOKIE_UNANSWERED, address=place, error=why)
            found.append(of_bookie.about(bookie=one.id))
        else:
            name = f"{one.kind} proxy {one.label or one.id}"
            found.append(condition(Code.PROXY_UNANSWERED, proxy=name, address=place, error=why))

    nodes: list[BookieRegistration | ProxyRegistration] = [
        *(one for _, one in read if one is not None),
        *proxies,
    ]
    left_s = min(DIALS_S, max(0.0, deadline - trio.current_time()))
    dial_s = min(DIAL_S, left_s / 2)  # a silent node is known before the time is over
    with trio.move_on_after(left_s):
        async with trio.open_nursery() as nursery:
            for one in nodes:
                address = one.address(listener)
                if address is not None:
                    nursery.start_soon(look, one, address)
    return sorted(found, key=lambda one: (one.code, one.bookie, one.text("proxy")))


async def _proxies(metadata: Metadata) -> list[ProxyRegistration]:
    found = []
    async for item in Scan(metadata, PROXY_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):  # counted among the damaged records
            found.append(ProxyRegistration.decode(item.key, item.value))
    return found


def _no_quorum(members: Sequence[MemberStatus]) -> HealthCondition:
    answering = sum(member.alive for member in members)
    return condition(Code.NO_METADATA_QUORUM, answering=answering, members=len(members))


async def _under_replicated(metadata: Metadata) -> list[dict[str, Any]]:
    """Return the notes of ledgers that lack copies."""
    found = []
    async for item in Scan(metadata, keys.UNDER_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):  # counted among the damaged records
            found.append(_note(item))
    return found


async def status(
    metadata: MetadataClient,
    timeout_s: float,
    seldom: Seldom | None = None,
    host: Host | None = None,
) -> dict[str, Any]:
    """Return the keys of `dlog status`, also with nodes down, and also without a quorum.

    ``seldom`` is kept by a program that calls this repeatedly. ``host``: from which machine to dial the
    registered bookies and proxies, to see whether they answer. Raises `NotAllowed` and `NotAuthenticated`.
    """
    deadline = trio.current_time() + timeout_s
    members = await metadata.status()
    found: dict[str, Any] = {
        "healthy": False,
        "health": "",
        "conditions": [],
        "reasons": [],
        "metadata": [_member(member) for member in members],
        "bookies": [],
        "logs": None,
        "under_replicated": [],
        "damaged_records": [],
    }
    conditions = conditions_of_members(members)
    of_cluster: list[HealthCondition] = []
    error: DistributedLogError | None = None
    led = any(member.alive and member.role == MemberRole.LEADER for member in members)
    # Half of the time: a status without a quorum is an answer too.
    with trio.move_on_after(timeout_s / 2 if led else min(timeout_s / 2, LEADERLESS_S)) as scope:
        try:
            read = await _read_bookies(metadata, metadata.listener)
            found["bookies"] = [row for row, _ in read]
            await _see_drains(metadata, found["bookies"])
            found["under_replicated"] = await _under_replicated(metadata)
            found["damaged_records"], logs = await (seldom or Seldom()).read(metadata)
            if held := await why_held(metadata):
                of_cluster.append(condition(Code.DELETIONS_HELD, cause=held))
            thin = await _thin_ledgers(metadata, found)
            if thin:
                of_cluster.append(condition(Code.ONE_COPY_LEFT, ledgers=len(thin), ledger=thin[0]))
            where: PlacementStatus | None = None
            with suppress(CorruptData, UnsupportedFormat):  # of the policy: a damaged record
                where = await placement_status(metadata)
                of_cluster += await copies_together(metadata, where)
            of_cluster += conditions_of_bookies(read, where, found)
            proxies = [] if host is None else await _proxies(metadata)
            found["logs"] = logs
        except (NotAllowed, NotAuthenticated):
            raise  # that one may not see it says nothing of how the cluster is
        except DistributedLogError as caught:
            error = caught
    if error is not None or scope.cancelled_caught:
        conditions.append(_no_quorum(members))
    else:
        conditions += of_cluster
        if host is not None:  # not in the scope above: a silent node is no lost quorum
            conditions += await _unanswered(host, read, proxies, metadata.listener, deadline)
    labels = {row["id"]: row["label"] for row in found["bookies"]}
    return {**found, **_verdict(conditions, labels)}


def unknown(error: str) -> dict[str, Any]:
    """Return what `status` gives if no metadata node answers. ``error``: why, for people."""
    empty = ("metadata", "bookies", "under_replicated", "damaged_records")
    return {
        **_verdict([condition(Code.NO_METADATA_ANSWER, error=error)], {}),
        "logs": None,
        **{key: list[Any]() for key in empty},
    }


def _verdict(conditions: Sequence[HealthCondition], labels: Mapping[str, str]) -> dict[str, Any]:
    ordered, worst = worst_first(conditions), worst_of(conditions)

    def named(bookie: str) -> str:
        return f"{labels[bookie]} ({bookie})" if bookie in labels else bookie

    return {
        "healthy": worst is Severity.INFO,
        "health": worst.health,
        "conditions": as_json(ordered, named),
        "reasons": texts_of(ordered, named),
    }


def conditions_of_members(members: Sequence[MemberStatus]) -> list[HealthCondition]:
    """Return the conditions of the metadata nodes, found here or reported by them."""
    found: list[HealthCondition] = []
    lost = majority_lost(members)
    if lost is not None:
        found.append(lost)
    replaceable = int(lost is None)
    forming = bool(members) and all(
        one.role == MemberRole.EMPTY or not one.alive for one in members
    )
    if forming and any(one.role == MemberRole.EMPTY for one in members):
        found.append(condition(Code.NO_CLUSTER_FORMED))
    for member in members:
        of_member: HealthCondition | None = None
        if not member.alive:
            of_member = condition(
                Code.METADATA_NODE_DOWN, address=member.address, error=member.role_detail
            )
        elif member.role == MemberRole.EMPTY and not forming:
            of_member = condition(
                Code.METADATA_NODE_EMPTY, address=member.address, replaceable=replaceable
            )
        elif member.role == MemberRole.DAMAGED:
            of_member = condition(
                Code.METADATA_NODE_DAMAGED, error=member.role_detail, replaceable=replaceable
            )
        elif member.role == MemberRole.LEARNER:
            of_member = condition(Code.METADATA_NODE_LEARNER)
        reported = (() if of_member is None else (of_member,)) + member.conditions
        found += [one.about(node=member.name) for one in reported]
    return found


def conditions_of_bookies(
    read: Sequence[_Read], where: PlacementStatus | None, found: dict[str, Any]
) -> list[HealthCondition]:
    """Return the conditions of bookies and their ledgers.

    Args:
        read: The bookies.
        where: The placement policy, None if its record cannot be read.
        found: The status, with ``bookies``, ``under_replicated`` and ``damaged_records``.
    """
    candidates = _candidates(read)
    writable = sum(not one.down for one in candidates)
    conditions = _conditions_of_placement(candidates, where)
    running = [row for row, _ in read if row["running"]]
    repairs = any(row["repairs"] for row in running)
    if running and not repairs:
        conditions.append(condition(Code.NO_REPAIR))
    away = len(read) - len(running)
    why_not = _why_not_repaired(away, len(read), writable, repairs=repairs)
    spare = failures_left(DEFAULT_QUORUMS, candidates)
    for row, one in read:
        of_bookie = _condition_of(row, why_not, spare, enough=writable >= _enough())
        if of_bookie is not None:
            conditions.append(of_bookie.about(bookie=row["id"]))
        if one is not None:
            conditions += [
                reported.about(bookie=row["id"]) for reported in _reported(row, one.conditions)
            ]
    if noted := found["under_replicated"]:
        ids = {row["id"] for row in running}
        named = {hole["bookie"] for note in noted for hole in note["holes"]}
        heals = repairs and (named <= ids or not why_not)
        conditions.append(
            condition(
                Code.UNDER_REPLICATED,
                Severity.HEALING if heals else Severity.DEGRADED,
                ledgers=len(noted),
            )
        )
    if damaged := found["damaged_records"]:
        conditions.append(
            condition(Code.DAMAGED_RECORDS, records=len(damaged), key=damaged[0]["key"])
        )
    return conditions


def _conditions_of_placement(
    candidates: Sequence[Candidate], where: PlacementStatus | None
) -> list[HealthCondition]:
    """Return a condition if no log can be created, or none after the loss of one more domain."""
    at_limit = None if where is None else where.condition()
    policy = None if where is None else where.policy
    if can_place(DEFAULT_QUORUMS, candidates, policy):
        return [] if at_limit is None else [at_limit]
    preferred = None if policy is None else policy.preferred()
    if at_limit is not None and can_place(DEFAULT_QUORUMS, candidates, preferred):
        return [at_limit.with_severity(Severity.DOWN)]
    writable = sum(not one.down for one in candidates)
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


def _enough() -> int:
    return DEFAULT_QUORUMS.ensemble_size


def _why_not_repaired(away: int, known: int, writable: int, *, repairs: bool) -> str:
    """Return why the copies of a dead bookie are not made elsewhere, for people, or ""."""
    if not repairs:
        return "no bookie runs repair"
    if most_are_away(away, known):
        return "more than half of the bookies are down"
    if writable < _enough():
        return "no other bookie can take its place"
    return ""


def _condition_of(
    row: dict[str, Any], why_not: str, spare: int, *, enough: bool
) -> HealthCondition | None:
    """Return the condition of a bookie as a whole."""
    if row["to_leave"]:
        return _drain(row)
    if row["state"] == "read-only":
        return condition(Code.BOOKIE_READ_ONLY)
    if row["running"]:
        return None
    missing = row["ledgers_missing"]
    if not missing and enough:
        return condition(Code.BOOKIE_DOWN_UNUSED)
    if not why_not:
        return condition(Code.BOOKIE_DOWN, ledgers=missing)
    return condition(Code.BOOKIE_DOWN_NO_REPLACEMENT, ledgers=missing, spare=spare, cause=why_not)


def _reported(row: dict[str, Any], conditions: Sequence[HealthCondition]) -> list[HealthCondition]:
    """Return a bookie's own conditions. Those of a drained bookie are harmless."""
    if not row["to_leave"]:
        return list(conditions)
    rest = [one for one in conditions if one.code != Code.READ_ONLY_REQUESTED]
    drained = row["drain"] is not None and not row["drain"]["ledgers"]
    return [one.with_severity(Severity.INFO) for one in rest] if drained else rest


def _drain(row: dict[str, Any]) -> HealthCondition:
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


async def _thin_ledgers(metadata: Metadata, found: dict[str, Any]) -> list[int]:
    """Ledgers of which some entry has at most one copy that can be reached, by records and notes.

    Looked at where two bookies of a ledger are down or miss entries; the first `THIN_MAX` of them.
    """
    bad: dict[int, set[str]] = {}
    for note in found["under_replicated"]:
        for hole in note["holes"]:
            bad.setdefault(note["ledger"], set()).add(hole["bookie"])
    for bookie in found["bookies"]:
        if bookie["ledgers_missing"]:
            async for item in Scan(metadata, keys.on_prefix(bookie["id"])):
                with suppress(CorruptData):
                    bad.setdefault(keys.ledger_id_of(item.key), set()).add(bookie["id"])
    suspects = [ledger for ledger, missing in sorted(bad.items()) if len(missing) > 1]
    thin: list[int] = []
    for ledger_id in suspects[:THIN_MAX]:
        record = await metadata.get(keys.ledger_key(ledger_id))
        if record is None:
            continue
        with suppress(CorruptData, UnsupportedFormat):
            ledger = LedgerMetadata.decode(record.key, record.value)
            copies = min(
                ledger.striping.write_quorum - len(bad[ledger_id] & set(fragment.bookies))
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
    lost = [member.name for member in voters if member.lost_data]
    formed = any(member.role != MemberRole.EMPTY for member in voters)
    if len(voters) - len(lost) > len(voters) // 2 or not formed:
        return None
    return condition(
        Code.METADATA_MAJORITY_LOST, lost=len(lost), voters=len(voters), names=", ".join(lost)
    )


def _address(one: BookieRegistration, listener: str) -> str | None:
    place = one.address(listener)
    return None if place is None else format_address(place)


def _member(member: MemberStatus) -> dict[str, Any]:
    return {
        "name": member.name,
        "address": member.address,
        "role": member.role if member.alive else MemberRole.UNREACHABLE.value,
        "term": member.term,
        "applied": member.applied,
        "alive": member.alive,
        "conditions": as_json(member.conditions),
    }


def _note(item: KeyValue) -> dict[str, Any]:
    found = holes.decode(item.value)
    return {
        "ledger": keys.ledger_id_of(item.key),
        "holes": [{"bookie": hole.bookie, "first": hole.first, "to": hole.to} for hole in found],
    }
