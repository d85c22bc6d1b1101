"""Check the identity of a bookie, and that its disks have the newest data of that bookie (H6).

The identity is stored in three places: ``FORMAT`` on the index disk, ``FORMAT`` on the journal disk, and the
cookie ``cookie/<id>`` in the metadata store. Each start increases the counters of all three, in this order. A
disk whose counter is behind the cookie is an older copy. A disk without the identity of the others is
missing, or belongs to another bookie.

A bookie with such a disk would answer "no such entry" for entries that it had acknowledged, so it is refused.
With emptied disks, a new bookie is created, never the old one.

The cookie also stores the principal of the first certificate that the bookie presented. Afterwards, the
bookie does not start with another bookie's certificate (H227). An older cookie without a principal receives
the one of the next start, once, and an event reports this.

After the metadata was restored from a backup, the cookies are behind the disks. Such a cookie is raised once
to the counter on the disks. A bookie without a cookie is admitted while deletions are on hold (`gc_hold.py`,
H104).

Each start has a random ID, which is stored on the disks before it is stored in the cookie. A start that is
killed may leave a pending request, which takes effect after the next start has read the cookie. The next
start recognizes its own earlier request by this ID.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...bookie.disk.disk_reserve import START_BYTES, START_ROLE, free_reserve, restore_start_reserve
from ...ledger.model import ledger_keys as keys
from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, KeyValue, Put, Transaction
from ...runtime.disk.atomic_file import TEMPORARY_SUFFIX
from ...runtime.disk.node_identity import (
    FILE_NAME,
    NodeIdentity,
    load_identity,
    new_node_id,
    store_identity,
)
from ...runtime.interfaces.errors import DiskFull, ForeignData
from ...runtime.interfaces.host import Disk
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import decode_stored, fields, number, text
from ..declarations.events import BOUND
from .gc_hold import count_restores, hold_reason

START_IDS_MAX = 8
"""The number of start IDs on the disks.

It limits how many consecutive starts may be killed before their cookie is stored.
"""
UNFINISHED_FILE_NAME = FILE_NAME + TEMPORARY_SUFFIX
"""The file that remains if a first start is killed while it stores the identity."""
_COOKIE = fields(
    {
        "start": (text(), ""),
        "label": (text(4096), ""),
        "cluster": (text(), ""),
        "restores": (number(), 0),
        "principal": (text(), ""),
    },
    incarnation=number(),
)
WRITTEN_BY = "distributedlog-py 0.1"

log = get_logger("distributedlog.cluster.coordination.cookie")


async def claim_identity(
    disks: Mapping[str, Disk],
    metadata: Metadata,
    *,
    cluster_id: str,
    label: str,
    rng: random.Random,
    principal: str = "",
) -> tuple[NodeIdentity, int]:
    """Create or verify the identity of this bookie, and count the start.

    The caller has locked the disks, and must store nothing before this call returns.

    Args:
        disks: The disks ``index`` and ``journal``.
        metadata: The metadata store.
        cluster_id: The ID of the cluster.
        label: The name of the bookie.
        rng: Generates IDs.
        principal: The principal of its certificate (``bookie/b4``); "" without a certificate.

    Returns:
        The identity, and the revision of the cookie.

    Raises:
        ForeignData: A directory is not this bookie's newest one. The message names the directory and the
            reason.
        CorruptData: An identity or the cookie is damaged.
        UnsupportedFormat: An identity or the cookie is from a newer version.
        QuorumUnreachable: No metadata quorum answered.
        DiskFull: An identity could not be stored.
        DiskFailed: A disk failed.
    """
    identities = {role: await load_identity(disks[role]) for role in ("index", "journal")}
    for role, identity in identities.items():
        _check_owner(role, identity, cluster_id)
    known_identities = [identity for identity in identities.values() if identity is not None]
    if len({identity.node_id for identity in known_identities}) > 1:
        raise ForeignData(
            f"the index directory belongs to bookie {known_identities[0].node_id},"
            f" the journal directory to bookie {known_identities[1].node_id}: give each bookie its own two"
        )
    is_disk_empty = all(_is_empty(disk) for disk in (disks["index"], disks["journal"]))
    if not known_identities:
        _refuse_unowned_files(disks)
        node_id = new_node_id(rng)
        new_identity = NodeIdentity(cluster_id, node_id, "bookie", label, 0, WRITTEN_BY)
        return await _count_start(disks, metadata, new_identity, None, rng, principal)
    cookie = await metadata.get(keys.cookie_key(known_identities[0].node_id))
    incarnations = [identity.incarnation for identity in known_identities]
    is_same_start = len(known_identities) == 2 and max(incarnations) - min(incarnations) <= 1
    if cookie is None and not is_disk_empty and is_same_start and await hold_reason(metadata):
        stored_identity = replace(known_identities[0], incarnation=min(incarnations))
        return await _count_start(disks, metadata, stored_identity, None, rng, principal)
    if cookie is None:
        if not is_disk_empty:
            raise ForeignData(
                f"bookie {known_identities[0].node_id} has no cookie in cluster {cluster_id}: it was "
                "decommissioned, or"
                " this directory belongs to another cluster; start a new bookie with an empty directory"
            )
        # A first start ended between its disks and its cookie, so nothing was ever acknowledged.
        stored_identity = replace(known_identities[0], incarnation=0)
        return await _count_start(disks, metadata, stored_identity, None, rng, principal)
    cookie_values = _read_cookie(cookie)
    _check_principal(known_identities[0].node_id, cookie_values["principal"], principal)
    cookie_starts = int(cookie_values["incarnation"])
    if (
        is_same_start
        and min(incarnations) > cookie_starts
        and cookie_values["restores"] < await count_restores(metadata)
    ):
        cookie_starts = min(incarnations)  # the cookie is older than the restored backup
    _check_starts(identities, known_identities[0].node_id, cookie_starts)
    stored_identity = replace(known_identities[0], incarnation=cookie_starts)
    return await _count_start(disks, metadata, stored_identity, cookie, rng, principal)


def _check_principal(node_id: str, bound_principal: str, principal: str) -> None:
    """Refuse a certificate with another principal than that of the cookie. Raises `ForeignData`."""
    if principal and bound_principal not in ("", principal):
        raise ForeignData(
            f"bookie {node_id} is {bound_principal} by its cookie, but its certificate is"
            f" that of {principal}: start this directory with its own --name and --tls, and {principal} with"
            " another directory"
        )


def _check_starts(
    identities: Mapping[str, NodeIdentity | None], node_id: str, cookie_starts: int
) -> None:
    """Refuse directories whose counter of starts does not match the cookie. Raises `ForeignData`."""
    for role, identity in identities.items():
        if identity is None:
            raise ForeignData(
                f"the {role} directory of bookie {node_id} is empty or missing:"
                " restore it, or start a new bookie with two empty directories"
            )
        if identity.incarnation < cookie_starts:
            raise ForeignData(
                f"the {role} directory of bookie {identity.node_id} is an older copy: it counts"
                f" {identity.incarnation} starts, the cluster {cookie_starts}; newer data is "
                "missing"
            )
        if identity.incarnation > cookie_starts + 1:
            raise ForeignData(
                f"the {role} directory of bookie {identity.node_id} counts {identity.incarnation} starts,"
                f" the cluster only {cookie_starts}: the metadata is an older copy"
            )


def cookie_guard(node_id: str, revision: int) -> Compare:
    """Return a condition that holds while no other process has started with a copy of these disks."""
    return Compare.mod_revision(keys.cookie_key(node_id), revision)


async def _count_start(
    disks: Mapping[str, Disk],
    metadata: Metadata,
    previous: NodeIdentity,
    cookie: KeyValue | None,
    rng: random.Random,
    principal: str,
) -> tuple[NodeIdentity, int]:
    bound_principal = "" if cookie is None else _read_cookie(cookie)["principal"]
    earlier_start_ids = previous.starts.split()[: START_IDS_MAX - 1]
    start_id = f"{rng.getrandbits(64):016x}"
    current = replace(
        previous,
        incarnation=previous.incarnation + 1,
        starts=" ".join([start_id, *earlier_start_ids]),
    )
    for role in ("index", "journal"):  # the index first, because the journal alone defines a bookie
        await _store_identity(disks[role], role, current)
    key = keys.cookie_key(current.node_id)
    expected = (
        Compare.version(key, 0)
        if cookie is None
        else cookie_guard(current.node_id, cookie.mod_revision)
    )
    value = pack(
        {
            "cluster": current.cluster_id,
            "incarnation": current.incarnation,
            "label": current.label,
            "start": start_id,
            "restores": await count_restores(metadata),
            "principal": bound_principal or principal,
        }
    )
    reply = await metadata.transact(Transaction((expected,), (Put(key, value),)))
    if not reply.succeeded:
        stored_cookie = reply.current[0]
        if (
            stored_cookie is not None
            and (stored_values := _read_cookie(stored_cookie)).get("start") in earlier_start_ids
        ):
            # An earlier start of these disks was killed, and its pending request took effect only now.
            counted = replace(current, incarnation=int(stored_values["incarnation"]))
            return await _count_start(disks, metadata, counted, stored_cookie, rng, principal)
        raise ForeignData(
            f"bookie {current.node_id} was just started elsewhere with a copy of this directory"
        )
    if principal and cookie is not None and not bound_principal:
        BOUND.emit(
            log,
            "bookie %s had no principal in its cookie; it now starts only with the certificate of %s",
            current.node_id,
            principal,
            bookie=current.node_id,
            principal=principal,
        )
    return current, reply.revision


async def _store_identity(disk: Disk, role: str, identity: NodeIdentity) -> None:
    """Replace the identity; on a full disk, use the space of a reserve (H28).

    Raises `DiskFull`, `DiskFailed`.

    The replaced file frees as much space as the new one uses. So the reserve for starts is created again at
    once, before any other part of this start can use the space. A bookie whose disk stays full can therefore
    start any number of times. If the reserve for starts is missing, because an older version never created
    it, the reserve of the role is used.
    """
    try:
        return await store_identity(disk, identity)
    except DiskFull:
        pass
    while await free_reserve(disk, START_ROLE, START_BYTES) or await free_reserve(
        disk, role, START_BYTES
    ):
        try:
            await store_identity(disk, identity)
        except DiskFull:
            continue
        await restore_start_reserve(disk)
        return
    await store_identity(disk, identity)  # no reserve is left


def _check_owner(role: str, identity: NodeIdentity | None, cluster_id: str) -> None:
    if identity is None:
        return
    if identity.kind != "bookie":
        raise ForeignData(
            f"the {role} directory belongs to a {identity.kind} node, not to a bookie"
        )
    if identity.cluster_id != cluster_id:
        raise ForeignData(
            f"the {role} directory belongs to bookie {identity.node_id} of cluster {identity.cluster_id};"
            f" the metadata quorum is that of cluster {cluster_id}"
        )


def _refuse_unowned_files(disks: Mapping[str, Disk]) -> None:
    for role in ("journal", "index"):
        files = [name for name in disks[role].list() if name != UNFINISHED_FILE_NAME]
        if files:
            raise ForeignData(
                f"the {role} directory has files ({files[0]}, …) but no {FILE_NAME} with their owner"
            )


def _is_empty(disk: Disk) -> bool:
    return all(name in (FILE_NAME, UNFINISHED_FILE_NAME) for name in disk.list())


def decode_cookie(key: bytes, value: bytes) -> dict[str, Any]:
    """Return the values of a cookie.

    Raises:
        CorruptData: The cookie is damaged.
    """
    keys.bookie_id_of(key)
    values: dict[str, Any] = decode_stored(value, _COOKIE, f"the cookie {keys.printable_key(key)}")
    return values


def _read_cookie(cookie: KeyValue) -> dict[str, Any]:
    return decode_cookie(cookie.key, cookie.value)
