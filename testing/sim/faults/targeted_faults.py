"""Faults by state: waits for a moment (`trigger_points.py`), then crashes, cuts or loses the answer exactly
there.

A seed draws some kinds of moments and lies in wait for one of each at a time: for the next, or for a later
one. What is done there is drawn too, and kept within the promise as everything that the nemesis does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import trio

from .nemesis import Nemesis
from .trigger_points import AT_PROXIES, KINDS, MESSAGES, REQUESTS, STEPS

KINDS_DRAWN = (6, 12, 20)
"""So often a kind is drawn for a seed, those of `WORST` more readily."""
WORST = (
    "ensemble change", "close", "recovery begun", "segment registered", "swap", "snapshot chunk",
    "checkpoint", "first file of a start", "first checkpoint of a start", "journal roll",
)  # fmt: skip
"""Where order matters most."""
DELAYS_S = (0.0, 0.0, 0.0003, 0.002, 0.02)
"""From the moment to the fault: the request is on its way for 0.1 to 1 ms, or 20."""
WAITS_S = (0.2, 1.0, 3.0)
"""Mean time between two ambushes that are laid."""
STRIKES_MAX = 14
"""In one seed: it must still get some work done."""

REQUEST_DEEDS = (
    "kill", "power cut", "crash point", "power cut of the asked", "crash point of the asked",
    "answers lost", "answers lost", "cut off", "reset", "stall", "all asked crash",
)  # fmt: skip
STEP_DEEDS = (
    "power cut",
    "power cut",
    "kill",
    "crash point",
    "crash point",
    "EIO",
    "cut off",
    "stall",
)
PROXY_DEEDS = (
    "kill", "kill", "crash point", "answers lost", "cut off", "cut off", "reset", "stall", "stall",
)  # fmt: skip
"""To the proxy itself; it has no disk."""
OFTEN = (
    "entry durable", "frames answered", "range read", "entries sent", "log changed under a feed",
)  # fmt: skip
"""Hundreds in a seed: more of them pass unharmed."""
OFTEN_SKIPPED_MAX = 200
RARE = ("lose blocks", "wipe")
"""What destroys synced data, on the one bookie that may lose it."""


@dataclass(slots=True)
class _Ambush:
    deed: str
    skip: int
    """So many more moments pass unharmed."""


class TargetedFaults:
    """Lies in wait in one run."""

    def __init__(self, nemesis: Nemesis, chance: Random) -> None:
        self._nemesis = nemesis
        self._cluster = nemesis.cluster
        self._chance = chance
        self._laid: dict[str, _Ambush] = {}
        there = AT_PROXIES if self._cluster.proxies else ()
        bowl = (*KINDS, *WORST, *WORST, *there, *there, *there)
        drawn = chance.sample(bowl, chance.choice(KINDS_DRAWN))
        self._kinds = list(dict.fromkeys(drawn))
        self._wait_s = chance.choice(WAITS_S)
        self._strikes = 0
        self._deeds: dict[str, Callable[[str, str], None]] = {
            "kill": lambda actor, asked: self._down(actor, power=False),
            "power cut": lambda actor, asked: self._down(actor, power=True),
            "crash point": lambda actor, asked: self._crash_point(actor),
            "power cut of the asked": lambda actor, asked: self._down(asked, power=True),
            "crash point of the asked": lambda actor, asked: self._crash_point(asked),
            "all asked crash": self._all_asked_crash,
            "answers lost": self._lose_answers,
            "cut off": self._cut_off,
            "reset": self._reset,
            "stall": lambda actor, asked: self._stall(actor),
            "EIO": lambda actor, asked: self._fail_sync(actor),
            "lose blocks": lambda actor, asked: nemesis.lose_blocks(chance),
            "wipe": lambda actor, asked: nemesis.wipe_once(chance),
        }
        for kind in self._kinds:  # what is rare would have no strike left
            if kind in AT_PROXIES and kind not in OFTEN:
                self._lay(kind)
        if chance.random() < 0.3:  # the very first start, too
            for kind in self._kinds:
                if kind in STEPS or kind == "bookie registered":
                    self._lay(kind)

    async def run(self) -> None:
        """Lay ambushes until cancelled."""
        while self._strikes < STRIKES_MAX:
            free = [kind for kind in self._kinds if kind not in self._laid]
            if free:
                self._lay(self._chance.choice(free))
            await trio.sleep(self._chance.expovariate(1.0 / self._wait_s))

    def _lay(self, kind: str) -> None:
        chance = self._chance
        deeds: Sequence[str] = STEP_DEEDS if kind in STEPS else REQUEST_DEEDS
        if kind in AT_PROXIES:
            deeds = PROXY_DEEDS
        elif chance.random() < 0.05:
            deeds = RARE
        skip = chance.choice((0, 0, 0, 1, 2, 5))
        if kind in OFTEN:
            skip = chance.randrange(OFTEN_SKIPPED_MAX)
        self._laid[kind] = _Ambush(chance.choice(deeds), skip)

    def on_moment(self, kind: str, actor: str, asked: str) -> None:
        """See `moments.OnMoment`. What is done is done a little later: this is called out of a send."""
        laid = self._laid.get(kind)
        if laid is None or self._nemesis.over:
            return
        if laid.skip:
            laid.skip -= 1
            return
        del self._laid[kind]
        self._strikes += 1
        delay_s = self._chance.choice(DELAYS_S)
        self._cluster.simulation.after(delay_s, self._strike, kind, laid.deed, actor, asked)

    def _strike(self, kind: str, deed: str, actor: str, asked: str) -> None:
        if self._nemesis.over:
            return
        self._nemesis.counts[f"at {kind}"] += 1
        self._cluster.simulation.note("at", kind, deed, actor, asked)
        self._deeds[deed](actor, asked)

    # --- deeds --------------------------------------------------------------------------------------

    def _down(self, name: str, *, power: bool) -> None:
        host = self._cluster.machines[name]
        if power:
            host.power_cut()
        else:
            host.kill()
        self._nemesis.later_on(self._chance, [name])

    def _crash_point(self, name: str) -> None:
        """Not here, but a few steps of its disk or network later."""
        power = self._chance.random() < 0.7
        self._nemesis.crash_soon(self._chance, name, self._chance.randrange(1, 25), power=power)

    def _peers(self, asked: str) -> list[str]:
        """All that might give the same answer."""
        cluster = self._cluster
        return cluster.metadata if asked in cluster.metadata else [asked]

    def _all_asked_crash(self, actor: str, asked: str) -> None:
        names = self._peers(asked)
        for name in names:
            self._cluster.machines[name].power_cut()
        for name in names:
            self._nemesis.later_on(self._chance, [name])

    def _lose_answers(self, actor: str, asked: str) -> None:
        """What is asked is done, and nobody who asked hears of it."""
        pairs = [(name, actor) for name in self._peers(asked) if name != actor]
        self._nemesis.cut(
            self._chance, pairs, mended_after_s=self._chance.choice((0.3, 2.0, 5.0, 12.0))
        )

    def _cut_off(self, actor: str, asked: str) -> None:
        """From everything, or from those that it asks only."""
        others = [name for name in self._cluster.nodes if name != actor]
        if asked and self._chance.random() < 0.5:
            others = [name for name in self._peers(asked) if name != actor]
        pairs = [(actor, name) for name in others]
        if self._chance.random() < 0.7:
            pairs += [(name, actor) for name in others]
        self._nemesis.cut(self._chance, pairs)

    def _reset(self, actor: str, asked: str) -> None:
        network = self._cluster.network
        for end in list(network.ends.values()):
            if {end.host.name, end.far.host.name} == {actor, asked}:
                network.reset(end)

    def _stall(self, name: str) -> None:
        self._cluster.machines[name].stall(
            self._chance.choice((0.5, 3.0, 8.0)) * self._chance.random()
        )

    def _fail_sync(self, name: str) -> None:
        disk = self._chance.choice(self._cluster.machines[name].devices())
        disk.faults.failing_syncs += 1


assert not {*REQUESTS, *MESSAGES, *AT_PROXIES} & {*STEPS}, (
    "a kind is asked of somebody, or is a step of a disk"
)
