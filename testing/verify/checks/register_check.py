"""Check the linearizability of versioned compare-and-set registers (M5), without search.

Every answer has a version, and one call creates each version, so the order of the writes is known. Only the
time intervals remain to be checked: a call that began after an answer must not return an older version. A
test compares the results with a brute-force search on small histories.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ..history.run_history import Outcome, RegisterCall
from .history_check import Violation

NEVER = float("inf")


@dataclass(slots=True)
class _Write:
    value: str | None
    """None if one of several calls with unknown outcome made it."""
    begun_at: float


def check_registers(calls: Iterable[RegisterCall]) -> int:
    """Check all registers, and return the number of checked calls.

    Raises:
        Violation: A register is not linearizable.
    """
    by_key: dict[str, list[RegisterCall]] = {}
    count = 0
    for call in calls:
        by_key.setdefault(call.key, []).append(call)
        count += 1
    for key in sorted(by_key):
        _check_register(key, by_key[key])
    return count


def _check_register(key: str, calls: list[RegisterCall]) -> None:
    writes, possible_writes = _writes(key, calls)
    observed: list[tuple[int, RegisterCall]] = []
    for call in calls:
        if call.outcome is not Outcome.OK:
            continue
        if call.kind == "cas" and not call.succeeded and call.version == call.expected:
            raise Violation(f"M5 {key}: refused at version {call.expected}, which was expected")
        if not call.version and call.value:
            raise Violation(f"M5 {key}: a value, {call.value}, at version 0")
        if call.version:
            _explain(key, call.version, call.value, writes, possible_writes)
        observed.append((call.version, call))
    for version in range(1, max((version for version, _ in observed), default=0)):
        _explain(
            key, version, None, writes, possible_writes
        )  # a later version proves that it existed
    _check_begins(key, observed, writes)
    _check_intervals(key, observed)


def _writes(
    key: str, calls: list[RegisterCall]
) -> tuple[dict[int, _Write], dict[int, list[RegisterCall]]]:
    """Return the call that made each version, and by version the unknown calls that may have made it."""
    writes: dict[int, _Write] = {}
    possible_writes: dict[int, list[RegisterCall]] = {}
    for call in calls:
        if call.kind != "cas":
            continue
        if call.outcome is Outcome.UNKNOWN:
            possible_writes.setdefault(call.expected + 1, []).append(call)
        elif call.outcome is Outcome.OK and call.succeeded:
            if call.version != call.expected + 1:
                raise Violation(
                    f"M5 {key}: a change of version {call.expected} made version {call.version}"
                )
            if call.version in writes:
                raise Violation(f"M5 {key}: version {call.version} was made twice")
            writes[call.version] = _Write(call.wrote, call.begun_at)
    return writes, possible_writes


def _explain(
    key: str,
    version: int,
    value: str | None,
    writes: dict[int, _Write],
    possible_writes: dict[int, list[RegisterCall]],
) -> None:
    """Check that some call made a version, with ``value`` if that is known."""
    write = writes.get(version)
    if write is None:
        candidates = [
            call
            for call in possible_writes.get(version, [])
            if value is None or call.wrote == value
        ]
        if not candidates:
            raise Violation(f"M5 {key}: version {version} ({value}) was made by no call")
        writes[version] = _Write(value, min(call.begun_at for call in candidates))
    elif write.value is None and value is not None:
        del writes[version]  # its value is now known
        _explain(key, version, value, writes, possible_writes)
    elif value is not None and write.value != value:
        raise Violation(f"M5 {key}: version {version} is {write.value} and {value}")


def _check_begins(
    key: str, observed: list[tuple[int, RegisterCall]], writes: dict[int, _Write]
) -> None:
    """Check that no answer has a version, or a later one, before the call that made it began."""
    earliest_end: dict[int, float] = {}
    for version, call in observed:
        earliest_end[version] = min(call.ended_at, earliest_end.get(version, NEVER))
    end = NEVER
    for version in range(max(earliest_end, default=0), 0, -1):
        end = min(end, earliest_end.get(version, NEVER))
        if end < writes[version].begun_at:
            raise Violation(f"M5 {key}: version {version} was seen before its write began")


def _check_intervals(key: str, observed: list[tuple[int, RegisterCall]]) -> None:
    by_end = sorted(observed, key=lambda item: item[1].ended_at)
    newest_answered, index = 0, 0
    for version, call in sorted(observed, key=lambda item: item[1].begun_at):
        while index < len(by_end) and by_end[index][1].ended_at < call.begun_at:
            newest_answered = max(newest_answered, by_end[index][0])
            index += 1
        if version < newest_answered:
            raise Violation(
                f"M5 {key}: {call.process} read version {version} in a call begun at"
                f" {call.begun_at:.3f}, after version {newest_answered} had been returned"
            )
