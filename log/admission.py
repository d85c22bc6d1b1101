"""What a writer takes: the checks of records, one by one and in columns (pure).

The columns' check costs about 100 ns a record and looks at single records only when something is wrong.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ..runtime.errors import (
    DistributedLogError,
    InvalidRequest,
    RecordTooLarge,
    TransactionIdOutOfOrder,
)
from .record import RECORD_BYTES_MAX, RECORD_COLUMN_BYTES, RECORD_MORE, TXID_MAX
from .state import AUTO, BYTES, GIVEN
from .txids import misfit

SET_RECORD_BYTES = RECORD_COLUMN_BYTES + 1
"""What a record of a set costs beside its payload: one with flags."""
_SET_FLAGS = bytes((0, RECORD_MORE))


def admit(txid: object, payload: object, floor: int, name: str, rule: str = GIVEN) -> bytes:
    """The payload of a record that is not plainly fine, as bytes of its own.

    ``txid``: None for a record without. Raises `InvalidRequest`, also for what does not fit the log's
    ``rule``, `RecordTooLarge`, `TransactionIdOutOfOrder` (lower than ``floor``), each of which leaves the
    writer of log ``name`` as it was.
    """
    if txid is not None and (not isinstance(txid, int) or not 0 <= txid <= TXID_MAX):
        raise InvalidRequest(f"a txid is an int from 0 to 2**63 - 2, not {txid!r:.80}")
    given = txid is not None
    if rule != AUTO and given != (rule == GIVEN):
        raise misfit(rule, given, name)
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidRequest(f"a payload is bytes, not {type(payload).__name__}")
    plain = bytes(payload)
    if len(plain) > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"a record of {len(plain)} bytes (txid {txid}); the most are {RECORD_BYTES_MAX}"
        )
    if txid is not None and txid < floor:
        raise out_of_order(txid, floor, name)
    return plain


def out_of_order(txid: int, floor: int, name: str) -> TransactionIdOutOfOrder:
    """The error of a txid that is lower than one before it."""
    return TransactionIdOutOfOrder(f'log "{name}": txid {txid} is lower than {floor} before it')


def admit_set(
    txids: Sequence[object], payloads: Sequence[object], floor: int, name: str, rule: str
) -> list[bytes]:
    """The payloads of a set, as `admit` gives each. Raises as that; all are taken, or none."""
    if not payloads:
        raise InvalidRequest("a set has at least one record")
    if any(txid != txids[0] for txid in txids):
        raise InvalidRequest(
            f"the records of a set have one txid, these have {txids[0]!r:.40} and others"
        )
    if rule == BYTES:
        raise InvalidRequest(
            f'log "{name}" is a stream of bytes (txids="{BYTES}"): it takes no sets of records'
        )
    plain = [admit(txids[0], payload, floor, name, rule) for payload in payloads]
    if set_bytes(plain) > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"a set of {len(plain)} records and {set_bytes(plain)} bytes with {SET_RECORD_BYTES} a record; "
            f"the most are {RECORD_BYTES_MAX}"
        )
    return plain


def sets_of_frame(
    flags: bytes, txids: Sequence[int] | None, payloads: Sequence[bytes], name: str, rule: str
) -> list[tuple[int, int]] | None:
    """First record and number of each set of a frame, by a byte a record; None: there is none.

    ``txids``: None where the log gives them. Raises as `admit_set`, and `InvalidRequest` for flags that are
    not known, or say that more follows the last record.
    """
    if len(flags) != len(payloads) or flags.translate(None, _SET_FLAGS) or flags[-1] & RECORD_MORE:
        raise InvalidRequest(
            f'log "{name}": the flags of a frame of {len(payloads)} records make no sets'
        )
    sets = []
    end = -1
    while (first := flags.find(RECORD_MORE, end + 1)) >= 0:
        end = flags.index(0, first)
        own = txids[first : end + 1] if txids is not None else (None,) * (end + 1 - first)
        admit_set(own, payloads[first : end + 1], 0, name, rule)
        sets.append((first, end + 1 - first))
    return sets or None


def set_bytes(payloads: Sequence[bytes]) -> int:
    """What a set counts in its entry."""
    return sum(map(len, payloads)) + len(payloads) * SET_RECORD_BYTES


class Taken:
    """The records of one call up to the first that is refused."""

    __slots__ = ("_ends", "_kept", "_total", "number", "payloads", "refusal", "sizes")

    def __init__(
        self, payloads: Sequence[bytes], sizes: list[int], refusal: DistributedLogError | None
    ) -> None:
        self.payloads = payloads
        self.sizes = sizes
        """Of the payloads, bytes."""
        number = len(sizes)
        self.number = number
        """How many are taken; the record after them has ``refusal``, if that is not None."""
        self.refusal = refusal
        self._total = sum(sizes) + number * RECORD_COLUMN_BYTES
        self._ends: list[int] | None = None
        self._kept = False

    def keep(self, txids: Any) -> Any:
        """Before a wait: have the records as they were checked, whatever becomes of the caller's lists.

        Gives what to go on with instead of their ``txids``: a copy; after the first call what it is given.
        """
        if self._kept:
            return txids
        self._kept = True
        self.payloads = list(self.payloads)
        return None if txids is None else list(txids)

    def stop(self, at: int, entry_bytes_max: int, used: int) -> int:
        """How far the records from ``at`` on fit into an entry that holds ``used`` bytes already.

        At least one into an empty entry; ``at`` when they should begin a new one: a call that fits into
        one entry whole is not divided.
        """
        if at == 0 and self._total + used <= entry_bytes_max:
            return self.number
        if used and at == 0 and self._total <= entry_bytes_max:
            return at
        ends = self._offsets()
        stop = bisect_right(ends, ends[at] + entry_bytes_max - used) - 1
        return max(stop, at if used else at + 1)  # one large record may have overfilled the entry

    def bytes_of(self, start: int, stop: int) -> int:
        """What these records count in an entry."""
        if start == 0 and stop == self.number:
            return self._total
        ends = self._offsets()
        return ends[stop] - ends[start]

    def _offsets(self) -> list[int]:
        if self._ends is None:
            costs = [size + RECORD_COLUMN_BYTES for size in self.sizes]
            self._ends = list(accumulate(costs, initial=0))
        return self._ends


def admit_columns(
    txids: Sequence[int], payloads: Sequence[bytes], floor: int, ordered: bool, name: str
) -> Taken:
    """Check many records at once. ``ordered``: txids must not decrease, nor be below ``floor``."""
    if not txids:
        return Taken((), [], None)
    number = len(txids)
    try:
        plain = (
            number == len(payloads)
            # An int's sum with anything that is no int is no int either, or fails.
            and type(sum(txids)) is int
            and list(map(type, payloads)).count(bytes) == number
            and (
                floor <= txids[0] and txids[-1] <= TXID_MAX and sorted(txids) == txids
                if ordered
                else min(txids) >= 0 and max(txids) <= TXID_MAX
            )
        )
    except TypeError:
        plain = False
    if plain:
        taken = Taken(payloads, list(map(len, payloads)), None)
        if taken.bytes_of(0, number) <= RECORD_BYTES_MAX or max(taken.sizes) <= RECORD_BYTES_MAX:
            return taken
    return _one_by_one(txids, payloads, floor, ordered, name)


def admit_payloads(
    txids: Sequence[object] | None, payloads: Sequence[bytes], name: str, rule: str
) -> Taken:
    """Check many records of a log that gives their txids; ``txids``: None, or None for each."""
    number = len(payloads)
    if (txids is None or (len(txids) == number == txids.count(None))) and (
        list(map(type, payloads)).count(bytes) == number
    ):
        sizes = list(map(len, payloads))
        if max(sizes, default=0) <= RECORD_BYTES_MAX:
            return Taken(payloads, sizes, None)
    return _one_by_one([None] * number if txids is None else txids, payloads, 0, False, name, rule)


def _one_by_one(
    txids: Sequence[Any],
    payloads: Sequence[bytes],
    floor: int,
    ordered: bool,
    name: str,
    rule: str = GIVEN,
) -> Taken:
    admitted: list[bytes] = []
    try:
        if len(txids) != len(payloads):
            raise InvalidRequest(f"{len(txids)} txids and {len(payloads)} payloads")
        for txid, payload in zip(txids, payloads, strict=True):
            admitted.append(admit(txid, payload, floor, name, rule))
            if ordered:
                floor = txid
    except DistributedLogError as error:
        return Taken(admitted, list(map(len, admitted)), error)
    return Taken(admitted, list(map(len, admitted)), None)
