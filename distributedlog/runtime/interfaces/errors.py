"""Every error the package raises, sorted by what the caller can do; codes go over the wire.

    DistributedLogError
    ├── the caller's mistake           InvalidRequest, InvalidUri, InvalidLogName, RecordTooLarge,
    │                                  TransactionIdOutOfOrder, TransactionTooLarge, AlreadyClosed,
    │                                  ConfirmationRequired
    ├── what is there, or is not       LogNotFound, LogDeleted, LogRecreated, LogExists, LogEmpty,
    │                                  EndOfStream, LogTruncated, NoSuchLedger, NoSuchEntry, EntriesLost,
    │                                  LedgerClosed, UnknownBookie
    ├── another one owns it            OwnershipAcquireFailed, WriterFenced, LedgerFenced, NotLeader,
    │                                  LinkOutOfOrder, LinkMismatch, MembersRefused,
    │                                  VersionConflict, LeaseExpired, SubscriptionLost, ClaimLost, Moved,
    │                                  ProducerFenced, ProducerForgotten, PositionConflict
    ├── who asks may not               NotAuthenticated, NotAllowed, OverQuota, NamespaceFull
    ├── not now                        TooBusy, NotEnoughBookies, BookieReadOnly, QuorumUnreachable,
    │                                  MetadataFull, ConnectionLost, RequestTimeout, Compacted, NotReady,
    │                                  ReaderIdle, CapabilityOutdated
    ├── outcome or state unknown       OutcomeUnknown, WriteFailed, WriteCancelled, LedgerStateUnknown,
    │                                  RecoveryIncomplete, InternalError
    ├── the peer broke the protocol    ProtocolError, WrongPeer, WrongLedgerKey, EntryConflict
    └── the machine failed or lied     CorruptData, DiskFailed, DiskFull, ForeignData,
                                       CommittedEntriesLost, DataDirectoryInUse, DataDirectoryLost,
                                       UnsupportedFormat, AddressInUse, AddressUnavailable,
                                       UnsupportedPlatform

Each class says, beside its ``code``: ``retryable`` (the same call may work later), ``definite`` (what
was asked certainly did not happen; False: it may have) and ``fatal_to_writer``. Codes up to 1002 are
upstream's (DistributedLog StatusCode), from 2000 on they are ours. A new error is a class here, in the group
of what its caller can do, with a code that no class ever had.
"""

from typing import ClassVar, Self


class DistributedLogError(Exception):
    """The root. A message names what, where and the numbers, and what to do."""

    code: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    definite: ClassVar[bool] = True
    fatal_to_writer: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1
    """What the command line ends with."""

    def __init__(self, message: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail
        """One more field, as text, which goes over the wire too; the classes that use it name it."""

    def again(self, message: str | None = None) -> Self:
        """The same error afresh, for one that is raised more than once: each raise has its own traceback.

        ``message``: in other words, where whoever raises it knows more.
        """
        fresh = type(self)(str(self) if message is None else message, self.detail)
        fresh.__cause__, fresh.__suppress_context__ = self.__cause__, self.__suppress_context__
        return fresh


# --- the caller's mistake -------------------------------------------------------------------------


class InvalidRequest(DistributedLogError):
    """The call's arguments cannot be meant."""

    code = 403
    exit_code = 2


class InvalidUri(InvalidRequest):
    """A URI whose scheme or form is not known; the message names the known ones."""

    code = 2050


class InvalidLogName(InvalidRequest):
    """A log name that the namespace does not allow."""

    code = 602


class RecordTooLarge(DistributedLogError):
    """A record above the limit. Nothing was written; the writer goes on."""

    code = 413
    exit_code = 5


class TransactionIdOutOfOrder(DistributedLogError):
    """A txid lower than one before it. Nothing was written; the writer goes on."""

    code = 513
    exit_code = 5


class TransactionTooLarge(DistributedLogError):
    """A metadata transaction above its limit of operations or bytes."""

    code = 2034
    exit_code = 5


class AlreadyClosed(DistributedLogError):
    """A handle used after its end (closed, failed, or left behind by a fork)."""

    code = 502


class ConfirmationRequired(DistributedLogError):
    """The request would stop writes, remove a protection or destroy something. The message names it.

    Nothing was changed. If that is intended, repeat the request with force (`--force`).
    """

    code = 2120
    exit_code = 5


# --- what is there, or is not ---------------------------------------------------------------------


class LogNotFound(DistributedLogError):
    """No log of that name. ``detail`` is the name, or "" if such a log was there before."""

    code = 510
    exit_code = 3


class LogExists(DistributedLogError):
    """A log of that name is there already."""

    code = 522
    exit_code = 3


class LogEmpty(DistributedLogError):
    """The log holds no record."""

    code = 509
    exit_code = 3


class EndOfStream(DistributedLogError):
    """The log is sealed: it has no more records, and takes no more."""

    code = 512
    fatal_to_writer = True
    exit_code = 5


class LogDeleted(LogNotFound):
    """The log that was meant has been deleted, and left behind where it ended, as far as anybody knows.

    A reader raises it after all that it could give: ``lost`` says whether that was all.
    """

    code = 2077

    @classmethod
    def packed(cls, end: str, lost: int | None, exact: bool) -> str:
        """The three fields as the `detail`."""
        return f"{end}/{'' if lost is None else lost}/{'exact' if exact else ''}"

    @property
    def end(self) -> str:
        """The position after the last record, as text (``4.0.0``); "" where it is forgotten."""
        return self.detail.partition("/")[0]

    @property
    def lost(self) -> int | None:
        """Records after the position that was held, which nobody will ever read there; 0: all was had.

        None: not known, as where `exact` is not, or where no position was held.
        """
        return _number(self.detail.partition("/")[2].partition("/")[0])

    @property
    def exact(self) -> bool:
        """Is `end` certain? False: bookies were away when it was deleted, it may have gone further."""
        return self.detail.endswith("/exact")


class LogRecreated(LogDeleted):
    """The log that was meant is deleted (or called otherwise now, then nothing is known of its end); there is
    another one of the same name."""

    code = 2071


class LogTruncated(DistributedLogError):
    """The position asked for lies before the log's truncation point; ``first`` is the first that is left."""

    code = 511
    exit_code = 3

    @classmethod
    def packed(cls, first: str, lost: int | None) -> str:
        """The two fields as the `detail`."""
        return first if lost is None else f"{first}/{lost}"

    @property
    def first(self) -> str:
        """As text (``1.12.3``), or ""."""
        return self.detail.partition("/")[0]

    @property
    def lost(self) -> int | None:
        """Records from the position asked for up to `first`; None: not known how many."""
        return _number(self.detail.partition("/")[2])


class NoSuchLedger(DistributedLogError):
    """A definite answer: the ledger does not exist here."""

    code = 2010
    exit_code = 3


class UnknownBookie(InvalidRequest):
    """No bookie of that name or id; the message names those that there are."""

    code = 2110
    exit_code = 3


class NoSuchEntry(DistributedLogError):
    """A definite answer: the entry does not exist here."""

    code = 2011
    exit_code = 3


class EntriesLost(NoSuchEntry):
    """Somebody has declared these entries lost: nobody will be given them, also where a copy turns up.

    A reader with ``broken="skip"`` goes on after them.
    """

    code = 2048


class LedgerClosed(DistributedLogError):
    """The ledger is closed (or being deleted): it takes no more entries."""

    code = 2014
    fatal_to_writer = True
    exit_code = 5


# --- another one owns it --------------------------------------------------------------------------


class OwnershipAcquireFailed(DistributedLogError):
    """Another writer holds the log's lock; ``owner`` names it. Wait, or take over."""

    code = 302
    retryable = True
    exit_code = 5

    @property
    def owner(self) -> str:
        """The holder's name, or ""."""
        return self.detail


class WriterFenced(DistributedLogError):
    """Another writer took the log over: this one must stop, for good. Pending writes are unknown."""

    code = 2070
    definite = False
    fatal_to_writer = True
    exit_code = 5


class LedgerFenced(DistributedLogError):
    """A bookie's answer to an add: the ledger was fenced by a recovery."""

    code = 2012
    fatal_to_writer = True
    exit_code = 5


class NotLeader(DistributedLogError):
    """This metadata node does not lead. ``leader`` is the best guess. The client asks there."""

    code = 2030
    retryable = True
    exit_code = 4

    @property
    def leader(self) -> str:
        """The leader's address, or ""."""
        return self.detail


class Moved(DistributedLogError):
    """Another write proxy has the log, or should; ``detail`` is its id, "" where none is known.

    Between clients and proxies only: the client asks there.
    """

    code = 2093
    retryable = True
    exit_code = 4


class LinkOutOfOrder(DistributedLogError):
    """The application has linked a later version already, or under another identity."""

    code = 2072
    exit_code = 5


class LinkMismatch(DistributedLogError):
    """The application has linked this very version, with other records: two writes have one name."""

    code = 2074
    exit_code = 5


class SubscriptionLost(DistributedLogError):
    """Another one reads the log by this name now, or its position was deleted. What this one commits from
    then on is not kept: the new holder goes on where the position is, and handles records again."""

    code = 504
    exit_code = 5


class ClaimLost(DistributedLogError):
    """The claim of a work queue was given to somebody else: this process was taken for dead, or was too slow.
    What was claimed is handled again."""

    code = 2075
    exit_code = 5


class ProducerFenced(DistributedLogError):
    """The producer's name was opened by another one: this one must stop. The call stored nothing."""

    code = 2090
    fatal_to_writer = True
    exit_code = 5


class ProducerForgotten(DistributedLogError):
    """The log knows nothing of the producer (any more): a thousand others came, or it never was there. This
    call stored nothing; what was not acknowledged before stays unknown."""

    code = 2091
    definite = False
    exit_code = 5


class PositionConflict(DistributedLogError):
    """The log's last record is another one than expected: nothing was written. Read on, decide again."""

    code = 2092
    exit_code = 5

    @property
    def last(self) -> str:
        """The position of the log's last record, as text (``1.12.3``); ``0.0.0``: it never had one."""
        return self.detail


class MembersRefused(DistributedLogError):
    """A change of the metadata quorum's members that would lose its majority, or that fits nothing."""

    code = 2073
    exit_code = 5


class UnsupportedPlatform(DistributedLogError):
    """Nodes need Linux: this is another system. Clients run here, and reach a cluster that runs elsewhere."""

    code = 2101
    exit_code = 5


class VersionConflict(DistributedLogError):
    """A conditional change met another version than expected: read again, decide again."""

    code = 2036
    retryable = True


class LeaseExpired(DistributedLogError):
    """The lease is gone: what was held under it is not held any more."""

    code = 2035


# --- who asks may not ------------------------------------------------------------------------------


class NotAuthenticated(DistributedLogError):
    """Who this is was not proved: no credentials, ones that are not taken here, or ones that have ended.

    Whoever meets it needs other credentials; trying again with the same ones helps nobody.
    ``detail``: `ENDED` if a token or pass has ended.
    """

    code = 2080
    exit_code = 5
    ENDED: ClassVar[str] = "ended"


class NotAllowed(DistributedLogError):
    """This principal has no right to what it asked for. The message names the right that is missing.

    ``detail``: `RESTRICTED_TOKEN` if the token of the request carries fewer rights than its user has.
    """

    code = 2081
    exit_code = 5
    RESTRICTED_TOKEN: ClassVar[str] = "restricted token"


class OverQuota(DistributedLogError):
    """More than this principal may have at once, or in so short a time. ``detail``: milliseconds to wait."""

    code = 2082
    retryable = True
    exit_code = 5


class NamespaceFull(OverQuota):
    """The namespace has as much in the metadata as it may, and this would make something new there.

    To wait frees nothing: delete or truncate logs of it, or have an admin raise the bound. A writer that is
    open waits all the same, for what it has taken.
    """

    code = 2084
    retryable = False


# --- not now --------------------------------------------------------------------------------------


class TooBusy(DistributedLogError):
    """Over a bound in bytes; refused before anything was allocated or done."""

    code = 517
    retryable = True
    exit_code = 5


class NotEnoughBookies(DistributedLogError):
    """Fewer live bookies than the ledger's quorums need."""

    code = 2015
    retryable = True
    exit_code = 4


class BookieReadOnly(DistributedLogError):
    """The bookie takes no new entries (disk nearly full, or told so); recovery adds still pass."""

    code = 2016
    retryable = True
    exit_code = 5


class MetadataFull(DistributedLogError):
    """The metadata nodes are short of disk space, and this change would make the metadata larger: refused.
    What deletes, replaces, or lives under a lease passes. The message names the disk."""

    code = 2100
    retryable = True
    exit_code = 5


class ReaderIdle(DistributedLogError):
    """No entry came for ``idle_error_s``: nobody writes, or no bookie answers. The reader goes on."""

    code = 2076
    retryable = True
    exit_code = 4


class QuorumUnreachable(DistributedLogError):
    """No leader of the metadata quorum answered in time; the message names the addresses asked."""

    code = 503
    retryable = True
    exit_code = 4


REFUSED = "refused"


class ConnectionLost(DistributedLogError):
    """The connection could not be made, broke, or was closed. What was under way is unknown.

    ``detail``: `REFUSED` where nobody listens at the address.
    """

    code = 2002
    retryable = True
    definite = False
    exit_code = 4


class RequestTimeout(DistributedLogError):
    """The deadline passed after sending: it may have happened."""

    code = 2060
    retryable = True
    definite = False
    exit_code = 4


class Compacted(DistributedLogError):
    """A watch asked for a revision older than the history kept. List, then watch from there."""

    code = 2032
    retryable = True


class CapabilityOutdated(DistributedLogError):
    """A bookie does not take what was shown for a ledger: none was, or it has ended.

    The client asks the metadata for another one, and tries the same bookie again: passing, in every part.
    """

    code = 2083
    retryable = True
    exit_code = 4


class NotReady(DistributedLogError):
    """The node is starting, or waits to be let in; nothing was done."""

    code = 518
    retryable = True
    exit_code = 4


# --- outcome or state unknown ---------------------------------------------------------------------


class OutcomeUnknown(DistributedLogError):
    """It may or may not have happened, and asking again cannot tell.

    ``detail``: `STALE` if the metadata quorum no longer has the answers of the time of the request.
    """

    code = 2033
    definite = False
    exit_code = 7
    STALE: ClassVar[str] = "stale"


class WriteFailed(DistributedLogError):
    """An add did not reach its ack quorum in time. It may appear later, once, at the end (G7)."""

    code = 514
    definite = False
    fatal_to_writer = True
    exit_code = 7


class InternalError(DistributedLogError):
    """A rule of ours was broken in the task of one writer, reader or ledger, which was ended by it. What it
    had not acknowledged is unknown; open another one. The traceback is in the process's log."""

    code = 600
    definite = False
    fatal_to_writer = True
    exit_code = 7


class WriteCancelled(DistributedLogError):
    """Not written, because a record before it in the same call was refused, or the writer ended first."""

    code = 516


class LedgerStateUnknown(DistributedLogError):
    """The bookie may have lost what it held of this ledger (limbo): neither yes nor no."""

    code = 2013
    retryable = True
    exit_code = 4


class RecoveryIncomplete(DistributedLogError):
    """Too few definite answers to know a ledger's end; nothing was decided. Retry when bookies return."""

    code = 2017
    retryable = True
    exit_code = 4


# --- the peer broke the protocol ------------------------------------------------------------------


class ProtocolError(DistributedLogError):
    """The peer sent what it may not; the connection ends."""

    code = 2001
    definite = False
    exit_code = 4


class WrongPeer(DistributedLogError):
    """Somebody else answers at that address: another cluster, another node (H6)."""

    code = 2040
    retryable = True
    exit_code = 4


class WrongLedgerKey(DistributedLogError):
    """The key shown is not the ledger's."""

    code = 2018
    exit_code = 5


class EntryConflict(DistributedLogError):
    """Other bytes under an entry id that is stored already."""

    code = 2019
    fatal_to_writer = True


# --- the machine failed or lied -------------------------------------------------------------------


class CorruptData(DistributedLogError):
    """Bytes on disk or from a peer whose checksum or form is wrong; never served."""

    code = 523


class DiskFailed(DistributedLogError):
    """A write or sync failed: the node ends. Nothing it had not synced may be trusted."""

    code = 2043
    definite = False


class DiskFull(DiskFailed):
    """No space left on the device."""

    code = 2046


class DataDirectoryLost(DiskFailed):
    """The files of a running node are not in its data directory any more: the node ends.

    They were removed or moved, or another file system was mounted over the directory. The next start would
    not find the data that the node stores from now on.
    """

    code = 2049


class ForeignData(DistributedLogError):
    """A data directory of another cluster, another node, or an older copy of this one's."""

    code = 2041
    exit_code = 5


class CommittedEntriesLost(DistributedLogError):
    """The metadata quorum has lost entries that it had committed, and this metadata node has them: it ends.

    An operator decides which directories count; the message names the choices. Nothing was changed here.
    """

    code = 2045
    exit_code = 5


class DataDirectoryInUse(DistributedLogError):
    """Another process holds this data directory."""

    code = 2044
    exit_code = 5


class UnsupportedFormat(DistributedLogError):
    """Written by a newer version than this one can read."""

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
    """The error a peer named by its code; an unknown code becomes the root class."""
    return BY_CODE.get(code, DistributedLogError)(message, detail)
