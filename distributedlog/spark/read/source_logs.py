"""The logs of one reader on the driver: their names, their ends, and the start and end positions of reads.

The object lives as long as the reader, in the driver's Python process. It answers the calls of every trigger
from memory, and asks the cluster again if the data is older than `REFRESH_S`.
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
"""Maximum age of a log's end, in seconds. It is longer if requests take long (`REFRESH_SHARE`)."""
REFRESH_SHARE = 4
"""An idle query spends at most a quarter of its time with requests."""
REFRESH_TIMEOUT_S = 1.0
"""Maximum wait of a trigger for new ends, in seconds. Afterwards it uses the known ones."""
LOGS_AT_ONCE = 32

log = logging.getLogger("distributedlog.spark")


class SourceLogs:
    """Views of the logs that the options select. All methods run in the background loop."""

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
        """Find new logs, and return their names.

        Args:
            every_s: Do nothing if the last search is more recent than this, in seconds.
            required: Whether a named log must exist.

        Raises:
            LogNotFound: A named log does not exist, and ``required`` is True.
        """
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
        """Open a view of each existing log of these names.

        With ``required``, a log that does not exist or is being deleted is an error (`LogNotFound`).
        """

        async def open_view(name: str) -> None:
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

        await for_each_log(names, open_view)

    def is_selected(self, name: str) -> bool:
        """Whether the options select this log."""
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
        """Update the ends, if the last update is old enough.

        With ``immediately``, update in any case and without a timeout. Otherwise the update is limited to
        `REFRESH_TIMEOUT_S`, and logs that do not answer in time keep their last known end.
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
        async def refresh_view(name: str) -> None:
            try:
                await self.views[name].refresh()
            except LogNotFound:
                self.views.pop(name).close()
            except DistributedLogError as error:
                if not error.retryable:
                    raise
                log.info('log "%s": its end could not be updated: %s', name, error)

        await for_each_log(list(self.views), refresh_view)

    def close(self) -> None:
        """Stop watching all logs."""
        for view in self.views.values():
            view.close()

    # --- logs that were truncated, deleted, created again ------------------------------------------

    async def look_up(self, name: str, position: HeldPosition) -> LogLookup:
        """Return the state of a log of which a checkpoint has a position."""
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
        """Return the options that affect the decision about a log."""
        options = self.options
        is_named = options.names is not None
        return LossRules(
            options.fail_on_data_loss, options.new_logs, is_named, self.is_selected(name)
        )

    def apply_decision(self, decision: SourceDecision) -> SourceDecision:
        """Raise the error of a decision, or log its warning once."""
        if decision.error is not None:
            raise decision.error
        if decision.warning:
            allowed = " (failOnDataLoss=false)" if decision.is_loss_allowed else ""
            self.warn_once(f"{decision.warning}{allowed}")
        return decision

    def warn_once(self, text: str) -> None:
        """Log a warning, unless it was already logged."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    # --- where to begin and end -------------------------------------------------------------------

    async def starts(self, names: Iterable[str], default: Word) -> dict[str, DLSN]:
        """Return the start of each log according to the options."""
        return await self._resolve_bounds(
            list(names), self.options.start, "startingPosition", default
        )

    async def ends(self, names: Iterable[str]) -> dict[str, DLSN]:
        """Return the end of each log according to the options, at most its readable end."""
        dlsns = await self._resolve_bounds(
            list(names), self.options.end, "endingPosition", "latest"
        )
        return {name: min(dlsn, self.views[name].end) for name, dlsn in dlsns.items()}

    async def first_matching(self, name: str) -> DLSN | None:
        """Return the first record of ``startingTxid`` or ``startingTimestamp``; None if there is none yet."""
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
        """Return the position at which to continue. Raises `LogTruncated` with ``failOnDataLoss``."""
        decision = self.apply_decision(
            decide(view.name, position, LogLookup(current_log(view)), self.loss_rules(view.name))
        )
        assert decision.start is not None, "an existing log is read, or its truncation is an error"
        return decision.start


async def _first_in_bound(view: LogView, bound: ReadBound) -> DLSN:
    """Return the first record of a transaction ID or log time; the end of the log if there is none."""
    if bound.txid is not None:
        return await view.first_with_txid(bound.txid)
    assert bound.time_ms is not None, "a bound that searches"
    return await view.first_with_time(bound.time_ms)


def current_log(view: LogView) -> CurrentLog:
    """Return the state of an existing log, for `decide`."""
    return CurrentLog.of(view.state, view.end)


def _name_hint(name: str) -> str:
    """Return a hint for characters that are legal in names, but probably meant as a list or pattern."""
    if "," in name:
        return ' (for several logs, use the option "logs")'
    return ' (for a pattern, use the option "logPattern")' if any(c in name for c in "*?[") else ""


def log_recreated(name: str, source: str) -> LogRecreated:
    """Return the error for given positions that belong to a deleted log."""
    return LogRecreated(
        f'log "{name}" was deleted and created again, and {source} belongs to the old log. Omit it, or '
        "use "
        "positions of the present log"
    )


async def for_each_log(names: Sequence[str], call: Callable[[str], Awaitable[None]]) -> None:
    """Call for every name, at most `LOGS_AT_ONCE` concurrently. The first error is raised without a group."""
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
