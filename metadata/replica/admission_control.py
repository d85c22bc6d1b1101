"""Requests that a leader has accepted and not yet applied: their sizes, senders and expected delay (pure).

A leader that accepts everything answers no client in time, because it works for callers whose calls have
timed out, and these callers retry. So it refuses early. It refuses a request that would wait longer than
half of the sender's timeout, by the rate at which it currently applies requests. A refused request was
certainly not executed, and the client retries after a growing pause.

If more than half of the byte limit is in use, one connection gets at most a quarter of the limit. So one
busy client does not exclude the others.
"""

from ...runtime.interfaces.errors import TooBusy

RATE_WINDOW_S = 0.5
"""The rate is measured over the last complete window of this length in which requests waited."""
WAIT_FRACTION_MAX = 0.5
CONNECTION_SHARE_DIVISOR = 4
NO_TIMEOUT_S = 3600.0
"""The timeout of a request that has none."""


class AdmissionControl:
    """The requests that a leader has accepted. ``bytes_max`` limits their total size."""

    def __init__(self, bytes_max: int) -> None:
        self.waiting_bytes = 0
        self._bytes_max = bytes_max
        self._bytes_by_requester: dict[object, int] = {}
        self._window_began_at = 0.0
        """Start of the present window."""
        self._decided_bytes = 0
        self._bytes_per_s = 0.0
        """Rate in the previous window, or 0 if it is unknown."""

    def refusal(
        self, requester: object, size_bytes: int, timeout_s: float, now: float
    ) -> TooBusy | None:
        """Return the error for a request that must be refused, or None if the request is accepted.

        Args:
            requester: The connection of the request.
            size_bytes: The size of the command.
            timeout_s: The timeout of the sender.
            now: The present time in seconds.
        """
        wait_s = self.expected_wait_s(now)
        if wait_s > timeout_s * WAIT_FRACTION_MAX:
            return TooBusy(
                f"metadata quorum overloaded: expected wait {wait_s:.1f} s, timeout of the request"
                f" {timeout_s:.1f} s. Retry later"
            )
        requester_bytes = self._bytes_by_requester.get(requester, 0) + size_bytes
        if (
            self.waiting_bytes > self._bytes_max // 2
            and requester_bytes > self._bytes_max // CONNECTION_SHARE_DIVISOR
        ):
            return TooBusy(
                f"metadata quorum overloaded: {requester_bytes} bytes of this connection are pending."
                " Retry later"
            )
        return None

    def expected_wait_s(self, now: float) -> float:
        """Return the expected waiting time in seconds of a request that is accepted now, or 0.0."""
        if not self.waiting_bytes:
            return 0.0
        rate, took_s = self._bytes_per_s, now - self._window_began_at
        if took_s >= RATE_WINDOW_S:
            rate = self._decided_bytes / took_s
        if rate:
            return self.waiting_bytes / rate
        return took_s if took_s >= RATE_WINDOW_S else 0.0

    def on_accepted(self, requester: object, size: int, now: float) -> None:
        """Count a request that was added to the log."""
        if not self.waiting_bytes:  # After an idle period, the old rate does not apply.
            self._window_began_at, self._decided_bytes, self._bytes_per_s = now, 0, 0.0
        self.waiting_bytes += size
        self._bytes_by_requester[requester] = self._bytes_by_requester.get(requester, 0) + size

    def on_applied(self, requester: object, size: int, now: float) -> None:
        """Remove a request that was applied."""
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
        """Drop all requests, because this node no longer leads."""
        self.waiting_bytes = self._decided_bytes = 0
        self._bytes_by_requester.clear()
        self._bytes_per_s = 0.0
