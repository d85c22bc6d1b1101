"""Linearizability of registers by search (Wing and Gong, with Lowe's just-in-time order), a key at a time.

Told nothing of how versions come about, only what one register does, it judges the same histories as
register_check.py, which is faster and says more: two independent opinions, held together by a test.

The events of a key are gone through in time. A *configuration* is one way in which all could have happened
so far: the register's state, and which of the calls now under way have had their effect. A call that returns
must have had its effect by then, with the answer it gave: every configuration is extended by effects of
calls under way until it has. No configuration left: no order explains what was seen. A call of unknown
outcome stays under way for ever. Cost: few configurations as long as few calls overlap; keys are apart.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..history.run_history import Outcome, RegisterCall
from .history_check import Violation

CONFIGURATIONS_MAX = 200_000
"""More at one moment: given up, which is no verdict (`SearchTooWide`)."""


class SearchTooWide(Exception):
    """Too many calls of unknown outcome at once: the search says nothing."""


class _State(NamedTuple):
    version: int
    value: str


_Configuration = tuple[_State, frozenset[int]]


def check_linearizable(calls: Iterable[RegisterCall]) -> int:
    """Search for an order, key by key; how many calls were judged. Raises `Violation`, `SearchTooWide`."""
    by_key: dict[str, list[RegisterCall]] = {}
    for call in calls:
        by_key.setdefault(call.key, []).append(call)
    for key in sorted(by_key):
        _search(key, by_key[key])
    return sum(map(len, by_key.values()))


def _search(key: str, all_calls: Sequence[RegisterCall]) -> None:
    calls = [call for call in all_calls if _matters(call)]
    events = [(call.begun_at, 0, n) for n, call in enumerate(calls)]
    events += [(call.ended_at, 1, n) for n, call in enumerate(calls) if call.outcome is Outcome.OK]
    configurations: set[_Configuration] = {(_State(0, ""), frozenset())}
    pending: dict[int, RegisterCall] = {}
    for when, is_return, number in sorted(events):
        if not is_return:
            pending[number] = calls[number]
            continue
        configurations = _after_return(configurations, pending, number)
        del pending[number]
        if not configurations:
            call = calls[number]
            raise Violation(
                f"M5 {key}: no order explains the answer of {call.process}'s {call.kind} at t={when:.4f}:"
                f" version {call.version} {call.value!r}"
            )
        version_min = min(state.version for state, _ in configurations)
        for n in [n for n, call in pending.items() if _too_late(call, version_min)]:
            del pending[n]  # an unknown change that can have no effect any more
            configurations = {
                (state, applied_calls - {n}) for state, applied_calls in configurations
            }


def _matters(call: RegisterCall) -> bool:
    if call.outcome is Outcome.UNKNOWN:
        return call.kind == "cas"  # a reading without an answer tells nothing
    return call.outcome is Outcome.OK


def _too_late(call: RegisterCall, version_min: int) -> bool:
    return call.outcome is Outcome.UNKNOWN and call.expected < version_min


def _after_return(
    configurations: set[_Configuration], pending: dict[int, RegisterCall], number: int
) -> set[_Configuration]:
    """Every way on in which call ``number`` has had its effect."""
    results: set[_Configuration] = set()
    visited: set[_Configuration] = set()
    todo: list[_Configuration] = []
    for state, applied_calls in configurations:
        if number in applied_calls:
            results.add((state, applied_calls - {number}))
        else:
            todo.append((state, applied_calls))
    while todo:
        state, applied_calls = todo.pop()
        for n, call in pending.items():
            if n in applied_calls:
                continue
            next_state = _effect(call, state)
            if next_state is None:
                continue
            if n == number:
                results.add((next_state, applied_calls))
                continue
            next_configuration = (next_state, applied_calls | {n})
            if next_configuration not in visited:
                visited.add(next_configuration)
                todo.append(next_configuration)
                if len(visited) > CONFIGURATIONS_MAX:
                    raise SearchTooWide(f"{len(pending)} calls of {call.key} are under way at once")
    return results


def _effect(call: RegisterCall, state: _State) -> _State | None:
    """The state after the call, or None: it cannot have happened here with the answer that it gave."""
    if call.outcome is Outcome.UNKNOWN:
        if state.version != call.expected:
            return None  # without effect: as if it never happened
        return _State(call.expected + 1, call.wrote)
    answered = _State(call.version, call.value)
    if call.kind == "get":
        return state if answered == state else None
    if call.succeeded:
        if state.version != call.expected:
            return None
        next_state = _State(call.expected + 1, call.wrote)
        return next_state if next_state == answered else None
    return state if state.version != call.expected and answered == state else None
