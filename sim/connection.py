"""One end of a simulated stream: what a process holds of the network.

Bytes split and merge anywhere (H43c); a full send buffer takes a part or nothing; what cannot be delivered
waits, as TCP's does, and breaks its connection in the end.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import trio
import xxhash

from ..runtime.errors import ConnectionLost
from ..runtime.host import Buffer
from .parking import ParkingSpace
from .stalls import Machine

if TYPE_CHECKING:
    from .network import SimNetwork


class HostDown(BaseException):
    """Raised into code of a machine that was switched off, or of a process that was killed.

    No `Exception`: ``except Exception`` must not survive a kill.
    """


class NetworkHost(Machine, Protocol):
    """What the network knows of a machine; sim/host.py has the rest."""

    name: str
    incarnation: int
    powered: bool

    def step(self, what: str) -> None:
        """A place where the machine may be made to die."""
        ...

    def lives(self, incarnation: int) -> bool:
        """Does this life of the process go on?"""
        ...

    def check(self, incarnation: int) -> None:
        """Raise `HostDown` unless this life of the process goes on."""
        ...


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


class Tap(Protocol):
    """Sees every byte stream, in order, from its begin: for oracles."""

    def on_sent(self, end: "SimConnection", data: bytes) -> None:
        """``end`` has handed these bytes to its machine."""
        ...

    def on_arrived(self, end: "SimConnection", data: bytes) -> None:
        """These bytes have arrived at ``end``'s machine."""
        ...


class EndState(Enum):
    """Whether an end can still be used, and why not."""

    OPEN = 0
    CLOSED = 1
    BROKEN = 2
    DOWN = 3


FIN = b""
"""Says, in a queue of pieces, that no more comes."""


class SimConnection:
    """One end of a stream. See `runtime.host.Connection`."""

    far: "SimConnection"

    def __init__(self, network: "SimNetwork", serial: int, host: NetworkHost, peer: str) -> None:
        self.peer = peer
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
