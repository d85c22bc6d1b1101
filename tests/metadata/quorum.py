"""A metadata quorum on pipes and disks in memory, whose nodes are started, killed and wiped by name."""

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from distributedlog.metadata.auth.key_space import KeySpace
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.declarations.options import MetadataOptions
from distributedlog.metadata.model.interface import MemberStatus
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.metadata.protocol.client_messages import decode_rows
from distributedlog.metadata.server import serve_metadata
from distributedlog.runtime.declarations.versions import VERSION
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import ConnectionLost
from distributedlog.runtime.interfaces.host import Address, Buffer, Connection, Host, Listener
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op, pack
from distributedlog.runtime.protocol.handshake import Hello

from ..runtime.pipe import PipeNetwork

CLIENT_TIMEOUT_S = 10.0


class Quorum:
    """``names`` are the nodes; nothing runs until `start`."""

    def __init__(
        self,
        names: Sequence[str],
        nursery: trio.Nursery,
        *,
        seed: int = 1,
        classes: KeySpace | None = None,
        dress: Callable[[str, Host], Host] = lambda name, host: host,
    ) -> None:
        """``dress``: what each machine's host becomes, by the node's name."""
        self._dress = dress
        self.names = tuple(names)
        self.disks = {name: MemoryDisk() for name in names}
        self.peers = {name: (name, 4181) for name in names}
        self._listed = {name: dict(self.peers) for name in names}
        self._chance = random.Random(seed)
        self._network = PipeNetwork(seed, bytes_max=256 * 1024)
        self._nursery = nursery
        self._called = {name: name for name in names}
        self._cut_off: set[str] = set()
        self._silent: dict[str, trio.Event] = {}
        self._wires: list[tuple[str, str, Connection]] = []
        self._running: dict[str, tuple[trio.CancelScope, trio.Event]] = {}
        self._clients = 0
        self._classes = classes
        self.versions: dict[str, str] = {}
        """The versions that nodes state from their next start on, if not that of this software."""
        self.may_end: set[str] = set()
        """Nodes that may end by themselves; why they did is in ``ended``."""
        self.ended: dict[str, BaseExceptionGroup] = {}
        hello = Hello(cluster_id="", node_id="observer", kind="client")
        self._asker = Endpoint(self.machine("observer"), lambda: hello)

    async def start(self, *names: str) -> None:
        """Start nodes (all, if none is named) on what their disks hold."""
        for name in names or self.names:
            await self._nursery.start(self._run, name)

    async def kill(self, *names: str) -> None:
        """End nodes at once; their disks keep what was written."""
        for name in names or tuple(self._running):
            scope, ended = self._running.pop(name)
            scope.cancel()
            await ended.wait()

    async def end_of(self, name: str) -> BaseExceptionGroup:
        """Wait until a node of ``may_end`` has ended by itself; why it did."""
        if name in self._running:
            await self._running[name][1].wait()
        return self.ended.pop(name)

    def add(self, name: str, *, called: str = "") -> None:
        """One more machine with an empty disk; only its own list names it. ``called``: another's name."""
        self.disks[name] = MemoryDisk()
        self._called[name] = called or name
        if not called:
            self.peers[name] = (name, 4181)
        self._listed[name] = {**self.peers, called or name: (name, 4181)}

    def cut_off(self, name: str) -> None:
        """That node and the other nodes do not reach each other; clients reach all."""
        self._cut_off.add(name)
        for one, other, wire in self._wires:
            if name in (one, other):
                wire.close()

    def join_again(self, name: str) -> None:
        """The other nodes and that one reach each other again."""
        self._cut_off.remove(name)

    def list_for(self, name: str, listed: Mapping[str, Address]) -> None:
        """Somebody gives that node another list of metadata nodes."""
        self._listed[name] = dict(listed)

    def machine(self, name: str) -> Host:
        """Another machine of the network, for whoever speaks to the nodes as it likes."""
        return self._dress(name, self._network.host(name))

    def silence(self, name: str) -> None:
        """Nothing reaches that node and nothing leaves it, and no connection ends, as where it hangs."""
        self._silent[name] = trio.Event()

    def end_silence(self, name: str) -> None:
        self._silent.pop(name).set()

    def wipe(self, name: str) -> None:
        """The node's directory is emptied, or another machine comes in its place."""
        assert name not in self._running
        self.disks[name] = MemoryDisk()

    async def restart_empty(self, name: str) -> None:
        """The node is killed, its directory emptied, and it is started again."""
        await self.kill(name)
        self.wipe(name)
        await self.start(name)

    def other_than(self, *names: str) -> str:
        """The first node that is none of these."""
        return next(name for name in self.names if name not in names)

    async def client(
        self,
        *names: str,
        timeout_s: float = CLIENT_TIMEOUT_S,
        nursery: trio.Nursery | None = None,
        principal: str = "",
        client_id: str = "",
    ) -> MetadataClient:
        """A client that knows these nodes (all, if none is named); it lives as long as ``nursery``.

        ``principal``: who it has proved to be, where the nodes believe that (`trusting`).
        """
        self._clients += 1
        name = f"client {self._clients}"
        if principal:
            name = f"{principal} {name}"
        hello = Hello(cluster_id="", node_id=name, kind="client")
        client = MetadataClient(
            Endpoint(self.machine(name), lambda: hello),
            [self.peers[known] for known in names or self.names],
            client_id=client_id or f"client {self._clients}",
            timeout_s=timeout_s,
        )
        await (nursery or self._nursery).start(
            lambda task_status: client.run(task_status=task_status)
        )
        return client

    async def cluster_id(self) -> str:
        """Of the cluster that these nodes form; waits until one belongs to it."""
        client = await self.client()
        await client._connections.any_link()
        return client.cluster_id

    async def rows(self) -> dict[str, MemberStatus]:
        """What each running node says of itself, by name."""
        found: dict[str, MemberStatus] = {}
        async with trio.open_nursery() as nursery:
            for name in tuple(self._running):
                link = await self._asker.dial((name, 4181), nursery=nursery)
                reply = await link.request(Op.META_STATUS, pack(["self"]), timeout_s=2.0)
                found.update({row.status.name: row.status for row in decode_rows(reply.body)})
                link.close(ConnectionLost("asked and answered"))
        return found

    async def leader(self) -> str:
        """Wait until one node leads; its name."""
        while True:
            leaders = [name for name, row in (await self.rows()).items() if row.role == "leader"]
            if len(leaders) == 1:
                return leaders[0]
            await trio.sleep(0.1)

    async def _run(self, name: str, *, task_status: trio.TaskStatus[None]) -> None:
        disk, ended = self.disks[name], trio.Event()
        host = self._dress(name, self._network.host(name, metadata=disk))
        dial = host.dial

        async def dial_unless_cut_off(address: Address) -> Connection:
            if self._cut_off & {name, address[0]}:
                raise ConnectionLost(f"{name} does not reach {address[0]}")
            wire = await dial(address)
            self._wires.append((name, address[0], wire))
            return Muted(wire, name, self._silent)

        # No two lives alike.
        chance = random.Random(self._chance.random())
        host = replace(host, random=chance, dial=dial_unless_cut_off)
        listener = MutedListener(await host.listen((name, 4181)), name, self._silent)
        disk.lock()
        try:
            with trio.CancelScope() as scope:
                self._running[name] = (scope, ended)
                async with trio.open_nursery() as nursery:
                    options = MetadataOptions(
                        self._called[name],
                        self._listed[name],
                        version=self.versions.get(name, VERSION),
                    )
                    await nursery.start(
                        serve_metadata, host, options, {"": listener}, self._classes
                    )
                    task_status.started()
        except BaseExceptionGroup as group:
            if name not in self.may_end:
                raise
            self.ended[name] = group
            self._running.pop(name, None)
        finally:
            listener.close()
            disk.unlock()
            ended.set()


class Muted:
    """A connection of a node that may fall silent."""

    def __init__(self, wire: Connection, name: str, silent: Mapping[str, trio.Event]) -> None:
        self.peer, self.identity, self.is_secret = wire.peer, wire.identity, wire.is_secret
        self.has_begun_handshake = wire.has_begun_handshake
        self._wire = wire
        self._name = name
        self._silent = silent
        self.close = wire.close

    async def receive_into(self, *buffers: memoryview) -> int:
        await self._heard()
        count = await self._wire.receive_into(*buffers)
        self.identity, self.is_secret = self._wire.identity, self._wire.is_secret
        self.has_begun_handshake = self._wire.has_begun_handshake
        await self._heard()  # what came in during the silence is kept until it ends
        return count

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        return 0 if self._name in self._silent else self._wire.try_send(buffers)

    async def wait_writable(self) -> None:
        await self._heard()
        await self._wire.wait_writable()

    async def _heard(self) -> None:
        while self._name in self._silent:
            await self._silent[self._name].wait()


class MutedListener:
    """Hands out such connections."""

    def __init__(self, listener: Listener, name: str, silent: Mapping[str, trio.Event]) -> None:
        self.address = listener.address
        self.close = listener.close
        self._listener = listener
        self._name = name
        self._silent = silent

    async def accept(self) -> Connection:
        return Muted(await self._listener.accept(), self._name, self._silent)


@asynccontextmanager
async def quorum(
    size: int,
    *,
    seed: int = 1,
    classes: KeySpace | None = None,
    dress: Callable[[str, Host], Host] = lambda name, host: host,
) -> AsyncIterator[Quorum]:
    """A quorum of ``size`` nodes m1, m2, …, none of them started."""
    async with trio.open_nursery() as nursery:
        names = [f"m{n + 1}" for n in range(size)]
        yield Quorum(names, nursery, seed=seed, classes=classes, dress=dress)
        nursery.cancel_scope.cancel()


def put(key: bytes, value: bytes = b"", lease: int = 0) -> Transaction:
    return Transaction((), (Put(key, value, lease),))


async def fill(client: MetadataClient, count: int = 20) -> None:
    for n in range(count):
        await client.transact(put(b"k%02d" % n, b"v%d" % n))


@asynccontextmanager
async def serving_quorum() -> AsyncIterator[tuple[Quorum, MetadataClient]]:
    """Three nodes, started, and a client."""
    async with quorum(3) as nodes:
        await nodes.start()
        yield nodes, await nodes.client()


@asynccontextmanager
async def filled_quorum() -> AsyncIterator[tuple[Quorum, MetadataClient]]:
    """The same, with some keys."""
    async with serving_quorum() as (nodes, client):
        await fill(client)
        yield nodes, client
