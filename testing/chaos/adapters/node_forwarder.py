"""A simulated network between local processes: forwarders that can cut and slow down connections.

Each node advertises the address of its forwarder. The source of a connection is identified by the process
that owns its other end (/proc/net/tcp). So every link between two nodes can be cut in each direction
separately, without root rights.

A cut link loses no bytes. As in a partitioned TCP connection, they wait and arrive after the link is healed,
if both ends still exist. New connections over a cut link wait, as with lost SYN packets.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from ....runtime.interfaces.host import Address
from ..model.adapter import CLIENTS, Link

PIECE_BYTES = 65_536
PIECES_MAX = 64
"""Pieces in transit in one direction of a connection that is slowed down."""
PROC_NET = "/proc/net/tcp"


@dataclass(slots=True)
class LinkConditions:
    """The present state of all links."""

    cut: dict[Link, int] = field(default_factory=dict)
    """The number of faults that cut each link."""
    slow: dict[Link, tuple[float, float]] = field(default_factory=dict)
    """Link to (delay in s, bytes/s or 0)."""
    changed: trio.Event = field(default_factory=trio.Event)

    def notify_changed(self) -> None:
        """Notify all waiting tasks of a change."""
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    async def wait_uncut(self, *links: Link) -> None:
        """Return when none of these links is cut."""
        while any(self.cut.get(link) for link in links):
            await self.changed.wait()


class NodeForwarder:
    """The forwarder of one node: it listens at the node's public address, and connects to its private one."""

    def __init__(
        self,
        name: str,
        public: Address,
        private: Address,
        conditions: LinkConditions,
        process_of: Callable[[int], str],
    ) -> None:
        self.name = name
        self.public = public
        self.private = private
        self._conditions = conditions
        self._process_of = process_of
        """Returns a node's name, or `CLIENTS`, for the inode of a socket."""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled. It has started when it listens."""
        host, port = self.public
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=256)
        task_status.started()
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(trio.serve_listeners, self._forward_connection, [listener])

    async def _forward_connection(self, client_stream: trio.SocketStream) -> None:
        source = self._process_of(owner_of(client_stream.socket.getpeername()[1], self.public[1]))
        request_link, reply_link = (source, self.name), (self.name, source)
        try:
            async with client_stream:
                await self._conditions.wait_uncut(request_link, reply_link)
                node_stream = await trio.open_tcp_stream(*self.private)
                async with node_stream, trio.open_nursery() as nursery:
                    nursery.start_soon(
                        self._forward_direction,
                        client_stream,
                        node_stream,
                        request_link,
                        nursery.cancel_scope,
                    )
                    nursery.start_soon(
                        self._forward_direction,
                        node_stream,
                        client_stream,
                        reply_link,
                        nursery.cancel_scope,
                    )
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # one end was closed, and the other end was closed as a result

    async def _forward_direction(
        self,
        source: trio.SocketStream,
        target: trio.SocketStream,
        link: Link,
        connection_scope: trio.CancelScope,
    ) -> None:
        sender, receiver = trio.open_memory_channel[tuple[float, bytes]](PIECES_MAX)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deliver, receiver, target, link)
            async with sender:
                while True:
                    piece = await source.receive_some(PIECE_BYTES)
                    if not piece:
                        break
                    delay_s, _ = self._conditions.slow.get(link, (0.0, 0.0))
                    await sender.send((trio.current_time() + delay_s, piece))
        await self._conditions.wait_uncut(link)
        connection_scope.cancel()  # nodes never half-close, so both directions end together

    async def _deliver(
        self,
        receiver: "trio.MemoryReceiveChannel[tuple[float, bytes]]",
        target: trio.SocketStream,
        link: Link,
    ) -> None:
        async for due, piece in receiver:
            if due > trio.current_time():
                await trio.sleep_until(due)
            _, bytes_per_s = self._conditions.slow.get(link, (0.0, 0.0))
            if bytes_per_s:
                await trio.sleep(len(piece) / bytes_per_s)
            await self._conditions.wait_uncut(link)
            await target.send_all(piece)


def owner_of(port: int, remote_port: int) -> int:
    """Return the inode of the local socket from ``port`` to ``remote_port``; 0 if it is unknown."""
    with open(PROC_NET) as table:
        next(table)
        for line in table:
            fields = line.split()
            if (
                int(fields[1].split(":")[1], 16) == port
                and int(fields[2].split(":")[1], 16) == remote_port
            ):
                return int(fields[9])
    return 0


def holds(pid: int, inode: int) -> bool:
    """Return whether a process has a descriptor of a socket."""
    wanted = f"socket:[{inode}]"
    try:
        with os.scandir(f"/proc/{pid}/fd") as descriptors:
            return any(os.readlink(descriptor.path) == wanted for descriptor in descriptors)
    except OSError:
        return False


def who_holds(inode: int, pids: dict[str, int]) -> str:
    """Return the name of the process that has a socket; any other process counts as a client."""
    for name, pid in pids.items():
        if inode and holds(pid, inode):
            return name
    return CLIENTS
