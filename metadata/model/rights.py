"""Rights of principals as bits, roles as sets of rights, and the paths that they apply to (pure).

The rights on a path of a namespace are read, write, manage (create, delete, truncate, settings), and
produce and consume (through a proxy). A path is "" (the whole namespace), a directory with a trailing
slash, or the name of one log. Paths are compared by components and not as text prefixes: a grant on
``orders`` does not cover ``orders-secret`` (H235). The rights of a principal are the union of its grants,
and nothing denies a right. A log that is deleted and created again keeps its grants, because grants name
paths.

The roles on the cluster are operator (runs the cluster, reads no records) and admin (manages users and
grants, and is an operator too). The rights of a node follow from its kind. Rights are ints and not flags,
because they are checked for each key of each transaction.
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
"""An authenticated principal that is not disabled."""
BOOKIE = 256
PROXY = 512
OWN = 1024
"""The key belongs to this principal, for example a bookie's cookie or a user's position."""
REPLICA_HOLDER = 2048
"""A bookie that is in the ledger's record, or that is to be added to it."""
REPAIR_LEADER = 4096
"""The bookie that holds the lease of the repair leader."""
EVERYBODY = 8192
"""Any connected client."""
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
"""Roles on the whole cluster, without a path."""

_WORDS = {
    READ: "read",
    WRITE: "write",
    MANAGE: "manage",
    PRODUCE: "produce",
    CONSUME: "consume",
    OPERATOR: "operator",
    ADMIN: "admin",
    AUTHENTICATED: "authentication",
    BOOKIE: "the role of a bookie",
    PROXY: "the role of a proxy",
    OWN: "ownership",
    REPLICA_HOLDER: "a copy of the ledger",
    REPAIR_LEADER: "the role of repair leader",
}


def describe_rights(rights: int) -> str:
    """Return the rights as text for messages, for example "write or operator"."""
    return (
        " or ".join(word for bit, word in _WORDS.items() if bit & rights)
        or "a right that no principal has"
    )
