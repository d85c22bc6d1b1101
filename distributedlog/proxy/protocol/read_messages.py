"""The frames between a reader and a read proxy (pure).

The operations are::

    SUBSCRIBE           msgpack, a request. The answer is a REPLY. The request ID is the subscription's number
    ENTRIES             ident = subscription | head of the segment, 48 bytes | entry records as stored
    CREDIT              ident = subscription | u64, the total bytes of ENTRIES allowed, never decreases
    SUBSCRIPTION_ENDED  ident = subscription, status = error code. 0: the log is sealed and all of it was sent
    UNSUBSCRIBE         ident = subscription

ENTRIES are of one segment, ascending and complete except for control entries. Their head is::

    segment u64 | sequence ID of its first record i64 | entry of its ledger at which it begins u64
    | txid base i64 | time floor ms i64 | txid rule u32 | reserved u32
"""

import struct
from dataclasses import dataclass, replace
from typing import Any

from ...log.format.dlsn import DLSN
from ...log.format.record import TXIDS_IN_ENTRIES, TXIDS_INDEXED, EntryHeader, Origin
from ...log.model.position import Position, ReadStart, TimeStart, TxidStart
from ...log.model.segment_record import SegmentRecord
from ...runtime.interfaces.errors import ProtocolError
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import (
    NUMBER_MAX,
    decode_message,
    fields,
    flag,
    number,
    one_of,
    optional,
    row,
    text,
)

HEAD = struct.Struct("<QqQqqII")
HEAD_BYTES = HEAD.size
CREDIT_MAX = 64 * 1024 * 1024
"""The maximum bytes of ENTRIES in flight per subscription."""
_CREDIT = struct.Struct("<Q")

_DLSN = row(number(0, 10**10 - 1), number(0, 10**15 - 1), number(0, 10**7 - 1))
_SUBSCRIBE = fields(
    path=text(1024),
    name=text(1024),
    incarnation=text(16),
    resumes=flag,
    at=one_of("earliest", "latest"),
    dlsn=optional(_DLSN),
    sequence_id=number(-1),
    proven=flag,
    txid=optional(number(-(2**63))),
    since_ms=optional(number(-(2**63))),
    to=optional(_DLSN),
    to_end=flag,
    credit=number(1, CREDIT_MAX),
)
_SUBSCRIBED = fields(
    name=text(1024),
    incarnation=text(16, 16),
    start=_DLSN,
    sequence_id=number(-1),
    to=optional(_DLSN),
    nothing=flag,
)


@dataclass(frozen=True, slots=True)
class SegmentHead:
    """The values of a segment that are required to decode its entries."""

    segment: int
    start_sequence_id: int
    base_entry: int
    """The entry of the ledger that is entry 0 of the segment."""
    txid_base: int
    time_floor_ms: int
    txid_rule: int

    @classmethod
    def of(cls, record: SegmentRecord) -> "SegmentHead":
        """Return the head for a segment record whose first sequence ID is determined."""
        assert record.start_sequence_id >= 0, "the first sequence ID of the segment is determined"
        return cls(
            record.segment,
            record.start_sequence_id,
            record.base_entry,
            record.txid_base,
            record.time_floor_ms,
            record.txid_rule,
        )

    def origin(self, entry: int, header: EntryHeader) -> Origin:
        """Return the origin of the records of one entry, given the entry's number in the segment."""
        return header.origin(
            self.segment,
            entry,
            self.start_sequence_id,
            txid_base=self.txid_base,
            txid_rule=self.txid_rule,
            time_floor_ms=self.time_floor_ms,
        )

    def encode(self) -> bytes:
        """Encode the head as the first bytes of ENTRIES."""
        return HEAD.pack(
            self.segment,
            self.start_sequence_id,
            self.base_entry,
            self.txid_base,
            self.time_floor_ms,
            self.txid_rule,
            0,
        )

    @classmethod
    def decode(cls, body: Buffer) -> "SegmentHead":
        """Decode the first bytes of ENTRIES.

        Raises:
            ProtocolError: The head is invalid.
        """
        if len(body) < HEAD_BYTES:
            raise ProtocolError(f"ENTRIES of {len(body)} bytes")
        head = cls(*HEAD.unpack_from(body)[:6])
        in_range = (
            0 < head.segment <= NUMBER_MAX
            and head.start_sequence_id >= 0
            and head.base_entry <= NUMBER_MAX
            and head.time_floor_ms >= 0
            and TXIDS_IN_ENTRIES <= head.txid_rule <= TXIDS_INDEXED
            and (head.txid_rule == TXIDS_IN_ENTRIES) == (head.txid_base < 0)
        )
        if not in_range:
            raise ProtocolError("ENTRIES of an invalid segment")
        return head


@dataclass(frozen=True, slots=True)
class Subscribe:
    """The request for a subscription: where a reader starts or continues."""

    path: str
    """Path of the namespace."""
    name: str
    incarnation: str = ""
    """The incarnation of the log; "" accepts any log of this name."""
    resumes: bool = False
    """Whether the reader continues with the log of this incarnation, even if the log was renamed."""
    at: str = "earliest"
    dlsn: DLSN | None = None
    sequence_id: int = -1
    """Sequence ID of the record at ``dlsn``; -1 if the reader has no position."""
    proven: bool = False
    """Whether everything before ``dlsn`` was delivered to a reader, and is therefore confirmed (H24,
    H141)."""
    txid: int | None = None
    since_ms: int | None = None
    to: DLSN | None = None
    to_end: bool = False
    credit: int = 1024 * 1024
    """The initial bytes of ENTRIES allowed."""

    def starting_at(self, start: ReadStart) -> "Subscribe":
        """Return the request with this start."""
        match start:
            case Position():
                return replace(
                    self,
                    incarnation=start.incarnation,
                    dlsn=start.dlsn,
                    sequence_id=start.sequence_id,
                    proven=True,
                )
            case DLSN():
                return replace(self, dlsn=start)
            case TxidStart(txid):
                return replace(self, txid=txid)
            case TimeStart(time_ms):
                return replace(self, since_ms=time_ms)
        return replace(self, at=start)

    @property
    def read_start(self) -> ReadStart:
        """Return the start, as `resolve_read_range` accepts it."""
        if self.dlsn is not None:
            if self.sequence_id >= 0:
                return Position(self.incarnation, self.dlsn, self.sequence_id)
            return self.dlsn
        if self.txid is not None:
            return TxidStart(self.txid)
        if self.since_ms is not None:
            return TimeStart(self.since_ms)
        return "latest" if self.at == "latest" else "earliest"

    def encode(self) -> bytes:
        """Encode the request as msgpack."""
        return pack({name: _plain(getattr(self, name)) for name in self.__slots__})

    @classmethod
    def decode(cls, body: Buffer) -> "Subscribe":
        """Decode a request.

        Raises:
            ProtocolError: The request is invalid.
        """
        found = decode_message(body, _SUBSCRIBE, "SUBSCRIBE")
        for name in ("dlsn", "to"):
            found[name] = _dlsn(found[name])
        if found["resumes"] and (found["dlsn"] is None or len(found["incarnation"]) != 16):
            raise ProtocolError("SUBSCRIBE continues a log without a position")
        return cls(**{name: found[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The answer to a SUBSCRIBE: where the subscription starts and ends."""

    name: str
    incarnation: str
    start: DLSN
    sequence_id: int
    """Sequence ID of the record at ``start``; -1 if it is determined only when an entry is read."""
    to: DLSN | None
    nothing: bool
    """Whether there is no record between ``start`` and ``to``."""

    def encode(self) -> bytes:
        """Encode the answer as msgpack."""
        return pack({name: _plain(getattr(self, name)) for name in self.__slots__})

    @classmethod
    def decode(cls, body: Buffer) -> "Subscribed":
        """Decode an answer.

        Raises:
            ProtocolError: The answer is invalid.
        """
        found = decode_message(body, _SUBSCRIBED, "the answer to SUBSCRIBE")
        found["start"], found["to"] = DLSN(*found["start"]), _dlsn(found["to"])
        return cls(**{name: found[name] for name in cls.__slots__})


def encode_credit(total: int) -> bytes:
    """Return the body of a CREDIT."""
    return _CREDIT.pack(total)


def decode_credit(body: Buffer) -> int:
    """Return the total bytes in the body of a CREDIT.

    Raises:
        ProtocolError: The body is invalid.
    """
    if len(body) != _CREDIT.size:
        raise ProtocolError(f"CREDIT of {len(body)} bytes")
    (total,) = _CREDIT.unpack(body)
    return int(total)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, DLSN) else value


def _dlsn(found: tuple[int, int, int] | None) -> DLSN | None:
    return None if found is None else DLSN(*found)
