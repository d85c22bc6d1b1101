"""Watch the stored settings of the logs that this process writes, while they are open (H169).

One object serves all logs of a namespace, with two watches: for the settings of all logs, and for those of
the namespace. Changes of logs that are not open are ignored, so no memory is used for them. The watch is
level-triggered (H29), and the newest readable value applies. An unreadable value is logged and counted, and
the last readable one stays in effect.
"""

import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import trio

from ...metadata.client.range_watch import follow_range
from ...metadata.model.interface import Metadata, WatchBatch, prefix_end
from ...metadata.model.transaction import KeyValue
from ...runtime.interfaces.errors import (
    CorruptData,
    InvalidRequest,
    UnsupportedFormat,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..declarations.options import LogOptions
from ..model.stored_settings import (
    CONF_PREFIX,
    StoredSettings,
    bind_key,
    conf_key,
    effective_options,
)
from .lease_session import Start

START_DELAY_S = 2.0
"""A process that writes for a shorter time starts no watch."""
RETRY_S = 1.0
SWEEP_KEYS_MIN = 64

log = get_logger("distributedlog.log")


@dataclass(slots=True)
class _StoredValue:
    """The last known value of one key."""

    stored: StoredSettings
    revision: int = -1
    """The revision of the value that was read last, readable or not."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class FollowedLog:
    """The options of one open log."""

    log_id: int
    base_options: LogOptions
    """The options without stored values."""
    explicit_names: Collection[str]
    log_value: _StoredValue
    options: LogOptions
    """The options in effect. Sizes apply from the next segment on."""
    _on_change: Callable[[LogOptions], None] | None = None

    def subscribe(self, on_change: Callable[[LogOptions], None]) -> None:
        """Set a callback for changes, so that the log's writer need not compare options per entry."""
        self._on_change = on_change

    def update(self, options: LogOptions) -> None:
        """Set the options in effect."""
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
        self._namespace_value = _StoredValue(StoredSettings())
        self._open_logs: dict[bytes, weakref.WeakSet[FollowedLog]] = {}
        self._sweep_threshold = SWEEP_KEYS_MIN
        """At this number of keys, those of logs that are no longer open are removed."""
        self._is_running = False
        self._logged_revisions: dict[bytes, int] = {}
        """Revisions of values with numbers out of range. Each is logged once."""
        self.unreadable = 0
        """The number of unreadable values since the start."""

    async def follow_log(
        self, log_id: int, options: LogOptions, explicit_names: Collection[str]
    ) -> FollowedLog:
        """Return the options of a log, which are kept up to date as long as the caller keeps the result.

        Args:
            log_id: The log.
            options: The options of the process, including those that the caller of `open_log` gave.
            explicit_names: The options that the caller of `open_log` gave.
        Raises:
            InvalidRequest: An explicit option contradicts the stored value.
        """
        followed_log = FollowedLog(
            log_id, options, explicit_names, _StoredValue(StoredSettings()), options
        )
        key = conf_key(log_id)
        if len(self._open_logs) >= self._sweep_threshold:
            self._open_logs = {
                settings_key: logs for settings_key, logs in self._open_logs.items() if logs
            }
            self._sweep_threshold = max(SWEEP_KEYS_MIN, 2 * len(self._open_logs))
        self._open_logs.setdefault(key, weakref.WeakSet()).add(
            followed_log
        )  # added before the value is read, so that no change is missed
        if not self._is_running:
            for run in (self._watch_namespace_key, self._watch_log_keys):
                self._start(
                    partial(self._failures.keep_running, "the watch of stored settings", run)
                )
            self._is_running = True
        self._update_value(
            self._namespace_value, self._bind_key, await self._metadata.get(self._bind_key)
        )
        self._update_value(followed_log.log_value, key, await self._metadata.get(key))
        followed_log.options = effective_options(
            options, explicit_names, self._namespace_value.stored, followed_log.log_value.stored
        )
        return followed_log

    async def codec(self, log_id: int, options: LogOptions, explicit_names: Collection[str]) -> str:
        """Return the present option ``codec`` of a log. Unreadable settings are ignored.

        Raises:
            InvalidRequest: An explicit option contradicts the stored value.
        """
        namespace_value, log_value = _StoredValue(StoredSettings()), _StoredValue(StoredSettings())
        for stored_value, key in ((namespace_value, self._bind_key), (log_value, conf_key(log_id))):
            self._update_value(stored_value, key, await self._metadata.get(key), is_current=True)
        return effective_options(
            options, explicit_names, namespace_value.stored, log_value.stored
        ).codec

    async def _watch_namespace_key(self) -> None:
        await self._watch_range(self._bind_key, self._bind_key + b"\x00")

    async def _watch_log_keys(self) -> None:
        await self._watch_range(CONF_PREFIX, prefix_end(CONF_PREFIX))

    async def _watch_range(self, start: bytes, end: bytes) -> None:
        async def load() -> int:
            revision = (await self._metadata.range(start, end, limit=1)).revision
            for key in self._keys(start, end):
                self._handle_change(key, await self._metadata.get(key), is_current=True)
            return revision

        def apply(batch: WatchBatch) -> None:
            for event in batch.events:
                self._handle_change(event.item.key, event.item)  # of a deletion, the item is empty

        await trio.sleep(START_DELAY_S)
        await follow_range(
            self._metadata,
            start,
            end,
            load=load,
            apply=apply,
            on_error=lambda error: log.debug("stored settings cannot be read: %s", error),
            retry_s=RETRY_S,
        )

    def _keys(self, start: bytes, end: bytes) -> list[bytes]:
        return [key for key in (self._bind_key, *self._open_logs) if start <= key < end]

    def _handle_change(
        self, key: bytes, item: KeyValue | None, *, is_current: bool = False
    ) -> None:
        """Apply a changed or newly read value to the open logs that it concerns."""
        if key == self._bind_key:
            self._update_value(self._namespace_value, key, item, is_current=is_current)
            for logs in self._open_logs.values():
                for followed_log in logs:
                    with self._failures.attempt(_describe(followed_log)):
                        self._recompute_options(followed_log)
            return
        for followed_log in (logs := self._open_logs.get(key, weakref.WeakSet())):
            with self._failures.attempt(_describe(followed_log)):
                self._update_value(followed_log.log_value, key, item, is_current=is_current)
                self._recompute_options(followed_log)
        if not logs:
            self._open_logs.pop(key, None)

    def _update_value(
        self,
        stored_value: _StoredValue,
        key: bytes,
        item: KeyValue | None,
        *,
        is_current: bool = False,
    ) -> None:
        """Store a value, unless a newer one was received already.

        A value that is certainly current is always stored.
        """
        revision = 0 if item is None else item.mod_revision
        if not is_current and revision <= stored_value.revision:
            return
        stored_value.revision = revision
        if item is None or not item.value:
            stored_value.stored = StoredSettings()
            return
        try:
            stored_value.stored = StoredSettings.decode(item.value, item.version)
        except (CorruptData, UnsupportedFormat) as error:
            self.unreadable += 1
            log.warning("%r: %s; the last readable value stays in effect", key, error)
            return
        if stored_value.stored.out_of_range and self._logged_revisions.get(key) != revision:
            if len(self._logged_revisions) >= SWEEP_KEYS_MIN:
                self._logged_revisions.clear()
            self._logged_revisions[key] = revision
            log.warning("%r: %s", key, "; ".join(stored_value.stored.out_of_range))

    def _recompute_options(self, followed_log: FollowedLog) -> None:
        try:
            options = effective_options(
                followed_log.base_options,
                followed_log.explicit_names,
                self._namespace_value.stored,
                followed_log.log_value.stored,
            )
        except InvalidRequest as error:
            log.warning(
                "log %016x: %s; its open writer keeps its options", followed_log.log_id, error
            )
            return
        if options != followed_log.options:
            followed_log.update(options)
            log.info("log %016x has other settings", followed_log.log_id)


def _describe(followed: FollowedLog) -> str:
    return f"the settings of log {followed.log_id:016x}"
