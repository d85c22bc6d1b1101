"""All logs that this proxy writes: taken, closed when nobody writes them, given to others.

To have a log is to hold its lock and its epoch, as any writer does (G4, H12): a proxy that is taken for dead
and is not writes nothing more, whoever is wrong. Whoever is asked for a log that nobody has takes it. A log
that another proxy has is that one's, unless its address refuses connections or answers as somebody else: then
it is taken over at once, at most once in `HASTE_S` a log; a silent one is waited for by its lease.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass, field

import trio

from ...log.interfaces.log_names import check_namespace_path
from ...log.log import take_from
from ...log.model.lock_record import holder_of
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
from ..membership.rendezvous_hash import order
from ..protocol.proxy_messages import ProduceOpen
from ..session.fair_queue import fits
from ..session.namespace_cache import Namespaces
from .hosted_log import HostedLog
from .producer_stream import as_told
from .write_proxy_peers import WriteProxyPeers

HASTE_S = 10.0
SWEEP_S = 5.0
LOOK_S = 0.05
"""Between two looks at a lock that has just been given back."""
LEAVES_AT_ONCE = 8
"""Logs that are given up at a time by who drains, each closed here and taken elsewhere meanwhile: the more
they are, the longer each of them pauses."""
WINDOW_MIN = 32 * 1024
"""Of a stream; a frame of any size goes beyond it, so it bounds what it has between two answers."""
FOR_SMALLEST = 0.75
"""Of the sum of all windows: what larger ones leave to those of the smallest size."""
CONNECTION_PART = 3
"""One connection has at most so many times what it leaves: three quarters of all, while it is alone."""
HELD_SHARE = 1.5
"""Of the sum of all windows: what a proxy may hold in frames, for one large record goes beyond its window."""
TAKEN_S = 1.0
"""Who drains has the next proxy take a log that has producers, for so long, before it gives a further one up:
it closes logs faster than they are opened, and whoever is last in that queue waits for all."""
TAKEN_SHARE = 0.6
"""Of the time for a whole drain: after that nobody is waited for."""
KNOCK_S = 0.5
"""An owner that does not answer within this is waited for, by its lease."""

log = get_logger("distributedlog.proxy")

Key = tuple[str, str]
"""A namespace's path, a log's name."""


@dataclass(slots=True)
class OwnerStats:
    """What was counted since the start, and what there is now."""

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
class _Opening:
    """A log that is being taken; whoever asks meanwhile waits for the same."""

    creates: bool
    """Is it made, if it is missing?"""
    done: trio.Event = field(default_factory=trio.Event)
    found: HostedLog | None = None
    error: DistributedLogError | None = None


class LogManager:
    """See the module. `run` serves it."""

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
        self.stats = OwnerStats()
        self._held_bytes_max = int(HELD_SHARE * options.windows_bytes)
        self.accepting = True
        """Does it take logs that it has not?"""
        self.logs: dict[Key, HostedLog] = {}
        self._namespaces = namespaces
        self._members = members
        self._peers = peers
        self._opening: dict[Key, _Opening] = {}
        self._left: dict[Key, trio.Event] = {}
        """Logs that are being given up: until then."""
        self._hasty: dict[Key, float] = {}
        """When one was taken over early."""
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Close what nobody writes, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await self._failures.keep("the sweep of written logs", self._sweep)

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP_S)
            now = trio.current_time()
            self._hasty = {k: at for k, at in self._hasty.items() if now - at < HASTE_S}
            for key, one in list(self.logs.items()):
                if one.leaving:
                    continue
                with self._failures.contained(f'the sweep of log "{key[1]}" of {key[0]}'):
                    if one.writer.over is not None:
                        self._forget(key, one)
                    elif one.used:
                        one.used, one.used_at = False, now
                    elif now - one.used_at > self.options.idle_s:
                        self.nursery.start_soon(self._give_up_idle, key)

    async def _give_up_idle(self, key: Key) -> None:
        with self._failures.contained(f'closing the idle log "{key[1]}" of {key[0]}'):
            await self.give_up(key, "")

    @property
    def nursery(self) -> trio.Nursery:
        """Where what waits for room, and what is opened, runs."""
        assert self._nursery is not None, "asked while it runs"
        return self._nursery

    def has(self, path: str, name: str) -> HostedLog | None:
        """A log that is written here now."""
        one = self.logs.get((path, name))
        if one is None or one.leaving:
            return None  # its writer is over while it is given up, and who does that tells its producers
        if one.writer.over is not None:
            self._forget((path, name), one)
            return None
        if one.writer.sequenced.log_name != name:
            self._rename((path, name), one)
            return None
        return one

    def _rename(self, key: Key, one: HostedLog) -> None:
        """The log was renamed while our lock had lapsed: whoever asks for its old name means another one."""
        now = (key[0], one.writer.sequenced.log_name)
        if now in self.logs:  # it was opened anew under that
            one.writer.pipeline.fail(WriterFenced(f'log "{key[1]}" is called "{now[1]}"'))
            self._forget(key, one)
            return
        del self.logs[key]
        one.name = now[1]
        self.logs[now] = one

    def window(self, mine: int) -> int:
        """What a new stream may have unanswered, bytes: a part of what is left. Raises `TooBusy`.

        ``mine``: the sum of those that its connection has.
        """
        options = self.options
        left = options.windows_bytes - self.stats.windows_bytes
        if not fits(mine, WINDOW_MIN, left, part=CONNECTION_PART):
            raise TooBusy(
                f"{self.stats.streams} streams are open on this proxy, with windows of {mine} bytes on "
                "this connection"
            )
        spare = left - int(FOR_SMALLEST * options.windows_bytes)
        return max(WINDOW_MIN, min(options.window_bytes, spare // 16))

    def may_hold(self, mine: int, more: int) -> bool:
        """May a connection whose frames take ``mine`` bytes here give so many more?"""
        left = self._held_bytes_max - self.stats.held_bytes
        return fits(mine, more, left, part=CONNECTION_PART)

    def check_share(self, path: str, mine: Collection[HostedLog], opening: int) -> None:
        """Raise `TooBusy` where a connection has so many of this proxy's logs that none is taken for it.

        ``mine``: those that it has open; ``opening``: those that are being opened for it, this one included.
        """
        used = sum(1 for one in self.logs.values() if one.streams or one.leaving)
        left = self.options.logs_max - used - max(0, len(self._opening) - opening)
        if not fits(len(mine) + opening - 1, 1, left - opening + 1, part=CONNECTION_PART):
            raise TooBusy(f"{used} logs are written on this proxy, {len(mine)} by this connection")
        paths, spaces = {one.path for one in mine}, self._namespaces
        if path in paths or spaces.is_used(path):
            return
        if not fits(len(paths), 1, spaces.left, part=CONNECTION_PART):
            raise TooBusy(f"{len(paths)} namespaces of this proxy are in use by this connection")

    def info(self) -> dict[str, object]:
        """For `Op.INFO`."""
        return {**asdict(self.stats), "logs": len(self.logs), "accepting": self.accepting}

    # --- taking -----------------------------------------------------------------------------------

    async def take(self, request: ProduceOpen) -> HostedLog:
        """The log that a stream is to be opened to.

        Raises `Moved` where another proxy has it, or this one takes none; `OwnershipAcquireFailed` where a
        direct writer has it; `TooBusy`; what opening a writer raises.
        """
        key = (check_namespace_path(request.path), request.log)
        deadline = trio.current_time() + self.options.open_wait_s
        while True:
            left = self._left.get(key)
            if left is not None:
                with trio.move_on_at(deadline):
                    await left.wait()
            found = self.has(*key)
            if found is None:
                found = await self._taken(key, request, deadline)
            if not found.leaving and found.writer.over is None:
                if request.incarnation not in ("", found.incarnation):
                    raise LogRecreated(
                        f'log "{request.log}" was deleted and made again: {request.incarnation} was meant, '
                        f"it is {found.incarnation} now"
                    )
                return found
            if trio.current_time() >= deadline:
                raise Moved(f'log "{request.log}" is on its way elsewhere')
            await trio.sleep(LOOK_S)

    async def _taken(self, key: Key, request: ProduceOpen, deadline: float) -> HostedLog:
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = _Opening(request.create)
            self.nursery.start_soon(self._open, key, request, deadline, opening)
        await opening.done.wait()
        if opening.found is None:
            assert opening.error is not None, "an opening ends either way"
            if request.create and not opening.creates and isinstance(opening.error, LogNotFound):
                return await self._taken(key, request, deadline)  # who came first may make none
            raise opening.error.again()
        return opening.found

    async def _open(
        self, key: Key, request: ProduceOpen, deadline: float, opening: _Opening
    ) -> None:
        try:
            if not self.accepting:
                raise Moved("this proxy takes no more logs")
            await self._make_room()
            namespace = await self._namespaces.enter(key[0])
            try:
                writer = await self._acquire(namespace, key, request, deadline)
            except BaseException:
                self._namespaces.leave(key[0])
                raise
            opening.found = self.logs[key] = HostedLog(*key, writer)
            self.stats.logs_taken += 1
        except DistributedLogError as error:
            fenced = error.fatal_to_writer or isinstance(error, AlreadyClosed)
            opening.error = as_told(error) if fenced else error
        except Exception as error:
            log.exception("opening log %s", key)
            opening.error = TooBusy(f"the log could not be opened here: {type(error).__name__}")
        finally:
            if opening.found is None and opening.error is None:
                opening.error = Moved("this proxy ends")
            del self._opening[key]
            opening.done.set()

    async def _acquire(
        self, namespace: Namespace, key: Key, request: ProduceOpen, deadline: float
    ) -> LogWriter:
        one = namespace.open_log(
            request.log,
            config={"create_if_missing": request.create},
            incarnation=request.incarnation or None,
        )
        dead, wait_s = "", 0.0
        while True:
            try:
                writer = await take_from(one, dead, wait_s)
                self.stats.logs_taken_over += bool(dead)
                return writer
            except OwnershipAcquireFailed as error:
                left = deadline - trio.current_time()
                if left <= 0:
                    raise
                failed = error
            holder = await holder_of(namespace.metadata, await namespace.find(request.log))
            if holder is None:
                continue
            dead, wait_s = "", left
            if holder.proxy and holder.proxy != self.id:
                there = self._members.write.get(holder.proxy)
                if there is None:
                    continue  # it has said goodbye, or its lease has ended: its lock is about to
                if request.suspect != holder.proxy:
                    raise Moved(f'log "{request.log}" is written by {there.label}', holder.proxy)
                if await self._refuses(there) and self._may_hurry(key):
                    dead = holder.writer_id
            elif not holder.proxy:
                raise failed  # a direct writer, which lives

    async def _refuses(self, there: ProxyRegistration) -> bool:
        """Is the process that registered so certainly gone? Raises `Moved` where it is there."""
        with trio.move_on_after(KNOCK_S):
            try:
                await self._peers.knock(there)
            except ConnectionLost as error:
                # It may be out of places, the network or this process out of what a dial needs.
                return error.detail == REFUSED
            except (WrongPeer, ProtocolError):
                return True
            raise Moved(f"{there.label} is there, and has the log", there.id)
        return False

    def _may_hurry(self, key: Key) -> bool:
        now = trio.current_time()
        if now - self._hasty.get(key, -HASTE_S) < HASTE_S:
            return False
        self._hasty[key] = now
        return True

    async def _make_room(self) -> None:
        """Below the bound of logs: the one that was idle longest goes. Raises `TooBusy`."""
        if len(self.logs) + len(self._opening) <= self.options.logs_max:
            return
        idle = min(
            (one for one in self.logs.values() if not one.streams and not one.leaving),
            key=lambda one: (one.used, one.used_at),
            default=None,
        )
        if idle is None:
            raise TooBusy(f"{len(self.logs)} logs are written on this proxy")
        await self.give_up((idle.path, idle.name), "")

    # --- giving -----------------------------------------------------------------------------------

    async def give_up(self, key: Key, target: str) -> bool:
        """Acknowledge what was taken, close, give the lock back, then tell; False: it was not here.

        What is not durable in `settle_s` is unknown to its producers, and the next owner recovers.
        """
        one = self.has(*key)
        if one is None:
            return False
        left = self._left[key] = trio.Event()
        try:
            one.freeze()
            with trio.move_on_after(self.options.settle_s):
                await one.writer.aclose()
        except DistributedLogError as error:
            log.warning('log "%s" was left for its next owner to recover: %s', one.name, error)
        finally:
            with trio.CancelScope(shield=True):
                await one.writer.abort()
            self.stats.logs_given_up += 1
            self._remove(key, one)
            one.release(target)
            del self._left[key]
            left.set()
        return True

    async def release(self, path: str, name: str) -> None:
        """Give a log up that no producer has open here. Raises `OwnershipAcquireFailed` where one has."""
        one = self.has(path, name)
        if one is None:
            return
        if one.streams:
            raise OwnershipAcquireFailed(
                f'log "{name}" has {len(one.streams)} producers here', f"proxy {self.id}"
            )
        await self.give_up((path, name), "")

    async def drain(self) -> None:
        """Give all logs up, and take none: whoever is told goes to another proxy."""
        self.accepting = False
        limit = trio.CapacityLimiter(LEAVES_AT_ONCE)
        patience = trio.current_time() + TAKEN_SHARE * self.options.drain_s

        async def leave(key: Key) -> None:
            async with limit:
                one = self.has(*key)
                wanted = one is not None and bool(one.streams)
                if await self.give_up(key, "") and one is not None and wanted:
                    await self._have_taken(one, min(patience, trio.current_time() + TAKEN_S))

        while self.logs or self._opening:  # what is being opened comes here, and is left then
            async with trio.open_nursery() as nursery:
                for key in list(self.logs):
                    nursery.start_soon(leave, key)
                await trio.sleep(LOOK_S)

    async def _have_taken(self, one: HostedLog, deadline: float) -> None:
        """Until the next proxy has a log that was given up, or the deadline. Its producers go there, too: who
        is first in its order is whom they ask."""
        others = {each.id: each for each in self._members.write.values() if each.accepting}
        others.pop(self.id, None)
        ranked = order(one.path, one.name, others)
        if not ranked:
            return
        there = others[ranked[0]]
        with trio.move_on_at(deadline):
            try:
                await self._peers.have_taken(there, one.path, one.name, one.incarnation)
            except Moved:
                pass  # somebody was faster
            except DistributedLogError as error:
                log.info('log "%s" was not taken by %s: %s', one.name, there.label, error)

    def _forget(self, key: Key, one: HostedLog) -> None:
        """Its writer is over."""
        self.stats.logs_lost += 1
        self._remove(key, one)
        over = one.writer.over
        assert over is not None, "asked of one that is over"
        path, name = key
        text = 'log "%s" is lost: %s: %s'
        kind = type(over).__name__
        LOST.say(log, text, name, kind, over, log_name=name, namespace=path, why=f"{kind}: {over}")
        one.end(over)

    def _remove(self, key: Key, one: HostedLog) -> None:
        if self.logs.get(key) is one:  # else it was opened again while this one was given up
            del self.logs[key]
        self._namespaces.leave(key[0])
