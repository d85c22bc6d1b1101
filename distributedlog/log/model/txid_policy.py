"""Transaction ID policies: how an omitted txid is assigned, and a given one checked (pure; decision 109).

Any client may append with or without a txid. A given txid is stored unchanged. An omitted one is assigned by
the policy, which is chosen when the log is created and stored in its state:

    auto (default)   max(last + 1, now in ms)
    strict           the same; a given txid below the last one is refused. Stored as ``given``
    count            last + 1
    ms               max(last, now in ms)
    bytes            the offset after the record, in a log that is a byte stream; given txids are refused

"Last" is the greatest txid so far. Before a given txid below it is sent, the log's state records that txids
decrease. Afterwards only programs that store the greatest txids write to the log (`LogState.with_unordered`).
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
"""The names that users use."""


def stored_policy(name: str) -> str:
    """Return the stored name of a policy.

    Clients of version 0.1 send ``given``, the former name of ``strict``.

    Raises:
        InvalidRequest: The policy is unknown.
    """
    if name not in (*POLICIES, GIVEN):
        known = ", ".join(POLICIES)
        raise InvalidRequest(f"unknown txid policy {quoted(name)}: use one of {known}")
    return GIVEN if name == STRICT else name


def policy_name(stored: str) -> str:
    """Return the name of a stored policy."""
    return STRICT if stored == GIVEN else stored


def txid_refused_error(name: str) -> InvalidRequest:
    """Return the error for a record with a txid in a byte stream."""
    return InvalidRequest(
        f'log "{name}" is a byte stream, and its txids are byte offsets: send records without a txid'
    )


def txid_order_error(txid: int, last: int, name: str) -> TransactionIdOutOfOrder:
    """Return the error for a txid that is lower than an earlier one."""
    return TransactionIdOutOfOrder(
        f'log "{name}" has the txid policy "{STRICT}": txid {txid} is lower than {last} before it'
    )


_CLOCK_POLICIES = (AUTO, GIVEN)


NO_FAST_PATH = -2
"""A value below each txid, and below -1, which means that the log has no last txid."""


class TxidAssigner:
    """Assigns the txids of one writer's records, and stores the greatest txid so far."""

    __slots__ = ("_clock_ms", "accepts_bare_payload", "last", "max_fast_txid", "policy")

    def __init__(self, policy: str, last: int, clock_ms: Callable[[], int], name: str) -> None:
        """Create the assigner.

        Args:
            policy: The stored name of the policy.
            last: The log's greatest txid so far, or -1.
            clock_ms: Returns the wall clock.
            name: The log's name, for messages.
        Raises:
            UnsupportedFormat: The policy is unknown.
        """
        if policy not in TXID_RULES:
            raise UnsupportedFormat(
                f'log "{name}" has the txid policy "{policy}", which this program does not support'
            )
        self.policy = policy
        """The stored name of the policy."""
        self.last = last
        """The greatest txid so far. The writer updates it for given txids."""
        # `TxidAdmission` sets both. They are here because `LogWriter.submit` reads them for each record.
        self.accepts_bare_payload = True
        """Whether a payload without a txid needs no further check."""
        self.max_fast_txid = NO_FAST_PATH
        """The greatest given txid that needs no further check."""
        self._clock_ms = clock_ms

    def assign(self, sizes: Sequence[int]) -> list[int]:
        """Return the txids of the next records, which are accepted now.

        Args:
            sizes: The payload size of each record in bytes.
        """
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
        """Return txids as `assign` does, for payloads between these offsets, the first of which is 0."""
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
        """Return a txid as `assign` does, for one record."""
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
        """Return the next txid of a policy by which each txid is one greater than the previous."""
        return self.last + 1 if self.policy == COUNT else max(self._clock_ms(), self.last + 1)

    def assign_for_sets(self, record_count: int, sets: Sequence[tuple[int, int]]) -> list[int]:
        """Return txids as `assign` does, if some records are in record sets.

        All records of a set get the same txid.

        Args:
            record_count: The number of records.
            sets: The first record and the number of records of each set, in order.
        """
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
    """Return consecutive int64 numbers as bytes. They are computed as the lanes of one large integer."""
    ones, ramp = _lanes(number)
    return (ones * first + ramp).to_bytes(8 * number, "little")


@lru_cache(maxsize=4)
def _lanes(number: int) -> tuple[int, int]:
    """Return two numbers with lanes of 64 bits: one with 1 in each lane, and one with 0, 1, 2 and so on."""
    ascending = int.from_bytes(array("q", range(number)).tobytes(), "little")
    return int.from_bytes(array("q", [1]).tobytes() * number, "little"), ascending


def assign_at_link(
    state: LogState, has_own_txids: bool, records: int, now_ms: int
) -> tuple[int, int]:
    """Return the txid base and the txid rule of the segment that is linked next (see `SegmentRecord`).

    Args:
        state: The log's state, with all segments before it closed.
        has_own_txids: Whether its records have txids. Otherwise the policy assigns them.
        records: The number of its records.
        now_ms: The time of the link.
    Raises:
        InvalidRequest: The log is a byte stream.
    """
    policy, last = state.policy, state.last_txid
    if policy == BYTES or policy not in TXID_RULES:
        raise InvalidRequest(
            f'log "{state.name}" has the txid policy "{policy}", so no segment can be linked to it'
        )
    if has_own_txids:
        return UNKNOWN, TXIDS_IN_ENTRIES
    if policy == MS:
        return min(max(now_ms, last), TXID_MAX), TXIDS_CONSTANT
    base = last + 1 if policy == COUNT else max(now_ms, last + 1)
    if base + records - 1 > TXID_MAX:
        return TXID_MAX, TXIDS_CONSTANT
    return base, TXIDS_INDEXED
