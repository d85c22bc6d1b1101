"""What somebody may do: bits, roles, and on which paths (pure).

On a path of a namespace: read, write, manage (create, delete, truncate, settings), produce and consume
(through a proxy). A path is "" (the whole namespace), a directory that ends in a slash, or the name of one
log: it goes by components, never by how a text begins (H235: ``orders`` does not open ``orders-secret``).
Rights are the union of grants; nothing denies. A log that is deleted and made again keeps its grants, which
name paths.

On the cluster: operator (runs it, reads no record), admin (says who may what; an operator too). What a node
may do follows from its kind. Ints, not flags: they are asked for at each key of each transaction.
"""

from collections.abc import Mapping

READ = 1
WRITE = 2
MANAGE = 4
PRODUCE = 8
CONSUME = 16
ALL_LOG_RIGHTS = READ | WRITE | MANAGE | PRODUCE | CONSUME
OPERATOR = 32
ADMIN = 64
AUTHENTICATED = 128
"""Has proved who it is, and was not disabled."""
BOOKIE = 256
PROXY = 512
OWN = 1024
"""The key is about this very principal: a bookie's cookie, a user's position."""
REPLICA_HOLDER = 2048
"""A bookie that the ledger's record names, or that is to take a place in it."""
REPAIR_LEADER = 4096
"""The bookie that holds the lease of who repairs."""
EVERYBODY = 8192
"""Whoever is connected."""
ALL = 16383

ROLES: Mapping[str, int] = {
    "reader": READ,
    "writer": READ | WRITE,
    "owner": READ | WRITE | MANAGE,
    "producer": PRODUCE,
    "consumer": CONSUME,
    "operator": OPERATOR,
    "admin": OPERATOR | ADMIN,
}
CLUSTER_ROLES = ("operator", "admin")
"""Of the whole cluster: they have no path."""

_WORDS = {
    READ: "read",
    WRITE: "write",
    MANAGE: "manage",
    PRODUCE: "produce",
    CONSUME: "consume",
    OPERATOR: "operator",
    ADMIN: "admin",
    AUTHENTICATED: "to be known",
    BOOKIE: "to be a bookie",
    PROXY: "to be a proxy",
    OWN: "to be its owner",
    REPLICA_HOLDER: "to hold a copy",
    REPAIR_LEADER: "to be the bookie that repairs",
}


def describe_rights(rights: int) -> str:
    """Each by its word: "write or operator"; of none "nobody may"."""
    return " or ".join(word for bit, word in _WORDS.items() if bit & rights) or "nobody may"
