"""Every error of the package, with its code on the wire, grouped by the reaction of the caller::

    DistributedLogError
    ├── invalid call                   InvalidRequest, InvalidUri, InvalidLogName, RecordTooLarge,
    │                                  TransactionIdOutOfOrder, TransactionTooLarge, AlreadyClosed,
    │                                  ConfirmationRequired, UpgradeNotFinalized
    ├── missing or existing object     LogNotFound, LogDeleted, LogRecreated, LogExists, LogEmpty,
    │                                  EndOfStream, LogTruncated, NoSuchLedger, NoSuchEntry, EntriesLost,
    │                                  LedgerClosed, UnknownBookie
    ├── another owner                  OwnershipAcquireFailed, WriterFenced, LedgerFenced, NotLeader,
    │                                  LinkOutOfOrder, LinkMismatch, MembersRefused,
    │                                  VersionConflict, LeaseExpired, SubscriptionLost, ClaimLost, Moved,
    │                                  ProducerFenced, ProducerForgotten, PositionConflict,
    │                                  UpgradeIncomplete
    ├── not authorized                 NotAuthenticated, NotAllowed, OverQuota, NamespaceFull
    ├── temporary                      TooBusy, NotEnoughBookies, BookieReadOnly, QuorumUnreachable,
    │                                  MetadataFull, ConnectionLost, RequestTimeout, Compacted, NotReady,
    │                                  ReaderIdle, CapabilityOutdated
    ├── outcome or state unknown       OutcomeUnknown, WriteFailed, WriteCancelled, LedgerStateUnknown,
    │                                  RecoveryIncomplete, InternalError
    ├── protocol error                 ProtocolError, WrongPeer, WrongLedgerKey, EntryConflict
    └── node or disk error             CorruptData, DiskFailed, DiskFull, ForeignData,
                                       CommittedEntriesLost, DataDirectoryInUse, DataDirectoryLost,
                                       UnsupportedFormat, AddressInUse, AddressUnavailable,
                                       UnsupportedPlatform

Each class has these attributes in addition to its ``code``:

- ``retryable``: the same call may succeed later.
- ``definite``: the operation certainly did not take place. If it is False, the outcome is unknown.
- ``fatal_to_writer``: the writer has ended.

Codes up to 1002 are those of DistributedLog (StatusCode); codes from 2000 are specific to this project. A new
error is a class in this module, in the group of its caller's reactions, with a code that no class ever had.
"""

from typing import ClassVar, Self


class DistributedLogError(Exception):
    """The base class of all errors.

    A message states the object, the problem with its numbers, and the next step.
    """

    code: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    definite: ClassVar[bool] = True
    fatal_to_writer: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1
    """The exit code of the command line."""

    def __init__(self, message: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail
        """One more field, as text, which is also sent over the wire. The classes that use it define its
        meaning."""

    def again(self, message: str | None = None) -> Self:
        """Return a copy of the error, for an error that is raised more than once.

        Each raise then has its own traceback.

        Args:
            message: Another message, if the caller has more information.
        """
        fresh = type(self)(str(self) if message is None else message, self.detail)
        fresh.__cause__, fresh.__suppress_context__ = self.__cause__, self.__suppress_context__
        return fresh


# --- invalid call ---------------------------------------------------------------------------------


class InvalidRequest(DistributedLogError):
    """The arguments of the call are invalid."""

    code = 403
    exit_code = 2


class InvalidUri(InvalidRequest):
    """The scheme or the form of a URI is unknown; the message names the known ones."""

    code = 2050


class InvalidLogName(InvalidRequest):
    """The namespace does not allow this log name."""

    code = 602


class RecordTooLarge(DistributedLogError):
    """A record exceeds the size limit. Nothing was written, and the writer continues."""

    code = 413
    exit_code = 5


class TransactionIdOutOfOrder(DistributedLogError):
    """A transaction ID is lower than an earlier one. Nothing was written, and the writer continues."""

    code = 513
    exit_code = 5


class TransactionTooLarge(DistributedLogError):
    """A metadata transaction exceeds the limit of operations or bytes."""

    code = 2034
    exit_code = 5


class AlreadyClosed(DistributedLogError):
    """The object was closed, has failed, or was inherited by a fork."""

    code = 502


class ConfirmationRequired(DistributedLogError):
    """The request would stop writes, remove a protection or destroy something. The message names it.

    Nothing was changed. If that is intended, repeat the request with force (`--force`).
    """

    code = 2120
    exit_code = 5


class UpgradeNotFinalized(InvalidRequest):
    """Older versions cannot read what the call would write, and the upgrade to this version is not finalized.

    Nothing was changed, and a writer continues. When all nodes and clients have this version, run
    ``dlog cluster finalize``.
    """

    code = 2121
    exit_code = 5


# --- missing or existing object -------------------------------------------------------------------


class LogNotFound(DistributedLogError):
    """No log has this name. ``detail`` is the name, or "" if such a log existed before."""

    code = 510
    exit_code = 3


class LogExists(DistributedLogError):
    """A log with this name exists already."""

    code = 522
    exit_code = 3


class LogEmpty(DistributedLogError):
    """The log has no records."""

    code = 509
    exit_code = 3


class EndOfStream(DistributedLogError):
    """The log is sealed: it has no more records, and accepts none."""

    code = 512
    fatal_to_writer = True
    exit_code = 5


class LogDeleted(LogNotFound):
    """The log was deleted. `end` is the position at which it ended, if it is known.

    A reader raises this error after all records that it could deliver. `lost` is the number of records that
    were not delivered.
    """

    code = 2077

    @classmethod
    def encode_detail(cls, end: str, lost: int | None, exact: bool) -> str:
        """Encode the three fields as `detail`."""
        return f"{end}/{'' if lost is None else lost}/{'exact' if exact else ''}"

    @property
    def end(self) -> str:
        """The position after the last record, as text (``4.0.0``); "" if it is no longer stored."""
        return self.detail.partition("/")[0]

    @property
    def lost(self) -> int | None:
        """The number of records after the reader's position, which are lost; 0 if all records were read.

        None means unknown, for example if `exact` is False or there was no position.
        """
        return _number(self.detail.partition("/")[2].partition("/")[0])

    @property
    def exact(self) -> bool:
        """Whether `end` is certain.

        If it is False, bookies were unavailable at the deletion, and more records may have existed.
        """
        return self.detail.endswith("/exact")


class LogRecreated(LogDeleted):
    """The log was deleted or renamed, and another log has its name now.

    If it was renamed, its end is unknown.
    """

    code = 2071


class LogTruncated(DistributedLogError):
    """The position is before the truncation point of the log; `first` is the first available position."""

    code = 511
    exit_code = 3

    @classmethod
    def encode_detail(cls, first: str, lost: int | None) -> str:
        """Encode the two fields as `detail`."""
        return first if lost is None else f"{first}/{lost}"

    @property
    def first(self) -> str:
        """The first available position as text (``1.12.3``), or ""."""
        return self.detail.partition("/")[0]

    @property
    def lost(self) -> int | None:
        """The number of records from the requested position to `first`, or None if it is unknown."""
        return _number(self.detail.partition("/")[2])


class NoSuchLedger(DistributedLogError):
    """A definite answer: the ledger does not exist here."""

    code = 2010
    exit_code = 3


class UnknownBookie(InvalidRequest):
    """No bookie has this name or ID; the message lists all bookies."""

    code = 2110
    exit_code = 3


class NoSuchEntry(DistributedLogError):
    """A definite answer: the entry does not exist here."""

    code = 2011
    exit_code = 3


class EntriesLost(NoSuchEntry):
    """An operator declared these entries lost. They are not delivered even if a copy is found.

    A reader with ``broken="skip"`` continues after them.
    """

    code = 2048


class LedgerClosed(DistributedLogError):
    """The ledger is closed or is being deleted. It accepts no more entries."""

    code = 2014
    fatal_to_writer = True
    exit_code = 5


# --- another owner --------------------------------------------------------------------------------


class OwnershipAcquireFailed(DistributedLogError):
    """Another writer has the lock of the log; `owner` names it. Wait, or take over."""

    code = 302
    retryable = True
    exit_code = 5

    @property
    def owner(self) -> str:
        """The name of the lock's owner, or ""."""
        return self.detail


class WriterFenced(DistributedLogError):
    """Another writer took over the log. This one must stop. The outcome of pending writes is unknown."""

    code = 2070
    definite = False
    fatal_to_writer = True
    exit_code = 5


class LedgerFenced(DistributedLogError):
    """A bookie rejected an add, because a recovery fenced the ledger."""

    code = 2012
    fatal_to_writer = True
    exit_code = 5


class NotLeader(DistributedLogError):
    """This metadata node is not the leader. The client retries at `leader`, which may be outdated."""

    code = 2030
    retryable = True
    exit_code = 4

    @property
    def leader(self) -> str:
        """The address of the leader, or ""."""
        return self.detail


class Moved(DistributedLogError):
    """Another write proxy owns the log, or should own it. ``detail`` is its ID, or "" if it is unknown.

    Only sent from proxies to clients, which send the request to the other proxy.
    """

    code = 2093
    retryable = True
    exit_code = 4


class LinkOutOfOrder(DistributedLogError):
    """The application has already linked a later version, or uses another identity."""

    code = 2072
    exit_code = 5


class LinkMismatch(DistributedLogError):
    """The application has already linked this version with other records: two writes have the same name."""

    code = 2074
    exit_code = 5


class SubscriptionLost(DistributedLogError):
    """Another reader has this name now, or the position was deleted.

    Later commits of this reader are not stored. The new owner continues at the stored position, so some
    records are handled again.
    """

    code = 504
    exit_code = 5


class ClaimLost(DistributedLogError):
    """The claim of a work queue was given to another consumer.

    This process was considered failed, or took too long. The claimed records are handled again.
    """

    code = 2075
    exit_code = 5


class ProducerFenced(DistributedLogError):
    """Another process opened the producer's name. This one must stop. The call stored nothing."""

    code = 2090
    fatal_to_writer = True
    exit_code = 5


class ProducerForgotten(DistributedLogError):
    """The log does not have the producer, because it never had it or a thousand others came after it.

    This call stored nothing. The outcome of earlier unacknowledged records remains unknown.
    """

    code = 2091
    definite = False
    exit_code = 5


class PositionConflict(DistributedLogError):
    """The last record of the log is not the expected one. Nothing was written. Read on, and decide again."""

    code = 2092
    exit_code = 5

    @property
    def last(self) -> str:
        """The position of the log's last record, as text (``1.12.3``); ``0.0.0`` if it never had one."""
        return self.detail


class MembersRefused(DistributedLogError):
    """A change of the metadata quorum's members would lose its majority, or does not match its state."""

    code = 2073
    exit_code = 5


class UpgradeIncomplete(DistributedLogError):
    """An upgrade cannot be finalized: the message names the older and the offline nodes."""

    code = 2122
    exit_code = 5


class UnsupportedPlatform(DistributedLogError):
    """Nodes need Linux. On this system only clients run, and they reach a cluster that runs elsewhere."""

    code = 2101
    exit_code = 5


class VersionConflict(DistributedLogError):
    """A conditional change found another version than expected. Read again, and decide again."""

    code = 2036
    retryable = True


class LeaseExpired(DistributedLogError):
    """The lease has expired; everything that it protected is released."""

    code = 2035


# --- not authorized -------------------------------------------------------------------------------


class NotAuthenticated(DistributedLogError):
    """The credentials are missing, not accepted here, or expired.

    The client needs other credentials; a retry with the same ones does not succeed. ``detail`` is `ENDED` if
    a token or session credential has expired.
    """

    code = 2080
    exit_code = 5
    ENDED: ClassVar[str] = "ended"


class NotAllowed(DistributedLogError):
    """The principal has no right to the operation. The message names the missing right.

    ``detail`` is `RESTRICTED_TOKEN` if the token of the request has fewer rights than its user.
    """

    code = 2081
    exit_code = 5
    RESTRICTED_TOKEN: ClassVar[str] = "restricted token"


class OverQuota(DistributedLogError):
    """The principal exceeds its limit of objects, or of requests in a period.

    ``detail`` is the time to wait in milliseconds.
    """

    code = 2082
    retryable = True
    exit_code = 5


class NamespaceFull(OverQuota):
    """The namespace has reached its quota in the metadata, and the request would create something new in it.

    Waiting frees nothing. Delete or truncate logs, or have an admin raise the quota. Open writers wait,
    because they still have to write the records that they accepted.
    """

    code = 2084
    retryable = False


# --- temporary ------------------------------------------------------------------------------------


class TooBusy(DistributedLogError):
    """A limit in bytes or of connections was reached. Nothing was allocated or done."""

    code = 517
    retryable = True
    exit_code = 5


class NotEnoughBookies(DistributedLogError):
    """Fewer bookies are available than the quorums of the ledger require."""

    code = 2015
    retryable = True
    exit_code = 4


class BookieReadOnly(DistributedLogError):
    """The bookie accepts no new entries, except those of recoveries.

    Its disk is nearly full, or an operator made it read-only.
    """

    code = 2016
    retryable = True
    exit_code = 5


class MetadataFull(DistributedLogError):
    """The metadata nodes have too little disk space for a change that makes the metadata larger.

    Deletions, replacements and changes under a lease are still possible. The message names the disk.
    """

    code = 2100
    retryable = True
    exit_code = 5


class ReaderIdle(DistributedLogError):
    """No entry arrived for ``idle_error_s``. There is no writer, or no bookie answers.

    The reader continues.
    """

    code = 2076
    retryable = True
    exit_code = 4


class QuorumUnreachable(DistributedLogError):
    """No leader of the metadata quorum answered in time; the message lists the addresses."""

    code = 503
    retryable = True
    exit_code = 4


REFUSED = "refused"


class ConnectionLost(DistributedLogError):
    """The connection could not be made, broke, or was closed. The outcome of pending requests is unknown.

    ``detail`` is `REFUSED` if no program listens at the address.
    """

    code = 2002
    retryable = True
    definite = False
    exit_code = 4


class RequestTimeout(DistributedLogError):
    """The deadline passed after the request was sent. The operation may have taken place."""

    code = 2060
    retryable = True
    definite = False
    exit_code = 4


class Compacted(DistributedLogError):
    """A watch requested a revision that is no longer stored. List, and watch from there."""

    code = 2032
    retryable = True


class CapabilityOutdated(DistributedLogError):
    """A bookie did not accept the capability for a ledger: it is missing or no longer valid.

    Temporary in every part: the client requests a new one from the metadata leader, and retries at the same
    bookie.
    """

    code = 2083
    retryable = True
    exit_code = 4


class NotReady(DistributedLogError):
    """The node is starting, or waits to become a member. Nothing was done."""

    code = 518
    retryable = True
    exit_code = 4


# --- outcome or state unknown ---------------------------------------------------------------------


class OutcomeUnknown(DistributedLogError):
    """The operation may or may not have taken place, and repeating the request cannot clarify it.

    ``detail`` is `STALE` if the metadata quorum no longer has the answers from the time of the request.
    """

    code = 2033
    definite = False
    exit_code = 7
    STALE: ClassVar[str] = "stale"


class WriteFailed(DistributedLogError):
    """An add did not reach its ack quorum in time. The record may appear later, once, at the end (G7)."""

    code = 514
    definite = False
    fatal_to_writer = True
    exit_code = 7


class InternalError(DistributedLogError):
    """A bug ended the task of one writer, reader or ledger.

    The outcome of its unacknowledged requests is unknown. Open a new one. The traceback is in the log of the
    process.
    """

    code = 600
    definite = False
    fatal_to_writer = True
    exit_code = 7


class WriteCancelled(DistributedLogError):
    """Not written, because an earlier record of the same call was rejected or the writer ended first."""

    code = 516


class LedgerStateUnknown(DistributedLogError):
    """The bookie may have lost entries of this ledger (limbo state), so it can neither confirm nor deny."""

    code = 2013
    retryable = True
    exit_code = 4


class RecoveryIncomplete(DistributedLogError):
    """Too few definite answers to determine the end of a ledger. Nothing was decided.

    Retry when bookies are available again.
    """

    code = 2017
    retryable = True
    exit_code = 4


# --- protocol error -------------------------------------------------------------------------------


class ProtocolError(DistributedLogError):
    """The peer sent invalid data; the connection ends."""

    code = 2001
    definite = False
    exit_code = 4


class WrongPeer(DistributedLogError):
    """Another cluster or another node answers at the address (H6)."""

    code = 2040
    retryable = True
    exit_code = 4


class WrongLedgerKey(DistributedLogError):
    """The key in the request is not the key of the ledger."""

    code = 2018
    exit_code = 5


class EntryConflict(DistributedLogError):
    """An add has other bytes than the stored entry with the same ID."""

    code = 2019
    fatal_to_writer = True


# --- node or disk error ---------------------------------------------------------------------------


class CorruptData(DistributedLogError):
    """Bytes from a disk or a peer have a wrong checksum or form. They are never served."""

    code = 523


class DiskFailed(DistributedLogError):
    """A write or sync failed, and the node ends. Data that it had not synced must not be trusted."""

    code = 2043
    definite = False


class DiskFull(DiskFailed):
    """No space left on the device."""

    code = 2046


class DataDirectoryLost(DiskFailed):
    """The files of a running node are no longer in its data directory, and the node ends.

    They were removed or moved, or another file system was mounted over the directory. The next start would
    not find the data that the node would store from now on.
    """

    code = 2049


class ForeignData(DistributedLogError):
    """The data directory belongs to another cluster or node, or is an older copy."""

    code = 2041
    exit_code = 5


class CommittedEntriesLost(DistributedLogError):
    """The metadata quorum has lost committed entries that this metadata node still has; the node ends.

    An operator decides which directories are valid; the message names the choices. Nothing was changed here.
    """

    code = 2045
    exit_code = 5


class DataDirectoryInUse(DistributedLogError):
    """Another process uses this data directory."""

    code = 2044
    exit_code = 5


class UnsupportedFormat(DistributedLogError):
    """A newer version wrote the data, and this version cannot read it."""

    code = 521
    exit_code = 5


class AddressInUse(DistributedLogError):
    """Another program uses the address. Start the node again when it has ended, or choose another port."""

    code = 2047
    exit_code = 5


class AddressUnavailable(DistributedLogError):
    """This machine does not have the address, or cannot resolve the host name, now.

    At boot both can be a matter of seconds, so a service manager starts the node again.
    """

    code = 2051
    exit_code = 4


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _walk(cls: type[DistributedLogError]) -> list[type[DistributedLogError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _walk(sub))]


BY_CODE: dict[int, type[DistributedLogError]] = {
    cls.code: cls for cls in _walk(DistributedLogError)
}


def from_code(code: int, message: str, detail: str = "") -> DistributedLogError:
    """Return the error for a code from a peer; an unknown code gives the base class."""
    return BY_CODE.get(code, DistributedLogError)(message, detail)
