"""Plays the faults of a scenario on an adapter, within what the service promises, and keeps the book.

Several loops draw independently of each other, from streams of chance of their own, so that faults overlap
freely; a lock a node keeps two of them off the same node. The book bounds how many nodes are impaired at
once (bounds.bookies_down_max, bounds.metadata_down_max), and damage to synced data meets one bookie and
one metadata node of a run only, the rotten ones: the promise holds while a good copy is there.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random

import trio

from .adapter import CLIENTS, Adapter, Link, Node, Role
from .crew import Crew
from .damage import damage
from .scenario import KINDS, MANY_NODES, Fault, Range, Scenario
from .words import last_words

BUSY_S = 0.25
"""Nobody can be hit just now: look again after this."""
START_S = 120.0
"""A loaded machine starts seven interpreters slowly; a node that refuses says so at once."""
WATCH_S = 0.25


class NobodyLeft(Exception):
    """The run was over before there was a node that this fault could meet within the bounds."""


class Nemesis:
    """What goes wrong in one run."""

    def __init__(
        self,
        scenario: Scenario,
        adapter: Adapter,
        seed: int,
        *,
        leader: Callable[[], Awaitable[str | None]],
        fault_begins: Callable[[str, Sequence[str], str], int],
        fault_ends: Callable[[int, str], None],
        say: Callable[[str], None],
        crew: Crew,
    ) -> None:
        self.scenario = scenario
        self.adapter = adapter
        self.counts: Counter[str] = Counter()
        self.deaths: list[str] = []
        """Nodes that ended by themselves while no fault was on them: defects."""
        self.gone: dict[str, str] = {}
        """Nodes whose damaged data they refuse to start with, and what they said."""
        self._seed = seed
        self._leader = leader
        self._begins = fault_begins
        self._ends = fault_ends
        self._say = say
        self._crew = crew
        self._client_locks = {name: trio.Lock() for name in crew.names()}
        self.over = trio.Event()
        """No more faults are begun; those that are on come to their end."""
        self._locks = {node.name: trio.Lock() for node in adapter.nodes}
        self._impaired: dict[str, None] = {}
        chance = Random(f"{seed}/rotten")
        self.rotten = {role: chance.choice(self._of(role)).name for role in Role}

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
                await self.over.wait()
            watching.cancel_scope.cancel()

    async def _loop(self, faults: Sequence[Fault], pause_s: Range, chance: Random) -> None:
        while not await self._over_within(chance.uniform(*pause_s)):
            with suppress(NobodyLeft):
                await self.play(chance.choice(faults), chance)

    async def _at(self, at_s: float, fault: Fault, chance: Random) -> None:
        if not await self._over_within(at_s):
            with suppress(NobodyLeft):
                await self.play(fault, chance)

    async def _over_within(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await self.over.wait()
        return self.over.is_set()

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
            "damage": self._damage,
            "clock": self._clock,
            "files-limit": self._files_limit,
            "kill-client": self._kill_client,
            "pause-client": self._pause_client,
        }
        clients = KINDS[fault.kind].clients
        async with (self._client if clients else self._targets)(fault, chance) as names:
            self.counts[fault.kind] += 1
            number = self._begins(fault.kind, names, _words(fault))
            said = "ended with the run"
            try:
                said = await deeds[fault.kind](fault, names, chance)
            finally:
                self._ends(number, said)

    # --- the book -------------------------------------------------------------------------------------

    def _of(self, role: Role) -> list[Node]:
        return [node for node in self.adapter.nodes if node.role is role]

    @asynccontextmanager
    async def _targets(self, fault: Fault, chance: Random) -> AsyncIterator[list[str]]:
        """The nodes that the fault meets, held against other faults while it lasts."""
        async with AsyncExitStack() as stack:
            if fault.target in MANY_NODES:
                names = [
                    node.name
                    for node in self.adapter.nodes
                    if fault.target == "all"
                    or (fault.target == "quorum") == (node.role is Role.METADATA)
                ]
                for name in names:  # in one order for all, so that nobody waits in a circle
                    await stack.enter_async_context(self._locks[name])
                names = [name for name in names if name not in self.gone]
            else:
                while True:
                    candidates = await self._candidates(fault)
                    if candidates:
                        break
                    if await self._over_within(BUSY_S):
                        raise NobodyLeft
                names = [chance.choice(candidates)]
                self._locks[names[0]].acquire_nowait()
                stack.callback(self._locks[names[0]].release)
            for name in names:
                self._impaired[name] = None
                stack.callback(self._impaired.pop, name, None)
            yield names

    @asynccontextmanager
    async def _client(self, fault: Fault, chance: Random) -> AsyncIterator[list[str]]:
        """One client of the kind that the fault names, held while it lasts."""
        while True:
            names = [
                name
                for name in self._crew.names(fault.target)
                if not self._client_locks[name].locked()
            ]
            if names:
                break
            if await self._over_within(BUSY_S):
                raise NobodyLeft
        name = chance.choice(names)
        async with self._client_locks[name]:
            yield [name]

    async def _candidates(self, fault: Fault) -> list[str]:
        leader = await self._leader() if fault.target in ("leader", "follower") else None
        if fault.target in ("leader", "follower") and leader is None:
            return []
        found = []
        for node in self.adapter.nodes:
            if not self._is_meant(fault, node, leader) or node.name in self.gone:
                continue
            if self._locks[node.name].locked() or self._full(node.role):
                continue
            found.append(node.name)
        return found

    def _is_meant(self, fault: Fault, node: Node, leader: str | None) -> bool:
        if KINDS[fault.kind].destroys:
            return node.role.value == fault.target and node.name == self.rotten[node.role]
        match fault.target:
            case "node":
                return True
            case "bookie" | "metadata":
                return node.role.value == fault.target
            case "leader":
                return node.name == leader
            case "follower":
                return node.role is Role.METADATA and node.name != leader
        return node.name == fault.target

    def _full(self, role: Role) -> bool:
        """May no more nodes of this role be impaired?"""
        bounds = self.scenario.bounds
        most = bounds.bookies_down_max if role is Role.BOOKIE else bounds.metadata_down_max
        names = {node.name for node in self._of(role)}
        return len(names & {*self._impaired, *self.gone}) >= most

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
                self.gone[name] = refused
            else:
                self.deaths.append(f"{name} did not start again: {refused}")

        await self._each(names, start)
        return "; ".join(sorted(said))

    async def _kill(self, fault: Fault, names: list[str], chance: Random) -> str:
        await self._each(names, self.adapter.kill)
        await trio.sleep(chance.uniform(*fault.hold_s))
        return await self._start(names)

    async def _restart(self, fault: Fault, names: list[str], chance: Random) -> str:
        await self._each(names, self.adapter.stop)
        await trio.sleep(chance.uniform(*fault.hold_s))
        return await self._start(names)

    async def _pause(self, fault: Fault, names: list[str], chance: Random) -> str:
        await self._each(names, self.adapter.pause)
        try:
            await trio.sleep(chance.uniform(*fault.hold_s))
        finally:
            with trio.CancelScope(shield=True):
                await self._each(names, self.adapter.resume)
        return "goes on"

    async def _power_cut(self, fault: Fault, names: list[str], chance: Random) -> str:
        await self.adapter.cut_power(names)
        await trio.sleep(chance.uniform(*fault.hold_s))
        return await self._start(names)

    async def _kill_client(self, fault: Fault, names: list[str], chance: Random) -> str:
        await self._each(names, self._crew.kill)
        await trio.sleep(chance.uniform(*fault.hold_s))
        await self._each(names, self._crew.start)
        return "started again"

    async def _pause_client(self, fault: Fault, names: list[str], chance: Random) -> str:
        for name in names:
            self._crew.pause(name)
        try:
            await trio.sleep(chance.uniform(*fault.hold_s))
        finally:
            for name in names:
                self._crew.resume(name)
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
            await trio.sleep(chance.uniform(*fault.hold_s))
        finally:
            with trio.CancelScope(shield=True):
                await self.adapter.heal(links)
        return "healed"

    async def _slow_link(self, fault: Fault, names: list[str], chance: Random) -> str:
        links = self._links(names, "both")
        await self.adapter.slow(links, fault.delay_s, fault.bytes_per_s)
        try:
            await trio.sleep(chance.uniform(*fault.hold_s))
        finally:
            with trio.CancelScope(shield=True):
                await self.adapter.slow(links, 0.0)
        return "fast again"

    # --- disks, clocks, limits ------------------------------------------------------------------------

    async def _disk_full(self, fault: Fault, names: list[str], chance: Random) -> str:
        for name in names:
            await self.adapter.fill_disk(name, fault.leave_kb * 1024)
        try:
            await trio.sleep(chance.uniform(*fault.hold_s))
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
            await trio.sleep(chance.uniform(*fault.hold_s))
            died = [name for name in names if not await self.adapter.running(name)]
        finally:
            with trio.CancelScope(shield=True):
                for name in names:
                    await self.adapter.mend_writes(name)
        ended = f"ended by themselves: {', '.join(died) or 'none'}; "
        return ended + await self._start(names)

    async def _damage(self, fault: Fault, names: list[str], chance: Random) -> str:
        await self._each(names, self.adapter.kill)
        said = [damage(self.adapter.data_directory(name), fault, chance) for name in names]
        await trio.sleep(chance.uniform(*fault.hold_s))
        started = await self._start(names, damaged=self.scenario.bounds.may_stay_down)
        return f"{'; '.join(said)}; {started}"

    async def _clock(self, fault: Fault, names: list[str], chance: Random) -> str:
        offset_s = round(chance.uniform(*fault.offset_s), 1)
        for name in names:
            await self.adapter.set_clock(name, offset_s)
        try:
            await trio.sleep(chance.uniform(*fault.hold_s))
        finally:
            with trio.CancelScope(shield=True):
                for name in names:
                    await self.adapter.set_clock(name, 0.0)
        return f"was off by {offset_s:g} s"

    async def _files_limit(self, fault: Fault, names: list[str], chance: Random) -> str:
        for name in names:
            await self.adapter.limit_files(name, fault.limit)
        try:
            await trio.sleep(chance.uniform(*fault.hold_s))
        finally:
            with trio.CancelScope(shield=True):
                for name in names:
                    await self.adapter.limit_files(name, None)
        return "as before"

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
                lock = self._locks[node.name]
                if lock.locked() or node.name in self.gone or await self.adapter.running(node.name):
                    continue
                async with lock:
                    last = last_words(self.adapter.log_of(node.name))
                    self.deaths.append(f"{node.name} ended by itself: {last}")
                    self._say(self.deaths[-1])
                    await self._start([node.name])

    async def heal(self) -> None:
        """After the run: everything that can run runs."""
        for node in self.adapter.nodes:
            await self.adapter.resume(node.name)
        down = [
            node.name
            for node in self.adapter.nodes
            if node.name not in self.gone and not await self.adapter.running(node.name)
        ]
        if down:
            self._say(await self._start(down))


def _words(fault: Fault) -> str:
    kind = KINDS[fault.kind]
    options = [f"{key} {getattr(fault, key)}" for key in kind.options]
    return ", ".join([fault.target, *options]) if options else fault.target
