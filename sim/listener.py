"""A listening address of the simulated network."""

from collections import deque
from typing import TYPE_CHECKING

import trio

from ..runtime.errors import ConnectionLost
from ..runtime.host import Address, Connection
from .connection import HostDown, NetworkHost, SimConnection
from .parking import ParkingSpace

if TYPE_CHECKING:
    from .network import SimNetwork


class SimListener:
    """A listening address of one life of a process."""

    def __init__(
        self, network: "SimNetwork", host: NetworkHost, incarnation: int, address: Address
    ) -> None:
        self.address = address
        self.host = host
        self.waiting: deque[SimConnection] = deque()
        self._network = network
        self._incarnation = incarnation
        self._acceptor = ParkingSpace()
        self._closed = False

    def arrive(self, end: SimConnection) -> None:
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
