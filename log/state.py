"""What must be agreed about one log, in one small key, and how it may change (pure).

Everybody who changes a log compares this key's version; whether a *writer* is still the owner is said by
``epoch`` alone (H12): a truncation may bump the version under a living writer. At most 1 KiB, for it
is rewritten at each roll and pushed to each reader; segments are keys of their own.

Segments ``first_segment`` .. ``last_segment`` exist; those from ``open_from`` on are in progress: one, or
two while a roll waits for the close of the older. They are closed in ascending order.
"""

from dataclasses import dataclass, replace
from typing import Any

from ..runtime.errors import (
    CorruptData,
    EndOfStream,
    LogNotFound,
    UnsupportedFormat,
)
from ..runtime.frames import pack
from ..runtime.host import Buffer
from ..runtime.schema import fit, flag, list_of_any, number, optional, row, stored, text
from .dlsn import DLSN

FORMAT = 1
STATE_BYTES_MAX = 1024
OWNER_BYTES_MAX = 200


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a log ended when it was deleted."""

    dlsn: DLSN
    """After its last record."""
    sequence_id: int
    """How many records it ever had."""
    exact: bool
    """False: its last segment could not be recovered. It may have gone further, never less far."""

    def to_list(self) -> list[Any]:
        """Five fields, for a packed value."""
        return [*self.dlsn, self.sequence_id, self.exact]

    @classmethod
    def of_list(cls, fields: Any) -> "LogEnd":
        """What `to_list` gave. Raises `CorruptData`."""
        segment, entry, slot, sequence_id, exact = fit(fields, _END, "the end of a log")
        return cls(DLSN(segment, entry, slot), sequence_id, exact)


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
    open_from: int = 1
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

    def __post_init__(self) -> None:
        assert 1 <= self.first_segment <= self.open_from <= self.last_segment + 1, (
            "segments are closed in order, and the first ones go first"
        )

    @property
    def earliest(self) -> DLSN:
        """The first position that is left: segments go whole, a truncation ends anywhere."""
        return max(self.truncated_to, DLSN(self.first_segment, 0, 0))

    @property
    def in_progress(self) -> range:
        """The numbers of the segments that are not closed, ascending."""
        return range(self.open_from, self.last_segment + 1)

    def claimed(self, owner: str, writer_id: str) -> "LogState":
        """A new writer owns the log: whoever wrote before can neither roll nor close any more (H12)."""
        if self.deleting:
            raise LogNotFound(
                f'log "{self.name}" is being deleted by {self.owner}; deleting it again finishes that'
            )
        if self.sealed:
            raise EndOfStream(f'log "{self.name}" is sealed: it takes no more records')
        return self._owned_by(owner, writer_id)

    def claimed_for_deletion(self, owner: str, writer_id: str) -> "LogState":
        """From here on nobody opens the log; whoever wrote is as fenced as by another writer (H13)."""
        return replace(self._owned_by(owner, writer_id), deleting=True)

    def with_end(self, *, exact: bool) -> "LogState":
        """Where a log that is being deleted ends: after its closed segments. The first one noted stays."""
        assert self.deleting, "only what is deleted ends here"
        if self.end is not None:
            return self
        end = LogEnd(DLSN(self.open_from, 0, 0), self.next_sequence_id, exact)
        return replace(self, end=end)

    def without_segments_to(self, segment: int) -> "LogState":
        """The segments up to this one are gone."""
        assert segment <= self.last_segment
        return replace(self, first_segment=segment + 1, open_from=max(self.open_from, segment + 1))

    def _owned_by(self, owner: str, writer_id: str) -> "LogState":
        short = owner.encode()[:OWNER_BYTES_MAX].decode(errors="ignore")
        return replace(self, epoch=self.epoch + 1, owner=short, writer_id=writer_id)

    def with_segment(self) -> "LogState":
        """One more segment is in progress."""
        assert len(self.in_progress) <= 1, "at most two segments are in progress"
        return replace(self, last_segment=self.last_segment + 1)

    def with_linked(self, segments: int, records: int, last_txid: int) -> "LogState":
        """Closed segments follow the last one; none is in progress (H13)."""
        assert not self.in_progress, "segments are linked after closed ones"
        assert not self.sealed, "a sealed log takes no more segments"
        last = self.last_segment + segments
        return replace(
            self,
            open_from=last + 1,
            last_segment=last,
            next_sequence_id=self.next_sequence_id + records,
            last_txid=max(self.last_txid, last_txid),
        )

    def with_sealed(self) -> "LogState":
        """The log ends here, for good."""
        assert not self.in_progress, "a log is sealed when all its segments are closed"
        return replace(self, sealed=True)

    def with_truncated(self, to: DLSN, sequence_id: int) -> "LogState":
        """Nothing before ``to`` is readable any more. It never goes back: a lower point changes nothing."""
        if to <= self.truncated_to:
            return self
        return replace(self, truncated_to=to, truncated_sequence_id=sequence_id)

    def renamed(self, name: str) -> "LogState":
        """The same log under another name."""
        assert not self.deleting, "what is being deleted keeps its name: its tombstone goes by it"
        return replace(self, name=name)

    def with_closed(self, segment: int, records: int, last_txid: int) -> "LogState":
        """The oldest segment in progress is complete; ``last_txid`` is -1 where it holds no record."""
        assert segment == self.open_from <= self.last_segment, "segments are closed in order"
        return replace(
            self,
            open_from=segment + 1,
            next_sequence_id=self.next_sequence_id + records,
            last_txid=max(self.last_txid, last_txid),
        )

    def released(self) -> "LogState":
        """The writer has gone in good order; its epoch stays."""
        return replace(self, owner="", writer_id="")

    def encode(self) -> bytes:
        """At most 1 KiB (H40)."""
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
                self.open_from,
                self.last_segment,
                self.last_txid,
                self.next_sequence_id,
                list(self.truncated_to),
                self.truncated_sequence_id,
                self.sealed,
                self.deleting,
                None if self.quorums is None else list(self.quorums),
                # Only there in a log that is being deleted, which nobody opens any more.
                *([] if self.end is None else [self.end.to_list()]),
            ]
        )
        assert len(value) <= STATE_BYTES_MAX, "the state of a log stays small (H40)"
        return value

    @classmethod
    def decode(cls, value: Buffer) -> "LogState":
        """Raises `CorruptData`, or `UnsupportedFormat` for what a newer version wrote."""
        what = "the state of a log"
        fields = decode_fields(value, FORMAT, 18, what)
        *before, truncated_to, truncated_sequence_id, sealed, deleting, quorums = fit(
            fields[:17], _STATE, what
        )
        end = LogEnd.of_list(fields[17]) if len(fields) > 17 and fields[17] is not None else None
        rest = (truncated_sequence_id, sealed, deleting, quorums, end)
        try:
            return cls(*(*before, DLSN(*truncated_to), *rest))
        except AssertionError as error:  # fields that do not fit each other
            raise CorruptData(f"{what} cannot be: {error}") from None


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
    number(-1),  # last txid
    _NUMBER,  # next sequence id
    _DLSN,
    _NUMBER,
    flag,
    flag,
    optional(row(number(1), number(1), number(1))),
)


def decode_fields(value: Buffer, known: int, length: int, what: str) -> list[Any]:
    """The fields after the format number of a packed list. Later fields are left to later versions."""
    fields: list[Any] = stored(value, list_of_any, what)
    if not fields or type(fields[0]) is not int:
        raise CorruptData(f"{what} is not a list with a format number")
    if fields[0] > known:
        raise UnsupportedFormat(f"{what} has format {fields[0]}, this program reads up to {known}")
    if len(fields) < length:
        raise CorruptData(f"{what} has {len(fields)} fields, format {known} has {length}")
    return fields[1:]
