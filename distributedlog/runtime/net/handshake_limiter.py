"""When a server works on the next handshake: nodes at once, all others in turn, so many a second (H224).

A handshake is a millisecond of CPU that does not yield. A thousand clients that come back at one moment were
a second of it in one loop: heartbeats late, an election, and everybody comes back again. In turn they wait
some seconds, and the loop has nine tenths of its time for those who are there.

Who comes is not known before the handshake. But where it comes from is: hosts where nodes of the cluster
were met, as those that dialled or were dialled, go first. Of all others each host has one in the turn, so
that one machine that comes back for ever makes its own wait.
"""

from collections.abc import Callable

import trio

HANDSHAKES_PER_S = 100
"""Of those who are not known to be nodes."""
NODE_HOSTS_MAX = 256
"""Of nodes; the one that was met first is forgotten first."""


class HandshakeLimiter:
    """Of one process."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._next_at = 0.0
        self._node_hosts: dict[str, None] = {}
        self._waiting_by_host: dict[str, tuple[trio.Lock, list[int]]] = {}
        """Of a host from which somebody waits: whose turn it is among them, and how many they are."""
        self.waiting_count = 0

    def add_node_host(self, host: str) -> None:
        """A node of the cluster is there, by its certificate."""
        self._node_hosts.pop(host, None)
        self._node_hosts[host] = None
        if len(self._node_hosts) > NODE_HOSTS_MAX:
            del self._node_hosts[next(iter(self._node_hosts))]

    async def wait_turn(self, host: str, check_still_open: Callable[[], None]) -> None:
        """Return when it is the turn of one who comes from there; what ``check`` raises ends its waiting.

        Who has gone while it waited takes no turn: else those who give up would keep all others from theirs.
        """
        if host in self._node_hosts:
            return
        host_lock, host_count = self._waiting_by_host.setdefault(host, (trio.Lock(), [0]))
        self.waiting_count += 1
        host_count[0] += 1
        try:
            async with host_lock:
                check_still_open()
                async with self._lock:
                    check_still_open()
                    await trio.sleep_until(self._next_at)
                    check_still_open()
                    self._next_at = trio.current_time() + 1 / HANDSHAKES_PER_S
        finally:
            self.waiting_count -= 1
            host_count[0] -= 1
            if not host_count[0]:
                del self._waiting_by_host[host]
