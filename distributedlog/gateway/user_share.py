"""What one user may have of a gateway: half of what there is for all (pure)."""

from collections.abc import Callable
from dataclasses import dataclass

from ..runtime.interfaces.errors import TooBusy
from .options import GatewayOptions


@dataclass(frozen=True, slots=True, eq=False)
class IdleEviction:
    """Closes what a session of the user has not used for longest, if anything of it is idle."""

    close_writer: Callable[[], None]
    close_producer: Callable[[], None]


class UserShare:
    """What one user has of a gateway now, by all its tokens."""

    def __init__(self, user: str, options: GatewayOptions) -> None:
        self._user = user
        self._requests_max = max(1, options.requests_max // 2)
        self._tails_max = max(1, options.tails_max // 2)
        self._held_bytes_max = options.held_bytes_max // 2
        self._writers_max = max(1, options.writers_max // 2)
        self._producers_max = max(1, options.producers_max // 2)
        self.sessions = 0
        self.writers = self.producers = 0
        """Logs that are open for writing, producers that there is a stream for."""
        self.evictions: list[IdleEviction] = []
        self._requests = self._tails = self._held_bytes = 0

    def begin_request(self) -> None:
        """One request more. Raises `TooBusy`."""
        if self._requests >= self._requests_max:
            raise TooBusy(f"{self._requests} requests of user {self._user} are under way")
        self._requests += 1

    def end_request(self, held_bytes: int) -> None:
        """It is over, or goes on as a tail; with what was held for it."""
        self._requests -= 1
        self._held_bytes -= held_bytes

    def reserve_bytes(self, size: int) -> None:
        """So many bytes more are held for one of its requests. Raises `TooBusy`."""
        if self._held_bytes + size > self._held_bytes_max:
            raise TooBusy(f"the gateway holds {self._held_bytes} bytes for user {self._user}")
        self._held_bytes += size

    def make_room_for_writer(self, own_eviction: IdleEviction) -> None:
        """For one more log that is written: idle ones are closed, first ``who``'s. Raises `TooBusy`."""
        for eviction in sorted(self.evictions, key=lambda eviction: eviction is not own_eviction):
            if self.writers >= self._writers_max:
                eviction.close_writer()
        if self.writers >= self._writers_max:
            raise TooBusy(f"user {self._user} has {self.writers} logs open for writing")

    def make_room_for_producer(self, own_eviction: IdleEviction) -> None:
        """The same of a producer's stream."""
        for eviction in sorted(self.evictions, key=lambda eviction: eviction is not own_eviction):
            if self.producers >= self._producers_max:
                eviction.close_producer()
        if self.producers >= self._producers_max:
            raise TooBusy(f"{self.producers} producers of user {self._user} are open")

    def begin_tail(self) -> None:
        """One tail more. Raises `TooBusy`."""
        if self._tails >= self._tails_max:
            raise TooBusy(f"{self._tails} tails of user {self._user} are open")
        self._tails += 1

    def end_tail(self) -> None:
        """One less."""
        self._tails -= 1
