"""Limit the rate of TLS handshakes at a server; nodes of the cluster do not wait (H224).

A handshake takes a millisecond of CPU and does not yield. If a thousand clients reconnect at once, unlimited
handshakes would block the event loop for a second. Heartbeats would be late, a new leader would be elected,
and all clients would reconnect again. With the limit, clients wait for some seconds, and nine tenths of the
loop's time remain for existing connections.

The peer's identity is known only after the handshake, but its host is known before. Hosts that had a node of
the cluster at the other end of a connection, in either direction, do not wait. All other hosts take turns
with one handshake per host at a time, so a host that reconnects forever delays only itself.
"""

from collections.abc import Callable

import trio

HANDSHAKES_PER_S = 100
"""For hosts without a known node."""
NODE_HOSTS_MAX = 256
"""Known hosts of nodes. The one that was confirmed least recently is removed first."""


class HandshakeLimiter:
    """The handshake turns of one process."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._next_at = 0.0
        self._node_hosts: dict[str, None] = {}
        self._waiting_by_host: dict[str, tuple[trio.Lock, list[int]]] = {}
        """For each host with waiting handshakes, the lock that orders them and their number."""
        self.waiting_count = 0

    def add_node_host(self, host: str) -> None:
        """Record that a node of the cluster, proved by its certificate, runs on this host."""
        self._node_hosts.pop(host, None)
        self._node_hosts[host] = None
        if len(self._node_hosts) > NODE_HOSTS_MAX:
            del self._node_hosts[next(iter(self._node_hosts))]

    async def wait_turn(self, host: str, check_still_open: Callable[[], None]) -> None:
        """Wait until a handshake with a peer on this host may start.

        A peer that disconnected while it waited uses no turn. Otherwise, clients that time out would use up
        the turns of all others.

        Args:
            host: The host of the peer.
            check_still_open: Raises an error if the connection has ended. The error ends the wait.
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
