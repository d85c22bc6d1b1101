"""Which operations which kind of principal may ask for at all (pure): the first gate of every server.

A row an operation; one without a row is refused for everybody. What a principal may do with which log is
judged after this gate, by those who know logs. Nothing here holds for `ANONYMOUS`, who is let in only where
no proof is asked for, and for `LOCAL`, whose cluster it is.
"""

from ..interfaces.principals import ANONYMOUS, BOOKIE, LOCAL, METADATA, PROXY, USER, kind_of
from .frames import Op

NOBODY: frozenset[str] = frozenset()
"""Answers, and what a server sends by itself."""
QUORUM = frozenset({METADATA})
CLIENTS = frozenset({BOOKIE, PROXY, USER})
ALL = QUORUM | CLIENTS

ROWS: dict[int, frozenset[str]] = {
    Op.HELLO: ALL,
    Op.AUTH: ALL,
    Op.REPLY: NOBODY,
    Op.PING: ALL,
    Op.INFO: ALL,
    Op.STREAM_OPEN: CLIENTS,
    Op.ADD: CLIENTS,
    Op.ADD_ACKS: NOBODY,
    Op.STREAM_REFUSED: NOBODY,
    Op.WRITE_LAC: CLIENTS,
    Op.READ: CLIENTS,
    Op.FENCE: CLIENTS,
    Op.READ_LAC: CLIENTS,
    Op.WAIT_LAC: CLIENTS,
    Op.LIST_ENTRIES: CLIENTS,
    Op.ADD_MANY: CLIENTS,
    Op.WRITE_LACS: CLIENTS,
    Op.META_STATUS: ALL,
    Op.META_FORM: QUORUM,
    Op.META_RAFT: QUORUM,
    Op.META_READ: ALL,
    Op.META_TRANSACT: ALL,
    Op.META_LEASE: ALL,
    Op.META_WATCH: ALL,
    Op.META_WATCH_EVENTS: NOBODY,
    Op.META_WATCH_CANCEL: ALL,
    Op.META_MEMBERS: ALL,
    Op.META_CAPS: ALL,
    Op.META_DIFFERS: QUORUM,
    Op.META_RECALL: QUORUM,
    Op.META_TRUST: ALL,
    Op.META_SAVE: QUORUM | {USER},
    Op.MEMBERS: CLIENTS,
    Op.PRODUCE_OPEN: CLIENTS,
    Op.PRODUCE: CLIENTS,
    Op.PRODUCE_ACKS: NOBODY,
    Op.PRODUCE_REFUSED: NOBODY,
    Op.PRODUCE_PUBLISH: CLIENTS,
    Op.PRODUCE_COMMIT: CLIENTS,
    Op.PRODUCE_CLOSE: CLIENTS,
    Op.LOG_CALL: CLIENTS,
    Op.PROXY_CALL: CLIENTS,
    Op.SUBSCRIBE: CLIENTS,
    Op.ENTRIES: NOBODY,
    Op.CREDIT: CLIENTS,
    Op.SUBSCRIPTION_ENDED: NOBODY,
    Op.UNSUBSCRIBE: CLIENTS,
}
OPS = 256


def _table(kind: str) -> bytes:
    return bytes(kind in ROWS.get(op, NOBODY) for op in range(OPS))


_TABLES = {kind: _table(kind) for kind in ALL}
_NOTHING = bytes(OPS)


def allowed_to(principal: str) -> bytes | None:
    """A byte an operation, not 0 where the principal may ask for it; None: all of them."""
    if principal in (ANONYMOUS, LOCAL):
        return None
    return _TABLES.get(kind_of(principal), _NOTHING)
