"""What a writer takes: the checks of records, one by one and in columns (pure).

The columns' check costs about 100 ns a record and looks at single records only when something is wrong.
What it takes is exact: each txid is an int and nothing that only passes for one, each payload is bytes.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, repeat
from operator import index
from typing import Any

from ...runtime.declarations.options import quoted
from ...runtime.interfaces.errors import DistributedLogError, InvalidRequest, RecordTooLarge
from ..format.record import RECORD_BYTES_MAX, RECORD_COLUMN_BYTES, RECORD_MORE, TXID_MAX
from ..model.log_state import BYTES
from ..model.txid_policy import out_of_order, refuse_given

SET_RECORD_BYTES = RECORD_COLUMN_BYTES + 1
"""What a record of a set costs beside its payload: one with flags."""
_SET_FLAGS = bytes((0, RECORD_MORE))


def exact_txid(txid: Any) -> int:
    """Return a caller's txid as a plain int. Raises `InvalidRequest` for what is no txid.

    Whole numbers of other types are accepted, such as NumPy's or an `IntEnum`'s member. True and False are
    refused, because decoding refuses them.
    """
    if type(txid) is not int:
        try:
            if isinstance(txid, bool):
                raise TypeError
            txid = int(index(txid))
        except TypeError:
            raise InvalidRequest(
                f"a txid is a whole number from 0 to 2**63 - 2, not {quoted(txid)}"
            ) from None
    if not 0 <= txid <= TXID_MAX:
        raise InvalidRequest(f"a txid is a whole number from 0 to 2**63 - 2, not {quoted(txid)}")
    return int(txid)


def validate_record(
    txid: object, payload: object, floor: int, name: str, rule: str
) -> tuple[int | None, bytes]:
    """Check one record and return its txid and payload as plain int and bytes.

    Args:
        txid: None for a record without.
        payload: Bytes, or a buffer, which is copied.
        floor: Of a log that checks the order: the greatest txid so far. Otherwise 0.
        name: Of the log.
        rule: The stored name of its txid policy.
    Raises:
        InvalidRequest: It is no record, or has a txid and the log is a byte stream.
        RecordTooLarge: The payload is above the limit.
        TransactionIdOutOfOrder: The txid is below ``floor``.
    """
    own = None
    if txid is not None:
        own = exact_txid(txid)
        if rule == BYTES:
            raise refuse_given(name)
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidRequest(f"a payload is bytes, not {type(payload).__name__}")
    plain = bytes(payload)
    if len(plain) > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"a record of {len(plain)} bytes (txid {own}); the most are {RECORD_BYTES_MAX}"
        )
    if own is not None and own < floor:
        raise out_of_order(own, floor, name)
    return own, plain


def validate_record_set(
    txids: Sequence[object], payloads: Sequence[object], floor: int, name: str, rule: str
) -> tuple[int | None, list[bytes]]:
    """The txid and the payloads of a set, as `validate_record` gives them. Raises as that; all are taken, or
    none."""
    if not payloads:
        raise InvalidRequest("a set has at least one record")
    if any(txid != txids[0] for txid in txids):
        raise InvalidRequest(
            f"the records of a set have one txid, these have {quoted(txids[0])} and others"
        )
    if rule == BYTES:
        raise InvalidRequest(
            f'log "{name}" is a byte stream (txid policy "{BYTES}"): it takes no sets of records'
        )
    admitted = [validate_record(txids[0], payload, floor, name, rule) for payload in payloads]
    plain = [payload for _, payload in admitted]
    if set_bytes(plain) > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"a set of {len(plain)} records and {set_bytes(plain)} bytes with {SET_RECORD_BYTES} a record; "
            f"the most are {RECORD_BYTES_MAX}"
        )
    return admitted[0][0], plain


def sets_of_frame(
    flags: bytes, txids: Sequence[int] | None, payloads: Sequence[bytes], name: str, rule: str
) -> list[tuple[int, int]] | None:
    """First record and number of each set of a frame, by a byte a record; None: there is none.

    ``txids``: None where the log fills them in. Raises as `validate_record_set`, and `InvalidRequest` for
    flags that are not known, or say that more follows the last record.
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
        validate_record_set(own, payloads[first : end + 1], 0, name, rule)
        sets.append((first, end + 1 - first))
    return sets or None


def set_bytes(payloads: Sequence[bytes]) -> int:
    """What a set counts in its entry."""
    return sum(map(len, payloads)) + len(payloads) * SET_RECORD_BYTES


class ValidatedBatch:
    """The records of one call up to the first that is refused."""

    __slots__ = (
        "_ends", "_kept", "_total", "mixed", "number", "payloads", "refusal", "sizes", "txids", "unordered",
    )  # fmt: skip

    def __init__(
        self,
        txids: Any,
        payloads: Sequence[bytes],
        sizes: list[int],
        refusal: DistributedLogError | None = None,
        *,
        unordered: bool = False,
    ) -> None:
        self.txids: Any = txids
        """Ints, perhaps with None for a record without; None: no record has one."""
        self.mixed = False
        """Do some have a txid and others none?"""
        self.unordered = unordered
        """Is a given txid lower than one before it, when they are checked?"""
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

    def keep(self) -> None:
        """Before a wait: have the records as they were checked, whatever becomes of the caller's lists."""
        if self._kept:
            return
        self._kept = True
        self.payloads = list(self.payloads)
        if self.txids is not None:
            self.txids = list(self.txids)

    def kind_stop(self, at: int, stop: int) -> int:
        """Where the records from ``at`` on cease to have txids, or to have none; ``stop`` at most."""
        if self.mixed:
            given = self.txids[at] is not None
            for place in range(at + 1, stop):
                if (self.txids[place] is not None) != given:
                    return place
        return stop

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


def validate_columns(
    txids: Sequence[int | None] | None,
    payloads: Sequence[bytes],
    last: int,
    strict: bool,
    name: str,
    rule: str,
) -> ValidatedBatch:
    """Check many records at once.

    Args:
        txids: Of each record, None for one without; None: no record has one.
        payloads: As many.
        last: The greatest txid so far.
        strict: Whether a txid below it, or below one before it in the call, is refused.
        name: Of the log.
        rule: The stored name of its txid policy.
    Returns:
        The records up to the first that is refused.
    """
    number = len(payloads)
    own: Any = None if txids is None else txids if type(txids) is list else list(txids)
    if own and own[0] is None and len(own) == number == own.count(None):
        own = None
    if list(map(type, payloads)).count(bytes) == number:
        unordered, plain = False, own is None or not number
        if own and len(own) == number and rule != BYTES:
            try:
                # The sum of ints with anything that is no int is no int either, or fails.
                if int is type(own[0]) is type(own[-1]) is type(sum(own)):
                    unordered = not (max(last, 0) <= own[0] and sorted(own) == own)
                    least = min(own) if unordered else own[0]
                    plain = (
                        not (unordered and strict)
                        and least >= 0
                        and (max(own) if unordered else own[-1]) <= TXID_MAX
                        # But a bool is an int to it, and would be stored as one.
                        and (least > 1 or list(map(type, own)).count(int) == number)
                    )
            except TypeError:
                plain = False
        if plain:
            taken = ValidatedBatch(own, payloads, list(map(len, payloads)), unordered=unordered)
            if taken.bytes_of(0, number) <= RECORD_BYTES_MAX or (
                max(taken.sizes) <= RECORD_BYTES_MAX
            ):
                return taken
    return _one_by_one(own, payloads, last, strict, name, rule)


def _one_by_one(
    txids: Sequence[Any] | None,
    payloads: Sequence[bytes],
    last: int,
    strict: bool,
    name: str,
    rule: str,
) -> ValidatedBatch:
    own: list[int | None] = []
    plain: list[bytes] = []
    unordered, refusal = False, None
    try:
        if txids is not None and len(txids) != len(payloads):
            raise InvalidRequest(f"{len(txids)} txids and {len(payloads)} payloads")
        for txid, payload in zip(txids or repeat(None), payloads, strict=False):
            given, copied = validate_record(txid, payload, last if strict else 0, name, rule)
            own.append(given)
            plain.append(copied)
            if given is not None:
                unordered = unordered or given < last
                last = max(last, given)
    except DistributedLogError as error:
        refusal = error
    without = own.count(None)
    taken = ValidatedBatch(
        None if without == len(own) else own,
        plain,
        list(map(len, plain)),
        refusal,
        unordered=unordered,
    )
    taken.mixed = 0 < without < len(own)
    return taken
