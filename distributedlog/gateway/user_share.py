"""The share of one user in all limits of a gateway: one half of each (pure)."""

from collections.abc import Callable
from dataclasses import dataclass

from ..runtime.interfaces.errors import TooBusy
from .options import GatewayOptions


@dataclass(frozen=True, slots=True, eq=False)
class IdleEviction:
    """Closes the writer or producer of a session that was idle longest, if any is idle."""

    close_writer: Callable[[], None]
    close_producer: Callable[[], None]


class UserShare:
    """The present usage of one user, over all of its tokens."""

    def __init__(self, user: str, options: GatewayOptions) -> None:
        self._user = user
        self._requests_max = max(1, options.requests_max // 2)
        self._tails_max = max(1, options.tails_max // 2)
        self._held_bytes_max = options.held_bytes_max // 2
        self._writers_max = max(1, options.writers_max // 2)
        self._producers_max = max(1, options.producers_max // 2)
        self.sessions = 0
        self.writers = self.producers = 0
        """Logs that are open for writing, and producers with an open stream."""
        self.evictions: list[IdleEviction] = []
        self._requests = self._tails = self._held_bytes = 0

    def begin_request(self) -> None:
        """Count one more request. Raises `TooBusy`."""
        if self._requests >= self._requests_max:
            raise TooBusy(f"{self._requests} requests of user {self._user} are pending")
        self._requests += 1

    def end_request(self, held_bytes: int) -> None:
        """Stop counting a request and its bytes, because it ended or became a tail."""
        self._requests -= 1
        self._held_bytes -= held_bytes

    def reserve_bytes(self, size: int) -> None:
        """Count more bytes for a request of the user. Raises `TooBusy`."""
        if self._held_bytes + size > self._held_bytes_max:
            raise TooBusy(f"the gateway holds {self._held_bytes} bytes for user {self._user}")
        self._held_bytes += size

    def make_room_for_writer(self, own_eviction: IdleEviction) -> None:
        """Close idle writers, if necessary, for one more log, first those of ``own_eviction``.

        Raises:
            TooBusy: All writers of the user are in use.
        """
        for eviction in sorted(self.evictions, key=lambda eviction: eviction is not own_eviction):
            if self.writers >= self._writers_max:
                eviction.close_writer()
        if self.writers >= self._writers_max:
            raise TooBusy(f"user {self._user} has {self.writers} logs open for writing")

    def make_room_for_producer(self, own_eviction: IdleEviction) -> None:
        """Close idle producer streams, if necessary, for one more. Raises `TooBusy`."""
        for eviction in sorted(self.evictions, key=lambda eviction: eviction is not own_eviction):
            if self.producers >= self._producers_max:
                eviction.close_producer()
        if self.producers >= self._producers_max:
            raise TooBusy(f"{self.producers} producers of user {self._user} are open")

    def begin_tail(self) -> None:
        """Count one more tail. Raises `TooBusy`."""
        if self._tails >= self._tails_max:
            raise TooBusy(f"{self._tails} tails of user {self._user} are open")
        self._tails += 1

    def end_tail(self) -> None:
        """Stop counting a tail."""
        self._tails -= 1
