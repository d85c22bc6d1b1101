"""The logs of one reader, as the driver sees them: which there are, how far they go, where to begin and end.

Lives as long as the reader does, in the driver's Python process. Questions that come with every trigger are
answered from memory; the cluster is asked again when the answer is older than `REFRESH_S`.
"""

import fnmatch
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

import trio

from ...log.format.dlsn import DLSN
from ...log.model.deleted_log_lookup import look_up
from ...log.model.log_keys import incarnation_id
from ...log.model.position_outcome import CurrentLog, HeldPosition, LogLookup
from ...log.namespace import Namespace
from ...log.read.log_view import LogView, view_log
from ...runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    LogNotFound,
    LogRecreated,
)
from ..options.options import SourceOptions, Start
from .data_loss_policy import Rules, SourceDecision, decide
from .offsets import Wanted, Word, wanted_positions

REFRESH_S = 0.05
"""How old an answer about a log's end may be; more where asking takes long (`REFRESH_SHARE`)."""
REFRESH_SHARE = 4
"""An idle query asks for at most a quarter of the time."""
ASK_S = 1.0
"""How long a trigger waits for the ends; then it goes on with what is known."""
AT_ONCE = 32

log = logging.getLogger("distributedlog.spark")


class SourceLogs:
    """Views of the logs that the options name. All in the background loop."""

    def __init__(self, namespace: Namespace, options: SourceOptions) -> None:
        self.views: dict[str, LogView] = {}
        self._namespace = namespace
        self.options = options
        self._warned: set[str] = set()
        self._refreshed_at = -1e9
        self._cost_s = 0.0
        self._discovered_at = -1e9

    # --- which logs -------------------------------------------------------------------------------

    async def discover(self, *, every_s: float = 0.0, required: bool = True) -> list[str]:
        """Find the logs; those that are new. With ``required``, raises `LogNotFound` for one that was named
        and is not there; else it is waited for."""
        now = trio.current_time()
        if now - self._discovered_at < every_s:
            return []
        named = self.options.names
        names = await self._matching() if named is None else list(named)
        new = [name for name in names if name not in self.views]
        await self.look_for(new, required=required and named is not None)
        self._discovered_at = now
        return [name for name in new if name in self.views]

    async def look_for(self, names: Sequence[str], *, required: bool = False) -> None:
        """Have a view of each log of these names that is there.

        ``required``: one that is not there, or is being deleted, is an error.
        """

        async def look(name: str) -> None:
            namespace = self._namespace
            try:
                log_id = await namespace.find(name)
            except LogNotFound as error:
                if required:
                    raise LogNotFound(f"{error}{_meant(name)}", error.detail) from None
                return
            try:
                view = await view_log(namespace.metadata, namespace.ledgers, name, log_id)
            except LogNotFound:
                if required:
                    raise
                return
            self.views[name] = view

        await each(names, look)

    def wanted(self, name: str) -> bool:
        """Do the options mean this log?"""
        named = self.options.names
        if named is not None:
            return name in named
        assert self.options.log_pattern is not None
        return fnmatch.fnmatchcase(name, self.options.log_pattern)

    async def _matching(self) -> list[str]:
        pattern = self.options.log_pattern
        assert pattern is not None
        prefix = pattern[
            : min((pattern.index(c) for c in "*?[" if c in pattern), default=len(pattern))
        ]
        return [name async for name in self._namespace.logs(prefix) if self.wanted(name)]

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
            await self._refresh()
        else:
            with trio.move_on_after(ASK_S):
                await self._refresh()
        self._refreshed_at = trio.current_time()
        self._cost_s = self._refreshed_at - started

    async def _refresh(self) -> None:
        async def look(name: str) -> None:
            try:
                await self.views[name].refresh()
            except LogNotFound:
                self.views.pop(name).close()
            except DistributedLogError as error:
                if not error.retryable:
                    raise
                log.info('log "%s": its end is not known anew: %s', name, error)

        await each(list(self.views), look)

    def close(self) -> None:
        """Follow nothing more."""
        for view in self.views.values():
            view.close()

    # --- logs that were truncated, deleted, made again --------------------------------------------

    async def found(self, name: str, held: HeldPosition) -> LogLookup:
        """What there is to say about a log that a checkpoint holds."""
        view = self.views.get(name)
        if view is None and self.wanted(name):
            await self.look_for([name])
            view = self.views.get(name)
        there = None if view is None else seen(view)
        if (there is not None and there.identity == held.identity) or not self.wanted(name):
            return LogLookup(there)
        namespace, log_id = self._namespace, incarnation_id(held.identity)
        return await look_up(namespace.metadata, namespace.path, name, log_id, there)

    def rules(self, name: str) -> Rules:
        """The options, as far as they decide about a log."""
        options = self.options
        named = options.names is not None
        return Rules(options.fail_on_data_loss, options.new_logs, named, self.wanted(name))

    def heed(self, decision: SourceDecision) -> SourceDecision:
        """Raise its error, or say its warning, once."""
        if decision.error is not None:
            raise decision.error
        if decision.warning:
            allowed = " (failOnDataLoss=false)" if decision.loss_allowed else ""
            self.warn(f"{decision.warning}{allowed}")
        return decision

    def warn(self, what: str) -> None:
        """Say it, once."""
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s", what)

    # --- where to begin and end -------------------------------------------------------------------

    async def starts(self, names: Iterable[str], otherwise: Word) -> dict[str, DLSN]:
        """Where each log begins by the options."""
        return await self._bounds(list(names), self.options.start, "startingPosition", otherwise)

    async def ends(self, names: Iterable[str]) -> dict[str, DLSN]:
        """Where each log ends by the options; never beyond what can be read."""
        found = await self._bounds(list(names), self.options.end, "endingPosition", "latest")
        return {name: min(dlsn, self.views[name].end) for name, dlsn in found.items()}

    async def first(self, name: str) -> DLSN | None:
        """The first record that ``startingTxid`` or ``startingTimestamp`` means; None: there is none yet."""
        view = self.views[name]
        found = await _first(view, self.options.start)
        return None if found == view.end else found

    async def _bounds(
        self, names: list[str], bound: Start, option: str, otherwise: Word
    ) -> dict[str, DLSN]:
        if bound.searches:
            found: dict[str, DLSN] = {}

            async def find(name: str) -> None:
                found[name] = await _first(self.views[name], bound)

            await each(names, find)
            return found
        wanted = wanted_positions(bound.position, names, option, otherwise)
        return {name: self._position(self.views[name], wanted[name], option) for name in names}

    def _position(self, view: LogView, wanted: Wanted, option: str) -> DLSN:
        if wanted.word is not None:
            return view.earliest if wanted.word == "earliest" else view.end
        assert wanted.dlsn is not None
        if wanted.identity is not None and wanted.identity != view.incarnation:
            raise remade(view.name, f'option "{option}"')
        if wanted.dlsn > view.end and wanted.dlsn != DLSN(view.end.segment + 1, 0, 0):
            raise InvalidRequest(
                f'option "{option}": log "{view.name}" ends at {view.end}, before {wanted.dlsn}'
            )
        if option == "startingPosition":
            held = HeldPosition(wanted.dlsn, view.incarnation, wanted.sequence_id)
            return self.still_there(view, held)
        return max(wanted.dlsn, view.earliest)

    def still_there(self, view: LogView, held: HeldPosition) -> DLSN:
        """Where to go on in this log. Raises `LogTruncated` by ``failOnDataLoss``."""
        decision = self.heed(decide(view.name, held, LogLookup(seen(view)), self.rules(view.name)))
        assert decision.at is not None, "a log that is there is read, or its truncation raised"
        return decision.at


async def _first(view: LogView, bound: Start) -> DLSN:
    """The first record that a bound means, by txid or log time; the log's end if there is none."""
    if bound.txid is not None:
        return await view.first_with_txid(bound.txid)
    assert bound.time_ms is not None, "a bound that searches"
    return await view.first_with_time(bound.time_ms)


def seen(view: LogView) -> CurrentLog:
    """A log that is there, as far as `decide` asks."""
    return CurrentLog.of(view.state, view.end)


def _meant(name: str) -> str:
    """These are legal in names, and yet hardly meant as one."""
    if "," in name:
        return ' (several logs: option "logs")'
    return ' (a pattern: option "logPattern")' if any(c in name for c in "*?[") else ""


def remade(name: str, where: str) -> LogRecreated:
    """Positions that were given are those of a log that is gone."""
    return LogRecreated(
        f'log "{name}" was deleted and made again, and {where} belongs to the old one: leave it out, or give '
        "positions of the log that is there now"
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
