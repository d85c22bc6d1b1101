"""The asyncio flavour of what a log can do beside writing and reading; see `aio.py`."""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial

from .aio_segments import RangeReader, SegmentWriter, opened, run
from .bridge import Inbox, Owned
from .log.apps import AppVersion, LinkContent
from .log.dlsn import DLSN
from .log.handle import LINK_WAIT_S, UNLINKED_S
from .log.handle import Log as TrioLog
from .log.link import LinkResult
from .log.opening import Opening
from .log.positions import Positions as TrioPositions
from .log.ranges import LogSnapshot, SegmentRange, SegmentToken
from .log.segment_writer import ENTRY_BYTES
from .log.watch import LogChange
from .log.watch import LogWatch as TrioLogWatch
from .runtime.background import Background

__all__ = ["LogCalls", "LogWatch", "Positions", "RangeReader", "SegmentWriter"]


class LogCalls:
    """The calls of `aio.Log` that need no writer and no reader."""

    def __init__(self, background: Background, log: TrioLog) -> None:
        self._background = background
        self._log = log

    async def truncate(self, dlsn: DLSN | None = None, *, txid: int | None = None) -> DLSN:
        """Give up all records before a position. See `distributedlog.Log.truncate`."""
        return await run(self._background, partial(self._log.truncate, dlsn, txid=txid))

    async def seal(self, *, takeover: bool = False, wait_s: float | None = None) -> bool:
        """End the log where it is, for good. See `distributedlog.Log.seal`."""
        return await run(
            self._background, partial(self._log.seal, takeover=takeover, wait_s=wait_s)
        )

    async def find(self, *, txid: int | None = None, wall_ms: int | None = None) -> DLSN:
        """The position of the first record from a txid or a time on. See `distributedlog.Log.find`."""
        return await run(self._background, partial(self._log.find, txid=txid, wall_ms=wall_ms))

    @property
    def positions(self) -> "Positions":
        """Where subscribers of this log go on, by name."""
        return Positions(self._background, self._log.positions)

    def open_segment_writer(
        self,
        *,
        app: str = "",
        version: int = 0,
        custom: Mapping[str, bytes] | None = None,
        entry_bytes: int = ENTRY_BYTES,
    ) -> Opening[SegmentWriter]:
        """Write a segment outside the log. See `distributedlog.Log.open_segment_writer`."""
        opening = self._log.open_segment_writer(
            app=app, version=version, custom=custom, entry_bytes=entry_bytes
        )

        async def open_it() -> SegmentWriter:
            return SegmentWriter(self._background, await opening)

        return Opening(lambda: opened(self._background, open_it))

    def open_ranges(self, ranges: Sequence[SegmentRange]) -> Opening[RangeReader]:
        """Read stretches of entries that a `snapshot` named. See `distributedlog.Log.open_ranges`."""
        opening = self._log.open_ranges(ranges)

        async def open_it() -> RangeReader:
            return RangeReader(self._background, await opening)

        return Opening(lambda: opened(self._background, open_it))

    async def snapshot(self) -> LogSnapshot:
        """The log as it can be read now, for planners. See `distributedlog.Log.snapshot`."""
        return await run(self._background, self._log.snapshot)

    async def link_segments(
        self,
        segments: Sequence[SegmentToken],
        *,
        app: str = "",
        version: int = 0,
        identity: str = "",
        takeover: bool = False,
        wait_s: float = LINK_WAIT_S,
        truncate_before: bool = False,
        content: LinkContent | None = None,
    ) -> LinkResult:
        """Make ledgers the log's next segments, once. See `distributedlog.Log.link_segments`."""
        return await run(
            self._background,
            partial(
                self._log.link_segments,
                segments,
                app=app,
                version=version,
                identity=identity,
                takeover=takeover,
                wait_s=wait_s,
                truncate_before=truncate_before,
                content=content,
            ),
        )

    async def linked_version(self, app: str) -> AppVersion | None:
        """What an application has linked last. See `distributedlog.Log.linked_version`."""
        return await run(self._background, self._log.linked_version, app)

    async def discard_segments(self, segments: Sequence[SegmentToken]) -> list[SegmentToken]:
        """Delete segments unless they are linked; those that are."""
        return await run(self._background, self._log.discard_segments, segments)

    async def collect_unlinked(self, *, older_than_s: float = UNLINKED_S) -> int:
        """Delete segments that nobody will link. See `distributedlog.Log.collect_unlinked`."""
        return await run(
            self._background, partial(self._log.collect_unlinked, older_than_s=older_than_s)
        )


class Positions:
    """The positions of one log; see `distributedlog.log.positions.Positions`."""

    def __init__(self, background: Background, positions: TrioPositions) -> None:
        self._background = background
        self._positions = positions

    async def get(self, name: str) -> DLSN | None:
        """Where this subscriber goes on; None: it has no position."""
        return await run(self._background, self._positions.get, name)

    async def advance(self, name: str, dlsn: DLSN) -> DLSN:
        """Move a position forwards, or make it; where it is then."""
        return await run(self._background, self._positions.advance, name, dlsn)

    async def list(self) -> dict[str, DLSN]:
        """All positions, by name."""
        return await run(self._background, self._positions.list)

    async def delete(self, name: str) -> bool:
        """Forget a position; was there one?"""
        return await run(self._background, self._positions.delete, name)


class LogWatch(Owned):
    """The logs of a namespace, then their changes; see `distributedlog.LogWatch`."""

    def __init__(self, background: Background, watch: TrioLogWatch) -> None:
        super().__init__(background, "a watch of logs", watch.aclose)
        self._watch = watch
        self._inbox: Inbox[LogChange] = Inbox()

    async def logs(self) -> dict[str, str]:
        """Name to incarnation: as listed at first, and as the changes that were taken made it."""

        async def call() -> dict[str, str]:
            return self._watch.logs

        return await run(self._background, call)

    async def next(self, wait_s: float | None = None) -> LogChange | None:
        """The next change; None when ``wait_s`` is over (None: no limit; 0: takes only what is here)."""

        async def fetch() -> list[LogChange]:
            change = await self._watch.next(wait_s)
            return [] if change is None else [change]

        await run(self._background, self._inbox.fill, fetch)
        found = self._inbox.take()
        return found[0] if found else None

    async def __aiter__(self) -> AsyncIterator[LogChange]:
        while (change := await self.next()) is not None:
            yield change

    async def aclose(self) -> None:
        """Stop following. Idempotent."""
        await run(self._background, self._watch.aclose)
        self._ended()

    async def __aenter__(self) -> "LogWatch":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
