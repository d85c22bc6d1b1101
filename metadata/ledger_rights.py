"""Who may have which capability of which ledger (pure).

A user, or a proxy for its users, by the rights on the log that the ledger was made for: who may read it
reads, who may write it adds and recovers, and nobody of them recovers a ledger that is closed, for recovery
adds pass where a copy lacks an entry, and nothing could tell what they bring (H231). A bookie lists what any
other one has; reads what it holds, or is to hold; writes such copies to itself alone. The one that repairs
does all.
"""

from collections.abc import Collection

from ..runtime.capabilities import Kind
from ..runtime.principals import LOCAL
from .judge import Judge
from .rights import HOLDER, JANITOR, READ, WRITE

NEEDED = {Kind.LIST: READ, Kind.READ: READ, Kind.ADD: WRITE, Kind.RECOVER: WRITE}


def may_have(
    judge: Judge, principal: str, kind: Kind, ledger: int, bookies: Collection[str]
) -> bool:
    """At all of these bookies; by the state that ``judge`` sees."""
    if principal == LOCAL:
        return True  # the nodes of its cluster are its own
    if not judge.is_live(principal):
        return False
    held = judge.rights_on_ledger(principal, ledger)
    if principal.startswith("bookie/"):
        if kind is Kind.LIST or judge.cluster_rights(principal) & JANITOR:
            return True
        if not held & HOLDER:
            return False
        own = all(judge.is_bookie(principal, bookie) for bookie in bookies)
        return kind is Kind.READ or (kind is Kind.RECOVER and own)
    if kind is Kind.RECOVER and judge.is_closed(ledger):
        return False
    return bool(held & NEEDED[kind])
