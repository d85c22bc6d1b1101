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
from ..options.options import ReadBound, SourceOptions
from .data_loss_policy import LossRules, SourceDecision, decide
from .offsets import RequestedPosition, Word, requested_positions

REFRESH_S = 0.05
"""How old an answer about a log's end may be; more where asking takes long (`REFRESH_SHARE`)."""
REFRESH_SHARE = 4
"""An idle query asks for at most a quarter of the time."""
REFRESH_TIMEOUT_S = 1.0
"""How long a trigger waits for the ends; then it goes on with what is known."""
LOGS_AT_ONCE = 32

log = logging.getLogger("distributedlog.spark")


class SourceLogs:
    """Views of the logs that the options name. All in the background loop."""

    def __init__(self, namespace: Namespace, options: SourceOptions) -> None:
        self.views: dict[str, LogView] = {}
        self._namespace = namespace
        self.options = options
        self._warned: set[str] = set()
        self._refreshed_at = -1e9
        self._refresh_took_s = 0.0
        self._discovered_at = -1e9

    # --- which logs -------------------------------------------------------------------------------

    async def discover(self, *, every_s: float = 0.0, required: bool = True) -> list[str]:
        """Find the logs; those that are new. With ``required``, raises `LogNotFound` for one that was named
        and is not there; else it is waited for."""
        now = trio.current_time()
        if now - self._discovered_at < every_s:
            return []
        named_logs = self.options.names
        names = await self._matching_logs() if named_logs is None else list(named_logs)
        new_names = [name for name in names if name not in self.views]
        await self.open_views(new_names, required=required and named_logs is not None)
        self._discovered_at = now
        return [name for name in new_names if name in self.views]

    async def open_views(self, names: Sequence[str], *, required: bool = False) -> None:
        """Have a view of each log of these names that is there.

        ``required``: one that is not there, or is being deleted, is an error.
        """

        async def look(name: str) -> None:
            namespace = self._namespace
            try:
                log_id = await namespace.resolve_name(name)
            except LogNotFound as error:
                if required:
                    raise LogNotFound(f"{error}{_name_hint(name)}", error.detail) from None
                return
            try:
                view = await view_log(namespace.metadata, namespace.ledgers, name, log_id)
            except LogNotFound:
                if required:
                    raise
                return
            self.views[name] = view

        await for_each_log(names, look)

    def is_selected(self, name: str) -> bool:
        """Do the options mean this log?"""
        named_logs = self.options.names
        if named_logs is not None:
            return name in named_logs
        assert self.options.log_pattern is not None
        return fnmatch.fnmatchcase(name, self.options.log_pattern)

    async def _matching_logs(self) -> list[str]:
        pattern = self.options.log_pattern
        assert pattern is not None
        prefix = pattern[
            : min((pattern.index(c) for c in "*?[" if c in pattern), default=len(pattern))
        ]
        return [name async for name in self._namespace.logs(prefix) if self.is_selected(name)]

    # --- how far ----------------------------------------------------------------------------------

    async def refresh(self, *, immediately: bool = False) -> None:
        """Look at the ends again, where the last look is old enough.

        ``now``: in any case, and as long as it takes. Else within `REFRESH_TIMEOUT_S`; a log that gives no
        answer in time keeps its last known end.
        """
        started = trio.current_time()
        if not immediately and started - self._refreshed_at < max(
            REFRESH_S, REFRESH_SHARE * self._refresh_took_s
        ):
            return
        if immediately:
            await self._refresh()
        else:
            with trio.move_on_after(REFRESH_TIMEOUT_S):
                await self._refresh()
        self._refreshed_at = trio.current_time()
        self._refresh_took_s = self._refreshed_at - started

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

        await for_each_log(list(self.views), look)

    def close(self) -> None:
        """Follow nothing more."""
        for view in self.views.values():
            view.close()

    # --- logs that were truncated, deleted, made again --------------------------------------------

    async def look_up(self, name: str, position: HeldPosition) -> LogLookup:
        """What there is to say about a log that a checkpoint holds."""
        view = self.views.get(name)
        if view is None and self.is_selected(name):
            await self.open_views([name])
            view = self.views.get(name)
        current = None if view is None else current_log(view)
        if (
            current is not None and current.incarnation == position.incarnation
        ) or not self.is_selected(name):
            return LogLookup(current)
        namespace, log_id = self._namespace, incarnation_id(position.incarnation)
        return await look_up(namespace.metadata, namespace.path, name, log_id, current)

    def loss_rules(self, name: str) -> LossRules:
        """The options, as far as they decide about a log."""
        options = self.options
        is_named = options.names is not None
        return LossRules(
            options.fail_on_data_loss, options.new_logs, is_named, self.is_selected(name)
        )

    def apply_decision(self, decision: SourceDecision) -> SourceDecision:
        """Raise its error, or say its warning, once."""
        if decision.error is not None:
            raise decision.error
        if decision.warning:
            allowed = " (failOnDataLoss=false)" if decision.is_loss_allowed else ""
            self.warn_once(f"{decision.warning}{allowed}")
        return decision

    def warn_once(self, text: str) -> None:
        """Say it, once."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    # --- where to begin and end -------------------------------------------------------------------

    async def starts(self, names: Iterable[str], default: Word) -> dict[str, DLSN]:
        """Where each log begins by the options."""
        return await self._resolve_bounds(
            list(names), self.options.start, "startingPosition", default
        )

    async def ends(self, names: Iterable[str]) -> dict[str, DLSN]:
        """Where each log ends by the options; never beyond what can be read."""
        dlsns = await self._resolve_bounds(
            list(names), self.options.end, "endingPosition", "latest"
        )
        return {name: min(dlsn, self.views[name].end) for name, dlsn in dlsns.items()}

    async def first_matching(self, name: str) -> DLSN | None:
        """The first record that ``startingTxid`` or ``startingTimestamp`` means; None: there is none yet."""
        view = self.views[name]
        dlsn = await _first_in_bound(view, self.options.start)
        return None if dlsn == view.end else dlsn

    async def _resolve_bounds(
        self, names: list[str], bound: ReadBound, option: str, default: Word
    ) -> dict[str, DLSN]:
        if bound.is_search:
            dlsns: dict[str, DLSN] = {}

            async def find(name: str) -> None:
                dlsns[name] = await _first_in_bound(self.views[name], bound)

            await for_each_log(names, find)
            return dlsns
        requested = requested_positions(bound.position, names, option, default)
        return {
            name: self._resolve_position(self.views[name], requested[name], option)
            for name in names
        }

    def _resolve_position(self, view: LogView, requested: RequestedPosition, option: str) -> DLSN:
        if requested.word is not None:
            return view.earliest if requested.word == "earliest" else view.end
        assert requested.dlsn is not None
        if requested.identity is not None and requested.identity != view.incarnation:
            raise log_recreated(view.name, f'option "{option}"')
        if requested.dlsn > view.end and requested.dlsn != DLSN(view.end.segment + 1, 0, 0):
            raise InvalidRequest(
                f'option "{option}": log "{view.name}" ends at {view.end}, before {requested.dlsn}'
            )
        if option == "startingPosition":
            position = HeldPosition(requested.dlsn, view.incarnation, requested.sequence_id)
            return self.check_position(view, position)
        return max(requested.dlsn, view.earliest)

    def check_position(self, view: LogView, position: HeldPosition) -> DLSN:
        """Where to go on in this log. Raises `LogTruncated` by ``failOnDataLoss``."""
        decision = self.apply_decision(
            decide(view.name, position, LogLookup(current_log(view)), self.loss_rules(view.name))
        )
        assert decision.start is not None, "a log that is there is read, or its truncation raised"
        return decision.start


async def _first_in_bound(view: LogView, bound: ReadBound) -> DLSN:
    """The first record that a bound means, by txid or log time; the log's end if there is none."""
    if bound.txid is not None:
        return await view.first_with_txid(bound.txid)
    assert bound.time_ms is not None, "a bound that searches"
    return await view.first_with_time(bound.time_ms)


def current_log(view: LogView) -> CurrentLog:
    """A log that is there, as far as `decide` asks."""
    return CurrentLog.of(view.state, view.end)


def _name_hint(name: str) -> str:
    """These are legal in names, and yet hardly meant as one."""
    if "," in name:
        return ' (several logs: option "logs")'
    return ' (a pattern: option "logPattern")' if any(c in name for c in "*?[") else ""


def log_recreated(name: str, source: str) -> LogRecreated:
    """Positions that were given are those of a log that is gone."""
    return LogRecreated(
        f'log "{name}" was deleted and made again, and {source} belongs to the old one: leave it out, or '
        "give "
        "positions of the log that is there now"
    )


async def for_each_log(names: Sequence[str], call: Callable[[str], Awaitable[None]]) -> None:
    """Call for every name, at most `LOGS_AT_ONCE` at a time; the first error is raised as it is."""
    remaining = iter(names)
    failure: BaseException | None = None

    async def work() -> None:
        for name in remaining:
            await call(name)

    try:
        async with trio.open_nursery() as nursery:
            for _ in range(min(LOGS_AT_ONCE, len(names))):
                nursery.start_soon(work)
    except BaseExceptionGroup as group:
        failure = _first_real(group)
    if failure is not None:
        raise failure


def _first_real(group: BaseExceptionGroup[BaseException]) -> BaseException:
    for error in group.exceptions:
        inner = _first_real(error) if isinstance(error, BaseExceptionGroup) else error
        if not isinstance(inner, trio.Cancelled):
            return inner
    return group.exceptions[0]
