"""A byte stream in memory that splits and merges as a network may: for tests of links.

Honest to `distributedlog/runtime/interfaces/host.py`: bytes arrive in order, at any cut; a full pipe takes no
more; a closed end is news to the other. Chance is seeded.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence

import trio

from distributedlog.runtime.interfaces.errors import REFUSED, AddressInUse, ConnectionLost
from distributedlog.runtime.interfaces.host import Address, Buffer, Connection, Host, Listener
from distributedlog.runtime.interfaces.principals import CertificateIdentity


class _Way:
    """One direction."""

    def __init__(self, chance: random.Random, bytes_max: int) -> None:
        self.data = bytearray()
        self.chance = chance
        self.bytes_max = bytes_max
        self.ended = False
        self.changed = trio.Event()

    def change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class PipeConnection:
    """One end of a pipe."""

    identity: CertificateIdentity | None = None
    is_secret = False
    has_begun_handshake = False

    def __init__(self, name: str, incoming: _Way, outgoing: _Way) -> None:
        self.peer = name
        self._in = incoming
        self._out = outgoing
        self._closed = False

    async def receive_into(self, *buffers: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        while not self._in.data and not self._in.ended and not self._closed:
            await self._in.changed.wait()
        if self._closed:
            raise ConnectionLost(f"{self.peer}: closed here")
        if not self._in.data:
            return 0
        limit = min(len(self._in.data), sum(len(b) for b in buffers))
        if self._in.chance.random() < 0.5:
            limit = self._in.chance.randint(1, limit)
        given = 0
        for buffer in buffers:
            size = min(len(buffer), limit - given)
            buffer[:size] = self._in.data[given : given + size]
            given += size
        del self._in.data[:given]
        self._in.change()
        return given

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        if self._closed or self._out.ended:
            raise ConnectionLost(f"{self.peer}: closed")
        room = self._out.bytes_max - len(self._out.data)
        joined = b"".join(buffers)[: max(0, room)]
        if joined and self._out.chance.random() < 0.3:
            joined = joined[: self._out.chance.randint(1, len(joined))]
        self._out.data += joined
        if joined:
            self._out.change()
        return len(joined)

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        while (
            len(self._out.data) >= self._out.bytes_max and not self._out.ended and not self._closed
        ):
            await self._out.changed.wait()
        if self._closed or self._out.ended:
            raise ConnectionLost(f"{self.peer}: closed")

    def close(self) -> None:
        self._closed = True
        self._out.ended = self._in.ended = True
        self._out.change()
        self._in.change()


class PipeListener:
    """Hands out the far ends."""

    def __init__(self, address: Address, release: Callable[[], None]) -> None:
        self.address = address
        self.waiting: deque[Connection] = deque()
        self.arrived = trio.Event()
        self._release = release

    async def accept(self) -> Connection:
        await trio.lowlevel.checkpoint()
        while not self.waiting:
            await self.arrived.wait()
            self.arrived = trio.Event()
        return self.waiting.popleft()

    def close(self) -> None:
        self._release()


class PipeNetwork:
    """A network of pipes: hosts that share it reach each other by address."""

    def __init__(self, seed: int = 1, *, bytes_max: int = 64 * 1024) -> None:
        self._chance = random.Random(seed)
        self._bytes_max = bytes_max
        self._listeners: dict[Address, PipeListener] = {}
        self._ports = 20_000

    def host(self, name: str, **disks: object) -> Host:
        return Host(
            name=name,
            dial=lambda address: self._dial(name, address),
            listen=self._listen,
            disks=disks,  # type: ignore[arg-type]
            random=random.Random(name),
            secret_bytes=random.Random(f"secret of {name}").randbytes,
            wall_ms=lambda: 1_700_000_000_000 + int(trio.current_time() * 1000),
        )

    async def _dial(self, name: str, address: Address) -> Connection:
        await trio.lowlevel.checkpoint()
        listener = self._listeners.get(address)
        if listener is None:
            raise ConnectionLost(f"{address[0]}:{address[1]} refused the connection", REFUSED)
        there = _Way(self._chance, self._bytes_max)
        back = _Way(self._chance, self._bytes_max)
        listener.waiting.append(PipeConnection(f"{name}:1", there, back))
        listener.arrived.set()
        return PipeConnection(f"{address[0]}:{address[1]}", back, there)

    async def _listen(self, address: Address) -> Listener:
        await trio.lowlevel.checkpoint()
        if address[1] == 0:
            self._ports += 1
            address = (address[0], self._ports)
        if address in self._listeners:
            raise AddressInUse(f"{address[0]}:{address[1]} is taken")

        def release() -> None:
            self._listeners.pop(address, None)

        listener = PipeListener(address, release)
        self._listeners[address] = listener
        return listener
