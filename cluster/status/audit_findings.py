"""The findings of `dlog audit`, and those that follow from one record of version 0.1 (pure).

Version 0.1 stored some values that this version reads in another way, or that its own programs cannot read.
An operator should learn of them before the upgrade, so none of these checks needs an upgraded node.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from ...log.model.log_keys import incarnation_text
from ...log.model.log_state import AUTO, GIVEN, LogState, stores_bool_last_txid
from ...log.model.stored_settings import StoredSettings, infinite_options
from ...log.model.txid_policy import policy_name
from ...runtime.declarations.health_conditions import Severity
from ...runtime.declarations.versions import UNREPORTED, Version
from ...runtime.interfaces.host import Buffer


class FindingCode(enum.StrEnum):
    """A kind of finding. Programs decide from it, so a value never changes and is never reused."""

    RECORD_UNREADABLE = "record_unreadable"
    RECORD_UNSUPPORTED = "record_unsupported"
    VERSION_UNREADABLE = "version_unreadable"
    INDEX_DIFFERS = "index_differs"
    LEDGER_MISSING = "ledger_missing"
    LEDGER_UNREFERENCED = "ledger_unreferenced"
    TXID_BOOLEAN = "txid_boolean"
    OPTION_INFINITE = "option_infinite"
    OPTION_OUT_OF_RANGE = "option_out_of_range"
    TXIDS_UNSEARCHABLE = "txids_unsearchable"
    TXID_POLICIES_MIXED = "txid_policies_mixed"
    TXID_POLICIES_DIFFER = "txid_policies_differ"


_DEGRADED, _INFO = Severity.DEGRADED, Severity.INFO
_LAST_RESORT = (
    "Run dlog metadata backup, and report this bug. Restore an older backup only as the last step: it undoes"
    " all later changes of the cluster"
)
_KINDS: dict[FindingCode, tuple[Severity, str]] = {
    FindingCode.RECORD_UNREADABLE: (_DEGRADED, _LAST_RESORT),
    FindingCode.RECORD_UNSUPPORTED: (_DEGRADED, "Use the version of dlog that wrote it"),
    FindingCode.VERSION_UNREADABLE: (_DEGRADED, "Store it again with dlog cluster finalize"),
    FindingCode.INDEX_DIFFERS: (_DEGRADED, "Report this bug, with the output of dlog ledger show"),
    FindingCode.LEDGER_MISSING: (_DEGRADED, _LAST_RESORT),
    FindingCode.LEDGER_UNREFERENCED: (
        _DEGRADED,
        "Report this bug, with the output of dlog ledger show. The ledger uses disk space until then",
    ),
    FindingCode.TXID_BOOLEAN: (
        _DEGRADED,
        "Upgrade all nodes and clients. Then the log is readable; delete it if you do not need it",
    ),
    FindingCode.OPTION_INFINITE: (
        _DEGRADED,
        "Set it again before the upgrade: dlog log config NAME (or --namespace) set OPTION=inf",
    ),
    FindingCode.OPTION_OUT_OF_RANGE: (
        _DEGRADED,
        "Set another value, or unset it: dlog log config NAME (or --namespace) unset OPTION",
    ),
    FindingCode.TXIDS_UNSEARCHABLE: (
        _INFO,
        "If searches are required, copy the records to a new log after the upgrade is finalized",
    ),
    FindingCode.TXID_POLICIES_MIXED: (
        _INFO,
        "Before the upgrade, let all of its clients give transaction IDs, or use separate logs",
    ),
    FindingCode.TXID_POLICIES_DIFFER: (_INFO, "Upgrade the clients that write to it"),
}
"""For each code: its severity, and the next step of an operator."""
_HARMLESS_SINCE: dict[FindingCode, Version] = {
    FindingCode.TXID_BOOLEAN: Version(0, 2),
    FindingCode.OPTION_INFINITE: Version(0, 2),
}
"""Findings about values that only older versions cannot read, with the first version that reads them."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A reference without its counterpart, or a record that needs attention."""

    code: FindingCode
    where: str
    """The object, such as ``log "orders" (…)``."""
    what: str
    """The problem."""
    ledger: int | None = None
    """None if the object is not a ledger, and has no readable ledger ID."""
    count: int = 1
    """The number of objects. More than 1 only if they are not listed."""
    record_step: str = ""
    """The next step if the kind of the record has its own (`damaged_records.NEXT_STEPS`)."""
    finalized: Version = UNREPORTED
    """The version for which the cluster is finalized."""

    @property
    def is_harmless(self) -> bool:
        """Whether each version that may run in this cluster reads the value."""
        return self.code in _HARMLESS_SINCE and self.finalized >= _HARMLESS_SINCE[self.code]

    @property
    def severity(self) -> Severity:
        """`Severity.INFO` if the object stays usable without any action."""
        return _INFO if self.is_harmless else _KINDS[self.code][0]

    @property
    def next_step(self) -> str:
        """The next step of an operator."""
        if self.is_harmless:
            return (
                "No action is required: the cluster is finalized for a version that reads the value"
            )
        return self.record_step or _KINDS[self.code][1]


def log_text(log_id: int, name: str = "") -> str:
    """Return a log as findings show it."""
    return (
        f'log "{name}" ({incarnation_text(log_id)})' if name else f"log {incarnation_text(log_id)}"
    )


def state_findings(value: Buffer, *, has_assigned_txids: bool) -> Iterator[AuditFinding]:
    """Yield the findings about the state of a log.

    Args:
        value: The stored state.
        has_assigned_txids: Whether a linked segment of the log has txids that were assigned by its policy.
    Raises:
        CorruptData: The value is invalid.
        UnsupportedFormat: A newer version wrote the value.
    """
    state = LogState.decode(value)
    where = log_text(state.log_id, state.name)
    if stores_bool_last_txid(value):
        what = "stores true or false as its last txid. Programs of version 0.1 cannot read the log"
        yield AuditFinding(FindingCode.TXID_BOOLEAN, where, what)
    if not state.is_txid_searchable:
        what = "its txids decreased under version 0.1, so they cannot be searched"
        yield AuditFinding(FindingCode.TXIDS_UNSEARCHABLE, where, what)
    if state.policy == GIVEN and has_assigned_txids:
        what = (
            "has records with given txids, and linked segments without. This version assigns such segments"
            " txids of the clock, and then refuses lower ones"
        )
        yield AuditFinding(FindingCode.TXID_POLICIES_MIXED, where, what)
    if state.txid_policy and state.txid_rule not in (state.txid_policy, AUTO):
        what = (
            f'has the txid policy "{policy_name(state.txid_policy)}", but a client of version 0.1 wrote to'
            f' it. Such clients use "{policy_name(state.txid_rule)}", and refuse records that do not match it'
        )
        yield AuditFinding(FindingCode.TXID_POLICIES_DIFFER, where, what)


def settings_findings(value: Buffer, where: str) -> Iterator[AuditFinding]:
    """Yield the findings about the stored settings of a log or namespace.

    Args:
        value: The stored settings.
        where: The log or namespace.
    Raises:
        CorruptData: The value is invalid.
        UnsupportedFormat: A newer version wrote the value.
    """
    settings = StoredSettings.decode(bytes(value))
    for name in infinite_options(value):
        what = f"option {name} is stored as inf. Bookies of version 0.1 stop when they read it"
        yield AuditFinding(FindingCode.OPTION_INFINITE, where, what)
    for problem in settings.out_of_range:
        yield AuditFinding(FindingCode.OPTION_OUT_OF_RANGE, where, problem)
