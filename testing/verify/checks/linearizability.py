"""Check the linearizability of registers by search (Wing and Gong, with Lowe's just-in-time order), per key.

This search uses no knowledge about versions, only the semantics of one register. It checks the same histories
as register_check.py, which is faster and reports more detail. A test compares the results of both checkers.

The search processes the events of a key in the order of time. A *configuration* is one possible course of
events so far: the state of the register, and the set of pending calls that have taken effect. A call that
returns must have taken effect before, with its answer as the result. So every configuration is extended by
effects of pending calls until it has. If no configuration is left, no order explains the observations.

A call with an unknown outcome remains pending forever. There are few configurations as long as few calls on
one key overlap.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..history.run_history import Outcome, RegisterCall
from .history_check import Violation

CONFIGURATIONS_MAX = 200_000
"""With more configurations at one time, the search is abandoned without a result (`SearchTooWide`)."""


class SearchTooWide(Exception):
    """Too many calls with unknown outcome are pending at once, so the search has no result."""


class _State(NamedTuple):
    version: int
    value: str


_Configuration = tuple[_State, frozenset[int]]


def check_linearizable(calls: Iterable[RegisterCall]) -> int:
    """Search for an order, key by key, and return the number of checked calls.

    Raises:
        Violation: No order explains the answers.
        SearchTooWide: There are too many configurations.
    """
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
            del pending[n]  # an unknown change that can no longer take effect
            configurations = {
                (state, applied_calls - {n}) for state, applied_calls in configurations
            }


def _matters(call: RegisterCall) -> bool:
    if call.outcome is Outcome.UNKNOWN:
        return call.kind == "cas"  # a read without an answer proves nothing
    return call.outcome is Outcome.OK


def _too_late(call: RegisterCall, version_min: int) -> bool:
    return call.outcome is Outcome.UNKNOWN and call.expected < version_min


def _after_return(
    configurations: set[_Configuration], pending: dict[int, RegisterCall], number: int
) -> set[_Configuration]:
    """Return all configurations that follow from these, and in which call ``number`` has taken effect."""
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
                    raise SearchTooWide(f"{len(pending)} calls of {call.key} are pending at once")
    return results


def _effect(call: RegisterCall, state: _State) -> _State | None:
    """Return the state after the call; None if its answer is impossible in this state."""
    if call.outcome is Outcome.UNKNOWN:
        if state.version != call.expected:
            return None  # without effect, as if it never happened
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
