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
from ..format.record import TXID_MAX, TXIDS_CONSTANT, TXIDS_IN_ENTRIES, TXIDS_INDEXED
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


def txid_refused_error(name: str) -> InvalidRequest:
    """Return the error of a record with a txid in a byte stream."""
    return InvalidRequest(
        f'log "{name}" is a byte stream, and its txids are byte offsets: send records without a txid'
    )


def txid_order_error(txid: int, last: int, name: str) -> TransactionIdOutOfOrder:
    """Return the error of a txid that is lower than one before it."""
    return TransactionIdOutOfOrder(
        f'log "{name}" has the txid policy "{STRICT}": txid {txid} is lower than {last} before it'
    )


_CLOCK_POLICIES = (AUTO, GIVEN)


NO_FAST_PATH = -2
"""Below each txid, and below the -1 that stands for an empty log's last one."""


class TxidAssigner:
    """Fills in the txids of one writer's records, and has the greatest txid so far."""

    __slots__ = ("_clock_ms", "accepts_bare_payload", "last", "max_fast_txid", "policy")

    def __init__(self, policy: str, last: int, clock_ms: Callable[[], int], name: str) -> None:
        """``last``: the log's greatest so far, -1: none. Raises `UnsupportedFormat` for an unknown rule."""
        if policy not in TXID_RULES:
            raise UnsupportedFormat(
                f'log "{name}" has the txid policy "{policy}", which this program does not know'
            )
        self.policy = policy
        """The stored name of the policy."""
        self.last = last
        """The greatest so far. The writer raises it for given txids."""
        # Here, not in `TxidAdmission` which sets both: `LogWriter.submit` reads them for each record.
        self.accepts_bare_payload = True
        """Is a payload alone plainly fine?"""
        self.max_fast_txid = NO_FAST_PATH
        """The greatest given txid that is plainly fine."""
        self._clock_ms = clock_ms

    def assign(self, sizes: Sequence[int]) -> list[int]:
        """Of the next records, which are taken now; ``sizes``: of their payloads, bytes."""
        record_count, last = len(sizes), self.last
        if self.policy == MS:
            txids = [min(max(self._clock_ms(), last), TXID_MAX)] * record_count
        elif self.policy == BYTES:
            txids = list(accumulate(sizes, initial=max(last, 0)))[1:]
        else:
            first = self._next_txid()
            txids = list(range(first, first + record_count))
            if txids[-1] > TXID_MAX:
                txids = [min(txid, TXID_MAX) for txid in txids]
        self.last = txids[-1]
        return txids

    def assign_packed(self, offsets: memoryview) -> "array[int]":
        """As `draw`, of records whose payloads are between these offsets, the first of which is 0."""
        record_count, last = len(offsets) - 1, self.last
        if self.policy == MS:
            txids = array("q", [min(max(self._clock_ms(), last), TXID_MAX)]) * record_count
        elif self.policy == BYTES:
            start_offset = max(last, 0)
            txids = array("q", [start_offset + end for end in offsets[1:].tolist()])
        else:
            first = self._next_txid()
            if first + record_count - 1 > TXID_MAX:
                txids = array("q", [min(first + index, TXID_MAX) for index in range(record_count)])
            else:
                txids = array("q", _ascending_int64(first, record_count))
        self.last = txids[-1]
        return txids

    def assign_one(self, size: int) -> int:
        """As `draw`, of one record."""
        policy, last = self.policy, self.last
        if policy in _CLOCK_POLICIES:
            txid = self._clock_ms()
            if txid <= last:
                txid = last + 1
        elif policy == COUNT:
            txid = last + 1
        elif policy == MS:
            txid = max(self._clock_ms(), last)
        else:
            txid = max(last, 0) + size
        if txid > TXID_MAX:
            txid = TXID_MAX
        self.last = txid
        return txid

    def _next_txid(self) -> int:
        """The first txid that is filled in now, where each next one is one more."""
        return self.last + 1 if self.policy == COUNT else max(self._clock_ms(), self.last + 1)

    def assign_for_sets(self, record_count: int, sets: Sequence[tuple[int, int]]) -> list[int]:
        """As `draw`, of ``number`` records of which some are in sets: first record and number of each, in
        order. A set has one."""
        group_sizes: list[int] = []
        next_record = 0
        for first, group_size in sets:
            group_sizes += [1] * (first - next_record)
            group_sizes.append(group_size)
            next_record = first + group_size
        group_sizes += [1] * (record_count - next_record)
        assigned = self.assign(group_sizes)
        return [
            txid
            for txid, group_size in zip(assigned, group_sizes, strict=True)
            for _ in range(group_size)
        ]


def _ascending_int64(first: int, number: int) -> bytes:
    """So many int64, each one more than the one before: all are added as the lanes of one integer."""
    ones, ramp = _lanes(number)
    return (ones * first + ramp).to_bytes(8 * number, "little")


@lru_cache(maxsize=4)
def _lanes(number: int) -> tuple[int, int]:
    """So many lanes of 64 bits: 1 in each; 0, 1, 2 and so on."""
    ascending = int.from_bytes(array("q", range(number)).tobytes(), "little")
    return int.from_bytes(array("q", [1]).tobytes() * number, "little"), ascending


def assign_at_link(
    state: LogState, has_own_txids: bool, records: int, now_ms: int
) -> tuple[int, int]:
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
    if has_own_txids:
        return UNKNOWN, TXIDS_IN_ENTRIES
    if policy == MS:
        return min(max(now_ms, last), TXID_MAX), TXIDS_CONSTANT
    base = last + 1 if policy == COUNT else max(now_ms, last + 1)
    if base + records - 1 > TXID_MAX:
        return TXID_MAX, TXIDS_CONSTANT
    return base, TXIDS_INDEXED
