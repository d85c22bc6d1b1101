"""Health conditions: the codes by which nodes and programs report problems (pure).

A condition is a code, a severity and parameters (text and integers). Programs decide by the code, the
severity and the integers. They never decide by a text: `condition_texts.text_of` makes texts where they are
shown. This module has the only list of codes. A new code is added here and gets its text there.

Conditions are part of registrations, the status of a metadata node, `Op.INFO` and ``--json`` output, as
``{"code": …, "severity": …, "parameters": {…}}``. A code that only a newer version has is kept. Its severity
counts, and its name is shown. A version before this list sends texts only. They become `Code.LEGACY_TEXT`
with severity degraded, and no program decides by them. `legacy_texts` makes the field that such a version
reads.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..protocol.schema import SchemaError, fields, rows, text

CONDITIONS_MAX = 16
"""The limit for conditions that one node reports. `Code.MORE_CONDITIONS` counts the others."""
TEXT_CHARACTERS_MAX = 300
CODE_CHARACTERS_MAX = 64
PARAMETERS_MAX = 16
INTEGER_MAX = (1 << 63) - 1

Parameter = str | int


class Severity(enum.IntEnum):
    """The severity of a condition. The health of a cluster is that of its worst condition."""

    INFO = 0
    """No problem: an event that an operator may want to check, or a finished task."""
    HEALING = 1
    """Redundancy is reduced, or work is behind. The cluster repairs it automatically."""
    DEGRADED = 2
    """It lasts until an operator acts."""
    AT_RISK = 3
    """Some entry has at most one valid copy that can be reached."""
    DOWN = 4
    """Writes or reads fail."""

    @property
    def word(self) -> str:
        """The severity on the wire and in ``--json`` output, such as ``at_risk``."""
        return self.name.lower()

    @property
    def health(self) -> str:
        """The health of a cluster whose worst condition has this severity."""
        return "healthy" if self is Severity.INFO else self.word


_BY_WORD = {severity.word: severity for severity in Severity}


class Code(enum.StrEnum):
    """A kind of condition. The value is sent and stored, so it never changes and is never reused."""

    # Any node.
    WORK_FAILED = "work_failed"
    CERTIFICATE_ENDS = "certificate_ends"
    CERTIFICATE_ENDED = "certificate_ended"
    ADDRESS_UNANSWERED = "address_unanswered"
    ADDRESS_OF_OTHER_NODE = "address_of_other_node"
    ADDRESS_LOOPBACK = "address_loopback"
    MORE_CONDITIONS = "more_conditions"
    LEGACY_TEXT = "legacy_text"

    # A bookie.
    LIMBO = "limbo"
    LIMBO_ENDED = "limbo_ended"
    ENTRIES_CORRUPT = "entries_corrupt"
    ENTRIES_CORRUPT_WITHOUT_COPY = "entries_corrupt_without_copy"
    ENTRIES_REPAIRED = "entries_repaired"
    DAMAGED_READS = "damaged_reads"
    INDEX_BEHIND = "index_behind"
    JOURNAL_DISK_LOW = "journal_disk_low"
    JOURNAL_FILE_NO_SPACE = "journal_file_no_space"
    INDEX_DISK_LOW = "index_disk_low"
    CHECKPOINT_NO_SPACE = "checkpoint_no_space"
    INDEX_MEMORY_FULL = "index_memory_full"
    RESERVE_MISSING = "reserve_missing"
    READ_ONLY_REQUESTED = "read_only_requested"
    DISK_READ_ERRORS = "disk_read_errors"

    # A metadata node.
    METADATA_DISK_LOW = "metadata_disk_low"
    METADATA_LOG_INCOMPLETE = "metadata_log_incomplete"
    METADATA_STATE_DIFFERS = "metadata_state_differs"
    METADATA_PEER_DIFFERS = "metadata_peer_differs"
    METADATA_LISTS_DIFFER = "metadata_lists_differ"
    ADMIN_REQUESTED = "admin_requested"
    ADMIN_REFUSED = "admin_refused"

    # A proxy.
    RIGHTS_UNKNOWN = "rights_unknown"

    # A cluster, as `dlog status` finds it.
    NO_METADATA_ANSWER = "no_metadata_answer"
    NO_METADATA_QUORUM = "no_metadata_quorum"
    NO_CLUSTER_FORMED = "no_cluster_formed"
    METADATA_MAJORITY_LOST = "metadata_majority_lost"
    METADATA_NODE_DOWN = "metadata_node_down"
    METADATA_NODE_EMPTY = "metadata_node_empty"
    METADATA_NODE_DAMAGED = "metadata_node_damaged"
    METADATA_NODE_LEARNER = "metadata_node_learner"
    DELETIONS_HELD = "deletions_held"
    REPAIR_PAUSED = "repair_paused"
    NO_NEW_LEDGERS = "no_new_ledgers"
    PLACEMENT_AT_LIMIT = "placement_at_limit"
    NO_REPAIR = "no_repair"
    BOOKIE_DOWN = "bookie_down"
    BOOKIE_DOWN_NO_REPLACEMENT = "bookie_down_no_replacement"
    BOOKIE_DOWN_UNUSED = "bookie_down_unused"
    BOOKIE_UNANSWERED = "bookie_unanswered"
    PROXY_UNANSWERED = "proxy_unanswered"
    BOOKIE_READ_ONLY = "bookie_read_only"
    BOOKIE_LEAVING = "bookie_leaving"
    BOOKIE_DRAINED = "bookie_drained"
    UNDER_REPLICATED = "under_replicated"
    ONE_COPY_LEFT = "one_copy_left"
    DAMAGED_RECORDS = "damaged_records"
    DOMAIN_UNKNOWN = "domain_unknown"
    COPIES_TOGETHER = "copies_together"
    VERSIONS_DIFFER = "versions_differ"
    UPGRADE_NOT_FINALIZED = "upgrade_not_finalized"
    NODES_BELOW_FINALIZED = "nodes_below_finalized"

    # Why nodes may not be stopped (`dlog node can-stop`).
    STOP_NO_MAJORITY = "stop_no_majority"
    STOP_NO_NEW_LEDGERS = "stop_no_new_ledgers"
    STOP_NO_COPY = "stop_no_copy"
    STOP_ONE_COPY = "stop_one_copy"
    STOP_NO_RECOVERY = "stop_no_recovery"
    STOP_NO_ACKS = "stop_no_acks"
    STOP_RECORD_UNREADABLE = "stop_record_unreadable"
    STOP_COPIES_UNCERTAIN = "stop_copies_uncertain"
    STOP_MORE = "stop_more"


@dataclass(frozen=True, slots=True)
class _Kind:
    severity: Severity
    parameters: frozenset[str]


def _kind(severity: Severity, parameters: str = "") -> _Kind:
    return _Kind(severity, frozenset(parameters.split()))


KINDS: Mapping[Code, _Kind] = {
    # "error" is the class of the exception, "tries" the number of failures in a row.
    Code.WORK_FAILED: _kind(Severity.DEGRADED, "unit error tries"),
    Code.CERTIFICATE_ENDS: _kind(Severity.DEGRADED, "at"),
    Code.CERTIFICATE_ENDED: _kind(Severity.DEGRADED, "at"),
    # "listener" is its name, "" for the default one. "other" names the node that answers.
    Code.ADDRESS_UNANSWERED: _kind(Severity.DEGRADED, "listener address error"),
    Code.ADDRESS_OF_OTHER_NODE: _kind(Severity.DEGRADED, "listener address other"),
    # Severity info if no node of the cluster is known to be on another machine.
    Code.ADDRESS_LOOPBACK: _kind(Severity.DEGRADED, "listener address"),
    Code.MORE_CONDITIONS: _kind(Severity.INFO, "count"),
    Code.LEGACY_TEXT: _kind(Severity.DEGRADED, "text"),
    # "ledgers" counts ledgers in limbo that the bookie stores. Other ledgers with an ID below "below" are in
    # limbo too. It is 0 if there are none, and -1 for all of them.
    Code.LIMBO: _kind(Severity.DEGRADED, "ledgers below cause"),
    Code.LIMBO_ENDED: _kind(Severity.INFO, "cause"),
    Code.ENTRIES_CORRUPT: _kind(Severity.HEALING, "ledgers"),
    Code.ENTRIES_CORRUPT_WITHOUT_COPY: _kind(Severity.AT_RISK, "ledgers cause"),
    Code.ENTRIES_REPAIRED: _kind(Severity.INFO, "ledgers"),
    Code.DAMAGED_READS: _kind(Severity.DEGRADED, "reads error"),
    Code.INDEX_BEHIND: _kind(Severity.DEGRADED, "minutes"),
    Code.JOURNAL_DISK_LOW: _kind(Severity.DEGRADED, "free_bytes_min"),
    Code.JOURNAL_FILE_NO_SPACE: _kind(Severity.DEGRADED),
    Code.INDEX_DISK_LOW: _kind(Severity.DEGRADED, "free_bytes_min"),
    Code.CHECKPOINT_NO_SPACE: _kind(Severity.DEGRADED),
    Code.INDEX_MEMORY_FULL: _kind(Severity.DEGRADED, "extents_max"),
    Code.RESERVE_MISSING: _kind(Severity.DEGRADED, "disk"),
    Code.READ_ONLY_REQUESTED: _kind(Severity.DEGRADED),
    Code.DISK_READ_ERRORS: _kind(Severity.DEGRADED),
    # "log_full" and "snapshot_failed" are 1 or 0.
    Code.METADATA_DISK_LOW: _kind(
        Severity.DEGRADED, "free_bytes needed_bytes log_full snapshot_failed"
    ),
    # "last" is the log's last entry, or -1.
    Code.METADATA_LOG_INCOMPLETE: _kind(Severity.DEGRADED, "last"),
    Code.METADATA_STATE_DIFFERS: _kind(Severity.DEGRADED),
    Code.METADATA_PEER_DIFFERS: _kind(Severity.DEGRADED, "peer entry"),
    # Names of nodes that one of two lists lacks, and "NAME: ADDRESS, ADDRESS" of nodes that differ.
    Code.METADATA_LISTS_DIFFER: _kind(Severity.DEGRADED, "peer missing more moved"),
    Code.ADMIN_REQUESTED: _kind(Severity.DEGRADED, "user"),
    Code.ADMIN_REFUSED: _kind(Severity.DEGRADED, "user error"),
    Code.RIGHTS_UNKNOWN: _kind(Severity.DEGRADED, "error"),
    Code.NO_METADATA_ANSWER: _kind(Severity.DOWN, "error"),
    Code.NO_METADATA_QUORUM: _kind(Severity.DOWN, "answering members"),
    Code.NO_CLUSTER_FORMED: _kind(Severity.DOWN),
    Code.METADATA_MAJORITY_LOST: _kind(Severity.DOWN, "lost voters names"),
    Code.METADATA_NODE_DOWN: _kind(Severity.DEGRADED, "address error"),
    # "replaceable" is 0 if a majority lost its data, because no node can be added then.
    Code.METADATA_NODE_EMPTY: _kind(Severity.DEGRADED, "address replaceable"),
    Code.METADATA_NODE_DAMAGED: _kind(Severity.DEGRADED, "error replaceable"),
    Code.METADATA_NODE_LEARNER: _kind(Severity.HEALING),
    Code.DELETIONS_HELD: _kind(Severity.DEGRADED, "cause"),
    # It ends without an action. The conditions that it prolongs have severities of their own.
    Code.REPAIR_PAUSED: _kind(Severity.INFO, "until"),
    Code.NO_NEW_LEDGERS: _kind(Severity.DOWN, "writable bookies ensemble write_quorum ack_quorum"),
    Code.PLACEMENT_AT_LIMIT: _kind(Severity.DEGRADED, "level domains needed"),
    Code.NO_REPAIR: _kind(Severity.DEGRADED),
    Code.BOOKIE_DOWN: _kind(Severity.HEALING, "ledgers"),
    # "spare" more bookies can fail before no ledger can be created. It is -1 if none can be created now.
    Code.BOOKIE_DOWN_NO_REPLACEMENT: _kind(Severity.DEGRADED, "ledgers spare cause"),
    Code.BOOKIE_DOWN_UNUSED: _kind(Severity.INFO),
    # It is registered, and the client that asked for the status gets no answer, or another node's.
    Code.BOOKIE_UNANSWERED: _kind(Severity.DEGRADED, "address error"),
    Code.PROXY_UNANSWERED: _kind(Severity.DEGRADED, "proxy address error"),
    Code.BOOKIE_READ_ONLY: _kind(Severity.DEGRADED),
    # "ledger" is an example, or -1. "cause" is the event for which that ledger waits.
    Code.BOOKIE_LEAVING: _kind(Severity.HEALING, "ledgers stuck ledger cause running"),
    # "running" is 1 or 0.
    Code.BOOKIE_DRAINED: _kind(Severity.INFO, "running"),
    Code.UNDER_REPLICATED: _kind(Severity.HEALING, "ledgers"),
    Code.ONE_COPY_LEFT: _kind(Severity.AT_RISK, "ledgers ledger"),
    Code.DAMAGED_RECORDS: _kind(Severity.DEGRADED, "records key"),
    Code.DOMAIN_UNKNOWN: _kind(Severity.INFO, "level names"),
    Code.COPIES_TOGETHER: _kind(Severity.INFO, "ledgers ledger cause"),
    # "VERSION on NAME, NAME; VERSION on NAME", oldest first.
    Code.VERSIONS_DIFFER: _kind(Severity.INFO, "versions"),
    # "finalized" is the version of the cluster, "version" the lowest one of its nodes.
    Code.UPGRADE_NOT_FINALIZED: _kind(Severity.INFO, "finalized version"),
    Code.NODES_BELOW_FINALIZED: _kind(Severity.DEGRADED, "names finalized"),
    Code.STOP_NO_MAJORITY: _kind(Severity.DOWN, "answering voters names needed"),
    Code.STOP_NO_NEW_LEDGERS: _kind(Severity.DOWN, "writable ensemble write_quorum ack_quorum"),
    # "log" and "segment" are those of an open ledger, "" and -1 for other ledgers.
    Code.STOP_NO_COPY: _kind(Severity.DOWN, "ledger open log segment"),
    Code.STOP_ONE_COPY: _kind(Severity.AT_RISK, "ledger copies write_quorum"),
    Code.STOP_NO_RECOVERY: _kind(Severity.DOWN, "ledger log segment"),
    Code.STOP_NO_ACKS: _kind(Severity.DOWN, "ledger log segment acks ack_quorum"),
    Code.STOP_RECORD_UNREADABLE: _kind(Severity.DEGRADED, "key"),
    Code.STOP_COPIES_UNCERTAIN: _kind(Severity.DEGRADED),
    Code.STOP_MORE: _kind(Severity.DEGRADED, "count"),
}
"""The severity of each code where its reporter gives no other, and the names of its parameters."""

NODE_PARAMETERS = frozenset({"bookie", "node"})
"""The ID of the bookie, or the name of the metadata node, that a condition is about. Any code may have one of
them. It is added where the conditions of several nodes are collected."""


@dataclass(frozen=True, slots=True)
class HealthCondition:
    """One problem, or one fact that an operator may want to check."""

    code: str
    """A value of `Code`, or the code of a newer version."""
    severity: Severity
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    def about(self, **node: str) -> "HealthCondition":
        """Return the condition with the node that it is about: ``bookie=ID`` or ``node=NAME``."""
        assert node.keys() <= NODE_PARAMETERS, "only the node is added afterwards"
        return HealthCondition(self.code, self.severity, {**self.parameters, **_sanitized(node)})

    def with_severity(self, severity: Severity) -> "HealthCondition":
        """Return the condition with a severity that depends on more than one node."""
        return HealthCondition(self.code, severity, self.parameters)

    @property
    def bookie(self) -> str:
        """The ID of the bookie that it is about, or ""."""
        return self.text("bookie")

    @property
    def node(self) -> str:
        """The name of the metadata node that it is about, or ""."""
        return self.text("node")

    def text(self, name: str) -> str:
        """Return a text parameter, or "" if there is none."""
        value = self.parameters.get(name, "")
        return value if isinstance(value, str) else ""

    def integer(self, name: str, default: int = 0) -> int:
        """Return an integer parameter, or the default if there is none."""
        value = self.parameters.get(name, default)
        return value if isinstance(value, int) else default

    def as_map(self) -> dict[str, Any]:
        """Return the form in which it is sent and stored."""
        return {
            "code": self.code,
            "severity": self.severity.word,
            "parameters": dict(self.parameters),
        }


def condition(
    code: Code, severity: Severity | None = None, /, **parameters: Parameter
) -> HealthCondition:
    """Return a condition of this version.

    Args:
        code: The kind of condition.
        severity: Its severity here, by default that of `KINDS`.
        parameters: Those of `KINDS`, and at most one of `NODE_PARAMETERS`.
    """
    kind = KINDS[code]
    assert parameters.keys() - NODE_PARAMETERS == kind.parameters, f"{code}: {sorted(parameters)}"
    return HealthCondition(
        code.value, kind.severity if severity is None else severity, _sanitized(parameters)
    )


def worst_of(conditions: Iterable[HealthCondition]) -> Severity:
    """Return the highest severity, `Severity.INFO` if there is no condition."""
    return max(
        (health_condition.severity for health_condition in conditions), default=Severity.INFO
    )


def worst_first(conditions: Iterable[HealthCondition]) -> list[HealthCondition]:
    """Return the conditions by severity; those of one severity stay in their order."""
    return sorted(conditions, key=lambda health_condition: -health_condition.severity)


def as_maps(conditions: Iterable[HealthCondition]) -> list[dict[str, Any]]:
    """Return the form in which conditions are sent and stored."""
    return [health_condition.as_map() for health_condition in conditions]


def _sanitized(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Return the parameters with each text as one printable line, and each integer within its limits."""
    return {
        name: _line(value) if isinstance(value, str) else max(-INTEGER_MAX, min(value, INTEGER_MAX))
        for name, value in parameters.items()
    }


def _line(value: str) -> str:
    """Return one printable line, since others may choose names in it that would move a terminal's cursor."""
    # Not a space at the end: the value that is read back must be the one that was sent.
    line = " ".join(value.split())[:TEXT_CHARACTERS_MAX].rstrip()
    return "".join(c if c.isprintable() else "?" for c in line)


# --- what a peer sends ----------------------------------------------------------------------------


def _severity(value: Any) -> Severity:
    if type(value) is not str:
        raise SchemaError(f"{type(value).__name__} instead of a severity")
    return _BY_WORD.get(value, Severity.DEGRADED)  # one that a newer version has


def _parameters(value: Any) -> dict[str, Parameter]:
    if type(value) is not dict or len(value) > PARAMETERS_MAX:
        raise SchemaError(f"parameters are no map of at most {PARAMETERS_MAX}")
    for name, parameter in value.items():
        if type(name) is not str or not name or len(name) > CODE_CHARACTERS_MAX:
            raise SchemaError("the name of a parameter is malformed")
        if type(parameter) is str and len(parameter) <= TEXT_CHARACTERS_MAX:
            continue
        if type(parameter) is not int or abs(parameter) > INTEGER_MAX:
            raise SchemaError("a parameter is neither a short text nor an integer")
    return _sanitized(value)


_MAP = fields(code=text(CODE_CHARACTERS_MAX, 1), severity=_severity, parameters=_parameters)


def _condition(value: Any) -> HealthCondition:
    decoded = _MAP(value)
    return HealthCondition(_line(decoded["code"]), decoded["severity"], decoded["parameters"])


def from_map(value: Mapping[str, Any]) -> HealthCondition:
    """Return the condition of a map that this version made (`HealthCondition.as_map`)."""
    return _condition(dict(value))


_CONDITIONS = rows(_condition, CONDITIONS_MAX)
_TEXTS = rows(text(TEXT_CHARACTERS_MAX), CONDITIONS_MAX)


def conditions_form(value: Any) -> tuple[HealthCondition, ...]:
    """Check the conditions that a peer sends (a form of `schema.py`)."""
    found: tuple[HealthCondition, ...] = _CONDITIONS(value)
    return found


def legacy_form(value: Any) -> tuple[HealthCondition, ...]:
    """Return the texts that a peer without codes sends, as conditions (a form of `schema.py`)."""
    return tuple(condition(Code.LEGACY_TEXT, text=legacy_text) for legacy_text in _TEXTS(value))


def either_form(new: Any, old: Any) -> tuple[HealthCondition, ...]:
    """Return the conditions of a peer.

    They are those of the new field if it was sent (not None), otherwise the old field's texts.
    """
    return legacy_form(old) if new is None else conditions_form(new)


# --- fields for versions without codes ------------------------------------------------------------

_LEGACY_WORDS: Mapping[str, str] = {
    # Commit fea56d70 decides from these words: metadata/storage/metadata_disk_space.py,
    # cluster/status/safe_to_stop.py, cluster/status/cluster_overview.py.
    Code.METADATA_DISK_LOW: "no room",
    Code.LIMBO: "limbo",
    Code.ENTRIES_CORRUPT_WITHOUT_COPY: "without a good copy",
}
_LEGACY_SEVERITIES: Mapping[Severity, str] = {
    Severity.INFO: "healed",
    Severity.HEALING: "healing",
}


def legacy_texts(
    conditions: Sequence[HealthCondition], text_of: Callable[[HealthCondition], str]
) -> list[str]:
    """Return the field that a version without codes reads, with the words from which it decides.

    ``text_of`` gives the text of a condition. Nothing depends on it.
    """
    texts = []
    for health_condition in conditions:
        word = _LEGACY_WORDS.get(health_condition.code) or _LEGACY_SEVERITIES.get(
            health_condition.severity, ""
        )
        texts.append(
            _line(f"{word}: {text_of(health_condition)}" if word else text_of(health_condition))
        )
    return texts


# --- what a node reports of itself ----------------------------------------------------------------


Check = Callable[[], HealthCondition | Sequence[HealthCondition] | None]
"""Returns the present conditions of one kind."""


class NodeConditions:
    """The conditions of one node, in the order in which they began.

    A condition is set again while it lasts, which replaces its parameters, and cleared when it has ended.
    A code that holds for several units at a time (`Code.WORK_FAILED`) is set once per unit.
    """

    def __init__(self) -> None:
        self._set: dict[tuple[str, str], HealthCondition] = {}
        self._checks: list[Check] = []

    def set(self, health_condition: HealthCondition, unit: str = "") -> None:
        """Report a condition, in place of the one with its code and unit."""
        self._set[health_condition.code, unit] = health_condition

    def clear(self, code: Code, unit: str = "") -> None:
        """Stop reporting a condition. A condition that was not set is not an error."""
        self._set.pop((code.value, unit), None)

    def add_check(self, check: Check) -> None:
        """Call ``check`` each time the conditions are read, for conditions without an event."""
        self._checks.append(check)

    def current(self) -> tuple[HealthCondition, ...]:
        """Return the present conditions."""
        conditions = list(self._set.values())
        for check in self._checks:
            checked = check()
            if isinstance(checked, HealthCondition):
                conditions.append(checked)
            else:
                conditions += checked or ()
        return tuple(conditions)


def limit_conditions(conditions: Sequence[HealthCondition]) -> tuple[HealthCondition, ...]:
    """Return at most `CONDITIONS_MAX` conditions.

    If more were given, the worst are returned, the worst first. The last condition then counts those that are
    omitted and has the worst severity of them. Otherwise, the order is not changed.
    """
    if len(conditions) <= CONDITIONS_MAX:
        return tuple(conditions)
    ordered = worst_first(conditions)
    omitted = ordered[CONDITIONS_MAX - 1 :]
    omitted_count = condition(Code.MORE_CONDITIONS, worst_of(omitted), count=len(omitted))
    return (*ordered[: CONDITIONS_MAX - 1], omitted_count)


# --- repairs ----------------------------------------------------------------------------------------

REPAIRED_SHOWN_S = 3600.0
"""How long repairs are reported after the last one. Most end before an operator can see them."""


@dataclass(slots=True)
class RepairCount:
    """Repairs of one kind, until there was none for `REPAIRED_SHOWN_S`."""

    count: int = 0
    last_at: float = -REPAIRED_SHOWN_S

    def add(self, now: float) -> None:
        """Count one more repair."""
        if not self.is_reported(now):
            self.count = 0
        self.count += 1
        self.last_at = now

    def is_reported(self, now: float) -> bool:
        """Whether the repairs are still reported."""
        return self.count > 0 and now < self.last_at + REPAIRED_SHOWN_S
