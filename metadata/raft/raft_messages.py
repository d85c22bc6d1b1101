"""The messages between metadata nodes, and their bytes (pure).

The body of a META_RAFT frame is a msgpack list [kind, field, ...]. The type and range of every field are
checked before a message is created, so the core receives no malformed message. Otherwise `ProtocolError` is
raised. ``sender`` is a node ID, which the server compares with the ID in the HELLO of the connection. Terms
and indexes count from 1, and 0 means "before the first".

`SnapshotChunk` and `SnapshotChunkReply` are exchanged by the drivers (snapshot_receiver.py) and not by the
cores. A core only requests a snapshot for a peer and is notified of the outcome.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...runtime.interfaces.errors import ProtocolError
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import pack, unpack
from ..model.configuration import decode_configuration, is_configuration

NUMBER_MAX = (1 << 62) - 1
TERM_MAX = (1 << 48) - 1
"""Maximum term. Messages and disks contain no later one, and no node campaigns in one."""
NODE_ID_CHARACTERS_MAX = 256
ENTRIES_MAX = 4096
"""Maximum number of entries in one `AppendRequest`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the replicated log.

    ``data`` is a command, a configuration (`configuration.py`), or b"" for the no-op at the start of a
    leader's term.
    """

    index: int
    term: int
    data: bytes


@dataclass(frozen=True, slots=True)
class PreVote:
    """A request whether the receiver would vote for the sender in ``term``.

    It changes nothing there (thesis 9.6).
    """

    term: int
    sender: str
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class PreVoteReply:
    """The reply to a pre-vote. ``term`` is the requested one if granted, otherwise the receiver's own."""

    term: int
    sender: str
    granted: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """A candidate's request for a vote.

    ``transfer`` means that the leader started the campaign (thesis 3.10).
    """

    term: int
    sender: str
    last_index: int
    last_term: int
    transfer: bool


@dataclass(frozen=True, slots=True)
class VoteReply:
    """The reply to a request for a vote, sent only after the voter's term and vote are durable."""

    term: int
    sender: str
    granted: bool


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Entries that follow (``prev_index``, ``prev_term``). Without entries, the message is a probe.

    ``number`` counts the appends of a leadership, so that refusals of older ones can be recognized.
    """

    term: int
    sender: str
    prev_index: int
    prev_term: int
    commit: int
    entries: tuple[Entry, ...]
    number: int = 0


@dataclass(frozen=True, slots=True)
class AppendReply:
    """The reply to an append.

    If accepted, the follower's log is durable and equal to the leader's up to ``index``. ``applied_index``
    is an index that the follower has applied, and ``state_digest`` is `KeyValueState.digest` after it, or
    both are 0.

    If refused, ``index`` is the refused ``prev_index``. ``hint_term`` is the follower's term there, and
    ``hint_index`` is its first index of that term. They are 0 and one past its last index if its log is too
    short (paper 5.3).

    ``number`` is that of the answered append.
    """

    term: int
    sender: str
    accepted: bool
    index: int
    hint_index: int
    hint_term: int
    number: int = 0
    applied_index: int = 0
    state_digest: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The periodic message of a leader.

    ``commit`` is never above the last index that the receiver acknowledged. ``round`` 0 requests no reply.
    """

    term: int
    sender: str
    commit: int
    round: int


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The reply to a heartbeat: the sender followed the leader in ``round``.

    It does not wait for the disk.
    """

    term: int
    sender: str
    round: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """A leader's request to a follower with its complete log to campaign immediately (thesis 3.10)."""

    term: int
    sender: str


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """Bytes from ``offset`` on of the snapshot that ends at (``index``, ``index_term``)."""

    term: int
    sender: str
    index: int
    index_term: int
    offset: int
    total_bytes: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapshotChunkReply:
    """The number of bytes of a snapshot that the receiver has. The sender continues there (H39)."""

    term: int
    sender: str
    index: int
    index_term: int
    next_offset: int


Message = (
    PreVote
    | PreVoteReply
    | Vote
    | VoteReply
    | AppendRequest
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | TimeoutNow
)
"""The messages that the core receives and sends."""

WireMessage = Message | SnapshotChunk | SnapshotChunkReply


def encode(message: WireMessage, *, codes: bool = True) -> bytes:
    """Return the message as the body of a META_RAFT frame.

    Args:
        message: The message.
        codes: Whether the peer has `FEATURE_ERROR_CODES`. An `AppendReply` to an older version has no
            fields for the state. If accepted, it carries the state in the hint, which is unused then.
    """
    kind = _KINDS[type(message)]
    if isinstance(message, AppendReply) and not codes:
        hint = message.hint_index, message.hint_term
        if message.accepted:
            hint = message.applied_index, message.state_digest
        head = [kind, message.term, message.sender, message.accepted, message.index]
        return pack([*head, *hint, message.number])
    if isinstance(message, AppendRequest):
        entries = [[entry.term, entry.data] for entry in message.entries]
        return pack(
            [
                kind,
                message.term,
                message.sender,
                message.prev_index,
                message.prev_term,
                message.commit,
                entries,
                message.number,
            ]
        )
    return pack([kind, *(getattr(message, name) for name, _ in _FORMS[kind][1])])


def decode(body: Buffer) -> WireMessage:
    """Decode the body of a META_RAFT frame, or raise `ProtocolError`."""
    value = unpack(body, "a Raft message")
    if type(value) is not list or not value:
        raise ProtocolError("a Raft message: not a list")
    kind = value[0]
    message_form = _FORMS.get(kind) if type(kind) is int else None
    if message_form is None:
        raise ProtocolError("a Raft message of an unknown kind")
    cls, fields = message_form
    if cls is AppendReply and len(value) == _LEGACY_REPLY_FIELDS + 1:
        value = _upgrade_append_reply(value)
    if len(value) != len(fields) + 1:
        raise ProtocolError(f"{cls.__name__}: {len(value) - 1} fields, expected {len(fields)}")
    for (name, is_valid), field in zip(fields, value[1:], strict=True):
        if not is_valid(field):
            raise ProtocolError(f"{cls.__name__}: field {name} is malformed")
    if cls is AppendRequest:
        return _decode_append(*value[1:])
    message: WireMessage = cls(*value[1:])
    if isinstance(message, PreVote | Vote) and message.last_term > message.term:
        raise ProtocolError(f"{cls.__name__}: last term {message.last_term} above its own term")
    if isinstance(message, SnapshotChunk):
        if message.offset + len(message.data) > message.total_bytes:
            raise ProtocolError("SnapshotChunk: bytes beyond the announced total")
        if not (message.index > 0 and 0 < message.index_term <= message.term):
            raise ProtocolError(f"SnapshotChunk: entry {message.index} cannot have that term")
    return message


def _upgrade_append_reply(value: list[Any]) -> list[Any]:
    """Return the fields of an older version's `AppendReply` with the fields of this version."""
    *head, accepted, index, first, second, number = value
    if accepted is True:
        return [*head, accepted, index, 0, 0, number, first, second]
    return [*value, 0, 0]


def _decode_append(
    term: int,
    sender: str,
    prev_index: int,
    prev_term: int,
    commit: int,
    raw_entries: list[Any],
    number: int,
) -> AppendRequest:
    if prev_term > term or (prev_index == 0) != (prev_term == 0):
        raise ProtocolError(f"Append: entry {prev_index} cannot have term {prev_term}")
    entries = []
    previous_term = prev_term
    for index, item in enumerate(raw_entries, prev_index + 1):
        if type(item) is not list or len(item) != 2:
            raise ProtocolError("Append: an entry is malformed")
        entry_term, data = item
        if type(entry_term) is not int or type(data) is not bytes:
            raise ProtocolError("Append: an entry is malformed")
        if not (1 <= entry_term <= term and entry_term >= previous_term):
            raise ProtocolError(f"Append: entry {index} cannot have term {entry_term}")
        previous_term = entry_term
        # The core accepts the entry permanently. A configuration without voters could not be undone.
        if is_configuration(data) and not decode_configuration(data).voters:
            raise ProtocolError(f"Append: entry {index} leaves no voter")
        entries.append(Entry(index, entry_term, data))
    return AppendRequest(term, sender, prev_index, prev_term, commit, tuple(entries), number)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= NUMBER_MAX


def _is_term(value: Any) -> bool:
    return type(value) is int and 1 <= value <= TERM_MAX


def _is_node_id(value: Any) -> bool:
    return type(value) is str and 1 <= len(value) <= NODE_ID_CHARACTERS_MAX


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_bytes(value: Any) -> bool:
    return type(value) is bytes


def _is_entry_list(value: Any) -> bool:
    return type(value) is list and len(value) <= ENTRIES_MAX


_COMMON_FIELDS = (("term", _is_term), ("sender", _is_node_id))
_LAST_ENTRY_FIELDS = (("last_index", _is_number), ("last_term", _is_number))
_SNAPSHOT_FIELDS = (("index", _is_number), ("index_term", _is_number))

_FORMS: dict[int, tuple[type[Any], tuple[tuple[str, Callable[[Any], bool]], ...]]] = {
    1: (PreVote, (*_COMMON_FIELDS, *_LAST_ENTRY_FIELDS)),
    2: (PreVoteReply, (*_COMMON_FIELDS, ("granted", _is_flag))),
    3: (Vote, (*_COMMON_FIELDS, *_LAST_ENTRY_FIELDS, ("transfer", _is_flag))),
    4: (VoteReply, (*_COMMON_FIELDS, ("granted", _is_flag))),
    5: (
        AppendRequest,
        (
            *_COMMON_FIELDS,
            ("prev_index", _is_number),
            ("prev_term", _is_number),
            ("commit", _is_number),
            ("entries", _is_entry_list),
            ("number", _is_number),
        ),
    ),
    6: (
        AppendReply,
        (
            *_COMMON_FIELDS,
            ("accepted", _is_flag),
            ("index", _is_number),
            ("hint_index", _is_number),
            ("hint_term", _is_number),
            ("number", _is_number),
            ("applied_index", _is_number),
            ("state_digest", _is_number),
        ),
    ),
    7: (Heartbeat, (*_COMMON_FIELDS, ("commit", _is_number), ("round", _is_number))),
    8: (HeartbeatReply, (*_COMMON_FIELDS, ("round", _is_number))),
    9: (TimeoutNow, _COMMON_FIELDS),
    10: (
        SnapshotChunk,
        (
            *_COMMON_FIELDS,
            *_SNAPSHOT_FIELDS,
            ("offset", _is_number),
            ("total_bytes", _is_number),
            ("data", _is_bytes),
        ),
    ),
    11: (SnapshotChunkReply, (*_COMMON_FIELDS, *_SNAPSHOT_FIELDS, ("next_offset", _is_number))),
}
_LEGACY_REPLY_FIELDS = len(_FORMS[6][1]) - 2
_KINDS: dict[type[Any], int] = {cls: kind for kind, (cls, _) in _FORMS.items()}
