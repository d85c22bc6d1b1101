"""All logs that this proxy writes: opened on request, closed when idle, and handed over to other proxies.

A proxy has a log while it holds the log's lock and epoch, as any writer does (G4, H12). A proxy that others
incorrectly consider failed can therefore write nothing more. A proxy that receives a request for a log
without an owner opens it.

A log of another proxy stays with that proxy, unless its address refuses connections or another process
answers there. Then the log is taken over at once, at most once per `EARLY_TAKEOVER_INTERVAL_S` for each
log. If the other proxy is silent, its lease must end first.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass, field

import trio

from ...log.interfaces.log_names import check_namespace_path
from ...log.log import open_writer_after_dead_holder
from ...log.model.lock_record import lock_holder
from ...log.namespace import Namespace
from ...log.write.log_writer import LogWriter
from ...runtime.interfaces.errors import (
    REFUSED,
    AlreadyClosed,
    ConnectionLost,
    DistributedLogError,
    LogNotFound,
    LogRecreated,
    Moved,
    OwnershipAcquireFailed,
    ProtocolError,
    TooBusy,
    WriterFenced,
    WrongPeer,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..declarations.events import LOST
from ..declarations.options import ProxyOptions
from ..membership.proxy_members import ProxyMembers
from ..membership.proxy_registration import ProxyRegistration
from ..membership.rendezvous_hash import rank_proxies
from ..protocol.proxy_messages import ProduceOpen
from ..session.fair_queue import is_fair
from ..session.namespace_cache import Namespaces
from .hosted_log import HostedLog
from .producer_stream import client_error
from .write_proxy_peers import WriteProxyPeers

EARLY_TAKEOVER_INTERVAL_S = 10.0
SWEEP_INTERVAL_S = 5.0
POLL_INTERVAL_S = 0.05
"""The interval between checks of a lock that has just been released."""
PARALLEL_RELEASES_MAX = 8
"""Logs that a draining proxy hands over concurrently, closed here and opened elsewhere. With more, each log
pauses for longer."""
WINDOW_MIN = 32 * 1024
"""The smallest window of a stream, which one frame of any size may exceed.

The window limits the bytes that are sent between two acknowledgements.
"""
SMALLEST_WINDOWS_FRACTION = 0.75
"""The part of all window bytes that is reserved for windows of the smallest size."""
CONNECTION_SHARE_FACTOR = 3
"""A connection uses at most this many times what it leaves free: three quarters of all while it is alone."""
HELD_BYTES_FACTOR = 1.5
"""The limit of buffered frames relative to all windows, because one large record may exceed its window."""
HANDOVER_WAIT_S = 1.0
"""How long a draining proxy waits until the next proxy has opened a log with producers.

A proxy closes logs faster than other proxies open them. Without the wait, the last log in the queue would
pause for the time of all.
"""
HANDOVER_TIME_FRACTION = 0.6
"""The part of the drain time in which these waits are allowed."""
PROBE_TIMEOUT_S = 0.5
"""If an owner does not answer within this time, its lease must end before a takeover."""

log = get_logger("distributedlog.proxy")

Key = tuple[str, str]
"""The path of a namespace, and the name of a log."""


@dataclass(slots=True)
class LogManagerStats:
    """Counters since the start, and present values."""

    frames: int = 0
    records: int = 0
    bytes: int = 0
    frames_refused: int = 0
    logs_taken: int = 0
    logs_taken_over: int = 0
    logs_given_up: int = 0
    logs_lost: int = 0
    held_bytes: int = 0
    windows_bytes: int = 0
    streams: int = 0


@dataclass(slots=True)
class _PendingLogOpening:
    """The pending opening of a log. Concurrent requests for the log wait for it."""

    creates_log: bool
    """Whether a missing log is created."""
    finished: trio.Event = field(default_factory=trio.Event)
    hosted_log: HostedLog | None = None
    error: DistributedLogError | None = None


class LogManager:
    """Opens, closes and hands over the logs of a write proxy. `run` must be running."""

    def __init__(
        self,
        proxy_id: str,
        namespaces: Namespaces,
        members: ProxyMembers,
        options: ProxyOptions,
        peers: WriteProxyPeers,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self.id = proxy_id
        self.options = options
        self.stats = LogManagerStats()
        self._held_bytes_max = int(HELD_BYTES_FACTOR * options.windows_bytes)
        self.accepting = True
        """Whether the proxy opens additional logs."""
        self.logs: dict[Key, HostedLog] = {}
        self._namespaces = namespaces
        self._members = members
        self._peers = peers
        self._pending_openings: dict[Key, _PendingLogOpening] = {}
        self._releasing: dict[Key, trio.Event] = {}
        """Logs that are being released, with an event for the end of the release."""
        self._early_takeovers: dict[Key, float] = {}
        """The time of the last early takeover of each log."""
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Close idle logs until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await self._failures.keep_running("the sweep of written logs", self._sweep)

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP_INTERVAL_S)
            now = trio.current_time()
            self._early_takeovers = {
                log_key: taken_at
                for log_key, taken_at in self._early_takeovers.items()
                if now - taken_at < EARLY_TAKEOVER_INTERVAL_S
            }
            for key, hosted_log in list(self.logs.items()):
                if hosted_log.is_releasing:
                    continue
                with self._failures.attempt(f'the sweep of log "{key[1]}" of {key[0]}'):
                    if hosted_log.writer.end_error is not None:
                        self._drop_lost(key, hosted_log)
                    elif hosted_log.has_new_frames:
                        hosted_log.has_new_frames, hosted_log.used_at = False, now
                    elif now - hosted_log.used_at > self.options.idle_s:
                        self.nursery.start_soon(self._release_idle, key)

    async def _release_idle(self, key: Key) -> None:
        with self._failures.attempt(f'closing the idle log "{key[1]}" of {key[0]}'):
            await self.hand_off(key, "")

    @property
    def nursery(self) -> trio.Nursery:
        """The nursery of the tasks that open logs and serve inboxes."""
        assert self._nursery is not None, "`run` is running"
        return self._nursery

    def find_hosted(self, path: str, name: str) -> HostedLog | None:
        """Return a log that this proxy writes now, or None."""
        hosted_log = self.logs.get((path, name))
        if hosted_log is None or hosted_log.is_releasing:
            return None  # its writer ends during the release, which notifies the producers
        if hosted_log.writer.end_error is not None:
            self._drop_lost((path, name), hosted_log)
            return None
        if hosted_log.writer.sequenced_writer.log_name != name:
            self._rename((path, name), hosted_log)
            return None
        return hosted_log

    def _rename(self, key: Key, hosted_log: HostedLog) -> None:
        """Update the key of a log that was renamed after this proxy's lock had expired.

        The old name may refer to another log.
        """
        current_key = (key[0], hosted_log.writer.sequenced_writer.log_name)
        if current_key in self.logs:  # it was opened again under this name
            hosted_log.writer.send_queue.fail(
                WriterFenced(f'log "{key[1]}" is now named "{current_key[1]}"')
            )
            self._drop_lost(key, hosted_log)
            return
        del self.logs[key]
        hosted_log.name = current_key[1]
        self.logs[current_key] = hosted_log

    def new_window_bytes(self, connection_bytes: int) -> int:
        """Return the window of a new stream in bytes, a part of the remaining bytes.

        Args:
            connection_bytes: The windows of all streams of the connection.

        Raises:
            TooBusy: The connection or the proxy has too many windows.
        """
        options = self.options
        free_bytes = options.windows_bytes - self.stats.windows_bytes
        if not is_fair(
            connection_bytes, WINDOW_MIN, free_bytes, share_factor=CONNECTION_SHARE_FACTOR
        ):
            raise TooBusy(
                f"{self.stats.streams} streams are open on this proxy, with windows of "
                f"{connection_bytes} bytes on "
                "this connection"
            )
        spare_bytes = free_bytes - int(SMALLEST_WINDOWS_FRACTION * options.windows_bytes)
        return max(WINDOW_MIN, min(options.window_bytes, spare_bytes // 16))

    def may_buffer(self, connection_bytes: int, added_bytes: int) -> bool:
        """Whether a connection that buffers ``connection_bytes`` here may buffer ``added_bytes`` more."""
        free_bytes = self._held_bytes_max - self.stats.held_bytes
        return is_fair(
            connection_bytes, added_bytes, free_bytes, share_factor=CONNECTION_SHARE_FACTOR
        )

    def check_connection_share(
        self, path: str, connection_logs: Collection[HostedLog], opening_count: int
    ) -> None:
        """Check that a connection may have one more log opened at this proxy.

        Args:
            path: Path of the namespace of the log.
            connection_logs: The logs that the connection has open.
            opening_count: The number of logs that are being opened for it, including this one.

        Raises:
            TooBusy: The connection uses too many logs or namespaces.
        """
        used_count = sum(
            1 for hosted_log in self.logs.values() if hosted_log.streams or hosted_log.is_releasing
        )
        free_count = (
            self.options.logs_max - used_count - max(0, len(self._pending_openings) - opening_count)
        )
        if not is_fair(
            len(connection_logs) + opening_count - 1,
            1,
            free_count - opening_count + 1,
            share_factor=CONNECTION_SHARE_FACTOR,
        ):
            raise TooBusy(
                f"{used_count} logs are written on this proxy, {len(connection_logs)} by this connection"
            )
        paths, namespaces = {hosted_log.path for hosted_log in connection_logs}, self._namespaces
        if path in paths or namespaces.is_used(path):
            return
        if not is_fair(len(paths), 1, namespaces.free_places, share_factor=CONNECTION_SHARE_FACTOR):
            raise TooBusy(f"{len(paths)} namespaces of this proxy are in use by this connection")

    def info(self) -> dict[str, object]:
        """Return the values for `Op.INFO`."""
        return {**asdict(self.stats), "logs": len(self.logs), "accepting": self.accepting}

    # --- taking -----------------------------------------------------------------------------------

    async def find_or_open(self, request: ProduceOpen) -> HostedLog:
        """Return the log for a new stream. Open it if necessary.

        Raises:
            Moved: Another proxy has the log, or this one accepts no more logs.
            OwnershipAcquireFailed: A direct writer has the log.
            LogRecreated: The log has another incarnation than requested.
            TooBusy: The proxy has too many logs.
            DistributedLogError: The writer could not be opened.
        """
        key = (check_namespace_path(request.path), request.log)
        deadline = trio.current_time() + self.options.open_wait_s
        while True:
            released = self._releasing.get(key)
            if released is not None:
                with trio.move_on_at(deadline):
                    await released.wait()
            hosted_log = self.find_hosted(*key)
            if hosted_log is None:
                hosted_log = await self._wait_opened(key, request, deadline)
            if not hosted_log.is_releasing and hosted_log.writer.end_error is None:
                if request.incarnation not in ("", hosted_log.incarnation):
                    raise LogRecreated(
                        f'log "{request.log}" was deleted and created again: expected incarnation '
                        f"{request.incarnation}, found {hosted_log.incarnation}"
                    )
                return hosted_log
            if trio.current_time() >= deadline:
                raise Moved(f'log "{request.log}" is moving to another proxy')
            await trio.sleep(POLL_INTERVAL_S)

    async def _wait_opened(self, key: Key, request: ProduceOpen, deadline: float) -> HostedLog:
        opening = self._pending_openings.get(key)
        if opening is None:
            opening = self._pending_openings[key] = _PendingLogOpening(request.create)
            self.nursery.start_soon(self._open, key, request, deadline, opening)
        await opening.finished.wait()
        if opening.hosted_log is None:
            assert opening.error is not None, "an opening ends with a log or an error"
            if (
                request.create
                and not opening.creates_log
                and isinstance(opening.error, LogNotFound)
            ):
                return await self._wait_opened(
                    key, request, deadline
                )  # the first request may not allow creation
            raise opening.error.again()
        return opening.hosted_log

    async def _open(
        self, key: Key, request: ProduceOpen, deadline: float, opening: _PendingLogOpening
    ) -> None:
        try:
            if not self.accepting:
                raise Moved("this proxy accepts no more logs")
            await self._release_idlest()
            namespace = await self._namespaces.acquire(key[0])
            try:
                writer = await self._acquire(namespace, key, request, deadline)
            except BaseException:
                self._namespaces.release(key[0])
                raise
            opening.hosted_log = self.logs[key] = HostedLog(*key, writer)
            self.stats.logs_taken += 1
        except DistributedLogError as error:
            fenced = error.fatal_to_writer or isinstance(error, AlreadyClosed)
            opening.error = client_error(error) if fenced else error
        except Exception as error:
            log.exception("opening log %s", key)
            opening.error = TooBusy(f"the log could not be opened here: {type(error).__name__}")
        finally:
            if opening.hosted_log is None and opening.error is None:
                opening.error = Moved("this proxy is stopping")
            del self._pending_openings[key]
            opening.finished.set()

    async def _acquire(
        self, namespace: Namespace, key: Key, request: ProduceOpen, deadline: float
    ) -> LogWriter:
        log_handle = namespace.open_log(
            request.log,
            config={"create_if_missing": request.create},
            incarnation=request.incarnation or None,
        )
        dead_writer_id, wait_s = "", 0.0
        while True:
            try:
                writer = await open_writer_after_dead_holder(log_handle, dead_writer_id, wait_s)
                self.stats.logs_taken_over += bool(dead_writer_id)
                return writer
            except OwnershipAcquireFailed as error:
                remaining_s = deadline - trio.current_time()
                if remaining_s <= 0:
                    raise
                lock_error = error
            holder = await lock_holder(
                namespace.metadata, await namespace.resolve_name(request.log)
            )
            if holder is None:
                continue
            dead_writer_id, wait_s = "", remaining_s
            if holder.proxy and holder.proxy != self.id:
                holder_proxy = self._members.write.get(holder.proxy)
                if holder_proxy is None:
                    continue  # its registration ended; its lock ends soon
                if request.suspect_proxy_id != holder.proxy:
                    raise Moved(
                        f'log "{request.log}" is written by {holder_proxy.label}', holder.proxy
                    )
                if await self._is_certainly_gone(holder_proxy) and self._may_take_over_early(key):
                    dead_writer_id = holder.writer_id
            elif not holder.proxy:
                raise lock_error  # a direct writer, which is live

    async def _is_certainly_gone(self, proxy: ProxyRegistration) -> bool:
        """Whether the registered process has certainly ended.

        Raises:
            Moved: The process is running.
        """
        with trio.move_on_after(PROBE_TIMEOUT_S):
            try:
                await self._peers.probe(proxy)
            except ConnectionLost as error:
                # A proxy without free connection slots, the network, or a local limit can cause other
                # errors.
                return error.detail == REFUSED
            except (WrongPeer, ProtocolError):
                return True
            raise Moved(f"{proxy.label} is running and has the log", proxy.id)
        return False

    def _may_take_over_early(self, key: Key) -> bool:
        now = trio.current_time()
        if (
            now - self._early_takeovers.get(key, -EARLY_TAKEOVER_INTERVAL_S)
            < EARLY_TAKEOVER_INTERVAL_S
        ):
            return False
        self._early_takeovers[key] = now
        return True

    async def _release_idlest(self) -> None:
        """Release the log that was idle longest if the limit of logs is exceeded.

        Raises:
            TooBusy: All logs are in use.
        """
        if len(self.logs) + len(self._pending_openings) <= self.options.logs_max:
            return
        idlest = min(
            (
                hosted_log
                for hosted_log in self.logs.values()
                if not hosted_log.streams and not hosted_log.is_releasing
            ),
            key=lambda hosted_log: (hosted_log.has_new_frames, hosted_log.used_at),
            default=None,
        )
        if idlest is None:
            raise TooBusy(f"{len(self.logs)} logs are written on this proxy")
        await self.hand_off((idlest.path, idlest.name), "")

    # --- giving -----------------------------------------------------------------------------------

    async def hand_off(self, key: Key, next_proxy_id: str) -> bool:
        """Acknowledge accepted frames, close the log, release its lock, then notify its producers.

        The outcome of frames that are not durable within ``settle_s`` is unknown to their producers. The
        next owner recovers the log.

        Args:
            key: The log.
            next_proxy_id: The proxy that should have the log next, or "".

        Returns:
            False if this proxy does not write the log.
        """
        hosted_log = self.find_hosted(*key)
        if hosted_log is None:
            return False
        released = self._releasing[key] = trio.Event()
        try:
            hosted_log.stop_accepting()
            with trio.move_on_after(self.options.settle_s):
                await hosted_log.writer.aclose()
        except DistributedLogError as error:
            log.warning(
                'log "%s" was not closed and must be recovered by its next owner: %s',
                hosted_log.name,
                error,
            )
        finally:
            with trio.CancelScope(shield=True):
                await hosted_log.writer.abort()
            self.stats.logs_given_up += 1
            self._remove_log(key, hosted_log)
            hosted_log.notify_released(next_proxy_id)
            del self._releasing[key]
            released.set()
        return True

    async def release_unused(self, path: str, name: str) -> None:
        """Release a log that no producer has open here.

        Raises:
            OwnershipAcquireFailed: A producer has the log open.
        """
        hosted_log = self.find_hosted(path, name)
        if hosted_log is None:
            return
        if hosted_log.streams:
            raise OwnershipAcquireFailed(
                f'log "{name}" has {len(hosted_log.streams)} producers here', f"proxy {self.id}"
            )
        await self.hand_off((path, name), "")

    async def drain(self) -> None:
        """Release all logs and accept no more. Their producers find other proxies."""
        self.accepting = False
        limiter = trio.CapacityLimiter(PARALLEL_RELEASES_MAX)
        handover_deadline = trio.current_time() + HANDOVER_TIME_FRACTION * self.options.drain_s

        async def leave(key: Key) -> None:
            async with limiter:
                hosted_log = self.find_hosted(*key)
                has_streams = hosted_log is not None and bool(hosted_log.streams)
                if await self.hand_off(key, "") and hosted_log is not None and has_streams:
                    await self._wait_taken_over(
                        hosted_log, min(handover_deadline, trio.current_time() + HANDOVER_WAIT_S)
                    )

        while (
            self.logs or self._pending_openings
        ):  # pending openings complete first, and are released then
            async with trio.open_nursery() as nursery:
                for key in list(self.logs):
                    nursery.start_soon(leave, key)
                await trio.sleep(POLL_INTERVAL_S)

    async def _wait_taken_over(self, hosted_log: HostedLog, deadline: float) -> None:
        """Wait until the next proxy has opened a released log, or until the deadline.

        It is the first proxy in the log's order, which the producers try, too.
        """
        other_proxies = {
            proxy.id: proxy for proxy in self._members.write.values() if proxy.accepting
        }
        other_proxies.pop(self.id, None)
        ranked_ids = rank_proxies(hosted_log.path, hosted_log.name, other_proxies)
        if not ranked_ids:
            return
        next_proxy = other_proxies[ranked_ids[0]]
        with trio.move_on_at(deadline):
            try:
                await self._peers.ask_to_open(
                    next_proxy, hosted_log.path, hosted_log.name, hosted_log.incarnation
                )
            except Moved:
                pass  # another proxy was faster
            except DistributedLogError as error:
                log.info(
                    'log "%s" was not opened by %s (%s)', hosted_log.name, next_proxy.label, error
                )

    def _drop_lost(self, key: Key, hosted_log: HostedLog) -> None:
        """Remove a log whose writer has failed."""
        self.stats.logs_lost += 1
        self._remove_log(key, hosted_log)
        writer_error = hosted_log.writer.end_error
        assert writer_error is not None, "the writer has ended"
        path, name = key
        text = 'log "%s" is lost, because its writer failed with %s: %s'
        kind = type(writer_error).__name__
        LOST.emit(
            log,
            text,
            name,
            kind,
            writer_error,
            log_name=name,
            namespace=path,
            why=f"{kind}: {writer_error}",
        )
        hosted_log.fail(writer_error)

    def _remove_log(self, key: Key, hosted_log: HostedLog) -> None:
        if self.logs.get(key) is hosted_log:  # otherwise it was opened again during the release
            del self.logs[key]
        self._namespaces.release(key[0])
