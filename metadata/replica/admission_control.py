"""What clients have asked for and is not decided yet: how much, for whom, how long it may take (pure).

A leader that takes everything answers nobody in time: what waits is done for callers that have given up, and
they come again. So it refuses early what would wait for longer than half of what its sender gives it, by the
rate at which it decides now; certainly not done, and the client comes again after a pause that grows. And one
connection gets a quarter of the room where more than half of it is taken: one busy client does not turn the
others away.
"""

from ...runtime.interfaces.errors import TooBusy

WINDOW_S = 0.5
"""The rate is that of the last whole window of so much, while something waited."""
WAIT_PART = 0.5
SHARE = 4
NEVER_S = 3600.0
"""A deadline that was not given."""


class AdmissionControl:
    """The requests that a leader has taken. ``bytes_max``: of all of them."""

    def __init__(self, bytes_max: int) -> None:
        self.waiting_bytes = 0
        self._bytes_max = bytes_max
        self._by_asker: dict[object, int] = {}
        self._since = 0.0
        """When this window began."""
        self._decided_bytes = 0
        self._rate = 0.0
        """Bytes a second in the window before; 0: not known."""

    def refusal(self, asker: object, size: int, within_s: float, now: float) -> TooBusy | None:
        """Why a request of that size is not taken; None if it may be."""
        wait_s = self.wait_s(now)
        if wait_s > within_s * WAIT_PART:
            return TooBusy(
                f"what is asked of the metadata quorum takes {wait_s:.1f} s as it goes now, the request"
                f" gives it {within_s:.1f}: come again later"
            )
        held = self._by_asker.get(asker, 0) + size
        if self.waiting_bytes > self._bytes_max // 2 and held > self._bytes_max // SHARE:
            return TooBusy(
                f"{held} bytes of this connection wait for the metadata quorum, and others wait, too"
            )
        return None

    def wait_s(self, now: float) -> float:
        """How long what is taken now is likely to wait; 0.0 where nothing is known."""
        if not self.waiting_bytes:
            return 0.0
        rate, took_s = self._rate, now - self._since
        if took_s >= WINDOW_S:
            rate = self._decided_bytes / took_s
        if rate:
            return self.waiting_bytes / rate
        return took_s if took_s >= WINDOW_S else 0.0

    def on_taken(self, asker: object, size: int, now: float) -> None:
        """A request was put into the log."""
        if not self.waiting_bytes:  # idle: how fast it went with little to do says nothing
            self._since, self._decided_bytes, self._rate = now, 0, 0.0
        self.waiting_bytes += size
        self._by_asker[asker] = self._by_asker.get(asker, 0) + size

    def on_decided(self, asker: object, size: int, now: float) -> None:
        """It was applied."""
        self.waiting_bytes -= size
        self._decided_bytes += size
        left = self._by_asker[asker] - size
        if left:
            self._by_asker[asker] = left
        else:
            del self._by_asker[asker]
        if now - self._since >= WINDOW_S:
            self._rate = self._decided_bytes / (now - self._since)
            self._since, self._decided_bytes = now, 0

    def clear(self) -> None:
        """This node leads no more: nothing of it is decided here."""
        self.waiting_bytes = self._decided_bytes = 0
        self._by_asker.clear()
        self._rate = 0.0
