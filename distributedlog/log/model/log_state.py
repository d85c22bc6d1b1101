"""What must be agreed about one log, in one small key, and how it may change (pure).

Everybody who changes a log compares this key's version; whether a *writer* is still the owner is said by
``epoch`` alone (H12): a truncation may bump the version under a living writer. At most 1 KiB, for it
is rewritten at each roll and pushed to each reader; segments are keys of their own.

The format says who may read it, `LogState.writer_format` who may change it. Fields that a newer program has
added at the end, and lets this one change, are kept (H149).

Segments ``first_segment`` .. ``last_segment`` exist; those from ``open_from`` on are in progress: one, or
two while a roll waits for the close of the older. They are closed in ascending order.
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
WRITER_FORMAT = 5
"""Of the changes that this program makes: it changes no log that wants a newer one."""
WRITER_FORMAT_PLAIN, WRITER_FORMAT_PRODUCERS, WRITER_FORMAT_UNORDERED, WRITER_FORMAT_BOTH = (
    2,
    3,
    4,
    5,
)
"""Of a log that has never had producers; of one that has, which only programs that keep them change; of one
whose txids have decreased, which only programs change that close a segment by its greatest txid; of one with
both."""
STATE_BYTES_MAX = 1024
IN_PROGRESS_MAX = 2
"""Segments: whoever takes the log over makes a list of them, whatever its state says."""
OWNER_BYTES_MAX = 200
GIVEN, COUNT, MS, BYTES, AUTO = TXID_RULES = ("given", "count", "ms", "bytes", "auto")
"""The stored names of the txid policies (`txid_policy.py`)."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a log ended when it was deleted."""

    dlsn: DLSN
    """After its last record."""
    sequence_id: int
    """How many records it ever had."""
    is_exact: bool
    """False: its last segment could not be recovered. It may have gone further, never less far."""

    def to_list(self) -> list[Any]:
        """Five fields, for a packed value."""
        return [*self.dlsn, self.sequence_id, self.is_exact]

    @classmethod
    def from_list(cls, fields: Any) -> "LogEnd":
        """What `to_list` gave. Raises `CorruptData`."""
        segment, entry, slot, sequence_id, exact = check_stored(fields, _END, "the end of a log")
        return cls(DLSN(segment, entry, slot), sequence_id, exact)


@dataclass(frozen=True, slots=True)
class ClosedSegmentTotals:
    """What closed segments add to what a log's state says of all of them."""

    records: int = 0
    size_bytes: int = 0
    last_txid: int = -1
    """-1: they hold no record."""
    last_time_ms: int = 0
    """Log time at their end."""
    last_dlsn: DLSN | None = None
    """Of their last record."""


@dataclass(frozen=True, slots=True)
class LogState:
    """The value of ``log/<id>/state``. Changes are methods that give the next value."""

    log_id: int
    name: str
    created_ms: int
    incarnation: int = 0
    epoch: int = 0
    """Grows with each writer. A writer whose epoch is not this one has been fenced."""
    owner: str = ""
    """Who writes, in words, or "" when nobody holds the log."""
    writer_id: str = ""
    """Random, one a writer: tells its own change from another's after an unknown outcome."""
    first_segment: int = 1
    first_open_segment: int = 1
    last_segment: int = 0
    last_txid: int = -1
    """Of the closed segments; -1 while they hold no record."""
    next_sequence_id: int = 0
    """The sequence id of the first record of segment ``open_from``."""
    truncated_to: DLSN = DLSN.INITIAL
    """Nothing before this is readable."""
    truncated_sequence_id: int = 0
    sealed: bool = False
    deleting: bool = False
    quorums: tuple[int, int, int] | None = None
    """Ensemble, write quorum, ack quorum of this log's ledgers, where they differ from the default."""
    end: LogEnd | None = None
    """Of a log that is being deleted; there before its first segment goes."""
    time_ms: int = 0
    """The greatest log time of the closed segments, ms since 1970: what is written later is not before it."""
    bytes_total: int = 0
    """Entry bytes of all closed segments that the log ever had, without replication; -1: not known, of a log
    that was begun in format 1."""
    txid_rule: str = AUTO
    """Used, and changed, by programs without policies: they replace ``auto`` by ``given`` or ``ms``."""
    had_unordered_txids: bool = False
    """A txid of this log was lower than one before it."""
    writer_format: int = WRITER_FORMAT_PLAIN
    """Programs that know less must not change the log."""
    producer_snapshot_segment: int = 0
    """The newest closed segment whose last entry names a snapshot of the producers; 0: none does."""
    last_dlsn: DLSN | None = None
    """Of the last record in the closed segments; None: there was none yet (or it is not known, as above)."""
    txid_policy: str = ""
    """One of `TXID_RULES`, or a newer program's. "": no program with policies has written to this log."""
    unknown_fields: tuple[Any, ...] = ()
    """Fields of a newer program, as they were read."""

    def __post_init__(self) -> None:
        assert 1 <= self.first_segment <= self.first_open_segment <= self.last_segment + 1, (
            "segments are closed in order, and the first ones go first"
        )
        assert self.last_segment - self.first_open_segment < IN_PROGRESS_MAX, (
            "at most two segments are in progress"
        )

    @property
    def earliest(self) -> DLSN:
        """The first position that is left: segments go whole, a truncation ends anywhere."""
        return max(self.truncated_to, DLSN(self.first_segment, 0, 0))

    @property
    def policy(self) -> str:
        """The txid policy: of a log of an older program the one that it behaved by."""
        return self.txid_policy or self.txid_rule

    @property
    def is_txid_searchable(self) -> bool:
        """Whether a txid can be searched for: none decreased, or all entries store the greatest so far."""
        return not self.had_unordered_txids or self.writer_format in (
            WRITER_FORMAT_UNORDERED,
            WRITER_FORMAT_BOTH,
        )

    @property
    def has_producers(self) -> bool:
        """Whether its entries have a section on producers."""
        return self.writer_format in (WRITER_FORMAT_PRODUCERS, WRITER_FORMAT_BOTH)

    @property
    def in_progress(self) -> range:
        """The numbers of the segments that are not closed, ascending."""
        return range(self.first_open_segment, self.last_segment + 1)

    def with_writer(self, owner: str, writer_id: str) -> "LogState":
        """A new writer owns the log: whoever wrote before can neither roll nor close any more (H12)."""
        if self.deleting:
            raise LogNotFound(
                f'log "{self.name}" is being deleted by {self.owner}; deleting it again finishes that'
            )
        if self.sealed:
            raise EndOfStream(f'log "{self.name}" is sealed: it takes no more records')
        return self._with_owner(owner, writer_id)

    def with_deletion_begun(self, owner: str, writer_id: str) -> "LogState":
        """From here on nobody opens the log; whoever wrote is as fenced as by another writer (H13)."""
        return replace(self._with_owner(owner, writer_id), deleting=True)

    def with_end(self, *, exact: bool) -> "LogState":
        """Where a log that is being deleted ends: after its closed segments. The first one noted stays."""
        assert self.deleting, "only what is deleted ends here"
        if self.end is not None:
            return self
        end = LogEnd(DLSN(self.first_open_segment, 0, 0), self.next_sequence_id, exact)
        return replace(self, end=end)

    def without_segments_to(self, segment: int) -> "LogState":
        """The segments up to this one are gone."""
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
        """One more segment is in progress."""
        return replace(self, last_segment=self.last_segment + 1, txid_policy=self.policy)

    def with_linked(self, totals: ClosedSegmentTotals) -> "LogState":
        """A closed segment follows the last one; none is in progress (H13)."""
        assert not self.in_progress, "segments are linked after closed ones"
        assert not self.sealed, "a sealed log takes no more segments"
        last = self.last_segment + 1
        return replace(
            self._with_totals(totals),
            first_open_segment=last + 1,
            last_segment=last,
            txid_policy=self.policy,
        )

    def with_unordered(self) -> "LogState":
        """Return the state of a log whose txids are about to decrease.

        If they decreased under an older program, whose entries do not store the greatest so far, no search is
        right any more, and the log stays unsearchable.
        """
        if self.had_unordered_txids:
            return self
        next_formats = {
            WRITER_FORMAT_PLAIN: WRITER_FORMAT_UNORDERED,
            WRITER_FORMAT_PRODUCERS: WRITER_FORMAT_BOTH,
        }
        writer_format = next_formats.get(self.writer_format, self.writer_format)
        return replace(self, had_unordered_txids=True, writer_format=writer_format)

    def with_producers(self) -> "LogState":
        """Its entries are about to say what they hold of producers (H71)."""
        next_formats = {
            WRITER_FORMAT_PLAIN: WRITER_FORMAT_PRODUCERS,
            WRITER_FORMAT_UNORDERED: WRITER_FORMAT_BOTH,
        }
        return replace(self, writer_format=next_formats.get(self.writer_format, self.writer_format))

    def with_producer_snapshot(self, segment: int) -> "LogState":
        """What is known of producers is found from this closed segment alone."""
        assert self.producer_snapshot_segment <= segment < self.first_open_segment, (
            "the newest closed one"
        )
        return replace(self, producer_snapshot_segment=segment)

    def with_seal(self) -> "LogState":
        """The log ends here, for good."""
        assert not self.in_progress, "a log is sealed when all its segments are closed"
        return replace(self, sealed=True)

    def with_truncation(self, to: DLSN, sequence_id: int) -> "LogState":
        """Nothing before ``to`` is readable any more. It never goes back: a lower point changes nothing."""
        if to <= self.truncated_to:
            return self
        return replace(self, truncated_to=to, truncated_sequence_id=sequence_id)

    def with_quorums(self, quorums: tuple[int, int, int] | None) -> "LogState":
        """The next segments have these; None: the default of who writes."""
        return replace(self, quorums=quorums)

    def with_name(self, name: str) -> "LogState":
        """The same log under another name."""
        assert not self.deleting, "what is being deleted keeps its name: its tombstone goes by it"
        return replace(self, name=name)

    def with_closed(self, segment: int, totals: ClosedSegmentTotals) -> "LogState":
        """The oldest segment in progress is complete."""
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
            # In a log of an older program these came with txids: else it had stored ``ms`` before.
            txid_rule=GIVEN
            if self.policy == AUTO and not self.txid_policy and totals.records
            else self.txid_rule,
        )

    def without_owner(self) -> "LogState":
        """The writer has gone in good order; its epoch stays."""
        return replace(self, owner="", writer_id="")

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """At most 1 KiB (H40), in the newest format: whoever changes a log of an older one lifts it.

        Raises `UnsupportedFormat` where only newer programs may change the log.
        """
        if self.writer_format > WRITER_FORMAT:
            raise UnsupportedFormat(
                f'log "{self.name}" is changed by programs of format {self.writer_format} and newer, '
                f"this one has {WRITER_FORMAT}: it only reads it"
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
        """Raises `CorruptData`, or `UnsupportedFormat` for what a newer version wrote."""
        what = "the state of a log"
        written_in, fields = format_and_fields(value, {1: 18, 2: 26}, what)
        *leading_fields, truncated_to, truncated_sequence_id, sealed, deleting, quorums = (
            check_stored(fields[:17], _STATE, what)
        )
        end = LogEnd.from_list(fields[17]) if len(fields) > 17 and fields[17] is not None else None
        if written_in == 1:
            # Of its segments' times and bytes nothing is known here, and whoever wrote gave the txids.
            never_written = leading_fields[4] == 0  # no epoch: nobody ever wrote
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
        except AssertionError as error:  # fields that do not fit each other
            raise CorruptData(f"{what} cannot be: {error}") from None


def bool_to_int_txid(value: Any) -> Any:
    """Read a stored txid that is true or false as 1 or 0; return any other value unchanged.

    Programs of format 3 and before stored what the caller gave, so that ``txid=True`` closed a segment with a
    record that its own log could not read any more.
    """
    return int(value) if type(value) is bool else value


def _txid(value: Any) -> int:
    return int(_TXID_NUMBER(bool_to_int_txid(value)))


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
    """The fields after the format number of a packed list. Later fields are left to later versions."""
    return format_and_fields(value, dict.fromkeys(range(newest_format + 1), length), what)[1]


def format_and_fields(
    value: Buffer, lengths: Mapping[int, int], what: str
) -> tuple[int, list[Any]]:
    """The format number of a packed list, and the fields after it; later fields are left to later versions.

    ``lengths``: of each known format, its least, the number included.
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
