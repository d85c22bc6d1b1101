"""The operations that each kind of principal may request (pure): the first check of every server.

An operation without a row is refused for all principals. Later checks decide about single logs. Nothing here
applies to `ANONYMOUS`, which a server accepts only if it requires no proof, or to `LOCAL`, which owns its
cluster.
"""

from ..interfaces.principals import ANONYMOUS, BOOKIE, LOCAL, METADATA, PROXY, USER, principal_kind
from .frames import Op

NO_KINDS: frozenset[str] = frozenset()
"""For replies and other frames that only servers send."""
QUORUM_KINDS = frozenset({METADATA})
CLIENT_KINDS = frozenset({BOOKIE, PROXY, USER})
ALL_KINDS = QUORUM_KINDS | CLIENT_KINDS

ALLOWED_KINDS: dict[int, frozenset[str]] = {
    Op.HELLO: ALL_KINDS,
    Op.AUTH: ALL_KINDS,
    Op.REPLY: NO_KINDS,
    Op.PING: ALL_KINDS,
    Op.INFO: ALL_KINDS,
    Op.STREAM_OPEN: CLIENT_KINDS,
    Op.ADD: CLIENT_KINDS,
    Op.ADD_ACKS: NO_KINDS,
    Op.STREAM_REFUSED: NO_KINDS,
    Op.WRITE_LAC: CLIENT_KINDS,
    Op.READ: CLIENT_KINDS,
    Op.FENCE: CLIENT_KINDS,
    Op.READ_LAC: CLIENT_KINDS,
    Op.WAIT_LAC: CLIENT_KINDS,
    Op.LIST_ENTRIES: CLIENT_KINDS,
    Op.ADD_MANY: CLIENT_KINDS,
    Op.WRITE_LACS: CLIENT_KINDS,
    Op.META_STATUS: ALL_KINDS,
    Op.META_FORM: QUORUM_KINDS,
    Op.META_RAFT: QUORUM_KINDS,
    Op.META_READ: ALL_KINDS,
    Op.META_TRANSACT: ALL_KINDS,
    Op.META_LEASE: ALL_KINDS,
    Op.META_WATCH: ALL_KINDS,
    Op.META_WATCH_EVENTS: NO_KINDS,
    Op.META_WATCH_CANCEL: ALL_KINDS,
    Op.META_MEMBERS: ALL_KINDS,
    Op.META_CAPS: ALL_KINDS,
    Op.META_DIFFERS: QUORUM_KINDS,
    Op.META_RECALL: QUORUM_KINDS,
    Op.META_TRUST: ALL_KINDS,
    Op.META_SAVE: QUORUM_KINDS | {USER},
    Op.MEMBERS: CLIENT_KINDS,
    Op.PRODUCE_OPEN: CLIENT_KINDS,
    Op.PRODUCE: CLIENT_KINDS,
    Op.PRODUCE_ACKS: NO_KINDS,
    Op.PRODUCE_REFUSED: NO_KINDS,
    Op.PRODUCE_PUBLISH: CLIENT_KINDS,
    Op.PRODUCE_COMMIT: CLIENT_KINDS,
    Op.PRODUCE_CLOSE: CLIENT_KINDS,
    Op.LOG_CALL: CLIENT_KINDS,
    Op.PROXY_CALL: CLIENT_KINDS,
    Op.SUBSCRIBE: CLIENT_KINDS,
    Op.ENTRIES: NO_KINDS,
    Op.CREDIT: CLIENT_KINDS,
    Op.SUBSCRIPTION_ENDED: NO_KINDS,
    Op.UNSUBSCRIBE: CLIENT_KINDS,
}
OPS_MAX = 256


def _allowed_ops(kind: str) -> bytes:
    return bytes(kind in ALLOWED_KINDS.get(op, NO_KINDS) for op in range(OPS_MAX))


_ALLOWED_BY_KIND = {kind: _allowed_ops(kind) for kind in ALL_KINDS}
_NO_OPS = bytes(OPS_MAX)


def allowed_ops(principal: str) -> bytes | None:
    """Return one byte per operation, nonzero if the principal may request it. None allows all operations."""
    if principal in (ANONYMOUS, LOCAL):
        return None
    return _ALLOWED_BY_KIND.get(principal_kind(principal), _NO_OPS)
