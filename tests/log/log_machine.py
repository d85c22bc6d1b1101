"""One log through random calls and faults on the simulated cluster, against a model (`log_model.py`).

    python -m tests.log.log_machine --runs 2000         drawn anew; --steps, --minutes, --planted BUG

A program is drawn and shrunk by Hypothesis as a state machine. It is played when it is whole: the real world
is walled off while a simulation runs, and Hypothesis needs its clock. Two client processes use the log:
writers that are opened and taken over from each other, paused, killed; readers of every kind from every
place; record sets, subscriptions, a work queue, named positions; truncation, seal, deletion, renaming,
settings, merging. Faults strike in the middle of calls. At the end everything heals, and what is left of the
log must be what the model says.
"""

import argparse
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import trio
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import Columns, LogRecord
from distributedlog.log.log import Log
from distributedlog.log.model.position import Position
from distributedlog.log.namespace import Namespace
from distributedlog.runtime.interfaces.errors import (
    ClaimLost,
    DistributedLogError,
    EndOfStream,
    LogEmpty,
    LogExists,
    LogNotFound,
    LogRecreated,
    LogTruncated,
    OutcomeUnknown,
    OwnershipAcquireFailed,
    SubscriptionLost,
    WriterFenced,
)
from distributedlog.runtime.interfaces.host import Host
from distributedlog.testing.sim.world.scheduler import Simulation
from distributedlog.testing.sim.world.sim_cluster import Shape, SimCluster
from distributedlog.testing.sim.world.sim_host import flatten_errors
from tests.log.log_model import HeldModel, LogModel, QueueModel, Read
from tests.sim import planted_cluster  # noqa: F401
from tests.sim.planting import BUGS

CLIENTS = ("c1", "c2")
NAMES = ("story", "tale")
STEP_S = 40.0
"""A call that has no outcome after so long is given up: it may have been done."""
INSIST_S = 120.0
"""Faults last 8 s at most: by then what is asked again and again has been done."""
FORMING_S = 60.0
FAULTS = (
    "kill bookie", "power bookie", "stall bookie", "cut bookie", "cut bookies", "cut metadata",
    "kill metadata", "kill leaders", "reset", "kill client", "stall client",
)  # fmt: skip
QUORUM_FAULTS = {"kill metadata", "kill leaders"}
SHAPE = Shape(
    bookies=4,
    clients=2,
    store={
        "journal_file_bytes": 256 * 1024,
        "gather_bytes": 64 * 1024,
        "free_bytes_min": 8 * 1024 * 1024,
    },
    client={
        "segment_bytes_max": 2000,
        "entry_bytes_max": 512,
        "lock_lease_s": 3.0,
        "add_timeout_s": 3.0,
        "recover_timeout_s": 10.0,
        "close_timeout_s": 10.0,
        "metadata_timeout_s": 5.0,
        "read_retry_s": 12.0,
    },
)

T = TypeVar("T")
Call = Callable[[Namespace], Awaitable[Any]]


class Gone(Exception):
    """The process that was asked died, or gave no answer: what it was asked may have been done."""


@dataclass
class Box:
    """A call's outcome."""

    done: trio.Event = field(default_factory=trio.Event)
    value: Any = None
    error: Exception | None = None


class Process:
    """A client process: it does one call at a time, and may die in it."""

    def __init__(self, cluster: SimCluster, name: str) -> None:
        self.name = name
        self.life = 0
        self.nursery: trio.Nursery | None = None
        """For what goes on beside the calls; None while it is down."""
        self._send: trio.MemorySendChannel[tuple[Call, Box]] | None = None
        self._up = trio.Event()
        self._box: Box | None = None
        cluster.start_client(name, self._main)

    async def _main(self, namespace: Namespace, host: Host) -> None:
        self._send, calls = trio.open_memory_channel[tuple[Call, Box]](1)
        self.life += 1
        self._up.set()
        try:
            async with trio.open_nursery() as self.nursery:
                async for call, box in calls:
                    try:
                        with trio.move_on_after(STEP_S):
                            box.value = await call(namespace)
                            box.error = None
                    except (DistributedLogError, AssertionError, Gone) as error:
                        box.error = error
                    box.done.set()
        finally:
            self._send = self.nursery = None
            self._up = trio.Event()
            if self._box is not None:
                self._box.done.set()

    async def ask(self, call: Callable[[Namespace], Awaitable[T]]) -> T:
        """Do a call in the process. Raises what it raises, and `Gone`."""
        with trio.move_on_after(INSIST_S) as waited:
            await self._up.wait()
        assert not waited.cancelled_caught, f"{self.name} reached no metadata for {INSIST_S:g} s"
        assert self._send is not None
        box = self._box = Box(error=Gone(self.name))
        self._send.send_nowait((call, box))
        await box.done.wait()
        self._box = None
        if box.error is not None:
            raise box.error
        result: T = box.value
        return result


@dataclass(eq=False)
class Handle:
    """A writer that was opened, or a subscription, a work queue, a claim."""

    process: Process
    life: int
    held: Any
    stale: bool = False
    """Another one was opened after it."""
    unsure: bool = False
    """Perhaps."""

    @property
    def alive(self) -> bool:
        return self.process.life == self.life and self.process.nursery is not None

    def check(self) -> None:
        """Called in the process. Raises `Gone` where it is another one by now."""
        if not self.alive:
            raise Gone(self.process.name)


class Play:
    """One program on one cluster."""

    def __init__(
        self, simulation: Simulation, steps: list[tuple[Any, ...]], counts: Counter[str]
    ) -> None:
        self.simulation = simulation
        self.chance = simulation.random_stream("log machine")
        self.counts = counts
        self._steps = steps
        struck = {step[1] for step in steps if step[0] == "fault"}
        # Three nodes beat ten times a second, which is what a run costs; one is as good where none dies.
        nodes = 3 if struck & QUORUM_FAULTS else 1
        self.cluster = SimCluster(simulation, replace(SHAPE, metadata_nodes=nodes))
        self.model = LogModel()
        self.name = NAMES[0]
        self.number = 0
        """Of the last record that was written: its txid too."""
        self.settings: dict[str, Any] = {}
        self.handles: list[Handle] = []
        """Those that can be used."""
        self.pending: list[tuple[bytes, Any]] = []
        """What was submitted and has no outcome yet."""
        self.positions: list[Position] = []
        self.named: DLSN | None = None
        self.subscription = HeldModel()
        self.holders: list[Handle] = []
        """Subscriptions that can be used."""
        self.queue: QueueModel | None = None
        """None: nobody has worked on it."""
        self.queues: list[Handle] = []
        """The work queue, as each process has it open."""
        self.claims: list[Handle] = []
        """That are neither done nor given back."""
        self.tails: list[list[Read]] = []
        self.processes: list[Process] = []

    # --- the run ----------------------------------------------------------------------------------

    async def run(self) -> None:
        cluster = self.cluster
        cluster.start_all()
        self.simulation.nursery.start_soon(cluster.supervise)
        with trio.fail_after(FORMING_S):
            await cluster.wait_all_ready()
        self.processes = [Process(cluster, name) for name in CLIENTS]
        await self._create(self.processes[0])
        for kind, *drawn in self._steps:
            self.simulation.record_event("step", kind, *drawn)
            try:
                outcome = await getattr(self, f"_{kind}")(*drawn)
            except Gone:
                outcome = "gone"
            except DistributedLogError as error:
                if not error.retryable and error.definite:
                    raise
                outcome = type(error).__name__
            self.simulation.record_event("outcome", outcome)
            self.counts[f"{kind}: {outcome or 'done'}"] += 1
            self._settle()
        await self._finish()

    async def _finish(self) -> None:
        """No more faults: write if that is allowed, and read everything."""
        await trio.sleep(0.1)
        self.cluster.heal()
        process = self.processes[1]
        await self._insist(process, self._open_and_prove)
        records = await self._insist(process, self._read_whole)
        self.model.check(records, None, True)
        for tail in self.tails:
            self._check_tail(tail)
        if self.named is not None:
            at = await self._insist(process, lambda ns: self._log(ns).positions.get("here"))
            assert at is not None
            assert at >= self.named
        at = await self._insist(process, lambda ns: self._log(ns).positions.get("sub"))
        if self.subscription.low is not None:
            assert at is not None, "H155: a position is gone"
            self.subscription.taken(at)
        if self.queue is not None:
            while self.claims:
                with suppress(Gone, DistributedLogError):
                    await self._settle_claim("done")
            await self._drain(process)
        stored = await self._insist(process, lambda ns: self._log(ns).settings())
        assert stored.settings == self.settings

    async def _open_and_prove(self, namespace: Namespace) -> None:
        try:
            writer = await self._log(namespace).open_writer(takeover=True)
        except EndOfStream:
            assert self.model.sealed is not False
            self.model.sealed = True
            self.model.taken_over()
            return
        assert self.model.sealed is not True, "a sealed log took a writer"
        self.model.sealed = False
        self._fence()
        payload = self._next(30)
        self.model.told(payload, await writer.write(LogRecord(self.number, payload)))
        await writer.aclose()
        self.model.committed()

    async def _insist(self, process: Process, call: Callable[[Namespace], Awaitable[T]]) -> T:
        """Ask until it is done, as whoever needs it does."""
        deadline = trio.current_time() + INSIST_S
        while True:
            try:
                return await process.ask(call)
            except Gone:
                pass
            except DistributedLogError as error:
                if not error.retryable and error.definite:
                    raise
                self.simulation.record_event("not yet", type(error).__name__, str(error)[:200])
            assert trio.current_time() < deadline, "faults are over, and it is not done"
            await trio.sleep(0.5)

    def _settle(self) -> None:
        """Take the outcomes that are there; of processes that died none will come."""
        left = []
        for payload, pending in self.pending:
            if not pending.done():
                left.append((payload, pending))
                continue
            try:
                self.model.told(payload, pending.result())
            except DistributedLogError as error:
                self.model.told(payload, error)
        self.pending = left
        for handles in (self.handles, self.holders, self.queues, self.claims):
            handles[:] = [one for one in handles if one.alive]

    # --- the log ----------------------------------------------------------------------------------

    def _log(self, namespace: Namespace, **config: Any) -> Log:
        return namespace.open_log(self.name, config=config)

    async def _create(self, process: Process) -> None:
        async def call(namespace: Namespace) -> None:
            with suppress(LogExists):  # by an earlier try
                await namespace.create_log(self.name, txids="given")

        await self._insist(process, call)
        self.model, self.settings, self.named = LogModel(), {}, None
        self.subscription, self.queue = HeldModel(), None

    def _next(self, size: int) -> bytes:
        self.number += 1
        payload = b"%d " % self.number + bytes(size)
        self.model.sent(payload, self.number)
        return payload

    async def _rename(self, process: int) -> str:
        old, new = self.name, NAMES[1 - NAMES.index(self.name)]

        async def call(namespace: Namespace) -> str:
            try:
                await namespace.rename_log(old, new)
            except OwnershipAcquireFailed:
                return "held"
            except LogNotFound:
                assert await namespace.log_exists(new)  # by an earlier try
            return ""

        held = await self._insist(self.processes[process], call)
        if not held:
            self.name = new
        return held

    async def _remake(self, process: int) -> str:
        async def call(namespace: Namespace) -> str:
            try:
                await namespace.delete_log(self.name)
            except OwnershipAcquireFailed:
                return "held"
            except LogNotFound:
                pass  # by an earlier try
            return ""

        held = await self._insist(self.processes[process], call)
        if not held:
            await trio.sleep(1.0)
            for tail in self.tails:
                self._check_tail(tail)
            self.tails = []
            self.handles, self.pending = [], []  # of another log
            self.holders, self.queues, self.claims = [], [], []
            old, self.positions = self.positions, []
            await self._create(self.processes[process])
            for position in old[-1:]:
                await self._is_another(process, position)
        return held

    async def _is_another(self, process: int, position: Position) -> None:
        async def call(namespace: Namespace) -> None:
            try:
                await self._log(namespace).open_reader(position=position)
            except LogRecreated:
                return
            raise AssertionError("a position of a log that was deleted was taken")

        await self._insist(self.processes[process], call)

    async def _set(self, process: int, name: str, value: Any) -> None:
        change = {name: value}

        async def call(namespace: Namespace) -> None:
            await self._log(namespace).set(change)

        await self._insist(self.processes[process], call)
        self.settings.pop(name, None)
        if value is not None:
            self.settings[name] = value

    async def _seal(self, process: int, takeover: bool) -> str:
        async def call(namespace: Namespace) -> None:
            await self._log(namespace).seal(takeover=takeover, wait_s=0)

        was = self.model.sealed
        self.model.sealed = was or None
        try:
            await self.processes[process].ask(call)
        except OwnershipAcquireFailed:
            self.model.sealed = was
            return "held"
        self.model.sealed = True
        self._fence()
        return ""

    async def _truncate(self, process: int, part: int) -> str:
        places = self.model.places()
        if not places:
            return "empty"
        to = places[len(places) * part // 10]

        async def call(namespace: Namespace) -> DLSN:
            return await self._log(namespace).truncate(to)

        self.model.truncated(to, None)
        now = await self.processes[process].ask(call)
        self.model.truncated(to, now)
        return ""

    async def _advance(self, process: int, part: int, how: str) -> str:
        where, places = self.processes[process], self.model.places()
        if how == "forget":
            await self._insist(where, lambda ns: self._log(ns).positions.delete("here"))
            self.named = None
            return how
        if not places:
            return "empty"
        to: DLSN | Position = places[len(places) * part // 10]
        if how == "proven" and self.positions:
            to = self.positions[-1]
        low = to.dlsn if isinstance(to, Position) else to

        async def call(namespace: Namespace) -> tuple[DLSN, Position | None]:
            positions = self._log(namespace).positions
            return await positions.advance("here", to), await positions.proven("here")

        now, proven = await self._insist(where, call)
        assert now >= low
        assert self.named is None or now >= self.named
        if isinstance(to, Position) and now == to.dlsn and now != self.named:
            assert proven == to, "H141: a proof was stored, and an address came back"
        self.named = now
        return how

    async def _compact(self, process: int) -> str:
        moved = await self.processes[process].ask(lambda ns: self._log(ns).merge_segments())
        return "moved" if moved else "nothing"

    # --- writers ----------------------------------------------------------------------------------

    async def _open(self, process: int, takeover: bool) -> str:
        where = self.processes[process]

        async def call(namespace: Namespace) -> Handle:
            writer = await self._log(namespace).open_writer(takeover=takeover, wait_s=0)
            return Handle(where, where.life, writer)

        try:
            handle = await where.ask(call)
        except OwnershipAcquireFailed:
            assert not takeover
            return "held"
        except EndOfStream:
            assert self.model.sealed is not False, "a log that nobody sealed is sealed"
            self.model.sealed = True
            return "sealed"
        assert self.model.sealed is not True, "a sealed log took a writer"
        self.model.sealed = False
        self._fence()
        self.handles.append(handle)
        return ""

    def _fence(self) -> None:
        """Somebody else has recovered what the writers so far left."""
        self._settle()
        for handle in self.handles:
            handle.stale = True
        self.model.taken_over()

    def _handle(self, older: bool) -> Handle | None:
        found = [one for one in self.handles if one.stale == older]
        return found[-1] if found else None

    async def _write(self, older: bool, sizes: list[int], how: str) -> str:
        handle = self._handle(older)
        if handle is None:  # a program that never writes shows little
            await self._open(len(sizes) % 2, True)
            handle = self._handle(False)
        if handle is None:
            return "nobody"
        records = [] if how == "set" else [(self._next(size), self.number) for size in sizes]
        if how == "set":
            self.number += 1
            together = [b"%d.%d " % (self.number, n) + bytes(size) for n, size in enumerate(sizes)]
            self.model.sent_set(together, self.number)
            records = [(one, self.number) for one in together]

        async def call(namespace: Namespace) -> None:
            handle.check()
            writer = handle.held
            if how == "set":
                found = await writer.write_set([LogRecord(txid, one) for one, txid in records])
                for (one, _), dlsn in zip(records, found, strict=True):
                    self._told(handle, one, dlsn)
                return
            if how == "bulk":
                found = await writer.write_bulk([LogRecord(txid, one) for one, txid in records])
                for (one, _), dlsn in zip(records, found, strict=True):
                    self._told(handle, one, dlsn)
                return
            for one, txid in records:
                try:
                    pending = await writer.submit(LogRecord(txid, one))
                except DistributedLogError as error:
                    self.model.told(one, error)
                    continue
                self.pending.append((one, pending))
                if how == "each":
                    with suppress(DistributedLogError):
                        self._told(handle, one, await pending)

        try:
            await handle.process.ask(call)
        except WriterFenced:
            return "fenced"
        return how

    def _told(self, handle: Handle, payload: bytes, dlsn: DLSN) -> None:
        assert not handle.stale, f"G4: a writer that was taken over from has written {dlsn}"
        self.model.told(payload, dlsn)

    async def _commit(self, older: bool) -> str:
        return await self._end(older, "commit")

    async def _close(self, older: bool) -> str:
        return await self._end(older, "aclose")

    async def _abort(self, older: bool) -> str:
        return await self._end(older, "abort")

    async def _end(self, older: bool, how: str) -> str:
        handle = self._handle(older)
        if handle is None:
            return "nobody"

        async def call(namespace: Namespace) -> None:
            handle.check()
            await getattr(handle.held, how)()

        try:
            await handle.process.ask(call)
        except WriterFenced:
            return "fenced"
        finally:
            self._settle()
            if how != "commit":
                self.handles = [one for one in self.handles if one is not handle]
        if how != "abort" and not handle.stale:
            self.model.committed()
        return ""

    # --- readers ----------------------------------------------------------------------------------

    async def _read(self, process: int, start: str, part: int, how: str) -> str:
        where = self.processes[process]
        places = self.model.places()
        options: dict[str, Any] = {}
        begin: DLSN | None = None
        if start == "dlsn" and places:
            begin = options["dlsn"] = places[len(places) * part // 10]
        elif start == "txid" and places:
            begin = places[len(places) * part // 10]
            placed = self.model.placed.values()
            options["txid"] = next(txid for at, txid in placed if at == begin)
            # Records of a set have one txid: it begins with the first of them.
            begin = min(at for at, txid in placed if txid == options["txid"])
        elif start == "position" and self.positions:
            options["position"] = self.positions[-1]
            begin = self.positions[-1].dlsn
        if begin is not None and start == "txid":
            begin = max(begin, self.model.point)  # a search finds what is left
        records: list[Read] = []
        low = self.model.point_max

        async def call(namespace: Namespace) -> Position | None:
            log = self._log(namespace)
            if how == "ranges" and not options:
                snapshot = await log.snapshot()
                async with log.open_ranges([one.range() for one in snapshot.segments]) as ranges:
                    async for columns in ranges:
                        records.extend(_read_of(columns))
                return snapshot.position
            if how == "several" and not options:
                async with namespace.open_reader(logs=[self.name], to="end") as several:
                    async for item in several:
                        if hasattr(item, "columns"):
                            records.extend(_read_of(item.columns))
                        elif item.error is not None:
                            raise item.error
                return None
            async with log.open_reader(to="end", **options) as reader:
                while True:
                    if how == "bulk":
                        found = await reader.read_bulk(7)
                    elif how == "sets":
                        found = await reader.read_set()
                    else:
                        one = await reader.read_next()
                        found = [] if one is None else [one]
                    if not found:
                        return reader.position
                    records.extend(_one(record) for record in found)

        try:
            position = await where.ask(call)
        except EndOfStream:
            position = None
        except LogTruncated:
            assert begin is not None
            assert begin < low, f"G6: {begin} is truncated, the point is {low} at most"
            return "truncated"
        except (Gone, DistributedLogError):
            self.model.check(records, begin, False)
            raise
        assert begin is None or begin >= self.model.point or start == "position", f"G6: {begin}"
        self.model.check(records, begin, True)
        if position is not None:
            self.positions.append(position)
        return start if options else how

    async def _read_whole(self, namespace: Namespace) -> list[Read]:
        log = self._log(namespace)
        async with log.open_reader(to="end") as reader:
            records = [_one(record) async for record in reader]
        assert await log.count() == len(records)
        if records:
            assert _one(await log.first_record()) == records[0]
            assert _one(await log.last_record()) == records[-1]
        else:
            try:
                await log.last_record()
            except LogEmpty:
                pass
            else:
                raise AssertionError("a log without records has a last one")
        return records

    async def _tail(self, process: int) -> str:
        where = self.processes[process]
        found: list[Read] = []

        async def follow(reader: Any) -> None:
            try:
                async with reader:
                    async for record in reader:
                        found.append(_one(record))
            except DistributedLogError:
                pass  # it was truncated below it, deleted, or nobody answered for long

        async def call(namespace: Namespace) -> None:
            reader = await self._log(namespace).open_reader()
            assert where.nursery is not None
            where.nursery.start_soon(follow, reader)

        await where.ask(call)
        self.tails.append(found)
        return ""

    def _check_tail(self, tail: list[Read]) -> None:
        """It may have had what is truncated by now."""
        left = [one for one in tail if one.dlsn >= self.model.point_max]
        self.model.check(left, left[0].dlsn if left else None, False)

    # --- a subscription ---------------------------------------------------------------------------

    async def _subscribe(self, process: int, takeover: bool) -> str:
        where = self.processes[process]

        async def call(namespace: Namespace) -> Handle:
            opened = self._log(namespace).subscribe("sub", takeover=takeover, wait_s=0)
            return Handle(where, where.life, await opened)

        was = self.subscription.low
        try:
            handle = await where.ask(call)
        except OwnershipAcquireFailed:
            assert not takeover
            return "held"
        except LogTruncated:
            assert was is None or was < self.model.point_max, "G6: nobody has truncated so far"
            await self._insist(where, lambda ns: self._log(ns).positions.delete("sub"))
            self.subscription = HeldModel()
            for one in self.holders:  # their position was deleted
                one.stale = True
            return "truncated"
        except (Gone, DistributedLogError):
            for one in self.holders:
                one.unsure = True
            raise
        at = handle.held.committed
        self.subscription.taken(at)
        if was is None:
            for payload in self.model.visible:
                place = self.model.placed[payload][0]
                assert not self.model.point_max <= place < at, f"H155: {place} is before {at}"
        for one in self.holders:
            one.stale = True
        self.holders.append(handle)
        return ""

    def _holder(self, older: bool) -> Handle | None:
        found = [one for one in self.holders if one.stale == older]
        return found[-1] if found else None

    async def _take(self, process: int, older: bool, number: int, commit: str) -> str:
        handle = self._holder(older)
        if not self.model.places():
            await self._write(False, [10, 100, 10], "each")
        if handle is None and not older:
            await self._subscribe(process, True)
            handle = self._holder(False)
        if handle is None:
            return "nobody"
        subscription, records = handle.held, list[Read]()
        at = subscription.reader.position
        begin = subscription.committed if at is None else at.dlsn

        async def call(namespace: Namespace) -> None:
            handle.check()
            while len(records) < number:
                record = await subscription.reader.read_next(wait_s=0.2)
                if record is None:
                    break
                records.append(_one(record))
            at = subscription.reader.position
            if commit == "no" or at is None:
                return
            if not handle.stale:
                self.subscription.noted(at.dlsn)
            await subscription.commit(now=commit == "now")
            if commit == "now":
                assert not handle.stale, f"H155: who was taken over from has committed {at}"
                self.subscription.written(at.dlsn)

        try:
            await handle.process.ask(call)
        except SubscriptionLost:
            assert handle.stale or handle.unsure, "H155: a holder was told that there is another"
            return "lost"
        except (EndOfStream, LogTruncated) as error:
            return type(error).__name__
        finally:
            left = [one for one in records if one.dlsn >= self.model.point_max]
            self.model.check(left, begin, False)
        return commit

    async def _leave(self, older: bool, how: str) -> str:
        handle = self._holder(older)
        if handle is None:
            return "nobody"

        async def call(namespace: Namespace) -> None:
            handle.check()
            await getattr(handle.held, how)()

        self.holders = [one for one in self.holders if one is not handle]
        try:
            await handle.process.ask(call)
        except SubscriptionLost:
            assert handle.stale or handle.unsure
            return "lost"
        if how == "aclose" and not (handle.stale or handle.unsure):
            self.subscription.low = self.subscription.high
        return how

    # --- a work queue -----------------------------------------------------------------------------

    async def _work(self, process: int, bytes_max: int, how: str) -> str:
        if not self.model.places():
            await self._write(False, [10, 100, 10], "each")
        where = self.processes[process]
        open_ = next((one for one in self.queues if one.process is where), None)

        async def call(namespace: Namespace) -> Handle | None:
            nonlocal open_
            if open_ is None:
                opened = self._log(namespace).work_queue("jobs", tries_max=1000, claim_s=20.0)
                open_ = Handle(where, where.life, await opened)
                self.queues.append(open_)
            claim = await open_.held.claim(bytes_max=bytes_max, wait_s=0.2)
            return None if claim is None else Handle(where, where.life, claim)

        self.queue = self.queue or QueueModel()
        claim = await where.ask(call)
        if claim is None:
            return "nothing"
        self.queue.claimed(claim.held.first, claim.held.end)
        self.claims.append(claim)
        await where.ask(lambda _: self._handle_stretch(claim))
        return how if how == "keep" else await self._settle_claim(how)

    async def _handle_stretch(self, claim: Handle) -> None:
        claim.check()
        records: list[Read] = []
        try:
            async with claim.held.open_reader() as reader:
                async for columns in reader:
                    records.extend(_read_of(columns))
        except LogTruncated:
            assert claim.held.first < self.model.point_max, "G6: nobody has truncated so far"
            return
        self.model.check_stretch(records, claim.held.first, claim.held.end)

    async def _settle_claim(self, how: str) -> str:
        """Of the newest one."""
        if not self.claims:
            return "nothing"
        claim = self.claims.pop()
        held = claim.held
        queue = self.queue
        assert queue is not None

        async def call(namespace: Namespace) -> None:
            claim.check()
            if how == "back":
                await held.release()
                return
            try:
                await held.done()
            except ClaimLost:
                raise
            except BaseException:
                queue.maybe.append((held.first, held.end))
                raise
            queue.finished(held.first, held.end)

        try:
            await claim.process.ask(call)
        except ClaimLost:
            return "lost"
        except OutcomeUnknown:
            return "unknown"
        return how

    async def _drain(self, process: Process) -> None:
        """Whatever is left is claimed by somebody who lives, and done."""
        queue = self.queue
        assert queue is not None

        async def call(namespace: Namespace) -> None:
            opened = self._log(namespace).work_queue("jobs", tries_max=1000)
            async with opened as jobs:
                until = trio.current_time() + STEP_S - 5
                while trio.current_time() < until:
                    claim = await jobs.claim(wait_s=0.5)
                    if claim is None:
                        state = await jobs.state()
                        assert state.dead_lettered == []
                        if not state.items and not state.set_aside_items:
                            return
                        continue
                    queue.claimed(claim.first, claim.end)
                    await self._handle_stretch(Handle(process, process.life, claim))
                    queue.maybe.append((claim.first, claim.end))
                    await claim.done()
                    queue.finished(claim.first, claim.end)
            raise AssertionError(f"H156: the queue is not handled: {state}")

        await self._insist(process, call)
        queue.check_all([place for place in self.model.places() if place >= self.model.point_max])

    # --- faults -----------------------------------------------------------------------------------

    async def _sleep(self, tenths: int) -> None:
        await trio.sleep(tenths / 10)

    async def _fault(self, kind: str, which: int, delay_ms: int, tenths: int) -> str:
        """Struck soon, in the middle of what comes next; over after at most 8 s."""
        self.simulation.call_after(delay_ms / 1000, self._strike, kind, which, tenths / 10)
        return kind

    def _strike(self, kind: str, which: int, length_s: float) -> None:
        cluster, network = self.cluster, self.cluster.network
        bookie = cluster.bookies[which % len(cluster.bookies)]
        client = CLIENTS[which % len(CLIENTS)]

        def on(names: list[str]) -> None:
            for name in names:
                if not cluster.machines[name].state.running:
                    if name in CLIENTS:
                        cluster.restart_client(name)
                    else:
                        cluster.start(name)

        def cut(names: list[str]) -> None:
            pairs = [pair for name in names for pair in ((client, name), (name, client))]
            for pair in pairs:
                network.cut(*pair)
            self.simulation.call_after(length_s, network.reconnect, pairs)

        if kind == "stall bookie":
            cluster.machines[bookie].stall(length_s)
        elif kind == "stall client":
            cluster.machines[client].stall(length_s)
        elif kind == "cut bookie":
            cut([bookie])
        elif kind == "cut bookies":
            cut(cluster.bookies)
        elif kind == "cut metadata":
            cut(cluster.metadata)
        elif kind == "reset":
            host = cluster.machines[client].state
            for end in [end for end in network.connections.values() if end.host is host]:
                network.reset(end)
        else:
            names = {
                "kill bookie": [bookie],
                "power bookie": [bookie],
                "kill client": [client],
                "kill metadata": [cluster.metadata[which % len(cluster.metadata)]],
                "kill leaders": cluster.metadata[:2],
            }[kind]
            for name in names:
                host_ = cluster.machines[name]
                host_.power_cut() if kind == "power bookie" else host_.kill()
            self.simulation.call_after(length_s, on, names)


def _one(record: Any) -> Read:
    return Read(record.dlsn, record.sequence_id, record.txid, bytes(record.payload))


def _read_of(columns: Columns) -> list[Read]:
    return [_one(record) for record in columns.records()]


def play(seed: int, steps: list[tuple[Any, ...]], counts: Counter[str] | None = None) -> None:
    """Play a program. Raises what was broken."""
    simulation = Simulation(seed, virtual_seconds_max=3000.0)

    async def main(simulation: Simulation) -> None:
        one = Play(simulation, steps, Counter() if counts is None else counts)
        with one.cluster.oracles.observe_state_machines():
            await one.run()

    try:
        simulation.run(main)
    except BaseExceptionGroup as group:
        raise flatten_errors(group)[0] from group
    if simulation.failures:
        raise simulation.failures[0]


COUNTS: Counter[str] = Counter()
PROCESS = st.integers(0, 1)
PART = st.integers(0, 9)
OLDER = st.sampled_from((False, False, False, True))
SETTINGS = (
    ("segment_bytes_max", 300),
    ("segment_bytes_max", None),
    ("codec", "lz4"),
    ("codec", "zstd"),
    ("codec", None),
)


class LogMachine(RuleBasedStateMachine):
    """Gathers a program, and plays it when it is whole."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = 0
        self.steps: list[tuple[Any, ...]] = []

    @initialize(seed=st.integers(0, 2**20))
    def begin(self, seed: int) -> None:
        self.seed = seed

    def _then(self, *step: Any) -> None:
        self.steps.append(step)

    @rule(process=PROCESS, takeover=st.booleans())
    def open(self, process: int, takeover: bool) -> None:
        self._then("open", process, takeover)

    @rule(
        older=OLDER,
        sizes=st.lists(st.sampled_from((0, 10, 100, 600)), min_size=1, max_size=6),
        how=st.sampled_from(("bulk", "each", "submit", "set")),
    )
    def write(self, older: bool, sizes: list[int], how: str) -> None:
        self._then("write", older, sizes, how)

    @rule(older=OLDER, how=st.sampled_from(("commit", "commit", "close", "abort")))
    def end(self, older: bool, how: str) -> None:
        self._then(how, older)

    @rule(
        process=PROCESS,
        start=st.sampled_from(("earliest", "dlsn", "txid", "position")),
        part=PART,
        how=st.sampled_from(("next", "bulk", "sets", "ranges", "several")),
    )
    def read(self, process: int, start: str, part: int, how: str) -> None:
        self._then("read", process, start, part, how)

    @rule(process=PROCESS)
    def tail(self, process: int) -> None:
        self._then("tail", process)

    @rule(process=PROCESS, part=PART)
    def truncate(self, process: int, part: int) -> None:
        self._then("truncate", process, part)

    @rule(
        process=PROCESS,
        part=PART,
        how=st.sampled_from(("dlsn", "dlsn", "proven", "proven", "forget")),
    )
    def advance(self, process: int, part: int, how: str) -> None:
        self._then("advance", process, part, how)

    @rule(
        process=PROCESS,
        older=OLDER,
        number=st.sampled_from((0, 1, 3, 20)),
        commit=st.sampled_from(("no", "later", "now", "now")),
    )
    def take(self, process: int, older: bool, number: int, commit: str) -> None:
        self._then("take", process, older, number, commit)

    @rule(process=PROCESS, how=st.sampled_from((None, None, "aclose", "abort")), flag=st.booleans())
    def subscribe(self, process: int, how: str | None, flag: bool) -> None:
        if how is None:
            self._then("take", process, False, 1, "later")
            self._then("subscribe", 1 - process, flag)
            self._then("take", process, flag, 2, "now")  # by the one before it, perhaps
        else:
            self._then("leave", flag, how)

    @rule(
        process=PROCESS,
        bytes_max=st.sampled_from((1, 300, 2000)),
        how=st.sampled_from(("done", "done", "back", "keep", "keep")),
        earlier=st.sampled_from((None, None, "done", "back")),
    )
    def work(self, process: int, bytes_max: int, how: str, earlier: str | None) -> None:
        if earlier is not None:
            self._then("settle_claim", earlier)
        self._then("work", process, bytes_max, how)

    @rule(
        process=PROCESS,
        what=st.sampled_from(
            ("rename", "rename", "remake", "set", "set", "seal", "sleep", "compact", "compact")
        ),
        takeover=st.booleans(),
        setting=st.sampled_from(SETTINGS),
    )
    def change(
        self, process: int, what: str, takeover: bool, setting: tuple[str, str | int | None]
    ) -> None:
        if what == "sleep":
            self._then("sleep", 30)
        elif what == "seal":
            self._then("seal", process, takeover)
        elif what == "set":
            self._then("set", process, *setting)
        else:
            self._then(what, process)

    @rule(
        kind=st.sampled_from(FAULTS),
        which=st.integers(0, 3),
        delay_ms=st.sampled_from((0, 1, 2, 5, 20)),
        tenths=st.sampled_from((5, 30, 80)),
    )
    def fault(self, kind: str, which: int, delay_ms: int, tenths: int) -> None:
        self._then("fault", kind, which, delay_ms, tenths)

    def teardown(self) -> None:
        """Play it, while there is time."""
        if self.steps and time.monotonic() < BUDGET.until:
            BUDGET.played += 1
            try:
                play(self.seed, self.steps, COUNTS)
            except Exception as error:
                if BUDGET.until < float("inf"):  # said at once: to make it smaller takes minutes
                    print(f"program {BUDGET.played} fails: {error!r:.500}", flush=True)
                    print(f"    play({self.seed}, {self.steps!r}, COUNTS)", flush=True)
                BUDGET.until = float("inf")  # it is shrunk, whatever the time
                raise


@dataclass
class Budget:
    """Of a campaign."""

    until: float = float("inf")
    played: int = 0


BUDGET = Budget()


def quick(runs: int, steps: int, **more: Any) -> settings:
    """How many programs, of how many steps at most."""
    return settings(
        max_examples=runs,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        **more,
    )


def main() -> None:
    """The campaign."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--minutes", type=float, default=600.0, help="fewer, when they are over")
    parser.add_argument("--planted", choices=sorted(BUGS), help="put this in, and find it")
    given = parser.parse_args()
    BUDGET.until = time.monotonic() + 60 * given.minutes
    logging.disable(logging.CRITICAL)
    options = quick(given.runs, given.steps, derandomize=False, print_blob=True)
    if given.planted:
        BUGS[given.planted].plant()
        options = settings(options, phases=[Phase.generate])
    try:
        run_state_machine_as_test(LogMachine, settings=options)
    except Exception as error:
        if not given.planted:
            raise
        print(f"found by program {BUDGET.played}: {error!r:.300}")
        return
    print(f"{BUDGET.played} programs, {sum(COUNTS.values())} calls and faults, 0 failures")
    for what, count in sorted(COUNTS.items()):
        print(f"{count:8,} {what}")


if __name__ == "__main__":
    main()
