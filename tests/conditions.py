"""Health conditions for tests: one of each code, and their codes in whatever form a test has them."""

from collections.abc import Iterable, Mapping
from typing import Any

from distributedlog.runtime.declarations.health_conditions import (
    KINDS,
    HealthCondition,
    Parameter,
    condition,
)

INTEGERS = {
    *("count", "ledgers", "below", "reads", "minutes", "free_bytes_min", "extents_max"),
    *("free_bytes", "needed_bytes", "log_full", "snapshot_failed", "last", "entry", "answering"),
    *("members", "lost", "voters", "replaceable", "writable", "bookies", "ensemble"),
    *("write_quorum", "ack_quorum", "domains", "needed", "spare", "stuck", "ledger", "running"),
    *("tries", "records", "open", "segment", "copies", "acks"),
}
"""Parameters that are numbers; the others are texts."""


def codes_of(conditions: Iterable[HealthCondition | Mapping[str, Any]]) -> list[str]:
    """Return the code of each condition, of objects and of ``--json`` output."""
    return [one.code if isinstance(one, HealthCondition) else one["code"] for one in conditions]


def every_condition(number: int = 2) -> list[HealthCondition]:
    """One of each code."""
    found = []
    for code, kind in KINDS.items():
        of_code: dict[str, Parameter] = {
            name: number if name in INTEGERS else f"a {name}" for name in kind.parameters
        }
        found.append(condition(code, **of_code))
    return found
