"""Simulated TCP: ordered byte streams with latency, cuts, resets, half-open ends and refusals.

A way is held for one direction at a time, as routes fail. Whoever sends towards a machine without power
hears nothing; after power returns its kernel answers with a reset. Addresses belong to whoever listens
there now: nothing else ties a port to a node (H6, H43g).

No task and no timer scope a message: a send is one event on the run's heap.
"""

import random
from collections.abc import Sequence

import trio

from ..runtime.errors import AddressInUse, ConnectionLost
from ..runtime.host import Address, Connection
from .connection import FIN, NetworkFaults, NetworkHost, SimConnection, Tap
from .listener import SimListener
from .scheduler import Simulation

FIRST_PORT = 30_000
BACKLOG = 128
SYN_SECONDS_MAX = 20.0


class SimNetwork:
    """All streams of a run, and the ways that are cut."""

    def __init__(self, simulation: Simulation, faults: NetworkFaults | None = None) -> None:
        self.simulation = simulation
        self.faults = faults or NetworkFaults()
        self.chance = simulation.chance("network")
        self.taps: list[Tap] = []
        self.machines: dict[str, NetworkHost] = {}
        """By IP; may be given to another machine. Decides whether a knock is refused or unheard."""
        self.listeners: dict[Address, SimListener] = {}
        self.ends: dict[int, SimConnection] = {}
        self.refusing: dict[str, None] = {}
        """Names of machines that refuse every new connection."""
        self.messages = 0
        self.bytes = 0
        self.cut_ways: dict[tuple[str, str], None] = {}
        self.stuck: dict[int, SimConnection] = {}
        self._serial = 0
        self._last_port = FIRST_PORT

    # --- faults -----------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from one machine to the other any more; the other direction stays."""
        self.cut_ways[source, target] = None

    def is_cut(self, source: str, target: str) -> bool:
        """Is this direction cut?"""
        return (source, target) in self.cut_ways

    def heal(self) -> None:
        """All ways are open again; what waited is sent again soon."""
        self.cut_ways.clear()
        self.kick()

    def mend(self, pairs: Sequence[tuple[str, str]]) -> None:
        """These ways are open again."""
        for pair in pairs:
            self.cut_ways.pop(pair, None)
        self.kick()

    def kick(self) -> None:
        """Something can flow again: let what is stuck be sent anew, as TCP does after a pause."""
        for end in list(self.stuck.values()):
            self.simulation.after(self.chance.uniform(0.0, 0.4), end.retransmit)

    def reset(self, end: "SimConnection") -> None:
        """Break a connection for both sides."""
        end.break_("was reset by the network")
        end.far.break_("was reset by the network")

    def lose(self, end: "SimConnection") -> None:
        """Half-open: the connection is gone on this side, and the other side hears nothing of it."""
        end.far.mute = True
        end.break_("was lost by a box in the middle")

    def on_power_cut(self, machine: NetworkHost) -> None:
        """A machine is off: what its kernel had not sent is gone, its peers hear nothing."""
        for end in [end for end in self.ends.values() if end.host is machine]:
            end.go_down(0 if end.is_stuck else self.chance.randint(0, len(end.outgoing)))
        self._drop_listeners(machine)

    def on_kill(self, machine: NetworkHost) -> None:
        """A process is gone: its kernel closes its sockets."""
        for end in [end for end in self.ends.values() if end.host is machine]:
            end.go_down(len(end.outgoing))
            end.queue(FIN)
        self._drop_listeners(machine)

    def _drop_listeners(self, machine: NetworkHost) -> None:
        for address in [a for a, found in self.listeners.items() if found.host is machine]:
            self.listeners.pop(address).go_down()

    # --- what machines use ------------------------------------------------------------------------

    async def dial(self, host: NetworkHost, incarnation: int, address: Address) -> Connection:
        """Connect; see `Host.dial`."""
        host.check(incarnation)
        host.step("dial")
        place = f"{address[0]}:{address[1]}"
        began = self.simulation.now
        pause_s = 1.0
        while True:
            await trio.sleep(self.latency() + self.latency())
            host.check(incarnation)
            machine = self.machines.get(address[0])
            if machine is None:
                raise ConnectionLost(f"{place}: no route to host")  # nobody has this address
            if machine.powered and not (
                self.is_cut(host.name, machine.name) or self.is_cut(machine.name, host.name)
            ):
                break
            if self.simulation.now - began > SYN_SECONDS_MAX:
                raise ConnectionLost(f"{place} did not answer for {SYN_SECONDS_MAX:g} s")
            await trio.sleep(pause_s)  # as SYNs are sent again
            pause_s *= 2
        listener = self.listeners.get(address)
        if (
            listener is None
            or machine.name in self.refusing
            or len(listener.waiting) >= BACKLOG
            or listener.host is not machine
        ):
            raise ConnectionLost(f"{place} refused the connection")
        near, far = self._pair(host, listener.host, place)
        listener.arrive(far)
        return near

    async def listen(self, host: NetworkHost, incarnation: int, address: Address) -> SimListener:
        """Listen; see `Host.listen`."""
        await trio.lowlevel.checkpoint()
        host.check(incarnation)
        ip, port = address
        if self.machines.get(ip) is not host:
            raise AddressInUse(f"{ip} is not an address of {host.name}")
        while not port:
            self._last_port += 1
            if (ip, self._last_port) not in self.listeners:
                port = self._last_port
        if (ip, port) in self.listeners:
            raise AddressInUse(f"{ip}:{port} is taken")
        listener = SimListener(self, host, incarnation, (ip, port))
        self.listeners[ip, port] = listener
        return listener

    def _pair(
        self, host: NetworkHost, other: NetworkHost, place: str
    ) -> tuple["SimConnection", "SimConnection"]:
        self._serial += 2
        ip = next((ip for ip, machine in self.machines.items() if machine is host), host.name)
        near = SimConnection(self, self._serial, host, place)
        far = SimConnection(self, self._serial + 1, other, f"{ip}:{40_000 + self._serial}")
        near.far, far.far = far, near
        near.dialled = True
        self.ends[near.serial], self.ends[far.serial] = near, far
        return near, far

    def latency(self) -> float:
        """How long the next piece is on its way, seconds."""
        faults, chance = self.faults, self.chance
        slow = faults.slow_chance and chance.random() < faults.slow_chance
        low, high = faults.slow_s if slow else faults.latency_s
        return low + (high - low) * chance.random()


def draw_network_faults(chance: random.Random) -> NetworkFaults:
    """A mix for one seed (swarm testing: rare mixes must happen)."""
    return NetworkFaults(
        latency_s=chance.choice(((0.0001, 0.001), (0.0001, 0.001), (0.001, 0.02))),
        slow_chance=chance.choice((0.0, 0.01, 0.05)),
        slow_s=chance.choice(((0.01, 0.15), (0.1, 1.0))),
        split_chance=chance.choice((0.0, 0.1, 0.5)),
        short_read_chance=chance.choice((0.0, 0.1, 0.5)),
        short_send_chance=chance.choice((0.0, 0.05, 0.3)),
        send_buffer_bytes=chance.choice((8 * 1024, 64 * 1024, 256 * 1024)),
        give_up_s=chance.choice((5.0, 15.0, 60.0)),
    )
