"""Who says a record's txid: a rule of the log, kept in its state, the same for all who write (H147; pure).

``given``: whoever writes the record. ``count``, ``ms``, ``bytes``: the log. ``auto``: not decided yet; the
first record decides: with a txid ``given``, without ``ms``. ``ms`` is stored *before* that record is sent;
``given`` by the close of its segment, for whoever finds a record in a log of ``auto`` knows that it came with
a txid. Two that open an empty log cannot decide differently: the second one fences the first, and closes its
segments before it writes.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate

from ..runtime.errors import InvalidRequest, UnsupportedFormat
from .record import TXID_MAX, TXIDS_INDEX, TXIDS_OWN, TXIDS_SAME
from .segments import UNKNOWN
from .state import AUTO, BYTES, COUNT, GIVEN, MS, TXID_RULES, LogState


def check_rule(rule: str) -> str:
    """Return it, or raise `InvalidRequest` saying which there are."""
    if rule not in TXID_RULES:
        known = ", ".join(f'"{one}"' for one in TXID_RULES)
        raise InvalidRequest(f"txids is one of {known}, not {rule!r:.40}")
    return rule


def misfit(rule: str, given: bool, name: str) -> InvalidRequest:
    """The error of a record with a txid in a log that gives them, or without in one that does not."""
    if given:
        return InvalidRequest(
            f'log "{name}" gives its records\' txids itself (txids="{rule}"): write the payload alone, '
            'or make a log with create_log(name, txids="given")'
        )
    return InvalidRequest(
        f'log "{name}" wants a txid with each record (txids="{rule}"): write LogRecord(txid, payload), '
        'or make a log with create_log(name, txids="count") or "ms"'
    )


def decided_by(given: bool) -> str:
    """The rule of a log whose first record comes with a txid, or without."""
    return GIVEN if given else MS


def rule_of(txids: Sequence[object] | None) -> str:
    """As `decided_by`, of many."""
    return decided_by(txids is not None and len(txids) > 0 and txids[0] is not None)


class TxidSource:
    """The txids that one writer gives, in a log that gives them itself."""

    def __init__(self, rule: str, last: int, wall_ms: Callable[[], int], name: str) -> None:
        """``last``: the log's greatest so far, -1: none. Raises `UnsupportedFormat` for an unknown rule."""
        if rule not in TXID_RULES:
            raise UnsupportedFormat(
                f'log "{name}" has txids by the rule "{rule}", which this program does not know'
            )
        self.rule = rule
        self.last = last
        self._wall_ms = wall_ms

    def draw(self, sizes: Sequence[int]) -> list[int]:
        """Of the next records, which are taken now; ``sizes``: of their payloads, bytes."""
        number, last = len(sizes), self.last
        if self.rule == MS:
            txids = [min(max(self._wall_ms(), last), TXID_MAX)] * number
        elif self.rule == COUNT:
            txids = list(range(last + 1, last + 1 + number))
        else:
            assert self.rule == BYTES, "else whoever writes gives them"
            txids = list(accumulate(sizes, initial=max(last, 0)))[1:]
        self.last = txids[-1]
        return txids

    def draw_packed(self, offsets: memoryview) -> "array[int]":
        """As `draw`, of records whose payloads are between these offsets, the first of which is 0."""
        number, last = len(offsets) - 1, self.last
        if self.rule == MS:
            txids = array("q", [min(max(self._wall_ms(), last), TXID_MAX)]) * number
        elif self.rule == COUNT:
            txids = array("q", range(last + 1, last + 1 + number))
        else:
            assert self.rule == BYTES, "else whoever writes gives them"
            before = max(last, 0)
            txids = array("q", [before + end for end in offsets[1:].tolist()])
        self.last = txids[-1]
        return txids

    def draw_one(self, size: int) -> int:
        """As `draw`, of one record."""
        rule, last = self.rule, self.last
        if rule == COUNT:
            txid = last + 1
        elif rule == MS:
            txid = min(max(self._wall_ms(), last), TXID_MAX)
        else:
            assert rule == BYTES, "else whoever writes gives them"
            txid = max(last, 0) + size
        self.last = txid
        return txid

    def draw_for_sets(self, number: int, sets: Sequence[tuple[int, int]]) -> list[int]:
        """As `draw`, of ``number`` records of which some are in sets: first record and number of each, in
        order. A set has one."""
        numbers: list[int] = []
        at = 0
        for first, many in sets:
            numbers += [1] * (first - at)
            numbers.append(many)
            at = first + many
        numbers += [1] * (number - at)
        drawn = self.draw(numbers)
        return [txid for txid, many in zip(drawn, numbers, strict=True) for _ in range(many)]


def at_link(state: LogState, own: bool, now_ms: int) -> tuple[LogState, int, int]:
    """The state with its rule decided, and the base and rule of the txids of a segment that is linked next.

    ``own``: its records have txids of their own. Those without get, in a log whose txids are given, the last
    one: a clock would poison it for good (H147). Raises `InvalidRequest` where they do not fit the rule.
    """
    if state.txid_rule == AUTO:
        state = state.with_txid_rule(decided_by(own))
    rule, last = state.txid_rule, state.last_txid
    if rule == BYTES or rule not in TXID_RULES:
        raise InvalidRequest(f'log "{state.name}" has txids="{rule}": nothing is linked to it')
    if own:
        if rule != GIVEN:
            raise misfit(rule, True, state.name)
        return state, UNKNOWN, TXIDS_OWN
    if rule == COUNT:
        return state, last + 1, TXIDS_INDEX
    base = max(last, 0) if rule == GIVEN else min(max(now_ms, last), TXID_MAX)
    return state, base, TXIDS_SAME
