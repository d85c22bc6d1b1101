"""Txid policies: how an omitted txid is filled in, and a given one checked (pure; decision 109).

Any client may append with or without a txid. A given txid is stored unchanged. One that is omitted is
filled in by the policy, which is chosen when the log is made and stored in its state:

    auto (default)   max(last + 1, now in ms)
    strict           the same; a given txid below the last one is refused. Stored as ``given``
    count            last + 1
    ms               max(last, now in ms)
    bytes            the offset after the record, of a log that is a byte stream; it takes no given txid

"Last" is the greatest txid so far. Before a given one below it is sent, the log's state records that.
Afterwards only programs that store greatest txids write to the log (`LogState.with_unordered`).
"""

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

from ...runtime.declarations.options import quoted
from ...runtime.interfaces.errors import InvalidRequest, TransactionIdOutOfOrder, UnsupportedFormat
from ..format.record import TXID_MAX, TXIDS_INDEX, TXIDS_OWN, TXIDS_SAME
from .log_state import AUTO, BYTES, COUNT, GIVEN, MS, TXID_RULES, LogState
from .segment_record import UNKNOWN

STRICT = "strict"
POLICIES = (AUTO, STRICT, COUNT, MS, BYTES)
"""As users name them."""


def stored_policy(name: str) -> str:
    """Return what is stored for a policy's name. Raises `InvalidRequest` for an unknown one.

    Clients of version 0.1 send ``given``, which is what ``strict`` was called.
    """
    if name not in (*POLICIES, GIVEN):
        known = ", ".join(POLICIES)
        raise InvalidRequest(f"unknown txid policy {quoted(name)}: use one of {known}")
    return GIVEN if name == STRICT else name


def policy_name(stored: str) -> str:
    """Return the name of a stored policy."""
    return STRICT if stored == GIVEN else stored


def refuse_given(name: str) -> InvalidRequest:
    """Return the error of a record with a txid in a byte stream."""
    return InvalidRequest(
        f'log "{name}" is a byte stream, and its txids are byte offsets: send records without a txid'
    )


def out_of_order(txid: int, last: int, name: str) -> TransactionIdOutOfOrder:
    """Return the error of a txid that is lower than one before it."""
    return TransactionIdOutOfOrder(
        f'log "{name}" has the txid policy "{STRICT}": txid {txid} is lower than {last} before it'
    )


_CLOCKED = (AUTO, GIVEN)


NONE_IS_FINE = -2
"""Below each txid, and below the -1 that stands for an empty log's last one."""


class TxidAssigner:
    """Fills in the txids of one writer's records, and has the greatest txid so far."""

    __slots__ = ("_wall_ms", "draws", "last", "most", "rule")

    def __init__(self, rule: str, last: int, wall_ms: Callable[[], int], name: str) -> None:
        """``last``: the log's greatest so far, -1: none. Raises `UnsupportedFormat` for an unknown rule."""
        if rule not in TXID_RULES:
            raise UnsupportedFormat(
                f'log "{name}" has the txid policy "{rule}", which this program does not know'
            )
        self.rule = rule
        """The stored name of the policy."""
        self.last = last
        """The greatest so far. The writer raises it for given txids."""
        # Here, not in `TxidAdmission` which sets both: `LogWriter.submit` reads them for each record.
        self.draws = True
        """Is a payload alone plainly fine?"""
        self.most = NONE_IS_FINE
        """The greatest given txid that is plainly fine."""
        self._wall_ms = wall_ms

    def draw(self, sizes: Sequence[int]) -> list[int]:
        """Of the next records, which are taken now; ``sizes``: of their payloads, bytes."""
        number, last = len(sizes), self.last
        if self.rule == MS:
            txids = [min(max(self._wall_ms(), last), TXID_MAX)] * number
        elif self.rule == BYTES:
            txids = list(accumulate(sizes, initial=max(last, 0)))[1:]
        else:
            first = self._next()
            txids = list(range(first, first + number))
            if txids[-1] > TXID_MAX:
                txids = [min(txid, TXID_MAX) for txid in txids]
        self.last = txids[-1]
        return txids

    def draw_packed(self, offsets: memoryview) -> "array[int]":
        """As `draw`, of records whose payloads are between these offsets, the first of which is 0."""
        number, last = len(offsets) - 1, self.last
        if self.rule == MS:
            txids = array("q", [min(max(self._wall_ms(), last), TXID_MAX)]) * number
        elif self.rule == BYTES:
            before = max(last, 0)
            txids = array("q", [before + end for end in offsets[1:].tolist()])
        else:
            first = self._next()
            if first + number - 1 > TXID_MAX:
                txids = array("q", [min(first + k, TXID_MAX) for k in range(number)])
            else:
                txids = array("q", _counted(first, number))
        self.last = txids[-1]
        return txids

    def draw_one(self, size: int) -> int:
        """As `draw`, of one record."""
        rule, last = self.rule, self.last
        if rule in _CLOCKED:
            txid = self._wall_ms()
            if txid <= last:
                txid = last + 1
        elif rule == COUNT:
            txid = last + 1
        elif rule == MS:
            txid = max(self._wall_ms(), last)
        else:
            txid = max(last, 0) + size
        if txid > TXID_MAX:
            txid = TXID_MAX
        self.last = txid
        return txid

    def _next(self) -> int:
        """The first txid that is filled in now, where each next one is one more."""
        return self.last + 1 if self.rule == COUNT else max(self._wall_ms(), self.last + 1)

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


def _counted(first: int, number: int) -> bytes:
    """So many int64, each one more than the one before: all are added as the lanes of one integer."""
    ones, ramp = _lanes(number)
    return (ones * first + ramp).to_bytes(8 * number, "little")


@lru_cache(maxsize=4)
def _lanes(number: int) -> tuple[int, int]:
    """So many lanes of 64 bits: 1 in each; 0, 1, 2 and so on."""
    ramp = int.from_bytes(array("q", range(number)).tobytes(), "little")
    return int.from_bytes(array("q", [1]).tobytes() * number, "little"), ramp


def at_link(state: LogState, own: bool, records: int, now_ms: int) -> tuple[int, int]:
    """Return the base and the rule of the txids of a segment that is linked next (`SegmentRecord`).

    Args:
        state: Of the log, with all segments before it.
        own: Whether its records have txids of their own. Otherwise the policy fills them in.
        records: How many it has.
        now_ms: The time of the link.
    Raises:
        InvalidRequest: The log is a byte stream.
    """
    policy, last = state.policy, state.last_txid
    if policy == BYTES or policy not in TXID_RULES:
        raise InvalidRequest(
            f'log "{state.name}" has the txid policy "{policy}": nothing is linked to it'
        )
    if own:
        return UNKNOWN, TXIDS_OWN
    if policy == MS:
        return min(max(now_ms, last), TXID_MAX), TXIDS_SAME
    base = last + 1 if policy == COUNT else max(now_ms, last + 1)
    if base + records - 1 > TXID_MAX:
        return TXID_MAX, TXIDS_SAME
    return base, TXIDS_INDEX
