"""`Log`: a name in a namespace, and what can be done with the log of that name."""

from dataclasses import dataclass
from typing import Literal

from ..runtime.errors import InvalidRequest, LogEmpty, LogNotFound
from .beside import BesideLog
from .dlsn import DLSN
from .keys import lock_key
from .locate import all_segments, last_readable
from .lock import LockRecord, claim
from .opening import Opening
from .reader import LogReader
from .segments import SegmentRecord
from .state import LogState
from .writer import LogWriter


@dataclass(frozen=True, slots=True)
class LogDescription:
    """A log as its metadata describes it; of a segment in progress only what is readable counts."""

    name: str
    state: LogState
    segments: tuple[SegmentRecord, ...]
    owner: str
    """Whose lock lives, "" for nobody's."""
    first_dlsn: DLSN | None
    last_dlsn: DLSN | None

    @property
    def records(self) -> int:
        """User records of the closed segments."""
        return sum(segment.records for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        """Entry bytes of the closed segments, without replication."""
        return sum(segment.size_bytes for segment in self.segments)


class Log(BesideLog):
    """Names a log; asks nothing until it is used. Made by `Namespace.open_log`."""

    def open_writer(
        self, *, takeover: bool = False, wait_s: float | None = None
    ) -> Opening[LogWriter]:
        """The log's one writer; ``async with`` or ``await`` what this returns.

        While another writer's lock lives, waits up to ``wait_s`` (default: the lease and 2 s; 0: not at
        all) and raises `OwnershipAcquireFailed`, which names it. ``takeover`` fences it at once: its
        later writes fail with `WriterFenced` (G4). Raises also `LogNotFound` (with ``create_if_missing``
        off), `RecoveryIncomplete`, `NotEnoughBookies`, `EndOfStream`.
        """
        if wait_s is not None and wait_s < 0:
            raise InvalidRequest(f"wait_s is seconds from 0 up, not {wait_s}")
        return Opening(lambda: self._open_writer(takeover, wait_s))

    def open_reader(
        self,
        *,
        dlsn: DLSN | None = None,
        txid: int | None = None,
        at: Literal["earliest", "latest"] = "earliest",
        to: DLSN | Literal["end"] | None = None,
    ) -> Opening[LogReader]:
        """A reader; ``async with`` or ``await`` what this returns.

        From ``dlsn`` on (or the next record there is), or from the first record with a txid of at least
        ``txid``, or from the earliest that is left, or after the latest; up to and with ``to`` (``"end"``:
        what is readable at opening). A ``dlsn`` below the truncation point is `LogTruncated`, also the
        first of all; one that nobody has read yet is waited for, not believed (G5). Raises `LogNotFound`.
        """
        if dlsn is not None and txid is not None:
            raise InvalidRequest("a reader begins at a dlsn or at a txid, not at both")
        if at not in ("earliest", "latest"):
            raise InvalidRequest(f'a reader begins at "earliest" or "latest", not at {at!r}')
        if not (to is None or to == "end" or isinstance(to, DLSN)):
            raise InvalidRequest(f'a reader goes to a DLSN or to "end", not to {to!r}')
        return Opening(lambda: self._open_reader(dlsn, txid, at, to))

    async def last_dlsn(self) -> DLSN:
        """The position of the last readable record. Raises `LogEmpty`, `LogNotFound`."""
        follower = await self._follower()
        last = await last_readable(follower, self._namespace.ledgers)
        if last is None:
            raise LogEmpty(f'log "{self.name}" holds no record')
        return last

    async def describe(self) -> LogDescription:
        """Segments, counts, owner. Raises `LogNotFound`."""
        follower = await self._follower()
        metadata, state = self._namespace.metadata, follower.state
        segments = await all_segments(metadata, state)
        lock = await metadata.get(lock_key(state.log_id))
        last = await last_readable(follower, self._namespace.ledgers)
        first = None
        if last is not None:
            first = max(state.truncated_to, _first_position(segments))
        return LogDescription(
            self.name,
            state,
            tuple(segments),
            "" if lock is None else LockRecord.decode(lock.value).owner,
            first,
            last,
        )

    async def _open_writer(self, takeover: bool, wait_s: float | None) -> LogWriter:
        namespace = self._namespace
        log_id = await self._find_or_create()
        record = namespace.lock_record()
        claimed = await claim(
            namespace.locks,
            log_id,
            record,
            lease_s=self.options.lock_lease_s,
            takeover=takeover,
            wait_s=wait_s,
        )
        writer = LogWriter(
            claimed, namespace.ledgers, self.options, namespace.wall_ms, namespace.turns
        )
        try:
            await writer.open()
            namespace.start(writer.run)
        except BaseException:
            await writer.abort()
            raise
        return writer

    async def _open_reader(
        self,
        dlsn: DLSN | None,
        txid: int | None,
        at: Literal["earliest", "latest"],
        to: DLSN | Literal["end"] | None,
    ) -> LogReader:
        namespace = self._namespace
        log_id = await self._find()
        reader = LogReader(namespace.metadata, namespace.ledgers, self.options, log_id, self.name)
        await reader.open(dlsn, txid, at, to)
        namespace.start(reader.run)
        return reader

    async def _find_or_create(self) -> int:
        try:
            return await self._find()
        except LogNotFound:
            if not self.options.create_if_missing or self._log_id is not None:
                raise
        return await self._namespace.create_or_find(self.name)


def _first_position(segments: list[SegmentRecord]) -> DLSN:
    for segment in segments:
        if not segment.closed or segment.records:
            return segment.first_dlsn
    return DLSN.INITIAL
