"""The frames between a reader and a read proxy (pure).

SUBSCRIBE           msgpack, a request; the answer is a REPLY, and its request id is the subscription's number
ENTRIES             ident = subscription | of their segment, 48 bytes | entry records, as they are stored
CREDIT              ident = subscription | u64: so many bytes of ENTRIES in all; it only grows
SUBSCRIPTION_ENDED  ident = subscription, status: the error; 0: the log is sealed, and all of it was sent
UNSUBSCRIBE         ident = subscription

ENTRIES are of one segment, ascending, none left out but control entries:
    segment u64 | sequence id of its first record i64 | entry of its ledger where it begins u64
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
"""Bytes of ENTRIES that a subscription may have on their way."""
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
    """What whoever decodes a segment's entries must know of it."""

    segment: int
    start_sequence_id: int
    base_entry: int
    """Its entry 0 is this one of its ledger."""
    txid_base: int
    time_floor_ms: int
    txid_rule: int

    @classmethod
    def of(cls, record: SegmentRecord) -> "SegmentHead":
        """As its record says; that is numbered."""
        assert record.start_sequence_id >= 0, "nobody is given what has no number yet"
        return cls(
            record.segment,
            record.start_sequence_id,
            record.base_entry,
            record.txid_base,
            record.time_floor_ms,
            record.txid_rule,
        )

    def origin(self, entry: int, header: EntryHeader) -> Origin:
        """Of the records of one of its entries, by the segment's own number."""
        return header.origin(
            self.segment,
            entry,
            self.start_sequence_id,
            txid_base=self.txid_base,
            txid_rule=self.txid_rule,
            time_floor_ms=self.time_floor_ms,
        )

    def encode(self) -> bytes:
        """The first bytes of ENTRIES."""
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
        """Raises `ProtocolError`."""
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
            raise ProtocolError("ENTRIES of a segment that cannot be")
        return head


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Where a reader wants to begin, or go on."""

    path: str
    """Of the namespace."""
    name: str
    incarnation: str = ""
    """Which log of this name; "": whichever there is."""
    resumes: bool = False
    """It goes on with the log of this incarnation, whatever that is called by now."""
    at: str = "earliest"
    dlsn: DLSN | None = None
    sequence_id: int = -1
    """Of the record at ``dlsn``; -1: not known, and the reader has no position."""
    proven: bool = False
    """Was everything before ``dlsn`` delivered to somebody? Then it is confirmed (H24, H141)."""
    txid: int | None = None
    since_ms: int | None = None
    to: DLSN | None = None
    to_end: bool = False
    credit: int = 1024 * 1024
    """Bytes of ENTRIES at first."""

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
        """Return where it starts, as `find_beginning` takes it."""
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
        """As msgpack."""
        return pack({name: _plain(getattr(self, name)) for name in self.__slots__})

    @classmethod
    def decode(cls, body: Buffer) -> "Subscribe":
        """Raises `ProtocolError`."""
        found = decode_message(body, _SUBSCRIBE, "SUBSCRIBE")
        for name in ("dlsn", "to"):
            found[name] = _dlsn(found[name])
        if found["resumes"] and (found["dlsn"] is None or len(found["incarnation"]) != 16):
            raise ProtocolError("SUBSCRIBE goes on, and does not say where")
        return cls(**{name: found[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The answer: where it begins, and where it ends."""

    name: str
    incarnation: str
    start: DLSN
    sequence_id: int
    """Of the record at ``start``; -1: not known before something is read."""
    to: DLSN | None
    nothing: bool
    """There is nothing between the two."""

    def encode(self) -> bytes:
        """As msgpack."""
        return pack({name: _plain(getattr(self, name)) for name in self.__slots__})

    @classmethod
    def decode(cls, body: Buffer) -> "Subscribed":
        """Raises `ProtocolError`."""
        found = decode_message(body, _SUBSCRIBED, "the answer to SUBSCRIBE")
        found["start"], found["to"] = DLSN(*found["start"]), _dlsn(found["to"])
        return cls(**{name: found[name] for name in cls.__slots__})


def encode_credit(total: int) -> bytes:
    """The body of CREDIT."""
    return _CREDIT.pack(total)


def decode_credit(body: Buffer) -> int:
    """Raises `ProtocolError`."""
    if len(body) != _CREDIT.size:
        raise ProtocolError(f"CREDIT of {len(body)} bytes")
    (total,) = _CREDIT.unpack(body)
    return int(total)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, DLSN) else value


def _dlsn(found: tuple[int, int, int] | None) -> DLSN | None:
    return None if found is None else DLSN(*found)
