"""What clients ask of a metadata node, and what it answers: frame bodies (pure).

    META_READ      ["get", key] | ["range", start, end, limit]
       REPLY       [index, revision, item or [items, more]]
    META_TRANSACT  a command (`commands.py`)
       REPLY       [index, answer]
    META_LEASE     ["renew", lease]                      REPLY  []
    META_WATCH     [start, end, after revision]          no reply: changes, or the watch's end, with its ident
       META_WATCH_EVENTS  [revision, [[kind, item], …]]; with a status: the watch has ended
       META_WATCH_CANCEL  the client's
    META_MEMBERS   ["show"] | ["add", name, address] | ["replace", name, address or ""] | ["remove", name]
       REPLY       [[node id, name, "host:port", votes, "host:port" on the listener asked on], …]
    META_STATUS    ["self"] | ["all"]                    REPLY  [row, …]
    META_FORM      empty | a founding (`forming.py`)     REPLY  FormAnswer

``index`` is the log index that the node had applied; clients name the highest one they saw as the base of
new requests (H20).
"""

from dataclasses import dataclass
from typing import Any

from ..runtime.errors import ProtocolError
from ..runtime.frames import pack, unpack
from ..runtime.host import Buffer
from ..runtime.reasons import reasons_of
from .configuration import Member
from .interface import Event, MemberStatus, RangePage, WatchBatch
from .kv import Answer, decode_answer, encode_answer, item_from_list, item_to_list
from .transaction import KeyValue

RANGE_LIMIT_MAX = 10_000
MALFORMED = (TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""What taking a peer's lists apart may raise: also ``int`` of infinity, ``str`` of a deep list."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A key, or a range if ``end`` is not None."""

    start: bytes
    end: bytes | None
    limit: int = 1

    def encode(self) -> bytes:
        """As a frame body."""
        if self.end is None:
            return pack(["get", self.start])
        return pack(["range", self.start, self.end, self.limit])

    @classmethod
    def decode(cls, body: Buffer) -> "ReadRequest":
        """Raises `ProtocolError`."""
        match unpack(body, "META_READ"):
            case ["get", bytes() as key]:
                return cls(key, None)
            case ["range", bytes() as start, bytes() as end, int() as limit] if limit > 0:
                return cls(start, end, min(limit, RANGE_LIMIT_MAX))
        raise ProtocolError("META_READ: neither a key nor a range")


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """Changes of start <= key < end behind a revision."""

    start: bytes
    end: bytes
    after_revision: int

    def encode(self) -> bytes:
        """As a frame body."""
        return pack([self.start, self.end, self.after_revision])

    @classmethod
    def decode(cls, body: Buffer) -> "WatchRequest":
        """Raises `ProtocolError`."""
        match unpack(body, "META_WATCH"):
            case [bytes() as start, bytes() as end, int() as revision] if revision >= 0:
                return cls(start, end, revision)
        raise ProtocolError("META_WATCH: not a range and a revision")


def encode_item(index: int, revision: int, item: KeyValue | None) -> bytes:
    """The answer to a key."""
    return pack([index, revision, item_to_list(item)])


def decode_item(body: Buffer) -> tuple[int, KeyValue | None]:
    """(index, item). Raises `ProtocolError`."""
    index, _, item = _three(body)
    try:
        return int(index), item_from_list(item)
    except MALFORMED:
        raise ProtocolError("a key that cannot be read") from None


def encode_page(index: int, page: RangePage) -> bytes:
    """The answer to a range."""
    return pack([index, page.revision, [[item_to_list(item) for item in page.items], page.more]])


def decode_page(body: Buffer) -> tuple[int, RangePage]:
    """(index, page). Raises `ProtocolError`."""
    index, revision, content = _three(body)
    try:
        rows, more = content
        items = tuple(item for row in rows if (item := item_from_list(row)) is not None)
        return int(index), RangePage(items, int(revision), bool(more))
    except MALFORMED:
        raise ProtocolError("a range that cannot be read") from None


def encode_outcome(index: int, answer: Answer) -> bytes:
    """The answer to a command."""
    return pack([index, encode_answer(answer)])


def decode_outcome(body: Buffer) -> tuple[int, Answer]:
    """(index, answer). Raises `ProtocolError`, `CorruptData`."""
    match unpack(body, "the answer to a command"):
        case [int() as index, bytes() as answer]:
            return index, decode_answer(answer)
    raise ProtocolError("the answer to a command cannot be read")


def decode_lease(body: Buffer) -> int:
    """The lease of a META_LEASE request. Raises `ProtocolError`."""
    match unpack(body, "META_LEASE"):
        case ["renew", int() as lease]:
            return lease
    raise ProtocolError("META_LEASE: not a renewal")


def encode_events(batch: WatchBatch) -> bytes:
    """Changes for a watch."""
    return pack(
        [batch.revision, [[event.kind, item_to_list(event.item)] for event in batch.events]]
    )


def decode_events(body: Buffer) -> WatchBatch:
    """Raises `ProtocolError`."""
    try:
        revision, rows = unpack(body, "META_WATCH_EVENTS")
        events = []
        for kind, row in rows:
            item = item_from_list(row)
            if item is None or kind not in ("put", "delete"):
                raise ValueError(kind)
            events.append(Event(kind, item))
        return WatchBatch(int(revision), tuple(events))
    except MALFORMED:
        raise ProtocolError("changes that cannot be read") from None


@dataclass(frozen=True, slots=True)
class Row:
    """A node of the quorum with the addresses it advertises, "host:port" by listener name."""

    status: MemberStatus
    advertised: dict[str, str]


def encode_rows(rows: list[Row]) -> bytes:
    """The answer to META_STATUS."""
    fields = []
    for row in rows:
        r = row.status
        fields.append(
            [
                *(r.name, r.address, r.role, r.term, r.applied, r.alive, r.node_id),
                *(row.advertised, list(r.reasons)),
            ]
        )
    return pack(fields)


def decode_rows(body: Buffer) -> list[Row]:
    """Raises `ProtocolError`."""
    try:
        found = []
        for fields in unpack(body, "META_STATUS"):
            name, address, role, term, applied, alive, node_id, advertised, *more = fields
            status = MemberStatus(
                str(name),
                str(address),
                str(role),
                int(term),
                int(applied),
                bool(alive),
                str(node_id),
                reasons_of(more[0] if more else []),
            )
            found.append(Row(status, {str(k): str(v) for k, v in advertised.items()}))
        return found
    except MALFORMED:
        raise ProtocolError("a status that cannot be read") from None


@dataclass(frozen=True, slots=True)
class MembersRequest:
    """A question about the quorum's members, or a change: ``kind`` is show, add, replace or remove."""

    kind: str
    name: str = ""
    address: str = ""

    def encode(self) -> bytes:
        """As a frame body."""
        fields = {"show": [], "remove": [self.name]}.get(self.kind, [self.name, self.address])
        return pack([self.kind, *fields])

    @classmethod
    def decode(cls, body: Buffer) -> "MembersRequest":
        """Raises `ProtocolError`."""
        match unpack(body, "META_MEMBERS"):
            case ["show"]:
                return cls("show")
            case ["remove", str() as name]:
                return cls("remove", name)
            case ["add" | "replace" as kind, str() as name, str() as address]:
                return cls(kind, name, address)
        raise ProtocolError("a question about members that cannot be read")


@dataclass(frozen=True, slots=True)
class Reach:
    """A member, and where it is reached on the listener that was asked on ("" if unknown)."""

    member: Member
    address: str


def encode_members(found: list[Reach]) -> bytes:
    """The answer to META_MEMBERS."""
    members = [(reach.member, reach.address) for reach in found]
    return pack([[m.node_id, m.name, m.address, m.votes, address] for m, address in members])


def decode_members(body: Buffer) -> list[Reach]:
    """Raises `ProtocolError`."""
    try:
        return [
            Reach(Member(str(node_id), str(name), str(address), bool(votes)), str(reach))
            for node_id, name, address, votes, reach in unpack(body, "META_MEMBERS")
        ]
    except MALFORMED:
        raise ProtocolError("members that cannot be read") from None


def _three(body: Buffer) -> tuple[Any, Any, Any]:
    value = unpack(body, "the answer to a read")
    if not isinstance(value, list) or len(value) != 3:
        raise ProtocolError("the answer to a read cannot be read")
    return value[0], value[1], value[2]
