"""The state of a log, which all its clients must agree on, in one small key, and its changes (pure).

Every client that changes a log compares the version of this key. Only ``epoch`` decides whether a *writer*
still owns the log (H12), because a truncation may change the version while the writer is active. The value
has at most 1 KiB, because each roll rewrites it and each reader receives it. Segments have keys of their own.

The format number defines which programs can read it, and `LogState.writer_format` which can change it. Fields
that a newer program has added at the end are kept, if that program permits this one to change the log (H149).

Segments ``first_segment`` to ``last_segment`` exist. Those from ``first_open_segment`` on are in progress:
one, or two while a roll waits for the close of the older one. They are closed in ascending order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...runtime.interfaces.errors import (
    CorruptData,
    EndOfStream,
    LogNotFound,
    UnsupportedFormat,
)
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import (
    check_stored,
    decode_stored,
    flag,
    list_of_any,
    number,
    optional,
    row,
    text,
    verify_round_trip,
)
from ..format.dlsn import DLSN

FORMAT = 2
WRITER_FORMAT_PLAIN = 2
"""The writer format of a log without any of the properties below, each of which adds its number.

The writer format defines which programs may change the log.
"""
WITH_PRODUCERS, WITH_UNORDERED, WITH_RECORD_HEADERS = 1, 2, 4
"""Properties of a log in its writer format.

- Producers: only programs that maintain their state may change the log.
- Unordered: its txids have decreased, so only programs that close a segment with its greatest txid may change
  it.
- Record headers: its entries may have keys and headers, so only programs that decode these may change it.
"""
WRITER_FORMAT = WRITER_FORMAT_PLAIN + WITH_PRODUCERS + WITH_UNORDERED + WITH_RECORD_HEADERS
"""The format of changes by this program. It changes no log that requires a newer one."""
STATE_BYTES_MAX = 1024
IN_PROGRESS_MAX = 2
"""Maximum number of segments in progress. A takeover handles them as a list, whatever the state contains."""
OWNER_BYTES_MAX = 200
GIVEN, COUNT, MS, BYTES, AUTO = TXID_RULES = ("given", "count", "ms", "bytes", "auto")
"""The stored names of the txid policies (`txid_policy.py`)."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a log when it was deleted."""

    dlsn: DLSN
    """The position after its last record."""
    sequence_id: int
    """The number of records that it ever had."""
    is_exact: bool
    """False if its last segment could not be recovered. The log may then have ended later, but not
    earlier."""

    def to_list(self) -> list[Any]:
        """Return five fields for a packed value."""
        return [*self.dlsn, self.sequence_id, self.is_exact]

    @classmethod
    def from_list(cls, fields: Any) -> "LogEnd":
        """Return the end in a result of `to_list`.

        Raises:
            CorruptData: The fields are invalid.
        """
        segment, entry, slot, sequence_id, exact = check_stored(fields, _END, "the end of a log")
        return cls(DLSN(segment, entry, slot), sequence_id, exact)


@dataclass(frozen=True, slots=True)
class ClosedSegmentTotals:
    """The totals of closed segments, which are added to the log's state."""

    records: int = 0
    size_bytes: int = 0
    last_txid: int = -1
    """The greatest txid, or -1 if the segments have no record."""
    last_time_ms: int = 0
    """The log time at their end."""
    last_dlsn: DLSN | None = None
    """The position of their last record."""


@dataclass(frozen=True, slots=True)
class LogState:
    """The state of a log, stored as the value of ``log/<id>/state``.

    Methods that change it return a new value.
    """

    log_id: int
    name: str
    created_ms: int
    incarnation: int = 0
    """Reserved, always 0. The incarnation of a log is its ID (`incarnation_text`)."""
    epoch: int = 0
    """Raised by each writer. A writer with another epoch is fenced."""
    owner: str = ""
    """The name of the writer, for people, or "" if the log has no owner."""
    writer_id: str = ""
    """A random ID per writer. After an unknown outcome, it distinguishes the writer's own change from another
    one."""
    first_segment: int = 1
    first_open_segment: int = 1
    last_segment: int = 0
    last_txid: int = -1
    """The greatest txid of the closed segments, or -1 if they have no record."""
    next_sequence_id: int = 0
    """The sequence ID of the first record of segment ``first_open_segment``."""
    truncated_to: DLSN = DLSN.INITIAL
    """The truncation point. No record before it is readable."""
    truncated_sequence_id: int = 0
    sealed: bool = False
    deleting: bool = False
    quorums: tuple[int, int, int] | None = None
    """Ensemble size, write quorum and ack quorum of this log's ledgers, if they differ from the default."""
    end: LogEnd | None = None
    """The end of a log that is being deleted. It is stored before the first segment is deleted."""
    time_ms: int = 0
    """The greatest log time of the closed segments, in ms since 1970. Later entries are not stamped below
    it."""
    bytes_total: int = 0
    """Entry bytes of all closed segments that the log ever had, without replication. -1 means not known,
    for a log that was created in format 1."""
    txid_rule: str = AUTO
    """For programs without policies, which use and change it: they replace ``auto`` by ``given`` or
    ``ms``."""
    had_unordered_txids: bool = False
    """Whether a txid of this log was lower than an earlier one."""
    writer_format: int = WRITER_FORMAT_PLAIN
    """Programs with a lower `WRITER_FORMAT` must not change the log."""
    producer_snapshot_segment: int = 0
    """The newest closed segment whose last entry refers to a snapshot of the producers, or 0."""
    last_dlsn: DLSN | None = None
    """The position of the last record in the closed segments. None if there was none, or if it is not known
    as for ``bytes_total``."""
    txid_policy: str = ""
    """One of `TXID_RULES`, or a policy of a newer program. "" if no program with policies has written to
    this log."""
    unknown_fields: tuple[Any, ...] = ()
    """Fields of a newer program, as they were read."""

    def __post_init__(self) -> None:
        assert 1 <= self.first_segment <= self.first_open_segment <= self.last_segment + 1, (
            "segments are closed and deleted in order"
        )
        assert self.last_segment - self.first_open_segment < IN_PROGRESS_MAX, (
            "at most two segments are in progress"
        )

    @property
    def earliest(self) -> DLSN:
        """The first available position.

        It is the truncation point, or the start of the first segment if that is greater: segments are deleted
        as a whole, but a truncation point may be anywhere.
        """
        return max(self.truncated_to, DLSN(self.first_segment, 0, 0))

    @property
    def policy(self) -> str:
        """The txid policy. For a log of an older program, the policy that matches its behavior."""
        return self.txid_policy or self.txid_rule

    @property
    def is_txid_searchable(self) -> bool:
        """Whether txids can be searched for.

        They can if none decreased, or if all entries store the greatest txid so far.
        """
        return not self.had_unordered_txids or self._has_property(WITH_UNORDERED)

    @property
    def has_producers(self) -> bool:
        """Whether its entries have a producer section."""
        return self._has_property(WITH_PRODUCERS)

    @property
    def has_record_headers(self) -> bool:
        """Whether its entries may have keys and headers."""
        return self._has_property(WITH_RECORD_HEADERS)

    def _has_property(self, writer_property: int) -> bool:
        is_known = WRITER_FORMAT_PLAIN <= self.writer_format <= WRITER_FORMAT
        return is_known and bool((self.writer_format - WRITER_FORMAT_PLAIN) & writer_property)

    def _with_property(self, writer_property: int) -> "LogState":
        """Return the state with a property in its writer format. A newer program's format is not changed."""
        if self._has_property(writer_property) or self.writer_format > WRITER_FORMAT:
            return self
        return replace(self, writer_format=self.writer_format + writer_property)

    @property
    def in_progress(self) -> range:
        """The numbers of the segments that are not closed, ascending."""
        return range(self.first_open_segment, self.last_segment + 1)

    def with_writer(self, owner: str, writer_id: str) -> "LogState":
        """Return the state with a new owner.

        The previous writer can neither roll nor close segments any more (H12).

        Raises:
            LogNotFound: The log is being deleted.
            EndOfStream: The log is sealed.
        """
        if self.deleting:
            raise LogNotFound(
                f'log "{self.name}" is being deleted by {self.owner}; deleting it again finishes that'
            )
        if self.sealed:
            raise EndOfStream(f'log "{self.name}" is sealed: it accepts no more records')
        return self._with_owner(owner, writer_id)

    def with_deletion_begun(self, owner: str, writer_id: str) -> "LogState":
        """Return the state at the start of a deletion.

        The log can no longer be opened, and its writer is fenced as by another writer (H13).
        """
        return replace(self._with_owner(owner, writer_id), deleting=True)

    def with_end(self, *, exact: bool) -> "LogState":
        """Return the state with the end of a log that is being deleted: after its closed segments.

        An end that is already stored is kept.
        """
        assert self.deleting, "the end is stored only during a deletion"
        if self.end is not None:
            return self
        end = LogEnd(DLSN(self.first_open_segment, 0, 0), self.next_sequence_id, exact)
        return replace(self, end=end)

    def without_segments_to(self, segment: int) -> "LogState":
        """Return the state without the segments up to and including this one."""
        assert segment <= self.last_segment
        return replace(
            self,
            first_segment=segment + 1,
            first_open_segment=max(self.first_open_segment, segment + 1),
        )

    def _with_owner(self, owner: str, writer_id: str) -> "LogState":
        owner_text = owner.encode()[:OWNER_BYTES_MAX].decode(errors="ignore")
        return replace(self, epoch=self.epoch + 1, owner=owner_text, writer_id=writer_id)

    def with_segment(self) -> "LogState":
        """Return the state with one more segment in progress."""
        return replace(self, last_segment=self.last_segment + 1, txid_policy=self.policy)

    def with_linked(self, totals: ClosedSegmentTotals) -> "LogState":
        """Return the state with a closed segment after the last one. No segment may be in progress (H13)."""
        assert not self.in_progress, "segments are linked after closed ones"
        assert not self.sealed, "a sealed log accepts no more segments"
        last = self.last_segment + 1
        return replace(
            self._with_totals(totals),
            first_open_segment=last + 1,
            last_segment=last,
            txid_policy=self.policy,
        )

    def with_unordered(self) -> "LogState":
        """Return the state of a log whose txids are about to decrease.

        If they decreased under an older program, whose entries do not store the greatest txid so far, no
        search can be correct, and the log stays unsearchable.
        """
        if self.had_unordered_txids:
            return self
        return replace(self._with_property(WITH_UNORDERED), had_unordered_txids=True)

    def with_unsearchable_txids(self) -> "LogState":
        """Return the state of a log whose txids are about to decrease, for a cluster with older programs.

        Older programs continue to write to the log, and its txids can never be searched again.
        """
        return replace(self, had_unordered_txids=True)

    def with_producers(self) -> "LogState":
        """Return the state of a log whose entries are about to get producer sections (H71)."""
        return self._with_property(WITH_PRODUCERS)

    def with_record_headers(self) -> "LogState":
        """Return the state of a log whose entries are about to get keys or headers."""
        return self._with_property(WITH_RECORD_HEADERS)

    def with_producer_snapshot(self, segment: int) -> "LogState":
        """Return the state with the closed segment from which the producer state can be read."""
        assert self.producer_snapshot_segment <= segment < self.first_open_segment, (
            "the newest closed one"
        )
        return replace(self, producer_snapshot_segment=segment)

    def with_seal(self) -> "LogState":
        """Return the sealed state."""
        assert not self.in_progress, "a log is sealed when all its segments are closed"
        return replace(self, sealed=True)

    def with_truncation(self, to: DLSN, sequence_id: int) -> "LogState":
        """Return the state with a truncation point. It never decreases, so a lower point changes nothing."""
        if to <= self.truncated_to:
            return self
        return replace(self, truncated_to=to, truncated_sequence_id=sequence_id)

    def with_quorums(self, quorums: tuple[int, int, int] | None) -> "LogState":
        """Return the state with these quorums for the next segments. None means the default of the writer."""
        return replace(self, quorums=quorums)

    def with_name(self, name: str) -> "LogState":
        """Return the state with another name."""
        assert not self.deleting, (
            "a log that is being deleted keeps its name for its deleted-log record"
        )
        return replace(self, name=name)

    def with_closed(self, segment: int, totals: ClosedSegmentTotals) -> "LogState":
        """Return the state after the oldest segment in progress is closed."""
        assert segment == self.first_open_segment <= self.last_segment, (
            "segments are closed in order"
        )
        return replace(self._with_totals(totals), first_open_segment=segment + 1)

    def _with_totals(self, totals: ClosedSegmentTotals) -> "LogState":
        has_byte_count = self.bytes_total >= 0
        return replace(
            self,
            next_sequence_id=self.next_sequence_id + totals.records,
            last_txid=max(self.last_txid, totals.last_txid),
            time_ms=max(self.time_ms, totals.last_time_ms),
            bytes_total=self.bytes_total + totals.size_bytes if has_byte_count else -1,
            last_dlsn=totals.last_dlsn or self.last_dlsn,
            # In a log of an older program, these records had txids. Otherwise it would have stored ``ms``.
            txid_rule=GIVEN
            if self.policy == AUTO and not self.txid_policy and totals.records
            else self.txid_rule,
        )

    def without_owner(self) -> "LogState":
        """Return the state after its writer has closed. The epoch stays."""
        return replace(self, owner="", writer_id="")

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """Encode the state in at most 1 KiB (H40), always in the newest format.

        Raises:
            UnsupportedFormat: Only newer programs may change the log.
        """
        if self.writer_format > WRITER_FORMAT:
            raise UnsupportedFormat(
                f'log "{self.name}" can be changed only by programs of format {self.writer_format} and '
                f"newer; this one has {WRITER_FORMAT} and can only read it"
            )
        value = pack(
            [
                FORMAT,
                self.log_id,
                self.name,
                self.created_ms,
                self.incarnation,
                self.epoch,
                self.owner,
                self.writer_id,
                self.first_segment,
                self.first_open_segment,
                self.last_segment,
                self.last_txid,
                self.next_sequence_id,
                list(self.truncated_to),
                self.truncated_sequence_id,
                self.sealed,
                self.deleting,
                None if self.quorums is None else list(self.quorums),
                None if self.end is None else self.end.to_list(),
                self.time_ms,
                self.bytes_total,
                self.txid_rule,
                self.had_unordered_txids,
                self.writer_format,
                self.producer_snapshot_segment,
                None if self.last_dlsn is None else list(self.last_dlsn),
                *([self.txid_policy] if self.txid_policy or self.unknown_fields else ()),
                *self.unknown_fields,
            ]
        )
        assert len(value) <= STATE_BYTES_MAX, "the state of a log stays small (H40)"
        return value

    @classmethod
    def decode(cls, value: Buffer) -> "LogState":
        """Decode the state.

        Raises:
            CorruptData: The value is invalid.
            UnsupportedFormat: A newer version wrote the value.
        """
        what = "the state of a log"
        written_in, fields = format_and_fields(value, _FIELDS_MIN, what)
        *leading_fields, truncated_to, truncated_sequence_id, sealed, deleting, quorums = (
            check_stored(fields[:17], _STATE, what)
        )
        end = LogEnd.from_list(fields[17]) if len(fields) > 17 and fields[17] is not None else None
        if written_in == 1:
            # This format has no times and sizes of segments, and its writers always gave the txids.
            never_written = leading_fields[4] == 0  # without an epoch the log never had a writer
            bytes_total, default_policy = (0, AUTO) if never_written else (-1, GIVEN)
            later_fields = (
                0,
                bytes_total,
                default_policy,
                False,
                WRITER_FORMAT_PLAIN,
                0,
                None,
                "",
                (),
            )
        else:
            *middle_fields, last_dlsn = check_stored(fields[18:25], _LATER_FIELDS, what)
            last_dlsn = None if last_dlsn is None else DLSN(*last_dlsn)
            policy = check_stored(fields[25], _POLICY, what) if len(fields) > 25 else ""
            later_fields = (*middle_fields, last_dlsn, policy, tuple(fields[26:]))
        rest = (truncated_sequence_id, sealed, deleting, quorums, end, *later_fields)
        try:
            return cls(*(*leading_fields, DLSN(*truncated_to), *rest))
        except AssertionError as error:  # the fields contradict each other
            raise CorruptData(f"{what} is invalid: {error}") from None


def bool_to_int_txid(value: Any) -> Any:
    """Return a stored txid that is true or false as 1 or 0, and any other value unchanged.

    Programs of format 3 and before stored the value that the caller gave. Then ``txid=True`` closed a segment
    with a record that its own log could not read.
    """
    return int(value) if type(value) is bool else value


def stores_bool_last_txid(value: Buffer) -> bool:
    """Return whether the state of a log stores true or false as its last txid (see `bool_to_int_txid`).

    Raises:
        CorruptData: The value is invalid.
        UnsupportedFormat: A newer version wrote the value.
    """
    _, fields = format_and_fields(value, _FIELDS_MIN, "the state of a log")
    return type(fields[_LAST_TXID]) is bool


def _txid(value: Any) -> int:
    return int(_TXID_NUMBER(bool_to_int_txid(value)))


_FIELDS_MIN = {1: 18, 2: 26}
_LAST_TXID = 10
"""The position of the last txid in the list of fields."""
_TXID_NUMBER = number(-1)
_NUMBER = number()
_DLSN = row(number(), number(), number())
_END = row(number(), number(), number(), number(), flag)
_STATE = row(
    _NUMBER,  # log id
    text(chars_min=1),
    _NUMBER,  # created
    _NUMBER,  # incarnation
    _NUMBER,  # epoch
    text(),  # owner
    text(),  # writer id
    number(1),
    number(1),
    _NUMBER,  # last segment
    _txid,  # last txid
    _NUMBER,  # next sequence id
    _DLSN,
    _NUMBER,
    flag,
    flag,
    optional(row(number(1), number(1), number(1))),
)
_POLICY = text(16)
_LATER_FIELDS = row(
    _NUMBER,  # time
    number(-1),  # bytes
    text(16, 1),
    flag,
    _NUMBER,  # writer format
    _NUMBER,  # producers
    optional(_DLSN),
)


def decode_fields(value: Buffer, newest_format: int, length: int, what: str) -> list[Any]:
    """Return the fields after the format number of a packed list. Fields of later versions are included.

    Raises:
        CorruptData: The value is invalid.
        UnsupportedFormat: The format is newer.
    """
    return format_and_fields(value, dict.fromkeys(range(newest_format + 1), length), what)[1]


def format_and_fields(
    value: Buffer, lengths: Mapping[int, int], what: str
) -> tuple[int, list[Any]]:
    """Return the format number of a packed list, and all fields after it, including those of later versions.

    Args:
        value: The packed list.
        lengths: For each known format, the minimum number of fields, including the format number.
        what: The name of the value, for errors.
    Raises:
        CorruptData: The value is invalid.
        UnsupportedFormat: The format is newer.
    """
    fields: list[Any] = decode_stored(value, list_of_any, what)
    if not fields or type(fields[0]) is not int:
        raise CorruptData(f"{what} is not a list with a format number")
    written_in, newest_format = fields[0], max(lengths)
    if written_in > newest_format:
        raise UnsupportedFormat(
            f"{what} has format {written_in}, this program reads up to {newest_format}"
        )
    if written_in not in lengths or len(fields) < lengths[written_in]:
        raise CorruptData(f"{what} has {len(fields)} fields, which is not format {written_in}")
    return written_in, fields[1:]
