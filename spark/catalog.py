"""The logs of one reader, as the driver sees them: which there are, how far they go, where to begin and end.

Lives as long as the reader does, in the driver's Python process. Questions that come with every trigger are
answered from memory; the cluster is asked again when the answer is older than `REFRESH_S`.
"""

import fnmatch
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence

import trio

from ..log.dlsn import DLSN
from ..log.namespace import Namespace
from ..runtime.errors import (
    DistributedLogError,
    InvalidRequest,
    LogNotFound,
    LogRecreated,
    LogTruncated,
)
from .logview import LogView
from .offsets import Wanted, Word, positions
from .options import SourceOptions, Start

REFRESH_S = 0.05
"""How old an answer about a log's end may be; more where asking takes long (`REFRESH_SHARE`)."""
REFRESH_SHARE = 4
"""An idle query asks for at most a quarter of the time."""
ASK_S = 1.0
"""How long a trigger waits for the ends; then it goes on with what is known."""
AT_ONCE = 32

log = logging.getLogger("distributedlog.spark")


class Catalog:
    """Views of the logs that the options name. All in the background loop."""

    def __init__(self, namespace: Namespace, options: SourceOptions) -> None:
        self.views: dict[str, LogView] = {}
        self.gone: dict[str, DLSN] = {}
        """Logs that were deleted under the reader, and how far they went when they were last seen."""
        self._namespace = namespace
        self._options = options
        self._warned: set[str] = set()
        self._refreshed_at = -1e9
        self._cost_s = 0.0
        self._discovered_at = -1e9

    # --- which logs -------------------------------------------------------------------------------

    async def discover(self, *, every_s: float = 0.0, missing: Container[str] = ()) -> list[str]:
        """Find the logs; those that are new. Raises `LogNotFound` for one that was named and is not there,
        unless it is among those that may be ``missing``."""
        now = trio.current_time()
        if now - self._discovered_at < every_s:
            return []
        named = self._options.names
        names = await self._matching() if named is None else list(named)
        new = [name for name in names if name not in self.views]
        found: dict[str, int] = {}

        async def find(name: str) -> None:
            try:
                found[name] = await self._namespace.find(name)
            except LogNotFound as error:
                if self._options.names is not None and name not in missing:
                    raise LogNotFound(f"{error}{_meant(name)}") from None

        await each(new, find)
        for name in new:
            if name in found:
                self.gone.pop(name, None)
                self.views[name] = LogView(self._namespace, name, found[name])
        self._discovered_at = now
        added = [name for name in new if name in found]
        await self._refresh(added)
        return [name for name in added if name in self.views]

    async def _matching(self) -> list[str]:
        pattern = self._options.log_pattern
        assert pattern is not None
        prefix = pattern[
            : min((pattern.index(c) for c in "*?[" if c in pattern), default=len(pattern))
        ]
        return [
            name
            async for name in self._namespace.logs(prefix)
            if fnmatch.fnmatchcase(name, pattern)
        ]

    # --- how far ----------------------------------------------------------------------------------

    async def refresh(self, *, now: bool = False) -> None:
        """Look at the ends again, where the last look is old enough.

        ``now``: in any case, and as long as it takes. Else within `ASK_S`; a log that gives no answer
        in time keeps its last known end.
        """
        started = trio.current_time()
        if not now and started - self._refreshed_at < max(REFRESH_S, REFRESH_SHARE * self._cost_s):
            return
        if now:
            await self._refresh(list(self.views))
        else:
            with trio.move_on_after(ASK_S):
                await self._refresh(list(self.views))
        self._refreshed_at = trio.current_time()
        self._cost_s = self._refreshed_at - started

    async def _refresh(self, names: Sequence[str]) -> None:
        async def look(name: str) -> None:
            view = self.views.get(name)
            if view is None:
                return
            try:
                await view.refresh()
            except LogNotFound:
                self.views.pop(name).close()
                if hasattr(view, "state"):
                    self.gone[name] = view.end
            except DistributedLogError as error:
                if not error.retryable or not hasattr(view, "state"):
                    raise
                log.info('log "%s": its end is not known anew: %s', name, error)

        await each(names, look)

    def close(self) -> None:
        """Follow nothing more."""
        for view in self.views.values():
            view.close()

    # --- where to begin and end -------------------------------------------------------------------

    async def starts(self, names: Iterable[str], otherwise: Word) -> dict[str, DLSN]:
        """Where each log begins by the options."""
        return await self._bounds(list(names), self._options.start, "startingPosition", otherwise)

    async def ends(self, names: Iterable[str]) -> dict[str, DLSN]:
        """Where each log ends by the options; never beyond what can be read."""
        found = await self._bounds(list(names), self._options.end, "endingPosition", "latest")
        return {name: min(dlsn, self.views[name].end) for name, dlsn in found.items()}

    async def _bounds(
        self, names: list[str], bound: Start, option: str, otherwise: Word
    ) -> dict[str, DLSN]:
        if bound.txid is not None:
            txid = bound.txid
            found: dict[str, DLSN] = {}

            async def find(name: str) -> None:
                found[name] = await self.views[name].first_with_txid(txid)

            await each(names, find)
            return found
        wanted = positions(bound.position, names, option, otherwise)
        return {name: self._position(self.views[name], wanted[name], option) for name in names}

    def _position(self, view: LogView, wanted: Wanted, option: str) -> DLSN:
        if wanted.word is not None:
            return view.earliest if wanted.word == "earliest" else view.end
        assert wanted.dlsn is not None
        if wanted.identity is not None and wanted.identity != view.identity:
            raise remade(view.name, f'option "{option}"')
        if wanted.dlsn > view.end and wanted.dlsn != DLSN(view.end.segment + 1, 0, 0):
            raise InvalidRequest(
                f'option "{option}": log "{view.name}" ends at {view.end}, before {wanted.dlsn}'
            )
        if option == "startingPosition":
            return self.not_truncated(view, wanted.dlsn, wanted.sequence_id)
        return max(wanted.dlsn, view.earliest)

    def not_truncated(self, view: LogView, dlsn: DLSN, sequence_id: int | None) -> DLSN:
        """``dlsn``, or the first position that is left. Raises `LogTruncated` by ``failOnDataLoss``."""
        first = view.earliest
        if dlsn >= first:
            return dlsn
        if view.state.truncated_sequence_id == 0:
            return first  # no record has gone
        lost = "its records up to there are lost"
        if sequence_id is not None:
            number = view.state.truncated_sequence_id - sequence_id
            if number <= 0:
                return first  # nothing but control records, or an empty segment
            lost = f"{number} records are lost"
        what = (
            f'log "{view.name}" was truncated: wanted {dlsn}, its first position is {first}, {lost}'
        )
        if self._options.fail_on_data_loss:
            raise LogTruncated(f'{what}; "failOnDataLoss"=false goes on from there', str(first))
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s (failOnDataLoss=false)", what)
        return first


def _meant(name: str) -> str:
    """These are legal in names, and yet hardly meant as one."""
    if "," in name:
        return ' (several logs: option "logs")'
    return ' (a pattern: option "logPattern")' if any(c in name for c in "*?[") else ""


def remade(name: str, where: str) -> LogRecreated:
    """The log of this name is another one than the one that was read."""
    return LogRecreated(
        f'log "{name}" was deleted and made again: {where} belongs to the old one; begin anew, or set '
        '"failOnDataLoss"=false to read the new one from its beginning'
    )


async def each(names: Sequence[str], call: Callable[[str], Awaitable[None]]) -> None:
    """Call for every name, at most `AT_ONCE` at a time; the first error is raised as it is."""
    left = iter(names)
    failure: BaseException | None = None

    async def work() -> None:
        for name in left:
            await call(name)

    try:
        async with trio.open_nursery() as nursery:
            for _ in range(min(AT_ONCE, len(names))):
                nursery.start_soon(work)
    except BaseExceptionGroup as group:
        failure = _first_real(group)
    if failure is not None:
        raise failure


def _first_real(group: BaseExceptionGroup[BaseException]) -> BaseException:
    for error in group.exceptions:
        found = _first_real(error) if isinstance(error, BaseExceptionGroup) else error
        if not isinstance(found, trio.Cancelled):
            return found
    return group.exceptions[0]
