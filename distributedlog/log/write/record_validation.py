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
from ..model.txid_policy import txid_order_error, txid_refused_error

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
    txid: object, payload: object, min_txid: int, name: str, policy: str
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
    exact = None
    if txid is not None:
        exact = exact_txid(txid)
        if policy == BYTES:
            raise txid_refused_error(name)
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidRequest(f"a payload is bytes, not {type(payload).__name__}")
    copied = bytes(payload)
    if len(copied) > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"a record of {len(copied)} bytes (txid {exact}); the most are {RECORD_BYTES_MAX}"
        )
    if exact is not None and exact < min_txid:
        raise txid_order_error(exact, min_txid, name)
    return exact, copied


def validate_record_set(
    txids: Sequence[object], payloads: Sequence[object], min_txid: int, name: str, policy: str
) -> tuple[int | None, list[bytes]]:
    """The txid and the payloads of a set, as `validate_record` gives them. Raises as that; all are taken, or
    none."""
    if not payloads:
        raise InvalidRequest("a set has at least one record")
    if any(txid != txids[0] for txid in txids):
        raise InvalidRequest(
            f"the records of a set have one txid, these have {quoted(txids[0])} and others"
        )
    if policy == BYTES:
        raise InvalidRequest(
            f'log "{name}" is a byte stream (txid policy "{BYTES}"): it takes no sets of records'
        )
    validated = [validate_record(txids[0], payload, min_txid, name, policy) for payload in payloads]
    copied = [payload for _, payload in validated]
    if set_bytes(copied) > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"a set of {len(copied)} records and {set_bytes(copied)} bytes with {SET_RECORD_BYTES} a record; "
            f"the most are {RECORD_BYTES_MAX}"
        )
    return validated[0][0], copied


def validate_sets(
    flags: bytes, txids: Sequence[int] | None, payloads: Sequence[bytes], name: str, policy: str
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
        set_txids = txids[first : end + 1] if txids is not None else (None,) * (end + 1 - first)
        validate_record_set(set_txids, payloads[first : end + 1], 0, name, policy)
        sets.append((first, end + 1 - first))
    return sets or None


def set_bytes(payloads: Sequence[bytes]) -> int:
    """What a set counts in its entry."""
    return sum(map(len, payloads)) + len(payloads) * SET_RECORD_BYTES


class ValidatedBatch:
    """The records of one call up to the first that is refused."""

    __slots__ = (
        "_end_offsets",
        "_is_copied",
        "_total_bytes",
        "has_mixed_txids",
        "is_unordered",
        "payloads",
        "record_count",
        "refusal",
        "sizes",
        "txids",
    )

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
        self.has_mixed_txids = False
        """Do some have a txid and others none?"""
        self.is_unordered = unordered
        """Is a given txid lower than one before it, when they are checked?"""
        self.payloads = payloads
        self.sizes = sizes
        """Of the payloads, bytes."""
        record_count = len(sizes)
        self.record_count = record_count
        """How many are taken; the record after them has ``refusal``, if that is not None."""
        self.refusal = refusal
        self._total_bytes = sum(sizes) + record_count * RECORD_COLUMN_BYTES
        self._end_offsets: list[int] | None = None
        self._is_copied = False

    def copy_records(self) -> None:
        """Before a wait: have the records as they were checked, whatever becomes of the caller's lists."""
        if self._is_copied:
            return
        self._is_copied = True
        self.payloads = list(self.payloads)
        if self.txids is not None:
            self.txids = list(self.txids)

    def same_kind_end(self, first: int, stop: int) -> int:
        """Where the records from ``at`` on cease to have txids, or to have none; ``fitting_end`` at most."""
        if self.has_mixed_txids:
            has_txid = self.txids[first] is not None
            for record_index in range(first + 1, stop):
                if (self.txids[record_index] is not None) != has_txid:
                    return record_index
        return stop

    def fitting_end(self, first: int, entry_bytes_max: int, used_bytes: int) -> int:
        """How far the records from ``at`` on fit into an entry that holds ``used`` bytes already.

        At least one into an empty entry; ``at`` when they should begin a new one: a call that fits into
        one entry whole is not divided.
        """
        if first == 0 and self._total_bytes + used_bytes <= entry_bytes_max:
            return self.record_count
        if used_bytes and first == 0 and self._total_bytes <= entry_bytes_max:
            return first
        offsets = self._offsets()
        stop = bisect_right(offsets, offsets[first] + entry_bytes_max - used_bytes) - 1
        return max(
            stop, first if used_bytes else first + 1
        )  # one large record may have overfilled the entry

    def entry_bytes(self, start: int, stop: int) -> int:
        """What these records count in an entry."""
        if start == 0 and stop == self.record_count:
            return self._total_bytes
        offsets = self._offsets()
        return offsets[stop] - offsets[start]

    def _offsets(self) -> list[int]:
        if self._end_offsets is None:
            record_bytes = [size + RECORD_COLUMN_BYTES for size in self.sizes]
            self._end_offsets = list(accumulate(record_bytes, initial=0))
        return self._end_offsets


def validate_columns(
    txids: Sequence[int | None] | None,
    payloads: Sequence[bytes],
    last: int,
    strict: bool,
    name: str,
    policy: str,
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
    record_count = len(payloads)
    given_txids: Any = None if txids is None else txids if type(txids) is list else list(txids)
    if (
        given_txids
        and given_txids[0] is None
        and len(given_txids) == record_count == given_txids.count(None)
    ):
        given_txids = None
    if list(map(type, payloads)).count(bytes) == record_count:
        unordered, is_valid = False, given_txids is None or not record_count
        if given_txids and len(given_txids) == record_count and policy != BYTES:
            try:
                # The sum of ints with anything that is no int is no int either, or fails.
                if int is type(given_txids[0]) is type(given_txids[-1]) is type(sum(given_txids)):
                    unordered = not (
                        max(last, 0) <= given_txids[0] and sorted(given_txids) == given_txids
                    )
                    min_given = min(given_txids) if unordered else given_txids[0]
                    is_valid = (
                        not (unordered and strict)
                        and min_given >= 0
                        and (max(given_txids) if unordered else given_txids[-1]) <= TXID_MAX
                        # But a bool is an int to it, and would be stored as one.
                        and (
                            min_given > 1 or list(map(type, given_txids)).count(int) == record_count
                        )
                    )
            except TypeError:
                is_valid = False
        if is_valid:
            validated = ValidatedBatch(
                given_txids, payloads, list(map(len, payloads)), unordered=unordered
            )
            if validated.entry_bytes(0, record_count) <= RECORD_BYTES_MAX or (
                max(validated.sizes) <= RECORD_BYTES_MAX
            ):
                return validated
    return _validate_one_by_one(given_txids, payloads, last, strict, name, policy)


def _validate_one_by_one(
    txids: Sequence[Any] | None,
    payloads: Sequence[bytes],
    last: int,
    strict: bool,
    name: str,
    policy: str,
) -> ValidatedBatch:
    accepted_txids: list[int | None] = []
    accepted_payloads: list[bytes] = []
    unordered, refusal = False, None
    try:
        if txids is not None and len(txids) != len(payloads):
            raise InvalidRequest(f"{len(txids)} txids and {len(payloads)} payloads")
        for txid, payload in zip(txids or repeat(None), payloads, strict=False):
            accepted, copied = validate_record(txid, payload, last if strict else 0, name, policy)
            accepted_txids.append(accepted)
            accepted_payloads.append(copied)
            if accepted is not None:
                unordered = unordered or accepted < last
                last = max(last, accepted)
    except DistributedLogError as error:
        refusal = error
    missing_count = accepted_txids.count(None)
    validated = ValidatedBatch(
        None if missing_count == len(accepted_txids) else accepted_txids,
        accepted_payloads,
        list(map(len, accepted_payloads)),
        refusal,
        unordered=unordered,
    )
    validated.has_mixed_txids = 0 < missing_count < len(accepted_txids)
    return validated
