"""The cluster as its metadata shows it: bookies, holes, members, and whether that is well."""

import enum
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import trio

from ..bookie.rot import NO_GOOD_COPY
from ..ledger import holes, keys
from ..ledger.metadata import NO_ENTRY, LedgerMetadata
from ..ledger.registration import BookieRegistration
from ..metadata.client import MetadataClient
from ..metadata.interface import MemberStatus, Metadata, Scan
from ..metadata.transaction import KeyValue
from ..runtime.errors import (
    CorruptData,
    DistributedLogError,
    NotAllowed,
    NotAuthenticated,
    UnsupportedFormat,
)
from ..runtime.reasons import HEALED, HEALING
from .bookie_names import name_order
from .config import format_address
from .cookie import decode_cookie
from .counted import counted
from .damaged import damaged_records
from .leaving import how_far
from .placing import standing, told
from .restored import RESUME, why_held

NAME_PREFIX = b"name/"
UNREACHABLE = "unreachable"
EMPTY = "waiting, empty"
LEADERLESS_S = 1.5
"""An election is long over then: without a leader a status does not wait any longer."""
DRAINS_MAX = 5
"""Bookies that are to leave of which a status says what they wait for."""
DRAIN_LEDGERS_MAX = 50
"""Of each it looks at so many ledgers."""
THIN_MAX = 500
"""Ledgers whose records a status reads, to know how many copies are left."""
SELDOM_S = 10.0
SELDOM_REST = 50
"""Who looks each second has damaged records and logs looked for after so long, and so many times as long as
that took: with 10,000 logs it was four fifths of a look."""
WRITABLE_BOOKIES_MIN = 2
"""Of the default quorums 3/3/2: with fewer no new ledger can be made (H22b)."""


async def bookies(metadata: Metadata, listener: str = "") -> list[dict[str, Any]]:
    """Every bookie that has a cookie, down ones included, in the order of their names.

    Addresses are those for who came in on ``listener``.
    """
    live: dict[str, BookieRegistration] = {}
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):  # counted among the damaged records
            live[keys.bookie_id_of(item.key)] = BookieRegistration.decode(item.key, item.value)
    leaving = {item.key async for item in Scan(metadata, keys.LEAVING_PREFIX)}
    found = []
    async for item in Scan(metadata, keys.COOKIE_PREFIX):
        try:
            bookie_id = keys.bookie_id_of(item.key)
            label = decode_cookie(item.key, item.value)["label"]
        except (CorruptData, UnsupportedFormat):
            continue
        one, missing = live.get(bookie_id), 0
        if one is None:  # each ledger whose record names it misses a copy
            missing = await _count(metadata, keys.on_prefix(bookie_id))
        found.append(
            {
                "id": bookie_id,
                "label": label,
                "address": None if one is None else _address(one, listener),
                "state": _state(one, keys.leaving_key(bookie_id) in leaving),
                "ledgers_missing": missing,
                "ledgers": None if one is None else one.ledgers,
                "used_bytes": None if one is None else one.used_bytes,
                "free_bytes": None if one is None else one.free_bytes,
                "rack": None if one is None else one.rack,
                "reasons": [] if one is None else list(one.reasons),
                "rot": None if one is None else _rot(one),
                "repairs": None if one is None else one.pulls,
                "to_leave": keys.leaving_key(bookie_id) in leaving,
                "drain": None,
            }
        )
    return sorted(found, key=lambda one: (name_order(one["label"]), one["id"]))


def _state(one: BookieRegistration | None, leaving: bool) -> str:
    if one is None:
        return "down"
    return "leaving" if leaving else "read-only" if one.read_only else "up"


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


class Health(enum.IntEnum):
    """How well a cluster is; the worst of its reasons decides."""

    HEALTHY = 0
    """All copies are there, and sound, as far as anybody knows. What was healed lately is told too."""
    HEALING = 1
    """Something misses or rotted, and is being mended."""
    DEGRADED = 2
    """Something waits for somebody."""
    AT_RISK = 3
    """Some entry has one sound copy that can be reached, or none."""
    DOWN = 4
    """Writes or reads fail."""

    @property
    def word(self) -> str:
        """For people and scripts."""
        return self.name.lower().replace("_", " ")


class Findings:
    """What is wrong with a cluster, the worst first."""

    def __init__(self) -> None:
        self._found: list[tuple[Health, str, str]] = []

    def add(self, health: Health, reason: str, about: str = "") -> None:
        """One line; ``about``: the id of the bookie that it is about.

        Names in it are others': what would move a terminal's cursor is taken out.
        """
        line = "".join(c if c.isprintable() else "?" for c in reason)
        self._found.append((health, line, about))

    @property
    def health(self) -> Health:
        """Of the worst."""
        return max((health for health, _, _ in self._found), default=Health.HEALTHY)

    def reasons(self) -> list[tuple[str, str]]:
        """The lines, and what each is about; those that are equally bad in the order of their finding."""
        worst_first = sorted(self._found, key=lambda each: -each[0])
        return [(reason, about) for _, reason, about in worst_first]


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


async def status(
    metadata: MetadataClient, timeout_s: float, seldom: Seldom | None = None
) -> dict[str, Any]:
    """The keys of `dlog status`. Also with nodes down, also without a quorum: then the reasons say so.

    ``seldom``: of who asks again and again. Raises `NotAllowed` and `NotAuthenticated`.
    """
    members = await metadata.status()
    found: dict[str, Any] = {
        "healthy": False,
        "health": "",
        "reasons": [],
        "about": [],
        "metadata": [_member(member) for member in members],
        "bookies": [],
        "logs": None,
        "under_replicated": [],
        "damaged_records": [],
        "placement": [],
    }
    findings = Findings()
    _look_at_members(members, findings)
    error: DistributedLogError | None = None
    held = ""
    led = any(member.alive and member.role == "leader" for member in members)
    # Half of the time: a status without a quorum is an answer too.
    with trio.move_on_after(timeout_s / 2 if led else min(timeout_s / 2, LEADERLESS_S)) as scope:
        try:
            found["bookies"] = await bookies(metadata, metadata.listener)
            await _see_drains(metadata, found["bookies"])
            async for item in Scan(metadata, keys.UNDER_PREFIX):
                with suppress(CorruptData, UnsupportedFormat):
                    found["under_replicated"].append(_note(item))
            damaged, logs = await (seldom or Seldom()).read(metadata)
            found["damaged_records"] = damaged
            held = await why_held(metadata)
            found["logs"] = logs
            thin = await _thin_ledgers(metadata, found)
            with suppress(CorruptData, UnsupportedFormat):  # of the policy: a damaged record
                where = await standing(metadata)
                if warning := where.warning():
                    findings.add(Health.DOWN if where.stops else Health.DEGRADED, warning)
                found["placement"] = await told(metadata, where)
        except (NotAllowed, NotAuthenticated):
            raise  # that one may not see it says nothing of how the cluster is
        except DistributedLogError as caught:
            error = caught
    if error is not None or scope.cancelled_caught:
        alive = [member for member in members if member.alive]
        findings.add(
            Health.DOWN,
            f"no metadata quorum: {len(alive)} of {len(members)} nodes answer, and no leader does;"
            " nothing can be opened, created or rolled",
        )
    else:
        if held:
            then = "" if RESUME in held else f'; look, then: "{RESUME}"'  # who restored says so
            findings.add(Health.DEGRADED, f"nothing is deleted: {held}{then}")
        _look_at_bookies(found, findings)
        if thin:
            findings.add(
                Health.AT_RISK,
                f"{counted(len(thin), 'ledger has', 'ledgers have')} entries with at most one copy that can"
                f" be reached, such as ledger {thin[0]}",
            )
    found["reasons"] = [reason for reason, _ in findings.reasons()]
    found["about"] = [about for _, about in findings.reasons()]
    found["health"] = findings.health.word
    found["healthy"] = findings.health is Health.HEALTHY
    return found


def unknown(why: str) -> dict[str, Any]:
    """What `status` gives where not one metadata node answers: nobody knows more than ``why``."""
    empty = ("metadata", "bookies", "under_replicated", "damaged_records", "placement")
    return {
        "healthy": False,
        "health": Health.DOWN.word,
        "reasons": [why],
        "about": [""],
        "logs": None,
        **{key: list[Any]() for key in empty},
    }


def _look_at_members(members: Sequence[MemberStatus], findings: Findings) -> None:
    gone = disks_lost_for_good(members)
    if gone:
        findings.add(Health.DOWN, gone)
    forming = bool(members) and all(one.role == EMPTY or not one.alive for one in members)
    if forming and any(one.role == EMPTY for one in members):
        findings.add(
            Health.DOWN,
            "no cluster has been formed: the metadata nodes wait until all listed ones answer with one list",
        )
    for member in members:
        if not member.alive:
            why = f" ({member.role})" if member.role != UNREACHABLE else ""
            findings.add(
                Health.DEGRADED,
                f"metadata node {member.name} at {member.address} does not answer{why}",
            )
        elif member.role == EMPTY and not forming:
            findings.add(
                Health.DEGRADED,
                f"metadata node {member.name} at {member.address} is empty and waits to be let in"
                + (
                    ""
                    if gone
                    else f': if its disk is lost for good, "dlog metadata replace {member.name}"'
                ),
            )
        elif member.role.startswith("damaged"):
            findings.add(
                Health.DEGRADED,
                f"metadata node {member.name} takes no part ({member.role})"
                + (
                    ": keep its directory"
                    if gone
                    else ": move its directory away, start it empty, and"
                    f' "dlog metadata replace {member.name}"'
                ),
            )
        elif member.role == "learner":
            findings.add(
                Health.HEALING,
                f"metadata node {member.name} is being let in, and does not vote yet",
            )
        for reason in member.reasons:
            findings.add(Health.DEGRADED, f"metadata node {member.name}: {reason}")


def _look_at_bookies(found: dict[str, Any], findings: Findings) -> None:
    writable = [bookie for bookie in found["bookies"] if bookie["state"] == "up"]
    if len(writable) < WRITABLE_BOOKIES_MIN:
        findings.add(
            Health.DOWN,
            f"{len(writable)} of {counted(len(found['bookies']), 'bookie takes', 'bookies take')} entries,"
            f" a new ledger needs {WRITABLE_BOOKIES_MIN}: writes stop at the next roll",
        )
    live = [bookie for bookie in found["bookies"] if bookie["state"] != "down"]
    if live and not any(bookie["repairs"] for bookie in live):
        findings.add(Health.DEGRADED, "no bookie repairs: all are started with repair = false")
    for bookie in found["bookies"]:
        name, about = f"bookie {bookie['label']} ({bookie['id']})", bookie["id"]
        if bookie["state"] == "down":
            findings.add(
                Health.DEGRADED,
                f"{name} is down"
                f" ({counted(bookie['ledgers_missing'], 'ledger misses', 'ledgers miss')} its copies)",
                about,
            )
        elif bookie["state"] == "read-only":
            findings.add(Health.DEGRADED, f"{name} takes no new entries", about)
        if bookie["to_leave"]:
            findings.add(*_drain(bookie["drain"], name), about)
        for reason in bookie["reasons"]:
            health = Health.HEALING if reason.startswith(HEALING) else Health.DEGRADED
            if reason.startswith(HEALED):  # told, and nothing is wrong any more
                health = Health.HEALTHY
            if bookie["rot"]["without_a_good_copy"] and reason.startswith(NO_GOOD_COPY):
                health = Health.AT_RISK
            findings.add(health, f"{name}: {reason}", about)
    if found["under_replicated"]:
        up = {bookie["id"] for bookie in found["bookies"] if bookie["state"] != "down"}
        named = {hole["bookie"] for note in found["under_replicated"] for hole in note["holes"]}
        findings.add(
            Health.HEALING if named <= up else Health.DEGRADED,
            f"{counted(len(found['under_replicated']), 'ledger misses', 'ledgers miss')} copies of some"
            " entries",
        )
    if found["damaged_records"]:
        first = found["damaged_records"][0]["key"]
        findings.add(
            Health.DEGRADED,
            f"damaged records: {len(found['damaged_records'])} in the metadata store, such as {first}",
        )


def _drain(drain: dict[str, Any] | None, name: str) -> tuple[Health, str]:
    """How far a bookie is that is to leave, and what it waits for."""
    if drain is None:
        return Health.HEALING, f"{name} is to leave"
    if not drain["ledgers"]:
        return Health.HEALING, f"{name} is to leave, and holds nothing any more: it may be stopped"
    example = "" if drain["ledger"] is None else f", such as {drain['ledger']}: {drain['why']}"
    return (
        Health.DEGRADED if drain["stuck"] else Health.HEALING,
        f"{name} is to leave, and {counted(drain['ledgers'], 'ledger is', 'ledgers are')} on it{example}",
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
        if bookie["state"] == "down" and bookie["ledgers_missing"]:
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


def disks_lost_for_good(members: Sequence[MemberStatus]) -> str:
    """What to do when so many voters lost their data that none can be let in again; "" while some can.

    Letting a node in is a change of the quorum, which a majority of its voters must store.
    """
    voters = [member for member in members if member.role not in ("learner", "removed")]
    lost = [
        member.name
        for member in voters
        if member.role == EMPTY or member.role.startswith("damaged")
    ]
    if len(voters) - len(lost) > len(voters) // 2 or all(one.role == EMPTY for one in voters):
        return ""  # the latter is a cluster that has not been formed yet
    return (
        f"{len(lost)} of {len(voters)} metadata nodes have lost their data ({', '.join(lost)}): without a"
        " majority nobody can be let in. Put a directory of one of them back if there is one, else go on with"
        ' one node or a save; docs/operations.md, "Most of the metadata nodes have lost their disks"'
    )


def _address(one: BookieRegistration, listener: str) -> str | None:
    place = one.address(listener)
    return None if place is None else format_address(place)


def _member(member: MemberStatus) -> dict[str, Any]:
    return {
        "name": member.name,
        "address": member.address,
        "role": member.role if member.alive else UNREACHABLE,  # what it refused is in the reasons
        "term": member.term,
        "applied": member.applied,
        "alive": member.alive,
        "reasons": list(member.reasons),
    }


def _note(item: KeyValue) -> dict[str, Any]:
    found = holes.decode(item.value)
    return {
        "ledger": keys.ledger_id_of(item.key),
        "holes": [{"bookie": hole.bookie, "first": hole.first, "to": hole.to} for hole in found],
    }
