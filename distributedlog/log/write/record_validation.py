"""Validate submitted records, one by one or in columns (pure).

The column check costs about 100 ns per record. It inspects single records only if the check of the columns
fails. Accepted records are exact: each transaction ID is an int (not a bool), each payload is bytes, or a
`KeyedContent` of bytes if the record has a key or headers.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, repeat
from operator import index
from typing import Any

from ...runtime.declarations.options import quoted
from ...runtime.interfaces.errors import DistributedLogError, InvalidRequest, RecordTooLarge
from ..format.record import RECORD_BYTES_MAX, RECORD_COLUMN_BYTES, RECORD_MORE, TXID_MAX
from ..format.record_headers import KeyedContent
from ..model.log_state import BYTES
from ..model.txid_policy import txid_order_error, txid_refused_error

SET_RECORD_BYTES = RECORD_COLUMN_BYTES + 1
"""The size of a record of a set in addition to its payload: its column and its flags."""
_SET_FLAGS = bytes((0, RECORD_MORE))


def exact_txid(txid: Any) -> int:
    """Return a caller's transaction ID as a plain int.

    Whole numbers of other types are accepted, such as NumPy's or a member of an `IntEnum`. True and False are
    rejected, because decoding rejects them.

    Raises:
        InvalidRequest: The value is no transaction ID.
    """
    if type(txid) is not int:
        try:
            if isinstance(txid, bool):
                raise TypeError
            txid = int(index(txid))
        except TypeError:
            raise InvalidRequest(
                f"a txid must be a whole number from 0 to 2**63 - 2, got {quoted(txid)}"
            ) from None
    if not 0 <= txid <= TXID_MAX:
        raise InvalidRequest(
            f"a txid must be a whole number from 0 to 2**63 - 2, got {quoted(txid)}"
        )
    return int(txid)


def keyed_refused_error(name: str) -> InvalidRequest:
    """Return the error of a key or headers in a byte stream."""
    return InvalidRequest(
        f'log "{name}" is a byte stream (txid policy "{BYTES}") and accepts no keys and headers'
    )


def validate_record(
    txid: object, payload: object, min_txid: int, name: str, policy: str
) -> tuple[int | None, Any]:
    """Check one record and return its transaction ID as a plain int, and its payload as bytes.

    The payload of a record with a key or headers is a `KeyedContent`, in arguments and result.

    Args:
        txid: None for a record without one.
        payload: Bytes, or a buffer, which is copied.
        min_txid: The greatest transaction ID so far, if the log checks the order. Otherwise 0.
        name: The name of the log.
        policy: The stored name of the log's transaction ID policy.
    Raises:
        InvalidRequest: An argument is invalid, or the log is a byte stream, and a transaction ID, key or
            header is given.
        RecordTooLarge: The payload, with key and headers, is above the limit.
        TransactionIdOutOfOrder: The transaction ID is below ``min_txid``.
    """
    exact = None
    if txid is not None:
        exact = exact_txid(txid)
        if policy == BYTES:
            raise txid_refused_error(name)
    copied: Any
    if type(payload) is KeyedContent:
        if policy == BYTES:
            raise keyed_refused_error(name)
        copied = payload.to_checked()
    elif isinstance(payload, bytes | bytearray | memoryview):
        copied = bytes(payload)
    else:
        raise InvalidRequest(f"a payload must be bytes, got {type(payload).__name__}")
    if len(copied) > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"a record of {len(copied)} bytes (txid {exact}) is above the limit of {RECORD_BYTES_MAX}"
        )
    if exact is not None and exact < min_txid:
        raise txid_order_error(exact, min_txid, name)
    return exact, copied


def validate_record_set(
    txids: Sequence[object], payloads: Sequence[object], min_txid: int, name: str, policy: str
) -> tuple[int | None, list[Any]]:
    """Check a record set and return its transaction ID and its payloads, as `validate_record`.

    Raises:
        InvalidRequest: The set is empty, has several transaction IDs, or the log is a byte stream.
        RecordTooLarge, TransactionIdOutOfOrder: As for `validate_record`.
    """
    if not payloads:
        raise InvalidRequest("a record set must have at least one record")
    if any(txid != txids[0] for txid in txids):
        raise InvalidRequest(
            f"the records of a set must have the same txid, these have {quoted(txids[0])} and others"
        )
    if policy == BYTES:
        raise InvalidRequest(
            f'log "{name}" is a byte stream (txid policy "{BYTES}") and accepts no record sets'
        )
    validated = [validate_record(txids[0], payload, min_txid, name, policy) for payload in payloads]
    copied = [payload for _, payload in validated]
    if set_bytes(copied) > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"a set of {len(copied)} records and {set_bytes(copied)} bytes, with {SET_RECORD_BYTES} per "
            f"record, is above the limit of {RECORD_BYTES_MAX}"
        )
    return validated[0][0], copied


def validate_sets(
    flags: bytes, txids: Sequence[int] | None, payloads: Sequence[bytes], name: str, policy: str
) -> list[tuple[int, int]] | None:
    """Return the first record and the number of records of each set in a frame. None if there is no set.

    Args:
        flags: One byte per record.
        txids: None if the log assigns them.
    Raises:
        InvalidRequest: A flag is unknown, or the last record is marked to be continued. Also as for
            `validate_record_set`.
        RecordTooLarge: A set is above the limit.
    """
    if len(flags) != len(payloads) or flags.translate(None, _SET_FLAGS) or flags[-1] & RECORD_MORE:
        raise InvalidRequest(
            f'log "{name}": the flags of a frame of {len(payloads)} records are invalid'
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
    """Return the size of a record set, as counted in its entry."""
    return sum(map(len, payloads)) + len(payloads) * SET_RECORD_BYTES


class ValidatedBatch:
    """The records of one call, up to the first that is rejected."""

    __slots__ = (
        "_end_offsets",
        "_is_copied",
        "_total_bytes",
        "first_keyed",
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
        """Integers, with None for a record without a transaction ID. None if no record has one."""
        self.has_mixed_txids = False
        """Whether only some records have a transaction ID."""
        self.is_unordered = unordered
        """Whether a given transaction ID is lower than one before it, at the time of the check."""
        self.payloads = payloads
        self.sizes = sizes
        """The payload sizes in bytes, with keys and headers."""
        record_count = len(sizes)
        self.record_count = record_count
        """The number of accepted records. If ``refusal`` is not None, it is the error of the record after
        them."""
        self.refusal = refusal
        self.first_keyed = record_count
        """The first record with a key or headers. The number of records if there is none."""
        self._total_bytes = sum(sizes) + record_count * RECORD_COLUMN_BYTES
        self._end_offsets: list[int] | None = None
        self._is_copied = False

    def copy_lists(self) -> None:
        """Copy the lists before a wait, so that the records stay as they were checked if the caller
        changes them."""
        if self._is_copied:
            return
        self._is_copied = True
        self.payloads = list(self.payloads)
        if self.txids is not None:
            self.txids = list(self.txids)

    @property
    def is_keyed(self) -> bool:
        """Whether a record has a key or headers."""
        return self.first_keyed < self.record_count

    def without_keyed(self, refusal: DistributedLogError) -> "ValidatedBatch":
        """Return the records before the first one with a key or headers, which is rejected."""
        stop = self.first_keyed
        result = ValidatedBatch(
            None if self.txids is None else self.txids[:stop],
            self.payloads[:stop],
            self.sizes[:stop],
            refusal,
            unordered=self.is_unordered,
        )
        result.has_mixed_txids = self.has_mixed_txids
        return result

    def same_kind_end(self, first: int, stop: int) -> int:
        """Return the end of the records from ``first`` on that all have transaction IDs, or all have none.

        Returns at most ``stop``.
        """
        if self.has_mixed_txids:
            has_txid = self.txids[first] is not None
            for record_index in range(first + 1, stop):
                if (self.txids[record_index] is not None) != has_txid:
                    return record_index
        return stop

    def fitting_end(self, first: int, entry_bytes_max: int, used_bytes: int) -> int:
        """Return the end of the records from ``first`` on that fit into an entry that holds ``used_bytes``
        already.

        At least one record fits into an empty entry. The result is ``first`` if the records must begin a new
        entry, because a call that fits into one entry is not divided.
        """
        if first == 0 and self._total_bytes + used_bytes <= entry_bytes_max:
            return self.record_count
        if used_bytes and first == 0 and self._total_bytes <= entry_bytes_max:
            return first
        offsets = self._offsets()
        stop = bisect_right(offsets, offsets[first] + entry_bytes_max - used_bytes) - 1
        return max(
            stop, first if used_bytes else first + 1
        )  # the entry may be above its limit already, by one large record

    def entry_bytes(self, start: int, stop: int) -> int:
        """Return the size of these records, as counted in an entry."""
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
        txids: One per record, with None for a record without. None if no record has one.
        payloads: One per record.
        last: The greatest transaction ID so far.
        strict: Whether to reject a transaction ID below ``last`` or below one before it in the call.
        name: The name of the log.
        policy: The stored name of the log's transaction ID policy.
    Returns:
        The records up to the first that is rejected.
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
                # If some value is not an int, the sum is not an int either, or fails.
                if int is type(given_txids[0]) is type(given_txids[-1]) is type(sum(given_txids)):
                    unordered = not (
                        max(last, 0) <= given_txids[0] and sorted(given_txids) == given_txids
                    )
                    min_given = min(given_txids) if unordered else given_txids[0]
                    is_valid = (
                        not (unordered and strict)
                        and min_given >= 0
                        and (max(given_txids) if unordered else given_txids[-1]) <= TXID_MAX
                        # The sum accepts a bool as an int, and the log must not store one.
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
    accepted_payloads: list[Any] = []
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
    types = list(map(type, accepted_payloads))
    if KeyedContent in types:
        validated.first_keyed = types.index(KeyedContent)
    return validated
