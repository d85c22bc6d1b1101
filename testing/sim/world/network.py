"""Simulated TCP: ordered byte streams with latency, cuts, resets, half-open ends and refusals.

A cut affects one direction at a time, as failing routes do. A sender gets no response from a machine without
power. After power returns, the kernel of that machine answers with a reset. An address belongs to the
machine that listens there now, and nothing else ties a port to a node (H6).

Bytes split and merge at any point. A full send buffer accepts a part or nothing. Bytes that cannot be
delivered wait, as in TCP, and finally break their connection.

A message needs no task and no timer scope: a send is one event on the heap of the run.
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
"""Marks the end of the stream in a queue of pieces."""


@dataclass(slots=True)
class NetworkFaults:
    """The behavior of the network: times in seconds, probabilities from 0 to 1."""

    latency_s: tuple[float, float] = (0.0001, 0.001)
    slow_chance: float = 0.01
    slow_s: tuple[float, float] = (0.01, 0.15)
    split_chance: float = 0.1
    """Probability that a send arrives in two pieces, at different times."""
    short_read_chance: float = 0.1
    """Probability that a receive gets only a part of the available bytes."""
    short_send_chance: float = 0.05
    """Probability that a send accepts only a part of its bytes."""
    send_buffer_bytes: int = 256 * 1024
    give_up_s: float = 15.0
    """How long bytes may be undeliverable until their connection breaks."""


def draw_network_faults(rng: random.Random) -> NetworkFaults:
    """Return random faults for one seed (swarm testing: rare combinations must occur)."""
    return NetworkFaults(
        latency_s=rng.choice(((0.0001, 0.001), (0.0001, 0.001), (0.001, 0.02))),
        slow_chance=rng.choice((0.0, 0.01, 0.05)),
        slow_s=rng.choice(((0.01, 0.15), (0.1, 1.0))),
        split_chance=rng.choice((0.0, 0.1, 0.5)),
        short_read_chance=rng.choice((0.0, 0.1, 0.5)),
        short_send_chance=rng.choice((0.0, 0.05, 0.3)),
        send_buffer_bytes=rng.choice((8 * 1024, 64 * 1024, 256 * 1024)),
        give_up_s=rng.choice((5.0, 15.0, 60.0)),
    )


class Tap(Protocol):
    """Observes each byte stream, in order from its start, for oracles."""

    def on_sent(self, connection: "SimConnection", data: bytes) -> None:
        """``connection`` has passed these bytes to its machine."""
        ...

    def on_arrived(self, connection: "SimConnection", data: bytes) -> None:
        """These bytes have arrived at the machine of ``connection``, the receiving end."""
        ...


class SimNetwork:
    """All connections of a run, and the directions that are cut."""

    def __init__(self, simulation: Simulation, faults: NetworkFaults | None = None) -> None:
        self.simulation = simulation
        self.faults = faults or NetworkFaults()
        self.rng = simulation.random_stream("network")
        self.taps: list[Tap] = []
        self.machines: dict[str, MachineState] = {}
        """By IP address, which may move to another machine. Decides whether a connection attempt is refused
        or not answered."""
        self.listeners: dict[Address, SimListener] = {}
        self.connections: dict[int, SimConnection] = {}
        self.refusing_machines: dict[str, None] = {}
        """Names of machines that refuse every new connection."""
        self.identities: dict[str, CertificateIdentity] = {}
        """The certificate of each machine, by its name. It is a fact of the run and cannot be forged. If
        there are none, connections are plain."""
        self.message_count = 0
        self.byte_count = 0
        self.cut_directions: dict[tuple[str, str], None] = {}
        self.stuck_connections: dict[int, SimConnection] = {}
        self._serial = 0
        self._last_port = FIRST_PORT

    # --- faults -----------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Cut the direction from one machine to another. The opposite direction stays open."""
        self.cut_directions[source, target] = None

    def is_cut(self, source: str, target: str) -> bool:
        """Return whether this direction is cut."""
        return (source, target) in self.cut_directions

    def heal(self) -> None:
        """Open all directions again, and soon retransmit the stuck bytes."""
        self.cut_directions.clear()
        self.retransmit_stuck()

    def reconnect(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Open these directions again."""
        for pair in pairs:
            self.cut_directions.pop(pair, None)
        self.retransmit_stuck()

    def retransmit_stuck(self) -> None:
        """Schedule the retransmission of all stuck bytes, as TCP does after a pause."""
        for end in list(self.stuck_connections.values()):
            self.simulation.call_after(self.rng.uniform(0.0, 0.4), end.retransmit)

    def reset(self, end: "SimConnection") -> None:
        """Break a connection at both ends."""
        end.break_("was reset by the network")
        end.peer_end.break_("was reset by the network")

    def make_half_open(self, end: "SimConnection") -> None:
        """Break a connection at this end only. The other end receives no notice of it."""
        end.peer_end.is_half_open = True
        end.break_("was lost by a box in the middle")

    def on_power_cut(self, machine: MachineState) -> None:
        """End the connections of a machine that lost power.

        Unsent bytes are lost, and peers get no notice.
        """
        for end in [end for end in self.connections.values() if end.host is machine]:
            end.end_process(0 if end.is_stuck else self.rng.randint(0, len(end.outgoing)))
        self._drop_listeners(machine)

    def on_kill(self, machine: MachineState) -> None:
        """End the connections of a killed process, whose kernel closes its sockets."""
        for end in [end for end in self.connections.values() if end.host is machine]:
            end.end_process(len(end.outgoing))
            end.send_on_wire(FIN)
        self._drop_listeners(machine)

    def _drop_listeners(self, machine: MachineState) -> None:
        for address in [a for a, listener in self.listeners.items() if listener.host is machine]:
            self.listeners.pop(address).end_process()

    # --- calls of machines ----------------------------------------------------------------------------

    async def dial(self, host: MachineState, incarnation: int, address: Address) -> Connection:
        """Connect; see `Host.dial`."""
        host.check(incarnation)
        host.step("dial")
        address_text = f"{address[0]}:{address[1]}"
        started_at = self.simulation.now
        pause_s = 1.0
        while True:
            await trio.sleep(self.random_latency_s() + self.random_latency_s())
            host.check(incarnation)
            machine = self.machines.get(address[0])
            if machine is None:
                raise ConnectionLost(
                    f"{address_text}: no route to host"
                )  # no machine has this address
            if machine.powered and not (
                self.is_cut(host.name, machine.name) or self.is_cut(machine.name, host.name)
            ):
                break
            if self.simulation.now - started_at > SYN_SECONDS_MAX:
                raise ConnectionLost(f"{address_text} did not answer for {SYN_SECONDS_MAX:g} s")
            await trio.sleep(pause_s)  # the interval of TCP's SYN retransmissions
            pause_s *= 2
        listener = self.listeners.get(address)
        if (
            listener is None
            or machine.name in self.refusing_machines
            or len(listener.backlog) >= BACKLOG
            or listener.host is not machine
        ):
            raise ConnectionLost(f"{address_text} refused the connection", REFUSED)
        near, far = self._make_pair(host, listener.host, address_text)
        listener.add_connection(far)
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
            raise AddressInUse(f"{ip}:{port} is in use")
        listener = SimListener(self, host, incarnation, (ip, port))
        self.listeners[ip, port] = listener
        return listener

    def _make_pair(
        self, host: MachineState, other: MachineState, address_text: str
    ) -> tuple["SimConnection", "SimConnection"]:
        self._serial += 2
        ip = next((ip for ip, machine in self.machines.items() if machine is host), host.name)
        near = SimConnection(self, self._serial, host, address_text)
        far = SimConnection(self, self._serial + 1, other, f"{ip}:{40_000 + self._serial}")
        near.peer_end, far.peer_end = far, near
        near.is_dialer = True
        if self.identities:
            near.is_secret = far.is_secret = True
            near.identity = self.identities.get(other.name)
            far.identity = self.identities.get(host.name)
        self.connections[near.serial], self.connections[far.serial] = near, far
        return near, far

    def random_latency_s(self) -> float:
        """Return the random travel time of the next piece in seconds."""
        faults, rng = self.faults, self.rng
        is_slow = faults.slow_chance and rng.random() < faults.slow_chance
        low, high = faults.slow_s if is_slow else faults.latency_s
        return low + (high - low) * rng.random()


class SimListener:
    """A listening address of one life of a process."""

    def __init__(
        self, network: "SimNetwork", host: MachineState, incarnation: int, address: Address
    ) -> None:
        self.address = address
        self.host = host
        self.backlog: deque[SimConnection] = deque()
        self._network = network
        self._incarnation = incarnation
        self._accept_wait = ParkingSpace()
        self._closed = False

    def add_connection(self, end: "SimConnection") -> None:
        """Queue a new connection for `accept`."""
        self.backlog.append(end)
        self._accept_wait.wake()

    async def accept(self) -> Connection:
        """Wait for the next connection."""
        await trio.lowlevel.checkpoint()
        while True:
            self.host.check(self._incarnation)
            if self._closed:
                raise ConnectionLost(f"{self.address[0]}:{self.address[1]} is closed")
            if self.backlog:
                return self.backlog.popleft()
            await self._accept_wait.wait()

    def close(self) -> None:
        """Stop listening and reset connections that were not accepted. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._network.listeners.get(self.address) is self:
            del self._network.listeners[self.address]
        for end in self.backlog:
            self._network.reset(end)
        self._accept_wait.wake()

    def end_process(self) -> None:
        """End the listener, because its process ended."""
        self._closed = True
        self._accept_wait.wake(HostDown())


class EndState(Enum):
    """Whether an end of a connection is usable, and the reason if not."""

    OPEN = 0
    CLOSED = 1
    BROKEN = 2
    DOWN = 3


class SimConnection:
    """One end of a stream; see `Connection` in ``runtime/interfaces/host.py``."""

    peer_end: "SimConnection"

    def __init__(self, network: "SimNetwork", serial: int, host: MachineState, peer: str) -> None:
        self.peer = peer
        self.identity: CertificateIdentity | None = None
        self.is_secret = False
        self.has_begun_handshake = False
        self.serial = serial
        self.host = host
        self.incarnation = host.incarnation
        self.is_dialer = False
        """Whether this end made the connection."""
        self.outgoing: deque[bytes] = deque()
        """Pieces on the way to the other end, in order. An empty piece (`FIN`) ends the stream."""
        self.is_half_open = False
        """Whether bytes sent from here are silently lost (half-open connection)."""
        self._network = network
        self._state = EndState.OPEN
        self._closed_reason = ""
        self._inbox = bytearray()
        self._has_fin = False
        self._unread_by_peer = 0
        """Bytes sent that the other end has not received yet."""
        self._last_arrival = 0.0
        self.is_stuck = False
        self._stuck_since = 0.0
        self._read_wait = ParkingSpace()
        self._write_wait = ParkingSpace()

    # --- calls of the process -------------------------------------------------------------------------

    async def receive_into(self, *buffers: memoryview) -> int:
        """Fill the buffers with bytes that have arrived. Raises `ConnectionLost`.

        Returns:
            The number of bytes, or 0 if the peer has closed the connection.
        """
        if self._inbox or self._has_fin or self._state is not EndState.OPEN:
            await trio.lowlevel.checkpoint()
        while self._state is EndState.OPEN and not self._inbox and not self._has_fin:
            await self._read_wait.wait()
        if self._state is not EndState.OPEN:
            raise self._error()
        inbox = self._inbox
        if not inbox:
            return 0
        self.host.step("receive")
        available = len(inbox)
        rng, faults = self._network.rng, self._network.faults
        if faults.short_read_chance and rng.random() < faults.short_read_chance:
            available = rng.randint(1, available)
        filled = 0
        for buffer in buffers:
            size = min(len(buffer), available - filled)
            buffer[:size] = inbox[filled : filled + size]
            filled += size
        del inbox[:filled]
        self.peer_end._unread_by_peer -= filled
        self.peer_end._write_wait.wake()
        return filled

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        """Send as many bytes as the connection accepts now, and return their number.

        Raises `ConnectionLost`.
        """
        if self._state is not EndState.OPEN:
            raise self._error()
        faults, rng = self._network.faults, self._network.rng
        free_bytes = faults.send_buffer_bytes - self._unread_by_peer
        if free_bytes <= 0:
            return 0
        self.host.step("send")
        if len(buffers) == 1 and len(buffers[0]) <= free_bytes:
            data = bytes(buffers[0])
        else:
            gathered, parts = 0, []
            for buffer in buffers:
                part = (
                    buffer
                    if len(buffer) <= free_bytes - gathered
                    else memoryview(buffer)[: free_bytes - gathered]
                )
                parts.append(part)
                gathered += len(part)
                if gathered == free_bytes:
                    break
            data = b"".join(parts)
        if not data:
            return 0
        if faults.short_send_chance and rng.random() < faults.short_send_chance:
            data = data[: rng.randint(1, len(data))]
        for tap in self._network.taps:
            tap.on_sent(self, data)
        self._unread_by_peer += len(data)
        if len(data) > 1 and faults.split_chance and rng.random() < faults.split_chance:
            split = rng.randrange(1, len(data))
            self.send_on_wire(data[:split])
            self.send_on_wire(data[split:])
        else:
            self.send_on_wire(data)
        return len(data)

    async def wait_writable(self) -> None:
        """Wait until `try_send` may accept bytes again. Raises `ConnectionLost`."""
        if self._state is not EndState.OPEN or self._is_writable():
            await trio.lowlevel.checkpoint()
        while self._state is EndState.OPEN and not self._is_writable():
            await self._write_wait.wait()
        if self._state is not EndState.OPEN:
            raise self._error()

    def close(self) -> None:
        """Close now. If unread bytes are left here, the peer gets a reset, as in TCP. Idempotent."""
        if self._state is not EndState.OPEN:
            return
        self._state, self._closed_reason = EndState.CLOSED, "was closed here"
        if self._inbox:
            self._network.simulation.call_after(
                self._network.random_latency_s(), self.peer_end.break_, "was reset"
            )
        else:
            self.send_on_wire(FIN)
        self._end_here(None)

    def _is_writable(self) -> bool:
        return self._unread_by_peer < self._network.faults.send_buffer_bytes

    def _error(self) -> BaseException:
        if self._state is EndState.DOWN:
            return HostDown()
        return ConnectionLost(f"the connection to {self.peer} {self._closed_reason}")

    # --- calls of the network -------------------------------------------------------------------------

    def send_on_wire(self, data: bytes) -> None:
        """Schedule the delivery of bytes, or of `FIN`."""
        if self.is_half_open:
            return
        network = self._network
        self.outgoing.append(data)
        arrival = network.simulation.now + network.random_latency_s()
        if arrival < self._last_arrival:
            arrival = self._last_arrival
        self._last_arrival = arrival
        network.simulation.call_at(arrival, self._deliver)

    def _deliver(self) -> None:
        """Deliver the next piece, unless its direction is cut or the receiver has no power."""
        if not self.outgoing or self.is_stuck:
            return
        network, receiver = self._network, self.peer_end
        if (
            not receiver.host.powered
            or (self.host.name, receiver.host.name) in network.cut_directions
        ):
            self._stuck_since = network.simulation.now
            self.is_stuck = True
            network.stuck_connections[self.serial] = self
            network.simulation.call_after(
                network.faults.give_up_s, self._time_out, self._stuck_since
            )
            return
        data = self.outgoing.popleft()
        network.message_count += 1
        network.byte_count += len(data)
        network.simulation.hash_step(self.serial, xxhash.xxh3_64_intdigest(data))
        if receiver._state is not EndState.OPEN:
            if data and not network.is_cut(receiver.host.name, self.host.name):
                network.simulation.call_after(
                    network.random_latency_s(), self.break_, "was reset by the peer"
                )
            return
        if data:
            for tap in network.taps:
                tap.on_arrived(receiver, data)
            receiver._inbox += data
        else:
            receiver._has_fin = True
        receiver._read_wait.wake()

    def retransmit(self) -> None:
        """Retry the delivery of stuck bytes."""
        if not self.is_stuck:
            return
        self.is_stuck = False
        self._network.stuck_connections.pop(self.serial, None)
        for _ in range(len(self.outgoing)):
            self._deliver()
            if self.is_stuck:
                return

    def _time_out(self, stuck_since: float) -> None:
        if self.is_stuck and self._stuck_since == stuck_since:
            self.break_("timed out: nothing was acknowledged by the peer's machine")
            self._drop_outgoing()

    def _drop_outgoing(self) -> None:
        self.outgoing.clear()
        self._network.stuck_connections.pop(self.serial, None)

    def break_(self, reason: str) -> None:
        """Break the connection at this end."""
        if self._state is not EndState.OPEN:
            return
        self._state, self._closed_reason = EndState.BROKEN, reason
        self._drop_outgoing()
        self._end_here(None)

    def end_process(self, pieces_kept: int) -> None:
        """End the connection because its process ended.

        The first ``pieces_kept`` unsent pieces are still sent.
        """
        if self._state is EndState.OPEN:
            self._state = EndState.DOWN
        while len(self.outgoing) > pieces_kept:
            self.outgoing.pop()
        if not self.outgoing:
            self._drop_outgoing()
        self._end_here(HostDown())

    def _end_here(self, error: BaseException | None) -> None:
        self._inbox.clear()
        self._read_wait.wake(error)
        self._write_wait.wake(error)
        if self.peer_end._state is not EndState.OPEN:
            self._network.connections.pop(self.serial, None)
            self._network.connections.pop(self.peer_end.serial, None)


class ParkingSpace:
    """The place where one task waits until it is woken, normally or with an error.

    A wait allocates no object.
    """

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None

    async def wait(self) -> None:
        """Wait until `wake` is called. Raises the error passed to it."""
        assert self._task is None, "only one task may wait per direction"
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def wake(self, error: BaseException | None = None) -> None:
        """Resume the waiting task, if there is one."""
        task, self._task = self._task, None
        if task is not None:
            if error is None:
                trio.lowlevel.reschedule(task)
            else:
                trio.lowlevel.reschedule(task, outcome.Error(error))
