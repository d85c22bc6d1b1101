"""Frame bodies of client requests to a metadata node, and of the replies (pure).

Requests and replies::

    META_READ      ["get", key] | ["range", start, end, limit]
       REPLY       [index, revision, item or [items, more]]
    META_TRANSACT  a command (`commands.py`)
       REPLY       [index, answer]
    META_LEASE     ["renew", lease]                      REPLY  []
    META_WATCH     [start, end, after revision]          no reply; the messages below have the same ident
       META_WATCH_EVENTS  [revision, [[kind, item], …]]; with a status: the watch has ended
       META_WATCH_CANCEL  sent by the client
    META_MEMBERS   ["show"] | ["add", name, address] | ["replace", name, address or ""] | ["remove", name]
       REPLY       [[node id, name, "host:port", votes, "host:port" on the listener of the request], …]
    META_STATUS    ["self"] | ["all"]                    REPLY  [row, …]
    META_FORM      empty | a founding request (`bootstrap.py`)     REPLY  BootstrapAnswer
    META_SAVE      see `backup_format.py`
    META_TRUST     ["who"] | ["show"]                    REPLY  AuthorizationReport
                   ["change", client, request, base index, a change (`acl_commands.py`)] REPLY as TRANSACT
    META_DIFFERS   [index, digest] of a leader           no reply (`state_digest.py`)
    META_RECALL    empty                                 REPLY  VoterReport (`hard_state_recovery.py`)

``index`` is the log index that the node had applied. Clients send the highest index that they received as
the base index of new requests (H20).
"""

from dataclasses import dataclass
from typing import Any

from ...runtime.declarations.condition_texts import texts_for_older_versions
from ...runtime.declarations.health_conditions import as_maps, conditions_form, legacy_form
from ...runtime.declarations.versions import VERSION_CHARS_MAX
from ...runtime.interfaces.errors import InvalidRequest, ProtocolError
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import ERROR_CHARS_MAX, pack, unpack
from ...runtime.protocol.schema import (
    TEXT_CHARS_MAX,
    Form,
    SchemaError,
    check_message,
    decode_message,
    flag,
    is_number,
    mapping,
    number,
    one_of,
    row,
    rows,
    text,
)
from ..model.acl_records import FORCE, MODES, NAME_CHARS_MAX, REPORTED_DENIALS_MAX
from ..model.command_results import (
    CommandResult,
    decode_answer,
    encode_answer,
    item_from_list,
    item_to_list,
)
from ..model.configuration import Member
from ..model.interface import MemberRole, MemberStatus, RangePage, WatchBatch, WatchEvent
from ..model.request_identity import CLIENT_CHARS_MAX
from ..model.rights import ROLES
from ..model.transaction import KEY_BYTES_MAX, KeyValue, check_number

RANGE_LIMIT_MAX = 10_000
ROWS_MAX = 64 * 1024
PATH_CHARS_MAX = 255
NODES_MAX = 64
"""Rows of a status: the members, and the nodes that wait to become members."""
NAMESPACES_MAX = 1000
"""Maximum number of namespaces in a report."""
ADDRESS_CHARS_MAX = 300
"""Length of a "host:port" text."""


def _required_item(value: Any) -> KeyValue:
    item = item_from_list(value)
    if item is None:
        raise SchemaError("no key")
    return item


def _event(value: Any) -> WatchEvent:
    kind, item = _EVENT(value)
    return WatchEvent(kind, item)


_EVENT = row(one_of("put", "delete"), _required_item)
_ITEM_REPLY = row(number(), number(), item_from_list)
_PAGE = row(number(), number(), row(rows(_required_item, ROWS_MAX), flag))
_EVENTS = row(number(), rows(_event, ROWS_MAX))
_REPORT_FIELDS = (
    one_of(*MODES),
    text(),
    number(),
    rows(row(text(), text(4096), number()), REPORTED_DENIALS_MAX),
)
_REPORT_WITHOUT_NAMESPACES = row(*_REPORT_FIELDS)
_NAMESPACE_USE = row(text(), *[number()] * 6)
_REPORT = row(*_REPORT_FIELDS, row(flag, rows(_NAMESPACE_USE, NAMESPACES_MAX)), later=True)
_NAME = text(NAME_CHARS_MAX)
_DIGITS = text(19)
_PATH_OF_LOGS = text(PATH_CHARS_MAX)


def _forceable(*forms: Form) -> Form:
    """Return the form of a change that accepts `FORCE` as an additional last word.

    Nodes of older versions reject this word.
    """
    plain, forced = row(*forms), row(*forms, one_of(FORCE))

    def change(value: Any) -> tuple[Any, ...]:
        words: tuple[Any, ...] = (forced if len(value) > len(forms) else plain)(value)
        return words

    return change


_CHANGES = {
    "mode": _forceable(one_of("mode"), one_of(*MODES), _NAME),
    "user": row(one_of("user"), _NAME),
    "disable": row(one_of("disable"), _NAME),
    "enable": row(one_of("enable"), _NAME),
    "remove": row(one_of("remove"), _NAME),
    "tokens": row(one_of("tokens"), _NAME),
    "refuse": row(one_of("refuse"), _NAME, _NAME),
    "grant": row(one_of("grant"), _NAME, one_of(*ROLES), _PATH_OF_LOGS, _PATH_OF_LOGS),
    "quota": _forceable(one_of("quota"), _PATH_OF_LOGS, _DIGITS, _DIGITS, _DIGITS),
    "revoke": row(one_of("revoke"), _NAME, _PATH_OF_LOGS, _PATH_OF_LOGS),
}
"""Forms of authorization changes, by kind (`acl_commands.py`)."""


def _trust_report(value: Any) -> tuple[Any, ...]:
    """Decode a report. A leader of an older version sends no namespaces."""
    has_namespaces = type(value) is list and len(value) > len(_REPORT_FIELDS)
    report_fields: tuple[Any, ...] = (
        _REPORT(value) if has_namespaces else _REPORT_WITHOUT_NAMESPACES(value)
    )
    return report_fields


def _change(value: Any) -> tuple[str, ...]:
    kind = value[0] if type(value) is list and value and type(value[0]) is str else ""
    words: tuple[str, ...] = _CHANGES.get(kind, _CHANGES["user"])(value)
    return words


_CHANGE = row(one_of("change"), text(CLIENT_CHARS_MAX, 1), number(), number(), _change)
_DIGEST = row(number(1), number())
_LEASE = row(one_of("renew"), number())
STATUS_REQUEST = row(one_of("self", "all"))
_ADDRESS = text(ADDRESS_CHARS_MAX)
_STATUS = (text(), _ADDRESS, text(ERROR_CHARS_MAX), number(), number(), flag, text())
_STATUS_ADDED = (
    legacy_form,
    conditions_form,
    text(),
    text(ERROR_CHARS_MAX),
    text(VERSION_CHARS_MAX),
)
"""Fields that later versions added, in this order: texts, conditions, role, detail of the role, version."""
_STATUS_ROWS = tuple(
    row(
        *_STATUS,
        mapping(_ADDRESS, NODES_MAX),
        *_STATUS_ADDED[:count],
        later=count == len(_STATUS_ADDED),
    )
    for count in range(len(_STATUS_ADDED) + 1)
)
"""Forms of a row, by the number of added fields that it contains."""


def _status_row(value: Any) -> "MemberStatusRow":
    """Decode a row of any version. Older versions lack the last fields."""
    added = len(value) - len(_STATUS) - 1 if type(value) is list else 0
    form = _STATUS_ROWS[max(0, min(added, len(_STATUS_ADDED)))]
    name, address, legacy_role, term, applied, alive, node_id, advertised, *later = form(value)
    conditions = later[1] if len(later) > 1 else later[0] if later else ()
    role, detail = later[2:4] if len(later) > 3 else _role_of(legacy_role)
    version = later[4] if len(later) > 4 else ""
    return MemberStatusRow(
        MemberStatus(
            name, address, role, term, applied, alive, node_id, conditions, detail, version
        ),
        advertised,
    )


_LEGACY_EMPTY = "waiting, empty"
_ROLES = frozenset(MemberRole)


def _role_of(sent: str) -> tuple[str, str]:
    """Return role and detail from the single field in which versions without codes send both."""
    if sent == _LEGACY_EMPTY:
        return MemberRole.EMPTY.value, ""
    role, _, detail = sent.partition(": ")
    return (role, detail) if role in _ROLES else (MemberRole.UNREACHABLE.value, sent)


def _legacy_role(status: MemberStatus) -> str:
    """Return the role field for versions without codes."""
    if status.role == MemberRole.EMPTY:
        return _LEGACY_EMPTY
    if status.role == MemberRole.DAMAGED:
        return f"{status.role}: {status.role_detail}"[:ERROR_CHARS_MAX]
    if status.role == MemberRole.UNREACHABLE:
        return status.role_detail or status.role
    return status.role


_ROWS = rows(_status_row, NODES_MAX)
_MEMBERS = rows(row(text(), text(), _ADDRESS, flag, _ADDRESS), NODES_MAX)


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """A read of one key, or of a range if ``end`` is not None."""

    start: bytes
    end: bytes | None
    limit: int = 1

    def encode(self) -> bytes:
        """Encode the request as a frame body."""
        if self.end is None:
            return pack(["get", self.start])
        return pack(["range", self.start, self.end, self.limit])

    @classmethod
    def decode(cls, body: Buffer) -> "RangeRequest":
        """Decode a frame body, or raise `ProtocolError`."""
        match unpack(body, "META_READ"):
            case ["get", bytes() as key]:
                return cls(key, None)
            case ["range", bytes() as start, bytes() as end, limit] if is_number(limit, 1):
                return cls(start, end, min(limit, RANGE_LIMIT_MAX))
        raise ProtocolError("META_READ: neither a key nor a range")


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """A request to watch the changes of start <= key < end after a revision."""

    start: bytes
    end: bytes
    after_revision: int

    def encode(self) -> bytes:
        """Encode the request as a frame body."""
        return pack([self.start, self.end, self.after_revision])

    @classmethod
    def decode(cls, body: Buffer) -> "WatchRequest":
        """Decode a frame body, or raise `ProtocolError`."""
        match unpack(body, "META_WATCH"):
            case [start, end, revision]:
                request = cls(start, end, revision)
                try:
                    request.check()
                except InvalidRequest as error:
                    raise ProtocolError(f"META_WATCH: {error}") from None
                return request
        raise ProtocolError("META_WATCH: not a range and a revision")

    def check(self) -> None:
        """Raise `InvalidRequest` if the range or revision is invalid.

        Called by the client and by the node.
        """
        keys = (self.start, self.end)
        if not all(isinstance(key, bytes) and len(key) <= KEY_BYTES_MAX for key in keys):
            raise InvalidRequest(
                f"a range of keys is two byte strings of up to {KEY_BYTES_MAX} bytes"
            )
        check_number(self.after_revision, "a revision")


def encode_item(index: int, revision: int, item: KeyValue | None) -> bytes:
    """Encode the reply to a read of one key."""
    return pack([index, revision, item_to_list(item)])


def decode_item(body: Buffer) -> tuple[int, KeyValue | None]:
    """Return the applied index and the item of a reply, or raise `ProtocolError`."""
    index, _, item = decode_message(body, _ITEM_REPLY, "the answer to a read of a key")
    return index, item


def encode_page(index: int, page: RangePage) -> bytes:
    """Encode the reply to a read of a range."""
    return pack([index, page.revision, [[item_to_list(item) for item in page.items], page.more]])


def decode_page(body: Buffer) -> tuple[int, RangePage]:
    """Return the applied index and the page of a reply, or raise `ProtocolError`."""
    what = "the answer to a read of a range"
    index, revision, (items, more) = decode_message(body, _PAGE, what)
    if more and not items:
        raise ProtocolError(f"{what} without a key to continue from")
    return index, RangePage(items, revision, more)


def encode_outcome(index: int, answer: CommandResult, *, codes: bool = True) -> bytes:
    """Encode the reply to a command. ``codes`` is the argument of `encode_answer`."""
    return pack([index, encode_answer(answer, codes=codes)])


def decode_outcome(body: Buffer) -> tuple[int, CommandResult]:
    """Return the applied index and the result of a reply to a command.

    Raises:
        ProtocolError, CorruptData: The reply cannot be decoded.
    """
    match unpack(body, "the answer to a command"):
        case [index, bytes() as answer] if is_number(index):
            return index, decode_answer(answer)
    raise ProtocolError("the answer to a command cannot be read")


def decode_lease(body: Buffer) -> int:
    """Return the lease of a META_LEASE request, or raise `ProtocolError`."""
    _, lease = decode_message(body, _LEASE, "META_LEASE")
    return int(lease)


def encode_digest(index: int, digest: int) -> bytes:
    """Encode the digest that the state of the majority had after an entry."""
    return pack([index, digest])


def decode_digest(body: Buffer) -> tuple[int, int]:
    """Return index and digest of a META_DIFFERS message, or raise `ProtocolError`."""
    index, digest = decode_message(body, _DIGEST, "META_DIFFERS")
    return int(index), int(digest)


def encode_events(batch: WatchBatch) -> bytes:
    """Encode a batch of changes for a watch."""
    return pack(
        [batch.revision, [[event.kind, item_to_list(event.item)] for event in batch.events]]
    )


def decode_events(body: Buffer) -> WatchBatch:
    """Decode a batch of changes, or raise `ProtocolError`."""
    revision, events = decode_message(body, _EVENTS, "META_WATCH_EVENTS")
    return WatchBatch(revision, events)


@dataclass(frozen=True, slots=True)
class MemberStatusRow:
    """A node of the quorum with its advertised addresses, "host:port" by listener name."""

    status: MemberStatus
    advertised: dict[str, str]


def encode_rows(status_rows: list[MemberStatusRow]) -> bytes:
    """Encode the reply to META_STATUS."""
    fields = []
    for status_row in status_rows:
        status = status_row.status
        fields.append(
            [
                *(
                    status.name,
                    status.address,
                    _legacy_role(status),
                    status.term,
                    status.applied,
                    status.alive,
                    status.node_id,
                ),
                *(status_row.advertised, texts_for_older_versions(status.conditions)),
                *(as_maps(status.conditions), status.role, status.role_detail[:ERROR_CHARS_MAX]),
                status.version,
            ]
        )
    return pack(fields)


def decode_rows(body: Buffer) -> list[MemberStatusRow]:
    """Decode the reply to META_STATUS, or raise `ProtocolError`."""
    return list(decode_message(body, _ROWS, "META_STATUS"))


@dataclass(frozen=True, slots=True)
class AuthorizationRequest:
    """A request for the authorization report, or for a change of users, grants, quotas or the mode."""

    own_only: bool = False
    """Whether only the requester's own principal and rights are requested, not the full report."""
    client: str = ""
    request_number: int = 0
    base_index: int = 0
    change: tuple[str, ...] | None = None

    def encode(self) -> bytes:
        """Encode the request as a frame body."""
        if self.change is None:
            return pack(["who" if self.own_only else "show"])
        return pack(
            ["change", self.client, self.request_number, self.base_index, list(self.change)]
        )

    @classmethod
    def decode(cls, body: Buffer) -> "AuthorizationRequest":
        """Decode a frame body, or raise `ProtocolError`."""
        match unpack(body, "META_TRUST"):
            case ["who" | "show" as kind]:
                return cls(own_only=kind == "who")
            case ["change", *_] as words:
                _, client, number, base_index, change = check_message(words, _CHANGE, "META_TRUST")
                if "/" not in client:
                    return cls(False, client, number, base_index, change)
        raise ProtocolError("a request about authorization that cannot be read")


@dataclass(frozen=True, slots=True)
class AuthorizationReport:
    """The authorization state that a leader reports."""

    mode: str
    principal: str
    """The principal of the requester."""
    rights: int
    """The requester's rights on the cluster (`rights.py`)."""
    would_refuse: tuple[tuple[str, str, int], ...] = ()
    """In mode "report", the requests that mode "required" would refuse.

    Each row has the principal, the action, and how often it occurred since this node became leader.
    """
    usage_complete: bool = True
    """Whether the namespace counts are complete."""
    namespaces: tuple[tuple[str, int, int, int, int, int, int], ...] = ()
    """Namespaces, the fullest first. Each row has keys, bytes and ledgers, then the limits of the three."""


def encode_authorization_report(report: AuthorizationReport) -> bytes:
    """Encode the reply to a META_TRUST request without a change."""
    denial_rows = [list(values) for values in report.would_refuse]
    spaces = [report.usage_complete, [list(values) for values in report.namespaces]]
    return pack([report.mode, report.principal, report.rights, denial_rows, spaces])


def decode_authorization_report(body: Buffer) -> AuthorizationReport:
    """Decode a report, or raise `ProtocolError`."""
    mode, principal, rights, denials, *later = decode_message(body, _trust_report, "META_TRUST")
    return AuthorizationReport(mode, principal, rights, denials, *(later[0] if later else ()))


@dataclass(frozen=True, slots=True)
class MembersRequest:
    """A request for the members of the quorum, or for a change. ``kind`` is show, add, replace or remove."""

    kind: str
    name: str = ""
    address: str = ""

    def encode(self) -> bytes:
        """Encode the request as a frame body."""
        fields = {"show": [], "remove": [self.name]}.get(self.kind, [self.name, self.address])
        return pack([self.kind, *fields])

    @classmethod
    def decode(cls, body: Buffer) -> "MembersRequest":
        """Decode a frame body, or raise `ProtocolError`."""
        match unpack(body, "META_MEMBERS"):
            case ["show"]:
                return cls("show")
            case ["remove", str() as name] if len(name) <= TEXT_CHARS_MAX:
                return cls("remove", name)
            case ["add" | "replace" as kind, str() as name, str() as address] if (
                len(name) <= TEXT_CHARS_MAX and len(address) <= ADDRESS_CHARS_MAX
            ):
                return cls(kind, name, address)
        raise ProtocolError("a request about members that cannot be read")


@dataclass(frozen=True, slots=True)
class MemberAddress:
    """A member, and its address on the listener that received the request ("" if unknown)."""

    member: Member
    address: str


def encode_members(reachable: list[MemberAddress]) -> bytes:
    """Encode the reply to META_MEMBERS."""
    members = [(reach.member, reach.address) for reach in reachable]
    return pack([[m.node_id, m.name, m.address, m.votes, address] for m, address in members])


def decode_members(body: Buffer) -> list[MemberAddress]:
    """Decode the reply to META_MEMBERS, or raise `ProtocolError`."""
    return [
        MemberAddress(Member(*member), address)
        for *member, address in decode_message(body, _MEMBERS, "META_MEMBERS")
    ]
