"""What is stored about the logs that this process writes, followed while they are open (H169).

One for a namespace, however many logs: two watches, of all logs' settings and of the namespace's own. What
concerns no open log is passed over, so nothing is kept of it. Level-triggered (H29): what counts is the
newest value that can be read; one that cannot is logged and counted, and the last good one holds.
"""

import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import trio

from ...metadata.model.interface import Metadata, prefix_end
from ...metadata.model.transaction import KeyValue
from ...runtime.interfaces.errors import (
    Compacted,
    CorruptData,
    DistributedLogError,
    InvalidRequest,
    UnsupportedFormat,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..declarations.options import LogOptions
from ..model.stored_settings import CONF_PREFIX, StoredSettings, bind_key, conf_key, effective
from .lease_session import Start

BEGIN_S = 2.0
"""A process that writes for less than this follows nothing."""
RETRY_S = 1.0
SWEEP_MIN = 64

log = get_logger("distributedlog.log")


@dataclass(slots=True)
class _Read:
    """One key, as far as it is known."""

    stored: StoredSettings
    revision: int = -1
    """Of what was last looked at, readable or not."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class FollowedLog:
    """The options of one open log."""

    log_id: int
    base: LogOptions
    """Without what is stored."""
    given: Collection[str]
    own: _Read
    options: LogOptions
    """What holds now; sizes from the next segment on."""
    _on_change: Callable[[LogOptions], None] | None = None

    def subscribe(self, on_change: Callable[[LogOptions], None]) -> None:
        """Have the open log's writer receive each change at once, so that it need not compare per entry."""
        self._on_change = on_change

    def change(self, options: LogOptions) -> None:
        """Set the options that hold now."""
        self.options = options
        if self._on_change is not None:
            self._on_change(options)


class SettingsWatch:
    """Keeps the options of open logs up to date."""

    def __init__(
        self,
        metadata: Metadata,
        namespace: str,
        start: Start,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._start = start
        self._bind_key = bind_key(namespace)
        self._bind = _Read(StoredSettings())
        self._open: dict[bytes, weakref.WeakSet[FollowedLog]] = {}
        self._sweep_at = SWEEP_MIN
        """With so many keys, those of logs that nobody has open any more go."""
        self._runs = False
        self._told: dict[bytes, int] = {}
        """Revisions of values whose numbers are out of range: each is logged once."""
        self.unreadable = 0
        """Values that could not be read, since the start."""

    async def follow(self, log_id: int, options: LogOptions, given: Collection[str]) -> FollowedLog:
        """The options that hold for a log, kept up to date as long as the caller keeps what this gives.

        Raises `InvalidRequest` where one of ``given`` contradicts what is stored.
        """
        followed = FollowedLog(log_id, options, given, _Read(StoredSettings()), options)
        key = conf_key(log_id)
        if len(self._open) >= self._sweep_at:
            self._open = {at: logs for at, logs in self._open.items() if logs}
            self._sweep_at = max(SWEEP_MIN, 2 * len(self._open))
        self._open.setdefault(key, weakref.WeakSet()).add(followed)  # before it is read: no gap
        if not self._runs:
            for run in (self._run_bind, self._run_own):
                self._start(partial(self._failures.keep, "the watch of stored settings", run))
            self._runs = True
        self._take(self._bind, self._bind_key, await self._metadata.get(self._bind_key))
        self._take(followed.own, key, await self._metadata.get(key))
        followed.options = effective(options, given, self._bind.stored, followed.own.stored)
        return followed

    async def codec(self, log_id: int, options: LogOptions, given: Collection[str]) -> str:
        """The option ``codec`` of a log now. Raises as `follow`; what cannot be read is passed over."""
        bind, own = _Read(StoredSettings()), _Read(StoredSettings())
        for known, key in ((bind, self._bind_key), (own, conf_key(log_id))):
            self._take(known, key, await self._metadata.get(key), now=True)
        return effective(options, given, bind.stored, own.stored).codec

    async def _run_bind(self) -> None:
        await self._run(self._bind_key, self._bind_key + b"\x00")

    async def _run_own(self) -> None:
        await self._run(CONF_PREFIX, prefix_end(CONF_PREFIX))

    async def _run(self, start: bytes, end: bytes) -> None:
        """Follow a range of settings until cancelled."""
        revision: int | None = None
        await trio.sleep(BEGIN_S)
        while True:
            try:
                if revision is None:
                    revision = (await self._metadata.range(start, end, limit=1)).revision
                    for key in self._keys(start, end):
                        self._changed(key, await self._metadata.get(key), now=True)
                async with self._metadata.watch(start, end, after_revision=revision) as watch:
                    while True:
                        batch = await watch.next()
                        for event in batch.events:
                            self._changed(event.item.key, event.item)  # a deletion's is empty
                        revision = max(revision, batch.revision)
            except Compacted:
                revision = None
            except DistributedLogError as error:
                log.debug("stored settings are not followed: %s", error)
                await trio.sleep(RETRY_S)

    def _keys(self, start: bytes, end: bytes) -> list[bytes]:
        return [key for key in (self._bind_key, *self._open) if start <= key < end]

    def _changed(self, key: bytes, item: KeyValue | None, *, now: bool = False) -> None:
        """A key of the range has another value, or is looked at anew."""
        if key == self._bind_key:
            self._take(self._bind, key, item, now=now)
            for logs in self._open.values():
                for one in logs:
                    with self._failures.contained(_unit_of(one)):
                        self._apply(one)
            return
        for one in (logs := self._open.get(key, weakref.WeakSet())):
            with self._failures.contained(_unit_of(one)):
                self._take(one.own, key, item, now=now)
                self._apply(one)
        if not logs:
            self._open.pop(key, None)

    def _take(self, known: _Read, key: bytes, item: KeyValue | None, *, now: bool = False) -> None:
        """``now``: this is how it is; else it counts only if nothing newer was told meanwhile."""
        revision = 0 if item is None else item.mod_revision
        if not now and revision <= known.revision:
            return
        known.revision = revision
        if item is None or not item.value:
            known.stored = StoredSettings()
            return
        try:
            known.stored = StoredSettings.decode(item.value, item.version)
        except (CorruptData, UnsupportedFormat) as error:
            self.unreadable += 1
            log.warning("%r: %s; what was last read of it holds", key, error)
            return
        if known.stored.out_of_range and self._told.get(key) != revision:
            if len(self._told) >= SWEEP_MIN:
                self._told.clear()
            self._told[key] = revision
            log.warning("%r: %s", key, "; ".join(known.stored.out_of_range))

    def _apply(self, one: FollowedLog) -> None:
        try:
            found = effective(one.base, one.given, self._bind.stored, one.own.stored)
        except InvalidRequest as error:
            log.warning("log %016x: %s; its open writer goes on as it began", one.log_id, error)
            return
        if found != one.options:
            one.change(found)
            log.info("log %016x has other settings", one.log_id)


def _unit_of(followed: FollowedLog) -> str:
    return f"the settings of log {followed.log_id:016x}"
