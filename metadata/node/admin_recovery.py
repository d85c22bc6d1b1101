"""Create an admin if none is left, at the request of a majority of the metadata nodes (H238).

The operators of the nodes make the request on the disks of stopped nodes (`dlog trust rescue`), as a file
with the name of a user. A node that starts with this file sends requests to the leader, under its own
principal, until the request is granted. The leader makes the user admin when nodes that are a majority of
the voters request the same user. An audit record lists these nodes, and then they delete their files.

So a single directory or a single stolen node is not sufficient. A majority of the disks controls the
cluster in any case. The file::

    RESCUE    | xxh3_64 of the rest u64 | msgpack [format, user] |
"""

from collections.abc import Awaitable, Callable, Sequence

import trio
import xxhash

from ...runtime.declarations.health_conditions import Code, NodeConditions, condition
from ...runtime.disk.atomic_file import read_file, replace_file
from ...runtime.interfaces.errors import (
    CorruptData,
    DiskFailed,
    DistributedLogError,
    InvalidRequest,
    NotAllowed,
    ProtocolError,
    UnsupportedFormat,
)
from ...runtime.interfaces.host import Disk
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import decode_stored, number, row, text
from ..declarations.events import RESCUED
from ..model.acl_records import NAME_CHARS_MAX
from ..model.request_identity import is_name
from ..raft.quorum import majority

RECOVERY_FILE = "RESCUE"
FORMAT = 1
DIGEST_BYTES = 8
REQUEST_INTERVAL_S = 1.0
DENIED_RETRY_S = 30.0
"""Interval of the retries after a refusal, because the request may be allowed later.

For example, another user becomes admin, or the authorization mode changes.
"""
VOTE_LIFETIME_S = 2 * DENIED_RETRY_S
"""The request of a node counts for this time, because a node does not withdraw an earlier request."""
_FORM = row(number(), text(NAME_CHARS_MAX, 1))

log = get_logger("distributedlog.metadata.node.admin_recovery")


class AdminRecoveryVotes:
    """The requests of nodes, as the leader of one term has received them (pure)."""

    def __init__(self) -> None:
        self._term = 0
        self._by_node: dict[str, tuple[str, float]] = {}
        """The last request of each node, and its time."""

    def on_vote(
        self, term: int, node_id: str, user: str, voters: Sequence[str], now: float
    ) -> tuple[str, ...]:
        """Record a request. Return the nodes that request this user, or no nodes if they are not a majority.

        A node requests one user at a time. Requests of another term, or older than `VOTE_LIFETIME_S`, do
        not count.
        """
        if term != self._term:
            self._term = term
            self._by_node.clear()
        self._by_node[node_id] = (user, now)
        requesting = tuple(voter for voter in voters if self._votes_for(voter, user, now))
        return requesting if len(requesting) >= majority(len(voters)) else ()

    def _votes_for(self, node_id: str, user: str, now: float) -> bool:
        requested_user, requested_at = self._by_node.get(node_id, ("", now))
        return requested_user == user and now - requested_at <= VOTE_LIFETIME_S

    def on_done(self) -> None:
        """Drop all requests after an admin was created. Further requests start from scratch."""
        self._by_node.clear()


def decode_recovery_request(body: bytes) -> str:
    """Return the user in the content of a file after its checksum.

    Raises:
        CorruptData: The content is invalid.
        UnsupportedFormat: A newer version wrote it.
    """
    (form, *_) = decode_stored(body, row(number(), later=True), RECOVERY_FILE)
    if form != FORMAT:
        raise UnsupportedFormat(f"{RECOVERY_FILE}: format {form}, known is {FORMAT}")
    user: str = decode_stored(body, _FORM, RECOVERY_FILE)[1]
    return user


def encode_recovery_request(user: str) -> bytes:
    """Encode the content of a file after its checksum."""
    return pack([FORMAT, user])


async def store_recovery_request(disk: Disk, user: str) -> None:
    """Store a request on the disk of a stopped node, which makes it after its start.

    Raises:
        InvalidRequest: ``user`` is not a valid name.
    """
    if not is_name(user):
        raise InvalidRequest(f"not a valid user name: {user!r:.80}")
    body = encode_recovery_request(user)
    await replace_file(disk, RECOVERY_FILE, xxhash.xxh3_64_digest(body) + body)


async def load_recovery_request(disk: Disk) -> str | None:
    """Load the request on a disk. Return None if there is none.

    Raises:
        CorruptData: The file is damaged.
        UnsupportedFormat: A newer version wrote it.
    """
    content = await read_file(disk, RECOVERY_FILE)
    if content is None:
        return None
    body = content[DIGEST_BYTES:]
    if xxhash.xxh3_64_digest(body) != content[:DIGEST_BYTES]:
        raise CorruptData(f"{RECOVERY_FILE}: the checksum is wrong ({len(content)} bytes)")
    return decode_recovery_request(body)


async def request_if_configured(
    disk: Disk,
    request_admin: Callable[[str], Awaitable[tuple[str, ...]]],
    conditions: NodeConditions,
) -> None:
    """Make the request on this disk, if there is one, until it is granted. Then delete the file.

    Args:
        disk: The disk of the node.
        request_admin: Sends the request, and returns the nodes for which it was granted, or none if too few
            request it.
        conditions: The health conditions of the node.
    """
    try:
        user = await load_recovery_request(disk)
    except (CorruptData, DiskFailed, UnsupportedFormat) as error:
        log.error("the request for an admin cannot be read: %s. Repeat dlog trust rescue", error)
        return
    if user is None:
        return
    while True:
        wait_s = REQUEST_INTERVAL_S
        conditions.clear(Code.ADMIN_REFUSED)
        conditions.set(condition(Code.ADMIN_REQUESTED, user=user))
        try:
            if requesting_nodes := await request_admin(user):
                break
        except (InvalidRequest, NotAllowed, ProtocolError) as error:
            conditions.clear(Code.ADMIN_REQUESTED)
            conditions.set(condition(Code.ADMIN_REFUSED, user=user, error=str(error)))
            wait_s = DENIED_RETRY_S
        except DistributedLogError as error:
            log.debug("the request for the admin %s failed: %s", user, error)
        await trio.sleep(wait_s)
    await disk.delete(RECOVERY_FILE)
    conditions.clear(Code.ADMIN_REQUESTED)
    RESCUED.emit(
        log,
        "%s is now an admin, at the request of %s",
        user,
        ", ".join(requesting_nodes),
        user=user,
        by=requesting_nodes,
    )
