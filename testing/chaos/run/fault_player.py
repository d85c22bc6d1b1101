"""Inject the faults of a scenario through an adapter, within the guarantees of the service.

Several loops select faults independently, with separate random generators, so that faults overlap freely.
fault_targets.py selects the targets.

A new fault needs a `FaultKind` in scenario.py and a method in the table of `FaultPlayer.play`. It acts on
nodes by calls of `adapter.py`, for processes and for containers. docs/operate/chaos.md has a row for each
fault.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, Protocol

import trio

from ....runtime.interfaces.host import Address
from ..adapters.disk_damage import damage, rot
from ..clients.client_processes import Clients
from ..model.adapter import CLIENTS, Adapter, Link, last_error
from ..model.scenario import KINDS, Fault, Range, Scenario
from .fault_targets import NoTargetLeft, Targets

START_S = 120.0
"""A loaded machine starts seven interpreters slowly. A node that refuses reports it at once."""
WATCH_S = 0.25
BREATH_S = 0.02
"""Between two freezes of a slow disk."""
STRANGE_WORDS = b"GET /metrics HTTP/1.1\r\nHost: somewhere\r\n\r\n" + bytes(64)
KNOCK_S = 5.0


class FaultRecorder(Protocol):
    """Receives what happens to the nodes of a run, for its history and for the terminal."""

    def fault_begins(self, kind: str, names: Sequence[str], text: str) -> int:
        """Record a fault on these nodes and clients; return its number."""
        ...

    def fault_ends(self, number: int, text: str) -> None:
        """Record the end of a fault, and its outcome."""
        ...

    def report(self, text: str) -> None:
        """Record anything else."""
        ...


class FaultPlayer:
    """Injects the faults of one run."""

    def __init__(
        self,
        scenario: Scenario,
        adapter: Adapter,
        seed: int,
        *,
        leader: Callable[[], Awaitable[str | None]],
        recorder: FaultRecorder,
        clients: Clients,
        by_hand: bool = False,
    ) -> None:
        """Create the player; with ``by_hand``, faults last until `end_faults`, whatever their duration."""
        self.scenario = scenario
        self.adapter = adapter
        self.counts: Counter[str] = Counter()
        self.unexpected_exits: list[str] = []
        """Nodes that ended without a fault, which are defects."""
        self._seed = seed
        self._recorder = recorder
        self._clients = clients
        self._by_hand = by_hand
        self._hold_scopes: set[trio.CancelScope] = set()
        """The scopes of the present faults."""
        self.targets = Targets(adapter.nodes, clients, scenario.bounds, seed, leader)

    async def run(self) -> None:
        """Run loops and moments until `Targets.is_over` is set and all faults have ended."""
        async with trio.open_nursery() as watch_nursery:
            watch_nursery.start_soon(self.restart_ended_nodes)
            async with trio.open_nursery() as nursery:
                for loop in self.scenario.loops:
                    rng = Random(f"{self._seed}/loop/{loop.name}")
                    nursery.start_soon(self._loop, loop.faults, loop.pause_s, rng)
                for number, moment in enumerate(self.scenario.moments):
                    rng = Random(f"{self._seed}/moment/{number}")
                    nursery.start_soon(self._play_at, moment.at_s, moment.fault, rng)
                await self.targets.is_over.wait()
            watch_nursery.cancel_scope.cancel()

    async def _loop(self, faults: Sequence[Fault], pause_s: Range, rng: Random) -> None:
        while not await self.targets.wait_over(rng.uniform(*pause_s)):
            with suppress(NoTargetLeft):
                await self.play(rng.choice(faults), rng)

    async def _play_at(self, at_s: float, fault: Fault, rng: Random) -> None:
        if not await self.targets.wait_over(at_s):
            with suppress(NoTargetLeft):
                await self.play(fault, rng)

    async def play(self, fault: Fault, rng: Random) -> None:
        """Run one fault from start to end; wait until the limits allow it."""
        fault_functions: dict[str, Callable[[Fault, list[str], Random], Awaitable[str]]] = {
            "kill": self._kill,
            "restart": self._restart,
            "pause": self._pause,
            "partition": self._partition,
            "slow-link": self._slow_link,
            "power-cut": self._power_cut,
            "disk-full": self._disk_full,
            "sync-errors": self._sync_errors,
            "slow-disk": self._slow_disk,
            "damage": self._damage,
            "clock": self._clock,
            "files-limit": self._files_limit,
            "rot-everywhere": self._rot_everywhere,
            "strangers": self._strangers,
            "settings": self._settings,
            "wrong-memory": self._wrong_memory,
            "run-client": self._run_client,
            "kill-client": self._kill_client,
            "pause-client": self._pause_client,
        }
        is_client_fault = KINDS[fault.kind].targets_clients
        async with (self.targets.acquire_client if is_client_fault else self.targets.acquire_nodes)(
            fault, rng
        ) as names:
            self.counts[fault.kind] += 1
            number = self._recorder.fault_begins(fault.kind, names, _words(fault))
            result = "ended with the run"
            try:
                result = await fault_functions[fault.kind](fault, names, rng)
            finally:
                self._recorder.fault_ends(number, result)

    def end_faults(self) -> None:
        """End the present faults."""
        for scope in self._hold_scopes:
            scope.cancel()

    @contextmanager
    def _fault_duration(self, fault: Fault, rng: Random) -> Iterator[None]:
        """Limit the body to the duration of the fault."""
        # Also called with `by_hand`, so that a seed always gives the same plan.
        seconds = rng.uniform(*fault.hold_s)
        with trio.move_on_after(math.inf if self._by_hand else seconds) as scope:
            self._hold_scopes.add(scope)
            try:
                yield
            finally:
                self._hold_scopes.discard(scope)

    async def _sleep_duration(self, fault: Fault, rng: Random) -> None:
        with self._fault_duration(fault, rng):
            await trio.sleep_forever()

    # --- machines -------------------------------------------------------------------------------------

    async def _run_on_each(
        self, names: Sequence[str], action: Callable[[str], Awaitable[object]]
    ) -> None:
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(action, name)

    async def _start_nodes(self, names: Sequence[str], *, damaged: bool = False) -> str:
        results: list[str] = []

        async def start(name: str) -> None:
            refusal = await self.adapter.start(name, START_S)
            if refusal is None:
                results.append(f"{name} serves")
                return
            results.append(f"{name} {refusal}")
            if damaged:
                self.targets.refusing_nodes[name] = refusal
            else:
                self.unexpected_exits.append(f"{name} did not start again: {refusal}")

        await self._run_on_each(names, start)
        return "; ".join(sorted(results))

    async def _kill(self, fault: Fault, names: list[str], rng: Random) -> str:
        await self._run_on_each(names, self.adapter.kill)
        await self._sleep_duration(fault, rng)
        return await self._start_nodes(names)

    async def _restart(self, fault: Fault, names: list[str], rng: Random) -> str:
        await self._run_on_each(names, self.adapter.stop)
        await self._sleep_duration(fault, rng)
        return await self._start_nodes(names)

    async def _pause(self, fault: Fault, names: list[str], rng: Random) -> str:
        await self._run_on_each(names, self.adapter.pause)
        try:
            await self._sleep_duration(fault, rng)
        finally:
            with trio.CancelScope(shield=True):
                await self._run_on_each(names, self.adapter.resume)
        return "resumed"

    async def _power_cut(self, fault: Fault, names: list[str], rng: Random) -> str:
        await self.adapter.cut_power(names)
        await self._sleep_duration(fault, rng)
        return await self._start_nodes(names)

    async def _kill_client(self, fault: Fault, names: list[str], rng: Random) -> str:
        await self._run_on_each(names, self._clients.kill)
        await self._sleep_duration(fault, rng)
        await self._run_on_each(names, self._clients.start)
        return "started again"

    async def _run_client(self, fault: Fault, names: list[str], rng: Random) -> str:
        await self._run_on_each(names, self._clients.start)
        try:
            await self._sleep_duration(fault, rng)
        finally:
            with trio.CancelScope(shield=True):
                for name in names:
                    if (failure := await self._clients.end(name)) is not None:
                        self.unexpected_exits.append(failure)
        return "ended"

    async def _pause_client(self, fault: Fault, names: list[str], rng: Random) -> str:
        for name in names:
            self._clients.pause(name)
        try:
            await self._sleep_duration(fault, rng)
        finally:
            for name in names:
                self._clients.resume(name)
        return "resumed"

    # --- network --------------------------------------------------------------------------------------

    def _links(self, names: Sequence[str], direction: str) -> list[Link]:
        others = [node.name for node in self.adapter.nodes if node.name not in names]
        pairs = [(name, other) for name in names for other in (*others, CLIENTS)]
        outgoing = pairs if direction in ("both", "out") else []
        incoming = (
            [(target, source) for source, target in pairs] if direction in ("both", "in") else []
        )
        return [*outgoing, *incoming]

    async def _partition(self, fault: Fault, names: list[str], rng: Random) -> str:
        links = self._links(names, fault.direction)
        await self.adapter.cut(links)
        try:
            await self._sleep_duration(fault, rng)
        finally:
            with trio.CancelScope(shield=True):
                await self.adapter.heal(links)
        return "healed"

    async def _slow_link(self, fault: Fault, names: list[str], rng: Random) -> str:
        links = self._links(names, "both")
        await self.adapter.slow(links, fault.delay_s, fault.bytes_per_s)
        try:
            await self._sleep_duration(fault, rng)
        finally:
            with trio.CancelScope(shield=True):
                await self.adapter.slow(links, 0.0)
        return "fast again"

    # --- disks, clocks, limits ------------------------------------------------------------------------

    async def _disk_full(self, fault: Fault, names: list[str], rng: Random) -> str:
        for name in names:
            await self.adapter.fill_disk(name, fault.leave_kb * 1024)
        try:
            await self._sleep_duration(fault, rng)
        finally:
            with trio.CancelScope(shield=True):
                for name in names:
                    await self.adapter.free_disk(name)
        return await self._restart_ended(names)

    async def _sync_errors(self, fault: Fault, names: list[str], rng: Random) -> str:
        for name in names:
            await self.adapter.fail_writes(name)
        ended_nodes = []
        try:
            await self._sleep_duration(fault, rng)
            ended_nodes = [name for name in names if not await self.adapter.is_running(name)]
        finally:
            with trio.CancelScope(shield=True):
                for name in names:
                    await self.adapter.mend_writes(name)
        ended_text = f"ended by themselves: {', '.join(ended_nodes) or 'none'}; "
        return ended_text + await self._start_nodes(names)

    async def _slow_disk(self, fault: Fault, names: list[str], rng: Random) -> str:
        """Freeze the disk repeatedly, with short pauses in which one write can end."""
        with self._fault_duration(fault, rng):
            while True:
                try:
                    await self._run_on_each(names, lambda name: self.adapter.hold_disk(name, True))
                    await trio.sleep(fault.delay_s)
                finally:
                    with trio.CancelScope(shield=True):
                        await self._run_on_each(
                            names, lambda name: self.adapter.hold_disk(name, False)
                        )
                await trio.sleep(BREATH_S)
        return "fast again"

    async def _damage(self, fault: Fault, names: list[str], rng: Random) -> str:
        await self._run_on_each(names, self.adapter.kill)
        damages = [damage(self.adapter.data_directory(name), fault, rng) for name in names]
        await self._sleep_duration(fault, rng)
        started = await self._start_nodes(names, damaged=self.scenario.bounds.may_stay_down)
        return f"{'; '.join(damages)}; {started}"

    async def _clock(self, fault: Fault, names: list[str], rng: Random) -> str:
        offset_s = round(rng.uniform(*fault.offset_s), 1)
        for name in names:
            await self.adapter.set_clock(name, offset_s)
        try:
            await self._sleep_duration(fault, rng)
        finally:
            with trio.CancelScope(shield=True):
                for name in names:
                    await self.adapter.set_clock(name, 0.0)
        return f"was off by {offset_s:g} s"

    async def _files_limit(self, fault: Fault, names: list[str], rng: Random) -> str:
        for name in names:
            await self.adapter.limit_files(name, fault.limit)
        try:
            await self._sleep_duration(fault, rng)
        finally:
            with trio.CancelScope(shield=True):
                for name in names:
                    await self.adapter.limit_files(name, None)
        return "limit restored"

    # --- other faults ---------------------------------------------------------------------------------

    async def _rot_everywhere(self, fault: Fault, names: list[str], rng: Random) -> str:
        await self._run_on_each(names, self.adapter.stop)
        damage_text = rot([self.adapter.data_directory(name) for name in names], fault, rng)
        start_text = await self._start_nodes(names)
        await self._sleep_duration(fault, rng)
        return f"{damage_text}; {start_text}"

    async def _strangers(self, fault: Fault, names: list[str], rng: Random) -> str:
        addresses = {node.name: node.address for node in self.adapter.nodes}
        answer_counts = Counter[str]()
        with self._fault_duration(fault, rng):
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(
                        connect_unauthenticated, addresses[name], fault.per_s, answer_counts
                    )
        return f"{answer_counts['answered']} of {answer_counts['knocked']} were answered"

    async def _settings(self, fault: Fault, names: list[str], rng: Random) -> str:
        start_text = await self._start_with(names, fault.settings)
        await self._sleep_duration(fault, rng)
        return f"{start_text}; with its own again: {await self._start_with(names, {})}"

    async def _start_with(self, names: Sequence[str], settings: Mapping[str, Any]) -> str:
        await self._run_on_each(names, self.adapter.stop)
        for name in names:
            await self.adapter.configure(name, settings)
        return await self._start_nodes(names)

    async def _wrong_memory(self, fault: Fault, names: list[str], rng: Random) -> str:
        for name in names:
            await self.adapter.spoil_memory(name)
        await self._sleep_duration(fault, rng)
        affected = [name for name in names if await self.adapter.is_memory_spoiled(name)]
        await self._run_on_each(names, self.adapter.stop)
        return f"a bit was wrong at {', '.join(affected) or 'no node'}; {await self._start_nodes(names)}"

    async def _restart_ended(self, names: Sequence[str]) -> str:
        """Start nodes again that ended, as they may under this fault."""
        ended_nodes = [name for name in names if not await self.adapter.is_running(name)]
        return await self._start_nodes(ended_nodes) if ended_nodes else "continued"

    # --- watching and healing -------------------------------------------------------------------------

    async def restart_ended_nodes(self) -> None:
        """Start nodes again that ended without a fault, and report them as defects."""
        while True:
            await trio.sleep(WATCH_S)
            for node in self.adapter.nodes:
                lock = self.targets.locks[node.name]
                if (
                    lock.locked()
                    or node.name in self.targets.refusing_nodes
                    or await self.adapter.is_running(node.name)
                ):
                    continue
                async with lock:
                    last_line = last_error(self.adapter.log_of(node.name))
                    self.unexpected_exits.append(f"{node.name} ended unexpectedly: {last_line}")
                    self._recorder.report(self.unexpected_exits[-1])
                    await self._start_nodes([node.name])

    async def heal(self) -> None:
        """Start everything that can run, after the faults."""
        for node in self.adapter.nodes:
            await self.adapter.resume(node.name)
        ended_nodes = [
            node.name
            for node in self.adapter.nodes
            if node.name not in self.targets.refusing_nodes
            and not await self.adapter.is_running(node.name)
        ]
        if ended_nodes:
            self._recorder.report(await self._start_nodes(ended_nodes))


def _words(fault: Fault) -> str:
    kind = KINDS[fault.kind]
    options = [f"{key} {getattr(fault, key)}" for key in kind.options]
    return ", ".join([fault.target, *options]) if options else fault.target


async def connect_unauthenticated(
    address: Address, per_s: float, answer_counts: Counter[str]
) -> None:
    """Open connections that speak another protocol, as an unauthenticated client.

    At most ``per_s`` connections per second are opened, one after another, until cancelled. ``answer_counts``
    counts them.
    """
    while True:
        answer_counts["knocked"] += 1
        try:
            with trio.move_on_after(KNOCK_S):
                async with await trio.open_tcp_stream(*address) as stream:
                    await stream.send_all(STRANGE_WORDS)
                    if await stream.receive_some(1):
                        answer_counts["answered"] += 1
        except (OSError, trio.BrokenResourceError):
            pass  # disconnected, as expected
        await trio.sleep(1.0 / per_s)
