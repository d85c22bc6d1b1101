"""What clients have asked for and is not decided yet: how much, for whom, how long it may take (pure).

A leader that takes everything answers nobody in time: what waits is done for callers that have given up, and
they come again. So it refuses early what would wait for longer than half of what its sender gives it, by the
rate at which it decides now; certainly not done, and the client comes again after a pause that grows. And one
connection gets a quarter of the room where more than half of it is taken: one busy client does not turn the
others away.
"""

from ...runtime.interfaces.errors import TooBusy

RATE_WINDOW_S = 0.5
"""The rate is that of the last whole window of so much, while something waited."""
WAIT_FRACTION_MAX = 0.5
CONNECTION_SHARE_DIVISOR = 4
NEVER_S = 3600.0
"""A deadline that was not given."""


class AdmissionControl:
    """The requests that a leader has taken. ``bytes_max``: of all of them."""

    def __init__(self, bytes_max: int) -> None:
        self.waiting_bytes = 0
        self._bytes_max = bytes_max
        self._bytes_by_requester: dict[object, int] = {}
        self._window_began_at = 0.0
        """When this window began."""
        self._decided_bytes = 0
        self._bytes_per_s = 0.0
        """Bytes a second in the window before; 0: not known."""

    def refusal(
        self, requester: object, size_bytes: int, timeout_s: float, now: float
    ) -> TooBusy | None:
        """Why a request of that size is not taken; None if it may be."""
        wait_s = self.expected_wait_s(now)
        if wait_s > timeout_s * WAIT_FRACTION_MAX:
            return TooBusy(
                f"what is asked of the metadata quorum takes {wait_s:.1f} s as it goes now, the request"
                f" gives it {timeout_s:.1f}: come again later"
            )
        requester_bytes = self._bytes_by_requester.get(requester, 0) + size_bytes
        if (
            self.waiting_bytes > self._bytes_max // 2
            and requester_bytes > self._bytes_max // CONNECTION_SHARE_DIVISOR
        ):
            return TooBusy(
                f"{requester_bytes} bytes of this connection wait for the metadata quorum, and others "
                "wait, too"
            )
        return None

    def expected_wait_s(self, now: float) -> float:
        """How long what is taken now is likely to wait; 0.0 where nothing is known."""
        if not self.waiting_bytes:
            return 0.0
        rate, took_s = self._bytes_per_s, now - self._window_began_at
        if took_s >= RATE_WINDOW_S:
            rate = self._decided_bytes / took_s
        if rate:
            return self.waiting_bytes / rate
        return took_s if took_s >= RATE_WINDOW_S else 0.0

    def on_accepted(self, requester: object, size: int, now: float) -> None:
        """A request was put into the log."""
        if not self.waiting_bytes:  # idle: how fast it went with little to do says nothing
            self._window_began_at, self._decided_bytes, self._bytes_per_s = now, 0, 0.0
        self.waiting_bytes += size
        self._bytes_by_requester[requester] = self._bytes_by_requester.get(requester, 0) + size

    def on_applied(self, requester: object, size: int, now: float) -> None:
        """It was applied."""
        self.waiting_bytes -= size
        self._decided_bytes += size
        remaining_bytes = self._bytes_by_requester[requester] - size
        if remaining_bytes:
            self._bytes_by_requester[requester] = remaining_bytes
        else:
            del self._bytes_by_requester[requester]
        if now - self._window_began_at >= RATE_WINDOW_S:
            self._bytes_per_s = self._decided_bytes / (now - self._window_began_at)
            self._window_began_at, self._decided_bytes = now, 0

    def clear(self) -> None:
        """This node leads no more: nothing of it is decided here."""
        self.waiting_bytes = self._decided_bytes = 0
        self._bytes_by_requester.clear()
        self._bytes_per_s = 0.0
