"""`Namespace`: create, find, list, delete and open logs by name."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal
from weakref import WeakSet

import trio

from ..metadata.model.interface import Metadata, prefix_end
from ..metadata.model.transaction import Compare, Put, Transaction
from ..runtime.declarations.options import check_seconds, check_whole, quoted, with_overrides
from ..runtime.interfaces.errors import (
    AlreadyClosed,
    InvalidRequest,
    LogExists,
    LogNotFound,
)
from ..runtime.schedule.call_scheduler import CallScheduler, PeriodicChecks
from ..runtime.schedule.work_failures import WorkFailures
from .changes.log_rename import rename
from .declarations.options import LogOptions
from .interfaces.log_names import check_log_name, check_new_log_name
from .interfaces.open_call import Opening
from .interfaces.segment_store import SegmentEntryStore
from .limits.memory_budget import PROCESS_BYTES_MAX, MemoryBudget
from .limits.recovery_semaphore import RecoverySemaphore
from .limits.roll_semaphore import RollSemaphore
from .log import Log
from .model.log_keys import (
    LOG_ID_BITS,
    decode_log_id,
    encode_log_id,
    incarnation_text,
    name_key,
    state_key,
)
from .model.log_state import AUTO, LogState
from .model.position import Position
from .model.stored_settings import (
    QUORUMS,
    STORED_ONLY,
    StoredSettings,
    bind_key,
    conf_key,
    reject_stored_only,
)
from .model.txid_policy import stored_policy
from .read.multi_reader import MultiReader, MultiReadOptions, check_multi_read, open_multi_reader
from .segments.log_deletion import delete_log
from .services.lease_session import LeaseSessions
from .services.log_context import LogContext
from .services.log_metrics import LogMeters, NamespaceMetrics
from .services.log_watch import LogWatch, read_name, watch_logs
from .services.position_commits import PositionCommits
from .services.settings_update import check_formats, read_settings, update_settings
from .services.settings_watch import SettingsWatch
from .write.segment_roller import IDLE_CHECK_INTERVAL_S, ROLL_CHECK_INTERVAL_S

LOG_ID_ATTEMPTS = 5
MULTI_READ_BYTES = 64 * 1024 * 1024
"""Memory for all logs that are read as one stream, as much as for sixteen separate readers."""
NO_SETTINGS = StoredSettings()
LOGS_PER_PAGE_MAX = 10_000


@dataclass(frozen=True, slots=True)
class LogPage:
    """A page of the logs of a namespace, in the order of their names."""

    names: tuple[str, ...]
    incarnations: tuple[str, ...]
    """The incarnation of each log, 16 hex digits."""
    next: str | None
    """The argument ``after`` for the next page, or None if this is the last page."""


class Namespace:
    """The logs under one path. One object can serve any number of tasks of a process.

    `open_namespace` creates it.

    Args:
        nursery: Runs the tasks of its writers and readers. It ends when the namespace is no longer used, and
            before the metadata and ledger clients end.
        owner: The name of this process in locks and in errors.
    """

    def __init__(
        self,
        path: str,
        *,
        metadata: Metadata,
        ledgers: SegmentEntryStore,
        nursery: trio.Nursery,
        random: Random,
        wall_ms: Callable[[], int],
        owner: str,
        options: LogOptions | None = None,
        quorums: tuple[int, int, int] = (3, 3, 2),
        process_bytes_max: int = PROCESS_BYTES_MAX,
        proxy_id: str = "",
        failures: WorkFailures | None = None,
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.ledgers = ledgers
        self.wall_ms = wall_ms
        options = options if options is not None else LogOptions()
        failures = failures or WorkFailures()
        self.context = LogContext(
            metadata,
            ledgers,
            LeaseSessions(metadata, self.start, failures),
            RecoverySemaphore(),
            self.start,
            wall_ms,
            random,
            SettingsWatch(metadata, path, self.start, failures),
            path,
            owner,
            options,
            CallScheduler(ledgers.defer_sends, ledgers.send_deferred),
            PeriodicChecks(ROLL_CHECK_INTERVAL_S),
            PositionCommits(metadata, wall_ms, self.start),
            PeriodicChecks(IDLE_CHECK_INTERVAL_S),
            RollSemaphore(options.rolls_at_once),
            MemoryBudget(process_bytes_max),
            LogMeters(),
            WeakSet(),
            proxy_id,
        )
        self._metrics = NamespaceMetrics(
            path, self.context.meters, self.context.memory_budget, wall_ms
        )
        keep_running = failures.keep_running
        nursery.start_soon(
            keep_running, "the call scheduler of log writers", self.context.call_scheduler.run
        )
        nursery.start_soon(
            keep_running, "the segment checks of log writers", self.context.segment_checks.run
        )
        nursery.start_soon(keep_running, "the checks of idle writers", self.context.idle_checks.run)
        self._nursery = nursery
        self._random = random
        self._quorums = quorums
        self._closed = False

    @property
    def metrics(self) -> NamespaceMetrics:
        """The metrics of this namespace object. Its ``snapshot()`` may be called from any thread."""
        return self._metrics

    async def create_log(
        self,
        name: str,
        *,
        durability: Literal["standard", "all"] = "standard",
        config: Mapping[str, Any] | None = None,
        metadata: Mapping[str, bytes] | None = None,
        txids: Literal["auto", "strict", "count", "ms", "bytes", "given"] = "auto",
    ) -> None:
        """Create an empty log, in one transaction.

        Args:
            name: A path-like name such as ``a/b``, in the normal form NFKC.
            durability: "all" acknowledges a record only when every replica has it. Then no record is lost as
                long as one replica is left (G3), but writes wait while a replica is unavailable.
            config: Settings that are stored with the log, as by `Log.set`. Quorums need all three
                options, as in ``{"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}``.
            metadata: Metadata of the user, at most 8 KiB.
            txids: The transaction ID policy, which cannot be changed later. A txid that a record has is
                stored unchanged, and an omitted one is assigned. "auto" and "strict" assign the greater of
                the last txid + 1 and the time in ms. "count" assigns the last txid + 1. "ms" assigns the time
                in ms, but never less than the last txid. "strict" (older clients use "given") refuses a txid
                below the last one. "bytes" creates a byte stream, whose txids are offsets.

        Raises: LogExists, InvalidLogName, InvalidRequest, UpgradeNotFinalized, QuorumUnreachable,
        OutcomeUnknown, AlreadyClosed.
        """
        if durability not in ("standard", "all"):
            raise InvalidRequest(
                f'durability must be "standard" or "all", not {quoted(durability)}'
            )
        stored = StoredSettings().with_changes(config or {}, metadata or {})
        if durability == "all" and stored.quorums is not None:
            raise InvalidRequest('use either durability="all" or quorums in config, not both')
        self._check_open()
        await check_formats(self.metadata, stored.settings)
        await self._create(name, durability, stored, stored_policy(txids))

    async def rename_log(self, old: str, new: str) -> None:
        """Rename a log, in one transaction.

        The log keeps its records, positions and incarnation. Open readers continue. While a writer has the
        log's lock, the call raises `OwnershipAcquireFailed`.

        Raises: LogNotFound, LogExists, OwnershipAcquireFailed, InvalidLogName, InvalidRequest,
        QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        self._check_open()
        await rename(self.metadata, self.path, check_log_name(old), check_new_log_name(new))

    async def log_exists(self, name: str) -> bool:
        """Return whether a log of this name exists now.

        Raises: InvalidLogName, QuorumUnreachable, AlreadyClosed.
        """
        self._check_open()
        return await self.metadata.get(name_key(self.path, check_log_name(name))) is not None

    async def logs(self, prefix: str = "") -> AsyncIterator[str]:
        """Yield the names of all logs that begin with ``prefix``, in the order of their UTF-8 bytes.

        They are read in pages.

        Raises: QuorumUnreachable, AlreadyClosed.
        """
        after = ""
        while True:
            page = await self.log_page(prefix, after)
            for name in page.names:
                yield name
            if page.next is None:
                return
            after = page.next

    async def log_page(self, prefix: str = "", after: str = "", limit: int = 1000) -> LogPage:
        """Return a page of logs, in the order of their names.

        The page shows one moment. Names are ordered by their UTF-8 bytes. For the next page, use
        ``page.next`` as ``after``.

        Args:
            prefix: The start of the names.
            after: The last name of the previous page, or "".
            limit: 1 to 10,000.

        Raises: InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        self._check_open()
        check_whole("limit", limit, 1, LOGS_PER_PAGE_MAX)
        first = name_key(self.path, prefix)
        start, end = (
            max(first, name_key(self.path, after) + b"\x00" if after else first),
            prefix_end(first),
        )
        while start < end:
            page = await self.metadata.range(start, end, limit=limit)
            names_and_ids = [
                read for item in page.items if (read := read_name(self.path, item)) is not None
            ]
            names = tuple(name for name, _ in names_and_ids)
            has_more = page.more and names
            if has_more or not page.more:
                ids = tuple(incarnation_text(log_id) for _, log_id in names_and_ids)
                return LogPage(names, ids, names[-1] if has_more else None)
            start = page.items[-1].key + b"\x00"  # all keys of this page are corrupt
        return LogPage((), (), None)

    def watch_logs(self, prefix: str = "", *, keep_names: bool = True) -> Opening[LogWatch]:
        """Watch for created, renamed and deleted logs.

        Use the result with ``async with``, or ``await`` it and close it later. The watch first has the
        existing logs (`LogWatch.logs`), and then returns every change in order, without a gap.

        Args:
            prefix: Report only logs whose names begin with this prefix.
            keep_names: Keep the names in memory, about 300 bytes each. If False, the watch reports only
                changes from now on, and deletions without the incarnation. If the metadata quorum no longer
                has some changes, it reports one "relisted", after which the program should list the logs
                again.

        Raises: QuorumUnreachable, AlreadyClosed.
        """
        self._check_open()
        return Opening(lambda: self._open_watch(prefix, keep_names))

    def open_reader(
        self,
        *,
        logs: Sequence[str] | None = None,
        pattern: str | None = None,
        positions: Mapping[str, Position] | None = None,
        at: Literal["earliest", "latest"] = "earliest",
        to: Literal["end"] | None = None,
        order: Literal["arrival", "time"] = "arrival",
        time_wait_s: float = 1.0,
        bytes_max: int = MULTI_READ_BYTES,
    ) -> Opening[MultiReader]:
        """Read several logs as one stream.

        Use the result with ``async with``, or ``await`` it and close it later. An event that concerns one
        log, such as its deletion, is returned as an event and does not stop the others.

        Args:
            logs: The names of the logs.
            pattern: Instead of ``logs``: a glob pattern for whole names. Logs that are created later are
                included.
            positions: The start per log. Logs without one start at ``at``.
            at: The "earliest" available record, or after the "latest".
            to: "end" stops at the present end of each log. Not with ``pattern``, which also includes later
                logs.
            order: "arrival" alternates between the logs by bytes. "time" returns the oldest available entry
                next, and waits at most ``time_wait_s`` for a log without one. Later entries of that log are
                marked late.
            time_wait_s: Maximum time in seconds to wait for a log without an entry.
            bytes_max: Maximum size of data that is fetched in advance, for all logs together. Each log has an
                equal share, and at least one entry.

        Raises: InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        self._check_open()
        if (logs is None) == (pattern is None):
            raise InvalidRequest("name the logs with logs= or with pattern=, not both")
        if isinstance(logs, str):  # a text is also a sequence, of one-letter names
            raise InvalidRequest(
                f"logs must be a list of names, not {quoted(logs)}; or use pattern="
            )
        if at not in ("earliest", "latest") or to not in (None, "end"):
            raise InvalidRequest(
                f'at must be "earliest" or "latest", and to "end" or None, not {quoted(at)}, {quoted(to)}'
            )
        if order not in ("arrival", "time"):
            raise InvalidRequest(f'order must be "arrival" or "time", not {quoted(order)}')
        if pattern is not None and to is not None:
            raise InvalidRequest("with pattern= the reader also reads later logs and has no end")
        check_multi_read(pattern, positions, time_wait_s, bytes_max)
        names = None if logs is None else list(dict.fromkeys(map(check_log_name, logs)))
        options = MultiReadOptions(positions or {}, at, to == "end", order, time_wait_s, bytes_max)
        return Opening(
            lambda: open_multi_reader(
                self.context, self.resolve_name, self._open_full_watch, names, pattern, options
            )
        )

    async def delete_log(self, name: str, *, wait_s: float = 0.0) -> None:
        """Delete a log with all its records.

        While a writer has the log's lock, the call waits up to ``wait_s`` seconds, and then raises
        `OwnershipAcquireFailed`. If a deletion was interrupted, the same call completes it. The segments of a
        failed writer are recovered first, which takes some seconds, so that the end of the log is stored for
        its readers.

        Raises: LogNotFound, OwnershipAcquireFailed, RecoveryIncomplete, InvalidLogName, QuorumUnreachable,
        OutcomeUnknown, InvalidRequest, AlreadyClosed.
        """
        check_seconds("wait_s", wait_s)
        log_id = await self.resolve_name(name)
        await delete_log(self.context, log_id, name, self.path, wait_s=wait_s)

    async def settings(self) -> StoredSettings:
        """Return the stored settings of the namespace, which apply to all logs without settings of their own.

        Raises: CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        self._check_open()
        return await read_settings(self.metadata, bind_key(self.path))

    async def set(
        self,
        settings: Mapping[str, Any],
        *,
        metadata: Mapping[str, bytes | None] | None = None,
    ) -> StoredSettings:
        """Set options for all logs of the namespace.

        Settings of a log (`Log.set`) take precedence. Quorums are the default of logs that are created
        afterwards, by clients of this version or newer; existing logs keep theirs.

        Args:
            settings: Values by option. None unsets an option.
            metadata: Metadata of the user. None removes a name.

        Returns:
            All stored settings and metadata.

        Raises: InvalidRequest, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        self._check_open()
        return await update_settings(self.metadata, bind_key(self.path), settings, metadata or {})

    def open_log(
        self,
        name: str,
        *,
        config: Mapping[str, Any] | None = None,
        incarnation: str | None = None,
    ) -> Log:
        """Return a handle to a log, without checking that the log exists.

        Args:
            name: The name of the log.
            config: Options that take precedence over those of the namespace, for this handle.
            incarnation: As `LogSnapshot.incarnation`. Calls raise `LogRecreated` if that log was deleted and
                another one has its name.

        Raises: InvalidLogName, InvalidRequest, AlreadyClosed.
        """
        self._check_open()
        reject_stored_only(config, (*STORED_ONLY, *QUORUMS))
        return Log(
            replace(self.context, options=with_overrides(self.context.options, config)),
            check_log_name(name),
            resolve_name=self.resolve_name,
            create=self.create_or_find,
            incarnation=incarnation,
            explicit_options=tuple(config or ()),
        )

    # --- for the rest of the part -----------------------------------------------------------------

    async def resolve_name(self, name: str) -> int:
        """Return the ID of the log of this name.

        Raises:
            LogNotFound: There is none.
        """
        self._check_open()
        stored = await self.metadata.get(name_key(self.path, check_log_name(name)))
        if stored is None:
            raise LogNotFound(f'log "{name}" does not exist in namespace {self.path}', name)
        return decode_log_id(stored.value)

    async def _open_watch(self, prefix: str, keep_names: bool) -> LogWatch:
        watch = await watch_logs(self.metadata, self.path, prefix, keep_names=keep_names)
        self.start(watch.run)
        return watch

    async def _open_full_watch(self, prefix: str) -> LogWatch:
        return await self._open_watch(prefix, keep_names=True)

    async def create_or_find(self, name: str) -> int:
        """Return the ID of the log of this name, which is created if it does not exist."""
        try:
            return await self._create(name, "standard", StoredSettings(), AUTO)
        except LogExists:
            return await self.resolve_name(name)

    def start(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task of a writer or reader."""
        self._check_open()
        self._nursery.start_soon(run)

    def close(self) -> None:
        """Refuse further use. The creator of this object ends its tasks."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed(f"namespace {self.path} is closed")

    async def _create(self, name: str, durability: str, stored: StoredSettings, policy: str) -> int:
        self._check_open()
        name = check_new_log_name(name)
        quorums = stored.quorums or (await self.settings()).quorums
        if durability == "all":
            ensemble, write_quorum, _ = quorums or self._quorums
            quorums = (ensemble, write_quorum, write_quorum)
        for _ in range(LOG_ID_ATTEMPTS):
            log_id = self._random.getrandbits(LOG_ID_BITS)
            state = LogState(log_id, name, self.wall_ms())
            state = replace(state, quorums=quorums, txid_rule=policy, txid_policy=policy)
            log_name_key, log_state_key = name_key(self.path, name), state_key(log_id)
            reply = await self.metadata.transact(
                Transaction(
                    (Compare.version(log_name_key, 0), Compare.version(log_state_key, 0)),
                    (
                        Put(log_name_key, encode_log_id(log_id)),
                        Put(log_state_key, state.encode()),
                        *(
                            [Put(conf_key(log_id), stored.encode())]
                            if stored != NO_SETTINGS
                            else []
                        ),
                    ),
                )
            )
            if reply.succeeded:
                return log_id
            if reply.current[0] is not None:
                raise LogExists(f'log "{name}" exists already in namespace {self.path}')
        raise LogExists(
            f"{LOG_ID_ATTEMPTS} random log IDs were already in use: the random generator is broken"
        )
