"""Inject faults at given protocol states, which `trigger_points.py` detects.

A seed chooses some kinds of trigger points. For each of them it arms one fault at a time, for the next
occurrence or for a later one. The fault is random too, and stays within the guarantees like all faults of
the nemesis.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import trio

from .nemesis import Nemesis
from .trigger_points import AT_PROXIES, KINDS, MESSAGES, REQUESTS, STEPS

KINDS_DRAWN = (6, 12, 20)
"""Number of random draws of trigger kinds for a seed. Kinds in `WORST` are more likely."""
WORST = (
    "ensemble change", "close", "recovery begun", "segment registered", "swap", "snapshot chunk",
    "checkpoint", "first file of a start", "first checkpoint of a start", "journal roll",
)  # fmt: skip
"""Trigger points at which the order of steps matters most."""
DELAYS_S = (0.0, 0.0, 0.0003, 0.002, 0.02)
"""Seconds from the trigger point to the fault. A message travels for 0.1 to 1 ms, or for up to 20 ms."""
WAITS_S = (0.2, 1.0, 3.0)
"""Mean seconds until another fault is armed."""
STRIKES_MAX = 14
"""Limit of targeted faults per seed, so that the cluster still makes progress."""

REQUEST_FAULTS = (
    "kill", "power cut", "crash point", "power cut of the asked", "crash point of the asked",
    "answers lost", "answers lost", "cut off", "reset", "stall", "all asked crash",
)  # fmt: skip
STEP_FAULTS = (
    "power cut",
    "power cut",
    "kill",
    "crash point",
    "crash point",
    "EIO",
    "cut off",
    "stall",
)
PROXY_FAULTS = (
    "kill", "kill", "crash point", "answers lost", "cut off", "cut off", "reset", "stall", "stall",
)  # fmt: skip
"""Faults of the proxy itself, which has no disk."""
OFTEN = (
    "entry durable", "frames answered", "range read", "entries sent", "log changed under a feed",
)  # fmt: skip
"""Trigger points that occur hundreds of times per seed. More of their occurrences are skipped."""
OFTEN_SKIPPED_MAX = 200
RARE = ("lose blocks", "wipe")
"""Faults that destroy synced data, on the lossy bookie only."""


@dataclass(slots=True)
class _ArmedFault:
    fault: str
    skip: int
    """How many more occurrences pass without a fault."""


class TargetedFaults:
    """The targeted faults of one run."""

    def __init__(self, nemesis: Nemesis, rng: Random) -> None:
        self._nemesis = nemesis
        self._cluster = nemesis.cluster
        self._rng = rng
        self._armed_faults: dict[str, _ArmedFault] = {}
        proxy_triggers = AT_PROXIES if self._cluster.proxies else ()
        weighted_triggers = (
            *KINDS,
            *WORST,
            *WORST,
            *proxy_triggers,
            *proxy_triggers,
            *proxy_triggers,
        )
        chosen = rng.sample(weighted_triggers, rng.choice(KINDS_DRAWN))
        self._triggers = list(dict.fromkeys(chosen))
        self._wait_s = rng.choice(WAITS_S)
        self._strike_count = 0
        self._fault_functions: dict[str, Callable[[str, str], None]] = {
            "kill": lambda actor, asked: self._stop_machine(actor, power=False),
            "power cut": lambda actor, asked: self._stop_machine(actor, power=True),
            "crash point": lambda actor, asked: self._crash_point(actor),
            "power cut of the asked": lambda actor, asked: self._stop_machine(asked, power=True),
            "crash point of the asked": lambda actor, asked: self._crash_point(asked),
            "all asked crash": self._crash_all_answerers,
            "answers lost": self._lose_answers,
            "cut off": self._cut_off,
            "reset": self._reset_connections,
            "stall": lambda actor, asked: self._stall(actor),
            "EIO": lambda actor, asked: self._fail_sync(actor),
            "lose blocks": lambda actor, asked: nemesis.lose_blocks(rng),
            "wipe": lambda actor, asked: nemesis.wipe_once(rng),
        }
        for kind in (
            self._triggers
        ):  # armed at the start, because rare kinds could otherwise miss the limit
            if kind in AT_PROXIES and kind not in OFTEN:
                self._arm_fault(kind)
        if rng.random() < 0.3:  # the first start of the nodes, too
            for kind in self._triggers:
                if kind in STEPS or kind == "bookie registered":
                    self._arm_fault(kind)

    async def run(self) -> None:
        """Arm faults until cancelled or until the limit is reached."""
        while self._strike_count < STRIKES_MAX:
            unused_triggers = [kind for kind in self._triggers if kind not in self._armed_faults]
            if unused_triggers:
                self._arm_fault(self._rng.choice(unused_triggers))
            await trio.sleep(self._rng.expovariate(1.0 / self._wait_s))

    def _arm_fault(self, trigger: str) -> None:
        rng = self._rng
        fault_names: Sequence[str] = STEP_FAULTS if trigger in STEPS else REQUEST_FAULTS
        if trigger in AT_PROXIES:
            fault_names = PROXY_FAULTS
        elif rng.random() < 0.05:
            fault_names = RARE
        skip = rng.choice((0, 0, 0, 1, 2, 5))
        if trigger in OFTEN:
            skip = rng.randrange(OFTEN_SKIPPED_MAX)
        self._armed_faults[trigger] = _ArmedFault(rng.choice(fault_names), skip)

    def on_trigger(self, trigger: str, actor: str, peer: str) -> None:
        """Schedule the armed fault of a trigger; see `OnTrigger`.

        The fault follows a little later, because this method is called while a message is sent.
        """
        armed_fault = self._armed_faults.get(trigger)
        if armed_fault is None or self._nemesis.is_over:
            return
        if armed_fault.skip:
            armed_fault.skip -= 1
            return
        del self._armed_faults[trigger]
        self._strike_count += 1
        delay_s = self._rng.choice(DELAYS_S)
        self._cluster.simulation.call_after(
            delay_s, self._inject_fault, trigger, armed_fault.fault, actor, peer
        )

    def _inject_fault(self, trigger: str, fault: str, actor: str, peer: str) -> None:
        if self._nemesis.is_over:
            return
        self._nemesis.counts[f"at {trigger}"] += 1
        self._cluster.simulation.record_event("at", trigger, fault, actor, peer)
        self._fault_functions[fault](actor, peer)

    # --- faults -------------------------------------------------------------------------------------

    def _stop_machine(self, name: str, *, power: bool) -> None:
        host = self._cluster.machines[name]
        if power:
            host.power_cut()
        else:
            host.kill()
        self._nemesis.restart_later(self._rng, [name])

    def _crash_point(self, name: str) -> None:
        """Crash a machine a few disk or network steps later."""
        power = self._rng.random() < 0.7
        self._nemesis.crash_soon(self._rng, name, self._rng.randrange(1, 25), power=power)

    def _possible_answerers(self, peer: str) -> list[str]:
        """Return all machines that could give the same answer."""
        cluster = self._cluster
        return cluster.metadata if peer in cluster.metadata else [peer]

    def _crash_all_answerers(self, actor: str, peer: str) -> None:
        names = self._possible_answerers(peer)
        for name in names:
            self._cluster.machines[name].power_cut()
        for name in names:
            self._nemesis.restart_later(self._rng, [name])

    def _lose_answers(self, actor: str, peer: str) -> None:
        """Cut the directions of the answers: the request is executed, and the actor receives no answer."""
        pairs = [(name, actor) for name in self._possible_answerers(peer) if name != actor]
        self._nemesis.cut(self._rng, pairs, mended_after_s=self._rng.choice((0.3, 2.0, 5.0, 12.0)))

    def _cut_off(self, actor: str, peer: str) -> None:
        """Cut the actor off from all nodes, or only from the possible answerers."""
        others = [name for name in self._cluster.nodes if name != actor]
        if peer and self._rng.random() < 0.5:
            others = [name for name in self._possible_answerers(peer) if name != actor]
        pairs = [(actor, name) for name in others]
        if self._rng.random() < 0.7:
            pairs += [(name, actor) for name in others]
        self._nemesis.cut(self._rng, pairs)

    def _reset_connections(self, actor: str, peer: str) -> None:
        network = self._cluster.network
        for connection in list(network.connections.values()):
            if {connection.host.name, connection.peer_end.host.name} == {actor, peer}:
                network.reset(connection)

    def _stall(self, name: str) -> None:
        self._cluster.machines[name].stall(self._rng.choice((0.5, 3.0, 8.0)) * self._rng.random())

    def _fail_sync(self, name: str) -> None:
        disk = self._rng.choice(self._cluster.machines[name].devices())
        disk.faults.failing_syncs += 1


assert not {*REQUESTS, *MESSAGES, *AT_PROXIES} & {*STEPS}, (
    "a trigger kind is either a message to a node or a step of a disk"
)
