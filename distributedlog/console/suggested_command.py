"""The command for each health condition (pure).

People copy it into a shell. It consists of fixed words, IDs, numbers and plain names. A parameter may come
from a node, and never becomes a command (H257).
"""

import re

from ..runtime.declarations.health_conditions import Code, HealthCondition

_NODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ID = re.compile(r"[0-9a-f]{8,64}")

_COMMANDS = {
    Code.DAMAGED_RECORDS: "dlog audit",
    Code.DELETIONS_HELD: "dlog metadata gc show",
    Code.UNDER_REPLICATED: "dlog under-replicated",
    Code.NO_METADATA_ANSWER: "dlog metadata show",
    Code.NO_METADATA_QUORUM: "dlog metadata show",
    Code.METADATA_MAJORITY_LOST: "dlog metadata show",
    Code.UPGRADE_NOT_FINALIZED: "dlog cluster finalize",
}
_BOOKIE_VERBS = {
    Code.LIMBO_ENDED: "scrub",
    Code.ENTRIES_REPAIRED: "scrub",
    Code.BOOKIE_LEAVING: "decommission",
    Code.BOOKIE_DRAINED: "decommission",
    Code.BOOKIE_DOWN: "ledger list --bookie",
    Code.BOOKIE_DOWN_NO_REPLACEMENT: "ledger list --bookie",
    Code.BOOKIE_DOWN_UNUSED: "decommission",
}


def command_about(verb: str, bookie: str) -> str:
    """Return ``verb`` and the bookie's ID, or "" if a key has something else in the place of an ID."""
    return f"dlog {verb} {bookie}" if _ID.fullmatch(bookie) else ""


def command_for(condition: HealthCondition) -> str:
    """Return what to type next, or "" if no command is known."""
    code = condition.code
    if condition.bookie:
        verb = _BOOKIE_VERBS.get(code)  # type: ignore[call-overload]
        return command_about(verb, condition.bookie) if verb else "dlog bookies"
    if condition.node:
        is_plain_name = _NODE.fullmatch(condition.node)
        if code == Code.METADATA_NODE_EMPTY and is_plain_name:
            return f"dlog metadata replace {condition.node}"
        return "dlog metadata show"
    if code == Code.ONE_COPY_LEFT and (ledger := condition.integer("ledger", -1)) >= 0:
        return f"dlog ledger show {ledger}"
    command: str = _COMMANDS.get(code, "")  # type: ignore[call-overload]
    return command
