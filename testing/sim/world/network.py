"""Simulated TCP: ordered byte streams with latency, cuts, resets, half-open ends and refusals.

A way is held for one direction at a time, as routes fail. Whoever sends towards a machine without power
hears nothing; after power returns its kernel answers with a reset. Addresses belong to whoever listens
there now: nothing else ties a port to a node (H6).

Bytes split and merge anywhere; a full send buffer takes a part or nothing; what cannot be delivered
waits, as TCP's does, and breaks its connection in the end.

No task and no timer scope a message: a send is one event on the run's heap.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import outcome
import trio
import xxhash

from ....runtime.interfaces.errors import REFUSED, AddressInUse, ConnectionLost
from ....runtime.interfaces.host import Address, Buffer, Connection
from ....runtime.interfaces.principals import CertificateIdentity
from .machine_state import HostDown, MachineState
from .scheduler import Simulation

FIRST_PORT = 30_000
BACKLOG = 128
SYN_SECONDS_MAX = 20.0
FIN = b""
"""Says, in a queue of pieces, that no more comes."""


@dataclass(slots=True)
class NetworkFaults:
    """How the network behaves; times in seconds, chances from 0 to 1."""

    latency_s: tuple[float, float] = (0.0001, 0.001)
    slow_chance: float = 0.01
    slow_s: tuple[float, float] = (0.01, 0.15)
    split_chance: float = 0.1
    """A send arrives in two pieces, at different times."""
    short_read_chance: float = 0.1
    """A receive gets only a part of what is there."""
    short_send_chance: float = 0.05
    """A send takes only a part of what it was given."""
    send_buffer_bytes: int = 256 * 1024
    give_up_s: float = 15.0
    """Bytes that cannot be delivered for so long break their connection."""


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


class Tap(Protocol):
    """Sees every byte stream, in order, from its begin: for oracles."""

    def on_sent(self, end: "SimConnection", data: bytes) -> None:
        """``end`` has handed these bytes to its machine."""
        ...

    def on_arrived(self, end: "SimConnection", data: bytes) -> None:
        """These bytes have arrived at ``end``'s machine."""
        ...


class SimNetwork:
    """All streams of a run, and the ways that are cut."""

    def __init__(self, simulation: Simulation, faults: NetworkFaults | None = None) -> None:
        self.simulation = simulation
        self.faults = faults or NetworkFaults()
        self.chance = simulation.chance("network")
        self.taps: list[Tap] = []
        self.machines: dict[str, MachineState] = {}
        """By IP; may be given to another machine. Decides whether a knock is refused or unheard."""
        self.listeners: dict[Address, SimListener] = {}
        self.ends: dict[int, SimConnection] = {}
        self.refusing: dict[str, None] = {}
        """Names of machines that refuse every new connection."""
        self.identities: dict[str, CertificateIdentity] = {}
        """Whose certificate each machine holds, by its name: that is a fact of the run, which nobody can
        forge. Where there are none connections are plain."""
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

    def on_power_cut(self, machine: MachineState) -> None:
        """A machine is off: what its kernel had not sent is gone, its peers hear nothing."""
        for end in [end for end in self.ends.values() if end.host is machine]:
            end.go_down(0 if end.is_stuck else self.chance.randint(0, len(end.outgoing)))
        self._drop_listeners(machine)

    def on_kill(self, machine: MachineState) -> None:
        """A process is gone: its kernel closes its sockets."""
        for end in [end for end in self.ends.values() if end.host is machine]:
            end.go_down(len(end.outgoing))
            end.queue(FIN)
        self._drop_listeners(machine)

    def _drop_listeners(self, machine: MachineState) -> None:
        for address in [a for a, found in self.listeners.items() if found.host is machine]:
            self.listeners.pop(address).go_down()

    # --- what machines use ------------------------------------------------------------------------

    async def dial(self, host: MachineState, incarnation: int, address: Address) -> Connection:
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
            raise ConnectionLost(f"{place} refused the connection", REFUSED)
        near, far = self._pair(host, listener.host, place)
        listener.arrive(far)
        return near

    async def listen(self, host: MachineState, incarnation: int, address: Address) -> "SimListener":
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
        self, host: MachineState, other: MachineState, place: str
    ) -> tuple["SimConnection", "SimConnection"]:
        self._serial += 2
        ip = next((ip for ip, machine in self.machines.items() if machine is host), host.name)
        near = SimConnection(self, self._serial, host, place)
        far = SimConnection(self, self._serial + 1, other, f"{ip}:{40_000 + self._serial}")
        near.far, far.far = far, near
        near.dialled = True
        if self.identities:
            near.is_secret = far.is_secret = True
            near.identity = self.identities.get(other.name)
            far.identity = self.identities.get(host.name)
        self.ends[near.serial], self.ends[far.serial] = near, far
        return near, far

    def latency(self) -> float:
        """How long the next piece is on its way, seconds."""
        faults, chance = self.faults, self.chance
        slow = faults.slow_chance and chance.random() < faults.slow_chance
        low, high = faults.slow_s if slow else faults.latency_s
        return low + (high - low) * chance.random()


class SimListener:
    """A listening address of one life of a process."""

    def __init__(
        self, network: "SimNetwork", host: MachineState, incarnation: int, address: Address
    ) -> None:
        self.address = address
        self.host = host
        self.waiting: deque[SimConnection] = deque()
        self._network = network
        self._incarnation = incarnation
        self._acceptor = ParkingSpace()
        self._closed = False

    def arrive(self, end: "SimConnection") -> None:
        """A connection was made to here."""
        self.waiting.append(end)
        self._acceptor.wake()

    async def accept(self) -> Connection:
        """Wait for the next connection."""
        await trio.lowlevel.checkpoint()
        while True:
            self.host.check(self._incarnation)
            if self._closed:
                raise ConnectionLost(f"{self.address[0]}:{self.address[1]} listens no more")
            if self.waiting:
                return self.waiting.popleft()
            await self._acceptor.park()

    def close(self) -> None:
        """Stop listening; who was not accepted yet is reset. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._network.listeners.get(self.address) is self:
            del self._network.listeners[self.address]
        for end in self.waiting:
            self._network.reset(end)
        self._acceptor.wake()

    def go_down(self) -> None:
        """The process is gone."""
        self._closed = True
        self._acceptor.wake(HostDown())


class EndState(Enum):
    """Whether an end can still be used, and why not."""

    OPEN = 0
    CLOSED = 1
    BROKEN = 2
    DOWN = 3


class SimConnection:
    """One end of a stream. See `runtime.host.Connection`."""

    far: "SimConnection"

    def __init__(self, network: "SimNetwork", serial: int, host: MachineState, peer: str) -> None:
        self.peer = peer
        self.identity: CertificateIdentity | None = None
        self.is_secret = False
        self.has_begun = False
        self.serial = serial
        self.host = host
        self.incarnation = host.incarnation
        self.dialled = False
        """This end made the connection."""
        self.outgoing: deque[bytes] = deque()
        """On the way to the other end, in order; an empty one says that no more comes."""
        self.mute = False
        """What is sent here vanishes (half-open)."""
        self._network = network
        self._state = EndState.OPEN
        self._why = ""
        self._inbox = bytearray()
        self._at_end = False
        self._unread = 0
        """Bytes sent that the far end has not taken yet."""
        self._last_arrival = 0.0
        self.is_stuck = False
        self._stuck_since = 0.0
        self._reader = ParkingSpace()
        self._writer = ParkingSpace()

    # --- what the process uses --------------------------------------------------------------------

    async def receive_into(self, *buffers: memoryview) -> int:
        """Fill the buffers with what has arrived; 0: the peer has closed. Raises `ConnectionLost`."""
        if self._inbox or self._at_end or self._state is not EndState.OPEN:
            await trio.lowlevel.checkpoint()
        while self._state is EndState.OPEN and not self._inbox and not self._at_end:
            await self._reader.park()
        if self._state is not EndState.OPEN:
            raise self._error()
        inbox = self._inbox
        if not inbox:
            return 0
        self.host.step("receive")
        have = len(inbox)
        chance, faults = self._network.chance, self._network.faults
        if faults.short_read_chance and chance.random() < faults.short_read_chance:
            have = chance.randint(1, have)
        taken = 0
        for buffer in buffers:
            size = min(len(buffer), have - taken)
            buffer[:size] = inbox[taken : taken + size]
            taken += size
        del inbox[:taken]
        self.far._unread -= taken
        self.far._writer.wake()
        return taken

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        """Hand over what the connection takes now. Raises `ConnectionLost`."""
        if self._state is not EndState.OPEN:
            raise self._error()
        faults, chance = self._network.faults, self._network.chance
        room = faults.send_buffer_bytes - self._unread
        if room <= 0:
            return 0
        self.host.step("send")
        if len(buffers) == 1 and len(buffers[0]) <= room:
            data = bytes(buffers[0])
        else:
            taken, parts = 0, []
            for buffer in buffers:
                part = buffer if len(buffer) <= room - taken else memoryview(buffer)[: room - taken]
                parts.append(part)
                taken += len(part)
                if taken == room:
                    break
            data = b"".join(parts)
        if not data:
            return 0
        if faults.short_send_chance and chance.random() < faults.short_send_chance:
            data = data[: chance.randint(1, len(data))]
        for tap in self._network.taps:
            tap.on_sent(self, data)
        self._unread += len(data)
        if len(data) > 1 and faults.split_chance and chance.random() < faults.split_chance:
            at = chance.randrange(1, len(data))
            self.queue(data[:at])
            self.queue(data[at:])
        else:
            self.queue(data)
        return len(data)

    async def wait_writable(self) -> None:
        """Return when `try_send` may take bytes again. Raises `ConnectionLost`."""
        if self._state is not EndState.OPEN or self._has_room():
            await trio.lowlevel.checkpoint()
        while self._state is EndState.OPEN and not self._has_room():
            await self._writer.park()
        if self._state is not EndState.OPEN:
            raise self._error()

    def close(self) -> None:
        """Close now. Idempotent. With unread bytes here, the peer gets a reset (as TCP does)."""
        if self._state is not EndState.OPEN:
            return
        self._state, self._why = EndState.CLOSED, "was closed here"
        if self._inbox:
            self._network.simulation.after(self._network.latency(), self.far.break_, "was reset")
        else:
            self.queue(FIN)
        self._end_here(None)

    def _has_room(self) -> bool:
        return self._unread < self._network.faults.send_buffer_bytes

    def _error(self) -> BaseException:
        if self._state is EndState.DOWN:
            return HostDown()
        return ConnectionLost(f"the connection to {self.peer} {self._why}")

    # --- what the network does --------------------------------------------------------------------

    def queue(self, data: bytes) -> None:
        """Send bytes, or the end, on their way."""
        if self.mute:
            return
        network = self._network
        self.outgoing.append(data)
        when = network.simulation.now + network.latency()
        if when < self._last_arrival:
            when = self._last_arrival
        self._last_arrival = when
        network.simulation.at(when, self._deliver)

    def _deliver(self) -> None:
        """The next piece arrives, if the way is open."""
        if not self.outgoing or self.is_stuck:
            return
        network, far = self._network, self.far
        if not far.host.powered or (self.host.name, far.host.name) in network.cut_ways:
            self._stuck_since = network.simulation.now
            self.is_stuck = True
            network.stuck[self.serial] = self
            network.simulation.after(network.faults.give_up_s, self._give_up, self._stuck_since)
            return
        data = self.outgoing.popleft()
        network.messages += 1
        network.bytes += len(data)
        network.simulation.mix(self.serial, xxhash.xxh3_64_intdigest(data))
        if far._state is not EndState.OPEN:
            if data and not network.is_cut(far.host.name, self.host.name):
                network.simulation.after(network.latency(), self.break_, "was reset by the peer")
            return
        if data:
            for tap in network.taps:
                tap.on_arrived(far, data)
            far._inbox += data
        else:
            far._at_end = True
        far._reader.wake()

    def retransmit(self) -> None:
        """Try again what was stuck."""
        if not self.is_stuck:
            return
        self.is_stuck = False
        self._network.stuck.pop(self.serial, None)
        for _ in range(len(self.outgoing)):
            self._deliver()
            if self.is_stuck:
                return

    def _give_up(self, stuck_since: float) -> None:
        if self.is_stuck and self._stuck_since == stuck_since:
            self.break_("timed out: nothing was acknowledged by the peer's machine")
            self._forget_outgoing()

    def _forget_outgoing(self) -> None:
        self.outgoing.clear()
        self._network.stuck.pop(self.serial, None)

    def break_(self, why: str) -> None:
        """The connection is broken at this end."""
        if self._state is not EndState.OPEN:
            return
        self._state, self._why = EndState.BROKEN, why
        self._forget_outgoing()
        self._end_here(None)

    def go_down(self, keep: int) -> None:
        """The process is gone; of what it sent the first ``keep`` pieces are on the wire already."""
        if self._state is EndState.OPEN:
            self._state = EndState.DOWN
        while len(self.outgoing) > keep:
            self.outgoing.pop()
        if not self.outgoing:
            self._forget_outgoing()
        self._end_here(HostDown())

    def _end_here(self, error: BaseException | None) -> None:
        self._inbox.clear()
        self._reader.wake(error)
        self._writer.wake(error)
        if self.far._state is not EndState.OPEN:
            self._network.ends.pop(self.serial, None)
            self._network.ends.pop(self.far.serial, None)


class ParkingSpace:
    """Where one task waits, until it is woken with nothing or with an error; a wait makes no object."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None

    async def park(self) -> None:
        """Wait until `wake` is called. Raises what it is called with."""
        assert self._task is None, "one task a direction"
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def wake(self, error: BaseException | None = None) -> None:
        """Let the task go on, if there is one."""
        task, self._task = self._task, None
        if task is not None:
            if error is None:
                trio.lowlevel.reschedule(task)
            else:
                trio.lowlevel.reschedule(task, outcome.Error(error))
