"""The text of each health condition, for people (pure). No program reads these texts.

A text is one line: the problem, then the next step. Bookies are named by ID; the command line and the console
replace IDs by names.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .health_conditions import Code, HealthCondition, Parameter, as_maps, legacy_texts
from .options import format_size


class _Values:
    """The parameters of one condition. A missing one, of another version, is "?"."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._parameters = parameters

    def __getitem__(self, name: str) -> Parameter:
        return self._parameters.get(name, "?")

    def number(self, name: str) -> int:
        """An integer, 0 if there is none."""
        value = self._parameters.get(name, 0)
        return value if isinstance(value, int) else 0

    def count(self, name: str, one: str, many: str) -> str:
        """``1 ledger``, ``2,000 ledgers``."""
        number = self.number(name)
        return f"{number:,} {one if number == 1 else many}"

    def size(self, name: str) -> str:
        """Bytes with a unit."""
        return format_size(self.number(name))


_Text = str | Callable[[_Values], str]


def _limbo(p: _Values) -> str:
    below, ledgers = p.number("below"), p.number("ledgers")
    parts = []
    if ledgers:
        parts.append(f"{p.count('ledgers', 'ledger', 'ledgers')} that it stores")
    if below < 0:
        parts.append("every ledger that it does not store")
    elif below:
        parts.append(f"every ledger below {below} that it does not store")
    lost = " and ".join(parts) or "some ledgers"
    return f"it may have lost entries of {lost}, and does not deny having had them: {p['cause']}"


def _metadata_disk_low(p: _Values) -> str:
    effect = "commands that make the metadata larger are refused"
    if p.number("log_full"):
        effect = "its log cannot be written, so it neither votes nor acknowledges"
    if p.number("snapshot_failed"):
        effect += ", and a snapshot failed"
    return (
        f"its disk is low on space ({p.size('free_bytes')} free, {p.size('needed_bytes')} needed): {effect}."
        " Free space there, or delete logs"
    )


def _metadata_log_incomplete(p: _Values) -> str:
    end = f" (it ends at entry {p['last']})" if p.number("last") >= 0 else ""
    return (
        f"its log lacks entries that it had acknowledged{end}: its disk is an older copy of itself, or lost"
        " its end. It copies them from the other nodes; check the disk"
    )


def _lists_differ(p: _Values) -> str:
    whose = f"the list of {p['peer']}" if p["peer"] else "the members of the quorum"
    parts = [
        f"{words} {p[name]}"
        for name, words in (
            ("missing", "only this node lists"),
            ("more", "this node does not list"),
            ("moved", "other addresses here and there:"),
        )
        if p[name]
    ]
    return (
        f"its list of metadata nodes differs from {whose} ({', '.join(parts)}). No cluster is formed before"
        " all nodes have one list"
    )


def _metadata_node_empty(p: _Values) -> str:
    then = f'. If its disk is lost, run "dlog metadata replace {p["node"]}"'
    return (
        f"metadata node {p['node']} at {p['address']} has no data and is no member yet"
        f"{then if p.number('replaceable') else ''}"
    )


def _metadata_node_damaged(p: _Values) -> str:
    then = (
        f'move its directory away, start it empty, and run "dlog metadata replace {p["node"]}"'
        if p.number("replaceable")
        else "keep its directory"
    )
    return f"metadata node {p['node']} takes no part, its log is damaged ({p['error']}): {then}"


def _no_new_ledgers(p: _Values) -> str:
    return (
        f"no log can be created or rolled: {p['writable']} of {p.count('bookies', 'bookie', 'bookies')}"
        f" can take a new ledger, which is not enough for {_quorums(p)}. Writers stop at their next roll"
    )


def _quorums(p: _Values) -> str:
    return f"quorums {p['ensemble']}/{p['write_quorum']}/{p['ack_quorum']}"


def _placement_at_limit(p: _Values) -> str:
    then = "writers stop at their next roll"
    if p.number("domains") >= p.number("needed"):
        then = f"if one more {p['level']} is lost, {then}"
    level = p["level"]
    return (
        f"{p.count('domains', f'{level} has', f'{level}s have')} bookies that take entries, and a"
        f" new ledger needs {p['needed']}: {then}."
        ' "dlog placement --preferred" makes the policy a preference'
    )


def _bookie_down(p: _Values) -> str:
    return (
        f"bookie {p['bookie']} is offline. Writers use the other bookies. Its"
        f" {p.count('ledgers', 'ledger is', 'ledgers are')} copied to another bookie if it stays offline for"
        " five minutes (default)"
    )


def _bookie_down_no_replacement(p: _Values) -> str:
    spare = p.number("spare")
    writes = "Writers stop at their next roll"
    if spare >= 0:
        more = "one more bookie fails" if spare == 0 else f"{spare + 1} more bookies fail"
        writes = f"Writers continue on the other bookies, with fewer copies; if {more}, they stop"
    ledgers = p.count("ledgers", "ledger lacks its copies", "ledgers lack its copies")
    return (
        f"bookie {p['bookie']} is offline, and {p['cause']}: start it again, or add a bookie. {writes}"
        + (f". {ledgers}, which are not repaired until then" if p.number("ledgers") else "")
    )


def _bookie_down_unused(p: _Values) -> str:
    return f"bookie {p['bookie']} is offline, and no ledger needs it: start it again, or decommission it"


def _bookie_leaving(p: _Values) -> str:
    cause = f", such as ledger {p['ledger']}: {p['cause']}" if p.number("ledger") >= 0 else ""
    offline = "" if p.number("running") else " and is offline"
    return (
        f"bookie {p['bookie']} is being decommissioned{offline}:"
        f" {p.count('ledgers', 'ledger is', 'ledgers are')} left on it{cause}"
    )


def _bookie_drained(p: _Values) -> str:
    then = "stop it now" if p.number("running") else "it is removed from the list within seconds"
    return f"bookie {p['bookie']} is decommissioned, and no ledger needs it: {then}"


def _open_ledger(p: _Values) -> str:
    log = p["log"]
    if not log or log == "?":
        return f"ledger {p['ledger']} (open, of no log)"
    return f'ledger {p["ledger"]} (open, segment {p["segment"]} of log "{log}")'


def _stop_no_copy(p: _Values) -> str:
    ledger = _open_ledger(p) if p.number("open") else f"ledger {p['ledger']}"
    return f"{ledger}: some of its entries would have no copy that can be reached"


TEXTS: Mapping[str, _Text] = {
    Code.WORK_FAILED: (
        "{unit} fails and is tried again ({error}, {tries} times in a row). Its log has the traceback"
    ),
    Code.CERTIFICATE_ENDS: 'its certificate ends at {at}. Run "dlog pki renew"',
    Code.CERTIFICATE_ENDED: (
        'its certificate ended at {at}, so peers refuse new connections. Run "dlog pki renew"'
    ),
    Code.ADDRESS_UNANSWERED: (
        "its advertised address {address} does not lead to it, so peers and clients may not reach it"
        " ({error}). Correct --advertise, or the network"
    ),
    Code.ADDRESS_OF_OTHER_NODE: (
        "at its advertised address {address} another node answers: {other}. Correct --advertise or --listen"
    ),
    Code.ADDRESS_LOOPBACK: (
        "its address {address} is a loopback address, which other machines cannot reach. Give --listen or"
        " --advertise an address of the network"
    ),
    Code.MORE_CONDITIONS: lambda p: p.count("count", "more condition", "more conditions"),
    Code.LEGACY_TEXT: "{text}",
    Code.LIMBO: _limbo,
    Code.LIMBO_ENDED: (
        "less than an hour ago it was missing entries, and has them again from other bookies: {cause}."
        " Check the disk"
    ),
    Code.ENTRIES_CORRUPT: lambda p: (
        f"entries of {p.count('ledgers', 'ledger are', 'ledgers are')} corrupt here, and are repaired from"
        " other copies"
    ),
    Code.ENTRIES_CORRUPT_WITHOUT_COPY: lambda p: (
        f"entries of {p.count('ledgers', 'ledger are', 'ledgers are')} corrupt here, and no other bookie has"
        f" a good copy: {p['cause']}"
    ),
    Code.ENTRIES_REPAIRED: lambda p: (
        f"entries of {p.count('ledgers', 'ledger were', 'ledgers were')} corrupt here; the last were"
        " repaired, or deleted with their ledger, less than an hour ago. If this repeats, check the disk"
    ),
    Code.DAMAGED_READS: lambda p: (
        f"{p.count('reads', 'read', 'reads')} since its start found a missing file or corrupt bytes, the last"
        f" one: {p['error']}. Readers use other copies"
    ),
    Code.INDEX_BEHIND: "its index was last written {minutes} min ago",
    Code.JOURNAL_DISK_LOW: lambda p: (
        f"read-only: less than {p.size('free_bytes_min')} are free on the journal's disk"
    ),
    Code.JOURNAL_FILE_NO_SPACE: "read-only: the journal's disk has no space for another journal file",
    Code.INDEX_DISK_LOW: lambda p: (
        f"read-only: less than {p.size('free_bytes_min')} are free on the index's disk"
    ),
    Code.CHECKPOINT_NO_SPACE: "read-only: the index's disk had no space for the last checkpoint",
    Code.INDEX_MEMORY_FULL: (
        "read-only: more than {extents_max} extents in memory wait for the index's disk"
    ),
    Code.RESERVE_MISSING: (
        "read-only: the {disk}'s disk has no space for the reserve that fences and deletions need"
    ),
    Code.READ_ONLY_REQUESTED: "read-only: it is being decommissioned, or was started read-only",
    Code.DISK_READ_ERRORS: (
        "read-only: its disk reports read errors repeatedly, so nothing is repaired onto it. Decommission it"
    ),
    Code.METADATA_DISK_LOW: _metadata_disk_low,
    Code.METADATA_LOG_INCOMPLETE: _metadata_log_incomplete,
    Code.METADATA_STATE_DIFFERS: (
        "its state differs from that of most metadata nodes, so it does not lead. Restart it; if this"
        " repeats, replace it (docs/operate/recover-metadata.md)"
    ),
    Code.METADATA_PEER_DIFFERS: (
        "the state of metadata node {peer} after entry {entry} differs from that of this leader"
    ),
    Code.METADATA_LISTS_DIFFER: _lists_differ,
    Code.ADMIN_REQUESTED: (
        "it requests that {user} becomes an admin, and waits for a majority of the metadata nodes to do so"
    ),
    Code.ADMIN_REFUSED: "it requests that {user} becomes an admin, and is refused: {error}",
    Code.RIGHTS_UNKNOWN: "it serves no client, because it cannot read the rights: {error}",
    Code.NO_METADATA_ANSWER: "no metadata quorum: {error}",
    Code.NO_METADATA_QUORUM: (
        "no metadata quorum: {answering} of {members} nodes answer, and none leads. Nothing can be opened,"
        " created or rolled"
    ),
    Code.NO_CLUSTER_FORMED: (
        "no cluster has been formed: the metadata nodes wait until all listed nodes answer with the same list"
    ),
    Code.METADATA_MAJORITY_LOST: (
        "{lost} of {voters} metadata nodes have lost their data ({names}), so no node can be added. Restore"
        " the directory of one of them, or continue with one node or a save"
        ' (docs/operate/recover-metadata.md, "Recover a lost quorum")'
    ),
    Code.METADATA_NODE_DOWN: lambda p: (
        f"metadata node {p['node']} at {p['address']} does not answer"
        + (f" ({p['error']})" if p["error"] else "")
    ),
    Code.METADATA_NODE_EMPTY: _metadata_node_empty,
    Code.METADATA_NODE_DAMAGED: _metadata_node_damaged,
    Code.METADATA_NODE_LEARNER: "metadata node {node} is being added, and does not vote yet",
    Code.DELETIONS_HELD: 'nothing is deleted: {cause}. Check the logs, then run "dlog metadata gc resume"',
    Code.REPAIR_PAUSED: (
        "the repair of lost bookies is paused until {until}, then it resumes. "
        '"dlog repair resume" ends the pause earlier'
    ),
    Code.NO_NEW_LEDGERS: _no_new_ledgers,
    Code.PLACEMENT_AT_LIMIT: _placement_at_limit,
    Code.NO_REPAIR: "no bookie runs repair: all are started with repair = false",
    Code.BOOKIE_DOWN: _bookie_down,
    Code.BOOKIE_DOWN_NO_REPLACEMENT: _bookie_down_no_replacement,
    Code.BOOKIE_DOWN_UNUSED: _bookie_down_unused,
    Code.BOOKIE_UNANSWERED: (
        "bookie {bookie} is registered at {address} and does not answer there from this machine: {error}"
    ),
    Code.PROXY_UNANSWERED: (
        "{proxy} is registered at {address} and does not answer there from this machine: {error}"
    ),
    Code.BOOKIE_READ_ONLY: "bookie {bookie} takes no new entries",
    Code.BOOKIE_LEAVING: _bookie_leaving,
    Code.BOOKIE_DRAINED: _bookie_drained,
    Code.UNDER_REPLICATED: lambda p: (
        f"{p.count('ledgers', 'ledger lacks', 'ledgers lack')} copies of some entries"
    ),
    Code.ONE_COPY_LEFT: lambda p: (
        f"{p.count('ledgers', 'ledger has', 'ledgers have')} entries with at most one copy that can be"
        f" reached, such as ledger {p['ledger']}"
    ),
    Code.DAMAGED_RECORDS: lambda p: (
        f"{p.count('records', 'record', 'records')} in the metadata store cannot be read, such as {p['key']}"
    ),
    Code.DOMAIN_UNKNOWN: "the {level} of these bookies is not known: {names}",
    Code.COPIES_TOGETHER: lambda p: (
        f"{p.count('ledgers', 'of the newest ledgers has', 'of the newest ledgers have')} copies close to"
        f" each other, such as ledger {p['ledger']}: {p['cause']}"
    ),
    Code.VERSIONS_DIFFER: "the nodes have different versions: {versions}",
    Code.UPGRADE_NOT_FINALIZED: (
        "upgrade not finalized: all nodes have version {version}, and programs write the formats of"
        ' {finalized}. When all clients have it too, run "dlog cluster finalize"'
    ),
    Code.NODES_BELOW_FINALIZED: (
        "{names} have a version below {finalized}, for which the cluster is finalized. They may refuse what"
        " programs write: upgrade them"
    ),
    Code.STOP_NO_MAJORITY: lambda p: (
        f"metadata: {p['answering']} of {p['voters']} voters would answer ({p['names'] or 'none'}), and"
        f" {p['needed']} are a majority"
    ),
    Code.STOP_NO_NEW_LEDGERS: lambda p: (
        f"no log could be created or rolled: {p.count('writable', 'bookie', 'bookies')} could take a new"
        f" ledger, which is not enough for {_quorums(p)}"
    ),
    Code.STOP_NO_COPY: _stop_no_copy,
    Code.STOP_ONE_COPY: (
        "ledger {ledger}: {copies} of {write_quorum} copies of some entries can be reached now, and one would"
        " be left"
    ),
    Code.STOP_NO_RECOVERY: lambda p: (
        f"{_open_ledger(p)}: too few of its bookies would be left to recover it if its writer failed too"
    ),
    Code.STOP_NO_ACKS: lambda p: (
        f"{_open_ledger(p)}: its writer would have {p['acks']} of {p['ack_quorum']} acknowledgements, and no"
        " other bookie takes entries"
    ),
    Code.STOP_RECORD_UNREADABLE: "{key}: the record of this ledger cannot be read",
    Code.STOP_COPIES_UNCERTAIN: (
        "bookie {bookie} may have lost entries: its copies are not counted"
    ),
    Code.STOP_MORE: lambda p: f"and {p.count('count', 'more ledger', 'more ledgers')} like these",
}
_ABOUT_A_NODE = frozenset(
    code for code, text in TEXTS.items() if code.startswith(("bookie_", "metadata_node_"))
) | {Code.STOP_COPIES_UNCERTAIN}
"""Codes whose texts name the node that they are about. In other texts, the name is put in front."""


Named = Callable[[str], str]
"""Returns the name of a bookie in a text, by its ID."""


def text_of(condition: HealthCondition, named: Named = str) -> str:
    """Return the text of a condition: one printable line, without its severity."""
    text = TEXTS.get(condition.code)
    if condition.bookie:
        condition = condition.about(bookie=named(condition.bookie))
    values = _Values(condition.parameters)
    if text is None:  # of a newer version
        parameter_text = ", ".join(
            f"{name}={value}" for name, value in condition.parameters.items()
        )
        condition_text = (
            f"{condition.code} ({parameter_text})" if parameter_text else condition.code
        )
    elif isinstance(text, str):
        condition_text = text.format_map(values)
    else:
        condition_text = text(values)
    if condition.code not in _ABOUT_A_NODE:
        if condition.bookie:
            return f"bookie {condition.bookie}: {condition_text}"
        if condition.node:
            return f"metadata node {condition.node}: {condition_text}"
    return condition_text


def texts_of(conditions: Iterable[HealthCondition], named: Named = str) -> list[str]:
    """Return the text of each condition."""
    return [text_of(condition, named) for condition in conditions]


def as_json(conditions: Iterable[HealthCondition], named: Named = str) -> list[dict[str, Any]]:
    """Return conditions for ``--json`` output and HTTP pages, each with its text."""
    return [{**condition.as_map(), "text": text_of(condition, named)} for condition in conditions]


def report_of(conditions: Sequence[HealthCondition], *, codes: bool = True) -> dict[str, Any]:
    """Return the fields that report conditions: texts for versions without codes, and the codes.

    Args:
        conditions: The conditions.
        codes: Whether the reporting program has `FEATURE_ERROR_CODES`. Without it, it reports texts only.
    """
    report: dict[str, Any] = {"conditions": as_maps(conditions)} if codes else {}
    return {**report, "reasons": texts_for_older_versions(conditions)}


def texts_for_older_versions(conditions: Sequence[HealthCondition]) -> list[str]:
    """Return the field of a node's report that versions without codes read."""
    return legacy_texts(conditions, text_of)
