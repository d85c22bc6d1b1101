"""The cluster as its metadata shows it: bookies, holes, members, and whether that is well."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import trio

from ..cluster.config import format_address
from ..cluster.cookie import decode_cookie
from ..cluster.damaged import damaged_records
from ..cluster.restored import why_held
from ..ledger import holes, keys
from ..ledger.registration import BookieRegistration
from ..metadata.client import MetadataClient
from ..metadata.interface import MemberStatus, Metadata, Scan
from ..metadata.transaction import KeyValue
from ..runtime.errors import CorruptData, DistributedLogError, UnsupportedFormat

NAME_PREFIX = b"name/"
UNREACHABLE = "unreachable"
EMPTY = "waiting, empty"
WRITABLE_BOOKIES_MIN = 2
"""Of the default quorums 3/3/2: with fewer no new ledger can be made (H22b)."""


async def bookies(metadata: Metadata, listener: str = "") -> list[dict[str, Any]]:
    """Every bookie that has a cookie, down ones included, in the order of ids.

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
            }
        )
    return found


def _state(one: BookieRegistration | None, leaving: bool) -> str:
    if one is None:
        return "down"
    return "leaving" if leaving else "read-only" if one.read_only else "up"


async def _count(metadata: Metadata, prefix: bytes) -> int:
    count = 0
    async for _ in Scan(metadata, prefix):
        count += 1
    return count


async def status(metadata: MetadataClient, timeout_s: float) -> dict[str, Any]:
    """The keys of `dlog status`. Also with nodes down, also without a quorum: then the reasons say so."""
    members = await metadata.status()
    found: dict[str, Any] = {
        "healthy": False,
        "reasons": [],
        "metadata": [_member(member) for member in members],
        "bookies": [],
        "logs": None,
        "under_replicated": [],
        "damaged_records": [],
    }
    reasons: list[str] = found["reasons"]
    alive = [member for member in members if member.alive]
    gone = disks_lost_for_good(members)
    if gone:
        reasons.append(gone)
    for member in members:
        if not member.alive:
            why = f" ({member.role})" if member.role != UNREACHABLE else ""
            reasons.append(f"metadata node {member.name} at {member.address} does not answer{why}")
        elif member.role == EMPTY:
            reasons.append(
                f"metadata node {member.name} at {member.address} is empty and waits to be let in"
                + (
                    ""
                    if gone
                    else f': if its disk is lost for good, "dlog metadata replace {member.name}"'
                )
            )
        elif member.role.startswith("damaged"):
            reasons.append(
                f"metadata node {member.name} takes no part ({member.role})"
                + (
                    ": keep its directory"
                    if gone
                    else ": move its directory away, start it empty, and"
                    f' "dlog metadata replace {member.name}"'
                )
            )
        elif member.role == "learner":
            reasons.append(f"metadata node {member.name} is being let in, and does not vote yet")
        reasons += [f"metadata node {member.name}: {reason}" for reason in member.reasons]
    error: DistributedLogError | None = None
    held = ""
    # Half of the time: a status without a quorum is an answer too.
    with trio.move_on_after(timeout_s / 2) as scope:
        try:
            found["bookies"] = await bookies(metadata, metadata.listener)
            async for item in Scan(metadata, keys.UNDER_PREFIX):
                with suppress(CorruptData, UnsupportedFormat):
                    found["under_replicated"].append(_note(item))
            found["damaged_records"] = [
                {"key": one.key, "why": one.why} for one in await damaged_records(metadata)
            ]
            held = await why_held(metadata)
            found["logs"] = await _count(metadata, NAME_PREFIX)
        except DistributedLogError as caught:
            error = caught
    if error is not None or scope.cancelled_caught:
        reasons.insert(
            0,
            f"no metadata quorum: {len(alive)} of {len(members)} nodes answer, and no leader does;"
            " nothing can be opened, created or rolled",
        )
        return found
    if held:
        reasons.append(f"nothing is deleted: {held}")
    writable = [bookie for bookie in found["bookies"] if bookie["state"] == "up"]
    if len(writable) < WRITABLE_BOOKIES_MIN:
        reasons.insert(
            0,
            f"{len(writable)} of {len(found['bookies'])} bookies take entries,"
            f" a new ledger needs {WRITABLE_BOOKIES_MIN}: writes stop at the next roll",
        )
    for bookie in found["bookies"]:
        if bookie["state"] == "down":
            reasons.append(
                f"bookie {bookie['label']} ({bookie['id']}) is down"
                f" ({bookie['ledgers_missing']} ledgers miss its copies)"
            )
        elif bookie["state"] == "leaving":
            reasons.append(f"bookie {bookie['label']} ({bookie['id']}) is to leave")
        elif bookie["state"] == "read-only":
            reasons.append(f"bookie {bookie['label']} ({bookie['id']}) takes no new entries")
        reasons += [
            f"bookie {bookie['label']} ({bookie['id']}): {reason}" for reason in bookie["reasons"]
        ]
    if found["under_replicated"]:
        reasons.append(f"{len(found['under_replicated'])} ledgers miss copies of some entries")
    if found["damaged_records"]:
        first = found["damaged_records"][0]["key"]
        reasons.append(
            f"damaged records: {len(found['damaged_records'])} in the metadata store, such as {first}"
        )
    found["healthy"] = not reasons
    return found


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
