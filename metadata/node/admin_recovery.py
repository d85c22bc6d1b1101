"""The way back in where no admin is left: a majority of the metadata nodes asks for one (H238).

Who runs the nodes says so on their disks, while they are stopped (`dlog trust rescue`): a file that names a
user. A node that starts with one asks the leader, as itself, until it is done. The leader makes that user an
admin when nodes that are a majority of the voters ask for the same one, and a line of the audit says which;
then the files go. So one directory, or one stolen node, opens nothing; and a majority of the disks is the
cluster anyway.

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
"""What cannot be today may be so later: another one becomes an admin, or rights come to be judged."""
VOTE_LIFETIME_S = 2 * DENIED_RETRY_S
"""So long what a node asked for counts: one that was told otherwise since does not say that it is over."""
_FORM = row(number(), text(NAME_CHARS_MAX, 1))

log = get_logger("distributedlog.metadata.node.admin_recovery")


class AdminRecoveryVotes:
    """Whom which nodes ask for, as the one who leads in a term has heard it (pure)."""

    def __init__(self) -> None:
        self._term = 0
        self._by_node: dict[str, tuple[str, float]] = {}
        """What each asked for last, and when."""

    def on_vote(
        self, term: int, node_id: str, user: str, voters: Sequence[str], now: float
    ) -> tuple[str, ...]:
        """Who asks for this user now, where that is a majority of ``voters``; else nobody.

        A node asks for one at a time, and what was heard in another term, or long ago, counts for nothing.
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
        """One was made. Whoever asks for another admin, or for this one again, begins anew."""
        self._by_node.clear()


def decode_recovery_request(body: bytes) -> str:
    """The user that a file names after its checksum. Raises `CorruptData`, `UnsupportedFormat`."""
    (form, *_) = decode_stored(body, row(number(), later=True), RECOVERY_FILE)
    if form != FORMAT:
        raise UnsupportedFormat(f"{RECOVERY_FILE}: format {form}, known is {FORMAT}")
    user: str = decode_stored(body, _FORM, RECOVERY_FILE)[1]
    return user


def encode_recovery_request(user: str) -> bytes:
    """The other way round."""
    return pack([FORMAT, user])


async def store_recovery_request(disk: Disk, user: str) -> None:
    """Have the node of this disk ask for that user when it is started. Raises `InvalidRequest`."""
    if not is_name(user):
        raise InvalidRequest(f"no name for a user: {user!r:.80}")
    body = encode_recovery_request(user)
    await replace_file(disk, RECOVERY_FILE, xxhash.xxh3_64_digest(body) + body)


async def load_recovery_request(disk: Disk) -> str | None:
    """None where there is no such file. Raises `CorruptData`, `UnsupportedFormat`."""
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
    """Ask for whom the file names, if there is one, until that is done; then it goes.

    ``ask`` says which nodes it was done for, nobody while too few ask.
    """
    try:
        user = await load_recovery_request(disk)
    except (CorruptData, DiskFailed, UnsupportedFormat) as error:
        log.error("nobody is asked for: %s; say it again with dlog trust rescue", error)
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
            log.debug("asking for the admin %s: %s", user, error)
        await trio.sleep(wait_s)
    await disk.delete(RECOVERY_FILE)
    conditions.clear(Code.ADMIN_REQUESTED)
    RESCUED.emit(
        log,
        "%s is an admin: %s asked for it",
        user,
        ", ".join(requesting_nodes),
        user=user,
        by=requesting_nodes,
    )
