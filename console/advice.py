"""The command that goes with a reason of the verdict (pure).

People copy it into a shell. So it is made here, of words of ours and of ids and names that are plain: what a
reason says may come from a node, and never becomes a command (H257).
"""

import re

from ..runtime.reasons import HEALED

_NODE = re.compile(r"metadata node ([A-Za-z0-9_.-]{1,64})\b")
_ID = re.compile(r"[0-9a-f]{8,64}")
_LEDGER = re.compile(
    r"^[\d,]+ ledgers? ha(?:s|ve) entries with at most one copy .* such as ledger (\d{1,18})$"
)


def command_about(verb: str, bookie: str) -> str:
    """``verb`` and the bookie's id, as it is in a key; "" where somebody put something else there."""
    return f"dlog {verb} {bookie}" if _ID.fullmatch(bookie) else ""


def command_for(reason: str, about: str = "") -> str:
    """What to type next; "" where nothing is known. ``about``: the id of the bookie that it is about."""
    if about:
        said = reason.partition(f"({about})")[2]
        if said.startswith(f": {HEALED}"):
            return command_about("scrub", about)
        if said.startswith(" is to leave"):
            return command_about("decommission", about)
        if said.startswith(" is down"):
            return command_about("ledger list --bookie", about)
        return "dlog bookies"
    if ledger := _LEDGER.search(reason):
        return f"dlog ledger show {ledger[1]}"
    if reason.startswith("damaged records: "):
        return "dlog audit"
    if reason.startswith("nothing is deleted: "):
        return "dlog metadata gc show"
    if re.match(r"[\d,]+ ledgers? miss(es)? copies", reason):
        return "dlog under-replicated"
    if reason.startswith(
        ("metadata node ", "no metadata quorum", "no metadata node has answered")
    ) or "metadata nodes have lost" in (reason):
        node = _NODE.match(reason)
        if node and " is empty and waits to be let in" in reason:
            return f"dlog metadata replace {node[1]}"
        return "dlog metadata show"
    return ""
