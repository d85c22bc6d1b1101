"""Plays the faults of a scenario on an adapter, within what the service promises.

Several loops draw independently of each other, from streams of chance of their own, so that faults overlap
freely; whom each may meet is for fault_targets.py.

A new fault is a `Kind` in scenario.py and a method that `FaultPlayer.play` knows it by; what it does to a
node is a call of `adapter.py`, for processes and for containers. docs/operate/chaos.md has a row for each.
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
from ..model.adapter import CLIENTS, Adapter, Link, last_words
from ..model.scenario import KINDS, Fault, Range, Scenario
from .fault_targets import NobodyLeft, Targets

START_S = 120.0
"""A loaded machine starts seven interpreters slowly; a node that refuses says so at once."""
WATCH_S = 0.25
BREATH_S = 0.02
"""Between two holds of a slow disk."""
STRANGE_WORDS = b"GET /metrics HTTP/1.1\r\nHost: somewhere\r\n\r\n" + bytes(64)
KNOCK_S = 5.0


class FaultRecorder(Protocol):
    """Receives what happens to the nodes of a run, for its history and for the terminal."""

    def fault_begins(self, kind: str, names: Sequence[str], words: str) -> int:
        """Record a fault on these nodes and clients; return its number."""
        ...

    def fault_ends(self, number: int, words: str) -> None:
        """Record the end of a fault, and its outcome."""
        ...

    def say(self, words: str) -> None:
        """Record anything else."""
        ...


class FaultPlayer:
    """What goes wrong in one run."""

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
        """``by_hand``: faults last until `mend`, however long they are meant to."""
        self.scenario = scenario
        self.adapter = adapter
        self.counts: Counter[str] = Counter()
        self.deaths: list[str] = []
        """Nodes that ended by themselves while no fault was on them: defects."""
        self._seed = seed
        self._recorder = recorder
        self._clients = clients
        self._by_hand = by_hand
        self._holds: set[trio.CancelScope] = set()
        """Of the faults that are on now."""
        self.targets = Targets(adapter.nodes, clients, scenario.bounds, seed, leader)

    async def run(self) -> None:
        """Loops and moments, until `over` is set and all that is on has ended."""
        async with trio.open_nursery() as watching:
            watching.start_soon(self.watch)
            async with trio.open_nursery() as nursery:
                for loop in self.scenario.loops:
                    chance = Random(f"{self._seed}/loop/{loop.name}")
                    nursery.start_soon(self._loop, loop.faults, loop.pause_s, chance)
                for number, moment in enumerate(self.scenario.moments):
                    chance = Random(f"{self._seed}/moment/{number}")
                    nursery.start_soon(self._at, moment.at_s, moment.fault, chance)
                await self.targets.over.wait()
            watching.cancel_scope.cancel()

    async def _loop(self, faults: Sequence[Fault], pause_s: Range, chance: Random) -> None:
        while not await self.targets.over_within(chance.uniform(*pause_s)):
            with suppress(NobodyLeft):
                await self.play(chance.choice(faults), chance)

    async def _at(self, at_s: float, fault: Fault, chance: Random) -> None:
        if not await self.targets.over_within(at_s):
            with suppress(NobodyLeft):
                await self.play(fault, chance)

    async def play(self, fault: Fault, chance: Random) -> None:
        """One fault, from its beginning to its end; waits until the bounds allow it."""
        deeds: dict[str, Callable[[Fault, list[str], Random], Awaitable[str]]] = {
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
        clients = KINDS[fault.kind].clients
        async with (self.targets.client if clients else self.targets.nodes)(fault, chance) as names:
            self.counts[fault.kind] += 1
            number = self._recorder.fault_begins(fault.kind, names, _words(fault))
            said = "ended with the run"
            try:
                said = await deeds[fault.kind](fault, names, chance)
            finally:
                self._recorder.fault_ends(number, said)

    def mend(self) -> None:
        """End the faults that are on now."""
        for scope in self._holds:
            scope.cancel()

    @contextmanager
    def _holding(self, fault: Fault, chance: Random) -> Iterator[None]:
        """What is inside ends when the fault is to end."""
        seconds = chance.uniform(*fault.hold_s)  # drawn by hand too: a seed is one plan
        with trio.move_on_after(math.inf if self._by_hand else seconds) as scope:
            self._holds.add(scope)
            try:
                yield
            finally:
                self._holds.discard(scope)

    async def _hold(self, fault: Fault, chance: Random) -> None:
        with self._holding(fault, chance):
            await trio.sleep_forever()

    # --- machines -------------------------------------------------------------------------------------

    async def _each(self, names: Sequence[str], deed: Callable[[str], Awaitable[object]]) -> None:
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(deed, name)

    async def _start(self, names: Sequence[str], *, damaged: bool = False) -> str:
        said: list[str] = []

        async def start(name: str) -> None:
            refused = await self.adapter.start(name, START_S)
            if refused is None:
                said.append(f"{name} serves")
                return
            said.append(f"{name} {refused}")
            if damaged:
                self.targets.gone[name] = refused
            else:
                self.deaths.append(f"{name} did not start again: {refused}")

        await self._each(names, start)
        return "; ".join(sorted(said))

    async def _kill(self, fault: Fault, names: list[str], chance: Random) -> str:
        await self._each(names, self.adapter.kill)
        await self._hold(fault, chance)
        return await self._start(names)

    async def _restart(self, fault: Fault, names: list[str], chance: Random) -> str:
        await self._each(names, self.adapter.stop)
        await self._hold(fault, chance)
        return await self._start(names)

    async def _pause(self, fault: Fault, names: list[str], chance: Random) -> str:
        await self._each(names, self.adapter.pause)
        try:
            await self._hold(fault, chance)
        finally:
            with trio.CancelScope(shield=True):
                await self._each(names, self.adapter.resume)
        return "goes on"

    async def _power_cut(self, fault: Fault, names: list[str], chance: Random) -> str:
        await self.adapter.cut_power(names)
        await self._hold(fault, chance)
        return await self._start(names)

    async def _kill_client(self, fault: Fault, names: list[str], chance: Random) -> str:
        await self._each(names, self._clients.kill)
        await self._hold(fault, chance)
        await self._each(names, self._clients.start)
        return "started again"

    async def _run_client(self, fault: Fault, names: list[str], chance: Random) -> str:
        await self._each(names, self._clients.start)
        try:
            await self._hold(fault, chance)
        finally:
            with trio.CancelScope(shield=True):
                for name in names:
                    if (wrong := await self._clients.end(name)) is not None:
                        self.deaths.append(wrong)
        return "ended"

    async def _pause_client(self, fault: Fault, names: list[str], chance: Random) -> str:
        for name in names:
            self._clients.pause(name)
        try:
            await self._hold(fault, chance)
        finally:
            for name in names:
                self._clients.resume(name)
        return "goes on"

    # --- network --------------------------------------------------------------------------------------

    def _links(self, names: Sequence[str], direction: str) -> list[Link]:
        others = [node.name for node in self.adapter.nodes if node.name not in names]
        pairs = [(name, other) for name in names for other in (*others, CLIENTS)]
        out = pairs if direction in ("both", "out") else []
        into = [(b, a) for a, b in pairs] if direction in ("both", "in") else []
        return [*out, *into]

    async def _partition(self, fault: Fault, names: list[str], chance: Random) -> str:
        links = self._links(names, fault.direction)
        await self.adapter.cut(links)
        try:
            await self._hold(fault, chance)
        finally:
            with trio.CancelScope(shield=True):
                await self.adapter.heal(links)
        return "healed"

    async def _slow_link(self, fault: Fault, names: list[str], chance: Random) -> str:
        links = self._links(names, "both")
        await self.adapter.slow(links, fault.delay_s, fault.bytes_per_s)
        try:
            await self._hold(fault, chance)
        finally:
            with trio.CancelScope(shield=True):
                await self.adapter.slow(links, 0.0)
        return "fast again"

    # --- disks, clocks, limits ------------------------------------------------------------------------

    async def _disk_full(self, fault: Fault, names: list[str], chance: Random) -> str:
        for name in names:
            await self.adapter.fill_disk(name, fault.leave_kb * 1024)
        try:
            await self._hold(fault, chance)
        finally:
            with trio.CancelScope(shield=True):
                for name in names:
                    await self.adapter.free_disk(name)
        return await self._revive(names)

    async def _sync_errors(self, fault: Fault, names: list[str], chance: Random) -> str:
        for name in names:
            await self.adapter.fail_writes(name)
        died = []
        try:
            await self._hold(fault, chance)
            died = [name for name in names if not await self.adapter.running(name)]
        finally:
            with trio.CancelScope(shield=True):
                for name in names:
                    await self.adapter.mend_writes(name)
        ended = f"ended by themselves: {', '.join(died) or 'none'}; "
        return ended + await self._start(names)

    async def _slow_disk(self, fault: Fault, names: list[str], chance: Random) -> str:
        """Held again and again, with as short a moment between as lets one write through."""
        with self._holding(fault, chance):
            while True:
                try:
                    await self._each(names, lambda name: self.adapter.hold_disk(name, True))
                    await trio.sleep(fault.delay_s)
                finally:
                    with trio.CancelScope(shield=True):
                        await self._each(names, lambda name: self.adapter.hold_disk(name, False))
                await trio.sleep(BREATH_S)
        return "fast again"

    async def _damage(self, fault: Fault, names: list[str], chance: Random) -> str:
        await self._each(names, self.adapter.kill)
        said = [damage(self.adapter.data_directory(name), fault, chance) for name in names]
        await self._hold(fault, chance)
        started = await self._start(names, damaged=self.scenario.bounds.may_stay_down)
        return f"{'; '.join(said)}; {started}"

    async def _clock(self, fault: Fault, names: list[str], chance: Random) -> str:
        offset_s = round(chance.uniform(*fault.offset_s), 1)
        for name in names:
            await self.adapter.set_clock(name, offset_s)
        try:
            await self._hold(fault, chance)
        finally:
            with trio.CancelScope(shield=True):
                for name in names:
                    await self.adapter.set_clock(name, 0.0)
        return f"was off by {offset_s:g} s"

    async def _files_limit(self, fault: Fault, names: list[str], chance: Random) -> str:
        for name in names:
            await self.adapter.limit_files(name, fault.limit)
        try:
            await self._hold(fault, chance)
        finally:
            with trio.CancelScope(shield=True):
                for name in names:
                    await self.adapter.limit_files(name, None)
        return "as before"

    # --- what is none of these ------------------------------------------------------------------------

    async def _rot_everywhere(self, fault: Fault, names: list[str], chance: Random) -> str:
        await self._each(names, self.adapter.stop)
        said = rot([self.adapter.data_directory(name) for name in names], fault, chance)
        started = await self._start(names)
        await self._hold(fault, chance)
        return f"{said}; {started}"

    async def _strangers(self, fault: Fault, names: list[str], chance: Random) -> str:
        places = {node.name: node.address for node in self.adapter.nodes}
        told = Counter[str]()
        with self._holding(fault, chance):
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(connect_unauthenticated, places[name], fault.per_s, told)
        return f"{told['answered']} of {told['knocked']} were answered"

    async def _settings(self, fault: Fault, names: list[str], chance: Random) -> str:
        said = await self._start_with(names, fault.settings)
        await self._hold(fault, chance)
        return f"{said}; with its own again: {await self._start_with(names, {})}"

    async def _start_with(self, names: Sequence[str], settings: Mapping[str, Any]) -> str:
        await self._each(names, self.adapter.stop)
        for name in names:
            await self.adapter.configure(name, settings)
        return await self._start(names)

    async def _wrong_memory(self, fault: Fault, names: list[str], chance: Random) -> str:
        for name in names:
            await self.adapter.spoil_memory(name)
        await self._hold(fault, chance)
        wrong = [name for name in names if await self.adapter.spoiled(name)]
        await self._each(names, self.adapter.stop)
        return f"a bit was wrong at {', '.join(wrong) or 'nobody'}; {await self._start(names)}"

    async def _revive(self, names: Sequence[str]) -> str:
        """Start again those that ended by themselves, as they may under this fault."""
        died = [name for name in names if not await self.adapter.running(name)]
        return await self._start(died) if died else "went on"

    # --- watching and healing -------------------------------------------------------------------------

    async def watch(self) -> None:
        """A node that ends while no fault is on it has a defect: tell, and start it again."""
        while True:
            await trio.sleep(WATCH_S)
            for node in self.adapter.nodes:
                lock = self.targets.locks[node.name]
                if (
                    lock.locked()
                    or node.name in self.targets.gone
                    or await self.adapter.running(node.name)
                ):
                    continue
                async with lock:
                    last = last_words(self.adapter.log_of(node.name))
                    self.deaths.append(f"{node.name} ended by itself: {last}")
                    self._recorder.say(self.deaths[-1])
                    await self._start([node.name])

    async def heal(self) -> None:
        """After the run: everything that can run runs."""
        for node in self.adapter.nodes:
            await self.adapter.resume(node.name)
        down = [
            node.name
            for node in self.adapter.nodes
            if node.name not in self.targets.gone and not await self.adapter.running(node.name)
        ]
        if down:
            self._recorder.say(await self._start(down))


def _words(fault: Fault) -> str:
    kind = KINDS[fault.kind]
    options = [f"{key} {getattr(fault, key)}" for key in kind.options]
    return ", ".join([fault.target, *options]) if options else fault.target


async def connect_unauthenticated(address: Address, per_s: float, told: Counter[str]) -> None:
    """As somebody who is no peer, open connections and speak another protocol.

    So many connections a second at most, one after the other, until cancelled; ``told`` counts them.
    """
    while True:
        told["knocked"] += 1
        try:
            with trio.move_on_after(KNOCK_S):
                async with await trio.open_tcp_stream(*address) as stream:
                    await stream.send_all(STRANGE_WORDS)
                    if await stream.receive_some(1):
                        told["answered"] += 1
        except (OSError, trio.BrokenResourceError):
            pass  # hung up on: what is expected
        await trio.sleep(1.0 / per_s)
